"""What a network has to beat, pixel by pixel: the commonest class, thresholds, a regression and boosted trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.harness.classical import can_fit, one_core
from fairmile.benchmarks.suite.cloudmask.files import NAMES

Array = NDArray[Any]
COUNTS = 4  # true and false clouds, false and true clear pixels
_LEVELS = 64
_S8, _S2 = NAMES.index("S8"), NAMES.index("S2")


@dataclass(frozen=True)
class Baseline:
    """A method that looks at one pixel at a time."""

    kind: Literal["trivial", "classical"]
    name: str
    note: str
    is_cloud: Callable[[Array], Array]  # (pixels, channels) to bool

    def mask(self, x: Array) -> Array:
        """Return the masks of patches (patches, rows, columns, channels)."""
        pixels = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
        return self.is_cloud(pixels).reshape(x.shape[:-1])


def count(mask: Array, cloud: Array) -> Array:
    """Return the counts of each patch, as `scores` takes them."""
    mask, cloud = np.asarray(mask, bool), np.asarray(cloud, bool)
    kinds = (mask & cloud, mask & ~cloud, ~mask & cloud, ~mask & ~cloud)
    return np.stack([each.sum(axis=(1, 2)) for each in kinds], 1)


def scores(counts: Array, day: Array) -> dict[str, float]:
    """Return the share of pixels that are right, by day and by night too, and how well cloud is found."""
    hit, false, missed, _ = counts.sum(axis=0).tolist()
    found = {"accuracy": _accuracy(counts), "cloud_iou": hit / max(hit + false + missed, 1)}
    for name, part in (("day", counts[day > 0]), ("night", counts[day == 0])):
        if len(part):
            found[f"{name}_accuracy"] = _accuracy(part)
    return found


def _accuracy(counts: Array) -> float:
    return float(counts[:, [0, 3]].sum() / max(counts.sum(), 1))


def fit(x: Array, cloud: Array, seed: int) -> list[Baseline]:
    """Return the baselines, fitted to pixels (pixels, channels)."""
    cloud = np.asarray(cloud, bool)
    commonest = bool(cloud.mean() > 0.5)
    cold = _threshold(x[:, _S8], cloud)
    cold_or_bright = _two_thresholds(x, cloud)
    weights = _regression(x, cloud)
    found = [
        Baseline("trivial", "commonest class", "", lambda pixels: np.full(len(pixels), commonest)),
        Baseline("classical", "threshold", "S8 is cold", lambda pixels: pixels[:, _S8] < cold),
        Baseline("classical", "two thresholds", "S8 is cold or S2 bright", cold_or_bright),
        Baseline(
            "classical",
            "logistic regression",
            f"channels, their squares and products: {len(weights)} weights",
            lambda pixels: _features(pixels) @ weights > 0,
        ),
    ]
    return [*found, _boosting(x, cloud, seed)] if can_fit() else found


def _threshold(values: Array, cloud: Array) -> float:
    """Return the level below which most pixels are cloud and above which most are not."""
    order = np.argsort(values)
    right = np.cumsum(np.where(cloud[order], 1, -1))
    best = int(np.argmax(right))
    return float(values[order[min(best + 1, len(order) - 1)]]) if right[best] > 0 else -np.inf


def _two_thresholds(x: Array, cloud: Array) -> Callable[[Array], Array]:
    """Return the test of a cold or bright pixel that is right most often."""
    shares = np.linspace(0, 1, _LEVELS)
    cold, bright = (np.quantile(x[:, channel], shares) for channel in (_S8, _S2))
    at = np.stack([np.searchsorted(cold, x[:, _S8], "right"), np.searchsorted(bright, x[:, _S2], "right")])
    gain = np.zeros((_LEVELS + 1, _LEVELS + 1))
    np.add.at(gain, (at[0], at[1]), np.where(cloud, 1.0, -1.0))
    # What is neither cold nor bright is clear: the gain of a pair is that of all pixels but those.
    clear = gain[::-1].cumsum(0)[::-1].cumsum(1)
    row, column = np.unravel_index(np.argmin(clear), clear.shape)
    colder = cold[row - 1] if row else -np.inf
    brighter = bright[column] if column < _LEVELS else np.inf
    return lambda pixels: (pixels[:, _S8] < colder) | (pixels[:, _S2] >= brighter)


def _features(pixels: Array) -> Array:
    """Return channels, their squares and products, and a constant."""
    pixels = np.asarray(pixels, np.float32)
    first, second = np.triu_indices(pixels.shape[1])
    return np.concatenate([pixels, pixels[:, first] * pixels[:, second], np.ones((len(pixels), 1), np.float32)], 1)


def _regression(x: Array, cloud: Array) -> Array:
    """Return the weights of a logistic regression, by Newton's method with a little ridge."""
    features = _features(x)
    weights = np.zeros(features.shape[1])
    ridge = 1e-3 * np.eye(len(weights)) * len(features) / 1000
    for _ in range(12):
        chance = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        slope = features.T @ (chance - cloud) + ridge @ weights
        bend = features.T @ (features * (chance * (1 - chance))[:, None]) + ridge
        step = np.linalg.solve(bend, slope)
        weights = weights - step
        if np.abs(step).max() < 1e-3:
            break
    return weights.astype(np.float32)


def _boosting(x: Array, cloud: Array, seed: int) -> Baseline:
    from sklearn.ensemble import HistGradientBoostingClassifier

    with one_core():
        model = HistGradientBoostingClassifier(max_iter=60, learning_rate=0.2, random_state=seed % 2**32).fit(x, cloud)

    def is_cloud(pixels: Array) -> Array:
        with one_core():
            return np.asarray(model.predict(pixels), bool)

    return Baseline("classical", "gradient boosting", "60 trees", is_cloud)
