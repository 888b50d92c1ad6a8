"""openml:NUMBER: the file of an OpenML data set."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from fairmile.base.digest import Checksum, parse_checksum
from fairmile.base.errors import Integrity, NotFound, SystemFailure, UsageError
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Body, Context, Remote

_ADDRESS = re.compile(r"openml:([0-9]{1,12})", re.IGNORECASE)


class OpenML:
    """Finds the file of a data set with its MD5."""

    def __init__(self, context: Context) -> None:
        self.client = Client(context)
        self._home = context.settings.hubs["openml"].rstrip("/")

    def find(self, address: str) -> list[Remote]:
        """Return the file of a data set, by its description."""
        number = data_set_number(address)
        try:
            answer = json.loads(description(self.client, self._home, number))
        except ValueError as error:
            raise Integrity(f"OpenML does not answer with JSON for openml:{number}") from error
        about: Any = answer.get("data_set_description") if isinstance(answer, dict) else None
        url = about.get("url") if isinstance(about, dict) else None
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise Integrity(f"OpenML names no file for openml:{number}")
        stated = about.get("md5_checksum")
        checksum: Checksum | None = parse_checksum(stated, "md5") if isinstance(stated, str) else None
        name = unquote(urlsplit(url).path.rpartition("/")[2]) or f"openml-{number}"
        head = self.client.head(url)
        return [Remote(url, name, head.size_bytes, (checksum,) if checksum else (), head.validator)]

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        """Open the bytes from `start` up to, without, `stop`."""
        return self.client.open(remote.address, start, stop, headers=remote.headers, validator=remote.validator)

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.client.close()


def description(client: Client, home: str, number: str) -> bytes:
    """Return the description of a data set in JSON, as OpenML gives it; NotFound where there is none."""
    head, body = client.ask("GET", f"{home}/api/v1/json/data/{number}", {"Accept": "application/json"})
    if head.status in (404, 412):  # its word for an unknown number is 412
        raise NotFound(f"no data set openml:{number}", hint=f"look at {home}/d/{number}")
    if head.status != 200:
        raise SystemFailure(f"OpenML answers {head.status} {head.reason} for openml:{number}")
    return body


def data_set_number(address: str) -> str:
    """Return the number of the data set that an address means."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UsageError(f"{shown_address(address)!r} does not name an OpenML data set", hint="expected openml:NUMBER")
    return match[1]
