"""The machine, by the real /proc and by a tree of files with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.meter.sources import Where
from fairmile.meter.sources.host import Host
from fairmile.meter.sources.source import KeptFile
from fairmile.testing.energy import EnergySourceTests, Subject

DISKS = """\
   7       0 loop0 10 0 999 0 10 0 999 0 0 0 0
 259       0 nvme0n1 10 0 200 0 10 0 100 0 0 0 0
 259       1 nvme0n1p1 10 0 200 0 10 0 100 0 0 0 0
   8       0 sda 10 0 20 0 10 0 10 0 0 0 0
 253       0 dm-0 10 0 200 0 10 0 100 0 0 0 0
"""
NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0
  br0: 1000 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0
"""


def machine(root: Path) -> Path:
    proc = root / "proc"
    (proc / "self/net").mkdir(parents=True)
    (proc / "stat").write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n")
    (proc / "diskstats").write_text(DISKS)
    (proc / "self/net/dev").write_text(NETWORK)
    for name in ("loop0", "nvme0n1", "sda", "dm-0"):
        (root / "sys/block" / name).mkdir(parents=True)
    (root / "sys/class/net/eth0/device").mkdir(parents=True)
    return proc


def values(source: Host) -> dict[str, float | None]:
    return dict(zip((channel.name for channel in source.channels()), source.read(), strict=True))


class TestHost(EnergySourceTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        proc = machine(tmp_path / "machine")
        ticks = [1000]

        def work() -> None:
            ticks[0] += 100
            (proc / "stat").write_text(f"cpu  {ticks[0]} 0 100 700 100 0 0 0 0 0\n")
            (proc / "self/net/dev").write_text(NETWORK.replace("eth0:1000", f"eth0:{ticks[0]}"))

        def vanish() -> None:
            (proc / "meminfo").write_text("")

        return Subject(
            lambda: Host(Where(tmp_path / "machine")), work, vanish, lambda: Host(Where(tmp_path / "nothing"))
        )


class TestRealHost(EnergySourceTests):
    vanishes = False
    counts = False  # whether the disks of this machine have anything to do is not ours to say

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        def work() -> None:
            source = Host(Where())
            source.read()
            while source.read()[0] is None:  # a tick of the clock has passed
                pass
            source.close()

        return Subject(lambda: Host(Where()), work, lambda: None, lambda: Host(Where(tmp_path)))


def test_processors_are_told_since_the_reading_before(tmp_path: Path) -> None:
    proc = machine(tmp_path)
    source = Host(Where(tmp_path))
    assert values(source)["host.cpu"] is None
    (proc / "stat").write_text("cpu  125 0 100 750 125 0 0 0 75 0\n")  # of 100 ticks 25 busy; guests are within user
    assert values(source)["host.cpu"] == pytest.approx(25.0)
    assert values(source)["host.cpu"] is None  # no tick since
    source.close()


def test_waiting_for_disks_that_falls_makes_no_more_than_all_of_the_processors(tmp_path: Path) -> None:
    proc = machine(tmp_path)
    source = Host(Where(tmp_path))
    source.read()
    (proc / "stat").write_text("cpu  300 0 100 700 90 0 0 0 75 0\n")
    assert values(source)["host.cpu"] == 100.0
    source.close()


def test_a_table_longer_than_the_kernel_gives_at_once_is_read_to_its_end() -> None:
    file = KeptFile(Path("/proc/self/smaps"))
    at_once, whole = file.read(), file.read_all()
    file.close()
    assert len(at_once) < len(whole)
    assert whole.rstrip().rpartition(b"\n")[2].startswith(b"VmFlags:")


def test_memory_disks_and_network_count_everything_once(tmp_path: Path) -> None:
    machine(tmp_path)
    source = Host(Where(tmp_path))
    found = values(source)
    source.close()
    assert found["host.memory"] == 600 * 1024
    assert (found["host.disk_read"], found["host.disk_written"]) == (220 * 512, 110 * 512)
    assert (found["host.network_received"], found["host.network_sent"]) == (1000, 700)


def test_the_scope_names_the_disks_and_interfaces(tmp_path: Path) -> None:
    machine(tmp_path)
    source = Host(Where(tmp_path))
    source.close()
    scopes = {channel.name: channel.scope for channel in source.channels()}
    assert scopes["host.disk_read"] == "disks of the node (nvme0n1, sda)"
    assert scopes["host.network_sent"] == "network of the node (eth0; without RDMA)"
    assert "without RDMA" in scopes["host.network_sent"]


def test_in_a_container_without_devices_all_but_the_loopback_count(tmp_path: Path) -> None:
    machine(tmp_path)
    (tmp_path / "sys/class/net/eth0/device").rmdir()
    source = Host(Where(tmp_path))
    assert values(source)["host.network_received"] == 2000
    source.close()


def test_a_machine_without_disks_and_network_tells_the_rest(tmp_path: Path) -> None:
    proc = machine(tmp_path)
    (proc / "diskstats").unlink()
    (proc / "self/net/dev").unlink()
    source = Host(Where(tmp_path))
    assert set(values(source)) == {"host.cpu", "host.memory"}
    source.close()
