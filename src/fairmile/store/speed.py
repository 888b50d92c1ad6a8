"""How fast a folder's file system is, measured with files of its own that are removed afterwards.

One process does one thing at a time: that is what a program without threads of its own gets.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.store.objects import make_folder, writing
from fairmile.store.quota import Mount, mount_of

DEFAULT_BYTES = 256_000_000
SMALLEST_BYTES = 1_000_000
RAM_DISK = "RAM disk"
_FILE = "speed.json"
_BLOCK = 4 << 20
_PAGE = 4096
# Pieces are synced one by one, so that a slow file system is noticed before all is written.
_PIECES = 8
_LARGEST_PIECE = 32_000_000
_LONGEST_S = 20.0
_SMALL_FILES = 1000
_SMALL_BYTES = 4096
_SMALL_LONGEST_S = 5.0
_RANDOM_LONGEST_S = 4.0
_RANDOM_MOST = 50_000
_SYNCS = 200
SMALL_FILES_BYTES = _SMALL_FILES * _SMALL_BYTES
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_MEMORY = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "virtiofs")
_PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "panfs", "pvfs2", "wekafs", "fuse.daos", "fuse.glusterfs")

ReadFrom = Literal["storage", "memory", "unknown"]


class SpeedDict(TypedDict):
    write_bytes_per_s: float
    read_bytes_per_s: float
    creates_per_s: float
    size_bytes: int
    small_files: int
    read_from: ReadFrom
    file_system: str
    host: str
    measured: str
    method: str


@dataclass(frozen=True)
class Speed:
    """What one process measured on one host at one time; `read_from` says where its reads came from."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    creates_per_s: float
    size_bytes: int
    small_files: int
    read_from: ReadFrom
    file_system: str
    host: str
    measured: str
    method: str

    @property
    def bytes_per_s(self) -> float:
        """The rate at which a byte is written once and read once."""
        return 2 / (1 / self.write_bytes_per_s + 1 / self.read_bytes_per_s)

    def facts(self) -> SpeedDict:
        """Return the figures as data."""
        return {
            "write_bytes_per_s": self.write_bytes_per_s,
            "read_bytes_per_s": self.read_bytes_per_s,
            "creates_per_s": self.creates_per_s,
            "size_bytes": self.size_bytes,
            "small_files": self.small_files,
            "read_from": self.read_from,
            "file_system": self.file_system,
            "host": self.host,
            "measured": self.measured,
            "method": self.method,
        }


