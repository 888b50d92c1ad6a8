"""conda: against a channel that a web server serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conda_channel import Channel
from replay import Replay, Reply, context, read_all, tagged

from fairmile.base.digest import Checksum, sha256_file
from fairmile.base.errors import NotFound, UsageError
from fairmile.transfer.fetchers.conda import Conda, Wanted, parse_address
from fairmile.transfer.fetchers.http import Http
from fairmile.workspace import Workspace

ADDRESS = "https://sea.example/t"


@pytest.mark.parametrize(
    "address, wanted",
    [
        ("conda:zlib", Wanted("zlib")),
        ("conda:bioconda::samtools==1.20", Wanted("samtools", "bioconda", "", "1.20")),
        ("conda:zlib=1.3.1=h1_0", Wanted("zlib", "conda-forge", "", "1.3.1", "h1_0")),
        (f"conda:{ADDRESS}/linux-64::tides==2", Wanted("tides", ADDRESS, "linux-64", "2")),
    ],
)
def test_an_address_names_a_package_as_conda_does(address: str, wanted: Wanted) -> None:
    assert parse_address(address) == wanted


def test_what_names_no_package_is_refused() -> None:
    with pytest.raises(UsageError, match="does not name a conda package"):
        parse_address("conda:forge:tides")


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    made = Channel(tmp_path / "channel")
    made.add("tides", "1.9", {"share/tides.csv": "9\n"})
    made.add("tides", "1.10", {"share/tides.csv": "10\n"}, modern=True)
    return made


@pytest.fixture
def served(channel: Channel) -> Iterator[str]:
    with Replay() as server:
        for file in channel.folder.rglob("*.*"):
            data = file.read_bytes()
            server.replies[f"/{file.relative_to(channel.folder)}"] = (
                Reply(data) if file.suffix == ".json" else tagged(data)
            )
        yield server.url


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Conda]:
    one = Conda(context({"HOME": str(tmp_path)}))
    yield one
    one.close()


def test_the_newest_version_is_taken_and_checked_by_the_channels_digest(
    channel: Channel, served: str, fetcher: Conda
) -> None:
    (remote,) = fetcher.find(f"conda:{served}::tides")
    file = channel.folder / "noarch/tides-1.10-0.conda"
    assert (remote.path, remote.size_bytes) == (file.name, file.stat().st_size)
    assert remote.checksums == (Checksum("sha256", sha256_file(file)),)
    reader = Http(context({}))
    assert read_all(reader, remote) == file.read_bytes()
    reader.close()


def test_a_package_is_fetched_and_unpacked(served: str, workspace: Workspace, tmp_path: Path) -> None:
    workspace.assets.fetch([f"conda:{served}/noarch::tides==1.9"], unpack=True, to=tmp_path / "tides")
    assert (tmp_path / "tides/share/tides.csv").read_text() == "9\n"


def test_a_version_that_is_not_there_is_answered_with_those_that_are(served: str, fetcher: Conda) -> None:
    with pytest.raises(NotFound, match="no conda package tides==2") as refused:
        fetcher.find(f"conda:{served}::tides==2")
    assert refused.value.hint == "the newest versions are: 1.10, 1.9"


def test_a_channel_that_is_not_there_is_named(served: str, fetcher: Conda) -> None:
    with pytest.raises(NotFound, match=f"no conda channel {served}/nowhere"):
        fetcher.find(f"conda:{served}/nowhere::tides")
