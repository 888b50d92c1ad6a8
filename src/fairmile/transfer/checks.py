"""Digests computed while bytes stream by, and what they are compared with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from fairmile.base.digest import Checksum
from fairmile.base.errors import Integrity, Unsupported
from fairmile.transfer.credentials import shown_address

# Algorithms that tell an accident but not an attack are still worth checking where a card offers nothing else.
_KNOWN = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5", "crc32c")
_HTML = (b"<!doctype html", b"<html")
_TITLE_WITHIN = 4096
# How web servers call the page that lists a folder: Apache, nginx, lighttpd, Python.
_LISTING = re.compile(rb"<title>\s*(index of|directory listing for) /", re.IGNORECASE)


class Digester:
    """Computes the sha256 of a stream and every further digest that it is to be compared with."""

    def __init__(self, expected: Sequence[Checksum] = ()) -> None:
        known = [sum for sum in expected if sum.algorithm in _KNOWN]
        # A crc32c tells nothing that a real digest does not, and needs a library.
        self.expected = tuple([sum for sum in known if sum.algorithm != "crc32c"] or known)
        self._sha256 = hashlib.sha256()
        self._others = {sum.algorithm: _new(sum.algorithm) for sum in self.expected if sum.algorithm != "sha256"}

    def update(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        for other in self._others.values():
            other.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def check(self, what: str) -> str:
        """Return the sha256, or raise Integrity when any digest differs from what is expected."""
        for wanted in self.expected:
            digest = self.sha256 if wanted.algorithm == "sha256" else self._others[wanted.algorithm].hexdigest()
            if digest != wanted.hex:
                raise Integrity(
                    f"{shown_address(what)}: received {wanted.algorithm} {digest}, expected {wanted.hex}",
                    hint="the source has a different file than the card describes, or the data is damaged in transit",
                )
        return self.sha256


def _new(algorithm: str) -> Any:
    if algorithm == "crc32c":
        return _Crc32c()
    return hashlib.new(algorithm, usedforsecurity=False)


class _Crc32c:
    def __init__(self) -> None:
        try:
            import google_crc32c
        except ImportError as error:
            raise Unsupported("a crc32c checksum needs google-crc32c: pip install google-crc32c") from error
        self._extend: Callable[[int, bytes], int] = google_crc32c.extend
        self._value = 0

    def update(self, data: bytes | memoryview) -> None:
        self._value = self._extend(self._value, bytes(data))

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def looks_like_page(head: bytes) -> bool:
    """Tell whether bytes are the beginning of a web page."""
    return head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML)


def is_listing(head: bytes, address: str) -> bool:
    """Tell whether a web server sends the list of a folder; that of the top folder is saved as index.html."""
    return address.endswith("/") and _LISTING.search(head[:_TITLE_WITHIN]) is not None


def page_error(head: bytes, shown: str, path: str) -> Integrity:
    """Return the error for a source that sends a web page instead of a file."""
    if _LISTING.search(head[:_TITLE_WITHIN]):
        return Integrity(
            f"{shown} is a directory listing instead of {path}", hint="fetch each file that it lists by its own address"
        )
    return Integrity(
        f"{shown} answers with a web page instead of {path}",
        hint="it may need a login, or the address is that of a page about the file",
    )


def is_page_name(path: str) -> bool:
    return path.lower().endswith((".html", ".htm", ".xhtml", ".shtml"))
