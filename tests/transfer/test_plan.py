"""The plan: what is there, what must come, how large it is, and which pool takes it."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_source import DATA, Folders, MadeUp, Source

from fairmile.base.commands import Here
from fairmile.base.digest import Checksum, ManifestEntry
from fairmile.base.errors import DiskFailure, NotFound, SystemFailure, Transient, UsageError
from fairmile.store.pools import Pool, Pools
from fairmile.store.refs import Ref
from fairmile.store.store import Store
from fairmile.transfer.items import Item, check_path
from fairmile.transfer.planner import Planner, archive_name
from fairmile.transfer.remote import Remote

MIB = 1 << 20
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool("home", tmp_path / "home")


@pytest.fixture
def store(pool: Pool) -> Store:
    return Store(Pools([pool], runner=Here()), runner=Here())


@pytest.fixture
def planner(store: Store) -> Callable[..., Planner]:
    return lambda **sources: Planner(store, MadeUp(**sources))  # type: ignore[arg-type]


def item(*names: str, path: str = "data.bin", **more: object) -> Item:
    return replace(Item(path, tuple(Remote(f"made-up://{name}/{path}", path) for name in names)), **more)  # type: ignore[arg-type]


def put(store: Store, pool: Pool, data: bytes) -> str:
    with store.objects(pool).batch() as batch:
        return batch.add(data)


# Sizes


def test_the_size_is_asked_for_where_it_is_unknown(planner: Callable[..., Planner]) -> None:
    source = Source()
    plan = planner(one=source).plan("it", [item("one")])
    assert plan.download_bytes == len(DATA)
    assert not plan.is_estimate
    assert plan.items[0].size_bytes == len(DATA)
    assert plan.items[0].sources[0].validator == '"v"'
    assert len(source.looked) == 1
    assert source.asked == [], "no byte moves for a plan"


def test_a_known_size_is_not_asked_for(planner: Callable[..., Planner]) -> None:
    source = Source()
    plan = planner(one=source).plan("it", [item("one", size_bytes=7)])
    assert plan.download_bytes == 7
    assert source.looked == []


def test_of_very_many_files_a_sample_is_asked(planner: Callable[..., Planner]) -> None:
    source = Source(b"x" * 1000)
    items = [item("one", path=f"{number}.bin") for number in range(1000)]
    plan = planner(one=source).plan("it", items)
    assert len(source.looked) <= 64
    assert len(set(source.looked)) == len(source.looked)
    assert {int(address.rpartition("/")[2][:-4]) // 250 for address in source.looked} == {0, 1, 2, 3}, "from everywhere"
    assert plan.download_bytes == 1_000_000
    assert plan.is_estimate
    assert len(plan.items) == 1000


def test_a_size_that_nobody_tells_is_what_the_card_says_roughly(planner: Callable[..., Planner]) -> None:
    plan = planner(one=Source(announced=None)).plan("it", [item("one", about_bytes=5000)])
    assert plan.download_bytes == 5000
    assert plan.is_estimate
    assert plan.items[0].size_bytes is None


def test_one_source_that_fails_is_noted(planner: Callable[..., Planner]) -> None:
    down = Source(unfindable=Transient("it is down"))
    plan = planner(down=down, good=Source()).plan("it", [item("down", "good")])
    assert plan.download_bytes == len(DATA)
    assert any("made-up://down/data.bin" in note and "it is down" in note for note in plan.notes)


def test_where_every_source_fails_there_is_no_plan(planner: Callable[..., Planner]) -> None:
    gone = {name: Source(unfindable=NotFound(f"nothing at {name}")) for name in ("one", "two")}
    with pytest.raises(NotFound, match="nothing at one"):
        planner(**gone).plan("it", [item("one", "two")])


@pytest.mark.parametrize(
    "sizes, expected",
    [((54, 9_000_000), 9_000_000), ((9_000_000, 54), 9_000_000), ((7, 7, 9), 7), ((None, 5), 5), ((None, None), None)],
)
def test_where_sources_disagree_most_of_them_are_right_or_the_largest(
    planner: Callable[..., Planner], sizes: tuple[int | None, ...], expected: int | None
) -> None:
    sources = {f"s{number}": Source(announced=size) for number, size in enumerate(sizes)}
    assert planner(**sources).plan("it", [item(*sources)]).items[0].size_bytes == expected


# What is there


def test_what_is_there_under_another_name_does_not_come_again(
    planner: Callable[..., Planner], store: Store, pool: Pool
) -> None:
    put(store, pool, DATA)
    source = Source()
    plan = planner(one=source).plan("it", [item("one", path="other/name", checksums=(Checksum("sha256", SHA256),))])
    assert plan.items == ()
    assert plan.present == (ManifestEntry("other/name", len(DATA), SHA256, 0o644),)
    assert plan.download_bytes == plan.need_bytes == 0
    assert plan.describe() == "it: all files are stored already"
    assert source.looked == []


def test_fresh_lets_all_of_it_come_again(planner: Callable[..., Planner], store: Store, pool: Pool) -> None:
    put(store, pool, DATA)
    wanted = item("one", checksums=(Checksum("sha256", SHA256),))
    plan = planner(one=Source()).plan("it", [wanted], fresh=True)
    assert plan.present == ()
    assert plan.download_bytes == len(DATA)


def test_only_what_is_missing_comes(planner: Callable[..., Planner], store: Store, pool: Pool) -> None:
    put(store, pool, DATA)
    known, missing = item("one", checksums=(Checksum("sha256", SHA256),)), item("one", path="b", size_bytes=10)
    plan = planner(one=Source()).plan("it", [known, missing])
    assert [each.path for each in plan.items] == ["b"]
    assert [entry.path for entry in plan.present] == ["data.bin"]


@pytest.mark.parametrize("into", ["", "train"])
def test_an_archive_is_known_by_its_content(
    planner: Callable[..., Planner], store: Store, pool: Pool, into: str
) -> None:
    member = ManifestEntry("a.txt", 1, put(store, pool, b"a"), 0o644)
    root = store.put_tree([member], pool)
    store.set_ref(Ref("url", archive_name(SHA256), root, 1, 1, 0.0), pool)
    wanted = item("one", path="x.tar", checksums=(Checksum("sha256", SHA256),), unpack=True, into=into)
    plan = planner(one=Source()).plan("it", [wanted])
    assert plan.items == ()
    assert [entry.path for entry in plan.present] == [f"{into}/a.txt" if into else "a.txt"]


def test_an_archive_whose_members_are_gone_comes_again(
    planner: Callable[..., Planner], store: Store, pool: Pool
) -> None:
    sha256 = put(store, pool, b"a")
    root = store.put_tree([ManifestEntry("a.txt", 1, sha256, 0o644)], pool)
    store.set_ref(Ref("url", archive_name(SHA256), root, 1, 1, 0.0), pool)
    store.objects(pool).remove([sha256])
    wanted = item("one", path="x.tar", checksums=(Checksum("sha256", SHA256),), unpack=True)
    assert len(planner(one=Source()).plan("it", [wanted]).items) == 1


# Archives


def test_room_is_planned_for_an_archive_and_its_members(planner: Callable[..., Planner]) -> None:
    plan = planner(one=Source()).plan("it", [item("one", path="x.tar.gz", size_bytes=100, unpack=True)])
    assert plan.download_bytes == 100
    assert plan.unpacked_bytes > 100
    assert plan.need_bytes == plan.download_bytes + plan.unpacked_bytes
    assert plan.is_estimate


def test_a_zip_tells_itself_how_large_its_members_are(planner: Callable[..., Planner]) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 3_000_000)
        archive.writestr("data", DATA)
    source = Source(stream.getvalue())
    plan = planner(one=source).plan("it", [item("one", path="x.zip", unpack=True)])
    assert plan.unpacked_bytes == 3_000_000 + len(DATA)
    assert not plan.is_estimate
    assert source.sent < len(source.data)
    assert source.open_bodies == 0


@pytest.mark.parametrize(
    "source", [Source(b"no zip" * 100), Source(ranges=False), Source(trouble=lambda _: NotFound("x"))]
)
def test_a_zip_that_does_not_tell_is_guessed(planner: Callable[..., Planner], source: Source) -> None:
    plan = planner(one=source).plan("it", [item("one", path="x.zip", unpack=True, size_bytes=len(source.data))])
    assert plan.unpacked_bytes > 0
    assert plan.is_estimate
    assert source.open_bodies == 0


# Pools


def two_pools(tmp_path: Path, capacity: int) -> Store:
    small = Pool("small", tmp_path / "small", capacity_bytes=capacity, speed="fast")
    return Store(Pools([small, Pool("large", tmp_path / "large")], runner=Here()), runner=Here())


def test_the_first_pool_with_room_takes_it_and_the_others_are_told(tmp_path: Path) -> None:
    planner = Planner(two_pools(tmp_path, MIB), MadeUp(one=Source()))  # type: ignore[arg-type]
    assert planner.plan("it", [item("one", size_bytes=1000)]).pool.name == "small"
    plan = planner.plan("it", [item("one", size_bytes=5 * MIB)])
    assert plan.pool.name == "large"
    assert any("'small'" in note for note in plan.notes)


def test_a_pool_that_is_too_small_is_refused_with_the_numbers(tmp_path: Path) -> None:
    planner = Planner(two_pools(tmp_path, MIB), MadeUp(one=Source()))  # type: ignore[arg-type]
    wanted = item("one", path="x.tar.gz", size_bytes=5 * MIB, unpack=True)
    with pytest.raises(DiskFailure) as caught:
        planner.plan("it", [wanted], pool="small")
    told = str(caught.value)
    assert "it needs" in told
    assert "5.0 MiB download" in told or "download 5.0 MiB" in told
    assert "1.0 MiB" in told
    assert "'large'" in f"{told} {caught.value.hint}"


def test_a_pool_that_is_not_there_is_named(planner: Callable[..., Planner]) -> None:
    with pytest.raises(NotFound, match="no pool named 'hmoe'; did you mean 'home'"):
        planner(one=Source()).plan("it", [item("one", size_bytes=1)], pool="hmoe")


def test_the_plan_is_one_sentence(planner: Callable[..., Planner]) -> None:
    exact = planner(one=Source()).plan("it", [item("one", size_bytes=2048)])
    assert exact.describe() == "it: 1 file to fetch, 2.0 KiB, into pool 'home'"
    guessed = planner(one=Source(announced=None)).plan("it", [item("one", path="x.tgz", about_bytes=1024, unpack=True)])
    assert guessed.describe() == "it: 1 file to fetch, about 1.0 KiB, 3.0 KiB unpacked, into pool 'home'"


# Finding


def test_an_address_leads_to_its_files(planner: Callable[..., Planner]) -> None:
    found = planner(one=Source()).find("made-up://one/data.bin")
    assert [(each.path, each.size_bytes) for each in found] == [("data.bin", len(DATA))]
    assert planner(one=Source()).find("made-up://one/data.bin", "mine.bin")[0].path == "mine.bin"


def test_a_folder_of_a_program_is_one_item(planner: Callable[..., Planner]) -> None:
    found = planner(place=Folders()).find("made-up://place/x", "data")
    assert [(each.path, each.size_bytes, each.sources[0].address) for each in found] == [
        ("data", None, "made-up://place/x")
    ]


@pytest.mark.parametrize("path", ["a", "a/b", "ü ☃/x.y", "a" * 255, ".hidden", "-x"])
def test_a_plain_path_is_taken(path: str) -> None:
    assert check_path(path, "here") == path


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\\b", "a\0"])
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=r"here: .* is not a plain path"):
        check_path(path, "here")


def test_a_name_that_no_disk_takes_is_refused() -> None:
    for path in ("a" * 256, "ü" * 128, f"a/{'b' * 300}/c"):
        with pytest.raises(SystemFailure, match="longer than 255 bytes"):
            check_path(path, "here")
