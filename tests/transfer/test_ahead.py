"""Connections begun ahead: taken over once, never where they are not wanted, and no trouble where they fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from raw_server import answer, raw_server, says

from fairmile.transfer.ahead import dial, taken
from fairmile.transfer.wire import Connection, Endpoint

PATIENCE_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def url(listener: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/data.bin"


def take(listener: socket.socket, timeout_s: float = PATIENCE_S) -> socket.socket | None:
    return taken(*listener.getsockname()[:2], timeout_s)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_connection_that_was_begun_is_handed_out_once(listener: socket.socket, scheme: str) -> None:
    dial(url(listener, scheme), {})
    mine = take(listener)
    assert mine is not None
    with mine, listener.accept()[0] as theirs:
        assert mine.getsockname() == theirs.getpeername()
        assert mine.gettimeout() == PATIENCE_S
    assert take(listener) is None


def test_a_name_is_looked_up_however_it_is_spelt() -> None:
    family, *_ = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)[0]
    with socket.create_server(("localhost", 0), family=family) as listener:
        port = listener.getsockname()[1]
        dial(f"http://LocalHost:{port}/data.bin", {})
        mine = taken("localhost", port, PATIENCE_S)
        assert mine is not None
        mine.close()


def test_a_request_goes_over_the_connection_that_was_begun() -> None:
    with raw_server(says(answer(b"hello"))) as server:
        dial(f"http://{server.host}:{server.port}/", {})
        endpoint = Endpoint("http", server.host, server.port)
        connection = Connection(endpoint, timeout_s=PATIENCE_S, buffer_bytes=0, tls=None)
        connection.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.read_head("GET").status == 200
        connection.close()
        assert taken(server.host, server.port, PATIENCE_S) is None
    assert server.connections == 1


def test_a_receive_buffer_of_ones_own_needs_a_connection_of_ones_own(listener: socket.socket) -> None:
    dial(url(listener), {})
    endpoint = Endpoint("http", *listener.getsockname()[:2])
    Connection(endpoint, timeout_s=PATIENCE_S, buffer_bytes=1 << 16, tls=None).close()
    mine = take(listener)
    assert mine is not None
    mine.close()


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_nobody_is_dialled_past_a_proxy(listener: socket.socket, name: str) -> None:
    dial(url(listener), {name: "http://proxy.example:3128"})
    assert take(listener) is None
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize(
    "address",
    [
        "ftp://127.0.0.1:{}/data.bin",
        "http://user@127.0.0.1:{}/data.bin",
        "http://user:secret@127.0.0.1:{}/data.bin",
        "http://127.0.0.1:{}/repository.git",
        "http://127.0.0.1:{}?query",
        "http://127.0.0.1:{}0000/data.bin",
        "http://127.0.0.1:٣/data.bin",
        "http://:{}/data.bin",
        "http://ümlaut:{}/data.bin",
        "127.0.0.1:{}/data.bin",
        "http:",
    ],
)
def test_an_address_that_needs_a_second_look_is_not_dialled(listener: socket.socket, address: str) -> None:
    dial(address.format(listener.getsockname()[1]), {})
    assert take(listener) is None
    with pytest.raises(BlockingIOError):
        listener.accept()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a..b"])
def test_where_nobody_answers_there_is_no_connection(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    dial(f"http://{host}:{port}/", {})
    assert taken(host, port, PATIENCE_S) is None


def test_a_server_that_is_silent_is_not_waited_for_without_end() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # the queue is full: nobody else is answered
            dial(f"http://127.0.0.1:{full.getsockname()[1]}/", {})
            with pytest.raises(TimeoutError):
                taken(*full.getsockname(), 0.05)
