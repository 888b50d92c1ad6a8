"""All benchmarks in one table: trivial baseline, best classical one and model, with what they cost."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from fairmile.base.digest import sha256_file
from fairmile.base.distributions import t_quantile
from fairmile.base.errors import NotFound
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.results import Results
from fairmile.base.units import format_number
from fairmile.benchmarks.harness.scores import FILE
from fairmile.benchmarks.program import names
from fairmile.reports.comparison import json_value
from fairmile.reports.inference import CONFIDENCE, Estimate, estimate
from fairmile.reports.measures import interval
from fairmile.runs.exchange import folder_of
from fairmile.runs.record.layout import work_folder
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.runs import Runs

Kind = Literal["trivial", "classical", "model"]
Verdict = Literal["better", "worse", "cannot tell", ""]
_KINDS: tuple[Kind, ...] = ("trivial", "classical", "model")
_FEWEST = 3  # seeds from which a difference has an interval
COLUMNS = (
    "benchmark",
    "metric",
    "trivial",
    "best classical",
    "model",
    "model is",
    "seeds",
    "time",
    "CPU time",
    "energy",
)


class MethodDict(TypedDict):
    name: str
    mean: Any
    low: Any
    high: Any
    values: list[Any]


class BenchmarkRowDict(TypedDict):
    """One benchmark with one set of settings; `difference` is the model's score minus the best classical one."""

    benchmark: str
    settings: dict[str, Any]
    data: str
    system: str
    metric: str
    better: str
    target: float | None
    trivial: MethodDict | None
    classical: MethodDict | None
    model: MethodDict | None
    difference: MethodDict | None
    verdict: str
    seeds: list[int]
    elapsed_s: MethodDict | None
    cpu_s: MethodDict | None
    energy_j: MethodDict | None
    energy_source: str
    runs: list[str]


class BenchmarkTableDict(TypedDict):
    benchmarks: list[BenchmarkRowDict]


class Method(NamedTuple):
    """What one method reaches over the seeds; with three of them or more, the 95 % interval of the mean."""

    name: str
    mean: float
    half_width: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> Method:
        found: Estimate = estimate(values)
        half = None
        if found.sd is not None and found.count >= _FEWEST:
            half = t_quantile((1 + CONFIDENCE) / 2, found.count - 1) * found.sd / math.sqrt(found.count)
        return cls(name, found.mean, half, tuple(values))

    def text(self, unit: str = "") -> str:
        """Return the mean with its interval."""
        return interval(self.mean, self.half_width, unit) if self.half_width else format_number(self.mean, unit)

    def to_dict(self) -> MethodDict:
        ends = (None, None) if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)
        document: MethodDict = json_value(
            {"name": self.name, "mean": self.mean, "low": ends[0], "high": ends[1], "values": list(self.values)}
        )
        return document


