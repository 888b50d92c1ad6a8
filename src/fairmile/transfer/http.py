"""The HTTP client: pooled connections, redirects, logins, proxies, polite answers to a busy server."""

from __future__ import annotations

import json
import re
import threading
import time
from binascii import b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from fairmile.base.errors import Integrity, NotFound, SystemFailure, Transient, Unsupported, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.registry import Plugin, Registry
from fairmile.transfer.credentials import shown_address, without_login
from fairmile.transfer.flow import Flow
from fairmile.transfer.remote import Body, Context
from fairmile.transfer.wire import Connection, Endpoint, Head, number

if TYPE_CHECKING:
    import ssl

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOST_REDIRECTS = 10
_MOST_WAIT_S = 120.0
_DOCUMENT_BYTES = 64 << 20
_IDLE_PER_ENDPOINT = 64
_CHUNK = 1 << 20
# What a Fairmile server says stands between a reader and a file, and what to do about it.
ACCESS_HEADER = "fairmile-access"
_OBSTACLES = {
    "log in": ("it is only for people with an account", "`fairmile login {}`"),
    "ask": ("access must be granted first", "`fairmile access request NAME` asks for it"),
    "wait": ("it is under embargo", "`fairmile access show NAME` shows until when"),
    "accept": ("its terms must be accepted first", "`fairmile access accept NAME` shows them"),
}
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-amz-security-token"})
_NO_HEADERS: Mapping[str, str] = {}
_SERVER = re.compile(r"[^:/?#]+://[^/?#]*")
# What may stand in the target of a request as it is; the rest is written in percent.
_PLAIN_TARGET = re.compile(r"/[A-Za-z0-9/%._~-]*")
_TARGET_SAFE = "/%:@!$&'()*+,;=~?-._[]|"


# Imported where a server compresses what it sends.
_ENCODINGS: Registry[ModuleType] = Registry("kind of encoding", {"all": Plugin("fairmile.transfer.encodings")})


