"""Figures of explorations: how fast each way to run a model is, and what it loses; see `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairmile.base.errors import NotFound
from fairmile.models.explore.results import CandidateDict, Exploration, candidate_name
from fairmile.reports.figures import COLOURS, INK, MUTED, PAPER, Picture, legend_below, logarithmic, scale, short_label
from fairmile.reports.readings import name_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RUNTIMES = ("torch", "compile", "cudagraphs", "onnxruntime", "openvino")
_MARKS = {"fp32": "o", "tf32": "P", "bf16": "s", "fp16": "^", "int8": "D"}
_FLOOR = 1e-9  # of errors: 0 has no place on a logarithmic axis
_MOST_BARS = 30


def measured_rows(explored: Exploration) -> list[CandidateDict]:
    return [each for each in explored.candidates if each["state"] == "measured"]


def speed_front(explored: Exploration) -> Picture:
    """Draw samples per second against latency, with the front that nothing beats in both."""
    rows = measured_rows(explored)
    if len({each["batch"] for each in rows}) < 2:
        raise NotFound("with one batch size, samples per second say no more than latency")
    size, unit = scale(max(each["latency_s"] for each in rows), "s")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        front = _front(rows)
        axis.plot(
            [each["latency_s"] / size for each in front],
            [each["throughput_per_s"] for each in front],
            color=MUTED,
            linewidth=1.0,
            drawstyle="steps-post",
            zorder=1,
        )
        for runtime, precision in dict.fromkeys((each["runtime"], each["precision"]) for each in rows):
            some = [each for each in rows if (each["runtime"], each["precision"]) == (runtime, precision)]
            colour = COLOURS[_RUNTIMES.index(runtime)]
            lines = axis.plot(
                [each["latency_s"] / size for each in some],
                [each["throughput_per_s"] for each in some],
                _MARKS[precision],
                color=colour,
                markerfacecolor=PAPER if any(each["verdict"] == "not the same" for each in some) else colour,
                markersize=6,
                label=f"{runtime} {precision}",
                zorder=3,
            )
            name_points(lines[0], [candidate_name(each) for each in some])
        best = [each for each in rows if each["verdict"] == "best"]
        axis.plot(
            [each["latency_s"] / size for each in best],
            [each["throughput_per_s"] for each in best],
            "o",
            color=INK,
            markerfacecolor="none",
            markersize=13,
            label="recommended" if best else None,
            zorder=4,
        )
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.set_xlabel(f"latency in {unit}")
        axis.set_ylabel("samples per second")
        legend_below(figure)

    hollow = any(each["verdict"] == "not the same" for each in rows)
    notes = ["No point beats those on the line in both."] if len(_front(rows)) > 1 else []
    note = " ".join([*notes, *(["Hollow points lose more than allowed."] if hollow else [])])
    return Picture("explored-front", "Latency and throughput", draw, 4.2, note)


def _front(rows: Sequence[CandidateDict]) -> list[CandidateDict]:
    front: list[CandidateDict] = []
    for each in sorted(rows, key=lambda row: (row["latency_s"], -row["throughput_per_s"])):
        allowed = each["verdict"] != "not the same"
        if allowed and (not front or each["throughput_per_s"] > front[-1]["throughput_per_s"]):
            front.append(each)
    return front


def cost_bars(explored: Exploration) -> Picture:
    """Draw the time per sample of each candidate with its interval, the fastest first."""
    rows = sorted(measured_rows(explored), key=lambda each: each["latency_s"] / each["batch"])[:_MOST_BARS]
    if not rows:
        raise NotFound("nothing was measured")
    size, unit = scale(rows[-1]["latency_s"] / rows[-1]["batch"], "s")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for place, row in enumerate(reversed(rows)):
            each_s = row["latency_s"] / row["batch"] / size
            low = row.get("latency_low_s", row["latency_s"]) / row["batch"] / size
            high = row.get("latency_high_s", row["latency_s"]) / row["batch"] / size
            colour = COLOURS[_RUNTIMES.index(row["runtime"])]
            hollow = row["verdict"] == "not the same"
            if "predicted_s" in row:
                axis.plot([row["predicted_s"] / row["batch"] / size], [place], "x", color=MUTED, markersize=6)
            axis.plot([low, high], [place, place], color=colour, linewidth=1.4)
            axis.plot([each_s], [place], "o", color=colour, markerfacecolor=PAPER if hollow else colour, markersize=5)
        axis.set_yticks(range(len(rows)), [short_label(candidate_name(each)) for each in reversed(rows)])
        axis.set_ylim(-0.7, len(rows) - 0.3)
        axis.grid(axis="y", visible=False)
        logarithmic(axis, "x")
        axis.set_xlabel(f"time per sample in {unit}")

    note = "Lines are 95 % intervals of the median."
    note += " Crosses are predictions." if any("predicted_s" in each for each in rows) else ""
    return Picture("explored-times", "Time per sample", draw, 0.9 + 0.22 * len(rows), note)


def error_points(explored: Exploration) -> Picture:
    """Draw what each candidate loses against its time per sample."""
    rows = [each for each in measured_rows(explored) if each["error"] is not None]
    if not any(each["error"] for each in rows):
        raise NotFound("all outputs are the same")
    size, unit = scale(max(each["latency_s"] / each["batch"] for each in rows), "s")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for runtime, precision in dict.fromkeys((each["runtime"], each["precision"]) for each in rows):
            some = [each for each in rows if (each["runtime"], each["precision"]) == (runtime, precision)]
            colour = COLOURS[_RUNTIMES.index(runtime)]
            lines = axis.plot(
                [each["latency_s"] / each["batch"] / size for each in some],
                [max(each["error"] or 0.0, _FLOOR) for each in some],
                _MARKS[precision],
                color=colour,
                markersize=6,
                label=f"{runtime} {precision}",
            )
            name_points(lines[0], [candidate_name(each) for each in some])
        if not explored.data["quality"]["metric"]:
            axis.axhline(explored.data["quality"]["max_loss"], color=MUTED, linewidth=1.0, linestyle="--")
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        axis.set_xlabel(f"time per sample in {unit}")
        axis.set_ylabel("largest relative difference")
        legend_below(figure)

    note = "" if explored.data["quality"]["metric"] else "Combinations above the dashed line are not recommended."
    return Picture("explored-errors", "Error and speed", draw, 3.8, note)
