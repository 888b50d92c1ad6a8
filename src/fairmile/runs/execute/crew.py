"""Processes of this machine that execute runs, so many at once; each takes one run after the other.

Like the recorder this needs nothing but the standard library, `base` and `meter`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any

from fairmile.base.errors import SystemFailure
from fairmile.base.forks import Fork, can_fork
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.signals import asked_to_end
from fairmile.runs.execute.processes import module_words

CANCELLED = "cancelled"
TAKEN = "taken"  # somebody else executes it at this moment
_PATIENCE_S = 30.0  # for programs that were asked to end
Start = Callable[[Sequence[str]], int]  # what a worker does, with the words that it is started with


@dataclass(frozen=True)
class Ended:
    """How a run ended; `state` is that of the run, or `taken` where another process executes it."""

    number: int
    id: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Order:
    """What a worker is to execute: a member of the batch in a folder, or a prepared run that is described in full.

    With `argv` the worker is a program of its own that needs no further orders, and prints to `log`.
    """

    folder: Path
    number: int = 0
    id: str = ""
    run: Mapping[str, Any] | None = None
    argv: tuple[str, ...] = ()
    log: Path | None = None

    @property
    def worker(self) -> tuple[str, ...]:
        """How the worker is started that can take it, as the arguments of Python."""
        if self.argv:
            return (*self.argv, f"{self.number}")
        return (str(self.folder), "--feed") if self.run is None else (str(self.folder.parent), "--runs")

    @property
    def line(self) -> bytes:
        return (json.dumps(self.number if self.run is None else self.run) + "\n").encode()


class Crew:
    """Workers with their orders; where the block is left early, all of them end, with their programs.

    A worker without an order stays, as it took longer to start than many a program, and takes the next one.
    A worker that dies takes only its run with it; one that cannot even begin is a SystemFailure. Where this process is
    killed, the workers end what they are at, and begin nothing more; where it is asked to end, they are, too.
    """

    def __init__(self, at_once: int, start: Start, *, launch: Sequence[str] = ()) -> None:
        self._at_once, self._start, self._launch = at_once, start, launch
        self._waiting: deque[Order] = deque()
        self._workers: list[_Worker] = []
        self._selector = DefaultSelector()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Crew:
        self._stack.enter_context(asked_to_end())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack, self._selector:
            self._close(kind)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and all(worker.order is None for worker in self._workers)

    def give(self, orders: Iterable[Order]) -> None:
        """Add orders to those that wait."""
        self._waiting.extend(orders)

    def drop(self, ids: Collection[str]) -> list[str]:
        """Take back orders that wait, and return which."""
        dropped = [order.id for order in self._waiting if order.id in ids]
        self._waiting = deque(order for order in self._waiting if order.id not in ids)
        return dropped

    def end(self, ids: Collection[str]) -> None:
        """Have workers end the runs that they are at, politely."""
        for worker in self._workers:
            if worker.order is not None and worker.order.id in ids:
                worker.signal(signal.SIGTERM)

    def take(self, wait_s: float | None = None) -> list[Ended]:
        """Return what has ended, after waiting for that at most so long; None waits until something has."""
        self._hire()
        ends: list[Ended] = []
        is_waiting = any(worker.order is not None or not worker.is_idle for worker in self._workers)
        for key, _ in self._selector.select(wait_s) if is_waiting else ():
            worker: _Worker = key.data
            for ended in worker.take():
                ends.append(ended)
                if ended.state == CANCELLED:  # who was told to stop takes nothing more: another one does
                    worker.finish()
                else:
                    self._go_on(worker)
            if worker.is_over:
                ends += self._dismiss(worker)
        self._hire()
        return ends

    def _go_on(self, worker: _Worker) -> None:
        """Give a worker the next order, where it is of its kind."""
        if self._waiting and worker.can_take(self._waiting[0]):
            worker.give(self._waiting.popleft())

    def _hire(self) -> None:
        """Give orders to workers that have none, and to new ones as long as there may be more."""
        while self._waiting:
            idle = [worker for worker in self._workers if worker.is_idle]
            able = next((worker for worker in idle if worker.can_take(self._waiting[0])), None)
            if able is not None:
                able.give(self._waiting.popleft())
                continue
            if len(self._workers) >= self._at_once:
                if idle:  # of another kind: its place is needed
                    idle[0].finish()
                return
            order = self._waiting.popleft()
            worker = _Worker(order, self._start, self._launch)
            self._workers.append(worker)
            worker.give(order)
            self._selector.register(worker.answers, EVENT_READ, worker)

    def _dismiss(self, worker: _Worker) -> Iterator[Ended]:
        """Let one go that has ended; yield the end of the run that it was at."""
        self._selector.unregister(worker.answers)
        self._workers.remove(worker)
        exit_code, order = worker.close(), worker.order
        if order is None:
            return
        if order.argv:
            state = "done" if exit_code == 0 else "failed" if exit_code > 0 else "interrupted"
            yield Ended(order.number, order.id, state, f"exit code {exit_code}" if exit_code else "")
            return
        if exit_code > 1 and not worker.has_answered:
            raise SystemFailure(
                f"a worker of {order.folder} ended with exit code {exit_code} before its first run",
                hint="see its output",
            )
        yield Ended(order.number, order.id, "interrupted", "the worker died")

    def _close(self, kind: type[BaseException] | None) -> None:
        if kind is not None:  # also where whoever takes what has ended has had enough
            for worker in self._workers:
                worker.signal(signal.SIGINT if kind is KeyboardInterrupt else signal.SIGTERM)
        for worker in self._workers:
            worker.finish()
        until = time.monotonic() + _PATIENCE_S
        for worker in self._workers:
            if kind is not None and not worker.has_ended(until - time.monotonic()):
                worker.signal(signal.SIGINT)  # which a program cannot ignore for long
            worker.close()


def execute_all(orders: Iterable[Order], at_once: int, start: Start, *, launch: Sequence[str] = ()) -> Generator[Ended]:
    """Carry out orders, so many at once, and yield how each ended."""
    with Crew(at_once, start, launch=launch) as crew:
        crew.give(orders)
        while not crew.is_idle:
            yield from crew.take()


class _Worker:
    """A process that executes what it is ordered to."""

    _orders: IO[bytes]
    answers: IO[bytes]
    _process: subprocess.Popen[bytes] | Fork

    def __init__(self, first: Order, start: Start, launch: Sequence[str]) -> None:
        self._kind = first.worker
        words = [*first.worker, "--", *launch]
        # In a session of its own: what is typed to end this process is passed on once, by us.
        if first.argv:
            self._start_loop(first)
        elif can_fork():
            self._process = Fork(lambda: start(words))
            self._orders, self.answers = self._process.stdin, self._process.stdout
        else:
            argv = [sys.executable, "-P", *module_words("worker"), *words]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._orders, self.answers = self._process.stdin, self._process.stdout
        os.set_blocking(self.answers.fileno(), False)
        self._rest = b""
        self.order: Order | None = None  # what it is at
        self.has_answered = False
        self.is_over = False
        self._is_finished = False

    def _start_loop(self, order: Order) -> None:
        """Start a program that takes no orders; that its answers end tells its end."""
        ours, theirs = os.pipe()
        self.answers, self._orders = os.fdopen(ours, "rb", buffering=0), io.BytesIO()
        argv = [sys.executable, "-P", *order.argv]
        with open(order.log or os.devnull, "ab") as log, open(theirs, "wb", buffering=0):
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(theirs,)
            )

    @property
    def is_idle(self) -> bool:
        """Whether it waits for an order."""
        return self.order is None and not self._is_finished

    def can_take(self, order: Order) -> bool:
        return self._kind == order.worker

    def give(self, order: Order) -> None:
        self.order = order
        if order.argv:
            return
        with contextlib.suppress(BrokenPipeError):  # it is dead, and seen to be so when its answers end
            self._orders.write(order.line)
            self._orders.flush()

    def finish(self) -> None:
        """Let it end after what it is at."""
        self._is_finished = True
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(max(within_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> int:
        """Wait for its end and return its exit code, below 0 where a signal ended it."""
        self.finish()
        exit_code = self._process.wait()
        self.answers.close()
        return exit_code

    def take(self) -> Iterator[Ended]:
        """Yield what it has said since the last time."""
        data = os.read(self.answers.fileno(), 1 << 16)
        if not data:
            self.is_over = True
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.order, self.has_answered = None, True
            yield Ended(**json.loads(line))
