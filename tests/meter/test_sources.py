"""Finding the sources of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import NotFound
from fairmile.meter.sources import SOURCES, find_sources


def test_what_a_machine_lacks_is_said_for_each_source_in_one_sentence(tmp_path: Path) -> None:
    found = find_sources(root=tmp_path, environ={})
    found.close()
    told = {source.name for source in found.sources} | set(found.missing)
    assert told == set(SOURCES.names()) - {"nvidia_energy"}  # of which is said what is said of NVIDIA's GPUs
    for name, sentence in found.missing.items():
        assert sentence.startswith(f"{name}: ") and "\n" not in sentence
    assert found.missing["rapl"] == "rapl: no /sys/class/powercap/intel-rapl on this machine"
    assert found.missing["host"] == "host: no /proc/stat on this machine"


def test_this_machine_has_a_host_and_a_process() -> None:
    found = find_sources(["process", "host"])
    found.close()
    assert [source.name for source in found.sources] == ["process", "host"]
    assert found.missing == {}


def test_a_name_that_no_source_has_is_an_error_with_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'nvidia'"):
        find_sources(["nvida"])


def test_the_devices_follow_the_name(tmp_path: Path) -> None:
    for card in (0, 1):
        device = tmp_path / f"sys/class/drm/card{card}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "gpu_busy_percent").write_text("5\n")
    found = find_sources(["amd:1"], root=tmp_path)
    found.close()
    assert [channel.name for channel in found.sources[0].channels()] == ["gpu1.utilisation"]
    found = find_sources(["amd:0, 1"], root=tmp_path)
    found.close()
    assert len(found.sources[0].channels()) == 2


def test_every_source_of_the_table_can_be_imported() -> None:
    assert SOURCES.failures() == {}
