"""What joining runs to an ensemble returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result


class MethodDict(TypedDict):
    """One way to state uncertainty and what it scores on the test part, for one output."""

    method: str
    output: str
    values: dict[str, float]
    expected: list[float]
    observed: list[float]


class GainDict(TypedDict):
    """How much lower the loss of one method is than that of another, on the same samples, with a 95 % interval."""

    loss: str
    output: str
    method: str
    than: str
    relative: float
    low: float
    high: float
    verdict: str


class EnsembleDict(TypedDict):
    benchmark: str
    kind: str
    runs: list[str]
    unit: str
    calibration_samples: int
    test_samples: int
    calibration_groups: int
    test_groups: int
    methods: list[MethodDict]
    gains: list[GainDict]
    notes: list[str]


@dataclass(frozen=True, repr=False)
class Ensemble(Result):
    """Runs as one forecast: coverage, sharpness and scores of its uncertainty, on samples that fitted nothing."""

    data: EnsembleDict
    page: str = ""  # the file that was written

    columns: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "regression": ("rmse", "crps", "nll", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "width_90"),
        "classification": ("accuracy", "nll", "brier", "ece", "confidence"),
    }

    def to_dict(self) -> EnsembleDict:
        return self.data

    def summary(self) -> str:
        gains = "; ".join(each["verdict"] for each in self.data["gains"][:2])
        return f"{len(self.data['runs'])} runs of {self.data['benchmark']} as an ensemble: {gains}"
