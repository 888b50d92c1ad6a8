"""What neighbours on a grid of ranks exchange: the faces of each rank's block, and which of them leave the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.links import Topology


def grid_of(ranks: int, dimensions: int = 3) -> tuple[int, ...]:
    """Return the most even grid of so many ranks, the longest side first."""
    sides = [1] * dimensions
    for factor in _prime_factors(ranks):
        sides[sides.index(min(sides))] *= factor
    return tuple(sorted(sides, reverse=True))


def face_bytes(n_bytes: float, ranks: int, dimensions: int = 3) -> tuple[float, ...]:
    """Return the bytes of each face of a rank in the middle, where `n_bytes` are shared equally by all its faces."""
    faces = sum(2 for side in grid_of(ranks, dimensions) if side > 1)
    return tuple([n_bytes / faces] * faces) if faces else ()


@dataclass(frozen=True)
class Halo:
    """A domain cut over a grid of ranks, the last dimension's neighbours being next to each other in rank."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    width: int = 1
    element_bytes: int = 4
    channels: int = 1
    periodic: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.ranks) or not self.shape:
            raise UsageError(f"a domain {self.shape} cannot be cut over ranks {self.ranks}: the dimensions differ")
        if any(cut < 1 or length < cut for length, cut in zip(self.shape, self.ranks, strict=True)):
            raise UsageError(f"a domain {self.shape} cannot be cut over ranks {self.ranks}: a block would be empty")

    @property
    def block(self) -> tuple[int, ...]:
        """The largest block that one rank holds."""
        return tuple(-(-length // cut) for length, cut in zip(self.shape, self.ranks, strict=True))

    def faces(self) -> tuple[tuple[int, float], ...]:
        """Return (dimension, bytes) of each face that a rank with all its neighbours sends."""
        block = self.block
        found = []
        for dimension, cut in enumerate(self.ranks):
            if cut == 1:
                continue
            area = math.prod(length for other, length in enumerate(block) if other != dimension)
            size = float(area * min(self.width, block[dimension]) * self.element_bytes * self.channels)
            neighbours = 2 if self.periodic or cut > 2 else 1
            found += [(dimension, size)] * neighbours
        return tuple(found)

    def bytes_sent(self) -> float:
        """Return what a rank with all its neighbours sends in one exchange."""
        return sum(size for _, size in self.faces())

    def time_s(self, topology: Topology) -> float:
        """Return the time of one exchange, where all faces leave at once and those that leave the node share it."""
        ranks = math.prod(self.ranks)
        inside = self._inside(min(topology.ranks_per_node, ranks))
        intra = [size for dimension, size in self.faces() if inside[dimension]]
        inter = [size for dimension, size in self.faces() if not inside[dimension]]
        times = []
        if intra:
            link = topology.intra
            times.append(sum(link.interval_s(size) for size in intra[:-1]) + link.message_s(intra[-1]))
        if inter:
            link = topology.inter_shared
            times.append(sum(link.interval_s(size) for size in inter[:-1]) + link.message_s(inter[-1]))
        return max(times, default=0.0)

    def _inside(self, per_node: int) -> Sequence[bool]:
        """Tell for each dimension whether all neighbours along it are on the same node."""
        inside, stride = [False] * len(self.ranks), 1
        for dimension in reversed(range(len(self.ranks))):
            stride *= self.ranks[dimension]
            inside[dimension] = per_node % stride == 0
        return inside


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return sorted([*factors, *([number] if number > 1 else [])], reverse=True)
