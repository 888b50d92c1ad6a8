"""RAPL counters, in a tree of powercap files such as a two-socket server has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import Unsupported
from fairmile.meter.sources import Where, find_sources
from fairmile.meter.sources.rapl import Rapl
from fairmile.testing.energy import EnergySourceTests, Subject

ZONES = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 10),
    "intel-rapl:0:1": ("dram", 2_500_000),
    "intel-rapl:1": ("package-1", 3_000_000),
    "intel-rapl:1:0": ("dram", 4_000_000),
    "intel-rapl:2": ("psys", 9_000_000),
    "intel-rapl-mmio:0": ("package-0", 7),
}


def machine(root: Path) -> Path:
    folder = root / "sys/class/powercap"
    for zone, (name, energy_uj) in ZONES.items():
        (folder / zone).mkdir(parents=True)
        (folder / zone / "name").write_text(f"{name}\n")
        (folder / zone / "max_energy_range_uj").write_text("262143328850\n")
        (folder / zone / "energy_uj").write_text(f"{energy_uj}\n")
    return folder


class TestRapl(EnergySourceTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        folder = machine(tmp_path / "machine")

        def work() -> None:
            file = folder / "intel-rapl:0/energy_uj"
            file.write_text(str(int(file.read_text()) + 5_000_000))

        def vanish() -> None:
            (folder / "intel-rapl:1/energy_uj").write_text("")

        return Subject(
            lambda: Rapl(Where(tmp_path / "machine")), work, vanish, lambda: Rapl(Where(tmp_path / "nothing"))
        )


def test_packages_memory_and_platform_are_read_in_joules_and_parts_of_a_package_are_not(tmp_path: Path) -> None:
    machine(tmp_path)
    source = Rapl(Where(tmp_path))
    values = dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))
    source.close()
    assert values == {
        "cpu0.energy": 1.0,
        "memory0.energy": 2.5,
        "cpu1.energy": 3.0,
        "memory1.energy": 4.0,
        "platform.energy": 9.0,
    }


def test_a_channel_tells_where_its_counter_begins_anew(tmp_path: Path) -> None:
    machine(tmp_path)
    source = Rapl(Where(tmp_path))
    source.close()
    assert {channel.wraps_at for channel in source.channels()} == {262143.32885}
    assert [channel.scope for channel in source.channels()][:2] == ["socket 0", "memory of socket 0"]


def test_files_that_only_root_may_read_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path)

    def refuse(path: Path) -> None:  # these tests may run as root, to whom no file is closed
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fairmile.meter.sources.rapl.KeptFile", refuse)
    with pytest.raises(Unsupported, match=r"^/sys/class/powercap/intel-rapl:2/energy_uj is readable by root only"):
        Rapl(Where(tmp_path))
    said = find_sources(["rapl"], root=tmp_path).missing["rapl"]
    assert said.startswith("rapl: /sys/class/powercap/") and "chmod o+r" in said


def test_a_machine_without_powercap_says_which_folder_is_missing(tmp_path: Path) -> None:
    found = find_sources(["rapl"], root=tmp_path)
    assert found.sources == []
    assert found.missing == {"rapl": "rapl: no /sys/class/powercap/intel-rapl on this machine"}
