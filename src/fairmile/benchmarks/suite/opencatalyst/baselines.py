"""What a network has to beat: no force at all, and a potential of pairs of atoms fitted by least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.suite.opencatalyst.structures import GraphSamples

Array = NDArray[Any]
_FUNCTIONS = 12
_CHUNK = 32
_MOST_PAIRS = 150  # the commonest pairs of elements: OC20 has more than a thousand
_ENERGY_WEIGHT = 3.0


def scores(energy_error: Array, force_error: Array, components: Array) -> dict[str, float]:
    """Return mean absolute errors: of energies per structure, of force components over all free atoms."""
    return {
        "force_mae": float(force_error.sum() / components.sum()),
        "energy_mae": float(np.abs(energy_error).mean()),
    }


def errors(batch: dict[str, Array], energy: Array, forces: Array) -> tuple[Array, Array, Array]:
    """Return what `scores` takes of a batch: by structure, the free atoms alone."""
    off = np.abs(forces - batch["forces"]).sum(1) * batch["free"]
    many = len(batch["energy"])
    count = np.bincount(batch["structure"], 3.0 * batch["free"], many)
    return energy - batch["energy"], np.bincount(batch["structure"], off, many), count


@dataclass(frozen=True)
class PairPotential:
    """Energies are a sum over elements and over pairs of atoms; forces are its derivatives. Linear in its weights."""

    cutoff: float
    elements: Array
    pairs: Array
    weights: Array

    @classmethod
    def fit(cls, samples: GraphSamples, cutoff: float, most: int) -> PairPotential:
        numbers = np.linspace(0, len(samples) - 1, min(most, len(samples))).astype(int)
        batches = [samples.batch(numbers[at : at + _CHUNK]) for at in range(0, len(numbers), _CHUNK)]
        elements = np.unique(np.concatenate([each["numbers"] for each in batches]))
        found, many = np.unique(np.concatenate([_pairs(each) for each in batches]), return_counts=True)
        pairs = np.sort(found[np.argsort(-many)[:_MOST_PAIRS]])
        blank = cls(cutoff, elements, pairs, np.zeros(len(elements) + len(pairs) * _FUNCTIONS))
        square = np.zeros((len(blank.weights), len(blank.weights)))
        product = np.zeros(len(blank.weights))
        for batch in batches:
            energy, forces = blank.features(batch)
            rows = [energy * _ENERGY_WEIGHT, forces[batch["free"]].reshape(-1, len(product))]
            wanted = [batch["energy"] * _ENERGY_WEIGHT, batch["forces"][batch["free"]].ravel()]
            for row, want in zip(rows, wanted, strict=True):
                square += row.T @ row
                product += row.T @ want
        square += 1e-6 * np.trace(square) / len(square) * np.eye(len(square))
        return cls(cutoff, elements, pairs, np.linalg.solve(square, product))

    def predict(self, batch: dict[str, Array]) -> tuple[Array, Array]:
        """Return energies and forces."""
        energy, forces = self.features(batch)
        return energy @ self.weights, forces @ self.weights

    def features(self, batch: dict[str, Array]) -> tuple[Array, Array]:
        """Return the derivatives of energies and forces by the weights."""
        many, atoms, size = len(batch["energy"]), len(batch["numbers"]), len(self.weights)
        energy, forces = np.zeros(many * size), np.zeros((atoms * size, 3))
        element = np.searchsorted(self.elements, batch["numbers"])
        known = np.isin(batch["numbers"], self.elements)
        np.add.at(energy, (batch["structure"] * size + element)[known], 1.0)
        pair = _pairs(batch)
        kept = np.isin(pair, self.pairs)
        target, source, shift = (batch[name][kept] for name in ("target", "source", "shift"))
        vectors = (batch["positions"][source] - batch["positions"][target] + shift).astype(float)
        distance = np.linalg.norm(vectors, axis=1)
        values, slopes = _functions(distance, self.cutoff)
        column = len(self.elements) + np.searchsorted(self.pairs, pair[kept])[:, None] * _FUNCTIONS
        column = column + np.arange(_FUNCTIONS)
        at = (batch["structure"][target] * size)[:, None] + column
        energy += np.bincount(at.ravel(), (values / 2).ravel(), len(energy))  # each pair is seen from both ends
        at = (target * size)[:, None] + column
        for axis in range(3):
            along = slopes * (vectors[:, axis] / distance)[:, None]
            forces[:, axis] = np.bincount(at.ravel(), along.ravel(), len(forces))
        return energy.reshape(many, size), forces.reshape(atoms, size, 3).transpose(0, 2, 1)


def _pairs(batch: dict[str, Array]) -> Array:
    """Return a number for the two elements of each edge, the same from both ends."""
    one, other = batch["numbers"][batch["target"]], batch["numbers"][batch["source"]]
    return np.minimum(one, other) * 1000 + np.maximum(one, other)


def _functions(distance: Array, cutoff: float) -> tuple[Array, Array]:
    """Return bumps over the distance that end smoothly at the cutoff, and their slopes."""
    centres = np.linspace(0.8, cutoff, _FUNCTIONS)
    sharp = -0.5 / (centres[1] - centres[0]) ** 2
    off = distance[:, None] - centres
    bump = np.exp(sharp * off**2)
    end = 0.5 * (np.cos(np.pi * distance / cutoff) + 1)[:, None]
    slope = -0.5 * np.pi / cutoff * np.sin(np.pi * distance / cutoff)[:, None]
    return bump * end, bump * (2 * sharp * off * end + slope)
