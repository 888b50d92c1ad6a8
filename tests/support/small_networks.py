"""Six small networks of different kinds, each with inputs: what a converter of models must get right."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GELU()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.head(self.layers(x).mean((2, 3))), -1)


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(2, 4, 2), nn.LeakyReLU(0.3), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(32, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return torch.tanh(result) * 1.2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        result: Tensor = self.head(outputs[:, -1])
        return result


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.encoder(x)
        return result


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1, stride=2)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        deep = torch.relu(self.middle(torch.relu(self.down(x))))
        wide = nn.functional.interpolate(deep, scale_factor=2, mode="bilinear", align_corners=False)
        return (
            torch.cat([x, self.up(deep) + wide], 1).mul(0.5).transpose(2, 3) @ torch.ones(16, 1)
            + self.last(torch.cat([x, wide], 1)).mean()
        )


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(4, 8)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        states = torch.relu(self.message(x))
        places = target.unsqueeze(-1).expand(-1, 8)
        return torch.zeros_like(states).scatter_add(0, places, states[source])


def small_networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the networks, from one seed, with inputs."""
    torch.manual_seed(0)
    edges = torch.randint(0, 6, (2, 11))
    return {
        "cnn": (Convolutions().eval(), (torch.randn(2, 3, 12, 12),)),
        "conv3d": (Volumes().eval(), (torch.randn(2, 2, 5, 5, 5),)),
        "lstm": (Recurrent().eval(), (torch.randn(2, 7, 6),)),
        "transformer": (Attention().eval(), (torch.randn(2, 5, 16),)),
        "unet": (Skips().eval(), (torch.randn(2, 1, 16, 16),)),
        "gnn": (Graph().eval(), (torch.randn(6, 4), edges[0], edges[1])),
    }
