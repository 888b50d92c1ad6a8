"""Coupled programs, such as a solver and a trainer: who waits for whom, what an exchange costs, which part stands idle.

Exchanges are paired by key and version: what one component puts, another gets. Where a trace gives no versions, the
n-th put of a key belongs to the n-th get.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import Activity
from fairmile.traces.breakdown import NS
from fairmile.traces.events import EventKind, EventTable
from fairmile.traces.intervals import Spans, spans, union

_GIVES = re.compile(r"put|send|write|publish|push|set_field|store", re.IGNORECASE)
_TAKES = re.compile(r"get|recv|receive|read|fetch|pull|load", re.IGNORECASE)
_WORD = re.compile(
    r"^(i?(put|get|send|recv|receive|write|read|publish|push|pull|fetch|store|load|set_field))[\s:_./-]*"
)


class ExchangeSummaryDict(TypedDict):
    """`ExchangeSummary` as JSON holds it."""

    giver: str
    taker: str
    key: str
    count: int
    bytes: int
    put_s: float
    get_s: float
    taker_waits_s: float
    giver_waits_s: float
    bytes_per_s: float | None
    age_s: float
    versions_behind: float
    most_versions_behind: int


@dataclass(frozen=True)
class ExchangeSummary:
    """What one component hands to another under one key, over the whole trace."""

    giver: str
    taker: str
    key: str
    count: int
    bytes: int
    put_s: float
    get_s: float
    taker_waits_s: float  # it asked before it was there
    giver_waits_s: float  # it could not hand it over before the other came
    bytes_per_s: float | None  # by the time of moving, without waiting
    age_s: float  # mean time from being there to being asked for
    versions_behind: float  # mean number of newer versions that were there
    most_versions_behind: int


class ComponentDict(TypedDict):
    """`Component` as JSON holds it."""

    name: str
    ranks: int
    span_s: float
    compute_s: float
    idle_s: float
    exchange_s: float
    waits_s: float
    steps: int
    exchange_per_step_s: float
    cost: float


@dataclass(frozen=True)
class Component:
    """One part of a coupled program; times are means over its ranks."""

    name: str
    ranks: int
    span_s: float
    compute_s: float
    idle_s: float  # neither computing nor communicating nor reading
    exchange_s: float  # not hidden behind compute
    waits_s: float  # of it, waiting for other components, each moment once
    steps: int
    exchange_per_step_s: float
    cost: float  # exposed exchange in the steps over their time


class CouplingAnalysisDict(TypedDict):
    """`CouplingAnalysis` as JSON holds it."""

    exchanges: list[ExchangeSummaryDict]
    components: list[ComponentDict]
    matrix: list[list[float]]
    unmatched: int
    untaken: int


@dataclass(frozen=True)
class CouplingAnalysis:
    """The exchanges and the components; `matrix[i][j]` is how long component i waited for j and did nothing else.

    It is a sum over the ranks of i, in which each moment counts once.
    """

    exchanges: tuple[ExchangeSummary, ...]
    components: tuple[Component, ...]
    matrix: tuple[tuple[float, ...], ...]
    unmatched: int  # gets of what nobody put
    untaken: int  # versions that nobody got
    edges: tuple[tuple[int, int, int, int], ...] = field(default=(), repr=False, compare=False)
    """Each wait as (place of the taker, when it had it, when the giver gave, place of the giver)."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.components)


@dataclass(frozen=True)
class _Side:
    component: int
    rank: int
    start: int
    end: int
    bytes: int
    waited: int  # as the program itself told, -1: it did not


