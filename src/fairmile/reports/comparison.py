"""Groups of runs side by side: each metric with its interval, a verdict that noise cannot fake, and what differed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.meter.lines import number_text
from fairmile.reports.differences import Difference, differences, inner_differences
from fairmile.reports.measures import (
    Measure,
    counts,
    deviation,
    ending,
    interval,
    known_names,
    measures,
    percent,
    title,
    unknown_metric,
    value_text,
)
from fairmile.reports.statistics import CONFIDENCE, Effect, Estimate, effect, estimate, holm
from fairmile.runs.model import Run
from fairmile.runs.wording import Better, better_of

_FEW = 5


class Verdict(StrEnum):
    """How a group stands to the first one."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same within noise"
    DIFFERS = "differs"  # beyond the noise, but nothing says which direction is better
    NOT_COMPARABLE = "not comparable"
    TOO_FEW = "too few repeats"


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
class Row:
    """One metric over all groups."""

    metric: str
    unit: str
    better: Better
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs against the first of them."""

    groups: Mapping[str, tuple[str, ...]]  # the ids of the runs that count
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    confidence: float = CONFIDENCE

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows: a row for each metric and group; of one group alone nothing is judged."""
        columns = ["metric", "group", "runs", f"mean ± {self.confidence * 100:g} %", "sd"]
        columns += ["verdict", "to the first", "why"] if len(self.groups) > 1 else ["why"]
        rows = []
        for row in self.rows:
            base = row.cells[0].estimate
            for at, cell in enumerate(row.cells):
                name = title(row.metric) if at == 0 else ""
                runs = "" if cell.estimate is None else str(cell.estimate.count)
                sd = "" if cell.estimate is None else deviation(cell.estimate.sd, cell.estimate.mean, row.unit)
                judged = [str(cell.verdict or "" if at else _arrow(row.better)), _to_first(base, cell) if at else ""]
                judged = judged if len(self.groups) > 1 else []
                rows.append([name, cell.group, runs, _mean(cell.estimate, row.unit), sd, *judged, cell.why])
        if not any(row[-1] for row in rows):
            return columns[:-1], [row[:-1] for row in rows]
        return columns, rows

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        found: dict[str, Any] = json_value(asdict(self))
        for row in found["rows"]:
            for cell in row["cells"]:
                cell["verdict"] = cell["verdict"] or ""
        return found

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

    Repeats share group, name, parameters and system; a run without a group stands with those of its identity.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.group, run.name, dict(run.params), run.system], sort_keys=True, default=str)
        found.setdefault(key if run.group else f"{run.name} {run.identity or run.id}", []).append(run)
    groups = list(found.values())
    return dict(zip(_labels([each[0] for each in groups]), groups, strict=True))


