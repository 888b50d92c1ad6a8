"""Figures of pages, drawn when somebody looks at them: a page is there at once, however many figures it has.

A page gives each of its figures an address that nobody can guess. The server remembers how to draw the newest of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable

from fairmile.reports.figures import Picture
from fairmile.web.errors import Refused

_MOST_FIGURES = 300


class Figures:
    """The figures of the pages that were asked for last, by the end of their address."""

    def __init__(self, most: int = _MOST_FIGURES) -> None:
        self._most = most
        self._secret = secrets.token_bytes(32)
        self._pictures: OrderedDict[str, Picture] = OrderedDict()
        self._changing = threading.Lock()

    def addresses(self, reader: str, page: str) -> Callable[[Picture], str]:
        """Return what gives the figures of one page of one reader their addresses; the same each time."""
        count = 0

        def address(picture: Picture) -> str:
            nonlocal count
            count += 1
            text = "\0".join((reader, page, str(count), picture.name))
            token = hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:32]
            with self._changing:
                self._pictures[token] = picture
                self._pictures.move_to_end(token)
                while len(self._pictures) > self._most:
                    self._pictures.popitem(last=False)
            return f"/figures/{token}"

        return address

    def __getitem__(self, token: str) -> Picture:
        with self._changing:
            picture = self._pictures.get(token)
        if picture is None:
            raise Refused(404, "this figure no longer exists", hint="load its page again")
        return picture
