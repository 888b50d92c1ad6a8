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
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import Integrity, NotFound, SystemFailure
from fairmile.base.files import Lock
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.store.digest_set import DigestSet
from fairmile.store.objects import writing
from fairmile.store.packs import Packs
from fairmile.store.pools import Pool
from fairmile.store.refs import Ref, RefDict
from fairmile.store.shelves import GRACE_S, OLDER_THAN_S, Shelves
from fairmile.store.upkeep import DAMAGED, files_below

_LEAST_GRACE_S = 3600.0  # for what is half done: not all of it holds a lock
_LOCK_FRESH_S = 300.0  # a held lock is renewed more often than this
_AT_ONCE = 10_000
_LINKS_LOOKED_AT = 1000
_NOTES = ".done"  # what a fetch has brought so far, beside its lock
_DIGESTS = re.compile(rb"[0-9a-f]{64}")
_is_digest = re.compile(r"[0-9a-f]{64}").fullmatch


class PoolPlanDict(TypedDict):
    pool: str
    refs: list[RefDict]
    trees: list[str]
    objects: int
    objects_bytes: int
    leftovers: list[str]
    leftovers_bytes: int
    reservations: int
    passed_over: str
    kept_leftovers: int
    kept_leftovers_bytes: int


class GcPlanDict(TypedDict):
    pools: list[PoolPlanDict]
    dry_run: bool
    size_bytes: int


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
    kept_leftovers: int = 0  # younger than an hour: a transfer may be at work
    kept_leftovers_bytes: int = 0

    def facts(self) -> PoolPlanDict:
        """Return the plan as data."""
        return {
            "pool": self.pool,
            "refs": [ref.facts() for ref in self.refs],
            "trees": list(self.trees),
            "objects": self.objects,
            "objects_bytes": self.objects_bytes,
            "leftovers": list(self.leftovers),
            "leftovers_bytes": self.leftovers_bytes,
            "reservations": self.reservations,
            "passed_over": self.passed_over,
            "kept_leftovers": self.kept_leftovers,
            "kept_leftovers_bytes": self.kept_leftovers_bytes,
        }


