"""A small scheduler that is real: jobs are processes of this machine, and all it knows is in one folder.

    python -m fairmile.testing.fake_cluster FOLDER submit SCRIPT WORK
    python -m fairmile.testing.fake_cluster FOLDER status|history|cancel [ID…]
    python -m fairmile.testing.fake_cluster FOLDER find KEY
    python -m fairmile.testing.fake_cluster FOLDER fail-node|preempt|hold|release|forget ID
    python -m fairmile.testing.fake_cluster FOLDER set NAME=NUMBER…

There is no service: every command first brings the state up to date, and each running job has a keeper, a process
that waits for its end and then starts the next. A script may say in lines `#FAKE --OPTION=VALUE`, or `#PRACTICE`: name,
key, nodes, time, array, at-once, requeue, signal, after.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fairmile.base.files import Lock, write_atomic

State: TypeAlias = dict[str, Any]
Job: TypeAlias = dict[str, Any]
Task: TypeAlias = dict[str, Any]

# What `set` changes: the number of nodes, and how often each fault is still to come.
FAULTS = ("outages", "hangs", "lost_answers", "garbage", "unknown_states")
SETTINGS = ("nodes", *FAULTS)
ENDS = ("FINISHED", "FAILED", "KILLED", "OVERTIME", "LOSTNODE", "PREEMPTED", "NEVER")
_MODULE = "fairmile.testing.fake_cluster"
_GRACE_S = 5.0
_BEAT_S = 0.05
_OPTION = re.compile(r"#(?:FAKE|PRACTICE) --([a-z-]+)=(.*)")
_GARBAGE = "\x00\ufffd{]|one|two\nWelcome to the machine\n{'id': 7}\n"


class Refused(Exception):
    """A command cannot be carried out, for the reason in the message."""


class Cluster:
    """The state in a folder, and what can be done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "state.json"

    @contextlib.contextmanager
    def state(self) -> Iterator[State]:
        """Hold the state, brought up to date; what was changed is kept, and jobs whose turn it is are started."""
        with Lock(self.folder / "lock", timeout_s=60.0):
            try:
                state: State = json.loads(self._file.read_text())
            except FileNotFoundError:
                state = {"nodes": 2, "next": 1, "jobs": {}}
            self._bury(state)
            yield state
            self._bury(state)  # what was done just now may have taken a node away
            self._start(state)
            write_atomic(self._file, json.dumps(state), sync=False)

    def submit(self, script: Path, work: str) -> str:
        """Take a script and return the id of its job."""
        options = _options(script.read_text())
        with self.state() as state:
            nodes, count = int(options.get("nodes", 1)), int(options.get("array", 0))
            if nodes > state["nodes"]:
                raise Refused(f"the job asks for {nodes} nodes, there are {state['nodes']}")
            after = [part.split(":") for part in options.get("after", "").split(",") if part]
            for other, _ in after:
                if other not in state["jobs"]:
                    raise Refused(f"the job waits for {other}, which is not known")
            id = str(state["next"])
            state["next"] += 1
            kept = self.folder / f"{id}.sh"
            shutil.copyfile(script, kept)
            state["jobs"][id] = {
                "name": options.get("name", ""),
                "key": options.get("key", ""),
                "script": str(kept),
                "work": work,
                "nodes": nodes,
                "time_s": float(options.get("time", 0)),
                "signal": options.get("signal", ""),
                "requeue": options.get("requeue", "yes") == "yes",
                "after": after,
                "array": bool(count),
                "at_once": int(options.get("at-once", 0)) or max(count, 1),
                "tasks": [{"state": "WAITING", "restarts": 0} for _ in range(max(count, 1))],
            }
        return id

    def listed(self, ids: Sequence[str], *, ended: bool | None = None) -> list[dict[str, Any]]:
        """Return the tasks of jobs; only those that ended or did not, if that is asked."""
        rows = []
        with self.state() as state:
            for id in ids:
                for name, job, task in _tasks(state, id):
                    if not job.get("forgotten") and ended in (None, task["state"] in ENDS):
                        rows.append({"id": name, **{key: task[key] for key in sorted(task) if key not in _OWN}})
        return rows

    def find(self, key: str) -> str:
        """Return the id of the job with a key; an empty text where there is none."""
        with self.state() as state:
            jobs = state["jobs"].items()
            return next((id for id, job in jobs if job["key"] == key and not job.get("forgotten")), "")

    def cancel(self, ids: Sequence[str]) -> None:
        """End jobs; a running one has some seconds to end by itself."""
        with self.state() as state:
            for id in ids:
                for _, _, task in _tasks(state, id):
                    if task["state"] in ("WAITING", "HELD"):
                        task.update(state="KILLED", ended=time.time())
                    elif task["state"] == "RUNNING":
                        task.update(state="STOPPING", asked="cancel")

    def preempt(self, id: str) -> None:
        """Stop a running job, so that it starts once more under the same id, where it may."""
        with self.state() as state:
            for _, _, task in _tasks(state, id):
                if task["state"] == "RUNNING":
                    task.update(state="STOPPING", asked="preempt")

    def fail_node(self, id: str) -> None:
        """Take away the node of a running job, as a power cut does."""
        with self.state() as state:
            for _, _, task in _tasks(state, id):
                if task["state"] in ("RUNNING", "STOPPING"):
                    for process in ("keeper", "pid"):
                        _kill_group(task.get(process), signal.SIGKILL)
                    while _lives(task["keeper"], task["started"]):
                        time.sleep(_BEAT_S)

    def hold(self, id: str, *, release: bool = False) -> None:
        """Hold a waiting job back, or let it go again."""
        before, after = ("HELD", "WAITING") if release else ("WAITING", "HELD")
        with self.state() as state:
            for _, _, task in _tasks(state, id):
                if task["state"] == before:
                    task["state"] = after

    def forget(self, id: str) -> None:
        """Leave a job out of every list from now on; it runs on."""
        with self.state() as state:
            if id not in state["jobs"]:
                raise Refused(f"there is no job {id}")
            state["jobs"][id]["forgotten"] = True

    def set(self, values: Sequence[str]) -> None:
        """Change settings given as NAME=NUMBER."""
        with self.state() as state:
            for value in values:
                name, _, number = value.partition("=")
                if name not in SETTINGS or not number.isdigit():
                    raise Refused(f"{value!r} is not a setting; there are {', '.join(SETTINGS)}")
                state[name] = int(number)

    def take_fault(self, name: str) -> bool:
        """Tell whether a fault is due, and count it."""
        with self.state() as state:
            if not state.get(name):
                return False
            state[name] -= 1
            return True

    def keep(self, id: str, index: int) -> None:
        """Run one task and wait for its end: what a keeper does."""
        with self.state() as state:
            job = state["jobs"][id]
            task = job["tasks"][index]
            if task.get("keeper") != os.getpid():
                return
            process = self._run(id, index, job, task)
            task["pid"] = process.pid
        overtime = _watch(process, job["time_s"], job["signal"], lambda: self._is_asked(id, index))
        _kill_group(process.pid, signal.SIGKILL)
        with self.state() as state:
            job = state["jobs"][id]
            task = job["tasks"][index]
            code = process.returncode
            task.update(exit_code=max(code, 0), signal=max(-code, 0))
            _end(job, task, "OVERTIME" if overtime else "FAILED" if code else "FINISHED")

    def _is_asked(self, id: str, index: int) -> bool:
        """Tell whether a task is to end; without the lock, since the file is always whole."""
        return "asked" in json.loads(self._file.read_text())["jobs"][id]["tasks"][index]

    def _run(self, id: str, index: int, job: Job, task: Task) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "FAKE_JOB_ID": f"{id}_{index}" if job["array"] else id,
            "FAKE_TASK_INDEX": str(index),
            "FAKE_NODES": " ".join(f"fake{number}" for number in range(job["nodes"])),
            "FAKE_RESTARTS": str(task["restarts"]),
        }
        with open(self.folder / f"{id}.{index}.log", "ab") as log:
            return subprocess.Popen(
                ["bash", job["script"]],
                cwd=job["work"] or None,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _bury(self, state: State) -> None:
        """Find the tasks whose keeper is gone: their node failed."""
        for job in state["jobs"].values():
            for task in job["tasks"]:
                if task["state"] in ("RUNNING", "STOPPING") and not _lives(task["keeper"], task["started"]):
                    _kill_group(task.get("pid"), signal.SIGKILL)
                    _end(job, task, "LOSTNODE")

    def _start(self, state: State) -> None:
        free = state["nodes"] - sum(
            job["nodes"] * sum(task["state"] in ("RUNNING", "STOPPING") for task in job["tasks"])
            for job in state["jobs"].values()
        )
        for id, job in state["jobs"].items():
            at_once = job["at_once"] - sum(task["state"] in ("RUNNING", "STOPPING") for task in job["tasks"])
            verdict = _may_start(state, job)
            for index, task in enumerate(job["tasks"]):
                if task["state"] != "WAITING":
                    continue
                if verdict == "never":
                    task.update(state="NEVER", ended=time.time())
                elif verdict == "now" and free >= job["nodes"] and at_once > 0:
                    self._start_keeper(id, index, task)
                    free -= job["nodes"]
                    at_once -= 1

    def _start_keeper(self, id: str, index: int, task: Task) -> None:
        keeper = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(self.folder), "keep", id, str(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        task.update(state="RUNNING", keeper=keeper.pid, started=_started(keeper.pid), began=time.time())
        for name in ("pid", "exit_code", "signal", "ended"):
            task.pop(name, None)


_OWN = ("keeper", "pid", "started", "asked")


def _options(script: str) -> dict[str, str]:
    header = itertools.takewhile(lambda line: line.startswith("#"), script.splitlines())
    return {option[1]: option[2] for line in header if (option := _OPTION.fullmatch(line))}


def _tasks(state: State, id: str) -> Iterator[tuple[str, Job, Task]]:
    """Give the tasks that an id means: one of an array, all of it, or the only one of a plain job."""
    base, _, wanted = id.partition("_")
    job = state["jobs"].get(base)
    if job is None or (wanted and not job["array"]):
        return
    for index, task in enumerate(job["tasks"]):
        if not wanted or wanted == str(index):
            yield (f"{base}_{index}" if job["array"] else base), job, task


def _may_start(state: State, job: Job) -> str:
    """Tell whether a job may start `now`, `later` or `never`, for the jobs that it waits for."""
    for other, condition in job["after"]:
        states = [task["state"] for task in state["jobs"][other]["tasks"]]
        if not all(each in ENDS for each in states):
            return "later"
        went_well = all(each == "FINISHED" for each in states)
        if condition != "any" and went_well != (condition == "ok"):
            return "never"
    return "now"


def _end(job: Job, task: Task, end: str) -> None:
    """Note the end of a task; one that made room or lost its node starts once more, where it may."""
    asked = task.pop("asked", "")
    end = {"cancel": "KILLED", "preempt": "PREEMPTED"}.get(asked, end)
    task.update(state=end, ended=time.time())
    if job["requeue"] and end in ("PREEMPTED", "LOSTNODE"):
        task.update(state="WAITING", restarts=task["restarts"] + 1)


def _watch(process: subprocess.Popen[bytes], time_s: float, warning: str, is_asked: Callable[[], bool]) -> bool:
    """Wait for the end of a program, and tell whether its time was over; who is to end gets TERM, and later KILL."""
    began = time.monotonic()
    name, _, before_s = warning.partition("@")
    warn_at = began + time_s - float(before_s) if warning and time_s else float("inf")
    overtime, kill_at = False, float("inf")
    while process.poll() is None:
        now = time.monotonic()
        if now >= warn_at:
            warn_at = float("inf")
            os.kill(process.pid, signal.Signals[f"SIG{name}"])
        overtime = overtime or (time_s > 0 and now >= began + time_s)
        if kill_at == float("inf") and (overtime or is_asked()):
            kill_at = now + _GRACE_S
            _kill_group(process.pid, signal.SIGTERM)
        if now >= kill_at:
            _kill_group(process.pid, signal.SIGKILL)
        time.sleep(_BEAT_S)
    return overtime


def _kill_group(leader: int | None, number: int) -> None:
    if leader:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _lives(pid: int, started: str) -> bool:
    now = _started(pid)
    return bool(now) and now == started


def _started(pid: int) -> str:
    """Return what tells a process from a later one of its number; empty for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _answer(cluster: Cluster, verb: str, words: Sequence[str]) -> str:
    if verb == "submit":
        id = cluster.submit(Path(words[0]), words[1])
        if cluster.take_fault("lost_answers"):
            raise ConnectionError
        return f"taken {id}\n"
    if verb in ("status", "history"):
        live_only = "--live" in words
        ids = [word for word in words if word != "--live"]
        rows = cluster.listed(ids, ended=True if verb == "history" else False if live_only else None)
        if verb == "status" and cluster.take_fault("garbage"):
            return _GARBAGE
        if verb == "status" and cluster.take_fault("unknown_states"):
            rows = [{**row, "state": "FROZZLED"} for row in rows]
        return "".join(f"{json.dumps(row)}\n" for row in rows) + f"end {len(rows)}\n"
    if verb == "find":
        return f"found {cluster.find(words[0])}\n"
    actions = {
        "cancel": lambda: cluster.cancel(words),
        "preempt": lambda: cluster.preempt(words[0]),
        "fail-node": lambda: cluster.fail_node(words[0]),
        "hold": lambda: cluster.hold(words[0]),
        "release": lambda: cluster.hold(words[0], release=True),
        "forget": lambda: cluster.forget(words[0]),
        "set": lambda: cluster.set(words),
        "keep": lambda: cluster.keep(words[0], int(words[1])),
    }
    if verb not in actions:
        raise Refused(f"{verb!r} is not a request")
    actions[verb]()
    return ""


def main(argv: Sequence[str]) -> int:
    """Carry out one command and return its exit code."""
    if len(argv) < 2:
        sys.stderr.write(__doc__ or "")
        return 2
    folder, verb, *words = argv
    cluster = Cluster(Path(folder))
    try:
        if verb in ("submit", "status", "history", "find", "cancel"):
            if cluster.take_fault("outages"):
                raise ConnectionError
            while cluster.take_fault("hangs"):
                time.sleep(3600)
        sys.stdout.write(_answer(cluster, verb, words))
    except ConnectionError:
        sys.stderr.write("fake: the scheduler does not answer\n")
        return 7
    except Refused as error:
        sys.stderr.write(f"fake: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
