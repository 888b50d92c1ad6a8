"""Studies: a space, an objective and a budget; workers here or on a system try what an engine proposes."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairmile.base.errors import (
    Conflict,
    FairmileError,
    MissingExtra,
    NotFound,
    RunFailed,
    SystemFailure,
    Unsupported,
    UsageError,
)
from fairmile.base.files import Holder
from fairmile.base.html_tables import rows_table
from fairmile.base.nouns import Noun
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.execute.batches import Frozen, read_tasks
from fairmile.runs.execute.executor import Handle, Loop, TaskStatus
from fairmile.runs.execute.worker import Batch
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.record import JobReference
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.trial import step_of_best, trial_result
from fairmile.runs.record.values import Better
from fairmile.runs.runs import Runs
from fairmile.sweeps.files import read_definition
from fairmile.sweeps.folder import Sweep, read_sweep, write_sweep
from fairmile.sweeps.members import Members
from fairmile.sweeps.model import Definition, Objective
from fairmile.sweeps.record import Source, StudyRecord
from fairmile.sweeps.sweeps import Definable, Sweeps
from fairmile.sweeps.tuning.curves import hindsight, stopper
from fairmile.sweeps.tuning.engine import ENGINES, Engine, Settings, TrialRecord
from fairmile.sweeps.tuning.pulse import Pulse, has_no_pulse
from fairmile.sweeps.tuning.results import ChangedStudy, SpentDict, StudyPlanDict, StudyStatus, plain_space
from fairmile.sweeps.tuning.search_space import Space
from fairmile.sweeps.tuning.settings import KEYS, parse_settings
from fairmile.sweeps.tuning.trials import TrialRunner

_LOOK_S = 1.0
_REAP_EVERY_S = 5.0
_OPTIONS = {"seed": "tuning-seed", "time": "within"}  # those that are not called as the keys of `tuning`
_LOG = "workers.log"
_PACKAGES = {"ray": "Ray", "deephyper": "DeepHyper"}  # of engines that are made without them; Optuna is missed then
_STOP = "stop"  # a file in the study's folder that has workers ask for nothing more


@dataclass(frozen=True, repr=False)
class StudyPlan(Result):
    """What a study would do; nothing has happened yet."""

    space: Mapping[str, Mapping[str, Any]]
    objectives: tuple[Objective, ...]
    settings: Settings
    run: RunPlan  # that of a trial
    trial_s: float | None = None  # how long one is expected to take
    trial_s_from: str = ""

    @property
    def node_hours(self) -> float | None:
        """What all trials take together where none is stopped early; None where time or number are not known."""
        if self.trial_s is None or self.settings.trials is None:
            return None
        return self.settings.trials * (self.run.spec.resources.nodes or 1) * self.trial_s / 3600

    def to_dict(self) -> StudyPlanDict:
        return {
            "space": plain_space(self.space),
            "settings": asdict(self.settings),  # type: ignore[typeddict-item]
            "objectives": [{"metric": each.metric, "better": each.better} for each in self.objectives],
            "trial_s": self.trial_s,
            "node_hours": self.node_hours,
            "notes": list(self.run.notes),
            "script": self.run.script,
        }

    def summary(self) -> str:
        goals = ", ".join(f"{each.metric} {each.better}" for each in self.objectives)
        return f"{self.settings.trials or 'any number of'} trials over {', '.join(self.space)} for {goals}"

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                each["kind"],
                each.get("low"),
                each.get("high"),
                "yes" if each.get("log") else "",
                each.get("choices"),
            )
            for name, each in plain_space(self.space).items()
        ]
        return rows_table(["parameter", "kind", "low", "high", "log", "choices"], rows, note=self.summary())


_INTERNAL = "about engine is_live is_spent settle spent"  # for other parts of Fairmile


class Studies(Noun, internal=_INTERNAL):
    """All studies of a workspace; a study is a sweep whose points a tuning engine chooses."""

    def __init__(self, sweeps: Sweeps, runs: Callable[[], Runs]) -> None:
        self._sweeps = sweeps
        self._runs = runs

    def plan(
        self,
        what: Definable,
        *,
        params: Mapping[str, Any] | None = None,
        template: Path | None = None,
        **changes: Any,
    ) -> StudyPlan:
        """Return what a study would do, or raise an error; `changes` are as in `fm.tune`."""
        definition, changes = self._sweeps.define_any(what, params=params, tuning=True, **changes)
        space, settings = self._checked(definition, changes)
        run, trial_s, source = self._sweeps.plan_trial(definition, template=template, **changes)
        with tempfile.TemporaryDirectory(prefix="fairmile-") as folder:
            engine = ENGINES[settings.engine](Path(folder), space, definition.objectives, settings)
            self._check_place(definition, engine, settings, run.spec.system)
        return StudyPlan(space, definition.objectives, settings, run, trial_s, source)

    def create(self, definition: Definition, source: Source, **changes: Any) -> Sweep:
        """Create a study from a definition; `changes` are fields of its runs, or keys of `tuning` such as `trials`.

        The seed of the sampler is `tuning_seed`: `seed` is that of the runs.
        """
        space, settings = self._checked(definition, changes)
        study = StudyRecord(settings, {name: dict(each) for name, each in space.items()}, definition.objectives)
        made = self._sweeps.create(definition, source, study=study, **changes)
        try:
            self._check_place(definition, self.engine(made), settings, made.system)
        except FairmileError:
            shutil.rmtree(made.folder, ignore_errors=True)
            raise
        return made

    def _check_place(self, definition: Definition, engine: Engine, settings: Settings, system: str) -> None:
        """Raise where an engine, or any, cannot work here or on a system."""
        if not system and settings.engine in _PACKAGES and find_spec(settings.engine) is None:
            raise MissingExtra(f"the engine {settings.engine} needs {_PACKAGES[settings.engine]}", settings.engine)
        if system and not engine.shares and (scheduler := self._runs().arrays.scheduler(system)) != "slurm":
            raise UsageError(
                f"{definition.origin('tuning')}: the engine {settings.engine} runs in one process, which cannot "
                f"start trials on other nodes of {scheduler}",
                hint="use `engine: optuna` for workers on this system",
            )
        if system and self._runs().arrays.is_remote(system):
            raise Unsupported(
                f"a study cannot be shared with {system} over ssh",
                hint=f"start the study on {system} itself",
            )

    def _checked(
        self, definition: Definition, changes: dict[str, Any]
    ) -> tuple[Mapping[str, Mapping[str, Any]], Settings]:
        """Return the space and the settings of a study, or raise what is wrong; settings are taken out of `changes`."""
        names = {"tuning_seed": "seed", **{name: name for name in KEYS if name != "seed"}}
        own = {names[name]: changes.pop(name) for name in list(changes) if name in names}
        if len(definition.points) != math.prod(map(len, definition.points.axes.values())):
            raise UsageError(
                f"{definition.name}: linked, exclude, include, repeats and select apply only to sweeps",
                hint="use `when` to say where a parameter applies",
            )
        space: dict[str, Mapping[str, Any]] = {}
        for name, values in definition.points.axes.items():  # a list of values is a choice among them
            space[name] = {"kind": "choice", "choices": list(values)}
        space |= definition.distributions
        checked = Space(space, definition.origin)
        tuning = {**definition.tuning, **own}

        def origin(*path: str | int) -> str:
            key = str(path[1]) if path[:1] == ("tuning",) and len(path) > 1 else ""
            return f"--{_OPTIONS.get(key, key)}" if key in own else definition.origin(*path)

        return space, parse_settings(tuning, definition.objectives, origin, space=checked)

    def extend(self, study: Sweep, *, trials: int) -> Sweep:
        """Set the total number of trials of a study."""
        extended = replace(study.study, settings=replace(study.study.settings, trials=trials))
        return write_sweep(study.folder, replace(study.record, study=extended))

    def engine(self, study: Sweep) -> Engine:
        """Return the engine over a study's folder."""
        return _engine(study, self._runs())

    def spent(self, study: Sweep) -> SpentDict:
        """Return the cost of all trials: node_hours, and energy_j as far as measured, or None."""
        return _spent(study, self._runs())

    def get(self, reference: str | Sweep) -> Sweep:
        """Return a study by its id, the unique start or end of it, a unique name, or `last`."""
        study = self._sweeps.get(reference)
        _ = study.study  # a sweep raises
        return study

    def status(self, reference: str | Sweep) -> StudyStatus:
        """Return the trials of a study, the best of them, and their total cost."""
        study = self.get(reference)
        return self._status(study, self._trials(study, self.engine(study)))

    def _status(self, study: Sweep, trials: Sequence[TrialRecord]) -> StudyStatus:
        return StudyStatus(study, trials, self._with_steps(_best(study, trials)), self.spent(study))

    def _with_steps(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return trials with the step at which each had its value; only the logs of these are read."""
        ledger = self._runs()
        return [replace(each, step=step_of_best(ledger.get(each.run))) if each.run else each for each in trials]

    def trials(self, study: Sweep) -> Sequence[TrialRecord]:
        """Return all trials; ended ones as their run records them."""
        return self._trials(study, self.engine(study))

    def _trials(self, study: Sweep, engine: Engine) -> Sequence[TrialRecord]:
        ledger = self._runs()
        objectives = dict(study.objectives)
        ended = {row.id for row in ledger.rows(group=study.id) if row.state.is_end}
        return [
            _with_result(each, ledger.get(each.run) if each.run in ended else None, objectives)
            for each in engine.trials()
        ]

    def settle(self, study: Sweep) -> None:
        """Mark trials of dead workers, and their runs, as ended."""
        engine = self.engine(study)
        if engine.shares:  # else only who works on the study may write of it
            self._reap(study, engine)
        self._settle(study)

    def best(self, study: Sweep) -> list[TrialRecord]:
        """Return the best trial, or with several objectives the Pareto front."""
        return self._with_steps(_best(study, self.trials(study)))

    def hindsight(self, study: Sweep) -> list[dict[str, Any]]:
        """Return how often each way to extrapolate curves would have been right on the finished trials."""
        better, settings = study.study.objectives[0].better, study.study.settings
        first_rung = settings.first_rung or 1
        judged = hindsight(self.trials(study), better, startup=settings.startup, min_steps=first_rung)
        return [
            {
                "method": each.method,
                "trials": each.judged,
                "stopped": each.stopped,
                "correctly": each.right,
                "wrongly": each.wrong,
                "steps": each.steps,
                "steps saved": each.steps_saved,
                "keeps the best": each.keeps_best,
            }
            for each in judged
            if each.judged
        ]

    def about(self, id: str) -> tuple[list[tuple[str, Better]], list[dict[str, Any]], list[str]]:
        """Return data for a report: objectives, quality of extrapolation, parameters on a log scale."""
        try:
            sweep = self._sweeps.get(id)
        except NotFound:  # its runs came from elsewhere
            return [], [], []
        if not sweep.is_study:
            return sweep.objectives, [], []
        log = [name for name, each in sweep.study.distributions.items() if each.get("log")]
        try:
            return sweep.objectives, self.hindsight(sweep), log
        except Unsupported:  # nothing here can extrapolate
            return sweep.objectives, [], log

    # Execute

    def run(
        self, study: Sweep, *, workers: int = 1, on_look: Callable[[Sequence[TrialRecord]], None] = lambda _: None
    ) -> StudyStatus:
        """Run a study on this machine until its budget is spent; trials of dead workers are retried."""
        engine = self.engine(study)
        (study.folder / _STOP).unlink(missing_ok=True)
        self._reap(study, engine)
        while True:
            self._work_here(study, engine, workers, on_look)
            self._reap(study, engine)
            trials = self._trials(study, engine)
            on_look(trials)
            if not engine.waiting() or (study.folder / _STOP).exists():
                self._settle(study)
                return self._status(study, trials)

    def _work_here(
        self, study: Sweep, engine: Engine, workers: int, on_look: Callable[[Sequence[TrialRecord]], None]
    ) -> None:
        count = workers if engine.shares else 1
        loops = [_loop(study, number, "--at-once", str(workers // count)) for number in range(count)]
        ends: list[TaskStatus] = []
        with self._runs().executors.pool(count) as pool:
            live = set(pool.submit(loops))
            try:
                while live:
                    ends += [status for status in pool.poll(live, wait_s=_LOOK_S) if status.is_over]
                    live -= {status.handle for status in ends}
                    if live and engine.shares:
                        self._reap(study, engine)
                    if live:
                        on_look(engine.trials())
            except BaseException:
                (study.folder / _STOP).touch()
                raise
        if all(status.state is RunState.FAILED for status in ends):
            raise RunFailed(
                f"all workers of study {study.id} failed: {_last_line(study.folder / _LOG)}",
                hint=f"{study.folder / _LOG} has their output",
            )

    def submit(self, study: Sweep, *, workers: int = 1) -> str:
        """Submit a study to its system as a job array of workers, and return at once."""
        engine = self.engine(study)
        if not engine.shares and workers > 1:
            raise UsageError(
                f"the engine {study.study.settings.engine} runs in one process only",
                hint="--nodes N gives it N nodes, each of which executes a trial; engine: optuna takes several workers",
            )
        if self.is_live(study):
            raise Conflict(f"study {study.id} has workers", hint=f"`fairmile tune show {study.id}` shows its progress")
        (study.folder / _STOP).unlink(missing_ok=True)
        self._reap(study, engine)
        executor = self._runs().executors.on(study.system)
        if engine.shares:
            executor.submit([_loop(study, number) for number in range(workers)])
        else:
            at_once = _slots(frozen_of(study).spec)
            executor.submit([replace(_loop(study, 0, "--at-once", str(at_once)), launch="plain")])
        return executor.submitted[0].job

    def is_spent(self, study: Sweep) -> bool:
        """Return whether the budget of a study is spent and all its trials have ended."""
        most = study.study.settings.trials
        ended = sum(each.state in ("done", "pruned") for each in self.trials(study))
        return most is not None and ended >= most

    def is_live(self, study: Sweep) -> bool:
        """Return whether a job is running a study."""
        arrays = (self._runs().arrays.get(task["key"]) for task in read_tasks(study.folder))
        return any(array is not None and not array.is_over for array in arrays)

    def wait(self, study: Sweep, *, on_look: Callable[[Sequence[TrialRecord]], None] = lambda _: None) -> StudyStatus:
        """Wait for a study on its system to end; trials of lost workers are retried once."""
        engine = self.engine(study)
        reaped_at = time.monotonic()
        while True:
            while self.is_live(study):
                on_look(engine.trials())
                time.sleep(_LOOK_S)
                if time.monotonic() - reaped_at > _REAP_EVERY_S:
                    self._reap(study, engine)
                    reaped_at = time.monotonic()
            self._reap(study, engine)
            if not engine.waiting() or (study.folder / _STOP).exists():
                break
            self.submit(study)
        self._settle(study)
        trials = self._trials(study, engine)
        on_look(trials)
        return self._status(study, trials)

    def stop(self, reference: str | Sweep, *, dry_run: bool = False) -> ChangedStudy:
        """Stop a study: start no more trials, and cancel its jobs."""
        study = self.get(reference)
        if dry_run:
            return ChangedStudy(study.id, "would be stopped")
        (study.folder / _STOP).touch()
        listed = list(read_tasks(study.folder))
        handles = [Handle(f"{each['key']}/{n}", study.folder) for each in listed for n in range(len(each["tasks"]))]
        if handles:
            self._runs().executors.on(study.system).cancel(handles)
        return ChangedStudy(study.id, "stopped")

    def _reap(self, study: Sweep, engine: Engine) -> None:
        engine.reap(lambda worker: self._is_alive(study, worker))

    def _settle(self, study: Sweep) -> None:
        """Write the end of runs whose worker died, which nobody else will tell."""
        for row in self._runs().rows(group=study.id, states=[RunState.RUNNING]):
            self._runs().collect(row.id)

    def _is_alive(self, study: Sweep, worker: str) -> bool:
        """Tell whether a worker may still be at its trial."""
        holder = Holder.parse(worker, 0)
        if holder.is_dead_here():
            return False
        job = dict(line.split("=", 1) for line in worker.splitlines() if "=" in line).get("job", "")
        key, _, task = job.rpartition("/")
        if key:
            array = self._runs().arrays.get(key)
            if array is None or array.is_over or int(task or 0) in array.ended:
                return False
        return not has_no_pulse(study.folder, holder)


def _engine(study: Sweep, ledger: Ledger) -> Engine:
    record = study.study
    settings, objectives = record.settings, record.objectives
    return ENGINES[settings.engine](
        study.folder,
        record.distributions,
        objectives,
        settings,
        spent=lambda: _budgeted(study, ledger),
        stop_early=stopper(settings, objectives[0].better),
    )


def _with_result(trial: TrialRecord, run: Run | None, objectives: Mapping[str, Better]) -> TrialRecord:
    """Return a trial as its run tells it; what an engine keeps is what its sampler learned."""
    if run is None or trial.state == "running":
        return trial
    result = trial_result(run.state, run.reason, run.metrics, objectives)
    return trial if result.state == "running" else replace(trial, state=result.state, values=result.values)


def _best(study: Sweep, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the best of some trials, or with several objectives those that no other one beats in each of them.

    The best of all that was measured may be a value of a trial that was stopped.
    """
    signs = [1 if each.better == "lower" else -1 for each in study.study.objectives]
    done = [each for each in trials if each.state in ("done", "pruned") and len(each.values) == len(signs)]
    costs = {each.number: [sign * value for sign, value in zip(signs, each.values, strict=True)] for each in done}
    if len(signs) == 1:
        return sorted(done, key=lambda each: costs[each.number])[:1]

    def beats(one: TrialRecord, other: TrialRecord) -> bool:
        mine, theirs = costs[one.number], costs[other.number]
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))

    return [each for each in done if not any(beats(other, each) for other in done)]