def measure(folder: Path, size_bytes: int = DEFAULT_BYTES, *, clock: Callable[[], float] = time.time) -> Speed:
    """Write and read files of `size_bytes` in all below `folder`/incoming, and keep the figures in speed.json.

    The caller has made sure of the room. On a slow file system each part stops after some 20 s with fewer bytes.
    """
    if size_bytes < SMALLEST_BYTES:
        raise UsageError(f"{size_bytes} bytes are too few to measure with", hint=f"at least {SMALLEST_BYTES}")
    place = folder / "incoming" / f"measure-{os.urandom(8).hex()}"
    with writing(place):
        make_folder(folder, place)
    try:
        written, write_s = write_large(place / "large", size_bytes)
        read_rate, read_from = read_large(place / "large", written)
        files, create_s = _create(place)
    except OSError as error:
        raise write_failure(os.fspath(place), error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    mount = mount_of(folder)
    if is_memory(mount):
        read_from = "memory"
    cache = {"storage": "dropped", "memory": "in use", "unknown": "asked to drop"}[read_from]
    speed = Speed(
        write_bytes_per_s=written / write_s,
        read_bytes_per_s=read_rate,
        creates_per_s=files / create_s,
        size_bytes=written,
        small_files=files,
        read_from=read_from,
        file_system=mount.type,
        host=os.uname().nodename,
        measured=datetime.fromtimestamp(clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        method=(
            f"one process; wrote {written} bytes with an fsync every {_piece(size_bytes)} bytes and read them back,"
            f" page cache {cache} (a file server or disk may cache them too);"
            f" created {files} files of {_SMALL_BYTES} bytes without fsync"
        ),
    )
    write_atomic(folder / _FILE, json.dumps(speed.facts(), indent=1) + "\n")
    return speed


def last_measured(folder: Path) -> Speed | None:
    """Return the figures of the last measurement, or None when there are none that can be read."""
    try:
        speed = Speed(**json.loads((folder / _FILE).read_bytes()))
        rates = (speed.write_bytes_per_s, speed.read_bytes_per_s, speed.creates_per_s)
        if all(isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0 for rate in rates):
            return speed
    except (OSError, ValueError, TypeError):
        pass
    return None


def is_memory(mount: Mount) -> bool:
    """Tell whether what lies there takes up memory."""
    return mount.type in _MEMORY


def is_parallel(file_system: str) -> bool:
    """Tell whether files lie on many servers, so that two folders may differ in how they are spread over them."""
    return file_system in _PARALLEL


def kind_of(mount: Mount) -> str:
    """Return what sort of storage a file system is, as far as its type and device tell."""
    if is_memory(mount):
        return RAM_DISK
    if is_parallel(mount.type):
        return f"parallel file system ({mount.type})"
    if mount.type in _NETWORK:
        return f"network file system ({mount.type})"
    if os.path.basename(mount.source).startswith("nvme"):
        return f"NVMe disk ({mount.type})"
    return f"local disk ({mount.type})" if mount.source.startswith("/dev/") else mount.type or "unknown file system"


def takes_direct(folder: Path) -> bool:
    """Tell whether files in a folder can be read and written past this host's memory (O_DIRECT)."""
    # Newer kernels accept the flag in memory, and mean nothing by it.
    if not hasattr(os, "O_DIRECT") or is_memory(mount_of(folder)):
        return False
    path = folder / f"direct-{os.urandom(8).hex()}"
    try:
        write_large(path, _PAGE, direct=True)
        read_large(path, _PAGE, direct=True)
    except OSError as error:
        if error.errno in _NOT_DIRECT:
            return False
        raise
    finally:
        path.unlink(missing_ok=True)
    return True


def write_large(path: Path, size_bytes: int, *, direct: bool = False) -> tuple[int, float]:
    """Create a file of up to `size_bytes`; return the bytes that came to the disk and the seconds they took.

    A direct write needs a size of whole pages of 4096 bytes.
    """
    # Random bytes from changing offsets: neither compression nor deduplication can shorten the way to the disk.
    noise, step = _noise(2 * _BLOCK), _PAGE if direct else 1
    written, piece = 0, _whole(_piece(size_bytes), step)
    fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct=direct)
    try:
        start, took = time.perf_counter(), 0.0
        while written < size_bytes and took < _LONGEST_S:
            end = min(size_bytes, written + piece)
            while written < end:
                offset = written // 4093 % _BLOCK // step * step
                written += os.write(fd, noise[offset : offset + min(_BLOCK, end - written)])
            os.fsync(fd)
            took = _since(start)
        return written, took
    finally:
        os.close(fd)


def read_large(path: Path, size_bytes: int, *, direct: bool = False) -> tuple[float, ReadFrom]:
    """Read a file from end to end; return the bytes a second and where they came from."""
    fd = _open(path, os.O_RDONLY, direct=direct)
    try:
        read_from: ReadFrom = "storage" if direct else _dropped(fd, size_bytes)
        buffer = mmap.mmap(-1, _BLOCK)
        start, took, done = time.perf_counter(), 0.0, 0
        while done < size_bytes and took < _LONGEST_S:
            done += os.readv(fd, [buffer])
            took = _since(start)
        return done / took, read_from
    finally:
        os.close(fd)


def random_access(path: Path, size_bytes: int, *, direct: bool = False, write: bool = False) -> float:
    """Read or overwrite pages of 4096 bytes all over a file, one after the other; return how many a second.

    What is written counts only when it is on the disk.
    """
    fd = _open(path, os.O_RDWR if write else os.O_RDONLY, direct=direct)
    page, places = _noise(_PAGE), max(size_bytes // _PAGE, 1)
    from random import Random  # only a measurement needs it

    where = Random(size_bytes)  # the same places each time, in no order that a disk could guess
    try:
        if not write and not direct:
            _dropped(fd, size_bytes)
            _advise(fd, "POSIX_FADV_RANDOM")
        start, took, count = time.perf_counter(), 0.0, 0
        while count < _RANDOM_MOST and took < _RANDOM_LONGEST_S:
            offset = where.randrange(places) * _PAGE
            (os.pwritev if write else os.preadv)(fd, [page], offset)
            count, took = count + 1, _since(start)
        if write:
            os.fsync(fd)
        return count / _since(start)
    finally:
        os.close(fd)


def sync_times(path: Path) -> list[float]:
    """Append pages of 4096 bytes to a new file; return the seconds until each was safe, the shortest first."""
    page = _noise(_PAGE)
    times: list[float] = []
    fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct=False)
    try:
        begin = time.perf_counter()
        while len(times) < _SYNCS and _since(begin) < _SMALL_LONGEST_S:
            start = time.perf_counter()
            os.write(fd, page)
            os.fsync(fd)
            times.append(_since(start))
        return sorted(times)
    finally:
        os.close(fd)


class SmallFiles(NamedTuple):
    """How many files of 4096 bytes a second are created, looked up, read and removed, and how many there were."""

    create_per_s: float
    stat_per_s: float
    read_per_s: float
    delete_per_s: float
    files: int


def small_files(folder: Path) -> SmallFiles:
    """Create files in an empty folder, look each up, read and remove it; what is remembered is not dropped between."""
    files, create_s = _create(folder)
    paths = [os.path.join(folder, f"{number}") for number in range(files)]
    stat_s = _timed(os.lstat, paths)
    read_s = _timed(_read_small, paths)
    delete_s = _timed(os.unlink, paths)
    return SmallFiles(files / create_s, files / stat_s, files / read_s, files / delete_s, files)


def _timed(act: Callable[[str], object], paths: list[str]) -> float:
    start = time.perf_counter()
    for path in paths:
        act(path)
    return _since(start)


def _read_small(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.read(fd, _SMALL_BYTES)
    finally:
        os.close(fd)


def _open(path: Path, flags: int, *, direct: bool) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_DIRECT if direct else 0), 0o600)


