"""Studies as a whole: trials are runs, their own metrics decide, and no death of a worker loses one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import wait_until, workspace_here, workspace_on

from fairmile.base.errors import Conflict, RunFailed, UsageError
from fairmile.base.files import Holder
from fairmile.runs.record.run import RunState
from fairmile.sweeps.folder import Sweep
from fairmile.sweeps.tuning.engine import Outcome, Report, Trial, TrialRecord
from fairmile.sweeps.tuning.pulse import Pulse
from fairmile.workspace import Workspace

pytest.importorskip("optuna")

# A program that knows nothing of tuning: it states its loss, epoch by epoch, in a file that any run has.
PROGRAM = """\
x=$1 until=$2
for epoch in 1 2 3 4 5; do
  echo '{"loss": '$(awk "BEGIN {print ($x - 0.3) ^ 2 + 1 / $epoch}")', "step": '$epoch'}' >> $FAIRMILE_METRICS
  while [ $epoch = 3 ] && ! eval "$until"; do sleep 0.05; done
done
"""
STUDY = """\
name: quad
command: [sh, program.sh, "{x}", "UNTIL"]
axes: {x: {uniform: [0, 1]}}
objective: {loss: lower}
every: 0
tuning: {trials: 6, sampler: random, seed: 1, steps: 5}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return workspace_here(tmp_path)


def made(workspace: Workspace, folder: Path, text: str = STUDY, *, until: str = "true", **changes: Any) -> Sweep:
    """Make a study; its program stays in the middle of its epochs until a command of the shell succeeds."""
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "tune.yaml").write_text(text.replace("UNTIL", until))
    definition, source = workspace.sweeps.read([folder / "tune.yaml"])
    return workspace.studies.create(definition, source, **changes)


def states(trials: Sequence[TrialRecord]) -> dict[str, int]:
    return dict(Counter(each.state for each in trials))


def are_under_way(trials: Sequence[TrialRecord], count: int) -> bool:
    return sum(each.state == "running" and bool(each.curve) for each in trials) == count


