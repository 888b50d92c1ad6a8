"""Tuning studies: the way to the best, where trials were stopped, what mattered, which goals compete, what it cost."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_making import CREATED, make_run, metric_document

from fairmile.base.errors import UsageError
from fairmile.reports import study
from fairmile.reports.leaderboard import competition, leaderboard
from fairmile.reports.measures import counts, ending
from fairmile.reports.page import report
from fairmile.reports.study import front, goals_of, history, importance, spent, total, trial_curves
from fairmile.reports.sweep import survey
from fairmile.runs.record.record import TrialReference
from fairmile.runs.record.run import Run, RunState

_NS = 1_000_000_000


def trial(
    tmp_path: Path,
    number: int,
    loss: float | None,
    *,
    state: str = "done",
    params: Mapping[str, Any] | None = None,
    curve: Sequence[float] = (),
    speed: float | None = None,
    trial: Mapping[str, Any] | None = None,
    **said: Any,
) -> Run:
    metrics = {} if loss is None else {"loss": metric_document(loss, better="lower")}
    metrics |= {} if speed is None else {"throughput": metric_document(speed, better="higher")}
    head = {"writer": {"host": "n1", "rank": 0, "wall_ns": int(CREATED * _NS), "clock_ns": 0}, "p": 1}
    logged = [{"log": {"loss": y}, "step": at, "at": at * _NS, "p": 1} for at, y in enumerate(curve, 1)]
    facts = {
        "name": "digits", "group": "tune", "created": CREATED + number, "metrics": metrics,
        "params": params or {"lr": number}, "events": [head, *logged] if logged else [],
        "state": {"done": "done", "pruned": "cancelled", "failed": "failed"}.get(state, state),
    }  # fmt: skip
    run = make_run(tmp_path, f"tune-{number}", **(facts | said))
    goals = {"throughput": "higher"} if loss is None and speed is not None else {"loss": "lower"}
    said_of_it = {"study": "tune", "number": number, "generation": 0, "objectives": goals, **(trial or {})}
    run.record.trial = TrialReference.from_dict(said_of_it)
    if state == "pruned":
        run.result.reason = "stopped early: weak"
    return run


def searched(tmp_path: Path, count: int = 60) -> list[Run]:
    """Return trials whose loss depends on lr, on the optimizer a little, and on the seed not at all."""
    random_numbers = random.Random(5)
    runs = []
    for at in range(count):
        lr, optimizer = 10 ** random_numbers.uniform(-4, 0), random_numbers.choice(["sgd", "adam"])
        loss = 0.1 + (math.log10(lr) + 2) ** 2 + (0.2 if optimizer == "sgd" else 0)
        params = {"lr": lr, "optimizer": optimizer, "seed": random_numbers.randint(0, 10**6)}
        runs.append(trial(tmp_path, at, loss, params=params))
    return runs


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("done", "", "done"),
        ("cancelled", "stopped early: weak", "pruned"),
        ("cancelled", "ended by TERM", "cancelled"),
        ("timeout", "", "timeout"),
        ("interrupted", "", "interrupted"),
    ],
)
def test_a_trial_counts_as_its_run_ended(tmp_path: Path, state: str, reason: str, expected: str) -> None:
    run = trial(tmp_path, 0, 0.5, trial={"state": "pruned"})  # as earlier versions noted of those that ended, too
    run.result.state, run.result.reason = RunState(state), reason
    assert ending(run) == expected
    assert counts(run) is (expected in ("done", "pruned"))


def test_a_trial_without_a_value_of_its_objective_failed(tmp_path: Path) -> None:
    assert ending(trial(tmp_path, 0, None)) == "failed"
    assert ending(trial(tmp_path, 1, math.nan)) == "failed"


def test_the_best_of_all_that_was_measured_wins_also_where_its_trial_was_pruned(tmp_path: Path) -> None:
    runs = [trial(tmp_path, 0, 0.5), trial(tmp_path, 1, 0.1, state="pruned"), trial(tmp_path, 2, 0.6)]
    assert competition(runs, "loss").winner.id == "tune-1"
    assert len(leaderboard(runs, "loss").places) == 3
    text = report(runs).markdown("f")
    assert "Best loss: 0.1 (trial 1: lr=1). This trial was pruned." in text


def test_the_best_value_is_told_with_the_step_at_which_it_was_measured(tmp_path: Path) -> None:
    early = trial(tmp_path, 0, 0.5, curve=[0.9, 0.2, 0.5])
    early.metrics["loss"].min = 0.2
    text = report([early, trial(tmp_path, 1, 0.3, curve=[0.8, 0.4, 0.3])]).markdown("f")
    assert "Best loss: 0.2 (trial 0, step 2: lr=0)." in text


def test_the_history_tells_the_best_so_far_of_those_that_count(tmp_path: Path) -> None:
    runs = [
        trial(tmp_path, 2, 0.1, state="pruned"),
        trial(tmp_path, 0, 0.9),
        trial(tmp_path, 1, 0.5),
        trial(tmp_path, 3, None, state="failed"),
        trial(tmp_path, 4, 0.7),
    ]
    steps = history(runs, "loss", better="lower")
    assert [(each.number, each.ending, each.value, each.best) for each in steps] == [
        (0, "done", 0.9, 0.9), (1, "done", 0.5, 0.5), (2, "pruned", 0.1, 0.1), (3, "failed", None, 0.1),
        (4, "done", 0.7, 0.1),
    ]  # fmt: skip
    assert [each.number for each in steps if each.is_best] == [0, 1, 2]


def test_where_higher_is_better_the_highest_is_the_best(tmp_path: Path) -> None:
    runs = [trial(tmp_path, at, None, speed=speed) for at, speed in enumerate([1.0, 3.0, 2.0])]
    assert [each.best for each in history(runs, "throughput", better="higher")] == [1.0, 3.0, 3.0]


def test_generations_follow_each_other(tmp_path: Path) -> None:
    runs = [
        trial(tmp_path, 10, 0.2, trial={"number": 0, "generation": 1}),
        trial(tmp_path, 11, 0.4, trial={"number": 1, "generation": 0}),
        trial(tmp_path, 12, 0.5, trial={"number": 0, "generation": 0}),
    ]
    steps = history(runs, "loss", better="lower")
    assert [(each.generation, each.number) for each in steps] == [(0, 0), (0, 1), (1, 0)]


def test_of_many_trials_the_best_and_some_others_have_their_curves_read(tmp_path: Path) -> None:
    runs = [trial(tmp_path, at, 1.0 - at / 100, curve=[2.0, 1.0 - at / 100]) for at in range(30)]
    runs += [trial(tmp_path, 30 + at, 1.5, state="pruned", curve=[2.0, 1.5]) for at in range(30)]
    found = trial_curves(history(runs, "loss", better="lower"), "loss", better="lower", most=9)
    assert len(found.curves) == 9
    assert found.of == 60
    assert [each.step.number for each in found.curves[:3]] == [29, 28, 27]
    assert {each.step.ending for each in found.curves} == {"done", "pruned"}


def test_logs_that_are_too_large_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "_MOST_BYTES", 1)
    runs = [trial(tmp_path, at, 0.5, curve=[2.0, 0.5]) for at in range(5)]
    found = trial_curves(history(runs, "loss", better="lower"), "loss", better="lower")
    assert (len(found.curves), found.of) == (1, 5)


@pytest.mark.thorough
def test_a_forest_finds_what_matters_and_what_does_not(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    found = importance(survey(searched(tmp_path), "loss"))
    assert found is not None
    assert found.shares[0].name == "lr"
    assert found.shares[0].share > 0.7
    assert {each.name: each.share for each in found.shares}["seed"] < 0.1
    assert math.fsum(each.share for each in found.shares) == pytest.approx(1)
    assert found.explained is not None and found.explained > 0.5
    assert "random forest" in found.method


def test_without_scikit_learn_variances_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "find_spec", lambda name: None)
    found = importance(survey(searched(tmp_path), "loss"))
    assert found is not None
    assert found.shares[0].name == "lr"
    assert "without scikit-learn" in found.method


def test_too_few_trials_tell_nothing_of_importance(tmp_path: Path) -> None:
    assert importance(survey(searched(tmp_path, 9), "loss")) is None
    few = importance(survey(searched(tmp_path / "b", 12), "loss"))
    assert few is not None and "fewer than 20 values" in few.method
    assert few.shares[0].name == "lr" and few.shares[0].share > 0.3, "though each trial has a rate of its own"
    same = [trial(tmp_path / "c", at, 0.5, params={"lr": at}) for at in range(12)]
    assert importance(survey(same, "loss")) is None


@pytest.mark.thorough
def test_a_conditional_parameter_is_weighed_too(tmp_path: Path) -> None:
    of = {0: {"optimizer": "adam"}, 1: {"optimizer": "sgd"}}
    runs = [
        trial(tmp_path, at, float(at % 2), params=of[at % 2] | ({"momentum": at} if at % 2 else {})) for at in range(40)
    ]
    found = importance(survey(runs, "loss"))
    assert found is not None
    assert {each.name for each in found.shares} == {"optimizer", "momentum"}


def test_on_the_front_no_point_is_beaten(tmp_path: Path) -> None:
    pairs = [(0.1, 10.0), (0.2, 30.0), (0.3, 20.0), (0.4, 40.0), (0.4, 35.0)]
    runs = [trial(tmp_path, at, loss, speed=speed) for at, (loss, speed) in enumerate(pairs)]
    found = front(survey(runs, "loss"), [("loss", ""), ("throughput", "")])
    assert [found.values(point) for point in found.points] == [(0.1, 10.0), (0.2, 30.0), (0.4, 40.0)]
    assert len(found.beaten) == 2
    assert found.goals == (("loss", "lower"), ("throughput", "higher"))


def test_equal_points_are_both_on_the_front(tmp_path: Path) -> None:
    runs = [trial(tmp_path, at, 0.1, speed=1.0) for at in range(2)]
    assert len(front(survey(runs, "loss"), [("loss", ""), ("throughput", "")]).points) == 2


def test_one_goal_makes_no_front(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two objectives"):
        front(survey([trial(tmp_path, 0, 0.1)], "loss"), [("loss", "lower")])


def test_what_was_spent_is_told_by_ending_and_counts_nodes(tmp_path: Path) -> None:
    runs = [
        trial(tmp_path, 0, 0.1, elapsed_s=3600.0, energy_j=100.0, captured={"scheduler": {"nodes": 4}}),
        trial(tmp_path, 1, 0.2, elapsed_s=1800.0, energy_j=None, state="pruned"),
    ]
    done, pruned = spent(runs)
    assert (done.ending, done.trials, done.elapsed_s, done.node_h, done.energy_j) == ("done", 1, 3600.0, 4.0, 100.0)
    assert (pruned.ending, pruned.node_h, pruned.metered) == ("pruned", 0.5, 0)
    assert (total([done, pruned]).node_h, total([done, pruned]).metered) == (4.5, 1)


def test_trials_can_name_their_objectives(tmp_path: Path) -> None:
    runs = [trial(tmp_path, 0, 0.1, trial={"objectives": {"loss": "lower", "throughput": "higher"}})]
    assert goals_of(runs) == [("loss", "lower"), ("throughput", "higher")]
    assert goals_of([trial(tmp_path, 1, 0.1, trial={"objectives": {}})]) == []


def test_the_page_of_a_study_shows_the_whole_of_it(tmp_path: Path) -> None:
    runs = [
        trial(tmp_path, at, 1.0 - at / 50, speed=float(at % 7), curve=[2.0, 1.5, 1.0 - at / 50]) for at in range(20)
    ]
    runs += [trial(tmp_path, 20 + at, 1.5, state="pruned", curve=[2.0, 1.5]) for at in range(5)]
    runs += [trial(tmp_path, 25, None, state="failed", result={"reason": "out of memory"})]
    rows = [{"method": "least squares", "right": 17, "of": 20}]
    made = report(runs, objectives=[("loss", "lower"), ("throughput", "higher")], hindsight=rows)
    text = made.markdown("f")
    for words in (
        "# digits · tune (20 done, 5 pruned, 1 failed)",
        "26 trials",
        "> 1 of 26 runs failed: 1 × out of memory.",
        "best throughput",  # each goal has its best
        "Trial 19 was the best by loss; 6 more followed without a better value.",
        "## Importance of parameters",
        "from 25 trials",
        "## Pareto front",
        "## Early stopping in hindsight",
        "| least squares | 17 | 20 |",
        "## Cost",
        "| pruned | 5 |",
        "## All trials",
    ):
        assert words in text, words
    assert text.index("## Pareto front") < text.index("## Progress of the study")
    assert text.count("★ front") > 1
    names = [picture.name for picture in made.pictures]
    assert {"history", "trial-curves", "importance", "slices-loss", "pareto"} <= set(names)
    assert "fairmile rerun tune-20" not in text  # pruned is not failed
    document = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert document["study"]["trials"][25] == {
        "number": 25, "generation": 0, "state": "failed", "value": None, "best": pytest.approx(0.62), "run": "tune-25",
    }  # fmt: skip
    assert document["leaderboard"]["places"][0]["best_run"] == "tune-19"


def test_a_study_whose_trials_all_failed_is_still_shown(tmp_path: Path) -> None:
    runs = [trial(tmp_path, at, None, state="failed", result={"reason": "no GPU"}) for at in range(3)]
    text = report(runs, objectives=[("loss", "lower"), ("throughput", "higher")]).markdown("f")
    assert "3 of 3 runs failed: 3 × no GPU." in text
    assert "## Cost" in text
