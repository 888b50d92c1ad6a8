"""Which events of different ranks are one collective or one message, as matrices of calls by ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import Activity
from fairmile.traces.events import Array, EventKind, EventTable

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "point_to_point",
    "other",
)
_PATTERNS = (
    (r"reducescatter", "reduce_scatter"),
    (r"allgather", "all_gather"),
    (r"allreduce", "all_reduce"),
    (r"all2all|alltoall", "all_to_all"),
    (r"broadcast|bcast", "broadcast"),
    (r"sendrecv|isend|irecv|send|recv", "point_to_point"),
    (r"barrier", "barrier"),
    (r"reduce", "reduce"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
)
ONE_TO_ALL = ("broadcast", "scatter")
ALL_TO_ONE = ("reduce", "gather")
_SENDS, _RECEIVES = re.compile(r"send|put", re.IGNORECASE), re.compile(r"recv|receive|get", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Meetings:
    """The calls that one group of ranks had in common: a row for each call, a column for each rank.

    `members` are places in the list of activities. Of messages the first column sends, the second receives.
    `root` is a column, -1 where the operation has none or the trace does not tell. Data moved from `began` to `ended`
    where the trace tells, else from the moment that the last rank came until each left.
    """

    group: str
    members: tuple[int, ...]
    size: int  # ranks of the group, also those without a trace
    rows: NDArray[np.int64]
    enter: NDArray[np.int64]
    leave: NDArray[np.int64]
    operation: tuple[str, ...]
    bytes: NDArray[np.int64]
    root: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    nodes: int = 1

    def __len__(self) -> int:
        return len(self.rows)


@cache
def operation_of(name: str) -> str:
    """Return which collective a name means, "other" where it does not tell."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((operation for pattern, operation in _PATTERNS if re.search(pattern, plain)), "other")


def matched(table: EventTable, rank_activity: Sequence[Activity]) -> tuple[list[Meetings], list[str]]:
    """Return the collectives and messages of all ranks, and a sentence for each thing that did not match."""
    notes: list[str] = []
    talks: dict[tuple[str, int], list[tuple[int, Array]]] = {}
    messages: list[tuple[int, Array]] = []
    for at, each in enumerate(rank_activity):
        rows = each.rows[table.kind[each.rows] == EventKind.COLLECTIVE]
        for group in np.unique(table.group[rows]).tolist():
            mine = rows[table.group[rows] == group]
            mine = mine[np.argsort(table.start_ns[mine], kind="stable")]
            talks.setdefault((each.component, group), []).append((at, mine))
        rows = each.rows[table.kind[each.rows] == EventKind.P2P]
        if len(rows):
            messages.append((at, rows[np.argsort(table.start_ns[rows], kind="stable")]))
    meetings = [_collectives(table, group, parts, notes) for (_, group), parts in sorted(talks.items())]
    meetings += _messages(table, rank_activity, messages, notes)
    return [replace(each, nodes=_nodes(table, rank_activity, each)) for each in meetings if len(each)], notes


