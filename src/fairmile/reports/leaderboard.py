"""Rankings over sets of runs, histograms, and the three patterns: selection, competition and cooperation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, cast

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_number
from fairmile.reports.comparison import group_runs, json_value
from fairmile.reports.inference import Estimate
from fairmile.reports.measures import (
    Measure,
    counts,
    estimate_of,
    estimate_text,
    known_names,
    measures,
    title,
    unknown_metric,
)
from fairmile.reports.shapes import LeaderboardDict
from fairmile.reports.verdicts import Judgement, Pair, Verdict, chances, judge, pair_of, settle, shared_noise
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import Better, bounds_of

Where = Callable[[Run], bool]
Combine = Callable[[Sequence[float]], float]
VERSUS_FIRST = "vs first"  # the column of verdicts
_MOST_BINS = 60
_COMBINE: dict[str, Combine] = {
    "sum": math.fsum,
    "mean": lambda values: math.fsum(values) / len(values),
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Entry:
    """One thing on a leaderboard: all repeats of it together."""

    rank: int  # those with the same mean share it
    label: str
    estimate: Estimate
    best: float
    best_run: str
    runs: tuple[str, ...]
    system: str
    verdict: Verdict | None  # against the first place, which has none itself


@dataclass(frozen=True, repr=False)
class Leaderboard(Result):
    """The best by one metric."""

    metric: str
    unit: str
    better: Better
    places: tuple[Entry, ...]
    of: int  # how many things were ranked
    notes: tuple[str, ...] = ()
    noise: float | None = None  # the standard deviation behind the verdicts, where it is that of all repeats together
    chances: Mapping[Pair, float] = field(default_factory=dict, repr=False)  # of noise alone, each pair by itself

    @property
    def has_repeats(self) -> bool:
        """Whether anything ran more than once: else nothing is known of noise."""
        return any(len(each.runs) > 1 for each in self.places)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows, the best first; of single runs without what needs repeats."""
        several_systems = len({each.system for each in self.places}) > 1
        rows = []
        for each in self.places:
            mean = estimate_text(each.estimate, self.unit)
            repeats = [str(len(each.runs)), format_number(each.best, self.unit)] if self.has_repeats else []
            verdict = [each.verdict or ""] if self.has_repeats else []
            system = [each.system] if several_systems else []
            rows.append([str(each.rank), each.label, mean, *repeats, *system, *verdict])
        repeated = (["runs", "best"], [VERSUS_FIRST]) if self.has_repeats else ([], [])
        systems = ["system"] if several_systems else []
        return ["rank", "what", title(self.metric), *repeated[0], *systems, *repeated[1]], rows

    def to_dict(self) -> LeaderboardDict:
        document: dict[str, Any] = json_value(asdict(replace(self, chances={})))
        del document["chances"]
        return cast(LeaderboardDict, document)

    def summary(self) -> str:
        first = self.places[0] if self.places else None
        best = f", best {first.label} {estimate_text(first.estimate, self.unit)}" if first else ""
        return f"{self.of} ranked by {self.metric}{best}"

    def _repr_html_(self) -> str:
        return rows_table(*self.table())


