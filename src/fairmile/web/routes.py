"""Routes of one noun: each handler is one call of the Python API, whose result is the answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from fairmile.access.rules import Right
from fairmile.web.access import Identity
from fairmile.web.answers import answer
from fairmile.web.errors import Gone, error_body, facts_of, headers_of, is_api, status_of
from fairmile.web.render import Page, Pages
from fairmile.workspace import Workspace

H = TypeVar("H", bound=Callable[..., Any])


def workspace_of(request: Request) -> Workspace:
    """Return the workspace that is served, without the assets that whoever asks must not hear of."""
    workspace: Workspace | None = request.scope.get("fairmile.workspace")
    if workspace is None:
        workspace = request.scope["fairmile.workspace"] = workspace_now(request)
    return workspace


def workspace_now(request: Request) -> Workspace:
    """Return the same as they may see it at this moment, however long the request has lasted."""
    workspace: Workspace = request.app.state.workspace
    identity: Identity = request.scope["fairmile.identity"]
    return workspace if identity.may("admin") else request.app.state.views.of(identity.viewer)


def identity_of(request: Request) -> Identity:
    """Return who asks."""
    identity: Identity = request.scope["fairmile.identity"]
    return identity


def error_response(request: Request, error: BaseException) -> Response:
    """Return the answer to a request that failed."""
    path = request.scope["path"]
    if status_of(error) == 401 and not is_api(path):
        return RedirectResponse(f"/login?next={quote(path)}", status_code=303)
    remains = {"card": error.card} if isinstance(error, Gone) else None
    body, media_type = error_body(facts_of(error), as_json=is_api(path), remains=remains)
    return Response(body, status_code=status_of(error), media_type=media_type, headers=headers_of(error))


class Routes(APIRouter):
    """The routes of one noun; see `fairmile.web` for how handlers look."""

    def __init__(self, noun: str) -> None:
        super().__init__(tags=[noun], redirect_slashes=False)
        self.noun = noun

    def get(self, path: str, *, result: str = "", right: Right | None = "read", **options: Any) -> Callable[[H], H]:
        """Serve what a handler returns; `result` names its type as "module:Class", for the description of the API."""
        return self._serve("GET", path, result, right, 200, options)

    def post(  # type: ignore[override]
        self, path: str, *, right: Right | None, result: str = "", status: int = 200, **options: Any
    ) -> Callable[[H], H]:
        """Serve a handler that computes or changes something."""
        return self._serve("POST", path, result, right, status, options)

    def delete(self, path: str, *, right: Right, result: str = "", **options: Any) -> Callable[[H], H]:  # type: ignore[override]
        """Serve a handler that removes something."""
        return self._serve("DELETE", path, result, right, 200, options)

    def page(self, path: str, *, right: Right | None = "read") -> Callable[[H], H]:
        """Serve a page for people; it is no part of the API's description."""
        return self._serve("GET", path, "", right, 200, {"include_in_schema": False})

    def _serve(
        self, method: str, path: str, result: str, right: Right | None, status: int, options: dict[str, Any]
    ) -> Callable[[H], H]:
        def decorate(handler: H) -> H:
            @wraps(handler)
            def handle(request: Request, **arguments: Any) -> Response:
                try:
                    if right is not None:  # else everybody may, to log in
                        identity_of(request).require(right)
                    result = handler(request=request, **arguments)
                    if isinstance(result, Page):
                        pages: Pages = request.app.state.pages
                        return pages.response(request, result)
                    return answer(request, result, status)
                except Exception as error:  # noqa: BLE001  the one place where the error of a handler becomes an answer
                    return error_response(request, error)

            handle.result_types = result  # type: ignore[attr-defined]
            handle.right = right  # type: ignore[attr-defined]
            description = inspect.cleandoc(handler.__doc__ or "")
            self.add_api_route(
                path,
                handle,
                methods=[method],
                response_model=None,
                status_code=status,
                summary=description.partition("\n")[0].rstrip("."),
                description=description,
                operation_id=handler.__name__,
                **options,
            )
            return handler

        return decorate
