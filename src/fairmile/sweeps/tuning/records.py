"""What engines without a store of their own keep of a study: one file of lines, readable without them.

`trials.jsonl` holds one event a line: `study` (what it is made of), `start`, `value` and `end` of trials. Lines are
only ever appended, each by one write; a line that a crash tore is passed over. A trial that was lost with its worker
does not count against the budget, and its parameters are given out once more.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import write_failure
from fairmile.runs.wording import Value
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Curve, Execute, Outcome, Settings, StopEarly, Trial, TrialRecord, TrialState
from fairmile.sweeps.tuning.space import Space

# Asked at each new value of a trial, as (step, value): why its engine stops it, or "".
Decide = Callable[[float, float], str]


@dataclass
class Entry:
    """A trial as its events tell it so far."""

    number: int
    params: Mapping[str, Value]
    worker: str = ""
    started: float = 0.0
    ended: float | None = None
    state: TrialState = "running"
    values: tuple[float, ...] = ()
    curve: list[tuple[float, float]] = field(default_factory=list)
    reason: str = ""
    run: str = ""
    lost: bool = False
    retry_of: int | None = None
    proposal: Mapping[str, Value] = field(default_factory=dict)  # what the engine proposed, where that is more
    generation: int = 0
    until: float | None = None
    checkpoint: str = ""  # what its last finished generation left
    reached: float = 0.0  # the step at which that one ended

    def record(self) -> TrialRecord:
        return TrialRecord(
            number=self.number,
            state=self.state,
            params=self.params,
            values=self.values,
            curve=tuple(self.curve),
            started=self.started,
            ended=self.ended,
            worker=self.worker,
            run=self.run,
        )


class Records:
    """The trials of one study in its folder, written by one process at a time and read by any.

    `spent` tells node hours (`node_hours`) and energy (`energy_j`) used so far; `stop_early` is asked at each new
    value of a curve.
    """

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
        self.path = folder / "trials.jsonl"
        self.space = space
        self.objectives = tuple(objectives)
        self.settings = settings
        self._spent = spent
        self._stop_early = stop_early
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[int, Entry] = {}
        self._made_of: Mapping[str, Any] | None = None
        self._read_bytes = 0
        self.interrupted = False  # what is stopped from now on was not judged, but lost

    def open(self) -> None:
        """Begin the study, or go on with it; Conflict where it was begun with other distributions or objectives."""
        for name in ("node_hours", "energy_j"):
            if getattr(self.settings, name) is not None and self._spent is None:
                raise UsageError(f"a budget of {name} needs someone who tells what was spent")
        now = {
            "space": self.space.described(),
            "objectives": [[each.metric, each.better] for each in self.objectives],
        }
        now = json.loads(json.dumps(now))
        self.entries()
        if self._made_of is None:
            self._append({"event": "study", **now})
            return
        for key, word in (("objectives", "objectives"), ("space", "distributions")):
            if self._made_of.get(key) != now[key]:
                raise Conflict(
                    f"the study in {self.path.parent} was begun with other {word}",
                    hint="give the changed study another name, or restore what the file said",
                )

    def entries(self) -> list[Entry]:
        """Return all trials in the order of their numbers, with what came to the file since the last call."""
        with self._lock:
            try:
                with open(self.path, "rb") as stream:
                    stream.seek(self._read_bytes)
                    data = stream.read()
            except FileNotFoundError:
                return []
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # torn by a crash
                if isinstance(event, dict):
                    self._take(event)
            return [self._entries[number] for number in sorted(self._entries)]

    def trials(self) -> tuple[TrialRecord, ...]:
        return tuple(entry.record() for entry in self.entries())

    def reasons(self) -> dict[int, str]:
        """Return why trials failed or were stopped, by number."""
        return {entry.number: entry.reason for entry in self.entries() if entry.reason}

    def reap(self, is_alive: Callable[[str], bool]) -> int:
        """Mark trials as failed whose worker is dead, and return how many."""
        running = [entry for entry in self.entries() if entry.state == "running"]
        dead = {worker for worker in {entry.worker for entry in running} if not worker or not is_alive(worker)}
        reaped = 0
        with self._lock:
            for entry in self.entries():
                if entry.state == "running" and entry.worker in dead:
                    self.lose(entry.number, f"its worker {' '.join(entry.worker.split())} is gone")
                    reaped += 1
        return reaped

    def is_spent(self) -> bool:
        """Tell whether the budget allows no further trial."""
        limits, entries = self.settings, self.entries()
        if limits.trials is not None and sum(not entry.lost for entry in entries) >= limits.trials:
            return True
        if limits.time_s is not None and _worked_s(entries, self._clock()) >= limits.time_s:
            return True
        if self._spent is None or (limits.node_hours is None and limits.energy_j is None):
            return False
        spent = self._spent()
        pairs = (("node_hours", limits.node_hours), ("energy_j", limits.energy_j))
        return any(limit is not None and spent.get(name, 0.0) >= limit for name, limit in pairs)

    def to_repeat(self) -> list[Entry]:
        """Return the trials that were lost with their worker and not yet begun again; none is repeated twice."""
        entries = self.entries()
        again = {entry.retry_of for entry in entries}
        return [e for e in entries if e.lost and e.retry_of is None and e.number not in again]

    def begin(
        self,
        params: Mapping[str, Value],
        worker: str,
        *,
        retry_of: int | None = None,
        proposal: Mapping[str, Value] | None = None,
    ) -> Trial:
        """Write down a new trial and return it with its number."""
        with self._lock:
            entries = self.entries()
            trial = Trial(entries[-1].number + 1 if entries else 0, dict(params))
            self.begin_generation(trial, worker, retry_of=retry_of, proposal=proposal)
        return trial

    def begin_generation(
        self,
        trial: Trial,
        worker: str,
        *,
        retry_of: int | None = None,
        proposal: Mapping[str, Value] | None = None,
    ) -> None:
        """Write down that a trial, or the next generation of one, is executed from now on."""
        event = {
            "event": "start",
            "number": trial.number,
            "params": dict(trial.params),
            "worker": worker,
            "at": self._clock(),
        }
        if trial.until is not None:
            event |= {"generation": trial.generation, "from": trial.checkpoint, "until": trial.until}
        if retry_of is not None:
            event["retry_of"] = retry_of
        if proposal is not None:
            event["proposal"] = dict(proposal)
        self._append(event)

    def carry_out(self, trial: Trial, execute: Execute, decide: Decide) -> Outcome:
        """Execute a trial that has begun and write down its values and its end; what execution raises is raised on."""
        try:
            outcome = execute(trial, self._reporter(trial, decide))
        except BaseException as error:
            self.lose(trial.number, f"interrupted: {str(error) or type(error).__name__}")
            raise
        if outcome.state == "running" or (outcome.state == "pruned" and self.interrupted):
            self.lose(trial.number, outcome.reason or "interrupted")
            return Outcome("failed", reason=outcome.reason or "interrupted", run=outcome.run)
        if outcome.state == "done" and (wrong := self._why_unusable(outcome.values)):
            outcome = Outcome("failed", reason=wrong, run=outcome.run)
        event = {
            "event": "end",
            "number": trial.number,
            "state": outcome.state,
            "values": [_plain(value) for value in outcome.values],
            "at": self._clock(),
        }
        event |= {name: text for name in ("reason", "run", "checkpoint") if (text := getattr(outcome, name))}
        self._append(event)
        return outcome

    def _reporter(self, trial: Trial, decide: Decide) -> Callable[[float, float], str]:
        """Return what takes the values of a trial; late in a long curve one step in fifty is kept."""
        curve: list[tuple[float, float]] = []
        stopped: list[str] = []

        def report(step: float, value: float) -> str:
            if stopped or len(self.objectives) > 1 or not 0 <= step < math.inf:
                return "".join(stopped)
            if curve and step - curve[-1][0] < max(curve[-1][0] // 50, 1e-9):
                return ""
            curve.append((step, value))
            self._append({"event": "value", "number": trial.number, "step": _whole(step), "value": _plain(value)})
            why = self._why_stop(curve, decide)
            if why:
                stopped.append(why)
            return why

        return report

    def _why_stop(self, curve: Curve, decide: Decide) -> str:
        settings, (step, value) = self.settings, curve[-1]
        # At its last step a trial is done, and to stop it would only spoil its record.
        if settings.steps is not None and step >= settings.steps:
            return ""
        why = decide(step, value)
        if why or self._stop_early is None or step < settings.min_steps:
            return why
        finished = [entry.record() for entry in self.entries() if entry.state == "done"]
        return self._stop_early(finished, tuple(curve)) if len(finished) >= settings.startup else ""

    def _why_unusable(self, values: Sequence[float]) -> str:
        if len(values) != len(self.objectives):
            return f"it gave {len(values)} values for {len(self.objectives)} objectives"
        for objective, value in zip(self.objectives, values, strict=True):
            if not math.isfinite(value):
                return f"{objective.metric} is {value}, which is no finite number"
        return ""

    def lose(self, number: int, reason: str) -> None:
        """Write down that a trial came to no end of its own; it does not count, and may be begun again."""
        self._append(
            {"event": "end", "number": number, "state": "failed", "lost": True, "reason": reason, "at": self._clock()}
        )

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "study":
            self._made_of = event
            return
        number = event.get("number")
        if not isinstance(number, int):
            return
        if kind == "start":
            self._take_start(number, event)
            return
        entry = self._entries.get(number)
        if entry is None:
            return
        if kind == "value":
            entry.curve.append((float(event["step"]), float(event["value"])))
        elif kind == "end":
            entry.state, entry.ended = event["state"], event["at"]
            entry.values = tuple(float(value) for value in event.get("values", ()))
            entry.reason, entry.run = event.get("reason", ""), event.get("run", entry.run)
            entry.lost = event.get("lost", False)
            if entry.until is not None and entry.state == "done":
                entry.checkpoint, entry.reached = event.get("checkpoint", ""), entry.until

    def _take_start(self, number: int, event: Mapping[str, Any]) -> None:
        before = self._entries.get(number)
        entry = Entry(
            number,
            event["params"],
            worker=event["worker"],
            started=event["at"],
            retry_of=event.get("retry_of"),
            proposal=event.get("proposal", {}),
            generation=event.get("generation", 0),
            until=event.get("until"),
        )
        if before is not None:  # the next generation, or the same one again: what was reached and seen stays
            entry.started, entry.curve, entry.values, entry.run = (
                before.started,
                before.curve,
                before.values,
                before.run,
            )
            entry.checkpoint, entry.reached = before.checkpoint, before.reached
        self._entries[number] = entry

    def _append(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    size = os.fstat(descriptor).st_size
                    # A crash may have left half a line: it ends here, so that this one stands alone.
                    ragged = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                    data = b"\n" + line if ragged else line
                    if os.write(descriptor, data) < len(data):
                        raise OSError(28, os.strerror(28))
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise write_failure(str(self.path), error) from error


def _worked_s(entries: Sequence[Entry], now: float) -> float:
    """Return for how long at least one trial ran; of those lost with their worker nobody knows until when."""
    spans = sorted((e.started, now if e.ended is None else e.ended) for e in entries if not e.lost)
    total, covered = 0.0, -math.inf
    for start, end in spans:
        total += max(0.0, end - max(start, covered))
        covered = max(covered, end)
    return total


def _plain(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinities as text."""
    return float(value) if math.isfinite(value) else str(float(value))


def _whole(step: float) -> float:
    return int(step) if step == int(step) else float(step)
