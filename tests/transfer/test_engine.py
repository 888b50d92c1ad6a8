"""The engine: items from made-up sources into real objects, several sources at once, archives, folders, Ctrl-C."""

from __future__ import annotations

import hashlib
import io
import os
import random
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from left_open import nothing_left_open
from made_up_source import DATA, Folders, MadeUp, Meeting, Source

from fairmile.base.digest import Checksum
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, NotFound, SystemFailure, Transient, Unsupported
from fairmile.base.files import Lock
from fairmile.store.objects import Objects
from fairmile.transfer import engine
from fairmile.transfer.engine import Engine, _Bounded
from fairmile.transfer.items import Brought, Failure, Item, Silent
from fairmile.transfer.remote import Remote
from fairmile.transfer.settings import Settings
from fairmile.transfer.small import LARGE

BIG = DATA * 2
SMALL = DATA[:50_000]


def checksum(data: bytes, algorithm: str = "sha256") -> Checksum:
    return Checksum(algorithm, hashlib.new(algorithm, data).hexdigest())


def item(data: bytes, *names: str, path: str = "data.bin", **more: object) -> Item:
    """Return an item for data that the named sources offer, with its digest and size unless they are given."""
    sources = tuple(Remote(f"made-up://{name}/{path}", path) for name in names)
    return replace(Item(path, sources, len(data), (checksum(data),)), **more)  # type: ignore[arg-type]


