"""What the answers of all schedulers' commands have in common: refusals, ends of a program, times and sizes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from fairmile.base.commands import Result
from fairmile.base.errors import FairmileError, SystemFailure, Transient, UsageError
from fairmile.jobs.states import State

_LONGEST_MESSAGE = 400
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(?:i?b|bytes|w)?", re.IGNORECASE)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:s|sec\.?|second\(s\)|seconds?)?", re.IGNORECASE)
_TASK = re.compile(r"(.+)_([0-9]+)")


def message_of(result: Result) -> str:
    """Return what a command said, on one line, its complaints first."""
    text = " ".join((result.stderr.strip() or result.stdout.strip()).split())
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def refused_job(scheduler: str, result: Result, passing: re.Pattern[str]) -> FairmileError:
    """Return the error for a submission that was not taken; Transient where it may be taken a little later."""
    if passing.search(result.stderr) or passing.search(result.stdout):
        return no_answer(scheduler, result)
    return UsageError(
        f"{scheduler} refused the job: {message_of(result) or f'exit code {result.exit_code} without a message'}",
        hint="change partition, account, time or nodes",
    )


def failed_question(scheduler: str, result: Result, passing: re.Pattern[str]) -> FairmileError:
    """Return the error for a question that failed; Transient where asking again makes sense."""
    if passing.search(result.stderr) or passing.search(result.stdout):
        return no_answer(scheduler, result)
    return SystemFailure(
        f"`{result.argv[0]}` failed with exit code {result.exit_code}: {message_of(result) or 'no output'}",
        hint=f"run the same command yourself where {scheduler} runs",
    )


def no_answer(scheduler: str, result: Result) -> Transient:
    """Return the error for an answer that is missing or cannot be understood."""
    words = message_of(result)
    return Transient(
        f"{scheduler} gave no usable answer" + (f": {words}" if words else ""),
        hint="try again; if it happens again, ask the support of the system",
    )


def task_of(id: str) -> tuple[str, int | None]:
    """Return the job and the index of a task's id `ID_INDEX`; of a job's own id the index is None."""
    match = _TASK.fullmatch(id)
    return (match[1], int(match[2])) if match else (id, None)


def was_asked(id: str, asked: Iterable[str]) -> bool:
    """Tell whether an answer is about one of the ids asked for, or about a task of one of them."""
    asked = set(asked)
    return id in asked or task_of(id)[0] in asked


def end_of(exit_code: int | None, signal_number: int | None = None) -> tuple[State, str]:
    """Return the state and the sentence for a program that ended by itself."""
    if signal_number:
        return State.FAILED, f"The program was ended by {signal_name(signal_number)}."
    if exit_code is None:
        return State.FAILED, "The program failed; its exit code is not known."
    if exit_code == 0:
        return State.DONE, "The program ended with exit code 0."
    return State.FAILED, f"The program ended with exit code {exit_code}."


def shell_signal(exit_code: int | None) -> int | None:
    """Return the signal behind an exit code 128+n, as shells give it; None when there is none."""
    return exit_code - 128 if exit_code is not None and 128 < exit_code <= 128 + 64 else None


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def seconds(text: object) -> float | None:
    """Read a time such as `420:16:02`, `1:00:00:00`, `18.8` or `3 second(s)`; None when it is none."""
    words = str(text).strip()
    parts = words.split(":")
    if 2 <= len(parts) <= 4 and all(part.isascii() and part.isdigit() for part in parts):
        total = 0
        for part, factor in zip(reversed(parts), (1, 60, 3600, 86400), strict=False):
            total += int(part) * factor
        return float(total)
    match = _SECONDS.fullmatch(words)
    return float(match[1]) if match else None


def size_bytes(text: object) -> int | None:
    """Read a size such as `1622428kb` or `5.2 Gbytes`, in powers of 1024; None when it is none."""
    match = _SIZE.fullmatch(str(text).strip())
    return int(float(match[1]) * 1024 ** " kmgtp".index(match[2].lower() or " ")) if match else None


def whole(value: object) -> int | None:
    """Read a whole number that may come as text; None when it is none."""
    try:
        return int(str(value))
    except ValueError:
        return None
