"""One HTTP/1.1 connection: connect (directly or by a proxy), send a request, read an answer.

The standard http.client reads headers with the email package, which costs more CPU than all the rest of a small
request; this reader is a third of it (speed/transfer.py, case `small`).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairmile.base.errors import FairmileError, SystemFailure, Transient
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.ahead import taken
from fairmile.transfer.credentials import shown_address

if TYPE_CHECKING:
    import ssl

_LONGEST_HEAD = 128 << 10
_READ = 64 << 10
_MOST_LINES = 1000  # of trailers, and of interim answers
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Endpoint(NamedTuple):
    """Where a connection goes: the server, and the proxy on the way to it."""

    scheme: str
    host: str
    port: int
    proxy: tuple[str, int] | None = None
    proxy_authorization: str = ""

    def __repr__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class Head(NamedTuple):
    """Status and headers of an answer; header names are lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    keeps_alive: bool


class Connection:
    """A connection that serves one request after the other; `usable` says whether another one may follow."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, buffer_bytes: int, tls: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self.usable = True
        self.requests = 0
        self._rest = b""
        # What is still to come of the current answer: a number of bytes, or None until the connection ends.
        self._left: int | None = 0
        self._chunked = False
        self._is_cut = False
        self._timeout_s = timeout_s
        self._sock = self._connect(timeout_s, buffer_bytes, tls)

    def _connect(self, timeout_s: float, buffer_bytes: int, tls: ssl.SSLContext | None) -> socket.socket:
        end = self.endpoint
        host, port = end.proxy or (end.host, end.port)
        try:
            sock = _dial(host, port, timeout_s, buffer_bytes)
        except OSError as error:
            raise Transient(
                f"cannot reach {host}:{port}: {_why(error)}", hint="check the address and the network"
            ) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if end.scheme == "https":
                if end.proxy is not None:
                    self._sock = sock
                    self._tunnel()
                assert tls is not None
                sock = tls.wrap_socket(sock, server_hostname=end.host)
        except FairmileError:  # some are OSErrors too
            sock.close()
            raise
        except OSError as error:
            sock.close()
            if verdict := getattr(error, "verify_message", ""):  # of an ssl.SSLCertVerificationError
                raise SystemFailure(
                    f"the certificate of {end} cannot be trusted: {verdict}",
                    hint="check the address and the clock; SSL_CERT_FILE names another set of authorities",
                ) from error
            raise Transient(f"cannot talk to {end}: {_why(error)}") from error
        except BaseException:
            sock.close()
            raise
        return sock

    def _tunnel(self) -> None:
        end = self.endpoint
        name = f"[{end.host}]" if ":" in end.host else end.host
        lines = [f"CONNECT {name}:{end.port} HTTP/1.1", f"Host: {name}:{end.port}"]
        if end.proxy_authorization:
            lines.append(f"Proxy-Authorization: {end.proxy_authorization}")
        self._sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        head = self.read_head("CONNECT")
        if head.status != 200:
            kind = Transient if head.status >= 500 else SystemFailure
            raise kind(
                f"the proxy {end.proxy[0] if end.proxy else ''} refuses a connection to {end.host}: "
                f"{head.status} {head.reason}",
                hint="check https_proxy and no_proxy",
            )
        self._rest, self._left = b"", 0

    def send(self, request: bytes) -> None:
        """Send the head of a request."""
        self.requests += 1
        try:
            self._sock.sendall(request)
        except OSError as error:
            self.close()
            raise Transient(f"{self.endpoint} closed the connection: {_why(error)}") from error

    def send_body(self, chunks: Iterable[bytes]) -> None:
        """Send what follows the head; a server that refuses it before its end can still say why."""
        for chunk in chunks:
            try:
                self._sock.sendall(chunk)
            except OSError:  # what the server said before it hung up is read by `read_head`
                self._is_cut = True
                return

    def read_head(self, method: str) -> Head:
        """Read the head of the answer; its body is then what `readinto` gives."""
        for _ in range(_MOST_LINES):
            head = self._read_one_head()
            if head.status >= 200 or head.status == 101:
                break
        headers = head.headers
        if method == "HEAD" or head.status in (204, 304) or (method == "CONNECT" and head.status == 200):
            self._left, self._chunked = 0, False
        elif coding := headers.get("transfer-encoding", "").lower():
            # Nobody offered to take another one: its bytes would not be those of the file.
            if any(each.strip() not in ("chunked", "identity", "") for each in coding.split(",")):
                self.close()
                raise SystemFailure(
                    f"{self.endpoint} sends the transfer encoding {coding[:60]!r}, although none was requested"
                )
            self._left, self._chunked = (0, True) if "chunked" in coding else (None, False)
        elif "content-length" in headers:
            text = headers["content-length"].split(",")[0].strip()
            length = number(text)
            if length is None:
                self.close()
                raise Transient(f"{self.endpoint} announces the length {text[:60]!r}, which is not a number")
            self._left, self._chunked = length, False
        else:
            self._left, self._chunked = None, False
        self.usable = head.keeps_alive and self._left is not None and not self._is_cut
        return head

    def _read_one_head(self) -> Head:
        data = self._rest
        end = data.find(b"\r\n\r\n")
        until = time.monotonic() + self._timeout_s
        while end < 0:
            if data and time.monotonic() > until:
                self.close()
                raise Transient(f"{self.endpoint} sends its headers too slowly")
            if len(data) > _LONGEST_HEAD:
                self.close()
                raise Transient(f"{self.endpoint} sends headers without end")
            more = self._recv(_READ)
            if not more:
                first = not data
                self.close()
                raise Transient(
                    f"{self.endpoint} closed the connection " + ("without an answer" if first else "in its headers")
                )
            data += more
            end = data.find(b"\r\n\r\n")
        self._rest = data[end + 4 :]
        lines = data[:end].decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        status, _, reason = rest.partition(" ")
        code = number(status)
        if not version.startswith("HTTP/1.") or code is None:
            self.close()
            raise Transient(f"{self.endpoint} does not answer in HTTP: {lines[0][:60]!r}")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                key = name.lower()
                value = value.strip()
                headers[key] = f"{headers[key]}, {value}" if key in headers else value
        token = headers.get("connection", "").lower()
        keeps = "close" not in token if version != "HTTP/1.0" else "keep-alive" in token
        return Head(code, reason, headers, keeps)

    def readinto(self, buffer: memoryview) -> int:
        """Read bytes of the body and return how many; 0 at its end. A body that ends early raises Transient."""
        if self._chunked and self._left == 0 and not self._next_chunk():
            return 0
        left = self._left
        if left == 0:
            return 0
        if left is not None and len(buffer) > left:
            buffer = buffer[:left]
        if self._rest:
            count = min(len(self._rest), len(buffer))
            buffer[:count] = self._rest[:count]
            self._rest = self._rest[count:]
        else:
            try:
                count = self._sock.recv_into(buffer)
            except OSError as error:
                self.close()
                raise Transient(f"{self.endpoint} {_stalled(error)}") from error
        if count == 0:
            self.close()
            if left is None:
                self._left = 0
                return 0
            raise Transient(f"{self.endpoint} closed the connection {left:,} bytes before the announced end")
        if left is not None:
            self._left = left - count
        return count

    def _next_chunk(self) -> bool:
        """Go on to the next chunk; False at the last one."""
        line = self._line()
        if not line and self.requests:  # the line that ends the chunk before
            line = self._line()
        size = line.split(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            self.close()
            raise Transient(f"{self.endpoint} sends a broken chunk: {size[:20]!r}")
        self._left = int(size, 16)
        if self._left == 0:
            self._end_chunks()
            return False
        return True

    def _end_chunks(self) -> None:
        for _ in range(_MOST_LINES):
            if not self._line():
                self._chunked = False
                return
        self.close()
        raise Transient(f"{self.endpoint} sends trailers without end")

    def _line(self) -> bytes:
        until = time.monotonic() + self._timeout_s
        while (end := self._rest.find(b"\r\n")) < 0:
            more = self._recv(_READ)
            if not more or len(self._rest) > _LONGEST_HEAD or time.monotonic() > until:
                self.close()
                raise Transient(f"{self.endpoint} closed the connection in the middle of an answer")
            self._rest += more
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    def _recv(self, most: int) -> bytes:
        try:
            return self._sock.recv(most)
        except OSError as error:
            self.close()
            raise Transient(f"{self.endpoint} {_stalled(error)}") from error

    @property
    def is_drained(self) -> bool:
        """Tell whether the answer was read to its end, so that the connection can serve another request."""
        return self._left == 0 and not self._chunked

    def wait_s(self, seconds: float) -> None:
        """Set how long to wait for the next byte."""
        self._timeout_s = seconds
        self._sock.settimeout(seconds)

    def interrupt(self) -> None:
        """Wake up whoever waits for bytes on this connection, from another thread."""
        self.usable = False
        try:
            # Not that of a TLS socket, which would hand out cipher text to the reader from then on.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self.usable = False
        self._sock.close()


def number(text: str) -> int | None:
    """Return the number that a header states, or None when it states none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _dial(host: str, port: int, timeout_s: float, buffer_bytes: int) -> socket.socket:
    if not buffer_bytes:
        return taken(host, port, timeout_s) or socket.create_connection((host, port), timeout_s)
    # A receive buffer counts for the window only when it is set before the connection is made.
    last: OSError = OSError(f"no address for {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
            sock.settimeout(timeout_s)
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            last = error
    raise last


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return shown_address(error.strerror or str(error))


def _stalled(error: OSError) -> str:
    return "stopped responding" if isinstance(error, TimeoutError) else f"broke off: {_why(error)}"
