"""7z archives of every usual method, and headers that lie."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from archive_making import MemorySink, make_tree, run, with_right_7z_checksums

from fairmile.base.digest import scan_tree
from fairmile.base.errors import FairmileError, Integrity, Unsupported, UsageError
from fairmile.store.archive_formats.reading import ListedSize
from fairmile.store.archives import listed_size, unpack

EMPTY = with_right_7z_checksums(b"7z\xbc\xaf\x27\x1c\0\4" + bytes(24))


def packed(folder: Path, *options: str) -> bytes:
    """Pack a small tree by the program."""
    tree = folder / "tree"
    if not tree.exists():
        make_tree(tree)
        (tree / "a" / "deep" / "large.bin").write_bytes(bytes(range(256)) * 20)
    (folder / "it.7z").unlink(missing_ok=True)
    run("7z", "a", "-snl", *options, folder / "it.7z", ".", cwd=tree)
    return (folder / "it.7z").read_bytes()


def unpacked(data: bytes) -> dict[str, bytes]:
    sink = MemorySink()
    return {each.path: sink.contents[each.sha256] for each in unpack(io.BytesIO(data), "it.7z", sink)}


def with_header(header: bytes) -> bytes:
    start = struct.pack("<QQL", 0, len(header), 0)
    return with_right_7z_checksums(b"7z\xbc\xaf\x27\x1c\0\4" + bytes(4) + start + header)


@pytest.mark.parametrize(
    "options",
    [
        ["-m0=copy"],
        ["-m0=lzma"],
        ["-m0=lzma2"],
        ["-m0=bzip2"],
        ["-m0=deflate"],
        ["-m0=delta:4", "-m1=lzma2"],
        ["-m0=delta:2", "-m1=lzma"],
        ["-m0=bcj", "-m1=lzma2"],
        ["-ms=off"],
        ["-mhc=off"],
    ],
    ids=" ".join,
)
def test_each_usual_method_is_decoded(tmp_path: Path, options: list[str]) -> None:
    data = packed(tmp_path, *options)
    entries = unpack(io.BytesIO(data), "it.7z", MemorySink())
    expected = list(scan_tree(tmp_path / "tree"))
    assert sorted(entries, key=lambda entry: entry.path.encode()) == expected
    assert listed_size(io.BytesIO(data), "it.7z") == ListedSize(len(expected), sum(e.size_bytes for e in expected))


@pytest.mark.parametrize(
    ("options", "called"),
    [
        (["-m0=ppmd"], "PPMd"),
        (["-m0=bcj2"], "BCJ2"),
        (["-m0=deflate64"], "Deflate64"),
        (["-m0=bcj", "-m1=lzma"], "LZMA and method 03030103"),
    ],
)
def test_other_methods_are_named(tmp_path: Path, options: list[str], called: str) -> None:
    with pytest.raises(Unsupported, match=rf"^it\.7z is compressed by {called}.*, which is not supported(?:\n|$)"):
        unpacked(packed(tmp_path, *options))


@pytest.mark.parametrize("options", [["-psecret"], ["-psecret", "-mhe=on"]])
def test_encrypted_archives_are_not_supported(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(Unsupported, match=r"^it\.7z is encrypted(?:\n|$)"):
        unpacked(packed(tmp_path, *options))


def test_an_empty_archive_holds_nothing() -> None:
    assert unpacked(EMPTY) == {}
    assert listed_size(io.BytesIO(EMPTY), "it.7z") == ListedSize(0, 0)


def test_an_archive_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data = packed(tmp_path)
    for length in range(len(data)):
        with pytest.raises(Integrity, match=r"^it\.7z: "):
            unpacked(data[:length])


@pytest.mark.parametrize("options", [["-m0=lzma2"], ["-m0=copy", "-mhc=off"]])
def test_a_flipped_bit_is_found(tmp_path: Path, options: list[str]) -> None:
    data = packed(tmp_path, *options)
    sound = unpacked(data)
    for place in range(0, len(data), 3):
        flipped = bytearray(data)
        flipped[place] ^= 4
        try:
            assert unpacked(bytes(flipped)) == sound, place
        except FairmileError as error:
            assert str(error).startswith("it.7z: ")


def test_a_wrong_checksum_names_the_member(tmp_path: Path) -> None:
    data = bytearray(packed(tmp_path, "-m0=copy"))
    data[data.index(b"hello\n") + 2] ^= 1
    with pytest.raises(Integrity, match=r"^it\.7z: the member 'a/text\.txt' is damaged: its checksum is wrong(?:\n|$)"):
        unpacked(bytes(data))


def test_a_header_that_unpacks_to_itself_is_refused() -> None:
    # A packed header: one copied stream of 20 bytes at the header's own place.
    header = bytes([0x17, 6, 0, 1, 9, 20, 0, 7, 0x0B, 1, 0, 1, 1, 0, 0x0C, 20, 0, 0])
    header += bytes(20 - len(header))
    with pytest.raises(Integrity, match="is packed too many times"):
        unpacked(with_header(header))


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\x02", "begins with 0x2"),
        (b"\x01\x09", "has an unknown part 0x9"),
        (b"\x01\x05\xff" + b"\xff" * 8, "announces 18,446,744,073,709,551,615 items"),
        (b"\x01\x05\x02\x00\x00", "lacks names"),
        (b"\x01\x05\x01\x11\x05\x00a\x00\x00\x00\x00\x00", "more or fewer files than contents"),
        (b"\x01\x05\x01\x11\x03\x00\x00\xd8\x00\x00", "is not UTF-16"),
        (b"\x01", "is cut off"),
    ],
)
def test_a_header_that_cannot_be_is_refused(header: bytes, reason: str) -> None:
    with pytest.raises(Integrity, match=rf"^it\.7z: the header of the 7z archive .*{reason}"):
        unpacked(with_header(header))


def test_a_header_of_gigabytes_is_refused_before_it_is_read() -> None:
    start = struct.pack("<QQL", 0, 1 << 33, 0)
    data = with_right_7z_checksums(b"7z\xbc\xaf\x27\x1c\0\4" + bytes(4) + start)
    with pytest.raises(Unsupported, match="has a header of 8,589,934,592 bytes"):
        unpacked(data)


def test_unsafe_names_are_refused(tmp_path: Path) -> None:
    data = packed(tmp_path, "-mhc=off")
    old, new = "run.sh".encode("utf-16-le"), "../out".encode("utf-16-le")
    with pytest.raises(UsageError, match=r"the member '\.\./out' leaves its folder"):
        unpacked(with_right_7z_checksums(data.replace(old, new)))
