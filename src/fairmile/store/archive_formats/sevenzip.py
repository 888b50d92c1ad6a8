"""7z archives read by their header, one member after the other, each folder of solid data decoded once.

Copy, LZMA, LZMA2 (also behind delta and branch filters), Deflate, bzip2 and Zstandard are decoded. py7zr gives
members in pieces of up to 128 MB (peak 277 MB for one file of zeros), which is beyond the memory we may use.
"""

from __future__ import annotations

import lzma
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from fairmile.base.errors import Integrity, Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.archive_formats.compression import WINDOW_BYTES, Codec, Expanded, codec, lzma1_filter, raw_lzma
from fairmile.store.archive_formats.reading import (
    LONGEST_LINK_BYTES,
    ListedSize,
    Member,
    Part,
    RandomAccess,
    Range,
    damaged,
    refused,
)
from fairmile.store.objects import Readable

MAGIC = b"7z\xbc\xaf\x27\x1c"
_SIGNATURE = struct.Struct("<6sBBLQQL")
_LONGEST_HEADER = 32 << 20  # about 200,000 files
_MOST_HEADER_LAYERS = 4
_MOST_CODERS = 4
# Ids of the header's parts.
_END, _HEADER, _PROPERTIES, _EXTRA_STREAMS, _STREAMS, _FILES, _PACK, _UNPACK, _SUBSTREAMS = range(9)
_SIZE, _CRC, _FOLDER, _UNPACK_SIZE, _COUNTS, _EMPTY_STREAM, _EMPTY_FILE, _ANTI, _NAMES = range(9, 18)
_ATTRIBUTES, _PACKED_HEADER = 0x15, 0x17
_LZMA1, _LZMA2, _DELTA, _AES = b"\3\1\1", b"\x21", b"\3", b"\6\xf1\7\1"
_STREAM_CODERS = {b"\4\1\x08": "deflate", b"\4\2\2": "bz2", b"\4\xf7\x11\1": "zst"}
_BRANCH_FILTERS = {
    b"\4": lzma.FILTER_X86,
    b"\5": lzma.FILTER_POWERPC,
    b"\6": lzma.FILTER_IA64,
    b"\7": lzma.FILTER_ARM,
    b"\x08": lzma.FILTER_ARMTHUMB,
    b"\x09": lzma.FILTER_SPARC,
    b"\3\3\1\3": lzma.FILTER_X86,
    b"\3\3\2\5": lzma.FILTER_POWERPC,
    b"\3\3\4\1": lzma.FILTER_IA64,
    b"\3\3\5\1": lzma.FILTER_ARM,
    b"\3\3\7\1": lzma.FILTER_ARMTHUMB,
    b"\3\3\x08\5": lzma.FILTER_SPARC,
}
_CODER_NAMES = {
    _LZMA1: "LZMA",
    _LZMA2: "LZMA2",
    b"\3\4\1": "PPMd",
    b"\3\3\1\x1b": "BCJ2",
    b"\4\1\x09": "Deflate64",
    b"\x0a": "ARM64",
}
_IS_REPARSE_POINT, _HAS_UNIX_MODE = 0x400, 0x8000


class _Coder(NamedTuple):
    method: bytes
    properties: bytes


@dataclass
class _Folder:
    """One packed stream: `coders` in the order in which they are applied, and the files that it holds."""

    coders: list[_Coder]
    start: int = 0
    packed_bytes: int = 0
    size_bytes: int = 0
    crc32: int | None = None
    sizes: list[int] = field(default_factory=list)
    checksums: list[int | None] = field(default_factory=list)


class _File(NamedTuple):
    name: str
    has_content: bool
    is_folder: bool
    attributes: int


def members(file: RandomAccess) -> Iterator[Member]:
    """Yield each member in the order of the archive."""
    folders, files = _index(file)
    contents = _contents(file, folders)
    for each in files:
        name, mode = each.name, each.attributes >> 16 if each.attributes & _HAS_UNIX_MODE else 0
        content = _part(file.archive, name, *next(contents)) if each.has_content else None
        kind = stat.S_IFMT(mode)
        if each.is_folder:
            yield Member(name, "folder", 0, Range(file, 0, 0, ""))
        elif kind == stat.S_IFLNK and content is not None:
            yield Member(name, "symlink", 0, content, target=_link_text(file.archive, name, content))
        elif kind not in (0, stat.S_IFREG) or each.attributes & _IS_REPARSE_POINT:
            raise refused(file.archive, name, "is neither a file, a folder nor a symbolic link of Unix")
        else:
            size = content.left if content is not None else 0
            yield Member(name, "file", size, content or Range(file, 0, 0, ""), bool(mode & 0o100))
        if content is not None:
            content.finish()


