"""Schedulers: text in, text out. Nothing here runs a command; the queue does, here or over ssh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from fairmile.base.commands import Result
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.states import Observed

T = TypeVar("T")
_HERE = "fairmile.jobs.schedulers"


@dataclass(frozen=True)
class Question(Generic[T]):
    """A command to run and how its result is read; `read` raises Transient where asking again makes sense."""

    argv: tuple[str, ...]
    read: Callable[[Result], T]
    input: str | None = None


class Scheduler(Protocol):
    """One scheduler's dialect.

    Ids of array tasks are `ID_INDEX`, with INDEX counted from 0, whatever the scheduler writes. A state that is not
    known is State.UNKNOWN, a job that is not listed is absent from the answer: neither is ever an error.
    """

    name: str
    # FAIRMILE_JOB_ID, FAIRMILE_ARRAY_INDEX, FAIRMILE_NODES (words of a shell) → how a script of this scheduler
    # computes them, such as {"FAIRMILE_JOB_ID": "$SLURM_JOB_ID"}.
    variables: Mapping[str, str]

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """Return the directive lines of a script, `#SBATCH --nodes=2` and so on."""
        ...

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """Ask to take the script at a path; the answer is the scheduler's id."""
        ...

    def find(self, key: str) -> Question[str | None]:
        """Ask for the id of the job submitted with a key, for when the answer to a submission was lost."""
        ...

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """Ask once for the state of many jobs."""
        ...

    def history(self, ids: Sequence[str]) -> Question[dict[str, Observed]] | None:
        """Ask the accounting for jobs that ended; None where there is none."""
        ...

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """Ask to end jobs; those that ended already are no error."""
        ...


SCHEDULERS: Registry[type[Scheduler]] = Registry(
    "scheduler",
    {
        "shell": Plugin(f"{_HERE}.shell:Shell", summary="processes of the machine itself, without a scheduler"),
        "slurm": Plugin(f"{_HERE}.slurm:Slurm", summary="Slurm"),
        "lsf": Plugin(f"{_HERE}.lsf:Lsf", summary="IBM Spectrum LSF; never run against a live one"),
        "pbs": Plugin(f"{_HERE}.pbs:Pbs", summary="PBS Professional and OpenPBS; never run against a live one"),
        "flux": Plugin(f"{_HERE}.flux:Flux", summary="Flux; never run against a live one"),
        "practice": Plugin("fairmile.testing.practice:Practice", summary="make-believe nodes here, to learn with"),
    },
    entry_points="fairmile.schedulers",
)
