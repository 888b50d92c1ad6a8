"""Flux, from its documentation and recorded output; nobody ran this against a live Flux."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairmile.base.commands import Result
from fairmile.base.errors import Unsupported
from fairmile.jobs.directives import checked_key, flux_directives
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.schedulers.answers import (
    end_of,
    failed_question,
    no_answer,
    refused_job,
    shell_signal,
    signal_name,
    whole,
)
from fairmile.jobs.states import Observed, State, Usage

_PASSING = re.compile(
    r"unable to connect|connection (refused|reset|timed out)|timed? ?out|not connected|"
    r"temporarily unavailable|try again|host is unreachable|broken pipe",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"unknown|not found", re.IGNORECASE)
_OVER = re.compile(r"unknown job id|job is inactive|not found", re.IGNORECASE)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ID = re.compile(rf"[ƒf]([{_BASE58}]+)|([0-9]+)")
_MOST_JOBS = 100_000
_NEVER_RAN = -128  # the return code of a job that was ended before its start

_STATES = {
    "NEW": (State.QUEUED, "The job was just accepted."),
    "DEPEND": (State.QUEUED, "The job waits for another one."),
    "PRIORITY": (State.QUEUED, "The job is queued and has no priority yet."),
    "SCHED": (State.QUEUED, "The job is queued."),
    "PENDING": (State.QUEUED, "The job is queued."),
    "RUN": (State.RUNNING, "The job runs."),
    "RUNNING": (State.RUNNING, "The job runs."),
    "CLEANUP": (State.ENDING, "The job has ended and is being cleaned up."),
}
_RESULTS = {
    "COMPLETED": (State.DONE, "The program ended with exit code 0."),
    "CANCELED": (State.CANCELLED, "The job was cancelled."),
    "TIMEOUT": (State.TIMED_OUT, "The job reached its time limit."),
}
_NODE = re.compile(r"node[- ]fail|lost contact|lost connection|broker .*(down|disconnected|offline)", re.IGNORECASE)
_MEMORY = re.compile(r"out[- ]of[- ]memory|\boom\b", re.IGNORECASE)


class Flux:
    """Flux, whose `flux jobs` can write JSON since flux-core 0.49.

    Ids are in the ASCII form of F58, such as `fiFkbMhFM`. A batch script has no array. The key stands behind the
    job's name, since the lists show no attribute of a user's own.
    """

    name = "flux"
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "${FLUX_ENCLOSING_ID/#ƒ/f}",
        "FAIRMILE_ARRAY_INDEX": "",
        "FAIRMILE_NODES": "$(flux hostlist --expand instance)",
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """See `Scheduler.header`."""
        if request.array is not None:
            raise Unsupported(
                "Flux has no arrays of batch jobs",
                hint="submit each task as a job of its own, or pack the tasks into one job",
            )
        key = checked_key(files)
        name = f"{request.spec.name}={key}" if key else request.spec.name
        return flux_directives(replace(request, spec=request.spec.model_copy(update={"name": name})), files)

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """See `Scheduler.submit`."""
        return Question(("flux", "batch", script), _read_submit)

    def find(self, key: str) -> Question[str | None]:
        """See `Scheduler.find`."""

        def read(result: Result) -> str | None:
            ids = (_id_of(job) for job in _jobs(result) if str(job.get("name", "")).partition("=")[2] == key)
            return next(ids, None)

        return Question(("flux", "jobs", "-a", f"--count={_MOST_JOBS}", "--json"), read)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.status`."""

        def read(result: Result) -> dict[str, Observed]:
            seen = ((_id_of(job), job) for job in _jobs(result))
            return {id: _observed(job) for id, job in seen if id in ids}

        return Question(("flux", "jobs", "--json", *ids), read)

    def history(self, ids: Sequence[str]) -> None:
        """Return None: `flux jobs` lists what ended as long as Flux keeps it."""
        return None

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """See `Scheduler.cancel`."""
        return Question(("flux", "cancel", *ids), _read_cancel)


def _f58(number: int) -> str:
    digits = ""
    while True:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
        if not number:
            return f"f{digits}"


