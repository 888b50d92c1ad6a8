"""Records the spans, events and metrics of a process, cheap enough for the inner loop of a training program.

A span costs two readings of the clock and one entry in a list of its thread and name. Once a second a thread turns
the lists into lines (see lines.py) and appends them to the file with one write. Nesting is not stored: it follows
from the times.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from array import array
from binascii import b2a_base64
from collections import deque
from contextlib import suppress
from errno import EBADF, ENOENT, ENOSPC
from functools import lru_cache, wraps
from operator import sub
from struct import pack
from time import monotonic_ns, time_ns
from weakref import WeakSet, ref

from fairmile.meter.tally import INT64, Tally

TYPE_CHECKING = False  # typing alone would take most of the time that `import fairmile.meter` may take
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

    from fairmile.meter.statistics import SpanSummary

    P = ParamSpec("P")
    T = TypeVar("T")

    class Block(Protocol):
        """What `with` accepts and `span` returns."""

        def __enter__(self) -> None: ...

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
        ) -> None: ...


FLUSH_S = 1.0
_BATCH = 1024  # numbers, two for each call, that a list may hold before its own thread packs them
_MOST_PACKED = 8  # batches in one line; what fits into a cache costs a tenth less than what does not
_MOST_UNWRITTEN_BYTES = 256 << 10  # lines of packed calls before their thread writes them, for the same reason
_FEW_BYTES = 1024  # of packed calls that a line tells as numbers
_MOST_CALLS = 256
_MOST_WAITING = 4096  # lines before the thread that adds one writes them itself
_MOST_HELD_BYTES = 64 << 20  # what is kept while the disk refuses
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_DEEPEST = 20

_clock = monotonic_ns
_meters: WeakSet[Meter] = WeakSet()
_finalized_pid = 0


class _Calls(list[int]):
    """The calls of one timer in one thread that no line tells yet: start, end, start, end, …"""

    __slots__ = ("attributed", "head", "meter", "name", "open", "owner", "packed", "tail", "tally")

    width = 2  # numbers of one call
    is_timed = True

    def __init__(self, meter: Meter, name: str, head: str, tail: str) -> None:
        self.meter = meter
        self.name = name
        self.head = head
        self.tail = tail
        self.owner = threading.current_thread()
        self.open: list[int] = []  # when start() was called
        self.attributed: list[int] = []  # durations of calls that have lines of their own
        self.packed: list[bytes] = []
        self.tally = Tally()

    def pack(self, count: int) -> bytes:
        """Return the first numbers as bytes."""
        return pack(f"{count}{INT64}", *self[:count])

    def line(self, packed: bytes) -> str:
        """Take note of what was packed and return the line that tells it."""
        self.tally.add_pairs(packed)
        return f"{self.head}{_numbers(packed)}{self.tail}"


class _Span:
    """A timed block; it may be entered again, also inside itself.

    What `with` calls are plain functions in slots: Python makes no method of them first and calls the second without
    leaving its loop, which is a tenth of the cost.
    """

    __slots__ = ("__enter__", "__exit__", "_calls", "_start_ns")

    __enter__: Callable[[], None]
    __exit__: Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._start_ns = 0  # 0 while it is not entered
        outer: list[int] = []

        def enter() -> None:
            if self._start_ns:
                outer.append(self._start_ns)
            self._start_ns = _clock()

        def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
            nonlocal calls
            # One step of C: neither another thread nor a signal handler can come between start and end.
            calls += (self._start_ns, _clock())
            self._start_ns = outer.pop() if outer else 0
            if len(calls) >= _BATCH:
                calls.meter._spill(calls)

        self.__enter__ = enter
        self.__exit__ = leave


class _AttributedSpan:
    """A timed block that has a line of its own."""

    __slots__ = ("_attributes", "_calls", "_start_ns")

    def __init__(self, calls: _Calls, attributes: Mapping[str, object]) -> None:
        self._calls = calls
        self._attributes = attributes
        self._start_ns = 0

    def __enter__(self) -> None:
        self._start_ns = _clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        duration = _clock() - self._start_ns
        calls = self._calls
        calls.attributed.append(duration)
        if calls.meter.file is not None:
            attributes = _json(self._attributes)
            calls.meter._add(f'{calls.head}[{self._start_ns}, {duration}], "with": {attributes}{calls.tail}')
        elif len(calls.attributed) >= _BATCH:
            calls.meter._spill(calls)


class Meter:
    """Times, events and metrics of this process, appended to `file`; without a file only what summary() needs is kept.

    Threads and forked processes may use it freely. A write that fails never reaches the caller: it is told once on
    stderr, counted in `failures`, and what could not be written is kept for the next attempt. The rank is that
    which a launcher put into the environment, unless it is given.
    """

    def __init__(
        self, file: str | os.PathLike[str] | None = None, *, host: str | None = None, rank: int | None = None
    ) -> None:
        self._file: str | None = None
        self._descriptor: int | None = None
        self._identity = (0, 0)
        self._reset()
        self._file = None if file is None else os.path.abspath(file)
        self.host = host if host is not None else os.uname().nodename
        self.rank = rank if rank is not None else _rank()
        self.component = ""  # what this process is to others that it exchanges data with: "solver", "trainer"
        _meters.add(self)

    @property
    def file(self) -> str | None:
        """The log that is written, or None."""
        return self._file

    def span(self, name: str, /, **attributes: object) -> Block:
        """Return a context manager that times its block; attributes are recorded with it at the cost of a line."""
        try:
            span: _Span = self._local.spans[name]
        except (AttributeError, KeyError):
            span = self._local.spans[name] = _Span(self._calls(name))
        if attributes:
            return _AttributedSpan(span._calls, attributes)
        # Each name has one span in each thread, since making one would be half of the cost; while a task that waits or
        # a call further up is in it, the next one takes its place.
        if span._start_ns:
            span = self._local.spans[name] = _Span(span._calls)
        return span

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
            raise _usage_error(f"{name!r} is no name for a timer", "a name is a text")
        return self._timed(name, None)

    def start(self, name: str, /) -> None:
        """Start a timer in this thread; one that runs already starts once more inside itself."""
        try:
            calls: _Calls = self._local.calls[name]
        except (AttributeError, KeyError):
            calls = self._calls(name)
        calls.open.append(_clock())

    def stop(self, name: str, /) -> float:
        """Stop the timer that this thread started last under that name; return the seconds it ran."""
        now = _clock()
        try:
            calls: _Calls = self._local.calls[name]
            start = calls.open.pop()
        except (AttributeError, KeyError, IndexError):
            raise self._not_running(name) from None
        calls += (start, now)
        if len(calls) >= _BATCH:
            self._spill(calls)
        return (now - start) / 1e9

    def event(self, name: str, /, **attributes: object) -> None:
        """Record that something happened now."""
        at = _clock()
        if self._started() is None:
            return
        told = f', "with": {_json(attributes)}' if attributes else ""
        self._add(f'{{"event": {_quote(name)}, "at": {at}{told}{self._tail}')

    def log(self, /, *, step: float | None = None, **metrics: Any) -> None:
        """Record values of metrics: numbers of any kind, NaN and infinities included."""
        at = _clock()
        values = ", ".join([f"{_quote(name)}: {_number(name, value)}" for name, value in metrics.items()])
        told = "" if step is None else f', "step": {_number("step", step)}'
        if self._started() is not None:
            self._add(f'{{"log": {{{values}}}{told}, "at": {at}{self._tail}')

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
            told = f', "thread": {self._local.number}' if self._local.number else ""
            end = self._local.line_end = told + self._tail
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
            if self._descriptor is not None and self._is_ours(self._descriptor):
                with suppress(OSError):
                    os.close(self._descriptor)
            self._descriptor = None

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
            found = [(name, tally, 0) for name, tally in self._ended.items()]
            found += [(each.name, each.tally, len(each.open)) for each in self._threads_calls if each.is_timed]
            copies = [(name, self.rank, Tally.of(tally), running) for name, tally, running in found]
        yield from copies

    def summary(self) -> list[SpanSummary]:
        """Return the statistics of each timer of this process, running ones included."""
        from fairmile.meter.statistics import summarise  # it takes longer to import than a training program may wait

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
        self.failures = 0
        self.failure: str | None = None
        self.dropped = 0  # lines lost since the disk refuses and too many wait
        self.began = time_ns(), _clock()  # one moment, by the clock on the wall and by that of the lines
        self._lock = threading.RLock()
        self._busy = False
        self._local = threading.local()
        self._threads_calls: list[_Calls] = []
        self._ended: dict[str, Tally] = {}  # of threads that are gone
        self._most_calls = _MOST_CALLS  # lists before those of threads that are gone are looked for
        self._threads = 0
        self._waiting: deque[str] = deque()
        self._unwritten_bytes = 0  # of packed calls
        self._announced = False
        self._untold = 0  # failures that the log itself does not tell yet
        self._ready = False  # whether the file is known and somebody writes it
        self._flusher: tuple[threading.Thread, threading.Event] | None = None
        self._resumes = False  # whether the flusher only stopped for a fork
        self._tail = f', "p": {os.getpid()}}}\n'

    def _place(self) -> str | None:
        """Return the file to write; called once in a process that records something."""
        return self._file

    def _started(self) -> str | None:
        """Return the file that is written, and see that somebody writes it."""
        if not self._ready:
            self._file = self._place()
            self._ready = True
            if self._file is not None:
                self._start_flusher()
        return self._file

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

    def _calls(self, name: str) -> _Calls:
        """Return the list for calls of this name in this thread."""
        if not isinstance(name, str):
            raise _usage_error(f"{name!r} is no name for a timer", "a name is a text")
        local = self._local
        self._enter_thread()
        calls: _Calls | None = local.calls.get(name)
        if calls is None:
            self._started()
            calls = _Calls(self, name, f'{{"spans": {_quote(name)}, "at": ', self.line_end())
            self._keep(calls)
            local.calls[name] = calls
        return calls

    def _keep(self, calls: _Calls) -> None:
        """See that what is added to a list of this thread gets into the log."""
        with self._lock:
            self._threads_calls.append(calls)
            if len(self._threads_calls) > self._most_calls:  # nobody flushes outside of a run
                self._drain_all()
                self._most_calls = max(_MOST_CALLS, 2 * len(self._threads_calls))

    def _enter_thread(self) -> None:
        local = self._local
        if not hasattr(local, "calls"):
            local.calls, local.spans = {}, {}
            local.number = self._thread_number()

    def _thread_number(self) -> int:
        if threading.current_thread() is threading.main_thread():
            return 0
        with self._lock:
            self._threads += 1
            return self._threads

    def _not_running(self, name: str) -> Exception:
        with self._lock:
            elsewhere = any(each.open for each in self._threads_calls if each.name == name)
        place = "in this thread" if elsewhere else "at all"
        return _usage_error(f"timer {name!r} was stopped but does not run {place}", f"call start({name!r}) first")

    def _add(self, line: str) -> None:
        if self._file is None:
            return
        self._waiting.append(line)
        if len(self._waiting) >= _MOST_WAITING and self.failure is None:
            self._spill()

    def _spill(self, calls: _Calls | None = None) -> None:
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

    def _drain(self, calls: _Calls, most: int = _MOST_PACKED) -> None:
        """Take the calls out of a list; where more than `most` batches are packed, make a line of them."""
        # The owner may append at any moment: only what was there at first is taken, and removed only from the front.
        if count := len(calls) - len(calls) % calls.width:
            calls.packed.append(calls.pack(count))
            del calls[:count]
        if len(calls.packed) > most:
            packed = b"".join(calls.packed)
            calls.packed = []
            line = calls.line(packed)
            if self._file is not None:
                self._unwritten_bytes += len(line)
                self._waiting.append(line)
        if count := len(calls.attributed):
            calls.tally.add(array("q", calls.attributed[:count]))
            del calls.attributed[:count]

    def _flush(self) -> None:
        if self._busy:
            return
        self._drain_all()
        if self._file is None or not self._waiting:
            return
        self._busy = True
        self._unwritten_bytes = 0
        try:  # a Ctrl-C may come anywhere in here
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if self._untold:
                told = {"times": self._untold, "reason": self.failure, "lines_lost": self.dropped}
                lines.append(f'{{"event": "meter.write_failed", "at": {_clock()}, "with": {_json(told)}{self._tail}')
            try:
                left = self._write("".join(lines).encode())
            except OSError as error:
                self._waiting.extendleft(reversed(lines[: -1 if self._untold else None]))
                self._failed(error)
            else:
                if left:
                    self._waiting.appendleft(left.decode())
                else:
                    self._untold = 0
        finally:
            self._busy = False

    def _write(self, data: bytes) -> bytes:
        """Append whole lines; return those that the disk did not take. Raise OSError where it took none."""
        descriptor, ragged = self._open()
        start = (b"\n" if ragged else b"") + (b"" if self._announced else self._writer_line())
        written = os.write(descriptor, start + data)
        if written < len(start) + len(data):
            # The disk is full. The line that was cut is written again as a whole; the next write ends its stump first.
            self._failed(OSError(ENOSPC, os.strerror(ENOSPC)))
        if written < len(start):
            return data
        self._announced = True
        return data[data.rfind(b"\n", 0, written - len(start)) + 1 :]

    def _open(self) -> tuple[int, bool]:
        """Return the descriptor of the log, and whether the last line in it has no end."""
        assert self._file is not None
        if self._descriptor is not None and not self._is_ours(self._descriptor):
            self._descriptor, self._announced = None, False  # somebody closed it, or removed the file
        if self._descriptor is None:
            descriptor = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            status = os.fstat(descriptor)
            self._descriptor, self._identity = descriptor, (status.st_dev, status.st_ino)
        size = os.fstat(self._descriptor).st_size
        return self._descriptor, size > 0 and os.pread(self._descriptor, 1, size - 1) not in (b"\n", b"")

    def _is_ours(self, descriptor: int) -> bool:
        """Return whether a descriptor still leads to the log; if it leads nowhere any more, close it."""
        try:
            status = os.fstat(descriptor)
        except OSError as error:
            lost = error.errno != EBADF
        else:
            if (status.st_dev, status.st_ino) != self._identity:
                return False  # the number is another file's now
            if status.st_nlink:
                return True
            lost = True
        if lost:
            with suppress(OSError):
                os.close(descriptor)
        return False

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        self._untold += 1
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == ENOENT:
            reason = "its folder is gone"
        first = self.failure is None
        self.failure = reason
        self._drop_newest()
        if first and sys.stderr is not None:
            line = (
                f"fairmile: cannot write {self._file}: {reason}; the program goes on, what it records is kept for now\n"
            )
            with suppress(OSError, ValueError):  # stderr may be closed, or full as well
                sys.stderr.write(line)
                sys.stderr.flush()

    def _drop_newest(self) -> None:
        held = sum(map(len, self._waiting.copy()))
        while held > _MOST_HELD_BYTES:
            held -= len(self._waiting.pop())
            self.dropped += 1

    def _writer_line(self) -> bytes:
        wall, clock = self.began
        told = {"host": self.host, "rank": self.rank, "boot": _boot(), "wall_ns": wall, "clock_ns": clock}
        told["began"] = _process_began()
        if self.component:
            told["component"] = self.component
        return f'{{"writer": {_json(told)}{self._tail}'.encode()


def _rank() -> int | None:
    for variable in _RANK_VARIABLES:
        text = os.environ.get(variable, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _boot() -> str:
    """Return what tells one start of the system, and so one monotonic clock, from another."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _process_began() -> int:
    """Return the tick of the machine at which this process began, 0 where that is not told."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _number(name: str, value: Any) -> str:
    """Return a number as JSON, or its name as a text where JSON has no word for it."""
    kind = type(value)
    if kind is int:
        return repr(value)
    if kind is not float:
        if isinstance(value, (str, bytes)):
            raise _usage_error(f"metric {name!r} is a text, expected a number", "texts belong into event(…)")
        try:
            item = value.item() if hasattr(value, "item") else value  # float() of a tensor with a gradient warns
            value = float(item)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise _usage_error(f"metric {name!r} is no number but {kind.__name__}", str(error)) from error
        if isinstance(item, int):
            return repr(int(item))
    if value - value == 0:
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _numbers(packed: bytes) -> str:
    """Return starts and durations where they are few, else starts and ends as base64 of 64-bit integers."""
    if len(packed) > _FEW_BYTES and sys.byteorder == "little":
        return f'"{b2a_base64(packed, newline=False).decode()}"'
    numbers = array("q", packed)
    if len(packed) > _FEW_BYTES:
        return _in_base64(numbers)
    numbers[1::2] = array("q", map(sub, numbers[1::2], numbers[0::2]))
    return repr(numbers.tolist())


def _in_base64(numbers: array[int]) -> str:
    if sys.byteorder == "big":
        numbers.byteswap()
    return f'"{b2a_base64(numbers, newline=False).decode()}"'


@lru_cache(maxsize=4096, typed=True)
def _quote(name: object) -> str:
    """Return a name as JSON."""
    return _text(str(name))


def _text(text: str) -> str:
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else _dumps(text)


def _json(data: Mapping[str, object]) -> str:
    """Return attributes as JSON; what JSON cannot say becomes text."""
    told = []
    for name, value in data.items():
        kind = type(value)
        if kind is int or (kind is float and value - value == 0):  # type: ignore[operator]
            told.append(f"{_quote(name)}: {value!r}")
        elif kind is str:
            told.append(f"{_quote(name)}: {_text(value)}")  # type: ignore[arg-type]
        else:
            break
    else:
        return f"{{{', '.join(told)}}}"
    try:
        return _dumps(data)
    except (TypeError, ValueError, RecursionError):
        return _dumps(_plain(data, 0))


def _dumps(data: object) -> str:
    return _encoder()(data)


@lru_cache(maxsize=1)
def _encoder() -> Callable[[object], str]:
    from json import JSONEncoder

    return JSONEncoder(allow_nan=False).encode


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else _number("", float(value))[1:-1]
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return {str(key): _plain(each, depth + 1) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(each, depth + 1) for each in value]
        if hasattr(value, "tolist"):  # numpy, torch, jax
            return _plain(value.tolist(), depth + 1)
    return str(value) if depth < _DEEPEST else "…"


def _usage_error(message: str, hint: str) -> Exception:
    # What it imports takes far longer than all the rest, and a program that makes no mistake never needs it.
    from fairmile.base.errors import UsageError

    return UsageError(message, hint=hint)


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
