"""What every engine holds to, whoever chooses: one study in a folder, its budget, values that count, and curves."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import Conflict, UsageError
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Report, Settings, StopEarly, TrialRecord
from fairmile.sweeps.tuning.search_space import Space

# Asked at each new value of a trial, as (step, value): why it is to be stopped, or "". NaN stands for no finite number.
Decide = Callable[[float, float], str]


class Rules:
    """The rules of one study; see MakeEngine for what `spent` and `stop_early` tell."""

    def __init__(
        self,
        folder: Path,
        space: Space,
        objectives: Sequence[Objective],
        settings: Settings,
        *,
        spent: Callable[[], Mapping[str, float]] | None = None,
        stop_early: StopEarly | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.space = space
        self.objectives = tuple(objectives)
        self.settings = settings
        self.clock = clock
        self._spent = spent
        self._stop_early = stop_early

    def check_measured(self) -> None:
        """Raise UsageError for a budget of which nobody tells what was spent."""
        for name in ("node_hours", "energy_j"):
            if getattr(self.settings, name) is not None and self._spent is None:
                raise UsageError(f"a budget of {name} needs a function that reports what was spent")

    def made_of(self) -> dict[str, Any]:
        """Return, as JSON, what cannot change while a study lasts."""
        made_of = {"space": self.space.described(), "objectives": [[one.metric, one.better] for one in self.objectives]}
        return dict(json.loads(json.dumps(made_of)))

    def check_same(self, before: Mapping[str, Any]) -> None:
        """Raise Conflict where the study was begun with other distributions or objectives."""
        for key, words in (("objectives", "objectives"), ("space", "distributions")):
            if before.get(key) != self.made_of()[key]:
                raise Conflict(
                    f"the study in {self.folder} was started with other {words}",
                    hint="give the changed study another name, or undo the change",
                )

    def is_spent(self, taken: int, spans: Iterable[tuple[float, float | None]]) -> bool:
        """Tell whether the budget allows no further trial after `taken` ones, which ran from when to when (or still).

        Time counts while at least one trial runs. Node hours count also of trials that run, as far as they are.
        """
        limits, spans, now = self.settings, list(spans), self.clock()
        if limits.trials is not None and taken >= limits.trials:
            return True
        if limits.time_s is not None and _covered_s(spans, now) >= limits.time_s:
            return True
        if self._spent is None or (limits.node_hours is None and limits.energy_j is None):
            return False
        spent = dict(self._spent())
        running_s = sum(max(0.0, now - start) for start, end in spans if end is None)
        spent["node_hours"] = spent.get("node_hours", 0.0) + running_s * spent.get("nodes", 1.0) / 3600
        pairs = (("node_hours", limits.node_hours), ("energy_j", limits.energy_j))
        return any(limit is not None and spent.get(name, 0.0) >= limit for name, limit in pairs)

    def why_unusable(self, values: Sequence[float]) -> str:
        """Return why the values of a finished trial cannot be compared, or ""."""
        if len(values) != len(self.objectives):
            return f"it returned {len(values)} values for {len(self.objectives)} objectives"
        for objective, value in zip(self.objectives, values, strict=True):
            if not math.isfinite(value):
                return f"{objective.metric} is {value}, expected a finite number"
        return ""

    def weak(self, step: float, value: float) -> str:
        """Return the reason of a trial that the pruner stopped."""
        return f"{self.settings.pruner or 'Ray'}: {value:g} at step {step:g} is not among the best so far"

    def reporter(
        self, keep: Decide, decide: Decide, finished: Callable[[], Iterable[TrialRecord]], *, whole: bool = False
    ) -> Report:
        """Return what takes the values of one trial.

        `keep` writes a value down, and may return why the trial is not ours any more; `decide` is the engine's pruner.
        With `whole` steps the first value within one counts. Late in a long curve one step in fifty is kept, so that a
        record does not grow by every batch of a training. With several objectives nothing is kept or stopped. Whoever
        is told to stop and comes too late goes on to report: the curve is kept to its end. At its last step a trial is
        done, and one that is better than all that are done is not stopped: what was decided before is taken back.
        """
        curve: list[tuple[float, float]] = []
        why, gone = "", ""
        last = -math.inf

        def report(step: float, value: float) -> str:
            nonlocal last, why, gone
            if len(self.objectives) > 1 or not 0 <= step < math.inf:
                return ""
            step = int(step) if whole else step
            if step - last < max(last // 50, 1 if whole else 1e-9):
                return gone or why
            last, value = step, value if math.isfinite(value) else math.nan
            if math.isfinite(value):
                curve.append((step, value))
            gone = keep(step, value) or gone
            if self.settings.steps is not None and step >= self.settings.steps:
                why = ""
            else:
                why = why or self._why_stop(step, value, curve, decide, finished)
                why = "" if why and self._leads(value, finished()) else why
            return gone or why

        return report

    def _leads(self, value: float, trials: Iterable[TrialRecord]) -> bool:
        """Tell whether a value is better than those of all trials that are done."""
        done = [each.values[0] for each in trials if each.state == "done" and each.values]
        if not done or math.isnan(value):
            return False
        return value < min(done) if self.objectives[0].better == "lower" else value > max(done)

    def _why_stop(
        self,
        step: float,
        value: float,
        curve: Sequence[tuple[float, float]],
        decide: Decide,
        finished: Callable[[], Iterable[TrialRecord]],
    ) -> str:
        settings = self.settings
        why = decide(step, value)
        if why or self._stop_early is None or step < (settings.first_rung or 1) or math.isnan(value):
            return why
        done = [each for each in finished() if each.state == "done"]
        return self._stop_early(done, tuple(curve)) if len(done) >= settings.startup else ""


def together(step: Callable[[], bool], at_once: int) -> None:
    """Call `step` again and again, in so many threads, until it returns False or raises, which ends all of them.

    Returns when none is under way any more; what was raised first is raised here.
    """
    if at_once < 1:
        raise UsageError(f"the number of concurrent trials is {at_once}, expected at least 1")
    if at_once == 1:  # by this thread, the only one that signals reach
        while step():
            pass
        return
    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            while not errors and step():
                pass
        except BaseException as error:  # noqa: BLE001  raised again below, by the thread that called
            errors.append(error)

    threads = [threading.Thread(target=go_on, name=f"trials-{place}") for place in range(at_once)]
    for each in threads:
        each.start()
    for each in threads:
        while each.is_alive():
            try:
                each.join()
            except BaseException as error:  # noqa: BLE001  as above: what is under way ends first
                errors.append(error)
    if errors:
        raise errors[0]


def _covered_s(spans: Iterable[tuple[float, float | None]], now: float) -> float:
    """Return for how long at least one of several spans lasted."""
    total, covered = 0.0, -math.inf
    for start, end in sorted((start, now if end is None else end) for start, end in spans):
        total += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return total


def worker_words(worker: str) -> str:
    """Return who a worker was, for people; what names it in a study tells its life apart from every other."""
    facts = dict(line.split("=", 1) for line in worker.splitlines() if "=" in line)
    if not facts.get("pid"):
        return worker
    job = f", job {facts['job']}" if facts.get("job") else ""
    return f"(process {facts['pid']} on {facts.get('host', 'an unknown host')}{job})"
