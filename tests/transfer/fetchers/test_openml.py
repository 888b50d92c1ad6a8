"""openml: against a local server that replays the JSON which OpenML's REST interface documents.

OpenML itself is out of reach of these tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import pytest
from replay import Replay, Reply, Routed, context, read_all

from fairmile.base.digest import Checksum, sha256_hex
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.fetchers.openml import OpenML, data_set_number
from fairmile.transfer.remote import RangeFetcher

FLOWERS = b"@RELATION flowers\n"


@pytest.fixture
def server() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


@pytest.fixture
def fetcher(server: Replay) -> Iterator[OpenML]:
    made = OpenML(context({"HOME": "/nonexistent"}, hubs={"openml": server.url}))
    yield made
    made.close()


def publish(server: Replay, number: int, name: str, data: bytes) -> None:
    target = f"/data/v1/download/{number}/{quote(name, safe='')}"
    server.replies[target] = Reply(data)
    checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
    url = f"{server.url}{target}"
    server.replies[f"/api/v1/json/data/{number}"] = Reply(
        {"data_set_description": {"id": str(number), "name": "flowers", "url": url, "md5_checksum": checksum}}
    )


@pytest.mark.thorough
class TestConformance(RangeFetcherTests):
    folders = False  # a data set is one file
    validators = False  # the file of a data set never changes, and its MD5 is stated

    @pytest.fixture
    def served(self, server: Replay, fetcher: OpenML) -> Iterator[Served[RangeFetcher]]:
        def put(files: Mapping[str, bytes]) -> str:
            ((name, data),) = files.items()
            number = int(sha256_hex(name.encode())[:8], 16)
            publish(server, number, name.rpartition("/")[2], data)
            return f"openml:{number}"

        routed = Routed(fetcher, Http(context({"HOME": "/nonexistent"})))
        yield Served(routed, put, "openml:404")
        routed.close()


def test_a_data_set_is_one_file_with_size_and_md5(server: Replay, fetcher: OpenML) -> None:
    publish(server, 61, "flowers.arff", FLOWERS)
    (found,) = fetcher.find("openml:61")
    assert (found.path, found.size_bytes) == ("flowers.arff", len(FLOWERS))
    assert found.checksums == (Checksum("md5", hashlib.md5(FLOWERS, usedforsecurity=False).hexdigest()),)
    assert read_all(fetcher, found) == FLOWERS
    assert read_all(fetcher, found, 3, 8) == FLOWERS[3:8]


def test_a_description_without_a_file_is_refused(server: Replay, fetcher: OpenML) -> None:
    server.replies["/api/v1/json/data/61"] = Reply({"data_set_description": {"url": "file:///etc/passwd"}})
    with pytest.raises(Integrity, match="OpenML names no file for openml:61"):
        fetcher.find("openml:61")
    server.replies["/api/v1/json/data/62"] = Reply({"error": {"code": "111", "message": "Unknown dataset"}}, 412)
    with pytest.raises(NotFound, match="no data set openml:62"):
        fetcher.find("openml:62")


@pytest.mark.parametrize("address", ["openml:", "openml:iris", "openml:1/2"])
def test_what_is_no_number_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="does not name an OpenML data set"):
        data_set_number(address)
