"""One large file from several connections and sources at once, verified while it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fairmile.base.digest import Checksum
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, SystemFailure, Transient
from fairmile.base.quick_dataclass import dataclass
from fairmile.transfer.checks import Digester, is_page_name, looks_like_page, page_error
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.flow import Flow, TooSlow, beyond_size
from fairmile.transfer.http import pause_s
from fairmile.transfer.limits import Limiter
from fairmile.transfer.part import Part
from fairmile.transfer.remote import Body, RangeFetcher, Remote
from fairmile.transfer.segments import Segment, Segments
from fairmile.transfer.settings import Settings

_BUFFER = 256 << 10
_FILL_S = 0.25
_SMALL_PIECE = 64 << 10
_GATHER_S = 0.01
_HASH_BUFFER = 1 << 20
# Soon at first, so that a process that is killed again and again still gets on; less often later.
_KEEP_FIRST_S = 0.125
_KEEP_EVERY_S = 1.0
# Where an answer comes at once, few connections fill the line and more only cost CPU.
_NEAR_S = 0.005
_NEAR_CONNECTIONS = 4
_NEAR_BYTES_PER_S = 50e6
_MOST_DOUBLINGS = 8


class Changed(Integrity):
    """The file changed at its source while it was read."""


@dataclass(eq=False)
class Offer:
    """One source of the file and how it behaves; `has_ranges` is None until its first answer.

    `only` is the one thread that reads it where it cannot send parts.
    """

    number: int
    remote: Remote
    fetcher: RangeFetcher
    validator: str = ""
    has_ranges: bool | None = None
    only: int | None = None
    failures: int = 0
    slow: int = 0  # connections in a row that were given up because they only trickled
    fault: FairmileError | None = None
    last_error: FairmileError | None = None
    moved_bytes: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        self.validator = self.remote.validator

    @property
    def shown(self) -> str:
        return shown_address(self.remote.address)


@dataclass(eq=False)
class LargeFile:
    """Brings one file of known size into a part; `run` returns its sha256 once every digest was checked.

    Where a source only trickles, `is_patient` decides whether to go on with it over new connections or to give it up.
    """

    path: str
    part: Part
    offers: Sequence[Offer]
    checksums: Sequence[Checksum]
    settings: Settings
    limiter: Limiter
    on_bytes: Callable[[int], None]
    clock: Callable[[], float] = time.monotonic
    is_patient: bool = True

    def __post_init__(self) -> None:
        self.digester = Digester(self.checksums)
        self.segments = Segments(
            self.part.size_bytes, self.clock, largest=self.settings.segment_bytes, done=self.part.done
        )
        # One that is given up begins anew, perhaps to bring a little and fall silent again: the others come before.
        self.segments.stalled_s = min(self.segments.stalled_s, self.settings.stall_s / 2)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> str:
        """Bring what is missing and return the sha256, or raise the error of the first source where none is left."""
        count = self.settings.connections
        self.segments.workers = count * len(self.offers)
        workers: list[threading.Thread] = []
        for offer in self.offers:
            self.segments.pace(offer.number)
            offer.workers = count
            workers += [self._thread(self._work, offer, index) for index in range(count)]
        hasher, keeper = self._thread(self._hash), self._thread(self._keep)
        started: list[threading.Thread] = []
        try:
            for thread in (hasher, keeper, *workers):
                thread.start()
                started.append(thread)
            while hasher.is_alive() and any(offer.workers for offer in self.offers):
                hasher.join(0.2)
            if self.segments.complete:
                hasher.join()
        finally:
            self._stopping.set()
            self.segments.stop_all()
            for thread in started:
                thread.join()
        with suppress(DiskFailure):  # what came so far serves the next attempt, also when storing it fails
            self.part.keep(self.segments.on_disk())
        if self._failure is not None or not self.segments.complete:
            raise self._failure or self._no_source_left()
        return self.digester.check(self.offers[0].remote.address if len(self.offers) == 1 else self.path)

    def stop(self, error: BaseException) -> None:
        """End `run`, from another thread, with an error."""
        self._failure = self._failure or error
        self._stopping.set()
        self.segments.stop_all()

    def front(self, at: int) -> int:
        """Wait until the bytes behind `at` are there and return how far they reach; `at` itself when none will come."""
        with self.segments.changed:
            while self.segments.front <= at < self.part.size_bytes and not self.segments.over:
                self.segments.changed.wait(0.5)
            return max(self.segments.front, at)

    def _thread(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001  carried to the caller's thread, which raises it
                self.stop(error)

        return threading.Thread(target=guarded, name=f"fairmile-{work.__name__}")

    def _no_source_left(self) -> FairmileError:
        faults = [offer.fault for offer in self.offers if offer.fault is not None]
        return faults[0] if faults else SystemFailure(f"{self.path}: no source left")

    # The connections

    def _work(self, offer: Offer, index: int) -> None:
        buffer = memoryview(bytearray(_BUFFER))
        try:
            while self._is_wanted(offer, index):
                segment = self.segments.take(offer.number, whole=not offer.has_ranges and offer.has_ranges is not None)
                if segment is None:
                    return
                pause = 0.0
                try:
                    self._bring(offer, segment, buffer)
                    offer.failures = offer.slow = 0
                except Transient as error:
                    pause = self._hindered(offer, segment, error)
                except (Changed, DiskFailure):
                    raise
                except FairmileError as error:
                    offer.fault = offer.fault or error
                finally:
                    segment.body = None
                    self.segments.finish(segment)
                self._stopping.wait(pause)
        finally:
            with self.segments.changed:
                offer.workers -= 1
                self.segments.changed.notify_all()

    def _is_wanted(self, offer: Offer, index: int) -> bool:
        """Tell whether another connection to the source is of use."""
        if offer.fault is not None or self.segments.over:
            return False
        if offer.has_ranges is False:
            with self.segments.changed:  # what the others give back can then come in one go
                while self._is_only(offer) and offer.workers > 1 and not self.segments.over:
                    self.segments.changed.wait(0.5)
            return self._is_only(offer)
        pace = self.segments.pace(offer.number)
        is_near = 0 < pace.latency_s < _NEAR_S and pace.bytes_per_s > _NEAR_BYTES_PER_S
        return index < _NEAR_CONNECTIONS or not is_near

    def _is_only(self, offer: Offer) -> bool:
        """Tell whether this thread is the one that reads a source which cannot send parts; the first to ask is."""
        with self.segments.changed:
            offer.only = offer.only or threading.get_ident()
            return offer.only == threading.get_ident()

    def _bring(self, offer: Offer, segment: Segment, buffer: memoryview) -> None:
        began = self.clock()
        remote = replace(offer.remote, validator=offer.validator)
        wants_part = offer.has_ranges is not False
        body = offer.fetcher.open(remote, segment.pos, segment.stop if wants_part else None)
        segment.body = body
        try:
            if self.segments.over:  # from here on the one who stops all sees the body and interrupts it
                return
            latency = self.clock() - began
            pace = self.segments.pace(offer.number)
            pace.latency_s = min(pace.latency_s or latency, latency)
            self._examine(offer, segment, body, wants_part)
            self._skip(offer, body, segment.pos - body.start, buffer)
            segment.begin(self.clock())
            flow = Flow(self._window_s(offer))
            self._receive(offer, segment, body, buffer, flow)
            # Ranges that others asked for in vain are free by now.
            while body.is_whole and self.segments.extend(segment):
                self._receive(offer, segment, body, buffer, flow)
        finally:
            body.close()

    def _examine(self, offer: Offer, segment: Segment, body: Body, wants_part: bool) -> None:
        """Check that the answer belongs to the file that is being brought."""
        if body.validator and offer.validator and body.validator != offer.validator:
            raise Changed(
                f"{offer.shown} changed while it was read",
                hint="fetch it again; if it happens again, ask its owner for a fixed version",
            )
        offer.validator = offer.validator or body.validator
        if body.total_bytes is not None and body.total_bytes != self.part.size_bytes:
            raise Integrity(
                f"{offer.shown} announces {body.total_bytes:,} bytes, expected {self.part.size_bytes:,}"
                + self._page_note(body),
                hint="the source has a different file than the one described",
            )
        if not body.is_whole:
            offer.has_ranges = True
            return
        offer.has_ranges = False
        if any(each.has_ranges and each.fault is None for each in self.offers if each is not offer):
            raise SystemFailure(f"{offer.shown} does not support ranges, which other sources do")
        # All that stands before its place would come for nothing.
        if (wants_part and body.start != segment.pos) or not self._is_only(offer):
            raise Transient(f"{offer.shown} does not support ranges: using one connection")
        self.segments.extend(segment)

    def _page_note(self, body: Body) -> str:
        head = bytearray(512)
        with suppress(FairmileError):
            count = body.readinto(memoryview(head))
            if body.start == 0 and looks_like_page(bytes(head[:count])) and not is_page_name(self.path):
                return "; it sends a web page, perhaps for a login"
        return ""

    def _expect_end(self, offer: Offer, body: Body) -> None:
        """Refuse a body that goes on behind the expected size, where no digest tells whether it is the file."""
        with suppress(Transient):  # nothing more came
            if not self.checksums and body.readinto(memoryview(bytearray(1))):
                raise beyond_size(offer.shown, self.part.size_bytes)

    @staticmethod
    def _skip(offer: Offer, body: Body, count: int, buffer: memoryview) -> None:
        while count > 0:
            got = body.readinto(buffer[: min(count, len(buffer))])
            if not got:
                raise Transient(f"{offer.shown} ended early")
            count -= got

    def _receive(self, offer: Offer, segment: Segment, body: Body, buffer: memoryview, flow: Flow) -> None:
        pos = segment.pos
        while pos < segment.stop:
            room = segment.stop - pos
            count, trouble = self._fill(offer, segment, body, buffer[:room] if room < _BUFFER else buffer, flow)
            head = bytes(buffer[: min(count, 512)]) if pos == 0 and not self.checksums else b""
            if looks_like_page(head) and not is_page_name(self.path):
                raise page_error(head, offer.shown, self.path)
            if count == self.part.size_bytes - pos and body.is_whole and body.total_bytes is None:
                self._expect_end(offer, body)
            # Another connection may have taken over the rest meanwhile.
            mine = self.segments.claim(segment, count)
            self.part.write(pos, buffer[:mine])
            pos += mine
            self.segments.progressed(segment, pos)
            offer.moved_bytes += count
            self.on_bytes(mine)
            self.limiter.take(offer.remote.address, count, partial(self._rest, segment))
            if trouble is not None:
                raise trouble
            if count == 0:
                raise Transient(f"{offer.shown} ended {room:,} bytes early")

    def _rest(self, segment: Segment, seconds: float) -> None:
        segment.last = float("inf")  # it is we who want nothing now, not the source that is silent
        self._stopping.wait(seconds)
        segment.last = self.clock()

    def _fill(
        self, offer: Offer, segment: Segment, body: Body, buffer: memoryview, flow: Flow
    ) -> tuple[int, Transient | None]:
        """Read until the buffer is full or some time has passed; a long link brings many small pieces."""
        filled = 0
        began = self.clock()
        until = began + _FILL_S
        is_far = self.segments.pace(segment.source).latency_s > _NEAR_S
        while filled < len(buffer):
            try:
                count = body.readinto(buffer[filled:])
            except Transient as error:
                return filled, error
            if count == 0:
                break
            filled += count
            segment.last = now = self.clock()
            if now > until:
                break
            if count < _SMALL_PIECE and filled < len(buffer) and is_far:
                time.sleep(_GATHER_S)  # more comes meanwhile: each piece costs a switch of threads
        try:
            flow.add(filled, self.clock() - began, offer.shown)
        except TooSlow as error:
            return filled, error
        return filled, None

    def _window_s(self, offer: Offer) -> float:
        """Return how long a connection may trickle: the more were given up in vain, the longer."""
        if not self.is_patient:
            return self.settings.stall_s
        if offer.has_ranges is False:  # a new connection would bring all of it again
            return float("inf")
        return float(self.settings.stall_s * 2 ** min(offer.slow, _MOST_DOUBLINGS))

    def _hindered(self, offer: Offer, segment: Segment, error: Transient) -> float:
        """Count a failure and return how long to wait; too many in a row without a byte end the source."""
        with self.segments.changed:
            if isinstance(error, TooSlow):
                offer.slow += 1
                # One bad connection among good ones is no reason to begin anew elsewhere.
                if not self.is_patient and 2 * offer.slow >= self.segments.connections(offer.number):
                    offer.fault = offer.fault or error
                    return 0.0
            if segment.pos > segment.start or segment.pos >= segment.stop or self.segments.over:
                offer.failures = 0
                return 0.0
            offer.failures += 1
            offer.last_error = error
            rounds, rest = divmod(offer.failures, max(offer.workers, 1))
            if rounds >= self.settings.retries or (
                rounds + bool(rest) and offer.has_ranges is None and offer.failures >= self.settings.retries
            ):
                offer.fault = offer.fault or error
                return 0.0
        return pause_s(rounds, error)

    # The digest and the journal

    def _hash(self) -> None:
        buffer = memoryview(bytearray(_HASH_BUFFER))
        at = 0
        while (front := self.front(at)) > at:
            while at < front:
                if self._failure is not None:  # nobody asks for the digest any more
                    return
                count = self.part.read(at, buffer[: min(front - at, _HASH_BUFFER)])
                if not count:
                    raise DiskFailure(f"{self.part.path} became shorter while it was read")
                self.digester.update(buffer[:count])
                at += count

    def _keep(self) -> None:
        pause_s = _KEEP_FIRST_S
        while not self._stopping.wait(pause_s):
            self.part.keep(self.segments.on_disk())
            pause_s = min(2 * pause_s, _KEEP_EVERY_S)
