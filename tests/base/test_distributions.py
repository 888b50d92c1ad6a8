from __future__ import annotations

import math

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.distributions import fit_line, normal_quantile, t_cdf, t_quantile
from fairmile.base.errors import UsageError

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values of Student's t distribution.
LEVELS = (0.90, 0.95, 0.975, 0.99, 0.995, 0.999)
PUBLISHED = {
    1: (3.078, 6.314, 12.706, 31.821, 63.657, 318.309),
    2: (1.886, 2.920, 4.303, 6.965, 9.925, 22.327),
    3: (1.638, 2.353, 3.182, 4.541, 5.841, 10.215),
    5: (1.476, 2.015, 2.571, 3.365, 4.032, 5.893),
    10: (1.372, 1.812, 2.228, 2.764, 3.169, 4.144),
    30: (1.310, 1.697, 2.042, 2.457, 2.750, 3.385),
    100: (1.290, 1.660, 1.984, 2.364, 2.626, 3.174),
    math.inf: (1.282, 1.645, 1.960, 2.326, 2.576, 3.090),
}
# The distributions with 1, 2 and 4 degrees of freedom can be turned round by hand.
CLOSED_P = (0.500001, 0.51, 0.6, 0.75, 0.9, 0.95, 0.975, 0.99, 0.999, 0.9999)
# fmt: off
NORRIS_X = [
    0.2, 337.4, 118.2, 884.6, 10.1, 226.5, 666.3, 996.3, 448.6, 777.0, 558.2, 0.4, 0.6, 775.5, 666.9, 338.0,
    447.5, 11.6, 556.0, 228.1, 995.8, 887.6, 120.2, 0.3, 0.3, 556.8, 339.1, 887.2, 999.0, 779.0, 11.1, 118.3,
    229.2, 669.1, 448.9, 0.5,
]
NORRIS_Y = [
    0.1, 338.8, 118.1, 888.0, 9.2, 228.1, 668.5, 998.5, 449.1, 778.9, 559.2, 0.3, 0.1, 778.1, 668.8, 339.3,
    448.9, 10.8, 557.7, 228.3, 998.0, 888.8, 119.6, 0.3, 0.6, 557.6, 339.3, 888.0, 998.5, 778.9, 10.2, 117.6,
    228.9, 668.4, 449.2, 0.2,
]
# fmt: on


def four_degrees(p: float) -> float:
    alpha = 4 * p * (1 - p)
    q = math.cos(math.acos(math.sqrt(alpha)) / 3) / math.sqrt(alpha)
    return 2 * math.sqrt(q - 1)


@for_each("degrees, row", PUBLISHED.items())
def test_t_quantiles_are_those_of_the_published_table(degrees: float, row: tuple[float, ...]) -> None:
    assert [round(t_quantile(p, degrees), 3) for p in LEVELS] == list(row)


@for_each("p", CLOSED_P)
def test_t_quantiles_agree_with_the_closed_forms(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9, abs=1e-12)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-9, abs=1e-12)
    assert t_quantile(p, 4) == pytest.approx(four_degrees(p), rel=1e-9, abs=1e-8)


# Computed with another program: scipy 1.17.1, scipy.stats.t.ppf.
@for_each(
    "p, degrees, value",
    [
        (0.975, 1.5, 6.016663104427929),
        (0.9, 2.7, 1.6881081751466425),
        (0.95, 7.25, 1.8847957180841028),
        (0.995, 13.5, 2.9938128907235795),
        (0.9999, 1.2, 866.2006155333052),
        (0.6, 55.5, 0.2545649682704952),
        (0.975, 1234.5, 1.9618874833313453),
        (0.9995, 3.3, 11.106695189933484),
    ],
)
def test_t_quantiles_are_right_between_whole_degrees(p: float, degrees: float, value: float) -> None:
    assert t_quantile(p, degrees) == pytest.approx(value, rel=1e-9)


@for_each("p", CLOSED_P)
@for_each("degrees", [1, 2.5, 7, 300, 1e6])
def test_the_lower_half_mirrors_the_upper(p: float, degrees: float) -> None:
    assert t_quantile(1 - p, degrees) == pytest.approx(-t_quantile(p, degrees), rel=1e-8)


def test_the_middle_is_zero() -> None:
    assert [t_quantile(0.5, degrees) for degrees in (1, 3.5, 1e4)] == [0, 0, 0]
    assert abs(t_quantile(0.5, 1e6)) < 1e-12


def test_where_the_method_changes_for_many_degrees_there_is_no_step() -> None:
    for p in CLOSED_P:
        below, above = t_quantile(p, 99_999.999), t_quantile(p, 100_000)
        assert below == pytest.approx(above, rel=1e-9, abs=1e-12)


@for_each("degrees, row", PUBLISHED.items())
def test_t_probabilities_are_those_of_the_published_table(degrees: float, row: tuple[float, ...]) -> None:
    assert [t_cdf(value, degrees) for value in row] == pytest.approx(LEVELS, abs=1e-4)


