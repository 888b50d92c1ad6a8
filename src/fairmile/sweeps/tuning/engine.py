"""What every tuning engine does, whoever chooses the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal, Protocol, TypedDict

from fairmile.base.html_tables import fields_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.base.units import format_number
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective

TrialState = Literal["running", "done", "pruned", "failed"]
INTERRUPTED = "the study was interrupted"  # why a trial is stopped that nobody judged: it may be retried


@dataclass(frozen=True)
class Trial:
    """One proposal of an engine, to be executed as a run.

    `checkpoint` is the folder that a trial of a population goes on from (empty: from the start), `until` the step at
    which its next generation ends.
    """

    number: int
    params: Mapping[str, Value]
    generation: int = 0
    checkpoint: str = ""
    until: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: one value for each objective where it is done; for a pruned one the last values, or none.

    One that is still `running` was interrupted from outside: it may be retried.
    """

    state: TrialState
    values: tuple[float, ...] = ()
    reason: str = ""
    run: str = ""  # id of its run
    checkpoint: str = ""  # folder that it left for others to go on from


# Called with each new value of the first objective while a trial runs: (step, value) → why to stop it, or "".
Report = Callable[[float, float], str]
# Executes a trial as a run, to its end, and tells values through `report` on the way.
Execute = Callable[[Trial, Report], Outcome]


class TrialDict(TypedDict):
    """A trial; `curve` has (step, value) of the first objective, times are seconds since the epoch."""

    number: int
    state: TrialState
    params: dict[str, Value]
    values: list[float]
    curve: list[list[float]]
    started: float
    ended: float | None
    worker: str
    run: str


@dataclass(frozen=True, repr=False)
class TrialRecord(Result):
    """What a study knows of a trial, finished or not; times are seconds since the epoch."""

    number: int
    state: TrialState
    params: Mapping[str, Value]
    values: tuple[float, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()  # (step, value) of the first objective
    started: float = 0.0
    ended: float | None = None
    worker: str = ""  # who executes it: Holder text, and the job where one carries it
    run: str = ""
    step: float | None = None  # of the value of the first objective; known of the best trials

    def to_dict(self) -> TrialDict:
        return {
            "number": self.number,
            "state": self.state,
            "params": dict(self.params),
            "values": list(self.values),
            "curve": [list(each) for each in self.curve],
            "started": self.started,
            "ended": self.ended,
            "worker": self.worker,
            "run": self.run,
        }

    def summary(self) -> str:
        values = ", ".join(format_number(value) for value in self.values)
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"trial {self.number} {self.state}{f' {values}' if values else ''}, {params}"

    def _repr_html_(self) -> str:
        return fields_table(
            {"trial": self.number, "state": self.state, "objective": self.values, **self.params, "run": self.run}
        )


@dataclass(frozen=True)
class Settings:
    """How a study is done; the `tuning` section of a file, checked."""

    engine: str = "optuna"  # optuna, ray, deephyper
    sampler: str = "tpe"  # random, grid, tpe, gp, cma-es, nsga-ii, pbt
    pruner: str = ""  # asha, hyperband, median, or none
    trials: int | None = None
    time_s: float | None = None
    node_hours: float | None = None
    energy_j: float | None = None
    seed: int | None = None
    steps: int | None = None  # the largest step that a trial reaches, where pruners need it
    min_steps: int | None = None  # before this step no trial is stopped; None: see `first_rung`
    reduction: int = 3  # of ASHA and Hyperband: one of so many goes on
    startup: int = 5  # trials before medians and extrapolations are believed
    extrapolate: str = ""  # least-squares, svr, qubo-svr: stop by the curve so far
    population: int = 4  # of PBT
    interval: int = 1  # of PBT: steps between exchanges
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def first_rung(self) -> int | None:
        """The first step at which a trial may be stopped; None where it follows from the first trial that is done."""
        return self.min_steps if self.min_steps is not None or self.steps is None else self.rung_of(self.steps)

    def rung_of(self, steps: float) -> int:
        """Return the first rung of trials that have so many steps: early values say little of the last one."""
        return max(1, int(steps) // self.reduction**2)


class Engine(Protocol):
    """Chooses trials. `work` asks, executes and tells until the budget is spent or `stop` says so.

    Where `shares` is true any number of processes on any hosts may call `work` on the same folder at once; else one
    process does, with `at_once` trials together.
    """

    shares: bool

    def work(self, execute: Execute, *, at_once: int, worker: str, stop: Callable[[], bool]) -> None: ...

    def trials(self) -> Sequence[TrialRecord]: ...

    def reasons(self) -> Mapping[int, str]:
        """Return why trials failed or were stopped, by number."""

    def waiting(self) -> int:
        """Return how many trials that were lost are still to be tried again; none where the budget is spent."""

    def reap(self, is_alive: Callable[[str], bool]) -> int:
        """Mark trials as failed whose worker is dead, and return how many."""


Curve = Sequence[tuple[float, float]]  # (step, value) of the first objective
# Asked at each new value of a trial, with the trials that are done and its own curve: why to stop it, or "".
StopEarly = Callable[[Sequence[TrialRecord], Curve], str]


class MakeEngine(Protocol):
    """Makes the engine over a study's folder: new where nothing is there yet, else the one that is.

    `spent` tells node hours (`node_hours`) and energy (`energy_j`) that ended trials took, and how many `nodes` each
    one has (else 1); `stop_early` is asked at each new value of a curve. `shares` is as of Engine.
    """

    shares: bool

    def __call__(
        self,
        folder: Path,
        distributions: Mapping[str, Mapping[str, object]],
        objectives: Sequence[Objective],
        settings: Settings,
        *,
        spent: Callable[[], Mapping[str, float]] | None = None,
        stop_early: StopEarly | None = None,
    ) -> Engine: ...


ENGINES: Registry[MakeEngine] = Registry(
    "tuning engine",
    {
        "optuna": Plugin("fairmile.sweeps.tuning.optuna_engine:OptunaEngine", summary="Optuna; any number of workers"),
        "ray": Plugin("fairmile.sweeps.tuning.ray_engine:RayEngine", summary="Ray Tune, also populations (pbt)"),
        "deephyper": Plugin("fairmile.sweeps.tuning.deephyper_engine:DeepHyperEngine", summary="DeepHyper's search"),
    },
    entry_points="fairmile.tuning_engines",
)
