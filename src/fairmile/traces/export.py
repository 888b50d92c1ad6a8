"""Hands a table of events to other tools: Perfetto and chrome://tracing, Vampir and Scalasca (OTF2), Chakra.

Chakra's schema has many fields that a trace does not tell. Nodes here have name, type, times, dependencies (the call
that holds them, the launch that led to them) and, for communication, kind, size, group and peer; tensors, operators'
inputs and outputs, and addresses are left out, and the files are JSON where Chakra's own are protobuf.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Conflict, MissingExtra
from fairmile.base.files import write_atomic
from fairmile.base.words import slug
from fairmile.traces.events import Array, EventKind, EventTable, Lane

_SCHEMA = "1.1.1-chakra.0.0.4"
_CHAKRA = {EventKind.COLLECTIVE: 7, EventKind.MEMCPY: 2, EventKind.MEMSET: 3}  # others are compute; messages see below
_SEND, _RECEIVE, _COMPUTE = 5, 6, 4
_CHAKRA_CALLS = ("allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter")
_OPERATIONS = {
    "barrier": "BARRIER", "bcast": "BCAST", "broadcast": "BCAST", "allreduce": "ALLREDUCE", "allgather": "ALLGATHER",
    "reducescatter": "REDUCE_SCATTER", "alltoall": "ALLTOALL", "reduce": "REDUCE", "gather": "GATHER",
    "scatter": "SCATTER",
}  # fmt: skip


def write_chrome(table: EventTable, file: Path) -> None:
    """Write a table as Chrome's event format, gzipped where the name ends in .gz: one process for each rank."""
    begin = int(table.start_ns.min()) if len(table) else 0
    start = datetime.fromtimestamp(begin // 1000 / 1e6, UTC).isoformat()
    begin -= begin % 1000  # the start is told in whole microseconds
    lines = ",\n".join(map(json.dumps, _chrome_events(table.sorted(), begin)))
    text = f'{{"displayTimeUnit": "ms", "otherData": {{"start": "{start}"}}, "traceEvents": [\n{lines}\n]}}\n'
    data = text.encode()
    write_atomic(file, gzip.compress(data, 6) if file.name.endswith(".gz") else data)


def _chrome_events(table: EventTable, begin: int) -> Iterator[dict[str, Any]]:
    pids: dict[tuple[str, int], int] = {}
    for lane in table.lanes:
        pids.setdefault((lane.component, lane.rank), len(pids))
    for (component, rank), pid in pids.items():
        name = f"{component} rank {rank}".strip()
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    lanes = [(pids[lane.component, lane.rank], number) for number, lane in enumerate(table.lanes)]
    for (pid, tid), lane in zip(lanes, table.lanes, strict=True):
        label = lane.label if not lane.on_device or lane.label.startswith("stream ") else f"stream {lane.label}"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}
    kinds = [kind.name.lower() for kind in EventKind]
    extras = [
        (name, dict(zip(each.rows.tolist(), each.values, strict=True))) for name, each in table.attributes.items()
    ]
    columns = (table.start_ns, table.end_ns, table.kind, table.name, table.lane, table.bytes, table.value)
    more = (table.step, table.sequence, table.correlation)
    for row, (start, end, kind, name, lane, size, value, step, sequence, correlation) in enumerate(
        zip(*(column.tolist() for column in (*columns, *more)), strict=True)
    ):
        pid, tid = lanes[lane]
        event: dict[str, Any] = {"name": table.names[name], "pid": pid, "tid": tid, "ts": (start - begin) / 1000}
        if kind in (EventKind.COUNTER, EventKind.MEMORY):
            if math.isfinite(value):
                yield {**event, "ph": "C", "args": {"value": value}}
            continue
        args = {"bytes": size, "step": step, "sequence": sequence, "correlation": correlation}
        args = {key: each for key, each in args.items() if each >= 0}
        args.update({key: _plain(values[row]) for key, values in extras if row in values})
        if kind == EventKind.MARKER:
            yield {**event, "ph": "i", "s": "t", "args": args}
        else:
            yield {**event, "ph": "X", "cat": kinds[kind], "dur": (end - start) / 1000, "args": args}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (str, int, bool, dict, list)) or value is None else str(value)


