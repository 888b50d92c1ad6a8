"""How much of the same is tried: everything, or with `pytest --quick` a share of it."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

Case = TypeVar("Case")
quick = False  # set by conftest.py before any test is read
_MOST_CASES = 2
# What waits for programs, services and machines. What shares a server and a browser comes first: workers that run out
# of work take the last tests of another, and would start both for a few of them.
_WAITING = ("web/", "docs/", "runs/execute/", "e2e/", "sweeps/", "flows/", "jobs/", "traces/", "transfer/fetchers/")


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
    return {item for name, each in cases.items() for item in some(name, each)}


def some(name: str, cases: list[Case]) -> list[Case]:
    """Return the few cases of a test that the quick tier tries."""
    count = len(cases)
    if count <= _MOST_CASES:
        return cases
    first = zlib.crc32(name.encode())
    return [cases[(first + number * count // _MOST_CASES) % count] for number in range(_MOST_CASES)]


def in_turns(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order by which half of the workers begin with what waits, and the others with what computes.

    Each worker is handed as many tests that follow each other as any other; who has done them takes from the others.
    """
    folders = {item: item.path.as_posix().partition("/tests/")[2] for item in items}
    groups = [[item for item in items if folders[item].startswith(folder)] for folder in _WAITING]
    waiting = [item for group in groups for item in group]
    known = set(waiting)
    computing = [item for item in items if item not in known]
    order: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(order)) // (workers - worker)
        first = _share(waiting, worker, max(workers // 2, 1))
        more = max(size - len(first), 0)
        order += first + computing[:more]
        del computing[:more]
    return order + computing


def _share(items: list[pytest.Item], worker: int, workers: int) -> list[pytest.Item]:
    if worker >= workers:
        return []
    return items[len(items) * worker // workers : len(items) * (worker + 1) // workers]
