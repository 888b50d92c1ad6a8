"""Requests that come most often are answered without the parameter machinery of FastAPI, which costs more than they do.

The route stays registered, so that its description is the same. A request that is not valid goes there, too, and gets
the answer that every such request gets. An answer that was given before is sent again, from memory, to everybody who
sees the same assets, until a catalog changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from fairmile.access.rules import Right
from fairmile.web.access import Scope
from fairmile.web.answers import is_known, not_modified
from fairmile.web.guard import Receive, Send
from fairmile.web.repeats import Repeats
from fairmile.web.routes import identity_of, workspace_of

_MOST_FIELDS = 50


class Shortcut:
    """One route with parameters of the query alone, each of one value.

    `is_lasting` tells by the parameters whether an answer stays the same while the catalogs do.
    """

    def __init__(self, route: APIRoute, is_lasting: Callable[..., bool]) -> None:
        self.respond: Callable[..., Response] = route.endpoint
        self.is_lasting = is_lasting
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
            return dict(self._parameters.model_validate(dict(pairs)))
        except (ValidationError, ValueError):
            return None


class Shortcuts:
    """An ASGI application in front of FastAPI's; `paths` name each shortcut's `is_lasting` as "module:function"."""

    def __init__(self, app: FastAPI, paths: Mapping[str, str]) -> None:
        routes = {each.path: each for each in app.router.routes if isinstance(each, APIRoute)}
        self._app: Any = app  # what ASGI hands over has other types there
        self._shortcuts = {path: Shortcut(routes[path], _function(name)) for path, name in paths.items()}

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
            answer = await run_in_threadpool(shortcut.respond, request=request, **arguments)
            if answer.status_code == 200 and shortcut.is_lasting(**arguments):
                shortcut.repeats.keep(question, state, answer)
        elif is_known(request, answer.headers["etag"]):
            answer = not_modified(answer)
        await answer(scope, receive, send)
        return True


def _function(name: str) -> Callable[..., bool]:
    module, _, attribute = name.partition(":")
    function: Callable[..., bool] = getattr(import_module(module), attribute)
    return function
