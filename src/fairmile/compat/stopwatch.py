"""`cloudmesh.common.StopWatch` as published: StopWatch, StopWatchBlock, benchmark and progress, over a meter.

Timers use the monotonic clock, threads may share a name, every call is kept, and each is in the log of the run that
the process is part of.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TextIO, TypeVar

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.compat.submission_log import SubmissionLog
from fairmile.compat.system_table import system_attributes
from fairmile.meter import current

P = ParamSpec("P")
T = TypeVar("T")

# Attribute and heading of each column, in cloudmesh's order.
_COLUMNS = {
    "timer": "Name",
    "status": "Status",
    "time": "Time",
    "sum": "Sum",
    "start": "Start",
    "tag": "tag",
    "msg": "msg",
    "uname.node": "Node",
    "user": "User",
    "uname.system": "OS",
    "platform.version": "Version",
}
_SHORT = ("timer", "status", "time")
_PLATFORM = ("uname.node", "user", "uname.system", "uname.machine", "platform.version", "sys.platform")
_PREFIX = "# csv"
_HIDDEN = "benchmark_start_stop"


class _Timer:
    """What one name has measured."""

    def __init__(self) -> None:
        self.local = threading.local()  # each thread has a start of its own
        self.running = 0
        self.began_s: float | None = None  # on the wall
        self.ended_s: float | None = None
        self.last_s: float | None = None
        self.sum_s = 0.0
        self.status: Any = None
        self.message: str | None = None
        self.values: Any = None


class StopWatch(SubmissionLog):
    """Named timers of the whole process."""

    debug: ClassVar[bool] = False
    verbose: ClassVar[bool] = True
    _timers: ClassVar[dict[str, _Timer]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def keys(cls) -> list[str]:
        """Return the names of the timers."""
        return list(cls._timers)

    @classmethod
    def start(
        cls,
        name: str,
        values: Any = None,
        value: Any = None,
        mllog_key: str | None = None,
        suppress_stopwatch: bool = False,
        suppress_mllog: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a timer in this thread; one that runs already starts anew."""
        if not suppress_mllog:
            cls._log("start", mllog_key or name, value if values is None else values, metadata)
        if suppress_stopwatch:
            return
        with cls._lock:
            timer = cls._timers.setdefault(name, _Timer())
            if getattr(timer.local, "span", None) is None:
                timer.running += 1
            timer.began_s, timer.ended_s = time.time(), None
            timer.status = timer.message = None
            _keep_values(timer, values, value)
        cls._say(name, "started ...")
        span = current().span(name)
        timer.local.span = span
        timer.local.start_ns = time.monotonic_ns()
        span.__enter__()

    @classmethod
    def stop(
        cls,
        name: str,
        state: Any = True,
        values: Any = None,
        value: Any = None,
        mllog_key: str | None = None,
        suppress_stopwatch: bool = False,
        suppress_mllog: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Stop a timer that this thread started."""
        now_ns = time.monotonic_ns()
        if not suppress_mllog:
            cls._log("end", mllog_key or name, value if values is None else values, metadata)
        if suppress_stopwatch:
            return
        timer = cls._timers.get(name)
        span = getattr(timer.local, "span", None) if timer is not None else None
        if timer is None or span is None:
            raise UsageError(
                f"timer {name!r} was stopped but not started", hint=f"call StopWatch.start({name!r}) first"
            )
        span.__exit__(None, None, None)
        timer.local.span = None
        with cls._lock:
            timer.running -= 1
            timer.last_s = (now_ns - timer.local.start_ns) / 1e9
            timer.sum_s += timer.last_s
            timer.ended_s = (timer.began_s or 0.0) + timer.last_s
            timer.status = state
            _keep_values(timer, values, value)
        cls._say(name, "stopped ...")

    @classmethod
    def event(
        cls,
        name: str,
        msg: Any = None,
        values: Any = None,
        value: Any = None,
        mllog_key: str | None = None,
        suppress_stopwatch: bool = False,
        suppress_mllog: bool = False,
        metadata: Mapping[str, Any] | None = None,
        stack_offset: int = 2,
    ) -> None:
        """Add a moment: a timer that took no time."""
        if not suppress_mllog:
            cls._log("event", mllog_key or name, value if values is None else values, metadata)
        if suppress_stopwatch:
            return
        attributes = {} if msg is None else {"msg": str(msg)}
        with cls._lock:
            timer = cls._timers.setdefault(name, _Timer())
            timer.began_s = timer.ended_s = time.time()
            timer.last_s, timer.status = 0.0, True
            timer.message = None if msg is None else str(msg)
            _keep_values(timer, values, value)
        if timer.values is not None:
            attributes["values"] = timer.values
        current().event(name, **attributes)
        cls._say(name, "event ...")

    @classmethod
    def status(cls, name: str, value: Any) -> None:
        """Say how what was timed went."""
        cls._known(name).status = value
        cls._say(name, f"status {value}")

    @classmethod
    def get_status(cls, name: str) -> Any:
        """Return how what was timed went."""
        return cls._known(name).status

    @classmethod
    def message(cls, name: str, value: Any) -> None:
        """Attach a message to a timer."""
        cls._known(name).message = str(value)

    @classmethod
    def get_message(cls, name: str) -> str | None:
        """Return the message of a timer."""
        return cls._known(name).message

    @classmethod
    def get(cls, name: str, digits: int | None = 4) -> float | str | None:
        """Return the seconds of the last call; None while the first one runs, "undefined" for a name never used."""
        timer = cls._timers.get(name)
        return "undefined" if timer is None else _rounded(timer.last_s, digits)

    @classmethod
    def sum(cls, name: str, digits: int | None = 4) -> float | str | None:
        """Return the seconds of all calls together; "undefined" for a name never used."""
        timer = cls._timers.get(name)
        return "undefined" if timer is None else _rounded(timer.sum_s, digits)

    @classmethod
    def clear(cls) -> None:
        """Forget all timers."""
        with cls._lock:
            cls._timers.clear()

    @classmethod
    def print(cls, *args: str) -> None:
        """Print a label and the time of a timer."""
        if len(args) != 2:
            raise UsageError("StopWatch.print takes a label and the name of a timer")
        if cls.verbose:
            _print(f"{args[0]} {_seconds(cls.get(args[1]))} s")

    @classmethod
    def output(cls, name: str) -> None:
        """Print a timer's name and time."""
        _print(f"{name} {_seconds(cls.get(name))} s")

    @classmethod
    def systeminfo(cls, data: Mapping[str, Any] | None = None) -> str:
        """Return a table of what this machine is."""
        return _attribute_table({**system_attributes(), **(data or {})})

    @classmethod
    def get_sysinfo(cls, node: str | None = None, user: str | None = None) -> dict[str, Any]:
        """Return what this machine is."""
        return system_attributes(node=node, user=user)

    @classmethod
    def get_benchmark(
        cls,
        sysinfo: bool = True,
        tag: str | None = None,
        node: str | None = None,
        user: str | None = None,
        total: bool = False,
    ) -> dict[str, Any]:
        """Return this machine and all timers as data; with `sysinfo` print the machine, too."""
        machine = system_attributes(node=node, user=user)
        if sysinfo:
            _print(_attribute_table(machine))
        rows = cls._rows(tag)
        if not rows:
            _print("ERROR: No timers found")
            return {"sysinfo": machine}
        if total:
            _print(f"Total: {cls._total()}")
        return {"sysinfo": machine, "benchmark": rows}

    @classmethod
    def benchmark(
        cls,
        sysinfo: bool = True,
        timers: bool = True,
        csv: bool = True,
        prefix: str | None = _PREFIX,
        tag: str | None = None,
        sum: bool = True,
        node: str | None = None,
        user: str | None = None,
        version: str | None = None,
        attributes: str | Sequence[str] | None = None,
        total: bool = False,
        filename: str | None = None,
    ) -> None:
        """Print this machine, a table of all timers and the same as `# csv,` lines; write them to `filename`, too."""
        machine = system_attributes(node=node, user=user)
        content = "\n"
        if sysinfo:
            content += _attribute_table(machine) + "\n"
        if timers:
            about = {name: machine[name] for name in _PLATFORM}
            if version is not None:
                about["platform.version"] = version
            rows = [{**row, **about} for row in cls._rows(tag).values()]
            content += (
                cls._report(rows, attributes, total, prefix if csv else "") if rows else "ERROR: No timers found\n"
            )
        _print(content)
        if filename:
            write_atomic(os.path.expanduser(filename), content)

    @classmethod
    def progress(cls, percent: float | str = 0, status: str = "running", pid: Any = None, **kwargs: Any) -> str:
        """Print one line that tells how far the program is."""
        return progress(progress=percent, status=status, pid=pid, **kwargs)

    @staticmethod
    def load(
        filename: str,
        label: Sequence[str] = ("name",),
        label_split_char: str = " ",
        attributes: Sequence[str] = tuple(_COLUMNS),
    ) -> dict[str, Any]:
        """Return the `# csv` lines of a file: `headers`, and a list of values for each timer as `data`.

        Behind the attributes come the parts of the timer's name. Commas inside a message are read as such, also
        where they were written without quotes.
        """
        heads: list[str] = []
        data = []
        for line in Path(os.path.expanduser(filename)).read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.startswith(f"{_PREFIX},"):
                continue
            values = next(csv.reader([line]))[1:]
            if "timer" in values and set(values) <= {*_COLUMNS, *_PLATFORM, *attributes}:
                heads = values
                missing = [name for name in attributes if name not in heads]
                if missing:
                    raise UsageError(f"{filename} has no column {missing[0]!r}", hint="it has " + ", ".join(heads))
            elif heads:
                row = dict(zip(heads, _fitted(values, heads), strict=True))
                data.append([row[name] for name in attributes] + row["timer"].split(label_split_char))
        if not heads:
            raise UsageError(f"{filename} has no {_PREFIX!r} line with column names")
        return {"headers": [*attributes, *label], "data": data}

    def __str__(self) -> str:
        lines = []
        for name, timer in self._timers.items():
            lines.append(f"{name} {timer.began_s} {timer.ended_s} {_rounded(timer.last_s, 4)} {timer.status} \n")
        return "".join(lines)

    @classmethod
    def _known(cls, name: str) -> _Timer:
        return cls._timers.setdefault(name, _Timer())

    @classmethod
    def _say(cls, name: str, what: str) -> None:
        if cls.debug:
            _print(f"Timer {name} {what}")

    @classmethod
    def _total(cls) -> float:
        times_s = [timer.last_s or 0.0 for name, timer in cls._timers.items() if name != _HIDDEN]
        return round(sum(times_s, 0.0), 4)

    @classmethod
    def _rows(cls, tag: str | None) -> dict[str, dict[str, Any]]:
        rows = {}
        for name, timer in list(cls._timers.items()):
            if name != _HIDDEN:
                rows[name] = {
                    "start": _wall(timer.began_s),
                    "stop": _wall(timer.ended_s),
                    "time": _rounded(timer.last_s, 3),
                    "sum": _rounded(timer.sum_s, 3),
                    "status": _status(timer),
                    "msg": timer.message,
                    "timer": name,
                    "tag": tag or "",
                }
        return rows

    @classmethod
    def _report(
        cls, rows: list[dict[str, Any]], attributes: str | Sequence[str] | None, total: bool, prefix: str | None
    ) -> str:
        if attributes is None or attributes == "short":
            order = list(_COLUMNS if attributes is None else _SHORT)
            heads = [_COLUMNS[name] for name in order]
        else:
            order = heads = list(attributes)
        content = "\n" + _table(heads, [[row.get(name) for name in order] for row in rows]) + "\n"
        if total:
            content += f"Total: {cls._total()}\n"
        if prefix != "":
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n")
            start = [] if prefix is None else [prefix]
            writer.writerow([*start, *order])
            writer.writerows([*start, *(_one_line(row.get(name)) for name in order)] for row in rows)
            content += out.getvalue()
        return content


class StopWatchBlock:
    """Times its block and prints one `# name, seconds, start, stop` line, to a stream or into a file."""

    def __init__(self, name: str, data: Any = None, log: TextIO | str | None = None, mode: str = "w") -> None:
        self.name = name
        self.data = data
        self.log = log
        self.mode = mode
        self.start = datetime.now()
        self.stop: datetime | None = None

    def __enter__(self) -> float | str | None:
        self.start = datetime.now()
        StopWatch.start(self.name)
        return StopWatch.get(self.name)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        StopWatch.stop(self.name, state=kind is None)
        self.stop = datetime.now()
        parts = [f"# {self.name}", StopWatch.get(self.name), self.start, self.stop]
        line = ", ".join(str(part) for part in (*parts, *([self.data] if self.data else [])))
        if isinstance(self.log, str):
            with open(os.path.expanduser(self.log), self.mode, encoding="utf-8") as stream:
                stream.write(line + "\n")
        else:
            (self.log or sys.stdout).write(line + "\n")


def benchmark(func: Callable[P, T]) -> Callable[P, T]:
    """Time each call of a function under its name; the call returns what the function returns."""

    @wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        StopWatch.start(func.__name__)
        done = False
        try:
            result = func(*args, **kwargs)
            done = True
            return result
        finally:
            StopWatch.stop(func.__name__, state=done)

    return wrapper


def progress(
    filename: str | None = None,
    status: str = "ready",
    progress: float | str = 0,
    pid: Any = None,
    time: bool = False,
    stdout: bool = True,
    stderr: bool = True,
    append: str | None = None,
    with_banner: bool = False,
    **kwargs: Any,
) -> str:
    """Print one line such as `# cloudmesh status=ready progress=0 pid=12`, append it to a file, and return it.

    Without a pid the number of the batch job counts, then that of the process.
    """
    if pid is None:
        pid = os.environ.get("SLURM_JOB_ID") or os.environ.get("LSB_JOBID") or os.getpid()
    parts = [f"# cloudmesh status={status} progress={progress} pid={pid}"]
    if time:
        parts.append(f"time='{datetime.now()}'")
    parts += [f"{name}={value}" for name, value in kwargs.items()]
    if append is not None:
        parts.append(append)
    line = str(_one_line(" ".join(parts)))
    if stdout:
        _print(f"{'#' * 70}\n{line}\n{'#' * 70}" if with_banner else line)
    if stderr:
        sys.stderr.write(line + "\n")
    if filename is not None:
        with open(os.path.expanduser(filename), "a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    return line


def _keep_values(timer: _Timer, values: Any, value: Any) -> None:
    given = values if values is not None else value  # 0 is a value
    if given is not None:
        timer.values = given


def _rounded(value: float | None, digits: int | None) -> float | None:
    return value if value is None or digits is None else round(value, digits)


def _seconds(value: float | str | None) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _wall(moment_s: float | None) -> str | None:
    return None if moment_s is None else datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _status(timer: _Timer) -> Any:
    if timer.running:
        return "running"
    if timer.status is True:
        return "ok"
    return "failed" if timer.status in (None, False) else timer.status


def _fitted(values: list[str], heads: list[str]) -> list[str]:
    """Return as many values as there are heads; what is too much stood unquoted in the message."""
    extra = len(values) - len(heads)
    if extra > 0 and "msg" in heads:
        at = heads.index("msg")
        values = [*values[:at], ",".join(values[at : at + extra + 1]), *values[at + extra + 1 :]]
    return (values + [""] * len(heads))[: len(heads)]


def _one_line(value: Any) -> Any:
    return "" if value is None else " ".join(value.splitlines()) if isinstance(value, str) else value


def _attribute_table(attributes: Mapping[str, Any]) -> str:
    return _table(["Attribute", "Value"], [[name, attributes[name]] for name in sorted(attributes)])


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    texts = [[str(_one_line(value)) for value in row] for row in rows]
    widths = [max(map(len, column)) + 2 for column in zip(heads, *texts, strict=True)]
    numbers = [all(isinstance(value, (int, float)) for value in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        shown = []
        for cell, width, number in zip(cells, widths, numbers, strict=True):
            shown.append(f"{cell} ".rjust(width) if number else f" {cell}".ljust(width))
        return f"|{'|'.join(shown)}|"

    rule = "+".join("-" * width for width in widths)
    return "\n".join([f"+{rule}+", line(heads), f"|{rule}|", *map(line, texts), f"+{rule}+"])


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
