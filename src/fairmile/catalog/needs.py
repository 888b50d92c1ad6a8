"""What an asset needs to run, as far as a catalog knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.catalog.card import ENVIRONMENT_LINKS, Card
from fairmile.catalog.exchange import read, recognise
from fairmile.catalog.exchange.draft import Document

if TYPE_CHECKING:
    from fairmile.catalog.catalog import Catalog

_PROGRAM = ("isBasedOn", "instrument")


def environment_of(catalog: Catalog, asset: str | Card) -> Mapping[str, Any] | None:
    """Return the card of the environment that an asset means: its own, or that of a model, benchmark or program.

    The path of a file in another format means the environment that it would have in the catalog. A name that no asset
    has may still be one of an environment that was built.
    """
    if isinstance(asset, str) and asset.endswith(".json"):
        return _described_in(Path(asset))
    card = asset if isinstance(asset, Card) else next(catalog.existing([asset]), None)
    if card is None or card.kind == "environment":
        return None if card is None else card.body
    linked = catalog.existing(_references(catalog, card))
    return next((each.body for each in linked if each.kind == "environment"), None)


def _described_in(file: Path) -> Mapping[str, Any] | None:
    """Return the environment that a file in another format describes; None for a file in none that is known."""
    document = Document.from_file(file)
    format = recognise(document)
    if format is None:
        return None
    cards = read(document, format)
    environment = next((card for card in cards if card.kind == "environment"), None)
    if environment is None:
        raise UsageError(
            f"{file}: the {cards[0].kind} {cards[0].title} states no requirements for an environment",
            hint="write an environment file; the shortest one is `python: {packages: [numpy]}`",
        )
    return environment.body


def _references(catalog: Catalog, card: Card) -> Iterator[str]:
    """Yield where the environment may be: one described with the card, one that it or its program links to."""
    yield f"{card.catalog}/environment/{card.handle.name}@{card.handle.version}"
    yield from (target for key, target in card.links if key in ENVIRONMENT_LINKS)
    for program in catalog.existing(target for key, target in card.links if key in _PROGRAM):
        yield from (target for key, target in program.links if key in ENVIRONMENT_LINKS)
