"""What the server refuses, whatever is asked."""

from __future__ import annotations

import socket

import httpx
import pytest

from fairmile.web.serve import Serving


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", ""])
def test_a_name_that_is_not_ours_is_refused(client: httpx.Client, host: str) -> None:
    """Another site may point its name at this machine, and its pages would then be of the same origin as ours."""
    assert client.get("/api/search", headers={"Host": host}).status_code in (400, 421)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_our_own_names_are_served(client: httpx.Client, server: Serving, name: str) -> None:
    assert client.get("/api/search", headers={"Host": f"{name}:{server.port}"}).status_code == 200


def test_a_request_needs_one_host(server: Serving) -> None:
    for head in ("GET / HTTP/1.1\r\n\r\n", f"GET / HTTP/1.1\r\nHost: localhost:{server.port}\r\nHost: evil\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode())
            assert connection.recv(100).split()[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_a_page_of_another_site_sends_is_refused(
    client: httpx.Client, method: str, headers: dict[str, str]
) -> None:
    assert client.request(method, "/api/search", headers=headers).status_code == 403


def test_a_link_on_another_site_leads_to_our_page(client: httpx.Client) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/api/search", headers=headers).status_code == 403


def test_a_body_that_is_too_large_is_refused_unread(client: httpx.Client) -> None:
    assert client.post("/api/search", content=b"x" * (5 << 20)).status_code == 413


def test_so_is_one_that_does_not_say_its_size(client: httpx.Client) -> None:
    answer = client.post("/api/search", content=(b"x" * (1 << 20) for _ in range(6)))
    assert answer.status_code in (405, 413)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/vendor/%00",
        "/static/vendor/manifest.json/..",
    ],
)
def test_no_path_leads_out_of_the_static_files(server: Serving, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        assert connection.recv(100).split()[1] in (b"404", b"400")


@pytest.mark.parametrize("path", ["/", "/api/search", "/static/app.js", "/nothing"])
def test_every_answer_has_the_headers_that_protect_a_browser(client: httpx.Client, path: str) -> None:
    headers = client.get(path).headers
    assert "unsafe" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "text", [b"", b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_harms_nothing(server: Serving, client: httpx.Client, text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(text)
    assert client.get("/api/search").status_code == 200
