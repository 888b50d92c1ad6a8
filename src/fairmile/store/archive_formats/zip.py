"""Zip archives read by their central directory, one member after the other, without holding the directory.

Python's own zipfile keeps about a kilobyte for each member and knows no other way in.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from functools import partial

from fairmile.base.errors import Integrity, Unsupported
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.archive_formats.compression import Codec, Expanded, codec, lzma1_filter, raw_lzma
from fairmile.store.archive_formats.reading import (
    LONGEST_LINK_BYTES,
    ListedSize,
    Member,
    Part,
    RandomAccess,
    Range,
    damaged,
    refused,
    shown,
)
from fairmile.store.objects import Readable

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
# The end record, its longest comment, and the two records that large archives have before it.
TAIL_BYTES = _END.size + 0xFFFF + _LOCATOR.size + _END64.size
_WINDOW_BYTES = 1 << 20
_ENCRYPTED, _PATCHED, _UTF8, _MASKED = 0x1 | 0x40, 0x20, 0x800, 0x2000
_ON_UNIX = (3, 19)  # the second is macOS
_ON_DOS = (0, 10, 14)
_METHODS = {0: "stored", 8: "deflate", 12: "bz2", 14: "lzma", 93: "zst", 95: "xz"}
_OTHER_METHODS = {1: "shrink", 6: "implode", 9: "Deflate64", 20: "an old Zstandard", 97: "WavPack", 98: "PPMd"}


class _Directory(NamedTuple):
    """Where the central directory lies; `shift` is how far the archive begins behind the first byte."""

    start: int
    size: int
    files: int
    shift: int


class _Entry(NamedTuple):
    name: str
    flags: int
    method: int
    crc32: int
    packed_bytes: int
    size_bytes: int
    mode: int
    offset: int

    @property
    def is_folder(self) -> bool:
        return self.name.endswith("/")


def members(file: RandomAccess) -> Iterator[Member]:
    """Yield each member in the order of the central directory."""
    count = min(TAIL_BYTES, file.size_bytes)
    directory = _directory(file.at(file.size_bytes - count, count, "the end"), file.size_bytes, file.archive)
    for entry in _entries(file, directory):
        if entry.is_folder:
            yield Member(entry.name, "folder", 0, Range(file, 0, 0, ""))
            continue
        content = _content(file, directory, entry)
        kind = stat.S_IFMT(entry.mode)
        if kind == stat.S_IFLNK:
            yield Member(entry.name, "symlink", 0, content, target=_link_text(file.archive, entry, content))
        elif kind not in (0, stat.S_IFREG):
            raise refused(file.archive, entry.name, "is neither a file, a folder nor a symbolic link")
        else:
            yield Member(entry.name, "file", entry.size_bytes, content, bool(entry.mode & 0o100))


def listed_size(file: RandomAccess) -> ListedSize:
    """Return number and size of the files according to the central directory."""
    count = min(TAIL_BYTES, file.size_bytes)
    directory = _directory(file.at(file.size_bytes - count, count, "the end"), file.size_bytes, file.archive)
    return _sum(_entries(file, directory))


def listed_in_tail(tail: bytes, total_bytes: int, archive: str) -> ListedSize | int:
    """Return number and size of the files, or how many last bytes are needed to tell when the tail is too short."""
    directory = _directory(tail, total_bytes, archive)
    needed = total_bytes - directory.start
    if needed > len(tail):
        return needed
    return _sum(_entries(_Tail(tail, total_bytes, archive), directory))


class _Tail(RandomAccess):
    """The last bytes of an archive that lies elsewhere."""

    def __init__(self, tail: bytes, total_bytes: int, archive: str) -> None:
        self.archive, self.size_bytes = archive, total_bytes
        self._tail, self._start = tail, total_bytes - len(tail)

    def at(self, offset: int, size: int, what: str) -> bytes:
        if not self._start <= offset <= self.size_bytes - size:
            raise damaged(self.archive, f"{what} is outside the archive")
        return self._tail[offset - self._start : offset - self._start + size]


def _sum(entries: Iterator[_Entry]) -> ListedSize:
    files = size = 0
    for entry in entries:
        if not entry.is_folder:
            files += 1
            size += entry.size_bytes
    return ListedSize(files, size)


def _directory(tail: bytes, total_bytes: int, archive: str) -> _Directory:
    base = total_bytes - len(tail)
    at = _find_end(tail)
    if at < 0:
        raise damaged(archive, "the zip archive has no end record: it is cut off, or not a zip archive")
    _, disk, first_disk, _, files, size, offset, _ = _END.unpack_from(tail, at)
    stop = base + at
    if 0xFFFF in (disk, first_disk, files) or 0xFFFFFFFF in (size, offset):
        large = _large_end(tail, at, base, archive)
        if large is not None:
            at_large, disk, first_disk, files, size, offset = large
            stop = base + at_large
    if disk or first_disk:
        raise Unsupported(f"{archive} is one of several volumes of a zip archive", hint="join the volumes first")
    shift = stop - size - offset
    if shift < 0:
        raise damaged(archive, "the zip archive is shorter than its directory says: its beginning is missing")
    return _Directory(offset + shift, size, files, shift)


def _find_end(tail: bytes) -> int:
    """Return where the end record is: the last whose comment ends the file, else the last that is whole; or -1."""
    whole, at = -1, tail.rfind(b"PK\5\6")
    while at >= 0:
        end = at + _END.size
        behind = len(tail) - end - int.from_bytes(tail[end - 2 : end], "little")
        if behind == 0 and end <= len(tail):
            return at
        if behind > 0 and whole < 0:
            whole = at
        at = tail.rfind(b"PK\5\6", 0, at + 3)
    return whole


def _large_end(tail: bytes, at: int, base: int, archive: str) -> tuple[int, int, int, int, int, int] | None:
    """Return place, disks, number of files, size and offset from the records of archives beyond 4 GiB, if any."""
    locator = at - _LOCATOR.size
    if locator < 0 or tail[locator : locator + 4] != b"PK\6\7":
        return None
    _, _, stated, _ = _LOCATOR.unpack_from(tail, locator)
    # The stated place is wrong when something stands before the archive; then the record lies before the locator.
    for place in (stated - base, locator - _END64.size):
        if 0 <= place <= locator - _END64.size and tail[place : place + 4] == b"PK\6\6":
            _, _, _, _, disk, first_disk, _, files, size, offset = _END64.unpack_from(tail, place)
            return place, disk, first_disk, files, size, offset
    raise damaged(archive, "the end record of the large zip archive is damaged")


def _entries(file: RandomAccess, directory: _Directory) -> Iterator[_Entry]:
    start, stop = directory.start, directory.start + directory.size
    window, at, count = b"", 0, 0
    what = "the directory of the zip archive"
    while start + at < stop:
        # The longest entry has three variable parts of up to 64 KiB.
        if len(window) - at < _ENTRY.size + 3 * 0xFFFF and start + len(window) < stop:
            start, at = start + at, 0
            window = file.at(start, min(_WINDOW_BYTES, stop - start), what)
        if len(window) - at < _ENTRY.size:
            raise damaged(file.archive, f"{what} is cut off after {count:,} members")
        head = _ENTRY.unpack_from(window, at)
        if head[0] != b"PK\1\2":
            raise damaged(file.archive, f"{what} is damaged after {count:,} members (byte {start + at:,})")
        name_end = at + _ENTRY.size + head[10]
        extra_end = name_end + head[11]
        end = extra_end + head[12]
        if end > len(window):
            raise damaged(file.archive, f"{what} is cut off after {count:,} members")
        yield _entry(head, window[at + _ENTRY.size : name_end], window[name_end:extra_end], file.archive)
        at, count = end, count + 1
    if count & 0xFFFF != directory.files & 0xFFFF:  # programs before zip64 let the number overflow
        raise damaged(file.archive, f"{what} has {count:,} members, expected {directory.files:,}")


def _entry(head: tuple[int, ...], raw_name: bytes, raw_extra: bytes, archive: str) -> _Entry:
    _, made_by, _, flags, method, _, _, crc32, packed, size, *_, disk, _, attributes, offset = head
    extra = _extra_fields(raw_extra)
    system = made_by >> 8
    name = _name(raw_name, flags, system, extra.get(0x7075, b""))
    wide = extra.get(1, b"")
    values = []
    for value in (size, packed, offset):
        if value == 0xFFFFFFFF and wide:
            if len(wide) < 8:
                raise damaged(archive, "has a damaged size record", name)
            value, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        values.append(value)
    if disk not in (0, 0xFFFF):
        raise Unsupported(f"{archive} is one of several volumes of a zip archive", hint="join the volumes first")
    mode = attributes >> 16 if system in _ON_UNIX else 0
    return _Entry(name, flags, method, crc32, values[1], values[0], mode, values[2])


def _extra_fields(raw: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(raw):
        kind, length = struct.unpack_from("<2H", raw, at)
        fields.setdefault(kind, raw[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def _name(raw: bytes, flags: int, system: int, unicode_path: bytes) -> str:
    if len(unicode_path) > 5 and int.from_bytes(unicode_path[1:5], "little") == zlib.crc32(raw):
        return unicode_path[5:].decode("utf-8", "surrogateescape")
    # Programs on Unix write UTF-8 without saying so.
    name = raw.decode("utf-8", "surrogateescape") if flags & _UTF8 or system in _ON_UNIX else raw.decode("cp437")
    return name.replace("\\", "/") if system in _ON_DOS else name


def _content(file: RandomAccess, directory: _Directory, entry: _Entry) -> Part:
    archive, name = file.archive, entry.name
    if entry.flags & (_ENCRYPTED | _MASKED) or entry.method == 99:
        raise Unsupported(
            f"{archive}: the member {shown(name)} is encrypted", hint="unpack it by hand and add the folder"
        )
    what = f"the member {shown(name)}"
    place = entry.offset + directory.shift
    local = _LOCAL.unpack(file.at(place, _LOCAL.size, what))
    if local[0] != b"PK\3\4":
        raise damaged(archive, f"has no header at byte {place:,}", name)
    start = place + _LOCAL.size + local[9] + local[10]
    packed = Range(file, start, entry.packed_bytes, what)
    if entry.packed_bytes > file.size_bytes - start:
        raise damaged(archive, f"is cut off: expected {entry.packed_bytes:,} bytes at byte {start:,}", name)
    damage = partial(damaged, archive, member=name)
    stream = _decoded(packed, entry, archive)
    return Part(
        stream,
        entry.size_bytes,
        lambda: damage(f"is shorter than {entry.size_bytes:,} bytes"),
        (entry.crc32, lambda: damage("is damaged: its checksum is wrong")),
    )


def _decoded(packed: Range, entry: _Entry, archive: str) -> Readable:
    method = _METHODS.get(entry.method)
    if method is None or entry.flags & _PATCHED:
        called = _OTHER_METHODS.get(entry.method, f"method {entry.method}")
        raise Unsupported(
            f"{archive}: the member {shown(entry.name)} is compressed by {called}, which is not supported",
            hint="unpack it by hand and add the folder",
        )
    if method == "stored":
        return packed

    def damage(what: str) -> Integrity:
        return damaged(archive, f"is damaged: {what}", entry.name)

    chosen = _lzma(packed, entry.name, archive) if method == "lzma" else codec(method, archive)
    return Expanded(packed, chosen, damage, frames=False)


def _lzma(packed: Range, name: str, archive: str) -> Codec:
    """Read the header that zip puts before LZMA data: version, length 5, properties, size of the dictionary."""
    head = packed.read(9)
    if len(head) < 9 or head[2:4] != b"\5\0":
        raise damaged(archive, "has a damaged LZMA header", name)
    filter = lzma1_filter(head[4:9])
    if filter is None:
        raise damaged(archive, "has LZMA properties that are damaged or need too much memory", name)
    return raw_lzma([filter])


def _link_text(archive: str, entry: _Entry, content: Part) -> str:
    if entry.size_bytes > LONGEST_LINK_BYTES:
        raise refused(archive, entry.name, f"is a symbolic link with a text of {entry.size_bytes:,} bytes")
    text = b""
    while data := content.read(LONGEST_LINK_BYTES):
        text += data
    return text.decode("utf-8", "surrogateescape")
