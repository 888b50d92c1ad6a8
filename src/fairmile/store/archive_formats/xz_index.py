"""The index at the end of an xz file, which says what the file expands to."""

from __future__ import annotations

import zlib

from fairmile.store.archive_formats.reading import RandomAccess, damaged

_FOOTER_BYTES = _HEADER_BYTES = 12
_LONGEST_INDEX = 16 << 20


def expanded_bytes(file: RandomAccess) -> int:
    """Return what all streams of an xz file expand to, read from behind."""
    total, end = 0, file.size_bytes
    while end > 0:
        footer = file.at(end - 4, 4, "the end of the xz file")
        if footer == bytes(4):  # padding between streams
            end -= 4
            continue
        size, end = _stream(file, end)
        total += size
    return total


def _stream(file: RandomAccess, end: int) -> tuple[int, int]:
    """Return what the stream that ends here expands to, and where it begins."""
    footer = file.at(end - _FOOTER_BYTES, _FOOTER_BYTES, "the end of the xz file")
    if footer[10:] != b"YZ" or zlib.crc32(footer[4:10]) != int.from_bytes(footer[:4], "little"):
        raise damaged(file.archive, "the xz file has a damaged end, or is cut off")
    index_bytes = 4 * (int.from_bytes(footer[4:8], "little") + 1)
    if index_bytes > _LONGEST_INDEX:
        raise damaged(file.archive, f"the index of the xz file claims {index_bytes:,} bytes")
    start = end - _FOOTER_BYTES - index_bytes
    index = file.at(start, index_bytes, "the index of the xz file")
    if zlib.crc32(index[:-4]) != int.from_bytes(index[-4:], "little") or index[0] != 0:
        raise damaged(file.archive, "the index of the xz file is damaged")
    total, packed, at = 0, 0, 1
    count, at = _number(index, at, file.archive)
    for _ in range(count):
        block_bytes, at = _number(index, at, file.archive)
        size, at = _number(index, at, file.archive)
        total += size
        packed += block_bytes + -block_bytes % 4
    begin = start - packed - _HEADER_BYTES
    if begin < 0:
        raise damaged(file.archive, "the xz file is shorter than its index says")
    return total, begin


def _number(index: bytes, at: int, archive: str) -> tuple[int, int]:
    """Read a number of seven bits in each byte, the lowest first."""
    value = shift = 0
    while at < len(index) - 4 and shift < 63:
        byte = index[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise damaged(archive, "the index of the xz file is damaged")
