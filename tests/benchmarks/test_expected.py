"""Runs of benchmarks on a GPU are foreseen from their step, and say afterwards how fast the GPU really is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_making import make_run
from step_making import step_trace

from fairmile.base.errors import FairmileError, UsageError
from fairmile.benchmarks import expected as foresight
from fairmile.benchmarks.expected import FromStep, measured_steps, step_file
from fairmile.benchmarks.program import SUITE
from fairmile.jobs.machines import Machines
from fairmile.jobs.spec import Resources
from fairmile.predict import step_cache as traced
from fairmile.predict.predict import Predict
from fairmile.predict.step_cache import StepForecast
from fairmile.runs.prediction import Fit
from fairmile.runs.record.spec import RunSpec
from fairmile.systems.model import Partition
from fairmile.workspace import Workspace

ARGV = ("python", "-m", "fairmile.benchmarks", "mnist")
SMALL = {"batch_size": 16, "hidden": 8}
OURS = """\
name: ours
title: Our cluster
centre: Ours
country: DE
scheduler: {dialect: slurm}
partitions:
  gpus: {cores: 64, gpu: {count: 4, model: A100, memory_gib: 80}}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The GPUs of this machine, as the kernel would tell."""
    found: list[dict[str, Any]] = [{"model": "NVIDIA H200"}]
    monkeypatch.setattr(foresight, "hardware", lambda: {"gpus": found})
    return found


class Oracle(Predict):
    """Tells the same of every step, and keeps what it was asked."""

    def __init__(self, by_kind: str = "gemm", trouble: FairmileError | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.as_shipped: set[bool] = set()
        self.told = StepForecast("h200", 16, (1000, 900, 1100), (0.5, 0.25, 1.0), {by_kind: 0.4}, 1050)
        self.trouble = trouble
        self.searched: list[tuple[str, str, dict[str, Any]]] = []

    def largest_batch(self, target: Any, *, gpu: str = "", arguments: Any = None, **how: Any) -> Any:
        self.searched.append((target, gpu, dict(arguments)))
        return SimpleNamespace(batch=7)

    def foresee(
        self, file: Path, arguments: Mapping[str, Any], on: str | Partition, *, as_shipped: bool = False
    ) -> StepForecast:
        gpu = on if isinstance(on, str) else on.gpu.model if on.gpu is not None else ""
        self.asked.append((file.parent.name, dict(arguments), gpu))
        self.as_shipped.add(as_shipped)
        if self.trouble is not None:
            raise self.trouble
        return self.told


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


def from_step(predict: Predict, machines: Machines | None = None) -> FromStep:
    return FromStep(lambda: predict, lambda: machines or Machines([], Path("/nowhere")))


def spec_of(argv: tuple[str, ...] = ARGV, **said: Any) -> RunSpec:
    return RunSpec(argv=argv, **said)


# Before a run


def test_memory_and_rate_are_told_with_their_bounds(oracle: Oracle, gpus: list[dict[str, Any]]) -> None:
    predicted = from_step(oracle).predict(spec_of(params=SMALL), [])
    memory, rate = predicted["peak_memory_bytes"], predicted["train_samples_per_s"]
    assert (memory.value, memory.low, memory.high) == (1000.0, 900.0, 1100.0)
    assert (rate.value, rate.low, rate.high) == (32.0, 16.0, 64.0)
    assert memory.source == "its step, traced, on h200"
    assert (memory.limit, memory.device, memory.fit, rate.fit) == (1050.0, "h200", Fit.MAY_NOT, None)
    assert (
        memory.remedy
        == "`fairmile predict memory mnist "
        + " ".join(
            [*(f"-a {name}={value}" for name, value in SMALL.items() if name != "batch_size"), "--gpu h200 --largest`"]
        )
        + " finds the largest batch that fits"
    )
    assert (oracle.asked, oracle.as_shipped) == ([("mnist", SMALL, "NVIDIA H200")], {False})


def test_where_cudnn_may_try_kernels_more_memory_is_allowed_for(gpus: list[dict[str, Any]]) -> None:
    found = from_step(Oracle("conv"))
    tried = found.predict(spec_of(), [])["peak_memory_bytes"]
    fixed = found.predict(spec_of(params={"deterministic": True}), [])["peak_memory_bytes"]
    assert (tried.value, tried.low, tried.high, fixed.high) == (1000.0, 900.0, 1430.0, 1100.0)


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_each_gpu_of_several_needs_at_least_what_a_single_one_does(
    oracle: Oracle, gpus: list[dict[str, Any]], strategy: str
) -> None:
    predicted = from_step(oracle).predict(spec_of(params={**SMALL, "strategy": strategy, "ranks": 4}), [])
    (memory,) = predicted.values()
    assert (memory.value, memory.low, memory.high, memory.limit) == (1000.0, 900.0, None, 1050.0)
    assert memory.source == "its step, traced, on h200, on each GPU"
    assert oracle.asked == [("mnist", SMALL, "NVIDIA H200")]


def test_what_does_not_fit_names_the_largest_batch_and_searches_it_once(
    oracle: Oracle, gpus: list[dict[str, Any]]
) -> None:
    oracle.told = replace(oracle.told, usable_bytes=800)
    predictor = from_step(oracle)
    for batch in (16, 32):
        memory = predictor.predict(spec_of(params={**SMALL, "batch_size": batch}), [])["peak_memory_bytes"]
        assert memory.fit is Fit.DOES_NOT
        assert memory.remedy == "the largest batch that fits is 7: -p batch_size=7"
    assert oracle.searched == [("mnist", "h200", {"hidden": 8})]


@pytest.mark.parametrize(
    "params", [{"strategy": "fsdp"}, {"strategy": "deepspeed"}, {"device": "cpu"}, {"device": "cpu", "strategy": "ddp"}]
)
def test_shares_of_a_model_and_a_cpu_are_not_foreseen(
    oracle: Oracle, gpus: list[dict[str, Any]], params: dict[str, Any]
) -> None:
    assert from_step(oracle).predict(spec_of(params=params), []) == {}
    assert oracle.asked == []


@pytest.mark.parametrize("models", [[], ["NVIDIA H200", "NVIDIA A100"]])
def test_without_a_gpu_or_with_two_kinds_nothing_is_foreseen(
    oracle: Oracle, gpus: list[dict[str, Any]], models: list[str]
) -> None:
    gpus[:] = [{"model": each} for each in models]
    assert from_step(oracle).predict(spec_of(), []) == {}
    assert oracle.asked == []


def test_on_a_system_the_gpu_of_the_partition_counts(oracle: Oracle, gpus: list[dict[str, Any]]) -> None:
    found = from_step(oracle)
    found.predict(spec_of(system="juwels", resources=Resources(partition="gpus")), [])
    found.predict(spec_of(system="jupiter"), [])
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
        assert found.predict(spec_of(**said), []) == {}
    assert len(oracle.asked) == 2


def test_on_a_system_a_run_goes_where_its_settings_and_its_software_send_it(
    oracle: Oracle, gpus: list[dict[str, Any]], tmp_path: Path
) -> None:
    """JURECA's default partition has no GPUs."""
    assert from_step(oracle).predict(spec_of(system="jureca"), []) == {}
    settings = Machines([], tmp_path, reaches={"jureca": {"partition": "dc-gpu"}})
    assert from_step(oracle, settings).predict(spec_of(system="jureca"), [])
    assert from_step(oracle).predict(spec_of(system="jureca", software=("ddp",)), [])
    assert [gpu for _, _, gpu in oracle.asked] == ["A100", "A100"]


