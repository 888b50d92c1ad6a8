"""What collectives cost: latency and bandwidth formulas of the algorithms that libraries use.

Sizes follow nccl-tests: the whole buffer of one rank for all-reduce, broadcast and reduce; the whole input of one rank
for reduce-scatter and all-to-all; the whole output of one rank for all-gather; all faces of one rank together for a
halo exchange. Ranks send and receive at the same time, one message each way. Sources of the formulas: Thakur,
Rabenseifner and Gropp (2005) for MPI's, Sanders, Speck and Träff (2009) for two trees, Bruck et al. (1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.costs.collectives.halo import face_bytes
from fairmile.costs.collectives.links import Link, Topology

Formula: TypeAlias = Callable[[float, int, Link], float]

TWO_LEVEL = "two_level"
_MOST_SEGMENTS = 4096
_OTHER_NAMES = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "p2p": "point_to_point",
    "send_recv": "point_to_point",
    "ping_pong": "point_to_point",
    "halo_exchange": "halo",
}


@dataclass(frozen=True)
class Choice:
    """The algorithm that takes least time, and that time."""

    algorithm: str
    time_s: float


def collective_name(name: str) -> str:
    """Return a collective's name as it is called here, also for `allreduce`, `all-reduce` and `AllReduce`."""
    plain = name.strip().replace("-", "_").replace(" ", "_").lower()
    plain = _OTHER_NAMES.get(plain, plain)
    if plain not in _FORMULAS:
        hint = did_you_mean(plain, list(_FORMULAS)) or f"known: {', '.join(_FORMULAS)}"
        raise UsageError(f"no collective named {name!r}", hint=hint)
    return plain


def collectives() -> tuple[str, ...]:
    """Return the names of all collectives."""
    return tuple(_FORMULAS)


