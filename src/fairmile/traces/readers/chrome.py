"""Reads traces of Chrome's event format, which Perfetto and many profilers write: one file, any number of processes.

Processes whose name states a rank are ranks; where none does, the file is one rank and its processes are lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairmile.base.errors import Integrity
from fairmile.traces.events import Array, EventKind, EventTable, Lane, Process, Rows
from fairmile.traces.readers.naming import MOST_US, kind_of_name, rank_in, step_of_name, whole
from fairmile.traces.readers.scan import Events, typed_decoder

_CATEGORIES = {
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "collective": EventKind.COLLECTIVE,
    "p2p": EventKind.P2P,
    "exchange": EventKind.EXCHANGE,
    "io": EventKind.IO,
    "launch": EventKind.LAUNCH,
    "sync": EventKind.SYNC,
    "phase": EventKind.PHASE,
    "region": EventKind.REGION,
    "memcpy": EventKind.MEMCPY,
    "memset": EventKind.MEMSET,
}
_ON_DEVICE = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
_FLAT = (EventKind.COUNTER, EventKind.MARKER)
_DEEPEST = 64  # how far back the slice is looked for that an arrow begins or ends in


class ChromeEvent(msgspec.Struct, gc=False):
    """One event as the format has it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float | None = None
    id: int | str | None = None
    bp: str = ""
    args: dict[str, Any] = {}


def read(file: Path) -> EventTable:
    """Return the events of one file; what is broken in it is told in the notes of the table."""
    events = Events[ChromeEvent](file, typed_decoder(ChromeEvent), mended)
    batches = [each for batch in events for each in batch]
    table = _Reading(file, batches).table(events.notes)
    start_ns = _start_ns(events.head)
    if start_ns:
        table.start_ns += start_ns
        table.end_ns += start_ns
        table.processes = [replace(each, since_epoch=True) for each in table.processes]
    return table


def _start_ns(head: dict[str, Any]) -> int:
    """Return when the trace began as our own export of a meter tells it, 0 where nothing does."""
    other = head.get("otherData")
    try:
        start = datetime.fromisoformat(other["start"]) if isinstance(other, dict) else None
    except (KeyError, TypeError, ValueError):
        return 0
    return round(start.timestamp() * 1e6) * 1000 if start is not None else 0


def mended(value: Any) -> ChromeEvent | None:
    """Return an event whose fields have other types than they should, None where it is no event."""
    if not isinstance(value, dict) or not isinstance(value.get("ph"), str) or value.get("ts", 0) is None:
        return None
    fields = {key: each for key, each in value.items() if each is not None}
    if not isinstance(fields.get("args"), dict):
        fields.pop("args", None)
    try:
        return msgspec.convert(fields, ChromeEvent, strict=False)
    except msgspec.ValidationError:
        return None


def is_timed(event: ChromeEvent) -> bool:
    """Tell whether the times of an event are times: profilers print what a division by zero gives."""
    return abs(event.ts) < MOST_US and abs(event.dur or 0.0) < MOST_US


