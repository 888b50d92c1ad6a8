"""What an asset needs to run, as far as a catalog knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.catalog import Catalog


def environment_of(catalog: Catalog, name: str) -> Mapping[str, Any] | None:
    """Return the card of the environment that a name means: its own, or the one described with a model or program."""
    try:
        card = catalog.get(name)
        if card.kind == "environment":
            return card.body
        beside = f"{card.catalog}/environment/{card.handle.name}@{card.handle.version}"
        return catalog.get(beside).body
    except (NotFound, UsageError):  # what is no name of an asset may still be one of an environment that was built
        return None
