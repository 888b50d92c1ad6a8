"""`fairmile fetch` in processes that are killed, interrupted, or meet one another: what came is kept, nothing else."""

from __future__ import annotations

import io
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fetch_command import Fairmile, ended, kept_bytes, killed_at_the_end, sha256, wait_until
from web_server import WebServer, paced, stalls, web_server

from fairmile.base.files import Lock

KILLS = 8
_NO_LIMIT = 1 << 60


@pytest.fixture
def fairmile(tmp_path: Path) -> Iterator[Fairmile]:
    """The command; after the test its store is verified and cleaned up."""
    command = Fairmile(tmp_path)
    yield command
    command.assert_clean()


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def files_of(count: int, size_bytes: int) -> dict[str, bytes]:
    return {f"{number:04}.bin": noise(size_bytes, number) for number in range(count)}


def card_of(fairmile: Fairmile, server: WebServer, files: Mapping[str, bytes]) -> str:
    """Return the name of a card that lists files of a server."""
    return fairmile.add_card(
        "many",
        [
            {"name": name, "contentUrl": server.url(name), "contentSize": f"{len(data)} B", "sha256": sha256(data)}
            for name, data in files.items()
        ],
    )


def tar_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def wanted(fairmile: Fairmile, server: WebServer, kind: str, files: Mapping[str, bytes]) -> list[str]:
    """Return what to give to `fetch` for files that a server offers one by one and as `all.tar`."""
    url = server.url("all.tar")
    return {
        "digest": lambda: [url, "--sha256", sha256(server.files["all.tar"])],
        "address": lambda: [url],
        "archive": lambda: [url, "--unpack"],
        "card": lambda: [card_of(fairmile, server, files)],
    }[kind]()


def kill_often_then_fetch(fairmile: Fairmile, server: WebServer, arguments: list[str], size_bytes: int) -> None:
    """Start a fetch several times and kill it, then let it end; the server sends at most half of the whole in vain.

    Every fourth one is killed at a random moment of its start. The others are killed when the server has sent another
    random share after they made something safe: together a seventh of the whole, which may be lost. However late a busy
    machine comes to the kill, the server sends no more until then.
    """
    chance = random.Random(3)
    shares = [chance.random() for _ in range(KILLS)]
    for number, share in enumerate(shares):
        before = kept_bytes(fairmile.pool)
        server.most_bytes = server.sent_bytes + int(0.04 * size_bytes) if number % 4 == 0 else _NO_LIMIT
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            if number % 4 == 0:
                time.sleep(share)
                continue
            wait_until(lambda: kept_bytes(fairmile.pool) > before, process)  # noqa: B023  called at once
            server.most_bytes = server.sent_bytes + int(0.15 * size_bytes * share / sum(shares))
            wait_until(lambda: server.sent_bytes >= server.most_bytes, process)
    server.most_bytes = _NO_LIMIT
    server.behaviour = server.behaviours.pop("last")
    in_vain, kept = server.sent_bytes, kept_bytes(fairmile.pool)
    fairmile.fetch(*arguments, "--to", fairmile.place / "to")

    assert kept > 0
    assert server.sent_bytes - in_vain <= size_bytes - kept + 0.1 * size_bytes
    assert server.sent_bytes <= 1.5 * size_bytes


# Kill −9


@pytest.mark.thorough
def test_a_large_file_killed_often_goes_on_each_time(fairmile: Fairmile) -> None:
    data = noise(40 << 20)
    with web_server({"large.bin": b""}, paced((40 << 20) / 24, data)) as server:
        server.behaviours["last"] = paced(data=data)
        arguments = [server.url("large.bin"), "--sha256", sha256(data)]
        kill_often_then_fetch(fairmile, server, arguments, len(data))
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}


@pytest.mark.thorough
def test_many_small_files_killed_often_go_on_each_time(fairmile: Fairmile) -> None:
    fairmile.environ["FAIRMILE_TRANSFER_CONNECTIONS"] = "4"  # what they have under way is lost each time
    files = files_of(600, 10_000)
    size = sum(map(len, files.values()))
    with web_server(files, paced(size / 8)) as server:
        server.behaviours["last"] = paced()
        name = card_of(fairmile, server, files)
        kill_often_then_fetch(fairmile, server, [name], size)
    assert fairmile.content(fairmile.place / "to") == files


