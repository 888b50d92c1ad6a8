"""How much of the same is tried: everything, or with `pytest --quick` a share of it."""

from __future__ import annotations

quick = False  # set by conftest.py before any test is read


def examples(count: int) -> int:
    """Return how many cases drawn at random to try of that many."""
    return max(count // 8, 4) if quick else count
