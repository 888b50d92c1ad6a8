"""Requests that come most often are answered without the parameter machinery of FastAPI, which costs more than they do.

The route stays registered, so that its description is the same. A request that is not valid goes there, too, and gets
the answer that every such request gets. An answer that was given before is sent again, from memory, to everybody who
sees the same assets, until a catalog changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import signature
from typing import Any, get_type_hints
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from fairmile.access.rules import Right
from fairmile.base.quick_dataclass import dataclass
from fairmile.web.access import Scope
from fairmile.web.answers import is_known, not_modified
from fairmile.web.guard import Receive, Send
from fairmile.web.repeats import Repeats
from fairmile.web.routes import identity_of, workspace_of

_MOST_FIELDS = 50
_WORKERS = 8


class Shortcut:
    """One route with parameters of the query alone, each of one value.

    The functions of `module` tell by the parameters whether an answer stays the same while the catalogs do
    (`is_lasting`), and whether it takes a few milliseconds at most (`is_quick`).
    """

    def __init__(self, route: APIRoute, module: Any) -> None:
        self.respond: Callable[..., Response] = route.endpoint
        self.is_lasting: Callable[..., bool] = module.is_lasting
        self.is_quick: Callable[..., bool] = module.is_quick
        self.right: Right = route.endpoint.right  # type: ignore[attr-defined]
        self.repeats = Repeats[Response](lambda response: len(response.body))
        hints = get_type_hints(route.endpoint, include_extras=True)
        fields = {name: hints[name] for name in signature(route.endpoint).parameters if name != "request"}
        # What a query does not state, the function has a default for.
        self._parameters = TypeAdapter(TypedDict(f"{route.name}_parameters", fields, total=False)).validator  # type: ignore[operator]

    def parse(self, query: bytes) -> Mapping[str, Any] | None:
        """Return the parameters that a query states; None where they are not valid."""
        pairs: dict[str, str] = {}
        for part in query.split(b"&", _MOST_FIELDS):
            name, _, value = part.partition(b"=")
            if b"%" in part or b"+" in part:
                name, value = (unquote_to_bytes(each.replace(b"+", b" ")) for each in (name, value))
            pairs[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        try:
            parameters: Mapping[str, Any] = self._parameters.validate_python(pairs)
            return parameters
        except ValidationError:
            return None


@dataclass
class _Asked:
    """A request that no answer is kept for; `state` is that of the catalogs."""

    shortcut: Shortcut
    request: Request
    question: Hashable
    state: Hashable
    arguments: Mapping[str, Any]

    def answer(self) -> Response:
        answer = self.shortcut.respond(request=self.request, **self.arguments)
        if answer.status_code == 200 and self.shortcut.is_lasting(**self.arguments):
            self.shortcut.repeats.keep(self.question, self.state, answer)
        return answer


class Shortcuts:
    """An ASGI application in front of FastAPI's; `paths` name the module with the functions of each shortcut.

    `at_once` is to be asked first: it leaves to the application what it has no answer to.
    """

    def __init__(self, app: FastAPI, paths: Mapping[str, str]) -> None:
        routes = {each.path: each for each in app.router.routes if isinstance(each, APIRoute)}
        self._app: Any = app  # what ASGI hands over has other types there
        self._workers = ThreadPoolExecutor(_WORKERS, "fairmile-shortcut")  # waking one costs less than anyio's do
        self._busy = 0  # requests that threads answer now
        self._settled: Hashable = None  # the state of catalogs that the last answer came from
        self._shortcuts = {path: Shortcut(routes[path], import_module(name)) for path, name in paths.items()}

    def at_once(self, scope: Scope) -> Response | None:
        """Return an answer that is kept, or one that is quick while nobody waits: a thread costs more than all else.

        The first answer from changed catalogs may have to read all their cards, and so never comes at once.
        """
        shortcut = self._shortcuts.get(scope["path"]) if scope["method"] == "GET" else None
        if shortcut is None:
            return None
        scope["app"] = self._app
        request = Request(scope)
        identity_of(request).require(shortcut.right)
        workspace = workspace_of(request)
        question, state = (scope["query_string"], workspace.hidden), workspace.catalog.state()
        kept = shortcut.repeats.get(question, state)
        if kept is not None:
            return not_modified(kept) if is_known(request, kept.headers["etag"]) else kept
        arguments = shortcut.parse(scope["query_string"])
        if arguments is None:
            return None
        asked = _Asked(shortcut, request, question, state, arguments)
        if not self._busy and (workspace.hidden, state) == self._settled and shortcut.is_quick(**arguments):
            return asked.answer()
        scope["fairmile.asked"] = asked
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked: _Asked | None = scope.get("fairmile.asked")
        app = self._app if asked is None else await self._wait(asked)
        await app(scope, receive, send)

    async def _wait(self, asked: _Asked) -> Response:
        self._busy += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._workers, asked.answer)
        finally:
            self._busy -= 1
        self._settled = workspace_of(asked.request).hidden, asked.state
        return answer
