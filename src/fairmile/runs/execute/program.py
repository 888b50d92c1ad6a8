"""One program: started, followed, measured and ended; how it ended is told. This travels with the recorder."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import FILE, FILE_VARIABLE, HOST_VARIABLE
from fairmile.meter.meter import FLUSH_S, Meter
from fairmile.meter.sources import find_sources
from fairmile.meter.watch import Watch
from fairmile.runs.execute.output_reader import OutputReader
from fairmile.runs.execute.processes import RUN_VARIABLE, module_words
from fairmile.runs.execute.watching import FileWatch
from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.record import RunRecord

_METRICS = "metrics.jsonl"
# A run that is over sooner tells no counter anything: looking for them would cost more than the run.
_WATCH_AFTER_S = 0.25
_TICK_S, _QUIET_TICK_S = 0.05, 0.5
_GRACE_S = 10.0
_SHORT_S = 0.01
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# The kernel takes no variable above 128 KiB; who has longer parameters finds them in the record.
_LONGEST_VARIABLE = 100_000


@dataclass
class Ending:
    """How a program ended."""

    state: str
    exit_code: int | None = None
    signal: str = ""
    reason: str = ""
    hint: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    out_of_memory: bool = False  # whether the kernel ended processes for want of memory meanwhile


class Program:
    """One process group, what it prints, what it logs and what is measured meanwhile."""

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        argv: Sequence[str],
        env: Mapping[str, str],
        work: Path,
        echo: BinaryIO | None,
        look: Callable[[], str] | None,
        watch: FileWatch | None = None,
    ) -> None:
        self.folder, self.spec, self.argv, self.work = folder, record.spec, argv, work
        self.env = {**env, **self.spec.env, **run_variables(folder, record)}
        self._files = watch
        if watch is not None:
            self.env |= watch.start(argv, self.env)
        self.missing = {"watch": "the run was too short to measure"}
        self.printed_from = 0
        self._meter = Meter(folder / FILE, flusher=False)
        patterns = {name: each.pattern for name, each in self.spec.metrics.items() if each.pattern}
        self._reader = OutputReader(self._meter, patterns, echo)
        self._look = look
        self._looks = bool(patterns) or echo is not None or look is not None
        self._watch: Watch | None = None
        self._forwarded = ""
        self._group: int | None = None
        self._early: list[int] = []
        self._kills = _kills()

    def run(self) -> tuple[Ending, float]:
        """Start the program, follow it, and return how it ended and how long it took."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        paths = [os.path.join(self.folder, name) for name in (OUTPUT, _METRICS)]
        output, metrics = (os.open(path, flags, 0o666) for path in paths)
        self.printed_from = os.lseek(output, 0, os.SEEK_END)
        begins = time.monotonic()
        try:
            with self._reader.attached(*paths, printed_from=self.printed_from):
                with self._passing_signals():
                    try:
                        process = self._start(output, metrics)
                    except (OSError, ValueError) as error:  # there is no such program, or a word holds a NUL
                        return self._not_started(error), time.monotonic() - begins
                    ending = self._follow(process, begins)
                elapsed_s = time.monotonic() - begins
                self._reader.drain()
        finally:
            if self._watch is not None:
                self._watch.stop()
            self._meter.close()
            for path, descriptor in zip(paths, (output, metrics), strict=True):
                is_empty = descriptor == metrics or os.fstat(descriptor).st_size == 0
                os.close(descriptor)
                if is_empty:  # what stood in it is in the log now
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
        return ending, elapsed_s

    def _start(self, output: int, metrics: int) -> subprocess.Popen[bytes]:
        both = [sys.executable, "-P", *module_words("pair")] if self.spec.coupled else []
        return subprocess.Popen(
            [*both, *self.argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self.work,
            env={**self.env, "FAIRMILE_METRICS_FD": str(metrics)},
            pass_fds=(metrics,),
            process_group=0,  # one signal reaches all of it, and none that is meant for us alone
        )

    def _not_started(self, error: OSError | ValueError) -> Ending:
        """Return the end of a program that never began; who was told to end meanwhile must begin no other one."""
        ending = _not_started(self.argv, self.work, error)
        if not self._forwarded:
            return ending
        code = 128 + signal.Signals[f"SIG{self._forwarded}"]
        return Ending("cancelled", code, self._forwarded, f"ended by {self._forwarded}; {ending.reason}")

    def _follow(self, process: subprocess.Popen[bytes], begins: float) -> Ending:
        """Wait for the end; an interruption ends the program first."""
        timeout_s = self.spec.timeout_s
        limit = begins + timeout_s if timeout_s else None
        watch_s = self.spec.watch_s
        watch_at = begins + _WATCH_AFTER_S if watch_s else None
        with _Child(process, self._files) as child:
            try:
                self._group = process.pid
                if self._files is not None:
                    self._files.pid = process.pid
                for number in self._early:
                    self._pass(number)
                self._meter.event("started", pid=process.pid)
                flush_at = begins + FLUSH_S
                while not child.wait(self._pause(limit, watch_at)):
                    self._reader.look()
                    child.look()
                    now = time.monotonic()
                    if now >= flush_at:
                        self._meter.flush()
                        flush_at = now + FLUSH_S
                    if watch_at is not None and now >= watch_at:
                        watch_at = None
                        self._measure(process.pid, watch_s)
                    if limit is not None and now >= limit:
                        return self._stopped(child, f"exceeded the time limit of {timeout_s:g} s", state="timeout")
                    if self._look is not None and (why := self._look()):
                        return self._stopped(child, why, state="cancelled")
            except BaseException:
                self._forwarded = "INT"
                child.end(first=signal.SIGINT)
                if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                    raise
        return self._judged(child)

    def _pause(self, limit: float | None, watch_at: float | None) -> float | None:
        """Return how long to wait before looking again."""
        pause = _TICK_S if self._looks else _QUIET_TICK_S
        marks = [mark - time.monotonic() for mark in (limit, watch_at) if mark is not None]
        return max(min([pause, *marks]), 0.0)

    def _measure(self, pid: int, period_s: float) -> None:
        sources = find_sources(pid=pid)
        self.missing = sources.missing
        self._watch = Watch(sources.sources, self._meter, period_s=period_s, keep=False)
        self._watch.start()

    def _pass(self, number: int) -> None:
        """Send the program a signal; one that comes while it is being started waits for it."""
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._forwarded = signal.Signals(number).name.removeprefix("SIG")
        if self._group is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, number)

    @contextlib.contextmanager
    def _passing_signals(self) -> Iterator[None]:
        """Pass on what is sent to us until the program has ended; only a main thread may listen."""

        def forward(number: int, _: object) -> None:
            self._pass(number)

        before: dict[int, Any] = {}
        try:
            for number in _FORWARDED:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
                    before[number] = signal.signal(number, forward)
        except ValueError:
            pass
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _stopped(self, child: _Child, reason: str, *, state: str) -> Ending:
        if child.wait(0):  # it came to its end by itself meanwhile
            return self._judged(child)
        child.end()
        return self._judged(child, reason, state=state)

    def _judged(self, child: _Child, reason: str = "", *, state: str = "") -> Ending:
        code = child.exit_code
        if code is None:  # somebody else collected it
            return Ending("interrupted", reason="its end is unknown")
        name = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else ""
        # Also with exit code 0: who saves his state and goes has not come to the end.
        if not state and self._forwarded:
            state, reason = "cancelled", f"ended by {self._forwarded}"
        if not state:
            state = "done" if code == 0 else "failed"
        hint = ""
        if state == "failed" and not reason:
            reason = f"killed by {name}" if name else f"exit code {code}"
            hint = "it may have run out of memory" if name == "SIGKILL" else ""
        exit_code, signal_name = code if code >= 0 else 128 - code, name.removeprefix("SIG")
        killed = name == "SIGKILL" and _kills() > self._kills
        return Ending(state, exit_code, signal_name, reason, hint, child.usage, killed)


