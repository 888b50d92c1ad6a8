"""The counters of an HPE Cray node, in a tree of files as it has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.meter.sources import Where
from fairmile.meter.sources.cray import Cray
from fairmile.testing.energy import EnergySourceTests, Subject

FILES = {
    "power": "245 W 1700000000000000 us",
    "energy": "123456 J 1700000000000000 us",
    "cpu_power": "90 W 1700000000000000 us",
    "cpu_energy": "50000 J 1700000000000000 us",
    "memory_energy": "9000 J 1700000000000000 us",
    "accel0_energy": "30000 J 1700000000000000 us",
    "accel1_energy": "31000 J 1700000000000000 us",
    "power_cap": "0 W 1700000000000000 us",
    "freshness": "17",
    "generation": "2",
    "raw_scan_hz": "10",
    "version": "2",
}


def machine(root: Path) -> Path:
    folder = root / "sys/cray/pm_counters"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(f"{text}\n")
    return folder


class TestCray(EnergySourceTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        folder = machine(tmp_path / "machine")

        def work() -> None:
            before = int((folder / "energy").read_text().split()[0])
            (folder / "energy").write_text(f"{before + 100} J 1700000000100000 us\n")
            (folder / "freshness").write_text(str(int((folder / "freshness").read_text()) + 1))

        def vanish() -> None:
            (folder / "cpu_energy").write_text("")

        return Subject(
            lambda: Cray(Where(tmp_path / "machine")), work, vanish, lambda: Cray(Where(tmp_path / "nothing"))
        )


def test_node_processors_memory_and_accelerators_are_read_and_settings_are_not(tmp_path: Path) -> None:
    machine(tmp_path)
    source = Cray(Where(tmp_path))
    values = dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))
    scopes = {channel.name: channel.scope for channel in source.channels()}
    source.close()
    assert values == {
        "node.power": 245.0,
        "node.energy": 123456.0,
        "cpu.power": 90.0,
        "cpu.energy": 50000.0,
        "memory.energy": 9000.0,
        "accel0.energy": 30000.0,
        "accel1.energy": 31000.0,
    }
    assert scopes["node.energy"] == "node" and scopes["accel1.energy"] == "accelerator 1"


def test_counters_that_stand_still_are_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine(tmp_path)
    now = [1000.0]
    monkeypatch.setattr("fairmile.meter.sources.cray.time.monotonic", lambda: now[0])
    source = Cray(Where(tmp_path))
    assert None not in source.read()
    now[0] += 4.0
    assert None not in source.read()
    now[0] += 2.0
    assert set(source.read()) == {None}
    (folder / "freshness").write_text("18")
    assert None not in source.read()
    source.close()


def test_a_scan_that_changes_under_the_reading_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path)
    source = Cray(Where(tmp_path))
    scans = iter([17.0, 18.0, 18.0, 18.0, 18.0])
    readings = []
    monkeypatch.setattr(Cray, "_scan", lambda self: next(scans))
    first = source._files[0]
    monkeypatch.setattr(source, "_files", [_Counting(first, readings), *source._files[1:]])
    source.read()
    source.close()
    assert len(readings) == 2


class _Counting:
    def __init__(self, file: object, readings: list[int]) -> None:
        self._file, self._readings = file, readings

    def number(self) -> float | None:
        self._readings.append(1)
        return 1.0

    def close(self) -> None:
        self._file.close()  # type: ignore[attr-defined]
