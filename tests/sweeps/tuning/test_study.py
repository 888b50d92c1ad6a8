"""Studies as a whole: trials are runs, their own metrics decide, and no death of a worker loses one."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import workspace_here, workspace_on

from fairmile.base.errors import RunFailed, UsageError
from fairmile.base.files import Holder
from fairmile.runs.model import RunState
from fairmile.sweeps.record import Sweep
from fairmile.sweeps.tuning.engine import TrialRecord
from fairmile.workspace import Workspace

pytest.importorskip("optuna")

# A program that knows nothing of tuning: it states its loss, epoch by epoch, in a file that any run has.
PROGRAM = """\
x=$1 epochs=$2 pause=$3
for epoch in $(seq 1 $epochs); do
  echo '{"loss": '$(awk "BEGIN {print ($x - 0.3) ^ 2 + 1 / $epoch}")', "step": '$epoch'}' >> $FAIRMILE_METRICS
  sleep $pause
done
"""
STUDY = """\
name: quad
command: sh program.sh {x} 5 PAUSE
axes: {x: {uniform: [0, 1]}}
objective: {loss: lower}
every: 0
tuning: {trials: 6, sampler: random, seed: 1, steps: 5}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return workspace_here(tmp_path)


def made(workspace: Workspace, folder: Path, text: str = STUDY, *, pause: float = 0.0, **changes: Any) -> Sweep:
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "tune.yaml").write_text(text.replace("PAUSE", str(pause)))
    definition, source = workspace.sweeps.read([folder / "tune.yaml"])
    return workspace.studies.create(definition, source, **changes)


def states(trials: Sequence[TrialRecord]) -> dict[str, int]:
    return dict(Counter(each.state for each in trials))