class _Child:
    """Waits for a process with a time limit, and learns what it used."""

    def __init__(self, process: subprocess.Popen[bytes], files: FileWatch | None = None) -> None:
        self._process, self._files = process, files
        self._descriptor = _pidfd(process.pid)
        self.exit_code: int | None = None
        self.usage: dict[str, float] = {}
        # Until it becomes another program, a process counts the memory of the one that started it as its own.
        self._seen_bytes = 0
        self._inherited_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        self._is_over = False

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether it has ended, at the latest after `timeout_s`; files that it opens meanwhile are noted."""
        until = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        if self._descriptor is None:
            while not self._collect(os.WNOHANG):
                if time.monotonic() >= until:
                    return False
                time.sleep(_SHORT_S)
                self._note_files()
            return True
        while not (ready := self._poll(until, files=True)) or self._descriptor not in ready:
            if not ready:
                return False
            self._note_files()
            if self._poll(min(until, time.monotonic() + _SHORT_S), files=False):  # not woken for each of many files
                break
        return self._collect(0)

    def _poll(self, until: float, *, files: bool) -> list[int]:
        """Return which descriptors have news, at the latest at `until`: that of the process, that of opened files."""
        poll = select.poll()
        assert self._descriptor is not None
        poll.register(self._descriptor, select.POLLIN)
        if files and self._files is not None and self._files.descriptor >= 0:
            poll.register(self._files.descriptor, select.POLLIN)
        left_s = until - time.monotonic()
        events = poll.poll(None if left_s == math.inf else max(int(left_s * 1000) + 1, 0))
        return [descriptor for descriptor, _ in events]

    def _note_files(self) -> None:
        if self._files is not None:
            self._files.drain()

    def _collect(self, options: int) -> bool:
        if self._is_over:
            return True
        try:
            pid, status, used = os.wait4(self._process.pid, options)
        except ChildProcessError:
            self._is_over = True
            return True
        if pid == 0:
            return False
        self._is_over = True
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._process.returncode = self.exit_code  # else Popen believes it still runs
        self.usage = {
            "cpu_s": used.ru_utime + used.ru_stime,
            "read_bytes": used.ru_inblock * 512,
            "written_bytes": used.ru_oublock * 512,
        }
        counted_bytes = used.ru_maxrss * _RSS_UNIT
        if counted_bytes > self._inherited_bytes:
            self.usage["max_rss_bytes"] = counted_bytes
        elif self._seen_bytes:  # it may have been more behind our back
            self.usage["seen_rss_bytes"] = self._seen_bytes
        return True

    def look(self) -> None:
        """See how much memory the program has used at most until now."""
        with contextlib.suppress(OSError), open(f"/proc/{self._process.pid}/status", "rb") as file:
            match = re.search(rb"^VmHWM:\s+(\d+) kB", file.read(), re.MULTILINE)
            self._seen_bytes = int(match[1]) * 1024 if match else self._seen_bytes

    def end(self, first: signal.Signals = signal.SIGTERM) -> None:
        """End the whole group: politely, then for good."""
        for number in (first, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(KeyboardInterrupt):  # somebody does not want to wait that long
                if self.wait(_GRACE_S if number is not signal.SIGKILL else None):
                    break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it left behind


def run_variables(folder: Path, record: RunRecord) -> dict[str, str]:
    """Return what a program is told of the run it is part of."""
    spec = record.spec
    variables = {
        RUN_VARIABLE: str(folder),
        "FAIRMILE_RUN_ID": record.id,
        "FAIRMILE_ATTEMPT": str(len(record.attempts)),
        "FAIRMILE_METRICS": str(folder / _METRICS),
        FILE_VARIABLE: str(folder / FILE),
        HOST_VARIABLE: os.uname().nodename,
    }
    if spec.params and len(text := json.dumps(spec.params)) <= _LONGEST_VARIABLE:
        variables["FAIRMILE_PARAMS"] = text
    if spec.seed is not None:
        variables["FAIRMILE_SEED"] = str(spec.seed)
    for name, each in record.captured.inputs.items():
        word = re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        if each.there or each.path:
            variables[f"FAIRMILE_INPUT_{word}"] = each.there or each.path
    return variables


def _not_started(argv: Sequence[str], work: Path, error: OSError | ValueError) -> Ending:
    code = 127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126
    if not work.is_dir():
        return Ending("failed", code, reason=f"the folder {work} does not exist")
    why = error.strerror if isinstance(error, OSError) else str(error)
    hint = "check the name of the program and the environment"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        hint = "pass long values in a file"
    return Ending("failed", code, reason=f"cannot start {argv[0]!r}: {why}", hint=hint)


def _kills() -> int:
    """Return how often the kernel ended a process of our share of the machine for want of memory."""
    path = _memory_events(os.getpid())
    if path:
        with contextlib.suppress(OSError, ValueError, StopIteration), open(path, "rb") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))
    return 0


@lru_cache(maxsize=1)
def _memory_events(_pid: int) -> str:
    """Return the file that counts them; empty where there is none."""
    with contextlib.suppress(OSError, LookupError), open("/proc/self/cgroup", "rb") as file:
        group = os.fsdecode(file.read().partition(b"0::")[2].splitlines()[0].strip(b"/"))
        path = os.path.join("/sys/fs/cgroup", group, "memory.events")
        return path if os.path.exists(path) else ""
    return ""


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
        return None
