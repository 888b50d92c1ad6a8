"""Reads Horovod's timeline, which rank 0 writes: for each tensor when every rank was ready, and the phases of its way.

A collective becomes one COLLECTIVE row for each rank, from the tick at which that rank was ready to the end that all
share: who came late is seen without a trace of the others. Its attribute `moves` is when data really moved, the phase
of NCCL, MPI or another library: what lies before is Horovod's queue, waiting for data, or copies.

Phases are rows of the rank that wrote the file. Horovod's own thread negotiates and waits (SYNC rows) and copies
(MEMCPY rows). What moves data, and the operation around it, are named ranges in a lane of a device: the time is that of
the COLLECTIVE row. None is work of the program, which the timeline does not tell of.
"""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path

from fairmile.base.errors import Integrity
from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.events import MOST_RANKS, EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.readers.chrome import ChromeEvent, is_timed, mended
from fairmile.traces.readers.naming import bytes_of_type, elements, listed_ranks, rank_in
from fairmile.traces.readers.scan import Events, typed_decoder

_NEGOTIATES = "NEGOTIATE_"
_COPIES = ("MEMCPY_", "COPY_")
_MOVES = re.compile(r"(?:NCCL|MPI|GLOO|CCL|ONECCL|DDL|UCC|ADASUM|RCCL|MLSL)_")
_WAITS = re.compile(r"(?:NEGOTIATE_|QUEUE$|WAIT_|INIT_|ALLOCATE_|COMPRESS|DECOMPRESS)")
_BEFORE = re.compile(r"(?:NEGOTIATE_|QUEUE$|WAIT_|INIT_|ALLOCATE_|COMPRESS|MEMCPY_IN_)")
_AFTER = re.compile(r"(?:MEMCPY_OUT_|COPY_|DECOMPRESS)")


@dataclass
class _Tensor:
    name: str
    open: list[tuple[str, int]] = field(default_factory=list)  # phases that have begun
    phases: list[tuple[str, int, int]] = field(default_factory=list)  # those that have ended of the operation
    ready_ns: dict[int, int] = field(default_factory=dict)
    operation: str = ""


@dataclass(frozen=True)
class _Call:
    operation: str
    end_ns: int
    ready_ns: dict[int, int]
    bytes: int
    tensor: str
    moves_ns: tuple[int, int]


def read(file: Path) -> EventTable:
    """Return the collectives of all ranks as the timeline of one rank tells them."""
    events = Events[ChromeEvent](file, typed_decoder(ChromeEvent), mended)
    reading = _Reading(file)
    for batch in events:
        for each in batch:
            reading.take(each)
    return reading.table(events.notes)


class _Reading:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._rank = rank_in(file.name) or 0
        self._rows = Rows()
        self._tensors: dict[object, _Tensor] = {}
        self._calls: list[_Call] = []
        self._unopened = 0

    def take(self, event: ChromeEvent) -> None:
        if not is_timed(event):
            self._unopened += 1
            return
        at = round(event.ts * 1000)
        tensor = self._tensors.setdefault(event.pid, _Tensor(f"tensor {event.pid}"))
        if event.ph == "M":
            if event.name == "process_name":
                tensor.name = str(event.args.get("name", tensor.name))
        elif event.ph == "B":
            if event.name.startswith(_NEGOTIATES):
                tensor.ready_ns, tensor.phases = {}, []
                tensor.operation = event.name.removeprefix(_NEGOTIATES).lower()
            tensor.open.append((event.name, at))
        elif event.ph == "X" and re.fullmatch(r"\d{1,9}", event.name) and int(event.name) < MOST_RANKS:
            tensor.ready_ns.setdefault(int(event.name), at)
        elif event.ph == "E":
            self._end(tensor, at, event)
        elif event.ph in ("i", "I"):
            self._rows.add(EventKind.MARKER, event.name, at, at, Lane(self._rank, "cycles"))

    def _end(self, tensor: _Tensor, at: int, event: ChromeEvent) -> None:
        if not tensor.open:
            self._unopened += 1
            return
        name, start = tensor.open.pop()
        kind = (
            EventKind.MEMCPY if name.startswith(_COPIES) else EventKind.SYNC if _WAITS.match(name) else EventKind.REGION
        )
        self._rows.add(kind, name, start, at, Lane(self._rank, tensor.name, on_device=kind == EventKind.REGION))
        is_whole = not tensor.open and not name.startswith(_NEGOTIATES)
        if not is_whole:
            tensor.phases.append((name, start, at))
        elif tensor.operation and name.lower() == tensor.operation:
            size = bytes_of_type(str(event.args.get("dtype", ""))) * elements(
                list(listed_ranks(event.args.get("shape", "")))
            )
            ready = tensor.ready_ns or {self._rank: start}
            moves = _moves_ns(tensor.phases, start, at)
            self._calls.append(_Call(tensor.operation, at, ready, size if size > 0 else -1, tensor.name, moves))
            tensor.ready_ns, tensor.operation, tensor.phases = {}, "", []

    def table(self, notes: list[str]) -> EventTable:
        if not len(self._rows):
            raise Integrity(f"{self._file} has no phases of a Horovod timeline", hint="; ".join(notes) or None)
        ranks = sorted({rank for call in self._calls for rank in call.ready_ns} | {self._rank})
        world = ranks[-1] + 1
        group = RankGroup("horovod", tuple(range(world)), "horovod", world)
        for sequence, call in enumerate(sorted(self._calls, key=lambda call: call.end_ns)):
            about = {"arrivals": dict(call.ready_ns), "key": call.tensor, "moves": call.moves_ns}
            for rank, at in call.ready_ns.items():
                self._rows.add(
                    EventKind.COLLECTIVE, call.operation, at, max(call.end_ns, at), Lane(rank, "collectives"),
                    group=group, sequence=sequence, bytes=call.bytes, with_=about,
                )  # fmt: skip
        if self._unopened:
            notes.append(f"{self._file.name}: skipped {self._unopened} phases that end without a start")
        if left := sum(len(tensor.open) for tensor in self._tensors.values()):
            notes.append(f"{self._file.name}: skipped {left} phases that never end")
        if world > 1:
            notes.append(
                f"{self._file.name} was recorded by rank {self._rank}: "
                "for other ranks it has only the time they were ready"
            )
        processes = [
            Process(rank, file=str(self._file), format="horovod", boot=str(self._file), world=world, since_epoch=False)
            for rank in ranks
        ]
        return self._rows.table(processes, notes).sorted()


def _moves_ns(phases: list[tuple[str, int, int]], start: int, end: int) -> tuple[int, int]:
    """Return when the data of an operation moved: the phases of the library, else all that is no known other phase."""
    moving = [(begin, until) for name, begin, until in phases if _MOVES.match(name)]
    if moving:
        return min(begin for begin, _ in moving), max(until for _, until in moving)
    before = [until for name, _, until in phases if _BEFORE.match(name)]
    after = [begin for name, begin, _ in phases if _AFTER.match(name) and begin >= start]
    began = max([start, *before])
    return began, max(began, min([end, *after]))
