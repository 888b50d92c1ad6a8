"""The whole machine, from /proc: processors, memory, disks, network."""

from __future__ import annotations

import os
from pathlib import Path

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel, Kind
from fairmile.meter.sources.source import KeptFile, Where, kept

_SECTOR_BYTES = 512  # /proc/diskstats counts in these, whatever the disk says
_VIRTUAL = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")  # what lies on them is counted with the disk below


class Host:
    """Reads /proc/stat, meminfo, diskstats and net/dev; processors since the reading before, None at the first."""

    name = "host"

    def __init__(self, where: Where) -> None:
        self._stat = kept(where.path("/proc/stat"))
        if self._stat is None:
            raise Unsupported("no /proc/stat on this machine")
        self._memory = kept(where.path("/proc/meminfo"))
        self._disks = kept(where.path("/proc/diskstats"))
        # Not /proc/net, which is a link into whichever process follows it.
        self._network = kept(where.path("/proc/self/net/dev")) or kept(where.path("/proc/net/dev"))
        self._disk_names = _disk_names(self._disks, where.path("/sys/block"))
        self._interfaces = _interfaces(self._network, where.path("/sys/class/net"))
        self._before: tuple[int, int] | None = None
        self._cores = os.cpu_count() or 1
        self._channels = self._describe()

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        values = [self._busy()]
        if self._memory is not None:
            values.append(_memory_used(self._memory))
        if self._disks is not None and self._disk_names:
            values += _sums(self._disks, self._disk_names, 2, 5, 9, _SECTOR_BYTES)
        if self._network is not None and self._interfaces:
            values += _sums(self._network, self._interfaces, 0, 1, 9, 1)
        return values

    def close(self) -> None:
        for file in (self._stat, self._memory, self._disks, self._network):
            if file is not None:
                file.close()

    def _describe(self) -> tuple[Channel, ...]:
        def channel(what: str, unit: str, scope: str, error: str, kind: Kind = "gauge") -> Channel:
            return Channel(f"host.{what}", unit, kind, "procfs", scope, error)

        tick = f"clock ticks of {1000 / os.sysconf('SC_CLK_TCK'):g} ms, since the reading before"
        channels = [channel("cpu", "%", f"node (100 % is all {self._cores} cores)", tick)]
        if self._memory is not None:
            channels.append(channel("memory", "bytes", "node", "all memory that the kernel cannot free"))
        if self._disks is not None and self._disk_names:
            scope = f"disks of the node ({', '.join(self._disk_names)})"
            channels += [channel(what, "bytes", scope, "exact", "counter") for what in ("disk_read", "disk_written")]
        if self._network is not None and self._interfaces:
            scope = f"network of the node ({', '.join(self._interfaces)}; without RDMA)"
            channels += [
                channel(what, "bytes", scope, "exact", "counter") for what in ("network_received", "network_sent")
            ]
        return tuple(channels)

    def _busy(self) -> float | None:
        try:
            line = self._stat.read(512).split(b"\n", 1)[0] if self._stat is not None else b""
            times = [int(each) for each in line.split()[1:9]]  # guests are within user
            now = (sum(times), times[3] + times[4])
        except (OSError, ValueError, IndexError):
            return None
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None
        # The time of waiting for disks may fall (proc_stat(5)).
        return 100.0 * min(max(1 - (now[1] - before[1]) / (now[0] - before[0]), 0.0), 1.0)


def _memory_used(file: KeptFile) -> float | None:
    try:
        head = file.read(512).split(b"\n")[:3]
        total, _, available = (int(line.split()[1]) for line in head)
    except (OSError, ValueError, IndexError):
        return None
    return (total - available) * 1024.0


def _sums(
    file: KeptFile, names: tuple[str, ...], name_at: int, first_at: int, second_at: int, unit: int
) -> list[float | None]:
    """Return two sums over the lines of a table whose name is among `names`."""
    wanted = {name.encode() for name in names}
    first = second = 0
    try:
        for line in file.read_all().split(b"\n"):
            fields = line.replace(b":", b" ", 1).split() if name_at == 0 else line.split()
            if len(fields) > second_at and fields[name_at] in wanted:
                first += int(fields[first_at])
                second += int(fields[second_at])
    except (OSError, ValueError):
        return [None, None]
    return [float(first * unit), float(second * unit)]


def _disk_names(file: KeptFile | None, blocks: Path) -> tuple[str, ...]:
    """Return the whole disks: partitions and what is built upon disks would count twice."""
    try:
        listed = (
            [fields[2].decode() for line in file.read_all().split(b"\n") if len(fields := line.split()) > 9]
            if file
            else []
        )
        whole = {path.name for path in blocks.iterdir()}
    except OSError:
        return ()
    return tuple(name for name in listed if name in whole and not name.startswith(_VIRTUAL))


def _interfaces(file: KeptFile | None, folder: Path) -> tuple[str, ...]:
    """Return the interfaces with a device; where none has one (in a container), all but the loopback."""
    try:
        lines = file.read_all().split(b"\n")[2:] if file else []
    except OSError:
        return ()
    names = [line.split(b":")[0].strip().decode() for line in lines if b":" in line]
    real = tuple(name for name in names if (folder / name / "device").exists())
    return real or tuple(name for name in names if name != "lo")
