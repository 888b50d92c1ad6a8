"""What one rank holds when a model is spread over many: replicated, sharded, split in tensors or in stages, offloaded.

The arithmetic starts from a footprint, which says what the whole model needs on one device at some batch; it comes
from the account of a traced step or from a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Literal, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

Recompute = Literal["none", "selective", "full"]
StateLocation = Literal["device", "host", "nvme"]

RANK_PARTS = (
    *("parameters", "gradients", "optimizer", "activations", "temporary"),
    *("buffers", "workspace", "slack", "context"),
)
DDP_BUCKET_BYTES = 25 * 2**20
PREFETCHED_UNITS = 2  # the unit at work and the next one, gathered while it works
TENSOR_REPLICATED_SHARE = 10 / 34  # of a transformer layer's activations, without sequence parallelism
HOST_BYTES_PER_S = 20e9  # what a PCIe 4 x16 slot carries with pinned memory
NVME_BYTES_PER_S = 5e9


@dataclass(frozen=True)
class Tied:
    """Parameters of one unit that another uses, too, as a head uses the embedding."""

    owner: str
    user: str
    size_bytes: float


@dataclass(frozen=True)
class ModelFootprint:
    """What a training step of the whole model needs on one device at `batch` samples.

    Units are the parts that are gathered, recomputed or made into stages as a whole, in the order of the forward
    pass: a block of a transformer, a stage of a network. Both mappings have the same keys.
    """

    parameters_bytes: Mapping[str, float]
    activations_bytes: Mapping[str, float]  # kept for backward, at `batch`
    gradients_bytes: float
    optimizer_bytes: float  # with master copies of the parameters
    temporary_bytes: float = 0.0  # beside what is kept, at the fullest moment before the update, at `batch`
    unit_temporary_bytes: Mapping[str, float] | None = None  # the same by unit, where it is known
    update_bytes: float = 0.0  # temporaries of the optimizer's step, when activations are gone
    workspace_bytes: float = 0.0
    context_bytes: float = 0.0
    batch: int = 1
    parameters: int = 0  # elements; 0: four bytes each are assumed
    boundary_bytes: float = 0.0  # what one unit hands to the next, at `batch`
    selective_bytes: Mapping[str, float] | None = None  # of the activations, what selective recomputation drops
    copies_bytes: Mapping[str, float] | None = None  # of parameters in low precision, kept for backward at any batch
    replicated_share: float = TENSOR_REPLICATED_SHARE  # of the activations, what tensor parallelism does not split
    tied: Sequence[Tied] = ()  # a stage that has only the user holds a copy of its own
    slack_share: float = 0.0  # what the allocator reserves beyond what it gives out, as a share of that

    def __post_init__(self) -> None:
        if not self.parameters_bytes or set(self.parameters_bytes) != set(self.activations_bytes):
            raise UsageError(
                "a footprint needs the same units in parameters_bytes and in activations_bytes, at least one"
            )
        if self.batch < 1:
            raise UsageError(f"the batch of a footprint is {self.batch}, expected at least 1")
        for each in fields(self):
            value = getattr(self, each.name)
            numbers = value.values() if isinstance(value, Mapping) else [] if value is None else [value]
            if each.name == "tied":
                numbers = [tied.size_bytes for tied in self.tied]
            if any(not math.isfinite(number) or number < 0 for number in numbers):
                raise UsageError(f"{each.name} of a footprint contains a negative or invalid number")

    @property
    def total_parameters_bytes(self) -> float:
        return sum(self.parameters_bytes.values())

    @property
    def elements(self) -> int:
        """How many parameters there are."""
        return self.parameters or round(self.total_parameters_bytes / 4)


class LayoutDict(TypedDict):
    """`Layout` as JSON holds it."""

    data: int
    tensor: int
    pipeline: int
    zero: int
    micro_batch: int
    micro_batches: int
    recompute: Recompute
    sequence_parallel: bool
    interleave: int
    optimizer_on: StateLocation
    parameters_on: StateLocation


@dataclass(frozen=True)
class Layout:
    """How a model is spread: degrees of data, tensor and pipeline parallelism, ZeRO stage, micro-batches, offload."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0  # 0: replicas (DDP); 1: optimizer, 2: and gradients, 3: and parameters (FSDP) are sharded
    micro_batch: int = 1  # samples of one micro-batch of one replica
    micro_batches: int = 1  # in a step, of one replica
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    interleave: int = 1  # virtual stages of a rank
    optimizer_on: StateLocation = "device"
    parameters_on: StateLocation = "device"

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "micro_batch", "micro_batches", "interleave"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} of a layout is {getattr(self, name)}, expected at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise UsageError(f"the ZeRO stage is {self.zero}, expected 0, 1, 2 or 3")
        if self.parameters_on != "device" and self.zero != 3:
            raise UsageError(
                "only sharded parameters can be offloaded",
                hint="use ZeRO stage 3, or keep the parameters on the device",
            )
        if self.interleave > 1 and self.pipeline == 1:
            raise UsageError(f"{self.interleave} virtual stages need a pipeline of more than one stage")

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def global_batch(self) -> int:
        return self.data * self.micro_batch * self.micro_batches


