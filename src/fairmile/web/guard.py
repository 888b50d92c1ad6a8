"""What every request passes before anything else sees it, and every answer on its way out.

Refused are: a `Host` that is not ours (a page of somebody else whose name was pointed at this machine), requests that
another site's page sends, bodies that are too large, and whoever `access` does not know. A request that takes too long
ends with an answer that says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from fairmile.web.access import STRANGER, Access, Scope
from fairmile.web.errors import Refused, error_body, facts_of, is_api, status_of
from fairmile.web.serve import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with none at all, a form of ours would send "Origin: null"
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_NAMES = frozenset(name for name, _ in _HEADERS)
_ENCRYPTED_ONLY = (b"strict-transport-security", b"max-age=31536000")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
FILES_PATH = "/api/catalog/"
_OPEN_PATHS = ("/static/", "/login", "/api/login")  # what people need in order to log in


class Guard:
    """An ASGI application around another one; `hosts` are the names, without port, under which it is reached.

    What `at_once` has an answer to, nobody waits for, and so it passes none of what limits and ends a wait.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Collection[str],
        access: Access,
        limits: Limits | None = None,
        at_once: Callable[[Scope], Response | None] = lambda scope: None,
    ) -> None:
        self._app = app
        self._at_once = at_once
        self._hosts = frozenset(hosts)
        self._access = access
        self._limits = limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:  # we serve no web sockets
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
            response = self._at_once(scope)
        except Exception as error:  # noqa: BLE001  as below
            await _tell(scope, lambda message: send(self._with_headers(scope, message)), error)
            return
        if response is None:
            await self._wait(scope, receive, send)
            return
        headers = [*response.raw_headers, *self._extra(scope, response.raw_headers)]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                deadline.reschedule(None)  # a stream may last
                message["headers"] = [*message["headers"], *self._extra(scope, message["headers"])]
            await send(message)

        try:
            async with asyncio.timeout(self._limits.seconds) as deadline:
                try:
                    body = self._limited(scope, receive)
                    await self._app(scope, body, guarded)
                except Exception as error:  # the one place for what no handler has answered
                    if started:
                        raise
                    await _tell(scope, guarded, error)
        except TimeoutError:
            if started:
                raise
            late = Refused(503, f"no answer within {self._limits.seconds:g} s", hint="ask for less, or try again later")
            # The deadline has passed, so it cannot be moved any more.
            await _tell(scope, lambda message: send(self._with_headers(scope, message)), late)

    def _with_headers(self, scope: Scope, message: Message) -> Message:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *self._extra(scope, message["headers"])]
        return message

    def _extra(self, scope: Scope, given: Any) -> list[tuple[bytes, bytes]]:
        names = {name for name, _ in given}
        headers = [*_HEADERS] if names.isdisjoint(_NAMES) else [each for each in _HEADERS if each[0] not in names]
        if (cookie := scope.get("fairmile.cookie")) and b"set-cookie" not in names:
            headers.append((b"set-cookie", cookie))
        return [*headers, _ENCRYPTED_ONLY] if scope["scheme"] == "https" else headers

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if _without_port(host) not in self._hosts:
            raise Refused(421, f"this server is not {host or 'a server without a name'!r}", hint="use its own address")
        _check_origin(scope, dict(headers), f"{scope['scheme']}://{host}")
        identity = self._access.identify(scope)
        if identity is None and not scope["path"].startswith(_OPEN_PATHS):
            raise Refused(401, "log in first", hint="use your account in a browser, or a token in a program")
        if identity is not None and identity.assets and not scope["path"].startswith(FILES_PATH):
            raise Refused(403, "this token reads its assets and does nothing else", hint="use a token of an account")
        scope["fairmile.identity"] = identity or STRANGER

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        if scope["method"] in _SAFE:
            return receive
        most, seen = self._limits.body_bytes, 0
        too_large = Refused(413, f"the body is larger than {most:,} bytes")
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value[:20]) > most):
                raise too_large

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise too_large
            return message

        return limited


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isascii() and port.isdigit() else host).lower()


def _check_origin(scope: Scope, headers: dict[bytes, bytes], own: str) -> None:
    """Refuse what a page of another site sends. Programs other than browsers send neither header."""
    site = headers.get(b"sec-fetch-site", b"none")
    origin = headers.get(b"origin")
    is_ours = site in (b"none", b"same-origin") and (origin is None or origin.decode("latin-1").lower() == own.lower())
    is_link = scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == b"navigate" and _is_link_target(scope)
    if not is_ours and not is_link:
        raise Refused(403, "a page of another site sent this request", hint="use this server's own pages or a program")


def _is_link_target(scope: Scope) -> bool:
    """Tell whether pages of others may link here: to our pages, and to files, which are saved and not shown."""
    path: str = scope["path"]
    return not is_api(path) or path.startswith(FILES_PATH)


async def _tell(scope: Scope, send: Send, error: BaseException) -> None:
    path = scope["path"]
    as_json = is_api(path) or scope["method"] not in _SAFE
    status = status_of(error)
    if status == 401 and not as_json:
        there = f"/login?next={quote(path)}".encode()
        await send({"type": "http.response.start", "status": 303, "headers": [(b"location", there)]})
        await send({"type": "http.response.body", "body": b""})
        return
    body, media_type = error_body(facts_of(error), as_json=as_json)
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})
