"""How much memory a traced step takes on a device: its peak, what it consists of, and whether it fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size
from fairmile.costs.devices import Device
from fairmile.costs.steps import StepTrace
from fairmile.predict.memory.allocator import Allocator, DeviceFull
from fairmile.predict.memory.contexts import context_bytes, libraries, unmeasured_note
from fairmile.predict.memory.options import AllocatorOptions
from fairmile.predict.memory.schedule import WORKSPACE, BlockRequest, Schedule, schedule
from fairmile.predict.memory.workspaces import Workspaces

_PLURALS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "activation": "activations",
    "input": "inputs",
    "buffer": "buffers",
}
_POINTS = 400  # of a timeline


class MomentDict(TypedDict):
    """`Moment` as JSON holds it."""

    step: int
    phase: str
    op: str
    module: str


@dataclass(frozen=True)
class Moment:
    """When something happened: in which step, and what ran."""

    step: int  # -1 while the model was built
    phase: str
    op: str
    module: str


class MemoryPointDict(TypedDict):
    """`MemoryPoint` as JSON holds it."""

    step: int
    place: float
    phase: str
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class MemoryPoint:
    """Memory after an operator; `place` runs from 0 to 1 over the step."""

    step: int
    place: float
    phase: str
    allocated_bytes: int
    reserved_bytes: int


class SizeIntervalDict(TypedDict):
    """`SizeInterval` as JSON holds it."""

    low: int
    high: int | None  # None: not known, since all figures are lower bounds


@dataclass(frozen=True)
class SizeInterval:
    """A prediction interval."""

    low: int
    high: int


class MemoryAccountDict(TypedDict):
    """`MemoryAccount` as JSON holds it."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int
    allocated_span: SizeIntervalDict
    reserved_span: SizeIntervalDict
    device_span: SizeIntervalDict
    context_bytes: int
    breakdown: dict[str, int]
    by_module: dict[str, int]
    peak: MomentDict
    timeline: list[MemoryPointDict]
    device: str
    device_bytes: int
    fits: bool
    out_of_memory: str | None
    retries: int
    verified: bool
    notes: list[str]
    retries_per_step: int
    wanted_bytes: int
    stopped: str


