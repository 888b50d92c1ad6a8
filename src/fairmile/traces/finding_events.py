"""The events that a finding is made of: rows of the trace, and how much of the time of each the finding counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import Activity
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, spans
from fairmile.traces.self_time import time_by_row
from fairmile.traces.waiting import CollectiveSummary, Delay, Waiting, Waits

_NS = 1e-9
_MOST = 30  # that a finding lists
_MOST_CAUSES = 10
COUNTED, CAUSE = "counted", "cause"


class FindingEventDict(TypedDict):
    """`FindingEvent` as JSON holds it."""

    rank: str
    lane: str
    name: str
    start_s: float
    duration_s: float
    counted_s: float
    role: str


@dataclass(frozen=True)
class FindingEvent:
    """One event of a finding; where nothing was recorded, the gap behind an event.

    `role` is "counted" where the finding counts its time, "cause" for what a late rank did while others waited.
    """

    rank: str
    lane: str
    name: str
    start_s: float  # since the first event of the trace
    duration_s: float
    counted_s: float
    role: str


@dataclass(frozen=True, eq=False)
class UsedEvents:
    """Rows of a trace, and how many nanoseconds of each count; `starts` are those of gaps behind the rows."""

    rows: Array
    ns: NDArray[np.float64]
    starts: Array | None = None
    causes: Array | None = None  # rows of what a late rank did
    causes_ns: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> float:
        """Return what counts of all of them, summed over ranks."""
        return float(self.ns.sum()) * _NS

    def listed(self, table: EventTable, labels: dict[tuple[str, int], str]) -> tuple[FindingEvent, ...]:
        """Return those that count most, in the order of what they count, and then what caused them."""
        first = int(table.start_ns.min()) if len(table) else 0

        def event(row: int, counted: float, role: str, gap: int | None) -> FindingEvent:
            lane = table.lanes[int(table.lane[row])].label if table.lanes else ""
            component = table.components[int(table.component[row])]
            label = labels.get((component, int(table.rank[row])), f"rank {int(table.rank[row])}")
            start, length = int(table.start_ns[row]), int(table.end_ns[row] - table.start_ns[row])
            name = table.name_of(row)
            if gap is not None:
                name, start, length = f"nothing recorded after {name}", gap, int(counted)
            return FindingEvent(label, lane, name, (start - first) * _NS, length * _NS, counted * _NS, role)

        chosen: Array = np.lexsort((table.start_ns[self.rows], -self.ns))[:_MOST]
        events = [
            event(
                int(self.rows[at]),
                float(self.ns[at]),
                COUNTED,
                int(self.starts[at]) if self.starts is not None else None,
            )
            for at in chosen.tolist()
        ]
        if self.causes is not None and self.causes_ns is not None:
            longest = np.argsort(-self.causes_ns, kind="stable")[:_MOST_CAUSES]
            events += [event(int(self.causes[at]), float(self.causes_ns[at]), CAUSE, None) for at in longest.tolist()]
        return tuple(events)


def events_within(table: EventTable, activity: Sequence[Activity], sets: Sequence[Spans]) -> UsedEvents:
    """Return what ran innermost in sets of moments, one for each rank, as far as they are of its steps."""
    pieces = [
        time_by_row(table, each, moments & _of_steps(each), EventKind.LAUNCH, EventKind.SYNC)
        for each, moments in zip(activity, sets, strict=True)
    ]
    return _joined(pieces)


def events_overlapping(
    table: EventTable, activity: Sequence[Activity], sets: Sequence[Spans], chosen: Array
) -> UsedEvents:
    """Return the chosen rows (a mask), each with how much of it lies in its rank's moments and steps."""
    pieces = []
    for each, moments in zip(activity, sets, strict=True):
        rows = each.rows[chosen[each.rows]]
        inside = (moments & _of_steps(each)).within(table.start_ns[rows], table.end_ns[rows])
        pieces.append((rows[inside > 0], inside[inside > 0]))
    return _joined(pieces)


