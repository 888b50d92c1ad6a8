"""Figures of sweeps, drawn as all others are: see `figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairmile.base.errors import NotFound
from fairmile.base.units import format_value
from fairmile.reports.figures import (
    COLOURS,
    GRID,
    INK,
    MUTED,
    PAPER,
    SHADES,
    Picture,
    axis_name,
    file_word,
    logarithmic,
    more_note,
    short_label,
    short_number,
    width_share,
)
from fairmile.reports.measures import title
from fairmile.reports.readings import name_points
from fairmile.reports.scales import (
    MOST_DOTS,
    Scale,
    bare,
    cut_label,
    draw_bar,
    draw_to_scale,
    even_choice,
    goodness,
    scale_of,
    turned,
)
from fairmile.reports.sweep import Axis, AxisEffect, HeatMap, Levels, Sweep, effects
from fairmile.runs.record.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PANELS = 6
_MOST_COORDINATES = 8
_MOST_POLYLINES = 300
_LETTERS_BELOW = 95  # that fit below a figure of full width
_MOST_NAMED = 12


def heat_map(cells: HeatMap) -> Picture:
    """Draw the mean of a metric over two axes; a cell without a value is hatched and says what became of its runs."""
    values = [value for row in cells.means for value in row if value is not None]
    if not values:
        raise NotFound(f"no cell has a value of {cells.metric!r}")
    shades = scale_of(values, cells.unit, cells.better)
    rows, columns = len(cells.y), len(cells.x)
    several = any(count > 1 for row in cells.counts for count in row)

    def draw(figure: Figure) -> None:
        axis, bar = figure.subplots(1, 2, width_ratios=[26, 1])
        for row in range(rows):
            for column in range(columns):
                _draw_cell(axis, cells, row, column, shades)
        axis.set_xlim(-0.5, columns - 0.5)
        axis.set_ylim(-0.5, rows - 0.5)
        _name_levels(axis, cells.x, columns)
        axis.set_yticks(range(rows), [cut_label(label, 20) for label in cells.y.labels])
        axis.set_xlabel(short_label(cells.x.axis.name))
        axis.set_ylabel(short_label(cells.y.axis.name))
        axis.grid(False)
        axis.tick_params(length=0)
        bare(axis)
        draw_bar(bar, shades, cells.metric)

    note = "Each cell is the mean over all other parameters" + (", with the number of runs." if several else ".")
    if any(value is None for row in cells.means for value in row):
        note += " Hatched cells have no value."
    left_out = cells.x.left_out + cells.y.left_out
    absent = max(cells.x.axis.absent, cells.y.axis.absent)
    note += f" Runs without one of the two parameters are left out ({absent})." if absent else ""
    names = f"{cells.x.axis.name} and {cells.y.axis.name}"
    file = f"heat-map-{file_word(cells.metric)}-{file_word(cells.x.axis.name)}-{file_word(cells.y.axis.name)}"
    height = min(7.0, 1.3 + (0.42 if several else 0.34) * max(rows, 3))
    return Picture(file, f"{title(cells.metric)} over {names}", draw, height, note + more_note(left_out) + shades.note)


def parallel_coordinates(sweep: Sweep) -> Picture:
    """Draw each run as a line through its parameters to its value, in the colour of the value; the best on top."""
    if not sweep.values:
        raise NotFound(f"no run has a value of {sweep.metric!r}")
    shades = scale_of([value for _, value in sweep.values], sweep.unit, sweep.better)
    ranked = sorted(sweep.values, key=lambda each: -each[1] if sweep.better == "higher" else each[1])
    shown = even_choice(ranked, _MOST_POLYLINES)
    order = [each.axis.name for each in effects(sweep)]
    chosen = [axis for axis in sweep.axes if axis.name in order[:_MOST_COORDINATES]] or list(sweep.axes[:1])
    last = len(chosen)

    def draw(figure: Figure) -> None:
        from matplotlib.collections import LineCollection

        axis = figure.subplots()
        places = [_Coordinate(each, shown) for each in chosen]
        lines, colours = [], []
        for rank, (run, value) in reversed(list(enumerate(shown))):  # the best at last, on top
            ys = [place.at(run, rank / max(1, len(shown) - 1)) for place in places] + [goodness(shades, value)]
            lines.append(list(enumerate(ys)))
            colours.append(SHADES[shades.shade(value)])
        width, alpha = (1.3, 0.9) if len(shown) <= 60 else (0.8, 0.6)
        axis.add_collection(LineCollection(lines, colors=colours, linewidths=width, alpha=alpha))
        for at, place in enumerate(places):
            _draw_coordinate(axis, at, place.ticks)
        _draw_coordinate(axis, last, [(turned(shades, tick / 4), shades.text(tick / 4)) for tick in range(5)])
        names = [*(cut_label(short_label(each.name), 18) for each in chosen), axis_name(sweep.metric, shades.unit)]
        if len("  ".join(names)) > _LETTERS_BELOW * width_share(figure):  # else they would touch
            names = [f"\n{name}" if at % 2 else name for at, name in enumerate(names)]
        axis.set_xticks(range(last + 1), names)
        axis.set_xlim(-0.1, last + 0.35)
        axis.set_ylim(-0.04, 1.04)
        axis.set_yticks([])
        axis.grid(False)
        axis.tick_params(length=0)
        bare(axis)

    note = "One line for each run, the better ones on top."
    if len(shown) < len(ranked):
        note += f" Of {len(ranked):,} runs the best {len(shown) // 2} and an even choice of the others are drawn."
    if without := len(sweep.runs) - len(ranked):
        note += f" {without} without a value {'is' if without == 1 else 'are'} not shown."
    if len(sweep.axes) > len(chosen):
        note += f" {len(sweep.axes) - len(chosen)} parameters that do least are not shown."
    name = f"parallel-{file_word(sweep.metric)}"
    return Picture(name, f"Parameters and {title(sweep.metric)}", draw, 3.4, note + shades.note)


def effect_panels(sweep: Sweep) -> Picture:
    """Draw the metric over each axis: every run as a dot, and the means with their confidence intervals."""
    every = effects(sweep)
    if not every:
        raise NotFound(f"no parameter has two values with {sweep.metric!r}")
    shown = every[:_MOST_PANELS]
    known = scale_of([value for _, value in sweep.values], sweep.unit, sweep.better)
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    lines = math.ceil(len(shown) / columns)
    slanted = any(_is_crowded(each.levels, columns) for each in shown if not each.axis.is_wide)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        for at, (panel, each) in enumerate(zip(panels, shown, strict=False)):
            _draw_effect(panel, each, sweep, known, columns)
            panel.set_xlabel(short_label(each.axis.name))
            if at % columns == 0:
                panel.set_ylabel(axis_name(sweep.metric, known.unit))

    note = "Dots are runs; the line is the mean over all other parameters"
    has_intervals = any(mean.low is not None for each in shown for mean in each.estimates)
    note += ", with its 95 % confidence interval." if has_intervals else "."
    note += more_note(len(every) - len(shown)) + known.note
    height = (2.3 + (0.4 if slanted else 0)) * lines + 0.1
    return Picture(
        f"effects-{file_word(sweep.metric)}", f"{title(sweep.metric)} over each parameter", draw, height, note
    )


class _Coordinate:
    """An axis of parallel coordinates: where a run crosses it, and what is written beside."""

    def __init__(self, axis: Axis, shown: Sequence[tuple[Run, float]]) -> None:
        self._axis = axis
        self._absent = any(axis.number(run) is None for run, _ in shown)
        self._bottom = 0.14 if self._absent else 0.0
        numbers = axis.numbers or ()
        self._log = axis.log
        # Few numbers, and words, stand evenly; lines through one of them are fanned out a little.
        self._even = not axis.is_wide
        self._ends = (numbers[0], numbers[-1]) if numbers else (0.0, 1.0)

    def at(self, run: Run, fan: float) -> float:
        number = self._axis.number(run)
        if number is None:
            return 0.03 * (fan - 0.5)
        if self._even:
            values = self._axis.numbers or tuple(map(float, range(len(self._axis.values))))
            count = len(values)
            place = values.index(number) / (count - 1) if count > 1 else 0.5
            return self._lifted(place) + 0.35 * min(0.12, 1 / count) * (0.5 - fan)
        return self._lifted(self._fraction(number))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        absent = [(0.0, "not set")] if self._absent else []
        if not self._even:
            return absent + [(self._lifted(at / 4), short_number(self._value(at / 4))) for at in range(5)]
        count = len(self._axis.values)
        every = math.ceil(count / _MOST_NAMED)
        return absent + [
            (self._lifted(at / (count - 1) if count > 1 else 0.5), cut_label(format_value(value)))
            for at, value in enumerate(self._axis.values)
            if at % every == 0
        ]

    def _lifted(self, place: float) -> float:
        return self._bottom + (1 - self._bottom) * place

    def _fraction(self, number: float) -> float:
        low, high = self._ends
        if self._log:
            low, high, number = math.log(low), math.log(high), math.log(number)
        return (number - low) / (high - low)

    def _value(self, place: float) -> float:
        low, high = self._ends
        if self._log:
            return math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
        return low + place * (high - low)


def _draw_cell(axis: Axes, cells: HeatMap, row: int, column: int, shades: Scale) -> None:
    from matplotlib.patches import Rectangle

    value, count, ended = cells.means[row][column], cells.counts[row][column], cells.endings[row][column]
    corner = (column - 0.48, row - 0.48)
    if value is None:
        box = Rectangle(corner, 0.96, 0.96, facecolor=PAPER, edgecolor=GRID, hatch="////", linewidth=0.6)
        axis.add_patch(box)
        if ended:
            axis.text(column, row, ended, ha="center", va="center", fontsize=7.5, color=MUTED,
                      bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0})  # fmt: skip
        return
    shade = shades.shade(value)
    axis.add_patch(Rectangle(corner, 0.96, 0.96, facecolor=SHADES[shade], edgecolor="none"))
    ink = PAPER if shade < 5 else INK
    several = any(each > 1 for line in cells.counts for each in line)
    number = short_number(value / shades.size)
    axis.text(column, row + (0.14 if several else 0), number, ha="center", va="center", fontsize=8, color=ink)
    if several:
        axis.text(column, row - 0.24, f"{count} run{'s' if count > 1 else ''}", ha="center", va="center",
                  fontsize=6.5, color=ink)  # fmt: skip


def _draw_coordinate(axis: Axes, at: int, ticks: Sequence[tuple[float, str]]) -> None:
    axis.plot([at, at], [0, 1], color=MUTED, linewidth=0.9)
    for y, text in ticks:
        axis.plot([at - 0.012, at + 0.012], [y, y], color=MUTED, linewidth=0.9)
        axis.text(at + 0.025, y, text, fontsize=7.5, va="center", color=INK, zorder=5,
                  bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.6})  # fmt: skip


def _draw_effect(panel: Axes, effect: AxisEffect, sweep: Sweep, known: Scale, columns: int) -> None:
    is_number = effect.axis.numbers is not None and (effect.axis.is_wide or len(effect.axis.values) > 6)
    points = []
    for run, value in even_choice(sweep.values, MOST_DOTS):
        number, level = effect.axis.number(run), effect.levels.of(run)
        if number is not None and level is not None:
            points.append((number if is_number else float(level), known.inside(value) / known.size, run.id))
    dots = panel.plot([x for x, *_ in points], [y for _, y, _ in points], "o", color=COLOURS[6], markersize=3,
                      alpha=0.45, markeredgewidth=0)  # fmt: skip
    name_points(dots[0], [id for *_, id in points])
    centres = effect.levels.centres if is_number else tuple(map(float, range(len(effect.levels))))
    means = [(x, each) for x, each in zip(centres, effect.estimates, strict=True) if each.count]
    ys = [known.inside(each.mean) / known.size for _, each in means]
    below = [math.nan if each.low is None else (each.mean - each.low) / known.size for _, each in means]
    above = [math.nan if each.high is None else (each.high - each.mean) / known.size for _, each in means]
    joined = "-" if effect.axis.numbers is not None else "none"  # between words there is nothing
    drawn = panel.errorbar([x for x, _ in means], ys, yerr=[below, above], color=COLOURS[0], marker="o", markersize=4,
                           capsize=3, linewidth=1.6, elinewidth=1.1, linestyle=joined)  # fmt: skip
    name_points(drawn.lines[0], [f"mean of {each.count}" for _, each in means])
    draw_to_scale(panel, known)
    if is_number:
        if effect.axis.log:
            logarithmic(panel, "x")
        return
    panel.grid(False, axis="x")
    panel.set_xlim(-0.5, len(effect.levels) - 0.5)
    _name_levels(panel, effect.levels, len(effect.levels), columns)


def _name_levels(axis: Axes, levels: Levels, count: int, columns: int = 1) -> None:
    axis.set_xticks(range(count), [cut_label(label) for label in levels.labels])
    share = width_share(axis.figure)  # type: ignore[arg-type]
    if _is_crowded(levels, columns / share):
        for label in axis.get_xticklabels():
            label.set_rotation(30 if share >= 1 else 60)
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")


def _is_crowded(levels: Levels, columns: float) -> bool:
    """Tell whether the names of levels do not fit side by side below a panel."""
    return sum(len(cut_label(label)) + 2 for label in levels.labels) > (84 if columns == 1 else 76 / columns)
