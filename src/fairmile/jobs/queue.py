"""Jobs carried through: submitted once, followed politely, cancelled, tried again where that makes sense."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairmile.base.commands import Here, MissingProgram
from fairmile.base.errors import (
    Conflict,
    DiskFailure,
    FairmileError,
    NotFound,
    SystemFailure,
    Transient,
    Unsupported,
    UsageError,
)
from fairmile.base.files import safe_join
from fairmile.base.nouns import Noun
from fairmile.base.paths import AnyPath
from fairmile.base.registry import Plugin, Registry
from fairmile.base.views import describe_left_behind, show_folder
from fairmile.jobs.diagnosis import Diagnosis, diagnose
from fairmile.jobs.job_status import (
    CopiedFiles,
    JobDetails,
    JobList,
    JobLog,
    JobPlan,
    JobStatus,
    PackPlan,
    RemovedJobs,
)
from fairmile.jobs.judge import TaskStatus
from fairmile.jobs.machines import Machine, Machines
from fairmile.jobs.packing import packed
from fairmile.jobs.polling import Polling
from fairmile.jobs.records import Known, Record, Records
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.request_rules import make_request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.schedulers.shell import Shell
from fairmile.jobs.script import write_script
from fairmile.jobs.spec import After, JobSpec
from fairmile.jobs.states import Observed, State
from fairmile.jobs.weighing import Weighed, noted_id, with_usage

if TYPE_CHECKING:
    from fairmile.envs.envs import Envs  # which a list of jobs does not need, and takes a fifth of its time
    from fairmile.jobs.certify import Certificate, CertificationPlan, Check
    from fairmile.jobs.spec import Resources

__all__ = ["JobStatus", "Jobs"]

# Whoever submits or lists jobs needs none of this.
_CERTIFICATION: Registry[Callable[..., Any]] = Registry(
    "step of certification",
    {"plan": Plugin("fairmile.jobs.certify:plan"), "run": Plugin("fairmile.jobs.certify:certify")},
)

T = TypeVar("T")

_SCRIPT = "script.sh"
_WORK = "work"  # in the folder of a job that shows another one
# What a job that packs commands has in common with the one it is described by.
_SHARED = (
    *("name", "env", "resources", "software", "preamble", "folder", "shows", "inputs", "outputs"),
    *("after", "signal", "requeue", "retries", "key"),
)
_ASKED = ".asked"
_PATIENCE_S = 60.0
_TAIL_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
# Batch systems are asked for the state of their jobs once in so long, however many there are and whoever asks.
_ASK_EVERY_S = 30.0
_COUNT_FOR_S = 3600.0
# How often notes are looked at: soon at first, then less often; over ssh each look costs a round trip.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 1.0
_FIRST_REMOTE_LOOK_S, _LAST_REMOTE_LOOK_S = 0.25, 5.0


_INTERNAL = "bring_one equipped find find_all left_behind read refresh spec_of"  # for other parts of Fairmile


class Jobs(Noun, internal=_INTERNAL, package=__package__):
    """All jobs of a user, on every system.

    `clock` gives seconds since the epoch, `sleep` waits; a batch system is asked at most once in `ask_every_s`.
    """

    def __init__(
        self,
        root: Path,
        machines: Machines,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        ask_every_s: float = _ASK_EVERY_S,
    ) -> None:
        self.root = root
        self.machines = machines
        self._records = Records(root)
        self._clock = clock
        self._sleep = sleep
        self._polling = Polling(root / _ASKED, clock, ask_every_s)

    # Submitting

    def equipped(self, spec: JobSpec, envs: Envs, environment: str, *, system: str = "laptop") -> JobSpec:
        """Do what `in_environment` does; this name goes in the next version."""
        warnings.warn("Jobs.equipped is now Jobs.in_environment", DeprecationWarning, stacklevel=2)
        return self.in_environment(spec, envs, environment, system=system)

    def in_environment(self, spec: JobSpec, envs: Envs, environment: str, *, system: str = "laptop") -> JobSpec:
        """Return a job that runs in an environment, which must be on the machine that runs the job."""
        if self.machines[system].reach.host:
            raise UsageError(
                f"the environment {environment!r} is on this machine, the job goes to {system}",
                hint=f"build it there, and submit from there: `ssh {self.machines[system].reach.host}`",
            )
        preamble, wrap = envs.preamble(environment), envs.wrap(environment)
        return spec.model_copy(update={"preamble": (*spec.preamble, *preamble), "wrap": (*spec.wrap, *wrap)})

    def pack(
        self, commands: Sequence[Sequence[str]], like: JobSpec, *, at_once: int | None = None, system: str = "laptop"
    ) -> JobStatus:
        """Submit many short commands as one job."""
        shared = {name: getattr(like, name) for name in _SHARED}
        return self.submit(packed(commands, at_once=at_once, wrap=like.wrap, **shared), system=system)

    def plan_pack(self, commands: Sequence[Sequence[str]], like: JobSpec, *, system: str = "laptop") -> PackPlan:
        """Return what `pack` would submit; raise if the system cannot run the job."""
        self.machines[system].script(like)
        return PackPlan(tuple(tuple(each) for each in commands), system)

    def plan(self, spec: JobSpec, *, system: str = "laptop") -> JobPlan:
        """Return the script that `submit` would submit; raise if the system cannot run the job."""
        machine = self.machines[system]
        script = machine.script(spec)
        elsewhere = [f"cannot be submitted from here: {machine.elsewhere}"] if machine.elsewhere else []
        return JobPlan(script.text, (*script.notes, *elsewhere))

    def submit(self, spec: JobSpec, *, system: str = "laptop") -> JobStatus:
        """Submit a job and return at once; a second call with the same `key` returns the same job."""
        machine = self.machines[system]
        spec = _placed(machine.filled(spec), is_remote=bool(machine.reach.host))
        request = make_request(spec, machine.system)  # what the system cannot give is said before anything is made
        machine.refuse_elsewhere()
        for name, source in spec.inputs.items():
            if name not in spec.nearby and not Path(source).exists():
                raise UsageError(f"inputs.{name}: no such file: {source}")
        self._dependencies(spec.after, system)
        record, is_new = self._records.create(spec, system, self._clock())
        if is_new and not spec.key:
            record = self._hand_over(record, machine, request)
        elif not record.submitted:
            record = self._hand_over_once(record, machine, request, is_new=is_new)
        return self._status(record, Known(TaskStatus(State.QUEUED)))

    def left_behind(self, spec: JobSpec, *, system: str = "laptop") -> str:
        """Return which files of the current folder a job on another machine will not see; empty if it sees all."""
        if not spec.shows or spec.folder or not self.machines[system].reach.host:
            return ""
        return describe_left_behind(Path(spec.shows), [os.path.abspath(source) for source in spec.inputs.values()])

    def _hand_over_once(self, record: Record, machine: Machine, request: Request, *, is_new: bool = False) -> Record:
        """Submit a job's next attempt unless somebody else did, or does so at this moment."""
        with self._records.turn(record, timeout_s=3 * _PATIENCE_S):
            now = self._records.get(record.id)
            if now.submitted == record.submitted and not is_new:
                now = self._find_again(now, machine)  # whoever was first may never have heard whether it arrived
            if now.submitted == record.submitted:
                if record.submitted:
                    machine.place.forget(record.id, keep_parts=record.spec.parts is not None)
                now = self._hand_over(now, machine, request)
            return now

    def _hand_over(self, record: Record, machine: Machine, request: Request) -> Record:
        """Submit a job's next attempt; an answer that was lost on the way is looked for."""
        try:
            files = self._prepare(record, machine, request)
        except FairmileError:
            if not record.submitted:
                self._records.remove(record)
            raise
        try:
            scheduler_id = self._start(machine, files)
        except MissingProgram as error:
            self._discard(record, machine)
            raise MissingProgram(
                f"{record.system} cannot be used from here: {error}",
                hint=f"submit there, or name its ssh host with the setting systems.{record.system}.host",
            ) from error
        except (Transient, SystemFailure) as error:
            arrived = self._search(machine, record, error)
            if arrived is None:
                self._discard(record, machine)
                raise
            scheduler_id = arrived
        except FairmileError:
            self._discard(record, machine)
            raise
        ends_with_power = _own_processes(machine) is not None
        return self._records.note_submission(record, scheduler_id, self._clock(), ends_with_power=ends_with_power)

    def _prepare(self, record: Record, machine: Machine, request: Request) -> JobFiles:
        """Put the script of a job, and all that goes with it, where the machine finds it."""
        spec = record.spec
        after = self._dependencies(spec.after, record.system)
        folder = f"{machine.place.root}/{record.id}"
        is_array, inside = spec.array is not None, _inside(spec)
        files = JobFiles(
            folder,
            spec.folder or f"{folder}/{inside}".rstrip("/"),
            stdout="out.{index}.log" if is_array else "out.log",
            stderr="err.{index}.log" if is_array else "err.log",
            key=record.key,
            after=tuple((other.scheduler_id, each.condition) for each, other in after),
            after_folders=tuple(f"{machine.place.root}/{other.id}" for _, other in after),
            after_tasks=tuple(other.spec.array.count if other.spec.array else 0 for _, other in after),
        )
        text = write_script(request, files, machine.scheduler, machine.system)
        inputs = {} if record.submitted else {inside + name: Path(source) for name, source in spec.inputs.items()}
        near = {inside + name: each for name, each in spec.nearby.items()}
        made = machine.place.make(record.id, {**spec.texts, _SCRIPT: text}, inputs, near)
        if inside and not record.submitted:
            show_folder(Path(spec.shows), Path(made, inside), outputs=spec.outputs)
        return files

    def _start(self, machine: Machine, files: JobFiles) -> str:
        """Hand a script over and return the scheduler's id; a process of this machine needs no shell to start it."""
        script = f"{files.folder}/{_SCRIPT}"
        if (own := _own_processes(machine)) is not None:
            runner, shell = own
            return shell.id_of(runner.start(shell.argv(script), cwd=files.folder, without=shell.unset))
        return self._run(machine, machine.scheduler.submit(script, files))

    def _discard(self, record: Record, machine: Machine) -> None:
        """Remove what was made for a job that the scheduler does not have; a later attempt leaves the job as it is."""
        if not record.submitted:
            machine.place.remove(record.id)
            self._records.remove(record)

    def _search(self, machine: Machine, record: Record, error: FairmileError) -> str | None:
        """Ask whether a submission without an answer arrived; where nobody answers, keep the question for later."""
        try:
            return self._run(machine, machine.scheduler.find(record.key))
        except FairmileError:
            message = f"{error}; it may or may not have arrived"
            self._records.remember(record, Known(TaskStatus(State.UNKNOWN, message), trouble=message))
            raise Transient(
                f"job {record.id} was submitted, but {record.system} did not confirm it: {error}",
                hint=f"`fairmile job show {record.id}` asks again; it will not be submitted twice",
            ) from error

    def _find_again(self, record: Record, machine: Machine) -> Record:
        """Look for a submission whose answer was lost; the record is as it was where there is none."""
        notes = machine.place.look([record.id]).get(record.id, {})
        # A job that has started noted its id; one that has not is still in the scheduler's list.
        scheduler_id = noted_id(notes, record.submitted) or self._run(machine, machine.scheduler.find(record.key))
        return record if scheduler_id is None else self._records.note_submission(record, scheduler_id, self._clock())

    def _dependencies(self, after: Sequence[After], system: str) -> list[tuple[After, Record]]:
        """Return the jobs that are still to be waited for; raise for one that can no longer end as wanted."""
        others = [self._records.get(each.job) for each in after]
        for other in others:
            if other.system != system:
                raise UsageError(
                    f"after: job {other.id} runs on {other.system}, this one on {system}",
                    hint="a job can wait only for jobs of its own system",
                )
        pending = []
        # A scheduler takes a job that it has forgotten for one that went well.
        for each, other, status in zip(after, others, self.refresh(others), strict=True):
            if not status.is_over:
                pending.append((each, other))
                continue
            has_failed = status.state is not State.DONE
            if each.condition != "any" and has_failed != (each.condition == "failed"):
                raise UsageError(f"after: job {other.id} has ended already: {status.state}")
        return pending

    # Looking

    def get(self, reference: str) -> JobStatus:
        """Return the current status of a job."""
        return self.refresh([self._records.get(reference)])[0]

    def show(self, reference: str) -> JobDetails:
        """Return the current status of a job and, if it failed, why."""
        job = self.get(reference)
        return JobDetails(job, self._diagnosis(job))

    def id_of(self, key: str) -> str:
        """Return the id of the job submitted with a key, or an empty string; no system is asked."""
        record = self._records.with_key(key)
        return "" if record is None else record.id

    def spec_of(self, key: str) -> JobSpec | None:
        """Return the specification of the job submitted with a key; None if there is none."""
        record = self._records.with_key(key)
        return None if record is None else record.spec

    def find(self, key: str) -> JobStatus | None:
        """Return the status of the job submitted with a key; None if there is none."""
        record = self._records.with_key(key)
        return None if record is None else self.refresh([record])[0]

    def find_all(self, keys: Iterable[str]) -> dict[str, JobStatus | None]:
        """Return the status of the jobs submitted with some keys; each system is looked at once."""
        records = {key: self._records.with_key(key) for key in keys}
        known = [record for record in records.values() if record is not None]
        statuses = {status.id: status for status in self.refresh(known)}
        return {key: None if record is None else statuses[record.id] for key, record in records.items()}

    def ls(self, *, live: bool = False) -> JobList:
        """Return all jobs, newest first; with `live`, only unfinished ones."""
        records, damaged = [], []
        for id in self._records.ids():
            try:
                records.append(self._records.get(id))
            except NotFound:  # removed by somebody meanwhile
                continue
            except SystemFailure as error:
                damaged.append(_damaged(id, self.root / id, error))
        jobs = sorted([*self.refresh(records), *damaged], key=lambda job: job.created, reverse=True)
        return JobList(job for job in jobs if not (live and job.is_over))

    def refresh(self, records: Iterable[Record]) -> list[JobStatus]:
        """Update the status of jobs from their folders, then with one query per scheduler."""
        records = list(records)
        by_system: dict[str, list[tuple[Record, Known | None]]] = {}
        done: dict[str, JobStatus] = {}
        for record in records:
            known = self._records.known(record)
            if known is not None and known.is_over and known.counted and not self._may_try_again(record, known):
                done[record.id] = self._status(record, known)
            else:
                by_system.setdefault(record.system, []).append((record, known))
        for system, live in by_system.items():
            for status in self._refresh_system(system, live):
                done[status.id] = status
        return [done[record.id] for record in records]

    def _refresh_system(self, system: str, live: list[tuple[Record, Known | None]]) -> list[JobStatus]:
        try:
            machine = self.machines[system]
            notes = machine.place.look([record.id for record, _ in live])
        except (Transient, SystemFailure, NotFound) as error:
            return [self._troubled(record, known, str(error)) for record, known in live]
        if any(not record.submitted for record, _ in live) and self._polling.may_ask(machine):
            live = [self._looked_for(record, known, machine) for record, known in live]
        weighed = [Weighed(record, known, notes.get(record.id, {}), machine.has_scheduler) for record, known in live]
        unclear = [each for each in weighed if each.wants_word and each.record.submitted]
        if unclear and self._polling.may_ask(machine):
            self._ask(machine, unclear)
            # Whoever is on no list, or has ended by the scheduler's word, may have noted its end since we looked.
            gone = {each.record.id: each for each in unclear if each.missing_since is not None or not each.wants_word}
            try:
                looked = machine.place.look(list(gone)) if gone else {}
            except (Transient, SystemFailure) as error:
                return [self._troubled(record, known, str(error)) for record, known in live]
            for id, notes_now in looked.items():
                gone[id].see(notes_now)
        settled = [self._settle(each, machine) for each in weighed]
        return [self._status(record, known) for record, known in self._count(machine, settled)]

    def _looked_for(self, record: Record, known: Known | None, machine: Machine) -> tuple[Record, Known | None]:
        is_under_way = known is None and self._clock() - record.created < 2 * _PATIENCE_S
        if record.submitted or is_under_way:
            return record, known
        try:
            record = self._find_again(record, machine)
        except FairmileError:
            return record, known
        never = Known(TaskStatus(State.FAILED, "the scheduler never received it"), counted=True)
        return record, None if record.submitted else self._remember(record, never, machine)

    def _ask(self, machine: Machine, unclear: list[Weighed]) -> None:
        """Ask the scheduler once about many jobs, and its accounting about those it no longer lists."""
        ids = [each.record.scheduler_id for each in unclear]
        commands = 1
        try:
            listed = self._run(machine, machine.scheduler.status(ids))
            absent = [each.record.scheduler_id for each in unclear if each.is_missing_from(listed)]
            past: dict[str, Observed] = {}
            question = machine.scheduler.history(absent) if absent and self._polling.keeps_history(machine) else None
            if question is not None:
                commands += 1
                try:
                    past = self._run(machine, question)
                except Unsupported:
                    self._polling.asked(machine, commands, history=False)
        except (Transient, SystemFailure) as error:
            for each in unclear:
                each.trouble = str(error)
            self._polling.asked(machine, commands, failed=True)
            return
        now = self._clock()
        for each in unclear:
            each.hear(listed, past, now)
        self._polling.asked(machine, commands)

    def _count(self, machine: Machine, settled: list[tuple[Record, Known]]) -> list[tuple[Record, Known]]:
        """Ask the accounting once what jobs that ended have used."""
        uncounted = [record for record, known in settled if known.is_over and not known.counted and record.submitted]
        if not uncounted:
            return settled
        past: dict[str, Observed] | None = None
        question = None
        if self._polling.keeps_history(machine):
            if not self._polling.may_ask(machine):
                return settled
            question = machine.scheduler.history([record.scheduler_id for record in uncounted])
        if question is not None:
            try:
                past = self._run(machine, question)
                self._polling.asked(machine, 1)
            except Unsupported:
                self._polling.asked(machine, 1, history=False)
            except (Transient, SystemFailure):
                self._polling.asked(machine, 1, failed=True)
                return settled
        now = self._clock()
        return [
            (record, self._counted(record, known, past, now, machine) if record in uncounted else known)
            for record, known in settled
        ]

    def _counted(
        self, record: Record, known: Known, past: dict[str, Observed] | None, now: float, machine: Machine
    ) -> Known:
        """Return the status with what was counted; the accounting may lag, and is asked again for a while."""
        counted = known if past is None else with_usage(known, record.scheduler_id, past)
        is_late = now - (known.status.ended or record.created) > _COUNT_FOR_S
        counted = replace(counted, counted=past is None or is_late or counted != known)
        return self._remember(record, counted, machine) if counted != known else counted

    def _remember(self, record: Record, known: Known, machine: Machine) -> Known:
        """Keep the status of a job; where the disk refuses, it can be found out again and is told all the same."""
        try:
            self._records.remember(record, known, ends_with_power=_own_processes(machine) is not None)
        except DiskFailure as error:
            return replace(known, trouble=str(error))
        return known

    def _settle(self, each: Weighed, machine: Machine) -> tuple[Record, Known]:
        """Keep what was found out; submit once more where the failure may pass."""
        known = each.verdict()
        if known.is_over and not machine.system.scheduler.accounting:
            known = replace(known, counted=True)  # nobody will ever say more
        if known != each.known:
            known = self._remember(each.record, known, machine)
        if known.is_over and self._may_try_again(each.record, known):
            return self._try_again(each.record, machine, known.status.sentence)
        return each.record, known

    def _try_again(self, record: Record, machine: Machine, why: str) -> tuple[Record, Known]:
        waiting = Known(TaskStatus(State.QUEUED, f"will be submitted again: {why}"))
        if not self._polling.may_ask(machine):
            return record, waiting
        try:
            record = self._hand_over_once(record, machine, make_request(record.spec, machine.system))
        except FairmileError as error:
            self._polling.asked(machine, 1, failed=True)
            return record, replace(waiting, trouble=str(error))
        return record, self._remember(record, Known(TaskStatus(State.QUEUED, f"submitted again: {why}")), machine)

    @staticmethod
    def _may_try_again(record: Record, known: Known) -> bool:
        is_passing = known.status.state.is_transient and not record.cancelled
        return is_passing and 0 < len(record.submitted) <= record.spec.retries

    def _troubled(self, record: Record, known: Known | None, trouble: str) -> JobStatus:
        known = known or Known(TaskStatus(State.UNKNOWN, "not asked yet"))
        return self._status(record, replace(known, trouble=trouble))

    def _status(self, record: Record, known: Known) -> JobStatus:
        return JobStatus(
            record.id,
            record.spec.name,
            record.system,
            record.scheduler_id,
            record.created,
            len(record.submitted),
            str(record.folder),
            known.status,
            known.tasks,
            known.trouble,
        )

    def _run(self, machine: Machine, question: Question[T]) -> T:
        result = machine.runner.run(question.argv, input=question.input, timeout_s=_PATIENCE_S, check=False)
        return question.read(result)

    # Waiting, ending, reading

    def wait(self, references: Sequence[str], *, timeout_s: float | None = None) -> JobList:
        """Wait until jobs have ended, or until a timeout, and return their status."""
        deadline = self._clock() + timeout_s if timeout_s is not None else float("inf")
        records = [self._records.get(reference) for reference in references]
        ids = [record.id for record in records]
        over: dict[str, JobStatus] = {}
        pauses = self._pauses(records)
        while True:
            for job in self.refresh(records):
                if job.is_over:
                    over[job.id] = job
            now = self._clock()
            if len(over) == len(set(ids)) or now >= deadline:
                return JobList(over.get(id) or self.get(id) for id in ids)
            self._sleep(min(next(pauses), deadline - now))
            records = [self._records.get(id) for id in ids if id not in over]

    def _pauses(self, records: Iterable[Record]) -> Iterator[float]:
        """Yield how long to wait before each further look at jobs."""
        is_remote = any(self.machines[record.system].reach.host for record in records)
        pause_s, last_s = (_FIRST_REMOTE_LOOK_S, _LAST_REMOTE_LOOK_S) if is_remote else (_FIRST_LOOK_S, _LAST_LOOK_S)
        while True:
            yield pause_s
            pause_s = min(pause_s * 1.3, last_s)

    def cancel(self, references: Sequence[str], *, dry_run: bool = False) -> JobList:
        """Cancel jobs and return their status; ended jobs stay as they are."""
        records = [self._records.get(reference) for reference in references]
        if dry_run:
            return JobList(self.refresh(records))
        live = [job.id for job in self.refresh(records) if not job.is_over]
        by_system: dict[str, list[Record]] = {}
        for record in records:
            if record.id in live:
                by_system.setdefault(record.system, []).append(self._records.note_cancel(record))
        for system, group in by_system.items():
            machine = self.machines[system]
            ids = [record.scheduler_id for record in group if record.submitted]
            if ids:
                self._run(machine, machine.scheduler.cancel(ids))
        return JobList(self.refresh([self._records.get(record.id) for record in records]))

    def log(self, reference: str, *, task: int | None = None, errors: bool = False, tail: bool = False) -> JobLog:
        """Return the output of a job or of one of its tasks; with `tail`, only the end."""
        record = self._records.get(reference)
        name = record.log_name(task, errors=errors)
        place = self.machines[record.system].place
        if tail:
            return JobLog(place.read(record.id, name, -_TAIL_BYTES, _TAIL_BYTES))
        return JobLog(b"".join(self._pieces(record, name, 0)))

    def follow(self, reference: str, *, task: int | None = None, errors: bool = False) -> Iterator[bytes]:
        """Yield the output of a job as it comes, until the job has ended."""
        record = self._records.get(reference)
        name = record.log_name(task, errors=errors)
        pauses = self._pauses([record])
        offset = 0
        while True:
            is_over = self.get(record.id).is_over
            try:
                for piece in self._pieces(record, name, offset):
                    offset += len(piece)
                    yield piece
                    pauses = self._pauses([record])
                if is_over:
                    return
            except Transient:
                pass  # a connection that broke is made again
            self._sleep(next(pauses))

    def _pieces(self, record: Record, name: str, offset: int) -> Iterator[bytes]:
        place = self.machines[record.system].place
        while piece := place.read(record.id, name, offset, _PIECE_BYTES):
            offset += len(piece)
            yield piece

    def explain(self, reference: str) -> Diagnosis | None:
        """Return why a job failed and what to do about it; None if it did not fail."""
        return self._diagnosis(self.get(reference))

    def _diagnosis(self, job: JobStatus) -> Diagnosis | None:
        if not job.is_over or job.state is State.DONE:
            return None
        task = next((index for index, each in sorted(job.tasks.items()) if each.state is not State.DONE), None)
        status = job.status if task is None else job.tasks[task]
        output = ""
        with contextlib.suppress(FairmileError):
            for errors in (False, True):
                output += self.log(job.id, task=task, errors=errors, tail=True).decode(errors="replace")
        return diagnose(status, output, self._records.get(job.id).spec)

    def bring(self, reference: str, to: AnyPath, *, dry_run: bool = False) -> CopiedFiles:
        """Copy the declared outputs of a job into a folder and return their paths."""
        record = self._records.get(reference)
        place = self.machines[record.system].place
        copied = CopiedFiles()
        for name in record.spec.outputs:
            target = safe_join(Path(to), name)
            if not dry_run:
                place.bring(record.id, _inside(record.spec) + name, target)
            copied.append(target)
        return copied

    def bring_one(self, reference: str, name: str, target: Path) -> None:
        """Copy a file that a job left in its folder, declared or not, to a place here."""
        record = self._records.get(reference)
        self.machines[record.system].place.bring(record.id, _inside(record.spec) + name, target)

    def read(self, reference: str, name: str, *, most_bytes: int = 1) -> bytes:
        """Return the beginning of a file in the folder of a job; nothing where there is none."""
        record = self._records.get(reference)
        return self.machines[record.system].place.read(record.id, _inside(record.spec) + name, 0, most_bytes)

    def rm(self, references: Sequence[str], *, dry_run: bool = False) -> RemovedJobs:
        """Remove ended jobs and their folders, here and on their systems, and return their ids."""
        records, damaged = [], []
        for reference in references:
            try:
                records.append(self._records.get(reference))
            except SystemFailure:
                damaged.append(reference)
        for job in self.refresh(records):
            if not job.is_over and job.scheduler_id:
                raise Conflict(f"job {job.id} is {job.state}", hint=f"`fairmile job cancel {job.id}` ends it")
        removed = RemovedJobs([*(record.id for record in records), *damaged])
        if dry_run:
            return removed
        for record in records:
            try:
                self.machines[record.system].place.remove(record.id)
            except FairmileError:
                if record.submitted:  # else there is nothing over there
                    raise
            self._records.remove(record)
        for id in damaged:  # nothing but its folder is left to remove
            self._records.discard(id)
        return removed

    # Certifying

    def plan_certification(
        self, name: str, *, software: Sequence[str] | None = None, resources: Resources | None = None
    ) -> CertificationPlan:
        """Return the checks that `certify` would run."""
        plan: CertificationPlan = _CERTIFICATION["plan"](self, name, software=software, resources=resources)
        return plan

    def certify(
        self,
        name: str,
        *,
        software: Sequence[str] | None = None,
        resources: Resources | None = None,
        patience_s: float = 4 * 3600.0,
        watch: Callable[[Check], None] = lambda check: None,
    ) -> Certificate:
        """Run a short suite of jobs on a system and keep the record beside the user's systems.

        None for `software` means all of the system. `watch` gets each check when its outcome is known.
        """
        options = {"software": software, "resources": resources, "patience_s": patience_s, "watch": watch}
        certificate: Certificate = _CERTIFICATION["run"](self, name, **options)
        return certificate.keep(self.machines.own_folder / "certificates")


