"""The same trace under other conditions: another network, algorithm, number of ranks, no straggler, a faster operator.

Each rank is a line of work with places where it issues a call and places where it goes on only when a call is done.
Work between these places is kept as measured, calls begin when all who must have come have come: what was hidden
behind compute stays hidden as long as it is short enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.costs.collectives.formulas import bus_factor, cost
from fairmile.costs.collectives.links import Link, Topology
from fairmile.traces.activity import Activity, activities, on_device
from fairmile.traces.breakdown import NS, breakdown
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, nothing, spans, union
from fairmile.traces.matching import ALL_TO_ONE, ONE_TO_ALL, Meetings
from fairmile.traces.waiting import TransferModel, Waiting, modelled_s, waiting

_ISSUE, _JOIN, _MARK = 0, 1, 2
_MOST_PLACES = 5_000_000  # of all ranks together: about a minute
_WAKES_NS = 200_000  # within which a host goes on after what it waited for
_BUSY = ("compute", "input", "copies", "checkpoint", "exchange")


@dataclass(frozen=True)
class AlgorithmModel:
    """Times of collectives with named algorithms, such as {"all_reduce": "ring"}, over a link or a topology."""

    network: Link | Topology
    algorithms: Mapping[str, str]

    def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
        """Return the seconds of one call; UsageError where no algorithm is named for it."""
        if collective not in self.algorithms:
            raise UsageError(f"no algorithm is given for {collective}")
        network = self.network.spread(ranks, nodes) if isinstance(self.network, Topology) else self.network
        return cost(collective, self.algorithms[collective], size_bytes, ranks, network)


@dataclass(frozen=True)
class WhatIf:
    """What is to be different; as it stands, nothing.

    With `model` calls take the time it says; with `measured_by`, the model of the machine that was traced, they change
    as the two models differ, which keeps what the machine is slower than its model. `bandwidth` and `latency` are
    factors of the network as traced; `transfers` are factors of the time of the calls of one (group, operation, size
    in bytes). `faster` names operators (`*` for any letters) and by how much.
    """

    model: TransferModel | None = None
    measured_by: TransferModel | None = None
    bandwidth: float = 1.0
    latency: float = 1.0
    transfers: Mapping[tuple[str, str, int], float] = field(default_factory=dict)
    ranks: int | None = None
    without_straggler: int | tuple[str, int] | None = None  # a rank, or component and rank
    faster: Mapping[str, float] = field(default_factory=dict)
    without_input_wait: bool = False

    def __post_init__(self) -> None:
        for name, value in {"bandwidth": self.bandwidth, **self.faster}.items():
            if not 0 < value < np.inf:
                raise UsageError(f"{name} cannot change by a factor of {value:g}", hint="2 means twice as fast")
        if not 0 <= self.latency < np.inf:
            raise UsageError(f"latency cannot change by a factor of {self.latency:g}")


class ReplayedDict(TypedDict):
    """`Replayed` as JSON holds it."""

    step_s: float
    measured_step_s: float
    unchanged_step_s: float
    ranks: int
    notes: list[str]
    speedup: float
    replay_error: float


@dataclass(frozen=True, repr=False)
class Replayed(Result):
    """What a change does to the mean time of a step; `unchanged_step_s` is what the replay says without it."""

    step_s: float
    measured_step_s: float
    unchanged_step_s: float
    ranks: int
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times faster a step would be."""
        return self.measured_step_s / self.step_s if self.step_s else 1.0

    @property
    def error(self) -> float:
        """By what share the replay without a change misses the measured time."""
        return abs(self.unchanged_step_s / self.measured_step_s - 1) if self.measured_step_s else 0.0

    def to_dict(self) -> ReplayedDict:
        return {
            "step_s": self.step_s,
            "measured_step_s": self.measured_step_s,
            "unchanged_step_s": self.unchanged_step_s,
            "ranks": self.ranks,
            "notes": list(self.notes),
            "speedup": self.speedup,
            "replay_error": self.error,
        }

    def summary(self) -> str:
        before, after = format_duration(self.measured_step_s), format_duration(self.step_s)
        return f"{after} a step instead of {before}, {self.speedup:.2f} times as fast"


