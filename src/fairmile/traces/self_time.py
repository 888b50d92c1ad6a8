"""How long each event, or each name, ran as the innermost of its rank: every moment counts once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairmile.traces.activity import Activity, lanes_of
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, spans

_TIMED = (
    EventKind.REGION,
    EventKind.COLLECTIVE,
    EventKind.P2P,
    EventKind.EXCHANGE,
    EventKind.IO,
    EventKind.KERNEL,
    EventKind.MEMCPY,
    EventKind.MEMSET,
)


def time_by_name(table: EventTable, each: Activity, windows: Spans) -> NDArray[np.int64]:
    """Return for each name how long it ran within windows, each moment counted once, for what ran innermost."""
    sums = np.zeros(len(table.names), np.int64)
    rows, own = time_by_row(table, each, windows)
    np.add.at(sums, table.name[rows], own)
    return sums


def time_by_row(table: EventTable, each: Activity, windows: Spans, *also: EventKind) -> tuple[Array, NDArray[np.int64]]:
    """Return the rows of a rank that ran within windows, and for how long each was the innermost.

    A device comes before the host, a lane that computes before one that only sends or reads, more work before less.
    `also` are further kinds to count.
    """
    kinds = (*_TIMED, *also, EventKind.PHASE) if each.works_in_phases else (*_TIMED, *also)
    rows = each.rows[np.isin(table.kind[each.rows], kinds)]
    lanes = table.lane[rows]
    order = []
    for lane in lanes_of(lanes):
        mine = rows[lanes == lane]
        busy = spans(table.start_ns[mine], table.end_ns[mine])
        computes = int((~np.isin(table.kind[mine], (EventKind.COLLECTIVE, EventKind.IO))).any())
        order.append((-int(table.lanes[lane].on_device), -computes, -busy.length_ns, lane, mine, busy))
    chosen: list[Array] = [np.empty(0, np.int64)]
    times: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    for *_, mine, busy in sorted(order, key=lambda entry: entry[:4]):
        if not len(windows):
            break
        ran, own = _self_times(table, mine, windows)
        chosen.append(ran[own > 0])
        times.append(own[own > 0])
        windows = windows - busy
    return np.concatenate(chosen), np.concatenate(times)


def _self_times(table: EventTable, rows: Array, windows: Spans) -> tuple[Array, NDArray[np.int64]]:
    """Return the events of one lane, and how long each was the innermost."""
    start, end = table.start_ns[rows], table.end_ns[rows]
    order = np.lexsort((-end, start))
    rows, start, end = rows[order], start[order], end[order]
    own = windows.within(start, end)
    # Sorted so, the depth of an event is how many began before it less how many of these have ended.
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, side="right")
    depth = np.maximum(depth, 0)
    for level in range(int(depth.max(initial=0))):
        outer, inner = np.flatnonzero(depth == level), np.flatnonzero(depth == level + 1)
        if not len(outer) or not len(inner):
            continue
        at = np.searchsorted(outer, inner) - 1
        held = at >= 0
        parent = outer[at[held]]
        begin = start[inner[held]]  # what only overlaps may begin when the one above has ended
        shared = windows.within(begin, np.maximum(begin, np.minimum(end[inner[held]], end[parent])))
        np.subtract.at(own, parent, shared)
    return rows, np.maximum(own, 0)
