"""Cards of environments become specifications, or a sentence says why not."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.base.strict_json import load_json
from fairmile.envs.cards import spec_from_card


def test_requirements_written_for_pip_that_are_condas_become_condas() -> None:
    needs = ["python>=3.8", "pkg:pypi/hdf5", "netcdf4=1.5.3", "pkg:pypi/numpy@1.26", "scipy>=1.2,<2"]
    body = {"name": "waves", "softwareRequirements": needs}
    spec, notes = spec_from_card({**body, "environmentVariables": {"INCLUDE": "${CONDA_PREFIX}/include"}})
    assert spec.conda is not None and spec.python is None
    assert spec.conda.packages == ("python >=3.8", "hdf5", "netcdf4=1.5.3", "numpy ==1.26", "scipy >=1.2,<2")
    assert notes == (
        "softwareRequirements hold what only conda understands and variables point into $CONDA_PREFIX: "
        "taken as conda packages",
    )
    spec, _ = spec_from_card(body)
    assert spec.python is not None and spec.conda is None
    assert spec.python.packages == ("hdf5", "netcdf4==1.5.3", "numpy==1.26", "scipy>=1.2,<2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"softwareRequirements": [1]}, r"^softwareRequirements\[0\]: expected a text, found 1$"),
        ({"softwareRequirements": 3}, r"^softwareRequirements: expected a list of texts, found 3$"),
        ({"softwareRequirements": ["python new"]}, r"^softwareRequirements: 'new' is not a version"),
        ({"modules": ["a; rm -rf /"]}, r"^modules\[0\]: "),
        ({"environmentVariables": ["A"]}, r"^environmentVariables: expected keys with values"),
        ({"environmentVariables": {"NOT GOOD": "1"}}, r"^environmentVariables: 'NOT GOOD' is not a name"),
        ({"environmentVariables": {"WANDB_API_KEY": "hush"}}, r"^environmentVariables: WANDB_API_KEY looks like a sec"),
        ({"name": None}, r"^name: is missing$"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDocument, match=said) as caught:
        spec_from_card({"name": "waves", **change})
    assert "hush" not in str(caught.value)


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
    assert spec.python.version == ">=3.8,<3.11"  # TensorFlow 2.10 has wheels for no newer one
    assert [check.run for check in spec.checks][1] == "horovodrun --check-build"
    assert spec.modules == ("cmake/3.26.3", "cuda/11.8.0", "gcc/11.3.0")
    assert spec.variables["HOROVOD_CUDA_HOME"] == "$CUDA_HOME"
    assert notes == ()


def test_the_card_of_miniweathers_software_becomes_a_specification() -> None:
    spec, notes = spec_from_card(card("miniweatherml-cuda"))
    assert spec.conda is not None
    assert spec.conda.packages[3:5] == ("netcdf4 1.5.3.*", "autoconf")
    assert spec.python is None
    assert [(build.name, build.system) for build in spec.builds] == [("pnetcdf", "autotools")]
    assert [check.run for check in spec.checks] == ["pnetcdf-config --version"]
    assert notes == ()


@pytest.mark.parametrize("name, builds", [("yaml-cpp", ["yaml-cpp"]), ("ucx-gdrcopy", ["gdrcopy", "ucx"])])
def test_shipped_sources_are_planned(name: str, builds: list[str]) -> None:
    spec, notes = spec_from_card(card(name))
    assert [build.name for build in spec.builds] == builds
    assert notes == ()


def test_sources_that_are_compiled_with_each_program_are_installed() -> None:
    needs = ["https://github.com/mrnorman/YAKL", "https://github.com/mrnorman/ponni.git"]
    spec, notes = spec_from_card({"name": "surrogate", "softwareRequirements": needs})
    assert [(build.name, build.system) for build in spec.builds] == [("yakl", "commands"), ("ponni", "commands")]
    assert all(re.fullmatch("[0-9a-f]{40}", build.revision) for build in spec.builds)  # neither project has releases
    assert notes == ()


def test_what_is_built_before_is_linked_with() -> None:
    spec, _ = spec_from_card(card("ucx-gdrcopy"))
    assert {"--with-gdrcopy=$PREFIX", "--with-cuda=$CUDA_HOME"} <= {*spec.builds[1].options}
    alone, _ = spec_from_card({"name": "ucx", "softwareRequirements": ["https://github.com/openucx/ucx"]})
    assert "--with-gdrcopy=$PREFIX" not in alone.builds[0].options


def test_a_source_without_a_recipe_is_named() -> None:
    _, notes = spec_from_card({"name": "waves", "softwareRequirements": ["numpy", "https://git.example.org/waves"]})
    assert notes == (
        "softwareRequirements: https://git.example.org/waves is a source or another asset, which must be added by hand",
    )


def test_a_card_says_python_and_packages_in_many_ways() -> None:
    needs = ["python 3.11", "numpy>=2", "pkg:pypi/h5py", "pkg:conda/conda-forge/hdf5@1.14", "scipy=1.2", "pkg:deb/x@1"]
    spec, notes = spec_from_card({"name": "waves", "softwareRequirements": [*needs, "two words here"]})
    assert spec.python is not None
    assert (spec.python.version, spec.python.packages) == ("3.11", ("numpy>=2", "h5py", "scipy==1.2"))
    assert spec.conda is not None
    assert spec.conda.packages == ("hdf5 1.14.*",)
    assert notes == (
        "softwareRequirements: pkg:deb/x@1 is neither on PyPI nor on conda: skipped",
        "softwareRequirements: 'scipy=1.2' uses conda syntax; read as 'scipy==1.2'",
        "softwareRequirements: 'two words here' is not a package that pip or conda knows by that name",
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
