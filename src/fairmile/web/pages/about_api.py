"""`/api`: the description of the API for people."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from fairmile.reports.blocks import Block, Cell, Heading, Row, Text, Title, table
from fairmile.web.render import Page
from fairmile.web.routes import Routes

routes = Routes("api")
_NEEDS = {"start": " Needs the right to start work.", "admin": " Needs the right to administer."}


@routes.page("/api", right="browse")
def api_page(request: Request) -> Page:
    """List every route of the API."""
    rows: dict[str, list[Row]] = {}
    for path, operations in request.app.openapi()["paths"].items():
        for method, operation in operations.items():
            rows.setdefault(operation["tags"][0], []).append(_row(method, path, operation))
    blocks: list[Block] = [
        Title("REST API"),
        Text("Every answer is what the command prints with --json. /openapi.json describes all of it for programs."),
        Text("A list comes in parts: the Link header leads to the next. If-None-Match skips answers that you have."),
    ]
    for noun, each in sorted(rows.items()):
        blocks += [Heading(noun), table(["request", "answer", "parameters"], each)]
    return Page("blocks.html", "REST API", blocks=blocks)


def _row(method: str, path: str, operation: dict[str, Any]) -> Row:
    parameters = ", ".join(each["name"] for each in operation.get("parameters", []))
    request = Cell(f"{method.upper()} {path}", code=True)
    needs = _NEEDS.get(operation["x-right"], "")
    return [request, f"{operation['summary']}.{needs}", Cell(parameters, code=bool(parameters))]
