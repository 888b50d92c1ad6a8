"""Uno: a tower of dense layers for each input, joined by more dense layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from fairmile.benchmarks.suite.uno.settings import Settings

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.uno.data import Parts


class Scaling(nn.Module):
    """Bring each feature to mean 0 and spread 1 over what was learned from; part of the model, but not trained."""

    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, size: int, known: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(size) if known is None else known.mean(0))
        spread = torch.ones(size) if known is None else known.std(0, correction=0)
        self.register_buffer("scale", torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features scaled."""
        return (features - self.centre) / self.scale


class Uno(nn.Module):
    """The published network, of any width; `rows` to learn from set the scaling of features."""

    def __init__(self, settings: Settings, parts: Parts | None = None) -> None:
        super().__init__()
        genes, descriptors = settings.genes, settings.descriptors
        if parts is not None:
            genes, descriptors = parts.screen.cells.shape[1], parts.screen.drugs.shape[1]
        cells, drugs = (_known(parts, which) for which in range(2))
        self.cell_scaling, self.drug_scaling = Scaling(genes, cells), Scaling(descriptors, drugs)
        width, tower, drop = settings.width, (settings.width,) * settings.tower_layers, settings.dropout
        self.cell_tower, self.drug_tower = dense((genes, *tower), drop), dense((descriptors, *tower), drop)
        self.joined = dense((2 * tower[-1], *(width,) * settings.joint_layers), drop)
        self.output = nn.Linear(width, 1)

    def forward(self, cell: torch.Tensor, drug: torch.Tensor) -> torch.Tensor:
        """Return the AUC of pairs with these expressions (pairs, genes) and descriptors (pairs, descriptors)."""
        towers = self.cell_tower(self.cell_scaling(cell)), self.drug_tower(self.drug_scaling(drug))
        predicted: torch.Tensor = self.output(self.joined(torch.cat(towers, dim=1))).squeeze(1)
        return predicted


def dense(widths: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Return dense layers with ReLU, and dropout after each."""
    layers = [(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in pairwise(widths)]
    return nn.Sequential(*(each for layer in layers for each in layer))


def _known(parts: Parts | None, which: int) -> torch.Tensor | None:
    """Return the cell lines or the drugs that training sees."""
    if parts is None:
        return None
    screen = parts.screen
    features, number = ((screen.cells, screen.cell), (screen.drugs, screen.drug))[which]
    seen = torch.zeros(len(features), dtype=torch.bool)
    seen[torch.as_tensor(number[parts.train])] = True
    return torch.as_tensor(features)[seen]
