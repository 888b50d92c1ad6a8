"""Collectives as messages between ranks that keep their own clocks: what the formulas are compared with.

Each rank is a generator. It yields what it does next and gets back what it received. Blocks carry the set of ranks
that went into them, so that an algorithm that ends early or mixes up its blocks is seen. Messages leave a rank one
after the other and enter a rank one after the other; both can happen at once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from fairmile.costs.collectives.links import Link

Blocks = dict[Any, frozenset[int]]
Program = Generator["Send | Receive | Exchange | Work", Blocks, Blocks]


@dataclass(frozen=True)
class Send:
    to: int
    blocks: Mapping[Any, frozenset[int]]
    size_bytes: float


@dataclass(frozen=True)
class Receive:
    source: int | None = None  # None: whatever comes first


@dataclass(frozen=True)
class Exchange:
    to: int
    blocks: Mapping[Any, frozenset[int]]
    size_bytes: float
    source: int


@dataclass(frozen=True)
class Work:
    seconds: float


class Simulation:
    """Run one program per rank and note when each ended and what it held."""

    def __init__(self, ranks: int, link: Link, program: Callable[[int], Program]) -> None:
        self.link = link
        self.clock = [0.0] * ranks
        self.entering = [0.0] * ranks  # until when a message comes in
        self.messages: dict[tuple[int, int], deque[tuple[float, Blocks]]] = defaultdict(deque)
        self.held: list[Blocks] = [{} for _ in range(ranks)]
        self.bytes_sent = [0.0] * ranks
        self.programs = [program(rank) for rank in range(ranks)]
        self.waiting: dict[int, tuple[int | None, float]] = {}  # rank → whom for, and when it can go on at the earliest
        self._queue: list[tuple[float, int, int, Blocks | None]] = []  # None: look again for a message
        self._number = count()

    def run(self) -> float:
        for rank in range(len(self.programs)):
            self._later(rank, {})
        while self._queue:
            _, _, rank, got = heapq.heappop(self._queue)
            if got is None:
                self._receive_any(rank)
                continue
            try:
                step = self.programs[rank].send(got) if got or self.clock[rank] else next(self.programs[rank])
            except StopIteration as end:
                self.held[rank] = end.value
                continue
            self._do(rank, step)
        assert not self.waiting, f"ranks wait for ever: {self.waiting}"
        assert not any(self.messages.values()), "a message was never received"
        return max(self.clock)

    def _later(self, rank: int, got: Blocks) -> None:
        heapq.heappush(self._queue, (self.clock[rank], next(self._number), rank, got))

    def _do(self, rank: int, step: Send | Receive | Exchange | Work) -> None:
        if isinstance(step, Work):
            self.clock[rank] += step.seconds
            self._later(rank, {})
        elif isinstance(step, Send):
            self.clock[rank] = self._send(rank, step.to, step.blocks, step.size_bytes)
            self._later(rank, {})
        elif isinstance(step, Exchange):
            free = self._send(rank, step.to, step.blocks, step.size_bytes)
            self._receive(rank, step.source, free)
        elif step.source is None:
            self.waiting[rank] = (None, self.clock[rank])
            self._look_again(rank)
        else:
            self._receive(rank, step.source, self.clock[rank])

    def _send(self, rank: int, to: int, blocks: Mapping[Any, frozenset[int]], size_bytes: float) -> float:
        start = self.clock[rank]
        transfer = size_bytes * self.link.beta_s_per_byte
        arrival = max(start + self.link.message_s(size_bytes), self.entering[to] + transfer)
        self.entering[to] = arrival
        self.bytes_sent[rank] += size_bytes
        self.messages[rank, to].append((arrival, dict(blocks)))
        if to in self.waiting:
            source, earliest = self.waiting[to]
            if source == rank:
                del self.waiting[to]
                self._receive(to, rank, earliest)
            elif source is None:
                self._look_again(to)
        return start + self.link.interval_s(size_bytes)

    def _receive(self, rank: int, source: int, earliest: float) -> None:
        if not self.messages[source, rank]:
            self.waiting[rank] = (source, earliest)
            return
        arrival, blocks = self.messages[source, rank].popleft()
        self.clock[rank] = max(earliest, arrival)
        self._later(rank, blocks)

    def _first(self, rank: int) -> tuple[float, int] | None:
        """Return arrival and source of the message that comes first."""
        ready = [(queue[0][0], source) for (source, to), queue in self.messages.items() if to == rank and queue]
        return min(ready, default=None)

    def _look_again(self, rank: int) -> None:
        first = self._first(rank)
        if first is not None:
            moment = max(self.waiting[rank][1], first[0])
            heapq.heappush(self._queue, (moment, next(self._number), rank, None))

    def _receive_any(self, rank: int) -> None:
        first = self._first(rank)
        if rank in self.waiting and self.waiting[rank][0] is None and first is not None:
            _, earliest = self.waiting.pop(rank)
            self._receive(rank, first[1], earliest)