class _Reading:
    def __init__(self, file: Path, events: Sequence[ChromeEvent]) -> None:
        self._file = file
        self._events = [each for each in events if is_timed(each)]
        self._timeless = len(events) - len(self._events)
        self._rows = Rows()
        self._open: dict[Any, list[tuple[int, ChromeEvent]]] = {}
        self._flows: list[ChromeEvent] = []
        self._labels: dict[Any, str] = {}
        self._ranks: dict[Any, int] = {}
        self._own_rank = rank_in(file.name) or 0
        self._negative = self._unopened = 0
        for each in events:
            if each.ph == "M":
                self._take_name(each)

    def _take_name(self, event: ChromeEvent) -> None:
        name = event.args.get("name")
        if event.name == "process_name" and isinstance(name, str):
            self._labels[event.pid] = name
            rank = rank_in(name)
            if rank is not None:
                self._ranks[event.pid] = rank
        elif event.name == "thread_name" and isinstance(name, str):
            self._labels[event.pid, event.tid] = name

    def table(self, notes: list[str]) -> EventTable:
        for each in sorted((each for each in self._events if each.ph != "M"), key=lambda each: each.ts):
            self._take(each)
        if not len(self._rows):
            raise Integrity(f"{self._file} holds no event", hint="; ".join(notes) or None)
        still_open = sum(map(len, self._open.values()))
        last = round(1000 * max(each.ts + (each.dur or 0.0) for each in self._events))
        for stack in self._open.values():
            for row, _ in stack:
                self._rows.end(row, last)
        if still_open:
            notes.append(f"{self._file.name}: {still_open} events never end; they are extended to the end of the trace")
        if self._timeless:
            notes.append(f"{self._file.name}: skipped {self._timeless} events with an invalid time")
        if self._unopened:
            notes.append(f"{self._file.name}: skipped {self._unopened} events that end without a start")
        if self._negative:
            notes.append(
                f"{self._file.name}: {self._negative} events end before they start; their duration is set to 0"
            )
        ranks = sorted(set(self._ranks.values())) or [self._own_rank]
        processes = [
            Process(rank, file=str(self._file), format="chrome", boot=str(self._file), since_epoch=False)
            for rank in ranks
        ]
        if self._ranks and any(self._rank(each.pid) not in ranks for each in self._events):
            processes.append(
                Process(self._own_rank, file=str(self._file), format="chrome", boot=str(self._file), since_epoch=False)
            )
        table = self._rows.table(processes, notes).sorted()
        self._bind_flows(table)
        return table.with_steps()

    def _rank(self, pid: Any) -> int:
        return self._ranks.get(pid, self._own_rank)

    def _lane(self, event: ChromeEvent, kind: EventKind) -> Lane:
        label = self._labels.get((event.pid, event.tid)) or f"thread {event.tid if event.tid is not None else 0}"
        if not self._ranks and self._labels.get(event.pid):
            label = f"{self._labels[event.pid]}, {label}"
        on_device = kind in _ON_DEVICE or label.lower().lstrip().startswith("stream ")
        return Lane(self._rank(event.pid), label, on_device, number=whole(event.tid, 0))

    def _take(self, event: ChromeEvent) -> None:
        start = round(event.ts * 1000)
        if event.ph == "X":
            length = round((event.dur or 0.0) * 1000)
            self._negative += length < 0
            self._begin(event, start, start + max(length, 0))
        elif event.ph == "B":
            row = self._begin(event, start, start)
            self._open.setdefault((event.pid, event.tid), []).append((row, event))
        elif event.ph == "E":
            self._end((event.pid, event.tid), start)
        elif event.ph in "bS" and event.ph:
            row = self._begin(event, start, start, asynchronous=True)
            self._open.setdefault((event.cat, event.id, event.name), []).append((row, event))
        elif event.ph in "eF" and event.ph:
            self._end((event.cat, event.id, event.name), start)
        elif event.ph in "iIRn" and event.ph:
            self._rows.add(EventKind.MARKER, event.name, start, start, self._lane(event, EventKind.MARKER))
        elif event.ph == "C":
            for key, value in event.args.items():
                if isinstance(value, (int, float)):
                    name = event.name if key in ("value", event.name) else f"{event.name} {key}"
                    self._rows.add(
                        EventKind.COUNTER, name, start, start, self._lane(event, EventKind.COUNTER), value=value
                    )
        elif event.ph in "stf" and event.ph:
            self._flows.append(event)

    def _begin(self, event: ChromeEvent, start: int, end: int, *, asynchronous: bool = False) -> int:
        kind = _CATEGORIES.get(event.cat.lower(), kind_of_name(event.name))
        lane = self._lane(event, kind)
        if asynchronous:
            lane = Lane(lane.rank, f"{event.cat or 'asynchronous'} {event.id}", lane.on_device)
        step = step_of_name(event.name)
        if kind == EventKind.PHASE and step < 0:
            step = whole(event.args.get("n", event.args.get("step")), -1)
        arguments = event.args
        return self._rows.add(
            kind, event.name, start, end, lane,
            step=step if kind == EventKind.PHASE else -1,
            bytes=whole(arguments.get("bytes", arguments.get("size_bytes"))),
            correlation=whole(arguments.get("correlation")),
            sequence=whole(arguments.get("sequence")),
            with_={key: arguments[key] for key in ("dtype", "root", "peer", "tag", "key") if key in arguments},
        )  # fmt: skip

    def _end(self, key: Any, end: int) -> None:
        stack = self._open.get(key)
        if not stack:
            self._unopened += 1
            return
        row, _ = stack.pop()
        self._rows.end(row, end)

    def _bind_flows(self, table: EventTable) -> None:
        """Give the two slices that an arrow joins the same correlation, where they have none."""
        if not self._flows:
            return
        lanes = {(lane.rank, lane.label): number for number, lane in enumerate(table.lanes)}
        timed = ~table.of_kind(*_FLAT)
        inside = {lane: np.flatnonzero((table.lane == lane) & timed) for lane in lanes.values()}
        slices = {lane: (rows, table.start_ns[rows]) for lane, rows in inside.items()}
        ends: dict[Any, list[int]] = {}
        for flow in self._flows:
            lane = self._lane(flow, EventKind.REGION)
            number = lanes.get((lane.rank, lane.label), -1)
            row = _slice_at(table, *slices[number], round(flow.ts * 1000)) if number >= 0 else -1
            if row >= 0:
                ends.setdefault((flow.cat, flow.name, flow.id), []).append(row)
        for number, rows in enumerate(rows for rows in ends.values() if len(rows) > 1):
            free = [row for row in rows if table.correlation[row] < 0]
            if len(free) == len(rows):
                table.correlation[free] = number


def _slice_at(table: EventTable, rows: Array, starts: Array, moment: int) -> int:
    """Return the last of these rows, which are in order, that began by a moment and lasts to it; -1: none."""
    place = int(np.searchsorted(starts, moment, side="right"))
    for row in rows[max(place - _DEEPEST, 0) : place][::-1].tolist():
        if table.end_ns[row] >= moment:
            return int(row)
    return -1
