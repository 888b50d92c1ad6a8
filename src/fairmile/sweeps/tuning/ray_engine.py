"""Ray Tune as the engine of a study: random search, TPE, ASHA, Hyperband, and population-based training.

Ray's actors do not execute trials: a trial is a run, which belongs to the process that holds the study, and what
executes it cannot travel. Each actor is only the seat of a trial in Ray's scheduling. It asks over a socket in a
private folder of this host for the next value, and Ray's search algorithms and schedulers, which live in this process,
decide on it. One question is under way for each seat: a report returns when Ray has judged it, and where Ray ends the
trial, with the reason. Nothing of Ray remains: what happened is in the records of the study, from which it is resumed
with the results known so far.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fairmile.base.errors import MissingExtra, UsageError
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import INTERRUPTED, Execute, Outcome, Settings, Trial
from fairmile.sweeps.tuning.optuna_engine import suggest
from fairmile.sweeps.tuning.rules import Decide
from fairmile.sweeps.tuning.search_space import Dimension, Space
from fairmile.sweeps.tuning.trial_log import Entry, RecordedEngine, Records

_OBJECT_STORE_BYTES = 80 << 20  # what Ray asks for at least; nothing is kept there
_MOST_STARTS = 3
_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a banner whatever it is told
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


class RayEngine(RecordedEngine):
    """Chooses trials by Ray Tune; see Engine.

    Ray is started on this host for the time of `work`, unless the process has started it already. Of a population
    every member is one trial of as many generations as `steps` holds intervals; each is executed as a Trial of its own
    with the checkpoint to go on from, and a `generation` that counts what this member executed. Its record is done
    when its last generation so far is; a study that was stopped goes on from there. PBT draws from Python's global
    random numbers, so that a seed fixes only how the members begin.
    """

    name = "ray"
    samplers = ("random", "tpe", "pbt")
    pruners = ("asha", "hyperband")

    def __init__(
        self,
        folder: Path,
        distributions: Mapping[str, Mapping[str, object]],
        objectives: Sequence[Objective],
        settings: Settings,
        **more: Any,
    ) -> None:
        super().__init__(folder, distributions, objectives, settings, **more)
        _check(settings)

    def work(self, execute: Execute, *, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        """Let Ray Tune choose trials, `at_once` together, until the budget is spent or `stop` says so."""
        _import_ray(self.records.rules.settings.sampler)
        with self.records.opened():
            if not stop() and not self.records.is_spent():
                self._work(execute, at_once, worker, stop)

    def _work(self, execute: Execute, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        with (
            _environment(_ENVIRONMENT),
            # The paths of sockets are short, those of a folder for temporary files may not be.
            tempfile.TemporaryDirectory(prefix="fairmile-ray-", dir="/tmp", ignore_cleanup_errors=True) as scratch,
            _ray_running(at_once, Path(scratch)),
            _Desk(Path(scratch), self.records, execute, worker, at_once, stop) as desk,
        ):
            plan = _Population(desk) if self.records.rules.settings.sampler == "pbt" else _Search(desk)
            if plan.has_trials:
                _tune(desk, plan, at_once)
        if desk.errors:
            raise desk.errors[0]


def _check(settings: Settings) -> None:
    if settings.steps is None and (name := settings.pruner or (settings.sampler == "pbt" and "pbt")):
        raise UsageError(f"{name} of Ray needs the last step of a trial", hint="add steps: N to `tuning`")
    if settings.sampler != "pbt":
        return
    if settings.trials not in (None, settings.population):
        raise UsageError(
            f"pbt has {settings.population} members, not {settings.trials} trials",
            hint="set population: N in `tuning` and remove `trials`",
        )
    if settings.population < 2:
        raise UsageError("a population needs at least two members", hint="set population: 4 in `tuning`")


def _tune(desk: _Desk, plan: _Search | _Population, at_once: int) -> None:
    """Run Ray Tune over the seats of a desk until its plan has no more trials."""
    from ray import tune

    ours = tune.with_parameters(_seat_class(), address=desk.address, population=plan.is_population)
    tuner = tune.Tuner(
        tune.with_resources(ours, {"CPU": 1}),
        param_space=plan.param_space,
        tune_config=tune.TuneConfig(
            search_alg=plan.search_alg,
            scheduler=plan.scheduler,
            num_samples=plan.num_samples,
            max_concurrent_trials=None if plan.is_population else at_once,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(desk.scratch / "results"),
            verbose=0,
            callbacks=[_callback(desk)],
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    tuner.fit()


class _Search:
    """Trials that a search algorithm proposes one by one, and a scheduler may stop."""

    is_population = False
    has_trials = True
    num_samples = -1  # the search algorithm says when it is enough

    def __init__(self, desk: _Desk) -> None:
        settings, objectives = desk.records.rules.settings, desk.records.rules.objectives
        self.param_space: dict[str, Any] = {}
        self.search_alg = _searcher(desk)
        self.scheduler = None
        if settings.pruner:
            from ray.tune.schedulers import AsyncHyperBandScheduler

            self.scheduler = AsyncHyperBandScheduler(
                time_attr="step",
                metric="value",
                mode=_mode(objectives[0]),
                max_t=settings.steps or 1,
                grace_period=settings.first_rung or 1,
                reduction_factor=settings.reduction,
                brackets=3 if settings.pruner == "hyperband" else 1,
                stop_last_trials=False,
            )


class _Population:
    """Members that all begin at once, and go on from each other's checkpoints."""

    is_population = True

    def __init__(self, desk: _Desk) -> None:
        from ray import tune
        from ray.tune.schedulers import PopulationBasedTraining
        from ray.tune.search.basic_variant import BasicVariantGenerator

        settings, space = desk.records.rules.settings, desk.records.rules.space
        assert settings.steps is not None
        known = {entry.number: entry for entry in desk.records.entries()}
        points = [
            self._point(space, settings.seed, member, known.get(member))
            for member in range(settings.population)
            if member not in known or _goes_on(known[member], settings.steps)
        ]
        self.has_trials = bool(points)
        self.num_samples = len(points)
        self.param_space = {key: tune.choice([0]) for key in ("member", *(_key(space, d) for d in space.dimensions))}
        self.search_alg = BasicVariantGenerator(points_to_evaluate=points)
        self.scheduler = PopulationBasedTraining(
            time_attr="step",
            metric="value",
            mode=_mode(desk.records.rules.objectives[0]),
            perturbation_interval=settings.interval,
            hyperparam_mutations={
                _key(space, each): list(each.choices) if each.choices else _drawing(each) for each in space.dimensions
            },
            custom_explore_fn=lambda config: _within(space, config),
            log_config=False,
        )

    @staticmethod
    def _point(space: Space, seed: int | None, member: int, before: Entry | None) -> dict[str, Any]:
        """Return how a member begins: with every parameter, since another one may make it apply."""
        draw = random.Random() if seed is None else random.Random(f"{seed}/{member}")
        point = {_key(space, each): _draw(each, draw) for each in space.dimensions}
        if before is not None:
            point |= {
                _key(space, each): before.params[each.name] for each in space.dimensions if each.name in before.params
            }
        return {"member": member, **point}


