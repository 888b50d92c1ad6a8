"""Which candidate is fastest: turns of all candidates compared round by round, without assuming a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairmile.base.quick_dataclass import dataclass

CHANCE = 0.05  # of at least one wrong verdict in an exploration
LOOKS = 3
EQUAL = 0.05  # candidates closer than this are equal for every purpose
_FEWEST = 8


@dataclass(frozen=True)
class Interval:
    """A median and the interval that holds it."""

    middle: float
    low: float
    high: float


def median_interval(values: Sequence[float], chance: float = CHANCE) -> Interval | None:
    """Return the median and its interval by order statistics, None where there are too few values for one.

    The median lies outside of the interval with a probability of at most `chance`, whatever the distribution is.
    """
    ordered, count = sorted(values), len(values)
    tail, below = 0.0, -1
    while below + 1 < count // 2:
        tail += math.comb(count, below + 1) * 0.5**count
        if 2 * tail > chance:
            break
        below += 1
    if below < 0:
        return None
    return Interval(middle(ordered), ordered[below], ordered[count - 1 - below])


def middle(ordered: Sequence[float]) -> float:
    """Return the median of values in order."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def rounds_needed(candidates: int) -> tuple[int, ...]:
    """Return after how many rounds to look whether the order is decided: the first time that it can be."""
    least = math.ceil(math.log2(2 / _chance_of_pair(candidates)))
    first = max(_FEWEST, least)
    return tuple(first * 2**look for look in range(LOOKS))


def _chance_of_pair(candidates: int) -> float:
    pairs = max(1, candidates * (candidates - 1) // 2)
    return CHANCE / (pairs * LOOKS)


@dataclass(frozen=True)
class Order:
    """Who leads, who cannot be told from it, and by how much the others are slower."""

    leader: str
    ratios: Mapping[str, Interval]  # of each other candidate's cost to the leader's
    equal: tuple[str, ...] = ()  # within EQUAL of the leader
    open: tuple[str, ...] = ()  # cannot be told from the leader

    @property
    def is_decided(self) -> bool:
        return not self.open


def order_of(costs: Mapping[str, Sequence[float]], candidates: int = 0) -> Order:
    """Return the order of candidates by their costs in the same rounds; the lower, the better.

    `candidates` is how many there were at first, where some have been left out.

    Rounds are compared in pairs, so that what slows down the whole machine for a while slows down both. Intervals
    allow for all pairs of candidates and for all looks.
    """
    chance = _chance_of_pair(max(candidates, len(costs)))
    leader = min(costs, key=lambda name: middle(sorted(costs[name])))
    ratios: dict[str, Interval] = {}
    equal, still_open = list[str](), list[str]()
    for name, values in costs.items():
        if name == leader:
            continue
        pairs = [other / own for own, other in zip(costs[leader], values, strict=False)]
        ratio = median_interval(pairs, chance)
        ratios[name] = ratio or Interval(middle(sorted(pairs)), 0.0, math.inf)
        if ratio is not None and ratio.low > 1.0:
            continue
        is_close = ratio is not None and ratio.low >= 1 / (1 + EQUAL) and ratio.high <= 1 + EQUAL
        (equal if is_close else still_open).append(name)
    return Order(leader, ratios, tuple(equal), tuple(still_open))
