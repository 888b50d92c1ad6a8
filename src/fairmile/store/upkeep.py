"""Upkeep: what is there, what it takes, and whether every byte of it is still right."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.store.digest_set import DigestSet
from fairmile.store.objects import fanned_out, make_folder, writing
from fairmile.store.packs import Packs
from fairmile.store.pools import Pool
from fairmile.store.refs import Ref
from fairmile.store.shelves import Shelves

DAMAGED = "damaged"

_is_digest = re.compile(r"[0-9a-f]{64}").fullmatch
_CHUNK = 1 << 20


class StoredNameDict(TypedDict):
    kind: str
    name: str
    root: str
    files: int
    size_bytes: int
    pool: str
    complete: bool
    used: float


class StoredNamesDict(TypedDict):
    names: list[StoredNameDict]


@dataclass(frozen=True, repr=False)
class StoredName(Result):
    """A name in the store, its content, and whether all of it is present; `used` is the file server's time."""

    kind: str
    name: str
    root: str
    files: int
    size_bytes: int
    pool: str
    complete: bool
    used: float

    def to_dict(self) -> StoredNameDict:
        return {
            "kind": self.kind,
            "name": self.name,
            "root": self.root,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "pool": self.pool,
            "complete": self.complete,
            "used": self.used,
        }

    def summary(self) -> str:
        state = "complete" if self.complete else "incomplete"
        return f"{self.kind} {self.name}, {format_size(self.size_bytes)} in pool {self.pool}, {state}"


class StoredNames(Results[StoredName]):
    """Every name in the store."""

    def to_dict(self) -> StoredNamesDict:
        return {"names": [each.to_dict() for each in self]}

    def summary(self) -> str:
        incomplete = sum(not each.complete for each in self)
        return f"{len(self):,} names" + (f", {incomplete:,} incomplete" if incomplete else "")


def list_names(shelves: Shelves) -> StoredNames:
    """Return every name."""
    held = shelves.held_refs()
    complete = {root: shelves.complete(root) for root in {ref.root for _, ref in held}}
    return StoredNames(
        StoredName(ref.kind, ref.name, ref.root, ref.files, ref.size_bytes, pool.name, complete[ref.root], ref.used)
        for pool, ref in held
    )


class PoolUsageDict(TypedDict):
    pool: str
    folder: str
    objects: int
    objects_bytes: int
    packed: int
    packed_bytes: int
    shared_bytes: int
    damaged_bytes: int
    incoming_bytes: int
    reserved_bytes: int
    free_bytes: int | None
    trouble: str


class PoolUsagesDict(TypedDict):
    pools: list[PoolUsageDict]


@dataclass(frozen=True, repr=False)
class PoolUsage(Result):
    """What a pool holds: `objects` include the packed ones, `shared_bytes` belong to several trees.

    `trouble` says why nothing can be stored there. `free_bytes` is None where it is unknown.
    """

    pool: str
    folder: str
    objects: int = 0
    objects_bytes: int = 0
    packed: int = 0
    packed_bytes: int = 0
    shared_bytes: int = 0
    damaged_bytes: int = 0
    incoming_bytes: int = 0
    reserved_bytes: int = 0
    free_bytes: int | None = None
    trouble: str = ""

    def to_dict(self) -> PoolUsageDict:
        return {
            "pool": self.pool,
            "folder": self.folder,
            "objects": self.objects,
            "objects_bytes": self.objects_bytes,
            "packed": self.packed,
            "packed_bytes": self.packed_bytes,
            "shared_bytes": self.shared_bytes,
            "damaged_bytes": self.damaged_bytes,
            "incoming_bytes": self.incoming_bytes,
            "reserved_bytes": self.reserved_bytes,
            "free_bytes": self.free_bytes,
            "trouble": self.trouble,
        }

    def summary(self) -> str:
        free = "unknown" if self.free_bytes is None else format_size(self.free_bytes)
        return f"pool {self.pool}, {self.objects:,} objects, {format_size(self.objects_bytes)}, {free} free"


