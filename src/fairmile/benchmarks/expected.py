"""What a benchmark's run on a GPU is expected to need and to do, from its step."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import FairmileError
from fairmile.base.lazy import lazy
from fairmile.benchmarks.program import STEP, folder_of
from fairmile.jobs.spec import JobSpec
from fairmile.runs.prediction import Predicted
from fairmile.runs.record.run import Run
from fairmile.runs.record.spec import RunSpec
from fairmile.systems.hardware import hardware

# Most runs are none of a benchmark on a GPU: only theirs load what traces a step.
if TYPE_CHECKING:
    from fairmile.jobs.machines import Machines
    from fairmile.jobs.request_rules import make_request
    from fairmile.predict.predict import Predict
    from fairmile.predict.step_cache import StepForecast
    from fairmile.systems.model import Partition
else:
    make_request = lazy("fairmile.jobs.request_rules:make_request")

_MODULE = "fairmile.benchmarks"
_REPLICATED = ("ddp", "horovod")
_OF_RANKS = ("strategy", "ranks")
_TRIALS = 1.3  # cuDNN tries kernels in the first steps, some of which take more memory: 1.21 times once, on an H200


class FromStep:
    """Predicts `peak_memory_bytes` of a benchmark on each of its GPUs, and `train_samples_per_s` where it has one.

    It goes by the systems of a workspace, and by what was measured there. Every rank of a data-parallel training holds
    what a single GPU does, and more for its communication: no upper bound is known.
    """

    def __init__(self, predict: Callable[[], Predict], machines: Callable[[], Machines]) -> None:
        self._predict = predict
        self._machines = machines
        self._largest_batches: dict[tuple[str, str, str], str] = {}

    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        file = step_file(spec.argv)
        is_alone = _is_alone(spec.params)
        if file is None or not (is_alone or _is_replicated(spec.params)):
            return {}
        params = {name: value for name, value in spec.params.items() if is_alone or name not in _OF_RANKS}
        try:
            where = self._where(spec)
            if where is None:
                return {}
            forecast = self._predict().foresee(file, params, where)
        except FairmileError:  # what cannot be traced is not predicted; it may run all the same
            return {}
        source = f"its step, traced, on {forecast.gpu}"
        expected, least, most = forecast.peak_bytes
        if forecast.by_kind.get("conv") and not spec.params.get("deterministic"):
            most = round(most * _TRIALS)
        does_fit = least <= forecast.usable_bytes
        memory = Predicted(
            float(expected),
            float(least),
            float(most) if is_alone else None,
            source if is_alone else f"{source}, on each GPU",
            limit=float(forecast.usable_bytes),
            device=forecast.gpu,
            remedy=_search_command(file, params, forecast.gpu)
            if does_fit
            else self._largest(file, params, forecast.gpu),
        )
        if not is_alone:
            return {"peak_memory_bytes": memory}
        return {"peak_memory_bytes": memory, "train_samples_per_s": Predicted(*forecast.samples_per_s, source)}

    def _largest(self, file: Path, params: Mapping[str, Any], gpu: str) -> str:
        """Return the largest batch that a kind of GPU has room for, or the command that finds it."""
        others = {name: value for name, value in params.items() if name != "batch_size"}
        asked = (str(file), gpu, str(sorted(others.items())))
        if asked not in self._largest_batches:
            try:
                largest = self._predict().largest_batch(file.parent.name, gpu=gpu, arguments=others, progress=False)
                advice = f"the largest batch that fits is {largest.batch}: -p batch_size={largest.batch}"
            except FairmileError:  # not even one sample fits, or it cannot be traced
                advice = _search_command(file, params, gpu)
            self._largest_batches[asked] = advice
        return self._largest_batches[asked]

    def _where(self, spec: RunSpec) -> str | Partition | None:
        """Return the kind of GPU that a run gets, or the partition that has it; None where there is none to tell."""
        if spec.resources.gpus_per_node == 0:
            return None
        if spec.system:
            machine = self._machines()[spec.system]
            job = JobSpec(argv=spec.argv, resources=spec.resources, software=spec.software, launch=spec.launch)
            asked = make_request(machine.filled(job), machine.system, check_account=False)
            return machine.system.partitions[asked.partition] if asked.gpus_per_node else None
        return _only_model(hardware())


def _search_command(file: Path, params: Mapping[str, Any], gpu: str) -> str:
    """Return how to find the largest batch of a benchmark that a kind of GPU has room for."""
    others = [f"-a {shlex.quote(f'{name}={value}')}" for name, value in params.items() if name != "batch_size"]
    command = " ".join(["fairmile predict memory", file.parent.name, *others, f"--gpu {gpu} --largest"])
    return f"`{command}` finds the largest batch that fits"


def measured_steps(runs: Iterable[Run], predict: Predict) -> dict[str, list[tuple[StepForecast, float, str]]]:
    """Return by kind of GPU what was foreseen of each run's step, the seconds it took, and the run.

    The table that comes along tells it alone: it is what runs correct.
    """
    steps: dict[str, list[tuple[StepForecast, float, str]]] = {}
    for run in runs:
        rate = run.metrics.get("train_samples_per_s")
        file, model = step_file(run.record.spec.argv), _only_model(run.hardware)
        if rate is None or not rate.value > 0 or file is None or model is None or not _is_alone(run.params):
            continue
        try:
            foreseen = predict.foresee(file, run.params, model, as_shipped=True)
        except FairmileError:
            continue
        steps.setdefault(foreseen.gpu, []).append((foreseen, foreseen.batch / rate.value, run.id))
    return steps


def step_file(argv: Sequence[str]) -> Path | None:
    """Return the file that builds the step of the benchmark that a command runs; None for any other command."""
    if _MODULE not in argv[:-1]:
        return None
    try:
        file = folder_of(argv[list(argv).index(_MODULE) + 1]) / f"{STEP}.py"
    except FairmileError:
        return None
    return file if file.is_file() else None


def _is_alone(params: Mapping[str, Any]) -> bool:
    return bool(params.get("strategy", "single") == "single" and params.get("device", "auto") != "cpu")


def _is_replicated(params: Mapping[str, Any]) -> bool:
    return params.get("strategy") in _REPLICATED and params.get("device", "auto") != "cpu"


def _only_model(hardware: Mapping[str, Any]) -> str | None:
    """Return the kind of GPU of some hardware; None where there is none, or several kinds."""
    models = {str(each.get("model") or "") for each in hardware.get("gpus") or ()}
    return models.pop() or None if len(models) == 1 else None
