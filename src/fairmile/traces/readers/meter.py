"""Reads our own logs, `events.jsonl`: spans, exchanges between components, counters, metrics, samples of a watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Integrity
from fairmile.meter.lines import Log, Spans, Writer, read_log
from fairmile.traces.events import Array, Attribute, EventKind, EventTable, Lane, Process, concat, objects
from fairmile.traces.readers.naming import MOST, kind_of_name, step_of_name, whole, within

OUTSIDE = "outside"  # the component of processes that have no rank while others have one
_STEP_KEYS = ("n", "step", "iteration", "epoch")
_KEPT = ("dtype", "root", "peer", "tag", "algorithm")


def read(files: Path | Sequence[Path], known: Mapping[tuple[str, int], int] | None = None) -> EventTable:
    """Return the events of all processes that wrote to the logs of one run.

    `known` are the ranks of processes, by host and number, that other traces of the run told.
    """
    files = [files] if isinstance(files, Path) else list(files)
    log = read_log(files)
    names = ", ".join(str(file) for file in files)
    if not log.writers:
        raise Integrity(f"{names} has no lines of a meter")
    lanes = _Lanes(log, known or {})
    parts = [_spans(spans, lanes) for spans in log.spans]
    parts += [table for table in (_marks(log, lanes), _counters(log, lanes)) if len(table)]
    table = concat(parts)
    table.processes = lanes.processes(files)
    if log.damaged:
        table.notes.append(f"{names}: skipped {log.damaged} unreadable lines, perhaps truncated by a crash")
    _demote_epochs(table)
    return table.sorted().with_steps()


class _Lanes:
    """Which rank and component each writer is."""

    def __init__(self, log: Log, known: Mapping[tuple[str, int], int]) -> None:
        self._log = log
        self._places: dict[Writer, tuple[str, int]] = {}
        ranked = {self._component(each) for each in log.writers if each.rank is not None}
        counts: dict[str, int] = {}
        for writer in log.writers:
            component, rank = self._component(writer), writer.rank
            if rank is None:
                rank = known.get((writer.host, writer.pid))
            if rank is None:
                if component in ranked or known:
                    component = f"{component} {OUTSIDE}".strip()
                rank = counts.get(component, 0)
                counts[component] = rank + 1
            self._places[writer] = (component, rank)

    def _component(self, writer: Writer) -> str:
        return self._log.components.get(writer, "")

    def lane(self, writer: Writer, thread: int | None = None) -> Lane:
        component, rank = self._places[writer]
        if thread is None:
            return Lane(rank, "samples", component=component, number=-1)
        name = self._log.threads.get((writer, thread)) or (f"thread {thread}" if thread else "main")
        return Lane(rank, name, component=component, number=thread)

    def processes(self, files: Sequence[Path]) -> list[Process]:
        world: dict[str, int] = {}
        for component, rank in self._places.values():
            world[component] = max(world.get(component, 0), rank + 1)
        return [
            Process(
                rank, component, str(files[0]), "meter", writer.host, pid=writer.pid, world=world[component],
            )
            for writer, (component, rank) in self._places.items()
        ]  # fmt: skip


def _spans(spans: Spans, lanes: _Lanes) -> EventTable:
    lane = lanes.lane(spans.writer, spans.thread)
    start = np.frombuffer(spans.starts_ns, np.int64).copy()
    count = len(start)
    kind = EventKind.EXCHANGE if spans.exchange is not None else kind_of_name(spans.name)
    columns: dict[str, Any] = {
        "start_ns": start,
        "end_ns": start + np.maximum(np.frombuffer(spans.durations_ns, np.int64), 0),
        "rank": np.full(count, lane.rank),
        "kind": np.full(count, kind),
    }
    table_attributes: dict[str, Attribute] = {}
    if spans.exchange is not None:
        columns["bytes"] = np.frombuffer(spans.exchange.bytes, np.int64)
        columns["sequence"] = np.clip(np.frombuffer(spans.exchange.versions, np.int64), -1, (1 << 31) - 1)
        every = np.arange(count, dtype=np.int32)
        attributes = {"key": spans.exchange.key, "peer": spans.exchange.peer, "how": spans.exchange.how}
        table_attributes = {
            name: Attribute(every, objects([value] * count)) for name, value in attributes.items() if value
        }
        waits = np.frombuffer(spans.exchange.waits_ns, np.int64)
        known = np.flatnonzero(waits >= 0).astype(np.int32)
        if len(known):
            table_attributes["wait_ns"] = Attribute(known, waits[known])
    elif any(spans.attributes):
        columns["bytes"] = np.array([within((each or {}).get("bytes"), 0, MOST) for each in spans.attributes])
        table_attributes = _attributes(spans.attributes)
    if kind == EventKind.PHASE:
        columns["step"] = _steps(spans)
    table = EventTable.of(columns, names=[spans.name], lanes=[lane], components=[lane.component])
    table.attributes = table_attributes
    return table


def _steps(spans: Spans) -> Array:
    stated = step_of_name(spans.name)
    values = [
        next((each[key] for key in _STEP_KEYS if key in each), None) if each else None for each in spans.attributes
    ]
    numbers = [whole(value, stated if stated >= 0 else place) for place, value in enumerate(values)]
    return np.array([min(max(number, -1), (1 << 31) - 1) for number in numbers], np.int64)


def _attributes(mappings: Sequence[Mapping[str, Any] | None]) -> dict[str, Attribute]:
    attributes = {}
    for name in _KEPT:
        rows = [row for row, each in enumerate(mappings) if each and name in each]
        if rows:
            values = objects([(mappings[row] or {})[name] for row in rows])
            attributes[name] = Attribute(np.array(rows, np.int32), values)
    return attributes


def _marks(log: Log, lanes: _Lanes) -> EventTable:
    times = np.array([each.at_ns for each in log.events], np.int64)
    return _moments(
        EventKind.MARKER, times, [each.name for each in log.events], [lanes.lane(each.writer, 0) for each in log.events]
    )


def _counters(log: Log, lanes: _Lanes) -> EventTable:
    parts = [
        _moments(
            EventKind.COUNTER,
            np.array([each.at_ns for each in log.metrics], np.int64),
            [each.name for each in log.metrics],
            [lanes.lane(each.writer, 0) for each in log.metrics],
            np.array([each.value for each in log.metrics]),
        )
    ]
    for counted in log.counters:
        times, values = np.frombuffer(counted.at_ns, np.int64).copy(), np.frombuffer(counted.values).copy()
        parts.append(
            _moments(EventKind.COUNTER, times, [counted.name], [lanes.lane(counted.writer, counted.thread)], values)
        )
    for samples in log.samples:
        times = np.frombuffer(samples.at_ns, np.int64).copy()
        for channel, column in zip(samples.channels, samples.columns, strict=True):
            values = np.array([np.nan if value is None else value for value in column], np.float64)
            name = f"{channel.name} ({channel.unit})" if channel.unit else channel.name
            parts.append(_moments(EventKind.COUNTER, times, [name], [lanes.lane(samples.writer)], values))
    return concat(parts)


def _moments(
    kind: EventKind, times: Array, names: Sequence[str], lanes: Sequence[Lane], values: Array | None = None
) -> EventTable:
    """Return a table of moments; one name and one lane stand for all."""
    if not len(times):
        return EventTable.of()
    name_ids, name_list = _numbered(names, len(times))
    lane_ids, lane_list = _numbered(lanes, len(times))
    part_ids, part_list = _numbered([lane.component for lane in lane_list], len(lane_list))
    columns: dict[str, Any] = {
        "start_ns": times,
        "end_ns": times,
        "rank": np.array([lane.rank for lane in lane_list])[lane_ids],
        "kind": np.full(len(times), kind),
        "name": name_ids,
        "lane": lane_ids,
        "component": part_ids[lane_ids],
    }
    if values is not None:
        columns["value"] = values
    return EventTable.of(columns, names=name_list, lanes=lane_list, components=part_list)


def _numbered(entries: Iterable[Any], count: int) -> tuple[Array, list[Any]]:
    numbers: dict[Any, int] = {}
    ids = np.array([numbers.setdefault(each, len(numbers)) for each in entries], np.int32)
    return (np.repeat(ids, count) if len(ids) == 1 else ids), list(numbers)


def _demote_epochs(table: EventTable) -> None:
    """Make epochs plain regions where finer iterations are there: a number must mean one thing."""
    phases = table.of_kind(EventKind.PHASE)
    epochs = phases & np.array([name.lower().startswith("epoch") for name in table.names] or [False], bool)[table.name]
    if epochs.any() and (phases & ~epochs).any():
        table.kind[epochs] = EventKind.REGION
        table.step[epochs] = -1
