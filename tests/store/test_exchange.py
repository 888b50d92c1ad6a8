"""Exchange: push and pull between pool folders, near and over ssh; only what is missing moves, none of it wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_filling import LARGE, fill, flip_a_bit, loose, open_store, packs, small_files

from fairmile.base.commands import Here, Result, Ssh
from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Transient, Unsupported, UsageError
from fairmile.store import exchange, remote_pool
from fairmile.store.pools import Pool, Pools
from fairmile.store.store import Store

FILES = {"a.bin": LARGE, "b.bin": LARGE[::-1], "sub/c.txt": b"small", **small_files(20)}
TOTAL = sum(map(len, FILES.values()))
SUPPORT = str(Path(__file__).parents[1] / "support")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "pool")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """The store as somebody else opens it on the folder that is pushed to."""
    return open_store(tmp_path / "usb")


def content(store: Store, name: str, folder: Path) -> Mapping[str, bytes]:
    store.materialize(name, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def run_and_die(program: str) -> None:
    """Run a program that ends as kill -9 would end it."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {SUPPORT!r})\n{program}"], check=False
    )
    assert done.returncode == 9


# Near


def test_what_is_pushed_to_a_folder_is_served_by_a_store_opened_on_it(
    store: Store, other: Store, tmp_path: Path
) -> None:
    ref = fill(store, "lab/lake@1.0", FILES, details={"signature": "x"})
    done = store.push("lake", str(tmp_path / "usb"))
    assert (done.name, done.root, done.files, done.size_bytes) == ("lab/lake@1.0", ref.root, 23, TOTAL)
    assert (done.moved_objects, done.moved_bytes) == (23, TOTAL)
    assert [replace(each, created=ref.created) for each in other.refs()] == [ref]
    assert content(other, "lake", tmp_path / "view") == FILES
    assert other.verify().damaged == ()
    assert len(packs(other)) == 1


def test_only_what_the_other_side_lacks_moves(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store, "lake", FILES)
    store.push("lake", str(tmp_path / "usb"))
    again = store.push("lake", str(tmp_path / "usb"))
    assert (again.moved_objects, again.moved_bytes) == (0, 0)
    fill(store, "sea", {**FILES, "new.txt": b"new"})
    more = store.push("sea", str(tmp_path / "usb"))
    assert (more.moved_objects, more.moved_bytes) == (1, 3)
    assert {row.name for row in other.ls() if row.complete} == {"lake", "sea"}


def test_what_was_pushed_can_be_pulled_elsewhere(store: Store, tmp_path: Path) -> None:
    fill(store, "lab/lake@1.0", FILES)
    store.push("lake", str(tmp_path / "usb"))
    colleague = open_store(
        tmp_path, Pool("home", tmp_path / "theirs"), Pool("project", tmp_path / "project", speed="slow")
    )
    seen: list[int] = []
    done = colleague.pull("lake", str(tmp_path / "usb"), pool="project", on_bytes=seen.append)
    assert (done.moved_bytes, sum(seen)) == (TOTAL, TOTAL)
    assert [(row.name, row.pool, row.complete) for row in colleague.ls()] == [("lab/lake@1.0", "project", True)]
    assert content(colleague, "lake", tmp_path / "view") == FILES
    assert colleague.pull("lake", str(tmp_path / "usb")).moved_objects == 0


def test_what_is_pulled_takes_the_place_of_what_the_name_meant_before(tmp_path: Path) -> None:
    store = open_store(tmp_path, Pool("home", tmp_path / "pool"), Pool("project", tmp_path / "project"))
    other = open_store(tmp_path / "usb")
    ref = fill(other, "lake", FILES)
    fill(store, "lake", {"newer": b"x"}, pool="project")
    store.pull("lake", str(tmp_path / "usb"), pool="home")
    assert store.find("lake").root == ref.root


def test_a_dry_run_tells_and_moves_nothing(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store, "lake", FILES)
    done = store.push("lake", str(tmp_path / "usb"), dry_run=True)
    assert (done.moved_bytes, done.dry_run) == (TOTAL, True)
    assert not (tmp_path / "usb").exists()
    store.push("lake", str(tmp_path / "usb"))
    theirs = open_store(tmp_path / "theirs")
    assert theirs.pull("lake", str(tmp_path / "usb"), dry_run=True).moved_objects == 23
    assert not (tmp_path / "theirs").exists()
    assert other.complete("lake")


