"""A trace as work that can be timed again: a line for each rank, and the calls in which ranks wait for each other.

A line has places where it issues a call and places where it goes on only when a call is done. Work between these
places is kept as measured, and a call begins when all who must have come have come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.traces.activity import Activity, on_device
from fairmile.traces.breakdown import NS
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, nothing, spans, union
from fairmile.traces.matching import ALL_TO_ONE, ONE_TO_ALL, Meetings
from fairmile.traces.waiting import Waiting

ISSUE, JOIN, MARK = 0, 1, 2  # kinds of places
_WAKES_NS = 200_000  # within which a host goes on after what it waited for
_BUSY = ("compute", "input", "copies", "checkpoint", "exchange")


class WorkLine(NamedTuple):
    """The places of one rank in their order: `work[i]` nanoseconds lie between place i - 1 and place i."""

    begin: int
    kind: NDArray[np.int64]
    call: NDArray[np.int64]  # which call, or which step ends (even: begins) here
    column: NDArray[np.int64]
    work: NDArray[np.float64]
    times: NDArray[np.int64]  # when it was in the trace
    blocked: Spans


@dataclass(frozen=True)
class WorkCall:
    """A call: what each column takes once those it waits for have come, and the call before it in the same lane."""

    meetings: Meetings
    row: int
    taken: tuple[float, ...]
    waits_for: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, int] | None, ...]
    begun: tuple[float, ...] = ()  # after how long it began once it could


@dataclass(frozen=True)
class WorkPlan:
    lines: list[WorkLine]
    calls: list[WorkCall]


def plan_work(table: EventTable, rank_activity: Sequence[Activity], waits: Waiting) -> WorkPlan:
    calls: list[WorkCall] = []
    places: list[list[tuple[int, int, int, int]]] = [
        [] for _ in rank_activity
    ]  # ready, leave, call, column of each rank
    lanes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    issued = [_issued(table, each) for each in rank_activity]
    alone = [each.communication - union([getattr(each, part) for part in _BUSY]) for each in rank_activity]
    for each in waits.calls:
        meetings = _as_seen(each.meetings, rank_activity, alone)
        lane = table.lane[meetings.rows]
        for row in range(len(meetings)):
            number = len(calls)
            calls.append(_call(meetings, row))
            for column, member in enumerate(meetings.members):
                enter, leave = int(meetings.enter[row, column]), int(meetings.leave[row, column])
                ready = min(enter, issued[member].get(int(meetings.rows[row, column]), enter))
                places[member].append((ready, leave, number, column))
                lanes.setdefault((member, int(lane[row, column])), []).append((enter, number, column))
    before: dict[tuple[int, int], tuple[int, int]] = {}
    for entries in lanes.values():
        entries.sort()
        for (_, number, column), (_, earlier, other) in zip(entries[1:], entries, strict=False):
            before[(number, column)] = (earlier, other)
    known = {(number, column): at for mine in places for at, _, number, column in mine}
    calls = [_queued(call, number, calls, before, known) for number, call in enumerate(calls)]
    # Of a rank without steps the whole is one window, which is no step beside those of others.
    stepped = any(each.steps.found_by != "nothing" for each in rank_activity)
    lines = [
        _line(table, each, mine, idle, has_steps=not stepped or each.steps.found_by != "nothing")
        for each, mine, idle in zip(rank_activity, places, alone, strict=True)
    ]
    return WorkPlan(lines, calls)


def _as_seen(meetings: Meetings, rank_activity: Sequence[Activity], alone: Sequence[Spans]) -> Meetings:
    """Return the calls with the moments at which the program went on, where a thread told of their end only later."""
    leave = meetings.leave.copy()
    first = np.minimum(meetings.enter.max(axis=1), leave.min(axis=1))  # before all have come no call is done
    for column, member in enumerate(meetings.members):
        stood = alone[member]
        if rank_activity[member].has_device or not len(stood):
            continue
        at = np.minimum(np.searchsorted(stood.ends, first), len(stood) - 1)
        went_on, since = stood.ends[at], stood.starts[at]
        early = (went_on >= first) & (went_on < leave[:, column]) & (since < first) & (went_on - since > _WAKES_NS)
        leave[early, column] = went_on[early]
    return replace(meetings, leave=leave)


def _queued(
    call: WorkCall,
    number: int,
    calls: Sequence[WorkCall],
    before: Mapping[tuple[int, int], tuple[int, int]],
    ready: Mapping[tuple[int, int], int],
) -> WorkCall:
    """Return a call with the one before it in each lane, how long it took to begin once it could, and to be done then.

    Calls of one lane come one behind the other: what a call waited for the one before it is no time of its own.
    """
    meetings, row = call.meetings, call.row
    begun, could = [], []
    for column in range(len(call.taken)):
        free = ready[(number, column)]
        if earlier := before.get((number, column)):
            other = calls[earlier[0]]
            free = max(free, int(other.meetings.leave[other.row, earlier[1]]))
        begun.append(float(max(0, int(meetings.enter[row, column]) - free)))
        could.append(max(free, int(meetings.enter[row, column])))
    taken = []
    for column, waits_for in enumerate(call.waits_for):
        come = max(could[other] for other in (column, *waits_for))
        leave = int(meetings.leave[row, column])
        began = min(max(come, int(meetings.began[row])), leave)
        ended = min(max(began, int(meetings.ended[row])), leave)
        taken.append(float(max(0, ended - began)))
        begun[column] += max(0, leave - come) - taken[-1]  # it queued, or its data was copied
    links = tuple(before.get((number, column)) for column in range(len(begun)))
    return replace(call, taken=tuple(taken), before=links, begun=tuple(begun))


def _issued(table: EventTable, each: Activity) -> dict[int, int]:
    """Return when calls could have begun that began later, as they queued behind others; by their rows.

    On a device a call can begin when the kernels are done that were launched before it, on the host when the program
    asks for it.
    """
    talks = each.rows[table.kind[each.rows] == EventKind.COLLECTIVE]
    far = on_device(table, talks)
    return _issued_on_device(table, each, talks[far]) | _issued_on_host(table, each, talks[~far])


def _issued_on_device(table: EventTable, each: Activity, talks: Array) -> dict[int, int]:
    launches = each.rows[(table.kind[each.rows] == EventKind.LAUNCH) & (table.correlation[each.rows] >= 0)]
    kernels = each.rows[(table.kind[each.rows] == EventKind.KERNEL) & (table.correlation[each.rows] >= 0)]
    if not len(talks) or not len(launches) or not len(kernels):
        return {}
    launches = launches[np.argsort(table.correlation[launches], kind="stable")]
    known, starts = table.correlation[launches], table.start_ns[launches]

    def launched(rows: Array) -> tuple[Array, NDArray[np.int64]]:
        at = np.minimum(np.searchsorted(known, table.correlation[rows]), len(known) - 1)
        real = known[at] == table.correlation[rows]
        return rows[real], starts[at[real]]

    kernels, at = launched(kernels)
    order = np.argsort(at, kind="stable")
    at, ends = at[order], np.maximum.accumulate(table.end_ns[kernels][order])
    talks, asked = launched(talks)
    place = np.searchsorted(at, asked) - 1
    ready = np.where(place >= 0, np.maximum(asked, ends[np.maximum(place, 0)] if len(ends) else asked), asked)
    return dict(zip(talks.tolist(), ready.tolist(), strict=True))


def _issued_on_host(table: EventTable, each: Activity, talks: Array) -> dict[int, int]:
    asks = np.array([name.startswith("c10d::") for name in table.names], bool)
    calls = each.rows[asks[table.name[each.rows]] & (table.kind[each.rows] != EventKind.COLLECTIVE)]
    if len(calls) != len(talks) or not len(talks):
        return {}
    numbered = bool((table.sequence[talks] >= 0).all())
    talks = talks[np.argsort(table.sequence[talks] if numbered else table.start_ns[talks], kind="stable")]
    return dict(zip(talks.tolist(), np.sort(table.start_ns[calls]).tolist(), strict=True))


def _call(meetings: Meetings, row: int) -> WorkCall:
    enter, leave = meetings.enter[row].tolist(), meetings.leave[row].tolist()
    columns, root, operation = range(len(enter)), int(meetings.root[row]), meetings.operation[row]
    everyone = tuple(columns)
    waits_for: list[tuple[int, ...]]
    if operation == "point_to_point":
        # A sender that left before the receiver came did not wait for it.
        waits_for = [(0, 1) if leave[0] > enter[1] else (0,), (0, 1)]
    elif root >= 0 and operation in ONE_TO_ALL:
        waits_for = [(column, root) for column in columns]
    elif root >= 0 and operation in ALL_TO_ONE:
        waits_for = [everyone if column == root else (column,) for column in columns]
    else:
        waits_for = [everyone for _ in columns]
    taken = [float(max(0, leave[column] - max(enter[other] for other in waits_for[column]))) for column in columns]
    return WorkCall(meetings, row, tuple(taken), tuple(waits_for), ())


def _line(
    table: EventTable,
    each: Activity,
    places: Sequence[tuple[int, int, int, int]],
    alone: Spans,
    *,
    has_steps: bool,
) -> WorkLine:
    stops = _stops(alone, [leave for _, leave, _, _ in places])
    ends = each.steps.ends
    optimizer = _optimizer_starts(table, each)
    entries: list[tuple[int, int, int, int, int]] = []
    for enter, leave, call, column in places:
        entries.append((enter, ISSUE, call, column, enter))
        entries.append((_joined_at(leave, stops, optimizer, ends), JOIN, call, column, leave))
    marked = zip(each.steps.starts.tolist(), ends.tolist(), strict=True) if has_steps else ()
    for step, (start, end) in enumerate(marked):
        entries.append((start, MARK, 2 * step, 0, start))
        entries.append((end, MARK, 2 * step + 1, 0, end))
    times = np.array([entry[0] for entry in entries], np.int64)
    begin = min(each.start_ns, int(times.min(initial=each.start_ns)))
    progress = times - begin - stops.before(times)
    # Of places without work between them, calls are issued before any is waited for.
    kinds, moments = np.array([(entry[1], entry[4]) for entry in entries], np.int64).reshape(-1, 2).T
    order = np.lexsort((moments, kinds, progress))
    table_ = np.array([entries[at][1:4] for at in order.tolist()], np.int64).reshape(-1, 3)
    work = np.diff(progress[order], prepend=0).astype(np.float64)
    return WorkLine(begin, table_[:, 0], table_[:, 1], table_[:, 2], work, times[order], stops)


def _stops(alone: Spans, leaves: Sequence[int]) -> Spans:
    """Return when a rank stood still until a call was done: it did nothing, a call ended, and soon it went on."""
    if not len(alone) or not leaves:
        return nothing()
    known = np.sort(np.array(leaves, np.int64))
    last = known[np.maximum(np.searchsorted(known, alone.ends, side="right") - 1, 0)]
    soon = np.maximum(_WAKES_NS, (alone.ends - alone.starts) // 10)
    real = (last > alone.starts) & (last <= alone.ends) & (alone.ends - last <= soon)
    return spans(alone.starts[real], last[real])


def _joined_at(leave: int, stops: Spans, optimizer: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return where a rank needs a call done: where it stood still for it, else the next place where it would have."""
    at = int(np.searchsorted(ends, leave, side="left"))
    last = int(ends[at]) if at < len(ends) else leave
    at = int(np.searchsorted(stops.ends, leave, side="left"))
    if at < len(stops) and stops.starts[at] < leave:
        return int(stops.ends[at])
    candidates = [last]
    if at < len(stops):
        candidates.append(int(stops.ends[at]))
    at = int(np.searchsorted(optimizer, leave, side="left"))
    if at < len(optimizer):
        candidates.append(int(optimizer[at]))
    return max(leave, min(candidates))


