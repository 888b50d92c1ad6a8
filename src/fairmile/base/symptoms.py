"""What programs print when something outside of them failed: the signs, in words, with what to do about each."""

from __future__ import annotations

import re

from fairmile.base.quick_named_tuple import NamedTuple


class Symptom(NamedTuple):
    """A pattern in the output of a program, what it tells and what to do."""

    pattern: str
    what: str
    advice: str


GPU_MEMORY = Symptom(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|hipErrorOutOfMemory",
    "the GPU ran out of memory",
    "use a smaller batch, lower precision or activation checkpointing, or more GPUs",
)
MEMORY = Symptom(
    r"oom[-_ ]kill|Out of memory: Killed|exceeded (?:job |step )?memory limit|MemoryError|std::bad_alloc",
    "the job ran out of memory",
    "request more with --memory, or reduce what each process holds",
)
TIME = Symptom(
    r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \S+ exceeded",
    "it reached its time limit",
    "request more with --time, or save checkpoints: --signal USR1@120 warns the program before the end",
)
DISK = Symptom(
    r"No space left on device|\bENOSPC\b", "a disk was full", "free some space, or write to another file system"
)
QUOTA = Symptom(
    r"Disk quota exceeded|\bEDQUOT\b", "the quota was exceeded", "remove files, or write to another file system"
)


def find_line(symptom: Symptom, output: str) -> str | None:
    """Return the last line of an output that shows a symptom; None where none does."""
    matches = list(re.finditer(symptom.pattern, output))
    if not matches:
        return None
    start = output.rfind("\n", 0, matches[-1].start()) + 1
    end = output.find("\n", matches[-1].end())
    return output[start : end if end >= 0 else None].strip()[:300]
