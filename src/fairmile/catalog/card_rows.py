"""The rows of one card in the tables of the index: written, moved between versions, taken out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.catalog.card import Card
from fairmile.catalog.extract import aliases_of, facets_of, links_of, summary_of, texts_of
from fairmile.catalog.folder import CatalogFolder, Stamp
from fairmile.catalog.identity import version_key
from fairmile.catalog.query import ANY_CARD, IN_KEYWORDS, IN_NAME, facet_token, facet_words, marked_words, normal

# Names are kept in blobs of this many cards, which a regular expression searches at one go.
CHUNK_CARDS = 512
INSERT_CARD = "INSERT INTO card VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_ALIAS = "INSERT INTO alias VALUES (?, ?, ?)"
INSERT_FACET = "INSERT INTO facet VALUES (?, ?, ?)"
INSERT_LINK = "INSERT INTO link VALUES (?, ?, ?)"
_WORD = lazy_pattern(r"[^\W_]{3,40}")
_SUMMARY = json.JSONEncoder(ensure_ascii=False).encode


def insert_text(table: str) -> str:
    """Return the statement that makes a card searchable, among the latest versions or the older ones."""
    return f"INSERT INTO {table}(rowid, words, marks) VALUES (?, ?, ?)"


class Entry(NamedTuple):
    """All that the tables hold of one card."""

    kind: str
    name: str
    facts: tuple[Any, ...]  # the columns of `card` from its catalog to `gone`
    summary: str
    aliases: list[tuple[str, str]]
    facets: list[tuple[str, str]]
    links: list[tuple[str, str]]
    text: str
    marks: str
    names: list[str]
    keywords: list[str]
    words: set[str]

    def row(self, number: int | None, latest: bool, uses: int) -> tuple[Any, ...]:
        """Return the row of the card itself."""
        return (number, *self.facts, latest, uses, self.summary)


def entry_of(card: Card, path: str, stamp: Stamp) -> Entry:
    """Return the entry of a card; all that can fail on a strange card happens here."""
    handle, gone = card.handle, "tombstone" in card
    title, keywords = card.title, card.keywords
    facets = facets_of(card)
    normals: list[tuple[str, str]] = []
    tokens: dict[str, None] = {}
    for facet, value in facets:
        plain, of_value = _facet_row(facet, value)
        normals.append((facet, plain))
        tokens.update(of_value)
    name, marked, rest = texts_of(card)
    marks = [ANY_CARD, *tokens, marked_words(name, IN_NAME), marked_words(f"{name} {marked}", IN_KEYWORDS)]
    facts = (
        *(card.catalog, path, stamp.size_bytes, stamp.mtime_ns),
        *(handle.kind, handle.name, handle.version, version_key(card.version[:200]), card.iri, title),
        *(card.digest, card.content, gone),
    )
    summary = _SUMMARY(summary_of(card))
    shown = dict.fromkeys(" ".join(text.split()) for text in (title, card.name, *card.texts("alternateName")))
    return Entry(
        *(handle.kind, handle.name, facts, summary, aliases_of(card)),
        # What was removed is neither counted nor suggested.
        [] if gone else normals,
        links_of(card),
        *(f"{name} {marked} {rest}", " ".join(marks)),
        [] if gone else list(shown),
        [] if gone else list(dict.fromkeys(" ".join(text.split()) for text in keywords)),
        set() if gone else set(_WORD.findall(" ".join((title, *keywords)).lower())),
    )


class CardRows:
    """Puts cards into the tables and takes them out; the caller holds the transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def uses(self, card: Card) -> int:
        """Return how often any version of the asset was used."""
        row = self._db.execute(
            "SELECT max(uses) FROM card WHERE kind = ? AND name = ?", (card.kind, card.name)
        ).fetchone()
        return row[0] or 0

    def put(self, entry: Entry, uses: int) -> None:
        """Write the rows of a card, in place of those of the same path."""
        catalog, path = entry.facts[:2]
        old = self._db.execute(
            "SELECT id, kind, name FROM card WHERE catalog = ? AND path = ?", (catalog, path)
        ).fetchone()
        if old:
            self._forget_text(old[0])
            self._db.execute("DELETE FROM card WHERE id = ?", (old[0],))
            if old[1:] != (entry.kind, entry.name):
                self.mark_latest(catalog, *old[1:])
        # An only version is the latest at once; where there are several, `_mark_latest` decides after.
        alone = not self._versions(catalog, entry.kind, entry.name)
        cursor = self._db.execute(INSERT_CARD, entry.row(old[0] if old else None, alone, uses))
        number = cursor.lastrowid
        assert number is not None
        self._replace("alias", ("value", "what"), number, entry.aliases, is_new=not old)
        self._replace("facet", ("facet", "value"), number, entry.facets, is_new=not old)
        self._replace("link", ("relation", "target"), number, entry.links, is_new=not old)
        self._db.execute(insert_text("latest" if alone else "older"), (number, entry.text, entry.marks))
        self._put_names(number, entry, is_new=not old)

    def _replace(
        self, table: str, columns: tuple[str, str], number: int, pairs: Sequence[tuple[str, str]], *, is_new: bool
    ) -> None:
        """Write the rows of a card; those that stay the same, which are most, are not touched."""
        old: set[tuple[str, str]] = set()
        if not is_new:
            old = set(self._db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE card = ?", (number,)))
        wanted = dict.fromkeys(pairs)
        gone = [(number, *pair) for pair in old if pair not in wanted]
        added = [(*pair, number) for pair in wanted if pair not in old]
        first, second = columns
        if gone:
            sql = f"DELETE FROM {table} WHERE card = ? AND {first} = ? AND {second} = ?"
            self._db.executemany(sql, gone)
        if added:
            self._db.executemany(f"INSERT INTO {table}({first}, {second}, card) VALUES (?, ?, ?)", added)

    def _versions(self, catalog: str, kind: str, name: str) -> list[tuple[int, int]]:
        sql = "SELECT id, latest FROM card WHERE catalog = ? AND kind = ? AND name = ? ORDER BY gone, version_key DESC"
        return self._db.execute(sql, (catalog, kind, name)).fetchall()

    def _put_names(self, number: int, entry: Entry, *, is_new: bool) -> None:
        if is_new or self._names_of(number) != entry.names:
            if not is_new:
                self._forget_names(number)
            if entry.names:
                self._append_lines("names", number, entry.names)
        for keyword in entry.keywords:
            cursor = self._db.execute("INSERT OR IGNORE INTO tag(raw, value) VALUES (?, ?)", (keyword, normal(keyword)))
            if cursor.rowcount == 1 and cursor.lastrowid is not None:
                self._append_lines("tags", cursor.lastrowid, [keyword])
        for word in entry.words:
            cursor = self._db.execute("INSERT OR IGNORE INTO word(word) VALUES (?)", (word,))
            if cursor.rowcount == 1:
                self._db.execute("INSERT INTO gram(rowid, word) VALUES (?, ?)", (cursor.lastrowid, word))

    def _append_lines(self, table: str, number: int, lines: Sequence[str]) -> None:
        self._db.execute(
            f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT(chunk) DO UPDATE"
            " SET ids = ids || ' ' || excluded.ids, lines = CAST(lines || excluded.lines AS BLOB)",
            (number // CHUNK_CARDS, " ".join([str(number)] * len(lines)), "".join(f"{x}\n" for x in lines).encode()),
        )

    def forget(self, catalog: str, paths: Iterable[str]) -> int:
        """Take out the cards at these paths and return how many there were."""
        count = 0
        for path in paths:
            row = self._db.execute(
                "SELECT id, kind, name FROM card WHERE catalog = ? AND path = ?", (catalog, path)
            ).fetchone()
            if row is None:
                continue
            count += 1
            self._forget_text(row[0])
            for table in ("alias", "facet", "link"):
                self._db.execute(f"DELETE FROM {table} WHERE card = ?", (row[0],))
            self._db.execute("DELETE FROM card WHERE id = ?", (row[0],))
            self._forget_names(row[0])
            self.mark_latest(catalog, row[1], row[2])
        return count

    def _forget_text(self, number: int) -> None:
        self._db.execute("DELETE FROM latest WHERE rowid = ?", (number,))
        self._db.execute("DELETE FROM older WHERE rowid = ?", (number,))

    def _names_of(self, number: int) -> list[str]:
        """Return the names that are kept of a card."""
        row = self._db.execute("SELECT ids, lines FROM names WHERE chunk = ?", (number // CHUNK_CARDS,)).fetchone()
        ids, own = row[0].split() if row else [], str(number)
        if own not in ids:
            return []
        first = ids.index(own)  # its names stand together
        return [line.decode() for line in row[1].split(b"\n")[first : first + ids.count(own)]]

    def _forget_names(self, number: int) -> None:
        chunk = number // CHUNK_CARDS
        old = self._db.execute("SELECT ids, lines FROM names WHERE chunk = ?", (chunk,)).fetchone()
        if old is None:
            return
        pairs = zip(old[0].split(), old[1].split(b"\n")[:-1], strict=True)
        kept = [(each, line) for each, line in pairs if each != str(number)]
        self._db.execute("DELETE FROM names WHERE chunk = ?", (chunk,))
        if kept:
            ids, lines = " ".join(each for each, _ in kept), b"".join(line + b"\n" for _, line in kept)
            self._db.execute("INSERT INTO names VALUES (?, ?, ?)", (chunk, ids, lines))

    def mark_latest(self, catalog: str, kind: str, name: str) -> None:
        """Put the newest version that is not removed among the latest, all others among the older ones."""
        rows = self._versions(catalog, kind, name)
        for place, (number, latest) in enumerate(rows):
            wanted = int(place == 0)
            if latest == wanted:
                continue
            self._db.execute("UPDATE card SET latest = ? WHERE id = ?", (wanted, number))
            here, there = ("latest", "older") if wanted else ("older", "latest")
            columns = "rowid, words, marks"
            self._db.execute(f"INSERT INTO {here}({columns}) SELECT {columns} FROM {there} WHERE rowid = ?", (number,))
            self._db.execute(f"DELETE FROM {there} WHERE rowid = ?", (number,))


@lru_cache(maxsize=100_000)
def _facet_row(facet: str, value: str) -> tuple[str, dict[str, None]]:
    """Return the value of a facet as it is compared, and its tokens in their order."""
    plain = normal(value)
    # A catalog or kind is named in full; of anything else a part will do.
    words = (plain,) if facet in ("kind", "catalog") else facet_words(value)
    return plain, dict.fromkeys(facet_token(facet, word) for word in words)


def read_in_place(folder: CatalogFolder, path: str) -> Card:
    """Return the card in a file, which must stand where its handle says: else it could not be changed or removed."""
    card = folder.read(path)
    handle = card.handle
    if path not in folder.paths(handle):
        raise UsageError(
            f"the card {folder.cards_root / path} describes {handle}, whose place is {folder.path(handle)}",
            hint="move it there, or add it with `fairmile catalog add`",
        )
    return card