def test_the_systems_of_the_workspace_are_known(oracle: Oracle, gpus: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "ours.yaml").write_text(OURS)
    spec = spec_of(system="ours")
    assert from_step(oracle).predict(spec, []) == {}
    assert from_step(oracle, Machines([tmp_path / "systems"], tmp_path)).predict(spec, [])
    assert [gpu for _, _, gpu in oracle.asked] == ["A100"]


def test_a_gpu_that_nobody_knows_is_not_foreseen(workspace: Workspace, gpus: list[dict[str, Any]]) -> None:
    gpus[:] = [{"model": "GeForce 256"}]
    assert from_step(workspace.predict).predict(spec_of(), []) == {}


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


@pytest.mark.thorough
def test_the_plan_of_a_benchmark_is_traced_once(
    workspace: Workspace, gpus: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    predicted = workspace.runs.plan("mnist", params=SMALL).prediction
    for name in ("peak_memory_bytes", "train_samples_per_s"):
        assert 0 < predicted[name]["low"] <= predicted[name]["value"] <= predicted[name]["high"]
        assert predicted[name]["source"] == "its step, traced, on h200"
    # Another trace would need a process.
    monkeypatch.setattr(subprocess, "Popen", None)
    assert workspace.runs.plan("mnist", params=SMALL).prediction == predicted


def test_the_plan_of_a_benchmark_knows_the_systems_of_the_workspace_and_what_its_runs_taught(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced, "trace_target", lambda *_, **__: step_trace())
    (workspace.home / "systems").mkdir(parents=True)
    (workspace.home / "systems" / "ours.yaml").write_text(OURS)

    def predicted() -> Mapping[str, Any]:
        return workspace.runs.plan(RunSpec(argv=ARGV, system="ours")).prediction

    before = predicted()["train_samples_per_s"]
    foreseen = workspace.predict.foresee(SUITE / "mnist" / "step.py", {}, "a100-80gb")
    assert (before["source"], before["value"]) == ("its step, traced, on a100-80gb", foreseen.samples_per_s[0])
    workspace.predict.learn("a100-80gb", [(foreseen, 1.25 * foreseen.step_s[0], "mnist-000001")])
    after = predicted()["train_samples_per_s"]
    corrected = workspace.predict.foresee(SUITE / "mnist" / "step.py", {}, "a100-80gb")
    assert after["value"] == corrected.samples_per_s[0] < before["value"]


def test_a_plain_run_loads_nothing_that_predicts(tmp_path: Path) -> None:
    code = (
        "import sys; from fairmile.workspace import Workspace\n"
        "Workspace.open().runs.plan(['true'])\n"
        "heavy = ('fairmile.benchmarks', 'fairmile.predict', 'fairmile.costs', 'numpy', 'torch')\n"
        "print([n for n in sys.modules if n.startswith(heavy)])"
    )
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# After it


def run_of(folder: Path, number: int = 1, **said: Any) -> Any:
    asked = {"argv": list(ARGV), "params": said.pop("params", SMALL)}
    return make_run(folder, f"mnist-{number:06d}", spec=asked, **{"metrics": {"train_samples_per_s": 64.0}, **said})


def test_runs_tell_the_seconds_of_a_step_by_kind_of_gpu(oracle: Oracle, tmp_path: Path) -> None:
    found = measured_steps([run_of(tmp_path, 1), run_of(tmp_path, 2, metrics={"train_samples_per_s": 32.0})], oracle)
    assert found == {"h200": [(oracle.told, 0.25, "mnist-000001"), (oracle.told, 0.5, "mnist-000002")]}
    assert oracle.asked == [("mnist", SMALL, "NVIDIA H200")] * 2
    # What was learnt before must not be learnt from.
    assert oracle.as_shipped == {True}


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
    assert measured_steps([*runs, make_run(tmp_path, metrics={"train_samples_per_s": 5.0})], oracle) == {}
    assert oracle.asked == []


def test_runs_that_cannot_be_traced_are_left_out(tmp_path: Path) -> None:
    refusing = Oracle(trouble=UsageError("it cannot be traced"))
    assert measured_steps([run_of(tmp_path)], refusing) == {}
    assert len(refusing.asked) == 1
