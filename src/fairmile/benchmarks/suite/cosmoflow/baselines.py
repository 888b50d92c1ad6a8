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
    found = spectra(counts)
    columns = [np.log(found.power + 1e-12).reshape(len(counts), -1)]
    for part in np.array_split(np.arange(len(counts)), max(len(counts) // 64, 1)):
        columns.append(_moments(np.log1p(counts[part].astype(np.float64))))
    return np.concatenate([columns[0], np.concatenate(columns[1:])], axis=1)


def _moments(field: Array) -> Array:
    """Return mean, deviation, skewness and excess of each redshift, and how redshifts correlate."""
    flat = field.reshape(len(field), -1, field.shape[-1])
    mean, deviation = flat.mean(1), flat.std(1)
    normed = (flat - mean[:, None]) / np.maximum(deviation, 1e-9)[:, None]
    pairs = (normed.transpose(0, 2, 1) @ normed)[:, *np.triu_indices(field.shape[-1], 1)] / flat.shape[1]
    squared = normed * normed
    return np.concatenate([mean, deviation, (squared * normed).mean(1), (squared * squared).mean(1), pairs], axis=1)


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
