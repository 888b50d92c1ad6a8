"""A data set in another format: planned, written aside in blocks, read back and compared, then put in place."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from glob import escape
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fairmile.base.digest import from_ni, ni, sha256_file
from fairmile.base.errors import Conflict, FairmileError, Integrity, NotFound, Unsupported, UsageError
from fairmile.base.files import Holder, process_began, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import did_you_mean
from fairmile.catalog.array_files import clear_errors
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.content import measure
from fairmile.catalog.converting.layout import ArraySpec, Block, Format, Source, groups, rows_of
from fairmile.catalog.converting.results import ConvertedArray, ConvertedData
from fairmile.catalog.exchange.common.media_types import extension

# Properties of a data set that hold for its values in any format.
_KEPT = ("license", "creator", "keywords", "scienceDomain", "citation")
_HERE = "fairmile.catalog.converting"
FORMATS: Registry[Any] = Registry(
    "format of data",
    {
        "npy": Plugin(f"{_HERE}.arrays:Npy"),
        "hdf5": Plugin(f"{_HERE}.arrays:Hdf5"),
        "netcdf": Plugin(f"{_HERE}.arrays:NetCDF"),
        "zarr": Plugin(f"{_HERE}.arrays:Zarr"),
        "tfrecord": Plugin(f"{_HERE}.rows:TfRecord"),
        "parquet": Plugin(f"{_HERE}.rows:Parquet"),
        "csv": Plugin(f"{_HERE}.rows:Csv"),
    },
)
ENDINGS = {
    "npy": ("npy",),
    "hdf5": ("h5", "hdf5", "hdf", "he5"),
    "netcdf": ("nc", "nc4", "netcdf"),
    "zarr": ("zarr",),
    "tfrecord": ("tfrecord", "tfrecords"),
    "parquet": ("parquet", "pq"),
    "csv": ("csv",),
}


@dataclass(frozen=True)
class _Job:
    """A conversion that was checked: what is read, how it is stored, and where it goes."""

    source: Path
    reader: Format
    writer: Format
    target: Path
    arrays: tuple[ArraySpec, ...]
    stored: tuple[ArraySpec, ...]

    def groups(self) -> list[list[ArraySpec]]:
        return groups(self.arrays, by_row=self.reader.takes_rows or self.writer.takes_rows)


def convert(
    catalog: Catalog,
    source: Path,
    to: str,
    out: Path | None,
    *,
    origin: Card | None,
    **how: Any,
) -> ConvertedData:
    """Convert a file and add a card of the new one, derived from `origin`, or from the bytes of the file."""
    if to not in ENDINGS:
        raise UsageError(f"no conversion to {to!r}", hint=did_you_mean(to, ENDINGS) or f"formats: {', '.join(ENDINGS)}")
    stem = source.name.partition(".")[0]
    converted = convert_file(source, to, out or Path(f"{stem}.{ENDINGS[to][0]}"), **how)
    if converted.dry_run:
        return converted
    content, target = _content(Path(converted.file)), Path(converted.file)
    title = origin.title if origin else stem
    properties: dict[str, Any] = {
        "name": f"{title} ({to})",
        "version": f"{origin.version}-{to}" if origin else from_ni(content)[:12],
        "wasDerivedFrom": origin.iri if origin else f"urn:sha256:{from_ni(_content(source))}",
        "description": f"{title} in {to} format, converted from {source.name} and compared with it value by value.",
    }
    properties |= {key: origin[key] for key in _KEPT if origin and key in origin}
    try:
        card = catalog.describe(target, kind="dataset", set=properties, add=True).added
    except Conflict as error:
        known = catalog.get(str(catalog.describe(target, kind="dataset", set=properties).card.handle))
        if known.content != content:
            what = f"{target} was written, but the card {known.handle} has other content"
            raise Conflict(what, hint=error.hint) from error
        card = str(known.handle)
        notes = (*converted.notes, f"the same data has the card {card} already; it stays as it is")
        converted = dataclasses.replace(converted, notes=notes)
    return dataclasses.replace(converted, content=content, card=card)


def _content(path: Path) -> str:
    return ni(sha256_file(path)) if path.is_file() else measure(path).content


def convert_file(
    source: Path,
    to: str,
    target: Path,
    *,
    arrays: Sequence[str] = (),
    lossy: bool = False,
    replace: bool = False,
    dry_run: bool = False,
) -> ConvertedData:
    """Convert a file of data block by block, read the result back, and put it in place if every value is the same.

    `arrays` chooses some. With `lossy`, floats are rounded where the format has only shorter ones.
    """
    reader, writer = FORMATS[format_of(source)](), FORMATS[to]()
    if target.exists() and not (replace or dry_run):
        raise Conflict(f"{target} already exists", hint="--replace overwrites it, -o names another file")
    with clear_errors(str(source)), closing(reader.open(source)) as opened:
        job = _planned(source, reader, writer, target, opened, arrays, lossy=lossy)
        notes = [*opened.notes]
        if (opened.attributes or any(each.attributes for each in job.arrays)) and not writer.keeps_attributes:
            notes.append(f"{to} keeps no attributes: those of {source.name} stay behind")
        if dry_run:
            return ConvertedData(str(source), to, str(target), _report(job, {}), tuple(notes), dry_run=True)
        aside = _aside(target)
        try:
            with _writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            _write(job, opened, aside)
            differences = _compare(job, opened, aside)
            with _writing(target):
                _sync_and_place(aside, target)
        finally:
            _remove(aside)
    return ConvertedData(str(source), to, str(target), _report(job, differences), tuple(notes), verified=True)


def format_of(path: Path) -> str:
    """Return the format of a file by its name, and of a folder by what lies in it."""
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    if path.is_dir() and any((path / each).exists() for each in (".zgroup", ".zarray", "zarr.json")):
        return "zarr"
    ending = extension(
        path.name.removesuffix(".gz") if path.name.endswith((".tfrecord.gz", ".tfrecords.gz")) else path.name
    )
    name = next((format for format, endings in ENDINGS.items() if ending in endings), None)
    if name is None or path.is_dir() != (name == "zarr"):
        raise Unsupported(f"{path} is in no format that Fairmile can convert", hint=f"formats: {', '.join(ENDINGS)}")
    return name


def _planned(
    path: Path, reader: Format, writer: Format, target: Path, opened: Source, chosen: Sequence[str], *, lossy: bool
) -> _Job:
    known = {each.name: each for each in opened.arrays}
    for name in chosen:
        if name not in known:
            near = did_you_mean(name, known)
            raise NotFound(
                f"{path} has no array {name!r}" + (f"; {near}" if near else ""), hint=f"it has {_some(known)}"
            )
    arrays = tuple(known[name] for name in dict.fromkeys(chosen)) or tuple(opened.arrays)
    if not arrays:
        raise UsageError(f"{path} has no arrays")
    if reader.takes_rows or writer.takes_rows:
        lengths = {each.shape[:1] for each in arrays}
        if len(lengths) > 1 or () in lengths:
            shapes = ", ".join(f"{each.name} {each.shape}" for each in arrays[:10])
            raise UsageError(
                f"{path}: the arrays differ in length, but this format holds rows",
                hint=f"choose with --array: {shapes}",
            )
    stored = tuple(each._replace(dtype=_stored(writer, each, lossy=lossy)) for each in arrays)
    return _Job(path, reader, writer, target, arrays, stored)


def _some(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(list(names)[:10]) + (" …" if len(names) > 10 else "")


def _stored(writer: Format, array: ArraySpec, *, lossy: bool) -> np.dtype[Any]:
    try:
        return writer.stored(array)
    except Unsupported:
        if not lossy or array.dtype.kind != "f":
            raise
        return writer.stored(array._replace(dtype=np.dtype("<f4")))


def _write(job: _Job, opened: Source, aside: Path) -> None:
    stored = {each.name: each for each in job.stored}
    with _writing(job.target):
        sink = job.writer.create(aside, job.stored, opened.attributes)
    with closing(sink):
        for group in job.groups():
            names = [each.name for each in group]
            for start, block in opened.blocks(names, rows_of(group)):
                with _writing(job.target):
                    sink.write(start, {name: block[name].astype(stored[name].dtype, copy=False) for name in names})


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Blame the target for what fails in the block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FairmileError):
            raise
        raise write_failure(str(target), error) from error


def _compare(job: _Job, opened: Source, aside: Path) -> dict[str, float]:
    """Read both files once more and compare every value; return how far rounding moved one, by array."""
    differences: dict[str, float] = {}
    with closing(job.writer.open(aside)) as written:
        known = [each.name for each in written.arrays]
        for group in job.groups():
            rows = rows_of(group)
            parts = {each.name: _parts(each, known) for each in group}
            theirs = written.blocks([name for names in parts.values() for name in names], rows)
            for start, block in opened.blocks([each.name for each in group], rows):
                _, back = next(theirs, (start, {}))
                for array in group:
                    moved = _difference(block[array.name], _joined(back, parts[array.name]), job, array)
                    if moved is None:
                        raise Integrity(
                            f"{array.name} reads back different from row {start:,} on; nothing was published",
                            hint="the format may not keep such values; choose another one",
                        )
                    if moved:
                        differences[array.name] = max(moved, differences.get(array.name, 0.0))
            if next(theirs, None) is not None:
                raise Integrity(f"{group[0].name} reads back longer than it was; nothing was published")
    return differences


def _parts(array: ArraySpec, known: Sequence[str]) -> list[str]:
    """Return the names under which an array stands in the new file: in a table, each of its columns is one."""
    if array.name in known or len(array.shape) != 2 or len(known) == 1:
        return [array.name if array.name in known else known[0]]
    return [f"{array.name}.{number}" for number in range(array.shape[1])]


def _joined(block: Block, names: Sequence[str]) -> np.ndarray[Any, Any] | None:
    if any(name not in block for name in names):
        return None
    return block[names[0]] if len(names) == 1 else np.stack([block[name] for name in names], axis=1)


def _difference(
    ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any] | None, job: _Job, array: ArraySpec
) -> float | None:
    """Return 0 for the same values, the largest difference of rounded ones, None for others."""
    if theirs is None or theirs.shape != ours.shape:
        return None
    if array.is_text:
        return 0.0 if ours.tolist() == theirs.tolist() else None
    stored = next(each.dtype for each in job.stored if each.name == array.name)
    expected = ours.astype(stored, copy=False)
    if not np.array_equal(expected, theirs, equal_nan=expected.dtype.kind in "fc"):
        return None
    if expected.dtype.kind != "f" or np.array_equal(expected, ours, equal_nan=True):
        return 0.0
    finite = np.isfinite(ours) & np.isfinite(expected)
    if not np.array_equal(np.isfinite(ours), np.isfinite(expected)):
        raise UsageError(f"{array.name} has values too large for {stored}", hint="choose another format")
    return float(np.max(np.abs(ours[finite] - expected[finite].astype(ours.dtype))))


def _report(job: _Job, differences: dict[str, float]) -> tuple[ConvertedArray, ...]:
    return tuple(
        ConvertedArray(a.name, a.shape, _type(a), _type(s), differences.get(a.name))
        for a, s in zip(job.arrays, job.stored, strict=True)
    )


def _type(array: ArraySpec) -> str:
    return "text" if array.is_text else str(array.dtype)


def _sync_and_place(aside: Path, target: Path) -> None:
    for each in [aside] if aside.is_file() else [file for file in aside.rglob("*") if file.is_file()]:
        with each.open("rb") as file:
            os.fsync(file.fileno())
    if target.is_dir():
        _remove(target)
    aside.replace(target)


def _aside(target: Path) -> Path:
    """Return a hidden path beside the target to write to; what killed processes of this machine left is removed."""
    me = Holder.me()
    start = f".{target.stem}.{crc32(f'{me.host} {me.place}'.encode()):08x}."
    for left in target.parent.glob(f"{escape(start)}*{escape(target.suffix)}"):
        process = left.name.removeprefix(start).removesuffix(target.suffix)
        if me.place and process.isdecimal() and process_began(int(process)) is None:
            _remove(left)
    return target.with_name(f"{start}{me.pid}{target.suffix}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
