"""Tuning by Optuna: real studies on a real journal, shared by real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from extras import needs_extra

from fairmile.base.errors import Conflict, Integrity, UsageError
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning import optuna_engine
from fairmile.sweeps.tuning.engine import Outcome, Settings
from fairmile.sweeps.tuning.optuna_engine import OptunaEngine

LOSS = Objective("loss", "lower")
PLANE = {"x": {"kind": "uniform", "low": -1, "high": 1}, "y": {"kind": "uniform", "low": -1, "high": 1}}
STEPS = 9


def engine(folder: Path, *, axes=PLANE, objectives=(LOSS,), spent=None, stop_early=None, **settings) -> OptunaEngine:
    return OptunaEngine(folder, axes, objectives, Settings(**settings), spent=spent, stop_early=stop_early)


def work(study: OptunaEngine, execute, *, at_once: int = 1, stop=lambda: False) -> OptunaEngine:
    study.work(execute, at_once=at_once, worker="me", stop=stop)
    return study


def bowl(trial, report) -> Outcome:
    return Outcome("done", ((trial.params["x"] - 0.3) ** 2 + (trial.params["y"] + 0.2) ** 2,))


def learning(trial, report) -> Outcome:
    """Train for nine epochs: the further x is from 0.3 the worse, from the first epoch on."""
    loss = 0.0
    for step in range(1, STEPS + 1):
        loss = abs(trial.params["x"] - 0.3) + 1 / step
        if reason := report(step, loss):
            return Outcome("pruned", (loss,), reason=reason)
    return Outcome("done", (loss,), run=f"run-{trial.number}")


def params(study: OptunaEngine) -> list[dict]:
    return [dict(each.params) for each in study.trials()]


def best(study: OptunaEngine) -> float:
    return min(each.values[0] for each in study.trials() if each.state == "done")


@pytest.fixture(scope="module")
def luck(tmp_path_factory) -> list[float]:
    """What 30 random trials find, for five seeds."""
    return [
        best(work(engine(tmp_path_factory.mktemp("random"), sampler="random", trials=30, seed=seed), bowl))
        for seed in range(5)
    ]


class TestSamplers:
    @pytest.mark.parametrize(
        "sampler", ["tpe", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("gp", "cma-es", "nsga-ii"))]
    )
    def test_each_finds_a_minimum_that_bad_luck_at_random_does_not(self, tmp_path, luck, sampler):
        trials = 14 if sampler == "gp" else 30  # ten of GP's are by chance
        study = work(engine(tmp_path, sampler=sampler, trials=trials, seed=1), bowl)
        assert len(study.trials()) == trials
        assert best(study) < max(luck)

    @pytest.mark.thorough
    @pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cma-es", "nsga-ii"])
    def test_a_seed_repeats_a_study_also_when_it_is_interrupted_and_resumed(self, tmp_path, sampler):
        trials = 12  # the first ten of most samplers are by chance
        whole = params(work(engine(tmp_path / "whole", sampler=sampler, trials=trials, seed=5), bowl))
        parts = engine(tmp_path / "parts", sampler=sampler, trials=trials, seed=5)
        work(parts, bowl, stop=lambda: len(parts.trials()) == 6)
        work(engine(tmp_path / "parts", sampler=sampler, trials=trials, seed=5), bowl)
        assert params(parts) == whole
        assert len({json.dumps(each) for each in whole}) > 8
        other = work(engine(tmp_path / "other", sampler=sampler, trials=2, seed=6), bowl)
        assert params(other) != whole[:2]

    def test_a_grid_does_each_point_once_and_ends(self, tmp_path):
        axes = {
            "kind": {"kind": "choice", "choices": ["a", "b"]},
            "x": {"kind": "uniform", "low": 0, "high": 0.3, "step": 0.1, "when": "kind == 'b'"},
        }
        study = work(engine(tmp_path, axes=axes, sampler="grid"), lambda *_: Outcome("done", (1.0,)), at_once=2)
        points = sorted(params(study), key=lambda each: each.get("x", -1))
        assert points == [{"kind": "a"}, *({"kind": "b", "x": x} for x in (0.0, 0.1, 0.2, 0.3))]

    def test_a_grid_is_cut_by_a_number_of_trials(self, tmp_path):
        axes = {"n": {"kind": "integer", "low": 1, "high": 9}}
        study = work(engine(tmp_path, axes=axes, sampler="grid", trials=3), lambda *_: Outcome("done", (1.0,)))
        assert params(study) == [{"n": 1}, {"n": 2}, {"n": 3}]

    @pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "nsga-ii"])
    def test_a_parameter_exists_only_under_its_condition(self, tmp_path, sampler):
        axes = {
            "momentum": {"kind": "uniform", "low": 0, "high": 1, "step": 0.1, "when": "optimizer == 'sgd'"},
            "optimizer": {"kind": "choice", "choices": ["adam", "sgd"]},
            "width": {"kind": "integer", "low": 1, "high": 1024, "log": True},
        }
        study = engine(tmp_path, axes=axes, sampler=sampler, trials=12, seed=1)
        seen = []
        work(study, lambda trial, _: seen.append(trial.params) or Outcome("done", (trial.params["width"],)))
        assert params(study) == seen
        assert {each["optimizer"] for each in seen} == {"adam", "sgd"}
        assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in seen)
        assert all(isinstance(each["width"], int) for each in seen)
        assert all(each.get("momentum", 0) in [tenth / 10 for tenth in range(11)] for each in seen)

    @pytest.mark.thorough
    @pytest.mark.parametrize("sampler", ["nsga-ii", "tpe", "gp", "random"])
    def test_several_objectives_give_a_front(self, tmp_path, sampler):
        objectives = (Objective("error", "lower"), Objective("speed", "higher"))
        axes = {"x": {"kind": "uniform", "low": 0, "high": 2}, "y": {"kind": "uniform", "low": 0, "high": 1}}

        def trade(trial, report):
            report(1, 0.5)
            return Outcome("done", (trial.params["x"] ** 2 + trial.params["y"], trial.params["x"] - trial.params["y"]))

        trials, options = (10, {"n_startup_trials": 6}) if sampler == "gp" else (30, {})
        study = work(
            engine(tmp_path, axes=axes, objectives=objectives, sampler=sampler, trials=trials, seed=2, options=options),
            trade,
        )
        values = [each.values for each in study.trials()]
        front = {(a, b) for a, b in values if not any(c <= a and d >= b and (c, d) != (a, b) for c, d in values)}
        assert len(values) == trials
        assert 2 <= len(front) < trials
        if sampler != "random":
            # Only y spoils both: the last proposals know that better than the first.
            ys = [each["y"] for each in params(study)]
            assert sum(ys[-4:]) < sum(ys[:4])


class TestPruners:
    @pytest.mark.parametrize(
        "pruner", ["asha", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("hyperband", "median"))]
    )
    def test_bad_trials_are_stopped_and_the_best_is_not(self, tmp_path, pruner):
        settings = {"pruner": pruner, "steps": STEPS, "sampler": "random", "trials": 30, "seed": 4}
        study = work(engine(tmp_path, **settings), learning)
        records = study.trials()
        stopped = [each for each in records if each.state == "pruned"]
        done = [each for each in records if each.state == "done"]
        assert len(stopped) + len(done) == 30
        assert len(stopped) >= 10
        distance = {each.number: abs(each.params["x"] - 0.3) for each in records}
        assert min(distance, key=distance.__getitem__) in {each.number for each in done}
        assert all(len(each.curve) < STEPS for each in stopped)
        assert all(pruner in study.reasons()[each.number] for each in stopped)

    @pytest.mark.thorough
    def test_asha_needs_at_most_half_the_steps_for_the_same_best(self, tmp_path):
        common = {"sampler": "random", "trials": 30, "seed": 4}
        full = work(engine(tmp_path / "full", **common), learning)
        asha = work(engine(tmp_path / "asha", pruner="asha", **common), learning)
        assert best(asha) == best(full)
        assert sum(len(each.curve) for each in asha.trials()) <= sum(len(each.curve) for each in full.trials()) / 2

    @pytest.mark.thorough
    def test_bohb_is_tpe_with_hyperband(self, tmp_path):
        study = work(
            engine(tmp_path, sampler="tpe", pruner="hyperband", steps=STEPS, trials=30, seed=4), learning, at_once=3
        )
        states = [each.state for each in study.trials()]
        assert len(states) == 30
        assert states.count("pruned") > 0
        assert states.count("done") > 0

    def test_a_pruned_trial_keeps_its_last_value_and_its_curve(self, tmp_path):
        study = work(engine(tmp_path, pruner="asha", sampler="random", trials=12, seed=4), learning)
        stopped = [each for each in study.trials() if each.state == "pruned"]
        assert stopped
        for each in stopped:
            step, value = each.curve[-1]
            assert each.values == (value,)
            assert value == abs(each.params["x"] - 0.3) + 1 / step

    def test_no_trial_is_stopped_before_the_first_step_allowed_or_at_its_last(self, tmp_path):
        study = work(
            engine(tmp_path, pruner="asha", min_steps=3, steps=STEPS, sampler="random", trials=20, seed=4), learning
        )
        ends = {len(each.curve) for each in study.trials() if each.state == "pruned"}
        assert ends == {3}

    @pytest.mark.thorough
    def test_where_nobody_says_how_long_trials_are_the_first_one_that_is_done_tells(self, tmp_path):
        def slow(trial, report):
            for step in range(1, 28):
                if reason := report(step, abs(trial.params["x"] - 0.3) + 1 / step):
                    return Outcome("pruned", reason=reason)
            return Outcome("done", (abs(trial.params["x"] - 0.3),))

        study = work(engine(tmp_path, pruner="asha", sampler="random", trials=20, seed=4), slow)
        assert study.trials()[0].state == "done"
        assert {len(each.curve) for each in study.trials() if each.state == "pruned"} <= {3, 9}
        assert any(each.state == "pruned" for each in study.trials())

    @pytest.mark.parametrize("pruner", ["asha", "hyperband"])
    def test_a_trial_that_diverges_is_stopped_and_spoils_no_curve(self, tmp_path, pruner):
        def diverging(trial, report):
            for step in range(1, STEPS + 1):
                if reason := report(step, float("inf") if trial.number == 3 and step > 1 else 0.5 - step / 100):
                    return Outcome("pruned", (), reason=reason)
            return Outcome("done", (0.4,))

        better = (Objective("accuracy", "higher"),)
        settings = {"pruner": pruner, "steps": STEPS, "sampler": "random", "trials": 4, "seed": 4}
        study = work(engine(tmp_path, objectives=better, **settings), diverging)
        record = study.trials()[3]
        assert record.state == "pruned"
        assert record.curve == ((1.0, 0.49),)
        assert "nan at step" in study.reasons()[3]

    def test_fewer_steps_are_kept_late_in_a_long_curve(self, tmp_path):
        def long(trial, report):
            for batch in range(0, 10_000):
                report(batch / 2, 1.0)
            return Outcome("done", (1.0,))

        (record,) = work(engine(tmp_path, trials=1), long).trials()
        steps = [step for step, _ in record.curve]
        assert steps[:50] == [float(step) for step in range(50)]
        assert 100 < len(steps) < 400
        assert steps[-1] > 4900

    def test_a_curve_that_will_not_reach_the_best_can_be_stopped_by_whoever_judges_it(self, tmp_path):
        asked = []

        def stop_early(finished, curve):
            asked.append((len(finished), curve[-1][0]))
            return "will not reach 0.1" if len(curve) == 4 else ""

        def worse_each_time(trial, report):
            for step in range(1, STEPS + 1):
                if reason := report(step, trial.number + 1 / step):
                    return Outcome("pruned", (trial.number + 1 / step,), reason=reason)
            return Outcome("done", (trial.number + 1 / STEPS,))

        study = work(engine(tmp_path, trials=4, startup=2, min_steps=2, stop_early=stop_early), worse_each_time)
        assert [each.state for each in study.trials()] == ["done", "done", "pruned", "pruned"]
        assert asked == [(2, 2), (2, 3), (2, 4)] * 2
        assert study.reasons() == {2: "will not reach 0.1", 3: "will not reach 0.1"}


class TestOutcomes:
    def test_a_failed_program_fails_its_trial_with_the_reason_and_is_not_tried_again(self, tmp_path):
        study = engine(tmp_path, trials=3)
        work(study, lambda trial, _: Outcome("failed", reason=f"exit code {trial.number}", run=f"r{trial.number}"))
        assert [(each.state, each.values, each.run) for each in study.trials()] == [
            ("failed", (), f"r{number}") for number in range(3)
        ]
        assert study.reasons() == {number: f"exit code {number}" for number in range(3)}

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            ((float("nan"),), "loss is nan, expected a finite number"),
            ((float("inf"),), "loss is inf, expected a finite number"),
            ((), "it returned 0 values for 1 objectives"),
        ],
    )
    def test_a_value_that_cannot_be_compared_fails_its_trial(self, tmp_path, values, reason):
        study = work(engine(tmp_path, trials=1), lambda *_: Outcome("done", values))
        assert study.trials()[0].state == "failed"
        assert study.reasons() == {0: reason}

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the disk is on fire")])
    def test_a_trial_that_is_interrupted_is_done_again_later(self, tmp_path, error):
        def interrupted(trial, report):
            if trial.number == 1:
                raise error
            return bowl(trial, report)

        study = engine(tmp_path, trials=3, seed=1)
        with pytest.raises(type(error)):
            work(study, interrupted)
        assert [each.state for each in study.trials()] == ["done", "failed"]
        assert study.reasons()[1].startswith("interrupted: ")
        work(engine(tmp_path, trials=3, seed=1), bowl)
        records = study.trials()
        assert [each.state for each in records] == ["done", "failed", "done", "done"]
        assert records[2].params == records[1].params

    def test_an_error_in_one_of_several_threads_ends_the_work_and_is_raised(self, tmp_path):
        def broken(trial, report):
            if trial.number == 2:
                raise RuntimeError("broken")
            return bowl(trial, report)

        study = engine(tmp_path, trials=1000, sampler="random")
        with pytest.raises(RuntimeError, match="broken"):
            work(study, broken, at_once=3)
        assert len(study.trials()) < 1000
        assert not [each for each in study.trials() if each.state == "running"]

    def test_a_trial_that_runs_shows_its_curve_its_worker_and_when_it_began(self, tmp_path):
        study, seen = engine(tmp_path, trials=1), []

        def look(trial, report):
            report(1, 0.75)
            seen.extend(engine(tmp_path, trials=1).trials())
            return bowl(trial, report)

        before = time.time()
        work(study, look)
        (record,) = seen
        assert (record.state, record.curve, record.worker, record.values) == ("running", ((1.0, 0.75),), "me", ())
        assert before - 1 <= record.started <= time.time()
        assert record.ended is None
        (ended,) = study.trials()
        assert ended.ended is not None
        assert ended.ended >= record.started

    def test_nothing_is_said_on_standard_error(self, tmp_path, capfd):
        work(engine(tmp_path, sampler="tpe", pruner="asha", trials=15), learning)
        assert capfd.readouterr() == ("", "")


class TestBudgets:
    def test_threads_never_exceed_the_number_of_trials(self, tmp_path):
        study = work(engine(tmp_path, sampler="random", trials=20), bowl, at_once=4)
        assert [each.state for each in study.trials()] == ["done"] * 20
        work(study, bowl, at_once=4)
        assert len(study.trials()) == 20

    def test_so_many_trials_run_at_once_as_was_said(self, tmp_path):
        together = threading.Barrier(3, timeout=120)

        def meet(trial, report):
            together.wait()
            return bowl(trial, report)

        assert len(work(engine(tmp_path, sampler="random", trials=3), meet, at_once=3).trials()) == 3

    def test_no_trial_begins_after_the_time_is_over(self, tmp_path):
        assert len(work(engine(tmp_path, time_s=1e-6), bowl).trials()) == 1

    def test_time_in_which_nothing_runs_does_not_count(self, tmp_path):
        settings = Settings(trials=2, time_s=1e6)
        study = OptunaEngine(tmp_path, PLANE, (LOSS,), settings, clock=lambda: time.time() + 1e9)  # left for 30 years
        assert len(work(study, bowl).trials()) == 2

    @pytest.mark.parametrize("name", ["node_hours", "energy_j"])
    def test_no_trial_begins_after_hours_or_energy_are_spent(self, tmp_path, name):
        done = []
        study = engine(tmp_path, spent=lambda: {name: 10.0 * len(done)}, **{name: 25.0})
        work(study, lambda *given: done.append(1) or bowl(*given))
        assert len(study.trials()) == 3

    def test_a_lost_trial_does_not_wait_where_the_budget_is_spent(self, tmp_path):
        def interrupted(trial, report):
            raise KeyboardInterrupt

        study = engine(tmp_path, trials=3)
        with pytest.raises(KeyboardInterrupt):
            work(study, interrupted)
        assert study.waiting() == 1
        assert engine(tmp_path, energy_j=0.5, spent=lambda: {"energy_j": 1.0}).waiting() == 0

    def test_a_budget_that_nobody_measures_is_refused(self, tmp_path):
        with pytest.raises(UsageError, match="energy_j needs a function"):
            work(engine(tmp_path, energy_j=1.0), bowl)

    def test_who_works_can_be_told_to_stop(self, tmp_path):
        study = engine(tmp_path, trials=10)
        work(study, bowl, stop=lambda: len(study.trials()) >= 2)
        assert len(study.trials()) == 2


WORKER = """
import os, signal, sys, time
from pathlib import Path
from fairmile.sweeps.tuning.engine import Outcome, Settings
from fairmile.sweeps.tuning.optuna_engine import OptunaEngine
from fairmile.sweeps.model import Objective

