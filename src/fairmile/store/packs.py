"""Packs: many small objects in one file, found through an index at its end.

A pack is the objects' bytes one after the other, then its index: the first four bytes of each digest, sorted; the
records (digest, offset, size), sorted; their number and a mark. All numbers are big-endian. The pack is named by
the sha256 of its index, which names every object in it. One file holds both, so that one rename publishes a pack.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Self

from fairmile.base.digest import large_sha256, sha256_hex
from fairmile.base.errors import Integrity, SystemFailure
from fairmile.base.quick_named_tuple import NamedTuple

MAX_PACK_BYTES = 512 << 20
MAX_PACK_OBJECTS = 1 << 17  # bounds what a writer remembers to some 25 MB
_RECORD = struct.Struct(">32sQQ")
_FOOTER = struct.Struct(">Q8s")
_MARK = b"FMPACK01"
_WRITE_BYTES = 1 << 20  # each thread may hold as much, twice
_RECORDS_AT_ONCE = 4096
_MANY = 16
_DIGESTS = struct.Struct(">32s16x")  # of records
# A folder's time stamp is as coarse as the file system's clock: one this young may hide a later change.
_SETTLED_S = 2.0


class PackEntry(NamedTuple):
    """Where an object lies in a pack."""

    digest: bytes
    offset: int
    size_bytes: int


class Pack:
    """A finished pack; only the first four bytes of each digest are kept in memory, and no file is kept open.

    Every method may raise FileNotFoundError: another process may have rewritten the pack.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with _Reading(path) as fd:
            self.size_bytes = os.fstat(fd).st_size
            footer = os.pread(fd, _FOOTER.size, max(self.size_bytes - _FOOTER.size, 0))
            if len(footer) != _FOOTER.size or footer[8:] != _MARK:
                raise Integrity(f"the pack {path} is cut off or is not a pack: it does not end in its mark")
            self.count = _FOOTER.unpack(footer)[0]
            self.data_bytes = self.size_bytes - _FOOTER.size - self.count * (4 + _RECORD.size)
            if self.data_bytes < 0:
                raise Integrity(f"the pack {path} is damaged: it is too short for the {self.count} objects it states")
            heads = array("I", os.pread(fd, 4 * self.count, self.data_bytes))
        if sys.byteorder == "little":
            heads.byteswap()
        self._heads = heads

    def find(self, digest: bytes) -> PackEntry | None:
        """Return where an object lies, or None."""
        head = int.from_bytes(digest[:4])
        index = bisect_left(self._heads, head)
        while index < self.count and self._heads[index] == head:
            place = next(self._records(index, index + 1))
            if place.digest == digest:
                return place
            index += 1
        return None

    def lacking(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return those of the digests that are not here; quicker than `find` for many."""
        absent: list[bytes] = []
        records = self.data_bytes + 4 * self.count
        with _Reading(self.path) as fd:
            if _MANY * len(digests) > self.count:  # then all of them are read sooner than some are looked up
                raw = os.pread(fd, self.count * _RECORD.size, records)
                here = {digest for (digest,) in _DIGESTS.iter_unpack(raw[: len(raw) - len(raw) % _RECORD.size])}
                return [digest for digest in digests if digest not in here]
            for digest in digests:
                head = int.from_bytes(digest[:4])
                index = bisect_left(self._heads, head)
                while index < self.count and self._heads[index] == head:
                    if os.pread(fd, 32, records + index * _RECORD.size) == digest:
                        break
                    index += 1
                else:
                    absent.append(digest)
        return absent

    def places(self, first: int = 0, last: int = 255) -> Iterator[PackEntry]:
        """Yield the objects whose digest begins with a byte from `first` to `last`, sorted by digest."""
        start = bisect_left(self._heads, first << 24) if first > 0 else 0
        stop = bisect_left(self._heads, (last + 1) << 24) if last < 255 else self.count
        while start < stop:
            yield from self._records(start, min(stop, start + _RECORDS_AT_ONCE))
            start += _RECORDS_AT_ONCE

    def read(self, place: PackEntry) -> bytes:
        """Return an object's bytes."""
        data = b""
        if place.offset + place.size_bytes <= self.data_bytes:  # before a damaged size asks for all memory
            with _Reading(self.path) as fd:
                data = os.pread(fd, place.size_bytes, place.offset)
        if len(data) != place.size_bytes:
            raise Integrity(f"the pack {self.path} is damaged: it ends within the object {place.digest.hex()}")
        return data

    def index_sha256(self) -> str:
        """Return the sha256 of the index as it stands on disk."""
        digest = large_sha256()
        with _Reading(self.path) as fd:
            at = self.data_bytes
            while chunk := os.pread(fd, 1 << 20, at):
                digest.update(chunk)
                at += len(chunk)
        return digest.hexdigest()

    def _records(self, start: int, stop: int) -> Iterator[PackEntry]:
        with _Reading(self.path) as fd:
            at = self.data_bytes + 4 * self.count + start * _RECORD.size
            raw = os.pread(fd, (stop - start) * _RECORD.size, at)
        if len(raw) != (stop - start) * _RECORD.size:
            raise Integrity(f"the pack {self.path} is damaged: its index is cut off")
        return map(PackEntry._make, _RECORD.iter_unpack(raw))


class _Reading:
    """Opens a file for reading; a file that vanished on another machine counts as not found."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._say_not_found(error)
            raise
        return self._fd

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        os.close(self._fd)
        self._say_not_found(error)

    def _say_not_found(self, error: BaseException | None) -> None:
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path) from error


class Packs:
    """The packs of one folder, loaded once and looked at again when the folder changed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._by_name: dict[str, Pack] = {}
        self._broken: dict[str, str] = {}
        self._stamp: int | None = None
        self._recent: Pack | None = None

    def current(self) -> list[Pack]:
        """Return the packs that can be read, sorted by name."""
        self._refresh()
        return [pack for _, pack in sorted(self._by_name.items())]

    def broken(self) -> dict[str, str]:
        """Return the path of each pack that cannot be read, and why."""
        self._refresh()
        return dict(self._broken)

    def find(self, digest: bytes, *, refresh: bool = True) -> tuple[Pack, PackEntry] | None:
        """Return the pack that holds an object, and where; without `refresh` only packs already known are asked."""
        while True:
            try:
                entry = self._find_known(digest)
            except FileNotFoundError:
                self._by_name, self._recent = {}, None
                self.forget()
                self._refresh()
                continue
            except OSError as error:
                raise SystemFailure(f"cannot read the packs in {self.folder}: {error.strerror}") from error
            if entry is not None or not refresh or not self._refresh():
                return entry

    def forget(self) -> None:
        """Look at the folder again at the next question."""
        self._stamp = None

    def _find_known(self, digest: bytes) -> tuple[Pack, PackEntry] | None:
        recent = self._recent
        # Objects that belong together came together: the pack of the last hit is the likeliest.
        if recent is not None and (place := recent.find(digest)) is not None:
            return recent, place
        for pack in self._by_name.values():
            if pack is not recent and (place := pack.find(digest)) is not None:
                self._recent = pack
                return pack, place
        return None

    def _refresh(self) -> bool:
        """Look at the folder unless it is unchanged; True when other packs were found than before."""
        stamp: int | None = None
        try:
            stamp = os.stat(self.folder).st_mtime_ns
            if stamp == self._stamp:
                return False
            names = {name for name in os.listdir(self.folder) if name.endswith(".pack")}
        except FileNotFoundError:
            names = set()
        except OSError as error:
            raise SystemFailure(f"cannot read {self.folder}: {error.strerror}", hint="ask its owner") from error
        with self._lock:
            known = self._by_name
            if names != known.keys() or self._broken:
                self._load(names)
            settled = stamp is not None and time.time() - stamp / 1e9 > _SETTLED_S
            self._stamp = stamp if settled else None
            return self._by_name.keys() != known.keys()

    def _load(self, names: set[str]) -> None:
        packs: dict[str, Pack] = {}
        broken: dict[str, str] = {}
        for name in names:
            path = f"{self.folder}/{name}"
            try:
                packs[name] = self._by_name.get(name) or Pack(path)
            except FileNotFoundError:
                continue
            except Integrity as error:
                broken[path] = error.message
            except OSError as error:
                broken[path] = f"the pack {path} cannot be read: {error.strerror}"
        # Replaced as a whole, so that a search in another thread goes through the one or the other.
        self._by_name, self._broken = packs, broken
        if self._recent is not None and self._recent not in packs.values():
            self._recent = None


class PackWriter:
    """Writes one pack; `add` is to be called under the caller's lock, what it returns is written without it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self._fd = -1
        self._places: dict[bytes, tuple[int, int]] = {}
        self._waiting: list[bytes] = []
        self._waiting_from = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._places

    def __len__(self) -> int:
        return len(self._places)

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether an object still fits."""
        return len(self._places) < MAX_PACK_OBJECTS and (
            not self._places or self.size_bytes + size_bytes <= MAX_PACK_BYTES
        )

    def add(self, digest: bytes, data: bytes, *, keep: int = 0) -> tuple[int, list[bytes]] | None:
        """Take an object; the caller writes what comes back with `write`. The first `keep` stay in memory."""
        self._places[digest] = (self.size_bytes, len(data))
        self._waiting.append(data)
        self.size_bytes += len(data)
        if self.size_bytes - self._waiting_from < _WRITE_BYTES or len(self._places) < keep:
            return None
        return self._take_waiting()

    def write(self, offset: int, chunks: list[bytes]) -> None:
        """Write what `add` gave back."""
        write_all(self._fd, b"".join(chunks), offset)

    def in_memory(self) -> list[tuple[str, bytes]]:
        """Return digest and bytes of each object when nothing was written yet, else nothing."""
        if self._fd >= 0:
            return []
        return [(digest.hex(), data) for digest, data in zip(self._places, self._waiting, strict=True)]

    def end(self) -> None:
        """Write what waits and the index; the last `add` has come, other threads may still be at `write`."""
        offset, chunks = self._take_waiting()
        self.write(offset, chunks)
        ordered = sorted(self._places.items())
        index = b"".join(
            (
                b"".join([digest[:4] for digest, _ in ordered]),
                b"".join([_RECORD.pack(digest, *place) for digest, place in ordered]),
                _FOOTER.pack(len(ordered), _MARK),
            )
        )
        write_all(self._fd, index, self.size_bytes)
        self.name = sha256_hex(index) + ".pack"
        self._places = {}

    def sync(self) -> None:
        """Make the pack read-only, bring it to the disk and close it."""
        os.fchmod(self._fd, 0o444)
        os.fdatasync(self._fd)
        self.close()

    def close(self) -> None:
        """Close the file; safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_waiting(self) -> tuple[int, list[bytes]]:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        taken = self._waiting_from, self._waiting
        self._waiting, self._waiting_from = [], self.size_bytes
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count
