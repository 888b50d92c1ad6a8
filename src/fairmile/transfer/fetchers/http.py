"""http:// and https://: byte ranges over pooled connections."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote


class Http:
    """Reads byte ranges of web addresses."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)

    def find(self, address: str) -> list[Remote]:
        answer = self.client.head(address)
        name = _file_name(answer.head.headers.get("content-disposition", ""), address)
        return [Remote(address, name, answer.size_bytes, validator=answer.validator)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()


def _file_name(disposition: str, address: str) -> str:
    """Return the name a file goes by: what the server says, else the end of the address."""
    if "filename" in disposition.lower():
        from email.message import Message  # slow, and seldom needed

        message = Message()
        message["Content-Disposition"] = disposition
        given = (message.get_filename() or "").replace("\\", "/")
        with suppress(UnicodeError):  # browsers take bytes beyond ASCII for UTF-8
            given = given.encode("latin-1").decode("utf-8")
        name = "".join(letter for letter in PurePosixPath(given).name if letter.isprintable())
        if name not in ("", ".", ".."):
            return name
    return PurePosixPath(unquote(urlsplit(address).path)).name or "index.html"
