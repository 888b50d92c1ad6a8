"""Figures of traces: time lines, where the time went, who waits for whom, bandwidth, roofline; see `figures`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.costs.devices import Device
from fairmile.reports.figures import (
    COLOURS,
    GRID,
    INK,
    MUTED,
    PAPER,
    SHADES,
    Picture,
    legend_above,
    logarithmic,
    more_note,
    short_label,
    short_number,
    whole_numbers,
)
from fairmile.traces.analyze import TraceAnalysis, TraceTimeline
from fairmile.traces.breakdown import Breakdown
from fairmile.traces.evidence import Finding
from fairmile.traces.waiting import CollectiveSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PART_NAMES = {
    "compute": "compute",
    "communication": "exposed communication",
    "exchange": "exchange with others",
    "copies": "copies",
    "checkpoint": "checkpoint",
    "input": "input",
    "launch": "host, launching",
    "idle": "idle",
}
PART_COLOURS = {
    "compute": COLOURS[0],
    "communication": COLOURS[1],
    "exchange": COLOURS[3],
    "copies": COLOURS[4],
    "checkpoint": COLOURS[7],
    "input": COLOURS[2],
    "launch": COLOURS[5],
    "idle": GRID,
}
_MOST_RANKS = 32
_MOST_FINDINGS = 8
_MOST_STEP_LINES = 60
_MOST_NAME = 48
_BANDWIDTH_NOTE = "Median of the calls, from the last rank to come until the last has left: waiting is not in it."
_MARKS = {"compute": "o", "memory": "s", "launch": "^", "communication": "D"}


@dataclass(frozen=True)
class RooflinePoint:
    """An operator by flop per byte and flop/s; `bound` is what holds it back, `seconds` sizes its mark."""

    name: str
    intensity: float
    flops_per_s: float
    bound: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Roofline:
    """Operators under the ceilings of a device: each a name with flop/s, and the bandwidth of its memory.

    Where no ceiling is known, they stand beside the fastest of themselves.
    """

    points: tuple[RooflinePoint, ...]
    peaks: tuple[tuple[str, float], ...]
    bytes_per_s: float
    device: str = ""


def timeline(line: TraceTimeline, *, name: str) -> Picture:
    """Draw what each rank did over time, and where its steps begin."""
    rows = line.rows[:_MOST_RANKS]
    if not rows or not line.length_s:
        raise NotFound("the trace has no timeline to draw")
    size, unit = _time_unit(line.length_s)
    used = [part for part in PART_NAMES if part != "idle" and any(row.parts.get(part) for row in rows)]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for at in range(len(rows)):
            axis.broken_barh([(0, line.length_s / size)], (at - 0.38, 0.76), color=GRID, alpha=0.5)
        for part in used:
            axis.add_patch(_boxes([row.parts.get(part, ()) for row in rows], size, PART_COLOURS[part]))
        if len(rows[0].steps) <= _MOST_STEP_LINES:
            axis.add_patch(_ticks([row.steps for row in rows], size))
        axis.set_yticks(range(len(rows)), [short_label(row.label) for row in rows])
        axis.set_ylim(len(rows) - 0.45, -0.55)
        axis.set_xlim(0, line.length_s / size)
        axis.set_xlabel(f"time ({unit})")
        axis.grid(False)
        axis.tick_params(axis="y", length=0)
        handles = [_patch(PART_COLOURS[part], PART_NAMES[part]) for part in used]
        handles.append(_patch(GRID, "idle"))
        legend_above(figure, handles=handles, most=6, handlelength=1.2)

    marks = "Vertical lines mark where steps begin and end." if len(rows[0].steps) <= _MOST_STEP_LINES else ""
    note = marks + more_note(len(line.rows) - len(rows))
    return Picture(name, line.title, draw, 0.95 + 0.3 * len(rows), note)


def breakdown_bars(breakdown: Breakdown) -> Picture:
    """Draw the mean step of each rank, cut into its parts."""
    ranks = breakdown.ranks[:_MOST_RANKS]
    if not ranks:
        raise NotFound("the trace has no steps to draw")
    size, unit = _time_unit(max(each.step_s for each in ranks))
    values = {part: [_part(each.total, part) / max(1, each.steps) / size for each in ranks] for part in PART_NAMES}
    used = [part for part, each in values.items() if max(each) > 0]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        left = np.zeros(len(ranks))
        for part in used:
            axis.barh(range(len(ranks)), values[part], left=left, height=0.72, color=PART_COLOURS[part])
            ink = INK if part == "idle" else PAPER
            _inside(axis, left, values[part], max(each.step_s for each in ranks) / size, ink)
            left = left + np.array(values[part])
        axis.set_yticks(range(len(ranks)), [short_label(each.label) for each in ranks])
        axis.set_ylim(len(ranks) - 0.45, -0.55)
        axis.set_xlabel(f"mean time of a step ({unit})")
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        handles = [_patch(PART_COLOURS[part], PART_NAMES[part]) for part in used]
        legend_above(figure, handles=handles, most=6, handlelength=1.2)

    note = "The parts do not overlap: whatever happens while a rank computes counts as compute." + more_note(
        len(breakdown.ranks) - len(ranks)
    )
    return Picture("breakdown", "Where the time of a step goes, by rank", draw, 0.95 + 0.3 * len(ranks), note)


def steps_over_time(breakdown: Breakdown) -> Picture:
    """Draw how long each step took: the mean over ranks, and the range between its fastest and its slowest."""
    by_step: dict[int, list[float]] = {}
    for each in breakdown.steps:
        by_step.setdefault(each.step, []).append(each.total_s)
    if len(by_step) < 3:
        raise NotFound("too few steps for a curve")
    numbers = sorted(by_step)
    size, unit = _time_unit(max(max(values) for values in by_step.values()))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        low = [min(by_step[step]) / size for step in numbers]
        high = [max(by_step[step]) / size for step in numbers]
        mean = [float(np.mean(by_step[step])) / size for step in numbers]
        axis.fill_between(numbers, low, high, color=COLOURS[0], alpha=0.22, linewidth=0)
        marks: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(numbers) <= 60 else {}
        axis.plot(numbers, mean, color=COLOURS[0], **marks)
        axis.set_ylim(0, max(high) * 1.12)
        axis.set_xlabel("step")
        axis.set_ylabel(f"time ({unit})")
        axis.xaxis.set_major_locator(whole_numbers())

    is_band = max(map(len, by_step.values())) > 1
    note = "Mean over ranks; the band goes from the fastest rank to the slowest." if is_band else ""
    return Picture("steps", "Time of each step", draw, 2.3, note)


def finding_bars(findings: Sequence[Finding], total_s: float) -> Picture:
    """Draw what each finding costs."""
    shown = [each for each in findings if each.seconds > 0][:_MOST_FINDINGS]
    if not shown:
        raise NotFound("there are no findings to draw")
    size, unit = _time_unit(shown[0].seconds)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        values = [each.seconds / size for each in shown]
        axis.barh(range(len(shown)), values, height=0.62, color=COLOURS[1])
        for at, each in enumerate(shown):
            axis.text(values[at], at, f"\u2002{_percent(each.share)}", va="center", ha="left", color=MUTED, fontsize=8)
        axis.set_yticks(range(len(shown)), [short_label(each.title, 2) for each in shown])
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_xlim(0, max(values) * 1.14)
        axis.set_xlabel(f"time lost ({unit})")
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)

    note = f"Share of the {format_duration(total_s)} that the steps of a rank took, mean over ranks."
    return Picture("findings", "What costs time", draw, 0.7 + 0.3 * len(shown), note)


def wait_matrix(labels: Sequence[str], matrix: Sequence[Sequence[float]], *, name: str, title: str) -> Picture:
    """Draw who waited how long for whom."""
    values = np.array(matrix, float)[:_MOST_RANKS, :_MOST_RANKS]
    if not len(values) or values.max() <= 0:
        raise NotFound("no rank waited for another")
    names = [short_label(each) for each in labels[:_MOST_RANKS]]
    size, unit = _time_unit(float(values.max()))
    highest = float(values.max()) / size

    def draw(figure: Figure) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        axis = figure.subplots()
        levels = np.minimum(len(SHADES) - 1, values / values.max() * len(SHADES)).astype(int)
        shades = np.where(values > 0, levels, -1)
        for shade in sorted(set(shades.ravel().tolist())):
            # From light for little to dark for much; white where nobody waited.
            colour = SHADES[len(SHADES) - 1 - shade] if shade >= 0 else PAPER
            axis.add_patch(_squares(np.argwhere(shades == shade).tolist(), colour))
        if len(values) <= 12:
            for row, column in np.argwhere(values > 0).tolist():
                ink, text = INK if shades[row, column] < 4 else PAPER, short_number(values[row, column] / size)
                axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        axis.set_xticks(range(len(names)), names, rotation=0 if len(names) <= 8 else 90)
        axis.set_yticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlabel("… waited for")
        axis.set_ylabel("who waited")
        axis.set_aspect("equal")
        axis.grid(False)
        axis.tick_params(length=0)
        scale = ScalarMappable(Normalize(0, highest), ListedColormap(SHADES[::-1]))
        bar: Any = figure.colorbar(scale, ax=axis, shrink=0.8, pad=0.02)
        bar.set_label(f"waited ({unit})")
        bar.outline.set_visible(False)
        bar.solids.set_rasterized(False)  # shapes, so that a page can recolour them as it does the boxes

    height = min(6.0, 1.6 + 0.42 * len(names))
    note = "Each cell is the time that the rank of its row waited for the rank of its column."
    return Picture(name, title, draw, height, note + more_note(len(labels) - len(names)))


def bandwidth(collectives: Sequence[CollectiveSummary]) -> Picture:
    """Draw the bandwidth of collectives over their size, beside what the model says they could have."""
    shown = [each for each in collectives if each.bytes > 0 and each.bus_bytes_per_s]
    if not shown:
        raise NotFound("the trace has no sizes of collectives")
    kinds = list(dict.fromkeys((each.operation, each.ranks) for each in shown))[:6]
    if len({each.bytes for each in shown}) < 4:
        return _bandwidth_bars(shown)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for at, (operation, ranks) in enumerate(kinds):
            mine = sorted(
                (each for each in shown if (each.operation, each.ranks) == (operation, ranks)),
                key=lambda each: each.bytes,
            )
            label = f"{operation.replace('_', '-')}, {ranks} ranks"
            axis.plot([each.bytes for each in mine], [_gb(each.bus_bytes_per_s) for each in mine], "o", markersize=6,
                      color=COLOURS[at], label=label)  # fmt: skip
            known = [each for each in mine if each.model_s and each.bus_bytes_per_s]
            if known:
                ys = [_model_gb(each) for each in known]
                style: dict[str, Any] = {"linestyle": "--", "linewidth": 1.2, "marker": "_", "markersize": 12}
                axis.plot([each.bytes for each in known], ys, color=COLOURS[at], label=f"{label}, model", **style)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        _byte_axis(axis)
        axis.set_xlabel("size of the message")
        axis.set_ylabel("bus bandwidth (GB/s)")
        legend_above(figure, most=2)

    return Picture("bandwidth", "Bandwidth of collectives beside the model", draw, 3.2, _BANDWIDTH_NOTE)


def _bandwidth_bars(collectives: Sequence[CollectiveSummary]) -> Picture:
    shown = sorted(collectives, key=lambda each: -each.transfer_s)[:10]
    modelled = [_model_gb(each) for each in shown]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        axis.barh(range(len(shown)), [_gb(each.bus_bytes_per_s) for each in shown], height=0.6, color=COLOURS[0])
        for at, value in enumerate(modelled):
            if value:
                axis.vlines(value, at - 0.4, at + 0.4, color=COLOURS[1], linewidth=2.4)
        names = [
            f"{each.operation.replace('_', '-')}, {_short_size(each.bytes)}, {each.group}"[:_MOST_NAME]
            for each in shown
        ]
        axis.set_yticks(range(len(shown)), [short_label(name) for name in names])
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.set_xlabel("bus bandwidth (GB/s)")
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        handles = [_patch(COLOURS[0], "measured"), *([_patch(COLOURS[1], "model")] if any(modelled) else [])]
        legend_above(figure, handles=handles, most=2, handlelength=1.2)

    height = 0.95 + 0.3 * len(shown)
    return Picture("bandwidth", "Bandwidth of collectives beside the model", draw, height, _BANDWIDTH_NOTE)


def _model_gb(each: CollectiveSummary) -> float:
    return _gb((each.bus_bytes_per_s or 0.0) * each.median_transfer_s / each.model_s) if each.model_s else 0.0


def critical_bars(analysis: TraceAnalysis) -> Picture:
    """Draw what lies on the critical path: by part, and by rank."""
    path = analysis.critical
    if not path.by_part or not path.total_s:
        raise NotFound("there is no critical path")

    def draw(figure: Figure) -> None:
        parts, ranks = figure.subplots(2, 1, height_ratios=[1, 1])
        left = 0.0
        for name, seconds in path.by_part:
            share = 100 * seconds / path.total_s
            parts.barh(0, share, left=left, color=PART_COLOURS.get(name, MUTED), height=0.7)
            if share > 7:
                ink = INK if name == "idle" else PAPER
                parts.text(left + share / 2, 0, f"{share:.0f} %", ha="center", va="center", color=ink, fontsize=8)
            left += share
        left = 0.0
        for at, (label, seconds) in enumerate(path.by_rank):
            share = 100 * seconds / path.total_s
            ranks.barh(0, share, left=left, color=COLOURS[0], height=0.7, alpha=1 - 0.5 * (at % 2))
            if share > 9:
                ranks.text(
                    left + share / 2, 0, f"{short_label(label)}", ha="center", va="center", color=PAPER, fontsize=8
                )
            left += share
        for axis, name in ((parts, "by part"), (ranks, "by rank")):
            axis.set_yticks([0], [name])
            axis.set_xlim(0, 100)
            axis.grid(False)
            axis.tick_params(axis="y", length=0)
            axis.spines["left"].set_visible(False)
        parts.set_xticks([])
        parts.spines["bottom"].set_visible(False)
        ranks.set_xlabel("share of the critical path (%)")
        handles = [_patch(PART_COLOURS.get(name, MUTED), PART_NAMES.get(name, name)) for name, _ in path.by_part]
        legend_above(figure, handles=handles, most=6, handlelength=1.2)

    note = "Shares of the critical path, by kind of work and by rank."
    return Picture("critical-path", "The critical path", draw, 1.9, note)


def roofline(model: Roofline) -> Picture:
    """Draw operators by flop per byte and flop/s, under the ceilings of the device."""
    points = [each for each in model.points if each.intensity > 0 and each.flops_per_s > 0]
    if not points:
        raise NotFound("there is no operator for a roofline")
    kinds = list(dict.fromkeys(each.bound or "operators" for each in points))
    longest = max(each.seconds for each in points) or 1.0
    is_known = bool(model.peaks and model.bytes_per_s > 0)
    fastest = max(each.flops_per_s for each in points)
    peaks = model.peaks if is_known else (("the fastest here", fastest),)
    bytes_per_s = model.bytes_per_s if is_known else max(each.flops_per_s / each.intensity for each in points)
    top = max(value for _, value in peaks)
    size, unit = (1e12, "Tflop/s") if top >= 1e12 else (1e9, "Gflop/s")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        low = min(min(each.intensity for each in points) / 3, top / bytes_per_s / 30)
        high = max(max(each.intensity for each in points) * 3, top / bytes_per_s * 10)
        for name, peak in peaks:
            ridge = peak / bytes_per_s
            axis.plot([low, ridge, high], [low * bytes_per_s / size, peak / size, peak / size], color=MUTED,
                      linewidth=1.3, linestyle="-" if is_known else ":")  # fmt: skip
            axis.annotate(short_label(name), (high, peak / size), ha="right", va="bottom", color=MUTED, fontsize=8)
        for at, kind in enumerate(kinds):
            mine = [each for each in points if (each.bound or "operators") == kind]
            sizes = [18 + 160 * each.seconds / longest for each in mine]
            axis.scatter([each.intensity for each in mine], [each.flops_per_s / size for each in mine], s=sizes,
                         color=COLOURS[at % len(COLOURS)], alpha=0.75, marker=_MARKS.get(kind, "o"), linewidth=0,
                         label=short_label(kind))  # fmt: skip
        for each in sorted(points, key=lambda each: -each.seconds)[:4]:
            axis.annotate(short_label(each.name), (each.intensity, each.flops_per_s / size), xytext=(6, -9),
                          textcoords="offset points", fontsize=7.5, color=INK)  # fmt: skip
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.set_xlim(low, high)
        axis.set_xlabel("flop per byte moved")
        axis.set_ylabel(unit)
        legend_above(figure, markerscale=0.7)

    device = f" of {model.device}" if model.device else ""
    if not is_known:
        note = "The dotted line is the best rate that any operator here achieved. Larger marks took more time."
        title = f"Operators by what they achieved{device}, whose ceilings are not known"
        return Picture("roofline", title if device else "Operators and the best rate among them", draw, 3.6, note)
    note = "Lines are the limits of memory bandwidth (sloping) and of computing (level). Larger marks take more time."
    return Picture("roofline", f"Operators under the roofline{device}", draw, 3.6, note)


def ceilings(on: Device, computed: Iterable[tuple[str, str]]) -> tuple[tuple[str, float], ...]:
    """Return the peaks that matter to operators of these kinds and types, the lowest first."""
    types: set[str] = set()
    peaks = on.peak_flops_per_s
    for kind, dtype in computed:
        if kind not in ("gemm", "attention", "conv", "rnn"):
            continue  # these stay far below any
        # Which of the two a product of fp32 uses, the program decides; convolutions use tf32 unless told not to.
        both = {"tf32"} if kind in ("conv", "rnn") else {"float32", "tf32"}
        types |= both if dtype == "float32" else {dtype}
        if dtype == "float64" and kind == "gemm" and "float64_matrix" in peaks:
            types = types - {dtype} | {"float64_matrix"}
    used = [(each, peaks[each]) for each in sorted(types) if each in peaks] or [("float32", peaks["float32"])]
    return tuple(sorted(used, key=lambda each: each[1]))


def named_apart(points: Iterable[RooflinePoint]) -> tuple[RooflinePoint, ...]:
    """Return points of which, where names would lie upon each other, only the first keeps its own."""
    named: list[RooflinePoint] = []
    for each in points:
        crowded = any(other.name and _are_near(each, other) for other in named)
        named.append(replace(each, name="") if crowded else each)
    return tuple(named)


def _are_near(one: RooflinePoint, other: RooflinePoint) -> bool:
    """Tell whether the names of two points would lie upon each other; names go to the right."""
    return abs(math.log10(one.intensity / other.intensity)) < 1.4 and 0.4 < one.flops_per_s / other.flops_per_s < 2.5


def _boxes(rows: Sequence[Sequence[tuple[float, float]]], size: float, colour: str) -> Any:
    """Return the intervals of all rows as one shape: a file with one path instead of thousands."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners: list[tuple[float, float]] = []
    for at, pieces in enumerate(rows):
        for start, end in pieces:
            left, right = start / size, end / size
            corners += [(left, at - 0.38), (right, at - 0.38), (right, at + 0.38), (left, at + 0.38), (left, at - 0.38)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(corners) // 5)
    return PathPatch(Path(corners, codes), facecolor=colour, edgecolor="none", linewidth=0, snap=False)


def _squares(places: Sequence[Sequence[int]], colour: str) -> Any:
    """Return the boxes of a map at (row, column), as one shape."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    square = ((-0.47, -0.47), (0.47, -0.47), (0.47, 0.47), (-0.47, 0.47), (-0.47, -0.47))
    corners = [(column + x, row + y) for row, column in places for x, y in square]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(places)
    return PathPatch(Path(corners, codes), facecolor=colour, edgecolor=GRID, linewidth=0.5, snap=False)


def _ticks(rows: Sequence[Sequence[float]], size: float) -> Any:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    ends = [(x / size, y) for at, row in enumerate(rows) for x in row for y in (at - 0.46, at + 0.46)]
    codes = [Path.MOVETO, Path.LINETO] * (len(ends) // 2)
    return PathPatch(Path(ends, codes), facecolor="none", edgecolor=INK, linewidth=0.7, snap=False)


def _inside(axis: Axes, left: Any, values: Sequence[float], widest: float, ink: str) -> None:
    """Write a number into bars that have room for it."""
    for at, value in enumerate(values):
        if value > 0.09 * widest:
            axis.text(left[at] + value / 2, at, short_number(value), ha="center", va="center", color=ink, fontsize=7.5)


def _part(total: Any, part: str) -> float:
    name = "exposed_communication_s" if part == "communication" else f"{part}_s"
    return float(getattr(total, name))


def _time_unit(longest_s: float) -> tuple[float, str]:
    """Return by what to divide seconds up to that many, and the unit then."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if longest_s >= size:
            return size, unit
    return 1e-9, "ns"


def _gb(value: float | None) -> float:
    return (value or 0.0) / 1e9


def _byte_axis(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_size(value)))


def _short_size(value: float) -> str:
    if value < 1:
        return ""
    power = min(int(math.log2(value)) // 10, 4)
    return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.095 else f"{share * 100:.1f} %"


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)
