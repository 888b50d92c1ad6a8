"""Executes one run and writes its record; the same in this process, in a batch job, and on a machine without Fairmile.

It needs nothing but the standard library, `base` and `meter`, so that it can travel as one file of pure Python.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from fairmile.base.errors import Conflict, DiskFailure, FairmileError
from fairmile.base.files import Holder, write_atomic, write_failure
from fairmile.base.patterns import compile_linear
from fairmile.meter.energy import energies, total
from fairmile.meter.lines import FILE, FILE_VARIABLE, HOST_VARIABLE, Log, event_files, read_log
from fairmile.meter.meter import Meter
from fairmile.meter.sources import find_sources
from fairmile.meter.summaries import metric_documents, span_documents
from fairmile.meter.watch import Watch
from fairmile.runs.execute import capture
from fairmile.runs.execute.ending import find_cause, find_outputs, find_undeclared, stamp_outputs
from fairmile.runs.execute.printed import MOST_VALUES, find_metrics
from fairmile.runs.execute.processes import RUN_VARIABLE, find_processes
from fairmile.runs.execute.watching import FileWatch
from fairmile.runs.execute.written import SOURCE as EVENT_FILES
from fairmile.runs.execute.written import take_event_files
from fairmile.runs.record.crate import card_text
from fairmile.runs.record.layout import CARD, OUTPUT, PACK, RECORD, read_record, work_folder, write_record
from fairmile.runs.record.record import (
    Attempt,
    DeclaredMetric,
    EnergyUse,
    Metric,
    RecordedSpec,
    RunRecord,
    RunResult,
    RunState,
)
from fairmile.runs.record.values import better_of

_METRICS = "metrics.jsonl"
_READ_OUTPUT = "metrics read from output"
_ROOM, _ROOM_BYTES = ".room", 64 << 10
# A run that is over sooner tells no counter anything: looking for them would cost more than the run.
_WATCH_AFTER_S = 0.25
_TICK_S, _QUIET_TICK_S = 0.05, 0.5
_GRACE_S = 10.0
_LONGEST_LINE = 64 << 10
_SEARCH_S = 1.0  # for one line, where no engine is at hand that takes linear time
_OVERLAP = 1 << 10  # of two pieces of a longer one: no match is cut
_MOST_UNTOUCHED = 100
_SMALL_BYTES, _MOST_SMALL_BYTES = 5_000_000, 50_000_000  # outputs that come back from elsewhere
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# The kernel takes no variable above 128 KiB; who has longer parameters finds them in the record.
_LONGEST_VARIABLE = 100_000

_NOTHING: Mapping[str, str] = MappingProxyType({})


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


def begin(folder: Path, record: RunRecord, env: Mapping[str, str]) -> None:
    """Note where and on what a run starts, before it does."""
    spec, captured = record.spec, record.captured
    work = work_folder(folder, spec)
    places = [folder.parent] if work.is_relative_to(folder) else [work, folder.parent]
    captured.hardware = capture.hardware(places)
    captured.software = capture.software(env)
    captured.scheduler = capture.scheduler(env)
    captured.variables = capture.variables({**env, **spec.env})
    if not record.attempts:
        record.before = stamp_outputs(work, spec.outputs)
    me = Holder.me()
    record.attempts.append(Attempt(started=time.time(), host=me.host, pid=me.pid, holder=me.text()))
    record.state, record.result = RunState.RUNNING, None
    write_record(folder, record)
    _keep_room(folder)


def finish(
    folder: Path,
    record: RunRecord,
    ending: Ending,
    elapsed_s: float,
    missing: Mapping[str, str],
    *,
    printed_from: int = 0,
    watch: FileWatch | None = None,
) -> None:
    """Note how a run ended, with all that its log and its outputs tell, and write its card.

    The output of this attempt begins at `printed_from`.
    """
    spec = record.spec
    started = record.attempts[-1].started
    cause, advice = find_cause(folder, work_folder(folder, spec), ending.state, out_of_memory=ending.out_of_memory)
    (folder / _ROOM).unlink(missing_ok=True)
    vanished = not (folder / RECORD).exists()
    first = record.attempts[0].started
    if watch is not None:
        watch.finish(elapsed_s)
    is_first = len(record.attempts) == 1  # what earlier attempts wrote counts, too
    written = watch.written if watch is not None and is_first else None
    in_event_files, doubts = take_event_files(folder, work_folder(folder, spec), since_s=first, written=written)
    log = _read_log(folder, spec, printed_from)
    reason = "; ".join(filter(None, [ending.reason, cause])) if ending.state == "failed" else ending.reason
    if vanished:
        reason = "; ".join(filter(None, [reason, "its folder was removed while it ran"]))
    outputs, untouched, trouble = find_outputs(work_folder(folder, spec), spec.outputs, record.before)
    notes = [trouble, *_losses(log), *doubts]
    if cause and ending.state != "failed":
        notes.append(f"{cause}: what it wrote or printed may be incomplete")
    record.state = RunState(ending.state)
    record.result = RunResult(
        state=record.state,
        exit_code=ending.exit_code,
        signal=ending.signal,
        reason=reason,
        hint=(advice if ending.state == "failed" else "") or ending.hint,
        started=started,
        ended=started + elapsed_s,  # the clock on the wall may have been set meanwhile
        elapsed_s=elapsed_s,
        usage=dict(ending.usage),
        metrics=_measured_metrics(log, spec, in_event_files),
        spans=span_documents(log),
        energy=_energy(log, missing),
        outputs=outputs,
        damaged_lines=log.damaged,
        untouched=untouched[:_MOST_UNTOUCHED],
        notes=[note for note in notes if note],
    )
    if ending.state == "done":  # it will not go on
        record.before = {}
    coverage = record.captured.coverage
    if coverage is not None and coverage.is_complete and ending.state == "done":
        coverage.left = find_undeclared(folder, record, watch.before if watch is not None else {})
    try:
        write_record(folder, record)
    except DiskFailure:  # rather an end without its lists than none
        record.result.spans, record.result.outputs = {}, {}
        record.result.notes = ["the disk was full: spans and outputs are left out"]
        write_record(folder, record)
    # The card can be made again from the record, so it need not survive a power cut, nor find room.
    with contextlib.suppress(DiskFailure):
        write_atomic(folder / CARD, card_text(record, folder), sync=False)


def _read_log(folder: Path, spec: RecordedSpec, printed_from: int) -> Log:
    """Return the log of a run; where its program logged no metric, with those that its output states."""
    log = read_log(event_files(folder))
    if log.metrics and not any(event.name == _READ_OUTPUT for event in log.events):
        return log
    try:
        with open(folder / OUTPUT, "rb") as output:
            output.seek(printed_from)
            lines = (line.decode(errors="replace") for line in iter(lambda: output.readline(_LONGEST_LINE), b""))
            metrics = list(islice(find_metrics(lines, params=spec.params), MOST_VALUES))
    except OSError:  # it printed nothing
        return log
    if not metrics:
        return log
    meter = Meter(folder / FILE)
    try:
        for metric in metrics:
            meter.log(step=metric.step, **{metric.name: metric.value})
        meter.event(_READ_OUTPUT, values=len(metrics))
    finally:
        meter.close()
    return read_log(event_files(folder))


def _kills() -> int:
    """Return how often the kernel ended a process of our share of the machine for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0].strip("/")
        events = Path("/sys/fs/cgroup", group, "memory.events").read_text()
        return int(dict(line.split() for line in events.splitlines())["oom_kill"])
    return 0


