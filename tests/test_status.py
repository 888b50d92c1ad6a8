"""What runs, how far it is and when it may end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairmile.status import Activity, live_jobs
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    return Workspace.open(environ=environ, cwd=tmp_path)


@pytest.fixture
def running(workspace: Workspace, tmp_path: Path) -> Iterator[str]:
    """A run that has printed how far it is, and waits."""
    gate, program = tmp_path / "gate", tmp_path / "train.py"
    program.write_text(
        "import os, sys, time\nprint('Epoch 1/4'); print('Epoch 2/4', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmile", "run", "--name", "tides", "--", sys.executable, str(program), str(gate)],
        env=dict(workspace.environ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if b"2/4" in line:
            break
    (folder,) = (workspace.home / "runs").glob("tides-*")
    while b"2/4" not in (folder / "output.log").read_bytes():
        time.sleep(0.05)
    yield folder.name
    gate.touch()
    process.stdout.close()
    process.wait()


def active(workspace: Workspace) -> list[Activity]:
    return list(workspace.status(on_problem=pytest.fail).active)


def test_a_run_tells_how_far_it_is_and_when_it_will_end(workspace: Workspace, running: str) -> None:
    (activity,) = active(workspace)
    assert (activity.kind, activity.id, activity.state) == ("run", running, "running")
    assert (activity.progress, activity.progress_text, activity.expected_from) == (0.5, "50%", "progress")
    assert activity.started is not None and activity.expected_end is not None
    # Half of it has taken until now.
    assert activity.expected_end == pytest.approx(activity.started + 2 * (time.time() - activity.started), abs=60)


def test_steps_that_a_program_logs_count_towards_its_parameter(workspace: Workspace, running: str) -> None:
    folder = workspace.home / "runs" / running
    record = json.loads((folder / "run.json").read_text())
    record["spec"]["params"] = {"epochs": 8}
    (folder / "run.json").write_text(json.dumps(record))
    with open(folder / "events.jsonl", "a") as events:
        for step in (1, 2):
            events.write(json.dumps({"log": {"loss": 0.5}, "step": step, "at": step, "p": 1}) + "\n")
    (activity,) = active(workspace)
    assert activity.progress == 0.25


def test_without_progress_the_prediction_tells_the_end(workspace: Workspace, running: str) -> None:
    folder = workspace.home / "runs" / running
    record = json.loads((folder / "run.json").read_text())
    record["prediction"] = {"elapsed_s": {"value": 3600.0, "low": 1800.0, "high": 7200.0, "source": "history"}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "output.log").write_text("no numbers\n")
    (activity,) = active(workspace)
    assert (activity.progress, activity.expected_from) == (None, "prediction")
    assert activity.expected_end == pytest.approx((activity.started or 0) + 3600)


def test_a_job_ends_at_its_time_limit_at_the_latest(workspace: Workspace, tmp_path: Path) -> None:
    from fairmile.jobs.spec import JobSpec, Resources

    job = workspace.jobs.submit(JobSpec(argv=("sleep", "600"), resources=Resources(time_s=3600)))
    try:
        while workspace.jobs.get(job.id).state != "running":
            time.sleep(0.1)
        (activity,) = active(workspace)
        assert (activity.kind, activity.id, activity.expected_from) == ("job", job.id, "time limit")
        assert activity.expected_end == pytest.approx((activity.started or 0) + 3600)
    finally:
        workspace.jobs.cancel([job.id])
        workspace.jobs.wait([job.id])
    assert active(workspace) == []
    assert live_jobs(workspace.home / "jobs") == []


def test_a_transfer_tells_its_bytes_and_its_process(workspace: Workspace) -> None:
    pools = workspace.store.pools
    (pool,) = pools
    with pools.reserve(pool, 1000, "dataset/tides") as room:
        room.shrink(250)
        (activity,) = active(workspace)
    assert (activity.kind, activity.id, activity.progress) == ("transfer", "dataset/tides", 0.25)
    assert str(os.getpid()) in activity.progress_text
    assert activity.expected_from == "progress"
    assert active(workspace) == []


def test_a_sweep_stands_for_its_points(workspace: Workspace, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = [sys.executable, "-m", "fairmile", "sweep", "run", "-p", "n=1,2,3", "--name", "parts", "--"]
    wait = f"[ {{n}} = 1 ] || while [ ! -e {gate} ]; do sleep 0.05; done"
    process = subprocess.Popen(
        [*command, "sh", "-c", wait],
        env=dict(workspace.environ),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while "1 done, 1 running of 3" not in [each.progress_text for each in active(workspace)]:
            assert process.poll() is None
            time.sleep(0.1)
        (activity,) = active(workspace)
        assert (activity.kind, activity.state, activity.expected_from) == ("sweep", "running", "progress")
        assert activity.progress == pytest.approx(1 / 3)
    finally:
        gate.touch()
        process.wait()
    status = workspace.status()
    assert status.active == ()
    assert [row.state for row in status.last] == ["done"] * 3


def test_a_flow_tells_how_many_steps_have_ended(workspace: Workspace, tmp_path: Path) -> None:
    gate, flow = tmp_path / "gate", tmp_path / "tides.yaml"
    wait = f"sh -c 'while [ ! -e {gate} ]; do sleep 0.05; done'"
    flow.write_text(f'name: tides\nsteps:\n  one: {{command: "true"}}\n  two: {{command: "{wait}", after: one}}\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmile", "flow", "run", str(flow)],
        env=dict(workspace.environ),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while "1 of 2 steps ended, 1 running" not in [each.progress_text for each in active(workspace)]:
            assert process.poll() is None
            time.sleep(0.1)
        (activity,) = active(workspace)  # its runs are not listed beside it
        assert (activity.kind, activity.state, activity.progress) == ("flow", "running", 0.5)
        assert activity.expected_from == "progress"
    finally:
        gate.touch()
        process.wait()
    assert active(workspace) == []
