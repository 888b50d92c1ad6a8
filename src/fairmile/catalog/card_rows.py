"""The rows of one card in the tables of the index: written, moved between versions, taken out."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Sequence

from fairmile.base.errors import UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.extract import aliases_of, facets_of, links_of, summary_of, texts_of
from fairmile.catalog.folder import CatalogFolder, Stamp
from fairmile.catalog.identity import version_key
from fairmile.catalog.query import ANY_CARD, IN_KEYWORDS, IN_NAME, facet_token, facet_words, marked_words, normal

# Names are kept in blobs of this many cards, which a regular expression searches at one go.
CHUNK_CARDS = 512


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

    def put(self, card: Card, path: str, stamp: Stamp, uses: int) -> None:
        """Write the rows of a card, in place of those of the same path."""
        handle, gone = card.handle, "tombstone" in card
        # All that can fail on a strange card comes before the first change.
        facets, aliases, links, texts = facets_of(card), aliases_of(card), links_of(card), texts_of(card)
        words = {word: None for facet, value in facets for word in _facet_tokens(facet, value)}
        facts = (
            *(handle.kind, handle.name, handle.version, version_key(card.version[:200]), card.iri, card.title),
            *(card.digest, card.content, gone),
        )
        summary = json.dumps(summary_of(card), ensure_ascii=False)
        old = self._db.execute("SELECT id FROM card WHERE catalog = ? AND path = ?", (card.catalog, path)).fetchone()
        if old:
            self.forget(card.catalog, [path])
        # An only version is the latest at once; where there are several, `_mark_latest` decides after.
        alone = not self._versions(card.catalog, handle.kind, handle.name)
        cursor = self._db.execute(
            "INSERT INTO card VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(old[0] if old else None, card.catalog, path, stamp.size_bytes, stamp.mtime_ns),
                *facts,
                *(alone, uses, summary),
            ),
        )
        number = cursor.lastrowid
        assert number is not None
        self._db.executemany("INSERT INTO alias VALUES (?, ?, ?)", [(v, w, number) for v, w in aliases])
        if not gone:  # what was removed is neither counted nor suggested
            self._db.executemany("INSERT INTO facet VALUES (?, ?, ?)", [(f, normal(v), number) for f, v in facets])
        self._db.executemany("INSERT INTO link VALUES (?, ?, ?)", [(number, r, t) for r, t in links])
        name, keywords, rest = texts
        marks = [ANY_CARD, *words, marked_words(name, IN_NAME), marked_words(f"{name} {keywords}", IN_KEYWORDS)]
        self._db.execute(
            f"INSERT INTO {'latest' if alone else 'older'}(rowid, words, marks) VALUES (?, ?, ?)",
            (number, f"{name} {keywords} {rest}", " ".join(marks)),
        )
        if not gone:
            self._put_names(number, card)

    def _versions(self, catalog: str, kind: str, name: str) -> list[tuple[int, int]]:
        sql = "SELECT id, latest FROM card WHERE catalog = ? AND kind = ? AND name = ? ORDER BY gone, version_key DESC"
        return self._db.execute(sql, (catalog, kind, name)).fetchall()

    def _put_names(self, number: int, card: Card) -> None:
        names = dict.fromkeys(" ".join(text.split()) for text in (card.title, card.name, *card.texts("alternateName")))
        self._append_lines("names", number, list(names))
        for keyword in dict.fromkeys(" ".join(text.split()) for text in card.keywords):
            cursor = self._db.execute("INSERT OR IGNORE INTO tag(raw, value) VALUES (?, ?)", (keyword, normal(keyword)))
            if cursor.rowcount == 1 and cursor.lastrowid is not None:
                self._append_lines("tags", cursor.lastrowid, [keyword])
        words = {word for text in (card.title, *card.keywords) for word in re.findall(r"[^\W_]{3,40}", text.lower())}
        for word in words:
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
            self._db.execute("DELETE FROM latest WHERE rowid = ?", (row[0],))
            self._db.execute("DELETE FROM older WHERE rowid = ?", (row[0],))
            for table in ("alias", "facet", "link"):
                self._db.execute(f"DELETE FROM {table} WHERE card = ?", (row[0],))
            self._db.execute("DELETE FROM card WHERE id = ?", (row[0],))
            self._forget_names(row[0])
            self.mark_latest(catalog, row[1], row[2])
        return count

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


def _facet_tokens(facet: str, value: str) -> list[str]:
    # A catalog or kind is named in full; of anything else a part will do.
    words = (normal(value),) if facet in ("kind", "catalog") else facet_words(value)
    return [facet_token(facet, word) for word in words]


def read_in_place(folder: CatalogFolder, path: str) -> Card:
    """Return the card in a file, which must stand where its handle says: else it could not be changed or removed."""
    card = folder.read(path)
    expected = (folder.path(card.handle), folder.tombstone_path(card.handle))
    if folder.cards_root / path not in expected:
        raise UsageError(
            f"the card {folder.cards_root / path} describes {card.handle}, whose place is {expected[0]}",
            hint="move it there, or add it with `fairmile catalog add`",
        )
    return card