class PoolUsages(Results[PoolUsage]):
    """What each pool holds and how much space it has."""

    def to_dict(self) -> PoolUsagesDict:
        return {"pools": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return ", ".join(f"{each.pool} {format_size(each.objects_bytes)}" for each in self)


def measure_usage(shelves: Shelves) -> PoolUsages:
    """Return what each pool holds, in the order of the pools."""
    with contextlib.ExitStack() as stack:
        roots = sorted({ref.root for ref in shelves.refs()})
        trees = [stack.enter_context(DigestSet(tree_digests(shelves, [root]))) for root in roots]
        # All are sorted, so a digest of several trees comes several times in a row.
        merged = itertools.groupby(heapq.merge(*trees))
        shared = stack.enter_context(DigestSet(digest for digest, times in merged if len(list(times)) > 1))
        return PoolUsages(_usage(shelves, pool, shared) for pool in shelves.pools)


def _usage(shelves: Shelves, pool: Pool, shared: DigestSet) -> PoolUsage:
    usage = PoolUsage(pool.name, str(pool.folder), trouble=shelves.pools.trouble(pool))
    try:
        space = shelves.pools.space(pool)
        usage = replace(usage, reserved_bytes=space.reserved_bytes, free_bytes=space.free_bytes)
        loose, loose_bytes = _total(size for _, _, size in fanned_out(os.path.join(pool.folder, "objects")))
        packs = Packs(os.path.join(pool.folder, "packs")).current()
        shared_bytes = sum(size for _, size in shared.inside(shelves.objects(pool).items()))
    except SystemFailure as error:
        return replace(usage, trouble=usage.trouble or str(error))
    packed_bytes = sum(pack.size_bytes for pack in packs)
    return replace(
        usage,
        objects=loose + sum(pack.count for pack in packs),
        objects_bytes=loose_bytes + packed_bytes,
        packed=sum(pack.count for pack in packs),
        packed_bytes=packed_bytes,
        shared_bytes=shared_bytes,
        damaged_bytes=sum(size for size, _ in files_below(pool.folder / DAMAGED)),
        incoming_bytes=sum(size for size, _ in files_below(pool.folder / "incoming")),
    )


def _total(sizes: Iterable[int]) -> tuple[int, int]:
    count = total = 0
    for size in sizes:
        count, total = count + 1, total + size
    return count, total


class DamageDict(TypedDict):
    pool: str
    path: str
    reason: str
    sha256: str
    put_aside: bool
    names: list[str]


class VerifiedDict(TypedDict):
    objects: int
    size_bytes: int
    damaged: list[DamageDict]
    incomplete: list[str]


@dataclass(frozen=True)
class Damage:
    """Something damaged and the names that need it; put aside, unless the pool cannot be written."""

    pool: str
    path: str
    reason: str
    sha256: str
    put_aside: bool
    names: tuple[str, ...] = ()

    def facts(self) -> DamageDict:
        """Return the damage as data."""
        return {
            "pool": self.pool,
            "path": self.path,
            "reason": self.reason,
            "sha256": self.sha256,
            "put_aside": self.put_aside,
            "names": list(self.names),
        }


@dataclass(frozen=True, repr=False)
class Verified(Result):
    """What was read, what was damaged, and the incomplete names, whose missing parts a fetch downloads again."""

    objects: int
    size_bytes: int
    damaged: tuple[Damage, ...]
    incomplete: tuple[str, ...]

    def to_dict(self) -> VerifiedDict:
        return {
            "objects": self.objects,
            "size_bytes": self.size_bytes,
            "damaged": [each.facts() for each in self.damaged],
            "incomplete": list(self.incomplete),
        }

    def summary(self) -> str:
        return f"{self.objects:,} objects, {format_size(self.size_bytes)}, {len(self.damaged):,} damaged"


def verify(shelves: Shelves, names: Collection[str] = (), on_bytes: Callable[[int], None] | None = None) -> Verified:
    """Read every byte, of all pools or of what `names` stand for, and put aside what is damaged."""
    refs = [shelves.find(name) for name in names] or shelves.refs()
    roots = {ref.root for ref in refs}
    damages: list[Damage] = []
    checks = [_Check(shelves, pool, on_bytes) for pool in shelves.pools]
    for check in checks:  # first of all, since they tell which objects are wanted
        damages += check.trees(roots if names else None)
    with DigestSet(tree_digests(shelves, roots) if names else ()) as wanted:
        for check in checks:
            damages += check.objects_among(wanted) if names else check.objects() + check.names()
    lost = {each.sha256 for each in damages} - {""}
    hit = {str(ref): _hit(shelves, ref, lost) for ref in shelves.refs()} if lost else {}
    return Verified(
        objects=sum(check.count for check in checks),
        size_bytes=sum(check.size_bytes for check in checks),
        damaged=tuple(
            replace(each, names=tuple(n for n, digests in hit.items() if each.sha256 in digests)) for each in damages
        ),
        incomplete=tuple(str(ref) for ref in refs if not shelves.complete(ref)),
    )


def _hit(shelves: Shelves, ref: Ref, lost: set[str]) -> set[str]:
    """Return which of the damaged digests a name needs."""
    return lost & {ref.root} | {digest for digest in tree_digests(shelves, [ref.root]) if digest in lost}


class _Check:
    """Checks one pool and puts aside what is damaged, so that it is never served again."""

    def __init__(self, shelves: Shelves, pool: Pool, on_bytes: Callable[[int], None] | None) -> None:
        self.count = self.size_bytes = 0
        self._shelves = shelves
        self._pool = pool
        self._objects = shelves.objects(pool)
        self._packs = Packs(os.path.join(pool.folder, "packs"))
        self._on_bytes = on_bytes

    def objects(self) -> list[Damage]:
        """Check every object."""
        self.count = sum(1 for _ in self._objects.items())
        return self._put_objects_aside(
            [(each.sha256, each.path, each.reason) for each in self._objects.verify(self._read)]
        )

    def objects_among(self, wanted: DigestSet) -> list[Damage]:
        """Check the objects that are wanted and here."""
        checked = (self._object(digest) for digest in wanted)
        return self._put_objects_aside([damage for damage in checked if damage is not None])

    def trees(self, wanted: Collection[str] | None) -> list[Damage]:
        """Check the manifests, those that are `wanted` or all."""
        damages = self._shelves.trees(self._pool).verify()
        return [
            self._put_aside(damage.path, f"tree-{damage.sha256}", damage.reason, damage.sha256)
            for damage in damages
            if wanted is None or damage.sha256 in wanted
        ]

    def names(self) -> list[Damage]:
        """Check the names."""
        damages = self._shelves.pool_refs(self._pool).damaged()
        return [self._put_aside(path, f"ref-{path.name}", reason) for path, reason in damages]

    def _object(self, digest: str) -> tuple[str, Path, str] | None:
        """Return what is wrong with one object; nothing when it is not here."""
        path = self._objects.path(digest)
        if path is None:
            packed = self._packs.find(bytes.fromhex(digest))
            if packed is None:
                return None
            path = Path(packed[0].path)
        self.count += 1
        hasher = hashlib.sha256()
        try:
            with self._objects.open(digest) as stream:
                while chunk := stream.read(_CHUNK):
                    hasher.update(chunk)
                    self._read(len(chunk))
        except NotFound:  # removed meanwhile
            return None
        except (OSError, Integrity) as error:
            return digest, path, str(error)
        return (
            None if hasher.hexdigest() == digest else (digest, path, f"its bytes have the sha256 {hasher.hexdigest()}")
        )

    def _put_objects_aside(self, damages: list[tuple[str, Path, str]]) -> list[Damage]:
        packed = [(digest, path, reason) for digest, path, reason in damages if digest and path.suffix == ".pack"]
        files = [damage for damage in damages if damage not in packed]
        damaged = [self._put_aside(path, digest or path.name, reason, digest) for digest, path, reason in files]
        # A pack is written anew without what is damaged in it. An object that lies in a file of its own as well was
        # found good there, and is added again.
        spare = {
            digest: path.read_bytes() for digest, _, _ in packed if (path := self._objects.path(digest)) is not None
        }
        removed = self._quietly(lambda: self._take_out([digest for digest, _, _ in packed], spare.values()))
        return damaged + [
            Damage(self._pool.name, str(path), reason, digest, removed) for digest, path, reason in packed
        ]

    def _take_out(self, digests: list[str], spare: Iterable[bytes]) -> None:
        for digest in digests:
            self._note(digest)
        if digests:
            self._objects.remove(digests)
        with self._objects.batch() as batch:
            for data in spare:
                batch.add(data)

    def _put_aside(self, path: Path, name: str, reason: str, sha256: str = "") -> Damage:
        def move() -> None:
            with writing(path):
                make_folder(self._pool.folder, self._pool.folder / DAMAGED)
                os.replace(path, self._pool.folder / DAMAGED / name)

        return Damage(self._pool.name, str(path), reason, sha256, self._quietly(move))

    def _note(self, digest: str) -> None:
        """Leave a mark that an object needs to come again."""
        with writing(self._pool.folder / DAMAGED):
            make_folder(self._pool.folder, self._pool.folder / DAMAGED)
            (self._pool.folder / DAMAGED / digest).touch()

    def _quietly(self, change: Callable[[], None]) -> bool:
        """Tell whether a change could be made; a pool that cannot be written is told about, not stopped at."""
        try:
            change()
        except (FairmileError, FileNotFoundError):
            return False
        return True

    def _read(self, count: int) -> None:
        self.size_bytes += count
        if self._on_bytes is not None:
            self._on_bytes(count)


def damaged(shelves: Shelves) -> list[str]:
    """Return the digests that were found damaged and that no pool holds now."""
    digests: set[str] = set()
    for pool in shelves.pools:
        with contextlib.suppress(OSError):
            digests.update(name for name in os.listdir(pool.folder / DAMAGED) if _is_digest(name))
    return sorted(digest for digest in digests if digest not in shelves)


def tree_digests(shelves: Shelves, roots: Iterable[str]) -> Iterator[str]:
    """Yield the digests of trees, with repeats; a tree that is gone or cannot be read has none."""
    for root in roots:
        with contextlib.suppress(NotFound, Integrity):
            yield from (entry.sha256 for entry in shelves.tree(root))


def files_below(path: Path) -> Iterator[tuple[int, float]]:
    """Yield size and time of every file at or below a path; what vanishes meanwhile is left out."""
    todo = [os.fspath(path)]
    while todo:
        each = todo.pop()
        with contextlib.suppress(OSError):
            if os.path.isdir(each) and not os.path.islink(each):
                todo += [os.path.join(each, name) for name in os.listdir(each)]
            else:
                status = os.lstat(each)
                yield status.st_size, status.st_mtime
