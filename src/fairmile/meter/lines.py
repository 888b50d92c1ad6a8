"""What a log of events holds, and how it is read: one JSON object a line, from any number of processes and hosts.

`events.jsonl` lies in the folder of a run; processes of one host append whole lines to it, those of another host write
`events.HOST.jsonl` beside it. Times are nanoseconds of the host's monotonic clock, which all its processes share; the
line that each process writes first tells what the clock on the wall said at that moment. Processes that name the same
start of the same host (`boot`) are placed by what the first of them said, so that a clock which is set in between
does not move them against each other.

    {"writer": {"host": "n1", "rank": 0, "boot": …, "wall_ns": …, "clock_ns": …}, "p": 4711}
    {"spans": "epoch", "at": [start, duration, start, duration, …], "thread": 1, "p": 4711, "with": {"n": 3}}
    {"spans": "epoch", "at": [start, duration, start, duration, …], "n": [3, 4, …], "p": 4711}
    {"spans": "load", "at": [start, duration, start, duration, …], "each": {"file": ["a.h5", …], …}, "p": 4711}
    {"event": "checkpoint", "at": 17, "with": {"file": "last.pt"}, "p": 4711}
    {"log": {"loss": 0.25}, "step": 3, "at": 18, "p": 4711}
    {"channels": [{"name": "gpu0.power", "unit": "W", …}], "watch": "4711-1", "p": 4711}
    {"sample": [71.5], "at": 19, "watch": "4711-1", "p": 4711}

Programs that exchange data, in whatever language (coupling.py, include/fairmile_meter.h), tell as well

    {"component": "solver", "p": 4711}
    {"about": {"grid": "64x64"}, "p": 4711}
    {"named": "halo", "thread": 1, "p": 4711}
    {"counter": "queue", "at": [20, 25], "is": [3, 4.5], "p": 4711}
    {"spans": "put field", "at": […], "exchange": {"how": "put", "key": "field", "peer": "trainer"},
     "bytes": [4096, …], "version": [17, …], "wait": [250, …], "p": 4711}

where "n", "bytes", "version", "wait" and what "each" names have an entry for each call. "wait" is the part of a call,
in nanoseconds, that was over when the data or the peer was there; -1 stands for what is not known. The writer may name
its component, too, and the tick of the machine at which its process began: two meters in one process are one writer.

Many calls are told by one text instead of a list: start, end, start, end, … as base64 of 64-bit integers, low byte
first; so are other lists, "is" as 64-bit floats. What "each" names says which it is: {"int64": text} or
{"float64": text}. Numbers that JSON cannot say are the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from operator import sub
from pathlib import Path
from typing import Any, Literal, overload

from fairmile.base.quick_dataclass import dataclass

FILE = "events.jsonl"
FILES = "events*.jsonl"
# Where the log of the run lies that a process is part of, and the host whose processes share that file.
FILE_VARIABLE = "FAIRMILE_EVENTS"
HOST_VARIABLE = "FAIRMILE_EVENTS_HOST"
UNKNOWN = -1  # bytes, version and wait of an exchange that did not say them
_NAN = float("nan")
_SPECIAL = {"NaN": _NAN, "Infinity": float("inf"), "-Infinity": float("-inf")}
_LONGEST_LINE = 64 << 20
_MOST_WAITING = 1 << 16
_MOST_NS = 1 << 62  # 146 years: two such times can be added in 64 bits
_MOST_RANK = (1 << 31) - 1

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Channel:
    """One thing that is measured: what, in which unit, by which counter, of what, and how well.

    A gauge is a value at a moment; a counter only grows, until it starts again at 0 behind `wraps_at`.
    """

    name: str  # "gpu0.power", "cpu.energy", "host.memory"
    unit: str  # "W", "J", "%", "°C", "MHz", "bytes", "s"
    kind: Kind = "gauge"
    source: str = ""  # "nvml", "rapl", "procfs", "cray pm_counters"
    scope: str = ""  # what the number covers: "device 0 (NVIDIA H200)", "socket 0", "node", "process tree"
    error: str = ""  # what is known of its error, in words, with who says so
    wraps_at: float | None = None


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that wrote to the log."""

    host: str
    pid: int
    rank: int | None
    wall_ns: int
    clock_ns: int

    def wall(self, clock_ns: int) -> int:
        """Return the nanoseconds since the epoch at a time of the monotonic clock."""
        return self.wall_ns + clock_ns - self.clock_ns


