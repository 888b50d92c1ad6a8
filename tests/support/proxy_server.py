"""A small proxy: forwards requests with a whole address, and tunnels after CONNECT."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from raw_server import Peer, RawServer, raw_server


def _forward(peer: Peer, there: dict[str, int], login: str) -> None:
    while head := peer.hear():
        if login and f"Proxy-Authorization: {login}\r\n" not in head:
            peer.say(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            continue
        method, target, _ = head.split(" ", 2)
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        port = there.get(parts.hostname or "", parts.port or 80)
        with socket.create_connection(("127.0.0.1", port)) as onward:
            if method == "CONNECT":
                peer.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = target.partition("://")[2].partition("/")[2]
                kept = [line for line in head.split("\r\n")[1:] if not line.lower().startswith("proxy-")]
                onward.sendall("\r\n".join([f"{method} /{path} HTTP/1.1", *kept]).encode("latin-1"))
            _pump(peer.sock, onward)
            return


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until either side ends."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=carry, args=(other, one), daemon=True)
    back.start()
    carry(one, other)
    back.join(10)


@contextlib.contextmanager
def proxy_server(there: dict[str, int] | None = None, *, login: str = "") -> Iterator[RawServer]:
    """Run a proxy for the length of a block; `there` says which port of this machine a host name means.

    `heads` are the requests it got, those inside a tunnel left out. With `login` it wants that header's value.
    """
    with raw_server(lambda peer: _forward(peer, there or {}, login)) as server:
        yield server
