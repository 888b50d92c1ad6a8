"""Checkpoints of TensorFlow, written without it: an index, a table of blocks as in LevelDB, and raw values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import Unsupported
from fairmile.base.tfrecord import crc32c, field, integer, masked

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

TYPES = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "str", 8: "complex64"},
    **{9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32"},
    **{23: "uint64"},
}
MAGIC = bytes.fromhex("57fb808b247547db")  # of a table, at its end
FOOTER_BYTES = 48
_NUMBERS = {name: number for number, name in TYPES.items()}
_HEADER = integer(1 << 3) + integer(1) + field(3, integer(1 << 3) + integer(1))  # one shard, version 1
_BLOCK_BYTES = 4096
_RESTART = 16  # keys after which one is written as a whole
_PLAIN_BLOCK = b"\x00"  # not compressed


def write_bundle(prefix: Path, values: Mapping[str, Array]) -> Path:
    """Write arrays by name as a checkpoint with one data file, and return its index."""
    import numpy

    entries = [("", _HEADER)]
    place = 0
    with prefix.with_name(f"{prefix.name}.data-00000-of-00001").open("wb") as stream:
        for name in sorted(values, key=str.encode):
            array: Any = numpy.asarray(values[name])
            if array.dtype.name not in _NUMBERS:
                raise Unsupported(f"{name} has the type {array.dtype.name}, which TensorFlow checkpoints do not have")
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            stream.write(data)
            entries.append((name, _entry(array, place, data)))
            place += len(data)
    index = prefix.with_name(f"{prefix.name}.index")
    index.write_bytes(_table(entries))
    return index


def _entry(array: Array, place: int, data: bytes) -> bytes:
    """Return the description of an array: type, shape, place, size and checksum; zeros are left out."""
    shape = b"".join(field(2, integer(1 << 3) + integer(size) if size else b"") for size in array.shape)
    entry = integer(1 << 3) + integer(_NUMBERS[array.dtype.name]) + field(2, shape)
    entry += integer(4 << 3) + integer(place) if place else b""
    entry += integer(5 << 3) + integer(len(data)) if data else b""
    return entry + integer(6 << 3 | 5) + struct.pack("<I", masked(crc32c(data)))


def _table(entries: list[tuple[str, bytes]]) -> bytes:
    content, index = bytearray(), []
    for last, block in _blocks(entries):
        index.append((last, integer(len(content)) + integer(len(block))))
        content += _sealed(block)
    handles = b""
    for block in (_block([]), _block(index)):  # a table may have further indexes: there are none
        handles += integer(len(content)) + integer(len(block))
        content += _sealed(block)
    return bytes(content) + handles.ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


def _blocks(entries: list[tuple[str, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield blocks of entries, each with its last key."""
    held: list[tuple[bytes, bytes]] = []
    size = 0
    for name, value in entries:
        held.append((name.encode(), value))
        size += len(held[-1][0]) + len(value)
        if size > _BLOCK_BYTES:
            yield held[-1][0], _block(held)
            held, size = [], 0
    if held:
        yield held[-1][0], _block(held)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block: each key without what it shares with the one before, then where whole keys are."""
    content, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % _RESTART == 0:
            restarts.append(len(content))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        content += integer(shared) + integer(len(key) - shared) + integer(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    return bytes(content) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _sealed(block: bytes) -> bytes:
    return block + _PLAIN_BLOCK + struct.pack("<I", masked(crc32c(block + _PLAIN_BLOCK)))
