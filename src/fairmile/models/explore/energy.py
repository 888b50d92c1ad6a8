"""The joules that a device uses, by the counters of the metering; without one, energy decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import Unsupported
from fairmile.meter.sources import Source, find_sources

_COUNTERS = {"cpu": ("rapl", "cray"), "cuda": ("nvidia_energy",)}
_NAMES = {"cpu": "processors", "cuda": "GPU"}


class Counter:
    """The joules that the device of a candidate has used, None where nothing counts them."""

    def __init__(self, device: str, *, sources: Sequence[Source] | None = None, root: Path = Path("/")) -> None:
        available = find_sources(_COUNTERS[device], root=root) if sources is None else None
        self._sources = list(sources or ()) if available is None else available.sources
        self.source = ""
        for each in self._sources:
            self.source = next((one.source for one in each.channels() if _counts(one)), self.source)
        reasons = list(available.missing.values()) if available is not None else []
        self.missing = "; ".join(reasons) or "no counter is that of a whole socket, node or GPU"

    def read(self) -> float | None:
        for each in self._sources:
            pairs = zip(each.channels(), each.read(), strict=True)
            values = [value for channel, value in pairs if _counts(channel) and value is not None]
            if values:
                return float(sum(values))
        return None

    def close(self) -> None:
        for each in self._sources:
            each.close()


def _counts(channel: Any) -> bool:
    """Tell the counters that add up to the whole: of sockets, of a node, of the GPU that PyTorch takes."""
    is_whole: bool = channel.scope.startswith(("socket", "device 0")) or channel.scope == "node"
    return is_whole and bool(channel.unit == "J" and channel.kind == "counter")


def check_counted(device: str, *, root: Path = Path("/")) -> None:
    """Refuse to rank by energy where nothing counts it, before anything is measured."""
    counter = Counter(device, root=root)
    counter.close()
    if not counter.source:
        raise Unsupported(
            f"nothing counts the energy of the {_NAMES[device]} here: {counter.missing}",
            hint="choose --best latency, throughput or size",
        )