def write_chakra(table: EventTable, folder: Path) -> list[Path]:
    """Write one execution trace for each rank in the manner of Chakra and return the files."""
    files: list[Path] = []
    for component, rank, events in table.sorted().with_parents().by_rank():
        # A component may be named as the program likes, also like a place outside of the folder.
        stem = slug(component, keep_case=True)
        name = f"chakra.{rank}.json" if not component else f"{stem}.chakra.{rank}.json"
        number = 2
        while (file := folder / name) in files:
            name, number = f"{stem}-{number}.chakra.{rank}.json", number + 1
        text = json.dumps({"schema": _SCHEMA, "rank": rank, "nodes": list(_nodes(events))})
        write_atomic(file, text)
        files.append(file)
    return files


def _nodes(table: EventTable) -> Iterator[dict[str, Any]]:
    launched = {int(table.correlation[row]): row for row in np.flatnonzero(table.of_kind(EventKind.LAUNCH)).tolist()}
    on_device = table.on_device()
    left_out = table.of_kind(EventKind.COUNTER, EventKind.MEMORY, EventKind.MARKER)
    for row in np.flatnonzero(~left_out).tolist():
        kind, name = EventKind(int(table.kind[row])), table.name_of(row)
        depends = [int(table.parent[row])] if table.parent[row] >= 0 else []
        launch = launched.get(int(table.correlation[row])) if on_device[row] and table.correlation[row] >= 0 else None
        attributes: list[dict[str, Any]] = [{"name": "is_cpu_op", "bool_val": not bool(on_device[row])}]
        if kind in (EventKind.COLLECTIVE, EventKind.P2P):
            attributes.append({"name": "comm_size", "int64_val": int(table.bytes[row])})
            call = _operation(name, _CHAKRA_CALLS)
            if call:
                attributes.append({"name": "comm_type", "int64_val": _CHAKRA_CALLS.index(call)})
            if table.group[row] >= 0:
                attributes.append({"name": "pg_name", "string_val": table.groups[table.group[row]].name})
            peer = table.attributes["peer"].get(row) if "peer" in table.attributes else None
            if isinstance(peer, (int, np.integer)):
                attributes.append(
                    {"name": "comm_dst" if "send" in name.lower() else "comm_src", "int64_val": int(peer)}
                )
        sort = _CHAKRA.get(kind, _COMPUTE)
        if kind == EventKind.P2P:
            sort = _RECEIVE if "recv" in name.lower() else _SEND
        yield {
            "id": row,
            "name": name,
            "type": sort,
            "ctrl_deps": depends,
            "data_deps": [launch] if launch is not None else [],
            "start_time_micros": int(table.start_ns[row]) // 1000,
            "duration_micros": int(table.end_ns[row] - table.start_ns[row]) // 1000,
            "attr": attributes,
        }


def _operation(name: str, known: Any) -> str:
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    return max((word for word in known if word in plain), key=len, default="")


def write_otf2(table: EventTable, folder: Path) -> Path:
    """Write a table as an OTF2 archive into a new folder and return its anchor; lanes become locations."""
    try:
        import otf2
    except ImportError as error:
        raise MissingExtra("OTF2 needs otf2", "traces") from error
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="write the OTF2 archive to a new or empty folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = int(table.start_ns.min()) if len(table) else 0
    with otf2.writer.open(str(folder), timer_resolution=1_000_000_000) as archive:
        _Otf2(otf2, archive, table, begin).write()
        # The library takes the moment of writing for the start of the trace.
        archive._realtime_timestamp = begin / 1e9
    return folder / "traces.otf2"


def _first_that_holds(ends: list[list[int]], start: int, end: int) -> int:
    """Return the first lane whose running events hold this one whole, a new one where none does."""
    for number, stack in enumerate(ends):
        while stack and stack[-1] <= start:
            stack.pop()
        if not stack or end <= stack[-1]:
            stack.append(end)
            return number
    ends.append([end])
    return len(ends) - 1