@dataclass(frozen=True, repr=False)
class BenchmarkRow:
    """One benchmark with one set of settings: all seeds of it."""

    benchmark: str
    settings: Mapping[str, Any]  # only those in which rows of a benchmark differ
    data: str
    system: str
    metric: str
    better: str
    target: float | None
    methods: Mapping[Kind, Method]  # the best of each kind
    difference: Method | None
    seeds: tuple[int, ...]
    elapsed_s: Method | None
    cpu_s: Method | None
    energy_j: Method | None  # None where not all runs were measured
    energy_source: str
    runs: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """How the model compares with the best classical method, seed by seed; empty with fewer than three seeds."""
        if self.difference is None or self.difference.half_width is None:
            return ""
        if abs(self.difference.mean) <= self.difference.half_width:
            return "cannot tell"
        return "better" if (self.difference.mean > 0) == (self.better == "higher") else "worse"

    @property
    def label(self) -> str:
        """The benchmark, and the settings that tell its rows apart."""
        return " ".join([self.benchmark, *(f"{name}={value}" for name, value in self.settings.items())])

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of `COLUMNS`."""
        arrow = {"higher": "↑", "lower": "↓"}.get(self.better, "")
        scores = [f"{each.text()} ({each.name})" if each else "" for each in map(self.methods.get, _KINDS)]
        times = [each.text("s") if each else "" for each in (self.elapsed_s, self.cpu_s)]
        energy = f"{self.energy_j.text('J')} ({self.energy_source})" if self.energy_j else self.energy_source
        return (self.label, f"{self.metric} {arrow}", *scores, self.verdict, str(len(self.seeds)), *times, energy)

    def to_dict(self) -> BenchmarkRowDict:
        trivial, classical, model = (each and each.to_dict() for each in map(self.methods.get, _KINDS))
        return {
            "benchmark": self.benchmark,
            "settings": dict(self.settings),
            "data": self.data,
            "system": self.system,
            "metric": self.metric,
            "better": self.better,
            "target": self.target,
            "trivial": trivial,
            "classical": classical,
            "model": model,
            "difference": self.difference and self.difference.to_dict(),
            "verdict": self.verdict,
            "seeds": list(self.seeds),
            "elapsed_s": self.elapsed_s and self.elapsed_s.to_dict(),
            "cpu_s": self.cpu_s and self.cpu_s.to_dict(),
            "energy_j": self.energy_j and self.energy_j.to_dict(),
            "energy_source": self.energy_source,
            "runs": list(self.runs),
        }


class BenchmarkTable(Results[BenchmarkRow]):
    """The rows of all benchmarks that were run."""

    def to_dict(self) -> BenchmarkTableDict:
        return {"benchmarks": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return f"{len(self)} rows: {', '.join(each.label for each in self)}"

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        rows = [COLUMNS, ("---",) * len(COLUMNS), *(each.cells() for each in self)]
        return "".join(f"| {' | '.join(cell.replace('|', ' ') for cell in row)} |\n" for row in rows)

    def _repr_html_(self) -> str:
        return rows_table(COLUMNS, [each.cells() for each in self])


class _Recorded(NamedTuple):
    """A run, and what it found out."""

    run: Run
    results: Mapping[str, Any]


def compare_benchmarks(runs: Runs, references: Sequence[str]) -> BenchmarkTable:
    """Return a row for each benchmark and set of settings among runs; all runs of the suite where none are named."""
    groups: dict[str, list[_Recorded]] = {}
    for run in _selected(runs, references):
        results = _results_of(runs, run)
        if results is not None:
            kept = [results.get("benchmark"), results.get("settings"), results.get("data"), run.system]
            groups.setdefault(json.dumps(kept, sort_keys=True), []).append(_Recorded(run, results))
    if not groups:
        named = f"none of {', '.join(references)}" if references else "no run"
        raise NotFound(f"{named} has results of a benchmark", hint="run one first: `fairmile run mnist`")
    alike: dict[str, list[list[_Recorded]]] = {}
    for group in groups.values():
        alike.setdefault(_name(group[0]), []).append(_by_seed(group))
    return BenchmarkTable(_row(group, _differing(rows)) for _, rows in sorted(alike.items()) for group in rows)


def _selected(runs: Runs, references: Sequence[str]) -> list[Run]:
    """Return the runs that are done, the oldest first."""
    if references:
        chosen = {run.id: run for reference in references for run in runs.select(reference)}
    else:
        rows = [row for name in names() for row in runs.ls(name=name, states=[RunState.DONE])]
        chosen = {row.id: runs.get(row.id) for row in rows}
    return sorted((run for run in chosen.values() if run.state is RunState.DONE), key=lambda run: run.created)


def _results_of(runs: Runs, run: Run) -> Mapping[str, Any] | None:
    """Return what a benchmark wrote of a run; None where it is no benchmark's, or the file is gone or changed since."""
    if FILE not in run.outputs:
        return None
    with folder_of(run) as folder, tempfile.TemporaryDirectory(prefix="fairmile-results-") as scratch:
        place = work_folder(folder, run.record.spec) / FILE
        try:
            if not place.is_file():
                runs.bring_output(run, FILE, place := Path(scratch) / FILE)
            if sha256_file(place) != run.outputs[FILE].sha256:
                return None
            document = json.loads(place.read_text(encoding="utf-8"))
        except (NotFound, OSError, ValueError):
            return None
    is_complete = isinstance(document, dict) and {"benchmark", "metric", "scores"} <= set(document)
    return document if is_complete else None


