"""A program with all that it started, from /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fairmile.base.errors import Unsupported
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.meter.lines import Channel
from fairmile.meter.sources.source import KeptFile, Where, kept

_LOOK_S = 1.0
# A tree of hundreds takes longer to read: then less often, so that reading takes no more than this share of a core.
_DEAR_S = 0.002
_SHARE = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Status(NamedTuple):
    """The fields of /proc/PID/stat that matter here."""

    parent: int
    group: int
    session: int
    ticks: int
    threads: int
    pages: int


class _Member:
    """One process of the tree, with its open files."""

    __slots__ = ("io", "stat")

    def __init__(self, folder: Path) -> None:
        self.stat = KeptFile(folder / "stat")
        self.io = kept(folder / "io")  # that of another user may not be read

    def close(self) -> None:
        self.stat.close()
        if self.io is not None:
            self.io.close()


class ProcessTree:
    """Reads a process, its children and theirs; who is new is looked for once in `look_s`.

    A process belongs when its parent does, or when the leader of its session or group does: so does a child whose
    parent has ended. What a process used before it was waited for is within its parent's numbers. A tree that takes
    long to read is read less often; the values in between are those of the reading before.
    """

    name = "process"

    def __init__(self, where: Where, *, look_s: float = _LOOK_S) -> None:
        self.pid = where.pid or os.getpid()
        self._proc = where.path("/proc")
        self._look_s = look_s
        self._looked_at = float("-inf")
        self._ours = {self.pid}  # also those that have ended
        self._strangers: set[int] = set()
        self._members: dict[int, _Member] = {}
        self._highest = [0.0, 0.0, 0.0]
        self._values: list[float | None] = []
        self._rests_until = float("-inf")
        if not self._proc.is_dir():
            raise Unsupported("no /proc on this machine")
        if not self._take(self.pid):
            raise Unsupported(f"no process {self.pid} on this machine")
        self._channels = self._describe()

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        now = time.monotonic()
        if now < self._rests_until:
            return self._values
        if now - self._looked_at >= self._look_s:
            self._looked_at = now
            self._look()
        used_s = time.thread_time()
        self._values = self._sums()
        cost_s = time.thread_time() - used_s
        self._rests_until = now + cost_s / _SHARE if cost_s > _DEAR_S else now
        return self._values

    def close(self) -> None:
        while self._members:
            self._members.popitem()[1].close()

    def _sums(self) -> list[float | None]:
        ticks = pages = threads = read_bytes = written_bytes = 0
        io_seen = False
        for pid, member in list(self._members.items()):
            status = _status(member.stat)
            if status is None:
                self._members.pop(pid).close()
                continue
            ticks += status.ticks
            pages += status.pages
            threads += status.threads
            moved = _moved(member.io)
            if moved is not None:
                io_seen = True
                read_bytes += moved[0]
                written_bytes += moved[1]
        if not self._members:
            return [None] * len(self._channels)
        cpu_s = self._grown(0, ticks / _TICKS_PER_S)
        moved_bytes = (self._grown(1, float(read_bytes)), self._grown(2, float(written_bytes)))
        return [cpu_s, float(pages * _PAGE_BYTES), float(threads), *(moved_bytes if io_seen else (None, None))]

    def _describe(self) -> tuple[Channel, ...]:
        scope = f"process tree of {self.pid}"
        tick = f"clock ticks of {1000 / _TICKS_PER_S:g} ms"
        disk = "reads and writes that reached the disks, without the kernel's cache"
        return (
            Channel("process.cpu_time", "s", "counter", "procfs", scope, tick),
            Channel("process.memory", "bytes", "gauge", "procfs", scope, "shared memory counts for each process"),
            Channel("process.threads", "count", "gauge", "procfs", scope, "exact"),
            Channel("process.read", "bytes", "counter", "procfs", scope, disk),
            Channel("process.written", "bytes", "counter", "procfs", scope, disk),
        )

    def _grown(self, place: int, value: float) -> float:
        # Who ended without being waited for takes its numbers along: the counter then stands still, never falls.
        self._highest[place] = max(self._highest[place], value)
        return self._highest[place]

    def _take(self, pid: int) -> bool:
        try:
            self._members[pid] = _Member(self._proc / str(pid))
        except OSError:
            return False
        self._ours.add(pid)
        return True

    def _look(self) -> None:
        try:
            there = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        except OSError:
            return
        self._strangers &= there
        new = {pid: status for pid in there - self._strangers - self._members.keys() if (status := self._peek(pid))}
        # A child may be listed before its parent.
        while ours := [pid for pid, status in new.items() if not self._ours.isdisjoint(status[:3])]:
            for pid in ours:
                del new[pid]
                self._take(pid)
        self._strangers |= new.keys()

    def _peek(self, pid: int) -> _Status | None:
        file = kept(self._proc / str(pid) / "stat")
        if file is None:
            return None
        status = _status(file)
        file.close()
        return status


def _status(file: KeptFile) -> _Status | None:
    try:
        # The name of the program stands in brackets and may itself hold any character.
        fields = file.read(1024).rpartition(b")")[2].split()
        ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        return _Status(int(fields[1]), int(fields[2]), int(fields[3]), ticks, int(fields[17]), max(int(fields[21]), 0))
    except (OSError, ValueError, IndexError):
        return None


def _moved(file: KeptFile | None) -> tuple[int, int] | None:
    if file is None:
        return None
    try:
        fields = dict(line.split(b":") for line in file.read(512).splitlines())
        return int(fields[b"read_bytes"]), int(fields[b"write_bytes"])
    except (OSError, ValueError, KeyError):
        return None
