"""Many cards written into an empty index: in batches, without the indexes, which are made at the end.

Row by row, each card changes every B-tree of the file and rewrites the blob of its names.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from fairmile.catalog.card_rows import (
    CHUNK_CARDS,
    INSERT_ALIAS,
    INSERT_CARD,
    INSERT_FACET,
    INSERT_LINK,
    Entry,
    insert_text,
)
from fairmile.catalog.database import INDEXES
from fairmile.catalog.query import normal

_BATCH = 2000  # cards
_TEXT_TABLES = ("latest", "older")
_CACHE_KIB, _USUAL_CACHE_KIB = 64 << 10, 2000
# FTS5 sorts what it has collected in this much memory; more at once is fewer parts to merge.
_TEXT_BYTES, _USUAL_TEXT_BYTES = 64 << 20, 1 << 20
# `automerge` and `crisismerge` of FTS5: from how many parts on it merges some with each write, and all at once. Merged
# on the way, each card is written several times; in bulk, `finish` merges all parts once.
_USUALLY, _AT_THE_END = (4, 16), (0, 1999)


class BulkRows:
    """Collects the entries of cards and writes them; the caller holds the transaction and calls `finish`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._numbers = count(1)
        self._entries: list[tuple[int, Entry, bool, int]] = []
        self._lines = _Lines(connection, "names")
        self._tags, self._words = set[str](), set[str]()
        for name in INDEXES:
            connection.execute(f"DROP INDEX {name}")
        _tune(connection, _CACHE_KIB, _TEXT_BYTES)
        _merge_parts(connection, *_AT_THE_END)

    def put(self, entry: Entry, *, latest: bool, uses: int) -> None:
        """Take in the entry of a card that the index does not hold yet."""
        number = next(self._numbers)
        self._entries.append((number, entry, latest, uses))
        if entry.names:
            self._lines.append(number, entry.names)
        if len(self._entries) >= _BATCH:
            self._flush()

    def finish(self) -> None:
        """Write what is left, make the indexes, and merge the parts of the text."""
        self._flush()
        self._lines.flush()
        tags = _Lines(self._db, "tags")
        for number, keyword in self._db.execute("SELECT id, raw FROM tag ORDER BY id"):
            tags.append(number, [keyword])
        tags.flush()
        for statement in INDEXES.values():
            self._db.execute(statement)
        _tune(self._db, _USUAL_CACHE_KIB, _USUAL_TEXT_BYTES)
        _merge_parts(self._db, *_USUALLY)
        for table in _TEXT_TABLES:
            self._db.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")

    def _flush(self) -> None:
        entries, self._entries = self._entries, []
        many = self._db.executemany
        many(INSERT_CARD, (entry.row(number, latest, uses) for number, entry, latest, uses in entries))
        many(INSERT_ALIAS, ((v, w, number) for number, entry, _, _ in entries for v, w in entry.aliases))
        many(INSERT_FACET, ((f, v, number) for number, entry, _, _ in entries for f, v in entry.facets))
        many(INSERT_LINK, ((number, r, t) for number, entry, _, _ in entries for r, t in entry.links))
        for table, wanted in (("latest", True), ("older", False)):
            many(insert_text(table), ((n, e.text, e.marks) for n, e, latest, _ in entries if latest is wanted))
        tags = _new(self._tags, (keyword for _, entry, _, _ in entries for keyword in entry.keywords))
        many("INSERT INTO tag(raw, value) VALUES (?, ?)", ((keyword, normal(keyword)) for keyword in tags))
        first = len(self._words) + 1
        words = list(enumerate(_new(self._words, (word for _, entry, _, _ in entries for word in entry.words)), first))
        many("INSERT INTO word(id, word) VALUES (?, ?)", words)
        many("INSERT INTO gram(rowid, word) VALUES (?, ?)", words)


@contextmanager
def many_changes(connection: sqlite3.Connection) -> Iterator[None]:
    """Give SQLite room for many changes of one transaction: else it writes pages out and reads them again."""
    _tune(connection, _CACHE_KIB, _TEXT_BYTES)
    yield
    _tune(connection, _USUAL_CACHE_KIB, _USUAL_TEXT_BYTES)  # what fails is rolled back anyway


def _tune(connection: sqlite3.Connection, cache_kib: int, text_bytes: int) -> None:
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    for table in _TEXT_TABLES:
        connection.execute(f"INSERT INTO {table}({table}, rank) VALUES ('hashsize', ?)", (text_bytes,))


def _merge_parts(connection: sqlite3.Connection, automerge: int, crisismerge: int) -> None:
    for table in _TEXT_TABLES:
        for name, parts in (("automerge", automerge), ("crisismerge", crisismerge)):
            connection.execute(f"INSERT INTO {table}({table}, rank) VALUES ('{name}', ?)", (parts,))


class _Lines:
    """Writes lines of text into the blobs of a table, a chunk of numbers each; numbers come in order."""

    def __init__(self, connection: sqlite3.Connection, table: str) -> None:
        self._db, self._table = connection, table
        self._chunk, self._ids, self._text = 0, list[str](), list[str]()

    def append(self, number: int, lines: Iterable[str]) -> None:
        if number // CHUNK_CARDS != self._chunk:
            self.flush()
            self._chunk = number // CHUNK_CARDS
        for line in lines:
            self._ids.append(str(number))
            self._text.append(f"{line}\n")

    def flush(self) -> None:
        if self._ids:
            row = self._chunk, " ".join(self._ids), "".join(self._text).encode()
            self._db.execute(f"INSERT INTO {self._table} VALUES (?, ?, ?)", row)
        self._ids, self._text = [], []


def _new(known: set[str], texts: Iterable[str]) -> list[str]:
    """Return the texts that are not known yet, each once, and remember them."""
    new = [text for text in dict.fromkeys(texts) if text not in known]
    known.update(new)
    return new
