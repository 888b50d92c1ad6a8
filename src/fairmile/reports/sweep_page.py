"""A sweep or a tuning study as the parts of a report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_number, format_value
from fairmile.reports import study_figures, sweep_figures
from fairmile.reports.blocks import Block, Cell, Heading, Note, Row, Text, Tile, Tiles, table
from fairmile.reports.comparison import Comparison
from fairmile.reports.differences import inner_differences
from fairmile.reports.figures import Picture
from fairmile.reports.measures import counts, ending, estimate_text, measures, percent, title
from fairmile.reports.one_run import drawn
from fairmile.reports.study import (
    Front,
    Importance,
    Spent,
    Step,
    front,
    goals_of,
    history,
    importance,
    spent,
    study_document,
    total,
    trial_curves,
)
from fairmile.reports.sweep import (
    ABSENT,
    Axis,
    Best,
    Goal,
    Point,
    Sweep,
    axes,
    effects,
    heat_map,
    judge_points,
    metric_names,
    survey,
)
from fairmile.runs.record.run import Run
from fairmile.runs.record.trial import is_trial, step_of_best

MOST_POINTS = 500
_MOST_MAPS = 3
_OF_JOBS = ("variable SLURM_", "variable PBS_", "variable LSB_", "variable FLUX_")
_MOST_REASONS = 4
_MOST_VALUES = 8
_OPEN = ("queued", "running")
_BEST, _ON_FRONT = "★ best", "★ front"


@dataclass(frozen=True)
class SweepReport:
    """The parts of a report of a sweep, and what they say as plain data."""

    sweep: Sweep
    best: Best | None
    comparison: Comparison | None  # of few points, each with the first
    blocks: tuple[Block, ...]
    points: tuple[Block, ...]  # the table of all of them, which may be long
    data: Mapping[str, Any]


def is_sweep(runs: Sequence[Run]) -> bool:
    """Tell whether runs belong to one group and differ in parameters, or are the trials of one study."""
    groups = {run.group for run in runs}
    return len(runs) > 1 and len(groups) == 1 and "" not in groups and (any(map(is_trial, runs)) or bool(axes(runs)))


def sweep_blocks(
    runs: Sequence[Run],
    *,
    metric: str | None = None,
    objectives: Sequence[Goal] = (),
    notes: Sequence[str] = (),
    hindsight: Sequence[Mapping[str, object]] = (),
    over: Sequence[str] = (),
    log: Collection[str] = (),
    compared: Sequence[str] | None = None,
    most_points: int = MOST_POINTS,
) -> SweepReport:
    """Report runs that vary over parameters: all that their records tell, and for trials the way of the study.

    `objectives` are metrics with their direction (else what the trials name, else the metric); `notes` come first;
    `hindsight` are rows of a table about early stopping, as whoever knows the study gives them; `over` are two
    parameters for the heat map; `log` are parameters with a logarithmic scale; `compared` are the metrics in which
    few points are compared (else all); the table of points has at most `most_points` rows.
    """
    goals = list(objectives) or goals_of(runs)
    name = metric or (goals[0][0] if goals else None)
    known = survey(runs, name, better=dict(goals).get(name or "", ""), log=log)
    runs, trials = known.runs, any(map(is_trial, runs))
    best, comparison = judge_points(known, compared)
    steps = history(runs, known.metric, better=known.better) if trials and known.metric else []
    weights = importance(known) if trials and known.metric else None
    edge = _front(known, goals)
    blocks: list[Block] = [_tiles(known, best, edge), *(Note(note, "dim") for note in notes), *_troubles(known)]
    blocks += _fronts(known, edge)
    if trials:
        blocks += [Text(_best_trial(best, runs))] if best and edge is None else []
        blocks += _study(known, steps, weights, over, len(goals))
    else:
        blocks += [Text(best.text)] if best and edge is None else []
        blocks += _influence(known, over)
    blocks += _hindsight(hindsight)
    blocks += _budget(runs) if trials else ()
    data: dict[str, Any] = {"sweep": known.document() | {"best": best and _best_document(best)}}
    if trials:
        data["study"] = study_document(steps, weights, edge, runs)
    points = tuple(_all_points(known, goals, best, edge, most_points))
    return SweepReport(known, best, comparison, tuple(blocks), points, data)


def _front(sweep: Sweep, goals: Sequence[Goal]) -> Front | None:
    if len(goals) < 2 or not sweep.values:
        return None
    return front(sweep, goals)


def _best_document(best: Best) -> dict[str, Any]:
    return {
        "what": best.first.label,
        "value": best.first.estimate.mean,
        "runs": list(best.first.runs),
        "level": [{"what": each.label, "runs": list(each.runs)} for each in best.level],
        "noise_known": best.noise_known,
    }


def _number(sweep: Sweep) -> int:
    """Return how many points there are, or trials: two with the same values are two."""
    return len(sweep.runs) if any(map(is_trial, sweep.runs)) else len(sweep.points)


def _tiles(sweep: Sweep, best: Best | None, edge: Front | None) -> Tiles:
    tiles = []
    if edge:
        tiles += [_goal_tile(sweep, edge, at) for at in range(len(edge.goals))]
    elif best:
        mean = format_number(best.first.estimate.mean, best.board.unit)
        run = next(run for run in sweep.runs if run.id == best.first.runs[0])
        tiles.append(Tile(f"best {title(sweep.metric)}", mean, _place(run) + best.names[run.id]))
    ends = Counter(map(ending, sweep.runs))
    what = "trials" if any(map(is_trial, sweep.runs)) else "points"
    number = _number(sweep)
    repeats = f"{len(sweep.runs):,} runs, " if len(sweep.runs) != number else ""
    endings = ", ".join(f"{count:,} {name}" for name, count in ends.items())
    tiles.append(Tile(what, f"{number:,}", repeats + endings))
    names = ", ".join(axis.name for axis in sweep.axes)
    tiles.append(Tile("parameters varied", str(len(sweep.axes)), names if len(names) <= 60 else names[:59] + "…"))
    whole = total(spent(sweep.runs))
    tiles.append(
        Tile(
            "total time",
            format_number(whole.elapsed_s, "s"),
            f"{format_number(whole.node_h, digits=3)} node-hours",
        )
    )
    if whole.metered:
        share = f"measured for {whole.metered:,} of {whole.trials:,}" if whole.metered < whole.trials else ""
        tiles.append(Tile("total energy", format_number(whole.energy_j, "J"), share))
    return Tiles(tuple(tiles))


def _goal_tile(sweep: Sweep, edge: Front, at: int) -> Tile:
    """Return the best value of one of several goals, and the point on the front that has it."""
    name, better = edge.goals[at]
    point = (max if better == "higher" else min)(edge.points, key=lambda each: edge.values(each)[at])
    value = format_number(edge.values(point)[at], _unit(sweep, name))
    label = f"trial {point.runs[0].trial.number}: {point.label}" if point.runs[0].trial else point.label
    return Tile(f"best {title(name)}", value, label)


def _unit(sweep: Sweep, metric: str) -> str:
    return next((each.unit for run in sweep.runs if (each := measures(run).get(metric))), "")


def _place(run: Run) -> str:
    """Return which trial a run is, and at which step it had its value; nothing of a run that is no trial."""
    if run.trial is None:
        return ""
    step = step_of_best(run)
    return f"trial {run.trial.number}" + (f", step {step:g}" if step is not None else "") + ": "


def _best_trial(best: Best, runs: Sequence[Run]) -> str:
    """Return the best value of a study with the trial and the step that had it."""
    run = next(run for run in runs if run.id == best.first.runs[0])
    value = estimate_text(best.first.estimate, best.board.unit)
    ended = " This trial was pruned." if ending(run) == "pruned" else ""
    return f"Best {title(best.board.metric)}: {value} ({_place(run)}{best.names[run.id]}).{ended}"


def _troubles(sweep: Sweep) -> Iterator[Block]:
    """Say what a reader of the numbers must know: what failed, what is still open, what else differed."""
    failed = [run for run in sweep.runs if ending(run) not in ("done", "pruned", *_OPEN)]
    if failed:
        reasons = Counter(run.reason or ending(run) for run in failed)
        causes = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(_MOST_REASONS))
        more = f"; and {len(reasons) - _MOST_REASONS} other reasons" if len(reasons) > _MOST_REASONS else ""
        yield Note(f"{len(failed):,} of {len(sweep.runs):,} runs failed: {causes}{more}.", "bad")
    unfinished = sum(ending(run) in _OPEN for run in sweep.runs)
    if unfinished:
        yield Note(f"{unfinished:,} of {len(sweep.runs):,} runs have not ended: all results are preliminary.")
    if sweep.metric and not sweep.better:
        yield Note(f"The better direction of {sweep.metric} is unknown, so no point is the best.")
    if not sweep.metric and any(map(counts, sweep.runs)):
        yield Note("No metric has a known direction, so nothing is ranked: name one with --metric.")
    own = [fact for fact in inner_differences(sweep.runs) if not fact.startswith(("param ", "scheduler "))]
    # Which task of which job a run was says nothing of its result.
    own = [fact for fact in own if fact not in ("command", "host") and not fact.startswith(_OF_JOBS)]
    if own:
        more = f" and {len(own) - _MOST_VALUES} more" if len(own) > _MOST_VALUES else ""
        yield Note(f"These runs differ not only in parameters: {', '.join(own[:_MOST_VALUES])}{more}.")


def _all_points(
    sweep: Sweep, goals: Sequence[Goal], best: Best | None, edge: Front | None, most: int
) -> Iterator[Block]:
    names = metric_names(sweep, goals)
    marks = {point.runs[0].id: _ON_FRONT for point in edge.points} if edge else _marks(best)
    units = {name: each.unit for run in sweep.runs if counts(run) for name, each in measures(run).items()}
    points, trials = _ordered(sweep, most), any(map(is_trial, sweep.runs))
    yield Heading("All trials" if trials else "All points")
    seeded = any(map(_seeds, sweep.points))
    columns = [
        *([""] if marks else []),
        *(["trial"] if trials else []),
        *([axis.name for axis in sweep.axes] or ["what"]),
        *(["seed"] if seeded else []),
    ]
    systems = len({point.system for point in sweep.points}) > 1
    several = any(len(point.runs) > 1 for point in sweep.points)
    ranged = {sweep.metric, *(name for name, _ in goals)}
    rows: list[Row] = []
    for point in points[:most]:
        mark = marks.get(point.runs[0].id, "")
        row: Row = [Cell(mark, tone="good" if mark in (_BEST, _ON_FRONT) else "dim")] if marks else []
        row += [_trial_number(point)] if trials else []
        row += [_param(axis, point) for axis in sweep.axes] or [point.label]
        row += [", ".join(_seeds(point))] if seeded else []
        row += [point.system] if systems else []
        # The range of every metric would make the table wider than a screen.
        row += [_value_cell(point, name, units.get(name, ""), several and name in ranged) for name in names]
        row += [Cell(str(len(point.runs)), len(point.runs))] if several else []
        rows.append([*row, _outcome(point), *([] if several else [point.runs[0].id])])
    columns += [*(["system"] if systems else []), *map(title, names), *(["runs"] if several else [])]
    numeric = [axis.name for axis in sweep.axes if axis.numbers is not None]
    yield table(
        unique_columns([*columns, "outcome", *([] if several else ["run"])]),
        rows,
        numbers=["trial", *numeric, *map(title, names), "runs"],
    )
    if best and best.board.noise is not None:
        level = " What they cannot tell from the best is marked ≈ best." if best.level else ""
        noise = format_number(best.board.noise, sweep.unit, digits=2)
        yield Text(f"Noise, from the repeats of all points together, is a standard deviation of {noise}.{level}")
    if len(points) > most:
        which = f"by {title(sweep.metric)}, the best first" if sweep.metric else "in their order"
        yield Text(f"{most} of {len(points):,} points, {which}; `--json` has them all.")


def unique_columns(columns: Sequence[str]) -> list[str]:
    """Return names of columns that differ: a parameter may be called as a metric is."""
    seen: Counter[str] = Counter()
    unique = []
    for name in columns:
        unique.append(f"{name} ({seen[name] + 1})" if seen[name] else name)
        seen[name] += 1
    return unique


def _ordered(sweep: Sweep, most: int) -> Sequence[Point]:
    """Return the points in the order of the sweep; trials, and points of which not all can be shown, the best first."""
    is_ranked = len(sweep.points) > most or any(map(is_trial, sweep.runs))
    if not is_ranked or not sweep.metric or not sweep.better:
        return sweep.points
    sign = -1 if sweep.better == "higher" else 1

    def key(point: Point) -> float:
        estimate = point.estimates.get(sweep.metric)
        return sign * estimate.mean if estimate and math.isfinite(estimate.mean) else math.inf

    return sorted(sweep.points, key=key)


def _marks(best: Best | None) -> dict[str, str]:
    """Return what is said of the best point and of those level with it, by the id of their first run."""
    if best is None:
        return {}
    level = "≈ best" if best.noise_known else "= best"
    marks = {run: level for each in best.level for run in each.runs}
    return marks | dict.fromkeys(best.first.runs, _BEST)


def _seeds(point: Point) -> list[str]:
    """Return the seeds of the runs of a point, each once."""
    known = [run.record.spec.seed for run in point.runs]
    return list(dict.fromkeys(str(seed) for seed in known if seed is not None))


def _trial_number(point: Point) -> Cell:
    trial = point.runs[0].trial
    number = trial.number if trial is not None else None
    return Cell("" if number is None else str(number), None if number is None else float(number))


def _param(axis: Axis, point: Point) -> Cell:
    value = point.params.get(axis.name, ABSENT)
    if value is ABSENT:
        return Cell("–", tone="dim")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(format_value(value), float(value) if is_number and math.isfinite(float(value)) else None)  # type: ignore[arg-type]


def _value_cell(point: Point, name: str, unit: str, several: bool) -> Cell:
    estimate = point.estimates.get(name)
    if estimate is None:  # how far one came that is no result
        last = measures(point.runs[-1]).get(name)
        return (
            Cell(format_number(last.value, last.unit), tone="dim") if last and math.isfinite(last.value) else Cell("")
        )
    if not estimate.count:
        return Cell("NaN", tone="warn")
    text = estimate_text(estimate, unit) if several else format_number(estimate.mean, unit)
    return Cell(text, estimate.mean, "warn" if estimate.not_finite else "")


def _outcome(point: Point) -> Cell:
    ends = dict(point.endings)
    text = next(iter(ends)) if len(ends) == 1 else ", ".join(f"{count} {name}" for name, count in ends.items())
    bad = [name for name in ends if name not in ("done", "pruned", *_OPEN)]
    if bad and point.reason:
        return Cell(f"{text}: {point.reason}", tone="bad")
    return Cell(text, tone="bad" if bad else "dim" if "done" in ends else "warn")


def _influence(sweep: Sweep, over: Sequence[str]) -> Iterator[Block]:
    """Show what the parameters do: over each alone, over pairs, and all together."""
    known_effects = effects(sweep) if sweep.metric else []
    if not known_effects:
        return
    yield Heading(f"Parameter effects on {title(sweep.metric)}")
    rows: list[Row] = []
    for each in known_effects:
        ranked = [
            (mean.mean, label) for mean, label in zip(each.estimates, each.levels.labels, strict=True) if mean.count
        ]
        ranked.sort(reverse=sweep.better == "higher")
        means = [Cell(f"{label} ({format_number(mean, sweep.unit)})" if sweep.better else "") for mean, label in
                 (ranked[0], ranked[-1])]  # fmt: skip
        share = Cell("" if each.share is None else percent(each.share, signed=False), each.share)
        rows.append([each.axis.name, _values(each.axis), *means, share])
    columns = ["parameter", "values", "best on average", "worst on average", "variance explained"]
    yield table(columns, rows, numbers=["variance explained"])
    yield Text(
        "Averages are over all other parameters. Variance explained is the share of the variance of "
        f"{title(sweep.metric)} that a parameter explains alone, corrected for chance and without interactions."
    )
    yield from drawn(lambda: sweep_figures.effect_panels(sweep))
    for x, y in _pairs(sweep, [each.axis.name for each in known_effects], over):
        yield from drawn(lambda x=x, y=y: sweep_figures.heat_map(heat_map(sweep, x, y)))  # type: ignore[misc]
    if len(sweep.axes) > 1:
        yield from drawn(lambda: sweep_figures.parallel_coordinates(sweep))


def _pairs(sweep: Sweep, ranked: Sequence[str], over: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of axes to draw: the one that was asked for, or those of the axes that do most."""
    if over:
        if len(over) != 2 or over[0] == over[1]:
            raise UsageError("a heat map needs two parameters", hint="write such as --over lr,depth")
        return [(sweep.axis(over[0]).name, sweep.axis(over[1]).name)]
    names = ranked[:3]
    return [(x, y) for at, y in enumerate(names) for x in names[at + 1 :]][:_MOST_MAPS]