class Replay:
    """A trace that can be run again; build it once and ask for as many changes as wanted."""

    def __init__(
        self, table: EventTable, rank_activity: Sequence[Activity] | None = None, waits: Waiting | None = None
    ) -> None:
        self._table = table
        self._activity = list(rank_activity) if rank_activity is not None else activities(table)
        self._waits = waits or waiting(table, self._activity)
        if not self._activity:
            raise NotFound("the trace has no events to replay")
        self._plan = _plan(table, self._activity, self._waits)
        self._measured_s = breakdown(self._activity).step_s
        stepped = [each for each in self._activity if each.steps.found_by != "nothing"] or self._activity
        self._steps = sum(len(each.steps) for each in stepped) / len(stepped)
        self._unchanged_s = _step_s(self._plan)

    @property
    def places(self) -> int:
        """How many places a run goes through: what it costs."""
        return sum(len(line.kind) for line in self._plan.lines)

    def gain_s(self, change: WhatIf) -> float:
        """Return how many seconds of the whole trace a change would save, mean over ranks."""
        replayed = self.run(change)
        return max(0.0, replayed.measured_step_s - replayed.step_s) * self._steps

    def run(self, change: WhatIf | None = None) -> Replayed:
        """Return the time of a step under a change."""
        change = change or WhatIf()
        plan, notes = self._plan, list[str]()
        plan = _with_work(plan, self._table, self._activity, change, notes)
        plan = _with_transfers(plan, change, notes)
        if change.ranks is not None:
            plan = _with_ranks(plan, change.ranks, change, notes)
        scale = self._measured_s / self._unchanged_s if self._unchanged_s > 0 else 1.0
        return Replayed(
            _step_s(plan) * scale, self._measured_s, self._unchanged_s, len(plan.lines), tuple(dict.fromkeys(notes))
        )


class _Line(NamedTuple):
    """The places of one rank in their order: `work[i]` nanoseconds lie between place i - 1 and place i."""

    begin: int
    kind: NDArray[np.int64]
    call: NDArray[np.int64]  # which call, or which step ends (even: begins) here
    column: NDArray[np.int64]
    work: NDArray[np.float64]
    times: NDArray[np.int64]  # when it was in the trace
    blocked: Spans


@dataclass(frozen=True)
class _Call:
    """A call: what each column takes once those it waits for have come, and the call before it in the same lane."""

    meetings: Meetings
    row: int
    taken: tuple[float, ...]
    waits_for: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, int] | None, ...]
    begun: tuple[float, ...] = ()  # after how long it began once it could


@dataclass(frozen=True)
class _Plan:
    lines: list[_Line]
    calls: list[_Call]


def _plan(table: EventTable, rank_activity: Sequence[Activity], waits: Waiting) -> _Plan:
    calls: list[_Call] = []
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
    return _Plan(lines, calls)


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
    call: _Call,
    number: int,
    calls: Sequence[_Call],
    before: Mapping[tuple[int, int], tuple[int, int]],
    ready: Mapping[tuple[int, int], int],
) -> _Call:
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


def _call(meetings: Meetings, row: int) -> _Call:
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
    return _Call(meetings, row, tuple(taken), tuple(waits_for), ())


