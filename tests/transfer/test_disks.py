"""Disks on bad days: full, too small, read-only, not ours, shared, with a wrong clock; and names that are a burden."""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fetch_command import Fairmile, ended, kept_bytes, kept_ranges, killed_at_the_end, sha256, wait_until
from web_server import WebServer, paced, web_server

MIB = 1 << 20
Mount = Callable[..., Path]


@pytest.fixture
def fairmile(tmp_path: Path) -> Fairmile:
    return Fairmile(tmp_path / "own")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mount]:
    """Return what mounts a small disk of its own, or changes it when it is there; only root may."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    folder = tmp_path / "disk"

    def mount(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if folder.is_mount() else ["-t", "tmpfs", "-o", options]
        folder.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *again, "disk", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode != 0 and not folder.is_mount():
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return folder

    try:
        yield mount
    finally:
        if folder.is_mount():
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def tar_of(files: dict[str, bytes], mode: str = "w", links: dict[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return packed.getvalue()


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """It failed by the system's fault, with a sentence that holds the words and a hint."""
    assert (done.returncode, done.stdout) == (3, ""), done
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ") and hint.startswith("  hint: "), done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@contextlib.contextmanager
def asks_only_for_the_rest(server: WebServer, pool: Path, path: str = "large.bin") -> Iterator[None]:
    """What is on record of a half-done file is not asked for in the block, but something else of it is.

    How much is sent tells less: on a busy machine a range that comes slowly is taken over, and some of it comes twice.
    """
    kept, before = kept_ranges(pool), len(server.requests)
    assert kept
    yield
    gets = [each for each in server.requests[before:] if (each.method, each.path) == ("GET", path)]
    asked = [each.span or (0, None) for each in gets]
    assert asked
    for start, stop in kept:
        assert [span for span in asked if span[0] < stop and (span[1] is None or start <= span[1])] == []


# Full


def test_a_disk_that_others_fill_meanwhile_ends_the_fetch_and_nothing_is_lost(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=32m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    data = noise(12 * MIB)
    with web_server({"large.bin": b""}, paced(len(data) / 6, data)) as server:
        arguments = [server.url("large.bin"), "--pool", "small"]
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(folder / "pool") > 0.6 * len(data), process)
            with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(64 << 10))
            refused(ended(process), "No space left", "the disk is full: free some space")
        (folder / "filler").unlink()
        # What came in the second before is not on record: there was no room to note it.
        assert kept_bytes(folder / "pool") > 0.6 * len(data)
        with asks_only_for_the_rest(server, folder / "pool"):
            fairmile.fetch(*arguments, "--to", fairmile.place / "to")
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}
    fairmile.assert_clean(folder / "pool")


