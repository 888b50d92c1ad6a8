"""AMD GPUs, through the files of the amdgpu driver: nothing is started, no library is needed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel, Kind
from fairmile.meter.sources.source import KeptFile, Where, kept

_CARDS = "/sys/class/drm"
_VENDOR = "0x1002"
_STATED = "as reported by the driver; error not documented"
# Where the 64-bit energy counter lies in the binary `gpu_metrics`, by (format, content) revision: Linux,
# drivers/gpu/drm/amd/include/kgd_pp_interface.h. It counts in 2**-16 J there (Instinct MI200 and MI300).
_ENERGY_AT = {(1, 1): 24, (1, 2): 24, (1, 3): 24, (1, 4): 24, (1, 5): 88, (1, 6): 16, (1, 7): 16}
_ENERGY_UNIT_J = 2.0**-16
_NOT_COUNTED = (0, 2**64 - 1)

Reader = Callable[[], float | None]


class Amd:
    """Reads what the driver tells of each GPU; a value that a GPU does not tell is left out."""

    name = "amd"

    def __init__(self, where: Where) -> None:
        self._files: list[KeptFile] = []
        self._readers: list[Reader] = []
        channels: list[Channel] = []
        cards = [path.parent for path in where.path(_CARDS).glob("card*/device") if _is_amd(path)]
        if not cards:
            raise Unsupported("no GPU of the amdgpu driver on this machine")
        for index, card in enumerate(sorted(cards, key=lambda path: (len(path.name), path.name))):
            if where.devices and str(index) not in where.devices:
                continue
            channels.extend(self._open(card / "device", index))
        if not channels:
            self.close()
            raise Unsupported("the amdgpu driver does not report the requested GPUs")
        self._channels = tuple(channels)

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        return [reader() for reader in self._readers]

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open(self, device: Path, index: int) -> list[Channel]:
        names = (_text(device / "product_name") or "AMD GPU", _text(device / "unique_id"))
        scope = f"device {index} ({', '.join(filter(None, names))})"
        monitor = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon")
        channels: list[Channel] = []

        def add(what: str, unit: str, reader: Reader | None, error: str = _STATED, kind: Kind = "gauge") -> bool:
            if reader is None or reader() is None:
                return False
            self._readers.append(reader)
            channels.append(Channel(f"gpu{index}.{what}", unit, kind, "amdgpu", scope, error))
            return True

        power = self._scaled(monitor / "power1_average", 1e-6)
        if not add("power", "W", power, "mean over the driver's period; error not documented"):
            add("power", "W", self._scaled(monitor / "power1_input", 1e-6), "instantaneous; error not documented")
        resolution = "counter of the driver, 1 µJ; error not documented"
        if not add("energy", "J", self._scaled(monitor / "energy1_input", 1e-6), resolution, "counter"):
            counter = self._counter(device / "gpu_metrics")
            add("energy", "J", counter, "counter of the GPU, 15.3 µJ; error not documented", "counter")
        add("temperature", "°C", self._scaled(monitor / "temp1_input", 1e-3))
        add("utilisation", "%", self._scaled(device / "gpu_busy_percent", 1))
        add("memory_utilisation", "%", self._scaled(device / "mem_busy_percent", 1))
        add("sm_clock", "MHz", self._scaled(monitor / "freq1_input", 1e-6))
        add("memory_clock", "MHz", self._scaled(monitor / "freq2_input", 1e-6))
        add("memory", "bytes", self._scaled(device / "mem_info_vram_used", 1))
        return channels

    def _scaled(self, path: Path, factor: float) -> Reader | None:
        file = kept(path)
        if file is None:
            return None
        self._files.append(file)

        def read() -> float | None:
            value = file.number()
            return None if value is None else value * factor

        return read

    def _counter(self, path: Path) -> Reader | None:
        file = kept(path)
        if file is None:
            return None
        self._files.append(file)

        def read() -> float | None:
            try:
                data = file.read(4096)
                _, *revision = struct.unpack_from("<HBB", data)
                counted: int = struct.unpack_from("<Q", data, _ENERGY_AT[revision[0], revision[1]])[0]
            except (OSError, struct.error, KeyError):
                return None
            return None if counted in _NOT_COUNTED else counted * _ENERGY_UNIT_J

        return read


def _is_amd(device: Path) -> bool:
    # card0-DP-1 and the like are connectors of a card
    return device.parent.name.removeprefix("card").isdigit() and _text(device / "vendor") == _VENDOR


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
