"""Every operator of a step under the device's roof: what bounds it, and what the step moves beside what it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device
from fairmile.costs.operators.features import compute_dtype, layout_bytes
from fairmile.costs.operators.signatures import signature, step_ops
from fairmile.costs.operators.work import Work, is_in_place, work_of
from fairmile.costs.steps import Op, StepEvent, StepTrace


@dataclass(frozen=True)
class RoofLine:
    """All calls of one signature: operations and bytes of one call, its intensity, and its time at the roof."""

    name: str
    kind: str
    signature: str
    count: int
    flops: float
    bytes: int
    intensity: float  # operations per byte
    roof_s: float
    bound: str  # "compute" | "memory" | "launch"


@dataclass(frozen=True)
class Roofline:
    """A step under the roof of a device.

    `least_bytes` is what no order of operators avoids: what lives longer than the step, read and written once, and
    what the backward pass needs, written and read once. `moved_bytes` goes through the operators as they are, the
    changes of layout that convolutions make within themselves included (`layout_bytes`).
    """

    device: str
    lines: tuple[RoofLine, ...]
    flops: float
    moved_bytes: int
    layout_bytes: int
    least_bytes: int
    roof_s: float


def roofline(trace: StepTrace, on: Device) -> Roofline:
    """Return the last step of a trace under the roof of a device, the longest lines first."""
    ops = step_ops(trace)
    tf32 = trace.precision == "tf32"
    counts = Counter(signature(op) for op in ops)
    first = {signature(op): op for op in reversed(ops)}
    lines = [_line(first[text], text, count, on, tf32) for text, count in counts.items()]
    lines = [each for each in lines if each.kind not in ("view", "wait")]
    lines.sort(key=lambda each: -each.roof_s * each.count)
    layout_moved = sum(layout_bytes(op) for op in ops)
    return Roofline(
        device=on.name,
        lines=tuple(lines),
        flops=sum(each.flops * each.count for each in lines),
        moved_bytes=sum(each.bytes * each.count for each in lines) + layout_moved,
        layout_bytes=layout_moved,
        least_bytes=least_bytes(trace),
        roof_s=sum(each.roof_s * each.count for each in lines),
    )


def bound_of(op: Op, work: Work, on: Device, *, tf32: bool = False) -> str:
    """Return what holds a call back at the roof: "compute", "memory" or, where it is too small for either, "launch"."""
    compute = work.flops / on.peak(compute_dtype(op), work.kind, tf32=tf32)
    memory = work.bytes / on.bandwidth_ceiling
    if max(compute, memory) < on.least_op_s:
        return "launch"
    return "compute" if compute > memory else "memory"


def least_bytes(trace: StepTrace) -> int:
    """Return the bytes that the last step cannot avoid to move, whatever is fused with whatever."""
    started = _storages_before_last_step(trace)
    ops = step_ops(trace)
    made_in: dict[int, str] = {}
    read: set[int] = set()
    written: set[int] = set()
    saved: set[int] = set()
    for op in ops:
        changed = _changed(op)
        for spec in op.inputs:
            at = spec.storage
            if at in started:
                (written if at in changed else read).add(at)
                if at in changed:
                    read.add(at)
            elif made_in.get(at) == "forward" and op.phase == "backward":
                saved.add(at)
        for spec in op.outputs:
            made_in.setdefault(spec.storage, op.phase)
    sizes = trace.storages
    kept = {at for at in range(len(sizes)) if at in made_in and at not in started and sizes[at].category == "gradient"}
    return (
        sum(sizes[at].size_bytes for at in read)
        + sum(sizes[at].size_bytes for at in written)
        + 2 * sum(sizes[at].size_bytes for at in saved | kept if 0 <= at < len(sizes))
    )


def _line(op: Op, text: str, count: int, on: Device, tf32: bool) -> RoofLine:
    work = work_of(op)
    compute = work.flops / on.peak(compute_dtype(op), work.kind, tf32=tf32)
    roof = max(compute, work.bytes / on.bandwidth_ceiling)
    intensity = work.flops / work.bytes if work.bytes else 0.0
    bound = bound_of(op, work, on, tf32=tf32)
    return RoofLine(op.name, work.kind, text, count, work.flops, work.bytes, intensity, roof, bound)


def _storages_before_last_step(trace: StepTrace) -> set[int]:
    live: set[int] = set()
    before: set[int] = set()
    for kind, number, _ in trace.events:
        if kind == StepEvent.STEP:
            before = set(live)
        elif kind == StepEvent.ALLOC:
            live.add(number)
        elif kind == StepEvent.FREE:
            live.discard(number)
    return before


def _changed(op: Op) -> set[int]:
    if not is_in_place(op):
        return set()
    value = op.arguments[0] if op.arguments else None
    places: Iterable[int | None] = ()
    if isinstance(value, dict):
        places = value.get("tensors", [value.get("tensor")])
    storages = {op.inputs[each].storage for each in places if each is not None}
    if op.name.startswith("aten._fused"):
        gradients = _listed(op, 1)
        storages |= {spec.storage for spec in op.inputs} - {op.inputs[each].storage for each in gradients}
    return storages


def _listed(op: Op, position: int) -> Sequence[int]:
    value = op.arguments[position] if position < len(op.arguments) else None
    return (
        [each for each in value["tensors"] if each is not None]
        if isinstance(value, dict) and "tensors" in value
        else []
    )
