"""A server on a free loopback port that says exactly the bytes it is told to, in threads."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Talk = Callable[["Peer"], None]


@dataclass
class Peer:
    """One connection as the server sees it; `heads` are the requests that came on it."""

    server: RawServer
    sock: socket.socket
    number: int
    heads: list[str] = field(default_factory=list)

    def hear(self) -> str:
        """Return the head of the next request; an empty text when the other side is gone."""
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            more = self.sock.recv(1)
            if not more:
                return ""
            data += more
        self.heads.append(data.decode("latin-1"))
        self.server.heads.append(self.heads[-1])
        return self.heads[-1]

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait(self) -> None:
        """Say nothing until the server ends or the other side hangs up."""
        with contextlib.suppress(OSError):
            while self.sock.recv(1 << 16):
                pass


@dataclass
class RawServer:
    """Runs `talk` for each connection; `heads` are all requests."""

    talk: Talk
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    heads: list[str] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, 0), family=family)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, path: str = "") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}/{path}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self.connections += 1
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with self._lock:
            self._open.add(sock)
        try:
            with contextlib.suppress(OSError), sock:
                spoken = self.tls.wrap_socket(sock, server_side=True) if self.tls is not None else sock
                with spoken:
                    self.talk(Peer(self, spoken, number))
        finally:
            with self._lock:
                self._open.discard(sock)


@contextlib.contextmanager
def raw_server(talk: Talk, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[RawServer]:
    """Run a server for the length of a block."""
    server = RawServer(talk, tls, host)
    try:
        yield server
    finally:
        server.close()


def says(*answers: bytes) -> Talk:
    """Answer the requests of each connection one after the other, then hang up."""

    def talk(peer: Peer) -> None:
        for answer in answers:
            if not peer.hear():
                return
            peer.say(answer)

    return talk


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """Return an answer as a good server writes it; `content_length` is that of the body unless given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("content-length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body
