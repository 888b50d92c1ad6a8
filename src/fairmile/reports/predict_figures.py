"""Figures of predictions: what fills a device and when, what a step consists of, how far it scales; see `figures`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import Integrity, NotFound
from fairmile.base.units import format_duration, format_size
from fairmile.costs.devices import Device
from fairmile.costs.operators.features import compute_dtype
from fairmile.costs.operators.outputs import outputs_of
from fairmile.costs.operators.signatures import read_signature
from fairmile.costs.operators.work import kind_of, work_of
from fairmile.costs.steps import Op
from fairmile.predict.memory.account import MemoryAccount, MemoryPoint
from fairmile.predict.memory.sharding import RankMemory
from fairmile.predict.scaling.curves import ScalingPrediction, ScalingRow
from fairmile.predict.scaling.plans import LayoutPlan
from fairmile.predict.step_time import OpLine
from fairmile.reports.figures import (
    COLOURS,
    GRID,
    INK,
    MUTED,
    PAPER,
    Picture,
    legend_above,
    logarithmic,
    more_note,
    scale,
    short_label,
    short_number,
)
from fairmile.reports.trace_figures import Roofline, RooflinePoint, ceilings, named_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMORY_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer's state",
    "activations": "activations",
    "inputs": "inputs",
    "temporary": "temporary",
    "buffers": "buffers",
    "workspace": "workspaces of libraries",
    "slack": "reserved, not used",
    "context": "context of the device",
}
_MEMORY_COLOURS = {
    "parameters": COLOURS[0],
    "gradients": COLOURS[5],
    "optimizer": COLOURS[2],
    "activations": COLOURS[1],
    "inputs": COLOURS[7],
    "temporary": COLOURS[4],
    "buffers": INK,
    "workspace": COLOURS[3],
    "slack": GRID,
    "context": COLOURS[6],
}
STEP_NAMES = {
    "compute": "compute",
    "optimizer": "optimizer",
    "overhead": "once per step",
    "tensor": "communication in layers",
    "hops": "between stages",
    "data": "gradient communication",
    "bubble": "pipeline bubble",
    "wait": "waiting for the slowest",
    "offload": "moving to the host",
    "input": "waiting for input",
}
_STEP_COLOURS = {
    "compute": COLOURS[0],
    "optimizer": COLOURS[5],
    "overhead": COLOURS[6],
    "tensor": COLOURS[4],
    "hops": COLOURS[7],
    "data": COLOURS[1],
    "bubble": GRID,
    "wait": COLOURS[3],
    "offload": INK,
    "input": COLOURS[2],
}
_PHASES = ("forward", "backward", "optimizer")
_NEAR = 3.0  # times what is used: a limit up to there is drawn
_MOST_BARS = 15
_MOST_COUNTS = 16
_SEEN = 0.004  # of a column; what is less has no line
_GAP = "\u00a0"  # between a bar and its number; a plain space is dropped there


def rank_parts(memory: RankMemory) -> dict[str, int]:
    """Return what a rank holds on its device, by the names of a breakdown."""
    return {name: round(size) for name in MEMORY_NAMES if (size := getattr(memory, f"{name}_bytes", 0.0))}


def step_parts(plan: LayoutPlan) -> dict[str, float]:
    """Return the seconds of a step by part, those that take none left out."""
    return {name: seconds for name in STEP_NAMES if (seconds := float(getattr(plan.time, f"{name}_s"))) > 0}


def device_filling(parts: Mapping[str, int], limit_bytes: int, *, name: str, title: str) -> Picture:
    """Draw how much of a device is used, and by what, largest first."""
    shown = sorted(((each, size) for each, size in parts.items() if size > 0), key=lambda each: -each[1])
    used = sum(size for _, size in shown)
    if not used:
        raise NotFound("nothing is used")
    size, unit = scale(shown[0][1], "bytes")
    whole, whole_unit = scale(max(used, limit_bytes), "bytes")

    def draw(figure: Figure) -> None:
        device, rows = figure.subplots(2, 1, height_ratios=[1.1, 0.5 + len(shown)])
        left = 0.0
        for part, value in shown:
            device.barh(0, value / whole, left=left, height=0.7, color=_memory_colour(part))
            left += value / whole
        device.axvline(limit_bytes / whole, color=INK, linestyle="--", linewidth=1.4)
        device.set_xlim(0, max(used * 1.02, limit_bytes * 1.005) / whole)
        device.set_yticks([0], ["the device"])
        device.set_xlabel(f"memory in use ({whole_unit})")
        rows.barh(range(len(shown)), [value / size for _, value in shown], height=0.68,
                  color=[_memory_colour(part) for part, _ in shown])  # fmt: skip
        for at, (_, value) in enumerate(shown):
            label = f"{_GAP}{format_size(value)}, {percent(value / used)}"
            rows.text(value / size, at, label, va="center", ha="left", color=INK, fontsize=8)
        rows.set_yticks(range(len(shown)), [short_label(MEMORY_NAMES.get(part, part)) for part, _ in shown])
        rows.set_ylim(len(shown) - 0.5, -0.5)
        rows.set_xlim(0, shown[0][1] / size * 1.3)
        rows.set_xlabel(f"memory by part ({unit})")
        _bare(device, rows)

    note = "Top: memory in use; the dashed line is the memory of the device. Bottom: the parts of the memory in use."
    return Picture(name, title, draw, 1.6 + 0.27 * len(shown), note)


def memory_over_time(account: MemoryAccount) -> Picture:
    """Draw what is allocated and reserved over the traced steps, their phases, the peak, and the limit where near."""
    points = account.timeline
    if len(points) < 2:
        raise NotFound("there is no timeline")
    places = [each.step + each.place for each in points]
    limit = max(0, account.device_bytes - account.context_bytes)
    highest = max(each.reserved_bytes for each in points)
    is_near = limit <= _NEAR * highest
    size, unit = scale(max(highest, limit if is_near else 0), "bytes")
    top = max(highest, limit if is_near else 0) / size * 1.18
    last = max(each.step for each in points) + 1

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        _phase_bands(axis, points, last)
        reserved, allocated = ([getattr(each, f"{kind}_bytes") / size for each in points]
                               for kind in ("reserved", "allocated"))  # fmt: skip
        axis.step(places, reserved, where="post", color=MUTED, linestyle="--", linewidth=1.3, label="reserved")
        axis.fill_between(places, allocated, step="post", color=COLOURS[0], alpha=0.25, linewidth=0)
        axis.step(places, allocated, where="post", color=COLOURS[0], label="allocated")
        if is_near:
            axis.axhline(limit / size, color=COLOURS[1], linewidth=1.5, linestyle=":", label="device memory left")
        _mark_peak(axis, account, places, size)
        axis.set_xlim(0, last)
        axis.set_ylim(0, top)
        axis.set_xticks(range(last), [f"step {each + 1} begins" for each in range(last)], ha="left")
        axis.set_ylabel(f"memory ({unit})")
        axis.grid(False, axis="x")
        legend_above(figure, most=4)

    note = "Operators in order of execution, not to scale in time. Each point is the maximum of its interval."
    more = " The device's context takes its part before." if is_near else ""
    return Picture("memory-over-time", "Memory over the traced steps", draw, 3.2, note + more)


def _phase_bands(axis: Axes, points: Sequence[MemoryPoint], last: int) -> None:
    """Shade backward, and name all phases that have room; what belongs to no operator counts to the phase before."""
    bands: list[tuple[int, str, float]] = []
    for each in points:
        step, before = bands[-1][:2] if bands else (-1, "")
        phase = each.phase if each.phase in _PHASES else before if step == each.step else _PHASES[0]
        if (each.step, phase) != (step, before):
            bands.append((each.step, phase, each.step + each.place))
    for at, (_, phase, start) in enumerate(bands):
        end = bands[at + 1][2] if at + 1 < len(bands) else float(last)
        if phase == "backward":
            axis.axvspan(start, end, color=GRID, alpha=0.45, linewidth=0)
        if end - start > 0.075 * last:
            middle = (start + end) / 2
            axis.text(middle, 0.985, phase, transform=axis.get_xaxis_transform(), ha="center", va="top", color=MUTED,
                      fontsize=7.5)  # fmt: skip
    for step in range(1, last):
        axis.axvline(step, color=INK, linewidth=0.7)


def _mark_peak(axis: Axes, account: MemoryAccount, places: Sequence[float], size: float) -> None:
    inside = [at for at, each in enumerate(account.timeline) if each.step == account.peak.step]
    if not inside:
        return
    at = max(inside, key=lambda each: account.timeline[each].allocated_bytes)
    height = account.timeline[at].allocated_bytes / size
    axis.plot(places[at], height, "o", markersize=6, color=COLOURS[1], label="the peak", linestyle="none")


def time_parts(by_class: Mapping[str, float], by_phase: Mapping[str, float]) -> Picture:
    """Draw the device's time by class of operator and by phase."""
    classes = [each for each in sorted(by_class.items(), key=lambda each: -each[1]) if each[1] > 0][:_MOST_BARS]
    phases = [(name, by_phase[name]) for name in (*_PHASES, *sorted(set(by_phase) - {*_PHASES})) if by_phase.get(name)]
    if not classes or not phases:
        raise NotFound("the device does nothing")
    size, unit = time_unit(max(value for _, value in (*classes, *phases)))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
        for axis, rows, colour, title in (
            (left, classes, COLOURS[0], "by class of operator"), (right, phases, COLOURS[2], "by phase"),
        ):  # fmt: skip
            whole = sum(value for _, value in rows)
            axis.barh(range(len(rows)), [value / size for _, value in rows], height=0.66, color=colour)
            for at, (_, value) in enumerate(rows):
                axis.text(value / size, at, f"{_GAP}{percent(value / whole)}", va="center", ha="left", color=MUTED,
                          fontsize=8)  # fmt: skip
            axis.set_yticks(range(len(rows)), [short_label(each) for each, _ in rows])
            axis.set_ylim(max(len(rows), 3) - 0.5, -0.5)
            axis.set_xlim(0, max(value for _, value in rows) / size * 1.22)
            axis.set_xlabel(f"on the device ({unit})")
            axis.set_title(title)
        _bare(left, right)

    note = "Time on the device in one step; percentages are shares of it."
    return Picture("time-parts", "Device time of a step", draw, 1.2 + 0.26 * max(3, len(classes)), note)


