"""The processes that tests start: none outlives the test that failed, and none outlives the session."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing import resource_tracker
from pathlib import Path

MARK = "PYTEST_DESCENDANT_OF"
_GRACE_S = 2.0


def restore_signals() -> None:
    """Give signals their default meaning, which `make test &`, nohup and some CI services take away.

    A process that starts with a signal ignored hands that on to all that it starts, and tests send signals.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # nohup: stay safe from the terminal by leaving it, now that the signal is about to mean something again.
        with contextlib.suppress(OSError):  # already leads a group
            os.setsid()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def mark() -> None:
    """Mark what this process starts, so that it is found again whoever its parent is by then."""
    os.environ[MARK] = str(os.getpid())


def started_since(boot_time_s: float) -> set[int]:
    """Return the processes that this one started since, directly or not, but for multiprocessing's own."""
    ticks = os.sysconf("SC_CLK_TCK")
    marked = f"\0{MARK}={os.getpid()}\0".encode()
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            is_new = int(rest[18]) / ticks >= boot_time_s - 1 / ticks
            if state not in "ZX" and is_new and marked in b"\0" + (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found - {os.getpid(), getattr(resource_tracker._resource_tracker, "_pid", None)}


def end(processes: set[int]) -> None:
    """End processes: by TERM, and after a moment by KILL. One that leads a group takes the group along."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process) == process:
                    os.killpg(process, number)
                os.kill(process, number)
        deadline = time.monotonic() + _GRACE_S
        while (processes := processes & started_since(0)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not processes:
            return
