"""The executor that is this very process: one run after the other, each to its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from fairmile.base.errors import FairmileError, Unsupported
from fairmile.runs.execute.cancellation import BEFORE
from fairmile.runs.execute.claims import claim_prepared, is_done
from fairmile.runs.execute.executor import Handle, Launch, Loop, PreparedRun, RunHost, TaskStatus, Work
from fairmile.runs.execute.following import Follower, status_of
from fairmile.runs.execute.recorder import execute
from fairmile.runs.execute.worker import Batch
from fairmile.runs.record.layout import RECORD
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState

_AGAIN = frozenset({RunState.INTERRUPTED, RunState.CANCELLED})


class InPlace:
    """Executes what waits when it is polled; where one is cancelled, so are those that wait behind it.

    What programs print goes to `echo`. Members are executed as `batch` reads them.
    """

    def __init__(
        self, host: RunHost, *, echo: BinaryIO | None = None, batch: Callable[[Path], Batch] = Batch.read
    ) -> None:
        self._host, self._echo, self._batch = host, echo, batch
        self._batches: dict[Path, Batch] = {}
        self._waiting: dict[Handle, Work] = {}
        self._elsewhere: dict[Handle, Work] = {}
        self._news: list[TaskStatus] = []
        self._runs: dict[Handle, Run] = {}
        self._follower = Follower(host.collect)

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Have runs wait for their turn."""
        handles = [Handle.of(work) for work in works]
        self._waiting |= dict(zip(handles, works, strict=True))
        return handles

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Execute the first that waits to its end, and return how it ended."""
        news, self._news = self._news, []
        handle = next((each for each in self._waiting if each in handles), None)
        if handle is not None:
            work = self._waiting.pop(handle)
            status = self._execute(handle, work)
            if status is not None:
                if status.state is RunState.CANCELLED:
                    self.cancel(list(self._waiting))
                return [*news, status, *self._take_news()]
        followed = [each for each in handles if each not in self._waiting and each not in self._runs]
        news += self._follow(followed)
        if not news and not self._waiting:
            time.sleep(wait_s)
        return news

    def cancel(self, handles: Collection[Handle]) -> None:
        """Have what waits never begin, and end what another process executes."""
        for handle in handles:
            if self._waiting.pop(handle, None) is not None:
                self._news.append(TaskStatus(handle, RunState.CANCELLED, BEFORE))
            elif handle not in self._runs:
                self._host.end(handle.run)

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task."""
        run = self._runs.get(handle)
        return run if run is not None else self._host.collect(handle.run)

    def _execute(self, handle: Handle, work: Work) -> TaskStatus | None:
        """Execute a run to its end; None where another process does so at this moment."""
        record, folder = self._recorded(work)
        if record is None:
            self._elsewhere[handle] = work
            return None
        self._runs[handle] = Run(record, folder)
        return status_of(self._runs[handle])

    def _recorded(self, work: Work) -> tuple[RunRecord | None, Path]:
        if isinstance(work, PreparedRun):
            return self._execute_run(work), work.folder
        if isinstance(work, Loop):
            raise Unsupported("a loop needs its own process", hint="use a pool of one process")
        batch = self._batches.get(work.batch) or self._batches.setdefault(work.batch, self._batch(work.batch))
        member = work.line if work.line is not None else batch.member(work.number)
        record = batch.execute(
            member, job=work.job, trial=work.trial, mended=work.mended, look=work.look, then=work.then
        )
        return record, batch.root / work.id

    def _execute_run(self, work: PreparedRun) -> RunRecord | None:
        try:
            with claim_prepared(work.folder, work.record) as record:
                if record is None or is_done(record):
                    return record
                launch = self._host.launch(replace(work, record=record))
                record.argv = list(launch.argv)
                done = execute(
                    work.folder, record, argv=launch.argv, env=launch.env, given=launch.given, echo=self._echo
                )
        except (FairmileError, OSError):
            if not (work.folder / RECORD).exists():  # it never began
                shutil.rmtree(work.folder, ignore_errors=True)
            raise
        self._host.conclude(Run(done, work.folder))
        return done

    def _follow(self, handles: Sequence[Handle]) -> list[TaskStatus]:
        """Return news of runs of others; one that is lost, and was asked for here, is executed here."""
        news = []
        for status in self._follower.news(handles):
            work = self._elsewhere.get(status.handle)
            if work is not None and (status.state in _AGAIN or status.state is RunState.QUEUED):
                self._waiting[status.handle] = self._elsewhere.pop(status.handle)
                self._follower.forget(status.handle)
                continue
            news.append(status)
        return news

    def _take_news(self) -> list[TaskStatus]:
        news, self._news = self._news, []
        return news


class MembersOnly:
    """What an executor needs of a ledger where it executes members of batches alone, as inside of a job."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self, reference: str) -> Run:
        """Return a run as its record tells it."""
        return self._ledger.get(reference)

    def end(self, id: str) -> None:
        """Refuse to end what another process executes."""
        raise Unsupported(f"run {id} is executed by another process", hint=f"`fairmile runs cancel {id}` cancels it")

    def launch(self, work: PreparedRun) -> Launch:
        """Refuse a run of its own."""
        raise Unsupported(f"run {work.id} is not a point of a sweep")

    def conclude(self, run: Run) -> None:
        """Members keep what they made in their folders."""
