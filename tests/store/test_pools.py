from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.commands import Result
from fairmile.base.errors import DiskFailure, InvalidDocument, NotFound, SystemFailure, UsageError
from fairmile.store.pools import Pool, Pools, parse_pools

MIB, GIB = 1 << 20, 1 << 30


class Says:
    """A runner whose every program prints one text; an empty one means that no program is there."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        if not self.text:
            raise SystemFailure(f"no program {argv[0]!r} on this machine")
        return Result(tuple(argv), 0, self.text, "", 0.0)


def quota(used_kib: int, limit_kib: int, files: int = 0, most_files: int = 0, *, group: bool = False) -> str:
    owner = f"group g (gid {os.getegid()})" if group else f"user u (uid {os.getuid()})"
    return f"Disk quotas for {owner}: \n /dev/x {used_kib} {limit_kib} 0 0 {files} {most_files} 0 0\n"


Disks = Callable[..., None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Let a folder, and all below it, seem to lie on a file system with so much room."""
    real = os.statvfs
    rooms: dict[str, os.statvfs_result] = {}

    def statvfs(path: str | os.PathLike[str]) -> os.statvfs_result:
        above = [folder for folder in rooms if Path(path).is_relative_to(folder)]
        return rooms[max(above, key=len)] if above else real(path)

    def make(folder: Path, free_bytes: int, *, files: int = 10**6, all_files: int = 10**7, flags: int = 0) -> None:
        blocks = free_bytes // 4096
        # Of 100 GiB, 10 GiB are kept back for root.
        room = (4096, 4096, 100 * GIB // 4096, blocks + 10 * GIB // 4096, blocks, all_files, files, files, flags, 255)
        rooms[os.fspath(folder)] = os.statvfs_result(room)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return make


def pools_of(*pools: Pool, says: str = "") -> Pools:
    return Pools(pools, runner=Says(says))


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def python(script: str, *words: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


# What the settings say


def test_a_pool_is_declared_with_words_and_units(tmp_path: Path) -> None:
    given = {
        "folder": "/scratch/me", "capacity": "10 TB", "purge": "30 d", "speed": "fast", "purpose": "scratch",
        "pack": "128 KiB", "links": ["hardlink", "copy"],
    }  # fmt: skip
    pools = parse_pools({"scratch": given}, tmp_path, {"scratch": "/etc/config.yaml:3"})
    assert pools == [
        Pool("scratch", Path("/scratch/me"), 10**13, 30, "fast", "scratch", 128 << 10, ("hardlink", "copy")),
        Pool("home", tmp_path),
    ]


def test_a_folder_alone_declares_a_pool_and_home_comes_last(tmp_path: Path) -> None:
    pools = parse_pools({"b": "/b", "a": "/a", "c": None}, tmp_path / "home", {})
    assert [pool.name for pool in pools] == ["b", "a", "home"]
    assert pools[0] == Pool("b", Path("/b"))
    assert (pools[2].purpose, pools[2].speed) == ("project", "normal")


def test_a_declared_home_keeps_its_place_and_needs_no_folder(tmp_path: Path) -> None:
    pools = parse_pools({"home": {"capacity": "50 GB"}, "x": "/x"}, tmp_path, {})
    assert pools == [Pool("home", tmp_path, 50 * 10**9), Pool("x", Path("/x"))]


def test_a_folder_starts_at_the_file_that_declares_it(tmp_path: Path) -> None:
    pools = parse_pools({"x": "../data"}, tmp_path, {"x": "/etc/fairmile/config.yaml:7"})
    assert pools[0].folder == Path("/etc/data")


def test_a_folder_may_name_variables(tmp_path: Path) -> None:
    given = {"x": "$SCRATCH/${USER}/pool"}
    pools = parse_pools(given, tmp_path, {}, environ={"SCRATCH": "/scratch", "USER": "ada"})
    assert pools[0].folder == Path("/scratch/ada/pool")


def test_a_pool_whose_variable_is_not_set_is_there_and_cannot_be_used(tmp_path: Path) -> None:
    pools = pools_of(*parse_pools({"job": "/local/$JOB/pool"}, tmp_path, {}, environ={}))
    assert "$JOB/pool needs a variable that is not set" in pools.trouble(pools["job"])
    with pytest.raises(SystemFailure, match="not set"):
        pools.space(pools["job"])
    assert pools.choose(0).pool.name == "home"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"x": {"folder": "/x", "capcity": 1}},
            r"/c\.yaml:3 pools\.x\.capcity: no such key; did you mean 'capacity'\?",
        ),
        ({"x": {"folder": "/x", "capacity": "much"}}, r"/c\.yaml:3 pools\.x\.capacity: 'much' is not a size"),
        ({"x": {"folder": "/x", "purge": 30}}, r"pools\.x\.purge: 30 has no unit"),
        ({"x": {"folder": "/x", "purge": "12 h"}}, r"pools\.x\.purge: '12 h' is less than a day"),
        ({"x": {"folder": "/x", "speed": "fats"}}, r"pools\.x\.speed: 'fats' is unknown; did you mean 'fast'\?"),
        ({"x": {"folder": "/x", "links": []}}, r"pools\.x\.links: expected a list"),
        ({"x": {"folder": "/x", "links": ["magic"]}}, r"pools\.x\.links: 'magic' is unknown"),
        ({"x": {"capacity": "1 GB"}}, r"/c\.yaml:3 pools\.x: a pool needs a folder"),
        ({"x": ["/x"]}, r"pools\.x: expected a folder or keys with values"),
        ({"x": {"folder": 3}}, r"pools\.x\.folder: expected a folder, found 3"),
        ({"x": {"folder": " "}}, r"pools\.x\.folder: expected a folder"),
        ({"x": "/home/pool/inside"}, r"pools 'x' and 'home' share the folder /home/pool/inside"),
        ({"x": "/home/pool"}, r"pools 'x' and 'home' share the folder /home/pool"),
    ],
)
def test_a_mistake_names_file_line_and_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        parse_pools(given, Path("/home/pool"), {"x": "/c.yaml:3"})


