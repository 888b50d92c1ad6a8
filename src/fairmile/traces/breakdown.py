"""Where the time of each rank and step went: compute, exposed communication, copies, input, launch, idle.

The parts add up to the step to the nanosecond. Beside them stand the totals that overlap: all communication, how much
of it was hidden behind compute, and for devices what HolisticTraceAnalysis calls idle, compute and non-compute time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import PARTS, Activity
from fairmile.traces.intervals import Spans

NS = 1e-9
STEP_PARTS = ("compute", "exposed_communication", "exchange", "copies", "checkpoint", "input", "launch", "idle")
"""The parts of a step, which add up to it."""


class StepBreakdownDict(TypedDict):
    """`StepBreakdown` as JSON holds it."""

    component: str
    rank: int
    step: int
    start_ns: int
    total_s: float
    compute_s: float
    exposed_communication_s: float
    exchange_s: float
    copies_s: float
    checkpoint_s: float
    input_s: float
    launch_s: float
    idle_s: float
    communication_s: float
    overlap_s: float
    sync_s: float


@dataclass(frozen=True)
class StepBreakdown:
    """One step of one rank; the seven parts and `idle_s` add up to `total_s`."""

    component: str
    rank: int
    step: int
    start_ns: int
    total_s: float
    compute_s: float
    exposed_communication_s: float
    exchange_s: float
    copies_s: float
    checkpoint_s: float
    input_s: float
    launch_s: float
    idle_s: float
    communication_s: float
    overlap_s: float
    sync_s: float


class DeviceTimeDict(TypedDict):
    """`DeviceTime` as JSON holds it."""

    span_s: float
    idle_s: float
    compute_s: float
    non_compute_s: float
    communication_s: float
    overlap_s: float


@dataclass(frozen=True)
class DeviceTime:
    """A device from its first kernel to the end of its last, as HolisticTraceAnalysis counts it."""

    span_s: float
    idle_s: float
    compute_s: float
    non_compute_s: float
    communication_s: float
    overlap_s: float


class RankTimeDict(TypedDict):
    """`RankTime` as JSON holds it."""

    component: str
    rank: int
    label: str
    steps: int
    steps_found_by: str
    step_s: float
    total: StepBreakdownDict
    device: DeviceTimeDict | None


@dataclass(frozen=True)
class RankTime:
    """All steps of one rank together."""

    component: str
    rank: int
    label: str
    steps: int
    steps_found_by: str
    step_s: float  # the mean
    total: StepBreakdown
    device: DeviceTime | None


class BreakdownDict(TypedDict):
    """`Breakdown` as JSON holds it."""

    steps: list[StepBreakdownDict]
    ranks: list[RankTimeDict]


@dataclass(frozen=True)
class Breakdown:
    """The steps of all ranks, and the sum of each rank."""

    steps: tuple[StepBreakdown, ...]
    ranks: tuple[RankTime, ...]

    @property
    def step_s(self) -> float:
        """The mean time of a step over steps and ranks; a rank without steps counts where no other has any."""
        stepped = {(each.component, each.rank) for each in self.ranks if each.steps_found_by != "nothing"}
        times = [each.total_s for each in self.steps if not stepped or (each.component, each.rank) in stepped]
        return float(np.mean(times)) if times else 0.0

    @property
    def total_s(self) -> float:
        """The mean over ranks of the time of all steps."""
        return float(np.mean([each.total.total_s for each in self.ranks])) if self.ranks else 0.0


def breakdown(rank_activity: Sequence[Activity]) -> Breakdown:
    """Return where the time of each rank and step went."""
    steps: list[StepBreakdown] = []
    ranks: list[RankTime] = []
    for each in rank_activity:
        mine = _steps(each)
        steps += mine
        total = _sum(each, mine)
        count = len(mine)
        ranks.append(
            RankTime(
                each.component,
                each.rank,
                each.label,
                count,
                each.steps.found_by,
                total.total_s / count if count else 0.0,
                total,
                device_time(each),
            )
        )
    return Breakdown(tuple(steps), tuple(ranks))


def device_time(each: Activity) -> DeviceTime | None:
    """Return how busy the device of a rank was, None where it used none."""
    busy = each.device_busy
    if not len(busy):
        return None
    span = int(busy.ends[-1] - busy.starts[0])
    talk = each.communication & busy
    idle = span - busy.length_ns
    return DeviceTime(
        span * NS,
        idle * NS,
        each.compute.length_ns * NS,
        (span - idle - each.compute.length_ns) * NS,
        talk.length_ns * NS,
        (talk & each.compute).length_ns * NS,
    )


def _steps(each: Activity) -> list[StepBreakdown]:
    windows = each.steps
    hidden = each.communication & each.compute

    def within(part: Spans) -> NDArray[np.int64]:
        return part.within(windows.starts, windows.ends)

    total = windows.ends - windows.starts
    parts = {part: within(each.parts[part]) for part in PARTS}
    idle = total - np.sum(list(parts.values()), axis=0)
    columns = [total, *parts.values(), idle, within(each.communication), within(hidden), within(each.sync)]
    seconds = (np.stack(columns, axis=1) * NS).tolist()
    return [
        StepBreakdown(each.component, each.rank, number, start, *values)
        for number, start, values in zip(windows.numbers.tolist(), windows.starts.tolist(), seconds, strict=True)
    ]


_SUMMED = (
    "total_s",
    "compute_s",
    "exposed_communication_s",
    "exchange_s",
    "copies_s",
    "checkpoint_s",
    "input_s",
    "launch_s",
    "idle_s",
    "communication_s",
    "overlap_s",
    "sync_s",
)


def _sum(each: Activity, steps: Sequence[StepBreakdown]) -> StepBreakdown:
    sums = {name: sum(getattr(step, name) for step in steps) for name in _SUMMED}
    return StepBreakdown(each.component, each.rank, -1, each.start_ns, **sums)
