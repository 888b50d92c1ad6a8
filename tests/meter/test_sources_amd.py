"""AMD GPUs, in a tree of files as the amdgpu driver has them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fairmile.base.errors import Unsupported
from fairmile.meter.sources import Where
from fairmile.meter.sources.amd import Amd
from fairmile.testing.energy import EnergySourceTests, Subject


def gpu(root: Path, card: int, **files: str | bytes) -> Path:
    device = root / f"sys/class/drm/card{card}/device"
    (device / "hwmon/hwmon3").mkdir(parents=True)
    for name, content in {"vendor": "0x1002\n", "unique_id": f"abc{card}\n", **files}.items():
        place = device / "hwmon/hwmon3" / name if name[-6:] in ("_input", "verage") else device / name
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return device


def metrics(revision: tuple[int, int], at: int, counted: int) -> bytes:
    table = bytearray(120)
    struct.pack_into("<HBB", table, 0, len(table), *revision)
    struct.pack_into("<Q", table, at, counted)
    return bytes(table)


def read(root: Path, *devices: str) -> dict[str, float | None]:
    source = Amd(Where(root, devices=devices))
    values = dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))
    source.close()
    return values


class TestAmd(EnergySourceTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        device = gpu(tmp_path / "machine", 1, power1_average="120000000\n", energy1_input="5000000\n")

        def work() -> None:
            file = device / "hwmon/hwmon3/energy1_input"
            file.write_text(str(int(file.read_text()) + 12_000_000))

        def vanish() -> None:
            (device / "hwmon/hwmon3/power1_average").write_text("")

        return Subject(lambda: Amd(Where(tmp_path / "machine")), work, vanish, lambda: Amd(Where(tmp_path / "nothing")))


def test_everything_that_the_driver_tells_is_read_in_our_units(tmp_path: Path) -> None:
    files = {"temp1_input": "41000", "freq1_input": "1700000000", "freq2_input": "1600000000"}
    gpu(
        tmp_path,
        0,
        power1_average="300500000",
        energy1_input="7500000",
        gpu_busy_percent="97",
        mem_busy_percent="40",
        mem_info_vram_used="1073741824",
        product_name="AMD Instinct MI250X",
        **files,
    )
    assert read(tmp_path) == pytest.approx(
        {
            "gpu0.power": 300.5,
            "gpu0.energy": 7.5,
            "gpu0.temperature": 41.0,
            "gpu0.utilisation": 97.0,
            "gpu0.memory_utilisation": 40.0,
            "gpu0.sm_clock": 1700.0,
            "gpu0.memory_clock": 1600.0,
            "gpu0.memory": float(1 << 30),
        }
    )
    source = Amd(Where(tmp_path))
    source.close()
    assert source.channels()[0].scope == "device 0 (AMD Instinct MI250X, abc0)"


def test_a_driver_without_a_mean_tells_the_power_of_the_moment(tmp_path: Path) -> None:
    gpu(tmp_path, 0, power1_input="99000000")
    assert read(tmp_path) == {"gpu0.power": pytest.approx(99.0)}


@pytest.mark.parametrize(("revision", "at"), [((1, 1), 24), ((1, 3), 24), ((1, 4), 24), ((1, 5), 88), ((1, 7), 16)])
def test_the_energy_counter_of_the_metrics_table_is_found(tmp_path: Path, revision: tuple[int, int], at: int) -> None:
    gpu(tmp_path, 0, gpu_metrics=metrics(revision, at, 65536 * 42))
    assert read(tmp_path) == {"gpu0.energy": 42.0}


@pytest.mark.parametrize("table", [metrics((9, 9), 24, 5), metrics((1, 3), 24, 0), metrics((1, 3), 24, 2**64 - 1), b""])
def test_a_metrics_table_that_counts_nothing_is_left_out(tmp_path: Path, table: bytes) -> None:
    gpu(tmp_path, 0, gpu_metrics=table, power1_input="1000000")
    assert read(tmp_path) == {"gpu0.power": 1.0}


def test_cards_are_numbered_in_the_order_of_their_numbers_and_can_be_chosen(tmp_path: Path) -> None:
    for card, watts in ((10, 3), (2, 2), (1, 1)):
        gpu(tmp_path, card, power1_input=f"{watts}000000")
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir()
    assert read(tmp_path) == {"gpu0.power": 1.0, "gpu1.power": 2.0, "gpu2.power": 3.0}
    assert read(tmp_path, "2") == {"gpu2.power": 3.0}


def test_cards_of_other_makers_are_no_cards(tmp_path: Path) -> None:
    gpu(tmp_path, 0, vendor="0x10de\n", power1_input="1000000")
    with pytest.raises(Unsupported, match="no GPU of the amdgpu driver"):
        Amd(Where(tmp_path))
