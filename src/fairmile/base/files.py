"""Files that several processes and machines share: atomic writes, paths that stay inside, locks that work on NFS."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from functools import cache
from typing import TYPE_CHECKING, Self

from fairmile.base.errors import (
    DiskFailure,
    FairmileError,
    InvalidDocument,
    Locked,
    NotFound,
    Problem,
    SystemFailure,
    UsageError,
)
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from threading import Event, Thread
    from types import TracebackType

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or choose another folder",
    errno.EDQUOT: "the quota is exceeded: free some space, or choose another folder",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "no write permission: ask the owner, or choose another folder",
    errno.EPERM: "no write permission: ask the owner, or choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "part of the path is a file, not a folder",
    errno.EEXIST: "part of the path is a file, not a folder",
    errno.EISDIR: "a folder has that name: choose another name",
}
RENEWAL = "lock-renewal"  # the name of threads that keep a lock: they wait, and touch its file
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NOT_REMOVED = frozenset(
    {
        *(errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ENAMETOOLONG),  # it is not there
        *(errno.EACCES, errno.EROFS, errno.EPERM),
    }
)
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.EBADF})


def allocate(descriptor: int, size_bytes: int) -> None:
    """Give a file its size and, except on macOS, take the room for it, so that a full disk is found now."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    elif os.fstat(descriptor).st_size < size_bytes:
        os.ftruncate(descriptor, size_bytes)


def write_atomic(
    path: str | os.PathLike[str],
    data: bytes | str,
    *,
    mode: int | None = None,
    exclusive: bool = False,
    sync: bool = True,
) -> None:
    """Write `data` to `path` so that any reader sees the old file or the whole new one, even after a power cut.

    Parents are created. Without `mode` an existing file keeps its permission bits and a new one follows the
    umask, so that a group can share a folder. A symbolic link at `path` is replaced, not followed. A device or a
    pipe, such as /dev/null or /dev/stdout, is written to: replaced, it would be gone for the whole machine. With
    `exclusive` an existing target raises FileExistsError and is left alone. On a file system without hard
    links an exclusive write claims the name with an empty file for the instant before the content arrives.
    Without `sync` a power cut may leave an empty file: for what can be found out again.
    """
    target = os.fspath(path)
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{target}: the text has an unpaired surrogate, which UTF-8 cannot encode") from error
    before = None if exclusive else _status(target)
    if before is not None and _is_device(target, before):
        _write_through(target, data)
        return
    folder = os.path.dirname(target) or "."
    temporary = f"{folder}/.tmp-{os.urandom(8).hex()}"
    if before is not None and mode is None and stat.S_ISREG(before.st_mode):
        mode = stat.S_IMODE(before.st_mode)
    try:
        try:
            _write_new(temporary, data, mode, sync=sync)
        except (FileNotFoundError, NotADirectoryError):
            _make_folder(folder)
            _write_new(temporary, data, mode, sync=sync)
        if exclusive:
            _publish_exclusive(temporary, target)
        else:
            os.replace(temporary, target)
        if sync:
            sync_folder(folder)
    except (FileExistsError, DiskFailure):
        _remove(temporary)
        raise
    except OSError as error:
        _remove(temporary)
        raise write_failure(target, error) from error
    except BaseException:
        _remove(temporary)
        raise


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Yield a path beside `target` to write a large file to, which takes the target's place at the end of the block.

    The folders above are made. Where the block fails, nothing stays.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        os.replace(aside, target)
    except OSError as error:
        if isinstance(error, FairmileError):  # of whoever gives the content: it says what it is
            raise
        raise write_failure(str(target), error) from error
    finally:
        aside.unlink(missing_ok=True)


