"""Statistics of spans and metrics, as a table, CSV, JSON, YAML or plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal, Protocol

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.base.yaml_text import dump
from fairmile.meter.lines import Log, Logged, number_text
from fairmile.meter.tally import Tally

Form = Literal["table", "csv", "json", "yaml", "text"]
FORMS: tuple[Form, ...] = ("table", "csv", "json", "yaml", "text")
Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class SpanSummary:
    """All calls of one timer; without a finished call there are no times, only `running` ones."""

    name: str
    rank: int | None
    count: int
    running: int
    total_s: float
    mean_s: float | None
    min_s: float | None
    max_s: float | None
    deviation_s: float | None  # of the sample, so n - 1; None for a single call
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """All values of one metric; `min`, `max`, `mean` and the best pass over NaN, `mean` over infinities as well."""

    name: str
    rank: int | None
    first: float
    last: float
    min: float
    max: float
    mean: float
    count: int
    not_finite: int
    at_best_step: float | None  # None also where nobody said which direction is better


class HasTallies(Protocol):
    """A live meter."""

    def tallies(self) -> Iterable[tuple[str, int | None, Tally, int]]:
        """Yield name, rank, durations and number of running calls of each timer."""


def summarise(source: Log | HasTallies, *, by_rank: bool = False) -> list[SpanSummary]:
    """Return the statistics of each timer, in the order of first use; with `by_rank` of each rank by itself."""
    tallies: dict[tuple[str, int | None], tuple[Tally, int]] = {}
    for name, rank, tally, running in _tallies(source):
        key = (name, rank if by_rank else None)
        whole, already = tallies.get(key) or (Tally(), 0)
        whole.merge(tally)
        tallies[key] = whole, already + running
    return [_span_summary(name, rank, tally, running) for (name, rank), (tally, running) in tallies.items()]


def summarise_metrics(
    log: Log, *, by_rank: bool = False, better: Mapping[str, Better] | None = None
) -> list[MetricSummary]:
    """Return the statistics of each metric, in the order of first use; `better` tells the direction of some."""
    values: dict[tuple[str, int | None], list[Logged]] = {}
    for each in log.metrics:
        values.setdefault((each.name, each.writer.rank if by_rank else None), []).append(each)
    known = better or {}
    return [_metric_summary(name, rank, logged, known.get(name)) for (name, rank), logged in values.items()]


def span_documents(log: Log) -> dict[str, dict[str, Any]]:
    """Return for each timer what the record of a run keeps of it."""
    return {each.name: _without(asdict(each), "name", "rank", "running") for each in summarise(log)}


def metric_documents(log: Log) -> dict[str, dict[str, Any]]:
    """Return for each metric what the record of a run keeps of it; `value` is the last one.

    Where rank 0 logged a metric, what other ranks logged of it does not count.
    """
    leading = {each.name for each in log.metrics if each.writer.rank == 0}
    counted = [each for each in log.metrics if each.writer.rank == 0 or each.name not in leading]
    documents = {}
    for each in summarise_metrics(Log(metrics=counted)):
        statistics = {name: number_text(getattr(each, name)) for name in ("first", "min", "max", "mean")}
        documents[each.name] = {"value": number_text(each.last), **statistics, "count": each.count}
    return documents


def render(summaries: Sequence[SpanSummary] | Sequence[MetricSummary], form: Form = "table") -> str:
    """Return summaries as text in one of the FORMS; times are seconds wherever a program may read them."""
    rows = [asdict(each) for each in summaries]
    if form not in FORMS:
        raise UsageError(f"no form {form!r}", hint="one of " + ", ".join(FORMS))
    if form == "table":
        return _table(summaries)
    if form == "text":
        return "".join(f"{_sentence(each)}\n" for each in summaries)
    if form == "csv":
        return _csv(rows)
    plain = [
        {key: number_text(value) if isinstance(value, float) else value for key, value in row.items()} for row in rows
    ]
    if form == "yaml":
        return dump(plain)
    import json

    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def _tallies(source: Log | HasTallies) -> Iterator[tuple[str, int | None, Tally, int]]:
    if isinstance(source, Log):
        for spans in source.spans:
            yield spans.name, spans.writer.rank, Tally(spans.durations_ns), 0
    else:
        yield from source.tallies()


def _span_summary(name: str, rank: int | None, tally: Tally, running: int) -> SpanSummary:
    count, total, least, greatest, squares = tally.moments()
    if not count:
        return SpanSummary(name, rank, 0, running, 0.0, None, None, None, None, None, None, None)
    # Whole numbers cancel exactly; only the quotient is rounded.
    variance = (count * squares - total * total) / (count * (count - 1)) if count > 1 else None
    p50, p95, p99 = tally.percentiles_ns((0.50, 0.95, 0.99))
    return SpanSummary(
        name=name,
        rank=rank,
        count=count,
        running=running,
        total_s=total / 1e9,
        mean_s=total / count / 1e9,
        min_s=least / 1e9,
        max_s=greatest / 1e9,
        deviation_s=None if variance is None else math.sqrt(variance) / 1e9,
        p50_s=p50 / 1e9,
        p95_s=p95 / 1e9,
        p99_s=p99 / 1e9,
    )


def _metric_summary(name: str, rank: int | None, logged: list[Logged], better: Better | None) -> MetricSummary:
    logged = sorted(logged, key=lambda each: each.at_ns)
    numbers = [each for each in logged if not math.isnan(each.value)]
    finite = [each.value for each in numbers if math.isfinite(each.value)]
    best = None
    if better is not None and numbers:
        best = (min if better == "lower" else max)(numbers, key=lambda each: each.value).step
    values = [each.value for each in numbers]
    return MetricSummary(
        name=name,
        rank=rank,
        first=logged[0].value,
        last=logged[-1].value,
        min=min(values, default=math.nan),
        max=max(values, default=math.nan),
        mean=math.fsum(value / len(finite) for value in finite) if finite else math.nan,
        count=len(logged),
        not_finite=len(logged) - len(finite),
        at_best_step=best,
    )


def _csv(rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    out = io.StringIO()
    names = list(rows[0]) if rows else [field.name for field in fields(SpanSummary)]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _sentence(each: SpanSummary | MetricSummary) -> str:
    place = "" if each.rank is None else f" (rank {each.rank})"
    if isinstance(each, MetricSummary):
        text = f"{each.count} values, first {each.first:g}, last {each.last:g}, {each.min:g} to {each.max:g}"
        return f"{each.name}{place}: {text}, mean {each.mean:g}"
    text = f"{each.running} running" if each.running else ""
    if each.count:
        times = [format_duration(value or 0) for value in (each.total_s, each.mean_s, each.min_s, each.max_s)]
        calls = "1 call" if each.count == 1 else f"{each.count} calls"
        done = f"{calls}, {times[0]} in total, {times[1]} on average, {times[2]} to {times[3]}"
        text = f"{done}, {text}" if text else done
    return f"{each.name}{place}: {text}"


def _table(summaries: Sequence[SpanSummary] | Sequence[MetricSummary]) -> str:
    if not summaries:
        return ""
    ranked = any(each.rank is not None for each in summaries)
    names = [field.name for field in fields(summaries[0]) if ranked or field.name != "rank"]
    if isinstance(summaries[0], SpanSummary) and not any(each.running for each in summaries):  # type: ignore[union-attr]
        names.remove("running")
    rows = [[_cell(name, getattr(each, name)) for name in names] for each in summaries]
    heads = [name.removesuffix("_s").replace("_", " ") for name in names]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name.endswith("_s"):
        return format_duration(value)
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in names}
