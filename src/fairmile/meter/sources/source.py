"""What a source of measurements is, where it looks, and the files of the kernel that it keeps open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol, runtime_checkable

from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import Channel

_MOST_BYTES = 1 << 16


@runtime_checkable
class Source(Protocol):
    """Something that measures; made with a `Where`, it raises Unsupported with one sentence where it has nothing.

    A source whose readings cost much has an attribute `every_s`: between the first sample and the last it is read no
    more often than that.
    """

    name: str

    def channels(self) -> tuple[Channel, ...]:
        """Return what is measured; the same at every call."""
        ...

    def read(self) -> list[float | None]:
        """Return one value for each channel, None where its reading failed; never raise for a failed reading."""
        ...

    def close(self) -> None:
        """Let go of what is held; a second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Where:
    """What is to be measured: of which machine, of which process, of which devices (by index or UUID; none: all)."""

    root: Path = Path("/")
    pid: int | None = None
    devices: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def path(self, absolute: str) -> Path:
        """Return where a path of the machine lies."""
        return self.root / absolute.lstrip("/")


class KeptFile:
    """A small file of the kernel, opened once: each reading costs one system call."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, most_bytes: int = _MOST_BYTES) -> bytes:
        """Return what the file says now; raise OSError where it says nothing any more."""
        return os.pread(self._fd, most_bytes, 0)

    def read_all(self) -> bytes:
        """Return all that a long table says now: the kernel gives a page of it at a time."""
        content = b""
        while part := os.pread(self._fd, _MOST_BYTES, len(content)):
            content += part
        return content

    def number(self) -> float | None:
        """Return the number that the file begins with, None where it has none."""
        try:
            return float(os.pread(self._fd, 64, 0).split(None, 1)[0])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def kept(path: Path) -> KeptFile | None:
    """Return the file, None where it is not there or may not be read."""
    try:
        return KeptFile(path)
    except OSError:
        return None
