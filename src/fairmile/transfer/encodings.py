"""Answers that a server compressed though nobody asked it to: expanded while they are read."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from fairmile.base.errors import FairmileError, Integrity, Unsupported
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.archive_formats.compression import Codec, Expanded, codec, zlib_stream
from fairmile.transfer.credentials import shown_address

_PIECE = 64 << 10
# A server that calls the packing of a packed file its encoding means the file as it is stored.
_OWN_SUFFIXES = {
    "gzip": (".gz", ".tgz", ".svgz", ".bgz", ".mgz", ".rds", ".rda"),
    "br": (".br",),
    "zstd": (".zst", ".tzst"),
    "compress": (".z", ".taz"),
    "bzip2": (".bz2", ".tbz", ".tbz2"),
    "xz": (".xz", ".txz"),
    "deflate": (),
}


class _Sent(NamedTuple):
    """The body as it was sent, as a stream that can be read."""

    body: Any

    def read(self, size: int, /) -> bytes:
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: self.body.readinto(buffer)])


class Decoded:
    """A body that is expanded while it is read; how much it will be, nobody knows, and it starts at its first byte."""

    def __init__(self, body: Any, encoding: str, url: str) -> None:
        self.start = 0
        self.total_bytes: int | None = None
        self.validator: str = body.validator
        self.is_whole = True
        self._body = body
        where = shown_address(url)
        self._expanded = Expanded(_Sent(body), _codec(encoding, where), lambda why: Integrity(f"{where}: {why}"))
        self._rest = b""

    def readinto(self, buffer: memoryview) -> int:
        data = self._rest or self._expanded.read(max(len(buffer), _PIECE))
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        self._rest = data[count:]
        return count

    def interrupt(self) -> None:
        self._body.interrupt()

    def close(self) -> None:
        self._body.close()


def encoding_of(header: str, url: str) -> str:
    """Return the encoding in which an answer was sent; empty where the bytes are those of the file.

    `header` is the Content-Encoding. More than one encoding, or an unknown one, is Unsupported.
    """
    names = [name for name in (each.strip().lower().removeprefix("x-") for each in header.split(",")) if name]
    names = [name for name in names if name != "identity"]
    if not names:
        return ""
    suffixes = [_OWN_SUFFIXES.get(name) for name in names]
    if len(names) == 1 and suffixes[0] is not None and unquote(urlsplit(url).path).lower().endswith(suffixes[0]):
        return ""
    if len(names) > 1 or names[0] not in ("gzip", "deflate", "zstd"):
        raise _unreadable(shown_address(url), ", ".join(names))
    return names[0]


def _codec(encoding: str, where: str) -> Codec:
    if encoding == "gzip":
        return codec("gz", where)
    return zlib_stream() if encoding == "deflate" else codec("zst", where)


def _unreadable(where: str, encoding: str) -> FairmileError:
    return Unsupported(
        f"{where} sends the file with Content-Encoding {encoding!r}, although none was requested",
        hint="ask its owner to serve the file as it is, or fetch it with a program: curl+https://…",
    )
