"""The figures of pages, each at an address of its own."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from fairmile.reports.html import figure_view
from fairmile.web.answers import tagged
from fairmile.web.figures import Figures
from fairmile.web.routes import Routes
from fairmile.web.svg import without_inline_styles

routes = Routes("figures")


@routes.page("/figures/{token}.svg")
def figure_file(request: Request, token: str) -> Response:
    """Return a figure as a file."""
    return tagged(request, _figures(request)[token].svg(), "image/svg+xml", {"cache-control": "no-cache"})


@routes.page("/figures/{token}")
def figure_part(request: Request, token: str, narrow: bool = False) -> Response:
    """Return a figure as a part of its page."""
    view = without_inline_styles(figure_view(_figures(request)[token], narrow=narrow, prefix=f"f{token[:8]}"))
    return tagged(request, view.encode(), "text/html; charset=utf-8", {"cache-control": "no-cache"})


def _figures(request: Request) -> Figures:
    figures: Figures = request.app.state.pages.figures
    return figures