def _by_seed(group: Iterable[_Recorded]) -> list[_Recorded]:
    """Return one run of each seed, the newest: repeats of a seed say nothing new."""
    newest = {int(each.results.get("seed", 0)): each for each in group}
    return [newest[seed] for seed in sorted(newest)]


def _name(recorded: _Recorded) -> str:
    name = recorded.run.name
    return name if name in names() else str(recorded.results["benchmark"])


def _differing(rows: Sequence[Sequence[_Recorded]]) -> list[str]:
    """Return the settings in which rows of a benchmark differ."""
    settings = [row[0].results.get("settings") or {} for row in rows]
    every = dict.fromkeys(name for each in settings for name in each)
    return [name for name in every if len({json.dumps(each.get(name)) for each in settings}) > 1]


def _row(group: Sequence[_Recorded], differing: Sequence[str]) -> BenchmarkRow:
    first, runs = group[0], [each.run for each in group]
    metric = first.results["metric"]
    better = str(metric.get("better", ""))
    methods = {kind: found for kind in _KINDS if (found := _best(group, kind, str(metric["name"]), better)) is not None}
    model, classical = methods.get("model"), methods.get("classical")
    difference = None
    if model is not None and classical is not None:
        pairs = zip(model.values, classical.values, strict=True)
        difference = Method.of(f"{model.name} - {classical.name}", [own - other for own, other in pairs])
    settings = first.results.get("settings") or {}
    return BenchmarkRow(
        benchmark=_name(first),
        settings={name: settings.get(name) for name in differing},
        data=str(first.results.get("data", "")),
        system=first.run.system,
        metric=str(metric["name"]),
        better=better,
        target=metric.get("target"),
        methods=methods,
        difference=difference,
        seeds=tuple(int(each.results.get("seed", 0)) for each in group),
        elapsed_s=_mean("elapsed", [run.elapsed_s for run in runs]),
        cpu_s=_mean("CPU", [run.usage.get("cpu_s") for run in runs]),
        energy_j=_mean("energy", [run.energy_j for run in runs]),
        energy_source=_energy_source(runs),
        runs=tuple(run.id for run in runs),
    )


def _best(group: Sequence[_Recorded], kind: Kind, metric: str, better: str) -> Method | None:
    """Return the method of a kind with the best mean, of those that every seed has."""
    values: dict[str, list[float]] = {}
    for each in group:
        for score in each.results["scores"]:
            if score["kind"] == kind and isinstance(value := score["values"].get(metric), int | float):
                values.setdefault(score["name"], []).append(float(value))
    methods = [Method.of(name, found) for name, found in values.items() if len(found) == len(group)]
    order = 1 if better == "lower" else -1
    return min(methods, key=lambda each: order * each.mean, default=None)


def _mean(name: str, values: Sequence[float | None]) -> Method | None:
    """Return the mean of what every run has; None where one lacks it."""
    known = [value for value in values if value is not None]
    return Method.of(name, known) if len(known) == len(values) else None


def _energy_source(runs: Sequence[Run]) -> str:
    """Return what was measured and by which method, which says so if it is an estimate; else that nothing was."""
    if any(run.energy_j is None for run in runs):
        return "no energy counter"
    parts = [part for run in runs for part in run.energy.parts]
    return "; ".join(dict.fromkeys(f"{part.get('scope')}, {part.get('method')}" for part in parts))
