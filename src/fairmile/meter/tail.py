"""Follows the log of a run while it is written: the values of metrics as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.meter.lines import event_files

_LONGEST_REST = 64 << 20


class Value(NamedTuple):
    """One value of a metric; the step is the program's, or None."""

    name: str
    value: float
    step: float | None


class Tail:
    """Reads what has been added to the log in a folder since the last time; a line that is not whole yet waits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._rest: dict[Path, bytes] = {}

    def new(self) -> Iterator[Value]:
        """Yield the values that have come."""
        for file in event_files(self._folder):
            try:
                with open(file, "rb") as log:
                    log.seek(self._read.get(file, 0))
                    data = log.read()
            except OSError:  # it vanished, or is not there yet
                continue
            if not data:
                continue
            self._read[file] = self._read.get(file, 0) + len(data)
            *lines, rest = (self._rest.get(file, b"") + data).split(b"\n")
            self._rest[file] = rest if len(rest) < _LONGEST_REST else b""
            for line in lines:
                if b'"log"' in line:
                    yield from _values(line)


def _values(line: bytes) -> Iterator[Value]:
    try:
        entry: Any = json.loads(line)
        logged, step = entry["log"], entry.get("step")
        for name, value in logged.items():
            yield Value(name, float(value), None if step is None else float(step))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):  # a damaged line
        return
