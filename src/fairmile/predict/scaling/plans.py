"""All ways to spread a model over so many GPUs, and the fastest that fits into their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout, ModelFootprint, RankMemory, Recompute, rank_memory
from fairmile.predict.scaling.data_parallel import DataParallelModel
from fairmile.predict.scaling.step import StepParts
from fairmile.predict.scaling.transformer import TransformerModel

_WORTH = 1.05  # a plan that is more complex must be so much faster
_RECOMPUTE_ORDER: Sequence[Recompute] = ("none", "selective", "full")


@dataclass(frozen=True)
class LayoutPlan:
    """A layout with its time and what its fullest rank holds."""

    layout: Layout
    time: StepParts
    memory: RankMemory

    @property
    def step_time_s(self) -> float:
        return self.time.step_time_s


@dataclass(frozen=True)
class BestPlans:
    """The best plans: the simplest of those that are nearly as fast as the fastest, then the others, fastest first.

    Where none fits, `least_bytes` is what the smallest would need.
    """

    plans: Sequence[LayoutPlan]
    tried: int
    least_bytes: float

    @property
    def best(self) -> LayoutPlan | None:
        return self.plans[0] if self.plans else None


class Planner(Protocol):
    """What finds the best plans of one model on one machine."""

    def search(self, gpus: int, global_batch: int, *, keep: int = 1) -> BestPlans:
        """Return the fastest plans for so many GPUs and samples per step that fit into memory."""
        ...


@dataclass(frozen=True)
class Choices:
    """What a search may choose from."""

    zero: Sequence[int] = (0, 1, 2, 3)
    recompute: Sequence[Recompute] = ("none", "selective", "full")
    most_tensor: int | None = None  # a node, where it is not said
    most_pipeline: int | None = None
    most_micro_batch: int = 64  # beside all samples at once
    offload: bool = False


@dataclass
class TransformerPlanner:
    """Plans of a described transformer; `memory_bytes` is what a device has, None for no limit.

    `device` is whose libraries and context count, an H200's where it is None.
    """

    model: Transformer
    step_model: TransformerModel
    memory_bytes: float | None
    choices: Choices = Choices()
    device: Device | None = None

    def __post_init__(self) -> None:
        alone = {"batch": 1, "accumulate": 1, "recompute": "none", "training": True}
        self.footprint = closed_form(self.model.model_copy(update=alone), self.device).footprint

    def search(self, gpus: int, global_batch: int, *, keep: int = 1) -> BestPlans:
        """Return the fastest plans for so many GPUs and samples per step that fit into memory."""
        most = self.choices.most_tensor or self.step_model.machine.gpus_per_node
        tensors = [t for t in divisors(gpus) if t <= most and self.model.heads % t == 0]
        pipelines = [p for p in divisors(gpus) if self.model.layers % p == 0 and p <= self._most_pipeline()]
        choices = self.choices
        if self.model.attention == "flash":  # nothing is left to recompute selectively
            choices = replace(choices, recompute=[each for each in choices.recompute if each != "selective"])
        layouts = enumerate_layouts(gpus, global_batch, tensors, pipelines, choices)
        timed = [(self.step_model.step(self.model, layout), layout) for layout in layouts]
        return choose(timed, self.footprint, self.memory_bytes, keep)

    def _most_pipeline(self) -> int:
        return self.choices.most_pipeline or self.model.layers


@dataclass
class TracedPlanner:
    """Plans of a model known by its footprint and its step on one GPU: data, ZeRO, pipeline, micro-batches."""

    step_model: DataParallelModel
    memory_bytes: float | None
    choices: Choices = Choices(most_pipeline=1, recompute=("none", "full"), most_micro_batch=4096)

    def search(self, gpus: int, global_batch: int, *, keep: int = 1) -> BestPlans:
        """Return the fastest plans for so many GPUs and samples per step that fit into memory."""
        footprint = self.step_model.footprint
        most = min(self.choices.most_pipeline or 1, len(footprint.parameters_bytes))
        pipelines = [p for p in divisors(gpus) if p <= most]
        layouts = enumerate_layouts(gpus, global_batch, [1], pipelines, self.choices)
        timed = [(self.step_model.step(layout), layout) for layout in layouts]
        return choose(timed, footprint, self.memory_bytes, keep)


def enumerate_layouts(
    gpus: int, global_batch: int, tensors: Sequence[int], pipelines: Sequence[int], choices: Choices
) -> Iterator[Layout]:
    """Yield every layout whose degrees multiply to the GPUs and whose micro-batches share the samples evenly."""
    if gpus < 1 or global_batch < 1:
        raise UsageError(f"got {gpus} GPUs and {global_batch} samples per step, expected at least one of each")
    for tensor in tensors:
        for pipeline in pipelines:
            data, rest = divmod(gpus, tensor * pipeline)
            if rest or global_batch % data:
                continue
            yield from _batched(Layout(data, tensor, pipeline), global_batch // data, choices)


def _batched(base: Layout, samples: int, choices: Choices) -> Iterator[Layout]:
    stages = [0] if base.data == 1 else [zero for zero in choices.zero if base.pipeline == 1 or zero < 2]
    for micro_batch in divisors(samples):
        if micro_batch > choices.most_micro_batch and micro_batch < samples:
            continue
        for recompute in choices.recompute:
            for zero in stages:
                layout = replace(
                    base,
                    zero=zero,
                    micro_batch=micro_batch,
                    micro_batches=samples // micro_batch,
                    recompute=recompute,
                    sequence_parallel=base.tensor > 1,
                )
                yield layout
                if choices.offload:
                    yield replace(layout, optimizer_on="host")


def choose(
    timed: Sequence[tuple[StepParts, Layout]], footprint: ModelFootprint, memory_bytes: float | None, keep: int
) -> BestPlans:
    """Return the fastest layouts whose fullest rank fits; memory is worked out for the fast ones first.

    A rank fits where there is room for all that its allocator reserves: giving unused segments back takes time that
    the plan does not have.
    """
    plans: list[LayoutPlan] = []
    least = float("inf")
    for time, layout in sorted(timed, key=lambda each: each[0].step_time_s):
        if len(plans) >= keep and time.step_time_s > _WORTH * plans[0].step_time_s:
            break
        floor = _floor_bytes(footprint, layout)
        if memory_bytes is not None and floor > memory_bytes:
            least = min(least, floor)
            continue
        memory = rank_memory(footprint, layout)
        least = min(least, memory.device_bytes)
        if memory_bytes is None or memory.device_bytes <= memory_bytes:
            plans.append(LayoutPlan(layout, time, memory))
    if plans:
        as_fast = [plan for plan in plans if plan.step_time_s <= _WORTH * plans[0].step_time_s]
        best = min(as_fast, key=_complexity)
        plans = [best, *(plan for plan in plans if plan is not best)]
    return BestPlans(plans[:keep], len(timed), least)


def _complexity(plan: LayoutPlan) -> tuple[int, ...]:
    """Return what orders plans from the simplest on: first those that split no layer and no state."""
    how = plan.layout
    outside = sum(place != "device" for place in (how.optimizer_on, how.parameters_on))
    again = _RECOMPUTE_ORDER.index(how.recompute)
    return outside, how.pipeline, how.tensor, how.zero, again, how.micro_batches


def _floor_bytes(footprint: ModelFootprint, layout: Layout) -> float:
    """Return what the average rank holds at least: the states of its share, without activations."""
    mine = layout.tensor * layout.pipeline
    parts = (footprint.total_parameters_bytes, footprint.gradients_bytes, footprint.optimizer_bytes)
    shards = [layout.data if layout.zero >= level else 1 for level in (3, 2, 1)]
    on_device = (1, 1, 0 if layout.optimizer_on != "device" else 1)
    return sum(part / mine / shard * on for part, shard, on in zip(parts, shards, on_device, strict=True))


def divisors(number: int) -> list[int]:
    """Return all divisors, smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