@pytest.mark.thorough
def test_an_archive_killed_often_while_it_is_unpacked_goes_on_each_time(fairmile: Fairmile) -> None:
    fairmile.environ["FAIRMILE_TRANSFER_CONNECTIONS"] = "4"
    files = files_of(300, 20_000) | {f"large/{number}": noise(700_000, number) for number in range(10)}
    data = tar_of(files)
    with web_server({"all.tar": b""}, paced(len(data) / 24, data)) as server:
        server.behaviours["last"] = paced(data=data)
        arguments = [server.url("all.tar"), "--sha256", sha256(data), "--unpack"]
        kill_often_then_fetch(fairmile, server, arguments, len(data))
    assert fairmile.content(fairmile.place / "to") == files


def test_the_kill_of_the_one_that_brings_lets_one_that_waits_go_on(fairmile: Fairmile) -> None:
    data = noise(12 << 20)
    with web_server({"large.bin": b""}, paced((12 << 20) / 4, data)) as server:
        first = fairmile.start("fetch", server.url("large.bin"))
        with killed_at_the_end(first):
            wait_until(lambda: server.sent_bytes > len(data) / 8, first)
            second = fairmile.start("fetch", server.url("large.bin"))
            with killed_at_the_end(second):
                assert second.stderr is not None
                assert "another process is fetching it; waiting" in second.stderr.readline()
                before = kept_bytes(fairmile.pool)
                wait_until(lambda: kept_bytes(fairmile.pool) > before, first)
                first.kill()
                assert ended(second).returncode == 0
        assert server.sent_bytes <= 1.5 * len(data)


def test_a_file_that_was_sealed_when_its_process_was_killed_is_taken_up(
    tmp_path: Path, unprivileged: list[str]
) -> None:
    fairmile = Fairmile(tmp_path, unprivileged)
    data = noise(9 << 20)
    with web_server({"large.bin": b""}, paced((9 << 20) / 4, data)) as server:
        process = fairmile.start("fetch", server.url("large.bin"))
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(fairmile.pool), process)
        (half,) = fairmile.pool.glob("incoming/*/data")
        half.chmod(0o444)  # the last thing that happens to a complete file before it gets its name
        server.behaviour = paced(data=data)
        fairmile.fetch(server.url("large.bin"))
    fairmile.assert_clean()


# The process kills itself at the first call of a function: before it, or behind it.
AT_THAT_MOMENT = """
import importlib, os, signal, sys
module, name, method, when = sys.argv[1].split(":")
owner = getattr(importlib.import_module(module), name)
original = getattr(owner, method)
def killed(*arguments, **options):
    if when == "behind":
        original(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, method, killed)
from fairmile.cli.main import main
sys.argv[1:] = sys.argv[3:]
main()
"""
STORE = "fairmile.store"
FILE = [f"{STORE}.objects:Objects:adopt:before", f"{STORE}.shelves:Shelves:set_ref:before"]
ARCHIVE = [f"{STORE}.objects:Batch:_commit:before", f"{STORE}.objects:Batch:_commit:behind"]
ANY = [f"{STORE}.shelves:Shelves:put_tree:before", f"{STORE}.shelves:Shelves:set_ref:behind"]


@pytest.mark.thorough
@pytest.mark.parametrize("unpack", [False, True], ids=["file", "archive"])
def test_no_byte_comes_twice_when_a_fetch_is_killed_after_the_last_one(tmp_path: Path, unpack: bool) -> None:
    files = {f"{number}.bin": noise(1 << 20, number) for number in range(9)}
    data = tar_of(files)
    for number, moment in enumerate([*(ARCHIVE if unpack else FILE), *ANY]):
        fairmile = Fairmile(tmp_path / str(number))
        killed = Fairmile(tmp_path / str(number), [sys.executable, "-c", AT_THAT_MOMENT, moment])
        with web_server({"data.tar": b""}, paced(data=data)) as server:
            arguments = [server.url("data.tar"), *(["--unpack"] if unpack else [])]
            assert killed.run("fetch", *arguments).returncode == -signal.SIGKILL
            sent_bytes = server.sent_bytes
            fairmile.fetch(*arguments, "--to", fairmile.place / "to")
            assert (moment, server.sent_bytes) == (moment, sent_bytes)
        assert fairmile.content(fairmile.place / "to") == (files if unpack else {"data.tar": data})
        fairmile.assert_clean()