def moved_bytes(moved: int, least: int, bytes_per_s: float) -> Picture:
    """Draw what a step moves beside the least that any order of its operators must."""
    if moved <= 0 or least <= 0:
        raise NotFound("nothing is moved")
    size, unit = scale(moved, "bytes")
    rows = (("moved", moved, COLOURS[0]), ("at least", least, COLOURS[2]))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        axis.barh(range(2), [value / size for _, value, _ in rows], height=0.62, color=[colour for *_, colour in rows])
        for at, (_, value, _) in enumerate(rows):
            took = f", {format_duration(value / bytes_per_s)}" if bytes_per_s else ""
            axis.text(value / size, at, f"{_GAP}{format_size(value)}{took}", va="center", ha="left", fontsize=8)
        axis.set_yticks(range(2), [each for each, *_ in rows])
        axis.set_ylim(1.5, -0.5)
        axis.set_xlim(0, max(moved, least) / size * 1.28)
        axis.set_xlabel(f"between the device and its memory in a step ({unit})")
        _bare(axis)

    note = "Beside each: the time that memory bandwidth alone allows." if bytes_per_s else ""
    return Picture("moved-bytes", "Data moved in a step", draw, 1.25, note)


def roof_points(lines: Sequence[OpLine]) -> dict[str, RooflinePoint]:
    """Return operators by their signatures, with flop per byte and flop/s; those without arithmetic are left out."""
    points: dict[str, RooflinePoint] = {}
    for each in lines:
        op = _call(each)
        if op is None or each.device_s <= 0:
            continue
        work = work_of(op)
        if work.flops and work.bytes:
            rate = work.flops * each.count / each.device_s
            intensity = work.flops / work.bytes
            points[each.signature] = RooflinePoint(short_name(each.name), intensity, rate, each.bound, each.device_s)
    return points


