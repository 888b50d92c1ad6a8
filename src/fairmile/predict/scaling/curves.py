"""Time, efficiency, cost and energy over the number of GPUs, and up to where more of them are worth it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.plain import plain
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_duration, format_size
from fairmile.costs.collectives.links import Topology
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.costs.devices import device as known_device
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import LayoutDict, ModelFootprint, RankMemoryDict
from fairmile.predict.scaling.data_parallel import DataParallelModel, Effects, InputRate, StepTimeLike
from fairmile.predict.scaling.plans import Choices, LayoutPlan, Planner, TracedPlanner, TransformerPlanner
from fairmile.predict.scaling.step import (
    Collectives,
    NodeModel,
    Remembered,
    StepPartsDict,
    device_of_partition,
    machine_of,
)
from fairmile.predict.scaling.transformer import Constants, TransformerModel

if TYPE_CHECKING:
    from fairmile.costs.devices import Device
    from fairmile.systems.model import Partition

Mode = Literal["strong", "weak"]
WORTH_EFFICIENCY = 0.7
_CLEARLY_ABOVE = 1.005  # as an efficiency that is shown as more than 100 %
_SHOWN_LOSS = 0.005
MOST_GPUS = 1_000_000
SPREAD = 0.16  # nine of ten published runs lie so near to what is predicted (speed/accuracy_scaling.py)
TRANSFORMER_STRAGGLING = 0.01  # large steps even out what small ones show


class ScalingRowDict(TypedDict):
    """`ScalingRow` as JSON holds it; what belongs to a plan is None where there is none."""

    gpus: int
    nodes: int
    global_batch: int
    reason: str
    step_time_s: float | None
    samples_per_s: float | None
    efficiency: float | None
    gpu_hours: float | None
    wall_s: float | None
    energy_j: float | None
    energy_per_sample_j: float | None
    cost: float | None
    low_s: float | None
    high_s: float | None
    communication_s: float | None
    communication_share: float | None
    lost: dict[str, float]
    memory_bytes: int | None
    host_bytes: int | None
    parts_s: StepPartsDict | None
    plan: LayoutDict | None
    memory: RankMemoryDict | None


class ScalingPredictionDict(TypedDict):
    """`ScalingPrediction` as JSON holds it."""

    target: str
    on: str
    mode: Mode
    worth_up_to: int | None
    threshold: float
    device_memory_bytes: float | None
    notes: list[str]
    rows: list[ScalingRowDict]


@dataclass(frozen=True, repr=False)
class ScalingRow(Result):
    """One number of GPUs; where nothing fits, `plan` is None and `reason` says why."""

    gpus: int
    nodes: int
    global_batch: int
    plan: LayoutPlan | None = None
    reason: str = ""
    spread: float = SPREAD
    efficiency: float | None = None  # throughput of one GPU, against that on the fewest GPUs of the curve
    gpu_hours: float | None = None  # to the samples asked for
    wall_s: float | None = None
    energy_j: float | None = None
    energy_per_sample_j: float | None = None
    cost: float | None = None
    lost: Mapping[str, float] = field(default_factory=dict)  # by cause, shares that add up to 1 - efficiency

    @property
    def step_time_s(self) -> float | None:
        return self.plan.step_time_s if self.plan else None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Where nine of ten steps should lie."""
        if self.plan is None:
            return None
        return self.plan.step_time_s / (1 + self.spread), self.plan.step_time_s * (1 + self.spread)

    @property
    def samples_per_s(self) -> float | None:
        return self.global_batch / self.plan.step_time_s if self.plan else None

    @property
    def communication_share(self) -> float | None:
        """Share of the step that is exposed communication."""
        return self.plan.time.communication_s / self.plan.step_time_s if self.plan else None

    def to_dict(self) -> ScalingRowDict:
        plan = self.plan
        low_s, high_s = self.interval_s or (None, None)
        return {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "global_batch": self.global_batch,
            "reason": self.reason,
            "step_time_s": self.step_time_s,
            "samples_per_s": self.samples_per_s,
            "efficiency": self.efficiency,
            "gpu_hours": self.gpu_hours,
            "wall_s": self.wall_s,
            "energy_j": self.energy_j,
            "energy_per_sample_j": self.energy_per_sample_j,
            "cost": self.cost,
            "low_s": low_s,
            "high_s": high_s,
            "communication_s": plan.time.communication_s if plan else None,
            "communication_share": self.communication_share,
            "lost": dict(self.lost),
            "memory_bytes": round(plan.memory.device_bytes) if plan else None,
            "host_bytes": round(plan.memory.host_bytes) if plan else None,
            "parts_s": plain(plan.time) if plan else None,
            "plan": plain(plan.layout) if plan else None,
            "memory": plain(plan.memory) if plan else None,
        }

    def summary(self) -> str:
        if self.plan is None:
            return f"{self.gpus:,} GPUs: {self.reason}"
        step = format_duration(self.plan.step_time_s)
        return f"{self.gpus:,} GPUs: {step} a step, efficiency {_percent(self.efficiency)}"


