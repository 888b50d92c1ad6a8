"""How much of the same is tried: everything, or with `pytest --quick` a share of it."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

quick = False  # set by conftest.py before any test is read
_MOST_CASES = 2


def examples(count: int) -> int:
    """Return how many cases drawn at random to try of that many."""
    return max(count // 16, 4) if quick else count


def wanted(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests of the quick tier: none that is thorough, and a few of the cases of each.

    Which cases depends on the name of a test, so that tests over the same list together try most of it.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("thorough"):
            cases[item.nodeid.partition("[")[0]].append(item)
    return {item for name, each in cases.items() for item in _some(name, each)}


def _some(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    count = len(cases)
    if count <= _MOST_CASES:
        return cases
    first = zlib.crc32(name.encode())
    return [cases[(first + number * count // _MOST_CASES) % count] for number in range(_MOST_CASES)]
