"""A web server that behaves, or misbehaves in one chosen way: on a free loopback port, in threads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

Behaviour = Callable[["Exchange"], None]
_CHUNK = 64 << 10


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    number: int

    @property
    def span(self) -> tuple[int, int | None] | None:
        """First byte and last byte asked for; None without a range."""
        text = self.headers.get("range", "")
        if not text.startswith("bytes="):
            return None
        first, _, last = text[6:].partition("-")
        return int(first), int(last) if last else None


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    server: WebServer
    request: Request
    connection: socket.socket
    data: bytes
    etag: str
    sent_bytes: int = 0
    is_open: bool = True

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            self.connection.sendall(data[start : start + _CHUNK])

    def head(self, status: str, headers: dict[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.connection.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode())

    def body(self, data: bytes) -> None:
        if self.request.method == "GET":
            self.sent_bytes += len(data)
            self.server.count(len(data))
            self.send(data)

    def answer(
        self, *, data: bytes | None = None, announce: int | None = None, ranges: bool = True, etag: str | None = None
    ) -> None:
        """Answer as a good server does, but for what is changed here."""
        content = self.data if data is None else data
        tag = self.etag if etag is None else etag
        headers = {"ETag": f'"{tag}"'} if tag else {}
        span = self.request.span if ranges else None
        fresh = self.request.headers.get("if-range", "") in ("", f'"{tag}"')
        if ranges:
            headers["Accept-Ranges"] = "bytes"
        if span is not None and fresh:
            first, last = span
            if first >= len(self.data):
                self.head(
                    "416 Range Not Satisfiable", {"Content-Range": f"bytes */{len(self.data)}", "Content-Length": "0"}
                )
                return
            stop = len(self.data) if last is None else min(last + 1, len(self.data))
            headers |= {"Content-Range": f"bytes {first}-{stop - 1}/{len(self.data)}"}
            content = content[first:stop]
            status = "206 Partial Content"
        else:
            status = "200 OK"
        headers["Content-Length"] = str(len(content) if announce is None else announce)
        self.head(status, headers)
        self.body(content)

    def close(self) -> None:
        self.is_open = False


@dataclass
class WebServer:
    """Serves `files` by path; `behaviour` answers every GET, or those of one path."""

    files: dict[str, bytes] = field(default_factory=dict)
    behaviour: Behaviour = Exchange.answer
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    sent_bytes: int = 0
    most_bytes: int = 1 << 60  # `paced` sends no more than this and a piece until it is raised
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def count(self, sent: int) -> None:
        with self._lock:
            self.sent_bytes += sent

    def wait(self, seconds: float) -> bool:
        """Do nothing for a while, or until the server ends; return whether it does."""
        return self._stop.wait(seconds)

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            connections, threads = list(self._connections), list(self._threads)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._connections.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        rest = b""
        try:
            with connection:
                while not self._stop.is_set():
                    while b"\r\n\r\n" not in rest:
                        more = connection.recv(_CHUNK)
                        if not more:
                            return
                        rest += more
                    head, _, rest = rest.partition(b"\r\n\r\n")
                    if not self._one(connection, head.decode("latin-1")):
                        return
        except OSError:
            return
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _one(self, connection: socket.socket, head: str) -> bool:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        path = unquote(target.split("?")[0]).lstrip("/")
        with self._lock:
            request = Request(method, path, headers, len(self.requests))
            self.requests.append(request)
        data = self.files.get(path)
        exchange = Exchange(self, request, connection, data or b"", hashlib.md5(data or b"").hexdigest())
        behaviour = self.behaviours.get(path, self.behaviour)
        if data is None and behaviour is Exchange.answer:
            exchange.head("404 Not Found", {"Content-Length": "0"})
        else:
            behaviour(exchange)
        return exchange.is_open


@contextlib.contextmanager
def web_server(files: dict[str, bytes], behaviour: Behaviour = Exchange.answer) -> Iterator[WebServer]:
    """Run a server for the length of a block."""
    server = WebServer(dict(files), behaviour)
    try:
        yield server
    finally:
        server.close()


# What may go wrong, each a behaviour; HEAD is answered well, as most broken servers do.


def _only_get(misbehave: Behaviour) -> Behaviour:
    def behave(exchange: Exchange) -> None:
        if exchange.request.method == "HEAD":
            exchange.answer()
        else:
            misbehave(exchange)

    return behave


def drops(after_bytes: int, times: int | None = None) -> Behaviour:
    """Every GET (the first `times`) breaks off after so many bytes."""
    left = [times if times is not None else 1 << 60]

    def misbehave(exchange: Exchange) -> None:
        if left[0] <= 0:
            exchange.answer()
            return
        left[0] -= 1
        span = exchange.request.span or (0, None)
        first, stop = span[0], len(exchange.data) if span[1] is None else span[1] + 1
        status, headers = "200 OK", {"Content-Length": str(stop - first), "ETag": f'"{exchange.etag}"'}
        if exchange.request.span:
            status = "206 Partial Content"
            headers["Content-Range"] = f"bytes {first}-{min(stop, len(exchange.data)) - 1}/{len(exchange.data)}"
            headers["Content-Length"] = str(min(stop, len(exchange.data)) - first)
        exchange.head(status, headers)
        exchange.body(exchange.data[first : min(stop, first + after_bytes)])
        exchange.close()

    return _only_get(misbehave)


def stalls(after_bytes: int, when: Callable[[Request], bool] = lambda request: True) -> Behaviour:
    """A GET sends so many bytes and then nothing for ever."""

    def misbehave(exchange: Exchange) -> None:
        if not when(exchange.request):
            exchange.answer()
            return
        span = exchange.request.span or (0, None)
        first, stop = span[0], len(exchange.data) if span[1] is None else min(span[1] + 1, len(exchange.data))
        headers = {"Content-Length": str(stop - first), "ETag": f'"{exchange.etag}"'}
        if exchange.request.span:
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(exchange.data)}"
        exchange.head("206 Partial Content" if exchange.request.span else "200 OK", headers)
        exchange.body(exchange.data[first : min(first + after_bytes, stop)])
        exchange.server.wait(600)
        exchange.close()

    return _only_get(misbehave)


def flips(offset: int) -> Behaviour:
    """One byte of the content is wrong."""

    def misbehave(exchange: Exchange) -> None:
        data = bytearray(exchange.data)
        data[offset] ^= 0x40
        exchange.answer(data=bytes(data))

    return _only_get(misbehave)


def shortens(missing: int) -> Behaviour:
    """The body ends before the announced length."""

    def misbehave(exchange: Exchange) -> None:
        exchange.answer(data=exchange.data[:-missing], announce=len(exchange.data), ranges=False)
        exchange.close()

    return _only_get(misbehave)


def announces(length: int) -> Behaviour:
    """The announced length is not that of the content; HEAD lies as well."""

    def misbehave(exchange: Exchange) -> None:
        exchange.answer(data=exchange.data[:length], announce=length, ranges=False)

    return misbehave


def redirects_in_a_loop(exchange: Exchange) -> None:
    exchange.head("302 Found", {"Location": f"/{exchange.request.path}", "Content-Length": "0"})


@_only_get
def answers_other_bytes(exchange: Exchange) -> None:
    """206 with the right header and bytes of another place."""
    span = exchange.request.span
    if span is None or span[0] == 0:
        exchange.answer()
    else:
        exchange.answer(data=exchange.data[::-1])


@_only_get
def names_another_range(exchange: Exchange) -> None:
    """206 whose own header says that it is another range."""
    span = exchange.request.span
    if span is None or span[0] == 0:
        exchange.answer()
        return
    piece = exchange.data[:1000]
    headers = {"Content-Range": f"bytes 0-999/{len(exchange.data)}", "Content-Length": str(len(piece))}
    exchange.head("206 Partial Content", headers)
    exchange.body(piece)


def ignores_ranges(exchange: Exchange) -> None:
    exchange.answer(ranges=False)


def is_busy(status: str, times: int, retry_after: str = "") -> Behaviour:
    """The first `times` requests of any method are turned away."""
    left = [times]
    lock = threading.Lock()

    def misbehave(exchange: Exchange) -> None:
        with lock:
            left[0] -= 1
            busy = left[0] >= 0
        if busy:
            headers = {"Content-Length": "0"} | ({"Retry-After": retry_after} if retry_after else {})
            exchange.head(status, headers)
        else:
            exchange.answer()

    return misbehave


def answers_with_a_page(exchange: Exchange) -> None:
    page = b"<!DOCTYPE html><html><body>Please log in</body></html>"
    exchange.head("200 OK", {"Content-Type": "text/html", "Content-Length": str(len(page))})
    exchange.body(page)


def changes_after(requests: int, new: bytes) -> Behaviour:
    """From the given GET on the file is another one, of the same size."""
    seen = [0]

    @_only_get
    def misbehave(exchange: Exchange) -> None:
        seen[0] += 1
        if seen[0] > requests:
            exchange.data, exchange.etag = new, hashlib.md5(new).hexdigest()
        exchange.answer()

    return misbehave


def tells_no_length(exchange: Exchange) -> None:
    """The body ends with the connection."""
    exchange.head("200 OK", {"Connection": "close"})
    exchange.body(exchange.data)
    exchange.close()


def sends_chunks(exchange: Exchange) -> None:
    exchange.head("200 OK", {"Transfer-Encoding": "chunked"})
    if exchange.request.method == "GET":
        for start in range(0, len(exchange.data), 10_000):
            piece = exchange.data[start : start + 10_000]
            exchange.body(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        exchange.body(b"0\r\n\r\n")


def wants_a_login(exchange: Exchange) -> None:
    exchange.head("401 Unauthorized", {"WWW-Authenticate": "Basic", "Content-Length": "0"})


def is_slow(bytes_per_s: float, behaviour: Behaviour = Exchange.answer) -> Behaviour:
    """Sends in small pieces with pauses between."""

    def misbehave(exchange: Exchange) -> None:
        def send(data: bytes) -> None:
            for start in range(0, len(data), 16 << 10):
                piece = data[start : start + (16 << 10)]
                exchange.connection.sendall(piece)
                time.sleep(len(piece) / bytes_per_s)

        exchange.send = send  # type: ignore[method-assign]
        behaviour(exchange)

    return _only_get(misbehave)


def paced(bytes_per_s: float = float("inf"), data: bytes | None = None, at_most: int | None = None) -> Behaviour:
    """Sends at this pace over all connections together, `data` instead of the file where given.

    After `at_most` bytes in all it falls silent. `sent_bytes` counts what really left, also of an answer that nobody
    waited for.
    """
    lock = threading.Lock()
    due = [0.0]
    left = [at_most if at_most is not None else 1 << 60]
    piece_bytes = (16 if bytes_per_s < float("inf") else 256) << 10

    def behave(exchange: Exchange) -> None:
        server = exchange.server
        if exchange.request.path not in server.files:
            exchange.head("404 Not Found", {"Content-Length": "0"})
            return
        if data is not None:
            exchange.data, exchange.etag = data, f"{len(data)}-1"

        def body(content: bytes) -> None:
            if exchange.request.method != "GET":
                return
            for start in range(0, len(content), piece_bytes):
                piece = content[start : start + piece_bytes]
                with lock:
                    sent, left[0] = piece[: left[0]], max(left[0] - len(piece), 0)
                    now = time.monotonic()
                    due[0] = max(due[0], now) + len(sent) / bytes_per_s
                    pause_s = due[0] - now
                server.wait(pause_s)
                while server.sent_bytes >= server.most_bytes and not server.wait(0.01):
                    pass
                exchange.connection.sendall(sent)
                server.count(len(sent))
                if len(sent) < len(piece):
                    server.wait(600)
                    exchange.close()
                    return

        exchange.body = body  # type: ignore[method-assign]
        exchange.answer()

    return behave


def never_ends(status: str = "200 OK") -> Behaviour:
    """A GET sends the file, and then more of the same for ever, without announcing a length."""

    def misbehave(exchange: Exchange) -> None:
        exchange.head(status, {"Connection": "close"})
        exchange.body(exchange.data)
        while exchange.request.method == "GET":  # until the reader hangs up
            exchange.body(bytes(_CHUNK))

    return misbehave


def trickles(after_bytes: int, when: Callable[[Request], bool] = lambda request: True) -> Behaviour:
    """A GET sends so many bytes at once, and then one byte at a time for ever."""

    def misbehave(exchange: Exchange) -> None:
        if not when(exchange.request):
            exchange.answer()
            return
        span = exchange.request.span or (0, None)
        first, stop = span[0], len(exchange.data) if span[1] is None else min(span[1] + 1, len(exchange.data))
        headers = {"Content-Length": str(stop - first), "ETag": f'"{exchange.etag}"'}
        if exchange.request.span:
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(exchange.data)}"
        exchange.head("206 Partial Content" if exchange.request.span else "200 OK", headers)
        start = min(first + after_bytes, stop)
        exchange.body(exchange.data[first:start])
        for at in range(start, stop):
            if exchange.server.wait(0.05):
                return
            exchange.body(exchange.data[at : at + 1])

    return _only_get(misbehave)


def encodes(encoding: str, pack: Callable[[bytes], bytes], *, ranges: bool = False) -> Behaviour:
    """Everything comes compressed, whatever the request accepts; ranges are those of the packed bytes."""

    pack = functools.cache(pack)  # a server that works on each answer anew would be a slow one, too

    def misbehave(exchange: Exchange) -> None:
        packed = pack(exchange.data)
        headers = {"Content-Encoding": encoding, "ETag": '"packed"'}
        span = exchange.request.span if ranges else None
        if span is not None:
            first, stop = span[0], min(len(packed), (span[1] or len(packed)) + 1)
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(packed)}"
            packed = packed[first:stop]
        headers["Content-Length"] = str(len(packed))
        exchange.head("206 Partial Content" if span else "200 OK", headers)
        exchange.body(packed)

    return misbehave