def _values(axis: Axis) -> str:
    if axis.is_wide and axis.numbers:
        return f"{format_value(axis.values[0])} … {format_value(axis.values[-1])} ({len(axis.values)})"
    shown = ", ".join(map(format_value, axis.values[:_MOST_VALUES]))
    return shown + (f" … ({len(axis.values)})" if len(axis.values) > _MOST_VALUES else "")


def _study(
    sweep: Sweep, steps: Sequence[Step], weights: Importance | None, over: Sequence[str], goals: int
) -> Iterator[Block]:
    if not steps:
        return
    yield Heading("Progress of the study")
    records = [step for step in steps if step.is_best]
    if records:
        last = records[-1]
        after = len(steps) - 1 - steps.index(last)
        later = f"; {after} more followed without a better value" if after else " and the last"
        times = "once" if len(records) == 2 else f"{len(records) - 1} times"
        of = f" by {title(sweep.metric)}" if goals > 1 else ""
        yield Text(f"Trial {last.number} was the best{of}{later}. The best value improved {times}.")
    metric, unit, better = sweep.metric, sweep.unit, sweep.better
    yield from drawn(lambda: study_figures.history(steps, metric, unit, better))
    trials = trial_curves(steps, metric, better=better)
    yield from drawn(lambda: study_figures.trial_curves(trials, metric, unit, better))
    yield from _weighed(weights)
    yield Heading(f"Parameters and {title(metric)}")
    yield from drawn(lambda: study_figures.slices(sweep))
    ranked = [each.name for each in weights.shares] if weights else [axis.name for axis in sweep.axes]
    for x, y in _pairs(sweep, ranked, over):
        yield from drawn(lambda x=x, y=y: _surface(sweep, x, y))  # type: ignore[misc]
    if len(sweep.axes) > 1:
        yield from drawn(lambda: sweep_figures.parallel_coordinates(sweep))


