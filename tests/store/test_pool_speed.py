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
from fairmile.store.speed import (
    kind_of,
    last_measured,
    measure,
    random_access,
    read_large,
    small_files,
    sync_times,
    takes_direct,
    write_large,
)

MB = 1_000_000


class NoPrograms:
    def run(self, argv: Sequence[str], **_: Any) -> Result:
        raise SystemFailure(f"no program {argv[0]!r} on this machine")


def pools_of(pool: Pool) -> Pools:
    return Pools([pool], runner=NoPrograms(), clock=lambda: 1_794_916_800.0)


def test_a_measurement_states_what_was_measured_where_and_when(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path / "pool")
    speed = pools_of(pool).measure(pool, 2 * MB)
    assert min(speed.write_bytes_per_s, speed.read_bytes_per_s, speed.creates_per_s) > 0
    assert (speed.size_bytes, speed.small_files) == (2 * MB, 1000)
    assert (speed.host, speed.measured) == (os.uname().nodename, "2026-11-17T12:00:00Z")
    assert speed.file_system == mount_of(tmp_path).type
    assert "wrote 2000000 bytes" in speed.method and "1000 files" in speed.method


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
    assert ("page cache in use" in speed.method) == (speed.read_from == "memory")


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
    assert "uses the memory of the machine and is empty after a restart" in only.why


def test_a_file_is_written_and_read_past_the_memory_where_that_is_possible(tmp_path: Path) -> None:
    if not takes_direct(tmp_path):
        pytest.skip("needs a file system that takes O_DIRECT")
    written, took_s = write_large(tmp_path / "large", 3 * 4096 + 8 * MB // 4096 * 4096, direct=True)
    assert written == (tmp_path / "large").stat().st_size
    assert took_s > 0
    rate, read_from = read_large(tmp_path / "large", written, direct=True)
    assert rate > 0
    assert read_from == "storage"
    assert os.listdir(tmp_path) == ["large"]


def test_a_ram_disk_takes_nothing_past_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mount_of", lambda folder: Mount("/dev/shm", "tmpfs", "tmpfs"))
    assert not takes_direct(tmp_path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_direct_access_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, flags: int, *, direct: bool) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "_open", refuse)
    assert not takes_direct(tmp_path)


def test_random_writes_stay_inside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RANDOM_MOST", 200)
    (tmp_path / "file").write_bytes(bytes(10 * 4096))
    assert random_access(tmp_path / "file", 10 * 4096, write=True) > 0
    data = (tmp_path / "file").read_bytes()
    assert len(data) == 10 * 4096
    assert all(any(data[at : at + 4096]) for at in range(0, len(data), 4096))  # 200 draws leave none of 10 out
    assert random_access(tmp_path / "file", 10 * 4096) > 0


def test_small_files_are_made_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALL_FILES", 30)
    found = small_files(tmp_path)
    assert found.files == 30
    assert min(found) > 0
    assert os.listdir(tmp_path) == []


def test_syncs_are_told_with_the_shortest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYNCS", 7)
    times = sync_times(tmp_path / "file")
    assert len(times) == 7
    assert times == sorted(times)
    assert (tmp_path / "file").stat().st_size == 7 * 4096


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError, match="File exists"):
        write_large(tmp_path / "link", MB)
    with pytest.raises(OSError, match="symbolic links"):
        random_access(tmp_path / "link", 4096, write=True)
    assert (tmp_path / "target").read_text() == "precious"
