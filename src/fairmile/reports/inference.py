"""What repeats tell: a mean with its confidence interval, a difference with its own, and what noise alone could do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fairmile.base.distributions import t_cdf, t_quantile
from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

CONFIDENCE = 0.95
ANY = (-math.inf, math.inf)  # bounds of a quantity that has none
_FEWEST_DEGREES = 2.0  # of freedom behind the interval of a difference; fewer say next to nothing of it


@dataclass(frozen=True)
class Estimate:
    """What some values say about the mean behind them.

    `low` and `high` are the confidence interval of the mean within the bounds of the quantity: no time is negative, no
    accuracy above 1. Few values have none, as it could be wider than the values themselves: at 95 % that is fewer than
    seven. These are kept in `values`. One value has no `sd`. `not_finite` counts values that are NaN or infinite; they
    are in no number here, so whoever shows the mean says how many.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    count: int
    confidence: float = CONFIDENCE
    not_finite: int = 0
    least: float | None = None
    largest: float | None = None
    values: tuple[float, ...] = ()

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None where there is none, or where a bound of the quantity cuts it."""
        if self.low is None or self.high is None:
            return None
        below, above = self.mean - self.low, self.high - self.mean
        return above if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-12 * abs(self.mean)) else None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, or of few values the least and the largest; None where one value says nothing of others."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        return (
            (self.least, self.largest)
            if self.count > 1 and self.least is not None and self.largest is not None
            else None
        )


@dataclass(frozen=True)
class Noise:
    """The standard deviation of repeats about the means of their groups, where several groups share it."""

    sd: float
    degrees: int


@dataclass(frozen=True)
class Effect:
    """How far a mean lies from another: second minus first, each number with its confidence interval.

    `relative` is the difference as a fraction of the first mean's size, with Fieller's interval, which holds zero
    exactly when `low … high` does; it is None where the first mean is zero or next to it, and its interval where that
    mean cannot be told from zero. `g` is Hedges' g, the difference in pooled standard deviations; None where nothing
    varies. `p` is the chance that noise alone gives so large a difference. Intervals are None where two values on a
    side leave too little to tell them.
    """

    difference: float
    low: float | None
    high: float | None
    relative: float | None
    relative_low: float | None
    relative_high: float | None
    g: float | None
    g_low: float | None
    g_high: float | None
    p: float
    degrees: float
    confidence: float = CONFIDENCE


def estimate(values: Sequence[float], *, confidence: float = CONFIDENCE, bounds: tuple[float, float] = ANY) -> Estimate:
    """Return mean, standard deviation and the t confidence interval of the mean within the bounds of the quantity.

    The mean of bounded values lies within the bounds, so cutting the interval there leaves its confidence as it is.
    """
    _check(confidence)
    finite = [float(value) for value in values if math.isfinite(value)]
    left_out = len(values) - len(finite)
    if not finite:
        return Estimate(math.nan, None, None, None, 0, confidence, left_out)
    mean = _mean(finite)
    if len(finite) == 1:
        return Estimate(mean, None, None, None, 1, confidence, left_out, mean, mean, tuple(finite))
    sd, ends = _sd(finite, mean), (min(finite), max(finite))
    if not has_interval(len(finite), confidence):
        return Estimate(mean, sd, None, None, len(finite), confidence, left_out, *ends, tuple(finite))
    half = t_quantile((1 + confidence) / 2, len(finite) - 1) * sd / math.sqrt(len(finite))
    low, high = max(mean - half, min(bounds[0], mean)), min(mean + half, max(bounds[1], mean))
    return Estimate(mean, sd, low, high, len(finite), confidence, left_out, *ends)


def has_interval(count: int, confidence: float = CONFIDENCE) -> bool:
    """Tell whether so many values have an interval: one that is never wider than the values themselves."""
    if count < 2:
        return False
    # The spread is largest where one half of the values lies at one end and the rest at the other.
    half = count // 2
    largest_sd = math.sqrt(half * (count - half) / (count * (count - 1)))
    return 2 * t_quantile((1 + confidence) / 2, count - 1) * largest_sd / math.sqrt(count) <= 1


def effect(first: Estimate, second: Estimate, *, noise: Noise | None = None, is_positive: bool = False) -> Effect:
    """Return how far `second` lies from `first`, by Welch's t: the variances need not be equal.

    With `noise` that is the standard deviation of both. What is positive cannot fall by more than all of it.
    """
    sds = (noise.sd, noise.sd) if noise else (first.sd, second.sd)
    if sds[0] is None or sds[1] is None:
        raise UsageError("a difference needs at least two values on each side")
    confidence = min(first.confidence, second.confidence)
    # A spread in the last digits of a float is none. In units of the rest no square overflows or vanishes.
    least = 1e-12 * max(abs(first.mean), abs(second.mean))
    spread_a, spread_b = (sd if sd > least else 0.0 for sd in (sds[0], sds[1]))
    scale = max(spread_a, spread_b) or least / 1e-12 or 1.0
    a, b = first.mean / scale, second.mean / scale
    variance_a, variance_b = (spread_a / scale) ** 2 / first.count, (spread_b / scale) ** 2 / second.count
    variance = variance_a + variance_b
    degrees = float(noise.degrees if noise else first.count + second.count - 2)
    t, p = 0.0, 1.0 if abs(second.mean - first.mean) <= least else 0.0
    if variance:
        if noise is None:
            degrees = variance**2 / (variance_a**2 / (first.count - 1) + variance_b**2 / (second.count - 1))
            degrees = max(degrees, min(first.count, second.count) - 1.0)  # never less, but for rounding
        t = t_quantile((1 + confidence) / 2, degrees)
        p = min(1.0, 2 * t_cdf(-abs(b - a) / math.sqrt(variance), degrees))
    half = t * math.sqrt(variance)
    relative, low, high = _relative(a, b, variance_a, variance_b, t)
    made = Effect(
        (b - a) * scale,
        (b - a - half) * scale,
        (b - a + half) * scale,
        relative,
        max(low, -1.0) if low is not None and is_positive else low,
        high,
        *_hedges(first, second, b - a, spread_a / scale, spread_b / scale, degrees if noise else None),
        p,
        degrees,
        confidence,
    )
    if not variance or degrees >= _FEWEST_DEGREES:
        return made
    return replace(made, low=None, high=None, relative_low=None, relative_high=None, g_low=None, g_high=None)


def holm(chances: Sequence[float]) -> list[float]:
    """Return chances made larger for having looked so often, by Holm's step-down rule, in the order given."""
    adjusted, largest = [1.0] * len(chances), 0.0
    for rank, at in enumerate(sorted(range(len(chances)), key=lambda at: chances[at])):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[at]))
        adjusted[at] = largest
    return adjusted


