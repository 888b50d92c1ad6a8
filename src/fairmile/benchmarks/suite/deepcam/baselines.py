"""What a network has to beat: nothing marked, thresholds as storms are searched for, and boosted trees by point."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.harness.classical import can_fit, one_core
from fairmile.benchmarks.suite.deepcam.climate import CYCLONE, FIELDS, RIVER, Grid
from fairmile.benchmarks.suite.deepcam.models import CLASSES

Array = NDArray[Any]
_NAMES = "iou_background", "iou_cyclone", "iou_river"
_POLES, _TROPICS = 15.0, 45.0  # rivers lie beyond the first latitude, cyclones within the second
_LEVELS = np.array([0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999])


@dataclass(frozen=True)
class Baseline:
    """A method that marks snapshots (samples, rows, columns, fields) with classes."""

    kind: Literal["trivial", "classical"]
    name: str
    note: str
    mark: Callable[[Array], Array]


def count(marked: Array, labels: Array) -> Array:
    """Return hits, false and missed points (samples, classes, 3)."""
    by_class = []
    for kind in range(CLASSES):
        ours, theirs = marked == kind, labels == kind
        by_class.append([each.sum(axis=(1, 2)) for each in (ours & theirs, ours & ~theirs, ~ours & theirs)])
    return np.moveaxis(np.array(by_class), -1, 0)


def scores(counts: Array) -> dict[str, float]:
    """Return the mean IoU of samples and classes, and that of each class; one absent in both counts as 1."""
    union = counts.sum(axis=2)
    each = np.where(union > 0, counts[..., 0] / np.maximum(union, 1), 1.0)
    by_class = dict(zip(_NAMES, each.mean(axis=0).tolist(), strict=True))
    return {"iou": float(each.mean()), **by_class}


def fit(x: Array, labels: Array, pixels: int, seed: int) -> list[Baseline]:
    """Return the baselines, fitted to snapshots."""
    x = np.asarray(x, np.float32)
    found = [
        Baseline("trivial", "all background", "", lambda fields: np.zeros(fields.shape[:3], np.uint8)),
        _thresholds(x, labels),
    ]
    return [*found, _boosting(x, labels, pixels, seed)] if can_fit() else found


def signs(x: Array) -> dict[str, Array]:
    """Return what storms are searched by: departures from the mean of the latitude, and the spin of the wind."""
    grid = Grid(x.shape[1])

    def beyond(name: str) -> Array:
        field = x[..., FIELDS.index(name)]
        return np.asarray(field - np.median(field, axis=2, keepdims=True))

    east, north = x[..., FIELDS.index("U850")], x[..., FIELDS.index("V850")]
    spin = (np.roll(north, -1, 2) - np.roll(north, 1, 2)) - np.gradient(east, axis=1) * 2
    return {
        "low": -beyond("PSL"),
        "warm": beyond("T500"),
        "spin": np.asarray(spin * np.sign(grid.latitude)),
        "vapour": beyond("TMQ"),
        "latitude": np.broadcast_to(np.abs(grid.latitude), east.shape),
    }


def _thresholds(x: Array, labels: Array) -> Baseline:
    """Search the levels of spin, low pressure and vapour that agree best with the labels."""
    seen = signs(x)
    tropics, outside = seen["latitude"] < _TROPICS, seen["latitude"] > _POLES
    spins, lows, moist = (np.quantile(seen[name], _LEVELS) for name in ("spin", "low", "vapour"))
    pairs = list(itertools.product(spins, lows))
    agreed = [_iou((seen["spin"] > s) & (seen["low"] > p) & tropics, labels == CYCLONE) for s, p in pairs]
    spin, low = pairs[int(np.argmax(agreed))]
    vapour = moist[int(np.argmax([_iou((seen["vapour"] > v) & outside, labels == RIVER) for v in moist]))]

    def mark(fields: Array) -> Array:
        seen = signs(fields)
        marked = np.zeros(fields.shape[:3], np.uint8)
        marked[(seen["vapour"] > vapour) & (seen["latitude"] > _POLES)] = RIVER
        marked[(seen["spin"] > spin) & (seen["low"] > low) & (seen["latitude"] < _TROPICS)] = CYCLONE
        return marked

    return Baseline("classical", "thresholds", "spin and low pressure; vapour beyond 15° latitude", mark)


def _iou(marked: Array, true: Array) -> float:
    return float((marked & true).sum() / max((marked | true).sum(), 1))


def _features(x: Array) -> Array:
    return np.concatenate([x, np.stack(list(signs(x).values()), -1)], -1).reshape(-1, x.shape[-1] + 5)


def _boosting(x: Array, labels: Array, pixels: int, seed: int) -> Baseline:
    from sklearn.ensemble import HistGradientBoostingClassifier

    random = np.random.default_rng(seed)
    truth = labels.ravel()
    storms, rest = np.flatnonzero(truth), np.flatnonzero(truth == 0)
    # All classes are seen; the weights bring back how rare storms are.
    chosen = [random.permutation(each)[: pixels // 2] for each in (storms, rest)]
    at = np.concatenate(chosen)
    weight = np.concatenate(
        [np.full(len(some), len(whole) / len(some)) for some, whole in zip(chosen, (storms, rest), strict=True)]
    )
    with one_core():
        model = HistGradientBoostingClassifier(max_iter=50, learning_rate=0.2, random_state=seed % 2**32)
        model.fit(_features(x)[at], truth[at], sample_weight=weight)

    def mark(fields: Array) -> Array:
        with one_core():
            return np.asarray(model.predict(_features(fields)), np.uint8).reshape(fields.shape[:3])

    return Baseline("classical", "boosted trees", "50 rounds, point by point", mark)
