"""An asset with its bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairmile.catalog.card import Card
from fairmile.store.store import Store


class LoadedAsset:
    """An asset with its bytes."""

    def __init__(self, card: Card, root: str, store: Store, folder: Callable[[], Path]) -> None:
        self.card = card
        self.root = root
