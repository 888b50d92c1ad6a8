"""Scalars in TensorBoard's event files, read and written without TensorFlow or TensorBoard.

An event file is a row of TFRecords, each an `Event`: wall_time 1 (double), step 2, file_version 3, summary 5. A summary
has values 1: tag 1, simple_value 2 (float), or tensor 8 with metadata 9 that names the plug-in `scalars`
(tensorflow/core/util/event.proto, framework/summary.proto and framework/tensor.proto).
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairmile.base.errors import Integrity
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.tfrecord import Field, field, fields, integer, read_records, record, signed

MARK = "tfevents"  # in the name of every event file
MOST_VALUES = 100_000
_MOST_TAGS = 1_000
_LONGEST_TAG = 200
_LONGEST_RECORD = 1 << 20  # images, graphs and the like are longer
_MOST_RECORDS = 2_000_000
_MOST_ENTRIES = 20_000  # of folders that are looked through
_DEEPEST = 8
_LAST_TIME = 1 << 33  # in seconds: the year 2242
_VERSION = b"brain.Event:2"
_SCALARS = b"scalars"
_FLOAT, _DOUBLE = 1, 2  # types of a tensor
_MALFORMED = (ValueError, IndexError, TypeError, KeyError, struct.error)


class Scalar(NamedTuple):
    """One value of a metric."""

    tag: str
    value: float
    step: int
    at_s: float  # unix time


def find_event_files(folder: Path, *, since_s: float = 0.0, apart: Path | None = None) -> list[Path]:
    """Return the event files below a folder that were written since a time.

    Hidden folders, links and what lies `apart` are left out.
    """
    files: list[Path] = []
    waiting, left = [(str(folder), 0)], _MOST_ENTRIES
    while waiting and left > 0:
        place, depth = waiting.pop()
        if apart is not None and place == str(apart):
            continue
        try:
            if os.stat(place).st_nlink == 2:  # it holds no folder, which costs least to look at
                names = os.listdir(place)
                left -= len(names)
                if not any(MARK in name for name in names):
                    continue
                left += len(names)
            with os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST and not entry.name.startswith((".", "__")):
                            waiting.append((entry.path, depth + 1))
                    elif MARK in entry.name and entry.is_file(follow_symlinks=False):
                        files += [Path(entry.path)] if entry.stat().st_mtime >= since_s else []
                    if left <= 0:
                        break
        except OSError:  # removed meanwhile, or not ours to read
            continue
    return sorted(files)


def read_scalars(files: Iterable[Path]) -> tuple[list[Scalar], list[str]]:
    """Return the scalars of event files, and what could not be read of them, in words.

    Where the files lie in several folders, a tag is preceded by its folder as seen from the one that holds all of them,
    such as `validation/epoch_loss`. No more than 100,000 values and 1,000 tags are read.
    """
    chosen = list(files)
    top = Path(os.path.commonpath([file.parent for file in chosen])) if chosen else Path()
    scalars: list[Scalar] = []
    tags: set[str] = set()
    notes: list[str] = []
    for file in chosen:
        inside = "" if file.parent == top else f"{file.parent.relative_to(top).as_posix()}/"
        try:
            for each in _scalars(file):
                tag = inside + each.tag
                if tag not in tags and (len(tags) == _MOST_TAGS or len(tag) > _LONGEST_TAG or not tag.isprintable()):
                    continue
                if len(scalars) == MOST_VALUES:
                    notes.append(f"only the first {MOST_VALUES:,} values of TensorBoard event files are read")
                    return scalars, notes
                tags.add(tag)
                scalars.append(each._replace(tag=tag))
        except (Integrity, OSError) as error:
            notes.append(f"the TensorBoard event file {file.name} was read only in part: {error}")
    return scalars, notes


def _scalars(file: Path) -> Iterator[Scalar]:
    with open(file, "rb") as stream:
        for number, data in enumerate(read_records(stream, longest_bytes=_LONGEST_RECORD), 1):
            try:
                yield from _event(memoryview(data))
            except _MALFORMED as error:
                raise Integrity(f"record {number} is not an event: {error}") from error
            if number == _MOST_RECORDS:
                raise Integrity(f"it has more than {_MOST_RECORDS:,} records")


def _event(message: memoryview) -> list[Scalar]:
    at_s, step, summaries = 0.0, 0, []
    for number, value in fields(message):
        if number == 1:
            (at_s,) = struct.unpack("<d", _bytes(value))
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5:
            summaries.append(_bytes(value))
    values = [_bytes(value) for summary in summaries for number, value in fields(summary) if number == 1]
    at_s = at_s if 0 <= at_s < _LAST_TIME else 0.0
    return [Scalar(tag, value, step, at_s) for each in values for tag, value in _value(each)]


def _value(message: memoryview) -> Iterator[tuple[str, float]]:
    """Yield tag and value of a value that is a scalar, and nothing for any other."""
    parts = dict(fields(message))
    tag = bytes(_bytes(parts[1])).decode() if 1 in parts else ""
    if 2 in parts:
        yield tag, struct.unpack("<f", _bytes(parts[2]))[0]
    elif 8 in parts and 9 in parts and _plugin(_bytes(parts[9])) == _SCALARS:
        yield tag, _number(_bytes(parts[8]))


def _plugin(metadata: memoryview) -> bytes:
    plugins = [_bytes(value) for number, value in fields(metadata) if number == 1]
    names = [bytes(_bytes(value)) for plugin in plugins for number, value in fields(plugin) if number == 1]
    return names[0] if names else b""


def _number(tensor: memoryview) -> float:
    """Return the only value of a tensor of floats: its content, or its list of values."""
    parts = dict(fields(tensor))
    form = {_FLOAT: "<f", _DOUBLE: "<d"}[parts[1]]  # type: ignore[index]
    value: float
    (value,) = struct.unpack(form, _bytes(parts[4] if 4 in parts else parts[5 if form == "<f" else 6]))
    return value


def _bytes(value: Field) -> memoryview:
    if isinstance(value, int):
        raise ValueError("expected bytes, found an integer")
    return value


def event_file(scalars: Iterable[Scalar], *, created_s: float) -> bytes:
    """Return scalars as an event file; values are kept in single precision, as TensorBoard shows them."""
    version = _wall_time(created_s) + field(3, _VERSION)
    return record(version) + b"".join(record(_message(each)) for each in scalars)


def _message(scalar: Scalar) -> bytes:
    single = struct.pack("<f", _single(scalar.value))
    value = field(1, scalar.tag.encode()) + integer(2 << 3 | 5) + single
    step = integer(2 << 3) + integer(scalar.step % (1 << 64))
    return _wall_time(scalar.at_s) + step + field(5, field(1, value))


def _wall_time(at_s: float) -> bytes:
    return integer(1 << 3 | 1) + struct.pack("<d", at_s)


def _single(value: float) -> float:
    """Return a value that single precision can hold: what is too large is infinite."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value
