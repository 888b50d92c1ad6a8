"""A connection begun before anything else is loaded, so that it is there when the first request is ready.

On a long way a handshake takes as long as it takes to load a command with its settings, and nothing of either is
needed for it. No byte is sent until a request takes the connection over.
"""

from __future__ import annotations

import errno
import select
import socket
import threading

TYPE_CHECKING = False  # `typing` takes as long to load as all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

_PORTS = {"http": "80", "https": "443"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_HEAD_START_S = 0.005  # more than an address in numbers needs; a name that takes longer is looked up meanwhile


class _Dial(threading.Thread):
    """Looks a server up and begins to connect, in a thread of its own; the connection itself needs none."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(name="fairmile-dial", daemon=True)
        self._server = host, port
        self._sock: socket.socket | None = None

    def run(self) -> None:
        host, port = self._server
        try:
            # As bytes: the codec of international names, which texts are read with, is slow to load.
            addresses = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        except OSError:
            return
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            if sock.connect_ex(address) in (0, errno.EINPROGRESS):
                self._sock = sock
                return
            sock.close()

    def result(self, timeout_s: float) -> socket.socket | None:
        """Wait until the connection is made; None where it cannot be, which whoever dials again is told."""
        self.join(timeout_s)
        sock = self._sock
        if sock is None:
            return None
        is_over = select.select((), (sock,), (), timeout_s)[1]
        if is_over and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            sock.settimeout(timeout_s)
            return sock
        sock.close()
        if not is_over:
            raise TimeoutError
        return None


_begun: dict[tuple[str, int], _Dial] = {}


def dial(address: str, environ: Mapping[str, str]) -> None:
    """Begin to connect to the server of a web address; not where a proxy or an odd address needs a second look."""
    server = _server(address)
    if server is not None and not any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):
        begun = _begun[server] = _Dial(*server)
        begun.start()
        begun.join(_HEAD_START_S)


def taken(host: str, port: int, timeout_s: float) -> socket.socket | None:
    """Return the connection that was begun to a server, to one caller alone; None where there is none to be had."""
    begun = _begun.pop((host, port), None)
    return begun.result(timeout_s) if begun is not None else None


def _server(address: str) -> tuple[str, int] | None:
    """Return host and port of a plain web address; None for any other, and for a repository of git."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.partition("/")[0].partition(":")
    port = port or _PORTS.get(scheme, "")
    is_host = host.isascii() and host.replace(".", "").replace("-", "").isalnum()
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16
    is_plain = is_host and is_port and scheme in _PORTS and ".git" not in rest
    return (host.lower(), int(port)) if is_plain else None