def listed_size(file: RandomAccess) -> ListedSize:
    """Return number and size of the files according to the header."""
    folders, files = _index(file)
    return ListedSize(sum(not each.is_folder for each in files), sum(sum(each.sizes) for each in folders))


def _contents(file: RandomAccess, folders: Sequence[_Folder]) -> Iterator[tuple[Readable, int, int | None]]:
    """Yield for each file the stream that stands at its content, its size and its checksum."""
    for folder in folders:
        stream = _decoded(file, folder)
        for size, checksum in zip(folder.sizes, folder.checksums, strict=True):
            yield stream, size, checksum


def _part(archive: str, name: str, stream: Readable, size: int, checksum: int | None) -> Part:
    short = partial(damaged, archive, "is cut off", name)
    wrong = partial(damaged, archive, "is damaged: its checksum is wrong", name)
    return Part(stream, size, short, None if checksum is None else (checksum, wrong))


def _link_text(archive: str, name: str, content: Part) -> str:
    if content.left > LONGEST_LINK_BYTES:
        raise refused(archive, name, f"is a symbolic link with a text of {content.left:,} bytes")
    text = b""
    while data := content.read(LONGEST_LINK_BYTES):
        text += data
    return text.decode("utf-8", "surrogateescape")


def _decoded(file: RandomAccess, folder: _Folder) -> Readable:
    what = "a packed stream"
    if folder.packed_bytes > file.size_bytes - folder.start:
        raise damaged(file.archive, f"{what} should end at byte {folder.start + folder.packed_bytes:,}: it is cut off")
    packed = Range(file, folder.start, folder.packed_bytes, what)
    if folder.coders == [_Coder(b"\0", b"")]:
        return packed
    return Expanded(packed, _codec(folder.coders, file.archive), partial(damaged, file.archive))


def _codec(coders: Sequence[_Coder], archive: str) -> Codec:
    """Return what decodes a packed stream: one coder, or LZMA followed by filters."""
    first, *filters = coders
    if not filters and first.method in _STREAM_CODERS:
        return codec(_STREAM_CODERS[first.method], archive)
    chain: list[dict[str, Any]] = []
    for coder in filters:
        if coder.method == _DELTA and len(coder.properties) == 1:
            chain.append({"id": lzma.FILTER_DELTA, "dist": coder.properties[0] + 1})
        # Without LZMA2's end mark liblzma keeps back the last bytes that a branch filter waits for.
        elif coder.method in _BRANCH_FILTERS and not coder.properties and first.method == _LZMA2:
            chain.append({"id": _BRANCH_FILTERS[coder.method]})
        else:
            raise _not_supported(coders, archive)
    chain.reverse()
    if first.method == _LZMA1:
        last = lzma1_filter(first.properties)
    elif first.method == _LZMA2:
        last = _lzma2_filter(first.properties)
    else:
        raise _not_supported(coders, archive)
    if last is None:
        raise damaged(archive, "the LZMA properties are damaged, or unpacking needs too much memory")
    return raw_lzma([*chain, last])