@pytest.mark.parametrize("damaged", ["large", "packed"])
def test_a_flipped_bit_does_not_travel(store: Store, other: Store, tmp_path: Path, damaged: str) -> None:
    fill(store, "lake", FILES)
    if damaged == "large":
        flip_a_bit(loose(store, LARGE), 100)
    else:
        [pack] = packs(store)
        flip_a_bit(pack, 0)
    with pytest.raises(Integrity, match="is damaged at its source"):
        store.push("lake", str(tmp_path / "usb"))
    assert other.refs() == []
    assert other.verify().damaged == ()
    assert sha256_hex(LARGE) not in other or damaged == "packed"


def test_what_is_incomplete_is_not_pushed(store: Store, tmp_path: Path) -> None:
    fill(store, "lake", FILES)
    loose(store, LARGE).unlink()
    with pytest.raises(NotFound, match=r"card lake is incomplete here: a\.bin is missing"):
        store.push("lake", str(tmp_path / "usb"))
    assert not (tmp_path / "usb").exists()


def test_what_is_incomplete_is_not_pulled(store: Store, other: Store, tmp_path: Path) -> None:
    fill(other, "lake", FILES)
    loose(other, LARGE).unlink()
    with pytest.raises(NotFound, match=r"incomplete in .*usb: a\.bin is missing"):
        store.pull("lake", str(tmp_path / "usb"))
    assert store.refs() == []


def test_nothing_starts_that_does_not_fit(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, Pool("home", tmp_path / "pool"), Pool("small", tmp_path / "usb", capacity_bytes=100_000)
    )
    fill(store, "lake", FILES)
    with pytest.raises(SystemFailure, match=r"card lake needs .* KiB.*has 97\.7 KiB free \(capacity"):
        store.push("lake", str(tmp_path / "usb"))
    assert not any((tmp_path / "usb").glob("*/*"))