def coupling(table: EventTable, rank_activity: Sequence[Activity]) -> CouplingAnalysis | None:
    """Return how the components of a program depend on each other, None where nothing was exchanged."""
    rows = np.flatnonzero(table.of_kind(EventKind.EXCHANGE))
    if not len(rows):
        return None
    names = list(dict.fromkeys(each.component for each in rank_activity))
    puts, gets = _sides(table, rows[np.argsort(table.start_ns[rows], kind="stable")], names)
    sums: dict[tuple[int, int, str], list[tuple[_Side, _Side, int]]] = {}
    unmatched = 0
    for key, versions in gets.items():
        ready = puts.get(key, {})
        newest = _Newest(ready)
        for version, sides in versions.items():
            given = ready.get(version)
            if not given:
                unmatched += len(sides)
                continue
            for at, get in enumerate(sides):
                put = next((each for each in given if each.rank == get.rank), given[min(at, len(given) - 1)])
                pair = (put, get, newest.than(version, get.start))
                sums.setdefault((put.component, get.component, key), []).append(pair)
    exchanges = [_exchange(names, key, pairs) for key, pairs in sums.items()]
    members = {name: [each for each in rank_activity if each.component == name] for name in names}
    waits = _waits(names, rank_activity, sums.values())
    matrix = np.zeros((len(names), len(names)))
    alone: dict[str, int] = dict.fromkeys(names, 0)
    for (at, giver), moments in waits.items():
        matrix[names.index(rank_activity[at].component), giver] += moments.length_ns * NS
    for at, each in enumerate(rank_activity):
        alone[each.component] += union([moments for (who, _), moments in waits.items() if who == at]).length_ns
    return CouplingAnalysis(
        tuple(sorted(exchanges, key=lambda each: (-(each.taker_waits_s + each.giver_waits_s), each.key))),
        tuple(_component(name, members[name], alone[name]) for name in names),
        tuple(tuple(float(value) for value in row) for row in matrix),
        unmatched,
        sum(version not in gets.get(key, {}) for key, versions in puts.items() for version in versions),
        tuple(_edges(names, rank_activity, sums.values())),
    )


def _edges(
    names: Sequence[str], rank_activity: Sequence[Activity], pairs: Iterable[Sequence[tuple[_Side, _Side, int]]]
) -> Iterator[tuple[int, int, int, int]]:
    places = {(each.component, each.rank): at for at, each in enumerate(rank_activity)}
    for put, get, _ in (pair for several in pairs for pair in several):
        if get.start < put.start < get.end:
            taker, giver = ((names[side.component], side.rank) for side in (get, put))
            yield places[taker], get.end, put.start, places[giver]


class _Newest:
    """Tells how many newer versions of a key were there at a moment."""

    def __init__(self, ready: Mapping[int, Sequence[_Side]]) -> None:
        ends = sorted((min(side.end for side in sides), version) for version, sides in ready.items())
        self._ends = [end for end, _ in ends]
        self._best = list(accumulate((version for _, version in ends), max))
        self._versions = sorted(ready)

    def than(self, version: int, moment: int) -> int:
        there = bisect_right(self._ends, moment)
        if not there:
            return 0
        return max(0, bisect_right(self._versions, self._best[there - 1]) - bisect_right(self._versions, version))


def keys_of_exchanges(table: EventTable) -> NDArray[np.object_]:
    """Return the key of each exchange, by its name where the trace states none; "" for all other rows."""
    stated, keys = table.attribute("key"), np.full(len(table), "", object)
    for row in np.flatnonzero(table.of_kind(EventKind.EXCHANGE)).tolist():
        name = table.name_of(row)
        keys[row] = str(stated[row]) if stated[row] is not None else _WORD.sub("", name) or name
    return keys