def _id_of(job: Mapping[str, Any]) -> str:
    number = whole(job.get("id"))
    return _f58(number) if number is not None and number >= 0 else ""


def _read_submit(result: Result) -> str:
    last = (result.stdout.strip().splitlines() or [""])[-1].strip()
    match = _ID.fullmatch(last)
    if result.exit_code == 0 and match:
        return f"f{match[1]}" if match[1] else _f58(int(match[2]))
    raise refused_job("Flux", result, _PASSING) if result.exit_code else no_answer("Flux", result)


def _read_cancel(result: Result) -> None:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if result.exit_code and not (lines and all(_OVER.search(line) for line in lines)):
        raise failed_question("Flux", result, _PASSING)


def _jobs(result: Result) -> list[Mapping[str, Any]]:
    # Of an id that it does not know, Flux says so on stderr; since 0.80 its exit code tells as well.
    if result.exit_code and not _ABSENT.search(result.stderr):
        raise failed_question("Flux", result, _PASSING)
    if not result.stdout.strip():
        return []
    try:
        document = json.loads(result.stdout[max(0, result.stdout.find("{")) :])
    except ValueError as error:
        raise no_answer("Flux", result) from error
    # One id gives that job, several give a list.
    jobs = document.get("jobs", [document]) if isinstance(document, dict) else document
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []


def _observed(job: Mapping[str, Any]) -> Observed:
    native = str(job.get("result") or job.get("status") or job.get("state") or "")
    problem = job.get("exception")
    kind, note = "", ""
    if isinstance(problem, dict) and problem.get("occurred"):
        kind, note = str(problem.get("type") or ""), str(problem.get("note") or "").strip()
    code = whole(job.get("returncode"))
    signal = -code if code is not None and _NEVER_RAN < code < 0 else shell_signal(code)
    reason = f"{kind}: {note}" if kind and note else kind or _pending_reason(job)
    if native in _RESULTS:
        state, sentence = _RESULTS[native]
        if state is State.CANCELLED and code == _NEVER_RAN:
            sentence = "The job was cancelled before it ran."
        elif state is State.CANCELLED and signal:
            sentence = f"The job was cancelled, which ended it with {signal_name(signal)}."
    elif native == "FAILED":
        state, sentence = _failure(kind, note, code, signal)
    elif native in _STATES:
        state, sentence = _STATES[native]
        if state is State.QUEUED and whole(job.get("urgency")) == 0:
            state, sentence = State.HELD, "The job is held: its urgency is 0."
        elif state is State.QUEUED and reason:
            sentence += f" Flux says: {reason.rstrip('. ')}."
    else:
        state, sentence = State.UNKNOWN, f"Flux says {native!r}, an unknown state."
    if note and state.is_end and state is not State.DONE and note not in sentence:
        sentence += f" Flux says: {note.rstrip('. ')}."
    return Observed(
        state,
        native,
        reason,
        sentence,
        exit_code=code if code is not None and code >= 0 else None,
        signal=signal,
        nodes=str(job.get("nodelist") or ""),
        usage=_usage(job),
    )


def _failure(kind: str, note: str, code: int | None, signal: int | None) -> tuple[State, str]:
    if _NODE.search(f"{kind} {note}"):
        return State.NODE_FAILED, "The job was lost with one of its nodes."
    if _MEMORY.search(f"{kind} {note}"):
        return State.OUT_OF_MEMORY, "The job exceeded its memory limit."
    if kind in ("dependency", "depend"):
        return State.CANCELLED, "A job that this one depends on did not end as required."
    if code == _NEVER_RAN or (code is None and kind):
        return State.FAILED, "The job could not be started."
    return end_of(code if code is None or code >= 0 else None, signal)


def _pending_reason(job: Mapping[str, Any]) -> str:
    annotations = job.get("annotations")
    scheduler = annotations.get("sched") if isinstance(annotations, dict) else None
    return str(scheduler.get("reason_pending") or "") if isinstance(scheduler, dict) else ""


def _usage(job: Mapping[str, Any]) -> Usage | None:
    runtime = job.get("runtime")
    return Usage("flux jobs", elapsed_s=float(runtime)) if isinstance(runtime, (int, float)) else None
