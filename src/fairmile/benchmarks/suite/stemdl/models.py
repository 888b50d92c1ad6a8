"""Networks for patterns of three projections: a small one, and ResNet-50 as published; each with two heads."""

from __future__ import annotations

import torch
from torch import nn

from fairmile.benchmarks.suite.stemdl.crystals import PATTERSON_POWERS, patterson_waves
from fairmile.benchmarks.suite.stemdl.data import CLASSES, POTENTIAL_PIXELS
from fairmile.benchmarks.suite.stemdl.settings import Settings

_SMALL = (16, 32, 64)
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks and stride
_PATTERNS = 3


class StemModel(nn.Module):
    """Patterns to logits of space groups and, where the settings ask for it, to projected potentials."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        is_published = settings.model == "resnet50"
        self.body = _resnet50() if is_published else _small()
        features = 2048 if is_published else _SMALL[-1]
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.groups = nn.Linear(features, CLASSES)
        self.potential = PotentialHead(settings.pixels, features) if settings.potential_weight else None
        self.scale = 1.0 if is_published else 1 / 64  # the published network takes what is in the files

    def forward(self, patterns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (samples, 231) and potentials (samples, 3, 16, 16), which are empty without that head."""
        features = self.pool(self.body(patterns * self.scale))
        groups = self.groups(features)
        return groups, groups[:, :0] if self.potential is None else self.potential(patterns, features)


class PotentialHead(nn.Module):
    """Patterson maps of the patterns to projected potentials, by convolutions that the features of the body steer.

    A map has a peak for each vector between two atoms, at any rotation of the crystal; what tells these from the atoms
    themselves is the kind of crystal, which the body learns for the space group.
    """

    cosines: torch.Tensor
    sines: torch.Tensor
    scattered: torch.Tensor

    def __init__(self, pixels: int, features: int, width: int = 24) -> None:
        super().__init__()
        waves = patterson_waves(pixels, POTENTIAL_PIXELS)
        for name, values in zip(("cosines", "sines", "scattered"), waves, strict=True):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32), persistent=False)
        self.first = nn.Conv2d(len(PATTERSON_POWERS), width, 3, padding=1)
        self.steer = nn.Linear(features, 2 * width)
        self.last = nn.Sequential(
            *(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1))
        )

    def forward(self, patterns: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return potentials (samples, 3, 16, 16)."""
        maps = patterson(patterns.reshape(-1, *patterns.shape[2:]), self.cosines, self.sines, self.scattered)
        gain, shift = self.steer(features).repeat_interleave(_PATTERNS, 0)[..., None, None].chunk(2, 1)
        potential: torch.Tensor = self.last(self.first(maps) * (1 + gain) + shift)
        return potential.reshape(-1, _PATTERNS, POTENTIAL_PIXELS, POTENTIAL_PIXELS)


def patterson(
    patterns: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, scattered: torch.Tensor
) -> torch.Tensor:
    """Return Patterson maps (samples, 2, 16, 16) of patterns as published, for two powers of the intensity."""
    logarithms = patterns.float() / 10 - 17
    maps = []
    for power in PATTERSON_POWERS:
        amplitudes = (logarithms * power).exp() * scattered
        each = cosines @ amplitudes @ cosines.T - sines @ amplitudes @ sines.T
        maps.append(each / (each.square().mean((1, 2), keepdim=True).sqrt() + 1e-6))
    return torch.stack(maps, 1)


def _small() -> nn.Sequential:
    layers: list[nn.Module] = []
    before = _PATTERNS
    for width in _SMALL:
        layers += [nn.Conv2d(before, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers)


class Bottleneck(nn.Module):
    """Convolutions of 1, 3 and 1 around which the input passes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        is_same = stride == 1 and before == 4 * width
        shortcut = (nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def _resnet50() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(_PATTERNS, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for width, blocks, stride in _STAGES:
        for number in range(blocks):
            layers.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers)