@dataclass(slots=True)
class Exchange:
    """What the calls of one timer put to or get from another component: an entry for each call, UNKNOWN at worst."""

    how: str  # "put" or "get"
    key: str
    peer: str  # the other component; "" where nobody said
    bytes: array[int] = field(default_factory=lambda: array("q"))
    versions: array[int] = field(default_factory=lambda: array("q"))
    waits_ns: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Spans:
    """All calls of one timer in one thread: when each began (since the epoch) and how long it took."""

    name: str
    writer: Writer
    thread: int
    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    durations_ns: array[int] = field(default_factory=lambda: array("q"))
    attributes: list[Mapping[str, Any] | None] = field(default_factory=list)  # one for each call
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment."""

    name: str
    at_ns: int
    writer: Writer
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Logged:
    """One value of a metric."""

    name: str
    value: float
    step: float | None
    at_ns: int
    writer: Writer


@dataclass(slots=True)
class Counted:
    """What a counter of one thread said, and when."""

    name: str
    writer: Writer
    thread: int
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class Column(Sequence[float | None]):
    """The values of one channel in eight bytes each, since a day of samples has millions; None is kept as NaN."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[float | None] = ()) -> None:
        self._values = array("d", (_NAN if value is None else value for value in values))

    @overload
    def __getitem__(self, place: int) -> float | None: ...
    @overload
    def __getitem__(self, place: slice) -> Column: ...
    def __getitem__(self, place: int | slice) -> float | Column | None:
        if isinstance(place, slice):
            part = Column()
            part._values = self._values[place]
            return part
        value = self._values[place]
        return None if value != value else value

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float | None]:
        return (None if value != value else value for value in self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Column({list(self)!r})"

    def append(self, value: float | None) -> None:
        """Add a value."""
        self._values.append(_NAN if value is None else value)

    def extend(self, values: array[float]) -> None:
        """Add values, NaN where a reading failed."""
        self._values.extend(values)


@dataclass(slots=True)
class Samples:
    """What one watch measured: a column for each channel; None where a reading failed."""

    channels: tuple[Channel, ...]
    writer: Writer
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    columns: Sequence[Sequence[float | None]] = field(default_factory=list)

    def column(self, name: str) -> Sequence[float | None]:
        """Return the values of a channel."""
        return self.columns[[channel.name for channel in self.channels].index(name)]


@dataclass(slots=True)
class Log:
    """All that the logs of a run hold; `damaged` counts lines that could not be read."""

    writers: list[Writer] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    metrics: list[Logged] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    counters: list[Counted] = field(default_factory=list)
    components: dict[Writer, str] = field(default_factory=dict)
    about: dict[Writer, dict[str, str]] = field(default_factory=dict)
    threads: dict[tuple[Writer, int], str] = field(default_factory=dict)  # names, of those that have one
    damaged: int = 0


def number_text(value: float) -> float | str:
    """Return a number as JSON can say it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def number(value: Any) -> float:
    """Return the number that a line states, an infinity where no float is as large; ValueError for anything else."""
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise ValueError(f"{value!r} is not a number")
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a number")
    if -sys.float_info.max <= value <= sys.float_info.max:
        return value
    return _SPECIAL["Infinity" if value > 0 else "-Infinity"]


def channels_line(channels: Sequence[Channel], watch: str, pid: int) -> str:
    """Return the line that says what the samples of a watch are."""
    return json.dumps({"channels": [asdict(each) for each in channels], "watch": watch, "p": pid}) + "\n"


def metric_lines(values: Iterable[tuple[str, float, float | None, float]], host: str) -> str:
    """Return values of metrics, each with its name, step and unix time, as a log that has nothing else."""
    lines: list[Mapping[str, Any]] = [{"writer": {"host": host, "rank": None, "wall_ns": 0, "clock_ns": 0}, "p": 0}]
    for name, value, step, at_s in values:
        line: dict[str, Any] = {"log": {name: number_text(value)}, "at": round(at_s * 1e9), "p": 0}
        lines.append(line if step is None else {**line, "step": step})
    return "".join(json.dumps(line) + "\n" for line in lines)


def event_files(folder: Path) -> list[Path]:
    """Return the logs that lie in the folder of a run."""
    start, end = FILES.split("*")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.startswith(start) and name.endswith(end)]


def read_log(files: Iterable[Path]) -> Log:
    """Read logs; what a crash left half-written is counted, not raised."""
    log = Log()
    for file in files:
        reading = _Reading(log)
        _take_lines(reading, _lines(file), log)
        reading.end()
    return log


class GrowingLog:
    """The logs in a folder while programs still write them: `update` takes in the lines that are new."""

    def __init__(self, folder: Path) -> None:
        self.log = Log()
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._readings: dict[Path, _Reading] = {}

    def update(self) -> Log:
        """Read what was added, and return everything so far; half a line waits until it is whole."""
        for file in event_files(self._folder):
            reading = self._readings.setdefault(file, _Reading(self.log))
            with open(file, "rb") as stream:
                stream.seek(self._places.get(file, 0))
                data = stream.read(_LONGEST_LINE)
            end = data.rfind(b"\n") + 1
            self._places[file] = self._places.get(file, 0) + end
            _take_lines(reading, data[:end].splitlines(), self.log)
            reading.end()
        return self.log


def _take_lines(reading: _Reading, lines: Iterable[bytes], log: Log) -> None:
    for line in lines:
        try:
            reading.take(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            log.damaged += 1


def _whole(value: Any) -> int:
    """Return a whole number that a line states; ValueError for anything else."""
    if type(value) is not int or not -_MOST_NS <= value <= _MOST_NS:
        raise ValueError(f"{value!r} is neither a time nor a process number")
    return value


def _facts(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ValueError("attributes without names")
    return value


def _integers(column: Any) -> array[int]:
    numbers = array("q", b64decode(column, validate=True) if isinstance(column, str) else column)
    if isinstance(column, str) and sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _reals(column: Any) -> array[float]:
    if not isinstance(column, str):
        return array("d", map(number, column))
    numbers = array("d", b64decode(column, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _for_each(line: Mapping[str, Any], name: str, count: int) -> array[int]:
    """Return a column of the calls that a line tells."""
    packed = line.get(name)
    column = array("q", [UNKNOWN]) * count if packed is None else _integers(packed)
    if len(column) != count:
        raise ValueError(f"{len(column)} entries of {name} for {count} calls")
    return column


def _attributes(each: Mapping[str, Any], count: int) -> list[Mapping[str, Any] | None]:
    """Return the attributes of the calls that a line tells in columns."""
    columns = [_column(values) if isinstance(values, dict) else values for values in each.values()]
    rows: list[Mapping[str, Any] | None] = [dict(zip(each, row, strict=True)) for row in zip(*columns, strict=True)]
    if len(rows) != count:
        raise ValueError(f"{len(rows)} entries of attributes for {count} calls")
    return rows


def _column(column: Mapping[str, str]) -> Iterable[Any]:
    ((kind, packed),) = column.items()
    if kind == "float64":
        return map(number_text, _reals(packed))
    if kind != "int64":
        raise ValueError(f"{kind!r} is not a kind of number")
    return _integers(packed)


def _calls(at: Any) -> tuple[array[int], array[int]]:
    """Return the starts and durations that a line tells."""
    numbers = _integers(at)
    starts, durations = numbers[0::2], numbers[1::2]
    if len(starts) != len(durations):
        raise ValueError("a start without a duration")
    return starts, array("q", map(sub, durations, starts)) if isinstance(at, str) else durations


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with open(file, "rb") as stream:
            while line := stream.readline(_LONGEST_LINE):
                if line.strip():
                    yield line
    except FileNotFoundError:
        return


class _Reading:
    """Reads the lines of one file into a log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._writers: dict[int, Writer] = {}
        self._began: dict[int, tuple[Any, ...]] = {}  # what tells a process from another of its number
        self._boots: dict[tuple[str, str], Writer] = {}
        self._spans: dict[tuple[Any, ...], Spans] = {}
        self._counters: dict[tuple[Writer, str, int], Counted] = {}
        self._samples: dict[str, _Rows] = {}

    def take(self, line: dict[str, Any]) -> None:
        pid = line["p"]
        if "writer" in line:
            self._take_writer(line["writer"], pid)
            return
        writer = self._writers[pid]
        if "sample" in line:  # by far the most lines of a log that has any
            self._take_sample(line, writer)
        elif "spans" in line:
            self._take_spans(line, writer)
        elif "log" in line:
            at, step = writer.wall(_whole(line["at"])), None if line.get("step") is None else number(line["step"])
            logged = [Logged(str(name), number(value), step, at, writer) for name, value in line["log"].items()]
            self._log.metrics.extend(logged)
        elif "channels" in line:
            channels = tuple(Channel(**{**each, "name": str(each["name"])}) for each in line["channels"])
            rows = self._samples[line["watch"]] = _Rows(channels, writer)
            self._log.samples.append(rows.samples)
        elif "event" in line:
            at, facts = writer.wall(_whole(line["at"])), _facts(line.get("with"))
            self._log.events.append(Event(str(line["event"]), at, writer, facts or {}))
        elif "counter" in line:
            self._take_counter(line, writer)
        elif "component" in line:
            self._log.components[writer] = str(line["component"])
        elif "about" in line:
            about = {str(name): str(value) for name, value in line["about"].items()}
            self._log.about.setdefault(writer, {}).update(about)
        elif "named" in line:
            self._log.threads[writer, int(line["thread"])] = str(line["named"])
        else:
            raise ValueError("a line of unknown kind")

    def _take_writer(self, facts: Mapping[str, Any], pid: int) -> None:
        rank = facts.get("rank")
        rank = rank if type(rank) is int and 0 <= rank <= _MOST_RANK else None
        writer = Writer(str(facts["host"]), _whole(pid), rank, _whole(facts["wall_ns"]), _whole(facts["clock_ns"]))
        if facts.get("boot"):
            first = self._boots.setdefault((facts["host"], facts["boot"]), writer)
            writer = replace(writer, wall_ns=first.wall(writer.clock_ns))
        began = (facts["host"], facts.get("rank"), facts.get("boot"), facts.get("began"))
        known = self._writers.get(pid)
        if known is not None and facts.get("boot") and facts.get("began") and self._began.get(pid) == began:
            writer = known  # a second meter of the same process, such as that of a library in C
        else:
            self._writers[pid], self._began[pid] = writer, began
            self._log.writers.append(writer)
            for key in [key for key in self._spans if key[1] == pid]:  # another process has that number now
                del self._spans[key]
        if facts.get("component"):
            self._log.components[writer] = str(facts["component"])

    def _take_spans(self, line: Mapping[str, Any], writer: Writer) -> None:
        name, thread = str(line["spans"]), int(line.get("thread", 0))
        starts, durations = _calls(line["at"])
        attributes: list[Mapping[str, Any] | None] = [_facts(line.get("with"))] * len(starts)
        if "n" in line:
            attributes = [{"n": iteration} for iteration in _for_each(line, "n", len(starts))]
        elif "each" in line:
            attributes = _attributes(line["each"], len(starts))
        exchange = self._exchange(line, len(starts)) if "exchange" in line else None
        about = (exchange.how, exchange.key, exchange.peer) if exchange is not None else None
        key = (name, writer.pid, thread, about)
        if key not in self._spans:
            empty = Exchange(*about) if about is not None else None
            self._spans[key] = Spans(name, writer, thread, exchange=empty)
            self._log.spans.append(self._spans[key])
        spans = self._spans[key]
        offset = writer.wall_ns - writer.clock_ns
        spans.starts_ns.extend(array("q", [start + offset for start in starts]))
        spans.durations_ns.extend(durations)
        spans.attributes.extend(attributes)
        if exchange is not None and spans.exchange is not None:
            spans.exchange.bytes.extend(exchange.bytes)
            spans.exchange.versions.extend(exchange.versions)
            spans.exchange.waits_ns.extend(exchange.waits_ns)

    def _exchange(self, line: Mapping[str, Any], count: int) -> Exchange:
        exchange = line["exchange"]
        if exchange["how"] not in ("put", "get"):
            raise ValueError(f"{exchange['how']!r} is not a kind of exchange")
        columns = [_for_each(line, name, count) for name in ("bytes", "version", "wait")]
        return Exchange(exchange["how"], str(exchange["key"]), str(exchange.get("peer") or ""), *columns)

    def _take_counter(self, line: Mapping[str, Any], writer: Writer) -> None:
        at, values = _integers(line["at"]), _reals(line["is"])
        if len(at) != len(values):
            raise ValueError("a value without its time")
        name, thread = str(line["counter"]), int(line.get("thread", 0))
        key = (writer, name, thread)
        if key not in self._counters:
            self._counters[key] = Counted(name, writer, thread)
            self._log.counters.append(self._counters[key])
        self._counters[key].at_ns.extend(array("q", map(writer.wall, at)))
        self._counters[key].values.extend(values)

    def _take_sample(self, line: Mapping[str, Any], writer: Writer) -> None:
        self._samples[line["watch"]].add(writer.wall(_whole(line["at"])), line["sample"])

    def end(self) -> None:
        for rows in self._samples.values():
            rows.spread()


class _Rows:
    """Samples as their lines come; many are spread over the columns at once, which takes half the time."""

    def __init__(self, channels: tuple[Channel, ...], writer: Writer) -> None:
        self._columns = [Column() for _ in channels]
        self.samples = Samples(channels, writer, columns=self._columns)
        self._waiting = array("d")

    def add(self, at_ns: int, sample: Sequence[Any]) -> None:
        if len(sample) != len(self._columns):
            raise ValueError("a sample with other channels")
        try:
            values = array("d", [_NAN if value is None else value for value in sample])
        except (TypeError, OverflowError):
            values = array("d", [_NAN if value is None else number(value) for value in sample])
        self.samples.at_ns.append(at_ns)
        self._waiting.extend(values)
        if len(self._waiting) > _MOST_WAITING:
            self.spread()

    def spread(self) -> None:
        for place, column in enumerate(self._columns):
            column.extend(self._waiting[place :: len(self._columns)])
        self._waiting = array("d")
