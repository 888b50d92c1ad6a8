"""Ask for the trace of a model's step and get it, from a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from fairmile.base.commands import Here
from fairmile.base.errors import MissingExtra, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.steps import StepTrace, read_trace
from fairmile.predict.fake_device.assumptions import parse_assumptions

REFUSED = 3
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MODES = ("default", "reduce-overhead", "max-autotune")
FORMS = ("foreach", "fused", "loop")


def check_mode(mode: str | None) -> str:
    """Return the mode, or an empty text if none is asked for; UsageError if torch.compile has no such mode."""
    if mode and mode not in MODES:
        raise UsageError(f"{mode!r} is not a mode of torch.compile", hint=f"use one of {', '.join(MODES)}")
    return mode or ""


class Refused(Exception):
    """A request that cannot be traced: one sentence, and what to do about it."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence)
        self.sentence, self.hint = sentence, hint


class Unfollowed(Refused):
    """A step that can be followed up to a point, and what is known of it until there."""


@dataclass(frozen=True)
class TraceRequest:
    """Which function builds the model, with what, and how its steps are run; None leaves a choice to the function."""

    file: str
    function: str = "build"
    arguments: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    training: bool | None = None
    precision: str | None = None
    accumulate: int = 1
    ranks: int | None = None  # processes of the program, whose rank 0 is followed; None: as WORLD_SIZE says
    checkpointing: bool | None = None
    channels_last: bool | None = None
    optimizer_form: str | None = None
    batch_argument: str | None = None
    assume: Sequence[str] | None = None  # facts about values that depend on weights, as parse_assumptions reads them
    compile: str | None = None  # the mode of torch.compile, None: the model runs as it is
    partial: bool = False  # whether a step that cannot be followed to its end is traced as far as it can be

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps is {self.steps}, expected at least 1", hint="trace at least one step")
        if self.accumulate < 1:
            raise UsageError(
                f"accumulate is {self.accumulate}, expected at least 1", hint="use 1 or more batches per step"
            )
        if self.ranks is not None and self.ranks < 1:
            raise UsageError(f"ranks is {self.ranks}, expected at least 1", hint="use the number of processes")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UsageError(f"{self.precision!r} is not a precision", hint=f"use one of {', '.join(PRECISIONS)}")
        check_mode(self.compile)
        parse_assumptions(self.assume or ())
        if self.optimizer_form is not None and self.optimizer_form not in FORMS:
            raise UsageError(
                f"{self.optimizer_form!r} is not an implementation of the optimizer step",
                hint=f"use one of {', '.join(FORMS)}",
            )


def trace_target(
    request: TraceRequest, *, python: str = sys.executable, timeout_s: float | None = None, folder: Path
) -> StepTrace:
    """Trace what `request` names in a process of its own, which leaves its files in `folder`."""
    answer = trace_targets([request], python=python, timeout_s=timeout_s, folder=folder)[0]
    if isinstance(answer, UsageError):
        raise answer
    return answer


def trace_targets(
    requests: Sequence[TraceRequest], *, python: str = sys.executable, timeout_s: float | None = None, folder: Path
) -> list[StepTrace | UsageError]:
    """Trace several requests in one process, in order; where one cannot be traced its error stands in its place."""
    asked, answer = folder / "request.json", folder / "trace.json"
    write_atomic(asked, _document(requests))
    # -P: files of the folder that this runs in must not stand in for modules of Python, torch or this package.
    argv = [python, "-P", "-m", "fairmile.predict.fake_device", str(asked), str(answer)]
    ended = Here().run(argv, env=_compiler_settings(folder), timeout_s=timeout_s, check=False)
    if ended.exit_code == 1 and "No module named 'torch'" in ended.stderr:
        raise MissingExtra("tracing a model needs torch", "predict")
    paths = answers(answer, len(requests))
    if ended.exit_code == REFUSED and not paths[0].exists():
        raise _refusal(ended.stdout)
    if ended.exit_code not in (0, REFUSED) or not all(path.exists() for path in paths):
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemFailure(
            f"tracing {requests[0].file} failed with exit code {ended.exit_code}: {last}",
            hint="call the function on its own to see where it fails",
        )
    return [_answer(path) for path in paths]


def _compiler_settings(folder: Path) -> dict[str, str]:
    """Return what keeps torch's compiler to one process, this folder, and its own settings."""
    names = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    off = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DEBUG")
    return {
        **dict.fromkeys(names, str(folder.resolve())),
        **dict.fromkeys(off, "0"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }


def _document(requests: Sequence[TraceRequest]) -> bytes:
    try:
        return json.dumps([asdict(each) for each in requests]).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cannot pass the arguments of {requests[0].file}:{requests[0].function}: {error}",
            hint="use numbers, text, true, false, null, and lists or maps of them",
        ) from error


def _answer(path: Path) -> StepTrace | UsageError:
    with path.open("rb") as stream:
        refused = stream.read(10).startswith(b'{"error"')
    return _refusal(path.read_text()) if refused else read_trace(path)


def answers(answer: Path, count: int) -> list[Path]:
    """Return where the traces of `count` requests are written."""
    return [answer.with_name(f"{answer.stem}.{number}{answer.suffix}") for number in range(count)]


def _refusal(printed: str) -> UsageError:
    for line in reversed(printed.splitlines()):
        if line.startswith('{"error"'):
            document = json.loads(line)
            return UsageError(document["error"], hint=document["hint"])
    return UsageError("tracing failed without a message", hint="run it by hand: python -m fairmile.predict.fake_device")
