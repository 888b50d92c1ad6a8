"""Why a job failed, in words, with what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairmile.base.units import format_duration
from fairmile.jobs.judge import REASONS, Standing
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import State


@dataclass(frozen=True)
class Diagnosis:
    """What went wrong, what to do, and the line of the output that says so."""

    what: str
    advice: str
    line: str = ""


# The first that is found in the output, seen from its end, tells the most.
_SIGNS: tuple[tuple[str, str, str], ...] = (
    (
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|hipErrorOutOfMemory",
        "the memory of the GPU was too small",
        "use a smaller batch, lower precision or activation checkpointing, or more GPUs",
    ),
    (
        r"oom[-_ ]kill|Out of memory: Killed|exceeded (?:job |step )?memory limit|MemoryError|std::bad_alloc",
        "the memory of the node, or of its share, was too small",
        "ask for more with --memory, or have each process hold less",
    ),
    (
        r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \S+ exceeded",
        "the time limit ended it",
        "ask for more with --time, or save checkpoints: --signal USR1@120 warns the program before the end",
    ),
    (r"No space left on device", "a disk was full", "free some room, or write to another file system"),
    (r"Disk quota exceeded", "the quota was used up", "remove files, or write to a file system with room"),
    (
        r"ModuleNotFoundError: No module named .+",
        "a Python package is missing in the environment",
        "add it to the environment and build that again, or name the right environment",
    ),
    (
        r"error while loading shared libraries: .+",
        "a library is missing",
        "load the module that brings it: `fairmile system modules` lists those of a framework",
    ),
    (
        r"NCCL (?:WARN|error)[^\n]*|ncclSystemError[^\n]*|ncclUnhandledCudaError[^\n]*",
        "the GPUs could not talk to each other",
        "set NCCL_DEBUG=INFO with --env and look at the network it picks",
    ),
    (
        r"(?:RendezvousTimeoutError|RendezvousConnectionError|The client socket has timed out)[^\n]*",
        "the processes did not find each other",
        "check that the first node can be reached from the others, and that the launcher starts one task per node",
    ),
    (r"Permission denied[^\n]*", "a file may not be read, written or run", "check its permissions and its owner"),
    (
        r"[^\n]*: (?:command )?not found|No such file or directory[^\n]*",
        "a program or file is missing",
        "check its path and its name",
    ),
)
_BY_STATE = {
    State.TIMED_OUT: _SIGNS[2],
    State.OUT_OF_MEMORY: _SIGNS[1],
    State.NODE_FAILED: ("", "a node failed under it", "submit it again; --retries 2 does so by itself"),
    State.PREEMPTED: ("", "it made room for a job that goes first", "submit it again; --retries 2 does so by itself"),
    State.LOST: ("", "it vanished", "submit it again; if it vanishes again, ask those who run the system"),
    State.CANCELLED: ("", "it was cancelled", "submit it again if that was not meant"),
}


def diagnose(standing: Standing, output: str, spec: JobSpec) -> Diagnosis:
    """Return why a job ended as it did; the scheduler's word first, then what its output tells."""
    if standing.state in _BY_STATE:
        pattern, what, advice = _BY_STATE[standing.state]
        found = list(re.finditer(pattern, output)) if pattern else []
        line = _line(output, found[-1]) if found else ""
        if standing.state is State.TIMED_OUT and spec.resources.time_s:
            what += f" after {format_duration(spec.resources.time_s)}"
        return Diagnosis(standing.sentence or what, advice, line)
    if standing.sentence == REASONS["folder"]:
        return Diagnosis(standing.sentence, "make it, or give another one with --folder", _last(output))
    if standing.sentence == REASONS["modules"]:
        return Diagnosis(
            "a module could not be loaded", "`fairmile system probe --on SYSTEM` tells which are there", _last(output)
        )
    for pattern, what, advice in _SIGNS:
        found = list(re.finditer(pattern, output))
        if found:
            return Diagnosis(what, advice, _line(output, found[-1]))
    if standing.signal == "KILL":
        return Diagnosis(standing.sentence, "if memory ran out, ask for more with --memory, or have it hold less")
    if standing.exit_code == 127:
        return Diagnosis(f"there is no program {spec.argv[0]!r}", "check its name and the environment", _last(output))
    return Diagnosis(
        standing.sentence or "it failed", "its output tells more: `fairmile job log JOB --err`", _last(output)
    )


def _line(output: str, found: re.Match[str]) -> str:
    start = output.rfind("\n", 0, found.start()) + 1
    end = output.find("\n", found.end())
    return output[start : end if end >= 0 else None].strip()[:300]


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("hint: ")] or lines  # the sentence is above its advice
    return said[-1].strip()[:300] if said else ""
