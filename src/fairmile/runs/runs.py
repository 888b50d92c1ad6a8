"""Runs: from a plan to a record. Prepare, execute here or on a system, collect, go on."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairmile.base.errors import Conflict, FairmileError, NotFound, Transient, UsageError
from fairmile.base.files import written_aside
from fairmile.base.lazy import lazy
from fairmile.base.nouns import Noun
from fairmile.base.signals import AskedToEnd
from fairmile.jobs.states import State
from fairmile.meter.lines import FILE
from fairmile.meter.meter import Meter
from fairmile.runs.execute import capture
from fairmile.runs.execute.claims import is_claimed
from fairmile.runs.execute.executor import After, Executor, Graph, Handle, PreparedRun, Task, Work
from fairmile.runs.execute.executors import Executors
from fairmile.runs.execute.program import Ending
from fairmile.runs.execute.recorder import begin, finish
from fairmile.runs.parameters import first_seed
from fairmile.runs.plan import RunPlan, Step
from fairmile.runs.planner import Planner
from fairmile.runs.record.commands import local_command, recorded_spec
from fairmile.runs.record.layout import OUTPUT, WORK_THERE, open_arrays
from fairmile.runs.record.ledger import Changes, RunRows
from fairmile.runs.record.record import Captured, RecordedSpec, RunRecord, RunResult
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import Value
from fairmile.runs.rerun import Rerun, rerun_identity, verdicts
from fairmile.runs.results import (
    CancelledRuns,
    ImportedRuns,
    Projection,
    RunDetails,
    RunList,
    RunOutput,
)
from fairmile.runs.reuse import Candidate, find_reusable, forget_files
from fairmile.runs.review import refuse_unseen

if TYPE_CHECKING:
    from zipfile import ZipFile

    from fairmile.jobs.diagnosis import Diagnosis, diagnose
    from fairmile.jobs.judge import TaskStatus
    from fairmile.jobs.queue import JobStatus
    from fairmile.jobs.spec import JobSpec, Nearby
    from fairmile.runs.execute.batches import Frozen
    from fairmile.runs.execute.freezing import freeze
    from fairmile.runs.execute.isolation import isolated_environment
    from fairmile.runs.execute.job_arrays import Arrays
    from fairmile.runs.interchange import export_run, import_runs, upload_run
    from fairmile.runs.projection import project, walltime
    from fairmile.runs.record.spec import MetricSpec, RunSpec
else:
    ZipFile = lazy("zipfile:ZipFile")
    diagnose = lazy("fairmile.jobs.diagnosis:diagnose")
    TaskStatus = lazy("fairmile.jobs.judge:TaskStatus")
    isolated_environment = lazy("fairmile.runs.execute.isolation:isolated_environment")
    freeze = lazy("fairmile.runs.execute.freezing:freeze")
    export_run = lazy("fairmile.runs.interchange:export_run")
    import_runs = lazy("fairmile.runs.interchange:import_runs")
    upload_run = lazy("fairmile.runs.interchange:upload_run")
    Arrays = lazy("fairmile.runs.execute.job_arrays:Arrays")
    project = lazy("fairmile.runs.projection:project")
    walltime = lazy("fairmile.runs.projection:walltime")
    JobSpec = lazy("fairmile.jobs.spec:JobSpec")
    Nearby = lazy("fairmile.jobs.spec:Nearby")
    RunSpec = lazy("fairmile.runs.record.spec:RunSpec")

_TAIL_BYTES = 64 << 10


class Recording:
    """A run that is this very program: what it logs goes into its record."""

    def __init__(self, folder: Path, id: str) -> None:
        self.folder = folder
        self.id = id
        self.meter = Meter(folder / FILE)

    def log(self, *, step: float | None = None, **metrics: float) -> None:
        """Keep values of metrics."""
        self.meter.log(step=step, **metrics)


_INTERNAL = (  # for other parts of Fairmile
    "adopt alike arrays at_once bring_output capture check_needs collect counts create executors find freeze "
    "has_output history is_orphaned is_remote mean_elapsed output_there page prepare prepare_captured remember "
    "resolve_spec resumable rows state_of with_jobs write"
)


class Runs(Planner, Noun, internal=_INTERNAL, package=__package__):
    """All runs of a workspace, and calls that start new ones."""

    # Execute

    def run(
        self,
        what: str | Sequence[str] | RunSpec,
        dataset: str = "",
        *,
        again: bool = True,
        echo: BinaryIO | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
        **changes: Any,
    ) -> Run:
        """Execute a name, a file, a command or a specification and return its record.

        Without `again` the record of an earlier run is returned where the same went in and everything that the
        program could read is covered (see `coverage`), unless a `name` is asked for. On a system the job is submitted,
        and the record tells how far it is: `wait` follows it to its end. A run that is predicted not to fit on its
        device, or that needs hardware or software which is missing, is refused unless `anyway=True`.
        """
        again = again or "name" in changes
        plan = self.plan(what, dataset, **changes)
        return self.execute(plan, again=again, echo=echo, on_step=on_step)

    def repeat(self, count: int, plan: RunPlan, *, echo: BinaryIO | None = None) -> RunList:
        """Execute a plan several times, as one group; cancelling one run cancels the rest.

        The seed counts up from one to the next; a benchmark without one starts at 0.
        """
        if count < 1:
            raise UsageError(f"cannot repeat a run {count} times")
        if plan.refusal is not None:
            raise plan.refusal
        folder = self.create(RunRecord(spec=RecordedSpec(name=plan.spec.name)))
        folder.rmdir()
        group, seed = plan.spec.group or folder.name, first_seed(plan.spec)
        tasks: list[Task] = []
        for number in range(count):
            changes = {"group": group, "seed": None if seed is None else seed + number}
            member = replace(plan, spec=plan.spec.model_copy(update=changes))
            # On a system all of them wait in its queue at the same time.
            after = () if plan.spec.system or not number else (After(str(number - 1), "ended"),)
            tasks.append(Task(str(number), partial(self._prepare_member, member), after))
        return RunList(self._execute(tasks, echo))

    def _prepare_member(self, plan: RunPlan, _: Mapping[str, Run]) -> PreparedRun | Run:
        return self.prepare(plan)

    def execute(
        self,
        plan: RunPlan,
        *,
        again: bool = True,
        echo: BinaryIO | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
        trust: bool = False,
    ) -> Run:
        """Execute a plan as `run` does; a record from somebody else needs `trust`, after reading its review."""
        if plan.review is not None and not trust:
            raise refuse_unseen(plan.review)
        work = self.prepare(plan, again=again, on_step=on_step)
        return work if isinstance(work, Run) else self._execute([Task(work.id, work)], echo)[0]

    def _execute(self, tasks: Sequence[Task], echo: BinaryIO | None) -> list[Run]:
        """Execute tasks and return the runs that began; what a system executes has not ended then."""
        graph = Graph(tasks, Executors(self._host, echo=echo).place)
        try:
            graph.submit()
        except Transient:
            self._forget_unsent(graph.works.values())
            raise
        if any(work.system for work in graph.works.values()):
            return [self.get(handle.run) for handle in graph.handles.values()]
        graph.follow()
        return [graph.collect(task.name) for task in tasks if graph.has_begun(task.name)]

    def _forget_unsent(self, works: Iterable[Work]) -> None:
        """Remove fresh runs whose job never left this machine; one that may have arrived keeps its record."""
        for work in works:
            if isinstance(work, PreparedRun) and not work.record.attempts:
                job = self.get(work.id).job
                if job is not None and self._host.jobs().find(job.key) is None:
                    shutil.rmtree(work.folder, ignore_errors=True)

    def capture(self, plan: RunPlan) -> Captured:
        """Fetch what a run needs and return what goes in, for runs that share it; see `prepare_captured`."""
        spec = self._spec_of(plan)
        needs = plan.needs if plan.needs is not None else self.check_needs(spec)
        return self._preparation.fetch_inputs(plan, needs, spec, local_command(spec))

    def prepare_captured(self, plan: RunPlan, captured: Captured, folder: Path | None = None) -> PreparedRun:
        """Make the folder of a run of which is known what goes in, or take one in which nothing was begun."""
        record = _new_record(plan, recorded_spec(plan.spec), captured)
        if folder is None:
            folder = self.create(record)
        else:
            self.adopt(folder, record)
        return PreparedRun(folder, record, plan.spec)

    def prepare(
        self, plan: RunPlan, *, again: bool = True, on_step: Callable[[Step], None] = lambda _: None
    ) -> PreparedRun | Run:
        """Fetch and capture the inputs of a run and create its folder, or return an earlier run with the same."""
        spec = self._spec_of(plan)
        needs = plan.needs if plan.needs is not None else self.check_needs(spec)
        for step in plan.steps:
            if step.verb in ("fetch", "build"):
                on_step(step)
        argv, stated = local_command(spec), recorded_spec(spec)
        captured = self._preparation.fetch_inputs(plan, needs, spec, argv, stated)
        record = _new_record(plan, stated, captured)
        if not again:
            asked = Candidate(spec, captured, argv, self._environ, self.root)
            reusable = find_reusable(asked, self.alike(record.identity), self._services.store)
            for verb, text in reusable.messages:
                on_step(Step(verb, text))
            if reusable.run is not None:
                return reusable.run
        folder = self.create(record)
        return PreparedRun(folder, record, spec, from_snapshot=plan.original is not None)

    def _spec_of(self, plan: RunPlan) -> RunSpec:
        """Return what is executed of a plan, or raise why it cannot be: no room, or a system that is not here."""
        if plan.refusal is not None:
            raise plan.refusal
        spec = plan.spec
        if spec.system:
            self._services.jobs().machines[spec.system].refuse_elsewhere()
        if plan.container:
            file = isolated_environment(plan.container, spec.inputs, self.root)
            spec = spec.model_copy(update={"environment": file})
        return spec

    def remove(self, references: Iterable[str], *, dry_run: bool = False) -> Changes[str]:
        """Remove ended runs and their stored outputs, and return their ids."""
        removed = super().remove(references, dry_run=dry_run)
        for id in () if dry_run else removed:
            forget_files(self._services.store, id)
        return removed

    @contextlib.contextmanager
    def recording(
        self, name: str, *, params: Mapping[str, Value] | None = None, metrics: Mapping[str, MetricSpec] | None = None
    ) -> Iterator[Recording]:
        """Record a block of code as a run: what it logs, how long it takes and how it ends."""
        spec = RunSpec(name=name, argv=(name,), params=params or {}, metrics=metrics or {}, watch_s=0)
        record = RunRecord(spec=recorded_spec(spec), captured=Captured(agent=capture.agent()), inside=True)
        folder = self.create(record)
        begin(folder, record, self._environ)
        recording = Recording(folder, record.id)
        begins = time.monotonic()
        ending = Ending("done", 0)
        try:
            yield recording
        except KeyboardInterrupt:
            ending = Ending("cancelled", 130, "INT", "it was interrupted")
            raise
        except AskedToEnd as asked:
            ending = Ending(
                "cancelled", 128 + asked.number, asked.number.name.removeprefix("SIG"), "it was asked to end"
            )
            raise
        except BaseException as error:
            ending = Ending("failed", 1, reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            recording.meter.close()
            finish(folder, record, ending, time.monotonic() - begins, {})

    # Many at once

    def freeze(self, plan: RunPlan, folder: Path, *, in_place: bool = False) -> Frozen:
        """Prepare in a folder what many runs share: inputs, environment and a copy of the code.

        Each of them has a folder of its own to work in, which shows that of the specification, unless `in_place` has
        all work in that one.
        """
        return freeze(plan, folder, self._host, self.check_needs, in_place=in_place)

    @property
    def executors(self) -> Executors:
        """Executors of runs: this process, a local pool of processes, and all known systems."""
        return Executors(self._host)

    @property
    def arrays(self) -> Arrays:
        """Job arrays whose tasks execute members of batches."""
        return Arrays(self.root, self._services.jobs(), self._services.envs)

    def refresh(self, on_problem: Callable[[str], None] = lambda _: None) -> list[Run]:
        """Update runs on systems: collect those that ended, and return the status of the others.

        One that cannot be asked, since its system does not answer, stays as it is.
        """
        runs = []
        arrays: dict[str, JobStatus | None] = {}
        for key in open_arrays(self.root):
            try:
                self.arrays.get(key)
            except FairmileError as error:
                on_problem(f"job array {key}: {error}")
        for id in self.with_jobs():
            try:
                runs.append(self.collect(id, arrays))
            except FairmileError as error:
                on_problem(f"run {id}: {error}")
        return runs

    def ls(
        self,
        *,
        name: str = "",
        group: str = "",
        states: Sequence[RunState] = (),
        tag: str = "",
        limit: int | None = None,
    ) -> RunRows:
        """Return runs, newest first, filtered by name, group, state or tag."""
        return self.rows(name=name, group=group, states=states, tag=tag, limit=limit)

    def cancel(self, reference: str) -> Run:
        """Cancel a queued or running run, here or on a system, and return it.

        A point of a sweep that a job array executes, or a trial of a study, is ended by its worker within a second;
        the others go on. A trial cancelled so is not tried again.
        """
        run = self.collect(reference)
        if run.state.is_end:
            raise Conflict(f"run {run.id} is {run.state}", hint="only queued and running runs can be cancelled")
        job = run.job if run.trial is None else None  # a trial is cancelled by its worker, wherever that runs
        executor: Executor = self.executors.on(job.system) if job is not None else self.executors.in_place()
        batch = self.arrays.batch_of(job.key) if job is not None and job.task is not None else None
        executor.cancel([Handle(run.id, batch)])
        return self.collect(run.id)

    def cancel_runs(self, references: Iterable[str], *, dry_run: bool = False) -> CancelledRuns:
        """Cancel several runs; with `dry_run` return those that would be cancelled."""
        if dry_run:
            return CancelledRuns("would cancel", [run for run in map(self.collect, references) if not run.state.is_end])
        return CancelledRuns("cancelled", map(self.cancel, references))

    def show(self, reference: str, *, region: str | None = None, pue: float | None = None) -> RunDetails:
        """Return the current state of a run, with the cost and CO₂ of its energy if the region is known.

        `region` and `pue` replace those of the settings.
        """
        run = self.collect(reference)
        supply = self._services.supply
        region, pue = supply.region if region is None else region, supply.pue if pue is None else pue
        return RunDetails(run, replace(supply, region=region, pue=pue).footprint(run.energy_j, run.period))

    def wait(self, reference: str, *, timeout_s: float | None = None, echo: BinaryIO | None = None) -> Run:
        """Follow a run on a system to its end."""
        run = self.collect(reference)
        if run.job is None or run.result is not None:
            return run
        Executors(self._host, echo=echo).on(run.job.system).wait(Handle(run.id), timeout_s=timeout_s)
        return self.collect(reference)

    def output(self, reference: str) -> RunOutput:
        """Return the output of a run so far."""
        run = self.collect(reference)
        if run.packed:
            with ZipFile(run.folder) as archive:
                return RunOutput(archive.read(OUTPUT) if OUTPUT in archive.namelist() else b"")
        try:
            return RunOutput((run.folder / OUTPUT).read_bytes())
        except FileNotFoundError:
            return RunOutput()

    def bring_output(self, reference: str | Run, name: str, target: Path) -> None:
        """Put a file that a run left in a folder of its own at a place here, from wherever it lies."""
        run = reference if isinstance(reference, Run) else self.get(reference)
        source = run.work / name
        if source.is_file():
            with written_aside(target) as aside:
                shutil.copy2(source, aside)
            return
        there = self.output_there(run, name)
        if there is None:
            raise NotFound(f"the output {name} of run {run.id} is gone")
        self._services.jobs().bring_one(there.job, there.path, target)

    def has_output(self, run: Run, name: str) -> bool:
        """Tell whether an output still lies where a run on a remote system left it."""
        there = self.output_there(run, name)
        size_bytes = run.outputs[name].size_bytes if name in run.outputs else 0
        return there is not None and (not size_bytes or bool(self._services.jobs().read(there.job, there.path)))

    def is_remote(self, system: str) -> bool:
        """Tell whether a system shares no files with this machine."""
        return bool(self._services.jobs().machines[system].reach.host)

    def output_there(self, run: Run, name: str) -> Nearby | None:
        """Return where a run on a remote system leaves an output; None where no job of it is known."""
        job = self._services.jobs().id_of(run.job.key) if run.job is not None else ""
        if not job:
            return None
        path = "/".join(filter(None, (WORK_THERE, run.record.spec.subfolder, name)))
        return Nearby(job=job, path=path, sha256=run.outputs[name].sha256 if name in run.outputs else "")

    # Go on

    def resume(self, reference: str, *, echo: BinaryIO | None = None) -> Run:
        """Resume a run that failed or was interrupted, in its own folder."""
        run = self.resumable(reference)
        if is_claimed(run.folder):
            raise Conflict(f"run {run.id} is being resumed by another process")
        work = PreparedRun(run.folder, run.record, run.spec)
        return self._execute([Task(work.id, work)], echo)[0]

    def rerun(
        self,
        what: str | RunPlan,
        *,
        tolerance: float | None = None,
        echo: BinaryIO | None = None,
        trust: bool = False,
        **changes: Any,
    ) -> Rerun:
        """Repeat a run from its record in a fresh folder, and return what differs.

        `what` is a run, a crate, or what `rerun_plan` returned. A run of somebody else is executed only with `trust`,
        which says that somebody has read its review.
        """
        plan = what if isinstance(what, RunPlan) else self.rerun_plan(what, **changes)
        if plan.review is not None and not trust:
            raise refuse_unseen(plan.review)
        if plan.crate is not None:
            (taken,) = self.import_runs(plan.crate)
            seen, plan = plan.review, self.rerun_plan(taken.id, container=plan.container, **plan.changes)
            if plan.review != seen:
                raise Conflict(f"run {taken.id} has changed since it was reviewed", hint="review it again")
        original = plan.original
        assert original is not None
        again = self.execute(plan, echo=echo, trust=trust)
        if plan.spec.system:
            again = self.wait(again.id, echo=echo)
        return Rerun(original, again, verdicts(original, again, tolerance))

    # Exchange

    def export(
        self,
        reference: str,
        format: str = "rocrate",
        target: str | Path | None = None,
        *,
        with_inputs: bool = False,
        upload: bool = False,
        publish: bool = False,
        dry_run: bool = False,
    ) -> Changes[Any]:
        """Export a run to another format, with its code if the format allows, and return the files.

        Without `target` the file is named after the run. With `upload` it is sent to a server of that platform
        instead, and its address there is returned. On Zenodo it stays a draft unless `publish` is set.
        """
        run = self.collect(reference)
        if upload:
            if target is not None or with_inputs:
                raise UsageError("an upload takes neither a path nor inputs", hint="leave out -o and --with-inputs")
            store, context = self._services.store(), self._services.context()
            sent = upload_run(run, store, format, context, publish=publish, dry_run=dry_run)
            return Changes("would upload" if dry_run else "uploaded", sent)
        if publish:
            raise UsageError("only an upload can be published", hint="add --upload")
        target = Path(target or (f"{run.id}.crate.zip" if format == "rocrate" else f"{run.id}.{format}"))
        if dry_run:
            return Changes("would write", [target])
        if not run.state.is_end:
            raise Conflict(f"run {run.id} is {run.state}", hint="wait until it ends")
        files = export_run(run, self._services.store(), format, target, with_inputs=with_inputs)
        return Changes("wrote", files)

    def import_runs(self, source: Path | str, format: str = "rocrate", *, dry_run: bool = False) -> ImportedRuns:
        """Import runs from a file or folder of another format; runs that are already known stay as they are."""
        runs = import_runs(self, self._services.store, Path(source), format, dry_run=dry_run)
        return ImportedRuns("would import" if dry_run else "imported", runs)

    def project(
        self,
        references: Sequence[str],
        *,
        to: int,
        param: str = "epochs",
        span: str = "epoch",
        limit_s: float | None = None,
    ) -> Projection:
        """Predict from short runs how long `to` steps take, and the time limit to request."""
        chosen = [run for reference in references for run in self.select(reference)]
        projection = project(chosen, to=to, steps_param=param, span=span)
        return replace(projection, walltime_s=walltime(projection, limit_s=limit_s))

    def explain(self, run: Run) -> Diagnosis | None:
        """Return why a run failed and what to do about it, as far as its output shows; None if it did not fail."""
        if run.state in (RunState.DONE, RunState.QUEUED, RunState.RUNNING):
            return None
        states = {RunState.TIMEOUT: State.TIMED_OUT, RunState.CANCELLED: State.CANCELLED}
        result = run.result or RunResult()
        status = TaskStatus(
            states.get(run.state, State.FAILED),
            result.reason,
            result.exit_code,
            result.signal,
        )
        output = self.output(run.id)[-_TAIL_BYTES:].decode(errors="replace")
        diagnosis = diagnose(
            status,
            output,
            JobSpec(argv=run.spec.argv),
            log=f"fairmile runs log {run.id}",
            environment=run.spec.environment,
            in_place=run.job is None,
        )
        # Of a program that never started, the recorder knows more than the missing output.
        is_started = diagnosis.line or result.signal or not run.hint
        return diagnosis if is_started else replace(diagnosis, advice=run.hint)


def _new_record(plan: RunPlan, spec: RecordedSpec, captured: Captured) -> RunRecord:
    """Return the record of a run before it has a folder."""
    identity = ""  # what others state of their code and commands must never answer for a run of one's own
    if plan.review is None and plan.original is None:
        identity = capture.identity(spec, captured)
    elif plan.review is None and plan.original is not None:
        identity = rerun_identity(plan.original, captured)
    return RunRecord(
        spec=spec,
        identity=identity,
        captured=captured,
        prediction=dict(plan.prediction),
        rerun_of=plan.original.id if plan.original is not None else "",
        foreign=plan.review is not None,
        container=plan.container,
    )
