"""What calls about jobs return: the status of one or many, its details, its output, and what would be submitted."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, Literal, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_duration
from fairmile.jobs.diagnosis import Diagnosis, DiagnosisDict
from fairmile.jobs.judge import TaskStatus, TaskStatusDict
from fairmile.jobs.states import State


class JobStatusDict(TypedDict):
    """A job as JSON; `standing` is the status of the whole job, `tasks` that of each task by its index."""

    id: str
    name: str
    system: str
    scheduler_id: str
    created: float
    attempt: int
    folder: str
    standing: TaskStatusDict
    tasks: dict[str, TaskStatusDict]
    trouble: str
    state: State


class JobListDict(TypedDict):
    """Jobs as JSON."""

    jobs: list[JobStatusDict]


class JobDetailsDict(JobStatusDict):
    """A job as JSON, with the reason of its failure; null unless it failed."""

    diagnosis: DiagnosisDict | None


class JobLogDict(TypedDict):
    """The output of a job as JSON; bytes that are not UTF-8 are replaced."""

    log: str


class JobPlanDict(TypedDict):
    """A script that would be submitted, as JSON."""

    script: str
    notes: list[str]


class PackPlanDict(TypedDict):
    """Commands that would be submitted as one job, as JSON."""

    commands: list[list[str]]
    system: str
    dry_run: Literal[True]


class CopiedFilesDict(TypedDict):
    """Files that were copied, or would be, as JSON."""

    files: list[str]


class RemovedJobsDict(TypedDict):
    """Ids of jobs that were removed, or would be, as JSON."""

    removed: list[str]


@dataclass(frozen=True, repr=False)
class JobStatus(Result):
    """A job and its status; `tasks` are those of an array or the commands packed into it."""

    id: str
    name: str
    system: str
    scheduler_id: str
    created: float
    attempt: int
    folder: str
    status: TaskStatus
    tasks: dict[int, TaskStatus]
    trouble: str = ""  # why this status may be out of date

    @property
    def state(self) -> State:
        return self.status.state

    @property
    def standing(self) -> TaskStatus:
        """The old name of `status`."""
        warnings.warn("JobStatus.standing is now JobStatus.status", DeprecationWarning, stacklevel=2)
        return self.status

    @property
    def is_over(self) -> bool:
        return self.state.is_end

    def counts(self) -> dict[State, int]:
        """Return the number of tasks in each state."""
        numbers: dict[State, int] = {}
        for task in self.tasks.values():
            numbers[task.state] = numbers.get(task.state, 0) + 1
        return numbers

    def to_dict(self) -> JobStatusDict:
        """Return the job as `fairmile job submit --json` prints it."""
        return {
            "id": self.id,
            "name": self.name,
            "system": self.system,
            "scheduler_id": self.scheduler_id,
            "created": self.created,
            "attempt": self.attempt,
            "folder": self.folder,
            "standing": self.status.to_dict(),
            "tasks": {str(index): task.to_dict() for index, task in self.tasks.items()},
            "trouble": self.trouble,
            "state": self.state,
        }

    def summary(self) -> str:
        """Return the job's id, state, system and elapsed time."""
        done = self.counts().get(State.DONE, 0)
        tasks = f", {done} of {len(self.tasks)} tasks done" if self.tasks else ""
        reason = f": {self.status.sentence}" if self.status.sentence else ""
        return f"{self.id} {self.state.replace('_', ' ')} on {self.system}{self._elapsed()}{tasks}{reason}"

    def _elapsed(self) -> str:
        started, ended = self.status.started, self.status.ended
        if started is None or (ended is None and self.state is not State.RUNNING):
            return ""
        elapsed_s = max((time.time() if ended is None else ended) - started, 0.0)
        return f" {'for' if ended is None else 'after'} {format_duration(elapsed_s)}"


class JobList(Results[JobStatus]):
    """Jobs."""

    columns = ("id", "name", "system", "standing.state", "standing.exit_code", "created")

    def to_dict(self) -> JobListDict:
        """Return the jobs as `fairmile job ls --json` prints them."""
        return {"jobs": [each.to_dict() for each in self]}

    def summary(self) -> str:
        """Return the number of jobs, and of jobs in each state that is not an end."""
        live = [each.state for each in self if not each.is_over]
        numbers = [f"{live.count(state)} {state}" for state in dict.fromkeys(live)]
        return ", ".join([f"{len(self):,} job{'' if len(self) == 1 else 's'}", *numbers])

    def _rows(self) -> list[Any]:
        # A table has one row for each job; every task of an array would add columns.
        return [{**each.to_dict(), "tasks": len(each.tasks)} for each in self]


@dataclass(frozen=True, repr=False)
class JobDetails(Result):
    """A job, and why it failed; `diagnosis` is None unless it did."""

    job: JobStatus
    diagnosis: Diagnosis | None

    def to_dict(self) -> JobDetailsDict:
        """Return the job as `fairmile job show --json` prints it."""
        return {**self.job.to_dict(), "diagnosis": self.diagnosis.to_dict() if self.diagnosis else None}

    def summary(self) -> str:
        """Return the job in a few words."""
        return self.job.summary()


class JobLog(bytes, Result):
    """The output of a job, or of one of its tasks."""

    __repr__ = Result.__repr__

    def to_dict(self) -> JobLogDict:
        """Return the output as text."""
        return {"log": self.decode(errors="replace")}

    def summary(self) -> str:
        """Return the size and the last line."""
        last = self.rstrip().rpartition(b"\n")[2].decode(errors="replace")
        return f"{len(self):,} bytes" + (f", ending with {last!r}" if last else "")


@dataclass(frozen=True, repr=False)
class JobPlan(Result):
    """The script that a job would be submitted with, and what a person should know of it."""

    script: str
    notes: tuple[str, ...]

    def to_dict(self) -> JobPlanDict:
        """Return the plan as `fairmile job submit --dry-run --json` prints it."""
        return {"script": self.script, "notes": list(self.notes)}

    def summary(self) -> str:
        """Return the length of the script, and the notes."""
        return "; ".join([f"script of {len(self.script.splitlines())} lines", *self.notes])


@dataclass(frozen=True, repr=False)
class PackPlan(Result):
    """The commands that would be submitted as one job."""

    commands: tuple[tuple[str, ...], ...]
    system: str

    def to_dict(self) -> PackPlanDict:
        """Return the plan as `fairmile job pack --dry-run --json` prints it."""
        return {"commands": [list(each) for each in self.commands], "system": self.system, "dry_run": True}

    def summary(self) -> str:
        """Return the number of commands and the system."""
        return f"{len(self.commands):,} commands as one job on {self.system}"


class CopiedFiles(Results[Path]):
    """Output files of a job, where they were copied to or would be."""

    def to_dict(self) -> CopiedFilesDict:
        """Return the paths as `fairmile job bring --json` prints them."""
        return {"files": [str(path) for path in self]}

    def summary(self) -> str:
        """Return the paths."""
        return ", ".join(map(str, self)) or "no files"


class RemovedJobs(Results[str]):
    """Ids of jobs that were removed, or would be."""

    def to_dict(self) -> RemovedJobsDict:
        """Return the ids as `fairmile job rm --json` prints them."""
        return {"removed": list(self)}

    def summary(self) -> str:
        """Return the ids."""
        return ", ".join(self) or "no jobs"
