"""Support vector regression by an annealer, as an estimator of scikit-learn.

    model = QuboSVR(bits=3, sampler="annealer", random_state=1).fit(x, y)
    cross_val_score(model, x, y)

More rows than `most_bits` allows become an ensemble over disjoint parts, as Cavallaro et al. (IGARSS 2020,
doi:10.1109/IGARSS39084.2020.9323544) train on annealers. Targets should have a spread of about one, because a weight
never exceeds C, which `bits`, `base` and `shift` determine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from fairmile.base.errors import UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.models.annealing.qubo import Encoding, regression_problem
from fairmile.models.annealing.samplers import SAMPLERS, Sampler

Array = np.ndarray[Any, Any]


class Member(NamedTuple):
    """One regression of the ensemble."""

    rows: Array
    coefficients: Array
    intercept: float
    energy: float  # the least of all reads
    violation: float  # |Σα - Σα*| of that read; 0 where the condition holds


class QuboSVR(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """ε-SVR whose weights are numbers of a few bits, found by minimizing an energy."""

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        gamma: float | None = None,
        epsilon: float = 0.1,
        bits: int = 3,
        base: float = 2.0,
        shift: int = 0,
        penalty: float = 1.0,
        sampler: str | Sampler = "annealer",
        reads: int = 50,
        sweeps: int = 200,
        keep: int = 10,
        most_bits: int = 400,
        random_state: int | None = 0,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma  # None: 1 / number of features
        self.epsilon = epsilon
        self.bits = bits
        self.base = base
        self.shift = shift
        self.penalty = penalty
        self.sampler = sampler
        self.reads = reads
        self.sweeps = sweeps
        self.keep = keep  # the best reads, whose weights are averaged
        self.most_bits = most_bits
        self.random_state = random_state

    @property
    def encoding(self) -> Encoding:
        """How bits stand for a weight."""
        return Encoding(self.bits, self.base, self.shift)

    @property
    def C(self) -> float:
        """The largest weight: compare with a classical SVR at this C."""
        return self.encoding.largest

    def fit(self, X: Any, y: Any) -> QuboSVR:
        """Learn from rows and their targets."""
        rows, target = validate_data(self, X, y, y_numeric=True, dtype=float)
        rows_at_most = self.most_bits // self.encoding.variables(1)
        if rows_at_most < 2:
            raise UsageError(
                f"most_bits is {self.most_bits}: two rows of {self.bits} bits need {self.encoding.variables(2)}"
            )
        sampler = SAMPLERS[self.sampler]() if isinstance(self.sampler, str) else self.sampler
        random = check_random_state(self.random_state)
        parts = np.array_split(random.permutation(len(rows)), -(-len(rows) // rows_at_most))
        self.solver_ = sampler.title
        self.members_ = [
            self._member(sampler, rows[part], target[part], int(random.randint(1 << 31)))
            for part in map(np.sort, parts)
        ]
        return self

    def predict(self, X: Any) -> Array:
        """Return the mean of all members for each row."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=float)
        values = [self._kernel(rows, each.rows) @ each.coefficients + each.intercept for each in self.members_]
        return np.asarray(np.mean(values, axis=0))

    def _member(self, sampler: Sampler, rows: Array, target: Array, seed: int) -> Member:
        kernel = self._kernel(rows, rows)
        problem = regression_problem(kernel, target, encoding=self.encoding, epsilon=self.epsilon, penalty=self.penalty)
        states = sampler.sample(problem.matrix, reads=self.reads, sweeps=self.sweeps, seed=seed)
        energies = problem.energies(states)
        best = np.argsort(energies, kind="stable")[: max(1, self.keep)]
        coefficients = problem.coefficients(states[best])
        mean = coefficients.mean(axis=0)
        return Member(
            rows,
            mean,
            self._intercept(target - kernel @ mean, mean),
            float(energies[best[0]]),
            float(abs(coefficients[0].sum())),
        )

    def _intercept(self, residuals: Array, coefficients: Array) -> float:
        """Return the shift that puts rows with a weight between 0 and C on the edge of the tube."""
        size = np.abs(coefficients)
        free = (size > 1e-9) & (size < self.C - 1e-9)
        if not free.any():
            return float(np.median(residuals))
        return float(np.median(residuals[free] - self.epsilon * np.sign(coefficients[free])))

    def _kernel(self, left: Array, right: Array) -> Array:
        parameters = {"gamma": self.gamma} if self.gamma is not None else {}
        return np.asarray(pairwise_kernels(left, right, metric=self.kernel, filter_params=True, **parameters))
