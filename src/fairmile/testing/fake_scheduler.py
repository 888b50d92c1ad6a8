"""A scheduler to test with where there is no other: it runs jobs for real and fails on demand.

    fake = FakeScheduler(tmp_path / "fake", nodes=2, outages=1)
    runner.run(fake.submit("job.sh", files).argv, check=False)    # fails once, as during an outage
    fake.fail_node("1")                                           # job 1 loses its node and starts anew

The jobs are processes of this machine; see `fairmile.testing.fake_cluster` for the program behind it. Linux only.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairmile.base.commands import Here, Result
from fairmile.base.errors import SystemFailure, Transient, UsageError
from fairmile.jobs.directives import checked_key
from fairmile.jobs.request import JobFiles, Request
from fairmile.jobs.schedulers import Question
from fairmile.jobs.states import Observed, State, Usage

_PROGRAM = "fairmile.testing.fake_cluster"
_OUTAGE = 7  # the exit code of a command that found nobody
_TAKEN = re.compile(r"taken ([0-9]+)\n")
_KEY_ANSWER = re.compile(r"found ([0-9]*)\n")
_STATES = {
    "WAITING": (State.QUEUED, "The job waits for its turn."),
    "HELD": (State.HELD, "The job is held."),
    "RUNNING": (State.RUNNING, "The job runs."),
    "STOPPING": (State.ENDING, "The job was asked to end."),
    "FINISHED": (State.DONE, "The program ended with exit code 0."),
    "FAILED": (State.FAILED, "The program failed."),
    "KILLED": (State.CANCELLED, "The job was cancelled."),
    "OVERTIME": (State.TIMED_OUT, "The job reached its time limit."),
    "LOSTNODE": (State.NODE_FAILED, "The node of the job failed."),
    "PREEMPTED": (State.PREEMPTED, "The job had to make room for another."),
    "NEVER": (State.CANCELLED, "A job that this one had to wait for did not end as it should."),
}


class FakeScheduler:
    """A scheduler whose nodes are make-believe and whose jobs are not.

    `settings` are the number of `nodes`, 2 unless said, and how often each fault is to come: `outages` (a command
    finds nobody), `hangs` (a command never ends), `lost_answers` (a job is taken, its id never arrives), `garbage`
    and `unknown_states` (in answers about states); `fail_node`, `preempt` and `forget` do the rest. Without
    `lists_ends` the list has only jobs that did not end, and with `accounting` there is a history of those that did.
    """

    name = "fake"
    variables: Mapping[str, str] = {
        "FAIRMILE_JOB_ID": "$FAKE_JOB_ID",
        "FAIRMILE_ARRAY_INDEX": "$FAKE_TASK_INDEX",
        "FAIRMILE_NODES": "$FAKE_NODES",
    }

    def __init__(self, folder: Path, *, lists_ends: bool = True, accounting: bool = False, **settings: int) -> None:
        self.folder = folder
        self.lists_ends = lists_ends
        self.accounting = accounting
        if settings:
            self.set(**settings)

    # What a scheduler is asked

    def header(self, request: Request, files: JobFiles) -> list[str]:
        """See `Scheduler.header`."""
        if not files.folder.isprintable() or '"' in files.folder:
            raise UsageError(f"{files.folder!r} is not a folder for a job here")
        asked: dict[str, object] = {
            "name": request.spec.name,
            "partition": request.partition,
            "account": request.account,
            "nodes": request.nodes,
            "time": math.ceil(request.time_s) if request.time_s is not None else "",
            "array": request.array.count if request.array else "",
            "at-once": request.array.at_once or "" if request.array else "",
            "requeue": "yes" if request.spec.requeue else "no",
            "signal": f"{request.signal.name}@{request.signal.before_s:g}" if request.signal else "",
            "key": checked_key(files),
            "after": ",".join(f"{job}:{condition}" for job, condition in files.after),
        }
        return [f"#{self.name.upper()} --{option}={value}" for option, value in asked.items() if value != ""]

    def submit(self, script: str, files: JobFiles) -> Question[str]:
        """See `Scheduler.submit`."""

        def read(result: Result) -> str:
            match = _TAKEN.fullmatch(_stdout(result))
            if not match:
                raise Transient("the fake scheduler gave no id")
            return match[1]

        return Question(self._argv("submit", script, files.folder), read)

    def find(self, key: str) -> Question[str | None]:
        """See `Scheduler.find`."""

        def read(result: Result) -> str | None:
            match = _KEY_ANSWER.fullmatch(_stdout(result))
            return match[1] or None if match else None

        return Question(self._argv("find", key), read)

    def status(self, ids: Sequence[str]) -> Question[dict[str, Observed]]:
        """See `Scheduler.status`."""
        return Question(self._argv("status", *([] if self.lists_ends else ["--live"]), *ids), _read_rows)

    def history(self, ids: Sequence[str]) -> Question[dict[str, Observed]] | None:
        """See `Scheduler.history`."""
        return Question(self._argv("history", *ids), _read_rows) if self.accounting else None

    def cancel(self, ids: Sequence[str]) -> Question[None]:
        """See `Scheduler.cancel`."""

        def read(result: Result) -> None:
            _stdout(result)

        return Question(self._argv("cancel", *ids), read)

    # What happens to it

    def set(self, **values: int) -> None:
        """Change settings, such as how often a fault is to come from now on."""
        self._do("set", *(f"{name}={number}" for name, number in values.items()))

    def fail_node(self, id: str) -> None:
        """Take away the node of a running job; it starts anew under the same id unless it must not."""
        self._do("fail-node", id)

    def preempt(self, id: str) -> None:
        """Stop a running job to make room; it starts anew under the same id unless it must not."""
        self._do("preempt", id)

    def hold(self, id: str) -> None:
        """Hold a waiting job back."""
        self._do("hold", id)

    def release(self, id: str) -> None:
        """Let a job go that was held back."""
        self._do("release", id)

    def forget(self, id: str) -> None:
        """Leave a job out of every list from now on; it runs on."""
        self._do("forget", id)

    def close(self, *, timeout_s: float = 30.0) -> None:
        """End everything that runs, also what was forgotten, and wait until it is gone."""
        deadline = time.monotonic() + timeout_s
        ids = [path.stem for path in self.folder.glob("*.sh")]
        if ids:
            self.set(nodes=0)
        while ids:
            self._do("cancel", *ids)
            jobs = json.loads((self.folder / "state.json").read_text())["jobs"].values()
            if not any(task["state"] in ("RUNNING", "STOPPING") for job in jobs for task in job["tasks"]):
                return
            if time.monotonic() > deadline:
                raise SystemFailure(f"jobs of the fake scheduler in {self.folder} did not end within {timeout_s:g} s")
            time.sleep(0.1)

    def _argv(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", _PROGRAM, str(self.folder), *words)

    def _do(self, *words: str) -> None:
        Here().run(self._argv(*words), timeout_s=120.0)


def _stdout(result: Result) -> str:
    message = (result.stderr or result.stdout).strip()
    if result.exit_code == _OUTAGE:
        raise Transient("the fake scheduler does not answer")
    if result.exit_code and message.startswith("fake: the job"):
        raise UsageError(f"the fake scheduler refused the job: {message.removeprefix('fake: ')}")
    if result.exit_code:
        raise SystemFailure(f"the fake scheduler failed: {message[-300:]}")
    return result.stdout


def _read_rows(result: Result) -> dict[str, Observed]:
    *lines, last = _stdout(result).splitlines() or [""]
    if not lines and not last:
        return {}
    if last != f"end {len(lines)}":
        raise Transient("the answer of the fake scheduler is not complete")
    rows = [json.loads(line) for line in lines]
    return {row["id"]: _observed(row) for row in rows}


def _observed(row: Mapping[str, object]) -> Observed:
    native = str(row["state"])
    state, sentence = _STATES.get(native, (State.UNKNOWN, f"The scheduler says {native!r}, which is not known."))
    is_end = state.is_end
    code, number = row.get("exit_code"), row.get("signal")
    began, ended = row.get("began"), row.get("ended")
    elapsed = ended - began if isinstance(began, float) and isinstance(ended, float) else None
    restarts = row.get("restarts", 0)
    return Observed(
        state,
        native,
        sentence=sentence,
        exit_code=code if is_end and isinstance(code, int) else None,
        signal=number or None if is_end and isinstance(number, int) else None,
        restarts=restarts if isinstance(restarts, int) else 0,
        usage=Usage("fake", elapsed_s=elapsed) if is_end and elapsed is not None else None,
    )
