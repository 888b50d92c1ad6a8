"""Graph networks whose energies depend on distances, and for DimeNet++ on angles; forces are their derivatives."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ELEMENTS = 95
GRAPH = ("atoms", "numbers", "positions", "structure", "target", "source", "shift")  # what a model takes, in order
TRIPLETS = ("incoming", "outgoing")


class SchNet(nn.Module):
    """Continuous-filter convolutions: messages are weighted by smooth functions of the distance alone."""

    inputs = GRAPH
    centres: torch.Tensor

    def __init__(self, *, width: int, filters: int, interactions: int, gaussians: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.embedding = nn.Embedding(ELEMENTS, width)
        self.reference = nn.Embedding(ELEMENTS, 1)  # the energy that an atom of an element brings
        nn.init.zeros_(self.reference.weight)
        self.interactions = nn.ModuleList(_Convolution(width, filters, gaussians) for _ in range(interactions))
        self.head = nn.Sequential(nn.Linear(width, width // 2), _Softplus(), nn.Linear(width // 2, 1))
        self.register_buffer("centres", torch.linspace(0, cutoff, gaussians))
        self.sharpness = -0.5 / (cutoff / (gaussians - 1)) ** 2

    def forward(
        self,
        atoms: torch.Tensor,
        numbers: torch.Tensor,
        positions: torch.Tensor,
        structure: torch.Tensor,
        target: torch.Tensor,
        source: torch.Tensor,
        shift: torch.Tensor,
    ) -> torch.Tensor:
        """Return the energy of each structure of a batch."""
        distance = (positions[source] - positions[target] + shift).norm(dim=1, keepdim=True)
        spread = torch.exp(self.sharpness * (distance - self.centres) ** 2)
        envelope = 0.5 * (torch.cos(distance * (math.pi / self.cutoff)) + 1)  # smooth where neighbours come and go
        hidden = self.embedding(numbers)
        for interaction in self.interactions:
            hidden = hidden + interaction(hidden, spread, envelope, target, source)
        energy: torch.Tensor = (self.head(hidden) + self.reference(numbers)).squeeze(1)
        return energy.new_zeros(atoms.shape[0]).index_add(0, structure, energy)


class _Convolution(nn.Module):
    def __init__(self, width: int, filters: int, gaussians: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(gaussians, filters), _Softplus(), nn.Linear(filters, filters))
        self.before = nn.Linear(width, filters, bias=False)
        self.after = nn.Sequential(nn.Linear(filters, width), _Softplus(), nn.Linear(width, width))

    def forward(
        self,
        hidden: torch.Tensor,
        spread: torch.Tensor,
        envelope: torch.Tensor,
        target: torch.Tensor,
        source: torch.Tensor,
    ) -> torch.Tensor:
        messages = self.before(hidden)[source] * (self.filter(spread) * envelope)
        gathered = messages.new_zeros(hidden.shape[0], messages.shape[1]).index_add(0, target, messages)
        out: torch.Tensor = self.after(gathered)
        return out


class _Softplus(nn.Module):
    """ln(e^x + 1) - ln 2: smooth, so that forces are, and 0 at 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.softplus(x) - math.log(2)


class DimeNet(nn.Module):
    """DimeNet++: messages live on edges and meet in pairs, weighted by distance and angle."""

    inputs = GRAPH + TRIPLETS
    zeros: torch.Tensor
    norms: torch.Tensor

    def __init__(
        self,
        *,
        width: int = 192,
        blocks: int = 3,
        cutoff: float = 6.0,
        radial: int = 6,
        spherical: int = 7,
        triplet_width: int = 64,
        basis_width: int = 8,
        output_layers: int = 3,
    ) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, radial + 1))
        zeros = _bessel_zeros(spherical, radial)
        at_zeros = _bessel(zeros, spherical + 1)
        norms = torch.stack([math.sqrt(2) / at_zeros[order + 1][order].abs() for order in range(spherical)])
        self.register_buffer("zeros", zeros, persistent=False)
        self.register_buffer("norms", norms, persistent=False)
        self.embedding = nn.Embedding(ELEMENTS, width)
        nn.init.uniform_(self.embedding.weight, -math.sqrt(3), math.sqrt(3))
        self.edge_radial = nn.Linear(radial, width)
        self.edge = nn.Linear(3 * width, width)
        self.outputs = nn.ModuleList(_Output(width, radial, output_layers) for _ in range(blocks + 1))
        self.blocks = nn.ModuleList(
            _Interaction(width, radial, radial * spherical, triplet_width, basis_width) for _ in range(blocks)
        )

    def forward(
        self,
        atoms: torch.Tensor,
        numbers: torch.Tensor,
        positions: torch.Tensor,
        structure: torch.Tensor,
        target: torch.Tensor,
        source: torch.Tensor,
        shift: torch.Tensor,
        incoming: torch.Tensor,
        outgoing: torch.Tensor,
    ) -> torch.Tensor:
        """Return the energy of each structure of a batch."""
        vectors = positions[source] - positions[target] + shift
        distance = vectors.norm(dim=1)
        near = distance / self.cutoff
        envelope = _envelope(near)
        radial = envelope[:, None] * torch.sin(self.frequencies * near[:, None])
        # The edge k → j has the vector from j to k, j → i the one from i to j: at j the angle is between k and i.
        cosine = -(vectors[incoming] * vectors[outgoing]).sum(1) / (distance[incoming] * distance[outgoing])
        spherical = self._spherical(near, envelope)[incoming] * _legendre(cosine, self.zeros.shape[0])[:, :, None]
        spherical = spherical.flatten(1)
        hidden = self.embedding(numbers)
        ends = [hidden[target], hidden[source], functional.silu(self.edge_radial(radial))]
        messages = functional.silu(self.edge(torch.cat(ends, 1)))
        total: torch.Tensor = self.outputs[0](messages, radial, target, numbers.shape[0])
        for block, output in zip(self.blocks, self.outputs[1:], strict=True):
            messages = block(messages, radial, spherical, incoming, outgoing)
            total = total + output(messages, radial, target, numbers.shape[0])
        return total.new_zeros(atoms.shape[0]).index_add(0, structure, total)

    def _spherical(self, near: torch.Tensor, envelope: torch.Tensor) -> torch.Tensor:
        """Return spherical Bessel functions of each edge; the recursion needs double precision near 0."""
        orders = self.zeros.shape[0]
        values = _bessel(near.double()[:, None, None] * self.zeros, orders)
        diagonal = torch.stack([values[order][:, order] for order in range(orders)], 1)
        scaled: torch.Tensor = (diagonal * self.norms).to(near.dtype) * envelope[:, None, None]
        return scaled


