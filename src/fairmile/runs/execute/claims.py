"""Who goes on with a run that was begun before: one process at a time, also after the last one was killed.

This travels with the recorder, and needs nothing but the standard library and `base`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fairmile.base.errors import Conflict, Locked
from fairmile.base.files import Holder, Lock
from fairmile.runs.execute.recorder import check_no_orphan
from fairmile.runs.record.layout import RECORD, read_record
from fairmile.runs.record.record import RunRecord, RunState

_PATIENCE_S = 0.5


@contextlib.contextmanager
def claim(
    folder: Path,
    *,
    fresh: Callable[[], RunRecord | None] = lambda: None,
    is_replaced: Callable[[RunRecord, Holder], bool] = lambda _, __: False,
) -> Iterator[RunRecord | None]:
    """Give the record of a run that was begun before, to nobody else within the block; None while somebody is at it.

    `fresh` stands for a record that was never written. `is_replaced` tells of an attempt whose process may live, where
    nobody can look, that this one takes its place.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_lock(folder))
        except Locked:
            yield None
            return
        try:
            record: RunRecord | None = read_record(folder)
        except FileNotFoundError:
            record = fresh()
        yield record if record is None or is_done(record) or _is_free(folder, record, is_replaced) else None


@contextlib.contextmanager
def claim_prepared(folder: Path, prepared: RunRecord) -> Iterator[RunRecord | None]:
    """Give the record of a run of its own; a fresh one, without a record yet, is only known to who made its folder."""
    if not (folder / RECORD).exists():
        yield prepared
        return
    with claim(folder) as record:
        yield record


def is_claimed(folder: Path) -> bool:
    """Tell whether another process goes on with a run at this moment."""
    try:
        with _lock(folder):
            return False
    except Locked:
        return True


def _lock(folder: Path) -> Lock:
    return Lock(folder.parent / f".{folder.name}.resume", timeout_s=_PATIENCE_S)


def is_done(record: RunRecord) -> bool:
    """Tell whether a run has come to a good end, and nothing is left to do."""
    return record.result is not None and record.result.state is RunState.DONE


def _is_free(folder: Path, record: RunRecord, is_replaced: Callable[[RunRecord, Holder], bool]) -> bool:
    if record.result is None and record.attempts:
        holder = Holder.parse(record.attempts[-1].holder, 0)
        if not holder.is_dead_here() and not is_replaced(record, holder):
            return False
    try:
        check_no_orphan(folder, record.id)
    except Conflict:
        return False
    return True