def _nodes(table: EventTable, rank_activity: Sequence[Activity], meetings: Meetings) -> int:
    """Return over how many hosts the ranks of a group are spread, as far as the traces tell."""
    hosts = {(each.component, each.rank): each.host for each in table.processes}
    nodes = {hosts.get((rank_activity[at].component, rank_activity[at].rank), "") for at in meetings.members}
    spread = max(1, len(nodes - {""}))
    return min(meetings.size, -(-spread * meetings.size // len(meetings.members)))


def _collectives(table: EventTable, group: int, parts: list[tuple[int, Array]], notes: list[str]) -> Meetings:
    known = table.groups[group] if group >= 0 else None
    name = (known.name if known else "") or "all ranks"
    rows = _by_sequence(table, parts) if _numbered(table, parts) else _by_order(table, parts)
    whole = (rows >= 0).all(axis=1)
    lost = len(rows) - int(whole.sum())
    rows = rows[whole]
    codes = _codes(table)[table.name[rows]] if len(rows) else np.empty((0, len(parts)), np.int64)
    same = (codes == codes[:, :1]).all(axis=1)
    lost += len(rows) - int(same.sum())
    rows, codes = rows[same], codes[same]
    if lost:
        what = "1 collective" if lost == 1 else f"{lost:,} collectives"
        notes.append(f"group {name!r}: skipped {what} without a match on every rank when computing waits")
    size = max(known.ranks_count if known else -1, len(parts))
    if 0 < len(parts) < size:
        notes.append(
            f"group {name!r}: only {len(parts)} of {size} ranks have a trace, so waits for the others are unknown"
        )
    return _meetings(table, name, tuple(at for at, _ in parts), size, rows, codes[:, 0], known.ranks if known else ())


def _meetings(
    table: EventTable,
    name: str,
    members: tuple[int, ...],
    size: int,
    rows: NDArray[np.int64],
    codes: NDArray[np.int64],
    ranks: tuple[int, ...],
) -> Meetings:
    root = np.full(len(rows), -1, np.int64)
    if "root" in table.attributes and len(rows):
        roots = table.attributes["root"]
        column = {int(table.rank[row]): at for at, row in enumerate(rows[0].tolist())}
        for call, row in enumerate(rows[:, 0].tolist()):
            value = roots.get(row)
            if isinstance(value, (int, np.integer)):
                world = ranks[int(value)] if int(value) < len(ranks) and int(value) not in column else int(value)
                root[call] = column.get(world, -1)
    size_bytes = table.bytes[rows].max(axis=1) if len(rows) else np.empty(0, np.int64)
    operations = tuple(OPERATIONS[code] for code in codes.tolist())
    order = np.argsort(table.start_ns[rows].max(axis=1), kind="stable") if len(rows) else np.empty(0, np.int64)
    rows = rows[order]
    enter = table.start_ns[rows]
    leave = np.maximum(enter, table.end_ns[rows])
    return Meetings(
        name,
        members,
        size,
        rows,
        enter,
        leave,
        tuple(operations[at] for at in order.tolist()),
        size_bytes[order],
        root[order],
        *_moves(table, rows, enter, leave),
    )


def _moves(
    table: EventTable, rows: NDArray[np.int64], enter: NDArray[np.int64], leave: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the data of each call began to move and had moved, as widely as calls last where nothing tells."""
    if not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    began, ended = enter.min(axis=1), leave.max(axis=1)
    if attribute := table.attributes.get("moves"):
        for call, row in enumerate(rows[:, 0].tolist()):
            if moves := attribute.get(row):
                began[call] = np.clip(moves[0], began[call], ended[call])
                ended[call] = np.clip(moves[1], began[call], ended[call])
    return began, ended


def _codes(table: EventTable) -> NDArray[np.int64]:
    return np.array([OPERATIONS.index(operation_of(name)) for name in table.names], np.int64)


def _numbered(table: EventTable, parts: list[tuple[int, Array]]) -> bool:
    return all(
        bool((table.sequence[rows] >= 0).all()) and len(np.unique(table.sequence[rows])) == len(rows)
        for _, rows in parts
    )


def _by_sequence(table: EventTable, parts: list[tuple[int, Array]]) -> NDArray[np.int64]:
    numbers = np.unique(np.concatenate([table.sequence[rows] for _, rows in parts]))
    grid = np.full((len(numbers), len(parts)), -1, np.int64)
    for column, (_, rows) in enumerate(parts):
        grid[np.searchsorted(numbers, table.sequence[rows]), column] = rows
    return grid


def _by_order(table: EventTable, parts: list[tuple[int, Array]]) -> NDArray[np.int64]:
    """Match the n-th call with the n-th; where ranks have unequally many, the n-th of a step or of an operation."""
    counts = {len(rows) for _, rows in parts}
    if len(counts) == 1:
        grid = np.stack([rows for _, rows in parts], axis=1).astype(np.int64)
        codes = _codes(table)[table.name[grid]]
        if not len(grid) or (codes == codes[:, :1]).all(axis=1).mean() > 0.5:
            return grid
        return _by_key(table, parts, lambda rows: _codes(table)[table.name[rows]])
    stepped = all(bool((table.step[rows] >= 0).any()) for _, rows in parts)
    return _by_key(table, parts, lambda rows: table.step[rows] if stepped else _codes(table)[table.name[rows]])


def _by_key(table: EventTable, parts: list[tuple[int, Array]], key_of: object) -> NDArray[np.int64]:
    assert callable(key_of)
    places: dict[tuple[int, int], list[int]] = {}
    for column, (_, rows) in enumerate(parts):
        seen: dict[int, int] = {}
        for row, key in zip(rows.tolist(), np.asarray(key_of(rows)).tolist(), strict=True):
            number = seen.get(key, 0)
            seen[key] = number + 1
            places.setdefault((key, number), [-1] * len(parts))[column] = row
    return np.array(list(places.values()), np.int64).reshape(-1, len(parts))


def _messages(
    table: EventTable, rank_activity: Sequence[Activity], parts: list[tuple[int, Array]], notes: list[str]
) -> list[Meetings]:
    """Pair what one rank sends with what the other receives, by ranks, tag and order."""
    places = {(each.component, each.rank): at for at, each in enumerate(rank_activity)}
    peer, tag = table.attribute("peer"), table.attribute("tag")
    sent: dict[tuple[int, int, str], list[int]] = {}
    received: dict[tuple[int, int, str], list[int]] = {}
    for at, rows in parts:
        for row in rows.tolist():
            named = peer[row]  # a log may state anything
            other = (
                places.get((rank_activity[at].component, int(named))) if isinstance(named, (int, np.integer)) else None
            )
            name = table.name_of(row)
            if other is None:
                continue
            if _RECEIVES.search(name) and not _SENDS.search(name):
                received.setdefault((other, at, str(tag[row])), []).append(row)
            elif _SENDS.search(name):
                sent.setdefault((at, other, str(tag[row])), []).append(row)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    alone = 0
    for key in dict.fromkeys([*sent, *received]):
        mine, theirs = sent.get(key, []), received.get(key, [])
        pairs.setdefault(key[:2], []).extend(zip(mine, theirs, strict=False))
        alone += abs(len(mine) - len(theirs))
    if alone:
        notes.append(f"skipped {alone:,} messages without a matching sender or receiver when computing waits")
    code = OPERATIONS.index("point_to_point")
    return [
        _meetings(
            table,
            f"{rank_activity[source].rank}→{rank_activity[target].rank}",
            (source, target),
            2,
            (rows := np.array(calls, np.int64).reshape(-1, 2)),
            np.full(len(rows), code),
            (),
        )
        for (source, target), calls in sorted(pairs.items())
        if calls
    ]