def _lzma2_filter(properties: bytes) -> dict[str, Any] | None:
    if len(properties) != 1 or properties[0] > 40:
        return None
    size = 0xFFFFFFFF if properties[0] == 40 else (2 | properties[0] & 1) << (properties[0] // 2 + 11)
    return {"id": lzma.FILTER_LZMA2, "dict_size": size} if size <= WINDOW_BYTES else None


def _not_supported(coders: Sequence[_Coder], archive: str) -> Unsupported:
    hint = "unpack it by hand with the program 7z, and add the folder"
    if any(coder.method == _AES for coder in coders):
        return Unsupported(f"{archive} is encrypted", hint=hint)
    names = [_CODER_NAMES.get(coder.method, f"method {coder.method.hex()}") for coder in coders]
    return Unsupported(f"{archive} is compressed by {' and '.join(names)}, which is not supported", hint=hint)


class _Text:
    """The header's bytes, read from front to back; reading beyond the end means that it is damaged."""

    def __init__(self, data: bytes, archive: str) -> None:
        self.archive, self._data, self._at = archive, data, 0

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise damaged(self.archive, "the header of the 7z archive is cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        """Read a number: the leading one bits of its first byte count the bytes that follow."""
        first = self.byte()
        count = 8 - (first ^ 0xFF).bit_length()
        low = int.from_bytes(self.take(count), "little")
        return low + ((first & (0x7F >> count)) << 8 * count)

    def count(self) -> int:
        """Read how many of something follow, each of which takes a byte at least."""
        number = self.number()
        if number > self.left + 1:
            raise self.wrong(f"announces {number:,} items")
        return number

    def bits(self, count: int) -> list[bool]:
        raw = self.take((count + 7) // 8)
        return [bool(raw[i >> 3] & 0x80 >> (i & 7)) for i in range(count)]

    def defined(self, count: int) -> list[bool]:
        return [True] * count if self.byte() else self.bits(count)

    def checksums(self, count: int) -> list[int | None]:
        return [int.from_bytes(self.take(4), "little") if given else None for given in self.defined(count)]

    def expect(self, wanted: int) -> None:
        byte = self.byte()
        if byte != wanted:
            raise self.wrong(f"has part {byte:#x}, expected {wanted:#x}")

    def wrong(self, what: str) -> Integrity:
        return damaged(self.archive, f"the header of the 7z archive is damaged: it {what}")


def _index(file: RandomAccess) -> tuple[list[_Folder], list[_File]]:
    magic, _, _, crc32, offset, size, header_crc32 = _SIGNATURE.unpack(file.at(0, _SIGNATURE.size, "the first header"))
    if magic != MAGIC:
        raise damaged(file.archive, "this is not a 7z archive")
    if zlib.crc32(struct.pack("<QQL", offset, size, header_crc32)) != crc32:
        raise damaged(file.archive, "the first header of the 7z archive is damaged")
    if size == 0:
        return [], []
    _allow(size, file.archive)
    data = file.at(_SIGNATURE.size + offset, size, "the header of the 7z archive")
    if zlib.crc32(data) != header_crc32:
        raise damaged(file.archive, "the header of the 7z archive is damaged: its checksum is wrong")
    for _ in range(_MOST_HEADER_LAYERS):
        text = _Text(data, file.archive)
        kind = text.byte()
        if kind == _HEADER:
            return _read_header(text)
        if kind != _PACKED_HEADER:
            raise text.wrong(f"begins with {kind:#x}")
        folders = _read_streams(text)
        if len(folders) != 1 or not folders[0].packed_bytes:
            raise text.wrong("is packed in several streams, or in none")
        data = _unpacked_header(file, folders[0])
    raise damaged(file.archive, "the header of the 7z archive is packed too many times")


def _unpacked_header(file: RandomAccess, folder: _Folder) -> bytes:
    _allow(folder.size_bytes, file.archive)
    part = _part(file.archive, "(packed header)", _decoded(file, folder), folder.size_bytes, folder.crc32)
    pieces = []
    while piece := part.read(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _allow(header_bytes: int, archive: str) -> None:
    if header_bytes > _LONGEST_HEADER:
        raise Unsupported(
            f"{archive} has a header of {header_bytes:,} bytes; at most {_LONGEST_HEADER:,} are read",
            hint="unpack it by hand with the program 7z, and add the folder",
        )


def _read_header(text: _Text) -> tuple[list[_Folder], list[_File]]:
    folders: list[_Folder] = []
    files: list[_File] = []
    while (kind := text.byte()) != _END:
        if kind == _PROPERTIES:
            while text.byte() != _END:
                text.take(text.number())
        elif kind == _STREAMS:
            folders = _read_streams(text)
        elif kind == _FILES:
            files = _read_files(text)
        else:
            raise text.wrong(f"has an unknown part {kind:#x}")
    if sum(each.has_content for each in files) != sum(len(folder.sizes) for folder in folders):
        raise text.wrong("has more or fewer files than contents")
    return folders, files


def _read_streams(text: _Text) -> list[_Folder]:
    folders: list[_Folder] = []
    position, packed = 0, list[int]()
    divided = False
    while (kind := text.byte()) != _END:
        if kind == _PACK:
            position, packed = _read_packed_sizes(text)
        elif kind == _UNPACK:
            folders = _read_folders(text)
        elif kind == _SUBSTREAMS:
            _read_substreams(text, folders)
            divided = True
        else:
            raise text.wrong(f"has an unknown part {kind:#x} among its streams")
    if len(packed) != len(folders):
        raise text.wrong("has another number of packed streams than of folders")
    start = _SIGNATURE.size + position
    for folder, size in zip(folders, packed, strict=True):
        folder.start, folder.packed_bytes = start, size
        start += size
        if not divided:
            folder.sizes, folder.checksums = [folder.size_bytes], [folder.crc32]
    return folders


def _read_packed_sizes(text: _Text) -> tuple[int, list[int]]:
    position, count = text.number(), text.count()
    sizes = [0] * count
    while (kind := text.byte()) != _END:
        if kind == _SIZE:
            sizes = [text.number() for _ in range(count)]
        elif kind == _CRC:
            text.checksums(count)
        else:
            raise text.wrong(f"has an unknown part {kind:#x} among its packed streams")
    return position, sizes


def _read_folders(text: _Text) -> list[_Folder]:
    text.expect(_FOLDER)
    count = text.count()
    text.expect(0)  # the list stands here and not in another stream
    read = [_read_coders(text) for _ in range(count)]
    folders = [_Folder(coders) for coders, _ in read]
    text.expect(_UNPACK_SIZE)
    for folder, (_, last) in zip(folders, read, strict=True):
        sizes = [text.number() for _ in folder.coders]
        folder.size_bytes = sizes[last]
    while (kind := text.byte()) != _END:
        if kind != _CRC:
            raise text.wrong(f"has an unknown part {kind:#x} among its folders")
        for folder, checksum in zip(folders, text.checksums(count), strict=True):
            folder.crc32 = checksum
    return folders


def _read_coders(text: _Text) -> tuple[list[_Coder], int]:
    """Read the coders of a folder; return them in the order in which they decode, and which one stated comes last."""
    count = text.number()
    if not 1 <= count <= _MOST_CODERS:
        raise text.wrong(f"has a folder with {count:,} coders")
    stated: list[_Coder] = []
    tangled = False
    for _ in range(count):
        flags = text.byte()
        method = text.take(flags & 0x0F)
        if flags & 0x10:
            tangled = tangled or (text.number(), text.number()) != (1, 1)
        stated.append(_Coder(method, text.take(text.number()) if flags & 0x20 else b""))
    if tangled:  # BCJ2 alone has several inputs
        raise _not_supported(stated, text.archive)
    feeds = {}  # which coder's output goes into which coder's input
    for _ in range(count - 1):
        into, out_of = text.number(), text.number()
        feeds[out_of] = into
    order = [next((i for i in range(count) if i not in feeds.values()), -1)]
    while order[-1] in feeds and len(order) < count:
        order.append(feeds[order[-1]])
    if sorted(order) != list(range(count)):
        raise text.wrong("has a folder whose coders do not form a chain")
    return [stated[i] for i in order], order[-1]


def _read_substreams(text: _Text, folders: Sequence[_Folder]) -> None:
    counts = [1] * len(folders)
    kind = text.byte()
    if kind == _COUNTS:
        counts = [text.count() for _ in folders]
        kind = text.byte()
    sized = kind == _SIZE
    for folder, count in zip(folders, counts, strict=True):
        if count:
            stated = [text.number() for _ in range(count - 1)] if sized else []
            folder.sizes = [*stated, folder.size_bytes - sum(stated)]
        if len(folder.sizes) != count or min(folder.sizes, default=0) < 0:
            raise text.wrong("has sizes of files that do not fit their folder")
        folder.checksums = [folder.crc32] if count == 1 else [None] * count
    if sized:
        kind = text.byte()
    if kind == _CRC:
        missing = [(folder, i) for folder in folders for i, given in enumerate(folder.checksums) if given is None]
        for (folder, i), checksum in zip(missing, text.checksums(len(missing)), strict=True):
            folder.checksums[i] = checksum
        kind = text.byte()
    if kind != _END:
        raise text.wrong(f"has an unknown part {kind:#x} among its contents")


def _read_files(text: _Text) -> list[_File]:
    count = text.count()
    names: list[str] = []
    attributes = [0] * count
    empty = [False] * count
    empty_files: list[bool] = []
    while (kind := text.byte()) != _END:
        part = _Text(text.take(text.number()), text.archive)
        if kind == _NAMES:
            part.expect(0)
            names = _read_names(part, count)
        elif kind == _EMPTY_STREAM:
            empty = part.bits(count)
        elif kind == _EMPTY_FILE:
            empty_files = part.bits(sum(empty))
        elif kind == _ANTI and any(part.bits(sum(empty))):
            raise Unsupported(f"{text.archive} holds marks of files to delete, which are not supported")
        elif kind == _ATTRIBUTES:
            given = part.defined(count)
            part.expect(0)
            attributes = [int.from_bytes(part.take(4), "little") if each else 0 for each in given]
    if len(names) != count:
        raise text.wrong("lacks names")
    numbers = iter(empty_files + [False] * (sum(empty) - len(empty_files)))
    return [_File(name, not empty[i], empty[i] and not next(numbers), attributes[i]) for i, name in enumerate(names)]


def _read_names(part: _Text, count: int) -> list[str]:
    raw = part.take(part.left)
    try:
        names = raw.decode("utf-16-le").split("\0")
    except UnicodeDecodeError as error:
        raise part.wrong("holds a name that is not UTF-16") from error
    if len(names) != count + 1 or names.pop():
        raise part.wrong(f"has {len(names):,} names, expected {count:,}")
    return names
