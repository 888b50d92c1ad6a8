"""Many short commands in one job, run for real: by bash alone, by the queue, and on Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from slurm_cluster import SlurmCluster
from slurm_jobs import jobs_on

from fairmile.base.errors import UsageError
from fairmile.jobs.machines import Machines
from fairmile.jobs.packing import packed
from fairmile.jobs.queue import Jobs
from fairmile.jobs.spec import JobSpec, Resources
from fairmile.jobs.states import State


class Folder:
    """A job's folder with the files of a packed job, and bash to run it."""

    def __init__(self, path: Path, spec: JobSpec) -> None:
        self.path = path
        self.spec = spec
        path.mkdir(exist_ok=True)
        for name, text in spec.texts.items():
            (path / name).write_text(text)

    def start(self, **env: str) -> subprocess.Popen[str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        mine |= {"FAIRMILE_JOB_FOLDER": str(self.path), "FAIRMILE_JOB_ID": "77"} | env
        return subprocess.Popen(
            self.spec.argv, cwd=self.path, env=mine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, **env: str) -> tuple[int, str]:
        with self.start(**env) as process:
            _, errors = process.communicate(timeout=120)
        return process.returncode, errors

    def note(self, name: str) -> list[dict[str, Any]]:
        file = self.path / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def out(self, index: int, stem: str = "out") -> str:
        return (self.path / f"{stem}.{index}.log").read_text()


Pack = Callable[..., Folder]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    def make(commands: Sequence[Sequence[str]], **fields: Any) -> Folder:
        return Folder(tmp_path / "job", packed(commands, **fields))

    return make


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_each_command_has_its_output_its_number_and_its_notes(pack: Pack) -> None:
    job = pack([["bash", "-c", "echo $FAIRMILE_ARRAY_INDEX; echo no >&2"], ["echo", "two"], ["true"]])
    assert job.run() == (0, "")
    assert [job.out(index) for index in range(3)] == ["0\n", "two\n", ""]
    assert job.out(0, "err") == "no\n"
    (start,), (end,) = job.note("started.0"), job.note("ended.0")
    assert start == {"host": os.uname().nodename, "time": start["time"], "attempt": 1, "job": "77"}
    assert abs(start["time"] - time.time()) < 600
    assert end == {"exit_code": 0, "time": end["time"], "job": "77"}


def test_one_failure_fails_the_job_and_stops_no_other_command(pack: Pack) -> None:
    job = pack([["false"], ["bash", "-c", "exit 7"], ["no-such-program"], ["echo", "ran"]], at_once=1)
    assert job.run() == (1, "3 of 4 commands did not end with 0\n")
    assert [job.note(f"ended.{index}")[0]["exit_code"] for index in range(4)] == [1, 7, 127, 0]
    assert "no-such-program: not found" in job.out(2, "err")


def test_a_command_whose_watcher_was_killed_is_not_taken_for_a_success(pack: Pack) -> None:
    # The parent of a command watches it, and is lost as if the node had run out of memory.
    job = pack([["bash", "-c", "kill -KILL $PPID; exit 0"], ["echo", "ran"], ["echo", "ran too"]], at_once=1)
    code, errors = job.run()
    assert (code, errors.splitlines()[-1]) == (1, "1 of 3 commands did not end with 0")
    assert not job.note("ended.0")
    assert [job.note(f"ended.{index}")[0]["exit_code"] for index in (1, 2)] == [0, 0]


def test_a_job_started_again_runs_only_what_did_not_end_with_0(pack: Pack) -> None:
    job = pack([["echo", "once"], ["test", "-e", "there"], ["echo", "once too"]], at_once=2)
    assert job.run()[0] == 1
    (job.path / "there").touch()
    assert job.run() == (0, "")
    assert [job.out(index) for index in (0, 2)] == ["once\n", "once too\n"]
    assert [each["attempt"] for each in job.note("started.1")] == [1, 2]
    assert [len(job.note(f"started.{index}")) for index in (0, 2)] == [1, 1]
    assert [each["exit_code"] for each in job.note("ended.1")] == [0]


def test_no_more_commands_run_at_once_than_said(pack: Pack) -> None:
    script = "touch running.$FAIRMILE_ARRAY_INDEX; ls running.* | wc -l; sleep 0.05; rm running.$FAIRMILE_ARRAY_INDEX"
    job = pack([["bash", "-c", script]] * 12, at_once=3)
    assert job.run() == (0, "")
    assert max(int(job.out(index)) for index in range(12)) <= 3


def test_words_reach_a_command_as_they_are(pack: Pack) -> None:
    words = ["a b", "it's", '$HOME `id` "x" \\ *', "two\nlines\\n'", "~", "", "-n", "é {a,b} #"]
    job = pack([[sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words]])
    assert job.run() == (0, "")
    assert json.loads(job.out(0)) == words


def test_what_wraps_stands_before_every_command(pack: Pack) -> None:
    job = pack([["echo", "$X"], ["printenv", "X"]], wrap=["env", "X=in a box"])
    assert job.run() == (0, "")
    assert [job.out(index) for index in range(2)] == ["$X\n", "in a box\n"]


def test_the_end_of_the_job_is_passed_on_and_noted(pack: Pack) -> None:
    patient = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    job = pack([["true"], ["bash", "-c", patient], ["sleep", "600"], ["echo", "never"]], at_once=2)
    with job.start() as process:
        wait_for(lambda: job.note("started.2") and "ready" in job.out(1))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, "stopped by TERM before command 3\n")
    assert job.out(1) == "ready\nsaved\n"
    assert [(end["exit_code"], end["signal"]) for end in job.note("ended.1")] == [(3, "TERM")]
    assert [(end["exit_code"], end["signal"]) for end in job.note("ended.2")] == [(143, "TERM")]
    assert not job.note("started.3")
    assert not job.note("ended.3")


