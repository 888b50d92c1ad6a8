"""What a benchmark's program found out, as the parts of a report: scores beside baselines, and its own figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.files import safe_join
from fairmile.reports.blocks import Block, Cell, Drawing, Heading, Note, Row, Text, table
from fairmile.runs.record.run import Run

FILE = "results.json"
_MEDIA_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
_MOST_BYTES = 5_000_000


def results_of(run: Run) -> Mapping[str, Any] | None:
    """Return what a benchmark left as `results.json`; None where it left none, or other bytes are there now."""
    data = _output(run, FILE)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("scores"), list) else None


def result_blocks(run: Run) -> Iterator[Block]:
    """Return the scores of a benchmark and the figures that it drew, where the run is one."""
    results = results_of(run)
    if results is None:
        return
    yield Heading("Scores")
    yield Text(f"{results.get('benchmark', '')} on {results.get('data', '')}, seed {results.get('seed', '')}.")
    yield from _scores(results)
    for note in _items(results, "notes"):
        yield Note(str(note), "dim")
    yield from _published([each for each in _items(results, "published") if isinstance(each, dict)])
    drawings = [each for name in _items(results, "figures") if (each := _drawing(run, str(name))) is not None]
    if drawings:
        yield Heading("Figures of the benchmark")
        yield from drawings


def _scores(results: Mapping[str, Any]) -> Iterator[Block]:
    scores = [each for each in results["scores"] if isinstance(each, dict) and isinstance(each.get("values"), dict)]
    names = list(dict.fromkeys(str(name) for each in scores for name in each["values"]))
    rows: list[Row] = []
    for each in scores:
        is_model = each.get("kind") == "model"
        label = Cell(str(each.get("name", "")), tone="good" if is_model else "")
        cells = [_value(each["values"].get(name)) for name in names]
        rows.append([label, str(each.get("kind", "")), *cells, str(each.get("note") or "")])
    columns = ["method", "kind", *names, "note"]
    if not any(each.get("note") for each in scores):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    yield table(columns, rows, numbers=names)
    metric = results.get("metric")
    if isinstance(metric, dict) and metric.get("better"):
        target = _value(metric.get("target")).text
        aim = f"; the target of the benchmark is {target}" if target else ""
        yield Text(f"{metric.get('name', '')}: {metric['better']} is better{aim}.")


def _published(known: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    if known:
        yield Text("Published, for comparison:")
        rows: list[Row] = [
            [
                str(each.get("name", "")),
                str(each.get("metric", "")),
                _value(each.get("value")),
                str(each.get("source", "")),
            ]
            for each in known
        ]
        yield table(["result", "metric", "value", "source"], rows, numbers=["value"])


def _items(results: Mapping[str, Any], name: str) -> list[Any]:
    """Return what a program wrote as a list, and nothing where it wrote something else."""
    items = results.get(name)
    return items if isinstance(items, list) else []


def _value(value: Any) -> Cell:
    if not isinstance(value, int | float) or not abs(value) < 1e300:  # no number, none that is finite or fits
        return Cell("")
    return Cell(f"{value:.4g}", sort=float(value))


def _drawing(run: Run, name: str) -> Drawing | None:
    media_type = _MEDIA_TYPES.get(Path(name).suffix)
    data = _output(run, name) if media_type else None
    title = Path(name).stem.replace("_", " ").replace("-", " ").capitalize()
    return Drawing(title, data, media_type) if data is not None and media_type is not None else None


def _output(run: Run, name: str) -> bytes | None:
    """Return an output of a run if it is still what the record says."""
    recorded = run.outputs.get(name)
    if run.packed or recorded is None or recorded.size_bytes > _MOST_BYTES:
        return None
    try:
        data = safe_join(run.work, name).read_bytes()
    except (OSError, ValueError):
        return None
    return data if hashlib.sha256(data).hexdigest() == recorded.sha256 else None
