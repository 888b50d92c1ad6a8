"""Who waits for whom in collectives and messages, why, and what the transfer itself costs beside a model.

Wait states bear the names that Scalasca gave them. A wait has one cause: what the last rank did longer than the one
that waits, since both left their last common call. Where that was itself a wait, the delay came from elsewhere and is
counted for the rank and the cause it began with (indirect).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.formulas import bus_factor, collective_name
from fairmile.traces.activity import PARTS, Activity
from fairmile.traces.breakdown import NS
from fairmile.traces.events import EventTable
from fairmile.traces.intervals import Spans, nothing, one, spans
from fairmile.traces.matching import ALL_TO_ONE, ONE_TO_ALL, Meetings, matched

CAUSES = (*(part for part in PARTS if part != "communication"), "idle", "earlier wait")
"""What makes a rank come late; "idle" is time in which nothing was recorded."""

_STATES = {"barrier": ("Wait at Barrier", "Barrier Completion")}
_FURTHEST = 8  # how many calls back a call is looked for that all ranks had left
_DEEPEST = 50  # how far a delay is followed from one group of ranks to the next

Whole = NDArray[np.int64]
Delayed = dict[tuple[str, int, str], list[tuple[int, Whole, NDArray[np.float64]]]]
"""By component, rank and cause: the place of a group's calls, the calls, and what each of its ranks waited."""


class TransferModel(Protocol):
    """How long a collective should take; `CollectiveModel` is one."""

    def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
        """Return the seconds from the moment the last rank comes until all have left."""
        ...


@dataclass(frozen=True, eq=False)
class Waits:
    """The calls of one group with what each rank spent in them, in nanoseconds; one row per call, one column per rank.

    wait + queue + transfer + completion = leave - enter. `last` is the column that the others waited for; `queue` is
    what passes between its coming and the moment that data moves; `exposed` is the part of the wait in which the rank
    computed nothing, counted once for calls at the same time, `exposed_queue` and `exposed_transfer` likewise.
    `cost[call, rank, cause]` shares the exposed wait out over causes, by the time that each rank `spent` on them
    before the call. `in_steps` is the share of `exposed` in the rank's steps; the other two count there alone.
    """

    meetings: Meetings
    last: Whole
    wait: Whole
    exposed: Whole
    completion: Whole
    queue: Whole
    transfer: Whole
    exposed_queue: Whole
    exposed_transfer: Whole
    cost: NDArray[np.float64]
    anchor: Whole  # row of the call before, which all ranks had left; -1: none
    spent: NDArray[np.float64]
    in_steps: NDArray[np.float64]


class WaitStateDict(TypedDict):
    """`WaitState` as JSON holds it."""

    component: str
    rank: int
    state: str
    seconds: float
    exposed_s: float
    calls: int


@dataclass(frozen=True)
class WaitState:
    """How long one rank was in one wait state."""

    component: str
    rank: int
    state: str
    seconds: float
    exposed_s: float
    calls: int


class DelayDict(TypedDict):
    """`Delay` as JSON holds it."""

    component: str
    rank: int
    cause: str
    calls: int
    waiting_s: float
    lost_s: float
    direct_s: float
    indirect_s: float
    own_s: float
    others_s: float


@dataclass(frozen=True)
class Delay:
    """What one rank cost the others by coming late for one reason.

    `waiting_s` is summed over all that waited in their steps; `lost_s` is what the job would gain were this rank as
    early as the next latest; `analyze` replaces it by what a replay says of it working like the others. `direct_s`
    began here, `indirect_s` reached others through ranks that waited in between. Before a call in which others waited
    for it directly, the rank spent `own_s` on the cause and those that waited `others_s` (means; 0: no such call).
    """

    component: str
    rank: int
    cause: str
    calls: int
    waiting_s: float
    lost_s: float
    direct_s: float
    indirect_s: float
    own_s: float = 0.0
    others_s: float = 0.0


class CollectiveSummaryDict(TypedDict):
    """`CollectiveSummary` as JSON holds it."""

    group: str
    operation: str
    ranks: int
    bytes: int
    calls: int
    wait_s: float
    exposed_wait_s: float
    completion_s: float
    queued_s: float
    exposed_queued_s: float
    transfer_s: float
    exposed_s: float
    median_transfer_s: float
    bus_bytes_per_s: float | None
    model_s: float | None
    efficiency: float | None


