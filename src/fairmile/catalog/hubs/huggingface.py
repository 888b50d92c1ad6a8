"""Hugging Face: models and data sets by the hub's API, and their cards by the README of one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from fairmile.base.errors import Integrity
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import read
from fairmile.catalog.exchange.common.markdown import has_front_matter
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.exchange.draft import MAX_DOCUMENT_BYTES, Document
from fairmile.catalog.hubs.results import HubHit, as_licence, as_size, as_text, shortened
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, mint_iri
from fairmile.catalog.kinds import KINDS
from fairmile.transfer.fetchers import huggingface as fetching
from fairmile.transfer.remote import Context, Remote

_FOLDERS = {"model": "models", "dataset": "datasets"}
_LISTED_FILES = 1_000


class HuggingFace:
    """Searches models and data sets by name."""

    KINDS = tuple(_FOLDERS)

    def __init__(self, context: Context) -> None:
        self._fetcher = fetching.HuggingFace(context)
        self._hub = self._fetcher.hub

    def search(self, words: str, kind: str, limit: int) -> list[HubHit]:
        """Return the repositories of a kind that the hub finds for the words."""
        query = urlencode({"search": words, "limit": limit, "full": "true"})
        entries = self._fetcher.client.get_json(f"{self._hub}/api/{_FOLDERS[kind]}?{query}")
        if not isinstance(entries, list):
            raise Integrity("its answer is not a list of repositories")
        return [hit for entry in entries[:limit] if isinstance(entry, Mapping) and (hit := self._hit(entry, kind))]

    def _hit(self, entry: Mapping[str, Any], kind: str) -> HubHit | None:
        name = as_text(entry.get("id"))
        page = name if kind == "model" else f"datasets/{name}"
        if not name or entry.get("private") is True:
            return None
        tags = [as_text(tag) for tag in entry.get("tags") or () if isinstance(tag, str)]
        licence = next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")
        task = as_text(entry.get("pipeline_tag"))
        return HubHit(
            hub="huggingface",
            handle=f"hf://{page}",
            kind=kind,
            name=name,
            url=f"{self._hub}/{page}",
            version=as_text(entry.get("sha"))[:12],
            licence=as_licence(licence),
            size_bytes=as_size([entry.get("usedStorage")]),
            description=shortened(as_text(entry.get("description")) or task),
        )

    def read(self, reference: str) -> tuple[Card, Document]:
        """Return the card of a repository at its newest commit, and the README that it comes from."""
        place = fetching.parse_address(reference)
        files = self._fetcher.find(str(place._replace(path="")))
        readme = next((file for file in files if file.path == "README.md"), None)
        text = self._text(readme) if readme is not None else b""
        document = Document(f"{place.page}/README.md", text)
        kind = "dataset" if place.kind == "datasets" else "model"
        card = read(_with_front_matter(document), "huggingface")[0]
        return self._completed(card, kind, place, files), document

    def _text(self, readme: Remote) -> bytes:
        data, _ = self._fetcher.client.get(readme.address, readme.headers, most_bytes=MAX_DOCUMENT_BYTES)
        return data

    def _completed(self, card: Card, kind: str, place: fetching.HubLocation, files: Sequence[Remote]) -> Card:
        """Return the card with what only the hub knows: its address, its commit and its files."""
        types = KINDS[kind].types
        body = {**card.body, "@type": list(types) if len(types) > 1 else types[0]}
        body.setdefault("url", f"{self._hub}/{place.page}")
        commit = files[0].address.partition("/resolve/")[2].partition("/")[0] if files else ""
        if commit and str(body.get("version", "")).startswith(DIGEST_VERSION_PREFIX):
            body["version"] = commit[:12]
            body["warnings"] = [each for each in body.get("warnings", []) if each.get("field") != "version"]
        body["@id"] = mint_iri(kind, str(body["name"]), str(body["version"]), origin=f"{place.page}@{commit}")
        body["sameAs"] = f"{self._hub}/{place.page}"
        body["distribution"] = [_entry(file) for file in files[:_LISTED_FILES]]
        body.pop("contentDigest", None)
        made = Card(body)
        if made.content and len(files) <= _LISTED_FILES:
            body["contentDigest"] = made.content
        return Card(body)

    def close(self) -> None:
        """Close the connections."""
        self._fetcher.close()


def _with_front_matter(document: Document) -> Document:
    if has_front_matter(document.data.decode("utf-8", "replace")):
        return document
    return Document(document.name, b"---\n---\n" + document.data)


def _entry(file: Remote) -> dict[str, Any]:
    entry: dict[str, Any] = {"@type": "FileObject", "@id": file.path, "name": file.path, "contentUrl": file.address}
    if file.size_bytes is not None:
        entry["contentSize"] = f"{file.size_bytes} B"
    kind = media_type(file.path)
    if kind:
        entry["encodingFormat"] = kind
    return entry | {checksum.algorithm: checksum.hex for checksum in file.checksums}
