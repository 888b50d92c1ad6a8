"""Figures of tuning studies, as users of Optuna know them; drawn as all others are: see `figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import NotFound
from fairmile.reports.curves import thinned
from fairmile.reports.figures import (
    COLOURS,
    INK,
    PAPER,
    SHADES,
    Picture,
    axis_name,
    file_word,
    legend_below,
    logarithmic,
    more_note,
    short_label,
    whole_numbers,
    width_share,
)
from fairmile.reports.measures import ending, title
from fairmile.reports.readings import name_points
from fairmile.reports.scales import (
    DIRECTIONS,
    MOST_DOTS,
    Scale,
    cost,
    cut_label,
    draw_bar,
    draw_to_scale,
    even_choice,
    scale_of,
    worst,
)
from fairmile.reports.study import Front, Importance, Step, TrialCurves
from fairmile.reports.sweep import Axis, Sweep
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour for each meaning, in all figures of a study.
_DONE, _PRUNED, _BEST, _FAILED, _BEATEN = COLOURS[0], COLOURS[4], COLOURS[2], COLOURS[1], COLOURS[6]
_MOST_PANELS = 9
_MOST_NAMED = 12
_FEWEST_FOR_CONTOURS = 8
_MARKS = {"done": ("o", _DONE), "pruned": ("v", _PRUNED)}


def history(steps: Sequence[Step], metric: str, unit: str, better: Better) -> Picture:
    """Draw the value of each trial, how it ended, and the best so far."""
    values = [step.value for step in steps if step.value is not None]
    if not values:
        raise NotFound(f"no trial has a value of {metric!r}")
    known = scale_of(values, unit, better)
    shown = dict(enumerate(steps))
    kept = {at: step for at, step in shown.items() if step.value is not None}
    dots = kept if len(kept) <= MOST_DOTS else {at: kept[at] for at in even_choice(list(kept), MOST_DOTS)}
    lost = [at for at, step in shown.items() if step.value is None and step.ending not in ("running", "queued")]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for ends in ("done", "pruned"):
            places = [at for at, step in dots.items() if step.ending == ends]
            ys = [known.inside(dots[at].value or 0.0) / known.size for at in places]
            _draw_trials(axis, places, ys, ends, [f"trial {dots[at].number}, {ends}" for at in places])
        others = [at for at, step in dots.items() if step.ending not in ("done", "pruned")]
        failed = [*((at, known.inside(dots[at].value or 0.0)) for at in others), *((at, worst(known)) for at in lost)]
        if failed:
            axis.plot([at for at, _ in failed], [y / known.size for _, y in failed], "x", color=_FAILED,
                      markersize=5, label="failed or not finished", clip_on=False)  # fmt: skip
        best = [(at, step.best) for at, step in enumerate(steps) if step.best is not None]
        if best:
            ys = [known.inside(value) / known.size for _, value in best]
            axis.plot([at for at, _ in best], ys, color=_BEST, drawstyle="steps-post", label="best so far")
        draw_to_scale(axis, known)
        axis.set_xlabel("trial")
        axis.set_ylabel(axis_name(metric, known.unit))
        axis.xaxis.set_major_locator(whole_numbers())
        legend_below(figure)

    note = "Each mark is the best value of a trial over its steps; the line is the best of all trials so far."
    note += f" {DIRECTIONS[better].capitalize()}." if better in DIRECTIONS else ""
    if lost:
        note += f" {len(lost)} without a value {'stands' if len(lost) == 1 else 'stand'} at the edge."
    return Picture("history", f"Best {title(metric)} of each trial", draw, 3.3, note + known.note)


def trial_curves(trials: TrialCurves, metric: str, unit: str, better: Better) -> Picture:
    """Draw the curves of trials; a cross is where one was stopped."""
    if not trials.curves:
        raise NotFound(f"no trial logged {metric!r} more than once")
    known = scale_of([y for each in trials.curves for y in each.curve.ys if math.isfinite(y)] or [0.0], unit, better)
    ended = [each for each in trials.curves if each.step.ending in _MARKS]
    best = min(ended, key=lambda each: cost(each.step.value, better), default=None)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        labels: set[str] = set()
        for each in sorted(trials.curves, key=lambda each: (each is best, each.step.ending == "done")):
            _, colour = _MARKS.get(each.step.ending, ("x", _FAILED))
            label = each.step.ending if each.step.ending in _MARKS else "failed or not finished"
            if each is best:
                colour, label = _BEST, f"best: trial {each.step.number}"
            ys = [known.inside(y) / known.size if math.isfinite(y) else math.nan for y in each.curve.ys]
            xs, ys = thinned(each.curve.xs, ys, 400)
            named: dict[str, Any] = {} if label in labels else {"label": label}
            labels.add(label)
            lines = axis.plot(xs, ys, color=colour, linewidth=2.2 if each is best else 1.0,
                              alpha=1.0 if each is best else 0.6, **named)  # fmt: skip
            name_points(lines[0], [f"trial {each.step.number}"] * len(xs))
        cut = [each.curve for each in trials.curves if each.step.ending == "pruned"]
        stopped = [(each.xs[-1], known.inside(each.ys[-1]) / known.size) for each in cut if math.isfinite(each.ys[-1])]
        if stopped:
            axis.plot([x for x, _ in stopped], [y for _, y in stopped], "x", color=INK, markersize=4.5,
                      markeredgewidth=1.2, label="stopped here")  # fmt: skip
        draw_to_scale(axis, known)
        axis.set_xlabel("step")
        axis.set_ylabel(axis_name(metric, known.unit))
        axis.xaxis.set_major_locator(whole_numbers())
        legend_below(figure)

    note = "One line for each trial; a cross is where a trial was stopped."
    if len(trials.curves) < trials.of:
        note += f" {len(trials.curves)} of {trials.of} trials: the best and an even choice of the others."
    return Picture("trial-curves", f"{title(metric)} over the steps of each trial", draw, 3.5, note + known.note)


def slices(sweep: Sweep) -> Picture:
    """Draw the value of each trial over each parameter, those that were pruned as well."""
    shown = [axis for axis in sweep.axes if len(axis.values) > 1][:_MOST_PANELS]
    if not shown or not sweep.values:
        raise NotFound(f"no parameter varies over trials with {sweep.metric!r}")
    known = scale_of([value for _, value in sweep.values], sweep.unit, sweep.better)
    best = min(sweep.values, key=lambda each: cost(each[1], sweep.better))
    columns = 2 if len(shown) in (2, 4) else min(3, len(shown))
    lines = math.ceil(len(shown) / columns)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
        for panel in panels[len(shown) :]:
            panel.set_visible(False)
        for at, (panel, axis) in enumerate(zip(panels, shown, strict=False)):
            _draw_slice(panel, axis, even_choice(sweep.values, MOST_DOTS), known)
            _draw_best(panel, axis.number(best[0]), known.inside(best[1]) / known.size, best[0])
            draw_to_scale(panel, known)
            panel.set_xlabel(short_label(axis.name))
            if at % columns == 0:
                panel.set_ylabel(axis_name(sweep.metric, known.unit))
        legend_below(figure)

    note = "One mark for each trial; the star is the best one." + more_note(len(sweep.axes) - len(shown)) + known.note
    name = f"slices-{file_word(sweep.metric)}"
    return Picture(name, f"{title(sweep.metric)} over each parameter", draw, 2.3 * lines + 0.4, note)


def contours(sweep: Sweep, x: str, y: str) -> Picture:
    """Draw the value over two numeric parameters, interpolated between trials, with the trials on top."""
    across, up = sweep.axis(x), sweep.axis(y)
    placed = [
        (a, b, run, value)
        for run, value in sweep.values
        if (a := across.number(run)) is not None and (b := up.number(run)) is not None
    ]
    if across.numbers is None or up.numbers is None or len(placed) < _FEWEST_FOR_CONTOURS:
        raise NotFound(f"too few trials with {x} and {y} as numbers")
    known = scale_of([value for *_, value in placed], sweep.unit, sweep.better)
    best = min(placed, key=lambda each: cost(each[3], sweep.better))

    def draw(figure: Figure) -> None:
        panel, bar = figure.subplots(1, 2, width_ratios=[26, 1])
        _draw_surface(panel, placed, (across, up), known)
        for ends in ("done", "pruned"):
            some = [each for each in placed if ending(each[2]) == ends]
            names = [f"{_trial(run)}, {title(sweep.metric)} {value:.4g}" for *_, run, value in some]
            marks = _draw_trials(panel, [a for a, *_ in some], [b for _, b, *_ in some], ends, names)
            for each in marks:
                colours = (INK, PAPER) if ends == "done" else (PAPER, INK)
                each.set(markerfacecolor=colours[0], markeredgecolor=colours[1], markersize=5, alpha=1.0)
        _draw_best(panel, best[0], best[1], best[2])
        for side, axis in (("x", across), ("y", up)):
            if axis.log:
                logarithmic(panel, side)  # type: ignore[arg-type]
        panel.set_xlabel(short_label(x))
        panel.set_ylabel(short_label(y))
        panel.grid(False)
        panel.use_sticky_edges = False
        panel.margins(0.04)
        draw_bar(bar, known, sweep.metric)
        legend_below(figure)

    note = "Colours between the trials are interpolated; the star is the best trial." + known.note
    name = f"contours-{file_word(sweep.metric)}-{file_word(x)}-{file_word(y)}"
    return Picture(name, f"{title(sweep.metric)} over {x} and {y}", draw, 3.6, note)


def importance(importances: Importance) -> Picture:
    """Draw how much each parameter matters."""
    shares = importances.shares[:_MOST_NAMED]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        places = list(range(len(shares)))
        axis.barh(places, [each.share * 100 for each in shares], color=_DONE, height=0.62, alpha=0.9)
        for at, each in enumerate(shares):
            if each.spread is None:
                axis.annotate(
                    f"{each.share:.0%}", (each.share * 100, at), (4, 0), textcoords="offset points", va="center"
                )
            else:
                low, high = min(each.share, each.spread) * 100, min(1 - each.share, each.spread) * 100
                axis.errorbar(each.share * 100, at, xerr=[[low], [high]], color=INK, capsize=3, linewidth=1.0)
        axis.set_yticks(places, [short_label(each.name) for each in shares])
        axis.set_ylim(len(shares) - 0.4, -0.6)
        axis.set_xlim(left=0)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("importance (% of the effect of all parameters)")

    note = "The longer the bar, the more the parameter changes the result."
    note += " Whiskers show how far estimates differ." if any(each.spread for each in shares) else ""
    if any(each.share == 0 and each.spread is None for each in shares):
        note += " 0 %: no effect beyond chance."
    note += more_note(len(importances.shares) - len(shares))
    return Picture("importance", f"Importance for {title(importances.metric)}", draw, 0.85 + 0.3 * len(shares), note)


def pareto(pareto_front: Front, units: Sequence[str]) -> Picture:
    """Draw the first two goals against each other: the front, and the points that it beats."""
    (one, better_x), (other, better_y) = pareto_front.goals[:2]
    front, beaten = (
        [pareto_front.values(point)[:2] for point in each] for each in (pareto_front.points, pareto_front.beaten)
    )
    everything = front + beaten
    xs, ys = (
        scale_of([pair[at] for pair in everything], unit, better, kept=[pair[at] for pair in front])
        for at, unit, better in ((0, units[0], better_x), (1, units[1], better_y))
    )

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        shown = even_choice(beaten, MOST_DOTS)
        if shown:
            axis.plot([xs.inside(x) / xs.size for x, _ in shown], [ys.inside(y) / ys.size for _, y in shown], "o",
                      color=_BEATEN, markersize=4, alpha=0.6, label=f"beaten ({len(beaten)})")  # fmt: skip
        edge = sorted((x / xs.size, y / ys.size) for x, y in front)
        axis.plot([x for x, _ in edge], [y for _, y in edge], color=_BEST, marker="D", markersize=5.5,
                  drawstyle="steps-post" if better_x == "lower" else "steps-pre", linewidth=1.2,
                  label=f"front ({len(front)})")  # fmt: skip
        draw_to_scale(axis, ys)
        if xs.log:
            logarithmic(axis, "x")
        axis.set_xlabel(f"{axis_name(one, xs.unit)}, {DIRECTIONS[better_x]}")
        between = ",\n" if width_share(figure) < 0.7 else ", "
        axis.set_ylabel(f"{axis_name(other, ys.unit)}{between}{DIRECTIONS[better_y]}")
        legend_below(figure)

    note = "On the front no goal gets better without another getting worse."
    note += " Only the first two of the goals are drawn." if len(pareto_front.goals) > 2 else ""
    return Picture("pareto", f"{title(one)} against {title(other)}", draw, 3.5, note + xs.note)


def _draw_trials(axis: Axes, xs: Sequence[float], ys: Sequence[float], ends: str, names: Sequence[str]) -> list[Any]:
    """Draw trials that ended alike, and return the marks."""
    if not xs:
        return []
    mark, colour = _MARKS[ends]
    lines = axis.plot(xs, ys, mark, color=colour, markersize=4, alpha=0.75, label=ends)
    name_points(lines[0], names)
    return list(lines)


def _draw_best(axis: Axes, x: float | None, y: float, run: Run) -> None:
    if x is not None:
        lines = axis.plot([x], [y], "*", color=_BEST, markeredgecolor=PAPER, markersize=12, label="best", zorder=6)
        name_points(lines[0], [f"{_trial(run)}, the best"])


def _draw_slice(panel: Axes, axis: Axis, values: Sequence[tuple[Run, float]], known: Scale) -> None:
    for ends in ("done", "pruned"):
        some = [
            (x, known.inside(value) / known.size, run)
            for run, value in values
            if ending(run) == ends and (x := axis.number(run)) is not None
        ]
        _draw_trials(panel, [x for x, *_ in some], [y for _, y, _ in some], ends, [_trial(run) for *_, run in some])
    if axis.numbers is None:
        panel.set_xticks(range(len(axis.values)), [cut_label(str(each)) for each in axis.values])
        panel.set_xlim(-0.5, len(axis.values) - 0.5)
    elif axis.log:
        logarithmic(panel, "x")


def _draw_surface(
    panel: Axes, placed: Sequence[tuple[float, float, Run, float]], axes: tuple[Axis, Axis], known: Scale
) -> None:
    """Fill between trials by triangles; where all lie on one line nothing can be filled."""
    from matplotlib.tri import Triangulation

    if known.high <= known.low:
        return
    points = {(a, b): value for a, b, _, value in placed}
    xs, ys = [a for a, _ in points], [b for _, b in points]
    try:  # neighbours are found on the scales of the axes, each from 0 to 1
        neighbours = Triangulation(_fractions(xs, axes[0].log), _fractions(ys, axes[1].log)).triangles
    except (RuntimeError, ValueError):
        return
    values = [known.inside(value) for value in points.values()]
    ends = [known.at(step / len(SHADES)) for step in range(len(SHADES) + 1)]
    colours = SHADES[::-1] if known.better == "higher" else SHADES
    panel.tricontourf(Triangulation(xs, ys, neighbours), values, levels=ends, colors=list(colours), extend="both")


def _fractions(numbers: Sequence[float], is_log: bool) -> list[float]:
    known = [math.log(each) for each in numbers] if is_log else list(numbers)
    low, span = min(known), max(known) - min(known)
    return [(each - low) / span if span else 0.0 for each in known]


def _trial(run: Run) -> str:
    return f"trial {run.trial.number}" if run.trial is not None else run.id
