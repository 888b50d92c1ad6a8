"""The JSON of measured collectives, and the plan of a measurement."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from fairmile.base.results import Results


class MeasuredPointDict(TypedDict):
    """A measured time beside the model's."""

    collective: str
    size_bytes: float
    ranks: int
    time_s: float
    nodes: NotRequired[int]
    model_s: float
    error: float
    algorithm: str
    algorithm_s: float


class MeasuredDict(TypedDict):
    """What was measured with one backend, and the model that was fitted to it."""

    format: int
    backend: str
    library: str
    points: list[MeasuredPointDict]
    left_out: dict[str, str]
    fits: dict[str, dict[str, Any]]


class MeasurementPlanDict(TypedDict):
    commands: list[str]


class MeasurementPlan(Results[tuple[str, ...]]):
    """The command of each number of ranks."""

    def to_dict(self) -> MeasurementPlanDict:
        return {"commands": [" ".join(each) for each in self]}

    def summary(self) -> str:
        return f"{len(self)} commands"
