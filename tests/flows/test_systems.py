"""One flow over this machine, a machine that ssh reaches and a real Slurm: data goes along, nothing runs twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from far_systems import FAR, plain_system
from slurm_cluster import SlurmCluster
from slurm_jobs import system_text
from sweep_making import environ_of, wait_until, workspace_here

from fairmile.jobs.queue import Jobs
from fairmile.workspace import Workspace

PROGRAM = "from fairmile.cli.main import main; main()"
THREE = """\
name: three
steps:
  mesh: {shell: echo mesh >> COUNT; echo 3 > mesh.txt, outputs: mesh.txt}
  solve:
    command: sh solve.sh mesh.txt out-{n}.txt {n}
    over: {n: [1, 2]}
    on: far
    inputs: mesh.txt
    outputs: out-{n}.txt
  train:
    shell: echo train >> COUNT; cat out-1.txt out-2.txt > model.txt; echo loss=0.5
    on: rig/cpu
    inputs: out-*.txt
    outputs: model.txt
    metrics: {loss: {pattern: "loss=([0-9.]+)"}}
  report: {shell: cat model.txt > report.txt, inputs: model.txt, outputs: report.txt}
"""


@pytest.fixture
def workspace(tmp_path: Path, sshd: Any, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with the ssh machine `far` and the cluster `rig`; the person stands in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rig.yaml"
    file.write_text(system_text(slurm_cluster))
    for name, value in slurm_cluster.environ.items():
        monkeypatch.setenv(name, value)
    workspace = workspace_here(tmp_path, plain_system(sshd, tmp_path) + f"  rig: {{file: {file}}}\n")
    # A test wants to know sooner than a scheduler should be asked.
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    Path("solve.sh").write_text(f"echo solve >> {tmp_path}/count; cat $1 > $2; echo $3 >> $2\n")
    Path("three.yaml").write_text(THREE.replace("COUNT", f"{tmp_path}/count"))
    return workspace


def counted(folder: Path) -> Counter[str]:
    return Counter((folder / "count").read_text().split())


def test_a_flow_over_three_places_brings_data_along_and_is_up_to_date_then(
    workspace: Workspace, tmp_path: Path
) -> None:
    status = workspace.flows.run("three.yaml", at_once=2)
    assert status.counts() == {"done": 5}, status.to_dict()
    assert Path("report.txt").read_text() == "3\n1\n3\n2\n"
    assert counted(tmp_path) == {"mesh": 1, "solve": 2, "train": 1}
    run = workspace.runs.get(status.step("train").run)
    assert (run.job is not None and run.job.system, run.metrics["loss"].value) == ("rig", 0.5)
    assert workspace.flows.plan("three.yaml").is_up_to_date
    os.remove("out-1.txt")  # which was made elsewhere
    plan = workspace.flows.plan("three.yaml")
    assert plan.steps["solve[1]"].reason == "output out-1.txt is gone, and in the store"
    workspace.flows.run("three.yaml")
    assert Path("out-1.txt").read_text() == "3\n1\n"
    assert counted(tmp_path) == {"mesh": 1, "solve": 2, "train": 1}


@pytest.mark.parametrize("system", [FAR, "rig"])
def test_jobs_of_a_killed_coordinator_are_picked_up(workspace: Workspace, tmp_path: Path, system: str) -> None:
    Path("flow.yaml").write_text(
        f"steps:\n  slow: {{shell: 'echo slow >> {tmp_path}/count; while ! test -e {tmp_path}/go; do sleep 0.1; done;"
        f" echo 1 > s.txt', on: {system}, outputs: s.txt}}\n"
        f"  last: {{shell: 'echo last >> {tmp_path}/count', inputs: s.txt}}\n"
    )
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", "flow.yaml"]
    process = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "count").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "go").touch()
    assert workspace.flows.run("flow.yaml").counts() == {"done": 2}
    assert counted(tmp_path) == {"slow": 1, "last": 1}


def test_cancelling_a_flow_that_nobody_carries_out_cancels_its_jobs(workspace: Workspace, tmp_path: Path) -> None:
    Path("flow.yaml").write_text(f"steps:\n  slow: {{shell: touch {tmp_path}/began; exec sleep 600, on: rig}}\n")
    argv = [sys.executable, "-c", PROGRAM, "flow", "run", "flow.yaml"]
    process = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
    wait_until((tmp_path / "began").exists, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = workspace.flows.cancel("flow.yaml")
    assert (ended.holder, len(ended.runs)) == ("", 1)
    wait_until(lambda: workspace.flows.status("flow.yaml").step("slow").state == "cancelled")


def test_no_more_steps_than_the_limit_are_on_a_system(workspace: Workspace, tmp_path: Path) -> None:
    Path("flow.yaml").write_text(
        "limits: {far: 1}\nsteps:\n  a:\n"
        f"    shell: test ! -e {tmp_path}/busy && touch {tmp_path}/busy && sleep 0.3 && rm {tmp_path}/busy\n"
        "    over: {n: 1..3}\n    on: far\n"
    )
    assert workspace.flows.run("flow.yaml").counts() == {"done": 3}
