"""Copies of this process as workers: what it has imported, they need not import again.

A copy has only the thread that made it, and whatever another thread held at that moment stays held in it for ever. So
a process is copied only while no other thread of it can hold anything; `can_fork` tells that, and whoever is refused
starts a new Python instead.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from fairmile.base.files import RENEWAL

_MOST_BYTES = 96 << 20  # a program counts the memory of the process that starts it as its own
_HOLD_DEVICES = ("pynvml", "torch", "jax", "tensorflow", "cupy")  # what they opened is of no use to a copy
_INTERRUPTED = 130
_LOOK_S = 0.01


def can_fork() -> bool:
    """Tell whether a copy of this process is sound: Linux, little memory, no library that holds a GPU, no threads.

    A thread that renews a lock does not count: it waits, and holds nothing that a copy uses.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return False
    if any(name in sys.modules for name in _HOLD_DEVICES):
        return False
    own = [thread for thread in threading.enumerate() if thread.name != RENEWAL]
    try:
        threads = len(os.listdir("/proc/self/task"))
        with open("/proc/self/statm", "rb") as stream:
            size_bytes = int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError):
        return False
    return len(own) == 1 and threads == threading.active_count() and size_bytes <= _MOST_BYTES


class Fork:
    """A copy of this process, in a session of its own, that executes `main` and ends with the code it returns.

    It reads from `stdin` and writes to `stdout`, which are the other ends of its own, and has no other file open.
    """

    def __init__(self, main: Callable[[], int]) -> None:
        read, write = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which `can_fork` has judged
            self.pid = os.fork()
        if self.pid == 0:
            _be(main, read[0], write[1])
        os.close(read[0])
        os.close(write[1])
        self.stdin, self.stdout = os.fdopen(read[1], "wb"), os.fdopen(write[0], "rb", buffering=0)
        self._exit_code: int | None = None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._exit_code is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code, below 0 where a signal ended it; TimeoutExpired where it stays."""
        until = time.monotonic() + (timeout or 0.0)
        while self._exit_code is None:
            pid, status = os.waitpid(self.pid, 0 if timeout is None else os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            else:
                time.sleep(_LOOK_S)
        return self._exit_code


def _be(main: Callable[[], int], source: int, target: int) -> NoReturn:
    """Be the copy; it never returns to what the original was at."""
    code = 1
    try:
        gc.freeze()  # objects of the original are never finalized here: their descriptors are closed, or another's
        os.setsid()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        code = main()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    finally:
        if sys.exc_info()[0] is not None:
            import traceback

            traceback.print_exc()
        os._exit(code)
