"""PBS Professional and OpenPBS, from their documentation and recorded output; nobody ran this against a live PBS."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.commands import Result
from fairmile.base.errors import Unsupported
from fairmile.jobs.directives import pbs_directives
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.schedulers.answers import (
    end_of,
    failed_question,
    no_answer,
    refused_job,
    seconds,
    shell_signal,
    signal_name,
    size_bytes,
    task_of,
    was_asked,
    whole,
)
from fairmile.jobs.states import Observed, State, Usage

_KEY = "FAIRMILE_KEY"
_PASSING = re.compile(
    r"cannot connect to server|connection (refused|reset|timed out)|no route to host|server shutting down|"
    r"timed? ?out|try again|communication failure|end of file|errno=1501[0-9]|invalid credential",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"unknown job id|job has finished", re.IGNORECASE)
_NO_HISTORY = re.compile(r"not configured to maintain job history", re.IGNORECASE)
_OVER = re.compile(r"unknown job id|job has finished|request invalid for (finished|state of) job", re.IGNORECASE)
_ID = re.compile(r"([0-9]+)(?:\[([0-9]*)\])?((?:\.[A-Za-z0-9._-]+)?)")
_LINE = re.compile(r'(\s*)"((?:[^"\\]|\\.)*)":\s*(.*?),?\s*')

_STATES = {
    "Q": (State.QUEUED, "The job is queued."),
    "W": (State.QUEUED, "The job waits for the time at which it may start, or for its files."),
    "T": (State.QUEUED, "The job is on its way to another queue or server."),
    "M": (State.QUEUED, "The job was moved to another server."),
    "H": (State.HELD, "The job is held: by its owner, an administrator, or a job that it waits for."),
    "S": (State.RUNNING, "The job is suspended for one of higher priority."),
    "U": (State.RUNNING, "The job is suspended while somebody uses its workstation."),
    "R": (State.RUNNING, "The job runs."),
    "B": (State.RUNNING, "Tasks of the array run."),
    "E": (State.ENDING, "The job has ended and is being cleaned up."),
}
_ENDS = ("F", "X")
# Exit_status below 0, as job.h of OpenPBS and the reference guide of PBS Professional name them.
_NOT_STARTED = (State.FAILED, "The job could not be started; see its log, or ask the administrators.")
_NODE = (State.NODE_FAILED, "The job was lost because PBS could not reach one of its nodes.")
_AGAIN = (State.PREEMPTED, "The job was requeued.")
_MEMORY = (State.OUT_OF_MEMORY, "The job used more memory than requested.")
_REASONS = {
    -1: ("JOB_EXEC_FAIL1", *_NOT_STARTED),
    -2: ("JOB_EXEC_FAIL2", *_NOT_STARTED),
    -3: ("JOB_EXEC_RETRY", State.NODE_FAILED, "The job could not be started on its nodes."),
    -4: ("JOB_EXEC_INITABT", State.NODE_FAILED, "The job was ended because PBS was restarted on its node."),
    -5: ("JOB_EXEC_INITRST", State.NODE_FAILED, "The job was ended because PBS was restarted on its node."),
    -6: ("JOB_EXEC_INITRMG", State.NODE_FAILED, "The job was ended because PBS was restarted on its node."),
    -7: ("JOB_EXEC_BADRESRT", State.FAILED, "The job could not be started again from its checkpoint."),
    -10: ("JOB_EXEC_FAILUID", State.FAILED, "The node does not know the user or the group of the job."),
    -11: ("JOB_EXEC_RERUN", *_AGAIN),
    -12: ("JOB_EXEC_CHKP", *_AGAIN),
    -13: ("JOB_EXEC_FAIL_PASSWORD", State.FAILED, "The job was refused by the node for a wrong password."),
    -14: ("JOB_EXEC_RERUN_SIS_FAIL", *_NODE),
    -15: ("JOB_EXEC_QUERST", *_AGAIN),
    -16: ("JOB_EXEC_FAILHOOK_RERUN", *_AGAIN),
    -17: ("JOB_EXEC_FAILHOOK_DELETE", State.FAILED, "A rule of the site refused the job when it was to start."),
    -18: ("JOB_EXEC_HOOK_RERUN", *_AGAIN),
    -19: ("JOB_EXEC_HOOK_DELETE", State.FAILED, "A rule of the site ended the job."),
    -20: ("JOB_EXEC_RERUN_MS_FAIL", *_NODE),
    -21: ("JOB_EXEC_FAIL_SECURITY", *_NOT_STARTED),
    -22: ("JOB_EXEC_HOOKERROR", *_NOT_STARTED),
    -23: ("JOB_EXEC_FAIL_KRB5", State.FAILED, "The job had no valid Kerberos ticket."),
    -24: ("JOB_EXEC_KILL_NCPUS_BURST", State.FAILED, "The job used more processors than requested."),
    -25: ("JOB_EXEC_KILL_NCPUS_SUM", State.FAILED, "The job used more processors than requested."),
    -26: ("JOB_EXEC_KILL_VMEM", *_MEMORY),
    -27: ("JOB_EXEC_KILL_MEM", *_MEMORY),
    -28: ("JOB_EXEC_KILL_CPUT", State.TIMED_OUT, "The job reached its limit of processor time."),
    -29: ("JOB_EXEC_KILL_WALLTIME", State.TIMED_OUT, "The job reached its time limit."),
    -30: ("JOB_EXEC_JOINJOB", State.NODE_FAILED, "A node of the job did not join."),
    -31: ("JOB_EXEC_KILL_HPMEM", *_MEMORY),
    -32: ("JOB_EXEC_RERUN_ZOMBIE_JOB", *_NODE),
}
_TERMINATED = 91  # the substate of a job that was deleted
_BY_SIGNAL = 256  # Exit_status of a job that a signal ended: 256 and the signal


class Pbs:
    """PBS Professional and OpenPBS, whose `qstat` can write JSON.

    Finished jobs are the history, a question of its own, since a server that keeps none refuses the whole of it. A
    job that qstat passes over in silence is State.UNKNOWN and not absent: some builds of OpenPBS answer for the
    first of several ids only (openpbs/openpbs issue 2672).
    """

    name = "pbs"
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "$PBS_JOBID",
        "FAIRMILE_ARRAY_INDEX": "$PBS_ARRAY_INDEX",
        "FAIRMILE_NODES": "$(awk '!seen[$1]++ { print $1 }' \"$PBS_NODEFILE\" | tr '\\n' ' ')",
    }

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """See `Scheduler.header`."""
        return pbs_directives(request, files)

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """See `Scheduler.submit`."""
        return Question(("qsub", script), _read_submit)

    def find(self, key: str) -> Question[str | None]:
        """See `Scheduler.find`; the key stands in the variable FAIRMILE_KEY of a job that is not finished yet."""

        def read(result: Result) -> str | None:
            for id, job in _jobs(result).items():
                variables = job.get("Variable_List")
                if isinstance(variables, dict) and str(variables.get(_KEY)) == key:
                    return id
            return None

        return Question(("qstat", "-f", "-F", "json"), read)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.status`."""

        def read(result: Result) -> dict[str, Observed]:
            jobs = _asked_jobs(result, ids)
            observed = _observations(jobs)
            if result.exit_code == 0 and jobs:
                silent = Observed(State.UNKNOWN, sentence="PBS returned nothing about the job.")
                heard = {*jobs, *(task_of(id)[0] for id in jobs)}
                observed |= {id: silent for id in ids if id not in heard}
            return observed

        return Question(("qstat", "-f", "-t", "-F", "json", *map(_pbs_id, ids)), read)

    def history(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.history`; Unsupported where the server keeps none, as is the default of OpenPBS."""

        def read(result: Result) -> dict[str, Observed]:
            if _NO_HISTORY.search(result.stderr):
                raise Unsupported("this PBS has no job history", hint="its own files record how it ended")
            return _observations(_asked_jobs(result, ids))

        return Question(("qstat", "-x", "-f", "-t", "-F", "json", *map(_pbs_id, ids)), read)

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """See `Scheduler.cancel`."""
        return Question(("qdel", *map(_pbs_id, ids)), _read_cancel)


def _pbs_id(id: str) -> str:
    """Turn `7[].server_3` into `7[3].server`."""
    job, index = task_of(id)
    return id if index is None else job.replace("[]", f"[{index}]", 1)


def _read_submit(result: Result) -> str:
    last = (result.stdout.strip().splitlines() or [""])[-1].strip()
    if result.exit_code == 0 and _ID.fullmatch(last):
        return last
    raise refused_job("PBS", result, _PASSING) if result.exit_code else no_answer("PBS", result)


def _read_cancel(result: Result) -> None:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if result.exit_code and not (lines and all(_OVER.search(line) for line in lines)):
        raise failed_question("PBS", result, _PASSING)


def _asked_jobs(result: Result, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the jobs that were asked for, with `7[3].server` as `7[].server_3`."""
    # qstat may write a server's name in full where qsub did not; the number is what counts.
    asked = {task_of(id)[0].partition(".")[0]: task_of(id)[0] for id in ids}
    jobs: dict[str, dict[str, Any]] = {}
    for name, job in _jobs(result).items():
        parts = _ID.fullmatch(name)
        if not parts:
            continue
        base = asked.get(parts[1] if parts[2] is None else f"{parts[1]}[]", "")
        id = f"{base}_{parts[2]}" if parts[2] else base
        if base and was_asked(id, ids):
            jobs[id] = job
    return jobs


def _observations(jobs: Mapping[str, dict[str, Any]]) -> dict[str, Observed]:
    seen = ((id, _observed(job)) for id, job in jobs.items())
    observations = {id: observed for id, observed in seen if observed is not None}
    # Of an array whose tasks are listed, the entry for the whole says nothing more.
    arrays = {task_of(id)[0] for id in observations if task_of(id)[1] is not None}
    return {id: observed for id, observed in observations.items() if id not in arrays}


def _jobs(result: Result) -> dict[str, dict[str, Any]]:
    # qstat answers for the jobs that it knows and complains about the others, with an exit code for the latter.
    if result.exit_code and not _ABSENT.search(result.stderr):
        raise failed_question("PBS", result, _PASSING)
    start = result.stdout.find("{")
    if start < 0:
        if result.stdout.strip():
            raise no_answer("PBS", result)
        return {}
    try:
        jobs = json.loads(result.stdout[start:], strict=False).get("Jobs", {})
    except (ValueError, AttributeError):
        jobs = _jobs_by_line(result.stdout[start:])
        if not jobs:
            raise no_answer("PBS", result) from None
    return {id: job for id, job in jobs.items() if isinstance(job, dict)} if isinstance(jobs, dict) else {}


def _jobs_by_line(text: str) -> dict[str, dict[str, Any]]:
    """Read the jobs out of a document that is not JSON.

    qstat does not escape every value of a variable, such as `005` or the body of a function (openpbs/openpbs issues
    1255 and 2541). It puts each attribute on a line of its own, further in the deeper it belongs, so that one
    spoilt line need not hide the state of every job.
    """
    jobs: dict[str, dict[str, Any]] = {}
    place: list[tuple[int, dict[str, Any]]] = []
    inside = False
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            continue
        depth, name, value = len(match[1].expandtabs()), match[2], match[3]
        if name == "Jobs":
            inside, place = True, [(depth, jobs)]
            continue
        while len(place) > 1 and place[-1][0] >= depth:
            place.pop()
        if inside and value == "{":
            inner: dict[str, Any] = {}
            place[-1][1][name] = inner
            place.append((depth, inner))
        elif inside and len(place) > 1:
            place[-1][1][name] = value.strip('"').replace("\\/", "/")
    return jobs


def _observed(job: Mapping[str, Any]) -> Observed | None:
    native = str(job.get("job_state", ""))
    comment = str(job.get("comment") or "").strip()
    status = whole(job.get("Exit_status"))
    signal = status - _BY_SIGNAL if status is not None and status > _BY_SIGNAL else shell_signal(status)
    code = status if status is not None and 0 <= status < _BY_SIGNAL else None
    reason = ""
    if native in _ENDS:
        if native == "X" and status is None:
            return None  # a task that is over, and not a word about how: as if it were not listed
        reason, state, sentence = _end(job, status, signal, comment)
    elif native in _STATES:
        state, sentence = _STATES[native]
        if comment and state in (State.QUEUED, State.HELD):  # of a job that runs it only says since when
            reason = comment
            sentence += f" PBS says: {comment.rstrip('. ')}."
    else:
        state, sentence = State.UNKNOWN, f"PBS says {native!r}, an unknown state."
    is_end = native in _ENDS
    return Observed(
        state,
        native,
        reason,
        sentence,
        exit_code=code if is_end else None,
        signal=signal if is_end else None,
        nodes=_hosts(str(job.get("exec_host") or "")),
        restarts=max(0, (whole(job.get("run_count")) or 1) - 1),
        usage=_usage(job),
    )


def _end(job: Mapping[str, Any], status: int | None, signal: int | None, comment: str) -> tuple[str, State, str]:
    if status in _REASONS:
        return _REASONS[status]
    if status == 0:
        return comment, *end_of(0)
    if status is None and not job.get("stime"):
        return comment, State.CANCELLED, "The job was deleted before it ran."
    if status is None:
        return comment, State.LOST, "PBS does not say how the job ended."
    if status < 0:
        return comment, State.FAILED, f"PBS ended the job, reason {status}."
    if signal and _ran_out_of_time(job):
        return comment, State.TIMED_OUT, "The job reached its time limit."
    if whole(job.get("substate")) == _TERMINATED or comment.endswith("and terminated") or status == _BY_SIGNAL + 15:
        by = f", which ended it with {signal_name(signal)}" if signal else ""
        return comment, State.CANCELLED, f"The job was deleted{by}."
    return comment, *end_of(status, signal)


def _ran_out_of_time(job: Mapping[str, Any]) -> bool:
    # Servers that do not know JOB_EXEC_KILL_WALLTIME report the signal alone.
    used, given = job.get("resources_used"), job.get("Resource_List")
    if not isinstance(used, dict) or not isinstance(given, dict):
        return False
    took, limit = seconds(used.get("walltime")), seconds(given.get("walltime"))
    return took is not None and limit is not None and took >= limit


def _hosts(text: str) -> str:
    """Turn `n24/0*2+n21/0*2` into `n24,n21`."""
    return ",".join(dict.fromkeys(part.partition("/")[0] for part in text.split("+") if part))


def _usage(job: Mapping[str, Any]) -> Usage | None:
    used = job.get("resources_used")
    if not isinstance(used, dict):
        return None
    return Usage(
        "qstat",
        elapsed_s=seconds(used.get("walltime")),
        cpu_s=seconds(used.get("cput")),
        max_rss_bytes=size_bytes(used.get("mem")),
    )