def _spent(study: Sweep, ledger: Ledger) -> SpentDict:
    """Return node_hours, and energy_j or None where nothing measured it."""
    nodes = _nodes(study)
    rows = ledger.rows(group=study.id)
    energies = [row.energy_j for row in rows if row.energy_j is not None]
    return {
        "node_hours": sum(row.elapsed_s or 0.0 for row in rows) * nodes / 3600,
        "energy_j": sum(energies) if energies else None,
    }


def _nodes(study: Sweep) -> float:
    """Return how many nodes a trial has: those of its worker, or its part of the allocation that trials share."""
    resources = study.record.spec.get("resources") or {}
    if study.system and not ENGINES[study.study.settings.engine].shares:
        return 1 / (resources.get("tasks_per_node") or 1)
    return resources.get("nodes") or 1


def _budgeted(study: Sweep, ledger: Ledger) -> dict[str, float]:
    """Return what was spent, for a budget; one of energy that nobody measures would never end, so it raises."""
    spent = _spent(study, ledger)
    over = [row.id for row in ledger.rows(group=study.id, states=[RunState.DONE, RunState.FAILED], limit=1)]
    if study.study.settings.energy_j is not None and over and spent["energy_j"] is None:
        raise SystemFailure(
            f"cannot enforce the energy budget: the energy of run {over[0]} was not measured",
            hint="`fairmile watch --list` shows why; use trials, time or node_hours instead",
        )
    return {
        "nodes": float(_nodes(study)),
        "node_hours": spent["node_hours"],
        "energy_j": spent["energy_j"] or 0.0,
    }


