"""The page of an ensemble: reliability, scores of each way to state uncertainty, and what calibration is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairmile.benchmarks.ensembles.results import Ensemble, MethodDict
from fairmile.reports import figures, html
from fairmile.reports.blocks import NO_FIGURES, Block, Facts, Heading, Image, Note, Row, Text, Tile, Tiles, Title, table
from fairmile.reports.figures import COLOURS, MUTED, Picture, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MEANING = {
    "regression": (
        "Coverage is the part of the test samples inside the stated interval; width 90 is the mean width of 90 % "
        "intervals (sharpness). CRPS and NLL are lower for better forecasts. spread: the members' standard deviation "
        "as it is. constant: one width for all samples. calibrated: a² spread² + b², fitted by likelihood. conformal: "
        "the same, with widths that held their share of the calibration samples."
    ),
    "classification": (
        "ECE is the mean distance between confidence and accuracy in ten bins. NLL and Brier score are lower for "
        "better probabilities. single run: mean of the members. calibrated: the mean probabilities with one "
        "temperature, fitted by likelihood."
    ),
}
_MOST_PANELS = 4


def ensemble_page(ensemble: Ensemble) -> str:
    """Return an ensemble as one HTML file that needs nothing else."""
    return html.render(f"Ensemble of {ensemble.data['benchmark']}", list(_blocks(ensemble)))


def _blocks(ensemble: Ensemble) -> Iterator[Block]:
    data = ensemble.data
    gains = data["gains"]
    is_better = [each["high"] < 0 for each in gains]
    tone = "good" if all(is_better) else "warn"
    badge = "better" if all(is_better) else "mixed" if any(is_better) else "cannot tell"
    runs = f"{len(data['runs'])} runs"
    below = f"{runs} · {data['calibration_samples']:,} samples to calibrate · {data['test_samples']:,} to judge"
    yield Title(f"Ensemble of {data['benchmark']}", badge, tone, below)  # type: ignore[arg-type]
    yield Tiles(tuple(_tiles(ensemble)))
    for each in gains:
        yield Note(each["verdict"][:1].upper() + each["verdict"][1:] + ".", "good" if each["high"] < 0 else "warn")
    yield Heading("Reliability")
    if figures.can_draw():
        yield Image(reliability(ensemble))
    else:
        yield NO_FIGURES
    yield Heading("Scores on the test part")
    columns = [name for name in ensemble.columns[data["kind"]] if any(name in row["values"] for row in data["methods"])]
    rows: list[Row] = [
        [row["output"], row["method"], *(_number(row["values"].get(name)) for name in columns)]
        for row in data["methods"]
    ]
    named = [name.replace("_", " ") for name in columns]
    yield table(["output", "method", *named], rows, numbers=named)
    yield Text(_MEANING[data["kind"]])
    yield Heading("How it was judged")
    yield Facts(
        (
            ("runs", ", ".join(data["runs"])),
            ("independent groups", f"{data['calibration_groups']:,} to calibrate, {data['test_groups']:,} to judge"),
            ("notes", " ".join(data["notes"])),
        )
    )


def _tiles(ensemble: Ensemble) -> Iterator[Tile]:
    data = ensemble.data
    wanted = "coverage_90" if data["kind"] == "regression" else "ece"
    label = "90 % intervals hold" if data["kind"] == "regression" else "calibration error"
    shown = [row for row in data["methods"] if row["method"] == "calibrated"][:_MOST_PANELS]
    for row in shown:
        yield Tile(label, f"{row['values'][wanted]:.1%}", row["output"] or "calibrated")


def reliability(ensemble: Ensemble) -> Picture:
    """Draw what was observed against what was stated, a panel for each output."""
    data = ensemble.data
    outputs = list(dict.fromkeys(row["output"] for row in data["methods"]))[:_MOST_PANELS]
    drawn = [row for row in data["methods"] if row["observed"]]
    methods = list(dict.fromkeys(row["method"] for row in drawn))

    def draw(figure: Figure) -> None:
        columns = min(2, len(outputs))
        panels = figure.subplots(-(-len(outputs) // columns), columns, squeeze=False, sharex=True, sharey=True)
        for axis in panels.flat[len(outputs) :]:
            axis.set_visible(False)
        for axis, output in zip(panels.flat, outputs, strict=False):
            axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=":")
            for row in drawn:
                if row["output"] == output:
                    _line(axis, row, COLOURS[methods.index(row["method"])], is_first=output == outputs[0])
            axis.set_title(output, fontsize=9)
        is_regression = data["kind"] == "regression"
        for axis in panels[-1]:
            axis.set_xlabel("stated coverage" if is_regression else "stated confidence")
        for axis in panels[:, 0]:
            axis.set_ylabel("observed" if is_regression else "accuracy")
        legend_below(figure)

    note = "On the dotted line, statements hold as often as they say. Below it they are too sure."
    return Picture(
        "ensemble-reliability", "Stated and observed coverage", draw, 2.6 * -(-len(outputs) // 2) + 1.6, note
    )


def _line(axis: object, row: MethodDict, colour: str, *, is_first: bool) -> None:
    axis.plot(  # type: ignore[attr-defined]
        row["expected"],
        row["observed"],
        "o-",
        color=colour,
        markersize=3,
        linewidth=1.2,
        label=row["method"] if is_first else None,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
