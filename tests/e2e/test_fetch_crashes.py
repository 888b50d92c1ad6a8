"""`fairmile fetch` in processes that are killed, interrupted, or meet one another: what came is kept, nothing else."""

from __future__ import annotations

import contextlib
import io
import random
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fetch_command import Fairmile, ended, killed_at_the_end, sha256, wait_until
from web_server import WebServer, paced, web_server

KILLS = 20


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


def kept(pool: Path) -> set[tuple[str, int]]:
    """Return what a fetch has made safe so far: journals of half-done files, and files that are complete."""
    safe = [*pool.glob("incoming/*/journal.json"), *pool.glob("packs/*.pack"), *pool.glob("objects/*/*")]
    with contextlib.suppress(FileNotFoundError):
        return {(str(path), path.stat().st_mtime_ns) for path in safe}
    return set()


def kill_often_then_fetch(fairmile: Fairmile, server: WebServer, arguments: list[str], size_bytes: int) -> None:
    """Start a fetch twenty times and kill it, then let it end; the server sends at most half of the whole in vain.

    Every fourth one is killed at a random moment of its start. The others are killed when the server has sent another
    random share after they made something safe: together a seventh of the whole, which may be lost.
    """
    chance = random.Random(3)
    shares = [chance.random() for _ in range(KILLS)]
    for number, share in enumerate(shares):
        before = kept(fairmile.pool)
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            if number % 4 == 0:
                time.sleep(share)
                continue
            wait_until(lambda: kept(fairmile.pool) - before, process)  # noqa: B023  called at once
            goal = server.sent_bytes + int(0.15 * size_bytes * share / sum(shares))
            wait_until(lambda: server.sent_bytes >= goal, process)  # noqa: B023
    server.behaviour = server.behaviours.pop("last")
    in_vain = server.sent_bytes
    fairmile.fetch(*arguments, "--to", fairmile.place / "to")
    print(in_vain / size_bytes, server.sent_bytes / size_bytes)
    assert server.sent_bytes - in_vain <= 0.9 * size_bytes
    assert server.sent_bytes <= 1.5 * size_bytes


# Kill −9


def test_a_large_file_killed_twenty_times_goes_on_each_time(fairmile: Fairmile) -> None:
    data = noise(40 << 20)
    with web_server({"large.bin": b""}, paced((40 << 20) / 16, data)) as server:
        server.behaviours["last"] = paced(data=data)
        arguments = [server.url("large.bin"), "--sha256", sha256(data)]
        kill_often_then_fetch(fairmile, server, arguments, len(data))
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}


def test_many_small_files_killed_twenty_times_go_on_each_time(fairmile: Fairmile) -> None:
    fairmile.environ["FAIRMILE_TRANSFER_CONNECTIONS"] = "4"  # the files under way are lost each time
    files = files_of(600, 10_000)
    size = sum(map(len, files.values()))
    with web_server(files, paced(size / 8)) as server:
        server.behaviours["last"] = paced()
        name = card_of(fairmile, server, files)
        kill_often_then_fetch(fairmile, server, [name], size)
    assert fairmile.content(fairmile.place / "to") == files


def test_an_archive_killed_twenty_times_while_it_is_unpacked_goes_on_each_time(fairmile: Fairmile) -> None:
    files = files_of(300, 20_000) | {f"large/{number}": noise(700_000, number) for number in range(10)}
    data = tar_of(files)
    with web_server({"all.tar": b""}, paced(len(data) / 16, data)) as server:
        server.behaviours["last"] = paced(data=data)
        arguments = [server.url("all.tar"), "--sha256", sha256(data), "--unpack"]
        kill_often_then_fetch(fairmile, server, arguments, len(data))
    assert fairmile.content(fairmile.place / "to") == files