def _line(
    table: EventTable,
    each: Activity,
    places: Sequence[tuple[int, int, int, int]],
    alone: Spans,
    *,
    has_steps: bool,
) -> _Line:
    stops = _stops(alone, [leave for _, leave, _, _ in places])
    ends = each.steps.ends
    optimizer = _optimizer_starts(table, each)
    entries: list[tuple[int, int, int, int, int]] = []
    for enter, leave, call, column in places:
        entries.append((enter, _ISSUE, call, column, enter))
        entries.append((_joined_at(leave, stops, optimizer, ends), _JOIN, call, column, leave))
    marked = zip(each.steps.starts.tolist(), ends.tolist(), strict=True) if has_steps else ()
    for step, (start, end) in enumerate(marked):
        entries.append((start, _MARK, 2 * step, 0, start))
        entries.append((end, _MARK, 2 * step + 1, 0, end))
    times = np.array([entry[0] for entry in entries], np.int64)
    begin = min(each.start_ns, int(times.min(initial=each.start_ns)))
    progress = times - begin - stops.before(times)
    # Of places without work between them, calls are issued before any is waited for.
    kinds, moments = np.array([(entry[1], entry[4]) for entry in entries], np.int64).reshape(-1, 2).T
    order = np.lexsort((moments, kinds, progress))
    table_ = np.array([entries[at][1:4] for at in order.tolist()], np.int64).reshape(-1, 3)
    work = np.diff(progress[order], prepend=0).astype(np.float64)
    return _Line(begin, table_[:, 0], table_[:, 1], table_[:, 2], work, times[order], stops)


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


def _step_s(plan: _Plan) -> float:
    """Return the mean time of a step when the plan is run."""
    lengths = [end - begin for marks in _run(plan) for begin, end in zip(marks[::2], marks[1::2], strict=True)]
    return float(np.mean(lengths)) * NS if lengths else 0.0


def _run(plan: _Plan) -> list[list[float]]:
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

    def __init__(self, plan: _Plan) -> None:
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
        self.marks: list[list[float]] = [[0.0] * int((line.kind == _MARK).sum()) for line in plan.lines]

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
            if kind == _JOIN:
                finish = self._finish[call][column]
                if finish is None:
                    break
                self._now[line] = max(self._now[line], finish)
            elif kind == _ISSUE:
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


def _with_work(
    plan: _Plan, table: EventTable, rank_activity: Sequence[Activity], change: WhatIf, notes: list[str]
) -> _Plan:
    """Return the plan with less work where operators are faster, input is there at once, or a rank is no straggler."""
    lines = list(plan.lines)
    for pattern, factor in change.faster.items():
        hit = np.array([fnmatchcase(name, pattern) for name in table.names], bool)
        if not hit.any():
            raise NotFound(f"no event matches {pattern!r}", hint="`*` matches any text")
        for at, each in enumerate(rank_activity):
            rows = each.rows[hit[table.name[each.rows]]]
            if each.has_device:
                rows = rows[on_device(table, rows)]
            ran = spans(table.start_ns[rows], table.end_ns[rows]) - lines[at].blocked
            lines[at] = _less(lines[at], ran, 1 - 1 / factor)
    if change.without_input_wait:
        lines = [
            _less(line, each.parts["input"] - line.blocked, 1.0)
            for line, each in zip(lines, rank_activity, strict=True)
        ]
    if change.without_straggler is not None:
        lines = _like_the_others(lines, rank_activity, change.without_straggler, notes)
    return replace(plan, lines=lines)


def _less(line: _Line, ran: Spans, share: float) -> _Line:
    """Return a line with a share of the given moments taken away."""
    before = ran.before(np.concatenate(([line.begin], line.times)))
    # Places are in order of progress; where two have none between them their times may be the other way round.
    spent = np.diff(np.maximum.accumulate(before))
    return line._replace(work=np.maximum(0.0, line.work - share * spent))


