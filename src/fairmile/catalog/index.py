"""The index: an SQLite cache over the card files, rebuilt from them at any time.

Cards get row numbers in order of use when the index is built, so that "the first matches" of a
common word are the most used ones: only those are ranked, which keeps the slowest query fast.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fairmile.base.errors import FairmileError, SystemFailure, UsageError
from fairmile.base.files import Lock
from fairmile.base.words import closest, slug
from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.folder import TOMBSTONE_SUFFIX, CatalogFolder, Stamp
from fairmile.catalog.identity import Reference, doi_of, version_key
from fairmile.catalog.query import Query, facet_token, facet_words, fts_expression, normal

SCHEMA_VERSION = "1"
# Matches that are ranked; a word in every card of 100,000 then costs 8 ms instead of 160 (speed/search.py).
_RANKED_MATCHES = 1000
_NAME_MATCHES = 500
_CHUNK_CARDS = 512
_MAX_REST_CHARACTERS = 20_000
_MAX_REGEX_CHARACTERS = 200
# Column weights of bm25: name, keywords, description, rest, facets.
_WEIGHTS = "10.0, 5.0, 2.0, 1.0, 0.0"
_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE card(
  id INTEGER PRIMARY KEY, catalog TEXT, path TEXT, size INTEGER, mtime INTEGER,
  kind TEXT, name TEXT, version TEXT, version_key TEXT, iri TEXT, title TEXT,
  digest TEXT, content TEXT, gone INTEGER, latest INTEGER, uses INTEGER, summary TEXT);
CREATE UNIQUE INDEX card_path ON card(catalog, path);
CREATE INDEX card_name ON card(name, kind);
CREATE TABLE alias(value TEXT, what TEXT, card INTEGER);
CREATE INDEX alias_value ON alias(value);
CREATE INDEX alias_card ON alias(card);
CREATE TABLE facet(facet TEXT, value TEXT, card INTEGER);
CREATE INDEX facet_value ON facet(facet, value);
CREATE INDEX facet_card ON facet(card);
CREATE TABLE link(card INTEGER, relation TEXT, target TEXT);
CREATE INDEX link_target ON link(target);
CREATE INDEX link_card ON link(card);
CREATE TABLE names(chunk INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE word(id INTEGER PRIMARY KEY, word TEXT UNIQUE);
CREATE VIRTUAL TABLE gram USING fts5(word, tokenize='trigram', content='', detail=none);
CREATE VIRTUAL TABLE text USING fts5(
  name, keywords, description, rest, facets, tokenize='porter unicode61 remove_diacritics 2', prefix='3');
"""
_COLUMNS = "id, catalog, path, kind, name, version, iri, title, digest, content, gone, latest, uses, summary"


class Row(NamedTuple):
    """One card as the index knows it."""

    id: int
    catalog: str
    path: str
    kind: str
    name: str
    version: str
    iri: str
    title: str
    digest: str
    content: str | None
    gone: bool
    latest: bool
    uses: int
    summary: dict[str, Any]

    @property
    def handle(self) -> str:
        return f"{self.catalog}/{self.kind}/{self.name}@{self.version}"


