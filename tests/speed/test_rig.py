"""The measuring rig: a link delays, limits and loses as it was told, and nothing of it stays behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SPEED = Path(__file__).parents[2] / "speed"
# Sends COUNT datagrams of SIZE bytes to HOST, where nobody listens.
FLOOD = """
import socket, sys
host, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    for _ in range(count):
        out.sendto(bytes(size), (host, 9))
"""


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speed_rig", SPEED / "rig" / "rig.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_rig"] = module
    spec.loader.exec_module(module)
    return module


rig_module = _load()
why_not = rig_module.missing()
pytestmark = pytest.mark.skipif(bool(why_not), reason=why_not)
Link = rig_module.Link


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Any]:
    with rig_module.Rig(tmp_path) as made:
        yield made


@pytest.fixture
def www(tmp_path: Path) -> Path:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(range(256)) * 1000)
    return folder


def _namespaces() -> set[str]:
    listed = subprocess.run(["ip", "-j", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {entry["name"] for entry in json.loads(listed or "[]")}


def _flood(rig: Any, server: Any, count: int, size: int) -> dict[str, int]:
    host = server.url.removeprefix("http://")
    done = rig.run([sys.executable, "-c", FLOOD, host, str(count), str(size)])
    assert done.status == 0, done.output
    counts: dict[str, int] = server.close_link()["to_server"]
    return counts


def test_what_is_fetched_over_a_link_is_what_the_server_has(rig: Any, www: Path) -> None:
    server = rig.serve(www, Link(rate_mbit=100, rtt_ms=2, loss=0.01))
    done = rig.run(["curl", "-sf", "-o", "copy", f"{server.url}/file"], cwd=www)
    assert done.status == 0
    assert (www / "copy").read_bytes() == (www / "file").read_bytes()
    assert server.requests() == [("GET", 200, 256_000)]
    assert server.received_bytes() >= 256_000


def test_a_round_trip_takes_no_less_than_was_asked_for(rig: Any, www: Path) -> None:
    server = rig.serve(www, Link(rate_mbit=0, rtt_ms=80))
    done = rig.run(["curl", "-sf", "-o", "/dev/null", "-w", "%{time_connect}", f"{server.url}/file"])
    assert float(done.output) >= 0.08


def test_bytes_come_no_faster_than_the_rate_allows(rig: Any, www: Path) -> None:
    server = rig.serve(www, Link(rate_mbit=4, rtt_ms=2, queue_ms=200))
    done = rig.run(["curl", "-sf", "-o", "/dev/null", f"{server.url}/file"])
    assert done.status == 0
    assert done.wall_s >= 256_000 * 8 / 4e6


def test_a_packet_that_finds_the_queue_full_is_dropped(rig: Any, www: Path) -> None:
    server = rig.serve(www, Link(rate_mbit=0.5, rtt_ms=2, queue_ms=200))
    counts = _flood(rig, server, 500, 1000)
    assert counts["packets"] + counts["overflowed"] == 500
    # 200 ms of 0.5 Mbit/s are 12 packets of 1,028 bytes; a few more leave while the others are sent.
    assert 12 <= counts["packets"] < 500


def test_losses_are_as_many_as_told_and_the_same_for_the_same_seed(rig: Any, www: Path) -> None:
    def lost(seed: int) -> int:
        counts = _flood(rig, rig.serve(www, Link(rate_mbit=0, rtt_ms=2, loss=0.1, seed=seed)), 2000, 10)
        assert counts["packets"] + counts["lost"] == 2000
        return counts["lost"]

    first = lost(1)
    assert lost(1) == first
    assert lost(2) != first
    assert 150 <= first <= 250


def test_a_command_is_measured_with_its_children(rig: Any) -> None:
    done = rig.run(["sh", "-c", f"{sys.executable} -c 'sum(range(3_000_000)); bytearray(50_000_000)'; exit 3"])
    assert done.status == 3
    assert done.cpu_s > 0.01
    assert done.peak_bytes > 50_000_000


def test_nothing_stays_behind(tmp_path: Path, www: Path) -> None:
    with pytest.raises(KeyboardInterrupt), rig_module.Rig(tmp_path) as rig:
        server = rig.serve(www, Link(rate_mbit=1, rtt_ms=2))
        server.go_silent()
        mine = {name for name in _namespaces() if name.startswith(rig.client.removesuffix("-c"))}
        processes = [process.pid for process in rig._processes]
        assert len(mine) == 2 and len(processes) == 2
        raise KeyboardInterrupt
    assert not mine & _namespaces()
    assert not any(Path("/proc", str(pid)).exists() for pid in processes)


def test_the_next_rig_removes_what_a_killed_one_left(tmp_path: Path, www: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from rig.rig import Rig, Link\n"
        "with Rig(Path(sys.argv[2])) as rig:\n"
        "    rig.serve(Path(sys.argv[3]), Link(rate_mbit=1, rtt_ms=2))\n"
        "    print(rig.client, flush=True)\n"
        "    time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", code, str(SPEED), str(tmp_path), str(www)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name in _namespaces()
        os.kill(process.pid, signal.SIGKILL)
    rig_module.remove_leftovers()
    assert name not in _namespaces()
