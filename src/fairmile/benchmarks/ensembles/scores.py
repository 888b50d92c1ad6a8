"""Uncertainty of forecasts: fitted on one part of the samples, scored on the other; NumPy only.

A normal distribution about the mean of the members has the variance a² s² + b², with s the spread of the members.
`spread` takes a = 1 and b = 0, `constant` a = 0, `calibrated` the pair with the highest likelihood. `conformal` takes
the intervals of `calibrated` and widens them to what their coverage was on the calibration part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairmile.base.quick_dataclass import dataclass

Array = np.ndarray[Any, Any]

LEVELS = (0.5, 0.8, 0.9, 0.95)
_CURVE = tuple(np.linspace(0.05, 0.95, 19))
_RATIOS = np.concatenate(([0.0], np.logspace(-4, 4, 161), [np.inf]))
_BINS = 10
_FLOOR = 1e-12
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Scores:
    """What one way to state uncertainty scores on the test part."""

    values: Mapping[str, float]
    expected: Array  # of the reliability curve
    observed: Array
    loss: Array  # of each test sample, to compare two ways: CRPS or negative log-likelihood


def normal_quantile(level: float) -> float:
    """Return how many standard deviations to either side hold a part of a normal distribution."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle / math.sqrt(2)) < level else (low, middle)
    return (low + high) / 2


def fit_variance(error: Array, spread: Array) -> tuple[float, float]:
    """Return a² and b² with the highest likelihood of errors [N] under the variance a² spread² + b²."""
    squares, best = spread**2, (math.inf, 0.0, 0.0)
    for ratio in _RATIOS:
        shape = squares + _FLOOR if math.isinf(ratio) else 1 + ratio * squares
        scale = max(float(np.mean(error**2 / shape)), _FLOOR)
        cost = float(np.mean(np.log(scale * shape)) + np.mean(error**2 / (scale * shape)))
        if cost < best[0]:
            best = cost, *((scale, 0.0) if math.isinf(ratio) else (scale * ratio, scale))
    return best[1], best[2]


def crps(error: Array, sigma: Array) -> Array:
    """Return the continuous ranked probability score of normal distributions whose mean is off by `error`."""
    z = error / sigma
    below = np.asarray(_erf(z / math.sqrt(2)), np.float64)  # 2 Φ(z) - 1
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(sigma * (z * below + 2 * density - 1 / math.sqrt(math.pi)))


def score_normal(error: Array, sigma: Array, factors: Mapping[float, float] | None = None) -> Scores:
    """Return scores of normal distributions; `factors` replace the normal quantiles, by level."""
    sigma = np.maximum(sigma, _FLOOR)
    quantiles = {level: normal_quantile(level) for level in (*LEVELS, *_CURVE)} | dict(factors or {})
    ratio = np.abs(error) / sigma
    values = {f"coverage_{level * 100:.0f}": float(np.mean(ratio <= quantiles[level])) for level in LEVELS}
    values["width_90"] = float(2 * quantiles[0.9] * np.mean(sigma))
    loss = crps(error, sigma)
    if factors is None:
        values["crps"] = float(loss.mean())
        values["nll"] = float(np.mean(np.log(sigma) + ratio**2 / 2) + math.log(2 * math.pi) / 2)
    observed = np.array([np.mean(ratio <= quantiles[level]) for level in _CURVE])
    return Scores(values, np.array(_CURVE), observed, loss)


def conformal_factors(error: Array, sigma: Array) -> dict[float, float]:
    """Return by level how many sigma hold that part of the calibration errors, counted as for one more sample."""
    ratio = np.sort(np.abs(error) / np.maximum(sigma, _FLOOR))
    count = len(ratio)
    places = {level: min(count, math.ceil(level * (count + 1))) for level in (*LEVELS, *_CURVE)}
    return {level: float(ratio[place - 1]) for level, place in places.items()}


def fit_temperature(probabilities: Array, truth: Array) -> float:
    """Return the temperature with the highest likelihood of classes [N] under probabilities [N, C]."""
    candidates = np.logspace(-1.5, 1.5, 121)
    costs = [float(-np.log(_of_truth(with_temperature(probabilities, each), truth)).mean()) for each in candidates]
    return float(candidates[int(np.argmin(costs))])


def with_temperature(probabilities: Array, temperature: float) -> Array:
    """Return probabilities whose logarithms are divided by a temperature."""
    logits = np.log(np.maximum(probabilities, _FLOOR)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def score_classes(probabilities: Array, truth: Array) -> Scores:
    """Return scores of probabilities [N, C] of classes [N]."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    bins = np.array_split(np.argsort(confidence, kind="stable"), min(_BINS, len(truth)))
    expected = np.array([confidence[each].mean() for each in bins])
    observed = np.array([right[each].mean() for each in bins])
    share = np.array([len(each) for each in bins]) / len(truth)
    loss = -np.log(_of_truth(probabilities, truth))
    wanted = np.eye(probabilities.shape[1])[truth]
    values = {
        "accuracy": float(right.mean()),
        "nll": float(loss.mean()),
        "brier": float(((probabilities - wanted) ** 2).sum(axis=1).mean()),
        "ece": float((share * np.abs(expected - observed)).sum()),
        "confidence": float(confidence.mean()),
    }
    return Scores(values, expected, observed, loss)


def _of_truth(probabilities: Array, truth: Array) -> Array:
    return np.asarray(np.maximum(probabilities[np.arange(len(truth)), truth], _FLOOR))


def interval_of_mean(values: Array, groups: Array, seed: int = 0, draws: int = 400) -> tuple[float, float, float]:
    """Return the mean of values and its 95 % interval, from bootstrap draws of whole groups."""
    _, place = np.unique(groups, return_inverse=True)
    count = int(place.max()) + 1
    sums, sizes = np.bincount(place, values, count), np.bincount(place, minlength=count)
    drawn = np.random.default_rng(seed).integers(0, count, (draws, count))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)
