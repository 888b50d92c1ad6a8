"""References with tolerances per system, and whether runs keep to them.

A file of references names systems, or `*` for any other, and for each the metrics:

    jureca:
      samples_per_s: {value: 1200, lower_tolerance: 5%, unit: samples/s}
    "*":
      loss: {value: 0.1, upper_tolerance: 10%}

A tolerance is a share of the value; the side that has none is not bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from fairmile.base.errors import InvalidDocument, NotFound, Problem, RunFailed, SystemFailure
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_number
from fairmile.base.words import did_you_mean
from fairmile.base.yaml import Located, load_located
from fairmile.reports.comparison import json_value
from fairmile.reports.inference import Estimate
from fairmile.reports.measures import Measure, between, estimate_of, estimate_text, measures, percent, title
from fairmile.reports.shapes import CheckDict
from fairmile.runs.record.run import Run, RunState

ANY = "*"
_KEYS = ("value", "lower_tolerance", "upper_tolerance", "unit")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%")


@dataclass(frozen=True)
class Reference:
    """What a metric should be on a system, and how far below and above it may lie, as a share of the value."""

    metric: str
    value: float
    lower_tolerance: float | None = None
    upper_tolerance: float | None = None
    unit: str = ""
    system: str = ANY

    @property
    def low(self) -> float:
        return -math.inf if self.lower_tolerance is None else self.value - abs(self.value) * self.lower_tolerance

    @property
    def high(self) -> float:
        return math.inf if self.upper_tolerance is None else self.value + abs(self.value) * self.upper_tolerance


@dataclass(frozen=True)
class Finding:
    """Whether one metric keeps to its reference on one system."""

    metric: str
    system: str
    passed: bool
    reference: Reference
    estimate: Estimate | None
    why: str = ""


@dataclass(frozen=True, repr=False)
class Check(Result):
    """The verdicts of all references that apply, and which systems had none."""

    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(each.passed for each in self.findings)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and rows, one for each metric and system."""
        rows = []
        for each in self.findings:
            unit = each.reference.unit
            mean = "" if each.estimate is None else estimate_text(each.estimate, unit)
            verdict = "pass" if each.passed else "fail"
            rows.append([title(each.metric), each.system, verdict, mean, _bounds(each.reference), each.why])
        return ["metric", "system", "verdict", "measured", "allowed", "why"], rows

    def to_dict(self) -> CheckDict:
        return cast(CheckDict, {"passed": self.passed, **json_value(asdict(self))})

    def summary(self) -> str:
        failed = [f"{each.metric} on {each.system}" for each in self.findings if not each.passed]
        return f"{len(self.findings)} checked, " + (f"failed: {', '.join(failed)}" if failed else "all passed")

    def _repr_html_(self) -> str:
        return rows_table(*self.table())

    def require(self) -> None:
        """Raise RunFailed unless every metric keeps to its reference."""
        failed = [each for each in self.findings if not each.passed]
        if not failed:
            return
        first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise RunFailed(
            f"{first.metric} on {first.system} is outside its reference: {first.why}{more}",
            hint="`fairmile report` on these runs shows what changed",
        )


def check(runs: Sequence[Run], references: Sequence[Reference]) -> Check:
    """Hold runs against references: the mean of the runs on a system must lie within the tolerance.

    A run that is not done fails every metric of its system, and so does a metric that was not measured, is not
    finite or has another unit. When no reference applies at all, NotFound is raised: nothing checked is no pass.
    """
    findings: list[Finding] = []
    unchecked = []
    for system in dict.fromkeys(run.system for run in runs):
        here = [run for run in runs if run.system == system]
        applying = _applying(system, references)
        findings += [_finding(reference, system, here) for reference in applying.values()]
        if not applying:
            unchecked.append(system)
    if not findings:
        raise NotFound(
            f"no reference is for {', '.join(unchecked) or 'these runs'}",
            hint=f"references exist for {', '.join(dict.fromkeys(each.system for each in references)) or 'no system'}",
        )
    return Check(tuple(findings), tuple(unchecked))


