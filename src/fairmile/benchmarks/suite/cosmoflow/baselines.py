"""What a network has to beat: the mean of the parameters, and a ridge regression on the power spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.suite.cosmoflow.universes import NAMES, spectra

Array = NDArray[Any]
PENALTIES = 10.0 ** np.arange(-2, 5)


def scores(predicted: Array, unit: Array) -> dict[str, float]:
    """Return the mean absolute error of normalised parameters, in all and by parameter, and the mean squared one."""
    error = np.asarray(predicted, np.float64) - np.asarray(unit, np.float64)
    by_name = {f"mae_{name.lower()}": float(value) for name, value in zip(NAMES, np.abs(error).mean(0), strict=True)}
    return {"mae": float(np.abs(error).mean()), **by_name, "mse": float(np.square(error).mean())}


@dataclass(frozen=True)
class Mean:
    """Predicts the mean of the training targets for every cube."""

    value: Array

    @classmethod
    def fit(cls, unit: Array) -> Mean:
        return cls(np.asarray(unit, np.float64).mean(0))

    def predict(self, many: int) -> Array:
        return np.tile(self.value, (many, 1))


def summarise(counts: Array) -> Array:
    """Return what cosmologists look at first of each cube: log P(k) and the moments of the logarithm of counts."""
    power = np.log(spectra(counts).power + 1e-12).reshape(len(counts), -1)
    return np.concatenate([power, [_moments(cube) for cube in counts]], axis=1)


def _moments(cube: Array) -> Array:
    """Return mean, deviation, skewness and excess of each redshift, and how redshifts correlate."""
    fields = np.ascontiguousarray(np.moveaxis(cube, -1, 0), dtype=np.float64).reshape(cube.shape[-1], -1)
    np.log1p(fields, out=fields)
    mean = fields.mean(1)
    fields -= mean[:, None]
    products = fields @ fields.T / fields.shape[1]
    deviation = np.sqrt(products.diagonal())
    scale = np.maximum(deviation, 1e-9)
    pairs = (products / np.outer(scale, scale))[np.triu_indices(len(fields), 1)]
    squared = fields * fields
    fields *= squared
    squared *= squared
    return np.concatenate([mean, deviation, fields.mean(1) / scale**3, squared.mean(1) / scale**4, pairs])


@dataclass(frozen=True)
class Ridge:
    """A linear model of summaries, its penalty chosen by leaving out one training cube at a time."""

    centre: Array
    scale: Array
    weights: Array
    offset: Array
    penalty: float

    @classmethod
    def fit(cls, summaries: Array, unit: Array) -> Ridge:
        centre, scale = summaries.mean(0), np.maximum(summaries.std(0), 1e-9)
        features = (summaries - centre) / scale
        offset = np.asarray(unit, np.float64).mean(0)
        left, singular, right = np.linalg.svd(features, full_matrices=False)
        target = unit - offset
        turned = left.T @ target
        best: tuple[float, float, Array] | None = None
        for penalty in PENALTIES:
            shrunk = singular**2 / (singular**2 + penalty)
            rest = target - left @ (shrunk[:, None] * turned)
            leverage = (left**2 * shrunk).sum(1) + 1 / len(unit)
            error = float(np.abs(rest / np.maximum(1 - leverage, 1e-3)[:, None]).mean())
            if best is None or error < best[0]:
                best = error, float(penalty), right.T @ ((singular / (singular**2 + penalty))[:, None] * turned)
        assert best is not None
        return cls(centre, scale, best[2], offset, best[1])

    def predict(self, summaries: Array) -> Array:
        return np.clip((summaries - self.centre) / self.scale @ self.weights + self.offset, -1, 1)
