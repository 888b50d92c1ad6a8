"""Traces of compiled steps: from Inductor itself where it can be run, else by rules from the eager step."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.costs.steps import StepTrace
from fairmile.predict.compiled.rewrite import autotuned, compiled
from fairmile.predict.fake_device.request import TraceRequest, trace_targets

INDUCTOR_S = 240.0  # most steps compile in less than two minutes of CPU time
_LONGEST_REASON = 200  # characters


def trace_compiled(requests: Sequence[TraceRequest], *, timeout_s: float) -> list[StepTrace | UsageError]:
    """Trace requests of one mode of torch.compile; the notes of each trace say what it follows from, and why."""
    answers = _by_inductor(requests)
    left = [number for number, answer in enumerate(answers) if isinstance(answer, str)]
    if left:
        eager = [replace(requests[number], compile=None) for number in left]
        with tempfile.TemporaryDirectory(prefix="fairmile-trace-") as folder:
            traced = trace_targets(eager, timeout_s=timeout_s, folder=Path(folder))
        for number, trace in zip(left, traced, strict=True):
            why = f"Inductor could not be run for this step: {answers[number]}"
            answers[number] = _by_rules(trace, requests[number].compile or "", why)
    return [answer for answer in answers if not isinstance(answer, str)]


def _by_inductor(requests: Sequence[TraceRequest]) -> list[StepTrace | UsageError | str]:
    """Return what Inductor makes of each step, or why it makes nothing."""
    with tempfile.TemporaryDirectory(prefix="fairmile-inductor-") as folder:
        try:
            answers = trace_targets(requests, timeout_s=INDUCTOR_S, folder=Path(folder))
        except (SystemFailure, UsageError) as error:
            return [_reason(error.message)] * len(requests)
    return [_whole(answer) for answer in answers]


def _whole(answer: StepTrace | UsageError) -> StepTrace | str:
    if isinstance(answer, UsageError):
        return _reason(answer.message)
    if answer.stopped:
        return _reason(answer.stopped)
    notes = [each for each in answer.notes if not each.startswith("the model is compiled")]
    version = answer.versions.get("torch", "")
    notes.append(f"the compiled step consists of the kernels that Inductor of torch {version} makes")
    return replace(answer, notes=(*notes, *autotuned(answer.compiled)))


def _by_rules(trace: StepTrace | UsageError, mode: str, why: str) -> StepTrace | UsageError:
    if isinstance(trace, UsageError):
        return trace
    made = compiled(trace, mode)
    return replace(made, notes=(*made.notes, why))


def _reason(message: str) -> str:
    return message if len(message) <= _LONGEST_REASON else f"{message[:_LONGEST_REASON]}…"
