"""What an importer hands over, and the one place that turns it into a card."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.digest import ni, parse_checksum, sha256_hex
from fairmile.base.errors import InvalidDocument, Problem, SystemFailure, UsageError
from fairmile.base.html_scripts import page_scripts
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.strict_json import load_json
from fairmile.base.units import parse_size
from fairmile.base.yaml import load as load_yaml
from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, is_iri, mint_iri
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS, PROFILE_IRI, kind_of_types
from fairmile.catalog.licences import licence_iri
from fairmile.transfer.credentials import shown_address

if TYPE_CHECKING:
    from fairmile.transfer.http import Client

MAX_DOCUMENT_BYTES = 64 << 20
_PAGE_START = 1024
# Servers of identifiers answer with a page for people unless asked for a description.
_ACCEPT = "application/ld+json, application/vnd.datacite.datacite+json;q=0.9, application/json;q=0.8, */*;q=0.5"
# How descriptions are called that stand for the folder they lie in; what holds for a whole crate first.
DESCRIPTIONS = (
    *("ro-crate-metadata.json", "ro-crate-metadata.jsonld", "croissant.json", "codemeta.json", "datacite.json"),
    *("CITATION.cff", "MLmodel", "README.md"),
)
# What says nothing, and so is not put on a card.
EMPTY: tuple[Any, ...] = (None, "", [], {})


def filled(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the node that hold something."""
    return {key: value for key, value in node.items() if value not in EMPTY}


@dataclass(frozen=True)
class Document:
    """A foreign file as it came: its name, its bytes, and readings of them."""

    name: str
    data: bytes

    @classmethod
    def from_file(cls, path: Path, *, name: str | None = None) -> Document:
        """Read the file, or the description that lies in a folder; refuses what is too large to be one."""
        if path.is_dir():
            path = _description_in(path)
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_DOCUMENT_BYTES + 1)
            if len(data) > MAX_DOCUMENT_BYTES:
                raise UsageError(f"{path} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB: not a description of an asset")
            return cls(name or str(path), data)
        except OSError as error:
            if isinstance(error, SystemFailure):
                raise
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error

    @classmethod
    def from_address(cls, address: str, client: Client) -> Document:
        """Read what a web address serves: a description, or a page that holds one."""
        data, answer = client.get(address, {"Accept": _ACCEPT}, most_bytes=MAX_DOCUMENT_BYTES)
        name = shown_address(address).partition("#")[0].partition("?")[0]
        is_json = answer.head.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
        return cls(name if not is_json or name.endswith((".json", ".jsonld")) else f"{name.rstrip('/')}.json", data)

    @property
    def file_name(self) -> str:
        return self.name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_page(self) -> bool:
        """Tell whether the document is a web page."""
        start = self.data[:_PAGE_START].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
        return start.startswith((b"<!doctype html", b"<html")) or (start.startswith(b"<") and b"<html" in start)

    @cached_property
    def sha256(self) -> str:
        return sha256_hex(self.data)

    @cached_property
    def text(self) -> str:
        try:
            return self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise InvalidDocument([Problem("is not UTF-8 text", file=self.name, line=line)]) from error

    def json(self) -> Any:
        """Return the document read as JSON; each call gives a fresh copy the caller may take apart.

        Of a web page, these are its JSON-LD scripts: the only one, or a list of those that are valid.
        """
        if not self.is_page:
            return load_json(self.text, file=self.name)
        nodes: list[Any] = []
        errors: list[InvalidDocument] = []
        for script in page_scripts(self.text, "application/ld+json"):
            try:
                nodes.append(load_json(script, file=self.name))
            except InvalidDocument as error:
                errors.append(error)
        if errors and not nodes:
            raise errors[0]
        return nodes[0] if len(nodes) == 1 else nodes

    def yaml(self) -> Any:
        """Return the document read as YAML 1.2."""
        return load_yaml(self.text, file=self.name)

    def refuse(self, message: str, *, field: str = "", hint: str = "") -> InvalidDocument:
        """Return the error that says why this document cannot be imported."""
        return InvalidDocument([Problem(message, field=field, file=self.name, hint=hint)])


def _description_in(folder: Path) -> Path:
    """Return the one description in a folder, such as an RO-Crate, a repository or a saved model."""
    files = [folder / name for name in DESCRIPTIONS if (folder / name).is_file()]
    if len(files) == 1 or (files and files[0].name.startswith("ro-crate")):
        return files[0]
    if files:
        names = ", ".join(each.name for each in files)
        raise UsageError(f"{folder} holds several descriptions: {names}", hint=f"name one, as in {files[0]}")
    expected = ", ".join(DESCRIPTIONS)
    raise UsageError(f"{folder} is a folder without a description", hint=f"expected one of {expected}; or name a file")


def may_be_card(document: Document) -> bool:
    """Tell whether a document that no reader recognises may be meant as a card: JSON of a kind, or broken JSON."""
    if not document.file_name.endswith((".jsonld", ".json")):
        return False
    try:
        body = document.json()
    except InvalidDocument:
        return True
    types = as_list(body.get("@type")) if isinstance(body, dict) else []
    return kind_of_types(str(each) for each in types) is not None


