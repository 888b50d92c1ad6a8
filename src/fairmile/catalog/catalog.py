"""The catalog: one coherent view over the local cards, every source and the built-in cards."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import Conflict, FairmileError, InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.nouns import Noun
from fairmile.base.paths import AnyPath, as_paths, as_sources
from fairmile.base.registry import Plugin, Registry
from fairmile.catalog.card import Card
from fairmile.catalog.declared import BUILTIN, LOCAL, AddedSource, SourceDict, SyncReports
from fairmile.catalog.identity import Handle, is_iri, mint_iri, parse_reference, source_key
from fairmile.catalog.index import Index, Refresh, rebuild
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS
from fairmile.catalog.lookup import Lookup
from fairmile.catalog.results import (
    Added,
    Additions,
    Catalogs,
    Checked,
    CheckedFiles,
    ExportedDocuments,
    FailedFile,
    Publication,
    RemovedCard,
    SourceRemoval,
    UpdatedCard,
)
from fairmile.catalog.row import CatalogRow
from fairmile.transfer.credentials import shown_address

if TYPE_CHECKING:
    from fairmile.catalog.content import Content, Contents
    from fairmile.catalog.describing.describe import Description
    from fairmile.catalog.exchange.draft import Document
    from fairmile.catalog.match import Matches

# What a search or a fetch, which must answer at once, does not ask for.
_WORK: Registry[Callable[..., Any]] = Registry(
    "work of the catalog",
    {
        "match": Plugin("fairmile.catalog.match:match"),
        "change": Plugin("fairmile.catalog.change:Change"),
        "changed": Plugin("fairmile.catalog.change:changed"),
        "stated": Plugin("fairmile.catalog.change:stated"),
        "with_spdx": Plugin("fairmile.catalog.change:with_spdx"),
        "check_body": Plugin("fairmile.catalog.profile:check_body"),
        "file_warnings": Plugin("fairmile.catalog.profile:file_warnings"),
        "check_text": Plugin("fairmile.catalog.profile:check_text"),
        "read_address": Plugin("fairmile.catalog.hubs.hubs:read_address"),
        "read_reference": Plugin("fairmile.catalog.hubs.hubs:read_reference"),
        "describe": Plugin("fairmile.catalog.describing.describe:describe"),
        "describe_model": Plugin("fairmile.catalog.describing.describe:describe_model"),
        "questions": Plugin("fairmile.catalog.describing.describe:questions"),
        "with_place": Plugin("fairmile.catalog.describing.describe:with_place"),
        "measure": Plugin("fairmile.catalog.content:measure"),
        "measure_all": Plugin("fairmile.catalog.content:measure_all"),
        "document": Plugin("fairmile.catalog.exchange.draft:Document.from_file"),
        "recognise": Plugin("fairmile.catalog.exchange:recognise"),
        "may_be_card": Plugin("fairmile.catalog.exchange.draft:may_be_card"),
        "read": Plugin("fairmile.catalog.exchange:read"),
        "write": Plugin("fairmile.catalog.exchange:write"),
        "is_source": Plugin("fairmile.catalog.sources:is_source"),
        "publish": Plugin("fairmile.catalog.sources:publish"),
    },
)


_INTERNAL = (  # for other parts of Fairmile
    "count_use existing facet_values folders hub_card hub_reference index_path open_index raw_document read resolve"
    " state"
)


class Catalog(Lookup, Noun, internal=_INTERNAL, package=__package__):
    """All cards of all sources: search, read, add, change and exchange them."""

    # The index

    @contextmanager
    def _changing(self) -> Iterator[Index]:
        """Hold the index, up to date, while local cards change, so that no process misses what another one does."""
        with self.open_index() as index:
            if not index.writable:
                yield index
                return
            with index.held():
                folders = self.folders()
                if index.stale(folders):
                    index.refresh(folders, self._uses(), on_card=self._on_progress)
                yield index

    def reindex(self, *, dry_run: bool = False) -> Refresh:
        """Rebuild the index from the files; a dry run counts them."""
        if dry_run:
            return Refresh(added=sum(1 for folder in self.folders() for _ in folder.scan()), dry_run=True)
        return rebuild(self.index_path, self.folders(), self._uses(), on_card=self._on_progress)

    # Changing

    def add(
        self,
        source: AnyPath | Card | Mapping[str, Any],
        *,
        format: str | None = None,
        anyway: bool = False,
        dry_run: bool = False,
    ) -> Additions:
        """Add a card, every asset of a foreign document or web page, or an asset of a hub, to the local catalog.

        What already exists, by card, content or source, is `present`, and the answer says under which
        handle it stands; `anyway` adds in spite of equal content or source. The same name with another
        description is a Conflict, and nothing is added. `dry_run` only says what would happen.
        """
        cards, document = self._read_cards(source, format)
        placed = [Card(card.body, catalog=LOCAL) for card in cards]
        file = "" if isinstance(source, (Card, Mapping)) else str(source)
        if dry_run:
            with self.open_index() as index:
                return Additions(self._plan(index, placed, anyway, file)[0], dry_run=True)
        with self._changing() as index:
            done, fresh = self._plan(index, placed, anyway, file)
            if fresh:
                self._write_new(index, fresh, document)
        return Additions(done)

    def add_files(
        self,
        files: AnyPath | Sequence[AnyPath],
        *,
        format: str | None = None,
        anyway: bool = False,
        dry_run: bool = False,
    ) -> Additions:
        """Add every asset of several files as `add` does; a file that fails does not stop the others.

        The error of an only file is raised; of several, it is listed in `failed`.
        """
        cards: list[Added] = []
        failed: list[FailedFile] = []
        sources = as_sources(files)
        for file in sources:
            try:
                cards += self.add(file, format=format, anyway=anyway, dry_run=dry_run)
            except FairmileError as error:
                if len(sources) == 1:
                    raise
                failed.append(FailedFile(str(file), error))
                if error.exit_code != UsageError.exit_code:  # the disk, not the file: the next one would fail as well
                    break
        return Additions(cards, failed, dry_run)

    def _plan(self, index: Index, placed: Sequence[Card], anyway: bool, file: str) -> tuple[list[Added], list[Card]]:
        """Return what becomes of each card, and those to write."""
        done: list[Added] = []
        fresh: dict[Handle, Card] = {}
        for card in placed:
            # The digest also refuses, before anything is written, what no canonical JSON can express.
            digest, twin = card.digest, fresh.get(card.handle)
            if twin is not None and twin.digest != digest:
                raise Conflict(f"{card.handle} is described twice, with different content", hint="nothing was added")
            stands_as, because = (str(card.handle), "card") if twin else self._existing(index, card, anyway=anyway)
            if not stands_as:
                fresh[card.handle] = card
            status = "present" if stands_as else "added"
            warnings = [*card.warnings, *self._misspelt(card)]
            done.append(Added(str(card.handle), status, warnings, stands_as, because, file))
        return done, list(fresh.values())

    @staticmethod
    def _misspelt(card: Card) -> list[dict[str, str]]:
        """Return the keys of files that a fetch would ignore, as warnings of a card."""
        return [{"field": each.field, "message": each.message} for each in _WORK["file_warnings"](card.body)]

    def _write_new(self, index: Index, cards: Sequence[Card], document: Document | None) -> None:
        generation = self.local.touch_generation([self.local.relative_path(card.handle) for card in cards])
        if document is not None:
            self.local.keep_raw(document.data, document.sha256)
        written: list[Card] = []
        try:
            for card in cards:
                self.local.write(card)
                written.append(card)
        except BaseException as error:
            for done in written:
                self.local.remove(self.local.relative_path(done.handle))
            if isinstance(error, FileExistsError):
                raise Conflict(
                    f"{self.local.path(card.handle)} already exists, but is not in the index",
                    hint="`fairmile catalog reindex` shows the reason; nothing was added",
                ) from None
            raise
        for card in written if index.writable else ():
            index.put(self.local, card, generation)

    def _read_cards(
        self, source: AnyPath | Card | Mapping[str, Any], format: str | None
    ) -> tuple[list[Card], Document | None]:
        if isinstance(source, (Card, Mapping)):
            body = dict(source)
            problems = [problem for problem in _WORK["check_body"](body) if problem.severity == "error"]
            if problems:
                raise InvalidDocument(problems)
            return [self._with_id(Card(body))], None
        document: Document
        reference = self.hub_reference(str(source)) if not Path(source).exists() else ""
        if reference:
            card, document = _WORK["read_reference"](reference, self._context)
            return [self._with_id(card)], document
        model = self._model_card(Path(source)) if format is None and Path(source).exists() else None
        if model is not None:
            return [self._with_id(model)], None
        document = self._document(source)
        cards, problems = self._parse(document, format)
        if not cards:
            errors = [problem for problem in problems if problem.severity == "error"]
            raise InvalidDocument(errors or [Problem("describes no asset", file=document.name)])
        return [self._with_id(card) for card in cards], document if _WORK["is_source"](document, cards[0]) else None

    def _model_card(self, path: Path) -> Card | None:
        """Return the card of a model file, by what it declares; None of anything else, such as a description."""
        if path.suffix in (".json", ".jsonld"):
            return None
        card: Card | None = _WORK["describe_model"](path, self._context.runner, self._on_progress)
        return card

    def _document(self, source: AnyPath) -> Document:
        """Read a file, the description in a folder, or what a web address serves."""
        address = str(source)
        is_address = address.lower().startswith(("http://", "https://"))
        document: Document = (
            _WORK["read_address"](address, self._context) if is_address else _WORK["document"](Path(source))
        )
        return document

    def _parse(self, document: Document, format: str | None) -> tuple[list[Card], list[Problem]]:
        name = format if format and format != "card" else None
        own = format == "card" or (name is None and CONTEXT_IRI.encode() in document.data)
        if not own:
            name = name or _WORK["recognise"](document)
        if own or (name is None and _WORK["may_be_card"](document)):
            card, problems = _WORK["check_text"](document.text, file=document.name)
            return ([card] if card else []), problems
        cards: list[Card] = _WORK["read"](document, name, base=self._base)
        problems = [
            Problem(w["message"], w["field"], "warning", document.name) for card in cards for w in card.warnings
        ]
        for card in cards:
            problems += [
                Problem(p.message, p.field, p.severity, document.name, None, p.hint)
                for p in _WORK["check_body"](card.body)
            ]
        return cards, problems

    def _with_id(self, card: Card) -> Card:
        """Return the card as it is kept: with an id, its licence in SPDX."""
        card = Card(_WORK["with_spdx"](card.body))
        if card.iri:
            return card
        iri = mint_iri(card.kind, card.title, card.version, base=self._base, origin=card.digest)
        return Card({"@id": iri, **card.body})

    def _existing(self, index: Index, card: Card, *, anyway: bool) -> tuple[str, str]:
        """Return the handle under which the asset already exists, and what is the same; empty when it is new."""
        handle = card.handle
        reference = parse_reference(f"{LOCAL}/{handle.kind}/{handle.name}@{handle.version}", tuple(KINDS))
        same_name = index.named(reference)
        if same_name and not same_name[0].gone and same_name[0].digest == card.digest:
            return same_name[0].handle, "card"
        if same_name and same_name[0].gone:
            raise Conflict(f"{handle} was removed and its name stays reserved", hint="give it another version")
        if same_name:
            raise Conflict(
                f"{handle} already exists with another description",
                hint=f"`fairmile catalog update {handle}` changes it; a new version needs another `version`",
            )
        if anyway:
            return "", ""
        for row in self._strangers(card, index.same_content(card.content) if card.content else []):
            return row.handle, "content"
        for row in self._strangers(card, index.same_source(next((f.url for f in card.files if f.url), ""))):
            if source_key(self.read(row)) == source_key(card):
                return row.handle, "source"
        return "", ""

    @staticmethod
    def _strangers(card: Card, rows: Iterable[CatalogRow]) -> list[CatalogRow]:
        """Return the cards that are neither removed nor another version of this one."""
        own = (LOCAL, card.kind, card.name)
        return [row for row in rows if not row.gone and (row.catalog, row.kind, row.name) != own]

    def update(
        self,
        name: str,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, Any] | None = None,
        unset: Sequence[str] = (),
        files: AnyPath | Iterable[AnyPath] = (),
        address: str = "",
        kind: str | None = None,
        dry_run: bool = False,
    ) -> UpdatedCard:
        """Set, append to or remove properties of a card, and return the card as written.

        `files` are files and folders whose sizes, digests, formats and columns go onto the card, and `address` is
        where others fetch the files that have no address yet. Texts may have the short form of their property, as in
        `creator="Ada Lovelace (0000-0002-1825-0097)"`; what is added under a name that is there completes it.
        A new `version` makes a new card linked to the old one. A card of another catalog is
        changed as a local copy, which takes precedence over it.
        """
        change = _WORK["change"](dict(set or {}), dict(add or {}), tuple(unset), tuple(as_paths(files)), address)
        if dry_run:
            with self.open_index() as index:
                planned: Card = _WORK["changed"](self.read(self._only(index, name, kind)), change, base=self._base)
                return UpdatedCard(planned, dry_run=True)
        with self._changing() as index:
            old = self.read(self._only(index, name, kind))
            card: Card = _WORK["changed"](old, change, base=self._base)
            # Only the card that was read may be replaced: a new version or a local copy must find its place free.
            same = (card.handle, card.version) == (old.handle, old.version)
            self._write(index, card, replace=same)
        return UpdatedCard(card, dry_run=False)

    def _write(self, index: Index, card: Card, *, replace: bool) -> None:
        if self.local.tombstone_path(card.handle).exists():
            raise Conflict(f"{card.handle} was removed and its name stays reserved", hint="give it another version")
        generation = self.local.touch_generation([self.local.relative_path(card.handle)])
        try:
            self.local.write(card, replace=replace)
        except FileExistsError:
            raise Conflict(f"{card.handle} already exists", hint="use its full name to change it") from None
        if index.writable:
            index.put(self.local, card, generation)

    def _only(self, index: Index, name: str, kind: str | None) -> CatalogRow:
        row, others = self._resolve(index, name, kind)
        kinds = {each.kind for each in others} - {row.kind}
        if kinds and row.iri != name and "/" not in name:
            choices = ", ".join(f"{each}/{row.name}" for each in KINDS if each in {row.kind, *kinds})
            raise UsageError(f"{name!r} names several assets", hint=f"choose one: {choices}")
        if row.gone:
            raise NotFound(f"{row.handle} was removed", hint=f"`fairmile show {row.handle}` shows the reason")
        return row

    def remove(
        self, name: str, *, reason: str = "", successor: str = "", kind: str | None = None, dry_run: bool = False
    ) -> RemovedCard:
        """Remove a local card; a tombstone keeps it with the date, the reason and the successor."""
        if dry_run:
            with self.open_index() as index:
                return RemovedCard(self._buried(index, name, kind, reason, successor), dry_run=True)
        with self._changing() as index:
            buried = self._buried(index, name, kind, reason, successor)
            generation = self.local.touch_generation(self.local.paths(buried.handle))
            self.local.bury(Card({k: v for k, v in buried.items() if k != "tombstone"}), buried["tombstone"])
            if index.writable:
                index.put(self.local, buried, generation)
        return RemovedCard(buried, dry_run=False)

    def _buried(self, index: Index, name: str, kind: str | None, reason: str, successor: str) -> Card:
        row = self._only(index, name, kind)
        named = index.named(parse_reference(f"{LOCAL}/{row.kind}/{row.name}", tuple(KINDS)))
        versions = [f"{each.name}@{each.version}" for each in named if not each.gone]
        if len(versions) > 1 and "@" not in name and row.iri != name:
            raise UsageError(f"{name!r} has several versions", hint=f"choose one: {', '.join(versions)}")
        if row.catalog != LOCAL:
            raise UsageError(
                f"{row.handle} belongs to the catalog {row.catalog!r}, not to yours",
                hint=f"`fairmile catalog source rm {row.catalog}` leaves out the whole source"
                if row.catalog != BUILTIN
                else "",
            )
        facts = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock())), "reason": reason}
        if successor:
            facts["supersededBy"] = self._resolve(index, successor, None)[0].iri
        return Card({**self.read(row).body, "tombstone": facts}, catalog=LOCAL)

    # Checking and exchange

    def describe(
        self,
        source: AnyPath,
        *,
        kind: str | None = None,
        set: Mapping[str, Any] | None = None,
        address: str = "",
        target: AnyPath | None = None,
        add: bool = False,
        replace: bool = False,
    ) -> Description:
        """Draft a card from a file, a folder or a URL, and list what only its owner can add.

        `set` has properties that you state, and `address` where others fetch the files. The card is written to the
        file `target`, or added to the local catalog with `add`; otherwise nothing is written. Files of this machine
        that have no other address are fetched from where they lie.
        """
        draft = self._drafted(source, kind, address)
        if set:
            card = Card(_WORK["stated"](draft.card, set).body, catalog=LOCAL)
            origins = {**draft.origins, **dict.fromkeys(set, "you")}
            draft = dataclasses.replace(draft, card=card, origins=origins, questions=_WORK["questions"](card))
        if target is not None:
            file, text = Path(target), draft.card.to_json()
            if not replace and file.exists() and file.read_bytes() != text.encode():
                raise Conflict(f"{file} already exists and differs", hint="--replace overwrites it")
            write_atomic(file, text)
            draft = dataclasses.replace(draft, written=str(target))
        if add:
            is_here = Path(source).exists()  # else its address is on the card
            done = self.add(_WORK["with_place"](draft.card, Path(source)) if is_here else draft.card)[0]
            draft = dataclasses.replace(draft, added=done.stands_as or done.handle)
        return draft

    def _drafted(self, source: AnyPath, kind: str | None, address: str) -> Description:
        path = Path(source)
        options: dict[str, Any] = {"kind": kind, "address": address, "on_progress": self._on_progress}
        if path.exists() or not is_iri(str(source)):
            if not path.exists():
                raise UsageError(f"{source}: no such file or folder", hint="check the path, or give an address")
            drafted: Description = _WORK["describe"](path, self._context.runner, **options)
            return drafted
        if self._fetch is None:
            raise UsageError(f"{source}: this catalog was opened without a store, so nothing can be fetched")
        self.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.home, prefix=".describe-") as folder:
            self._fetch(str(source), Path(folder))
            items = list(Path(folder).iterdir())
            options["address"] = address or str(source)
            fetched = items[0] if len(items) == 1 and items[0].is_file() else Path(folder)
            drafted = _WORK["describe"](fetched, self._context.runner, source=shown_address(str(source)), **options)
            return drafted

    def check(self, paths: AnyPath | Iterable[AnyPath], *, format: str | None = None) -> CheckedFiles:
        """Check cards and foreign documents, and return every problem with file, line and field."""
        verdicts = CheckedFiles()
        for path in as_sources(paths):
            try:
                cards, problems = self._parse(self._document(path), format)
                verdicts.append(Checked(str(path), problems, [str(card.handle) for card in cards]))
            except InvalidDocument as error:
                verdicts.append(Checked(str(path), list(error.problems)))
            except UsageError as error:
                verdicts.append(Checked(str(path), [Problem(str(error), hint=error.hint or "")]))
        return verdicts

    def export(
        self,
        name: str,
        format: str,
        target: AnyPath | None = None,
        *,
        kind: str | None = None,
        replace: bool = False,
        dry_run: bool = False,
    ) -> ExportedDocuments:
        """Export an asset to a foreign format; write the documents below `target` if given.

        A file that is there and differs is a Conflict unless `replace` is given; then nothing is written.
        """
        target = Path(target) if target is not None else None
        card = self.get(name, kind=kind)
        documents: dict[str, str] = (
            {f"{card.name}.jsonld": card.to_json()} if format == "card" else _WORK["write"](card, format)
        )
        files = {safe_join(target, name): text for name, text in documents.items()} if target is not None else {}
        for path, text in files.items():
            if not replace and os.path.isfile(path) and path.read_bytes() != text.encode():
                hint = "--replace overwrites it; nothing was written"
                raise Conflict(f"{path} already exists and differs", hint=hint)
        if not dry_run:
            for path, text in files.items():
                write_atomic(path, text)
            self.count_use(card)
        return ExportedDocuments(format, documents, target, dry_run=dry_run)

    @staticmethod
    def measure(path: Path) -> Content:
        """Return size, digests and SWHID of a file or folder, as a card takes them."""
        measured: Content = _WORK["measure"](path)
        return measured

    @staticmethod
    def measure_all(paths: AnyPath | Iterable[AnyPath]) -> Contents:
        """Return size, digests and SWHID of several files and folders."""
        measured: Contents = _WORK["measure_all"](as_paths(paths))
        return measured

    def match(
        self, *, model: str | None = None, dataset: str | None = None, domain: str | None = None, limit: int = 20
    ) -> Matches:
        """Return which data sets a model accepts, which models a data set trains, or both for a domain, and why."""
        matches: Matches = _WORK["match"](self, model=model, dataset=dataset, domain=domain, limit=limit)
        return matches

    def publish(self, target: AnyPath, *, catalog: str | None = None, dry_run: bool = False) -> Publication:
        """Write the cards of a catalog (default: the local one) as a folder for a web server."""
        folder = self.local if catalog is None else self._folder(catalog)
        cards = [folder.read(path) for path, _ in folder.scan()]
        if not dry_run:
            _WORK["publish"](cards, Path(target))
        return Publication(len(cards), Path(target), dry_run)

    # Sources

    def add_source(
        self, name: str, location: str, *, type: str | None = None, revision: str = "", dry_run: bool = False
    ) -> AddedSource:
        """Add a source to the user's settings and sync it; if the first sync fails, nothing is added."""
        report = self._sources.add(name, location, type=type, revision=revision, dry_run=dry_run)
        if not dry_run:
            self.open_index().close()
        return report

    def remove_source(self, name: str, *, dry_run: bool = False) -> SourceRemoval:
        """Remove a source and its copy from the user's settings; a dry run only checks."""
        self._sources.remove(name, dry_run=dry_run)
        if not dry_run:
            self.open_index().close()
        return SourceRemoval(name, dry_run)

    def sync(self, names: Sequence[str] = (), *, dry_run: bool = False, allow_empty: bool = False) -> SyncReports:
        """Update sources; a source that fails is reported and keeps its last copy.

        A source that lists no card any more, as an unmounted folder does, keeps its copy unless `allow_empty` is given.
        """
        reports = self._sources.sync(names, dry_run=dry_run, allow_empty=allow_empty)
        self.open_index().close()
        return reports

    def catalogs(self) -> Catalogs:
        """Return all catalogs in order of precedence, with their state and name clashes."""
        with self.open_index() as index:
            counts = index.count()
            clashes = index.clashes([folder.name for folder in self.folders()])
        own: list[SourceDict] = [
            {"name": folder.name, "type": folder.name, "location": str(folder.root)}
            for folder in (self.local, self._builtin)
        ]
        return Catalogs(
            {**each, "cards": counts.get(each["name"], 0), "clashes": clashes.get(each["name"], [])}
            for each in (own[0], *self._sources.facts(), own[1])
        )
