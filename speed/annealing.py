"""Simulated annealing of a regression in bits: CPU time and energies of NumPy beside dwave-samplers and libsvm.

python speed/annealing.py
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVR

from fairmile.models.annealing.qubo import Encoding, dual_energy, energies, regression_problem
from fairmile.models.annealing.samplers import Annealer, DwaveSamplers, Exhaustive, Sampler

READS, EPSILON, GAMMA = 50, 0.1, 0.05


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel matrix and the scaled target of random rows of scikit-learn's diabetes."""
    features, target = load_diabetes(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(target))[:rows]
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    return rbf_kernel(scaled[chosen], gamma=GAMMA), ((target - target.mean()) / target.std())[chosen]


def continuous(kernel: np.ndarray, target: np.ndarray, largest: float) -> float:
    """Return the energy of libsvm's optimum, below which no bits can come."""
    model = SVR(kernel="precomputed", C=largest, epsilon=EPSILON, tol=1e-9).fit(kernel, target)
    coefficients = np.zeros(len(target))
    coefficients[model.support_] = model.dual_coef_[0]
    return dual_energy(kernel, target, coefficients, EPSILON)


def main() -> None:
    """Print a row for each problem and number of sweeps, then how often small optima are found."""
    solvers: dict[str, Sampler] = {"numpy": Annealer(), "dwave-samplers": DwaveSamplers()}
    print(f"{READS} reads; energy: least of all reads; violation: of that read")
    print("rows  bits  variables  continuous  sweeps  solver          CPU s  energy   violation")
    for rows, bits in ((20, 3), (50, 3), (100, 2)):
        kernel, target = table(rows)
        encoding = Encoding(bits)
        problem = regression_problem(kernel, target, encoding=encoding, epsilon=EPSILON, penalty=1.0)
        bound = continuous(kernel, target, encoding.largest)
        for sweeps in (100, 1000):
            for name, solver in solvers.items():
                began = time.process_time()
                states = solver.sample(problem.matrix, reads=READS, sweeps=sweeps, seed=1)
                spent = time.process_time() - began
                found = problem.energies(states)
                best = int(found.argmin())
                print(
                    f"{rows:<6}{bits:<6}{encoding.variables(rows):<11}{bound:<12.2f}{sweeps:<8}{name:<16}{spent:<7.2f}"
                    f"{found[best]:<9.2f}{problem.violations(states[[best]])[0]:g}",
                    flush=True,
                )
    for name, solver in solvers.items():
        print(f"{name}: optimum of 20 variables found in {_hits(solver)} of 100 seeds")


def _hits(solver: Sampler) -> int:
    weights = np.random.default_rng(20).normal(size=(20, 20))
    matrix = weights + weights.T
    optimum = energies(matrix, Exhaustive().sample(matrix, reads=1, sweeps=1, seed=0))[0]
    found = (solver.sample(matrix, reads=READS, sweeps=100, seed=seed) for seed in range(100))
    return sum(float(energies(matrix, each).min()) < optimum + 1e-9 for each in found)


if __name__ == "__main__":
    main()
