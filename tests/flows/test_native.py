"""A part of a flow on one scheduler is submitted at once: nobody has to stay, and any later call collects it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from far_systems import slurm_system
from slurm_cluster import SlurmCluster
from ssh_server import SshServer
from sweep_making import environ_of, wait_until, workspace_here, workspace_on

from fairmile.jobs.queue import Jobs
from fairmile.workspace import Workspace

PROGRAM = "from fairmile.cli.main import main; main()"
# The first step waits for `go`, so that all others are queued behind it.
STEPS = """\
name: native
steps:
  mesh: {shell: echo mesh >> ROOT/count; echo 3 > mesh.txt, outputs: mesh.txt}
  solve:
    shell: "echo solve >> ROOT/count; while ! test -e ROOT/go; do sleep 0.1; done; cat mesh.txt > s.txt"
    on: SYSTEM
    inputs: mesh.txt
    outputs: s.txt
  part: {shell: "echo part >> ROOT/count; cat s.txt > p{n}.txt; echo {n} >> p{n}.txt", over: {n: [1, 2]}, on: SYSTEM,
         inputs: s.txt, outputs: "p{n}.txt"}
  join: {shell: "echo join >> ROOT/count; cat p1.txt p2.txt > j.txt", on: SYSTEM, inputs: "p*.txt", outputs: j.txt}
  report: {shell: "echo report >> ROOT/count; cat j.txt > report.txt", inputs: j.txt, outputs: report.txt}
"""


@pytest.fixture
def rig(tmp_path: Path, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return workspace_on(slurm_cluster, tmp_path, monkeypatch)


@pytest.fixture
def far(tmp_path: Path, slurm_cluster: SlurmCluster, sshd: SshServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A laptop: the cluster is behind ssh, and sees none of its files."""
    monkeypatch.chdir(tmp_path)
    workspace = workspace_here(tmp_path, slurm_system(sshd, slurm_cluster, tmp_path))
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    return workspace


def write(text: str, tmp_path: Path, system: str) -> Path:
    file = tmp_path / "native.yaml"
    file.write_text(text.replace("ROOT", str(tmp_path)).replace("SYSTEM", system))
    return file


def collected(workspace: Workspace, file: Path, state: str, *steps: str) -> Callable[[], bool]:
    def is_so() -> bool:
        status = workspace.flows.status(file)
        return all(status.step(each).state == state for each in steps)

    return is_so


@pytest.mark.parametrize("system", ["rig", "far"])
def test_who_submitted_a_flow_may_leave_and_a_later_call_collects_it(
    system: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    workspace: Workspace = request.getfixturevalue(system)
    file = write(STEPS, tmp_path, system)
    reasons = {name: step.reason for name, step in workspace.flows.plan(file, native=True).steps.items()}
    assert reasons["part[1]"] == reasons["join"] == "never done; submitted ahead"
    assert (reasons["solve"], reasons["report"]) == ("never done", "never done")
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", str(file), "--native"]
    left = subprocess.run(argv, env=environ_of(tmp_path), capture_output=True, text=True, timeout=500)
    assert left.returncode == 0, left.stderr
    status = workspace.flows.status(file)
    assert [status.step(each).state for each in ("part[1]", "join", "report")] == ["queued", "queued", "waiting"]
    (tmp_path / "go").touch()
    wait_until(collected(workspace, file, "done", "solve", "part[1]", "part[2]", "join"))
    assert workspace.flows.run(file).counts() == {"done": 6}
    assert Path("report.txt").read_text() == "3\n1\n3\n2\n"
    assert Counter((tmp_path / "count").read_text().split()) == {
        **{"mesh": 1, "solve": 1, "part": 2, "join": 1, "report": 1}
    }
    assert workspace.flows.plan(file).is_up_to_date
    join = workspace.runs.get(workspace.flows.status(file).step("join").run)
    assert all(each.sha256 for each in join.captured.inputs.values())
    assert len(join.captured.inputs) == 2


def test_a_coordinator_killed_after_the_submission_loses_nothing(rig: Workspace, tmp_path: Path) -> None:
    local = f"  slow: {{shell: 'touch {tmp_path}/began; exec sleep 600'}}\n"  # keeps the coordinator
    file = write(STEPS + local, tmp_path, "rig")
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", str(file), "--native", "-j", "2"]
    process = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
    wait_until(lambda: len(rig.jobs.ls(live=True)) == 4, process)
    wait_until((tmp_path / "began").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "go").touch()
    file = write(STEPS, tmp_path, "rig")
    assert rig.flows.run(file).counts() == {"done": 6}
    assert Counter((tmp_path / "count").read_text().split()) == {
        **{"mesh": 1, "solve": 1, "part": 2, "join": 1, "report": 1}
    }


@pytest.mark.thorough
def test_steps_that_a_limit_holds_back_keep_nobody(rig: Workspace, tmp_path: Path) -> None:
    held = "while ! test -e ROOT/go; do sleep 0.1; done; echo {n} >> ROOT/count"
    file = write(
        f'limits: {{SYSTEM: 1}}\nsteps:\n  a: {{shell: "{held}", over: {{n: [1, 2]}}, on: SYSTEM}}\n', tmp_path, "rig"
    )
    rig.flows.run(file, native=True)
    assert len(rig.jobs.ls(live=True)) == 1
    (tmp_path / "go").touch()
    assert rig.flows.run(file).counts() == {"done": 2}
    assert sorted((tmp_path / "count").read_text().split()) == ["1", "2"]


def test_what_comes_after_a_failure_is_dropped_by_the_scheduler_and_left_out(rig: Workspace, tmp_path: Path) -> None:
    file = write(
        "steps:\n  a: {shell: exit 3, on: SYSTEM}\n  b: {shell: touch ROOT/b, after: a, on: SYSTEM}\n"
        "  c: {shell: touch ROOT/c, after: b, on: SYSTEM}\n"
        "  d: {shell: touch ROOT/d, after: a, when: always, on: SYSTEM}\n",
        tmp_path,
        "rig",
    )
    rig.flows.run(file, native=True)
    wait_until(collected(rig, file, "done", "d"))
    wait_until(lambda: rig.flows.status(file).is_over)
    for status in (rig.flows.status(file), rig.flows.run(file)):
        steps = {step.name: (step.state, step.reason) for step in status.steps}
        assert steps["a"] == ("failed", "exit code 3")
        assert steps["b"] == ("left out", "`a` failed")
        assert steps["c"] == ("left out", "`b` is left out")
        assert steps["d"][0] == "done"
    assert (tmp_path / "d").exists()
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "c").exists()


