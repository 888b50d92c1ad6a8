"""The JSON of comparisons, checks, leaderboards and pages; a number that is NaN or infinite is a text."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from fairmile.runs.record.values import Better, Value

Number = float | str  # NaN and infinity are texts


class EstimateDict(TypedDict):
    """A mean with its confidence interval, or too few values for one, each in `values`."""

    mean: Number
    sd: Number | None
    low: Number | None
    high: Number | None
    count: int
    confidence: float
    not_finite: int
    least: Number | None
    largest: Number | None
    values: list[Number]


class EffectDict(TypedDict):
    """A difference of two means with its confidence interval."""

    difference: Number
    low: Number | None
    high: Number | None
    relative: Number | None
    relative_low: Number | None
    relative_high: Number | None
    g: Number | None
    g_low: Number | None
    g_high: Number | None
    p: Number
    degrees: Number
    confidence: float


class CellDict(TypedDict):
    group: str
    estimate: EstimateDict | None
    effect: EffectDict | None
    verdict: str
    why: str
    p: float | None


class MetricRowDict(TypedDict):
    metric: str
    unit: str
    better: Better
    cells: list[CellDict]


class DifferenceDict(TypedDict):
    fact: str
    values: dict[str, list[str]]


class ComparisonDict(TypedDict):
    """Groups of runs compared with the first of them."""

    groups: dict[str, list[str]]
    rows: list[MetricRowDict]
    differences: list[DifferenceDict]
    notes: list[str]
    confidence: float


class ReferenceDict(TypedDict):
    metric: str
    value: Number
    lower_tolerance: float | None
    upper_tolerance: float | None
    unit: str
    system: str


class FindingDict(TypedDict):
    metric: str
    system: str
    passed: bool
    reference: ReferenceDict
    estimate: EstimateDict | None
    why: str


class CheckDict(TypedDict):
    """Whether metrics are within the tolerance of their reference values."""

    passed: bool
    findings: list[FindingDict]
    unchecked: list[str]


class EvaluationDict(TypedDict):
    comparison: ComparisonDict | None
    check: CheckDict | None


class EntryDict(TypedDict):
    rank: int
    label: str
    estimate: EstimateDict
    best: Number
    best_run: str
    runs: list[str]
    system: str
    verdict: str | None


class LeaderboardDict(TypedDict):
    """The best by one metric."""

    metric: str
    unit: str
    better: Better
    places: list[EntryDict]
    of: int
    notes: list[str]
    noise: Number | None


class SweepPageDict(TypedDict):
    """What the parameters of a sweep do."""

    metric: str
    better: Better
    axes: dict[str, list[Value]]
    points: list[dict[str, Any]]
    best: dict[str, Any] | None


class ReportDict(TypedDict):
    """What a report says. One run has its numbers; several have groups; a sweep or a study has its points."""

    runs: list[str]
    name: NotRequired[str]
    state: NotRequired[str]
    reason: NotRequired[str]
    measures: NotRequired[dict[str, dict[str, Any]]]
    results: NotRequired[dict[str, Any]]
    phases: NotRequired[dict[str, dict[str, Number]]]
    energy: NotRequired[dict[str, Any]]
    footprint: NotRequired[dict[str, Any]]
    prediction: NotRequired[dict[str, dict[str, Any]]]
    rerun: NotRequired[str]
    groups: NotRequired[dict[str, list[str]]]
    comparison: NotRequired[ComparisonDict]
    leaderboard: NotRequired[LeaderboardDict]
    sweep: NotRequired[SweepPageDict]
    study: NotRequired[dict[str, Any]]


class ReportFilesDict(ReportDict):
    files: list[str]
