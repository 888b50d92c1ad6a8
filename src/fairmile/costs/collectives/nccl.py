"""NCCL's own model: which algorithm and protocol it takes for a call, and the time that it expects.

Constants are those of NCCL 2.30 (src/graph/tuning.cc, BSD licence), in its units: µs and GB/s. NCCL makes them to
choose, not to predict; where measurements exist a fit is closer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.formulas import collective_name
from fairmile.costs.collectives.links import Topology

Architecture = Literal["volta", "ampere", "hopper", "blackwell"]
Algorithm = Literal["tree", "ring", "nvls", "pat"]
Protocol = Literal["LL", "LL128", "Simple"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
LINK_GB_PER_S = {"volta": 20.0, "ampere": 20.0, "hopper": 20.6, "blackwell": 40.1}  # one NVLink, as NCCL counts it
_PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
_BASE_US = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0), "nvls": (0.0, 0.0, 0.0)}
_NVLINK_US = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (25.0, 25.0, 25.0), "pat": (0.0, 0.0, 4.0)}
_PCIE_US = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "nvls": (25.0, 25.0, 25.0), "pat": (0.0, 0.0, 5.7)}
_NETWORK_US = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls": (18.0, 18.0, 18.0), "pat": (0.0, 0.0, 14.0)}
# one, two, four and more nodes
_LL_MOST = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
_TREE_MOST_PER_CHANNEL = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (77.4, 82.8, 72.0),
}
_LL128_MOST_PER_CHANNEL = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
# Of bus bandwidth, since the switch adds on the way: 2.30 counts the doubled traffic in its search for NVLS channels,
# which is not repeated here; this is what earlier versions multiplied with.
_NVLS_SHARE = 5 / 6
_PLATEAU = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}
# What trees reach of their bandwidth at 64 B, 128 B, … 128 MB.
_TREE_REACH = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0),
    ),
}


@dataclass(frozen=True)
class Fabric:
    """What NCCL finds out about a communicator before it chooses; bandwidths are of all channels together."""

    architecture: Architecture
    ranks: int
    nodes: int = 1
    channels: int = 24
    bus_gb_per_s: float = 240.0  # inside a node
    network_gb_per_s: float = math.inf  # of a node, one direction
    has_nvlink: bool = True
    has_multicast: bool = False  # NVSwitch that can reduce: third generation and later
    network_overhead_us: float = 1.0  # 2 with AMD processors

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.nodes < 1 or self.nodes > self.ranks or self.channels < 1:
            raise UsageError(f"{self.ranks} ranks, {self.nodes} nodes and {self.channels} channels do not fit together")

    @classmethod
    def of(cls, topology: Topology, architecture: Architecture, ranks: int, nodes: int = 1) -> Fabric:
        """Return what NCCL would find on a topology."""
        bus = topology.intra.bytes_per_s / 1e9
        channels = max(1, round(bus / LINK_GB_PER_S[architecture])) if topology.kind != "PCIe" else 2
        return cls(
            architecture,
            ranks,
            nodes,
            channels=2 * channels if architecture in ("ampere", "volta") else channels,
            bus_gb_per_s=bus,
            network_gb_per_s=1e-9 / topology.spread(ranks, nodes).inter_ring.beta_s_per_byte,
            has_nvlink=topology.kind != "PCIe",
            has_multicast=topology.kind == "NVSwitch" and architecture in _NVLS_EFFICIENCY,
        )


@dataclass(frozen=True)
class Selection:
    """An algorithm with a protocol, and the time that NCCL's model gives it."""

    algorithm: Algorithm
    protocol: Protocol
    time_s: float


def candidates(collective: str, n_bytes: float, fabric: Fabric) -> tuple[Selection, ...]:
    """Return everything that NCCL could take, the quickest first."""
    name = collective_name(collective)
    if name not in COLLECTIVES:
        raise UsageError(f"NCCL has no model of {name}", hint=f"it has {', '.join(COLLECTIVES)}")
    choices = [
        Selection(algorithm, protocol, _time_s(name, algorithm, protocol, n_bytes, fabric))
        for algorithm in _algorithms(name, fabric)
        for protocol in _PROTOCOLS
        if _is_offered(algorithm, protocol, fabric)
    ]
    return tuple(sorted(choices, key=lambda each: each.time_s))


def choose(collective: str, n_bytes: float, fabric: Fabric) -> Selection:
    """Return what NCCL takes."""
    if fabric.ranks == 1:
        return Selection("ring", "Simple", 0.0)
    return candidates(collective, n_bytes, fabric)[0]


