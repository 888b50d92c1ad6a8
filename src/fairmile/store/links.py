"""Bring a tree's files into a working folder: by reflink, hard link, symbolic link or copy, always read-only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from fairmile.base.digest import ManifestEntry, manifest_text, parse_manifest, sha256_file
from fairmile.base.errors import Conflict, FairmileError, Integrity, UsageError
from fairmile.store.objects import writing

WAYS = ("reflink", "hardlink", "symlink", "copy")
PRESENT = "present"
_FICLONE = 0x40049409
_LINK_MODE = 0o120000
_CHUNK = 1 << 20
_LONGEST_LINK = 4096
# What says that these two file systems will never do it, so that the next file need not ask.
_NEVER = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY})
# What says no for this one file: too many links, another user's object, a size the clone call does not take.
_NOT_THIS = frozenset({errno.EMLINK, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ETXTBSY})


class ByteSource(Protocol):
    """Where the bytes of objects come from."""

    def path(self, sha256: str) -> Path | None:
        """Return a file that holds exactly this object, or None."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """Open an object for reading; NotFound when it is absent."""
        ...


@dataclass(frozen=True)
class Laid:
    """What was laid: how many files by each way, PRESENT for those that were there already."""

    ways: dict[str, int]
    files: int
    size_bytes: int


def lay(
    entries: Iterable[ManifestEntry],
    source: ByteSource,
    target: Path,
    *,
    ways: Sequence[str] = WAYS,
    replace: bool = False,
) -> Laid:
    """Lay files into a folder, each by the first of `ways` that the file systems allow; `copy` is the last resort.

    A file that is there with the same content is left; with another one the folder is left as it is and Conflict
    names the file, unless `replace`. Entries are read once; memory does not grow with their number.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no way to lay a file", hint=f"the ways are {', '.join(WAYS)}")
    work = _Laying(source, os.fspath(target), tuple(ways), replace)
    if work.is_empty():
        return work.lay(entries)
    with tempfile.SpooledTemporaryFile(max_size=32 << 20) as spool:
        work.check(_spooled(entries, spool))
        spool.seek(0)
        return work.lay(_unspooled(spool))
