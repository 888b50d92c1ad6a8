"""Sets of moments are exact: each operation does to intervals what sets of whole numbers say."""

from __future__ import annotations

import random

import numpy as np
from cases import for_each

from fairmile.traces.intervals import Spans, nothing, one, spans, union


def made(rng: random.Random, most: int = 12) -> tuple[Spans, set[int]]:
    pairs = [(rng.randrange(60), rng.randrange(60)) for _ in range(rng.randrange(most))]
    starts, ends = (np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))
    return spans(starts, ends), {moment for start, end in pairs for moment in range(start, end)}


def moments(found: Spans) -> set[int]:
    return {
        each
        for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True)
        for each in range(start, end)
    }


@for_each("seed", range(60))
def test_every_operation_does_what_sets_of_numbers_do(seed: int) -> None:
    rng = random.Random(seed)
    (left, one_side), (right, other) = made(rng), made(rng)
    assert moments(left) == one_side
    assert moments(left | right) == one_side | other
    assert moments(left & right) == one_side & other
    assert moments(left - right) == one_side - other
    assert left.length_ns == len(one_side)
    assert moments(union([left, right, left])) == one_side | other


@for_each("seed", range(20))
def test_lengths_within_windows_are_counted_to_the_nanosecond(seed: int) -> None:
    rng = random.Random(seed)
    found, expected = made(rng)
    starts = np.array([rng.randrange(-5, 60) for _ in range(20)], np.int64)
    ends = starts + np.array([rng.randrange(0, 30) for _ in range(20)], np.int64)
    lengths = found.within(starts, ends).tolist()
    assert lengths == [len(expected & set(range(a, b))) for a, b in zip(starts, ends, strict=True)]
    at = np.arange(-3, 65)
    assert found.covers(at).tolist() == [moment in expected for moment in at.tolist()]


def test_a_set_is_kept_as_few_intervals_that_do_not_touch() -> None:
    found = spans(np.array([5, 0, 3, 20]), np.array([8, 3, 5, 20]))
    assert found.starts.tolist() == [0] and found.ends.tolist() == [8]


def test_an_interval_that_ends_before_it_starts_counts_nothing() -> None:
    assert spans(np.array([10]), np.array([4])).length_ns == 0


def test_nothing_combines_with_everything() -> None:
    whole = one(0, 10)
    assert (whole & nothing()).length_ns == 0
    assert (whole - nothing()).length_ns == 10
    assert (nothing() - whole).length_ns == 0
    assert union([]).length_ns == 0


def test_times_since_the_epoch_lose_no_nanosecond() -> None:
    now = 1_790_857_026_123_456_789
    assert (one(now, now + 10) - one(now + 3, now + 4)).length_ns == 9