def _goes_on(entry: Entry, steps: int) -> bool:
    return entry.reached < steps and (entry.state != "failed" or entry.may_be_repeated)


class _Running:
    """One trial that is executed in a thread of ours and judged by Ray: a value out, a word back."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.values: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.last_step: float | None = None
        self._is_ended = False  # Ray is through with it, and asks for nothing more

    def decide(self, step: float, value: float) -> str:
        self.last_step = step
        if self._is_ended:
            return ""
        self.values.put({"step": step, "value": value})
        why = self.words.get()
        self._is_ended = bool(why)
        return why


class _Desk:
    """Where the seats of Ray ask: executes trials here, and hands their values out one at a time."""

    def __init__(
        self,
        scratch: Path,
        records: Records,
        execute: Execute,
        worker: str,
        at_once: int,
        stop: Callable[[], bool],
    ) -> None:
        self.scratch = scratch
        self.records = records
        self.errors: list[BaseException] = []
        self.guided: _Guided | None = None  # chooses; else chance does
        self._execute = execute
        self._worker = worker
        self._stop = stop
        self._at_once = at_once
        self._free = threading.Semaphore(at_once)
        self._lock = threading.Lock()
        self._proposed: dict[str, Trial] = {}  # by Ray's id, until it is executed
        self._running: dict[str, _Running] = {}
        self._members: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self.address = str(scratch / "desk")
        # Only who may enter the folder, which is ours alone, can connect.
        self._listener = Listener(self.address, family="AF_UNIX", backlog=64)
        self._listening = threading.Thread(target=self._accept, name="ray-desk", daemon=True)
        self._is_left = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray writes down all that it is given, to resume by itself, which it never does here.
        return str, ("desk",)

    def __enter__(self) -> Self:
        self._listening.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.records.interrupted = self.records.interrupted or kind is not None
        with self._lock:
            for running in self._running.values():
                running.words.put(INTERRUPTED)
        for thread in self._threads:
            thread.join()
        for _ in range(self._at_once):  # generations are executed by the threads of their seats
            self._free.acquire()
        self._is_left = True
        with suppress(OSError):  # who waits for a connection is not woken by closing
            Client(self.address, family="AF_UNIX").close()
            self._listening.join()
        self._listener.close()
        with self._lock:
            for trial in self._proposed.values():
                self.records.lose(trial.number, "interrupted before it ran")
            self._proposed.clear()

    def is_closed(self) -> bool:
        """Tell whether no further trial is to begin."""
        return bool(self.errors) or self._stop() or self.records.is_spent()

    def propose(self, id: str) -> bool:
        """Choose a trial for a seat of Ray; False where no further one is to begin."""
        if self.is_closed():
            return False
        lost = next(iter(self.records.to_repeat()), None)
        if lost is not None:
            params = dict(lost.params)
        elif self.guided is not None:
            params = self.guided.suggest(id)
        else:
            seed = self.records.rules.settings.seed
            draw = random.Random() if seed is None else random.Random(f"{seed}/{len(self.records.entries())}")
            params = self.records.rules.space.draw(lambda each: _draw(each, draw))
        trial = self.records.begin(params, self._worker, retry_of=None if lost is None else lost.number)
        with self._lock:
            self._proposed[id] = trial
        return True

    def ended(self, id: str, why: str) -> None:
        """Take notice that Ray is through with a trial, whose program may still run."""
        with self._lock:
            running = self._running.get(id)
        if running is not None:
            running.words.put(why)

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            if self._is_left:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), name="ray-seat", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        last = ""
        with suppress(EOFError, OSError), connection:
            while True:
                asked = json.loads(connection.recv_bytes())
                last = asked["id"]
                answer = self._generation(asked) if asked["population"] else self._next(asked)
                connection.send_bytes(json.dumps(answer).encode())
        if last:
            self.ended(last, "its Ray process ended")

    def _next(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the next value of a trial, which begins with the first question for it."""
        id = asked["id"]
        with self._lock:
            trial = self._proposed.pop(id, None)
            if trial is not None:
                running = self._running[id] = _Running(trial)
                thread = threading.Thread(target=self._run, args=(running,), name=f"trial-{trial.number}")
                self._threads.append(thread)
                thread.start()
            else:
                running = self._running[id]
        if trial is None:
            running.words.put("")
        return running.values.get()

    def _run(self, running: _Running) -> None:
        with self._free:
            outcome = self._carried_out(running.trial, running.decide)
        running.values.put(self._result(outcome, running.last_step))

    def _generation(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Execute the next generation of a member, and return what it came to."""
        id, space, settings = asked["id"], self.records.rules.space, self.records.rules.settings
        assert settings.steps is not None
        with self._lock:
            # Who is cloned gives its whole configuration away, so only the first question tells the member.
            member = self._members.setdefault(id, asked["config"]["member"])
        before = next((entry for entry in self.records.entries() if entry.number == member), None)
        checkpoint, reached = asked["checkpoint"], asked["reached"]
        if not checkpoint and before is not None:
            checkpoint, reached = before.checkpoint, before.reached
        if self.is_closed():
            return {"done": True}
        values = {each.name: asked["config"][_key(space, each)] for each in space.dimensions}
        trial = Trial(
            member,
            space.draw(lambda each: values[each.name]),
            generation=0 if before is None else before.generation + 1,
            checkpoint=checkpoint,
            until=min(int(reached) + settings.interval, settings.steps),
        )
        with self._free:
            self.records.begin_generation(trial, self._worker)
            outcome = self._carried_out(trial, lambda step, value: "")
        result = self._result(outcome, trial.until)
        if outcome.state != "done":
            return result
        assert trial.until is not None
        return {
            **result,
            "done": trial.until >= settings.steps,
            "reached": trial.until,
            "checkpoint": outcome.checkpoint,
        }

    def _carried_out(self, trial: Trial, decide: Decide) -> Outcome:
        try:
            if self.records.interrupted:
                self.records.lose(trial.number, "interrupted before it ran")
                return Outcome("running")
            return self.records.carry_out(trial, self._execute, decide)
        except BaseException as error:  # noqa: BLE001  raised again by `work`, in the thread that called it
            self.errors.append(error)
            return Outcome("failed", reason=str(error))

    def _result(self, outcome: Outcome, last_step: float | None) -> dict[str, Any]:
        """Return the last result of a trial; without a step where there is nothing that schedulers could compare."""
        if outcome.state in ("failed", "running") or len(outcome.values) != len(self.records.rules.objectives):
            return {"done": True}
        step = self.records.rules.settings.steps or 1 if last_step is None else last_step
        values = {_metric(place): value for place, value in enumerate(outcome.values)}
        return {"done": True, "step": step, **values}


def _seat_class() -> Any:
    """Return what Ray's actors are: they ask at the desk and return what they are told."""
    from ray import tune

    class Seat(tune.Trainable):  # type: ignore[misc,unused-ignore]
        def setup(self, config: dict[str, Any], address: str = "", population: bool = False) -> None:
            self.desk = Client(address, family="AF_UNIX")
            self.population = population
            self.position = {"checkpoint": "", "reached": 0}

        def step(self) -> dict[str, Any]:
            asked = {"id": self.trial_id, "population": self.population, "config": self.config, **self.position}
            self.desk.send_bytes(json.dumps(asked).encode())
            reply: dict[str, Any] = json.loads(self.desk.recv_bytes())
            self.position = {key: reply.pop(key, self.position[key]) for key in self.position}
            return reply

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            with open(os.path.join(checkpoint_dir, "position.json"), "w") as stream:
                json.dump(self.position, stream)

        def load_checkpoint(self, checkpoint: Any) -> None:
            with open(os.path.join(checkpoint, "position.json")) as stream:
                self.position = json.load(stream)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.position = {"checkpoint": "", "reached": 0}
            return True

        def cleanup(self) -> None:
            self.desk.close()

    return Seat


def _callback(desk: _Desk) -> Any:
    """Return what tells the desk that Ray has ended a trial."""
    from ray import tune

    class Ended(tune.Callback):  # type: ignore[misc,unused-ignore]
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result or {}
            value, step = last.get("value", float("nan")), last.get("step", 0)
            desk.ended(trial.trial_id, desk.records.rules.weak(step, value))

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            desk.ended(trial.trial_id, "its Ray process failed")

    return Ended()


def _searcher(desk: _Desk) -> Any:
    """Return what proposes trials to Ray Tune: lost ones first, then as the sampler chooses, until the desk closes."""
    from ray.tune.search import Searcher

    if desk.records.rules.settings.sampler == "tpe":
        desk.guided = _optuna_search(desk.records)

    class Proposals(Searcher):  # type: ignore[misc,unused-ignore]
        def suggest(self, trial_id: str) -> Any:
            # The parameters wait at the desk, where no name or value can offend Ray.
            return {} if desk.propose(trial_id) else Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            if desk.guided is not None:
                desk.guided.complete(trial_id, result, error)

    return Proposals()


class _Guided:
    """Ray's own wrapper of Optuna, with parameters that apply only beside others."""

    def __init__(self, search: Any, drawn: dict[str, Value]) -> None:
        self._search = search
        self._drawn = drawn
        self._asked: set[str] = set()

    def suggest(self, id: str) -> dict[str, Value]:
        self._search.suggest(id)
        self._asked.add(id)
        return dict(self._drawn)

    def complete(self, id: str, result: Mapping[str, Any] | None, error: bool) -> None:
        if id in self._asked:
            failed = error or not result or "step" not in result
            self._search.on_trial_complete(id, None if failed else dict(result or {}), error=failed)


def _optuna_search(records: Records) -> _Guided:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn: dict[str, Value] = {}

    def space(trial: Any) -> None:
        drawn.clear()
        drawn.update(records.rules.space.draw(lambda each: suggest(trial, each)))

    several = len(records.rules.objectives) > 1
    modes = [_mode(each) for each in records.rules.objectives]
    seed, entries = records.rules.settings.seed, records.entries()
    own = None if seed is None else random.Random(f"{seed}/{len(entries)}").getrandbits(31)
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(
        storage=storage,
        study_name="study",
        directions=["minimize" if mode == "min" else "maximize" for mode in modes],
    )
    for entry in entries:
        if entry.state in ("done", "pruned") and len(entry.values) == len(modes):
            named = {each.name: _distribution(optuna, each) for each in records.rules.space.dimensions}
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(entry.params),
                    distributions={name: named[name] for name in entry.params},
                    values=list(entry.values),
                )
            )
    search = OptunaSearch(
        space,
        metric=[_metric(place) for place in range(len(modes))] if several else "value",
        mode=modes if several else modes[0],
        storage=storage,
        study_name="study",
        sampler=optuna.samplers.TPESampler(seed=own, n_startup_trials=10),
    )
    return _Guided(search, drawn)


