"""Why a job failed, in words, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from fairmile.base.results import Result
from fairmile.base.symptoms import DISK, GPU_MEMORY, MEMORY, QUOTA, TIME, Symptom, find_line
from fairmile.base.units import format_duration
from fairmile.jobs.judge import REASONS, TaskStatus
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State


class DiagnosisDict(TypedDict):
    """A diagnosis as JSON."""

    what: str
    advice: str
    line: str


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What went wrong, what to do, and the line of the output that says so."""

    what: str
    advice: str
    line: str = ""

    def to_dict(self) -> DiagnosisDict:
        """Return the diagnosis as data."""
        return {"what": self.what, "advice": self.advice, "line": self.line}

    def summary(self) -> str:
        """Return what went wrong and what to do."""
        return f"{self.what}; {self.advice}"


# The first that is found in the output, seen from its end, tells the most.
_SIGNS: tuple[Symptom, ...] = (
    GPU_MEMORY,
    MEMORY,
    TIME,
    DISK,
    QUOTA,
    Symptom(
        r"ModuleNotFoundError: No module named .+",
        "a Python package is missing in the environment",
        "add it to the environment and build that again, or name the right environment",
    ),
    Symptom(
        r"error while loading shared libraries: .+",
        "a library is missing",
        "load the module that brings it: `fairmile system modules` lists those of a framework",
    ),
    Symptom(
        r"NCCL (?:WARN|error)[^\n]*|ncclSystemError[^\n]*|ncclUnhandledCudaError[^\n]*",
        "the GPUs could not talk to each other",
        "set NCCL_DEBUG=INFO with --env and look at the network it picks",
    ),
    Symptom(
        r"(?:RendezvousTimeoutError|RendezvousConnectionError|The client socket has timed out)[^\n]*",
        "the processes did not find each other",
        "check that the first node can be reached from the others, and that the launcher starts one task per node",
    ),
    Symptom(
        r"Permission denied[^\n]*", "a file may not be read, written or run", "check its permissions and its owner"
    ),
    Symptom(
        r"[^\n]*: (?:command )?not found|No such file or directory[^\n]*",
        "a program or file is missing",
        "check its path and its name",
    ),
)
_BY_STATE = {
    State.TIMED_OUT: TIME,
    State.OUT_OF_MEMORY: MEMORY,
    State.NODE_FAILED: Symptom("", "a node failed under it", "submit it again; --retries 2 does so by itself"),
    State.PREEMPTED: Symptom(
        "", "it made room for a job that goes first", "submit it again; --retries 2 does so by itself"
    ),
    State.LOST: Symptom("", "it vanished", "submit it again; if it vanishes again, ask those who run the system"),
    State.CANCELLED: Symptom("", "it was cancelled", "submit it again if that was not meant"),
}


def diagnose(status: TaskStatus, output: str, spec: JobSpec) -> Diagnosis:
    """Return why a job ended as it did; the scheduler's word first, then what its output tells."""
    if status.state in _BY_STATE:
        symptom = _BY_STATE[status.state]
        what, advice = symptom.what, symptom.advice
        line = (find_line(symptom, output) if symptom.pattern else None) or ""
        if status.state is State.TIMED_OUT and spec.resources.time_s:
            what += f" after {format_duration(spec.resources.time_s)}"
        return Diagnosis(status.sentence or what, advice, line)
    if status.sentence == REASONS["folder"]:
        return Diagnosis(status.sentence, "make it, or give another one with --folder", _last(output))
    if status.sentence == REASONS["modules"]:
        return Diagnosis(
            "a module could not be loaded", "`fairmile system probe --on SYSTEM` tells which are there", _last(output)
        )
    for symptom in _SIGNS:
        shown = find_line(symptom, output)
        if shown is not None:
            return Diagnosis(symptom.what, symptom.advice, shown)
    if status.signal == "KILL":
        return Diagnosis(status.sentence, "if memory ran out, ask for more with --memory, or have it hold less")
    if status.exit_code == 127:
        return Diagnosis(f"there is no program {spec.argv[0]!r}", "check its name and the environment", _last(output))
    return Diagnosis(
        status.sentence or "it failed", "its output tells more: `fairmile job log JOB --err`", _last(output)
    )


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("hint: ")] or lines  # the sentence is above its advice
    return said[-1].strip()[:300] if said else ""
