"""Archives unpacked into the store while they stream in: every member checked, nothing trusted, memory bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol, cast

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import Unsupported, UsageError
from fairmile.store.archive_formats import sevenzip, tar, xz_index
from fairmile.store.archive_formats import zip as zips
from fairmile.store.archive_formats.compression import Expanded, codec, zstd_library
from fairmile.store.archive_formats.reading import (
    LONGEST_LINK_BYTES,
    ListedSize,
    Member,
    RandomAccess,
    Source,
    guarded,
    refused,
    shown,
)
from fairmile.store.limits import Limits
from fairmile.store.listing import Listing
from fairmile.store.objects import Readable

__all__ = [
    "HEAD_BYTES",
    "ZIP_TAIL_BYTES",
    "Limits",
    "ListedSize",
    "Sink",
    "archive_format",
    "listed_size",
    "needs_seek",
    "unpack",
    "zip_listed_size",
]

HEAD_BYTES = 4096  # of a file are enough for `archive_format`
ZIP_TAIL_BYTES = 1 << 20  # the last bytes of a zip archive that mostly hold its directory
_WHOLE_BYTES = 1 << 20  # members up to this size are read at once
_LONGEST_NAME_BYTES, _LONGEST_PATH_BYTES = 255, 4095
_MOST_LINKS_FOLLOWED, _MOST_PARTS_FOLLOWED = 40, 4096
_LINK_MODE = 0o120000
_MAGIC = {
    b"\x1f\x8b\x08": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"PK\3\4": "zip",
    b"PK\5\6": "zip",
    sevenzip.MAGIC: "7z",
}
_SUFFIXES = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.bz2": "tar.bz2",
    ".tbz2": "tar.bz2",
    ".tbz": "tar.bz2",
    ".tar.xz": "tar.xz",
    ".txz": "tar.xz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
    ".tar": "tar",
    ".gz": "gz",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zst": "zst",
    ".zip": "zip",
    ".7z": "7z",
}
# Formats that use a zip or a compressed stream inside; who asks for such a file wants it as it is.
_WHOLE_FILES = frozenset(
    {"bin", "ckpt", "joblib", "keras", "mar", "mlpackage", "npy", "npz", "onnx", "pickle", "pkl", "pt", "pt2", "pte"}
    | {"pth", "ptl", "skops", "tfrecord", "tfrecords", "torchscript"}
    | {"conda", "crate", "egg", "gem", "nupkg", "whl"}
    | {"aar", "apk", "ear", "ipa", "jar", "vsix", "war", "xpi"}
    | {"docx", "epub", "odp", "ods", "odt", "pptx", "xlsm", "xlsx"}
    | {"3mf", "bam", "bcf", "bgz", "blend", "kmz", "mgz", "qgz", "rda", "rdata", "rds", "svgz", "tbi"}
)


class Sink(Protocol):
    """Where contents go; a batch of the store is one."""

    def add(self, data: bytes, sha256: str | None = None) -> str:
        """Take a whole content and return its sha256."""
        ...

    def add_stream(self, stream: Readable) -> tuple[str, int]:
        """Take all that a stream gives and return its sha256 and size."""
        ...


def archive_format(name: str, head: bytes) -> str | None:
    """Return the format of an archive by its first bytes, else by its name; None when it is none to unpack.

    The formats are tar, tar.gz, tar.bz2, tar.xz, tar.zst, zip, 7z, and gz, bz2, xz, zst for one compressed file.
    A file whose name says that it only uses such a format inside (.npz, .docx, .whl, .pt) is not an archive.
    """
    if _extension(name) in _WHOLE_FILES:
        return None
    by_name = next((format for suffix, format in _SUFFIXES.items() if name.lower().endswith(suffix)), None)
    by_magic = next((format for magic, format in _MAGIC.items() if head.startswith(magic)), None)
    if by_magic in ("gz", "bz2", "xz", "zst"):
        is_tar = (by_name or "").startswith("tar") or tar.looks_like_tar(_expanded_head(by_magic, head))
        return f"tar.{by_magic}" if is_tar else by_magic
    return by_magic or ("tar" if tar.looks_like_tar(head) else by_name)


def needs_seek(format: str) -> bool:
    """Tell whether an archive of the format can be unpacked only from a file, and not while it streams in."""
    return format in ("zip", "7z")


def unpack(
    stream: Readable,
    name: str,
    sink: Sink,
    *,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    on_member: Callable[[str, int], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Listing:
    """Put the content of every member into `sink` and return the entries, reading `stream` to its end.

    `stream` begins at the archive's first byte and can seek where `needs_seek` says so. Folders leave no trace.
    Hard links become files of the same content; of several members of one name the last is kept, which `on_note`
    is told in a sentence. `on_member` is told path and size of each file that was stored. `check` is called often, by
    who reads the listing too; what it raises, such as an interruption, ends the work. A damaged or cut-off
    archive raises Integrity; one that is unsafe or beyond the limits, UsageError; an encrypted one, Unsupported.
    """
    source = Source(_Watched(stream, check), name)
    format = archive_format(name, source.peek(HEAD_BYTES))
    if format is None:
        raise Unsupported(f"{name} is not an archive of a known kind", hint=f"known: {', '.join(_SUFFIXES)}")
    unpacking = _Unpacking(name, sink, limits, check)
    for member in _members(stream, source, format, unpacking):
        entry = unpacking.take(member)
        if entry is not None and on_member is not None:
            on_member(entry.path, entry.size_bytes)
    unpacking.check_paths()
    unpacking.check_links()
    count, repeated = unpacking.entries.repeated() if on_note is not None else (0, "")
    if count and on_note is not None:
        on_note(
            f"{name}: {count:,} {'name occurs' if count == 1 else 'names occur'} more than once, such as "
            f"{shown(repeated)}; the last member of each was kept"
        )
    return unpacking.entries


def listed_size(file: BinaryIO, name: str) -> ListedSize | None:
    """Return what an archive unpacks to, read from its index without unpacking; None when it has no index.

    Of a compressed tar the size of the tar is known at best, which is an estimate. So is gzip's, which counts
    modulo 4 GiB and only the last of several members, and Zstandard's, which counts the first of several frames.
    """
    guarded(name, file.seek, 0)
    head = guarded(name, file.read, HEAD_BYTES)
    format = archive_format(name, head)
    if format is None:
        return None
    if format == "tar":
        return tar.listed_size(Source.seeking(file, name))
    access = RandomAccess(file, name)
    if format == "zip":
        return zips.listed_size(access)
    if format == "7z":
        return sevenzip.listed_size(access)
    is_tar = format.startswith("tar.")
    files = None if is_tar else 1
    if format.endswith("xz"):
        return ListedSize(files, xz_index.expanded_bytes(access), estimate=is_tar)
    if format.endswith("gz") and access.size_bytes >= 18:
        last = int.from_bytes(access.at(access.size_bytes - 4, 4, "the size"), "little")
        # Data that do not compress grow by a few bytes, so the size is the packed one at least.
        missing = max(access.size_bytes - 1024 - last, 0)
        return ListedSize(files, last + (missing + 0xFFFFFFFF) // (1 << 32) * (1 << 32), estimate=True)
    if format.endswith("zst"):
        size = _zstd_size(head, name)
        return None if size is None else ListedSize(files, size, estimate=True)
    return None


def zip_listed_size(tail: bytes, total_bytes: int, name: str = "the zip archive") -> ListedSize | int:
    """Return what a zip archive unpacks to, given its last bytes; a number says how many last bytes it takes.

    `ZIP_TAIL_BYTES` suffice for some 10,000 members. Integrity is raised when the bytes are no end of a zip archive.
    """
    return zips.listed_in_tail(tail, total_bytes, name)


def _members(stream: Readable, source: Source, format: str, unpacking: _Unpacking) -> Iterator[Member]:
    name = source.archive
    if needs_seek(format):
        if not getattr(stream, "seekable", bool)():
            raise UsageError(f"{name}: a {format} archive can be unpacked only from a file", hint="store it first")
        file = RandomAccess(cast("BinaryIO", stream), name)
        unpacking.packed_bytes = lambda: file.size_bytes
        yield from zips.members(file) if format == "zip" else sevenzip.members(file)
        return
    unpacking.packed_bytes = lambda: source.at
    if format == "tar":
        yield from tar.members(source, needs_end_mark=True)
        source.drain()
        return
    packing = format.rpartition(".")[2]
    expanded = Expanded(source, codec(packing, name), source.damaged)
    inner = Source(_Counted(expanded, unpacking.check_ratio), name, part=" of the expanded stream")
    if format.startswith("tar.") or tar.looks_like_tar(inner.peek(tar.BLOCK)):
        yield from tar.members(inner, needs_end_mark=False)
        inner.drain()
    else:
        yield Member(_without_suffix(name, packing), "file", None, inner)


class _Unpacking:
    """The entries of an archive as its members come, and what they have cost."""

    def __init__(self, archive: str, sink: Sink, limits: Limits, check: Callable[[], None]) -> None:
        self.entries = Listing(check=check)
        self.packed_bytes: Callable[[], int] = lambda: 0
        self._archive, self._sink, self._limits, self._check = archive, sink, limits, check
        self._members = self._size_bytes = 0

    def take(self, member: Member) -> ManifestEntry | None:
        """Store a member's content and return its entry; None for a folder."""
        self._members += 1
        self._check()
        if self._members > self._limits.files:
            raise self._beyond(member.name, f"it holds more than {self._limits.files:,} members")
        path = _checked_path(self._archive, member)
        if member.kind == "folder":
            return None
        target = ""
        if member.kind == "symlink":
            entry, target = self._symlink(path, member.target), member.target
        elif member.kind == "hardlink":
            entry, target = self._hardlink(path, member)
        else:
            entry = self._file(path, member)
        self.entries.put(entry, target)
        return entry

    def check_paths(self) -> None:
        """Refuse a path that leads through another member: the system would follow a link, or fail at a file."""
        conflict = self.entries.through()
        if conflict is not None:
            path, parent = conflict
            if self.entries.target(parent) is not None:
                raise refused(self._archive, path, f"goes through the symbolic link {shown(parent)}")
            raise refused(self._archive, path, f"needs a folder where the file {shown(parent)} is")

    def check_links(self) -> None:
        """Refuse a symbolic link that leads out of the archive, be it by way of other links."""
        for path, target in self.entries.links():
            if not self._stays_inside(path, target):
                raise refused(self._archive, path, f"is a symbolic link out of the archive, to {target!r}")

    def check_ratio(self, expanded_bytes: int) -> None:
        """Refuse a stream that expands as only a trap does."""
        self._check_size("", expanded_bytes)

    def _file(self, path: str, member: Member) -> ManifestEntry:
        size = member.size_bytes
        already = self._size_bytes

        def check(count: int) -> None:
            self._check()
            self._size_bytes = already + count
            self._check_size(path, self._size_bytes)

        if excess := self._limits.total_excess(already + (size or 0)):
            raise self._beyond(path, excess)
        content = _Counted(member.content, check)
        if size is not None and size <= _WHOLE_BYTES:
            pieces = []
            while piece := content.read(_WHOLE_BYTES):
                pieces.append(piece)
            data = b"".join(pieces)
            digest, size = self._sink.add(data), len(data)
        else:
            digest, size = self._sink.add_stream(content)
        return ManifestEntry(path, size, digest, 0o755 if member.executable else 0o644)

    def _symlink(self, path: str, target: str) -> ManifestEntry:
        data = os.fsencode(target)
        if not data or b"\0" in data or len(data) > LONGEST_LINK_BYTES:
            raise refused(self._archive, path, "is a symbolic link with an invalid target")
        if target.startswith("/"):
            raise refused(self._archive, path, f"is a symbolic link out of the archive, to {shown(target)}")
        return ManifestEntry(path, len(data), self._sink.add(data), _LINK_MODE)

    def _hardlink(self, path: str, member: Member) -> tuple[ManifestEntry, str]:
        target = _checked_path(self._archive, Member(member.target, "file", 0, member.content))
        first = self.entries.get(target)
        if first is None:
            raise refused(self._archive, path, f"is a hard link to {shown(target)}, which does not come before it")
        return ManifestEntry(path, first.size_bytes, first.sha256, first.mode), self.entries.target(target) or ""

    def _stays_inside(self, path: str, target: str) -> bool:
        """Follow a link through the archive's other links as the system would."""
        place = path.split("/")[:-1]
        parts = target.split("/")[::-1]
        links = steps = 0
        while parts:
            part = parts.pop()
            steps += 1
            if steps > _MOST_PARTS_FOLLOWED:
                return False
            if part == "..":
                if not place:
                    return False
                place.pop()
            elif part not in ("", "."):
                place.append(part)
                onward = self.entries.target("/".join(place))
                if onward is not None:
                    links += 1
                    if links > _MOST_LINKS_FOLLOWED:  # where the system gives up, nobody gets out
                        return True
                    place.pop()
                    parts.extend(onward.split("/")[::-1])
        return True

    def _check_size(self, path: str, size_bytes: int) -> None:
        if excess := self._limits.excess(size_bytes, self.packed_bytes()):
            raise self._beyond(path, excess)

    def _beyond(self, member: str, what: str) -> UsageError:
        at = f" at the member {shown(member)}" if member else ""
        return UsageError(
            f"{self._archive}: unpacking stopped{at}: {what}",
            hint="if you trust it, unpack it by hand and add the folder",
        )


