"""The transfer: a plan carried out, gone on with where an attempt stopped, with its room reserved."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_source import DATA, MadeUp, Source

from fairmile.base.commands import Here
from fairmile.base.digest import Checksum
from fairmile.base.errors import DiskFailure, FairmileError, Integrity, NotFound, SystemFailure
from fairmile.store.pools import Pool, Pools
from fairmile.store.store import Store
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.items import Item, Silent
from fairmile.transfer.plan import Plan
from fairmile.transfer.planner import Planner, archive_name
from fairmile.transfer.remote import Context, Remote
from fairmile.transfer.settings import Settings
from fairmile.transfer.transfer import Outcome, Transfer

MIB = 1 << 20


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return Pool("home", tmp_path / "home")


@pytest.fixture
def store(pool: Pool) -> Store:
    return Store(Pools([pool], runner=Here()), runner=Here())


@pytest.fixture
def watcher() -> Silent:
    return Silent()


Make = Callable[..., Transfer]


@pytest.fixture
def make(store: Store, watcher: Silent) -> Make:
    """Return a transfer from made-up sources."""

    def transfer(**sources: Source) -> Transfer:
        settings = Settings(connections=2, segment_bytes=MIB, retries=1)
        made = Transfer(store, Context({}, Here(), Credentials({}), settings), watcher)
        made.fetchers = MadeUp(**sources)  # type: ignore[assignment]
        made.planner = Planner(store, made.fetchers)
        return made

    return transfer


def item(data: bytes, name: str, path: str, *, digest: bool = True, **more: object) -> Item:
    checksums = (Checksum("sha256", hashlib.sha256(data).hexdigest()),) if digest else ()
    return replace(Item(path, (Remote(f"made-up://{name}/{path}", path),), len(data), checksums), **more)  # type: ignore[arg-type]


def bring(transfer: Transfer, items: list[Item], what: str = "it", fresh: bool = False) -> Outcome:
    plan = transfer.planner.plan(what, items, fresh=fresh)
    with transfer.turn(plan):
        return transfer.execute(plan, fresh=fresh)


def contents(store: Store, outcome: Outcome) -> dict[str, bytes]:
    found = {}
    for entry in outcome.entries:
        with store.open(entry.sha256) as stream:
            found[entry.path] = stream.read()
    return found


def left_in(pool: Pool) -> list[str]:
    return sorted(path.name for path in (pool.folder / "incoming").iterdir())


FILES = {"a": DATA[:1000], "b": DATA[1000:90_000], "c": DATA, "d": b""}


def items(name: str = "one") -> tuple[list[Item], dict[str, Source]]:
    """Return items for the files, each with a source of its own."""
    wanted = [item(data, f"{name}{path}", path) for path, data in FILES.items()]
    return wanted, {f"{name}{path}": Source(data) for path, data in FILES.items()}


def test_all_files_arrive_and_nothing_else_is_left(make: Make, store: Store, pool: Pool, watcher: Silent) -> None:
    wanted, sources = items()
    outcome = bring(make(**sources), wanted)
    assert contents(store, outcome) == FILES
    assert outcome.moved_bytes == sum(map(len, FILES.values())) == watcher.moved_bytes
    assert outcome.validators == dict.fromkeys(FILES, '"v"')
    assert left_in(pool) == []
    assert store.pools.reservations(pool) == []


def test_a_plan_without_work_does_nothing(make: Make, store: Store, pool: Pool) -> None:
    wanted, sources = items()
    bring(make(**sources), wanted)
    again, silent = make(**sources), [source.asked.copy() for source in sources.values()]
    outcome = bring(again, wanted)
    assert contents(store, outcome) == FILES
    assert outcome.moved_bytes == 0
    assert [source.asked for source in sources.values()] == silent


# After a failure


def fail_at(path: str, sources: dict[str, Source], error: FairmileError) -> None:
    sources[f"one{path}"].trouble = lambda number: error


@pytest.mark.parametrize("path", ["a", "c"])
def test_what_came_before_a_failure_does_not_come_again(make: Make, store: Store, pool: Pool, path: str) -> None:
    wanted, sources = items()
    wanted = [replace(each, checksums=()) for each in wanted]  # nothing is known by its content
    fail_at(path, sources, NotFound("nothing there"))
    with pytest.raises(SystemFailure, match=rf"1 of 4 files could not be fetched: {path}: nothing there") as caught:
        bring(make(**sources), wanted)
    assert "fetch again" in (caught.value.hint or "")
    before = {name: source.sent for name, source in sources.items()}
    sources[f"one{path}"].trouble = lambda number: None
    outcome = bring(make(**sources), wanted)
    assert contents(store, outcome) == FILES
    assert outcome.validators == dict.fromkeys(FILES, '"v"')
    assert {name for name, source in sources.items() if source.sent > before[name]} == {f"one{path}"}
    assert left_in(pool) == []


def test_what_changed_at_its_source_since_then_comes_again(make: Make, store: Store) -> None:
    wanted, sources = items()
    wanted = [replace(each, checksums=(), size_bytes=None) for each in wanted]
    fail_at("a", sources, NotFound("nothing there"))
    with pytest.raises(SystemFailure):
        bring(make(**sources), wanted)
    sources["onea"].trouble = lambda number: None
    sources["oneb"].data, sources["oneb"].validator = b"new", '"new"'
    outcome = bring(make(**sources), wanted)
    assert contents(store, outcome) == {**FILES, "b": b"new"}


def test_a_purged_file_comes_again(make: Make, store: Store, pool: Pool) -> None:
    wanted, sources = items()
    fail_at("c", sources, NotFound("nothing there"))
    with pytest.raises(SystemFailure):
        bring(make(**sources), wanted)
    sources["onec"].trouble = lambda number: None
    store.objects(pool).remove([wanted[1].sha256 or ""])
    outcome = bring(make(**sources), wanted)
    assert contents(store, outcome) == FILES


def test_a_note_of_an_earlier_attempt_that_was_cut_off_does_no_harm(make: Make, store: Store, pool: Pool) -> None:
    wanted, sources = items()
    wanted = [replace(each, checksums=()) for each in wanted]
    fail_at("a", sources, NotFound("nothing there"))
    with pytest.raises(SystemFailure):
        bring(make(**sources), wanted)
    (note,) = (pool.folder / "incoming").glob("asset-*.done")
    whole = note.read_bytes()
    for text in (
        whole[: len(whole) // 2],
        whole[:-1],
        b"\xff\xfe",
        b"[]\n5\nnull\n",
        b'["x", [["../../x", 1, "y", 2]], ""]\n',
    ):
        note.write_bytes(text)
        with pytest.raises(FairmileError, match="nothing there"):
            bring(make(**sources), wanted)
        note.write_bytes(text)
    sources["onea"].trouble = lambda number: None
    assert contents(store, bring(make(**sources), wanted)) == FILES


def test_a_wrong_byte_counts_more_than_a_missing_answer(make: Make) -> None:
    wanted, sources = items()
    fail_at("a", sources, NotFound("nothing there"))
    sources["onec"].data = DATA[::-1]
    with pytest.raises(Integrity, match=r"2 of 4 files could not be fetched: c: .*sha256.* \(and 1 more\)"):
        bring(make(**sources), wanted)


def test_the_error_of_a_single_file_is_told_as_it_is(make: Make) -> None:
    with pytest.raises(NotFound, match=r"^nothing there(?:\n|$)"):
        bring(make(one=Source(trouble=lambda number: NotFound("nothing there"))), [item(DATA, "one", "a")])


def test_a_reservation_is_given_back_after_a_failure(make: Make, store: Store, pool: Pool) -> None:
    with pytest.raises(NotFound):
        bring(make(one=Source(trouble=lambda number: NotFound("nothing"))), [item(DATA, "one", "a")])
    assert store.pools.reservations(pool) == []


# Room


def test_room_that_is_gone_meanwhile_is_told_before_a_byte_moves(make: Make, tmp_path: Path) -> None:
    pool = Pool("tight", tmp_path / "tight", capacity_bytes=8 * MIB)
    store = Store(Pools([pool], runner=Here()), runner=Here())
    source = Source()
    transfer = make(one=source)
    transfer.store = store
    planner = Planner(store, transfer.fetchers)
    plan = planner.plan("it", [item(DATA, "one", "a")])
    with (
        store.pools.reserve(pool, 5 * MIB, "somebody else"),
        transfer.turn(plan),
        pytest.raises(DiskFailure, match=r"it needs 5\.0 MiB; pool 'tight'"),
    ):
        transfer.execute(plan)
    assert source.asked == []


# Others at the same time


def test_one_at_a_time_brings_an_asset_and_the_others_wait(make: Make, watcher: Silent) -> None:
    transfer = make(one=Source())
    plan = transfer.planner.plan("it", [item(DATA, "one", "a")])
    order: list[str] = []
    entered, release = threading.Event(), threading.Event()

    def first() -> None:
        with transfer.turn(plan) as was_busy:
            order.append(f"first {was_busy}")
            entered.set()
            assert release.wait(20)
            order.append("first done")

    def second() -> None:
        with transfer.turn(plan) as was_busy:
            order.append(f"second {was_busy}")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(20)
    watcher.note = lambda text: release.set()  # type: ignore[method-assign]  told before it waits
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert order == ["first False", "first done", "second True"]


def test_two_assets_come_at_the_same_time(make: Make) -> None:
    transfer = make(one=Source())
    plans = [transfer.planner.plan(what, [item(DATA, "one", "a")]) for what in ("this", "that")]
    with transfer.turn(plans[0]) as one, transfer.turn(plans[1]) as other:
        assert (one, other) == (False, False)


# Archives


def test_an_archive_is_known_by_its_content_from_then_on(make: Make, store: Store, pool: Pool) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("x/y.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    data = stream.getvalue()
    source = Source(data)
    wanted = item(data, "one", "x.tar", unpack=True, into="here")
    outcome = bring(make(one=source), [wanted])
    assert contents(store, outcome) == {"here/x/y.txt": b"abc"}
    ref = store.ref("url", archive_name(wanted.sha256 or ""))
    assert ref is not None
    assert [entry.path for entry in store.tree(ref.root)] == ["x/y.txt"]
    sent = source.sent
    elsewhere = item(data, "one", "renamed.tar", unpack=True, into="there")
    outcome = bring(make(one=source), [elsewhere], what="another")
    assert contents(store, outcome) == {"there/x/y.txt": b"abc"}
    assert source.sent == sent


def test_the_plan_is_only_read(make: Make) -> None:
    transfer = make(one=Source())
    plan = transfer.planner.plan("it", [item(DATA, "one", "a")])
    copy = Plan(**vars(plan))
    with transfer.turn(plan):
        transfer.execute(plan)
    assert plan == copy
