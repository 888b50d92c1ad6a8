"""The engine: brings items from the places that offer them into the objects of a pool, each verified."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from fairmile.base.digest import ManifestEntry, scan_tree, sha256_hex
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, SystemFailure, Transient
from fairmile.base.files import Lock
from fairmile.base.units import format_size
from fairmile.store.archives import archive_format, needs_seek, unpack
from fairmile.store.listing import Listing
from fairmile.store.objects import Batch, Objects, Readable
from fairmile.transfer.attempts import Attempts
from fairmile.transfer.checks import Digester
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.flow import beyond_bound, beyond_size
from fairmile.transfer.items import Brought, Failure, Item, Watcher
from fairmile.transfer.large import LargeFile, Offer
from fairmile.transfer.limits import Limiter
from fairmile.transfer.part import Part
from fairmile.transfer.remote import FolderFetcher, RangeFetcher, Remote
from fairmile.transfer.settings import Settings
from fairmile.transfer.small import LARGE, SmallFiles

_BATCH_ITEMS = 4000
# Small files become safe together: soon at first, then less often, since each time connections stand still.
_BATCH_FIRST_S = 0.25
_BATCH_MOST_S = 30.0
_LARGE_AT_ONCE = 2
_LOOK_EVERY_S = 0.5
_BUFFER = 256 << 10
_HEAD = 1 << 10


class Engine:
    """Brings items; threads, connections and half-done files are its own business."""

    def __init__(
        self,
        objects: Objects,
        fetchers: Fetchers,
        settings: Settings,
        watcher: Watcher,
        *,
        fresh: bool = False,
        on_landed: Callable[[int], None] = lambda size_bytes: None,
        room_bytes: int | None = None,
    ) -> None:
        self._objects = objects
        self._fresh = fresh
        self._on_landed = on_landed
        self._room_bytes = room_bytes
        self._fetchers = fetchers
        self._settings = settings
        self._watcher = watcher
        self._limiter = Limiter(settings.limits)
        self._done = 0
        self._total = 0
        self._lock = threading.Lock()
        self._keeping = threading.Lock()
        self._at_work: set[LargeFile] = set()
        self._stopped: BaseException | None = None

    def bring(self, items: Sequence[Item], on_brought: Callable[[list[Brought]], None]) -> list[Failure]:
        """Bring every item that can be brought and return those that cannot.

        `on_brought` gets items as soon as their bytes are safe in the store, so that a crash loses little.
        """
        self._done, self._total = 0, len(items)
        small = [item for item in items if self._is_small(item)]
        chosen = {id(item) for item in small}
        rest = [item for item in items if id(item) not in chosen]
        failures: list[Failure] = []
        start, most_s = 0, _BATCH_FIRST_S
        while start < len(small):
            some = small[start : start + _BATCH_ITEMS]
            began = time.monotonic()
            files = self._small_files(some, most_s)
            with self._objects.batch(anew=self._fresh) as batch:
                files.bring(batch)
            self._on_landed(sum(each.size_bytes for each in files.brought))
            on_brought(files.brought)
            failures += files.failures
            rest += files.grown
            start += len(some) - len(files.left)
            most_s = min(2 * (time.monotonic() - began), _BATCH_MOST_S)
        return failures + self._bring_large(rest, on_brought)

    def _bring_large(self, items: Sequence[Item], on_brought: Callable[[list[Brought]], None]) -> list[Failure]:
        failures: list[Failure] = []
        with ThreadPoolExecutor(_LARGE_AT_ONCE, "fairmile-item") as pool:
            try:
                # Whole folders come in this thread, where Ctrl-C ends the program that brings them.
                calls = [
                    partial(_outcome, pool.submit(self._bring_one, item, on_brought))
                    if any(self._fetchers.ranged(remote.address) is not None for remote in item.sources)
                    else partial(self._bring_one, item, on_brought)
                    for item in items
                ]
                for item, bring in zip(items, calls, strict=True):
                    try:
                        bring()
                    except FairmileError as error:
                        failures.append(Failure(item, error))
                    self._count()
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                with self._lock:
                    self._stopped = error
                    at_work = list(self._at_work)
                for large in at_work:
                    large.stop(error)
                raise
        return failures

    def _count(self, number: int = 1) -> None:
        with self._lock:
            self._done += number
            self._watcher.item(self._done, self._total)

    def _small_files(self, items: Sequence[Item], most_s: float = float("inf")) -> SmallFiles:
        return SmallFiles(
            items,
            self._fetchers,
            self._settings,
            self._limiter,
            self._watcher,
            self._count,
            most_s,
            room_bytes=self._room_bytes,
        )

    def _is_small(self, item: Item) -> bool:
        if item.unpack or (item.size_bytes is not None and item.size_bytes > LARGE):
            return False
        return self._fetchers.ranged(item.sources[0].address) is not None

    # Large files, archives and folders: one place of assembly each

    def _bring_one(self, item: Item, on_brought: Callable[[list[Brought]], None]) -> None:
        with self._assembly(item) as folder:
            brought = self._from_any(item, folder)
            with self._keeping:
                on_brought([brought])
            # Not before: where the process is killed, an archive need not come again.
            shutil.rmtree(folder, ignore_errors=True)

    def _from_any(self, item: Item, folder: Path) -> Brought:
        """Bring an item from its sources, those that can send parts of it first."""
        kinds = [(remote, self._fetchers.of(remote.address)) for remote in item.sources]
        ranged = [remote for remote in item.sources if self._fetchers.ranged(remote.address) is not None]
        notes: list[str] = []
        first: FairmileError | None = None
        if ranged:
            try:
                return self._bring_ranged(item, ranged, folder, notes)
            except DiskFailure:
                raise
            except FairmileError as error:
                first = error
        for remote, fetcher in kinds:
            if isinstance(fetcher, FolderFetcher) and not isinstance(fetcher, RangeFetcher):
                try:
                    return self._bring_folder(item, remote, fetcher, folder, notes)
                except DiskFailure:
                    raise
                except FairmileError as error:
                    first = first or error
                    notes.append(str(error))
        raise first or SystemFailure(f"{item.path}: no source left")

    @contextmanager
    def _assembly(self, item: Item) -> Iterator[Path]:
        """Hold the folder where an item is assembled; one process at a time, the others wait for it."""
        lock = self._objects.incoming / f"{item.key}.lock"
        if lock.exists():
            self._watcher.note(f"{item.path}: another process is fetching it; waiting")
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(Lock(lock, timeout_s=_LOOK_EVERY_S))
                    break
                except DiskFailure:
                    raise
                except SystemFailure:
                    if self._stopped is not None:
                        raise self._stopped from None
            yield self._objects.incoming / item.key

    def _bring_ranged(self, item: Item, remotes: list[Remote], folder: Path, notes: list[str]) -> Brought:
        if item.sha256 is not None and not item.unpack and not self._fresh:
            size = self._objects.size(item.sha256)  # another process may have brought it while we waited
            if size is not None:
                return Brought(item, item.sha256, size, (ManifestEntry(item.path, size, item.sha256, item.mode),))
        item = self._sized(item, remotes, notes)
        if item.size_bytes is None:
            return self._bring_unsized(item, remotes)
        attempts = Attempts(item, remotes, notes, self._watcher.note)
        reserved = item.size_bytes  # the first attempt takes the room; the others find it taken
        while (group := attempts.next()) is not None:
            offers = [Offer(number, remote, self._range_fetcher(remote)) for number, remote in enumerate(group)]
            part = Part(folder, item.size_bytes, {"key": item.key, "validators": _validators(item, group)})
            self._on_landed(reserved)
            reserved = 0
            self._watcher.bytes(sum(stop - start for start, stop in part.done))
            large = LargeFile(
                item.path, part, offers, item.checksums, self._settings, self._limiter, self._watcher.bytes
            )
            large.is_patient = attempts.is_last
            try:
                with self._stoppable(large):
                    brought = self._assemble(item, large, part, attempts)
            except Integrity as error:
                attempts.spoiled(error, offers, large, part)
                part.forget()
                self._watcher.bytes(-large.segments.on_disk_bytes)
            except DiskFailure:
                raise
            except FairmileError as error:
                attempts.failed(error)
                self._watcher.bytes(-large.segments.on_disk_bytes)
            else:
                attempts.settle(offers, large)
                moved = sum(offer.moved_bytes for offer in offers)
                best = max(offers, key=lambda offer: offer.moved_bytes)
                return replace(
                    brought,
                    moved_bytes=moved,
                    notes=tuple(notes),
                    source=best.remote.address,
                    validator=best.validator,
                )
            finally:
                part.close()
        raise attempts.error

    @contextmanager
    def _stoppable(self, large: LargeFile) -> Iterator[None]:
        with self._lock:
            self._at_work.add(large)
        if self._stopped is not None:
            large.stop(self._stopped)
        try:
            yield
        finally:
            self._at_work.discard(large)

    def _range_fetcher(self, remote: Remote) -> RangeFetcher:
        fetcher = self._fetchers.ranged(remote.address)
        assert fetcher is not None
        return fetcher

    def _sized(self, item: Item, remotes: list[Remote], notes: list[str]) -> Item:
        """Return the item with the size its sources announce where it is unknown."""
        if item.size_bytes is not None:
            return item
        for place, remote in enumerate(remotes):
            if remote.size_bytes is None:
                with suppress(FairmileError):  # another source may serve
                    listed = self._fetchers.of(remote.address).find(remote.address)
                    if len(listed) == 1:
                        headers = {**listed[0].headers, **remote.headers}
                        remotes[place] = remote = replace(listed[0], path=remote.path, headers=headers)
            if remote.size_bytes is not None:
                return replace(item, size_bytes=remote.size_bytes)
        return item

    def _assemble(self, item: Item, large: LargeFile, part: Part, attempts: Attempts) -> Brought:
        """Bring the bytes of a part and store them, or the members of the archive that they are."""
        size = part.size_bytes
        if not item.unpack:
            sha256 = large.run()
            attempts.compare(part)
            self._objects.adopt(part.path, sha256)
            return Brought(item, sha256, size, (ManifestEntry(item.path, size, sha256, item.mode),))
        with self._objects.batch(anew=self._fresh) as batch:
            members: Listing | None = None
            trouble: list[BaseException] = []

            def stream_members() -> None:
                nonlocal members
                try:
                    front = _Front(large, part)
                    kind = archive_format(item.path, front.head())
                    if kind is not None and not needs_seek(kind):
                        members = self._unpack(io.BufferedReader(front, _BUFFER), item, batch)
                except BaseException as error:  # noqa: BLE001  carried to the caller's thread, which raises it
                    trouble.append(error)

            unpacker = threading.Thread(target=stream_members, name="fairmile-unpack")
            unpacker.start()
            try:
                sha256 = large.run()
            finally:
                unpacker.join()
            if trouble:
                raise trouble[0]
            if members is None:
                with open(part.path, "rb") as stream:
                    members = self._unpack(stream, item, batch)
            attempts.compare(part)
        return Brought(item, sha256, size, members)

    def _unpack(self, stream: BinaryIO, item: Item, batch: Batch) -> Listing:
        sink = batch if self._room_bytes is None else _Bounded(batch, self._room_bytes, item.path)
        members = unpack(stream, item.path, sink, on_note=self._watcher.note, check=self._check)
        self._on_landed(members.total_bytes())
        return members

    def _check(self) -> None:
        """Raise what ended the transfer, such as Ctrl-C, in whatever thread still works for it."""
        if self._stopped is not None:
            raise self._stopped

    def _bring_unsized(self, item: Item, remotes: list[Remote]) -> Brought:
        """Bring a file whose size nobody tells, by one connection."""
        with self._objects.batch(anew=self._fresh) as batch:
            brought = self._small_files([]).bring_one(replace(item, sources=tuple(remotes)), batch)
        if isinstance(brought, Item):
            raise SystemFailure(f"{item.path}: its sources do not agree about its size")
        if not item.unpack:
            return brought
        with self._objects.batch(anew=self._fresh) as batch, self._objects.open(brought.sha256) as stream:
            members = self._unpack(stream, item, batch)
        return replace(brought, entries=members)

    def _bring_folder(
        self, item: Item, remote: Remote, fetcher: FolderFetcher, assembly: Path, notes: list[str]
    ) -> Brought:
        # Each source has its own: what one left must not pass for files of another.
        folder = assembly / f"folder-{sha256_hex(remote.address.encode('utf-8', 'surrogateescape'))[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        moved, shown = 0, shown_address(remote.address)
        most, reason = self._small_files([]).most_bytes(item)

        def on_bytes(count: int) -> None:
            nonlocal moved
            moved += count
            if moved > most:
                raise beyond_bound(shown, most, reason) if reason else beyond_size(shown, most)
            self._watcher.bytes(count)

        try:
            fetcher.bring(remote.address, folder, on_bytes)
        except (Integrity, SystemFailure):
            if moved > most:  # nothing of it is of use
                shutil.rmtree(folder, ignore_errors=True)
            raise
        entries = Listing(check=self._check)
        with self._objects.batch(anew=self._fresh) as batch:
            for entry in scan_tree(folder):
                with _opened(folder / entry.path, entry) as stream:
                    checked = _Checked(stream, Digester(item.checksums))
                    sha256, size = batch.add_stream(checked)
                try:
                    checked.digester.check(f"{remote.address}: {entry.path}")
                except Integrity:
                    shutil.rmtree(folder, ignore_errors=True)  # else the next attempt would go on from it
                    raise
                entries.put(replace(entry, sha256=sha256, size_bytes=size))
        if not len(entries):
            raise SystemFailure(f"{shown_address(remote.address)} delivered no file")
        total = entries.total_bytes()
        brought = Brought(item, "", total, entries, moved, tuple(notes), remote.address, remote.validator)
        if len(entries) == 1 and item.path and not item.into:
            only = next(iter(entries))
            return replace(brought, sha256=only.sha256, entries=(replace(only, path=item.path),))
        return brought


class _Bounded:
    """Passes members on to a batch while they fit: what an archive unpacks to can only be guessed beforehand."""

    def __init__(self, batch: Batch, room_bytes: int, archive: str) -> None:
        self._batch = batch
        self._room = self._left = room_bytes
        self._archive = archive

    def add(self, data: bytes, sha256: str | None = None) -> str:
        self._take(len(data))
        return self._batch.add(data, sha256)

    def add_stream(self, stream: Readable) -> tuple[str, int]:
        return self._batch.add_stream(_Counted(stream, self._take))

    def _take(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise DiskFailure(
                f"{self._archive} unpacks to more than the {format_size(self._room)} free in the pool",
                hint="choose another one with `--pool NAME`, or free space with `fairmile store gc`",
            )


class _Counted:
    """Reads a stream and tells how much came."""

    def __init__(self, stream: Readable, on_bytes: Callable[[int], None]) -> None:
        self._stream = stream
        self._on_bytes = on_bytes

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._on_bytes(len(data))
        return data


class _Front(io.RawIOBase):
    """Reads a file that is still coming, in order, waiting for its bytes."""

    def __init__(self, large: LargeFile, part: Part) -> None:
        self._large = large
        self._part = part
        self._at = 0

    def readable(self) -> bool:
        return True

    def head(self) -> bytes:
        """Return the first bytes without moving on."""
        want = min(_HEAD, self._part.size_bytes)
        at = 0
        while at < want and (front := self._large.front(at)) > at:
            at = front
        buffer = bytearray(want)
        return bytes(buffer[: self._part.read(0, memoryview(buffer))]) if at >= want else b""

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._part.size_bytes:
            return 0
        front = self._large.front(self._at)
        if front <= self._at:
            raise Transient("the transfer ended before the archive did")
        view = memoryview(buffer)
        count = self._part.read(self._at, view[: min(len(view), front - self._at)])
        self._at += count
        return count


class _Checked:
    """Digests what is read through it."""

    def __init__(self, stream: Readable, digester: Digester) -> None:
        self._stream = stream
        self.digester = digester

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        data = self._stream.read(size)
        self.digester.update(data)
        return data


def _outcome(future: Future[None]) -> None:
    """Wait for an end; not all at once, since a signal that comes just before a wait is seen only after it."""
    while not future.done():
        wait([future], timeout=_LOOK_EVERY_S)
    future.result()


def _validators(item: Item, remotes: Sequence[Remote]) -> list[str]:
    """Return what must be unchanged for a half-done file to be of use; a digest makes the rest superfluous."""
    return [] if item.checksums else [remote.validator for remote in remotes]


@contextmanager
def _opened(path: Path, entry: ManifestEntry) -> Iterator[Any]:
    if entry.mode == 0o120000:
        yield io.BytesIO(str(path.readlink()).encode("utf-8", "surrogateescape"))
        return
    with open(path, "rb") as stream:
        yield stream
