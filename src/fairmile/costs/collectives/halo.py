"""The grid that neighbouring ranks exchange halos on, and the bytes of its faces."""

from __future__ import annotations


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


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return sorted([*factors, *([number] if number > 1 else [])], reverse=True)
