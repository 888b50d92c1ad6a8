"""The algorithms of collectives, written as what each rank sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from message_simulation import Blocks, Exchange, Program, Receive, Send, Work

from fairmile.costs.collectives.links import Link


class Algorithm:
    """What one rank does; `n` bytes are cut into `p` equal blocks unless a program says otherwise."""

    def __init__(self, p: int, n: float, link: Link, segments: int = 1) -> None:
        self.p, self.n, self.link, self.segments = p, n, link, segments
        self.block = n / p
        self.core = 1 << (p.bit_length() - 1)
        self.folded = p - self.core

    def own(self, rank: int) -> Blocks:
        """Every block of a vector that is to be reduced, with this rank's part in it."""
        return {block: frozenset([rank]) for block in range(self.p)}

    def reduce(self, held: Blocks, got: Blocks) -> Blocks:
        """Blocks that both have are joined; none may count a rank twice."""
        for name, parts in got.items():
            assert not held[name] & parts, f"ranks {sorted(held[name] & parts)} count twice in block {name}"
            held[name] |= parts
        return held

    def work(self, size_bytes: float) -> Work:
        return Work(size_bytes * self.link.gamma_s_per_byte)

    # ---- rings

    def ring_reduce_scatter(self, rank: int, held: Blocks | None = None) -> Program:
        held = self.own(rank) if held is None else held
        right, left = (rank + 1) % self.p, (rank - 1) % self.p
        for step in range(self.p - 1):
            name = (rank - step - 1) % self.p
            got = yield Exchange(right, {name: held[name]}, self.block, left)
            yield self.work(self.block)
            self.reduce(held, got)
        return {rank: held[rank]}

    def ring_all_gather(self, rank: int, held: Blocks | None = None) -> Program:
        held = {rank: frozenset([rank])} if held is None else dict(held)
        right, left = (rank + 1) % self.p, (rank - 1) % self.p
        for step in range(self.p - 1):
            name = (rank - step) % self.p
            held.update((yield Exchange(right, {name: held[name]}, self.block, left)))
        return held

    def ring_all_reduce(self, rank: int) -> Program:
        piece = yield from self.ring_reduce_scatter(rank)
        return (yield from self.ring_all_gather(rank, piece))

    # ---- recursive halving and doubling, with ranks folded into their neighbours where p is no power of two

    def _place(self, rank: int) -> int | None:
        """The number among those that go on after folding, or None."""
        if rank < 2 * self.folded:
            return rank // 2 if rank % 2 == 0 else None
        return rank - self.folded

    def _rank(self, place: int) -> int:
        return 2 * place if place < self.folded else place + self.folded

    def _blocks(self, places: Iterable[int]) -> list[int]:
        """The blocks that these ranks stand for after folding."""
        found = []
        for place in places:
            rank = self._rank(place)
            found += [rank, rank + 1] if place < self.folded else [rank]
        return found

    def _all(self) -> float:
        return self.n

    def fold(self, rank: int, held: Blocks) -> Program:
        if rank < 2 * self.folded:
            if rank % 2:
                yield Send(rank - 1, held, self._all())
            else:
                got = yield Receive(rank + 1)
                yield self.work(self._all())
                self.reduce(held, got)
        return held

    def unfold(self, rank: int, held: Blocks) -> Program:
        if rank < 2 * self.folded:
            if rank % 2:
                return (yield Receive(rank - 1))
            yield Send(rank + 1, held, self._all())
        return held

    def recursive_doubling_all_reduce(self, rank: int) -> Program:
        held = yield from self.fold(rank, self.own(rank))
        place = self._place(rank)
        if place is not None:
            mask = 1
            while mask < self.core:
                other = self._rank(place ^ mask)
                got = yield Exchange(other, held, self._all(), other)
                yield self.work(self._all())
                held = self.reduce(dict(held), got)
                mask *= 2
        return (yield from self.unfold(rank, held))

    def halving(self, rank: int, held: Blocks, blocks: Callable[[Iterable[int]], list[int]], size: float) -> Program:
        place = self._place(rank)
        assert place is not None
        low, high = 0, self.core
        while high - low > 1:
            middle = (low + high) // 2
            mine, theirs = ((low, middle), (middle, high)) if place < middle else ((middle, high), (low, middle))
            other = self._rank(place ^ (middle - low))
            away = blocks(range(*theirs))
            got = yield Exchange(other, {name: held[name] for name in away}, size * len(away), other)
            yield self.work(size * len(got))
            held = self.reduce({name: held[name] for name in blocks(range(*mine))}, got)
            low, high = mine
        return held

    def doubling(self, rank: int, held: Blocks, size: float) -> Program:
        place = self._place(rank)
        assert place is not None
        mask = 1
        while mask < self.core:
            other = self._rank(place ^ mask)
            held = {**held, **(yield Exchange(other, held, size * len(held), other))}
            mask *= 2
        return held

    def rabenseifner(self, rank: int) -> Program:
        names = list(range(self.core))
        size = self.n / self.core
        held: Blocks = {name: frozenset([rank]) for name in names}
        held = yield from self.fold(rank, held)
        if self._place(rank) is not None:
            held = yield from self.halving(rank, held, list, size)
            held = yield from self.doubling(rank, held, size)
        return (yield from self.unfold(rank, held))

    def reduce_rabenseifner(self, rank: int) -> Program:
        size = self.n / self.core
        held: Blocks = {name: frozenset([rank]) for name in range(self.core)}
        held = yield from self.fold(rank, held)
        place = self._place(rank)
        if place is None:
            return {}
        held = yield from self.halving(rank, held, list, size)
        mask = 1
        while mask < self.core:  # gather towards the first
            if place & mask:
                yield Send(self._rank(place ^ mask), held, size * len(held))
                return {}
            held = {**held, **(yield Receive(self._rank(place ^ mask)))}
            mask *= 2
        return held

    def recursive_halving_reduce_scatter(self, rank: int) -> Program:
        held = yield from self.fold(rank, self.own(rank))
        if self._place(rank) is not None:
            held = yield from self.halving(rank, held, self._blocks, self.block)
        if rank < 2 * self.folded:
            if rank % 2:
                return (yield Receive(rank - 1))
            yield Send(rank + 1, {rank + 1: held[rank + 1]}, self.block)
        return {rank: held[rank]}

    def recursive_doubling_all_gather(self, rank: int) -> Program:
        held: Blocks = {rank: frozenset([rank])}
        if rank < 2 * self.folded:
            if rank % 2:
                yield Send(rank - 1, held, self.block)
            else:
                held.update((yield Receive(rank + 1)))
        if self._place(rank) is not None:
            held = yield from self.doubling(rank, held, self.block)
        return (yield from self.unfold(rank, held))

    # ---- Bruck, pairwise, spread

    def bruck_all_gather(self, rank: int) -> Program:
        held: Blocks = {rank: frozenset([rank])}
        step = 1
        while step < self.p:
            names = [(rank + i) % self.p for i in range(min(step, self.p - step))]
            got = yield Exchange(
                (rank - step) % self.p,
                {name: held[name] for name in names},
                self.block * len(names),
                (rank + step) % self.p,
            )
            held.update(got)
            step *= 2
        return held

    def spread_all_gather(self, rank: int) -> Program:
        held: Blocks = {rank: frozenset([rank])}
        for step in range(1, self.p):
            yield Send((rank + step) % self.p, {rank: frozenset([rank])}, self.block)
        for step in range(1, self.p):
            held.update((yield Receive((rank - step) % self.p)))
        return held

    def pairwise_reduce_scatter(self, rank: int) -> Program:
        held = self.own(rank)
        mine: Blocks = {rank: held[rank]}
        for step in range(1, self.p):
            to, source = (rank + step) % self.p, (rank - step) % self.p
            got = yield Exchange(to, {to: held[to]}, self.block, source)
            yield self.work(self.block)
            self.reduce(mine, got)
        return mine

    def pairwise_all_to_all(self, rank: int) -> Program:
        held: Blocks = {(rank, rank): frozenset([rank])}
        for step in range(1, self.p):
            to, source = (rank + step) % self.p, (rank - step) % self.p
            held.update((yield Exchange(to, {(rank, to): frozenset([rank])}, self.block, source)))
        return held

    def spread_all_to_all(self, rank: int) -> Program:
        held: Blocks = {(rank, rank): frozenset([rank])}
        for step in range(1, self.p):
            to = (rank + step) % self.p
            yield Send(to, {(rank, to): frozenset([rank])}, self.block)
        for step in range(1, self.p):
            held.update((yield Receive((rank - step) % self.p)))
        return held

    def bruck_all_to_all(self, rank: int) -> Program:
        held: Blocks = {(rank, to): frozenset([rank]) for to in range(self.p)}
        bit = 1
        while bit < self.p:
            # What still has this far to go moves on by it.
            away = {name: parts for name, parts in held.items() if (name[1] - rank) % self.p & bit}
            got = yield Exchange((rank + bit) % self.p, away, self.block * len(away), (rank - bit) % self.p)
            held = {**{name: parts for name, parts in held.items() if name not in away}, **got}
            bit *= 2
        return held

    # ---- trees and chains from rank 0

    def binomial_broadcast(self, rank: int, held: Blocks | None = None) -> Program:
        held = {"all": frozenset([0])} if held is None else held
        top = 1 << (self.p - 1).bit_length()
        low = rank & -rank if rank else top
        if rank:
            held = yield Receive(rank - low)
        mask = low // 2
        while mask:
            if rank + mask < self.p:
                yield Send(rank + mask, held, self.n)
            mask //= 2
        return held

    def binomial_reduce(self, rank: int) -> Program:
        held: Blocks = {"all": frozenset([rank])}
        mask = 1
        while mask < self.p:
            if rank & mask:
                yield Send(rank - mask, held, self.n)
                return {}
            if rank + mask < self.p:
                got = yield Receive(rank + mask)
                yield self.work(self.n)
                self.reduce(held, got)
            mask *= 2
        return held

    def binomial_all_reduce(self, rank: int) -> Program:
        return (yield from self.binomial_broadcast(rank, (yield from self.binomial_reduce(rank))))

    def flat_broadcast(self, rank: int) -> Program:
        held: Blocks = {"all": frozenset([0])}
        if rank:
            return (yield Receive(0))
        for to in range(1, self.p):
            yield Send(to, held, self.n)
        return held

    def scatter_all_gather(self, rank: int) -> Program:
        held: Blocks = {name: frozenset([0]) for name in range(self.p)} if rank == 0 else {}
        top = 1 << (self.p - 1).bit_length()
        low = rank & -rank if rank else top
        if rank:
            held = yield Receive(rank - low)
        mask = low // 2
        while mask:
            if rank + mask < self.p:
                away = {name: parts for name, parts in held.items() if name >= rank + mask}
                yield Send(rank + mask, away, self.block * len(away))
                held = {name: parts for name, parts in held.items() if name not in away}
            mask //= 2
        return (yield from self.ring_all_gather(rank, held))

    def chain_broadcast(self, rank: int) -> Program:
        held: Blocks = {}
        for segment in range(self.segments):
            got = {segment: frozenset([0])} if rank == 0 else (yield Receive(rank - 1))
            held.update(got)
            if rank + 1 < self.p:
                yield Send(rank + 1, got, self.n / self.segments)
        return held

    def chain_reduce(self, rank: int) -> Program:
        held: Blocks = {segment: frozenset([rank]) for segment in range(self.segments)}
        for segment in range(self.segments):
            if rank + 1 < self.p:
                got = yield Receive(rank + 1)
                yield self.work(self.n / self.segments)
                self.reduce(held, got)
            if rank:
                yield Send(rank - 1, {segment: held[segment]}, self.n / self.segments)
        return held if rank == 0 else {}

    def double_tree_broadcast(self, rank: int, start: Blocks | None = None) -> Program:
        """Both trees work at once: a rank passes on whatever comes first."""
        held: Blocks = {}
        start = {number: frozenset([0]) for number in range(self.segments)} if start is None else start
        trees = two_trees(self.p)
        for number in range(self.segments):
            got = {number: start[number]} if rank == 0 else (yield Receive())
            held.update(got)
            (segment,) = got
            for child in trees[segment % 2][1][rank]:
                yield Send(child, got, self.n / self.segments)
        return held

    def double_tree_reduce(self, rank: int) -> Program:
        held: Blocks = {segment: frozenset([rank]) for segment in range(self.segments)}
        trees = two_trees(self.p)
        missing = [len(trees[segment % 2][1][rank]) for segment in range(self.segments)]
        for segment in range(self.segments):
            if rank and not missing[segment]:
                yield Send(trees[segment % 2][0][rank], {segment: held[segment]}, self.n / self.segments)
        for _ in range(sum(missing)):
            got = yield Receive()
            yield self.work(self.n / self.segments)
            self.reduce(held, got)
            (segment,) = got
            missing[segment] -= 1
            if rank and not missing[segment]:
                yield Send(trees[segment % 2][0][rank], {segment: held[segment]}, self.n / self.segments)
        return held if rank == 0 else {}

    def double_tree_all_reduce(self, rank: int) -> Program:
        return (yield from self.double_tree_broadcast(rank, (yield from self.double_tree_reduce(rank))))

    # ---- the rest

    def dissemination(self, rank: int) -> Program:
        held: Blocks = {"seen": frozenset([rank])}
        step = 1
        while step < self.p:
            got = yield Exchange((rank + step) % self.p, held, self.n, (rank - step) % self.p)
            held = {"seen": held["seen"] | got["seen"]}
            step *= 2
        return held


def two_trees(p: int) -> tuple[tuple[dict[int, int], dict[int, list[int]]], ...]:
    """Return parents and children of two trees over all ranks but the first, which feeds both; who is inside of one is
    at the edge of the other."""
    return _tree(list(range(1, p))), _tree([*range(2, p), 1])


def _tree(ranks: Sequence[int]) -> tuple[dict[int, int], dict[int, list[int]]]:
    parents: dict[int, int] = {}
    children: dict[int, list[int]] = {rank: [] for rank in (0, *ranks)}

    def build(low: int, high: int, parent: int) -> None:
        if low > high:
            return
        # The number with most trailing zeros is the highest of its range, so odd numbers are leaves.
        middle = max(range(low, high + 1), key=lambda number: number & -number)
        parents[ranks[middle - 1]] = parent
        children[parent].append(ranks[middle - 1])
        build(low, middle - 1, ranks[middle - 1])
        build(middle + 1, high, ranks[middle - 1])

    build(1, len(ranks), 0)
    return parents, children
