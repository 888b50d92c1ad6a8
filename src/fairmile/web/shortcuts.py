"""Requests that come most often are answered without the parameter machinery of FastAPI, which costs more than they do.

The route stays registered, so that its description is the same. A request that is not valid goes there, too, and gets
the answer that every such request gets. An answer that was given before is sent again, from memory, to everybody who
sees the same assets, until a catalog changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.requests import Request
from starlette.responses import Response

from fairmile.access.rules import Right
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
        fields: dict[str, Any] = {
            name: (hints[name], each.default)
            for name, each in signature(route.endpoint).parameters.items()
            if name != "request"
        }
        self._parameters: type[BaseModel] = create_model(f"{route.name}_parameters", **fields)

    def parse(self, query: bytes) -> Mapping[str, Any] | None:
        """Return the parameters that a query states; None where they are not valid."""
        try:
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
            return vars(self._parameters.model_validate(dict(pairs)))
        except (ValidationError, ValueError):
            return None


class Shortcuts:
    """An ASGI application in front of FastAPI's; `paths` name the module with the functions of each shortcut."""

    def __init__(self, app: FastAPI, paths: Mapping[str, str]) -> None:
        routes = {each.path: each for each in app.router.routes if isinstance(each, APIRoute)}
        self._app: Any = app  # what ASGI hands over has other types there
        self._workers = ThreadPoolExecutor(_WORKERS, "fairmile-shortcut")  # waking one costs less than anyio's do
        self._busy = 0  # requests that threads answer now
        self._settled: Hashable = None  # the state of catalogs that the last answer came from
        self._shortcuts = {path: Shortcut(routes[path], import_module(name)) for path, name in paths.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shortcut = self._shortcuts.get(scope.get("path", "")) if scope.get("method") == "GET" else None
        if shortcut is None or not await self._answer(shortcut, scope, receive, send):
            await self._app(scope, receive, send)

    async def _answer(self, shortcut: Shortcut, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; False where that is for FastAPI to do."""
        scope["app"] = self._app
        request = Request(scope)
        identity_of(request).require(shortcut.right)
        workspace = workspace_of(request)
        question, state = (scope["query_string"], workspace.hidden), workspace.catalog.state()
        answer = shortcut.repeats.get(question, state)
        if answer is None:
            arguments = shortcut.parse(scope["query_string"])
            if arguments is None:
                return False
            respond = partial(shortcut.respond, request=request, **arguments)
            answer = await self._run(respond, (workspace.hidden, state), is_quick=shortcut.is_quick(**arguments))
            if answer.status_code == 200 and shortcut.is_lasting(**arguments):
                shortcut.repeats.keep(question, state, answer)
        elif is_known(request, answer.headers["etag"]):
            answer = not_modified(answer)
        await answer(scope, receive, send)
        return True

    async def _run(self, respond: Callable[[], Response], sources: Hashable, *, is_quick: bool) -> Response:
        """Answer at once what is quick and keeps nobody waiting, since a thread costs more than all else; else in one.

        The first answer from changed catalogs may have to read all their cards, and so never comes at once.
        """
        if is_quick and sources == self._settled and not self._busy:
            return respond()
        self._busy += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._workers, respond)
        finally:
            self._busy -= 1
        self._settled = sources
        return answer
