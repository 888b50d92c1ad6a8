"""Requests that come most often are answered without the parameter machinery of FastAPI, which costs more than they do.

The route stays registered, so that its description is the same. A request that is not valid goes there, too, and gets
the answer that every such request gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from fairmile.web.access import Scope
from fairmile.web.guard import Receive, Send

_MOST_FIELDS = 50


class Shortcut:
    """One route with parameters of the query alone, each of one value."""

    def __init__(self, route: APIRoute) -> None:
        self.respond: Callable[..., Response] = route.endpoint
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
    """An ASGI application in front of FastAPI's."""

    def __init__(self, app: FastAPI, paths: Iterable[str]) -> None:
        routes = {each.path: each for each in app.router.routes if isinstance(each, APIRoute)}
        self._app: Any = app  # what ASGI hands over has other types there
        self._shortcuts = {path: Shortcut(routes[path]) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shortcut = self._shortcuts.get(scope.get("path", "")) if scope.get("method") == "GET" else None
        arguments = shortcut.parse(scope["query_string"]) if shortcut is not None else None
        if shortcut is None or arguments is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        answer: Any = await run_in_threadpool(shortcut.respond, request=Request(scope), **arguments)
        await answer(scope, receive, send)