@dataclass(frozen=True)
class CollectiveSummary:
    """All calls of one operation in one group with one size."""

    group: str
    operation: str
    ranks: int
    bytes: int  # -1: the trace does not tell
    calls: int
    wait_s: float  # mean over ranks of the sum over calls
    exposed_wait_s: float  # without compute meanwhile, in steps; so are the other exposed ones
    completion_s: float
    queued_s: float  # sum over calls, from the last to come until data moves, where the trace tells
    exposed_queued_s: float
    transfer_s: float  # sum over calls, from then until the last has left
    exposed_s: float  # transfer that was not hidden behind compute, mean over ranks
    median_transfer_s: float
    bus_bytes_per_s: float | None
    model_s: float | None  # the model's time for one call
    efficiency: float | None  # model over measured


class WorstCallDict(TypedDict):
    """`WorstCall` as JSON holds it."""

    group: str
    operation: str
    start_ns: int
    last: str
    cause: str
    wait_s: float
    transfer_s: float


@dataclass(frozen=True)
class WorstCall:
    """One call that many waited in."""

    group: str
    operation: str
    start_ns: int
    last: str
    cause: str
    wait_s: float
    transfer_s: float


class WaitingDict(TypedDict):
    """`Waiting` as JSON holds it."""

    labels: list[str]
    states: list[WaitStateDict]
    delays: list[DelayDict]
    collectives: list[CollectiveSummaryDict]
    matrix: list[list[float]]
    worst: list[WorstCallDict]
    notes: list[str]


@dataclass(frozen=True)
class Waiting:
    """All about waiting; `matrix[i][j]` is how long the i-th rank waited for the j-th, in the order of `labels`."""

    labels: tuple[str, ...]
    states: tuple[WaitState, ...]
    delays: tuple[Delay, ...]
    collectives: tuple[CollectiveSummary, ...]
    matrix: tuple[tuple[float, ...], ...]
    worst: tuple[WorstCall, ...]
    notes: tuple[str, ...]
    calls: tuple[Waits, ...] = field(default=(), repr=False, compare=False)
    delayed: Delayed = field(default_factory=dict, repr=False, compare=False)


def waiting(table: EventTable, rank_activity: Sequence[Activity], model: TransferModel | None = None) -> Waiting:
    """Return who waited for whom and why, call by call and summed."""
    meetings, notes = matched(table, rank_activity)
    bare = _with_exposed([_waits(each) for each in meetings], rank_activity)
    earlier = _waiting_by_rank(bare, len(rank_activity))
    calls = [_with_causes(each, rank_activity, earlier) for each in bare]
    delays, delayed = _delays(calls, rank_activity)
    return Waiting(
        tuple(each.label for each in rank_activity),
        tuple(_states(calls, rank_activity)),
        tuple(delays),
        tuple(_summaries(calls, model)),
        _matrix(calls, len(rank_activity)),
        tuple(_worst(calls, rank_activity)),
        tuple(notes),
        tuple(calls),
        delayed,
    )


def _waits(each: Meetings) -> Waits:
    enter, leave = each.enter, each.leave
    calls = np.arange(len(each))
    last = enter.argmax(axis=1)
    rooted = each.root >= 0
    come = enter[calls, last]
    waited = np.ones_like(enter, bool)
    for call in np.flatnonzero(rooted).tolist():
        root, operation = int(each.root[call]), each.operation[call]
        if operation in ONE_TO_ALL:
            come[call], last[call] = enter[call, root], root
        elif operation in ALL_TO_ONE:
            waited[call] = False
            waited[call, root] = True
    messages = np.array([operation == "point_to_point" for operation in each.operation], bool)
    if messages.any() and enter.shape[1] == 2:  # a sender that left before the receiver came did not wait for it
        waited[messages, 0] &= leave[messages, 0] > enter[messages, 1]
    wait = np.clip(np.minimum(come[:, None], leave) - enter, 0, None) * waited
    after = np.clip(leave - np.maximum(enter, come[:, None]), 0, None)
    completion = after - after.min(axis=1, keepdims=True) if enter.shape[1] > 1 else np.zeros_like(after)
    symmetric = np.array([name not in (*ONE_TO_ALL, *ALL_TO_ONE, "point_to_point") for name in each.operation], bool)
    completion = completion * symmetric[:, None]
    cost = np.zeros((*wait.shape, len(CAUSES)))
    queue = np.minimum(_moments_before_moving(each, come), leave - enter - wait - completion)
    transfer = leave - enter - wait - completion - queue
    none = np.zeros_like(wait)
    return Waits(
        each, last, wait, none, completion, queue, transfer, none, none, cost, _anchors(each), cost, np.ones(wait.shape)
    )


