"""The critical path over ranks: the chain of work and transfers without which the program would have ended earlier.

It is walked backwards from the rank that ends last. Where that rank waited in a call, the path goes on at the rank it
waited for, at the moment that one came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import PARTS, Activity
from fairmile.traces.breakdown import NS
from fairmile.traces.events import EventTable
from fairmile.traces.intervals import nothing, spans
from fairmile.traces.self_time import time_by_name
from fairmile.traces.waiting import Waiting

Edge = tuple[int, int, int, int]
_LEAST_WAIT_NS = 1000  # shorter ones are noise of the clocks


class PathPieceDict(TypedDict):
    """`PathPiece` as JSON holds it."""

    component: str
    rank: int
    start_ns: int
    end_ns: int
    transfer: bool


@dataclass(frozen=True)
class PathPiece:
    """A stretch of the path on one rank: its own work, or a transfer that it had to wait for."""

    component: str
    rank: int
    start_ns: int
    end_ns: int
    transfer: bool


class CriticalPathDict(TypedDict):
    """`CriticalPath` as JSON holds it."""

    pieces: list[PathPieceDict]
    total_s: float
    by_rank: list[list[str | float]]  # pairs of name and seconds
    by_part: list[list[str | float]]
    by_name: list[list[str | float]]


@dataclass(frozen=True)
class CriticalPath:
    """The path in order of time, and its time by rank, by part and by the names of what ran."""

    pieces: tuple[PathPiece, ...]
    total_s: float
    by_rank: tuple[tuple[str, float], ...]
    by_part: tuple[tuple[str, float], ...]
    by_name: tuple[tuple[str, float], ...]


def critical_path(
    table: EventTable,
    rank_activity: Sequence[Activity],
    waits: Waiting,
    edges: Sequence[Edge] = (),
    *,
    most_names: int = 20,
) -> CriticalPath:
    """Return the critical path from the first event of the program to its last.

    `edges` are further waits: place of who waited, until when, when the other came, place of the other.
    """
    if not rank_activity:
        return CriticalPath((), 0.0, (), (), ())
    walked = _walk(rank_activity, waits, edges)
    local = [nothing() for _ in rank_activity]
    talk = [nothing() for _ in rank_activity]
    for member in range(len(rank_activity)):
        for transfer, sets in ((False, local), (True, talk)):
            mine = [(start, end) for at, start, end, moves in walked if at == member and moves == transfer]
            if mine:
                sets[member] = spans(*np.array(mine, np.int64).T)
    by_rank = {each.label: (local[at].length_ns + talk[at].length_ns) * NS for at, each in enumerate(rank_activity)}
    handed = sum((each.exchange & talk[at]).length_ns for at, each in enumerate(rank_activity))
    parts: dict[str, int] = {"communication": sum(each.length_ns for each in talk) - handed, "exchange": handed}
    names = np.zeros(len(table.names), np.int64)
    for at, each in enumerate(rank_activity):
        rest = local[at]
        for part in PARTS:
            taken = each.parts[part] & rest
            parts[part] = parts.get(part, 0) + taken.length_ns
        parts["idle"] = (
            parts.get("idle", 0) + rest.length_ns - sum((each.parts[part] & rest).length_ns for part in PARTS)
        )
        names += time_by_name(table, each, rest | talk[at])
    named = sorted(
        ((table.names[at], int(names[at])) for at in np.flatnonzero(names)), key=lambda each: (-each[1], each)
    )
    return CriticalPath(
        tuple(
            PathPiece(rank_activity[at].component, rank_activity[at].rank, start, end, moves)
            for at, start, end, moves in walked
        ),
        sum(end - start for _, start, end, _ in walked) * NS,
        _listed(by_rank),
        _listed({name: value * NS for name, value in parts.items()}),
        tuple((name, value * NS) for name, value in named[:most_names]),
    )


def _walk(rank_activity: Sequence[Activity], waits: Waiting, edges: Sequence[Edge]) -> list[tuple[int, int, int, bool]]:
    """Return (place of the rank, start, end, is transfer) in order of time."""
    leaves, steps = _blocking(len(rank_activity), waits, edges)
    member = max(range(len(rank_activity)), key=lambda at: rank_activity[at].end_ns)
    moment, pieces = rank_activity[member].end_ns, []
    while True:
        at = int(np.searchsorted(leaves[member], moment, side="right")) - 1
        while at >= 0 and steps[member][at][1] >= moment:  # the rank came while the path was here already
            at -= 1
        if at < 0:
            begin = min(rank_activity[member].start_ns, moment)
            pieces.append((member, begin, moment, False))
            break
        leave, come, culprit = int(leaves[member][at]), steps[member][at][1], steps[member][at][2]
        if moment > leave:
            pieces.append((member, leave, moment, False))
        pieces.append((member, come, leave, True))
        member, moment = culprit, come
    return [piece for piece in reversed(pieces) if piece[2] > piece[1]]


def _blocking(
    ranks: int, waits: Waiting, edges: Sequence[Edge]
) -> tuple[list[NDArray[np.int64]], list[list[tuple[int, int, int]]]]:
    """Return for each rank the calls that held it up by their ends, with (end, when the last one came, its place)."""
    waits_by_rank: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    for each in waits.calls:
        meetings = each.meetings
        come = meetings.enter[np.arange(len(meetings)), each.last]
        for column, member in enumerate(meetings.members):
            real = np.flatnonzero((each.exposed[:, column] > _LEAST_WAIT_NS) & (each.last != column))
            for call in real.tolist():
                culprit = meetings.members[int(each.last[call])]
                leave = int(meetings.leave[call, column])  # by clocks that differ, before the last one came
                waits_by_rank[member].append((leave, min(int(come[call]), leave), culprit))
    for member, until, given, giver in edges:
        waits_by_rank[member].append((until, given, giver))
    for entries in waits_by_rank:
        entries.sort()
    return [np.array([entry[0] for entry in entries], np.int64) for entries in waits_by_rank], waits_by_rank


def _listed(sums: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(
        sorted(((name, value) for name, value in sums.items() if value > 0), key=lambda each: (-each[1], each))
    )
