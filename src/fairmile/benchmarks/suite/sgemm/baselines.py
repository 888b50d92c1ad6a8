"""What a network has to beat: the mean, a linear model, and the trees and boosting of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmile.benchmarks.harness.classical import can_fit, one_core, save_estimator
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.suite.sgemm.data import Parts
from fairmile.benchmarks.suite.sgemm.models import features

Array = np.ndarray[Any, Any]
ROWS = "rows.npy"  # kernels of the test part, as the trees take them
_KEPT_ROWS = 1000
_TREES, _ROUNDS, _LEAVES, _RATE = 30, 300, 63, 0.15


def scores(predicted_ln: Array, true_ln: Array) -> dict[str, float]:
    """Return R2 and error of ln(time), the error in ms, and how much slower the kernel is that is predicted fastest."""
    error = np.asarray(predicted_ln, np.float64) - true_ln
    spread = float(np.square(true_ln - true_ln.mean()).mean())
    chosen = true_ln[int(np.argmin(predicted_ln))]
    return {
        "r2": 1 - float(np.square(error).mean()) / max(spread, 1e-12),
        "rmse_ln": float(np.sqrt(np.square(error).mean())),
        "mae_ms": float(np.abs(np.exp(predicted_ln) - np.exp(true_ln)).mean()),
        "slowdown_of_choice": float(np.exp(chosen - true_ln.min())),
    }


def baseline_scores(parts: Parts, seed: int, keep: Path | None = None) -> tuple[list[Score], dict[str, Array]]:
    """Return what needs no network, and what each predicts; `keep` is a folder for the fitted trees."""
    train, test = (features(torch.as_tensor(each, dtype=torch.float32)).numpy() for each in (parts.train, parts.test))
    predicted = {
        "mean": np.full(len(parts.test), parts.train_ln.mean()),
        "linear": _linear(train, parts.train_ln, test),
        **(_trees(train, parts.train_ln, test, seed, keep) if can_fit() else {}),
    }
    return [
        Score("trivial" if name == "mean" else "classical", name, scores(values, parts.test_ln))
        for name, values in predicted.items()
    ], predicted


def _linear(train: Array, target: Array, test: Array) -> Array:
    weights = np.linalg.lstsq(np.c_[train, np.ones(len(train))], target, rcond=None)[0]
    return np.asarray(np.c_[test, np.ones(len(test))] @ weights)


def _trees(train: Array, target: Array, test: Array, seed: int, keep: Path | None) -> dict[str, Array]:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from sklearn.tree import DecisionTreeRegressor

    boosted = {"max_iter": _ROUNDS, "max_leaf_nodes": _LEAVES, "learning_rate": _RATE}
    models = {
        "decision tree": DecisionTreeRegressor(random_state=seed % 2**32),
        "gradient boosting": HistGradientBoostingRegressor(**boosted, random_state=seed % 2**32),
        "extra trees": ExtraTreesRegressor(_TREES, random_state=seed % 2**32),
    }
    with one_core():
        predicted = {name: model.fit(train, target).predict(test) for name, model in models.items()}
    if keep is not None:
        np.save(keep / ROWS, test[:_KEPT_ROWS])
        for name, model in models.items():
            save_estimator(model, keep / f"{name.replace(' ', '-')}.skops")
    return predicted
