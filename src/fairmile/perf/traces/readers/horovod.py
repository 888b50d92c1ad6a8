"""Reads Horovod's timeline, which rank 0 writes: for each tensor when every rank was ready, and the phases of its way.

A collective becomes one COLLECTIVE row for each rank, from the tick at which that rank was ready to the end that all
share: who came late is seen without a trace of the others. Phases are rows of the rank that wrote the file: Horovod's
own thread negotiates, waits for data and moves it, so they are SYNC rows, or MEMCPY rows where it copies, never work of
the program, which the timeline does not tell of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from fairmile.base.errors import Integrity
from fairmile.perf.traces.events import MOST_RANKS, EventTable, Group, Kind, Lane, Process, Rows
from fairmile.perf.traces.readers.chrome import ChromeEvent, is_timed, mended
from fairmile.perf.traces.readers.naming import bytes_of_type, elements, listed_ranks, rank_in
from fairmile.perf.traces.readers.scan import Events, typed_decoder

_NEGOTIATES = "NEGOTIATE_"
_COPIES = "MEMCPY_"


@dataclass
class _Tensor:
    name: str
    open: list[tuple[str, int]] = field(default_factory=list)  # phases that have begun
    ready_ns: dict[int, int] = field(default_factory=dict)
    operation: str = ""


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
        self._calls: list[tuple[str, int, dict[int, int], int, str]] = []  # operation, end, ready, bytes, tensor
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
                tensor.ready_ns = {}
                tensor.operation = event.name.removeprefix(_NEGOTIATES).lower()
            tensor.open.append((event.name, at))
        elif event.ph == "X" and re.fullmatch(r"\d{1,9}", event.name) and int(event.name) < MOST_RANKS:
            tensor.ready_ns.setdefault(int(event.name), at)
        elif event.ph == "E":
            self._end(tensor, at, event)
        elif event.ph in ("i", "I"):
            self._rows.add(Kind.MARKER, event.name, at, at, Lane(self._rank, "cycles"))

    def _end(self, tensor: _Tensor, at: int, event: ChromeEvent) -> None:
        if not tensor.open:
            self._unopened += 1
            return
        name, start = tensor.open.pop()
        kind = Kind.MEMCPY if name.startswith(_COPIES) else Kind.SYNC
        self._rows.add(kind, name, start, at, Lane(self._rank, tensor.name))
        is_whole = not tensor.open and not name.startswith(_NEGOTIATES)
        if is_whole and tensor.operation and name.lower() == tensor.operation:
            size = bytes_of_type(str(event.args.get("dtype", ""))) * elements(
                list(listed_ranks(event.args.get("shape", "")))
            )
            ready = tensor.ready_ns or {self._rank: start}
            self._calls.append((tensor.operation, at, ready, size if size > 0 else -1, tensor.name))
            tensor.ready_ns, tensor.operation = {}, ""

    def table(self, notes: list[str]) -> EventTable:
        if not len(self._rows):
            raise Integrity(f"{self._file} holds no phase of a Horovod timeline", hint="; ".join(notes) or None)
        ranks = sorted({rank for _, _, ready, _, _ in self._calls for rank in ready} | {self._rank})
        world = ranks[-1] + 1
        group = Group("horovod", tuple(range(world)), "horovod", world)
        for sequence, (operation, end, ready, size, tensor) in enumerate(sorted(self._calls, key=lambda call: call[1])):
            for rank, at in ready.items():
                self._rows.add(
                    Kind.COLLECTIVE, operation, at, max(end, at), Lane(rank, "collectives"),
                    group=group, sequence=sequence, bytes=size, with_={"arrivals": dict(ready), "key": tensor},
                )  # fmt: skip
        if self._unopened:
            notes.append(f"{self._file.name}: {self._unopened} phases end that never began; they are left out")
        if left := sum(len(tensor.open) for tensor in self._tensors.values()):
            notes.append(f"{self._file.name}: {left} phases begin and never end; they are left out")
        if world > 1:
            notes.append(
                f"{self._file.name} is what rank {self._rank} saw: of other ranks it tells only when they were ready"
            )
        about = [
            Process(rank, file=str(self._file), format="horovod", boot=str(self._file), world=world, since_epoch=False)
            for rank in ranks
        ]
        return self._rows.table(about, notes).sorted()
