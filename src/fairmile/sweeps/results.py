"""What the verbs of sweeps return, beside a sweep itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NotRequired, TypedDict

from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_number
from fairmile.meter.lines import number_text
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.run import RunState
from fairmile.runs.record.values import Value
from fairmile.sweeps.folder import Sweep, SweepDict
from fairmile.sweeps.model import Definition, Point


class PointDict(TypedDict):
    """A point of a space; of several repeats the values say which, as `repeat`."""

    id: str
    values: dict[str, Value]


class SweepPointsDict(TypedDict):
    count: int
    axes: dict[str, list[Value]]
    points: list[PointDict]


class PointStatusDict(TypedDict):
    """The status of one point; a metric that is NaN or infinite is a text."""

    number: int
    id: str
    run: str
    values: dict[str, Value]
    state: str
    reason: str
    elapsed_s: float | None
    metrics: dict[str, float | str]
    units: dict[str, str]
    repeat: int | None


class SweepStatusDict(SweepDict):
    points: list[PointStatusDict]
    best: NotRequired[str]


class SweepRowDict(SweepDict):
    """A sweep of a list, with how many of its runs are in each state."""

    runs: dict[str, int]


class SweepListDict(TypedDict):
    sweeps: list[SweepRowDict]


class ChangedSweepDict(SweepDict):
    done: str


class SweepPlanDict(TypedDict):
    """What a sweep would do; `point_s` and `node_hours` are predictions."""

    count: int
    axes: dict[str, list[Value]]
    first: PointDict
    last: PointDict
    disk_bytes: int
    commands: list[str]
    point_s: float | None
    node_hours: float | None
    notes: list[str]
    script: str


@dataclass(frozen=True, repr=False)
class SweepPlan(Result):
    """What a sweep would do; nothing has happened yet."""

    definition: Definition
    first: Point
    last: Point
    count: int
    run: RunPlan | None  # that of the first point; None where the definition says nothing to execute
    point_s: float | None = None  # how long one point is expected to take
    point_s_from: str = ""
    node_hours: float | None = None
    disk_bytes: int = 0
    commands: tuple[str, ...] = ()  # of the first points
    notes: tuple[str, ...] = ()

    def to_dict(self) -> SweepPlanDict:
        return {
            "count": self.count,
            "axes": axes_dict(self.definition.points.axes),
            "first": point_dict(self.first),
            "last": point_dict(self.last),
            "disk_bytes": self.disk_bytes,
            "commands": list(self.commands),
            "point_s": self.point_s,
            "node_hours": self.node_hours,
            "notes": list(self.notes),
            "script": self.run.script if self.run else "",
        }

    def summary(self) -> str:
        return f"{self.definition.name}: {self.count:,} points over {', '.join(self.definition.points.axes)}"


class GenerationPlanDict(TypedDict):
    """What a generation would write; `submit` is the line that submits the first point."""

    count: int
    first: str
    last: str
    files: int
    size_bytes: int
    submit: str
    axes: dict[str, list[Value]]


class GeneratedDict(TypedDict):
    count: int
    kept: int
    manifest: str
    submit: list[str]


def point_dict(point: Point) -> PointDict:
    """Return a point as JSON has it."""
    repeat: dict[str, Value] = {"repeat": point.repeat} if point.repeat is not None else {}
    return {"id": point.id, "values": {**point.values, **repeat}}


def axes_dict(axes: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """Return the values of each axis as JSON has them."""
    return {name: list(values) for name, values in axes.items()}


class SweepPoints(Results[Point]):
    """The points that a definition gives, and the values of each axis."""

    def __init__(self, axes: Mapping[str, Sequence[Value]], points: Iterable[Point] = ()) -> None:
        super().__init__(points)
        self.axes = axes

    def to_dict(self) -> SweepPointsDict:
        return {"count": len(self), "axes": axes_dict(self.axes), "points": [point_dict(each) for each in self]}

    def summary(self) -> str:
        return f"{len(self):,} points over {', '.join(self.axes) or 'no axis'}"

    def _repr_html_(self) -> str:
        return rows_table(["point", *self.axes], [[each.id, *each.values.values()] for each in self])


@dataclass(frozen=True, repr=False)
class PointStatus(Result):
    """The status of one point: the state of its run, `queued` in a job, or `left`."""

    number: int
    id: str  # of the point
    run: str
    values: Mapping[str, Value]
    state: str
    reason: str = ""
    elapsed_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    repeat: int | None = None  # which of several repeats, from 1
    units: Mapping[str, str] = field(default_factory=dict)  # of metrics that have one

    @property
    def is_over(self) -> bool:
        """Tell whether its run has ended, however that went."""
        return self.state not in ("queued", "running", "left")

    def to_dict(self) -> PointStatusDict:
        return {
            "number": self.number,
            "id": self.id,
            "run": self.run,
            "values": dict(self.values),
            "state": self.state,
            "reason": self.reason,
            "elapsed_s": self.elapsed_s,
            "metrics": {name: number_text(value) for name, value in self.metrics.items()},
            "units": dict(self.units),
            "repeat": self.repeat,
        }

    def summary(self) -> str:
        metrics = [
            f"{name} {format_number(value, self.units.get(name, ''))}" for name, value in list(self.metrics.items())[:3]
        ]
        return ", ".join([f"{self.id} {self.state}", *metrics])


class SweepStatus(Results[PointStatus]):
    """The status of each point of a sweep; `best` says which point is best, where a metric ranks them."""

    def __init__(self, sweep: Sweep, points: Iterable[PointStatus] = (), best: str = "") -> None:
        super().__init__(points)
        self.sweep = sweep
        self.best = best

    @property
    def id(self) -> str:
        """The id of the sweep."""
        return self.sweep.id

    def to_dict(self) -> SweepStatusDict:
        best: dict[str, str] = {"best": self.best} if self.best else {}
        return {**self.sweep.to_dict(), **best, "points": [each.to_dict() for each in self]}  # type: ignore[typeddict-item]

    def summary(self) -> str:
        states = Counter(each.state for each in self)
        return f"{self.sweep.id}: {', '.join(f'{number:,} {state}' for state, number in states.items()) or 'no points'}"

    def table(self) -> tuple[list[str], list[list[object]]]:
        """Return headings and rows: run, state, axes that vary, up to three metrics, and the reasons of failures."""
        metrics = list(dict.fromkeys(name for each in self for name in each.metrics))[:3]
        axes = [name for name, values in self.sweep.axes.items() if len(values) > 1]
        repeated = ["repeat"] if any(each.repeat is not None for each in self) else []
        reasons = ["reason"] if any(each.reason for each in self) else []
        rows: list[list[object]] = [
            [
                each.run,
                each.state,
                *(each.values.get(name) for name in axes),
                *([each.repeat] if repeated else []),
                *(format_number(each.metrics.get(name), each.units.get(name, "")) for name in metrics),
                *([each.reason] if reasons else []),
            ]
            for each in self
        ]
        return ["run", "state", *axes, *repeated, *metrics, *reasons], rows

    def _repr_html_(self) -> str:
        return rows_table(*self.table(), note=self.best)


class SweepList(Results[Sweep]):
    """Sweeps and studies, with how many runs of each are in which state."""

    def __init__(
        self, sweeps: Iterable[Sweep] = (), counts: Mapping[str, Mapping[RunState, int]] | None = None
    ) -> None:
        super().__init__(sweeps)
        self.counts = counts or {}

    def to_dict(self) -> SweepListDict:
        return {"sweeps": [{**each.to_dict(), "runs": self._runs(each)} for each in self]}

    def _runs(self, sweep: Sweep) -> dict[str, int]:
        return {str(state): number for state, number in self.counts.get(sweep.id, {}).items()}

    def summary(self) -> str:
        return f"{len(self):,} sweeps: {', '.join(each.id for each in self)}"


@dataclass(frozen=True, repr=False)
class ChangedSweep(Sweep):
    """A sweep, and what was done with it: `cancelled`, `would be removed`."""

    done: str = ""

    def to_dict(self) -> ChangedSweepDict:
        return {**super().to_dict(), "done": self.done}

    def summary(self) -> str:
        return f"{self.id}: {self.done}"