def test_cancelling_a_flow_that_was_left_cancels_all_its_jobs(rig: Workspace, tmp_path: Path) -> None:
    file = write(STEPS, tmp_path, "rig")
    rig.flows.run(file, native=True)
    assert len(rig.flows.cancel(file).runs) == 4
    wait_until(lambda: not rig.jobs.ls(live=True))
    states = {step.name: step.state for step in rig.flows.status(file).steps}
    assert states["solve"] == "cancelled"
    assert "queued" not in states.values()


def test_a_plan_says_what_cannot_go_ahead(rig: Workspace, tmp_path: Path) -> None:
    file = write(
        "steps:\n"
        "  a: {shell: echo x=1, on: rig, outputs: '*.txt', metrics: {x: {pattern: 'x=([0-9.]+)'}}}\n"
        "  condition: {command: 'true', on: rig, when: a.x > 0}\n"
        "  mend: {command: 'true', on: rig, after: a, when: failed}\n"
        "  each: {shell: 'cat {f}', on: rig, over: {f: {glob: '*.txt'}}}\n"
        "  again: {command: 'true', on: rig, after: a, retries: 2}\n"
        "  after-again: {command: 'true', on: rig, after: again}\n"
        "  here: {command: 'true', after: a}\n"
        "  mixed: {command: 'true', on: rig, after: [a, here]}\n",
        tmp_path,
        "rig",
    )
    reasons = {name: step.reason for name, step in rig.flows.plan(file, native=True).steps.items()}
    assert reasons == {
        "a": "never done",
        "condition": "unknown until `a` has run; not submitted ahead: `when` needs metrics of `a`",
        "mend": "only if `a` fails; not submitted ahead: it runs only if `a` fails",
        "each": "unknown until `a` has run; not submitted ahead: how often it is repeated is unknown until `a` has run",
        "again": "never done; submitted ahead",
        "after-again": "never done; not submitted ahead: `again` may be retried",
        "here": "never done",
        "mixed": "never done; submitted ahead once `here` has ended",
    }


def test_short_steps_run_in_one_allocation(rig: Workspace, tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    file = write(
        "pilots: 1\nsteps:\n"
        "  many: {shell: 'echo {n} > m{n}.txt; echo $SLURM_JOB_ID >> ROOT/jobs', over: {n: 1..50}, on: SYSTEM,\n"
        "         outputs: 'm{n}.txt', resources: {cpus_per_task: 2, memory_gib: 1}}\n"
        "  all: {shell: cat m*.txt | wc -l > all.txt, inputs: 'm*.txt', outputs: all.txt}\n",
        tmp_path,
        "rig",
    )
    status = rig.flows.run(file)
    assert status.counts() == {"done": 51}, status.to_dict()
    assert Path("all.txt").read_text().split() == ["50"]
    jobs = Counter((tmp_path / "jobs").read_text().split())
    assert (len(jobs), sum(jobs.values())) == (1, 50)
    wait_until(
        lambda: not slurm_cluster.run("squeue", "-h", "-t", "R,PD").stdout.strip()
    )  # the allocation is given back
    assert rig.flows.plan(file).is_up_to_date


@pytest.mark.thorough
def test_steps_in_pilot_jobs_whose_coordinator_was_killed_are_cancelled(rig: Workspace, tmp_path: Path) -> None:
    file = write(
        "pilots: 1\nsteps:\n  slow: {shell: 'echo 1 >> ROOT/began; exec sleep 600', on: SYSTEM,\n"
        "         resources: {cpus_per_task: 1, memory_gib: 1}}\n",
        tmp_path,
        "rig",
    )
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", str(file)]
    process = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "began").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(rig.flows.cancel(file).runs) == 1
    wait_until(lambda: rig.flows.status(file).step("slow").state == "cancelled")