def frozen_of(study: Sweep) -> Frozen:
    """Return what the runs of a study share."""
    return Frozen(study.folder, RunSpec.model_validate(study.record.spec), study.record.values)


def _loop(study: Sweep, number: int, *arguments: str) -> Loop:
    """Return a worker of a study, which tries what its engine proposes."""
    return Loop(study.folder, number, "fairmile.sweeps.tuning.study_worker", arguments, study.system, _LOG)


def _slots(spec: RunSpec) -> int:
    """Return how many trials an allocation executes together: one for each task that was asked for."""
    return (spec.resources.nodes or 1) * (spec.resources.tasks_per_node or 1)


def _step_words(spec: RunSpec) -> list[str]:
    """Return the words that have Slurm execute one trial on its part of the allocation, on whichever node has room."""
    resources, per_node = spec.resources, spec.resources.tasks_per_node or 1
    words = ["srun", "--exact", "--nodes=1", "--ntasks=1", "--mem=0", f"--cpus-per-task={resources.cpus_per_task or 1}"]
    if resources.gpus_per_node:
        words.append(f"--gpus-per-node={max(resources.gpus_per_node // per_node, 1)}")
    return words


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("fairmile: ") if lines else "they said nothing"


def work(
    folder: Path, environ: Mapping[str, str], *, at_once: int, launch: Sequence[str], key: str = "", parent: int = 0
) -> None:
    """Be a worker of a study: try what its engine proposes until the budget is spent, or somebody stops it.

    `key` is that of the job array whose task this is, `parent` the process without which nothing more is to begin. A
    signal that ends processes ends the trials that run, politely first; they are tried again later.
    """
    study, batch = read_sweep(folder), Batch.read(folder)
    record = study.record
    definition = read_definition(record.source, environ=environ)
    task = int(environ.get("FAIRMILE_ARRAY_INDEX") or 0)
    job = JobReference(key=key, system=study.system, task=task) if key else None
    template = folder / record.template if record.template else None
    members = Members(definition, template, environ, record.changes)
    batch = replace(batch, wrapper=tuple(launch)) if launch else batch
    if key and not _engine(study, Ledger(batch.root)).shares:
        batch = replace(batch, wrapper=(*_step_words(frozen_of(study).spec), *batch.wrapper))
    runner = TrialRunner(study.id, frozen_of(study), members, batch, study.study.objectives, job)
    stopped, me = folder / _STOP, Holder.me()

    def stop() -> bool:
        return runner.is_interrupted or stopped.exists() or (parent != 0 and os.getppid() != parent)

    worker = me.text() + (f"job={key}/{task}\n" if key else "")
    with _signals_to(runner.interrupt), Pulse(folder, me):
        _engine(study, Ledger(batch.root)).work(runner, at_once=at_once, worker=worker, stop=stop)


@contextlib.contextmanager
def _signals_to(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have signals that end a process call `interrupt`; only a main thread may listen."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Hangups are ignored where nohup asks for it. A script ignores interruptions for what it starts in the
            # background, so that no terminal ends it, but ours come from who started the worker.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda *_: interrupt())
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