@dataclass(frozen=True, repr=False)
class GcPlan(Result):
    """What a clean-up removes; `size_bytes` go back to the disk."""

    pools: tuple[PoolPlan, ...]
    dry_run: bool

    @property
    def size_bytes(self) -> int:
        return sum(each.objects_bytes + each.leftovers_bytes for each in self.pools)

    def to_dict(self) -> GcPlanDict:
        return {
            "pools": [each.facts() for each in self.pools],
            "dry_run": self.dry_run,
            "size_bytes": self.size_bytes,
        }

    def summary(self) -> str:
        return f"{'would free' if self.dry_run else 'freed'} {format_size(self.size_bytes)}"


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
    `older_than_s`, and what other users named until they drop the name. So are objects that symbolic links of a
    folder lead to, as long as they are there. What is half done stays for an hour, whatever `grace_s` is: the process
    that writes it need not hold a lock.
    """
    troubles = {pool: _trouble(shelves, pool) for pool in shelves.pools}
    sweeps = {pool: _Sweep(shelves, pool, grace_s) for pool, trouble in troubles.items() if not trouble}
    roots = _sorted_refs(shelves, sweeps, keep, older_than_s)
    with contextlib.ExitStack() as stack:
        roots.update(root for sweep in sweeps.values() for root in sweep.young_trees())
        marks = stack.enter_context(DigestSet(_marks(shelves, roots, sweeps.values())))
        for sweep in sweeps.values():
            stack.enter_context(sweep.plan(roots, marks))
        plans = {pool: sweep.facts() for pool, sweep in sweeps.items()}
        if not dry_run:
            _remove(shelves, list(sweeps.values()), roots)
    pool_plans = (plans.get(pool) or PoolPlan(pool.name, passed_over=why) for pool, why in troubles.items())
    return GcPlan(tuple(pool_plans), dry_run)


def _trouble(shelves: Shelves, pool: Pool) -> str:
    return shelves.pools.trouble(pool) or ("" if pool.folder.is_dir() else "it is empty")


def _sorted_refs(
    shelves: Shelves, sweeps: dict[Pool, _Sweep], keep: Callable[[Ref], bool], older_than_s: float
) -> set[str]:
    """Note the names to drop with their pools and return the roots of the others."""
    held: list[tuple[Pool, Ref]] = []
    for pool in shelves.pools:
        names = shelves.pool_refs(pool)
        for path, why in names.damaged():
            raise Integrity(
                f"{path} cannot be read, so its references are unknown: {why}",
                hint="`fairmile store verify` moves it aside; check it before you clean up",
            )
        for path in names.unreadable():
            raise SystemFailure(
                f"{path} cannot be read by you, so its references are unknown",
                hint=f"ask its owner to run `chmod a+r {path}`; nothing was removed",
            )
        held += [(pool, ref) for ref in names.all()]
    newest: dict[tuple[str, str], float] = {}
    for _, ref in held:
        newest[ref.kind, ref.name] = max(ref.created, newest.get((ref.kind, ref.name), ref.created))
    roots: set[str] = set()
    for pool, ref in held:
        sweep = sweeps.get(pool)
        if sweep is None or shelves.pool_refs(pool).owner(ref) != os.getuid():
            kept = True
        elif newest[ref.kind, ref.name] > ref.created:
            kept = False
        elif ref.kind == "url":
            kept = sweep.now - ref.used < older_than_s
        elif ref.kind == "link":
            kept = _is_in_use(shelves, ref, sweep.now - ref.used < older_than_s)
        else:
            kept = ref.kind == "pin" or keep(ref)
        if kept or sweep is None:
            roots.add(ref.root)
        else:
            sweep.refs.append(ref)
    return roots


def _is_in_use(shelves: Shelves, ref: Ref, is_recent: bool) -> bool:
    """Tell whether a folder still has links into a pool; a cache counts while it is used."""
    folder = str(ref.details.get("folder", ""))
    if ref.details.get("cache") or not os.path.isdir(folder):
        # What another machine noted may lie where this one cannot look.
        return is_recent and (os.path.isdir(folder) or ref.details.get("host") != os.uname().nodename)
    try:
        some = itertools.islice(shelves.tree(ref.root), _LINKS_LOOKED_AT + 1)
        for number, entry in enumerate(some):
            if number == _LINKS_LOOKED_AT or os.path.islink(os.path.join(folder, entry.path)):
                return True
    except (NotFound, Integrity):
        return False
    return False


def _marks(shelves: Shelves, roots: Iterable[str], sweeps: Iterable[_Sweep]) -> Iterator[str]:
    """Yield every digest that must stay, with repeats."""
    for root in roots:
        try:
            yield from (entry.sha256 for entry in shelves.tree(root))
        except NotFound:  # purged; what is left of it can be brought again
            continue
        except Integrity as error:
            hint = "`fairmile store verify` moves it aside; then clean up"
            raise Integrity(f"the references of a tree are unknown: {error}", hint=hint) from error
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


@dataclass(frozen=True)
class _Leftover:
    """Files and folders that belong together and to nobody any more; `name` is that of their lock."""

    name: str
    paths: tuple[Path, ...]
    size_bytes: int


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
        self._kept = self._kept_bytes = 0
        self._leftovers = [*self._half_done(), *self._half_written()]
        self._damaged: list[Path] = []
        self._dead_reservations = sum(not held.alive for held in shelves.pools.reservations(pool))

    # Plan

    def young_trees(self) -> Iterator[str]:
        """Yield the trees whose names may still be to come: put lately, or by an unfinished fetch."""
        for root in self._trees.roots():
            status = _status(self.pool.folder / "trees" / root[:2] / root[2:])
            if status is not None and self.now - status.st_mtime < self._grace_s:
                yield root
        yield from (digest for digest in self.noted() if digest in self._trees)

    def noted(self) -> Iterator[str]:
        """Yield the digests that unfinished fetches have noted as brought."""
        left = {path for each in self._leftovers for path in each.paths}
        for path in _entries(self._objects.incoming):
            if path.name.endswith(_NOTES) and path not in left:
                with contextlib.suppress(OSError), open(path, "rb") as lines:
                    yield from (digest.decode() for line in lines for digest in _DIGESTS.findall(line))

    def plan(self, roots: set[str], marks: DigestSet) -> DigestSet:
        """Find what is neither marked nor young; the set that comes back is to be closed."""
        self._old_trees = [root for root in self._trees.roots() if root not in roots]
        self._unmarked = DigestSet(self._find_unmarked(marks))
        self._damaged = [path for path in _entries(self.pool.folder / DAMAGED) if not self._is_wanted(path, marks)]
        return self._unmarked

    def facts(self) -> PoolPlan:
        """Return the plan as data."""
        damaged_bytes = sum(size for path in self._damaged for size, _ in files_below(path))
        return PoolPlan(
            self.pool.name,
            refs=tuple(self.refs),
            trees=tuple(self._old_trees),
            objects=len(self._unmarked),
            objects_bytes=self._unmarked_bytes,
            leftovers=tuple(str(path) for each in self._leftovers for path in each.paths)
            + tuple(map(str, self._damaged)),
            leftovers_bytes=sum(each.size_bytes for each in self._leftovers) + damaged_bytes,
            reservations=self._dead_reservations,
            kept_leftovers=self._kept,
            kept_leftovers_bytes=self._kept_bytes,
        )

    def _find_unmarked(self, marks: DigestSet) -> Iterator[str]:
        for digest, size in marks.outside(self._objects.items()):
            loose = _status(self._objects.path(digest))
            packed = self._packs.find(bytes.fromhex(digest))
            statuses = [status for status in (loose, _status(packed[0].path) if packed else None) if status is not None]
            # The time of the last change of state, not of content: a file waits for its turn before it is published.
            if statuses and all(self.now - status.st_ctime >= self._grace_s for status in statuses):
                # A file that was linked into a working folder stays there.
                self._unmarked_bytes += 0 if loose is not None and loose.st_nlink > 1 else size
                yield digest

    def _half_done(self) -> Iterator[_Leftover]:
        """Yield transfers that stand still; what belongs to one begins with its name."""
        groups: dict[str, list[Path]] = {}
        for path in _entries(self._objects.incoming):
            groups.setdefault(path.name.split(".lock")[0].removesuffix(_NOTES), []).append(path)
        for name, paths in groups.items():
            files = [each for path in paths for each in files_below(path)]
            times = [time for _, time in files] + [status.st_mtime for path in paths if (status := _status(path))]
            lock = _status(self._objects.incoming / f"{name}.lock")
            is_held = lock is not None and self.now - lock.st_mtime < _LOCK_FRESH_S
            age_s, size = self.now - max(times, default=0.0), sum(size for size, _ in files)
            if not is_held and age_s >= max(self._grace_s, _LEAST_GRACE_S):
                yield _Leftover(name, tuple(paths), size)
            elif not is_held and age_s >= self._grace_s:
                self._keep(size)

    def _half_written(self) -> Iterator[_Leftover]:
        """Yield files of processes that were killed while they wrote a small one aside."""
        for folder in (self.pool.folder, *_entries(self._names.folder)):
            for path in _entries(folder):
                status = _status(path)
                if not path.name.startswith(".tmp-") or status is None:
                    continue
                if self.now - status.st_mtime >= _LEAST_GRACE_S:
                    yield _Leftover("", (path,), status.st_size)
                elif self.now - status.st_mtime >= self._grace_s:
                    self._keep(status.st_size)

    def _keep(self, size_bytes: int) -> None:
        """Count what would go by the grace alone, and stays."""
        self._kept += 1
        self._kept_bytes += size_bytes

    def _is_wanted(self, damaged: Path, marks: DigestSet) -> bool:
        """Tell whether something put aside still says that it has to come again."""
        if _is_digest(damaged.name):
            return damaged.name in marks and damaged.name not in self._objects
        status = _status(damaged)
        return status is not None and self.now - status.st_ctime < self._grace_s

    # Remove

    def drop_refs(self) -> None:
        """Drop the names, unless they were used or changed since they were looked at."""
        for ref in self.refs:
            known = self._names.get(ref.kind, ref.name)
            if known == ref and known.used <= ref.used:
                self._names.drop(ref.kind, ref.name)

    def remove_trees(self, spared: set[str]) -> None:
        """Remove the trees that nothing refers to."""
        self._trees.remove([root for root in self._old_trees if root not in spared])

    def remove_objects(self, spared: DigestSet) -> None:
        """Remove the objects that nothing refers to: files first, since they make room for writing packs anew."""
        self._remove_files(spared)
        seen: set[str] = set()
        # Packs may share objects: what one loses is taken out of others too, which come again under new names.
        while unseen := [pack for pack in self._packs.current() if pack.path not in seen]:
            for pack in unseen:
                seen.add(pack.path)
                with contextlib.suppress(FileNotFoundError):
                    held = (place.digest.hex() for place in pack.places())
                    unwanted = [each for each in held if each in self._unmarked and each not in spared]
                    if unwanted:
                        self._objects.remove(unwanted)
        # What is left of a pack that became small is kept as files, of which some may go as well.
        self._remove_files(spared)

    def _remove_files(self, spared: DigestSet) -> None:
        loose = (each for each in self._unmarked if each not in spared and self._objects.path(each) is not None)
        while chunk := list(itertools.islice(loose, _AT_ONCE)):
            self._objects.remove(chunk)

    def remove_leftovers(self) -> None:
        """Remove what is half done, each under its lock, and what was put aside."""
        for each in self._leftovers:
            with contextlib.ExitStack() as stack:
                if each.name:
                    try:
                        stack.enter_context(Lock(self._objects.incoming / f"{each.name}.lock", timeout_s=0.0))
                    except SystemFailure as error:
                        if not isinstance(error.__cause__, OSError):
                            continue  # somebody goes on with it
                        # Else the lock cannot be written, perhaps since the disk is full: the more reason to go on.
                for path in each.paths:
                    if path.name != f"{each.name}.lock":
                        _remove_all(path)
        for path in self._damaged:
            _remove_all(path)


def _server_time(folder: Path) -> float:
    """Return the time by the clock that stamps the files of a folder, whatever ours says; no room is needed."""
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _status(path: str | os.PathLike[str] | None) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.lstat(path) if path is not None else None
    return None


def _remove_all(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with writing(path):
            path.unlink(missing_ok=True)
