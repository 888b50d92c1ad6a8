"""Tar archives read from front to back: old, POSIX (pax), GNU and star headers, sparse files.

Python's own tarfile takes a damaged header for the end of the archive, and reads headers of any size into memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import field

from fairmile.base.errors import Integrity, Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.archive_formats.reading import ListedSize, Member, Part, Source, damaged, refused
from fairmile.store.objects import Readable

BLOCK = 512
_LONGEST_HEADER = 4 << 20  # of names and attributes that stand before a member
_MOST_REGIONS = 1 << 20  # of one sparse file
_OCTAL = b"01234567"
_ZEROS = bytes(BLOCK)
_HOLE = bytes(64 << 10)
_FILE_KINDS = (b"0", b"\0", b"7", b"S")
_DEVICES = {b"3": "a character device", b"4": "a block device", b"6": "a pipe"}
_PAX_KEYS = ("path", "linkpath", "size")


class _Header(NamedTuple):
    name: str
    mode: int
    size: int
    kind: bytes
    target: str
    block: bytes


@dataclass
class _Before:
    """What headers in front of a member say about it."""

    name: str | None = None
    target: str | None = None
    pax: dict[str, str] = field(default_factory=dict)
    regions: array[int] = field(default_factory=lambda: array("Q"))


def looks_like_tar(block: bytes) -> bool:
    """Tell whether the bytes begin with the header of a member."""
    return len(block) >= BLOCK and block[0] != 0 and _checksum_is_right(block[:BLOCK])


def members(source: Source, *, needs_end_mark: bool) -> Iterator[Member]:
    """Yield each member up to the end mark.

    With `needs_end_mark` a stream that ends without one counts as cut off. Behind a compression, whose own end
    mark tells the same, it may be missing, as some programs leave it out.
    """
    everywhere: dict[str, str] = {}
    before = _Before()
    while True:
        block = source.peek(BLOCK)
        if not block or block == _ZEROS:
            if before != _Before():
                raise source.cut_off("a member's header")
            if not block and needs_end_mark:
                raise source.damaged("the archive ends without its end mark, so it is cut off")
            return
        if len(block) < BLOCK:
            raise source.cut_off("a header")
        header = _header(block, source)
        source.skip(BLOCK, "a header")
        if header.kind in (b"L", b"K"):
            text = _text(_extra(source, header).split(b"\0", 1)[0])
            if header.kind == b"L":
                before.name = text
            else:
                before.target = text
        elif header.kind in (b"x", b"X"):
            _read_pax(source, header, before)
        elif header.kind == b"g":
            shared = _Before()
            _read_pax(source, header, shared)
            everywhere |= shared.pax
        else:
            before.pax = everywhere | before.pax
            yield from _member(source, header, before)
            before = _Before()


def listed_size(source: Source) -> ListedSize:
    """Return number and size of the files, walking from header to header."""
    files = size = 0
    for member in members(source, needs_end_mark=False):
        if member.kind != "folder":
            files += 1
            size += member.size_bytes or 0
    return ListedSize(files, size)


def _member(source: Source, header: _Header, before: _Before) -> Iterator[Member]:
    pax = before.pax
    name = pax.get("GNU.sparse.name") or pax.get("path") or before.name or header.name
    target = pax.get("linkpath") or before.target or header.target
    kind, size = header.kind, header.size
    if "size" in pax:
        size = _decimal(source, pax["size"])
    if kind in _DEVICES:
        raise refused(source.archive, name, f"is {_DEVICES[kind]}")
    if kind == b"M":
        raise Unsupported(f"{source.archive} is the continuation of another volume", hint="join the volumes first")
    if kind in (b"5", b"D") or (kind in (b"0", b"\0") and name.endswith("/")):
        if kind != b"5":
            source.skip(_padded(size), "a folder's listing")
        yield Member(name, "folder", 0, source)
    elif kind in (b"1", b"2"):  # whatever their size says, no content follows
        yield Member(name, "symlink" if kind == b"2" else "hardlink", 0, source, target=target)
    elif kind in _FILE_KINDS:
        yield from _file(source, header, before, name, size)
    elif kind == b"V":
        source.skip(_padded(size), "the label of the volume")
    else:
        raise refused(source.archive, name, f"is of an unknown kind: {kind!r}")


def _file(source: Source, header: _Header, before: _Before, name: str, size: int) -> Iterator[Member]:
    executable = bool(header.mode & 0o100)

    def cut_off() -> Integrity:
        return damaged(source.archive, f"is cut off at byte {source.at:,} of the archive", name)

    regions = _regions(source, header, before)
    if regions is None:
        content = Part(source, size, cut_off)
        yield Member(name, "file", size, content, executable)
    else:
        if sum(regions.spans[1::2]) != size - regions.map_bytes:
            raise source.damaged("the map of a sparse file does not fit its size")
        content = Part(source, size - regions.map_bytes, cut_off)
        yield Member(name, "file", regions.size_bytes, _Sparse(content, regions), executable)
    source.skip(content.left, f"the member {name!r}")
    source.skip(-size % BLOCK, "the padding of a member")


class _Regions(NamedTuple):
    """What is stored of a sparse file: start, length, start, …; `map_bytes` of its content are this list itself."""

    size_bytes: int
    spans: array[int]
    map_bytes: int


class _Sparse:
    """A file of which only some regions are in the archive; all else is zeros."""

    def __init__(self, stored: Readable, regions: _Regions) -> None:
        self._stored, self._spans, self._size = stored, regions.spans, regions.size_bytes
        self._next = self._at = 0

    def read(self, size: int, /) -> bytes:
        while self._next < len(self._spans):
            start, length = self._spans[self._next], self._spans[self._next + 1]
            if self._at < start:
                return self._hole(min(size, start - self._at))
            if self._at < start + length:
                data = self._stored.read(min(size, start + length - self._at))
                self._at += len(data)
                return data
            self._next += 2
        return self._hole(min(size, self._size - self._at))

    def _hole(self, size: int) -> bytes:
        data = _HOLE[:size]
        self._at += len(data)
        return data


def _regions(source: Source, header: _Header, before: _Before) -> _Regions | None:
    pax = before.pax
    spans = array("Q")
    map_bytes = 0
    if header.kind == b"S":
        real_size = _number(header.block[483:495], source)
        _old_gnu_map(source, header.block, spans)
    elif pax.get("GNU.sparse.major") == "1":
        real_size = _decimal(source, pax.get("GNU.sparse.realsize", ""))
        start = source.at
        _stored_map(source, spans)
        map_bytes = source.at - start
    elif "GNU.sparse.size" in pax:
        real_size = _decimal(source, pax["GNU.sparse.size"])
        spans = before.regions
        for number in filter(None, pax.get("GNU.sparse.map", "").split(",")):
            _append(source, spans, _decimal(source, number))
    else:
        return None
    end = 0
    if len(spans) % 2:
        raise source.damaged("the map of a sparse file lacks a number")
    for index in range(0, len(spans), 2):
        if spans[index] < end:
            raise source.damaged("the regions of a sparse file overlap")
        end = spans[index] + spans[index + 1]
    if end > real_size:
        raise source.damaged("the regions of a sparse file reach beyond its end")
    return _Regions(real_size, spans, map_bytes)


def _append(source: Source, spans: array[int], number: int) -> None:
    if len(spans) >= 2 * _MOST_REGIONS:
        raise Unsupported(f"{source.archive} holds a sparse file of more than {_MOST_REGIONS:,} regions")
    spans.append(number)


def _old_gnu_map(source: Source, block: bytes, spans: array[int]) -> None:
    start, count, more = 386, 4, block[482]
    while True:
        for at in range(start, start + 24 * count, 24):
            if block[at] and block[at + 12]:
                _append(source, spans, _number(block[at : at + 12], source))
                _append(source, spans, _number(block[at + 12 : at + 24], source))
        if not more:
            return
        block = source.exactly(BLOCK, "the map of a sparse file")
        start, count, more = 0, 21, block[504]


def _stored_map(source: Source, spans: array[int]) -> None:
    """Read the map that stands in front of the content: decimal numbers, one in a line, padded to whole blocks."""
    text = b""
    expected: int | None = None
    while expected is None or len(spans) < expected:
        text += source.exactly(BLOCK, "the map of a sparse file")
        *lines, text = text.split(b"\n")
        for line in lines:
            number = _decimal(source, line.decode("latin-1"))
            if expected is None:
                expected = 2 * min(number, _MOST_REGIONS + 1)
            elif len(spans) < expected:
                _append(source, spans, number)
        if len(text) > BLOCK:
            raise source.damaged("the map of a sparse file is not a list of numbers")


def _read_pax(source: Source, header: _Header, before: _Before) -> None:
    """Take the attributes that a pax header states: lines of `LENGTH KEY=VALUE`."""
    data = _extra(source, header)
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 12)
        end = at + (_decimal(source, data[at:space].decode("latin-1")) if space > 0 else 0)
        equals = data.find(b"=", space, end)
        if not at < space < equals < end <= len(data) or data[end - 1] != 0x0A:
            raise source.damaged("a pax header is damaged")
        key, value = _text(data[space + 1 : equals]), data[equals + 1 : end - 1]
        at = end
        if key in ("GNU.sparse.offset", "GNU.sparse.numbytes"):
            _append(source, before.regions, _decimal(source, _text(value)))
        elif key in _PAX_KEYS or key.startswith("GNU.sparse."):
            before.pax[key] = _text(value)


def _extra(source: Source, header: _Header) -> bytes:
    if header.size > _LONGEST_HEADER:
        raise source.damaged(f"a header claims {header.size:,} bytes")
    data = source.exactly(header.size, "a long header")
    source.skip(-header.size % BLOCK, "a long header")
    return data


def _header(block: bytes, source: Source) -> _Header:
    if not _checksum_is_right(block):
        raise source.damaged("a header is damaged: its checksum is wrong")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        # star keeps times where POSIX has the last bytes of the prefix
        prefix = block[345 : 476 if block[508:] == b"tar\0" else 500].split(b"\0", 1)[0]
        if prefix:
            name = prefix + b"/" + name
    return _Header(
        _text(name),
        _number(block[100:108], source),
        _number(block[124:136], source),
        block[156:157],
        _text(block[157:257].split(b"\0", 1)[0]),
        block,
    )


def _checksum_is_right(block: bytes) -> bool:
    stated = block[148:156].strip(b" \0")
    if not stated or stated.strip(_OCTAL):
        return False
    blank = block[:148] + b"        " + block[156:]
    difference = sum(blank) - int(stated, 8)
    # Some old programs added signed bytes.
    return difference == 0 or difference == 256 * sum(byte > 127 for byte in blank)


def _number(raw: bytes, source: Source) -> int:
    if raw[0] & 0x80:  # GNU writes large numbers in base 256
        if raw[0] & 0x40:
            raise source.damaged("a header holds a negative number")
        number = int.from_bytes(raw, "big") - (0x80 << 8 * (len(raw) - 1))
        if number >> 63:
            raise source.damaged("a header holds a number that is too large")
        return number
    digits = raw.split(b"\0", 1)[0].strip()
    if digits.strip(_OCTAL):
        raise source.damaged(f"a header holds {digits!r}, expected a number")
    return int(digits or b"0", 8)


def _decimal(source: Source, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) >> 63:
        raise source.damaged(f"found {text[:30]!r}, expected a number")
    return int(text)


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