def _losses(log: Log) -> Iterator[str]:
    """Yield what of the log is not there, in words."""
    failed = sum(event.name == "meter.write_failed" for event in log.events)
    if failed or log.damaged:
        lines = f", {log.damaged} damaged" if log.damaged else ""
        yield f"a part of its log could not be written, as on a full disk{lines}: values may be missing"
    unreadable = sum(event.name == "unreadable metric" for event in log.events)
    if unreadable:
        what = "1 line or value is" if unreadable == 1 else f"{unreadable} lines or values are"
        yield f"{what} no metric, though stated as one; `events.jsonl` tells which"


def _keep_room(folder: Path) -> None:
    """Keep room for the end of the record, which must be written also when the program filled the disk."""
    with contextlib.suppress(OSError):
        # The new record lies beside the old one for a moment.
        room_bytes = _ROOM_BYTES + 2 * (folder / RECORD).stat().st_size
        descriptor = os.open(folder / _ROOM, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, room_bytes)
        finally:
            os.close(descriptor)


def execute(
    folder: Path,
    record: RunRecord,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    given: Mapping[str, str] = _NOTHING,
    echo: BinaryIO | None = None,
    look: Callable[[], str] | None = None,
    then: Callable[[RunRecord], None] | None = None,
) -> RunRecord:
    """Run a program to its end and return its record, which is in the folder by then; what it prints goes to `echo`.

    A program of somebody else sees of the variables `env` only what is passed on, and all that a person has `given` it.
    `look` is called again and again while it runs: as soon as that returns a reason, the program is stopped, politely
    first. `then` may add to the record what the end shows, before it is written.
    """
    work = work_folder(folder, record.spec)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(str(work), error) from error
    if record.foreign:  # a stranger's program is not given what this person exported
        env = {**capture.passed_on(env), **given}
    begin(folder, record, env)
    watch = FileWatch.of(folder, record)
    program = _Program(folder, record, argv, env, work, echo, look, watch)
    ending, elapsed_s = program.run()
    if then is not None:
        record.state = RunState(ending.state)
        then(record)
    finish(folder, record, ending, elapsed_s, program.missing, printed_from=program.printed_from, watch=watch)
    return record