def gaps(table: EventTable, activity: Sequence[Activity], sets: Sequence[Spans]) -> UsedEvents:
    """Return the pieces of sets of moments, each with the event of its rank that ended last before it."""
    pieces, starts = [], []
    for each, moments in zip(activity, sets, strict=True):
        inside = moments & _of_steps(each)
        timed = each.rows[~np.isin(table.kind[each.rows], (EventKind.COUNTER, EventKind.MEMORY, EventKind.PHASE))]
        if not len(inside) or not len(timed):
            continue
        ended = timed[np.argsort(table.end_ns[timed], kind="stable")]
        at = np.searchsorted(table.end_ns[ended], inside.starts, side="right") - 1
        pieces.append((ended[np.maximum(at, 0)], inside.ends - inside.starts))
        starts.append(inside.starts)
    joined = _joined(pieces)
    return replace(joined, starts=np.concatenate([np.empty(0, np.int64), *starts]))


def events_of_calls(waits: Waiting, chosen: Collection[CollectiveSummary], part: str) -> UsedEvents:
    """Return the calls of collectives; `part` names what counts of them: "exposed_transfer" or "exposed_queue"."""
    keys = {(each.group, each.operation, each.bytes) for each in chosen}
    pieces = []
    for each in waits.calls:
        meetings = each.meetings
        of_key = [
            (meetings.group, operation, size) in keys
            for operation, size in zip(meetings.operation, meetings.bytes.tolist(), strict=True)
        ]
        mine = np.array(of_key, bool)
        pieces.append((meetings.rows[mine].ravel(), getattr(each, part)[mine].ravel()))
    return _joined([(rows[ns > 0], ns[ns > 0]) for rows, ns in pieces])


def events_of_delays(
    table: EventTable, activity: Sequence[Activity], waits: Waiting, delays: Sequence[Delay]
) -> UsedEvents:
    """Return the calls in which others waited for late ranks, and what these ranks did before them."""
    pieces, caused = [], []
    places = {(each.component, each.rank): at for at, each in enumerate(activity)}
    for delay in delays:
        member = places[delay.component, delay.rank]
        begins: list[Array] = [np.empty(0, np.int64)]
        ends: list[Array] = [np.empty(0, np.int64)]
        for number, calls, cost in waits.delayed.get((delay.component, delay.rank, delay.cause), ()):
            each = waits.calls[number]
            rows, ns = each.meetings.rows[calls].ravel(), cost.ravel()
            pieces.append((rows[ns > 0], ns[ns > 0]))
            if member in each.meetings.members:
                begin, end = _before(each, calls, each.meetings.members.index(member), activity[member])
                begins.append(begin)
                ends.append(end)
        moments = spans(np.concatenate(begins), np.concatenate(ends))
        if delay.cause in activity[member].parts:
            did = moments & activity[member].parts[delay.cause]
            caused.append(time_by_row(table, activity[member], did, EventKind.LAUNCH))
    joined, causes = _joined(pieces), _joined(caused)
    return replace(joined, causes=causes.rows, causes_ns=causes.ns)


def _before(each: Waits, calls: Array, column: int, activity: Activity) -> tuple[Array, Array]:
    """Return from when to when a rank came to calls, since it left the ones before."""
    anchor = each.anchor[calls]
    left = np.where(anchor >= 0, each.meetings.leave[anchor, column], activity.start_ns)
    enter = each.meetings.enter[calls, column]
    return np.minimum(left, enter), enter


def _of_steps(each: Activity) -> Spans:
    return spans(each.steps.starts, each.steps.ends)


def _joined(pieces: Sequence[tuple[Array, Array]]) -> UsedEvents:
    """Return rows once each, with the sum of what counts of them."""
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in pieces)]).astype(np.int64)
    ns = np.concatenate([np.empty(0), *(ns for _, ns in pieces)]).astype(np.float64)
    if len(np.unique(rows)) == len(rows):
        return UsedEvents(rows, ns)
    once, place = np.unique(rows, return_inverse=True)
    return UsedEvents(once, np.bincount(place, ns, len(once)).astype(np.float64))