def _moments_before_moving(each: Meetings, come: Whole) -> Whole:
    """Return how long each rank stood in a call that all had come to while its data did not move."""
    enter, leave = each.enter, each.leave
    since = np.minimum(np.maximum(enter, come[:, None]), leave)
    before = np.clip(np.minimum(each.began[:, None], leave) - since, 0, None)
    after = np.clip(leave - np.maximum(each.ended[:, None], since), 0, None)
    idle: Whole = before + after
    return idle


def _with_exposed(calls: Sequence[Waits], rank_activity: Sequence[Activity]) -> list[Waits]:
    """Set what of waits and transfers was not hidden behind compute, each moment for the call that began first."""
    shapes = [each.wait.shape for each in calls]
    exposed, queued, moved, stepped = ([np.zeros(shape, np.int64) for shape in shapes] for _ in range(4))
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for number, each in enumerate(calls):
        for column, member in enumerate(each.meetings.members):
            by_rank.setdefault(member, []).append((number, column))
    for member, mine in by_rank.items():
        at = 0
        of_rank = _exposed_of_rank(calls, mine, rank_activity[member])
        for number, column in mine:
            piece = slice(at, at + len(calls[number].meetings))
            for sets, values in zip((exposed, queued, moved, stepped), of_rank, strict=True):
                sets[number][:, column] = values[piece]
            at = piece.stop
    return [
        replace(each, exposed=waits, exposed_queue=queue, exposed_transfer=transfers,
                in_steps=np.divide(inside, waits, out=np.ones(waits.shape), where=waits > 0))
        for each, waits, queue, transfers, inside in zip(calls, exposed, queued, moved, stepped, strict=True)
    ]  # fmt: skip


def _exposed_of_rank(
    calls: Sequence[Waits], mine: Sequence[tuple[int, int]], activity: Activity
) -> tuple[Whole, Whole, Whole, Whole]:
    """Return for the calls of one rank what is not hidden of wait, queue and transfer, and of the wait in its steps."""
    meetings = [calls[number].meetings for number, _ in mine]
    enter = np.concatenate([each.enter[:, column] for each, (_, column) in zip(meetings, mine, strict=True)])
    leave = np.concatenate([each.leave[:, column] for each, (_, column) in zip(meetings, mine, strict=True)])
    come = enter + np.concatenate([calls[number].wait[:, column] for number, column in mine])
    order = np.argsort(enter, kind="stable")
    reach = np.maximum.accumulate(leave[order])
    begin = enter.copy()
    begin[order[1:]] = np.maximum(enter[order[1:]], reach[:-1])
    come, begin = np.maximum(come, begin), np.minimum(begin, leave)
    come = np.minimum(come, leave)
    began = np.clip(np.concatenate([each.began for each in meetings]), come, leave)
    ended = np.clip(np.concatenate([each.ended for each in meetings]), began, leave)
    hidden = activity.compute
    outside = hidden | (one(activity.start_ns, activity.end_ns) - spans(activity.steps.starts, activity.steps.ends))

    def open_(since: Whole, until: Whole, closed: Spans) -> Whole:
        return until - since - closed.within(since, until)

    queued = open_(come, began, outside) + open_(ended, leave, outside)
    return open_(begin, come, hidden), queued, open_(began, ended, outside), open_(begin, come, outside)


