"""How many assets have each value of a facet: of all cards, or of those that a search matches."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

Counts = dict[str, dict[str, int]]  # by facet, then by value, the most frequent first


def count_all(db: sqlite3.Connection, facets: Sequence[str], strangers: Sequence[str]) -> Counts:
    """Count the assets of all catalogs but `strangers`, each once, in its latest version.

    The index on values counts every card, which is quick; what must not count is subtracted: old and removed
    versions, cards of strangers, and all but one card of an asset that several catalogs have.
    """
    wanted = f"facet IN ({_marks(facets)})"
    total = db.execute(f"SELECT facet, value, count(*) FROM facet WHERE {wanted} GROUP BY facet, value", facets)
    counts = {(facet, value): number for facet, value, number in total}
    left_out = f"NOT latest OR gone OR catalog IN ({_marks(strangers)})"
    # The plus sign keeps SQLite from walking through all values of a facet to find those of a few cards.
    past = db.execute(
        f"SELECT facet, value, count(*) FROM facet WHERE +{wanted} AND card IN (SELECT id FROM card WHERE {left_out})"
        " GROUP BY facet, value",
        (*facets, *strangers),
    )
    for facet, value, number in past:
        counts[facet, value] -= number
    twins = db.execute(
        "WITH twin AS (SELECT kind, name FROM card INDEXED BY card_asset"
        f" WHERE latest AND NOT gone AND catalog NOT IN ({_marks(strangers)})"
        " GROUP BY kind, name HAVING count(*) > 1)"
        " SELECT facet, value, count(*) - count(DISTINCT kind || '/' || name)"
        " FROM twin JOIN card USING (kind, name) JOIN facet ON facet.card = card.id"
        f" WHERE +{wanted} AND NOT ({left_out}) GROUP BY facet, value",
        (*strangers, *facets, *strangers),
    )
    for facet, value, number in twins:
        counts[facet, value] -= number
    return _sorted(facets, ((facet, value, number) for (facet, value), number in counts.items() if number))


def count_some(db: sqlite3.Connection, facets: Sequence[str], cards: Iterable[int]) -> Counts:
    """Count the assets among these cards, each once."""
    rows = db.execute(
        "SELECT facet, value, count(DISTINCT kind || '/' || name) FROM facet JOIN card ON card.id = facet.card"
        f" WHERE +facet IN ({_marks(facets)}) AND latest AND NOT gone AND facet.card IN ({','.join(map(str, cards))})"
        " GROUP BY facet, value",
        facets,
    )
    return _sorted(facets, rows)


def _marks(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))


def _sorted(facets: Sequence[str], rows: Iterable[tuple[str, str, int]]) -> Counts:
    counts: Counts = {facet: {} for facet in facets}
    for facet, value, number in sorted(rows, key=lambda row: (-row[2], row[1])):
        counts[facet][value] = number
    return counts
