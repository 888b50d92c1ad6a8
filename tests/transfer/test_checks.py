"""Digests of what streams by, and pages that pretend to be data."""

from __future__ import annotations

import hashlib
import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.digest import Checksum, parse_checksum
from fairmile.base.errors import Integrity, Unsupported
from fairmile.transfer.checks import Digester, is_page_name, looks_like_page

DATA = b"all that came" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


def checksums(data: bytes) -> dict[str, Checksum]:
    names = ("sha256", "sha512", "sha384", "sha224", "sha1", "md5")
    return {name: Checksum(name, hashlib.new(name, data).hexdigest()) for name in names}


@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_pieces_have_the_digest_of_the_whole(data: bytes, cuts: list[int]) -> None:
    digester = Digester(list(checksums(data).values()))
    edges = [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        digester.update(memoryview(data)[start:stop])
    assert digester.check("it") == hashlib.sha256(data).hexdigest()


def test_without_anything_expected_the_sha256_is_told() -> None:
    digester = Digester()
    digester.update(DATA)
    assert digester.check("it") == digester.sha256 == SHA256


@pytest.mark.parametrize("name", ["sha256", "sha512", "sha384", "sha224", "sha1", "md5"])
def test_a_wrong_byte_is_caught_by_any_digest(name: str) -> None:
    digester = Digester([checksums(DATA)[name]])
    digester.update(b"b" + DATA[1:])
    with pytest.raises(Integrity, match=rf"http://h/x: received {name} [0-9a-f]+, expected") as caught:
        digester.check("http://me:hunter2@h/x")
    assert checksums(DATA)[name].hex in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint


def test_every_digest_must_fit() -> None:
    expected = checksums(DATA)
    digester = Digester([expected["sha256"], Checksum("md5", "0" * 32)])
    digester.update(DATA)
    with pytest.raises(Integrity, match="received md5"):
        digester.check("it")


def test_a_crc32c_is_computed() -> None:
    pytest.importorskip("google_crc32c")
    known = parse_checksum("e3069283", "crc32c")  # RFC 3720: of the digits 1 to 9
    assert known is not None
    digester = Digester([known])
    for digit in b"123456789":
        digester.update(memoryview(bytes([digit])))
    digester.check("it")
    digester.update(b"0")
    with pytest.raises(Integrity, match="received crc32c"):
        digester.check("it")


def test_a_crc32c_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(Unsupported, match="pip install google-crc32c"):
        Digester([Checksum("crc32c", "e3069283")])


@pytest.mark.parametrize(
    "head",
    [
        b"<!DOCTYPE html>",
        b"<!doctype HTML PUBLIC",
        b"<html lang='en'>",
        b"<HTML>",
        b"\xef\xbb\xbf  \r\n\t<!DOCTYPE html>",
        b"\n" * 300 + b"<html>",
    ],
)
def test_a_page_is_recognised(head: bytes) -> None:
    assert looks_like_page(head + b" and more" * 100)


@pytest.mark.parametrize("head", [b"", b"\x89HDF\r\n", b"<?xml version='1.0'?><data/>", b"html", b"x<html>", b"<htm"])
def test_data_is_no_page(head: bytes) -> None:
    assert not looks_like_page(head)


@pytest.mark.parametrize("name, is_page", [("a.html", True), ("a/b.HTM", True), ("x.xhtml", True), ("a.csv", False)])
def test_a_file_may_be_a_page_by_its_name(name: str, is_page: bool) -> None:
    assert is_page_name(name) is is_page
