"""Metrics in TensorBoard event files that a program wrote: they join those that it logged.

It needs nothing but the standard library, `base` and `meter`, as the recorder does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fairmile.base.files import write_atomic
from fairmile.meter.lines import event_files, metric_lines, read_log
from fairmile.meter.tensorboard import MARK, find_event_files, read_scalars

SOURCE = "event files"  # of such a metric, as its record names it
_LOG = "events.tensorboard.jsonl"
_CLOCK_TICK_S = 2.0  # of the coarsest file systems


def take_event_files(
    folder: Path, work: Path, *, since_s: float, written: Sequence[str] | None = None
) -> tuple[frozenset[str], list[str]]:
    """Add to the log of a run what its program wrote into event files since a time, and did not log itself.

    Where all files that it wrote are known, `written` names them, and the folder need not be searched. Return the names
    of those metrics, and what could not be read.
    """
    if written is None:
        files = find_event_files(work, since_s=since_s - _CLOCK_TICK_S, apart=folder.parent)
    else:
        files = [file for path in written if MARK in os.path.basename(path) and (file := Path(path)).is_file()]
    if not files:
        return frozenset(), []
    logged = {each.name for each in read_log(file for file in event_files(folder) if file.name != _LOG).metrics}
    scalars, doubts = read_scalars(files)
    values = [(each.tag, each.value, each.step, each.at_s) for each in scalars if each.tag not in logged]
    if values:
        write_atomic(folder / _LOG, metric_lines(values, "TensorBoard"), sync=False)
    return frozenset(tag for tag, *_ in values), doubts
