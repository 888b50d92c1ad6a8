"""What runs that differ in their parameters tell: which vary, how each point did, which is best, what values do."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_value
from fairmile.base.words import did_you_mean
from fairmile.reports.comparison import SEED, Comparison, compare, group_runs, has_seeds_for_repeats, json_value
from fairmile.reports.figures import short_number
from fairmile.reports.inference import Estimate
from fairmile.reports.leaderboard import Entry, Leaderboard, leaderboard
from fairmile.reports.measures import (
    Measure,
    counts,
    ending,
    estimate_of,
    estimate_text,
    known_names,
    measures,
    results_only,
    title,
    unknown_metric,
)
from fairmile.reports.verdicts import Pair, Verdict
from fairmile.runs.record.run import Run
from fairmile.runs.record.trial import is_trial
from fairmile.runs.record.values import Better, Value

ABSENT = object()  # a conditional parameter that a run does not have
Goal = tuple[str, Better]  # a metric and the direction that is better; empty: what the runs say
_MOST_LEVELS = 12
_MOST_COMPARED = 6  # more points than this are ranked, not compared with the first
_FEWEST_RANGES, _MOST_RANGES = 3, 8
_COSTS = ("elapsed_s", "energy_j")
_GROWTH, _LOW = 100.0, 0.25  # numbers that span so much, half of them so low, are shown on a logarithmic scale

# Names such as val_loss, validation/accuracy, test-error.
_HELD_OUT = re.compile(r"(?:val|valid|validation|test|eval)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Axis:
    """A parameter that varies: its values, numbers in their order and others as they came."""

    name: str
    values: tuple[Value, ...]
    numbers: tuple[float, ...] | None  # the values as numbers, where all are
    log: bool = False
    absent: int = 0  # runs that do not have it

    @property
    def is_wide(self) -> bool:
        """Whether it has so many numbers that only ranges of them can be told apart."""
        return self.numbers is not None and len(self.values) > _MOST_LEVELS

    def number(self, run: Run) -> float | None:
        """Return the value of a run as a number, or its place among the values; None where it has none."""
        value = run.params.get(self.name, ABSENT)
        if value is ABSENT:
            return None
        if self.numbers is not None:
            return as_number(value)
        return next((float(at) for at, each in enumerate(self.values) if _same(each, value)), None)


@dataclass(frozen=True)
class Levels:
    """The values of an axis that are told apart: each by itself, or ranges of them where they are many."""

    axis: Axis
    labels: tuple[str, ...]
    centres: tuple[float, ...]
    of: Callable[[Run], int | None]
    left_out: int = 0  # values beyond those that are shown

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Point:
    """One combination of values with all its repeats; `estimates` has the metrics of those that count."""

    label: str
    params: Mapping[str, Value]
    system: str
    runs: tuple[Run, ...]
    estimates: Mapping[str, Estimate]
    endings: Mapping[str, int]
    reason: str = ""  # of the first that failed


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in their parameters, seen by one metric; `values` holds the runs that count and have it."""

    runs: tuple[Run, ...]
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    metric: str = ""
    unit: str = ""
    better: Better = ""
    values: tuple[tuple[Run, float], ...] = ()

    def axis(self, name: str) -> Axis:
        """Return the axis of that name; NotFound where that parameter does not vary."""
        match = next((axis for axis in self.axes if axis.name == name), None)
        if match is None:
            known = [axis.name for axis in self.axes]
            hint = did_you_mean(name, known) or f"these vary: {', '.join(known) or 'none'}"
            raise NotFound(f"no parameter {name!r} varies over these runs", hint=hint)
        return match

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        points = [
            {
                "params": dict(point.params),
                "runs": [run.id for run in point.runs],
                "endings": dict(point.endings),
                "reason": point.reason,
                "metrics": {name: asdict(each) for name, each in point.estimates.items()},
            }
            for point in self.points
        ]
        axes = {axis.name: list(axis.values) for axis in self.axes}
        document: dict[str, Any] = json_value(
            {"metric": self.metric, "better": self.better, "axes": axes, "points": points}
        )
        return document


