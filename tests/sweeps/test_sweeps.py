"""Sweeps as a whole: from a definition to results, here and on a real Slurm, through kills and failures."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import environ_of, wait_until, workspace_here, workspace_on

from fairmile.base.errors import Conflict, FairmileError, NotFound, UsageError
from fairmile.base.files import Holder
from fairmile.runs.execute.crew import Ended
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.results import PointStatus
from fairmile.sweeps.sweeps import Sweeps
from fairmile.workspace import Workspace

FAIRMILE = "from fairmile.cli.main import main; main()"
RATES = """\
name: rates
command: sh -c "echo loss=$(({lr} * {epochs}))"
axes:
  lr: [1, 2]
  epochs: range(1, 4)
metrics: {loss: {pattern: "loss=([0-9]+)", better: lower}}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return workspace_here(tmp_path)


@pytest.fixture
def sweeps(workspace: Workspace) -> Sweeps:
    return workspace.sweeps


def made(sweeps: Sweeps, text: str, folder: Path, params: dict[str, Any] | None = None, **fields: Any) -> Sweep:
    file = folder / "sweep.yaml"
    file.write_text(text)
    definition, source = sweeps.read([file], params=params)
    return sweeps.create(definition, source, **fields)


def states(found: list[PointStatus]) -> dict[str, int]:
    return dict(Counter(each.state for each in found))


NASTY = 'it\'s $(touch pwned); `touch pwned` "y" * > z'


class TestValuesForShells:
    """A value is one word wherever it goes, and no shell ever reads what it holds."""

    def said(self, sweeps: Sweeps, folder: Path, text: str) -> str:
        sweep = made(sweeps, text, folder, params={"word": [NASTY]})
        (point,) = sweeps.run(sweep)
        assert point.state == "done"
        assert list(folder.rglob("pwned")) == []
        return sweeps.results(sweep)[0].folder.joinpath("output.log").read_text()

    def test_a_command_has_no_shell_between_it_and_the_value(self, sweeps: Sweeps, tmp_path: Path) -> None:
        for command in ('[printf, "<%s>", "{word}"]', "printf '<%s>' {word}"):
            assert self.said(sweeps, tmp_path, f"command: {command}\n") == f"<{NASTY}>"

    def test_a_script_within_a_command_quotes_it(self, sweeps: Sweeps, tmp_path: Path) -> None:
        text = "command: [sh, -c, \"printf '<%s>' {word|quote}\"]\n"
        assert self.said(sweeps, tmp_path, text) == f"<{NASTY}>"

    def test_a_template_quotes_it(self, sweeps: Sweeps, tmp_path: Path) -> None:
        (tmp_path / "job.in.sh").write_text("printf '<%s>' {word|quote}\n")
        assert self.said(sweeps, tmp_path, "template: job.in.sh\n") == f"<{NASTY}>"


class TestLeftovers:
    def test_a_sweep_that_was_killed_while_it_was_made_is_gone_with_the_next_one(
        self, sweeps: Sweeps, tmp_path: Path
    ) -> None:
        (tmp_path / "rates.yaml").write_text(RATES)
        environ = environ_of(tmp_path)
        code = "import os, signal; from fairmile.runs.execute.batches import Frozen\n"
        code += "Frozen.write_members = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n" + FAIRMILE
        words = [sys.executable, "-c", code, "sweep", "run", "rates.yaml"]
        killed = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL
        (left,) = sweeps.root.iterdir()
        assert sweeps.ls() == []
        sweep = made(sweeps, RATES, tmp_path)
        assert list(sweeps.root.iterdir()) == [sweep.folder]
        assert not left.exists()

    def test_one_that_somebody_is_making_is_left_alone(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, RATES, tmp_path)
        (sweep.folder / "sweep.json").unlink()
        (sweep.folder / ".making").write_text(Holder.me().text())
        made(sweeps, RATES, tmp_path)
        assert sweep.folder.is_dir()

    def test_a_removal_that_was_cut_short_is_seen_by_nobody(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, RATES, tmp_path)
        sweep.folder.rename(sweep.folder.with_name(f".{sweep.id}.removed"))
        assert sweeps.ls() == []


