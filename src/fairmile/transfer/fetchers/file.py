"""file:// addresses and plain paths: byte ranges of files on this machine."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

from fairmile.base.digest_cache import Stamp
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.transfer.remote import Context, Remote

_LINK_MODE = 0o120000
_MAY_PASS = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})  # a network file system's bad moment


class File:
    """Reads byte ranges of local files; a folder means every file below it, by the rules of `scan_tree`."""

    def __init__(self, context: Context) -> None:
        pass  # the file system needs neither credentials nor settings

    def find(self, address: str) -> list[Remote]:
        path = _local_path(address)
        status = _status(path)
        if stat.S_ISDIR(status.st_mode):
            remotes = sorted(_below(path), key=lambda remote: os.fsencode(remote.path))
            if not remotes:
                raise NotFound(f"the folder {path} has no files")
            return remotes
        return [_remote(path, path.name, _regular(path, status))]

    def open(self, remote: Remote, start: int, stop: int | None) -> FileBody | TextBody:
        path = _local_path(remote.address)
        if remote.mode == _LINK_MODE:
            return TextBody(_link_text(path), start, stop)
        # Without O_NONBLOCK a pipe put in the file's place meanwhile would block here for ever.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _failure(path, error) from error
        try:
            return FileBody(fd, path, start, stop)
        except BaseException:
            os.close(fd)
            raise


class FileBody:
    """A range of an open file, which it closes."""

    is_whole = False

    def __init__(self, fd: int, path: Path, start: int, stop: int | None) -> None:
        status = _regular(path, os.fstat(fd))
        self.start = start
        self.total_bytes: int | None = status.st_size
        self.validator = _validator(status)
        self._fd = fd
        self._path = path
        self._at = start
        self._stop = stop

    def readinto(self, buffer: memoryview) -> int:
        room = len(buffer) if self._stop is None else max(0, min(len(buffer), self._stop - self._at))
        try:
            count = os.preadv(self._fd, [buffer[:room]], self._at) if room else 0
        except OSError as error:
            raise _failure(self._path, error) from error
        self._at += count
        return count

    def interrupt(self) -> None:
        """Do nothing: a read of a local file cannot be woken up, and does not wait for anybody."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class TextBody:
    """A range of bytes that are known already, such as the text of a symbolic link."""

    validator = ""
    is_whole = False

    def __init__(self, text: bytes, start: int, stop: int | None) -> None:
        self.start = start
        self.total_bytes: int | None = len(text)
        self._rest = text[start:stop]

    def readinto(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def interrupt(self) -> None:
        """Do nothing: no read ever waits."""

    def close(self) -> None:
        self._rest = b""


def _local_path(address: str) -> Path:
    """Return the absolute path that an address or a plain path means."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme.lower() == "file":
        host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
        if host.lower() not in ("", "localhost"):
            raise UsageError(
                f"{address} names a file on the machine {host!r}", hint=f"fetch it from there: ssh://{host}/{path}"
            )
        # Another address may hold "?" and "#" for other uses; here both can only be part of a name.
        address = os.fsdecode(unquote_to_bytes(slash + path))
        if not address.startswith("/"):
            raise UsageError(f"file:{rest} is not an absolute path", hint="write file:///folder/name")
    if not address or "\0" in address:
        raise UsageError(f"{address!r} is not a path of a file")
    return Path(address).absolute()


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _failure(path, error) from error
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {str(path)!r} contains characters that are not allowed in a file name") from error


def _below(folder: Path) -> Iterator[Remote]:
    top = os.path.realpath(folder)
    todo = [(folder, "")]
    while todo:
        place, prefix = todo.pop()
        try:
            with os.scandir(place) as items:
                entries = list(items)
        except OSError as error:
            raise _failure(place, error) from error
        for entry in entries:
            path, name = place / entry.name, prefix + entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                raise _failure(path, error) from error
            if stat.S_ISDIR(status.st_mode):
                todo.append((path, name + "/"))
            elif stat.S_ISLNK(status.st_mode):
                text = _link_text(path)
                real = os.path.realpath(path)
                if text.startswith(b"/") or (real != top and not real.startswith(top.rstrip("/") + "/")):
                    raise UsageError(
                        f"the symbolic link {path} leads out of {folder}, to {os.fsdecode(text)}",
                        hint="replace it with its target, or fetch the target separately",
                    )
                yield Remote(path.as_uri(), name, len(text), mode=_LINK_MODE)
            else:
                yield _remote(path, name, _regular(path, status))


def _remote(path: Path, name: str, status: os.stat_result) -> Remote:
    mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    return Remote(path.as_uri(), name, status.st_size, validator=_validator(status), mode=mode)


def _regular(path: Path, status: os.stat_result) -> os.stat_result:
    if stat.S_ISREG(status.st_mode):
        return status
    if stat.S_ISDIR(status.st_mode):
        raise NotFound(f"{path} is a folder, not a file")
    raise UsageError(f"{path} is neither a file nor a folder", hint="name a file whose size does not change")


def _validator(status: os.stat_result) -> str:
    return "-".join(map(str, Stamp.of(status).key))


def _link_text(path: Path) -> bytes:
    try:
        return os.readlink(os.fsencode(path))
    except OSError as error:
        raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> FairmileError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"no file or folder {path}")
    if error.errno in _MAY_PASS:
        return Transient(f"cannot read {path}: {reason}")
    hint = "ask its owner for the permission to read it" if error.errno in (errno.EACCES, errno.EPERM) else None
    return SystemFailure(f"cannot read {path}: {reason}", hint=hint)
