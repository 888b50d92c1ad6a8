"""Means with intervals, differences with intervals, and what noise can do."""

from __future__ import annotations

import math
import random

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.distributions import t_cdf
from fairmile.base.errors import UsageError
from fairmile.reports.inference import Noise, effect, estimate, has_interval, holm

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def test_the_interval_of_seven_values_is_the_one_worked_out_by_hand() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert (found.mean, found.sd, found.count) == (4.0, pytest.approx(math.sqrt(28 / 6)), 7)
    # 2.446912 × √(28/6) / √7
    assert found.half_width == pytest.approx(1.99790, abs=1e-5)
    assert found.low == pytest.approx(4 - 1.99790, abs=1e-5)
    assert found.values == ()


@for_each("count", range(2, 7))
def test_fewer_than_seven_values_are_kept_as_they_are_without_an_interval(count: int) -> None:
    values = tuple(float(at) for at in range(count))
    found = estimate(values)
    assert (found.low, found.high, found.half_width) == (None, None, None)
    assert (found.values, found.ends) == (values, (0.0, count - 1.0))


def test_more_confidence_needs_more_values() -> None:
    assert [has_interval(count, 0.95) for count in (1, 6, 7)] == [False, False, True]
    assert [has_interval(count, 0.99) for count in (7, 20)] == [False, True]


@given(st.lists(NUMBERS, min_size=2, max_size=12))
def test_no_interval_is_wider_than_the_values_lie_apart(values: list[float]) -> None:
    found = estimate(values)
    if found.low is not None and found.high is not None:
        assert found.high - found.low <= (max(values) - min(values)) * (1 + 1e-9)


def test_one_value_has_a_mean_and_no_interval() -> None:
    found = estimate([5.0])
    assert (found.mean, found.sd, found.low, found.high, found.half_width) == (5.0, None, None, None, None)


def test_nan_and_infinity_are_in_no_number_but_counted() -> None:
    found = estimate([1.0, math.nan, 3.0, math.inf])
    assert (found.mean, found.count, found.not_finite) == (2.0, 2, 2)


def test_only_nan_gives_no_mean() -> None:
    found = estimate([math.nan])
    assert math.isnan(found.mean)
    assert (found.count, found.not_finite) == (0, 1)


