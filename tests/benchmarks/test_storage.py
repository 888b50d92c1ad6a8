from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import DiskFailure, NotFound, UsageError
from fairmile.benchmarks import storage as module
from fairmile.benchmarks.storage import METRICS, Measured, StorageFolder, advise, evaluate, metric_specs, plan
from fairmile.store import speed
from fairmile.store.quota import Mount, Quota

MB = 1_000_000
GB = 1_000_000_000


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_RANDOM_MOST", 50)
    monkeypatch.setattr(speed, "_SYNCS", 5)
    monkeypatch.setattr(speed, "_SMALL_FILES", 20)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("needs /dev/shm")
    folder = shm / f"fairmile-test-{os.urandom(6).hex()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# Measuring


def test_every_number_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    report = evaluate(plan([tmp_path], size_bytes=MB))
    (found,) = report.measured
    assert set(found.values) == set(METRICS)
    assert all(value > 0 for value in found.values.values())
    assert found.problem == ""
    assert os.listdir(tmp_path) == []
    assert report.host == os.uname().nodename


def test_the_metrics_have_names_units_and_directions(tmp_path: Path) -> None:
    places = plan([tmp_path], size_bytes=MB)
    report = evaluate(places)
    specs = metric_specs(places)
    assert set(report.metrics()) == set(specs)
    label = places[0].label
    reads, sync = specs[f"storage.{label}.seq_read_bytes_per_s"], specs[f"storage.{label}.fsync_median_s"]
    assert (reads.unit, reads.better, sync.unit, sync.better) == ("bytes/s", "higher", "s", "lower")


def test_the_report_is_json(tmp_path: Path) -> None:
    report = evaluate(plan([tmp_path], size_bytes=MB))
    assert json.loads(report.text())["measured"][0]["place"]["path"] == os.path.realpath(tmp_path)


def test_the_method_says_how_memory_was_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "takes_direct", lambda folder: False)
    (buffered,) = evaluate(plan([tmp_path], size_bytes=MB)).measured
    told = {"storage": "after dropping", "unknown": "request to drop", "memory": "could not be dropped"}
    assert told[buffered.read_from] in buffered.method
    monkeypatch.setattr(module, "_memory_bytes", lambda: MB)
    (larger,) = evaluate(plan([tmp_path], size_bytes=2 * MB)).measured
    assert "larger than the memory" in larger.method
    assert larger.read_from == "storage"


def test_direct_access_is_used_where_the_file_system_takes_it(tmp_path: Path) -> None:
    (found,) = evaluate(plan([tmp_path], size_bytes=MB)).measured
    assert ("O_DIRECT" in found.method) == speed.takes_direct(tmp_path)


def test_a_ram_disk_is_told_as_such(memory_folder: Path) -> None:
    (found,) = evaluate(plan([memory_folder], size_bytes=MB)).measured
    assert (found.place.kind, found.place.is_memory, found.read_from) == ("RAM disk", True, "memory")
    assert "in memory" in found.method
    assert "empty after a restart" in found.place.lifetime


def test_each_step_is_told_and_then_the_end(tmp_path: Path) -> None:
    steps: list[str] = []
    evaluate(plan([tmp_path], size_bytes=MB), on_step=lambda place, step: steps.append(step))
    assert steps[0] == "writing a large file"
    assert steps[-1] == ""


# Bad days


