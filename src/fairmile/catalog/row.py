"""A card as the index knows it, and the texts by which links name an asset."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import slug
from fairmile.catalog.card import Card


class SummaryDict(TypedDict, total=False):
    description: str
    licence: str
    domains: list[str]
    tasks: list[str]
    frameworks: list[str]
    formats: list[str]
    size_bytes: int
    warnings: int
    tombstone: dict[str, Any]
    gpu: list[str]


class CatalogRow(NamedTuple):
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
    summary_json: str

    @property
    def summary(self) -> SummaryDict:
        """What a list of results shows of the card."""
        summary: SummaryDict = json.loads(self.summary_json)
        return summary

    @property
    def handle(self) -> str:
        return f"{self.catalog}/{self.kind}/{self.name}@{self.version}"


def target_names(row_or_card: CatalogRow | Card) -> list[str]:
    """Return every text by which a link may name this asset: its ids, its name, its handle."""
    ids = row_or_card.identifiers if isinstance(row_or_card, Card) else [row_or_card.iri]
    if isinstance(row_or_card, Card):
        ids += [name for text in row_or_card.texts("alternateName") for name in (text, slug(text))]
    handle = row_or_card.handle if isinstance(row_or_card, Card) else row_or_card
    short = f"{handle.kind}/{handle.name}"
    names = [*ids, row_or_card.title, slug(row_or_card.title), short, f"{short}@{handle.version}"]
    names += [f"{handle.name}@{handle.version}", f"{handle.catalog}/{short}", str(row_or_card.handle)]
    return list(dict.fromkeys(name for name in names if name))
