"""Tuning by Optuna: ask and tell over a journal in the study's folder, shared by any number of processes and hosts.

The journal is a file of lines, so that nothing but a shared folder is needed. Its lock is our own: Optuna's takes the
lock of a dead process away after half a minute, and two that wait may then both hold it. A trial is chosen under a
second lock on the study, so that budgets are exact and no two workers propose the same; that lock also makes a trial
without a worker the mark of one that died while choosing. The journal has no heartbeat: `reap` ends the trials of dead
workers and gives their parameters out once more.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity, MissingExtra, UsageError
from fairmile.base.files import Lock, write_failure
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Execute, Outcome, Report, Settings, StopEarly, Trial, TrialRecord, TrialState
from fairmile.sweeps.tuning.rules import Rules, together, worker_words
from fairmile.sweeps.tuning.search_space import Dimension, Space
from fairmile.sweeps.tuning.settings import check_fits

_NAME = "fairmile"  # of the study in its journal; Hyperband's brackets follow from it, so it never changes
_LOCK_TIMEOUT_S = 600.0
_STATES: dict[str, TrialState] = {"RUNNING": "running", "COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
_NEEDED = {"gp": ("torch", "scipy"), "cma-es": ("cmaes",)}
_warnings = threading.RLock()


class OptunaEngine:
    """Chooses trials by Optuna; see Engine.

    With a seed trial number n depends on the seed, n and the trials before it only, so that one worker does the same
    study again, also when it was interrupted and resumed. `trials` counts what was proposed: a trial that was lost
    with its worker and done again counts once.
    """

    shares = True

    def __init__(
        self,
        folder: Path,
        distributions: Mapping[str, Mapping[str, object]],
        objectives: Sequence[Objective],
        settings: Settings,
        *,
        spent: Callable[[], Mapping[str, float]] | None = None,
        stop_early: StopEarly | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.space = Space(distributions)
        self.settings = settings
        check_fits(settings, objectives, self.space)
        self._optuna = _import_optuna(settings.sampler)
        self._folder = folder
        self._rules = Rules(folder, self.space, objectives, settings, spent=spent, stop_early=stop_early, clock=clock)
        self._choosing = threading.Lock()
        self._opened: Any = None
        self._rung = settings.first_rung
        self._population = _population(settings.trials)
        self._grid: tuple[dict[str, Value], ...] | None = None
        if settings.sampler == "grid":
            self._grid = tuple(islice(self.space.grid(), settings.trials))

    def work(self, execute: Execute, *, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        """Ask, execute and tell, `at_once` trials together, until the budget is spent or `stop` says so."""
        if not worker:
            raise UsageError("a worker needs a name, which later shows whether it is alive")
        self._rules.check_measured()
        self._open(create=True)

        def step() -> bool:
            asked = None if stop() else self._ask(worker)
            if asked is not None:
                self._carry_out(*asked, execute)
            return asked is not None

        together(step, at_once)

    def trials(self) -> Sequence[TrialRecord]:
        """Return what the study knows, in the order of the numbers; nothing is written."""
        study = self._open(create=False)
        if study is None:
            return ()
        return tuple(self._record(each) for each in _frozen(study) if each.state.name != "WAITING")

    def reasons(self) -> dict[int, str]:
        """Return why trials failed or were stopped, by number."""
        study = self._open(create=False)
        kept = {} if study is None else {each.number: each.user_attrs.get("reason", "") for each in _frozen(study)}
        return {number: reason for number, reason in kept.items() if reason}

    def waiting(self) -> int:
        """Return how many trials that were lost are still to be tried again, and may be."""
        study = self._open(create=False)
        waiting = 0 if study is None else sum(each.state.name == "WAITING" for each in _frozen(study))
        return waiting if waiting and not self._is_spent(_frozen(study)) else 0

    def reap(self, is_alive: Callable[[str], bool]) -> int:
        """Mark trials as failed whose worker is dead, give their parameters out once more, and return how many."""
        study = self._open(create=False)
        if study is None:
            return 0
        running = [each for each in _frozen(study) if each.state.name == "RUNNING"]
        # To look at a worker may take long, so it happens before the lock.
        dead = {name for name in {_worker(each) for each in running} if name and not is_alive(name)}
        if not dead and all(_worker(each) for each in running):
            return 0
        reaped = 0
        with self._alone():
            for each in _frozen(study):
                if each.state.name == "RUNNING" and (not _worker(each) or _worker(each) in dead):
                    name = _worker(each)
                    reason = (
                        f"its worker {worker_words(name)} died" if name else "its worker died before the trial started"
                    )
                    self._lose(study, each, reason)
                    reaped += 1
        return reaped

    def _open(self, *, create: bool) -> Any:
        """Return the study; where there is none yet a new one, or None without `create`."""
        if self._opened is not None:
            return self._opened
        if create:
            with self._alone():
                study = self._load() or self._create()
        elif not self._journal.exists() or (study := self._load()) is None:
            return None
        self._check_same(study)
        self._opened = study
        return study

    @property
    def _journal(self) -> Path:
        return self._folder / "journal.log"

    def _load(self) -> Any:
        self._storage = self._optuna.storages.JournalStorage(_Journal(self._journal))
        try:
            return self._optuna.load_study(
                study_name=_NAME, storage=self._storage, sampler=self._sampler(0), pruner=self._pruner(self._rung)
            )
        except KeyError:  # the journal was begun, but the study was not
            return None

    def _create(self) -> Any:
        study = self._optuna.create_study(
            study_name=_NAME,
            storage=self._storage,
            sampler=self._sampler(0),
            pruner=self._pruner(self._rung),
            directions=["minimize" if each.better == "lower" else "maximize" for each in self._rules.objectives],
        )
        study.set_user_attr("population", self._population)
        study.set_user_attr("made_of", self._rules.made_of())
        return study

    def _check_same(self, study: Any) -> None:
        # Generations keep their size when a study is resumed with more trials.
        self._population = study.user_attrs.get("population", self._population)
        # A process that died in the middle of _create left a study without this mark, and without trials.
        if (before := study.user_attrs.get("made_of")) is not None:
            self._rules.check_same(before)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the study against all other threads and processes that choose or reap."""
        with self._choosing, Lock(self._folder / "choosing.lock", timeout_s=_LOCK_TIMEOUT_S):
            yield

    def _ask(self, worker: str) -> tuple[Any, Trial] | None:
        """Return the next trial, in Optuna's form and in ours, or None when the budget is spent."""
        study = self._open(create=True)
        with self._alone(), _quiet():
            frozen = _frozen(study)
            waiting = [each.number for each in frozen if each.state.name == "WAITING"]
            if self._is_spent(frozen):
                return None
            if self._grid is not None and not waiting:
                place = sum("retry_of" not in each.user_attrs for each in frozen)
                if place >= len(self._grid):
                    return None
                study.enqueue_trial(self._grid[place])
            study.sampler = self._sampler(waiting[0] if waiting else len(frozen))
            trial = study.ask()
            params = self.space.draw(lambda each: suggest(trial, each))
            trial.set_user_attr("worker", worker)
        return trial, Trial(trial.number, params)

    def _is_spent(self, frozen: Sequence[Any]) -> bool:
        again = {each.user_attrs["retry_of"] for each in frozen if "retry_of" in each.user_attrs}
        taken = sum(each.state.name != "WAITING" and each.number not in again for each in frozen)
        return self._rules.is_spent(taken, _spans(frozen))

    def _sampler(self, number: int) -> Any:
        """Return the sampler of one trial, which knows the seed and the number but keeps nothing from those before."""
        seed = self.settings.seed
        own = None if seed is None else random.Random(f"{seed}/{number}").getrandbits(31)
        samplers, options, name = self._optuna.samplers, dict(self.settings.options), self.settings.sampler
        with _quiet():
            if name == "tpe":
                options.setdefault("multivariate", True)
                options.setdefault("constant_liar", True)  # the trials of other workers count as bad until they end
                group = bool(options["multivariate"]) and self.space.has_conditions
                return samplers.TPESampler(seed=own, group=group, **options)
            if name == "gp":
                return samplers.GPSampler(seed=own, **options)
            if name == "cma-es":
                pruned = {"consider_pruned_trials": True} if self.settings.pruner else {}
                return samplers.CmaEsSampler(seed=own, warn_independent_sampling=False, **pruned, **options)
            if name == "nsga-ii":
                options.setdefault("population_size", self._population)
                # Uniform crossover, the default, only swaps the numbers that there are.
                return samplers.NSGAIISampler(seed=own, crossover=samplers.nsgaii.BLXAlphaCrossover(), **options)
            return samplers.RandomSampler(seed=own)

    def _pruner(self, first_rung: int | None) -> Any:
        """Return the pruner; one that stops nothing where the first step to stop at is not known yet."""
        settings, pruners = self.settings, self._optuna.pruners
        if first_rung is None or not settings.pruner:
            return pruners.NopPruner()
        if settings.pruner == "asha":
            return pruners.SuccessiveHalvingPruner(
                min_resource=first_rung, reduction_factor=settings.reduction, min_early_stopping_rate=0
            )
        if settings.pruner == "hyperband":
            return pruners.HyperbandPruner(
                min_resource=first_rung, max_resource=settings.steps, reduction_factor=settings.reduction
            )
        return pruners.MedianPruner(n_startup_trials=settings.startup, n_warmup_steps=first_rung)

    def _first_rung(self) -> int | None:
        """Return the first step at which a trial may be stopped; None while nothing tells how long trials are."""
        if self._rung is None and self.settings.pruner:
            done = [
                each for each in _frozen(self._opened) if each.state.name == "COMPLETE" and each.intermediate_values
            ]
            first = min(done, key=lambda each: each.datetime_complete, default=None)
            if first is not None:
                self._rung = self.settings.rung_of(max(first.intermediate_values))
                self._opened.pruner = self._pruner(self._rung)
        return self._rung

    def _carry_out(self, asked: Any, trial: Trial, execute: Execute) -> None:
        try:
            outcome = execute(trial, self._reporter(asked))
        except BaseException as error:
            self._interrupt(trial.number, f"interrupted: {str(error) or type(error).__name__}")
            raise
        if outcome.state == "running":
            self._interrupt(trial.number, outcome.reason or "interrupted", outcome.run)
        else:
            self._tell(asked, outcome)

    def _reporter(self, asked: Any) -> Report:
        """Return what takes the values of a trial; a step is a whole number to Optuna."""

        def unless_lost(ask: Callable[[], str]) -> str:
            try:
                return ask()
            except self._optuna.exceptions.UpdateFinishedTrialError:
                return "this trial was given to another worker because its worker seemed lost"

        def keep(step: float, value: float) -> str:
            return unless_lost(lambda: asked.report(value, int(step)) or "")

        def decide(step: float, value: float) -> str:
            first = self._first_rung()
            if not self.settings.pruner or first is None or step < first:
                return ""
            return unless_lost(lambda: self._rules.weak(step, value) if asked.should_prune() else "")

        return self._rules.reporter(keep, decide, self.trials, whole=True)

    def _tell(self, asked: Any, outcome: Outcome) -> None:
        states = self._optuna.trial.TrialState
        state, reason = (
            {"done": states.COMPLETE, "pruned": states.PRUNED}.get(outcome.state, states.FAIL),
            outcome.reason,
        )
        if state is states.COMPLETE and (wrong := self._rules.why_unusable(outcome.values)):
            state, reason = states.FAIL, wrong
        values = list(outcome.values) if state is states.COMPLETE else None
        try:
            for key, kept in (("run", outcome.run), ("reason", reason)):
                if kept:
                    asked.set_user_attr(key, kept)
            if state is states.PRUNED and outcome.values and all(map(math.isfinite, outcome.values)):
                asked.set_user_attr("last_values", list(outcome.values))
            self._opened.tell(asked, values, state=state, skip_if_finished=True)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            pass  # it was taken for lost meanwhile, and another worker does it again

    def _interrupt(self, number: int, reason: str, run: str = "") -> None:
        with self._alone():
            self._lose(self._opened, _frozen(self._opened)[number], reason, run)

    def _lose(self, study: Any, lost: Any, reason: str, run: str = "") -> None:
        """End a running trial as failed, after giving its parameters out once more; call it alone."""
        if lost.state.is_finished():
            return
        # A reaper may have died half way: the second one must not give them out twice.
        again = any(each.user_attrs.get("retry_of") == lost.number for each in _frozen(study))
        if "retry_of" not in lost.user_attrs and not again:
            study.enqueue_trial(lost.params, user_attrs={"retry_of": lost.number})
        identity = self._storage.get_trial_id_from_study_id_trial_number(
            self._storage.get_study_id_from_name(_NAME), lost.number
        )
        try:
            self._storage.set_trial_user_attr(identity, "lost", True)
            for key, kept in (("run", run), ("reason", reason)):
                if kept:
                    self._storage.set_trial_user_attr(identity, key, kept)
            study.tell(lost.number, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            pass  # its worker lives after all, and told just now how it ended

    def _record(self, frozen: Any) -> TrialRecord:
        steps = sorted(frozen.intermediate_values.items())
        curve = tuple((float(step), value) for step, value in steps if math.isfinite(value))
        values = tuple(frozen.values or ())
        state = frozen.state.name
        if state == "PRUNED":
            values = (
                tuple(frozen.user_attrs.get("last_values", ())) or values or tuple(value for _, value in curve[-1:])
            )
        started, ended = frozen.datetime_start, frozen.datetime_complete
        return TrialRecord(
            number=frozen.number,
            state=_STATES[state],
            params=self.space.in_order(frozen.params),
            values=values if state in ("COMPLETE", "PRUNED") else (),
            curve=curve,
            started=started.timestamp() if started else 0.0,
            ended=ended.timestamp() if ended else None,
            worker=_worker(frozen),
            run=frozen.user_attrs.get("run", ""),
        )


class _Journal:
    """A file of JSON lines as Optuna's journal, for JournalStorage.

    Writers take turns by our lock. A line that was cut off, because its writer died or the disk was full, is removed by
    the next writer and passed over by readers, so that it costs no study.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = (0, 0)  # number of the first line that was not read yet, and its offset

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        number, offset = self._at if self._at[0] <= log_number_from else (0, 0)
        try:
            with open(self._path, "rb") as stream:
                stream.seek(offset)
                lines = stream.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            number += 1
            # The reader may stop after any line, and goes on with the next one.
            self._at = (number, offset)
            if number > log_number_from:
                yield self._parsed(line, number)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs)
        with Lock(f"{self._path}.lock", timeout_s=_LOCK_TIMEOUT_S):
            try:
                self._append(text.encode())
            except OSError as error:
                raise write_failure(str(self._path), error) from error

    def _append(self, data: bytes) -> None:
        with open(self._path, "a+b", buffering=0) as stream:
            end = _end_of_lines(stream)
            # Only where it must be: a writer that was suspended here may have lost its turn to others.
            if end < os.fstat(stream.fileno()).st_size:
                os.ftruncate(stream.fileno(), end)
            try:
                while data:
                    data = data[stream.write(data) :]
                os.fsync(stream.fileno())
            except OSError:
                os.ftruncate(stream.fileno(), end)
                raise

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise Integrity(
                f"{self._path}:{number}: this line is damaged",
                hint="restore the file from a backup, or start a new study under another name",
            ) from error


def _end_of_lines(stream: Any) -> int:
    """Return where the last whole line of a file ends."""
    end = int(stream.seek(0, os.SEEK_END))
    at = end
    while at > 0:
        start = max(0, at - 65_536)
        stream.seek(start)
        newline = stream.read(at - start).rfind(b"\n")
        if newline >= 0:
            return start + int(newline) + 1
        at = start
    return 0


def _import_optuna(sampler: str) -> Any:
    try:
        with _warnings, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"tqdm\b")  # which misses a bar for notebooks that is not ours
            import optuna
    except ImportError as error:
        raise MissingExtra("tuning needs Optuna", "tune") from error
    for package in _NEEDED.get(sampler, ()):
        if find_spec(package) is None:
            raise MissingExtra(f"the sampler {sampler} needs {package}", "predict" if package == "torch" else "tune")
    if optuna.logging.get_verbosity() < optuna.logging.ERROR:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's warnings to itself: what it calls experimental here was chosen on purpose."""
    import optuna

    # Two threads that change the filters at once would leave them changed.
    with _warnings, warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # From Python 3.12 on, a warning of Optuna names the module that called it.
        warnings.filterwarnings("ignore", module=rf"(optuna|{re.escape(__name__)})\b")
        yield


def _frozen(study: Any) -> list[Any]:
    """Return all trials as Optuna keeps them, by number; not to be changed."""
    return list(study.get_trials(deepcopy=False))


def _worker(frozen: Any) -> str:
    return str(frozen.user_attrs.get("worker", ""))


def suggest(trial: Any, dimension: Dimension) -> Value:
    """Return what a trial of Optuna chooses for a parameter."""
    chosen: Value
    if dimension.kind == "choice":
        chosen = trial.suggest_categorical(dimension.name, dimension.choices)
    elif dimension.kind == "integer":
        step = int(dimension.step or 1)
        chosen = trial.suggest_int(
            dimension.name, int(dimension.low), int(dimension.high), step=step, log=dimension.log
        )
    else:
        chosen = trial.suggest_float(
            dimension.name, dimension.low, dimension.high, step=dimension.step, log=dimension.log
        )
    return chosen


def _population(trials: int | None) -> int:
    """Return the size of a generation that leaves time for several."""
    return 50 if trials is None else min(50, max(8, trials // 5))


def _spans(frozen: Iterable[Any]) -> Iterator[tuple[float, float | None]]:
    """Yield when trials ran; of those lost with their worker nobody knows until when."""
    for each in frozen:
        if each.datetime_start is not None and "lost" not in each.user_attrs:
            yield (
                each.datetime_start.timestamp(),
                each.datetime_complete.timestamp() if each.datetime_complete else None,
            )
