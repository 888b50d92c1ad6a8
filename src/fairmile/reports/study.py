"""What the trials of a tuning study tell: the way to the best, what mattered, which goals compete, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import event_files
from fairmile.reports.comparison import json_value
from fairmile.reports.curves import Curve, curves
from fairmile.reports.measures import counts, ending, measures, unknown_metric
from fairmile.reports.sweep import Goal, Point, Sweep, effects
from fairmile.runs.record.record import TrialReference
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Better

MOST_CURVES = 60
_MOST_BYTES = 64 << 20  # of logs that are read for curves
_FEWEST, _FEWEST_FOR_TREES = 10, 20  # values that tell anything of importance
_TREES, _FOLDS, _SHUFFLES = 64, 3, 5
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Step:
    """One trial on the way: its value, and the best of all that counted until then."""

    run: Run
    number: int
    generation: int
    ending: str  # done, pruned, or a state that is no result
    value: float | None
    best: float | None
    is_best: bool  # whether it was better than all before


@dataclass(frozen=True)
class TrialCurve:
    """The values that a trial told on its way."""

    step: Step
    curve: Curve


@dataclass(frozen=True)
class TrialCurves:
    """Curves of trials, the best first; `of` is how many there are in all."""

    curves: tuple[TrialCurve, ...]
    of: int


@dataclass(frozen=True)
class Share:
    """How much a parameter matters, as a part of all that the parameters do; `spread` is how far estimates differ."""

    name: str
    share: float
    spread: float | None


@dataclass(frozen=True)
class Importance:
    """How much each parameter matters for a metric, the most important first, and by which method that was found.

    `explained` is the part of the variance of runs it had not seen that the model behind it explains.
    """

    metric: str
    method: str
    shares: tuple[Share, ...]
    runs: int
    explained: float | None = None

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json_value(asdict(self))
        return document


@dataclass(frozen=True)
class Front:
    """The points that no other beats in every goal, in the order of the first goal; `beaten` are the others."""

    goals: tuple[Goal, ...]
    points: tuple[Point, ...]
    beaten: tuple[Point, ...]

    def values(self, point: Point) -> tuple[float, ...]:
        return tuple(point.estimates[name].mean for name, _ in self.goals)


@dataclass(frozen=True)
class Spent:
    """What trials of one ending cost; energy is that of the `metered` ones."""

    ending: str
    trials: int
    elapsed_s: float
    node_h: float
    energy_j: float
    metered: int


def goals_of(runs: Sequence[Run]) -> list[Goal]:
    """Return the objectives that the trials themselves name, where they do."""
    objectives = next((run.trial.objectives for run in runs if run.trial is not None and run.trial.objectives), {})
    return [(name, better) for name, better in objectives.items()]


def history(runs: Sequence[Run], metric: str, *, better: Better) -> list[Step]:
    """Return the trials in the order of their numbers, each with its value and the best so far."""
    steps: list[Step] = []
    best: float | None = None
    for run in sorted(runs, key=_order):
        trial = run.trial or TrialReference()
        measured = measures(run).get(metric)
        value = measured.value if measured and math.isfinite(measured.value) else None
        is_best = counts(run) and value is not None and (best is None or _beats(value, best, better))
        best = value if is_best else best
        number, generation = len(steps) if trial.number is None else trial.number, trial.generation or 0
        steps.append(Step(run, number, generation, ending(run), value, best, is_best))
    return steps


def trial_curves(steps: Sequence[Step], metric: str, *, better: Better, most: int = MOST_CURVES) -> TrialCurves:
    """Read the curves of the best trials and of an even choice of the others; logs of all would take too long."""
    readable = [step for step in steps if not step.run.packed and metric in step.run.metrics]
    ranked = sorted((each for each in readable if each.ending == "done"), key=lambda each: _rank(each.value, better))
    first = ranked[: max(1, most // 3)]
    chosen = {each.run.id for each in first}
    rest = [each for each in readable if each.run.id not in chosen]
    room = max(0, most - len(first))
    others = [rest[at * len(rest) // room] for at in range(room)] if len(rest) > room else rest
    read: list[TrialCurve] = []
    size = 0
    for step in [*first, *others]:
        size += sum(file.stat().st_size for file in event_files(step.run.folder))
        if read and size > _MOST_BYTES:
            break
        curve = curves(step.run.log()).get(metric)
        if curve is not None and len(curve.xs) > 1:
            read.append(TrialCurve(step, curve))
    return TrialCurves(tuple(read), len(readable))


def importance(sweep: Sweep, *, use_forest: bool = True) -> Importance | None:
    """Return how much each parameter matters: by a random forest where scikit-learn is there, else by variances.

    None where too few runs have a value to tell, and where no parameter explains anything.
    """
    if len(sweep.values) < _FEWEST or not sweep.axes:
        return None
    has_forest = use_forest and find_spec("sklearn") is not None
    if has_forest and len(sweep.values) >= _FEWEST_FOR_TREES:
        return _by_forest(sweep)
    # Where each run has a number of its own, only ranges of them have a variance within.
    variances = [(each.axis.name, each.share or 0.0) for each in effects(sweep, len(sweep.values) // 2)]
    named = {name for name, _ in variances}
    variances += [(axis.name, 0.0) for axis in sweep.axes if axis.name not in named]
    whole = math.fsum(share for _, share in variances)
    if not whole:
        return None
    shares = tuple(Share(name, share / whole, None) for name, share in variances)
    why = f"fewer than {_FEWEST_FOR_TREES} values are too few for a forest" if has_forest else "without scikit-learn"
    method = f"variance between the values of each parameter alone ({why})"
    return Importance(sweep.metric, method, shares, len(sweep.values))


def front(sweep: Sweep, goals: Sequence[Goal]) -> Front:
    """Return the points that no other point beats in all goals at once (the Pareto front)."""
    if len(goals) < 2:
        raise UsageError("a Pareto front needs two objectives", hint="name two metrics")
    settled = [_settled(sweep, name, better) for name, better in goals]
    having = [point for point in sweep.points if all(_mean(point, name) is not None for name, _ in settled)]
    if not having:
        raise NotFound(f"no point has {' and '.join(name for name, _ in settled)}")
    signs = [-1.0 if better == "higher" else 1.0 for _, better in settled]

    def place(point: Point) -> tuple[float, ...]:
        return tuple(sign * (_mean(point, name) or 0.0) for sign, (name, _) in zip(signs, settled, strict=True))

    places = {id(point): place(point) for point in having}
    chosen: list[Point] = []
    # In the order of the first goal a point can only be beaten by one that came before.
    for point in sorted(having, key=lambda each: places[id(each)]):
        if not any(_dominates(places[id(other)], places[id(point)]) for other in chosen):
            chosen.append(point)
    kept = {id(point) for point in chosen}
    return Front(tuple(settled), tuple(chosen), tuple(each for each in having if id(each) not in kept))


def spent(runs: Sequence[Run]) -> list[Spent]:
    """Return what the runs cost by how they ended, those that are done first."""
    by_ending: dict[str, list[Run]] = {}
    for run in runs:
        by_ending.setdefault(ending(run), []).append(run)
    order = sorted(by_ending, key=lambda name: (name != "done", name != "pruned"))
    return [_spent(name, by_ending[name]) for name in order]


def total(parts: Iterable[Spent]) -> Spent:
    """Return the sum of what was spent."""
    known = list(parts)
    return Spent(
        "all",
        sum(each.trials for each in known),
        math.fsum(each.elapsed_s for each in known),
        math.fsum(each.node_h for each in known),
        math.fsum(each.energy_j for each in known),
        sum(each.metered for each in known),
    )


def study_document(steps: Sequence[Step], weights: Importance | None, best: Front | None, runs: Sequence[Run]) -> Any:
    """Return what a study tells as JSON can hold it."""
    trials = [
        {"number": each.number, "generation": each.generation, "state": each.ending, "value": each.value,
         "best": each.best, "run": each.run.id}
        for each in steps
    ]  # fmt: skip
    pareto = (
        [{"runs": [run.id for run in point.runs], "values": best.values(point)} for point in best.points]
        if best
        else []
    )
    return json_value(
        {
            "trials": trials,
            "importance": weights and weights.document(),
            "front": pareto,
            "spent": [asdict(each) for each in spent(runs)],
        }
    )


def _by_forest(sweep: Sweep) -> Importance:
    """Shuffle each parameter of runs that a forest has not seen, and measure how much worse it then predicts them."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    columns = [[axis.number(run) for run, _ in sweep.values] for axis in sweep.axes]
    table = np.array([_filled(column) for column in columns], dtype=float).T
    values = np.array([value for _, value in sweep.values], dtype=float)
    # Ranks bound what a trial that went astray can do to the squares.
    ranks = values.argsort(kind="stable").argsort(kind="stable").astype(float)
    drops, scores = [], []
    for train, test in KFold(_FOLDS, shuffle=True, random_state=0).split(table):
        forest = RandomForestRegressor(_TREES, min_samples_leaf=2, random_state=0).fit(table[train], ranks[train])
        scores.append(float(forest.score(table[test], ranks[test])))
        permuted = permutation_importance(forest, table[test], ranks[test], n_repeats=_SHUFFLES, random_state=0)
        drops.append(permuted.importances_mean)
    means, spreads = np.mean(drops, axis=0), np.std(drops, axis=0, ddof=1) / math.sqrt(_FOLDS)
    kept = np.maximum(means, 0.0)
    whole = float(kept.sum())
    shares = [
        Share(axis.name, float(mean) / whole if whole else 0.0, float(spread) / whole if whole else None)
        for axis, mean, spread in zip(sweep.axes, kept, spreads, strict=True)
    ]
    shares.sort(key=lambda each: -each.share)
    explained = max(0.0, math.fsum(scores) / len(scores))
    method = f"permutation importance of a random forest of {_TREES} trees (scikit-learn), on ranks of held-out runs"
    return Importance(sweep.metric, method, tuple(shares), len(sweep.values), explained)