def under_the_roof(lines: Sequence[OpLine], on: Device) -> Roofline:
    """Return operators under the ceilings of the types that they compute with; of neighbours one keeps its name."""
    points = sorted(roof_points(lines).values(), key=lambda each: -each.seconds)
    calls = [op for line in lines if (op := _call(line)) is not None]
    peaks = ceilings(on, [(kind_of(op), compute_dtype(op)) for op in calls])
    return Roofline(named_apart(points), peaks, on.bandwidth_ceiling, on.name)


def short_name(operator: str) -> str:
    """Return an operator's name as people call it: without its library and its default variant."""
    return operator.removeprefix("aten.").removesuffix(".default")


def _call(line: OpLine) -> Op | None:
    try:
        op = read_signature(line.signature)
    except Integrity:
        return None
    return replace(op, outputs=outputs_of(op))


def scaling_curves(prediction: ScalingPrediction) -> Picture:
    """Draw step time and throughput over GPUs, with their interval and the ideal."""
    rows = planned(prediction)
    counts = [each.gpus for each in rows]
    first = rows[0]
    steps = [each.step_time_s or 0.0 for each in rows]
    size, unit = time_unit(max(steps))
    ideal_s = [_ideal_s(each, first) for each in rows]
    marks: dict[str, Any] = {"marker": "o", "markersize": 4}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        for axis, values, ideal, bands in (
            (panels[0], [each / size for each in steps], [each / size for each in ideal_s],
             [(low / size, high / size) for low, high in (each.interval_s or (0, 0) for each in rows)]),
            (panels[1], [each.samples_per_s or 0.0 for each in rows],
             [each.global_batch / value for each, value in zip(rows, ideal_s, strict=True)],
             [(each.global_batch / high, each.global_batch / low) for each in rows
              for low, high in [each.interval_s or (1, 1)]]),
        ):  # fmt: skip
            axis.fill_between(counts, [low for low, _ in bands], [high for _, high in bands], color=COLOURS[0],
                              alpha=0.22, linewidth=0, label="interval")  # fmt: skip
            axis.plot(counts, ideal, color=MUTED, linestyle="--", linewidth=1.2, label="ideal")
            axis.plot(counts, values, color=COLOURS[0], label="predicted", **marks)
            logarithmic(axis, "y")
            _few_decades(axis, [*values, *ideal, *(each for band in bands for each in band)])
            _gpu_axis(axis, counts)
        panels[0].set_title("time of a step")
        panels[0].set_ylabel(f"time ({unit})")
        panels[1].set_title("throughput")
        panels[1].set_ylabel("samples per second")
        legend_above(figure, handles=panels[0].get_legend_handles_labels()[0], most=3)

    batch = (
        "The batch of a step stays the same" if prediction.mode == "strong" else "The batch of one GPU stays the same"
    )
    note = f"{batch}; the band is the 90 % prediction interval."
    return Picture("scaling", "Time and throughput over GPUs", draw, 3.0, note + _left_out(prediction))