class RankMemoryDict(TypedDict):
    """`RankMemory` as JSON holds it."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    temporary_bytes: float
    buffers_bytes: float
    workspace_bytes: float
    context_bytes: float
    host_bytes: float
    nvme_bytes: float
    offload_s: float
    slack_bytes: float


@dataclass(frozen=True)
class RankMemory:
    """Memory of the fullest rank at its peak, and what it keeps outside the device."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    temporary_bytes: float  # with what recomputation brings back
    buffers_bytes: float  # of communication: buckets, gathered units, reduce-scatter
    workspace_bytes: float
    context_bytes: float
    host_bytes: float = 0.0  # pinned
    nvme_bytes: float = 0.0
    offload_s: float = 0.0  # time a step needs to move what is kept outside, not overlapped
    slack_bytes: float = 0.0  # what the allocator reserves beyond what it gives out

    @property
    def breakdown(self) -> dict[str, float]:
        """The parts that add up to `device_bytes`."""
        return {name: getattr(self, f"{name}_bytes") for name in RANK_PARTS}

    @property
    def allocated_bytes(self) -> float:
        """All that the allocator gives out at the peak."""
        kept = (self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes, self.activations_bytes)
        return sum(kept) + self.temporary_bytes + self.buffers_bytes + self.workspace_bytes

    @property
    def reserved_bytes(self) -> float:
        """All that the allocator holds where the device has room for it."""
        return self.allocated_bytes + self.slack_bytes

    @property
    def device_bytes(self) -> float:
        return self.reserved_bytes + self.context_bytes

    @property
    def least_device_bytes(self) -> float:
        """What is left where the allocator gives all back that it does not use."""
        return self.allocated_bytes + self.context_bytes


def rank_memory(
    footprint: ModelFootprint,
    layout: Layout,
    *,
    bucket_bytes: float = DDP_BUCKET_BYTES,
    host_bytes_per_s: float = HOST_BYTES_PER_S,
    nvme_bytes_per_s: float = NVME_BYTES_PER_S,
) -> RankMemory:
    """Return what the fullest rank of a layout holds; with a pipeline every stage is looked at."""
    stages = split_stages(footprint, layout.pipeline)
    kept = [_stage_memory(footprint, layout, units, number, bucket_bytes) for number, units in enumerate(stages)]
    fullest = max(kept, key=lambda memory: memory.device_bytes)
    held = _offloaded(fullest, footprint, layout, (host_bytes_per_s, nvme_bytes_per_s))
    return replace(held, slack_bytes=footprint.slack_share * held.allocated_bytes)


def split_stages(footprint: ModelFootprint, pipeline: int) -> list[list[str]]:
    """Cut the units, in order, into stages of as equal bytes of parameters and activations as whole units allow."""
    names = list(footprint.parameters_bytes)
    if pipeline > len(names):
        raise UsageError(
            f"a pipeline of {pipeline} stages needs {pipeline} layers or more, but the model has {len(names)}",
            hint=f"use at most {len(names)} stages",
        )
    weights = [footprint.parameters_bytes[name] + footprint.activations_bytes[name] for name in names]
    total, stages, start, done = sum(weights), [], 0, 0.0
    for stage in range(pipeline):
        left = pipeline - stage - 1
        end = start + 1
        done += weights[start]
        # A unit joins while the stage's middle of it lies before the even cut; one unit stays for every later stage.
        while end < len(names) - left and done + weights[end] / 2 <= total * (stage + 1) / pipeline:
            done += weights[end]
            end += 1
        if not left:
            end = len(names)
        stages.append(names[start:end])
        start = end
    return stages


def _stage_memory(
    footprint: ModelFootprint, layout: Layout, units: Sequence[str], stage: int, bucket_bytes: float
) -> RankMemory:
    whole = footprint.total_parameters_bytes or 1.0
    mine = {name: footprint.parameters_bytes[name] / layout.tensor for name in units}
    mine[units[-1]] += _tied_copies(footprint, units) / layout.tensor
    parameters = sum(mine.values())
    share = parameters / whole
    gradients, optimizer = footprint.gradients_bytes * share, footprint.optimizer_bytes * share
    shards = [layout.data if layout.zero >= level else 1 for level in (3, 2, 1)]
    scale = layout.micro_batch / footprint.batch
    held = in_flight(layout, stage)
    activations, again = _activations(footprint, layout, units, held)
    kept = activations * scale + _copies(footprint, layout, units, held)
    return RankMemory(
        parameters_bytes=parameters / shards[0],
        gradients_bytes=gradients / shards[1],
        optimizer_bytes=optimizer / shards[2],
        activations_bytes=kept,
        temporary_bytes=_temporary(footprint, layout, units, kept, again, share),
        buffers_bytes=_buffers(layout, mine, gradients / parameters if parameters else 0.0, bucket_bytes),
        workspace_bytes=footprint.workspace_bytes,
        context_bytes=footprint.context_bytes,
    )


