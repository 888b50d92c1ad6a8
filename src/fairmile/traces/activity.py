"""What each rank was doing at every moment: sets of intervals that all analyses share, and the windows of its steps.

The parts of a rank's time exclude each other, in the order of `PARTS`: what happens while it computes costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.events import ON_DEVICE, Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, nothing, one, spans, union

PARTS = ("compute", "communication", "exchange", "copies", "checkpoint", "input", "launch")
"""The parts in their order; `communication` among them is the exposed one; what is left of a step is idle."""

_TORCH = re.compile(r"aten::")
_OPERATOR = re.compile(r"::|Backward\d*$|CompiledFunction|Torch-Compiled Region|triton_|^detach$")
_ISSUES = re.compile(r"^(c10d::|c10d_functional::|record_param_comms)")
_SAVES = re.compile(r"checkpoint|torch\.save|serialization.*save|save_state|async_save|\bsave\b", re.IGNORECASE)
_WRITES = re.compile(r"write|dump", re.IGNORECASE)
_RECOMPUTES = re.compile(r"CheckpointFunction|utils[./]checkpoint|_CheckpointFrame")  # activations, no files
_LOADS_STEP = re.compile(r"DataLoader.*__next__|loader.*next|^next_batch$", re.IGNORECASE)
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_NUMBER = re.compile(r"[#\s_-]*\d+$")
_TALKS = (EventKind.EXCHANGE, EventKind.COLLECTIVE, EventKind.P2P)
_FINER = 0.5  # of the time of frames that the blocks within them must cover to be taken instead of them


@dataclass(frozen=True, eq=False)
class Steps:
    """The windows of the iterations of one rank; `numbers` are theirs, -1 where the whole trace is one window."""

    numbers: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    found_by: str = "the trace"

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False)
class Activity:
    """One rank: its work as sets of moments. Sets may overlap each other, `parts` do not."""

    component: str
    rank: int
    rows: Array
    has_device: bool
    start_ns: int
    end_ns: int
    steps: Steps
    compute: Spans
    communication: Spans
    copies: Spans
    input: Spans
    checkpoint: Spans
    exchange: Spans
    host: Spans
    sync: Spans
    device_busy: Spans
    parts: dict[str, Spans]
    works_in_phases: bool = False  # nothing finer than its steps was recorded: they are its work

    @property
    def label(self) -> str:
        """How people name the rank."""
        return f"{self.component} {self.rank}" if self.component else f"rank {self.rank}"

    @property
    def idle(self) -> Spans:
        """When nothing is recorded."""
        return one(self.start_ns, self.end_ns) - union(list(self.parts.values()))


def activities(table: EventTable) -> list[Activity]:
    """Return what each rank was doing, in the order of components and ranks.

    A process of which only samples and marks are known, such as one that watches, is none; where there are no others,
    it is.
    """
    names = _Names(table.names)
    ranks = list(rows_by_rank(table))
    sampled = (EventKind.COUNTER, EventKind.MEMORY, EventKind.MARKER)
    working = [each for each in ranks if not np.isin(table.kind[each[2]], sampled).all()]
    return [_activity(table, names, component, rank, rows) for component, rank, rows in working or ranks]


def rows_by_rank(table: EventTable) -> Iterator[tuple[str, int, Array]]:
    """Yield component, rank and row numbers of each rank that has events."""
    if not len(table):
        return
    key = table.component.astype(np.int64) << 32 | table.rank.astype(np.int64)
    edges = np.flatnonzero(np.diff(key)) + 1
    pieces: dict[int, list[tuple[int, int]]] = {}
    for begin, end in pairwise([0, *edges.tolist(), len(key)]):
        pieces.setdefault(int(key[begin]), []).append((begin, end))
    for each in sorted(pieces):
        if len(pieces[each]) > 64:  # the rows of the ranks are mixed
            rows = np.flatnonzero(key == each)
        else:
            rows = np.concatenate([np.arange(begin, end) for begin, end in pieces[each]])
        yield table.components[each >> 32], int(np.int32(each & 0xFFFFFFFF)), rows


def on_device(table: EventTable, rows: Array) -> NDArray[np.bool_]:
    """Tell for each of the given rows whether it lies on a device."""
    flags = np.array([lane.on_device for lane in table.lanes] or [False], bool)
    return flags[table.lane[rows]]


def lanes_of(lane: Array) -> list[int]:
    """Return the lanes that occur, ascending."""
    return np.flatnonzero(np.bincount(lane)).tolist() if len(lane) else []


class _Names:
    """What the names of a table mean, one flag for each name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.operator = self._flags(names, _OPERATOR)
        self.torch = self._flags(names, _TORCH)
        self.issues = self._flags(names, _ISSUES)
        self.saves = self._flags(names, _SAVES) & ~self._flags(names, _RECOMPUTES)
        self.writes = self._flags(names, _WRITES)
        self.loads = self._flags(names, _LOADS_STEP)
        self.optimizer = self._flags(names, _OPTIMIZER)
        self.names = names

    @staticmethod
    def _flags(names: Sequence[str], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        return np.array([bool(pattern.search(name)) for name in names], bool)


def _activity(table: EventTable, names: _Names, component: str, rank: int, rows: Array) -> Activity:
    kind, name, lane = table.kind[rows], table.name[rows], table.lane[rows]
    start = table.start_ns[rows]
    end = np.maximum(start, table.end_ns[rows])  # an event cannot end before it began
    device = on_device(table, rows)
    timed = ~np.isin(kind, (EventKind.COUNTER, EventKind.MEMORY, EventKind.MARKER))
    first = int(start[timed].min()) if timed.any() else 0
    last = int(end[timed].max()) if timed.any() else 0

    def among(mask: Any) -> Spans:
        return spans(start[mask], end[mask])

    talks = (kind == EventKind.COLLECTIVE) | (kind == EventKind.P2P)
    kernels = (kind == EventKind.KERNEL) & device
    has_device = bool(kernels.any())
    copied = ((kind == EventKind.MEMCPY) | (kind == EventKind.MEMSET)) & (device if has_device else True)
    region = (kind == EventKind.REGION) & ~device
    saves = (names.saves[name] & (region | (kind == EventKind.IO))) | (names.writes[name] & (kind == EventKind.IO))
    loads = (kind == EventKind.IO) & ~saves & np.isin(lane, _main_lanes(kind, lane))
    communication, inputs = among(talks), among(loads)
    operators = region & names.operator[name] & ~names.issues[name] & ~saves
    is_torch = bool((region & names.torch[name]).any())
    work = operators if is_torch else region & ~saves
    phase = (kind == EventKind.PHASE) & ~device
    named = (region & ~(names.operator[name] & is_torch)) | phase
    blocks = region | phase | (kind == EventKind.LAUNCH)
    frame = _frames(lane, start, end, named, blocks, timed & ~device)
    works_in_phases = not has_device and not _is_within(among(phase), start, end, work & ~frame)
    phase &= works_in_phases
    if has_device:
        compute = among(kernels)
    else:
        recorded = work | phase
        if not is_torch and among(recorded & ~frame).length_ns > _FINER * among(recorded & frame).length_ns:
            work, phase = work & ~frame, phase & ~frame  # what lies within tells more
        breaks = talks | loads | saves | (kind == EventKind.SYNC) | (kind == EventKind.EXCHANGE) | copied
        # A step does not tell that its thread computes while another one communicates or waits.
        compute = _host_work(lane, start, end, work, breaks) | (among(phase) - among(breaks))
    issuing = (kind == EventKind.LAUNCH) | (region & ~frame & (has_device or is_torch))
    sync = among(kind == EventKind.SYNC)
    made = {
        "compute": compute,
        "communication": communication,
        "copies": among(copied),
        "input": inputs,
        "checkpoint": among(saves),
        "exchange": among(kind == EventKind.EXCHANGE),
        "host": among(issuing) - sync,
    }
    return Activity(
        component,
        rank,
        rows,
        has_device,
        first,
        last,
        _steps(table, names, rows, (first, last)),
        **made,
        sync=sync,
        device_busy=union([compute, communication, made["copies"]]) if has_device else nothing(),
        parts=_parts(made),
        works_in_phases=works_in_phases,
    )


def _is_within(outer: Spans, start: Array, end: Array, mask: Array) -> bool:
    """Tell whether any of the masked events lies within a set of moments."""
    inner = mask & (end > start)
    return bool((outer.within(start[inner], end[inner]) == end[inner] - start[inner]).any())


def _frames(lane: Array, start: Array, end: Array, named: Array, blocks: Array, events: Array) -> NDArray[np.bool_]:
    """Tell which named blocks are frames: they wrap all other events of their lane, among them other blocks.

    How long a block is does not matter: an operator of minutes is work, as is a block that wraps no other.
    """
    frame = np.zeros(len(lane), bool)
    for each in lanes_of(lane[named]):
        rows = np.flatnonzero((lane == each) & events)
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        reach = np.maximum.accumulate(end[rows][::-1])[::-1]  # the latest end from each row on
        inner = np.cumsum(blocks[rows][::-1])[::-1]  # how many blocks there are from each row on
        wraps = named[rows[:-1]] & (end[rows[:-1]] >= reach[1:]) & (inner[1:] > 0)
        outermost = int(np.argmin(wraps)) if not wraps.all() else len(wraps)
        frame[rows[:outermost]] = True
    return frame


def _main_lanes(kind: Array, lane: Array) -> Array:
    """Return the lanes where waiting for input stops the work: those that do anything but input, else all."""
    others = lanes_of(lane[~np.isin(kind, (EventKind.IO, EventKind.COUNTER, EventKind.MEMORY, EventKind.MARKER))])
    io = np.array(lanes_of(lane[kind == EventKind.IO]), np.int64)
    shared = np.intersect1d(io, others)
    return shared if len(shared) else io


def _host_work(lane: Array, start: Array, end: Array, work: Array, breaks: Array) -> Spans:
    """Return when the host computes: its regions without what they wait for in the same lane."""
    spans_of_host = []
    for each in lanes_of(lane[work]):
        here = lane == each
        mine, waits = here & work, here & breaks
        spans_of_host.append(spans(start[mine], end[mine]) - spans(start[waits], end[waits]))
    return union(spans_of_host)


def _parts(made: dict[str, Spans]) -> dict[str, Spans]:
    taken, parts = nothing(), {}
    for name in PARTS:
        whole = made["host" if name == "launch" else name]
        parts[name] = whole - taken
        taken = taken | whole
    return parts


def _steps(table: EventTable, names: _Names, rows: Array, whole: tuple[int, int]) -> Steps:
    kind, step = table.kind[rows], table.step[rows]
    phases = rows[(kind == EventKind.PHASE) & (step >= 0)]
    if len(phases):
        return _from_phases(table, phases, rows)
    host = ~on_device(table, rows)
    for flags, by, ends_step in ((names.loads, "the data loader", False), (names.optimizer, "the optimizer", True)):
        marks = rows[flags[table.name[rows]] & host & np.isin(kind, (EventKind.REGION, EventKind.IO))]
        if len(marks) > 1:
            at = np.sort((table.end_ns if ends_step else table.start_ns)[marks])
            edges = np.concatenate(([whole[0]], at)) if ends_step else at
            if not ends_step and whole[1] - at[-1] > 0.3 * float(np.median(np.diff(at))):
                edges = np.concatenate((at, [whole[1]]))
            return Steps(np.arange(len(edges) - 1), edges[:-1], edges[1:], by)
    return Steps(np.array([-1]), np.array([whole[0]]), np.array([whole[1]]), "nothing")


def _from_phases(table: EventTable, phases: Array, rows: Array) -> Steps:
    """Return the windows of the finest kind of phase, each once; a device may finish the last one later."""
    kinds: dict[str, list[int]] = {}
    stems = {int(each): _NUMBER.sub("", table.names[int(each)]) for each in np.unique(table.name[phases])}
    for row, far in zip(phases.tolist(), on_device(table, phases).tolist(), strict=True):
        kinds.setdefault(f"{int(far)}{stems[int(table.name[row])]}", []).append(row)
    host = {stem: places for stem, places in kinds.items() if stem[0] == "0"} or kinds
    chosen = np.array(max(host.values(), key=lambda places: (len(places), -int(table.duration_ns[places].sum()))))
    chosen = chosen[np.argsort(table.start_ns[chosen], kind="stable")]
    numbers, starts, ends = table.step[chosen], table.start_ns[chosen], table.end_ns[chosen].copy()
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    ends = np.maximum(ends, starts)
    last = rows[table.step[rows] == numbers[-1]]
    busy = last[on_device(table, last) & np.isin(table.kind[last], ON_DEVICE)]
    if len(busy):
        ends[-1] = max(int(ends[-1]), int(table.end_ns[busy].max()))
    return _with_talk_between(Steps(numbers.astype(np.int64), starts, ends), table, rows)


def _with_talk_between(steps: Steps, table: EventTable, rows: Array) -> Steps:
    """Return the steps with what the host sends or hands over behind each, and the first with what lies before it.

    It belongs to a step that is no further away than a step is long: what is further is not of the loop. Behind the
    last one, where no step follows, it counts for no longer than that either, or than what is usual behind the others.
    """
    near = int(np.median(steps.ends - steps.starts))
    talk = rows[np.isin(table.kind[rows], _TALKS) & ~on_device(table, rows)]
    begin, end = table.start_ns[talk], table.end_ns[talk]
    starts, ends = steps.starts.copy(), steps.ends.copy()
    before = (end <= starts[0]) & (end >= starts[0] - near)
    if before.any():
        starts[0] = max(int(begin[before].min()), int(starts[0]) - near)
    at = np.searchsorted(steps.starts, begin, side="right") - 1
    behind = np.flatnonzero((at >= 0) & (begin >= steps.ends[at]) & (begin <= steps.ends[at] + near))
    np.maximum.at(ends, at[behind], end[behind])
    ends[:-1] = np.minimum(ends[:-1], steps.starts[1:])
    usual = int(np.median((ends - steps.ends)[:-1])) if len(ends) > 1 else 0
    ends[-1] = min(int(ends[-1]), int(steps.ends[-1]) + max(near, usual))
    return Steps(steps.numbers, starts, ends, steps.found_by)
