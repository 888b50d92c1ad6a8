"""A web server that replays prepared answers and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from fairmile.base.commands import Here
from fairmile.base.digest import sha256_hex
from fairmile.transfer.credentials import Credentials
from fairmile.transfer.fetchers.http import Http
from fairmile.transfer.remote import Body, Context, Remote
from fairmile.transfer.settings import Settings


@dataclass(frozen=True)
class Reply:
    """What to answer; a body that is no bytes is sent as JSON."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Asked:
    """A request as it came; header names are lower case."""

    method: str
    target: str
    headers: Mapping[str, str]


class Replay:
    """Answers each target (path and query, as written in the request) from `replies`, 404 otherwise.

    Byte ranges are honoured. A reply with `needs` in its headers is given only to requests that carry this
    Authorization; others get 401.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[Asked] = []
        replay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                replay.asked.append(
                    Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
                )
                reply = replay.replies.get(self.path, Reply(b"nothing here", 404))
                headers = dict(reply.headers)
                needs = headers.pop("needs", None)
                if needs is not None and self.headers.get("Authorization") != needs:
                    reply, headers = Reply(b"who are you?", 401), {}
                body, status = reply.content(), reply.status
                span = self.headers.get("Range", "").removeprefix("bytes=")
                if span and status == 200:
                    first, _, last = span.partition("-")
                    start, stop = int(first), int(last) + 1 if last else len(body)
                    headers["Content-Range"] = f"bytes {start}-{min(stop, len(body)) - 1}/{len(body)}"
                    body, status = body[start:stop], 206
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a reader who leaves in the middle is no fault of the server

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Routed:
    """A fetcher that finds files and the http one that reads them, used together as a transfer uses them."""

    def __init__(self, fetcher: Any, http: Http) -> None:
        self._fetcher = fetcher
        self._http = http

    def find(self, address: str) -> list[Remote]:
        found: list[Remote] = (self._http if address.startswith("http") else self._fetcher).find(address)
        return found

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        if not remote.address.startswith("http"):
            (remote,) = self.find(remote.address)
        return self._http.open(remote, start, stop)

    def close(self) -> None:
        self._http.close()


def tagged(data: bytes) -> Reply:
    """Return the answer with these bytes and an ETag that changes with them."""
    return Reply(data, headers={"ETag": f'"{sha256_hex(data)}"'})


def context(environ: Mapping[str, str], **settings: Any) -> Context:
    """Return what a fetcher is given, with an environment of its own."""
    return Context(environ, Here(), Credentials(environ), Settings(**{"retries": 2, **settings}))


def read_all(fetcher: Any, remote: Any, start: int = 0, stop: int | None = None) -> bytes:
    """Return the bytes of a remote, or a range of them."""
    body = fetcher.open(remote, start, stop)
    data, buffer = b"", memoryview(bytearray(64 << 10))
    try:
        while count := body.readinto(buffer):
            data += buffer[:count]
    finally:
        body.close()
    return data
