"""The store: every byte once, by content, over all pools, under the names that refer to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.commands import Runner, Ssh
from fairmile.base.errors import UsageError
from fairmile.base.nouns import Noun
from fairmile.base.registry import Plugin, Registry
from fairmile.store.pools import MeasuredPool, Pools
from fairmile.store.refs import Ref
from fairmile.store.shelves import GRACE_S, OLDER_THAN_S, Shelves
from fairmile.store.speed import DEFAULT_BYTES

if TYPE_CHECKING:
    from fairmile.store.cleanup import GcPlan
    from fairmile.store.declared import AddedPool, RemovedPool
    from fairmile.store.exchange import Exchange, Exchanged
    from fairmile.store.upkeep import PoolUsages, StoredNames, Verified

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
        "add_pool": Plugin("fairmile.store.declared:declare_pool"),
        "remove_pool": Plugin("fairmile.store.declared:forget_pool"),
        "exchange": Plugin("fairmile.store.exchange:Exchange"),
    },
)

OnBytes = Callable[[int], None]


_INTERNAL = (  # for other parts of Fairmile
    "absent complete damaged drop_ref fast_first held_ref held_refs lay missing objects pool_refs "
    "put_tree ref refs set_ref size touch tree trees"
)


class Store(Shelves, Noun, internal=_INTERNAL, package=__package__):
    """Stored data by content: find, verify, clean up and exchange it.

    Pools that are added or removed are written to `settings_file`, and take effect when the store is opened next.
    """

    def __init__(
        self,
        pools: Pools,
        *,
        runner: Runner,
        clock: Callable[[], float] = time.time,
        ssh: Callable[[str], Ssh] = Ssh,
        settings_file: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pools, clock=clock)
        self._runner = runner
        self._ssh = ssh
        self._settings_file = settings_file
        self._environ = environ or {}

    def ls(self) -> StoredNames:
        """Return every name with its content and pool, and whether all of it is present."""
        names: StoredNames = _WORK["ls"](self)
        return names

    def du(self) -> PoolUsages:
        """Return the contents and free space of each pool."""
        usages: PoolUsages = _WORK["du"](self)
        return usages

    def verify(self, names: Collection[str] = (), *, on_bytes: OnBytes | None = None) -> Verified:
        """Verify all pools, or the data of `names`, byte by byte; damaged data is set aside."""
        verified: Verified = _WORK["verify"](self, names, on_bytes)
        return verified

    def damaged(self) -> list[str]:
        """Return the digests of damaged data that was not fetched again yet."""
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
        """Remove data that nothing refers to, and return the plan; see `cleanup.gc` for what is kept."""
        plan: GcPlan = _WORK["gc"](self, keep, older_than_s=older_than_s, grace_s=grace_s, dry_run=dry_run)
        return plan

    def push(self, name: str, target: str, *, dry_run: bool = False, on_bytes: OnBytes | None = None) -> Exchanged:
        """Copy the data of a name to another pool folder, `/folder` or `user@host:/folder`."""
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
        """Copy the data of a name from another pool folder into this store."""
        return self._exchange(source, on_bytes).pull(name, pool=pool, dry_run=dry_run)

    def add_pool(self, name: str, folder: str, *, dry_run: bool = False, **settings: Any) -> AddedPool:
        """Declare a folder as a pool in the user's settings; `settings` are as in the file, such as `capacity`."""
        given = {"folder": folder, **settings}
        added: AddedPool = _WORK["add_pool"](
            self._file_to_change(), self.pools, name, given, environ=self._environ, dry_run=dry_run
        )
        return added

    def remove_pool(self, name: str, *, dry_run: bool = False) -> RemovedPool:
        """Remove a pool from the user's settings; its folder and the bytes in it stay."""
        removed: RemovedPool = _WORK["remove_pool"](self._file_to_change(), self.pools, name, dry_run=dry_run)
        return removed

    def measure_pool(self, name: str, size_bytes: int = DEFAULT_BYTES, *, dry_run: bool = False) -> MeasuredPool:
        """Measure the speed of a pool with `size_bytes` of files; later fetches rank pools by it."""
        pool = self.pools[name]
        return MeasuredPool(pool, size_bytes, None if dry_run else self.pools.measure(pool, size_bytes))

    def _file_to_change(self) -> Path:
        if self._settings_file is None:
            raise UsageError("this store was opened without a settings file, so pools cannot be changed")
        return self._settings_file

    def _exchange(self, place: str, on_bytes: OnBytes | None) -> Exchange:
        made: Exchange = _WORK["exchange"](self, place, runner=self._runner, ssh=self._ssh, on_bytes=on_bytes)
        return made
