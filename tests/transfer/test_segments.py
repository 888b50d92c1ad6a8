"""Who brings which bytes: every byte is handed out, none is lost, none is written twice, and it always ends."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import dataclass

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairmile.transfer.segments import Pace, Segment, Segments, coalesced

KIB = 1 << 10
MIB = 1 << 20


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class WouldWait(Exception):
    """Nothing can be handed out now."""


class Impatient(threading.Condition):
    """Raises instead of waiting, so that a test goes on."""

    def wait(self, timeout: float | None = None) -> bool:
        raise WouldWait


def impatient(size: int, clock: Clock | None = None, **more: object) -> Segments:
    return Segments(size, clock or Clock(), changed=Impatient(), **more)  # type: ignore[arg-type]


def taken(segments: Segments, source: int = 0, *, whole: bool = False) -> tuple[int, int]:
    segment = segments.take(source, whole=whole)
    assert segment is not None
    return segment.start, segment.stop


class Body:
    """A body that only knows whether it was interrupted."""

    def __init__(self) -> None:
        self.interrupted = 0

    def interrupt(self) -> None:
        self.interrupted += 1


# Handing out


def test_ranges_are_handed_out_from_the_beginning_without_gaps() -> None:
    segments = impatient(10 * MIB, workers=4)
    at = 0
    with pytest.raises(WouldWait):
        while True:
            start, stop = taken(segments)
            assert start == at
            at = stop
    assert at == 10 * MIB


def test_no_range_is_larger_than_asked_for_nor_a_small_rest_left() -> None:
    segments = impatient(100 * MIB + 1, workers=2, largest=8 * MIB)
    sizes = []
    with pytest.raises(WouldWait):
        while True:
            start, stop = taken(segments)
            sizes.append(stop - start)
    assert max(sizes) <= 8 * MIB + MIB // 2
    assert min(sizes) >= MIB // 2


def test_ranges_become_smaller_towards_the_end_so_that_all_end_together() -> None:
    segments = impatient(64 * MIB, workers=4)
    sizes = [stop - start for start, stop in (taken(segments) for _ in range(10))]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[-1]


def test_a_slow_source_gets_small_ranges() -> None:
    segments = impatient(200 * MIB, workers=2)
    segments.pace(0).note(100 * MIB, 1.0)
    segments.pace(1).note(300 * KIB, 1.0)
    fast, slow = taken(segments, 0), taken(segments, 1)
    assert fast[1] - fast[0] > 10 * (slow[1] - slow[0])


def test_what_is_there_is_not_handed_out() -> None:
    done = [(0, 2 * MIB), (5 * MIB, 6 * MIB)]
    segments = impatient(8 * MIB, done=done, workers=100)
    assert segments.front == 2 * MIB
    got = []
    with pytest.raises(WouldWait):
        while True:
            got.append(taken(segments))
    assert coalesced(got) == [(2 * MIB, 5 * MIB), (6 * MIB, 8 * MIB)]


def test_all_of_a_gap_is_given_to_a_source_that_cannot_send_parts() -> None:
    segments = impatient(50 * MIB, done=[(20 * MIB, 30 * MIB)], workers=16)
    assert taken(segments, whole=True) == (0, 20 * MIB)
    assert taken(segments, whole=True) == (30 * MIB, 50 * MIB)


def test_when_all_is_there_nobody_gets_anything() -> None:
    assert impatient(0).take(0) is None
    assert impatient(5, done=[(0, 5)]).take(0) is None
    segments = impatient(5)
    segment = segments.take(0)
    assert segment is not None
    segments.progressed(segment, 5)
    segments.finish(segment)
    assert segments.complete
    assert segments.take(0) is None


def test_when_it_is_over_nobody_gets_anything_and_every_reader_is_woken_up() -> None:
    segments = impatient(50 * MIB, workers=4)
    bodies = []
    for _ in range(3):
        segment = segments.take(0)
        assert segment is not None
        segment.body = Body()
        bodies.append(segment.body)
    segments.stop_all()
    assert [body.interrupted for body in bodies] == [1, 1, 1]
    assert segments.take(0) is None


def test_somebody_who_waits_gets_what_another_gives_back() -> None:
    segments = Segments(MIB, Clock())
    first = segments.take(0)
    assert first is not None
    got: list[Segment | None] = []
    waiter = threading.Thread(target=lambda: got.append(segments.take(0, wait_s=60)))
    waiter.start()
    segments.progressed(first, 300 * KIB)
    segments.finish(first)
    waiter.join(20)
    assert [(each.start, each.stop) for each in got if each] == [(300 * KIB, MIB)]


def test_somebody_who_waits_goes_home_when_all_is_there() -> None:
    segments = Segments(MIB, Clock())
    first = segments.take(0)
    assert first is not None
    got: list[Segment | None] = []
    waiter = threading.Thread(target=lambda: got.append(segments.take(0, wait_s=60)))
    waiter.start()
    segments.progressed(first, MIB)
    segments.finish(first)
    waiter.join(20)
    assert got == [None]


# The front


def test_the_front_is_how_far_all_is_there() -> None:
    segments = impatient(8 * MIB, workers=4)
    one, two, three = (segments.take(0) for _ in range(3))
    assert one and two and three
    segments.progressed(two, two.stop)
    assert segments.front == 0
    segments.progressed(one, 5)
    assert segments.front == 5
    segments.progressed(one, one.stop)
    assert segments.front == two.stop
    segments.progressed(three, three.start + 7)
    assert segments.front == three.start + 7


def test_the_front_goes_over_what_was_there() -> None:
    segments = impatient(8 * MIB, done=[(MIB, 2 * MIB)], workers=100)
    first = segments.take(0)
    assert first is not None
    assert (first.start, first.stop) == (0, MIB)
    segments.progressed(first, MIB)
    assert segments.front == 2 * MIB


# Giving back


def test_what_was_not_brought_is_handed_out_again() -> None:
    segments = impatient(MIB)
    first = segments.take(0)
    assert first is not None
    segments.progressed(first, 100)
    segments.finish(first)
    assert taken(segments) == (100, MIB)
    assert segments.on_disk() == [(0, 100)]


def test_a_range_of_which_nothing_came_leaves_no_trace() -> None:
    segments = impatient(MIB)
    first = segments.take(0)
    assert first is not None
    segments.finish(first)
    assert segments.on_disk() == []
    assert taken(segments) == (0, MIB)


def test_a_range_that_grows_takes_what_is_free_behind_it() -> None:
    segments = impatient(50 * MIB, done=[(40 * MIB, 41 * MIB)], workers=8)
    segment = segments.take(0)
    assert segment is not None
    segments.extend(segment)
    assert (segment.start, segment.stop) == (0, 40 * MIB)
    other = segments.take(0)
    assert other is not None
    assert other.start == 41 * MIB


# Taking over


def stalled(segments: Segments, clock: Clock, came: int) -> tuple[Segment, Body]:
    segment = segments.take(0)
    assert segment is not None
    segment.body = body = Body()
    segments.claim(segment, came)
    segments.progressed(segment, segment.start + came)
    clock.now += 3.0
    return segment, body


@pytest.mark.parametrize("came", [0, 1, 300 * KIB])
def test_a_connection_that_fell_silent_is_taken_over_whole_and_woken_up(came: int) -> None:
    clock = Clock()
    segments = impatient(MIB, clock)
    slow, body = stalled(segments, clock, came)
    assert taken(segments, 1) == (came, MIB)
    assert slow.stop == came
    assert body.interrupted == 1
    assert segments.silent == {0: 1}


def test_what_a_silent_connection_still_sends_is_not_its_own_any_more() -> None:
    clock = Clock()
    segments = impatient(MIB, clock)
    slow, _ = stalled(segments, clock, 1000)
    segments.take(1)
    assert segments.claim(slow, 5000) == 0
    segments.finish(slow)
    assert segments.on_disk() == [(0, 1000)]


def test_bytes_on_their_way_to_the_disk_are_not_taken_over() -> None:
    clock = Clock()
    segments = impatient(MIB, clock)
    slow, _ = stalled(segments, clock, 1000)
    assert segments.claim(slow, 5000) == 5000  # now the disk is slow
    assert taken(segments, 1) == (6000, MIB)
    segments.progressed(slow, 6000)
    segments.finish(slow)
    assert segments.on_disk() == [(0, 6000)]
    assert segments.front == 6000


def test_the_fast_source_takes_the_larger_part_of_a_slow_tail() -> None:
    clock = Clock()
    segments = impatient(10 * MIB, clock, largest=100 * MIB)
    segments.pace(1).note(9 * MIB, 1.0)
    slow = segments.take(0)
    assert slow is not None
    slow.body = body = Body()
    segments.extend(slow)
    clock.now += 1.0
    segments.claim(slow, MIB)
    segments.progressed(slow, MIB)
    start, stop = taken(segments, 1)
    assert stop == 10 * MIB
    assert start - MIB == pytest.approx(0.9 * MIB, rel=0.01)
    assert slow.stop == start
    assert body.interrupted == 0, "it has still something to bring"


def test_a_tail_is_left_to_its_owner_where_another_would_not_be_earlier() -> None:
    clock = Clock()
    segments = impatient(2 * MIB, clock)
    segments.pace(1).note(MIB, 1.0)
    segments.pace(1).latency_s = 5.0
    slow = segments.take(0)
    assert slow is not None
    segments.extend(slow)
    clock.now += 1.0
    segments.progressed(slow, MIB)
    with pytest.raises(WouldWait):
        segments.take(1)


def test_a_range_that_was_just_asked_for_is_not_taken_over() -> None:
    clock = Clock()
    segments = impatient(MIB, clock)
    segments.pace(1).note(100 * MIB, 1.0)
    segments.take(0)
    clock.now += 0.5
    with pytest.raises(WouldWait):
        segments.take(1)


def test_a_range_whose_place_was_taken_does_not_grow_any_more() -> None:
    clock = Clock()
    segments = impatient(8 * MIB, clock)
    slow, _ = stalled(segments, clock, 0)
    segments.extend(slow)
    slow.stop = 8 * MIB
    other = segments.take(1)
    assert other is not None
    segments.finish(other)  # given back: free once more
    segments.extend(slow)
    assert slow.stop == slow.start
    assert taken(segments, 1)[0] == 0


# Paces and ranges


def test_a_pace_follows_what_was_seen_last() -> None:
    pace = Pace()
    pace.note(100, 1.0)
    assert pace.bytes_per_s == 100
    for _ in range(20):
        pace.note(1000, 1.0)
    assert pace.bytes_per_s == pytest.approx(1000, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))))
def test_ranges_that_touch_become_one(ranges: list[tuple[int, int]]) -> None:
    merged = coalesced(ranges)
    assert {at for start, stop in merged for at in range(start, stop)} == {
        at for start, stop in ranges for at in range(start, stop)
    }
    assert all(first[1] < second[0] for first, second in itertools.pairwise(merged))


# Everything at random


@dataclass
class Worker:
    """A connection: it has a range or none, and perhaps bytes between the network and the disk."""

    source: int
    segment: Segment | None = None
    claimed: int = 0


class Transfer(RuleBasedStateMachine):
    """Several sources with several connections each take, bring, fail, fall silent and are overtaken."""

    @initialize(
        size=st.integers(1, 6 * MIB),
        cuts=st.lists(st.integers(0, 6 * MIB), max_size=6),
        workers=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        largest=st.sampled_from([256 * KIB, MIB, 16 * MIB]),
    )
    def begin(self, size: int, cuts: list[int], workers: list[int], largest: int) -> None:
        edges = sorted({min(cut, size) for cut in cuts})
        done = list(zip(edges[::2], edges[1::2], strict=False))
        self.size = size
        self.clock = Clock()
        self.segments = impatient(size, self.clock, largest=largest, workers=len(workers), done=done)
        for source in set(workers):
            self.segments.pace(source)
        self.workers = [Worker(source) for source in workers]
        self.written = coalesced(done)  # ranges on disk
        self.fronts = [self.segments.front]

    def worker(self, number: int) -> Worker:
        return self.workers[number % len(self.workers)]

    def write(self, start: int, stop: int) -> None:
        for other_start, other_stop in self.written:
            assert stop <= other_start or start >= other_stop, "bytes on disk are written once more"
        assert start >= self.segments.front, "bytes that were digested are written"
        self.written = coalesced([*self.written, (start, stop)])

    @rule(number=st.integers(0, 4), whole=st.booleans())
    def take(self, number: int, whole: bool) -> None:
        worker = self.worker(number)
        if worker.segment is not None:
            return
        try:
            segment = self.segments.take(worker.source, whole=whole)
        except WouldWait:
            return
        if segment is None:
            assert self.segments.complete
            return
        assert 0 <= segment.start < segment.stop <= self.size
        segment.body = Body()
        worker.segment = segment

    @rule(number=st.integers(0, 4), share=st.floats(0, 1), seconds=st.floats(0, 1))
    def receive(self, number: int, share: float, seconds: float) -> None:
        """Bytes come from the network; another connection may get its turn before they are on disk."""
        worker = self.worker(number)
        if worker.segment is None or worker.claimed:
            return
        self.clock.now += seconds
        segment = worker.segment
        room = segment.stop - segment.pos
        worker.claimed = self.segments.claim(segment, max(1, int(room * share))) if room else 0
        assert 0 <= worker.claimed <= room

    @rule(number=st.integers(0, 4))
    def land(self, number: int) -> None:
        worker = self.worker(number)
        if worker.segment is None or not worker.claimed:
            return
        segment = worker.segment
        pos = segment.pos + worker.claimed
        self.write(segment.pos, pos)
        self.segments.progressed(segment, pos)
        worker.claimed = 0
        if pos >= segment.stop:
            self.segments.finish(segment)
            worker.segment = None

    @rule(number=st.integers(0, 4))
    def give_up(self, number: int) -> None:
        """The connection breaks, or its range was taken over."""
        worker = self.worker(number)
        if worker.segment is not None and not worker.claimed:
            self.segments.finish(worker.segment)
            worker.segment = None

    @rule(number=st.integers(0, 4))
    def grow(self, number: int) -> None:
        worker = self.worker(number)
        if worker.segment is not None:
            self.segments.extend(worker.segment)

    @rule(seconds=st.sampled_from([0.1, 3.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    @precondition(lambda self: hasattr(self, "segments"))
    def end(self) -> None:
        """From any state on, one connection that works brings all the rest in few turns."""
        for number, worker in enumerate(self.workers):
            self.land(number)
            if worker.segment is not None:
                self.segments.finish(worker.segment)
                worker.segment = None
        for _ in range(200):
            segment = self.segments.take(0)
            if segment is None:
                break
            self.segments.claim(segment, segment.stop - segment.pos)
            self.write(segment.pos, segment.stop)
            self.clock.now += 0.01
            self.segments.progressed(segment, segment.stop)
            self.segments.finish(segment)
        assert self.segments.complete

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        if not hasattr(self, "segments"):
            return
        assert self.segments.on_disk() == self.written
        front = next((stop for start, stop in self.written if start == 0), 0)
        assert self.segments.front == front
        assert front >= self.fronts[-1]
        self.fronts.append(front)
        held = [
            (worker.segment.pos, worker.segment.stop)
            for worker in self.workers
            if worker.segment is not None and worker.segment.pos < worker.segment.stop
        ]
        free = list(self.segments._free)
        ranges = sorted([*held, *free, *self.written])
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(ranges)), "two own the same byte"
        assert coalesced(ranges) == [(0, self.size)], "a byte is nobody's"


def test_whatever_happens_every_byte_comes_once() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Transfer,
        settings=settings(
            max_examples=examples(150),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


# In real threads


@pytest.mark.parametrize("seed", range(3))
def test_threads_bring_every_byte_and_all_come_home(seed: int) -> None:
    size = 40 * MIB
    segments = Segments(size, Clock(), largest=MIB, workers=8)
    lock = threading.Lock()
    written: list[tuple[int, int]] = []
    dice = [random.Random(seed * 100 + number) for number in range(8)]

    def work(number: int) -> None:
        rng = dice[number]
        while (segment := segments.take(number % 3)) is not None:
            while segment.pos < segment.stop and rng.random() > 0.1:
                mine = segments.claim(segment, rng.randrange(1, 300 * KIB))
                with lock:
                    written.append((segment.pos, segment.pos + mine))
                segments.progressed(segment, segment.pos + mine)
            segments.finish(segment)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert sum(stop - start for start, stop in written) == size
    assert coalesced(written) == segments.on_disk() == [(0, size)]
