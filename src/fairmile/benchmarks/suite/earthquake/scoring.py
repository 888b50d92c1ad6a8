"""The normalised Nash-Sutcliffe efficiency: NNSE = S / (S + D), 0.5 for the mean of what was observed, 1 for truth.

S is the sum of squares of what was observed about its mean, D that of the errors; NNSE = 1 / (2 - NSE).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.context import energy_of
from fairmile.benchmarks.suite.earthquake.features import quarter_energy
from fairmile.benchmarks.suite.earthquake.nomenclature import PARAMETERS

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.settings import Scale

Array = np.ndarray[Any, Any]

CHOICE = "nnse_all"  # by which the epoch is chosen, so that one training serves both leads


@dataclass(frozen=True)
class Nnse:
    """The efficiency of one target, in the ways in which it is averaged."""

    average: float  # mean over the locations of the efficiency of each
    summed: float  # of the series of sums over the locations
    overall: float  # of all locations and times taken as one series
    by_location: Array  # [L]; NaN where a location has fewer than two different observations


def nnse(observed: Array, predicted: Array) -> Array:
    """Return S / (S + D) along the last axis; what was not observed (NaN) takes no part in either.

    NaN where nothing varies, so that there is nothing to explain, and where a prediction is NaN.
    """
    spread = _spread(observed)
    known = ~np.isnan(observed)
    error = (np.where(known, np.where(known, observed, 0.0).astype(np.float64) - predicted, 0.0) ** 2).sum(axis=-1)
    varies = spread > 0
    return np.asarray(np.where(varies, spread / np.where(varies, spread + error, 1.0), np.nan))


def _spread(observed: Array) -> Array:
    """Return the sum of squares about the mean along the last axis; 0 where nothing varies."""
    known = ~np.isnan(observed)
    count = np.maximum(known.sum(axis=-1), 1)
    truth = np.where(known, observed, 0.0).astype(np.float64)
    mean = truth.sum(axis=-1) / count
    spread = (np.where(known, truth - mean[..., None], 0.0) ** 2).sum(axis=-1)
    return np.asarray(np.where(spread > 1e-12 * count, spread, 0.0))


def score(observed: Array, predicted: Array, *, published: bool = False) -> Nnse:
    """Return the efficiency of predictions [L, S] of one target; where the observation is NaN nothing is scored.

    With `published` a missing observation is replaced by its prediction, as the reference does: it counts as an exact
    hit, and the prediction adds to the spread that is to be explained, so that missing data makes scores better.
    """
    if observed.shape != predicted.shape:
        raise UsageError(f"{predicted.shape} predictions do not fit {observed.shape} observations")
    if published:
        observed = np.where(np.isnan(observed), predicted, observed)
    by_location = nnse(observed, predicted)
    known = ~np.isnan(observed)
    seen = known.any(axis=0)
    truth = np.where(known, observed, 0.0).sum(axis=0, dtype=np.float64)[seen]
    guess = np.where(known, predicted, 0.0).sum(axis=0, dtype=np.float64)[seen]
    # A location where nothing varies is left out; one whose prediction is NaN is not, or failing there would pay.
    scored = by_location[_spread(observed) > 0]
    return Nnse(
        average=float(scored.mean()) if len(scored) else float("nan"),
        summed=float(nnse(truth, guess)),
        overall=float(nnse(observed.ravel(), predicted.ravel())),
        by_location=by_location,
    )


def scores(observed: Array, predicted: Array, *, published: bool = False) -> dict[str, float]:
    """Return the metrics of [L, S, 4] by name.

    `nnse` is the mean over the four targets of the average over locations; `nnse_2wk` ..., `nnse_summed_2wk` ... and
    `nnse_overall_2wk` ... are those of each target.
    """
    each = [score(observed[..., i], predicted[..., i], published=published) for i in range(observed.shape[-1])]
    values = {"nnse": float(np.mean([one.average for one in each]))}
    for kind in ("", "_summed", "_overall"):
        for parameter, one in zip(PARAMETERS, each, strict=True):
            values[f"nnse{kind}_{parameter.short}"] = float(getattr(one, kind[1:] or "average"))
    return values


def by_step(observed: Array, predicted: Array, *, published: bool = False) -> tuple[Array, Array]:
    """Return average and summed NNSE, [horizon, 4] each, of [L, S, horizon, 4]: what `top_table` ranks."""
    horizon, targets = observed.shape[2:]
    values = np.empty((2, horizon, targets))
    for step in range(horizon):
        for target in range(targets):
            one = score(observed[:, :, step, target], predicted[:, :, step, target], published=published)
            values[:, step, target] = one.average, one.summed
    return values[0], values[1]


def mean_energy(values: Array, count: int, scale: Scale) -> Array:
    """Return the average by energy of the first `count` steps of magnitudes (or of E^0.25), [..., horizon]."""
    energy = energy_of(np.asarray(values[..., :count], np.float64), scale).mean(axis=-1)
    level = np.log10(np.maximum(energy, 1.0)) / 1.5
    return np.asarray(level if scale == "magnitude" else quarter_energy(level))


def skill(observed: Array, predicted: Array, reference: Array) -> float:
    """Return 1 - squared error / squared error of a reference (persistence), over all that was observed."""
    known = ~np.isnan(observed)
    ours = ((observed - predicted)[known].astype(np.float64) ** 2).sum()
    theirs = ((observed - reference)[known].astype(np.float64) ** 2).sum()
    return float(1 - ours / theirs) if theirs > 0 else float("nan")


def skills(observed: Array, predicted: Array, reference: Array) -> dict[str, float]:
    """Return `skill_2wk` ... over a reference, of [L, S, 4]."""
    return {
        f"skill_{each.short}": skill(observed[..., i], predicted[..., i], reference[..., i])
        for i, each in enumerate(PARAMETERS)
    }
