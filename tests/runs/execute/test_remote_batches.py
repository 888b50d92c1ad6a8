"""Batches on machines that ssh reaches, without Fairmile there: a plain one, and one with a real Slurm."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from batch_pool import pool
from far_systems import FAR, plain_system, slurm_system
from sweep_making import workspace_here

from fairmile.base.errors import Integrity, SystemFailure, Transient, Unsupported, UsageError
from fairmile.base.files import Holder
from fairmile.jobs.folders import RemoteJobFolders
from fairmile.jobs.queue import Jobs
from fairmile.runs.execute import remote_batches as batches_far
from fairmile.runs.execute.batches import ArrayState, Frozen, write_tasks
from fairmile.runs.execute.remote_batches import RemoteBatches
from fairmile.runs.plan import RunPlan
from fairmile.runs.record.layout import open_arrays
from fairmile.runs.record.record import JobReference
from fairmile.runs.record.run import RunState
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

PROGRAM = """\
import importlib.util, os, sys

print(sys.argv[1], open(sys.argv[2]).read(), sorted(os.listdir(sys.argv[3])))
print(*sys.argv[2:], os.environ["FAIRMILE_INPUT_ONE"], os.getcwd())
print(importlib.util.find_spec("fairmile"))
"""


def workspace_far(folder: Path, systems: str) -> Workspace:
    workspace = workspace_here(folder, systems)
    # A test wants to know sooner than a scheduler should be asked.
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    return workspace


@pytest.fixture
def box(tmp_path: Path, sshd: Any, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs of a workspace whose system `far` is a machine without a scheduler."""
    monkeypatch.chdir(tmp_path)
    return workspace_far(tmp_path, plain_system(sshd, tmp_path)).runs