def test_a_folder_or_name_that_is_not_there_is_told(store: Store, other: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no folder"):
        store.pull("lake", str(tmp_path / "unplugged"))
    fill(other, "lake", FILES)
    with pytest.raises(NotFound, match="usb: nothing in the store is named 'lage'; did you mean 'lake'"):
        store.pull("lage", str(tmp_path / "usb"))
    with pytest.raises(NotFound, match="nothing in the store is named 'lake'"):
        store.push("lake", str(tmp_path / "usb"))
    fill(store, "lake", FILES)
    with pytest.raises(SystemFailure, match="no folder"):
        store.push("lake", str(tmp_path / "not" / "mounted" / "usb"))


def test_a_large_object_goes_on_where_an_earlier_attempt_stopped(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store, "lake", {"a.bin": LARGE})
    part = tmp_path / "usb" / "incoming" / f"exchange-{sha256_hex(LARGE)}"
    part.parent.mkdir(parents=True)
    part.write_bytes(LARGE[:100_000])
    before = part.stat().st_ino
    store.push("lake", str(tmp_path / "usb"))
    assert loose(other, LARGE).stat().st_ino == before
    assert other.verify().damaged == ()


@pytest.mark.parametrize("left", [b"something else", LARGE + b"too long"])
def test_a_wrong_part_that_was_left_behind_is_begun_anew(
    store: Store, other: Store, tmp_path: Path, left: bytes
) -> None:
    fill(store, "lake", {"a.bin": LARGE})
    part = tmp_path / "usb" / "incoming" / f"exchange-{sha256_hex(LARGE)}"
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    store.push("lake", str(tmp_path / "usb"))
    assert other.verify().damaged == ()
    assert other.complete("lake")


@pytest.mark.thorough
def test_killed_again_and_again_it_gets_there_and_the_other_side_is_always_right(
    store: Store, other: Store, tmp_path: Path
) -> None:
    fill(store, "lake", FILES)
    for call in range(1, 4):
        run_and_die(
            "import os; from pathlib import Path; from store_filling import open_store\n"
            f"store, calls = open_store(Path({str(tmp_path / 'pool')!r})), []\n"
            "def die(count):\n"
            "    calls.append(count)\n"
            f"    if len(calls) == {call}: os._exit(9)\n"
            f"store.push('lake', {str(tmp_path / 'usb')!r}, on_bytes=die)\n"
            "os._exit(9)"
        )
        assert all(row.complete for row in other.ls())
        assert other.verify().damaged == ()
    assert store.push("lake", str(tmp_path / "usb")).moved_bytes <= TOTAL
    assert content(other, "lake", tmp_path / "view") == FILES
    assert all(not held.alive for held in other.pools.reservations(other.pools["home"]))


# RemotePool


class There:
    """A store whose ssh reaches the test server, and the folder as the other side sees it."""

    def __init__(self, tmp_path: Path, config: Path, folder: str) -> None:
        self.folder = tmp_path / folder
        self.address = f"there:{self.folder}"
        self.config = config
        self.store = self.open(tmp_path / "pool")
        self.other = open_store(self.folder)

    def open(self, folder: Path) -> Store:
        return open_store(folder, ssh=lambda host: Ssh(host, config=self.config))


@pytest.fixture(params=["usb", 'it\'s a pool; $(touch x) "y"'])
def there(tmp_path: Path, sshd: Any, request: pytest.FixtureRequest) -> There:
    return There(tmp_path, sshd.config, request.param)


@pytest.fixture
def plain(tmp_path: Path, sshd: Any) -> There:
    return There(tmp_path, sshd.config, "usb")


def test_what_is_pushed_over_ssh_is_served_there(there: There, tmp_path: Path) -> None:
    ref = fill(there.store, "lab/lake@1.0", FILES)
    seen: list[int] = []
    done = there.store.push("lake", there.address, on_bytes=seen.append)
    assert (done.moved_objects, done.moved_bytes, sum(seen)) == (23, TOTAL, TOTAL)
    assert [replace(each, created=ref.created) for each in there.other.refs()] == [ref]
    assert content(there.other, "lake", tmp_path / "view") == FILES
    report = there.other.verify()
    assert (report.objects, report.damaged) == (23, ())
    assert len(packs(there.other)) == 1, "small objects travel and stay together"
    assert {path.stat().st_mode & 0o777 for path in (there.folder / "objects").glob("*/*")} == {0o444}
    assert not list((there.folder / "incoming").iterdir())
    assert not (tmp_path / "x").exists()


@pytest.mark.thorough
def test_only_what_is_missing_there_moves(plain: There) -> None:
    fill(plain.store, "lake", FILES)
    assert plain.store.push("lake", plain.address, dry_run=True).moved_objects == 23
    assert not plain.folder.exists()
    plain.store.push("lake", plain.address)
    assert plain.store.push("lake", plain.address).moved_objects == 0
    fill(plain.store, "sea", {**FILES, "new.txt": b"new"})
    assert plain.store.push("sea", plain.address).moved_bytes == 3
    assert {row.name for row in plain.other.ls() if row.complete} == {"lake", "sea"}


@pytest.mark.thorough
def test_what_is_there_can_be_pulled_over_ssh(there: There, tmp_path: Path) -> None:
    fill(there.other, "lab/lake@1.0", FILES)
    fill(there.other, "lab/sea@1.0", small_files(30, "sea"))
    there.other.set_ref(fill(there.store, "known", {"a.bin": LARGE}), there.other.pools["home"])
    seen: list[int] = []
    done = there.store.pull("lake", there.address, on_bytes=seen.append)
    assert done.moved_objects == 22
    assert done.moved_bytes == sum(seen) == TOTAL - len(LARGE)
    assert content(there.store, "lake", tmp_path / "view") == FILES
    assert there.store.verify().damaged == ()
    assert there.store.pull("lake", there.address).moved_objects == 0
    assert not list((tmp_path / "pool" / "incoming").iterdir())
    assert sha256_hex(small_files(30, "sea")["part/0001.txt"]) not in there.store


def test_a_dry_run_over_ssh_brings_nothing(plain: There, tmp_path: Path) -> None:
    fill(plain.other, "lake", FILES)
    assert plain.store.pull("lake", plain.address, dry_run=True).moved_bytes == TOTAL
    assert not (tmp_path / "pool").exists()


@pytest.mark.thorough
def test_a_flipped_bit_is_found_at_the_receiving_end(plain: There) -> None:
    fill(plain.store, "lake", FILES)
    flip_a_bit(loose(plain.store, LARGE), 100)
    with pytest.raises(Integrity, match=r"is not what was sent: objects/.*FAILED"):
        plain.store.push("lake", plain.address)
    assert plain.other.refs() == []
    assert everything(plain.folder / "objects") == set()


@pytest.mark.thorough
@pytest.mark.parametrize("damaged", ["large", "packed"])
def test_a_bit_that_was_flipped_there_does_not_arrive(plain: There, damaged: str) -> None:
    fill(plain.other, "lake", FILES)
    if damaged == "large":
        flip_a_bit(loose(plain.other, LARGE), 100)
    else:
        flip_a_bit(packs(plain.other)[0], 0)
    with pytest.raises(Integrity):
        plain.store.pull("lake", plain.address)
    assert plain.store.refs() == []
    assert plain.store.verify().damaged == ()


@pytest.mark.thorough
def test_what_is_incomplete_there_is_not_pulled(plain: There) -> None:
    fill(plain.other, "lake", FILES)
    loose(plain.other, LARGE).unlink()
    with pytest.raises(NotFound, match="is incomplete in there:"):
        plain.store.pull("lake", plain.address)


class Interrupted(Here):
    """Runs programs, but its rsync loses the connection at a given call, after half of its work."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.calls = 0
        self.fails_at = fails_at

    def run(self, argv: Sequence[str], **options: Any) -> Result:  # type: ignore[override]
        if argv[0] != "rsync":
            return super().run(argv, **options)
        self.calls += 1
        result = super().run(argv, **options)
        if self.calls == self.fails_at:
            return Result(result.argv, 12, "", "rsync: connection unexpectedly closed", 0.0)
        return result


@pytest.mark.thorough
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_push_that_lost_its_connection_goes_on_later(
    plain: There, tmp_path: Path, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_AT_ONCE", 20)  # so that it takes two rounds
    fill(plain.store, "lake", FILES)
    runner = Interrupted(fails_at)
    broken = Store(
        Pools(list(plain.store.pools), runner=runner), runner=runner, ssh=lambda host: Ssh(host, config=plain.config)
    )
    with pytest.raises(Transient, match="connection unexpectedly closed") as caught:
        broken.push("lake", plain.address)
    assert "files that arrived are kept" in str(caught.value.hint)
    assert plain.other.refs() == []
    assert any((plain.folder / "incoming").iterdir())
    broken.push("lake", plain.address)
    assert plain.other.complete("lake")
    assert not list((plain.folder / "incoming").iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("fails_at", [3, 4])
def test_a_pull_that_lost_its_connection_goes_on_later(plain: There, tmp_path: Path, fails_at: int) -> None:
    fill(plain.other, "lake", FILES)
    runner = Interrupted(fails_at)
    broken = Store(
        Pools(list(plain.store.pools), runner=runner), runner=runner, ssh=lambda host: Ssh(host, config=plain.config)
    )
    with pytest.raises(Transient):
        broken.pull("lake", plain.address)
    assert broken.refs() == []
    broken.pull("lake", plain.address)
    assert broken.complete("lake")
    assert not list((tmp_path / "pool" / "incoming").iterdir())


@pytest.mark.thorough
def test_a_folder_that_a_group_shares_stays_shared(plain: There) -> None:
    plain.folder.mkdir()
    plain.folder.chmod(0o2775)
    fill(plain.store, "lake", FILES)
    plain.store.push("lake", plain.address)
    modes = {path.stat().st_mode & 0o7777 for path in plain.folder.rglob("*") if path.is_dir()}
    assert modes == {0o2775}


def test_a_place_that_cannot_be_used_is_told(plain: There, tmp_path: Path) -> None:
    fill(plain.store, "lake", FILES)
    with pytest.raises(SystemFailure, match=r"cannot use there:.*/no/such: "):
        plain.store.push("lake", f"there:{tmp_path}/no/such")
    with pytest.raises(Transient, match="the connection to nowhere failed"):
        plain.store.push("lake", "nowhere:/folder")
    with pytest.raises(UsageError, match="'~' is not expanded there"):
        plain.store.push("lake", "there:~/pool")
    with pytest.raises((NotFound, SystemFailure)):
        plain.store.pull("lake", plain.address)


def test_an_address_is_no_place(store: Store) -> None:
    for place in ("https://example.org/pool", "ssh://host/pool"):
        with pytest.raises(UsageError, match="is an address"):
            store.pull("lake", place)


def test_a_full_disk_there_is_told_before_anything_moves(plain: There, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(plain.store, "lake", FILES)
    monkeypatch.setattr(remote_pool, "_PREPARE", "echo disk 1000 900 100 90% /")
    with pytest.raises(SystemFailure, match=r"card lake needs .* more in there:.*, which has 100\.0 KiB free"):
        plain.store.push("lake", plain.address)
    assert not plain.folder.exists()


@pytest.mark.thorough
def test_without_sha256sum_there_nothing_is_published(plain: There, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(plain.store, "lake", FILES)
    monkeypatch.setattr(remote_pool, "_PUBLISH", "exit 5")
    with pytest.raises(Unsupported, match="no program 'sha256sum'"):
        plain.store.push("lake", plain.address)
    assert plain.other.refs() == []


def test_a_folder_with_a_colon_is_near_when_it_looks_like_a_path(store: Store, tmp_path: Path) -> None:
    fill(store, "lake", FILES)
    store.push("lake", str(tmp_path / "a:b"))
    assert open_store(tmp_path / "a:b").complete("lake")
    assert os.path.isdir(tmp_path / "a:b" / "objects")
