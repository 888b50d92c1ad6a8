"""Numbers the collectives of each group, so that the same number is the same collective on all its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fairmile.traces.events import Array, EventKind, EventTable


def number_collectives(table: EventTable) -> list[str]:
    """Set `sequence` of all collectives in place and return a sentence for each group that does not match.

    Ranks may have recorded other windows: where the lists of calls differ, the steps they belong to tell which is
    which, and without steps the order alone.
    """
    notes: list[str] = []
    talks = np.flatnonzero(table.of_kind(EventKind.COLLECTIVE))
    for group in np.unique(table.group[talks]).tolist():
        rows = talks[table.group[talks] == group]
        for component in np.unique(table.component[rows]).tolist():
            mine = rows[table.component[rows] == component]
            ranks = [mine[table.rank[mine] == rank] for rank in np.unique(table.rank[mine]).tolist()]
            name = table.groups[group].name if group >= 0 else ""
            notes += _number(table, [each[np.argsort(table.start_ns[each], kind="stable")] for each in ranks], name)
    return notes


def _number(table: EventTable, ranks: Sequence[Array], group: str) -> list[str]:
    native = all(bool((table.sequence[rows] >= 0).all()) for rows in ranks)
    if native and _is_trusted(table, ranks):
        _by_key(table, ranks, [table.sequence[rows] for rows in ranks])
        return []
    if native:
        ranks = [rows[np.argsort(table.sequence[rows], kind="stable")] for rows in ranks]
    calls = [table.name[rows].tolist() for rows in ranks]
    zero = [np.zeros(len(rows), np.int64) for rows in ranks]
    if all(each == calls[0] for each in calls):
        _by_key(table, ranks, zero)
        return []
    counts = ", ".join(f"{len(each)}" for each in calls[:8]) + (", …" if len(calls) > 8 else "")
    about = f"the ranks of group {group!r} ran different collectives ({counts})"
    if all(bool((table.step[rows] >= 0).any()) for rows in ranks):
        _by_key(table, ranks, [table.step[rows].astype(np.int64) for rows in ranks])
        return [f"{about}: matched step by step"]
    _by_key(table, ranks, zero)
    return [f"{about}: matched in order, which may be wrong"]


def _is_trusted(table: EventTable, ranks: Sequence[Array]) -> bool:
    """Tell whether the numbers come from the library that ran the collectives, and not from counting a window."""
    groups = {int(table.group[rows[0]]) for rows in ranks if len(rows)}
    backends = {table.groups[group].backend for group in groups if group >= 0}
    return "nccl" in backends or any(process.format == "flight" for process in table.processes)


def _by_key(table: EventTable, ranks: Sequence[Array], keys: Sequence[Array]) -> None:
    """Number calls by their key and, within one key, by their order; the same pair is the same number on all ranks."""
    pairs: list[list[tuple[int, int]]] = []
    for each in keys:
        seen: Counter[int] = Counter()
        mine = []
        for key in each.tolist():
            mine.append((key, seen[key]))
            seen[key] += 1
        pairs.append(mine)
    numbers = {pair: number for number, pair in enumerate(sorted({pair for mine in pairs for pair in mine}))}
    for rows, mine in zip(ranks, pairs, strict=True):
        table.sequence[rows] = [numbers[pair] for pair in mine]
