"""What an asset needs to run, as far as a catalog knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.exchange import read, recognise
from fairmile.catalog.exchange.draft import Document

ENVIRONMENT_LINKS = ("environment", "softwareRequirements")
_PROGRAM = ("isBasedOn", "instrument")


def environment_of(catalog: Catalog, name: str) -> Mapping[str, Any] | None:
    """Return the card of the environment that a name means: its own, or that of a model, benchmark or program.

    The path of a file in another format means the environment that it would have in the catalog.
    """
    if name.endswith(".json"):
        return _described_in(Path(name))
    card = _find(catalog, name)
    if card is None:
        return None
    for reference in _references(catalog, card):
        found = _find(catalog, reference)
        if found is not None and found.kind == "environment":
            return found.body
    return None


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
            f"{file}: the {cards[0].kind} {cards[0].title} states no requirements to make an environment of",
            hint="write an environment file; the shortest one is `python: {packages: [numpy]}`",
        )
    return environment.body


def _references(catalog: Catalog, card: Card) -> Iterator[str]:
    """Yield where the environment may be: the card itself, one described with it, one it or its program links to."""
    yield card.iri
    yield f"{card.catalog}/environment/{card.handle.name}@{card.handle.version}"
    for key, target in card.links:
        if key in ENVIRONMENT_LINKS:
            yield target
    for program in (_find(catalog, target) for key, target in card.links if key in _PROGRAM):
        if program is not None:
            yield from (target for key, target in program.links if key in ENVIRONMENT_LINKS)


def _find(catalog: Catalog, name: str) -> Card | None:
    try:
        return catalog.get(name)
    except (NotFound, UsageError):  # what is no name of an asset may still be one of an environment that was built
        return None
