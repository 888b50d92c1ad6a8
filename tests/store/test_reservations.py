from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.store import reservations as module
from fairmile.store.reservations import Held, Taken

MIB = 1 << 20


def python(script: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


HOLD = """
import sys
from pathlib import Path
from fairmile.store.reservations import Taken
with Taken(Path(sys.argv[1])).make(1000, "fetch of dataset/x"):
    print("held", flush=True)
    sys.stdin.read()
"""


def one(taken: Taken) -> Held:
    (held,) = taken.held()
    return held


def file_of(taken: Taken) -> Path:
    return taken.folder / "reserved" / one(taken).token


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.01)


def test_a_reservation_says_who_holds_how_much_for_what(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, "dataset/x"):
        held = one(taken)
        assert (held.what, held.size_bytes, held.left_bytes, held.alive) == ("dataset/x", 1000, 1000, True)
        assert (held.host, held.pid, held.user_id) == (os.uname().nodename, os.getpid(), os.getuid())
    assert taken.held() == []
    assert [name for name in os.listdir(tmp_path / "reserved") if not name.startswith(".lock")] == []


def test_a_pool_that_is_not_there_has_no_reservations(tmp_path: Path) -> None:
    assert Taken(tmp_path / "gone").held() == []
    assert Taken(tmp_path / "gone").sweep() == []
    assert not (tmp_path / "gone").exists()


def test_what_has_landed_is_no_longer_reserved(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, "x") as reservation:
        reservation.shrink(400)
        assert (one(taken).left_bytes, one(taken).landed_bytes) == (600, 400)
        reservation.shrink(5000)
        assert (one(taken).left_bytes, reservation.left_bytes) == (0, 0)
        with pytest.raises(UsageError, match="-1 bytes"):
            reservation.shrink(-1)


def test_many_small_steps_leave_a_small_file_and_no_more_than_one_step_unsaid(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(100_000, "x") as reservation:
        for _ in range(50_000):
            reservation.shrink(1)
        assert 50_000 <= one(taken).left_bytes <= 50_000 + 100_000 / 256 + 1
        assert file_of(taken).stat().st_size < 8192


def test_many_threads_shrink_one_reservation(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(8000, "x") as reservation:
        threads = [
            threading.Thread(target=lambda: [reservation.shrink(1) for _ in range(1000)])  # type: ignore[func-returns-value]
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reservation.left_bytes == one(taken).left_bytes == 0


@pytest.mark.parametrize("what", ["a\nleft=0\nsize=0", "a\u2028left=0", "\ud800", "x" * 5000, "é = ü"])
def test_no_name_can_change_what_is_reserved(tmp_path: Path, what: str) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, what):
        assert (one(taken).size_bytes, one(taken).left_bytes, one(taken).alive) == (1000, 1000, True)


def test_a_killed_owner_holds_nothing_and_is_swept(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with python(HOLD, str(tmp_path)) as owner, taken.make(5, "mine"):
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        assert sorted(held.alive for held in taken.held()) == [True, True]
        assert taken.sweep() == []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert sorted((held.what, held.alive) for held in taken.held()) == [
            ("fetch of dataset/x", False), ("mine", True)
        ]  # fmt: skip
        assert [held.what for held in taken.sweep()] == ["fetch of dataset/x"]
        assert one(taken).what == "mine"


def test_another_process_under_the_owners_number_is_not_the_owner(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, "x"):
        text = file_of(taken).read_text()
        file_of(taken).write_text(text.replace("started=", "started=1"))
        assert not one(taken).alive


def test_an_owner_on_another_host_is_given_up_after_the_lease_by_the_file_servers_clock(tmp_path: Path) -> None:
    taken = Taken(tmp_path, clock=lambda: 0.0)  # this host's clock is decades behind and plays no part
    with taken.make(1000, "x"):
        text = file_of(taken).read_text()
        file_of(taken).write_text(text.replace(f"host={os.uname().nodename}", "host=elsewhere"))
        assert one(taken).alive
        almost = time.time() - taken.lease_s + 30
        os.utime(file_of(taken), (almost, almost))
        assert one(taken).alive
        os.utime(file_of(taken), (almost - 60, almost - 60))
        assert not one(taken).alive


def test_a_reservation_is_renewed_while_its_owner_lives(tmp_path: Path) -> None:
    taken = Taken(tmp_path, lease_s=0.2)
    with taken.make(1000, "x"):
        path = file_of(taken)
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime > 0)


def test_a_reservation_that_was_given_up_is_lost_and_does_not_come_back(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, "x") as reservation:
        file_of(taken).unlink()
        assert not reservation.lost
        reservation.shrink(500)
        assert reservation.lost
        assert taken.held() == []


def test_releasing_twice_is_harmless(tmp_path: Path) -> None:
    reservation = Taken(tmp_path).make(1000, "x")
    reservation.release()
    reservation.shrink(10)
    reservation.release()
    assert Taken(tmp_path).held() == []


def test_a_forked_child_does_not_give_back_what_its_parent_holds(tmp_path: Path) -> None:
    script = """
import os, sys, warnings
from pathlib import Path
from fairmile.store.reservations import Taken
warnings.simplefilter("ignore")
taken = Taken(Path(sys.argv[1]))
with taken.make(1000, "x") as reservation:
    child = os.fork()
    if child == 0:
        reservation.release()
        os._exit(0)
    os.waitpid(child, 0)
    print(len(taken.held()))
print(len(taken.held()))
"""
    with python(script, str(tmp_path)) as parent:
        assert parent.communicate()[0].split() == ["1", "0"]


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    with taken.make(1000, "x"):
        with file_of(taken).open("a") as stream:
            stream.write("left=9")
        assert one(taken).left_bytes == 1000


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"size=9\n", b"size=-5\nleft=99999999999999999999999\npid=x\n"]
)
def test_a_damaged_file_reserves_nothing_and_is_swept_after_the_lease(tmp_path: Path, content: bytes) -> None:
    taken = Taken(tmp_path)
    path = tmp_path / "reserved" / ("0" * 16)
    path.parent.mkdir()
    path.write_bytes(content)
    assert one(taken).left_bytes == 0
    os.utime(path, (1, 1))
    taken.sweep()
    assert not path.exists()