class TestHere:
    def test_every_trial_is_a_run_and_the_best_is_known(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path)
        trials = workspace.studies.run(study, workers=2)
        assert states(trials) == {"done": 6}
        runs = {run.id: run for run in workspace.runs.select(study.id)}
        assert {each.run for each in trials} == runs.keys()
        for each in trials:
            run = runs[each.run]
            assert run.params["x"] == each.params["x"]
            assert each.values == (run.metrics["loss"].value,)
            assert [step for step, _ in each.curve] == [1, 2, 3, 4, 5]
            said = {"study": study.id, "number": each.number, "generation": 0, "state": "done"}
            assert run.document["trial"] == {**said, "objectives": {"loss": "lower"}}
        (best,) = workspace.studies.best(study)
        assert best.values[0] == min(each.values[0] for each in trials)

    def test_what_will_not_win_is_stopped_politely_by_its_own_metrics(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        text = STUDY.replace("sampler: random", "sampler: grid, pruner: median, startup: 2").replace(
            "{uniform: [0, 1]}", "{choice: [0.3, 0.35, 0.9, 1.0]}"
        )
        saving = "sh -c 'trap \"echo saved; exit 0\" TERM; . ./program.sh' sh"
        text = text.replace("sh program.sh", saving).replace("every: 0\n", "every: 0\ncode: [program.sh]\n")
        study = made(workspace, tmp_path, text, pause=0.6)
        trials = workspace.studies.run(study)
        assert [each.state for each in trials] == ["done", "done", "pruned", "pruned"]
        stopped = workspace.runs.get(trials[2].run)
        assert stopped.state is RunState.CANCELLED
        assert stopped.result["reason"].startswith("stopped early: ")
        assert stopped.document["trial"]["state"] == "pruned"
        assert b"saved" in workspace.runs.output(stopped.id)
        assert len(trials[2].curve) < 5

    def test_a_failure_is_a_failed_trial_with_its_reason(self, workspace: Workspace, tmp_path: Path) -> None:
        text = STUDY.replace("sh program.sh {x} 5 PAUSE", "sh -c 'exit 3'").replace("trials: 6", "trials: 2")
        study = made(workspace, tmp_path, text)
        assert states(workspace.studies.run(study)) == {"failed": 2}
        assert workspace.studies.engine(study).reasons() == {0: "exit code 3", 1: "exit code 3"}
        assert workspace.studies.best(study) == []

    def test_a_metric_that_never_comes_is_named(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, STUDY.replace("{loss: lower}", "{nnse: higher}"), trials=1)
        workspace.studies.run(study)
        assert workspace.studies.engine(study).reasons() == {0: "the metric 'nnse' was never logged"}

    def test_it_goes_on_to_a_larger_budget(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, trials=2)
        first = workspace.studies.run(study)
        trials = workspace.studies.run(workspace.studies.extend(study, trials=4))
        assert states(trials) == {"done": 4}
        assert list(trials[:2]) == list(first)

    def test_node_hours_are_a_budget(self, workspace: Workspace, tmp_path: Path) -> None:
        text = STUDY.replace("trials: 6", f"node_hours: {0.5 / 3600}")
        study = made(workspace, tmp_path, text, pause=0.05)
        trials = workspace.studies.run(study)
        assert 1 <= len(trials) < 6
        assert workspace.studies.spent(study)["node_hours"] >= 0.5 / 3600

    def test_a_worker_that_is_killed_leaves_no_trial_running_for_ever(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        study = made(workspace, tmp_path, pause=0.4, trials=4)
        killed: list[int] = []

        def kill(trials: Sequence[TrialRecord]) -> None:
            for each in trials:
                if not killed and each.state == "running" and each.worker:
                    killed.append(Holder.parse(each.worker, 0).pid)
                    os.kill(killed[0], signal.SIGKILL)

        trials = workspace.studies.run(study, workers=2, on_look=kill)
        assert killed
        assert states(trials) == {"failed": 1, "done": 4}
        lost = next(each for each in trials if each.state == "failed")
        assert sum(each.params == lost.params for each in trials) == 2

    def test_stopped_it_begins_nothing_more_and_goes_on_later(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, pause=0.1)
        looks: list[int] = []

        def stop(trials: Sequence[TrialRecord]) -> None:
            looks.append(len(trials))
            if any(each.state == "done" for each in trials):
                workspace.studies.stop(study)

        assert len(workspace.studies.run(study, on_look=stop)) < 6
        assert states(workspace.studies.run(study)) == {"done": 6}

    def test_a_worker_that_cannot_work_says_why(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path)
        (study.folder / "batch.json").unlink()
        with pytest.raises(RunFailed, match=r"batch\.json"):
            workspace.studies.run(study)

    def test_several_objectives_have_a_front(self, workspace: Workspace, tmp_path: Path) -> None:
        said = """'{"a": '$a', "b": '$b'}' >> $FAIRMILE_METRICS"""
        script = f'#!/bin/sh\na=$(awk "BEGIN {{print {{x}}}}") b=$(awk "BEGIN {{print 1 - {{x}}}}")\necho {said}\n'
        (tmp_path / "both.in.sh").write_text(script)
        text = STUDY.replace("command: sh program.sh {x} 5 PAUSE", "template: both.in.sh")
        text = text.replace("{loss: lower}", "{a: lower, b: lower}").replace("sampler: random, ", "")
        study = made(workspace, tmp_path, text)
        trials = workspace.studies.run(study)
        assert states(trials) == {"done": 6}
        assert len(workspace.studies.best(study)) == len({each.values for each in trials})

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("objective: {loss: lower}\n", ""), "needs an objective"),
            (("sampler: random", "sampler: tpee"), "tpe"),
            (("{uniform: [0, 1]}", "{uniform: [1, 0]}"), "x"),
        ],
    )
    def test_a_study_that_cannot_be_is_refused_with_the_reason(
        self, workspace: Workspace, tmp_path: Path, change: tuple[str, str], said: str
    ) -> None:
        with pytest.raises(UsageError, match=said):
            made(workspace, tmp_path, STUDY.replace(*change))
        assert workspace.sweeps.ls() == []


