"""data: addresses (RFC 2397): a small file that stands in the address itself, such as the flow in a card."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from fairmile.base.errors import UsageError
from fairmile.transfer.fetchers.file import TextBody
from fairmile.transfer.remote import Context, Remote

_NAME = "data"  # what it holds has no name; a card gives it one
_SHOWN = 40


class Data:
    """Reads the bytes that an address holds."""

    def __init__(self, context: Context) -> None:
        pass  # neither credentials nor settings

    def find(self, address: str) -> list[Remote]:
        return [Remote(address, _NAME, len(_content(address)))]

    def open(self, remote: Remote, start: int, stop: int | None) -> TextBody:
        return TextBody(_content(remote.address), start, stop)


def _content(address: str) -> bytes:
    head, comma, text = address.partition(",")
    if not comma:
        raise UsageError(
            f"{address[:_SHOWN]!r} has no comma before its content", hint="expected data:MEDIA/TYPE,CONTENT"
        )
    content = unquote_to_bytes(text)
    if not head.lower().endswith(";base64"):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        raise UsageError(f"the content of {address[:_SHOWN]!r} is not base64") from None
