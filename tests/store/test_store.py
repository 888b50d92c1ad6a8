"""The store: several pools seen as one, names, pins, and data materialized from wherever it is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from store_filling import LARGE, age, fill, loose, open_store, packs, small_files

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Conflict, Integrity, NotFound, UsageError
from fairmile.store.pools import Pool
from fairmile.store.store import Store

FILES = {"a.bin": LARGE, "sub/b.txt": b"small"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two pools, of which the fast one is declared last."""
    (tmp_path / "view").mkdir()
    return open_store(
        tmp_path, Pool("home", tmp_path / "home"), Pool("scratch", tmp_path / "scratch", speed="fast", links=("copy",))
    )


def content(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_old_name_of_materialize_works_and_warns(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", {"a": b"one"})
    with pytest.warns(DeprecationWarning, match=r"Store\.lay is now Store\.materialize"):
        assert store.lay(ref, tmp_path / "view").files == 1


# Objects


def test_an_object_is_found_in_whatever_pool_it_lies(store: Store) -> None:
    fill(store, "a", {"a": LARGE}, pool="home")
    digest = sha256_hex(LARGE)
    assert digest in store
    assert store.size(digest) == len(LARGE)
    assert store.path(digest) == loose(store, LARGE)
    with store.open(digest) as stream:
        assert stream.read() == LARGE


def test_the_fast_pool_is_asked_first(store: Store) -> None:
    for pool in ("home", "scratch"):
        fill(store, "a", {"a": LARGE}, pool=pool)
    assert store.path(sha256_hex(LARGE)) == loose(store, LARGE, "scratch")


def test_what_no_pool_holds_is_not_there(store: Store) -> None:
    digest = sha256_hex(b"nowhere")
    assert digest not in store
    assert 7 not in store
    assert (store.path(digest), store.size(digest)) == (None, None)
    with pytest.raises(NotFound, match="no pool holds the object"):
        store.open(digest)


def test_a_pool_that_vanished_is_a_cache_miss(store: Store) -> None:
    ref = fill(store, "a", {"a": LARGE}, pool="scratch")
    shutil.rmtree(store.pools["scratch"].folder)
    assert sha256_hex(LARGE) not in store
    assert not any(ref.root in store.trees(pool) for pool in store.pools)
    assert not store.complete(ref.root)
    assert store.refs() == []
    assert [row.trouble for row in store.du()] == ["", ""]


def test_a_pool_that_became_a_file_is_a_cache_miss(store: Store) -> None:
    ref = fill(store, "a", {"a": LARGE}, pool="scratch")
    shutil.rmtree(store.pools["scratch"].folder)
    store.pools["scratch"].folder.write_text("no folder any more")
    assert sha256_hex(LARGE) not in store
    assert not store.complete(ref.root)
    fill(store, "a", {"a": LARGE}, pool="home")
    assert store.complete(ref.root)


def test_another_pool_serves_what_one_holds_in_a_broken_pack(store: Store) -> None:
    for pool in ("home", "scratch"):
        fill(store, "many", small_files(20), pool=pool)
    [pack] = packs(store, "scratch")
    pack.chmod(0o600)
    with open(pack, "r+b") as stream:
        stream.seek(0, 2)
        footer = pack.read_bytes()[-(20 * 52 + 16) :]
        stream.truncate(40)
        stream.write(footer)
    data = small_files(20)["part/0007.txt"]
    with open_store(Path(), *store.pools).open(sha256_hex(data)) as found:
        assert found.read() == data


# Trees


def test_a_tree_with_all_its_objects_is_complete(store: Store) -> None:
    ref = fill(store, "a", FILES)
    assert any(ref.root in store.trees(pool) for pool in store.pools)
    assert [entry.path for entry in store.tree(ref.root)] == ["a.bin", "sub/b.txt"]
    assert store.complete(ref)
    assert list(store.missing(ref)) == []


def test_a_tree_without_one_of_its_objects_is_incomplete_and_tells_which(store: Store) -> None:
    ref = fill(store, "a", FILES)
    loose(store, b"small").unlink()
    assert not store.complete(ref)
    assert [entry.path for entry in store.missing("a")] == ["sub/b.txt"]
    assert [row.complete for row in store.ls()] == [False]


def test_the_objects_of_a_tree_may_lie_in_several_pools(store: Store, tmp_path: Path) -> None:
    fill(store, "part", {"b": b"small"}, pool="scratch")
    ref = fill(store, "a", FILES, pool="home")
    loose(store, b"small", "home").unlink()
    assert store.complete(ref)
    store.materialize(ref, tmp_path / "view")
    assert content(tmp_path / "view") == FILES


def test_a_tree_that_nobody_has_is_not_found(store: Store) -> None:
    assert not any("0" * 64 in store.trees(pool) for pool in store.pools)
    assert not store.complete("0" * 64)
    with pytest.raises(NotFound, match="no pool holds the tree"):
        store.tree("0" * 64)


def test_a_tree_that_is_put_again_counts_as_new(store: Store) -> None:
    ref = fill(store, "a", FILES)
    path = store.pools["home"].folder / "trees" / ref.root[:2] / ref.root[2:]
    age(path, 1e6)
    store.put_tree(list(store.tree(ref.root)), store.pools["home"])
    assert time.time() - path.stat().st_mtime < 1e5


def test_a_damaged_manifest_makes_a_tree_incomplete(store: Store) -> None:
    ref = fill(store, "a", FILES)
    path = store.pools["home"].folder / "trees" / ref.root[:2] / ref.root[2:]
    path.chmod(0o600)
    path.write_bytes(b"\xff")
    assert not store.complete(ref)
    with pytest.raises(Integrity):
        list(store.tree(ref.root))


# Laying out


def test_data_is_laid_out_by_name_root_or_ref(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "builtin/dataset/lake@1.0", FILES)
    for number, target in enumerate((ref, ref.root, "lake")):
        files = store.materialize(target, tmp_path / "view" / str(number))
        assert files.files == 2
        assert content(tmp_path / "view" / str(number)) == FILES


def test_a_pool_decides_how_its_files_are_laid_out(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", {"a": LARGE}, pool="scratch")
    assert store.materialize(ref, tmp_path / "view").ways == {"copy": 1}
    assert (tmp_path / "view" / "a").stat().st_nlink == 1


def test_whoever_edits_a_file_that_was_laid_out_leaves_the_store_as_it_was(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", FILES)
    store.materialize(ref, tmp_path / "view")
    for name in FILES:
        with open(tmp_path / "view" / name, "r+b") as file:
            file.write(b"edited")
    assert store.path(sha256_hex(LARGE)) is not None
    for data in FILES.values():
        with store.open(sha256_hex(data)) as stream:
            assert stream.read() == data


def test_a_folder_of_fairmile_s_own_shares_the_bytes_of_the_store(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", {"a": LARGE})
    assert store.materialize(ref, tmp_path / "view", is_cache=True).ways.keys() <= {"reflink", "hardlink"}
    assert not (tmp_path / "view" / "a").stat().st_mode & 0o222


def test_laying_out_notes_the_use(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", FILES)
    age(store.pool_refs(store.pools["home"]).path("card", "a"), 1e6)
    store.materialize(ref, tmp_path / "view")
    assert time.time() - store.ls()[0].used < 1e5


def test_what_is_gone_cannot_be_laid_out(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "a", FILES)
    loose(store, b"small").unlink()
    with pytest.raises(NotFound):
        store.materialize(ref, tmp_path / "view")


# Names


def test_the_newest_of_several_pools_is_what_a_name_stands_for(store: Store) -> None:
    old = fill(store, "a", FILES, pool="scratch")
    new = fill(store, "a", {"other": b"x"}, pool="home")
    store.set_ref(replace(old, created=new.created - 10), store.pools["scratch"])
    assert store.ref("card", "a") == new
    assert store.refs() == [new]
    assert [pool.name for pool, _ in store.held_refs()] == ["home"]


def test_a_dropped_name_is_gone_from_every_pool(store: Store) -> None:
    for pool in ("home", "scratch"):
        fill(store, "a", FILES, pool=pool)
    assert store.drop_ref("card", "a")
    assert store.refs() == []
    assert not store.drop_ref("card", "a")


def test_names_come_sorted_by_kind_and_name(store: Store) -> None:
    fill(store, "https://example.org", FILES, kind="url", pool="scratch")
    fill(store, "b", FILES)
    fill(store, "a", FILES, pool="scratch")
    assert [str(ref) for ref in store.refs()] == ["card a", "card b", "url https://example.org"]
    assert [ref.name for ref in store.refs("card")] == ["a", "b"]


@pytest.mark.parametrize(
    "typed", ["lab/dataset/lake@1.0", "dataset/lake@1.0", "lake@1.0", "dataset/lake", "lake", "lab/dataset/lake"]
)
def test_the_end_of_a_name_is_enough_with_or_without_its_version(store: Store, typed: str) -> None:
    ref = fill(store, "lab/dataset/lake@1.0", FILES)
    fill(store, "lab/dataset/lake@1.0 limit=1", {"a.bin": LARGE})
    fill(store, "lab/dataset/snowflake@1.0", {"s": b"s"})
    assert store.find(typed) == ref


def test_a_part_of_an_asset_is_found_when_there_is_nothing_more(store: Store) -> None:
    ref = fill(store, "lab/dataset/lake@1.0 limit=1", FILES)
    assert store.find("lake") == store.find("lake@1.0") == ref


def test_a_whole_name_comes_before_the_end_of_another(store: Store) -> None:
    fill(store, "lab/lake", FILES)
    ref = fill(store, "lake", {"x": b"x"})
    assert store.find("lake") == ref


def test_a_name_that_can_mean_two_things_is_asked_back(store: Store) -> None:
    fill(store, "lab/dataset/lake@1.0", FILES)
    fill(store, "lab/dataset/lake@2.0", {"x": b"x"})
    with pytest.raises(Conflict, match=r"'lake' can mean lab/dataset/lake@1\.0, lab/dataset/lake@2\.0"):
        store.find("lake")


def test_two_names_for_one_tree_are_no_question(store: Store) -> None:
    fill(store, "lab/lake", FILES)
    fill(store, "group/lake", FILES)
    assert store.find("lake").root == store.refs()[0].root


def test_an_unknown_name_brings_the_nearest(store: Store) -> None:
    fill(store, "lab/dataset/lake@1.0", FILES)
    with pytest.raises(NotFound, match=r"nothing in the store is named 'lake@2.0'; did you mean 'lake@1.0'\?"):
        store.find("lake@2.0")


# Pins


def test_a_pin_keeps_what_the_name_stood_for_then(store: Store) -> None:
    ref = fill(store, "lake", FILES, pool="scratch")
    pin = store.pin("lake", "paper")
    fill(store, "lake", {"new": b"x"}, pool="scratch")
    assert (pin.kind, pin.name, pin.root, pin.details) == ("pin", "paper", ref.root, {"of": "card lake"})
    assert [each.facts() | {"used": 0} for each in store.pins()] == [pin.facts() | {"used": 0}]
    assert [pool.name for pool, _ in store.held_refs("pin")] == ["scratch"]
    assert store.find("paper").root == ref.root


def test_a_pin_without_a_label_has_the_name(store: Store) -> None:
    fill(store, "lab/lake@1", FILES)
    assert store.pin("lake").name == "lab/lake@1"


def test_pinning_again_is_no_error_but_a_label_keeps_one_thing(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "sea", {"x": b"x"})
    store.pin("lake", "paper")
    store.pin("lake", "paper")
    with pytest.raises(Conflict, match="a pin named 'paper' keeps something else"):
        store.pin("sea", "paper")
    assert len(store.refs("pin")) == 1


def test_a_dry_run_pins_and_unpins_nothing(store: Store) -> None:
    fill(store, "lake", FILES)
    store.pin("lake", "paper", dry_run=True)
    assert store.refs("pin") == []
    store.pin("lake", "paper")
    store.unpin("paper", dry_run=True)
    assert len(store.refs("pin")) == 1


def test_an_unpinned_label_is_gone(store: Store) -> None:
    fill(store, "lake", FILES)
    store.pin("lake", "paper")
    store.unpin("paper")
    assert store.refs("pin") == []
    for dry_run in (True, False):
        with pytest.raises(NotFound, match="no pin is named 'paper'"):
            store.unpin("paper", dry_run=dry_run)


def test_a_pin_of_what_is_not_there_is_refused(store: Store) -> None:
    with pytest.raises(NotFound):
        store.pin("lake")


def test_without_a_settings_file_pools_cannot_be_changed(store: Store) -> None:
    with pytest.raises(UsageError, match="without a settings file"):
        store.add_pool("scratch2", "/tmp/scratch2")
    with pytest.raises(UsageError, match="without a settings file"):
        store.remove_pool("scratch")
