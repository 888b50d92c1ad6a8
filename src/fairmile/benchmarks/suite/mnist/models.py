"""The reference network, a convolutional and a recurrent one, and an autoencoder."""

from __future__ import annotations

import torch
from torch import nn

from fairmile.benchmarks.suite.mnist.settings import Settings


def make_model(settings: Settings, side: int) -> nn.Module:
    """Return a model that takes images of `side` x `side` pixels and gives ten logits, or the images again."""
    if settings.model == "cnn":
        return Cnn(side, settings.hidden, settings.dropout)
    if settings.model == "lstm":
        return Lstm(side, settings.hidden, settings.dropout)
    if settings.model == "autoencoder":
        return Autoencoder(side, settings)
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


class Lstm(nn.Module):
    """An LSTM that reads an image row by row, from the top; its last state is classified."""

    def __init__(self, side: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.rows = nn.LSTM(side, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images without a channel axis."""
        states, _ = self.rows(images)
        logits: torch.Tensor = self.head(states[:, -1])
        return logits


class Autoencoder(nn.Module):
    """Dense layers down to a few numbers, and back to the image."""

    def __init__(self, side: int, settings: Settings) -> None:
        super().__init__()
        pixels, hidden, code = side * side, settings.hidden, settings.code
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Sigmoid())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of the same form, restored."""
        restored: torch.Tensor = self.decoder(self.encoder(images))
        return restored.reshape(images.shape)
