"""What a benchmark's run on a GPU is expected to need and to do, from its step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError
from fairmile.base.registry import Plugin, Registry
from fairmile.benchmarks.program import STEP, folder_of
from fairmile.runs.machine import hardware
from fairmile.runs.model import Run
from fairmile.runs.prediction import Predicted
from fairmile.runs.spec import RunSpec
from fairmile.systems.registry import Systems

_MODULE = "fairmile.benchmarks"
_TRIALS = 1.3  # cuDNN tries kernels in the first steps, some of which take more memory: 1.21 times once, on an H200
# Most runs are none of a benchmark on a GPU: only theirs load what traces a step.
_FORESEE: Registry[Any] = Registry("prediction", {"step": Plugin("fairmile.perf.foresight:foresee", "predict")})


class FromStep:
    """Predicts `peak_memory_bytes` and `train_samples_per_s` of a benchmark that trains on one GPU."""

    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        file = step_file(spec.argv)
        gpu = _gpu(spec) if file is not None and _is_alone(spec.params) else ""
        if not gpu:
            return {}
        try:
            found = _FORESEE["step"](file, spec.params, gpu, _cache())
        except FairmileError:  # what cannot be traced is not predicted; it may run all the same
            return {}
        source = f"its step, traced, on {found.gpu}"
        expected, least, most = found.peak_bytes
        if found.by_kind.get("conv") and not spec.params.get("deterministic"):
            most = round(most * _TRIALS)
        numbers = {"peak_memory_bytes": (expected, least, most), "train_samples_per_s": found.samples_per_s}
        return {
            name: Predicted(float(expected), float(least), float(most), source)
            for name, (expected, least, most) in numbers.items()
        }


def measured_steps(runs: Iterable[Run]) -> dict[str, list[tuple[Any, float, str]]]:
    """Return by kind of GPU what was foreseen of each run's step, the seconds it took, and the run."""
    found: dict[str, list[tuple[Any, float, str]]] = {}
    for run in runs:
        rate = run.metrics.get("train_samples_per_s")
        file = step_file(run.document["spec"]["argv"])
        models = {str(each.get("model") or "") for each in run.hardware.get("gpus") or ()}
        if rate is None or not rate.value > 0 or file is None or len(models) != 1 or not _is_alone(run.params):
            continue
        try:
            foreseen = _FORESEE["step"](file, run.params, models.pop(), _cache())
        except FairmileError:
            continue
        found.setdefault(foreseen.gpu, []).append((foreseen, foreseen.batch / rate.value, run.id))
    return found


def _cache() -> Path:
    return Path(os.environ.get("FAIRMILE_CACHE") or Path.home() / ".cache" / "fairmile") / "predictions"


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


def _gpu(spec: RunSpec) -> str:
    """Return the kind of GPU that a run gets, or nothing where that is not known or there is none."""
    if spec.resources.gpus_per_node == 0:
        return ""
    if spec.system:
        try:
            system = Systems()[spec.system]
        except FairmileError:
            return ""
        name = spec.resources.partition or system.default_partition or next(iter(system.partitions))
        partition = system.partitions.get(name)
        return partition.gpu.model if partition is not None and partition.gpu is not None else ""
    models = {str(each.get("model") or "") for each in hardware().get("gpus") or ()}
    return models.pop() if len(models) == 1 else ""
