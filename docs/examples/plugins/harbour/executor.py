"""An executor that keeps a list of all it was given, and leaves the work to another one."""

from collections.abc import Collection, Sequence
from pathlib import Path

from fairmile.runs.execute.executor import Executor, Handle, TaskStatus, Work
from fairmile.runs.record.run import Run


class Listed:
    """`submit`, `poll`, `cancel` and `collect` are all that an executor is."""

    def __init__(self, inner: Executor, log: Path) -> None:
        self._inner, self._log = inner, log

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Take runs and return without waiting for them."""
        with self._log.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{work.id}\n" for work in works)
        return self._inner.submit(works)

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what is new of these tasks."""
        return self._inner.poll(handles, wait_s=wait_s)

    def cancel(self, handles: Collection[Handle]) -> None:
        self._inner.cancel(handles)

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task with its record here."""
        return self._inner.collect(handle)
