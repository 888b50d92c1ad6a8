"""What the verbs of runs return, beside a run itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NotRequired, cast

from fairmile.base.html_tables import fields_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result, Results
from fairmile.base.units import format_duration, format_size
from fairmile.meter.footprint import Footprint, FootprintDict
from fairmile.runs.record.ledger import Changes
from fairmile.runs.record.run import Run
from fairmile.runs.record.shapes import RunDict
from fairmile.runs.record.values import Value

_TAIL_BYTES = 2000  # of an output that a notebook shows


class RunListDict(TypedDict):
    runs: list[RunDict]


class RunList(Results[Run]):
    """Several runs, such as the repeats of one."""

    def to_dict(self) -> RunListDict:
        return {"runs": [run.to_dict() for run in self]}

    def summary(self) -> str:
        return f"{len(self):,} runs: {', '.join(f'{run.id} {run.state}' for run in self)}"


class RunDetailsDict(RunDict):
    footprint: NotRequired[FootprintDict]


@dataclass(frozen=True, repr=False)
class RunDetails(Result):
    """A run, and the footprint of its energy where the region is known."""

    run: Run
    footprint: Footprint | None = None

    def to_dict(self) -> RunDetailsDict:
        more = {"footprint": asdict(self.footprint)} if self.footprint is not None else {}
        return cast(RunDetailsDict, {**self.run.to_dict(), **more})

    def summary(self) -> str:
        return self.run.summary()

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


class RunOutputDict(TypedDict):
    output: str


class RunOutput(bytes, Result):
    """The output of a program, as bytes."""

    def to_dict(self) -> RunOutputDict:
        return {"output": self.decode(errors="replace")}

    def summary(self) -> str:
        return f"{format_size(len(self))}, {len(self.splitlines()):,} lines"

    def _repr_html_(self) -> str:
        return fields_table({"output": self.summary(), "end": self[-_TAIL_BYTES:].decode(errors="replace")})

    __repr__ = Result.__repr__


class CancelledRuns(Changes[Run]):
    """Runs that were cancelled."""

    def names(self) -> list[str]:
        return [f"{run.id}: {run.state}" for run in self]


class ImportedRuns(Changes[Run]):
    """Runs that came from elsewhere."""

    def names(self) -> list[str]:
        return [run.id for run in self]


class StepDict(TypedDict):
    verb: str
    what: str
    size_bytes: int | None


class PredictionDict(TypedDict):
    """A predicted number with its prediction interval."""

    value: float
    low: float | None
    high: float | None
    source: str
    limit: NotRequired[float | None]
    device: NotRequired[str]
    remedy: NotRequired[str]
    fit: NotRequired[str]


class ReviewDict(TypedDict):
    """What a record from elsewhere would execute, set, ask for, build and read."""

    run: str
    source: str
    command: list[str]
    params: dict[str, Value]
    variables: dict[str, str]
    dropped: dict[str, str]
    system: str
    account: str
    resources: dict[str, Any]
    software: list[str]
    launch: str
    environment: list[str]
    inputs: dict[str, str]
    fetches: list[str]
    files: list[str]
    outputs: list[str]


class RunPlanDict(TypedDict):
    """What a run would do; `fit` says whether it is predicted to fit on its device."""

    spec: dict[str, Any]
    steps: list[StepDict]
    notes: list[str]
    prediction: dict[str, PredictionDict]
    fit: str | None
    script: str
    review: NotRequired[ReviewDict]


class VerdictDict(TypedDict):
    what: str
    same: bool | None
    detail: str


class RerunDict(TypedDict):
    original: str
    again: str
    reproduced: bool
    verdicts: list[VerdictDict]


class ProjectionDict(TypedDict):
    """What `to` steps are expected to take, in seconds; `walltime_s` is what to ask a batch system for."""

    seconds: float
    low: float | None
    high: float | None
    level: float
    to: int
    per_step_s: float
    fixed_s: float
    basis: str
    warning: str
    walltime_s: int


@dataclass(frozen=True, repr=False)
class Projection(Result):
    """What `to` steps are expected to take; `low` and `high` are the prediction interval where there is one."""

    seconds: float
    low: float | None
    high: float | None
    level: float
    to: int
    per_step_s: float
    fixed_s: float
    basis: str
    warning: str = ""
    walltime_s: int = 0  # what to ask a batch system for; 0 where nobody asked

    def to_dict(self) -> ProjectionDict:
        return {
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "to": self.to,
            "per_step_s": self.per_step_s,
            "fixed_s": self.fixed_s,
            "basis": self.basis,
            "warning": self.warning,
            "walltime_s": self.walltime_s,
        }

    def summary(self) -> str:
        return f"{self.to:,} steps take {format_duration(self.seconds)}; ask for {format_duration(self.walltime_s)}"