@pytest.mark.thorough
def test_a_disk_that_is_full_while_unpacking_drops_no_archive(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=8m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    # Packed it is tiny: what becomes of it can only be guessed.
    files = {"text.txt": bytes(20 * MIB), "more/noise.bin": noise(100_000)}
    data = tar_of(files, "w:gz")
    with web_server({"all.tar.gz": data}, paced()) as server:
        arguments = [server.url("all.tar.gz"), "--pool", "small", "--unpack"]
        done = fairmile.run("fetch", *arguments)
        assert done.returncode != 0
        assert "error: " in done.stderr and "hint: " in done.stderr
        assert not list((folder / "pool").glob("incoming/batch-*"))
        disk("size=64m")
        fairmile.fetch(*arguments, "--to", fairmile.place / "to")
        assert server.sent_bytes == len(data)
    assert fairmile.content(fairmile.place / "to") == files
    fairmile.assert_clean(folder / "pool")


def test_an_archive_that_outgrows_the_room_is_the_disk_s_fault(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=8m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    with web_server({"all.tar.gz": tar_of({"text.txt": bytes(20 * MIB)}, "w:gz")}, paced()) as server:
        refused(fairmile.run("fetch", server.url("all.tar.gz"), "--pool", "small", "--unpack"), "unpacks to more than")


@pytest.mark.thorough
def test_a_pool_that_is_too_small_is_refused_before_a_byte_moves(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=8m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    data = noise(9 * MIB)
    with web_server({"large.bin": data}, paced()) as server:
        done = fairmile.run("fetch", server.url("large.bin"), "--pool", "small")
        refused(done, "needs 9.0 MiB", "8.0 MiB", "pool 'home' has enough space", "--pool home")
        assert server.sent_bytes == 0
        assert not list((folder / "pool").rglob("*")) or not list((folder / "pool").glob("incoming/*"))
        fetched = fairmile.fetch(server.url("large.bin"))
        assert fetched["pool"] == "home"
        assert any("skipped pool 'small'" in note for note in fetched["notes"])
    fairmile.assert_clean()


def test_a_capacity_is_respected_as_a_disk_is(fairmile: Fairmile, tmp_path: Path) -> None:
    fairmile.set(pools={"small": {"folder": str(tmp_path / "small"), "capacity": "5 MB"}})
    data = noise(3 * MIB)
    with web_server({"a.bin": data, "b.bin": data[::-1]}, paced()) as server:
        fairmile.fetch(server.url("a.bin"), "--pool", "small")
        done = fairmile.run("fetch", server.url("b.bin"), "--pool", "small")
        refused(done, "needs 3.0 MiB", "capacity")
        assert server.sent_bytes == len(data)
    fairmile.assert_clean(tmp_path / "small")


@pytest.mark.thorough
def test_what_an_interrupted_fetch_holds_is_not_asked_for_a_second_time(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=16m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    data = noise(10 * MIB)
    with web_server({"large.bin": b""}, paced(len(data) / 4, data)) as server:
        arguments = [server.url("large.bin"), "--pool", "small"]
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(folder / "pool"), process)
        server.behaviour = paced(data=data)
        fairmile.fetch(*arguments)
    fairmile.assert_clean(folder / "pool")


def test_an_interrupted_fetch_goes_on_in_its_pool(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=16m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool"), "speed": "fast"}})
    data = noise(10 * MIB)
    with web_server({"large.bin": b""}, paced(len(data) / 4, data)) as server:
        process = fairmile.start("fetch", server.url("large.bin"))
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(folder / "pool"), process)
        server.behaviour = paced(data=data)
        assert fairmile.fetch(server.url("large.bin"))["pool"] == "small"
    fairmile.assert_clean(folder / "pool", fairmile.pool)


def test_of_two_fetches_into_room_for_one_the_other_is_refused(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=16m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool")}})
    data = noise(10 * MIB)
    with web_server({"a.bin": data, "b.bin": data[::-1]}, paced(len(data) / 2)) as server:
        processes = [fairmile.start("fetch", server.url(name), "--pool", "small") for name in ("a.bin", "b.bin")]
        with killed_at_the_end(*processes):
            done = sorted((ended(process) for process in processes), key=lambda each: each.returncode)
        assert done[0].returncode == 0, done[0].stderr
        refused(done[1], "needs 10.0 MiB; pool 'small' has")
        assert server.sent_bytes <= 1.1 * len(data)
    fairmile.assert_clean(folder / "pool")


@pytest.mark.thorough
def test_the_second_fetch_goes_elsewhere_while_the_first_holds_the_room(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=16m")
    fairmile.set(pools={"small": {"folder": str(folder / "pool"), "speed": "fast"}})
    data = noise(10 * MIB)
    with web_server({"a.bin": data, "b.bin": data[::-1]}, paced(len(data) / 2)) as server:
        first = fairmile.start("fetch", server.url("a.bin"))
        with killed_at_the_end(first):
            wait_until(lambda: server.sent_bytes, first)
            second = fairmile.fetch(server.url("b.bin"))
            assert ended(first).returncode == 0
        assert second["pool"] == "home"
        assert any("skipped pool 'small'" in note for note in second["notes"])
    fairmile.assert_clean(folder / "pool", fairmile.pool)


# Not ours to write


@pytest.mark.thorough
def test_a_read_only_pool_is_read_from_and_not_written_to(fairmile: Fairmile, disk: Mount) -> None:
    folder = disk("size=16m")
    fairmile.set(pools={"fixed": {"folder": str(folder / "pool"), "speed": "fast"}})
    data, new = noise(100_000), noise(100_000, 1)
    with web_server({"data.bin": data, "new.bin": new}, paced()) as server:
        assert fairmile.fetch(server.url("data.bin"))["pool"] == "fixed"
        disk("ro")
        assert fairmile.fetch(server.url("data.bin"), "--to", fairmile.place / "to")["known"]
        assert fairmile.content(fairmile.place / "to") == {"data.bin": data}
        assert server.sent_bytes == len(data)
        refused(fairmile.run("fetch", server.url("new.bin"), "--pool", "fixed"), "read-only file system")
        fetched = fairmile.fetch(server.url("new.bin"))
        assert fetched["pool"] == "home"
        assert any("skipped pool 'fixed'" in note and "read-only" in note for note in fetched["notes"])
        disk("rw")
    fairmile.assert_clean(folder / "pool", fairmile.pool)


@pytest.mark.thorough
def test_a_disk_that_turns_read_only_meanwhile_ends_the_fetch_and_nothing_is_lost(
    fairmile: Fairmile, disk: Mount
) -> None:
    folder = disk("size=24m")
    inner = folder / "pool"
    fairmile.set(pools={"small": {"folder": str(inner)}})
    inner.mkdir()
    data = noise(9 * MIB)
    with web_server({"large.bin": b""}, paced(len(data) / 3, data)) as server:
        arguments = [server.url("large.bin"), "--pool", "small"]
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(inner), process)
            subprocess.run(["mount", "--bind", str(inner), str(inner)], check=True)
            try:
                subprocess.run(["mount", "-o", "remount,bind,ro", str(inner)], check=True)
                done = ended(process)
            finally:
                subprocess.run(["umount", str(inner)], check=True)
        refused(done, "Read-only file system", "choose another folder")
        server.behaviour = paced(data=data)
        with asks_only_for_the_rest(server, inner):
            fairmile.fetch(*arguments, "--to", fairmile.place / "to")
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}
    fairmile.assert_clean(inner)


def test_a_pool_that_we_may_not_write_is_refused_or_passed_over(tmp_path: Path, unprivileged: list[str]) -> None:
    fairmile = Fairmile(tmp_path / "own", unprivileged)
    pool = tmp_path / "theirs"
    pool.mkdir(mode=0o555)
    fairmile.set(pools={"theirs": {"folder": str(pool), "speed": "fast"}})
    data = noise(100_000)
    with web_server({"data.bin": data}, paced()) as server:
        refused(fairmile.run("fetch", server.url("data.bin"), "--pool", "theirs"), f"no write permission in {pool}")
        assert server.sent_bytes == 0
        fetched = fairmile.fetch(server.url("data.bin"))
    assert fetched["pool"] == "home"
    assert any("skipped pool 'theirs'" in note for note in fetched["notes"])
    fairmile.assert_clean()


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("objects", 9 * MIB),
        ("incoming", 9 * MIB),
        ("reserved", 100_000),
        ("trees", 100_000),
        ("refs", 100_000),
    ],
)
def test_a_folder_of_the_pool_that_we_may_not_write_is_named_and_no_byte_comes_twice(
    tmp_path: Path, unprivileged: list[str], name: str, size_bytes: int
) -> None:
    fairmile = Fairmile(tmp_path / "own", unprivileged)
    fairmile.set(transfer={"connections": 1})  # none takes over what is slow on another, which is sent twice then
    data = noise(size_bytes)
    closed = fairmile.pool / name
    closed.mkdir(parents=True)
    closed.chmod(0o555)
    with web_server({"data.bin": data}, paced()) as server:
        refused(fairmile.run("fetch", server.url("data.bin")), str(closed), "no write permission")
        closed.chmod(0o755)
        fairmile.fetch(server.url("data.bin"), "--to", fairmile.place / "to")
        assert server.sent_bytes == len(data)
    assert fairmile.content(fairmile.place / "to") == {"data.bin": data}
    fairmile.assert_clean()


def test_a_folder_to_lay_into_that_we_may_not_write_is_named(tmp_path: Path, unprivileged: list[str]) -> None:
    fairmile = Fairmile(tmp_path / "own", unprivileged)
    (tmp_path / "theirs").mkdir(mode=0o555)
    with web_server({"data.bin": noise(1000)}, paced()) as server:
        done = fairmile.run("fetch", server.url("data.bin"), "--to", tmp_path / "theirs")
        refused(done, str(tmp_path / "theirs"), "no write permission")
    fairmile.assert_clean()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.thorough
def test_another_user_of_the_group_goes_on_with_what_a_killed_fetch_left(open_place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may act as several users")
    group, pool = 12345, open_place / "shared"
    pool.mkdir()
    os.chown(pool, -1, group)
    pool.chmod(0o2775)
    users: list[Fairmile] = []
    for user in (12001, 12002):
        # They may read everything, Python in a folder of root's perhaps, but write only what is theirs.
        may_read = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        identity = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all,+dac_read_search"]
        fairmile = Fairmile(open_place / str(user), ["setpriv", *identity, *may_read])
        fairmile.set(pools={"shared": {"folder": str(pool), "speed": "fast"}})
        for path in (fairmile.place, *fairmile.place.rglob("*")):
            os.chown(path, user, group)
        users.append(fairmile)
    data, files = noise(9 * MIB), {f"{number}.bin": noise(5000, number) for number in range(100)}
    list_of_files = "".join(f"{name}\n" for name in files).encode()
    with web_server({"large.bin": b"", "list.txt": list_of_files, **files}, paced(300_000)) as server:
        server.behaviours["large.bin"] = paced(len(data) / 3, data)
        for address in (server.url("large.bin"), f"list+{server.url('list.txt')}"):
            before = kept_bytes(pool)
            process = users[0].start("fetch", address)
            with killed_at_the_end(process):
                wait_until(lambda: kept_bytes(pool) > before, process)  # noqa: B023  called at once
        server.behaviour = paced()
        server.behaviours["large.bin"] = paced(data=data)
        with asks_only_for_the_rest(server, pool):
            for address in (server.url("large.bin"), f"list+{server.url('list.txt')}"):
                for user in reversed(users):
                    assert user.fetch(address)["pool"] == "shared"


# Clocks


@pytest.mark.thorough
@pytest.mark.parametrize("stamp", [0, 4_000_000_000], ids=["past", "future"])
def test_files_stamped_by_a_wrong_clock_change_nothing(fairmile: Fairmile, stamp: int) -> None:
    data = noise(9 * MIB)
    with web_server({"large.bin": b"", "small.bin": noise(5000)}, paced()) as server:
        server.behaviours["large.bin"] = paced(len(data) / 3, data)
        fairmile.fetch(server.url("small.bin"))
        process = fairmile.start("fetch", server.url("large.bin"))
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(fairmile.pool) > MIB, process)
        for path in fairmile.pool.rglob("*"):
            os.utime(path, (stamp, stamp))
        server.behaviours["large.bin"] = paced(data=data)
        with asks_only_for_the_rest(server, fairmile.pool):
            assert fairmile.fetch(server.url("small.bin"))["known"]
            fairmile.fetch(server.url("large.bin"), "--to", fairmile.place / "to")
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}
    fairmile.assert_clean()