def test_a_command_that_saved_its_state_on_a_signal_is_not_finished(pack: Pack) -> None:
    script = "[ ! -e saved ] || exit 0; trap 'touch saved; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    job = pack([["bash", "-c", script]])
    with job.start() as process:
        wait_for(lambda: (job.path / "out.0.log").exists() and "ready" in job.out(0))
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=60)
    assert [(end["exit_code"], end["signal"]) for end in job.note("ended.0")] == [(0, "USR1")]
    assert job.run() == (0, "")
    assert len(job.note("started.0")) == 2


def test_commands_share_the_cores_of_the_job(pack: Pack) -> None:
    show = ["printenv", "OMP_NUM_THREADS"]
    job = pack([show], at_once=2)
    assert job.run(SLURM_CPUS_ON_NODE="8", OMP_NUM_THREADS="8") == (0, "")
    assert job.out(0) == "4\n"
    assert "export OMP_NUM_THREADS" not in packed([show], env={"OMP_NUM_THREADS": "3"}).texts["pack.sh"]


@pytest.mark.thorough
def test_thousands_of_commands_are_one_job(pack: Pack) -> None:
    job = pack([["true", str(number)] for number in range(2000)], at_once=2)
    assert job.spec.parts == 2000
    assert job.run() == (0, "")
    assert len(list(job.path.glob("ended.*"))) == 2000


def test_ten_thousand_commands_are_written_without_trouble() -> None:
    spec = packed([["echo", str(number)] for number in range(10_000)])
    assert spec.texts["pack.commands"].splitlines()[9_999] == "echo 9999"


def test_the_queue_knows_the_end_of_every_command(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs"))
    job = jobs.submit(packed([["echo", "one"], ["bash", "-c", "exit 5"], ["echo", "three"]], folder=str(tmp_path)))
    (ended,) = jobs.wait([job.id], timeout_s=120)
    assert (ended.state, ended.status.exit_code) == (State.FAILED, 1)
    assert [(task.state, task.exit_code) for task in ended.tasks.values()] == [
        (State.DONE, 0),
        (State.FAILED, 5),
        (State.DONE, 0),
    ]
    assert jobs.log(job.id, task=2) == b"three\n"
    assert jobs.log(job.id, errors=True) == b"1 of 3 commands did not end with 0\n"


def test_a_cancelled_pack_leaves_no_command_behind(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Machines([], tmp_path / "jobs"))
    job = jobs.submit(packed([["bash", "-c", "echo $$; exec sleep 1000"]] * 3, at_once=2))
    wait_for(lambda: all(jobs.log(job.id, task=task) for task in range(2)))
    pids = [int(jobs.log(job.id, task=task)) for task in range(2)]
    jobs.cancel([job.id])
    (ended,) = jobs.wait([job.id], timeout_s=120)
    assert ended.state is State.CANCELLED
    assert ended.tasks[2].state is State.CANCELLED
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_on_several_nodes_of_slurm_every_command_is_a_step(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch)
    resources = Resources(nodes=2, memory_gib=0.5)
    show = ["bash", "-c", "echo $SLURMD_NODENAME $SLURM_STEP_NUM_NODES $OMP_NUM_THREADS; sleep 1"]
    job = jobs.submit(packed([show] * 8, resources=resources), system="rig")
    (ended,) = jobs.wait([job.id], timeout_s=240)
    assert ended.state is State.DONE, (jobs.log(job.id, errors=True), jobs.log(job.id, task=0, errors=True))
    places = [jobs.log(job.id, task=task).decode().split() for task in range(8)]
    assert {tuple(each[1:]) for each in places} == {("1", "1")}
    assert len({each[0] for each in places}) == 2
    assert [task.nodes for task in ended.tasks.values()] == [each[0] for each in places]
    starts = [task.started for task in ended.tasks.values()]
    assert len([start for start in starts if start is not None]) == 8


def test_a_requeued_pack_goes_on_where_it_was(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_on(slurm_cluster, tmp_path, monkeypatch)
    wait = ["bash", "-c", f"echo here; [ -e {tmp_path}/go ] || sleep 1000"]
    job = jobs.submit(packed([["echo", "first"], wait], at_once=1), system="rig")
    wait_for(lambda: jobs.log(job.id, task=1))
    (tmp_path / "go").touch()
    slurm_cluster.run("scontrol", "requeue", job.scheduler_id)
    (ended,) = jobs.wait([job.id], timeout_s=240)
    assert ended.state is State.DONE, ended
    assert jobs.log(job.id, task=0) == b"first\n"
    assert jobs.log(job.id, task=1) == b"here\nhere\n"
    assert ended.tasks[1].restarts == 1


@for_each(
    "commands, at_once, sentence",
    [
        ([], None, "no commands to pack"),
        ([["true"], []], None, "command 1: expected a program and its arguments, found none"),
        ([["echo", "a\0b"]], None, "command 0: 'a\\x00b' cannot be written"),
        ([["true"]], 0, "at_once: expected at least 1, found 0"),
    ],
)
def test_what_cannot_be_packed_is_refused(commands: list[list[str]], at_once: int | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("\\", "\\\\")):
        packed(commands, at_once=at_once)
