"""Power and energy of an HPE Cray node and its parts, from its own counters in /sys/cray/pm_counters."""

from __future__ import annotations

import re
import time

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel, Kind
from fairmile.meter.sources.source import KeptFile, Where, kept

_FOLDER = "/sys/cray/pm_counters"
_FILE = re.compile(r"(?:(cpu|memory|accel)(\d*)_)?(power|energy)")
# HPE, "User Access to Compute Node Power Data" (Cray System Management): values with a time stamp, 10 a second.
_ERROR = "whole joules or watts, updated 10 times a second (HPE); the error of the sensors is not stated"
_STALE_S = 5.0
_TRIES = 3


class Cray:
    """Reads all counters of one scan: `freshness` is the same before and after."""

    name = "cray"

    def __init__(self, where: Where) -> None:
        folder = where.path(_FOLDER)
        if not folder.is_dir():
            raise Unsupported(f"no {_FOLDER} on this machine")
        self._files: list[KeptFile] = []
        channels = []
        for path in sorted(folder.iterdir()):
            match = _FILE.fullmatch(path.name)
            file = kept(path) if match else None
            if match is None or file is None:
                continue
            self._files.append(file)
            channels.append(_channel(match))
        if not channels:
            raise Unsupported(f"no counter in {_FOLDER} can be read")
        self._channels = tuple(channels)
        self._freshness = kept(folder / "freshness")
        self._last: float | None = None
        self._changed_at = time.monotonic()

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        values: list[float | None] = []
        for _ in range(_TRIES):
            before = self._scan()
            values = [file.number() for file in self._files]
            if self._scan() == before:
                break
        # Counters that stand still would look like a node without power.
        return values if self._is_fresh() else [None] * len(values)

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self._freshness is not None:
            self._freshness.close()

    def _scan(self) -> float | None:
        return self._freshness.number() if self._freshness is not None else None

    def _is_fresh(self) -> bool:
        now, scan = time.monotonic(), self._scan()
        if scan is None or scan != self._last:
            self._last, self._changed_at = scan, now
        return now - self._changed_at <= _STALE_S


def _channel(match: re.Match[str]) -> Channel:
    part, number, what = match.groups()
    scopes = {None: "node", "cpu": "all sockets", "memory": "all memory", "accel": f"accelerator {number}"}
    scope = f"socket {number}" if part == "cpu" and number else scopes[part]
    name = f"{part}{number}" if part else "node"
    kind: Kind = "counter" if what == "energy" else "gauge"
    return Channel(f"{name}.{what}", "J" if what == "energy" else "W", kind, "cray pm_counters", scope, _ERROR)
