"""`fairmile fetch` in processes that are killed, interrupted, or meet one another: what came is kept, nothing else."""

from __future__ import annotations

import io
import random
import tarfile
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


def kill_it_often(fairmile: Fairmile, server: WebServer, arguments: list[str], size_bytes: int) -> None:
    """Start a fetch twenty times and kill it, each time after another share of the bytes has left the server.

    The shares make up nine tenths of the whole, so without going on where it stopped the server would send 1.9 of it.
    """
    chance = random.Random(3)
    shares = [chance.random() for _ in range(KILLS)]
    for share in shares:
        process = fairmile.start("fetch", *arguments)
        with killed_at_the_end(process):
            goal = server.sent_bytes + int(0.9 * size_bytes * share / sum(shares))
            wait_until(lambda: server.sent_bytes >= goal, process)  # noqa: B023  called at once


# Kill −9


def test_a_large_file_killed_twenty_times_goes_on_each_time(fairmile: Fairmile) -> None:
    data = noise(40 << 20)
    with web_server({"large.bin": b""}, paced(3 << 20, data)) as server:
        arguments = [server.url("large.bin"), "--sha256", sha256(data)]
        kill_it_often(fairmile, server, arguments, len(data))
        server.behaviour = paced(data=data)
        fairmile.fetch(*arguments, "--to", fairmile.place / "to")
        print(server.sent_bytes / len(data))
        assert server.sent_bytes <= 1.5 * len(data)
    assert fairmile.content(fairmile.place / "to") == {"large.bin": data}


def test_many_small_files_killed_twenty_times_go_on_each_time(fairmile: Fairmile) -> None:
    files = files_of(600, 10_000)
    size = sum(map(len, files.values()))
    with web_server(files, paced(size / 12)) as server:
        name = card_of(fairmile, server, files)
        kill_it_often(fairmile, server, [name], size)
        server.behaviour = paced()
        fairmile.fetch(name, "--to", fairmile.place / "to")
        print(server.sent_bytes / size)
        assert server.sent_bytes <= 1.5 * size
    assert fairmile.content(fairmile.place / "to") == files


def test_an_archive_killed_twenty_times_while_it_is_unpacked_goes_on_each_time(fairmile: Fairmile) -> None:
    files = files_of(300, 20_000) | {f"large/{number}": noise(700_000, number) for number in range(10)}
    data = tar_of(files)
    with web_server({"all.tar": b""}, paced(len(data) / 12, data)) as server:
        arguments = [server.url("all.tar"), "--sha256", sha256(data), "--unpack"]
        kill_it_often(fairmile, server, arguments, len(data))
        server.behaviour = paced(data=data)
        fairmile.fetch(*arguments, "--to", fairmile.place / "to")
        print(server.sent_bytes / len(data))
        assert server.sent_bytes <= 1.5 * len(data)
    assert fairmile.content(fairmile.place / "to") == files