def read_text(file: Path) -> str:
    """Return the text of a file that a user named."""
    try:
        return decode_text(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise NotFound(f"no such file: {file}") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SystemFailure(f"cannot read {file}: {reason}") from error


def decode_text(data: bytes, shown: str) -> str:
    """Return bytes of a user's file as text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidDocument([Problem("is not UTF-8 text", file=shown, line=line)]) from error


def safe_join(root: Path, relative: str) -> Path:
    """Return `root / relative`, or raise UsageError when that would leave `root`, also by a symbolic link."""
    if not relative:
        raise UsageError("an empty text is not a path")
    if "\0" in relative:
        raise UsageError(f"the path {relative!r} holds a NUL character")
    if "\\" in relative:
        raise UsageError(f"the path {relative!r} holds a backslash", hint="write folders with '/'")
    if relative.startswith("/"):
        raise UsageError(f"the path {relative!r} is absolute", hint="give it relative to its folder")
    if ".." in relative.split("/"):
        raise UsageError(f"the path {relative!r} leaves its folder with '..'", hint="give it relative to its folder")
    joined = root / relative
    try:
        if "/" not in relative and not _is_link(joined):
            return joined
        top = os.path.realpath(root)
        real = os.path.realpath(joined)
    except (UnicodeEncodeError, ValueError) as error:
        raise UsageError(f"the path {relative!r} holds characters that no file name can have") from error
    if real != top and not real.startswith(top.rstrip("/") + "/"):
        raise UsageError(f"the path {relative!r} leaves {root} through a symbolic link")
    return joined


def _is_link(path: Path) -> bool:
    try:
        return os.readlink(path) != ""
    except OSError:
        return False


class Holder(NamedTuple):
    """Who holds a lock: enough to tell whether it still lives."""

    token: str
    host: str = "unknown host"
    pid: int = 0
    place: str = ""
    started: str = ""

    @classmethod
    def me(cls) -> Holder:
        pid = os.getpid()
        return cls(os.urandom(8).hex(), os.uname().nodename, pid, *_own_place(pid))

    @classmethod
    def parse(cls, text: str, inode: int) -> Holder:
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        token, pid = fields.get("token", ""), fields.get("pid", "")
        # The token becomes part of a file name, so a damaged one is not used.
        if not (token.isalnum() and token.isascii() and pid.isascii() and pid.isdigit()):
            return cls(f"inode{inode}")
        return cls(token, fields.get("host", ""), int(pid), fields.get("place", ""), fields.get("started", ""))

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Holder | None:
        """Return who holds a lock; None where nobody does, or only a process that is known to be gone."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                holder = cls.parse(file.read(), os.fstat(file.fileno()).st_ino)
        except FileNotFoundError:
            return None
        return None if holder.is_dead_here() else holder

    def text(self) -> str:
        return f"host={self.host}\npid={self.pid}\ntoken={self.token}\nplace={self.place}\nstarted={self.started}\n"

    def is_dead_here(self) -> bool:
        """Tell whether the holder is known to be gone; False also when it lives where we cannot look."""
        if not self._is_here():
            return False
        started = _started(self.pid)
        return not started if not self.started else started != self.started

    def is_alive_here(self) -> bool:
        """Tell whether the holder is known to live, on this machine."""
        return self._is_here() and not self.is_dead_here()

    def _is_here(self) -> bool:
        return bool(self.place) and self.host == os.uname().nodename and self.place == _place()


class Lock:
    """Hold `path` as a lock among processes and machines, over NFS too, without a lock service.

    A lock is a hard link to a file written beforehand, which is atomic on every NFS version. The holder renews
    its time stamp each quarter of `lease_s`. A lock is taken over when its holder is a dead process of this
    host, or was not renewed for `lease_s` by the file server's own clock. Only who first creates the claim
    file of a lock's token may remove that lock, its holder included, so two waiters never remove a fresh one.
    When no turn comes within `timeout_s`, SystemFailure names the holder. `lost` turns true when the lock was
    taken over meanwhile (the process was suspended longer than the lease); leaving the block then raises.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = 30.0, lease_s: float = 60.0) -> None:
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        self.lease_s = lease_s
        self.lost = False
        self._me: Holder | None = None
        self._fd = -1
        self._stop: Event | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        if self._me is not None:
            raise RuntimeError(f"{self.path} is already locked by this object")
        me = Holder.me()
        mine = f"{self.path}.{me.token}"
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            _write_new(mine, me.text().encode(), None)
            self._wait_for_turn(mine, me)
            # The open file stays bound to our lock even if the name passes to someone else.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except SystemFailure:
            raise
        except OSError as error:
            raise write_failure(self.path, error) from error
        finally:
            _remove(mine)
        self._me, self.lost = me, False
        self._start_renewing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me, self._me = self._me, None
        if me is None:
            return
        if me.pid != os.getpid():  # a forked child must not release what its parent holds
            os.close(self._fd)
            return
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()
        try:
            self.lost = not self._remove_lock(me.token, os.fstat(self._fd).st_mtime) or self.lost
        except OSError as failure:
            if failure.errno not in (errno.ESTALE, errno.ENOENT):
                raise write_failure(self.path, failure) from failure
            self.lost = True
        finally:
            os.close(self._fd)
        if self.lost and kind is None:
            raise SystemFailure(
                f"the lock {self.path} was taken over by another process while it was held",
                hint=f"this process was suspended for more than {self.lease_s:g} s; check the result and try again",
            )

    def _wait_for_turn(self, mine: str, me: Holder) -> None:
        deadline = time.monotonic() + self.timeout_s
        pause = 0.01
        while True:
            os.utime(mine)  # the file server stamps it: its clock for the comparison, and a fresh lease
            if self._try(mine, me):
                return
            holder, stamp = _read_holder(self.path)
            _, now = _read_holder(mine)
            if holder is not None and self._is_stale(holder, stamp, now) and self._remove_lock(holder.token, now):
                self._sweep(now)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                who = f"process {holder.pid} on {holder.host}" if holder and holder.pid else "another process"
                raise Locked(
                    f"{self.path} is locked by {who}; gave up after {self.timeout_s:g} s",
                    hint=f"wait for it to finish; if it is gone, remove {self.path}",
                )
            # Unequal pauses keep many waiters from knocking at the same moment.
            time.sleep(min(left, pause * (0.5 + os.urandom(1)[0] / 255)))
            pause = min(pause * 1.6, 0.25)

    def _try(self, mine: str, me: Holder) -> bool:
        try:
            os.link(mine, self.path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                return self._try_without_links(me)
            # An NFS reply can get lost after the link was made: the link count tells the truth.
            if os.stat(mine).st_nlink == 2:
                return True
            if error.errno in (errno.EEXIST, errno.ENOENT, errno.ESTALE):
                return False
            raise
        return os.stat(mine).st_nlink == 2

    def _try_without_links(self, me: Holder) -> bool:
        try:
            _write_new(self.path, me.text().encode(), None)
        except FileExistsError:
            return False
        return True

    def _is_stale(self, holder: Holder, stamp: float, now: float) -> bool:
        return holder.is_dead_here() or now - stamp > self.lease_s

    def _remove_lock(self, token: str, now: float) -> bool:
        """Remove the lock if it still carries `token`; False when another process did so or is about to."""
        claims: list[str] = []
        while True:
            claim = f"{self.path}.claim-{token}.{len(claims)}"
            claims.append(claim)
            try:
                _write_new(claim, Holder.me().text().encode(), None)
                break
            except FileExistsError:
                owner, stamp = _read_holder(claim)
                # The claim of a process that died half way is void, but must stand as long as the lock does:
                # were it removed, a third process could take the same claim and both would remove the lock.
                if owner is None or not self._is_stale(owner, stamp, now):
                    return False
        try:
            holder, _ = _read_holder(self.path)
            if holder is None or holder.token != token:
                return False
            os.unlink(self.path)
            return True
        finally:
            for claim in claims:
                _remove(claim)

    def _sweep(self, now: float) -> None:
        """Remove what waiters left behind that were killed."""
        folder, base = os.path.split(self.path)
        for name in os.listdir(folder or "."):
            rest = name[len(base) + 1 :]
            if name.startswith(base + ".") and len(rest) == 16 and rest.isalnum():
                path = os.path.join(folder, name)
                owner, stamp = _read_holder(path)
                if owner is not None and (owner.is_dead_here() or now - stamp > 100 * self.lease_s):
                    _remove(path)

    def _start_renewing(self) -> None:
        import threading

        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(self._stop,), name=RENEWAL, daemon=True)
        self._thread.start()

    def _renew(self, stop: Event) -> None:
        while not stop.wait(self.lease_s / 4):
            try:
                os.utime(self._fd)
                self.lost = self.lost or os.fstat(self._fd).st_nlink == 0
            except OSError as error:
                # A passing network fault is tried again at the next beat; a vanished file is final.
                self.lost = self.lost or error.errno in (errno.ESTALE, errno.ENOENT)


def _read_holder(path: str) -> tuple[Holder | None, float]:
    # Opening makes an NFS client ask the server anew; a plain stat may answer from its cache.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None, 0.0
        raise
    try:
        text, status = os.read(fd, 4096).decode(errors="replace"), os.fstat(fd)
    finally:
        os.close(fd)
    return Holder.parse(text, status.st_ino), status.st_mtime


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise write_failure(folder, error) from error


def _write_new(path: str, data: bytes, mode: int | None, *, sync: bool = False) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if mode is not None:
            os.fchmod(fd, mode)
        if sync:
            os.fsync(fd)
    except BaseException:
        _remove(path)
        raise
    finally:
        os.close(fd)


def _status(target: str) -> os.stat_result | None:
    """Return what is known of a file, of a link itself; None where there is none."""
    try:
        return os.lstat(target)
    except OSError:
        return None


def _is_device(target: str, status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        try:
            status = os.stat(target)
        except OSError:
            return False
    return target.startswith(("/dev/", "/proc/")) or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _write_through(target: str, data: bytes) -> None:
    try:
        with open(target, "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise write_failure(target, error) from error


def _publish_exclusive(temporary: str, target: str) -> None:
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            _publish_without_links(temporary, target)
            return
        if os.stat(temporary).st_nlink != 2:  # 2: the link was made and only NFS's reply got lost
            raise
    _remove(temporary)


def _publish_without_links(temporary: str, target: str) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        os.replace(temporary, target)
    except BaseException:
        _remove(target)
        raise


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, where its file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be written but not listed
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        # What cannot be removed here must not hide the error that led here.
        if error.errno not in _NOT_REMOVED:
            raise


def write_failure(path: str, error: OSError) -> DiskFailure:
    """Return the error to raise when our own disk refuses, with what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    room = describe_room(path) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return DiskFailure(
        f"cannot write {path}: {reason}{f' ({room})' if room else ''}", hint=_HINTS.get(error.errno or 0)
    )


def describe_room(path: str | os.PathLike[str]) -> str:
    """Return in words how much room the file system has that a path is on; empty where it cannot be asked."""
    place = os.path.abspath(path)
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        place = os.path.realpath(place)
        status = os.statvfs(place)
        while not os.path.ismount(place):
            place = os.path.dirname(place)
    except OSError:
        return ""
    free, size = (format_size(count * status.f_frsize) for count in (status.f_bavail, status.f_blocks))
    files = "" if status.f_favail or not status.f_files else ", no more files are allowed"
    return f"{place} has {free} of {size} free{files}"


def _place() -> str:
    """Return what tells two kernels and two process namespaces apart, since both may bear one host name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return f"{stream.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


@cache
def _own_place(pid: int) -> tuple[str, str]:
    """Return where this process, whose number is `pid`, lives and when it began; neither changes."""
    return _place(), _started(pid)


os.register_at_fork(after_in_child=_own_place.cache_clear)  # numbers of processes come again


def process_began(pid: int) -> float | None:
    """Return when a process of this machine began, in seconds since the epoch; None when there is none."""
    ticks = _started(pid)
    try:
        with open("/proc/stat", encoding="utf-8") as stream:
            booted = next(int(line.split()[1]) for line in stream if line.startswith("btime "))
    except (OSError, StopIteration):
        return None
    return booted + int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks, or an empty text when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""  # a zombie holds nothing any more
