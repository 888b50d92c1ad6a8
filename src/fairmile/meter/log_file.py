"""The file that a meter appends to: whole lines in order; what the disk refuses is kept for the next attempt."""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import suppress
from errno import EBADF, ENOENT, ENOSPC
from time import monotonic_ns

from fairmile.meter.text import attributes_text

TYPE_CHECKING = False  # see text.py
if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_HELD_BYTES = 64 << 20  # what is kept while the disk refuses


class LogFile:
    """Lines that wait for a file, and that file; any number of processes may append to the same one.

    A write that fails is told once on stderr and counted in `failures`; nothing is raised. Who writes takes care that
    nobody else does at the same time; lines may come at any moment.
    """

    def __init__(self) -> None:
        self.path: str | None = None
        self.waiting: deque[str] = deque()
        self.failures = 0
        self.failure: str | None = None
        self.dropped = 0  # lines lost since the disk refuses and too many wait
        self._untold = 0  # failures that the log itself does not tell yet
        self._is_announced = False  # whether the file says who writes here
        self._descriptor: int | None = None
        self._identity = (0, 0)

    def forget(self) -> None:
        """Begin anew in a process that was forked: what waits is its parent's, the open file serves both."""
        self.waiting.clear()
        self.failures = self.dropped = self._untold = 0
        self.failure = None
        self._is_announced = False

    def write(self, announce: Callable[[], str]) -> None:
        """Append the lines that wait, behind the one that says who writes if the file has none yet."""
        if self.path is None or not self.waiting:
            return
        lines = [self.waiting.popleft() for _ in range(len(self.waiting))]
        if self._untold:
            attributes = attributes_text({"times": self._untold, "reason": self.failure, "lines_lost": self.dropped})
            event = (
                f'{{"event": "meter.write_failed", "at": {monotonic_ns()}, "with": {attributes}, "p": {os.getpid()}}}\n'
            )
            lines.append(event)
        try:
            left = self._append("".join(lines).encode(), announce)
        except OSError as error:
            self.waiting.extendleft(reversed(lines[: -1 if self._untold else None]))
            self._failed(error)
        else:
            if left:
                self.waiting.appendleft(left.decode())
            else:
                self._untold = 0

    def close(self) -> None:
        """Let go of the file; the next write opens it again."""
        if self._descriptor is not None and self._is_ours(self._descriptor):
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None

    def _append(self, data: bytes, announce: Callable[[], str]) -> bytes:
        """Append whole lines; return those that the disk did not take. Raise OSError where it took none."""
        descriptor, ragged = self._open()
        start = (b"\n" if ragged else b"") + (b"" if self._is_announced else announce().encode())
        written = os.write(descriptor, start + data)
        if written < len(start) + len(data):
            # The disk is full. The line that was cut is written again as a whole; the next write ends its stump first.
            self._failed(OSError(ENOSPC, os.strerror(ENOSPC)))
        if written < len(start):
            return data
        self._is_announced = True
        return data[data.rfind(b"\n", 0, written - len(start)) + 1 :]

    def _open(self) -> tuple[int, bool]:
        """Return the descriptor of the log, and whether the last line in it has no end."""
        assert self.path is not None
        if self._descriptor is not None and not self._is_ours(self._descriptor):
            self._descriptor, self._is_announced = None, False  # somebody closed it, or removed the file
        if self._descriptor is None:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            status = os.fstat(descriptor)
            self._descriptor, self._identity = descriptor, (status.st_dev, status.st_ino)
        size = os.fstat(self._descriptor).st_size
        return self._descriptor, size > 0 and os.pread(self._descriptor, 1, size - 1) not in (b"\n", b"")

    def _is_ours(self, descriptor: int) -> bool:
        """Return whether a descriptor still leads to the log; if it leads nowhere any more, close it."""
        try:
            status = os.fstat(descriptor)
        except OSError as error:
            lost = error.errno != EBADF
        else:
            if (status.st_dev, status.st_ino) != self._identity:
                return False  # the number is another file's now
            if status.st_nlink:
                return True
            lost = True
        if lost:
            with suppress(OSError):
                os.close(descriptor)
        return False

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self._untold += 1
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == ENOENT:
            reason = "its folder no longer exists"
        first = self.failure is None
        self.failure = reason
        self._drop_newest()
        if first and sys.stderr is not None:
            line = (
                f"fairmile: cannot write {self.path}: {reason}; the program continues and keeps its records for now\n"
            )
            with suppress(OSError, ValueError):  # stderr may be closed, or full as well
                sys.stderr.write(line)
                sys.stderr.flush()

    def _drop_newest(self) -> None:
        held = sum(map(len, self.waiting.copy()))
        while held > _MOST_HELD_BYTES:
            held -= len(self.waiting.pop())
            self.dropped += 1
