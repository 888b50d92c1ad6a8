"""What a run that is a trial of a study came to: one answer for the engine, the terminal, JSON and pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fairmile.runs.record.run import Run, RunState

STOPPED_EARLY = "stopped early: "  # how the reason of a run begins that a pruner stopped


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended, with the last value of each objective.

    A trial that is `running` has not ended, or was interrupted from outside and may be tried again.
    """

    state: Literal["running", "done", "pruned", "failed"]
    values: tuple[float, ...] = ()
    reason: str = ""


def is_trial(run: Run) -> bool:
    """Tell whether a run is a trial of a study."""
    return run.trial is not None


def result_of(run: Run) -> TrialResult:
    """Return what a trial came to, by the record of its run."""
    metrics = {name: metric.value for name, metric in run.metrics.items()}
    return trial_result(run.state, run.reason, metrics, run.trial.objectives if run.trial is not None else ())


def trial_result(state: RunState, reason: str, metrics: Mapping[str, float], objectives: Iterable[str]) -> TrialResult:
    """Return what a trial came to, by the state, the reason and the last values of its run.

    A program that ended by itself is done, whatever a pruner said meanwhile: only one that was stopped is pruned.
    """
    names = list(objectives)
    finite = [metrics[name] for name in names if math.isfinite(metrics.get(name, math.nan))]
    values = tuple(finite) if len(finite) == len(names) else ()
    if state is RunState.CANCELLED and reason.startswith(STOPPED_EARLY):
        return TrialResult("pruned", values, reason.removeprefix(STOPPED_EARLY))
    if state in (RunState.QUEUED, RunState.RUNNING, RunState.CANCELLED):
        return TrialResult("running", reason=reason)
    if state is not RunState.DONE:
        return TrialResult("failed", reason=reason or str(state))
    for name in names if len(values) < len(names) else ():
        if not math.isfinite(found := metrics.get(name, math.nan)):
            why = f"ended as {found}" if name in metrics else "was never logged"
            return TrialResult("failed", reason=f"the metric {name!r} {why}")
    return TrialResult("done", values)