def _like_the_others(
    lines: list[_Line], rank_activity: Sequence[Activity], straggler: int | tuple[str, int], notes: list[str]
) -> list[_Line]:
    component, rank = straggler if isinstance(straggler, tuple) else (None, straggler)
    place = next(
        (at for at, each in enumerate(rank_activity) if each.rank == rank and component in (None, each.component)), None
    )
    if place is None:
        raise NotFound(
            f"the trace has no rank {rank}", hint=f"it has {', '.join(each.label for each in rank_activity)}"
        )
    part = rank_activity[place].component
    others = [line for at, line in enumerate(lines) if at != place and rank_activity[at].component == part]
    if not others:
        raise UsageError("the trace has one rank, so there is no other to compare it with")
    mine = lines[place]
    keys = _progress(mine)
    known = [progress for progress in map(_progress, others) if keys.keys() <= progress.keys()]
    if known:
        at = np.array(list(keys.values()))
        to = np.median([[progress[key] for key in keys] for progress in known], axis=0)
        order = np.lexsort((to, at))
        places = np.concatenate(([0.0], np.interp(np.cumsum(mine.work), at[order], np.maximum.accumulate(to[order]))))
        work = np.diff(places)
    else:
        notes.append("other ranks make different calls: the straggler's work was scaled as a whole")
        work = mine.work * float(np.median([line.work.sum() for line in others]) / max(1.0, mine.work.sum()))
    begin = min(mine.begin, int(np.median([line.begin for line in others])))  # it came late to the trace as well
    return [line._replace(work=work, begin=begin) if line is mine else line for line in lines]


def _progress(line: _Line) -> dict[tuple[int, int], float]:
    """Return how much work lies before each call is issued and before each step begins and ends."""
    keys = zip(line.kind.tolist(), line.call.tolist(), np.cumsum(line.work).tolist(), strict=True)
    return {(kind, call): progress for kind, call, progress in keys if kind != _JOIN}


def _with_transfers(plan: _Plan, change: WhatIf, notes: list[str]) -> _Plan:
    if change.transfers:
        plan = replace(plan, calls=[_as_recorded(call, change.transfers) for call in plan.calls])
    if change.model is None and change.bandwidth == 1 and change.latency == 1:
        return plan
    floors = _floors(plan.calls)
    return replace(plan, calls=[_other_transfer(call, change, floors, notes) for call in plan.calls])


def _as_recorded(call: _Call, transfers: Mapping[tuple[str, str, int], float]) -> _Call:
    meetings, row = call.meetings, call.row
    factor = transfers.get((meetings.group, meetings.operation[row], int(meetings.bytes[row])), 1.0)
    return call if factor == 1 else replace(call, taken=tuple(each * factor for each in call.taken))


def _floors(calls: Sequence[_Call]) -> dict[tuple[int, str], float]:
    """Return for each group and operation what a call of no size would take, by a line through the least times."""
    least: dict[tuple[int, str], dict[int, float]] = {}
    for call in calls:
        size = int(call.meetings.bytes[call.row])
        sizes = least.setdefault((id(call.meetings), call.meetings.operation[call.row]), {})
        sizes[size] = min(sizes.get(size, np.inf), max(call.taken))
    floors = {}
    for key, sizes in least.items():
        known = sorted((size, time) for size, time in sizes.items() if size >= 0)
        floors[key] = 0.0
        if len(known) > 1:
            (small, fast), (large, slow) = known[0], known[-1]
            floors[key] = min(fast, max(0.0, fast - small * (slow - fast) / (large - small)))
        elif key[1] == "barrier":
            floors[key] = min(sizes.values())
    return floors


def _other_transfer(call: _Call, change: WhatIf, floors: Mapping[tuple[int, str], float], notes: list[str]) -> _Call:
    meetings, operation = call.meetings, call.meetings.operation[call.row]
    size = int(meetings.bytes[call.row])
    longest = max(call.taken)
    wanted = longest
    if change.model is not None:
        new = modelled_s(change.model, meetings, operation, size)
        old = modelled_s(change.measured_by, meetings, operation, size)
        if new is None:
            notes.append(f"{operation} keeps its measured time: its size or cost model is unknown")
        else:
            wanted = longest * new / old if old else new / NS
    floor = min(longest, floors[(id(meetings), operation)])
    if change.bandwidth != 1 or change.latency != 1:
        shrunk = floor * change.latency + (longest - floor) / change.bandwidth
        wanted = wanted * shrunk / longest if longest else wanted
    return replace(call, taken=_scaled(call.taken, longest, wanted))


