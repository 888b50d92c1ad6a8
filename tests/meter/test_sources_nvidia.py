"""NVIDIA GPUs, through a stand-in for NVIDIA's library that answers as the real one does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import Unsupported
from fairmile.meter.energy import energies, total
from fairmile.meter.figures import summarise
from fairmile.meter.lines import Log, read_log
from fairmile.meter.sources import Where, find_sources
from fairmile.meter.sources.nvidia import Nvidia, NvidiaEnergy
from fairmile.meter.trace import trace_text
from fairmile.meter.watch import Watch
from fairmile.testing.energy import EnergySourceTests, Subject


class NVMLError(Exception):
    """As in pynvml."""


class Library:
    """As much of NVML as is used: GPUs with a counter, except for what is named in `lacks`."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(self, count: int = 2, lacks: tuple[str, ...] = ()) -> None:
        self.count = count
        self.lacks = lacks
        self.millijoules = 1_000
        self.is_lost = False
        self.shutdowns = 0

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "__dict__").get("lacks", ()):

            def refuse(*_: Any) -> None:
                raise NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def _check(self) -> None:
        if self.is_lost:
            raise NVMLError("GPU is lost")

    def nvmlShutdown(self) -> None:
        self.shutdowns += 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}-aa"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H200"  # old versions of the package answer with bytes

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._check()
        return 71_500 + 1000 * handle

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        self._check()
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=80_000))]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self._check()
        return self.millijoules

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        self._check()
        return 41

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._check()
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        self._check()
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._check()
        return SimpleNamespace(used=1 << 30)


def names(source: Nvidia) -> list[str]:
    found = [channel.name for channel in source.channels()]
    source.close()
    return found


def subject_of(kind: type[Nvidia]) -> Subject:
    library, where = Library(), Where(environ={})

    def work() -> None:
        library.millijoules += 2_500

    def vanish() -> None:
        library.is_lost = True

    return Subject(lambda: kind(where, nvml=library), work, vanish, lambda: kind(where, nvml=Library(count=0)))


class TestNvidia(EnergySourceTests):
    counts = False

    @pytest.fixture
    def subject(self) -> Subject:
        return subject_of(Nvidia)


class TestNvidiaEnergy(EnergySourceTests):
    @pytest.fixture
    def subject(self) -> Subject:
        return subject_of(NvidiaEnergy)


def test_the_counter_of_energy_is_read_once_a_second_because_it_is_dear() -> None:
    source = NvidiaEnergy(Where(environ={}), nvml=Library(count=1))
    assert source.read() == [1.0]
    assert source.every_s == 1.0
    source.close()


def test_a_gpu_read_by_both_sources_is_one_part_of_the_total(tmp_path: Path) -> None:
    library, where = Library(count=1), Where(environ={})
    sources = [Nvidia(where, nvml=library), NvidiaEnergy(where, nvml=library)]
    cheap = sources[0]
    seen: list[int] = []
    with Watch(sources, tmp_path / "log", period_s=0.005, on_sample=lambda *_: seen.append(1)) as watch:
        library.millijoules += 2_500
        while len(seen) < 4:
            time.sleep(0.001)
    assert [channel.name for channel in watch.channels][-1] == "gpu0.energy"
    assert None in watch.measured().column("gpu0.energy") and None not in watch.measured().column("gpu0.power")
    for samples in (watch.measured(), read_log([tmp_path / "log"]).samples[0]):
        (energy,) = energies(samples)
        assert (energy.channel, energy.method, energy.joules) == ("gpu0.energy", "counter", pytest.approx(2.5))
        assert total([energy]).joules == pytest.approx(2.5)
    log = Log([watch.measured().writer], samples=[watch.measured()])
    figures = {each.channel.name: each for each in summarise(log).figures}
    assert figures["gpu0.energy"].increase == pytest.approx(2.5)
    assert figures["gpu0.energy"].samples < figures["gpu0.power"].samples
    counted = [e for e in json.loads(trace_text(log))["traceEvents"] if e["name"] == "gpu0.energy (J)"]
    assert len(counted) == figures["gpu0.energy"].samples
    assert cheap.read()[0] is None  # closed with the watch


def test_each_value_is_in_our_units() -> None:
    source = Nvidia(Where(environ={}), nvml=Library(count=1))
    values = dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))
    source.close()
    assert values == {
        "gpu0.power": 71.5,
        "gpu0.power_instant": 80.0,
        "gpu0.temperature": 41.0,
        "gpu0.utilisation": 97.0,
        "gpu0.memory_utilisation": 40.0,
        "gpu0.sm_clock": 1980.0,
        "gpu0.memory_clock": 3201.0,
        "gpu0.memory": float(1 << 30),
    }
    assert {channel.scope for channel in source.channels()} == {"device 0 (NVIDIA H200, GPU-00-aa)"}


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    library = Library(1, lacks=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"))
    found = names(Nvidia(Where(environ={}), nvml=library))
    assert "gpu0.power" in found
    assert not {"gpu0.utilisation", "gpu0.memory_utilisation"} & set(found)
    with pytest.raises(Unsupported):
        NvidiaEnergy(Where(environ={}), nvml=library)


def test_a_field_that_the_driver_refuses_is_left_out() -> None:
    library = Library(1)
    library.nvmlDeviceGetFieldValues = lambda *_: [SimpleNamespace(nvmlReturn=3)]  # type: ignore[method-assign]
    assert "gpu0.power_instant" not in names(Nvidia(Where(environ={}), nvml=library))


@for_each(
    "devices, visible, expected",
    [
        ((), None, {"gpu0", "gpu1", "gpu2"}),
        (("1",), None, {"gpu1"}),
        ((), "2,0", {"gpu0", "gpu2"}),
        ((), "GPU-11", {"gpu1"}),
        (("0",), "1", {"gpu0"}),
        ((), "MIG-GPU-11/1/0", {"gpu0", "gpu1", "gpu2"}),
    ],
)
def test_the_gpus_are_those_asked_for_or_else_those_that_programs_see(
    devices: tuple[str, ...], visible: str | None, expected: set[str]
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = names(Nvidia(Where(devices=devices, environ=environ), nvml=Library(3)))
    assert {name.partition(".")[0] for name in found} == expected


@for_each("visible", ["", "-1", "7"])
def test_where_programs_see_no_gpu_there_is_none(visible: str) -> None:
    library = Library()
    with pytest.raises(Unsupported, match="the requested GPUs"):
        Nvidia(Where(environ={"CUDA_VISIBLE_DEVICES": visible}), nvml=library)
    assert library.shutdowns == 1


def test_a_gpu_that_cannot_be_asked_hides_no_other() -> None:
    library = Library(2)

    def handle(index: int) -> int:
        if index == 0:
            raise NVMLError("GPU is lost")
        return index

    library.nvmlDeviceGetHandleByIndex = handle  # type: ignore[method-assign]
    assert {name.partition(".")[0] for name in names(Nvidia(Where(environ={}), nvml=library))} == {"gpu1"}


def test_without_the_package_the_sentence_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    said = find_sources(["nvidia"]).missing["nvidia"]
    assert said == ("nvidia: the package nvidia-ml-py is not installed; install it with `pip install nvidia-ml-py`")


def test_without_a_driver_the_sentence_names_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pynvml = pytest.importorskip("pynvml")

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert "libnvidia-ml.so.1" in find_sources(["nvidia"]).missing["nvidia"]
