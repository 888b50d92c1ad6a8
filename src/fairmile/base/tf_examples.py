"""`tf.train.Example` messages, the content of most TFRecord files: names with lists of bytes, floats or integers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import Integrity
from fairmile.base.tfrecord import field, fields, integer, signed, varint

Value = bytes | NDArray[np.float32] | NDArray[np.int64]
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # the kinds of list of a Feature


def parse_example(data: bytes, file: Path) -> dict[str, Value]:
    """Return the features of an Example by name."""
    values: dict[str, Value] = {}
    try:
        for features in _inner(memoryview(data)):
            for entry in _inner(features):
                parts: dict[int, Any] = dict(fields(entry))
                values[bytes(parts[1]).decode()] = _feature(parts[2])
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise Integrity(
            f"{file}: a record is not an Example message: {error}", hint="only records of tf.train.Example can be read"
        ) from error
    return values


def make_example(features: Mapping[str, Value]) -> bytes:
    """Return an Example message, its features in the order of their names."""
    entries = b"".join(
        field(1, field(1, name.encode()) + field(2, _list(value))) for name, value in sorted(features.items())
    )
    return field(1, entries)


def _inner(message: memoryview) -> Iterator[Any]:
    """Yield the values of the first field of a message."""
    return (value for number, value in fields(message) if number == 1)


def _feature(message: memoryview) -> Value:
    inner: Any
    for kind, inner in fields(message):
        if kind == _BYTES:
            return b"".join(map(bytes, _inner(inner)))
        if kind == _FLOATS:  # packed, or one by one
            return np.frombuffer(b"".join(map(bytes, _inner(inner))), "<f4")
        if kind == _INTEGERS:
            return np.array(list(_integers(inner)), np.int64)
    return b""


def _integers(message: memoryview) -> Iterator[int]:
    for value in _inner(message):
        if isinstance(value, int):
            yield signed(value)
        else:
            place = 0
            while place < len(value):
                number, place = varint(value, place)
                yield signed(number)


def _list(value: Value) -> bytes:
    if isinstance(value, bytes):
        return field(_BYTES, field(1, value))
    if value.dtype.kind == "f":
        return field(_FLOATS, field(1, value.astype("<f4").tobytes()))
    return field(_INTEGERS, field(1, b"".join(integer(int(each) % (1 << 64)) for each in value)))
