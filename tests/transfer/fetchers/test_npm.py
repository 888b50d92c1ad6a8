"""npm: against the real registry that npm's settings on this machine name, and a local one for the odd cases."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from replay import Replay, Reply, Routed, context, read_all, tagged

from fairmile.base.digest import Checksum
from fairmile.base.errors import Integrity, NotFound, SystemFailure, Transient, UsageError
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers import npm
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.fetchers.npm import Npm, Wanted, authorization, parse_address, read_settings, registry_of
from fairmile.transfer.remote import RangeFetcher

TARBALL = b"\x1f\x8b tar"
SHA512 = hashlib.sha512(TARBALL)
SHA1 = hashlib.sha1(TARBALL, usedforsecurity=False).hexdigest()


# The real registry


def test_a_real_package_is_brought_and_is_what_the_registry_says() -> None:
    real = Npm(context(os.environ))
    try:
        (found,) = real.find("npm:is-number@7.0.0")
        data = read_all(real, found)
    except (Transient, SystemFailure) as error:
        pytest.skip(f"the registry of npm's settings cannot be reached: {error}")
    finally:
        real.close()
    assert found.path == "is-number-7.0.0.tgz"
    assert len(data) == found.size_bytes
    assert Checksum("sha512", hashlib.sha512(data).hexdigest()) in found.checksums


# A local registry


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
    made: list[Npm] = []

    def build(npmrc: str = "", **environ: str) -> Npm:
        (tmp_path / ".npmrc").write_text(npmrc)
        made.append(Npm(context({"HOME": str(tmp_path), "npm_config_globalconfig": str(tmp_path / "none")} | environ)))
        return made[-1]

    yield build
    for each in made:
        each.close()


def package(server: Replay, name: str = "tides", tarball: str = "", **dist: Any) -> None:
    """Let the server describe and serve version 1.2.0 of a package, which it tags `latest` and `stable`."""
    path = f"/{name}/-/{name.rpartition('/')[2]}-1.2.0.tgz"
    stated = {"integrity": f"sha512-{base64.b64encode(SHA512.digest()).decode()}", "shasum": SHA1}
    about = {"version": "1.2.0", "dist": {"tarball": tarball or f"{server.url}{path}", **stated, **dist}}
    server.replies[path] = Reply(TARBALL, headers={"ETag": '"t"'})
    server.replies[f"/{name.replace('/', '%2F')}"] = Reply(
        {"name": name, "dist-tags": {"latest": "1.2.0", "stable": "1.2.0"}, "versions": {"1.2.0": about}}
    )


@pytest.mark.thorough
class TestConformance(RangeFetcherTests):
    folders = False

    @pytest.fixture
    def served(self, server: Replay, fetcher: Build) -> Iterator[Served[RangeFetcher]]:
        def publish(files: Mapping[str, bytes]) -> str:
            ((path, data),) = files.items()
            name = f"n{hashlib.sha256(path.encode()).hexdigest()[:20]}"
            target = f"/{name}/-/{quote(path.rpartition('/')[2], safe='')}"
            server.replies[target] = tagged(data)
            digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
            dist = {"tarball": f"{server.url}{target}", "integrity": f"sha512-{digest}"}
            server.replies[f"/{name}"] = Reply({"dist-tags": {}, "versions": {"1.0.0": {"dist": dist}}})
            return f"npm:{name}@1.0.0"

        routed = Routed(fetcher(f"registry={server.url}\n"), Http(context({"HOME": "/nonexistent"})))
        yield Served(routed, publish, "npm:@harbour/nowhere")
        routed.close()


@pytest.mark.parametrize("address", ["npm:tides@1.2.0", "npm:tides", "npm:tides@stable"])
def test_an_archive_is_found_by_version_or_tag_and_read(server: Replay, fetcher: Build, address: str) -> None:
    package(server)
    one = fetcher(f"registry={server.url}\n")
    (found,) = one.find(address)
    assert (found.path, found.size_bytes, found.validator) == ("tides-1.2.0.tgz", len(TARBALL), '"t"')
    assert found.checksums == (Checksum("sha512", SHA512.hexdigest()), Checksum("sha1", SHA1))
    assert read_all(one, found) == TARBALL
    assert read_all(one, found, 2, 4) == TARBALL[2:4]


def test_a_package_of_a_scope_comes_from_the_registry_of_its_scope(
    server: Replay, other: Replay, fetcher: Build
) -> None:
    package(other, "@harbour/tides")
    one = fetcher(f"registry={server.url}\n@Harbour:registry={other.url}/\n")
    (found,) = one.find("npm:@harbour/tides@1.2.0")
    assert read_all(one, found) == TARBALL
    assert server.asked == []


def test_an_old_package_has_only_its_sha1(server: Replay, fetcher: Build) -> None:
    package(server, integrity=None)
    (found,) = fetcher(npm_config_registry=server.url).find("npm:tides")
    assert found.checksums == (Checksum("sha1", SHA1),)


def test_the_token_goes_to_its_own_host_only_and_is_never_shown(server: Replay, other: Replay, fetcher: Build) -> None:
    package(server, tarball=f"{other.url}/tides-1.2.0.tgz")
    other.replies["/tides-1.2.0.tgz"] = Reply(TARBALL)
    host = server.url.removeprefix("http:")
    one = fetcher(f"registry={server.url}\n{host}/:_authToken=npm_secret\n")
    (found,) = one.find("npm:tides")
    read_all(one, found)
    assert [asked.headers.get("authorization") for asked in server.asked] == ["Bearer npm_secret"]
    assert other.asked and all("authorization" not in asked.headers for asked in other.asked)
    assert "npm_secret" not in repr(found)


def test_a_private_package_is_read_with_the_token_of_its_registry(server: Replay, fetcher: Build) -> None:
    package(server)
    for target, reply in list(server.replies.items()):
        server.replies[target] = Reply(reply.body, headers={"needs": "Bearer npm_secret"})
    one = fetcher(
        f"registry={server.url}\n{server.url.removeprefix('http:')}/:_authToken=${{TOKEN}}\n", TOKEN="npm_secret"
    )
    (found,) = one.find("npm:tides")
    assert read_all(one, found) == TARBALL


def test_a_mirror_that_names_the_public_registry_is_asked_itself(server: Replay, fetcher: Build) -> None:
    package(server, tarball=f"{npm._REGISTRY}tides/-/tides-1.2.0.tgz")
    server.replies["/mirror/tides"] = server.replies["/tides"]
    server.replies["/mirror/tides/-/tides-1.2.0.tgz"] = Reply(TARBALL)
    one = fetcher(f"registry={server.url}/mirror/\n")
    (found,) = one.find("npm:tides")
    assert found.address == f"{server.url}/mirror/tides/-/tides-1.2.0.tgz"


def test_a_package_or_version_that_is_not_there_is_said(server: Replay, fetcher: Build) -> None:
    package(server)
    one = fetcher(f"registry={server.url}\n")
    with pytest.raises(NotFound, match="no npm package 'absent' at http://127"):
        one.find("npm:absent")
    with pytest.raises(NotFound, match=r"tides has no version 1\.2\.1; did you mean '1\.2\.0'") as caught:
        one.find("npm:tides@1.2.1")
    assert caught.value.hint == "its newest is 1.2.0"


@pytest.mark.parametrize(
    ("dist", "words"),
    [
        ({"integrity": "", "shasum": ""}, "no checksum"),
        ({"tarball": "file:///etc/passwd"}, "no archive"),
        ({"tarball": None}, "no archive"),
    ],
)
def test_a_description_that_cannot_be_right_is_not_believed(
    server: Replay, fetcher: Build, dist: dict[str, Any], words: str
) -> None:
    package(server, **{"tarball": ""} | {key: value for key, value in dist.items() if key != "tarball"})
    if "tarball" in dist:
        server.replies["/tides"].body["versions"]["1.2.0"]["dist"]["tarball"] = dist["tarball"]
    with pytest.raises(Integrity, match=words):
        fetcher(f"registry={server.url}\n").find("npm:tides")


@pytest.mark.parametrize("body", [[], {}, {"versions": []}, b"<html>"])
def test_what_describes_no_package_is_not_believed(server: Replay, fetcher: Build, body: Any) -> None:
    server.replies["/tides"] = Reply(body)
    with pytest.raises(Integrity):
        fetcher(f"registry={server.url}\n").find("npm:tides")


# Addresses


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("npm:tides", Wanted("tides")),
        ("npm:tides@1.0.0-rc.1+b", Wanted("tides", "", "1.0.0-rc.1+b")),
        ("npm:@harbour/tides", Wanted("@harbour/tides", "harbour")),
        ("npm:@harbour/tides@next", Wanted("@harbour/tides", "harbour", "next")),
    ],
)
def test_an_address_names_package_and_version(address: str, wanted: Wanted) -> None:
    assert parse_address(address) == wanted


@pytest.mark.parametrize(
    "address", ["npm:", "npm:@harbour", "npm:a/b", "npm:a@^1.2", "npm:a@", "npm:../x", "npm:@../x", "npm:_x", "pypi:a"]
)
def test_an_address_that_names_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


# npm's settings


def test_the_environment_counts_more_than_the_user_and_the_user_more_than_the_machine(tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("registry=https://machine.invalid/\n")
    environ = {"HOME": str(tmp_path), "npm_config_globalconfig": str(tmp_path / "machine")}

    def registry(**more: str) -> str:
        known = environ | more
        return registry_of(read_settings(known, Credentials(known)), "")

    assert registry() == "https://machine.invalid/"
    (tmp_path / ".npmrc").write_text('; a comment\n# another\nregistry = "https://user.invalid/npm"\n')
    assert registry() == "https://user.invalid/npm/"
    (tmp_path / "mine").write_text("registry=https://mine.invalid\n")
    assert registry(NPM_CONFIG_USERCONFIG=str(tmp_path / "mine")) == "https://mine.invalid/"
    assert registry(NPM_CONFIG_REGISTRY="https://env.invalid") == "https://env.invalid/"


def test_the_machines_file_stands_beside_the_program(tmp_path: Path) -> None:
    for name in ("bin", "etc"):
        (tmp_path / "node" / name).mkdir(parents=True)
    (tmp_path / "node/bin/node").write_text("#!/bin/sh\n")
    (tmp_path / "node/bin/node").chmod(0o755)
    (tmp_path / "node/etc/npmrc").write_text("registry=https://prefix.invalid/\n")
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path / "node/bin")}
    assert read_settings(environ, Credentials(environ))["registry"] == "https://prefix.invalid/"


@pytest.mark.parametrize(
    ("written", "filled"),
    [
        ("${A}", "a"),
        ("x-${A}-${A}", "x-a-a"),
        ("${B}", "${B}"),
        ("${B?}", ""),
        ("${B-else}", "else"),
        ("${A-else}", "a"),
    ],
)
def test_variables_in_the_settings_are_filled_in(tmp_path: Path, written: str, filled: str) -> None:
    (tmp_path / ".npmrc").write_text(f"key={written}\n")
    environ = {"HOME": str(tmp_path), "A": "a"}
    assert read_settings(environ, Credentials(environ))["key"] == filled


@pytest.mark.parametrize(
    ("settings", "url", "header"),
    [
        ({"//h.invalid/:_authToken": "t=="}, "https://h.invalid/a/-/a.tgz", "Bearer t=="),
        ({"//h.invalid/npm/:_authToken": "t"}, "https://h.invalid/npm/a", "Bearer t"),
        ({"//h.invalid/npm/:_authToken": "t"}, "https://h.invalid/other/a", None),
        ({"//h.invalid/npm/:_authToken": "t"}, "https://h.invalid/npm2/a", None),
        ({"//h.invalid:8080/:_authToken": "t"}, "https://h.invalid/a", None),
        ({"//h.invalid/:_authToken": "t"}, "https://h.invalid.evil.invalid/a", None),
        ({"//h.invalid/:_authToken": "outer", "//h.invalid/npm/:_authToken": "inner"}, "https://h.invalid/npm/a",
         "Bearer inner"),
        ({"//h.invalid/:_auth": "dTpw"}, "https://h.invalid/a", "Basic dTpw"),
        ({"//h.invalid/:username": "u", "//h.invalid/:_password": "cA=="}, "https://h.invalid/a", "Basic dTpw"),
        ({"_authToken": "for everyone"}, "https://h.invalid/a", None),
        ({}, "https://h.invalid/a", None),
    ],
)  # fmt: skip
def test_a_secret_counts_for_its_own_host_and_path(settings: dict[str, str], url: str, header: str | None) -> None:
    assert authorization(settings, url).get("Authorization") == header


def test_a_registry_that_is_no_web_address_is_refused_without_its_password() -> None:
    with pytest.raises(UsageError, match="is not a registry") as caught:
        registry_of({"registry": "ftp://me:pass@h.invalid"}, "")
    assert "pass" not in str(caught.value)