class Busy(Transient):
    """The server asks to come back later; `after_s` is how much later, as far as it says."""

    def __init__(self, message: str, *, hint: str | None = None, after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.after_s = after_s


class Answer(NamedTuple):
    """An answer without its body."""

    url: str
    head: Head

    @property
    def size_bytes(self) -> int | None:
        """The size of the file; unknown where the server announces that of something it compressed."""
        if encoding_of(self.head.headers, self.url):
            return None
        return number(self.head.headers.get("content-length", ""))

    @property
    def validator(self) -> str:
        return validator_of(self.head.headers)


class _Site(NamedTuple):
    """A server, and the headers that every request to it carries."""

    endpoint: Endpoint
    headers: Mapping[str, str]


class _File(NamedTuple):
    """A file as a part of what is sent."""

    path: Path
    size_bytes: int


class HttpBody:
    """The body of an answer; closed at its end, its connection serves the next request."""

    def __init__(self, client: Client, connection: Connection, answer: Answer, start: int, total: int | None) -> None:
        self.start = start
        self.total_bytes = total
        self.answer = answer
        self.validator = answer.validator
        self.is_whole = answer.head.status == 200
        self._client = client
        self._connection: Connection | None = connection
        self.readinto = connection.readinto

    def interrupt(self) -> None:
        """Wake up the reader, from another thread."""
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def close(self) -> None:
        # Given back twice, a connection would serve two readers at once.
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.give_back(connection)


class Client:
    """Speaks HTTP/1.1 with any number of servers; threads may share it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        self._moved: dict[str, str] = {}
        self._sites: dict[str, _Site] = {}

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    # Requests

    def head(self, url: str, headers: Mapping[str, str] = _NO_HEADERS) -> Answer:
        """Return status and headers for an address; a server that does not know HEAD is asked for one byte."""
        connection, answer = self._patient("HEAD", url, headers)
        self.give_back(connection)
        if answer.head.status in (403, 405, 501):
            connection, answer = self._patient("GET", url, {**headers, "Range": "bytes=0-0"})
            try:
                total = _content_range(answer.head.headers.get("content-range", ""))[1]
                # An empty file has no first byte to send.
                if answer.head.status == 206 or (answer.head.status == 416 and total == 0):
                    known = {**answer.head.headers, "content-length": str(total) if total is not None else ""}
                    answer = Answer(answer.url, answer.head._replace(status=200, headers=known))
            finally:
                self.give_back(connection)
        _expect_success(url, answer.head)
        return answer

    def get(
        self, url: str, headers: Mapping[str, str] = _NO_HEADERS, *, most_bytes: int = _DOCUMENT_BYTES
    ) -> tuple[bytes, Answer]:
        """Return a small document and the answer it came with."""
        connection, answer = self._patient("GET", url, headers)
        try:
            _expect_success(url, answer.head)
            return self._document(connection, answer, most_bytes), answer
        finally:
            self.give_back(connection)

    def ask(self, method: str, url: str, headers: Mapping[str, str] = _NO_HEADERS) -> tuple[Head, bytes]:
        """Return the answer whatever its status, and its body, for services that explain their refusals."""
        connection, answer = self._patient(method, url, headers)
        try:
            return answer.head, self._document(connection, answer, _DOCUMENT_BYTES)
        finally:
            self.give_back(connection)

    def get_json(self, url: str, headers: Mapping[str, str] = _NO_HEADERS) -> Any:
        """Return a small JSON document as data."""
        data, answer = self.get(url, {"Accept": "application/json", **headers})
        try:
            return json.loads(data)
        except ValueError as error:
            kind = answer.head.headers.get("content-type", "no type")
            raise Integrity(f"{shown_address(url)} does not answer with JSON but with {kind}") from error

    def post_json(self, url: str, document: Any, headers: Mapping[str, str] = _NO_HEADERS) -> Any:
        """Send a JSON document and return the JSON answer; asked once, since a request may have effects."""
        sent = {"Accept": "application/json", "Content-Type": "application/json", **headers}
        head, data = self.submit("POST", url, json.dumps(document).encode(), sent)
        _expect_success(url, head)
        if head.status >= 300:
            raise SystemFailure(f"{shown_address(url)} answers {head.status} {head.reason}".rstrip())
        try:
            return json.loads(data)
        except ValueError as error:
            raise Integrity(f"{shown_address(url)} does not answer with JSON") from error

    def submit(
        self,
        method: str,
        url: str,
        body: bytes | Sequence[bytes | Path] = b"",
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> tuple[Head, bytes]:
        """Send a body once, and return the answer whatever its status, with its body; files are parts of it by path."""
        given = [body] if isinstance(body, bytes) else body
        parts = [part if isinstance(part, bytes) else _File(part, part.stat().st_size) for part in given]
        size = sum(len(part) if isinstance(part, bytes) else part.size_bytes for part in parts)
        connection, head = self._ask(method, url, {**headers, "Content-Length": str(size)}, parts)
        try:
            return head, self._document(connection, Answer(url, head), _DOCUMENT_BYTES)
        finally:
            self.give_back(connection)

    def _document(self, connection: Connection, answer: Answer, most_bytes: int) -> bytes:
        """Read the whole body of an answer, whose connection the caller gives back."""
        body: Body | Connection = connection
        if encoding := encoding_of(answer.head.headers, answer.url):
            body = _decoded(HttpBody(self, connection, answer, 0, None), encoding, answer.url)
        return _read_all(body, answer.url, most_bytes, Flow(self._context.settings.stall_s))

    def open(
        self,
        url: str,
        start: int = 0,
        stop: int | None = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        validator: str = "",
        decode: bool = True,
    ) -> Body:
        """Open the bytes from `start` up to, without, `stop`; see `RangeFetcher.open`.

        With the `validator` of an earlier answer the server sends the whole anew when it has changed. What a server
        compressed unasked is expanded, from the first byte on: a range of it would be one of the packed bytes. With
        `decode` false the bytes stay as they are sent.
        """
        asked = dict(headers)
        if start or stop is not None:
            asked["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if validator:
                asked["If-Range"] = validator
        connection, answer = self._answered(url, asked)
        if decode and answer.head.status == 206 and encoding_of(answer.head.headers, answer.url):
            connection.close()
            connection, answer = self._answered(url, headers)
        try:
            body = self._body(url, connection, answer, start)
            encoding = encoding_of(answer.head.headers, answer.url) if decode and body.is_whole else ""
            return _decoded(body, encoding, answer.url) if encoding else body
        except BaseException:
            self.give_back(connection)
            raise

    def _answered(self, url: str, asked: Mapping[str, str]) -> tuple[Connection, Answer]:
        """Ask for an address where it was found last."""
        known = self._moved.get(url)
        connection, answer = self._exchange("GET", known or url, _for_host(asked, url, known) if known else asked)
        if known is not None and answer.head.status in (400, 401, 403, 404, 410):  # a signed address that ran out
            self.give_back(connection)
            self._moved.pop(url, None)
            connection, answer = self._exchange("GET", url, asked)
        if answer.url != url:
            self._moved[url] = answer.url
        return connection, answer

    def _body(self, url: str, connection: Connection, answer: Answer, start: int) -> HttpBody:
        head = answer.head
        if head.status == 206:
            began, total = _content_range(head.headers.get("content-range", ""))
            if began != start:
                raise Integrity(
                    f"{shown_address(url)} was asked for the bytes from {start:,} and sends those from {began:,}"
                )
            return HttpBody(self, connection, answer, start, total)
        if head.status == 416:
            _, total = _content_range(head.headers.get("content-range", ""))
            if total is not None and total <= start:
                _read_all(connection, url, _DOCUMENT_BYTES, Flow(self._context.settings.stall_s))
                return HttpBody(self, connection, answer, start, total)
        _expect_success(url, head)
        if head.status != 200:
            raise SystemFailure(f"{shown_address(url)} answers {head.status} {head.reason}")
        return HttpBody(self, connection, answer, 0, answer.size_bytes)

    # One exchange

    def _patient(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[Connection, Answer]:
        """Exchange, trying again after passing faults."""
        for attempt in range(self._context.settings.retries):
            try:
                connection, answer = self._exchange(method, url, headers)
                if answer.head.status not in _BUSY:
                    return connection, answer
                self.give_back(connection)
                _expect_success(url, answer.head)
            except Transient as error:
                if attempt + 1 == self._context.settings.retries:
                    raise
                time.sleep(pause_s(attempt, error))
        raise AssertionError("attempts must be at least 1")

    def _exchange(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[Connection, Answer]:
        """Send a request and follow redirects; the body of the answer is still to be read."""
        seen: list[str] = []
        while True:
            connection, head = self._ask(method, url, headers)
            if head.status == 401 and "Authorization" not in headers and self._log_in(url):
                self.give_back(connection)
                continue
            if head.status not in _REDIRECTS or "location" not in head.headers:
                return connection, Answer(url, head)
            self.give_back(connection)
            seen.append(url)
            target = _redirected(url, head.headers["location"])
            if target in seen or len(seen) > _MOST_REDIRECTS:
                raise SystemFailure(
                    f"{shown_address(seen[0])} redirects without end",
                    hint="check the address; it may lead to a login page that needs a browser",
                )
            old, new = urlsplit(url), urlsplit(target)
            if new.scheme not in ("http", "https"):
                raise SystemFailure(
                    f"{shown_address(url)} redirects to {shown_address(target)}, which is not a web address"
                )
            if old.scheme == "https" and new.scheme == "http":
                raise SystemFailure(
                    f"{shown_address(url)} redirects to the unprotected {shown_address(target)}",
                    hint="give that address itself if you trust it",
                )
            headers = _for_host(headers, url, target)
            url = target

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: Sequence[bytes | _File] = ()
    ) -> tuple[Connection, Head]:
        endpoint, request = self._request(method, url, headers)
        if body and isinstance(body[0], bytes):  # in one packet with the head
            request, body = request + body[0], body[1:]
        while True:
            connection, is_fresh = self._connection(endpoint)
            try:
                connection.send(request)
                connection.send_body(_chunks(body))
                return connection, connection.read_head(method)
            except Transient as error:
                connection.close()
                # A kept connection may have been closed by the server meanwhile; a fresh one tells the truth. One on
                # which nothing comes tells it too: nobody waits as long for each of the others.
                if is_fresh or isinstance(error.__cause__, TimeoutError):
                    raise

    def _request(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[Endpoint, bytes]:
        server = _SERVER.match(url)
        site = self._site(server[0] if server else url)
        lines = {**site.headers, **headers}
        endpoint = site.endpoint
        try:
            target = _target(url[server.end() :] if server else "")
            if endpoint.proxy is not None and endpoint.scheme == "http":
                target = f"http://{site.headers['Host']}{target}"
            text = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            data = (text + "\r\n").encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"{shown_address(url)!r} contains half a character") from error
        if not text.count("\r") == text.count("\n") == len(lines) + 1 or "\0" in text:
            raise UsageError(f"{shown_address(url)}: a header would contain a line break")
        return endpoint, data

    def _log_in(self, url: str) -> bool:
        """Take a login from the keyring for all further requests; False when there is none, or one was used already."""
        server = _SERVER.match(url)
        base = server[0] if server else url
        site = self._site(base)
        login = None
        if "Authorization" not in site.headers:
            login = self._context.credentials.login(site.endpoint.host)
        if login is None:
            return False
        self._sites[base] = site._replace(headers={**site.headers, "Authorization": _basic(login.user, login.password)})
        return True

    def _site(self, base: str) -> _Site:
        """Return what every request to the server of an address has in common."""
        site = self._sites.get(base)
        if site is not None:
            return site
        bare, login = without_login(base)
        try:
            parts = urlsplit(bare)
            host = _looked_up(parts.hostname or "")
            port = parts.port
        except ValueError as error:
            # What stands where a port should may be the beginning of a password with a / in it.
            shown = re.sub(r"(://[^:]*):.*", r"\1:…", shown_address(base))
            raise UsageError(
                f"{shown!r} is not a web address", hint="expected https://HOST:PORT/PATH; a / in a password is %2F"
            ) from error
        if parts.scheme not in ("http", "https") or not host:
            raise UsageError(f"{shown_address(base)!r} is not a web address", hint="expected https://HOST/PATH")
        endpoint = self._endpoint(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))
        name = f"[{host}]" if ":" in host else host
        headers = {"Host": f"{name}:{port}" if port else name, "User-Agent": "fairmile"}
        headers["Accept-Encoding"] = "identity"
        headers["Accept"] = "*/*"
        login = login or self._context.credentials.from_netrc(host)
        if login is not None:
            headers["Authorization"] = _basic(login.user, login.password)
        elif token := self._context.credentials.bearer(base):
            headers["Authorization"] = f"Bearer {token}"
        if endpoint.scheme == "http" and endpoint.proxy_authorization:
            headers["Proxy-Authorization"] = endpoint.proxy_authorization
        return self._sites.setdefault(base, _Site(endpoint, headers))

    def _endpoint(self, scheme: str, host: str, port: int) -> Endpoint:
        environ = self._context.environ
        excluded = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        # HTTP_PROXY in capitals may be a header of a request to a CGI program, so curl and Python leave it out too.
        names = ["https_proxy", "HTTPS_PROXY"] if scheme == "https" else ["http_proxy"]
        proxy = next((environ[name] for name in [*names, "all_proxy", "ALL_PROXY"] if environ.get(name)), "")
        if not proxy or _is_excluded(host, port, excluded):
            return Endpoint(scheme, host, port)
        try:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            by = (parts.hostname or "", parts.port or 3128)
        except ValueError:
            parts, by = urlsplit(""), ("", 0)
        if parts.scheme != "http" or not by[0]:
            raise Unsupported(
                f"the proxy {shown_address(proxy)} is not an http:// one", hint=f"set {names[0]} to http://HOST:PORT"
            )
        login = _basic(unquote(parts.username), unquote(parts.password or "")) if parts.username else ""
        return Endpoint(scheme, host, port, by, login)

    # Connections

    def _connection(self, endpoint: Endpoint) -> tuple[Connection, bool]:
        with self._lock:
            idle = self._idle.get(endpoint)
            if idle:
                return idle.pop(), False
            if self._tls is None and endpoint.scheme == "https":
                self._tls = self._new_tls()
        settings = self._context.settings
        return (
            Connection(endpoint, timeout_s=settings.stall_s, buffer_bytes=settings.socket_buffer_bytes, tls=self._tls),
            True,
        )

    def _new_tls(self) -> ssl.SSLContext:
        import ssl

        environ = self._context.environ
        file, folder = environ.get("SSL_CERT_FILE") or None, environ.get("SSL_CERT_DIR") or None
        try:
            tls = ssl.create_default_context(cafile=file, capath=folder)
        except OSError as error:
            raise UsageError(
                f"SSL_CERT_FILE: {file} has no certificates: {error.strerror}", hint="fix or unset the variable"
            ) from error
        tls.set_alpn_protocols(["http/1.1"])
        return tls

    def give_back(self, connection: Connection) -> None:
        """Take a connection back for the next request, or close it when its answer was not read to the end."""
        if connection.usable and connection.is_drained:
            with self._lock:
                idle = self._idle.setdefault(connection.endpoint, [])
                if len(idle) < _IDLE_PER_ENDPOINT:
                    idle.append(connection)
                    return
        connection.close()


def _chunks(parts: Sequence[bytes | _File]) -> Iterator[bytes]:
    """Yield a body piece by piece, and of each file as many bytes as were announced."""
    for part in parts:
        if isinstance(part, bytes):
            yield part
            continue
        with open(part.path, "rb") as stream:
            left = part.size_bytes
            while left and (chunk := stream.read(min(left, _CHUNK))):
                left -= len(chunk)
                yield chunk


def _is_excluded(host: str, port: int, names: str) -> bool:
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # slow, and seldom needed

    return bool(proxy_bypass_environment(f"{host}:{port}", {"no": names}))


def _for_host(headers: Mapping[str, str], old: str, new: str) -> Mapping[str, str]:
    """Return the headers that may go along when one address leads to another: no secrets to another server."""
    if urlsplit(old)[:2] == urlsplit(new)[:2]:
        return headers
    return {name: value for name, value in headers.items() if name.lower() not in _SECRET_HEADERS}


def _redirected(url: str, location: str) -> str:
    """Return the address that an answer leads to; a login in the old one goes along within the same server."""
    try:
        # Bytes beyond ASCII are the server's own, whatever they mean.
        target = urljoin(url, quote(location.encode("latin-1"), safe=_TARGET_SAFE + "#"))
        old, new = urlsplit(url), urlsplit(target)
        is_same = (old.scheme, old.hostname, old.port) == (new.scheme, new.hostname, new.port)
    except ValueError as error:
        raise SystemFailure(f"{shown_address(url)} redirects to {shown_address(location)!r}, no address") from error
    if is_same and "@" in old.netloc and "@" not in new.netloc:
        return urlunsplit(new._replace(netloc=old.netloc))
    return target


def validator_of(headers: Mapping[str, str]) -> str:
    """Return what changes when the content does: a strong ETag, else the date of the last change."""
    tag = headers.get("etag", "")
    return tag if tag.startswith('"') else headers.get("last-modified", "")


def pause_s(attempt: int, error: Transient) -> float:
    """Return how long to wait before the next attempt: what the server asks for, else longer each time."""
    import random  # slow, and seldom needed

    asked = error.after_s if isinstance(error, Busy) else None
    if asked is not None:
        return float(min(asked, _MOST_WAIT_S))
    return float(min(0.2 * 2**attempt, 15.0)) * (0.75 + random.random() / 2)


def _looked_up(host: str) -> str:
    """Return the name of a server as it is looked up; UnicodeError where it can be no name."""
    is_plain = host.isascii() and all(0 < len(label) < 64 for label in host.split("."))
    return host if is_plain else host.encode("idna").decode("ascii")  # a codec that is slow to load


def _target(rest: str) -> str:
    """Return what stands behind the server in an address, as it is written in a request."""
    if _PLAIN_TARGET.fullmatch(rest):
        return rest
    path, _, query = rest.partition("#")[0].partition("?")
    return quote(path or "/", safe=_TARGET_SAFE) + ("?" + quote(query, safe=_TARGET_SAFE) if query else "")


def _expect_success(url: str, head: Head) -> None:
    status = head.status
    if status < 400:
        return
    where = shown_address(url)
    if status in _BUSY:
        after = retry_after(head.headers.get("retry-after", ""))
        if after is not None and after > _MOST_WAIT_S:
            raise SystemFailure(f"{where} asks to wait {after:.0f} s", hint="try again then")
        raise Busy(f"{where} answers {status} {head.reason}".rstrip(), hint="try again later", after_s=after)
    if status == 407:
        raise SystemFailure(
            f"the proxy on the way to {where} requires a login: it answers 407 {head.reason}".rstrip(),
            hint="give it in the variable http_proxy: http://USER:PASSWORD@HOST:PORT",
        )
    if status in (401, 403):
        host = urlsplit(url).hostname
        if obstacle := _OBSTACLES.get(head.headers.get(ACCESS_HEADER, "")):
            server = _SERVER.match(url)
            raise SystemFailure(f"{where}: {obstacle[0]}", hint=obstacle[1].format(server[0] if server else where))
        raise SystemFailure(
            f"{where} requires a login: it answers {status} {head.reason}".rstrip(),
            hint=f"put `machine {host} login … password …` into ~/.netrc; `fairmile show` says how to get access",
        )
    if status in (404, 410):
        raise NotFound(f"{where} does not exist: the server answers {status} {head.reason}".rstrip())
    raise SystemFailure(f"{where} answers {status} {head.reason}".rstrip())


def retry_after(text: str) -> float | None:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time()) if text else None
    except (ValueError, TypeError):
        return None


def _content_range(text: str) -> tuple[int, int | None]:
    """Return the first byte and the total of a Content-Range; (-1, None) where it says neither."""
    unit, _, rest = text.strip().partition(" ")
    span, _, total = rest.partition("/")
    if unit.lower() != "bytes":
        return -1, None
    first = number(span.partition("-")[0].strip())
    return -1 if first is None else first, number(total.strip())


def encoding_of(headers: Mapping[str, str], url: str) -> str:
    """Return how an answer is compressed; empty where its bytes are those of the file."""
    header = headers.get("content-encoding", "")
    if header in ("", "identity"):
        return ""
    encoding: str = _ENCODINGS["all"].encoding_of(header, url)
    return encoding


def _decoded(body: HttpBody, encoding: str, url: str) -> Body:
    decoded: Body = _ENCODINGS["all"].Decoded(body, encoding, url)
    return decoded


def _read_all(body: Body | Connection, url: str, most_bytes: int, flow: Flow) -> bytes:
    parts: list[bytes] = []
    size = 0
    buffer = memoryview(bytearray(64 << 10))
    began = time.monotonic()
    while count := body.readinto(buffer):
        size += count
        now = time.monotonic()
        flow.add(count, now - began, shown_address(url))
        began = now
        if size > most_bytes:
            raise SystemFailure(
                f"{shown_address(url)} sends more than {most_bytes:,} bytes where a document was expected"
            )
        parts.append(bytes(buffer[:count]))
    return b"".join(parts)


def _basic(user: str, password: str) -> str:
    return "Basic " + b2a_base64(f"{user}:{password}".encode(), newline=False).decode()
