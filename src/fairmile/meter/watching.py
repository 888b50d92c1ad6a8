"""Power, energy and load of a program or of the machine, measured and summarised in one call."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.files import write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.meter.energy import estimate
from fairmile.meter.figures import Summary, SummaryDict, read_samples, summarise
from fairmile.meter.footprint import Supply
from fairmile.meter.lines import Channel, Kind, Log
from fairmile.meter.sources import SOURCES, AvailableSources, find_sources
from fairmile.meter.watch import Values, Watch, Watched, watch_command, watch_for

_GPU_SOURCES = ("nvidia", "nvidia_energy", "amd")
_HINT = "`fairmile watch --list` shows what this machine has"
OnSample = Callable[[Watch, Values], object]


class SourceChannelDict(TypedDict):
    """One value that a source measures."""

    name: str
    unit: str
    kind: Kind
    source: str
    scope: str
    error: str


class SourceListDict(TypedDict):
    """What a machine can measure, by source, and why other sources are missing, as JSON."""

    sources: dict[str, list[SourceChannelDict]]
    missing: dict[str, str]


class WatchPlanDict(SourceListDict):
    """What would be measured, as JSON."""

    command: list[str]
    period_s: float
    dry_run: Literal[True]


class LogReportDict(SummaryDict):
    """The summary of a log as JSON."""

    log: str


class WatchReportDict(SummaryDict):
    """What was measured as JSON; `exit_code` is null without a program, and negative where a signal ended it."""

    command: list[str]
    exit_code: int | None
    elapsed_s: float
    cpu_s: float | None
    interrupted: bool
    missing: dict[str, str]
    skipped_samples: int
    watch_cpu_percent: float
    failures: dict[str, int]
    log: str | None


@dataclass(frozen=True, repr=False)
class SourceList(Result):
    """The channels that each source of this machine measures, and why other sources are missing."""

    sources: dict[str, tuple[Channel, ...]]
    missing: dict[str, str]

    @property
    def channels(self) -> list[Channel]:
        return [channel for channels in self.sources.values() for channel in channels]

    def to_dict(self) -> SourceListDict:
        """Return the sources as `fairmile watch --list --json` prints them."""
        sources = {name: [_channel_dict(each) for each in channels] for name, channels in self.sources.items()}
        return {"sources": sources, "missing": dict(self.missing)}

    def summary(self) -> str:
        """Return the names of the sources, and of those that are missing."""
        missing = f"; missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{', '.join(self.sources)}: {len(self.channels)} channels{missing}"


@dataclass(frozen=True, repr=False)
class WatchPlan(Result):
    """What would be measured, how often, while which command runs."""

    command: tuple[str, ...]
    period_s: float
    sources: SourceList

    def to_dict(self) -> WatchPlanDict:
        """Return the plan as `fairmile watch --dry-run --json` prints it."""
        return {
            "command": list(self.command),
            "period_s": self.period_s,
            "dry_run": True,
            **self.sources.to_dict(),
        }

    def summary(self) -> str:
        """Return the command, the period and the sources."""
        command = f"{shlex.join(self.command)}, " if self.command else ""
        return f"{command}every {format_duration(self.period_s)}: {self.sources.summary()}"


@dataclass(frozen=True, repr=False)
class LogReport(Result):
    """The summary of a log."""

    samples: Summary
    log: str

    def to_dict(self) -> LogReportDict:
        """Return the report as `fairmile watch --read FILE --json` prints it."""
        return {**self.samples.to_dict(), "log": self.log}

    def summary(self) -> str:
        """Return the log and its energy."""
        return f"{self.log}: {self.samples.summary()}"


@dataclass(frozen=True, repr=False)
class WatchReport(Result):
    """What was measured, of a program or of the machine, and where the samples were logged."""

    command: tuple[str, ...]
    watched: Watched
    samples: Summary
    log: str | None

    def to_dict(self) -> WatchReportDict:
        """Return the report as `fairmile watch --json` prints it."""
        watched = self.watched
        share = 100 * watched.watch_cpu_s / watched.elapsed_s if watched.elapsed_s else 0.0
        return {
            **self.samples.to_dict(),
            "command": list(self.command),
            "exit_code": watched.exit_code,
            "elapsed_s": watched.elapsed_s,
            "cpu_s": watched.cpu_s,
            "interrupted": watched.interrupted,
            "missing": dict(watched.missing),
            "skipped_samples": watched.skipped,
            "watch_cpu_percent": share,
            "failures": dict(watched.failures),
            "log": self.log,
        }

    def summary(self) -> str:
        """Return the command, its time and its energy."""
        command = f"{shlex.join(self.command)}, " if self.command else ""
        return f"{command}{format_duration(self.watched.elapsed_s)}: {self.samples.summary()}"


def watch(
    command: Sequence[str] = (),
    *,
    seconds: float | None = None,
    sources: Sequence[str] | None = None,
    gpus: Sequence[str] = (),
    period_s: float = 1.0,
    log: Path | None = None,
    supply: Supply | None = None,
    watts: float | None = None,
    on_sample: OnSample | None = None,
) -> WatchReport:
    """Measure while a program runs, or for some seconds, or until Ctrl-C.

    Every source of the machine is read unless `sources` names some, every GPU unless `gpus` does, by number or UUID; a
    source or GPU that is not there raises before anything runs. `supply` gives cost and CO₂, `watts` an estimate of
    energy where no source measures it. Samples are appended to `log`.
    """
    supply = supply or Supply()
    _check_estimate(supply, watts)
    wanted = _wanted(sources, gpus)
    if wanted is not None:
        _require(wanted, gpus, all_of_them=sources is not None)
    _check_log(log)
    if command:
        watched = watch_command(command, wanted=wanted, file=log, period_s=period_s, on_sample=on_sample)
    else:
        watched = watch_for(seconds, wanted=wanted, file=log, period_s=period_s, on_sample=on_sample)
    within_ns = (watched.start_ns, watched.end_ns)
    samples = _summary(Log(samples=[watched.samples]), supply, watts, within_ns)
    return WatchReport(tuple(command), watched, samples, None if log is None else str(log))


def plan_watch(
    command: Sequence[str] = (),
    *,
    sources: Sequence[str] | None = None,
    gpus: Sequence[str] = (),
    period_s: float = 1.0,
) -> WatchPlan:
    """Return what `watch` would measure; nothing is run."""
    return WatchPlan(tuple(command), period_s, list_sources(sources, gpus))


def list_sources(sources: Sequence[str] | None = None, gpus: Sequence[str] = ()) -> SourceList:
    """Return what this machine can measure by these sources, or by all."""
    available = find_sources(_wanted(sources, gpus))
    available.close()
    return SourceList({each.name: tuple(each.channels()) for each in available.sources}, available.missing)


def read_report(log: Path, *, supply: Supply | None = None, watts: float | None = None) -> LogReport:
    """Return the summary of a log: a file or folder of ours, or a log of cloudmesh-gpu."""
    supply = supply or Supply()
    _check_estimate(supply, watts)
    return LogReport(_summary(read_samples(log), supply, watts), str(log))


def _summary(log: Log, supply: Supply, watts: float | None, within_ns: tuple[int, int] | None = None) -> Summary:
    return summarise(log, region=supply.region, table=supply.table, pue=supply.pue, watts=watts, within_ns=within_ns)


def _check_estimate(supply: Supply, watts: float | None) -> None:
    """Refuse a region or a power that cannot be used before a program has run for hours."""
    supply.footprint(0.0)
    if watts is not None:
        estimate(watts, 0, 0, scope="")


def _wanted(sources: Sequence[str] | None, gpus: Sequence[str]) -> list[str] | None:
    """Return the sources to read, each with the GPUs to look at; None for all."""
    if sources is None and not gpus:
        return None
    names = SOURCES.names() if sources is None else list(sources)
    if not names:
        raise UsageError("--source: expected the name of a source", hint=f"known: {', '.join(SOURCES.names())}")
    if gpus and not set(names) & set(_GPU_SOURCES):
        raise UsageError(f"--gpu does not apply to {', '.join(names)}", hint="add nvidia or amd to --source")
    return [f"{name}:{','.join(gpus)}" if gpus and name in _GPU_SOURCES else name for name in names]


def _require(wanted: Sequence[str], gpus: Sequence[str], *, all_of_them: bool) -> None:
    """Refuse what is not here before a program has run for hours: sources asked for by name, one GPU of several."""
    available = find_sources(wanted)
    scopes = _gpu_scopes(available)
    available.close()
    if all_of_them:
        for sentence in available.missing.values():
            raise Unsupported(sentence, hint=_HINT)
    for each in gpus if scopes is not None else ():  # a machine without any measures the rest
        if not any(scope.startswith(f"device {each} ") or each in scope for scope in scopes or ()):
            raise UsageError(f"--gpu {each}: no such GPU here", hint=_HINT)


def _gpu_scopes(available: AvailableSources) -> list[str] | None:
    """Return what the channels of GPUs cover; None where no source of GPUs is available."""
    sources = [source for source in available.sources if source.name in _GPU_SOURCES]
    return [each.scope for source in sources for each in source.channels()] if sources else None


def _check_log(file: Path | None) -> None:
    if file is None:
        return
    try:
        with open(file, "ab"):
            pass
    except OSError as error:
        raise write_failure(str(file), error) from error


def _channel_dict(channel: Channel) -> SourceChannelDict:
    return {
        "name": channel.name,
        "unit": channel.unit,
        "kind": channel.kind,
        "source": channel.source,
        "scope": channel.scope,
        "error": channel.error,
    }
