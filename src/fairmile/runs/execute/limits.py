"""An executor that hands no more than so many runs to another one at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairmile.runs.execute.executor import Executor, Handle, TaskStatus, Work
from fairmile.runs.record.run import Run, RunState


class Limited:
    """Holds runs and members back while so many others wait or run on its executor."""

    def __init__(self, executor: Executor, at_once: int) -> None:
        self._executor, self._at_once = executor, at_once
        self._waiting: dict[Handle, Work] = {}
        self._live: set[Handle] = set()
        self._news: list[TaskStatus] = []

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Take runs, and hand over as many as there may be."""
        handles = [Handle.of(work) for work in works]
        self._waiting |= dict(zip(handles, works, strict=True))
        self._fill()
        return handles

    def _fill(self) -> None:
        while self._waiting and len(self._live) < self._at_once:
            handle = next(iter(self._waiting))
            self._live.update(self._executor.submit([self._waiting.pop(handle)]))

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what is new of what was handed over, and of what was cancelled before that."""
        news, self._news = self._news, []
        asked = [handle for handle in handles if handle in self._live]
        news += self._executor.poll(asked, wait_s=0.0 if news else wait_s)
        self._live -= {status.handle for status in news if status.is_over}
        self._fill()
        return news

    def cancel(self, handles: Collection[Handle]) -> None:
        """Have what is held back never begin, and cancel the rest."""
        for handle in handles:
            if self._waiting.pop(handle, None) is not None:
                self._news.append(TaskStatus(handle, RunState.CANCELLED, "it was cancelled before it began"))
        if live := [handle for handle in handles if handle in self._live]:
            self._executor.cancel(live)

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task."""
        return self._executor.collect(handle)
