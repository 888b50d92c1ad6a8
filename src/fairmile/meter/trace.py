"""A log as a trace that Perfetto and chrome://tracing open: spans, events, and samples and metrics as counters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairmile.base.files import write_atomic
from fairmile.meter.lines import Counted, Event, Log, Samples, Spans, Writer

if TYPE_CHECKING:
    import os

_Timed = tuple[int, dict[str, Any]]
_LANES = 1_000_000  # threads are numbered far below it


def write_trace(log: Log, file: str | os.PathLike[str]) -> None:
    """Write a log as a trace of Chrome's event format."""
    write_atomic(file, trace_text(log))


def trace_text(log: Log) -> str:
    """Return a log as JSON of Chrome's event format: microseconds since the first moment, in order of time."""
    begin_ns = _begin_ns(log)
    pids = _pids(log.writers)
    start = datetime.fromtimestamp(begin_ns / 1e9, UTC).isoformat()
    # One event a line, so that a person can look for something in it; made one by one, since a day has millions.
    lines = ",\n".join(map(json.dumps, chain(_names(log, pids), _timed(log, pids, begin_ns))))
    return f'{{"displayTimeUnit": "ms", "otherData": {{"start": "{start}"}}, "traceEvents": [\n{lines}\n]}}\n'


def _timed(log: Log, pids: dict[Writer, int], begin_ns: int) -> Iterator[dict[str, Any]]:
    """Yield everything that happened, in order of time, a span before what lies within it."""
    parts: list[Iterable[_Timed]] = [_complete(spans, pid) for pid, spans in _by_process(log.spans, pids)]
    parts.append(_instants(log.events, pids))
    metrics = sorted(log.metrics, key=lambda logged: logged.at_ns)
    parts.append(timed for each in metrics for timed in _counter(each.name, each.value, each.at_ns, pids[each.writer]))
    parts += [_counts(counted, pids[counted.writer]) for counted in log.counters]
    parts += [_levels(samples, pids[samples.writer]) for samples in log.samples]
    for at_ns, each in merge(*parts, key=lambda timed: (timed[0], -timed[1].get("dur", 0.0))):
        yield {**each, "ts": (at_ns - begin_ns) / 1e3}


def _instants(events: Iterable[Event], pids: dict[Writer, int]) -> Iterator[_Timed]:
    for event in sorted(events, key=lambda event: event.at_ns):
        head = {"name": event.name, "cat": "event", "ph": "i", "s": "p", "pid": pids[event.writer], "tid": 0}
        yield event.at_ns, {**head, "args": _finite(event.attributes)}


def _levels(samples: Samples, pid: int) -> Iterator[_Timed]:
    names = [f"{each.name} ({each.unit})" if each.unit else each.name for each in samples.channels]
    for row in sorted(range(len(samples.at_ns)), key=samples.at_ns.__getitem__):
        for name, column in zip(names, samples.columns, strict=True):
            yield from _counter(name, column[row], samples.at_ns[row], pid)


def _counts(counted: Counted, pid: int) -> Iterator[_Timed]:
    for at_ns, value in sorted(zip(counted.at_ns, counted.values, strict=True)):
        yield from _counter(counted.name, value, at_ns, pid)


def _begin_ns(log: Log) -> int:
    moments = [min(spans.starts_ns) for spans in log.spans if spans.starts_ns]
    moments += [each.at_ns for each in log.events] + [each.at_ns for each in log.metrics]
    moments += [min(counted.at_ns) for counted in log.counters if counted.at_ns]
    moments += [min(samples.at_ns) for samples in log.samples if samples.at_ns]
    return min(moments, default=0)


def _pids(writers: Iterable[Writer]) -> dict[Writer, int]:
    """Return a number for each process: its own, unless one on another host, or an earlier one, has it."""
    numbers: dict[Writer, int] = {}
    taken: dict[int, Writer] = {}
    for writer in writers:
        number = writer.pid
        while number in taken and taken[number] != writer:
            number += 10_000_000  # above the largest number that Linux gives
        taken[number] = writer
        numbers[writer] = number
    return numbers


def _names(log: Log, pids: dict[Writer, int]) -> Iterator[dict[str, Any]]:
    for writer, pid in pids.items():
        rank = "" if writer.rank is None else f"rank {writer.rank}, "
        rank = f"{log.components[writer]}, {rank}" if writer in log.components else rank
        about = {"ph": "M", "pid": pid, "tid": 0, "ts": 0}
        yield {**about, "name": "process_name", "args": {"name": f"{rank}{writer.host} {writer.pid}"}}
        if writer.rank is not None:
            yield {**about, "name": "process_sort_index", "args": {"sort_index": writer.rank}}
    names = {(pids[writer], thread): name for (writer, thread), name in log.threads.items()}
    for pid, thread in sorted({(pids[spans.writer], spans.thread) for spans in log.spans}):
        name = names.get((pid, thread), f"thread {thread}" if thread else "main")
        yield {"ph": "M", "pid": pid, "tid": thread, "ts": 0, "name": "thread_name", "args": {"name": name}}


def _by_process(all_spans: Iterable[Spans], pids: dict[Writer, int]) -> Iterator[tuple[int, list[Spans]]]:
    threads: dict[tuple[int, int], list[Spans]] = {}
    for spans in all_spans:
        threads.setdefault((pids[spans.writer], spans.thread), []).append(spans)
    for (pid, _), threads_spans in threads.items():
        yield pid, threads_spans


def _complete(threads_spans: list[Spans], pid: int) -> list[_Timed]:
    """Return the spans of one thread as complete events.

    Blocks of one thread lie inside each other; what only overlaps (tasks of asyncio) goes to a lane of its own, since
    viewers cut it off otherwise.
    """
    calls = []
    for spans in threads_spans:
        about = zip(spans.starts_ns, spans.durations_ns, spans.attributes, strict=True)
        calls += [(start, -duration, spans.name, attributes) for start, duration, attributes in about]
    calls.sort(key=lambda call: call[:2])
    lanes: list[list[int]] = []
    events = []
    for start, minus_duration, name, attributes in calls:
        end = start - minus_duration
        lane = _lane(lanes, start, end)
        lanes[lane].append(end)
        tid = threads_spans[0].thread + lane * _LANES
        event = {"name": name, "cat": "span", "ph": "X", "dur": -minus_duration / 1e3, "pid": pid, "tid": tid}
        if attributes:
            event["args"] = _finite(attributes)
        events.append((start, event))
    return events


def _lane(lanes: list[list[int]], start: int, end: int) -> int:
    """Return the first lane whose running spans hold this one whole; a new one where none does."""
    for number, ends in enumerate(lanes):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            return number
    lanes.append([])
    return len(lanes) - 1


def _counter(name: str, value: float | None, at_ns: int, pid: int) -> list[_Timed]:
    if value is None or not math.isfinite(value):
        return []  # neither JSON nor a curve has a place for it
    return [(at_ns, {"name": name, "ph": "C", "pid": pid, "tid": 0, "args": {"value": value}})]


def _finite(attributes: Any) -> Any:
    if isinstance(attributes, float) and not math.isfinite(attributes):
        return str(attributes)
    if isinstance(attributes, dict):
        return {str(key): _finite(value) for key, value in attributes.items()}
    return [_finite(each) for each in attributes] if isinstance(attributes, list) else attributes
