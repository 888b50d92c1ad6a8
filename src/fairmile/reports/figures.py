"""Figures of runs, as SVG, PNG or PDF: the same bytes for the same data, readable for the colour-blind and in print.

matplotlib is the extra `plots`; only its object interface is used, never pyplot's state.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import threading
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

from fairmile.base.errors import MissingExtra, NotFound
from fairmile.base.fonts import without_font_notices
from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.colours import COLOURS as COLOURS
from fairmile.reports.colours import GRID as GRID
from fairmile.reports.colours import INK as INK
from fairmile.reports.colours import MUTED as MUTED
from fairmile.reports.colours import PAPER as PAPER
from fairmile.reports.colours import SHADES as SHADES
from fairmile.reports.colours import follow_theme
from fairmile.reports.comparison import Comparison, MetricRow
from fairmile.reports.curves import MOST_POINTS, Curve, Timeline, curves, epochs, merged, over_epochs, thinned, timeline
from fairmile.reports.inference import has_interval
from fairmile.reports.leaderboard import Histogram
from fairmile.reports.leaderboard import histogram as count_in_bins
from fairmile.reports.measures import estimate_of, measures, title, unit_of
from fairmile.reports.readings import Series, series_of
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import better_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
PAGE_WIDTH = 7.0  # inches; 700 pixels on the web
PAPER_WIDTH_MM = 178.0  # across two columns of a paper; one column is about 85 mm
_MM = 1 / 25.4  # inches
_PAPER_LETTERS = 7.5  # points, as journals ask for
_NARROW_WIDTH = 3.5  # inches, on a phone
_PAPER_DOTS = 300
FigureForm = Literal["svg", "png", "pdf"]
_MOST_LINES = 8
_MOST_BESIDE = 4
_LEGEND_LETTERS = 88  # that fit beside each other below a figure
_LEGEND_LINE = 0.17  # inches
_MOST_LABEL = 48
_MOST_BESIDE_AXIS = 30  # letters beside an axis of the usual height
MEASURED_AS = {"memory_bytes": "max_rss_bytes"}
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "fairmile",
    "pdf.fonttype": 42,  # letters are embedded as TrueType, which journals accept
    "svg.fonttype": "none",  # letters stay text: small, searchable, in the font of the page
    "text.parse_math": False,  # names are other people's: a dollar sign is a dollar sign
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": PAPER,
    "axes.formatter.useoffset": False,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}
_SMALL_LETTERS = {"font.size": _PAPER_LETTERS, "axes.titlesize": _PAPER_LETTERS + 0.5}
# Without them the same figure would have other bytes each time.
_METADATA: dict[FigureForm, dict[str, None]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": dict.fromkeys(("Software",)),
    "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
}
# matplotlib keeps its style in one place for the whole process, so one thread draws at a time.
_DRAWING = threading.Lock()


@dataclass(frozen=True)
class Picture:
    """A figure that can be drawn in several formats; `name` serves as a file name."""

    name: str
    title: str
    draw: Callable[[Figure], None] = field(repr=False)
    height: float = 3.1  # inches
    note: str = ""

    def svg(self) -> bytes:
        """Return the figure as SVG, the same bytes each time."""
        return self.readable()[0]

    def png(self, *, dots_per_inch: int = 200) -> bytes:
        """Return the figure as PNG."""
        return self._rendered("png", PAGE_WIDTH, {}, dots_per_inch)[0]

    def readable(self, *, narrow: bool = False) -> tuple[bytes, list[Series]]:
        """Return the figure as SVG for a page, wide or for a phone, and the points that a pointer can read in it."""
        return self._rendered("svg", _NARROW_WIDTH, _SMALL_LETTERS) if narrow else self._rendered("svg", PAGE_WIDTH, {})

    def _repr_svg_(self) -> str:
        """Return the figure for a notebook: light or dark as the notebook is."""
        return follow_theme(self.svg())

    def file(self, form: FigureForm, *, width_mm: float = PAPER_WIDTH_MM) -> bytes:
        """Return the figure as it goes into a paper: of that width, with letters of 7.5 points as outlines or embedded.

        SVG and PDF are vectors; PNG has 300 dots per inch.
        """
        return self._rendered(form, width_mm * _MM, {**_SMALL_LETTERS, "svg.fonttype": "path"}, _PAPER_DOTS)[0]

    def _rendered(
        self, form: FigureForm, width: float, style: Mapping[str, Any], dpi: int = 100
    ) -> tuple[bytes, list[Series]]:
        with _drawing(style):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.backends.backend_svg import FigureCanvasSVG
            from matplotlib.figure import Figure

            # A narrow figure keeps some of its height: letters do not shrink with it.
            figure = Figure(figsize=(width, self.height * min(1.0, 0.4 + 0.6 * width / PAGE_WIDTH)))
            FigureCanvasAgg(figure)
            self.draw(figure)
            stream = io.BytesIO()
            if form != "svg":
                figure.savefig(stream, format=form, metadata=_METADATA[form], dpi=dpi)
                return stream.getvalue(), []
            # Saving would draw everything once more, only to find its layout.
            figure.set_dpi(dpi)
            canvas: Any = FigureCanvasSVG(figure)
            canvas.print_svg(stream, metadata=_METADATA[form])
            return stream.getvalue(), series_of(figure, lambda value: short_number(value, 4))


def learning_curve(
    runs: Run | Sequence[Run], metrics: Sequence[str] | None = None, colours: Mapping[str, str] | None = None
) -> Picture:
    """Draw loss and error on one axis and the time per epoch on the other; several runs get a panel for each axis.

    `colours` are those of runs, by id.
    """
    chosen = [runs] if isinstance(runs, Run) else list(runs)
    if len(chosen) == 1:
        return _one_learning_curve(chosen[0], metrics)
    return _many_learning_curves(chosen, metrics, colours or group_colours(run.id for run in chosen))


def phases(run: Run) -> Picture:
    """Draw the spans of a run on a time line, and the power of each source in the colour of the phase it fell in."""
    line = timeline(run.log())
    if line is None:
        raise NotFound(f"run {run.id} recorded neither spans nor power")
    rows, traces = len(line.phases), line.traces[:4]

    def draw(figure: Figure) -> None:
        heights = ([0.5 + 0.3 * rows] if rows else []) + [1.5] * len(traces)
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        colour = {phase.name: COLOURS[at % len(COLOURS)] for at, phase in enumerate(line.phases)}
        if rows:
            _draw_phases(axes[0], line, colour)
        for at, trace in enumerate(traces):
            axis = axes[at + bool(rows)]
            _draw_trace(axis, line, at, colour)
            axis.set_title(short_label(f"{trace.channel.name}, {trace.channel.scope or trace.channel.source}"))
            axis.set_ylabel("power (W)")
        size, word = scale(line.length_s, "s")
        axes[-1].xaxis.set_major_formatter(lambda value, _: short_number(value / size))
        axes[-1].set_xlabel(f"time since the start ({word})")
        axes[-1].set_xlim(0, line.length_s or 1)

    note = "When each timer ran" + (", and the power drawn then, in the colour of the phase." if traces else ".")
    note += f" {line.hidden} shorter phases are not shown." if line.hidden else ""
    height = (0.8 + 0.28 * rows if rows else 0.3) + 1.5 * len(traces) + 0.4
    return Picture("phases", "Phases and power" if traces else "Phases", draw, height, note)


def group_colours(groups: Iterable[str]) -> dict[str, str]:
    """Return a colour for each group, so that all figures of a page give it the same."""
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(groups)}


def bands(
    groups: Mapping[str, Sequence[Run]], metric: str, colours: Mapping[str, str] | None = None, *, ranked: bool = False
) -> Picture:
    """Draw a metric over steps: for each group the mean of its repeats, and as a band its interval or its range.

    `ranked` says that the groups come in the order of the best.
    """
    shown, left_out = _first_curves(groups, metric)
    if not any(len(curve.xs) > 1 for each in shown.values() for curve in each):
        raise NotFound(f"none of these runs logged {metric!r} more than once")
    crowded = len(shown) > _MOST_BESIDE  # then a legend among the curves would hide them
    unit = _unit(groups, metric)
    most = max(map(len, shown.values()))
    repeated = most > 1
    chosen = colours or group_colours(shown)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for at, (name, each) in enumerate(shown.items()):
            xs, means, lows, highs = _band(each, metric, unit)
            label = short_label(f"{name} ({len(each)})" if repeated else name)
            axis.plot(xs, means, color=chosen[name], label=label, **_mark(at, xs))
            axis.fill_between(xs, lows, highs, color=chosen[name], alpha=0.2, linewidth=0)
        if _spans_decades([curve for each in shown.values() for curve in each]):
            logarithmic(axis, "y")
        _finish(axis, "step", axis_name(metric, unit), legend=not crowded)
        if crowded:
            legend_below(figure, most=2)
        axis.xaxis.set_major_locator(whole_numbers())

    note = "One line for each run."
    if repeated:
        spans = "its 95 % confidence interval" if has_interval(most) else "the lowest and highest value"
        note = f"Lines are means over repeats (number in brackets), bands {spans}."
    if left_out:
        note += f" The {'best' if ranked else 'first'} {len(shown)} of {len(shown) + left_out} are shown."
    if broken := sum(curve.not_finite for each in shown.values() for curve in each):
        note += f" Not shown: {broken} that {'is' if broken == 1 else 'are'} NaN or infinite."
    height = 3.1 + (0.2 * math.ceil(len(shown) / 2) if crowded else 0)
    return Picture(f"band-{file_word(metric)}", f"{title(metric)} over steps", draw, height, note)


def histogram(values: Sequence[float] | Histogram, name: str = "value", unit: str = "") -> Picture:
    """Draw how often values fall between edges."""
    bins = values if isinstance(values, Histogram) else count_in_bins(values)
    if not bins.counts:
        raise NotFound(f"no run has a finite value of {name!r}")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        widths = [high - low for low, high in pairwise(bins.edges)]
        axis.bar(bins.edges[:-1], bins.counts, widths, align="edge", color=COLOURS[0], edgecolor=PAPER, linewidth=0.8)
        axis.yaxis.set_major_locator(whole_numbers())
        axis.grid(False, axis="x")
        _finish(axis, axis_name(name, unit), "runs", legend=False)

    note = "Number of runs by their value."
    note += f" {bins.not_finite} values are NaN or infinite and not shown." if bins.not_finite else ""
    return Picture(f"histogram-{file_word(name)}", f"Distribution of {title(name)}", draw, 2.6, note)


def prediction(run: Run) -> Picture:
    """Draw what was predicted, with its range, beside what was measured; a panel for each quantity."""
    known = measures(run)
    pairs = [(name, predicted, known.get(MEASURED_AS.get(name, name))) for name, predicted in run.prediction.items()]
    if not pairs:
        raise NotFound(f"run {run.id} has no prediction")

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(pairs), 1, squeeze=False)[:, 0]
        for axis, (name, predicted, measured) in zip(panels, pairs, strict=True):
            size, unit = scale(max(float(predicted["value"]), measured.value if measured else 0.0), unit_of(name))
            value = float(predicted["value"]) / size
            low, high = (
                float(predicted[key]) / size if predicted.get(key) is not None else value for key in ("low", "high")
            )
            axis.errorbar(value, 1, xerr=[[max(0, value - low)], [max(0, high - value)]], fmt="o", color=COLOURS[0],
                          capsize=4, markersize=6)  # fmt: skip
            if measured is not None and math.isfinite(measured.value):
                axis.plot(measured.value / size, 0, "D", color=COLOURS[1], markersize=7)
            axis.set_yticks([1, 0], ["predicted", "measured"])
            axis.set_ylim(-0.6, 1.6)
            axis.set_xlim(0, max(high, value, (measured.value if measured else 0) / size) * 1.12 or 1)
            axis.grid(False, axis="y")
            axis.set_xlabel(axis_name(name, unit))

    note = "Circles are predictions with their intervals, diamonds are measurements."
    return Picture("prediction", "Prediction and measurement", draw, 0.95 * len(pairs) + 0.15, note)


def bars(comparison: Comparison, colours: Mapping[str, str] | None = None) -> Picture:
    """Draw each metric of a comparison: a bar for the mean of each group, with its confidence interval."""
    chosen = colours or group_colours(comparison.groups)
    rows = [row for row in comparison.rows if any(_has_mean(cell.estimate) for cell in row.cells)][:6]
    if not rows:
        raise NotFound("no group has a number to draw")
    groups, columns = list(comparison.groups), 2 if len(rows) == 4 else min(3, len(rows))
    lines = math.ceil(len(rows) / columns)
    labels = [short_label(name) for name in groups]
    beside = min(4, len(groups), max(1, _LEGEND_LETTERS // (max(map(len, labels)) + 4)))  # more would be cut off

    def draw(figure: Figure) -> None:
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for panel in panels[len(rows) :]:
            panel.set_visible(False)
        for panel, row in zip(panels, rows, strict=False):
            _draw_bars(panel, row, chosen)
        handles = [_patch(chosen[name], label) for name, label in zip(groups, labels, strict=True)]
        legend_below(figure, handles=handles, most=beside)

    note = "Bars are means; points are single runs."
    if comparison.has_intervals:
        note = f"Bars are means, whiskers their {comparison.confidence * 100:g} % confidence intervals."
    height = 2.1 * lines + 0.3 * math.ceil(len(groups) / beside)
    return Picture("comparison", "Groups compared", draw, height, note)


def can_draw() -> bool:
    """Tell whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def logarithmic(axes: Axes, side: Literal["x", "y"]) -> None:
    """Put an axis on a logarithmic scale; its numbers are plain text, as formulas are not drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    class Ticks(LogLocator):
        """Powers of ten, and numbers between them where an axis would show fewer than two."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            for between in ((1.0,), (1.0, 2.0, 5.0), tuple(map(float, range(1, 10)))):
                self.set_params(subs=between)
                ticks = super().tick_values(vmin, vmax)
                if sum(vmin <= each <= vmax for each in ticks) > 1:
                    return ticks
            return MaxNLocator(3).tick_values(vmin, vmax)

    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    across = axes.get_position().width * axes.figure.get_figwidth() if side == "x" else math.inf  # type: ignore[union-attr]
    axis.set_major_locator(Ticks(numticks=max(3, int(min(6, across / 0.42)))))
    # Many zeros side by side would touch each other.
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value) if value >= 0.01 else _power(value)))
    axis.set_minor_formatter(NullFormatter())


