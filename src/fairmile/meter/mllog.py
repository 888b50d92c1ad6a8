"""MLPerf's log: `:::MLLOG {…}` lines, written so that the mlperf-logging package reads them, and read from any text."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TextIO

from fairmile.base.errors import UsageError
from fairmile.base.files import write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import Event, Log, Logged, Spans, Writer, number_text

TOKEN = ":::MLLOG "
EventType = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]

# Names of MLPerf's constants whose text is not the name in small letters, with "learning_rate" for the first LR.
_ODD_KEYS = {
    "OPT_LAMB_WEIGHT_DECAY": "opt_lamb_weight_decay_rate",
    "CONVERTION_EFF": "conversion_eff",
    "DLRM_DCNv2": "dlrm_dcnv2",
}
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_RANK = re.compile(r"^\s*\[?(?:rank\s*)?(\d+)\]?\s*:")
_STEPS = ("step_num", "epoch_num", "samples_count", "first_epoch_num")
_LONGEST_LINE = 16 << 20


def mllog_key(name: str) -> str:
    """Return the key of MLPerf's log for the name of one of its constants; any other text is a key already."""
    if name in _ODD_KEYS:
        return _ODD_KEYS[name]
    if not _CONSTANT.fullmatch(name):
        return name
    words = name.lower().split("_")
    if "lr" in words:
        words[words.index("lr")] = "learning_rate"
    return "_".join(words)


def mllog_line(
    type: EventType,
    key: str,
    value: Any = None,
    metadata: Mapping[str, Any] | None = None,
    *,
    namespace: str = "",
    time_ms: int | None = None,
) -> str:
    """Return one line without its end; the call site is null unless `metadata` names `file` and `lineno`."""
    entry: dict[str, Any] = {
        "namespace": namespace,
        "time_ms": time.time_ns() // 1_000_000 if time_ms is None else time_ms,
        "event_type": type,
        "key": mllog_key(key),
        "value": value,
        "metadata": {"file": None, "lineno": None, **(metadata or {})},
    }
    try:
        text = json.dumps(entry, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(entry, key))
    return TOKEN + text


class MLLog:
    """Writes MLPerf's log to a file, which several processes may share, or to a stream; one line, one write."""

    def __init__(
        self, to: str | os.PathLike[str] | TextIO | None = None, *, namespace: str = "", call_sites: bool = False
    ) -> None:
        """Write to `to`, or to stdout; with `call_sites` each line names the file and line that logged it."""
        self._stream: TextIO | None = None
        self._descriptor: int | None = None
        self._namespace = namespace
        self._call_sites = call_sites
        if isinstance(to, (str, os.PathLike)):
            try:
                self._descriptor = os.open(to, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise write_failure(os.fspath(to), error) from error
            self._file = os.fspath(to)
        else:
            self._stream = to

    def start(self, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None, **when: Any) -> None:
        """Log that an interval begins."""
        self._log("INTERVAL_START", key, value, metadata, when)

    def end(self, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None, **when: Any) -> None:
        """Log that an interval ends."""
        self._log("INTERVAL_END", key, value, metadata, when)

    def event(self, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None, **when: Any) -> None:
        """Log a moment, such as a hyperparameter or an accuracy."""
        self._log("POINT_IN_TIME", key, value, metadata, when)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _log(
        self, type: EventType, key: str, value: Any, metadata: Mapping[str, Any] | None, when: dict[str, Any]
    ) -> None:
        if self._call_sites and (frame := inspect.currentframe()) is not None:
            caller = frame.f_back and frame.f_back.f_back
            if caller is not None:
                metadata = {"file": caller.f_code.co_filename, "lineno": caller.f_lineno, **(metadata or {})}
        when.setdefault("namespace", self._namespace)
        line = mllog_line(type, key, value, metadata, **when) + "\n"
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, line.encode())
            except OSError as error:
                raise write_failure(self._file, error) from error
        else:
            stream = self._stream or sys.stdout
            stream.write(line)
            stream.flush()


@dataclass(frozen=True, slots=True)
class Record:
    """One line of MLPerf's log."""

    line: int  # of the text it was found in
    rank: int | None  # that a launcher put before it, as `srun --label` does
    namespace: str
    time_ms: float
    type: str
    key: str
    value: Any
    metadata: Mapping[str, Any]


@dataclass(slots=True)
class MLLogText:
    """What was found in a text; `damaged` are the numbers of lines that have the mark but cannot be read."""

    records: list[Record] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)


