"""A trial is a run: it is executed like any other, while its own metrics tell whether it is worth going on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairmile.meter.tail import Tail
from fairmile.runs.execute.batches import Frozen
from fairmile.runs.execute.cancellation import cancel_file, watcher
from fairmile.runs.execute.executor import Member
from fairmile.runs.execute.in_place import InPlace, MembersOnly
from fairmile.runs.execute.worker import Batch
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.record import JobReference, TrialReference
from fairmile.runs.record.run import Run
from fairmile.runs.record.trial import ON_REQUEST, STOPPED_EARLY, result_of
from fairmile.runs.record.values import Value
from fairmile.sweeps.members import Members
from fairmile.sweeps.model import Objective, Point
from fairmile.sweeps.tuning.engine import INTERRUPTED, Outcome, Report, Trial

CHECKPOINT = "checkpoint"  # of a population: what a trial leaves here, others go on from


class TrialRunner:
    """Executes the trials of a study in this process, one after the other or in several threads."""

    def __init__(
        self,
        study: str,
        frozen: Frozen,
        members: Members,
        batch: Batch,
        objectives: Sequence[Objective],
        job: JobReference | None,
    ) -> None:
        self._study = study
        self._frozen = frozen
        self._members = members
        self._batch = batch
        self._objectives = objectives
        self._job = job
        self.is_interrupted = False  # whether somebody ended a trial who was not us, or wants all of them ended

    def interrupt(self) -> None:
        """End all trials that run, politely first, and begin no other; a signal may call it."""
        self.is_interrupted = True

    def __call__(self, trial: Trial, report: Report) -> Outcome:
        """Execute a trial to its end, or until `report` gives a reason to stop it."""
        if self.is_interrupted:
            return Outcome("running", reason=INTERRUPTED)
        id = f"{self._study}-{trial.number:05d}" + (f"-{trial.generation}" if trial.until is not None else "")
        member = self._member(id, trial)
        watched = _Watched(self._batch.root / id, self._objectives[0], report)
        reference = TrialReference(
            study=self._study,
            number=trial.number,
            generation=trial.generation,
            objectives={each.metric: each.better for each in self._objectives},
        )

        cancel = cancel_file(self._batch.root / id)
        cancel.unlink(missing_ok=True)
        is_cancelled = watcher(cancel)

        def look() -> str:
            if is_cancelled():
                cancel.unlink(missing_ok=True)  # which tells that it was seen
                return ON_REQUEST
            return watched.look() or (INTERRUPTED if self.is_interrupted else "")

        work = Member(
            self._batch.folder,
            0,
            id,
            line=member,
            job=self._job,
            trial=reference,
            look=look,
            then=lambda _: watched.take(),
        )
        executor = InPlace(MembersOnly(Ledger(self._batch.root)), batch=lambda _: self._batch)
        handles = executor.submit([work])
        if not any(status.is_over for status in executor.poll(handles)):
            return Outcome("failed", reason=f"run {id} is being executed by another process", run=id)
        return self._outcome(executor.collect(handles[0]))

    def _member(self, id: str, trial: Trial) -> dict[str, Any]:
        point = Point(trial.number, id, trial.params)
        folder = self._batch.root / id / CHECKPOINT
        generation: dict[str, Value] = {"until": trial.until} if trial.until is not None else {}
        member = self._members.line(self._frozen, id, point, **generation)
        if trial.until is not None:
            places = {
                "FAIRMILE_CHECKPOINT_FROM": trial.checkpoint,
                "FAIRMILE_CHECKPOINT_TO": str(folder),
                "FAIRMILE_UNTIL": str(trial.until),
            }
            member["env"] = {**member.get("env", {}), **places}
        return member

    def _outcome(self, run: Run) -> Outcome:
        result = result_of(run)
        if result.state == "running":  # not the trial failed: it may be retried
            self.is_interrupted = True
        left = run.folder / CHECKPOINT
        checkpoint = str(left) if result.state == "done" and left.is_dir() else ""
        return Outcome(result.state, result.values, result.reason, run.id, checkpoint)


class _Watched:
    """The first objective of a running trial, as its log tells it."""

    def __init__(self, folder: Path, objective: Objective, report: Report) -> None:
        self._tail = Tail(folder)
        self._metric = objective.metric
        self._report = report
        self._count = 0
        self._why = ""

    def look(self) -> str:
        """Report what has come, and return why the trial is to be stopped, where it is.

        A program is stopped one look after the decision: one that logged all its steps between two looks ends by
        itself meanwhile.
        """
        is_due = bool(self._why)
        self.take()
        if self._why == INTERRUPTED:
            return self._why
        return f"{STOPPED_EARLY}{self._why}" if is_due and self._why else ""

    def take(self) -> None:
        """Report what has come; a later value may take back the decision of an earlier one."""
        for step, value in self._new():
            self._why = self._report(step, value)

    def _new(self) -> Iterator[tuple[float, float]]:
        for each in self._tail.new():
            if each.name == self._metric:
                self._count += 1
                yield (self._count if each.step is None else each.step), each.value