class _Program:
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
        self.missing = {"watch": "it ended before a counter could tell anything"}
        self.printed_from = 0
        self._meter = Meter(folder / FILE)
        patterns = {name: each.pattern for name, each in self.spec.metrics.items() if each.pattern}
        self._reader = _OutputReader(self._meter, patterns, echo)
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
        output, metrics = os.open(self.folder / OUTPUT, flags, 0o666), os.open(self.folder / _METRICS, flags, 0o666)
        begins = time.monotonic()
        try:
            with open(self.folder / OUTPUT, "rb") as printed, open(self.folder / _METRICS, "rb") as stated:
                self.printed_from = printed.seek(0, os.SEEK_END)
                self._reader.attach(printed, stated)
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
            for name, descriptor in ((OUTPUT, output), (_METRICS, metrics)):
                is_empty = name == _METRICS or os.fstat(descriptor).st_size == 0
                os.close(descriptor)
                if is_empty:  # what stood in it is in the log now
                    (self.folder / name).unlink(missing_ok=True)
        return ending, elapsed_s

    def _start(self, output: int, metrics: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
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
        return Ending("cancelled", code, self._forwarded, f"it was ended by {self._forwarded}; {ending.reason}")

    def _follow(self, process: subprocess.Popen[bytes], begins: float) -> Ending:
        """Wait for the end; an interruption ends the program first."""
        timeout_s = self.spec.timeout_s
        limit = begins + timeout_s if timeout_s else None
        watch_s = self.spec.watch_s
        watch_at = begins + _WATCH_AFTER_S if watch_s else None
        with _Child(process) as child:
            try:
                self._group = process.pid
                if self._files is not None:
                    self._files.pid = process.pid
                for number in self._early:
                    self._pass(number)
                self._meter.event("started", pid=process.pid)
                while not child.wait(self._pause(limit, watch_at)):
                    self._reader.look()
                    child.look()
                    now = time.monotonic()
                    if watch_at is not None and now >= watch_at:
                        watch_at = None
                        self._measure(process.pid, watch_s)
                    if limit is not None and now >= limit:
                        return self._stopped(child, f"it took longer than {timeout_s:g} s", state="timeout")
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
        found = find_sources(pid=pid)
        self.missing = found.missing
        self._watch = Watch(found.sources, self._meter, period_s=period_s, keep=False)
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
            return Ending("interrupted", reason="how it ended is not known")
        name = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else ""
        # Also with exit code 0: who saves his state and goes has not come to the end.
        if not state and self._forwarded:
            state, reason = "cancelled", f"it was ended by {self._forwarded}"
        if not state:
            state = "done" if code == 0 else "failed"
        hint = ""
        if state == "failed" and not reason:
            reason = f"killed by {name}" if name else f"exit code {code}"
            hint = "was it out of memory?" if name == "SIGKILL" else ""
        exit_code, signal_name = code if code >= 0 else 128 - code, name.removeprefix("SIG")
        killed = name == "SIGKILL" and _kills() > self._kills
        return Ending(state, exit_code, signal_name, reason, hint, child.usage, killed)


class _Child:
    """Waits for a process with a time limit, and learns what it used."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
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
        """Return whether it has ended, at the latest after `timeout_s`."""
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(None if timeout_s is None else int(timeout_s * 1000) + 1):
                return False
            return self._collect(0)
        until = time.monotonic() + (timeout_s or 0)
        while not self._collect(os.WNOHANG):
            if timeout_s is not None and time.monotonic() >= until:
                return False
            time.sleep(0.01)
        return True

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
            found = re.search(rb"^VmHWM:\s+(\d+) kB", file.read(), re.MULTILINE)
            self._seen_bytes = int(found[1]) * 1024 if found else self._seen_bytes

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


class _MetricPattern:
    """Finds a metric in a line: the group named `value`, or the first one, and the group `step` where there is one."""

    def __init__(self, text: str) -> None:
        self._limits = False
        try:
            self._pattern = compile_linear(text.encode())
        except ImportError:  # a recorder that travelled finds a bare Python, whose own engine may take for ever
            self._pattern, self._limits = re.compile(text.encode()), True
        names = {os.fsdecode(name): group for name, group in self._pattern.groupindex.items()}
        self._value, self._step = names.get("value", 1), names.get("step")

    def find(self, line: bytes) -> list[tuple[int, bytes, bytes | None]]:
        """Return the end of each match, its value and its step; TimeoutError where that takes too long."""
        with _time_limit(_SEARCH_S) if self._limits else contextlib.nullcontext():
            return [
                (found.end(), found[self._value] or found[1], found[self._step] if self._step else None)
                for found in self._pattern.finditer(line)
            ]


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError within the block after a while; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _OutputReader:
    """Reads what a program prints and states: echoes it, and finds metrics in it."""

    def __init__(self, meter: Meter, patterns: Mapping[str, str], echo: BinaryIO | None) -> None:
        self._meter = meter
        self._patterns = {name: _MetricPattern(pattern) for name, pattern in patterns.items()}
        self._echo = echo
        self._printed: BinaryIO | None = None
        self._stated: BinaryIO | None = None
        self._line, self._seen = b"", 0  # the last line that was printed, and how much of it was looked at before
        self._rest = b""

    def attach(self, printed: BinaryIO, stated: BinaryIO) -> None:
        """Read from these files from now on."""
        self._printed, self._stated = printed, stated

    def look(self) -> None:
        """Take what has come since the last time."""
        if self._printed is not None and (self._patterns or self._echo is not None):
            while data := self._printed.read(1 << 20):
                self._write(data)
                if self._patterns:
                    self._find(data)
        if self._stated is not None:
            while data := self._stated.read(1 << 20):
                *lines, rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._state(line[:_LONGEST_LINE])
                self._rest = rest[:_LONGEST_LINE]

    def drain(self) -> None:
        """Take the rest, also a last line without an end."""
        self.look()
        self._match(self._line, self._seen)
        self._line, self._seen = b"", 0
        if self._rest:
            self._state(self._rest)
            self._rest = b""

    def _write(self, data: bytes) -> None:
        if self._echo is None:
            return
        try:
            self._echo.write(data)
            self._echo.flush()
        except (OSError, ValueError):  # whoever listened is gone; the log has it all
            self._echo = None

    def _find(self, data: bytes) -> None:
        """Find metrics in what was printed, anywhere in a line of any length: one that is too long goes by pieces."""
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._pieces(line, is_whole=True)
            self._seen = 0
        self._line = self._pieces(self._line, is_whole=False)

    def _pieces(self, line: bytes, *, is_whole: bool) -> bytes:
        """Look at a line, and return what is left of one that goes on."""
        start = 0
        while len(line) - start > _LONGEST_LINE:
            piece = line[start : start + _LONGEST_LINE]
            self._match(piece, self._seen, goes_on=True)
            start += _LONGEST_LINE - _OVERLAP
            self._seen = _OVERLAP
        if is_whole:
            self._match(line[start:], self._seen)
        return line[start:]

    def _match(self, line: bytes, seen: int, *, goes_on: bool = False) -> None:
        for name, pattern in list(self._patterns.items()):
            try:
                for end, value, step in pattern.find(line):
                    if end <= seen or (goes_on and end == len(line)):
                        continue  # the piece before had it, or the next one has it whole
                    with contextlib.suppress(ValueError, TypeError):
                        self._meter.log(step=float(step) if step else None, **{name: float(value)})
            except TimeoutError:
                del self._patterns[name]
                self._meter.event("metric pattern dropped", metric=name, reason="it takes too long to search a line")

    def _state(self, line: bytes) -> None:
        """Take a line such as {"loss": 0.5, "step": 3}."""
        if not line.strip():
            return
        try:
            stated = json.loads(line)
            step = stated.pop("step", None)
            step = None if step is None else float(step)
        except (ValueError, TypeError, AttributeError):
            self._meter.event("unreadable metric", line=line[:200].decode(errors="replace"))
            return
        for name, value in stated.items():
            try:
                self._meter.log(step=step, **{name: float(value)})
            except (ValueError, TypeError):
                self._meter.event("unreadable metric", name=name, value=str(value)[:200])


def check_no_orphan(folder: Path, id: str) -> None:
    """Raise Conflict while the program of a run still lives although its recorder does not."""
    if pids := find_processes(folder):
        raise Conflict(
            f"the program of run {id} outlives its recorder, as process {', '.join(map(str, pids[:5]))}",
            hint=f"wait for its end, or end it with `fairmile runs cancel {id}`",
        )


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
        return Ending("failed", code, reason=f"its folder {work} is not there")
    why = error.strerror if isinstance(error, OSError) else str(error)
    hint = "check the name of the program and the environment"
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        hint = "give long values in a file"
    return Ending("failed", code, reason=f"{argv[0]!r} could not be started: {why}", hint=hint)


def _energy(log: Log, missing: Mapping[str, str]) -> EnergyUse:
    """Return what was measured of energy, each part with its source, scope and error."""
    energy = total(each for samples in log.samples for each in energies(samples))
    return EnergyUse(
        total_j=energy.joules,
        parts=[asdict(each) for each in energy.parts],
        left_out=dict(energy.left_out),
        missing=dict(missing),
    )


def _measured_metrics(log: Log, spec: RecordedSpec, in_event_files: Collection[str]) -> dict[str, Metric]:
    """Return the metrics of a log with what was declared of them."""
    metrics = {name: Metric.from_dict(each) for name, each in metric_documents(log).items()}
    source = "output" if any(event.name == _READ_OUTPUT for event in log.events) else ""
    for name, metric in metrics.items():
        metric.source = EVENT_FILES if name in in_event_files else source
        declared = spec.metrics.get(name, DeclaredMetric())
        metric.unit, metric.tolerance = declared.unit, declared.tolerance
        metric.better = declared.better or better_of(name)
    return metrics


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
        return None


def start(arguments: Sequence[str]) -> int:
    """`recorder FOLDER [--pack] -- COMMAND…`: execute the run whose run.json lies in a folder; return its exit code.

    With --pack the files of its record, and its small outputs, are left in one, to be brought back.
    """
    given, command = arguments[: (cut := list(arguments).index("--"))], list(arguments[cut + 1 :])
    folder = Path(given[0]).absolute()
    try:
        record = execute(folder, read_record(folder), argv=command, env=os.environ, echo=sys.stdout.buffer)
    except (FairmileError, OSError) as problem:
        sys.stderr.write(f"fairmile: {problem}\n")
        return getattr(problem, "exit_code", 3)
    if "--pack" in given[1:]:
        _pack(folder, record)
    result = record.result
    assert result is not None
    if result.reason:
        sys.stderr.write(f"fairmile: run {record.id}: {result.reason}\n")
    return result.exit_code if result.exit_code is not None else 1


def _pack(folder: Path, record: RunRecord) -> None:
    work = work_folder(folder, record.spec)
    outputs = record.result.outputs if record.result is not None else {}
    sizes = {work / name: each.size_bytes for name, each in outputs.items()}
    small = [file for file, size in sizes.items() if size <= _SMALL_BYTES and file.is_relative_to(folder)]
    if sum(sizes[file] for file in small) > _MOST_SMALL_BYTES:
        small = []
    temporary = folder / f".{PACK}"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [folder / RECORD, folder / CARD, folder / OUTPUT, *event_files(folder), *small]:
            if file.is_file():
                archive.write(file, str(file.relative_to(folder)))
    temporary.replace(folder / PACK)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