def read_mllog(file: str | os.PathLike[str]) -> MLLogText:
    """Read MLPerf's lines wherever they stand in a file, behind prefixes and between other output."""
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return parse_mllog(iter(lambda: stream.readline(_LONGEST_LINE), ""))
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(file)}: {os.strerror(error.errno or 0)}") from error


def parse_mllog(lines: Iterable[str]) -> MLLogText:
    """Read MLPerf's lines out of lines of text."""
    text = MLLogText()
    decoder = json.JSONDecoder()
    for number, line in enumerate(lines, 1):
        if ":::MLLOG" not in line:
            continue
        prefix, *parts = _ANSI.sub("", line).split(":::MLLOG")
        rank = _RANK.match(prefix)
        for part in parts:
            try:
                entry, _ = decoder.raw_decode(part.lstrip())
                text.records.append(_record(entry, number, int(rank[1]) if rank else None))
            except (ValueError, KeyError, TypeError, RecursionError):
                text.damaged.append(number)
    return text


def log_of(text: MLLogText, *, host: str = "") -> Log:
    """Return what MLPerf's log tells as one of ours.

    Intervals become spans, named without `_start` and `_stop`; one without an end becomes an event. A moment with a
    number becomes a metric, any other an event.
    """
    log = Log(damaged=len(text.damaged))
    ordered = sorted(text.records, key=lambda record: record.time_ms)
    for rank in dict.fromkeys(record.rank for record in ordered):
        mine = [record for record in ordered if record.rank == rank]
        first_ns = _ns(mine[0])
        writer = Writer(host, 0 if rank is None else rank, rank, first_ns, first_ns)
        log.writers.append(writer)
        _convert(mine, writer, log)
    return log


def _record(entry: Any, line: int, rank: int | None) -> Record:
    if not isinstance(entry, dict):
        raise ValueError("no mapping")
    metadata = entry.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a mapping")
    if isinstance(entry["time_ms"], bool) or not float(entry["time_ms"]) < float("inf"):
        raise ValueError("time_ms is not a time")
    namespace, type = str(entry.get("namespace") or ""), str(entry.get("event_type") or "POINT_IN_TIME")
    return Record(line, rank, namespace, float(entry["time_ms"]), type, str(entry["key"]), entry.get("value"), metadata)


def _convert(records: list[Record], writer: Writer, log: Log) -> None:
    spans: dict[str, Spans] = {}
    running: dict[str, list[Record]] = {}
    for record in records:
        name = _name(record)
        if record.type == "INTERVAL_START":
            running.setdefault(name, []).append(record)
        elif record.type == "INTERVAL_END" and running.get(name):
            begin = running[name].pop()
            if name not in spans:
                spans[name] = Spans(name, writer, 0)
                log.spans.append(spans[name])
            spans[name].starts_ns.append(_ns(begin))
            spans[name].durations_ns.append(_ns(record) - _ns(begin))
            spans[name].attributes.append(_attributes(begin) | _attributes(record) or None)
        elif isinstance(record.value, (int, float)) and not isinstance(record.value, bool):
            log.metrics.append(Logged(name, record.value, _step(record), _ns(record), writer))
        else:
            log.events.append(Event(name, _ns(record), writer, _attributes(record)))
    for unended in (each for left in running.values() for each in left):
        log.events.append(Event(_name(unended), _ns(unended), writer, {"running": True} | _attributes(unended)))


def _name(record: Record) -> str:
    key = record.key
    if record.type in ("INTERVAL_START", "INTERVAL_END"):
        key = re.sub(r"_(?:start|stop|end)$", "", key)
    return f"{record.namespace}/{key}" if record.namespace else key


def _ns(record: Record) -> int:
    return int(record.time_ms * 1_000_000)


def _step(record: Record) -> float | None:
    for name in _STEPS:
        value = record.metadata.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None


def _attributes(record: Record) -> dict[str, Any]:
    about = {key: value for key, value in record.metadata.items() if key not in ("file", "lineno")}
    return about if record.value is None else {"value": record.value, **about}


def _plain(value: Any, key: str) -> Any:
    """Return data that JSON can say: arrays as lists, NaN and infinities as texts."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each, key) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, key) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), key)
    if isinstance(value, Path):
        return str(value)
    raise UsageError(
        f"{key}: a {type(value).__name__} cannot be logged", hint="log a number, a string, a list or a dict"
    )
