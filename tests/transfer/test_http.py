"""The HTTP client: redirects, logins, proxies, patience, pooled connections, and servers that do as they please."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import web_server as web
from certificates import Certificate, make_certificate
from proxy_server import proxy_server
from raw_server import Peer, answer, raw_server, says
from web_server import Exchange, WebServer, web_server

from fairmile.base.commands import Here
from fairmile.base.errors import FairmileError, Integrity, NotFound, SystemFailure, Transient, Unsupported, UsageError
from fairmile.testing.fetchers import read
from fairmile.transfer import http
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.http import Busy, Client, pause_s
from fairmile.transfer.remote import Context
from fairmile.transfer.settings import Settings

DATA = bytes(range(256)) * 100
Make = Callable[..., Client]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a client with an environment of its own."""
    made: list[Client] = []

    def client(*, environ: dict[str, str] | None = None, netrc: str = "", **settings: Any) -> Client:
        given = {"HOME": str(tmp_path), **(environ or {})}
        if netrc:
            (tmp_path / ".netrc").write_text(netrc)
            (tmp_path / ".netrc").chmod(0o600)
        chosen = Settings(**{"retries": 3, "stall_s": 10, **settings})
        made.append(Client(Context(given, Here(), Credentials(given), chosen)))
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.fixture
def client(make: Make) -> Client:
    return make()


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server({"data.bin": DATA, "empty": b""}) as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let nobody wait, and tell how long each pause would have been."""
    pauses: list[float] = []
    monkeypatch.setattr(http.time, "sleep", pauses.append)
    return pauses


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def whole(client: Client, url: str, start: int = 0, stop: int | None = None, **options: Any) -> bytes:
    return read(client.open(url, start, stop, **options))


# Asking


def test_a_head_tells_size_and_validator(client: Client, server: WebServer) -> None:
    found = client.head(server.url("data.bin"))
    assert found.size_bytes == len(DATA)
    assert found.validator == found.head.headers["etag"]
    assert found.url == server.url("data.bin")


def test_every_request_says_who_asks_and_wants_the_bytes_as_they_are(client: Client, server: WebServer) -> None:
    client.head(server.url("data.bin"), {"X-Own": "yes"})
    sent = server.requests[0].headers
    assert sent["host"] == f"127.0.0.1:{server.port}"
    assert sent["user-agent"] == "fairmile"
    assert sent["accept-encoding"] == "identity"
    assert sent["x-own"] == "yes"
    assert "authorization" not in sent


@pytest.mark.parametrize("start, stop", [(0, None), (0, 10), (5, 6), (100, 20_000), (25_000, None), (0, 99_999)])
def test_ranges_are_brought_as_asked(client: Client, server: WebServer, start: int, stop: int | None) -> None:
    body = client.open(server.url("data.bin"), start, stop)
    assert (body.start, body.total_bytes) == (start, len(DATA))
    assert body.is_whole is ((start, stop) == (0, None))
    assert read(body) == DATA[start:stop]


def test_a_server_without_ranges_says_so_by_starting_at_the_beginning(client: Client) -> None:
    with web_server({"data.bin": DATA}, web.ignores_ranges) as server:
        body = client.open(server.url("data.bin"), 100, 200)
        assert (body.start, body.is_whole, body.total_bytes) == (0, True, len(DATA))
        assert read(body) == DATA


def test_behind_the_end_there_is_nothing(client: Client, server: WebServer) -> None:
    body = client.open(server.url("data.bin"), len(DATA), None)
    assert (body.start, body.total_bytes) == (len(DATA), len(DATA))
    assert read(body) == b""


def test_an_empty_file_is_empty_by_any_range(client: Client, server: WebServer) -> None:
    for start, stop in ((0, None), (0, 1), (0, 8 << 20)):
        body = client.open(server.url("empty"), start, stop)
        assert body.total_bytes == 0
        assert read(body) == b""


def test_with_the_validator_of_before_a_changed_file_comes_whole(client: Client, server: WebServer) -> None:
    validator = client.head(server.url("data.bin")).validator
    assert whole(client, server.url("data.bin"), 10, 20, validator=validator) == DATA[10:20]
    server.files["data.bin"] = DATA[::-1]
    body = client.open(server.url("data.bin"), 10, 20, validator=validator)
    assert (body.start, body.is_whole) == (0, True)
    assert body.validator != validator
    assert read(body) == DATA[::-1]


@pytest.mark.parametrize(
    "headers, expected",
    [
        ({"etag": '"strong"', "last-modified": "then"}, '"strong"'),
        ({"etag": 'W/"weak"', "last-modified": "then"}, "then"),
        ({"etag": 'W/"weak"'}, ""),
        ({"last-modified": "then"}, "then"),
        ({}, ""),
    ],
)
def test_only_a_strong_etag_or_a_date_tells_a_change(headers: dict[str, str], expected: str) -> None:
    assert http.validator_of(headers) == expected


@pytest.mark.parametrize(
    "content_range, words",
    [
        ("bytes 0-9/100", "asked for the bytes from 50 and sends those from 0"),
        ("bytes 51-99/100", "from 51"),
        ("lines 50-99/100", "from -1"),
        ("", "from -1"),
        ("bytes x-99/100", "from -1"),
    ],
)
def test_a_part_that_is_another_one_than_asked_for_is_refused(client: Client, content_range: str, words: str) -> None:
    headers = {"content_range": content_range} if content_range else {}
    partial = says(answer(b"x" * 50, "206 Partial Content", **headers))
    with raw_server(partial) as server, pytest.raises(Integrity, match=words):
        client.open(server.url(), 50, 100)


def test_a_part_may_not_tell_how_large_the_whole_is(client: Client) -> None:
    with raw_server(says(answer(b"x" * 50, "206 Partial Content", content_range="bytes 50-99/*"))) as server:
        body = client.open(server.url(), 50, 100)
        assert body.total_bytes is None
        assert read(body) == b"x" * 50


@pytest.mark.parametrize("status", ["403 Forbidden", "405 Method Not Allowed", "501 Not Implemented"])
@pytest.mark.parametrize("name", ["data.bin", "empty"])
def test_where_head_is_not_allowed_one_byte_is_asked_for(client: Client, status: str, name: str) -> None:
    def no_head(exchange: Exchange) -> None:
        if exchange.request.method == "HEAD":
            exchange.head(status, {"Content-Length": "0"})
        else:
            exchange.answer()

    with web_server({"data.bin": DATA, "empty": b""}, no_head) as server:
        found = client.head(server.url(name))
        assert found.size_bytes == len(server.files[name])
        assert server.sent_bytes <= 1


def test_where_neither_head_nor_ranges_are_known_the_size_still_is(client: Client) -> None:
    def poor(exchange: Exchange) -> None:
        if exchange.request.method == "HEAD":
            exchange.head("405 Method Not Allowed", {"Content-Length": "0"})
        else:
            exchange.answer(ranges=False)

    with web_server({"data.bin": DATA}, poor) as server:
        assert client.head(server.url("data.bin")).size_bytes == len(DATA)


@pytest.mark.parametrize(
    "rest, asked",
    [
        ("", "/"),
        ("/", "/"),
        ("?a=1", "/?a=1"),
        ("?a=/b", "/?a=/b"),
        ("/a%20b/c?x=%2F#part", "/a%20b/c?x=%2F"),
        ("/a b/ü", "/a%20b/%C3%BC"),
        ("/a\r\nX: y", "/a%0D%0AX:%20y"),
        ('/a\\b"<>^`{}', "/a%5Cb%22%3C%3E%5E%60%7B%7D"),
        ("/100%", "/100%"),
    ],
)
def test_what_stands_behind_the_server_is_asked_for_as_it_must_be_written(
    client: Client, rest: str, asked: str
) -> None:
    with raw_server(says(answer(b"ok"))) as server:
        assert client.get(server.url()[:-1] + rest)[0] == b"ok"
        assert server.heads[0].splitlines()[0] == f"GET {asked} HTTP/1.1"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/x",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "example.org",
        "http://a..b/",
        f"http://{'a' * 70}.org/",
        "http://[::1/",
        "http://h:port/",
        "http://h:99999/",
        "http://h/\ud800",
        "",
    ],
)
def test_what_is_no_web_address_is_told(client: Client, url: str) -> None:
    with pytest.raises(UsageError):
        client.head(url)


@pytest.mark.parametrize(
    "name, value", [("X", "a\r\nEvil: 1"), ("X", "a\nb"), ("X", "a\0"), ("X\r\nEvil: 1\r\nY", "b")]
)
def test_no_header_can_hold_another_one(client: Client, server: WebServer, name: str, value: str) -> None:
    with pytest.raises(UsageError, match="line break"):
        client.head(server.url("data.bin"), {name: value})
    assert server.requests == []


def test_names_of_servers_may_hold_any_letter(make: Make, server: WebServer) -> None:
    with proxy_server({"xn--bcher-kva.example": server.port}) as proxy:
        client = make(environ={"http_proxy": f"http://127.0.0.1:{proxy.port}"})
        assert whole(client, "http://bücher.example/data.bin") == DATA
        assert "Host: xn--bcher-kva.example\r\n" in proxy.heads[0]


def test_an_address_of_ipv6_is_reached(make: Make) -> None:
    try:
        running = raw_server(says(answer(b"six")), host="::1")
        with running as server:
            assert make().get(server.url("x"))[0] == b"six"
            assert f"Host: [::1]:{server.port}\r\n" in server.heads[0]
    except OSError:
        pytest.skip("this machine has no IPv6")


# Redirects


def redirecting(*targets: str, status: str = "302 Found") -> Callable[[Exchange], None]:
    """Lead from /0 to the first target and from /1 to the second; everything else is answered."""

    def behave(exchange: Exchange) -> None:
        number = exchange.request.path
        if number.isdigit() and int(number) < len(targets):
            exchange.head(status, {"Location": targets[int(number)], "Content-Length": "0"})
        else:
            exchange.answer()

    return behave


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_redirects_are_followed(client: Client, status: str) -> None:
    with web_server({"data.bin": DATA}, redirecting("/1", "data.bin", status=status)) as server:
        assert client.head(server.url("0")).url == server.url("data.bin")
        assert whole(client, server.url("0"), 3, 9) == DATA[3:9]


@pytest.mark.parametrize(
    "location, path",
    [
        ("/data.bin", "data.bin"),
        ("data.bin", "data.bin"),
        ("./data.bin", "data.bin"),
        ("//HOST/data.bin", "data.bin"),
        ("data.bin#part", "data.bin"),
        ("a b.bin", "a b.bin"),
        ("ü.bin".encode().decode("latin-1"), "ü.bin"),
        ("%C3%BC.bin", "ü.bin"),
    ],
)
def test_a_redirect_may_be_relative_and_hold_any_letter(client: Client, location: str, path: str) -> None:
    def behave(exchange: Exchange) -> None:
        if exchange.request.path == "0":
            line = f"Location: {location}\r\n".replace("HOST", f"127.0.0.1:{exchange.server.port}")
            exchange.send(b"HTTP/1.1 302 Found\r\n" + line.encode("latin-1") + b"Content-Length: 0\r\n\r\n")
        else:
            exchange.answer()

    with web_server({path: DATA}, behave) as server:
        assert whole(client, server.url("0")) == DATA


def test_where_a_redirect_leads_is_remembered_for_further_ranges(client: Client) -> None:
    with web_server({"data.bin": DATA}, redirecting("/data.bin")) as server:
        for start in (0, 10, 20):
            assert whole(client, server.url("0"), start, start + 5) == DATA[start : start + 5]
        assert [request.path for request in server.requests] == ["0", "data.bin", "data.bin", "data.bin"]


def test_an_address_that_ran_out_is_asked_for_anew(client: Client) -> None:
    signed = itertools.count()
    valid = [0]

    def behave(exchange: Exchange) -> None:
        if exchange.request.path == "0":
            valid[0] = next(signed)
            exchange.head("302 Found", {"Location": f"/signed/{valid[0]}", "Content-Length": "0"})
        elif exchange.request.path == f"signed/{valid[0]}":
            exchange.data = DATA
            exchange.answer()
        else:
            exchange.head("403 Forbidden", {"Content-Length": "0"})

    with web_server({}, behave) as server:
        assert whole(client, server.url("0"), 0, 5) == DATA[:5]
        valid[0] = -1
        assert whole(client, server.url("0"), 5, 9) == DATA[5:9]


@pytest.mark.parametrize("targets", [("/0",), ("/1", "/0"), tuple(f"/{number}" for number in range(1, 30))])
def test_redirects_without_end_are_an_error(client: Client, targets: tuple[str, ...]) -> None:
    with web_server({}, redirecting(*targets)) as server:
        with pytest.raises(SystemFailure, match="redirects without end") as caught:
            client.head(server.url("0"))
        assert server.url("0") in str(caught.value)
        assert len(server.requests) <= 12


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://example.org/x", "javascript:alert(1)", "data:,x"])
def test_a_redirect_out_of_the_web_is_refused(client: Client, target: str) -> None:
    with web_server({}, redirecting(target)) as server, pytest.raises(SystemFailure, match="not a web address"):
        client.head(server.url("0"))


@pytest.mark.parametrize("target", ["http://[::1/", "http://h:port/x"])
def test_a_redirect_to_nonsense_is_refused(client: Client, target: str) -> None:
    with web_server({}, redirecting(target)) as server, pytest.raises(FairmileError, match="address"):
        client.head(server.url("0"))


def test_a_redirect_from_https_to_http_is_refused(make: Make, certificate: Certificate, server: WebServer) -> None:
    client = make(environ={"SSL_CERT_FILE": str(certificate.file)})
    leading = says(answer(b"", "302 Found", location=server.url("data.bin")))
    with (
        raw_server(leading, tls=certificate.server()) as protected,
        pytest.raises(SystemFailure, match="redirects to the unprotected") as caught,
    ):
        client.head(protected.url("x"))
    assert server.requests == []
    assert caught.value.hint


def test_secrets_do_not_follow_a_redirect_to_another_server(client: Client, server: WebServer) -> None:
    secrets = {"Authorization": "Bearer s", "Cookie": "c=s", "X-Amz-Security-Token": "s", "X-Harmless": "h"}
    with web_server({}, redirecting(server.url("data.bin"))) as first:
        assert whole(client, first.url("0"), 0, 5, headers=secrets) == DATA[:5]
        assert whole(client, first.url("0"), 5, 9, headers=secrets) == DATA[5:9]  # also by the remembered address
        assert first.requests[0].headers["authorization"] == "Bearer s"
    assert len(server.requests) == 2
    for request in server.requests:
        assert {"authorization", "cookie", "x-amz-security-token"}.isdisjoint(request.headers)
        assert request.headers["x-harmless"] == "h"


def test_secrets_follow_a_redirect_within_the_server(client: Client) -> None:
    with web_server({"data.bin": DATA}, redirecting("/data.bin")) as server:
        client.head(server.url("0"), {"Authorization": "Bearer s"})
        assert [request.headers["authorization"] for request in server.requests] == ["Bearer s", "Bearer s"]


def test_a_login_in_the_address_follows_within_the_server_alone(client: Client, server: WebServer) -> None:
    def behave(exchange: Exchange) -> None:
        onward = {"0": exchange.server.url("1"), "1": server.url("data.bin")}[exchange.request.path]
        exchange.head("302 Found", {"Location": onward, "Content-Length": "0"})

    with web_server({}, behave) as first:
        client.head(first.url("0").replace("//", "//me:hunter2@"))
        assert [request.headers.get("authorization") for request in first.requests] == [basic("me:hunter2")] * 2
    assert "authorization" not in server.requests[0].headers


# Logins


def guarded(login: str) -> Callable[[Exchange], None]:
    def behave(exchange: Exchange) -> None:
        if exchange.request.headers.get("authorization") == basic(login):
            exchange.answer()
        else:
            web.wants_a_login(exchange)

    return behave


def test_a_login_comes_from_netrc(make: Make) -> None:
    with web_server({"data.bin": DATA}, guarded("me:hunter2")) as server:
        client = make(netrc="machine 127.0.0.1 login me password hunter2\n")
        assert client.head(server.url("data.bin")).size_bytes == len(DATA)


def test_a_login_of_another_machine_is_not_used(make: Make, server: WebServer) -> None:
    make(netrc="machine example.org login me password hunter2\n").head(server.url("data.bin"))
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("written", ["me:p%40ss%2Fw%C3%B6rd", "me:p@ss%2Fwörd"])
def test_a_login_in_the_address_is_decoded_and_sent_as_a_header_alone(client: Client, written: str) -> None:
    with web_server({"data.bin": DATA}, guarded("me:p@ss/wörd")) as server:
        assert whole(client, server.url("data.bin").replace("//", f"//{written}@")) == DATA
        assert "@" not in server.requests[0].headers["host"]


def test_a_login_in_the_address_counts_more_than_netrc(make: Make) -> None:
    with web_server({"data.bin": DATA}, guarded("me:right")) as server:
        client = make(netrc="machine 127.0.0.1 login me password wrong\n")
        assert client.head(server.url("data.bin").replace("//", "//me:right@")).size_bytes == len(DATA)


SECRETS = ("hunter2", "p@ss", "tok3n", "s1gn")


@pytest.mark.parametrize(
    "behaviour",
    [
        web.wants_a_login,
        web.redirects_in_a_loop,
        web.is_busy("503 Service Unavailable", 9, "0"),
        web.is_busy("429 Too Many", 9, "9999"),
        web.drops(0),
        redirecting("ftp://me:hunter2@x.example/?token=tok3n"),
        lambda exchange: exchange.head("404 Not Found", {"Content-Length": "0"}),
        lambda exchange: exchange.head("418 Teapot", {"Content-Length": "0"}),
        lambda exchange: exchange.head("206 Partial", {"Content-Range": "bytes 7-8/9", "Content-Length": "2"}),
        lambda exchange: exchange.send(b"garbage\r\n\r\n"),
    ],
)
def test_no_error_tells_a_secret_of_the_address(
    make: Make, no_pause: list[float], behaviour: Callable[[Exchange], None]
) -> None:
    with web_server({"0": DATA}, behaviour) as server:
        plain = server.url("0").replace("//", "//me:hunter2p@ss@")
        url = f"{plain}?name=ok&access_token=tok3n&X-Amz-Signature=s1gn"
        client = make(stall_s=0.3)
        for attempt in (
            lambda: client.open(url, 0, 5),
            lambda: client.head(url),
            lambda: client.get(url, most_bytes=10),
            lambda: client.get_json(url),
        ):
            try:
                with closing(attempt()):  # type: ignore[type-var]
                    continue
            except (FairmileError, TypeError, AttributeError) as error:
                told = f"{error} {getattr(error, 'hint', '')} {error!r}"
            assert not any(secret in told for secret in SECRETS), told


def test_where_nobody_listens_no_secret_is_told(make: Make, no_pause: list[float]) -> None:
    with pytest.raises(Transient) as caught:
        make().head("http://me:hunter2@127.0.0.1:1/x?token=tok3n")
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


def test_a_password_with_a_slash_in_it_is_not_told(client: Client) -> None:
    with pytest.raises(UsageError) as caught:
        client.head("http://me:hun/ter2@example.org/x")
    assert "hun" not in str(caught.value)
    assert "%2F" in (caught.value.hint or "")


# Proxies


def test_http_goes_by_a_proxy_with_the_whole_address(make: Make, server: WebServer) -> None:
    with proxy_server({"data.example": server.port}) as proxy:
        client = make(environ={"http_proxy": f"http://127.0.0.1:{proxy.port}"})
        assert whole(client, "http://data.example/data.bin", 5, 9) == DATA[5:9]
        assert proxy.heads[0].startswith("GET http://data.example/data.bin HTTP/1.1\r\nHost: data.example\r\n")


def test_https_goes_through_a_tunnel(make: Make, certificate: Certificate) -> None:
    with raw_server(says(answer(b"inside")), tls=certificate.server()) as server, proxy_server() as proxy:
        environ = {"https_proxy": f"127.0.0.1:{proxy.port}", "SSL_CERT_FILE": str(certificate.file)}
        assert make(environ=environ).get(server.url("secret/path"))[0] == b"inside"
        assert [head.splitlines()[0] for head in proxy.heads] == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]
        assert "secret/path" not in str(proxy.heads)


def test_a_proxy_gets_its_login_and_the_server_does_not(
    make: Make, server: WebServer, certificate: Certificate
) -> None:
    login = basic("me:p@ss")
    with proxy_server({"data.example": server.port}, login=login) as proxy:
        address = f"http://me:p%40ss@127.0.0.1:{proxy.port}"
        assert whole(make(environ={"http_proxy": address}), "http://data.example/data.bin") == DATA
        assert not any("proxy" in name for name in server.requests[0].headers)
        with raw_server(says(answer(b"inside")), tls=certificate.server()) as protected:
            environ = {"https_proxy": address, "SSL_CERT_FILE": str(certificate.file)}
            assert make(environ=environ).get(protected.url())[0] == b"inside"
            assert "roxy-" not in protected.heads[0]


def test_a_proxy_that_wants_a_login_says_so_and_is_asked_once(make: Make, certificate: Certificate) -> None:
    with proxy_server(login="Basic x") as proxy:
        address = f"http://me:hunter2@127.0.0.1:{proxy.port}"
        environ = {"http_proxy": address, "https_proxy": address, "SSL_CERT_FILE": str(certificate.file)}
        for url in ("http://data.example/x", "https://data.example/x"):
            proxy.heads.clear()
            with pytest.raises(SystemFailure, match=r"proxy .*407") as caught:
                make(environ=environ).head(url)
            assert "proxy" in (caught.value.hint or "")
            assert "hunter2" not in f"{caught.value}{caught.value.hint}"
            assert len(proxy.heads) == 1


@pytest.mark.parametrize(
    "no_proxy, is_direct",
    [("127.0.0.1", True), ("localhost, 127.0.0.1", True), ("*", True), ("example.org", False), ("", False)],
)
def test_no_proxy_names_those_that_are_reached_directly(
    make: Make, server: WebServer, no_proxy: str, is_direct: bool
) -> None:
    with proxy_server() as proxy:
        environ = {"http_proxy": f"http://127.0.0.1:{proxy.port}", "no_proxy": no_proxy}
        make(environ=environ).head(server.url("data.bin"))
        assert (proxy.heads == []) is is_direct


def test_a_part_of_a_host_name_excludes_what_is_below_it(make: Make) -> None:
    client = make(environ={"http_proxy": "http://127.0.0.1:1", "no_proxy": ".example.org"}, retries=1)
    with pytest.raises(Transient, match=r"cannot reach data\.example\.org"):
        client.head("http://data.example.org:1/x")
    with pytest.raises(Transient, match=r"cannot reach 127\.0\.0\.1:1"):
        client.head("http://example.com:1/x")


@pytest.mark.parametrize("variable", ["all_proxy", "ALL_PROXY", "http_proxy"])
def test_a_proxy_may_be_meant_for_everything(make: Make, server: WebServer, variable: str) -> None:
    with proxy_server() as proxy:
        make(environ={variable: f"http://127.0.0.1:{proxy.port}"}).head(server.url("data.bin"))
        assert len(proxy.heads) == 1


def test_http_proxy_in_capitals_does_not_count(make: Make, server: WebServer) -> None:
    make(environ={"HTTP_PROXY": "http://127.0.0.1:1"}).head(server.url("data.bin"))


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@h:1", "https://h:1", "http://h:port", "http://", "http://[::1"])
def test_a_proxy_of_another_kind_is_told(make: Make, proxy: str) -> None:
    with pytest.raises(Unsupported, match="not an http:// one") as caught:
        make(environ={"http_proxy": proxy}).head("http://example.org/")
    assert "hunter2" not in str(caught.value)


# TLS


def test_a_certificate_is_trusted_where_ssl_cert_file_names_it(make: Make, certificate: Certificate) -> None:
    with raw_server(says(answer(b"trusted")), tls=certificate.server()) as server:
        with pytest.raises(SystemFailure, match="cannot be trusted"):
            make().get(server.url())
        assert make(environ={"SSL_CERT_FILE": str(certificate.file)}).get(server.url())[0] == b"trusted"


def test_ssl_cert_file_that_holds_no_certificate_is_told(make: Make, tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing\n")
    for name in ("none.pem", "missing.pem"):
        with pytest.raises(UsageError, match=f"SSL_CERT_FILE: .*{name}"):
            make(environ={"SSL_CERT_FILE": str(tmp_path / name)}).get("https://127.0.0.1:1/")


# Patience


def test_a_busy_server_is_asked_again(client: Client, no_pause: list[float]) -> None:
    with web_server({"data.bin": DATA}, web.is_busy("503 Service Unavailable", 2)) as server:
        assert client.head(server.url("data.bin")).size_bytes == len(DATA)
        assert len(server.requests) == 3
    assert len(no_pause) == 2
    assert 0 < no_pause[0] < no_pause[1] * 2


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_that_stays_busy_is_given_up(client: Client, no_pause: list[float], status: int) -> None:
    with web_server({}, web.is_busy(f"{status} Busy", 100)) as server:
        with pytest.raises(Busy, match=f"{status} Busy"):
            client.head(server.url("data.bin"))
        assert len(server.requests) == 3


def test_the_server_says_in_seconds_when_to_come_back(client: Client, no_pause: list[float]) -> None:
    with web_server({"data.bin": DATA}, web.is_busy("429 Too Many Requests", 1, "7")) as server:
        client.head(server.url("data.bin"))
    assert no_pause == [7.0]


def test_the_server_says_by_a_date_when_to_come_back(client: Client, no_pause: list[float]) -> None:
    when = formatdate(time.time() + 60, usegmt=True)
    with web_server({"data.bin": DATA}, web.is_busy("503 Service Unavailable", 1, when)) as server:
        client.head(server.url("data.bin"))
    assert 30 < no_pause[0] <= 60


@pytest.mark.parametrize("text, after", [("0", 0.0), (formatdate(0, usegmt=True), 0.0), ("soon", None), ("-5", None)])
def test_other_words_about_coming_back(client: Client, text: str, after: float | None) -> None:
    with web_server({}, web.is_busy("503 Service Unavailable", 9, text)) as server:
        with pytest.raises(Busy) as caught:
            client.open(server.url("data.bin"))
        assert caught.value.after_s == after


@pytest.mark.parametrize(
    "text", ["3600", formatdate(time.time() + 7200, usegmt=True), "9" * 400], ids=["seconds", "date", "absurd"]
)
def test_a_server_that_wants_hours_is_told_to_the_user(client: Client, no_pause: list[float], text: str) -> None:
    with web_server({}, web.is_busy("503 Service Unavailable", 9, text)) as server:
        with pytest.raises(SystemFailure, match="asks to wait"):
            client.head(server.url("data.bin"))
        assert len(server.requests) == 1
    assert no_pause == []


def test_pauses_grow_but_not_for_ever() -> None:
    pauses = [pause_s(attempt, Transient("x")) for attempt in range(30)]
    assert pauses[0] < 0.5
    assert max(pauses) <= 15 * 1.25
    assert pause_s(0, Busy("x", after_s=3.5)) == 3.5


@pytest.mark.parametrize(
    "status, kind, words",
    [
        (400, SystemFailure, "400 Why"),
        (401, SystemFailure, "requires a login"),
        (403, SystemFailure, "requires a login"),
        (404, NotFound, "does not exist"),
        (410, NotFound, "does not exist"),
        (451, SystemFailure, "451 Why"),
    ],
)
def test_a_refusal_is_final(client: Client, status: int, kind: type[FairmileError], words: str) -> None:
    with web_server({}, lambda exchange: exchange.head(f"{status} Why", {"Content-Length": "0"})) as server:
        with pytest.raises(kind, match=words) as caught:
            client.open(server.url("data.bin"))
        assert server.url("data.bin") in str(caught.value)
        assert len(server.requests) == 1
        if "login" in words:
            assert "~/.netrc" in (caught.value.hint or "")


# Documents


def test_a_document_is_brought(client: Client) -> None:
    with web_server({"x.json": json.dumps({"a": [1, "ü"]}).encode()}) as server:
        assert client.get_json(server.url("x.json")) == {"a": [1, "ü"]}
        assert server.requests[0].headers["accept"] == "application/json"


def test_a_document_may_come_in_chunks_or_without_a_length(client: Client) -> None:
    for behaviour in (web.sends_chunks, web.tells_no_length):
        with web_server({"x": DATA}, behaviour) as server:
            assert client.get(server.url("x"))[0] == DATA


def test_a_page_instead_of_json_is_told(client: Client) -> None:
    with web_server({}, web.answers_with_a_page) as pages, pytest.raises(Integrity, match="JSON but with text/html"):
        client.get_json(pages.url("x.json"))
    with raw_server(says(answer(b"<html>"))) as server, pytest.raises(Integrity, match="not answer with JSON"):
        client.post_json(server.url("x.json"), {})


def test_a_document_without_end_is_given_up(client: Client) -> None:
    with web_server({"x": DATA}) as server, pytest.raises(SystemFailure, match="more than 1,000 bytes"):
        client.get(server.url("x"), most_bytes=1000)


def test_a_question_is_posted(client: Client) -> None:
    heard: list[str] = []

    def talk(peer: Peer) -> None:
        head = peer.hear()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        heard.append(peer.sock.recv(length, 0x100).decode())  # MSG_WAITALL
        peer.say(answer(b'{"ok": true}'))

    with raw_server(talk) as server:
        assert client.post_json(server.url("x"), {"q": 1}) == {"ok": True}
    assert heard == ['{"q": 1}']


def test_a_refusal_can_be_read(client: Client) -> None:
    with raw_server(says(answer(b"because", "409 Conflict"))) as server:
        head, body = client.ask("GET", server.url("x"))
        assert (head.status, body) == (409, b"because")


# Connections


def count_connections(client: Client, server: WebServer, requests: int) -> int:
    seen: set[int] = set()
    lock = threading.Lock()
    before = server.behaviour

    def behave(exchange: Exchange) -> None:
        with lock:
            seen.add(exchange.connection.getpeername()[1])
        before(exchange)

    server.behaviour = behave
    server.files.setdefault("data.bin", DATA)
    for _ in range(requests):
        assert whole(client, server.url("data.bin")) == DATA
    return len(seen)


def test_a_connection_is_used_again(client: Client, server: WebServer) -> None:
    assert count_connections(client, server, 6) == 1


def test_a_server_that_closes_kept_connections_is_reached_anew(client: Client) -> None:
    def says_one_thing(peer: Peer) -> None:
        peer.hear()
        peer.say(answer(DATA))  # it promises to go on, and hangs up

    with raw_server(says_one_thing) as server:
        for _ in range(5):
            assert whole(client, server.url("x")) == DATA
        assert server.connections == 5


def test_a_server_that_does_not_keep_connections_is_reached_anew(client: Client) -> None:
    with web_server({"data.bin": DATA}, web.tells_no_length) as server:
        assert count_connections(client, server, 3) == 3


def test_a_kept_connection_that_says_nothing_more_is_waited_for_once(make: Make) -> None:
    client = make(stall_s=0.2)

    def falls_silent(peer: Peer) -> None:
        peer.hear()
        peer.say(answer(b"first"))
        peer.hear()
        peer.wait()

    with raw_server(falls_silent) as server:
        bodies = [client.open(server.url("x")) for _ in range(5)]
        assert [read(body) for body in bodies] == [b"first"] * 5
        with pytest.raises(Transient, match="stopped responding"):
            client.open(server.url("x"))
        assert len(server.heads) == 6


def test_a_body_left_in_the_middle_does_not_spoil_the_next_one(client: Client, server: WebServer) -> None:
    body = client.open(server.url("data.bin"))
    body.readinto(memoryview(bytearray(10)))
    body.close()
    assert whole(client, server.url("data.bin"), 7, 20) == DATA[7:20]


def test_a_body_closed_twice_does_not_let_two_readers_share_a_connection(client: Client, server: WebServer) -> None:
    body = client.open(server.url("data.bin"))
    read(body)
    body.close()
    body.close()
    one, other = client.open(server.url("data.bin"), 0, 100), client.open(server.url("data.bin"), 100, 200)
    assert read(other) == DATA[100:200]
    assert read(one) == DATA[:100]


def test_interrupting_a_closed_body_leaves_its_connection_to_others(client: Client, server: WebServer) -> None:
    body = client.open(server.url("data.bin"))
    read(body)
    other = client.open(server.url("data.bin"))
    body.interrupt()
    assert read(other) == DATA


def test_threads_share_a_client(client: Client, server: WebServer) -> None:
    wrong: list[int] = []

    def work(first: int) -> None:
        for start in range(first, first + 15):
            if whole(client, server.url("data.bin"), start, start + 1000) != DATA[start : start + 1000]:
                wrong.append(start)

    threads = [threading.Thread(target=work, args=(number * 100,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
