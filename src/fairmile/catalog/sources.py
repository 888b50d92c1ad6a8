"""Where catalogs come from: a folder, a git repository, a web address; nothing in them is executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote, unquote, urljoin

from fairmile.base.commands import Runner
from fairmile.base.digest import sha256_hex
from fairmile.base.errors import FairmileError, Integrity, InvalidDocument, SystemFailure, Transient, UsageError
from fairmile.base.files import Lock, write_atomic
from fairmile.base.git import Repository, refuse_commands
from fairmile.catalog import exchange
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.declared import LOCAL as LOCAL
from fairmile.catalog.declared import SourceSpec, state
from fairmile.catalog.declared import SyncReport as SyncReport
from fairmile.catalog.exchange.draft import MAX_DOCUMENT_BYTES, Document
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.identity import mint_iri
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.catalog.profile import check_text
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Busy, Client
from fairmile.transfer.remote import Context

INDEX_FILE = "index.json"
# File names and endings that may hold a card or a description in a foreign format.
_ENDINGS = (".jsonld", ".json", ".yaml", ".yml", ".cff", ".xml", ".ttl")
_NAMES = ("MLmodel", "README.md")
_SKIPPED_FOLDERS = (".git", "node_modules", "__pycache__", ".venv")
_MAX_FILES = 200_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WEB_CONNECTIONS = 8
_GIT_TIMEOUT_S = 600.0
# Objects of commits that were replaced stay in the cache; beyond this many times what one commit holds it starts anew.
_GIT_CACHE_TIMES = 5
_GIT_CACHE_BYTES = 64 << 20


class Source(Protocol):
    """Brings the documents of a source."""

    def documents(self) -> Iterator[Document | UsageError]:
        """Yield every document that may describe an asset, or why it cannot be read; names are relative."""
        ...

    def revision(self) -> str:
        """Return what pins the state that `documents` gave."""
        ...


def open_source(spec: SourceSpec, cache: Path, context: Context) -> Source:
    """Return the source a specification means; `cache` is a folder it may keep things in."""
    if spec.type == "git":
        is_path = "://" not in spec.location and ":" not in spec.location.split("/")[0]
        location = str(Path(spec.location).expanduser().absolute()) if is_path else spec.location
        return GitSource(location, spec.revision, cache / "git", context.runner)
    if spec.type == "web":
        return WebSource(spec.location, cache / "web", context)
    return FolderSource(Path(spec.location).expanduser())


class FolderSource:
    """A folder of cards and foreign descriptions."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def documents(self) -> Iterator[Document | UsageError]:
        if not self._root.is_dir():
            raise SystemFailure(f"the folder {self._root} is not there")
        count = 0
        for below, folders, names in os.walk(self._root, onerror=_stop):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
            for name in sorted(names):
                path = Path(below) / name
                if not may_describe(name) or path.is_symlink() or not path.is_file():
                    continue
                count += 1
                if count > _MAX_FILES:
                    raise UsageError(
                        f"the folder {self._root} holds more than {_MAX_FILES} descriptions: not a catalog"
                    )
                try:
                    yield Document.from_file(path, name=str(path.relative_to(self._root)))
                except UsageError as error:
                    yield error

    def revision(self) -> str:
        return ""


class GitSource:
    """A git repository at one revision, read from its objects without a work tree."""

    def __init__(self, location: str, revision: str, cache: Path, runner: Runner) -> None:
        refuse_commands(location, shown_address)
        self._location = location
        self._wanted = revision or "HEAD"
        self._git = Repository(cache, runner, shown=shown_address, timeout_s=_GIT_TIMEOUT_S)
        self._revision = ""

    def documents(self) -> Iterator[Document | UsageError]:
        cache = self._git.folder
        self._git.create()
        self._revision = self._git.fetch(self._location, self._wanted)
        archive = cache / f"snapshot.{os.getpid()}.tar"
        try:
            self._git.run("archive", "--format=tar", "-o", str(archive), self._revision)
            size_bytes = archive.stat().st_size
            yield from _tar_documents(archive)
        finally:
            archive.unlink(missing_ok=True)
        if _size_of(cache) > max(_GIT_CACHE_BYTES, _GIT_CACHE_TIMES * size_bytes):
            shutil.rmtree(cache, ignore_errors=True)

    def revision(self) -> str:
        return self._revision


