"""Groups of runs side by side: each metric with its interval, a verdict that noise cannot fake, and what differed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, cast

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_value
from fairmile.meter.lines import number_text
from fairmile.reports.differences import Difference, differences, inner_differences
from fairmile.reports.inference import CONFIDENCE, Effect, Estimate
from fairmile.reports.measures import (
    Measure,
    counts,
    deviation,
    ending,
    estimate_of,
    estimate_text,
    known_names,
    measures,
    percent,
    title,
    unknown_metric,
)
from fairmile.reports.shapes import ComparisonDict
from fairmile.reports.verdicts import Judgement, Pair, Verdict, chances, judge, pair_of, settle, shared_noise
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Better, better_of, bounds_of

SEED = "seed"  # a parameter that changes what chance does, and nothing else
_FEW = 5
_NOISE_UNKNOWN = "one run each: noise is unknown, so no difference is judged; `fairmile run --repeat N` repeats a run"


@dataclass(frozen=True)
class Cell:
    """One metric of one group; the first group has no effect and no verdict."""

    group: str
    estimate: Estimate | None
    effect: Effect | None = None
    verdict: Verdict | None = None
    why: str = ""
    p: float | None = None  # the chance of noise alone, made larger for the number of comparisons


@dataclass(frozen=True)
class MetricRow:
    """One metric over all groups."""

    metric: str
    unit: str
    better: Better
    cells: tuple[Cell, ...]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Groups of runs compared with the first of them."""

    groups: Mapping[str, tuple[str, ...]]  # the ids of the runs that count
    rows: tuple[MetricRow, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    confidence: float = CONFIDENCE
    chances: Mapping[Pair, float] = field(default_factory=dict, repr=False)  # of noise alone, each pair by itself

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows: a row for each metric and group; of one group alone nothing is judged.

        Where single runs are compared, a note says once that nothing is judged.
        """
        columns = ["metric", "group", "runs", self._mean_column, "sd"]
        columns += ["verdict", "vs first", "why"] if len(self.groups) > 1 else ["why"]
        hides_verdicts = _NOISE_UNKNOWN in self.notes
        rows = []
        for row in self.rows:
            base = row.cells[0].estimate
            for at, cell in enumerate(row.cells):
                name = title(row.metric) if at == 0 else ""
                runs = "" if cell.estimate is None else str(cell.estimate.count)
                sd = "" if cell.estimate is None else deviation(cell.estimate.sd, cell.estimate.mean, row.unit)
                is_hidden = hides_verdicts and cell.verdict is Verdict.TOO_FEW
                verdict, why = ("", "") if is_hidden else (str(cell.verdict or ""), cell.why)
                judged = [verdict if at else _arrow(row.better), _to_first(base, cell) if at else ""]
                judged = judged if len(self.groups) > 1 else []
                rows.append([name, cell.group, runs, _mean(cell.estimate, row.unit), sd, *judged, why])
        if not any(row[-1] for row in rows):
            return columns[:-1], [row[:-1] for row in rows]
        return columns, rows

    @property
    def has_intervals(self) -> bool:
        """Whether any mean has a confidence interval: few repeats have none."""
        return any(cell.estimate and cell.estimate.low is not None for row in self.rows for cell in row.cells)

    @property
    def _mean_column(self) -> str:
        return f"mean ± {self.confidence * 100:g} %" if self.has_intervals else "mean (lowest to highest)"

    def to_dict(self) -> ComparisonDict:
        document: dict[str, Any] = json_value(asdict(replace(self, chances={})))
        del document["chances"]
        for row in document["rows"]:
            for cell in row["cells"]:
                cell["verdict"] = cell["verdict"] or ""
        return cast(ComparisonDict, document)

    def summary(self) -> str:
        verdicts = [
            f"{row.metric} of {cell.group} {cell.verdict}" for row in self.rows for cell in row.cells if cell.verdict
        ]
        return "; ".join([", ".join(self.groups), *verdicts])

    def _repr_html_(self) -> str:
        return rows_table(*self.table())

    def __str__(self) -> str:
        columns, rows = self.table()
        widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows)
        ]
        more = [f"{each.fact}: {each.text}" for each in self.differences]
        return "\n".join(line.rstrip() for line in [*lines, *more, *self.notes])


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs that are repeats of one thing together, under a name that tells them apart.

    Repeats share group, name, system and all parameters but the seed; a run without a group stands with those of its
    identity.
    """
    by_key: dict[str, list[Run]] = {}
    for run in runs:
        by_key.setdefault(_setting(run), []).append(run)
    groups = list(by_key.values())
    labels = _labels([each[0] for each in groups], without=(SEED,) if has_seeds_for_repeats(runs) else ())
    return dict(zip(labels, groups, strict=True))


def has_seeds_for_repeats(runs: Iterable[Run]) -> bool:
    """Tell whether runs of a group differ in nothing but the parameter `seed`, so that it tells repeats apart."""
    seeds: dict[str, Any] = {}
    return any(run.params.get(SEED) != seeds.setdefault(_setting(run), run.params.get(SEED)) for run in runs)


def _setting(run: Run) -> str:
    """Return what repeats have in common."""
    if not run.group:
        return f"{run.name} {run.identity or run.id}"
    params = {name: value for name, value in run.params.items() if name != SEED}
    return json.dumps([run.group, run.name, params, run.system], sort_keys=True, default=str)


def compare(
    groups: Mapping[str, Sequence[Run]],
    metrics: Sequence[str] | None = None,
    *,
    confidence: float = CONFIDENCE,
    also: Mapping[Pair, float] | None = None,
) -> Comparison:
    """Compare groups of repeats with the first one, metric by metric.

    Only runs that are done count; the notes say how many others there were. A group is called better or worse only
    where noise alone is less likely than 1 - confidence to make such a difference, over all comparisons of the table
    and those that stand beside it, `also` (Holm's rule), and where the difference is larger than the metric's own
    tolerance.
    """
    if not any(groups.values()):
        raise UsageError("nothing to compare", hint="name two runs, groups or names of runs")
    counting = {name: [run for run in runs if counts(run)] for name, runs in groups.items()}
    everything = [run for runs in counting.values() for run in runs]
    if not everything:
        raise NotFound(
            "nothing to compare: none of these runs is done",
            hint=f"`fairmile runs show {next(run.id for runs in groups.values() for run in runs)}` shows why",
        )
    known = known_names(everything)
    if metrics and (missing := [name for name in metrics if name not in known]):
        raise unknown_metric(missing[0], known)
    rows = [_row(name, counting, confidence) for name in metrics or known]
    judgements = {pair: each for row in rows for pair, each in row.judgements.items()}
    # A ranking of the same groups stands on their page: with it or without, a pair has the same verdict.
    ranking = next((row.to_best for row in rows if row.better), {})
    beside = {**(also or {}), **chances(ranking)}
    settled = settle(judgements, beside, confidence=confidence)
    is_single = len(counting) > 1 and all(len(runs) == 1 for runs in counting.values())
    is_noise_unknown = is_single and any(each.verdict is Verdict.TOO_FEW for each in settled.values())
    return Comparison(
        groups={name: tuple(run.id for run in runs) for name, runs in counting.items()},
        rows=tuple(row.judged(settled) for row in rows),
        differences=tuple(differences({name: runs for name, runs in counting.items() if runs})),
        notes=(*_notes(groups, counting), *([_NOISE_UNKNOWN] if is_noise_unknown else [])),
        confidence=confidence,
        chances=chances({**ranking, **judgements}),
    )


def effect_text(effect: Effect | None) -> str:
    """Return a difference as a percentage with its interval, or as it is where no percentage makes sense."""
    if effect is None:
        return ""
    if effect.relative is None:
        return f"{effect.difference:+.4g}"
    if effect.relative_low is None or effect.relative_high is None or effect.relative_low == effect.relative_high:
        return percent(effect.relative)
    return f"{percent(effect.relative)} ({percent(effect.relative_low)} … {percent(effect.relative_high)})"


def _to_first(base: Estimate | None, cell: Cell) -> str:
    """Return how far a group lies from the first; one run each has a difference, if no interval for it."""
    if cell.verdict is not Verdict.TOO_FEW or base is None or cell.estimate is None or not base.mean:
        return effect_text(cell.effect)
    return percent((cell.estimate.mean - base.mean) / abs(base.mean))


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: NaN and infinity become texts."""
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    return value


def _labels(runs: Sequence[Run], without: Collection[str] = ()) -> list[str]:
    """Return a name for each run that no other has: its own, what differs in the parameters, the system, the id."""
    known_values: dict[tuple[str, str], set[str]] = {}
    of_name = Counter(run.name for run in runs)
    given = Counter((run.name, name) for run in runs for name in run.params)
    for run in runs:
        for name, value in run.params.items():
            if name not in without:
                known_values.setdefault((run.name, name), set()).add(str(value))
    # A parameter tells runs apart when it has several values, or when only some of them have it.
    varying = {key for key, values in known_values.items() if len(values) > 1 or given[key] < of_name[key[0]]}
    names = [run.name for run in runs]
    settings = [_with_params(run, varying, with_name=len(of_name) > 1) for run in runs]
    for tried in (
        settings,
        [f"{text} on {run.system}" for text, run in zip(settings, runs, strict=True)],
        [f"{text} ({run.group or run.id})" for text, run in zip(settings, runs, strict=True)],
    ):
        seen = Counter(names)
        names = [new if seen[old] > 1 else old for old, new in zip(names, tried, strict=True)]
    seen = Counter(names)
    return [f"{name} {at}" if seen[name] > 1 else name for at, name in enumerate(names, 1)]


def _with_params(run: Run, varying: set[tuple[str, str]], *, with_name: bool) -> str:
    """Return the parameters that tell a run from others of its name, with that name where there are others."""
    settings = [f"{name}={format_value(value)}" for name, value in run.params.items() if (run.name, name) in varying]
    return " ".join([run.name, *settings] if with_name or not settings else settings)


def _row(metric: str, groups: Mapping[str, Sequence[Run]], confidence: float) -> _MetricRow:
    measured = {name: [each.get(metric) for each in map(measures, runs)] for name, runs in groups.items()}
    first = next((each for values in measured.values() for each in values if each), Measure(0.0))
    units = {each.unit for values in measured.values() for each in values if each}
    directions = {each.better for values in measured.values() for each in values if each} - {""}
    better = next(iter(directions)) if len(directions) == 1 else better_of(metric) if not directions else ""
    trouble = ""
    if len(units) > 1:
        trouble = f"the units differ: {', '.join(sorted(unit or 'none' for unit in units))}"
    elif len(directions) > 1:
        trouble = "the runs do not agree on which direction is better"
    values = {name: [each.value for each in present if each] for name, present in measured.items()}
    cells = []
    for name, present in values.items():
        cell = Cell(name, estimate_of(metric, first.unit, present, confidence=confidence) if present else None)
        cells.append(replace(cell, why=_trouble(cell, len(measured[name]), len(present))))
    cells[0] = replace(cells[0], why=cells[0].why or trouble)
    everything = [value for present in values.values() for value in present]
    row = _MetricRow(metric, first.unit, better, tuple(cells), {}, [None] * len(cells), {})
    noise = shared_noise(
        [run for runs in groups.values() for run in runs], [cell.estimate for cell in cells if cell.estimate]
    )
    is_positive = bounds_of(metric, first.unit, everything)[0] == 0

    def judged(base: str, one: Estimate, other: str, two: Estimate) -> tuple[Pair, Judgement]:
        pair = pair_of(metric, *([run.id for run in groups[each]] for each in (base, other)))
        tolerance = first.tolerance
        return pair, judge(
            (base, one), (other, two), better=better, tolerance=tolerance, noise=noise, is_positive=is_positive
        )

    for at, cell in enumerate(cells):
        base = cells[0]
        reason = trouble or (f"{base.group}: {base.why}" if base.why else cell.why)
        if at == 0 or reason or base.estimate is None or cell.estimate is None:
            cells[at] = cell if at == 0 else replace(cell, verdict=Verdict.NOT_COMPARABLE, why=reason)
            continue
        pair, judgement = judged(base.group, base.estimate, cell.group, cell.estimate)
        row.pairs[at], row.judgements[pair] = pair, judgement
    known = {cell.group: cell.estimate for cell in cells if cell.estimate and not cell.estimate.not_finite}
    if better and not trouble and known:
        best = (max if better == "higher" else min)(known, key=lambda group: known[group].mean)
        row.to_best.update(judged(best, known[best], name, each) for name, each in known.items() if name != best)
    return replace(row, cells=tuple(cells))


@dataclass(frozen=True)
class _MetricRow:
    """A row whose verdicts are not settled yet; `pairs` has that of each cell, `to_best` those of a ranking."""

    metric: str
    unit: str
    better: Better
    cells: tuple[Cell, ...]
    judgements: dict[Pair, Judgement]
    pairs: list[Pair | None]
    to_best: dict[Pair, Judgement]

    def judged(self, settled: Mapping[Pair, Judgement]) -> MetricRow:
        cells = [
            cell if pair is None else replace(cell, **vars(settled[pair]))
            for cell, pair in zip(self.cells, self.pairs, strict=True)
        ]
        return MetricRow(self.metric, self.unit, self.better, tuple(cells))


def _trouble(cell: Cell, runs: int, present: int) -> str:
    """Return why the mean of a group does not stand for all its runs, if it does not."""
    if cell.estimate is None:
        return "none of its runs is done" if runs == 0 else "it was not measured"
    if cell.estimate.not_finite:
        return f"{cell.estimate.not_finite} of {present} values are NaN or infinite"
    return f"{runs - present} of {runs} runs did not measure it" if present < runs else ""


def _notes(groups: Mapping[str, Sequence[Run]], counting: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = []
    for name, runs in groups.items():
        others = [ending(run) for run in runs if not counts(run)]
        if others:
            states = ", ".join(f"{others.count(state)} {state}" for state in dict.fromkeys(others))
            notes.append(f"{name}: {len(others)} of {len(runs)} runs do not count ({states})")
        if len(counting[name]) > 1 and (inner := inner_differences(counting[name])):
            more = f" and {len(inner) - _FEW} more" if len(inner) > _FEW else ""
            notes.append(f"{name}: its runs are not exact repeats: they differ in {', '.join(inner[:_FEW])}{more}")
    return notes


def _mean(estimate: Estimate | None, unit: str) -> str:
    return "" if estimate is None else estimate_text(estimate, unit)


def _arrow(better: Better) -> str:
    return {"lower": "↓ lower is better", "higher": "↑ higher is better"}.get(better, "")
