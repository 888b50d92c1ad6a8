"""The executor that is a pool of processes on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fairmile.runs.execute.cancellation import BEFORE
from fairmile.runs.execute.crew import TAKEN, Crew, Ended, Order
from fairmile.runs.execute.executor import Handle, Loop, Member, PreparedRun, RunHost, TaskStatus, Work
from fairmile.runs.execute.following import Follower
from fairmile.runs.execute.worker import look_at_machine, start
from fairmile.runs.record.layout import RECORD, read_record
from fairmile.runs.record.run import Run, RunState

_AGAIN = frozenset({RunState.INTERRUPTED, RunState.CANCELLED})


def run_order(work: PreparedRun, host: RunHost) -> dict[str, Any]:
    """Return what a process that knows nothing of this workspace needs to execute a run."""
    if (work.folder / RECORD).exists():  # it is tried again
        work = replace(work, record=read_record(work.folder))
    launch = host.launch(work)
    record = {**work.record.to_dict(), "argv": list(launch.argv)}
    order = {"folder": str(work.folder), "record": record, "argv": list(launch.argv)}
    return order | {"env": dict(launch.env), "given": dict(launch.given)}


class LocalPool:
    """Executes so many runs at once, each process one after the other; they end with the block of this pool."""

    def __init__(self, at_once: int, host: RunHost) -> None:
        self._crew = Crew(at_once, start)
        self._host = host
        self._works: dict[Handle, Work] = {}  # what was given to the crew and has not ended
        self._elsewhere: dict[Handle, Work] = {}
        self._over: set[Handle] = set()
        self._cancelled: set[Handle] = set()
        self._news: list[TaskStatus] = []
        self._concluded: dict[Handle, Run] = {}  # what was read at its end, and is asked for next
        self._follower = Follower(host.collect)
        self._is_ready = False

    def __enter__(self) -> LocalPool:
        self._crew.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._crew.__exit__(*error)

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Give runs to the crew; they begin when they are polled."""
        handles = [Handle.of(work) for work in works]
        if works and not self._is_ready:
            place = works[0].folder if isinstance(works[0], PreparedRun) else works[0].batch
            look_at_machine(place.parent)  # for all workers, which are forked from here
            self._is_ready = True
        for handle, work in zip(handles, works, strict=True):
            self._works[handle] = work
            self._over.discard(handle)
            self._cancelled.discard(handle)
        self._crew.give(map(self._order, works))
        return handles

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what has ended; runs of other processes are looked at when the crew has nothing more to do."""
        news, self._news = self._news, []
        if not self._crew.is_idle:
            ends = self._crew.take(0.0 if news else wait_s)
            return [*news, *(status for ended in ends if (status := self._ended(ended)) is not None)]
        news += self._follow([each for each in handles if each not in self._over])
        if not news and self._crew.is_idle:
            time.sleep(wait_s)
        return news

    def cancel(self, handles: Collection[Handle]) -> None:
        """Have what waits never begin, and end what runs, here or in another process."""
        own = {handle for handle in handles if handle in self._works}
        for id in self._crew.drop({handle.run for handle in own}):
            self._over.add(Handle(id))
            self._works.pop(Handle(id))
            self._news.append(TaskStatus(Handle(id), RunState.CANCELLED, BEFORE))
        self._cancelled |= own
        self._crew.end({handle.run for handle in own})
        for handle in set(handles) - own - self._over:
            self._elsewhere.pop(handle, None)
            self._host.end(handle.run)

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task."""
        run = self._concluded.pop(handle, None)
        return run if run is not None else self._host.collect(handle.run)

    def _order(self, work: Work) -> Order:
        if isinstance(work, Loop):
            argv = ("-m", work.module, str(work.batch), *work.arguments, "--parent", str(os.getpid()), "--")
            return Order(work.batch, work.number, work.id, argv=argv, log=work.batch / work.log)
        if isinstance(work, Member):
            return Order(work.batch, work.number, work.id)
        return Order(work.folder, 0, work.id, run_order(work, self._host))

    def _ended(self, ended: Ended) -> TaskStatus | None:
        """Return how a run ended; None where another process executes it, whose records are followed."""
        handle = Handle(ended.id)
        work = self._works.pop(handle)
        if ended.state == TAKEN:
            self._elsewhere[handle] = work
            return None
        self._over.add(handle)
        state = RunState(ended.state)
        if state is RunState.INTERRUPTED and handle in self._cancelled:
            state = RunState.CANCELLED
        if isinstance(work, PreparedRun) and state is RunState.DONE:
            run = self._concluded[handle] = self._host.collect(handle.run)
            self._host.conclude(run)
        return TaskStatus(handle, state, ended.reason)

    def _follow(self, handles: Sequence[Handle]) -> list[TaskStatus]:
        """Return news of runs of others; one that is lost, and was asked for here, is executed here."""
        news = []
        for status in self._follower.news(handles):
            if status.handle in self._elsewhere and (status.state in _AGAIN or status.state is RunState.QUEUED):
                self._follower.forget(status.handle)
                self.submit([self._elsewhere.pop(status.handle)])
                continue
            if status.is_over:
                self._over.add(status.handle)
            news.append(status)
        return news
