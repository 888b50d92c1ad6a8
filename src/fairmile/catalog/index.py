"""The index: an SQLite cache over the card files, rebuilt from them at any time.

Cards get row numbers in order of use when the index is built, so that "the first matches" of a
common word are the most used ones: only those are ranked, which keeps the slowest query fast.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import field, replace
from heapq import merge
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.base.garbage import no_search
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import closest, slug
from fairmile.catalog.bulk_rows import BulkRows, many_changes
from fairmile.catalog.card import Card
from fairmile.catalog.card_rows import CHUNK_CARDS, CardRows, entry_of, read_in_place
from fairmile.catalog.counts import Counts, count_all, count_some
from fairmile.catalog.database import (
    BUSY,
    DAMAGED,
    FAILED,
    SCHEMA,
    SCHEMA_VERSION,
    batches,
    can_create,
    code_of,
    failure_of,
    is_busy,
    is_writable,
    lock_of,
)
from fairmile.catalog.extract import digest_id, id_names
from fairmile.catalog.folder import TOMBSTONE_SUFFIX, CatalogFolder, Stamp
from fairmile.catalog.identity import Reference
from fairmile.catalog.patterns import compile_names, matching_ids
from fairmile.catalog.query import (
    ANYWHERE,
    IN_KEYWORDS,
    IN_NAME,
    Query,
    fts_expression,
    normal,
)
from fairmile.catalog.row import CatalogRow

if TYPE_CHECKING:
    from types import TracebackType

# Where the words stand decides the rank; each step takes in more of the card.
_STEPS = (IN_NAME, IN_KEYWORDS, ANYWHERE)
# Matches a step looks at, the most used first: ranking all 100,000 matches of a common word takes 160 ms.
_STEP_MATCHES = 150
_SHORT = 12  # letters of a word in which two that changed places are looked for
_SHORTEST = 4  # letters up to which a word may have no gram in common with one that has a letter more
# A pattern that matches more keywords than this, or keywords of more cards, finds some of them.
_TAGS = 2000
_TAGGED_CARDS = 3000
_COUNTED = 10_000  # matches of a search whose facets are counted
# So few cards are read anew in a moment where the index cannot be brought in line with them.
_FEW_CARDS = 2000
_FEW_CHANGES = 50  # fit into the usual cache
_COLUMNS = "id, catalog, path, kind, name, version, iri, title, digest, content, gone, latest, uses, summary"


# The paths of the card files of a folder that are new or changed, sorted.
_Changes = tuple[CatalogFolder, list[str]]


class DamagedCardDict(TypedDict):
    path: str
    why: str


class RefreshDict(TypedDict):
    dry_run: bool
    cards: int
    damaged: list[DamagedCardDict]


@dataclass(repr=False)
class Refresh(Result):
    """What a refresh of the index did."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    damaged: list[tuple[str, str]] = field(default_factory=list)
    dry_run: bool = False

    def to_dict(self) -> RefreshDict:
        damaged: list[DamagedCardDict] = [{"path": path, "why": why} for path, why in self.damaged]
        return {"dry_run": self.dry_run, "cards": self.added, "damaged": damaged}

    def summary(self) -> str:
        return f"{self.added:,} cards indexed, {len(self.damaged):,} damaged"


