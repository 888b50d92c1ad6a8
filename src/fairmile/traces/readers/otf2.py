"""Reads OTF2 archives, which Score-P, TAU and others write: regions, MPI collectives and messages, metrics, parameters.

The library of the format takes about eight microseconds an event: a million events are read in ten seconds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import otf2
from otf2.error import Error
from otf2.reader import _otf2

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.readers.naming import kind_of_name, rank_in, step_of_name

_UNDEFINED = 0xFFFFFFFF
_STEP_PARAMETERS = re.compile(r"(?i)^(step|iteration|iter|timestep|n|epoch)$")
_DEVICE_TYPES = ("GPU", "ACCELERATOR_STREAM")


def read(file: Path) -> EventTable:
    """Return the events of all locations of an archive; `file` is its anchor or the folder that holds it."""
    anchor = anchor_of(file)
    try:
        with otf2.reader.open(str(anchor)) as trace:
            reading = _Reading(trace, anchor)
            for location, event in trace.events:
                reading.take(location, event)
            return reading.table()
    except (Error, _otf2.ErrorCodes.Error, RuntimeError, LookupError) as error:
        raise Integrity(f"{anchor} is not an OTF2 archive: {error}") from error


def anchor_of(file: Path) -> Path:
    """Return the anchor file of an archive."""
    if not file.is_dir():
        return file
    anchors = sorted(file.glob("*.otf2"))
    if not anchors:
        raise Integrity(f"{file} has no anchor file (*.otf2) of an OTF2 archive")
    return anchors[0]


class _Reading:
    def __init__(self, trace: Any, file: Path) -> None:
        self._file = file
        clock = trace.definitions.clock_properties
        self._ticks = clock.timer_resolution
        self._offset = clock.global_offset
        realtime = getattr(clock, "realtime_timestamp", None)
        self._since_epoch = isinstance(realtime, int) and 0 < realtime < 1 << 62
        self._wall_ns = realtime if self._since_epoch and realtime is not None else 0
        self._rows = Rows()
        self._lanes: dict[Any, Lane] = {}
        self._ranks: dict[Any, int] = {}
        self._stacks: dict[Any, list[tuple[int, int]]] = {}
        self._about: dict[int, dict[str, Any]] = {}
        self._groups: dict[Any, RankGroup] = {}
        self._kinds: dict[int, EventKind] = {}
        self._columns: dict[int, dict[str, int]] = {}
        self._row_groups: dict[int, RankGroup] = {}
        self._last = 0
        self._unopened = 0
        for location in trace.definitions.locations:
            self._lanes[location] = self._lane(location)

    def _lane(self, location: Any) -> Lane:
        process = location.group
        if process not in self._ranks:
            rank = rank_in(process.name)
            self._ranks[process] = len(self._ranks) if rank is None else rank
        on_device = str(location.type).rpartition(".")[2] in _DEVICE_TYPES
        return Lane(self._ranks[process], location.name, on_device)

    def _time(self, ticks: int) -> int:
        return int(self._wall_ns + (ticks - self._offset) * 1_000_000_000 // self._ticks)

    def take(self, location: Any, event: Any) -> None:
        """Add one event."""
        sort = type(event).__name__
        at = self._last = self._time(event.time)
        lane = self._lanes[location]
        stack = self._stacks.setdefault(location, [])
        if sort == "Enter":
            kind = kind_of_name(event.region.name)
            row = self._rows.add(kind, event.region.name, at, at, lane)
            self._kinds[row] = EventKind.REGION if kind in (EventKind.COLLECTIVE, EventKind.P2P) else kind
            if kind == EventKind.PHASE:
                self._columns[row] = {"step": step_of_name(event.region.name)}
            stack.append((row, at))
        elif sort == "Leave":
            if stack:
                self._rows.end(stack.pop()[0], at)
            else:
                self._unopened += 1
        elif sort == "Metric":
            self._add_metric(event, at, lane)
        elif stack:
            self._take_detail(sort, event, stack[-1][0], lane)

    def _take_detail(self, sort: str, event: Any, row: int, lane: Lane) -> None:
        """Note what an event says of the region it lies in."""
        if sort == "MpiCollectiveEnd":
            self._kinds[row] = EventKind.COLLECTIVE
            self._row_groups[row] = self._group(event.communicator)
            self._columns[row] = {"bytes": max(int(event.size_sent), int(event.size_received))}
            if event.root < _UNDEFINED - 16:
                self._about.setdefault(row, {})["root"] = self._global(event.communicator, int(event.root))
        elif sort in ("MpiSend", "MpiIsend", "MpiRecv", "MpiIrecv"):
            self._kinds[row] = EventKind.P2P
            other = event.receiver if sort.endswith("end") else event.sender
            self._row_groups[row] = self._group(event.communicator)
            self._columns[row] = {"bytes": int(event.msg_length)}
            peer = self._global(event.communicator, int(other))
            self._about.setdefault(row, {}).update(peer=peer, tag=int(event.msg_tag))
        elif sort.startswith("Parameter"):
            name = event.parameter.name
            self._about.setdefault(row, {})[name] = event.string if sort.endswith("String") else event.value
            if _STEP_PARAMETERS.match(name) and not sort.endswith("String"):
                self._kinds[row] = EventKind.PHASE
                self._columns[row] = {"step": int(event.value)}

    def _add_metric(self, event: Any, at: int, lane: Lane) -> None:
        class_of = getattr(event.metric, "metric_class", event.metric)
        for member, value in zip(class_of.members, event.values, strict=False):
            self._rows.add(EventKind.COUNTER, member.name, at, at, lane, value=float(value))

    def _members(self, communicator: Any) -> tuple[int, ...]:
        group = getattr(communicator, "group", None)
        members = getattr(group, "members", ()) if group is not None else ()
        return tuple(self._ranks[each.group] for each in members if getattr(each, "group", None) in self._ranks)

    def _group(self, communicator: Any) -> RankGroup:
        if communicator not in self._groups:
            members = self._members(communicator)
            ranks = members or tuple(sorted(self._ranks.values()))
            self._groups[communicator] = RankGroup(communicator.name or "world", ranks, "mpi", len(ranks))
        return self._groups[communicator]

    def _global(self, communicator: Any, rank: int) -> int:
        members = self._members(communicator)
        return members[rank] if rank < len(members) else rank

    def table(self) -> EventTable:
        """Return what was read."""
        if not len(self._rows):
            raise Integrity(f"{self._file} holds no event")
        notes = []
        still_open = [row for stack in self._stacks.values() for row, _ in stack]
        for row in still_open:
            self._rows.end(row, self._last)
        if still_open:
            notes.append(
                f"{self._file.name}: {len(still_open)} regions never end; they are extended to the end of the trace"
            )
        if self._unopened:
            notes.append(f"{self._file.name}: skipped {self._unopened} regions that end without a start")
        for row, kind in self._kinds.items():
            self._rows.change(
                row,
                kind=kind,
                group=self._row_groups.get(row),
                with_=self._about.get(row),
                **self._columns.get(row, {}),
            )
        ranks = sorted(set(self._ranks.values()))
        world = ranks[-1] + 1 if ranks else -1
        about = [
            Process(
                rank,
                file=str(self._file),
                format="otf2",
                boot=str(self._file),
                world=world,
                since_epoch=self._since_epoch,
            )
            for rank in ranks
        ]
        return self._rows.table(about, notes).sorted().with_steps()
