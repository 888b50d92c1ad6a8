"""Zip archives as many programs write them, and directories that lie."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from archive_making import MemorySink, run, zip_info, zip_of

from fairmile.base.errors import Integrity, Unsupported
from fairmile.store.archive_formats.reading import ListedSize
from fairmile.store.archives import listed_size, unpack, zip_listed_size

SMALL = zip_of(("a/one.txt", b"one" * 50), ("two", b"2"))


def unpacked(data: bytes) -> dict[str, bytes]:
    sink = MemorySink()
    return {each.path: sink.contents[each.sha256] for each in unpack(io.BytesIO(data), "it.zip", sink)}


def patched(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """Change bytes at an offset behind the first mark."""
    at = data.index(mark) + offset
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize("method", ["copy", "deflate", "bzip2", "lzma", "xz"])
def test_each_usual_method_is_decoded(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_bytes(b"content" * 1000)
    run("7z", "a", "-tzip", f"-mm={method}", tmp_path / "it.zip", tmp_path / "file")
    assert unpacked((tmp_path / "it.zip").read_bytes()) == {"file": b"content" * 1000}


@pytest.mark.parametrize(("method", "called"), [("deflate64", "Deflate64"), ("ppmd", "PPMd")])
def test_other_methods_are_named(tmp_path: Path, method: str, called: str) -> None:
    (tmp_path / "file").write_bytes(b"content" * 1000)
    run("7z", "a", "-tzip", f"-mm={method}", tmp_path / "it.zip", tmp_path / "file")
    with pytest.raises(Unsupported, match=rf"^it\.zip: the member 'file' is compressed by {called}, which is not"):
        unpacked((tmp_path / "it.zip").read_bytes())


@pytest.mark.parametrize("way", ["ZipCrypto", "AES256"])
def test_encrypted_members_are_not_supported(tmp_path: Path, way: str) -> None:
    (tmp_path / "file").write_bytes(b"content")
    run("7z", "a", "-tzip", "-psecret", f"-mem={way}", tmp_path / "it.zip", tmp_path / "file")
    with pytest.raises(Unsupported, match=r"^it\.zip: the member 'file' is encrypted(?:\n|$)"):
        unpacked((tmp_path / "it.zip").read_bytes())


def test_a_program_before_the_archive_and_a_comment_behind_it_do_not_matter() -> None:
    out = io.BytesIO(SMALL)
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = b"a comment with PK\5\6 in it" + bytes(40)
    data = b"#!/bin/sh\n" * 10 + out.getvalue()
    assert unpacked(data) == {"a/one.txt": b"one" * 50, "two": b"2"}
    assert zip_listed_size(data, len(data)) == ListedSize(2, 151)


def test_an_archive_that_was_written_as_a_stream_is_read() -> None:
    class Pipe(io.RawIOBase):
        parts: list[bytes] = []  # noqa: RUF012

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.parts.append(bytes(data))  # type: ignore[call-overload]
            return len(self.parts[-1])

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        archive.writestr("a", b"content" * 100)
    assert unpacked(b"".join(pipe.parts)) == {"a": b"content" * 100}


def test_records_for_large_archives_are_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, archive.open("a", "w", force_zip64=True) as member:
        member.write(b"content")
    data = out.getvalue()
    # Sizes and offset move from the entry into a record of its own, and the end into the large end record.
    entry = data.index(b"PK\1\2")
    wide = struct.pack("<HHQQQ", 1, 24, 7, 7, 0)
    central = bytearray(data[entry : data.index(b"PK\5\6")])
    central[20:28], central[42:46], central[30:32] = b"\xff" * 8, b"\xff" * 4, struct.pack("<H", len(wide))
    central += wide
    place = entry + len(central)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(central), entry)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, place, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    large = data[:entry] + bytes(central) + end64 + locator + end
    assert unpacked(large) == {"a": b"content"}
    assert unpacked(b"before" + large) == {"a": b"content"}
    with pytest.raises(Integrity, match="the end record of the large zip archive is damaged"):
        unpacked(large.replace(b"PK\6\6", b"PK\6\0"))


@pytest.mark.thorough
def test_more_members_than_the_old_end_record_can_count_are_all_listed() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(66_000):
            archive.writestr(f"{number}", b"")
    assert listed_size(out, "it.zip") == ListedSize(66_000, 0)


def test_names_from_dos_are_in_its_own_code_page_and_may_have_backslashes() -> None:
    data = zip_of((zip_info("xxxxxxx", system=0), b"x"))
    assert unpacked(data.replace(b"xxxxxxx", b"a\\\x81ber.")) == {"a/über.": b"x"}


def test_names_from_unix_are_utf8_even_where_nothing_says_so() -> None:
    data = zip_of((zip_info("xxxx"), b"x")).replace(b"xxxx", "übe".encode())
    assert unpacked(data) == {"übe": b"x"}


def test_a_unicode_name_beside_the_old_one_is_used_when_it_belongs_to_it() -> None:
    info = zip_info("old", system=0)
    for old_name, expected in (b"old", "ü"), (b"new", "old"):
        name = b"\1" + struct.pack("<L", zlib.crc32(old_name)) + "ü".encode()
        info.extra = struct.pack("<HH", 0x7075, len(name)) + name
        assert unpacked(zip_of((info, b"x"))) == {expected: b"x"}


def test_a_wrong_checksum_names_the_member() -> None:
    data = patched(SMALL, b"PK\1\2", 16, b"\0\0\0\0")
    with pytest.raises(Integrity, match=r"^it\.zip: the member 'a/one\.txt' is damaged: its checksum is wrong(?:\n|$)"):
        unpacked(data)


@pytest.mark.parametrize(("size", "reason"), [(20, "its checksum is wrong"), (10_000, "is shorter than 10,000 bytes")])
def test_a_size_that_lies_names_the_member(size: int, reason: str) -> None:
    with pytest.raises(Integrity, match=rf"the member 'a/one\.txt' .*{reason}"):
        unpacked(patched(SMALL, b"PK\1\2", 24, struct.pack("<L", size)))


def test_a_member_that_lies_beyond_the_end_is_refused() -> None:
    with pytest.raises(Integrity, match=r"the member 'a/one\.txt' should be at byte 16,777,216"):
        unpacked(patched(SMALL, b"PK\1\2", 42, struct.pack("<L", 1 << 24)))
    with pytest.raises(Integrity, match=r"the member 'a/one\.txt' is cut off"):
        unpacked(patched(SMALL, b"PK\1\2", 20, struct.pack("<L", 1 << 24)))


def test_a_directory_that_does_not_hold_what_it_announces_is_refused() -> None:
    with pytest.raises(Integrity, match="has 2 members, expected 9"):
        unpacked(patched(SMALL, b"PK\5\6", 10, b"\x09\0"))
    with pytest.raises(Integrity, match=r"is damaged after 1 members"):
        unpacked(SMALL[: SMALL.rindex(b"PK\1\2")] + b"XX" + SMALL[SMALL.rindex(b"PK\1\2") + 2 :])


def test_one_of_several_volumes_is_not_supported() -> None:
    with pytest.raises(Unsupported, match=r"^it\.zip is one of several volumes"):
        unpacked(patched(SMALL, b"PK\5\6", 4, b"\1\0"))


def test_a_zip_without_its_beginning_is_refused() -> None:
    with pytest.raises(Integrity, match="its beginning is missing"):
        unpacked(SMALL[SMALL.index(b"PK\1\2") :])