def read_references(file: Path) -> list[Reference]:
    """Read a file of references; an error names its line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {file}") from error
    except UnicodeDecodeError as error:
        raise InvalidDocument([Problem("is not UTF-8 text", file=str(file))]) from error
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    return _Reading(load_located(text, file=str(file)), str(file)).references()


def _applying(system: str, references: Sequence[Reference]) -> dict[str, Reference]:
    """Return the references of a system by metric; those for any system stand back behind its own."""
    by_metric = {each.metric: each for each in references if each.system == ANY}
    return by_metric | {each.metric: each for each in references if each.system == system}


def _finding(reference: Reference, system: str, runs: Sequence[Run]) -> Finding:
    name = reference.metric
    bad = [run for run in runs if run.state is not RunState.DONE]
    measured_values = [measures(run).get(name) for run in runs if run.state is RunState.DONE]
    present = [each for each in measured_values if each is not None]
    measured = estimate_of(name, present[0].unit, [each.value for each in present]) if present else None
    why = _obstacle(reference, bad, measured_values, present) or _miss(reference, measured)
    passed = not why
    if passed and measured and measured.ends is not None:
        outside = measured.ends[0] < reference.low or measured.ends[1] > reference.high
        what = "one of its values lies" if measured.low is None else "its interval reaches"
        why = f"barely: {what} beyond the tolerance" if outside else ""
    return Finding(name, system, passed, reference, measured, why)


def _obstacle(
    reference: Reference, bad: Sequence[Run], measured_values: Sequence[Measure | None], present: Sequence[Measure]
) -> str:
    """Return what keeps the metric from being judged, if anything."""
    if bad:
        return f"run {bad[0].id} is {bad[0].state}" + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
    if len(present) < len(measured_values) or not present:
        return f"{len(measured_values) - len(present)} of {len(measured_values)} runs did not measure it"
    others = {each.unit for each in present} - {"", reference.unit}
    if reference.unit and others:
        return f"it is measured in {', '.join(sorted(others))}, not {reference.unit}"
    values = [each.value for each in present if not math.isfinite(each.value)]
    return f"{len(values)} of {len(present)} values are NaN or infinite" if values else ""


def _miss(reference: Reference, measured: Estimate | None) -> str:
    if measured is None or reference.low <= measured.mean <= reference.high:
        return ""
    side = "below" if measured.mean < reference.low else "above"
    value = reference.value
    off = f"{percent(abs(measured.mean - value) / abs(value), signed=False)} " if value else ""
    allowed = reference.lower_tolerance if side == "below" else reference.upper_tolerance
    return f"{off}{side} {format_number(value, reference.unit)}, {percent(allowed, signed=False)} is allowed"


def _bounds(reference: Reference) -> str:
    low, high = format_number(reference.low, reference.unit), format_number(reference.high, reference.unit)
    if reference.lower_tolerance is None:
        return f"≤ {high}"
    if reference.upper_tolerance is None:
        return f"≥ {low}"
    return between(reference.low, reference.high, reference.unit)


class _Reading:
    """Turns the data of a file into references, or tells every problem with its line."""

    def __init__(self, located: Located, file: str) -> None:
        self._located = located
        self._file = file
        self._problems: list[Problem] = []

    def references(self) -> list[Reference]:
        data, references = self._located.data, []
        if not isinstance(data, Mapping) or not data:
            self._wrong("expected systems, each with its metrics", ())
            data = {}
        for system, metrics in data.items():
            if not isinstance(metrics, Mapping):
                self._wrong("expected metrics, each with its reference", (system,))
                continue
            references += [self._reference(str(system), str(name), stated) for name, stated in metrics.items()]
        if self._problems:
            raise InvalidDocument(self._problems)
        return references

    def _reference(self, system: str, metric: str, stated: Any) -> Reference:
        path = (system, metric)
        if not isinstance(stated, Mapping):
            self._wrong("expected {value: …, lower_tolerance: …, upper_tolerance: …, unit: …}", path)
            return Reference(metric, math.nan, system=system)
        for key in stated:
            if key not in _KEYS:
                hint = did_you_mean(str(key), _KEYS) or f"known are {', '.join(_KEYS)}"
                self._wrong(f"unknown field {key!r}", (*path, str(key)), hint=hint)
        value = stated.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self._wrong("expected a finite number", (*path, "value"))
            value = math.nan
        lower = self._tolerance(stated.get("lower_tolerance"), (*path, "lower_tolerance"))
        upper = self._tolerance(stated.get("upper_tolerance"), (*path, "upper_tolerance"))
        if stated.get("lower_tolerance") is None and stated.get("upper_tolerance") is None:
            self._wrong("expected a lower_tolerance, an upper_tolerance or both", path, hint="5% or 0.05")
        return Reference(metric, float(value), lower, upper, str(stated.get("unit") or ""), system)

    def _tolerance(self, stated: Any, path: tuple[str, ...]) -> float | None:
        if stated is None:
            return None
        if isinstance(stated, str) and (match := _PERCENT.fullmatch(stated.strip())):
            return float(match[1]) / 100
        if isinstance(stated, (int, float)) and not isinstance(stated, bool) and 0 <= stated < math.inf:
            return float(stated)
        self._wrong(f"expected a share such as 5% or 0.05, found {stated!r}", path)
        return None

    def _wrong(self, message: str, path: tuple[str, ...], hint: str = "") -> None:
        line = self._located.line(path) if path else 1
        self._problems.append(Problem(message, ".".join(path), file=self._file, line=line, hint=hint))
