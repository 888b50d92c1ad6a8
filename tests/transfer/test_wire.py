"""One HTTP/1.1 connection: what servers say, well formed or not, and what becomes of it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from certificates import Certificate, make_certificate
from raw_server import Peer, RawServer, Talk, answer, raw_server, says

from fairmile.base.errors import FairmileError, SystemFailure, Transient
from fairmile.transfer.wire import Connection, Endpoint

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def connect(server: RawServer, *, timeout_s: float = 20, tls: ssl.SSLContext | None = None) -> Connection:
    endpoint = Endpoint("https" if server.tls else "http", server.host, server.port)
    return Connection(endpoint, timeout_s=timeout_s, buffer_bytes=0, tls=tls)


@contextmanager
def connected(talk: Talk, **options: float) -> Iterator[Connection]:
    with raw_server(talk) as server, closing(connect(server, **options)) as connection:  # type: ignore[arg-type]
        yield connection


def read(connection: Connection, size: int = 1000) -> bytes:
    parts, buffer = [], memoryview(bytearray(size))
    while count := connection.readinto(buffer):
        parts.append(bytes(buffer[:count]))
    return b"".join(parts)


# Answers


def test_an_answer_is_its_status_its_headers_and_its_body() -> None:
    with connected(says(answer(b"hello", "200 All Right", ETag='"x"', X_Two="  spaced  "))) as connection:
        connection.send(GET)
        head = connection.read_head("GET")
        assert (head.status, head.reason, head.keeps_alive) == (200, "All Right", True)
        assert head.headers == {"etag": '"x"', "x-two": "spaced", "content-length": "5"}
        assert read(connection) == b"hello"
        assert connection.readinto(memoryview(bytearray(10))) == 0


def test_one_connection_serves_several_requests() -> None:
    with connected(says(answer(b"one"), answer(b"two"), answer(b"three"))) as connection:
        for expected in (b"one", b"two", b"three"):
            connection.send(GET)
            connection.read_head("GET")
            assert not connection.is_drained
            assert read(connection) == expected
            assert connection.is_drained
            assert connection.usable


def test_an_answer_may_come_byte_by_byte() -> None:
    def talk(peer: Peer) -> None:
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.hear()
        for byte in answer(b"slow", X_Name="value"):
            peer.say(bytes([byte]))

    with connected(talk) as connection:
        connection.send(GET)
        assert connection.read_head("GET").headers["x-name"] == "value"
        assert read(connection) == b"slow"


def test_a_body_is_read_into_buffers_of_any_size() -> None:
    body = bytes(range(256)) * 40
    for size in (1, 7, 4096, len(body), 1 << 20):
        with connected(says(answer(body))) as connection:
            connection.send(GET)
            connection.read_head("GET")
            assert read(connection, size) == body


@pytest.mark.parametrize("method, status", [("HEAD", "200 OK"), ("GET", "204 No Content"), ("GET", "304 Not Modified")])
def test_some_answers_have_no_body_whatever_they_announce(method: str, status: str) -> None:
    with connected(says(answer(b"", status, content_length="100"), answer(b"next"))) as connection:
        connection.send(GET)
        connection.read_head(method)
        assert read(connection) == b""
        assert connection.is_drained
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection) == b"next"


def test_interim_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    with connected(says(early + answer(b"last"))) as connection:
        connection.send(GET)
        assert connection.read_head("GET").status == 200
        assert read(connection) == b"last"


@pytest.mark.parametrize(
    "version, token, keeps",
    [
        ("HTTP/1.1", "", True),
        ("HTTP/1.1", "close", False),
        ("HTTP/1.1", "Keep-Alive", True),
        ("HTTP/1.0", "", False),
        ("HTTP/1.0", "keep-alive", True),
    ],
)
def test_the_server_decides_whether_another_request_may_follow(version: str, token: str, keeps: bool) -> None:
    line = f"Connection: {token}\r\n" if token else ""
    with connected(says(f"{version} 200 OK\r\n{line}Content-Length: 0\r\n\r\n".encode())) as connection:
        connection.send(GET)
        assert connection.read_head("GET").keeps_alive is keeps
        assert connection.usable is keeps


def test_repeated_headers_are_joined() -> None:
    text = b"HTTP/1.1 200 OK\r\nVary: a\r\nvary: b\r\nContent-Length: 0\r\n\r\n"
    with connected(says(text)) as connection:
        connection.send(GET)
        assert connection.read_head("GET").headers["vary"] == "a, b"


def test_without_a_length_the_body_ends_with_the_connection() -> None:
    with connected(says(b"HTTP/1.1 200 OK\r\n\r\nall there is")) as connection:
        connection.send(GET)
        connection.read_head("GET")
        assert not connection.usable
        assert read(connection) == b"all there is"
        assert read(connection) == b""


# Chunks


def chunked(data: bytes, trailers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_chunks_are_put_together(size: int) -> None:
    talk = says(chunked(b"3\r\nabc\r\n5;name=value\r\nd\r\ne\n\r\nA\r\n0123456789\r\n"), answer(b"next"))
    with connected(talk) as connection:
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection, size) == b"abcd\r\ne\n0123456789"
        assert connection.is_drained
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection) == b"next"


def test_trailers_behind_the_last_chunk_are_passed_over() -> None:
    with connected(says(chunked(b"1\r\nx\r\n", b"Digest: abc\r\nMore: d\r\n"), answer(b"next"))) as connection:
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection) == b"x"
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection) == b"next"


def test_chunks_count_more_than_a_length() -> None:
    text = chunked(b"2\r\nab\r\n").replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n", 1)
    with connected(says(text)) as connection:
        connection.send(GET)
        connection.read_head("GET")
        assert read(connection) == b"ab"


@pytest.mark.parametrize("size", [b"xyz", b"-5", b"+5", b"0x5", b"1_0", b"", b"5 5", b"f" * 30])
def test_a_broken_chunk_is_an_error_and_no_data(size: bytes) -> None:
    with connected(says(chunked(b"2\r\nab\r\n" + size + b"\r\nabcde\r\n"))) as connection:
        connection.send(GET)
        connection.read_head("GET")
        with pytest.raises(Transient, match="broken chunk"):
            read(connection)
        assert not connection.usable


def test_trailers_without_end_are_given_up() -> None:
    with connected(says(chunked(b"1\r\nx\r\n", b"More: d\r\n" * 2000))) as connection:
        connection.send(GET)
        connection.read_head("GET")
        with pytest.raises(Transient, match="trailers without end"):
            read(connection)


# What is not as it should be


@pytest.mark.parametrize(
    "text, words",
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-", "in its headers"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not answer in HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x0a\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/2 200\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 \xb200 OK\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 -200 OK\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "length 'many', which is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "which is not a number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "which is not a number"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000, "headers without end"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_garbage_is_an_error_that_names_the_server(text: bytes, words: str) -> None:
    with raw_server(says(text)) as server, closing(connect(server)) as connection:
        connection.send(GET)
        with pytest.raises(Transient, match=words) as caught:
            connection.read_head("GET")
        assert f"127.0.0.1:{server.port}" in str(caught.value)
        assert not connection.usable


def test_a_body_that_ends_early_is_an_error_with_the_number_of_missing_bytes() -> None:
    with connected(says(answer(b"12345", content_length="12000"))) as connection:
        connection.send(GET)
        connection.read_head("GET")
        with pytest.raises(Transient, match=r"11,995 bytes before the announced end"):
            read(connection)
        assert not connection.usable


@pytest.mark.parametrize("rest", [b"5\r\nab", b"5\r\nabcde", b"5\r\nabcde\r\n", b"5\r\nabcde\r\n0\r\n", b"5"])
def test_chunks_that_end_early_are_an_error(rest: bytes) -> None:
    with connected(says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)) as connection:
        connection.send(GET)
        connection.read_head("GET")
        with pytest.raises(Transient, match="closed the connection"):
            read(connection)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with (
        connected(lambda peer: peer.wait(), timeout_s=0.1) as connection,
        pytest.raises(Transient, match="stopped responding"),
    ):
        connection.send(GET)
        connection.read_head("GET")


def test_a_body_that_stalls_is_given_up() -> None:
    def talk(peer: Peer) -> None:
        peer.hear()
        peer.say(answer(b"some", content_length="10"))
        peer.wait()

    with connected(talk, timeout_s=0.1) as connection:
        connection.send(GET)
        connection.read_head("GET")
        with pytest.raises(Transient, match="stopped responding"):
            read(connection)


@pytest.mark.parametrize("buffer_bytes", [0, 1 << 16])
def test_where_nobody_listens_the_error_names_host_and_port(buffer_bytes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    endpoint = Endpoint("http", "127.0.0.1", port)
    with pytest.raises(Transient, match=rf"cannot reach 127\.0\.0\.1:{port}: Connection refused") as caught:
        Connection(endpoint, timeout_s=5, buffer_bytes=buffer_bytes, tls=None)
    assert caught.value.hint


def test_a_receive_buffer_is_set_before_the_connection_is_made() -> None:
    with raw_server(says(answer(b"x" * 1000))) as server:
        endpoint = Endpoint("http", server.host, server.port)
        with closing(Connection(endpoint, timeout_s=5, buffer_bytes=1 << 17, tls=None)) as connection:
            connection.send(GET)
            connection.read_head("GET")
            assert read(connection) == b"x" * 1000


def test_a_login_for_a_proxy_does_not_show() -> None:
    endpoint = Endpoint("https", "example.org", 443, ("proxy", 3128), "Basic aHVudGVyMg==")
    assert f"{endpoint} {endpoint!r} {endpoint!s}".count("https://example.org:443") == 3
    assert "aHVudGVyMg" not in f"{endpoint}{endpoint!r}{endpoint!s}"


# From another thread


def waiting(talk: Talk, certificate: Certificate | None = None) -> Callable[[], tuple[bytes, Exception | None]]:
    """Read an answer that never ends in a thread, interrupt it from this one, and return what came of it."""

    def run() -> tuple[bytes, Exception | None]:
        tls = certificate.server() if certificate else None
        with raw_server(talk, tls=tls) as server:
            connection = connect(server, tls=certificate.client() if certificate else None)
            begun, came = threading.Event(), bytearray()
            caught: list[Exception] = []

            def reader() -> None:
                buffer = memoryview(bytearray(100))
                try:
                    while count := connection.readinto(buffer):
                        came.extend(buffer[:count])
                        begun.set()
                except Transient as error:
                    caught.append(error)

            connection.send(GET)
            connection.read_head("GET")
            thread = threading.Thread(target=reader)
            thread.start()
            assert begun.wait(20)
            connection.interrupt()
            thread.join(20)
            assert not thread.is_alive()
            assert not connection.usable
            connection.close()
            connection.interrupt()  # closed already: nothing happens
            return bytes(came), caught[0] if caught else None

    return run


def _some_and_no_more(peer: Peer) -> None:
    peer.hear()
    peer.say(answer(b"some", content_length="1000000"))
    peer.wait()


def test_a_reader_that_waits_can_be_woken_up() -> None:
    came, error = waiting(_some_and_no_more)()
    assert came == b"some"
    assert isinstance(error, Transient)


def test_a_reader_of_tls_that_waits_can_be_woken_up(certificate: Certificate) -> None:
    came, error = waiting(_some_and_no_more, certificate)()
    assert came == b"some"
    assert isinstance(error, Transient)


def test_after_an_interruption_no_cipher_text_passes_for_data(certificate: Certificate) -> None:
    def talk(peer: Peer) -> None:
        peer.hear()
        peer.say(answer(b"A" * 200_000, content_length="400000"))
        peer.wait()

    with (
        raw_server(talk, tls=certificate.server()) as server,
        closing(connect(server, tls=certificate.client())) as connection,
    ):
        connection.send(GET)
        connection.read_head("GET")
        buffer = memoryview(bytearray(50_000))
        assert connection.readinto(buffer[:10]) == 10
        connection.interrupt()
        came = b""
        with pytest.raises(Transient):
            while count := connection.readinto(buffer):
                came += bytes(buffer[:count])
        assert set(came) <= set(b"A")


# TLS


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Certificate) -> None:
    with (
        raw_server(says(answer(b"x")), tls=certificate.server()) as server,
        pytest.raises(SystemFailure, match="cannot be trusted") as caught,
    ):
        connect(server, tls=ssl.create_default_context())
    assert f"https://127.0.0.1:{server.port}" in str(caught.value)
    assert "SSL_CERT_FILE" in (caught.value.hint or "")


def test_a_server_that_does_not_speak_tls_is_an_error(certificate: Certificate) -> None:
    with raw_server(lambda peer: peer.say(b"hello, who is there?\r\n" * 10)) as server:
        endpoint = Endpoint("https", server.host, server.port)
        with pytest.raises(Transient, match="cannot talk to https://"):
            Connection(endpoint, timeout_s=5, buffer_bytes=0, tls=certificate.client())


def tunnel_to(certificate: Certificate) -> Talk:
    """Behave as a proxy that speaks for the server itself."""

    def talk(peer: Peer) -> None:
        peer.hear()
        peer.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with certificate.server().wrap_socket(peer.sock, server_side=True) as spoken:
            says(answer(b"in the tunnel"))(Peer(peer.server, spoken, peer.number))

    return talk


def test_by_a_proxy_the_tunnel_leads_to_the_server(certificate: Certificate) -> None:
    with raw_server(tunnel_to(certificate)) as proxy:
        endpoint = Endpoint("https", "localhost", 443, ("127.0.0.1", proxy.port))
        tls = certificate.client()
        with closing(Connection(endpoint, timeout_s=10, buffer_bytes=0, tls=tls)) as connection:
            connection.send(GET)
            connection.read_head("GET")
            assert read(connection) == b"in the tunnel"
        assert proxy.heads[0].startswith("CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n")


@pytest.mark.parametrize(
    "host, is_trusted", [("localhost", False), ("example.org", True)], ids=["forged", "other-host"]
)
def test_a_proxy_that_speaks_for_the_server_is_caught_by_its_certificate(
    certificate: Certificate, tmp_path: Path, host: str, is_trusted: bool
) -> None:
    shown = certificate if is_trusted else make_certificate(tmp_path)
    with raw_server(tunnel_to(shown)) as proxy:
        endpoint = Endpoint("https", host, 443, ("127.0.0.1", proxy.port))
        with pytest.raises(SystemFailure, match="cannot be trusted"):
            Connection(endpoint, timeout_s=10, buffer_bytes=0, tls=certificate.client())


@pytest.mark.parametrize(
    "status, error", [("403 Forbidden", SystemFailure), ("407 Who", SystemFailure), ("502 Bad", Transient)]
)
def test_a_proxy_that_refuses_is_named_with_what_to_check(
    certificate: Certificate, status: str, error: type[FairmileError]
) -> None:
    with raw_server(says(answer(b"no", status))) as proxy:
        endpoint = Endpoint("https", "example.org", 443, ("127.0.0.1", proxy.port), "Basic aHVudGVyMg==")
        with pytest.raises(error, match=rf"the proxy 127\.0\.0\.1 refuses .* example\.org: {status}") as caught:
            Connection(endpoint, timeout_s=10, buffer_bytes=0, tls=certificate.client())
        assert caught.value.hint == "check https_proxy and no_proxy"
        assert "aHVudGVyMg" not in str(caught.value)
        assert "Proxy-Authorization: Basic aHVudGVyMg==" in proxy.heads[0]
