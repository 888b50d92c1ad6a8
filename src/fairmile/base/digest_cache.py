"""Digests of files that need not be read again: the one rule by which a file counts as unchanged."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from fairmile.base.digest import sha256_file
from fairmile.base.errors import DiskFailure
from fairmile.base.files import write_atomic
from fairmile.base.quick_named_tuple import NamedTuple

_WORTH_CACHING_BYTES = 64 << 10  # below that, reading a file takes about as long as looking it up
# A file that changed this short a time ago may change again without a new time stamp.
_SETTLED_NS = 2_000_000_000
_MOST_ENTRIES = 50_000  # about 10 MB


class Stamp(NamedTuple):
    """What differs as soon as the content of a file may differ."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_nlink)

    def is_same(self, other: Stamp) -> bool:
        """Tell whether a file is as it was: a time of its content that was set back shows in that of its inode."""
        alike = (self.size_bytes, self.mtime_ns, self.inode) == (other.size_bytes, other.mtime_ns, other.inode)
        # Another hard link to it changes the time of the inode as well, and no byte.
        return alike and (self.ctime_ns == other.ctime_ns or self.links != other.links)

    @property
    def key(self) -> tuple[int, ...]:
        """What names a state of a file; the time of its inode counts unless others make and remove links to it."""
        return self.size_bytes, self.mtime_ns, self.inode, self.ctime_ns if self.links == 1 else 0

    @property
    def is_settled(self) -> bool:
        """Whether a later change is sure to show."""
        return time.time_ns() - max(self.mtime_ns, self.ctime_ns) > _SETTLED_NS


class DigestCache:
    """The sha256 of files, read once as long as their stamps stay; kept in a file where one is given."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._known: dict[str, tuple[Stamp, str]] | None = None
        self._used: dict[str, None] = {}
        self._is_new = False

    def of(self, path: str, status: os.stat_result) -> str:
        """Return the sha256 of a file whose status was just asked for."""
        if status.st_size < _WORTH_CACHING_BYTES:
            return sha256_file(path)
        stamp = Stamp.of(status)
        if digest := self.known(path, status):
            return digest
        digest = sha256_file(path)
        if stamp.is_settled:
            assert self._known is not None
            real = os.path.realpath(path)
            self._known[real] = stamp, digest
            self._used[real] = None
            self._is_new = True
        return digest

    def known(self, path: str, status: os.stat_result) -> str:
        """Return the sha256 of a file that needs not be read; empty where it must be."""
        if status.st_size < _WORTH_CACHING_BYTES:
            return ""
        stamp = Stamp.of(status)
        if not stamp.is_settled:
            return ""
        if self._known is None:
            self._known = _read(self._file)
        real = os.path.realpath(path)
        stamped = self._known.get(real)
        if stamped is None or not stamped[0].is_same(stamp):
            return ""
        self._used[real] = None
        return stamped[1]

    def save(self) -> None:
        """Keep what was read for later; of too many entries those that were not used for longest go."""
        if self._file is None or not self._is_new or self._known is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Others may have written meanwhile: their entries are kept as well.
            entries = _read(self._file)
            for path in self._used:  # the latest go last
                entries.pop(path, None)
                entries[path] = self._known[path]
            latest = list(entries.items())[-_MOST_ENTRIES:]
            write_atomic(self._file, json.dumps({path: [*stamp, digest] for path, (stamp, digest) in latest}))
            self._is_new = False
        except (DiskFailure, OSError):
            return  # a cache; the digests themselves are known


def _read(file: Path | None) -> dict[str, tuple[Stamp, str]]:
    try:
        known = json.loads(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    items = known.items() if isinstance(known, dict) else ()
    entries = {path: entry for path, entry in items if isinstance(entry, list) and len(entry) == 6}
    return {path: (Stamp(*entry[:5]), str(entry[5])) for path, entry in entries.items()}
