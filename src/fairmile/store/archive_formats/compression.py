"""Compressed streams expanded piece by piece: gzip, bzip2, xz, Zstandard and what zip and 7z use inside."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from fairmile.base.errors import FairmileError, MissingExtra, Unsupported
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.store.archive_formats.reading import PIECE_BYTES
from fairmile.store.objects import Readable

# What a decoder may keep of the stream behind it. `xz -9` needs 64 MiB and `zstd --ultra -22` 128 MiB.
WINDOW_BYTES = 128 << 20
_ZSTD_WINDOW_LOG = WINDOW_BYTES.bit_length() - 1


class Decoder(Protocol):
    """What the decompressor objects of bz2, lzma and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Codec(NamedTuple):
    """How to start decoding, and what the decoder raises on damaged data."""

    start: Callable[[], Decoder]
    errors: tuple[type[Exception], ...]


class _Zlib:
    """Give zlib's decompressor the manners of the others."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not (self._inner.eof or self._full or self._inner.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._full = len(out) == max_length
        return out


class _ZlibOrRaw(_Zlib):
    def __init__(self) -> None:
        super().__init__(zlib.MAX_WBITS)
        self._is_first = True

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if self._is_first and data:
            self._is_first = False
            if data[0] & 0x0F != 8:  # zlib's header names its method first
                self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
        return super().decompress(data, max_length)


def codec(name: str, archive: str) -> Codec:
    """Return the codec called gz, deflate, bz2, xz or zst; Unsupported when its library is missing."""
    if name == "gz":
        return Codec(lambda: _Zlib(16 + zlib.MAX_WBITS), (zlib.error,))
    if name == "deflate":
        return Codec(lambda: _Zlib(-zlib.MAX_WBITS), (zlib.error,))
    if name == "bz2":
        return Codec(bz2.BZ2Decompressor, (OSError, ValueError))
    if name == "xz":
        return Codec(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW_BYTES), (lzma.LZMAError,))
    zstd = zstd_library(archive)
    options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return Codec(lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError,))


def zlib_stream() -> Codec:
    """Return the codec for deflated data with zlib's header, or without any, as some web servers send them."""
    return Codec(_ZlibOrRaw, (zlib.error,))


def raw_lzma(filters: list[dict[str, Any]]) -> Codec:
    """Return the codec for a chain of liblzma's filters without any header."""
    return Codec(lambda: lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters), (lzma.LZMAError,))


def lzma1_filter(properties: bytes) -> dict[str, Any] | None:
    """Return liblzma's filter for the five bytes that describe LZMA data; None when they cannot be served."""
    if len(properties) != 5 or properties[0] >= 225:
        return None
    position_bits, rest = divmod(properties[0], 45)
    low_bits, context_bits = divmod(rest, 9)
    window = max(int.from_bytes(properties[1:], "little"), 4096)
    if window > WINDOW_BYTES or low_bits + context_bits > 4:
        return None
    return {"id": lzma.FILTER_LZMA1, "dict_size": window, "lc": context_bits, "lp": low_bits, "pb": position_bits}


def zstd_library(archive: str) -> Any:
    """Return Python's own module for Zstandard or, before Python 3.14, its backport."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise MissingExtra(f"{archive}: Zstandard needs backports.zstd", "archives") from error
    return zstd


class Expanded:
    """What a compressed stream expands to, in pieces of the size asked for; `damage` makes the error for bad data.

    One frame follows the other until the stream ends; zeros behind a frame are padding. With `frames` false the
    first frame is all, and what follows is not looked at.
    """

    def __init__(
        self, packed: Readable, codec: Codec, damage: Callable[[str], FairmileError], *, frames: bool = True
    ) -> None:
        self._packed, self._codec, self._damage, self._frames = packed, codec, damage, frames
        self._decoder: Decoder | None = None
        self._pending = b""
        self._begun = False
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._ended:
            if self._decoder is None and not self._start():
                break
            if out := self._decode(size):
                return out
        return b""

    def _start(self) -> bool:
        """Begin with the next frame; False when there is none."""
        if self._begun:
            self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            data = self._packed.read(PIECE_BYTES)
            if not data:
                if not self._begun:
                    raise self._damage("there is nothing to decompress")
                self._ended = True
                return False
            self._pending = data.lstrip(b"\0") if self._begun else data
        self._decoder, self._begun = self._codec.start(), True
        return True

    def _decode(self, size: int) -> bytes:
        decoder = self._decoder
        assert decoder is not None
        data, self._pending = self._pending, b""
        if not data and decoder.needs_input:
            data = self._packed.read(PIECE_BYTES)
            if not data:
                raise self._damage("the compressed data is truncated")
        try:
            out = decoder.decompress(data, size)
        except self._codec.errors as error:
            if "memory" in str(error).lower():
                raise Unsupported(
                    str(self._damage(f"decompressing needs more than {WINDOW_BYTES >> 20} MiB of memory: {error}")),
                    hint="unpack it by hand with the program that packed it, and add the folder",
                ) from error
            raise self._damage(f"the compressed data is damaged: {error}") from error
        if decoder.eof:
            self._pending, self._decoder = decoder.unused_data, None
            self._ended = not self._frames
        return out