@dataclass(frozen=True)
class Best:
    """The best point by a metric, and those within noise of it.

    `level` are the others with the same mean or within the noise of all repeats; `noise_known` says whether there are
    any. `names` tells what the values of each run are.
    """

    first: Entry
    level: tuple[Entry, ...]
    noise_known: bool
    board: Leaderboard
    names: Mapping[str, str]

    @property
    def text(self) -> str:
        """All of it in one sentence or two."""
        mean = estimate_text(self.first.estimate, self.board.unit)
        runs = f", {len(self.first.runs)} runs" if len(self.first.runs) > 1 else ""
        sentence = f"Best by {title(self.board.metric)}: {self._name(self.first)} with {mean}{runs}."
        if self.level:
            names = "; ".join(map(self._name, self.level[:3])) + ("; …" if len(self.level) > 3 else ".")
            how = "within noise" if self.noise_known else "exactly as good"
            others = "1 other is" if len(self.level) == 1 else f"{len(self.level)} others are"
            return f"{sentence} {others} {how}: {names}"
        return sentence if self.noise_known else f"{sentence} Noise is unknown without repeats."

    def _name(self, place: Entry) -> str:
        return self.names.get(place.runs[0]) or place.label


@dataclass(frozen=True)
class HeatMap:
    """The mean of a metric over two axes, over all values of the others; `means[y][x]` is None where nothing counts."""

    metric: str
    unit: str
    better: Better
    x: Levels
    y: Levels
    means: tuple[tuple[float | None, ...], ...]
    counts: tuple[tuple[int, ...], ...]  # values in the mean
    endings: tuple[tuple[str, ...], ...]  # what became of the runs; empty where there are none


@dataclass(frozen=True)
class AxisEffect:
    """A metric over one axis: the mean at each level, over all values of the others.

    `share` is how much of the variance the levels of this axis explain alone, corrected for their number; None where
    there are no more values than levels.
    """

    axis: Axis
    levels: Levels
    estimates: tuple[Estimate, ...]
    share: float | None


def axes(runs: Sequence[Run], log: Collection[str] = ()) -> list[Axis]:
    """Return the parameters varied over runs, or that only some of them have; `log` are those searched by ratio.

    A seed is none of them where runs differ in nothing else: these are repeats.
    """
    values: dict[str, dict[Any, Value]] = {}
    having: Counter[str] = Counter()
    for run in runs:
        for name, value in run.params.items():
            values.setdefault(name, {}).setdefault(_key(value), value)
            having[name] += 1
    varying = {name: each for name, each in values.items() if len(each) > 1 or having[name] < len(runs)}
    if SEED in varying and has_seeds_for_repeats(runs):
        del varying[SEED]
    return [_axis(name, list(each.values()), len(runs) - having[name], name in log) for name, each in varying.items()]


def survey(runs: Sequence[Run], metric: str | None = None, *, better: Better = "", log: Collection[str] = ()) -> Sweep:
    """Return what a sweep of runs tells by a metric, or by the first one whose direction is known; `log` as in axes."""
    runs = _numbered(runs)
    counted = [run for run in runs if counts(run)]
    known = known_names(counted)
    if metric and metric not in known and counted:
        raise unknown_metric(metric, known)
    main = metric or main_metric(counted)
    values, unit, directions = [], "", {better} if better else set()
    for run in counted:
        each = measures(run).get(main)
        if each is not None:
            unit = unit or each.unit
            directions |= {each.better} if each.better and not better else set()
            if math.isfinite(each.value):
                values.append((run, each.value))
    points = tuple(_point(label, each) for label, each in group_runs(runs).items())
    direction: Better = next(iter(directions)) if len(directions) == 1 else ""
    return Sweep(tuple(runs), tuple(axes(runs, log)), points, main, unit, direction, tuple(values))


