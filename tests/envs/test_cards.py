"""SABATH model files and environment cards become specifications, or a sentence says why not."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.base.strict_json import load_json
from fairmile.envs.sabath import spec_from_card, spec_from_sabath

COSMOFLOW: dict[str, Any] = {
    "name": "CosmoFlow",
    "requirements": {
        "python": ">=3.8",
        "pip": ["pandas", "wandb", "tensorflow==2.10.0", "horovod"],
        "system_modules": ["cmake/3.26.3", "cuda/11.8.0", "gcc/11.3.0"],
    },
    "env_vars": {"HOROVOD_CUDA_HOME": "$CUDA_HOME", "HOROVOD_WITH_TENSORFLOW": "1"},
}
MINIWEATHER: dict[str, Any] = {
    "name": "miniWeatherML",
    "requirements": {
        "python": ">=3.8",
        "pip": ["hdf5", "netcdf4=1.5.3", "pkg-config"],
        "system_modules": ["gcc/9.5.0"],
    },
    "env_vars": {"CC": "mpicc", "CMAKE_INCLUDE_PATH": "$CONDA_PREFIX/include"},
}


def test_requirements_and_variables_become_a_specification() -> None:
    spec, notes = spec_from_sabath(COSMOFLOW)
    assert spec.model_dump(exclude_defaults=True) == {
        "name": "CosmoFlow",
        "modules": ("cmake/3.26.3", "cuda/11.8.0", "gcc/11.3.0"),
        "python": {"version": ">=3.8", "packages": ("pandas", "wandb", "tensorflow==2.10.0", "horovod")},
        "variables": {"HOROVOD_CUDA_HOME": "$CUDA_HOME", "HOROVOD_WITH_TENSORFLOW": "1"},
    }
    assert notes == ()


def test_a_list_for_pip_that_is_condas_becomes_condas() -> None:
    spec, notes = spec_from_sabath(MINIWEATHER)
    assert spec.conda is not None
    assert spec.conda.packages == ("python >=3.8", "hdf5", "netcdf4=1.5.3", "pkg-config")
    assert spec.python is None
    assert notes == (
        "requirements.pip holds what only conda understands and env_vars point into $CONDA_PREFIX: "
        "taken as conda packages",
    )


def test_a_pin_of_condas_among_pips_is_put_right() -> None:
    spec, notes = spec_from_sabath({"name": "waves", "requirements": {"pip": ["netcdf4=1.5.3", "numpy"]}})
    assert spec.python is not None
    assert spec.python.packages == ("netcdf4==1.5.3", "numpy")
    assert notes == ("requirements.pip[0]: 'netcdf4=1.5.3' pins as conda does; taken as 'netcdf4==1.5.3'",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"requirements": {"pip": ["numpy", "two words here"]}},
            r"^waves.json requirements\.pip\[1\]: 'two words here'",
        ),
        ({"requirements": {"pip": [1]}}, r"^waves.json requirements\.pip\[0\]: expected a text, found 1$"),
        ({"requirements": {"pip": 3}}, r"^waves.json requirements\.pip: expected a list of texts, found 3$"),
        ({"requirements": ["numpy"]}, r"^waves.json requirements: expected keys with values"),
        ({"requirements": {"python": "new"}}, r"^waves.json requirements\.python: 'new' is no version"),
        ({"requirements": {"system_modules": ["a; rm -rf /"]}}, r"^waves.json requirements\.system_modules\[0\]: "),
        ({"env_vars": {"NOT GOOD": "1"}}, r"^waves.json env_vars: 'NOT GOOD' is no name"),
        ({"env_vars": {"WANDB_API_KEY": "hush"}}, r"^waves.json env_vars: WANDB_API_KEY looks like a secret"),
        ({"name": None}, r"^waves.json name: is missing$"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDocument, match=said) as caught:
        spec_from_sabath({"name": "waves", **change}, file="waves.json")
    assert "hush" not in str(caught.value)


def test_a_model_that_asks_for_nothing_is_said_to() -> None:
    with pytest.raises(UsageError, match="PtychoNN states neither requirements nor env_vars"):
        spec_from_sabath({"name": "PtychoNN", "run": {}})
    with pytest.raises(UsageError, match="cosmoUniverse is a data set"):
        spec_from_sabath({"name": "cosmoUniverse", "fragments": []})


def test_an_unknown_requirement_is_noted() -> None:
    _, notes = spec_from_sabath({"name": "waves", "requirements": {"pip": ["numpy"], "spack": ["hdf5"]}})
    assert notes == ("requirements.spack is unknown and left out",)


def card(name: str) -> dict[str, Any]:
    folder = files("fairmile") / "catalog/data/cards/environment" / name
    (found,) = [each for each in folder.iterdir() if each.is_file()]
    body = load_json(found.read_text(encoding="utf-8"))
    assert isinstance(body, dict)
    return body


def test_the_card_of_cosmoflows_software_becomes_a_specification() -> None:
    spec, notes = spec_from_card(card("tf-2.10-horovod"))
    assert spec.name == "TF-2.10-Horovod"
    assert spec.python is not None
    assert spec.python.packages == ("tensorflow==2.10.0", "horovod", "pandas", "wandb")
    assert spec.python.version == ">=3.8"
    assert spec.modules == ("cmake/3.26.3", "cuda/11.8.0", "gcc/11.3.0")
    assert spec.variables["HOROVOD_CUDA_HOME"] == "$CUDA_HOME"
    assert notes == ()


def test_the_card_of_miniweathers_software_becomes_a_specification() -> None:
    spec, notes = spec_from_card(card("miniweatherml-cuda"))
    assert spec.conda is not None
    assert spec.conda.packages[3:5] == ("netcdf4 1.5.3.*", "autoconf")
    assert spec.python is None
    assert notes == (
        "softwareRequirements: https://github.com/Parallel-NetCDF/PnetCDF is a source or another asset, "
        "which must be added by hand",
    )


def test_a_card_says_python_and_packages_in_many_ways() -> None:
    needs = ["python 3.11", "numpy>=2", "pkg:pypi/h5py", "pkg:conda/conda-forge/hdf5@1.14", "scipy=1.2", "pkg:deb/x@1"]
    spec, notes = spec_from_card({"name": "waves", "softwareRequirements": [*needs, "two words here"]})
    assert spec.python is not None
    assert (spec.python.version, spec.python.packages) == ("3.11", ("numpy>=2", "h5py", "scipy==1.2"))
    assert spec.conda is not None
    assert spec.conda.packages == ("hdf5 1.14.*",)
    assert notes == (
        "softwareRequirements: 'scipy=1.2' pins as conda does; taken as 'scipy==1.2'",
        "softwareRequirements: pkg:deb/x@1 is neither of pypi nor of conda and left out",
        "softwareRequirements: 'two words here' is no package that pip or conda knows by that name",
    )


def test_a_card_names_an_image_by_its_digest() -> None:
    image = {"@type": "ContainerImage", "registry": "docker.io", "name": "library/python", "tag": "3.12"}
    spec, _ = spec_from_card({"name": "waves", "containerImage": {**image, "sha256": "ab" * 32}})
    assert spec.container is not None
    assert (spec.container.image, spec.container.digest) == (
        "docker.io/library/python:3.12",
        "sha256:" + "ab" * 32,
    )
    with pytest.raises(InvalidDocument, match=r"^containerImage\.sha256: expected sha256: and 64"):
        spec_from_card({"name": "waves", "containerImage": {**image, "sha256": "12"}})


def test_a_card_without_software_is_said_to() -> None:
    with pytest.raises(UsageError, match="the card waves names no software"):
        spec_from_card({"name": "waves", "description": "much to say"})