class TestHere:
    def test_every_trial_is_a_run_and_the_best_is_known(self, workspace: Workspace, tmp_path: Path) -> None:
        looks: list[int] = []
        study = made(workspace, tmp_path, trials=4)
        trials = workspace.studies.run(study, workers=2, on_look=lambda seen: looks.append(len(seen)))
        assert states(trials) == {"done": 4}
        assert looks[-1] == 4
        runs = {run.id: run for run in workspace.runs.select(study.id)}
        assert {each.run for each in trials} == runs.keys()
        for each in trials:
            run = runs[each.run]
            assert run.params["x"] == each.params["x"]
            assert each.values == (run.metrics["loss"].value,)
            assert [step for step, _ in each.curve] == [1, 2, 3, 4, 5]
            said = {"study": study.id, "number": each.number, "generation": 0}
            assert run.trial.to_dict() == {**said, "objectives": {"loss": "lower"}}
        (best,) = workspace.studies.best(study)
        assert best.values[0] == min(each.values[0] for each in trials)

    def test_what_will_not_win_is_stopped_politely_by_its_own_metrics(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        text = STUDY.replace("sampler: random", "sampler: grid, pruner: median, startup: 2").replace(
            "{uniform: [0, 1]}", "{choice: [0.3, 0.35, 0.9, 1.0]}"
        )
        text = text.replace("sh, program.sh", "sh, -c, 'trap \"echo saved; exit 0\" TERM; . ./program.sh', sh")
        text = text.replace("every: 0\n", "every: 0\ncode: [program.sh]\n")
        study = made(workspace, tmp_path, text, until="[ $x = 0.3 -o $x = 0.35 ]")
        trials = workspace.studies.run(study)
        assert [each.state for each in trials] == ["done", "done", "pruned", "pruned"]
        stopped = workspace.runs.get(trials[2].run)
        assert stopped.state is RunState.CANCELLED
        assert stopped.result.reason.startswith("stopped early: ")
        assert b"saved" in workspace.runs.output(stopped.id)
        assert len(trials[2].curve) < 5
        assert trials[2].values == (stopped.metrics["loss"].value,), "the last value, not that of the decision"

    def test_what_ended_by_itself_is_done_with_its_last_value_whatever_the_pruner_says(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        text = STUDY.replace("sampler: random", "sampler: grid, pruner: median, startup: 1").replace(", steps: 5", "")
        study = made(workspace, tmp_path, text.replace("{uniform: [0, 1]}", "{choice: [0.3, 0.9, 1.0]}"))
        engine = workspace.studies.engine(study)

        def execute(trial: Trial, report: Report) -> Outcome:
            """Log five values and end before anybody can stop it."""
            x = float(str(trial.params["x"]))
            values = [(x - 0.3) ** 2 + 1 / step for step in range(1, 6)]
            told = [report(step, value) for step, value in enumerate(values, 1)]
            said.append(any(told))
            return Outcome("done", (values[-1],), run=f"run-{trial.number}")

        said: list[bool] = []
        engine.work(execute, at_once=1, worker="me", stop=lambda: False)
        assert said == [False, True, True]
        assert [(each.state, round(each.values[0], 2)) for each in engine.trials()] == [
            ("done", 0.2), ("done", 0.56), ("done", 0.69)
        ]  # fmt: skip

    @pytest.mark.thorough
    def test_what_the_command_line_says_goes_before_what_the_file_says_of_each_trial(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        text = STUDY.replace("every: 0\n", 'every: 0\ntimeout: "{x}m"\ntags: ["x-{x}"]\nenv: {A: "{x}", B: "{x}"}\n')
        study = made(workspace, tmp_path, text, trials=1, timeout_s=50.0, tags=("mine",), env={"A": "7"})
        (trial,) = workspace.studies.run(study)
        spec = workspace.runs.get(trial.run).spec
        assert (spec.timeout_s, list(spec.tags)) == (50.0, ["mine"])

    def test_a_failure_is_a_failed_trial_with_its_reason(self, workspace: Workspace, tmp_path: Path) -> None:
        text = STUDY.replace('[sh, program.sh, "{x}", "UNTIL"]', "sh -c 'exit {x}'").replace("random", "grid")
        study = made(workspace, tmp_path, text.replace("{uniform: [0, 1]}", "{choice: [3, 0]}"))
        assert states(workspace.studies.run(study)) == {"failed": 2}
        reasons = {0: "exit code 3", 1: "the metric 'loss' was never logged"}
        assert workspace.studies.engine(study).reasons() == reasons
        assert workspace.studies.best(study) == []

    @pytest.mark.thorough
    def test_it_goes_on_to_a_larger_budget(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, trials=1)
        first = workspace.studies.run(study)
        trials = workspace.studies.run(workspace.studies.extend(study, trials=2))
        assert states(trials) == {"done": 2}
        assert list(trials[:1]) == list(first)

    @pytest.mark.thorough
    def test_node_hours_are_a_budget(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, STUDY.replace("trials: 6", "node_hours: 1.0e-12"))
        assert states(workspace.studies.run(study)) == {"done": 1}
        assert workspace.studies.spent(study)["node_hours"] >= 1e-12

    def test_a_worker_that_is_killed_leaves_no_trial_running_for_ever(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        study = made(workspace, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=3)
        killed: list[int] = []

        def kill(trials: Sequence[TrialRecord]) -> None:
            for each in trials:
                if not killed and each.state == "running" and each.worker:
                    killed.append(Holder.parse(each.worker, 0).pid)
                    os.kill(killed[0], signal.SIGKILL)
                    (tmp_path / "go").touch()

        trials = workspace.studies.run(study, workers=2, on_look=kill)
        assert killed
        assert states(trials) == {"failed": 1, "done": 3}
        lost = next(each for each in trials if each.state == "failed")
        assert sum(each.params == lost.params for each in trials) == 2

        def has_no_run_without_an_end() -> bool:
            workspace.studies.settle(study)
            return not workspace.runs.rows(group=study.id, states=[RunState.RUNNING])

        wait_until(has_no_run_without_an_end)  # the program of a dead worker may still be at its last steps

    @pytest.mark.thorough
    def test_a_budget_of_energy_that_nobody_measures_is_refused(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, STUDY.replace("trials: 6", "energy: 5 MJ"))
        with pytest.raises(RunFailed, match="was not measured"):
            workspace.studies.run(study)
        assert workspace.studies.spent(study)["energy_j"] is None

    @pytest.mark.thorough
    def test_a_parameter_that_does_not_apply_is_given_to_nobody(self, workspace: Workspace, tmp_path: Path) -> None:
        text = STUDY.replace("{x: {uniform: [0, 1]}}", "{x: {choice: [0.5]}, m: {integer: [3, 9], when: x > 1}}")
        study = made(workspace, tmp_path, text.replace('"UNTIL"', '"UNTIL", "[{m}]"'), trials=1)
        (trial,) = workspace.studies.run(study)
        run = workspace.runs.get(trial.run)
        assert "m" not in run.params
        assert "[]" in run.argv

    @pytest.mark.thorough
    def test_stopped_it_begins_nothing_more_and_goes_on_later(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=2)

        def stop(trials: Sequence[TrialRecord]) -> None:
            if trials:
                workspace.studies.stop(study)
                (tmp_path / "go").touch()

        assert states(workspace.studies.run(study, on_look=stop)) == {"done": 1}
        assert states(workspace.studies.run(study)) == {"done": 2}

    @pytest.mark.thorough
    def test_interrupted_it_ends_what_runs_and_tries_it_again_later(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=2)

        def interrupt(trials: Sequence[TrialRecord]) -> None:
            if are_under_way(trials, 2):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            workspace.studies.run(study, workers=2, on_look=interrupt)
        self.check_goes_on(workspace, study, tmp_path / "go")

    def test_one_trial_is_cancelled_alone_and_not_tried_again(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=3)
        cancelled: list[str] = []

        def cancel(trials: Sequence[TrialRecord]) -> None:
            if not cancelled and are_under_way(trials, 2):
                (run,) = workspace.runs.cancel_runs([f"{study.id}-00000"])
                assert (run.state, run.reason) == (RunState.CANCELLED, "cancelled on request")
                cancelled.append(run.id)
                (tmp_path / "go").touch()

        trials = workspace.studies.run(study, workers=2, on_look=cancel)
        assert [each.state for each in trials] == ["failed", "done", "done"]
        assert workspace.studies.engine(study).reasons()[0] == "cancelled on request"
        with pytest.raises(Conflict, match="is cancelled"):
            workspace.runs.cancel(cancelled[0])

    @pytest.mark.thorough
    def test_a_trial_that_was_resumed_alone_is_cancelled_like_any_run(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        study = made(workspace, tmp_path, until="false", trials=1)

        def interrupt(trials: Sequence[TrialRecord]) -> None:
            if are_under_way(trials, 1):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            workspace.studies.run(study, on_look=interrupt)
        id = f"{study.id}-00000"
        words = ["-m", "fairmile", "run", "--resume", id]
        with subprocess.Popen([sys.executable, *words], env={**os.environ, "FAIRMILE_HOME": str(tmp_path / "home")}):
            wait_until(lambda: workspace.runs.get(id).state is RunState.RUNNING)
            assert workspace.runs.cancel(id).state is RunState.CANCELLED

    @pytest.mark.thorough
    def test_a_signal_ends_what_the_threads_of_a_worker_run(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=2)
        words = ["-m", "fairmile.sweeps.tuning.study_worker", str(study.folder), "--at-once", "2", "--"]
        with subprocess.Popen([sys.executable, *words]) as worker:
            while worker.poll() is None and not are_under_way(workspace.studies.trials(study), 2):
                time.sleep(0.1)
            worker.terminate()
        assert worker.returncode == 0
        self.check_goes_on(workspace, study, tmp_path / "go")

    @staticmethod
    def check_goes_on(workspace: Workspace, study: Sweep, go: Path) -> None:
        lost = workspace.studies.trials(study)
        assert states(lost) == {"failed": 2}
        assert {workspace.runs.get(each.run).state for each in lost} == {RunState.CANCELLED}
        go.touch()
        trials = workspace.studies.run(study, workers=2)
        assert states(trials) == {"failed": 2, "done": 2}
        assert sorted(each.params["x"] for each in trials[:2]) == sorted(each.params["x"] for each in trials[2:])

    @pytest.mark.thorough
    def test_a_worker_on_a_host_that_went_down_is_gone_when_its_pulse_is_old(
        self, workspace: Workspace, tmp_path: Path
    ) -> None:
        study = made(workspace, tmp_path, trials=1)
        elsewhere = Holder.me()._replace(host="node7")

        def run_meanwhile(trial: Trial, report: Report) -> Outcome:
            with Pulse(study.folder, elsewhere):
                assert states(workspace.studies.run(study)) == {"running": 1}, "it lives"
                os.utime(study.folder / f"pulse-{elsewhere.token}", (time.time() - 3600,) * 2)
                workspace.studies.run(study)
            return Outcome("done", (0.5,))

        workspace.studies.engine(study).work(run_meanwhile, at_once=1, worker=elsewhere.text(), stop=lambda: False)
        assert [each.state for each in workspace.studies.trials(study)] == ["failed", "done"]
        assert " died" in workspace.studies.engine(study).reasons()[0]

    def test_a_worker_that_cannot_work_says_why(self, workspace: Workspace, tmp_path: Path) -> None:
        study = made(workspace, tmp_path)
        (study.folder / "batch.json").unlink()
        with pytest.raises(RunFailed, match=r"batch\.json"):
            workspace.studies.run(study)

    @pytest.mark.thorough
    def test_several_objectives_have_a_front(self, workspace: Workspace, tmp_path: Path) -> None:
        said = """'{"a": '$a', "b": '$b'}' >> $FAIRMILE_METRICS"""
        script = f'#!/bin/sh\na=$(awk "BEGIN {{print {{x}}}}") b=$(awk "BEGIN {{print 1 - {{x}}}}")\necho {said}\n'
        (tmp_path / "both.in.sh").write_text(script)
        text = STUDY.replace('command: [sh, program.sh, "{x}", "UNTIL"]', "template: both.in.sh")
        text = text.replace("{loss: lower}", "{a: lower, b: lower}").replace("sampler: random, ", "")
        study = made(workspace, tmp_path, text, trials=3)
        trials = workspace.studies.run(study)
        assert states(trials) == {"done": 3}
        assert len(workspace.studies.best(study)) == len({each.values for each in trials})

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("objective: {loss: lower}\n", ""), "needs an objective"),
            (("sampler: random", "sampler: tpee"), "tpe"),
            (("{uniform: [0, 1]}", "{uniform: [1, 0]}"), "x"),
            (("every: 0", "repeats: 2\nevery: 0"), "repeats"),
            (("sampler: random", "engine: ray, sampler: pbt"), "members"),
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
        # The first four wait for each other.
        meeting = (
            f"touch {tmp_path}/began-$SLURM_ARRAY_TASK_ID && [ -e {tmp_path}/began-3 ] && [ -e {tmp_path}/began-2 ]"
        )
        meeting += f" && [ -e {tmp_path}/began-1 ] && [ -e {tmp_path}/began-0 ]"
        study = made(slurm, tmp_path, until=meeting, trials=6, system="rig", resources=needs)
        slurm.studies.submit(study, workers=4)
        trials = slurm.studies.wait(study)
        assert states(trials) == {"done": 6}
        assert len({each.worker for each in trials}) == 4
        assert {slurm.runs.get(each.run).job.task for each in trials} == {0, 1, 2, 3}

    @pytest.mark.thorough
    @pytest.mark.parametrize("engine", ["deephyper", "ray"])
    def test_an_engine_of_one_process_spreads_trials_over_the_nodes_of_one_job(
        self, slurm: Workspace, tmp_path: Path, engine: str
    ) -> None:
        pytest.importorskip(engine)
        needs = {"nodes": 2, "memory_gib": 0.8, "cpus_per_task": 1}
        # Both wait for each other, so that they run at the same time.
        meeting = f"touch {tmp_path}/on-$SLURMD_NODENAME && [ $(ls -d {tmp_path}/on-* | wc -l) = 2 ]"
        text = STUDY.replace("sampler: random", f"engine: {engine}, sampler: random")
        study = made(slurm, tmp_path, text, until=meeting, trials=2, system="rig", resources=needs)
        with pytest.raises(UsageError, match="runs in one process only"):
            slurm.studies.submit(study, workers=2)
        slurm.studies.submit(study)
        trials = slurm.studies.wait(study)
        assert states(trials) == {"done": 2}
        assert len(list(tmp_path.glob("on-*"))) == 2

    def test_a_trial_may_itself_span_several_tasks(self, slurm: Workspace, tmp_path: Path) -> None:
        needs = {"nodes": 1, "tasks_per_node": 2, "memory_gib": 0.8}
        text = STUDY.replace(
            '[sh, program.sh, "{x}", "UNTIL"]',
            "sh -c 'test $SLURM_PROCID != 1 || sh program.sh {x} true; echo $SLURM_PROCID'",
        ).replace("every: 0\n", "every: 0\ncode: [program.sh]\n")
        study = made(slurm, tmp_path, text, trials=1, system="rig", resources=needs)
        slurm.studies.submit(study, workers=1)
        trials = slurm.studies.wait(study)
        assert states(trials) == {"done": 1}
        assert sorted(slurm.runs.output(trials[0].run).split()) == [b"0", b"1"]

    def test_one_trial_of_a_job_is_cancelled_and_its_worker_goes_on(self, slurm: Workspace, tmp_path: Path) -> None:
        go, needs = tmp_path / "go", {"memory_gib": 0.4}
        study = made(slurm, tmp_path, until=f"[ -e {go} ]", trials=2, system="rig", resources=needs)
        slurm.studies.submit(study, workers=1)
        wait_until(lambda: are_under_way(slurm.studies.trials(study), 1))
        assert slurm.runs.cancel(f"{study.id}-00000").state is RunState.CANCELLED
        go.touch()
        assert [each.state for each in slurm.studies.wait(study)] == ["failed", "done"]

    def test_a_job_that_is_killed_is_reaped_and_its_trial_tried_again(self, slurm: Workspace, tmp_path: Path) -> None:
        needs = {"memory_gib": 0.4}
        study = made(slurm, tmp_path, until=f"[ -e {tmp_path}/go ]", trials=2, system="rig", resources=needs)
        slurm.studies.submit(study, workers=1)
        until = time.monotonic() + 60
        while not any(each.state == "running" for each in slurm.studies.trials(study)) and time.monotonic() < until:
            time.sleep(0.2)
        slurm.runs.arrays.cancel(f"{study.id}-1")
        # A trial that comes to its end while its job is cancelled is done.
        while not list(tmp_path.glob("home/jobs/*/ended.0")) and time.monotonic() < until:
            time.sleep(0.2)
        (tmp_path / "go").touch()
        trials = slurm.studies.wait(study)
        assert states(trials)["done"] == 2
        assert not any(each.state == "running" for each in trials)


@pytest.mark.thorough
def test_another_engine_serves_the_same_file(workspace: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("deephyper")
    study = made(workspace, tmp_path, STUDY.replace("sampler: random", "engine: deephyper, sampler: random"), trials=2)
    trials = workspace.studies.run(study, workers=2)
    assert states(trials) == {"done": 2}
    assert {each.run for each in trials} == {run.id for run in workspace.runs.select(study.id)}