@dataclass(frozen=True)
class Histogram:
    """How often values fall between edges; `counts` has one number less than `edges`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    not_finite: int = 0


@dataclass(frozen=True)
class Competition:
    """The best of n: the run that won, and all that have a value, the best first."""

    winner: Run
    metric: str
    value: float
    of: int
    ranking: tuple[str, ...]


@dataclass(frozen=True)
class Cooperation:
    """Parts that make a whole: the runs that gave them, and the numbers of the whole."""

    parts: tuple[str, ...]
    values: Mapping[str, float]


def leaderboard(
    runs: Sequence[Run],
    metric: str,
    *,
    n: int = 10,
    where: Where | None = None,
    better: Better = "",
    also: Mapping[Pair, float] | None = None,
) -> Leaderboard:
    """Rank groups of repeats by the mean of a metric, the best first.

    Only runs that are done count. A group with a value that is NaN or infinite comes last. The verdict of a place
    says whether more than noise tells it from the first, among all places, shown or not, and the comparisons `also`
    that stand beside them. `better` overrules what the runs say of the direction.
    """
    if n < 1:
        raise UsageError(f"the leaderboard has {n} places, expected at least 1")
    chosen = [run for run in runs if where is None or where(run)]
    done = [run for run in chosen if counts(run)]
    names = known_names(done)
    if metric not in names:
        raise unknown_metric(metric, names) if done else NotFound("none of the selected runs is done")
    values = {run.id: each[metric] for run in done if metric in (each := measures(run))}
    having = [run for run in done if run.id in values]
    unit, better = _one_kind(metric, list(values.values()), better)
    groups = group_runs(having)
    estimates = {
        label: estimate_of(metric, unit, [values[run.id].value for run in each]) for label, each in groups.items()
    }
    order = sorted(groups, key=lambda label: _key(estimates[label], better))
    shown = order[:n]
    noise = shared_noise(having, estimates.values())
    measured = list(values.values())
    is_positive = bounds_of(metric, unit, [each.value for each in measured if math.isfinite(each.value)])[0] == 0

    def stands(label: str) -> Judgement:
        first, other = estimates[order[0]], estimates[label]
        if first.not_finite or other.not_finite:
            return Judgement(Verdict.NOT_COMPARABLE)
        return judge(
            (order[0], first),
            (label, other),
            better=better,
            tolerance=measured[0].tolerance,
            noise=noise,
            is_positive=is_positive,
        )

    ids = {label: [run.id for run in each] for label, each in groups.items()}
    pairs = {label: pair_of(metric, ids[order[0]], ids[label]) for label in order[1:]}
    judgements = {pair: stands(label) for label, pair in pairs.items()}
    settled = settle(judgements, also or {})
    places: list[Entry] = []
    for at, label in enumerate(shown):
        tied = at > 0 and estimates[label].mean == estimates[shown[at - 1]].mean
        best = _best(groups[label], metric, better)
        places.append(
            Entry(
                rank=places[-1].rank if tied else at + 1,
                label=label,
                estimate=estimates[label],
                best=values[best.id].value,
                best_run=best.id,
                runs=tuple(run.id for run in groups[label]),
                system=groups[label][0].system,
                verdict=settled[pairs[label]].verdict if at else None,
            )
        )
    notes = tuple(_notes(chosen, done, having, places))
    return Leaderboard(
        metric, unit, better, tuple(places), len(order), notes, noise.sd if noise else None, chances(judgements)
    )


def parse_where(conditions: Sequence[str]) -> Where:
    """Return the filter that `name=train`, `system=jureca`, `tag=night`, `state=done`, `group=a` or `lr=0.1` state.

    Any other word is a parameter; `param.name=x` means a parameter of one of those names. All must hold.
    """
    pairs = []
    for each in conditions:
        key, sign, value = each.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{each!r} is not a condition", hint="write key=value, such as system=jureca or lr=0.1")
        pairs.append((key.strip(), value.strip()))

    def holds(run: Run) -> bool:
        return all(_holds(run, key, value) for key, value in pairs)

    return holds


def histogram(values: Sequence[float], *, bins: int | None = None) -> Histogram:
    """Count values in bins of one width, by the rule of Freedman and Diaconis unless told how many."""
    finite = sorted(float(value) for value in values if math.isfinite(value))
    left_out = len(values) - len(finite)
    if not finite:
        return Histogram((), (), left_out)
    low, high = finite[0], finite[-1]
    count = bins or _bins(finite)
    if low == high:
        half = abs(low) * 0.05 or 0.5
        return Histogram((low - half, low + half), (len(finite),), left_out)
    edges = [low + (high - low) * at / count for at in range(count)] + [high]
    counts = [0] * count
    for value in finite:
        counts[min(int((value - low) / (high - low) * count), count - 1)] += 1
    return Histogram(tuple(edges), tuple(counts), left_out)


def selection(runs: Sequence[Run], metric: str = "", k: int | None = None, *, where: Where | None = None) -> list[Run]:
    """Return the runs that a filter lets through, the `k` best of them by a metric where one is named."""
    chosen = [run for run in runs if where is None or where(run)]
    if not metric:
        return chosen[:k]
    return _ranked(chosen, metric)[:k]


def competition(runs: Sequence[Run], metric: str) -> Competition:
    """Return the best of n runs by a metric; runs that are not done lose."""
    ranked = _ranked(runs, metric)
    return Competition(ranked[0], metric, measures(ranked[0])[metric].value, len(runs), tuple(run.id for run in ranked))


def cooperation(runs: Sequence[Run], combine: Mapping[str, str | Combine]) -> Cooperation:
    """Combine the parts that runs computed: for each metric by sum, mean, min, max or a function of the values.

    The whole exists only when every part is done and has the metric.
    """
    if not runs:
        raise UsageError("combining needs at least one run")
    for run in runs:
        if run.state is not RunState.DONE:
            raise RunFailed(f"cannot combine run {run.id}: it is {run.state}", hint=f"`fairmile rerun {run.id}`")
    values = {}
    for metric, how in combine.items():
        function = how if callable(how) else _COMBINE.get(how)
        if function is None:
            raise UsageError(
                f"{how!r} is not a way to combine metrics", hint=f"use {', '.join(_COMBINE)} or a function"
            )
        without = [run.id for run in runs if metric not in measures(run)]
        if without:
            raise NotFound(f"cannot combine {metric!r}: run {without[0]} lacks it")
        values[metric] = function([measures(run)[metric].value for run in runs])
    return Cooperation(tuple(run.id for run in runs), values)


def _holds(run: Run, key: str, value: str) -> bool:
    own = {"name": run.name, "system": run.system, "state": str(run.state), "group": run.group, "id": run.id}
    if key in own:
        return own[key] == value
    if key == "tag":
        return value in run.tags
    param = run.params.get(key.removeprefix("param."), _holds)  # a function is no parameter: none was given
    if isinstance(param, bool) or param is None:
        return str(param).lower() == value.lower()
    if isinstance(param, (int, float)):
        try:
            return float(value) == param
        except ValueError:
            return False
    return param == value


def _one_kind(metric: str, measured: Sequence[Measure], better: Better = "") -> tuple[str, Better]:
    units = {each.unit for each in measured}
    directions = {better} if better else {each.better for each in measured} - {""}
    if len(units) > 1:
        raise UsageError(
            f"cannot rank {metric}: its runs use the units {', '.join(sorted(unit or 'none' for unit in units))}",
            hint="select runs with the same unit, such as with --where name=NAME",
        )
    if len(directions) != 1:
        why = "its runs disagree on the better direction" if directions else "its better direction is unknown"
        raise UsageError(
            f"cannot rank {metric}: {why}",
            hint="declare it where the metric is logged: better: lower, or better: higher",
        )
    return next(iter(units)), next(iter(directions))


def _key(estimate: Estimate, better: Better) -> tuple[bool, float]:
    broken = estimate.not_finite > 0 or estimate.count == 0
    mean = 0.0 if math.isnan(estimate.mean) else estimate.mean
    return broken, -mean if better == "higher" else mean


def _ranked(runs: Sequence[Run], metric: str) -> list[Run]:
    """Return the runs that are done and have a finite value, the best first; of equals the earlier one."""
    done = [run for run in runs if counts(run)]
    known = known_names(done)
    if metric not in known:
        raise unknown_metric(metric, known) if done else NotFound("none of these runs is done")
    having = [run for run in done if metric in measures(run)]
    _, better = _one_kind(metric, [measures(run)[metric] for run in having])
    finite = [run for run in having if math.isfinite(measures(run)[metric].value)]
    if not finite:
        raise NotFound(f"no run has a finite value of {metric!r}")
    sign = -1 if better == "higher" else 1
    return sorted(finite, key=lambda run: sign * measures(run)[metric].value)


def _best(runs: Sequence[Run], metric: str, better: Better) -> Run:
    finite = [run for run in runs if math.isfinite(measures(run)[metric].value)]
    if not finite:
        return runs[0]
    choose = max if better == "higher" else min
    return choose(finite, key=lambda run: measures(run)[metric].value)


def _bins(values: Sequence[float]) -> int:
    """Return how many bins the spread of sorted values asks for."""
    count = len(values)
    sturges = math.ceil(math.log2(count)) + 1
    quarter = values[(3 * count) // 4] - values[count // 4]
    width = 2 * quarter / math.cbrt(count)
    if width <= 0:
        return sturges
    # A width next to nothing would need more bins than a float can count.
    wanted = min((values[-1] - values[0]) / width, _MOST_BINS)
    return max(1, min(_MOST_BINS, max(sturges, math.ceil(wanted))))


def _notes(chosen: Sequence[Run], done: Sequence[Run], having: Sequence[Run], places: Sequence[Entry]) -> list[str]:
    notes = []
    if len(done) < len(chosen):
        notes.append(f"{len(chosen) - len(done)} of {len(chosen)} runs are not done and do not count")
    if len(having) < len(done):
        notes.append(f"{len(done) - len(having)} of {len(done)} runs do not have the metric")
    if broken := [each.label for each in places if each.estimate.not_finite]:
        notes.append(f"values that are NaN or infinite are left out of the mean and put last: {', '.join(broken)}")
    return notes
