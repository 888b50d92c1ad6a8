"""Atomic structures with energies and forces, one after the other in flat arrays, and the graphs of their atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.suite.opencatalyst.neighbours import find_edges, find_triplets

Array = NDArray[Any]


@dataclass(frozen=True)
class Structure:
    """One structure: energies in eV, lengths in Å, forces in eV/Å."""

    numbers: Array
    positions: Array
    cell: Array
    free: Array  # atoms that may move: the metric counts their forces alone
    energy: float
    forces: Array
    system: str = ""


@dataclass(frozen=True)
class Structures:
    """Many structures and their edges; those of structure i begin at `first_atom[i]` and `first_edge[i]`."""

    first_atom: Array
    first_edge: Array
    energy: Array
    numbers: Array
    positions: Array
    forces: Array
    free: Array
    target: Array  # counted within its structure
    source: Array
    shift: Array  # images @ cell in Å

    def __len__(self) -> int:
        return len(self.energy)

    def save(self, folder: Path, part: str) -> None:
        """Write each array beside the others, so that it can be mapped."""
        for each in fields(self):
            np.save(folder / f"{part}-{each.name}.npy", getattr(self, each.name))

    @classmethod
    def mapped(cls, folder: Path, part: str) -> Structures:
        """Return structures whose arrays stay on disk until they are read."""
        return cls(**{each.name: np.load(folder / f"{part}-{each.name}.npy", mmap_mode="r") for each in fields(cls)})


def join(structures: Sequence[Structure], cutoff: float, neighbours: int) -> Structures:
    """Find the edges of structures and put all of them one after the other."""
    edges = [_edges(each, cutoff, neighbours) for each in structures]
    return Structures(
        first_atom=_starts([len(each.numbers) for each in structures]),
        first_edge=_starts([len(each[0]) for each in edges]),
        energy=np.array([each.energy for each in structures], np.float32),
        numbers=np.concatenate([each.numbers for each in structures]).astype(np.int16),
        positions=np.concatenate([each.positions for each in structures]).astype(np.float32),
        forces=np.concatenate([each.forces for each in structures]).astype(np.float32),
        free=np.concatenate([each.free for each in structures]).astype(bool),
        target=np.concatenate([each[0] for each in edges]).astype(np.int32),
        source=np.concatenate([each[1] for each in edges]).astype(np.int32),
        shift=np.concatenate([each[2] for each in edges]).astype(np.float32),
    )


def _edges(structure: Structure, cutoff: float, neighbours: int) -> tuple[Array, Array, Array]:
    target, source, images = find_edges(structure.positions, structure.cell, np.ones(3, bool), cutoff, neighbours)
    return target, source, images @ structure.cell


def _starts(counts: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True)
class GraphSamples:
    """Structures as samples: a batch is one graph, whose parts do not touch."""

    structures: Structures
    has_triplets: bool = False

    def __len__(self) -> int:
        return len(self.structures)

    def batch(self, numbers: Array) -> dict[str, Array]:
        """Return the structures with these numbers; atoms and edges are counted through the whole batch."""
        data = self.structures
        atoms, of_atom = _ranges(data.first_atom, numbers)
        edges, of_edge = _ranges(data.first_edge, numbers)
        counts = np.diff(data.first_atom)[numbers]
        first = (np.cumsum(counts) - counts)[of_edge]
        batch: dict[str, Array] = {
            "energy": data.energy[numbers],
            "atoms": counts,
            "numbers": data.numbers[atoms].astype(np.int64),
            "positions": data.positions[atoms],
            "forces": data.forces[atoms],
            "free": data.free[atoms],
            "structure": of_atom,
            "target": data.target[edges] + first,
            "source": data.source[edges] + first,
            "shift": data.shift[edges],
        }
        if self.has_triplets:
            batch["incoming"], batch["outgoing"] = find_triplets(batch["target"], batch["source"], batch["shift"])
        return batch


def _ranges(starts: Array, numbers: Array) -> tuple[Array, Array]:
    """Return the places of all rows of these structures, and which structure of the batch each belongs to."""
    counts = np.diff(starts)[numbers]
    owner = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    return starts[numbers][owner] + within, owner
