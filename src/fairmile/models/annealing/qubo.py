"""Support vector regression as a quadratic problem in bits: minimize the energy xᵀQx over x of zeros and ones.

The dual of ε-SVR asks for weights α and α* of each row, between 0 and C, with equal sums. Here each weight is a number
of `bits` binary digits, and a penalty replaces the condition on the sums:

    E = ½ (α-α*)ᵀK(α-α*) + ε Σ(α+α*) - yᵀ(α-α*) + penalty (Σα-Σα*)²
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairmile.base.quick_dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Encoding:
    """How bits stand for a weight: the digit k of a weight counts base^(k - shift)."""

    bits: int = 3
    base: float = 2.0
    shift: int = 0

    @property
    def digits(self) -> Array:
        """What each bit counts."""
        return np.asarray(self.base ** (np.arange(self.bits) - float(self.shift)))

    @property
    def largest(self) -> float:
        """The largest weight, which is the C of a support vector machine."""
        return float(self.digits.sum())

    def variables(self, rows: int) -> int:
        """Return how many bits a problem of this many rows has."""
        return 2 * rows * self.bits


@dataclass(frozen=True)
class RegressionProblem:
    """A regression in bits: `matrix` is what an annealer gets, the rest reads its answers."""

    matrix: Array  # symmetric; the diagonal holds the linear terms
    encoding: Encoding

    def energies(self, states: Array) -> Array:
        """Return the energy of each row of `states`."""
        return energies(self.matrix, states)

    def coefficients(self, states: Array) -> Array:
        """Return α - α* of each state, a row each."""
        alpha, star = self._weights(states)
        return np.asarray(alpha - star)

    def violations(self, states: Array) -> Array:
        """Return |Σα - Σα*| of each state: 0 where the condition on the sums holds."""
        return np.asarray(np.abs(self.coefficients(states).sum(axis=1)))

    def _weights(self, states: Array) -> tuple[Array, Array]:
        parts = np.asarray(states, float).reshape(len(states), 2, -1, self.encoding.bits) @ self.encoding.digits
        return parts[:, 0], parts[:, 1]


def energies(matrix: Array, states: Array) -> Array:
    """Return xᵀQx of each row x of `states`."""
    states = np.asarray(states, float)
    return np.asarray(((states @ matrix) * states).sum(axis=1))


def regression_problem(
    kernel: Array, target: Array, *, encoding: Encoding, epsilon: float, penalty: float
) -> RegressionProblem:
    """Return the problem in bits of an ε-SVR with this kernel matrix and these targets."""
    rows = len(target)
    digits = np.kron(np.eye(rows), encoding.digits)  # a row's weight is digits[row] @ its bits
    signed = np.hstack([digits, -digits])  # α - α*
    sums = signed.sum(axis=0)
    matrix = 0.5 * signed.T @ kernel @ signed + penalty * np.outer(sums, sums)
    linear = epsilon * np.abs(sums) - target @ signed
    matrix = (matrix + matrix.T) / 2
    matrix[np.diag_indices_from(matrix)] += linear  # x² = x for a bit
    return RegressionProblem(matrix, encoding)


def dual_energy(kernel: Array, target: Array, coefficients: Array, epsilon: float) -> float:
    """Return the energy of weights α - α* that need not be made of bits, without a penalty."""
    quadratic = 0.5 * coefficients @ kernel @ coefficients
    return float(quadratic + epsilon * np.abs(coefficients).sum() - target @ coefficients)