def width_share(figure: Figure) -> float:
    """Return how wide a figure is, as a part of the width on a page."""
    return float(figure.get_figwidth()) / PAGE_WIDTH


def legend_below(figure: Figure, *, handles: Sequence[Any] = (), most: int = 5) -> None:
    """Put a legend below a figure, in as many columns as its names have room for, so that none is cut off."""
    _put_legend(figure, "outside lower left", handles, most)


def legend_above(figure: Figure, *, handles: Sequence[Any] = (), most: int = 5, **look: Any) -> None:
    """Put a legend above a figure, as `legend_below` does below."""
    _put_legend(figure, "outside upper left", handles, most, **look)


def _put_legend(
    figure: Figure,
    place: Literal["outside lower left", "outside upper left"],
    handles: Sequence[Any],
    most: int,
    **look: Any,
) -> None:
    if not handles:
        named = {
            label: handle
            for axis in figure.axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        handles = list(named.values())
    if not handles:
        return
    longest = max(len(str(each.get_label())) for each in handles)
    share = width_share(figure)
    wide, columns = (max(1, min(most, int(_LEGEND_LETTERS * each / (longest + 6)))) for each in (1.0, share))
    # A narrow figure has more lines of names, which take no room from what is drawn.
    lines = math.ceil(len(handles) / columns) - math.ceil(len(handles) / wide)
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(0, lines))
    figure.legend(handles=list(handles), loc=place, ncols=columns, **look)