def _tied_copies(footprint: ModelFootprint, units: Sequence[str]) -> float:
    """Return the parameters that a stage holds because its units use them, though their owner is in another."""
    copies: dict[str, float] = {}
    for tied in footprint.tied:
        if tied.user in units and tied.owner not in units:
            copies[tied.owner] = max(copies.get(tied.owner, 0.0), tied.size_bytes)
    return sum(copies.values())


def _temporary(
    footprint: ModelFootprint,
    layout: Layout,
    units: Sequence[str],
    kept: float,
    again: Mapping[str, float],
    share: float,
) -> float:
    """Return what is live beside what is kept, or what the update needs beyond it, whichever is more."""
    beside = max(footprint.temporary_bytes / layout.tensor, *again.values(), 0.0)
    live = footprint.unit_temporary_bytes
    if live is not None:
        # What is recomputed for a unit stands beside the temporaries of the same unit.
        beside = max(live.get(name, 0.0) / layout.tensor + again.get(name, 0.0) for name in units)
    beside *= layout.micro_batch / footprint.batch
    update = footprint.update_bytes * share / (layout.data if layout.zero else 1)
    return max(beside, update - kept) if layout.optimizer_on == "device" else beside


def in_flight(layout: Layout, stage: int) -> float:
    """Return how many micro-batches' activations a stage holds at most when forward and backward alternate (1F1B).

    Interleaved schedules hold (p - 1) / (p v) more on the first stage, as Korthikanti et al. give it.
    """
    held = float(min(layout.micro_batches, layout.pipeline - stage))
    if layout.interleave > 1:
        held *= 1 + (layout.pipeline - 1) / (layout.pipeline * layout.interleave)
    return held


def _activations(
    footprint: ModelFootprint, layout: Layout, units: Sequence[str], held: float
) -> tuple[float, Mapping[str, float]]:
    """Return what is kept for backward, and what recomputation brings back while each unit goes backwards."""
    dropped = footprint.selective_bytes or {}
    split, boundaries, cores = [], [], []
    for name in units:
        core = min(dropped.get(name, 0.0), footprint.activations_bytes[name])
        rest = footprint.activations_bytes[name] - core
        replicated = 0.0 if layout.sequence_parallel else footprint.replicated_share * rest
        cores.append(core / layout.tensor)
        if layout.recompute == "selective":
            core = 0.0
        split.append(replicated + (rest - replicated + core) / layout.tensor)
        boundary = footprint.boundary_bytes / (layout.tensor if layout.sequence_parallel else 1)
        boundaries.append(min(boundary, split[-1]))
    if layout.recompute == "full":
        return sum(boundaries) * held, dict(zip(units, split, strict=True))
    return sum(split) * held, dict(zip(units, cores, strict=True)) if layout.recompute == "selective" else {}


def _copies(footprint: ModelFootprint, layout: Layout, units: Sequence[str], held: float) -> float:
    """Return the copies of parameters that autocast keeps: of all units, or of the one that is recomputed."""
    copies = footprint.copies_bytes or {}
    mine = [copies.get(name, 0.0) / layout.tensor for name in units]
    return max(mine) if layout.recompute == "full" else sum(mine) * held


def _buffers(layout: Layout, mine: Mapping[str, float], gradient_ratio: float, bucket_bytes: float) -> float:
    if layout.data == 1:
        return 0.0
    sizes = sorted(mine.values(), reverse=True)
    total = sum(sizes) * gradient_ratio
    if layout.zero == 3:
        # Two gathered units, and the gradient of one before it is scattered.
        return sum(sizes[:PREFETCHED_UNITS]) + sizes[0] * gradient_ratio
    if layout.zero:
        return min(total, 2 * bucket_bytes)  # one bucket is filled while another is reduced
    return total  # DDP's buckets together are one more copy of the gradients


def _offloaded(memory: RankMemory, footprint: ModelFootprint, layout: Layout, rates: tuple[float, float]) -> RankMemory:
    host = nvme = moved_s = 0.0
    per_byte = {"host": 1 / rates[0], "nvme": 1 / rates[0] + 1 / rates[1]}  # what lies on NVMe passes through the host
    if layout.optimizer_on != "device":
        # Gradients go down, parameters come up; state on NVMe is read and written beside.
        state, crossing = memory.optimizer_bytes, memory.gradients_bytes + memory.parameters_bytes
        moved_s += crossing / rates[0]
        if layout.optimizer_on == "nvme":
            moved_s += 2 * state / rates[1]
            nvme += state
        else:
            host += state
        host += memory.gradients_bytes
        memory = replace(memory, optimizer_bytes=0.0)
    if layout.parameters_on != "device":
        passes = 3 if layout.recompute == "full" else 2  # gathered for forward and for backward
        shard = memory.parameters_bytes
        moved_s += passes * layout.micro_batches * shard * per_byte[layout.parameters_on]
        if layout.parameters_on == "nvme":
            nvme += shard
            host += min(shard, memory.buffers_bytes)
        else:
            host += shard
        memory = replace(memory, parameters_bytes=0.0)
    return replace(memory, host_bytes=host, nvme_bytes=nvme, offload_s=moved_s)
