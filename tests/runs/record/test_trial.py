"""What a trial came to, by the record of its run."""

from __future__ import annotations

import math

import pytest
from cases import for_each

from fairmile.runs.record.record import Metric
from fairmile.runs.record.run import RunState
from fairmile.runs.record.trial import STOPPED_EARLY, TrialResult, trial_result
from fairmile.runs.record.values import Better

NAN = math.nan


def logged(**values: float) -> dict[str, Metric]:
    """Return metrics that were logged once each."""
    return {
        name: Metric(value=each, first=each, min=each, max=each, mean=each, count=1) for name, each in values.items()
    }


@for_each(
    "state, reason, metrics, expected",
    [
        ("done", "", {"loss": 0.5}, TrialResult("done", (0.5,))),
        ("done", "", {}, TrialResult("failed", reason="the metric 'loss' was never logged")),
        ("done", "", {"loss": NAN}, TrialResult("failed", reason="the metric 'loss' ended as nan")),
        ("cancelled", f"{STOPPED_EARLY}weak", {"loss": 0.5}, TrialResult("pruned", (0.5,), "weak")),
        ("cancelled", f"{STOPPED_EARLY}weak", {"loss": NAN}, TrialResult("pruned", (), "weak")),
        ("cancelled", "ended by TERM", {"loss": 0.5}, TrialResult("running", reason="ended by TERM")),
        ("failed", "exit code 3", {"loss": 0.5}, TrialResult("failed", reason="exit code 3")),
        ("interrupted", "", {}, TrialResult("failed", reason="interrupted")),
        ("running", "", {"loss": 0.5}, TrialResult("running")),
    ],
)
def test_a_trial_is_what_its_run_came_to(
    state: str, reason: str, metrics: dict[str, float], expected: TrialResult
) -> None:
    assert trial_result(RunState(state), reason, logged(**metrics), {"loss": "lower"}) == expected


def test_each_objective_needs_a_value() -> None:
    goals: dict[str, Better] = {"speed": "higher", "loss": "lower"}
    assert trial_result(RunState.DONE, "", logged(loss=0.5, speed=3.0), goals) == TrialResult("done", (3.0, 0.5))
    assert trial_result(RunState.DONE, "", logged(loss=0.5), goals).state == "failed"


@pytest.mark.parametrize(("better", "expected"), [("lower", 0.2), ("higher", 0.9)])
def test_the_value_of_a_trial_is_the_best_over_its_steps(better: Better, expected: float) -> None:
    curve = Metric(value=0.5, first=0.9, min=0.2, max=0.9, mean=0.5, count=3)
    assert trial_result(RunState.DONE, "", {"loss": curve}, {"loss": better}).values == (expected,)


def test_the_values_of_several_objectives_are_of_one_moment() -> None:
    curve = Metric(value=0.5, first=0.9, min=0.2, max=0.9, mean=0.5, count=3)
    goals: dict[str, Better] = {"loss": "lower", "speed": "higher"}
    assert trial_result(RunState.DONE, "", {"loss": curve, "speed": curve}, goals).values == (0.5, 0.5)