def _algorithms(collective: str, fabric: Fabric) -> Iterator[Algorithm]:
    yield "ring"
    if collective == "all_reduce":
        yield "tree"
    if collective in ("all_gather", "reduce_scatter") and fabric.nodes == fabric.ranks:
        yield "pat"
    if fabric.has_multicast and fabric.nodes == 1 and fabric.ranks > 2 and collective not in ("broadcast", "reduce"):
        yield "nvls"


def _is_offered(algorithm: Algorithm, protocol: Protocol, fabric: Fabric) -> bool:
    if algorithm in ("nvls", "pat"):
        return protocol == "Simple"
    return protocol != "LL128" or fabric.has_nvlink


def _steps(collective: str, count: int) -> int:
    if collective == "all_reduce":
        return 2 * (count - 1)
    return count - 1 if collective in ("all_gather", "reduce_scatter") else count


def _scale(nodes: int) -> int:
    return 0 if nodes == 1 else 1 if nodes < 4 else 2


def _bandwidth(collective: str, algorithm: Algorithm, protocol: Protocol, fabric: Fabric) -> float:
    """Return GB/s of the buffer, not of the bus."""
    bus = fabric.bus_gb_per_s if fabric.nodes == 1 else min(fabric.bus_gb_per_s, fabric.network_gb_per_s)
    which, scale = fabric.architecture, _scale(fabric.nodes)
    if algorithm == "nvls":
        return bus * _NVLS_EFFICIENCY[which] * _NVLS_SHARE
    ring_share = fabric.ranks / _steps(collective, fabric.ranks)
    if algorithm == "pat":
        return bus * 0.75 * ring_share
    if algorithm == "ring":
        if protocol == "LL":
            bus = min(_LL_MOST[which][scale], 0.5 * bus)
        elif protocol == "LL128":
            bus = min(0.92 * bus, fabric.channels * _LL128_MOST_PER_CHANNEL[which])
        return bus * ring_share
    whole = bus
    bus = min(0.92 * bus, fabric.channels * _TREE_MOST_PER_CHANNEL[which][scale])
    if protocol == "LL":
        bus = min(whole / 3.8, _LL_MOST[which][scale])
    elif protocol == "LL128":
        share = 7 / 9 if fabric.nodes == 1 else 120 / 128
        bus = min(whole * share, fabric.channels * _LL128_MOST_PER_CHANNEL[which])
    return bus * 0.5


def _latency_us(collective: str, algorithm: Algorithm, protocol: Protocol, fabric: Fabric) -> float:
    at = _PROTOCOLS.index(protocol)
    intra = (_NVLINK_US if fabric.has_nvlink else _PCIE_US)[algorithm][at]
    inter = _NETWORK_US[algorithm][at]
    base = _BASE_US[algorithm][at]
    per_node = fabric.ranks / fabric.nodes
    if algorithm == "nvls":
        return base + intra + (inter if fabric.nodes > 1 else 0.0)
    if algorithm == "pat":
        return (
            base + math.log2(max(2, fabric.nodes)) * inter / 3.5 + fabric.ranks * 2.8
        )  # NCCL's steps still have a linear part
    if algorithm == "tree":
        return base + 2 * ((per_node - 1) * intra + math.log2(fabric.nodes) * inter)
    steps, crossing = _steps(collective, fabric.ranks), _steps(collective, fabric.nodes) if fabric.nodes > 1 else 0
    overhead = 0.0
    if fabric.nodes > 1:
        overhead = fabric.network_overhead_us * (3 if protocol == "Simple" else 1)
    return base + (steps - crossing) * max(intra, overhead) + crossing * inter


def _time_s(collective: str, algorithm: Algorithm, protocol: Protocol, n_bytes: float, fabric: Fabric) -> float:
    bandwidth = _bandwidth(collective, algorithm, protocol, fabric)
    latency_us = _latency_us(collective, algorithm, protocol, fabric)
    doublings = int(math.log2(n_bytes / 64)) if n_bytes >= 64 else 0
    reach = _TREE_REACH[protocol]
    if algorithm == "tree" and doublings < len(reach):
        bandwidth *= reach[doublings]
    is_ring_simple = algorithm == "ring" and protocol == "Simple" and collective == "all_reduce"
    if is_ring_simple and fabric.nodes > 1 and n_bytes / (fabric.channels * fabric.ranks) >= 64:
        latency_us *= _PLATEAU[fabric.architecture]
    return (latency_us + n_bytes / (1000 * bandwidth)) * 1e-6
