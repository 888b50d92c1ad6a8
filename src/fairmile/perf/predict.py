"""The answers before a job runs: does it fit, how long does a step take, on how many GPUs is it worth it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.perf.compute.calibrate import Calibrated, calibrate
from fairmile.perf.compute.devices import Device, device
from fairmile.perf.compute.grid import generic_candidates
from fairmile.perf.compute.loading import Loading, loading
from fairmile.perf.compute.power import Energy, energy_of
from fairmile.perf.compute.refine import Correction, MeasuredStep
from fairmile.perf.compute.signatures import candidates_of, merged
from fairmile.perf.compute.step_time import StepTime
from fairmile.perf.foresight import Foreseen, foresee
from fairmile.perf.measured import Measured
from fairmile.perf.memory.account import MemoryAccount, account
from fairmile.perf.memory.closed_forms import ClosedForm, Transformer, closed_form, parse_description
from fairmile.perf.memory.footprints import batch_of, footprint_of
from fairmile.perf.memory.largest_batch import LargestBatch, largest_batch
from fairmile.perf.memory.options import parse_allocator_options
from fairmile.perf.memory.sharding import Layout, ModelFootprint, RankMemory, rank_memory
from fairmile.perf.scaling.curves import Goal, Mode, ScalingPrediction, predict_scaling, predict_transformer_scaling
from fairmile.perf.scaling.data_parallel import OneGpuStep
from fairmile.perf.scaling.step import device_of_partition
from fairmile.perf.steps import Trace
from fairmile.perf.targets import Target, find_target
from fairmile.perf.tracing.trace import TraceRequest, trace_target
from fairmile.runs.machine import hardware
from fairmile.systems.model import Partition

GPU = "h200"
BATCH_NAMES = ("batch_size", "batch")
_OF_DESCRIPTIONS = {"precision": "precision", "training": "training", "optimizer_form": "implementation"}
_LONGEST_S = 3600.0  # a trace takes seconds: what takes as long as this does not end
_SMALLER = 8  # times the batch of a second trace is smaller, for a curve of strong scaling


@dataclass(frozen=True)
class MemoryPrediction:
    """What one GPU holds: of a traced step with the allocator's own doings, of a description the sum of its parts."""

    target: str
    gpu: Device
    batch: int
    found: MemoryAccount | ClosedForm
    layout: Layout | None = None
    rank: RankMemory | None = None  # of the fullest rank, where the model is spread as `layout` says

    @property
    def device_used_bytes(self) -> int:
        """All that the device then shows as used."""
        return round(self.rank.device_bytes) if self.rank is not None else self.found.device_used_bytes

    @property
    def fits(self) -> bool:
        """Whether the GPU has room for it."""
        if self.rank is None and isinstance(self.found, MemoryAccount):
            return self.found.fits
        return self.device_used_bytes <= self.gpu.memory_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        found = asdict(self.found) if isinstance(self.found, MemoryAccount) else _described(self.found)
        whole = {"target": self.target, "gpu": self.gpu.slug, "batch": self.batch, **found}
        if self.rank is not None and self.layout is not None:
            whole |= {"layout": asdict(self.layout), "rank": asdict(self.rank)}
        return whole | {"device_used_bytes": self.device_used_bytes, "fits": self.fits}


@dataclass(frozen=True)
class TimePrediction:
    """How long a step takes, what it costs in energy, and whether its input can keep up, where that was asked."""

    target: str
    batch: int
    step: StepTime
    energy: Energy | None
    input: Loading | None = None

    @property
    def step_time_s(self) -> float:
        return self.input.step_time_s if self.input is not None else self.step.step_time_s

    @property
    def interval_s(self) -> tuple[float, float]:
        """The least and the most that a step takes; input that comes too late allows no less than it takes itself."""
        least_s = self.step_time_s if self.bound == "input" else 0.0
        return max(self.step.low_s, least_s), max(self.step.high_s, least_s)

    @property
    def bound(self) -> str:
        """What limits the step: compute, memory, launch or input."""
        return "input" if self.input is not None and self.input.is_input_bound else self.step.bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {
            "target": self.target,
            "batch": self.batch,
            **asdict(self.step),
            "step_time_s": self.step_time_s,
            "low_s": self.interval_s[0],
            "high_s": self.interval_s[1],
            "samples_per_s": self.batch / self.step_time_s,
            "bound": self.bound,
            "energy": asdict(self.energy) if self.energy is not None else None,
            "input": _fed(self.input) if self.input is not None else None,
        }