@pytest.fixture(params=["a plain machine", "a cluster"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, sshd: Any, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs whose system `far` is a machine without a scheduler, and one with Slurm."""
    if request.param == "a plain machine":
        found: Runs = request.getfixturevalue("box")
        return found
    monkeypatch.chdir(tmp_path)
    cluster = request.getfixturevalue("slurm_cluster")
    return workspace_far(tmp_path, slurm_system(sshd, cluster, tmp_path)).runs


def frozen(runs: Runs, folder: Path, argv: Sequence[str], *params: object, **fields: Any) -> Frozen:
    """Return a batch for `far` with a member for each value of the parameter `x`."""
    folder.mkdir()
    plan = runs.plan(list(argv), name="try", group="g", params={"x": ""}, used=("x",), system=FAR, watch_s=0, **fields)
    made = runs.freeze(plan, folder)
    made.write_members(made.member(f"g-{n}", params={"x": each}) for n, each in enumerate(params))
    return made


def submitted(
    runs: Runs, batch: Frozen, tasks: Sequence[Sequence[int]], *, number: int = 1, more: Sequence[str] = ()
) -> str:
    key = f"{batch.folder.name}-{number}"
    file = write_tasks(batch.folder, number, key, FAR, tasks)
    words = ["-m", "fairmile.runs.execute.worker", str(batch.folder), "--tasks", file, *more]
    runs.arrays.submit(batch, words, len(tasks), key, resources={"time_s": 600})
    return key


def awaited(runs: Runs, key: str, until: Callable[[ArrayState], bool] = lambda array: array.is_over) -> ArrayState:
    """Return where a job array stands once that is so."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        array = runs.arrays.get(key)
        assert array is not None
        if until(array):
            return array
        time.sleep(0.2)
    raise AssertionError(f"waited in vain for {key}: {runs.arrays.get(key)}")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def over_there(tmp_path: Path) -> Path:
    """Return the folder of the one batch on the other machine."""
    (found,) = (tmp_path / FAR / ".batches").iterdir()
    return found


def test_code_and_inputs_travel_and_records_come_back(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").touch()
    for name, text in (("one.txt", "first"), ("program.py", PROGRAM)):
        (tmp_path / name).write_text(text)
    argv = ["python3", "program.py", "{x}", "{inputs.one}", "{inputs.many}", "{run}", "{source}"]
    inputs = {"one": {"path": "one.txt"}, "many": {"path": "data"}}
    batch = frozen(runs, tmp_path / "b", argv, *range(6), inputs=inputs, env={"API_TOKEN": "s3cr3t-s3cr3t"})
    key = submitted(runs, batch, [[0, 1, 2], [3], [4, 5]])
    for name in ("one.txt", "program.py", "data/a.txt"):  # nothing is read from here any more
        (tmp_path / name).unlink()
    assert awaited(runs, key).ended == {0, 1, 2}
    there = over_there(tmp_path)
    for n in range(6):
        run = runs.get(f"g-{n}")
        assert run.state is RunState.DONE, (run.result, runs.output(run.id))
        said, paths, module = runs.output(run.id).decode().splitlines()
        assert (said, module) == (f"{n} first ['a.txt']", "None")
        one, many, folder, source, variable, here = paths.split()
        assert (one, many) == (f"{there}/inputs/one", f"{there}/inputs/many")
        assert (folder, source) == (f"{there}/runs/g-{n}", f"{there}/runs/g-{n}/work")
        assert (variable, here) == (one, source)
        assert (run.folder / "ro-crate-metadata.json").exists()
        assert not (run.folder / "work").exists()
        assert "s3cr3t" not in (run.folder / "run.json").read_text()
    assert len({runs.get(f"g-{n}").identity for n in range(6)}) == 6
    assert runs.get("g-4").job == JobReference(key=key, system=FAR, task=2)
    assert (there / "batch.json").stat().st_mode & 0o077 == 0
    assert there.stat().st_mode & 0o077 == 0
    assert open_arrays(runs.root) == []
    assert [file.name for file in there.glob(".bring*")] == []


def test_records_come_while_other_tasks_still_run(box: Runs, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    hang.touch()
    batch = frozen(box, tmp_path / "b", ["sh", "-c", f"test {{x}} = go || while test -e {hang}; do sleep 0.1; done"])
    batch.write_members(batch.member(f"g-{n}", params={"x": x}) for n, x in enumerate(["go", "stay"]))
    key = submitted(box, batch, [[0], [1]])
    array = awaited(box, key, lambda array: bool(array.ended))
    assert (array.ended, array.is_over) == ({0}, False)
    assert box.get("g-0").state is RunState.DONE
    assert [row.id for row in box.rows()] == ["g-0"]
    hang.unlink()
    assert awaited(box, key).ended == {0, 1}
    assert box.get("g-1").state is RunState.DONE


def test_what_failed_says_why_and_goes_on_in_its_folder(box: Runs, tmp_path: Path) -> None:
    program = 'if test {x} = good -o -e half; then echo "went on $FAIRMILE_RESUME"; else touch half; exit 5; fi'
    batch = frozen(box, tmp_path / "b", ["sh", "-c", program], "good", "bad")
    awaited(box, submitted(box, batch, [[0, 1]]))
    failed = box.get("g-1")
    assert (failed.state, failed.result.reason) == (RunState.FAILED, "exit code 5")
    awaited(box, submitted(box, batch, [[0, 1]], number=2))
    again = box.get("g-1")
    assert (again.state, len(again.record.attempts)) == (RunState.DONE, 2)
    assert box.output("g-1") == b"went on 1\n"
    assert len(box.get("g-0").record.attempts) == 1  # what is done is not done again


def test_a_task_that_is_killed_has_left_the_records_of_what_it_ended(runs: Runs, tmp_path: Path) -> None:
    kill = "test {x} != die || { kill -KILL $PPID; sleep 1; }"
    batch = frozen(runs, tmp_path / "b", ["sh", "-c", kill], "live", "die", "live")
    awaited(runs, submitted(runs, batch, [[0, 1, 2]]))
    runs.refresh()
    assert {row.id: row.state for row in runs.rows()} == {"g-0": RunState.DONE, "g-1": RunState.INTERRUPTED}
    batch.write_members(batch.member(f"g-{n}", params={"x": "live"}) for n in range(3))
    awaited(runs, submitted(runs, batch, [[1, 2]], number=2))
    assert {row.state for row in runs.rows()} == {RunState.DONE}


def test_a_task_may_execute_several_at_once(box: Runs, tmp_path: Path) -> None:
    batch = frozen(box, tmp_path / "b", ["sh", "-c", "test {x} != 2"], *range(5))
    awaited(box, submitted(box, batch, [[0, 1, 2, 3, 4]], more=["--at-once", "2"]))
    states = {row.id: row.state for row in box.rows()}
    assert states == {f"g-{n}": RunState.FAILED if n == 2 else RunState.DONE for n in range(5)}


def test_a_task_that_dies_before_it_begins_is_told_by_its_scheduler(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_far, "_START_TEXT", batches_far._START_TEXT.replace("python3", "no-python"))
    batch = frozen(runs, tmp_path / "b", ["true"], 1, 2)
    awaited(runs, submitted(runs, batch, [[0], [1]]))
    for n in range(2):
        run = runs.get(f"g-{n}")
        assert run.state is RunState.FAILED
        assert "no Python 3.11 or later" in run.result.reason
        assert run.captured.recorded_by == f"the scheduler of {FAR}"
    assert runs.get("g-0").identity != runs.get("g-1").identity


def test_what_is_cancelled_leaves_what_never_began_to_the_next_job(runs: Runs, tmp_path: Path) -> None:
    flag = tmp_path / "began"
    batch = frozen(runs, tmp_path / "b", ["sh", "-c", f"test {{x}} = 0 || {{ touch {flag}; sleep 600; }}"], 0, 1, 2)
    key = submitted(runs, batch, [[0, 1, 2]])
    wait_for(flag.exists)
    runs.arrays.cancel(key)
    awaited(runs, key)
    runs.refresh()
    assert {row.id: row.state for row in runs.rows()} == {"g-0": RunState.DONE, "g-1": RunState.CANCELLED}


def test_a_connection_that_breaks_while_records_come_costs_nothing(
    box: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = frozen(box, tmp_path / "b", ["echo", "{x}"], 1)
    key = submitted(box, batch, [[0]])

    tried = []

    def cut(*_: object) -> None:
        tried.append(1)
        raise Transient("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteJobFolders, "bring", cut)
        wait_for(lambda: any((tmp_path / FAR).glob("try-*/ended.0")))
        for _ in range(3):
            array = box.arrays.get(key)
            assert array is not None and not array.is_over and not array.ended
    assert tried
    assert awaited(box, key).ended == {0}
    assert box.output("g-0") == b"1\n"


def test_of_a_run_that_left_too_much_only_the_record_comes(
    box: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_far, "_MOST_BYTES", 100_000)
    batch = frozen(box, tmp_path / "b", ["sh", "-c", "test {x} = 1 || head -c 200000 /dev/zero; echo"], 0, 1)
    awaited(box, submitted(box, batch, [[0, 1]]))
    assert box.output("g-1") == b"\n"
    large = box.get("g-0")
    assert large.state is RunState.DONE
    assert not (large.folder / "output.log").exists()
    assert str(over_there(tmp_path) / "runs" / "g-0") in large.result.notes[0]


def test_a_batch_that_did_not_arrive_is_sent_again(box: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = frozen(box, tmp_path / "b", ["echo", "{x}"], 1)
    with monkeypatch.context() as patch:
        patch.setattr(batches_far, "_UNPACK", "echo 'no room' >&2; exit 1")
        with pytest.raises(SystemFailure, match="no room"):
            submitted(box, batch, [[0]])
    assert box.arrays.get("b-1") is None
    assert open_arrays(box.root) == []
    awaited(box, submitted(box, batch, [[0]]))
    assert box.output("g-0") == b"1\n"


def test_of_two_that_submit_a_batch_at_once_one_sends_it(
    box: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task of the one already runs is not copied over by the other."""
    batch = frozen(box, tmp_path / "batch", ["echo", "{x}"], 1, 2)
    sent, both = [], threading.Barrier(2)
    make = RemoteJobFolders.make

    def slow(self: RemoteJobFolders, job: str, *arguments: Any, **options: Any) -> str:
        if job.startswith(".batches/"):
            sent.append(job)
            time.sleep(0.3)
        return make(self, job, *arguments, **options)

    def submit(number: int) -> str:
        both.wait()
        return submitted(box, batch, [[number]], number=number + 1)

    monkeypatch.setattr(RemoteJobFolders, "make", slow)
    with ThreadPoolExecutor(2) as threads:
        keys = list(threads.map(submit, range(2)))
    assert len(sent) == 1
    for key in keys:
        awaited(box, key)
    assert [box.get(f"g-{number}").state for number in range(2)] == [RunState.DONE] * 2


def test_what_was_removed_over_there_is_left_to_the_next_job(box: Runs, tmp_path: Path) -> None:
    batch = frozen(box, tmp_path / "b", ["echo", "{x}"], 1)
    key = submitted(box, batch, [[0]])
    wait_for(lambda: any((tmp_path / FAR).glob("try-*/ended.0")))
    over_there(tmp_path).rename(tmp_path / "removed")
    awaited(box, key)
    assert box.rows() == []
    awaited(box, submitted(box, batch, [[0]], number=2))
    assert box.output("g-0") == b"1\n"


@pytest.mark.parametrize(("travelled", "state"), [(True, "done"), (False, "taken")])
def test_what_a_node_that_is_gone_was_at_goes_on_where_only_its_controller_knows(
    box: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, travelled: bool, state: str
) -> None:
    batch = frozen(box, tmp_path / "b", ["true"], 1)
    said = json.loads((batch.folder / "batch.json").read_bytes())
    (batch.folder / "batch.json").write_text(json.dumps({**said, "travelled": travelled}))
    holder = Holder("t0ken", "another-node", 77, "place", "1").text()
    record = {**said["document"], "id": "g-0", "created": 1.0, "state": "running", "result": None}
    record |= {"job": {"key": "b-1", "system": FAR, "task": 0}, "attempts": [{"started": 1.0, "holder": holder}]}
    (box.root / "g-0").mkdir()
    (box.root / "g-0" / "run.json").write_text(json.dumps(record))
    monkeypatch.setenv("FAIRMILE_BATCH_JOB", json.dumps({"key": "b-2", "system": FAR, "task": 0}))
    assert [each.state for each in pool(batch.folder, [0], 1)] == [state]


def test_it_can_be_executed_here_all_the_same(box: Runs, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("first\n")
    batch = frozen(box, tmp_path / "b", ["cat", "{inputs.one}"], 1, inputs={"one": {"path": "one.txt"}})
    assert [each.state for each in pool(batch.folder, [0], 1)] == ["done"]
    assert box.output("g-0") == b"first\n"


class TestWhatComes:
    """What an archive from elsewhere may do here."""

    @pytest.fixture
    def unpack(self, tmp_path: Path) -> Callable[..., None]:
        (tmp_path / "runs").mkdir()

        def unpack(**files: bytes) -> None:
            pack = tmp_path / "pack"
            with tarfile.open(pack, "w:gz") as archive:
                for name, data in files.items():
                    entry = tarfile.TarInfo(name.replace("__", "/"))
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
                link = tarfile.TarInfo("g-0/output.log")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(link)
            RemoteBatches(tmp_path / "runs", None)._unpack(pack, frozenset({"g-0"}), "k", "far", "")  # type: ignore[arg-type]

        return unpack

    def test_only_files_of_the_runs_that_were_asked_for_are_taken(
        self, unpack: Callable[..., None], tmp_path: Path
    ) -> None:
        record = json.dumps({"id": "g-0", "spec": {}}).encode()
        names = ("..__evil", "__tmp__evil", "g-1__run.json", "g-0__work__x", "g-0__..__evil", "g-0__program")
        unpack(**dict.fromkeys(names, b"evil"), **{"g-0__run.json": record, "g-0__events-1.jsonl": b"{}\n"})
        assert sorted(os.listdir(tmp_path)) == ["pack", "runs"]
        assert os.listdir(tmp_path / "runs") == ["g-0"]
        assert sorted(os.listdir(tmp_path / "runs" / "g-0")) == ["events-1.jsonl", "run.json"]

    def test_a_record_that_another_task_still_writes_is_left_to_that_task(
        self, unpack: Callable[..., None], tmp_path: Path
    ) -> None:
        record = {"id": "g-0", "spec": {}, "state": "running"}
        for key, is_taken in (("other", False), ("k", True)):
            job = {"key": key, "system": "far", "task": 0}
            unpack(**{"g-0__run.json": json.dumps({**record, "job": job}).encode()})
            assert (tmp_path / "runs" / "g-0" / "run.json").exists() == is_taken

    def test_a_record_of_another_run_is_refused(self, unpack: Callable[..., None]) -> None:
        with pytest.raises(Integrity, match="the record of another run"):
            unpack(**{"g-0__run.json": b'{"id": "g-7", "spec": {}}'})
        with pytest.raises(Integrity, match="cannot be read"):
            unpack(**{"g-0__run.json": b"[]"})

    def test_more_than_was_said_is_refused(self, unpack: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches_far, "_MOST_BYTES", 1000)
        with pytest.raises(Integrity, match="larger"):
            unpack(**{"g-0__events.jsonl": b"#" * 2000})

    def test_a_damaged_archive_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "pack").write_bytes(b"\x1f\x8bnothing")
        with pytest.raises(Integrity, match="damaged"):
            RemoteBatches(tmp_path, None)._unpack(tmp_path / "pack", frozenset(), "", "far", "")  # type: ignore[arg-type]


def test_an_environment_of_this_machine_is_refused(box: Runs, tmp_path: Path) -> None:
    plan = RunPlan(RunSpec(argv=("true",), system=FAR, environment="torch"), ())
    with pytest.raises(UsageError, match="'torch' is on this machine, the job goes to far"):
        box.freeze(plan, tmp_path)


def test_what_needs_more_than_the_worker_is_refused(box: Runs, tmp_path: Path) -> None:
    batch = frozen(box, tmp_path / "b", ["true"], 1)
    with pytest.raises(Unsupported, match="reached over ssh"):
        box.arrays.submit(batch, ["-m", "fairmile.sweeps.tuning.study_worker", "b", "--job", "k"], 1, "k")
    assert box.arrays.get("k") is None


def test_any_machine_that_ssh_knows_will_do(
    tmp_path: Path, sshd: Any, monkeypatch: pytest.MonkeyPatch, box: Runs
) -> None:
    wrapped = tmp_path / "bin" / "ssh"
    wrapped.parent.mkdir()
    wrapped.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {sshd.config} "$@"\n')
    wrapped.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapped.parent}:{os.environ['PATH']}")
    system = f"ssh://there{tmp_path / FAR}"
    (tmp_path / "b").mkdir()
    batch = box.freeze(box.plan(["echo", "{x}"], name="try", params={"x": 7}, system=system), tmp_path / "b")
    batch.write_members([batch.member("g-0")])
    file = write_tasks(batch.folder, 1, "b-1", system, [[0]])
    box.arrays.submit(batch, ["-m", "fairmile.runs.execute.worker", str(batch.folder), "--tasks", file], 1, "b-1")
    awaited(box, "b-1")
    assert box.output("g-0") == b"7\n"
