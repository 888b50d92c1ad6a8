"""Files read as Arrow tables, whole or in batches: CSV, JSON lines, Parquet, Feather, Arrow, and files of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound
from fairmile.base.words import did_you_mean
from fairmile.catalog.array_files import clear_errors, has_arrays, library, read_columns
from fairmile.catalog.exchange.common.media_types import extension

_TEXTS = {"csv": "csv", "tsv": "csv", "jsonl": "json", "ndjson": "json"}
_FILES = {"parquet": "parquet", "pq": "parquet"} | dict.fromkeys(("feather", "arrow", "arrows", "ipc"), "arrow")
_PACKED = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
_BLOCK_BYTES = 16 << 20  # of a text are parsed at once; a line must fit into it


def is_table(name: str) -> bool:
    """Tell whether a file of this name can be read as a table."""
    return _format(name) is not None


def read(path: Path, name: str, columns: Sequence[str] | None) -> Any:
    """Return a file as a pyarrow.Table."""
    pyarrow = library("pyarrow", name)
    with clear_errors(name):
        format = _format(name)
        if format == "csv":
            options = _csv_options(path, name, columns)
            with _text(path, name) as stream:
                return library("pyarrow.csv", name).read_csv(stream, **options)
        if format == "json":
            with _text(path, name) as stream:
                table = library("pyarrow.json", name).read_json(stream, read_options=_json_options(name))
            return table.select(_checked(columns, table.schema.names, name))
        if format == "parquet":
            with library("pyarrow.parquet", name).ParquetFile(path, memory_map=True) as file:
                wanted = _checked(columns, file.schema_arrow.names, name)
                table = file.read(columns=wanted)
                return table if columns is None else table.select(wanted)
        if format == "arrow":
            return pyarrow.Table.from_batches(list(_arrow_batches(path, name, columns)))
    return pyarrow.Table.from_batches(list(_array_batches(path, name, columns, None)))


def batches(path: Path, name: str, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """Yield a file as pyarrow.RecordBatches of at most `rows` rows; an array of an .npz file is held whole."""
    with clear_errors(name):
        for batch in _natural_batches(path, name, columns, rows):
            for start in range(0, max(batch.num_rows, 1), rows):
                yield batch.slice(start, rows)


def _natural_batches(path: Path, name: str, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """Yield batches as the format gives them, which may be larger than asked for."""
    format = _format(name)
    if format == "csv":
        # Types are told by the first block; a column that changes later is an error here but not in `read`.
        options = _csv_options(path, name, columns)
        with _text(path, name) as stream, library("pyarrow.csv", name).open_csv(stream, **options) as reader:
            yield from reader
    elif format == "json":
        with (
            _text(path, name) as stream,
            library("pyarrow.json", name).open_json(stream, read_options=_json_options(name)) as reader,
        ):
            wanted = _checked(columns, reader.schema.names, name)
            yield from (batch.select(wanted) for batch in reader)
    elif format == "parquet":
        with library("pyarrow.parquet", name).ParquetFile(path, memory_map=True) as file:
            wanted = _checked(columns, file.schema_arrow.names, name)
            for batch in file.iter_batches(batch_size=rows, columns=wanted):
                yield batch if columns is None else batch.select(wanted)
    elif format == "arrow":
        yield from _arrow_batches(path, name, columns)
    else:
        yield from _array_batches(path, name, columns, rows)


def _array_batches(path: Path, name: str, columns: Sequence[str] | None, rows: int | None) -> Iterator[Any]:
    pyarrow = library("pyarrow", name)
    for pairs in read_columns(path, name, columns, rows):
        yield pyarrow.RecordBatch.from_arrays([array for _, array in pairs], names=[label for label, _ in pairs])


def _arrow_batches(path: Path, name: str, columns: Sequence[str] | None) -> Iterator[Any]:
    """Yield the batches of an Arrow file or stream (Feather is the former), mapped into memory; one at least."""
    pyarrow, ipc = library("pyarrow", name), library("pyarrow.ipc", name)
    source = pyarrow.memory_map(str(path))
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
    if columns is not None:
        names = reader.schema.names
        options = ipc.IpcReadOptions(included_fields=[names.index(each) for each in _checked(columns, names, name)])
        source.seek(0)
        reader = ipc.open_file(source, options=options) if is_file else ipc.open_stream(source, options=options)
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else iter(reader)
    batch = next(batches, None) or pyarrow.RecordBatch.from_pylist([], schema=reader.schema)
    while batch is not None:
        batch.validate()
        yield batch if columns is None else batch.select(list(columns))
        batch = next(batches, None)


@contextmanager
def _text(path: Path, name: str) -> Iterator[Any]:
    with library("pyarrow", name).input_stream(str(path), compression=_PACKED.get(extension(name))) as stream:
        yield stream


def _csv_options(path: Path, name: str, columns: Sequence[str] | None) -> dict[str, Any]:
    csv = library("pyarrow.csv", name)
    options = {
        "read_options": csv.ReadOptions(block_size=_BLOCK_BYTES),
        "parse_options": csv.ParseOptions(delimiter="\t" if _bare_extension(name) == "tsv" else ","),
    }
    if columns is not None:
        with _text(path, name) as stream, csv.open_csv(stream, **options) as reader:
            wanted = _checked(columns, reader.schema.names, name)
        options["convert_options"] = csv.ConvertOptions(include_columns=wanted)
    return options


def _json_options(name: str) -> Any:
    return library("pyarrow.json", name).ReadOptions(block_size=_BLOCK_BYTES)


def _checked(columns: Sequence[str] | None, names: Sequence[str], name: str) -> list[str]:
    """Return the columns that are wanted, all when none are named; NotFound tells the nearest."""
    for column in columns or ():
        if column not in names:
            near = did_you_mean(column, list(names))
            raise NotFound(
                f"{name} has no column {column!r}" + (f"; {near}" if near else ""),
                hint=f"its columns are {', '.join(names[:20])}{' …' if len(names) > 20 else ''}",
            )
    return list(names if columns is None else columns)


def _bare_extension(name: str) -> str:
    """Return the extension of what a compressed file holds."""
    kind = extension(name)
    return extension(name[: -len(kind) - 1]) if kind in _PACKED else kind


def _format(name: str) -> str | None:
    kind = extension(name)
    return _TEXTS.get(_bare_extension(name)) or _FILES.get(kind) or ("arrays" if has_arrays(name) else None)
