"""Reads power and energy of sensors that Linux shows below /sys/class/hwmon."""

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel
from fairmile.meter.sources import Where
from fairmile.meter.sources.source import KeptFile, kept

_KINDS = {"power": ("W", "gauge"), "energy": ("J", "counter")}  # both files count in millionths


class Hwmon:
    """One channel for each powerN_input and energyN_input."""

    name = "hwmon"

    def __init__(self, where: Where) -> None:
        self._files: list[KeptFile] = []
        channels = []
        for path in sorted(where.path("/sys/class/hwmon").glob("*/[pe]*_input")):
            unit, kind = _KINDS.get(path.name.rstrip("_input0123456789"), ("", ""))
            file = kept(path) if unit else None
            if file is not None:
                self._files.append(file)
                name = f"hwmon.{path.parent.name}.{path.name.removesuffix('_input')}"
                channels.append(Channel(name, unit, kind, "hwmon", f"sensor {path.parent.name}", "as the driver says"))
        if not channels:
            raise Unsupported("no sensor of power or energy below /sys/class/hwmon")
        self._channels = tuple(channels)

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        return [_millionths(file) for file in self._files]

    def close(self) -> None:
        for file in self._files:
            file.close()


def _millionths(file: KeptFile) -> float | None:
    """Return a reading, None where it failed: one bad sensor must not end a measurement."""
    try:
        return int(file.read()) / 1e6
    except (OSError, ValueError):
        return None
