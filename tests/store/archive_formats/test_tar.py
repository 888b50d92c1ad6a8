"""Tar archives of every style that programs write, and headers that lie."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from archive_making import MemorySink, run, tar_member, tar_of, with_right_tar_checksums

from fairmile.base.errors import Integrity, Unsupported, UsageError
from fairmile.store.archive_formats.reading import ListedSize
from fairmile.store.archives import listed_size, unpack


def unpacked(data: bytes, name: str = "it.tar") -> dict[str, bytes]:
    sink = MemorySink()
    return {each.path: sink.contents[each.sha256] for each in unpack(io.BytesIO(data), name, sink)}


def header(**fields: object) -> bytearray:
    """Return the one header of a tar archive; its checksum is to be mended after a change."""
    return bytearray(tar_of(tar_member("a", b"x", **fields))[:512])


def mended(block: bytes | bytearray, rest: bytes = b"") -> bytes:
    return with_right_tar_checksums(bytes(block)) + rest + bytes(1024)


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"],
        ["--format=posix", "--sparse-version=0.0"],
        ["--format=posix", "--sparse-version=0.1"],
        ["--format=posix"],
    ],
)
def test_sparse_files_come_out_whole(tmp_path: Path, options: list[str]) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        for number in range(40):  # more regions than one header holds
            file.seek(number * 100_000)
            file.write(b"region %d" % number)
        file.truncate(5_000_000)
    with open(tmp_path / "only hole", "wb") as file:
        file.truncate(100_000)
    run("tar", *options, "-S", "-cf", tmp_path / "it.tar", "-C", tmp_path, "sparse", "only hole")
    data = (tmp_path / "it.tar").read_bytes()
    assert len(data) < 1_000_000
    assert unpacked(data) == {name: (tmp_path / name).read_bytes() for name in ("sparse", "only hole")}
    assert listed_size(io.BytesIO(data), "it.tar") == ListedSize(2, 5_100_000)


@pytest.mark.parametrize("style", ["v7", "ustar"])
def test_old_styles_are_read(tmp_path: Path, style: str) -> None:
    folder = tmp_path / ("f" * 60) / ("g" * 30)
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"content")
    run("tar", f"--format={style}", "-cf", tmp_path / "it.tar", "-C", tmp_path, "f" * 60)
    assert unpacked((tmp_path / "it.tar").read_bytes()) == {f"{'f' * 60}/{'g' * 30}/file": b"content"}


def test_a_long_path_is_split_into_prefix_and_name() -> None:
    path = "/".join(["folder"] * 20) + "/" + "n" * 90
    assert unpacked(tar_of(tar_member(path, b"x"), format=tarfile.USTAR_FORMAT)) == {path: b"x"}


def test_the_times_that_star_keeps_behind_the_prefix_are_no_part_of_the_name() -> None:
    block = header()
    block[257:265], block[345:351], block[476:487], block[508:512] = b"ustar\x0000", b"prefix", b"14000000000", b"tar\0"
    assert unpacked(mended(block, b"x" + bytes(511))) == {"prefix/a": b"x"}


def test_attributes_of_pax_headers_hold_for_one_member_and_global_ones_for_all() -> None:
    members = tar_member("short", b"1", pax_headers={"path": "ü" * 100, "comment": "no matter"}), tar_member("b", b"2")
    assert unpacked(tar_of(*members, format=tarfile.PAX_FORMAT)) == {"ü" * 100: b"1", "b": b"2"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "all"}) as archive:
        archive.addfile(*_with_stream(tar_member("a", b"1")))
    assert unpacked(out.getvalue()) == {"all": b"1"}


def _with_stream(member: tuple[tarfile.TarInfo, bytes]) -> tuple[tarfile.TarInfo, io.BytesIO]:
    return member[0], io.BytesIO(member[1])


def test_a_label_of_the_volume_is_no_member(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    run("tar", "--format=gnu", "-V", "label", "-cf", tmp_path / "it.tar", "-C", tmp_path, "a")
    assert unpacked((tmp_path / "it.tar").read_bytes()) == {"a": b"x"}


def test_a_hard_link_has_no_content_whatever_its_size_says() -> None:
    linked = bytearray(tar_of(tar_member("link", type=tarfile.LNKTYPE, linkname="a"))[:512])
    linked[124:136] = b"00000000777\0"
    data = tar_of(tar_member("a", b"x"))[:1024] + mended(linked)
    assert unpacked(data) == {"a": b"x", "link": b"x"}


def test_a_checksum_of_signed_bytes_is_right_too() -> None:
    block = header()
    block[0:2] = b"\xfc\xfc"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % (sum(block) - 512)
    assert list(unpacked(bytes(block) + b"x" + bytes(511 + 1024))) == [os.fsdecode(b"\xfc\xfc")]


def test_a_file_beyond_8_gib_is_listed(tmp_path: Path) -> None:
    size = 9 << 30
    info, _ = tar_member("large")
    info.size = size
    with open(tmp_path / "it.tar", "w+b") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + size + 1024)
        assert listed_size(file, "it.tar") == ListedSize(1, size)
        file.truncate(512 + size - 1)
        with pytest.raises(Integrity, match="ends in the middle of the member 'large'"):
            listed_size(file, "it.tar")


def test_without_its_end_mark_a_plain_tar_counts_as_cut_off_but_not_a_compressed_one() -> None:
    data = tar_of(tar_member("a", b"x"))[:1024]
    assert unpacked(gzip.compress(data), "it.tar.gz") == {"a": b"x"}
    with pytest.raises(Integrity, match="ends without its end mark"):
        unpacked(data)


def test_what_stands_behind_the_end_mark_is_not_read() -> None:
    data = tar_of(tar_member("a", b"x"))
    assert unpacked(data + tar_of(tar_member("b", b"y"))) == {"a": b"x"}


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_a_header_of_gigabytes_is_refused_before_it_is_read(kind: bytes) -> None:
    block = header()
    block[156:157], block[124:136] = kind, b"77777777777\0"
    with pytest.raises(Integrity, match="a header claims 8,589,934,591 bytes"):
        unpacked(mended(block))


@pytest.mark.parametrize(
    "size",
    [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"12345678x\0\0\0", b"-0000000001\0"],
    ids=["negative", "huge", "text", "sign"],
)
def test_a_size_that_is_no_sensible_number_is_refused(size: bytes) -> None:
    block = header()
    block[124:136] = size
    with pytest.raises(Integrity, match="a header holds"):
        unpacked(mended(block))


@pytest.mark.parametrize(
    "record",
    [
        b"8 path=a\n",
        b"0 path=a\n",
        b"path=a\n",
        b"999999 path=a\n",
        b"11 path:abc",
        b"99999999999999999999 a=b\n",
        b"-5 a=b\n",
    ],
)
def test_a_damaged_pax_header_is_refused(record: bytes) -> None:
    block = header(type=tarfile.XHDTYPE)
    block[124:136] = b"%011o\0" % len(record)
    with pytest.raises(Integrity, match=r"pax header is damaged|expected a number"):
        unpacked(mended(block, record + bytes(512 - len(record))))


def test_a_long_name_without_a_member_means_that_the_archive_is_cut_off() -> None:
    data = tar_of(tar_member("n" * 200, b"x"))
    with pytest.raises(Integrity, match="ends in the middle of a member's header"):
        unpacked(data[:1024] + bytes(1024))


@pytest.mark.parametrize(
    "attributes",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"},
        {"GNU.sparse.size": "100", "GNU.sparse.map": "0,1,2"},
        {"GNU.sparse.size": "600", "GNU.sparse.map": "256,256,0,256"},
        {"GNU.sparse.size": "1", "GNU.sparse.map": "50,512"},
        {"GNU.sparse.size": "100", "GNU.sparse.map": "0,1"},
        {"GNU.sparse.size": "-1", "GNU.sparse.map": "0,512"},
    ],
)
def test_a_map_of_a_sparse_file_that_cannot_be_is_refused(attributes: dict[str, str]) -> None:
    data = tar_of(tar_member("a", b"x" * 512, pax_headers=attributes), format=tarfile.PAX_FORMAT)
    with pytest.raises(Integrity, match=r"^it\.tar: .*(sparse file|expected a number)"):
        unpacked(data)


def test_the_continuation_of_another_volume_is_not_supported() -> None:
    with pytest.raises(Unsupported, match=r"^it\.tar is the continuation of another volume"):
        unpacked(mended(header(type=b"M")))


def test_a_member_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="the member 'a' is of an unknown kind: b'Z'"):
        unpacked(mended(header(type=b"Z")))
