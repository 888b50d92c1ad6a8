"""How many rings fit through the direct links of some accelerators of a node: without a switch, this decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, permutations
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
Way: TypeAlias = tuple[tuple[Pair, int], ...]  # the links that a ring needs, and how many of each

# NVIDIA DGX-1 with V100, as `nvidia-smi topo -m` shows it: two GPUs → links between them.
DGX1_V100: Mapping[Pair, int] = {
    **{(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2},
    **{(2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2},
}
# Where a ring must pass through a third GPU: 5 V100 reach 37 GB/s in the public tables, and two rings 45 elsewhere.
_THROUGH_ANOTHER = 0.82


@cache
def cube_mesh_rings(ranks: int) -> float:
    """Return how many rings the first GPUs of a DGX-1 form, each of one link's bandwidth; 0 where there is no ring."""
    return ring_count(DGX1_V100, tuple(range(ranks)))


def ring_count(links: Mapping[Pair, int], members: Sequence[int]) -> float:
    """Return how many rings through all members their links carry at once; less than whole if others must help.

    Links carry both directions, so each way around counts for two rings, one each way; two members make one of each
    link between them.
    """
    if len(members) < 2:
        return 0.0
    if len(members) == 2:
        return float(_between(links, members[0], members[1]))
    whole = 2 * _most(links, list(_ways(links, members, through_others=False)))
    if whole:
        return float(whole)
    return 2 * _most(links, list(_ways(links, members, through_others=True))) * _THROUGH_ANOTHER


def _between(links: Mapping[Pair, int], a: int, b: int) -> int:
    return links.get((min(a, b), max(a, b)), 0)


def _ways(links: Mapping[Pair, int], members: Sequence[int], *, through_others: bool) -> Iterator[Way]:
    """Yield what each way around needs; every way once, whichever direction it is walked in."""
    first, *others = members
    seen = set()
    for order in permutations(others):
        if order[0] > order[-1]:
            continue
        walks: list[Counter[Pair]] = [Counter()]
        for a, b in pairwise((first, *order, first)):
            hops = _hops(links, members, a, b, through_others)
            walks = [walk + Counter(hop) for walk in walks for hop in hops]
        for walk in walks:
            way = tuple(sorted(walk.items()))
            if way not in seen and all(count <= links[pair] for pair, count in way):
                seen.add(way)
                yield way


def _hops(
    links: Mapping[Pair, int], members: Sequence[int], a: int, b: int, through_others: bool
) -> list[tuple[Pair, ...]]:
    if _between(links, a, b):
        return [((min(a, b), max(a, b)),)]
    if not through_others:
        return []
    return [
        ((min(a, via), max(a, via)), (min(via, b), max(via, b)))
        for via in members
        if via not in (a, b) and _between(links, a, via) and _between(links, via, b)
    ]


def _most(links: Mapping[Pair, int], ways: list[Way]) -> int:
    """Return how many of these ways, repeated or not, fit into the links together."""
    if not ways:
        return 0
    left = dict(links)
    best = 0

    def fits(way: Way) -> bool:
        return all(left[pair] >= count for pair, count in way)

    def place(start: int, placed: int) -> None:
        nonlocal best
        best = max(best, placed)
        if best >= bound:
            return
        for at in range(start, len(ways)):
            if fits(ways[at]):
                for pair, count in ways[at]:
                    left[pair] -= count
                place(at, placed + 1)
                for pair, count in ways[at]:
                    left[pair] += count
                if best >= bound:
                    return

    ends = {end for way in ways for pair, _ in way for end in pair}
    bound = (
        min(sum(count for pair, count in links.items() if end in pair and ends.issuperset(pair)) for end in ends) // 2
    )
    place(0, 0)
    return best
