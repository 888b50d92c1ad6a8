"""The rules that every engine holds to: when a budget is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import for_each

from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Settings, TrialRecord
from fairmile.sweeps.tuning.rules import Rules
from fairmile.sweeps.tuning.search_space import Space
from fairmile.sweeps.tuning.trial_log import Entry

HOUR_S = 3600.0


def rules(now_h: float, **settings: float) -> Rules:
    """Return the rules of a study whose ended trials took 4 node hours, on two nodes each, as seen at an hour."""
    return Rules(
        Path(),
        Space({"x": {"kind": "uniform", "low": 0, "high": 1}}),
        [Objective("loss", "lower")],
        Settings(**settings),  # type: ignore[arg-type]
        spent=lambda: {"node_hours": 4.0, "energy_j": 10.0, "nodes": 2.0},
        clock=lambda: now_h * HOUR_S,
    )


ENDED, RUNNING = (0.0, 2 * HOUR_S), (2 * HOUR_S, None)


@for_each("now_h, is_spent", [(2.0, False), (4.4, False), (4.5, True)])
def test_trials_that_run_count_in_node_hours_as_far_as_they_are(now_h: float, is_spent: bool) -> None:
    assert rules(now_h, node_hours=9.0).is_spent(2, [ENDED, RUNNING]) is is_spent


def test_energy_is_known_of_ended_trials_only() -> None:
    assert not rules(1000.0, energy_j=11.0).is_spent(2, [ENDED, RUNNING])
    assert rules(2.0, energy_j=10.0).is_spent(2, [ENDED, RUNNING])


@pytest.mark.parametrize(("now_h", "is_spent"), [(2.9, False), (3.0, True)])
def test_time_counts_once_where_several_trials_run(now_h: float, is_spent: bool) -> None:
    assert rules(now_h, time_s=3 * HOUR_S).is_spent(3, [ENDED, RUNNING, RUNNING]) is is_spent


def test_of_a_member_of_a_population_only_the_generation_that_runs_is_still_running() -> None:
    assert Entry(0, {}, started=1.0, since=7.0).spans() == [(1.0, 7.0), (7.0, None)]
    assert Entry(0, {}, started=1.0, since=7.0, ended=9.0).spans() == [(1.0, 9.0)]


def test_a_trial_that_is_told_too_late_to_stop_has_its_curve_kept_to_the_end() -> None:
    kept: list[tuple[float, float]] = []
    asked: list[float] = []

    def keep(step: float, value: float) -> str:
        kept.append((step, value))
        return ""

    def decide(step: float, value: float) -> str:
        asked.append(step)
        return "weak" if step == 2 else ""

    report = rules(1.0).reporter(keep, decide, list)
    assert [report(step, 1.0 / step) for step in range(1, 5)] == ["", "weak", "weak", "weak"]
    assert kept == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert asked == [1, 2], "what was stopped once is not judged again"


@for_each(
    "settings, done, told",
    [
        ({}, [], ["weak"] * 4),
        ({"steps": 4}, [], ["weak", "weak", "weak", ""]),  # at its last step it is done
        ({}, [0.4, 0.9], ["weak", "weak", "", ""]),  # better than all that are done
    ],
)
def test_a_stop_is_taken_back_at_the_last_step_and_from_the_best(
    settings: dict[str, float], done: list[float], told: list[str]
) -> None:
    finished = [TrialRecord(at, "done", {}, (value,)) for at, value in enumerate(done)]
    report = rules(1.0, **settings).reporter(
        lambda *_: "", lambda step, _: "weak" if step == 1 else "", lambda: finished
    )
    assert [report(step, 1.0 / step) for step in range(1, 5)] == told


def test_a_trial_that_was_given_to_another_worker_stays_stopped() -> None:
    finished = [TrialRecord(0, "done", {}, (9.0,))]
    report = rules(1.0).reporter(lambda step, _: "lost" if step == 1 else "", lambda *_: "", lambda: finished)
    assert [report(step, 1.0) for step in (1, 2)] == ["lost", "lost"]