class TestOnSlurm:
    @pytest.fixture
    def slurm(self, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        monkeypatch.chdir(tmp_path)
        return workspace_on(slurm_cluster, tmp_path, monkeypatch)

    def test_four_workers_share_one_study(self, slurm: Workspace, tmp_path: Path) -> None:
        needs = {"memory_gib": 0.4, "cpus_per_task": 1}
        study = made(slurm, tmp_path, pause=0.3, trials=12, system="rig", resources=needs)
        slurm.studies.submit(study, workers=4)
        trials = slurm.studies.wait(study)
        assert states(trials) == {"done": 12}
        assert len({each.worker for each in trials}) == 4
        assert {slurm.runs.get(each.run).document["job"]["task"] for each in trials} == {0, 1, 2, 3}

    def test_a_trial_may_itself_span_several_tasks(self, slurm: Workspace, tmp_path: Path) -> None:
        needs = {"nodes": 1, "tasks_per_node": 2, "memory_gib": 0.8}
        text = STUDY.replace(
            "sh program.sh {x} 5 PAUSE", "sh -c 'test $SLURM_PROCID != 1 || sh program.sh {x} 5 0; echo $SLURM_PROCID'"
        ).replace("every: 0\n", "every: 0\ncode: [program.sh]\n")
        study = made(slurm, tmp_path, text, trials=2, system="rig", resources=needs)
        slurm.studies.submit(study, workers=1)
        trials = slurm.studies.wait(study)
        assert states(trials) == {"done": 2}
        assert sorted(slurm.runs.output(trials[0].run).split()) == [b"0", b"1"]

    def test_a_job_that_is_killed_is_reaped_and_its_trial_tried_again(self, slurm: Workspace, tmp_path: Path) -> None:
        study = made(slurm, tmp_path, pause=0.3, trials=3, system="rig", resources={"memory_gib": 0.4})
        slurm.studies.submit(study, workers=1)
        until = time.monotonic() + 60
        while not any(each.state == "running" for each in slurm.studies.trials(study)) and time.monotonic() < until:
            time.sleep(0.2)
        slurm.runs.cancel_array(f"{study.id}-1")
        trials = slurm.studies.wait(study)
        assert states(trials)["done"] == 3
        assert not any(each.state == "running" for each in trials)


# A program that goes on from what another member of its population left.
GROWING = """\
from=$FAIRMILE_CHECKPOINT_FROM
step=0 total=0
if [ -n "$from" ]; then . "$from/state.sh"; fi
while [ $step -lt $FAIRMILE_UNTIL ]; do
  step=$((step + 1)) total=$((total + $1))
  echo '{"total": '$total', "step": '$step'}' >> $FAIRMILE_METRICS
done
mkdir -p $FAIRMILE_CHECKPOINT_TO && echo "step=$step total=$total" > $FAIRMILE_CHECKPOINT_TO/state.sh
"""


@pytest.mark.filterwarnings("ignore")
def test_a_population_exchanges_its_checkpoints(workspace: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "grow.sh").write_text(GROWING)
    text = (
        "name: grow\ncommand: sh grow.sh {gain}\nevery: 0\naxes: {gain: {integer: [1, 100]}}\n"
        "objective: {total: higher}\n"
        "tuning: {engine: ray, sampler: pbt, population: 3, interval: 2, steps: 6, seed: 1}\n"
    )
    study = made(workspace, tmp_path, text)
    trials = workspace.studies.run(study, workers=2)
    assert states(trials) == {"done": 3}
    runs = workspace.runs.select(study.id)
    assert {run.document["trial"]["generation"] for run in runs} > {0}
    gone_on = [run for run in runs if run.document["trial"]["generation"]]
    assert all(run.metrics["total"].count == 2 for run in gone_on)
    best = workspace.studies.best(study)[0]
    assert best.values[0] > 0


@pytest.mark.filterwarnings("ignore")
def test_another_engine_serves_the_same_file(workspace: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("deephyper")
    study = made(workspace, tmp_path, STUDY.replace("sampler: random", "engine: deephyper, sampler: random"), trials=3)
    trials = workspace.studies.run(study, workers=2)
    assert states(trials) == {"done": 3}
    assert {each.run for each in trials} == {run.id for run in workspace.runs.select(study.id)}
