"""The executor that hands runs to a system as jobs: each run of its own is one, members of a batch are job arrays.

What a job does is found again in any process, after a logout or a crash: a run names its job in its record, and a batch
keeps beside it which members each task of each job array executes.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO, Literal, Protocol

from fairmile.base.errors import FairmileError, Transient, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.spec import After, JobSpec, Resources
from fairmile.runs.execute.batch_status import MemberStatus, live_arrays, member_statuses
from fairmile.runs.execute.batches import WORKER, ArrayState, Frozen, read_tasks, write_tasks
from fairmile.runs.execute.cancellation import cancel_name, cancel_names
from fairmile.runs.execute.carrier import local_job
from fairmile.runs.execute.claims import claim_prepared, is_done
from fairmile.runs.execute.executor import Condition, Handle, Loop, Member, PreparedRun, TaskStatus, Work
from fairmile.runs.execute.following import status_of
from fairmile.runs.execute.host import WorkspaceRuns
from fairmile.runs.execute.job_arrays import Arrays
from fairmile.runs.execute.worker import Batch
from fairmile.runs.projection import most_steps, with_time
from fairmile.runs.record.commands import start_command
from fairmile.runs.record.layout import write_record
from fairmile.runs.record.record import JobReference, RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import RunSpec

_PACK_S = 600.0  # what a task of a job array should take: shorter ones cost the scheduler more than the runs
_HISTORY = 50
_CONDITIONS: Mapping[Condition, Literal["ok", "failed", "any"]] = {
    **{"done": "ok", "failed": "failed"},
    **{"ended": "any", "over": "any"},
}


@dataclass(frozen=True)
class Packing:
    """How members of a batch are put into the tasks of job arrays.

    A task executes `pack` members, one after the other or `slots` at once; without `pack` as many as fill ten minutes
    by what members took before. `at_once` tasks run together at most, and no more than `queued` wait or run.
    """

    pack: int | None = None
    slots: int = 1
    at_once: int | None = None
    queued: int | None = None


class RunCarrier(Protocol):
    """Makes the job that executes a run of its own."""

    def job(self, work: PreparedRun, record: RunRecord, key: str) -> JobSpec:
        """Materialize what the run works on, and return its job; `record` gets what is noted of that."""

    def sent(self, folder: Path) -> None:
        """Remove from the folder of a run what its job took along."""


class SharedRuns:
    """Makes jobs on machines that see the files of this one."""

    def __init__(self, host: WorkspaceRuns) -> None:
        self._host = host

    def job(self, work: PreparedRun, record: RunRecord, key: str) -> JobSpec:
        """Return the job of a run; one that has begun before goes on with what lies in its folder."""
        if not record.argv:
            values = self._host.preparation.materialize(record, work.folder, code=work.from_snapshot)
            record.argv = list(start_command(work.spec, values))
        return local_job(work.spec, record.argv, work.folder, key)

    def sent(self, folder: Path) -> None:
        """Nothing went anywhere."""


class Scheduler:
    """Executes runs as jobs of a system; `carrier` says how one reaches it."""

    def __init__(
        self,
        system: str,
        host: WorkspaceRuns,
        arrays: Arrays,
        packing: Packing,
        carrier: RunCarrier,
        *,
        echo: BinaryIO | None = None,
    ) -> None:
        self._system, self._host, self._arrays, self._packing = system, host, arrays, packing
        self._carrier, self._echo = carrier, echo
        self._states: dict[Handle, RunState] = {}
        self.trouble = ""  # why nothing is known of some runs of their own, since they were polled last
        self.submitted: list[ArrayState] = []  # the job arrays of members and loops, as they were submitted

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Submit runs, and return the handles of those that were; the limit of a packing holds others back."""
        return self._submit(works, ())

    def submit_after(self, works: Sequence[Work], after: Mapping[Handle, Condition]) -> list[Handle]:
        """Submit runs that the scheduler holds back until the jobs of others have ended as their conditions say."""
        return self._submit(works, self._dependencies(after))

    def _submit(self, works: Sequence[Work], after: tuple[After, ...]) -> list[Handle]:
        taken: dict[str, Handle] = {}
        batches: dict[Path, list[Member]] = {}
        loops: dict[Path, list[Loop]] = {}
        for work in works:
            if isinstance(work, Member):
                batches.setdefault(work.batch, []).append(work)
            elif isinstance(work, Loop):
                loops.setdefault(work.batch, []).append(work)
            else:
                self._submit_run(work, after)
                taken[work.id] = Handle.of(work)
        for folder, members in batches.items():
            for id in self._submit_members(folder, members, after):
                taken[id] = Handle(id, folder)
        for folder, group in loops.items():
            key = self._submit_loops(folder, group, after)
            taken |= {loop.id: Handle(f"{key}/{index}", folder) for index, loop in enumerate(group)}
        for handle in taken.values():
            self._states.pop(handle, None)
        return [taken[work.id] for work in works if work.id in taken]

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what is new, as the notes of the jobs and their scheduler tell."""
        if self._echo is not None and wait_s:
            self._print(handles, self._echo)
        news = self._news(handles)
        if not news and wait_s:
            time.sleep(wait_s)
            news = self._news(handles)
        return news

    def wait(self, handle: Handle, *, timeout_s: float | None = None) -> None:
        """Follow a run of its own to its end."""
        if self._echo is not None:
            self._print([handle], self._echo)
        if (job := self._host.jobs().find(self._key_of(handle))) is not None:
            self._host.jobs().wait([job.id], timeout_s=timeout_s)

    def cancel(self, handles: Collection[Handle]) -> None:
        """Cancel jobs; in a job array that has other runs to execute, their workers end those that are cancelled."""
        ids = {handle.run for handle in handles}
        keys: list[str] = []
        for folder in {handle.batch for handle in handles if handle.batch is not None}:
            batch, cancelled = Batch.read(folder), cancel_names(folder)
            for array in live_arrays(folder, self._arrays):
                members = {batch.member(number)["id"] for number in array.numbers}
                live = {id for id in members if cancel_name(id, array.key) not in cancelled}
                if live & ids and not live <= ids:
                    self._arrays.cancel_members(array.key, folder, sorted(live & ids))
                else:
                    keys += [array.key] if live & ids or ids & {f"{array.key}/{index}" for index in array.left} else []
        for key in keys:
            self._arrays.cancel(key)
        for handle in handles:
            if handle.batch is None and (key := self._key_of(handle)):
                self._arrays.cancel(key)

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task; its record is here, complete where it has ended."""
        return self._host.collect(handle.run)

    # Runs of their own

    def _submit_run(self, work: PreparedRun, after: tuple[After, ...]) -> None:
        """Hand a run over unless somebody did; its record, written before, says how to find it again."""
        with claim_prepared(work.folder, work.record) as begun:
            if begun is None or is_done(begun) or self._is_queued(begun):
                return
            self._hand_over(replace(work, record=begun), after)

    def _is_queued(self, record: RunRecord) -> bool:
        if record.job is None or record.result is not None or record.state is not RunState.QUEUED:
            return False
        job = self._host.jobs().find(record.job.key)
        return job is not None and bool(job.scheduler_id)  # else nobody knows whether it arrived

    def _hand_over(self, work: PreparedRun, after: tuple[After, ...]) -> None:
        jobs, spec, folder = self._host.jobs(), work.spec, work.folder
        record = work.record.copy()
        key = f"{record.id}-{len(record.attempts)}"
        record.state, record.result = RunState.QUEUED, None
        record.job = JobReference(key=key, system=self._system)
        try:
            job = self._carrier.job(work, record, key).model_copy(update={"after": after})
            if spec.environment:
                digest = record.captured.environment.digest
                job = jobs.in_environment(job, self._host.envs(), digest, system=self._system)
            self._host.ledger.write(folder, record)
            jobs.submit(job, system=self._system)
        except Transient:  # it may have arrived: whoever asks for the run finds out
            raise
        except (FairmileError, OSError):
            if work.record.attempts:
                write_record(folder, work.record)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self._carrier.sent(folder)

    # What they wait for

    def _dependencies(self, after: Mapping[Handle, Condition]) -> tuple[After, ...]:
        """Return the jobs that execute runs, each with how it must have ended."""
        jobs = self._host.jobs()
        members: dict[Path, dict[str, Condition]] = {}
        keys: dict[tuple[str, Condition], None] = {}
        for handle, condition in after.items():
            if handle.batch is None:
                keys[self._key_of(handle), condition] = None
            elif "/" in handle.run:  # a loop
                keys[handle.run.rpartition("/")[0], condition] = None
            else:
                members.setdefault(handle.batch, {})[handle.run] = condition
        for folder, conditions in members.items():
            keys |= dict.fromkeys((key, conditions[id]) for id, key in _last_arrays(folder).items() if id in conditions)
        ids = {key: jobs.id_of(key) for key, _ in keys}
        if lost := next((key for key, id in ids.items() if not id), None):
            raise UsageError(f"there is no job {lost!r} to wait for on {self._system}")
        return tuple(After(job=ids[key], condition=_CONDITIONS[condition]) for key, condition in keys)

    def _key_of(self, handle: Handle) -> str:
        job = self._host.ledger.get(handle.run).job
        return job.key if job is not None else ""

    # Members of a batch

    def _submit_members(self, folder: Path, members: Sequence[Member], after: tuple[After, ...]) -> list[str]:
        """Submit members as job arrays, those that need the same as one, and return the ids of those submitted."""
        batch = Batch.read(folder)
        spec = RunSpec.model_validate(batch.shared.spec.to_dict())
        packing = self._packing
        number = len(list(read_tasks(folder)))
        room = None if packing.queued is None else packing.queued - self._in_queue(folder)
        taken: list[str] = []
        for resources, group in _by_resources([each.number for each in members], batch, spec):
            resources = self._with_time(resources, spec, [batch.member(each) for each in group])
            needs, size = self._needs(resources, packing.pack or self._packed(spec, len(group)))
            tasks = [group[at : at + size] for at in range(0, len(group), size)]
            if room is not None:
                tasks, room = tasks[: max(room, 0)], room - len(tasks)
            if tasks:
                number += 1
                self._submit_array(Frozen(folder, spec, {}), number, tasks, needs, after)
                taken += [batch.member(each)["id"] for task in tasks for each in task]
        return taken

    def _submit_array(
        self,
        frozen: Frozen,
        number: int,
        tasks: Sequence[Sequence[int]],
        needs: Mapping[str, Any],
        after: tuple[After, ...],
    ) -> None:
        key = f"{frozen.folder.name}-{number}"
        file = write_tasks(frozen.folder, number, key, self._system, tasks)
        words = ["-m", WORKER, str(frozen.folder), "--tasks", file]
        words += ["--at-once", str(self._packing.slots)] if self._packing.slots > 1 else []
        try:
            asked: dict[str, Any] = {"at_once": self._packing.at_once, "resources": needs, "after": after}
            self.submitted.append(self._arrays.submit(frozen, words, len(tasks), key, **asked))
        except FairmileError as error:
            # After a lost connection it may have arrived, and then needs the file.
            if not isinstance(error, Transient) and self._arrays.get(key) is None:
                (frozen.folder / file).unlink(missing_ok=True)
            raise

    def _submit_loops(self, folder: Path, loops: Sequence[Loop], after: tuple[After, ...]) -> str:
        """Submit loops as one job array, and return its key."""
        number = len(list(read_tasks(folder))) + 1
        key = f"{folder.name}-{number}"
        file = write_tasks(folder, number, key, self._system, [[] for _ in loops])
        words = ["-m", loops[0].module, str(folder), "--job", key, *loops[0].arguments]
        spec = RunSpec.model_validate(Batch.read(folder).shared.spec.to_dict())
        if loops[0].launch:
            spec = spec.model_copy(update={"launch": loops[0].launch})
        try:
            self.submitted.append(self._arrays.submit(Frozen(folder, spec, {}), words, len(loops), key, after=after))
        except FairmileError as error:
            if not isinstance(error, Transient) and self._arrays.get(key) is None:
                (folder / file).unlink(missing_ok=True)
            raise
        return key

    def _in_queue(self, folder: Path) -> int:
        """Return how many tasks of a batch wait or run."""
        return sum(len(array.left) for array in live_arrays(folder, self._arrays))

    def _packed(self, spec: RunSpec, count: int) -> int:
        """Return how many members a task should execute, by what those of the batch took, or runs of that name."""
        ledger = self._host.ledger
        rows = ledger.rows(group=spec.group, states=[RunState.DONE]) if spec.group else []
        rows = rows or ledger.rows(name=spec.name, states=[RunState.DONE], limit=_HISTORY)
        took = [row.elapsed_s for row in rows if row.elapsed_s is not None]
        return max(1, min(count, int(_PACK_S / max(fmean(took), 0.1)))) if took else 1

    def _with_time(
        self, resources: Mapping[str, Any], spec: RunSpec, members: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Return what members need, where nobody asked for a time with what earlier runs let expect of the longest."""
        history = self._host.ledger.history(spec.name) if resources.get("time_s") is None else []
        if not history:
            return resources
        params = most_steps(each["spec"].get("params", spec.params) for each in members)
        longest = spec.model_copy(update={"params": params, "resources": Resources.model_validate(resources)})
        timed, _ = with_time(longest, history, self._host.jobs)
        return timed.resources.model_dump(mode="json", exclude_defaults=True)

    def _needs(self, resources: Mapping[str, Any], size: int) -> tuple[dict[str, Any], int]:
        """Return what a task of so many members asks for, and how many it can have within the time a job may take."""
        needs, slots = dict(resources), self._packing.slots
        if slots > 1:
            needs["cpus_per_task"] = (needs.get("cpus_per_task") or 1) * slots
        member_s = needs.get("time_s")
        if member_s is not None:
            limit_s = self._arrays.limit_s(self._system, needs.get("partition", ""))
            if limit_s is not None:
                size = max(1, min(size, slots * int(limit_s // member_s)))
            needs["time_s"] = member_s * math.ceil(size / slots)
        return needs, size

    # Where they stand

    def _print(self, handles: Collection[Handle], echo: BinaryIO) -> None:
        """Pass on what runs of their own print, one after the other, each until its end."""
        jobs = self._host.jobs()
        for handle in handles:
            run = self._host.collect(handle.run) if handle.batch is None else None
            job = jobs.find(run.job.key) if run is not None and run.job is not None and not run.state.is_end else None
            for piece in jobs.follow(job.id) if job is not None else ():
                echo.write(piece)
                echo.flush()

    def _news(self, handles: Collection[Handle]) -> list[TaskStatus]:
        known: list[TaskStatus] = []
        batches: dict[Path, dict[str, Handle]] = {}
        own_runs = [handle.run for handle in handles if handle.batch is None]
        records = [self._host.ledger.get(run) for run in own_runs]
        live = [run.job.key for run in records if run.job is not None and run.result is None]
        jobs = self._host.jobs().find_all(live) if live else {}
        known += [status_of(self._host.collect(run, jobs)) for run in own_runs]
        self.trouble = next((each.reason for each in known if not each.is_over and each.reason), "")
        for handle in handles:
            if handle.batch is not None:
                batches.setdefault(handle.batch, {})[handle.run] = handle
        for folder, own in batches.items():
            loops = [handle for handle in own.values() if "/" in handle.run]
            known += self._loop_statuses(loops)
            if len(loops) < len(own):
                statuses = member_statuses(folder, self._host, lambda: self._arrays)
                known += [_status(own[each.id], each) for each in statuses if each.id in own]
        news = [status for status in known if self._states.get(status.handle) is not status.state]
        self._states |= {status.handle: status.state for status in news}
        return news

    def _loop_statuses(self, handles: Iterable[Handle]) -> Iterator[TaskStatus]:
        for handle in handles:
            key, _, index = handle.run.rpartition("/")
            array = self._arrays.get(key)
            is_over = array is None or array.is_over or int(index) in array.ended
            yield TaskStatus(handle, RunState.DONE if is_over else RunState.RUNNING)


def _status(handle: Handle, member: MemberStatus) -> TaskStatus:
    if member.is_queued:
        return TaskStatus(handle, RunState.QUEUED)
    if member.row is None:
        return TaskStatus(handle, RunState.CANCELLED, "its job ended before the run started")
    return TaskStatus(handle, member.row.state, member.row.reason)


def _last_arrays(folder: Path) -> dict[str, str]:
    """Return the keys of the job arrays that execute members of a batch, of each the last one, by the ids of runs."""
    batch = Batch.read(folder)
    ids = [member["id"] for member in batch.members()]
    return {ids[number]: listed["key"] for listed in read_tasks(folder) for task in listed["tasks"] for number in task}


def _by_resources(numbers: Sequence[int], batch: Batch, spec: RunSpec) -> list[tuple[Mapping[str, Any], list[int]]]:
    """Return members by what they need: those that need the same go into one job array."""
    shared = spec.resources.model_dump(mode="json", exclude_defaults=True)
    groups: dict[str, tuple[Mapping[str, Any], list[int]]] = {}
    for number in numbers:
        needs = batch.member(number)["spec"].get("resources", shared)
        groups.setdefault(json.dumps(needs, sort_keys=True), (needs, []))[1].append(number)
    return list(groups.values())
