"""Tuning by Ray Tune: real searches, schedulers and populations, with records that outlive them."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from sweep_making import workspace_here

from fairmile.base.errors import Conflict, UsageError
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning import ray_engine
from fairmile.sweeps.tuning.engine import Outcome, Settings
from fairmile.sweeps.tuning.ray_engine import RayEngine
from fairmile.sweeps.tuning.study import work as study_work

# Ray leaves sockets and pipes to the garbage collector, and forks while its own threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::FutureWarning:ray.*",
    "ignore::UserWarning:ray.*",
    "ignore::optuna.exceptions.ExperimentalWarning",
)

LOSS = Objective("loss", "lower")
AXES = {
    "x": {"kind": "uniform", "low": -1, "high": 1},
    "a/b.c": {"kind": "integer", "low": 1, "high": 64, "log": True},
    "optimizer": {"kind": "choice", "choices": ["sgd", None]},
    "momentum": {"kind": "uniform", "low": 0, "high": 0.9, "step": 0.1, "when": "optimizer == 'sgd'"},
}
STEPS = 9


def engine(folder: Path, *, axes=AXES, objectives=(LOSS,), stop_early=None, **settings) -> RayEngine:
    return RayEngine(folder, axes, objectives, Settings(engine="ray", seed=1, **settings), stop_early=stop_early)


def work(study: RayEngine, execute, *, at_once: int = 1, stop=lambda: False) -> RayEngine:
    study.work(execute, at_once=at_once, worker="me", stop=stop)
    return study


def learning(trial, report) -> Outcome:
    """Train for nine epochs: the further x is from 0.3 the worse, from the first epoch on; every fifth fails."""
    if trial.number % 5 == 4:
        return Outcome("failed", reason="exit code 1")
    loss = 0.0
    for step in range(1, STEPS + 1):
        loss = abs(trial.params["x"] - 0.3) + 1 / step
        if reason := report(step, loss):
            return Outcome("pruned", (loss,), reason=reason)
    return Outcome("done", (loss,), run=f"run-{trial.number}")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    """One Ray for all: each start takes many seconds."""
    with (
        ray_engine._environment(ray_engine._ENVIRONMENT),
        TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as scratch,
        ray_engine._ray_running(2, Path(scratch)),
    ):
        yield


@pytest.fixture(scope="module")
def asha(tmp_path_factory) -> RayEngine:
    """A study whose execution broke at trial 6, which lost one more, and then went on to fourteen."""
    folder = tmp_path_factory.mktemp("asha")

    def breaking(trial, report):
        if trial.number == 6:
            raise OSError("the disk is gone")
        return learning(trial, report)

    settings = {"sampler": "tpe", "pruner": "asha", "steps": STEPS, "trials": 14}
    study = engine(folder, **settings)
    with pytest.raises(OSError, match="disk is gone"):
        work(study, breaking, at_once=2)
    count = len(study.trials())
    assert count in (7, 8), "an error ends the work, and what is under way comes to its end"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ray-desk")]
    with open(folder / "trials.jsonl", "a") as stream:
        lost = {"event": "start", "number": count, "params": {"x": 0.31}, "worker": "gone", "at": 1.0}
        stream.write(json.dumps(lost) + '\n{"event": "val')
    study = engine(folder, **settings)
    assert [each.state for each in study.trials()].count("running") == 1
    assert study.reap(lambda worker: worker == "gone") == 0
    assert study.reap(lambda worker: worker == "me") == 1
    return work(study, learning)


@pytest.mark.thorough
def test_a_resumed_study_does_what_is_missing_and_lost_trials_once_more(asha):
    trials = asha.trials()
    lost = [n for n, why in asha.reasons().items() if why.startswith("interrupted") or "gone died" in why]
    assert lost[0] == 6 and "disk is gone" in asha.reasons()[6]
    assert len(trials) - len(lost) == 14, "the lost ones do not count"
    assert all(each.state != "running" and each.worker in ("me", "gone") for each in trials)
    for number in lost:
        assert [each.params for each in trials].count(trials[number].params) == 2
    assert [each.params for each in trials].count({"x": 0.31}) == 2


def test_asha_stops_weak_trials_with_a_reason_and_none_at_its_last_step(asha):
    pruned = [each for each in asha.trials() if each.state == "pruned"]
    done = [each for each in asha.trials() if each.state == "done"]
    assert len(pruned) >= 4 and done
    assert all(asha.reasons()[each.number].startswith("asha: ") for each in pruned)
    assert {each.curve[-1][0] for each in pruned} <= {1.0, 3.0}
    assert all(len(each.curve) == STEPS and each.run == f"run-{each.number}" for each in done)
    best = min(done, key=lambda each: each.values)
    assert all(each.curve[-1][1] >= 1 / each.curve[-1][0] for each in pruned)
    assert best.values[0] <= min(abs(each.params["x"] - 0.3) for each in pruned) + 1 / STEPS


def test_failures_are_recorded_and_the_search_goes_on(asha):
    failed = {number for number, why in asha.reasons().items() if why == "exit code 1"}
    assert failed == {4, 9, 14} & ({each.number for each in asha.trials()} - _lost(asha))
    assert 4 in failed


def _lost(study: RayEngine) -> set[int]:
    return {number for number, why in study.reasons().items() if " died" in why}


def test_parameters_stay_in_their_ranges_and_conditions_hold(asha):
    for each in asha.trials():
        if each.params == {"x": 0.31}:
            continue
        assert -1 <= each.params["x"] <= 1 and 1 <= each.params["a/b.c"] <= 64
        assert ("momentum" in each.params) == (each.params["optimizer"] == "sgd")


@pytest.mark.parametrize("late", [2, 3])
def test_ray_is_started_again_where_the_host_was_too_busy(late, monkeypatch, tmp_path):
    started, ended = [], []

    def init(**settings):
        started.append(settings)
        if len(started) <= late:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, shutdown=lambda: ended.append(1)))
    with pytest.raises(Exception, match="timed out") if late == 3 else nullcontext():
        ray_engine._start_ray(2, tmp_path)
    assert (len(started), len(ended)) == (3, late)


def test_a_study_is_read_without_ray_and_not_begun_again_with_other_axes(asha, tmp_path):
    folder = asha.records.path.parent
    assert engine(folder).trials() == asha.trials()
    with pytest.raises(Conflict, match="other distributions"):
        work(engine(folder, axes={"x": AXES["x"]}, trials=2), learning)
    with pytest.raises(Conflict, match="other objectives"):
        work(engine(folder, objectives=[Objective("loss", "higher")], trials=2), learning)


@pytest.mark.thorough
def test_members_of_a_population_go_on_from_the_checkpoints_of_better_ones(tmp_path):
    executed = []

    def generation(trial, report):
        """Go on by x for every step; the checkpoint is how far it came."""
        start = json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else {"at": 0, "sum": 0.0}
        far = start["sum"] + (trial.until - start["at"]) * trial.params["x"]
        assert report(trial.until, far) == ""
        left = tmp_path / f"checkpoint-{trial.number}-{trial.generation}"
        left.write_text(json.dumps({"at": trial.until, "sum": far}))
        executed.append((trial, far))
        return Outcome("done", (far,), checkpoint=str(left), run=f"run-{trial.number}-{trial.generation}")

    def make():
        higher = [Objective("far", "higher")]
        return engine(tmp_path / "study", objectives=higher, sampler="pbt", population=3, steps=9, interval=2)

    work(make(), generation, stop=lambda: len(executed) >= 6)
    assert len(executed) == 6, "a stopped population is not finished"
    study = work(make(), generation)
    keys = [(trial.number, trial.generation) for trial, _ in executed]
    assert len(set(keys)) == len(keys), "no generation of a member is executed twice"
    assert {number for number, _ in keys} == {0, 1, 2}
    begun = {trial.number for trial, _ in executed if not trial.checkpoint}
    assert begun == {0, 1, 2} and sum(not trial.checkpoint for trial, _ in executed) == 3
    foreign = [t for t, _ in executed if t.checkpoint and f"checkpoint-{t.number}-" not in t.checkpoint]
    assert foreign, "somebody went on from another's checkpoint"
    assert all(-1 <= trial.params["x"] <= 1 for trial, _ in executed), "changed values stay in their range"
    records = study.trials()
    assert [each.state for each in records] == ["done"] * 3
    last = {trial.number: (trial, far) for trial, far in executed}
    for each in records:
        trial, far = last[each.number]
        assert trial.until == 9 and each.values == (far,) and each.params == trial.params
        assert each.run == f"run-{each.number}-{trial.generation}"
    count = len(executed)
    work(make(), generation)
    assert len(executed) == count, "a finished population has nothing left to do"


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


@pytest.mark.thorough
def test_a_population_of_runs_exchanges_its_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workspace = workspace_here(tmp_path)
    (tmp_path / "grow.sh").write_text(GROWING)
    (tmp_path / "tune.yaml").write_text(
        "name: grow\ncommand: sh grow.sh {gain}\nevery: 0\naxes: {gain: {integer: [1, 100]}}\n"
        "objective: {total: higher}\n"
        "tuning: {engine: ray, sampler: pbt, population: 2, interval: 2, steps: 4, seed: 1}\n"
    )
    study = workspace.studies.create(*workspace.sweeps.read([tmp_path / "tune.yaml"]))
    study_work(study.folder, os.environ, at_once=2, launch=())  # as a process of its own does, but by this Ray
    trials = workspace.studies.trials(study)
    assert [each.state for each in trials] == ["done", "done"]
    runs = workspace.runs.select(study.id)
    assert {run.trial.generation for run in runs} > {0}
    gone_on = [run for run in runs if run.trial.generation]
    assert all(run.metrics["total"].count == 2 for run in gone_on)
    assert workspace.studies.best(study)[0].values[0] == max(run.metrics["total"].value for run in gone_on)


@pytest.mark.thorough
def test_what_the_engine_does_not_have_is_refused(tmp_path):
    for settings, message in (
        ({"sampler": "gp"}, "no sampler 'gp'"),
        ({"pruner": "median"}, "no pruner 'median'"),
        ({"pruner": "asha"}, "needs the last step"),
        ({"sampler": "pbt"}, "needs the last step"),
        ({"sampler": "pbt", "steps": 9, "trials": 7}, "4 members, not 7 trials"),
        ({"sampler": "pbt", "steps": 9, "population": 1}, "two members"),
    ):
        with pytest.raises(UsageError, match=message):
            engine(tmp_path, **settings)
