"""NVIDIA GPUs, through NVIDIA's own library (NVML)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairmile.base.errors import Unsupported
from fairmile.meter.lines import Channel
from fairmile.meter.sources.source import Where

# NVML API reference, nvmlDeviceGetPowerUsage: within 5 % of the power at the moment (stated for Fermi and Kepler, for
# no later generation); the mean of one second on Ampere (GA100 excepted) and later, the value of the moment before.
_POWER_ERROR = (
    "±5 % (NVML reference, for Fermi and Kepler; none stated since); mean over 1 s since Ampere, except GA100"
)
_INSTANT_ERROR = "±5 % (NVML reference, for Fermi and Kepler; none stated since); instantaneous"
# nvmlDeviceGetTotalEnergyConsumption: millijoules since the driver was loaded, Volta and later.
_ENERGY_ERROR = "counter in mJ since the driver was loaded, from the power sensor (±5 %)"
_SAMPLED = "share of the driver's last sampling period, 1/6 to 1 s (NVML reference)"
_EXACT = "as reported by the driver"


class Nvidia:
    """Reads each GPU; a value that a GPU does not tell (parts of one under MIG, for example) is left out.

    Without devices named, those of CUDA_VISIBLE_DEVICES are read where it is set.
    """

    name = "nvidia"

    def __init__(self, where: Where, *, nvml: Any = None) -> None:
        self._nvml = nvml if nvml is not None else _library()
        self._readers: list[Callable[[], float]] = []
        self._open = True
        try:
            self._channels = tuple(self._find(where))
        except BaseException:
            self.close()
            raise
        if not self._channels:
            self.close()
            raise Unsupported("NVIDIA's library does not report the requested GPUs")

    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def read(self) -> list[float | None]:
        return [self._value(reader) for reader in self._readers]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _find(self, where: Where) -> list[Channel]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise Unsupported(f"the NVIDIA driver reports no GPUs: {error}") from error
        if count == 0:
            raise Unsupported("the NVIDIA driver is installed, but there is no GPU")
        wanted = where.devices or _visible(where.environ.get("CUDA_VISIBLE_DEVICES"))  # None: all
        channels: list[Channel] = []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, model = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
            except nvml.NVMLError:  # a GPU that has fallen off the bus hides no other
                continue
            if wanted is None or any(_is_wanted(each, index, uuid) for each in wanted):
                channels.extend(self._channels_of(handle, index, f"device {index} ({model}, {uuid})"))
        return channels

    def _channels_of(self, handle: Any, index: int, scope: str) -> list[Channel]:
        nvml = self._nvml
        channels: list[Channel] = []

        def add(what: str, unit: str, read: Callable[[], float], error: str) -> None:
            channels.extend(self._added(Channel(f"gpu{index}.{what}", unit, "gauge", "nvml", scope, error), read))

        add("power", "W", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, _POWER_ERROR)
        add("power_instant", "W", lambda: _instant_w(nvml, handle), _INSTANT_ERROR)
        add("temperature", "°C", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU), _EXACT)
        add("utilisation", "%", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu, _SAMPLED)
        add("memory_utilisation", "%", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory, _SAMPLED)
        add("sm_clock", "MHz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM), _EXACT)
        add("memory_clock", "MHz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM), _EXACT)
        add("memory", "bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used, _EXACT)
        return channels

    def _added(self, channel: Channel, read: Callable[[], float]) -> list[Channel]:
        """Take a channel in where the GPU tells its value."""
        if self._value(read) is None:
            return []
        self._readers.append(read)
        return [channel]

    def _value(self, read: Callable[[], float]) -> float | None:
        if not self._open:
            return None
        try:
            return float(read())
        except (self._nvml.NVMLError, AttributeError, ValueError):  # an old library lacks the newer functions
            return None


class NvidiaEnergy(Nvidia):
    """Reads the counter of each GPU's energy, which takes 4 ms of CPU on an H200: all else together a tenth of that."""

    name = "nvidia_energy"
    every_s = 1.0

    def _channels_of(self, handle: Any, index: int, scope: str) -> list[Channel]:
        channel = Channel(f"gpu{index}.energy", "J", "counter", "nvml", scope, _ENERGY_ERROR)
        return self._added(channel, lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def _library() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise Unsupported(
            "the package nvidia-ml-py is not installed", hint="install it with `pip install nvidia-ml-py`"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            raise Unsupported("no NVIDIA driver on this machine (libnvidia-ml.so.1 is missing)") from error
        raise Unsupported(f"NVIDIA's library failed to start: {error}") from error
    return pynvml


def _visible(variable: str | None) -> tuple[str, ...] | None:
    # MIG parts have no power of their own: their whole GPUs cannot be told from the variable.
    if variable is None or "MIG" in variable:
        return None
    return tuple(filter(None, variable.replace(" ", "").split(",")))


def _is_wanted(each: str, index: int, uuid: str) -> bool:
    return each == str(index) or (each.startswith("GPU-") and uuid.startswith(each))


def _instant_w(nvml: Any, handle: Any) -> float:
    value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise ValueError("this GPU does not report its current power")
    return float(value.value.uiVal) / 1e3


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
