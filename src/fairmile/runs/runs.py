"""Runs: from a name to a record. Plan, prepare, execute here or on a system, collect, go on."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import time
import zipfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from fairmile.base.errors import (
    Conflict,
    FairmileError,
    Locked,
    SystemFailure,
    Transient,
    Unsupported,
    UsageError,
)
from fairmile.base.files import Lock, write_failure
from fairmile.base.units import format_duration
from fairmile.base.views import View
from fairmile.catalog.assets import Assets
from fairmile.catalog.catalog import Catalog
from fairmile.envs.envs import Envs
from fairmile.jobs.diagnosis import Diagnosis, diagnose
from fairmile.jobs.judge import Standing
from fairmile.jobs.queue import Jobs, JobStatus
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State
from fairmile.meter.lines import FILE
from fairmile.meter.meter import Meter
from fairmile.resolve import Nouns, resolve
from fairmile.runs.exchange import EXCHANGES, ImportedRun
from fairmile.runs.execute import capture, carrier
from fairmile.runs.execute.batches import Frozen, write_frozen
from fairmile.runs.execute.isolation import isolated_environment
from fairmile.runs.execute.job_arrays import Arrays
from fairmile.runs.execute.materials import Material, plan_materials
from fairmile.runs.execute.preparation import Preparation
from fairmile.runs.execute.processes import end_run
from fairmile.runs.execute.recorder import Ending, begin, check_no_orphan, execute, finish
from fairmile.runs.execute.worker import MEMBER
from fairmile.runs.interchange import export_run, import_runs, known_run
from fairmile.runs.needs import Need, check_needs, needs_record, offer_for, refuse_missing
from fairmile.runs.parameters import check_placeholders, check_used, unused_params
from fairmile.runs.prediction import PREDICTORS, Fit, Predictor, predict, unfit
from fairmile.runs.projection import Projection, project, walltime
from fairmile.runs.record.crate import CODE
from fairmile.runs.record.layout import OUTPUT, RECORD, WORK, open_arrays, read_record, write_record
from fairmile.runs.record.ledger import Ledger, recorded_spec
from fairmile.runs.record.packing import SUFFIX as PACKED
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import MetricSpec, RunSpec
from fairmile.runs.record.values import Value
from fairmile.runs.rerun import Rerun, check_repeatable, rerun_identity, rerun_spec, verdicts
from fairmile.runs.reuse import Candidate, find_reusable, forget_outputs, keep_outputs
from fairmile.runs.review import Review, is_foreign, refuse_unseen, restrict, review
from fairmile.runs.targets import (
    Runnable,
    checked_spec,
    command_target,
    complete,
    filled,
    lasting,
    python_of,
    runnable_of,
    value_texts,
)
from fairmile.store.store import Store

_HISTORY = 20
_NO_RUN = "no successful earlier run"
_STEPS = ("epochs", "steps", "iterations", "max_epochs", "num_epochs")  # parameters by which the time grows
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Step:
    """One thing that happens before or while a run is executed."""

    verb: str  # fetch, build, submit, run; known, restore and again where an earlier run has the same identity
    what: str
    size_bytes: int | None = None


@dataclass(frozen=True)
class RunPlan:
    """What a run would do; nothing has happened yet."""

    spec: RunSpec
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    prediction: Mapping[str, Any] = field(default_factory=dict)
    script: str = ""  # of the job, where a system's scheduler carries it
    sources: tuple[str, ...] = ()
    materials: tuple[Material, ...] = ()  # what goes to places of the folder it runs in
    is_complete: bool = False  # its parameters are part of its command already
    original: Run | None = None  # what is done again
    review: Review | None = None  # of a record from elsewhere: what somebody must have agreed to
    crate: Path | None = None  # what the record is imported from before it is done again
    container: str = ""  # the image that a program is locked into
    changes: Mapping[str, Any] = field(default_factory=dict)
    unpredicted: str = ""  # why there is no prediction

    @property
    def fit(self) -> Fit:
        """Whether the run is expected to have room on its device; FITS also where nothing tells."""
        return unfit(self.prediction)[0]

    def refuse_unfit(self) -> None:
        """Raise UsageError where the run does not fit: it would wait in a queue only to run out of memory."""
        fit, why = unfit(self.prediction)
        if fit is Fit.DOES_NOT and not self.spec.anyway:
            remedies = [each["remedy"] for each in self.prediction.values() if each.get("remedy")]
            advice = remedies[0] if remedies else "ask for less, or for a device with more memory"
            raise UsageError(f"{self.spec.name} does not fit: {why}", hint=f"{advice}; --anyway runs it regardless")


class Recording:
    """A run that is this very program: what it logs goes into its record."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.folder = folder
        self.document = document
        self.meter = Meter(folder / FILE)

    @property
    def id(self) -> str:
        return str(self.document["id"])

    def log(self, *, step: float | None = None, **metrics: float) -> None:
        """Keep values of metrics."""
        self.meter.log(step=step, **metrics)