def short_number(value: float, digits: int = 3) -> str:
    """Return a number as it fits beside an axis."""
    text = f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.{digits}g}"
    return re.sub(r"e([+-])0*(\d)", lambda match: f"e{match[1].strip('+')}{match[2]}", text).replace("-", "−")


def _power(value: float) -> str:
    digits = 0 if math.isclose(float(f"{value:.0e}"), value) else 1
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.{digits}e}").replace("-", "−")


def needs_matplotlib() -> MissingExtra:
    """Return the error for figures without matplotlib."""
    return MissingExtra("figures need matplotlib", "plots")


@contextmanager
def _drawing(style: Mapping[str, Any]) -> Iterator[None]:
    """Hold the style of matplotlib at ours, whatever a user's own files say."""
    try:
        import matplotlib
    except ImportError as error:
        raise needs_matplotlib() from error
    kept = ("backend", "interactive", "toolbar", "timezone", "webagg", "tk.", "docstring", "savefig.directory")
    with _DRAWING, warnings.catch_warnings(), without_font_notices():
        warnings.simplefilter("ignore")  # letters that the font lacks, settings on their way out
        plain: dict[str, Any] = {
            key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith(kept)
        }
        with matplotlib.rc_context(cast("Any", plain | _STYLE | dict(style))):
            yield


