"""Compressed streams expand in pieces, and need no more memory than we allow."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import zlib
from pathlib import Path

import pytest
from archive_making import OnlyReads, run
from backports import zstd
from cases import for_each
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmile.base.errors import Integrity, Unsupported
from fairmile.store.archive_formats.compression import Expanded, codec
from fairmile.store.archive_formats.reading import damaged

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


def expanded(name: str, data: bytes, *, given: int = 1000, wanted: int = 1000) -> bytes:
    stream = Expanded(OnlyReads(data, given), codec(name, "it"), lambda what: damaged("it", what))
    out = io.BytesIO()
    while piece := stream.read(wanted):
        assert len(piece) <= wanted
        out.write(piece)
    return out.getvalue()


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(sorted(PACK)),
    parts=st.lists(st.binary(max_size=300).map(lambda part: part * 20), min_size=1, max_size=4),
    given=st.integers(1, 3000),
    wanted=st.integers(1, 3000),
)
def test_the_pieces_never_exceed_what_is_asked_for_and_make_up_the_whole(
    name: str, parts: list[bytes], given: int, wanted: int
) -> None:
    data = b"".join(PACK[name](part) for part in parts)
    assert expanded(name, data, given=given, wanted=wanted) == b"".join(parts)


@for_each("size", range(1, 60))
def test_bytes_that_the_decoder_still_holds_when_its_input_is_used_up_are_not_lost(size: int) -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    data = packer.compress(bytes(size)) + packer.flush()
    stream = Expanded(OnlyReads(data), codec("deflate", "it"), lambda what: damaged("it", what), frames=False)
    assert b"".join(iter(lambda: stream.read(7), b"")) == bytes(size)


def test_frames_that_hold_nothing_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    run("pzstd", "-q", "-p", "2", tmp_path / "file")
    assert expanded("zst", (tmp_path / "file.zst").read_bytes()) == b"content" * 100_000


@pytest.mark.parametrize("name", PACK)
def test_an_empty_stream_is_damaged(name: str) -> None:
    with pytest.raises(Integrity, match="there is nothing to decompress"):
        expanded(name, b"")


def test_zstandard_with_too_large_a_window_is_not_supported() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
    data = packer.compress(b"content") + packer.flush()
    with pytest.raises(Unsupported, match="needs more than 128 MiB of memory"):
        expanded("zst", data)


def test_xz_with_too_large_a_dictionary_is_not_supported() -> None:
    data = bytearray(lzma.compress(b"content"))
    block = data[12 : 12 + 4 * (data[12] + 1)]
    assert block[2:4] == b"\x21\1"
    block[4] = 38  # a dictionary of 2 GiB
    block[-4:] = struct.pack("<L", zlib.crc32(bytes(block[:-4])))
    data[12 : 12 + len(block)] = block
    with pytest.raises(Unsupported, match="needs more than 128 MiB of memory"):
        expanded("xz", bytes(data))