def _noise(size_bytes: int) -> memoryview:
    """Return random bytes that begin at a page, as direct access asks for."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(os.urandom(size_bytes))
    return memoryview(memory)


def _piece(size_bytes: int) -> int:
    return min(-(-size_bytes // _PIECES), _LARGEST_PIECE)


def _whole(size_bytes: int, step: int) -> int:
    return -(-size_bytes // step) * step


def _dropped(fd: int, size_bytes: int) -> ReadFrom:
    """Ask this host to forget a file's pages; return where they will come from."""
    _advise(fd, "POSIX_FADV_DONTNEED")
    return _whence(fd, size_bytes)


def _advise(fd: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):  # macOS takes none
        os.posix_fadvise(fd, 0, 0, getattr(os, advice))


def _whence(fd: int, size_bytes: int) -> ReadFrom:
    """Tell whether a file's pages are in memory: a read that may not wait succeeds only then."""
    in_memory, samples = 0, 16
    for index in range(samples):
        try:
            in_memory += os.preadv(fd, [bytearray(1)], size_bytes * index // samples, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            continue
        except OSError:  # not every file system can answer
            return "unknown"
    return "memory" if 2 * in_memory > samples else "storage"


def _create(folder: Path) -> tuple[int, float]:
    data = os.urandom(_SMALL_BYTES)
    start, took, count = time.perf_counter(), 0.0, 0
    while count < _SMALL_FILES and took < _SMALL_LONGEST_S:
        fd = os.open(folder / f"{count}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        count, took = count + 1, _since(start)
    return count, took


def _since(start: float) -> float:
    return max(time.perf_counter() - start, 1e-9)