@for_each("confidence", [0.0, 1.0, 95.0, -0.5])
def test_a_confidence_outside_zero_to_one_is_refused(confidence: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        estimate([1.0, 2.0], confidence=confidence)


@given(st.lists(NUMBERS, min_size=7, max_size=30))
def test_a_mean_lies_among_its_values_and_in_its_interval(values: list[float]) -> None:
    found = estimate(values)
    assert found.low is not None and found.high is not None
    assert min(values) <= found.mean <= max(values)
    assert found.low <= found.mean <= found.high


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    chance = random.Random(7)
    hits = 0
    for _ in range(2000):
        found = estimate([chance.gauss(10, 2) for _ in range(7)])
        hits += (found.low or 0) <= 10 <= (found.high or 0)
    assert 0.935 < hits / 2000 < 0.965


def test_welch_gives_what_was_worked_out_by_hand() -> None:
    found = effect(estimate([1.0, 2.0, 3.0]), estimate([2.0, 4.0, 6.0]))
    assert found.difference == 2
    # Variances of the means 1/3 and 4/3: (5/3)² / ((1/9 + 16/9) / 2) degrees of freedom.
    assert found.degrees == pytest.approx(50 / 17)
    assert found.p == pytest.approx(2 * t_cdf(-2 / math.sqrt(5 / 3), 50 / 17))


def test_the_effect_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(3)
    a, b = [chance.gauss(10, 1) for _ in range(5)], [chance.gauss(12, 3) for _ in range(8)]
    theirs, ours = stats.ttest_ind(b, a, equal_var=False), effect(estimate(a), estimate(b))
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.degrees == pytest.approx(theirs.df, rel=1e-12)
    assert ours.low == pytest.approx(theirs.confidence_interval().low, rel=1e-9)


def test_hedges_g_is_the_difference_in_standard_deviations_less_the_bias_of_few_values() -> None:
    found = effect(estimate([1.0, 2.0, 3.0]), estimate([3.0, 4.0, 5.0]))
    # d = 2 with 4 degrees of freedom; the usual correction 1 - 3/(4·4 - 1) is 0.8.
    assert found.g == pytest.approx(2 * 0.8, rel=0.01)
    assert found.g_low is not None and found.g_high is not None
    assert found.g_low < 2 * 0.8 < found.g_high


def test_the_relative_difference_is_measured_from_the_size_of_the_first_mean() -> None:
    assert effect(estimate([9.0, 11.0]), estimate([14.0, 16.0])).relative == pytest.approx(0.5)
    assert effect(estimate([-9.0, -11.0]), estimate([-4.0, -6.0])).relative == pytest.approx(0.5)


@for_each("tiny", [1e-160, 1e-231, 5e-324])
def test_a_first_mean_next_to_zero_breaks_nothing(tiny: float) -> None:
    found = effect(estimate([tiny, tiny]), estimate([1.0, 2.0]))
    assert found.difference == 1.5
    assert found.relative is None or math.isfinite(found.relative)


def test_fiellers_interval_is_the_one_worked_out_by_hand() -> None:
    # Means 10 and 12 with variances of 1/3 each; 4 degrees of freedom, t = 2.776445, g = t²/300.
    found = effect(estimate([9.0, 10.0, 11.0]), estimate([11.0, 12.0, 13.0]))
    g = 2.776445**2 / 300
    middle, half = 1.2 / (1 - g), 2.776445 / 10 * math.sqrt(((1 - g) + 1.44) / 3) / (1 - g)
    assert (found.relative_low, found.relative_high) == pytest.approx((middle - half - 1, middle + half - 1), rel=1e-6)


def test_a_first_mean_that_may_be_zero_gives_no_relative_interval() -> None:
    found = effect(estimate([-1.0, 2.0]), estimate([5.0, 6.0]))
    assert found.relative is not None
    assert (found.relative_low, found.relative_high) == (None, None)
    assert effect(estimate([-1.0, 1.0]), estimate([5.0, 6.0])).relative is None


@given(
    st.lists(st.floats(1, 2), min_size=2, max_size=8),
    st.lists(st.floats(1, 2), min_size=2, max_size=8),
)
def test_both_intervals_of_a_difference_say_the_same_about_zero(a: list[float], b: list[float]) -> None:
    found = effect(estimate(a), estimate(b))
    if found.relative_low is None or found.relative_high is None or min(abs(found.low), abs(found.high)) < 1e-9:
        return
    assert (found.low < 0 < found.high) == (found.relative_low < 0 < found.relative_high)


def test_values_without_any_spread_differ_for_certain_or_not_at_all() -> None:
    assert effect(estimate([1.0, 1.0]), estimate([1.0, 1.0])).p == 1
    assert effect(estimate([1.0, 1.0]), estimate([2.0, 2.0])).p == 0
    assert effect(estimate([1.0, 1.0]), estimate([2.0, 2.0])).g is None


def test_a_difference_in_the_last_digit_of_a_float_is_none() -> None:
    assert effect(estimate([0.3, 0.3]), estimate([0.1 + 0.2, 0.1 + 0.2])).p == 1


@for_each("size", [1e-200, 1.0, 1e200])
def test_the_chance_does_not_depend_on_the_unit(size: float) -> None:
    found = effect(estimate([1 * size, 2 * size, 3 * size]), estimate([2 * size, 3 * size, 5 * size]))
    assert found.p == pytest.approx(effect(estimate([1.0, 2.0, 3.0]), estimate([2.0, 3.0, 5.0])).p)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=5),
    st.floats(1e-12, 1),
    st.integers(2, 5),
)
def test_the_degrees_of_freedom_lie_where_welch_puts_them(a: list[float], spread: float, count: int) -> None:
    found = effect(estimate(a), estimate([1 + spread * at for at in range(count)]))
    assert min(len(a), count) - 1 <= found.degrees <= len(a) + count - 2 + 1e-9


def test_a_difference_needs_two_values_on_either_side() -> None:
    with pytest.raises(UsageError, match="at least two values"):
        effect(estimate([1.0]), estimate([1.0, 2.0]))


def test_holm_makes_the_smallest_chance_the_largest_multiple() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_noise_alone_seldom_stands_out() -> None:
    chance = random.Random(11)
    found = [
        effect(*(estimate([chance.gauss(0, 1) for _ in range(4)]) for _ in range(2))).p < 0.05 for _ in range(2000)
    ]
    assert sum(found) / 2000 < 0.06


def test_a_difference_from_two_values_has_no_interval() -> None:
    few = effect(estimate([0.4, 0.6]), estimate([5.0, 5.01, 5.02]))
    assert few.degrees < 2 and few.low is few.relative_low is few.g_low is None
    assert 0 < few.p < 1, "the test stands all the same"


def test_an_interval_ends_where_the_quantity_does() -> None:
    values = [0.1, 0.2, 0.1, 0.2, 0.1, 0.1, 3.0]
    free, positive = estimate(values), estimate(values, bounds=(0.0, math.inf))
    assert free.low is not None and free.low < 0
    assert (positive.low, positive.high, positive.half_width) == (0.0, free.high, None)
    share = estimate([0.90, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0], bounds=(0.0, 1.0))
    assert share.high == 1.0 and share.low is not None and 0.9 < share.low < 1


def test_what_is_positive_falls_by_no_more_than_all_of_it() -> None:
    found = effect(estimate([1.0, 2.0, 1.5]), estimate([0.1, 1.4, 0.2]), is_positive=True)
    assert found.relative_low == -1.0


def test_shared_noise_is_the_spread_of_both_sides() -> None:
    one, other = estimate([1.0]), estimate([2.0])
    assert effect(one, other, noise=Noise(0.1, 20)).p < 0.001 < 0.5 < effect(one, other, noise=Noise(5.0, 20)).p
