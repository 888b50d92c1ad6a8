"""Tuning by DeepHyper: real searches, with records that outlive them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from fairmile.base.errors import Conflict, UsageError
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.deephyper_engine import DeepHyperEngine
from fairmile.sweeps.tuning.engine import Outcome, Settings

LOSS = Objective("loss", "lower")
AXES = {
    "x": {"kind": "uniform", "low": -1, "high": 1},
    "width": {"kind": "integer", "low": 1, "high": 64, "log": True},
    "layers": {"kind": "integer", "low": 2, "high": 10, "step": 4},
    "drop": {"kind": "uniform", "low": 0, "high": 0.5, "step": 0.1},
    "optimizer": {"kind": "choice", "choices": ["sgd", None, 3]},
    "momentum": {"kind": "uniform", "low": 0, "high": 0.9, "when": "optimizer == 'sgd'"},
}
STEPS = 9


def engine(folder: Path, *, axes=AXES, objectives=(LOSS,), stop_early=None, spent=None, **settings) -> DeepHyperEngine:
    made = Settings(engine="deephyper", seed=1, **settings)
    return DeepHyperEngine(folder, axes, objectives, made, stop_early=stop_early, spent=spent)


def work(study: DeepHyperEngine, execute, *, at_once: int = 1, stop=lambda: False) -> DeepHyperEngine:
    study.work(execute, at_once=at_once, worker="me", stop=stop)
    return study


def learning(trial, report) -> Outcome:
    loss = 0.0
    for step in range(1, STEPS + 1):
        loss = abs(trial.params["x"] - 0.3) + 1 / step
        if reason := report(step, loss):
            return Outcome("pruned", (loss,), reason=reason)
    return Outcome("done", (loss,), run=f"run-{trial.number}")


@pytest.mark.thorough
def test_every_kind_of_parameter_stays_in_its_range_and_conditions_hold(tmp_path):
    study = work(engine(tmp_path, sampler="random", trials=12), learning, at_once=2)
    assert [each.number for each in study.trials()] == list(range(12))
    for each in study.trials():
        assert -1 <= each.params["x"] <= 1 and each.params["layers"] in (2, 6, 10)
        assert each.params["drop"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert type(each.params["width"]) is int and 1 <= each.params["width"] <= 64
        assert ("momentum" in each.params) == (each.params["optimizer"] == "sgd")
        assert each.state == "done" and len(each.curve) == STEPS and each.run == f"run-{each.number}"
    assert {each.params["optimizer"] for each in study.trials()} == {"sgd", None, 3}


def test_the_search_learns_where_the_loss_is_low(tmp_path):
    axes = {"x": AXES["x"], "y": AXES["x"]}

    def bowl(trial, report):
        return Outcome("done", ((trial.params["x"] - 0.3) ** 2 + (trial.params["y"] + 0.2) ** 2,))

    found = work(engine(tmp_path, axes=axes, trials=25), bowl).trials()
    early, late = ([each.values[0] for each in part] for part in (found[:8], found[-8:]))
    assert sorted(late)[4] < sorted(early)[4] / 2


@pytest.mark.thorough
def test_weak_trials_are_stopped_with_a_reason_and_none_at_its_last_step(tmp_path):
    study = work(engine(tmp_path, sampler="random", trials=12, pruner="asha", steps=STEPS), learning)
    pruned = [each for each in study.trials() if each.state == "pruned"]
    assert len(pruned) >= 4
    assert all(study.reasons()[each.number].startswith("asha: ") for each in pruned)
    assert max(each.curve[-1][0] for each in pruned) < STEPS
    best = min(study.trials(), key=lambda each: abs(each.params["x"] - 0.3))
    assert best.state == "done"


def test_a_stopped_study_goes_on_where_it_was_with_the_trials_that_are_missing(tmp_path):
    done = []

    def counted(trial, report):
        done.append(trial.number)
        return learning(trial, report)

    work(engine(tmp_path, trials=6), counted, stop=lambda: len(done) >= 4)
    assert done == [0, 1, 2, 3]
    study = work(engine(tmp_path, trials=6), counted)
    assert done == [0, 1, 2, 3, 4, 5] and [each.state for each in study.trials()] == ["done"] * 6
    assert len({each.params["x"] for each in study.trials()}) == 6, "nothing is proposed twice"
    work(engine(tmp_path, trials=6), counted)
    assert len(done) == 6, "a study whose budget is spent does nothing"


def test_a_trial_lost_with_its_worker_is_reaped_and_done_once_more(tmp_path):
    def dies(trial, report):
        report(1, 0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(engine(tmp_path, trials=3), dies)
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "end"
    (tmp_path / "trials.jsonl").write_text("\n".join(lines[:-1]) + '\n{"event": "val')  # killed before it could tell
    study = engine(tmp_path, trials=3)
    assert [each.state for each in study.trials()] == ["running"]
    assert study.reap(lambda worker: worker == "me") == 0
    assert study.reap(lambda worker: False) == 1 and study.waiting() == 1
    assert [each.state for each in study.trials()] == ["failed"] and "me died" in study.reasons()[0]
    work(study, learning)
    assert study.waiting() == 0
    states = [each.state for each in study.trials()]
    assert states == ["failed", "done", "done", "done"], "the lost one does not count"
    assert study.trials()[1].params == study.trials()[0].params


def test_a_trial_that_is_lost_twice_counts_and_is_given_up(tmp_path):
    study = work(engine(tmp_path, sampler="random", trials=2), lambda trial, report: Outcome("running", run="r"))
    assert [each.state for each in study.trials()] == ["failed"] * 4
    assert [each.params for each in study.trials()][::2] == [each.params for each in study.trials()][1::2]
    assert all(each.run == "r" for each in study.trials())
    assert study.waiting() == 0


def test_a_lost_trial_does_not_wait_where_the_budget_is_spent(tmp_path):
    study = engine(tmp_path, sampler="random", trials=3)
    with pytest.raises(KeyboardInterrupt):
        work(study, _interrupted)
    assert study.waiting() == 1
    ended = engine(tmp_path, sampler="random", time_s=1.0, spent=lambda: {"energy_j": 1.0}, energy_j=0.5)
    assert ended.waiting() == 0


def _interrupted(trial, report):
    raise KeyboardInterrupt


def test_only_one_process_works_at_a_time(tmp_path):
    def second(trial, report):
        with pytest.raises(Conflict, match="another process is running this study"):
            work(engine(tmp_path, trials=1), learning)
        return learning(trial, report)

    assert [each.state for each in work(engine(tmp_path, sampler="random", trials=1), second).trials()] == ["done"]


def test_what_is_no_number_is_not_compared_and_not_in_the_curve(tmp_path):
    def diverged(trial, report):
        assert report(1, float("nan")) == report(2, float("inf")) == ""
        report(3, 0.5)
        return Outcome("done", (0.5,))

    study = work(engine(tmp_path, sampler="random", trials=2, pruner="asha", steps=STEPS), diverged)
    assert [each.curve for each in study.trials()] == [((3.0, 0.5),)] * 2


@pytest.mark.thorough
def test_failures_and_values_that_are_no_numbers_are_recorded_and_the_search_goes_on(tmp_path):
    def sometimes(trial, report):
        if trial.number % 3 == 1:
            return Outcome("failed", reason="exit code 1")
        return Outcome("done", (float("nan") if trial.number == 2 else 0.5,))

    study = work(engine(tmp_path, trials=13), sometimes)  # ten are chosen by chance, the others by the search
    assert len(study.trials()) == 13
    assert study.reasons()[1] == "exit code 1" and "expected a finite number" in study.reasons()[2]


def test_an_error_of_execution_ends_the_work_and_is_raised(tmp_path):
    def broken(trial, report):
        raise OSError("the disk is gone")

    for at_once in (1, 2):
        with pytest.raises(OSError, match="disk is gone"):
            work(engine(tmp_path / str(at_once), trials=5), broken, at_once=at_once)


def test_several_trials_run_at_once_and_several_objectives_are_one_search(tmp_path):
    both = threading.Barrier(2, timeout=120)

    def execute(trial, report):
        both.wait()
        return Outcome("done", (trial.params["x"] ** 2, trial.params["width"]))

    objectives = (LOSS, Objective("speed", "higher"))
    study = work(engine(tmp_path, objectives=objectives, trials=4), execute, at_once=2)
    assert all(len(each.values) == 2 for each in study.trials()) and len(study.trials()) == 4


def test_extrapolation_is_asked_with_what_is_done(tmp_path):
    asked = []

    def stop_early(finished, curve):
        asked.append((len(finished), len(curve)))
        return "it will not reach the best" if len(curve) == 3 else ""

    study = work(engine(tmp_path, sampler="random", trials=4, startup=2, steps=STEPS, stop_early=stop_early), learning)
    assert [each.state for each in study.trials()] == ["done", "done", "pruned", "pruned"]
    assert asked == [(2, 1), (2, 2), (2, 3)] * 2


def test_what_the_engine_does_not_have_and_what_changed_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no sampler 'nsga-ii'"):
        engine(tmp_path, sampler="nsga-ii")
    with pytest.raises(UsageError, match="no pruner 'median'"):
        engine(tmp_path, pruner="median", steps=9)
    work(engine(tmp_path, trials=1), learning)
    with pytest.raises(Conflict, match="other distributions"):
        work(engine(tmp_path, axes={"x": AXES["x"]}, trials=2), learning)
