"""The traces of a run: what was recorded while it ran, or else its own log."""

from __future__ import annotations

import json
from pathlib import Path

from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.base.files import safe_join
from fairmile.meter.lines import event_files
from fairmile.runs.record.layout import RECORDING
from fairmile.runs.record.run import Run

_SLACK_S = 60.0  # clocks of two machines may differ
_HOW = "record one: fairmile run -- fairmile trace record -- COMMAND"


def traces_of(run: Run) -> list[Path]:
    """Return the folders of the recordings that a run made, or its log; NotFound where neither is there."""
    if run.packed:
        raise Unsupported(f"run {run.id} is packed", hint=f"`fairmile runs unpack {run.id}` unpacks it")
    names = run.recordings
    if not names and run.work.is_relative_to(run.folder):  # nobody lists what a program leaves there undeclared
        names = sorted(each.parent.name for each in run.work.glob(f"*/{RECORDING}"))
    folders = [folder for name in names if (folder := _folder(run, name)) is not None]
    if folders:
        return folders
    logs: list[Path] = event_files(run.folder)
    if run.recordings and not run.spans:
        raise NotFound(f"the trace of run {run.id}, {', '.join(names)}, no longer exists", hint=_HOW)
    if not logs:
        raise NotFound(f"run {run.id} has no trace", hint=_HOW)
    return logs


def _folder(run: Run, name: str) -> Path | None:
    """Return the folder of a recording; None where it is gone, or a later run put its own there."""
    try:
        folder = safe_join(run.work, name)
        recording = json.loads((folder / RECORDING).read_bytes())
        began_s = float(recording["began_ns"]) / 1e9
    except (UsageError, OSError, ValueError, TypeError, KeyError):
        return None
    ended_s = run.ended if run.ended is not None else float("inf")
    return folder if run.created - _SLACK_S <= began_s <= ended_s + _SLACK_S else None
