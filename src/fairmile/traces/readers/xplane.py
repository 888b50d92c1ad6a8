"""Reads profiles of TensorFlow and JAX (`*.xplane.pb`) without either: a small decoder of their protocol buffers.

A profile is of one process: a plane for its threads and one for each device, with a line for each thread or stream.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from fairmile.base.errors import Integrity
from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.readers.naming import kind_of_name, rank_in, step_of_name
from fairmile.traces.readers.opening import BROKEN, open_trace

_DEVICE = re.compile(r"^/device:(?:GPU|TPU|ROCM|CUSTOM)[^:]*:(\d+)")
_STREAM = re.compile(r"(?i)^stream")
_COPY, _SET = re.compile(r"(?i)^memcpy|^copy-(?:start|done)"), re.compile(r"(?i)^memset")
_TALK = re.compile(r"(?i)^(?:nccl|rccl)|^(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)")
_INPUT = re.compile(r"^Iterator|IteratorGetNext|DataLoader|infeed", re.IGNORECASE)
_LAUNCH = re.compile(r"^(?:cu|cuda|hip)\w*Launch|^(?:cu|cuda|hip)Memcpy\w*Async")
# A call of a TensorFlow function waits for the threads that run its operators.
_WAIT = re.compile(
    r"^(?:cu|cuda|hip)\w*Synchronize|BlockHostUntil|BlockUntilReady|^KernelAndDeviceFunc::Run|^FunctionRun$"
)
# Threads of tf.data that prepare input; what waits for them has another name, which does not match.
_PREPARES = re.compile(r"^tf_data_(?!iterator_get_next)")
_STEP_STAT = "step_num"
_SIZE_STAT = "bytes_transferred"
_MOST_NS = 1 << 62

Message = dict[int, list[int | bytes]]


@dataclass
class _Plane:
    name: str = ""
    lines: list[bytes] = field(default_factory=list)
    events: dict[int, str] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)


def read(file: Path) -> EventTable:
    """Return the events of one process."""
    with open_trace(file) as stream:
        try:
            data = stream.read()
        except BROKEN as error:
            raise Integrity(f"{file} is truncated", hint="copy it again") from error
    rows, notes = Rows(), list[str]()
    rank, devices = rank_in(file.name) or 0, list[str]()
    host = file.name.removesuffix(".gz").removesuffix(".xplane.pb")
    for number, value in _fields(data, notes, file.name):
        if number == 1 and isinstance(value, bytes):
            plane = _plane(value, notes, file.name)
            device = _DEVICE.match(plane.name)
            if device is not None:
                devices.append(plane.name)
                _add_device(rows, plane, rank, int(device[1]), notes, file.name)
            elif plane.name.startswith("/host:CPU"):
                _add_host(rows, plane, rank, notes, file.name)
    if not len(rows):
        raise Integrity(f"{file} has no events of threads or devices", hint="; ".join(notes) or None)
    process = Process(rank, file=str(file), format="xplane", host=host, device=", ".join(devices))
    return rows.table([process], list(dict.fromkeys(notes))).sorted().with_steps()


def _fields(data: bytes, notes: list[str], name: str) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; what is truncated ends it with a note."""
    at, end = 0, len(data)
    try:
        while at < end:
            key, at = _varint(data, at)
            kind = key & 7
            value: int | bytes
            if kind == 0:
                value, at = _varint(data, at)
            elif kind == 2:
                size, at = _varint(data, at)
                if at + size > end:
                    raise IndexError
                value, at = data[at : at + size], at + size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                (value,) = struct.unpack_from("<Q" if kind == 1 else "<I", data, at)
                at += size
            else:
                raise IndexError
            yield key >> 3, value
    except (IndexError, struct.error):
        notes.append(f"{name} is truncated or damaged: what follows was skipped")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _message(data: bytes, notes: list[str], name: str) -> Message:
    message: Message = {}
    for number, value in _fields(data, notes, name):
        message.setdefault(number, []).append(value)
    return message


def _whole(message: Message, number: int) -> int:
    """Return a number, with the sign of 64 bits and within what the table holds."""
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        return 0
    signed = value - (1 << 64) if value >= 1 << 63 else value
    return max(-_MOST_NS, min(signed, _MOST_NS))


