"""Measures while something else goes on: a thread that samples on time, and programs run under its eyes."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Self

from fairmile.base.commands import MissingProgram
from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import Channel, Column, Samples, Writer, channels_line
from fairmile.meter.meter import Meter
from fairmile.meter.sources import SOURCES, AvailableSources, Source, find_sources

_SHORTEST_S = 0.001
_PATIENCE_S = 10.0
_LOOK_S = 0.2
_MOST_FAILURES = 50
# What the reading of a source, or who listens, may raise: it costs that sample and nothing else.
_FAULTS = (OSError, ValueError, ArithmeticError, LookupError, RuntimeError, AttributeError, TypeError)
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

Values = Sequence[float | None]


class Watch:
    """Samples sources each `period_s` in a thread of its own, from `start` to `stop`.

    Sample k is due at start + k periods; one that is late is left out, so samples neither drift nor bunch. The first is
    taken within `start`, the last within `stop`. With `log`, a file or the meter that writes it, each sample becomes
    one line of it; without `keep` it is nowhere else, so that a watch of many days needs no memory. Nothing that fails
    here, be it a reading, the disk or `on_sample`, reaches the program: `failures` tells of it. The sources are closed
    with the end of the watch.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        log: Path | Meter | None = None,
        *,
        period_s: float = 1.0,
        on_sample: Callable[[Watch, Values], object] | None = None,
        keep: bool = True,
    ) -> None:
        if not _SHORTEST_S <= period_s < float("inf"):
            raise UsageError(f"the sampling period is {period_s!r} s", hint=f"use at least {_SHORTEST_S:g} s")
        self._sources = list(sources)
        self.channels = _unique_channels(self._sources)
        self.period_s = period_s
        self.skipped = 0
        self.cpu_s = 0.0  # what the thread itself used
        self.failures: dict[str, int] = {}  # what went wrong, and how often
        self._due_s = [0.0] * len(self._sources)  # when a source that is dear to read is read again
        self._on_sample = on_sample
        self._keep = keep
        self._meter = log if isinstance(log, Meter) else Meter(log)
        self._owns_meter = not isinstance(log, Meter)
        self._at = array("q")
        self._columns = [Column() for _ in self.channels]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._writer = self._me()
        self._began_ns = 0
        self._tail = ""

    def start(self) -> Self:
        """Take the first sample and go on sampling until `stop`."""
        if self._thread is not None:
            raise UsageError("this watch has already been started", hint="create a new one")
        self._writer = self._me()  # which may be another process by now
        self._pid = self._writer.pid
        self._began_ns = time.monotonic_ns()
        name = f"{self._pid}-{self._began_ns}"
        self._meter.append(channels_line(self.channels, name, self._pid))
        self._tail = f', "watch": "{name}", "p": {self._pid}}}\n'
        self._sample(first_or_last=True)
        self._thread = threading.Thread(target=self._run, name="fairmile-watch", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> Samples:
        """Take the last sample, close the sources and return what was measured; a second call only returns it."""
        thread = self._thread
        # A forked child has the object, but neither the thread nor the right to write.
        if thread is None or self._stop.is_set() or os.getpid() != self._pid:
            return self.measured()
        self._stop.set()
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            self._failed("a source did not respond at the end")
            return self.measured()
        self._sample(first_or_last=True)
        for source in self._sources:
            source.close()
        if self._owns_meter:
            self._meter.close()
            if self._meter.failures:
                what = f"cannot write {self._meter.file}: {self._meter.failure}"
                self.failures[what] = self._meter.failures
        return self.measured()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def measured(self) -> Samples:
        """Return what was measured so far, nothing where it is not kept."""
        count = len(self._at)
        at = array("q", (self._writer.wall(each) for each in self._at[:count]))
        return Samples(self.channels, self._writer, at, [column[:count] for column in self._columns])

    def _me(self) -> Writer:
        return Writer(self._meter.host, os.getpid(), self._meter.rank, *self._meter.began)

    def _run(self) -> None:
        # The signals of a program are for its main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        period_ns = round(self.period_s * 1e9)
        number = 0
        while True:
            due = max((time.monotonic_ns() - self._began_ns) // period_ns, number) + 1  # one may wake a little early
            self.skipped += due - number - 1
            number = due
            left_s = (self._began_ns + number * period_ns - time.monotonic_ns()) / 1e9
            if self._stop.wait(min(max(left_s, 0.0), threading.TIMEOUT_MAX)):
                return
            self._sample()
            self.cpu_s = time.thread_time()

    def _sample(self, *, first_or_last: bool = False) -> None:
        before_ns = time.monotonic_ns()
        values: list[float | None] = []
        for place in range(len(self._sources)):
            values += self._read(place, first_or_last=first_or_last)
        # The middle of the reading is the moment that fits all values best.
        at_ns = (before_ns + time.monotonic_ns()) // 2
        if self._keep:
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            self._at.append(at_ns)  # last, so that a reader never sees half a sample
        if self._meter.file is not None:
            self._meter.append(f'{{"sample": {json.dumps(values)}, "at": {at_ns}{self._tail}')
        if self._on_sample is not None:
            try:
                self._on_sample(self, values)
            except _FAULTS as error:
                self._failed(f"on_sample: {error!r}")

    def _read(self, place: int, *, first_or_last: bool) -> list[float | None]:
        source = self._sources[place]
        width = len(source.channels())
        now_s = time.monotonic()
        if not first_or_last and now_s < self._due_s[place]:
            return [None] * width
        # A little early is as good as on time: what is due at this sample must not wait for the next one.
        self._due_s[place] = now_s + getattr(source, "every_s", 0.0) - self.period_s / 2
        try:
            values = source.read()
        except _FAULTS as error:
            self._failed(f"{source.name}: {error}")
            return [None] * width
        if len(values) != width:
            self._failed(f"{source.name}: {len(values)} values for {width} channels")
            return [None] * width
        return [None if value is None or not math.isfinite(value) else value for value in values]

    def _failed(self, what: str) -> None:
        if what not in self.failures and len(self.failures) >= _MOST_FAILURES:
            what = "others"
        self.failures[what] = self.failures.get(what, 0) + 1


def _unique_channels(sources: Sequence[Source]) -> tuple[Channel, ...]:
    """Return the channels of all sources; a name that a source before has is led by that of its source."""
    channels: dict[str, Channel] = {}
    for source in sources:
        for channel in source.channels():
            name = channel.name
            while name in channels:
                name = f"{source.name}.{name}"
            channels[name] = replace(channel, name=name)
    return tuple(channels.values())


@dataclass(frozen=True, slots=True)
class Watched:
    """What was measured, and of a program how it ended: `exit_code` is negative where a signal ended it."""

    samples: Samples
    elapsed_s: float
    start_ns: int
    end_ns: int
    exit_code: int | None = None
    cpu_s: float | None = None  # of the program and of all it waited for
    interrupted: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    watch_cpu_s: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


def watch_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    wanted: Sequence[str] | None = None,
    file: Path | None = None,
    period_s: float = 1.0,
    root: Path = Path("/"),
    on_sample: Callable[[Watch, Values], object] | None = None,
) -> Watched:
    """Run a program as if there was no watch and measure until it ends.

    Its input, output and terminal are its own; `env` adds to its environment. A signal sent to this process goes on to
    it; Ctrl-C reaches it by itself. A program that cannot be started raises SystemFailure.
    """
    if not argv:
        raise UsageError("the command to run is empty")
    names = SOURCES.names() if wanted is None else list(wanted)
    available = find_sources([name for name in names if name != "process"], root=root)
    in_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "sigtimedwait")
    caught = {*_PASSED_ON, signal.SIGCHLD} if in_main else set()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    try:
        pid = _spawn(argv, env or {}, mask, available)
        began_ns = time.monotonic_ns()
        try:
            if "process" in names:  # needs the process; all that takes time is open by now
                own = find_sources(["process"], root=root, pid=pid)
                available.sources += own.sources
                available.missing |= own.missing
            watch = Watch(available.sources, file, period_s=period_s, on_sample=on_sample).start()
            _wait(pid, caught)
        except BaseException:
            _end(pid)
            raise
        # Before the process is forgotten, so that its last numbers are seen.
        watched = _watched(watch, available, time.monotonic_ns() - began_ns)
        _, status, usage = os.wait4(pid, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return replace(
        watched,
        exit_code=os.waitstatus_to_exitcode(status),
        cpu_s=usage.ru_utime + usage.ru_stime,
    )


def watch_for(
    seconds: float | None,
    *,
    wanted: Sequence[str] | None = None,
    file: Path | None = None,
    period_s: float = 1.0,
    pid: int | None = None,
    root: Path = Path("/"),
    on_sample: Callable[[Watch, Values], object] | None = None,
) -> Watched:
    """Measure for some seconds, or until Ctrl-C, which `interrupted` then tells; a process only where one is given."""
    if wanted is None and pid is None:
        wanted = [name for name in SOURCES.names() if name != "process"]
    available = find_sources(wanted, root=root, pid=pid)
    watch = Watch(available.sources, file, period_s=period_s, on_sample=on_sample).start()
    began_ns, interrupted = time.monotonic_ns(), False
    try:
        threading.Event().wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
    except KeyboardInterrupt:
        interrupted = True
    return replace(_watched(watch, available, time.monotonic_ns() - began_ns), interrupted=interrupted)


def _watched(watch: Watch, available: AvailableSources, elapsed_ns: int) -> Watched:
    """Return what a watch measured whose end is now."""
    samples, end_ns = watch.stop(), time.time_ns()
    return Watched(
        samples,
        elapsed_ns / 1e9,
        end_ns - elapsed_ns,
        end_ns,
        missing=available.missing,
        skipped=watch.skipped,
        watch_cpu_s=watch.cpu_s,
        failures=watch.failures,
    )


def _spawn(argv: Sequence[str], env: Mapping[str, str], mask: Iterable[int], available: AvailableSources) -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        # Python ignores these two; a program expects them as they are by default.
        return os.posix_spawnp(
            argv[0],
            list(argv),
            {**os.environ, **env},
            setsigmask=list(mask),
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except FileNotFoundError as error:
        available.close()
        raise MissingProgram(
            f"{argv[0]}: command not found", hint="check the name, install it, or load its module"
        ) from error
    except (OSError, ValueError) as error:
        available.close()
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise SystemFailure(f"cannot run {argv[0]!r}: {reason}") from error


def _wait(pid: int, caught: set[signal.Signals]) -> None:
    """Wait until the process has ended, which is not yet taken note of, and pass on signals meant for it."""
    if not caught:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        info = signal.sigtimedwait(caught, _LOOK_S)
        # What the kernel itself sends (Ctrl-C, a terminal that closes) the program gets as well.
        if info is not None and info.si_signo in _PASSED_ON and info.si_code <= 0:
            os.kill(pid, info.si_signo)


def _end(pid: int) -> None:
    """End a process that nobody would wait for."""
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
