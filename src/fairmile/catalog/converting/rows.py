"""Formats of rows: CSV, Parquet and TFRecord."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Integrity, Unsupported, UsageError
from fairmile.base.tf_examples import Value, make_example, parse_example
from fairmile.base.tfrecord import read_records, record
from fairmile.catalog.array_files import library
from fairmile.catalog.converting.layout import TEXT, ArraySpec, Block, Sink, Source, refused

_INT64 = np.dtype("<i8")
_FLOAT64 = np.dtype("<f8")
_LONGEST_RECORD = 1 << 30
_SHAPE = "/shape"  # a feature of this end has the shape of an array of several dimensions


class _Rows:
    """Arrays of one length that are read together, from the start."""

    attributes: Mapping[str, Any] = {}

    def __init__(
        self,
        arrays: Sequence[ArraySpec],
        records: Callable[[int], Iterator[Block]],
        notes: Sequence[str] = (),
    ) -> None:
        self.arrays = arrays
        self.notes = notes
        self._records = records

    def blocks(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Block]]:
        start = 0
        for block in self._records(rows):
            yield start, {name: block[name] for name in names}
            start += len(block[names[0]])

    def close(self) -> None:
        """Every pass opens and closes the file itself."""


class Csv:
    takes_rows, keeps_attributes = True, False

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        if len(array.shape) > 2 or array.dtype.kind not in "biufO":
            raise refused(array, "CSV")
        return (
            TEXT
            if array.is_text
            else _FLOAT64
            if array.dtype.kind == "f" and array.dtype.itemsize <= 8
            else _whole(array, "CSV")
        )

    def open(self, path: Path) -> Source:
        names, kinds, count, missing = _survey_csv(path)
        dtypes = {int: _INT64, float: _FLOAT64, str: TEXT}
        specs = [ArraySpec(name, (count,), dtypes[kind]) for name, kind in zip(names, kinds, strict=True)]
        notes = [f"{missing[name]:,} missing values of {name} became NaN" for name in names if missing.get(name)]

        def records(rows: int) -> Iterator[Block]:
            for lines in _batches(_csv_lines(path), rows):
                columns = zip(*lines, strict=True)
                yield {each.name: _parsed(texts, each.dtype) for each, texts in zip(specs, columns, strict=True)}

        return _Rows(specs, records, notes)

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        return _CsvSink(path, arrays)


class _CsvSink:
    def __init__(self, path: Path, arrays: Sequence[ArraySpec]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._arrays = arrays
        header = [
            name
            for each in arrays
            for name in ([each.name] if len(each.shape) == 1 else [f"{each.name}.{n}" for n in range(each.shape[1])])
        ]
        self._writer.writerow(header)

    def write(self, start: int, block: Block) -> None:
        columns: list[Any] = []
        for each in self._arrays:
            values = block[each.name]
            values = values.astype(np.int64) if values.dtype.kind == "b" else values
            columns += [values.tolist()] if values.ndim == 1 else values.T.tolist()
        self._writer.writerows(zip(*columns, strict=True))

    def close(self) -> None:
        self._file.close()


def _csv_lines(path: Path) -> Iterator[list[str]]:
    """Yield the lines after the header; every line must be as long as it."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            width = len(next(reader, []))
            for line in reader:
                if line and len(line) != width:
                    raise UsageError(f"{path}:{reader.line_num}: {len(line)} values, expected {width}")
                if line or width == 1:
                    yield line or [""]
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from error


def _survey_csv(path: Path) -> tuple[list[str], list[type], int, dict[str, int]]:
    """Return names and kinds of the columns, the number of rows, and how many numbers are missing in each."""
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
        names = next(csv.reader(file), [])
    if not names or len(set(names)) < len(names) or not all(names):
        raise UsageError(f"{path}: the first line must name every column once")
    kinds: list[type] = [int] * len(names)
    missing = [0] * len(names)
    count = 0
    for line in _csv_lines(path):
        count += 1
        for at, text in enumerate(line):
            if not text:
                missing[at] += 1
            elif kinds[at] is not str:
                kinds[at] = _kind(text, kinds[at])
    for at, gaps in enumerate(missing):
        if gaps and kinds[at] is not str:
            kinds[at] = str if gaps == count else float
    lost = {name: gaps for name, gaps, kind in zip(names, missing, kinds, strict=True) if gaps and kind is float}
    return names, kinds, count, lost


