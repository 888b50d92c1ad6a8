"""The reference network and a small convolutional one."""

from __future__ import annotations

import torch
from torch import nn

from fairmile.benchmarks.suite.mnist.settings import Settings


def make_model(settings: Settings, side: int) -> nn.Module:
    """Return a model that takes images of `side` x `side` pixels and gives ten logits."""
    if settings.model == "cnn":
        return Cnn(side, settings.hidden, settings.dropout)
    layers = [nn.Flatten(), nn.Linear(side * side, settings.hidden), nn.ReLU(), nn.Dropout(settings.dropout)]
    return nn.Sequential(*layers, nn.Linear(settings.hidden, 10))


class Cnn(nn.Module):
    """Two convolutions of 3 x 3, each with pooling, and one hidden layer."""

    def __init__(self, side: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Sequential(
            *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, hidden), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images without a channel axis."""
        logits: torch.Tensor = self.head(self.features(images.unsqueeze(1)))
        return logits