@dataclass(frozen=True)
class MemoryAccount:
    """What a step takes; `breakdown` adds up to `device_used_bytes`, `by_module` to its activations.

    Where it fits only because unused segments are given back, all figures are those of the run that does so.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_used_bytes: int
    allocated_span: SizeInterval
    reserved_span: SizeInterval
    device_span: SizeInterval
    context_bytes: int
    breakdown: Mapping[str, int]
    by_module: Mapping[str, int]
    peak: Moment
    timeline: Sequence[MemoryPoint]
    device: str
    device_bytes: int
    fits: bool
    out_of_memory: str | None  # the sentence that the run would end with
    retries: int  # how often unused segments would have to be given back
    verified: bool  # whether the rules of this device were measured
    notes: Sequence[str]
    retries_per_step: int = 0  # of them, in each step once all is as it stays
    wanted_bytes: int = 0  # what the device would show as used if it had more room
    stopped: str = ""  # why a step was followed only to a point, where it was: then it takes all of this, or more

    @property
    def squeeze(self) -> str:
        """How it fits although it wants more than there is; nothing where it has room, or does not fit."""
        if not self.fits or not self.retries:
            return ""
        often = f"{self.retries_per_step} times per step" if self.retries_per_step > 1 else "once per step"
        if not self.retries_per_step:
            often = f"{self.retries} times" if self.retries > 1 else "once"
        return (
            f"only by returning unused segments to the device {often}, which takes time; "
            f"with more memory it would use {format_size(self.wanted_bytes)}"
        )


def account(
    trace: StepTrace,
    device: Device,
    options: AllocatorOptions | None = None,
    *,
    repeats: int = 10,
    limit_bytes: int | None = None,
) -> MemoryAccount:
    """Return what the steps of a trace take on a device; the last one is repeated until nothing changes any more.

    `limit_bytes` is what the device has, its own figure where None.
    """
    workspaces = Workspaces(device.architecture, device.multiprocessors)
    plan = schedule(trace, workspaces)
    context, context_known = context_bytes(device.slug, products=len(plan.products), networks=len(plan.networks))
    free = _Player(plan, options, None)
    free.play(repeats)
    reserved = free.allocator.peak_reserved_bytes
    limit = device.memory_bytes if limit_bytes is None else limit_bytes
    wanted, shown, retries, failure = reserved + context, free, (0, 0), None
    if wanted > limit:
        tight, failure = _squeeze(plan, options, repeats, max(0, limit - context))
        retries = tight.allocator.retries, tight.last_retries
        if failure is None:
            shown, reserved = tight, tight.allocator.peak_reserved_bytes
    peak_allocated = shown.allocator.peak_allocated_bytes
    part, index = shown.peak
    breakdown, modules = _breakdown(plan, shown, part, index)
    slack = reserved - sum(breakdown.values())
    notes = list(trace.notes)
    verified = workspaces.rules.verified and context_known
    if not verified:
        notes.append(unmeasured_note(device))
    if not plan.repeatable and trace.steps > 1:
        notes.append("memory differs after the last two steps, so the last step was not repeated")
    used = reserved + context
    errors = _errors(plan, verified)
    return MemoryAccount(
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=reserved,
        device_used_bytes=used,
        allocated_span=_span(peak_allocated, errors["allocated"]),
        reserved_span=_span(reserved, errors["reserved"]),
        device_span=_span(used, errors["reserved"]),
        context_bytes=context,
        breakdown={**breakdown, "slack": slack, "context": context},
        by_module=modules,
        peak=_moment(trace, plan, part, index),
        timeline=_timeline(trace, plan, shown),
        device=device.name,
        device_bytes=limit,
        fits=failure is None,
        out_of_memory=failure,
        retries=retries[0],
        verified=verified,
        notes=notes,
        retries_per_step=retries[1],
        wanted_bytes=wanted,
        stopped=trace.stopped,
    )


class _Player:
    """Plays a schedule against an allocator and remembers the course of the steps that were traced."""

    def __init__(self, plan: Schedule, options: AllocatorOptions | None, limit_bytes: int | None) -> None:
        self.plan = plan
        self.allocator = Allocator(options, limit_bytes=limit_bytes)
        self.peak = (0, 0)  # part and index of the request that reached the peak
        self.course: list[list[tuple[int, int]]] = []  # per part: allocated and reserved after each request
        self.last_retries = 0  # how often unused segments were given back in the last step that was played

    def play(self, repeats: int) -> None:
        for number, part in enumerate(self.plan.parts):
            self.course.append(self._part(number, part))
        last = len(self.plan.parts) - 1
        if last < 1 or not self.plan.repeatable:
            return
        seen = set()
        for _ in range(max(0, repeats - last)):
            for made, kept in self.plan.renamed:
                self.allocator.rename(made, kept)
            state = self.allocator.state()
            if state in seen:
                return
            seen.add(state)
            self._part(last, self.plan.parts[last])
        # The names that the schedule knows are those of its own last step.

    def _part(self, number: int, part: Sequence[BlockRequest]) -> list[tuple[int, int]]:
        allocator, course = self.allocator, []
        peak, before = allocator.peak_allocated_bytes, allocator.retries
        for index, request in enumerate(part):
            if request.size_bytes >= 0:
                allocator.allocate(request.key, request.size_bytes)
                if allocator.allocated_bytes > peak:
                    peak = allocator.allocated_bytes
                    self.peak = (number, index)
            else:
                allocator.free(request.key)
            course.append((allocator.allocated_bytes, allocator.reserved_bytes))
        self.last_retries = allocator.retries - before
        return course


def _squeeze(plan: Schedule, options: AllocatorOptions | None, repeats: int, limit: int) -> tuple[_Player, str | None]:
    """Play again with the memory there is: the course of it, and the sentence it ends with where it does not fit."""
    tight = _Player(plan, options, limit)
    try:
        tight.play(repeats)
    except DeviceFull as error:
        return tight, error.message
    return tight, None


def _breakdown(plan: Schedule, player: _Player, part: int, index: int) -> tuple[dict[str, int], dict[str, int]]:
    """Add up what was there at the peak by category, and activations by module."""
    rounded = player.allocator.rounded
    live: dict[int, int] = {}
    for number in range(part + 1):
        requests = plan.parts[number]
        for request in requests if number < part else requests[: index + 1]:
            if request.size_bytes >= 0:
                live[request.key] = rounded(request.size_bytes)
            else:
                live.pop(request.key, None)
    sums: dict[str, int] = dict.fromkeys((*_PLURALS.values(), "optimizer", "temporary", WORKSPACE), 0)
    modules: dict[str, int] = defaultdict(int)
    for key, size in live.items():
        category = plan.categories[key]
        sums[_PLURALS.get(category, category)] += size
        if category == "activation":
            modules[plan.modules[key]] += size
    return sums, dict(sorted(modules.items(), key=lambda each: -each[1]))


def _moment(trace: StepTrace, plan: Schedule, part: int, index: int) -> Moment:
    if part >= len(plan.parts) or index >= len(plan.parts[part]):
        return Moment(part - 1, "build", "", "")
    op = plan.parts[part][index].op
    if op < 0:
        return Moment(part - 1, "build" if part == 0 else "", "", "")
    call = trace.ops[op]
    return Moment(part - 1, call.phase, call.name, call.module)


def _timeline(trace: StepTrace, plan: Schedule, player: _Player) -> tuple[MemoryPoint, ...]:
    """The highest point of each stretch of the traced steps."""
    points = []
    steps = len(player.course) - 1
    for number, course in enumerate(player.course):
        if number == 0 or not course:
            continue
        stretch = max(1, -(-len(course) * steps // _POINTS))
        for start in range(0, len(course), stretch):
            part = course[start : start + stretch]
            best = max(range(len(part)), key=lambda each: part[each][0])
            op = plan.parts[number][start + best].op
            phase = trace.ops[op].phase if op >= 0 else ""
            points.append(MemoryPoint(number - 1, (start + best) / len(course), phase, *part[best]))
    return tuple(points)


def _span(value: int, share: float) -> SizeInterval:
    return SizeInterval(int(value * (1 - share)), int(value * (1 + share)))


def _errors(plan: Schedule, verified: bool) -> dict[str, float]:
    """Return how far the figures may be off, as shares of them."""
    kind = "unmeasured" if not verified else "neighbours" if plan.has_neighbours else "exact"
    errors: dict[str, float] = libraries()["errors"][kind]
    return errors
