"""What the readers of all archive formats share: where bytes come from, what a member is, and how trouble is told."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import BinaryIO, Literal, TypeVar

from fairmile.base.errors import FairmileError, Integrity, SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.objects import Readable

T = TypeVar("T")

PIECE_BYTES = 128 << 10
LONGEST_LINK_BYTES = 4095  # Linux' PATH_MAX without its NUL
_LONGEST_SHOWN = 200


@dataclass(slots=True)
class Member:
    """One member of an archive; its content can be read until the next member is asked for.

    `name` and `target` are what the archive says and not to be trusted. `size_bytes` is None where only reading
    to the end tells it. The target of a hard link is the name of an earlier member.
    """

    name: str
    kind: Literal["file", "folder", "symlink", "hardlink"]
    size_bytes: int | None
    content: Readable
    executable: bool = False
    target: str = ""


class ListedSize(NamedTuple):
    """What an archive holds according to its index; `files` is None where the index does not count them."""

    files: int | None
    size_bytes: int
    estimate: bool = False


def shown(name: str) -> str:
    """Return the name of a member as messages show it."""
    return repr(name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "…")


def damaged(archive: str, what: str, member: str | None = None) -> Integrity:
    """Return the error for an archive, or a member of it, that is cut off or contradicts itself."""
    where = f"{archive}: " if member is None else f"{archive}: the member {shown(member)} "
    return Integrity(where + what, hint="fetch it again; if that does not help, the source is damaged")


def refused(archive: str, member: str, what: str) -> UsageError:
    """Return the error for a member that must not be unpacked."""
    return UsageError(
        f"{archive}: the member {shown(member)} {what}",
        hint="do not trust this archive, or unpack it by hand and add the folder",
    )


class Source:
    """An archive, or what a compressed one expands to, read from front to back in pieces."""

    def __init__(self, stream: Readable, archive: str, *, part: str = "") -> None:
        self.archive = archive
        self.at = 0
        self._stream = stream
        self._part = part
        self._buffer = b""
        self._next = 0
        self._end: int | None = None

    @classmethod
    def seeking(cls, file: BinaryIO, archive: str) -> Source:
        """Return a source over a file that skips by seeking."""
        source = cls(file, archive)
        source._end = file.seek(0, os.SEEK_END)
        file.seek(0)
        return source

    def read(self, size: int, /) -> bytes:
        """Return between one and `size` bytes; none at the end."""
        if self._next == len(self._buffer):
            if size >= PIECE_BYTES:
                data = self._pull(size)
                self.at += len(data)
                return data
            self._buffer, self._next = self._pull(PIECE_BYTES), 0
        data = self._buffer[self._next : self._next + size]
        self._next += len(data)
        self.at += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end, without passing over them."""
        while len(self._buffer) - self._next < size and (data := self._pull(PIECE_BYTES)):
            self._buffer, self._next = self._buffer[self._next :] + data, 0
        return self._buffer[self._next : self._next + size]

    def exactly(self, size: int, what: str) -> bytes:
        """Return `size` bytes, or raise Integrity that says in the midst of what the archive ends."""
        parts = []
        left = size
        while left:
            data = self.read(min(left, PIECE_BYTES))
            if not data:
                raise self.cut_off(what)
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int, what: str) -> None:
        """Pass over `size` bytes, or raise Integrity that says in the midst of what the archive ends."""
        if self._end is not None and size > len(self._buffer) - self._next:
            if self.at + size > self._end:
                raise self.cut_off(what)
            self.at += size
            self._buffer, self._next = b"", 0
            self._stream.seek(self.at)  # type: ignore[attr-defined]  # `seeking` was given a file
            return
        while size:
            data = self.read(min(size, PIECE_BYTES))
            if not data:
                raise self.cut_off(what)
            size -= len(data)

    def drain(self) -> None:
        """Read to the end, so that whoever checks the stream has seen all of it."""
        while self.read(PIECE_BYTES):
            pass

    def damaged(self, what: str) -> Integrity:
        return damaged(self.archive, f"{what} (byte {self.at:,}{self._part})")

    def cut_off(self, what: str) -> Integrity:
        return self.damaged(f"the archive ends in the middle of {what}")

    def _pull(self, size: int) -> bytes:
        return guarded(self.archive, self._stream.read, size)


class RandomAccess:
    """An archive that is read at any place."""

    def __init__(self, file: BinaryIO, archive: str) -> None:
        self.archive = archive
        self._file = file
        self.size_bytes = guarded(archive, file.seek, 0, os.SEEK_END)

    def at(self, offset: int, size: int, what: str) -> bytes:
        """Return `size` bytes from `offset`, or raise Integrity that says in the midst of what the archive ends."""
        if not 0 <= offset <= self.size_bytes - size:
            raise damaged(
                self.archive,
                f"{what} should be at byte {offset:,} and have {size:,} bytes, but the archive has {self.size_bytes:,}",
            )
        guarded(self.archive, self._file.seek, offset)
        parts = []
        while size:
            data = guarded(self.archive, self._file.read, min(size, PIECE_BYTES))
            if not data:
                raise damaged(self.archive, f"the archive became shorter while {what} was read")
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Range:
    """A part of an archive that is read at any place, from front to back."""

    def __init__(self, file: RandomAccess, start: int, size: int, what: str) -> None:
        self._file, self._at, self._left, self._what = file, start, size, what

    def read(self, size: int, /) -> bytes:
        count = min(size, self._left, PIECE_BYTES)
        data = self._file.at(self._at, count, self._what) if count else b""
        self._at += count
        self._left -= count
        return data


class Part:
    """The next `size` bytes of a stream; `cut_off` makes the error for a stream that ends before.

    With `crc32` the last byte is given only when the checksum is right.
    """

    def __init__(
        self,
        stream: Readable,
        size: int,
        cut_off: Callable[[], FairmileError],
        crc32: tuple[int, Callable[[], FairmileError]] | None = None,
    ) -> None:
        self.left = size
        self._stream, self._cut_off, self._crc32 = stream, cut_off, crc32
        self._sum = 0

    def read(self, size: int, /) -> bytes:
        if not self.left:
            if self._crc32 is not None:
                self._check()
            return b""
        data = self._stream.read(min(size, self.left))
        if not data:
            raise self._cut_off()
        self.left -= len(data)
        if self._crc32 is not None:
            self._sum = zlib.crc32(data, self._sum)
            if not self.left:
                self._check()
        return data

    def finish(self) -> None:
        """Read what is left, so that the stream stands behind this part."""
        while self.read(PIECE_BYTES):
            pass

    def _check(self) -> None:
        if self._crc32 is not None and self._sum != self._crc32[0]:
            raise self._crc32[1]()


def guarded(archive: str, call: Callable[..., T], *arguments: int) -> T:
    """Return what the call returns; an OSError becomes a SystemFailure that names the archive."""
    try:
        return call(*arguments)
    except FairmileError:
        raise
    except OSError as error:
        raise SystemFailure(f"cannot read {archive}: {error.strerror or error}") from error