def _distribution(optuna: Any, each: Dimension) -> Any:
    kinds = optuna.distributions
    if each.kind == "choice":
        return kinds.CategoricalDistribution(each.choices)
    if each.kind == "integer":
        return kinds.IntDistribution(int(each.low), int(each.high), log=each.log, step=int(each.step or 1))
    return kinds.FloatDistribution(each.low, each.high, log=each.log, step=each.step)


def _draw(each: Dimension, by: random.Random) -> Value:
    """Return a value of a dimension at random."""
    if each.kind == "choice":
        return by.choice(each.choices)
    if each.log:
        # A whole number gets the room around it, so that both ends are as likely as their neighbours.
        room = 0.5 if each.kind == "integer" else 0.0
        value = math.exp(by.uniform(math.log(each.low - room), math.log(each.high + room)))
        value = min(max(value, each.low), each.high)
        return round(value) if each.kind == "integer" else value
    if each.step is None:
        return by.uniform(each.low, each.high)
    places = round((each.high - each.low) / each.step)
    value = each.low + by.randint(0, places) * each.step
    return int(value) if each.kind == "integer" else each.tidy(value)


def _drawing(each: Dimension) -> Callable[[], Value]:
    return lambda: _draw(each, random.Random())


def _within(space: Space, config: dict[str, Any]) -> dict[str, Any]:
    """Return a changed configuration with each number within its range and on its steps again."""
    for each in space.dimensions:
        if each.kind != "choice":
            value = min(max(config[_key(space, each)], each.low), each.high)
            if each.step is not None:
                value = each.low + round((value - each.low) / each.step) * each.step
            config[_key(space, each)] = round(value) if each.kind == "integer" else each.tidy(float(value))
    return config


