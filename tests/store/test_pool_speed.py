from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Result
from fairmile.base.errors import DiskFailure, SystemFailure, UsageError
from fairmile.store import pools as pools_module
from fairmile.store import speed as module
from fairmile.store.pools import Pool, Pools
from fairmile.store.quota import Mount, mount_of
from fairmile.store.speed import kind_of, last_measured, measure

MB = 1_000_000


class NoPrograms:
    def run(self, argv: Sequence[str], **_: Any) -> Result:
        raise SystemFailure(f"there is no program {argv[0]!r} on this machine")


def pools_of(pool: Pool) -> Pools:
    return Pools([pool], runner=NoPrograms(), clock=lambda: 1_794_916_800.0)


def test_a_measurement_states_what_was_measured_where_and_when(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path / "pool")
    speed = pools_of(pool).measure(pool, 2 * MB)
    assert min(speed.write_bytes_per_s, speed.read_bytes_per_s, speed.creates_per_s) > 0
    assert (speed.size_bytes, speed.small_files) == (2 * MB, 1000)
    assert (speed.host, speed.measured) == (os.uname().nodename, "2026-11-17T12:00:00Z")
    assert speed.file_system == mount_of(tmp_path).type
    assert "2000000 bytes written" in speed.method and "1000 files" in speed.method


def test_a_measurement_is_kept_with_the_pool_and_leaves_nothing_else(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path)
    pools = pools_of(pool)
    assert pools.speed(pool) is None
    speed = pools.measure(pool, MB)
    assert pools.speed(pool) == speed
    assert json.loads((tmp_path / "speed.json").read_text())["measured"] == "2026-11-17T12:00:00Z"
    assert sorted(os.listdir(tmp_path)) == ["incoming", "reserved", "speed.json"]
    assert os.listdir(tmp_path / "incoming") == []
    assert pools.reservations(pool) == []


def test_a_measurement_that_does_not_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path, capacity_bytes=10 * MB)
    with pytest.raises(DiskFailure, match=r"measuring its speed needs .* pool 'p' has .* free \(capacity\)"):
        pools_of(pool).measure(pool, 9 * MB)
    assert not (tmp_path / "incoming").exists()


def test_too_few_bytes_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few"):
        measure(tmp_path, 1000)


def test_on_a_slow_file_system_it_stops_with_fewer_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_S", 1e-9)
    speed = measure(tmp_path, 8 * MB)
    assert speed.size_bytes == MB
    assert "1000000 bytes" in speed.method


def test_a_disk_that_fills_up_meanwhile_is_an_error_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(DiskFailure, match="No space left"):
        patch.setattr(os, "fsync", full)
        measure(tmp_path, MB)
    assert os.listdir(tmp_path / "incoming") == []
    assert last_measured(tmp_path) is None


def test_reads_that_came_from_memory_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)  # nothing is dropped
    speed = measure(tmp_path, MB)
    assert speed.read_from in ("memory", "unknown")
    assert ("pages kept" in speed.method) == (speed.read_from == "memory")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"write_bytes_per_s": 1}', "\0"],
)
def test_a_damaged_record_is_no_measurement(tmp_path: Path, content: str) -> None:
    (tmp_path / "speed.json").write_text(content)
    assert last_measured(tmp_path) is None


@pytest.mark.parametrize("rate", [0, -1, "fast", float("inf"), float("nan"), None])
def test_a_record_with_an_impossible_figure_is_no_measurement(tmp_path: Path, rate: object) -> None:
    measure(tmp_path, MB)
    found = json.loads((tmp_path / "speed.json").read_text())
    (tmp_path / "speed.json").write_text(json.dumps(found | {"read_bytes_per_s": rate}))
    assert last_measured(tmp_path) is None


@pytest.mark.parametrize(
    ("mount", "kind"),
    [
        (Mount("/dev/shm", "tmpfs", "tmpfs"), "RAM disk"),
        (Mount("/scratch", "lustre", "mgs@o2ib:/scratch"), "parallel file system (lustre)"),
        (Mount("/home", "nfs4", "server:/home"), "network file system (nfs4)"),
        (Mount("/local", "xfs", "/dev/nvme0n1p1"), "NVMe disk (xfs)"),
        (Mount("/", "ext4", "/dev/sda1"), "local disk (ext4)"),
        (Mount("/", "overlay", "overlay"), "overlay"),
        (Mount("/", "", ""), "unknown file system"),
    ],
)
def test_the_sort_of_storage_is_told_from_type_and_device(mount: Mount, kind: str) -> None:
    assert kind_of(mount) == kind


def test_the_ranking_warns_of_a_ram_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_module, "mount_of", lambda folder: Mount("/dev/shm", "tmpfs", "tmpfs"))
    (only,) = pools_of(Pool("ram", tmp_path)).ranked()
    assert only.storage == "RAM disk"
    assert "takes memory away from the run and is empty after a restart" in only.why