def test_a_folder_that_vanishes_says_so_and_the_others_are_measured(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def vanish(place: StorageFolder, step: str) -> None:
        if place.path.endswith("/a") and step == "handling small files":
            shutil.rmtree(tmp_path / "a")

    gone, there = evaluate(plan([tmp_path / "a", tmp_path / "b"], size_bytes=MB), on_step=vanish).measured
    assert gone.problem == f"{gone.place.path} disappeared during the measurement"
    assert gone.values == {}
    assert there.values


def test_files_that_somebody_removes_are_told(tmp_path: Path) -> None:
    def sweep(place: StorageFolder, step: str) -> None:
        if step == "reading it":
            for each in tmp_path.glob(".fairmile-storage-*"):
                shutil.rmtree(each)

    (found,) = evaluate(plan([tmp_path], size_bytes=MB), on_step=sweep).measured
    assert "what was written in" in found.problem


def test_a_disk_that_fills_up_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    places = plan([tmp_path], size_bytes=MB)
    monkeypatch.setattr(os, "fsync", full)
    (found,) = evaluate(places).measured
    assert "No space left on device" in found.problem
    assert os.listdir(tmp_path) == []


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(place: StorageFolder, step: str) -> None:
        if step == "reading at random":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(plan([tmp_path], size_bytes=MB), on_step=interrupt)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
from fairmile.benchmarks.storage import evaluate, plan
def kill(place, step):
    if step == "reading it":
        os.kill(os.getpid(), signal.SIGKILL)
evaluate(plan([sys.argv[1]], size_bytes=1_000_000), on_step=kill)
"""


def test_what_a_killed_measurement_left_is_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    evaluate(plan([tmp_path], size_bytes=MB))
    assert os.listdir(tmp_path) == []


def test_what_another_measurement_is_using_stays(tmp_path: Path) -> None:
    beside: list[list[str]] = []

    def second(place: StorageFolder, step: str) -> None:
        if step == "reading it":
            evaluate(plan([tmp_path], size_bytes=MB))
            beside.append(os.listdir(tmp_path))

    (found,) = evaluate(plan([tmp_path], size_bytes=MB), on_step=second).measured
    assert found.problem == ""
    assert len(beside[0]) == 1


def test_links_are_not_followed_when_cleaning_up(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "holder").write_text("host=x\npid=1\ntoken=abc\nplace=\nstarted=\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".fairmile-storage-0123").symlink_to(tmp_path / "precious")
    evaluate(plan([tmp_path / "work"], size_bytes=MB))
    assert (tmp_path / "precious" / "holder").exists()


# Looking


def test_the_same_folder_is_measured_once_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    places = plan([tmp_path / "a", tmp_path / "link", f"{tmp_path}/./a"], size_bytes=MB)
    assert [place.path for place in places] == [os.path.realpath(tmp_path / "a")]


def test_folders_with_like_names_have_labels_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a-b").mkdir()
    first, second = plan([tmp_path / "a" / "b", tmp_path / "a-b"], size_bytes=MB)
    assert second.label == f"{first.label}-2"


def test_too_little_room_is_refused_with_numbers_before_anything_is_written(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with pytest.raises(DiskFailure, match=r"needs .*iB, but only .*iB are free \(file system\)"):
        plan([tmp_path], size_bytes=2 * free)
    assert os.listdir(tmp_path) == []


def test_a_quota_limits_the_room(tmp_path: Path) -> None:
    class Full:
        def of(self, folder: Path) -> list[Quota]:
            return [Quota("user", 1, 95 * MB, 100 * MB, 1, None)]

    quotas: Any = Full()
    with pytest.raises(DiskFailure, match=r"4\.8 MiB are free \(quota of the user\)"):
        plan([tmp_path], size_bytes=50 * MB, quotas=quotas)


def test_a_ram_disk_has_no_more_room_than_the_memory(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free_memory", lambda: [30 * MB])
    with pytest.raises(DiskFailure, match=r"28\.6 MiB are free \(memory\)"):
        plan([memory_folder], size_bytes=50 * MB)


def test_by_default_a_tenth_of_the_room_is_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free", lambda *_: (200 * MB, "file system"))
    (place,) = plan([tmp_path])
    assert 20 * MB <= place.size_bytes < 20 * MB + 4096


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFound, match="no folder"):
        plan([tmp_path / "nothing"])
    with pytest.raises(UsageError, match="is not a folder"):
        plan([tmp_path / "file"])
    with pytest.raises(UsageError, match="no folder to measure"):
        plan([])
    with pytest.raises(UsageError, match="too few"):
        plan([tmp_path], size_bytes=1000)
    with pytest.raises(DiskFailure, match=r"no write permission|read-only|0 B are free"):
        plan(["/proc"])


@for_each(
    "path, environ, words",
    [
        ("/gpfs/scratch/me", {}, "scratch: many centres delete old files"),
        ("/data/me", {"SCRATCH": "/data"}, "scratch: many centres delete old files"),
        ("/local/job1", {"TMPDIR": "/local/job1", "SLURM_JOB_ID": "1"}, "$TMPDIR: emptied when the job ends"),
        ("/local/job1", {"TMPDIR": "/local/job1"}, ""),
        ("/tmp/me", {}, "temporary files: may be deleted at any time"),
        ("/work/x/y", {}, "purged after 30 days"),
        ("/home/me", {}, ""),
    ],
)
def test_how_long_files_stay_is_told_from_what_is_known(path: str, environ: dict[str, str], words: str) -> None:
    mount = Mount("/", "ext4", "/dev/sda1")
    assert module._lifetime(path, mount, {"/work/x": "purged after 30 days"}, environ) == words


# Advising


def made(
    label: str,
    factor: float = 1.0,
    *,
    free: int = 100 * GB,
    lifetime: str = "",
    memory: bool = False,
    read_from: speed.ReadFrom = "storage",
    problem: str = "",
    device: str = "",
    file_system: str = "ext4",
) -> Measured:
    place = StorageFolder(label, f"/{label}", "", file_system, device or f"/dev/{label}", free, GB, lifetime, memory)
    values = (
        {}
        if problem
        else {name: 1000 * (factor if way == "higher" else 1 / factor) for name, (_, way) in METRICS.items()}
    )
    return Measured(place, values, read_from, "", problem)


def rankings(*measured: Measured, need: int = 0) -> dict[str, tuple[str, ...]]:
    return {each.use.split(",")[0].split(" ")[0]: each.ranking for each in advise(measured, need)}


def reasons(*measured: Measured, need: int = 0) -> str:
    return "\n".join(each.why for each in advise(measured, need))


def test_the_fastest_comes_first() -> None:
    assert set(rankings(made("slow"), made("fast", 3), made("middle", 2)).values()) == {("fast", "middle", "slow")}


def test_inside_the_noise_more_room_decides() -> None:
    found = rankings(made("fast", 1.1, free=10 * GB), made("roomy", 1.0, free=50 * GB))
    assert set(found.values()) == {("roomy", "fast")}
    assert "/fast about as fast" in reasons(made("fast", 1.1, free=10 * GB), made("roomy", 1.0, free=50 * GB))


def test_folders_of_one_disk_are_as_fast_as_one_another_whatever_was_measured() -> None:
    pair = made("a", 3, device="/dev/sda1"), made("b", 1, device="/dev/sda1", free=500 * GB)
    assert set(rankings(*pair).values()) == {("b", "a")}
    assert "/a on the same file system" in reasons(*pair)


@pytest.mark.parametrize(("device", "file_system"), [("tmpfs", "tmpfs"), ("10.0.0.1@tcp:/fs", "lustre")])
def test_folders_that_only_sound_alike_are_ranked(device: str, file_system: str) -> None:
    pair = [made(name, factor, device=device, file_system=file_system) for name, factor in (("a", 3), ("b", 1))]
    assert set(rankings(*pair).values()) == {("a", "b")}


def test_inside_the_noise_data_goes_where_files_stay_and_scratch_where_there_is_room() -> None:
    found = rankings(made("scratch", 1.1, lifetime="scratch", free=500 * GB), made("project"))
    assert found["large"] == found["many"] == ("project", "scratch")
    assert found["scratch"] == ("scratch", "project")


def test_results_go_only_where_files_stay() -> None:
    found = rankings(made("ram", 9, memory=True, lifetime="gone"), made("scratch", 3, lifetime="purged"), made("home"))
    assert found["results"] == ("home",)
    assert "copy results elsewhere" in reasons(made("scratch", 3, lifetime="purged"))


def test_a_ram_disk_is_for_what_fits_and_may_be_lost() -> None:
    given = made("ram", 9, memory=True, lifetime="gone", free=8 * GB, read_from="memory"), made("disk")
    assert rankings(*given)["scratch"] == ("disk", "ram")
    assert "/ram is 9.0 times as fast, for what fits into 7.5 GiB of memory and may be lost" in reasons(*given)


def test_a_ram_disk_alone_is_taken() -> None:
    assert rankings(made("ram", memory=True, lifetime="gone", read_from="memory"))["scratch"] == ("ram",)


def test_reads_from_memory_do_not_win_over_measured_ones() -> None:
    found = rankings(made("cached", 50, read_from="memory"), made("disk"))
    assert found["large"] == ("disk", "cached")
    assert found["scratch"] == ("cached", "disk")
    assert "do not measure the storage" in reasons(made("cached", 50, read_from="memory"))


def test_a_folder_without_room_for_the_data_is_left_out() -> None:
    assert set(rankings(made("fast", 3, free=10 * GB), made("slow"), need=50 * GB).values()) == {("slow",)}
    assert "none of the folders has 186.3 GiB free" in reasons(made("slow"), need=200 * GB)


def test_a_folder_that_could_not_be_measured_is_left_out() -> None:
    assert set(rankings(made("broken", problem="vanished"), made("slow")).values()) == {("slow",)}
    assert "none of the folders could be measured" in reasons(made("broken", problem="vanished"))