def algorithms(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms of a collective."""
    name = collective_name(collective)
    return (*_FORMULAS[name], *((TWO_LEVEL,) if name in _TWO_LEVEL else ()))


def cost(
    collective: str, algorithm: str, n_bytes: float, ranks: int, link: Link | Topology, *, segments: int | None = None
) -> float:
    """Return the seconds from the common start until the last rank is done.

    Pipelined algorithms cut the message into `segments`, by default as many as take least time. On a topology an
    algorithm that knows nothing of nodes is held up by the network, whose adapters its ranks share.
    """
    name = collective_name(collective)
    if ranks < 1 or n_bytes < 0:
        raise UsageError(f"{ranks} ranks cannot exchange {n_bytes:g} bytes: expected at least 1 rank and 0 bytes")
    if algorithm not in algorithms(name):
        raise UsageError(f"{name} has no algorithm named {algorithm!r}", hint=f"it has {', '.join(algorithms(name))}")
    if ranks == 1:
        return 0.0
    if algorithm == TWO_LEVEL:
        if not isinstance(link, Topology):
            raise UsageError("a two-level algorithm needs a topology", hint="pass a Topology instead of a Link")
        return _TWO_LEVEL[name](float(n_bytes), ranks, link)
    formula = _FORMULAS[name][algorithm]
    if isinstance(link, Topology):
        return _on_topology(formula, algorithm, float(n_bytes), ranks, link, segments)
    return _evaluated(formula, float(n_bytes), ranks, link, segments)


def best(collective: str, n_bytes: float, ranks: int, link: Link | Topology, *, among: tuple[str, ...] = ()) -> Choice:
    """Return the algorithm that takes least time, `among` those named or all; in-network ones only if named."""
    names = among or tuple(
        each
        for each in algorithms(collective)
        if each != "in_network" and (each != TWO_LEVEL or isinstance(link, Topology))
    )
    times = {each: cost(collective, each, n_bytes, ranks, link) for each in names}
    chosen = min(times, key=times.__getitem__)
    return Choice(chosen, times[chosen])


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines them."""
    name = collective_name(collective)
    if ranks < 2:
        return 1.0
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def is_pipelined(collective: str, algorithm: str) -> bool:
    """Tell whether an algorithm cuts its message into segments."""
    return isinstance(_FORMULAS[collective_name(collective)].get(algorithm), _Piped)


def rounds(ranks: int) -> int:
    """Return ⌈log₂ ranks⌉."""
    return (ranks - 1).bit_length()


def _evaluated(formula: _Piped | Formula, n: float, p: int, link: Link, segments: int | None) -> float:
    if isinstance(formula, _Piped):
        return formula.time_s(n, p, link, segments)
    return formula(n, p, link)


def _on_topology(
    formula: _Piped | Formula, algorithm: str, n: float, p: int, topology: Topology, segments: int | None
) -> float:
    if topology.nodes(p) == 1:
        return _evaluated(formula, n, p, topology.intra, segments)
    if algorithm in ("ring", "chain", "double_tree") or topology.ranks_per_node == 1:
        # Neighbours sit on one node where they can: few messages cross, and only these wait for the network.
        share = (topology.nodes(p) - 1) / (p - 1)
        through = topology.inter_ring
        alpha = share * topology.inter.alpha_s + (1 - share) * topology.intra.alpha_s
        return _evaluated(formula, n, p, replace(through, alpha_s=alpha), segments)
    return _evaluated(formula, n, p, topology.inter_shared, segments)


# ---- pipelines


@dataclass(frozen=True)
class _Piped:
    """A pipeline: `steps` is what the first segment needs, then segments follow at one rank `passes` times each."""

    steps: Callable[[int], float]
    passes: float = 1.0  # how often all segments go through one rank
    reduces: bool = False

    def time_s(self, n: float, p: int, link: Link, segments: int | None) -> float:
        if segments is not None:
            return self._with(n, p, link, max(1, segments))
        gap = link.alpha_s if link.gap_s is None else link.gap_s
        if n <= 0:
            return self._with(n, p, link, 1)
        per_byte = link.beta_s_per_byte + (link.gamma_s_per_byte if self.reduces else 0.0)
        ideal = math.sqrt((self.steps(p) - self.passes) * n * per_byte / (self.passes * gap)) if gap > 0 else math.inf
        low = int(min(max(1.0, ideal), _MOST_SEGMENTS))
        return min(self._with(n, p, link, k) for k in (low, min(low + 1, _MOST_SEGMENTS)))

    def _with(self, n: float, p: int, link: Link, k: int) -> float:
        reduce_s = n / k * link.gamma_s_per_byte if self.reduces else 0.0
        first = self.steps(p) * (link.message_s(n / k) + reduce_s)
        return first + self.passes * (k - 1) * (link.interval_s(n / k) + reduce_s)


# ---- sums over rounds


def _largest_pieces(p: int) -> tuple[int, ...]:
    """Return how many of p blocks the busiest rank sends in each round of recursive halving, after folding."""
    core = 1 << (p.bit_length() - 1)
    folded = p - core  # these ranks stand for two
    sizes = []
    half = core // 2
    while half:
        sizes.append(half + min(folded, half))
        half //= 2
    return tuple(sizes)


def _halving(n: float, p: int, link: Link) -> float:
    return sum(link.reduced_s(n * blocks / p) for blocks in _largest_pieces(p))


def _doubling(n: float, p: int, link: Link) -> float:
    return sum(link.message_s(n * blocks / p) for blocks in _largest_pieces(p))


def _core_rounds(p: int) -> int:
    return p.bit_length() - 1


def _is_folded(p: int) -> bool:
    return p & (p - 1) != 0


def _all_reduce_recursive_doubling(n: float, p: int, link: Link) -> float:
    fold = link.reduced_s(n) + link.message_s(n) if _is_folded(p) else 0.0
    return fold + _core_rounds(p) * link.reduced_s(n)


def _rabenseifner(n: float, p: int, link: Link) -> float:
    core = 1 << _core_rounds(p)
    fold = link.reduced_s(n) + link.message_s(n) if _is_folded(p) else 0.0
    return fold + _halving(n, core, link) + _doubling(n, core, link)


def _reduce_rabenseifner(n: float, p: int, link: Link) -> float:
    core = 1 << _core_rounds(p)
    fold = link.reduced_s(n) if _is_folded(p) else 0.0
    return fold + _halving(n, core, link) + _doubling(n, core, link)


def _ring_reduce_scatter(n: float, p: int, link: Link) -> float:
    return (p - 1) * link.reduced_s(n / p)


def _ring_all_gather(n: float, p: int, link: Link) -> float:
    return (p - 1) * link.message_s(n / p)


def _ring_all_reduce(n: float, p: int, link: Link) -> float:
    return _ring_reduce_scatter(n, p, link) + _ring_all_gather(n, p, link)


def _reduce_scatter_halving(n: float, p: int, link: Link) -> float:
    fold = link.reduced_s(n) + link.message_s(n / p) if _is_folded(p) else 0.0
    return fold + _halving(n, p, link)


def _all_gather_doubling(n: float, p: int, link: Link) -> float:
    fold = link.message_s(n / p) + link.message_s(n) if _is_folded(p) else 0.0
    return fold + _doubling(n, p, link)


def _all_gather_bruck(n: float, p: int, link: Link) -> float:
    return sum(link.message_s(n / p * min(1 << r, p - (1 << r))) for r in range(rounds(p)))


def _pairwise(n: float, p: int, link: Link) -> float:
    return (p - 1) * link.message_s(n / p)


def _spread(n: float, p: int, link: Link) -> float:
    """All messages are handed over at once: only the last one's latency shows."""
    return (p - 2) * link.interval_s(n / p) + link.message_s(n / p)


def _all_to_all_bruck(n: float, p: int, link: Link) -> float:
    total = 0.0
    for r in range(rounds(p)):
        # As many blocks as numbers below p have this bit.
        whole, rest = divmod(p, 2 << r)
        blocks = (whole << r) + max(0, rest - (1 << r))
        total += link.message_s(n / p * blocks)
    return total


def _most_hops(p: int) -> int:
    """Return the length of the longest path in a binomial tree of p ranks: the most ones in a number below p."""
    last, most = p - 1, (p - 1).bit_count()
    for bit in range(last.bit_length()):
        if last >> bit & 1:
            most = max(most, (last >> (bit + 1)).bit_count() + bit)
    return most


def _broadcast_binomial(n: float, p: int, link: Link) -> float:
    hops = _most_hops(p)
    return hops * link.message_s(n) + (rounds(p) - hops) * link.interval_s(n)


def _reduce_binomial(n: float, p: int, link: Link) -> float:
    """A rank waits for its neighbours one by one, each of which did so before: 1 away, 2 away, 4 away, …"""
    if not _is_folded(p):
        return rounds(p) * link.reduced_s(n)
    done_s, arrival, mask = 0.0, 0.0, 1
    while mask < p:
        sent = _reduce_binomial(n, min(mask, p - mask), link)
        arrival = max(sent + link.message_s(n), arrival + n * link.beta_s_per_byte)
        done_s = max(done_s, arrival) + n * link.gamma_s_per_byte
        mask *= 2
    return done_s


def _all_reduce_binomial(n: float, p: int, link: Link) -> float:
    return _reduce_binomial(n, p, link) + _broadcast_binomial(n, p, link)


def _scatter_binomial(n: float, p: int, link: Link) -> float:
    """The root gives the far part away first: its last message, to its neighbour, is the last to arrive."""
    total, left = 0.0, p
    for r in reversed(range(rounds(p))):
        total += link.message_s(n / p * (left - (1 << r)))
        left = 1 << r
    return total


def _scatter_all_gather(n: float, p: int, link: Link) -> float:
    return _scatter_binomial(n, p, link) + _ring_all_gather(n, p, link)


def _flat_tree(n: float, p: int, link: Link) -> float:
    return (p - 2) * link.interval_s(n) + link.message_s(n)


def _dissemination(n: float, p: int, link: Link) -> float:
    return rounds(p) * link.message_s(n)


def _once(n: float, p: int, link: Link) -> float:
    return link.message_s(n)


def _once_gathered(n: float, p: int, link: Link) -> float:
    return link.message_s(n * (p - 1) / p)


def _halo_faces(n: float, p: int, link: Link) -> float:
    """The faces leave one after the other, without waiting for each other."""
    faces = face_bytes(n, p)
    return sum(link.interval_s(each) for each in faces[:-1]) + link.message_s(faces[-1])


def _halo_by_dimension(n: float, p: int, link: Link) -> float:
    """Both faces of a dimension are sent, then those of the next, so that corners travel along."""
    faces = face_bytes(n, p)
    return sum(link.interval_s(faces[i]) + link.message_s(faces[i + 1]) for i in range(0, len(faces) - 1, 2))


_CHAIN = _Piped(steps=lambda p: p - 1)
_CHAIN_REDUCE = _Piped(steps=lambda p: p - 1, reduces=True)
_TWO_TREES = _Piped(steps=lambda p: 2 * rounds(p))
_TWO_TREES_REDUCE = _Piped(steps=lambda p: 2 * rounds(p), reduces=True)


class _BothTrees(_Piped):
    """Reduce up and broadcast down two trees, where each rank is inside of one and at the edge of the other."""

    def _with(self, n: float, p: int, link: Link, k: int) -> float:
        return _TWO_TREES_REDUCE._with(n, p, link, k) + _TWO_TREES._with(n, p, link, k)


_FORMULAS: Mapping[str, Mapping[str, _Piped | Formula]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "recursive_doubling": _all_reduce_recursive_doubling,
        "rabenseifner": _rabenseifner,
        "binomial": _all_reduce_binomial,
        "double_tree": _BothTrees(steps=lambda p: 2 * rounds(p)),
        "in_network": _once,
    },
    "reduce_scatter": {
        "ring": _ring_reduce_scatter,
        "recursive_halving": _reduce_scatter_halving,
        "pairwise": _ring_reduce_scatter,
        "in_network": _once,
    },
    "all_gather": {
        "ring": _ring_all_gather,
        "recursive_doubling": _all_gather_doubling,
        "bruck": _all_gather_bruck,
        "spread": _spread,
        "in_network": _once_gathered,
    },
    "broadcast": {
        "binomial": _broadcast_binomial,
        "scatter_all_gather": _scatter_all_gather,
        "chain": _CHAIN,
        "double_tree": _TWO_TREES,
        "flat": _flat_tree,
        "in_network": _once,
    },
    "reduce": {
        "binomial": _reduce_binomial,
        "rabenseifner": _reduce_rabenseifner,
        "chain": _CHAIN_REDUCE,
        "double_tree": _TWO_TREES_REDUCE,
        "in_network": _once,
    },
    "all_to_all": {"pairwise": _pairwise, "bruck": _all_to_all_bruck, "spread": _spread},
    "barrier": {"dissemination": _dissemination, "binomial": lambda n, p, link: 2 * rounds(p) * link.message_s(n)},
    "point_to_point": {"direct": _once},
    "halo": {"faces": _halo_faces, "by_dimension": _halo_by_dimension},
}