def compare(
    groups: Mapping[str, Sequence[Run]],
    metrics: Sequence[str] | None = None,
    *,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare groups of repeats with the first one, metric by metric.

    Only runs that are done count; the notes say how many others there were. A group is called better or worse only
    where noise alone is less likely than 1 - confidence to make such a difference, over all comparisons of the table
    (Holm's rule), and where the difference is larger than the metric's own tolerance.
    """
    if not any(groups.values()):
        raise UsageError("there is nothing to compare", hint="name two runs, groups or names of runs")
    counting = {name: [run for run in runs if counts(run)] for name, runs in groups.items()}
    everything = [run for runs in counting.values() for run in runs]
    if not everything:
        raise NotFound(
            "none of these runs is done, so there is nothing to compare",
            hint=f"`fairmile runs show {next(run.id for runs in groups.values() for run in runs)}` tells what happened",
        )
    known = known_names(everything)
    if metrics and (missing := [name for name in metrics if name not in known]):
        raise unknown_metric(missing[0], known)
    rows = [_row(name, counting, confidence) for name in metrics or known]
    return Comparison(
        groups={name: tuple(run.id for run in runs) for name, runs in counting.items()},
        rows=tuple(_settled(rows, confidence)),
        differences=tuple(differences({name: runs for name, runs in counting.items() if runs})),
        notes=tuple(_notes(groups, counting)),
        confidence=confidence,
    )


def effect_text(found: Effect | None) -> str:
    """Return a difference as a percentage with its interval, or as it is where no percentage makes sense."""
    if found is None:
        return ""
    if found.relative is None:
        return f"{found.difference:+.4g}"
    if found.relative_low is None or found.relative_high is None or found.relative_low == found.relative_high:
        return percent(found.relative)
    return f"{percent(found.relative)} ({percent(found.relative_low)} … {percent(found.relative_high)})"


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


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run that no other has: its own, what differs in the parameters, the system, the id."""
    said: dict[tuple[str, str], set[str]] = {}
    of_name = Counter(run.name for run in runs)
    given = Counter((run.name, name) for run in runs for name in run.params)
    for run in runs:
        for name, value in run.params.items():
            said.setdefault((run.name, name), set()).add(str(value))
    # A parameter tells runs apart when it has several values, or when only some of them have it.
    varying = {key for key, values in said.items() if len(values) > 1 or given[key] < of_name[key[0]]}
    names = [run.name for run in runs]
    for tried in (
        [_with_params(run, varying) for run in runs],
        [f"{_with_params(run, varying)} on {run.system}" for run in runs],
        [f"{_with_params(run, varying)} ({run.group or run.id})" for run in runs],
    ):
        seen = Counter(names)
        names = [new if seen[old] > 1 else old for old, new in zip(names, tried, strict=True)]
    seen = Counter(names)
    return [f"{name} {at}" if seen[name] > 1 else name for at, name in enumerate(names, 1)]


def _with_params(run: Run, varying: set[tuple[str, str]]) -> str:
    said = [f"{name}={value_text(value)}" for name, value in run.params.items() if (run.name, name) in varying]
    return " ".join([run.name, *said])


def _row(metric: str, groups: Mapping[str, Sequence[Run]], confidence: float) -> Row:
    found = {name: [each.get(metric) for each in map(measures, runs)] for name, runs in groups.items()}
    first = next((each for values in found.values() for each in values if each), Measure(0.0))
    units = {each.unit for values in found.values() for each in values if each}
    directions = {each.better for values in found.values() for each in values if each} - {""}
    better = next(iter(directions)) if len(directions) == 1 else better_of(metric) if not directions else ""
    trouble = ""
    if len(units) > 1:
        trouble = f"the units differ: {', '.join(sorted(unit or 'none' for unit in units))}"
    elif len(directions) > 1:
        trouble = "the runs do not agree on which direction is better"
    cells: list[Cell] = []
    base: Cell | None = None
    for name, values in found.items():
        present = [each.value for each in values if each]
        cell = Cell(name, estimate(present, confidence=confidence) if present else None)
        why = _trouble(cell, len(values), len(present))
        cell = replace(cell, why=why)
        if base is None:
            base = replace(cell, why=why or trouble)
            cells.append(base)
        else:
            cells.append(_judged(base, cell, trouble, better, first.tolerance))
    return Row(metric, first.unit, better, tuple(cells))


def _trouble(cell: Cell, runs: int, present: int) -> str:
    """Return why the mean of a group does not stand for all its runs, if it does not."""
    if cell.estimate is None:
        return "no run of it is done" if runs == 0 else "it was not measured"
    if cell.estimate.not_finite:
        return f"{cell.estimate.not_finite} of {present} values are NaN or infinite"
    return f"{runs - present} of {runs} runs did not measure it" if present < runs else ""


def _judged(base: Cell, cell: Cell, trouble: str, better: Better, tolerance: float | None) -> Cell:
    """Return the cell with its verdict, as if it were the only comparison."""
    reason = trouble or (f"{base.group}: {base.why}" if base.why else cell.why)
    if reason or base.estimate is None or cell.estimate is None:
        return replace(cell, verdict=Verdict.NOT_COMPARABLE, why=reason)
    counts = (base.estimate.count, cell.estimate.count)
    if 1 in counts:
        who = "one run each" if counts == (1, 1) else f"one run of {base.group if counts[0] == 1 else cell.group}"
        return replace(cell, verdict=Verdict.TOO_FEW, why=f"{who}: no statement about noise")
    found = effect(base.estimate, cell.estimate)
    within = tolerance is not None and found.relative is not None and abs(found.relative) <= tolerance
    if within:
        why = f"within the tolerance of {percent(tolerance, signed=False)}"
        return replace(cell, effect=found, verdict=Verdict.SAME, why=why, p=found.p)
    if not better:
        return replace(cell, effect=found, verdict=Verdict.DIFFERS, why="no direction is declared better", p=found.p)
    is_better = (found.difference < 0) == (better == "lower")
    # What is computed alike each time, as with one seed for all, varies less than it would among other seeds.
    why = "identical repeats: no noise seen" if found.g is None and not found.p else ""
    return replace(cell, effect=found, verdict=Verdict.BETTER if is_better else Verdict.WORSE, why=why, p=found.p)


def _settled(rows: Sequence[Row], confidence: float) -> list[Row]:
    """Return the rows with every verdict withdrawn that noise could have made among so many comparisons."""
    places = [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row.cells) if cell.p is not None]
    adjusted = dict(zip(places, holm([rows[r].cells[c].p or 0.0 for r, c in places]), strict=True))
    settled = []
    for r, row in enumerate(rows):
        cells = [
            _withdrawn(cell, adjusted[r, c], len(places), confidence) if (r, c) in adjusted else cell
            for c, cell in enumerate(row.cells)
        ]
        settled.append(replace(row, cells=tuple(cells)))
    return settled


def _withdrawn(cell: Cell, chance: float, comparisons: int, confidence: float) -> Cell:
    cell = replace(cell, p=chance)
    if chance < 1 - confidence or cell.verdict is Verdict.SAME:
        return cell
    alone = cell.effect is not None and cell.effect.p < 1 - confidence
    why = f"stands out alone, not among {comparisons} comparisons" if alone else ""
    return replace(cell, verdict=Verdict.SAME, why=why)


def _notes(groups: Mapping[str, Sequence[Run]], counting: Mapping[str, Sequence[Run]]) -> list[str]:
    notes = []
    for name, runs in groups.items():
        others = [ending(run) for run in runs if not counts(run)]
        if others:
            states = ", ".join(f"{others.count(state)} {state}" for state in dict.fromkeys(others))
            notes.append(f"{name}: {len(others)} of {len(runs)} runs do not count ({states})")
        if len(counting[name]) > 1 and (inner := inner_differences(counting[name])):
            more = f" and {len(inner) - _FEW} more" if len(inner) > _FEW else ""
            notes.append(f"{name}: its runs are no exact repeats, they differ in {', '.join(inner[:_FEW])}{more}")
    return notes


def _mean(found: Estimate | None, unit: str) -> str:
    return "" if found is None else interval(found.mean, found.half_width, unit)


def _arrow(better: Better) -> str:
    return {"lower": "↓ lower is better", "higher": "↑ higher is better"}.get(better, "")