@dataclass(frozen=True, repr=False)
class ScalingPrediction(Result):
    """A scaling curve, and the largest number of GPUs up to which efficiency stays at `threshold` or above."""

    mode: Mode
    rows: Sequence[ScalingRow]
    worth_up_to: int | None
    threshold: float = WORTH_EFFICIENCY
    notes: Sequence[str] = field(default_factory=tuple)
    memory_bytes: float | None = None  # of one device
    target: str = ""
    on: str = ""  # the system, or one of its partitions

    def to_dict(self) -> ScalingPredictionDict:
        return {
            "target": self.target,
            "on": self.on,
            "mode": self.mode,
            "worth_up_to": self.worth_up_to,
            "threshold": self.threshold,
            "device_memory_bytes": self.memory_bytes,
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }

    def summary(self) -> str:
        worth = "no plan fits" if self.worth_up_to is None else f"efficient up to {self.worth_up_to:,} GPUs"
        return f"{self.mode} scaling of {self.target} on {self.on}, {worth}"

    def _repr_html_(self) -> str:
        rows = (
            {
                "GPUs": f"{row.gpus:,}",
                "batch": f"{row.global_batch:,}",
                "step": format_duration(row.step_time_s) if row.step_time_s else row.reason,
                "samples/s": f"{row.samples_per_s:,.1f}" if row.samples_per_s else "",
                "efficiency": _percent(row.efficiency),
                "lost to": lost_words(row.lost),
                "memory": format_size(round(row.plan.memory.device_bytes)) if row.plan else "",
            }
            for row in self.rows
        )
        return Results(rows)._repr_html_()


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def lost_words(lost: Mapping[str, float], percent: Callable[[float], str] = "{:.0%}".format) -> str:
    """Return the two largest losses, such as `communication 12%, smaller kernels 3%`."""
    largest = sorted(lost.items(), key=lambda each: -each[1])[:2]
    return ", ".join(f"{cause} {percent(share)}" for cause, share in largest if share >= _SHOWN_LOSS)


@dataclass(frozen=True)
class Goal:
    """What a curve counts beside time: samples to train on, price of a GPU-hour, power of a GPU."""

    samples: float | None = None
    price_per_gpu_hour: float | None = None
    power_w: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("samples", self.samples), ("power of a GPU", self.power_w)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} is {value:g}, expected a number above 0")
        price = self.price_per_gpu_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise UsageError(f"the price of a GPU-hour is {price:g}, expected 0 or more")
        if price is not None and self.samples is None:
            raise UsageError("a price needs the number of samples to train on", hint="add it, such as --samples 1e6")


def parse_gpus(text: str) -> list[int]:
    """Return the numbers of GPUs that a text names: `8`, `1,4,16`, or `1..4096`, which doubles from the first on."""
    counts: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not (first.isascii() and first.isdigit() and (not dots or (last.isascii() and last.isdigit()))):
            raise UsageError(f"{part.strip()!r} is not a number of GPUs", hint="write 8, 1,4,16 or 1..4096")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high <= MOST_GPUS:
            raise UsageError(f"{part.strip()!r} is not a range of GPUs from 1 to {MOST_GPUS}, the smaller number first")
        while low < high:
            counts.add(low)
            low *= 2
        counts.add(high)
    return sorted(counts)


def scaling_curve(
    planner: Planner,
    machine: NodeModel,
    gpus: Sequence[int],
    *,
    mode: Mode = "strong",
    batch: int,
    goal: Goal | None = None,
    threshold: float = WORTH_EFFICIENCY,
    spread: float = SPREAD,
    notes: Sequence[str] = (),
) -> ScalingPrediction:
    """Return the best plan for each number of GPUs; `batch` is of the whole step (strong) or of one GPU (weak)."""
    counts = sorted(set(gpus))
    if not counts or counts[0] < 1:
        raise UsageError(f"the numbers of GPUs are {list(gpus)}, expected whole numbers of at least 1")
    if batch < 1:
        raise UsageError(f"the batch size is {batch}, expected at least 1")
    goal = goal or Goal()
    if goal.power_w is None:
        goal = replace(goal, power_w=machine.power_w)
    rows: list[ScalingRow] = []
    base: ScalingRow | None = None
    for count in counts:
        row = _row(planner, machine, count, batch if mode == "strong" else batch * count)
        if row.plan is not None:
            base = base or row
            row = _counted(replace(row, spread=spread), base, goal)
        rows.append(row)
    notes = (*_explained(rows), *notes)
    return ScalingPrediction(mode, rows, _worth(rows, threshold), threshold, notes, machine.memory_bytes)


