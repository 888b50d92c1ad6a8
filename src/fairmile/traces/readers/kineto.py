"""Reads what the PyTorch profiler writes: operators, annotations, launches, kernels, copies, collectives, memory.

NCCL collectives are the kernels on the device, with the group, size and number that the profiler adds to them; those of
gloo, MPI and UCC are the back end's spans on its own threads, numbered in the order in which the program issued them.
"""

from __future__ import annotations

import re
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairmile.base.errors import Integrity
from fairmile.base.units import format_duration
from fairmile.traces.achieved import is_counted
from fairmile.traces.events import (
    MOST_RANKS,
    Array,
    Attribute,
    EventKind,
    EventTable,
    Lane,
    Process,
    RankGroup,
    objects,
)
from fairmile.traces.readers.naming import (
    MOST,
    MOST_US,
    bytes_of_type,
    elements,
    listed_ranks,
    rank_in,
    whole,
    within,
)
from fairmile.traces.readers.scan import Events, typed_decoder

_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync", "collective_comm"))
_LEFT_OUT = frozenset(("Trace", "overhead"))
_KINDS = {
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "collective_comm": EventKind.COLLECTIVE,
    "cuda_sync": EventKind.SYNC,
}
_RUNTIME = re.compile(r"(cuda|hip|xpu|mtia|privateuse1|hpu)_(runtime|driver)")
_LAUNCHES = re.compile(r"(?i)launch|memcpy|memset")
_WAITS = re.compile(r"(?i)synchronize")
_BACKENDS = ("gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_INPUT = re.compile(r"(?i)^input$|dataloader|data_?fetch|next_?batch|load_?data|data loading")
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_TELL_NS = 1_000_000_000  # by how much a clock may be wrong without a word
_IN_ORDER = 0.2  # of the events may begin before the one in front of them: what begins last is often written first
_CLOCK_MARK = "fairmile.clock"  # ours, in traces that we recorded: other clocks tell its moment as well
# The standard library's arrays grow in place and take a list in half the time that numpy needs.
_COLUMNS = {
    "ts": "d", "dur": "d", "value": "d", "name": "i", "cat": "i", "pid": "i", "tid": "i", "correlation": "q",
    "bytes": "q",
}  # fmt: skip
_NOTHING = msgspec.Raw(b"[]")
_MOST_32 = (1 << 31) - 1


class _Args(msgspec.Struct, gc=False):
    correlation: int = -1
    bytes: int = -1
    name: str = ""
    sort_index: float = 0
    device: int = -1
    collective: str = msgspec.field(name="Collective name", default="")
    elements_in: int = msgspec.field(name="In msg nelems", default=-1)
    elements_out: int = msgspec.field(name="Out msg nelems", default=-1)
    dtype: str = ""
    group: str = msgspec.field(name="Process Group Name", default="")
    group_about: str = msgspec.field(name="Process Group Description", default="")
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    group_size: int = msgspec.field(name="Group size", default=-1)
    sequence: int = msgspec.field(name="Seq", default=-1)
    source: int = msgspec.field(name="Src Rank", default=-1)
    target: int = msgspec.field(name="Dst Rank", default=-1)
    in_use: float = msgspec.field(name="Total Allocated", default=-1.0)
    amount: int = msgspec.field(name="Bytes", default=-1)


class _RichArgs(_Args, gc=False):
    """With the inputs of an operator, which tell its work, and size and peer of collectives that ran on the host."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = msgspec.field(default_factory=_Args)


class _RichEvent(_Event, gc=False):
    args: _RichArgs = msgspec.field(default_factory=_RichArgs)


class _Role(IntEnum):
    """What more than its columns matters of an event, by its name."""

    NOTHING = 0
    HOSTED = 1  # a collective that a back end ran on the host
    ISSUED = 2  # the call that led to it
    OPERATOR = 3  # one whose work its inputs tell


class _Ids(dict[Any, int]):
    """Numbers things in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


def read(file: Path, *, inputs: bool = True) -> EventTable:
    """Return the events of one rank; what is broken in the file is told in the notes of the table.

    Without `inputs`, those of operators are passed over where nothing else needs them, in a tenth less time.
    """
    lean, rich = typed_decoder(_Event), typed_decoder(_RichEvent)

    def decode(text: bytes) -> list[_Event]:
        return lean(text) if not inputs and _is_nccl(events.head) else list(rich(text))

    events = Events[_Event](file, decode, _mended)
    trace = _Trace(file)
    for batch in events:
        trace.take(batch)
    return trace.table(events.head, events.notes)


def _is_nccl(head: dict[str, Any]) -> bool:
    return _dict(head.get("distributedInfo")).get("backend") == "nccl"


_AS: dict[Any, Callable[[Any], Any]] = {
    int: whole,
    str: str,
    msgspec.Raw: lambda given: msgspec.Raw(msgspec.json.encode(given)),
}


def _mended(value: Any) -> _Event | None:
    """Return an event whose fields have other types than they should, None where it is no event."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("args")
    args = dict(arguments) if isinstance(arguments, dict) else {}
    for field in msgspec.structs.fields(_RichArgs):
        if field.encode_name in args:
            args[field.encode_name] = _AS.get(field.type, lambda given: given)(args[field.encode_name])
    try:
        return msgspec.convert({**value, "args": args}, _RichEvent, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


class _Trace:
    """Collects the columns of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names, self._cats, self._pids, self._tids = _Ids(), _Ids(), _Ids(), _Ids()
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self._rows = 0
        self._labels: dict[tuple[Any, Any], str] = {}
        self._talks: list[tuple[int, _Args]] = []  # device collectives: row and what is known of each
        self._hosted: list[tuple[int, str, int]] = []  # collectives of back ends on the host: row, type, bytes
        self._issued: list[tuple[int, list[Any]]] = []  # the calls that led to them: row, arguments
        self._operators: list[int] = []  # rows of operators whose inputs are kept, and what these are
        self._inputs: list[str] = []
        self._texts: dict[bytes, str] = {}
        self._roles = np.zeros(0, np.int8)  # by name

    def take(self, batch: Sequence[_Event]) -> None:
        """Add the events of one piece."""
        kept = [each for each in batch if (phase := each.ph) == "X" or phase == "i" or phase == "I"]
        if len(kept) != len(batch):
            for each in batch:
                if each.ph == "M" and each.name == "thread_name":
                    self._labels[each.pid, each.tid] = each.args.name
        if not kept:
            return
        names, cats, pids, tids = self._names, self._cats, self._pids, self._tids
        args = [each.args for each in kept]
        columns = self._columns
        columns["ts"].fromlist([each.ts for each in kept])
        columns["dur"].fromlist([each.dur for each in kept])
        columns["name"].fromlist([names[each.name] for each in kept])
        columns["cat"].fromlist([cats[each.cat] for each in kept])
        columns["pid"].fromlist([pids[each.pid] for each in kept])
        columns["tid"].fromlist([tids[each.tid] for each in kept])
        columns["value"].fromlist([each.in_use for each in args])
        _extend(columns["correlation"], [each.correlation for each in args])
        _extend(columns["bytes"], [each.bytes if each.in_use < 0 else each.amount for each in args])
        row = self._rows
        with_collective = [place for place, each in enumerate(args) if each.collective]
        self._talks += [(row + place, args[place]) for place in with_collective if kept[place].cat in _DEVICE]
        if isinstance(kept[0], _RichEvent):
            self._take_special(kept, row)
        self._rows += len(kept)

    def _take_special(self, kept: Sequence[_Event], row: int) -> None:
        """Keep what columns cannot hold; names tell of which events, so that the many others cost nothing."""
        if len(self._names) > len(self._roles):
            new = [_role(name) for name in islice(self._names, len(self._roles), None)]
            self._roles = np.concatenate((self._roles, np.array(new, np.int8)))
        roles = self._roles[np.frombuffer(self._columns["name"], np.int32)[row:]]
        places = np.flatnonzero(roles)
        for place, role in zip(places.tolist(), roles[places].tolist(), strict=True):
            args = kept[place].args
            if not isinstance(args, _RichArgs):
                continue
            if role == _Role.OPERATOR:
                if args.dims is not _NOTHING and kept[place].cat == "cpu_op":
                    self._operators.append(row + place)
                    self._inputs.append(self._text(b"[%b,%b,%b]" % (args.dims, args.types, args.inputs)))
            elif role == _Role.HOSTED:
                self._hosted.append((row + place, *_tensors(args)))
            else:
                self._issued.append((row + place, _list(args.inputs)))

    def _text(self, given: bytes) -> str:
        """Return the same text for the same inputs: calls are many, shapes are few."""
        text = self._texts.get(given)
        if text is None:
            text = self._texts[given] = given.decode("utf-8", "replace")
        return text

    def table(self, head: dict[str, Any], notes: list[str]) -> EventTable:
        """Return the table of what was collected."""
        if not self._rows:
            raise Integrity(f"{self._file} has no events of a PyTorch profile", hint="; ".join(notes) or None)
        about = _Head(head, self._file)
        names = list(self._names)
        name, cat = self._column("name"), self._column("cat")
        columns, order = self._times(name, cat, about, notes)
        name, cat = name[order], cat[order]
        kind = self._kinds(name, cat)
        pid = self._column("pid")[order]
        places, lane = np.unique(pid.astype(np.int64) << 32 | self._column("tid")[order], return_inverse=True)
        matches = (_STEP.match(each) for each in names)
        steps = np.array([within(each[1], 0, _MOST_32) if each else -1 for each in matches], np.int32)
        columns |= {"name": name, "kind": kind, "lane": lane.astype(np.int32), "bytes": self._column("bytes")[order]}
        columns["rank"] = np.full(len(order), about.rank, np.int32)
        columns["step"] = np.where(kind == EventKind.PHASE, steps[name], np.int32(-1))
        columns["correlation"] = self._column("correlation")[order]
        columns["correlation"][columns["correlation"] <= 0] = -1
        columns["value"] = self._column("value")[order]
        columns["value"][columns["value"] < 0] = np.nan
        table = EventTable.of(
            columns,
            names=names,
            lanes=self._lane_list(places, lane, cat, about),
            components=[about.component],
            processes=[replace(about.process, pid=self._main_pid(pid, kind))],
            notes=notes,
        )
        place = np.full(self._rows, -1, np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        self._add_collectives(table, about, place)
        if self._operators:
            rows = place[self._operators]
            order = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
            table.attributes["inputs"] = Attribute(rows[order], objects(self._inputs)[order])
        return table.with_steps()

    def _column(self, name: str) -> Array:
        """Return a column and forget it: the memory of a large trace is that of its columns."""
        return np.frombuffer(self._columns.pop(name), _COLUMNS[name])

    def _times(self, name: Array, cat: Array, about: _Head, notes: list[str]) -> tuple[dict[str, Array], Array]:
        """Return when events began and ended, and the rows that are kept in the order of time, outer ones first."""
        stamps, length = self._column("ts"), _nanoseconds(self._column("dur"))
        timeless = ~(np.abs(stamps) < MOST_US)
        start = _nanoseconds(stamps)
        start += about.base_ns
        moved = about.clock_offset_ns(self._names, name, start, length)
        start += moved
        if abs(moved) >= _TELL_NS:
            far = f"{format_duration(abs(moved) / 1e9)} {'behind' if moved > 0 else 'ahead of'}"
            notes.append(f"{self._file.name}: the profiler's clock was {far} wall-clock time: corrected")
        if negative := int(np.count_nonzero(length < 0)):
            notes.append(f"{self._file.name}: {negative} events end before they start; their duration is set to 0")
            np.maximum(length, 0, out=length)
        left = np.array([each in _LEFT_OUT for each in self._cats], bool)[cat]
        left |= np.array([each.startswith(_CLOCK_MARK) for each in self._names], bool)[name]
        if timeless.any():
            notes.append(f"{self._file.name}: skipped {timeless.sum()} events with an invalid time")
            left |= timeless
        kept = np.flatnonzero(~left)
        if self._is_shuffled(start[kept], kept):
            notes.append(f"{self._file.name}: sorted its events, which were out of order")
        order = kept[np.lexsort((-length[kept], start[kept]))]
        start = start[order]
        return {"start_ns": start, "end_ns": start + length[order]}, order

    def _is_shuffled(self, start: Array, kept: Array) -> bool:
        """Tell whether events of one thread or stream do not follow each other; those of several may be mixed."""
        if np.count_nonzero(np.diff(start) < 0) <= _IN_ORDER * len(start):
            return False
        pid, tid = (np.frombuffer(self._columns[each], np.int32) for each in ("pid", "tid"))
        lane = pid[kept].astype(np.int64) << 32 | tid[kept]
        order = np.argsort(lane, kind="stable")
        back = (np.diff(start[order]) < 0) & (np.diff(lane[order]) == 0)
        return bool(np.count_nonzero(back) > _IN_ORDER * len(start))

    def _main_pid(self, pid: Array, kind: Array) -> int:
        """Return the process that ran most operators."""
        rows = pid[(kind == EventKind.REGION) | (kind == EventKind.PHASE)]
        return whole(list(self._pids)[int(np.bincount(rows).argmax())]) if len(rows) else -1

    def _kinds(self, name: Array, cat: Array) -> Array:
        """Return the kind of each row, decided once for each pair of category and name."""
        names, cats = list(self._names), list(self._cats)
        pairs, inverse = np.unique(cat.astype(np.int64) << 32 | name, return_inverse=True)
        on_host = any(each.startswith(_BACKENDS) for each in names)
        calls_only = not on_host and not any(each in ("kernel", "collective_comm") for each in cats)
        kinds = [_kind(cats[pair >> 32], names[pair & 0xFFFFFFFF], calls_only) for pair in pairs.tolist()]
        return np.array(kinds, np.int8)[inverse]

    def _lane_list(self, places: Array, lane: Array, cat: Array, about: _Head) -> list[Lane]:
        device_cats = np.array([each in _DEVICE for each in self._cats], bool)
        on_device = np.bincount(lane, device_cats[cat], len(places)) > 0
        pids, tids = list(self._pids), list(self._tids)
        lanes = []
        for place, is_device in zip(places.tolist(), on_device.tolist(), strict=True):
            pid, tid = pids[place >> 32], tids[place & 0xFFFFFFFF]
            label = self._labels.get((pid, tid), "").strip() or f"{'stream' if is_device else 'thread'} {tid}"
            device = whole(pid) if is_device else -1
            lanes.append(Lane(about.rank, label, is_device, about.component, whole(tid, 0), device))
        return lanes

    def _add_collectives(self, table: EventTable, about: _Head, place: Array) -> None:
        if about.backend == "nccl":  # the kernels are the collectives
            self._hosted, self._issued = [], []
        talks = [(int(place[row]), args) for row, args in self._talks if place[row] >= 0]
        self._hosted = [(int(place[row]), dtype, size) for row, dtype, size in self._hosted if place[row] >= 0]
        self._issued = [(int(place[row]), inputs) for row, inputs in self._issued if place[row] >= 0]
        dtypes: dict[int, str] = {}
        peers: dict[int, int] = {}
        calls: dict[int, str] = {}
        for row, args in talks:
            table.group[row] = about.group(args)
            table.sequence[row] = within(args.sequence, 0, _MOST_32)
            elements = max(args.elements_in, args.elements_out)
            each_bytes = bytes_of_type(args.dtype)
            if elements >= 0 and each_bytes:
                table.bytes[row] = within(elements * each_bytes, 0, MOST)
            dtypes[row], calls[row] = args.dtype, args.collective
            is_message = args.collective.lower().strip("_") in ("send", "recv", "isend", "irecv")
            table.kind[row] = EventKind.P2P if is_message else EventKind.COLLECTIVE
            if is_message:
                peers[row] = args.target if "send" in args.collective.lower() else args.source
        self._add_hosted(table, about, dtypes, peers)
        for name, values in (("dtype", dtypes), ("peer", peers), ("operator", calls)):
            if values:
                rows = np.array(sorted(values), np.int32)
                table.attributes[name] = Attribute(rows, objects([values[row] for row in rows.tolist()]))
        table.groups.extend(about.groups)

    def _add_hosted(self, table: EventTable, about: _Head, dtypes: dict[int, str], peers: dict[int, int]) -> None:
        """Set size, group, number and peer of collectives that ran on the host."""
        if not self._hosted:
            return
        if len(about.groups) > 1:
            table.notes.append(
                f"{self._file.name}: the program has {len(about.groups)} groups, but its back end does not record "
                "the group of a collective; all are assigned to the first"
            )
        for row, dtype, size in self._hosted:
            call = table.name_of(row).partition(":")[2].strip("_")
            gathers = call.startswith(("all_gather", "allgather")) and about.world > 0
            table.bytes[row] = within(size * about.world if gathers and size >= 0 else size, 0, MOST)
            table.group[row] = 0 if about.groups else -1
            dtypes[row] = dtype
        self._number_hosted(table, peers)

    def _number_hosted(self, table: EventTable, peers: dict[int, int]) -> None:
        """Number collectives as they were issued: threads of the back end may start them in another order."""
        issued = sorted(self._issued, key=lambda each: int(table.start_ns[each[0]]))
        ran = sorted((row for row, _, _ in self._hosted), key=lambda row: int(table.start_ns[row]))
        by_call: dict[str, list[tuple[int, list[Any]]]] = {}
        for number, (row, inputs) in enumerate(issued):
            by_call.setdefault(_call(table.name_of(row)), []).append((number, inputs))
        counts = Counter(_call(table.name_of(row)) for row in ran)
        is_whole = all(len(by_call.get(call, ())) == count for call, count in counts.items())
        seen: Counter[str] = Counter()
        order: dict[int, int] = {}
        for place, row in enumerate(ran):
            call = _call(table.name_of(row))
            order[row], inputs = by_call[call][seen[call]] if is_whole else (place, [])
            seen[call] += 1
            numbers = [whole(each) for each in inputs if isinstance(each, str) and each.lstrip("-").isdigit()]
            if table.kind[row] == EventKind.P2P and numbers:
                peers[row] = numbers[0]
        collectives = [row for row in ran if table.kind[row] == EventKind.COLLECTIVE]
        for number, row in enumerate(sorted(collectives, key=order.__getitem__)):
            table.sequence[row] = number


class _Head:
    """What the head of a trace tells of the rank and its groups."""

    def __init__(self, head: dict[str, Any], file: Path) -> None:
        spread, ours = _dict(head.get("distributedInfo")), _dict(head.get("fairmile"))
        named = rank_in(file.name)
        self.rank = within(spread.get("rank", ours.get("rank")), 0, MOST_RANKS - 1, 0 if named is None else named)
        self.world = within(spread.get("world_size", ours.get("world")), 1, MOST_RANKS)
        self.component = str(ours.get("component") or "")
        self._clocks = _dicts(ours.get("clocks"))
        self.base_ns = within(head.get("baseTimeNanoseconds"), 0, MOST, 0)
        self.backend = str(spread.get("backend", ""))
        self.groups: list[RankGroup] = []
        self._numbers: dict[tuple[str, Any], int] = {}
        self._known: dict[str, RankGroup] = {}
        for each in _dicts(spread.get("pg_config")):
            ranks = tuple(rank for rank in each.get("ranks") or () if isinstance(rank, int))
            size = whole(each.get("pg_size"), len(ranks))
            group = RankGroup(str(each.get("pg_name", "")), ranks, _backend(each, self.backend), size)
            self._known[group.name] = group
            self.groups.append(group)
        if not self.groups and self.world > 0:
            self.groups.append(RankGroup("0", tuple(range(self.world)), self.backend, self.world))
            self._known["0"] = self.groups[0]
        devices = [str(each.get("name", "")) for each in _dicts(head.get("deviceProperties"))]
        since_epoch = "baseTimeNanoseconds" in head
        self.process = Process(
            self.rank, self.component, str(file), "kineto", str(ours.get("host") or head.get("host_name", "")),
            boot=str(ours.get("boot") or ""), world=self.world,
            device=devices[min(self.rank, len(devices) - 1)] if devices else "", since_epoch=since_epoch,
        )  # fmt: skip

    def clock_offset_ns(self, names: Mapping[str, int], name: Array, start: Array, length: Array) -> int:
        """Return how far the profiler's clock lies behind the clock on the wall by the marks that tell both."""
        apart = []
        for clock in self._clocks:
            rows = np.flatnonzero(name == names.get(str(clock.get("name")), -1))
            if len(rows) == 1 and within(clock.get("wall_ns"), 0, MOST, 0) > 0:
                apart.append(whole(clock["wall_ns"]) - int(start[rows[0]] + length[rows[0]] // 2))
        return round(statistics.median(apart)) if apart else 0

    def group(self, args: _Args) -> int:
        """Return the number of the group that a collective names."""
        key = (args.group, args.group_ranks if isinstance(args.group_ranks, str) else str(args.group_ranks))
        if key not in self._numbers:
            known = self._known.get(args.group)
            if known is None:
                ranks = listed_ranks(args.group_ranks, args.group_size)
                known = RankGroup(args.group, ranks, self.backend, args.group_size)
                self.groups.append(known)
            self._numbers[key] = self.groups.index(known)
        return self._numbers[key]


def _kind(cat: str, name: str, calls_only: bool) -> EventKind:
    if cat == "kernel" and name.startswith("nccl"):
        return EventKind.P2P if "SendRecv" in name else EventKind.COLLECTIVE
    if cat in _KINDS:
        return _KINDS[cat]
    if cat == "cpu_op":
        return EventKind.COLLECTIVE if calls_only and name.startswith("c10d::") else EventKind.REGION
    if _RUNTIME.match(cat):
        return (
            EventKind.SYNC if _WAITS.search(name) else EventKind.LAUNCH if _LAUNCHES.search(name) else EventKind.REGION
        )
    if name == "[memory]":
        return EventKind.MEMORY
    if cat == "user_annotation":
        return _kind_of_annotation(name)
    if cat in ("cpu_instant_event", ""):
        return EventKind.MARKER
    return EventKind.REGION


def _kind_of_annotation(name: str) -> EventKind:
    if _STEP.match(name):
        return EventKind.PHASE
    if name.startswith(_BACKENDS):
        call = name.partition(":")[2]
        return EventKind.P2P if call.lstrip("i").startswith(("send", "recv")) else EventKind.COLLECTIVE
    if name.startswith("nccl:"):
        return EventKind.LAUNCH
    return EventKind.IO if _INPUT.search(name) else EventKind.REGION


def _role(name: str) -> _Role:
    if name.startswith("aten::"):
        return _Role.OPERATOR if is_counted(name) else _Role.NOTHING
    if name.startswith(_BACKENDS):
        return _Role.HOSTED
    return _Role.ISSUED if name.startswith("c10d::") else _Role.NOTHING


def _call(name: str) -> str:
    """Return a collective's name so that the call and what it led to have the same one."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^\w+::?", "", name).lower())


def _tensors(args: _RichArgs) -> tuple[str, int]:
    """Return the type of the tensors among the inputs of a call and their bytes, -1 where it does not tell."""
    types = [each for each in _list(args.types) if isinstance(each, str)]
    dtype = next((each for each in types if each and each not in ("Scalar", "ScalarList", "TensorList")), "")
    size, dims = bytes_of_type(dtype), _list(args.dims)
    return dtype, size * sum(elements(each) for each in dims if each) if size and dims else -1


def _list(text: msgspec.Raw) -> list[Any]:
    try:
        value = msgspec.json.decode(text)
    except ValueError:  # what is passed over unread may be broken
        return []
    return value if isinstance(value, list) else []


def _backend(config: dict[str, Any], default: str) -> str:
    text = str(config.get("backend_config", "")) or default
    return "nccl" if "nccl" in text else text.partition(":")[2].partition(",")[0] or text


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _extend(column: array[int], values: list[int]) -> None:
    try:
        column.fromlist(values)
    except OverflowError:
        column.fromlist([value if -(1 << 62) < value < 1 << 62 else -1 for value in values])


def _nanoseconds(microseconds: Array) -> Array:
    """Return whole nanoseconds; the part behind the point apart, since a float has no room for both."""
    microseconds[~(np.abs(microseconds) < MOST_US)] = 0.0
    before: Array = np.floor(microseconds)
    microseconds -= before
    microseconds *= 1000
    nanoseconds = before.astype(np.int64)
    nanoseconds *= 1000
    nanoseconds += np.rint(microseconds, out=microseconds).astype(np.int64)
    return nanoseconds
