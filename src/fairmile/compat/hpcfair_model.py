"""`hpcfair.hpcfair_model` as published: list_models, get_metadata, search, search_workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairmile.catalog.access import LoadedAsset
from fairmile.compat.listing import get_listings
from fairmile.workspace import Workspace


def list_models() -> list[str]:
    """Return the names of all models."""
    return Workspace.open().models.list_models()


def get_metadata(name: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the listing of one model, or of each in a list."""
    return get_listings(Workspace.open().catalog, name, "model")


def search(pattern: str) -> list[str]:
    """Return the names of the models whose name or keywords match a regular expression."""
    return [hit.row.name for hit in Workspace.open().models.search(regex=pattern, limit=10_000) if not hit.row.gone]


def search_workflows(keyword: str) -> list[str]:
    """Return the names of the workflows that match a keyword."""
    return [hit.row.name for hit in Workspace.open().workflows.search(keyword, limit=10_000) if not hit.row.gone]


def load(name: str, *, fresh: bool = False) -> LoadedAsset:
    """Return a model with its bytes: from the store where they are, else fetched; `fresh` fetches anew."""
    return Workspace.open().models.load(name, fresh=fresh)
