"""Many runs that were prepared once: a pool of processes here, or the tasks of a job array."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from batch_pool import pool

from fairmile.base.errors import SystemFailure
from fairmile.runs.execute.batches import Frozen, read_tasks, write_tasks
from fairmile.runs.execute.crew import Ended
from fairmile.runs.execute.worker import MEMBER, Batch, start
from fairmile.runs.record.run import RunState
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

CONTROLLER = """\
import sys
from pathlib import Path
from fairmile.runs.execute.crew import Order, execute_all
from fairmile.runs.execute.worker import start

orders = [Order(Path(sys.argv[1]), number, f"g-{number}") for number in range(int(sys.argv[2]))]
for ended in execute_all(orders, 2, start):
    print(ended.number, flush=True)
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    return Workspace.open(environ={**os.environ, "FAIRMILE_HOME": str(tmp_path / "home")}).runs


def frozen(runs: Runs, folder: Path, argv: list[str], *params: object, **fields: object) -> Frozen:
    """Return a batch in a folder with a member for each value of the parameter `x`."""
    folder.mkdir()
    made = runs.freeze(runs.plan(argv, name="try", group="g", params={"x": ""}, used=("x",), **fields), folder)
    made.write_members(made.member(f"g-{n}", params={"x": each}) for n, each in enumerate(params))
    return made


def states(ends: list[Ended]) -> dict[int, str]:
    return {each.number: each.state for each in ends}


