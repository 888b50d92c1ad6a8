"""Sweeps that were cut short, cancelled or held back, and how they go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import environ_of, wait_until, workspace_here, workspace_on

from fairmile.base.errors import Conflict
from fairmile.runs.execute.crew import Ended
from fairmile.runs.record.run import RunState
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.results import PointStatus
from fairmile.sweeps.sweeps import Sweeps
from fairmile.workspace import Workspace

FAIRMILE = "from fairmile.cli.main import main; main()"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return workspace_here(tmp_path)


def made(sweeps: Sweeps, text: str, folder: Path, **fields: Any) -> Sweep:
    (folder / "sweep.yaml").write_text(text)
    definition, source = sweeps.read([folder / "sweep.yaml"])
    return sweeps.create(definition, source, **fields)


def states(found: list[PointStatus]) -> dict[str, int]:
    return dict(Counter(each.state for each in found))


def test_what_workers_of_a_killed_controller_are_at_is_waited_for(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, sweeps, root = tmp_path / "go", workspace.sweeps, workspace.runs.root
    text = f"name: s\ncommand: sh -c 'echo once; while test ! -e {flag}; do sleep 0.05; done' {{n}}\n"
    sweep = made(sweeps, text + "axes: {n: [1, 2]}\ncombine: echo all\n", tmp_path)
    argv = [sys.executable, "-c", FAIRMILE, "sweep", "run", sweep.id, "-j", "2"]
    controller = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
    wait_until(lambda: [log.read_text() for log in root.glob(f"{sweep.id}-*/output.log")] == ["once\n"] * 2, controller)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    assert states(sweeps.points(sweep)) == {"running": 2}
    look = sweeps.points

    def look_and_let_go(sweep: Sweep) -> list[PointStatus]:
        found = look(sweep)
        flag.touch()  # only now: what has ended before it looks, nobody needs to wait for
        return found

    monkeypatch.setattr(sweeps, "points", look_and_let_go)
    ends: list[Ended] = []
    assert states(sweeps.run(sweep, on_end=ends.append)) == {"done": 2}
    assert sorted((each.number, each.state) for each in ends) == [(0, "done"), (1, "done")]
    assert {(root / each.run / "output.log").read_text() for each in sweeps.points(sweep)} == {"once\n"}
    combined = sweeps.combined(sweep)
    assert combined is not None and combined.state is RunState.DONE


def test_a_point_whose_worker_died_before_its_first_word_is_done(workspace: Workspace, tmp_path: Path) -> None:
    sweep = made(workspace.sweeps, "name: s\ncommand: echo {n}\naxes: {n: [1, 2]}\n", tmp_path)
    folder = workspace.runs.root / workspace.sweeps.points(sweep)[0].run
    folder.mkdir()
    os.utime(folder, (time.time() - 4, time.time() - 4))  # it may still be about to write
    assert states(workspace.sweeps.run(sweep)) == {"done": 2}


def test_a_combining_step_that_failed_is_done_again(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "join.sh").write_text("exit 1\n")
    text = "name: s\ncommand: echo {n}\naxes: {n: [1, 2]}\ncombine: sh join.sh\n"
    sweep = made(workspace.sweeps, text, tmp_path)
    workspace.sweeps.run(sweep)
    before = workspace.sweeps.combined(sweep)
    assert before is not None and before.state is RunState.FAILED
    (tmp_path / "join.sh").write_text("echo mended\n")
    workspace.sweeps.run(sweep)
    after = workspace.sweeps.combined(sweep)
    assert after is not None and after.state is RunState.DONE
    assert workspace.runs.output(after.id) == b"mended\n"
    assert after.identity != before.identity
    workspace.sweeps.run(sweep)
    again = workspace.sweeps.combined(sweep)
    assert again is not None and len(again.record.attempts) == 2


def test_a_sweep_that_is_executed_is_not_removed(workspace: Workspace, tmp_path: Path) -> None:
    sweep = made(workspace.sweeps, "name: s\ncommand: echo {n}\naxes: {n: [1]}\n", tmp_path)

    def remove(_: Ended) -> None:
        with pytest.raises(Conflict, match="by another process"):
            workspace.sweeps.remove(sweep.id)

    workspace.sweeps.run(sweep, on_end=remove)
    workspace.sweeps.remove(sweep.id)
    assert workspace.sweeps.ls() == []


@pytest.mark.thorough
def test_results_stand_in_the_order_of_the_points_also_where_numbers_grow(workspace: Workspace, tmp_path: Path) -> None:
    text = "name: s\ncommand: echo {n}\naxes: {n: 'range(0, 100001)'}\nselect: n >= 99999\n"
    sweep = made(workspace.sweeps, text, tmp_path)
    found = workspace.sweeps.run(sweep)
    assert [run.id for run in workspace.sweeps.results(sweep)] == [each.run for each in found]
    assert [each.values["n"] for each in found] == [99999, 100000]


class TestOnSlurm:
    @pytest.fixture
    def slurm(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        monkeypatch.chdir(tmp_path)
        return workspace_on(slurm_cluster, tmp_path, monkeypatch)

    def test_what_is_held_back_is_not_submitted_after_a_cancel(self, slurm: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: sleep 6{n}\naxes: {n: 'range(0, 3)'}\n"
        sweep = made(slurm.sweeps, text, tmp_path, system="rig")
        slurm.sweeps.submit(sweep, pack=1, queued=1)
        slurm.sweeps.cancel(sweep)
        found = slurm.sweeps.wait(sweep)
        assert [each.state for each in found[1:]] == ["left", "left"]
        assert len(list(sweep.folder.glob("tasks-*.json"))) == 1

    def test_points_that_failed_may_be_held_back_too_and_fail_only_once_more(
        self, slurm: Workspace, tmp_path: Path
    ) -> None:
        sweep = made(slurm.sweeps, "name: s\ncommand: sh -c 'exit 1' {n}\naxes: {n: [1, 2]}\n", tmp_path, system="rig")
        slurm.sweeps.submit(sweep, pack=2)
        assert states(slurm.sweeps.wait(sweep)) == {"failed": 2}
        slurm.sweeps.submit(sweep, failed=True, pack=1, queued=1)
        found = slurm.sweeps.wait(sweep)
        assert [len(slurm.runs.get(each.run).record.attempts) for each in found] == [2, 2]
