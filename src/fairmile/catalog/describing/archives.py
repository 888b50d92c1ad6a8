"""What lies inside an archive, by the names of its members; nothing is unpacked to disk."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from fairmile.catalog.exchange.common.media_types import extension, media_type

_MOST_MEMBERS = 100_000
_MOST_BYTES = 256 << 20  # of an unpacked stream that are read for the names in it


def file_sets(path: Path, name: str, kind: str) -> list[dict[str, Any]]:
    """Return a set of files for each format inside an archive, the most frequent first."""
    endings = Counter(extension(member) for member in _members(path, kind))
    sets = []
    for ending, _ in endings.most_common(20):
        format = media_type(f"x.{ending}") if ending else None
        if format:
            sets.append(
                {
                    "@type": "FileSet",
                    "@id": f"{name}/*.{ending}",
                    "name": f"{name}/*.{ending}",
                    "containedIn": name,
                    "includes": f"*.{ending}",
                    "encodingFormat": format,
                }
            )
    return sets


def _members(path: Path, kind: str) -> Iterator[str]:
    # A damaged or hostile archive ends the list where it cannot be read any further.
    with suppress(zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError, ValueError, NotImplementedError):
        if kind == "application/zip":
            with zipfile.ZipFile(path) as archive:
                yield from (each.filename for each in archive.infolist()[:_MOST_MEMBERS] if not each.is_dir())
            return
        with path.open("rb") as stream, tarfile.open(fileobj=_bounded(stream, kind), mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    return
                if member.isreg():
                    yield member.name


def _bounded(stream: BinaryIO, kind: str) -> BinaryIO:
    """Return the archive's own bytes, unpacked as they are read and never more than `_MOST_BYTES` of them."""
    if kind == "application/gzip":
        import gzip

        return cast(BinaryIO, _Bounded(gzip.GzipFile(fileobj=stream)))
    if kind == "application/x-bzip2":
        import bz2

        return cast(BinaryIO, _Bounded(bz2.BZ2File(stream)))
    if kind == "application/x-xz":
        import lzma

        return cast(BinaryIO, _Bounded(lzma.LZMAFile(stream)))
    return cast(BinaryIO, _Bounded(stream))


class _Bounded:
    """A stream that ends after a number of bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = _MOST_BYTES

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(data)
        return data