# Only the date is wrong; the time that passes is the same everywhere, and the disk has a clock of its own.
SKEWED = """
import sys, time
skew_s, clock = float(sys.argv[1]), time.time
time.time = lambda: clock() + skew_s
from fairmile.cli.main import main
sys.argv[1:] = sys.argv[3:]
main()
"""
DAY_S = 86400


@pytest.mark.thorough
@pytest.mark.parametrize("skew_s", [-400 * DAY_S, 400 * DAY_S], ids=["slow", "fast"])
def test_a_machine_with_a_wrong_clock_fetches_waits_and_cleans_up_as_others_do(tmp_path: Path, skew_s: int) -> None:
    right = Fairmile(tmp_path / "own")
    wrong = Fairmile(tmp_path / "own", [sys.executable, "-c", SKEWED, str(skew_s)])
    data = noise(9 * MIB)
    with web_server({"large.bin": b"", "a.bin": noise(5000, 1), "b.bin": noise(5000, 2)}, paced()) as server:
        server.behaviours["large.bin"] = paced(len(data) / 4, data)
        wrong.fetch(server.url("a.bin"))
        right.fetch(server.url("b.bin"))
        first = wrong.start("fetch", server.url("large.bin"))
        with killed_at_the_end(first):
            wait_until(lambda: server.sent_bytes > MIB, first)
            second = right.start("fetch", server.url("large.bin"))
            with killed_at_the_end(second):
                assert second.stderr is not None
                assert "another process is fetching it; waiting" in second.stderr.readline()
                assert wrong.run("store", "gc").returncode == 0
                assert ended(first).returncode == ended(second).returncode == 0
        before = server.sent_bytes
        for fairmile in (wrong, right):
            found = fairmile.fetch_all(*(server.url(name) for name in ("a.bin", "b.bin", "large.bin")))
            assert all(each["known"] for each in found)
        assert server.sent_bytes == before
    right.assert_clean()