@dataclass
class Draft:
    """One asset as an importer read it.

    `body` holds properties of the profile, `foreign` every key the profile has no place for, verbatim.
    A trap of the source becomes an entry of `warnings`, by `warn`.
    """

    kind: str
    body: dict[str, Any]
    foreign: dict[str, Any] = field(default_factory=dict)
    warnings: list[dict[str, str]] = field(default_factory=list)

    def warn(self, field: str, message: str) -> None:
        """Record a trap of the source document on the card."""
        self.warnings.append({"field": field, "message": message})

    def put(self, key: str, value: Any) -> None:
        """Set the property unless there is nothing to set."""
        if value not in EMPTY:
            self.body[key] = value

    def add_file(
        self,
        *,
        name: str | None = None,
        url: str | None = None,
        size: Any = None,
        media_type: str | None = None,
        checksums: Mapping[str, Any] | None = None,
        type: str = "FileObject",
        **more: Any,
    ) -> dict[str, Any]:
        """Append a file to the distribution; sizes and checksums that are none become warnings."""
        files = self.body.setdefault("distribution", [])
        where = f"distribution[{len(files)}]"
        label = name or (Path(url).name if url else "") or f"file-{len(files) + 1}"
        entry: dict[str, Any] = {"@type": type, "@id": label, "name": label}
        if url:
            entry["contentUrl"] = url
        entry.update(self._size(size, where))
        guessed = media_type or mimetypes.guess_type(label)[0]
        if guessed:
            entry["encodingFormat"] = guessed
        for algorithm, value in (checksums or {}).items():
            if value in (None, "", []):
                continue
            checksum = parse_checksum(value, algorithm) if isinstance(value, str) else None
            if checksum is None or checksum.algorithm != algorithm:
                self.warn(f"{where}.{algorithm}", f"{str(value)[:120]!r} is not a {algorithm} checksum; left out")
                self.shelf("checksums").setdefault(label, {})[algorithm] = value
            else:
                if checksum.hex != value:
                    self.warn(f"{where}.{algorithm}", f"written as {value!r} in the source; read as hex {checksum.hex}")
                entry[algorithm] = checksum.hex
        entry.update(filled(more))
        files.append(entry)
        return entry

    def _size(self, size: Any, where: str) -> dict[str, str]:
        texts = [text for value in as_list(size) if (text := text_of(value)) is not None]
        if not texts:
            return {}
        for text in texts:
            try:
                parsed = parse_size(text)
            except UsageError:
                continue
            if len(texts) > 1 or not text.replace(" B", "").strip().isdigit():
                self.warn(f"{where}.contentSize", f"size {size!r} read as {parsed} B")
            return {"contentSize": f"{parsed} B"}
        self.warn(f"{where}.contentSize", f"{size!r} is not a size; left out")
        self.shelf("sizes")[where] = size
        return {}

    def shelf(self, name: str) -> dict[str, Any]:
        """Return the mapping of that name in `foreign`, apart from anything the source itself calls the same."""
        while not isinstance(self.foreign.setdefault(name, {}), dict):
            name += "*"
        mapping: dict[str, Any] = self.foreign[name]
        return mapping


def finish(draft: Draft, document: Document, format_name: str, *, base: str = "") -> Card:
    """Return the card of a draft: id, types, licence, provenance and warnings filled in."""
    body = dict(draft.body)
    kind = KINDS[draft.kind]
    if not body.get("name"):
        body["name"] = Path(document.file_name).stem
        draft.warn("name", f"the source gives no name; called {body['name']!r} after its file")
    if not body.get("version") and draft.kind != "run":
        body["version"] = DIGEST_VERSION_PREFIX + document.sha256[:12]
        draft.warn("version", "the source gives no version; named by the digest of the source document")
    _licence(body, draft)
    identifier = body.pop("@id", None)
    minted = mint_iri(draft.kind, str(body["name"]), str(body.get("version", "")), base=base, origin=document.sha256)
    own = identifier if is_iri(identifier) and "//example.org/" not in str(identifier) else minted
    if identifier and own is minted:
        key = "sameAs" if is_iri(identifier) else "identifier"
        body[key] = [*as_list(body.get(key)), identifier]
    profiles = [PROFILE_IRI, *(text for value in as_list(body.pop("conformsTo", None)) if (text := text_of(value)))]
    head = {"@context": CONTEXT_IRI, "conformsTo": list(dict.fromkeys(profiles)), "@id": own}
    body.setdefault("@type", list(kind.types) if len(kind.types) > 1 else kind.types[0])
    body["sourceDocument"] = {
        "name": document.file_name,
        **({"url": document.name} if is_iri(document.name) else {}),
        "encodingFormat": format_name,
        "sha256": document.sha256,
        "contentSize": f"{len(document.data)} B",
        "identifier": ni(document.sha256),
    }
    if draft.foreign:
        body["foreign"] = {format_name: draft.foreign}
    if draft.warnings:
        body["warnings"] = draft.warnings
    card = Card({**head, **body})
    if card.content and "contentDigest" not in body:
        card.body["contentDigest"] = card.content
    return card


def _licence(body: dict[str, Any], draft: Draft) -> None:
    raw = [text for value in as_list(body.pop("license", None)) if (text := text_of(value))]
    if not raw:
        return
    # One that SPDX does not know stays beside the others: without it the card would grant more than its source.
    licences = list(dict.fromkeys(licence_iri(text) or text for text in raw))
    body["license"] = licences[0] if len(licences) == 1 else licences
    unknown = [text for text in raw if licence_iri(text) is None]
    if unknown:
        draft.warn("license", f"{unknown[0]!r} is not an SPDX licence; kept as given")
    if unknown or licences != raw:
        body["licenseRaw"] = raw[0] if len(raw) == 1 else raw
