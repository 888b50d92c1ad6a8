"""Errors of all methods on the same splits, and what the differences say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit
from sklearn.linear_model import LinearRegression
from sklearn.svm import SVR

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.benchmarks.suite.qsvr.data import Split, Table, make_split
from fairmile.benchmarks.suite.qsvr.settings import Settings
from fairmile.models.annealing.regression import QuboSVR

Array = np.ndarray[Any, Any]
MODEL, PEERS = "qubo-svr", ("svr", "least squares", "mean")
_SHARE = 0.95


class Difference(NamedTuple):
    """How much larger the model's error is than a peer's, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Which of the two is better; neither where the interval covers 0."""
        if self.low <= 0 <= self.high or not math.isfinite(self.value):
            return "no winner"
        return "qubo-svr is better" if self.value < 0 else "qubo-svr is worse"


@dataclass(frozen=True)
class Comparison:
    """Root mean squared errors by method and split, in standard deviations of the table's target."""

    table: Table
    errors: Mapping[str, Array]  # the model's are the mean of its seeds
    spread_of_seeds: float  # standard deviation over the seeds of a split, mean of all splits
    violation: float  # largest |Σα - Σα*|
    solver: str

    def mean(self, method: str) -> float:
        """Return the mean error of a method."""
        return float(self.errors[method].mean())

    def difference(self, peer: str) -> Difference:
        """Return error of the model minus error of a peer.

        Splits overlap. The interval is the corrected one of Nadeau and Bengio (doi:10.1023/A:1024068626366).
        """
        differences = self.errors[MODEL] - self.errors[peer]
        count = len(differences)
        variance = float(differences.var(ddof=1)) * (1 / count + 1)  # as many rows to test on as to learn from
        half = float(stdtrit(count - 1, (1 + _SHARE) / 2)) * math.sqrt(variance)
        middle = float(differences.mean())
        return Difference(middle, middle - half, middle + half)


def compare(table: Table, settings: Settings, seed: int) -> Comparison:
    """Fit all methods on all splits of a table."""
    errors: dict[str, list[float]] = {name: [] for name in (MODEL, *PEERS)}
    spreads, violation, solver = [], 0.0, ""
    for number in range(settings.splits):
        split = make_split(table, settings.rows, 1000 * seed + number)
        of_seeds = []
        for each in range(settings.seeds):
            model = _model(settings, 1000 * (settings.splits * seed + number) + each).fit(
                split.train, split.train_target
            )
            of_seeds.append(_rmse(model, split))
            violation = max(violation, *(member.violation for member in model.members_))
            solver = model.solver_
        errors[MODEL].append(float(np.mean(of_seeds)))
        spreads.append(float(np.std(of_seeds)))
        classical = {"svr": SVR(C=model.C, epsilon=settings.epsilon, gamma="auto"), "least squares": LinearRegression()}
        for name, peer in classical.items():
            errors[name].append(_rmse(peer.fit(split.train, split.train_target), split))
        errors["mean"].append(_root_mean_square(split.test_target) * split.scale)
    arrays = {name: np.asarray(values) for name, values in errors.items()}
    return Comparison(table, arrays, float(np.mean(spreads)), violation, solver)


def _model(settings: Settings, seed: int) -> QuboSVR:
    return QuboSVR(
        epsilon=settings.epsilon, bits=settings.bits, penalty=settings.penalty, sampler=settings.sampler,
        reads=settings.reads, sweeps=settings.sweeps, keep=settings.keep, random_state=seed % (1 << 31),
    )  # fmt: skip


def _rmse(model: Any, split: Split) -> float:
    return _root_mean_square(model.predict(split.test) - split.test_target) * split.scale


def _root_mean_square(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))