def _surface(sweep: Sweep, x: str, y: str) -> Picture:
    """Return contours over two numbers, or a heat map where one of them is a choice."""
    both_numbers = sweep.axis(x).numbers is not None and sweep.axis(y).numbers is not None
    return study_figures.contours(sweep, x, y) if both_numbers else sweep_figures.heat_map(heat_map(sweep, x, y))


def _weighed(weights: Importance | None) -> Iterator[Block]:
    yield Heading("Importance of parameters")
    if weights is None:
        yield Text("Too few trials have a value to tell which parameters matter.")
        return
    has_spread = any(each.spread is not None for each in weights.shares)
    rows: list[Row] = [
        [each.name, Cell(percent(each.share, signed=False), each.share),
         *(["" if each.spread is None else f"± {percent(each.spread, signed=False)}"] if has_spread else [])]
        for each in weights.shares
    ]  # fmt: skip
    names = ["share", "spread"] if has_spread else ["share"]
    yield table(["parameter", *names], rows, numbers=names)
    explained = ""
    if weights.explained is not None:
        explained = (
            f" It explains {percent(weights.explained, signed=False)} of the variance of trials it had not seen."
        )
    yield Text(f"Method: {weights.method}, from {weights.runs:,} trials.{explained}")
    if weights.explained is not None and weights.explained < 0.2:
        yield Note("The model explains little, so this order may be chance.")
    yield from drawn(lambda: study_figures.importance(weights))