def _numbered(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs in the order of their points, whichever began first, where their ids tell it."""
    if all(run.id.startswith(f"{run.group}-") for run in runs):
        return sorted(runs, key=lambda run: (len(run.id), run.id))
    return runs


def main_metric(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> str:
    """Return the metric that ranks, of those whose direction is known; empty where there is none.

    That is the first of `metrics`. Without them a metric of the validation or the test goes before one of the training.
    """
    directed = {name for run in runs for name, each in measures(run).items() if each.better}
    names = [name for name in metrics or known_names(runs) if name in directed]
    held_out = [] if metrics else [name for name in names if _HELD_OUT.match(name)]
    return next(iter(held_out or names), "")


def own_metric(runs: Sequence[Run]) -> str:
    """Return the metric that ranks, if programs logged numbers of it; empty where only times and the like are known."""
    metric = main_metric(runs)
    values = [run.metrics[metric].value for run in runs if metric in run.metrics]
    return metric if any(map(math.isfinite, values)) else ""


def best(runs: Sequence[Run], metric: str, *, better: Better = "", also: Mapping[Pair, float] | None = None) -> Best:
    """Return the best point by the mean of a metric, with all that are level with it; `also` as in a leaderboard."""
    board = leaderboard(runs, metric, n=max(1, len(runs)), better=better, also=also)
    first, others = board.places[0], board.places[1:]
    if not first.estimate.count:
        raise NotFound(f"no run has a finite value of {metric!r}")
    level = tuple(each for each in others if each.rank == first.rank or each.verdict is Verdict.SAME)
    varying, having = axes(runs), {each for place in board.places for each in place.runs}
    names = {run.id: point_name(run, varying) for run in runs if run.id in having}
    noise_known = any(each.estimate.sd is not None for each in board.places)
    return Best(first, level, noise_known, board, names)


def judge_points(sweep: Sweep, metrics: Sequence[str] | None = None) -> tuple[Best | None, Comparison | None]:
    """Return the best point, and the comparison of few points in some metrics (without names: in all).

    Each pair is judged among all comparisons of both, so that no pair has two verdicts, on a page or in the terminal.
    """
    first = _ranked(sweep)
    trials, done = any(map(is_trial, sweep.runs)), [run for run in sweep.runs if counts(run)]
    if trials or not done or not 1 < len(sweep.points) <= _MOST_COMPARED:
        return first, None
    groups = {point.label: point.runs for point in sweep.points}
    names = metrics or sorted(known_names(done), key=lambda name: name != sweep.metric)
    comparison = compare(groups, names, also=first.board.chances if first else {})
    return _ranked(sweep, comparison.chances), comparison


def _ranked(sweep: Sweep, also: Mapping[Pair, float] | None = None) -> Best | None:
    if not sweep.metric or not sweep.better or not sweep.values:
        return None
    try:
        return best(sweep.runs, sweep.metric, better=sweep.better, also=also)
    except (NotFound, UsageError):  # units that differ: nothing can be ranked, and the table shows why
        return None


def point_name(run: Run, varying: Sequence[Axis]) -> str:
    """Return the values of a run that tell it from others, in one line."""
    settings = [f"{axis.name}={format_value(run.params[axis.name])}" for axis in varying if axis.name in run.params]
    return ", ".join(settings)


def levels(axis: Axis, most: int = _MOST_LEVELS, *, ranges: int = _MOST_RANGES) -> Levels:
    """Return the values of an axis that can be told apart: at most so many, or so many ranges of numbers."""
    if axis.numbers is not None and len(axis.values) > most:
        return _ranges(axis, ranges)
    centres = axis.numbers if axis.numbers is not None else tuple(map(float, range(len(axis.values))))
    places = {_key(value): at for at, value in enumerate(axis.values[:most])}

    def of(run: Run) -> int | None:
        return places.get(_key(run.params.get(axis.name, ABSENT)))

    return Levels(
        axis, tuple(map(format_value, axis.values[:most])), centres[:most], of, max(0, len(axis.values) - most)
    )


def heat_map(sweep: Sweep, x: str, y: str) -> HeatMap:
    """Return the mean of the sweep's metric over two of its axes."""
    ranges = _how_many(math.sqrt(len(sweep.values)))
    across, up = levels(sweep.axis(x), ranges=ranges), levels(sweep.axis(y), ranges=ranges)
    values: dict[tuple[int, int], list[float]] = {}
    endings: dict[tuple[int, int], set[str]] = {}
    for run in sweep.runs:
        place = _place(up, across, run)
        if place:
            endings.setdefault(place, set()).add(ending(run))
    for run, value in sweep.values:
        place = _place(up, across, run)
        if place:
            values.setdefault(place, []).append(value)
    rows, columns = range(len(up)), range(len(across))
    means = tuple(tuple(_mean(values.get((row, column))) for column in columns) for row in rows)
    number = tuple(tuple(len(values.get((row, column), ())) for column in columns) for row in rows)
    seen = tuple(tuple(_one_word(endings.get((row, column), set())) for column in columns) for row in rows)
    return HeatMap(sweep.metric, sweep.unit, sweep.better, across, up, means, number, seen)


def effects(sweep: Sweep, most: int = _MOST_LEVELS) -> list[AxisEffect]:
    """Return what each axis does to the metric, the one that explains most first.

    Of more than `most` numbers, ranges are told apart.
    """
    axis_effects = []
    for axis in sweep.axes:
        told_apart = _MOST_LEVELS if axis.numbers is None else min(most, _MOST_LEVELS)
        known = levels(axis, told_apart, ranges=_how_many(len(sweep.values) / 5))
        values: list[list[float]] = [[] for _ in known.labels]
        for run, value in sweep.values:
            at = known.of(run)
            if at is not None:
                values[at].append(value)
        if sum(map(bool, values)) > 1:
            estimates = tuple(estimate_of(sweep.metric, sweep.unit, each) for each in values)
            axis_effects.append(AxisEffect(axis, known, estimates, _share(values)))
    return sorted(axis_effects, key=lambda each: -(each.share or 0.0))


def metric_names(sweep: Sweep, goals: Sequence[Goal] = (), *, most: int = 4) -> list[str]:
    """Return the metrics that a table of the sweep shows: its own, those of goals, some more, and cost."""
    known = list(dict.fromkeys(name for point in sweep.points for name in point.estimates))
    first = dict.fromkeys([*([sweep.metric] if sweep.metric else []), *(name for name, _ in goals)])
    own = dict.fromkeys([*first, *results_only(known)])
    shown = list(own)[: max(most, len(first))]
    return [*shown, *(name for name in _COSTS if name in known and name not in shown)]


def as_number(value: Any) -> float | None:
    """Return a value as a finite number where it is one, or is the text of one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def is_log(numbers: Sequence[float]) -> bool:
    """Tell whether numbers ask for a logarithmic scale: far apart and crowded at the low end, or each a multiple."""
    known = sorted(set(numbers))
    if len(known) < 3 or known[0] <= 0:
        return False
    ratios = [after / before for before, after in pairwise(known)]
    middle = (known[len(known) // 2] - known[0]) / (known[-1] - known[0])
    is_crowded = known[-1] / known[0] >= _GROWTH and middle < _LOW
    return is_crowded or (min(ratios) >= 1.5 and max(ratios) / min(ratios) < 1.01)


def _axis(name: str, values: Sequence[Value], absent: int, is_declared_log: bool) -> Axis:
    parsed = [as_number(value) for value in values]
    numbers = [each for each in parsed if each is not None]
    if len(numbers) < len(values):
        return Axis(name, tuple(values), None, absent=absent)
    order = sorted(range(len(values)), key=lambda at: numbers[at])
    ordered = tuple(numbers[at] for at in order)
    log = is_log(ordered) or (is_declared_log and ordered[0] > 0)
    return Axis(name, tuple(values[at] for at in order), ordered, log, absent)


def _point(label: str, runs: Sequence[Run]) -> Point:
    known: dict[str, list[Measure]] = {}
    for run in runs:
        for name, each in measures(run).items() if counts(run) else ():
            known.setdefault(name, []).append(each)
    estimates = {name: estimate_of(name, some[0].unit, [each.value for each in some]) for name, some in known.items()}
    reasons = (run.reason for run in runs if not counts(run))
    ends = Counter(map(ending, runs))
    return Point(label, runs[0].params, runs[0].system, tuple(runs), estimates, ends, next(filter(None, reasons), ""))


def _ranges(axis: Axis, count: int) -> Levels:
    """Return ranges of equal width, on the scale of the axis; the last one holds its end."""
    numbers = axis.numbers or ()
    bend, straighten = (math.exp, math.log) if axis.log else (float, float)
    low, high = straighten(numbers[0]), straighten(numbers[-1])
    edges = [low + (high - low) * at / count for at in range(count + 1)]
    ends = [short_number(bend(edge), 2 if abs(bend(edge)) < 100 else 3) for edge in edges]
    labels = tuple(f"{before} … {after}" for before, after in pairwise(ends))

    def of(run: Run) -> int | None:
        number = as_number(run.params.get(axis.name))
        return None if number is None else min(count - 1, max(0, bisect_right(edges, straighten(number)) - 1))

    return Levels(axis, labels, tuple(bend((before + after) / 2) for before, after in pairwise(edges)), of)


def _how_many(ranges: float) -> int:
    return max(_FEWEST_RANGES, min(_MOST_RANGES, int(ranges)))


def _one_word(endings: set[str]) -> str:
    return next(iter(endings)) if len(endings) == 1 else "no value" if endings else ""


def _share(values: Sequence[Sequence[float]]) -> float | None:
    """Return how much of the variance the groups explain (ε², which is 0 on average where they explain nothing)."""
    groups = [each for each in values if each]
    everything = [value for each in groups for value in each]
    free = len(everything) - len(groups)
    if free < 1 or len(groups) < 2:
        return None
    whole = _squares(everything)
    if whole == 0:
        return 0.0
    within = math.fsum(_squares(each) for each in groups)
    return max(0.0, 1 - (within / free) / (whole / (len(everything) - 1)))


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _mean(values: Sequence[float] | None) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _place(up: Levels, across: Levels, run: Run) -> tuple[int, int] | None:
    row, column = up.of(run), across.of(run)
    return None if row is None or column is None else (row, column)


def _key(value: Any) -> Any:
    """Return what tells values apart: 1 and 1.0 are one value, 1 and True and "1" are not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return (type(value).__name__, str(value)) if value is not ABSENT else ABSENT


def _same(one: Any, other: Any) -> bool:
    return bool(_key(one) == _key(other))