def _kind(text: str, known: type) -> type:
    """Return the narrowest kind that holds a text and all before it, and that is written back as the same value."""
    digits = text.removeprefix("-")
    if (
        known is int
        and digits.isascii()
        and digits.isdigit()
        and (digits == "0" or digits[0] != "0")
        and len(digits) < 19
    ):
        return int
    try:
        float(text)
    except ValueError:
        return str
    leading_zero = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    return str if leading_zero or "_" in text or text != text.strip() else float


def _parsed(texts: Sequence[str], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype == TEXT:
        return _texts(texts)
    return np.array(
        [float(each) if each else math.nan for each in texts] if dtype.kind == "f" else list(map(int, texts)), dtype
    )


class Parquet:
    takes_rows, keeps_attributes = True, False

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        if array.dtype.kind not in "biufO" or array.dtype.itemsize > 8 or 0 in array.shape[1:]:
            raise refused(array, "Parquet")
        return array.dtype.newbyteorder("=") if not array.is_text else TEXT

    def open(self, path: Path) -> Source:
        parquet = library("pyarrow.parquet", path.name)
        with parquet.ParquetFile(path) as file:
            fields, count = list(file.schema_arrow), file.metadata.num_rows
        specs = [_of_arrow(field, count, path) for field in fields]
        arrow = library("pyarrow", path.name)

        def block(table: Any) -> Block:
            columns = zip(specs, table.columns, strict=True)
            return {spec.name: _from_arrow(spec, column.combine_chunks(), path) for spec, column in columns}

        def records(rows: int) -> Iterator[Block]:
            with parquet.ParquetFile(path) as file:
                left: list[Any] = []
                for batch in _batches_of_groups(file, rows):
                    left.append(batch)
                    if sum(map(len, left)) >= rows:  # row groups end anywhere
                        table = arrow.Table.from_batches(left)
                        yield block(table.slice(0, rows))
                        left = table.slice(rows).to_batches()
                if sum(map(len, left)):
                    yield block(arrow.Table.from_batches(left))

        return _Rows(specs, records)

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        return _ParquetSink(path, arrays)


class _ParquetSink:
    def __init__(self, path: Path, arrays: Sequence[ArraySpec]) -> None:
        self._arrow = library("pyarrow", "Parquet files")
        fields = [(each.name, self._type(each)) for each in arrays]
        self._schema = self._arrow.schema(fields)
        self._writer = library("pyarrow.parquet", "Parquet files").ParquetWriter(path, self._schema)

    def _type(self, array: ArraySpec) -> Any:
        inner = self._arrow.string() if array.is_text else self._arrow.from_numpy_dtype(array.dtype)
        for size in reversed(array.shape[1:]):
            inner = self._arrow.list_(inner, size)
        return inner

    def write(self, start: int, block: Block) -> None:
        columns = [self._column(block[field.name], field.type) for field in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))

    def _column(self, values: np.ndarray[Any, Any], kind: Any) -> Any:
        flat = values.reshape(-1)
        column = self._arrow.array(flat.tolist() if flat.dtype == TEXT else np.ascontiguousarray(flat))
        kinds = []
        while self._arrow.types.is_fixed_size_list(kind):
            kinds.append(kind)
            kind = kind.value_type
        for each in reversed(kinds):
            column = self._arrow.FixedSizeListArray.from_arrays(column, each.list_size)
        return column

    def close(self) -> None:
        self._writer.close()