def _row(planner: Planner, machine: NodeModel, count: int, global_batch: int) -> ScalingRow:
    search = planner.search(count, global_batch)
    reason = ""
    if search.best is None:
        reason = f"no layout divides a batch of {global_batch} evenly among {count} GPUs"
        if search.tried:
            reason = f"no layout fits: the smallest of {search.tried} needs {format_size(round(search.least_bytes))}"
            if machine.memory_bytes is not None:
                reason += f", a GPU has {format_size(round(machine.memory_bytes))}"
    return ScalingRow(count, machine.nodes(count), global_batch, search.best, reason)


def _counted(row: ScalingRow, base: ScalingRow, goal: Goal) -> ScalingRow:
    step_s = row.step_time_s or 0.0
    per_sample_j = None if goal.power_w is None else goal.power_w * row.gpus * step_s / row.global_batch
    lost = _lost(row, base)
    extra: dict[str, Any] = {"efficiency": 1 - sum(lost.values()), "lost": lost, "energy_per_sample_j": per_sample_j}
    if goal.samples is not None:
        wall_s = goal.samples / row.global_batch * step_s
        hours = wall_s * row.gpus / 3600
        extra |= {"wall_s": wall_s, "gpu_hours": hours}
        extra["energy_j"] = None if per_sample_j is None else per_sample_j * goal.samples
        extra["cost"] = None if goal.price_per_gpu_hour is None else hours * goal.price_per_gpu_hour
    return replace(row, **extra)


def _lost(row: ScalingRow, base: ScalingRow) -> dict[str, float]:
    """Return what takes more GPU time a sample than in `base`, as shares of the row's; what takes less is negative."""
    now, then = _causes(row), _causes(base)
    if row.plan and base.plan and row.plan.layout.recompute != base.plan.layout.recompute:
        now["recomputation and smaller kernels"] = now.pop("smaller kernels")
        then["recomputation and smaller kernels"] = then.pop("smaller kernels")
    whole_s = sum(now.values())
    return {cause: (now[cause] - then[cause]) / whole_s for cause in now if now[cause] != then[cause]}


def _causes(row: ScalingRow) -> dict[str, float]:
    """Return the GPU time of one sample by what costs efficiency where it grows."""
    if row.plan is None:
        return {}
    parts, gpus_per_sample = row.plan.time, row.gpus / row.global_batch
    seconds = {
        "communication": parts.communication_s,
        "pipeline bubbles": parts.bubble_s,
        "smaller kernels": parts.compute_s,
        "optimizer updates": parts.optimizer_s,
        "waiting for the slowest GPU": parts.wait_s,
        "offloading": parts.offload_s,
        "input": parts.input_s,
        "fixed cost of a step": parts.overhead_s,
    }
    return {cause: time_s * gpus_per_sample for cause, time_s in seconds.items()}


def _explained(rows: Sequence[ScalingRow]) -> list[str]:
    """Return why efficiency is above 100 %, where it is."""
    known = [row for row in rows if row.efficiency is not None]
    if not any(row.efficiency is not None and row.efficiency > _CLEARLY_ABOVE for row in known):
        return []
    fewest = f"{known[0].gpus:,} GPU{'s' if known[0].gpus > 1 else ''}"
    return [f"efficiency exceeds 100 % because the baseline, {fewest}, has memory only for slower layouts"]


def _worth(rows: Sequence[ScalingRow], threshold: float) -> int | None:
    """Return the last number of GPUs before efficiency falls below the threshold for the first time."""
    reached: int | None = None
    for row in rows:
        if row.efficiency is None:
            continue
        if row.efficiency < threshold:
            break
        reached = row.gpus
    return reached