class WebSource:
    """A web address with a static `index.json` that lists cards with their sha256."""

    def __init__(self, address: str, cache: Path, context: Context) -> None:
        self._index_url = address if address.endswith(".json") else address.rstrip("/") + "/" + INDEX_FILE
        self._cache = cache
        self._context = context
        self._revision = ""

    def documents(self) -> Iterator[Document | UsageError]:
        with closing(Client(self._context)) as client, ThreadPoolExecutor(_WEB_CONNECTIONS) as pool:
            data = _download(client, self._index_url)
            self._revision = sha256_hex(data)
            entries = _index_entries(Document(shown_address(self._index_url), data))
            yield from pool.map(lambda entry: self._document(client, *entry), entries)
        listed = {sha256 for _, sha256 in entries}
        for kept in self._cache.glob("??/*"):
            if kept.name not in listed:
                kept.unlink(missing_ok=True)

    def _document(self, client: Client, path: str, sha256: str) -> Document:
        kept = self._cache / sha256[:2] / sha256
        if kept.exists():
            data = kept.read_bytes()
            if sha256_hex(data) == sha256:
                return Document(path, data)
        url = urljoin(self._index_url, quote(path, safe="/%+@,;=!$&'()*~"))
        data = _download(client, url)
        if sha256_hex(data) != sha256:
            raise Integrity(f"{shown_address(url)} is not the card its index lists: sha256 differs")
        write_atomic(kept, data)
        return Document(path, data)

    def revision(self) -> str:
        return self._revision


def sync(
    spec: SourceSpec,
    folder: CatalogFolder,
    context: Context,
    *,
    base: str = "",
    clock: Callable[[], float] = time.time,
    dry_run: bool = False,
    allow_empty: bool = False,
) -> SyncReport:
    """Bring the copy of a source up to date; when the source fails, the last copy stays and the report says why.

    A source that lists no card any more has failed too, as a folder that is not mounted, unless `allow_empty`.
    A dry run reads the source and says what would change; only the cache of what was fetched is written.
    """
    report = SyncReport(spec.name, shown_address(spec.location), spec.type)
    folder.root.mkdir(parents=True, exist_ok=True)
    with Lock(folder.root / "sync.lock", timeout_s=600.0):
        cards: dict[str, Card] = {}
        try:
            source = open_source(spec, folder.root / "cache", context)
            for document in source.documents():
                _collect(document, folder, cards, report, base, keep=not dry_run)
            if not cards and not allow_empty and any(True for _ in folder.scan()):
                raise UsageError("no longer lists any cards; the last copy stays in use")
        except (FairmileError, OSError) as error:
            report.error = shown_address(str(error))
            if not dry_run:
                _write_state(folder, {**state(folder), "location": report.location, "error": report.error})
            return report
        report.revision = source.revision()
        report.cards = len(cards)
        _replace(folder, cards, report, dry_run=dry_run)
        if dry_run:
            return report
        report.synced_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock()))
        _write_state(folder, report.facts())
    return report


def _write_state(folder: CatalogFolder, facts: Mapping[str, Any]) -> None:
    write_atomic(folder.root / "state.json", json.dumps(dict(facts), indent=1) + "\n")


def _collect(
    document: Document | UsageError,
    folder: CatalogFolder,
    cards: dict[str, Card],
    report: SyncReport,
    base: str,
    *,
    keep: bool,
) -> None:
    try:
        if isinstance(document, UsageError):
            raise document
        read = _cards(document, base)
    except FairmileError as error:
        report.problems.append(str(error))
        return
    if read is None:
        report.skipped += 1
        return
    for card in read:
        placed = Card(card.body, catalog=folder.name)
        relative = folder.relative_path(placed.handle)
        if relative in cards and cards[relative].digest != placed.digest:
            report.problems.append(
                f"{document.name}: {placed.handle} is described twice, with different content; the first one is used"
            )
            continue
        cards[relative] = placed
    if keep and read and is_source(document, read[0]):
        folder.keep_raw(document.data, document.sha256)


def is_source(document: Document, card: Card) -> bool:
    """Tell whether the card was made from this document, as it stands."""
    source = card.get("sourceDocument")
    return isinstance(source, Mapping) and source.get("sha256") == document.sha256


