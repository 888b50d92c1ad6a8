"""A set of sha256 for stores with millions of objects: 32 bytes each, on disk once it is large."""

from __future__ import annotations

import bisect
import heapq
import itertools
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Self

_RECORD = 32
_RECORDS_IN_MEMORY = 1 << 18


class DigestSet:
    """An unchanging set of digests in hex, sorted; memory stays within some tens of megabytes whatever its size.

    What does not fit is sorted piece by piece into nameless files in the system's folder for temporary files: not
    in a pool, since a full pool is when it is needed most.
    """

    def __init__(self, digests: Iterable[str] = (), *, in_memory: int = _RECORDS_IN_MEMORY) -> None:
        self._file: IO[bytes] | None = None
        self._records: bytes | mmap.mmap = b""
        self._small: set[bytes] | None = None  # the same once more while there are few: asking it is faster
        runs: list[IO[bytes]] = []
        try:
            piece: set[bytes] = set()
            for digest in digests:
                piece.add(bytes.fromhex(digest))
                if len(piece) >= in_memory:
                    runs.append(_written(sorted(piece)))
                    piece.clear()
            if not runs:
                self._records, self._small = b"".join(sorted(piece)), piece
                return
            merged = heapq.merge(*map(_read, runs), sorted(piece))
            self._file = _written(record for record, _ in itertools.groupby(merged))
            self._records = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        finally:
            for run in runs:
                run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._records, mmap.mmap):
            self._records.close()
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._records) // _RECORD

    def __contains__(self, digest: object) -> bool:
        if not isinstance(digest, str):
            return False
        wanted = bytes.fromhex(digest)
        if self._small is not None:
            return wanted in self._small
        at = bisect.bisect_left(range(len(self)), wanted, key=self._record)
        return at < len(self) and self._record(at) == wanted

    def __iter__(self) -> Iterator[str]:
        return (self._record(at).hex() for at in range(len(self)))

    def inside(self, items: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Yield those of the items, sorted by digest, whose digest is in the set, in one pass over both."""
        return (item for item, known in self._with_membership(items) if known)

    def outside(self, items: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Yield those of the items, sorted by digest, whose digest is not in the set, in one pass over both."""
        return (item for item, known in self._with_membership(items) if not known)

    def _with_membership(self, items: Iterable[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], bool]]:
        own = iter(self)
        mark = next(own, None)
        for item in items:
            while mark is not None and mark < item[0]:
                mark = next(own, None)
            yield item, mark == item[0]

    def _record(self, at: int) -> bytes:
        return self._records[at * _RECORD : (at + 1) * _RECORD]


def _written(records: Iterable[bytes]) -> IO[bytes]:
    # Not a `with` block: the file lives as long as the set.
    file = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115
    try:
        file.writelines(records)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _read(run: IO[bytes]) -> Iterator[bytes]:
    run.seek(0)
    while block := run.read(_RECORD << 12):
        yield from (block[at : at + _RECORD] for at in range(0, len(block), _RECORD))