def _key(space: Space, each: Dimension) -> str:
    """Return the name of a dimension within Ray, where dots and slashes would mean something."""
    return f"p{space.dimensions.index(each)}"


def _metric(place: int) -> str:
    return f"value_{place}" if place else "value"


def _mode(objective: Objective) -> str:
    return "min" if objective.better == "lower" else "max"


@contextmanager
def _ray_running(at_once: int, scratch: Path) -> Iterator[None]:
    """Start Ray on this host for a while, closed to others, unless it runs in this process already."""
    import ray

    if ray.is_initialized():
        yield
        return
    with _own_signals():
        _start_ray(at_once, scratch)
    try:
        yield
    finally:
        ray.shutdown()


def _start_ray(at_once: int, scratch: Path) -> None:
    """Start Ray. It gives its processes 30 s to answer; on a busy host the next ones start faster, from memory."""
    import ray

    for start in range(1, _MOST_STARTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=at_once,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(scratch / "ray"),
            )
            return
        except Exception as error:  # Ray has no class for it
            ray.shutdown()
            if "timed out" not in str(error) or start == _MOST_STARTS:
                raise


@contextmanager
def _own_signals() -> Iterator[None]:
    """Put back what signals do here: Ray would leave the process where it stands, and its trials alone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables that Ray reads when it starts, and put back what was there."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _import_ray(sampler: str) -> None:
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise MissingExtra("the engine ray needs Ray", "ray") from error
    if sampler == "tpe":
        try:
            import optuna  # noqa: F401
        except ImportError as error:
            raise MissingExtra("the sampler tpe of Ray needs Optuna", "ray,tune") from error