def test_each_member_is_a_run_of_its_own_with_its_values(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo value {x} in $FAIRMILE_RUN_ID"], 1, 2, 3)
    assert states(list(pool(tmp_path / "b", [0, 1, 2], 2))) == {0: "done", 1: "done", 2: "done"}
    assert runs.output("g-1") == b"value 2 in g-1\n"
    assert {row.params["x"] for row in runs.rows(group="g")} == {1, 2, 3}
    assert len({runs.get(f"g-{n}").identity for n in range(3)}) == 3
    assert runs.get("g-0").captured.agent


def test_members_work_beside_each_other_and_see_the_code_as_it_was(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nopen('out.txt', 'w').write('first ' + sys.argv[1])\n")
    frozen(runs, tmp_path / "b", [sys.executable, "program.py", "{x}"], "a", "b")
    program.write_text("import sys\nopen('out.txt', 'w').write('second')\n")
    assert set(states(list(pool(tmp_path / "b", [0, 1], 2))).values()) == {"done"}
    written = [(runs.root / f"g-{n}" / "work" / "out.txt").read_text() for n in range(2)]
    assert written == ["first a", "first b"]
    assert not (tmp_path / "out.txt").exists()


def test_a_member_can_be_done_again_from_its_record_alone(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint('hello', sys.argv[1])\n")
    frozen(runs, tmp_path / "b", [sys.executable, "program.py", "{x}"], "a")
    list(pool(tmp_path / "b", [0], 1))
    (tmp_path / "program.py").unlink()
    done = runs.rerun("g-0")
    assert done.reproduced
    assert runs.output(done.again.id) == b"hello a\n"


def test_all_work_in_one_folder_where_that_is_asked_for(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    plan = runs.plan(["sh", "-c", "echo {x} >> all.txt"], name="try", group="g", params={"x": ""}, used=("x",))
    made = runs.freeze(plan, tmp_path / "b", in_place=True)
    made.write_members(made.member(f"g-{n}", params={"x": n}) for n in range(3))
    list(pool(tmp_path / "b", range(3), 1))
    assert (tmp_path / "all.txt").read_text() == "0\n1\n2\n"


def test_a_failure_is_told_with_its_reason_and_stops_nobody(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "exit {x}"], 0, 3, 0)
    ends = {each.number: each for each in pool(tmp_path / "b", range(3), 1)}
    assert (ends[1].state, ends[1].reason) == ("failed", "exit code 3")
    assert ends[2].state == "done"


def test_what_is_done_is_not_done_again(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo once >> {run}/count; test {x} = ok"], "ok", "bad")
    for _ in range(2):
        list(pool(tmp_path / "b", [0, 1], 1))
    assert (runs.root / "g-0" / "count").read_text() == "once\n"
    assert (runs.root / "g-1" / "count").read_text() == "once\nonce\n"
    assert len(runs.get("g-1").record.attempts) == 2


def test_variables_may_be_secrets_so_nobody_else_reads_the_batch(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo $API_TOKEN"], 1, env={"API_TOKEN": "s3cr3t-s3cr3t"})
    list(pool(tmp_path / "b", [0], 1))
    assert runs.output("g-0") == b"s3cr3t-s3cr3t\n"
    assert "s3cr3t" not in (runs.root / "g-0" / "run.json").read_text()
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "b").glob("*.json*"))


def test_killed_in_the_middle_nothing_is_lost_and_nothing_done_twice(runs: Runs, tmp_path: Path) -> None:
    count = 60
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo once >> {run}/count; sleep 0.05"], *range(count))
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path / "b"), str(count)]
    controller = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert controller.stdout is not None
    with controller.stdout:
        for _ in range(10):
            controller.stdout.readline()
        os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    taken = [each for each in pool(tmp_path / "b", range(count), 2) if each.state == "taken"]
    until = time.monotonic() + 60
    while taken and time.monotonic() < until:
        taken = [each for each in taken if runs.get(each.id).state is not RunState.DONE]
        time.sleep(0.05)
    found = Counter(runs.get(f"g-{n}").state for n in range(count))
    assert found == {RunState.DONE: count}
    assert {(runs.root / f"g-{n}" / "count").read_text() for n in range(count)} == {"once\n"}


def test_a_worker_that_is_killed_takes_only_its_member_along(runs: Runs, tmp_path: Path) -> None:
    kill = ["sh", "-c", "test {x} != die || { kill -KILL $PPID; sleep 1; }"]
    frozen(runs, tmp_path / "b", kill, "live", "die", "live")
    found = states(list(pool(tmp_path / "b", range(3), 1)))
    assert found == {0: "done", 1: "interrupted", 2: "done"}


def test_a_worker_that_is_told_to_stop_takes_only_its_member_along(runs: Runs, tmp_path: Path) -> None:
    stop = ["sh", "-c", "test {x} != stop || { kill -TERM $PPID; sleep 60; }"]
    frozen(runs, tmp_path / "b", stop, "live", "stop", "live", "live")
    found = states(list(pool(tmp_path / "b", range(4), 1)))
    assert found == {0: "done", 1: "cancelled", 2: "done", 3: "done"}


def test_workers_that_cannot_begin_end_the_pool_at_once(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["true"], *range(3))
    (tmp_path / "b" / "batch.json").write_text("{")
    with pytest.raises(SystemFailure, match="before its first run"):
        list(pool(tmp_path / "b", range(3), 1))


def test_a_member_knows_nothing_of_what_its_worker_was_told(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_RESUME", "1")  # as inside of a run that goes on
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo $FAIRMILE_RESUME$FAIRMILE_BATCH_JOB"], *range(2))
    name = write_tasks(tmp_path / "b", 1, "key-1", "rig", [[0, 1]])
    monkeypatch.setenv("FAIRMILE_BATCH_JOB", "")
    assert start([str(tmp_path / "b"), "--tasks", name, "--at-once", "2", "--"]) == 0
    assert {runs.output(f"g-{n}") for n in range(2)} == {b"\n"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_is_ended_with_its_programs(runs: Runs, tmp_path: Path, number: signal.Signals) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo $$; exec sleep 600"], 1, 2)
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path / "b"), "2"]
    controller = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while time.monotonic() < until and not all((runs.root / f"g-{n}" / "output.log").exists() for n in range(2)):
        time.sleep(0.05)
    while time.monotonic() < until and not all(runs.output(f"g-{n}") for n in range(2)):
        time.sleep(0.05)
    controller.send_signal(number)
    controller.wait()
    for n in range(2):
        assert runs.get(f"g-{n}").state is RunState.CANCELLED
        assert not Path("/proc", runs.output(f"g-{n}").decode().strip()).exists()


def test_files_of_its_own_lie_where_a_member_starts(runs: Runs, tmp_path: Path) -> None:
    made = frozen(runs, tmp_path / "b", ["sh", "go.sh"])
    made.write_members([{**made.member("g-0"), "files": {"go.sh": "#!/bin/sh\necho went\n"}}])
    list(pool(tmp_path / "b", [0], 1))
    assert runs.output("g-0") == b"went\n"


def test_a_task_of_a_job_array_executes_its_members(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "echo {x}"], *range(5))
    name = write_tasks(tmp_path / "b", 1, "key-1", "rig", [[0, 1], [2, 3, 4]])
    monkeypatch.setenv("FAIRMILE_ARRAY_INDEX", "1")
    assert start([str(tmp_path / "b"), "--tasks", name, "--", "env", "-u", "NOTHING", MEMBER]) == 0
    assert {row.id for row in runs.rows(group="g")} == {"g-2", "g-3", "g-4"}
    assert capsys.readouterr().out.splitlines() == ["g-2 done", "g-3 done", "g-4 done"]
    said = json.loads((runs.root / "g-3" / "run.json").read_text())
    assert said["job"] == {"key": "key-1", "system": "rig", "task": 1}
    assert said["argv"][:3] == ["env", "-u", "NOTHING"]
    assert [each["key"] for each in read_tasks(tmp_path / "b")] == ["key-1"]