class TestPlan:
    def test_a_plan_tells_what_would_be_done_and_does_nothing(self, sweeps: Sweeps, tmp_path: Path) -> None:
        (tmp_path / "rates.yaml").write_text(RATES)
        definition, _ = sweeps.read([tmp_path / "rates.yaml"])
        plan = sweeps.plan(definition)
        assert (plan.count, plan.first.id, plan.last.id) == (6, "lr_1_epochs_1", "lr_2_epochs_3")
        assert plan.disk_bytes > 0
        assert plan.node_hours is None
        assert not sweeps.root.exists()

    def test_node_hours_come_from_earlier_runs(self, sweeps: Sweeps, tmp_path: Path) -> None:
        text = RATES.replace("echo", "sleep 0.2; echo")
        sweeps.run(made(sweeps, text, tmp_path), at_once=2)
        definition, _ = sweeps.read([tmp_path / "sweep.yaml"])
        plan = sweeps.plan(definition)
        assert plan.point_s is not None and plan.point_s >= 0.2
        assert plan.node_hours == pytest.approx(6 * plan.point_s / 3600)

    def test_node_hours_follow_what_each_point_asks_for(self, sweeps: Sweeps, tmp_path: Path) -> None:
        text = "name: s\ncommand: 'true'\nresources: {nodes: '{n}', time: '{n}m'}\naxes: {n: [1, 2, 3]}\n"
        (tmp_path / "s.yaml").write_text(text)
        definition, _ = sweeps.read([tmp_path / "s.yaml"])
        assert sweeps.plan(definition).node_hours == pytest.approx((1 + 4 + 9) / 60)

    def test_what_an_asset_is_run_with_must_all_be_given(self, workspace: Workspace, tmp_path: Path) -> None:
        card = {
            "@context": "https://w3id.org/fairmile/card/1.0/context",
            "@type": "SoftwareSourceCode",
            "name": "bench",
            "version": "1.0",
            "license": "https://spdx.org/licenses/MIT",
            "description": "Echoes what it is given.",
        }
        (tmp_path / "bench.json").write_text(json.dumps({**card, "command": "echo {lr} {epochs}"}))
        sweeps = workspace.sweeps
        definition, source = sweeps.read(what=str(tmp_path / "bench.json"), params={"lr": "1,2"})
        with pytest.raises(UsageError, match="epochs"):
            sweeps.create(definition, source)
        assert sweeps.ls() == []
        definition, source = sweeps.read(what=str(tmp_path / "bench.json"), params={"lr": "1,2", "epochs": "3"})
        assert sweeps.create(definition, source).count == 2

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("name: s\ncommand: echo {n}\nsettings: {x: '{nope}'}\naxes: {n: [1]}\n", "nope"),
            ("name: s\nnotebook: none.ipynb\naxes: {n: [1]}\n", "no such file"),
            ("name: s\ncommand: echo {n}\naxes: {n: {uniform: [0, 1]}}\n", "distribution"),
        ],
    )
    def test_what_cannot_be_run_is_refused_before_anything_is_made(
        self, sweeps: Sweeps, tmp_path: Path, text: str, said: str
    ) -> None:
        with pytest.raises(FairmileError, match=said):
            made(sweeps, text, tmp_path)
        assert sweeps.ls() == []

    def test_without_anything_to_execute_a_sweep_can_be_planned_and_not_run(
        self, sweeps: Sweeps, tmp_path: Path
    ) -> None:
        text = "name: rates\naxes: {lr: [1, 2]}\n"
        (tmp_path / "rates.yaml").write_text(text)
        definition, _ = sweeps.read([tmp_path / "rates.yaml"])
        assert sweeps.plan(definition).run is None
        with pytest.raises(UsageError, match="no program to run at each point"):
            made(sweeps, text, tmp_path)
        assert sweeps.ls() == []

    def test_a_placeholder_that_nothing_fills_is_named_with_its_line(self, sweeps: Sweeps, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"sweep\.yaml:2.*rate"):
            made(sweeps, RATES.replace("{lr}", "{rate}"), tmp_path)
        assert not list(sweeps.root.glob("*"))