class Index:
    """Search and look-up over the cards of several catalogs."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, *, writable: bool) -> None:
        self._db = connection
        self._cards = CardRows(connection)
        self.path = path
        self.writable = writable
        # The catalogs that answers come from; the file may hold those of other settings too. None: all.
        self.catalogs: frozenset[str] | None = None
        # True when the cards have changed and the index could not follow.
        self.outdated = False

    @classmethod
    def open(cls, path: Path) -> Index:
        """Open the index, made anew when missing, damaged or of another version; in memory where that cannot be."""
        if not os.path.exists(path) and not can_create(path):
            return cls.in_memory()
        index = cls._connect(path)
        if index is None and not is_writable(path):
            return cls.in_memory()
        if index is None:
            with lock_of(path):
                # Another process may have made it while this one waited.
                index = cls._connect(path)
                if index is None:
                    _create_aside(path, lambda index: None)
                    index = cls._connect(path)
        if index is None:
            raise SystemFailure(f"cannot create the index {path}", hint="remove it and try again")
        return index

    @classmethod
    def _connect(cls, path: Path) -> Index | None:
        """Return the index in the file; None when there is none, or one that cannot be used."""
        if not os.path.exists(path):
            return None
        writable = is_writable(path)
        address = f"file:{quote(str(path))}?mode={'rw' if writable else 'ro'}"
        connection = None
        try:
            connection = sqlite3.connect(address, uri=True, timeout=60.0, isolation_level=None)
            index = cls(connection, path, writable=writable)
            if index.meta("schema") == SCHEMA_VERSION:
                return index
        except sqlite3.DatabaseError as error:
            if code_of(error) not in (*DAMAGED, sqlite3.SQLITE_ERROR) and (writable or code_of(error) in BUSY):
                if connection is not None:
                    connection.close()
                raise failure_of(path, error) from error
        if connection is not None:
            connection.close()
        return None

    @classmethod
    def current(
        cls,
        path: Path,
        folders: Sequence[CatalogFolder],
        uses: Callable[[], Mapping[str, int]],
        *,
        on_card: Callable[[int, int], None] | None = None,
    ) -> Index:
        """Open the index for these catalogs, brought in line with their files.

        Where that cannot be, as on a full disk or in a read-only home, few cards are read anew into memory; of
        many, the index serves as it is and is `outdated`.
        """
        index = cls._opened(path)
        try:
            index._limit(folders)
            if not index.stale(folders) and not (index.writable and index._orphans()):
                return index
            if index.writable:
                index.refresh(folders, uses(), on_card=on_card)
                return index
        except sqlite3.DatabaseError as error:
            index.close()
            if index.path is None or code_of(error) not in (*DAMAGED, *FAILED):
                raise failure_of(index.path, error) from error
            if code_of(error) in DAMAGED and index.writable:
                with suppress(SystemFailure):
                    rebuild(path, folders, uses(), on_card=on_card)
        except SystemFailure:  # the lock cannot be had
            index.close()
        except BaseException:
            index.close()
            raise
        else:
            index.close()
        return cls._as_it_is(path, folders, uses, on_card)

    @classmethod
    def _opened(cls, path: Path) -> Index:
        """Open the index; in memory where it cannot be made or read and no other process is in the way."""
        try:
            return cls.open(path)
        except SystemFailure as error:
            if is_busy(error):
                raise
            return cls.in_memory()

    @classmethod
    def _as_it_is(
        cls,
        path: Path,
        folders: Sequence[CatalogFolder],
        uses: Callable[[], Mapping[str, int]],
        on_card: Callable[[int, int], None] | None,
    ) -> Index:
        """Return the index that could not be brought in line; one in memory when that is soon made or all there is."""
        index = cls._opened(path)
        try:
            index._limit(folders)
            stale = index.stale(folders)
            if not stale or (index.count() and not _are_few(folders)):
                index.outdated = stale
                return index
        except sqlite3.DatabaseError as error:
            if code_of(error) not in (*DAMAGED, *FAILED):
                index.close()
                raise failure_of(index.path, error) from error
        except BaseException:
            index.close()
            raise
        index.close()
        index = cls.in_memory()
        try:
            index.refresh(folders, uses(), on_card=on_card)
        except BaseException:
            index.close()
            raise
        return index

    def _limit(self, folders: Sequence[CatalogFolder]) -> None:
        self.catalogs = frozenset(folder.name for folder in folders)

    @classmethod
    def in_memory(cls) -> Index:
        """Return an empty index that lives as long as the process."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        index = cls(connection, None, writable=True)
        try:
            index._create()
        except BaseException:
            connection.close()
            raise
        return index

    def _create(self) -> None:
        self._db.executescript(SCHEMA)
        self._set_meta("schema", SCHEMA_VERSION)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError) and code_of(error) in (*BUSY, *FAILED, *DAMAGED):
            if code_of(error) in DAMAGED and self.writable and self.path is not None:
                with lock_of(self.path):
                    _create_aside(self.path, lambda index: None)
            raise failure_of(self.path, error) from error

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from changing the index; what is changed inside is kept as a whole or not at all."""
        if not self.writable:
            raise SystemFailure(f"the index {self.path} is read-only here")
        if self.path is None or self._db.in_transaction:
            yield
            return
        with lock_of(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite may have rolled back by itself, as on a full disk
                    self._db.execute("ROLLBACK")
                raise

    # Writing

    def stale(self, folders: Sequence[CatalogFolder]) -> bool:
        """Tell whether any of these catalogs has changed since it was indexed."""
        known = self._generations()
        return any(known.get(folder.name) != folder.generation() for folder in folders)

    def _generations(self) -> dict[str, str]:
        """Return the generation at which each catalog was indexed."""
        return dict(self._db.execute("SELECT substr(key, 9), value FROM meta WHERE key LIKE 'catalog:%'"))

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
        with self.held():
            self._limit(folders)
            for catalog in self._orphans():
                done.removed += self._cards.forget(catalog, [row[0] for row in self._paths(catalog)])
                self._db.execute("DELETE FROM meta WHERE key = ?", (f"catalog:{catalog}",))
            bulk = BulkRows(self._db) if self._is_empty() else None
            changed = [(folder, self._changes(folder, done)) for folder in folders]
            count = sum(len(paths) for _, paths in changed)
            with many_changes(self._db) if bulk is None and count > _FEW_CHANGES else nullcontext():
                self._put_all(changed, uses, done, on_card, bulk)
        return done

    def _is_empty(self) -> bool:
        tables = ("card", "word", "tag")
        return not any(self._db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in tables)

    def _changes(self, folder: CatalogFolder, done: Refresh) -> list[str]:
        """Forget the cards of a catalog that are gone; return the paths of those that are new or changed, sorted."""
        known_as, generation = self.meta(f"catalog:{folder.name}"), folder.generation()
        recent = None if known_as is None else folder.changes_since(known_as, generation)
        self._set_meta(f"catalog:{folder.name}", generation)
        if recent is None:
            known = {path: (size, mtime) for path, size, mtime in self._paths(folder.name)}
        else:
            known = {path: stamp for path in recent if (stamp := self._stamp(folder.name, path))}
        try:
            # Of a million cards no stamp is kept: the one of a changed card is taken anew when it is read.
            stamps = folder.scan() if recent is None else folder.stamps(recent)
            changed = sorted(path for path, stamp in stamps if known.pop(path, None) != stamp)
        except SystemFailure as error:
            done.damaged.append((folder.name, str(error)))
            return []
        done.removed += self._cards.forget(folder.name, known)
        return changed

    def _stamp(self, catalog: str, path: str) -> tuple[int, int] | None:
        sql = "SELECT size, mtime FROM card WHERE catalog = ? AND path = ?"
        row: tuple[int, int] | None = self._db.execute(sql, (catalog, path)).fetchone()
        return row

    def _orphans(self) -> list[str]:
        """Return the catalogs not asked for that other settings cannot mean either: their folder is gone."""
        homes = self.path.parent / "sources" if self.path else None
        gone = (name for name in self._strangers() if homes is None or not (homes / name).is_dir())
        return [name for name in gone if self._db.execute("SELECT 1 FROM card WHERE catalog = ?", (name,)).fetchone()]

    def _paths(self, catalog: str) -> Iterable[tuple[str, int, int]]:
        return self._db.execute("SELECT path, size, mtime FROM card WHERE catalog = ?", (catalog,))

    def _put_all(
        self,
        changed: Sequence[_Changes],
        uses: Mapping[str, int],
        done: Refresh,
        on_card: Callable[[int, int], None] | None,
        bulk: BulkRows | None,
    ) -> None:
        """Read the changed cards and write their rows, one by one or, into an empty index, in `bulk`."""
        several = _with_versions(changed) if bulk is not None else frozenset()
        count = sum(len(paths) for _, paths in changed)
        assets: set[tuple[str, str, str]] = set()
        for number, (path, folder) in enumerate(_most_used_first(changed, uses), 1):
            asset = _asset(path)
            known = bulk is None and self._stamp(folder.name, path) is not None
            try:
                stamp = folder.stamp(path)
                entry = entry_of(read_in_place(folder, path), path, stamp)
            except (FairmileError, RecursionError) as error:
                self._cards.forget(folder.name, [path] if known else [])
                done.damaged.append((f"{folder.name}/{path}", str(error)))
                continue
            alone = bulk is not None and (folder.name, asset) not in several
            if bulk is not None:
                bulk.put(entry, latest=alone, uses=uses.get(asset, 0))
            else:
                self._cards.put(entry, uses.get(asset, 0))
            if not alone:
                assets.add((folder.name, entry.kind, entry.name))
            done.changed += known
            done.added += not known
            if on_card:
                on_card(number, count)
        if bulk is not None:
            bulk.finish()
        for catalog, kind, name in assets:
            self._cards.mark_latest(catalog, kind, name)

    def put(self, folder: CatalogFolder, card: Card, generation: str) -> None:
        """Index one card that was just written to its folder."""
        gone = "tombstone" in card
        path = folder.tombstone_path(card.handle) if gone else folder.path(card.handle)
        status = path.stat()
        relative = str(path.relative_to(folder.cards_root))
        with self.held():
            twin = folder.relative_path(card.handle) if gone else relative.removesuffix(".jsonld") + TOMBSTONE_SUFFIX
            self._cards.forget(folder.name, [twin])
            entry = entry_of(card, relative, Stamp(status.st_size, status.st_mtime_ns))
            self._cards.put(entry, self._cards.uses(card))
            self._cards.mark_latest(folder.name, card.kind, card.name)
            self._set_meta(f"catalog:{folder.name}", generation)

    def count_use(self, kind: str, name: str) -> None:
        """Count one more use of the asset."""
        with self.held():
            self._db.execute("UPDATE card SET uses = uses + 1 WHERE kind = ? AND name = ?", (kind, name))

    # Reading

    def _rows(self, where: str, values: Sequence[Any] = ()) -> list[CatalogRow]:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM card WHERE {where}", values)
        return [
            CatalogRow._make((*row[:10], bool(row[10]), bool(row[11]), *row[12:]))
            for row in rows
            if self.catalogs is None or row[1] in self.catalogs
        ]

    def _strangers(self) -> list[str]:
        """Return the catalogs in the file that were not asked for."""
        return [] if self.catalogs is None else sorted(self._generations().keys() - self.catalogs)

    def _asked(self, column: str) -> tuple[str, list[str]]:
        """Return the condition, with its values, that the number of a card in that column is of a catalog asked for."""
        strangers = self._strangers()
        if not strangers:  # spares the look-up
            return "", []
        marks = ",".join("?" * len(strangers))
        return f" AND (SELECT catalog FROM card WHERE id = {column}) NOT IN ({marks})", strangers

    def _expression(self, query: Query, *, mark: str = ANYWHERE) -> str:
        """Return the FTS5 expression of the query over the catalogs asked for."""
        strangers = tuple(("catalog", name) for name in self._strangers())
        return fts_expression(replace(query, not_facets=(*query.not_facets, *strangers)), mark=mark)

    def rows(self, ids: Sequence[int]) -> list[CatalogRow]:
        """Return the cards with these row numbers, in their order."""
        rows = {row.id: row for row in self._rows(f"id IN ({','.join(map(str, ids))})")} if ids else {}
        return [rows[number] for number in ids if number in rows]

    def count(self) -> dict[str, int]:
        """Return how many cards each catalog holds."""
        counts = self._db.execute("SELECT catalog, count(*) FROM card WHERE NOT gone GROUP BY catalog")
        return {name: cards for name, cards in counts if self.catalogs is None or name in self.catalogs}

    def named(self, reference: Reference) -> list[CatalogRow]:
        """Return every card the reference may mean, newest version first."""
        where, values = ["name = ?"], [reference.name]
        for column in ("kind", "catalog", "version"):
            value = getattr(reference, column)
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        return self._rows(" AND ".join(where) + " ORDER BY gone, version_key DESC", values)

    def twins(self, rows: Sequence[CatalogRow]) -> dict[tuple[str, str], list[CatalogRow]]:
        """Return every card that shares kind and name with one of these, by (kind, name)."""
        twins: dict[tuple[str, str], list[CatalogRow]] = {}
        for names in batches(dict.fromkeys(row.name for row in rows)):
            for row in self._rows(f"name IN ({','.join('?' * len(names))})", names):
                twins.setdefault((row.kind, row.name), []).append(row)
        return twins

    def aliased(self, value: str) -> list[CatalogRow]:
        """Return every card that answers to an id, a DOI, a digest or a source address."""
        names = id_names(value)
        where = f"id IN (SELECT card FROM alias WHERE value IN ({','.join('?' * len(names))}))"
        return self._rows(f"{where} ORDER BY gone, version_key DESC", names)

    def same_content(self, content: str) -> list[CatalogRow]:
        """Return every card whose bytes are these."""
        return self._rows("id IN (SELECT card FROM alias WHERE value = ? AND what = 'content')", (digest_id(content),))

    def same_source(self, url: str) -> list[CatalogRow]:
        """Return every card with a file from that address."""
        return self._rows("id IN (SELECT card FROM alias WHERE value = ? AND what = 'url')", (url,))

    def facet_counts(self, facets: Sequence[str], query: Query | None = None) -> Counts:
        """Return the values of facets with the number of assets that have each in their latest version.

        With a query, those that match it count; of very many, some.
        """
        if query is None:
            return count_all(self._db, facets, self._strangers())
        latest = replace(query, all_versions=False)
        numbers = (
            self._matching_names(latest, _COUNTED)
            if query.regexes
            else self._matches(self._expression(latest), latest, _COUNTED)
        )
        return count_some(self._db, facets, numbers)

    def near_values(self, facet: str, value: str) -> list[str]:
        """Return the values of a facet nearest to one that found nothing."""
        known = self._db.execute("SELECT DISTINCT value FROM facet WHERE facet = ? LIMIT 20000", (facet,))
        asked, strangers = self._asked("facet.card")
        sql = f"SELECT 1 FROM facet WHERE facet = ? AND value = ?{asked} LIMIT 1"
        return self._nearest(
            normal(value),
            [row[0] for row in known],
            lambda each: self._db.execute(sql, (facet, each, *strangers)).fetchone() is not None,
        )

    def _nearest(self, text: str, known: Sequence[str], is_asked: Callable[[str], bool], n: int = 3) -> list[str]:
        """Return the nearest texts that a card of the catalogs asked for has."""
        if not self._strangers():
            return [each for each in closest(text, known, n) if each != text]
        near = closest(text, known, n + _STEP_MATCHES)
        return list(islice((each for each in near if each != text and is_asked(each)), n))

    def linking_to(self, targets: Iterable[str], relation: str | None = None) -> list[tuple[str, CatalogRow]]:
        """Return every (relation, card) that names one of the targets."""
        links: list[tuple[int, str]] = []
        for names in batches(dict.fromkeys(targets)):
            sql = f"SELECT card, relation FROM link WHERE target IN ({','.join('?' * len(names))})"
            links += self._db.execute(
                sql + (" AND relation = ?" if relation else ""), [*names, *([relation] if relation else [])]
            )
        rows = {row.id: row for row in self.rows([number for number, _ in links])}
        return [(name, rows[number]) for number, name in dict.fromkeys(links) if number in rows]

    def links(self, numbers: Iterable[int]) -> list[tuple[int, str, str]]:
        """Return every (card, relation, target) that these cards hold."""
        marks = ",".join(map(str, dict.fromkeys(numbers)))
        return self._db.execute(f"SELECT card, relation, target FROM link WHERE card IN ({marks})").fetchall()

    def search(self, query: Query, *, limit: int = 20) -> list[CatalogRow]:
        """Return the best matches: by where the words stand, then by use."""
        if query.regexes:
            return self.rows(self._ranked(dict.fromkeys(self._matching_names(query, limit), 0), "", limit))
        worded = query.words or query.prefixes or query.phrases
        steps: dict[int, int] = {}
        for step, mark in enumerate(_STEPS if worded else (ANYWHERE,)):
            for number in self._matches(self._expression(query, mark=mark), query, limit + _STEP_MATCHES):
                steps.setdefault(number, step)
            if len(steps) >= limit + _STEP_MATCHES:
                break
        exact = slug(" ".join((*query.words, *query.phrases))) if worded else ""
        return self.rows(self._ranked(steps, exact, limit))

    def _ranked(self, steps: Mapping[int, int], exact: str, limit: int) -> list[int]:
        """Return the cards in order: the one of that very name, then by step, use and name; removed ones last."""
        if not steps:
            return []
        facts = self._db.execute(
            "SELECT gone, id, uses, name, version_key FROM card INDEXED BY card_rank"
            f" WHERE id IN ({','.join(map(str, steps))})"
        )
        order = [
            ((gone, steps[number] if name != exact else -1, -uses, len(name), name), version, number)
            for gone, number, uses, name, version in facts
        ]
        order.sort(key=lambda entry: entry[1], reverse=True)
        order.sort(key=lambda entry: entry[0])
        return [number for _, _, number in order[:limit]]

    def _matches(self, expression: str, query: Query, limit: int) -> list[int]:
        tables = ("latest", "older") if query.all_versions else ("latest",)
        return [
            row[0]
            for table in tables
            for row in self._db.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH ? LIMIT ?", (expression, limit))
        ]

    def _matching_names(self, query: Query, limit: int) -> list[int]:
        patterns = [compile_names(text) for text in query.regexes]
        tagged = [self._tagged(pattern) for pattern in patterns]
        numbers: list[int] = []
        for chunk, ids, lines in self._db.execute("SELECT chunk, ids, lines FROM names ORDER BY chunk"):
            named = (matching_ids(pattern, ids, lines) for pattern in patterns)
            common = set.intersection(
                *(names | tags.get(chunk, set()) for names, tags in zip(named, tagged, strict=True))
            )
            if common:
                numbers += sorted(common & self._allowed(query, chunk))
            if len(numbers) >= limit:
                break
        return numbers[:limit]

    def _tagged(self, pattern: Any) -> dict[int, set[int]]:
        """Return the cards with a keyword that matches, by chunk; of very many, some."""
        chunks = self._db.execute("SELECT ids, lines FROM tags")
        tags = [number for ids, lines in chunks for number in matching_ids(pattern, ids, lines)][:_TAGS]
        values = f"SELECT value FROM tag WHERE id IN ({','.join(map(str, tags))})"
        asked, strangers = self._asked("facet.card")
        sql = f"SELECT card FROM facet WHERE facet = 'tag' AND value IN ({values}){asked} LIMIT {_TAGGED_CARDS}"
        cards: dict[int, set[int]] = {}
        for (number,) in self._db.execute(sql, strangers) if tags else ():
            cards.setdefault(number // CHUNK_CARDS, set()).add(number)
        return cards

    def _allowed(self, query: Query, chunk: int) -> set[int]:
        """Return the cards of a chunk that the query admits, its patterns left aside."""
        return self._admitted(query, chunk * CHUNK_CARDS, (chunk + 1) * CHUNK_CARDS - 1)

    def _admitted(self, query: Query, first: int, last: int) -> set[int]:
        tables = ("latest", "older") if query.all_versions else ("latest",)
        expression = self._expression(query)
        return {
            row[0]
            for table in tables
            for row in self._db.execute(
                f"SELECT rowid FROM {table} WHERE {table} MATCH ? AND rowid BETWEEN ? AND ?", (expression, first, last)
            )
        }

    def matches(self, query: Query, number: int) -> bool:
        """Tell whether the query matches one card."""
        if not self._admitted(query, number, number):
            return False
        if not query.regexes:
            return True
        sql = "SELECT ids, lines FROM names WHERE chunk = ?"
        ids, lines = self._db.execute(sql, (number // CHUNK_CARDS,)).fetchone() or ("", b"")
        sql = "SELECT raw FROM tag WHERE value IN (SELECT value FROM facet WHERE card = ? AND facet = 'tag')"
        tags = [row[0].encode() for row in self._db.execute(sql, (number,))]
        patterns = [compile_names(text) for text in query.regexes]
        return all(number in matching_ids(p, ids, lines) or any(p.search(tag) for tag in tags) for p in patterns)

    def clashes(self, order: Sequence[str]) -> dict[str, list[str]]:
        """Return, for each catalog, the assets whose card differs from one of higher precedence."""
        strangers = self._strangers()
        groups = self._db.execute(
            "SELECT kind, name, version, group_concat(catalog || ' ' || digest, '\n') FROM card WHERE NOT gone"
            f" AND catalog NOT IN ({','.join('?' * len(strangers))})"
            " GROUP BY kind, name, version HAVING count(DISTINCT digest) > 1",
            strangers,
        )
        clashes: dict[str, list[str]] = {}
        for kind, name, version, pairs in groups:
            cards = dict(pair.split(" ", 1) for pair in pairs.split("\n"))
            ranked = sorted((catalog for catalog in cards if catalog in order), key=order.index)
            for catalog in ranked[1:]:
                if cards[catalog] != cards[ranked[0]]:
                    clashes.setdefault(catalog, []).append(f"{kind}/{name}@{version}")
        return clashes

    def suggest(self, text: str, n: int = 3) -> list[str]:
        """Return the indexed words nearest to a word that found nothing; of a compound, those nearest to each part."""
        return list(
            dict.fromkeys(near for word in re.findall(r"[^\W_]{3,}", text.lower()) for near in self._near(word, n))
        )

    def _near(self, word: str, n: int) -> list[str]:
        grams = sorted({word[i : i + 3] for i in range(len(word) - 2)})
        sql = "SELECT word FROM word WHERE id IN (SELECT rowid FROM gram WHERE gram MATCH ? LIMIT 3000)"
        candidates = [row[0] for row in self._db.execute(sql, (" OR ".join(f'"{gram}"' for gram in grams),))]
        # Two letters of a short word that changed places leave no gram in common, nor does one left out: mnsit, mnst.
        slips = [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(min(len(word), _SHORT) - 1)]
        if len(word) <= _SHORTEST:
            slips += [word[:i] + letter + word[i:] for i in range(1, len(word)) for letter in ascii_lowercase]
        marks = ",".join("?" * len(slips))
        candidates += [row[0] for row in self._db.execute(f"SELECT word FROM word WHERE word IN ({marks})", slips)]
        return self._nearest(word, candidates, self._finds, n)

    def _finds(self, word: str) -> bool:
        query = Query(words=(word,), all_versions=True)
        return bool(self._matches(self._expression(query), query, 1))


def _are_few(folders: Sequence[CatalogFolder]) -> bool:
    """Tell whether the catalogs hold so few cards that an index of them is made in a moment."""
    left = _FEW_CARDS
    for folder in folders:
        with suppress(SystemFailure):  # what cannot be listed is not read either
            left -= sum(1 for _ in islice(folder.scan(), left))
    return left > 0


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

    with lock_of(path), no_search():
        _create_aside(path, fill)
    return report


def _create_aside(path: Path, fill: Callable[[Index], None]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        connection = sqlite3.connect(aside, isolation_level=None)
        with closing(connection), Index(connection, None, writable=True) as index:
            # Built aside and renamed when whole: a crash leaves no half index, so no journal is needed.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            index._create()
            connection.execute("BEGIN")
            fill(index)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = DELETE")
        with open(aside, "rb") as stream:
            os.fsync(stream.fileno())
        # The journal of a process that was killed belongs to the old file; SQLite would play it into the new one.
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        aside.replace(path)
    except sqlite3.DatabaseError as error:
        raise failure_of(path, error) from error
    except OSError as error:
        if isinstance(error, FairmileError):
            raise
        raise SystemFailure(f"cannot create the index {path}: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)


def _in_order(changed: Iterable[_Changes]) -> Iterator[tuple[str, CatalogFolder]]:
    """Yield all paths in their order, each with its folder."""
    return merge(*(zip(paths, repeat(folder)) for folder, paths in changed), key=itemgetter(0))


def _most_used_first(changed: Sequence[_Changes], uses: Mapping[str, int]) -> Iterator[tuple[str, CatalogFolder]]:
    """Yield the paths of used assets, the most used first, then all others in their order."""
    if not uses:
        return _in_order(changed)
    used = [each for each in _in_order(changed) if uses.get(_asset(each[0]))]
    used.sort(key=lambda each: -uses[_asset(each[0])])
    return chain(used, (each for each in _in_order(changed) if not uses.get(_asset(each[0]))))


def _with_versions(changed: Iterable[_Changes]) -> frozenset[tuple[str, str]]:
    """Return the assets that have several files in one catalog, by catalog."""
    return frozenset(
        (folder.name, asset)
        for folder, paths in changed
        for asset, group in groupby(paths, key=_asset)
        if len(list(islice(group, 2))) == 2
    )


def _asset(path: str) -> str:
    return path.rpartition("/")[0]