def _anchors(each: Meetings) -> Whole:
    """Return for each call the last one before it that every rank had left when it entered."""
    anchor = np.full(len(each), -1, np.int64)
    for back in range(min(_FURTHEST, len(each) - 1), 0, -1):
        free = (each.leave[:-back] <= each.enter[back:]).all(axis=1)
        anchor[back:][free] = np.flatnonzero(free)
    return anchor


def _settled_anchors(each: Waits, rank_activity: Sequence[Activity]) -> Whole:
    """Return for each call the last one before it that held every rank until it left, -1 before the first of those.

    In a call that runs beside compute no rank catches up with a late one: what made it late lies before that call.
    """
    meetings, anchor = each.meetings, each.anchor.copy()
    held = np.ones(len(meetings), bool)
    for column, member in enumerate(meetings.members):
        held &= ~rank_activity[member].compute.covers(meetings.leave[:, column] - 1)
    settled = np.flatnonzero(held)
    if not len(settled):
        return anchor
    before = np.searchsorted(settled, np.arange(len(meetings))) - 1
    anchor[before < 0] = -1
    for back in range(_FURTHEST, -1, -1):  # the nearest one last
        rows = np.flatnonzero(before - back >= 0)
        earlier = settled[before[rows] - back]
        free = (meetings.leave[earlier] <= meetings.enter[rows]).all(axis=1)
        anchor[rows[free]] = earlier[free]
    return anchor


def _waiting_by_rank(calls: Sequence[Waits], ranks: int) -> list[Spans]:
    """Return when each rank waited without computing."""
    begins: list[list[Whole]] = [[] for _ in range(ranks)]
    ends: list[list[Whole]] = [[] for _ in range(ranks)]
    for each in calls:
        for column, member in enumerate(each.meetings.members):
            real = each.exposed[:, column] > 0
            begin = each.meetings.enter[real, column]
            begins[member].append(begin)
            ends[member].append(begin + each.wait[real, column])
    return [spans(np.concatenate(b), np.concatenate(e)) if b else nothing() for b, e in zip(begins, ends, strict=True)]


def _with_causes(each: Waits, rank_activity: Sequence[Activity], earlier: Sequence[Spans]) -> Waits:
    """Share each wait out over what the last rank did longer than the one that waited."""
    meetings = each.meetings
    if not each.wait.any():
        return each
    each = replace(each, anchor=_settled_anchors(each, rank_activity))
    spent = np.zeros(each.cost.shape)
    known = each.anchor >= 0
    for column, member in enumerate(meetings.members):
        activity = rank_activity[member]
        begin = np.where(known, meetings.leave[each.anchor, column], activity.start_ns)
        begin = np.minimum(begin, meetings.enter[:, column])
        end = meetings.enter[:, column]
        own = np.zeros(len(meetings), np.int64)
        for at, cause in enumerate(CAUSES[:-2]):
            part = activity.parts[cause].within(begin, end)
            spent[:, column, at] = part
            own = own + part
        waits = earlier[member].within(begin, end)
        talk = activity.parts["communication"].within(begin, end)
        start = begin - _earliest(each, rank_activity, known)
        spent[:, column, -1] = waits + np.maximum(start, 0)
        spent[:, column, -2] = np.maximum(0, end - begin - own - talk)
    ahead = spent[np.arange(len(meetings)), each.last]
    longer = np.clip(ahead[:, None, :] - spent, 0, None)
    total = longer.sum(axis=2, keepdims=True)
    fallback = np.zeros(len(CAUSES))
    fallback[-2] = 1.0
    share = np.where(total > 0, longer / np.where(total > 0, total, 1.0), fallback)
    return replace(each, cost=share * each.exposed[:, :, None], spent=spent)


def _earliest(each: Waits, rank_activity: Sequence[Activity], known: NDArray[np.bool_]) -> Whole:
    first = min(rank_activity[member].start_ns for member in each.meetings.members)
    return np.where(known, each.meetings.leave[each.anchor].min(axis=1), first)


def mean_over_ranks(collectives: Iterable[CollectiveSummary], name: str, ranks: int) -> float:
    """Return a mean over all ranks of a program; summaries are means over those of a group."""
    return float(sum(getattr(each, name) * min(each.ranks, ranks) / max(1, ranks) for each in collectives))


