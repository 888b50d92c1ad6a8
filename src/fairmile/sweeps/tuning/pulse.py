"""Whether a worker lives that runs where nobody can look, as on a host that went down: it renews a file as long as so.

Times are compared as the file server stamps them, so that no two clocks need to agree.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from fairmile.base.errors import DiskFailure, SystemFailure
from fairmile.base.files import Holder, write_atomic

_EVERY_S = 20.0
_GONE_AFTER_S = 180.0


class Pulse:
    """Renews the file of a worker in a study's folder while the block lasts."""

    def __init__(self, folder: Path, worker: Holder) -> None:
        self._file = _file(folder, worker)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        write_atomic(self._file, "", sync=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(_EVERY_S):
            with contextlib.suppress(OSError):  # a file server that is away for a moment is tried again
                os.utime(self._file)


def has_no_pulse(folder: Path, worker: Holder) -> bool:
    """Tell whether a worker that cannot be seen from here has not renewed its file for long.

    False where it can be seen: a laptop that slept wakes together with all its processes. False also without a file.
    """
    me = Holder.me()
    if worker.place and (worker.host, worker.place) == (me.host, me.place):
        return False
    try:
        beat = _stamp(_file(folder, worker))
    except OSError:
        return False
    mark = _file(folder, me)
    try:
        write_atomic(mark, "", sync=False)
        return _stamp(mark) - beat > _GONE_AFTER_S
    except (OSError, SystemFailure, DiskFailure):  # who cannot write here is not the one to judge
        return False
    finally:
        with contextlib.suppress(OSError):
            mark.unlink(missing_ok=True)


def _file(folder: Path, worker: Holder) -> Path:
    return folder / f"pulse-{worker.token}"


def _stamp(file: Path) -> float:
    # Opening makes an NFS client ask the server anew; a plain stat may answer from its cache.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