class _Otf2:
    """Writes one archive: definitions first, then lane by lane."""

    def __init__(self, otf2: Any, archive: Any, table: EventTable, begin: int) -> None:
        self._otf2, self._archive, self._table, self._begin = otf2, archive, table, begin
        self._definitions = archive.definitions
        self._regions: dict[int, Any] = {}
        self._metrics: dict[int, Any] = {}
        self._comms: dict[int, Any] = {}
        self._labels: dict[tuple[Any, str], int] = {}

    def write(self) -> None:
        table, definitions = self._table, self._definitions
        root = definitions.system_tree_node("machine")
        groups: dict[tuple[str, int], Any] = {}
        for lane in table.lanes:
            key = (lane.component, lane.rank)
            if key not in groups:
                name = f"{lane.component} rank {lane.rank}".strip()
                groups[key] = definitions.location_group(name, system_tree_parent=root)
        parts = self._lanes()
        locations = [self._location(lane, groups[lane.component, lane.rank]) for lane, _ in parts]
        first: dict[int, Any] = {}
        for (lane, _), location in zip(parts, locations, strict=True):
            first.setdefault(lane.rank, location)
        self._define_groups(first)
        for (_, rows), location in zip(parts, locations, strict=True):
            self._write_lane(self._archive.event_writer_from_location(location), rows)

    def _lanes(self) -> list[tuple[Lane, Array]]:
        """Return the rows of each lane in order; what only overlaps goes to a location of its own."""
        table = self._table
        parts: list[tuple[Lane, Array]] = []
        order = np.lexsort((-table.end_ns, table.start_ns))
        for number, lane in enumerate(table.lanes):
            rows = order[table.lane[order] == number]
            ends: list[list[int]] = []
            places: list[list[int]] = []
            for row in rows.tolist():
                at = _first_that_holds(ends, int(table.start_ns[row]), int(table.end_ns[row]))
                if at == len(places):
                    places.append([])
                places[at].append(row)
            parts += [(lane, np.array(mine, np.int64)) for mine in places]
        return parts

    def _location(self, lane: Lane, group: Any) -> Any:
        sort = self._otf2.LocationType
        # The library takes two locations of one name for one.
        seen = self._labels[group, lane.label] = self._labels.get((group, lane.label), 0) + 1
        label = lane.label if seen == 1 else f"{lane.label} ({seen})"
        return self._definitions.location(
            label, type=sort.ACCELERATOR_STREAM if lane.on_device else sort.CPU_THREAD, group=group
        )

    def _define_groups(self, first: dict[int, Any]) -> None:
        otf2, definitions = self._otf2, self._definitions
        mpi = otf2.Paradigm.MPI
        ranks = sorted(first)
        definitions.group(
            "all ranks", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=mpi, members=[first[rank] for rank in ranks]
        )
        for number, group in enumerate(self._table.groups):
            members = [first[rank] for rank in group.ranks or ranks if rank in first]
            made = definitions.group(group.name, group_type=otf2.GroupType.COMM_GROUP, paradigm=mpi, members=members)
            self._comms[number] = definitions.comm(group.name, group=made)

    def _write_lane(self, writer: Any, rows: Array) -> None:
        table = self._table
        open_ends: list[tuple[int, int]] = []
        for row in rows.tolist():
            start, end = int(table.start_ns[row]) - self._begin, int(table.end_ns[row]) - self._begin
            while open_ends and open_ends[-1][0] <= start:
                self._leave(writer, *open_ends.pop())
            kind = table.kind[row]
            if kind in (EventKind.COUNTER, EventKind.MEMORY):
                if math.isfinite(table.value[row]):
                    writer.metric(start, self._metric(int(table.name[row])), float(table.value[row]))
                continue
            writer.enter(start, self._region(int(table.name[row])))
            open_ends.append((end, row))
        while open_ends:
            self._leave(writer, *open_ends.pop())

    def _leave(self, writer: Any, end: int, row: int) -> None:
        table = self._table
        group = int(table.group[row])
        if table.kind[row] == EventKind.COLLECTIVE and group in self._comms:
            call = _operation(table.name_of(row), _OPERATIONS)
            operation = getattr(self._otf2.CollectiveOp, _OPERATIONS.get(call, "ALLREDUCE"))
            size = max(int(table.bytes[row]), 0)
            writer.mpi_collective_begin(end)
            writer.mpi_collective_end(end, operation, self._comms[group], 0xFFFFFFFF, size, size)
        elif table.kind[row] == EventKind.P2P and group in self._comms:
            self._message(writer, end, row, group)
        writer.leave(end, self._region(int(table.name[row])))

    def _message(self, writer: Any, end: int, row: int, group: int) -> None:
        table = self._table
        peer = table.attributes["peer"].get(row) if "peer" in table.attributes else None
        members = table.groups[group].ranks
        if not isinstance(peer, int) or peer not in members:
            return
        write = writer.mpi_recv if "recv" in table.name_of(row).lower() else writer.mpi_send
        write(end, members.index(peer), self._comms[group], 0, max(int(table.bytes[row]), 0))

    def _region(self, name: int) -> Any:
        if name not in self._regions:
            self._regions[name] = self._definitions.region(self._table.names[name])
        return self._regions[name]

    def _metric(self, name: int) -> Any:
        if name not in self._metrics:
            self._metrics[name] = self._definitions.metric(self._table.names[name])
        return self._metrics[name]
