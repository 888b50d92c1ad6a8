"""The files that pages load: our own scripts and styles, and those of others below `vendor/`.

All of them are read when the server starts. An address names a file of that table or nothing, so no path can lead out.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from fairmile.web.answers import tagged
from fairmile.web.errors import Refused

_SHARED = ("page.css", "page.js")  # of reports: one look
_FOREVER = "public, max-age=31536000, immutable"
_SERVED = (".css", ".js", ".svg", ".woff2")


class StaticFile:
    """A file, and the digest by which a page names exactly this one."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.integrity = f"sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode()}"
        self.address = f"/static/{name}?{hashlib.sha256(data).hexdigest()[:12]}"
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.media_type = f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type


class StaticFiles:
    """Every file that may be served below `/static/`."""

    def __init__(self) -> None:
        reports = resources.files("fairmile.reports")
        shared = {name: StaticFile(name, reports.joinpath(name).read_bytes()) for name in _SHARED}
        own = {each.name: each for each in _files(resources.files("fairmile.web").joinpath("static"))}
        self.files: Mapping[str, StaticFile] = shared | own

    def __getitem__(self, name: str) -> StaticFile:
        return self.files[name]

    def response(self, request: Request) -> Response:
        """Answer a request for a file; one that names its digest may be kept for ever."""
        file = self.files.get(request.path_params["name"])
        if file is None:
            raise Refused(404, "no such file")
        is_exact = request.url.query and request.url.query == file.address.partition("?")[2]
        return tagged(request, file.data, file.media_type, {"cache-control": _FOREVER if is_exact else "no-cache"})


def _files(folder: Traversable, prefix: str = "") -> Iterator[StaticFile]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SERVED):
            yield StaticFile(f"{prefix}{entry.name}", entry.read_bytes())