# Names


NAMES = ["with spaces .txt", "übung 名前 🙂.bin", "n" * 255, "é" * 127, "-o 100%41 & $(x);'\".txt", "a\nb"]


def test_names_arrive_as_they_are_by_address_card_and_archive(fairmile: Fairmile) -> None:
    files = {name: noise(3000, number) for number, name in enumerate(NAMES)}
    archive = {f"{folder}/{name}": data for folder, (name, data) in zip(reversed(NAMES), files.items(), strict=True)}
    with web_server({**files, "all.tar": tar_of(archive)}, paced()) as server:
        addresses = {name: server.url(quote(name)) for name in NAMES}
        fairmile.fetch_all(*addresses.values(), "--to", fairmile.place / NAMES[0] / NAMES[1])
        found = fairmile.content(fairmile.place / NAMES[0] / NAMES[1])
        assert {Path(path).name: data for path, data in found.items()} == files
        card = fairmile.add_card(
            "named", [{"name": name, "contentUrl": addresses[name], "sha256": sha256(files[name])} for name in NAMES]
        )
        fairmile.fetch(card, "--to", fairmile.place / "card")
        assert fairmile.content(fairmile.place / "card") == files
        fairmile.fetch(server.url("all.tar"), "--unpack", "--to", fairmile.place / "archive")
        assert fairmile.content(fairmile.place / "archive") == archive
    fairmile.assert_clean()