def predict_scaling(
    footprint: ModelFootprint,
    one_gpu: StepTimeLike | Sequence[StepTimeLike],
    where: Partition | Topology | NodeModel,
    gpus: Sequence[int],
    *,
    mode: Mode = "strong",
    batch: int | None = None,
    collectives: Collectives | None = None,
    effects: Effects | None = None,
    choices: Choices | None = None,
    goal: Goal | None = None,
    device: Device | None = None,
    arriving: InputRate | None = None,
) -> ScalingPrediction:
    """Predict how a traced model scales.

    `batch` is that of the whole step (strong; by default one GPU's batch times the fewest GPUs) or of one GPU (weak).
    A machine given as such needs `collectives`; a partition or a topology brings its own. `device` adds what the
    device can do and draws, `arriving` how fast samples come in.
    """
    machine, collectives, notes = _place(where, collectives, device, gpus)
    model = DataParallelModel(footprint, one_gpu, collectives, machine, effects or Effects(), arriving or InputRate())
    steps = list(one_gpu) if isinstance(one_gpu, Sequence) else [one_gpu]
    usual = max(step.batch for step in steps)
    if mode == "strong":
        usual *= min(gpus, default=1)
    planner = TracedPlanner(model, machine.memory_bytes)
    if choices is not None:
        planner.choices = choices
    return scaling_curve(planner, machine, gpus, mode=mode, batch=batch or usual, goal=goal, notes=notes)


def predict_transformer_scaling(
    described: Transformer,
    where: Partition | Topology | NodeModel,
    gpus: Sequence[int],
    *,
    mode: Mode = "strong",
    batch: int | None = None,
    collectives: Collectives | None = None,
    constants: Constants | None = None,
    overlap: float = 0.7,
    straggling: float = TRANSFORMER_STRAGGLING,
    choices: Choices | None = None,
    goal: Goal | None = None,
    device: Device | None = None,
) -> ScalingPrediction:
    """Predict how a described transformer scales, with every way to spread it tried; `batch` as for traced models.

    A description that asks for full recomputation gets it in every plan.
    """
    if not described.training:
        raise UsageError("scaling of a description is predicted for training only", hint="remove --inference")
    machine, collectives, notes = _place(where, collectives, device, gpus)
    if device is None and not isinstance(where, (NodeModel, Topology)):
        device = device_of_partition(where)
    if constants is None and device is not None:
        constants = Constants.of_device(device.bandwidth_bytes_per_s)
    if device is not None and "bf16" in described.precision and "bfloat16" not in device.peak_flops_per_s:
        notes = (*notes, f"{device.name} has no bf16 units: fp16 speed is assumed")
    if described.compute_bytes == 4 and not isinstance(where, NodeModel):
        peak = (device or known_device("a100")).peak("float32", tf32=described.precision == "tf32")
        machine = replace(machine, peak_flops=peak)
    if choices is None and described.recompute == "full":
        choices = Choices(recompute=("full",))
    model = TransformerModel(
        constants, machine, collectives=Remembered(collectives), overlap=overlap, straggling=straggling
    )
    planner = TransformerPlanner(described, model, machine.memory_bytes, choices or Choices(), device)
    notes = (*notes, *closed_form(described, device).notes)
    usual = described.batch * described.accumulate * (min(gpus, default=1) if mode == "strong" else 1)
    return scaling_curve(planner, machine, gpus, mode=mode, batch=batch or usual, goal=goal, notes=notes)


def _place(
    where: Partition | Topology | NodeModel,
    collectives: Collectives | None,
    device: Device | None,
    gpus: Sequence[int],
) -> tuple[NodeModel, Collectives, Sequence[str]]:
    if isinstance(where, NodeModel):
        if collectives is None:
            raise UsageError("a machine without a partition needs a cost model of its collectives")
        return where if device is None else where.with_device(device), collectives, ()
    if isinstance(where, Topology):
        machine = NodeModel(gpus_per_node=where.ranks_per_node, rails=where.rails)
        machine = machine if device is None else machine.with_device(device)
        return machine, collectives or CollectiveModel.from_fit({}, where), ()
    device = device or device_of_partition(where)
    machine = machine_of(where, device)
    notes = [f"device: {device.name}" if device else "the GPU is not in the table: A100 speed is assumed"]
    notes += _too_many(where, machine, max(gpus, default=1))
    collectives = collectives or CollectiveModel.from_partition(where)
    if isinstance(collectives, CollectiveModel):
        notes += collectives.notes
    return machine, collectives, notes


def _too_many(partition: Partition, machine: NodeModel, gpus: int) -> list[str]:
    """Say where more GPUs are asked for than there are, or than one job gets."""
    nodes = machine.nodes(gpus)
    if partition.nodes is not None and nodes > partition.nodes:
        there = partition.nodes * machine.gpus_per_node
        return [f"the partition has {there:,} GPUs: predictions beyond that, up to {gpus:,}, are hypothetical"]
    if partition.max_nodes is not None and nodes > partition.max_nodes:
        given = partition.max_nodes * machine.gpus_per_node
        return [f"{gpus:,} GPUs exceed the limit of {given:,} per job in the partition"]
    return []
