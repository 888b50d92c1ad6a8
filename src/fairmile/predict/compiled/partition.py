"""Which tensors a compiled forward pass keeps for the backward pass: the cheapest set that everything follows from.

torch's own partitioner solves the same problem: a minimum cut through the graph of what can be computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from fairmile.predict.compiled.dataflow import Value

_NEVER = 1 << 62
_UNFUSED = 2  # times a tensor weighs that would be written only to be kept


def saved_values(values: Mapping[int, Value], needed: Collection[int], written: Collection[int]) -> set[int]:
    """Return the values to keep so that all needed ones can be had; `written` lie in memory in any case."""
    network = _Network()
    seen: set[int] = set()
    waiting = list(needed)
    for key in needed:
        network.connect((key, 1), "end", _NEVER)
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        value = values[key]
        weight = value.size_bytes * (1 if key in written or value.op < 0 else _UNFUSED)
        network.connect((key, 0), (key, 1), weight)
        if value.again is None:
            network.connect("begin", (key, 0), _NEVER)
        elif not value.again:
            continue  # made from nothing, such as a constant
        else:
            for source in value.again:
                if source in values:
                    network.connect((source, 1), (key, 0), _NEVER)
                    waiting.append(source)
    reached = network.reached_after_flow("begin", "end")
    return {key for key in seen if (key, 0) in reached and (key, 1) not in reached}


class _Network:
    """A network of capacities, for Dinic's algorithm."""

    def __init__(self) -> None:
        self._places: dict[object, int] = {}
        self._edges: list[list[int]] = []  # of each place
        self._to: list[int] = []
        self._left: list[int] = []

    def connect(self, source: object, target: object, capacity: int) -> None:
        begin, end = self._place(source), self._place(target)
        for here, there, left in ((begin, end, capacity), (end, begin, 0)):
            self._edges[here].append(len(self._to))
            self._to.append(there)
            self._left.append(left)

    def reached_after_flow(self, source: object, target: object) -> set[object]:
        """Return what can be reached from the source when no more can flow."""
        begin, end = self._place(source), self._place(target)
        while (levels := self._levels(begin))[end] >= 0:
            turns = [0] * len(self._edges)
            while self._push(begin, end, levels, turns):
                pass
        return {key for key, place in self._places.items() if levels[place] >= 0}

    def _place(self, key: object) -> int:
        if key not in self._places:
            self._places[key] = len(self._edges)
            self._edges.append([])
        return self._places[key]

    def _levels(self, begin: int) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[begin] = 0
        queue = deque([begin])
        while queue:
            here = queue.popleft()
            for edge in self._edges[here]:
                if self._left[edge] > 0 and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[here] + 1
                    queue.append(self._to[edge])
        return levels

    def _push(self, begin: int, end: int, levels: list[int], turns: list[int]) -> int:
        """Send flow along one path of the levels, without recursion: graphs are thousands deep."""
        path: list[int] = []
        here = begin
        while here != end:
            edges = self._edges[here]
            while turns[here] < len(edges):
                edge = edges[turns[here]]
                if self._left[edge] > 0 and levels[self._to[edge]] == levels[here] + 1:
                    break
                turns[here] += 1
            if turns[here] == len(edges):
                if not path:
                    return 0
                here = self._to[path.pop() ^ 1]
                turns[here] += 1
                continue
            path.append(edges[turns[here]])
            here = self._to[path[-1]]
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return flow
