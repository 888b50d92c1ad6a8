"""Why a job failed, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cases import for_each

from fairmile.jobs.diagnosis import diagnose
from fairmile.jobs.judge import REASONS, TaskStatus
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.jobs.states import State

SPEC = JobSpec(argv=("python", "train.py"), resources=Resources(time_s=3600))


@for_each(
    "output, what, advice",
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "GPU", "batch"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch", "memory", "--memory"),
        ("MemoryError", "memory", "--memory"),
        ("OSError: [Errno 28] No space left on device", "disk", "space"),
        ("OSError: [Errno 122] Disk quota exceeded", "quota", "remove"),
        ("ModuleNotFoundError: No module named 'einops'", "package", "`python -m pip install einops`"),
        ("x: error while loading shared libraries: libcudnn.so.8: cannot open", "library", "module"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL", "GPUs", "NCCL_DEBUG"),
        ("RendezvousTimeoutError", "connect to each other", "launcher"),
        ("bash: ./train: Permission denied", "file", "permissions"),
        ("bash: line 3: pyhton: command not found", "program is missing", "name"),
        ("python: can't open file 'trian.py': [Errno 2] No such file or directory", "file is missing", "path"),
    ],
)
def test_the_output_tells_the_cause(output: str, what: str, advice: str) -> None:
    found = diagnose(TaskStatus(State.FAILED, "ended with exit code 1", 1), f"epoch 1\n{output}\nbye\n", SPEC)
    assert what in found.what
    assert advice in found.advice
    assert found.line in output or output in found.line


@for_each(
    "state, advice",
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
    output = "epoch 1\nerror: no parameter named 'epoch'\nhint: did you mean 'epochs'?\n"
    found = diagnose(TaskStatus(State.FAILED, "exit code 2", 2), output, JobSpec(argv=("python",)))
    assert found.line == "error: no parameter named 'epoch'"


ARGPARSE = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 1\n"
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --lrr\n"


@pytest.mark.parametrize("output", [ARGPARSE, CLICK])
def test_rejected_arguments_are_answered_with_the_command_that_lists_them(output: str) -> None:
    spec = JobSpec(argv=("torchrun", "--nproc-per-node", "2", "{source}/train.py", "--lrr", "1"))
    diagnosis = diagnose(TaskStatus(State.FAILED, "exit code 2", 2), output, spec)
    assert "arguments" in diagnosis.what and "--lrr" in diagnosis.line
    assert "`torchrun --nproc-per-node 2 train.py --help`" in diagnosis.advice
    assert not diagnosis.resumable


def test_what_a_program_refuses_with_a_sentence_is_not_resumed() -> None:
    output = "data: 10 rows\nerror: parameter split: 'cell' is not one of pairs, cells\nhint: did you mean 'cells'?\n"
    refused = diagnose(TaskStatus(State.FAILED, "exit code 2", 2), output, SPEC)
    assert refused.line == "error: parameter split: 'cell' is not one of pairs, cells"
    assert not refused.resumable
    assert diagnose(TaskStatus(State.FAILED, "exit code 1", 1), output, SPEC).resumable


def test_a_usage_text_means_nothing_without_the_exit_code_of_one() -> None:
    assert "arguments" not in diagnose(TaskStatus(State.FAILED, "exit code 1", 1), ARGPARSE, SPEC).what


def test_hydra_s_rejection_is_one_of_arguments() -> None:
    output = "Could not override 'lrr'.\nKey 'lrr' is not in struct\n"
    assert "arguments" in diagnose(TaskStatus(State.FAILED, "exit code 1", 1), output, SPEC).what


def test_a_package_that_our_own_python_has_is_no_reason_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python"
    other.write_text("")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    failed = TaskStatus(State.FAILED, "exit code 1", 1)
    output = "ModuleNotFoundError: No module named 'pydantic'"
    spec = JobSpec(argv=("python", "a.py"))
    advice = f"`python` is {other}: activate the environment of {sys.executable}, which has pydantic"
    assert diagnose(failed, output, spec, in_place=True).advice == advice
    assert "-m pip install pydantic" in diagnose(failed, output, spec).advice


@for_each(
    "module, argv, environment, advice",
    [
        ("sklearn.svm", ("/opt/py/bin/python3.12", "a.py"), "", "`/opt/py/bin/python3.12 -m pip install scikit-learn`"),
        ("einops", ("./train",), "", "`pip install einops`"),
        ("yaml", ("python", "a.py"), "tides", "add pyyaml to the environment tides"),
    ],
)
def test_a_missing_package_is_answered_with_how_it_is_installed(
    module: str, argv: tuple[str, ...], environment: str, advice: str
) -> None:
    output = f"ModuleNotFoundError: No module named '{module}'"
    failed = TaskStatus(State.FAILED, "exit code 1", 1)
    assert advice in diagnose(failed, output, JobSpec(argv=argv), environment=environment).advice


def test_a_missing_extra_is_answered_with_its_installation_alone() -> None:
    output = "error: the benchmark mnist needs torch\n  hint: pip install 'fairmile[benchmarks]'\n"
    diagnosis = diagnose(TaskStatus(State.FAILED, "exit code 3", 3), output, SPEC)
    assert diagnosis.advice == "pip install 'fairmile[benchmarks]'"
    assert "needs torch" in diagnosis.line
    assert not diagnosis.resumable


@for_each(
    "status, output, resumable",
    [
        (TaskStatus(State.TIMED_OUT), "", True),
        (TaskStatus(State.NODE_FAILED), "", True),
        (TaskStatus(State.OUT_OF_MEMORY), "", False),
        (TaskStatus(State.FAILED, "killed", 137, "KILL"), "", True),
        (TaskStatus(State.FAILED, "exit code 1", 1), "OSError: [Errno 28] No space left on device", True),
        (TaskStatus(State.FAILED, "exit code 1", 1), "ValueError: loss is nan", True),
        (TaskStatus(State.FAILED, "exit code 127", 127), "sh: 1: foo: not found", False),
        (TaskStatus(State.FAILED, "exit code 1", 1), "SyntaxError: '(' was never closed", False),
        (TaskStatus(State.FAILED, "exit code 1", 1), "NameError: name 'xx' is not defined", False),
    ],
)
def test_resuming_is_advised_only_where_the_same_command_can_succeed(
    status: TaskStatus, output: str, resumable: bool
) -> None:
    assert diagnose(status, output, SPEC).resumable is resumable


def test_an_error_in_a_program_is_answered_with_the_line_of_its_own_code() -> None:
    output = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 12, in <module>\n    main()\n'
        '  File "/home/me/model.py", line 3, in main\n    np.zeros("x", shape=2)\n'
        '  File "/usr/lib/python3.11/site-packages/numpy/core.py", line 99, in zeros\n    raise\n'
        "TypeError: zeros() got an unexpected argument\n"
    )
    diagnosis = diagnose(TaskStatus(State.FAILED, "exit code 1", 1), output, SPEC)
    assert diagnosis.advice == "correct model.py, line 3, and run it again"
    assert diagnosis.line == "TypeError: zeros() got an unexpected argument"


def test_what_was_interrupted_here_needs_no_advice() -> None:
    assert diagnose(TaskStatus(State.CANCELLED), "", SPEC, in_place=True).advice == ""


def test_without_a_scheduler_no_option_of_one_is_advised() -> None:
    for state in (State.TIMED_OUT, State.OUT_OF_MEMORY):
        advice = diagnose(TaskStatus(state), "", SPEC, in_place=True).advice
        assert "--time," not in advice and "--memory" not in advice
