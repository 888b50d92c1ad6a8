"""What predictions of memory and time hold, and how they appear as JSON, in a line and in a notebook."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from fairmile.base.html_tables import fields_table
from fairmile.base.plain import plain
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration, format_size
from fairmile.costs.devices import Device
from fairmile.predict.loading import Loading, LoadingDict
from fairmile.predict.memory.account import MemoryAccount, MemoryPointDict, MomentDict, SizeIntervalDict
from fairmile.predict.memory.closed_forms import ClosedForm
from fairmile.predict.memory.sharding import Layout, LayoutDict, RankMemory, RankMemoryDict
from fairmile.predict.power import StepEnergy, StepEnergyDict
from fairmile.predict.step_time import StepTime, StepTimeDict


class RankMemoryTotalsDict(RankMemoryDict):
    """`RankMemory` with its sums, in whole bytes."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class _StepMemoryDict(TypedDict):
    peak_allocated_bytes: NotRequired[int]
    peak_reserved_bytes: NotRequired[int]
    breakdown: NotRequired[dict[str, int]]
    # of descriptions
    parameters: NotRequired[int]
    flops_per_step: NotRequired[float]
    moment: NotRequired[str]
    # of traced steps
    allocated_span: NotRequired[SizeIntervalDict]
    reserved_span: NotRequired[SizeIntervalDict]
    device_span: NotRequired[SizeIntervalDict]
    context_bytes: NotRequired[int]
    by_module: NotRequired[dict[str, int]]
    peak: NotRequired[MomentDict]
    timeline: NotRequired[list[MemoryPointDict]]
    device: NotRequired[str]
    device_bytes: NotRequired[int]
    out_of_memory: NotRequired[str | None]
    retries: NotRequired[int]
    verified: NotRequired[bool]
    retries_per_step: NotRequired[int]
    wanted_bytes: NotRequired[int]
    stopped: NotRequired[str]


class UnspreadDict(_StepMemoryDict):
    """Memory of the whole step on one GPU, where the prediction is for one of many ranks."""

    device_used_bytes: NotRequired[int]
    fits: NotRequired[bool]


class MemoryPredictionDict(_StepMemoryDict):
    """`MemoryPrediction` as JSON holds it."""

    target: str
    gpu: str
    batch: int
    lower_bound: bool
    device_used_bytes: int
    fits: bool | None
    squeeze: str | None
    notes: list[str]
    layout: NotRequired[LayoutDict]
    rank: NotRequired[RankMemoryTotalsDict]
    unspread: NotRequired[UnspreadDict]


