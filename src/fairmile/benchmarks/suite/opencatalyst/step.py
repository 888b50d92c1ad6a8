"""One training step of OpenCatalyst, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.opencatalyst.benchmark import Data, OpenCatalystTask
from fairmile.benchmarks.suite.opencatalyst.settings import choose

# Means of OC20 with 50 neighbours, and of the structures that are made here.
_ATOMS, _ATOMS_MADE = 77, 13


def build(**params: Any) -> OneStep:
    """Return a step of structures that are all alike; `preset=mlperf` is the published benchmark."""
    settings = choose(params, has_data=False)
    no_structures: Any = None
    task = OpenCatalystTask(settings, Data(no_structures, no_structures, is_real=False, words=""))

    def batch() -> dict[str, torch.Tensor]:
        return alike(settings.batch_size, _ATOMS if settings.preset == "mlperf" else _ATOMS_MADE, settings.neighbours)

    return one_step(settings, task.model(), task.loss, batch, in_batch=settings.batch_size)


def alike(structures: int, atoms: int, neighbours: int) -> dict[str, torch.Tensor]:
    """Return a batch in which every atom has as many neighbours, and every edge as many edges that end at it."""
    each = min(neighbours or atoms - 1, atoms - 1)
    many, edges = structures * atoms, structures * atoms * each
    atom = torch.arange(many)
    target = torch.arange(edges) // each
    source = target // atoms * atoms + (target + torch.arange(edges) % each + 1) % atoms
    triplets = torch.arange(edges * (each - 1))
    outgoing = triplets // (each - 1)
    place = torch.stack([atom % 5, atom // 5 % 5, atom // 25 % 5], 1).float()
    return {
        "energy": torch.zeros(structures),
        "atoms": torch.full((structures,), atoms),
        "numbers": torch.full((many,), 29),
        "positions": place * 2.5,
        "forces": torch.zeros(many, 3),
        "free": torch.ones(many, dtype=torch.bool),
        "structure": atom // atoms,
        "target": target,
        "source": source,
        "shift": torch.zeros(edges, 3),
        "incoming": (outgoing + triplets % (each - 1) + 1) % edges,
        "outgoing": outgoing,
    }
