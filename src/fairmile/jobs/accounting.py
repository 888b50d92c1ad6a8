"""What all users' jobs on a system took: hours, efficiency, memory, energy and failures, from the scheduler's records.

For those who run a machine or plan the next one. Nothing is changed. The records are those that the user may see:
sacct shows everybody's jobs to administrators and operators, and to others where a site allows it.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, TypedDict

from fairmile.base.commands import Runner
from fairmile.base.errors import SystemFailure, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_duration, format_size
from fairmile.base.words import did_you_mean
from fairmile.jobs.schedulers.slurm import check_answer, consumed_j, cpu_seconds, whole_number

GROUPINGS = {"project": "Account", "user": "User", "partition": "Partition"}
_FIELDS = (
    *("JobID", "User", "Account", "Partition", "State", "ElapsedRaw", "AllocCPUS", "AllocTRES", "ReqTRES"),
    *("TotalCPU", "MaxRSS", "ConsumedEnergyRaw", "Submit", "Start"),
)
_JOB = re.compile(r"\d+(?:_\d+)?")
_STEP = re.compile(r"(\d+(?:_\d+)?)\.\S+")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_RUNNING = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING")
_TIMEOUT_S = 600.0
_J_PER_KWH = 3.6e6
_GPU = "gres/gpu"
_NO_GPUS = f"GPU hours are unknown: Slurm's accounting counts no GPUs here (AccountingStorageTRES lacks {_GPU})"
# What tables show: heading, field, and how a value is written.
_SHOWN: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("jobs", "jobs", "{:,}".format),
    ("GPU hours", "gpu_hours", "{:,.1f}".format),
    ("CPU hours", "cpu_hours", "{:,.1f}".format),
    ("CPU use", "cpu_efficiency", "{:.0%}".format),
    ("memory asked", "memory_asked_bytes", lambda value: format_size(int(value))),
    ("memory use", "memory_efficiency", "{:.0%}".format),
    ("kWh", "energy_j", lambda value: f"{value / _J_PER_KWH:,.2f}"),
    ("wait", "wait_s", lambda value: format_duration(value)),
    ("not completed", "failures", lambda value: _reasons(value)),
)
COLUMNS = tuple(heading for heading, _, _ in _SHOWN)


class UsageDict(TypedDict):
    """What the jobs of one group took; a figure that no record has is null."""

    name: str
    jobs: int
    cpu_hours: float
    gpu_hours: float | None
    cpu_efficiency: float | None
    memory_asked_bytes: float | None
    memory_efficiency: float | None
    energy_j: float | None
    wait_s: float | None
    failures: dict[str, int]


class SystemUsageDict(TypedDict):
    """The use of a system by group, the largest first, and all of it."""

    system: str
    since_s: float
    by: str
    groups: list[UsageDict]
    total: UsageDict
    notes: list[str]


@dataclass(frozen=True)
class JobUse:
    """One job that ended: how it ended, what it was given and what it used; None where no record says."""

    group: str
    state: str
    elapsed_s: float
    cpus: int
    gpus: int | None
    cpu_s: float | None
    memory_asked_bytes: int | None
    memory_used_bytes: int | None  # of the largest task
    energy_j: int | None
    wait_s: float | None


@dataclass(frozen=True, repr=False)
class Usage(Result):
    """What the jobs of one group took together."""

    name: str
    jobs: int
    cpu_hours: float
    gpu_hours: float | None
    cpu_efficiency: float | None  # time of processors that computed, of all that was given
    memory_asked_bytes: float | None  # mean over time
    memory_efficiency: float | None  # largest task's memory, of what was asked for; weighted by time
    energy_j: float | None
    wait_s: float | None  # median
    failures: dict[str, int]  # by how jobs ended that did not complete

    def to_dict(self) -> UsageDict:
        return {
            "name": self.name,
            "jobs": self.jobs,
            "cpu_hours": self.cpu_hours,
            "gpu_hours": self.gpu_hours,
            "cpu_efficiency": self.cpu_efficiency,
            "memory_asked_bytes": self.memory_asked_bytes,
            "memory_efficiency": self.memory_efficiency,
            "energy_j": self.energy_j,
            "wait_s": self.wait_s,
            "failures": self.failures,
        }

    def values(self) -> list[Any]:
        """Return the figure in each of `COLUMNS`; None where no record says."""
        return [getattr(self, field) for _, field, _ in _SHOWN]

    def texts(self) -> list[str]:
        """Return what a table shows in each of `COLUMNS`."""
        formats = (write for _, _, write in _SHOWN)
        return ["" if value is None else write(value) for value, write in zip(self.values(), formats, strict=True)]

    def summary(self) -> str:
        """Return the name, and how many jobs took how many hours."""
        gpus = "" if self.gpu_hours is None else f", {self.gpu_hours:.1f} GPU hours"
        return f"{self.name}: {self.jobs} jobs, {self.cpu_hours:.1f} CPU hours{gpus}"


class SystemUsage(Results[Usage]):
    """The use of a system by group, those that took most first."""

    def __init__(self, system: str, since_s: float, by: str, jobs: Iterable[JobUse]) -> None:
        by_group: dict[str, list[JobUse]] = {}
        for job in jobs:
            by_group.setdefault(job.group, []).append(job)
        groups = (_sum(name, each) for name, each in by_group.items())
        super().__init__(sorted(groups, key=lambda each: (-(each.gpu_hours or 0), -each.cpu_hours, each.name)))
        self.system, self.since_s, self.by = system, since_s, by
        self.total = _sum("all", [job for each in by_group.values() for job in each])
        self.notes = [_NO_GPUS] if self and self.total.gpu_hours is None else []

    def to_dict(self) -> SystemUsageDict:
        """Return the groups and the total."""
        return {
            "system": self.system,
            "since_s": self.since_s,
            "by": self.by,
            "groups": [each.to_dict() for each in self],
            "total": self.total.to_dict(),
            "notes": self.notes,
        }

    def summary(self) -> str:
        """Return the total."""
        return f"{self.system}: {self.total.summary().partition(': ')[2]}"


def read_usage(runner: Runner, scheduler: str, system: str, since_s: float, by: str) -> SystemUsage:
    """Return what jobs took that ended in the last `since_s` seconds, by project, user or partition."""
    if by not in GROUPINGS:
        near = did_you_mean(by, GROUPINGS)
        raise UsageError(f"usage cannot be grouped by {by!r}", hint=near or f"known: {', '.join(GROUPINGS)}")
    if scheduler != "slurm":
        raise Unsupported(f"the accounting of {scheduler} is not read", hint="name a system whose scheduler is Slurm")
    argv = ["sacct", "--allusers", "--noheader", "--parsable2", "--noconvert", "--duplicates"]
    argv += ["--starttime", f"now-{int(since_s)}seconds", "--format", ",".join(_FIELDS)]
    result = runner.run(argv, env={"SLURM_TIME_FORMAT": "%s"}, timeout_s=_TIMEOUT_S, check=False)
    check_answer(result, "sacct")
    has_gpus = _GPU in result.stdout or _counts_gpus(runner)
    return SystemUsage(system, since_s, by, parse_jobs(result.stdout, GROUPINGS[by], has_gpus=has_gpus))


def _counts_gpus(runner: Runner) -> bool:
    """Tell whether the accounting would show GPUs, if a job had some; where it does not say, it is taken to."""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "tres", "format=Type,Name"]
    with contextlib.suppress(SystemFailure):
        result = runner.run(argv, timeout_s=_TIMEOUT_S, check=False)
        return result.exit_code != 0 or _GPU in result.stdout.replace("|", "/")
    return True


def parse_jobs(text: str, group: str, *, has_gpus: bool = True) -> Iterator[JobUse]:
    """Yield the jobs that ended, out of the lines of sacct: one for each job, then one for each of its steps."""
    row: dict[str, str] = {}
    steps: list[dict[str, str]] = []
    for line in text.splitlines():
        values = dict(zip(_FIELDS, line.split("|"), strict=False))
        if len(values) != len(_FIELDS):
            continue
        step = _STEP.fullmatch(values["JobID"])
        if step is not None:
            if row and step[1] == row["JobID"]:
                steps.append(values)
            continue
        if row:
            yield _job(row, steps, group, has_gpus)
        ended = _JOB.fullmatch(values["JobID"]) and values["State"].split(" ")[0] not in _RUNNING
        row, steps = (values if ended else {}), []
    if row:
        yield _job(row, steps, group, has_gpus)


def _job(row: dict[str, str], steps: list[dict[str, str]], group: str, has_gpus: bool) -> JobUse:
    given, asked = _resources(row["AllocTRES"]), _resources(row["ReqTRES"])
    cpus = whole_number(row["AllocCPUS"]) or 0
    elapsed = float(whole_number(row["ElapsedRaw"]) or 0)
    submitted, started = whole_number(row["Submit"]), whole_number(row["Start"])
    return JobUse(
        group=row[group] or "unknown",
        state=row["State"].split(" ")[0],
        elapsed_s=elapsed,
        cpus=cpus,
        gpus=given.get(_GPU, 0) if has_gpus else None,
        cpu_s=cpu_seconds(row["TotalCPU"]) if elapsed else None,
        memory_asked_bytes=given.get("mem") or asked.get("mem"),
        memory_used_bytes=max(filter(None, (whole_number(step["MaxRSS"]) for step in steps)), default=None),
        energy_j=consumed_j(row["ConsumedEnergyRaw"], (step["ConsumedEnergyRaw"] for step in steps)),
        wait_s=float(started - submitted) if started is not None and submitted is not None else None,
    )


def _resources(text: str) -> dict[str, int]:
    """Return what Slurm lists as `cpu=2,gres/gpu=1,mem=400M`."""
    parts = (part.partition("=") for part in text.split(",") if "=" in part)
    matches = ((name, re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", value)) for name, _, value in parts)
    return {name: int(float(match[1]) * _UNITS[match[2]]) for name, match in matches if match}


def _sum(name: str, jobs: list[JobUse]) -> Usage:
    computed = [job for job in jobs if job.cpu_s is not None and job.cpus]
    given_s = sum(job.cpus * job.elapsed_s for job in computed)
    known = [job for job in jobs if job.memory_asked_bytes and job.elapsed_s]
    measured = [job for job in known if job.memory_used_bytes is not None]
    energies = [job.energy_j for job in jobs if job.energy_j is not None]
    waits = [job.wait_s for job in jobs if job.wait_s is not None]
    gpus = {job.gpus for job in jobs}
    return Usage(
        name=name,
        jobs=len(jobs),
        cpu_hours=sum(job.cpus * job.elapsed_s for job in jobs) / 3600,
        gpu_hours=None if None in gpus else sum(job.elapsed_s * (job.gpus or 0) for job in jobs) / 3600,
        cpu_efficiency=sum(job.cpu_s or 0 for job in computed) / given_s if given_s else None,
        memory_asked_bytes=_over_time(known, "memory_asked_bytes") if known else None,
        memory_efficiency=(
            _over_time(measured, "memory_used_bytes") / _over_time(measured, "memory_asked_bytes") if measured else None
        ),
        energy_j=sum(energies) if energies else None,
        wait_s=median(waits) if waits else None,
        failures=dict(Counter(job.state for job in jobs if job.state != "COMPLETED").most_common()),
    )


def _reasons(failures: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {state.lower().replace('_', ' ')}" for state, number in failures.items())


def _over_time(jobs: list[JobUse], field: str) -> float:
    values: list[tuple[Any, float]] = [(getattr(job, field), job.elapsed_s) for job in jobs]
    return float(sum(value * seconds for value, seconds in values) / sum(seconds for _, seconds in values))