# ---- two levels


def _two_level_reduce_scatter(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    first = best("reduce_scatter", n, inside, topology.intra).time_s
    return first + best("reduce_scatter", n / inside, nodes, topology.inter_shared).time_s


def _two_level_all_gather(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    first = best("all_gather", n / inside, nodes, topology.inter_shared).time_s
    return first + best("all_gather", n, inside, topology.intra).time_s


def _two_level_all_reduce(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    scatter = cost("reduce_scatter", "ring", n, inside, topology.intra)
    gather = cost("all_gather", "ring", n, inside, topology.intra)
    return scatter + best("all_reduce", n / inside, nodes, topology.inter_shared).time_s + gather


def _two_level_broadcast(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    return best("broadcast", n, nodes, topology.inter).time_s + best("broadcast", n, inside, topology.intra).time_s


def _two_level_reduce(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    return best("reduce", n, inside, topology.intra).time_s + best("reduce", n, nodes, topology.inter).time_s


def _two_level_all_to_all(n: float, p: int, topology: Topology) -> float:
    """Ranks of a node first swap what goes to one place of all nodes, then each place swaps between nodes."""
    inside, nodes = _inside(p, topology), topology.nodes(p)
    first = best("all_to_all", n, inside, topology.intra).time_s
    return first + best("all_to_all", n, nodes, topology.inter_shared).time_s


def _two_level_barrier(n: float, p: int, topology: Topology) -> float:
    inside, nodes = _inside(p, topology), topology.nodes(p)
    here = cost("barrier", "binomial", n, inside, topology.intra)
    return here + cost("barrier", "dissemination", n, nodes, topology.inter)


def _inside(p: int, topology: Topology) -> int:
    return min(p, topology.ranks_per_node)


_TWO_LEVEL: Mapping[str, Callable[[float, int, Topology], float]] = {
    "all_reduce": _two_level_all_reduce,
    "reduce_scatter": _two_level_reduce_scatter,
    "all_gather": _two_level_all_gather,
    "broadcast": _two_level_broadcast,
    "reduce": _two_level_reduce,
    "all_to_all": _two_level_all_to_all,
    "barrier": _two_level_barrier,
}