def _sides(
    table: EventTable, rows: NDArray[np.int64], names: Sequence[str]
) -> tuple[dict[str, dict[int, list[_Side]]], dict[str, dict[int, list[_Side]]]]:
    """Return what was put and what was got, by key and version."""
    puts: dict[str, dict[int, list[_Side]]] = {}
    gets: dict[str, dict[int, list[_Side]]] = {}
    seen: dict[tuple[bool, str, int, int], int] = {}
    keys = keys_of_exchanges(table)
    hows, waits = (table.attribute(name) for name in ("how", "wait_ns"))
    place = {number: names.index(name) for number, name in enumerate(table.components) if name in names}
    for row in rows.tolist():
        name = table.name_of(row)
        verb = str(hows[row] or name)
        gives = bool(_GIVES.search(verb)) and not _TAKES.match(verb)
        key = str(keys[row])
        version = int(table.sequence[row]) if table.sequence[row] >= 0 else int(table.correlation[row])
        component = int(table.component[row])
        if version < 0:
            who = (gives, key, component, int(table.rank[row]))
            version = seen[who] = seen.get(who, -1) + 1
        side = _Side(
            place[component],
            int(table.rank[row]),
            int(table.start_ns[row]),
            int(table.end_ns[row]),
            int(table.bytes[row]),
            int(waits[row]) if waits[row] is not None else -1,
        )
        (puts if gives else gets).setdefault(key, {}).setdefault(version, []).append(side)
    return puts, gets


def _waited(put: _Side, get: _Side) -> tuple[int, int]:
    """Return how long the taker waited within its call and how long the giver did, as the program told or by times."""
    # While it is being put it moves: waiting is what came before.
    late = get.waited if get.waited >= 0 else max(0, min(put.start, get.end) - get.start)
    stuck = max(0, min(get.start, put.end) - put.start) if put.end > get.start > put.start else 0
    stuck = put.waited if put.waited >= 0 else stuck
    return min(late, get.end - get.start), min(stuck, put.end - put.start)


def _waits(
    names: Sequence[str], rank_activity: Sequence[Activity], pairs: Iterable[Sequence[tuple[_Side, _Side, int]]]
) -> dict[tuple[int, int], Spans]:
    """Return when each rank (its place) waited for each other component and did nothing else."""
    places = {(each.component, each.rank): at for at, each in enumerate(rank_activity)}
    moments: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for put, get, _ in (pair for several in pairs for pair in several):
        for side, other, length in zip((get, put), (put, get), _waited(put, get), strict=True):
            key = (places[names[side.component], side.rank], other.component)
            moments.setdefault(key, []).append((side.start, side.start + length))
    return {
        key: spans(*np.array(each, np.int64).T) & rank_activity[key[0]].parts["exchange"]
        for key, each in moments.items()
    }


def _exchange(
    names: Sequence[str],
    key: tuple[int, int, str],
    pairs: Sequence[tuple[_Side, _Side, int]],
) -> ExchangeSummary:
    giver, taker, name = key
    moved = put_s = get_s = asked = held = age = moving = 0
    for put, get, _ in pairs:
        late, stuck = _waited(put, get)
        asked, held = asked + late, held + stuck
        put_s, get_s = put_s + put.end - put.start, get_s + get.end - get.start
        moving += put.end - put.start - stuck + get.end - get.start - late
        age += max(0, get.start - put.end)
        moved += max(put.bytes, get.bytes, 0)
    newer = [each[2] for each in pairs]
    return ExchangeSummary(
        names[giver],
        names[taker],
        name,
        len(pairs),
        moved,
        put_s * NS,
        get_s * NS,
        asked * NS,
        held * NS,
        moved / (moving * NS) if moved and moving else None,
        age * NS / len(pairs),
        float(np.mean(newer)),
        max(newer),
    )


def _component(name: str, mine: Sequence[Activity], waits_ns: int) -> Component:
    count = len(mine)
    span = sum(each.end_ns - each.start_ns for each in mine) * NS / count
    exchange = sum(each.parts["exchange"].length_ns for each in mine) * NS / count
    steps = max(len(each.steps) for each in mine)
    stepped = sum(int((each.steps.ends - each.steps.starts).sum()) for each in mine)
    inside = sum(int(each.parts["exchange"].within(each.steps.starts, each.steps.ends).sum()) for each in mine)
    return Component(
        name,
        count,
        span,
        sum(each.compute.length_ns for each in mine) * NS / count,
        sum(each.idle.length_ns for each in mine) * NS / count,
        exchange,
        waits_ns * NS / count,
        steps,
        exchange / steps,
        inside / stepped if stepped else 0.0,
    )
