"""The columns of tables: CSV by its first rows, Parquet and Arrow by their schema."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from pathlib import Path
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.catalog.array_files import clear_errors, library
from fairmile.catalog.describing.columns import Column, data_type, with_unit

_LOOK_BYTES = 1 << 20
_LOOK_ROWS = 1_000
_MOST_COLUMNS = 1_000
_DELIMITERS = (",", "\t", ";", "|")
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|[+-]?inf", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?")
_MISSING = frozenset({"", "na", "n/a", "null", "none", "nan"})


def delimiter(text: str) -> str:
    """Return what separates the columns of a table in text; empty where the rows do not agree on one."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 2 and not text.endswith("\n"):
        lines.pop()  # it may be cut off
    lines = lines[:20]
    if len(lines) < 2:
        return ""
    for sign in _DELIMITERS:
        widths = {len(row) for row in csv.reader(lines, delimiter=sign)}
        if len(widths) == 1 and widths.pop() > 1:
            return sign
    return ""


def csv_columns(path: Path, name: str) -> list[Column]:
    """Return the columns of a CSV file, typed by its first rows; those of a file without a header have no name."""
    text = _beginning(path, name)
    sign = delimiter(text)
    if not sign:
        return []
    complete = text if len(text) < _LOOK_BYTES else text[: text.rfind("\n") + 1]
    try:
        rows = [row for row in csv.reader(io.StringIO(complete), delimiter=sign) if row][: _LOOK_ROWS + 1]
    except csv.Error as error:
        raise UsageError(f"{name} cannot be read as CSV: {error}") from error
    head, *body = rows
    if any(_NUMBER.fullmatch(cell.strip()) for cell in head) or len(set(head)) < len(head) or not all(head):
        raise UsageError(f"{name} has no header row, so its columns have no names")
    columns = []
    for at, header in enumerate(head[:_MOST_COLUMNS]):
        label, unit = with_unit(header)
        columns.append(Column(label, _text_type([row[at].strip() for row in body if at < len(row)]), unit))
    return columns


def _beginning(path: Path, name: str) -> str:
    """Return the first megabyte of a text, unpacked where it is compressed: never more, whatever it would unpack to."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            data = gzip.GzipFile(fileobj=stream).read(_LOOK_BYTES) if packed else stream.read(_LOOK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{name} cannot be unpacked: {error}") from error
    return data.decode("utf-8-sig", "replace")


def _text_type(cells: list[str]) -> str:
    given = [cell for cell in cells if cell.lower() not in _MISSING]
    if not given:
        return ""
    tests = (
        ("sc:Boolean", lambda cell: cell.lower() in ("true", "false")),
        ("sc:Integer", _WHOLE.fullmatch),
        ("sc:Float", _NUMBER.fullmatch),
        ("sc:Date", _DATE.fullmatch),
        ("sc:DateTime", lambda cell: _DATE.fullmatch(cell) or _TIME.fullmatch(cell)),
    )
    return next((name for name, test in tests if all(test(cell) for cell in given)), "sc:Text")


def parquet_columns(path: Path, name: str) -> list[Column]:
    """Return the columns of a Parquet file by its footer."""
    with clear_errors(name), library("pyarrow.parquet", name).ParquetFile(path) as file:
        return _schema(file.schema_arrow)


def arrow_columns(path: Path, name: str) -> list[Column]:
    """Return the columns of an Arrow or Feather file by its footer."""
    with clear_errors(name), library("pyarrow", name).memory_map(str(path)) as source:
        return _schema(library("pyarrow.ipc", name).open_file(source).schema)


def _schema(schema: Any) -> list[Column]:
    columns = []
    for field in list(schema)[:_MOST_COLUMNS]:
        label, unit = with_unit(field.name)
        about = {key.decode(errors="replace").lower(): value for key, value in (field.metadata or {}).items()}
        stated = about.get("unit") or about.get("units") or b""
        columns.append(Column(label, data_type(str(field.type)), stated.decode(errors="replace") or unit))
    return columns
