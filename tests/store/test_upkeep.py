"""Upkeep: lists and sums that tell the truth, and a check that finds every flipped bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_filling import LARGE, fill, flip_a_bit, loose, open_store, packs, small_files

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import NotFound
from fairmile.store.pools import Pool
from fairmile.store.store import Store

FILES = {"a.bin": LARGE, "sub/b.txt": b"small"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path, Pool("home", tmp_path / "home"), Pool("scratch", tmp_path / "scratch"))


# ls


def test_every_name_is_listed_with_what_it_stands_for(store: Store) -> None:
    ref = fill(store, "lake", FILES, pool="scratch")
    [row] = store.ls()
    assert (row.kind, row.name, row.root, row.files) == ("card", "lake", ref.root, 2)
    assert (row.size_bytes, row.pool, row.complete) == (len(LARGE) + 5, "scratch", True)
    assert row.used == store.refs()[0].used


def test_a_purged_scratch_leaves_incomplete_names(store: Store) -> None:
    ref = fill(store, "lake", FILES)
    shutil.rmtree(store.pools["home"].folder / "objects")
    assert [row.complete for row in store.ls()] == [False]
    assert {entry.path for entry in store.missing(ref)} == set(FILES)
    fill(store, "again", FILES, pool="scratch")
    assert [row.complete for row in store.ls()] == [True, True]


# du


def test_the_sums_of_a_pool_add_up(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "many", small_files(20))
    (store.pools["home"].folder / "incoming" / "half").mkdir(parents=True)
    (store.pools["home"].folder / "incoming" / "half" / "data").write_bytes(b"12345")
    with store.pools.reserve(store.pools["home"], 1000, "test"):
        home, scratch = store.du()
    [pack] = packs(store)
    assert (home.pool, home.folder) == ("home", str(store.pools["home"].folder))
    assert (home.objects, home.objects_bytes) == (22, len(LARGE) + 5 + pack.stat().st_size)
    assert (home.packed, home.packed_bytes) == (20, pack.stat().st_size)
    assert (home.incoming_bytes, home.reserved_bytes, home.damaged_bytes, home.shared_bytes) == (5, 1000, 0, 0)
    assert home.free_bytes
    assert (scratch.objects, scratch.incoming_bytes) == (0, 0)


def test_bytes_of_two_trees_are_shared_but_not_those_of_two_names_for_one(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "same", FILES)
    assert [row.shared_bytes for row in store.du()] == [0, 0]
    fill(store, "other", {"copy": LARGE, "twice": LARGE, "own": b"own"})
    assert [row.shared_bytes for row in store.du()] == [len(LARGE), 0]


def test_a_pool_that_cannot_be_reached_is_told_and_the_others_are_summed(tmp_path: Path) -> None:
    store = open_store(tmp_path, Pool("far", tmp_path / "not" / "mounted" / "pool"), Pool("home", tmp_path / "home"))
    fill(store, "lake", FILES)
    far, home = store.du()
    assert "no folder" in far.trouble
    assert far.free_bytes is None
    assert home.objects == 2


# verify


def test_what_is_right_is_counted_and_nothing_is_touched(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "many", small_files(20), pool="scratch")
    seen: list[int] = []
    report = store.verify(on_bytes=seen.append)
    total = len(LARGE) + 5 + sum(map(len, small_files(20).values()))
    assert (report.objects, report.size_bytes, report.damaged, report.incomplete) == (22, total, (), ())
    assert sum(seen) == total
    assert store.damaged() == []


def test_a_flipped_bit_is_found_and_the_object_is_never_served_again(store: Store) -> None:
    ref = fill(store, "lake", FILES)
    fill(store, "sea", {"other": b"other"})
    path = loose(store, LARGE)
    flip_a_bit(path, 70_000)
    report = store.verify()
    [found] = report.damaged
    assert (found.pool, found.path, found.sha256) == ("home", str(path), sha256_hex(LARGE))
    assert found.names == ("card lake",)
    assert found.put_aside
    assert "its bytes have the sha256" in found.reason
    assert report.incomplete == ("card lake",)
    assert sha256_hex(LARGE) not in store
    assert store.damaged() == [sha256_hex(LARGE)]
    assert [entry.path for entry in store.missing(ref)] == ["a.bin"]
    assert [row.damaged_bytes for row in store.du()] == [len(LARGE), 0]


def test_what_was_damaged_and_came_again_is_right_again(store: Store) -> None:
    fill(store, "lake", FILES)
    flip_a_bit(loose(store, LARGE))
    store.verify()
    fill(store, "lake", FILES)
    assert store.damaged() == []
    assert store.verify().damaged == ()
    assert store.complete("lake")


def test_a_shortened_object_is_found(store: Store) -> None:
    fill(store, "lake", FILES)
    path = loose(store, LARGE)
    path.chmod(0o600)
    path.write_bytes(LARGE[:-1])
    assert len(store.verify().damaged) == 1


def test_another_pools_good_copy_still_serves(store: Store) -> None:
    fill(store, "lake", FILES, pool="home")
    fill(store, "lake", FILES, pool="scratch")
    flip_a_bit(loose(store, LARGE, "home"))
    report = store.verify()
    assert len(report.damaged) == 1
    assert report.incomplete == ()
    assert store.damaged() == []
    assert store.complete("lake")


@pytest.mark.parametrize("names", [(), ("many",)])
def test_damage_within_a_pack_costs_that_object_alone(store: Store, names: tuple[str, ...]) -> None:
    files = small_files(30)
    fill(store, "many", files)
    [pack] = packs(store)
    data = files["part/0003.txt"]
    flip_a_bit(pack, pack.read_bytes().index(data))
    report = store.verify(names)
    assert [(found.sha256, found.names) for found in report.damaged] == [(sha256_hex(data), ("card many",))]
    assert [entry.path for entry in store.missing("many")] == ["part/0003.txt"]
    assert store.damaged() == [sha256_hex(data)]
    assert store.verify().damaged == ()


def test_two_damaged_objects_of_one_pack_are_taken_out_together(store: Store) -> None:
    files = small_files(30)
    fill(store, "many", files)
    [pack] = packs(store)
    for name in ("part/0003.txt", "part/0017.txt"):
        flip_a_bit(pack, pack.read_bytes().index(files[name]))
    assert len(store.verify().damaged) == 2
    assert len(list(store.missing("many"))) == 2
    assert store.verify().damaged == ()


def test_a_pack_whose_index_is_broken_is_put_aside(store: Store) -> None:
    fill(store, "many", small_files(30))
    fill(store, "lake", FILES)
    [pack] = packs(store)
    flip_a_bit(pack, pack.stat().st_size - 100)
    report = store.verify()
    assert [found.path for found in report.damaged] == [str(pack)]
    assert report.incomplete == ("card many",)
    assert not pack.exists()
    fill(store, "many", small_files(30))
    assert store.complete("many")
    assert store.verify().damaged == ()


def test_a_good_file_is_not_lost_with_its_damaged_double_in_a_pack(store: Store) -> None:
    files = small_files(30)
    fill(store, "many", files)
    [pack] = packs(store)
    data = files["part/0003.txt"]
    path = store.pools["home"].folder / "objects" / sha256_hex(data)[:2] / sha256_hex(data)[2:]
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    flip_a_bit(pack, pack.read_bytes().index(data))
    assert len(store.verify().damaged) == 1
    assert store.complete("many")
    assert store.verify().damaged == ()


def test_a_damaged_tree_is_put_aside_and_its_name_is_incomplete(store: Store) -> None:
    ref = fill(store, "lake", FILES)
    flip_a_bit(store.pools["home"].folder / "trees" / ref.root[:2] / ref.root[2:], 1)
    report = store.verify(["lake"])
    assert [(found.sha256, found.names) for found in report.damaged] == [(ref.root, ("card lake",))]
    assert report.incomplete == ("card lake",)
    assert not any(ref.root in store.trees(pool) for pool in store.pools)


def test_a_damaged_name_is_put_aside(store: Store) -> None:
    fill(store, "lake", FILES)
    path = store.pool_refs(store.pools["home"]).path("card", "lake")
    path.write_text("{")
    report = store.verify()
    assert [found.path for found in report.damaged] == [str(path)]
    assert not path.exists()
    assert store.verify().damaged == ()


def test_only_what_is_named_is_read(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "sea", {"x": b"x"})
    flip_a_bit(loose(store, LARGE))
    report = store.verify(["sea"])
    assert (report.objects, report.size_bytes, report.damaged) == (1, 1, ())
    report = store.verify(["lake"])
    assert (report.objects, len(report.damaged)) == (2, 1)


def test_an_unknown_name_is_told_before_anything_is_read(store: Store) -> None:
    with pytest.raises(NotFound):
        store.verify(["lake"])


def test_what_was_purged_is_incomplete_and_not_damaged(store: Store) -> None:
    fill(store, "lake", FILES)
    loose(store, LARGE).unlink()
    report = store.verify()
    assert (report.damaged, report.incomplete) == ((), ("card lake",))


def test_damage_in_a_pool_that_cannot_be_written_is_told_all_the_same(
    store: Store, tmp_path: Path, unprivileged: list[str]
) -> None:
    fill(store, "lake", FILES)
    fill(store, "many", small_files(20))
    flip_a_bit(loose(store, LARGE))
    [pack] = packs(store)
    flip_a_bit(pack, 0)
    for folder in (tmp_path / "home").rglob("*"):
        if folder.is_dir():
            folder.chmod(0o555)
    (tmp_path / "home").chmod(0o555)
    program = (
        "import sys; from pathlib import Path; from store_filling import open_store\n"
        f"report = open_store(Path({str(tmp_path / 'home')!r})).verify()\n"
        "print(len(report.damaged), any(found.put_aside for found in report.damaged))"
    )
    here = str(Path(__file__).parents[1] / "support")
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    for folder in (tmp_path / "home", *(tmp_path / "home").rglob("*")):
        if folder.is_dir():
            folder.chmod(0o755)
    assert done.stdout == "2 False\n", done.stderr
