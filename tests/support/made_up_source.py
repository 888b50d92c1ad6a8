"""Sources that need no network: they have a file, or something else, or trouble."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fairmile.base.errors import FairmileError, Transient
from fairmile.transfer.remote import Remote

DATA = random.Random(3).randbytes((5 << 20) + 4321)
Trouble = Callable[[int], FairmileError | None]


@dataclass
class Source:
    """A place that has the file, or something else, or trouble.

    `trouble` gets the number of the request, from 1 on, and tells its error. `breaks_after` ends every body early,
    `silent` bodies wait until somebody interrupts them. `announced` is the size that is told beforehand.
    """

    data: bytes = DATA
    ranges: bool = True
    validator: str = '"v"'
    total: int | None = -1
    trouble: Trouble = lambda number: None
    breaks_after: int | None = None
    silent: Callable[[int], bool] = lambda number: False
    announced: int | None = -1
    unfindable: FairmileError | None = None
    looked: list[str] = field(default_factory=list)
    piece: int = 64 << 10
    asked: list[tuple[int, int | None]] = field(default_factory=list)
    sent: int = 0
    open_bodies: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def find(self, address: str) -> list[Remote]:
        with self._lock:
            self.looked.append(address)
        if self.unfindable is not None:
            raise self.unfindable
        size = len(self.data) if self.announced == -1 else self.announced
        return [Remote(address, address.rpartition("/")[2], size, validator=self.validator)]

    def open(self, remote: Remote, start: int, stop: int | None) -> SourceBody:
        with self._lock:
            self.asked.append((start, stop))
            number = len(self.asked)
        error = self.trouble(number)
        if error is not None:
            raise error
        with self._lock:
            self.open_bodies += 1
        return SourceBody(self, start, stop, number)


class SourceBody:
    def __init__(self, source: Source, start: int, stop: int | None, number: int) -> None:
        self._source = source
        self._data = source.data
        self.start = start if source.ranges else 0
        self.total_bytes = len(source.data) if source.total == -1 else source.total
        self.validator = source.validator
        self.is_whole = not source.ranges
        self._at = self.start
        self._stop = len(source.data) if stop is None or not source.ranges else min(stop, len(source.data))
        self._left = source.breaks_after
        self._interrupted = threading.Event()
        self._silent = source.silent(number)

    def readinto(self, buffer: memoryview) -> int:
        if self._silent:
            assert self._interrupted.wait(30), "nobody interrupts a body that is silent"
        if self._interrupted.is_set():
            raise Transient("interrupted")
        if self._left == 0:
            raise Transient("broken off")
        count = min(len(buffer), self._stop - self._at, self._source.piece, self._left or 1 << 60)
        buffer[:count] = self._data[self._at : self._at + count]
        self._at += count
        self._left = None if self._left is None else self._left - count
        with self._source._lock:
            self._source.sent += count
        return count

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        with self._source._lock:
            self._source.open_bodies -= 1


class Meeting:
    """Keeps the answers of sources back until each of them was asked."""

    def __init__(self, count: int = 2) -> None:
        self._missing = set(range(count))
        self._next = iter(range(count))
        self._all_here = threading.Event()

    def guest(self) -> Trouble:
        """Return the `trouble` for one of the sources."""
        own = next(self._next)

        def meet(number: int) -> None:
            self._missing.discard(own)
            if not self._missing:
                self._all_here.set()
            assert self._all_here.wait(20), "not every source was asked"

        return meet


@dataclass
class Folders:
    """A place that brings whole folders."""

    files: dict[str, bytes] = field(default_factory=dict)
    trouble: FairmileError | None = None
    found_before: list[list[str]] = field(default_factory=list)

    def find(self, address: str) -> list[Remote]:
        return [Remote(address, "")]

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        self.found_before.append(sorted(path.name for path in folder.rglob("*") if path.is_file()))
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
            on_bytes(len(data))
        if self.trouble is not None:
            raise self.trouble


class MadeUp:
    """Fetchers for addresses made-up://NAME/path, where NAME is that of a source; `?as=NAME` names another one."""

    def __init__(self, **sources: Source | Folders) -> None:
        self.sources = sources

    def of(self, address: str) -> Source | Folders:
        return self.sources[address.partition("?as=")[2] or address.split("/")[2]]

    def find(self, address: str) -> list[Remote]:
        return self.of(address).find(address)

    def ranged(self, address: str) -> Source | None:
        found = self.of(address)
        return found if isinstance(found, Source) else None

    def close(self) -> None:
        return None