class _Output(nn.Module):
    def __init__(self, width: int, radial: int, layers: int) -> None:
        super().__init__()
        self.radial = nn.Linear(radial, width, bias=False)
        self.up = nn.Linear(width, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.last = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, messages: torch.Tensor, radial: torch.Tensor, target: torch.Tensor, atoms: int) -> torch.Tensor:
        weighted = self.radial(radial) * messages
        x = self.up(weighted.new_zeros(atoms, weighted.shape[1]).index_add(0, target, weighted))
        for layer in self.layers:
            x = functional.silu(layer(x))
        energy: torch.Tensor = self.last(x).squeeze(1)
        return energy


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + functional.silu(self.second(functional.silu(self.first(x))))


class _Interaction(nn.Module):
    def __init__(self, width: int, radial: int, spherical: int, triplet_width: int, basis_width: int) -> None:
        super().__init__()
        self.radial = nn.Sequential(
            nn.Linear(radial, basis_width, bias=False), nn.Linear(basis_width, width, bias=False)
        )
        self.spherical = nn.Sequential(
            nn.Linear(spherical, basis_width, bias=False), nn.Linear(basis_width, triplet_width, bias=False)
        )
        self.from_incoming, self.from_outgoing = nn.Linear(width, width), nn.Linear(width, width)
        self.down = nn.Linear(width, triplet_width, bias=False)
        self.up = nn.Linear(triplet_width, width, bias=False)
        self.before = _Residual(width)
        self.middle = nn.Linear(width, width)
        self.after = nn.Sequential(_Residual(width), _Residual(width))

    def forward(
        self,
        messages: torch.Tensor,
        radial: torch.Tensor,
        spherical: torch.Tensor,
        incoming: torch.Tensor,
        outgoing: torch.Tensor,
    ) -> torch.Tensor:
        arriving = functional.silu(self.from_incoming(messages)) * self.radial(radial)
        arriving = functional.silu(self.down(arriving))[incoming] * self.spherical(spherical)
        met = arriving.new_zeros(messages.shape[0], arriving.shape[1]).index_add(0, outgoing, arriving)
        x = functional.silu(self.from_outgoing(messages)) + functional.silu(self.up(met))
        x = functional.silu(self.middle(self.before(x))) + messages
        out: torch.Tensor = self.after(x)
        return out


def _envelope(x: torch.Tensor, power: int = 6) -> torch.Tensor:
    """Return 1/x with a polynomial that brings it and two derivatives to 0 at 1."""
    a, b, c = -(power + 1) * (power + 2) / 2, power * (power + 2), -power * (power + 1) / 2
    high = x ** (power - 1)
    return (1 / x + high * (a + x * (b + x * c))) * (x < 1)


def _legendre(x: torch.Tensor, orders: int) -> torch.Tensor:
    """Return the zonal spherical harmonics of a cosine, one column for each order."""
    values = [torch.ones_like(x), x]
    for order in range(2, orders):
        values.append(((2 * order - 1) * x * values[-1] - (order - 1) * values[-2]) / order)
    norms = [math.sqrt((2 * order + 1) / (4 * math.pi)) for order in range(orders)]
    return torch.stack([value * norm for value, norm in zip(values, norms, strict=False)], 1)


def _bessel(x: torch.Tensor, orders: int) -> list[torch.Tensor]:
    """Return spherical Bessel functions of the first kind, orders 0 and up."""
    values = [torch.sin(x) / x, torch.sin(x) / x**2 - torch.cos(x) / x]
    for order in range(2, orders):
        values.append((2 * order - 1) / x * values[-1] - values[-2])
    return values[:orders]


def _bessel_zeros(orders: int, count: int) -> torch.Tensor:
    """Return the first zeros of each order: each lies between two neighbouring zeros of the order before."""
    zeros = [math.pi * np.arange(1, count + orders)]
    for order in range(1, orders):
        low, high = zeros[-1][:-1].copy(), zeros[-1][1:].copy()
        sign = np.sign(_bessel(torch.from_numpy(low), order + 1)[order].numpy())
        for _ in range(60):
            middle = (low + high) / 2
            is_low = np.sign(_bessel(torch.from_numpy(middle), order + 1)[order].numpy()) == sign
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        zeros.append(low)
    return torch.from_numpy(np.stack([each[:count] for each in zeros]))
