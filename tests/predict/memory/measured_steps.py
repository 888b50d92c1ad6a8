"""Steps whose memory was measured on one NVIDIA H200 with torch 2.11.0+cu130 (2026-11-15)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class CosmoFlow(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 4
        for width in (32, 64, 128, 256, 512):
            layers += [nn.Conv3d(channels, width, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
            channels = width
        self.conv = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * (side // 32) ** 3, 128),
            nn.LeakyReLU(0.3),
            nn.Dropout(0.5),
            nn.Linear(128, 64),
            nn.LeakyReLU(0.3),
            nn.Dropout(0.5),
            nn.Linear(64, 4),
            nn.Tanh(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.conv(x)) * 1.2
        return out


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Linear(128, 256)
        self.lin = nn.ModuleList(nn.Linear(512, 256) for _ in range(4))
        self.out = nn.Linear(256, 1)

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hidden = self.emb(x)
        for layer in self.lin:
            message = functional.silu(layer(torch.cat([hidden[source], hidden[target]], -1)))
            hidden = hidden + torch.zeros_like(hidden).index_add_(0, target, message.to(hidden.dtype))
        out: torch.Tensor = self.out(hidden)
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(64, 1024, 2, batch_first=True)
        self.out = nn.Linear(1024, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.rnn(x)[0])
        return out


def cosmoflow(batch: int, side: int, precision: str) -> Any:
    return step(CosmoFlow(side), lambda: (torch.randn(batch, 4, side, side, side),), (batch, 4), momentum, precision)


def perceptron(batch: int) -> Any:
    layers = [layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    plain = torch.optim.SGD
    return step(nn.Sequential(*layers, nn.Linear(4096, 1)), lambda: (torch.randn(batch, 4096),), (batch, 1), plain)


def graph(batch: int) -> Any:
    nodes, edges = 80 * batch, 3200 * batch

    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.randn(nodes, 128), torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))

    return step(Graph(), inputs, (nodes, 1), torch.optim.AdamW, loss=functional.l1_loss)


def recurrent(batch: int, steps: int) -> Any:
    return step(Recurrent(), lambda: (torch.randn(batch, steps, 64),), (batch, steps, 4), torch.optim.Adam)


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)


def step(
    model: nn.Module, inputs: Any, target: tuple[int, ...], optimizer: Any, precision: str = "fp32", loss: Any = None
) -> Any:
    made: list[Any] = []

    def run(net: Any) -> torch.Tensor:
        if not made:
            made.extend((inputs(), torch.randn(*target)))
        out: torch.Tensor = (loss or functional.mse_loss)(net(*made[0]).float(), made[1])
        return out

    return SimpleNamespace(model=model, loss=run, optimizer=optimizer, precision=precision)
