"""The application: every route of the table, behind the guard."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from fairmile.access.logins import DeviceLogins
from fairmile.base.version import __version__
from fairmile.web.access import Access, OwnerAccess
from fairmile.web.accounts import Views
from fairmile.web.api.shared_catalog import SharedIndexes
from fairmile.web.description import describe
from fairmile.web.errors import Refused
from fairmile.web.guard import Guard
from fairmile.web.kept import Kept
from fairmile.web.live import Live
from fairmile.web.render import Pages
from fairmile.web.repeats import Repeats
from fairmile.web.routes import Routes, error_response
from fairmile.web.serve import Limits
from fairmile.web.shortcuts import Shortcuts
from fairmile.web.static_files import StaticFiles
from fairmile.web.table import MODULES, NAVIGATION, SHORTCUTS, TOPICS
from fairmile.workspace import Workspace

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def create_app(
    workspace: Workspace,
    *,
    access: Access | None = None,
    hosts: Collection[str] = LOOPBACK_NAMES,
    limits: Limits | None = None,
) -> Guard:
    """Return the server's application for a workspace; without `access`, only its owner may use it."""
    app = FastAPI(
        title="Fairmile",
        version=__version__,
        openapi_url="/openapi.json",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    routers: list[Routes] = [import_module(name).routes for name in MODULES]
    static, live = StaticFiles(), Live(TOPICS)
    app.router.routes += [  # routes are tried in their order: pages load several files each
        Route("/static/{name:path}", _sync(static.response)),
        Route("/api/live", live.response),
    ]
    for router in routers:
        app.router.routes += router.routes  # `include_router` would wrap them once more
    served = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    app.state.workspace = workspace
    app.state.views = Views(workspace)
    app.state.kept = Kept()
    app.state.facets = Repeats(lambda facets: 100 * sum(map(len, facets)) + 1_000)
    app.state.device_logins = DeviceLogins()
    app.state.shared_indexes = SharedIndexes()
    app.state.pages = Pages(static, [entry for entry in NAVIGATION if entry[1] in served])
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Refused, _refused)
    shortcuts = Shortcuts(app, SHORTCUTS)
    return Guard(shortcuts, at_once=shortcuts.at_once, hosts=hosts, access=access or OwnerAccess(), limits=limits)


def _sync(respond: Any) -> Any:
    async def endpoint(request: Request) -> Response:
        response: Response = respond(request)
        return response

    return endpoint


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = {**(error.headers or {})}
    if error.status_code == 404:
        refused = Refused(404, f"nothing is served at {request.url.path}", hint="/api lists what there is")
    elif error.status_code == 405:
        methods = {name for each in request.app.routes for name in _methods(each, request)}
        allowed["Allow"] = ", ".join(sorted(methods))
        refused = Refused(405, f"{request.method} is not served at {request.url.path}", hint=f"use {allowed['Allow']}")
    else:
        refused = Refused(error.status_code, str(error.detail))
    response = error_response(request, refused)
    response.headers.update(allowed)
    return response


def _methods(route: Any, request: Request) -> Collection[str]:
    regex = getattr(route, "path_regex", None)
    return route.methods or () if regex is not None and regex.match(request.url.path) else ()


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer a request whose parameters or body are not what the description says, with the first problem."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    reason = first["msg"][:1].lower() + first["msg"][1:]
    return error_response(request, Refused(422, f"{place}: {reason}", hint="/api describes every parameter"))


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(request, error)
