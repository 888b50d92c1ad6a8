"""An executor that goes on while its system does not answer, and tells of what that refuses as of any other end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from fairmile.base.errors import FairmileError, Transient
from fairmile.runs.execute.executor import Chaining, Condition, Executor, Handle, TaskStatus, Work
from fairmile.runs.record.run import Run, RunState

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class ChainingExecutor(Executor, Chaining, Protocol):
    """An executor on a system that knows dependencies; `trouble` tells why it got no answer when it was polled last."""

    trouble: str


class Patient:
    """Hands runs to the executor of a system, and follows them; what it does not answer to waits.

    `on_wait` is told, whenever the system does not answer, which run waits for that and why. `on_answer` is called when
    it has answered.
    """

    def __init__(
        self,
        executor: ChainingExecutor,
        on_wait: Callable[[str, str], None] = lambda _, __: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor, self._on_wait, self._on_answer = executor, on_wait, on_answer
        self._waiting: dict[Handle, tuple[Work, Mapping[Handle, Condition]]] = {}
        self._refused: set[Handle] = set()
        self._to_cancel: dict[Handle, None] = {}  # what the system is still to be asked to cancel, in its order
        self._news: list[TaskStatus] = []
        self._next, self._pause_s = 0.0, _FIRST_PAUSE_S
        self._trouble = ""  # why nothing is known of what was handed over

    @property
    def is_silent(self) -> bool:
        """Whether the system did not answer when something was to be handed over, asked for or cancelled last."""
        return bool(self._waiting or self._trouble)

    def submit(self, works: Sequence[Work]) -> list[Handle]:
        """Take runs, and hand them over as soon as the system answers."""
        return self.submit_after(works, {})

    def submit_after(self, works: Sequence[Work], after: Mapping[Handle, Condition]) -> list[Handle]:
        """Take runs that the system holds back until others have ended."""
        handles = [Handle.of(work) for work in works]
        self._waiting |= {handle: (work, after) for handle, work in zip(handles, works, strict=True)}
        self._refused.difference_update(handles)
        self._hand_over()
        return handles

    def _hand_over(self) -> None:
        """Hand over what waits, in its order; nothing while the system does not answer."""
        if time.monotonic() < self._next:
            return
        for handle, (work, after) in list(self._waiting.items()):
            try:
                self._submit(work, after)
            except Transient as error:
                self._next = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self._on_wait(work.id, str(error))
                return
            except FairmileError as error:
                self._refused.add(handle)
                self._news.append(TaskStatus(handle, RunState.FAILED, str(error)))
            self._pause_s = _FIRST_PAUSE_S
            self._on_answer()
            del self._waiting[handle]

    def _submit(self, work: Work, after: Mapping[Handle, Condition]) -> None:
        if any(each in self._refused and condition == "done" for each, condition in after.items()):
            self._refused.add(Handle.of(work))
            self._news.append(TaskStatus(Handle.of(work), RunState.CANCELLED, "a job before it was refused"))
        elif pending := {each: condition for each, condition in after.items() if each not in self._refused}:
            self._executor.submit_after([work], pending)
        else:
            self._executor.submit([work])

    def poll(self, handles: Collection[Handle], *, wait_s: float = 0.0) -> list[TaskStatus]:
        """Return what is new; a system that does not answer has no news."""
        self._hand_over()
        self._cancel_rest()
        news, self._news = self._news, []
        asked = [handle for handle in handles if handle not in self._waiting and handle not in self._refused]
        try:
            news += self._executor.poll(asked, wait_s=0.0 if news else wait_s)
            self._note(asked, self._executor.trouble)
        except Transient as error:
            self._note(asked, str(error))
            time.sleep(wait_s)
        return news

    def _note(self, asked: Sequence[Handle], trouble: str) -> None:
        """Tell whether the system answered when it was asked for runs."""
        if trouble and asked:
            self._on_wait(asked[0].run, trouble)
        elif self._trouble:
            self._on_answer()
        self._trouble = trouble if asked else ""

    def cancel(self, handles: Collection[Handle]) -> None:
        """Have what waits never begin, and cancel the rest as soon as the system answers."""
        for handle in handles:
            if self._waiting.pop(handle, None) is not None:
                self._refused.add(handle)
                self._news.append(TaskStatus(handle, RunState.CANCELLED, "it was cancelled before it began"))
        self._to_cancel |= dict.fromkeys(handle for handle in handles if handle not in self._refused)
        self._cancel_rest()

    def _cancel_rest(self) -> None:
        if not self._to_cancel:
            return
        live = list(self._to_cancel)
        try:
            self._executor.cancel(live)
            self._to_cancel.clear()
        except Transient as error:
            self._note(live, str(error))

    def collect(self, handle: Handle) -> Run:
        """Return the run of a task."""
        return self._executor.collect(handle)