def test_what_killed_processes_left_half_done_is_swept_after_the_lease(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    (tmp_path / "reserved").mkdir()
    old, young = (tmp_path / "reserved" / f".{letter * 16}" for letter in "ab")
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    taken.sweep()
    assert (old.exists(), young.exists()) == (False, True)


def test_others_can_read_a_reservation_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Taken(tmp_path).make(1000, "x"):
            assert stat.S_IMODE(file_of(Taken(tmp_path)).stat().st_mode) == 0o644
    finally:
        os.umask(before)


def test_in_a_folder_that_a_group_shares_the_group_can_reserve(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    pool.chmod(0o2775)
    before = os.umask(0o077)
    try:
        with Taken(pool).make(1000, "x"):
            assert stat.S_IMODE((pool / "reserved").stat().st_mode) == 0o2775
    finally:
        os.umask(before)


def fill(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, size_bytes)


def used_mib(taken: Taken) -> int:
    """The pool's data; its own small files take less than a MiB together."""
    usage = taken.usage()
    assert usage is not None
    return usage.with_open(taken.held()).used_bytes // MIB


def test_the_bytes_of_a_pool_are_counted_and_remembered(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    fill(tmp_path / "objects" / "a", 3 * MIB)
    assert taken.usage() is None
    assert taken.count().walked_bytes // MIB == used_mib(taken) == 3
    fill(tmp_path / "objects" / "b", MIB)
    assert taken.count().walked_bytes // MIB == 3
    assert taken.count(max_age_s=0).walked_bytes // MIB == 4


def test_a_count_is_repeated_after_an_hour_or_a_hundred_times_what_it_took(tmp_path: Path) -> None:
    now = 1e9
    taken = Taken(tmp_path, clock=lambda: now)
    first = taken.count()
    now += 3599
    assert taken.count() == first
    now += 2
    assert taken.count().measured == now
    found = json.loads((tmp_path / "usage.json").read_text())
    (tmp_path / "usage.json").write_text(json.dumps(found | {"took_s": 60.0}))
    now += 5000
    assert taken.count().measured == now - 5000
    now += 1001
    assert taken.count().measured == now
    now -= 9
    assert taken.count().measured == now, "a date in the future says nothing"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"walked_bytes": "many"}', "\0"])
def test_a_damaged_account_is_made_anew(tmp_path: Path, content: str) -> None:
    fill(tmp_path / "objects" / "a", MIB)
    (tmp_path / "usage.json").write_text(content)
    assert Taken(tmp_path).usage() is None
    assert Taken(tmp_path).count().walked_bytes // MIB == 1


def test_what_a_dead_owner_has_landed_stays_in_the_account(tmp_path: Path) -> None:
    taken = Taken(tmp_path)
    taken.count()
    script = HOLD.replace("make(1000", f"make({4 * MIB}").replace(
        '    print("held"', f'    reservation.shrink({3 * MIB})\n    print("held"'
    ).replace('x"):', 'x") as reservation:')  # fmt: skip
    with python(script, str(tmp_path)) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        owner.kill()
        owner.wait()
    assert used_mib(taken) == 3
    taken.sweep()
    assert used_mib(taken) == 3
    taken.count(max_age_s=0)
    assert used_mib(taken) == 0


def test_of_several_who_need_a_count_one_walks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Path] = []
    monkeypatch.setattr(module, "_files_below", lambda folder: walks.append(folder) or iter([MIB]))  # type: ignore[func-returns-value]
    gate = threading.Barrier(4)

    def count() -> None:
        gate.wait()
        Taken(tmp_path, clock=lambda: 1e9).count()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert walks == [tmp_path]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 9)),
        st.tuples(st.just("land"), st.integers(1, 4)),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("count"), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None)
@given(STEPS)
def test_the_account_follows_what_lands_in_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    taken = Taken(tmp_path_factory.mktemp("pool"))
    taken.count()
    open_ones = []
    landed = 0
    try:
        for step, number in steps:
            if step == "reserve":
                open_ones.append(taken.make(number * MIB, "x"))
            elif step == "count":
                taken.count(max_age_s=0)
            elif open_ones and step == "release":
                open_ones.pop(number % len(open_ones)).release()
            elif open_ones and step == "land":
                reservation = open_ones[number % len(open_ones)]
                size = min(number, reservation.left_bytes // MIB)
                fill(taken.folder / "objects" / f"{landed}-{size}", size * MIB) if size else None
                reservation.shrink(size * MIB)
                landed += size
            assert used_mib(taken) == landed
    finally:
        for reservation in open_ones:
            reservation.release()
    assert used_mib(taken) == landed
