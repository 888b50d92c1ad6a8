"""The same trace under other conditions: another network, algorithm, number of ranks, no straggler, a faster operator.

A change alters the work of lines or the time of calls; what was hidden behind compute stays hidden as long as it is
short enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.costs.collectives.formulas import bus_factor, cost
from fairmile.costs.collectives.links import Link, Topology
from fairmile.traces.activity import Activity, activities, on_device
from fairmile.traces.breakdown import NS, breakdown
from fairmile.traces.events import EventTable
from fairmile.traces.intervals import Spans, spans
from fairmile.traces.waiting import TransferModel, Waiting, modelled_s, waiting
from fairmile.traces.work import JOIN, MARK, WorkCall, WorkLine, WorkPlan, mean_step_s, plan_work

_MOST_PLACES = 5_000_000  # of all ranks together: about a minute


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
        self._plan = plan_work(table, self._activity, self._waits)
        self._measured_s = breakdown(self._activity).step_s
        stepped = [each for each in self._activity if each.steps.found_by != "nothing"] or self._activity
        self._steps = sum(len(each.steps) for each in stepped) / len(stepped)
        self._unchanged_s = mean_step_s(self._plan)

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
            mean_step_s(plan) * scale, self._measured_s, self._unchanged_s, len(plan.lines), tuple(dict.fromkeys(notes))
        )


def _with_work(
    plan: WorkPlan, table: EventTable, rank_activity: Sequence[Activity], change: WhatIf, notes: list[str]
) -> WorkPlan:
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


def _less(line: WorkLine, ran: Spans, share: float) -> WorkLine:
    """Return a line with a share of the given moments taken away."""
    before = ran.before(np.concatenate(([line.begin], line.times)))
    # Places are in order of progress; where two have none between them their times may be the other way round.
    spent = np.diff(np.maximum.accumulate(before))
    return line._replace(work=np.maximum(0.0, line.work - share * spent))


def _like_the_others(
    lines: list[WorkLine], rank_activity: Sequence[Activity], straggler: int | tuple[str, int], notes: list[str]
) -> list[WorkLine]:
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


def _progress(line: WorkLine) -> dict[tuple[int, int], float]:
    """Return how much work lies before each call is issued and before each step begins and ends."""
    keys = zip(line.kind.tolist(), line.call.tolist(), np.cumsum(line.work).tolist(), strict=True)
    return {(kind, call): progress for kind, call, progress in keys if kind != JOIN}


def _with_transfers(plan: WorkPlan, change: WhatIf, notes: list[str]) -> WorkPlan:
    if change.transfers:
        plan = replace(plan, calls=[_as_recorded(call, change.transfers) for call in plan.calls])
    if change.model is None and change.bandwidth == 1 and change.latency == 1:
        return plan
    floors = _floors(plan.calls)
    return replace(plan, calls=[_other_transfer(call, change, floors, notes) for call in plan.calls])


def _as_recorded(call: WorkCall, transfers: Mapping[tuple[str, str, int], float]) -> WorkCall:
    meetings, row = call.meetings, call.row
    factor = transfers.get((meetings.group, meetings.operation[row], int(meetings.bytes[row])), 1.0)
    return call if factor == 1 else replace(call, taken=tuple(each * factor for each in call.taken))


def _floors(calls: Sequence[WorkCall]) -> dict[tuple[int, str], float]:
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


def _other_transfer(
    call: WorkCall, change: WhatIf, floors: Mapping[tuple[int, str], float], notes: list[str]
) -> WorkCall:
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


def _with_ranks(plan: WorkPlan, ranks: int, change: WhatIf, notes: list[str]) -> WorkPlan:
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
    return WorkPlan(lines, calls)


def _rolled(line: WorkLine, shift: int) -> NDArray[np.float64]:
    """Return the work of a line with that of its steps in another order, where all steps look alike."""
    marks = np.flatnonzero((line.kind == MARK) & (line.call % 2 == 1))
    if shift and len(marks) > 1:
        lengths = np.diff(marks)
        if (lengths == lengths[0]).all() and marks[0] + 1 >= lengths[0]:
            first = marks[0] + 1 - lengths[0]
            inner = line.work[first : marks[-1] + 1].reshape(len(marks), lengths[0])
            rolled = np.roll(inner, shift, axis=0).ravel()
            return np.concatenate((line.work[:first], rolled, line.work[marks[-1] + 1 :]))
    return line.work


def _rank_factor(call: WorkCall, old: int, ranks: int, change: WhatIf, notes: list[str]) -> float:
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
