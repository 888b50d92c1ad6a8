"""The U-Net of the published benchmark, with its width and depth free, and the same with batch normalisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError

CHANNELS = 9


class Pair(nn.Module):
    """Two convolutions of 3 x 3 with ReLU, each normalised over the batch if asked."""

    def __init__(self, channels: int, wider: int, *, is_normalised: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before in (channels, wider):
            layers.append(nn.Conv2d(before, wider, 3, padding=1, bias=not is_normalised))
            layers += [nn.BatchNorm2d(wider)] if is_normalised else []
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class UNet(nn.Module):
    """Encoder that doubles its channels `depth` times, decoder that joins what the encoder saw at the same size.

    It takes (samples, 9, height, width) and returns logits (samples, height, width). Width 32 and depth 3 without
    normalisation are the reference.
    """

    def __init__(self, *, width: int = 32, depth: int = 3, is_normalised: bool = False) -> None:
        super().__init__()
        wide = [width << level for level in range(depth + 1)]
        pairs = list(zip([CHANNELS, *wide], wide, strict=False))
        self.down = nn.ModuleList(Pair(a, b, is_normalised=is_normalised) for a, b in pairs)
        self.up = nn.ModuleList(Pair(3 * a, a, is_normalised=is_normalised) for a in reversed(wide[:-1]))
        self.last = nn.Conv2d(width, 1, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.xavier_uniform_(self.last.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down[0](x)
        seen = []
        for pair in list(self.down)[1:]:
            seen.append(x)
            x = pair(functional.max_pool2d(x, 2))
        for pair, skipped in zip(self.up, reversed(seen), strict=True):
            x = pair(torch.cat([functional.interpolate(x, scale_factor=2.0), skipped], 1))
        logits: torch.Tensor = self.last(x)
        return logits.squeeze(1)


def check_edge(edge: int, depth: int) -> None:
    """Raise where patches cannot be halved as often as the network does."""
    if edge % (1 << depth):
        raise UsageError(
            f"parameter patch: expected a multiple of {1 << depth} for depth {depth}, found {edge}",
            hint="each level of the U-Net halves the patch",
        )