class TestHere:
    def test_every_point_is_a_run_with_its_values_and_metrics(self, workspace: Workspace, tmp_path: Path) -> None:
        sweep = made(workspace.sweeps, RATES, tmp_path)
        found = workspace.sweeps.run(sweep, at_once=2)
        assert states(found) == {"done": 6}
        assert [each.metrics["loss"] for each in found] == [1, 2, 3, 2, 4, 6]
        assert found[4].values == {"lr": 2, "epochs": 2}
        assert {row.id for row in workspace.runs.rows(group=sweep.id)} == {each.run for each in found}

    def test_axes_of_the_command_line_go_before_those_of_the_file(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, RATES, tmp_path, params={"lr": "7"})
        assert [each.values["lr"] for each in sweeps.points(sweep)] == [7, 7, 7]

    def test_a_command_is_swept_over_without_any_file(self, sweeps: Sweeps, workspace: Workspace) -> None:
        definition, source = sweeps.read(command=["echo", "{n}"], params={"n": "[08-10]"})
        found = sweeps.run(sweeps.create(definition, source))
        assert [workspace.runs.output(each.run) for each in found] == [b"08\n", b"09\n", b"10\n"]

    def test_repeats_share_their_values_and_differ_by_seed(self, workspace: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: echo {seed} {repeat} {a}\nseed: 10\nrepeats: 3\naxes: {a: [1]}\n"
        found = workspace.sweeps.run(made(workspace.sweeps, text, tmp_path))
        said = [workspace.runs.output(each.run) for each in found]
        assert said == [b"10 1 1\n", b"11 2 1\n", b"12 3 1\n"]
        assert {tuple(each.values.items()) for each in found} == {(("a", 1),)}
        assert len({each.id for each in found}) == 3

    def test_settings_that_depend_on_an_axis_reach_the_command(self, workspace: Workspace, tmp_path: Path) -> None:
        text = (
            "name: s\ncommand: echo {minutes.{model}} {greeting}\nsettings:\n  minutes: {small: 5, large: 60}\n"
            "  greeting: to {model}\naxes: {model: [small, large]}\n"
        )
        found = workspace.sweeps.run(made(workspace.sweeps, text, tmp_path))
        assert [workspace.runs.output(each.run) for each in found] == [b"5 to small\n", b"60 to large\n"]

    def test_resources_may_depend_on_the_axes(self, workspace: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: 'true'\nresources: {nodes: '{n}', time: 10m}\naxes: {n: [1, 2]}\n"
        sweep = made(workspace.sweeps, text, tmp_path)
        lines = [json.loads(line) for line in (sweep.folder / "members.jsonl").read_text().splitlines()]
        assert lines[1]["spec"]["resources"]["nodes"] == 2

    def test_variables_of_a_point_are_its_own(self, workspace: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: sh -c 'echo $LEVEL'\nenv: {LEVEL: 'level {n}'}\naxes: {n: [1, 2]}\n"
        found = workspace.sweeps.run(made(workspace.sweeps, text, tmp_path))
        assert [workspace.runs.output(each.run) for each in found] == [b"level 1\n", b"level 2\n"]

    def test_a_template_becomes_a_script_for_each_point(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "job.in.sh").write_text("#!/bin/sh\necho rate {lr}\ntest -f config.yaml\n")
        text = "name: s\ntemplate: job.in.sh\naxes: {lr: [0.1, 0.2]}\n"
        found = workspace.sweeps.run(made(workspace.sweeps, text, tmp_path))
        assert states(found) == {"done": 2}
        assert [workspace.runs.output(each.run) for each in found] == [b"rate 0.1\n", b"rate 0.2\n"]

    def test_failed_points_say_why_and_are_done_again_only_when_asked(self, sweeps: Sweeps, tmp_path: Path) -> None:
        flag = tmp_path / "mended"
        text = f"name: s\ncommand: sh -c 'test {{n}} != 2 || test -e {flag}'\naxes: {{n: [1, 2, 3]}}\n"
        sweep = made(sweeps, text, tmp_path)
        ends: list[Ended] = []
        found = sweeps.run(sweep, on_end=ends.append)
        assert [each.state for each in found] == ["done", "failed", "done"]
        assert found[1].reason == "exit code 1"
        flag.touch()
        ends.clear()
        assert states(sweeps.run(sweep, on_end=ends.append)) == {"done": 2, "failed": 1}
        assert ends == []
        assert states(sweeps.run(sweep, failed=True, on_end=ends.append)) == {"done": 3}
        assert [each.number for each in ends] == [1]

    def test_killed_in_the_middle_it_goes_on_with_what_is_missing(self, sweeps: Sweeps, tmp_path: Path) -> None:
        flag = tmp_path / "go"
        hold = f"while test {{n}} -ge 20 -a ! -e {flag}; do sleep 0.05; done"
        text = f"name: s\ncommand: sh -c 'echo once >> {{run}}/count; {hold}'\naxes: {{n: 'range(0, 80)'}}\n"
        sweep = made(sweeps, text, tmp_path)
        argv = [sys.executable, "-c", FAIRMILE, "sweep", "run", sweep.id, "-j", "2"]
        controller = subprocess.Popen(argv, env=environ_of(tmp_path), stderr=subprocess.DEVNULL)
        begun = sweeps.root.parent / "runs"
        wait_until(lambda: len(list(begun.glob(f"{sweep.id}-*"))) > 20, controller)
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        before = {each.run for each in sweeps.points(sweep) if each.state == "done"}
        assert 0 < len(before) <= 20
        flag.touch()
        found = sweeps.run(sweep, at_once=2)
        assert states(found) == {"done": 80}
        assert before < {each.run for each in found}
        assert {(begun / each.run / "count").read_text() for each in found} == {"once\n"}

    def test_two_processes_do_not_execute_the_same_sweep(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, "name: s\ncommand: sleep 0.{n}\naxes: {n: [1, 2]}\n", tmp_path)
        caught = []

        def try_too(_: Ended) -> None:
            with pytest.raises(Conflict, match="by another process") as problem:
                sweeps.run(sweep)
            caught.append(problem)

        sweeps.run(sweep, on_end=try_too)
        assert len(caught) == 2

    def test_the_parts_are_combined_when_all_are_done(self, workspace: Workspace, tmp_path: Path) -> None:
        (tmp_path / "join.py").write_text(
            "import json, sys\nrows = json.load(open(sys.argv[1]))\n"
            "print('total', sum(row['metrics']['loss'] for row in rows))\n"
        )
        text = RATES + f"combine: {sys.executable} join.py {{inputs.results}}\n"
        sweep = made(workspace.sweeps, text, tmp_path)
        workspace.sweeps.run(sweep)
        combined = workspace.sweeps.combined(sweep)
        assert combined is not None
        assert workspace.runs.output(combined.id) == b"total 18.0\n"

    @pytest.mark.thorough
    def test_a_notebook_is_executed_at_each_point_and_kept(self, workspace: Workspace, tmp_path: Path) -> None:
        nbformat = pytest.importorskip("nbformat")
        notebook = nbformat.v4.new_notebook()
        first = nbformat.v4.new_code_cell("lr = 1", metadata={"tags": ["parameters"]})
        notebook.cells = [first, nbformat.v4.new_code_cell("import fairmile as fm\nfm.log(double=2 * lr)")]
        nbformat.write(notebook, tmp_path / "try.ipynb")
        text = "name: s\nnotebook: try.ipynb\naxes: {lr: [2, 3]}\n"
        found = workspace.sweeps.run(made(workspace.sweeps, text, tmp_path))
        assert states(found) == {"done": 2}, found
        assert [each.metrics["double"] for each in found] == [4, 6]
        assert "try-executed.ipynb" in workspace.runs.get(found[0].run).result.outputs


class TestFinding:
    def test_a_sweep_is_found_by_id_end_and_last(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, RATES, tmp_path)
        for reference in (sweep.id, sweep.id[-6:], "rates", "last"):
            assert sweeps.get(reference).id == sweep.id
        with pytest.raises(NotFound, match="did you mean"):
            sweeps.get(sweep.id[:-2] + "zz")

    def test_removed_it_leaves_its_runs(self, workspace: Workspace, tmp_path: Path) -> None:
        sweep = made(workspace.sweeps, RATES, tmp_path)
        workspace.sweeps.run(sweep)
        workspace.sweeps.remove(sweep.id)
        assert workspace.sweeps.ls() == []
        assert len(workspace.runs.rows(group=sweep.id)) == 6

    def test_a_definition_is_kept_as_it_was(self, sweeps: Sweeps, tmp_path: Path) -> None:
        sweep = made(sweeps, RATES, tmp_path)
        (tmp_path / "sweep.yaml").unlink()
        assert states(sweeps.run(sweep)) == {"done": 6}


class TestOnSlurm:
    @pytest.fixture
    def slurm(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        monkeypatch.chdir(tmp_path)
        return workspace_on(slurm_cluster, tmp_path, monkeypatch)

    @pytest.mark.thorough
    def test_five_hundred_points_survive_the_death_of_who_submitted_them(
        self, slurm: Workspace, tmp_path: Path
    ) -> None:
        axes = "axes: {a: 'range(0, 50)', b: 'range(0, 10)'}\n"
        text = f"name: s\ncommand: sh -c 'echo once >> {{run}}/count' {{a}} {{b}}\nevery: 0\n{axes}"
        sweep = made(slurm.sweeps, text, tmp_path, system="rig", resources={"memory_gib": 0.2})
        argv = [sys.executable, "-c", FAIRMILE, "sweep", "run", sweep.id, "--pack", "50"]
        environ = {**os.environ, **environ_of(tmp_path)}
        controller = subprocess.Popen(argv, env=environ, stderr=subprocess.DEVNULL, cwd=tmp_path)
        wait_until(lambda: len(list(slurm.runs.root.glob(f"{sweep.id}-*"))) >= 60, controller)
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
        assert slurm.sweeps.submit(sweep, pack=50) == []  # all of it is in hand
        found = slurm.sweeps.wait(sweep)
        assert states(found) == {"done": 500}
        assert len({slurm.runs.get(each.run).identity for each in found}) == 500
        assert {(slurm.runs.root / each.run / "count").read_text() for each in found} == {"once\n"}

    def test_a_task_that_is_killed_is_seen_and_its_points_done_again(self, slurm: Workspace, tmp_path: Path) -> None:
        hang = tmp_path / "hang"
        hang.touch()
        text = f"name: s\ncommand: sh -c 'test {{n}} != 1 || while test -e {hang}; do sleep 0.1; done'\n"
        sweep = made(slurm.sweeps, text + "axes: {n: [0, 1, 2]}\n", tmp_path, system="rig")
        slurm.sweeps.submit(sweep, pack=3)
        wait_until(lambda: slurm.sweeps.points(sweep)[1].state == "running")
        slurm.sweeps.cancel(sweep)
        found = slurm.sweeps.wait(sweep)
        assert [each.state for each in found] == ["done", "cancelled", "left"]
        hang.unlink()
        slurm.sweeps.submit(sweep)
        assert states(slurm.sweeps.wait(sweep)) == {"done": 3}

    def test_no_more_jobs_wait_than_the_queue_may_hold(self, slurm: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: sleep 0.{n}\naxes: {n: 'range(0, 6)'}\n"
        sweep = made(slurm.sweeps, text, tmp_path, system="rig")
        (array,) = slurm.sweeps.submit(sweep, pack=1, queued=2)
        assert len(slurm.jobs.get(array.job).tasks or {0: 0, 1: 0}) == 2
        assert states(slurm.sweeps.wait(sweep)) == {"done": 6}

    def test_left_alone_it_is_found_again_also_where_a_best_is_asked_for(
        self, slurm: Workspace, tmp_path: Path
    ) -> None:
        (tmp_path / "s.yaml").write_text(RATES + "best: loss\n")
        argv = [sys.executable, "-c", FAIRMILE, "sweep", "run", "s.yaml", "--on", "rig", "--leave"]
        environ = {**os.environ, **environ_of(tmp_path)}
        done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        sweep = slurm.sweeps.get("last")
        assert states(slurm.sweeps.wait(sweep)) == {"done": 6}

    def test_each_point_may_span_several_tasks(self, slurm: Workspace, tmp_path: Path) -> None:
        text = "name: s\ncommand: sh -c 'echo {n} $SLURM_PROCID'\naxes: {n: [1, 2]}\n"
        needs = {"nodes": 1, "tasks_per_node": 2, "memory_gib": 0.5}
        sweep = made(slurm.sweeps, text, tmp_path, system="rig", resources=needs)
        slurm.sweeps.submit(sweep, pack=2)
        found = slurm.sweeps.wait(sweep)
        assert states(found) == {"done": 2}
        assert sorted(slurm.runs.output(found[1].run).split(b"\n")) == [b"", b"2 0", b"2 1"]

    def test_short_points_are_packed_by_what_they_took_before(self, slurm: Workspace, tmp_path: Path) -> None:
        text = "name: packed\ncommand: 'true {n}'\naxes: {n: 'range(0, 8)'}\n"
        slurm.sweeps.run(made(slurm.sweeps, text, tmp_path))
        sweep = made(slurm.sweeps, text, tmp_path, system="rig")
        slurm.sweeps.submit(sweep)
        said = json.loads((sweep.folder / "tasks-1.json").read_text())
        assert said["tasks"] == [list(range(8))]
        assert states(slurm.sweeps.wait(sweep)) == {"done": 8}


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="needs the Python package parsl")
# Sockets of Parsl are closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_pilot_jobs_execute_points_without_a_job_for_each(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = workspace_on(slurm_cluster, tmp_path, monkeypatch)
    (tmp_path / "sweep.yaml").write_text("name: s\ncommand: sh -c 'echo {n} $SLURM_JOB_ID'\naxes: {n: 'range(1, 9)'}\n")
    definition, source = workspace.sweeps.read([tmp_path / "sweep.yaml"])
    sweep = workspace.sweeps.create(definition, source, system="rig", resources={"time_s": 600, "memory_gib": 1})
    found = workspace.sweeps.run(sweep, pilots=1)
    assert {each.state for each in found} == {"done"}
    printed = [workspace.runs.output(each.run).decode().split() for each in found]
    assert [number for number, _ in printed] == [str(n) for n in range(1, 9)]
    assert len({job for _, job in printed}) == 1
