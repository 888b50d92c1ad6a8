"""http:// against a server of the tests' own; test_conformance_http.py does the same with nginx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from urllib.parse import quote

import pytest
from web_server import Exchange, WebServer, web_server

from fairmile.base.commands import Here
from fairmile.testing.fetchers import RangeFetcherTests, Served
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.remote import Context, RangeFetcher
from fairmile.transfer.settings import Settings


@pytest.fixture
def fetcher() -> Iterator[Http]:
    with closing(Http(Context({}, Here(), Credentials({}), Settings(retries=1)))) as made:
        yield made


def served(server: WebServer, fetcher: Http, *, login: str = "") -> Served[RangeFetcher]:
    def publish(files: Mapping[str, bytes]) -> str:
        [(path, data)] = files.items()
        server.files[path] = data
        return server.url(quote(path)).replace("//", f"//{login}", 1)

    missing = server.url("nowhere/lost.bin?token=hunter2").replace("//", f"//{login}", 1)
    return Served(fetcher, publish, missing, "hunter2")


@pytest.mark.thorough
class TestWithARedirectToEachFile(RangeFetcherTests):
    folders = False  # a web address means one file

    @pytest.fixture
    def served(self, fetcher: Http) -> Iterator[Served[RangeFetcher]]:
        def redirect(exchange: Exchange) -> None:
            path, data = exchange.request.path, exchange.server.files.get(exchange.request.path.removeprefix("at/"))
            if data is None:
                exchange.head("404 Not Found", {"Content-Length": "0"})
            elif path.startswith("at/"):
                exchange.data = data
                exchange.etag = str(hash(data))
                exchange.answer()
            else:
                exchange.head("302 Found", {"Location": f"/at/{quote(path)}", "Content-Length": "0"})

        with web_server({}, redirect) as server:
            yield served(server, fetcher, login="me:hunter2@")


@pytest.mark.thorough
class TestWithoutValidators(RangeFetcherTests):
    folders = False
    validators = False

    @pytest.fixture
    def served(self, fetcher: Http) -> Iterator[Served[RangeFetcher]]:
        def without_etag(exchange: Exchange) -> None:
            if exchange.request.path in exchange.server.files:
                exchange.answer(etag="")
            else:
                exchange.head("404 Not Found", {"Content-Length": "0"})

        with web_server({}, without_etag) as server:
            yield served(server, fetcher)


@pytest.mark.parametrize(
    "disposition, name",
    [
        ("", "from-address.bin"),
        ("inline", "from-address.bin"),
        ('attachment; filename="data.csv"', "data.csv"),
        ("attachment; filename=data.csv", "data.csv"),
        ('attachment; filename="two words; and more.csv"', "two words; and more.csv"),
        ("attachment; filename*=UTF-8''%C3%BC%20x.csv", "ü x.csv"),
        ('attachment; filename="ü.csv"', "ü.csv"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ('attachment; filename="C:\\\\Users\\\\me\\\\data.csv"', "data.csv"),
        ('attachment; filename=".."', "from-address.bin"),
        ('attachment; filename=""', "from-address.bin"),
        ('attachment; filename="a\x1b[2Jb.csv"', "a[2Jb.csv"),
        ("attachment; filename*=nonsense''%FF.csv", None),
        ('attachment; filename="unclosed.csv', None),
    ],
)
def test_a_file_is_called_what_the_server_says_or_by_its_address(
    fetcher: Http, disposition: str, name: str | None
) -> None:
    def disposed(exchange: Exchange) -> None:
        line = f"Content-Disposition: {disposition}\r\n".encode() if disposition else b""
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n" + line + b"\r\n")

    with web_server({}, disposed) as server:
        [found] = fetcher.find(server.url("a/from-address.bin?x=y#z"))
        assert found.size_bytes == 3
        assert "/" not in found.path
        assert found.path == name or name is None


@pytest.mark.parametrize(
    "path, name", [("a/b.bin", "b.bin"), ("a/", "a"), ("", "index.html"), ("a%20b%2Fc", "c"), ("%C3%BC", "ü")]
)
def test_without_a_name_the_end_of_the_address_is_one(fetcher: Http, path: str, name: str) -> None:
    with web_server({}, lambda exchange: exchange.head("200 OK", {"Content-Length": "3"})) as server:
        [found] = fetcher.find(server.url(path))
        assert found.path == name


def test_what_is_known_of_a_file_goes_along_with_every_request(fetcher: Http) -> None:
    with web_server({"x": b"hello"}) as server:
        [found] = fetcher.find(server.url("x"))
        with closing(fetcher.open(found, 1, 3)) as body:
            assert body.validator == found.validator
        assert server.requests[-1].headers["if-range"] == found.validator
        assert server.requests[-1].headers["range"] == "bytes=1-2"
