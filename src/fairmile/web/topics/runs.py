"""Live runs: `runs` says that the list has changed, `run:ID` brings what one run logged, printed and drew."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.units import format_duration, format_number
from fairmile.meter.lines import GrowingLog, Log, event_files
from fairmile.reports.blocks import printed
from fairmile.reports.curves import timeline
from fairmile.runs.execute.printed import MOST_VALUES, MetricFinder
from fairmile.runs.record.layout import OUTPUT, RECORD
from fairmile.runs.record.query import RunQuery
from fairmile.runs.record.run import Run
from fairmile.status import share_done
from fairmile.workspace import Workspace

_UNFINISHED = ("queued", "running")
_MOST_FOLLOWED = 200  # runs in the list whose records are looked at each second
_MOST_POINTS = 500  # of a metric in one event
_MOST_METRICS = 40
_MOST_OUTPUT = 32_000  # bytes in one event
_MOST_SEARCHED = 4 << 20  # bytes of output at once
_MOST_LOGS = 8


class RunsTopic:
    """Whether runs began, ended or were removed; what changed is in the page, which asks for its part again."""

    def stamp(self, workspace: Workspace, key: str) -> object:
        root = workspace.runs.root
        return _changed(root), _records(workspace, stale_s=float("inf"))

    def changes(self, workspace: Workspace, key: str, cursor: Any) -> tuple[Any, Any]:
        newest = workspace.runs.page(RunQuery(), limit=1)
        states = dict(newest.states)
        # The folder of all runs changes with runs, too, that whoever follows this must not hear of.
        now = str((sorted(states.items()), [row.id for row in newest.rows], _records(workspace)))
        return ({"states": states} if cursor not in (None, now) else None), now


def _records(workspace: Workspace, stale_s: float = 0.0) -> tuple[tuple[int, int], ...]:
    """Return when the records of runs changed that have not ended."""
    unfinished = workspace.runs.page(RunQuery(states=_UNFINISHED), limit=_MOST_FOLLOWED, stale_s=stale_s)
    return tuple(_changed(workspace.runs.root / row.id / RECORD) for row in unfinished.rows)


class RunTopic:
    """One run while it runs: its state, how long it takes, new values of metrics, power, and new output."""

    def __init__(self) -> None:
        self._logs: OrderedDict[Path, GrowingLog] = OrderedDict()
        self._outputs: OrderedDict[Path, _PrintedValues] = OrderedDict()
        self._lock = threading.Lock()

    def stamp(self, workspace: Workspace, key: str) -> object:
        run = workspace.runs.get(key)
        files = [run.folder / RECORD, run.folder / OUTPUT, *event_files(run.folder)]
        state = workspace.runs.state_of(run)
        # The time goes on even where nothing is written.
        return str(state), tuple(map(_changed, files)), None if state.is_end else int(time.time())

    def changes(self, workspace: Workspace, key: str, cursor: Any) -> tuple[Any, Any]:
        run = workspace.runs.get(key)
        state = workspace.runs.state_of(run)
        seen = cursor if isinstance(cursor, dict) else {}
        facts: dict[str, Any] = {"state": str(state), "is_end": state.is_end, **_time(run)}
        with self._lock:
            log, printed_values = self._log(run.folder), self._printed_by(run)
            metrics, at = _metrics(_logged(log), _whole(seen.get("metrics")))
            if log.metrics:  # as in the record: what is printed counts where nothing is logged
                read_at = len(printed_values)
            else:
                metrics, read_at = _metrics(printed_values, _whole(seen.get("printed")))
            power, until_s = _power(log, seen.get("power"))
        output, behind = _output(run, _whole(seen.get("output")))
        facts |= {name: part for name, part in (("metrics", metrics), ("power", power), ("output", output)) if part}
        return facts, {"metrics": at, "printed": read_at, "power": until_s, "output": behind}

    def _printed_by(self, run: Run) -> Sequence[_Value]:
        following = self._outputs.pop(run.folder, None) or _PrintedValues(run)
        self._outputs[run.folder] = following
        if len(self._outputs) > _MOST_LOGS:
            self._outputs.popitem(last=False)
        return following.update()

    def _log(self, folder: Path) -> Log:
        growing = self._logs.pop(folder, None) or GrowingLog(folder)
        self._logs[folder] = growing
        if len(self._logs) > _MOST_LOGS:
            self._logs.popitem(last=False)
        return growing.update()


class _Value(NamedTuple):
    """A value of a metric."""

    name: str
    value: float
    step: float | None


class _PrintedValues:
    """The values of metrics in the output of a run, while it grows; read as the recorder reads them at the end."""

    def __init__(self, run: Run) -> None:
        self._file = run.folder / OUTPUT
        self._finder = MetricFinder(run.spec.params)
        self._at = 0
        self._values: list[_Value] = []

    def update(self) -> Sequence[_Value]:
        """Read what was added, and return everything so far; half a line waits until it is whole."""
        try:
            with open(self._file, "rb") as stream:
                stream.seek(self._at)
                data = stream.read(_MOST_SEARCHED)
        except OSError:  # it has printed nothing
            return self._values
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _MOST_SEARCHED else 0)
        self._at += end
        for line in data[:end].decode(errors="replace").splitlines():
            if len(self._values) < MOST_VALUES:
                self._values += [_Value(*each) for each in self._finder.find(line)]
        return self._values


def _logged(log: Log) -> Sequence[_Value]:
    """Return the values that a program logged: of several ranks those of the first."""
    is_ranked = any(each.writer.rank == 0 for each in log.metrics)
    return [
        _Value(each.name, each.value, each.step)
        for each in log.metrics
        if not is_ranked or each.writer.rank in (0, None)
    ]


def _changed(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _whole(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _time(run: Run) -> dict[str, Any]:
    """Return how long a run has run, as text, and how far it is where that was predicted."""
    began = run.record.attempts[-1].started if run.record.attempts else None
    elapsed_s = run.elapsed_s if run.elapsed_s is not None else time.time() - began if began else None
    if elapsed_s is None:
        return {}
    predicted = run.prediction.get("elapsed_s")
    expected_s = float(predicted["value"]) if isinstance(predicted, Mapping) and predicted.get("value") else 0.0
    share = share_done(run)
    text = format_duration(round(elapsed_s))
    text += f" of {format_duration(expected_s)} predicted" if expected_s > 0 else ""
    if share is not None:
        return {"elapsed": text, "progress": share, "done": f"{share:.0%} done"}
    return {"elapsed": text, "progress": min(elapsed_s / expected_s, 1.0)} if expected_s > 0 else {"elapsed": text}


def _metrics(values: Sequence[_Value], start: int) -> tuple[dict[str, Any], int]:
    """Return the values of metrics behind a place among all of them, and the place behind them."""
    counts: dict[str, int] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    for at, each in enumerate(values):
        step = counts[each.name] = counts.get(each.name, -1) + 1
        if at >= start and (each.name in points or len(points) < _MOST_METRICS):
            points.setdefault(each.name, []).append((float(step) if each.step is None else each.step, each.value))
    return {
        name: {"points": _thinned(values), "last": format_number(values[-1][1]), "values": counts[name] + 1}
        for name, values in points.items()
    }, len(values)


def _power(log: Log, since: Any) -> tuple[dict[str, Any], float | None]:
    """Return the power drawn since a moment, in seconds of the clock on the wall, and the moment behind it."""
    line = timeline(log) if log.samples else None
    if line is None:
        return {}, since if isinstance(since, (int, float)) else None
    moment = float(since) if isinstance(since, (int, float)) else float("-inf")
    traces: dict[str, Any] = {}
    for trace in line.traces[:4]:
        pairs = zip(trace.at_s, trace.watts, strict=True)
        points = [(at_s, watts) for at_s, watts in pairs if line.start_s + at_s > moment]
        if points:
            traces[trace.channel.name] = {"points": _thinned(points), "last": format_number(points[-1][1], "W")}
    ends = [line.start_s + trace.at_s[-1] for trace in line.traces[:4]]
    return traces, max(ends, default=None)


def _thinned(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return so many points that a page can draw them; the last is always among them."""
    every = list(points)
    step = -(-len(every) // _MOST_POINTS)
    return every[::-1][::step][::-1]


def _output(run: Run, start: int) -> tuple[str, int]:
    """Return what was printed behind a place, or the end of it where that is much, and the place behind it."""
    try:
        with open(run.folder / OUTPUT, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(min(start, size), size - _MOST_OUTPUT))
            data = stream.read(_MOST_OUTPUT)
    except OSError:
        return "", start
    whole = len(data) if run.state.is_end else data.rfind(b"\n") + 1  # a line that is not over comes when it is
    return printed(data[:whole]), size - len(data) + whole


RUNS = RunsTopic()
RUN = RunTopic()
