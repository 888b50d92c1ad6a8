"""Plans transfers: what is stored already, what must come, how large it is and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.base.registry import Plugin, Registry
from fairmile.store.files import Placed, Stored, Together
from fairmile.store.store import Store
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.items import Item
from fairmile.transfer.plan import Plan
from fairmile.transfer.remote import RangeFetcher, Remote

if TYPE_CHECKING:
    from fairmile.store.archives import ListedSize

T = TypeVar("T")
R = TypeVar("R")

_MOST_PROBES = 64
_MOST_INDEX_BYTES = 64 << 20
_PROBES_AT_ONCE = 16
# Imported where an archive is planned for.
_ARCHIVES: Registry[ModuleType] = Registry("kind of archives", {"all": Plugin("fairmile.store.archives")})
# How much larger what is packed becomes, where no index tells; scientific data seldom packs better.
_GROWTH = {"gz": 3.0, "tgz": 3.0, "bz2": 4.0, "xz": 5.0, "txz": 5.0, "zst": 4.0, "7z": 5.0, "zip": 3.0}


class Planner:
    """Finds out what an address holds and how large it is, and which pool takes it."""

    def __init__(self, store: Store, fetchers: Fetchers) -> None:
        self._store = store
        self._fetchers = fetchers

    def find(self, address: str, path: str = "") -> list[Item]:
        """Return the files an address leads to; one item for a fetcher that knows only whole folders."""
        remotes = self._fetchers.find(address)
        if all(self._fetchers.ranged(remote.address) is not None for remote in remotes):
            return [
                Item(
                    path if path and len(remotes) == 1 else remote.path,
                    (remote,),
                    remote.size_bytes,
                    remote.checksums,
                    mode=remote.mode,
                )
                for remote in remotes
            ]
        # What is known beforehand, such as the commit of a branch, goes along in its address.
        whole = remotes[0] if len(remotes) == 1 else Remote(address, path)
        sizes = [remote.size_bytes for remote in remotes]
        return [Item(path, (whole,), about_bytes=sum(size or 0 for size in sizes) or None)]

    def plan(self, what: str, items: Sequence[Item], *, pool: str | None = None, fresh: bool = False) -> Plan:
        """Return what must come and where it goes; SystemFailure with the numbers when no pool has the room."""
        present: list[Collection[ManifestEntry]] = []
        todo: list[Item] = []
        digests = [item.sha256 for item in items if item.sha256 is not None and not item.unpack]
        absent = set(digests if fresh else self._store.absent(digests))
        for item in items:
            known = () if fresh or item.sha256 in absent else self._known(item)
            if known:
                present.append(known)
            else:
                todo.append(item)
        notes: list[str] = []
        todo = self._with_sizes(todo, notes)
        download, estimated = self._total(todo)
        grown = [self._unpacked(item) for item in todo if item.unpack]
        unpacked = sum(size for size, _ in grown)
        parts = {"download": download, "unpacked": unpacked} if unpacked else None
        begun, held = self._begun(todo, pool)
        choice = self._store.pools.choose(
            max(0, download + unpacked - held), wanted=begun or pool, files=max(len(todo), 1), what=what, parts=parts
        )
        return Plan(
            what,
            tuple(todo),
            _joined(present),
            choice.pool,
            download,
            unpacked,
            estimated or any(guessed for _, guessed in grown),
            (*notes, *choice.notes),
            held,
        )

    def _begun(self, items: Sequence[Item], wanted: str | None) -> tuple[str | None, int]:
        """Return the pool where an interrupted attempt left most, and how much: that attempt goes on there."""
        held: dict[str, int] = {}
        for pool in self._store.pools:
            if wanted in (None, pool.name):
                folder = self._store.objects(pool).incoming
                begun = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
                keys = {item.key for item in items} & begun if begun else set()
                held[pool.name] = sum(_size_on_disk(folder / key / "data") for key in keys)
        name, size = max(held.items(), key=lambda each: each[1], default=(None, 0))
        return (name, size) if size else (None, 0)

    def _known(self, item: Item) -> Collection[ManifestEntry]:
        """Return the files of an item whose content is in the store already, under whatever name."""
        if item.sha256 is None:
            return ()
        if item.unpack:
            ref = self._store.ref("url", archive_name(item.sha256))
            if ref is None or not self._store.complete(ref):
                return ()
            tree = Stored(ref.root, ref.files, self._store.tree)
            return Placed(item.into, tree) if item.into else tree
        size = self._store.size(item.sha256)
        return () if size is None else (ManifestEntry(item.path, size, item.sha256, item.mode),)

    def probed(self, items: Sequence[Item]) -> list[Item]:
        """Return the items with what their sources tell about them now, where that is not known yet."""
        if all(remote.validator for item in items for remote in item.sources[:1]):
            return list(items)
        return _at_once(lambda item: self._probed(item, []), items)

    def _with_sizes(self, items: list[Item], notes: list[str]) -> list[Item]:
        """Return the items with the sizes that their sources announce; of very many, a sample is asked."""
        unknown = [place for place, item in enumerate(items) if item.size_bytes is None]
        if len(unknown) > _MOST_PROBES:
            step = len(unknown) / _MOST_PROBES
            unknown = [unknown[int(number * step)] for number in range(_MOST_PROBES)]
        if not unknown:
            return items
        sized = list(items)
        for place, item in zip(unknown, _at_once(lambda at: self._probed(items[at], notes), unknown), strict=True):
            sized[place] = item
        return sized

    def _probed(self, item: Item, notes: list[str]) -> Item:
        remotes = list(item.sources)
        faults: list[FairmileError] = []
        for place, remote in enumerate(remotes):
            fetcher = self._fetchers.of(remote.address)
            if not isinstance(fetcher, RangeFetcher):
                continue
            try:
                listed = fetcher.find(remote.address)
            except FairmileError as error:
                faults.append(error)
                notes.append(f"{shown_address(remote.address)}: {error}")
                continue
            if len(listed) == 1:
                remotes[place] = replace(listed[0], path=remote.path, headers=remote.headers or listed[0].headers)
        if faults and len(faults) == len(remotes) and item.about_bytes is None:
            raise faults[0]
        sizes = [remote.size_bytes for remote in remotes if remote.size_bytes is not None]
        # Where they disagree most of them are right, or the largest: a page about a login is small.
        size = max(sizes, key=lambda size: (sizes.count(size), size), default=None)
        checksums = item.checksums or next((remote.checksums for remote in remotes if remote.checksums), ())
        return replace(item, sources=tuple(remotes), size_bytes=size, checksums=checksums)

    @staticmethod
    def _total(items: Sequence[Item]) -> tuple[int, bool]:
        exact = sum(item.size_bytes is not None for item in items)
        sizes = [size for item in items if (size := _size(item)) is not None]
        mean = sum(sizes) / len(sizes) if sizes else 0.0
        return sum(sizes) + int(mean * (len(items) - len(sizes))), exact < len(items)

    def _unpacked(self, item: Item) -> tuple[int, bool]:
        """Return how large an archive becomes, and whether that is a guess; a zip's own index tells at its end."""
        suffix = item.path.lower().rpartition(".")[2]
        listed = self._listed(item) if suffix == "zip" else None
        if listed is not None:
            return listed.size_bytes, listed.estimate
        return int((_size(item) or 0) * _GROWTH.get(suffix, 1.0)), suffix != "tar"

    def _listed(self, item: Item) -> ListedSize | None:
        remote, size = item.sources[0], item.size_bytes
        fetcher = self._fetchers.ranged(remote.address)
        if fetcher is None or size is None:
            return None
        archives = _ARCHIVES["all"]
        want = min(archives.ZIP_TAIL_BYTES, size)
        try:
            for _ in range(2):
                tail = _read(fetcher, remote, size - want, size)
                listed: ListedSize | int = archives.zip_listed_size(tail, size, item.path)
                if not isinstance(listed, int):
                    return listed
                want = min(listed, size, _MOST_INDEX_BYTES)
        except FairmileError:
            return None  # the transfer itself will tell what is wrong
        return None


