"""The store: every byte once, by content, over all pools, under the names that refer to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fairmile.base.commands import Runner
from fairmile.store.pools import Pools
from fairmile.store.refs import Ref
from fairmile.store.shelves import Shelves

__all__ = ["Ref", "Store"]


class Store(Shelves):
    """Holds bytes by content; looks them up, keeps them in order and exchanges them."""

    def __init__(self, pools: Pools, *, runner: Runner, clock: Callable[[], float] = time.time) -> None:
        super().__init__(pools, clock=clock)
        self._runner = runner
