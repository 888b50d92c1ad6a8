"""What goes wrong on the way, each fault once: the right bytes arrive or an error says what to do; nothing else."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable

import pytest
import web_server as web
from web_server import Behaviour, WebServer, web_server

from fairmile.base.errors import FairmileError, Integrity, SystemFailure, Transient
from fairmile.transfer.items import Silent
from fairmile.workspace import Workspace

SMALL = random.Random(1).randbytes(100_000)
LARGE = random.Random(2).randbytes((9 << 20) + 12_345)
SIZES = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def clean(workspace: Workspace):
    """After the test the store verifies clean, and no space is taken that the clean-up does not find."""
    yield
    assert not workspace.store.verify().damaged
    for path in workspace.home.joinpath("store").rglob("*"):
        os.utime(path, (0, 0))  # a clean-up leaves alone what may still be in use
    workspace.store.gc(keep=lambda ref: False, older_than_s=0, grace_s=0)
    left = [path for path in workspace.home.joinpath("store").rglob("*") if path.is_file()]
    assert [path for path in left if "objects" in path.parts or "incoming" in path.parts or "packs" in path.parts] == []


def fetch(workspace: Workspace, server: WebServer, data: bytes, **options: object) -> bytes:
    url = server.url("data.bin")
    (fetched,) = workspace.assets.fetch(url, **{"sha256": sha256(data), **options})
    (entry,) = workspace.store.tree(fetched.root)
    with workspace.store.open(entry.sha256) as stream:
        return stream.read()


@SIZES
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "behaviour",
    [
        web.Exchange.answer,
        web.drops(60_000, times=1),
        web.drops(60_000),
        web.ignores_ranges,
        web.is_busy("503 Service Unavailable", 2, "0"),
        web.is_busy("429 Too Many Requests", 2, "0"),
        web.is_busy("503 Service Unavailable", 1),
        web.tells_no_length,
        web.sends_chunks,
    ],
    ids=["none", "drops-once", "drops-always", "ignores-ranges", "503", "429", "503-no-date", "no-length", "chunked"],
)
def test_the_right_bytes_arrive_in_spite_of(workspace: Workspace, data: bytes, behaviour: Behaviour) -> None:
    with web_server({"data.bin": data}, behaviour) as server:
        assert fetch(workspace, server, data) == data


@SIZES
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        (web.flips(70_000), Integrity, "sha256"),
        (web.shortens(1_000), (Integrity, Transient), "early|before the announced end"),
        (web.announces(90_000), Integrity, "sha256|announces"),
        (web.redirects_in_a_loop, SystemFailure, "redirects without end"),
        (web.answers_with_a_page, Integrity, "web page|announces|sha256"),
        (web.wants_a_login, SystemFailure, "requires a login"),
        (web.is_busy("503 Service Unavailable", 1000, "0"), Transient, "503"),
        (web.is_busy("429 Too Many Requests", 1000, "9000"), SystemFailure, "asks to wait 9000 s"),
    ],
    ids=["flips", "shortens", "announces-less", "loop", "page", "login", "always-503", "429-for-hours"],
)
def test_wrong_bytes_never_get_a_name_and_the_error_names_the_source(
    workspace: Workspace, data: bytes, behaviour: Behaviour, error: type[FairmileError], words: str
) -> None:
    with web_server({"data.bin": data}, behaviour) as server:
        with pytest.raises(error, match=words) as caught:
            fetch(workspace, server, data)
        assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert workspace.store.refs() == []


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "behaviour", [web.answers_other_bytes, web.names_another_range], ids=["other-bytes", "another-range"]
)
def test_a_range_with_other_bytes_than_asked_is_noticed(workspace: Workspace, behaviour: Behaviour) -> None:
    with web_server({"data.bin": LARGE}, behaviour) as server, pytest.raises(Integrity, match=r"127\.0\.0\.1"):
        fetch(workspace, server, LARGE)


@pytest.mark.usefixtures("clean")
def test_a_connection_that_falls_silent_is_overtaken(workspace: Workspace) -> None:
    stuck: list[int] = []

    def first_ones(request: web.Request) -> bool:
        stuck.append(request.number)
        return len(stuck) <= 2

    with web_server({"data.bin": LARGE}, web.stalls(30_000, first_ones)) as server:
        assert fetch(workspace, server, LARGE) == LARGE


@pytest.mark.thorough
@SIZES
@pytest.mark.usefixtures("clean")
def test_a_source_that_is_silent_for_ever_is_given_up(workspace: Workspace, data: bytes) -> None:
    with (
        web_server({"data.bin": data}, web.stalls(0)) as server,
        pytest.raises(Transient, match="stopped responding"),
    ):
        fetch(workspace, server, data)


@pytest.mark.usefixtures("clean")
def test_a_file_that_changes_midway_is_not_mixed(workspace: Workspace) -> None:
    new = LARGE[::-1]
    with web_server({"data.bin": LARGE}, web.changes_after(3, new)) as server:
        (fetched,) = workspace.assets.fetch(server.url("data.bin"))
        (entry,) = workspace.store.tree(fetched.root)
        assert entry.sha256 == sha256(new)
        assert any("changed while it was read" in note for note in fetched.notes)


@SIZES
@pytest.mark.usefixtures("clean")
def test_a_page_instead_of_data_is_refused_also_without_a_digest(workspace: Workspace, data: bytes) -> None:
    with web_server({"data.bin": data}, web.answers_with_a_page) as server:
        with pytest.raises(Integrity, match=r"web page instead of data\.bin") as caught:
            workspace.assets.fetch(server.url("data.bin"))
        assert "login" in (caught.value.hint or "")


@pytest.mark.thorough
@SIZES
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    "behaviour",
    [
        web.flips(70_000),
        web.shortens(1_000),
        web.announces(90_000),
        web.redirects_in_a_loop,
        web.answers_with_a_page,
        web.wants_a_login,
        web.is_busy("503 Service Unavailable", 1000, "0"),
        web.stalls(10_000),
        web.drops(0),
        web.answers_other_bytes,
    ],
    ids=["flips", "shortens", "announces", "loop", "page", "login", "503", "stalls", "drops", "other-bytes"],
)
def test_the_next_source_serves_and_the_bad_one_is_named(
    workspace: Workspace, watcher: Silent, local_card: Callable[..., str], data: bytes, behaviour: Behaviour
) -> None:
    with web_server({"data.bin": data}, behaviour) as bad, web_server({"data.bin": data}) as good:
        name = local_card(data, bad.url("data.bin"), good.url("data.bin"))
        (fetched,) = workspace.assets.fetch(name)
        (entry,) = workspace.store.tree(fetched.root)
        assert entry.sha256 == sha256(data)
        expected_fault = behaviour is not web.answers_other_bytes or len(data) > len(SMALL)
        if expected_fault and bad.sent_bytes + good.sent_bytes > len(data):
            assert any(f"127.0.0.1:{bad.port}" in note for note in fetched.notes)
