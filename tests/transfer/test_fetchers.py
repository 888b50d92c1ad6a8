"""Questions to web addresses that are asked ahead: one request, the answer or the error to whoever finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from left_open import nothing_left_open
from web_server import Exchange, WebServer, web_server

from fairmile.base.commands import Here
from fairmile.base.errors import NotFound
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

LONG_S = 60.0


@pytest.fixture
def fetchers() -> Iterator[Fetchers]:
    with closing(Fetchers(Context({}, Here(), Credentials({}), Settings(retries=1)))) as made:
        yield made


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server({"data.bin": b"twelve bytes"}) as running:
        yield running


def methods(server: WebServer) -> list[str]:
    return [request.method for request in server.requests]


def test_what_was_asked_ahead_is_not_asked_again(fetchers: Fetchers, server: WebServer) -> None:
    fetchers.ask(server.url("data.bin"))
    [remote] = fetchers.find(server.url("data.bin"))
    assert (remote.path, remote.size_bytes, methods(server)) == ("data.bin", 12, ["HEAD"])


def test_an_answer_serves_once_and_the_next_question_goes_to_the_server(fetchers: Fetchers, server: WebServer) -> None:
    fetchers.ask(server.url("data.bin"))
    fetchers.find(server.url("data.bin"))
    server.files["data.bin"] = b"more than twelve"
    [remote] = fetchers.find(server.url("data.bin"))
    assert (remote.size_bytes, methods(server)) == (16, ["HEAD", "HEAD"])


def test_what_goes_wrong_is_told_to_who_waits_for_the_answer(fetchers: Fetchers, server: WebServer) -> None:
    fetchers.ask(server.url("lost.bin"))
    with pytest.raises(NotFound, match=r"lost\.bin"):
        fetchers.find(server.url("lost.bin"))


@pytest.mark.parametrize("address", ["file:///etc/hostname", "https://127.0.0.1:1/code.git", "dataset/lake", "./lake"])
def test_only_the_address_of_a_web_file_is_asked_ahead(fetchers: Fetchers, address: str) -> None:
    before = set(threading.enumerate())
    fetchers.ask(address)
    assert set(threading.enumerate()) == before


def test_a_question_that_nobody_waits_for_leaves_no_connection_behind(fetchers: Fetchers) -> None:
    may_answer = threading.Event()

    def answer_late(exchange: Exchange) -> None:
        may_answer.wait(LONG_S)
        exchange.answer()

    with web_server({"data.bin": b"twelve bytes"}, answer_late) as server, nothing_left_open():
        before = set(threading.enumerate())
        fetchers.ask(server.url("data.bin"))
        [asking] = [each for each in threading.enumerate() if each not in before and each.name == "fairmile-ask"]
        fetchers.close()
        may_answer.set()
        asking.join(LONG_S)
        for each in set(threading.enumerate()) - before:  # the server's own, which ends when the connection is closed
            each.join(LONG_S)
