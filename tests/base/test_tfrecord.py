"""TFRecord framing: checksums with and without a package for them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import Integrity
from fairmile.base.tfrecord import crc32c, plain_crc32c, read_records, record


@given(st.binary(max_size=200))
def test_the_checksum_without_a_package_is_the_same(data: bytes) -> None:
    assert plain_crc32c(data) == crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_records_are_read_as_they_were_written() -> None:
    stream = io.BytesIO(record(b"one") + record(b"long" * 9) + record(b""))
    assert list(read_records(stream, longest_bytes=10)) == [b"one", b""]


def test_a_wrong_length_is_refused() -> None:
    with pytest.raises(Integrity, match="the checksum of the length of record 1 is wrong"):
        list(read_records(io.BytesIO(b"x" * 40), longest_bytes=10))