@dataclass(frozen=True)
class Services:
    """What runs are made of: each is asked for only when a run needs it."""

    catalog: Callable[[], Catalog]
    assets: Callable[[], Assets]
    store: Callable[[], Store]
    envs: Callable[[], Envs]
    jobs: Callable[[], Jobs]
    predictors: Mapping[str, Callable[[], Predictor]] = field(default_factory=dict)  # by name, beside those of plug-ins


class Runs(Ledger):
    """All runs of one workspace, and the verbs that make new ones."""

    def __init__(self, root: Path, around: Services, *, environ: Mapping[str, str]) -> None:
        super().__init__(root)
        self._around = around
        self._environ = environ
        self._preparation = Preparation(
            root, assets=around.assets, store=around.store, envs=around.envs, environ=environ
        )
        self._recent: dict[str, deque[Run]] = {}

    # Plan

    def plan(
        self,
        what: str | Sequence[str] | RunSpec,
        dataset: str = "",
        *,
        options: Mapping[str, Any] | None = None,
        used: Collection[str] = (),
        place: Callable[[str], str] = lambda _: "",
        **changes: Any,
    ) -> RunPlan:
        """Return what running a name, a file, a command or a specification would do; only sizes are asked for.

        `changes` are fields of the specification. `options` are those that the resolver of a kind of target knows, such
        as `set`, which of several sets of commands. A parameter that nothing uses is an error; those in `used` serve
        whoever asks, who may tell the `place` of the others.
        """
        runnable = self._runnable(what, dataset, options or {}, changes)
        self._check_command(runnable, used, place)
        spec = lasting(runnable.spec)
        steps, notes = list(self._bringing(runnable)), list(runnable.notes)
        if spec.environment:
            planned = self._around.envs().plan(spec.environment)
            state = "is ready" if planned.state == "ready" else "; ".join(each.words for each in planned.steps)
            steps.append(Step("build", f"environment {planned.name}: {state}"))
            notes += planned.notes
            if planned.trouble:
                notes.append(planned.trouble)
        for each in self.check_needs(spec.model_copy(update={"anyway": True})):
            steps.append(Step("needs", str(each)))
        command = " ".join(filled(spec.argv, {"python": "python", **value_texts(spec)}))
        script = ""
        if spec.system and spec.resources.time_s is None:
            spec, chosen = self._with_time(spec)
            notes += chosen
        if spec.system:
            machine = self._around.jobs().machines[spec.system]
            if machine.reach.host and (left := self._preparation.left_behind(spec)):
                notes.append(
                    f"not carried to {spec.system}: {left}; --data NAME=PATH carries one, to the same place there"
                )
            argv = filled(spec.argv, {"python": python_of(bool(spec.environment)), **value_texts(spec)})
            made = machine.script(carrier.near_job(spec, argv, self.root / "RUN", ""))
            script, notes = made.text, [*notes, *made.notes]
            away = f", but not from here: {machine.elsewhere}" if machine.elsewhere else ""
            steps.append(Step("submit", f"to {spec.system} ({machine.system.scheduler.dialect}){away}"))
        where = f"in {spec.folder or 'a folder of its own'}" + ("" if spec.system else " on this machine")
        steps.append(Step("run", f"{command} {where}"))
        prediction: Mapping[str, Any] = {}
        history = self._history(spec)
        unpredicted = "no earlier run with the same command, resources and machine" if history else _NO_RUN
        try:
            prediction = predict(PREDICTORS, spec, history, self._around.predictors)
        except FairmileError as error:  # a plug-in that breaks stops no run
            unpredicted = str(error)
        fit, why = unfit(prediction)
        if fit is Fit.MAY_NOT:
            notes.append(f"it may not fit: {why}")
        return RunPlan(
            spec, tuple(steps), tuple(notes), prediction, script, runnable.sources, runnable.materials,
            runnable.is_complete,
            unpredicted="" if prediction else unpredicted,
        )  # fmt: skip

    def resolve_spec(
        self,
        what: str | Sequence[str] | RunSpec,
        *,
        used: Collection[str] = (),
        place: Callable[[str], str] = lambda _: "",
        **changes: Any,
    ) -> RunSpec:
        """Return the specification that a name, a file or a command means; nothing but the catalog is asked."""
        runnable = self._runnable(what, "", {}, changes)
        self._check_command(runnable, used, place)
        return runnable.spec

    def _check_command(self, runnable: Runnable, used: Collection[str], place: Callable[[str], str]) -> None:
        """Raise UsageError where a placeholder has no value, or a value no use."""
        if runnable.is_complete:
            return
        spec = runnable.spec
        check_placeholders(spec, runnable.where)
        names = [name for name in spec.params if name not in used and name not in runnable.declared]
        unused = unused_params(spec, names, self._environ, sources=bool(runnable.sources))
        check_used(unused, spec, (place(unused[0]) if unused else "") or runnable.where)

    def _with_time(self, spec: RunSpec) -> tuple[RunSpec, list[str]]:
        """Return a job with the time that earlier runs let expect, where they do, and how that was found."""
        history = self._history(spec)
        param = next((name for name in _STEPS if isinstance(spec.params.get(name), int)), "")
        machine = self._around.jobs().machines[spec.system]
        if not history or not param or not machine.has_scheduler:
            return spec, []
        try:
            projection = project(history, to=int(str(spec.params[param])), steps_param=param)
            time_s = walltime(projection, limit_s=machine.limit_s(spec.resources.partition))
        except FairmileError as error:
            advice = f"; {error.hint}" if error.hint else ""
            return spec, [f"the time was not chosen from earlier runs: {error}{advice}"]
        resources = spec.resources.model_copy(update={"time_s": float(time_s)})
        told = f"the time of {format_duration(time_s)} was chosen from earlier runs: {projection.basis}"
        return spec.model_copy(update={"resources": resources}), [told]

    def _runnable(
        self,
        what: str | Sequence[str] | RunSpec,
        dataset: str,
        options: Mapping[str, Any],
        changes: Mapping[str, Any],
    ) -> Runnable:
        if isinstance(what, RunSpec):
            spec = checked_spec({**what.model_dump(exclude_defaults=True), **changes}) if changes else what
            return Runnable(spec)
        if not isinstance(what, str):
            return command_target(what, changes)
        target = resolve(what, Nouns(catalog=self._around.catalog), for_="run", options=options)
        return runnable_of(target, self._around.catalog, dataset, changes)

    def _bringing(self, runnable: Runnable) -> Iterator[Step]:
        names = [*runnable.sources, *(each.asset for each in runnable.spec.inputs.values() if each.asset)]
        for name in names:
            try:
                (planned,) = self._around.assets().plan(name)
                yield Step("fetch", planned.describe(), planned.need_bytes)
            except (SystemFailure, Transient, Unsupported) as error:
                yield Step("fetch", f"{name} (cannot be asked now: {error})")
        if runnable.materials:
            for text, size_bytes in plan_materials(runnable.materials, self._around.assets()):
                yield Step("fetch", text, size_bytes)

    def _history(self, spec: RunSpec) -> list[Run]:
        """Return earlier runs of that name; they are looked for once in the life of a process."""
        if spec.name not in self._recent:
            recent: deque[Run] = deque(maxlen=_HISTORY)
            for row in self.rows(name=spec.name, states=[RunState.DONE], limit=_HISTORY):
                with contextlib.suppress(FairmileError):
                    recent.append(self.get(row.id))
            self._recent[spec.name] = recent
        return list(self._recent[spec.name])

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

    def repeat(self, count: int, plan: RunPlan, *, echo: BinaryIO | None = None) -> list[Run]:
        """Execute a plan several times, as one group; whoever cancels one cancels those that are left.

        A seed counts up from one to the next.
        """
        if count < 1:
            raise UsageError(f"a run cannot be repeated {count} times")
        plan.refuse_unfit()
        folder, document = self.create(plan.spec, {})
        folder.rmdir()
        group, seed = plan.spec.group or str(document["id"]), plan.spec.seed
        found: list[Run] = []
        while len(found) < count and not (found and found[-1].state is RunState.CANCELLED):
            changes = {"group": group, "seed": None if seed is None else seed + len(found)}
            member = replace(plan, spec=plan.spec.model_copy(update=changes))
            found.append(self.execute(member, echo=echo))
        return found

    def execute(
        self,
        plan: RunPlan,
        *,
        again: bool = True,
        echo: BinaryIO | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
        trust: bool = False,
    ) -> Run:
        """Execute a plan; see `run`. One of a record from elsewhere needs `trust`: somebody has read its review."""
        if plan.review is not None and not trust:
            raise refuse_unseen(plan.review)
        plan.refuse_unfit()
        spec = self._spec_of(plan)
        checked = self.check_needs(spec)
        for step in plan.steps:
            if step.verb in ("fetch", "build"):
                on_step(step)
        captured = self._preparation.bring(spec, sources=plan.sources, materials=plan.materials, original=plan.original)
        captured |= needs_record(checked, captured)
        document = _new_document(plan, spec, captured)
        if not again and (known := self._known(document["identity"], spec, captured, on_step)) is not None:
            return known
        folder, document = self.create(spec, document)
        try:
            if spec.system:
                return self._submit(folder, document, spec, again=plan.original is not None)
            values = self._preparation.lay(document, folder, code=plan.original is not None)
            done = Run(self._execute(folder, document, spec, values, echo), folder)
        except (FairmileError, OSError):
            if not (folder / RECORD).exists():  # it never began
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if done.state is RunState.DONE:
            keep_outputs(self._around.store, done)
        if done.state is RunState.DONE and spec.name in self._recent:
            self._recent[spec.name].appendleft(done)
        return done

    def _spec_of(self, plan: RunPlan) -> RunSpec:
        """Return what is executed of a plan; a system that this machine is not raises."""
        spec = plan.spec
        if spec.system:
            self._around.jobs().machines[spec.system].refuse_elsewhere()
        if plan.container:
            file = isolated_environment(plan.container, spec.inputs, self.root)
            spec = spec.model_copy(update={"environment": file})
        return spec

    def _known(
        self, identity: str, spec: RunSpec, captured: Mapping[str, Any], on_step: Callable[[Step], None]
    ) -> Run | None:
        """Return an earlier run whose result stands for a new one, its files back in place."""
        argv = filled(spec.argv, {"python": python_of(bool(spec.environment)), **value_texts(spec)})
        asked = Candidate(spec, captured, argv, self._environ, self.root)
        found = find_reusable(asked, self.alike(identity), self._around.store)
        for verb, text in found.messages:
            on_step(Step(verb, text))
        return found.run

    def remove(self, references: Iterable[str]) -> list[str]:
        """Forget runs that have ended, and the outputs that were kept of them."""
        gone = super().remove(references)
        for id in gone:
            forget_outputs(self._around.store, id)
        return gone

    def _execute(
        self,
        folder: Path,
        document: dict[str, Any],
        spec: RunSpec,
        values: Mapping[str, str],
        echo: BinaryIO | None,
    ) -> dict[str, Any]:
        argv = complete(spec.argv, {**values, **value_texts(spec)})
        env = {**self._environ, **spec.env}
        if spec.environment:
            command = self._around.envs().shell(document["captured"]["environment"]["digest"], argv)
            argv, env = command.argv, {**self._environ, **command.env, **spec.env}
        if document.get("container"):  # where its log goes lies beside the folder that it works in
            env["FAIRMILE_BIND"] = str(folder)
        if spec.params.get("stage"):  # it wants its data where they are read fastest
            env["FAIRMILE_POOLS"] = os.pathsep.join(str(pool.folder) for pool in self._around.store().pools.by_rank())
        document["argv"] = list(argv)
        return execute(folder, document, argv=argv, env=env, given=spec.env, echo=echo)

    @contextlib.contextmanager
    def recording(
        self, name: str, *, params: Mapping[str, Value] | None = None, metrics: Mapping[str, MetricSpec] | None = None
    ) -> Iterator[Recording]:
        """Record the block as a run: what it logs, how long it takes, and how it ends."""
        spec = RunSpec(name=name, argv=(name,), params=params or {}, metrics=metrics or {}, watch_s=0)
        inside = {"captured": {"agent": capture.agent()}, "job": None, "inside": True}
        folder, document = self.create(spec, inside)
        begin(folder, document, self._environ)
        recording = Recording(folder, document)
        begins = time.monotonic()
        ending = Ending("done", 0)
        try:
            yield recording
        except KeyboardInterrupt:
            ending = Ending("cancelled", 130, "INT", "it was interrupted")
            raise
        except BaseException as error:
            ending = Ending("failed", 1, reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            recording.meter.close()
            finish(folder, document, ending, time.monotonic() - begins, {})

    def check_needs(self, spec: RunSpec) -> list[Need]:
        """Compare declared hardware and frameworks with where a run goes; what is missing there raises UsageError.

        A specification that runs `anyway` gets the result instead.
        """
        if not spec.needs:
            return []
        argv = filled(spec.argv, {"python": python_of(bool(spec.environment)), **value_texts(spec)})
        offer = offer_for(spec, argv, self._around.jobs, self._environ)
        checked = check_needs(spec.needs, offer)
        if not spec.anyway:
            refuse_missing(spec.asset or spec.name, checked, offer)
        return checked

    # On a system

    def _submit(self, folder: Path, document: dict[str, Any], spec: RunSpec, *, again: bool = False) -> Run:
        """Hand a run over to a system; its record, written before, says how to find it again."""
        jobs = self._around.jobs()
        before = copy.deepcopy(document)
        key = f"{document['id']}-{len(document.get('attempts', []))}"
        document |= {"state": str(RunState.QUEUED), "result": None, "job": {"key": key, "system": spec.system}}
        is_far = bool(jobs.machines[spec.system].reach.host)
        if is_far:
            spec = self._preparation.travelling(folder, document, spec)
            values = {**self._preparation.lay(document, folder, code=True), **carrier.far_values(document)}
            carrier.lay_benchmarks(spec.argv, folder / WORK)
            argv = complete(spec.argv, {**values, **value_texts(spec)})
            recorder = carrier.recorder_file(self.root / ".recorder")
            job = carrier.far_job(spec, argv, document, recorder, key, folder)
        else:
            if "argv" not in document:  # else it goes on with what lies there
                values = {**self._preparation.lay(document, folder, code=again), **value_texts(spec)}
                document["argv"] = list(complete(spec.argv, values))
            job = carrier.near_job(spec, document["argv"], folder, key)
        if spec.environment:
            digest = document["captured"]["environment"]["digest"]
            job = jobs.equipped(job, self._around.envs(), digest, on=spec.system)
        self.write(folder, document)
        try:
            jobs.submit(job, on=spec.system)
        except FairmileError as error:
            if isinstance(error, Transient):  # it may have arrived: whoever asks for the run finds out
                raise
            if before.get("attempts"):
                write_record(folder, before)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        if is_far:
            shutil.rmtree(folder / WORK, ignore_errors=True)  # it went there
            (folder / carrier.TRAVEL).unlink(missing_ok=True)
        return Run(read_record(folder), folder)

    # Many at once

    def freeze(self, plan: RunPlan, folder: Path, *, in_place: bool = False) -> Frozen:
        """Prepare once what many runs share, below a folder: inputs, environment, and a copy of the code.

        Each of them has a folder of its own to work in, which shows that of the specification, unless `in_place` has
        all work in that one.
        """
        spec = plan.spec
        if spec.system:
            self._around.jobs().machines[spec.system].refuse_elsewhere()
        is_far = bool(spec.system) and self.arrays.is_far(spec.system)
        if is_far and spec.environment:  # which is refused
            self._around.jobs().equipped(JobSpec(argv=(MEMBER,)), self._around.envs(), spec.environment, on=spec.system)
        checked = self.check_needs(spec)
        captured = self._preparation.bring(spec, sources=plan.sources, materials=plan.materials, original=plan.original)
        captured |= needs_record(checked, captured)
        prediction = dict(plan.prediction)
        document: dict[str, Any] = {"id": folder.name, "spec": recorded_spec(spec), "captured": captured}
        moves = bool(spec.folder) and (is_far or not in_place)
        if moves:
            spec = self._preparation.travelling(folder, document, spec)
        values = self._preparation.lay(document, folder, code=True)
        view = View([str(each) for each in (PurePath(spec.subfolder), *PurePath(spec.subfolder).parents)][:-1])
        if moves and not is_far:
            view = self._preparation.show(document, Path(plan.spec.folder), folder, spec)
        if is_far:
            values |= {"python": carrier.PYTHON}
            carrier.lay_benchmarks(spec.argv, folder / WORK)
        if spec.folder != plan.spec.folder and not is_far:
            argv = _within_reach(spec.argv, Path(plan.spec.folder), folder / WORK / spec.subfolder)
            spec = spec.model_copy(update={"argv": argv})
            document["spec"]["argv"] = list(argv)
        values = {name: text for name, text in values.items() if name not in ("run", "source")}
        # Where things are elsewhere is known only there: placeholders stay until then.
        frozen = Frozen(folder, spec, {} if is_far else values, tuple(view.notes(Path(plan.spec.folder))))
        code = folder / WORK
        env = dict(spec.env)
        around: tuple[str, ...] = (MEMBER,)
        if spec.environment and not spec.system:
            command = self._around.envs().shell(captured["environment"]["digest"], [MEMBER])
            env, around = {**command.env, **env}, tuple(command.argv)
        shared = {"spec": document["spec"], "captured": captured, "prediction": prediction, "job": None}
        is_there = code.is_dir() and not spec.folder
        write_frozen(
            frozen,
            shared,
            self.root,
            env=env,
            around=around,
            code=str(code) if is_there else "",
            own=view.own,
            values=values if is_far else {},
        )
        _made(self.root)
        return frozen

    @property
    def arrays(self) -> Arrays:
        """Job arrays whose tasks execute members of batches."""
        return Arrays(self.root, self._around.jobs(), self._around.envs)

    def refresh(self, on_problem: Callable[[str], None] = lambda _: None) -> list[Run]:
        """Look after runs on systems: bring what has ended, and say of the others where they stand.

        One that cannot be asked, since its system does not answer, stays as it is.
        """
        found = []
        arrays: dict[str, JobStatus | None] = {}
        for key in open_arrays(self.root):
            try:
                self.arrays.get(key)
            except FairmileError as error:
                on_problem(f"job array {key}: {error}")
        for id in self.with_jobs():
            try:
                found.append(self.collect(id, arrays))
            except FairmileError as error:
                on_problem(f"run {id}: {error}")
        return found

    def collect(self, reference: str, arrays: dict[str, JobStatus | None] | None = None) -> Run:
        """Return a run; one that a job carries, or whose recorder is gone, is brought up to date.

        `arrays` keeps, from one call to the next, where job arrays stand, each of which carries many runs.
        """
        run = self.get(reference)
        if run.document.get("job") and not run.result:
            return carrier.collect(run, self._around.jobs(), arrays if arrays is not None else {})
        state = self.standing(run)
        if state is RunState.INTERRUPTED and not run.result and not run.packed and run.folder.parent == self.root:
            return self._settled(run)
        if state is RunState.RUNNING and self.is_orphaned(run):
            trouble = "its recorder was killed, but its program still runs"
            return replace(run, document={**run.document, "trouble": trouble})
        return run if state is run.state else replace(run, document={**run.document, "state": str(state)})

    def _settled(self, run: Run, state: RunState = RunState.INTERRUPTED) -> Run:
        """Write the end of a run whose recorder was killed, from all that was written until then."""
        document = copy.deepcopy(dict(run.document))
        started = document["attempts"][-1]["started"]
        last = max((file.stat().st_mtime for file in run.folder.glob("*.*")), default=started)
        reason = "its recorder was ended without a word: killed, or a power cut"
        if state is RunState.CANCELLED:
            reason = "it was cancelled after its recorder had been killed"
        ending = Ending(str(state), reason=reason)
        finish(run.folder, document, ending, max(last - started, 0.0), {"watch": "it was cut short"})
        return Run(document, run.folder)

    def cancel(self, reference: str) -> Run:
        """End a run that waits or runs, on a system or here, and return it as it stands then."""
        run = self.collect(reference)
        if run.state.is_end:
            raise Conflict(f"run {run.id} is {run.state}", hint="only what waits or runs can be cancelled")
        if job := run.document.get("job"):
            if "task" in job:
                raise UsageError(
                    f"run {run.id} is one of a job array",
                    hint="`fairmile job ls` lists it, `fairmile job cancel` ends it",
                )
            if (found := self._around.jobs().find(job["key"])) is not None:
                self._around.jobs().cancel([found.id])
            return self.collect(run.id)
        if run.document.get("inside"):
            raise UsageError(f"run {run.id} is a part of another program", hint="end that program")
        if end_run(run.folder, str(run.document["attempts"][-1].get("holder", ""))):
            return self.collect(run.id)
        return self._settled(run, RunState.CANCELLED)

    def wait(self, reference: str, *, timeout_s: float | None = None, echo: BinaryIO | None = None) -> Run:
        """Follow a run on a system to its end."""
        run = self.collect(reference)
        jobs = self._around.jobs()
        job = jobs.find(run.document["job"]["key"]) if run.document.get("job") and not run.result else None
        if job is None:
            return run
        if echo is not None:
            for piece in jobs.follow(job.id):
                echo.write(piece)
                echo.flush()
        jobs.wait([job.id], timeout_s=timeout_s)
        return self.collect(reference)

    def output(self, reference: str) -> bytes:
        """Return what the program of a run printed, so far as it ran."""
        run = self.collect(reference)
        if run.packed:
            with zipfile.ZipFile(run.folder) as archive:
                return archive.read(OUTPUT) if OUTPUT in archive.namelist() else b""
        try:
            return (run.folder / OUTPUT).read_bytes()
        except FileNotFoundError:
            return b""

    # Go on

    def resume(self, reference: str, *, echo: BinaryIO | None = None) -> Run:
        """Go on with a run that did not end well, in its own folder, with what it left there."""
        run = self.resumable(reference)
        try:
            with Lock(self.root / f".{run.id}.resume", timeout_s=0.5):
                run = self.resumable(run.id)  # another process may have been faster
                document = copy.deepcopy(dict(run.document))
                if run.spec.system:
                    return self._submit(run.folder, document, run.spec)
                env = self._resumed(run)
                argv = document.get("argv") or run.spec.argv
                return Run(execute(run.folder, document, argv=argv, env=env, echo=echo), run.folder)
        except Locked as error:
            raise Conflict(f"run {run.id} is being resumed by another process") from error

    def resumable(self, reference: str) -> Run:
        """Return a run that can go on, or raise why it cannot."""
        run = self.collect(reference)
        state = run.state
        if state is RunState.DONE:
            raise Conflict(f"run {run.id} is done", hint=f"`fairmile rerun {run.id}` does it again in a fresh folder")
        if state is RunState.RUNNING and self.is_orphaned(run):
            check_no_orphan(run.folder, run.id)
        if not state.is_end:
            raise Conflict(f"run {run.id} is {state}", hint=f"`fairmile runs show {run.id}` tells where")
        if run.packed or run.folder.parent != self.root:
            raise UsageError(f"run {run.id} is packed or not of this workspace", hint="unpack or import it first")
        if run.document.get("imported"):
            raise UsageError(f"run {run.id} ran elsewhere", hint=f"`fairmile rerun {run.id}` does it again here")
        check_no_orphan(run.folder, run.id)
        return run

    def _resumed(self, run: Run) -> dict[str, str]:
        env = {**self._environ, "FAIRMILE_RESUME": "1"}
        if run.document.get("container"):
            env["FAIRMILE_BIND"] = str(run.folder)
        name = (run.captured.get("environment") or {}).get("digest") if run.spec.environment else ""
        return env | dict(self._around.envs().shell(name).env) if name else env

    def rerun_plan(self, reference: str, *, container: str = "", **changes: Any) -> RunPlan:
        """Return what doing a run again would do; `reference` may also be a crate, of which nothing is kept yet.

        A run of somebody else comes with a `review` of all that it would execute, set, build and ask for. With
        `container`, an image, its program has no network and can write to nothing but its folder.
        """
        crate = self._crate(reference)
        if crate is not None:
            (imported,) = EXCHANGES["rocrate"].read(crate)
            if known_run(self, imported, crate) is None:
                return _crate_plan(imported, crate, container, changes)
            reference = imported.id
        original = self.collect(reference)
        check_repeatable(original)
        code = original.captured.get("code") or {}
        snapshot = code.get("snapshot")
        kept = {entry.path for entry in self._around.store().tree(snapshot)} if snapshot else set()
        foreign = is_foreign(original, self.root)
        spec = rerun_spec(original, self._preparation.inputs_again(original, foreign=foreign), kept)
        dropped: dict[str, str] = {}
        if foreign:
            spec, dropped = restrict(spec, original)
        spec = _changed(spec, changes)
        checked = None
        if foreign:
            made = original.document.get("imported") or {}
            source = str(made.get("from") or original.document.get("rerun_of") or original.folder)
            checked = review(original, spec, dropped, sorted(kept), source, container)
        _check_container(container, spec)
        sources = tuple(each["asset"] for each in code.get("sources", []))
        steps = (Step("run", " ".join(spec.argv)),)
        return RunPlan(
            spec, steps, sources=sources, original=original, review=checked, container=container, changes=changes
        )

    def _crate(self, reference: str) -> Path | None:
        """Return the crate, or folder of a run, that a path outside of this workspace names; None for an id."""
        path = Path(reference)
        if "/" not in reference and reference not in (".", "..") and not reference.endswith(PACKED):
            return None
        return path if path.exists() and path.absolute().parent != self.root else None

    def rerun(
        self,
        what: str | RunPlan,
        *,
        tolerance: float | None = None,
        echo: BinaryIO | None = None,
        trust: bool = False,
        **changes: Any,
    ) -> Rerun:
        """Do a run again from its record alone, in a fresh folder, and say how the two differ.

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
                raise Conflict(f"run {taken.id} is not what its review showed", hint="read it again")
        original = plan.original
        assert original is not None
        again = self.execute(plan, echo=echo, trust=trust)
        if plan.spec.system:
            again = self.wait(again.id, echo=echo)
        return Rerun(original, again, verdicts(original, again, tolerance))

    # Exchange

    def export(self, reference: str, format: str, target: Path, *, with_inputs: bool = False) -> list[Path]:
        """Write a run in another form, with its code where the form has a place for it, and return the files."""
        run = self.collect(reference)
        if not run.state.is_end:
            raise Conflict(f"run {run.id} is {run.state}", hint="export it when it has ended")
        return export_run(run, self._around.store(), format, target, with_inputs=with_inputs)

    def import_runs(self, source: Path | str, format: str = "rocrate", *, dry_run: bool = False) -> list[Run]:
        """Take in the runs that a file or folder of another form holds; one that is here already is left as it is."""
        return import_runs(self, self._around.store, Path(source), format, dry_run=dry_run)

    def project(
        self,
        references: Sequence[str],
        *,
        to: int,
        param: str = "epochs",
        span: str = "epoch",
        limit_s: float | None = None,
    ) -> tuple[Projection, int]:
        """Tell from short runs how long one with so many steps takes, and the seconds to ask a batch system for."""
        chosen = [run for reference in references for run in self.select(reference)]
        projection = project(chosen, to=to, steps_param=param, span=span)
        return projection, walltime(projection, limit_s=limit_s)

    def explain(self, run: Run) -> Diagnosis | None:
        """Say why a run failed and what to do about it, as far as its output tells; None where it did not."""
        if run.state in (RunState.DONE, RunState.QUEUED, RunState.RUNNING):
            return None
        states = {RunState.TIMEOUT: State.TIMED_OUT, RunState.CANCELLED: State.CANCELLED}
        result = run.result
        standing = Standing(
            states.get(run.state, State.FAILED),
            result.get("reason", ""),
            result.get("exit_code"),
            result.get("signal", ""),
        )
        said = self.output(run.id)[-_TAIL_BYTES:].decode(errors="replace")
        found = diagnose(standing, said, JobSpec(argv=run.spec.argv))
        advice = found.advice.replace("fairmile job log JOB --err", f"fairmile runs log {run.id}")
        return replace(found, advice=advice)


def _new_document(plan: RunPlan, spec: RunSpec, captured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the record of a run says before it has a folder."""
    identity = ""  # what others state of their code and commands must never answer for a run of one's own
    if plan.review is None and plan.original is None:
        identity = capture.identity({"spec": recorded_spec(spec), "captured": captured})
    elif plan.review is None and plan.original is not None:
        identity = rerun_identity(plan.original, captured)
    document: dict[str, Any] = {"identity": identity, "captured": captured, "job": None}
    document["prediction"] = dict(plan.prediction)
    if plan.original is not None:
        document["rerun_of"] = plan.original.id
    if plan.review is not None:
        document["foreign"] = True
    if plan.container:
        document["container"] = plan.container
    return document


def _within_reach(argv: Sequence[str], before: Path, work: Path) -> tuple[str, ...]:
    """Return a command with the files that were not copied with its code named by where they are."""
    return tuple(
        str(before / word)
        if word and (number or "/" in word) and not (work / word).exists() and (before / word).exists()
        else word
        for number, word in enumerate(argv)
    )


def _check_container(container: str, spec: RunSpec) -> None:
    if container and spec.system:
        raise UsageError(f"a container isolates programs on this machine, not on {spec.system}", hint="add --on laptop")


def _crate_plan(imported: ImportedRun, crate: Path, container: str, changes: Mapping[str, Any]) -> RunPlan:
    """Return the plan of doing a record again that is not among ours yet."""
    original = Run(imported.document, Path())
    check_repeatable(original)
    kept = {name.removeprefix(f"{CODE}/") for name in imported.files if name.startswith(f"{CODE}/")}
    spec, dropped = restrict(rerun_spec(original, {}, kept), original)
    spec = _changed(spec, changes)
    checked = review(original, spec, dropped, sorted(kept), imported.source, container)
    _check_container(container, spec)
    steps = (Step("import", str(crate)), Step("run", " ".join(spec.argv)))
    return RunPlan(spec, steps, original=original, review=checked, crate=crate, container=container, changes=changes)


def _changed(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """Return a specification with fields that a person changed; variables are added to those it has."""
    if not changes:
        return spec
    env = {**spec.env, **changes.get("env", {})}
    return checked_spec({**_said(spec), **changes, "env": env})


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(str(folder), error) from error
    return folder


def _said(spec: RunSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_defaults=True)
