"""Small files: many at once, each by one connection."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, SystemFailure, Transient
from fairmile.store.objects import Batch
from fairmile.transfer.checks import Digester, is_listing, is_page_name, looks_like_page, page_error
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.flow import Flow, TooSlow, beyond_bound, beyond_size
from fairmile.transfer.http import pause_s
from fairmile.transfer.items import Brought, Failure, Item, Watcher
from fairmile.transfer.limits import Limiter
from fairmile.transfer.remote import Body, RangeFetcher, Remote
from fairmile.transfer.settings import Settings

LARGE = 8 << 20  # beyond this, several connections share a file
_IN_MEMORY = 1 << 20
_NEAR_CONNECTIONS = 4
_NEAR_S = 0.005
_LOOK_S = 0.05
_JUDGE_S = 2.0  # before, a file is too fresh to be called slow
_SLOW_S = 10.0  # a last file that would take longer is left to several connections and sources
_KNOWN_SLOW_FILES = 3  # a server that sent so many files too slowly is taken to be slow
_BUFFER = 256 << 10


class SmallFiles:
    """Brings small files; afterwards `brought`, `failures`, and `grown` (those that are large) tell the outcome.

    After `most_s` no further one is begun; `left` are those that were not.
    """

    def __init__(
        self,
        items: Sequence[Item],
        fetchers: Fetchers,
        settings: Settings,
        limiter: Limiter,
        watcher: Watcher,
        count: Callable[[], None],
        most_s: float = float("inf"),
        room_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.brought: list[Brought] = []
        self.failures: list[Failure] = []
        self.grown: list[Item] = []
        self.left: list[Item] = []
        self._todo = iter(items)
        self._threads = min(settings.connections, len(items))
        self._fetchers = fetchers
        self._settings = settings
        self._limiter = limiter
        self._watcher = watcher
        self._count = count
        self._most_s = most_s
        self._room_bytes = room_bytes
        self._clock = clock
        self._unbegun = len(items)
        self._slow_servers: Counter[str] = Counter()
        self._until = float("inf")
        self._streams: set[_Stream] = set()
        self._stop = threading.Event()
        self._slow = threading.Event()
        self._answers = self._slow_answers = 0
        self._lock = threading.Lock()
        self._trouble: BaseException | None = None

    def bring(self, batch: Batch) -> None:
        """Bring every item into a batch; an error of our own disk is raised, those of sources are kept."""
        workers = [
            threading.Thread(target=self._guarded, args=(batch,), name="fairmile-small") for _ in range(self._threads)
        ]
        started: list[threading.Thread] = []
        self._until = time.monotonic() + self._most_s
        try:
            for worker in workers:
                # Where answers come at once, few connections do as much, and more only hinder one another.
                if len(started) == _NEAR_CONNECTIONS and not self._is_far(started):
                    break
                worker.start()
                started.append(worker)
            for worker in started:
                while worker.is_alive():  # a signal that comes just before a wait is seen only after it
                    worker.join(0.5)
                    self._hand_over_slow()
        except BaseException:
            self._stop.set()
            for stream in list(self._streams):
                stream.interrupt()
            for worker in started:
                worker.join()
            raise
        if self._trouble is not None:
            raise self._trouble
        self.left = list(self._todo)
        if self._stop.is_set():
            self.failures += [Failure(item, self.failures[0].error) for item in self.left]
            self.left = []

    def _is_far(self, started: Sequence[threading.Thread]) -> bool:
        """Wait until an answer was slow, and tell so; False when the work was done before."""
        while not self._slow.wait(_LOOK_S):
            if not any(worker.is_alive() for worker in started):
                return False
        return True

    def _judge(self, latency_s: float) -> None:
        """Note how long an answer took; when most of them are slow, the source is far away."""
        with self._lock:
            self._answers += 1
            self._slow_answers += latency_s > _NEAR_S
            if self._answers >= 2 * _NEAR_CONNECTIONS and 2 * self._slow_answers > self._answers:
                self._slow.set()

    def _guarded(self, batch: Batch) -> None:
        try:
            self._work(batch)
        except BaseException as error:  # noqa: BLE001  carried to the caller's thread, which raises it
            self._trouble = self._trouble or error
            self._stop.set()

    def _work(self, batch: Batch) -> None:
        buffer = memoryview(bytearray(_IN_MEMORY))
        while not self._stop.is_set() and time.monotonic() < self._until:
            with self._lock:
                item = next(self._todo, None)
                self._unbegun -= 1
            if item is None:
                return
            try:
                outcome = self.bring_one(item, batch, buffer)
            except DiskFailure:
                raise
            except FairmileError as error:
                self.failures.append(Failure(item, error))
                # A source that is down fails for every file: nobody waits for ten thousand time-outs.
                if not self.brought and len(self.failures) >= 2 * self._threads:
                    self._stop.set()
                self._count()
                continue
            if isinstance(outcome, Item):
                self.grown.append(outcome)
            else:
                self.brought.append(outcome)
                self._count()

    def bring_one(self, item: Item, batch: Batch, buffer: memoryview | None = None) -> Brought | Item:
        """Bring one file from the first source that serves; the item with its size when it is a large one."""
        notes: list[str] = []
        faults: dict[str, FairmileError] = {}
        buffer = memoryview(bytearray(_IN_MEMORY)) if buffer is None else buffer
        left = [remote for remote in item.sources if self._fetchers.ranged(remote.address) is not None]
        if self._slow_servers:
            left.sort(key=lambda remote: self._slow_servers[_server(remote)])
        slow: set[str] = set()
        for attempt in range(self._settings.retries):
            is_last = attempt + 1 == self._settings.retries
            for remote in list(left):
                alone = is_last or len(left) == 1 or self._are_all_slow(left, slow)
                try:
                    return self._receive(item, remote, batch, buffer, notes, alone=alone)
                except DiskFailure:
                    raise
                except FairmileError as error:
                    # Wrong bytes may be an accident of the way; a second time they are the source's.
                    if not isinstance(error, (Transient, Integrity)) or (isinstance(error, Integrity) and attempt):
                        left.remove(remote)
                    if isinstance(error, TooSlow):
                        slow.add(remote.address)
                        self._slow_servers[_server(remote)] += 1
                    if remote.address not in faults and len(item.sources) > 1:
                        notes.append(f"{error}; trying the next source")
                        self._watcher.note(notes[-1])
                    faults[remote.address] = error
            waits = [pause_s(attempt, error) for error in faults.values() if isinstance(error, Transient)]
            if not left or self._stop.is_set():
                break
            if attempt + 1 < self._settings.retries:
                self._stop.wait(min(waits, default=0.0))
        raise next(iter(faults.values()), SystemFailure(f"{item.path}: no source left"))

    def _receive(
        self, item: Item, remote: Remote, batch: Batch, buffer: memoryview, notes: list[str], *, alone: bool
    ) -> Brought | Item:
        fetcher = self._fetchers.ranged(remote.address)
        assert fetcher is not None
        digester = Digester(item.checksums)
        # A range tells the size of a file that is unknown, and keeps a large one from being sent as a whole.
        began = time.monotonic()
        body = fetcher.open(remote, 0, None if item.size_bytes is not None else LARGE)
        if not self._slow.is_set():
            self._judge(time.monotonic() - began)
        if body.total_bytes is None and not body.is_whole and item.size_bytes is None:
            body.close()  # nobody could tell whether the file ends with this part
            body = fetcher.open(remote, 0, None)
        wait = self._wait if alone else None
        stream = _Stream(
            body, item, remote, fetcher, digester, wait, self.most_bytes(item), self._settings.stall_s, self._clock
        )
        self._streams.add(stream)
        if self._stop.is_set():
            stream.interrupt()
        try:
            total = body.total_bytes
            if item.size_bytes is not None and total is not None and total != item.size_bytes:
                raise Integrity(
                    f"{shown_address(remote.address)} announces {total:,} bytes, expected {item.size_bytes:,}"
                )
            if total is not None and total > LARGE and not body.is_whole:
                return replace(item, size_bytes=total)
            stream.on_bytes = self._on_bytes(remote)
            if total is not None and total <= _IN_MEMORY:
                data = stream.read_whole(buffer[:total])
                sha256, size = batch.add(data, stream.digester.check(remote.address)), total
            else:
                sha256, size = batch.add_stream(stream)
                stream.digester.check(remote.address)
            if item.size_bytes is not None and size != item.size_bytes:
                raise Integrity(f"{shown_address(remote.address)} sends {size:,} bytes, expected {item.size_bytes:,}")
        except Transient:
            if not stream.is_handed_over:
                raise
            return replace(item, size_bytes=stream.size_bytes)
        finally:
            self._streams.discard(stream)
            stream.close()
        entry = ManifestEntry(item.path, size, sha256, item.mode)
        return Brought(item, sha256, size, (entry,), stream.moved, tuple(notes), remote.address, body.validator)

    def most_bytes(self, item: Item) -> tuple[int, str]:
        """Return how much a source may send, and why no more where its size is unknown."""
        if item.size_bytes is not None:
            return item.size_bytes, ""
        most, room = self._settings.unsized_bytes, self._room_bytes
        if room is not None and room < most:
            return room, "which is what is free in the pool"
        return most, "the limit for a file of unknown size"

    def _are_all_slow(self, remotes: Sequence[Remote], slow: Collection[str]) -> bool:
        """Tell whether no source left to hope for: each was slow for this file, or for several others."""
        return all(
            remote.address in slow or self._slow_servers[_server(remote)] >= _KNOWN_SLOW_FILES for remote in remotes
        )

    def _hand_over_slow(self) -> None:
        """Stop the last files that come so slowly that several connections, or other sources, should bring them."""
        if self._unbegun > 0:  # a slow one holds nobody up
            return
        now = self._clock()
        for stream in list(self._streams):
            if stream.is_slow(now):
                stream.hand_over()

    def _on_bytes(self, remote: Remote) -> Callable[[int], None]:
        def count(size_bytes: int) -> None:
            self._watcher.bytes(size_bytes)
            self._limiter.take(remote.address, size_bytes, self._stop.wait)

        return count

    def _wait(self, failures: int, error: Transient) -> bool:
        """Wait before another attempt; False when there should be none."""
        if failures >= self._settings.retries or self._stop.is_set():
            return False
        self._stop.wait(pause_s(failures, error))
        return not self._stop.is_set()


def _server(remote: Remote) -> str:
    return urlsplit(remote.address).netloc


class _Stream:
    """Reads one file over one connection, and over another one where the first breaks off; checks what comes."""

    def __init__(
        self,
        body: Body,
        item: Item,
        remote: Remote,
        fetcher: RangeFetcher,
        digester: Digester,
        wait: Callable[[int, Transient], bool] | None,
        most: tuple[int, str],
        stall_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.digester = digester
        self.moved = 0
        self.is_handed_over = False
        self._most_bytes, self._reason = most
        self._flow = Flow(stall_s)
        self._window_s = stall_s
        self._is_interrupted = False
        self._clock = clock
        self._began = clock()
        self.on_bytes: Callable[[int], None] = lambda size_bytes: None
        self._body = body
        self._item = item
        self._remote = remote
        self._fetcher = fetcher
        self._wait = wait
        self._failures = 0

    def close(self) -> None:
        self._body.close()

    def interrupt(self) -> None:
        """Wake up the reader, from another thread."""
        self._is_interrupted = True
        self._body.interrupt()

    @property
    def size_bytes(self) -> int | None:
        return self._item.size_bytes if self._item.size_bytes is not None else self._body.total_bytes

    def is_slow(self, now: float) -> bool:
        """Tell whether the rest, at the pace so far, takes long; a source that cannot send parts gains nothing."""
        size, took_s = self.size_bytes, now - self._began
        if size is None or took_s < _JUDGE_S or (self._body.is_whole and len(self._item.sources) == 1):
            return False
        return (size - self.moved) * took_s > _SLOW_S * max(self.moved, 1)

    def hand_over(self) -> None:
        """End the reading, from another thread, so that others bring the file."""
        self.is_handed_over = True
        self.interrupt()

    def read_whole(self, buffer: memoryview) -> bytes:
        """Return the whole body, which fills the buffer."""
        at = 0
        while at < len(buffer):
            at += self._readinto(buffer[at:])
        data = bytes(buffer)
        self._examine(data)
        self.digester.update(data)
        return data

    def read(self, size: int, /) -> bytes:
        """Return some bytes of the body; none at its end."""
        view = memoryview(bytearray(min(size, _BUFFER) if size > 0 else _BUFFER))
        is_start = self.moved == 0
        data = bytes(view[: self._readinto(view)])
        if is_start:
            self._examine(data)
        self.digester.update(data)
        return data

    def _readinto(self, buffer: memoryview) -> int:
        while True:
            began = self._clock()
            try:
                count = self._body.readinto(buffer)
                if count == 0 and self._body.total_bytes is not None and self.moved < self._body.total_bytes:
                    left = self._body.total_bytes - self.moved
                    raise Transient(f"{shown_address(self._remote.address)} ended {left:,} bytes early")
            except Transient as error:
                self._go_on(error)
                continue
            if count:
                self._failures = 0
                self.moved += count
                if self.moved > self._most_bytes:
                    raise self._too_much()
                self.on_bytes(count)
                try:
                    self._flow.add(count, self._clock() - began, shown_address(self._remote.address))
                except TooSlow as error:
                    if self._body.total_bytes is None or self.moved < self._body.total_bytes:
                        self._renew(error)
            return count

    def _too_much(self) -> FairmileError:
        where = shown_address(self._remote.address)
        if not self._reason:
            return beyond_size(where, self._most_bytes)
        return beyond_bound(where, self._most_bytes, self._reason)

    def _go_on(self, error: Transient) -> None:
        """Open another connection where the last one broke off, or raise its error."""
        if not self.moved or self.is_handed_over:
            raise error  # nothing came: that is for the caller to try again
        while True:
            self._failures += 1
            if self._wait is None or not self._wait(self._failures, error):
                raise error
            self._body.close()
            try:
                body = self._open_rest()
            except Transient as again:
                error = again
                continue
            continues = self._continues(body)
            self._replace_body(body)
            if not continues:
                raise error
            self._flow = Flow(self._window_s)
            return

    def _renew(self, error: TooSlow) -> None:
        """Open another connection in place of one that trickles; where that would begin anew, stay with this one."""
        if self._wait is None or self.is_handed_over:
            raise error  # another source may be better
        self._window_s *= 2  # where a new one is no better, the link is slow
        self._flow = Flow(self._window_s)
        try:
            body = self._open_rest()
        except FairmileError:
            return
        if self._continues(body):
            self._body.close()
            self._replace_body(body)
        else:
            body.close()
            self._flow = Flow(float("inf"))

    def _open_rest(self) -> Body:
        return self._fetcher.open(replace(self._remote, validator=self._body.validator), self.moved, None)

    def _continues(self, body: Body) -> bool:
        return body.start == self.moved and body.validator == self._body.validator

    def _replace_body(self, body: Body) -> None:
        self._body = body
        if self._is_interrupted:  # meanwhile: that reached the old one only
            body.interrupt()

    def _examine(self, head: bytes) -> None:
        address, path = self._remote.address, self._item.path
        if not self._item.checksums and looks_like_page(head) and (not is_page_name(path) or is_listing(head, address)):
            raise page_error(head, shown_address(address), path)
