"""What a network has to beat: means, ridge regression with products of features, and boosting."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairmile.benchmarks.harness.classical import can_fit, one_core
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.suite.uno.data import Parts

Array = np.ndarray[Any, Any]
_COMPONENTS = 20  # principal components of the cell lines, and of the drugs
_SHRINKAGE = 5.0  # measurements that a mean of one cell line or drug is worth less
_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0)
_CHUNK = 16_384
_MOST_FITTED = 200_000  # rows for boosting, which keeps real data below some minutes


def scores(predicted: Array, auc: Array) -> dict[str, float]:
    """Return the published figures of a prediction: MSE, MAE, R2 and correlation."""
    predicted, auc = np.asarray(predicted, np.float64), np.asarray(auc, np.float64)
    mse, variance = float(np.square(predicted - auc).mean()), float(auc.var())
    spread = float(predicted.std()) * variance**0.5
    together = float(((predicted - predicted.mean()) * (auc - auc.mean())).mean())
    return {
        "mse": mse,
        "mae": float(np.abs(predicted - auc).mean()),
        "r2": 1 - mse / max(variance, 1e-12),
        "corr": together / spread if spread > 1e-9 else 0.0,
    }


def baseline_scores(parts: Parts, seed: int) -> tuple[list[Score], dict[str, Array]]:
    """Return what needs no network, and what each predicts of the validation rows."""
    screen, train, rows = parts.screen, parts.train, parts.validation
    mean = float(screen.auc[train].mean(dtype=np.float64))
    drug = _effects(screen.drug, len(screen.drugs), parts, screen.auc[train] - mean)
    left = screen.auc[train] - mean - drug[screen.drug[train]]
    cell = _effects(screen.cell, len(screen.cells), parts, left)
    alone = _effects(screen.cell, len(screen.cells), parts, screen.auc[train] - mean)
    components = _components(parts)
    predicted = {
        "mean": np.full(len(rows), mean),
        "cell mean": mean + alone[screen.cell[rows]],
        "drug mean": mean + drug[screen.drug[rows]],
        "drug + cell mean": mean + drug[screen.drug[rows]] + cell[screen.cell[rows]],
        "ridge": _ridge(parts, components),
        **({"gradient boosting": _boosting(parts, components, drug, alone, seed)} if can_fit() else {}),
    }
    return [
        Score("trivial" if name == "mean" else "classical", name, scores(values, screen.auc[rows]))
        for name, values in predicted.items()
    ], predicted


def _effects(number: Array, many: int, parts: Parts, left: Array) -> Array:
    """Return by how much each cell line or drug lies above the mean, drawn to 0 the less often it was measured."""
    of_row = number[parts.train]
    return np.asarray(np.bincount(of_row, left, many) / (np.bincount(of_row, minlength=many) + _SHRINKAGE))


def _components(parts: Parts) -> tuple[Array, Array]:
    """Return principal components of cell lines and drugs, fitted to those that training sees, each with spread 1."""
    screen = parts.screen
    return _principal(screen.cells, screen.cell[parts.train]), _principal(screen.drugs, screen.drug[parts.train])


def _principal(features: Array, known: Array) -> Array:
    seen = features[np.unique(known)].astype(np.float64)
    centre, scale = seen.mean(0), seen.std(0)
    scale[scale < 1e-6] = 1
    _, _, axes = np.linalg.svd((seen - centre) / scale, full_matrices=False)
    axes = axes[:_COMPONENTS].T
    spread = ((seen - centre) / scale @ axes).std(0)
    return np.asarray((features - centre) / scale @ axes / np.maximum(spread, 1e-9))


def _features(parts: Parts, components: tuple[Array, Array], rows: Array) -> Array:
    """Return components of cell line and drug, and the products of both."""
    cell, drug = components[0][parts.screen.cell[rows]], components[1][parts.screen.drug[rows]]
    products = (cell[:, :, None] * drug[:, None, :]).reshape(len(rows), -1)
    return np.concatenate([np.ones((len(rows), 1)), cell, drug, products], axis=1)


def _ridge(parts: Parts, components: tuple[Array, Array]) -> Array:
    """Return the prediction of ridge regression; a part that is held out in the way of the test chooses its penalty."""
    checked = parts.like_test(0.1)
    sums = [_products(parts, components, parts.train[each]) for each in (~checked, checked)]
    square, product = sums[0]
    fresh = parts.train[checked]
    errors = [
        np.square(_apply(parts, components, fresh, _solve(square, product, each)) - parts.screen.auc[fresh]).mean()
        for each in _RIDGES
    ]
    weights = _solve(square + sums[1][0], product + sums[1][1], _RIDGES[int(np.argmin(errors))])
    return _apply(parts, components, parts.validation, weights)


def _products(parts: Parts, components: tuple[Array, Array], rows: Array) -> tuple[Array, Array]:
    square, product = np.zeros(1), np.zeros(1)
    for at in range(0, len(rows), _CHUNK):
        chunk = rows[at : at + _CHUNK]
        values = _features(parts, components, chunk)
        square, product = square + values.T @ values, product + values.T @ parts.screen.auc[chunk].astype(np.float64)
    return square, product


def _solve(square: Array, product: Array, ridge: float) -> Array:
    penalty = np.full(len(product), ridge)
    penalty[0] = 1e-9  # of the mean
    return np.linalg.solve(square + np.diag(penalty), product)


def _apply(parts: Parts, components: tuple[Array, Array], rows: Array, weights: Array) -> Array:
    chunks = [rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK)]
    return np.concatenate([_features(parts, components, chunk) @ weights for chunk in chunks])


def _boosting(parts: Parts, components: tuple[Array, Array], drug: Array, cell: Array, seed: int) -> Array:
    """Return the prediction of gradient boosting on components, and the means of what the test knows, too."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    screen, train = parts.screen, parts.train
    rng = np.random.default_rng(seed)
    if len(train) > _MOST_FITTED:
        train = rng.choice(train, _MOST_FITTED, replace=False)

    def table(rows: Array) -> Array:
        of_cell, of_drug = screen.cell[rows], screen.drug[rows]
        means = [cell[of_cell]] if parts.how in ("pairs", "drugs") else []
        means += [drug[of_drug]] if parts.how in ("pairs", "cells") else []
        return np.concatenate([components[0][of_cell], components[1][of_drug], *(each[:, None] for each in means)], 1)

    model = HistGradientBoostingRegressor(max_iter=150, learning_rate=0.1, random_state=seed % 2**32)
    with one_core():
        return np.asarray(model.fit(table(train), screen.auc[train]).predict(table(parts.validation)))