def state_names(operation: str) -> tuple[str, str]:
    """Return Scalasca's names for waiting in an operation and for leaving it after the first."""
    if operation in ONE_TO_ALL:
        return "Late Broadcast", ""
    if operation in ALL_TO_ONE:
        return "Early Reduce", ""
    return _STATES.get(operation, ("Wait at NxN", "NxN Completion"))


def _states(calls: Sequence[Waits], rank_activity: Sequence[Activity]) -> list[WaitState]:
    sums: dict[tuple[int, str], list[float]] = {}

    def add(member: int, state: str, wait: Whole, exposed: Whole) -> None:
        if wait.any():
            entry = sums.setdefault((member, state), [0, 0, 0])
            entry[0] += int(wait.sum())
            entry[1] += int(exposed.sum())
            entry[2] += int(np.count_nonzero(wait))

    for each in calls:
        operations = np.array(each.meetings.operation)
        for operation in dict.fromkeys(each.meetings.operation):
            rows = operations == operation
            state, after = state_names(operation)
            for column, member in enumerate(each.meetings.members):
                if operation == "point_to_point":
                    state = "Late Receiver" if column == 0 else "Late Sender"
                add(member, state, each.wait[rows, column], each.exposed[rows, column])
                if after:
                    add(member, after, each.completion[rows, column], each.completion[rows, column])
    return [
        WaitState(
            rank_activity[member].component, rank_activity[member].rank, state, total * NS, exposed * NS, int(count)
        )
        for (member, state), (total, exposed, count) in sorted(sums.items())
    ]


def _delays(calls: Sequence[Waits], rank_activity: Sequence[Activity]) -> tuple[list[Delay], Delayed]:
    """Return who came late for which reason, the most expensive first, and the calls in which others waited for it."""
    sums: dict[tuple[int, str], list[float]] = {}
    delayed: Delayed = {}

    def name(member: int, cause: str) -> tuple[str, int, str]:
        return rank_activity[member].component, rank_activity[member].rank, cause

    def add(member: int, cause: str, waits: float, lost: float, direct: float) -> None:
        entry = sums.setdefault((member, cause), [0.0] * 5)
        for place, value in enumerate((1.0, waits, lost, direct, waits - direct)):
            entry[place] += value

    origins, compared = _Origins(calls), _Compared()
    for number, each in enumerate(calls):
        members = each.meetings.members
        cost = each.cost * each.in_steps[:, :, None]
        totals = cost.sum(axis=1)
        lost = _lost(each)
        own = np.array(members)[each.last]
        for at, cause in enumerate(CAUSES[:-1]):
            for member in members:
                mine = (own == member) & (totals[:, at] > 0)
                if mine.any():
                    share = totals[mine, at] / totals[mine].sum(axis=1)
                    waits = float(totals[mine, at].sum())
                    add(member, cause, waits, float((lost[mine] * share).sum()), waits)
                    sums[(member, cause)][0] += int(mine.sum()) - 1
                    waited = (number, np.flatnonzero(mine), cost[mine, :, at])
                    delayed.setdefault(name(member, cause), []).append(waited)
                    compared.add((member, cause), each.spent[mine, :, at], each.last[mine], cost[mine, :, at] > 0)
        for call in np.flatnonzero(totals[:, -1] > 0).tolist():
            share = totals[call, -1] / totals[call].sum()
            for (member, cause), part in origins.of(number, call).items():
                add(member, cause, totals[call, -1] * part, lost[call] * share * part, 0.0)
                waited = (number, np.array([call]), cost[call : call + 1, :, -1] * part)
                delayed.setdefault(name(member, cause), []).append(waited)
    kept = [
        Delay(
            rank_activity[member].component,
            rank_activity[member].rank,
            cause,
            int(values[0]),
            *(round(float(value) * NS, 12) for value in (*values[1:], *compared.means((member, cause)))),
        )
        for (member, cause), values in sums.items()
    ]
    return sorted(kept, key=lambda each: (-each.lost_s, -each.waiting_s, each.rank, each.cause)), delayed


