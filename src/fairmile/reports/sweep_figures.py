"""Figures of sweeps and studies, drawn as all others are: see `figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import NotFound
from fairmile.reports.curves import thinned
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
    scale,
    short_label,
    short_number,
    whole_numbers,
)
from fairmile.reports.measures import title, value_text
from fairmile.reports.study import Front, Importance, Step, TrialCurves
from fairmile.reports.sweep import Axis, AxisEffect, HeatMap, Levels, Sweep, effects, is_log
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_PANELS = 6
_MOST_COORDINATES = 8
_MOST_POLYLINES = 300
_MOST_DOTS = 1000
_MOST_NAMED = 12
_ROOM = 16  # letters of a value beside an axis
_FAR = 4.0  # quarter ranges from the middle half; what lies further is cut off, not shown to scale
_ARROWS = {"lower": "lower is better", "higher": "higher is better"}


@dataclass(frozen=True)
class _Scale:
    """How values of a metric are drawn: between two ends, in a unit that fits, logarithmic or not."""

    low: float
    high: float
    log: bool
    size: float
    unit: str
    better: Better
    beyond: int  # values that lie further out

    @property
    def note(self) -> str:
        if not self.beyond:
            return ""
        return f" {self.beyond} far outside {'is' if self.beyond == 1 else 'are'} drawn at the edge."

    def fraction(self, value: float) -> float:
        """Return where a value lies between the ends, from 0 to 1; the lower end of what is not larger than it."""
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, self.inside(value)))
        return (value - low) / (high - low) if high > low else 0.5

    def shade(self, value: float) -> int:
        """Return the place of its colour: 0 for the best."""
        place = self.fraction(value)
        place = 1 - place if self.better == "higher" else place
        return min(len(SHADES) - 1, int(place * len(SHADES)))

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def text(self, fraction: float) -> str:
        """Return the value at a place between the ends."""
        if self.log:
            value = math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + fraction * (self.high - self.low)
        return short_number(value / self.size)


def heat_map(found: HeatMap) -> Picture:
    """Draw the mean of a metric over two axes; a cell without a value is hatched and says what became of its runs."""
    values = [value for row in found.means for value in row if value is not None]
    if not values:
        raise NotFound(f"no cell has a value of {found.metric!r}")
    shades = _scale_of(values, found.unit, found.better)
    rows, columns = len(found.y), len(found.x)
    several = any(count > 1 for row in found.counts for count in row)

    def draw(figure: Figure) -> None:
        axis, bar = figure.subplots(1, 2, width_ratios=[26, 1])
        for row in range(rows):
            for column in range(columns):
                _draw_cell(axis, found, row, column, shades)
        axis.set_xlim(-0.5, columns - 0.5)
        axis.set_ylim(-0.5, rows - 0.5)
        _name_levels(axis, found.x, columns)
        axis.set_yticks(range(rows), [_cut(label, 20) for label in found.y.labels])
        axis.set_xlabel(short_label(found.x.axis.name))
        axis.set_ylabel(short_label(found.y.axis.name))
        axis.grid(False)
        axis.tick_params(length=0)
        _bare(axis)
        _draw_bar(bar, shades, found.metric)

    note = "Each cell is the mean over all other parameters" + (", with the number of runs." if several else ".")
    if any(value is None for row in found.means for value in row):
        note += " Hatched cells have no value."
    left_out = found.x.left_out + found.y.left_out
    absent = max(found.x.axis.absent, found.y.axis.absent)
    note += f" Runs without one of the two parameters are left out ({absent})." if absent else ""
    names = f"{found.x.axis.name} and {found.y.axis.name}"
    file = f"heat-map-{file_word(found.metric)}-{file_word(found.x.axis.name)}-{file_word(found.y.axis.name)}"
    height = min(7.0, 1.3 + (0.42 if several else 0.34) * max(rows, 3))
    return Picture(file, f"{title(found.metric)} over {names}", draw, height, note + more_note(left_out) + shades.note)


def parallel_coordinates(sweep: Sweep) -> Picture:
    """Draw each run as a line through its parameters to its value, in the colour of the value; the best on top."""
    if not sweep.values:
        raise NotFound(f"no run has a value of {sweep.metric!r}")
    shades = _scale_of([value for _, value in sweep.values], sweep.unit, sweep.better)
    ranked = sorted(sweep.values, key=lambda each: -each[1] if sweep.better == "higher" else each[1])
    shown = _spread(ranked, _MOST_POLYLINES)
    order = [each.axis.name for each in effects(sweep)]
    chosen = [axis for axis in sweep.axes if axis.name in order[:_MOST_COORDINATES]] or list(sweep.axes[:1])
    last = len(chosen)

    def draw(figure: Figure) -> None:
        from matplotlib.collections import LineCollection

        axis = figure.subplots()
        places = [_Coordinate(each, shown) for each in chosen]
        lines, colours = [], []
        for rank, (run, value) in reversed(list(enumerate(shown))):  # the best at last, on top
            ys = [place.at(run, rank / max(1, len(shown) - 1)) for place in places] + [_good(shades, value)]
            lines.append(list(enumerate(ys)))
            colours.append(SHADES[shades.shade(value)])
        width, alpha = (1.3, 0.9) if len(shown) <= 60 else (0.8, 0.6)
        axis.add_collection(LineCollection(lines, colors=colours, linewidths=width, alpha=alpha))
        for at, place in enumerate(places):
            _draw_coordinate(axis, at, place.ticks)
        _draw_coordinate(axis, last, [(_turned(shades, tick / 4), shades.text(tick / 4)) for tick in range(5)])
        names = [*(_cut(short_label(each.name), 18) for each in chosen), axis_name(sweep.metric, shades.unit)]
        axis.set_xticks(range(last + 1), names)
        axis.set_xlim(-0.1, last + 0.35)
        axis.set_ylim(-0.04, 1.04)
        axis.set_yticks([])
        axis.grid(False)
        axis.tick_params(length=0)
        _bare(axis)

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
    found = effects(sweep)
    if not found:
        raise NotFound(f"no parameter has two values with {sweep.metric!r}")
    shown = found[:_MOST_PANELS]
    known = _scale_of([value for _, value in sweep.values], sweep.unit, sweep.better)
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

    note = "Dots are runs; the line is the mean over all other parameters with its 95 % confidence interval."
    note += more_note(len(found) - len(shown)) + known.note
    height = (2.3 + (0.4 if slanted else 0)) * lines + 0.1
    return Picture(
        f"effects-{file_word(sweep.metric)}", f"{title(sweep.metric)} over each parameter", draw, height, note
    )


def history(steps: Sequence[Step], metric: str, unit: str, better: Better) -> Picture:
    """Draw the value of each trial, how it ended, and the best so far."""
    values = [step.value for step in steps if step.value is not None]
    if not values:
        raise NotFound(f"no trial has a value of {metric!r}")
    known = _scale_of(values, unit, better)
    shown = dict(enumerate(steps))
    kept = {at: step for at, step in shown.items() if step.value is not None}
    dots = kept if len(kept) <= _MOST_DOTS else {at: kept[at] for at in _spread(list(kept), _MOST_DOTS)}
    lost = [at for at, step in shown.items() if step.value is None and step.ending not in ("running", "queued")]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for ends, mark, colour, label in (("done", "o", COLOURS[0], "done"), ("pruned", "v", COLOURS[4], "pruned")):
            places = [at for at, step in dots.items() if step.ending == ends]
            if places:
                ys = [known.inside(dots[at].value or 0.0) / known.size for at in places]
                axis.plot(places, ys, mark, color=colour, markersize=4, alpha=0.75, label=label)
        others = [at for at, step in dots.items() if step.ending not in ("done", "pruned")]
        failed = [*((at, known.inside(dots[at].value or 0.0)) for at in others), *((at, _worst(known)) for at in lost)]
        if failed:
            axis.plot([at for at, _ in failed], [y / known.size for _, y in failed], "x", color=COLOURS[1],
                      markersize=5, label="failed or not finished", clip_on=False)  # fmt: skip
        best = [(at, step.best) for at, step in enumerate(steps) if step.best is not None]
        if best:
            ys = [known.inside(value) / known.size for _, value in best]
            axis.plot([at for at, _ in best], ys, color=COLOURS[2], drawstyle="steps-post", label="best so far")
        _draw_to_scale(axis, known)
        axis.set_xlabel("trial")
        axis.set_ylabel(axis_name(metric, known.unit))
        axis.xaxis.set_major_locator(whole_numbers())
        figure.legend(loc="outside lower left", ncols=4)

    note = f"{_ARROWS[better].capitalize()}." if better in _ARROWS else ""
    if lost:
        note += f" {len(lost)} without a value {'stands' if len(lost) == 1 else 'stand'} at the edge."
    return Picture("history", f"{title(metric)} of each trial", draw, 3.3, (note + known.note).strip())


def trial_curves(found: TrialCurves, metric: str, unit: str, better: Better) -> Picture:
    """Draw the curves of trials; a cross is where one was stopped."""
    if not found.curves:
        raise NotFound(f"no trial told {metric!r} more than once")
    known = _scale_of([y for each in found.curves for y in each.curve.ys if math.isfinite(y)] or [0.0], unit, better)
    done = [each for each in found.curves if each.step.ending == "done"]
    best = min(done, key=lambda each: _turned_value(each.step.value, better), default=None)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        labels: set[str] = set()
        for each in sorted(found.curves, key=lambda each: (each is best, each.step.ending == "done")):
            colour, label = (COLOURS[0], "done") if each.step.ending == "done" else (COLOURS[6], "pruned")
            if each.step.ending not in ("done", "pruned"):
                colour, label = COLOURS[1], "failed or not finished"
            if each is best:
                colour, label = COLOURS[2], f"best: trial {each.step.number}"
            ys = [known.inside(y) / known.size if math.isfinite(y) else math.nan for y in each.curve.ys]
            xs, ys = thinned(each.curve.xs, ys, 400)
            named: dict[str, Any] = {} if label in labels else {"label": label}
            labels.add(label)
            axis.plot(xs, ys, color=colour, linewidth=2.2 if each is best else 1.0,
                      alpha=1.0 if each is best else 0.6, **named)  # fmt: skip
        cut = [each.curve for each in found.curves if each.step.ending == "pruned"]
        stopped = [(each.xs[-1], known.inside(each.ys[-1]) / known.size) for each in cut if math.isfinite(each.ys[-1])]
        if stopped:
            axis.plot([x for x, _ in stopped], [y for _, y in stopped], "x", color=COLOURS[4], markersize=5,
                      markeredgewidth=1.6, label="stopped here")  # fmt: skip
        _draw_to_scale(axis, known)
        axis.set_xlabel("step")
        axis.set_ylabel(axis_name(metric, known.unit))
        axis.xaxis.set_major_locator(whole_numbers())
        figure.legend(loc="outside lower left", ncols=5)

    note = ""
    if len(found.curves) < found.of:
        note = f"{len(found.curves)} of {found.of} trials: the best and an even choice of the others."
    return Picture(
        "trial-curves", f"{title(metric)} over the steps of each trial", draw, 3.5, (note + known.note).strip()
    )


def importance(found: Importance) -> Picture:
    """Draw how much each parameter matters."""
    shares = found.shares[:_MOST_NAMED]

    def draw(figure: Figure) -> None:

        axis = figure.subplots()
        places = list(range(len(shares)))
        axis.barh(places, [each.share * 100 for each in shares], color=COLOURS[0], height=0.62, alpha=0.9)
        for at, each in enumerate(shares):
            if each.spread is not None:
                low = min(each.share, each.spread) * 100
                axis.errorbar(
                    each.share * 100, at, xerr=[[low], [each.spread * 100]], color=INK, capsize=3, linewidth=1.0
                )
        axis.set_yticks(places, [short_label(each.name) for each in shares])
        axis.set_ylim(len(shares) - 0.4, -0.6)
        axis.set_xlim(left=0)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("share of what the parameters do (%)")

    note = f"By {found.method}." + more_note(len(found.shares) - len(shares))
    return Picture("importance", f"Importance for {title(found.metric)}", draw, 0.85 + 0.3 * len(shares), note)


def pareto(found: Front, units: Sequence[str]) -> Picture:
    """Draw the first two goals against each other: the front, and the points that it beats."""
    (one, better_x), (other, better_y) = found.goals[:2]
    front, beaten = ([found.values(point)[:2] for point in each] for each in (found.points, found.beaten))
    everything = front + beaten
    xs, ys = (
        _scale_of([pair[at] for pair in everything], unit, better, kept=[pair[at] for pair in front])
        for at, unit, better in ((0, units[0], better_x), (1, units[1], better_y))
    )

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        shown = _spread(beaten, _MOST_DOTS)
        if shown:
            axis.plot([xs.inside(x) / xs.size for x, _ in shown], [ys.inside(y) / ys.size for _, y in shown], "o",
                      color=COLOURS[6], markersize=4, alpha=0.6, label=f"beaten ({len(beaten)})")  # fmt: skip
        edge = sorted((x / xs.size, y / ys.size) for x, y in front)
        axis.plot([x for x, _ in edge], [y for _, y in edge], color=COLOURS[1], marker="D", markersize=5.5,
                  drawstyle="steps-post" if better_x == "lower" else "steps-pre", linewidth=1.2,
                  label=f"front ({len(front)})")  # fmt: skip
        _draw_to_scale(axis, ys)
        if xs.log:
            logarithmic(axis, "x")
        axis.set_xlabel(f"{axis_name(one, xs.unit)}, {_ARROWS[better_x]}")
        axis.set_ylabel(f"{axis_name(other, ys.unit)}, {_ARROWS[better_y]}")
        figure.legend(loc="outside lower left", ncols=2)

    note = "On the front no goal gets better without another getting worse."
    note += " Only the first two of the goals are drawn." if len(found.goals) > 2 else ""
    return Picture("pareto", f"{title(one)} against {title(other)}", draw, 3.5, note + xs.note)


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
            (self._lifted(at / (count - 1) if count > 1 else 0.5), _cut(value_text(value)))
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


def _draw_cell(axis: Axes, found: HeatMap, row: int, column: int, shades: _Scale) -> None:
    from matplotlib.patches import Rectangle

    value, count, ended = found.means[row][column], found.counts[row][column], found.endings[row][column]
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
    several = any(each > 1 for line in found.counts for each in line)
    number = short_number(value / shades.size)
    axis.text(column, row + (0.14 if several else 0), number, ha="center", va="center", fontsize=8, color=ink)
    if several:
        axis.text(column, row - 0.24, f"{count} run{'s' if count > 1 else ''}", ha="center", va="center",
                  fontsize=6.5, color=ink)  # fmt: skip


def _draw_bar(bar: Axes, shades: _Scale, metric: str) -> None:
    """Draw what the colours mean; the best is on top."""
    from matplotlib.patches import Rectangle

    count = len(SHADES)
    for at, colour in enumerate(SHADES):
        bar.add_patch(Rectangle((0, count - 1 - at), 1, 1, facecolor=colour, edgecolor="none"))
    bar.set_xlim(0, 1)
    bar.set_ylim(0, count)
    bar.set_xticks([])
    bar.set_yticks(
        [_turned(shades, tick / 2) * count for tick in range(3)], [shades.text(tick / 2) for tick in range(3)]
    )
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.set_ylabel(axis_name(metric, shades.unit))
    bar.grid(False)
    bar.tick_params(length=0)
    _bare(bar)


def _draw_coordinate(axis: Axes, at: int, ticks: Sequence[tuple[float, str]]) -> None:
    axis.plot([at, at], [0, 1], color=MUTED, linewidth=0.9)
    for y, text in ticks:
        axis.plot([at - 0.012, at + 0.012], [y, y], color=MUTED, linewidth=0.9)
        axis.text(at + 0.025, y, text, fontsize=7.5, va="center", color=INK, zorder=5,
                  bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.6})  # fmt: skip


def _draw_effect(panel: Axes, found: AxisEffect, sweep: Sweep, known: _Scale, columns: int) -> None:
    is_number = found.axis.numbers is not None and (found.axis.is_wide or len(found.axis.values) > 6)
    points = []
    for run, value in _spread(sweep.values, _MOST_DOTS):
        number, level = found.axis.number(run), found.levels.of(run)
        if number is not None and level is not None:
            points.append((number if is_number else float(level), known.inside(value) / known.size))
    panel.plot([x for x, _ in points], [y for _, y in points], "o", color=COLOURS[6], markersize=3, alpha=0.45,
               markeredgewidth=0)  # fmt: skip
    centres = found.levels.centres if is_number else tuple(map(float, range(len(found.levels))))
    means = [(x, each) for x, each in zip(centres, found.estimates, strict=True) if each.count]
    ys = [known.inside(each.mean) / known.size for _, each in means]
    # So few values say next to nothing about the interval of their mean.
    ends = [each.ends if each.count > 3 and each.ends else (math.nan, math.nan) for _, each in means]
    below = [(each.mean - low) / known.size for (_, each), (low, _) in zip(means, ends, strict=True)]
    above = [(high - each.mean) / known.size for (_, each), (_, high) in zip(means, ends, strict=True)]
    panel.errorbar([x for x, _ in means], ys, yerr=[below, above], color=COLOURS[0], marker="o", markersize=4,
                   capsize=3, linewidth=1.6, elinewidth=1.1)  # fmt: skip
    _draw_to_scale(panel, known)
    if is_number:
        if found.axis.log:
            logarithmic(panel, "x")
        return
    panel.grid(False, axis="x")
    panel.set_xlim(-0.5, len(found.levels) - 0.5)
    _name_levels(panel, found.levels, len(found.levels), columns)


def _draw_to_scale(axis: Axes, known: _Scale) -> None:
    if known.log:
        logarithmic(axis, "y")
        reach = (known.high / known.low) ** 0.06
        axis.set_ylim(known.low / reach / known.size, known.high * reach / known.size)
    else:
        margin = (known.high - known.low) * 0.06 or abs(known.high) * 0.06 or 0.5
        axis.set_ylim((known.low - margin) / known.size, (known.high + margin) / known.size)


def _name_levels(axis: Axes, found: Levels, count: int, columns: int = 1) -> None:
    axis.set_xticks(range(count), [_cut(label) for label in found.labels])
    if _is_crowded(found, columns):
        for label in axis.get_xticklabels():
            label.set_rotation(30)
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")


def _is_crowded(found: Levels, columns: int) -> bool:
    """Tell whether the names of levels do not fit side by side below a panel."""
    return sum(len(_cut(label)) + 2 for label in found.labels) > (84 if columns == 1 else 76 / columns)


def _scale_of(values: Sequence[float], unit: str, better: Better, *, kept: Sequence[float] = ()) -> _Scale:
    """Return the scale that shows most values well: those far outside are drawn at its ends, the best never."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    log = is_log(ordered) and low > 0 and high / low >= 100
    if not log and len(ordered) >= 8:
        first, third = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        reach = _FAR * (third - first)
        if reach > 0:
            low = low if better == "lower" else max(low, first - reach)
            high = high if better == "higher" else min(high, third + reach)
            low, high = min([low, *kept]), max([high, *kept])
    beyond = sum(not low <= value <= high for value in ordered)
    size, word = scale(max(abs(low), abs(high)), unit)
    return _Scale(low, high, log, size, word, better, beyond)


def _good(shades: _Scale, value: float) -> float:
    return _turned(shades, shades.fraction(value))


def _turned(shades: _Scale, fraction: float) -> float:
    """Return a place counted from the worse end, so that up is better."""
    return 1 - fraction if shades.better == "lower" else fraction


def _turned_value(value: float | None, better: Better) -> float:
    if value is None:
        return math.inf
    return -value if better == "higher" else value


def _worst(known: _Scale) -> float:
    return known.low if known.better == "higher" else known.high


def _spread(found: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many: the first half of them, and an even choice of the others."""
    if len(found) <= most:
        return list(found)
    first, rest = list(found[: most // 2]), found[most // 2 :]
    room = most - len(first)
    return first + [rest[at * len(rest) // room] for at in range(room)]


def _bare(axis: Axes) -> None:
    for side in ("left", "bottom", "top", "right"):
        axis.spines[side].set_visible(False)


def _cut(text: str, most: int = _ROOM) -> str:
    text = short_label(text)
    return text if len(text) <= most else text[: most - 1] + "…"