def _own_processes(machine: Machine) -> tuple[Here, Shell] | None:
    """Return what starts jobs that are processes of this machine, and end with its power; None where jobs are not."""
    runner, scheduler = machine.runner, machine.scheduler
    return (runner, scheduler) if isinstance(runner, Here) and isinstance(scheduler, Shell) else None


def _placed(spec: JobSpec, *, is_remote: bool) -> JobSpec:
    """Return the job with a folder that means the same to whoever reads it; elsewhere it can show none of this one."""
    if spec.shows:
        spec = spec.model_copy(update={"shows": "" if is_remote or spec.folder else os.path.abspath(spec.shows)})
    if not spec.folder or spec.folder.startswith("/"):
        return spec
    if is_remote:
        raise UsageError(f"folder: {spec.folder!r} is a relative path, which has no meaning on another machine")
    return spec.model_copy(update={"folder": os.path.abspath(spec.folder)})


def _inside(spec: JobSpec) -> str:
    """Return where in the folder of a job its program works, as the start of a path."""
    return f"{_WORK}/" if spec.shows else ""


def _damaged(id: str, folder: Path, error: SystemFailure) -> JobStatus:
    status = TaskStatus(State.UNKNOWN, "its record cannot be read")
    return JobStatus(id, "", "", "", 0.0, 0, str(folder), status, {}, str(error))