def _check(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UsageError(
            f"the confidence level is {confidence:g}, expected a number between 0 and 1", hint="write 0.95 for 95 %"
        )


def _mean(values: Sequence[float]) -> float:
    mean = math.fsum(each / len(values) for each in values)  # a plain sum could overflow
    return min(max(mean, min(values)), max(values))


def _sd(values: Sequence[float], mean: float) -> float:
    scale = max(abs(value - mean) for value in values)
    if scale == 0 or math.isinf(scale):
        return scale
    return scale * math.sqrt(math.fsum(((value - mean) / scale) ** 2 for value in values) / (len(values) - 1))


def _relative(
    a: float, b: float, variance_a: float, variance_b: float, t: float
) -> tuple[float | None, float | None, float | None]:
    """Return (b - a)/|a| with the interval of Fieller's theorem for the ratio of two means."""
    relative = (b - a) / abs(a) if a else math.inf
    if math.isinf(relative):
        return None, None, None
    # Errors are taken in units of the first mean before they are squared: a square of that mean could vanish.
    error_a, error_b, ratio = t * math.sqrt(variance_a) / a, t * math.sqrt(variance_b) / a, b / a
    spread = error_a * error_a
    if spread >= 1:  # the first mean might be zero: any ratio is possible
        return relative, None, None
    root = math.hypot(math.sqrt(1 - spread) * error_b, error_a * ratio)
    ends = sorted(math.copysign(1, a) * ((ratio + sign * root) / (1 - spread) - 1) for sign in (-1, 1))
    return (relative, ends[0], ends[1]) if math.isfinite(ends[1] - ends[0]) else (relative, None, None)


def _hedges(
    first: Estimate, second: Estimate, difference: float, sd_a: float, sd_b: float, shared: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return Hedges' g with the interval of its large-sample variance."""
    count, degrees = first.count + second.count, shared or first.count + second.count - 2
    pooled = sd_a
    if shared is None:
        pooled = math.sqrt(((first.count - 1) * sd_a**2 + (second.count - 1) * sd_b**2) / degrees)
    if pooled == 0:
        return None, None, None
    # The gamma functions say exactly what 1 - 3/(4·df - 1) says nearly: small samples overstate the effect.
    correction = math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees - 1) / 2)) / math.sqrt(degrees / 2)
    g = correction * difference / pooled
    error = math.sqrt(count / (first.count * second.count) + g * g / (2 * count))
    half = t_quantile((1 + min(first.confidence, second.confidence)) / 2, degrees) * error
    return g, g - half, g + half