@dataclass
class Refresh:
    """What a refresh of the index did."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)


class Index:
    """Search and look-up over the cards of several catalogs."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, *, writable: bool) -> None:
        self._db = connection
        self.path = path
        self.writable = writable

    @classmethod
    def open(cls, path: Path) -> Index:
        """Open the index, made anew when missing or of another version; in memory where it cannot be written."""
        if not path.exists() and not _can_create(path):
            return cls.in_memory()
        if not path.exists():
            with _lock(path):
                if not path.exists():
                    _create_aside(path, lambda index: None)
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        mode = "rw" if writable else "ro"
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=60.0, isolation_level=None
            )
            index = cls(connection, path, writable=writable)
            version = index.meta("schema")
        except sqlite3.DatabaseError as error:
            if not writable:
                raise SystemFailure(f"the index {path} cannot be read: {error}") from error
            version = None
        if version == SCHEMA_VERSION:
            return index
        if not writable:
            return cls.in_memory()
        path.unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def in_memory(cls) -> Index:
        """Return an empty index that lives as long as the process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        index = cls(connection, None, writable=True)
        index._create()
        return index

    def _create(self) -> None:
        self._db.executescript(_SCHEMA)
        self._set_meta("schema", SCHEMA_VERSION)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if not self.writable:
            raise SystemFailure(f"the index {self.path} is read-only here")
        if self.path is None:
            yield
            return
        with _lock(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # Writing

    def stale(self, folders: Sequence[CatalogFolder]) -> bool:
        """Tell whether any catalog has changed since it was indexed, or is no longer there."""
        known = dict(self._db.execute("SELECT key, value FROM meta WHERE key LIKE 'catalog:%'"))
        return known != {f"catalog:{folder.name}": folder.generation() for folder in folders}

    def refresh(
        self,
        folders: Sequence[CatalogFolder],
        uses: Mapping[str, int],
        *,
        on_card: Callable[[int, int], None] | None = None,
    ) -> Refresh:
        """Bring the index in line with the files; unchanged files are not read.

        `uses` counts by `kind/name`; `on_card` is told how many of how many files were read.
        """
        done = Refresh()
        with self._transaction():
            names = {folder.name for folder in folders}
            for (catalog,) in self._db.execute("SELECT DISTINCT catalog FROM card").fetchall():
                if catalog not in names:
                    done.removed += self._forget(catalog, [row[0] for row in self._paths(catalog)])
            self._db.execute("DELETE FROM meta WHERE key LIKE 'catalog:%'")
            changed: list[tuple[CatalogFolder, str, Stamp, bool]] = []
            for folder in folders:
                self._set_meta(f"catalog:{folder.name}", folder.generation())
                known = {path: Stamp(size, mtime) for path, size, mtime in self._paths(folder.name)}
                found = dict(folder.scan())
                done.removed += self._forget(folder.name, [path for path in known if path not in found])
                changed += [(folder, p, stamp, p in known) for p, stamp in found.items() if known.get(p) != stamp]
            changed.sort(key=lambda entry: -uses.get(_asset(entry[1]), 0))
            self._put_all(changed, uses, done, on_card)
        return done

    def _paths(self, catalog: str) -> list[tuple[str, int, int]]:
        return self._db.execute("SELECT path, size, mtime FROM card WHERE catalog = ?", (catalog,)).fetchall()

    def _put_all(
        self,
        changed: Sequence[tuple[CatalogFolder, str, Stamp, bool]],
        uses: Mapping[str, int],
        done: Refresh,
        on_card: Callable[[int, int], None] | None,
    ) -> None:
        assets: set[tuple[str, str, str]] = set()
        for number, (folder, path, stamp, known) in enumerate(changed, 1):
            try:
                card = folder.read(path)
                self._put(card, path, stamp, uses.get(_asset(path), 0))
                assets.add((folder.name, card.kind, card.name))
            except FairmileError as error:
                done.damaged.append((f"{folder.name}/{path}", str(error)))
                continue
            done.changed += known
            done.added += not known
            if on_card:
                on_card(number, len(changed))
        for catalog, kind, name in assets:
            self._mark_latest(catalog, kind, name)

    def put(self, folder: CatalogFolder, card: Card, generation: str) -> None:
        """Index one card that was just written to its folder."""
        gone = "tombstone" in card
        path = folder.tombstone_path(card.handle) if gone else folder.path(card.handle)
        status = path.stat()
        relative = str(path.relative_to(folder.cards_root))
        with self._transaction():
            twin = folder.relative_path(card.handle) if gone else relative.removesuffix(".jsonld") + TOMBSTONE_SUFFIX
            self._forget(folder.name, [twin])
            self._put(card, relative, Stamp(status.st_size, status.st_mtime_ns), self._uses(card))
            self._mark_latest(folder.name, card.kind, card.name)
            self._set_meta(f"catalog:{folder.name}", generation)

    def _uses(self, card: Card) -> int:
        row = self._db.execute(
            "SELECT max(uses) FROM card WHERE kind = ? AND name = ?", (card.kind, card.name)
        ).fetchone()
        return row[0] or 0

    def _put(self, card: Card, path: str, stamp: Stamp, uses: int) -> None:
        handle = card.handle
        facets = facets_of(card)
        old = self._db.execute("SELECT id FROM card WHERE catalog = ? AND path = ?", (card.catalog, path)).fetchone()
        if old:
            self._forget(card.catalog, [path])
        gone = "tombstone" in card
        # An only version is the latest at once; where there are several, `_mark_latest` decides after.
        alone = not self._versions(card.catalog, handle.kind, handle.name)
        cursor = self._db.execute(
            "INSERT INTO card VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(old[0] if old else None, card.catalog, path, stamp.size_bytes, stamp.mtime_ns),
                *(handle.kind, handle.name, handle.version, version_key(card.version), card.iri, card.title),
                *(card.digest, card.content, gone, alone, uses, json.dumps(_summary(card), ensure_ascii=False)),
            ),
        )
        number = cursor.lastrowid
        assert number is not None
        self._db.executemany("INSERT INTO alias VALUES (?, ?, ?)", [(v, w, number) for v, w in _aliases(card)])
        self._db.executemany("INSERT INTO facet VALUES (?, ?, ?)", [(f, normal(v), number) for f, v in facets])
        self._db.executemany("INSERT INTO link VALUES (?, ?, ?)", [(number, r, t) for r, t in card.links])
        tokens = {facet_token(facet, word): None for facet, value in facets for word in facet_words(value)}
        words = " ".join(["card", *(["latest"] if alone else []), *tokens])
        self._db.execute(
            "INSERT INTO text(rowid, name, keywords, description, rest, facets) VALUES (?, ?, ?, ?, ?, ?)",
            (number, *_texts(card), words),
        )
        if not gone:
            self._put_names(number, card)

    def _versions(self, catalog: str, kind: str, name: str) -> list[tuple[int, int]]:
        sql = "SELECT id, latest FROM card WHERE catalog = ? AND kind = ? AND name = ? ORDER BY gone, version_key DESC"
        return self._db.execute(sql, (catalog, kind, name)).fetchall()

    def _put_names(self, number: int, card: Card) -> None:
        fields = [str(number), card.title, card.name, *card.texts("alternateName"), *card.keywords]
        line = "\t".join(" ".join(text.split()) for text in fields) + "\n"
        self._db.execute(
            "INSERT INTO names VALUES (?, ?) ON CONFLICT(chunk) DO UPDATE SET text = text || excluded.text",
            (number // _CHUNK_CARDS, line),
        )
        words = {word for text in (card.title, *card.keywords) for word in re.findall(r"[^\W_]{3,40}", text.lower())}
        for word in words:
            cursor = self._db.execute("INSERT OR IGNORE INTO word(word) VALUES (?)", (word,))
            if cursor.rowcount == 1:
                self._db.execute("INSERT INTO gram(rowid, word) VALUES (?, ?)", (cursor.lastrowid, word))

    def _forget(self, catalog: str, paths: Iterable[str]) -> int:
        count = 0
        for path in paths:
            row = self._db.execute(
                "SELECT id, kind, name FROM card WHERE catalog = ? AND path = ?", (catalog, path)
            ).fetchone()
            if row is None:
                continue
            count += 1
            self._db.execute("DELETE FROM text WHERE rowid = ?", (row[0],))
            for table in ("alias", "facet", "link"):
                self._db.execute(f"DELETE FROM {table} WHERE card = ?", (row[0],))
            self._db.execute("DELETE FROM card WHERE id = ?", (row[0],))
            chunk = row[0] // _CHUNK_CARDS
            old = self._db.execute("SELECT text FROM names WHERE chunk = ?", (chunk,)).fetchone()
            if old:
                kept = [line for line in old[0].splitlines(keepends=True) if not line.startswith(f"{row[0]}\t")]
                self._db.execute("UPDATE names SET text = ? WHERE chunk = ?", ("".join(kept), chunk))
            self._mark_latest(catalog, row[1], row[2])
        return count

    def _mark_latest(self, catalog: str, kind: str, name: str) -> None:
        rows = self._versions(catalog, kind, name)
        for place, (number, latest) in enumerate(rows):
            wanted = int(place == 0)
            if latest == wanted:
                continue
            self._db.execute("UPDATE card SET latest = ? WHERE id = ?", (wanted, number))
            (tokens,) = self._db.execute("SELECT facets FROM text WHERE rowid = ?", (number,)).fetchone()
            words = [word for word in tokens.split() if word != "latest"] + (["latest"] if wanted else [])
            self._db.execute("UPDATE text SET facets = ? WHERE rowid = ?", (" ".join(words), number))

    def count_use(self, kind: str, name: str) -> None:
        """Count one more use of the asset."""
        with self._transaction():
            self._db.execute("UPDATE card SET uses = uses + 1 WHERE kind = ? AND name = ?", (kind, name))

    # Reading

    def _rows(self, where: str, values: Sequence[Any] = ()) -> list[Row]:
        found = self._db.execute(f"SELECT {_COLUMNS} FROM card WHERE {where}", values)
        return [Row._make((*row[:10], bool(row[10]), bool(row[11]), row[12], json.loads(row[13]))) for row in found]

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """Return the cards with these row numbers, in their order."""
        found = {row.id: row for row in self._rows(f"id IN ({','.join(map(str, ids))})")} if ids else {}
        return [found[number] for number in ids if number in found]

    def count(self) -> dict[str, int]:
        """Return how many cards each catalog holds."""
        return dict(self._db.execute("SELECT catalog, count(*) FROM card WHERE NOT gone GROUP BY catalog"))

    def named(self, reference: Reference) -> list[Row]:
        """Return every card the reference may mean, newest version first."""
        where, values = ["name = ?"], [reference.name]
        for column in ("kind", "catalog", "version"):
            value = getattr(reference, column)
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        return self._rows(" AND ".join(where) + " ORDER BY gone, version_key DESC", values)

    def twins(self, rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
        """Return every card that shares kind and name with one of these, by (kind, name)."""
        names = list(dict.fromkeys(row.name for row in rows))
        marks = ",".join("?" * len(names))
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self._rows(f"name IN ({marks})", names) if names else []:
            found.setdefault((row.kind, row.name), []).append(row)
        return found

    def aliased(self, value: str) -> list[Row]:
        """Return every card that answers to an id, a DOI, a digest or a source address."""
        return self._rows("id IN (SELECT card FROM alias WHERE value = ?) ORDER BY gone, version_key DESC", (value,))

    def same_content(self, content: str) -> list[Row]:
        return self._rows("id IN (SELECT card FROM alias WHERE value = ? AND what = 'content')", (content,))

    def same_source(self, url: str) -> list[Row]:
        return self._rows("id IN (SELECT card FROM alias WHERE value = ? AND what = 'url')", (url,))

    def facet_values(self, facet: str) -> dict[str, int]:
        """Return the values of a facet with the number of cards that have each."""
        found = self._db.execute(
            "SELECT value, count(DISTINCT card) FROM facet WHERE facet = ? GROUP BY value ORDER BY 2 DESC, 1", (facet,)
        )
        return dict(found)

    def linking_to(self, targets: Iterable[str], relation: str | None = None) -> list[tuple[str, Row]]:
        """Return every (relation, card) that names one of the targets."""
        wanted = list(dict.fromkeys(targets))
        marks = ",".join("?" * len(wanted))
        sql = f"SELECT card, relation FROM link WHERE target IN ({marks})"
        pairs = self._db.execute(
            sql + (" AND relation = ?" if relation else ""), [*wanted, *([relation] if relation else [])]
        )
        found = pairs.fetchall()
        rows = {row.id: row for row in self.rows([number for number, _ in found])}
        return [(name, rows[number]) for number, name in found if number in rows]

    def search(self, query: Query, *, limit: int = 20) -> list[Row]:
        """Return the best matches: by relevance, then by use."""
        ids = self._matching_names(query, limit) if query.regexes else self._ranked(query, limit)
        return self.rows(ids)

    def _ranked(self, query: Query, limit: int) -> list[int]:
        worded = query.words or query.prefixes or query.phrases
        if not worded:
            sql = "SELECT rowid FROM text WHERE text MATCH ? LIMIT ?"
            ids = [row[0] for row in self._db.execute(sql, (fts_expression(query), _RANKED_MATCHES))]
            marks = ",".join(map(str, ids))
            order = (
                f"SELECT id FROM card WHERE id IN ({marks}) ORDER BY gone, uses DESC, name, version_key DESC LIMIT ?"
            )
            return [row[0] for row in self._db.execute(order, (limit,))] if ids else []
        sql = f"SELECT rowid, bm25(text, {_WEIGHTS}) FROM text WHERE text MATCH ? LIMIT ?"
        scores = dict(self._db.execute(sql, (fts_expression(query), _RANKED_MATCHES)))
        if len(scores) == _RANKED_MATCHES:
            in_name = fts_expression(query, only="name keywords")
            scores |= dict(self._db.execute(sql, (in_name, _NAME_MATCHES)))
        best = sorted(scores, key=scores.__getitem__)[: limit + 40]
        marks = ",".join(map(str, best))
        found = self._db.execute(f"SELECT id, gone, uses FROM card WHERE id IN ({marks})") if best else ()
        known = {number: (gone, used) for number, gone, used in found}
        # One decimal of relevance decides; among equals the more used one comes first.
        best.sort(key=lambda number: (known[number][0], round(scores[number], 1), -known[number][1], number))
        return best[:limit]

    def _matching_names(self, query: Query, limit: int) -> list[int]:
        patterns = [_linear_regex(text) for text in query.regexes]
        allowed = self._allowed(query)
        found: list[int] = []
        for (text,) in self._db.execute("SELECT text FROM names ORDER BY chunk"):
            if not all(pattern.search(text) for pattern in patterns):
                continue
            for line in text.splitlines():
                number, _, names = line.partition("\t")
                if all(pattern.search(names) for pattern in patterns) and allowed(int(number)):
                    found.append(int(number))
                    if len(found) == limit:
                        return found
        return found

    def _allowed(self, query: Query) -> Callable[[int], bool]:
        plain = query.all_versions and not (query.words or query.prefixes or query.phrases or query.facets)
        if plain and not (query.not_words or query.not_facets):
            return lambda number: True
        sql = "SELECT 1 FROM text WHERE text MATCH ? AND rowid = ?"
        expression = fts_expression(query)
        return lambda number: self._db.execute(sql, (expression, number)).fetchone() is not None

    def clashes(self, order: Sequence[str]) -> dict[str, list[str]]:
        """Return, for each catalog, the assets whose card differs from one of higher precedence."""
        found = self._db.execute(
            "SELECT kind, name, version, group_concat(catalog || ' ' || digest, '\n') FROM card WHERE NOT gone"
            " GROUP BY kind, name, version HAVING count(DISTINCT digest) > 1"
        )
        clashes: dict[str, list[str]] = {}
        for kind, name, version, pairs in found:
            cards = dict(pair.split(" ", 1) for pair in pairs.split("\n"))
            ranked = sorted((catalog for catalog in cards if catalog in order), key=order.index)
            for catalog in ranked[1:]:
                if cards[catalog] != cards[ranked[0]]:
                    clashes.setdefault(catalog, []).append(f"{kind}/{name}@{version}")
        return clashes

    def suggest(self, text: str, n: int = 3) -> list[str]:
        """Return the indexed words nearest to a word that found nothing."""
        word = text.lower()
        grams = {word[i : i + 3] for i in range(len(word) - 2)}
        if not grams:
            return []
        expression = " OR ".join('"' + gram.replace('"', "") + '"' for gram in sorted(grams) if '"' not in gram)
        sql = "SELECT word FROM word WHERE id IN (SELECT rowid FROM gram WHERE gram MATCH ? LIMIT 3000)"
        candidates = [row[0] for row in self._db.execute(sql, (expression,))] if expression else []
        return [each for each in closest(word, candidates, n) if each != word]


def rebuild(
    path: Path,
    folders: Sequence[CatalogFolder],
    uses: Mapping[str, int],
    *,
    on_card: Callable[[int, int], None] | None = None,
) -> Refresh:
    """Build the index anew from the files, aside, then put it in place; returns what was read."""
    report = Refresh()

    def fill(index: Index) -> None:
        nonlocal report
        report = index.refresh(folders, uses, on_card=on_card)
        index._db.execute("INSERT INTO text(text) VALUES ('optimize')")

    with _lock(path):
        _create_aside(path, fill)
    return report


def _create_aside(path: Path, fill: Callable[[Index], None]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        connection = sqlite3.connect(aside, isolation_level=None)
        # Built aside and renamed when whole: a crash leaves no half index, so no journal is needed.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        with Index(connection, None, writable=True) as index:
            index._create()
            connection.execute("BEGIN")
            fill(index)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = DELETE")
        with open(aside, "rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _asset(path: str) -> str:
    return path.rpartition("/")[0]


def _lock(path: Path) -> Lock:
    return Lock(path.with_name(path.name + ".lock"), timeout_s=600.0)


def _can_create(path: Path) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path.parent, os.W_OK)


def _linear_regex(pattern: str) -> Any:
    import re2

    if len(pattern) > _MAX_REGEX_CHARACTERS:
        raise UsageError(f"the regular expression is longer than {_MAX_REGEX_CHARACTERS} characters")
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = 8 << 20
    try:
        return re2.compile(f"(?m:{pattern})", options)
    except re2.error as error:
        text = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise UsageError(
            f"/{pattern}/ is not a regular expression: {text}", hint="RE2 syntax: no look-around, no back-references"
        ) from error


def facets_of(card: Card) -> list[tuple[str, str]]:
    """Return every (facet, value) the card can be found by."""
    machines = card.texts("targetMachine") + card.texts("runsOn")
    gpus = card.texts("gpuModel") + card.texts("gpuArchitecture")
    access = [text.rsplit("/", 1)[-1] for text in card.texts("accessRights")]
    values = {
        "kind": [card.kind],
        "catalog": [card.catalog],
        "domain": card.domains,
        "task": card.tasks,
        "framework": card.frameworks,
        "format": card.formats,
        "licence": [card.licence] if card.licence else card.texts("license"),
        "tag": card.keywords,
        "creator": card.texts("creator"),
        "project": [*card.texts("project"), *_inner(card, "project", "alternateName")],
        "funder": [*card.texts("funder"), *_inner(card, "funding", "funder"), *_inner(card, "project", "funder")],
        "machine": machines,
        "gpu": [*gpus, *card.texts("processorRequirements")],
        "language": card.texts("programmingLanguage"),
        "access": access,
        "category": card.texts("modelCategory"),
    }
    pairs = [(facet, value) for facet, found in values.items() for value in found if value and len(value) <= 200]
    return list(dict.fromkeys(pairs))


def _inner(card: Card, key: str, inner: str) -> list[str]:
    objects = [value for value in as_list(card.get(key)) if isinstance(value, Mapping)]
    return [text for each in objects for value in as_list(each.get(inner)) if (text := text_of(value))]


def _aliases(card: Card) -> list[tuple[str, str]]:
    found = [(text, "id") for text in card.identifiers]
    found += [(doi, "id") for text in card.identifiers if (doi := doi_of(text))]
    found += [(card.digest, "card")]
    if card.content:
        found.append((card.content, "content"))
    for file in card.files:
        if file.url:
            found.append((file.url, "url"))
        if file.sha256:
            found.append((file.sha256, "sha256"))
    if repository := card.text("codeRepository"):
        found.append((repository, "repository"))
    source = card.get("sourceDocument")
    if isinstance(source, Mapping) and isinstance(source.get("sha256"), str):
        found.append((source["sha256"], "document"))
    return list(dict.fromkeys(found))


def _summary(card: Card) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "description": card.text("description")[:300],
        "licence": card.licence or card.text("license") or None,
        "domains": card.domains,
        "tasks": card.tasks,
        "frameworks": card.frameworks,
        "formats": card.formats,
        "size_bytes": sum(file.size_bytes or 0 for file in card.files) or None,
        "warnings": len(card.warnings),
    }
    if "tombstone" in card:
        summary["tombstone"] = card["tombstone"]
    return {key: value for key, value in summary.items() if value}


def _texts(card: Card) -> tuple[str, str, str, str]:
    name = " ".join([card.title, card.name.replace("-", " "), *card.texts("alternateName")])
    keywords = " ".join(
        [*card.keywords, *card.domains, *card.tasks, *card.frameworks, *card.formats, *card.texts("modelCategory")]
    )
    skip = {"@context", "conformsTo", "name", "keywords", "description", "alternateName", "sourceDocument", "warnings"}
    rest: list[str] = []
    left = _MAX_REST_CHARACTERS
    for text in _leaves({key: value for key, value in card.items() if key not in skip}):
        left -= len(text)
        if left < 0:
            break
        rest.append(text)
    return name, keywords, card.text("description") or card.text("abstract"), " ".join(rest)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, str):
        yield value


def target_names(row_or_card: Row | Card) -> list[str]:
    """Return every text by which a link may name this asset: its ids, its name, its handle."""
    if isinstance(row_or_card, Card):
        handle = row_or_card.handle
        ids = row_or_card.identifiers
    else:
        ids = [row_or_card.iri]
        handle = row_or_card  # type: ignore[assignment]
    short = f"{handle.kind}/{handle.name}"
    names = [*ids, row_or_card.title, slug(row_or_card.title), short, f"{short}@{handle.version}"]
    return list(dict.fromkeys(name for name in names if name))
