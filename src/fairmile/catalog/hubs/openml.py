"""OpenML: data sets by its search index, and their descriptions by its REST interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fairmile.base.errors import Integrity
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import read
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.hubs.results import HubHit, as_licence, as_text, shortened
from fairmile.transfer.fetchers.openml import data_set_number, description
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Context


class OpenML:
    """Searches active data sets."""

    KINDS = ("dataset",)

    def __init__(self, context: Context) -> None:
        self._client = Client(context)
        self._home = context.settings.hubs["openml"].rstrip("/")
        self._index = context.settings.hubs["openml_search"].rstrip("/")

    def search(self, words: str, kind: str, limit: int) -> list[HubHit]:
        """Return the data sets that match all the words."""
        query = urlencode({"q": words, "default_operator": "AND", "size": limit})
        answer = self._client.get_json(f"{self._index}/data/_search?{query}")
        hits = answer.get("hits") if isinstance(answer, dict) else None
        entries = hits.get("hits") if isinstance(hits, dict) else None
        if not isinstance(entries, list):
            raise Integrity("its answer lists no data sets")
        sources = [entry.get("_source") for entry in entries[:limit] if isinstance(entry, Mapping)]
        return [hit for source in sources if isinstance(source, Mapping) and (hit := self._hit(source))]

    def _hit(self, source: Mapping[str, Any]) -> HubHit | None:
        number = as_text(source.get("data_id"))
        if not number.isdigit() or source.get("status") not in (None, "active"):
            return None
        return HubHit(
            hub="openml",
            handle=f"openml:{number}",
            kind="dataset",
            name=as_text(source.get("name")),
            url=f"{self._home}/d/{number}",
            version=as_text(source.get("version")),
            licence=as_licence(source.get("licence")),
            description=shortened(as_text(source.get("description"))),
        )

    def read(self, reference: str) -> tuple[Card, Document]:
        """Return the card of a data set, and its description as OpenML gives it."""
        number = data_set_number(reference)
        document = Document(f"openml-{number}.json", description(self._client, self._home, number))
        return read(document, "openml")[0], document

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