# Ctrl-C


def interrupted(process: subprocess.Popen[str]) -> None:
    """Send what Ctrl-C sends; the process ends as one that was interrupted does, at once."""
    process.send_signal(signal.SIGINT)
    done = ended(process)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_large_file_which_goes_on_later(fairmile: Fairmile) -> None:
    data = noise(12 << 20)
    # The last byte would come in ten minutes: nobody may wait for it.
    with web_server({"large.bin": b""}, paced(len(data) / 2, data, at_most=len(data) // 4)) as server:
        process = fairmile.start("fetch", server.url("large.bin"))
        # What lies in buffers is lost: on a busy machine that may be all of it.
        wait_until(lambda: kept_bytes(fairmile.pool) > len(data) // 8, process)
        interrupted(process)
        server.behaviour = paced(data=data)
        fairmile.fetch(server.url("large.bin"), "--to", fairmile.place / "to")
        assert server.sent_bytes <= 1.2 * len(data)
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}


@pytest.mark.thorough
@pytest.mark.parametrize("size_bytes", [100_000, 9 << 20], ids=["small", "large"])
@pytest.mark.parametrize("unpack", [False, True], ids=["file", "archive"])
def test_ctrl_c_ends_a_fetch_from_a_server_that_fell_silent(fairmile: Fairmile, size_bytes: int, unpack: bool) -> None:
    files = {"inside.bin": noise(size_bytes)}
    data = tar_of(files)
    fairmile.environ["FAIRMILE_TRANSFER_STALL"] = "600 s"
    with web_server({"data.tar": data}, stalls(50_000)) as server:
        arguments = [server.url("data.tar"), *(["--unpack"] if unpack else [])]
        process = fairmile.start("fetch", *arguments)
        wait_until(lambda: server.sent_bytes >= 50_000, process)
        interrupted(process)
        server.behaviour = paced()
        fairmile.fetch(*arguments, "--to", fairmile.place / "to")
    assert fairmile.content(fairmile.place / "to") == (files if unpack else {"data.tar": data})


def test_ctrl_c_ends_the_program_that_fetches(fairmile: Fairmile, tmp_path: Path) -> None:
    script = 'echo $$ > "$1"; exec sleep 600'
    command = ["sh", "-c", script, "sh", str(tmp_path / "pid"), "{url}", "{folder}"]
    fairmile.set(transfer={"fetchers": {"crawl": {"command": command}}})
    process = fairmile.start("fetch", "crawl+https://example.org/data")
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), process)
    interrupted(process)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_ctrl_c_ends_the_wait_for_another_process(fairmile: Fairmile) -> None:
    data = noise(9 << 20)
    with (
        web_server({"large.bin": b""}, paced(data=data)) as server,
        Lock(fairmile.pool / "incoming" / f"{sha256(data)}.lock"),
    ):
        process = fairmile.start("fetch", server.url("large.bin"), "--sha256", sha256(data))
        assert process.stderr is not None
        assert "another process is fetching it; waiting" in process.stderr.readline()
        interrupted(process)


# Several processes


def only_one_connection(fairmile: Fairmile) -> None:
    """Of several, one takes over what another is slow to bring on a busy machine, and some bytes come twice."""
    fairmile.environ |= {"FAIRMILE_TRANSFER_CONNECTIONS": "1", "FAIRMILE_TRANSFER_STALL_S": "100"}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["digest", "address", "archive", "card"])
def test_of_two_processes_one_brings_and_later_none_does_unless_it_shall_be_fresh(
    fairmile: Fairmile, kind: str
) -> None:
    only_one_connection(fairmile)
    files = files_of(200, 10_000)
    data = tar_of(files)
    with web_server({**files, "all.tar": data}, paced(len(data) / 2)) as server:
        arguments = wanted(fairmile, server, kind, files)
        first = fairmile.start("fetch", *arguments)
        with killed_at_the_end(first):
            wait_until(lambda: server.sent_bytes > len(data) / 2, first)
            second = fairmile.start("fetch", *arguments, "--to", fairmile.place / "to")
            with killed_at_the_end(second):
                assert ended(second).returncode == ended(first).returncode == 0
        assert server.sent_bytes <= 1.1 * len(data)
        server.behaviour = paced()
        size = server.sent_bytes
        assert fairmile.fetch(*arguments)["known"]
        assert server.sent_bytes == size
        assert fairmile.fetch(*arguments, "--fresh")["moved_bytes"] > 0.9 * size
        assert server.sent_bytes > 1.9 * size
    assert fairmile.content(fairmile.place / "to") == (files if kind in ("archive", "card") else {"all.tar": data})


