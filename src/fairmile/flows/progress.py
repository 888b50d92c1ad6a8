"""How far the program of a step is, by what it prints."""

from __future__ import annotations

import re
from pathlib import Path

from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.run import Run, RunState

_TAIL_BYTES = 16 << 10
# As programs of cloudmesh-cc tell it, and as `fairmile status` reads it from others.
_REPORTED = re.compile(rb"^# cloudmesh .*?\bprogress=(\d{1,3})\b", re.MULTILINE)
_COUNTED = re.compile(rb"\b(?:epochs?|steps?|iter\w*|batch)\W{0,3}(\d+)\s*(?:/|of)\s*(\d+)|\b(\d{1,3})%", re.IGNORECASE)


def read_progress(run: Run) -> float | None:
    """Return which share of its work a running program has told last; None where it told none."""
    if run.state is RunState.DONE:
        return 1.0
    return progress_in(_tail(run.folder / OUTPUT)) if run.state is RunState.RUNNING else None


def progress_in(text: bytes) -> float | None:
    """Return the last share that a text tells."""
    if reported := _REPORTED.findall(text):
        return min(int(reported[-1]), 100) / 100
    for done, of, percent in reversed(_COUNTED.findall(text)):
        if percent:
            return min(int(percent), 100) / 100
        if int(of):
            return min(int(done) / int(of), 1.0)
    return None


def _tail(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(stream.tell() - _TAIL_BYTES, 0))
            return stream.read()
    except OSError:
        return b""