def _batches_of_groups(file: Any, rows: int) -> Iterator[Any]:
    """Yield the batches of one row group after another: over several, pyarrow keeps all that it has read."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=rows, row_groups=[group])


def _of_arrow(field: Any, count: int, path: Path) -> ArraySpec:
    types = library("pyarrow", path.name).types
    shape: tuple[int, ...] = (count,)
    kind = field.type
    while types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return ArraySpec(field.name, shape, TEXT)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise Unsupported(
            f"{path.name}: the column {field.name} has the type {kind}", hint="only numbers and texts can be converted"
        )
    return ArraySpec(field.name, shape, np.dtype(kind.to_pandas_dtype()))


def _from_arrow(spec: ArraySpec, column: Any, path: Path) -> np.ndarray[Any, Any]:
    for _ in spec.shape[1:]:
        if column.null_count:
            break
        column = column.flatten()
    if column.null_count:
        raise Unsupported(f"{path.name}: the column {spec.name} has missing values", hint="fill them first")
    if spec.is_text:
        return _texts(column.to_pylist()).reshape(-1, *spec.shape[1:])
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values.reshape(-1, *spec.shape[1:])


class TfRecord:
    takes_rows, keeps_attributes = True, False

    def stored(self, array: ArraySpec) -> np.dtype[Any]:
        if array.is_text and len(array.shape) == 1:
            return TEXT
        if array.dtype.kind == "f" and array.dtype.itemsize <= 4:
            return np.dtype("<f4")
        hint = "TFRecord has 32-bit floats: --lossy rounds to them" if array.dtype.kind == "f" else ""
        return _whole(array, "TFRecord", hint)

    def open(self, path: Path) -> Source:
        specs, count = _survey_examples(path)
        arrays = [each._replace(shape=(count, *each.shape)) for each in specs]

        def records(rows: int) -> Iterator[Block]:
            for examples in _batches(_examples(path), rows):
                yield {each.name: _stacked(each, [example[each.name] for example in examples]) for each in arrays}

        return _Rows(arrays, records)

    def create(self, path: Path, arrays: Sequence[ArraySpec], attributes: Mapping[str, Any]) -> Sink:
        return _TfRecordSink(path, arrays)


class _TfRecordSink:
    def __init__(self, path: Path, arrays: Sequence[ArraySpec]) -> None:
        self._file = path.open("wb")
        self._shapes: dict[str, Value] = {
            each.name + _SHAPE: np.array(each.shape[1:], np.int64) for each in arrays if len(each.shape) > 2
        }

    def write(self, start: int, block: Block) -> None:
        for at in range(len(next(iter(block.values())))):
            features = {name: _feature(values[at]) for name, values in block.items()}
            self._file.write(record(make_example({**features, **self._shapes})))

    def close(self) -> None:
        self._file.close()


def _feature(row: Any) -> Value:
    return row.encode() if isinstance(row, str) else np.atleast_1d(row).reshape(-1)


def _examples(path: Path) -> Iterator[dict[str, Value]]:
    with ExitStack() as stack:
        file: Any = stack.enter_context(path.open("rb"))
        if file.read(2) == b"\x1f\x8b":
            file = stack.enter_context(gzip.open(path, "rb"))
        else:
            file.seek(0)
        try:
            for data in read_records(file, longest_bytes=_LONGEST_RECORD, whole=True):
                yield parse_example(data, path)
        except Integrity as error:
            raise Integrity(str(error) if str(path) in str(error) else f"{path}: {error}", hint=error.hint) from error


def _survey_examples(path: Path) -> tuple[list[ArraySpec], int]:
    """Return what every record holds, and the number of records; all must be alike."""
    first: dict[str, ArraySpec] = {}
    count = 0
    for count, example in enumerate(_examples(path), 1):
        shapes = {name: example[name + _SHAPE] for name in example if name + _SHAPE in example}
        now = {
            name: _of_feature(name, value, shapes.get(name))
            for name, value in example.items()
            if not _is_shape(name, example)
        }
        first = first or now
        if now != first:
            name = next(each for each in {**first, **now} if first.get(each) != now.get(each))
            raise Unsupported(
                f"{path}: record {count} differs from the first one in {name}",
                hint="all records must have the same fields and shapes",
            )
    return [first[name] for name in sorted(first)], count


def _is_shape(name: str, example: Mapping[str, Value]) -> bool:
    return name.endswith(_SHAPE) and name.removesuffix(_SHAPE) in example


def _of_feature(name: str, value: Value, shape: Any) -> ArraySpec:
    if isinstance(value, bytes):
        return ArraySpec(name, (), TEXT)
    dims = tuple(map(int, shape)) if shape is not None else () if len(value) == 1 else (len(value),)
    return ArraySpec(name, dims, value.dtype)


def _stacked(array: ArraySpec, values: Sequence[Value]) -> np.ndarray[Any, Any]:
    if array.is_text:
        return _texts([bytes(each).decode("utf-8", "surrogateescape") for each in values if isinstance(each, bytes)])
    return np.stack([np.asarray(each) for each in values]).reshape(-1, *array.shape[1:])


def _whole(array: ArraySpec, format: str, hint: str = "") -> np.dtype[Any]:
    if array.dtype.kind not in "biu" or array.dtype == np.uint64:
        raise refused(array, format, hint)
    return _INT64


def _texts(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    values = np.empty(len(texts), TEXT)
    values[:] = texts
    return values


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
