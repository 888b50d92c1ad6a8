"""A file on its way: its bytes, and a journal of those that a power cut cannot take back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmile.base.errors import DiskFailure
from fairmile.base.files import allocate, write_failure
from fairmile.store.objects import make_folder, open_shared
from fairmile.transfer.segments import coalesced

_DATA = "data"
_JOURNAL = "journal.json"


class Part:
    """The half-done file in `folder`; what an earlier process left there counts where `identity` is the same."""

    def __init__(self, folder: Path, size_bytes: int, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.path = folder / _DATA
        self.size_bytes = size_bytes
        self._identity = dict(identity)
        self.done = self._left_behind()
        try:
            make_folder(folder.parent, folder)
            if not self.done:
                self.forget()  # of another file, whose bytes are about to be written over
            self.fd = self._open()
            try:
                self._allocate()
            except BaseException:
                os.close(self.fd)
                if not self.done:
                    self.path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise write_failure(str(self.path), error) from error

    def _open(self) -> int:
        try:
            return open_shared(self.path, os.O_RDWR)
        except PermissionError:  # it was made read-only, and its process killed before it became an object
            os.chmod(self.path, 0o644)
            return open_shared(self.path, os.O_RDWR)

    def _allocate(self) -> None:
        """Take the room before the first byte, so that a full disk is found now and not at the last segment."""
        if os.fstat(self.fd).st_size > self.size_bytes:
            os.ftruncate(self.fd, self.size_bytes)
        if not self.size_bytes:
            return
        # It emulates with writes where the file system has no such call, which is slow but as good.
        allocate(self.fd, self.size_bytes)

    def _left_behind(self) -> list[tuple[int, int]]:
        try:
            journal = json.loads((self.folder / _JOURNAL).read_text(encoding="utf-8"))
            size = self.path.stat().st_size
            if journal["identity"] != self._identity or size != self.size_bytes:
                return []
            return coalesced((int(start), int(stop)) for start, stop in journal["done"] if 0 <= start < stop <= size)
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes at their place."""
        try:
            while data:
                count = os.pwrite(self.fd, data, offset)
                offset, data = offset + count, data[count:]
        except OSError as error:
            raise write_failure(str(self.path), error) from error

    def read(self, offset: int, buffer: memoryview) -> int:
        """Read bytes back and return how many."""
        try:
            return os.preadv(self.fd, [buffer], offset)
        except OSError as error:
            raise DiskFailure(f"cannot read {self.path}: {error.strerror}") from error

    def keep(self, ranges: list[tuple[int, int]]) -> None:
        """Make the ranges durable and note them, so that a later process need not bring them again."""
        try:
            os.fdatasync(self.fd)
            aside = self.folder / f".{_JOURNAL}"
            aside.write_text(json.dumps({"identity": self._identity, "done": ranges}), encoding="utf-8")
            os.replace(aside, self.folder / _JOURNAL)
        except OSError as error:
            raise write_failure(str(self.path), error) from error

    def forget(self) -> None:
        """Drop the journal, so that nobody goes on from bytes that are wrong."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.fd)