def test_a_name_with_a_dot_or_from_nowhere_is_refused() -> None:
    with pytest.raises(InvalidDocument, match=r"'x\.folder' cannot name a pool") as caught:
        parse_pools({"x.folder": "/x", "y": "somewhere"}, Path("/h"), {"y": "environment FAIRMILE_POOLS"})
    second = caught.value.problems[1]
    assert str(second) == "environment FAIRMILE_POOLS pools.y.folder: the folder 'somewhere' is relative"


def test_pools_are_found_by_name_in_their_order() -> None:
    pools = pools_of(Pool("scratch", Path("/s")), Pool("home", Path("/h")))
    assert [pool.name for pool in pools] == ["scratch", "home"]
    assert pools["home"].folder == Path("/h")
    with pytest.raises(NotFound, match="no pool named 'scrach'; did you mean 'scratch'"):
        pools["scrach"]


# Room


def test_the_room_of_a_file_system_is_what_an_ordinary_user_gets(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    pools = pools_of(Pool("p", tmp_path))
    space = pools.space(pools["p"])
    assert (space.free_bytes, space.limited_by, space.reserved_bytes) == (30 * GIB, "file system", 0)
    assert (space.used_bytes, space.total_bytes, space.inodes_free) == (60 * GIB, 90 * GIB, 10**6)


def test_the_room_of_a_real_file_system_shrinks_as_it_fills(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,nr_inodes=64", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("may not mount a file system here")
    try:
        pools = pools_of(Pool("ram", tmp_path))
        before = pools.space(pools["ram"])
        assert before.free_bytes == 16 * MIB and before.inodes_free is not None and before.inodes_free < 64
        (tmp_path / "file").write_bytes(bytes(10 * MIB))
        assert pools.space(pools["ram"]).free_bytes == 6 * MIB
        with pytest.raises(DiskFailure, match=r"has 6\.0 MiB free \(file system\)"):
            pools.reserve(pools["ram"], 7 * MIB, "x")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_system_without_a_number_of_files_sets_no_limit(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, GIB, files=0, all_files=0)
    pools = pools_of(Pool("p", tmp_path))
    assert pools.space(pools["p"]).inodes_free is None
    assert pools.choose(1, files=10**9).pool.name == "p"


def test_a_declared_capacity_limits_and_counts_the_pools_own_bytes(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    pool = Pool("p", tmp_path / "pool", capacity_bytes=10 * MIB)
    pools = pools_of(pool)
    assert pools.space(pool).free_bytes == 10 * MIB
    fill(tmp_path / "pool" / "objects" / "a", 4 * MIB)
    space = pools.space(pool)
    assert (space.limited_by, space.total_bytes) == ("capacity", 10 * MIB)
    assert 5 * MIB < space.free_bytes <= 6 * MIB
    fill(tmp_path / "pool" / "objects" / "b", 4 * MIB)
    assert pools.space(pool).free_bytes > 5 * MIB, "counted within the hour"
    assert pools.space(pool, max_age_s=0).free_bytes <= 2 * MIB


def fill(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size_bytes)


def test_a_full_pool_is_counted_anew_before_anybody_is_turned_away(tmp_path: Path) -> None:
    now = 1e9
    pool = Pool("p", tmp_path, capacity_bytes=10 * MIB)
    pools = Pools([pool], runner=Says(), clock=lambda: now)
    fill(tmp_path / "objects" / "a", 9 * MIB)
    pools.space(pool)
    (tmp_path / "objects" / "a").unlink()
    now += 61
    pools.reserve(pool, 8 * MIB, "x").release()


def test_a_quota_that_is_tighter_is_the_limit_for_bytes_and_files(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    pool = Pool("p", tmp_path, capacity_bytes=20 * GIB)
    space = pools_of(pool, says=quota(6 << 20, 10 << 20, 40, 100)).space(pool)
    assert (space.free_bytes, space.used_bytes, space.total_bytes) == (4 * GIB, 6 * GIB, 10 * GIB)
    assert (space.limited_by, space.inodes_free) == ("quota", 60)


def test_a_user_beyond_the_quota_has_nothing_free(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path)
    space = pools_of(pool, says=quota(11, 10, 5, 4)).space(pool)
    assert (space.free_bytes, space.inodes_free) == (0, 0)


def test_what_is_reserved_is_not_free_until_it_is_released(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    pool = Pool("p", tmp_path)
    pools = pools_of(pool)
    with pools.reserve(pool, 10 * GIB, "dataset/x") as reservation:
        space = pools.space(pool)
        assert (space.free_bytes, space.reserved_bytes) == (20 * GIB, 10 * GIB)
        reservation.shrink(4 * GIB)
        assert pools.space(pool).reserved_bytes == 6 * GIB
        assert [held.what for held in pools.reservations(pool)] == ["dataset/x"]
    assert pools.space(pool).free_bytes == 30 * GIB


def test_bytes_that_land_during_the_question_are_not_missed(
    tmp_path: Path, disk: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(tmp_path, 30 * GIB)
    pool = Pool("p", tmp_path)
    pools = pools_of(pool)
    with pools.reserve(pool, 10 * GIB, "x") as reservation:
        ask = os.statvfs

        def ask_and_land(path: Path) -> os.statvfs_result:
            before = ask(path)
            reservation.shrink(4 * GIB)
            return before

        monkeypatch.setattr(os, "statvfs", ask_and_land)
        assert pools.space(pool).free_bytes == 20 * GIB


def test_pools_on_one_file_system_share_its_room_but_not_their_capacities(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    a, b = Pool("a", folder(tmp_path / "a")), Pool("b", folder(tmp_path / "b"), capacity_bytes=25 * GIB)
    pools = pools_of(a, b)
    with pools.reserve(a, 2 * GIB, "x"):
        assert pools.space(a).free_bytes == 28 * GIB
        assert pools.space(b).limited_by == "capacity"
    with pools.reserve(a, 10 * GIB, "x"):
        assert (pools.space(b).limited_by, pools.space(b).free_bytes) == ("file system", 20 * GIB)
        assert pools.space(b).reserved_bytes == 0


def test_reserving_makes_no_folder_of_another_pool(tmp_path: Path) -> None:
    pools = pools_of(Pool("a", tmp_path / "a"), Pool("home", tmp_path / "x" / "home"))
    pools.reserve(pools["a"], 1, "x").release()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_other_users_reserve_does_not_use_up_my_quota_but_that_of_the_group(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 90 * GIB)
    pool = Pool("p", tmp_path)
    with pools_of(pool).reserve(pool, 30 * GIB, "x"):
        (file,) = (tmp_path / "reserved").glob("[0-9a-f]*")
        try:
            os.chown(file, 12345, -1)
        except PermissionError:
            pytest.skip("may not give a file to another user here")
        assert pools_of(pool, says=quota(0, 40 << 20)).space(pool).free_bytes == 40 * GIB
        assert pools_of(pool, says=quota(0, 40 << 20, group=True)).space(pool).free_bytes == 10 * GIB


def test_the_reservation_of_a_killed_process_does_not_count(tmp_path: Path, disk: Disks) -> None:
    disk(tmp_path, 30 * GIB)
    pool = Pool("p", tmp_path)
    with python(RESERVE, str(tmp_path), "0", str(10 * GIB), "p") as owner:
        assert said_by(owner) == "ready"
        go(owner)
        assert said_by(owner) == "held"
        assert pools_of(pool).space(pool).free_bytes == 20 * GIB
        owner.kill()
        owner.wait()
    pools = pools_of(pool)
    assert pools.space(pool).free_bytes == 30 * GIB
    assert [held.alive for held in pools.reservations(pool)] == [False]
    assert len(pools.sweep(pool)) == 1
    assert pools.reservations(pool) == []


# Which pool


@pytest.fixture
def three(tmp_path: Path, disk: Disks) -> Pools:
    disk(tmp_path, 90 * GIB)
    return pools_of(
        Pool("archive", folder(tmp_path / "archive"), speed="fast", purpose="archive", capacity_bytes=1000 * GIB),
        Pool("home", folder(tmp_path / "home"), capacity_bytes=2 * GIB),
        Pool("scratch", folder(tmp_path / "scratch"), speed="fast", capacity_bytes=3 * GIB),
    )


def test_the_fastest_pool_that_has_room_is_chosen(three: Pools) -> None:
    choice = three.choose(GIB)
    assert (choice.pool.name, choice.notes) == ("scratch", ())


def test_pools_passed_over_are_named_with_their_numbers(three: Pools) -> None:
    choice = three.choose(4 * GIB)
    assert choice.pool.name == "archive"
    assert choice.notes == (
        "skipped pool 'scratch', which has 3.0 GiB free (capacity)",
        "skipped pool 'home', which has 2.0 GiB free (capacity)",
    )


def test_equal_pools_are_taken_in_their_order(tmp_path: Path) -> None:
    pools = pools_of(Pool("b", tmp_path / "b"), Pool("a", tmp_path / "a"))
    assert pools.choose(1).pool.name == "b"


def test_when_nothing_fits_the_message_has_all_numbers(three: Pools) -> None:
    parts = {"download": 59 * GIB, "unpacked": 2000 * GIB}
    with pytest.raises(DiskFailure) as caught:
        three.choose(2059 * GIB, what="dataset/cosmouniverse-mini", parts=parts)
    assert str(caught.value) == (
        "dataset/cosmouniverse-mini needs 2.0 TiB (download 59.0 GiB, unpacked 2.0 TiB); pool 'scratch' has 3.0 GiB"
        " free (capacity), pool 'home' has 2.0 GiB free (capacity), pool 'archive' has 90.0 GiB free (file system)"
    )
    assert caught.value.hint is not None
    assert all(word in caught.value.hint for word in ("fairmile store gc", "`pools`"))
    assert "--pool" not in caught.value.hint  # all of them were tried


def test_a_wanted_pool_is_taken_whatever_its_rank(three: Pools) -> None:
    assert three.choose(GIB, wanted="archive").pool.name == "archive"
    with pytest.raises(NotFound):
        three.choose(GIB, wanted="nowhere")


def test_a_wanted_pool_that_is_too_small_is_refused_with_those_that_would_do(three: Pools) -> None:
    with pytest.raises(DiskFailure) as caught:
        three.choose(4 * GIB, wanted="home", what="x")
    assert str(caught.value) == (
        "x needs 4.0 GiB; pool 'home' has 2.0 GiB free (capacity); pool 'archive' has enough space with 90.0 GiB free"
    )
    assert caught.value.hint is not None
    assert "--pool archive" in caught.value.hint and "`pools.home.capacity`" in caught.value.hint


def test_a_pool_that_cannot_take_so_many_files_is_passed_over(tmp_path: Path, disk: Disks) -> None:
    pools = pools_of(Pool("a", folder(tmp_path / "a")), Pool("b", folder(tmp_path / "b")))
    disk(tmp_path / "a", GIB, files=50)
    assert pools.choose(1, files=50).pool.name == "a"
    choice = pools.choose(1, files=51)
    assert choice.pool.name == "b"
    assert choice.notes == ("skipped pool 'a', which has room for 50 more files, and 51 are needed",)


def test_a_missing_pool_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    gone = Pool("gone", tmp_path / "not-mounted" / "pool", speed="fast")
    pools = pools_of(gone, Pool("home", tmp_path / "new" / "home"))
    choice = pools.choose(1)
    assert choice.pool.name == "home"
    assert choice.notes == (f"skipped pool 'gone', which cannot be used: no folder {tmp_path}/not-mounted",)
    with pytest.raises(DiskFailure, match="cannot be used"):
        pools.reserve(gone, 1, "x")
    with pytest.raises(SystemFailure, match="no folder"):
        pools.space(gone)
    assert list(tmp_path.iterdir()) == []


def test_a_pool_whose_folder_is_a_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pools = pools_of(Pool("p", tmp_path / "file"))
    assert pools.trouble(pools["p"]) == f"{tmp_path}/file is not a folder"


def test_a_read_only_pool_is_passed_over_and_its_room_can_still_be_seen(tmp_path: Path, disk: Disks) -> None:
    read_only = Pool("p", folder(tmp_path / "p"))
    pools = pools_of(read_only, Pool("other", folder(tmp_path / "other")))
    disk(read_only.folder, GIB, flags=os.ST_RDONLY)
    choice = pools.choose(1)
    assert choice.pool.name == "other"
    assert "is on a read-only file system" in choice.notes[0]
    assert pools.space(read_only).free_bytes == GIB


def test_a_pool_that_this_user_may_not_write_is_passed_over(tmp_path: Path, unprivileged: list[str]) -> None:
    script = """
import sys
from pathlib import Path
from fairmile.base.commands import Here
from fairmile.store.pools import Pool, Pools
pools = Pools([Pool("locked", Path(sys.argv[1]) / "locked"), Pool("home", Path(sys.argv[1]) / "mine")], runner=Here())
choice = pools.choose(1)
print(choice.pool.name, *choice.notes)
"""
    folder(tmp_path / "locked").chmod(0o500)
    with python(script, str(tmp_path), before=unprivileged) as process:
        said = process.communicate()[0]
    assert said == (f"home skipped pool 'locked', which cannot be used: no write permission in {tmp_path}/locked\n")


def test_without_any_pool_to_write_to_it_says_how_to_get_one(tmp_path: Path, unprivileged: list[str]) -> None:
    script = """
import sys
from pathlib import Path
from fairmile.base.commands import Here
from fairmile.base.errors import DiskFailure
from fairmile.store.pools import Pool, Pools
try:
    Pools([Pool("locked", Path(sys.argv[1]) / "locked")], runner=Here()).choose(1)
except DiskFailure as error:
    print(error.hint)
"""
    folder(tmp_path / "locked").chmod(0o500)
    with python(script, str(tmp_path), before=unprivileged) as process:
        said = process.communicate()[0]
    assert said == "get write permission there, or set FAIRMILE_HOME to a folder of your own\n"


def test_measured_speed_outranks_the_declared_one(three: Pools) -> None:
    def state(name: str, rate: float) -> None:
        (three[name].folder / "speed.json").write_text(json.dumps(SPEED | {"write_bytes_per_s": rate}))

    state("home", 2e9)
    assert [pool.name for pool in three.by_rank()] == ["home", "scratch", "archive"]
    state("scratch", 3e9)
    assert [pool.name for pool in three.by_rank()] == ["scratch", "home", "archive"]
    state("scratch", 1e6)
    assert [pool.name for pool in three.by_rank()] == ["home", "scratch", "archive"]


SPEED = {
    "write_bytes_per_s": 1e9, "read_bytes_per_s": 2e9, "creates_per_s": 1234.5, "size_bytes": 256_000_000,
    "small_files": 1000, "read_from": "storage", "file_system": "ext4", "host": "node7",
    "measured": "2026-11-15T12:00:00Z", "method": "by hand",
}  # fmt: skip


def test_the_ranking_explains_itself(three: Pools, tmp_path: Path) -> None:
    (three["scratch"].folder / "speed.json").write_text(json.dumps(SPEED))
    three = pools_of(*three, Pool("gone", tmp_path / "a" / "b", speed="fast"), replace(three["home"], purge_days=30))
    ranked = three.ranked(GIB)
    assert [each.pool.name for each in ranked] == ["scratch", "home", "home", "archive", "gone"]
    assert ranked[0].why.startswith(
        "writes 953.7 MiB/s, reads 1.9 GiB/s, creates 1234 small files/s (measured 2026-11-15 on node7); 3.0 GiB free"
        " (capacity); "
    )
    assert ranked[1].why.startswith("declared normal, not measured; 2.0 GiB free (capacity); ")
    assert ranked[2].why.endswith("; purged after 30 days")
    assert "archive" in ranked[3].why
    assert ranked[4].trouble.startswith("cannot be used: no folder") and ranked[4].space is None
    assert ranked[4].why == "declared fast, not measured"


def test_a_pool_without_room_is_ranked_last(three: Pools) -> None:
    ranked = three.ranked(4 * GIB)
    assert [(each.pool.name, bool(each.trouble)) for each in ranked] == [
        ("archive", False), ("scratch", True), ("home", True)
    ]  # fmt: skip


# Many at once

RESERVE = """
import os, sys
from pathlib import Path
from fairmile.base.errors import DiskFailure, SystemFailure
from fairmile.store.pools import Pool, Pools

root, capacity, size, name = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
blocks = 30 * 2**30 // 4096
os.statvfs = lambda path: os.statvfs_result((4096, 4096, blocks, blocks, blocks, 10**6, 10**6, 10**6, 0, 255))

class NoPrograms:
    def run(self, argv, **_):
        raise SystemFailure("no such program")

def pool(name):
    return Pool(name, root if name == "p" else root / name, capacity_bytes=capacity or None)

pools = Pools([pool(name)] if name == "p" else [pool("a"), pool("b")], runner=NoPrograms())
print("ready", flush=True)
sys.stdin.readline()
try:
    with pools.reserve(pools[name], size, "x"):
        print("held", flush=True)
        sys.stdin.read()
except DiskFailure as error:
    print(error, flush=True)
"""


def said_by(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def answers(workers: list[subprocess.Popen[str]]) -> list[str]:
    """What each of the processes says when all start at once and those who got something keep it."""
    assert {said_by(worker) for worker in workers} == {"ready"}
    for worker in workers:
        go(worker)
    said = [said_by(worker) for worker in workers]
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return said


@pytest.mark.thorough
def test_twenty_processes_never_reserve_more_than_there_is(tmp_path: Path) -> None:
    workers = [python(RESERVE, str(tmp_path), str(100 * MIB), str(15 * MIB), "p") for _ in range(20)]
    said = answers(workers)
    assert said.count("held") == 6
    assert sum("x needs 15.0 MiB; pool 'p' has" in text for text in said) == 14
    pool = Pool("p", tmp_path, capacity_bytes=100 * MIB)
    assert pools_of(pool).reservations(pool) == []


@pytest.mark.thorough
def test_twenty_processes_in_two_pools_never_reserve_more_than_their_file_system_has(tmp_path: Path) -> None:
    workers = [python(RESERVE, str(tmp_path), "0", str(4 * GIB), "ab"[number % 2]) for number in range(20)]
    assert answers(workers).count("held") == 7


def test_a_negative_size_is_refused(tmp_path: Path) -> None:
    pool = Pool("p", tmp_path)
    with pytest.raises(UsageError):
        pools_of(pool).reserve(pool, -1, "x")
