"""pypi: against the real index that pip's settings on this machine name, and a local one for the odd cases."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from replay import Replay, Reply, Routed, context, read_all, tagged

from fairmile.base.digest import Checksum, sha256_hex
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import AWKWARD_NAMES, RangeFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.fetchers.pypi import File, PyPI, Wanted, choose, index_addresses, parse_address, read_index
from fairmile.transfer.remote import RangeFetcher

JSON = "application/vnd.pypi.simple.v1+json"
WHEEL = b"PK wheel"


# The real index


@pytest.fixture
def real() -> Iterator[PyPI]:
    made = PyPI(context(os.environ))
    yield made
    made.close()


def test_a_file_of_a_real_package_is_brought_and_is_what_the_index_says(real: PyPI) -> None:
    try:
        (found,) = real.find("pypi:iniconfig==2.0.0")
        data = read_all(real, found)
    except (Transient, SystemFailure) as error:
        pytest.skip(f"the index of pip's settings cannot be reached: {error}")
    assert found.path == "iniconfig-2.0.0-py3-none-any.whl"
    assert len(data) == found.size_bytes
    assert found.checksums == (Checksum("sha256", hashlib.sha256(data).hexdigest()),)


# A local index


@pytest.fixture
def server() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


@pytest.fixture
def other() -> Iterator[Replay]:
    with Replay() as replay:
        yield replay


Build = Any


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Build]:
    made: list[PyPI] = []

    def build(**environ: str) -> PyPI:
        # An own file keeps the settings of this machine out of the test, as far as pip itself allows.
        own = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
        made.append(PyPI(context(own | environ)))
        return made[-1]

    yield build
    for each in made:
        each.close()


def page(server: Replay, *names: str, index: str = "/simple", **others: Any) -> None:
    """Let the server list files of the package `tide-tables` and serve their bytes."""
    files = []
    for name in names:
        server.replies[f"/files/{name}"] = Reply(WHEEL + name.encode())
        digest = sha256_hex(WHEEL + name.encode())
        files.append({"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}} | others)
    document = {"meta": {"api-version": "1.1"}, "name": "tide-tables", "files": files}
    server.replies[f"{index}/tide-tables/"] = Reply(document, headers={"Content-Type": JSON})


class TestConformance(RangeFetcherTests):
    folders = False
    names = tuple(name for name in AWKWARD_NAMES if not re.search(r"\s", name))  # as the files of packages are named

    @pytest.fixture
    def served(self, server: Replay, fetcher: Build) -> Iterator[Served[RangeFetcher]]:
        def publish(files: Mapping[str, bytes]) -> str:
            ((path, data),) = files.items()
            name = path.rpartition("/")[2]
            server.replies[f"/files/{quote(name)}"] = tagged(data)
            entry = {"filename": name, "url": f"/files/{quote(name)}", "hashes": {"sha256": sha256_hex(data)}}
            server.replies["/simple/tides/"] = Reply({"files": [entry]}, headers={"Content-Type": JSON})
            return f"pypi:tides==1.0/{name}"

        routed = Routed(fetcher(PIP_INDEX_URL=f"{server.url}/simple"), Http(context({"HOME": "/nonexistent"})))
        yield Served(routed, publish, "pypi:tides==1.0/nowhere")
        routed.close()


def test_a_file_is_found_with_its_digest_and_read(server: Replay, fetcher: Build) -> None:
    name = "tide_tables-1.0-py3-none-any.whl"
    page(server, name)
    one = fetcher(PIP_INDEX_URL=f"{server.url}/simple/")
    (found,) = one.find("pypi:Tide.Tables==1.0")
    data = WHEEL + name.encode()
    assert (found.path, found.size_bytes, found.checksums) == (
        name, len(data), (Checksum("sha256", sha256_hex(data)),)
    )  # fmt: skip
    assert read_all(one, found) == data
    assert read_all(one, found, 3, 8) == b"wheel"


def test_a_size_that_the_index_states_is_not_asked_for_again(server: Replay, fetcher: Build) -> None:
    page(server, "tide_tables-1.0.tar.gz", size=12345)
    (found,) = fetcher(PIP_INDEX_URL=f"{server.url}/simple").find("pypi:tide-tables==1.0")
    assert found.size_bytes == 12345
    assert [asked.target for asked in server.asked] == ["/simple/tide-tables/"]


def test_an_index_that_speaks_html_is_understood(server: Replay, fetcher: Build) -> None:
    server.replies["/simple/tide-tables/"] = Reply(
        b"<!DOCTYPE html><html><head><base href='/files/'></head><body><a href='https://elsewhere.invalid'>home</a>"
        b"<a href='tide_tables-1.0-py3-none-any.whl#sha256=" + sha256_hex(WHEEL).encode() + b"'>wheel</a>"
        b"<a href='tide_tables-2.0-py3-none-any.whl' data-yanked>yanked</a></body></html>",
        headers={"Content-Type": "text/html; charset=utf-8"},
    )  # fmt: skip
    server.replies["/files/tide_tables-1.0-py3-none-any.whl"] = Reply(WHEEL)
    one = fetcher(PIP_INDEX_URL=f"{server.url}/simple")
    (found,) = one.find("pypi:tide-tables")
    assert (found.path, found.size_bytes) == ("tide_tables-1.0-py3-none-any.whl", len(WHEEL))
    assert found.checksums == (Checksum("sha256", sha256_hex(WHEEL)),)
    assert read_all(one, found) == WHEEL


def test_the_login_of_an_index_is_used_for_its_host_and_never_shown(server: Replay, fetcher: Build) -> None:
    page(server, "tide_tables-1.0.tar.gz")
    secret = "Basic " + base64.b64encode(b"me:p@ss").decode()
    for target, reply in list(server.replies.items()):
        server.replies[target] = Reply(reply.body, headers={**reply.headers, "needs": secret})
    one = fetcher(PIP_INDEX_URL=server.url.replace("//", "//me:p%40ss@") + "/simple")
    (found,) = one.find("pypi:tide-tables")
    assert read_all(one, found) == WHEEL + b"tide_tables-1.0.tar.gz"
    assert "p%40ss" not in repr(found) and "p@ss" not in repr(found)
    with pytest.raises(NotFound) as caught:
        one.find("pypi:absent")
    assert "p%40ss" not in str(caught.value)


def test_the_login_of_an_index_does_not_follow_to_another_host(server: Replay, other: Replay, fetcher: Build) -> None:
    page(server, "tide_tables-1.0.tar.gz")
    document = server.replies["/simple/tide-tables/"].body
    document["files"][0]["url"] = f"{other.url}/tide_tables-1.0.tar.gz"
    other.replies["/tide_tables-1.0.tar.gz"] = Reply(WHEEL)
    one = fetcher(PIP_INDEX_URL=server.url.replace("//", "//me:pass@") + "/simple")
    (found,) = one.find("pypi:tide-tables")
    read_all(one, found)
    assert other.asked and all("authorization" not in asked.headers for asked in other.asked)


def test_an_extra_index_that_has_the_package_is_believed_before_the_main_one(
    server: Replay, other: Replay, fetcher: Build
) -> None:
    page(server, "tide_tables-9.0.tar.gz")
    page(other, "tide_tables-1.0.tar.gz")
    one = fetcher(PIP_INDEX_URL=f"{server.url}/simple", PIP_EXTRA_INDEX_URL=f"file:///nowhere {other.url}/simple")
    assert [remote.path for remote in one.find("pypi:tide-tables")] == ["tide_tables-1.0.tar.gz"]
    other.replies.clear()
    assert [remote.path for remote in one.find("pypi:tide-tables")] == ["tide_tables-9.0.tar.gz"]


def test_a_package_that_no_index_has_is_said(server: Replay, fetcher: Build) -> None:
    with pytest.raises(NotFound, match="no Python package 'tide-tables' at http://127"):
        fetcher(PIP_INDEX_URL=f"{server.url}/simple").find("pypi:tide-tables")


# Which file


def files(*names: str, yanked: tuple[str, ...] = ()) -> list[File]:
    return [File(name, f"https://files.invalid/{name}", is_yanked=name in yanked) for name in names]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["t-1.tar.gz", "t-1-py3-none-any.whl", "t-1-py2-none-any.whl"], "t-1-py3-none-any.whl"),
        (["t-1.tar.gz", "t-1-py2.py3-none-any.whl"], "t-1-py2.py3-none-any.whl"),
        (["t-1.tar.gz", "t-1-cp311-none-any.whl"], "t-1-cp311-none-any.whl"),
        (["t-1.zip", "t-1.tar.gz", "t-1-cp311-cp311-manylinux_2_17_x86_64.whl"], "t-1.tar.gz"),
        (["t-1-py3-none-any.whl", "t-1-2-py3-none-any.whl", "t-1-10-py3-none-any.whl"], "t-1-10-py3-none-any.whl"),
        (["t-1.exe", "t-1.egg", "t-1.zip"], "t-1.zip"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_the_file_for_any_platform_is_taken_in_whatever_order_they_are_listed(
    names: list[str], chosen: str, turned: bool
) -> None:
    listed = names[::-1] if turned else names
    assert choose(Wanted("t", "1.0"), files(*listed, *listed)).name == chosen


@pytest.mark.parametrize(
    ("names", "yanked", "chosen"),
    [
        (["t-1.9.tar.gz", "t-1.10.tar.gz", "t-2.0rc1.tar.gz"], (), "t-1.10.tar.gz"),
        (["t-1.0b1.tar.gz", "t-1.0b2.tar.gz"], (), "t-1.0b2.tar.gz"),
        (["t-1.tar.gz", "t-2.tar.gz"], ("t-2.tar.gz",), "t-1.tar.gz"),
        (["t-1!0.1.tar.gz", "t-2.tar.gz"], (), "t-1!0.1.tar.gz"),
    ],
)
def test_without_a_version_it_is_the_newest_final_one_still_offered(
    names: list[str], yanked: tuple[str, ...], chosen: str
) -> None:
    assert choose(Wanted("t"), files(*names, yanked=yanked)).name == chosen


def test_a_version_that_was_yanked_is_given_to_who_names_it() -> None:
    assert choose(Wanted("t", "2"), files("t-1.tar.gz", "t-2.tar.gz", yanked=("t-2.tar.gz",))).name == "t-2.tar.gz"


def test_a_file_for_one_platform_must_be_named() -> None:
    listed = files("t-1-cp311-cp311-manylinux_2_17_x86_64.whl", "t-1-cp311-cp311-macosx_11_0_arm64.whl")
    with pytest.raises(NotFound, match="only files for single platforms") as caught:
        choose(Wanted("t", "1"), listed)
    assert "pypi:t==1/t-1-cp311-cp311-macosx_11_0_arm64.whl" in str(caught.value.hint)
    assert choose(Wanted("t", "1", listed[0].name), listed) == listed[0]


@pytest.mark.parametrize(
    ("wanted", "kind", "words"),
    [
        (Wanted("t", "3"), NotFound, "no version 3"),
        (Wanted("t", "latest"), UsageError, "'latest' is not a version"),
        (Wanted("t", "1", "t-1.tar.xz"), NotFound, "no file 't-1.tar.xz'; did you mean 't-1.tar.gz'"),
    ],
)
def test_what_is_not_offered_is_said(wanted: Wanted, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words.replace("?", r"\?")):
        choose(wanted, files("t-1.tar.gz"))


def test_a_package_without_a_release_that_is_offered_is_said() -> None:
    with pytest.raises(NotFound, match="no release"):
        choose(Wanted("t"), files("t-1.tar.gz", yanked=("t-1.tar.gz",)))


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("pypi:tide", Wanted("tide")),
        ("PyPI:Tide_Tables==1.0rc1", Wanted("Tide_Tables", "1.0rc1")),
        ("pypi:tide==1.0/tide-1.0.tar.gz", Wanted("tide", "1.0", "tide-1.0.tar.gz")),
    ],
)
def test_an_address_names_package_version_and_file(address: str, wanted: Wanted) -> None:
    assert parse_address(address) == wanted


@pytest.mark.parametrize(
    "address", ["pypi:", "pypi:-x", "pypi:a b", "pypi:a==", "pypi:a>=1", "pypi:a==1/x/y", "pypi:../x", "npm:a"]
)
def test_an_address_that_names_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


# What an index lists


def test_a_name_that_would_leave_its_folder_and_an_address_that_is_none_are_left_out() -> None:
    body = b"""{"files": [{"filename": "../../x", "url": "https://h/x"}, {"filename": "y", "url": "file:///etc/passwd"},
               {"filename": "z", "url": "z"}]}"""
    assert [file.url for file in read_index(body, JSON, "https://h/simple/t/")] == ["https://h/simple/t/z"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"files": {}}'])
def test_what_is_no_listing_is_not_believed(body: bytes) -> None:
    with pytest.raises(Integrity):
        read_index(body, JSON, "https://h/simple/t/")


def test_yanked_is_read_with_and_without_a_reason() -> None:
    states = {"a": "broken", "b": "", "c": False, "d": True}
    entries = [{"filename": name, "url": name, "yanked": state} for name, state in states.items()]
    body = json.dumps({"files": entries}).encode()
    assert [file.is_yanked for file in read_index(body, JSON, "https://h/")] == [True, True, False, True]


# pip's settings


@pytest.fixture
def machine(tmp_path: Path) -> Mapping[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}


def asked(environ: Mapping[str, str], prefix: Path) -> list[str]:
    found = index_addresses(environ, Credentials(environ), prefix)
    return [index for index in found if index.endswith(".invalid")]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_index_comes_from_pips_files_in_pips_order(machine: Mapping[str, str], tmp_path: Path) -> None:
    places = [
        tmp_path / "home/.pip/pip.conf",
        tmp_path / "home/.config/pip/pip.conf",
        tmp_path / "prefix/pip.conf",
    ]
    for number, path in enumerate(places):
        write(path, f"[global]\nindex_url = https://i{number}.invalid\n")
        assert asked(machine, tmp_path / "prefix")[-1:] == [f"https://i{number}.invalid"]
    named = machine | {"PIP_CONFIG_FILE": str(tmp_path / "own.conf")}
    write(tmp_path / "own.conf", "[global]\nindex-url = https://own.invalid\n")
    assert asked(named, tmp_path / "prefix")[-1:] == ["https://own.invalid"]
    assert asked(named | {"PIP_INDEX_URL": "https://env.invalid"}, tmp_path / "prefix")[-1:] == ["https://env.invalid"]


def test_no_file_is_read_where_pip_reads_none(machine: Mapping[str, str], tmp_path: Path) -> None:
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = https://i.invalid\n")
    assert asked(machine | {"PIP_CONFIG_FILE": "/dev/null"}, tmp_path) == []


def test_several_extra_indexes_are_asked_before_the_main_one(machine: Mapping[str, str], tmp_path: Path) -> None:
    write(
        tmp_path / "prefix/pip.conf",
        "[global]\nindex-url = https://main.invalid\nextra-index-url =\n  https://a.invalid\n  https://b.invalid\n",
    )
    assert asked(machine, tmp_path / "prefix") == ["https://a.invalid", "https://b.invalid", "https://main.invalid"]


def test_a_machine_that_forbids_every_index_is_obeyed(machine: Mapping[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-index"):
        asked(machine | {"PIP_NO_INDEX": "1"}, tmp_path)
    with pytest.raises(UsageError, match="no index on the web"):
        asked(machine | {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "file:///srv/simple"}, tmp_path)


def test_a_broken_file_of_pip_is_named_without_its_secrets(machine: Mapping[str, str], tmp_path: Path) -> None:
    write(tmp_path / "prefix/pip.conf", "index-url = https://me:pass@i.invalid\n")
    with pytest.raises(UsageError, match=r"pip\.conf cannot be read") as caught:
        asked(machine, tmp_path / "prefix")
    assert "pass@" not in str(caught.value)
