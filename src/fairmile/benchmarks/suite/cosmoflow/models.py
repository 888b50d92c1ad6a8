"""The network of MLPerf HPC, and smaller ones of the same shape for smaller cubes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError

SLOPE = 0.3  # of Keras, with which the reference was defined; PyTorch's own default is 0.01
BOUND = 1.2  # outputs lie in (-1.2, 1.2), so that the edge of the parameters is within reach


class Block(nn.Module):
    """Convolution of 3^3, LeakyReLU, and pooling by the maximum.

    Adding a constant and LeakyReLU keep the order of numbers, so that they come after the pooling: the same result,
    to the last bit, from an eighth of the work and less than half of the memory.
    """

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(channels, wider, kernel_size=3, padding=1, bias=False)
        self.bias = nn.Parameter(torch.zeros(wider))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool3d(self.convolution(x), 2)
        return functional.leaky_relu(x + self.bias.to(x.dtype)[:, None, None, None], SLOPE, inplace=True)


class CosmoFlow(nn.Module):
    """Convolutions of 3^3 that double their channels, each followed by LeakyReLU and pooling; three dense layers.

    It takes counts of any type as (samples, channels, depth, height, width). ln(counts + 1), or without `is_log` the
    counts over their mean, is computed here, where a compiler can fuse it with what follows.
    """

    def __init__(
        self,
        size: int,
        *,
        channels: int = 4,
        width: int = 32,
        depth: int = 5,
        dropout: float = 0.5,
        is_log: bool = True,
    ) -> None:
        super().__init__()
        edge = size >> depth
        if depth < 1 or edge < 1 or edge << depth != size:
            raise UsageError(
                f"{depth} layers halve the cube each, which an edge of {size} cells does not allow",
                hint=f"set depth or a size that {2 ** max(depth, 1)} divides",
            )
        self.is_log = is_log
        wide = [channels] + [width << layer for layer in range(depth)]
        self.blocks = nn.ModuleList(Block(a, b) for a, b in pairwise(wide))
        self.dense = nn.ModuleList([nn.Linear(wide[-1] * edge**3, 128), nn.Linear(128, 64)])
        self.last = nn.Linear(64, 4)
        self.dropout = nn.Dropout(dropout)
        for layer in self.modules():
            if isinstance(layer, nn.Conv3d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, counts: torch.Tensor) -> torch.Tensor:
        x = counts.to(self.last.weight.dtype)
        x = torch.log1p(x) if self.is_log else x / x.mean(dim=(1, 2, 3, 4), keepdim=True)
        for block in self.blocks:
            x = block(x)
        return self._dense(x)

    def _dense(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.dense:
            x = self.dropout(functional.leaky_relu(layer(x), SLOPE))
        return BOUND * torch.tanh(self.last(x).to(self.last.weight.dtype))


def flops(size: int, *, channels: int = 4, width: int = 32, depth: int = 5) -> Iterator[tuple[str, float, bool]]:
    """Yield each layer's floating-point operations for one sample forward, and whether its input needs a gradient."""
    wide = [channels] + [width << layer for layer in range(depth)]
    for layer in range(depth):
        yield f"convolution {layer + 1}", 2.0 * 27 * wide[layer] * wide[layer + 1] * (size >> layer) ** 3, layer > 0
    flat = wide[-1] * (size >> depth) ** 3
    for name, a, b in (("dense 1", flat, 128), ("dense 2", 128, 64), ("dense 3", 64, 4)):
        yield name, 2.0 * a * b, True


def training_flops(size: int, *, channels: int = 4, width: int = 32, depth: int = 5) -> float:
    """Return the operations of one sample forward and backward; the first layer needs no gradient of its input."""
    layers = flops(size, channels=channels, width=width, depth=depth)
    return sum(forward * (3 if has_gradient else 2) for _, forward, has_gradient in layers)