class Predict:
    """Predictions of a workspace; `folder` holds what was measured on its own devices, and what was foreseen.

    `step_of` finds the file that builds a step of a benchmark or model, `partition_of` knows machines.
    """

    def __init__(
        self, folder: Path, *, step_of: Callable[[str], Path], partition_of: Callable[[str], Partition]
    ) -> None:
        self._measured = Measured(folder)
        self._foreseen = folder / "foreseen"
        self._step_of = step_of
        self._partition_of = partition_of

    def trace(self, target: str, arguments: Mapping[str, Any] | None = None, **how: Any) -> Trace:
        """Return what a step does, operator by operator, without a GPU; `how` are fields of a TraceRequest."""
        return self._trace(self._target(target), arguments or {}, how)

    def memory(
        self,
        target: str,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        allocator: str = "",
        layout: Layout | None = None,
        **how: Any,
    ) -> MemoryPrediction:
        """Tell what a step needs on a GPU, and where it is spread over several, what the fullest rank needs.

        The batch of the target is that of one replica: `micro_batch` of a layout follows from it. `allocator` is what
        PYTORCH_CUDA_ALLOC_CONF would say; `how` are fields of a TraceRequest, as `precision`.
        """
        asked, on = self._target(target), device(gpu)
        if asked.description is not None:
            if allocator:
                raise UsageError(
                    f"{target} is a description: what its allocator does is not followed", hint="give FILE.py:FUNCTION"
                )
            described = _changed(asked, arguments or {}, how)
            found = closed_form(described)
            if layout is not None and layout.recompute == "none":
                layout = replace(layout, recompute=described.recompute)
            return _spread(MemoryPrediction(target, on, found.footprint.batch, found), found.footprint, layout)
        options = parse_allocator_options(allocator)
        trace = self._trace(asked, arguments or {}, how)
        taken = account(trace, on, options)
        return _spread(MemoryPrediction(target, on, batch_of(trace), taken), _footprint(trace, taken), layout)

    def largest_batch(
        self,
        target: str,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        batch_argument: str = "",
        allocator: str = "",
        **how: Any,
    ) -> LargestBatch:
        """Find the largest batch that fits, by looking at the model alone."""
        asked, on, given = self._target(target), device(gpu), dict(arguments or {})
        if asked.description is not None:
            raise UsageError(
                f"{target} is a description: the largest batch is found in code only",
                hint="give FILE.py:FUNCTION, or try batches: -a batch=8",
            )
        name = batch_argument or _batch_name(asked, given)
        if not name:
            raise UsageError(f"which argument of {target} is the batch?", hint="name it: --batch-argument NAME")
        options = parse_allocator_options(allocator)

        def at(batch: int) -> MemoryAccount:
            return account(self._trace(asked, {**given, name: batch}, how), on, options)

        said = given.get(name)
        return largest_batch(at, start=said if isinstance(said, int) else 1)

    def time(
        self,
        target: str,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        storage: Mapping[str, float] | None = None,
        sample_bytes: float = 0.0,
        workers: int = 1,
        decode_s: float = 0.0,
        **how: Any,
    ) -> TimePrediction:
        """Tell how long a step takes on a GPU, what bounds it, and its energy.

        With what a storage evaluation measured, also whether samples of `sample_bytes` arrive in time.
        """
        asked, on = self._target(target), device(gpu)
        trace = self._trace(asked, arguments or {}, how)
        step, batch = self._measured.step_time(trace, on), _samples(trace, how)
        fed = None
        if storage is not None or decode_s:
            fed = loading(step.step_time_s, batch, sample_bytes, storage or {}, workers=workers, decode_s=decode_s)
        return TimePrediction(target, batch, step, energy_of(step, on) if on.max_w else None, fed)

    def foresee(
        self, file: Path, arguments: Mapping[str, Any], on: str | Partition, *, as_shipped: bool = False
    ) -> Foreseen:
        """Tell memory and time of the step that `file` builds on a GPU or a partition's GPU; it is traced once.

        With `as_shipped` nothing that was measured here counts.
        """
        where = device(on) if isinstance(on, str) else _device_in(on)
        return foresee(file, arguments, where, self._foreseen, None if as_shipped else self._measured)

    def scaling(
        self,
        target: str,
        on: str,
        gpus: Sequence[int],
        *,
        mode: Mode = "strong",
        batch: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        batch_argument: str = "",
        goal: Goal | None = None,
        **how: Any,
    ) -> ScalingPrediction:
        """Tell how a target scales on a system, with the best way to spread it at each number of GPUs.

        `batch` is that of the whole step (strong scaling) or of one GPU (weak).
        """
        asked, partition = self._target(target), self._partition_of(on)
        if partition.gpu is None:
            raise UsageError(f"{on} has no GPUs", hint="name a partition that has some: SYSTEM:PARTITION")
        curve: dict[str, Any] = {"mode": mode, "batch": batch, "goal": goal}
        if asked.description is not None:
            described = _changed(asked, arguments or {}, how)
            if not isinstance(described, Transformer):
                raise UsageError(
                    f"{target}: of descriptions only transformers are spread over GPUs", hint="give FILE.py:FUNCTION"
                )
            return predict_transformer_scaling(described, partition, gpus, **curve)
        where, given = _device_in(partition), dict(arguments or {})
        trace = self._trace(asked, given, how)
        many = batch_of(trace)
        steps = [self._one_gpu(trace, where, how)]
        name = batch_argument or _batch_name(asked, given)
        if mode == "strong" and name and many >= _SMALLER:
            fewer = self._trace(asked, {**given, name: many // _SMALLER}, how)
            if batch_of(fewer) < many:
                steps.append(self._one_gpu(fewer, where, how))
        footprint = _footprint(trace, account(trace, where))
        found = predict_scaling(footprint, steps, partition, gpus, device=where, **curve)
        return replace(found, notes=(*trace.notes, *found.notes))

    def _target(self, text: str) -> Target:
        return find_target(text, self._step_of)

    def _trace(self, target: Target, arguments: Mapping[str, Any], how: Mapping[str, Any]) -> Trace:
        if target.file is None:
            raise UsageError(
                f"{target.name} is a description: its operators are not known", hint="give FILE.py:FUNCTION"
            )
        request = TraceRequest(str(target.file), target.function, dict(arguments), **how)
        with tempfile.TemporaryDirectory(prefix="fairmile-trace-") as folder:
            return trace_target(request, timeout_s=_LONGEST_S, folder=Path(folder))

    def _one_gpu(self, trace: Trace, on: Device, how: Mapping[str, Any]) -> OneGpuStep:
        found = self._measured.step_time(trace, on)
        return OneGpuStep.of_phases(found.step_time_s, _samples(trace, how), found.by_phase)

    def calibrate(
        self,
        targets: Sequence[str] = (),
        *,
        for_s: float = 120.0,
        device_name: str = "cuda",
        gpu: str = "",
        file: Path | None = None,
        dry_run: bool = False,
    ) -> Calibrated:
        """Measure operators on a device of this machine; predictions for that kind of GPU then go by them first.

        Those of the targets come first, then a general list. `gpu` names the kind where the machine cannot.
        """
        if file is None and device_name.startswith("cpu"):
            raise UsageError("times of a CPU are no table of a GPU", hint="name a file for them: -o FILE.csv")
        if file is None and not dry_run:
            file = self.table_file(gpu or _own_gpu())
        wanted = [each for name in targets for each in candidates_of(self.trace(name), name)]
        wanted += generic_candidates()
        if file is None or dry_run:
            return Calibrated(0, 0, 0, len(merged(wanted)))
        return calibrate(wanted, file, for_s=for_s, device=device_name)

    def learn(self, gpu: str, steps: Sequence[tuple[Foreseen, float, str]], *, dry_run: bool = False) -> Correction:
        """Correct the table of a GPU by steps of runs: what was foreseen, the seconds it took, and which run it was.

        Steps are foreseen `as_shipped`. What was learnt before is forgotten: `steps` are all that count. With `dry_run`
        nothing is kept.
        """
        seen = [MeasuredStep(took_s, each.step_s[0], each.by_kind, run) for each, took_s, run in steps]
        return self._measured.learn(device(gpu), seen, dry_run=dry_run)

    def table_file(self, gpu: str) -> Path:
        """Return where the operator times of a GPU that were measured here are kept."""
        return self._measured.table_file(device(gpu))


def _device_in(partition: Partition) -> Device:
    """Return the kind of GPU that a partition has; NotFound where it is none of the known ones."""
    if partition.gpu is None:
        raise NotFound("the partition has no GPUs", hint="name one that has some: SYSTEM:PARTITION")
    return device_of_partition(partition) or device(partition.gpu.model)


def _own_gpu() -> str:
    models = [str(each.get("model") or "") for each in hardware().get("gpus") or ()]
    if not models:
        raise NotFound("this machine has no GPU to measure", hint="name a file for the table of another device")
    return models[0]


def _samples(trace: Trace, how: Mapping[str, Any]) -> int:
    """Return how many samples a step of the optimizer takes."""
    return batch_of(trace) * int(how.get("accumulate") or 1)


def _fed(found: Loading) -> dict[str, Any]:
    """Return what is known of the input; JSON has no infinity."""
    known = math.isfinite(found.delivered_per_s)
    return asdict(found) | {"delivered_per_s": found.delivered_per_s if known else None}


def _spread(found: MemoryPrediction, footprint: ModelFootprint, layout: Layout | None) -> MemoryPrediction:
    """Return what the fullest rank needs, too, where there is a layout."""
    if layout is None:
        return found
    if layout.zero and layout.data == 1 and layout.optimizer_on == layout.parameters_on == "device":
        raise UsageError("ZeRO shares out over replicas, and there is only one", hint="name how many: --data 8")
    if layout.micro_batches > found.batch:
        raise UsageError(
            f"a batch of {found.batch} cannot be cut into {layout.micro_batches} micro-batches",
            hint="the batch is that of one replica: ask for fewer parts, or a larger batch",
        )
    layout = replace(layout, micro_batch=math.ceil(found.batch / layout.micro_batches))
    return replace(found, layout=layout, rank=rank_memory(footprint, layout))


def _footprint(trace: Trace, taken: MemoryAccount) -> ModelFootprint:
    return footprint_of(
        trace,
        batch=batch_of(trace),
        peak_bytes=taken.peak_allocated_bytes,
        workspace_bytes=taken.breakdown.get("workspace", 0),
        context_bytes=taken.breakdown.get("context", 0),
    )


def _batch_name(target: Target, given: Mapping[str, Any]) -> str:
    """Return which argument is the batch, nothing where that cannot be told."""
    return next((each for each in BATCH_NAMES if each in given), target.batch_argument)


def _changed(target: Target, arguments: Mapping[str, Any], how: Mapping[str, Any]) -> Any:
    """Return a description with other values; UsageError where it cannot say what `how` asks for."""
    described = target.description
    if described is None:
        raise NotFound(f"{target.name} is no description")
    said = {**described.model_dump(exclude_unset=True), "kind": described.kind, **arguments}
    for name, value in how.items():
        if value is None or (name, value) == ("accumulate", 1):
            continue
        if name == "checkpointing":
            said["recompute"] = "full" if value else "none"
        elif name in _OF_DESCRIPTIONS:
            said[_OF_DESCRIPTIONS[name]] = value
        else:
            raise UsageError(
                f"{target.name} is a description: it cannot be told {name.replace('_', ' ')}",
                hint="give FILE.py:FUNCTION, whose operators are followed",
            )
    return parse_description(said, file=target.name)


def _described(found: ClosedForm) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": None,
        "parameters": found.parameters,
        "flops_per_step": found.flops_per_step,
        "breakdown": dict(found.breakdown),
        "moment": found.moment,
    }
