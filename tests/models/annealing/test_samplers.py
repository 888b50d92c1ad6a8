"""Solvers of problems in bits find what exhaustive search finds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairmile.base.errors import Unsupported, UsageError
from fairmile.models.annealing.qubo import Encoding, energies, regression_problem
from fairmile.models.annealing.samplers import Annealer, Dwave, DwaveSamplers, Exhaustive, Sampler


def problem(size: int, seed: int) -> np.ndarray:
    weights = np.random.default_rng(seed).normal(size=(size, size))
    return np.asarray(weights + weights.T)


def regression(seed: int, rows: int = 3) -> np.ndarray:
    """A regression in 12 bits, whose penalty makes flips of single bits dear."""
    generator = np.random.default_rng(seed)
    places, encoding = generator.normal(size=(rows, 4)), Encoding(bits=2)
    kernel = np.exp(-0.1 * ((places[:, None] - places) ** 2).sum(2))
    target = generator.normal(size=rows)
    return regression_problem(kernel, target, encoding=encoding, epsilon=0.1, penalty=1.0).matrix


def least(sampler: Sampler, matrix: np.ndarray, seed: int, sweeps: int = 40, reads: int = 10) -> float:
    return float(energies(matrix, sampler.sample(matrix, reads=reads, sweeps=sweeps, seed=seed)).min())


def test_annealing_finds_the_optimum_of_small_problems_in_99_of_100_seeds() -> None:
    matrix = problem(12, 1)
    optimum = least(Exhaustive(), matrix, 0)
    assert sum(least(Annealer(), matrix, seed) < optimum + 1e-9 for seed in range(100)) >= 99


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Annealer, DwaveSamplers])
def test_annealing_finds_the_optimum_of_99_of_100_regressions(kind: Callable[[], Sampler]) -> None:
    problems = [regression(seed) for seed in range(100)]
    optima = [least(Exhaustive(), matrix, 0) for matrix in problems]
    found = [least(kind(), matrix, seed, 200, reads=20) for seed, matrix in enumerate(problems)]
    assert sum(each < optimum + 1e-9 for each, optimum in zip(found, optima, strict=True)) >= 99


@pytest.mark.thorough
def test_annealing_finds_the_optima_of_different_problems() -> None:
    optima = [least(Exhaustive(), problem(16, seed), 0) for seed in range(5)]
    for sampler in (Annealer(), DwaveSamplers()):
        assert [least(sampler, problem(16, seed), seed, 200) for seed in range(5)] == pytest.approx(optima)


@pytest.mark.parametrize("kind", [Annealer, DwaveSamplers])
def test_a_seed_decides_the_states_and_reads_differ(kind: Callable[[], Sampler]) -> None:
    matrix, sampler = problem(40, 2), kind()
    first, again, other = (sampler.sample(matrix, reads=8, sweeps=3, seed=seed) for seed in (1, 1, 2))
    assert first.shape == (8, 40)
    assert set(np.unique(first)) <= {0, 1}
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first, axis=0)) > 1


def test_a_problem_without_couplings_is_solved_bit_by_bit() -> None:
    for matrix in (np.diag([1.0, -2.0, 3.0, -4.0]), np.zeros((3, 3))):
        best = energies(matrix, Annealer().sample(matrix, reads=4, sweeps=50, seed=1)).min()
        assert best == np.minimum(np.diag(matrix), 0).sum()


def test_exhaustive_search_refuses_what_it_cannot_finish() -> None:
    with pytest.raises(UsageError, match="takes up to 24 bits, found 25"):
        Exhaustive().sample(np.zeros((25, 25)), reads=1, sweeps=1, seed=0)


class Recorded:
    """Answers as the SDK's machine does, with its variables in an order of their own."""

    def sample(self, model: Any, **options: Any) -> Any:
        self.model, self.options = model, options
        return SimpleNamespace(variables=[2, 0, 1], record=SimpleNamespace(sample=np.array([[1, 0, 0], [0, 1, 1]])))


def test_a_real_annealer_is_asked_through_its_sdk() -> None:
    machine = Recorded()
    matrix = np.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.25], [0.0, 0.25, 0.0]])
    states = Dwave(machine).sample(matrix, reads=2, sweeps=5000, seed=1)
    assert states.tolist() == [[0, 0, 1], [1, 1, 0]]
    assert machine.options == {"num_reads": 2, "annealing_time": 2000.0}
    asked = [machine.model.energy(dict(enumerate(state))) for state in states]
    assert asked == pytest.approx(energies(matrix, states))


def test_what_a_machine_of_d_wave_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dwave.system", None)
    with pytest.raises(Unsupported, match="dwave-system") as raised:
        Dwave().sample(np.eye(2), reads=1, sweeps=1, seed=0)
    assert raised.value.hint == "pip install dwave-system dimod"
