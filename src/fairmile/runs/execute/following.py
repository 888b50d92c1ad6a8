"""Runs that somebody else executes, followed by their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairmile.base.errors import NotFound
from fairmile.runs.execute.executor import Handle, TaskStatus
from fairmile.runs.record.run import Run, RunState


class Follower:
    """Tells what is new of runs; `collect` returns one by its id, brought up to date."""

    def __init__(self, collect: Callable[[str], Run]) -> None:
        self._collect = collect
        self._states: dict[Handle, RunState] = {}

    def news(self, handles: Iterable[Handle]) -> list[TaskStatus]:
        """Return where runs stand of which that was not told yet; one without a record waits to begin."""
        news = []
        for handle in handles:
            status = self.status(handle)
            if self._states.get(handle) is not status.state:
                self._states[handle] = status.state
                news.append(status)
        return news

    def status(self, handle: Handle) -> TaskStatus:
        """Return where a run stands."""
        try:
            return status_of(self._collect(handle.run))
        except NotFound:
            return TaskStatus(handle, RunState.QUEUED)

    def forget(self, handle: Handle) -> None:
        """Tell of a run anew: it is executed again."""
        self._states.pop(handle, None)


def status_of(run: Run) -> TaskStatus:
    """Return where the task of a run stands."""
    return TaskStatus(Handle(run.id), run.state, run.reason or run.record.trouble)
