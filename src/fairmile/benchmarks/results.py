"""What the verbs of benchmarks return, beside a benchmark itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from fairmile.base.results import Results
from fairmile.runs.record.run import Run
from fairmile.runs.record.shapes import RunDict


class BenchmarkDict(TypedDict):
    """A benchmark: the rule of its card, such as `metric` and `target`, beside name, folder and known results."""

    name: str
    handle: str
    folder: str | None
    about: str
    baselines: list[dict[str, Any]]
    published: list[dict[str, Any]]
    metric: NotRequired[Any]
    direction: NotRequired[Any]
    target: NotRequired[Any]
    rule: NotRequired[Any]
    domain: NotRequired[Any]


class BenchmarkListDict(TypedDict):
    benchmarks: list[BenchmarkDict]


class ParameterDict(TypedDict):
    name: str
    default: Any
    meaning: str


class FieldDict(TypedDict):
    """One column, array or attribute of the data of a benchmark."""

    name: str
    dtype: str
    shape: list[int | str]
    meaning: str
    unit: str


class BenchmarkDetailsDict(BenchmarkDict):
    parameters: list[ParameterDict]
    schema: dict[str, list[FieldDict]]


class NewBenchmarkDict(TypedDict):
    folder: str
    files: list[str]
    dry_run: bool


class NewBenchmark(Results[Path]):
    """The files of a new benchmark."""

    def __init__(self, folder: Path, files: Iterable[Path], *, dry_run: bool = False) -> None:
        super().__init__(files)
        self.folder = folder
        self.dry_run = dry_run

    def to_dict(self) -> NewBenchmarkDict:
        return {"folder": str(self.folder), "files": [str(each) for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{self.folder}, {len(self)} files"


class StagePlanDict(TypedDict):
    steps: list[str]
    dry_run: Literal[True]


class StagePlan(Results[str]):
    """The steps of a benchmark that would run, in their order."""

    def to_dict(self) -> StagePlanDict:
        return {"steps": list(self), "dry_run": True}

    def summary(self) -> str:
        return ", ".join(self)


class StageRunsDict(TypedDict):
    group: str
    runs: list[RunDict]


class StageRuns(Results[Run]):
    """The runs of the steps of a benchmark, in their order."""

    @property
    def group(self) -> str:
        """The group that all of them belong to."""
        return self[0].group

    def to_dict(self) -> StageRunsDict:
        return {"group": self.group, "runs": [run.to_dict() for run in self]}

    def summary(self) -> str:
        return ", ".join(f"{run.params.get('step')} {run.state}" for run in self)
