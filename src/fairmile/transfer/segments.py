"""Who brings which bytes of one file: ranges handed out, taken over and given back. No input or output here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

from fairmile.base.quick_dataclass import dataclass

_LEAST = 1 << 20
_LEAST_TAKEN_OVER = 256 << 10
_AHEAD_S = 4.0  # a range should keep a connection busy for about so long
_RECENT_S = 1.0  # how fast a connection is, its last one to two seconds tell
_UNTRIED_BYTES_PER_S = 256 << 10  # what a source that has not delivered yet is expected to
_MUCH = 4  # a rest too small to share is taken over where its owner needs so many times as long


@dataclass(eq=False, slots=True)
class Segment:
    """A range in the hands of one connection; bytes up to `pos` are on disk, those up to `claimed` on their way there.

    `stop` may come down at any time, but never below `claimed`.
    """

    start: int
    stop: int
    source: int
    since: float
    pos: int = -1
    claimed: int = -1
    body: Any = None
    last: float = 0.0
    # Where it stood at two earlier times, the later one at least `_RECENT_S` after the other.
    _before: tuple[float, int] = (0.0, 0)
    _lately: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        self.pos = self.start if self.pos < 0 else self.pos
        self.claimed = self.pos
        self.begin(self.since)

    def begin(self, now: float) -> None:
        """Note that its first byte may come from now on."""
        self.since = self.last = now
        self._before = self._lately = (now, self.pos)

    def reach(self, pos: int, now: float) -> None:
        self.pos, self.last = pos, now
        if now - self._lately[0] >= _RECENT_S:
            self._before, self._lately = self._lately, (now, pos)

    def bytes_per_s(self, now: float) -> float:
        """Return how fast its bytes came of late."""
        since, start = self._before
        return (self.pos - start) / max(now - since, 1e-3)


@dataclass(slots=True)
class Pace:
    """What one source was seen to deliver on one connection."""

    bytes_per_s: float = 0.0
    latency_s: float = 0.0

    def note(self, size_bytes: int, seconds: float) -> None:
        rate = size_bytes / max(seconds, 1e-6)
        self.bytes_per_s = rate if not self.bytes_per_s else 0.5 * self.bytes_per_s + 0.5 * rate


@dataclass
class Segments:
    """The ranges of one file of known size.

    `done` ranges are there from the start. Threads take ranges, and wait in `take` while nothing is left to do
    but may come back.
    """

    size_bytes: int
    clock: Callable[[], float]
    largest: int = 16 << 20
    workers: int = 1
    stalled_s: float = 2.0  # without a byte for so long, a connection may be overtaken
    done: Iterable[tuple[int, int]] = ()
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: bool = False

    def __post_init__(self) -> None:
        self._by_start: dict[int, Segment] = {}
        self._active: set[Segment] = set()
        self._free: list[tuple[int, int]] = []
        self.paces: dict[int, Pace] = {}
        self.silent: Counter[int] = Counter()
        self.front = 0
        at = 0
        for start, stop in coalesced(self.done):
            if start > at:
                self._free.append((at, start))
            self._by_start[start] = Segment(start, stop, -1, 0.0, pos=stop)
            at = stop
        if at < self.size_bytes:
            self._free.append((at, self.size_bytes))
        self._advance()

    def pace(self, source: int) -> Pace:
        return self.paces.setdefault(source, Pace())

    def take(self, source: int, *, whole: bool = False, wait_s: float = 0.5) -> Segment | None:
        """Return a range to bring from a source, or None when all is done or `over`.

        `whole` gives everything from the lowest missing byte on, for a source that cannot start elsewhere.
        """
        with self.changed:
            while not self.over and not self.complete:
                now = self.clock()
                segment = self._from_free(source, now, whole) or (None if whole else self._take_over(source, now))
                if segment is not None:
                    self._active.add(segment)
                    self._by_start[segment.start] = segment
                    return segment
                self.changed.wait(wait_s)
            return None

    def _from_free(self, source: int, now: float, whole: bool) -> Segment | None:
        if not self._free:
            return None
        start, stop = self._free[0]
        length = stop - start if whole else min(stop - start, self._length(source))
        if stop - start - length < _LEAST // 2:
            length = stop - start
        if start + length == stop:
            self._free.pop(0)
        else:
            self._free[0] = (start + length, stop)
        return Segment(start, start + length, source, now)

    def _length(self, source: int) -> int:
        """Return how much to ask for: a share of what is left, and no more than the source brings soon."""
        left = sum(stop - start for start, stop in self._free)
        share = left // max(self.workers, 1)
        rate = self.pace(source).bytes_per_s
        if len(self.paces) > 1:
            return min(self._length_beside_others(source, left), self.largest)
        soon = max(int(rate * _AHEAD_S), _LEAST) if rate else self.largest
        return min(max(share, _LEAST), soon, self.largest)

    def _length_beside_others(self, source: int, left: int) -> int:
        """Return what a source brings in half the time that the others need for the rest, so that none holds it up."""
        rate = self.pace(source).bytes_per_s
        if not rate:
            return _LEAST
        each = max(self.workers // len(self.paces), 1)
        together = sum(pace.bytes_per_s for pace in self.paces.values()) * each
        return max(int(rate * min(_AHEAD_S, left / together / 2)), _LEAST_TAKEN_OVER)

    def _take_over(self, source: int, now: float) -> Segment | None:
        """Take the end of the range that would last longest, where this source would be done earlier."""
        best: tuple[float, Segment] | None = None
        for segment in self._active:
            left = segment.stop - segment.claimed
            is_stalled = now - segment.last > self.stalled_s
            if left < 1:
                continue
            rate = self._rate(segment, now)
            if not rate and not is_stalled:
                continue  # too fresh to be judged
            needs_s = float("inf") if is_stalled else left / rate
            if left < _LEAST_TAKEN_OVER and needs_s < self.stalled_s:
                continue
            if best is None or needs_s > best[0]:
                best = (needs_s, segment)
        if best is None:
            return None
        needs_s, slow = best
        pace = self.pace(source)
        mine = self._expected(source, now)
        left = slow.stop - slow.claimed
        if needs_s == float("inf"):
            split = slow.claimed
            self.silent[slow.source] += 1
        else:
            theirs = self._rate(slow, now)
            split = slow.claimed + int(left * theirs / (theirs + mine))
            # Not worth a request when the owner is nearly as fast.
            takes_s = (slow.stop - split) / mine + 2 * pace.latency_s + 0.05
            if needs_s < takes_s * (1 if left >= _LEAST_TAKEN_OVER else _MUCH):
                return None
        taken = Segment(split, slow.stop, source, now)
        slow.stop = split
        if split == slow.start:  # it brought nothing: its place is taken as a whole
            self._active.discard(slow)
        if slow.body is not None and split <= slow.claimed:
            slow.body.interrupt()
        return taken

    def _rate(self, segment: Segment, now: float) -> float:
        """Return how fast a range comes; before its first bytes, how fast those of its source did."""
        brought = segment.pos - segment.start
        return segment.bytes_per_s(now) if brought else self.pace(segment.source).bytes_per_s

    def connections(self, source: int) -> int:
        """Return how many ranges of a source are on their way."""
        with self.changed:
            return sum(each.source == source for each in self._active)

    def _expected(self, source: int, now: float) -> float:
        """Return how fast another range of a source should come."""
        known = self.pace(source).bytes_per_s
        if known:
            return known
        rates = [each.bytes_per_s(now) for each in self._active if each.source == source and each.pos > each.start]
        return max(rates, default=0.0) or _UNTRIED_BYTES_PER_S

    def claim(self, segment: Segment, count: int) -> int:
        """Return how many of the bytes that came are still the connection's own to write.

        Nobody takes over those: bytes that were digested already must not be written once more by a slower one.
        """
        with self.changed:
            mine = max(min(count, segment.stop - segment.pos), 0)
            segment.claimed = segment.pos + mine
            return mine

    def progressed(self, segment: Segment, pos: int) -> None:
        """Note that bytes up to `pos` are on disk."""
        segment.reach(pos, self.clock())
        if segment.start <= self.front < pos:
            with self.changed:
                self._advance()
                self.changed.notify_all()

    def finish(self, segment: Segment) -> None:
        """Give a range back; what was not brought of it is free again."""
        with self.changed:
            if segment in self._active:
                self._active.discard(segment)
                seconds = max(segment.last - segment.since, 0.0)
                brought = segment.pos - segment.start
                if brought >= _LEAST_TAKEN_OVER or (brought and seconds >= _RECENT_S):
                    self.pace(segment.source).note(brought, seconds)
                if segment.pos < segment.stop:
                    self._free.append((segment.pos, segment.stop))
                    self._free.sort()
                    segment.stop = segment.pos
                    if segment.pos == segment.start:
                        self._by_start.pop(segment.start, None)
            self._advance()
            self.changed.notify_all()

    def extend(self, segment: Segment) -> bool:
        """Let a range grow over what is free behind it, up to the next one that is taken; tell whether it grew."""
        with self.changed:
            before = segment.stop
            for start, stop in list(self._free):
                if start == segment.stop and segment in self._active:  # else another one has its place by now
                    self._free.remove((start, stop))
                    segment.stop = stop
            return segment.stop > before

    def stop_all(self) -> None:
        """End every wait and every read."""
        with self.changed:
            self.over = True
            bodies = [segment.body for segment in self._active if segment.body is not None]
            self.changed.notify_all()
        for body in bodies:
            body.interrupt()

    @property
    def complete(self) -> bool:
        return self.front >= self.size_bytes

    def on_disk(self) -> list[tuple[int, int]]:
        """Return the ranges that are on disk."""
        with self.changed:
            return coalesced((each.start, min(each.pos, each.stop)) for each in self._by_start.values())

    @property
    def on_disk_bytes(self) -> int:
        return sum(stop - start for start, stop in self.on_disk())

    def brought_by(self) -> list[tuple[int, int, int]]:
        """Return (start, stop, source) of everything on disk."""
        with self.changed:
            return sorted((each.start, min(each.pos, each.stop), each.source) for each in self._by_start.values())

    def _advance(self) -> None:
        at = self.front
        # The segment that holds the front starts at or before it; those behind follow one another by their starts.
        segment = self._by_start.get(at) or self._holding(at)
        while segment is not None:
            at = max(at, min(segment.pos, segment.stop))
            if segment.pos < segment.stop:
                break
            segment = self._by_start.get(segment.stop)
        self.front = at

    def _holding(self, at: int) -> Segment | None:
        return next((each for each in self._by_start.values() if each.start <= at < each.stop), None)


def coalesced(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges sorted, with those that touch made one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged
