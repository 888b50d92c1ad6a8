"""What is taken of a pool: the bytes that lie there, and those that somebody is about to bring.

Below the pool's folder `reserved/` holds one small file for each reservation, renewed by its owner, and
`usage.json` keeps what was last counted. Both are read by other users and from other machines, so nothing here
relies on this machine's clock or on a lock service.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.files import Holder, Lock, write_atomic, write_failure
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.store.objects import make_folder, writing

if TYPE_CHECKING:
    from types import TracebackType

LEASE_S = 600.0  # a job that its scheduler suspends for less than this keeps what it reserved
COUNT_AGE_S = 3600.0
_COUNT_SHARE = 100  # at most one part in so many of the time is spent on counting
_STEPS = 256  # a reservation's file grows by one line at most so many times
_NAME = lazy_pattern(r"[0-9a-f]{16}")
_LONGEST_FILE = 1 << 16
_LONGEST_WHAT = 200


@dataclass(frozen=True)
class Held:
    """A reservation as others see it; once its owner is gone (`alive` is false) it holds nothing any more."""

    token: str
    what: str
    host: str
    pid: int
    user_id: int
    size_bytes: int
    left_bytes: int
    renewed: float
    alive: bool

    @property
    def landed_bytes(self) -> int:
        """The part that lies on the disk already."""
        return self.size_bytes - self.left_bytes


class Reservation:
    """Bytes of a pool kept for its owner until `release` or the end of the block.

    A thread renews it. `lost` turns true when this process stood still for longer than the lease and the
    reservation was given up for dead meanwhile: then the bytes still to come may find no room.
    """

    def __init__(self, taken: Taken, path: Path, fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.lost = False
        self._taken = taken
        self._path = path
        self._fd = fd
        self._left = self._stated = size_bytes
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="reservation-renewal", daemon=True)
        self._thread.start()

    @property
    def left_bytes(self) -> int:
        """The bytes still to come."""
        return self._left

    def shrink(self, landed_bytes: int) -> None:
        """State that so many more bytes have reached the disk and need no reservation any longer."""
        if landed_bytes < 0:
            raise UsageError(f"a reservation cannot shrink by {landed_bytes} bytes")
        with self._guard:
            self._left = max(0, self._left - landed_bytes)
            # Stating it late is safe: until then these bytes count twice, as used and as reserved.
            if self._fd >= 0 and (self._stated - self._left) * _STEPS >= self.size_bytes and self._left < self._stated:
                self._state()

    def release(self) -> None:
        """Give back what is left; a second call does nothing."""
        with self._guard:
            fd, self._fd = self._fd, -1
        if fd < 0:
            return
        os.close(fd)
        if self._pid != os.getpid():  # a forked child must not give back what its parent holds
            return
        self._stop.set()
        self._thread.join()
        self._taken.end(self._path.name, self.size_bytes - self._left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _state(self) -> None:
        # A line is added and none is changed, so a reader sees the old state or the new one.
        try:
            os.write(self._fd, f"left={self._left}\n".encode())
            self._stated = self._left
            self._touch()
        except OSError as failure:
            # A full disk keeps the larger reservation, which is safe.
            self.lost = self.lost or failure.errno in (errno.ESTALE, errno.ENOENT)

    def _touch(self) -> None:
        os.utime(self._fd)  # stamped by the file server's clock, whatever ours says
        self.lost = self.lost or os.fstat(self._fd).st_nlink == 0

    def _renew(self) -> None:
        while not self._stop.wait(self._taken.lease_s / 4):
            with self._guard:
                if self._fd < 0:
                    return
                try:
                    self._touch()
                except OSError as failure:
                    # A passing network fault is tried again at the next beat; a vanished file is final.
                    self.lost = self.lost or failure.errno in (errno.ESTALE, errno.ENOENT)


@dataclass(frozen=True)
class Usage:
    """The bytes of a pool as counted last, and what was brought since then.

    `counted` has, for each reservation that was open at the count, how much of it the count includes.
    """

    walked_bytes: int
    added_bytes: int
    counted: Mapping[str, int]
    measured: float
    took_s: float
    files: int = 0

    def with_open(self, held: Iterable[Held]) -> Usage:
        """Return the same usage with all that open reservations have brought so far included."""
        now = {each.token: each.landed_bytes for each in held}
        more = sum(landed - self.counted.get(token, 0) for token, landed in now.items())
        return replace(self, added_bytes=self.added_bytes + more, counted=now)

    @property
    def used_bytes(self) -> int:
        return self.walked_bytes + self.added_bytes


class Taken:
    """The reservations and the usage of the pool in one folder."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time, lease_s: float = LEASE_S) -> None:
        self.folder = folder
        self.lease_s = lease_s
        self._clock = clock
        self._reserved = folder / "reserved"
        self._usage = folder / "usage.json"

    def prepare(self) -> None:
        """Make the folders that reservations need."""
        with writing(self._reserved):
            make_folder(self.folder, self._reserved)

    def lock(self) -> Lock:
        """Return the lock under which room is checked and reserved."""
        self.prepare()
        return Lock(self._reserved / ".lock", timeout_s=120.0)

    def held(self) -> list[Held]:
        """Return every reservation, also those of owners who are gone; a pool without a folder has none."""
        try:
            names = sorted(name for name in os.listdir(self._reserved) if _NAME.fullmatch(name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise SystemFailure(f"cannot read {self._reserved}: {error.strerror}") from error
        now = self._server_time() if names else 0.0
        return [held for name in names if (held := self._read(name, now)) is not None]

    def make(self, size_bytes: int, what: str) -> Reservation:
        """Reserve without a check: the caller holds the lock and has seen that there is room."""
        owner = Holder.me()
        shown = "".join(c if c.isprintable() else " " for c in what)[:_LONGEST_WHAT]
        text = owner.text() + f"what={shown}\nsize={size_bytes}\nleft={size_bytes}\n"
        self.prepare()
        hidden, path = self._reserved / f".{owner.token}", self._reserved / owner.token
        try:
            fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.fchmod(fd, 0o644)  # whatever the umask: what others cannot read they would not respect
                os.write(fd, text.encode(errors="replace"))
                os.fsync(fd)
                os.rename(hidden, path)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(hidden)
                raise
        except OSError as error:
            raise write_failure(os.fspath(path), error) from error
        return Reservation(self, path, fd, size_bytes)

    def end(self, token: str, landed_bytes: int) -> None:
        """Remove a reservation of which `landed_bytes` have become part of the pool."""
        # Where the account cannot be kept, the next count puts it right.
        with contextlib.suppress(SystemFailure):
            if self.usage() is not None:
                with self.lock():
                    self._settle({token: landed_bytes})
                    _unlink(self._reserved / token)
        # What cannot be removed either ends with its owner.
        with contextlib.suppress(SystemFailure):
            _unlink(self._reserved / token)

    def sweep(self) -> list[Held]:
        """Remove the reservations whose owners are gone and return them."""
        if all(held.alive for held in self.held()) and not any(self._leftovers()):
            return []
        with self.lock():
            dead = [held for held in self.held() if not held.alive]
            if self.usage() is not None:
                self._settle({held.token: held.landed_bytes for held in dead})
            for held in dead:
                _unlink(self._reserved / held.token)
            for path in self._leftovers():
                _unlink(path)
        return dead

    def usage(self) -> Usage | None:
        """Return the usage as last counted and carried forward, or None when it was never counted."""
        try:
            usage = Usage(**json.loads(self._usage.read_bytes()))
            whole = (usage.walked_bytes, usage.added_bytes, usage.files, *usage.counted.values())
            times = (usage.measured, usage.took_s)
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # missing or damaged: it will be counted anew
        sound = all(type(n) is int for n in whole) and all(isinstance(n, (int, float)) for n in times)
        return usage if sound else None

    def count(self, max_age_s: float | None = None) -> Usage:
        """Return the usage, counted anew by a walk through the pool when it is older than `max_age_s`.

        By default an hour, or a hundred times what the last walk took, is young enough. One process walks; the
        others wait for its result.
        """
        asked = self._clock()
        usage = self._young(asked, max_age_s)
        if usage is None:
            self.prepare()
            with Lock(self._reserved / ".count", timeout_s=3600.0):
                usage = self._young(asked, max_age_s) or self._walk()
        return usage

    def _young(self, asked: float, max_age_s: float | None) -> Usage | None:
        usage = self.usage()
        if usage is None or usage.measured > self._clock():  # a date in the future says nothing
            return None
        limit = max(COUNT_AGE_S, _COUNT_SHARE * usage.took_s) if max_age_s is None else max_age_s
        return usage if asked - usage.measured < limit else None

    def _walk(self) -> Usage:
        with self.lock():  # what open reservations bring from here on is added to what the walk finds
            before = (self.usage() or Usage(0, 0, {}, 0.0, 0.0)).with_open(self.held())
            self._keep(before)
        start, measured = time.monotonic(), self._clock()
        files, size = 0, 0
        for each in _files_below(self.folder):
            files, size = files + 1, size + each
        with self.lock():
            after = self.usage() or before
            usage = replace(
                after,
                walked_bytes=size,
                added_bytes=after.added_bytes - before.added_bytes,
                measured=measured,
                took_s=round(time.monotonic() - start, 3),
                files=files,
            )
            self._keep(usage)
        return usage

    def _settle(self, landed: Mapping[str, int]) -> None:
        usage = self.usage()
        if usage is None:
            return
        more = sum(size - usage.counted.get(token, 0) for token, size in landed.items())
        still_open = {token: size for token, size in usage.counted.items() if token not in landed}
        self._keep(replace(usage, added_bytes=usage.added_bytes + more, counted=still_open))

    def _keep(self, usage: Usage) -> None:
        write_atomic(self._usage, json.dumps(asdict(usage), indent=1) + "\n")

    def _read(self, name: str, now: float) -> Held | None:
        try:
            # Opening makes an NFS client ask the server anew; a plain stat may answer from its cache.
            fd = os.open(self._reserved / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise SystemFailure(
                f"cannot read the reservation {self._reserved / name}: {error.strerror}",
                hint="let its owner remove it",
            ) from error
        try:
            text, status = os.read(fd, _LONGEST_FILE).decode(errors="replace"), os.fstat(fd)
        finally:
            os.close(fd)
        # A last line without its end is still being written.
        lines = text.rpartition("\n")[0].split("\n")
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        owner = Holder.parse("\n".join(lines), status.st_ino)
        size = _number(fields.get("size"))
        return Held(
            token=name,
            what=fields.get("what", ""),
            host=owner.host,
            pid=owner.pid,
            user_id=status.st_uid,
            size_bytes=size,
            left_bytes=min(size, _number(fields.get("left"))),
            renewed=status.st_mtime,
            alive=not owner.is_dead_here() and now - status.st_mtime <= self.lease_s,
        )

    def _server_time(self) -> float:
        """Return the time by the clock that stamps the files of this folder."""
        probe = self._reserved / f".{os.urandom(8).hex()}"
        try:
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError:
            return self._clock()  # who may not write here cannot reserve either, only look
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)
            _unlink(probe)

    def _leftovers(self) -> Iterator[Path]:
        """Yield files of processes that were killed between two steps."""
        with contextlib.suppress(OSError):
            now = self._server_time() if self._reserved.is_dir() else 0.0
            for path in self._reserved.iterdir():
                if _NAME.fullmatch(path.name[1:]) and path.name[0] == "." and now - path.stat().st_mtime > self.lease_s:
                    yield path


def _files_below(folder: Path) -> Iterator[int]:
    """Yield what each file takes on the disk; folders that vanish or cannot be read are left out."""
    todo = [os.fspath(folder)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat(follow_symlinks=False).st_blocks * 512


def _number(text: Any) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20 else 0


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise SystemFailure(f"cannot remove {path}: {error.strerror}", hint="its owner can") from error
