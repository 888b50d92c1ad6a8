"""A dense network that takes the parameters of kernels as they are and gives the logarithm of their time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS
from fairmile.benchmarks.suite.sgemm.settings import Settings

SIZES = 10  # the first ten parameters are powers of two, the last four are switches


class TimeModel(nn.Module):
    """Logarithms of sizes and switches, scaled, through dense layers; the scaling is part of the model."""

    centre: torch.Tensor
    scale: torch.Tensor
    output: torch.Tensor

    def __init__(self, settings: Settings, inputs: Any = None, target: Any = None) -> None:
        super().__init__()
        widths = [len(PARAMETERS), *(settings.hidden,) * settings.layers]
        layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*(each for pair in layers for each in pair), nn.Linear(widths[-1], 1))
        raw = torch.ones(2, len(PARAMETERS)) if inputs is None else torch.as_tensor(inputs, dtype=torch.float32)
        known = torch.zeros(2) if target is None else torch.as_tensor(target, dtype=torch.float32)
        values = features(raw)
        self.register_buffer("centre", values.mean(0))
        self.register_buffer("scale", values.std(0, correction=0).clamp_min(1e-3))
        self.register_buffer("output", torch.stack([known.mean(), known.std(correction=0).clamp_min(1e-3)]))

    def forward(self, settings: torch.Tensor) -> torch.Tensor:
        """Return ln(time in ms) of kernels (rows, 14)."""
        scaled = (features(settings) - self.centre) / self.scale
        predicted: torch.Tensor = self.layers(scaled).squeeze(1) * self.output[1] + self.output[0]
        return predicted


def features(settings: torch.Tensor) -> torch.Tensor:
    """Return what a model looks at: ln of the sizes, and the switches."""
    return torch.cat([settings[:, :SIZES].log(), settings[:, SIZES:]], dim=1)
