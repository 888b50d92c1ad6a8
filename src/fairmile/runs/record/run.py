"""The record that is kept of one execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from fairmile.base.html_tables import fields_table
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.meter.lines import FILES, Log, event_files, read_log
from fairmile.runs.record.packing import extract
from fairmile.runs.record.shapes import RunDict
from fairmile.runs.record.values import Better, Value

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec

# A list of runs needs no specification, and what checks one takes longer to load than the list to make.
_SPECS: Registry[type[RunSpec]] = Registry("specification", {"run": Plugin("fairmile.runs.record.spec:RunSpec")})
_SHOWN = 5


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # its end was never recorded: killed, a lost node, a power cut

    @property
    def is_end(self) -> bool:
        return self not in (RunState.QUEUED, RunState.RUNNING)


@dataclass(frozen=True)
class Metric:
    """A metric of a run, over all values that were logged; `value` is the last."""

    value: float
    first: float
    min: float
    max: float
    mean: float
    count: int
    unit: str = ""
    better: Better = ""
    tolerance: float | None = None

    @property
    def best(self) -> float:
        """The best value ever seen, by the metric's direction; the last one where it has none."""
        return {"lower": self.min, "higher": self.max}.get(self.better, self.value)


@dataclass(frozen=True, repr=False)
class Run(Result):
    """The record of one execution. `document` is what run.json holds."""

    document: Mapping[str, Any]
    folder: Path
    packed: bool = field(default=False)  # whether `folder` is a zip file that holds the four

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def name(self) -> str:
        return str(self.document["spec"]["name"])

    @property
    def spec(self) -> RunSpec:
        return _SPECS["run"].model_validate(self.document["spec"])

    @property
    def identity(self) -> str:
        """The digest of all that went in; empty where something of it is not known."""
        return str(self.document.get("identity") or "")

    @property
    def created(self) -> float:
        return float(self.document["created"])

    @property
    def params(self) -> Mapping[str, Value]:
        return self.document["spec"].get("params") or {}

    @property
    def group(self) -> str:
        return str(self.document["spec"].get("group") or "")

    @property
    def system(self) -> str:
        """The system it ran on: its name, or that of the host."""
        return str(self.document["spec"].get("system") or self.hardware.get("host") or "")

    @property
    def captured(self) -> Mapping[str, Any]:
        """What was found when it started: code, inputs, environment, hardware, software, scheduler, variables."""
        return self.document.get("captured") or {}

    @property
    def hardware(self) -> Mapping[str, Any]:
        return self.captured.get("hardware") or {}

    @property
    def prediction(self) -> Mapping[str, Any]:
        """What was expected beforehand: `elapsed_s`, `memory_bytes`, `energy_j`, each {value, low, high, source}."""
        return self.document.get("prediction") or {}

    @property
    def result(self) -> Mapping[str, Any]:
        """How it ended; empty as long as that is not known."""
        return self.document.get("result") or {}

    @property
    def state(self) -> RunState:
        said = self.result.get("state") or self.document.get("state") or RunState.RUNNING
        return RunState(said)

    @property
    def elapsed_s(self) -> float | None:
        return self.result.get("elapsed_s")

    @property
    def energy_j(self) -> float | None:
        """The energy of all that was measured, counted once; None where nothing measured it."""
        return (self.result.get("energy") or {}).get("total_j")

    @property
    def metrics(self) -> dict[str, Metric]:
        """What was measured, that which was declared first."""
        found = self.result.get("metrics") or {}
        ordered = sorted(found, key=lambda name: name not in (self.document["spec"].get("metrics") or {}))
        return {name: _metric(found[name]) for name in ordered}

    @property
    def notes(self) -> list[str]:
        """What else is to be said about it, in sentences."""
        untouched = self.result.get("untouched") or []
        shown = ", ".join(untouched[:_SHOWN]) + (" and more" if len(untouched) > _SHOWN else "")
        kept = [f"not recorded as output, since the run left it as it was: {shown}"] if untouched else []
        return [note for note in [*self.result.get("notes", []), *kept, self.document.get("trouble", "")] if note]

    @property
    def spans(self) -> Mapping[str, Mapping[str, float]]:
        """For each timer: count, total_s, mean_s, min_s, max_s, p50_s, p95_s, p99_s."""
        return self.result.get("spans") or {}

    def to_dict(self) -> RunDict:
        """Return the record."""
        return cast(RunDict, dict(self.document))

    def summary(self) -> str:
        took = f" in {format_duration(self.elapsed_s)}" if self.elapsed_s is not None else ""
        metrics = [f"{name} {metric.value:.4g}" for name, metric in list(self.metrics.items())[:3]]
        return ", ".join([f"{self.id} {self.state}{took}", *metrics])

    def _repr_html_(self) -> str:
        energy = f"{self.energy_j:.4g} J" if self.energy_j is not None else ""
        return fields_table(
            {
                "run": self.id,
                "state": str(self.state),
                "time": format_duration(self.elapsed_s) if self.elapsed_s is not None else "",
                "energy": energy,
                **self.params,
                **{name: f"{metric.value:.6g} {metric.unit}".strip() for name, metric in self.metrics.items()},
            }
        )

    def log(self) -> Log:
        """Read spans, metrics and samples in full."""
        if not self.packed:
            return read_log(event_files(self.folder))
        with TemporaryDirectory(prefix="fairmile-run-") as scratch:
            extract(self.folder, Path(scratch) / self.id, only=FILES, limits=None)
            return read_log(event_files(Path(scratch) / self.id))


def _metric(said: Mapping[str, Any]) -> Metric:
    numbers = {name: float(said[name]) for name in ("value", "first", "min", "max", "mean")}
    tolerance = said.get("tolerance")
    return Metric(**numbers, count=said["count"], unit=said["unit"], better=said["better"], tolerance=tolerance)
