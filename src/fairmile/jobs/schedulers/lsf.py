"""IBM Spectrum LSF, from its documentation and recorded output; nobody ran this against a live LSF."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.commands import Result
from fairmile.jobs.directives import lsf_directives
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.schedulers.answers import (
    end_of,
    failed_question,
    no_answer,
    refused_job,
    seconds,
    shell_signal,
    size_bytes,
    task_of,
    was_asked,
    whole,
)
from fairmile.jobs.states import Observed, State, Usage

_FIELDS = "jobid jobindex stat exit_code exit_reason pend_reason exec_host run_time cpu_used max_mem"
_PASSING = re.compile(
    r"cannot connect to lsf|lsf is down|please wait|daemon not responding|time[d ]*out|try later|"
    r"internal library error|failed in (sending|receiving)|connection refused|reconfigur",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"is not found|no (unfinished |matching )?job found", re.IGNORECASE)
_OVER = re.compile(r"already finished|is being (terminated|signaled)|no matching job|is not found", re.IGNORECASE)
_SUBMITTED = re.compile(r"Job <([0-9]+)> is submitted")
_ID = re.compile(r"([0-9]+)(?:\[([0-9]+)\])?")

_STATES = {
    "PEND": (State.QUEUED, "The job is queued."),
    "WAIT": (State.QUEUED, "The job waits for its turn in a chunk of short jobs."),
    "PROV": (State.QUEUED, "The job waits while its host is started."),
    "PSUSP": (State.HELD, "The job is held before its start, by its owner or an administrator."),
    "RUN": (State.RUNNING, "The job runs."),
    "USUSP": (State.RUNNING, "The job is suspended by its owner or an administrator."),
    "SSUSP": (State.RUNNING, "The job is suspended by LSF: its host is too busy, or a job of higher priority runs."),
    "UNKWN": (State.UNKNOWN, "LSF has lost contact with the host on which the job runs."),
    "ZOMBI": (State.ENDING, "The job is to end, but LSF has lost contact with its host."),
}
_DONE = ("DONE", "PDONE", "POST_DONE", "PERR", "POST_ERR")
# The first word of EXIT_REASON, as lsb.acct(5) and bjobs(1) list them.
_REASONS = {
    "TERM_RUNLIMIT": (State.TIMED_OUT, "The job reached its time limit."),
    "TERM_CPULIMIT": (State.TIMED_OUT, "The job reached its limit of processor time."),
    "TERM_DEADLINE": (State.TIMED_OUT, "The job missed its deadline."),
    "TERM_WINDOW": (State.TIMED_OUT, "The run window of the queue closed."),
    "TERM_MEMLIMIT": (State.OUT_OF_MEMORY, "The job used more memory than requested."),
    "TERM_SWAP": (State.OUT_OF_MEMORY, "The job exceeded its swap limit."),
    "TERM_OWNER": (State.CANCELLED, "The job was cancelled by its owner."),
    "TERM_FORCE_OWNER": (State.CANCELLED, "The job was cancelled by its owner, without time to clean up."),
    "TERM_ADMIN": (State.CANCELLED, "The job was cancelled by an administrator."),
    "TERM_FORCE_ADMIN": (State.CANCELLED, "The job was cancelled by an administrator, without time to clean up."),
    "TERM_ORPHAN_SYSTEM": (State.CANCELLED, "A job that this one depends on did not end as required."),
    "TERM_PREEMPT": (State.PREEMPTED, "The job was preempted by one of higher priority."),
    "TERM_LOAD": (State.PREEMPTED, "The job was ended because the load of its host was too high."),
    "TERM_REQUEUE_OWNER": (State.PREEMPTED, "The job was requeued by its owner."),
    "TERM_REQUEUE_ADMIN": (State.PREEMPTED, "The job was requeued by an administrator."),
    "TERM_ZOMBIE": (State.NODE_FAILED, "The job ended while LSF had lost contact with its host."),
    "TERM_REMOVE_HUNG_JOB": (State.NODE_FAILED, "LSF gave up on the job after its host stopped responding."),
    "TERM_CHKPNT": (State.FAILED, "The job was ended after its checkpoint."),
    "TERM_CWD_NOTEXIST": (State.FAILED, "The job's working folder does not exist on the host, or cannot be reached."),
    "TERM_PROCESSLIMIT": (State.FAILED, "The job exceeded its process limit."),
    "TERM_THREADLIMIT": (State.FAILED, "The job exceeded its thread limit."),
    "TERM_EXTERNAL_SIGNAL": (State.FAILED, "The job was ended by a signal that did not come from LSF."),
}


class Lsf:
    """IBM Spectrum LSF 10.1, whose `bjobs` can write JSON.

    A finished job is listed for as long as the site keeps it (CLEAN_PERIOD, an hour by default); the older records
    of `bhist` and `bacct` are prose, so there is no history.
    """

    name = "lsf"
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "$LSB_JOBID",
        "FAIRMILE_ARRAY_INDEX": "$((LSB_JOBINDEX - 1))",
        "FAIRMILE_NODES": "$(awk '!seen[$1]++ { print $1 }' \"$LSB_DJOB_HOSTFILE\" | tr '\\n' ' ')",
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """See `Scheduler.header`."""
        return lsf_directives(request, files)

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """See `Scheduler.submit`."""
        # bsub reads the directives of a script only from its standard input.
        return Question(("sh", "-c", 'exec bsub < "$1"', "bsub", script), _read_submit)

    def find(self, key: str) -> Question[str | None]:
        """See `Scheduler.find`; the key stands in the job's description."""

        def read(result: Result) -> str | None:
            # -Jd knows wildcards, so what it found is compared once more.
            records = [each for each in _records(result) if each.get("JOB_DESCRIPTION") == key]
            ids = [_ID.match(str(each.get("JOBID", ""))) for each in records]
            return next((id[1] for id in ids if id), None)

        return Question(("bjobs", "-a", "-Jd", key, "-o", "jobid job_description", "-json"), read)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.status`."""

        def read(result: Result) -> dict[str, Observed]:
            seen = (_observed(each) for each in _records(result))
            return {id: observed for id, observed in seen if was_asked(id, ids)}

        return Question(("bjobs", "-a", "-o", _FIELDS, "-json", *map(_lsf_id, ids)), read)

    def history(self, ids: Sequence[str]) -> None:
        """Return None: what LSF keeps beyond `bjobs` is not for machines."""
        return None

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """See `Scheduler.cancel`."""
        return Question(("bkill", *map(_lsf_id, ids)), _read_cancel)


def _lsf_id(id: str) -> str:
    job, index = task_of(id)
    return job if index is None else f"{job}[{index + 1}]"


def _read_submit(result: Result) -> str:
    match = _SUBMITTED.search(result.stdout)
    if match:
        return match[1]
    raise refused_job("LSF", result, _PASSING) if result.exit_code else no_answer("LSF", result)


def _read_cancel(result: Result) -> None:
    lines = [line for line in f"{result.stdout}\n{result.stderr}".splitlines() if line.strip()]
    if result.exit_code and not (lines and all(_OVER.search(line) for line in lines)):
        raise failed_question("LSF", result, _PASSING)


def _records(result: Result) -> list[Mapping[str, Any]]:
    # While mbatchd restarts, bjobs says so on its standard output before the document.
    start = result.stdout.find("{")
    if start < 0:
        output = result.stderr + result.stdout
        if _ABSENT.search(output):
            return []
        if result.exit_code:
            raise failed_question("LSF", result, _PASSING)
        if output.strip():
            raise no_answer("LSF", result)
        return []
    try:
        records = json.loads(result.stdout[start:])["RECORDS"]
    except (ValueError, KeyError, TypeError) as error:
        raise no_answer("LSF", result) from error
    return [each for each in records if isinstance(each, dict)] if isinstance(records, list) else []


def _observed(record: Mapping[str, Any]) -> tuple[str, Observed]:
    native = _text(record, "STAT")
    match = _ID.match(_text(record, "JOBID"))
    if not match or not native:  # such as {"JOBID": "7", "ERROR": "Job <7> is not found"}
        return "", Observed(State.UNKNOWN)
    index = whole(_text(record, "JOBINDEX")) or whole(match[2]) or 0
    id = f"{match[1]}_{index - 1}" if index else match[1]
    code = whole(_text(record, "EXIT_CODE"))
    exit_reason, pend_reason = _text(record, "EXIT_REASON"), _text(record, "PEND_REASON")
    state, sentence, reason = State.UNKNOWN, f"LSF says {native!r}, an unknown state.", ""
    if native in _DONE and not code:
        state, sentence = end_of(0)
        code = 0
    elif native == "EXIT" or native in _DONE:
        reason = exit_reason
        known = _REASONS.get(exit_reason.partition(":")[0])
        state, sentence = known or end_of(code, shell_signal(code))
        if known is None and exit_reason:
            sentence += f" LSF says: {exit_reason}."
    elif native in _STATES:
        state, sentence = _STATES[native]
        reason = pend_reason
        if pend_reason and state in (State.QUEUED, State.HELD):
            sentence += f" LSF says: {pend_reason.rstrip(';. ')}."
    return id, Observed(
        state,
        native,
        reason,
        sentence,
        exit_code=code,
        signal=shell_signal(code),
        nodes=_hosts(_text(record, "EXEC_HOST")),
        usage=_usage(record),
    )


def _text(record: Mapping[str, Any], field: str) -> str:
    text = str(record.get(field) or "").strip()
    return "" if text == "-" else text


def _hosts(text: str) -> str:
    """Turn `4*cn019:cn020` into `cn019,cn020`."""
    return ",".join(dict.fromkeys(part.rpartition("*")[2] for part in text.split(":") if part))


def _usage(record: Mapping[str, Any]) -> Usage | None:
    elapsed, cpu = seconds(_text(record, "RUN_TIME")), seconds(_text(record, "CPU_USED"))
    memory = size_bytes(_text(record, "MAX_MEM"))
    if elapsed is None and cpu is None and memory is None:
        return None
    return Usage("bjobs", elapsed_s=elapsed, cpu_s=cpu, max_rss_bytes=memory)
