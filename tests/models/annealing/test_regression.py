"""A regression by an annealer: an estimator like those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVR

from fairmile.base.errors import NotFound, UsageError
from fairmile.models.annealing.qubo import dual_energy
from fairmile.models.annealing.regression import QuboSVR


def wave(rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-3, 3, rows)[:, None]
    return x, np.sin(x[:, 0])


def test_it_learns_a_curve_and_cross_validates() -> None:
    x, y = wave()
    assert QuboSVR(sweeps=50, reads=20).fit(x, y).score(x, y) > 0.8
    assert cross_val_score(QuboSVR(sweeps=5, reads=10), x, y, cv=4).shape == (4,)


def test_its_parameters_can_be_searched() -> None:
    x, y = wave(16)
    search = GridSearchCV(QuboSVR(sweeps=5, reads=5), {"bits": [1, 2]}, cv=2).fit(x, y)
    assert search.best_params_["bits"] in (1, 2)
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()
    with pytest.raises(NotFittedError):
        QuboSVR().predict(x)


def test_the_same_seed_gives_the_same_predictions() -> None:
    x, y = wave()
    first, again, other = (QuboSVR(sweeps=5, reads=5, random_state=seed).fit(x, y).predict(x) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_rows_that_do_not_fit_become_an_ensemble_over_disjoint_parts() -> None:
    x, y = wave(50)
    model = QuboSVR(sweeps=5, most_bits=120).fit(x, y)
    assert [len(each.rows) for each in model.members_] == [17, 17, 16]
    assert sorted(np.concatenate([each.rows[:, 0] for each in model.members_])) == list(x[:, 0])
    with pytest.raises(UsageError, match=r"most_bits is 10: two rows of 3 bits need 12"):
        QuboSVR(most_bits=10).fit(x, y)


def test_its_energy_is_never_below_the_continuous_optimum_and_falls_with_bits() -> None:
    x, y = wave(6)
    kernel = np.exp(-((x - x.T) ** 2))
    energies = []
    for bits in (1, 2, 3):  # each set of digits holds the one before it
        model = QuboSVR(gamma=1.0, bits=bits, shift=bits - 1, penalty=2, reads=30, sweeps=200).fit(x, y)
        assert model.members_[0].violation == pytest.approx(0)
        peer = SVR(kernel="precomputed", C=model.C, epsilon=0.1, tol=1e-9).fit(kernel, y)
        coefficients = np.zeros(len(y))
        coefficients[peer.support_] = peer.dual_coef_[0]
        assert model.members_[0].energy >= dual_energy(kernel, y, coefficients, 0.1) - 1e-6
        energies.append(model.members_[0].energy)
    assert energies[2] < energies[1] < energies[0]


def test_the_solver_is_named() -> None:
    x, y = wave(8)
    assert QuboSVR(sweeps=2).fit(x, y).solver_ == "simulated annealing on a CPU (NumPy)"
    with pytest.raises(NotFound, match="no sampler named 'anealer'"):
        QuboSVR(sampler="anealer").fit(x, y)