def _filled(column: Sequence[float | None]) -> list[float]:
    """Return a column with a value of its own, below all others, where a conditional parameter is absent."""
    known = [each for each in column if each is not None]
    lowest = min(known, default=0.0)
    absent = lowest - max(1.0, max(known, default=0.0) - lowest)
    return [absent if each is None else each for each in column]


def _settled(sweep: Sweep, name: str, better: Better) -> Goal:
    known = [each for run in sweep.runs if counts(run) and (each := measures(run).get(name))]
    if not known:
        raise unknown_metric(name, list(dict.fromkeys(each for point in sweep.points for each in point.estimates)))
    directions = {better} if better else {each.better for each in known} - {""}
    if len(directions) != 1:
        raise UsageError(
            f"the better direction of {name} is unknown", hint="declare it with better: lower, or better: higher"
        )
    return name, next(iter(directions))


def _spent(name: str, runs: Sequence[Run]) -> Spent:
    energies = [run.energy_j for run in runs if run.energy_j is not None]
    hours = [(run.elapsed_s or 0.0) * _nodes(run) / _HOUR_S for run in runs]
    elapsed_s = math.fsum(run.elapsed_s or 0.0 for run in runs)
    return Spent(name, len(runs), elapsed_s, math.fsum(hours), math.fsum(energies), len(energies))


def _nodes(run: Run) -> float:
    nodes = run.captured.scheduler.get("nodes")
    return float(nodes) if isinstance(nodes, (int, float)) and nodes > 0 else 1.0


def _order(run: Run) -> tuple[int, int, float, str]:
    trial = run.trial or TrialReference()
    return trial.generation or 0, trial.number or 0, run.created, run.id


def _beats(value: float, other: float, better: Better) -> bool:
    return value > other if better == "higher" else value < other


def _rank(value: float | None, better: Better) -> float:
    if value is None:
        return math.inf
    return -value if better == "higher" else value


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def _mean(point: Point, name: str) -> float | None:
    estimate = point.estimates.get(name)
    return estimate.mean if estimate is not None and estimate.count and math.isfinite(estimate.mean) else None
