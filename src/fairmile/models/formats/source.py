"""The bytes of a model file, mapped into memory: readers take what they need, and nothing is copied as a whole."""

from __future__ import annotations

import json
import mmap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError, SystemFailure, UsageError

MOST_BYTES = 64 << 20  # of one document inside a file, such as the JSON of a graph
_MOST_MEMBERS = 100_000
_NOT_A_ZIP = (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError, OverflowError, RuntimeError)


class Damaged(UsageError):
    """A file begins like one of a format and does not go on like it."""


class Source:
    """A model file or folder. The readers of all formats see it through this."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.view = view

    @property
    def is_folder(self) -> bool:
        return not self.view and self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        return bytes(self.view[:64])

    def damaged(self, what: str, why: str) -> Damaged:
        """Return the error that says why the file cannot be read as what it begins like."""
        return Damaged(f"{self.path}: damaged {what}: {why}")

    @cached_property
    def members(self) -> dict[str, zipfile.ZipInfo]:
        """What a ZIP file holds, by name; empty for any other file."""
        if self.head[:4] != b"PK\x03\x04":
            return {}
        try:
            with self.path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
        except _NOT_A_ZIP as error:
            raise self.damaged("ZIP file", str(error) or type(error).__name__) from error
        if len(members) > _MOST_MEMBERS:
            raise self.damaged("ZIP file", f"it has {len(members):,} members")
        return {each.filename: each for each in members}

    def member(self, name: str, most: int = MOST_BYTES) -> bytes:
        """Return a member of a ZIP file; one that claims or turns out to be larger than `most` bytes is refused."""
        info = self.members[name]
        if info.file_size > most:
            raise self.damaged("ZIP file", f"{name} unpacks to {info.file_size:,} bytes, more than {most:,}")
        stored = self.stored(name)
        if stored is not None:
            return bytes(stored)
        try:
            with self.path.open("rb") as stream, zipfile.ZipFile(stream) as archive, archive.open(info) as packed:
                data = packed.read(most + 1)
        except (*_NOT_A_ZIP, zipfile.zlib.error) as error:  # type: ignore[attr-defined]
            raise self.damaged("ZIP file", f"{name}: {error}") from error
        if len(data) > most:
            raise self.damaged("ZIP file", f"{name} unpacks to more than {most:,} bytes")
        return data

    def stored(self, name: str) -> memoryview | None:
        """Return the bytes of a member that is not compressed, without a copy; None of one that is."""
        info = self.members[name]
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            return None
        head = bytes(self.view[info.header_offset : info.header_offset + 30])
        if len(head) < 30 or head[:4] != b"PK\x03\x04":
            raise self.damaged("ZIP file", f"{name} has no header")
        start = info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        data = self.view[start : start + info.file_size]
        if len(data) != info.file_size:
            raise self.damaged("ZIP file", f"it ends inside {name}")
        return data

    def member_json(self, name: str, what: str) -> Any:
        """Return a member of a ZIP file read as JSON."""
        return self.parse_json(self.member(name), f"{what}: {name}")

    def parse_json(self, data: bytes | memoryview, what: str) -> Any:
        """Return bytes read as JSON, or say that they are none."""
        try:
            return json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise self.damaged(what, "not valid JSON") from error

    def file_json(self, name: str) -> Any:
        """Return a file of a folder read as JSON; None where there is none or it is none."""
        try:
            with (self.path / name).open("rb") as stream:
                data = stream.read(MOST_BYTES + 1)
            return json.loads(data) if len(data) <= MOST_BYTES else None
        except (OSError, ValueError, RecursionError):
            return None


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a file or folder for the readers; a file is mapped, so that a large one costs no memory."""
    if path.is_dir():
        yield Source(path, memoryview(b""))
        return
    try:
        with path.open("rb") as stream:
            if not path.is_file():
                raise UsageError(f"{path}: not a regular file")
            size = stream.seek(0, 2)
            mapped = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) if size else None
    except OSError as error:
        if isinstance(error, FairmileError):
            raise
        raise SystemFailure(f"cannot read {path}: {error.strerror or error}") from error
    view = memoryview(mapped) if mapped is not None else memoryview(b"")
    # The mapping ends with the last view of it: a reader may hand out slices, so it is not closed here.
    yield Source(path, view)
