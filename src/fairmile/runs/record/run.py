"""A run as readers see it: its record, its folder and its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmile.base.html_tables import fields_table
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration, format_number
from fairmile.meter.lines import FILES, Log, event_files, read_log
from fairmile.runs.record.history import History, history_rows
from fairmile.runs.record.layout import RECORDING, work_folder
from fairmile.runs.record.record import (
    Captured,
    EnergyUse,
    JobReference,
    Metric,
    OutputFile,
    ReadFile,
    RunRecord,
    RunResult,
    RunState,
    TrialReference,
)
from fairmile.runs.record.shapes import RunDict
from fairmile.runs.record.values import Value

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from fairmile.runs.record.packing import extract
    from fairmile.runs.record.spec import RunSpec
else:
    extract = lazy("fairmile.runs.record.packing:extract")
    TemporaryDirectory = lazy("tempfile:TemporaryDirectory")
    # A list of runs needs no specification, and what checks one takes longer to load than the list to make.
    RunSpec = lazy("fairmile.runs.record.spec:RunSpec")

__all__ = ["Metric", "Run", "RunState"]

_SHOWN = 5


@dataclass(frozen=True, repr=False)
class Run(Result):
    """One execution, read from its record and its folder."""

    record: RunRecord
    folder: Path
    packed: bool = field(default=False)  # whether `folder` is a zip file that holds the four

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate(self.record.spec.to_dict())

    @property
    def identity(self) -> str:
        """The digest of all that went in; empty where something of it is not known."""
        return self.record.identity

    @property
    def period(self) -> tuple[float, float] | None:
        """When its last attempt began, and how many seconds it took; None where that is unknown."""
        attempts = self.record.attempts
        return (attempts[-1].started, self.elapsed_s) if attempts and self.elapsed_s is not None else None

    @property
    def created(self) -> float:
        return self.record.created

    @property
    def params(self) -> Mapping[str, Value]:
        return self.record.spec.params

    @property
    def group(self) -> str:
        return self.record.spec.group

    @property
    def tags(self) -> list[str]:
        return self.record.spec.tags

    @property
    def system(self) -> str:
        """The system it ran on: its name, or that of the host."""
        return self.record.spec.system or str(self.hardware.get("host") or "")

    @property
    def argv(self) -> list[str]:
        """The command that was executed; as it was asked for, where its placeholders were not filled in."""
        return self.record.argv or self.record.spec.argv

    @property
    def work(self) -> Path:
        """The folder that its program starts in."""
        return work_folder(self.folder, self.record.spec)

    @property
    def captured(self) -> Captured:
        """What was captured when it started: code, inputs, environment, hardware, software, scheduler, variables."""
        return self.record.captured

    @property
    def reads(self) -> Mapping[str, ReadFile]:
        """What its program was seen to read that nothing else covers, by path."""
        coverage = self.captured.coverage
        return (coverage.reads if coverage is not None else None) or {}

    @property
    def top(self) -> str:
        """The folder whose files its program saw: the repository, or where it was started; empty where unknown."""
        start, root = self.record.spec.folder or self.captured.start, self.captured.code.root
        return root if root and f"{start}/".startswith(root.rstrip("/") + "/") else start

    @property
    def read_beside(self) -> dict[str, str]:
        """The files below `top` that its program read, by their name there."""
        above = self.top.rstrip("/") + "/"
        files = [path for path, read in self.reads.items() if read.size_bytes is not None and not read.trouble]
        return {path.removeprefix(above): path for path in files if self.top and path.startswith(above)}

    @property
    def undeclared(self) -> list[str]:
        """What its program wrote into its folder without declaring that as an output, as far as it was watched."""
        coverage, folder = self.captured.coverage, self.record.spec.folder.rstrip("/") + "/"
        left = (coverage.left if coverage is not None and self.record.spec.folder else None) or []
        return [path.removeprefix(folder) for path in left if path.startswith(folder)]

    @property
    def recordings(self) -> list[str]:
        """The folders, below the one it worked in, into which `fairmile trace record` wrote."""
        names = (each for each in dict.fromkeys((*self.outputs, *self.undeclared)) if each.endswith(RECORDING))
        return [folder for folder, mark, name in (each.rpartition("/") for each in names) if mark and name == RECORDING]

    @property
    def has_trace(self) -> bool:
        """Whether it left traces of its ranks, or timed blocks of its program."""
        return bool(self.spans or self.recordings)

    @property
    def hardware(self) -> Mapping[str, Any]:
        return self.record.captured.hardware

    @property
    def prediction(self) -> Mapping[str, Any]:
        """What was expected beforehand: `elapsed_s`, `memory_bytes`, `energy_j`, each {value, low, high, source}."""
        return self.record.prediction

    @property
    def job(self) -> JobReference | None:
        """The job that carries it, or carried it."""
        return self.record.job

    @property
    def trial(self) -> TrialReference | None:
        """Which trial of a study it is, where it is one."""
        return self.record.trial

    @property
    def result(self) -> RunResult | None:
        """How it ended; None as long as that is not known."""
        return self.record.result

    @property
    def state(self) -> RunState:
        return self.record.result.state if self.record.result is not None else self.record.state

    def in_state(self, state: RunState, trouble: str = "") -> Run:
        """Return this run, which has not ended by its own word, as it stands by that of somebody else."""
        return replace(self, record=replace(self.record, state=state, trouble=trouble or self.record.trouble))

    @property
    def reason(self) -> str:
        """Why it ended as it did; empty where there is nothing to say."""
        return self.record.result.reason if self.record.result is not None else ""

    @property
    def hint(self) -> str:
        """What to do about the reason; empty where nobody knows."""
        return self.record.result.hint if self.record.result is not None else ""

    @property
    def elapsed_s(self) -> float | None:
        return self.record.result.elapsed_s if self.record.result is not None else None

    @property
    def ended(self) -> float | None:
        """When it ended; None as long as that is not known."""
        return self.record.result.ended if self.record.result is not None else None

    @property
    def usage(self) -> Mapping[str, float]:
        """What its processes used, such as `cpu_s` and `max_rss_bytes`."""
        return self.record.result.usage if self.record.result is not None else {}

    @property
    def energy(self) -> EnergyUse:
        """What was measured of its energy."""
        return self.record.result.energy if self.record.result is not None else EnergyUse()

    @property
    def energy_j(self) -> float | None:
        """The energy of all that was measured, counted once; None where nothing measured it."""
        return self.energy.total_j

    @property
    def outputs(self) -> Mapping[str, OutputFile]:
        """The files that it made or changed, by their paths in the folder it worked in."""
        return self.record.result.outputs if self.record.result is not None else {}

    @property
    def metrics(self) -> dict[str, Metric]:
        """What was measured, that which was declared first."""
        measured = self.record.result.metrics if self.record.result is not None else {}
        ordered = sorted(measured, key=lambda name: name not in self.record.spec.metrics)
        return {name: measured[name] for name in ordered}

    @property
    def notes(self) -> list[str]:
        """What else is to be said about it, in sentences."""
        result = self.record.result
        untouched = result.untouched if result is not None else []
        shown = ", ".join(untouched[:_SHOWN]) + (" and more" if len(untouched) > _SHOWN else "")
        kept = [f"not recorded as output, because the run did not change it: {shown}"] if untouched else []
        own = result.notes if result is not None else []
        return [note for note in [*own, *kept, self.record.trouble] if note]

    @property
    def spans(self) -> Mapping[str, Mapping[str, float]]:
        """For each timer: count, total_s, mean_s, min_s, max_s, p50_s, p95_s, p99_s."""
        return self.record.result.spans if self.record.result is not None else {}

    def to_dict(self) -> RunDict:
        """Return the record as JSON states it."""
        return cast(RunDict, self.record.to_dict())

    def summary(self) -> str:
        took = f" in {format_duration(self.elapsed_s)}" if self.elapsed_s is not None else ""
        metrics = [
            f"{name} {format_number(metric.value, metric.unit)}" for name, metric in list(self.metrics.items())[:3]
        ]
        return ", ".join([f"{self.id} {self.state}{took}", *metrics])

    def _repr_html_(self) -> str:
        energy = format_number(self.energy_j, "J")
        return fields_table(
            {
                "run": self.id,
                "state": str(self.state),
                "time": format_duration(self.elapsed_s) if self.elapsed_s is not None else "",
                "energy": energy,
                **self.params,
                **{name: format_number(metric.value, metric.unit) for name, metric in self.metrics.items()},
            }
        )

    def history(self) -> History:
        """Return every logged value of its metrics, one row for each step of a writer."""
        return History(history_rows(self.log().metrics))

    def log(self) -> Log:
        """Read spans, metrics and samples in full."""
        if not self.packed:
            return read_log(event_files(self.folder))
        with TemporaryDirectory(prefix="fairmile-run-") as scratch:
            extract(self.folder, Path(scratch) / self.id, only=FILES, limits=None)
            return read_log(event_files(Path(scratch) / self.id))
