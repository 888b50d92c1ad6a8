"""What a program gave out, as the parts of a report: images, tables, and a benchmark's scores beside baselines."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import islice
from pathlib import Path
from typing import Any

from fairmile.base.files import safe_join
from fairmile.base.units import format_number
from fairmile.reports.blocks import Block, Cell, Drawing, Heading, Note, Row, Text, clean, table
from fairmile.runs.record.run import Run

FILE = "results.json"
# Kinds of images, each with how a file of it begins; an SVG is text.
_IMAGES = {
    ".svg": ("image/svg+xml", b""),
    ".png": ("image/png", b"\x89PNG\r\n\x1a\n"),
    ".jpg": ("image/jpeg", b"\xff\xd8\xff"),
    ".jpeg": ("image/jpeg", b"\xff\xd8\xff"),
    ".gif": ("image/gif", b"GIF8"),
}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MOST_BYTES = 5_000_000
_MOST_BYTES_OF_ALL = 20_000_000  # of the images of one page
_MOST_PIXELS = 50_000_000  # of a PNG: a small file can unpack to any size
_MOST_SCORES = 8  # columns of metrics beside each other
_MOST_HEAD = 4096  # bytes of an image in which its title is looked for
_MOST_IMAGES, _MOST_TABLES, _MOST_ROWS, _MOST_COLUMNS, _MOST_LETTERS = 12, 6, 50, 16, 200


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
    """Return the scores of a benchmark, where the run is one."""
    results = results_of(run)
    if results is None:
        return
    yield Heading("Scores")
    yield Text(f"{results.get('benchmark', '')} on {results.get('data', '')}, seed {results.get('seed', '')}.")
    yield from _scores(results)
    for note in _items(results, "notes"):
        yield Note(str(note), "dim")
    yield from _published([each for each in _items(results, "published") if isinstance(each, dict)])


def output_blocks(run: Run) -> Iterator[Block]:
    """Return the images and tables among the outputs of a run; those of a benchmark in the order that it names."""
    results = results_of(run) or {}
    named = [str(name) for name in _items(results, "figures")]
    names = list(dict.fromkeys([*named, *sorted(run.outputs)]))
    images = [name for name in names if Path(name).suffix.lower() in _IMAGES]
    tables = [name for name in names if Path(name).suffix.lower() in _DELIMITERS]
    blocks: list[Block] = [
        *_drawings(run, images),
        *(block for name in tables[:_MOST_TABLES] for block in _table(run, name)),
    ]
    left_out = max(0, len(images) - _MOST_IMAGES) + max(0, len(tables) - _MOST_TABLES)
    if blocks:
        yield Heading("Images and tables")
        yield from blocks
        if left_out:
            yield Text(f"{left_out} more are listed under Provenance.")


def _drawings(run: Run, names: Sequence[str]) -> Iterator[Drawing]:
    size_bytes = 0
    for name in names[:_MOST_IMAGES]:
        drawing = _drawing(run, name)
        if drawing is not None and size_bytes + len(drawing.data) <= _MOST_BYTES_OF_ALL:
            size_bytes += len(drawing.data)
            yield drawing


def _table(run: Run, name: str) -> Iterator[Block]:
    """Return the first rows of a table; nothing where the file holds none."""
    data = _output(run, name)
    if data is None:
        return
    lines = data.decode("utf-8-sig", "replace").splitlines()
    rows = _first_rows(lines, _DELIMITERS[Path(name).suffix.lower()])
    if len(rows) < 2 or not any(rows[0]):
        return
    shown = min(len(rows[0]), _MOST_COLUMNS)
    unique = [f"{each} ({at})" if rows[0].count(each) > 1 else each for at, each in enumerate(rows[0][:shown], 1)]
    columns = [each[:_MOST_LETTERS] for each in unique]
    cells = [[_table_cell(row[at] if at < len(row) else "") for at in range(shown)] for row in rows[1:]]
    numbers = [
        name for at, name in enumerate(columns) if all(row[at].sort is not None or not row[at].text for row in cells)
    ]
    whole = sum(1 for line in lines if line.strip()) - 1
    left_out = f" The first {len(cells)} of {whole:,} rows are shown." if whole > len(cells) else ""
    left_out += f" {len(rows[0]) - shown} more columns are not shown." if len(rows[0]) > shown else ""
    yield Text(f"{name}.{left_out}")
    yield table(columns, [list(row) for row in cells], numbers=numbers)


def _first_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the heading and the first rows; none where the lines are no table."""
    if lines and ";" in lines[0] and delimiter not in lines[0]:
        delimiter = ";"
    try:
        return list(islice(csv.reader(lines, delimiter=delimiter), _MOST_ROWS + 1))
    except csv.Error:
        return []


def _table_cell(text: str) -> Cell:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    return Cell(text[:_MOST_LETTERS], sort=number if math.isfinite(number) else None)


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
    if len(names) <= _MOST_SCORES or len(scores) > len(names):
        yield table(columns, rows, numbers=names)
    else:
        yield from _scores_by_metric(scores, names)
    metric = results.get("metric")
    if isinstance(metric, dict) and metric.get("better"):
        target = _value(metric.get("target")).text
        aim = f"; the target of the benchmark is {target}" if target else ""
        yield Text(f"{metric.get('name', '')}: {metric['better']} is better{aim}.")


def _scores_by_metric(scores: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Block]:
    """Return a row for each metric and a column for each method, the model first; so many do not fit in one row."""
    scores = sorted(scores, key=lambda each: each.get("kind") != "model")
    methods = [str(each.get("name", "")) for each in scores]
    labels = [f"{each} ({at})" if methods.count(each) > 1 else each for at, each in enumerate(methods, 1)]
    kinds = [Cell(str(each.get("kind", "")), tone="good" if each.get("kind") == "model" else "") for each in scores]
    rows: list[Row] = [["kind", *kinds]]
    for name in names:
        rows.append([name, *(_value(each["values"].get(name)) for each in scores)])
    yield table(["metric", *labels], rows, numbers=labels)
    for label, each in zip(labels, scores, strict=True):
        if each.get("note"):
            yield Text(f"{label}: {each['note']}")


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
    return Cell(format_number(value), sort=float(value))


def _drawing(run: Run, name: str) -> Drawing | None:
    """Return an output as an image; None where the file is none, or too large to show."""
    media_type, start = _IMAGES[Path(name).suffix.lower()]
    data = _output(run, name)
    if data is None or not data.startswith(start):
        return None
    if media_type == "image/png" and math.prod(struct.unpack(">II", data[16:24].ljust(8, b"\0"))) > _MOST_PIXELS:
        return None
    title = _own_title(data) or Path(name).stem.replace("_", " ").replace("-", " ").capitalize()
    return Drawing(title, data, media_type, name)


def _own_title(image: bytes) -> str:
    """Return the title that an SVG states of itself; empty where there is none, or too long for a heading."""
    match = re.search(rb"<svg[^>]*>\s*<title>([^<]{1,100})</title>", image[:_MOST_HEAD])
    return clean(" ".join(unescape(match[1].decode("utf-8", "replace")).split())) if match else ""


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
