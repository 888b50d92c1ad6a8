"""The processes of a run on this machine: whatever its program started, in whichever group or session."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fairmile.base.errors import Conflict
from fairmile.base.files import Holder

RUN_VARIABLE = "FAIRMILE_RUN"  # every process of a run inherits it
_GRACE_S = 10.0


def module_words(name: str) -> list[str]:
    """Return how Python starts a module of this package: by name, or out of the one file that a recorder travels as."""
    main = sys.modules["__main__"].__spec__
    travelling = main is not None and main.name == "__main__" and sys.argv[0].endswith(".pyz")
    return [sys.argv[0], name] if travelling else ["-m", f"fairmile.runs.execute.{name}"]


def find_processes(folder: Path) -> list[int]:
    """Return the processes that were started as part of the run in a folder and still live, but this one."""
    mark = b"\0" + RUN_VARIABLE.encode() + b"="
    pids = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                environ = b"\0" + stream.read()
        except OSError:  # it ended, or is somebody else's
            continue
        place = environ.partition(mark)[2].partition(b"\0")[0]
        if place and pid != os.getpid() and _is_folder(os.fsdecode(place), folder):
            pids.append(pid)
    return pids


def end_run(folder: Path, holder_text: str) -> bool:
    """End the program of a run: politely, and after a while for good; tell whether its recorder lived to write that.

    `holder_text` says who its recorder is; one on another machine raises Conflict.
    """
    holder = Holder.parse(holder_text, 0)
    if not is_here(holder_text):
        raise Conflict(f"the run in {folder} is running on {holder.host}", hint="cancel it there")
    has_recorder = not holder.is_dead_here()
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The recorder passes TERM on to its program, notes why it ended, and must live to do so.
        is_asked = has_recorder and number is signal.SIGTERM
        for pid in [holder.pid] if is_asked else find_processes(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if wait_until(lambda: holder.is_dead_here() if has_recorder else not find_processes(folder)):
            break
    return has_recorder


def is_here(holder_text: str) -> bool:
    """Tell whether a holder is a process of this machine, as of now."""
    holder, me = Holder.parse(holder_text, 0), Holder.me()
    return (holder.host, holder.place) == (me.host, me.place)


def wait_until(is_over: Callable[[], bool]) -> bool:
    """Wait as long as a process that was asked politely has to end; tell whether it was over in time."""
    until = time.monotonic() + _GRACE_S
    while not is_over():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _is_folder(place: str, folder: Path) -> bool:
    if place == str(folder):
        return True
    try:
        return os.path.basename(place) == folder.name and os.path.samefile(place, folder)
    except OSError:
        return False
