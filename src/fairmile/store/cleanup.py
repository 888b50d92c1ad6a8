"""Clean-up: what nothing refers to any more is planned first, then removed, safely beside fetches under way.

Kept is what a kept name refers to, and whatever may belong to work under way: what is younger than a grace by the
file server's own clock, what an unfinished fetch has noted as brought, and half-done transfers whose lock is held.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairmile.base.errors import Integrity, NotFound, SystemFailure
from fairmile.base.files import Lock
from fairmile.store.digest_set import DigestSet
from fairmile.store.objects import writing
from fairmile.store.packs import Packs
from fairmile.store.pools import Pool
from fairmile.store.refs import Ref
from fairmile.store.shelves import Shelves
from fairmile.store.upkeep import DAMAGED, files_below

GRACE_S = 86400.0
OLDER_THAN_S = 30 * 86400.0

_LEAST_GRACE_S = 3600.0  # for what is half done: not all of it holds a lock
_LOCK_FRESH_S = 300.0  # a held lock is renewed more often than this
_AT_ONCE = 10_000
_NOTES = ".done"  # what a fetch has brought so far, beside its lock
_DIGESTS = re.compile(rb"[0-9a-f]{64}")
_is_digest = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True)
class PoolPlan:
    """What a clean-up removes from one pool; `passed_over` says why it removes nothing."""

    pool: str
    refs: tuple[Ref, ...] = ()
    trees: tuple[str, ...] = ()
    objects: int = 0
    objects_bytes: int = 0
    leftovers: tuple[str, ...] = ()
    leftovers_bytes: int = 0
    reservations: int = 0
    passed_over: str = ""


@dataclass(frozen=True)
class GcPlan:
    """What a clean-up removes; `size_bytes` go back to the disk."""

    pools: tuple[PoolPlan, ...]
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        return sum(each.objects_bytes + each.leftovers_bytes for each in self.pools)


def gc(
    shelves: Shelves,
    keep: Callable[[Ref], bool],
    *,
    older_than_s: float = OLDER_THAN_S,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
) -> GcPlan:
    """Plan what nothing refers to, remove it unless `dry_run`, and return the plan.

    `keep` decides about the names of cards and runs. Pins are always kept, addresses until they were not used for
    `older_than_s`, and what other users named until they drop the name.
    """
    troubles = {pool: _trouble(shelves, pool) for pool in shelves.pools}
    sweeps = {pool: _Sweep(shelves, pool, grace_s) for pool, trouble in troubles.items() if not trouble}
    roots = _sorted_refs(shelves, sweeps, keep, older_than_s)
    with contextlib.ExitStack() as stack:
        roots.update(root for sweep in sweeps.values() for root in sweep.young_trees())
        marks = stack.enter_context(DigestSet(_marks(shelves, roots, sweeps.values())))
        for sweep in sweeps.values():
            stack.enter_context(sweep.plan(roots, marks))
        if not dry_run:
            _remove(shelves, list(sweeps.values()), roots)
    plans = [sweeps[pool].told() if pool in sweeps else PoolPlan(pool.name, passed_over=why) for pool, why in troubles.items()]
    return GcPlan(tuple(plans), dry_run)


def _trouble(shelves: Shelves, pool: Pool) -> str:
    return shelves.pools.trouble(pool) or ("" if pool.folder.is_dir() else "nothing was put there yet")


def _sorted_refs(
    shelves: Shelves, sweeps: dict[Pool, _Sweep], keep: Callable[[Ref], bool], older_than_s: float
) -> set[str]:
    """Note the names to drop with their pools and return the roots of the others."""
    newest = {(ref.kind, ref.name): ref for ref in shelves.refs()}
    roots: set[str] = set()
    for pool in shelves.pools:
        names = shelves.pool_refs(pool)
        for path, why in names.damaged():
            raise Integrity(
                f"{path} cannot be read, so nobody can tell what it refers to: {why}",
                hint="`fairmile store verify` puts it aside; look at it before you clean up",
            )
        for ref in names.all():
            sweep = sweeps.get(pool)
            if sweep is None or names.owner(ref) != os.getuid():
                kept = True
            elif newest[ref.kind, ref.name].created > ref.created:
                kept = False
            elif ref.kind == "url":
                kept = sweep.now - ref.used < older_than_s
            else:
                kept = ref.kind == "pin" or keep(ref)
            if kept or sweep is None:
                roots.add(ref.root)
            else:
                sweep.refs.append(ref)
    return roots


def _marks(shelves: Shelves, roots: Iterable[str], sweeps: Iterable[_Sweep]) -> Iterator[str]:
    """Yield every digest that must stay, with repeats."""
    for root in roots:
        try:
            yield from (entry.sha256 for entry in shelves.tree(root))
        except NotFound:  # purged; what is left of it can be brought again
            continue
        except Integrity as error:
            hint = "`fairmile store verify` puts it aside; then clean up"
            raise Integrity(f"nobody can tell what a tree refers to: {error}", hint=hint) from error
    for sweep in sweeps:
        yield from sweep.noted()


def _remove(shelves: Shelves, sweeps: list[_Sweep], roots: set[str]) -> None:
    for sweep in sweeps:
        sweep.drop_refs()
    # What came while the plan was made stays as well.
    late = {ref.root for pool in shelves.pools for ref in shelves.pool_refs(pool).all()}
    late.update(root for sweep in sweeps for root in sweep.young_trees())
    with DigestSet(_marks(shelves, late - roots, sweeps)) as spared:
        for sweep in sweeps:
            sweep.remove_trees(late)
            sweep.remove_objects(spared)
            sweep.remove_leftovers()
            shelves.pools.sweep(sweep.pool)


class _Sweep:
    """What is to be removed from one pool; `now` is the time there."""

    def __init__(self, shelves: Shelves, pool: Pool, grace_s: float) -> None:
        self.pool = pool
        self.refs: list[Ref] = []
        self.now = _server_time(pool.folder)
        self._grace_s = grace_s
        self._names = shelves.pool_refs(pool)
        self._trees = shelves.trees(pool)
        self._objects = shelves.objects(pool)
        self._packs = Packs(os.path.join(pool.folder, "packs"))
        self._old_trees: list[str] = []
        self._unmarked = DigestSet()
        self._unmarked_bytes = 0
        self._leftovers = self._find_leftovers()
        self._dead_reservations = sum(not held.alive for held in shelves.pools.reservations(pool))

    def plan(self, roots: set[str], marks: DigestSet) -> DigestSet:
        """Find what is neither marked nor young; the set that comes back is to be closed."""
        self._old_trees = [root for root in self._trees.roots() if root not in roots]
        self._unmarked = DigestSet(self._find_unmarked(marks))
        self._leftovers += [
            _Leftover([path], sum(size for size, _ in files_below(path)))
            for path in _entries(self.pool.folder / DAMAGED)
            if not _is_digest(path.name) or path.name not in marks or path.name in self._objects
        ]
        return self._unmarked

    def told(self) -> PoolPlan:
        """Return the plan as data."""
        return PoolPlan(
            self.pool.name,
            refs=tuple(self.refs),
            trees=tuple(self._old_trees),
            objects=self._unmarked_count,
            objects_bytes=self._unmarked_bytes,
            leftovers=tuple(str(each.paths[0]) for each in self._leftovers),
            leftovers_bytes=sum(each.size_bytes for each in self._leftovers),
            reservations=self._dead_reservations,
        )