def _fronts(sweep: Sweep, edge: Front | None) -> Iterator[Block]:
    if edge is None:
        return
    units = [_unit(sweep, name) for name, _ in edge.goals]
    yield Heading("Pareto front")
    rows: list[Row] = []
    for point in edge.points:
        values = [
            Cell(format_number(value, unit), value) for value, unit in zip(edge.values(point), units, strict=True)
        ]
        rows.append([*values, *(_param(axis, point) for axis in sweep.axes), point.runs[0].id])
    goals = [f"{title(name)} {'↑' if better == 'higher' else '↓'}" for name, better in edge.goals]
    numeric = [axis.name for axis in sweep.axes if axis.numbers is not None]
    yield table(
        unique_columns([*goals, *(axis.name for axis in sweep.axes), "run"]),
        rows[:MOST_POINTS],
        numbers=[*goals, *numeric],
    )
    of = len(edge.points) + len(edge.beaten)
    yield Text(f"{len(edge.points)} of {of} points are on the front: no other point is as good in every objective.")
    yield from drawn(lambda: study_figures.pareto(edge, units))


def _hindsight(rows: Sequence[Mapping[str, object]]) -> Iterator[Block]:
    if not rows:
        return
    yield Heading("Early stopping in hindsight")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield table(columns, [[_plain(row.get(name, "")) for name in columns] for row in rows], numbers=columns[1:])
    yield Text("Which finished trials each method of extrapolation would have stopped.")


