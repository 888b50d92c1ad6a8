"""The normal and Student's t distribution, middle and spread of values, a straight line with its error: no scipy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

_TINY = 1e-300
_MOST_TERMS = 10_000
_MOST_STEPS = 200
_MANY_DEGREES = 1e5  # from here on the expansion is better than the beta function, whose terms cancel


def normal_quantile(p: float) -> float:
    """Return the value below which a standard normal variable lies with probability `p`."""
    _check_probability(p)
    from statistics import NormalDist  # which loads fractions and random numbers

    return NormalDist().inv_cdf(p)


def median(values: Iterable[float]) -> float:
    """Return the middle of some values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def stdev(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values that were drawn from more.

    `statistics.stdev` computes with fractions, which takes ten times as long: each run asks for it.
    """
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def t_quantile(p: float, degrees: float) -> float:
    """Return the value below which a Student t variable with `degrees` of freedom lies with probability `p`.

    `degrees` is any number from 1, infinity included; the value is right to some nine digits.
    """
    _check_probability(p)
    _check_degrees(degrees)
    if degrees >= _MANY_DEGREES:
        z = normal_quantile(p)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    if p == 0.5:
        return 0.0
    return _upper_quantile(1 - p, degrees) if p > 0.5 else -_upper_quantile(p, degrees)


def t_cdf(t: float, degrees: float) -> float:
    """Return the probability that a Student t variable with `degrees` of freedom is at most `t`.

    A probability down to 1e-9 is right to some seven digits of its own.
    """
    _check_degrees(degrees)
    if math.isnan(t):
        raise UsageError("t is NaN")
    return 1 - _upper_tail(t, degrees) if t > 0 else _upper_tail(-t, degrees)


@dataclass(frozen=True)
class Line:
    """A straight line through points, and how well they lie on it.

    `scatter` is the standard deviation of a point of weight 1 about the line; it is 0 without a degree of freedom.
    """

    at_zero: float
    slope: float
    degrees: int
    scatter: float
    weight: float
    mean_x: float
    spread_x: float

    def at(self, x: float) -> float:
        return self.at_zero + self.slope * x

    def interval(self, x: float, level: float, *, weight: float = 1.0) -> tuple[float, float] | None:
        """Return where a new point of that weight lies with probability `level`; None where nothing tells."""
        if self.degrees < 1:
            return None
        share = 1 / weight + 1 / self.weight + (x - self.mean_x) ** 2 / self.spread_x
        width = t_quantile((1 + level) / 2, self.degrees) * self.scatter * math.sqrt(share)
        return self.at(x) - width, self.at(x) + width

    def slope_interval(self, level: float) -> tuple[float, float] | None:
        """Return where the true slope lies with confidence `level`; None where nothing tells."""
        if self.degrees < 1:
            return None
        width = t_quantile((1 + level) / 2, self.degrees) * self.scatter / math.sqrt(self.spread_x)
        return self.slope - width, self.slope + width


def fit_line(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float] | None = None) -> Line:
    """Return the line with the least sum of weighted squares; a weight is the inverse of a point's variance."""
    given = [1.0] * len(xs) if weights is None else weights
    if len(set(xs)) < 2:
        raise UsageError("a line needs points with two different x values")
    weight = math.fsum(given)
    mean_x = math.fsum(w * x for w, x in zip(given, xs, strict=True)) / weight
    mean_y = math.fsum(w * y for w, y in zip(given, ys, strict=True)) / weight
    spread_x = math.fsum(w * (x - mean_x) ** 2 for w, x in zip(given, xs, strict=True))
    slope = math.fsum(w * (x - mean_x) * (y - mean_y) for w, x, y in zip(given, xs, ys, strict=True)) / spread_x
    at_zero = mean_y - slope * mean_x
    left = math.fsum(w * (y - at_zero - slope * x) ** 2 for w, x, y in zip(given, xs, ys, strict=True))
    degrees = len(xs) - 2
    scatter = math.sqrt(left / degrees) if degrees else 0.0
    return Line(at_zero, slope, degrees, scatter, weight, mean_x, spread_x)


@lru_cache(maxsize=1024)
def _upper_quantile(tail: float, degrees: float) -> float:
    """Find t > 0 with P(T > t) = `tail` < 1/2: Newton's steps on log t, kept inside what encloses the answer."""
    low, high = -50.0, 50.0
    while _upper_tail(math.exp(high), degrees) > tail:
        high += 50
    log_t = math.log(max(_rough_upper_quantile(tail), 1e-6))
    for _ in range(_MOST_STEPS):
        t = math.exp(log_t)
        here = _upper_tail(t, degrees)
        low, high = (log_t, high) if here > tail else (low, log_t)
        # On a log-log scale the heavy tail of few degrees is nearly straight, so few steps are needed.
        slope = -_density(t, degrees) * t / here if here > 0 else 0.0
        step = math.log(tail / here) / slope if slope else math.inf
        following = log_t + step if low < log_t + step < high else (low + high) / 2
        if abs(following - log_t) < 1e-14 * max(1.0, abs(log_t)):
            return math.exp(following)
        log_t = following
    return math.exp(log_t)


def _rough_upper_quantile(tail: float) -> float:
    """Return where a standard normal variable has this tail < 1/2, wrong by up to 0.003.

    The formula is 26.2.22 of Abramowitz and Stegun, Handbook of Mathematical Functions (1964).
    """
    t = math.sqrt(-2 * math.log(tail))
    return t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t))


def _upper_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for t ≥ 0; nothing cancels, however small it is."""
    if degrees >= _MANY_DEGREES:
        return 0.5 * math.erfc(_as_normal(t, degrees) / math.sqrt(2))
    square = t * t
    if math.isinf(square):
        return 0.0
    return 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + square), square / (degrees + square))


def _as_normal(t: float, degrees: float) -> float:
    """Return the standard normal value with the same probability, right to the square of 1/degrees."""
    if math.isinf(degrees) or math.isinf(t):
        return t
    return t * (1 - 1 / (4 * degrees)) / math.sqrt(1 + t * t / (2 * degrees))  # Abramowitz and Stegun 26.7.8


def _density(t: float, degrees: float) -> float:
    log_front = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    return math.exp(log_front - (degrees + 1) / 2 * math.log1p(t * t / degrees))


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), where `rest` is 1 - x without its rounding error."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below the mean
        return 1 - _incomplete_beta(b, a, rest, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(log_front) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + …)), the continued fraction of I_x(a, b) (DLMF 8.17.22), by Lentz's method."""
    value, upper, lower = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / _nonzero(1 + d * lower)
        upper = _nonzero(1 + d / upper)
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value


def _nonzero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY


def _check_probability(p: float) -> None:
    if not 0 < p < 1:
        raise UsageError(f"{p} is not a probability between 0 and 1")


def _check_degrees(degrees: float) -> None:
    if not degrees >= 1:
        raise UsageError(f"{degrees} degrees of freedom are too few for a t distribution", hint="at least 1")
