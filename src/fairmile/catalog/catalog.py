"""The catalog: one coherent view over the local cards, every source and the built-in cards."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from fairmile.base.commands import Here, Runner
from fairmile.base.errors import Conflict, InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.base.files import Lock, write_atomic
from fairmile.base.words import closest, slug
from fairmile.base.yaml import update_file
from fairmile.catalog import exchange
from fairmile.catalog.card import LINKS, Card, as_list
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.fair import Assessment, Surroundings, assess
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.identity import is_iri, mint_iri, parse_reference, valid_sha256
from fairmile.catalog.index import Index, Refresh, Row, rebuild, target_names
from fairmile.catalog.kinds import CONTEXT_IRI, KIND_SYNONYMS, KINDS
from fairmile.catalog.licences import licence_iri
from fairmile.catalog.match import Match, match
from fairmile.catalog.profile import check_body, check_text
from fairmile.catalog.query import FIELDS, Query, parse_query
from fairmile.catalog.results import Added, Checked, Hit, SearchResult
from fairmile.catalog.sources import SyncReport, publish, source_spec, state, sync

LOCAL = "local"
BUILTIN = "builtin"


class Catalog:
    """Cards of every source as one view: search, read, add, change, exchange.

    Catalogs rank: local first, then the sources in the order of the settings, the built-in one last.
    """

    def __init__(
        self,
        home: Path,
        *,
        sources: Mapping[str, Any] | None = None,
        settings_file: Path | None = None,
        base: str = "",
        runner: Runner | None = None,
        clock: Callable[[], float] = time.time,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.home = home
        self._source_settings = dict(sources or {})
        self._settings_file = settings_file
        self._base = base
        self._runner = runner or Here()
        self._clock = clock
        self._on_progress = on_progress
        self.local = CatalogFolder(LOCAL, home / "catalog", writable=True)

    # The catalogs behind the view

    def folders(self) -> list[CatalogFolder]:
        """Return every catalog in order of precedence."""
        sources = [self.source_folder(name) for name in self._source_settings]
        return [self.local, *sources, builtin_folder()]

    def source_folder(self, name: str) -> CatalogFolder:
        return CatalogFolder(name, self.home / "sources" / name)

    def _folder(self, name: str) -> CatalogFolder:
        return next(folder for folder in self.folders() if folder.name == name)

    @property
    def index_path(self) -> Path:
        return self.home / "index.sqlite"

    def open_index(self) -> Index:
        """Return the index, brought up to date where it can be written."""
        index = Index.open(self.index_path)
        folders = self.folders()
        if index.writable and index.stale(folders):
            index.refresh(folders, self._uses(), on_card=self._on_progress)
        return index

    def reindex(self) -> Refresh:
        """Build the index anew from the files."""
        self.home.mkdir(parents=True, exist_ok=True)
        return rebuild(self.index_path, self.folders(), self._uses(), on_card=self._on_progress)

    # Reading

    def search(
        self, text: str = "", *, kind: str | None = None, limit: int = 20, all_versions: bool = False
    ) -> SearchResult:
        """Return the assets that match; see `fairmile.catalog.query` for the language."""
        query = parse_query(f"kind:{kind} {text}" if kind else text, all_versions=all_versions)
        with self.open_index() as index:
            rows = index.search(query, limit=limit + 20)
            hits = self._merge(index, rows, query)[:limit]
            return SearchResult(tuple(hits), () if hits else self._suggestions(index, query))

    def _merge(self, index: Index, rows: Sequence[Row], query: Query) -> list[Hit]:
        rank = {folder.name: place for place, folder in enumerate(self.folders())}
        only = {value for facet, value in query.facets if facet == "catalog"}
        hits: dict[tuple[str, ...], Hit] = {}
        named = index.twins(rows)
        for row in rows:
            key = (row.kind, row.name, row.version if query.all_versions else "")
            if key in hits:
                continue
            twins = [each for each in named[row.kind, row.name] if each.catalog in rank]
            twins = [each for each in twins if (each.version == row.version if query.all_versions else each.latest)]
            best = row if only else min([row, *twins], key=lambda each: (each.gone, rank.get(each.catalog, 99)))
            others = [each for each in twins if each.catalog != best.catalog]
            clash = any(each.digest != best.digest for each in others if each.version == best.version)
            hits[key] = Hit(best, tuple(each.catalog for each in others), clash)
        return list(hits.values())

    @staticmethod
    def _suggestions(index: Index, query: Query) -> tuple[str, ...]:
        found = [word for text in (*query.words, *query.prefixes) for word in index.suggest(text)]
        for facet, value in query.facets:
            found += [f"{facet}:{each}" for each in closest(value, index.facet_values(facet)) if each != value]
        return tuple(dict.fromkeys(found))

    def find(self, kind: str | None = None, words: str = "", *, limit: int = 1000, **where: Any) -> list[Hit]:
        """Return the assets with these facets and links, as in `find("model", machine="lassen")`.

        A facet (domain, task, framework, project, funder, machine, gpu …) takes a text. A link
        (trainedOn, targetMachine, result …) takes an asset, or several, as `find` or `get` return them.
        """
        facets = {name: value for name, value in where.items() if name in FIELDS}
        links = {name: value for name, value in where.items() if name in LINKS}
        unknown = set(where) - set(facets) - set(links)
        if unknown:
            name = sorted(unknown)[0]
            near = closest(name, [*FIELDS, *LINKS])
            raise UsageError(
                f"no facet or link named {name!r}", hint=f"did you mean {', '.join(near)}?" if near else ""
            )
        text = " ".join([words, *(f'{name}:"{value}"' for name, value in facets.items())])
        query = parse_query(f"kind:{kind} {text}" if kind else text)
        with self.open_index() as index:
            hits = self._merge(index, index.search(query, limit=limit), query)
            for relation, targets in links.items():
                pairs = index.linking_to(_target_texts(targets), relation)
                linked = {row.handle for _, row in pairs}
                hits = [hit for hit in hits if hit.handle in linked]
        return hits

    def resolve(self, name: str, *, kind: str | None = None) -> tuple[Row, list[Row]]:
        """Return the card a name means and the others it could mean; NotFound with the nearest names."""
        with self.open_index() as index:
            rows = self._candidates(index, name, kind)
            if not rows:
                raise self._not_found(index, name, kind)
        kinds, rank = list(KINDS), {folder.name: place for place, folder in enumerate(self.folders())}
        # Rows come newest first; the sort is stable, so within a catalog the newest stays in front.
        rows.sort(key=lambda row: (row.gone, kinds.index(row.kind), rank.get(row.catalog, 99)))
        best = rows[0]
        others = [row for row in rows[1:] if (row.kind, row.name, row.catalog) != (best.kind, best.name, best.catalog)]
        return best, list({(row.kind, row.name, row.catalog): row for row in reversed(others)}.values())[::-1]

    @staticmethod
    def _candidates(index: Index, name: str, kind: str | None) -> list[Row]:
        text = name.strip()
        if is_iri(text) or valid_sha256(text):
            rows = index.aliased(text) or index.aliased(text.removeprefix("doi:"))
        else:
            parts = text.split("/")
            if len(parts) > 1 and parts[-2] in KIND_SYNONYMS:
                parts[-2] = KIND_SYNONYMS[parts[-2]]
            rows = index.aliased(text) if len(parts) > 3 or text.startswith("10.") else []
            rows = rows or index.named(parse_reference("/".join(parts), tuple(KINDS)))
        return [row for row in rows if kind is None or row.kind == kind]

    def _not_found(self, index: Index, name: str, kind: str | None) -> NotFound:
        word = name.split("@")[0].rsplit("/", 1)[-1]
        names = [row.name for near in index.suggest(word, 5) for row in index.search(parse_query(near), limit=3)]
        near = closest(word, names) or list(dict.fromkeys(names))[:3]
        what = kind or "asset"
        hint = f"did you mean {', '.join(near)}?" if near else f"try `fairmile search {word}`"
        return NotFound(f"no {what} named {name!r} in the catalog", hint=hint)

    def get(self, name: str, *, kind: str | None = None) -> Card:
        """Return the card a name, handle, id, DOI or digest means."""
        row, _ = self.resolve(name, kind=kind)
        return self.read(row)

    def show(self, name: str, *, kind: str | None = None) -> Card:
        """Return the card a name means, and count the use."""
        card = self.get(name, kind=kind)
        self.count_use(card)
        return card

    def read(self, row: Row) -> Card:
        """Return the card of an index row."""
        return self._folder(row.catalog).read(row.path)

    def raw_document(self, card: Card) -> bytes | None:
        """Return the document the card was imported from, as it came."""
        source = card.get("sourceDocument")
        sha256 = source.get("sha256") if isinstance(source, Mapping) else None
        return self._folder(card.catalog).raw(sha256) if isinstance(sha256, str) and valid_sha256(sha256) else None

    def versions(self, name: str, *, kind: str | None = None) -> list[Row]:
        """Return every version of an asset, newest first, removed ones last."""
        row, _ = self.resolve(name, kind=kind)
        with self.open_index() as index:
            return index.named(parse_reference(f"{row.kind}/{row.name}", tuple(KINDS)))

    def facets(self, facet: str) -> dict[str, int]:
        """Return the values of a facet and how many cards have each."""
        if facet not in FIELDS:
            near = closest(facet, FIELDS)
            raise UsageError(
                f"no facet named {facet!r}", hint=f"did you mean {near[0]}?" if near else ", ".join(FIELDS)
            )
        with self.open_index() as index:
            return index.facet_values(FIELDS[facet])

    # Use

    def _uses(self) -> dict[str, int]:
        counts: dict[str, int] = {}
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
            with self.open_index() as index:
                if index.writable:
                    index.count_use(card.kind, card.name)
        except OSError:
            return

    # Changing

    def add(
        self,
        source: Path | Card | Mapping[str, Any],
        *,
        format: str | None = None,
        anyway: bool = False,
        dry_run: bool = False,
    ) -> list[Added]:
        """Add a card, or every asset of a foreign document, to the local catalog.

        What is there already is recognised: the same card is `present`; the same name, content or
        source under another card is a Conflict that says where it stands. Nothing is added then.
        `anyway` adds in spite of equal content or source; `dry_run` only says what would happen.
        """
        cards, document = self._read_cards(source, format)
        placed = [Card(card.body, catalog=LOCAL) for card in cards]
        with self.open_index() as index:
            fresh = [card for card in placed if not self._is_present(index, card, anyway=anyway)]
            new = {id(card) for card in fresh}
            done = [
                Added(str(card.handle), "added" if id(card) in new else "present", card.warnings) for card in placed
            ]
            if dry_run or not fresh:
                return done
            generation = self.local.touch_generation()
            if document is not None:
                self.local.keep_raw(document.data, document.sha256)
            for card in fresh:
                try:
                    self.local.write(card)
                except FileExistsError:
                    raise Conflict(f"{card.handle} was added by another process just now") from None
                if index.writable:
                    index.put(self.local, card, generation)
        return done

    def _read_cards(self, source: Path | Card | Mapping[str, Any], format: str | None) -> tuple[list[Card], Any]:
        if isinstance(source, (Card, Mapping)):
            body = dict(source)
            problems = [problem for problem in check_body(body) if problem.severity == "error"]
            if problems:
                raise InvalidDocument(problems)
            return [self._with_id(Card(body))], None
        document = Document.from_file(Path(source))
        cards, problems = self._parse(document, format)
        if not cards:
            raise InvalidDocument([problem for problem in problems if problem.severity == "error"])
        from_foreign = "sourceDocument" in cards[0] and format != "card" and exchange.recognise(document) is not None
        return [self._with_id(card) for card in cards], document if from_foreign else None

    def _parse(self, document: Any, format: str | None) -> tuple[list[Card], list[Problem]]:
        name = format if format and format != "card" else None
        own = format == "card" or (name is None and CONTEXT_IRI.encode() in document.data)
        if not own:
            name = name or exchange.recognise(document)
        if own or (name is None and document.file_name.endswith((".jsonld", ".json"))):
            card, problems = check_text(document.text, file=document.name)
            return ([card] if card else []), problems
        cards = exchange.read(document, name, base=self._base)
        problems = [
            Problem(w["message"], w["field"], "warning", document.name) for card in cards for w in card.warnings
        ]
        for card in cards:
            problems += [
                Problem(p.message, p.field, p.severity, document.name, None, p.hint) for p in check_body(card.body)
            ]
        return cards, problems

    def _with_id(self, card: Card) -> Card:
        if card.iri:
            return card
        iri = mint_iri(card.kind, card.title, card.version, base=self._base, origin=card.digest)
        return Card({"@id": iri, **card.body})

    def _is_present(self, index: Index, card: Card, *, anyway: bool) -> bool:
        """Tell whether this very card is there; a Conflict when its name, content or source is, under another card."""
        handle = card.handle
        reference = parse_reference(f"{LOCAL}/{handle.kind}/{handle.name}@{handle.version}", tuple(KINDS))
        same_name = index.named(reference)
        if same_name and not same_name[0].gone and same_name[0].digest == card.digest:
            return True
        if same_name and same_name[0].gone:
            raise Conflict(f"{handle} was removed and its name stays reserved", hint="give it another version")
        if same_name:
            raise Conflict(
                f"{handle} is there already with another description",
                hint=f"`fairmile catalog update {handle}` changes it; a new version needs another `version`",
            )
        if anyway:
            return False
        twins = index.same_content(card.content) if card.content else []
        if twins and not self._is_version(card, twins[0]):
            raise Conflict(
                f"the content of {handle} is there already as {twins[0].handle}",
                hint="--anyway adds it under this name too",
            )
        for file in card.files:
            rows = [row for row in (index.same_source(file.url) if file.url else []) if not self._is_version(card, row)]
            if rows:
                raise Conflict(
                    f"{file.url} is there already as part of {rows[0].handle}",
                    hint="--anyway adds it under this name too",
                )
        return False

    @staticmethod
    def _is_version(card: Card, row: Row) -> bool:
        return (card.kind, card.name) == (row.kind, row.name) and row.catalog == LOCAL

    def update(
        self,
        name: str,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        kind: str | None = None,
        dry_run: bool = False,
    ) -> Card:
        """Change properties of a card: set, append to, or drop them; returns the card as written.

        A new `version` makes a new card linked to the old one. A card of another catalog is
        changed as a local copy, which takes precedence over it.
        """
        row = self._only(name, kind)
        old = self.read(row)
        body = {key: value for key, value in old.body.items() if key not in unset}
        body |= dict(set or {})
        for key, value in (add or {}).items():
            body[key] = [*as_list(body.get(key)), *as_list(value)]
        self._refuse_renaming(old, body)
        body = self._normalised(body, changed={*(set or {}), *(add or {})})
        new_version = body.get("version") != old.get("version")
        if new_version:
            body["wasRevisionOf"] = old.iri
            body["@id"] = mint_iri(old.kind, old.title, str(body["version"]), base=self._base, origin=old.digest)
        card = Card(body, catalog=LOCAL)
        errors = [problem for problem in check_body(card.body) if problem.severity == "error"]
        if errors:
            raise InvalidDocument(errors)
        if not dry_run:
            self._write(card, replace=not new_version)
        return card

    @staticmethod
    def _refuse_renaming(old: Card, body: Mapping[str, Any]) -> None:
        new = Card(body, catalog=old.catalog)
        if (new.kind, new.name) != (old.kind, old.name):
            raise UsageError(
                "name and @type say which asset it is and cannot be changed",
                hint="add it under the new name and remove this one",
            )

    @staticmethod
    def _normalised(body: dict[str, Any], changed: set[str]) -> dict[str, Any]:
        if "license" in changed and isinstance(body.get("license"), str):
            iri = licence_iri(body["license"])
            if iri and iri != body["license"]:
                body = {**body, "license": iri, "licenseRaw": body["license"]}
        if "distribution" in changed:
            body.pop("contentDigest", None)
            content = Card(body).content
            body |= {"contentDigest": content} if content else {}
        return body

    def _write(self, card: Card, *, replace: bool) -> None:
        with self.open_index() as index, Lock(self.local.root / f"{card.kind}.{card.name}.lock"):
            generation = self.local.touch_generation()
            try:
                self.local.write(card, replace=replace)
            except FileExistsError:
                raise Conflict(f"{card.handle} is there already") from None
            if index.writable:
                index.put(self.local, card, generation)

    def _only(self, name: str, kind: str | None) -> Row:
        row, others = self.resolve(name, kind=kind)
        kinds = {each.kind for each in others} - {row.kind}
        if kinds and row.iri != name and "/" not in name:
            choices = ", ".join(f"{each}/{row.name}" for each in KINDS if each in {row.kind, *kinds})
            raise UsageError(f"{name!r} names several assets", hint=f"say which: {choices}")
        if row.gone:
            raise NotFound(f"{row.handle} was removed", hint=f"`fairmile show {row.handle}` tells why")
        return row

    def remove(
        self, name: str, *, reason: str = "", successor: str = "", kind: str | None = None, dry_run: bool = False
    ) -> Card:
        """Remove a local card; a tombstone keeps it with the date, the reason and the successor."""
        row = self._only(name, kind)
        if row.catalog != LOCAL:
            raise UsageError(
                f"{row.handle} belongs to the catalog {row.catalog!r}, not to yours",
                hint=f"`fairmile catalog source rm {row.catalog}` leaves out the whole source"
                if row.catalog != BUILTIN
                else "",
            )
        facts = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock())), "reason": reason}
        if successor:
            facts["supersededBy"] = self.get(successor).iri
        card = self.read(row)
        buried = Card({**card.body, "tombstone": facts}, catalog=LOCAL)
        if dry_run:
            return buried
        with self.open_index() as index:
            generation = self.local.touch_generation()
            self.local.bury(card, facts)
            if index.writable:
                index.put(self.local, buried, generation)
        return buried

    # Checking and exchange

    def check(self, paths: Iterable[Path], *, format: str | None = None) -> list[Checked]:
        """Check cards and foreign documents; every problem has file, line and field. Nothing is changed."""
        verdicts = []
        for path in paths:
            try:
                cards, problems = self._parse(Document.from_file(path), format)
                verdicts.append(Checked(str(path), problems, [str(card.handle) for card in cards]))
            except InvalidDocument as error:
                verdicts.append(Checked(str(path), list(error.problems)))
            except UsageError as error:
                verdicts.append(Checked(str(path), [Problem(str(error), file=str(path), hint=error.hint or "")]))
        return verdicts

    def export(self, name: str, format: str, target: Path | None = None, *, kind: str | None = None) -> dict[str, str]:
        """Return the documents that describe an asset in a foreign format; written below `target` where given."""
        card = self.get(name, kind=kind)
        documents = {f"{card.name}.jsonld": card.to_json()} if format == "card" else exchange.write(card, format)
        if target is not None:
            for file_name, text in documents.items():
                write_atomic(target / file_name, text)
        self.count_use(card)
        return documents

    def fair(self, name: str, *, kind: str | None = None) -> Assessment:
        """Return how FAIR an asset is: scores, evidence and advice."""
        card = self.get(name, kind=kind)
        with self.open_index() as index:
            reference = parse_reference(f"{card.kind}/{card.name}", tuple(KINDS))
            rows = index.named(reference)

            def resolves(target: str) -> bool:
                with suppress(UsageError):
                    return bool(self._candidates(index, target, None))
                return False

            reproduced = [row for relation, row in index.linking_to(target_names(card)) if relation == "reproducedBy"]
            surroundings = Surroundings(
                resolves=resolves,
                versions=len({row.version for row in rows}),
                indexed_in=tuple(dict.fromkeys(row.catalog for row in rows)),
                runs=len(reproduced) + len(as_list(card.get("reproducedBy"))),
            )
            return assess(card, surroundings)

    def match(
        self, *, model: str | None = None, dataset: str | None = None, domain: str | None = None, limit: int = 20
    ) -> list[Match]:
        """Return which data sets a model accepts, which models a data set trains, or both for a domain, and why."""
        return match(self, model=model, dataset=dataset, domain=domain, limit=limit)

    def publish(self, target: Path, *, catalog: str | None = None) -> int:
        """Write the cards of a catalog (the local one) as a folder that any web server can offer as a source."""
        folder = self.local if catalog is None else self._known_folder(catalog)
        return publish([folder.read(path) for path, _ in folder.scan()], target)

    def _known_folder(self, name: str) -> CatalogFolder:
        names = [folder.name for folder in self.folders()]
        if name not in names:
            raise NotFound(f"no catalog named {name!r}", hint=f"catalogs: {', '.join(names)}")
        return self._folder(name)

    # Sources

    def add_source(self, name: str, location: str, *, type: str | None = None, revision: str = "") -> SyncReport:
        """Declare a source in the user's settings and sync it; nothing is declared when the first sync fails."""
        if slug(name) != name or name in (LOCAL, BUILTIN):
            raise UsageError(
                f"{name!r} cannot name a source",
                hint="lower-case letters, digits, dots and dashes; not local or builtin",
            )
        if name in self._source_settings:
            raise Conflict(
                f"a source named {name!r} is there already", hint=f"`fairmile catalog source rm {name}` first"
            )
        location = (
            location
            if "://" in location or location.startswith("git@")
            else str(Path(location).expanduser().absolute())
        )
        given = {"location": location, "type": type, "revision": revision}
        settings = {key: value for key, value in given.items() if value}
        report = sync(
            source_spec(name, settings), self.source_folder(name), self._runner, base=self._base, clock=self._clock
        )
        if report.error:
            raise SystemFailure(f"the source {name!r} cannot be synced: {report.error}", hint="nothing was added")
        update_file(self._settings(), lambda data: data.setdefault("sources", {}).__setitem__(name, settings))
        self._source_settings[name] = settings
        self.open_index().close()
        return report

    def remove_source(self, name: str) -> None:
        """Take a source out of the user's settings and drop its copy."""
        if name not in self._source_settings:
            raise NotFound(f"no source named {name!r}", hint="`fairmile catalog source ls` lists them")

        def drop(data: Any) -> None:
            if data.get("sources", {}).pop(name, None) is None:
                raise UsageError(
                    f"the source {name!r} is not declared in {self._settings_file}",
                    hint="`fairmile doctor` shows which file declares it",
                )

        update_file(self._settings(), drop)
        del self._source_settings[name]
        shutil.rmtree(self.source_folder(name).root, ignore_errors=True)
        self.open_index().close()

    def _settings(self) -> Path:
        if self._settings_file is None:
            raise UsageError("this catalog was opened without a settings file, so sources cannot be changed")
        return self._settings_file

    def sync(self, names: Sequence[str] = ()) -> list[SyncReport]:
        """Bring sources up to date; one that fails is reported and its last copy still serves."""
        for name in names:
            if name not in self._source_settings:
                near = closest(name, self._source_settings)
                raise NotFound(
                    f"no source named {name!r}",
                    hint=f"did you mean {near[0]!r}?" if near else "`fairmile catalog source ls` lists them",
                )
        specs = [
            source_spec(name, settings)
            for name, settings in self._source_settings.items()
            if not names or name in names
        ]
        reports = [
            sync(spec, self.source_folder(spec.name), self._runner, base=self._base, clock=self._clock)
            for spec in specs
        ]
        self.open_index().close()
        return reports

    def catalogs(self) -> list[dict[str, Any]]:
        """Return every catalog in order of precedence, with its state and its clashes with those before it."""
        with self.open_index() as index:
            counts = index.count()
            clashes = index.clashes([folder.name for folder in self.folders()])
        found = []
        for folder in self.folders():
            facts: dict[str, Any] = {
                "name": folder.name,
                "cards": counts.get(folder.name, 0),
                "clashes": clashes.get(folder.name, []),
            }
            if folder.name in self._source_settings:
                spec = source_spec(folder.name, self._source_settings[folder.name])
                kept = state(folder)
                facts |= {"type": spec.type, "location": spec.location, "revision": kept.get("revision", "")}
                facts |= {
                    "synced_at": kept.get("synced_at", ""),
                    "error": kept.get("error", ""),
                    "problems": kept.get("problems", []),
                }
            else:
                facts |= {"type": folder.name, "location": str(folder.root)}
            found.append(facts)
        return found


def _target_texts(targets: Any) -> list[str]:
    many = [targets] if isinstance(targets, (str, Card, Hit, Row)) else list(targets)
    texts: list[str] = []
    for target in many:
        texts += (
            [target] if isinstance(target, str) else target_names(target.row if isinstance(target, Hit) else target)
        )
    return texts


class _Builtin(CatalogFolder):
    """The cards shipped with the package; they change only with it."""

    def generation(self) -> str:
        kinds = [entry.stat().st_mtime_ns for entry in os.scandir(self.cards_root) if entry.is_dir()]
        return f"{len(kinds)} {max(kinds, default=0)}"


def builtin_folder() -> CatalogFolder:
    """Return the catalog that ships with the package."""
    return _Builtin(BUILTIN, Path(str(files("fairmile.catalog"))) / "data")