@for_each("t, chance", [(0.0, 0.5), (1.0, 0.75), (-1.0, 0.25), (math.inf, 1.0), (-math.inf, 0.0)])
def test_with_one_degree_of_freedom_it_is_the_cauchy_distribution(t: float, chance: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(chance, abs=1e-14)


# Computed with another program: scipy 1.17.1, scipy.stats.t.cdf.
@for_each(
    "t, degrees, chance",
    [
        (-10.0, 1000.0, 8.335351479300069e-23),
        (-30.0, 20.0, 2.0976126619998272e-18),
        (-6.0, 1000000.0, 9.86924906177215e-10),
        (-2.5, 3.7, 0.03591101145591339),
        (-9.0, 1000000000.0, 1.1285903025735607e-19),
    ],
)
def test_a_small_probability_is_as_right_as_a_large_one(t: float, degrees: float, chance: float) -> None:
    assert t_cdf(t, degrees) == pytest.approx(chance, rel=1e-8)


@given(t=st.floats(-50, 50), degrees=st.floats(1, 1e7))
def test_the_two_tails_mirror_each_other(t: float, degrees: float) -> None:
    assert t_cdf(t, degrees) + t_cdf(-t, degrees) == pytest.approx(1, abs=1e-12)


@given(chance=st.floats(0.001, 0.999), degrees=st.floats(1, 1e7))
def test_the_quantile_undoes_the_distribution(chance: float, degrees: float) -> None:
    assert t_cdf(t_quantile(chance, degrees), degrees) == pytest.approx(chance, abs=1e-9)


def test_a_probability_of_nan_is_refused() -> None:
    with pytest.raises(UsageError, match="NaN"):
        t_cdf(math.nan, 3)


def test_normal_quantiles_are_those_of_the_published_table() -> None:
    assert [round(normal_quantile(p), 3) for p in LEVELS] == [1.282, 1.645, 1.960, 2.326, 2.576, 3.090]
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054, abs=1e-12)


@for_each("p", [0, 1, -0.1, 1.5, math.nan])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(UsageError, match="not a probability"):
        t_quantile(p, 3)
    with pytest.raises(UsageError, match="not a probability"):
        normal_quantile(p)


@for_each("degrees", [0, 0.5, -1, math.nan])
def test_too_few_degrees_are_refused(degrees: float) -> None:
    with pytest.raises(UsageError, match="too few"):
        t_quantile(0.9, degrees)
    with pytest.raises(UsageError, match="too few"):
        t_cdf(1.0, degrees)


def test_a_line_through_points_that_lie_on_it_is_exact() -> None:
    line = fit_line([1, 2, 5], [5, 7, 13])
    assert (line.at_zero, line.slope, line.scatter) == pytest.approx((3, 2, 0), abs=1e-12)
    assert line.interval(10, 0.9) == pytest.approx((23, 23))
    assert line.slope_interval(0.9) == pytest.approx((2, 2))


def test_a_line_has_the_published_errors() -> None:
    # NIST StRD, linear regression, data set Norris: certified values.
    line = fit_line(NORRIS_X, NORRIS_Y)
    assert line.at_zero == pytest.approx(-0.262323073774029, rel=1e-9)
    assert line.slope == pytest.approx(1.00211681802045, rel=1e-11)
    assert line.scatter == pytest.approx(0.884796396144373, rel=1e-9)
    interval = line.slope_interval(0.9)
    assert interval is not None
    error = (interval[1] - interval[0]) / 2 / t_quantile(0.95, 34)
    assert error == pytest.approx(0.429796848199937e-3, rel=1e-9)


def test_a_point_of_weight_two_counts_like_two_points() -> None:
    once = fit_line([1, 2, 4], [1, 3, 4], [1, 2, 1])
    twice = fit_line([1, 2, 2, 4], [1, 3, 3, 4])
    assert (once.at_zero, once.slope) == pytest.approx((twice.at_zero, twice.slope))


def test_the_interval_of_a_new_point_is_that_of_the_textbook() -> None:
    # The mean of x is 2.5 and the sum of squares about it 5; the quantile of two degrees is 2.919986.
    line = fit_line([1, 2, 3, 4], [2.4, 4.3, 6.2, 8.5])
    assert (line.at_zero, line.slope) == pytest.approx((0.3, 2.02))
    scatter = math.sqrt(sum((y - 0.3 - 2.02 * x) ** 2 for x, y in ((1, 2.4), (2, 4.3), (3, 6.2), (4, 8.5))) / 2)
    width = 2.919986 * scatter * math.sqrt(1 + 1 / 4 + (6 - 2.5) ** 2 / 5)
    assert line.interval(6, 0.9) == pytest.approx((12.42 - width, 12.42 + width), rel=1e-6)


def test_two_points_tell_no_error() -> None:
    line = fit_line([2, 10], [4, 12])
    assert line.at(100) == pytest.approx(102)
    assert line.interval(100, 0.9) is None
    assert line.slope_interval(0.9) is None


def test_points_at_one_place_make_no_line() -> None:
    with pytest.raises(UsageError, match="two different x values"):
        fit_line([3, 3], [1, 2])
