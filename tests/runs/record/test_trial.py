"""What a trial came to, by the record of its run."""

from __future__ import annotations

import math

import pytest

from fairmile.runs.record.run import RunState
from fairmile.runs.record.trial import STOPPED_EARLY, TrialResult, trial_result

NAN = math.nan


@pytest.mark.parametrize(
    ("state", "reason", "metrics", "expected"),
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
    assert trial_result(RunState(state), reason, metrics, ["loss"]) == expected


def test_each_objective_needs_a_value() -> None:
    values = {"loss": 0.5, "speed": 3.0}
    assert trial_result(RunState.DONE, "", values, ["speed", "loss"]) == TrialResult("done", (3.0, 0.5))
    assert trial_result(RunState.DONE, "", {"loss": 0.5}, ["loss", "speed"]).state == "failed"
