"""Where the members of a batch stand, by their records and by the job arrays that are to execute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.execute.batches import read_tasks
from fairmile.runs.execute.cancellation import cancel_name, cancel_names
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.execute.job_arrays import Arrays
from fairmile.runs.execute.worker import Batch
from fairmile.runs.record.index_rows import RunRow
from fairmile.runs.record.run import RunState

_AGAIN = frozenset({RunState.INTERRUPTED, RunState.CANCELLED})


@dataclass(frozen=True)
class MemberStatus:
    """A member, its run where that has begun, and whether a job will execute it, perhaps again."""

    number: int
    member: Mapping[str, Any]
    row: RunRow | None
    is_queued: bool

    @property
    def id(self) -> str:
        return str(self.member["id"])


@dataclass(frozen=True)
class LiveArray:
    """A job array that has not ended: which members it will still execute, each in which task."""

    key: str
    numbers: Mapping[int, int]
    left: tuple[int, ...]  # its tasks that wait or run


def live_arrays(folder: Path, arrays: Arrays) -> Iterator[LiveArray]:
    """Yield the job arrays of a batch that have not ended."""
    for listed in read_tasks(folder):
        job = arrays.get(listed["key"])
        if job is None or job.is_over:
            continue
        left = {index: members for index, members in enumerate(listed["tasks"]) if index not in job.ended}
        numbers = {number: index for index, members in left.items() for number in members}
        yield LiveArray(listed["key"], numbers, tuple(left))


def member_statuses(folder: Path, host: WorkspaceRuns, arrays: Callable[[], Arrays]) -> list[MemberStatus]:
    """Return where each member of a batch stands; runs whose job has ended without a word are settled first."""
    batch = Batch.read(folder)
    group, system = batch.shared.spec.group, batch.shared.spec.system
    queued: dict[int, tuple[str, int]] = {}
    if system:  # before the runs are read: what ends meanwhile is seen below
        for array in live_arrays(folder, arrays()):
            queued |= {number: (array.key, task) for number, task in array.numbers.items()}
    cancelled = cancel_names(folder)
    rows = {row.id: row for row in host.ledger.rows(group=group)}
    jobs: dict[str, Any] = {}
    begun = [row.id for row in rows.values() if system and not row.state.is_end]
    for id in begun:
        host.collect(id, jobs)
    members = batch.members()
    waiting = {
        number
        for number, task in queued.items()
        if ((row := rows.get(members[number]["id"])) is None or _is_before(row, task, host))
        and cancel_name(members[number]["id"], task[0]) not in cancelled
    }
    # A task may have come to a run since its row was read: an earlier failure must not be taken for its end.
    if begun or len(waiting) < len(queued):
        rows = {row.id: row for row in host.ledger.rows(group=group)}
    statuses = []
    for number, member in enumerate(members):
        row = rows.get(member["id"])
        is_queued = number in waiting and (row is None or (row.state.is_end and row.state is not RunState.DONE))
        statuses.append(MemberStatus(number, member, row, is_queued))
    return statuses


def _is_before(row: RunRow, task: tuple[str, int], host: WorkspaceRuns) -> bool:
    """Tell whether a run is as an earlier task left it, and the one at hand has not come to it yet."""
    if not row.state.is_end or row.state is RunState.DONE:
        return False
    if row.state in _AGAIN:
        return True
    job = host.ledger.get(row.id).job
    return job is None or (job.key, job.task) != task
