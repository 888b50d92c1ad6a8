"""The wish that one run of several be cancelled: a file that whoever executes the run looks for, wherever that is.

This travels with the recorder, and needs nothing but the standard library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

BEFORE = "cancelled before it started"
_WHILE = "cancelled"
_PREFIX = ".cancel-"
_LOOK_EVERY_S = 0.5


def cancel_name(id: str, job: str = "") -> str:
    """Return the name of the file that has a run cancelled; that of a job counts for this job array alone."""
    return f"{_PREFIX}{job}+{id}"


def cancel_file(folder: Path) -> Path:
    """Return the file in the folder of a trial that has it cancelled by its worker, which has others to execute."""
    return folder / _PREFIX.rstrip("-")


def cancel_names(folder: Path) -> frozenset[str]:
    """Return which of those files a folder holds."""
    with os.scandir(folder) as entries:
        return frozenset(entry.name for entry in entries if entry.name.startswith(_PREFIX))


def watcher(file: Path) -> Callable[[], str]:
    """Return what is asked while a run is executed: why it is to be stopped, or nothing. It may be asked often."""
    looked_at = 0.0

    def look() -> str:
        nonlocal looked_at
        now = time.monotonic()
        if now - looked_at < _LOOK_EVERY_S:
            return ""
        looked_at = now
        return _WHILE if file.exists() else ""

    return look
