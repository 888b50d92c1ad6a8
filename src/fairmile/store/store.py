"""The store: every byte once, by content, over all pools, under the names that refer to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Runner, Ssh
from fairmile.base.registry import Plugin, Registry
from fairmile.store.pools import Pools
from fairmile.store.refs import Ref
from fairmile.store.shelves import GRACE_S, OLDER_THAN_S, Shelves

if TYPE_CHECKING:
    from fairmile.store.cleanup import GcPlan
    from fairmile.store.exchange import Exchange, Exchanged
    from fairmile.store.upkeep import Listed, Usage, Verified

__all__ = ["Ref", "Store"]

# A fetch, which must answer at once, asks for none of this.
_WORK: Registry[Callable[..., Any]] = Registry(
    "work of the store",
    {
        "ls": Plugin("fairmile.store.upkeep:list_names"),
        "du": Plugin("fairmile.store.upkeep:measure_usage"),
        "verify": Plugin("fairmile.store.upkeep:verify"),
        "damaged": Plugin("fairmile.store.upkeep:damaged"),
        "gc": Plugin("fairmile.store.cleanup:gc"),
        "exchange": Plugin("fairmile.store.exchange:Exchange"),
    },
)

OnBytes = Callable[[int], None]


class Store(Shelves):
    """Holds bytes by content: looks them up, keeps them in order and exchanges them with other stores."""

    def __init__(
        self,
        pools: Pools,
        *,
        runner: Runner,
        clock: Callable[[], float] = time.time,
        ssh: Callable[[str], Ssh] = Ssh,
    ) -> None:
        super().__init__(pools, clock=clock)
        self._runner = runner
        self._ssh = ssh

    def ls(self) -> list[Listed]:
        """Return every name with what it stands for, its pool, and whether all of it is there."""
        listed: list[Listed] = _WORK["ls"](self)
        return listed

    def du(self) -> list[Usage]:
        """Return what each pool holds and has room for."""
        usages: list[Usage] = _WORK["du"](self)
        return usages

    def verify(self, names: Collection[str] = (), *, on_bytes: OnBytes | None = None) -> Verified:
        """Read every byte, of all pools or of what `names` stand for; what is damaged is put aside."""
        verified: Verified = _WORK["verify"](self, names, on_bytes)
        return verified

    def damaged(self) -> list[str]:
        """Return the digests that were found damaged and have not come again."""
        digests: list[str] = _WORK["damaged"](self)
        return digests

    def gc(
        self,
        keep: Callable[[Ref], bool],
        *,
        older_than_s: float = OLDER_THAN_S,
        grace_s: float = GRACE_S,
        dry_run: bool = False,
    ) -> GcPlan:
        """Remove what nothing refers to and return the plan; see `cleanup.gc` for what is kept."""
        plan: GcPlan = _WORK["gc"](self, keep, older_than_s=older_than_s, grace_s=grace_s, dry_run=dry_run)
        return plan

    def push(self, name: str, target: str, *, dry_run: bool = False, on_bytes: OnBytes | None = None) -> Exchanged:
        """Bring what a name stands for to another pool folder, `/folder` or `user@host:/folder`."""
        return self._exchange(target, on_bytes).push(name, dry_run=dry_run)

    def pull(
        self,
        name: str,
        source: str,
        *,
        pool: str | None = None,
        dry_run: bool = False,
        on_bytes: OnBytes | None = None,
    ) -> Exchanged:
        """Bring what a name stands for in another pool folder into this store."""
        return self._exchange(source, on_bytes).pull(name, pool=pool, dry_run=dry_run)

    def _exchange(self, place: str, on_bytes: OnBytes | None) -> Exchange:
        made: Exchange = _WORK["exchange"](self, place, runner=self._runner, ssh=self._ssh, on_bytes=on_bytes)
        return made