def _plain(value: object) -> Cell:
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, (int, float)):
        return Cell(format_number(float(value)), float(value) if math.isfinite(value) else None)
    return Cell("" if value is None else str(value))


def _budget(runs: Sequence[Run]) -> Iterator[Block]:
    yield Heading("Cost")
    parts = spent(runs)
    whole = total(parts)
    rows = [_cost(each, whole) for each in [*parts, *([whole] if len(parts) > 1 else [])]]
    columns = ["outcome", "trials", "time", "share of the time", "node-hours", "energy"]
    columns = columns if whole.metered else columns[:-1]
    yield table(columns, [row[: len(columns)] for row in rows], numbers=columns[1:])
    if 0 < whole.metered < whole.trials:
        yield Text(f"Energy was measured for {whole.metered:,} of {whole.trials:,} trials.")


def _cost(each: Spent, whole: Spent) -> Row:
    share = percent(each.elapsed_s / whole.elapsed_s, signed=False) if whole.elapsed_s else ""
    return [
        each.ending,
        Cell(f"{each.trials:,}", each.trials),
        Cell(format_number(each.elapsed_s, "s"), each.elapsed_s),
        share,
        Cell(format_number(each.node_h, digits=3), each.node_h),
        Cell(format_number(each.energy_j, "J") if each.metered else "", each.energy_j),
    ]