def _scaled(taken: tuple[float, ...], longest: float, wanted: float) -> tuple[float, ...]:
    return tuple(each * wanted / longest for each in taken) if longest else tuple(wanted for _ in taken)


def _with_ranks(plan: _Plan, ranks: int, change: WhatIf, notes: list[str]) -> _Plan:
    """Return the plan with more or fewer ranks: each new one works as one of the old, a step later in its trace."""
    old = len(plan.lines)
    groups = {call.meetings.members for call in plan.calls}
    if ranks < 1:
        raise UsageError(f"the number of ranks is {ranks}, expected at least 1")
    most = _MOST_PLACES // max(1, *(len(line.kind) for line in plan.lines))
    if ranks > most:
        raise UsageError(f"{ranks:,} ranks are too many to replay this trace", hint=f"use at most {most:,}")
    if any(len(members) != old for members in groups) or any(
        call.meetings.operation[call.row] == "point_to_point" or call.meetings.root[call.row] >= ranks
        for call in plan.calls
    ):
        raise UsageError(
            "--ranks needs a trace in which every collective involves all ranks",
            hint="use `fairmile predict scaling` with a description of the model",
        )
    lines, columns = [], [at % old for at in range(ranks)]
    for at, source in enumerate(columns):
        line = plan.lines[source]
        lines.append(line._replace(column=np.full(len(line.kind), at), work=_rolled(line, at // old)))
    calls = []
    for call in plan.calls:
        longest = max(call.taken)
        factor = _rank_factor(call, old, ranks, change, notes)
        taken = tuple(call.taken[source] * factor for source in columns) if longest else (0.0,) * ranks
        everyone = tuple(range(ranks))
        before = tuple(
            (earlier[0], at) if (earlier := call.before[source]) is not None else None
            for at, source in enumerate(columns)
        )
        begun = tuple(call.begun[source] for source in columns)
        calls.append(replace(call, taken=taken, waits_for=(everyone,) * ranks, before=before, begun=begun))
    return _Plan(lines, calls)


def _rolled(line: _Line, shift: int) -> NDArray[np.float64]:
    """Return the work of a line with that of its steps in another order, where all steps look alike."""
    marks = np.flatnonzero((line.kind == _MARK) & (line.call % 2 == 1))
    if shift and len(marks) > 1:
        lengths = np.diff(marks)
        if (lengths == lengths[0]).all() and marks[0] + 1 >= lengths[0]:
            first = marks[0] + 1 - lengths[0]
            inner = line.work[first : marks[-1] + 1].reshape(len(marks), lengths[0])
            rolled = np.roll(inner, shift, axis=0).ravel()
            return np.concatenate((line.work[:first], rolled, line.work[marks[-1] + 1 :]))
    return line.work


def _rank_factor(call: _Call, old: int, ranks: int, change: WhatIf, notes: list[str]) -> float:
    operation, size = call.meetings.operation[call.row], int(call.meetings.bytes[call.row])
    if ranks < 2 or old < 2:
        if ranks >= 2:
            notes.append("the trace has one rank: the cost of collectives between ranks is not included")
        return 0.0
    model = change.model or change.measured_by
    per_node = -(-old // call.meetings.nodes)
    grown = replace(call.meetings, size=ranks, nodes=-(-ranks // per_node))
    new = modelled_s(model, grown, operation, size)
    known = modelled_s(model, replace(call.meetings, size=old), operation, size)
    if new is not None and known:
        return new / known
    notes.append("without a network model, transfers were scaled by the volume of a ring algorithm")
    if operation in ("barrier", "other", "gather", "scatter", "point_to_point"):
        return 1.0
    return bus_factor(operation, ranks) / bus_factor(operation, old)


def replay(table: EventTable, change: WhatIf | None = None) -> Replayed:
    """Return the time of a step of a trace under a change."""
    return Replay(table).run(change)