def test_a_name_that_no_disk_can_hold_is_refused(fairmile: Fairmile) -> None:
    with web_server({"n" * 256: noise(100)}, paced()) as server:
        done = fairmile.run("fetch", server.url("n" * 256))
        assert done.returncode in (2, 3)
        assert "longer than 255 bytes" in done.stderr
        assert server.sent_bytes == 0
    fairmile.assert_clean()


def test_links_that_stay_inside_an_archive_arrive_and_others_are_refused(fairmile: Fairmile) -> None:
    files = {"sub/data.bin": noise(3000)}
    good = tar_of(files, links={"link": "sub/data.bin", "sub/up": "../link"})
    with web_server({"good.tar": good}, paced()) as server:
        fairmile.fetch(server.url("good.tar"), "--unpack", "--to", fairmile.place / "to")
        assert os.readlink(fairmile.place / "to" / "link") == "sub/data.bin"
        assert (fairmile.place / "to" / "sub" / "up").read_bytes() == files["sub/data.bin"]
        bad = {"out": "../../etc/passwd", "absolute": "/etc/passwd", "sub/far": "../../outside"}
        for link, target in bad.items():
            server.files["bad.tar"] = tar_of(files, links={link: target})
            done = fairmile.run("fetch", server.url("bad.tar"), "--unpack", "--to", fairmile.place / "bad")
            assert done.returncode in (2, 3, 4), done
            assert link in done.stderr
            assert not (fairmile.place / "bad").exists()
    fairmile.assert_clean()
