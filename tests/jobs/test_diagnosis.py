"""Why a job failed, and what to do about it."""

from __future__ import annotations

import pytest

from fairmile.jobs.diagnosis import diagnose
from fairmile.jobs.judge import REASONS, TaskStatus
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.jobs.states import State

SPEC = JobSpec(argv=("python", "train.py"), resources=Resources(time_s=3600))


@pytest.mark.parametrize(
    ("output", "what", "advice"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU", "batch"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch", "memory", "--memory"),
        ("MemoryError", "memory", "--memory"),
        ("OSError: [Errno 28] No space left on device", "disk", "room"),
        ("OSError: [Errno 122] Disk quota exceeded", "quota", "remove"),
        ("ModuleNotFoundError: No module named 'einops'", "package", "environment"),
        ("x: error while loading shared libraries: libcudnn.so.8: cannot open", "library", "module"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL", "GPUs", "NCCL_DEBUG"),
        ("RendezvousTimeoutError", "find each other", "launcher"),
        ("bash: ./train: Permission denied", "file", "permissions"),
        ("bash: line 3: pyhton: command not found", "missing", "path"),
    ],
)
def test_the_output_tells_the_cause(output: str, what: str, advice: str) -> None:
    found = diagnose(TaskStatus(State.FAILED, "ended with exit code 1", 1), f"epoch 1\n{output}\nbye\n", SPEC)
    assert what in found.what
    assert advice in found.advice
    assert found.line in output or output in found.line


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (State.TIMED_OUT, "--time"),
        (State.OUT_OF_MEMORY, "--memory"),
        (State.NODE_FAILED, "--retries"),
        (State.PREEMPTED, "--retries"),
        (State.LOST, "again"),
        (State.CANCELLED, "again"),
    ],
)
def test_the_scheduler_s_word_goes_before_the_output(state: State, advice: str) -> None:
    found = diagnose(TaskStatus(state), "Permission denied\n", SPEC)
    assert "Permission" not in found.what
    assert advice in found.advice


def test_a_time_limit_is_named_with_its_length() -> None:
    assert "1h" in diagnose(TaskStatus(State.TIMED_OUT), "", SPEC).what


def test_a_module_that_failed_shows_the_line_that_said_so() -> None:
    found = diagnose(
        TaskStatus(State.FAILED, REASONS["modules"], 78), "Lmod has detected: unknown module CUDA/99\n", SPEC
    )
    assert "module" in found.what
    assert "CUDA/99" in found.line


def test_a_failure_without_a_known_sign_shows_the_last_line() -> None:
    found = diagnose(TaskStatus(State.FAILED, "ended with exit code 3", 3), "a\nloss is nan\n\n", SPEC)
    assert (found.what, found.line) == ("ended with exit code 3", "loss is nan")


def test_a_program_that_is_not_there_is_named() -> None:
    assert "'python'" in diagnose(TaskStatus(State.FAILED, "", 127), "", SPEC).what


def test_the_sentence_of_an_error_stands_above_its_hint() -> None:
    output = "epoch 1\nerror: there is no parameter 'epoch'\nhint: did you mean 'epochs'?\n"
    found = diagnose(TaskStatus(State.FAILED, "exit code 2", 2), output, JobSpec(argv=("python",)))
    assert found.line == "error: there is no parameter 'epoch'"
