"""zenodo: against a local server that replays the JSON which Zenodo's records API documents.

Zenodo itself is out of reach of these tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from replay import Replay, Reply, Routed, context, read_all

from fairmile.base.digest import Checksum, sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.fetchers.zenodo import Record, Zenodo, as_zenodo, parse_address
from fairmile.transfer.remote import RangeFetcher

TIDES = b"time,level\n0,1.5\n"
RECORD = "/api/records/9000004"


@pytest.fixture
def server() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


def a_file(server: Replay, name: str, data: bytes, *, record: int = 9000004, **others: Any) -> dict[str, Any]:
    target = f"/api/records/{record}/files/{quote(name, safe='')}/content"
    server.replies[target] = Reply(data)
    checksum = f"md5:{hashlib.md5(data, usedforsecurity=False).hexdigest()}"
    entry = {"id": "0-0", "key": name, "size": len(data), "checksum": checksum}
    return entry | {"links": {"self": f"{server.url}{target}"}} | others


def a_record(*files: dict[str, Any], access: str = "open", **about: str) -> Reply:
    return Reply({"id": 9000004, "metadata": {"access_right": access, **about}, "files": list(files)})


@pytest.fixture
def record(server: Replay) -> Replay:
    files = [a_file(server, "tides.csv", TIDES), a_file(server, "a b+c%.txt", b"odd")]
    server.replies[RECORD] = a_record(*files)
    return server


@pytest.fixture
def fetcher(server: Replay, tmp_path: Path) -> Iterator[Zenodo]:
    made = Zenodo(context({"HOME": str(tmp_path)}, hubs={"zenodo": server.url}))
    yield made
    made.close()


@pytest.fixture
def known(server: Replay, tmp_path: Path) -> Iterator[Zenodo]:
    made = Zenodo(context({"HOME": str(tmp_path), "ZENODO_TOKEN": "zen_secret"}, hubs={"zenodo": server.url}))
    yield made
    made.close()


@pytest.mark.thorough
class TestConformance(RangeFetcherTests):
    validators = False  # a record's files never change, and their MD5 is stated

    @pytest.fixture
    def served(self, server: Replay, fetcher: Zenodo) -> Iterator[Served[RangeFetcher]]:
        def publish(files: Mapping[str, bytes]) -> str:
            number = int(sha256_hex(repr(sorted(files)).encode())[:10], 16)
            entries = [a_file(server, path, data, record=number) for path, data in files.items()]
            server.replies[f"/api/records/{number}"] = a_record(*entries)
            return f"zenodo:{number}" + (f"/{next(iter(files))}" if len(files) == 1 else "")

        routed = Routed(fetcher, Http(context({"HOME": "/nonexistent"})))
        yield Served(routed, publish, "zenodo:404")
        routed.close()


def test_the_files_of_a_record_have_size_and_md5_and_are_read(record: Replay, fetcher: Zenodo) -> None:
    tides, odd = fetcher.find("zenodo:9000004")
    assert (tides.path, tides.size_bytes) == ("tides.csv", len(TIDES))
    assert tides.checksums == (Checksum("md5", hashlib.md5(TIDES, usedforsecurity=False).hexdigest()),)
    assert read_all(fetcher, tides) == TIDES
    assert read_all(fetcher, tides, 5, 10) == TIDES[5:10]
    assert (odd.path, read_all(fetcher, odd)) == ("a b+c%.txt", b"odd")


@pytest.mark.parametrize(
    "address", ["zenodo:9000004/tides.csv", "https://zenodo.org/records/9000004/files/tides.csv?download=1"]
)
def test_one_file_of_a_record_can_be_meant(record: Replay, fetcher: Zenodo, address: str) -> None:
    assert [remote.path for remote in fetcher.find(address)] == ["tides.csv"]


def test_a_file_that_the_record_lacks_is_said_with_the_nearest_name(record: Replay, fetcher: Zenodo) -> None:
    with pytest.raises(NotFound, match=r"no file 'tide\.csv'; did you mean 'tides\.csv'") as caught:
        fetcher.find("zenodo:9000004/tide.csv")
    assert "a b+c%.txt" in str(caught.value.hint)


def test_the_number_of_all_versions_leads_to_the_newest(record: Replay, fetcher: Zenodo) -> None:
    record.replies["/api/records/9000003"] = Reply(b"", 302, {"Location": RECORD})
    assert len(fetcher.find("zenodo:9000003")) == 2


def test_a_link_to_another_host_is_not_followed_with_the_token(server: Replay, known: Zenodo) -> None:
    server.replies[RECORD] = a_record(
        a_file(server, "tides.csv", TIDES, links={"self": "http://elsewhere.invalid/tides.csv"})
    )
    (found,) = known.find("zenodo:9000004")
    assert found.address.startswith(server.url)
    assert read_all(known, found) == TIDES


def test_a_restricted_record_says_the_steps(server: Replay, fetcher: Zenodo) -> None:
    server.replies[RECORD] = a_record(access="restricted")
    with pytest.raises(SystemFailure, match="the files of zenodo:9000004 are restricted") as caught:
        fetcher.find("zenodo:9000004")
    assert f"request access at {server.url}/records/9000004" in str(caught.value.hint)
    assert "ZENODO_TOKEN" in str(caught.value.hint)


def test_a_restricted_record_is_read_with_a_token_that_is_never_shown(server: Replay, known: Zenodo) -> None:
    server.replies[RECORD] = a_record(a_file(server, "tides.csv", TIDES), access="restricted")
    for target, reply in list(server.replies.items()):
        server.replies[target] = Reply(reply.body, headers={"needs": "Bearer zen_secret"})
    (found,) = known.find("zenodo:9000004")
    assert read_all(known, found) == TIDES
    assert "zen_secret" not in repr(found)


def test_a_token_without_access_is_said(server: Replay, known: Zenodo) -> None:
    server.replies[RECORD] = a_record(access="restricted")
    with pytest.raises(SystemFailure, match="the account of the token in use has no access"):
        known.find("zenodo:9000004")


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (a_record(access="embargoed", embargo_date="2031-01-01"), SystemFailure, "under embargo until 2031-01-01"),
        (a_record(access="closed"), SystemFailure, "closed"),
        (a_record(), NotFound, "no files"),
        (Reply({"status": 404}, 404), NotFound, "no record zenodo:9000004"),
        (Reply({"status": 410}, 410), NotFound, "any more"),
        (Reply({"status": 403}, 403), SystemFailure, "restricted"),
        (Reply(b"<html>"), Integrity, "JSON"),
        (Reply([]), Integrity, "record"),
        (a_record({"key": "x", "size": 1}), Integrity, "checksum"),
        (a_record({"key": "x", "checksum": "md5:" + "0" * 32}), Integrity, "size"),
    ],
)
def test_an_answer_without_files_is_explained(
    server: Replay, fetcher: Zenodo, reply: Reply, kind: type[Exception], words: str
) -> None:
    server.replies[RECORD] = reply
    with pytest.raises(kind, match=words):
        fetcher.find("zenodo:9000004")


@pytest.mark.parametrize(
    ("address", "record"),
    [
        ("zenodo:12345", Record("12345")),
        ("Zenodo:00012/a/b.csv", Record("12", "a/b.csv")),
        ("doi:10.5281/zenodo.12345", Record("12345")),
        ("doi: 10.5281/ZENODO.12345", Record("12345")),
        ("https://doi.org/10.5281/zenodo.12345", Record("12345")),
        ("https://zenodo.org/records/12345", Record("12345")),
        ("https://zenodo.org/record/12345/", Record("12345")),
        ("https://zenodo.org/records/12345/files/a%20b.csv?download=1", Record("12345", "a b.csv")),
        ("https://zenodo.org/api/records/12345/files/a.csv/content", Record("12345", "a.csv")),
    ],
)  # fmt: skip
def test_an_address_names_a_record(address: str, record: Record) -> None:
    assert parse_address(address) == record


@pytest.mark.parametrize("address", ["zenodo:", "zenodo:abc", "https://zenodo.org/communities/x", "zenodo:1/"])
def test_an_address_that_names_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


def test_a_doi_of_someone_else_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError) as caught:
        parse_address("doi:10.1000/182")
    assert "only DOIs of Zenodo" in str(caught.value.hint)


def test_pages_of_zenodo_are_recognised_and_others_are_not() -> None:
    assert as_zenodo("https://zenodo.org/records/7/files/a.csv") == "zenodo:7/a.csv"
    assert as_zenodo("https://doi.org/10.5281/zenodo.7") == "zenodo:7"
    assert as_zenodo("https://example.org/records/7") is None
    assert as_zenodo("https://zenodo.org/search?q=7") is None