class _Watched:
    """Pass a stream on, checking before each read."""

    def __init__(self, stream: Readable, check: Callable[[], None]) -> None:
        self._stream, self._check = stream, check

    def read(self, size: int, /) -> bytes:
        self._check()
        return self._stream.read(size)


class _Counted:
    """Pass a stream on and tell how many bytes have passed."""

    def __init__(self, stream: Readable, on_total: Callable[[int], None]) -> None:
        self._stream, self._on_total, self._total = stream, on_total, 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._total += len(data)
        self._on_total(self._total)
        return data


def _checked_path(archive: str, member: Member) -> str:
    name = member.name
    if "\0" in name:
        raise refused(archive, name, "has a NUL character in its name")
    if "\\" in name:
        raise refused(archive, name, "has a backslash in its name")
    if name.startswith("/"):
        raise refused(archive, name, "has an absolute path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refused(archive, name, "leaves its folder with '..'")
    path = "/".join(parts)
    try:
        length = len(os.fsencode(path))
        if length > _LONGEST_NAME_BYTES and any(len(os.fsencode(part)) > _LONGEST_NAME_BYTES for part in parts):
            raise refused(archive, name, f"has a name of more than {_LONGEST_NAME_BYTES} bytes")
        if length > _LONGEST_PATH_BYTES:
            raise refused(archive, name, f"has a path of more than {_LONGEST_PATH_BYTES:,} bytes")
    except UnicodeEncodeError as error:
        raise refused(archive, name, "has characters that a file name cannot contain") from error
    if not path and member.kind != "folder":
        raise refused(archive, name, "has no name")
    return path


def _extension(name: str) -> str:
    return name.rsplit("/", 1)[-1].rpartition(".")[2].lower()


def _without_suffix(name: str, packing: str) -> str:
    base = name.rsplit("/", 1)[-1]
    return base[: -len(packing) - 1] if base.lower().endswith("." + packing) and len(base) > len(packing) + 1 else base


def _expanded_head(packing: str, head: bytes) -> bytes:
    """Return as much as the first bytes of a compressed file expand to, up to a block of tar."""
    try:
        chosen = codec(packing, "")
    except Unsupported:  # the name must do
        return b""
    try:
        return chosen.start().decompress(head, tar.BLOCK)
    except chosen.errors:
        return b""


def _zstd_size(head: bytes, name: str) -> int | None:
    zstd = zstd_library(name)
    try:
        size: int | None = zstd.get_frame_info(head).decompressed_size
    except zstd.ZstdError:
        return None
    return size
