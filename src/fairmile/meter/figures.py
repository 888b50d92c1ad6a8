"""The numbers that matter out of samples, with energy and what it means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from fairmile.base.errors import InvalidDocument, NotFound, Problem
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result
from fairmile.meter.energy import (
    Energy,
    EnergyDict,
    SpanEnergy,
    SpanEnergyDict,
    Total,
    counted,
    energies,
    energy_by_span,
    estimate,
    total,
)
from fairmile.meter.footprint import Footprint, FootprintDict, footprint
from fairmile.meter.lines import Channel, Kind, Log, Samples, event_files, read_log


class FiguresDict(TypedDict):
    """A channel and what it showed, as JSON."""

    name: str
    unit: str
    kind: Kind
    source: str
    scope: str
    error: str
    wraps_at: float | None
    host: str
    samples: int
    mean: float
    lowest: float
    highest: float
    last: float
    increase: float | None


class SummaryDict(TypedDict):
    """The summary of samples as JSON; `energy_j` is null where nothing measured energy."""

    energy_j: float | None
    energy_is_estimate: bool
    energy_of: list[str]
    energy_left_out: dict[str, str]
    energies: list[EnergyDict]
    spans: list[SpanEnergyDict]
    footprint: FootprintDict | None
    channels: list[FiguresDict]
    start_ns: int | None
    end_ns: int | None
    samples: int
    damaged_lines: int


class LogReader(Protocol):
    """Reads the logs of another tool; a module may be one."""

    def recognises(self, text: str) -> bool:
        """Tell whether a file that begins so is one of them."""
        ...

    def read(self, path: Path) -> Any:
        """Return its `samples`, and as `damaged` how many lines could not be read."""
        ...


LOGS: Registry[LogReader] = Registry(
    "kind of log", {"cloudmesh-gpu": Plugin("fairmile.compat.gpu_log")}, entry_points="fairmile.logs"
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a channel showed over all its samples; of a counter `increase` is what matters, if never set back."""

    channel: Channel
    host: str
    samples: int
    mean: float
    lowest: float
    highest: float
    last: float
    increase: float | None

    def to_dict(self) -> FiguresDict:
        """Return the channel and its figures as data."""
        channel = self.channel
        return {
            "name": channel.name,
            "unit": channel.unit,
            "kind": channel.kind,
            "source": channel.source,
            "scope": channel.scope,
            "error": channel.error,
            "wraps_at": channel.wraps_at,
            "host": self.host,
            "samples": self.samples,
            "mean": self.mean,
            "lowest": self.lowest,
            "highest": self.highest,
            "last": self.last,
            "increase": self.increase,
        }


@dataclass(frozen=True, repr=False)
class Summary(Result):
    """Figures of each channel, the energy of each scope, the total, the energy of spans, and the footprint."""

    start_ns: int | None
    end_ns: int | None
    samples: int
    figures: tuple[Figures, ...]
    energies: tuple[Energy, ...]
    total: Total
    spans: tuple[SpanEnergy, ...]
    footprint: Footprint | None
    damaged: int = 0

    @property
    def is_estimate(self) -> bool:
        """Whether the total energy, or a part of it, is an estimate."""
        return any(part.method == "estimate" for part in self.total.parts)

    def to_dict(self) -> SummaryDict:
        """Return everything as plain data, each number with its source, scope and error."""
        return {
            "energy_j": self.total.joules,
            "energy_is_estimate": self.is_estimate,
            "energy_of": [part.channel for part in self.total.parts],
            "energy_left_out": dict(self.total.left_out),
            "energies": [each.to_dict() for each in self.energies],
            "spans": [each.to_dict() for each in self.spans],
            "footprint": self.footprint.to_dict() if self.footprint is not None else None,
            "channels": [each.to_dict() for each in self.figures],
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "samples": self.samples,
            "damaged_lines": self.damaged,
        }

    def summary(self) -> str:
        """Return the energy and the number of samples."""
        joules, kind = self.total.joules, "estimated" if self.is_estimate else "measured"
        energy = "energy not measured" if joules is None else f"{joules:.4g} J {kind}"
        return f"{energy}, {self.samples:,} samples"


def summarise(
    log: Log,
    *,
    region: str = "",
    table: Path | None = None,
    pue: float = 1.0,
    watts: float | None = None,
    within_ns: tuple[int, int] | None = None,
) -> Summary:
    """Return the summary of all samples of a log; with `watts` an estimate where no energy was measured."""
    watches = [samples for samples in log.samples if samples.at_ns]
    measured = [each for samples in watches for each in energies(samples)]
    start_ns = min((samples.at_ns[0] for samples in watches), default=None)
    end_ns = max((samples.at_ns[-1] for samples in watches), default=None)
    start_ns, end_ns = within_ns or (start_ns, end_ns)
    if watts is not None and not measured and start_ns is not None and end_ns is not None:
        measured.append(estimate(watts, start_ns, end_ns, scope=f"a device of {watts:g} W"))
    whole = total(measured)
    return Summary(
        start_ns,
        end_ns,
        sum(len(samples.at_ns) for samples in watches),
        tuple(each for samples in watches for each in _figures(samples)),
        tuple(measured),
        whole,
        tuple(energy_by_span(log, watches)),
        _footprint(whole.joules, region, table, pue, start_ns, end_ns),
        log.damaged,
    )


def _footprint(
    joules: float | None, region: str, table: Path | None, pue: float, start_ns: int | None, end_ns: int | None
) -> Footprint | None:
    if not region or joules is None:
        return None
    period = (start_ns / 1e9, (end_ns - start_ns) / 1e9) if start_ns is not None and end_ns is not None else None
    return footprint(joules, region, file=table, pue=pue, period=period)


def read_samples(path: Path) -> Log:
    """Read what a log holds: one of ours, one of another tool, or all of ours in a folder."""
    if path.is_dir():
        files = event_files(path)
        if not files:
            raise NotFound(f"no event log in {path}", hint="name the folder of a run, or a file")
        return read_log(files)
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            head = stream.read(4096)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    is_ours = head.lstrip().startswith("{")
    for name in () if is_ours else LOGS.names():
        if LOGS[name].recognises(head):
            foreign = LOGS[name].read(path)
            return Log([foreign.samples.writer], samples=[foreign.samples], damaged=foreign.damaged)
    log = read_log([path]) if is_ours else Log()
    if not log.writers:
        problem = f"it is not an event log, nor a log of {' or '.join(LOGS.names())}"
        raise InvalidDocument([Problem(problem, file=str(path))])
    return log


def _figures(samples: Samples) -> Sequence[Figures]:
    rows = []
    for channel, column in zip(samples.channels, samples.columns, strict=True):
        values = [value for value in column if value is not None and math.isfinite(value)]
        if not values:
            continue
        steps, resets = counted(values, channel.wraps_at) if channel.kind == "counter" else ([], 1)
        increase = math.fsum(steps) if not resets else None
        mean = sum(values) / len(values)
        figures = (len(values), mean, min(values), max(values), values[-1], increase)
        rows.append(Figures(channel, samples.writer.host, *figures))
    return rows
