"""All catalogs as one, to read: search, names and cards. Only the index and counts of use are written."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Here
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import closest, slug
from fairmile.catalog.builtin import builtin_folder
from fairmile.catalog.card import LINKS, Card, as_list, id_of
from fairmile.catalog.database import Changes, lock_of
from fairmile.catalog.declared import BUILTIN, LOCAL, index_path
from fairmile.catalog.federation import Federation
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.identity import is_iri, parse_reference, valid_sha256
from fairmile.catalog.index import Index
from fairmile.catalog.kinds import KINDS
from fairmile.catalog.machines import Described, asks_for_systems, system_hits
from fairmile.catalog.query import FIELDS, Query, kind_named, parse_query
from fairmile.catalog.results import (
    FacetValues,
    Hit,
    ResolvedCard,
    SearchResult,
    SourceDocument,
    Versions,
)
from fairmile.catalog.row import CatalogRow, target_names
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

if TYPE_CHECKING:
    from fairmile.catalog.fair import Assessment
    from fairmile.catalog.hubs.results import HubHits

# What a search or a fetch, which must answer at once, does not ask for.
_WORK: Registry[Callable[..., Any]] = Registry(
    "question to the catalog",
    {
        "assess": Plugin("fairmile.catalog.fair:assess"),
        "surroundings": Plugin("fairmile.catalog.fair:Surroundings"),
        "search_hubs": Plugin("fairmile.catalog.hubs.hubs:search"),
        "hub_reference": Plugin("fairmile.catalog.hubs.hubs:reference_of"),
        "read_reference": Plugin("fairmile.catalog.hubs.hubs:read_reference"),
    },
)


class NoSuchAsset(NotFound):
    """No card has the name; `near` are the nearest names."""

    def __init__(self, message: str, *, hint: str | None = None, near: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.near = tuple(near)


class Lookup:
    """Cards of every source as one view: search, names and cards.

    Catalogs rank: local first, then the sources in the order of the settings, the built-in one last. Those are
    reached with `context`.
    """

    def __init__(
        self,
        home: Path,
        *,
        sources: Mapping[str, Any] | None = None,
        source_origins: Mapping[str, str] | None = None,
        settings_file: Path | None = None,
        base: str = "",
        context: Context | None = None,
        clock: Callable[[], float] = time.time,
        on_progress: Callable[[int, int], None] | None = None,
        builtin: CatalogFolder | None = None,
        systems: Callable[[], Iterable[Described]] = tuple,
        fetch: Callable[[str, Path], object] | None = None,
    ) -> None:
        self.home = home
        self._base = base
        self._clock = clock
        self._on_progress = on_progress
        self.local = CatalogFolder(LOCAL, home / "catalog", writable=True)
        self._context = context or Context({}, Here(), Credentials({}), Settings())
        self._sources = Federation(
            home / "sources",
            sources or {},
            origins=source_origins or {},
            settings_file=settings_file,
            base=base,
            context=self._context,
            clock=clock,
        )
        self._builtin = builtin or builtin_folder()
        self._systems = systems  # that have files of their own instead of cards
        self._fetch = fetch  # what an address leads to, into a folder

    # The catalogs behind the view

    def folders(self) -> list[CatalogFolder]:
        """Return every catalog in order of precedence."""
        return [self.local, *self._sources.folders(), self._builtin]

    def _folder(self, name: str) -> CatalogFolder:
        folders = {folder.name: folder for folder in self.folders()}
        if name not in folders:
            raise NotFound(f"no catalog named {name!r}", hint=f"catalogs: {', '.join(folders)}")
        return folders[name]

    @property
    def index_path(self) -> Path:
        return index_path(self.home)

    def open_index(self) -> Index:
        """Return the index, brought up to date where it can be written."""
        return Index.current(self.index_path, self.folders(), self._uses, on_card=self._on_progress)

    # Search

    def search(
        self,
        text: str = "",
        *,
        kind: str | None = None,
        tags: Sequence[str] = (),
        regex: str | None = None,
        limit: int = 20,
        all_versions: bool = False,
    ) -> SearchResult:
        """Return the assets that match; see `fairmile.catalog.query` for the language.

        Whole words come first; where they leave room, words that begin with them follow. `tags` must all be
        keywords of the asset; `regex` must match its name, another name or a keyword.
        """
        query = parse_query(text, all_versions=all_versions)
        query = query.with_facets(kind=kind) if kind else query
        for tag in tags:
            query = query.with_facets(tag=tag)
        query = dataclasses.replace(query, regexes=(*query.regexes, regex)) if regex else query
        with self.open_index() as index:
            hits = self._hits(index, query, limit)
            if len(hits) < limit and query.words:
                seen = {hit.handle for hit in hits}
                more = self._hits(index, query.as_beginnings(), limit)
                hits = [*hits, *(hit for hit in more if hit.handle not in seen)][:limit]
            if hits:
                return SearchResult(hits, outdated=index.outdated)
            broader = [str(each) for each in query.broader() if self._hits(index, each, 1)]
            return SearchResult([], self._suggestions(index, query), broader, outdated=index.outdated)

    def _hits(self, index: Index, query: Query, limit: int) -> list[Hit]:
        wanted = limit + 20
        while True:
            rows = index.search(query, limit=wanted)
            hits = self._merge(index, rows, query, lambda row: index.matches(query, row.id))
            # Mirrors of one another fill the list with twins; then more rows are needed for as many assets.
            if len(hits) >= limit or len(rows) < wanted:
                return [*hits, *self._described(query, hits)][:limit]
            wanted *= 4

    def _described(self, query: Query, hits: Sequence[Hit]) -> list[Hit]:
        """Return the systems without a card that a search for systems finds."""
        if not asks_for_systems(query):
            return []
        seen = {hit.row.name for hit in hits}
        return [hit for hit in system_hits(self._systems(), query) if hit.row.name not in seen]

    def _merge(
        self, index: Index, rows: Sequence[CatalogRow], query: Query, fits: Callable[[CatalogRow], bool]
    ) -> list[Hit]:
        """Return one hit for each asset: its card of highest precedence that fits."""
        rank = {folder.name: place for place, folder in enumerate(self.folders())}
        rows = [row for row in rows if row.catalog in rank]
        hits: dict[tuple[str, ...], Hit] = {}
        named = index.twins(rows)
        for row in rows:
            key = (row.kind, row.name, row.version if query.all_versions else "")
            if key in hits:
                continue
            twins = [each for each in named[row.kind, row.name] if each.catalog in rank]
            twins = [each for each in twins if (each.version == row.version if query.all_versions else each.latest)]
            twins.sort(key=lambda each: (each.gone, rank[each.catalog]))
            best = next((each for each in twins if each.id == row.id or fits(each)), row)
            others = [each for each in twins if each.catalog != best.catalog and not each.gone]
            clash = any(each.digest != best.digest for each in others if each.version == best.version)
            hits[key] = Hit(best, tuple(each.catalog for each in others), clash)
        return list(hits.values())

    @staticmethod
    def _suggestions(index: Index, query: Query) -> tuple[str, ...]:
        terms = [word for text in (*query.words, *query.prefixes) for word in index.suggest(text)]
        for facet, value in query.facets:
            near = index.near_values(facet, value)
            terms += [f'{facet}:"{each}"' if " " in each else f"{facet}:{each}" for each in near]
        return tuple(dict.fromkeys(terms))

    def find(self, kind: str | None = None, words: str = "", *, limit: int = 1000, **where: Any) -> SearchResult:
        """Return the assets with these facets and links, as in `find("model", machine="lassen")`.

        A facet (domain, task, framework, project, funder, machine, gpu …) takes a text. A link
        (trainedOn, targetMachine, result …) takes an asset, or several, as `find` or `get` return them.
        """
        facets = {name: value for name, value in where.items() if name in FIELDS and isinstance(value, str)}
        links = {name: value for name, value in where.items() if name in LINKS and name not in facets}
        unknown = set(where) - set(facets) - set(links)
        if unknown:
            name = sorted(unknown)[0]
            if name in FIELDS:
                raise UsageError(f"the facet {name!r} takes a string, not {where[name]!r}")
            near = closest(name, [*FIELDS, *LINKS])
            raise UsageError(
                f"no facet or link named {name!r}", hint=f"did you mean {', '.join(near)}?" if near else ""
            )
        query = parse_query(words).with_facets(**({"kind": kind} if kind else {}), **facets)
        with self.open_index() as index:
            hits = self._linked(index, query, links)[:limit] if links else self._hits(index, query, limit)
            return SearchResult(hits, outdated=index.outdated)

    def _linked(self, index: Index, query: Query, links: Mapping[str, Any]) -> list[Hit]:
        rows: dict[int, CatalogRow] = {}
        linked: list[set[int]] = []
        for relation, targets in links.items():
            sources = {row.id: row for _, row in index.linking_to(_target_texts(targets), relation)}
            rows |= sources
            linked.append(set(sources))
        fitting = {number for number in set.intersection(*linked) if index.matches(query, number)}
        ordered = sorted((rows[number] for number in fitting), key=lambda row: (row.gone, -row.uses, row.name))
        return self._merge(index, ordered, query, lambda row: row.id in fitting)

    def facets(self, facet: str, text: str = "") -> FacetValues:
        """Return the values of a facet and how many cards, of all or of a search, have each."""
        return self.facet_values([facet], text)[0]

    def facet_values(self, facets: Sequence[str], text: str = "") -> list[FacetValues]:
        """Return the values of several facets as `facets` does of one, for one search."""
        unknown = next((facet for facet in facets if facet not in FIELDS), None)
        if unknown is not None:
            near = closest(unknown, FIELDS)
            raise UsageError(
                f"no facet named {unknown!r}", hint=f"did you mean {near[0]}?" if near else ", ".join(FIELDS)
            )
        fields = [FIELDS[facet] for facet in facets]
        query = parse_query(text) if text.strip() else None
        with self.open_index() as index:
            counts = index.facet_counts(fields, query)
            if query is not None and not any(counts.values()):
                counts = index.facet_counts(fields, query.as_beginnings())
        return [FacetValues(facet, counts[field]) for facet, field in zip(facets, fields, strict=True)]

    def state(self) -> tuple[object, ...]:
        """Return what differs as soon as a search may give another answer; soon told, so that answers can be kept."""
        sources = [folder.generation() for folder in self._sources.folders()]
        return self._index_changes.state(), self.local.generation(), *sources

    @cached_property
    def _index_changes(self) -> Changes:
        return Changes(self.index_path)

    # Hubs

    def search_hubs(
        self, text: str, *, hubs: str | Sequence[str] = "all", kind: str | None = None, limit: int = 20
    ) -> HubHits:
        """Return what hubs (huggingface, zenodo, openml, or all) find now for words and a kind.

        They are asked at the same time, with short timeouts; `failed` says which did not answer. What a hit's
        `handle` names, `show`, `fetch` and `add` take.
        """
        names = [hubs] if isinstance(hubs, str) else list(hubs)
        hits: HubHits = _WORK["search_hubs"](text, names, self._context, kind=kind, limit=limit)
        return hits

    @staticmethod
    def hub_reference(text: str) -> str:
        """Return the handle of an asset of a hub that a text or the address of a page names; empty where none."""
        reference: str = _WORK["hub_reference"](text)
        return reference

    def hub_card(self, reference: str) -> Card:
        """Return the card of an asset of a hub, as the hub describes it now; it is in no catalog yet."""
        card: Card = _WORK["read_reference"](reference, self._context)[0]
        return Card(card.body, catalog="")

    # Names

    def resolve(self, name: str, *, kind: str | None = None) -> tuple[CatalogRow, list[CatalogRow]]:
        """Return the card a name means and the others it could mean; NotFound with the nearest names."""
        with self.open_index() as index:
            return self._resolve(index, name, kind)

    def _resolve(self, index: Index, name: str, kind: str | None) -> tuple[CatalogRow, list[CatalogRow]]:
        rows = self._ranked(index, name, kind)
        if not rows:
            raise self._not_found(index, name, kind)
        best = rows[0]
        others = [row for row in rows[1:] if (row.kind, row.name, row.catalog) != (best.kind, best.name, best.catalog)]
        return best, list({(row.kind, row.name, row.catalog): row for row in reversed(others)}.values())[::-1]

    def _ranked(self, index: Index, name: str, kind: str | None) -> list[CatalogRow]:
        """Return all that a name may mean, the best first."""
        kinds, rank = list(KINDS), {folder.name: place for place, folder in enumerate(self.folders())}
        rows = [row for row in self._candidates(index, name, kind) if row.catalog in rank]
        # Rows come newest first; the sort is stable, so within a catalog the newest stays in front.
        return sorted(rows, key=lambda row: (row.gone, kinds.index(row.kind), rank[row.catalog]))

    @staticmethod
    def _candidates(index: Index, name: str, kind: str | None) -> list[CatalogRow]:
        text = name.strip().encode("utf-8", "replace").decode()  # half a surrogate pair names nothing
        wanted = kind_named(kind) if kind else None
        parts = text.split("/")
        if len(parts) > 1:
            with suppress(UsageError):  # the name of a catalog, perhaps
                parts[-2] = kind_named(parts[-2])
        is_id = is_iri(text) or valid_sha256(text) is not None
        rows = index.aliased(text) if is_id else []
        try:
            rows = rows or index.named(parse_reference("/".join(parts), tuple(KINDS))) or index.aliased(text)
        except UsageError:
            rows = index.aliased(text)
            if not rows and not is_id:
                raise
        return [row for row in rows if wanted is None or row.kind == wanted]

    def _not_found(self, index: Index, name: str, kind: str | None) -> NotFound:
        asset, _, version = name.partition("@")
        wanted = kind_named(kind) if kind else None
        if version and (rows := self._candidates(index, asset, wanted)):
            there = ", ".join(dict.fromkeys(row.version for row in rows))
            return NotFound(f"{asset!r} has no version {version!r}", hint=f"versions: {there}")
        word = asset.rsplit("/", 1)[-1]
        is_system = wanted == "system" or "system/" in asset
        if is_system and any(system.name == word for system in self._systems()):
            return NotFound(f"the system {word!r} has no card", hint=f"`fairmile system show {word}` describes it")
        near_words = [Query(words=(near,)) for near in index.suggest(word, 5)]
        queries = [query.with_facets(kind=wanted) if wanted else query for query in near_words]
        names = [row.name for query in queries for row in index.search(query, limit=3) if not row.gone]
        near = closest(slug(word), names) or list(dict.fromkeys(names))[:3]
        hint = f"did you mean {', '.join(near)}?" if near else f"try `fairmile search {word}`"
        return NoSuchAsset(f"no {wanted or 'asset'} named {name!r} in the catalog", hint=hint, near=near)

    def versions(self, name: str, *, kind: str | None = None) -> Versions:
        """Return every version of an asset, newest first, removed ones last."""
        with self.open_index() as index:
            row, _ = self._resolve(index, name, kind)
            return Versions(index.named(parse_reference(f"{row.kind}/{row.name}", tuple(KINDS))))

    # Cards

    def get(self, name: str, *, kind: str | None = None) -> ResolvedCard:
        """Return the card a name, handle, id, DOI or digest resolves to."""
        row, others = self.resolve(name, kind=kind)
        return ResolvedCard(self.read(row), others, lambda: self.fair(row.handle).score)

    def existing(self, names: Iterable[str]) -> Iterator[Card]:
        """Yield the card that each name resolves to, in their order; a name without one is left out."""
        with self.open_index() as index:
            for name in names:
                with suppress(UsageError):  # a text that cannot name an asset
                    yield from (self.read(row) for row in self._ranked(index, name, None)[:1])

    def show(self, name: str, *, kind: str | None = None) -> ResolvedCard:
        """Return the card a name resolves to, and count the use."""
        card = self.get(name, kind=kind)
        self.count_use(card)
        return card

    def read(self, row: CatalogRow) -> Card:
        """Return the card of an index row."""
        return self._folder(row.catalog).read(row.path)

    def raw_document(self, card: Card) -> bytes | None:
        """Return the document the card was imported from, as it came."""
        source = card.get("sourceDocument")
        sha256 = source.get("sha256") if isinstance(source, Mapping) else None
        return self._folder(card.catalog).raw(sha256) if isinstance(sha256, str) and valid_sha256(sha256) else None

    def source_document(self, name: str | Card, *, kind: str | None = None) -> SourceDocument:
        """Return the document that an asset's card was imported from; NotFound where none is kept."""
        card = name if isinstance(name, Card) else self.get(name, kind=kind)
        data = self.raw_document(card) if card.catalog else None
        if data is None:
            raise NotFound(
                f"{card.handle} has no source document", hint="only cards imported from another format keep one"
            )
        return SourceDocument(str(card.handle), data)

    def fair(self, name: str | Card, *, kind: str | None = None) -> Assessment:
        """Return how FAIR an asset is, also one whose card is in no catalog yet: scores, evidence and advice."""
        card = name if isinstance(name, Card) else self.get(name, kind=kind)
        with self.open_index() as index:
            reference = parse_reference(f"{card.kind}/{card.name}", tuple(KINDS))
            rows = index.named(reference)

            def resolves(target: str) -> bool:
                with suppress(UsageError):
                    return bool(self._candidates(index, target, None))
                return False

            # A claim counts when the run that bears it out is on record.
            runs = [run for value in as_list(card.get("reproducedBy")) if (run := id_of(value))]
            surroundings = _WORK["surroundings"](
                resolves=resolves,
                versions=len({row.version for row in rows}),
                indexed_in=tuple(dict.fromkeys(row.catalog for row in rows)),
                # A copy of a source drops a card that the source drops; the others leave a tombstone.
                tombstones=card.catalog in (LOCAL, BUILTIN),
                runs=sum(bool(self._candidates(index, run, "run")) for run in runs),
                file=card.origin if isinstance(card, ResolvedCard) and not card.catalog else "",
            )
            assessment: Assessment = _WORK["assess"](card, surroundings)
            if isinstance(card, ResolvedCard):
                return dataclasses.replace(assessment, handle=card.origin, digest=card.digest, others=card.others)
            return dataclasses.replace(assessment, handle=str(card.handle), digest=card.digest)

    # Use

    def _uses(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        with suppress(OSError):  # what cannot be read does not rank
            for log in sorted((self.home / "usage").glob("*.log")):
                for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                    counts[line] = counts.get(line, 0) + 1
        return counts

    def count_use(self, card: Card) -> None:
        """Count one use of the asset; where nothing can be written, nothing is counted."""
        asset = f"{card.kind}/{card.name}"
        log = self.home / "usage" / f"{os.uname().nodename}.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as stream:
                stream.write(asset + "\n")
            # Nobody waits for a writer just to be counted; the log says it to the index when that is built anew.
            if not os.path.exists(lock_of(self.index_path).path):
                with self.open_index() as index:
                    if index.writable:
                        index.count_use(card.kind, card.name)
        except OSError:
            return


def _target_texts(targets: Any) -> list[str]:
    many = [targets] if isinstance(targets, (str, Card, Hit, CatalogRow)) else list(targets)
    texts: list[str] = []
    for target in many:
        texts += (
            [target] if isinstance(target, str) else target_names(target.row if isinstance(target, Hit) else target)
        )
    return texts
