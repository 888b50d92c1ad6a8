"""TFRecord framing and the few parts of protocol buffers that it carries, with the standard library alone.

A file is a row of records: length (8 bytes), checksum of the length (4), data, checksum of the data (4), little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import BinaryIO

from fairmile.base.errors import Integrity

Field = int | memoryview
_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_LONGEST_VARINT = 10  # bytes
_LARGEST_FILE = 1 << 60  # more than any file system holds


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes."""
    return _function()(bytes(data))


def plain_crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes without a package for it."""
    table, check = _table(), 0xFFFFFFFF
    for byte in data:
        check = table[(check ^ byte) & 0xFF] ^ check >> 8
    return check ^ 0xFFFFFFFF


@cache
def _function() -> Callable[[bytes], int]:
    # Few runs write such files: others do not wait for the package.
    try:
        from google_crc32c import value
    except ImportError:  # the recorder of a job may lack it
        return plain_crc32c
    fast: Callable[[bytes], int] = value
    return fast


def masked(value: int) -> int:
    """Return a checksum as TFRecord keeps it, rotated and shifted, so that it may itself be part of data."""
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ _POLYNOMIAL if value & 1 else value >> 1
        table.append(value)
    return table


def read_records(stream: BinaryIO, *, longest_bytes: int, whole: bool = False) -> Iterator[bytes]:
    """Yield the data of each record; longer ones are passed over, and Integrity says where a file is damaged.

    A last record that is cut off ends the file: whoever writes it may not have finished. In a `whole` file it is
    damage.
    """
    number = 0
    while head := stream.read(12):
        number += 1
        if len(head) < 12:
            break
        length, check = struct.unpack("<QI", head)
        if masked(crc32c(head[:8])) != check:
            raise Integrity(f"the checksum of the length of record {number} is wrong")
        if length > longest_bytes:
            if length >= _LARGEST_FILE:
                return
            stream.seek(length + 4, 1)
            continue
        data, tail = stream.read(length), stream.read(4)
        if len(data) < length or len(tail) < 4:
            break
        if masked(crc32c(data)) != struct.unpack("<I", tail)[0]:
            raise Integrity(f"the checksum of record {number} is wrong")
        yield data
    else:
        return
    if whole:
        raise Integrity(f"record {number} is truncated")


def record(data: bytes, checksum: Callable[[bytes], int] = crc32c) -> bytes:
    """Return data as a record with its checksums."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(crc32c(head))) + data + struct.pack("<I", masked(checksum(data)))


def fields(message: memoryview) -> Iterator[tuple[int, Field]]:
    """Yield number and value of each field of a protocol buffer: an integer, or the bytes of what is inside.

    ValueError or IndexError where the message is none.
    """
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = varint(message, place)
            yield number, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"field {number} has the unknown wire type {wire}")
        length = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            length, place = varint(message, place)
        if place + length > len(message):
            raise ValueError(f"field {number} is longer than its message")
        yield number, message[place : place + length]
        place += length


def varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the integer of variable length at a place, and the place behind it."""
    value = 0
    for count in range(_LONGEST_VARINT):
        byte = message[place + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + count + 1
    raise ValueError("an integer is longer than 64 bits")


def signed(value: int) -> int:
    """Return an integer of 64 bits with its sign."""
    return value - (1 << 64) if value >> 63 else value


def field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a text or another message."""
    return integer(number << 3 | 2) + integer(len(content)) + content


def integer(value: int) -> bytes:
    """Return an integer in variable length."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
