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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar

from fairmile.base.errors import Conflict, SystemFailure, UsageError
from fairmile.base.files import Lock, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective
from fairmile.sweeps.tuning.engine import Execute, Outcome, Settings, StopEarly, Trial, TrialRecord, TrialState
from fairmile.sweeps.tuning.rules import Decide, Rules, worker_words
from fairmile.sweeps.tuning.search_space import Space
from fairmile.sweeps.tuning.settings import check_fits


@dataclass
class Entry:
    """A trial as its events tell it so far."""

    number: int
    params: Mapping[str, Value]
    worker: str = ""
    started: float = 0.0
    ended: float | None = None
    since: float = 0.0  # when what runs of it now began: of a population, its last generation
    state: TrialState = "running"
    values: tuple[float, ...] = ()
    curve: list[tuple[float, float]] = field(default_factory=list)
    reason: str = ""
    run: str = ""
    lost: bool = False
    losses: int = 0  # how often in a row its worker died with it
    retry_of: int | None = None
    proposal: Mapping[str, Value] = field(default_factory=dict)  # what the engine proposed, where that is more
    generation: int = 0
    until: float | None = None
    checkpoint: str = ""  # what its last finished generation left
    reached: float = 0.0  # the step at which that one ended

    @property
    def may_be_repeated(self) -> bool:
        """Whether it was lost, and is no repetition: what takes its worker along twice is given up."""
        return self.lost and self.losses < 2 and self.retry_of is None

    def spans(self) -> list[tuple[float, float | None]]:
        """Return when it ran, with what runs now apart from what ended before."""
        if self.ended is not None:
            return [(self.started, self.ended)]
        return [(self.started, self.since), (self.since, None)]

    def record(self) -> TrialRecord:
        """Return what others are told of it."""
        return TrialRecord(
            number=self.number,
            state=self.state,
            params=self.params,
            values=self.values,
            curve=tuple(point for point in self.curve if math.isfinite(point[1])),
            started=self.started,
            ended=self.ended,
            worker=self.worker,
            run=self.run,
        )


