"""Runs of benchmarks on a GPU are foreseen from their step, and say afterwards how fast the GPU really is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_making import make_run

from fairmile.base.errors import UsageError
from fairmile.benchmarks import foresight
from fairmile.benchmarks.foresight import FromStep, measured_steps, step_file
from fairmile.benchmarks.program import SUITE
from fairmile.jobs.spec import Resources
from fairmile.perf.foresight import Foreseen
from fairmile.runs.spec import RunSpec
from fairmile.workspace import Workspace

ARGV = ("python", "-m", "fairmile.benchmarks", "mnist")
SMALL = {"batch_size": 16, "hidden": 8}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("FAIRMILE_CACHE", str(tmp_path / "cache"))
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The GPUs of this machine, as the kernel would tell."""
    found: list[dict[str, Any]] = [{"model": "NVIDIA H200"}]
    monkeypatch.setattr(foresight, "hardware", lambda: {"gpus": found})
    return found


class Oracle:
    """Stands for what traces a step, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    def __call__(self, file: Path, params: Mapping[str, Any], gpu: str, cache: Path) -> Foreseen:
        self.asked.append((file.parent.name, dict(params), gpu))
        return Foreseen("h200", 16, (1000, 900, 1100), (0.5, 0.25, 1.0), {"gemm": 0.4})


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    found = Oracle()
    monkeypatch.setattr(foresight, "_FORESEE", {"step": found})
    return found


def spec_of(argv: tuple[str, ...] = ARGV, **said: Any) -> RunSpec:
    return RunSpec(argv=argv, **said)


# Before a run


def test_memory_and_rate_are_told_with_their_bounds(oracle: Oracle, gpus: list[dict[str, Any]]) -> None:
    told = FromStep().predict(spec_of(params=SMALL), [])
    memory, rate = told["peak_memory_bytes"], told["train_samples_per_s"]
    assert (memory.value, memory.low, memory.high) == (1000.0, 900.0, 1100.0)
    assert (rate.value, rate.low, rate.high) == (32.0, 16.0, 64.0)
    assert memory.source == "its step, traced, on h200"
    assert oracle.asked == [("mnist", SMALL, "NVIDIA H200")]


def test_where_cudnn_may_try_kernels_more_memory_is_allowed_for(
    gpus: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Foreseen("h200", 16, (1000, 900, 1100), (0.5, 0.25, 1.0), {"conv": 0.4})
    monkeypatch.setattr(foresight, "_FORESEE", {"step": lambda *asked: found})
    tried = FromStep().predict(spec_of(), [])["peak_memory_bytes"]
    fixed = FromStep().predict(spec_of(params={"deterministic": True}), [])["peak_memory_bytes"]
    assert (tried.value, tried.low, tried.high, fixed.high) == (1000.0, 900.0, 1430.0, 1100.0)


@pytest.mark.parametrize(
    "params", [{"strategy": "ddp"}, {"strategy": "horovod"}, {"device": "cpu"}, {"device": "cpu", "strategy": "single"}]
)
def test_several_ranks_or_a_cpu_are_not_foreseen(
    oracle: Oracle, gpus: list[dict[str, Any]], params: dict[str, Any]
) -> None:
    assert FromStep().predict(spec_of(params=params), []) == {}
    assert oracle.asked == []


@pytest.mark.parametrize("models", [[], ["NVIDIA H200", "NVIDIA A100"]])
def test_without_a_gpu_or_with_two_kinds_nothing_is_foreseen(
    oracle: Oracle, gpus: list[dict[str, Any]], models: list[str]
) -> None:
    gpus[:] = [{"model": each} for each in models]
    assert FromStep().predict(spec_of(), []) == {}
    assert oracle.asked == []


def test_on_a_system_the_gpu_of_the_partition_counts(oracle: Oracle, gpus: list[dict[str, Any]]) -> None:
    FromStep().predict(spec_of(system="juwels", resources=Resources(partition="gpus")), [])
    FromStep().predict(spec_of(system="jupiter"), [])
    assert [gpu for _, _, gpu in oracle.asked] == ["Tesla V100", "GH200"]
    none: list[dict[str, Any]] = [
        {"system": "laptop"},
        {"system": "nosuch"},
        {"system": "juwels", "resources": Resources(partition="batch")},
        {"system": "juwels", "resources": Resources(partition="nosuch")},
        {"system": "jupiter", "resources": Resources(gpus_per_node=0)},
        {"resources": Resources(gpus_per_node=0)},
    ]
    for said in none:
        assert FromStep().predict(spec_of(**said), []) == {}
    assert len(oracle.asked) == 2


def test_a_gpu_that_nobody_knows_is_not_foreseen(gpus: list[dict[str, Any]], tmp_path: Path) -> None:
    gpus[:] = [{"model": "GeForce 256"}]
    assert FromStep().predict(spec_of(), []) == {}


def test_only_the_command_of_a_benchmark_has_a_step(tmp_path: Path) -> None:
    assert step_file(ARGV) == SUITE / "mnist" / "step.py"
    for argv in (["true"], ["python", "-m", "fairmile.benchmarks"], ["x", "fairmile.benchmarks", "nosuch"], []):
        assert step_file(argv) is None
    own = tmp_path / "own"
    own.mkdir()
    (own / "card.jsonld").write_text("{}")
    assert step_file(["fairmile.benchmarks", str(own)]) is None
    (own / "step.py").write_text("")
    assert step_file(["fairmile.benchmarks", str(own)]) == own / "step.py"


def test_the_plan_of_a_benchmark_is_traced_once(
    workspace: Workspace, gpus: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    told = workspace.runs.plan("mnist", params=SMALL).prediction
    for name in ("peak_memory_bytes", "train_samples_per_s"):
        assert 0 < told[name]["low"] <= told[name]["value"] <= told[name]["high"]
        assert told[name]["source"] == "its step, traced, on h200"
    (kept,) = (tmp_path / "cache" / "predictions").iterdir()
    # Another trace would need a process.
    monkeypatch.setattr(subprocess, "Popen", None)
    assert (
        FromStep().predict(spec_of(params=SMALL), [])["peak_memory_bytes"].value == told["peak_memory_bytes"]["value"]
    )
    assert [kept] == list((tmp_path / "cache" / "predictions").iterdir())


def test_a_plain_run_loads_nothing_that_predicts(tmp_path: Path) -> None:
    code = (
        "import sys; from fairmile.workspace import Workspace\n"
        "Workspace.open().runs.plan(['true'])\n"
        "assert 'fairmile.benchmarks.foresight' in sys.modules\n"
        "print([n for n in sys.modules if n.startswith('fairmile.perf') or n in ('numpy', 'torch')])"
    )
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# After it


def run_of(folder: Path, number: int = 1, **said: Any) -> Any:
    asked = {"argv": list(ARGV), "params": said.pop("params", SMALL)}
    return make_run(folder, f"mnist-{number:06d}", spec=asked, **{"metrics": {"train_samples_per_s": 64.0}, **said})


def test_runs_tell_the_seconds_of_a_step_by_kind_of_gpu(oracle: Oracle, tmp_path: Path) -> None:
    found = measured_steps([run_of(tmp_path, 1), run_of(tmp_path, 2, metrics={"train_samples_per_s": 32.0})])
    foreseen = Foreseen("h200", 16, (1000, 900, 1100), (0.5, 0.25, 1.0), {"gemm": 0.4})
    assert found == {"h200": [(foreseen, 0.25, "mnist-000001"), (foreseen, 0.5, "mnist-000002")]}
    assert oracle.asked == [("mnist", SMALL, "NVIDIA H200")] * 2


def test_runs_that_tell_nothing_of_a_single_gpu_do_not_count(oracle: Oracle, tmp_path: Path) -> None:
    no_gpu: dict[str, Any] = {"hardware": {"gpus": []}}
    two = {"hardware": {"gpus": [{"model": "NVIDIA H200"}, {"model": "NVIDIA A100"}]}}
    others: list[dict[str, Any]] = [
        {"metrics": {"loss": 1.0}},
        {"metrics": {"train_samples_per_s": 0.0}},
        {"metrics": {"train_samples_per_s": "NaN"}},
        {"params": {"strategy": "ddp"}},
        {"params": {"device": "cpu"}},
        {"captured": no_gpu},
        {"captured": two},
    ]
    runs = [run_of(tmp_path, number, **said) for number, said in enumerate(others)]
    assert measured_steps([*runs, make_run(tmp_path, metrics={"train_samples_per_s": 5.0})]) == {}
    assert oracle.asked == []


def test_runs_that_cannot_be_traced_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Foreseen:
        raise UsageError("it cannot be traced")

    monkeypatch.setattr(foresight, "_FORESEE", {"step": refuse})
    assert measured_steps([run_of(tmp_path)]) == {}