def _cards(document: Document, base: str) -> list[Card] | None:
    """Return the cards of a document; None when it describes no asset."""
    if CONTEXT_IRI.encode() in document.data:
        card, problems = check_text(document.text, file=document.name)
        if card is None:
            raise InvalidDocument([problem for problem in problems if problem.severity == "error"])
        if not card.iri:
            card.body["@id"] = mint_iri(card.kind, card.title, card.version, base=base, origin=card.digest)
        return [card]
    name = exchange.recognise(document)
    return None if name is None else exchange.read(document, name, base=base)


def _replace(folder: CatalogFolder, cards: Mapping[str, Card], report: SyncReport, *, dry_run: bool) -> None:
    present = {relative for relative, _ in folder.scan()}
    changes = [(relative, card) for relative, card in cards.items() if not _same(folder, relative, card, present)]
    gone = sorted(present - set(cards))
    report.changed, report.removed = len(changes), len(gone)
    if dry_run or not (changes or gone or folder.is_unfinished()):
        return
    folder.touch_generation([*(relative for relative, _ in changes), *gone], unfinished=True)
    for _, card in changes:
        folder.write(card, replace=True)
    for relative in gone:
        folder.remove(relative)
    folder.touch_generation([])


def _same(folder: CatalogFolder, relative: str, card: Card, present: set[str]) -> bool:
    return relative in present and (folder.cards_root / relative).read_text(encoding="utf-8") == card.to_json()


def _stop(error: OSError) -> None:
    # A folder that cannot be listed must not look empty: its cards would be dropped from the copy.
    raise error


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def may_describe(name: str) -> bool:
    """Tell by its name whether a file may describe an asset."""
    return not name.startswith(".") and (name.lower().endswith(_ENDINGS) or name in _NAMES)


def _tar_documents(archive: Path) -> Iterator[Document | UsageError]:
    with tarfile.open(archive) as tar:
        for number, member in enumerate(tar):
            if number > _MAX_FILES:
                raise UsageError(f"the repository holds more than {_MAX_FILES} files: not a catalog")
            name = PurePosixPath(member.name)
            if not member.isreg() or not may_describe(name.name) or set(name.parts) & set(_SKIPPED_FOLDERS):
                continue
            if member.size > MAX_DOCUMENT_BYTES:
                yield UsageError(f"{member.name} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB: not a description")
                continue
            stream = tar.extractfile(member)
            if stream is not None:
                yield Document(member.name, stream.read())


def _index_entries(document: Document) -> list[tuple[str, str]]:
    data = document.json()
    entries = data.get("cards") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise document.refuse("expected a list", field="cards", hint="write one with `fairmile catalog publish FOLDER`")
    if len(entries) > _MAX_FILES:
        raise document.refuse(f"lists more than {_MAX_FILES} cards", field="cards")
    listed = []
    for number, entry in enumerate(entries):
        path, sha256 = (entry.get("path"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if not isinstance(path, str) or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise document.refuse("expected path and sha256", field=f"cards[{number}]")
        if ":" in path or path.startswith("/") or "\\" in path or ".." in unquote(path).split("/"):
            raise document.refuse(f"{path!r} points outside the catalog", field=f"cards[{number}].path")
        listed.append((path, sha256))
    return listed


def _download(client: Client, url: str) -> bytes:
    try:
        return client.get(url, most_bytes=MAX_DOCUMENT_BYTES)[0]
    except Busy:
        raise
    except Transient as error:  # it names the server alone
        raise Transient(f"{shown_address(url)} cannot be reached: {error}", hint=error.hint) from error


def card_for_others(card: Card) -> Card:
    """Return a card without the paths of this machine, which tell others nothing."""
    entries = as_list(card.get("distribution"))
    files = [
        {key: value for key, value in entry.items() if key != "contentUrl"} if _is_local(entry) else entry
        for entry in entries
    ]
    return Card({**card.body, "distribution": files}, catalog=card.catalog) if files != entries else card


def _is_local(entry: Any) -> bool:
    return isinstance(entry, Mapping) and str(entry.get("contentUrl", "")).startswith("file:")


def publish(cards: Sequence[Card], target: Path) -> int:
    """Write the cards and an `index.json` to a folder that any web server can offer as a source."""
    entries = []
    for card in cards:
        handle = card.handle
        relative = f"{handle.kind}/{handle.name}/{handle.version}.jsonld"
        text = card_for_others(card).to_json()
        write_atomic(target / relative, text)
        entries.append({"path": relative, "sha256": sha256_hex(text.encode())})
    write_atomic(target / INDEX_FILE, json.dumps({"cards": entries}, indent=1) + "\n")
    return len(entries)
