"""Small files: many at once, each by one connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, SystemFailure, Transient
from fairmile.store.objects import Batch
from fairmile.transfer.checks import Digester, is_page_name, looks_like_page
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.http import pause_s
from fairmile.transfer.items import Brought, Failure, Item, Watcher
from fairmile.transfer.limits import Limiter
from fairmile.transfer.remote import Body, RangeFetcher, Remote
from fairmile.transfer.settings import Settings

LARGE = 8 << 20  # beyond this, several connections share a file
_IN_MEMORY = 1 << 20
_BUFFER = 256 << 10


class SmallFiles:
    """Brings small files; afterwards `brought`, `failures`, and `grown` (those that are large) tell the outcome."""

    def __init__(
        self,
        items: Sequence[Item],
        fetchers: Fetchers,
        settings: Settings,
        limiter: Limiter,
        watcher: Watcher,
        count: Callable[[], None],
    ) -> None:
        self.brought: list[Brought] = []
        self.failures: list[Failure] = []
        self.grown: list[Item] = []
        self._todo = iter(items)
        self._threads = min(settings.connections, len(items))
        self._fetchers = fetchers
        self._settings = settings
        self._limiter = limiter
        self._watcher = watcher
        self._count = count
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None

    def bring(self, batch: Batch) -> None:
        """Bring every item into a batch; an error of our own disk is raised, those of sources are kept."""
        workers = [
            threading.Thread(target=self._guarded, args=(batch,), name="fairmile-small") for _ in range(self._threads)
        ]
        started: list[threading.Thread] = []
        try:
            for worker in workers:
                worker.start()
                started.append(worker)
            for worker in workers:
                worker.join()
        except BaseException:
            self._stop.set()
            for worker in started:
                worker.join()
            raise
        if self._trouble is not None:
            raise self._trouble
        if self.failures:
            self.failures += [Failure(item, self.failures[0].error) for item in self._todo]

    def _guarded(self, batch: Batch) -> None:
        try:
            self._work(batch)
        except BaseException as error:  # noqa: BLE001  carried to the caller's thread, which raises it
            self._trouble = self._trouble or error
            self._stop.set()

    def _work(self, batch: Batch) -> None:
        buffer = memoryview(bytearray(_IN_MEMORY))
        while not self._stop.is_set():
            with self._lock:
                item = next(self._todo, None)
            if item is None:
                return
            try:
                found = self.bring_one(item, batch, buffer)
            except DiskFailure:
                raise
            except FairmileError as error:
                self.failures.append(Failure(item, error))
                # A source that is down fails for every file: nobody waits for ten thousand time-outs.
                if not self.brought and len(self.failures) >= 2 * self._threads:
                    self._stop.set()
                self._count()
                continue
            if isinstance(found, Item):
                self.grown.append(found)
            else:
                self.brought.append(found)
                self._count()

    def bring_one(self, item: Item, batch: Batch, buffer: memoryview | None = None) -> Brought | Item:
        """Bring one file from the first source that serves; the item with its size when it is a large one."""
        notes: list[str] = []
        first: FairmileError | None = None
        buffer = memoryview(bytearray(_IN_MEMORY)) if buffer is None else buffer
        for remote in item.sources:
            fetcher = self._fetchers.ranged(remote.address)
            if fetcher is None:
                continue
            for attempt in range(self._settings.retries):
                try:
                    return self._receive(item, remote, fetcher, batch, buffer, notes)
                except DiskFailure:
                    raise
                except (Transient, Integrity) as error:
                    fault: FairmileError = error
                    # Wrong bytes may be an accident of the way; a second time they are the source's.
                    if self._stop.is_set() or (isinstance(error, Integrity) and attempt):
                        break
                    if attempt + 1 < self._settings.retries and isinstance(error, Transient):
                        self._stop.wait(pause_s(attempt, error))
                except FairmileError as error:
                    fault = error
                    break
            first = first or fault
            notes.append(str(fault))
            if len(item.sources) > 1:
                self._watcher.note(f"{fault}; trying the next source")
        raise first or SystemFailure(f"{item.path}: no source is left")

    def _receive(
        self, item: Item, remote: Remote, fetcher: RangeFetcher, batch: Batch, buffer: memoryview, notes: list[str]
    ) -> Brought | Item:
        # A range tells the size of a file that is unknown, and keeps a large one from being sent as a whole.
        body = fetcher.open(remote, 0, None if item.size_bytes is not None else LARGE)
        try:
            total = body.total_bytes
            if item.size_bytes is not None and total is not None and total != item.size_bytes:
                raise Integrity(
                    f"{shown_address(remote.address)} announces {total:,} bytes, expected {item.size_bytes:,}"
                )
            if total is not None and total > LARGE and not body.is_whole:
                return replace(item, size_bytes=total)
            stream = _Checked(body, item, remote.address, self._limiter, self._watcher)
            if total is not None and total <= _IN_MEMORY:
                data = stream.read_small(buffer, total)
                sha256, size = batch.add(data, stream.digester.check(remote.address)), len(data)
            else:
                sha256, size = batch.add_stream(stream)
                stream.digester.check(remote.address)
            if item.size_bytes is not None and size != item.size_bytes:
                raise Integrity(f"{shown_address(remote.address)} sends {size:,} bytes, expected {item.size_bytes:,}")
        finally:
            body.close()
        entry = ManifestEntry(item.path, size, sha256, item.mode)
        return Brought(item, sha256, size, (entry,), stream.moved, tuple(notes), remote.address, body.validator)


class _Checked:
    """Reads a body of one connection and checks what streams by."""

    def __init__(self, body: Body, item: Item, address: str, limiter: Limiter, watcher: Watcher) -> None:
        self.digester = Digester(item.checksums)
        self.moved = 0
        self._body = body
        self._item = item
        self._address = address
        self._limiter = limiter
        self._watcher = watcher

    def read_small(self, buffer: memoryview, total: int) -> bytes:
        """Return the whole body, of which `total` bytes are announced."""
        at = 0
        while at < total:
            count = self._body.readinto(buffer[at:total])
            if count == 0:
                raise Transient(f"{shown_address(self._address)} ended {total - at:,} bytes early")
            at += count
        data = bytes(buffer[:total])
        self._seen(data, at_start=True)
        return data

    def read(self, size: int, /) -> bytes:
        """Return some bytes of the body; none at its end."""
        view = memoryview(bytearray(min(size, _BUFFER) if size > 0 else _BUFFER))
        data = bytes(view[: self._body.readinto(view)])
        if data:
            self._seen(data, at_start=self.moved == 0)
        elif self._body.total_bytes is not None and self.moved < self._body.total_bytes:
            raise Transient(f"{shown_address(self._address)} ended {self._body.total_bytes - self.moved:,} bytes early")
        return data

    def _seen(self, data: bytes, *, at_start: bool) -> None:
        if at_start and not self._item.checksums and looks_like_page(data) and not is_page_name(self._item.path):
            raise Integrity(
                f"{shown_address(self._address)} answers with a web page instead of {self._item.path}",
                hint="it may need a login, or the address is that of a page about the file",
            )
        self.digester.update(data)
        self.moved += len(data)
        self._watcher.bytes(len(data))
        self._limiter.take(self._address, len(data))