def _identifier(message: Message, number: int) -> int:
    """Return an id as a signed number of 64 bits; it only has to be unique."""
    value = message.get(number, [0])[-1]
    if not isinstance(value, int):
        return 0
    wrapped = value & (1 << 64) - 1
    return wrapped - (1 << 64) if wrapped >= 1 << 63 else wrapped


def _text(message: Message, *numbers: int) -> str:
    """Return the first of several texts that is not empty."""
    for number in numbers:
        value = message.get(number, [b""])[-1]
        if isinstance(value, bytes) and value:
            return value.decode("utf-8", "replace")
    return ""


def _plane(data: bytes, notes: list[str], name: str) -> _Plane:
    plane = _Plane()
    for number, value in _fields(data, notes, name):
        if not isinstance(value, bytes):
            continue
        if number == 2:
            plane.name = value.decode("utf-8", "replace")
        elif number == 3:
            plane.lines.append(value)
        elif number in (4, 5):  # entries of maps: a number and what it stands for
            entry = _message(value, notes, name)
            meaning = entry.get(2, [b""])[-1]
            if isinstance(meaning, bytes):
                described = _message(meaning, notes, name)
                names = plane.events if number == 4 else plane.stats
                names[_whole(entry, 1)] = _text(described, 4, 2) if number == 4 else _text(described, 2)
    return plane


@dataclass(frozen=True)
class _Event:
    name: str
    start_ns: int
    end_ns: int
    stats: dict[str, int]


def _events(plane: _Plane, line: Message, notes: list[str], name: str) -> Iterator[_Event]:
    begin = _whole(line, 3)
    for data in line.get(4, ()):
        if not isinstance(data, bytes):
            continue
        event = _message(data, notes, name)
        stats: dict[str, int] = {}
        for stat in event.get(4, ()):
            if isinstance(stat, bytes):
                told = _message(stat, notes, name)
                stats[plane.stats.get(_whole(told, 1), "")] = _whole(told, 4) or _whole(told, 3)
        start = begin + _whole(event, 2) // 1000
        length = max(0, _whole(event, 3)) // 1000
        yield _Event(plane.events.get(_whole(event, 1), "unknown"), start, start + length, stats)


def _add_host(rows: Rows, plane: _Plane, rank: int, notes: list[str], name: str) -> None:
    for data in plane.lines:
        line = _message(data, notes, name)
        number = _identifier(line, 1)
        lane = Lane(rank, _text(line, 11, 2) or f"thread {number}", number=number)
        for event in _events(plane, line, notes, name):
            kind = EventKind.IO if _PREPARES.match(lane.label) else _kind_on_host(event)
            stated = event.stats.get(_STEP_STAT, step_of_name(event.name)) if kind == EventKind.PHASE else -1
            step = stated if -1 <= stated < 1 << 31 else -1
            rows.add(kind, event.name, event.start_ns, event.end_ns, lane, step=step)


def _kind_on_host(event: _Event) -> EventKind:
    if _STEP_STAT in event.stats:
        return EventKind.PHASE
    for pattern, kind in ((_INPUT, EventKind.IO), (_LAUNCH, EventKind.LAUNCH), (_WAIT, EventKind.SYNC)):
        if pattern.search(event.name):
            return kind
    return kind_of_name(event.name)


def _add_device(rows: Rows, plane: _Plane, rank: int, number: int, notes: list[str], name: str) -> None:
    """Add streams; where a device has none (TPU), its operators. Other lines say the same by other names."""
    lines = [_message(data, notes, name) for data in plane.lines]
    streams = [line for line in lines if _STREAM.match(_text(line, 11, 2))]
    for line in streams or [line for line in lines if _text(line, 11, 2) == "XLA Ops"]:
        label = f"{_text(line, 11, 2)} of device {number}"
        lane = Lane(rank, label, True, number=_identifier(line, 1), device=number)
        for event in _events(plane, line, notes, name):
            kind, group = EventKind.KERNEL, None
            if _TALK.search(event.name):
                kind, group = EventKind.COLLECTIVE, RankGroup("devices", backend="xla")
            elif _COPY.search(event.name):
                kind = EventKind.MEMCPY
            elif _SET.search(event.name):
                kind = EventKind.MEMSET
            size = event.stats.get(_SIZE_STAT, -1)
            rows.add(kind, event.name, event.start_ns, event.end_ns, lane, group=group, bytes=size)
