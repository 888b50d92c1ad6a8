"""The answers before a job runs: does it fit, how long does a step take, on how many GPUs is it worth it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.nouns import Noun
from fairmile.base.progress import Watch, working
from fairmile.base.units import format_size
from fairmile.costs.collectives.measure import model_of_partition
from fairmile.costs.devices import Device, device
from fairmile.costs.operators.calibrate import Calibrated, calibrate
from fairmile.costs.operators.grid import generic_candidates
from fairmile.costs.operators.refine import Correction, Corrections, MeasuredStep
from fairmile.costs.operators.signatures import candidates_of, merged
from fairmile.costs.steps import StepTrace
from fairmile.models.explore.request import Exploring
from fairmile.models.explore.results import ExplorationDict
from fairmile.predict.characterization import Characterization, read_measurement
from fairmile.predict.compiled.doubts import of_compiled
from fairmile.predict.compiled.steps import trace_compiled
from fairmile.predict.explored import predict_exploration
from fairmile.predict.fake_device.assumptions import parse_assumptions
from fairmile.predict.fake_device.request import TraceRequest, check_mode, trace_targets
from fairmile.predict.loading import loading
from fairmile.predict.measured import MeasuredTimes
from fairmile.predict.memory.account import (
    MemoryAccount,
    Moment,
    SizeInterval,
    account,
)
from fairmile.predict.memory.closed_forms import ClosedForm, closed_form
from fairmile.predict.memory.descriptions import Cnn, Gnn, Rnn, Transformer, parse_description
from fairmile.predict.memory.footprints import batch_of, footprint_of
from fairmile.predict.memory.largest_batch import LargestBatch, largest_batch, largest_traced_batch
from fairmile.predict.memory.options import AllocatorOptions, parse_allocator_options
from fairmile.predict.memory.sharding import Layout, ModelFootprint, rank_memory
from fairmile.predict.power import energy_of
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import Goal, Mode, ScalingPrediction, predict_scaling, predict_transformer_scaling
from fairmile.predict.scaling.data_parallel import OneGpuStep
from fairmile.predict.scaling.plans import divisors
from fairmile.predict.scaling.step import device_of_partition
from fairmile.predict.step_cache import StepForecast, foresee
from fairmile.predict.step_time import StepTime
from fairmile.predict.subjects import Subject, parameters_of, subject_of
from fairmile.resolve import Target
from fairmile.systems.hardware import hardware
from fairmile.systems.model import Partition

GPU = "h200"
BATCH_NAMES = (
    *("batch_size", "batch", "batchsize", "bs", "train_batch_size", "micro_batch_size", "micro_batch"),
    *("mini_batch_size", "mini_batch", "local_batch_size"),
)
_OF_DESCRIPTIONS = {
    **{"precision": "precision", "training": "training", "accumulate": "accumulate"},
    "optimizer_form": "implementation",
}
_NO_GPU = "run it on a machine with a GPU, or measure the CPU into a file: --device cpu -o FILE.csv"
_LONGEST_S = 3600.0  # a trace takes seconds: what takes as long as this does not end
_TENSOR_NOTE = "how tensor parallelism splits this model is unknown: a transformer's split is assumed"
_SENT_NOTE = "communication between the ranks takes further time"
_FOLLOWED = "a prediction from code, FILE.py:FUNCTION, replays the allocator"
_FORM_ERROR = 0.1  # of closed forms: none of the measured steps was off by more
_SMALLER = 8  # times the batch of a second trace is smaller, for a curve of strong scaling


TargetOrDescription = str | Mapping[str, Any]
"""What to predict, as a word of the command line, or as the data of a description."""

MeasuredRun = tuple[StepForecast, float, str]
"""What was predicted of the step of a run, the seconds it took, and the id of the run."""


_INTERNAL = "foresee foresee_exploration learn table_file"  # for other parts of Fairmile


class Predict(Noun, internal=_INTERNAL, package=__package__):
    """Predictions of memory, time and scaling; `folder` holds local measurements and cached predictions.

    `resolve` tells what a word means, `step_of` finds the file that builds a step of a benchmark or model,
    `partition_of` knows machines, `metrics_of` gives the metrics of a run, and `steps_of_runs` the steps that runs of
    this workspace measured, by GPU.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resolve: Callable[[str], Target],
        step_of: Callable[[Target], Path],
        partition_of: Callable[[str], Partition],
        metrics_of: Callable[[str], Mapping[str, float]],
        steps_of_runs: Callable[[Predict], Mapping[str, Sequence[MeasuredRun]]],
    ) -> None:
        self._measured = MeasuredTimes(folder)
        self._foreseen = folder / "foreseen"
        self._resolve = resolve
        self._step_of = step_of
        self._partition_of = partition_of
        self._metrics_of = metrics_of
        self._steps_of_runs = steps_of_runs

    def trace(
        self,
        target: TargetOrDescription,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: bool | Watch = True,
        **how: Any,
    ) -> StepTrace:
        """Trace a step operator by operator, without a GPU; `how` are fields of a TraceRequest.

        See `fm.fetch` for `progress`.
        """
        asked = self._subject(target)
        with _tracing(progress, asked.name):
            return self._trace(asked, arguments or {}, how)

    def memory(
        self,
        target: TargetOrDescription,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        allocator: str = "",
        layout: Layout | None = None,
        progress: bool | Watch = True,
        **how: Any,
    ) -> MemoryPrediction:
        """Predict the memory of a step on a GPU, or of the fullest rank of a parallel layout.

        `target` is a word of the command line, or the data of a description, `{"kind": "transformer", …}`. Its batch is
        that of one replica: `micro_batch` of a layout follows from it. `allocator` is what PYTORCH_CUDA_ALLOC_CONF
        would say; `how` are fields of a TraceRequest, as `precision` and `assume`, and `compile`, a mode of
        torch.compile. If shapes depend on weights,
        random values are assumed. A step that can be traced only in part gives a lower bound, unless it is sharded.
        See `fm.fetch` for `progress`.
        """
        asked, on = self._subject(target), device(gpu)
        if asked.description is not None:
            _refuse_allocator(asked.name, allocator)
            return _of_description(_changed(asked, arguments or {}, how), asked.name, on, layout)
        options = parse_allocator_options(allocator)
        with _tracing(progress, asked.name):
            trace = self._trace(asked, arguments or {}, {**how, "partial": layout is None})
        if layout is not None:
            _refuse_stopped(asked.name, trace)
            _refuse_sharded(asked.name, trace)
        taken = _account(trace, on, options)
        if trace.assumed and layout is None and parse_assumptions(how.get("assume") or ()).selected is None:
            with _tracing(progress, asked.name):
                taken = self._bounded(taken, asked, arguments or {}, how, lambda trace: _account(trace, on, options))
        alone = (f"this is one of {trace.ranks} ranks, each with such a batch",) if trace.ranks > 1 else ()
        whole = MemoryPrediction(asked.name, on, batch_of(trace), taken, more_notes=alone)
        prediction = _spread(whole, _footprint(trace, taken), layout)
        if prediction.rank is None or not _is_squeezed(prediction):
            return prediction
        # Replay the whole step on a device that is larger by the same factor as the step is larger than the rank.
        times = taken.peak_allocated_bytes / prediction.rank.allocated_bytes
        limit = taken.context_bytes + (on.memory_bytes - taken.context_bytes) * times
        return _squeezed(prediction) if account(trace, on, options, limit_bytes=int(limit)).fits else prediction

    def _bounded(
        self,
        taken: MemoryAccount,
        asked: Subject,
        arguments: Mapping[str, Any],
        how: Mapping[str, Any],
        account_of: Callable[[StepTrace], MemoryAccount],
    ) -> MemoryAccount:
        """Return an account with the intervals from masks that select nothing to masks that select everything."""

        def selecting(share: float) -> MemoryAccount | None:
            try:
                facts = [*(how.get("assume") or ()), f"selected={share}"]
                bound = account_of(self._trace(asked, arguments, {**how, "assume": facts}))
            except UsageError:  # the step does not work so, as of an average over nothing
                return None
            return bound if not bound.stopped else None

        least, most = selecting(0.0), selecting(1.0)

        def between(name: str) -> SizeInterval:
            spans = [getattr(each, name) for each in (least, taken, most) if each is not None]
            return SizeInterval(min(each.low for each in spans), max(each.high for each in spans))

        ends = [name for name, each in (("nothing", least), ("everything", most)) if each is not None]
        notes = [f"the intervals include masks that select {' and '.join(ends)}"] if ends else []
        if most is not None and taken.fits and not most.fits:
            notes.append(f"with masks that select everything, {most.out_of_memory}")
        return replace(
            taken,
            allocated_span=between("allocated_span"),
            reserved_span=between("reserved_span"),
            device_span=between("device_span"),
            notes=[*taken.notes, *notes],
        )

    def largest_batch(
        self,
        target: TargetOrDescription,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        batch_argument: str = "",
        allocator: str = "",
        progress: bool | Watch = True,
        **how: Any,
    ) -> LargestBatch:
        """Find the largest batch that fits, without a GPU. See `fm.fetch` for `progress`."""
        asked, on, given = self._subject(target), device(gpu), dict(arguments or {})
        if asked.description is not None:
            _refuse_allocator(asked.name, allocator)
            first = _changed(asked, given, how)

            def described(batch: int) -> MemoryAccount:
                return _as_account(closed_form(first.model_copy(update={"batch": batch}), on), on)

            largest = largest_batch(described, start=first.batch)
            return _doubting_next(largest, closed_form(first.model_copy(update={"batch": largest.batch + 1}), on))
        name = batch_argument or _batch_name(asked, given)
        if not name:
            raise UsageError(
                f"cannot tell which argument of {asked.name} is the batch size",
                hint="name it with --batch-argument NAME",
            )
        options = parse_allocator_options(allocator)

        def traces(batches: Sequence[int]) -> list[StepTrace]:
            state(f"tracing the step with a batch of {' and '.join(f'{each:,}' for each in batches)}")
            traced = self._traces(asked, [{**given, name: each} for each in batches], how)
            for trace in traced:
                _refuse_stopped(asked.name, trace)
            return traced

        usual = given.get(name, parameters_of(asked).get(name))
        start = usual if isinstance(usual, int) else 1
        with _tracing(progress, asked.name) as state:
            return largest_traced_batch(traces, lambda trace: _account(trace, on, options), start=start)

    def time(
        self,
        target: TargetOrDescription,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        storage: Mapping[str, float] | str | None = None,
        sample_bytes: float = 0.0,
        workers: int = 1,
        decode_s: float = 0.0,
        progress: bool | Watch = True,
        **how: Any,
    ) -> TimePrediction:
        """Predict how long a step takes on a GPU, what bounds it, and its energy.

        With `storage`, a run of `fairmile benchmark storage` or what it measured, also whether samples of
        `sample_bytes` arrive in time. See `fm.fetch` for `progress`.
        """
        if isinstance(storage, str):
            storage = _first_folder(storage, self._metrics_of(storage))
        asked, on = self._subject(target), device(gpu)
        with _tracing(progress, asked.name):
            trace = self._trace(asked, arguments or {}, how)
        step, batch = self._measured.step_time(trace, on), _samples(trace, how)
        if trace.ranks > 1:
            step = replace(step, notes=[*step.notes, _SENT_NOTE])
        fed = None
        if storage is not None or decode_s:
            fed = loading(step.step_time_s, batch, sample_bytes, storage or {}, workers=workers, decode_s=decode_s)
        prediction = TimePrediction(asked.name, batch, step, None, fed)
        return replace(prediction, energy=energy_of(prediction.paced, on)) if on.max_w else prediction

    def foresee(
        self, file: Path, arguments: Mapping[str, Any], on: str | Partition, *, as_shipped: bool = False
    ) -> StepForecast:
        """Predict memory and time of the step that `file` builds, on a GPU or the GPU of a partition; trace it once.

        With `as_shipped` nothing that was measured here counts.
        """
        where = device(on) if isinstance(on, str) else _device_in(on)
        return foresee(file, arguments, where, self._foreseen, None if as_shipped else self._measured)

    def foresee_exploration(self, asked: Exploring, explored: ExplorationDict, folder: Path) -> ExplorationDict:
        """Return an exploration, whose run has this folder, with predictions of what it measured on a GPU."""
        return predict_exploration(asked, explored, folder, self._foreseen, self._measured)

    def scaling(
        self,
        target: TargetOrDescription,
        system: str,
        gpus: Sequence[int],
        *,
        mode: Mode = "strong",
        batch: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        batch_argument: str = "",
        collectives: str | Path | None = None,
        goal: Goal | None = None,
        progress: bool | Watch = True,
        **how: Any,
    ) -> ScalingPrediction:
        """Predict how a target scales on a system, with the best layout for each number of GPUs.

        `batch` is that of the whole step (strong scaling) or of one GPU (weak). `collectives` is a file with times
        measured on that system, by `fairmile benchmark collectives` or nccl-tests. See `fm.fetch` for `progress`.
        """
        asked, partition = self._subject(target), self._partition_of(system)
        if partition.gpu is None:
            raise UsageError(f"{system} has no GPUs", hint="name a partition with GPUs: SYSTEM:PARTITION")
        curve: dict[str, Any] = {"mode": mode, "batch": batch, "goal": goal}
        if collectives is not None:
            curve["collectives"] = model_of_partition(collectives, partition)
        if asked.description is not None:
            described = _changed(asked, arguments or {}, how)
            if not isinstance(described, Transformer):
                raise UsageError(
                    f"{asked.name}: among descriptions, only transformers can be scaled", hint="use FILE.py:FUNCTION"
                )
            predicted = predict_transformer_scaling(described, partition, gpus, **curve)
            return replace(predicted, target=asked.name, on=system)
        where, given = _device_in(partition), dict(arguments or {})
        name = batch_argument or _batch_name(asked, given)
        with _tracing(progress, asked.name) as state:
            trace = fewer = self._trace(asked, given, how)
            _refuse_sharded(asked.name, trace)
            many = batch_of(trace)
            if mode == "strong" and name and many >= _SMALLER:
                state(f"tracing the step with a batch of {many // _SMALLER:,}")
                fewer = self._trace(asked, {**given, name: many // _SMALLER}, how)
        alone = self._measured.step_time(trace, where)
        steps = [_one_gpu(alone, trace, how)]
        if batch_of(fewer) < many:
            steps.append(_one_gpu(self._measured.step_time(fewer, where), fewer, how))
        taken = account(trace, where)
        predicted = predict_scaling(_footprint(trace, taken), steps, partition, gpus, device=where, **curve)
        notes = tuple(dict.fromkeys((*taken.notes, *alone.notes, *predicted.notes)))
        return replace(predicted, target=asked.name, on=system, notes=notes)

    def characterize(
        self,
        target: TargetOrDescription,
        *,
        gpu: str = GPU,
        arguments: Mapping[str, Any] | None = None,
        system: str = "",
        gpus: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
        sample_bytes: float = 0.0,
        measured: str | Path | None = None,
        progress: bool | Watch = True,
        **how: Any,
    ) -> Characterization:
        """Predict memory, roofline, input needs and communication of a step, beside what was measured.

        With `system`, also how it scales there. `measured` is a file of JSON lines with `benchmark`,
        `arguments`, `gpu`, `step_s`, `peak_allocated_bytes` and `peak_reserved_bytes`. See `fm.fetch` for `progress`.
        """
        given = dict(arguments or {})
        known = read_measurement(Path(measured), str(target), given) if measured is not None else None
        every: dict[str, Any] = {"arguments": given, "progress": progress, **how}
        return Characterization(
            self.memory(target, gpu=gpu, **every),
            self.time(target, gpu=gpu, **every),
            self.scaling(target, system, gpus, mode="weak", **every) if system else None,
            sample_bytes,
            known,
        )

    def _subject(self, target: TargetOrDescription) -> Subject:
        if isinstance(target, Mapping):
            description = parse_description(dict(target))
            return Subject(str(description.kind), description=description)
        return subject_of(self._resolve(target), self._step_of)

    def _trace(self, subject: Subject, arguments: Mapping[str, Any], how: Mapping[str, Any]) -> StepTrace:
        return self._traces(subject, [arguments], how)[0]

    def _traces(self, subject: Subject, each: Sequence[Mapping[str, Any]], how: Mapping[str, Any]) -> list[StepTrace]:
        """Trace a subject with these and those arguments in one process; the first refusal is raised."""
        if subject.file is None:
            hint = "use FILE.py:FUNCTION"
            if isinstance(subject.description, Transformer):
                hint += f", or predict only the time: `fairmile predict scaling {subject.name} --on SYSTEM --gpus 1`"
            raise UsageError(f"{subject.name} is a description, so its operators are unknown", hint=hint)
        for arguments in each:
            _check_batch(_batch_name(subject, arguments), arguments)
        fields = dict(how)
        fields["compile"] = check_mode(fields.get("compile")) or None
        requests = [TraceRequest(str(subject.file), subject.function, dict(arguments), **fields) for arguments in each]
        if fields["compile"]:
            answers = trace_compiled(requests, timeout_s=_LONGEST_S)
        else:
            with tempfile.TemporaryDirectory(prefix="fairmile-trace-") as folder:
                answers = trace_targets(requests, timeout_s=_LONGEST_S, folder=Path(folder))
        for answer in answers:
            if isinstance(answer, UsageError):
                raise answer
        return [answer for answer in answers if isinstance(answer, StepTrace)]

    def calibrate(
        self,
        targets: Sequence[str] = (),
        *,
        for_s: float = 120.0,
        device_name: str = "cuda",
        gpu: str = "",
        file: Path | None = None,
        dry_run: bool = False,
        progress: bool | Watch = True,
    ) -> Calibrated:
        """Measure operators on a device of this machine, so that predictions for its GPU model use measured times.

        Those of the targets come first, then a general list. `gpu` names the kind where the machine cannot. See
        `fm.fetch` for `progress`.
        """
        begun = time.monotonic()
        if file is None and device_name.startswith("cpu"):
            raise UsageError(
                "CPU times cannot be stored as those of a GPU", hint="write them to a file with -o FILE.csv"
            )
        if file is None and not dry_run:
            file = self.table_file(gpu or _own_gpu())
        wanted = [each for name in targets for each in candidates_of(self.trace(name, progress=progress), name)]
        wanted += generic_candidates()
        if file is None or dry_run:
            return Calibrated(0, 0, 0, len(merged(wanted)))
        with working(progress, "calibration", f"measuring operators on {device_name}", total_s=for_s):
            return calibrate(wanted, file, for_s=for_s, since=begun, device=device_name)

    def learn_from_runs(self, *, dry_run: bool = False, progress: bool | Watch = True) -> Corrections:
        """Correct the operator times of each GPU by benchmark runs on a single GPU; `dry_run` keeps nothing.

        See `fm.fetch` for `progress`.
        """
        with working(progress, "learning", "predicting the steps of runs"):
            steps = self._steps_of_runs(self).items()
        return Corrections((self.learn(gpu, each, dry_run=dry_run) for gpu, each in steps), dry_run=dry_run)

    def learn(self, gpu: str, steps: Sequence[MeasuredRun], *, dry_run: bool = False) -> Correction:
        """Correct the operator times of a GPU by measured steps: prediction, measured seconds and run of each.

        Steps are foreseen `as_shipped`. What was learnt before is forgotten: `steps` are all that count. With `dry_run`
        nothing is kept.
        """
        seen = [MeasuredStep(took_s, each.step_s[0], each.by_kind, run) for each, took_s, run in steps]
        return self._measured.learn(device(gpu), seen, dry_run=dry_run)

    def table_file(self, gpu: str) -> Path:
        """Return the file with the locally measured operator times of a GPU."""
        return self._measured.table_file(device(gpu))


def _tracing(progress: bool | Watch, target: str) -> AbstractContextManager[Callable[[str], None]]:
    return working(progress, target, "tracing the step")


def _first_folder(run: str, metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Return what a run of the storage benchmark measured in its first folder."""
    prefix = next((f"{name.rpartition('.')[0]}." for name in metrics if name.startswith("storage.")), "")
    if not prefix:
        raise UsageError(
            f"run {run} did not measure storage", hint="measure it with `fairmile benchmark storage FOLDER`"
        )
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _device_in(partition: Partition) -> Device:
    """Return the kind of GPU that a partition has; NotFound where it is none of the known ones."""
    if partition.gpu is None:
        raise NotFound("the partition has no GPUs", hint="name a partition with GPUs: SYSTEM:PARTITION")
    return device_of_partition(partition) or device(partition.gpu.model)


def _own_gpu() -> str:
    models = [str(each.get("model") or "") for each in hardware().get("gpus") or ()]
    if not models:
        raise NotFound("this machine has no GPU to measure", hint=_NO_GPU)
    return models[0]


def _one_gpu(step: StepTime, trace: StepTrace, how: Mapping[str, Any]) -> OneGpuStep:
    return OneGpuStep.of_phases(step.step_time_s, _samples(trace, how), step.by_phase)


def _samples(trace: StepTrace, how: Mapping[str, Any]) -> int:
    """Return how many samples a step of the optimizer takes."""
    return batch_of(trace) * int(how.get("accumulate") or 1)


def _spread(
    prediction: MemoryPrediction, footprint: ModelFootprint, layout: Layout | None, *, is_transformer: bool = False
) -> MemoryPrediction:
    """Return what the fullest rank needs, too, where there is a layout."""
    if layout is None:
        return prediction
    if layout.zero and layout.data == 1 and layout.optimizer_on == layout.parameters_on == "device":
        raise UsageError(
            "ZeRO shards over replicas, but there is only one", hint="set the number of replicas, such as --data 8"
        )
    if prediction.batch % layout.micro_batches:
        raise UsageError(
            f"a batch of {prediction.batch} cannot be split into {layout.micro_batches} equal micro-batches",
            hint=f"use {_listed(divisors(prediction.batch))} micro-batches, or another batch per replica",
        )
    layout = replace(layout, micro_batch=prediction.batch // layout.micro_batches)
    notes = (_TENSOR_NOTE,) if layout.tensor > 1 and not is_transformer else ()
    return replace(prediction, layout=layout, rank=rank_memory(footprint, layout), more_notes=notes)


def _listed(numbers: Sequence[int]) -> str:
    *first, last = (str(each) for each in numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _is_squeezed(prediction: MemoryPrediction) -> bool:
    """Tell whether a rank has room for what it uses, but not for all that its allocator would hold."""
    room = prediction.gpu.memory_bytes
    return prediction.rank is not None and prediction.rank.least_device_bytes <= room < prediction.rank.device_bytes


def _squeezed(prediction: MemoryPrediction) -> MemoryPrediction:
    """Return a rank whose allocator gives back what it does not use: it fills the device."""
    assert prediction.rank is not None
    left = prediction.gpu.memory_bytes - prediction.rank.least_device_bytes
    wanted = round(prediction.rank.device_bytes)
    return replace(prediction, rank=replace(prediction.rank, slack_bytes=left), wanted_bytes=wanted)


def _refuse_allocator(target: str, allocator: str) -> None:
    if allocator:
        raise UsageError(f"--allocator does not apply to the description {target}", hint="use FILE.py:FUNCTION")


def _as_account(form: ClosedForm, on: Device) -> MemoryAccount:
    """Return what is known of a description as of a traced step: no time line, no modules."""
    used, fits = form.device_used_bytes, form.device_used_bytes <= on.memory_bytes
    low, high = (round(form.peak_allocated_bytes * (1 + sign * _FORM_ERROR)) for sign in (-1, 1))
    outside = used - form.peak_allocated_bytes
    return MemoryAccount(
        peak_allocated_bytes=form.peak_allocated_bytes,
        peak_reserved_bytes=form.peak_reserved_bytes,
        device_used_bytes=used,
        allocated_span=SizeInterval(low, high),
        reserved_span=SizeInterval(low, high + form.breakdown["slack"]),
        device_span=SizeInterval(low + form.breakdown["context"], high + outside),
        context_bytes=form.breakdown["context"],
        breakdown=form.breakdown,
        by_module={},
        peak=Moment(0, "", form.moment, ""),
        timeline=(),
        device=on.name,
        device_bytes=on.memory_bytes,
        fits=fits,
        out_of_memory=None if fits else f"{format_size(used)} of {format_size(on.memory_bytes)} needed",
        retries=0,
        verified=False,
        notes=form.notes,
        wanted_bytes=used,
    )


def _of_description(
    described: Transformer | Cnn | Rnn | Gnn, target: str, on: Device, layout: Layout | None
) -> MemoryPrediction:
    form = closed_form(described, on)
    whole = MemoryPrediction(target, on, described.batch, form)
    if layout is None:
        return _doubting(whole, form.least_device_bytes)
    if isinstance(described, Transformer) and described.heads % layout.tensor:
        raise UsageError(
            f"cannot split {described.heads} heads over {layout.tensor} ranks",
            hint=f"use {_listed(divisors(described.heads))} ranks, such as --tensor {divisors(described.heads)[-1]}",
        )
    if layout.recompute == "none":
        layout = replace(layout, recompute=described.recompute)
    spread = _spread(whole, form.footprint, layout, is_transformer=isinstance(described, Transformer))
    return _doubting(spread, spread.rank.least_device_bytes if spread.rank is not None else 0.0)


def _doubting(prediction: MemoryPrediction, least_bytes: float) -> MemoryPrediction:
    """Say of a description where the estimate of slack alone decides that it does not fit."""
    if prediction.fits or least_bytes > prediction.gpu.memory_bytes:
        return prediction
    return replace(
        prediction, more_notes=(*prediction.more_notes, f"without the estimated slack it would fit; {_FOLLOWED}")
    )


def _doubting_next(largest: LargestBatch, more: ClosedForm) -> LargestBatch:
    """Say of the largest batch of a description where the estimate of slack alone rules out one more."""
    if largest.too_large is None or more.least_device_bytes > largest.account.device_bytes:
        return largest
    notes = (*largest.account.notes, f"without the estimated slack, a larger batch would fit; {_FOLLOWED}")
    return replace(largest, account=replace(largest.account, notes=notes))


def _footprint(trace: StepTrace, taken: MemoryAccount) -> ModelFootprint:
    return footprint_of(
        trace,
        batch=batch_of(trace),
        peak_bytes=taken.peak_allocated_bytes,
        reserved_bytes=max(taken.device_used_bytes, taken.wanted_bytes) - taken.context_bytes,
        workspace_bytes=taken.breakdown.get("workspace", 0),
        context_bytes=taken.breakdown.get("context", 0),
    )


def _check_batch(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a batch that no step can have, which a model would tell only by how it breaks."""
    value = arguments.get(name)
    if isinstance(value, (str, float)) or (isinstance(value, int) and value < 0):
        raise UsageError(f"{name}={value} is not a batch size", hint=f"use a whole number, such as -a {name}=64")


def _account(trace: StepTrace, on: Device, options: AllocatorOptions) -> MemoryAccount:
    taken = account(trace, on, options)
    return of_compiled(taken, trace) if trace.compiled else taken


def _refuse_stopped(target: str, trace: StepTrace) -> None:
    """Refuse what needs a step that was followed to its end."""
    if trace.stopped:
        raise UsageError(
            f"cannot trace {target} to the end of its step: {trace.stopped}",
            hint="`fairmile predict memory` without these options predicts a lower bound",
        )


def _refuse_sharded(target: str, trace: StepTrace) -> None:
    """Refuse to split the step of a rank once more."""
    if trace.ranks > 1:
        raise UsageError(
            f"{target} divides its work over {trace.ranks} ranks itself, so no other layout can be predicted",
            hint="predict its memory and time with --ranks alone, or remove fully_shard and the process group",
        )


def _batch_name(subject: Subject, given: Mapping[str, Any]) -> str:
    """Return which argument is the batch by its name, given or not; nothing where that cannot be told."""
    named = [*given, *([subject.batch_argument] if subject.batch_argument else parameters_of(subject))]
    by_name = {each.casefold(): each for each in reversed(named)}
    return next((by_name[each] for each in BATCH_NAMES if each in by_name), subject.batch_argument)


def _changed(subject: Subject, arguments: Mapping[str, Any], how: Mapping[str, Any]) -> Any:
    """Return a description with other values; UsageError where it cannot say what `how` asks for."""
    described = subject.description
    if described is None:
        raise NotFound(f"{subject.name} is not a description")
    fields = {**described.model_dump(exclude_unset=True), "kind": described.kind, **arguments}
    for name, value in how.items():
        if value is None or (name, value) == ("accumulate", 1):
            continue
        if name == "checkpointing":
            fields["recompute"] = "full" if value else "none"
        elif name in _OF_DESCRIPTIONS:
            fields[_OF_DESCRIPTIONS[name]] = value
        else:
            raise UsageError(
                f"--{name.replace('_', '-')} does not apply to the description {subject.name}",
                hint="use FILE.py:FUNCTION, whose operators are traced",
            )
    return parse_description(fields, file=subject.name)
