"""What became of a job: its own notes and its scheduler's words, weighed. No input or output here."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.jobs.states import Observed, State, Usage, UsageDict

# How long a job may be missing from every list before it counts as lost: accounting lags behind.
_LOST_AFTER_S = 120.0
_SIGNAL_CODES = 128
# What a script notes as the reason of an end before its program began.
REASONS = {"modules": "a module could not be loaded", "folder": "the folder to run in does not exist"}


class TaskStatusDict(TypedDict):
    """The status of a job or task as JSON; times are seconds since the epoch."""

    state: State
    sentence: str
    exit_code: int | None
    signal: str
    nodes: str
    restarts: int
    started: float | None
    ended: float | None
    usage: UsageDict | None


@dataclass(frozen=True, repr=False)
class TaskStatus(Result):
    """The status of a job, or of one task of an array; times are seconds since the epoch."""

    state: State
    sentence: str = ""
    exit_code: int | None = None
    signal: str = ""
    nodes: str = ""
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    usage: Usage | None = None

    def to_dict(self) -> TaskStatusDict:
        """Return the status as data."""
        return {
            "state": self.state,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "nodes": self.nodes,
            "restarts": self.restarts,
            "started": self.started,
            "ended": self.ended,
            "usage": self.usage.to_dict() if self.usage is not None else None,
        }

    def summary(self) -> str:
        """Return the state, and why."""
        return f"{self.state.replace('_', ' ')}: {self.sentence}" if self.sentence else self.state.replace("_", " ")


@dataclass(frozen=True)
class Evidence:
    """What is known about one job or task.

    `current` is what the scheduler lists, or listed when it was last asked, `past` what its accounting remembers;
    `asked` says whether it was asked just now. `missing_s` is for how long the job has been on no list.
    """

    started: str = ""
    ended: str = ""
    current: Observed | None = None
    past: Observed | None = None
    asked: bool = False
    missing_s: float = 0.0
    cancelled: bool = False
    keeps_accounts: bool = True  # a scheduler that knows why a job ended; plain processes have none
    limit_s: float | None = None  # the time limit of a process that has no scheduler to say that it was reached


def judge(evidence: Evidence) -> TaskStatus:
    """Return the status of a job."""
    starts = note_lines(evidence.started)
    first = starts[-1] if starts else {}
    end = next(iter(note_lines(evidence.ended)[-1:]), None)
    observed = evidence.current if evidence.current is not None else evidence.past
    status = (
        _from_notes(evidence, end, observed) if end is not None else _from_scheduler(evidence, bool(starts), observed)
    )
    status = replace(
        status,
        started=_number(first.get("time")),
        ended=_number(end.get("time")) if end and status.state.is_end else None,
        restarts=max(len(starts) - 1, observed.restarts if observed else 0, 0),
        nodes=(observed.nodes if observed else "") or str(first.get("host", "")),
    )
    return replace(status, usage=_usage(status, observed))


def _from_notes(evidence: Evidence, end: Mapping[str, Any], observed: Observed | None) -> TaskStatus:
    code = _number(end.get("exit_code"))
    exit_code = int(code) if code is not None else None
    caught = str(end.get("signal") or "")
    if exit_code == 0 and not caught:
        return TaskStatus(State.DONE, exit_code=0)
    if end.get("dependency"):
        return TaskStatus(State.CANCELLED, "the job that it depends on did not end as required", exit_code)
    if not caught and (exit_code is None or exit_code <= _SIGNAL_CODES):
        sentence = REASONS.get(str(end.get("reason")), f"ended with exit code {exit_code}")
        return TaskStatus(State.FAILED, sentence, exit_code)
    killed = caught or _signal_name(exit_code or 0)
    if evidence.keeps_accounts and not evidence.asked:
        # Only the scheduler knows whether a limit, a person or a more urgent job ended it, and whether it comes back.
        return TaskStatus(State.ENDING, f"ended by signal {killed}; the scheduler has not said why yet")
    # One that was put back may run again when the scheduler is asked, with no note of that start read yet.
    runs_again = observed is not None and observed.restarts >= len(note_lines(evidence.started))
    is_live = observed is not None and not observed.state.is_end and evidence.keeps_accounts
    if observed is not None and is_live and (runs_again or not _is_leaving(observed)):
        # Stopped and put back into the queue: a requeued job keeps its id.
        sentence = observed.sentence or f"stopped by {killed}, waits to start again"
        return TaskStatus(observed.state, sentence, signal=killed)
    if observed is not None and observed.state not in (State.FAILED, State.DONE) and observed.state.is_end:
        return TaskStatus(observed.state, observed.sentence or _words(observed.state), exit_code, killed)
    if evidence.cancelled:
        return TaskStatus(State.CANCELLED, "cancelled on request", exit_code, killed)
    if evidence.limit_s is not None and _elapsed_s(evidence, end) + 1 >= evidence.limit_s:
        return TaskStatus(State.TIMED_OUT, _words(State.TIMED_OUT), exit_code, killed)
    why = "; often because it used too much memory" if killed == "KILL" else ""
    return TaskStatus(State.FAILED, f"ended by signal {killed}{why}", exit_code, killed)


def _elapsed_s(evidence: Evidence, end: Mapping[str, Any]) -> float:
    starts = note_lines(evidence.started)
    began = _number(starts[-1].get("time")) if starts else None
    ended = _number(end.get("time"))
    return ended - began if began is not None and ended is not None else 0.0


def _is_leaving(observed: Observed) -> bool:
    return observed.state in (State.ENDING, State.RUNNING, State.UNKNOWN)


def _from_scheduler(evidence: Evidence, has_started: bool, observed: Observed | None) -> TaskStatus:
    if observed is not None:
        code = observed.exit_code
        if observed.state is State.DONE or observed.state is State.FAILED:
            sentence = observed.sentence or ("" if observed.state is State.DONE else f"ended with exit code {code}")
            if evidence.cancelled and observed.state is State.FAILED:
                return TaskStatus(State.CANCELLED, "cancelled on request", code)
            return TaskStatus(observed.state, sentence, code)
        return TaskStatus(observed.state, observed.sentence or _words(observed.state), code)
    if evidence.cancelled and evidence.asked:
        return TaskStatus(State.CANCELLED, "cancelled on request")
    if evidence.asked and (evidence.missing_s > _LOST_AFTER_S or not evidence.keeps_accounts):
        return TaskStatus(
            State.LOST, "it disappeared without a record of its end: the machine went down, or it was killed"
        )
    return TaskStatus(State.RUNNING if has_started else State.QUEUED)


def _words(state: State) -> str:
    return {
        State.TIMED_OUT: "reached its time limit",
        State.OUT_OF_MEMORY: "used more memory than allocated",
        State.NODE_FAILED: "one of its nodes failed",
        State.PREEMPTED: "was preempted by another job",
        State.CANCELLED: "was cancelled",
        State.HELD: "is held",
    }.get(state, "")


def _usage(status: TaskStatus, observed: Observed | None) -> Usage | None:
    if observed is not None and observed.usage is not None:
        return observed.usage
    if status.started is None or status.ended is None:
        return None
    return Usage("clock of the node", elapsed_s=max(status.ended - status.started, 0.0))


def note_lines(text: str) -> list[Mapping[str, Any]]:
    """Return the JSON objects of a note; a line that a dying machine left unfinished counts for nothing."""
    notes: list[Mapping[str, Any]] = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            notes.append(value)
    return notes


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _signal_name(exit_code: int) -> str:
    try:
        return signal.Signals(exit_code - _SIGNAL_CODES).name.removeprefix("SIG")
    except ValueError:
        return str(exit_code - _SIGNAL_CODES)
