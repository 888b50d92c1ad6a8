"""Energy of processors, counted by themselves (RAPL), through the powercap files of Linux; Intel and AMD."""

from __future__ import annotations

import re
from pathlib import Path

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel
from fairmile.meter.sources.source import KeptFile, Where

_FOLDER = "/sys/class/powercap"
_SOCKET = re.compile(r"package-(\d+)(?:-die-(\d+))?")
# Khan et al. 2018, "RAPL in Action" (doi:10.1145/3177754): measured since Haswell, modelled before.
_ERROR = "counted by the processor about once a millisecond; error not documented"


class Rapl:
    """Reads the energy counters of sockets, of their memory, and of the platform where it has one."""

    name = "rapl"

    def __init__(self, where: Where) -> None:
        folder = where.path(_FOLDER)
        zones = sorted(folder.glob("intel-rapl:*"))  # AMD's zones bear that name too; intel-rapl-mmio repeats them
        if not zones:
            raise Unsupported(f"no {_FOLDER}/intel-rapl on this machine")
        self._files: list[KeptFile] = []
        channels: list[Channel] = []
        denied: Path | None = None
        for zone in zones:
            channel = _channel(zone)
            if channel is None:
                continue
            try:
                self._files.append(KeptFile(zone / "energy_uj"))
            except PermissionError:
                denied = zone / "energy_uj"
            except OSError:
                continue
            else:
                channels.append(channel)
        self._channels = tuple(channels)
        if channels:
            return
        if denied is not None:
            shown = "/" + str(denied.relative_to(where.root))
            raise Unsupported(
                f"{shown} is readable by root only",
                hint=f"ask the administrator for `chmod o+r {_FOLDER}/intel-rapl:*/energy_uj` after each start",
            )
        raise Unsupported(f"no zone in {_FOLDER} counts the energy of a socket, its memory or the platform")

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        return [None if (value := file.number()) is None else value / 1e6 for file in self._files]

    def close(self) -> None:
        for file in self._files:
            file.close()


def _channel(zone: Path) -> Channel | None:
    try:
        name = (zone / "name").read_text().strip()
        wraps_at = int((zone / "max_energy_range_uj").read_text()) / 1e6
    except (OSError, ValueError):
        return None
    if name == "psys":
        short, scope = "platform", "platform (psys: processors, memory and board, as wired by the vendor)"
    elif match := _SOCKET.fullmatch(name):
        number = match[1] + (f".{match[2]}" if match[2] else "")
        short, scope = f"cpu{number}", f"socket {number}"
    elif name == "dram":
        parent = _SOCKET.fullmatch(_name_of_parent(zone))
        number = (parent[1] + (f".{parent[2]}" if parent[2] else "")) if parent else zone.name.split(":")[1]
        short, scope = f"memory{number}", f"memory of socket {number}"
    else:  # core and uncore lie within their package
        return None
    return Channel(f"{short}.energy", "J", "counter", "rapl", scope, _ERROR, wraps_at)


def _name_of_parent(zone: Path) -> str:
    try:
        return (zone.parent / zone.name.rpartition(":")[0] / "name").read_text().strip()
    except OSError:
        return ""
