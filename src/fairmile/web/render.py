"""Pages from templates and from the blocks of reports, all text escaped."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib.metadata import version
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined, select_autoescape
from jinja2.bccache import Bucket
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from fairmile.base.errors import FairmileError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size
from fairmile.reports.blocks import Block, clean
from fairmile.reports.html import body_of, prose
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


class _Compiled(BytecodeCache):
    """Keeps compiled templates beside compiled modules, trusted as those are; where Python keeps none, it keeps none.

    To compile those of one page takes longer than to fill them.
    """

    def __init__(self) -> None:
        templates = Path(__file__).with_name("templates")
        self._folder = Path(cache_from_source(templates / "base.html")).parent
        self._made_by = f"{version('jinja2')}-{os.stat(__file__).st_mtime_ns:x}"  # templates depend on the options here

    def _file(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}-{self._made_by}.{sys.implementation.cache_tag}.template"

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError), open(self._file(bucket), "rb") as stream:
            bucket.load_bytecode(stream)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with contextlib.suppress(FairmileError, OSError):
                write_atomic(self._file(bucket), bucket.bytecode_to_string(), sync=False)


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
            bytecode_cache=_Compiled(),
        )
        self._navigation = navigation
        self._templates.globals |= {"static": static}
        self._templates.filters |= {"size": format_size, "prose": lambda text: Markup(prose(str(text)))}

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