def _lost(each: Waits) -> NDArray[np.float64]:
    """Return for each call what the job would gain were the last rank as early as the next one."""
    others = each.exposed * each.in_steps
    if others.shape[1] < 2:
        return np.zeros(len(others))
    rows = np.arange(len(others))
    others[rows, each.last] = np.inf
    least = others.min(axis=1)
    # Where only the root or the receiver waits, it is the one that loses.
    alone = (each.wait > 0).sum(axis=1) == 1
    lost: NDArray[np.float64] = np.where(alone, (each.exposed * each.in_steps).max(axis=1), least)
    return lost


class _Compared:
    """What late ranks and those that waited for them spent on the cause before the same calls."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, str], list[float]] = {}

    def add(self, key: tuple[int, str], spent: NDArray[np.float64], last: Whole, waited: NDArray[np.bool_]) -> None:
        entry = self._sums.setdefault(key, [0.0, 0.0, 0.0])
        own, others = spent[np.arange(len(last)), last], (spent * waited).sum(axis=1) / waited.sum(axis=1)
        for place, value in enumerate((len(last), own.sum(), others.sum())):
            entry[place] += float(value)

    def means(self, key: tuple[int, str]) -> tuple[float, float]:
        calls, own, others = self._sums.get(key, (0.0, 0.0, 0.0))
        return (own / calls, others / calls) if calls else (0.0, 0.0)


class _Origins:
    """Finds where a delay began that reached a call through waits in other calls."""

    def __init__(self, calls: Sequence[Waits]) -> None:
        self._calls = calls
        self._known: dict[tuple[int, int], dict[tuple[int, str], float]] = {}
        self._waits: dict[int, list[tuple[Whole, Whole, int, Whole, int]]] = {}
        for number, each in enumerate(calls):
            for column, member in enumerate(each.meetings.members):
                ends = each.meetings.enter[:, column] + each.wait[:, column]
                real = np.flatnonzero(each.exposed[:, column] > 0)
                real = real[np.argsort(ends[real], kind="stable")]
                entry = (ends[real], each.exposed[real, column], number, real, column)
                self._waits.setdefault(member, []).append(entry)

    def of(self, number: int, call: int, deep: int = 0) -> dict[tuple[int, str], float]:
        """Return the shares of ranks and causes in the delay that came to a call by an earlier wait."""
        key = (number, call)
        if key not in self._known:
            self._known[key] = self._origins_of(number, call, deep)
        return self._known[key]

    def _origins_of(self, number: int, call: int, deep: int) -> dict[tuple[int, str], float]:
        each = self._calls[number]
        last = int(each.last[call])
        member = each.meetings.members[last]
        nowhere = {(member, "idle"): 1.0}
        before = self._largest(member, int(each.meetings.enter[call, last]), int(each.anchor[call]), each, last, number)
        if before is None or deep > _DEEPEST:
            return nowhere
        other, place, column = before
        source = self._calls[other]
        costs = source.cost[place, column]
        total = costs.sum()
        if not total:
            return nowhere
        culprit = source.meetings.members[int(source.last[place])]
        shares = {
            (culprit, cause): float(part / total) for cause, part in zip(CAUSES[:-1], costs[:-1], strict=True) if part
        }
        if costs[-1]:
            for key, part in self.of(other, place, deep + 1).items():
                shares[key] = shares.get(key, 0.0) + part * float(costs[-1] / total)
        return shares

    def _largest(
        self, member: int, end: int, anchor: int, each: Waits, last: int, number: int
    ) -> tuple[int, int, int] | None:
        """Return the longest wait of a rank between its last common call and this one, or the one in that call."""
        begin = int(each.meetings.leave[anchor, last]) if anchor >= 0 else 0
        best, origin = 0, None
        for ends, lengths, other, places, column in self._waits.get(member, ()):
            low, high = np.searchsorted(ends, [begin, end], side="right")
            if high > low and other != number:
                at = low + int(lengths[low:high].argmax())
                if lengths[at] > best:
                    best, origin = int(lengths[at]), (other, int(places[at]), column)
        if origin is None and anchor >= 0 and each.exposed[anchor, last] > 0:
            return number, anchor, last
        return origin


def _summaries(calls: Sequence[Waits], model: TransferModel | None) -> list[CollectiveSummary]:
    summaries = []
    for each in calls:
        alike: dict[tuple[str, int], list[int]] = {}
        for at, key in enumerate(zip(each.meetings.operation, each.meetings.bytes.tolist(), strict=True)):
            alike.setdefault(key, []).append(at)
        for key, calls_of_key in alike.items():
            summaries.append(_summary(each, np.array(calls_of_key), key, model))
    return sorted(summaries, key=lambda each: (-(each.exposed_s + each.exposed_wait_s), each.group, each.operation))


def transfer_ns(each: Waits) -> Whole:
    """Return for each call how long its data moved: from the last to come until the last had left, or as told."""
    meetings = each.meetings
    come = meetings.enter[np.arange(len(meetings)), each.last]
    until = np.minimum(meetings.ended, meetings.leave.max(axis=1))
    taken: Whole = np.clip(until - np.maximum(come, meetings.began), 0, None)
    return taken


def _queued_ns(each: Waits) -> Whole:
    """Return for each call how long all had come and its data did not move."""
    come = each.meetings.enter[np.arange(len(each.meetings)), each.last]
    queued: Whole = np.clip(each.meetings.leave.max(axis=1) - come, 0, None) - transfer_ns(each)
    return queued


def modelled_s(model: TransferModel | None, meetings: Meetings, operation: str, size_bytes: int) -> float | None:
    """Return the model's time of a call, None where the trace or the model does not know enough."""
    if model is None or meetings.size < 2 or (size_bytes < 0 and operation != "barrier"):
        return None
    try:
        name = collective_name(operation)
        return model.time_s(name, float(max(0, size_bytes)), meetings.size, nodes=meetings.nodes)
    except UsageError:  # an operation that the model does not know
        return None


