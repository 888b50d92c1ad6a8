"""http:// and https://: byte ranges over pooled connections."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from fairmile.transfer.http import Client, HttpBody
from fairmile.transfer.remote import Context, Remote


class Http:
    """Reads byte ranges of web addresses."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)

    def find(self, address: str) -> list[Remote]:
        answer = self.client.head(address)
        name = _file_name(answer.head.headers.get("content-disposition", ""), address)
        return [Remote(address, name, answer.size_bytes, validator=answer.validator)]

    def open(self, remote: Remote, start: int, stop: int | None) -> HttpBody:
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()


def _file_name(disposition: str, address: str) -> str:
    """Return the name a file goes by: what the server says, else the end of the address."""
    for part in disposition.split(";"):
        key, _, value = part.strip().partition("=")
        if key.lower() == "filename":
            name = PurePosixPath(value.strip().strip('"').replace("\\", "/")).name
            if name not in ("", ".", ".."):
                return name
    return PurePosixPath(unquote(urlsplit(address).path)).name or "index.html"
