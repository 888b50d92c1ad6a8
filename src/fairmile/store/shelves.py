"""The bytes and names of several pools seen as one; a pool that is gone is a cache miss."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import Conflict, FairmileError, Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.words import did_you_mean
from fairmile.store.links import OWN_WAYS, PRESENT, WAYS, Materialized, materialize
from fairmile.store.objects import Objects
from fairmile.store.pins import Pinned, Pins, Unpinned
from fairmile.store.pools import Pool, Pools
from fairmile.store.refs import KINDS, Kind, Ref, Refs
from fairmile.store.trees import Trees

# What a clean-up leaves alone at least: bytes that came lately, and addresses that were used lately.
GRACE_S = 86400.0
OLDER_THAN_S = 30 * 86400.0

_HEX = frozenset("0123456789abcdef")
_DIGESTS_AT_ONCE = 1 << 15

T = TypeVar("T")


class Shelves:
    """Looks up objects, trees and names over all pools, the fast ones first."""

    def __init__(self, pools: Pools, *, clock: Callable[[], float] = time.time) -> None:
        self._pools = pools
        self.clock = clock
        self._objects: dict[Path, Objects] = {}
        self._trees: dict[Path, Trees] = {}

    # Pools

    @property
    def pools(self) -> Pools:
        """The folders that hold the bytes, with their free space and speed."""
        return self._pools

    def objects(self, pool: Pool) -> Objects:
        """Return the objects of one pool."""
        if pool.folder not in self._objects:
            self._objects[pool.folder] = Objects(pool.folder, pack_below_bytes=pool.pack_below_bytes)
        return self._objects[pool.folder]

    def trees(self, pool: Pool) -> Trees:
        """Return the trees of one pool."""
        if pool.folder not in self._trees:
            self._trees[pool.folder] = Trees(pool.folder)
        return self._trees[pool.folder]

    def pool_refs(self, pool: Pool) -> Refs:
        """Return the names of one pool."""
        return Refs(pool.folder)

    @cached_property
    def fast_first(self) -> list[Pool]:
        """The pools in the order in which bytes are looked for."""
        return self.pools.by_rank()

    # Objects

    def __contains__(self, sha256: object) -> bool:
        return isinstance(sha256, str) and self.size(sha256) is not None

    def path(self, sha256: str) -> Path | None:
        """Return the file of an object; None when no pool holds it as a file of its own."""
        paths = (_answer(self.objects(pool).path, sha256) for pool in self.fast_first)
        return next((path for path in paths if path is not None), None)

    def size(self, sha256: str) -> int | None:
        """Return the size of an object in bytes; None when no pool holds it."""
        sizes = (_answer(self.objects(pool).size, sha256) for pool in self.fast_first)
        return next((size for size in sizes if size is not None), None)

    def open(self, sha256: str) -> BinaryIO:
        """Open an object for reading; NotFound when no pool holds it."""
        failure: FairmileError | None = None
        for pool in self.fast_first:
            try:
                return self.objects(pool).open(sha256)
            except NotFound:
                continue
            except (SystemFailure, Integrity) as error:  # another pool may do better
                failure = failure or error
        raise failure or NotFound(f"no pool holds the object {sha256}", hint="fetch it again")

    # Trees

    def tree(self, root: str) -> Iterator[ManifestEntry]:
        """Return the entries of a tree, sorted by path; NotFound when no pool holds its manifest."""
        return self._trees_with(root).entries(root)

    def _trees_with(self, root: str) -> Trees:
        pool = self._tree_pool(root)
        if pool is None:
            raise NotFound(f"no pool holds the tree {root}", hint="fetch it again")
        return self.trees(pool)

    def _tree_pool(self, root: str) -> Pool | None:
        return next((pool for pool in self.fast_first if _answer(self.trees(pool).__contains__, root)), None)

    def put_tree(self, entries: Iterable[ManifestEntry], pool: Pool) -> str:
        """Write the manifest of a tree into a pool and return its root."""
        root = self.trees(pool).put(entries)
        # One that was there already counts as new, so that a clean-up under way leaves its objects alone.
        with contextlib.suppress(OSError):
            os.utime(pool.folder / "trees" / root[:2] / root[2:])
        return root

    def missing(self, target: Ref | str) -> Iterator[ManifestEntry]:
        """Yield the entries of a tree whose objects no pool holds; NotFound when its manifest is gone as well."""
        return (entry for entry in self.tree(self._root(target)) if entry.sha256 not in self)

    def absent(self, digests: Iterable[str]) -> list[str]:
        """Return the digests whose objects no pool holds; quicker than asking for one after the other."""
        left = list(digests)
        for pool in self.fast_first:
            with contextlib.suppress(SystemFailure):  # a pool that cannot be read is a cache miss
                left = self.objects(pool).absent(left)
        return left

    def complete(self, target: Ref | str) -> bool:
        """Tell whether manifest and every object of a tree are there."""
        try:
            root = self._root(target)
            digests = self._trees_with(root).digests(root)
            while some := list(islice(digests, _DIGESTS_AT_ONCE)):
                if self.absent(some):
                    return False
        except (NotFound, Integrity):  # a damaged manifest tells as little as none
            return False
        return True

    def materialize(
        self, target: Ref | str, folder: Path, *, replace: bool = False, is_cache: bool = False
    ) -> Materialized:
        """Make a tree appear in a folder, by the ways that its pool allows; see `links.materialize`.

        The files are the user's own, to change as they like, unless the settings of the pool ask for links.
        Where symbolic links are made, the folder is noted in the pools that they lead into, so that a clean-up, also
        one by another user, leaves their objects. With `is_cache` the folder is Fairmile's: it may be linked, can be
        made again whenever it is needed, and a clean-up may remove what was not used for long.
        """
        root = self._root(target)
        for _ in self.tree(root):  # to its end: a damaged tree must not put a single file in its place
            pass
        entries, pool = self.tree(root), self._tree_pool(root)
        if isinstance(target, Ref):
            self.touch(target)
        asked = pool.links if pool else ("copy",)
        ways = asked or (WAYS if is_cache else OWN_WAYS)
        files = materialize(entries, self, folder, ways=ways, replace=replace, writable=not is_cache and not asked)
        self._note_links(root, folder, files, is_cache)
        return files

    def lay(self, target: Ref | str, folder: Path, *, replace: bool = False, is_cache: bool = False) -> Materialized:
        """Do what `materialize` does; this name goes in the next version."""
        warnings.warn("Store.lay is now Store.materialize", DeprecationWarning, stacklevel=2)
        return self.materialize(target, folder, replace=replace, is_cache=is_cache)

    def _note_links(self, root: str, folder: Path, files: Materialized, is_cache: bool) -> None:
        place = os.path.abspath(folder)
        name = f"{place} {root[:16]}"
        details = {"folder": place, "host": os.uname().nodename, "cache": is_cache}
        ref = Ref("link", name, root, files.size_bytes, files.files, self.clock(), details)
        for pool in self.pools:
            is_led_into = os.path.abspath(pool.folder / "objects") in files.linked
            if is_led_into or (files.ways.get(PRESENT) and self.pool_refs(pool).get("link", name) is not None):
                # A pool of others, who alone clean it up, or a path that no text can hold.
                with contextlib.suppress(SystemFailure, UsageError):
                    if root not in self.trees(pool):
                        self.trees(pool).put(self.tree(root))
                    self.set_ref(ref, pool)

    def _root(self, target: Ref | str) -> str:
        if isinstance(target, Ref):
            return target.root
        return target if len(target) == 64 and _HEX.issuperset(target) else self.find(target).root

    # Names

    def set_ref(self, ref: Ref, pool: Pool) -> None:
        """Let a name stand for a tree."""
        self.pool_refs(pool).put(ref)

    def refs(self, kind: Kind | None = None) -> list[Ref]:
        """Return every name, sorted; where several pools know one, the newest."""
        return [ref for _, ref in self.held_refs(kind)]

    def ref(self, kind: Kind, name: str) -> Ref | None:
        """Return what a name stands for, the newest where several pools know it; None when it is unknown."""
        held = self.held_ref(kind, name)
        return held[1] if held is not None else None

    def held_ref(self, kind: Kind, name: str) -> tuple[Pool, Ref] | None:
        """Return what a name stands for with the pool that knows it, the newest where several do."""
        holders = [(pool, ref) for pool in self.pools if (ref := self.pool_refs(pool).get(kind, name)) is not None]
        return max(holders, key=lambda held: held[1].created, default=None)

    def drop_ref(self, kind: Kind, name: str) -> bool:
        """Remove a name from every pool and tell whether it was there; its bytes stay until the next clean-up."""
        dropped = [self.pool_refs(pool).drop(kind, name) for pool in self.pools]
        return any(dropped)

    def touch(self, ref: Ref) -> None:
        """Note that a name was used now, which keeps fetched addresses from being cleaned up."""
        for pool in self.pools:
            self.pool_refs(pool).touch(ref)

    def held_refs(self, kind: Kind | None = None) -> list[tuple[Pool, Ref]]:
        """Return every name with the pool that knows it, sorted; where several pools know one, the newest."""
        newest: dict[tuple[str, str], tuple[Pool, Ref]] = {}
        for pool in self.pools:
            for ref in self.pool_refs(pool).all(kind):
                known = newest.get((ref.kind, ref.name))
                if known is None or known[1].created < ref.created:
                    newest[ref.kind, ref.name] = pool, ref
        return sorted(newest.values(), key=lambda held: (KINDS.index(held[1].kind), held[1].name))

    def find(self, name: str) -> Ref:
        """Return what a name as people type it stands for.

        A whole name comes first; else the last parts of one do, with or without its version, and last of all a
        part of an asset: `mnist` finds `builtin/dataset/mnist@1.0`. Names of several kinds for one tree are one.
        NotFound names the nearest, Conflict those that fit equally well.
        """
        refs = [ref for ref in self.refs() if ref.kind != "link"]
        for fits in (_is_whole, _is_end, _is_end_of_any_version, _is_end_of_any_part):
            matches = [ref for ref in refs if fits(name, ref.name)]
            if len({ref.root for ref in matches}) > 1:
                names = ", ".join(sorted({ref.name for ref in matches}))
                raise Conflict(f"{name!r} can mean {names}", hint="give the whole name")
            if matches:
                return matches[0]
        ends = {ref.name.rpartition("/")[2] for ref in refs}
        near = did_you_mean(name, {ref.name for ref in refs} | ends | {end.partition("@")[0] for end in ends})
        raise NotFound(
            f"nothing in the store is named {name!r}" + (f"; {near}" if near else ""),
            hint="`fairmile store ls` lists all names",
        )

    # Pins

    def pins(self) -> Pins:
        """Return every pin, sorted."""
        return Pins(self.refs("pin"))

    def pin(self, name: str, label: str | None = None, *, dry_run: bool = False) -> Pinned:
        """Keep the content of a name until `unpin`, whatever becomes of the name, and return the pin."""
        ref = self.find(name)
        pool = next(pool for pool, each in self.held_refs(ref.kind) if each == ref)
        pin = replace(ref, kind="pin", name=label or ref.name, created=self.clock(), details={"of": str(ref)})
        known = self.ref("pin", pin.name)
        if known is not None and known.root != pin.root:
            raise Conflict(
                f"a pin named {pin.name!r} keeps something else",
                hint=f"`fairmile store unpin {pin.name}` first, or give the pin another label",
            )
        if not dry_run:
            self.set_ref(pin, pool)
        return Pinned(**vars(pin), dry_run=dry_run)

    def unpin(self, label: str, *, dry_run: bool = False) -> Unpinned:
        """Remove a pin; NotFound when there is none of that label."""
        if not (self.ref("pin", label) if dry_run else self.drop_ref("pin", label)):
            near = did_you_mean(label, [ref.name for ref in self.refs("pin")])
            raise NotFound(
                f"no pin is named {label!r}" + (f"; {near}" if near else ""), hint="`fairmile store pins` lists them"
            )
        return Unpinned(label, dry_run)


def _answer(question: Callable[[str], T], digest: str) -> T | None:
    """Return a pool's answer; None when it has none, be it that the object or that the pool is gone."""
    try:
        return question(digest)
    except (NotFound, SystemFailure):
        return None


def _is_whole(typed: str, name: str) -> bool:
    return typed == name


def _is_end(typed: str, name: str) -> bool:
    return name.endswith(f"/{typed}")


def _is_end_of_any_version(typed: str, name: str) -> bool:
    bare, _, version = name.rpartition("@")
    return " " not in version and (bare == typed or bare.endswith(f"/{typed}"))


def _is_end_of_any_part(typed: str, name: str) -> bool:
    whole = name.partition(" ")[0]
    return any(fits(typed, whole) for fits in (_is_whole, _is_end, _is_end_of_any_version))
