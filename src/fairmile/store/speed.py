"""How fast a folder's file system is, measured with files of its own that are removed afterwards."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic, write_failure
from fairmile.store.objects import make_folder, writing
from fairmile.store.quota import Mount, mount_of

DEFAULT_BYTES = 256_000_000
SMALLEST_BYTES = 1_000_000
RAM_DISK = "RAM disk"
_FILE = "speed.json"
_BLOCK = 4 << 20
_PIECES = 8  # synced one by one, so that a slow file system is noticed before all is written
_LONGEST_S = 20.0
_SMALL_FILES = 1000
_SMALL_BYTES = 4096
_SMALL_LONGEST_S = 5.0
SMALL_FILES_BYTES = _SMALL_FILES * _SMALL_BYTES
_MEMORY = ("tmpfs", "ramfs")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "virtiofs")
_PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "panfs", "pvfs2", "wekafs", "fuse.daos", "fuse.glusterfs")


@dataclass(frozen=True)
class Speed:
    """What one process measured on one host at one time; `read_from` says where its reads came from."""

    write_bytes_per_s: float
    read_bytes_per_s: float
    creates_per_s: float
    size_bytes: int
    small_files: int
    read_from: Literal["storage", "memory", "unknown"]
    file_system: str
    host: str
    measured: str
    method: str

    @property
    def bytes_per_s(self) -> float:
        """The rate at which a byte is written once and read once."""
        return 2 / (1 / self.write_bytes_per_s + 1 / self.read_bytes_per_s)


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
        written, write_s = _write(place / "large", size_bytes)
        read_rate, read_from = _read(place / "large", written)
        files, create_s = _create(place)
    except OSError as error:
        raise write_failure(os.fspath(place), error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    mount = mount_of(folder)
    if mount.type in _MEMORY:
        read_from = "memory"
    kept = {"storage": "dropped", "memory": "kept", "unknown": "asked to be dropped"}[read_from]
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
            f"one process; {written} bytes written, with an fsync after each {-(-size_bytes // _PIECES)}, and read back"
            f" once with the pages {kept} by this host (a file server or disk may have kept them);"
            f" {files} files of {_SMALL_BYTES} bytes created without fsync"
        ),
    )
    write_atomic(folder / _FILE, json.dumps(asdict(speed), indent=1) + "\n")
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


def kind_of(mount: Mount) -> str:
    """Return what sort of storage a file system is, as far as its type and device tell."""
    if mount.type in _MEMORY:
        return RAM_DISK
    if mount.type in _PARALLEL:
        return f"parallel file system ({mount.type})"
    if mount.type in _NETWORK:
        return f"network file system ({mount.type})"
    if os.path.basename(mount.source).startswith("nvme"):
        return f"NVMe disk ({mount.type})"
    return f"local disk ({mount.type})" if mount.source.startswith("/dev/") else mount.type or "unknown file system"


def _write(path: Path, size_bytes: int) -> tuple[int, float]:
    # Random bytes from changing offsets: neither compression nor deduplication can shorten the way to the disk.
    noise = memoryview(os.urandom(2 * _BLOCK))
    written, piece = 0, -(-size_bytes // _PIECES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        start, took = time.perf_counter(), 0.0
        while written < size_bytes and took < _LONGEST_S:
            end = min(size_bytes, written + piece)
            while written < end:
                offset = written // 4093 % _BLOCK
                written += os.write(fd, noise[offset : offset + min(_BLOCK, end - written)])
            os.fsync(fd)
            took = _since(start)
        return written, took
    finally:
        os.close(fd)


def _read(path: Path, size_bytes: int) -> tuple[float, Literal["storage", "memory", "unknown"]]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_from = _whence(fd, size_bytes)
        buffer = bytearray(_BLOCK)
        start, took, done = time.perf_counter(), 0.0, 0
        while done < size_bytes and took < _LONGEST_S:
            done += os.readv(fd, [buffer])
            took = _since(start)
        return done / took, read_from
    finally:
        os.close(fd)


def _whence(fd: int, size_bytes: int) -> Literal["storage", "memory", "unknown"]:
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