class Records:
    """The trials of one study in its folder, written by one process at a time and read by any."""

    def __init__(self, rules: Rules) -> None:
        self.path = rules.folder / "trials.jsonl"
        self.rules = rules
        self._lock = threading.RLock()
        self._entries: dict[int, Entry] = {}
        self._made_of: Mapping[str, Any] | None = None
        self._read_bytes = 0
        self.interrupted = False  # what is stopped from now on was not judged, but lost

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Begin the study, or go on with it, as the one process that does.

        Conflict where another process is at it, or where it was begun with other distributions or objectives.
        """
        self.rules.check_measured()
        with ExitStack() as stack:
            try:
                stack.enter_context(Lock(self.path.with_suffix(".lock"), timeout_s=0))
            except SystemFailure as error:
                raise Conflict(f"another process is running this study: {error}", hint=error.hint) from error
            self.entries()
            if self._made_of is None:
                self._append({"event": "study", **self.rules.made_of()})
            else:
                self.rules.check_same(self._made_of)
            yield

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
        """Return what is known of all trials, in the order of their numbers."""
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
                    self.lose(entry.number, f"its worker {worker_words(entry.worker)} died", dead=True)
                    reaped += 1
        return reaped

    def is_spent(self) -> bool:
        """Tell whether the budget allows no further trial; of one that was lost only its repetition counts."""
        entries = self.entries()
        taken = sum(not entry.lost or entry.retry_of is not None for entry in entries)
        # Of what was lost with its worker nobody knows how long it ran.
        return self.rules.is_spent(taken, [span for entry in entries if not entry.lost for span in entry.spans()])

    def to_repeat(self) -> list[Entry]:
        """Return the trials that were lost with their worker and not yet begun again; none is repeated twice."""
        entries = self.entries()
        again = {entry.retry_of for entry in entries}
        return [entry for entry in entries if entry.may_be_repeated and entry.number not in again]

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
            "at": self.rules.clock(),
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
            reason = outcome.reason or "interrupted"
            self.lose(trial.number, reason, run=outcome.run)
            return Outcome("running", reason=reason, run=outcome.run)
        if outcome.state == "done" and (wrong := self.rules.why_unusable(outcome.values)):
            outcome = Outcome("failed", reason=wrong, run=outcome.run)
        event = {
            "event": "end",
            "number": trial.number,
            "state": outcome.state,
            "values": [_plain(value) for value in outcome.values],
            "at": self.rules.clock(),
        }
        event |= {name: text for name in ("reason", "run", "checkpoint") if (text := getattr(outcome, name))}
        self._append(event)
        return outcome

    def _reporter(self, trial: Trial, decide: Decide) -> Callable[[float, float], str]:
        def keep(step: float, value: float) -> str:
            self._append({"event": "value", "number": trial.number, "step": _whole(step), "value": _plain(value)})
            return ""

        # What is no number is kept, but not compared: schedulers would take it for anything.
        return self.rules.reporter(
            keep, lambda step, value: "" if math.isnan(value) else decide(step, value), self.trials
        )

    def lose(self, number: int, reason: str, *, run: str = "", dead: bool = False) -> None:
        """Write down that a trial came to no end of its own, its worker being dead perhaps; it may be begun again."""
        event = {"event": "end", "number": number, "state": "failed", "lost": True, "reason": reason}
        more = {name: value for name, value in (("run", run), ("dead", dead)) if value}
        self._append({**event, "at": self.rules.clock(), **more})

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
            entry.losses = entry.losses + event.get("dead", False) if entry.lost else 0
            if entry.until is not None and entry.state == "done":
                entry.checkpoint, entry.reached = event.get("checkpoint", ""), entry.until

    def _take_start(self, number: int, event: Mapping[str, Any]) -> None:
        before = self._entries.get(number)
        entry = Entry(
            number,
            event["params"],
            worker=event["worker"],
            started=event["at"],
            since=event["at"],
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
            entry.checkpoint, entry.reached, entry.losses = before.checkpoint, before.reached, before.losses
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


class RecordedEngine:
    """What engines without a store of their own have in common; see Engine. One process works at a time.

    Raises UsageError for samplers and pruners that the engine does not have.
    """

    shares = False
    name: ClassVar[str]
    samplers: ClassVar[tuple[str, ...]]
    pruners: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        folder: Path,
        distributions: Mapping[str, Mapping[str, object]],
        objectives: Sequence[Objective],
        settings: Settings,
        *,
        spent: Callable[[], Mapping[str, float]] | None = None,
        stop_early: StopEarly | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        space = Space(distributions)
        check_fits(settings, objectives, space)
        for key, known in (("sampler", self.samplers), ("pruner", ("", *self.pruners))):
            if (value := getattr(settings, key)) not in known:
                raise UsageError(
                    f"the engine {self.name} has no {key} {value!r}",
                    hint=f"it has {', '.join(filter(None, known))}; the engine optuna has more",
                )
        if settings.sampler == "pbt":  # as many trials as members, all of them to their end
            settings, stop_early = replace(settings, trials=None), None
        rules = Rules(folder, space, objectives, settings, spent=spent, stop_early=stop_early, clock=clock)
        self.records = Records(rules)

    def trials(self) -> Sequence[TrialRecord]:
        """Return what the study knows, in the order of the numbers; nothing is written."""
        return self.records.trials()

    def reasons(self) -> dict[int, str]:
        """Return why trials failed or were stopped, by number."""
        return self.records.reasons()

    def waiting(self) -> int:
        """Return how many trials that were lost are still to be tried again, and may be."""
        waiting = len(self.records.to_repeat())
        return waiting if waiting and not self.records.is_spent() else 0

    def reap(self, is_alive: Callable[[str], bool]) -> int:
        """Mark trials as failed whose worker is dead, and return how many; they are done once more."""
        return self.records.reap(is_alive)


def _plain(value: float) -> float | str:
    """Return a number as JSON can hold it: NaN and infinities as text."""
    return float(value) if math.isfinite(value) else str(float(value))


def _whole(step: float) -> float:
    return int(step) if step == int(step) else float(step)