def _joined(parts: Sequence[Collection[ManifestEntry]]) -> Collection[ManifestEntry]:
    """Return files as one collection: single ones as a tuple, whole trees unread."""
    if all(isinstance(part, tuple) for part in parts):
        return tuple(entry for part in parts for entry in part)
    return Together(parts)


def _at_once(ask: Callable[[T], R], each: Sequence[T]) -> list[R]:
    """Return what is answered about each, asked several at a time."""
    if len(each) == 1:
        return [ask(each[0])]
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and one file is the usual case

    with ThreadPoolExecutor(min(_PROBES_AT_ONCE, len(each)), "fairmile-probe") as pool:
        return list(pool.map(ask, each))


def _size_on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _read(fetcher: RangeFetcher, remote: Remote, start: int, stop: int) -> bytes:
    body = fetcher.open(remote, start, stop)
    try:
        if body.start != start:
            raise SystemFailure(f"{shown_address(remote.address)} cannot send a part of a file")
        data = bytearray(stop - start)
        at = 0
        while at < len(data) and (count := body.readinto(memoryview(data)[at:])):
            at += count
        return bytes(data[:at])
    finally:
        body.close()


def _size(item: Item) -> int | None:
    return item.size_bytes if item.size_bytes is not None else item.about_bytes


def archive_name(sha256: str) -> str:
    """Return the name under which the members of an archive are kept in the store."""
    return f"archive sha256:{sha256}"
