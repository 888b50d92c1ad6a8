"""Solvers of quadratic problems in bits, behind one method.

    states = SAMPLERS["annealer"]().sample(matrix, reads=50, sweeps=1000, seed=1)

`annealer` needs NumPy only, `dwave-samplers` is compiled and faster, `exhaustive` tries all states of a small problem.
All three compute on a CPU. `dwave` sends the problem to an annealer of D-Wave through its SDK; it needs an account, and
its answers were never seen here. Further ones register under the entry points `fairmile.samplers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from fairmile.base.errors import MissingExtra, Unsupported, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.models.annealing.qubo import energies

Array = np.ndarray[Any, Any]
_MOST_EXHAUSTIVE = 24
_PAIRS_EVERY = 4  # sweeps
_DESCENTS = 10  # of the best reads
_MOST_DESCENDED = 512  # bits; each step looks at all pairs
_MOST_REMOTE_SWEEPS = 2000.0  # microseconds of annealing that D-Wave's machines take at most


class Sampler(Protocol):
    """Looks for states of low energy."""

    title: str  # what solves, and where, as a result names it

    def sample(self, matrix: Array, *, reads: int, sweeps: int, seed: int) -> Array:
        """Return states of zeros and ones, a row each; the same seed gives the same states where that is possible."""
        ...


_HERE = "fairmile.models.annealing.samplers"
SAMPLERS: Registry[Callable[[], Sampler]] = Registry(
    "sampler",
    {
        "annealer": Plugin(f"{_HERE}:Annealer", "benchmarks", "simulated annealing in NumPy"),
        "dwave-samplers": Plugin(f"{_HERE}:DwaveSamplers", "quantum", "simulated annealing of dwave-samplers"),
        "exhaustive": Plugin(f"{_HERE}:Exhaustive", "benchmarks", "all states of a problem of up to 24 bits"),
        "dwave": Plugin(f"{_HERE}:Dwave", "quantum", "an annealer of D-Wave; needs an account and dwave-system"),
    },
    entry_points="fairmile.samplers",
)


class Annealer:
    """Simulated annealing: flips bits one after the other, colder with each sweep, all reads side by side.

    Now and then it flips pairs, which cross what one bit cannot: in a regression it breaks the condition on the sums.
    """

    title = "simulated annealing on a CPU (NumPy)"

    def sample(self, matrix: Array, *, reads: int, sweeps: int, seed: int) -> Array:
        """Return the state of each read; no flip of one or two bits makes the best of them better."""
        generator = np.random.default_rng(seed)
        size, half = len(matrix), len(matrix) // 2
        search = _Search(matrix, generator.integers(0, 2, (size, reads)))
        temperatures = _temperatures(np.abs(search.fields), np.abs(search.couplings), sweeps)
        for sweep, temperature in enumerate(temperatures):
            # Metropolis' rule: a flip is accepted if the energy gains at most -T ln(u), with u uniform.
            limits = temperature * generator.standard_exponential((size, reads))
            for bit in range(size):
                search.flip(bit, search.gain(bit) <= limits[bit])
            if sweep % _PAIRS_EVERY:
                continue
            limits = temperature * generator.standard_exponential((half, reads))
            pairs = generator.permutation(size)[: 2 * half].reshape(half, 2).tolist()
            for (first, second), limit in zip(pairs, limits, strict=True):
                accepted = search.gain_of_pair(first, second) <= limit
                search.flip(first, accepted)
                search.flip(second, accepted)
        search.descend()
        return search.states()


class _Search:
    """States side by side, a column each, and what each flip of a bit adds to their energies."""

    def __init__(self, matrix: Array, states: Array) -> None:
        self._matrix = np.asarray(matrix, float)
        self.couplings = 2.0 * self._matrix
        self.couplings[np.diag_indices(len(matrix))] = 0.0
        self._signs = 1.0 - 2.0 * states  # what a flip adds to a bit
        self.fields = np.diag(matrix)[:, None] + self.couplings @ states  # what the energy gains when a bit becomes 1
        self._changes = np.empty_like(self.fields)

    def gain(self, bit: int) -> Array:
        """Return what the energy of each state gains if a bit flips."""
        return np.asarray(self._signs[bit] * self.fields[bit])

    def gain_of_pair(self, first: int, second: int) -> Array:
        """Return what the energy of each state gains if both bits flip."""
        both = self._signs[first] * self._signs[second]
        return np.asarray(self.gain(first) + self.gain(second) + self.couplings[first, second] * both)

    def flip(self, bit: int, accepted: Array) -> None:
        """Flip a bit of the states where it is accepted."""
        if accepted.any():
            moves = self._signs[bit] * accepted
            self.fields += np.multiply(self.couplings[bit][:, None], moves, out=self._changes)
            self._signs[bit] -= 2.0 * moves

    def descend(self) -> None:
        """Make the best flip of one or two bits of each of the best states until none helps; not of large problems."""
        size, reads = self._signs.shape
        if not 0 < size <= _MOST_DESCENDED:
            return
        least = -1e-12 * np.abs(self.fields).max()  # less is rounding, which could lead back and forth for ever
        for read in np.argsort(energies(self._matrix, self.states()))[:_DESCENTS]:
            only = np.arange(reads) == read
            while True:
                signs, gains = self._signs[:, read], self._signs[:, read] * self.fields[:, read]
                of_pairs = gains[:, None] + gains + self.couplings * signs[:, None] * signs
                np.fill_diagonal(of_pairs, gains)
                first, second = divmod(int(of_pairs.argmin()), size)
                if of_pairs[first, second] >= least:
                    break
                for bit in {first, second}:
                    self.flip(bit, only)

    def states(self) -> Array:
        """Return the states, a row each."""
        return np.ascontiguousarray((self._signs.T < 0).astype(np.int8))


def _temperatures(changes: Array, couplings: Array, sweeps: int) -> Array:
    """Return the temperature of each sweep.

    The first accepts half of the median change that flips of random states make. At the last a hundredth of a small
    coupling decides: couplings cancel, so that states of low energy differ by much less than one of them.
    """
    couplings = couplings[couplings > 0]
    hottest = float(np.median(changes)) / np.log(2) or 1.0
    coldest = float(np.quantile(couplings, 0.01)) / 100 if couplings.size else hottest / 1000
    return np.geomspace(hottest, min(coldest, hottest), sweeps)


class Exhaustive:
    """Tries every state: the judge of the others on small problems."""

    title = "exhaustive search on a CPU"

    def sample(self, matrix: Array, *, reads: int, sweeps: int, seed: int) -> Array:
        """Return the state of least energy."""
        size = len(matrix)
        if size > _MOST_EXHAUSTIVE:
            raise UsageError(f"exhaustive search takes up to {_MOST_EXHAUSTIVE} bits, found {size}")
        best, least = np.zeros((1, size), np.int8), np.inf
        for start in range(0, 1 << size, 1 << 16):
            numbers = np.arange(start, min(start + (1 << 16), 1 << size))
            states = ((numbers[:, None] >> np.arange(size)) & 1).astype(np.int8)
            found = energies(matrix, states)
            if found.min() < least:
                least, best = float(found.min()), states[[int(found.argmin())]]
        return best


class DwaveSamplers:
    """Simulated annealing of dwave-samplers: compiled, for problems of more than a few hundred bits."""

    title = "simulated annealing on a CPU (dwave-samplers)"

    def __init__(self) -> None:
        self._samplers = _module("dwave.samplers")

    def sample(self, matrix: Array, *, reads: int, sweeps: int, seed: int) -> Array:
        """Return the state of each read; no flip of one or two bits makes the best of them better."""
        answer = self._samplers.SimulatedAnnealingSampler().sample(
            _model(matrix), num_reads=reads, num_sweeps=sweeps, seed=seed % (1 << 31)
        )
        search = _Search(matrix, _states(answer, len(matrix)).T)
        search.descend()
        return search.states()


class Dwave:
    """An annealer of D-Wave; its SDK has the account. It knows no sweeps: each read anneals as many microseconds."""

    title = "quantum annealer of D-Wave"

    def __init__(self, sampler: Any = None) -> None:
        self._sampler = sampler

    def sample(self, matrix: Array, *, reads: int, sweeps: int, seed: int) -> Array:
        """Return the states that the machine gave; `seed` has no meaning there."""
        if self._sampler is None:
            system = _module("dwave.system")
            self._sampler = system.EmbeddingComposite(system.DWaveSampler())
        time_us = float(min(max(sweeps, 1), _MOST_REMOTE_SWEEPS))
        answer = self._sampler.sample(_model(matrix), num_reads=reads, annealing_time=time_us)
        return _states(answer.expand() if hasattr(answer, "expand") else answer, len(matrix))


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if name == "dwave.system":  # no part of the extra: few have an account
            raise Unsupported("this sampler needs dwave-system", hint="pip install dwave-system dimod") from error
        raise MissingExtra("this sampler needs dwave-samplers", "quantum") from error


def _model(matrix: Array) -> Any:
    """Return a problem as D-Wave's programs take it."""
    dimod = _module("dimod")
    linear = np.diag(matrix)
    rows, columns = np.triu_indices(len(matrix), 1)
    weights = 2.0 * np.asarray(matrix)[rows, columns]
    kept = weights != 0
    vectors = (rows[kept], columns[kept], weights[kept])
    return dimod.BinaryQuadraticModel.from_numpy_vectors(linear, vectors, 0.0, "BINARY")


def _states(answer: Any, size: int) -> Array:
    """Return the samples with their variables in the order of the matrix."""
    places: Mapping[int, int] = {name: place for place, name in enumerate(answer.variables)}
    return np.ascontiguousarray(answer.record.sample[:, [places[each] for each in range(size)]].astype(np.int8))