@pytest.mark.thorough
def test_of_twenty_processes_one_brings_and_the_others_wait(fairmile: Fairmile) -> None:
    only_one_connection(fairmile)
    data = noise(9 << 20)
    with web_server({"large.bin": b""}, paced((9 << 20) / 3, data)) as server:
        processes = [fairmile.start("fetch", server.url("large.bin")) for _ in range(20)]
        with killed_at_the_end(*processes):
            done = [ended(process) for process in processes]
        assert [each.returncode for each in done] == [0] * 20, [each.stderr for each in done]
        assert server.sent_bytes <= 1.1 * len(data)


# Clean-up beside a fetch


CLEAN_UP = ("store", "gc", "--grace", "0s", "--older-than", "0s")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["address", "archive", "card"])
def test_a_clean_up_takes_nothing_away_from_a_running_fetch(fairmile: Fairmile, kind: str) -> None:
    files = files_of(300, 30_000)
    data = tar_of(files)
    with web_server({**files, "all.tar": data}, paced(len(data) / 3)) as server:
        arguments = wanted(fairmile, server, kind, files)
        process = fairmile.start("fetch", *arguments, "--to", fairmile.place / "to")
        with killed_at_the_end(process):
            for share in (0.2, 0.6):
                wait_until(lambda: server.sent_bytes > share * len(data), process)  # noqa: B023  called at once
                assert fairmile.run(*CLEAN_UP).returncode == 0
            assert ended(process).returncode == 0
        assert server.sent_bytes <= 1.1 * len(data)
    assert fairmile.content(fairmile.place / "to") == ({"all.tar": data} if kind == "address" else files)


@pytest.mark.thorough
def test_a_clean_up_leaves_what_a_running_fetch_found_there(fairmile: Fairmile) -> None:
    old, new = noise(50_000, 1), noise(9 << 20, 2)
    files = {"old.bin": old, "new.bin": new}
    with web_server(files, paced(len(new) / 2)) as server:
        fairmile.fetch(server.url("old.bin"))
        name = card_of(fairmile, server, files)
        before = server.sent_bytes
        process = fairmile.start("fetch", name, "--to", fairmile.place / "to")
        with killed_at_the_end(process):
            wait_until(lambda: server.sent_bytes > before, process)
            assert fairmile.run(*CLEAN_UP).returncode == 0  # nothing else refers to the old file now
            done = ended(process)
        assert done.returncode == 0, done.stderr
    assert fairmile.content(fairmile.place / "to") == files


def test_what_came_before_a_kill_is_known_afterwards(fairmile: Fairmile) -> None:
    files = files_of(100, 20_000)
    names = "".join(f"{name}\n" for name in files).encode()
    size = sum(map(len, files.values()))
    with web_server({**files, "list.txt": names}, paced(size / 3)) as server:
        address = f"list+{server.url('list.txt')}"
        process = fairmile.start("fetch", address)
        with killed_at_the_end(process):
            wait_until(lambda: kept_bytes(fairmile.pool), process)
        server.behaviour = paced()
        fairmile.fetch(address)
        before = server.sent_bytes
        fairmile.fetch(address, "--to", fairmile.place / "to")
        assert server.sent_bytes - before <= 2 * len(names)  # no more than the list itself
    assert fairmile.content(fairmile.place / "to") == files


# Memory


MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["file", "archive"])
def test_a_large_file_needs_little_memory(tmp_path: Path, kind: str) -> None:
    # A small process between: to the system a child was once as large as the one that started it.
    fairmile = Fairmile(tmp_path, [sys.executable, "-c", MEASURE])
    data = bytes(200_000_000) if kind == "file" else tar_of({"inside.bin": bytes(60_000_000)})
    with web_server({"data.tar": b""}, paced(data=data)) as server:
        done = fairmile.run("fetch", server.url("data.tar"), *(["--unpack"] if kind == "archive" else []))
    code, peak_kib = done.stdout.split()
    assert (code, done.stderr) == ("0", "")
    assert int(peak_kib) * 1024 <= 150_000_000
    fairmile.assert_clean()