def _one_learning_curve(run: Run, metrics: Sequence[str] | None) -> Picture:
    log = run.log()
    known, epoch = curves(log), epochs(log)
    chosen = [known[name] for name in _telling(known, metrics)]
    if not chosen:
        raise NotFound(f"run {run.id} logged no metric more than once")
    if epoch is None:
        first = run.metrics.get(chosen[0].name)
        is_timed = first is None or first.source != "output"  # which was searched when the run had ended
        epoch = _time_per_step(chosen[0]) if is_timed else None
        xlabel, time = "step", "time per step"
    else:
        epoch = _aligned(epoch, chosen[0])
        chosen = [over_epochs(curve, epoch) for curve in chosen]
        xlabel, time = "epoch", "time per epoch"
    units = {run.metrics[curve.name].unit for curve in chosen if curve.name in run.metrics} - {""}

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        other = axis.twinx()
        # The time stands behind the curves, in grey: it is the context.
        if epoch is not None and epoch.ys:
            size, word = scale(max(epoch.ys), "s")
            xs, ys = thinned(epoch.xs, [y / size for y in epoch.ys], 200)
            other.bar(xs, ys, width=_bar_width(epoch.xs), color=MUTED, alpha=0.18, label=time)
            other.set_ylim(0, max(ys) * 1.6 or 1)
            other.set_ylabel(f"{time} ({word})")
        other.set_visible(epoch is not None)
        other.grid(False)
        axis.set_zorder(other.get_zorder() + 1)
        axis.patch.set_visible(False)
        for at, curve in enumerate(chosen):
            xs, ys = thinned(curve.xs, [y if math.isfinite(y) else math.nan for y in curve.ys])
            broken = f" ({curve.not_finite} not finite)" if curve.not_finite else ""
            axis.plot(xs, ys, color=COLOURS[at], label=short_label(curve.name) + broken, **_mark(at, xs))
        if _spans_decades(chosen):
            logarithmic(axis, "y")
        handles = [*axis.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
        legend_below(figure, handles=handles)
        name = " and ".join(short_label(curve.name) for curve in chosen[:2]) + (" …" if len(chosen) > 2 else "")
        name = name if len(name) <= _MOST_BESIDE_AXIS else "value"  # the legend names them
        axis.set_ylabel(axis_name(name, min(units) if len(units) == 1 else ""))
        axis.set_xlabel(xlabel)
        axis.xaxis.set_major_locator(whole_numbers())

    note = f"Lines are metrics (left axis); grey bars are the {time} (right axis)." if epoch is not None else ""
    heading = f"Learning curve and {time}" if epoch is not None else "Learning curve"
    return Picture("learning-curve", heading, draw, 3.1 + _legend_height(chosen), note)


def _legend_height(chosen: Sequence[Curve]) -> float:
    """Return the inches that a legend of long names needs beyond two lines, so that the curves keep their height."""
    longest = max(len(short_label(curve.name)) for curve in chosen)
    lines = math.ceil((len(chosen) + 1) / max(1, _LEGEND_LETTERS // (longest + 6)))
    return _LEGEND_LINE * max(0, lines - 2)


def _many_learning_curves(runs: Sequence[Run], metrics: Sequence[str] | None, colours: Mapping[str, str]) -> Picture:
    logs = {run.id: run.log() for run in runs[:_MOST_LINES]}
    known = {id: curves(log) for id, log in logs.items()}
    common = {name: curve for each in known.values() for name, curve in each.items()}
    names = _telling(common, metrics)[:1]
    if not names:
        raise NotFound("none of these runs logged a metric more than once")
    name = names[0]

    timed = {id: epoch for id, log in logs.items() if (epoch := epochs(log))}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2 if timed else 1, 1, sharex=True, squeeze=False,
                                 height_ratios=[2, 1] if timed else [1])[:, 0]  # fmt: skip
        for at, id in enumerate(logs):
            curve, epoch = known[id].get(name), timed.get(id)
            if curve is not None:
                epoch = _aligned(epoch, curve) if epoch else None
                placed = over_epochs(curve, epoch) if epoch else curve
                xs, ys = thinned(placed.xs, [y if math.isfinite(y) else math.nan for y in placed.ys])
                panels[0].plot(xs, ys, color=colours[id], label=short_label(id), **_mark(at, xs))
            if epoch is not None:
                panels[-1].plot(*thinned(epoch.xs, epoch.ys), color=colours[id], **_mark(at, epoch.xs))
        if _spans_decades([known[id][name] for id in logs if name in known[id]]):
            logarithmic(panels[0], "y")
        legend_below(figure, most=2)
        panels[0].set_ylabel(short_label(name))
        panels[-1].set_xlabel("epoch" if timed else "step")
        panels[-1].xaxis.set_major_locator(whole_numbers())
        if timed:
            panels[-1].set_ylabel("time per epoch (s)")
            panels[-1].set_ylim(bottom=0)

    about = f"{title(name)} and time per epoch" if timed else f"{title(name)} of each run"
    note = "One line for each run, in the colour of its group." + more_note(len(runs) - len(logs))
    return Picture("learning-curves", about, draw, 4.2 if timed else 3.1, note)


def _draw_phases(axis: Axes, line: Timeline, colour: Mapping[str, str]) -> None:
    gap = line.length_s / MOST_POINTS
    for row, phase in enumerate(line.phases):
        pieces = merged(phase.intervals, gap)
        # A call shorter than a pixel is still drawn.
        axis.broken_barh(
            [(start, max(end - start, gap)) for start, end in pieces], (row - 0.36, 0.72), color=colour[phase.name]
        )
    names = [f"{short_label(phase.name)}" + (f" × {phase.calls:,}" if phase.calls > 1 else "") for phase in line.phases]
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0)


def _draw_trace(axis: Axes, line: Timeline, at: int, colour: Mapping[str, str]) -> None:
    """Draw power over time; the area below has the colour of the phase that was the innermost then."""
    trace = line.traces[at]
    xs, ys = thinned(trace.at_s, trace.watts)
    axis.plot(xs, ys, color=MUTED, linewidth=1.0)
    by_phase: dict[str, list[tuple[float, float]]] = {}
    for start, end, name in line.segments:
        by_phase.setdefault(name, []).append((start, end))
    for name, pieces in by_phase.items():
        area_x: list[float] = []
        area_y: list[float] = []
        for start, end in merged(pieces, line.length_s / MOST_POINTS):
            inside = [(x, y) for x, y in zip(xs, ys, strict=True) if start < x < end]
            edge = [(start, _at(xs, ys, start)), *inside, (end, _at(xs, ys, end))]
            area_x += [x for x, _ in edge] + [end]
            area_y += [y for _, y in edge] + [math.nan]
        axis.fill_between(area_x, area_y, color=colour[name], alpha=0.45, linewidth=0)
    axis.set_ylim(0, max(ys) * 1.1 or 1)


def _draw_bars(panel: Axes, row: MetricRow, colours: Mapping[str, str]) -> None:
    means = [cell.estimate.mean for cell in row.cells if _has_mean(cell.estimate) and cell.estimate]
    size, unit = scale(max(map(abs, means)), row.unit)
    for at, cell in enumerate(row.cells):
        if cell.estimate is None or not _has_mean(cell.estimate):
            panel.text(at, 0, "–", ha="center", va="bottom")
            continue
        panel.bar(at, cell.estimate.mean / size, color=colours[cell.group], width=0.72, alpha=0.9)
        mean, low, high = cell.estimate.mean, cell.estimate.low, cell.estimate.high
        if low is not None and high is not None:
            reach = [[(mean - low) / size], [(high - mean) / size]]
            panel.errorbar(at, mean / size, yerr=reach, color=INK, capsize=4, linewidth=1.2)
        elif len(cell.estimate.values) > 1:  # too few for an interval: each run is a point
            ys = [value / size for value in cell.estimate.values]
            panel.plot([at] * len(ys), ys, "o", color=INK, markerfacecolor=PAPER, markersize=4, linestyle="none")
    panel.set_xticks([])
    panel.set_xlim(-0.7, len(row.cells) - 0.3)
    panel.grid(False, axis="x")
    arrow = {"lower": " ↓", "higher": " ↑"}.get(row.better, "")
    name = axis_name(row.metric, unit) + arrow
    # Three panels side by side on a phone leave room for few letters.
    is_narrow = width_share(panel.get_figure()) < 0.7  # type: ignore[arg-type]
    panel.set_title(name.replace(" (", "\n(") if is_narrow else name)


def _telling(known: Mapping[str, Curve], asked: Sequence[str] | None) -> list[str]:
    """Return which metrics to draw: those asked for, else losses and errors, else some."""
    if asked:
        return [name for name in asked if name in known]
    several = [name for name, curve in known.items() if len(curve.xs) > 1]
    losses = [name for name in several if better_of(name) == "lower" and not unit_of(name)]
    return (losses or several)[:4]


def _time_per_step(curve: Curve) -> Curve | None:
    """Return the time between values, where no timer tells that of an epoch."""
    steps = [after - before for before, after in pairwise(curve.at_s)]
    if not steps or min(steps) < 0:
        return None
    return Curve("time per step", curve.xs[1:], tuple(steps), curve.at_s[1:])


def _aligned(epoch: Curve, curve: Curve) -> Curve:
    """Return the epochs with the numbers that the metric uses, where both count the same and begin apart by one."""
    shift = curve.xs[0] - epoch.xs[0]
    if len(curve.xs) == len(epoch.xs) and abs(shift) == 1:
        return Curve(epoch.name, tuple(x + shift for x in epoch.xs), epoch.ys, epoch.at_s)
    return epoch


def _first_curves(groups: Mapping[str, Sequence[Run]], metric: str) -> tuple[dict[str, list[Curve]], int]:
    """Return the curves of as many groups as can be told apart, and how many more have one: their logs stay unread."""
    shown: dict[str, list[Curve]] = {}
    left_out = 0
    for name, runs in groups.items():
        if len(shown) == _MOST_LINES:
            left_out += any(metric in run.metrics for run in runs)
        elif logged := [each for run in runs if (each := curves(run.log()).get(metric))]:
            shown[name] = logged
    return shown, left_out


def _band(logged: Sequence[Curve], metric: str, unit: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return steps, means and the ends of the interval, which is nothing where only one run has a value."""
    values: dict[float, list[float]] = {}
    for curve in logged:
        for x, y in zip(*thinned(curve.xs, curve.ys), strict=True):
            values.setdefault(x, []).append(y)
    most = max(map(len, values.values()))
    steps = sorted(step for step, each in values.items() if len(each) == most or most == 1)
    known = [estimate_of(metric, unit, values[step]) for step in steps]
    ends = [each.ends or (each.mean, each.mean) for each in known]
    return steps, [each.mean for each in known], [low for low, _ in ends], [high for _, high in ends]


def _at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return a value between points; beyond the ends, that of the end."""
    at = bisect_right(xs, x)
    if at == 0 or at == len(xs):
        return ys[0] if at == 0 else ys[-1]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


def scale(largest: float, unit: str) -> tuple[float, str]:
    """Return by what to divide numbers up to that size, and the unit then."""
    if unit in ("bytes", "B") and largest > 0:
        power = min(max(int(math.log2(largest)) // 10, 0), 5)
        return 1024.0**power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    if unit in ("J", "W") and largest >= 1e4:
        power = min(int(math.log10(largest)) // 3, 4)
        return 1000.0**power, ("", "k", "M", "G", "T")[power] + unit
    if unit == "s" and largest >= 7200:
        return 3600.0, "h"
    if unit == "s" and 0 < largest < 0.1:
        return (1e-3, "ms") if largest >= 1e-4 else (1e-6, "µs")
    return 1.0, unit


def _has_mean(estimate: Any) -> bool:
    return estimate is not None and math.isfinite(estimate.mean)


def _spans_decades(logged: Sequence[Curve]) -> bool:
    values = [y for curve in logged for y in curve.ys if math.isfinite(y)]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 100


def _unit(groups: Mapping[str, Sequence[Run]], metric: str) -> str:
    units = [measures(run)[metric].unit for runs in groups.values() for run in runs if metric in measures(run)]
    return units[0] if units and len(set(units)) == 1 else ""


def _bar_width(xs: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(xs) if after > before]
    return 0.8 * min(gaps) if gaps else 0.8


def _mark(at: int, xs: Sequence[float]) -> dict[str, Any]:
    """Return marks for short curves: a shape for each, so that colour is not the only sign."""
    return {"marker": _MARKS[at % len(_MARKS)], "markersize": 4} if len(xs) <= 60 else {}


def whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def _finish(axis: Axes, xlabel: str, ylabel: str, *, legend: bool = True) -> None:
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    if legend:
        axis.legend(loc="best")


def axis_name(name: str, unit: str) -> str:
    words = short_label(title(name))
    return f"{words} ({unit})" if unit else words


def short_label(text: str, lines: int = 1) -> str:
    """Return somebody's text as a short line, or as several, without control characters, which SVG cannot hold."""
    clean = "".join("�" if unicodedata.category(each)[0] == "C" else each for each in " ".join(text.split()))
    # matplotlib leaves names that begin so out of a legend.
    clean = "\u2009" + clean if clean.startswith("_") else clean
    if lines > 1:
        return "\n".join(textwrap.wrap(clean, _MOST_LABEL, max_lines=lines, placeholder="…"))
    return clean if len(clean) <= _MOST_LABEL else clean[: _MOST_LABEL - 1] + "…"


def file_word(name: str) -> str:
    return (
        "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "-" for each in name)[:40] or "metric"
    )


def more_note(left_out: int) -> str:
    return f" {left_out} more are not shown." if left_out > 0 else ""
