"""DeepLabV3+ on Xception as MLPerf HPC defines it, and narrower ones of the same shape for small grids."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError

CHANNELS, CLASSES = 16, 3
STRIDE = 16  # factor by which the encoder reduces each edge
_RATES = 1, 6, 12, 18


def _separable(channels: int, wider: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Return a convolution of 3 x 3 for each channel, and one of 1 x 1 over all of them."""
    each = nn.Conv2d(channels, channels, 3, stride, dilation, dilation, groups=channels, bias=False)
    return nn.Sequential(each, nn.Conv2d(channels, wider, 1, bias=False))


def _normalised(layer: nn.Module, channels: int) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class Block(nn.Module):
    """Separable convolutions beside a short way around them; a further one without normalisation can end it."""

    def __init__(
        self, widths: list[int], *, stride: int = 1, is_last: bool = False, ends_with_relu: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, wide in pairwise(widths):
            layers += [_separable(before, wide), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
        layers.pop()
        first, last = widths[0], widths[-1]
        if stride > 1 or is_last:
            layers.append(_separable(last, last, stride=stride))
        self.layers = nn.Sequential(*layers)
        self.ends_with_relu = ends_with_relu
        self.short: nn.Module = nn.Identity()
        if first != last or stride > 1:
            self.short = nn.Sequential(nn.Conv2d(first, last, 1, stride, bias=False), nn.BatchNorm2d(last))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        out = out + self.short(x)
        return functional.relu_(out) if self.ends_with_relu else out


class Xception(nn.Module):
    """The encoder: it returns features of a sixteenth of the grid, and those of a quarter."""

    def __init__(self, channels: int, shrink: int, middle: int) -> None:
        super().__init__()
        at = _narrower(shrink)
        self.entry = nn.Sequential(
            _normalised(nn.Conv2d(channels, at(32), 3, 2, 1, bias=False), at(32)),
            _normalised(nn.Conv2d(at(32), at(64), 3, 1, 1, bias=False), at(64)),
            Block([at(64), at(128), at(128)], stride=2),
        )
        wide = at(728)
        self.middle = nn.Sequential(
            Block([at(128), at(256), at(256)], stride=2),
            Block([at(256), wide, wide], stride=2, is_last=True),
            *(Block([wide] * 4) for _ in range(middle)),
        )
        ends = [at(1024), at(1536), at(1536), at(2048)]
        self.exit = nn.Sequential(
            Block([wide, wide, at(1024)], is_last=True, ends_with_relu=False),
            *(_normalised(_separable(a, b, dilation=2), b) for a, b in pairwise(ends)),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        near: torch.Tensor = self.entry(x)
        return self.exit(self.middle(near)), near


class Pyramid(nn.Module):
    """Views of the features near and far: four dilated convolutions and the mean of the whole grid."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()

        def view(rate: int) -> nn.Module:
            size = 1 if rate == 1 else 3
            padding = 0 if rate == 1 else rate
            return _normalised(nn.Conv2d(channels, out, size, 1, padding, rate, bias=False), out)

        self.views = nn.ModuleList(view(rate) for rate in _RATES)
        self.mean = nn.Conv2d(channels, out, 1, bias=False)
        self.scale, self.shift = nn.Parameter(torch.ones(out, 1, 1)), nn.Parameter(torch.zeros(out, 1, 1))
        self.join = _normalised(nn.Conv2d(out * (len(_RATES) + 1), out, 1, bias=False), out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = functional.relu(self.scale * self.mean(x.mean((2, 3), keepdim=True)) + self.shift)
        views = [view(x) for view in self.views]
        joined: torch.Tensor = self.join(torch.cat([*views, mean.expand_as(views[0])], 1))
        return joined


class DeepLab(nn.Module):
    """Encoder, pyramid, and a decoder of transposed convolutions that joins what the encoder saw at a quarter.

    It takes (samples, 16, rows, columns) and returns logits (samples, 3, rows, columns). `shrink` divides all widths;
    1 and 16 blocks in the middle are the reference.
    """

    def __init__(self, *, shrink: int = 1, middle: int = 16) -> None:
        super().__init__()
        at = _narrower(shrink)
        out, low = at(256), at(48)
        self.encoder = Xception(CHANNELS, shrink, middle)
        self.pyramid = Pyramid(at(2048), out)
        self.near = _normalised(nn.Conv2d(at(128), low, 1, bias=False), low)
        self.up = nn.Sequential(_normalised(_larger(out, out), out), _normalised(_larger(out, out), out))
        self.joined = nn.Sequential(
            _normalised(nn.Conv2d(out + low, out, 3, padding=1, bias=False), out),
            _normalised(nn.Conv2d(out, out, 3, padding=1, bias=False), out),
            nn.Conv2d(out, out, 1),
        )
        self.last = nn.Sequential(_normalised(_larger(out, out), out), _larger(out, CLASSES))
        for layer in [*self.encoder.modules(), *self.pyramid.modules()]:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far, near = self.encoder(x)
        x = torch.cat([self.up(self.pyramid(far)), self.near(near)], 1)
        logits: torch.Tensor = self.last(self.joined(x))
        return logits


def check_grid(rows: int, columns: int) -> None:
    """Raise where the encoder cannot halve a grid four times."""
    if rows % STRIDE or columns % STRIDE:
        raise UsageError(f"DeepCAM: expected a grid with edges that {STRIDE} divides, found {rows} x {columns}")


def _larger(channels: int, out: int) -> nn.Module:
    return nn.ConvTranspose2d(channels, out, 3, 2, 1, 1, bias=False)


def _narrower(shrink: int) -> Callable[[int], int]:
    """Return what divides widths, and leaves at least four channels."""
    return lambda wide: max(wide // shrink, 4)