def _summary(each: Waits, rows: Whole, key: tuple[str, int], model: TransferModel | None) -> CollectiveSummary:
    operation, size = key
    members = each.meetings.members
    transfers = transfer_ns(each)[rows]
    exposed = float(each.exposed_transfer[rows].sum()) / len(members)
    typical = float(np.median(transfers)) * NS
    ranks = each.meetings.size
    modelled = modelled_s(model, each.meetings, operation, size)
    bus = None
    if size > 0 and typical > 0 and operation != "other":
        factor = 1.0 if operation in ("gather", "scatter", "barrier") else bus_factor(operation, ranks)
        bus = size * factor / typical
    return CollectiveSummary(
        each.meetings.group,
        operation,
        ranks,
        size,
        len(rows),
        float(each.wait[rows].sum()) / len(members) * NS,
        float((each.exposed * each.in_steps)[rows].sum()) / len(members) * NS,
        float(each.completion[rows].sum()) / len(members) * NS,
        float(_queued_ns(each)[rows].sum()) * NS,
        float(each.exposed_queue[rows].sum()) / len(members) * NS,
        float(transfers.sum()) * NS,
        exposed * NS,
        typical,
        bus,
        modelled,
        min(modelled / typical, 99.0) if modelled is not None and typical > 0 else None,
    )


def _matrix(calls: Sequence[Waits], ranks: int) -> tuple[tuple[float, ...], ...]:
    matrix = np.zeros((ranks, ranks))
    for each in calls:
        members = np.array(each.meetings.members)
        for column, member in enumerate(members.tolist()):
            np.add.at(matrix[member], members[each.last], each.exposed[:, column] * NS)
    return tuple(tuple(float(value) for value in row) for row in matrix)


def _worst(calls: Sequence[Waits], rank_activity: Sequence[Activity], most: int = 10) -> list[WorstCall]:
    listed = []
    for each in calls:
        total = each.exposed.max(axis=1)
        for call in np.argsort(-total, kind="stable")[:most].tolist():
            if total[call] <= 0:
                break
            last = rank_activity[each.meetings.members[int(each.last[call])]]
            listed.append(
                WorstCall(
                    each.meetings.group,
                    each.meetings.operation[call],
                    int(each.meetings.enter[call].min()),
                    last.label,
                    CAUSES[int(each.cost[call].sum(axis=0).argmax())],
                    float(total[call]) * NS,
                    float(transfer_ns(each)[call]) * NS,
                )
            )
    return sorted(listed, key=lambda each: (-each.wait_s, each.start_ns))[:most]
