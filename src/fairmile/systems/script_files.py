"""Scripts as files: read with care, and written back without losing links, owner, group or mode."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.files import write_atomic, write_failure

_LARGEST = 4 << 20


def read_script(script: Path) -> str:
    """Return the text of a script; bytes that are not UTF-8 survive `rewrite_script`."""
    try:
        if not stat.S_ISREG(script.stat().st_mode):  # opening a pipe would wait for ever
            raise UsageError(f"{script} is not a regular file, so it cannot be a script")
        with script.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"no such file: {script}") from error
    except OSError as error:
        raise SystemFailure(f"cannot read {script}: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise UsageError(f"{script} is larger than {_LARGEST >> 20} MiB, too large for a script")
    return data.decode("utf-8", "surrogateescape")


def rewrite_script(script: Path, text: str) -> None:
    """Write a script in place; links, owner, group and mode stay, and a read-only file raises SystemFailure."""
    data = text.encode("utf-8", "surrogateescape")
    file = script.resolve()
    status, folder = file.stat(), file.parent.stat()
    if not status.st_mode & stat.S_IWUSR or not os.access(file, os.W_OK):
        raise SystemFailure(f"{script} is read-only, so it was not changed", hint=f"chmod u+w {script}, or copy it")
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    if status.st_nlink == 1 and (status.st_uid, status.st_gid) == (os.geteuid(), group):
        write_atomic(file, data)
        return
    # A new file in its place would part it from its other names, or belong to somebody else.
    try:
        with file.open("r+b") as stream:
            stream.write(data)
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise write_failure(str(file), error) from error
