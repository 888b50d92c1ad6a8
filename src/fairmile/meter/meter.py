"""Records the spans, events and metrics of a process, cheap enough for the inner loop of a training program.

Spans go into lists of their thread and name (see calls.py). Once a second a thread turns the lists into lines and
appends them to the file with one write (see log_file.py).
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from functools import cache, lru_cache, wraps
from sys import getrefcount
from time import time_ns
from weakref import WeakSet, ref

from fairmile.meter.calls import BATCH, SIMPLE, Calls, SingleSpan, Timer, TimerWithAttributes, clock
from fairmile.meter.log_file import LogFile
from fairmile.meter.tally import Tally
from fairmile.meter.text import attributes_text, number, quote, usage_error

TYPE_CHECKING = False  # see text.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

    from fairmile.meter.summaries import SpanSummary

    P = ParamSpec("P")
    T = TypeVar("T")

    class Block(Protocol):
        """What `with` accepts and `span` returns."""

        def __enter__(self) -> None: ...

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
        ) -> None: ...


FLUSH_S = 1.0
_MOST_PACKED = 8  # batches in one line; what fits into a cache costs a tenth less than what does not
_MOST_UNWRITTEN_BYTES = 256 << 10  # lines of packed calls before their thread writes them, for the same reason
_MOST_CALLS = 256
_MOST_WAITING = 4096  # lines before the thread that adds one writes them itself
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

_meters: WeakSet[Meter] = WeakSet()
_finalized_pid = 0


def _count_kept() -> int:
    """Return how often a block is referred to that nobody but the meter keeps, seen as span() sees it."""
    block = object()
    keepers = (block,) * 5  # its timer, the list of all, what is done at its start and, twice, at its end
    return getrefcount(block) if keepers else 0


_KEPT = _count_kept()


class Meter:
    """Times, events and metrics of this process, appended to `file`; without a file only what summary() needs is kept.

    Threads and forked processes may use it freely. A write that fails never reaches the caller: it is told once on
    stderr, counted in `failures`, and what could not be written is kept for the next attempt. The rank is that
    which a launcher put into the environment, unless it is given. A thread writes once a second, unless `flusher` is
    false: then whoever keeps the meter calls `flush`.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        host: str | None = None,
        rank: int | None = None,
        flusher: bool = True,
    ) -> None:
        self._has_flusher = flusher
        self._log = LogFile()
        self._waiting = self._log.waiting
        self._reset()
        self._log.path = None if file is None else os.path.abspath(file)
        self.host = host if host is not None else os.uname().nodename
        self.rank = rank if rank is not None else _rank()
        self.component = ""  # what this process is to others that it exchanges data with: "solver", "trainer"
        _meters.add(self)

    @property
    def file(self) -> str | None:
        """The log that is written, or None."""
        return self._log.path if self._ready else self._place()

    @property
    def failures(self) -> int:
        """How many writes failed."""
        return self._log.failures

    @property
    def failure(self) -> str | None:
        """Why the last write that failed did, if any."""
        return self._log.failure

    @property
    def dropped(self) -> int:
        """How many lines were lost because too many waited for a disk that refused."""
        return self._log.dropped

    def span(self, name: str, /, n: object = ..., **attributes: object) -> Block:
        """Return a context manager that times its block and records attributes with it; `n` is the cheapest."""
        try:
            timer: Timer = self._local.spans[name]
        except (AttributeError, KeyError):
            timer = self._local.spans[name] = self._timer(name)
        # Each name has one block in each thread, since making one would be half of the cost; while a task that waits or
        # a call further up is in it, or somebody keeps it, others get blocks of their own.
        if n is ... and not attributes:
            return timer if len(timer) == timer.closed else SingleSpan(timer)
        about: Any = n
        if attributes or type(n) is not int:
            about = attributes if n is ... else {**attributes, "n": n}
            for value in about.values():
                if type(value) not in SIMPLE:
                    return SingleSpan(timer, about)
        block = timer.with_attributes
        if block is None:
            block = self._timer_with_attributes(timer)
        if len(block) != block.closed or getrefcount(block) > _KEPT:
            return SingleSpan(block, about)
        block.about = about
        return block

    if TYPE_CHECKING:

        @overload
        def timed(self, name: Callable[P, T], /) -> Callable[P, T]: ...
        @overload
        def timed(self, name: str | None = None, /) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    def timed(self, name: str | Callable[P, T] | None = None, /) -> Any:
        """Return a decorator that times each call of a plain or async function; it is itself one: `@meter.timed`.

        Without a name the timer is called as the function is: `train`, or `Net.forward` in a class.
        """
        if isinstance(name, str) or name is None:
            return lambda function: self._timed(function, name)
        if not callable(name):
            raise usage_error(f"{name!r} is not a timer name", "use a string")
        return self._timed(name, None)

    def start(self, name: str, /) -> None:
        """Start a timer in this thread; one that runs already starts once more inside itself."""
        try:
            timer: Timer = self._local.timers[name]
        except (AttributeError, KeyError):
            timer = self._local.timers[name] = self._timer(name, is_explicit=True)
        timer.append(clock())

    def stop(self, name: str, /) -> float:
        """Stop the timer that this thread started last under that name; return the seconds it ran."""
        now = clock()
        try:
            timer: Timer = self._local.timers[name]
        except (AttributeError, KeyError):
            raise self._not_running(name) from None
        if len(timer) - timer.closed == 1:
            start: int = timer[-1]
            timer.append(now)
            timer.closed += 2
        elif timer.running:
            start = timer.end(now)
        else:
            raise self._not_running(name)
        if timer.closed >= BATCH:
            self._spill(timer)
        return (now - start) / 1e9

    def event(self, name: str, /, **attributes: object) -> None:
        """Record that something happened now."""
        at = clock()
        if self._started() is None:
            return
        details = f', "with": {attributes_text(attributes)}' if attributes else ""
        self._add(f'{{"event": {quote(name)}, "at": {at}{details}{self._tail}')

    def log(self, /, *, step: float | None = None, **metrics: Any) -> None:
        """Record values of metrics: numbers of any kind, NaN and infinities included."""
        at = clock()
        values = ", ".join([f"{quote(name)}: {number(name, value)}" for name, value in metrics.items()])
        at_step = "" if step is None else f', "step": {number("step", step)}'
        if self._started() is not None:
            self._add(f'{{"log": {{{values}}}{at_step}, "at": {at}{self._tail}')

    def append(self, line: str) -> None:
        """Add a ready line of the log, such as a sample; it ends in a newline (see lines.py)."""
        if self._started() is not None:
            self._add(line)

    def line_end(self) -> str:
        """Return what a line ends in that tells something of this thread."""
        try:
            end: str = self._local.line_end
        except AttributeError:
            self._enter_thread()
            thread = f', "thread": {self._local.number}' if self._local.number else ""
            end = self._local.line_end = thread + self._tail
        return end

    def flush(self) -> None:
        """Write what was recorded so far."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what was recorded and let go of the file; what is recorded later is written at the next flush."""
        self._stop_flusher()
        with self._lock:
            self._flush()
            self._ready = False
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()

    def tallies(self) -> Iterator[tuple[str, int | None, Tally, int]]:
        """Yield name, rank, durations and number of running calls of each timer so far."""
        with self._lock:
            self._drain_all()
            timers = [(name, tally, 0) for name, tally in self._ended.items()]
            timers += [(each.name, each.tally, each.running) for each in self._threads_calls if each.is_timed]
            copies = [(name, self.rank, Tally.of(tally), running) for name, tally, running in timers]
        yield from copies

    def summary(self) -> list[SpanSummary]:
        """Return the statistics of each timer of this process, running ones included."""
        from fairmile.meter.summaries import summarise  # it takes longer to import than a training program may wait

        return summarise(self)

    # What follows is the slow path.

    def _timed(self, function: Callable[P, T], given: str | None) -> Callable[P, T]:
        from inspect import iscoroutinefunction

        name = given if given is not None else function.__qualname__.rpartition("<locals>.")[2]
        if iscoroutinefunction(function):

            @wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self.span(name):
                    return await function(*args, **kwargs)

            return call_async  # type: ignore[return-value]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.span(name):
                return function(*args, **kwargs)

        return call

    def _reset(self) -> None:
        """Forget all that was recorded; a forked child starts so, since what its parent recorded is not its own."""
        self._log.forget()
        self.began = time_ns(), clock()  # one moment, by the clock on the wall and by that of the lines
        self._lock = threading.RLock()
        self._busy = False
        self._local = threading.local()
        self._threads_calls: list[Calls] = []
        self._ended: dict[str, Tally] = {}  # of threads that are gone
        self._most_calls = _MOST_CALLS  # lists before those of threads that are gone are looked for
        self._threads = 0
        self._unwritten_bytes = 0  # of packed calls
        self._ready = False  # whether the file is known and somebody writes it
        self._flusher: tuple[threading.Thread, threading.Event] | None = None
        self._resumes = False  # whether the flusher only stopped for a fork
        self._tail = f', "p": {os.getpid()}}}\n'

    def _place(self) -> str | None:
        """Return the file to write; called once in a process that records something."""
        return self._log.path

    def _started(self) -> str | None:
        """Return the file that is written, and see that somebody writes it."""
        if not self._ready:
            self._log.path = self._place()
            self._ready = True
            if self._log.path is not None and self._has_flusher:
                self._start_flusher()
        return self._log.path

    def _start_flusher(self) -> None:
        global _finalized_pid
        with self._lock:
            if self._flusher is not None:
                return
            stop = threading.Event()
            thread = threading.Thread(target=_flush_often, args=(ref(self), stop), name="fairmile-meter", daemon=True)
            self._flusher = thread, stop
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending: what waits is written at the end
                return
        pid = os.getpid()
        if _finalized_pid != pid and (util := sys.modules.get("multiprocessing.util")) is not None:
            # Processes that multiprocessing forks end without atexit.
            _finalized_pid = pid
            util.Finalize(None, _flush_all, exitpriority=-100)

    def _stop_flusher(self) -> None:
        if self._flusher is not None:
            thread, stop = self._flusher
            self._flusher = None
            stop.set()
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(5)  # a file system that hangs must not hold up a fork for ever

    def _timer(self, name: str, *, is_explicit: bool = False) -> Timer:
        """Return the list for calls of a new name in this thread."""
        if not isinstance(name, str):
            raise usage_error(f"{name!r} is not a timer name", "use a string")
        self._started()
        self._enter_thread()
        timer = Timer(self, name, is_explicit=is_explicit)
        self._keep(timer)
        return timer

    def _timer_with_attributes(self, timer: Timer) -> TimerWithAttributes:
        attributed = timer.with_attributes = TimerWithAttributes(self, timer.name)
        self._keep(attributed)
        return attributed

    def _keep(self, calls: Calls) -> None:
        """See that what is added to a list of this thread gets into the log."""
        with self._lock:
            self._threads_calls.append(calls)
            if len(self._threads_calls) > self._most_calls:  # nobody flushes outside of a run
                self._drain_all()
                self._most_calls = max(_MOST_CALLS, 2 * len(self._threads_calls))

    def _enter_thread(self) -> None:
        local = self._local
        if not hasattr(local, "spans"):
            local.spans, local.timers = {}, {}
            local.number = self._threadnumber()

    def _threadnumber(self) -> int:
        if threading.current_thread() is threading.main_thread():
            return 0
        with self._lock:
            self._threads += 1
            return self._threads

    def _not_running(self, name: str) -> Exception:
        with self._lock:
            elsewhere = any(each.running for each in self._threads_calls if each.name == name)
        place = "in this thread" if elsewhere else "at all"
        return usage_error(f"timer {name!r} was stopped but is not running {place}", f"call start({name!r}) first")

    def _add(self, line: str) -> None:
        if self._log.path is None:
            return
        self._waiting.append(line)
        if len(self._waiting) >= _MOST_WAITING and self.failure is None:
            self._spill()

    def _spill(self, calls: Calls | None = None) -> None:
        """Pack what a list holds, or write the lines that wait, unless somebody is at it already."""
        if self._lock.acquire(blocking=False):
            try:
                if calls is None:
                    self._flush()
                elif not self._busy:
                    self._busy = True
                    try:
                        self._drain(calls)
                    finally:
                        self._busy = False
                    if self._unwritten_bytes >= _MOST_UNWRITTEN_BYTES and self.failure is None:
                        self._flush()
            finally:
                self._lock.release()

    def _drain_all(self) -> None:
        if self._busy:  # a signal handler came in while its own thread was here
            return
        self._busy = True
        try:
            kept = []
            for calls in self._threads_calls:
                alive = calls.owner.is_alive()  # asked first: after its end a thread adds nothing
                self._drain(calls, 0)
                if alive:
                    kept.append(calls)
                elif calls.is_timed:
                    self._ended.setdefault(calls.name, Tally()).merge(calls.tally)
            self._threads_calls = kept
        finally:
            self._busy = False

    def _drain(self, calls: Calls, most: int = _MOST_PACKED) -> None:
        """Take the calls out of a list; where more than `most` batches are packed, make a line of them."""
        line = calls.take(most)
        if line and self._log.path is not None:
            self._unwritten_bytes += len(line)
            self._waiting.append(line)

    def _flush(self) -> None:
        if self._busy:
            return
        self._drain_all()
        self._busy = True
        self._unwritten_bytes = 0
        try:  # a Ctrl-C may come anywhere in here
            self._log.write(self._writer_line)
        finally:
            self._busy = False

    def _writer_line(self) -> str:
        wall_ns, clock_ns = self.began
        facts = {"host": self.host, "rank": self.rank, "boot": _boot(), "wall_ns": wall_ns, "clock_ns": clock_ns}
        facts["began"] = _process_began(os.getpid())
        if self.component:
            facts["component"] = self.component
        return f'{{"writer": {attributes_text(facts)}{self._tail}'


def _rank() -> int | None:
    for variable in _RANK_VARIABLES:
        text = os.environ.get(variable, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


@cache
def _boot() -> str:
    """Return what tells one start of the system, and so one monotonic clock, from another."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)  # a forked process asks for itself
def _process_began(_pid: int) -> int:
    """Return the tick of the machine at which this process began, 0 where that is not told."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _flush_often(meter: ref[Meter], stop: threading.Event) -> None:
    while not stop.wait(FLUSH_S):
        here = meter()
        if here is None:
            return
        here.flush()
        del here


def _flush_all() -> None:
    for meter in list(_meters):
        meter.flush()


def _before_fork() -> None:
    # A process with a second thread is warned when it forks (from Python 3.12 on), and rightly so.
    for meter in list(_meters):
        meter._resumes = meter._flusher is not None
        meter._stop_flusher()


def _after_fork_in_parent() -> None:
    for meter in list(_meters):
        if meter._resumes:
            meter._resumes = False
            meter._start_flusher()


def _after_fork_in_child() -> None:
    for meter in list(_meters):
        meter._reset()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_flush_all)
