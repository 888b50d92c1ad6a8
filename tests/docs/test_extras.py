"""Whatever an extra installs: without it, the last line of the answer is the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.errors import FairmileError
from fairmile.cli.failures import ShownFailure
from fairmile.machine_checks import EXTRAS

ROOT = Path(__file__).parents[2]
# These bring other extras together, or serve those who work on Fairmile itself.
COLLECTIONS = {"all", "dev", "docs"}
# Nothing fails for want of these: logins are read from ~/.netrc as well, and neighbours of atoms found with NumPy.
OPTIONAL = {"atoms", "keyring"}


def archives(_: Path) -> None:
    from fairmile.store.archive_formats.compression import zstd_library

    zstd_library("tides.tar.zst")


def benchmarks(_: Path) -> None:
    from fairmile.benchmarks.program import SUITE, load

    load(SUITE / "mnist", "benchmark")


def conda(_: Path) -> None:
    from fairmile.envs.conda import _rattler

    _rattler()


def course(_: Path) -> None:
    from fairmile.course.build import _exporter

    _exporter()


def deephyper(_: Path) -> None:
    from fairmile.sweeps.tuning.deephyper_engine import _imported

    with _imported():
        import deephyper  # noqa: F401


def globus(_: Path) -> None:
    from fairmile.transfer.fetchers.globus import Globus

    Globus(None)  # type: ignore[arg-type]


def huggingface(_: Path) -> None:
    from fairmile.models.huggingface import HubFolder, upload_folder

    upload_folder(HubFolder("hub", (), "onnx"), "coast/tides", {"HF_TOKEN": "hf_tides"})


def interop(_: Path) -> None:
    from fairmile.runs.exchange import EXCHANGES

    EXCHANGES["mlflow"]


def models(folder: Path) -> None:
    from fairmile.models.ready import ModelFile

    _ = ModelFile(ROOT / "docs" / "examples" / "tides.onnx").native


def openvino(_: Path) -> None:
    from fairmile.models.convert.conversion import check_packages

    check_packages("openvino")


def notebooks(folder: Path) -> None:
    from fairmile.sweeps.notebooks import execute_notebook

    (folder / "tides.ipynb").write_text("{}")
    execute_notebook(folder / "tides.ipynb", folder / "done.ipynb", {})


def pilot(_: Path) -> None:
    from fairmile.runs.execute.pilot import _parsl

    _parsl()


def plots(_: Path) -> None:
    from fairmile.reports.figures import Picture

    Picture("tides", "Tides", lambda figure: None).svg()


def predict(_: Path) -> None:
    from fairmile.costs.operators.calibrate import _torch

    _torch()


def quantum(_: Path) -> None:
    from fairmile.models.annealing.samplers import DwaveSamplers

    DwaveSamplers()


def ray(_: Path) -> None:
    from fairmile.sweeps.tuning.ray_engine import _import_ray

    _import_ray("random")


def rdf(_: Path) -> None:
    from fairmile.catalog.exchange.hpc_ontology_graph import load_graph

    load_graph(None)  # type: ignore[arg-type]


def s3(_: Path) -> None:
    from fairmile.transfer.fetchers.s3 import failure_of

    raise failure_of("s3://tides/private", 403, {"Code": "AccessDenied"}, is_signed=False)


def science(_: Path) -> None:
    from fairmile.catalog.array_files import library

    library("h5py", "tides.h5")


def submit(_: Path) -> None:
    from fairmile.benchmarks.submission.checkers import repository

    repository(Path())


def traces(folder: Path) -> None:
    from fairmile.traces.export import write_otf2

    write_otf2(None, folder)  # type: ignore[arg-type]


def tune(_: Path) -> None:
    from fairmile.sweeps.tuning.optuna_engine import _import_optuna

    _import_optuna("random")


def web(_: Path) -> None:
    from fairmile.web.serve import serve
    from fairmile.workspace import Workspace

    serve(Workspace.open(), wait=False)


# For each extra: the module that is not there, and a call that needs it.
CALLS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "archives": ("backports", archives),
    "benchmarks": ("torch", benchmarks),
    "conda": ("rattler", conda),
    "course": ("nbconvert", course),
    "deephyper": ("deephyper", deephyper),
    "globus": ("globus_sdk", globus),
    "huggingface": ("huggingface_hub", huggingface),
    "interop": ("mlflow", interop),
    "models": ("onnxruntime", models),
    "notebooks": ("nbclient", notebooks),
    "openvino": ("openvino", openvino),
    "pilot": ("parsl", pilot),
    "plots": ("matplotlib", plots),
    "predict": ("torch", predict),
    "quantum": ("dwave", quantum),
    "ray": ("ray", ray),
    "rdf": ("pyoxigraph", rdf),
    "s3": ("botocore", s3),
    "science": ("h5py", science),
    "submit": ("mlperf_logging", submit),
    "traces": ("otf2", traces),
    "tune": ("optuna", tune),
    "web": ("uvicorn", web),
}


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_every_extra_is_tried() -> None:
    assert set(CALLS) == extras() - COLLECTIONS - OPTIONAL


@pytest.mark.parametrize("extra", list(CALLS))
def test_a_missing_extra_ends_with_its_installation(
    extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, call = CALLS[extra]
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    ours = ("fairmile.benchmarks.suite", "fairmile.runs.exchange.", "fairmile.web.server")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FairmileError) as caught:
        call(tmp_path)
    failure = ShownFailure.of(caught.value)
    assert failure.exit_code == 3
    assert list(failure.lines())[-1] == f"  hint: pip install 'fairmile[{extra}]'"


def test_a_benchmark_without_torch_ends_with_its_installation(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    places = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "fairmile", "run", "mnist"],
        env={**os.environ, **places},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "hint: pip install 'fairmile[benchmarks]'"


def test_the_doctor_knows_every_extra() -> None:
    assert set(EXTRAS) == extras() - COLLECTIONS


def test_every_command_is_read_without_what_extras_bring(tmp_path: Path) -> None:
    code = """
import importlib.abc, importlib.metadata, re, sys

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

core, waiting = set(), ["fairmile"]
while waiting:
    name = plain(waiting.pop())
    if name in core:
        continue
    core.add(name)
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        continue
    waiting += [re.match("[A-Za-z0-9._-]+", need)[0] for need in needs if "extra ==" not in need]

packages = importlib.metadata.packages_distributions()
of_extras = {name for name, owners in packages.items() if not core & {plain(owner) for owner in owners}}

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if path is None and name in of_extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import fairmile
from fairmile.testing.schemas import commands

assert "starlette" in of_extras and "click" not in of_extras
print(len(list(commands())), len([getattr(fairmile, name) for name in fairmile.__all__]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(number) > 30 for number in done.stdout.split()] == [True, True]
