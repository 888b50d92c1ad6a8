"""What a forecast has to beat: constant mean, persistence, climatology, ridge; all on the same windows and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fairmile.benchmarks.suite.earthquake.settings import Lead
from fairmile.benchmarks.suite.earthquake.windows import Windows

Array = np.ndarray[Any, Any]
Baseline = Callable[[Windows, Windows, Lead], Array]

PENALTIES = tuple(10.0**power for power in range(-6, 4))  # of standardised features, per row
_BLOCK = 32  # locations at a time
_HELD = 5  # one in so many training locations chooses the penalty


def constant(training: Windows, validation: Windows, lead: Lead) -> Array:
    """Return the mean of what was observed at each validation location, [L, S, 4].

    It scores 0.5 by definition, on average and summed; taken over all, it shows what knowing the place is worth.
    """
    truth = validation.truth(lead)
    return np.broadcast_to(_mean(truth), truth.shape)


def persistence(training: Windows, validation: Windows, lead: Lead) -> Array:
    """Return the last known value of each target, [L, S, 4]."""
    return validation.last()


def climatology(training: Windows, validation: Windows, lead: Lead) -> Array:
    """Return the mean of all that a location had seen when the forecast is made, [L, S, 4]."""
    series = np.asarray(validation.data.target[validation.locations], np.float64)
    known = ~np.isnan(series)
    total = np.cumsum(np.where(known, series, 0.0), axis=1)
    mean = total / np.maximum(np.cumsum(known, axis=1), 1)
    return np.asarray(mean[:, validation.starts + validation.history - 1], np.float32)


def ridge(training: Windows, validation: Windows, lead: Lead, place_weights: Array | None = None) -> Array:
    """Return a linear forecast from the history, [L, S, 4]; a fifth of the training locations chooses its penalty.

    It is shown all that was observed at the last fortnight and the magnitude of each fortnight before. With
    `place_weights` [training locations, 4] the errors at a location count by them, for each target.
    """
    if place_weights is None:
        weights = _solved(training, lead, np.ones(len(training.locations)))
    else:
        each = [_solved(training, lead, column) for column in place_weights.T.astype(np.float64)]
        weights = np.stack([one[:, i] for i, one in enumerate(each)], axis=1)
    blocks = [_rows(validation, locations) @ weights for locations in _blocks(validation.locations)]
    return np.concatenate(blocks).astype(np.float32)


def _solved(training: Windows, lead: Lead, place_weights: Array) -> Array:
    chooser = np.arange(len(training.locations)) % _HELD == _HELD - 1
    if not chooser.any():
        chooser[-1] = len(chooser) > 1
    fitted, held = (_Sums.of(training, chosen, lead, place_weights) for chosen in (~chooser, chooser))
    everything = fitted.plus(held)
    errors = [held.error(fitted.solve(penalty)) for penalty in PENALTIES]
    best = np.argmin(errors, axis=0)  # for each target
    solved = [everything.solve(penalty) for penalty in PENALTIES]
    return np.stack([solved[which][:, i] for i, which in enumerate(best)], axis=1)


BASELINES: dict[str, tuple[Literal["trivial", "classical"], Baseline]] = {
    "constant mean": ("trivial", constant),
    "persistence": ("trivial", persistence),
    "climatology": ("trivial", climatology),
    "ridge": ("classical", ridge),
}


def _mean(truth: Array) -> Array:
    known = ~np.isnan(truth)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.where(known, truth, 0.0).sum(axis=1, keepdims=True, dtype=np.float64) / count)


def _rows(windows: Windows, locations: Array) -> Array:
    """Return the design matrix of locations, [L, S, features], the last column is 1."""
    end = windows.starts + windows.history - 1
    observed = np.asarray(windows.data.observed[locations], np.float64)
    before = sliding_window_view(observed[:, :, 0], windows.history, axis=1)[:, windows.starts, :-1]
    return np.concatenate((observed[:, end], before, np.ones((*before.shape[:2], 1))), axis=2)


def _blocks(locations: Array) -> Iterator[Array]:
    for begin in range(0, len(locations), _BLOCK):
        yield locations[begin : begin + _BLOCK]


@dataclass(frozen=True)
class _Sums:
    """The sums of products of many rows of features and targets: all that a linear fit needs to know of them."""

    products: Array  # [features + targets, features + targets]
    count: float
    targets: int

    @classmethod
    def of(cls, windows: Windows, chosen: Array, lead: Lead, place_weights: Array) -> _Sums:
        """Return the sums over some locations of windows; rows with a missing target are left out."""
        targets = windows.data.target.shape[2]
        size = windows.data.observed.shape[2] + windows.history + targets
        products, count = np.zeros((size, size)), 0.0
        for locations, weights in zip(_blocks(windows.locations[chosen]), _blocks(place_weights[chosen]), strict=True):
            part = replace(windows, locations=locations)
            truth = part.truth(lead)
            good = ~np.isnan(truth).any(axis=2)
            rows = np.concatenate((_rows(part, locations)[good], truth[good]), axis=1)
            weight = np.broadcast_to(weights[:, None], good.shape)[good]
            products, count = products + (rows * weight[:, None]).T @ rows, count + float(weight.sum())
        return cls(products, count, targets)

    def plus(self, other: _Sums) -> _Sums:
        """Return the sums over the rows of both."""
        return _Sums(self.products + other.products, self.count + other.count, self.targets)

    def solve(self, penalty: float) -> Array:
        """Return the weights [features, targets] that minimise squared error plus penalty; the constant is free."""
        xx, xy = self.products[: -self.targets, : -self.targets], self.products[: -self.targets, -self.targets :]
        mean = xx[-1] / self.count
        spread = np.sqrt(np.maximum(np.diag(xx) / self.count - mean**2, 1e-12))
        spread[-1] = 1.0
        penalties = np.full(len(spread), penalty * self.count)
        penalties[-1] = 0.0
        # Features are centred through the constant column, so that the penalty does not see their mean.
        change = np.diag(1 / spread)
        change[-1, :-1] = -mean[:-1] / spread[:-1]
        inner = change.T @ xx @ change + np.diag(penalties)
        return np.asarray(change @ np.linalg.solve(inner, change.T @ xy))

    def error(self, weights: Array) -> Array:
        """Return the sum of squared errors of weights, for each target."""
        both = np.concatenate((weights, -np.eye(self.targets)))
        return np.asarray(np.einsum("ft,fg,gt->t", both, self.products, both))
