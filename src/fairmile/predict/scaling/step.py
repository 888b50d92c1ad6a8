"""What every model of a step on many GPUs shares: the machine, what collectives cost there, where the time goes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypedDict

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.costs.devices import Device, device
from fairmile.predict.memory.sharding import Layout

if TYPE_CHECKING:
    from fairmile.systems.model import Partition


class Collectives(Protocol):
    """What tells the time of a collective; `fairmile.costs.collectives.times.CollectiveModel` is one."""

    def time_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        """Return the seconds of one call by ranks spread evenly over so many nodes."""
        ...


class Remembered:
    """Collectives whose answers are kept, since a search asks for the same ones again and again."""

    def __init__(self, asked: Collectives) -> None:
        self._asked = asked
        self._known: dict[tuple[str, float, int, int], float] = {}

    def time_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        """Return the seconds of one call by ranks spread evenly over so many nodes."""
        key = (collective, size_bytes, ranks, nodes)
        if key not in self._known:
            self._known[key] = self._asked.time_s(collective, size_bytes, ranks, nodes=nodes)
        return self._known[key]


@dataclass(frozen=True)
class NodeModel:
    """The device, and the node that it stands in; memory and power are None where they are not known."""

    peak_flops: float = 312e12
    gpus_per_node: int = 8
    rails: int = 8  # network adapters of a node
    memory_bytes: float | None = None  # of one device
    power_w: float | None = None  # of one device at work, with its share of the node
    bandwidth_bytes_per_s: float | None = None  # of its memory

    def with_device(self, known: Device) -> NodeModel:
        """Return the same node with what a device of the table can do."""
        return replace(
            self,
            peak_flops=known.peak("bfloat16"),
            memory_bytes=float(known.memory_bytes),
            power_w=known.max_w,
            bandwidth_bytes_per_s=known.bandwidth_bytes_per_s,
        )

    def nodes(self, gpus: int) -> int:
        """Return how many nodes so many GPUs fill."""
        return -(-gpus // self.gpus_per_node)

    def data_nodes(self, layout: Layout) -> int:
        """Return over how many nodes a group of data-parallel ranks is spread; tensor ranks are neighbours."""
        if layout.ranks <= self.gpus_per_node:
            return 1
        return max(1, min(layout.data, -(-layout.data * layout.tensor // self.gpus_per_node)))

    def sharing(self, layout: Layout, nodes: int) -> float:
        """Return by how much the data-parallel groups of one node slow each other down on its adapters."""
        if nodes == 1:
            return 1.0
        together = max(1, layout.data // nodes)
        groups = min(layout.tensor, self.gpus_per_node)
        return max(1.0, groups * min(self.rails, together) / self.rails)


A100 = NodeModel()


@dataclass(frozen=True)
class TwoLevelLinks:
    """Collectives by two bandwidths and a latency, for machines of which no more is known.

    Ranks of a node reduce among each other first, then the nodes do in a tree of full bandwidth, then back.
    """

    inside_bytes_per_s: float  # of one rank
    node_bytes_per_s: float  # of all adapters of a node
    latency_s: float = 5e-6
    call_s: float = 2e-5

    def time_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        """Return the seconds of one call by ranks spread evenly over so many nodes."""
        if ranks == 1:
            return 0.0
        if collective == "broadcast":
            rate = self.inside_bytes_per_s if nodes == 1 else self.node_bytes_per_s
            return self.call_s + math.ceil(math.log2(ranks)) * self.latency_s + size_bytes / rate
        if collective not in ("all_reduce", "reduce_scatter", "all_gather"):
            raise UsageError(f"no cost model for the collective {collective!r}")
        ways = 2 if collective == "all_reduce" else 1
        here = max(1, ranks // nodes)
        inside_s = (here - 1) * self.latency_s + (here - 1) / here * size_bytes / self.inside_bytes_per_s
        between_s = 0.0
        if nodes > 1:
            between_s = math.log2(nodes) * self.latency_s + (nodes - 1) / nodes * size_bytes / self.node_bytes_per_s
        return self.call_s + ways * (inside_s + between_s)


class StepPartsDict(TypedDict):
    """`StepParts` as JSON holds it."""

    compute_s: float
    tensor_s: float
    bubble_s: float
    hops_s: float
    data_s: float
    optimizer_s: float
    wait_s: float
    offload_s: float
    input_s: float
    overhead_s: float


@dataclass(frozen=True)
class StepParts:
    """Where one step's time goes on the slowest rank; the parts add up to it."""

    compute_s: float
    tensor_s: float = 0.0  # exposed communication of tensor parallelism
    bubble_s: float = 0.0
    hops_s: float = 0.0  # between the stages of a pipeline
    data_s: float = 0.0  # exposed communication of gradients and sharded parameters
    optimizer_s: float = 0.0
    wait_s: float = 0.0  # for the slowest rank
    offload_s: float = 0.0
    input_s: float = 0.0  # for samples that have not arrived
    overhead_s: float = 0.0

    @property
    def step_time_s(self) -> float:
        """The whole step."""
        work_s = self.compute_s + self.bubble_s + self.optimizer_s + self.overhead_s
        return work_s + self.wait_s + self.offload_s + self.input_s + self.communication_s

    @property
    def communication_s(self) -> float:
        """All exposed communication."""
        return self.tensor_s + self.hops_s + self.data_s


def device_of_partition(partition: Partition) -> Device | None:
    """Return the device of the table that a partition names, the one with its memory if there are several."""
    if partition.gpu is None:
        return None
    model = re.sub(r"\(.*?\)|\btesla\b", "", partition.gpu.model, flags=re.IGNORECASE).strip()
    names = [model]
    if partition.gpu.memory_gib is not None:
        names.insert(0, f"{model}-{partition.gpu.memory_gib:.0f}gb")
    for name in names:
        try:
            return device(name)
        except NotFound:
            continue
    return None


def machine_of(partition: Partition, known: Device | None = None) -> NodeModel:
    """Return the machine that a partition describes, with what is known of its device; UsageError without GPUs."""
    if partition.gpu is None:
        raise UsageError("the partition has no GPUs", hint="name a partition with GPUs: SYSTEM:PARTITION")
    topology = CollectiveModel.from_partition(partition).topology
    memory_gib = partition.gpu.memory_gib
    machine = NodeModel(gpus_per_node=partition.gpu.count, rails=topology.rails)
    machine = machine if known is None else machine.with_device(known)
    if memory_gib is None:
        return machine
    # What is sold as so many GiB has a little less of its own.
    return replace(machine, memory_bytes=min(memory_gib * 2**30, machine.memory_bytes or math.inf))