def efficiency_curve(prediction: ScalingPrediction) -> Picture:
    """Draw the throughput of one GPU against that on the fewest, and up to where more GPUs are worth it."""
    rows = [each for each in planned(prediction) if each.efficiency is not None]
    if len(rows) < 2:
        raise NotFound("too few GPU counts for a curve")
    counts = [each.gpus for each in rows]
    values = [100 * (each.efficiency or 0.0) for each in rows]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        if prediction.worth_up_to is not None:
            axis.axvspan(counts[0], prediction.worth_up_to, color=COLOURS[2], alpha=0.13, linewidth=0)
            axis.axvline(prediction.worth_up_to, color=COLOURS[2], linewidth=1.3)
            right = prediction.worth_up_to == counts[-1]
            axis.annotate(f"worth it up to {prediction.worth_up_to:,}", (prediction.worth_up_to, 3),
                          xytext=(-5 if right else 5, 0), textcoords="offset points", ha="right" if right else "left",
                          va="bottom", color=INK, fontsize=8.5)  # fmt: skip
        axis.axhline(100 * prediction.threshold, color=COLOURS[1], linestyle="--", linewidth=1.2)
        axis.annotate(f"{prediction.threshold * 100:.0f} %", (counts[0], 100 * prediction.threshold), xytext=(4, 3),
                      textcoords="offset points", ha="left", va="bottom", color=INK, fontsize=8)  # fmt: skip
        axis.plot(counts, values, color=COLOURS[0], marker="o", markersize=4)
        _gpu_axis(axis, counts)
        axis.set_ylim(0, max(105.0, max(values) * 1.05))
        axis.set_ylabel("efficiency (%)")

    note = f"Throughput of one GPU against that on {rows[0].gpus:,}; the dashed line is the threshold."
    return Picture("efficiency", "Efficiency over GPUs", draw, 2.6, note)


