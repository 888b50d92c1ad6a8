"""What the verbs of studies return, beside a trial itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_number, format_value
from fairmile.runs.record.values import Value
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.model import Better
from fairmile.sweeps.tuning.engine import TrialDict, TrialRecord

_MOST_BEST = 3


class ObjectiveDict(TypedDict):
    metric: str
    better: Better


class SpentDict(TypedDict):
    """What the trials of a study took; `energy_j` is None where nothing measured it."""

    node_hours: float
    energy_j: float | None


class StudyStatusDict(TypedDict):
    """The trials of a study; `best` are the numbers of the best ones, `best_steps` the steps of their values."""

    id: str
    objectives: list[ObjectiveDict]
    spent: SpentDict
    best: list[int]
    best_steps: list[float | None]
    trials: list[TrialDict]


class StudySettingsDict(TypedDict):
    """How a study is done."""

    engine: str
    sampler: str
    pruner: str
    trials: int | None
    time_s: float | None
    node_hours: float | None
    energy_j: float | None
    seed: int | None
    steps: int | None
    min_steps: int | None
    reduction: int
    startup: int
    extrapolate: str
    population: int
    interval: int
    options: dict[str, Value]


class StudyPlanDict(TypedDict):
    """What a study would do; `trial_s` and `node_hours` are predictions."""

    space: dict[str, dict[str, Any]]
    settings: StudySettingsDict
    objectives: list[ObjectiveDict]
    trial_s: float | None
    node_hours: float | None
    notes: list[str]
    script: str


class ChangedStudyDict(TypedDict):
    id: str
    done: str


class StudyStatus(Results[TrialRecord]):
    """The trials of a study, the best of them, and what all of them took."""

    def __init__(
        self, study: Sweep, trials: Iterable[TrialRecord], best: Sequence[TrialRecord], spent: SpentDict
    ) -> None:
        super().__init__(trials)
        self.study = study
        self.best = list(best)
        self.spent = spent

    @property
    def id(self) -> str:
        """The id of the study."""
        return self.study.id

    @property
    def objectives(self) -> list[ObjectiveDict]:
        """The metrics to optimize, each with its direction."""
        return [{"metric": each.metric, "better": each.better} for each in self.study.study.objectives]

    def to_dict(self) -> StudyStatusDict:
        return {
            "id": self.study.id,
            "objectives": self.objectives,
            "spent": self.spent,
            "best": [each.number for each in self.best],
            "best_steps": [each.step for each in self.best],
            "trials": [each.to_dict() for each in self],
        }

    def _rows(self) -> list[dict[str, Any]]:
        # In a table, each objective is a column: `values.loss`.
        metrics = [each["metric"] for each in self.objectives]
        return [{**each.to_dict(), "values": dict(zip(metrics, each.values, strict=False))} for each in self]

    def summary(self) -> str:
        states = Counter(str(each.state) for each in self)
        best = f"; best trial {self.best[0].number}" if self.best else ""
        shown = ", ".join(f"{number:,} {state}" for state, number in states.items())
        return f"{self.study.id}: {shown or 'no trials'}{best}"

    def _text(self, trial: TrialRecord, metrics: Sequence[str]) -> str:
        """Return a trial with its values and parameters in one line."""
        values = ", ".join(f"{name} {format_number(each)}" for name, each in zip(metrics, trial.values, strict=False))
        params = ", ".join(f"{name}={format_value(each)}" for name, each in trial.params.items())
        return f"trial {trial.number} with {values} ({params})"

    def _repr_html_(self) -> str:
        metrics = [each["metric"] for each in self.objectives]
        names = list(dict.fromkeys(name for each in self for name in each.params))
        rows = [
            [
                each.number,
                each.state,
                *(each.values[at] if at < len(each.values) else "" for at in range(len(metrics))),
                *(each.params.get(name, "") for name in names),
                each.run,
            ]
            for each in self
        ]
        best = "; ".join(self._text(each, metrics) for each in self.best[:_MOST_BEST])
        note = f"Best: {best}{'; …' if len(self.best) > _MOST_BEST else '.'}" if best else ""
        return rows_table(["trial", "state", *metrics, *names, "run"], rows, note=note)


@dataclass(frozen=True, repr=False)
class ChangedStudy(Result):
    """A study, and what was done with it: `stopped`, `would be stopped`."""

    id: str
    done: str

    def to_dict(self) -> ChangedStudyDict:
        return {"id": self.id, "done": self.done}

    def summary(self) -> str:
        return f"{self.id}: {self.done}"


def plain_space(space: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return distributions as JSON has them."""
    return {name: dict(each) for name, each in space.items()}