@dataclass
class Bench:
    """A pool and what an engine does with it."""

    root: Path
    watcher: Silent = field(default_factory=Silent)
    landed: int = 0
    brought: list[Brought] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = Objects(self.root)

    def bring(self, items: list[Item], fresh: bool = False, **sources: Source | Folders) -> list[Failure]:
        settings = Settings(connections=4, segment_bytes=1 << 20, retries=2)
        return Engine(
            self.objects,
            MadeUp(**sources),  # type: ignore[arg-type]
            settings,
            self.watcher,
            fresh=fresh,
            on_landed=self._on_landed,
            room_bytes=1 << 40,
        ).bring(items, self.brought.extend)

    def _on_landed(self, size_bytes: int) -> None:
        self.landed += size_bytes

    def one(self, wanted: Item, **sources: Source | Folders) -> Brought:
        """Bring one item and return it, or raise its error."""
        failures = self.bring([wanted], **sources)
        if failures:
            raise failures[0].error
        return self.brought[-1]

    def content(self, brought: Brought) -> dict[str, bytes]:
        found = {}
        for entry in brought.placed:
            with self.objects.open(entry.sha256) as stream:
                found[entry.path] = stream.read()
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Afterwards no thread and no file is open, the objects are sound, and what was brought left nothing behind."""
    made = Bench(tmp_path / "pool")
    with nothing_left_open():
        yield made
    assert list(made.objects.verify()) == []
    keys = {each.item.key for each in made.brought}
    left = os.listdir(made.objects.incoming) if made.objects.incoming.exists() else []
    assert not [name for name in left if name.endswith(".lock") or name.startswith("batch-") or name in keys]


# Sizes


@pytest.mark.parametrize("size", [0, 1, 50_000, (1 << 20) + 1, LARGE, LARGE + 1, len(BIG)])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_a_file_of_any_size_arrives(bench: Bench, size: int, is_known: bool) -> None:
    data = BIG[:size]
    wanted = item(data, "one")
    source = Source(data)
    found = bench.one(wanted if is_known else replace(wanted, size_bytes=None, checksums=()), one=source)
    assert bench.content(found) == {"data.bin": data}
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.size_bytes == size
    assert found.moved_bytes == source.sent >= size
    assert found.validator == '"v"'
    assert bench.watcher.moved_bytes == size
    assert bench.landed == size


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
@pytest.mark.parametrize("size", [50_000, len(BIG)])
def test_a_file_whose_size_nobody_tells_arrives_whole(bench: Bench, size: int, ranges: bool) -> None:
    data = BIG[:size]
    source = Source(data, announced=None, total=None, ranges=ranges)
    found = bench.one(replace(item(data, "one"), size_bytes=None, checksums=()), one=source)
    assert bench.content(found) == {"data.bin": data}


def test_many_small_files_arrive_together(bench: Bench) -> None:
    files = {f"{number}.bin": random.Random(number).randbytes(number * 10) for number in range(200)}
    sources = {f"s{number}": Source(data) for number, data in enumerate(files.values())}
    items = [item(data, f"s{number}", path=path) for number, (path, data) in enumerate(files.items())]
    assert bench.bring(items, **sources) == []
    assert {path: data for each in bench.brought for path, data in bench.content(each).items()} == files


# Several sources


def test_two_equal_sources_are_both_used(bench: Bench) -> None:
    meeting = Meeting()
    one, two = Source(BIG, trouble=meeting.guest()), Source(BIG, trouble=meeting.guest())
    found = bench.one(item(BIG, "one", "two"), one=one, two=two)
    assert bench.content(found) == {"data.bin": BIG}
    assert one.sent > 0
    assert two.sent > 0
    assert found.notes == ()


def test_without_a_digest_only_one_source_is_used_at_a_time(bench: Bench) -> None:
    one, two = Source(BIG), Source(BIG)
    bench.one(item(BIG, "one", "two", checksums=()), one=one, two=two)
    assert one.sent >= len(BIG)
    assert two.asked == []


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "large"])
def test_without_a_digest_the_next_source_follows_where_one_fails(bench: Bench, data: bytes) -> None:
    one, two = Source(data, trouble=lambda number: NotFound("nothing at made-up://one")), Source(data)
    found = bench.one(item(data, "one", "two", checksums=()), one=one, two=two)
    assert bench.content(found) == {"data.bin": data}
    assert any("made-up://one" in note and "next source" in note for note in found.notes)


def test_the_source_that_lied_is_named_and_no_other(bench: Bench) -> None:
    meeting = Meeting(3)
    contents = {"one": BIG, "liar": BIG[::-1], "two": BIG}
    sources = {name: Source(data, trouble=meeting.guest()) for name, data in contents.items()}
    found = bench.one(item(BIG, "one", "liar", "two"), **sources)
    assert bench.content(found) == {"data.bin": BIG}
    assert [note for note in found.notes if "sent corrupt data" in note] == [
        "made-up://liar/data.bin sent corrupt data"
    ]
    assert bench.watcher.notes == list(found.notes)
    assert bench.watcher.moved_bytes == len(BIG), "what was wrong does not count as progress"


def test_where_all_lie_nothing_is_kept(bench: Bench) -> None:
    wrong = BIG[::-1]
    with pytest.raises(Integrity, match="sha256"):
        bench.one(item(BIG, "one", "two"), one=Source(wrong), two=Source(wrong))
    assert list(bench.objects.items()) == []


def test_an_accident_on_the_way_is_mended_by_a_second_attempt(bench: Bench) -> None:
    source = Source(BIG[::-1])

    def mend(text: str) -> None:
        source.data = BIG

    bench.watcher.note = mend  # type: ignore[method-assign]  told before the second attempt
    found = bench.one(item(BIG, "one"), one=source)
    assert bench.content(found) == {"data.bin": BIG}
    assert any("trying once more" in note for note in found.notes)


@pytest.mark.parametrize("address", ["made-up://other/data.bin", "made-up://steady/d"], ids=["other", "alike"])
def test_a_source_that_changed_midway_is_left_out_and_no_other(bench: Bench, address: str) -> None:
    meeting = Meeting()
    changing, meet = Source(BIG), meeting.guest()

    def change(number: int) -> None:
        meet(number)
        changing.validator = '"old"' if number == 1 else '"new"'

    changing.trouble = change
    steady = Source(BIG, trouble=meeting.guest())
    changed = f"{address}?as=changing"
    wanted = replace(item(BIG), sources=(Remote(changed, "d"), Remote("made-up://steady/d", "d")))
    found = bench.one(wanted, changing=changing, steady=steady)
    assert bench.content(found) == {"data.bin": BIG}
    assert f"{changed} changed while it was read; continuing without it" in found.notes
    assert len(steady.asked) > 1


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "large"])
def test_an_unknown_size_is_that_of_the_sources_that_agree(bench: Bench, data: bytes) -> None:
    page = b"<html>please log in</html>"
    wanted = item(data, "page", "good", size_bytes=len(data))
    found = bench.one(wanted, page=Source(page), good=Source(data))
    assert bench.content(found) == {"data.bin": data}
    assert any("made-up://page" in note for note in found.notes)


def test_one_mirror_that_is_gone_does_not_hide_another_without_a_size(bench: Bench) -> None:
    gone = Source(BIG, unfindable=NotFound("gone"), trouble=lambda number: NotFound("gone"))
    silent = Source(BIG, announced=None, total=None)
    found = bench.one(replace(item(BIG, "gone", "silent"), size_bytes=None), gone=gone, silent=silent)
    assert bench.content(found) == {"data.bin": BIG}


# Failures


def test_what_fails_does_not_keep_the_others(bench: Bench) -> None:
    items = [item(SMALL, "bad", path="a"), item(SMALL[1:], "good", path="b"), item(BIG, "bad", path="c")]
    bad = Source(trouble=lambda number: NotFound("nothing there"))
    failures = bench.bring(items, bad=bad, good=Source(SMALL[1:]))
    assert {failure.item.path for failure in failures} == {"a", "c"}
    assert [each.item.path for each in bench.brought] == ["b"]


def test_a_source_that_is_down_is_not_asked_for_thousands_of_files(bench: Bench) -> None:
    items = [replace(item(SMALL, "down", path=str(number)), checksums=()) for number in range(1000)]
    down = Source(trouble=lambda number: Transient("down"))
    failures = bench.bring(items, down=down)
    assert len(failures) == 1000
    assert len(down.asked) < 100


def test_a_disk_that_refuses_ends_it_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DiskFailure, match="No space left"):
        bench.one(item(BIG, "one"), one=Source(BIG))


def test_a_checksum_that_cannot_be_computed_is_told_and_leaves_nothing_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    source = Source(SMALL)
    with pytest.raises(Unsupported, match="google-crc32c"):
        bench.one(item(SMALL, "one", checksums=(Checksum("crc32c", "00000000"),)), one=source)
    assert source.open_bodies == 0
    found = bench.one(item(SMALL, "one", checksums=(Checksum("crc32c", "0" * 8), checksum(SMALL))), one=source)
    assert bench.content(found) == {"data.bin": SMALL}


# Another process


def test_what_another_process_brought_meanwhile_does_not_move(bench: Bench) -> None:
    wanted, source = item(BIG, "one"), Source(BIG)
    held, ready = threading.Event(), threading.Event()

    def other() -> None:
        with Lock(bench.objects.incoming / f"{wanted.key}.lock"):
            held.set()
            assert ready.wait(20)
            with bench.objects.batch() as batch:
                batch.add(BIG)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(20)
    bench.watcher.note = lambda text: ready.set()  # type: ignore[method-assign]
    found = bench.one(wanted, one=source)
    thread.join()
    assert source.asked == []
    assert (found.sha256, found.moved_bytes) == (wanted.sha256, 0)


def test_fresh_brings_it_whatever_is_there(bench: Bench) -> None:
    bench.one(item(BIG, "one"), one=Source(BIG))
    source = Source(BIG)
    assert bench.bring([item(BIG, "one")], fresh=True, one=source) == []
    assert source.sent >= len(BIG)


# Ctrl-C


def test_an_interruption_ends_transfers_under_way(bench: Bench) -> None:
    stuck = Source(BIG[::-1], silent=lambda number: True)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    bench.watcher.item = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.bring([item(BIG, "one"), item(BIG[::-1], "stuck", path="other")], one=Source(BIG), stuck=stuck)
    assert stuck.open_bodies == 0


def test_an_interruption_ends_small_transfers_under_way(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Source(SMALL, silent=lambda number: True)
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is not None and stuck.open_bodies:
            raise KeyboardInterrupt
        join(thread, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.bring([item(SMALL, "stuck")], stuck=stuck)
    assert stuck.open_bodies == 0
    assert list(bench.objects.items()) == []


# Archives


MEMBERS = {"a.txt": b"a\n", "b/c.bin": DATA[:300_000], "b/d.txt": b""}


def tar(members: dict[str, bytes] = MEMBERS, mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def zipped(members: dict[str, bytes] = MEMBERS) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize(
    "members", [{f"{number}.txt": b"%d" % number for number in range(5000)}, {"large.bin": bytes(64 << 20)}],
    ids=["many", "large"],
)  # fmt: skip
def test_an_interruption_ends_the_unpacking(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, pack: Callable[..., bytes], members: dict[str, bytes]
) -> None:
    unpacking, interrupted = threading.Event(), threading.Event()
    work = 0

    class Slow(_Bounded):
        """Stores what it must until the interruption, and then so slowly that all of it would take minutes."""

        def _take(self, size_bytes: int) -> None:
            nonlocal work
            work += 1
            unpacking.set()
            assert interrupted.wait(30)
            time.sleep(0.05)

    def interrupt(*_: object, **__: object) -> None:
        assert unpacking.wait(30)
        interrupted.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_Bounded", Slow)
    monkeypatch.setattr(engine, "wait", interrupt)
    data = pack(members)
    with pytest.raises(KeyboardInterrupt):
        bench.bring([item(data, "one", path="x.zip" if pack is zipped else "x.tar.gz", unpack=True)], one=Source(data))
    assert work < 40
    assert list(bench.objects.items()) == []


@pytest.mark.parametrize(
    "name, data", [("x.tar.gz", tar()), ("x.tar", tar(mode="w")), ("x.tar.xz", tar(mode="w:xz")), ("x.zip", zipped())]
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_an_archive_is_replaced_by_its_members(bench: Bench, name: str, data: bytes, is_known: bool) -> None:
    wanted = item(data, "one", path=name, unpack=True)
    source = Source(data) if is_known else Source(data, announced=None, total=None)
    found = bench.one(wanted if is_known else replace(wanted, size_bytes=None), one=source)
    assert bench.content(found) == MEMBERS
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert source.sent >= len(data)


def test_members_stand_below_the_folder_they_are_meant_for(bench: Bench) -> None:
    found = bench.one(item(tar(), "one", path="x.tar.gz", unpack=True, into="train"), one=Source(tar()))
    assert bench.content(found) == {f"train/{path}": data for path, data in MEMBERS.items()}


def test_an_archive_comes_from_several_sources_while_it_is_unpacked(bench: Bench) -> None:
    data = tar({"big.bin": BIG}, "w")
    meeting = Meeting()
    one, two = Source(data, trouble=meeting.guest()), Source(data, trouble=meeting.guest())
    found = bench.one(item(data, "one", "two", path="x.tar", unpack=True), one=one, two=two)
    assert bench.content(found) == {"big.bin": BIG}
    assert one.sent > 0
    assert two.sent > 0


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil"])
def test_an_archive_that_reaches_outside_is_refused_and_leaves_nothing(bench: Bench, name: str) -> None:
    data = tar({"good": b"x" * 100_000, name: b"evil"})
    with pytest.raises(FairmileError, match="evil"):
        bench.one(item(data, "one", path="x.tar.gz", unpack=True), one=Source(data))
    assert list(bench.objects.items()) == []


@pytest.mark.parametrize(
    "name, data", [("x.tar.gz", tar()[:-5000]), ("x.tar.gz", b"no archive" * 1000), ("x.zip", zipped()[:-50])]
)
def test_an_archive_that_is_damaged_is_refused_and_leaves_nothing(bench: Bench, name: str, data: bytes) -> None:
    with pytest.raises(FairmileError, match=name):
        bench.one(item(data, "one", path=name, unpack=True), one=Source(data))
    assert list(bench.objects.items()) == []


def test_wrong_bytes_of_an_archive_are_found_before_its_members_are_stored(bench: Bench) -> None:
    wanted = item(tar(), "one", path="x.tar.gz", unpack=True)
    other = tar({"other": b"o" * 300_000})
    with pytest.raises(FairmileError):
        bench.one(replace(wanted, size_bytes=len(other)), one=Source(other))
    assert list(bench.objects.items()) == []


def test_an_archive_whose_source_fails_midway_stores_nothing(bench: Bench) -> None:
    data = tar({"big.bin": BIG}, "w")
    source = Source(data, trouble=lambda number: SystemFailure("enough") if number > 2 else None)
    with pytest.raises(SystemFailure, match="enough"):
        bench.one(item(data, "one", path="x.tar", unpack=True), one=source)
    assert list(bench.objects.items()) == []


# Whole folders


def folder_item(*names: str, **more: object) -> Item:
    return replace(Item("", tuple(Remote(f"made-up://{name}/", "") for name in names)), **more)  # type: ignore[arg-type]


def test_a_folder_arrives_with_all_its_files(bench: Bench) -> None:
    files = {"a": b"a", "b/c": DATA, "b/d": b""}
    found = bench.one(folder_item("place"), place=Folders(files))
    assert bench.content(found) == files
    assert found.moved_bytes == len(DATA) + 1


def test_the_next_source_of_a_folder_starts_with_an_empty_one(bench: Bench) -> None:
    bad = Folders({"half": b"h"}, trouble=SystemFailure("it broke"))
    good = Folders({"a": b"a"})
    found = bench.one(folder_item("bad", "good"), bad=bad, good=good)
    assert bench.content(found) == {"a": b"a"}
    assert good.found_before == [[]]
    assert any("it broke" in note for note in found.notes)


def test_what_an_earlier_attempt_left_of_a_folder_is_found_by_the_next(bench: Bench) -> None:
    place = Folders({"a": b"a"}, trouble=Transient("it broke"))
    with pytest.raises(Transient):
        bench.one(folder_item("place"), place=place)
    place.trouble = None
    bench.one(folder_item("place"), place=place)
    assert place.found_before == [[], ["a"]]


@pytest.mark.parametrize("algorithm", ["sha256", "md5", "sha1", "sha512"])
def test_the_file_of_a_folder_is_checked_by_any_digest(bench: Bench, algorithm: str) -> None:
    place = Folders({"data.bin": b"wrong"})
    wanted = folder_item("place", path="data.bin", checksums=(checksum(SMALL, algorithm),))
    with pytest.raises(Integrity, match=rf"made-up://place/: data\.bin: received {algorithm}"):
        bench.one(wanted, place=place)
    assert list(bench.objects.items()) == []
    place.files = {"data.bin": SMALL}
    found = bench.one(wanted, place=place)
    assert bench.content(found) == {"data.bin": SMALL}
    assert place.found_before == [[], []], "wrong bytes were left for the next attempt"


def test_a_folder_without_a_file_is_an_error(bench: Bench) -> None:
    with pytest.raises(SystemFailure, match="delivered no file"):
        bench.one(folder_item("place"), place=Folders({}))


def test_a_folder_with_a_single_file_is_called_as_the_card_says(bench: Bench) -> None:
    found = bench.one(folder_item("place", path="mine.bin"), place=Folders({"theirs.bin": SMALL}))
    assert bench.content(found) == {"mine.bin": SMALL}


def test_ranges_are_preferred_to_a_program(bench: Bench) -> None:
    place = Folders({"data.bin": SMALL})
    found = bench.one(item(SMALL, "place", "ranged"), place=place, ranged=Source(SMALL))
    assert bench.content(found) == {"data.bin": SMALL}
    assert place.found_before == []