def step_shares(prediction: ScalingPrediction) -> Picture:
    """Draw what a step consists of at each number of GPUs, as shares."""
    rows = planned(prediction)[:_MOST_COUNTS]
    parts = [step_parts(each.plan) if each.plan else {} for each in rows]
    used = _visible(STEP_NAMES, parts)
    shares = {name: [100 * each.get(name, 0.0) / sum(each.values()) for each in parts] for name in used}

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        _stacked(axis, shares, _STEP_COLOURS, [each.gpus for each in rows])
        axis.set_ylim(0, 100)
        axis.set_ylabel("share of the step (%)")
        handles = [_patch(_STEP_COLOURS[name], STEP_NAMES[name]) for name in used]
        legend_above(figure, handles=handles, most=3, handlelength=1.2)

    note = "Communication that overlaps with computation is left out, and so are parts below 0.4 %." + more_note(
        len(planned(prediction)) - len(rows)
    )
    return Picture("step-parts", "Parts of a step", draw, 2.8 + 0.17 * (len(used) // 3), note)


def rank_memory_bars(prediction: ScalingPrediction, limit_bytes: float | None) -> Picture:
    """Draw what the fullest rank holds at each number of GPUs, below what its device has."""
    rows = planned(prediction)[:_MOST_COUNTS]
    parts = [rank_parts(each.plan.memory) if each.plan else {} for each in rows]
    most = max(sum(each.values()) for each in parts)
    size, unit = scale(max(most, limit_bytes or 0), "bytes")
    used = _visible(MEMORY_NAMES, parts)
    stacks = {name: [each.get(name, 0) / size for each in parts] for name in used}

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        _stacked(axis, stacks, _MEMORY_COLOURS, [each.gpus for each in rows])
        handles = [_patch(_MEMORY_COLOURS[name], MEMORY_NAMES[name]) for name in used]
        if limit_bytes:
            axis.axhline(limit_bytes / size, color=INK, linestyle="--", linewidth=1.3)
            axis.annotate("device memory", (1, limit_bytes / size), xycoords=("axes fraction", "data"),
                          xytext=(0, 3), textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
        axis.set_ylim(0, max(most, limit_bytes or 0) / size * 1.12)
        axis.set_ylabel(f"memory ({unit})")
        legend_above(figure, handles=handles, most=4, handlelength=1.2)

    limit = "; the dashed line is the memory of the device" if limit_bytes else ""
    note = f"Memory of the rank that needs most{limit}."
    note += more_note(len(planned(prediction)) - len(rows))
    return Picture("rank-memory", "Memory of the fullest rank", draw, 3.1, note)


def planned(prediction: ScalingPrediction) -> list[ScalingRow]:
    """Return the numbers of GPUs for which there is a plan; NotFound where there is none."""
    rows = [each for each in prediction.rows if each.plan is not None]
    if not rows:
        raise NotFound("no layout fits on any number of GPUs")
    return rows


def percent(share: float) -> str:
    """Return a share as a short text that shows when it is small and when it is nothing."""
    if 0 < share < 0.0005:
        return "<\u00a00.1\u00a0%"
    return f"{share * 100:.0f}\u00a0%" if share >= 0.095 or share <= 0 else f"{share * 100:.1f}\u00a0%"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return by what to divide seconds up to that many, and the unit then."""
    for size, unit in ((3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if longest_s >= (7200.0 if unit == "h" else size):
            return size, unit
    return 1e-9, "ns"


def _ideal_s(row: ScalingRow, first: ScalingRow) -> float:
    """Return the time of a step were each GPU as fast as on the fewest."""
    return (first.step_time_s or 0.0) * row.global_batch / first.global_batch * first.gpus / row.gpus


def _visible(names: Iterable[str], columns: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts that are wide enough to be seen in any column."""
    return [name for name in names if any(each.get(name, 0) >= _SEEN * sum(each.values()) > 0 for each in columns)]


def _stacked(
    axis: Axes, stacks: Mapping[str, Sequence[float]], colours: Mapping[str, str], gpus: Sequence[int]
) -> None:
    base = [0.0] * len(gpus)
    for name, values in stacks.items():
        axis.bar(range(len(gpus)), values, bottom=base, width=0.74, color=colours[name], edgecolor=PAPER, linewidth=0.4)
        base = [below + value for below, value in zip(base, values, strict=True)]
    axis.set_xticks(range(len(gpus)), [f"{each:,}" for each in gpus])
    axis.set_xlabel("GPUs")
    axis.grid(False, axis="x")
    axis.tick_params(axis="x", length=0)


def _gpu_axis(axis: Axes, counts: Sequence[int]) -> None:
    """Put GPUs on a logarithmic scale with a tick at each number that was asked for, or at some of them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axis.set_xscale("log", base=2)
    every = -(-len(counts) // 7)
    axis.set_xticks(counts[::every], [short_number(each, 4) for each in counts[::every]])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("GPUs")


def _few_decades(axis: Axes, values: Sequence[float]) -> None:
    """Number the steps between decades where there are too few of them for an axis to be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    above = [each for each in values if each > 0]
    if above and max(above) / min(above) < 300:
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def _left_out(prediction: ScalingPrediction) -> str:
    missing = sum(each.plan is None for each in prediction.rows)
    return f" {missing} numbers of GPUs without a plan are not drawn." if missing else ""


def _memory_colour(part: str) -> str:
    return _MEMORY_COLOURS.get(part, MUTED)


def _bare(*axes: Axes) -> None:
    for axis in axes:
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
