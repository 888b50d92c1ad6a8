"""Exchange: bring what a name stands for to another pool folder, or from there; only what is missing moves.

Every object is verified where it arrives. The tree and the name come last, so that the other side is never
inconsistent; what an interruption leaves behind is used by the next attempt.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fairmile.base.commands import Runner, Ssh
from fairmile.base.digest import ManifestEntry, sha256_file
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import Lock
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.store.digest_set import DigestSet
from fairmile.store.objects import Objects, make_folder, writing
from fairmile.store.packs import MAX_PACK_BYTES
from fairmile.store.pools import Pool, Pools
from fairmile.store.refs import Ref, Refs
from fairmile.store.remote_pool import RemotePool
from fairmile.store.shelves import Shelves
from fairmile.store.trees import Trees

_REMOTE = re.compile(r"((?:[^\s/:@]+@)?(?:[^\s/:@]+|\[[0-9a-fA-F:]+\])):(.+)")
_AT_ONCE = 10_000
_STAGED_BYTES = 256 << 20  # small objects that are packed anew before they are sent
_PATIENCE_S = 24 * 3600.0
_CHUNK = 1 << 20


class ExchangedDict(TypedDict):
    name: str
    place: str
    root: str
    files: int
    size_bytes: int
    moved_objects: int
    moved_bytes: int
    dry_run: bool


@dataclass(frozen=True, repr=False)
class Exchanged(Result):
    """A name that was pushed or pulled, and how much of its content the other side lacked."""

    name: str
    place: str
    root: str
    files: int
    size_bytes: int
    moved_objects: int
    moved_bytes: int
    dry_run: bool

    def to_dict(self) -> ExchangedDict:
        return {
            "name": self.name,
            "place": self.place,
            "root": self.root,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "moved_objects": self.moved_objects,
            "moved_bytes": self.moved_bytes,
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.name} with {self.place}, {format_size(self.moved_bytes)} moved"


class Exchange:
    """Exchanges between a store and one pool folder, local (`/folder`) or remote (`user@host:/folder`)."""

    def __init__(
        self,
        shelves: Shelves,
        place: str,
        *,
        runner: Runner,
        ssh: Callable[[str], Ssh] = Ssh,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._shelves = shelves
        self._place = place
        self._runner = runner
        self._on_bytes = on_bytes
        self._remote: RemotePool | None = None
        self._folder = Path(place).expanduser().absolute()
        if match := _REMOTE.fullmatch(place):
            if match[2].startswith("//"):
                raise UsageError(f"{place} is an address", hint="write user@host:/folder for a folder reached by ssh")
            if match[2].startswith("~"):
                raise UsageError(
                    f"{place}: '~' is not expanded there", hint="write the whole path, or one below the home"
                )
            self._remote = RemotePool(ssh(match[1]), match[2].rstrip("/") or "/", runner)

    def push(self, name: str, *, dry_run: bool = False) -> Exchanged:
        """Bring what a name stands for to the folder."""
        ref = self._shelves.find(name)
        gone = next(self._shelves.missing(ref), None)
        if gone is not None:
            raise NotFound(f"{ref} is incomplete here: {gone.path} is missing", hint="fetch it again first")
        if self._remote is None:
            return self._bring(self._shelves, self._opened(self._folder), ref, None, dry_run)
        return self._push_remote(self._remote, ref, dry_run)

    def pull(self, name: str, *, pool: str | None = None, dry_run: bool = False) -> Exchanged:
        """Bring what a name stands for in the folder into the store."""
        if self._remote is not None:
            return self._pull_remote(self._remote, name, pool, dry_run)
        if not self._folder.is_dir():
            raise NotFound(f"no folder {self._folder}", hint="mount it, or check its name")
        other = self._opened(self._folder)
        ref = self._resolve(other, name)
        gone = next(other.missing(ref), None)
        if gone is not None:
            raise NotFound(f"{ref} is incomplete in {self._folder}: {gone.path} is missing", hint="push it there again")
        return self._bring(other, self._shelves, ref, pool, dry_run)

    # Near

    def _opened(self, folder: Path) -> Shelves:
        known = next((pool for pool in self._shelves.pools if pool.folder == folder), None)
        pools = Pools([known or Pool(str(folder), folder)], runner=self._runner, clock=self._shelves.clock)
        return Shelves(pools, clock=self._shelves.clock)

    def _resolve(self, other: Shelves, name: str) -> Ref:
        try:
            return other.find(name)
        except NotFound as error:
            raise NotFound(f"{self._place}: {error}", hint="push it there first") from error

    def _bring(self, source: Shelves, target: Shelves, ref: Ref, wanted: str | None, dry_run: bool) -> Exchanged:
        with (
            DigestSet(entry.sha256 for entry in source.tree(ref.root)) as digests,
            DigestSet(digest for digest in digests if digest not in target) as lacking,
        ):
            need = sum(source.size(digest) or 0 for digest in lacking)
            pool = target.pools.choose(need, wanted=wanted, files=len(lacking), what=str(ref)).pool
            if not dry_run:
                with target.pools.reserve(pool, need, str(ref)) as room:
                    for size in _copy(source, target.objects(pool), lacking):
                        room.shrink(size)
                        self._moved(size)
                _finish(ref, source.tree(ref.root), target, pool)
            return self._report(ref, len(lacking), need, dry_run)

    # Remote pools

    def _push_remote(self, remote: RemotePool, ref: Ref, dry_run: bool) -> Exchanged:
        shelves = self._shelves
        with (
            DigestSet(entry.sha256 for entry in shelves.tree(ref.root)) as digests,
            DigestSet(remote.lacking(digests)) as no_files,
        ):
            packed = remote.packed(no_files)
            with DigestSet(digest for digest in no_files if digest not in packed) as lacking:
                need = sum(shelves.size(digest) or 0 for digest in lacking)
                free = None if dry_run else remote.prepare()
                if free is not None and need > free:
                    raise SystemFailure(
                        f"{ref} needs {format_size(need)} more in {remote}, which has {format_size(free)} free",
                        hint="free some space there, or choose another folder",
                    )
                if not dry_run:
                    self._send(remote, ref, lacking)
                return self._report(ref, len(lacking), need, dry_run)

    def _send(self, remote: RemotePool, ref: Ref, lacking: DigestSet) -> None:
        name = f"exchange-{ref.root[:32]}-{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]}"
        rounds = _rounds(self._shelves, lacking)
        chunk = next(rounds, [])
        while True:
            following = next(rounds, None)
            with tempfile.TemporaryDirectory(prefix="fairmile-") as folder:
                links = _stage(self._shelves, Path(folder), [digest for digest, _ in chunk])
                if following is None:
                    if Trees(Path(folder)).put(self._shelves.tree(ref.root)) != ref.root:
                        raise _damaged_tree(ref)
                    Refs(Path(folder)).put(replace(ref, created=self._shelves.clock()))
                remote.receive(Path(folder), name, _sums(Path(folder), links))
            self._moved(sum(size for _, size in chunk))
            if following is None:
                return
            chunk = following

    def _pull_remote(self, remote: RemotePool, name: str, wanted: str | None, dry_run: bool) -> Exchanged:
        with tempfile.TemporaryDirectory(prefix="fairmile-") as folder:
            remote.bring_names(Path(folder))
            known = self._opened(Path(folder))
            ref = self._resolve(known, name)
            remote.bring([f"trees/{ref.root[:2]}/{ref.root[2:]}"], Path(folder))
            target = self._shelves
            with (
                DigestSet(entry.sha256 for entry in known.tree(ref.root) if entry.sha256 not in target) as lacking,
                DigestSet(remote.lacking(lacking)) as no_files,
            ):
                packed = remote.packed(no_files)
                for digest in no_files:
                    if digest not in packed:
                        raise NotFound(
                            f"{ref} is incomplete in {remote}: {digest} is missing", hint="push it there again"
                        )
                need = sum(entry.size_bytes for entry in known.tree(ref.root) if entry.sha256 in lacking)
                room = need + (MAX_PACK_BYTES if packed else 0)
                pool = target.pools.choose(room, wanted=wanted, files=len(lacking), what=str(ref)).pool
                if not dry_run:
                    with target.pools.reserve(pool, room, str(ref)):
                        self._fetch(remote, ref, target.objects(pool), lacking, packed)
                    _finish(ref, known.tree(ref.root), target, pool)
                return self._report(ref, len(lacking), need, dry_run)

    def _fetch(
        self, remote: RemotePool, ref: Ref, objects: Objects, lacking: DigestSet, packed: dict[str, str]
    ) -> None:
        mirror = objects.incoming / f"exchange-{ref.root}"
        with writing(mirror):
            make_folder(objects.root, objects.incoming)
        with Lock(f"{mirror}.lock", timeout_s=_PATIENCE_S):
            arrived = Objects(mirror)
            loose = (digest for digest in lacking if digest not in packed and digest not in objects)
            while chunk := list(itertools.islice(loose, _AT_ONCE)):
                remote.bring((f"objects/{digest[:2]}/{digest[2:]}" for digest in chunk), mirror)
                for digest in chunk:
                    self._adopt(arrived, digest, objects)
            by_pack = sorted((pack, digest) for digest, pack in packed.items() if digest not in objects)
            for pack, group in itertools.groupby(by_pack, key=lambda pair: pair[0]):
                remote.bring([f"packs/{pack}"], mirror)
                for size in _copy(arrived, objects, (digest for _, digest in group)):
                    self._moved(size)
                (mirror / "packs" / pack).unlink()
            shutil.rmtree(mirror, ignore_errors=True)

    def _adopt(self, arrived: Objects, digest: str, objects: Objects) -> None:
        path = arrived.path(digest)
        if path is None or sha256_file(path) != digest:
            if path is not None:
                path.unlink()
            raise Integrity(
                f"the object {digest} arrived damaged from {self._place}",
                hint="try again; if that does not help, verify the store there",
            )
        size = path.stat().st_size
        objects.adopt(path, digest)
        self._moved(size)

    def _moved(self, size: int) -> None:
        if self._on_bytes is not None:
            self._on_bytes(size)

    def _report(self, ref: Ref, objects: int, size_bytes: int, dry_run: bool) -> Exchanged:
        return Exchanged(ref.name, self._place, ref.root, ref.files, ref.size_bytes, objects, size_bytes, dry_run)


def _finish(ref: Ref, entries: Iterable[ManifestEntry], target: Shelves, pool: Pool) -> None:
    """Write the tree, then the name, now that every object is there; the name is new, so that it counts."""
    if target.put_tree(entries, pool) != ref.root:
        raise _damaged_tree(ref)
    target.set_ref(replace(ref, created=target.clock()), pool)


def _copy(source: Shelves | Objects, objects: Objects, digests: Iterable[str]) -> Iterator[int]:
    """Copy objects, each verified as it is written, and yield the bytes of each that is safe."""
    rest = iter(digests)
    while chunk := list(itertools.islice(rest, _AT_ONCE)):
        sizes = {digest: source.size(digest) or 0 for digest in chunk}
        with objects.batch() as batch:
            for digest, size in sizes.items():
                if size < objects.pack_below_bytes:
                    with source.open(digest) as stream:
                        data = stream.read()
                    if hashlib.sha256(data).hexdigest() != digest:
                        raise _damaged(digest)
                    batch.add(data, digest)
        yield sum(size for size in sizes.values() if size < objects.pack_below_bytes)
        for digest, size in sizes.items():
            if size >= objects.pack_below_bytes:
                _copy_large(source, objects, digest)
                yield size


def _copy_large(source: Shelves | Objects, objects: Objects, digest: str) -> None:
    """Copy one object, going on where an earlier attempt stopped."""
    part = objects.incoming / f"exchange-{digest}"
    with writing(part):
        make_folder(objects.root, objects.incoming)
    with Lock(f"{part}.lock", timeout_s=_PATIENCE_S):
        if digest in objects:
            return
        went_on = part.exists()
        sha256 = _append(source, digest, part)
        if sha256 != digest and went_on:  # what was left behind was wrong
            part.unlink()
            sha256 = _append(source, digest, part)
        if sha256 != digest:
            part.unlink()
            raise _damaged(digest)
        objects.adopt(part, digest)


def _append(source: Shelves | Objects, digest: str, part: Path) -> str:
    """Write the rest of an object and return the digest of the whole file."""
    hasher = hashlib.sha256()
    with writing(part), open(part, "a+b") as target, source.open(digest) as stream:
        target.seek(0)
        while chunk := target.read(_CHUNK):
            hasher.update(chunk)
        stream.seek(target.tell())
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
            target.write(chunk)
    return hasher.hexdigest()


def _rounds(shelves: Shelves, digests: Iterable[str]) -> Iterator[list[tuple[str, int]]]:
    """Yield objects with their sizes in groups, each small enough to be staged."""
    group: list[tuple[str, int]] = []
    staged = 0
    for digest in digests:
        size = shelves.size(digest) or 0
        if group and (len(group) >= _AT_ONCE or staged + size > _STAGED_BYTES):
            yield group
            group, staged = [], 0
        group.append((digest, size))
        staged += size if shelves.path(digest) is None else 0
    if group:
        yield group


def _stage(shelves: Shelves, stage: Path, digests: Iterable[str]) -> dict[str, str]:
    """Lay objects out like a pool, files as links to them, and return the digest that each link stands for."""
    links: dict[str, str] = {}
    with Objects(stage).batch() as batch:
        for digest in digests:
            path = shelves.path(digest)
            if path is None:
                with shelves.open(digest) as stream:
                    batch.add(stream.read())
                continue
            link = f"objects/{digest[:2]}/{digest[2:]}"
            make_folder(stage, (stage / link).parent)
            os.symlink(path.absolute(), stage / link)
            links[link] = digest
    return links


def _sums(stage: Path, links: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the sha256 and the path of each file; a link must arrive as what it is named, whatever it holds."""
    for top, _, names in os.walk(stage):
        for name in names:
            path = os.path.relpath(os.path.join(top, name), stage)
            yield links.get(path) or sha256_file(stage / path), path


def _damaged(digest: str) -> Integrity:
    return Integrity(f"the object {digest} is damaged at its source", hint="run `fairmile store verify` there")


def _damaged_tree(ref: Ref) -> Integrity:
    return Integrity(f"the tree of {ref} is damaged at its source", hint="run `fairmile store verify` there")
