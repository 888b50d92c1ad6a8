"""One training step, as `fairmile predict` asks for it."""

from types import SimpleNamespace

import torch
from torch import nn


def build(batch=32, width=64, precision="fp32"):
    """Return a small network for images, its loss on made-up images, and its optimizer."""
    model = nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(2 * width, 1000)),
    )

    def loss(model):
        images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
        return nn.functional.cross_entropy(model(images), labels)

    return SimpleNamespace(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        precision=precision,
    )