@dataclass(frozen=True, repr=False)
class MemoryPrediction(Result):
    """What one GPU holds: of a traced step with the allocator's own doings, of a description the sum of its parts."""

    target: str
    gpu: Device
    batch: int
    estimate: MemoryAccount | ClosedForm  # of the whole model on one GPU
    layout: Layout | None = None
    rank: RankMemory | None = None  # of the fullest rank, where the model is spread as `layout` says
    wanted_bytes: int = 0  # what that rank's device would show as used if it had more room; nothing where it has enough
    more_notes: tuple[str, ...] = ()

    @property
    def device_used_bytes(self) -> int:
        """All that the device then shows as used."""
        return round(self.rank.device_bytes) if self.rank is not None else self.estimate.device_used_bytes

    @property
    def stopped(self) -> str:
        """Why the step was followed only to a point, so that all figures are the least it takes; nothing mostly."""
        return self.estimate.stopped if isinstance(self.estimate, MemoryAccount) else ""

    @property
    def fits(self) -> bool | None:
        """Whether the GPU has room for it; None where the least it takes has room, and the most is not known."""
        has_room = self.device_used_bytes <= self.gpu.memory_bytes
        if self.rank is None and isinstance(self.estimate, MemoryAccount):
            has_room = self.estimate.fits
        return None if has_room and self.stopped else has_room

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of how it was found."""
        return (*self.estimate.notes, *self.more_notes)

    @property
    def squeeze(self) -> str:
        """How it fits although it wants more than there is; nothing where it has room, or does not fit."""
        if self.rank is None:
            return self.estimate.squeeze if isinstance(self.estimate, MemoryAccount) else ""
        if not self.wanted_bytes:
            return ""
        return (
            "only by returning unused segments to the device, which takes time; with more memory it would use "
            f"{format_size(self.wanted_bytes)}"
        )

    def to_dict(self) -> MemoryPredictionDict:
        estimate = plain(self.estimate) if isinstance(self.estimate, MemoryAccount) else _described(self.estimate)
        fields: dict[str, Any] = {"target": self.target, "gpu": self.gpu.slug, "batch": self.batch}
        if self.rank is not None and self.layout is not None:
            sums = ("allocated_bytes", "reserved_bytes", "device_bytes")
            parts = plain(self.rank) | {name: getattr(self.rank, name) for name in sums}
            rounded = {name: round(each) if name.endswith("_bytes") else each for name, each in parts.items()}
            unspread = {name: each for name, each in estimate.items() if name != "notes"}
            fields |= {"layout": plain(self.layout), "rank": rounded, "unspread": unspread}
            fields["wanted_bytes"] = self.wanted_bytes or self.device_used_bytes
        else:
            fields |= estimate
        if self.stopped:
            intervals = ("allocated_span", "reserved_span", "device_span")
            fields |= {name: {**fields[name], "high": None} for name in intervals if name in fields}
        fields["lower_bound"] = bool(self.stopped)
        ends = {"fits": self.fits, "squeeze": self.squeeze or None, "notes": list(self.notes)}
        prediction: Any = fields | {"device_used_bytes": self.device_used_bytes, **ends}
        return prediction  # type: ignore[no-any-return]

    def summary(self) -> str:
        fits = {True: "fits", False: "does not fit", None: "may not fit"}[self.fits]
        used, size = format_size(self.device_used_bytes), format_size(self.gpu.memory_bytes)
        return f"{self.target} {fits} {self.gpu.name}, {used} of {size} with a batch of {self.batch:,}"

    def _repr_html_(self) -> str:
        breakdown = self.estimate.breakdown if self.rank is None else self.rank.breakdown
        return fields_table(
            {
                "target": self.target,
                "GPU": self.gpu.name,
                "batch": f"{self.batch:,}",
                "fits": {True: "yes", False: "no", None: "cannot determine: lower bound only"}[self.fits],
                "device": f"{format_size(self.device_used_bytes)} of {format_size(self.gpu.memory_bytes)}",
                **{name.replace("_", " "): format_size(round(size)) for name, size in breakdown.items() if size},
            }
        )


class TimePredictionDict(StepTimeDict):
    """`TimePrediction` as JSON holds it."""

    target: str
    batch: int
    step_time_without_waiting_s: float
    utilisation: float
    samples_per_s: float
    energy: StepEnergyDict | None
    input: LoadingDict | None


@dataclass(frozen=True, repr=False)
class TimePrediction(Result):
    """How long a step takes, what it costs in energy, and whether its input can keep up, where that was asked.

    `step` is what it would be if its input were there in time; everything else goes by the step with its waiting.
    """

    target: str
    batch: int
    step: StepTime
    energy: StepEnergy | None
    input: Loading | None = None

    @property
    def step_time_s(self) -> float:
        return self.input.step_time_s if self.input is not None else self.step.step_time_s

    @property
    def paced(self) -> StepTime:
        """The step as it goes with its input: none is shorter than its samples take to arrive."""
        input_s = self.batch / self.input.delivered_per_s if self.input is not None else 0.0
        low_s, high_s = max(self.step.low_s, input_s), max(self.step.high_s, input_s)
        return replace(self.step, step_time_s=self.step_time_s, low_s=low_s, high_s=high_s, bound=self.bound)

    @property
    def interval_s(self) -> tuple[float, float]:
        """The least and the most that a step takes; what was said of its input has no interval."""
        return self.paced.low_s, self.paced.high_s

    @property
    def bound(self) -> str:
        """What limits the step: compute, memory, launch or input."""
        return "input" if self.input is not None and self.input.is_input_bound else self.step.bound

    def to_dict(self) -> TimePredictionDict:
        paced: StepTimeDict = plain(self.paced)
        return {
            "target": self.target,
            "batch": self.batch,
            **paced,
            "step_time_without_waiting_s": self.step.step_time_s,
            "utilisation": self.paced.utilisation,
            "samples_per_s": self.batch / self.step_time_s,
            "energy": plain(self.energy),
            "input": _input_fields(self.input) if self.input is not None else None,
        }

    def summary(self) -> str:
        low, high = map(format_duration, self.interval_s)
        step = f"{format_duration(self.step_time_s)} ({low} to {high}) per step on {self.step.device}"
        return f"{self.target} takes {step}, {self.bound}-bound"

    def _repr_html_(self) -> str:
        low, high = map(format_duration, self.interval_s)
        fields = {
            "target": self.target,
            "GPU": self.step.device,
            "step": format_duration(self.step_time_s),
            "90 % prediction interval": f"{low} to {high}",
            "samples/s": f"{self.batch / self.step_time_s:,.1f}, batch of {self.batch:,}",
            "bound by": self.bound,
            "device busy": f"{self.paced.utilisation:.0%}",
        }
        if self.energy is not None:
            energy = self.energy
            fields["energy per step"] = f"{energy.joules:.3g} J ({energy.low_j:.3g} to {energy.high_j:.3g})"
        return fields_table(fields)


def _input_fields(loading: Loading) -> LoadingDict:
    """Return the fields of the input; JSON has no infinity."""
    fields: LoadingDict = plain(loading)
    return fields if math.isfinite(loading.delivered_per_s) else {**fields, "delivered_per_s": None}


def _described(form: ClosedForm) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": form.peak_allocated_bytes,
        "peak_reserved_bytes": form.peak_reserved_bytes,
        "parameters": form.parameters,
        "flops_per_step": form.flops_per_step,
        "breakdown": dict(form.breakdown),
        "moment": form.moment,
    }
