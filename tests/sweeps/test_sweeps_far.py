"""Sweeps on machines that ssh reaches, without Fairmile there: a plain one, and one with a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from far_systems import FAR, plain_system, slurm_system
from sweep_making import environ_of, wait_until, workspace_here

from fairmile.jobs.queue import Jobs
from fairmile.workspace import Workspace

FAIRMILE = "from fairmile.cli.main import main; main()"
PROGRAM = """\
import importlib.util, os, sys, time

factor = int(open(sys.argv[1]).read())
with open(os.path.join(sys.argv[4], "count"), "a") as file:
    file.write("once\\n")
while sys.argv[2] == "3" and not os.path.exists(sys.argv[5]):
    time.sleep(0.05)
if sys.argv[2:4] == ["2", "7"]:
    sys.exit("the seventh of the second")
print("loss=%d" % (factor * int(sys.argv[2]) * int(sys.argv[3])), importlib.util.find_spec("fairmile"))
"""
SWEEP = """\
name: tides
command: python3 program.py {inputs.factor} {a} {b} {run} GO
inputs: {factor: {path: factor.txt}}
axes: {a: [1, 2, 3], b: 'range(1, 11)'}
metrics: {loss: {pattern: "loss=([0-9]+)"}}
every: 0
"""


@pytest.fixture(params=["a plain machine", "a cluster"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path, sshd: Any, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    if request.param == "a plain machine":
        systems = plain_system(sshd, tmp_path)
    else:
        systems = slurm_system(sshd, request.getfixturevalue("slurm_cluster"), tmp_path)
    workspace = workspace_here(tmp_path, systems)
    # A test wants to know sooner than a scheduler should be asked.
    workspace.__dict__["jobs"] = Jobs(workspace.home / "jobs", workspace.systems, ask_every_s=1.0)
    return workspace


@pytest.mark.thorough
def test_thirty_points_survive_the_death_of_who_submitted_them(workspace: Workspace, tmp_path: Path) -> None:
    go = tmp_path / "go"  # the last third waits for it, so that the death comes in the middle
    for name, text in (("sweep.yaml", SWEEP.replace("GO", str(go))), ("program.py", PROGRAM), ("factor.txt", "10")):
        (tmp_path / name).write_text(text)
    sweeps, runs = workspace.sweeps, workspace.runs
    definition, source = sweeps.read([tmp_path / "sweep.yaml"])
    sweep = sweeps.create(definition, source, system=FAR, resources={"memory_gib": 0.2})
    (tmp_path / "program.py").unlink()  # it was frozen
    argv = [sys.executable, "-c", FAIRMILE, "sweep", "run", sweep.id, "--pack", "3"]
    controller = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_until(lambda: len(list(runs.root.glob(f"{sweep.id}-*"))) >= 6, controller)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    before = {path.name for path in runs.root.glob(f"{sweep.id}-*")}
    assert 6 <= len(before) < 30
    go.touch()
    assert sweeps.submit(sweep, pack=3) == []  # all of it is in hand
    found = sweeps.wait(sweep)
    assert Counter(each.state for each in found) == {"done": 29, "failed": 1}, found
    (failed,) = (each for each in found if each.state == "failed")
    assert (failed.values, failed.reason) == ({"a": 2, "b": 7}, "exit code 1")
    assert runs.output(failed.run) == b"the seventh of the second\n"
    done = [each for each in found if each.state == "done"]
    assert all(each.metrics["loss"] == 10 * int(each.values["a"]) * int(each.values["b"]) for each in done)
    assert all(runs.output(each.run).endswith(b" None\n") for each in done)
    assert len({runs.get(each.run).identity for each in found}) == 30
    (there,) = (tmp_path / FAR / ".batches").iterdir()
    assert {(there / "runs" / each.run / "count").read_text() for each in found} == {"once\n"}
    assert sweeps.submit(sweep) == []


def test_only_what_failed_is_done_again_and_it_goes_on_there(workspace: Workspace, tmp_path: Path) -> None:
    flag = tmp_path / "mended"
    text = f"name: s\ncommand: sh -c 'echo try >> {{run}}/count; test {{n}} != 2 || test -e {flag}'\n"
    (tmp_path / "sweep.yaml").write_text(text + "axes: {n: [1, 2, 3]}\n")
    definition, source = workspace.sweeps.read([tmp_path / "sweep.yaml"])
    sweep = workspace.sweeps.create(definition, source, system=FAR)
    workspace.sweeps.submit(sweep, pack=2)
    assert [each.state for each in workspace.sweeps.wait(sweep)] == ["done", "failed", "done"]
    flag.touch()
    workspace.sweeps.submit(sweep, failed=True)
    found = workspace.sweeps.wait(sweep)
    assert [each.state for each in found] == ["done", "done", "done"]
    (there,) = (tmp_path / FAR / ".batches").iterdir()
    tried = [(there / "runs" / each.run / "count").read_text() for each in found]
    assert tried == ["try\n", "try\ntry\n", "try\n"]
    assert len(workspace.runs.get(found[1].run).record.attempts) == 2
