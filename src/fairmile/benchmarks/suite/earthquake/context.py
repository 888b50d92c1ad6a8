"""More of what was observed: the long history of a place and what happens around it; not part of the published data.

All of it is known at the fortnight that it stands for: nothing looks ahead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.benchmarks.suite.earthquake.bins import BIG, Grid
from fairmile.benchmarks.suite.earthquake.features import quarter_energy
from fairmile.benchmarks.suite.earthquake.nomenclature import PARAMETERS

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.data import Prepared
    from fairmile.benchmarks.suite.earthquake.settings import Scale

Array = np.ndarray[Any, Any]

_LONG = (130, 260)  # fortnights: 5 and 10 years
_COUNTS = (1, 26, 260)
_NEARBY = (1, 7, 130)
_NEARBY_COUNTS = (1, 26)
CONTEXT = (
    "mean so far",
    *(f"magnitude back {steps} fortnights" for steps in _LONG),
    *(f"events back {steps} fortnights" for steps in _COUNTS),
    "fortnights since an event above 3.29",
    *(f"magnitude around back {steps} fortnights" for steps in _NEARBY),
    *(f"events around back {steps} fortnights" for steps in _NEARBY_COUNTS),
    "magnitude farther around",
    "events of the region",
)


def energy_of(values: Array, scale: Scale) -> Array:
    """Return 10^(1.5 m) of magnitudes or of E^0.25."""
    return np.asarray(10.0 ** (1.5 * values) if scale == "magnitude" else values**4 * 10.0 ** (1.5 * BIG))


def add_context(data: Prepared, grid: Grid, scale: Scale) -> Prepared:
    """Return data with the variables that CONTEXT names after the observed ones, each with mean 0 and spread 1.

    Mean and spread are those of all data, validation included, as the range of the published features is.
    """
    missing = np.isnan(data.observed).any(axis=2)
    values = _filled(data.observed[..., 0] * (data.high[0] - data.low[0]) + data.low[0])
    energy = np.where(missing, 0.0, energy_of(values, scale))
    counts = _filled(data.observed[..., 2])
    counts = counts / max(float(counts[counts > 0].min(initial=np.inf)), 1e-9) if (counts > 0).any() else counts
    known = np.maximum(np.cumsum(~missing, axis=1), 1)
    near, far = _neighbours(data.pixels, grid, 1), _neighbours(data.pixels, grid, 3)
    columns = [
        np.cumsum(np.where(missing, 0.0, values), axis=1) / known,
        *(_level(_back(energy, steps)) for steps in _LONG),
        *(np.log1p(_back(counts, steps)) for steps in _COUNTS),
        np.log1p(_since(_filled(data.observed[..., 3]) > 0)),
        *(_level(near @ _back(energy, steps)) for steps in _NEARBY),
        *(np.log1p(near @ _back(counts, steps)) for steps in _NEARBY_COUNTS),
        _level(far @ _back(energy, 2)),
        np.broadcast_to(np.log1p(counts.sum(axis=0)), energy.shape),
    ]
    assert len(columns) == len(CONTEXT)
    added = np.empty((*energy.shape, len(columns)), np.float32)
    for place, column in enumerate(columns):
        seen = column[~missing]
        added[..., place] = (column - seen.mean()) / max(float(seen.std()), 1e-6)
    added[missing] = np.nan
    return replace(data, observed=np.concatenate((data.observed, added), axis=2))


def add_known_part(data: Prepared, scale: Scale) -> Prepared:
    """Return data with what is known already of each target's next window after the observed ones.

    The window of w fortnights that ends with the next one holds the last w - 1 of those that are known. This is what
    the residual models are told; a linear forecast needs it as variables.
    """
    energy = energy_of(np.asarray(data.target[..., 0]) * (data.high[0] - data.low[0]) + data.low[0], scale)
    columns = []
    for each in PARAMETERS:
        steps = each.fortnights - 1
        if steps:
            level = _level(_back(_filled(energy), steps))
            level = level if scale == "magnitude" else quarter_energy(level)
            columns.append(np.where(np.isnan(data.observed).any(axis=2), np.nan, level).astype(np.float32))
    return replace(data, observed=np.concatenate((data.observed, np.stack(columns, axis=2)), axis=2))


def _filled(values: Array) -> Array:
    return np.nan_to_num(np.asarray(values, np.float64))


def _level(energy: Array) -> Array:
    """Return energies on a scale like that of magnitudes."""
    return np.asarray(np.log10(np.maximum(energy, 1.0)) / 1.5)


def _back(values: Array, steps: int) -> Array:
    """Return the mean of the last `steps` values, or of as many as there are, times `steps`."""
    if steps == 1:
        return values
    total = np.cumsum(values, axis=1)
    total[:, steps:] -= total[:, :-steps].copy()
    have = np.minimum(np.arange(1, values.shape[1] + 1), steps)
    return np.asarray(np.maximum(total, 0.0) * (steps / have))


def _since(happened: Array) -> Array:
    """Return how many fortnights ago something happened, or since when there are data."""
    number = np.arange(happened.shape[1])
    last = np.maximum.accumulate(np.where(happened, number, -1), axis=1)
    return np.asarray(number - last)


def _neighbours(pixels: Array, grid: Grid, reach: int) -> Array:
    """Return which locations lie within a block around each, without itself, as a matrix of 0 and 1."""
    row, column = np.divmod(np.asarray(pixels), grid.columns)
    apart = np.maximum(np.abs(row[:, None] - row), np.abs(column[:, None] - column))
    return np.asarray(((apart <= reach) & (apart > 0)).astype(np.float64))
