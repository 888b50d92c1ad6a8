"""The step of any model on many GPUs, from its step on one: smaller batches, exposed communication, waiting.

Gradients are reduced in buckets while backward still runs. What does not fit behind it is exposed, and so is the last
bucket. The step ends when the slowest rank is done, and the more ranks there are the slower the slowest one is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.predict.memory.sharding import DDP_BUCKET_BYTES, Layout, ModelFootprint, rank_memory, split_stages
from fairmile.predict.scaling.step import Collectives, NodeModel, Remembered, StepParts


class StepTimeLike(Protocol):
    """A step on one GPU, predicted or measured."""

    @property
    def step_time_s(self) -> float: ...

    @property
    def batch(self) -> int: ...

    @property
    def backward_share(self) -> float: ...


@dataclass(frozen=True)
class OneGpuStep:
    """A step on one GPU: its time at a batch, and how much of it is backward and update."""

    step_time_s: float
    batch: int
    backward_share: float = 0.62
    optimizer_share: float = 0.04

    def __post_init__(self) -> None:
        if not (self.step_time_s > 0 and math.isfinite(self.step_time_s)) or self.batch < 1:
            raise UsageError(
                f"the step time is {self.step_time_s} s and the batch {self.batch}, expected positive numbers"
            )
        if not 0 <= self.backward_share + self.optimizer_share <= 1:
            raise UsageError("backward pass and update take more than the whole step")

    @classmethod
    def of_phases(cls, step_time_s: float, batch: int, by_phase: Mapping[str, float]) -> OneGpuStep:
        """Return the step whose `backward` and `optimizer` phases take so many seconds of the device."""
        busy_s = sum(by_phase.values())
        if busy_s <= 0:
            return cls(step_time_s, batch)
        return cls(step_time_s, batch, by_phase.get("backward", 0.0) / busy_s, by_phase.get("optimizer", 0.0) / busy_s)


@dataclass(frozen=True)
class InputRate:
    """How fast samples arrive: what the loaders of one node prepare, and what the storage gives to all nodes."""

    node_samples_per_s: float = math.inf
    shared_samples_per_s: float = math.inf


@dataclass(frozen=True)
class Effects:
    """What is no arithmetic: constants learned from published runs (speed/scaling_accuracy/epochs.py)."""

    straggling: float = 0.043  # of the step, per e-fold of the ranks
    half_batch: float = 1.6  # samples that would take as long as the fixed part of a step does
    overlap: float = 0.9  # of backward, behind which communication hides
    contention: float = 0.05  # how much slower work is while it shares the device with communication


@dataclass
class DataParallelModel:
    """Predicts steps of one model on one machine.

    With steps at several batches, their straight line gives the time of any batch; with one, `half_batch` does.
    """

    footprint: ModelFootprint
    one_gpu: StepTimeLike | Sequence[StepTimeLike]
    collectives: Collectives
    machine: NodeModel
    effects: Effects = field(default_factory=Effects)
    input: InputRate = field(default_factory=InputRate)

    def __post_init__(self) -> None:
        steps = list(self.one_gpu) if isinstance(self.one_gpu, Sequence) else [self.one_gpu]
        if not steps:
            raise UsageError("scaling needs at least one step on one GPU")
        self._steps = sorted(steps, key=lambda step: step.batch)
        self._largest = self._steps[-1]
        self._remembered = Remembered(self.collectives)

    def work_s(self, batch: float) -> float:
        """Return the time of forward and backward of so many samples on one GPU."""
        first, last, update_s = self._steps[0], self._largest, self._update_s
        whole_s = last.step_time_s - update_s
        if first.batch == last.batch:
            half = self.effects.half_batch
            return whole_s * (batch + half) / (last.batch + half)
        smallest_s = max(first.step_time_s - update_s, 0.0)
        slope = max(0.0, (whole_s - smallest_s) / (last.batch - first.batch))
        # Below the smallest batch that is known nothing says that a step gets faster than by its share.
        return max(whole_s + slope * (batch - last.batch), smallest_s * min(1.0, batch / first.batch))

    @property
    def _update_s(self) -> float:
        return float(getattr(self._largest, "optimizer_share", 0.04)) * self._largest.step_time_s

    def _shared_update_s(self, layout: Layout) -> float:
        """Return the time of the update where its state is shared out: launching it takes as long for less state."""
        update_s = self._update_s
        if not layout.zero:
            return update_s
        moved_s = update_s
        if self.machine.bandwidth_bytes_per_s:
            states = self.footprint.total_parameters_bytes + self.footprint.optimizer_bytes
            moved = 2 * states + self.footprint.gradients_bytes  # states are read and written, gradients read
            moved_s = min(update_s, moved / self.machine.bandwidth_bytes_per_s)
        return update_s - moved_s + moved_s / layout.data

    def step(self, layout: Layout) -> StepParts:
        """Return where the time of one step of a layout goes; tensor parallelism needs the model of transformers."""
        if layout.tensor > 1:
            raise UsageError(
                "tensor parallelism of a traced model cannot be predicted", hint="describe it as a transformer"
            )
        update_s, work_s = self._update_s, self.work_s(layout.micro_batch)
        backward = self._largest.backward_share
        if layout.recompute == "full":
            forward = max(0.0, 1 - backward - update_s / self._largest.step_time_s)
            work_s *= 1 + forward * self._largest.step_time_s / (self._largest.step_time_s - update_s)
        shares = self._stage_shares(layout.pipeline)
        stage_s = work_s * max(shares)
        compute_s = layout.micro_batches * stage_s
        bubble_s = (layout.pipeline - 1) * stage_s / layout.interleave
        update_s = self._shared_update_s(layout) * max(shares)
        hidden_by = backward * stage_s * (layout.micro_batches if layout.zero >= 2 else 1)
        data_s, overlapped_s = self._data_s(layout, max(shares), hidden_by)
        compute_s += self.effects.contention * overlapped_s
        hops_s = self._hops_s(layout)
        busy_s = compute_s + bubble_s
        step = StepParts(
            compute_s=compute_s,
            bubble_s=bubble_s,
            hops_s=hops_s,
            data_s=data_s,
            optimizer_s=update_s,
            wait_s=self.effects.straggling * math.log(layout.ranks) * busy_s,
            offload_s=rank_memory(self.footprint, layout).offload_s if _offloads(layout) else 0.0,
        )
        return replace(step, input_s=max(0.0, self._arrival_s(layout) - step.step_time_s))

    def _arrival_s(self, layout: Layout) -> float:
        """Return the time in which the samples of a step arrive; they are prepared while the last step runs."""
        nodes = self.machine.nodes(layout.ranks)
        rate = min(self.input.node_samples_per_s * nodes, self.input.shared_samples_per_s)
        return layout.global_batch / rate if rate else math.inf

    def _stage_shares(self, pipeline: int) -> list[float]:
        if pipeline == 1:
            return [1.0]
        # Work follows the activations, where a unit has any; parameters break ties of those without.
        weights = {
            name: kept + 1e-3 * self.footprint.parameters_bytes[name]
            for name, kept in self.footprint.activations_bytes.items()
        }
        total = sum(weights.values()) or 1.0
        return [sum(weights[name] for name in names) / total for names in split_stages(self.footprint, pipeline)]

    def _data_s(self, layout: Layout, share: float, backward_s: float) -> tuple[float, float]:
        """Return the exposed communication of gradients and shards, and what is hidden behind backward."""
        if layout.data == 1:
            return 0.0, 0.0
        ask, nodes = self._remembered.time_s, self.machine.data_nodes(layout)
        gradients = self.footprint.gradients_bytes * share
        if not gradients and layout.zero < 3:
            return 0.0, 0.0
        if layout.zero == 3:
            parameters = self.footprint.total_parameters_bytes * share
            gathers = 2 + (1 if layout.recompute == "full" else 0)
            unit = max(self.footprint.parameters_bytes.values())
            count = max(1.0, parameters / unit) if unit else 1.0
            gather_s = ask("all_gather", parameters / count, layout.data, nodes=nodes) * count
            whole_s = gathers * layout.micro_batches * gather_s
            # Ranks keep only their share of the gradients, so that every micro-batch's are scattered at once.
            whole_s += ask("reduce_scatter", gradients / count, layout.data, nodes=nodes) * count * layout.micro_batches
            last_s = 2 * gather_s / count  # nothing runs yet while the first unit is gathered, each way
        else:
            buckets = max(1, math.ceil(gradients / DDP_BUCKET_BYTES))
            bucket_s = ask("all_reduce", gradients / buckets, layout.data, nodes=nodes)
            whole_s, last_s = bucket_s * buckets, bucket_s
            if layout.zero == 2:
                scatter_s = ask("reduce_scatter", gradients / buckets, layout.data, nodes=nodes)
                whole_s += scatter_s * buckets * (layout.micro_batches - 1)
        exposed_s = max(min(last_s, whole_s), whole_s - self.effects.overlap * backward_s)
        return exposed_s, whole_s - exposed_s

    def _hops_s(self, layout: Layout) -> float:
        if layout.pipeline == 1:
            return 0.0
        size = self.footprint.boundary_bytes * layout.micro_batch / self.footprint.batch
        nodes = 2 if layout.ranks > self.machine.gpus_per_node else 1
        one_s = self._remembered.time_s("broadcast", size, 2, nodes=nodes)
        return 2 * one_s * (layout.micro_batches + layout.pipeline - 1) * layout.interleave


def _offloads(layout: Layout) -> bool:
    return layout.optimizer_on != "device" or layout.parameters_on != "device"