folder, victim = Path(sys.argv[1]), sys.argv[2] == "victim"
axes = {"x": {"kind": "uniform", "low": -1, "high": 1}}
engine = OptunaEngine(folder, axes, [Objective("loss", "lower")], Settings(trials=20, sampler="tpe", seed=3))

def execute(trial, report):
    report(1, 1.0)
    (folder / f"began-{os.getpid()}").touch()
    while victim or len(list(folder.glob("began-*"))) < 4:
        time.sleep(0.01)
    return Outcome("done", (trial.params["x"] ** 2,))

engine.work(execute, at_once=1, worker=str(os.getpid()), stop=lambda: False)
"""
SHARED = {"x": {"kind": "uniform", "low": -1, "high": 1}}


def _lives(worker: str) -> bool:
    try:
        os.kill(int(worker), 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> tuple[Path, str]:
    """A study of 20 trials after four processes: three did what they could, one was killed in its first trial."""
    folder = tmp_path_factory.mktemp("left")
    roles = ["victim", "worker", "worker", "worker"]
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(folder), role]) for role in roles]
    try:
        assert [each.wait(120) for each in workers[1:]] == [0, 0, 0]
    finally:
        for each in workers:
            each.send_signal(signal.SIGKILL)
            each.wait()
    return folder, str(workers[0].pid)


@pytest.fixture
def abandoned(left, tmp_path) -> tuple[OptunaEngine, str]:
    """That study, to do with it what one likes."""
    shutil.copytree(left[0], tmp_path / "study")
    return engine(tmp_path / "study", axes=SHARED, trials=20, sampler="tpe", seed=3), left[1]


class TestManyProcesses:
    @pytest.mark.thorough
    def test_they_share_one_study_and_a_killed_one_leaves_no_trial_running(self, abandoned):
        study, victim = abandoned
        before = study.trials()
        assert sorted(each.state for each in before) == ["done"] * 19 + ["running"]
        assert len({each.worker for each in before}) == 4
        assert len({each.params["x"] for each in before}) == 20
        (lost,) = [each for each in before if each.state == "running"]
        assert lost.worker == victim

        assert study.reap(lambda worker: worker != victim or _lives(worker)) == 1
        assert study.reap(lambda worker: True) == 0
        assert study.trials()[lost.number].state == "failed"
        assert study.reasons()[lost.number] == f"its worker {victim} died"

        work(study, lambda trial, _: Outcome("done", (trial.params["x"] ** 2,)))
        after = study.trials()
        assert [each.state for each in after].count("done") == 20
        assert len(after) == 21
        assert after[20].params == lost.params
        assert (after[20].state, after[20].worker) == ("done", "me")

    def test_a_trial_that_is_lost_twice_is_given_up(self, abandoned):
        study, _ = abandoned
        assert study.reap(_lives) == 1

        def vanish(trial, report):
            return Outcome("running")

        work(study, vanish)
        states = [each.state for each in study.trials()]
        assert sorted(states) == ["done"] * 19 + ["failed"] * 2

    def test_workers_that_live_keep_their_trials(self, abandoned):
        study, _ = abandoned
        assert study.reap(lambda worker: True) == 0
        assert [each.state for each in study.trials()].count("running") == 1

    def test_a_worker_that_was_taken_for_dead_stops_and_spoils_nothing(self, tmp_path):
        study = engine(tmp_path, trials=1)

        def suspended(trial, report):
            if trial.number == 0:
                assert engine(tmp_path, trials=1).reap(lambda worker: False) == 1
                assert "seemed lost" in report(1, 0.5)
                assert "seemed lost" in report(2, 0.5)
            return bowl(trial, report)

        work(study, suspended)
        assert [each.state for each in study.trials()] == ["failed", "done"]

    def test_a_worker_that_died_while_choosing_is_recognised_without_its_name(self, tmp_path):
        die = "engine.space.draw = lambda choose: os.kill(os.getpid(), 9)"
        code = WORKER.replace("engine.work(", f"{die}\nengine.work(")
        killed = subprocess.run([sys.executable, "-c", code, str(tmp_path), "worker"])
        assert killed.returncode == -signal.SIGKILL
        study = engine(tmp_path, axes=SHARED, trials=20, sampler="tpe", seed=3)
        assert [(each.state, each.worker) for each in study.trials()] == [("running", "")]
        assert study.reap(lambda worker: True) == 1
        assert study.reasons() == {0: "its worker died before the trial started"}
        work(study, lambda trial, _: Outcome("done", (trial.params["x"] ** 2,)))
        assert [each.state for each in study.trials()] == ["failed"] + ["done"] * 20


class TestJournal:
    def test_a_line_that_was_cut_off_costs_no_study(self, tmp_path):
        work(engine(tmp_path, trials=2, seed=1), bowl)
        with open(tmp_path / "journal.log", "ab") as stream:
            stream.write(b'{"op_code":4,"worker_id":"abc","stu')
        assert len(engine(tmp_path, trials=2).trials()) == 2
        study = work(engine(tmp_path, trials=4, seed=1), bowl)
        assert len(study.trials()) == 4
        lines = (tmp_path / "journal.log").read_bytes().splitlines()
        assert all(json.loads(line) for line in lines)

    def test_a_damaged_line_in_the_middle_is_named(self, tmp_path):
        work(engine(tmp_path, trials=2), bowl)
        path = tmp_path / "journal.log"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:3], b"\0" * 20 + b"\n", *lines[4:]]))
        with pytest.raises(Integrity, match=r"journal\.log:4: "):
            engine(tmp_path, trials=2).trials()

    def test_looking_at_a_study_that_was_not_begun_writes_nothing(self, tmp_path):
        study = engine(tmp_path / "none", trials=2)
        assert (study.trials(), study.reasons(), study.reap(lambda worker: False)) == ((), {}, 0)
        assert not (tmp_path / "none").exists()

    def test_a_lock_left_by_a_killed_process_does_not_hold_up_the_study(self, tmp_path):
        take = "from fairmile.base.files import Lock; Lock(sys.argv[1]).__enter__()"
        held = f"import sys; {take}; print(flush=True); input()"
        for name in ("choosing.lock", "journal.log.lock"):
            command = [sys.executable, "-c", held, str(tmp_path / name)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdout.readline()
                process.kill()
            assert (tmp_path / name).exists()
        assert len(work(engine(tmp_path, trials=2), bowl).trials()) == 2

    @pytest.mark.parametrize(
        ("changed", "what"),
        [
            ({"axes": {**PLANE, "y": {"kind": "uniform", "low": -2, "high": 1}}}, "distributions"),
            ({"objectives": (Objective("loss", "higher"),)}, "objectives"),
        ],
    )
    def test_a_study_cannot_be_resumed_as_another_one(self, tmp_path, changed, what):
        work(engine(tmp_path, trials=2), bowl)
        with pytest.raises(Conflict, match=f"other {what}"):
            work(engine(tmp_path, trials=4, **changed), bowl)


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with needs_extra("tune"):
        engine(tmp_path, trials=1)


@pytest.mark.parametrize(("sampler", "package"), [("gp", "torch"), ("cma-es", "cmaes")])
def test_what_a_sampler_needs_is_named(tmp_path, monkeypatch, sampler, package):
    known = optuna_engine.find_spec
    monkeypatch.setattr(optuna_engine, "find_spec", lambda name: None if name == package else known(name))
    with needs_extra("predict" if package == "torch" else "tune", f"the sampler {sampler} needs {package}"):
        engine(tmp_path, sampler=sampler, trials=1)


def test_the_module_is_read_without_optuna():
    code = "import sys, fairmile.sweeps.tuning.optuna_engine; assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
