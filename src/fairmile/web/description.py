"""The description of the API (OpenAPI): what FastAPI reads from signatures, and the schemas of our results."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from fairmile.base.errors import ErrorDict
from fairmile.base.results import Result
from fairmile.base.schemas import schema_of_results

_PLACE = "#/components/schemas/{model}"
_ERROR = {
    "description": "What went wrong, as `--json` prints it.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}},
}


class _Error(Result):
    def to_dict(self) -> ErrorDict:
        raise NotImplementedError


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the description of every route below /api; it is made at the first request for it."""
    if app.openapi_schema is None:
        app.openapi_schema = _describe(app)
    return app.openapi_schema


def _describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    error, schemas = schema_of_results((_Error,), ref_template=_PLACE)
    schemas["ErrorAnswer"] = {"type": "object", "properties": {"error": error}, "required": ["error"]}
    for route in api_routes(app):
        operation = document["paths"][route.path_format][next(iter(route.methods or ())).lower()]
        success = str(route.status_code)
        responses = {success: operation["responses"][success], "4XX": _ERROR}
        types = getattr(route.endpoint, "result_types", "")
        if types:
            body = _add_schema(schemas, _types(types))
            responses[success]["content"] = {"application/json": {"schema": body}}
        operation["responses"] = responses
        operation["x-right"] = getattr(route.endpoint, "right", "read")
    own = document.get("components", {}).get("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        own.pop(unused, None)
    document.setdefault("components", {})["schemas"] = dict(sorted((own | schemas).items()))
    return document


def _add_schema(schemas: dict[str, Any], results: tuple[type[Result], ...]) -> dict[str, Any]:
    """Return the schema of results, and add the definitions that it refers to.

    Two parts of the package may give different things the same name: the later ones are then named after the result.
    """
    body, definitions = schema_of_results(results, ref_template=_PLACE)
    if all(schemas.get(name, each) == each for name, each in definitions.items()):
        schemas |= definitions
        return body
    prefix = results[0].__name__
    body, definitions = schema_of_results(results, ref_template=_PLACE.replace("{model}", f"{prefix}.{{model}}"))
    schemas |= {f"{prefix}.{name}": each for name, each in definitions.items()}
    return body


def api_routes(app: FastAPI) -> list[APIRoute]:
    """Return the routes that are part of the API."""
    return [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]


def _types(names: str) -> tuple[type[Result], ...]:
    """Return the types that "module:Class", or several of them with blanks between, name."""
    pairs = (name.split(":") for name in names.split())
    return tuple(getattr(import_module(module), attribute) for module, attribute in pairs)
