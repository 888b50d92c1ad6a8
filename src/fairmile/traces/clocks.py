"""Puts all ranks on one clock.

Ranks leave a collective that everybody takes part in nearly together: the median of how far their exits lie apart is
the offset of their clocks, its change over time the drift. Processes of one host share a clock and stay as they are,
unless collectives say that this cannot be. Where nothing is common the clocks on the wall have to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.traces.events import Array, EventKind, EventTable, Process

_ROOTED = ("broadcast", "bcast", "scatter", "reduce_sum")  # a rank may leave these long before the others
_TRUST_NS = 10_000_000  # how far exits on one host may lie apart because the host is busy
_LEAST_FOR_DRIFT = 20
_LEAST_SPAN_NS = 1_000_000_000
_TELL_NS = 1_000_000
_MOMENTS = (EventKind.COUNTER, EventKind.MARKER)
_FAR_NS = 60 * 1_000_000_000


@dataclass(frozen=True)
class _Rank:
    """The rows of one process and its clock."""

    process: Process
    rows: Array

    @property
    def key(self) -> tuple[str, int]:
        return self.process.component, self.process.rank


@dataclass(frozen=True)
class _Shift:
    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0

    def __call__(self, times: Array) -> Array:
        moved = times + self.offset_ns
        return moved + np.rint(self.drift * (times - self.origin_ns)).astype(np.int64) if self.drift else moved


def align_clocks(table: EventTable) -> EventTable:
    """Return the table with the times of all ranks on the clock of the first; `notes` say what was moved and why."""
    ranks = _ranks(table)
    if len(ranks) < 2:
        return table
    exits = [_exits(table, each) for each in ranks]
    shifts: dict[int, _Shift] = {0: _Shift()}
    notes: list[str] = []
    reached = [0]
    while reached:  # from rank to rank along collectives they have in common
        known = reached.pop(0)
        for other in range(len(ranks)):
            if other in shifts:
                continue
            shift = _by_exits(exits[known], exits[other], shifts[known])
            if shift is not None:
                shifts[other] = _trusted(shift, ranks[0], ranks[other])
                reached.append(other)
    left = [place for place in range(len(ranks)) if place not in shifts]
    notes += _without_collectives(table, ranks, left, shifts)
    return _moved(table, ranks, shifts, notes)


def _ranks(table: EventTable) -> list[_Rank]:
    """Return the processes that have events; of one rank with several files the first stands for it."""
    processes: dict[tuple[str, int], Process] = {}
    for process in table.processes:
        processes.setdefault((process.component, process.rank), process)
    key = table.component.astype(np.int64) << 32 | table.rank
    ranks = []
    for (component, rank), process in sorted(processes.items()):
        number = table.components.index(component) if component in table.components else -1
        rows = np.flatnonzero(key == (number << 32 | rank))
        if len(rows):
            ranks.append(_Rank(process, rows))
    return ranks


def _exits(table: EventTable, rank: _Rank) -> dict[tuple[int, int], int]:
    """Return when a rank left each collective that all of its group leave together."""
    rows = rank.rows[(table.kind[rank.rows] == EventKind.COLLECTIVE) & (table.sequence[rank.rows] >= 0)]
    rows = rows[table.end_ns[rows] > table.start_ns[rows]]
    rooted = np.array([_is_rooted(name) for name in table.names] or [False], bool)
    rows = rows[~rooted[table.name[rows]]]
    keys = zip(table.group[rows].tolist(), table.sequence[rows].tolist(), strict=True)
    return dict(zip(keys, table.end_ns[rows].tolist(), strict=True))


def _is_rooted(name: str) -> bool:
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    is_all = "all" in plain or "reducescatter" in plain or "barrier" in plain
    return not is_all and any(word.replace("_", "") in plain for word in (*_ROOTED, "reduce", "gather"))


def _by_exits(known: dict[tuple[int, int], int], other: dict[tuple[int, int], int], shift: _Shift) -> _Shift | None:
    common = sorted(known.keys() & other.keys(), key=other.__getitem__)
    if not common:
        return None
    at = np.array([other[key] for key in common], np.int64)
    apart = shift(np.array([known[key] for key in common], np.int64)) - at
    offset = int(np.median(apart))
    span = int(at[-1] - at[0])
    if len(common) < _LEAST_FOR_DRIFT or span < _LEAST_SPAN_NS:
        return _Shift(offset, origin_ns=int(at[0]))
    return _with_drift(at, apart, offset)


def _with_drift(at: Array, apart: Array, offset: int) -> _Shift:
    """Return a shift that grows over time where the growth is larger than the scatter of the exits."""
    origin = int(at[0])
    x, y = (at - origin).astype(np.float64), (apart - offset).astype(np.float64)
    third = max(len(x) // 3, 1)
    early, late = slice(0, third), slice(len(x) - third, len(x))
    run = float(np.median(x[late]) - np.median(x[early]))
    slope = float(np.median(y[late]) - np.median(y[early])) / run if run > 0 else 0.0
    scatter = float(np.median(np.abs(y - slope * x - np.median(y - slope * x))))
    # The ends are medians of a third each: chance moves them by less than this.
    if abs(slope) * run <= 6 * scatter / np.sqrt(third) + 1000:
        return _Shift(offset, origin_ns=origin)
    return _Shift(offset + int(np.median(y - slope * x)), slope, origin)


def _trusted(shift: _Shift, first: _Rank, other: _Rank) -> _Shift:
    mine, its = first.process, other.process
    same_clock = bool(mine.host) and mine.host == its.host and mine.since_epoch and its.since_epoch
    if mine.boot and its.boot:
        same_clock = mine.boot == its.boot
    return _Shift() if same_clock and abs(shift.offset_ns) < _TRUST_NS else shift


def _without_collectives(
    table: EventTable, ranks: Sequence[_Rank], left: Sequence[int], shifts: dict[int, _Shift]
) -> list[str]:
    """Place ranks that have no collective in common with the first."""
    notes = []
    begins = {place: int(table.start_ns[each.rows].min()) for place, each in enumerate(ranks)}
    for place in left:
        each = ranks[place]
        name = _name(each)
        same_base = each.process.since_epoch and ranks[0].process.since_epoch
        apart = begins[0] - begins[place]
        by_steps = _by_steps(table, ranks[0], each)
        if same_base and (by_steps is None or abs(by_steps) < _FAR_NS):
            shifts[place] = _Shift()
            only_samples = bool(np.isin(table.kind[each.rows], _MOMENTS).all())
            if not only_samples and (each.process.host != ranks[0].process.host or not each.process.host):
                notes.append(f"{name} shares no collective with {_name(ranks[0])}: aligned by wall-clock time")
            if abs(apart) > _FAR_NS and by_steps is None:
                notes.append(f"{name} begins {_lead(-apart)} {_name(ranks[0])}: its clock cannot be checked")
        elif by_steps is not None:
            shifts[place] = _Shift(by_steps)
            notes.append(f"{name} is aligned by the start of the steps it shares with {_name(ranks[0])}")
        else:
            shifts[place] = _Shift(apart)
            notes.append(f"{name} has only relative times: assumed to start with {_name(ranks[0])}")
    return notes


def _by_steps(table: EventTable, first: _Rank, other: _Rank) -> int | None:
    def begins(rank: _Rank) -> dict[int, int]:
        rows = rank.rows[(table.kind[rank.rows] == EventKind.PHASE) & (table.step[rank.rows] >= 0)]
        return dict(zip(table.step[rows].tolist()[::-1], table.start_ns[rows].tolist()[::-1], strict=True))

    mine, its = begins(first), begins(other)
    common = mine.keys() & its.keys()
    return int(np.median([mine[step] - its[step] for step in common])) if common else None


def _moved(table: EventTable, ranks: Sequence[_Rank], shifts: dict[int, _Shift], notes: list[str]) -> EventTable:
    start, end = table.start_ns, table.end_ns
    moved: dict[tuple[str, int], _Shift] = {}
    for place, shift in sorted(shifts.items()):
        if not shift.offset_ns and not shift.drift:
            continue
        if start is table.start_ns:
            start, end = start.copy(), end.copy()
        rows = ranks[place].rows
        start[rows], end[rows] = shift(start[rows]), shift(end[rows])
        moved[ranks[place].key] = shift
        if abs(shift.offset_ns) >= _TELL_NS and ranks[place].process.since_epoch:
            drift = f", and drifts by {shift.drift * 1e6:+.1f} µs/s" if shift.drift else ""
            notes.append(
                f"the clock of {_name(ranks[place])} was {_lead(-shift.offset_ns)} {_name(ranks[0])}{drift}: corrected"
            )
    if not moved and not notes:
        return table
    moves = [(each, moved.get((each.component, each.rank))) for each in table.processes]
    processes = [
        replace(each, offset_ns=by.offset_ns, drift=by.drift, origin_ns=by.origin_ns) if by else each
        for each, by in moves
    ]
    aligned = replace(table, start_ns=start, end_ns=np.maximum(end, start), processes=processes)
    aligned.notes = [*table.notes, *notes]
    return aligned


def _name(rank: _Rank) -> str:
    return f"rank {rank.process.rank}" + (f" of {rank.process.component}" if rank.process.component else "")


def _lead(apart_ns: int) -> str:
    return f"{format_duration(abs(apart_ns) / 1e9)} {'ahead of' if apart_ns > 0 else 'behind'}"