def test_a_task_may_execute_several_at_once(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "test {x} != 2"], *range(4))
    name = write_tasks(tmp_path / "b", 1, "key-1", "rig", [[0, 1, 2, 3]])
    assert start([str(tmp_path / "b"), "--tasks", name, "--at-once", "2", "--"]) == 1
    assert "g-2 failed: exit code 1" in capsys.readouterr().out
    assert {row.id: row.state for row in runs.rows(group="g")}["g-3"] is RunState.DONE
    assert runs.get("g-3").job.task == 0


def test_a_batch_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start([str(tmp_path / "b"), "--feed", "--"]) == 3
    assert "batch.json" in capsys.readouterr().err


def test_a_member_is_stopped_where_somebody_who_looks_says_so(runs: Runs, tmp_path: Path) -> None:
    frozen(runs, tmp_path / "b", ["sh", "-c", "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"], 1)
    batch = Batch.read(tmp_path / "b")
    looked = iter(["", "", "it goes nowhere"])
    record = batch.execute(batch.members()[0], look=lambda: next(looked, "it goes nowhere"))
    assert record is not None
    assert (record.result.state, record.result.reason) == ("cancelled", "it goes nowhere")
    assert runs.output("g-0").endswith(b"saved\n")


def test_a_copy_that_a_crash_cut_short_is_made_anew(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("all of it\n")
    frozen(runs, tmp_path / "b", ["sh", "-c", "cat *.txt"], 1)
    work = runs.root / "g-0" / "work"
    work.mkdir(parents=True)
    (work / "data.txt").write_text("all")
    os.utime(runs.root / "g-0", (0, 0))  # whoever began it is long gone
    assert states(list(pool(tmp_path / "b", [0], 1))) == {0: "done"}
    assert runs.output("g-0") == b"all of it\n"


def test_data_that_is_too_large_to_be_copied_is_read_where_it_is(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_bytes(b"#" * (65 << 20))
    frozen(runs, tmp_path / "b", ["wc", "-c", "big.txt"], 1)
    list(pool(tmp_path / "b", [0], 1))
    assert runs.output("g-0").split() == [b"%d" % (65 << 20), b"big.txt"]
    assert (runs.root / "g-0" / "work" / "big.txt").is_symlink()
