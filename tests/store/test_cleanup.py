"""Clean-up: nothing that is needed goes, nothing that is not needed stays, beside whatever is under way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from store_filling import LARGE, age, fill, flip_a_bit, loose, open_store, packs, small_files

from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.base.errors import Integrity
from fairmile.base.files import Lock
from fairmile.store import cleanup
from fairmile.store.cleanup import GcPlan, PoolPlan
from fairmile.store.pools import Pool
from fairmile.store.store import Ref, Store

FILES = {"a.bin": LARGE, "sub/b.txt": b"small"}
DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "pool")


def keep_all(_: Ref) -> bool:
    return True


def keep_none(_: Ref) -> bool:
    return False


def gc(store: Store, keep: Callable[[Ref], bool] = keep_none, **options: Any) -> PoolPlan:
    """Clean up without a grace and return what was removed from the only pool."""
    [plan] = store.gc(keep, **{"grace_s": 0.0, **options}).pools
    return replace(plan, kept_leftovers=0, kept_leftovers_bytes=0)


def everything(store: Store) -> set[str]:
    folder = store.pools["home"].folder
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# What is kept


def test_what_a_kept_name_refers_to_stays(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "many", small_files(20))
    before = everything(store)
    plan = gc(store, keep_all)
    assert plan == PoolPlan("home")
    assert everything(store) == before


def test_what_no_name_refers_to_goes_and_the_disk_gets_it_back(store: Store) -> None:
    fill(store, "lake", FILES)
    ref = fill(store, "sea", {"s.bin": LARGE[::-1], "b.txt": b"small", "own.txt": b"own"})
    plan = gc(store, lambda ref: ref.name == "lake")
    assert [each.name for each in plan.refs] == ["sea"]
    assert plan.trees == (ref.root,)
    assert (plan.objects, plan.objects_bytes) == (2, len(LARGE) + 3)
    assert [row.name for row in store.ls()] == ["lake"]
    assert store.complete("lake")
    assert not any(ref.root in store.trees(pool) for pool in store.pools)
    assert sha256_hex(b"own") not in store
    assert gc(store, keep_all) == PoolPlan("home")


def test_packs_are_written_anew_without_what_goes(store: Store) -> None:
    fill(store, "many", small_files(20))
    fill(store, "more", {**small_files(20, "other"), "part/0003.txt": small_files(20)["part/0003.txt"]})
    plan = gc(store, lambda ref: ref.name == "more")
    assert plan.objects == 19
    assert store.complete("more")
    assert store.verify().objects == 20
    assert sum(pack.stat().st_size for pack in packs(store)) < 2500


def test_packs_that_share_objects_go_together(store: Store) -> None:
    datas = list(small_files(100).values())
    for part in (datas[:60], datas[40:]):  # as two calls of `fetch --fresh` leave them
        with store.objects(store.pools["home"]).batch(anew=True) as batch:
            for data in part:
                batch.add(data)
    assert gc(store).objects == 100
    assert everything(store) == set()


def test_a_pin_keeps_what_its_name_no_longer_does(store: Store) -> None:
    fill(store, "lake", FILES)
    store.pin("lake", "paper")
    plan = gc(store)
    assert [str(ref) for ref in plan.refs] == ["card lake"]
    assert plan.objects == 0
    assert store.complete("paper")
    store.unpin("paper")
    assert gc(store).objects == 2
    assert everything(store) == set()


def test_an_address_is_kept_until_it_was_not_used_for_long(store: Store, tmp_path: Path) -> None:
    ref = fill(store, "https://example.org/a", FILES, kind="url")
    path = store.pool_refs(store.pools["home"]).path("url", ref.name)
    age(path, 29 * DAY)
    assert gc(store).refs == ()
    age(path, 31 * DAY)
    store.materialize(ref, tmp_path / "view")
    assert gc(store).refs == ()
    age(path, 31 * DAY)
    assert gc(store, older_than_s=40 * DAY).refs == ()
    assert gc(store).refs == (ref,)


def test_the_caller_decides_about_cards_and_runs(store: Store) -> None:
    fill(store, "card", {"a": b"a"})
    fill(store, "run", {"b": b"b"}, kind="run")
    asked: list[str] = []
    gc(store, lambda ref: bool(asked.append(str(ref))) or True)
    assert sorted(asked) == ["card card", "run run"]


def test_names_of_other_users_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "theirs", FILES)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert gc(store) == PoolPlan("home")
    assert store.complete("theirs")


def test_a_name_that_a_newer_one_in_another_pool_replaced_goes(tmp_path: Path) -> None:
    store = open_store(tmp_path, Pool("home", tmp_path / "home"), Pool("scratch", tmp_path / "scratch"))
    old = fill(store, "lake", FILES, pool="scratch")
    store.set_ref(replace(old, created=old.created - 100), store.pools["scratch"])
    fill(store, "lake", {"new": b"new"}, pool="home")
    home, scratch = store.gc(keep_all, grace_s=0.0).pools
    assert (home.refs, home.objects) == ((), 0)
    assert ([ref.root for ref in scratch.refs], scratch.objects) == ([old.root], 2)
    assert store.complete("lake")


def test_objects_stay_that_a_name_of_another_pool_refers_to(tmp_path: Path) -> None:
    store = open_store(tmp_path, Pool("home", tmp_path / "home"), Pool("scratch", tmp_path / "scratch"))
    fill(store, "part", {"a.bin": LARGE}, pool="scratch")
    fill(store, "lake", FILES, pool="home")
    loose(store, LARGE, "home").unlink()
    store.gc(lambda ref: ref.name == "lake", grace_s=0.0)
    assert [row.name for row in store.ls()] == ["lake"]
    assert store.complete("lake")


def test_a_name_whose_tree_was_purged_is_no_reason_to_stop(store: Store) -> None:
    fill(store, "lake", FILES)
    shutil.rmtree(store.pools["home"].folder / "trees")
    assert gc(store, keep_all).objects == 2
    assert [row.complete for row in store.ls()] == [False]


@settings(max_examples=examples(25), deadline=None)
@given(
    trees=st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=5),
    kept=st.sets(st.integers(0, 4)),
    large=st.booleans(),
)
def test_exactly_what_kept_names_refer_to_is_left(
    tmp_path_factory: pytest.TempPathFactory, trees: list[set[int]], kept: set[int], large: bool
) -> None:
    store = open_store(tmp_path_factory.mktemp("pool"))
    contents = [
        {f"{number}": f"{number} ".encode() * (40_000 if large else 1) for number in numbers} for numbers in trees
    ]
    for number, files in enumerate(contents):
        fill(store, str(number), files)
    store.gc(lambda ref: int(ref.name) in kept, grace_s=0.0)
    wanted = {sha256_hex(data) for number, files in enumerate(contents) if number in kept for data in files.values()}
    assert {digest for digest, _ in store.objects(store.pools["home"]).items()} == wanted
    assert {row.name for row in store.ls() if row.complete} == {str(each) for each in kept if each < len(trees)}
    assert store.verify().damaged == ()


# A plan first


def test_a_dry_run_shows_the_plan_and_removes_nothing(store: Store) -> None:
    fill(store, "lake", FILES)
    leftover = store.pools["home"].folder / "incoming" / "half"
    leftover.mkdir(parents=True)
    (leftover / "data").write_bytes(b"12345")
    age(leftover, 2 * DAY)
    before = everything(store)
    dry = store.gc(keep_none, grace_s=0.0, dry_run=True)
    assert everything(store) == before
    assert dry.size_bytes == len(LARGE) + 5 + 5
    wet = store.gc(keep_none, grace_s=0.0)
    assert wet == GcPlan(dry.pools, dry_run=False)
    assert everything(store) == set()


def test_what_is_linked_into_a_working_folder_gives_nothing_back(tmp_path: Path) -> None:
    store = open_store(tmp_path, Pool("home", tmp_path / "pool", links=("hardlink",)))
    fill(store, "lake", FILES)
    store.materialize("lake", tmp_path / "view")
    plan = gc(store)
    assert (plan.objects, plan.objects_bytes) == (2, 0)
    assert (tmp_path / "view" / "a.bin").read_bytes() == LARGE


def test_a_name_that_cannot_be_read_stops_the_clean_up(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "sea", {"x": b"x"})
    store.pool_refs(store.pools["home"]).path("card", "lake").write_text("{")
    with pytest.raises(Integrity, match="cannot be read, so its references are unknown"):
        gc(store, keep_all)
    assert sha256_hex(LARGE) in store


def test_a_tree_that_cannot_be_read_stops_the_clean_up(store: Store) -> None:
    ref = fill(store, "lake", FILES)
    path = store.pools["home"].folder / "trees" / ref.root[:2] / ref.root[2:]
    path.chmod(0o600)
    path.write_text("no manifest\n")
    with pytest.raises(Integrity, match="the references of a tree are unknown"):
        gc(store, keep_all)
    assert sha256_hex(LARGE) in store


# Beside a fetch


def test_what_is_young_is_left_alone(store: Store) -> None:
    home = store.pools["home"]
    with store.objects(home).batch() as batch:
        entries = [ManifestEntry(name, len(data), batch.add(data), 0o644) for name, data in FILES.items()]
    before = everything(store)
    assert gc(store, grace_s=DAY) == PoolPlan("home")
    store.put_tree(entries, home)
    assert gc(store, grace_s=DAY) == PoolPlan("home")
    assert everything(store) > before


def test_a_young_tree_protects_old_objects(store: Store) -> None:
    old = fill(store, "old", {"a.bin": LARGE})
    home = store.pools["home"]
    entry = ManifestEntry("renamed.bin", len(LARGE), sha256_hex(LARGE), 0o644)
    root = store.put_tree([entry], home)
    age(home.folder / "trees" / old.root[:2] / old.root[2:], 2 * DAY)
    with ctime_days_ago(2):
        plan = gc(store, grace_s=DAY)
    assert [ref.name for ref in plan.refs] == ["old"]
    assert (len(plan.trees), plan.objects) == (1, 0)
    assert store.complete(root)


@contextmanager
def ctime_days_ago(days: float) -> Iterator[None]:
    """Let every file look as if its state had changed that long ago, which no program can bring about."""
    real = os.lstat

    class Older:
        def __init__(self, status: os.stat_result) -> None:
            self._status = status

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._status, name)
            return value - days * DAY if name == "st_ctime" else value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "lstat", lambda *args, **options: Older(real(*args, **options)))
        yield


def test_old_objects_go_with_the_usual_grace(store: Store) -> None:
    fill(store, "lake", FILES)
    fill(store, "many", small_files(20))
    age(store.pools["home"].folder / "trees", 2 * DAY)
    assert gc(store, grace_s=DAY, dry_run=True).objects == 0
    with ctime_days_ago(2):
        assert gc(store, grace_s=DAY).objects == 22


def test_what_an_unfinished_fetch_has_noted_is_kept(store: Store) -> None:
    home = store.pools["home"]
    with store.objects(home).batch() as batch:
        digest = batch.add(LARGE)
    notes = home.folder / "incoming" / "asset-1.done"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text(json.dumps(["item a.bin", [["a.bin", len(LARGE), digest, 0o644]]]) + "\n")
    assert gc(store) == PoolPlan("home")
    age(notes, 2 * DAY)
    with Lock(notes.with_suffix(".lock")):
        assert gc(store) == PoolPlan("home")
    plan = gc(store)
    assert plan.leftovers == (str(notes),)
    assert plan.objects == 1


def test_a_half_done_transfer_is_kept_while_it_is_young_or_held(store: Store) -> None:
    part = store.pools["home"].folder / "incoming" / "0123abcd"
    part.mkdir(parents=True)
    (part / "data").write_bytes(b"half")
    assert gc(store).leftovers == ()
    age(part, 2 * DAY)
    with Lock(part.with_name("0123abcd.lock")):
        assert gc(store).leftovers == ()
    plan = gc(store)
    assert (plan.leftovers, plan.leftovers_bytes) == ((str(part),), 4)
    assert everything(store) == set()


def test_one_young_file_keeps_its_whole_transfer(store: Store) -> None:
    part = store.pools["home"].folder / "incoming" / "0123abcd"
    part.mkdir(parents=True)
    (part / "data").write_bytes(b"half")
    (part / "journal.json").write_text("{}")
    age(part, 2 * DAY)
    age(part / "journal.json", 2 * 3600)
    assert gc(store, grace_s=DAY).leftovers == ()
    assert len(gc(store).leftovers) == 1


def test_even_without_a_grace_an_hour_is_given_to_what_holds_no_lock(store: Store) -> None:
    home = store.pools["home"]
    with store.objects(home).batch() as batch:
        batch.add(LARGE)
        assert gc(store).leftovers == ()
    assert sha256_hex(LARGE) in store


def test_what_a_dead_process_left_is_removed_with_its_lock(store: Store) -> None:
    incoming = store.pools["home"].folder / "incoming"
    program = (
        "import os, sys; from pathlib import Path; from fairmile.base.files import Lock\n"
        f"incoming = Path({str(incoming)!r})\n"
        "Lock(incoming / 'part.lock').__enter__()\n"
        "(incoming / 'part').mkdir(); (incoming / 'part' / 'data').write_bytes(b'half')\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert (incoming / "part.lock").exists()
    assert gc(store).leftovers == (), "it may have died this instant"
    age(incoming, 2 * DAY)
    assert len(gc(store).leftovers) == 2
    assert everything(store) == set()


def test_files_that_were_being_written_aside_are_found(store: Store) -> None:
    fill(store, "lake", FILES)
    folder = store.pools["home"].folder
    for path in (folder / ".tmp-1234", folder / "refs" / "card" / ".tmp-5678"):
        path.write_text("half")
    assert gc(store, keep_all).leftovers == ()
    for path in (folder / ".tmp-1234", folder / "refs" / "card" / ".tmp-5678"):
        age(path, 2 * DAY)
    plan = gc(store, keep_all)
    assert (len(plan.leftovers), plan.leftovers_bytes) == (2, 8)
    assert not (folder / ".tmp-1234").exists()
    assert store.complete("lake")


def test_reservations_of_dead_processes_go_and_those_of_living_ones_stay(store: Store) -> None:
    home = store.pools["home"]
    program = (
        "import os, sys; from pathlib import Path; from store_filling import open_store\n"
        f"store = open_store(Path({str(home.folder)!r}))\n"
        "store.pools.reserve(store.pools['home'], 1000, 'killed').__enter__(); os._exit(9)"
    )
    support = str(Path(__file__).parents[1] / "support")
    home.folder.mkdir()
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})\n{program}"], check=False)
    with store.pools.reserve(home, 2000, "alive"):
        assert gc(store).reservations == 1
        assert [held.what for held in store.pools.reservations(home)] == ["alive"]


def test_a_name_that_comes_between_plan_and_removal_keeps_its_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = fill(store, "lake", FILES)
    real = Store.pool_refs
    calls = 0

    def interrupted(self: Store, pool: Pool) -> Any:
        nonlocal calls
        refs = real(self, pool)
        drop = refs.drop

        def and_set_another(*args: Any) -> bool:
            nonlocal calls
            calls += 1
            store.set_ref(replace(ref, name="late"), pool)
            return drop(*args)

        refs.drop = and_set_another  # type: ignore[method-assign]
        return refs

    monkeypatch.setattr(Store, "pool_refs", interrupted)
    gc(store)
    monkeypatch.undo()
    assert calls == 1
    assert [row.name for row in store.ls()] == ["late"]
    assert store.complete("late")


def test_a_name_used_between_plan_and_removal_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = fill(store, "https://example.org/a", FILES, kind="url")
    path = store.pool_refs(store.pools["home"]).path("url", ref.name)
    age(path, 31 * DAY)
    facts = cleanup._Sweep.facts

    def and_touch(self: Any) -> PoolPlan:
        store.touch(ref)
        return facts(self)

    monkeypatch.setattr(cleanup._Sweep, "facts", and_touch)
    plan = gc(store)
    assert len(plan.refs) == 1
    assert store.complete(ref.name)


def test_names_that_come_while_it_works_lose_nothing(store: Store) -> None:
    fill(store, "first", FILES)

    def bring() -> None:
        for number in range(20):
            fill(store, f"fetched {number}", {**small_files(20, str(number)), "a.bin": LARGE})

    with ThreadPoolExecutor() as pool:
        busy = pool.submit(bring)
        while not busy.done():
            gc(store, lambda ref: ref.name != "first", grace_s=DAY)
        busy.result()
    gc(store, lambda ref: ref.name != "first", grace_s=0.0)
    assert [row.complete for row in store.ls()] == [True] * 20
    assert store.verify().objects == 20 * 20 + 1


# What was put aside


def test_what_was_put_aside_goes_when_it_is_no_longer_needed(store: Store) -> None:
    fill(store, "lake", FILES)
    flip_a_bit(loose(store, LARGE))
    store.verify()
    assert gc(store, keep_all).leftovers == (), "it says what has to come again"
    fill(store, "lake", FILES)
    assert [Path(each).parent.name for each in gc(store, keep_all).leftovers] == ["damaged"]
    assert everything(store) == everything(open_store(store.pools["home"].folder))
    assert store.damaged() == []


# Pools that cannot be cleaned up


def test_a_pool_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    store = open_store(
        tmp_path,
        Pool("home", tmp_path / "home"),
        Pool("new", tmp_path / "new"),
        Pool("far", tmp_path / "not" / "mounted" / "pool"),
    )
    fill(store, "lake", FILES)
    home, new, far = store.gc(keep_none, grace_s=0.0).pools
    assert home.objects == 2
    assert new.passed_over == "it is empty"
    assert "no folder" in far.passed_over


def test_a_pool_that_may_not_be_written_is_passed_over_and_its_names_still_count(
    tmp_path: Path, unprivileged: list[str]
) -> None:
    store = open_store(tmp_path, Pool("home", tmp_path / "home"), Pool("shared", tmp_path / "shared"))
    fill(store, "lake", FILES, pool="shared")
    fill(store, "lake copy", FILES, pool="home")
    (tmp_path / "shared").chmod(0o555)
    program = (
        "from pathlib import Path; from store_filling import open_store; from fairmile.store.pools import Pool\n"
        f"top = Path({str(tmp_path)!r})\n"
        "store = open_store(top, Pool('home', top / 'home'), Pool('shared', top / 'shared'))\n"
        "home, shared = store.gc(lambda ref: False, grace_s=0.0).pools\n"
        "print(len(home.refs), home.objects, shared.passed_over)"
    )
    support = str(Path(__file__).parents[1] / "support")
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})\n{program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "shared").chmod(0o755)
    assert done.stdout == f"1 0 no write permission in {tmp_path}/shared\n", done.stderr


# Links that lead into the pool


def linking_store(tmp_path: Path) -> Store:
    return open_store(tmp_path, Pool("home", tmp_path / "pool", links=("symlink",)))


def clean_up(store: Store, older_than_s: float = 0.0) -> PoolPlan:
    (plan,) = store.gc(lambda ref: False, older_than_s=older_than_s, grace_s=0).pools
    return plan


def test_what_the_links_of_a_folder_lead_to_stays_until_they_are_gone(tmp_path: Path) -> None:
    store = linking_store(tmp_path)
    ref, file = fill(store, "data", {"data.bin": LARGE}), tmp_path / "project" / "data.bin"
    assert store.materialize(ref, file.parent).ways == {"symlink": 1}

    assert [ref.kind for ref in clean_up(linking_store(tmp_path)).refs] == ["card"]
    assert file.read_bytes() == LARGE

    file.unlink()
    assert [ref.kind for ref in clean_up(linking_store(tmp_path)).refs] == ["link"]
    assert sha256_hex(LARGE) not in linking_store(tmp_path)


def test_a_folder_that_can_be_laid_again_keeps_only_what_is_used(tmp_path: Path) -> None:
    store, file = linking_store(tmp_path), tmp_path / "view" / "data.bin"
    ref = fill(store, "data", {"data.bin": LARGE})
    store.materialize(ref, file.parent, is_cache=True)
    clean_up(store, older_than_s=3600)
    assert file.read_bytes() == LARGE
    clean_up(store)
    assert not file.exists()

    store.materialize(fill(store, "data", {"data.bin": LARGE}), file.parent, is_cache=True)
    assert file.read_bytes() == LARGE


def test_leftovers_that_stay_in_spite_of_the_grace_are_counted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "pool")
    left = store.objects(store.pools["home"]).incoming / "batch-0123"
    left.mkdir(parents=True)
    (left / "data").write_bytes(bytes(1000))
    plan = clean_up(store)
    assert (plan.leftovers, plan.kept_leftovers, plan.kept_leftovers_bytes) == ((), 1, 1000)
    (patient,) = store.gc(lambda ref: False, grace_s=86400).pools
    assert patient.kept_leftovers == 0
