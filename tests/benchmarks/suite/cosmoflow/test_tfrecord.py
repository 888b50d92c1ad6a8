from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
from cases import for_each

from fairmile.base.errors import Integrity, SystemFailure
from fairmile.benchmarks.suite.cosmoflow import tfrecord
from fairmile.benchmarks.suite.cosmoflow.tfrecord import (
    crc32c,
    make_example,
    masked,
    parse_example,
    plain_crc32c,
    records,
    write_records,
)


@pytest.mark.parametrize("check", [crc32c, plain_crc32c])
@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksums_are_those_of_the_standard(check, data, value):
    assert check(data) == value


@for_each("many", [4096 * 8, 4096 * 8 + 1, 4096 * 37 + 4095])
def test_the_checksum_without_the_library_is_the_same_for_long_data(many):
    data = np.random.default_rng(many).bytes(many)
    assert plain_crc32c(data) == crc32c(data)


def test_a_record_is_laid_out_as_tensorflow_writes_it(tmp_path):
    # Bytes of tf.io.TFRecordWriter for the one record b"abc", with the checksums worked out by hand.
    write_records(tmp_path / "a.tfrecord", [b"abc"], is_gzip=False)
    content = (tmp_path / "a.tfrecord").read_bytes()
    assert content[:8] == b"\x03" + bytes(7)
    assert content[12:15] == b"abc"
    assert int.from_bytes(content[8:12], "little") == masked(crc32c(content[:8]))
    assert int.from_bytes(content[15:], "little") == masked(0x364B3FB7)
    assert masked(0x364B3FB7) == 0x21F1576E  # (x >> 15 | x << 17) + 0xa282ead8


def test_an_example_is_the_protocol_buffer_that_tensorflow_writes():
    example = make_example({"y": np.array([1.0, -2.0], np.float32)})
    packed = np.array([1.0, -2.0], "<f4").tobytes()
    inner = b"\x12\x0a\x0a\x08" + packed  # Feature.float_list { value: packed }
    entry = b"\x0a\x01y\x12" + bytes([len(inner)]) + inner
    features = b"\x0a" + bytes([len(entry)]) + entry
    assert example == b"\x0a" + bytes([len(features)]) + features


@pytest.mark.parametrize("is_gzip", [True, False])
def test_what_is_written_is_read(tmp_path, is_gzip):
    given = {"x": os.urandom(70000), "y": np.arange(4, dtype=np.float32), "n": np.array([3, -1, 1 << 40])}
    file = tmp_path / "a.tfrecord"
    write_records(file, [make_example(given), make_example({"y": given["y"]})], is_gzip=is_gzip)
    assert (file.read_bytes()[:2] == b"\x1f\x8b") is is_gzip
    first, second = (parse_example(data, file) for data in records(file))
    assert first["x"] == given["x"]
    assert np.array_equal(first["y"], given["y"])
    assert np.array_equal(first["n"], given["n"])
    assert list(second) == ["y"]


def test_floats_that_are_not_packed_are_read_too(tmp_path):
    inner = b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1.5, 2.5))
    feature = b"\x12" + bytes([len(inner)]) + inner
    entry = b"\x0a\x01y\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    found = parse_example(b"\x0a" + bytes([len(features)]) + features, tmp_path)
    assert found["y"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize("place", [3, 9, 20, -2])
def test_a_changed_byte_is_found(tmp_path, place):
    file = tmp_path / "a.tfrecord"
    write_records(file, [os.urandom(100)], is_gzip=False)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(Integrity, match=r"a\.tfrecord: the checksum of .*record 1 is wrong"):
        list(records(file))


@pytest.mark.parametrize("length", [5, 50, 114])
def test_a_file_that_is_cut_off_is_found(tmp_path, length):
    file = tmp_path / "a.tfrecord"
    write_records(file, [os.urandom(100)], is_gzip=False)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(Integrity, match="record 1 is truncated"):
        list(records(file))


def test_a_damaged_gzip_stream_an_empty_and_a_missing_file_are_told_apart(tmp_path):
    file = tmp_path / "a.tfrecord"
    file.write_bytes(gzip.compress(os.urandom(100))[:-20])
    with pytest.raises(Integrity, match="gzip stream is damaged"):
        list(records(file))
    file.write_bytes(b"")
    with pytest.raises(Integrity, match="is empty"):
        list(records(file))
    with pytest.raises(SystemFailure, match="cannot read"):
        list(records(tmp_path / "missing"))


@pytest.mark.parametrize("data", [b"\x0a\xff", b"\x0a\x03\x0a\x01\x0f", b"\x0a\x05ab"])
def test_a_record_that_is_no_example_is_told(tmp_path, data):
    with pytest.raises(Integrity, match="is not an Example message"):
        parse_example(data, tmp_path / "a.tfrecord")


def test_files_are_read_on_a_machine_without_the_library_for_checksums(tmp_path, monkeypatch):
    file = tmp_path / "a.tfrecord"
    data = os.urandom(40000)
    write_records(file, [data])
    monkeypatch.setattr(tfrecord, "_fast", None)
    assert list(records(file)) == [data]