def _optimizer_starts(table: EventTable, each: Activity) -> NDArray[np.int64]:
    named = np.array([name.startswith("Optimizer.step#") for name in table.names], bool)
    rows = each.rows[named[table.name[each.rows]] & (table.kind[each.rows] == EventKind.REGION)]
    starts: NDArray[np.int64] = np.sort(table.start_ns[rows])
    return starts


def mean_step_s(plan: WorkPlan) -> float:
    """Return the mean time of a step when the plan is run."""
    lengths = [end - begin for marks in _run(plan) for begin, end in zip(marks[::2], marks[1::2], strict=True)]
    return float(np.mean(lengths)) * NS if lengths else 0.0


def _run(plan: WorkPlan) -> list[list[float]]:
    """Run all lines as far as the calls they wait for allow, and return when each reached its marks."""
    state = _State(plan)
    waiting_lines = list(range(len(plan.lines)))
    while waiting_lines:
        moved = [at for at in waiting_lines if state.advance(at)]
        unfinished = [at for at in waiting_lines if not state.done(at)]
        if not moved and unfinished:
            state.force(unfinished)
        waiting_lines = unfinished
    return state.marks


class _State:
    """Where each line stands, and which calls are done."""

    def __init__(self, plan: WorkPlan) -> None:
        self._calls = plan.calls
        self._lines = [
            list(zip(line.kind.tolist(), line.call.tolist(), line.column.tolist(), line.work.tolist(), strict=True))
            for line in plan.lines
        ]
        self._at = [0] * len(plan.lines)
        self._now = [float(line.begin) for line in plan.lines]
        self._worked = [False] * len(plan.lines)
        self._ready: list[list[float | None]] = [[None] * len(call.taken) for call in plan.calls]
        self._start: list[list[float | None]] = [[None] * len(call.taken) for call in plan.calls]
        self._finish: list[list[float | None]] = [[None] * len(call.taken) for call in plan.calls]
        self._missing = [len(call.taken) for call in plan.calls]
        self._together = [all(len(each) == len(call.taken) for each in call.waits_for) for call in plan.calls]
        self._after: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, call in enumerate(plan.calls):
            for column, earlier in enumerate(call.before):
                if earlier is not None:
                    self._after.setdefault(earlier, []).append((number, column))
        self.marks: list[list[float]] = [[0.0] * int((line.kind == MARK).sum()) for line in plan.lines]

    def done(self, line: int) -> bool:
        return self._at[line] >= len(self._lines[line])

    def advance(self, line: int) -> bool:
        """Run a line until it must wait; tell whether it came further."""
        places, begin = self._lines[line], self._at[line]
        while self._at[line] < len(places):
            kind, call, column, work = places[self._at[line]]
            if not self._worked[line]:
                self._now[line] += work
                self._worked[line] = True
            if kind == JOIN:
                finish = self._finish[call][column]
                if finish is None:
                    break
                self._now[line] = max(self._now[line], finish)
            elif kind == ISSUE:
                self._ready[call][column] = self._now[line]
                self._settle(call, column)
            else:
                self.marks[line][call] = self._now[line]
            self._at[line] += 1
            self._worked[line] = False
        return self._at[line] > begin

    def force(self, lines: Sequence[int]) -> None:
        """Let the line that is furthest behind go on without its call: the trace lacks what would have ended it."""
        line = min(lines, key=lambda each: self._now[each])
        _, call, column, _ = self._lines[line][self._at[line]]
        self._finish[call][column] = self._now[line]
        for follower in self._after.get((call, column), ()):
            self._settle(*follower)

    def _settle(self, call: int, column: int) -> None:
        """Begin a call on a rank if its lane is free, end it where all have come, and go on with what comes after."""
        todo = [(call, column)]
        while todo:
            call, column = todo.pop()
            earlier = self._calls[call].before[column]
            free = self._finish[earlier[0]][earlier[1]] if earlier is not None else 0.0
            ready = self._ready[call][column]
            if ready is None or free is None or self._start[call][column] is not None:
                continue
            self._start[call][column] = max(ready, free) + self._calls[call].begun[column]
            starts = self._start[call]
            self._missing[call] -= 1
            if self._together[call] and self._missing[call]:
                continue  # all wait for all, and not all are there
            latest = max(each or 0.0 for each in starts) if self._together[call] else 0.0
            for other, needed in enumerate(self._calls[call].waits_for):
                if self._finish[call][other] is not None:
                    continue
                come = latest
                if not self._together[call]:
                    known = [starts[each] for each in (other, *needed)]
                    if any(each is None for each in known):
                        continue
                    come = max(each for each in known if each is not None)
                self._finish[call][other] = come + self._calls[call].taken[other]
                todo += self._after.get((call, other), ())
