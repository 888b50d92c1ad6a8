"""Pages from templates and from the blocks of reports, all text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size
from fairmile.reports.blocks import Block, clean
from fairmile.reports.html import body_of
from fairmile.web.answers import tagged
from fairmile.web.errors import Refused
from fairmile.web.figures import Figures
from fairmile.web.static_files import StaticFiles
from fairmile.web.svg import without_inline_styles

PART_HEADER = "fairmile-part"  # names the block of the page that a script asks for
_HTML = "text/html; charset=utf-8"


@dataclass(frozen=True)
class Page:
    """A page: its template and title, what the template shows, blocks of reports, further scripts, live topics."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[Block] = ()
    scripts: Sequence[str] = ()  # names below static/
    styles: Sequence[str] = ()
    live: Sequence[str] = ()  # topics that the page follows, as in `run:abc`
    status: int = 200


class Pages:
    """Makes the HTML of pages; `navigation` are the entries of the menu."""

    def __init__(self, static: StaticFiles, navigation: Sequence[tuple[str, str]]) -> None:
        self.figures = Figures()
        self._templates = Environment(
            loader=PackageLoader("fairmile.web"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._navigation = navigation
        self._templates.globals |= {"static": static}
        self._templates.filters |= {"size": format_size}

    def response(self, request: Request, page: Page) -> Response:
        """Return a page, or the one block of it that a script asks for."""
        template = self._templates.get_template(page.template)
        identity = request.scope["fairmile.identity"]
        is_owner = not identity.has_account and not identity.is_visitor  # who needs no account has no page of it
        navigation = [entry for entry in self._navigation if entry[1] != "/account" or not is_owner]
        values = {
            **page.values,
            "page": page,
            "navigation": navigation,
            "path": request.url.path,
            "blocks": self._body(request, page.blocks),
        }
        part = request.headers.get(PART_HEADER)
        if part is None:
            text = template.render(values)
        elif part in template.blocks:
            text = "".join(template.blocks[part](template.new_context(values)))
        else:
            raise Refused(400, f"this page has no part named {part!r}")
        # The same address gives the page or a part of it.
        headers = {"cache-control": "no-cache", "vary": PART_HEADER}
        return tagged(request, text.encode("utf-8", "replace"), _HTML, headers, page.status)

    def _body(self, request: Request, blocks: Sequence[Block]) -> Markup:
        reader, address = request.scope["fairmile.identity"].name, f"{request.url.path}?{request.url.query}"
        return Markup(without_inline_styles(body_of(blocks, figure_at=self.figures.addresses(reader, address))))


def _shown(value: Any) -> Any:
    """Return a value of a template as it is shown: somebody's text without what could steer a reader."""
    return clean(value) if type(value) is str else "" if value is None else value
