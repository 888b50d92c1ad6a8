"""TFRecord files of `tf.train.Example` messages, read and written without TensorFlow.

A file is a row of records: length (8 bytes), checksum of the length (4), data, checksum of the data (4), little-endian,
all of it gzipped or not. An Example is a protocol buffer that maps names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import Integrity, SystemFailure
from fairmile.base.files import write_atomic
from fairmile.base.tf_examples import Value as Value
from fairmile.base.tf_examples import make_example as make_example
from fairmile.base.tf_examples import parse_example as parse_example
from fairmile.base.tfrecord import masked, record

try:
    import google_crc32c as _fast
except ImportError:  # a machine that only trains may lack it
    _fast = None  # type: ignore[assignment,unused-ignore]

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_LANES = 4096


def records(file: Path) -> Iterator[bytes]:
    """Yield the data of each record, its checksums compared."""
    content = _content(file)
    place, number = 0, 0
    while place < len(content):
        number += 1
        head = content[place : place + 12]
        if len(head) < 12:
            raise Integrity(f"{file}: record {number} is truncated in its header", hint="fetch the file again")
        length, check = struct.unpack("<QI", head)
        if masked(crc32c(head[:8])) != check:
            raise Integrity(
                f"{file}: the checksum of the length of record {number} is wrong",
                hint="the file is damaged or not a TFRecord file; fetch it again",
            )
        data, tail = content[place + 12 : place + 12 + length], content[place + 12 + length : place + 16 + length]
        if len(tail) < 4:
            raise Integrity(
                f"{file}: record {number} is truncated: expected {length} bytes, found {len(data)}",
                hint="fetch the file again",
            )
        if masked(crc32c(data)) != struct.unpack("<I", tail)[0]:
            raise Integrity(f"{file}: the checksum of record {number} is wrong", hint="fetch the file again")
        yield bytes(data)
        place += 16 + length


def write_records(file: Path, data: list[bytes], *, is_gzip: bool = True) -> None:
    """Write records with their checksums; the same data give the same bytes."""
    content = b"".join(record(each, crc32c) for each in data)
    write_atomic(file, gzip.compress(content, compresslevel=6, mtime=0) if is_gzip else content, sync=False)


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes."""
    return int(_fast.value(bytes(data))) if _fast is not None else plain_crc32c(data)


def plain_crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C with NumPy alone: lanes of bytes side by side, whose checksums are then joined."""
    values = np.frombuffer(data, np.uint8)
    table = _table()
    lane = len(values) // _LANES
    check = 0xFFFFFFFF
    if lane >= 8:
        lanes = np.ascontiguousarray(values[: lane * _LANES].reshape(_LANES, lane).T)
        checks = np.zeros(_LANES, np.uint32)
        for row in lanes:
            checks = table[(checks ^ row) & 0xFF] ^ (checks >> np.uint32(8))
        low, second, third, high = _shift(lane)
        for each in checks.tolist():
            joined = low[check & 255] ^ second[check >> 8 & 255] ^ third[check >> 16 & 255] ^ high[check >> 24]
            check = joined ^ each
        values = values[lane * _LANES :]
    numbers = table.tolist()
    for byte in values.tolist():
        check = numbers[(check ^ byte) & 0xFF] ^ check >> 8
    return check ^ 0xFFFFFFFF


@cache
def _table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), values >> np.uint32(1))
    return values.astype(np.uint32)


@cache
def _shift(zeros: int) -> list[list[int]]:
    """Return, for each byte of a checksum and each of its values, what so many zero bytes after it make of it."""
    table = _table()
    state = np.array([value << 8 * byte for byte in range(4) for value in range(256)], np.uint32)
    for _ in range(zeros):
        state = table[state & 0xFF] ^ (state >> np.uint32(8))
    rows: list[list[int]] = state.reshape(4, 256).tolist()
    return rows


def _content(file: Path) -> memoryview:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror}") from error
    if not content:
        raise Integrity(f"{file} is empty", hint="fetch the file again")
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise Integrity(f"{file}: its gzip stream is damaged: {error}", hint="fetch the file again") from error
    return memoryview(content)
