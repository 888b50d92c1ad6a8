"""Zenodo: data sets and software by its records API (https://developers.zenodo.org)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fairmile.base.errors import Integrity
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import read
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.exchange.zenodo import plain_text
from fairmile.catalog.hubs.results import HubHit, as_licence, as_size, as_text, shortened
from fairmile.transfer.fetchers.zenodo import parse_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Context

_TYPES = {"dataset": "dataset", "program": "software"}


class Zenodo:
    """Searches records that are data or software; publications are no assets."""

    KINDS = tuple(_TYPES)

    def __init__(self, context: Context) -> None:
        self._client = Client(context)
        self._home = context.settings.hubs["zenodo"].rstrip("/")

    def search(self, words: str, kind: str, limit: int) -> list[HubHit]:
        """Return the records of a kind that match all the words."""
        query = urlencode({"q": " AND ".join(words.split()), "type": _TYPES[kind], "size": min(limit, 25)})
        answer = self._client.get_json(f"{self._home}/api/records?{query}")
        hits = answer.get("hits") if isinstance(answer, dict) else None
        entries = hits.get("hits") if isinstance(hits, dict) else None
        if not isinstance(entries, list):
            raise Integrity("its answer lists no records")
        return [hit for entry in entries[:limit] if isinstance(entry, Mapping) and (hit := self._hit(entry, kind))]

    def _hit(self, entry: Mapping[str, Any], kind: str) -> HubHit | None:
        about, number = entry.get("metadata"), as_text(entry.get("id"))
        if not isinstance(about, Mapping) or not number.isdigit():
            return None
        licence, files = about.get("license"), entry.get("files")
        sizes = [each.get("size") for each in files if isinstance(each, Mapping)] if isinstance(files, list) else []
        return HubHit(
            hub="zenodo",
            handle=f"zenodo:{number}",
            kind=kind,
            name=as_text(about.get("title")),
            url=f"{self._home}/records/{number}",
            version=as_text(about.get("version")),
            licence=as_licence(licence.get("id") if isinstance(licence, Mapping) else licence),
            size_bytes=as_size(sizes),
            description=shortened(" ".join(plain_text(as_text(about.get("description"))).split())),
        )

    def read(self, reference: str) -> tuple[Card, Document]:
        """Return the card of a record, and the record as Zenodo describes it."""
        number = parse_address(reference).number
        data, _ = self._client.get(f"{self._home}/api/records/{number}", {"Accept": "application/json"})
        document = Document(f"zenodo-{number}.json", data)
        return read(document, "zenodo")[0], document

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
