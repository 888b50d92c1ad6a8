"""Requests answered by what a test plans: a refusal, a pause, a connection that breaks."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BREAK = 0  # in place of a status: the connection ends without an answer


@dataclass
class Fault:
    """An answer instead of the right one, to the first requests whose line matches `when`."""

    when: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    times: int = 1


@dataclass
class Recorded:
    """What a server was asked: the lines, the headers and the bodies of its requests."""

    address: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def lines(self, start: str = "") -> list[str]:
        """Return the requests as METHOD PATH."""
        return [line for line, _, _ in self.requests if line.startswith(start)]

    def answer(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Return status, type and body of the right answer."""
        raise NotImplementedError


class Server(ThreadingHTTPServer):
    daemon_threads = True
    recorded: Recorded


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        assert isinstance(self.server, Server)
        recorded, line = self.server.recorded, f"{self.command} {self.path}"
        for fault in recorded.faults:
            if fault.times and re.search(fault.when, line):
                fault.times -= 1
                if fault.status == BREAK:
                    self.rfile.read(min(10, int(self.headers.get("Content-Length") or 0)))
                    self.close_connection = True
                    return
                self._say(fault.status, fault.headers, fault.body, close=True)
                return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        recorded.requests.append((line, headers, body))
        status, kind, answer = recorded.answer(line, headers, body)
        self._say(status, {"Content-Type": kind}, answer)

    def _say(self, status: int, headers: dict[str, str], body: bytes, *, close: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if close:  # before the request is read to its end
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(recorded: Recorded) -> Iterator[str]:
    """Serve on a free loopback port as long as the block."""
    with Server(("127.0.0.1", 0), _Handler) as server:
        server.recorded = recorded
        recorded.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield recorded.address
        finally:
            server.shutdown()
            thread.join()
