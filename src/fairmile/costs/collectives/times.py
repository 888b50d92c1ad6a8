"""How long a collective takes on a machine: by what was measured there, or by formula from its system file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from fairmile.base.errors import UsageError
from fairmile.costs.collectives import nccl
from fairmile.costs.collectives.formulas import TWO_LEVEL, Choice, best, bus_factor, collective_name
from fairmile.costs.collectives.links import Topology
from fairmile.costs.collectives.rings import cube_mesh_rings
from fairmile.costs.collectives.wiring import Wiring, wiring_of

if TYPE_CHECKING:
    from fairmile.systems.model import Partition


# What libraries for accelerators use; MPI's choose among all.
_ON_ACCELERATORS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "double_tree", TWO_LEVEL),
    "reduce_scatter": ("ring", TWO_LEVEL),
    "all_gather": ("ring", TWO_LEVEL),
    "broadcast": ("chain", "double_tree", TWO_LEVEL),
    "reduce": ("chain", "double_tree", TWO_LEVEL),
    "all_to_all": ("spread", TWO_LEVEL),
}
_CUBE_MESH = 8  # accelerators, between which fewer form fewer rings


class Fitted(Protocol):
    """Times of one collective as they were measured, for any size and number of ranks."""

    def time_s(self, size_bytes: float, ranks: int) -> float:
        """Return the time of the slowest rank."""
        ...


class CollectiveModel:
    """Predicts the time of collectives; `notes` say what the figures rest on.

    What was fitted on one node is used there, and what was fitted between nodes for several. Otherwise NCCL's own
    model answers for NVIDIA's accelerators, and formulas over the topology for all others: the algorithm that takes
    least time, as libraries choose.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        fits: Mapping[str, Fitted] | None = None,
        between: Mapping[str, Fitted] | None = None,
    ) -> None:
        self.wiring = wiring
        self.fits = {collective_name(name): fit for name, fit in (fits or {}).items()}
        self.between = {collective_name(name): fit for name, fit in (between or {}).items()}

    @classmethod
    def from_partition(cls, partition: Partition) -> CollectiveModel:
        """Return the model of a partition by what its system file says."""
        return cls(wiring_of(partition))

    @classmethod
    def from_fit(
        cls,
        fits: Mapping[str, Fitted],
        wiring: Wiring | Topology,
        *,
        between: Mapping[str, Fitted] | None = None,
        notes: tuple[str, ...] = (),
    ) -> CollectiveModel:
        """Return the model of a machine where collectives were measured, on one node and `between` several.

        `wiring` serves for what was not measured.
        """
        known = wiring if isinstance(wiring, Wiring) else Wiring(wiring)
        return cls(replace(known, notes=(*notes, *known.notes)), fits=fits, between=between)

    @property
    def topology(self) -> Topology:
        return self.wiring.topology

    @property
    def notes(self) -> tuple[str, ...]:
        return self.wiring.notes

    def time_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        """Return the seconds of one call by ranks that are spread evenly over so many nodes."""
        return self.choice(collective, size_bytes, ranks, nodes=nodes).time_s

    def choice(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> Choice:
        """Return the algorithm that would be taken, `fit` where it was measured, and its time."""
        name = collective_name(collective)
        if nodes < 1 or ranks < 1 or nodes > ranks:
            raise UsageError(f"cannot place {ranks} ranks on {nodes} nodes")
        if ranks == 1:
            return Choice("none", 0.0)
        fitted = (self.fits if nodes == 1 else self.between).get(name)
        if fitted is not None:
            return Choice("fit", fitted.time_s(size_bytes, ranks))
        topology = self.topology.spread(ranks, nodes)
        architecture = self.wiring.architecture
        if architecture is not None and name in nccl.COLLECTIVES:
            chosen = nccl.choose(name, size_bytes, self._fabric(architecture, topology, ranks, nodes))
            return Choice(f"{chosen.algorithm} {chosen.protocol}", chosen.time_s)
        among = _ON_ACCELERATORS.get(name, ()) if self.wiring.has_accelerators else ()
        taken = best(name, size_bytes, ranks, topology, among=among)
        return Choice(taken.algorithm, taken.time_s + self.wiring.call_s)

    def _fabric(self, architecture: nccl.Architecture, topology: Topology, ranks: int, nodes: int) -> nccl.Fabric:
        fabric = nccl.Fabric.of(topology, architecture, ranks, nodes)
        if topology.kind == "cube mesh" and nodes == 1 and 2 <= ranks < self.topology.ranks_per_node == _CUBE_MESH:
            share = cube_mesh_rings(ranks) / cube_mesh_rings(_CUBE_MESH)
            channels = max(1, round(fabric.channels * share))
            return replace(fabric, bus_gb_per_s=fabric.bus_gb_per_s * share, channels=channels)
        return fabric

    def bus_bytes_per_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        """Return the bus bandwidth of one call, as nccl-tests defines it."""
        time_s = self.time_s(collective, size_bytes, ranks, nodes=nodes)
        return size_bytes / time_s * bus_factor(collective, ranks) if time_s else 0.0
