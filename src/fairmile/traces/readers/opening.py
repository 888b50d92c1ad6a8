"""Opens traces, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from fairmile.base.errors import NotFound, SystemFailure

BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)


def open_trace(file: Path) -> IO[bytes]:
    """Open a trace, unpacking what is gzipped."""
    try:
        stream = file.open("rb")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {file}") from error
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error.strerror or error}") from error
    if stream.read(2) == b"\x1f\x8b":
        stream.close()
        return cast("IO[bytes]", gzip.open(file))
    stream.seek(0)
    return stream


def read_block(stream: IO[bytes], size_bytes: int) -> bytes:
    """Return the next bytes, fewer where the trace ends or is damaged: what is whole before that place is not lost."""
    pieces: list[bytes] = []
    while size_bytes > 0:
        try:
            piece = cast(BufferedReader, stream).read1(size_bytes)
        except BROKEN:
            if not pieces:
                raise
            break
        if not piece:
            break
        pieces.append(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)


def head_of(file: Path, size_bytes: int = 64 << 10) -> bytes:
    """Return the beginning of a trace, unpacked."""
    with open_trace(file) as stream:
        try:
            return read_block(stream, size_bytes)
        except BROKEN:
            return b""
