"""What a run that is a trial of a study came to: one answer for the engine, the terminal, JSON and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.tail import Tail
from fairmile.runs.record.record import Metric
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import Better

ON_REQUEST = "cancelled on request"  # the reason of a run that somebody cancelled alone: it is not tried again
STOPPED_EARLY = "stopped early: "  # how the reason of a run begins that a pruner stopped


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended, with the best value of its objective over all steps; of several, the last value of each.

    A trial that is `running` has not ended, or was interrupted from outside and may be retried.
    """

    state: Literal["running", "done", "pruned", "failed"]
    values: tuple[float, ...] = ()
    reason: str = ""


def is_trial(run: Run) -> bool:
    """Tell whether a run is a trial of a study."""
    return run.trial is not None


def result_of(run: Run) -> TrialResult:
    """Return what a trial came to, by the record of its run."""
    return trial_result(run.state, run.reason, run.metrics, run.trial.objectives if run.trial is not None else {})


def trial_result(
    state: RunState, reason: str, metrics: Mapping[str, Metric], objectives: Mapping[str, Better]
) -> TrialResult:
    """Return what a trial came to, by the state, the reason and the metrics of its run.

    A program that ended by itself is done, whatever a pruner said meanwhile: only one that was stopped is pruned.
    """
    last = {name: metrics[name].value for name in objectives if name in metrics}
    is_usable = len(last) == len(objectives) and all(map(math.isfinite, last.values()))
    values = tuple(objective_value(metrics[name], name, objectives) for name in objectives) if is_usable else ()
    if state is RunState.CANCELLED and reason.startswith(STOPPED_EARLY):
        return TrialResult("pruned", values, reason.removeprefix(STOPPED_EARLY))
    if state is RunState.CANCELLED and reason == ON_REQUEST:
        return TrialResult("failed", reason=reason)
    if state in (RunState.QUEUED, RunState.RUNNING, RunState.CANCELLED):
        return TrialResult("running", reason=reason)
    if state is not RunState.DONE:
        return TrialResult("failed", reason=reason or str(state))
    for name in objectives if not is_usable else ():
        if not math.isfinite(value := last.get(name, math.nan)):
            why = f"ended as {value}" if name in last else "was never logged"
            return TrialResult("failed", reason=f"the metric {name!r} {why}")
    return TrialResult("done", values)


def objective_value(metric: Metric, name: str, objectives: Mapping[str, Better]) -> float:
    """Return the value of a trial by one of its metrics: of a single objective the best over all steps, else the last.

    The values of several objectives must be of one moment, since no trial had the best of each at once.
    """
    if list(objectives) != [name]:
        return metric.value
    best = {"lower": metric.min, "higher": metric.max}.get(objectives[name], metric.value)
    return best if math.isfinite(best) else metric.value


def step_of_best(run: Run) -> float | None:
    """Return the step at which a trial logged its value; None where its log is packed or gone, or has no such value."""
    objectives = run.trial.objectives if run.trial is not None else {}
    name = next(iter(objectives), "")
    if len(objectives) != 1 or name not in run.metrics or run.packed:
        return None
    best, count = objective_value(run.metrics[name], name, objectives), 0
    for each in Tail(run.folder).new():
        if each.name == name:
            count += 1
            if each.value == best:
                return count if each.step is None else each.step
    return None
