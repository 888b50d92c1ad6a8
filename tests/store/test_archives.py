"""Archives become checked entries and stored contents, or one clear error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archive_making import (
    MemorySink,
    OnlyReads,
    make_tree,
    run,
    tar_member,
    tar_of,
    with_right_7z_checksums,
    with_right_tar_checksums,
    zip_info,
    zip_of,
)
from backports import zstd
from effort import examples
from extras import needs_extra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmile.base.digest import ManifestEntry, scan_tree, sha256_hex
from fairmile.base.errors import FairmileError, Integrity, SystemFailure, Unsupported, UsageError
from fairmile.store.archives import (
    HEAD_BYTES,
    Limits,
    ListedSize,
    archive_format,
    listed_size,
    needs_seek,
    unpack,
    zip_listed_size,
)
from fairmile.store.objects import Objects

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd.compress,
}
SMALL_TAR = tar_of(tar_member("a/one.txt", b"one"), tar_member("two.bin", bytes(range(256)) * 4))
WITHOUT_FLOOR = Limits(ratio=50, ratio_from_bytes=1 << 20)


def unpacked(data: bytes, name: str, **options: object) -> dict[str, tuple[int, bytes]]:
    """Unpack, and return mode and content by path."""
    sink = MemorySink()
    entries = unpack(io.BytesIO(data), name, sink, **options)  # type: ignore[arg-type]
    assert all(len(sink.contents[each.sha256]) == each.size_bytes for each in entries)
    return {each.path: (each.mode, sink.contents[each.sha256]) for each in entries}


def by_path(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    return sorted(entries, key=lambda entry: os.fsencode(entry.path))


# What comes out


@pytest.mark.parametrize("packing", ["", "gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("style", ["gnu", "posix", "oldgnu"])
def test_a_tar_that_streams_in_gives_the_entries_of_its_tree(tmp_path: Path, style: str, packing: str) -> None:
    tree = make_tree(tmp_path / "tree")
    with open(os.fsencode(tree) + b"/not utf-8 \xff", "wb") as file:
        file.write(b"content")
    run("tar", f"--format={style}", "-cf", tmp_path / "it.tar", "-C", tree, ".")
    data = (tmp_path / "it.tar").read_bytes()
    name = f"it.tar.{packing}".rstrip(".")
    assert archive_format(name, data[:HEAD_BYTES]) == "tar"
    packed = PACK[packing](data) if packing else data
    assert archive_format(name, packed[:HEAD_BYTES]) == name.removeprefix("it.")
    assert by_path(unpack(OnlyReads(packed), name, MemorySink())) == list(scan_tree(tree))


def test_a_zip_gives_the_entries_of_its_tree(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    run("zip", "-qry", tmp_path / "it.zip", ".", cwd=tree)
    with open(tmp_path / "it.zip", "rb") as file:
        assert by_path(unpack(file, "it.zip", MemorySink())) == list(scan_tree(tree))


def test_a_7z_gives_the_entries_of_its_tree(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    run("7z", "a", "-snl", tmp_path / "it.7z", ".", cwd=tree)
    with open(tmp_path / "it.7z", "rb") as file:
        assert by_path(unpack(file, "it.7z", MemorySink())) == list(scan_tree(tree))


@pytest.mark.parametrize("packing", PACK)
def test_a_single_compressed_file_becomes_one_member_without_the_suffix(packing: str) -> None:
    assert unpacked(PACK[packing](b"x,y\n1,2\n"), f"folder/table.csv.{packing}") == {
        "table.csv": (0o644, b"x,y\n1,2\n")
    }


@pytest.mark.parametrize("packing", PACK)
def test_a_compressed_file_of_any_name_that_holds_a_tar_is_unpacked_as_one(packing: str) -> None:
    assert set(unpacked(PACK[packing](SMALL_TAR), f"download.{packing}")) == {"a/one.txt", "two.bin"}


@pytest.mark.parametrize("packing", PACK)
def test_several_compressed_parts_in_a_row_are_one_file(packing: str) -> None:
    pack = PACK[packing]
    assert unpacked(pack(b"one") + pack(b"") + pack(b"two"), f"it.{packing}") == {"it": (0o644, b"onetwo")}


@pytest.mark.parametrize("packing", PACK)
def test_zeros_behind_compressed_data_are_padding(packing: str) -> None:
    assert unpacked(PACK[packing](b"one") + bytes(1024), f"it.{packing}") == {"it": (0o644, b"one")}


def test_small_members_are_added_whole_and_large_ones_as_streams() -> None:
    large = os.urandom(1 << 10) * (2 << 10)
    sink = MemorySink()
    unpack(io.BytesIO(tar_of(tar_member("small", b"s"), tar_member("large", large))), "it.tar", sink)
    assert sink.streamed == [sha256_hex(large)]


def test_each_stored_file_is_told() -> None:
    told: list[tuple[str, int]] = []
    unpack(io.BytesIO(SMALL_TAR), "it.tar", MemorySink(), on_member=lambda *member: told.append(member))
    assert told == [("a/one.txt", 3), ("two.bin", 1024)]


@pytest.mark.parametrize("name", ["it.tar", "it.tar.gz", "it.tar.zst", "it.gz"])
def test_the_stream_is_read_to_its_end(name: str) -> None:
    data = SMALL_TAR if name == "it.tar" else PACK[name.rpartition(".")[2]](SMALL_TAR + bytes(1 << 20))
    stream = io.BytesIO(data)
    unpack(stream, name, MemorySink())
    assert stream.read() == b""


def test_empty_archives_hold_nothing() -> None:
    assert unpacked(tar_of(), "it.tar") == unpacked(zip_of(), "it.zip") == {}


def test_contents_reach_the_store_and_a_failed_archive_leaves_none(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "pool")
    with objects.batch() as batch:
        entries = unpack(io.BytesIO(SMALL_TAR), "it.tar", batch)
    for entry in entries:
        with objects.open(entry.sha256) as file:
            assert sha256_hex(file.read()) == entry.sha256
    bad = tar_of(tar_member("fresh", b"fresh"), tar_member("../out", b"out"))
    with pytest.raises(UsageError), objects.batch() as batch:
        unpack(io.BytesIO(bad), "it.tar", batch)
    assert sha256_hex(b"fresh") not in objects


# Formats


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("data.zip", b"PK\3\4", "zip"),
        ("data.zip", b"", "zip"),
        ("DATA.TAR.GZ", b"", "tar.gz"),
        ("data.tgz", b"\x1f\x8b\x08", "tar.gz"),
        ("data.tar.gz", b"PK\3\4", "zip"),
        ("data.csv.gz", b"\x1f\x8b\x08", "gz"),
        ("data", b"7z\xbc\xaf\x27\x1c", "7z"),
        ("data", SMALL_TAR, "tar"),
        ("data", gzip.compress(SMALL_TAR), "tar.gz"),
        ("data", zstd.compress(SMALL_TAR), "tar.zst"),
        ("data.tar", b"<html>", "tar"),
        ("data.bin", b"PK\3\4", None),
        ("data", b"\x89HDF\r\n", None),
        ("data.h5", b"", None),
        ("tar", b"", None),
    ],
)
def test_the_first_bytes_tell_the_format_and_then_the_name(name: str, head: bytes, format: str | None) -> None:
    assert archive_format(name, head) == format


@pytest.mark.parametrize("name", ["x.npz", "x.docx", "x.whl", "x.jar", "x.keras", "x.pt", "X.PT", "x.xlsx", "x.conda"])
def test_a_file_that_only_uses_zip_inside_is_no_archive(name: str) -> None:
    data = zip_of(("member", b"content"))
    assert archive_format(name, data) is None
    with pytest.raises(Unsupported, match="is not an archive of a known kind"):
        unpack(io.BytesIO(data), name, MemorySink())


def test_only_formats_with_their_index_at_the_end_need_a_file() -> None:
    formats = ("zip", "7z", "tar", "tar.gz", "tar.zst", "gz")
    assert [needs_seek(format) for format in formats] == [True, True, False, False, False, False]


def test_a_zip_that_streams_in_says_that_it_needs_a_file() -> None:
    with pytest.raises(UsageError, match=r"^it\.zip: a zip archive can be unpacked only from a file(?:\n|$)"):
        unpack(OnlyReads(zip_of(("member", b"content"))), "it.zip", MemorySink())


@pytest.mark.parametrize("name", ["page.zip", "page.tar", "page.tar.gz", "page.7z", "page.xz", "page.tar.zst"])
def test_an_html_page_under_the_name_of_an_archive_is_refused(name: str) -> None:
    with pytest.raises(Integrity, match=r"^page\."):
        unpack(io.BytesIO(b"<!DOCTYPE html><html><body>please log in</body></html>" * 20), name, MemorySink())


def test_zstandard_without_its_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    with needs_extra("archives"):
        unpack(io.BytesIO(zstd.compress(b"x")), "it.zst", MemorySink())


# Members that are not trusted


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "absolute path"),
        ("../out", r"leaves its folder with '\.\.'"),
        ("a/../../out", r"leaves its folder with '\.\.'"),
        ("a\\b", "backslash"),
        ("n" * 256, "more than 255 bytes"),
        ("ü" * 128, "more than 255 bytes"),
        ("/".join(["folder"] * 700), "path of more than 4,095 bytes"),
        (".", "has no name"),
    ],
)
def test_a_member_with_an_unsafe_name_is_refused(name: str, reason: str) -> None:
    for data, archive in (tar_of(tar_member(name, b"x")), "it.tar"), (zip_of((zip_info(name), b"x")), "it.zip"):
        with pytest.raises(UsageError, match=rf"^{archive}: the member .*{reason}"):
            unpack(io.BytesIO(data), archive, MemorySink())


def test_a_name_with_a_nul_character_is_refused() -> None:
    data = tar_of(tar_member("a", b"x", pax_headers={"path": "a\0b"}), format=tarfile.PAX_FORMAT)
    with pytest.raises(UsageError, match="NUL character"):
        unpacked(data, "it.tar")


def test_dots_and_empty_parts_of_a_path_mean_nothing() -> None:
    data = tar_of(tar_member("./a//b/./c.txt", b"x"), tar_member("./", type=tarfile.DIRTYPE))
    assert set(unpacked(data, "it.tar")) == {"a/b/c.txt"}


def test_names_that_are_not_utf8_keep_their_bytes() -> None:
    data = tar_of(tar_member("caf\udce9.txt", b"x"))
    assert [os.fsencode(path) for path in unpacked(data, "it.tar")] == [b"caf\xe9.txt"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_refused(kind: bytes) -> None:
    with pytest.raises(UsageError, match=r"^it\.tar: the member 'odd' is a "):
        unpacked(tar_of(tar_member("odd", type=kind)), "it.tar")


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
def test_special_files_in_a_zip_are_refused(kind: int) -> None:
    with pytest.raises(UsageError, match=r"^it\.zip: the member 'odd' is neither"):
        unpacked(zip_of((zip_info("odd", kind | 0o644), b"")), "it.zip")


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o4755, 0o755), (0o6644, 0o644), (0o777, 0o755), (0o600, 0o644), (0, 0o644)]
)
def test_of_the_mode_only_the_owners_execute_bit_is_kept(mode: int, kept: int) -> None:
    assert unpacked(tar_of(tar_member("a", b"x", mode=mode)), "it.tar")["a"] == (kept, b"x")
    assert unpacked(zip_of((zip_info("a", stat.S_IFREG | mode), b"x")), "it.zip")["a"] == (kept, b"x")


# Links


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return tar_member(name, type=kind, linkname=target)


def test_symbolic_links_inside_the_archive_become_entries_with_their_text() -> None:
    links = [("a/link", "../two.bin"), ("dangling", "nowhere"), ("circle", "circle"), ("folder", "a"), ("top", "./.")]
    data = tar_of(tar_member("two.bin", b"2"), *(link(*each) for each in links))
    assert unpacked(data, "it.tar") == {"two.bin": (0o644, b"2")} | {
        name: (0o120000, target.encode()) for name, target in links
    }


@pytest.mark.parametrize(
    "links",
    [
        [("out", "/etc/passwd")],
        [("out", "../etc")],
        [("a/out", "../../etc")],
        [("a/b", "../c"), ("c", "..")],
        [("here", "."), ("out", "here/..")],
        [("a/here", "."), ("out", "a/here/../../..")],
        [("out", "later/.."), ("later", ".")],
        [("out", "")],
        [("out", "x" * 5000)],
    ],
)
def test_a_symbolic_link_that_leads_out_is_refused_whatever_way_it_takes(links: list[tuple[str, str]]) -> None:
    data = tar_of(*(link(*each) for each in links))
    with pytest.raises(UsageError, match=r"^it\.tar: the member '.*' is a symbolic link"):
        unpacked(data, "it.tar")
    zipped = zip_of(*((zip_info(name, stat.S_IFLNK | 0o777), target.encode()) for name, target in links))
    with pytest.raises(UsageError, match=r"^it\.zip: the member '.*' is a symbolic link"):
        unpacked(zipped, "it.zip")


@pytest.mark.parametrize("link_first", [True, False])
def test_a_path_through_a_symbolic_link_is_refused_in_either_order(link_first: bool) -> None:
    members = [link("folder", "a"), tar_member("folder/file", b"x")]
    with pytest.raises(UsageError, match="'folder/file' goes through the symbolic link 'folder'"):
        unpacked(tar_of(*(members if link_first else members[::-1])), "it.tar")


def test_a_file_cannot_be_a_folder_too() -> None:
    with pytest.raises(UsageError, match="'a/b/c' needs a folder where the file 'a' is"):
        unpacked(tar_of(tar_member("a", b"x"), tar_member("a/b/c", b"y")), "it.tar")


def test_a_hard_link_is_a_file_of_the_same_content() -> None:
    data = tar_of(tar_member("first", b"content", mode=0o755), link("a/second", "./first", tarfile.LNKTYPE))
    assert unpacked(data, "it.tar") == {"first": (0o755, b"content"), "a/second": (0o755, b"content")}


def test_a_hard_link_to_a_symbolic_link_is_checked_where_it_stands() -> None:
    members = tar_member("file", b"x"), link("a/b/soft", "../../file")
    assert "a/c/hard" in unpacked(tar_of(*members, link("a/c/hard", "a/b/soft", tarfile.LNKTYPE)), "it.tar")
    with pytest.raises(UsageError, match="'hard' is a symbolic link out of the archive"):
        unpacked(tar_of(*members, link("hard", "a/b/soft", tarfile.LNKTYPE)), "it.tar")


@pytest.mark.parametrize("target", ["missing", "../out", "/etc/passwd", ""])
def test_a_hard_link_to_what_is_not_in_the_archive_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match=r"^it\.tar: the member"):
        unpacked(tar_of(link("hard", target, tarfile.LNKTYPE)), "it.tar")


def test_of_members_with_one_name_the_last_is_kept_and_it_is_said() -> None:
    notes: list[str] = []
    data = tar_of(
        tar_member("a", b"old"),
        link("same", "a", tarfile.LNKTYPE),
        link("was", "../out"),
        tar_member("a", b"new"),
        tar_member("./was", b"file"),
    )
    assert unpacked(data, "it.tar", on_note=notes.append) == {
        "a": (0o644, b"new"),
        "same": (0o644, b"old"),
        "was": (0o644, b"file"),
    }
    assert notes == ["it.tar: 2 names occur more than once, such as 'a'; the last member of each was kept"]


# Limits


def test_an_archive_larger_than_allowed_stops_before_its_content_is_read() -> None:
    sink = MemorySink()
    data = tar_of(tar_member("small", b"s" * 100), tar_member("large", b"l" * 1000))
    with pytest.raises(UsageError, match=r"^it\.tar: unpacking stopped at the member 'large': .* more than 1\.0 KiB"):
        unpack(io.BytesIO(data), "it.tar", sink, limits=Limits(total_bytes=1024))
    assert list(sink.contents.values()) == [b"s" * 100]
    assert unpacked(data, "it.tar", limits=Limits(total_bytes=1100)).keys() == {"small", "large"}


def test_an_archive_of_more_members_than_allowed_stops() -> None:
    data = tar_of(*(tar_member(f"f{number}/", type=tarfile.DIRTYPE) for number in range(4)))
    with pytest.raises(UsageError, match=r"stopped at the member 'f3/?': it holds more than 3 members"):
        unpacked(data, "it.tar", limits=Limits(files=3))


@pytest.mark.parametrize("name", ["it.gz", "it.xz", "it.zst", "it.bz2", "it.tar.gz", "it.zip"])
def test_a_bomb_stops_early(name: str) -> None:
    zeros = bytes(8 << 20)
    tarred = tar_of(tar_member("zeros", zeros)) if ".tar" in name else zeros
    data = zip_of(("zeros", zeros)) if name == "it.zip" else PACK[name.rpartition(".")[2]](tarred)
    with pytest.raises(UsageError, match=r"its content is more than 50 times as large as the archive"):
        unpacked(data, name, limits=WITHOUT_FLOOR)
    assert unpacked(data, name, limits=Limits())  # far below the floor of 1 GiB


def test_a_bomb_behind_the_end_of_a_tar_stops_too() -> None:
    with pytest.raises(UsageError, match="more than 50 times"):
        unpacked(gzip.compress(SMALL_TAR + bytes(8 << 20)), "it.tar.gz", limits=WITHOUT_FLOOR)


def test_a_sparse_file_counts_with_its_holes(tmp_path: Path) -> None:
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 40)
    run("tar", "-S", "-cf", tmp_path / "it.tar", "-C", tmp_path, "holes")
    data = (tmp_path / "it.tar").read_bytes()
    with pytest.raises(UsageError, match="stopped at the member 'holes'"):
        unpacked(data, "it.tar", limits=WITHOUT_FLOOR)
    with pytest.raises(UsageError, match=r"it holds more than 1\.0 GiB"):
        unpacked(data, "it.tar", limits=Limits(total_bytes=1 << 30))


def test_zip_members_that_share_their_bytes_are_counted_against_the_file() -> None:
    data = zip_of(*((f"f{number:04}", bytes(100_000)) for number in range(200)))
    directory = data.index(b"PK\1\2")
    local = data[: data.index(b"PK\3\4", 4)]
    entries = bytearray(data[directory:])
    at = 0
    while (at := entries.find(b"PK\1\2", at)) >= 0:
        entries[at + 42 : at + 46] = bytes(4)
        at += 4
    end = entries.rindex(b"PK\5\6")
    entries[end + 16 : end + 20] = struct.pack("<L", len(local))
    with pytest.raises(UsageError, match="more than 50 times"):
        unpacked(local + entries, "it.zip", limits=WITHOUT_FLOOR)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["it.tar", "it.tar.gz", "it.tar.xz", "it.tar.zst", "it.gz", "it.zip", "it.7z"])
def test_memory_does_not_grow_with_the_size(tmp_path: Path, name: str) -> None:
    zeros = bytes(64 << 20)
    member = tar_of(tar_member("zeros", zeros)) if ".tar" in name else zeros
    if name == "it.zip":
        (tmp_path / name).write_bytes(zip_of(("zeros", zeros)))
    elif name == "it.7z":
        (tmp_path / "zeros").write_bytes(zeros)
        run("7z", "a", "-mx=1", tmp_path / name, tmp_path / "zeros")
    else:
        (tmp_path / name).write_bytes(PACK.get(name.rpartition(".")[2], bytes)(member))
    program = """
import sys
from fairmile.store.archives import Limits, listed_size, unpack
class Sink:
    def add_stream(self, stream):
        size = 0
        while data := stream.read(1 << 20):
            size += len(data)
        return "0" * 64, size
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
before = peak()
with open(sys.argv[1], "rb") as file:
    [entry] = unpack(file, sys.argv[1], Sink(), limits=Limits(ratio=1e9))
    listed_size(file, sys.argv[1])
assert entry.size_bytes == 64 << 20
print(peak() - before)
"""
    argv = [sys.executable, "-c", program, str(tmp_path / name)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 30 << 10


# Damage


SOUND = {
    "it.tar.gz": gzip.compress(SMALL_TAR),
    "it.tar.bz2": bz2.compress(SMALL_TAR),
    "it.tar.xz": lzma.compress(SMALL_TAR),
    "it.tar.zst": zstd.compress(SMALL_TAR, options={zstd.CompressionParameter.checksum_flag: 1}),
    "it.gz": gzip.compress(b"content" * 9),
    "it.zip": zip_of(("a/one.txt", b"one"), ("two.bin", bytes(range(256)) * 4)),
    "stored.zip": zip_of(("a/one.txt", b"one"), ("two.bin", b"two"), compression=zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("name", SOUND)
def test_an_archive_cut_off_anywhere_is_refused(name: str) -> None:
    for length in range(len(SOUND[name])):
        with pytest.raises(Integrity, match=rf"^{name}: "):
            unpack(io.BytesIO(SOUND[name][:length]), name, MemorySink())


def test_a_tar_cut_off_anywhere_is_refused() -> None:
    end = len(SMALL_TAR.rstrip(b"\0"))
    for length in range(end):
        with pytest.raises(Integrity, match=r"^it\.tar: .*(cut off|ends in the middle of|without its end mark)"):
            unpack(io.BytesIO(SMALL_TAR[:length]), "it.tar", MemorySink())


@pytest.mark.parametrize("name", SOUND)
def test_a_flipped_bit_is_found_wherever_it_would_change_a_content(name: str) -> None:
    sound = {content for _, content in unpacked(SOUND[name], name).values()}
    for place in range(len(SOUND[name])):
        data = bytearray(SOUND[name])
        data[place] ^= 0x10
        try:
            contents = {content for _, content in unpacked(bytes(data), name).values()}
        except FairmileError as error:
            assert str(error).startswith(name)
        else:
            assert contents == sound


def test_a_damaged_header_in_the_midst_of_a_tar_is_not_taken_for_its_end() -> None:
    data = bytearray(SMALL_TAR)
    data[1024 + 10] ^= 1
    with pytest.raises(Integrity, match=r"^it\.tar: a header is damaged: its checksum is wrong \(byte 1,024\)(?:\n|$)"):
        unpacked(bytes(data), "it.tar")


@pytest.mark.parametrize("packing", PACK)
def test_other_bytes_behind_compressed_data_are_refused(packing: str) -> None:
    with pytest.raises(Integrity, match=rf"^it\.{packing}: "):
        unpacked(PACK[packing](b"content") + b"something else", f"it.{packing}")


def test_a_stream_that_cannot_be_read_is_a_system_failure_that_names_the_archive() -> None:
    class Broken:
        def read(self, size: int, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(SystemFailure, match=r"^cannot read it\.tar: Input/output error(?:\n|$)"):
        unpack(Broken(), "it.tar", MemorySink())


def test_the_errors_of_a_transfer_pass_through() -> None:
    class Wrong:
        def read(self, size: int, /) -> bytes:
            raise SystemFailure("the transfer's own words")

    with pytest.raises(SystemFailure, match=r"^the transfer's own words(?:\n|$)"):
        unpack(Wrong(), "it.tar", MemorySink())


# Sizes from an index


def listed(data: bytes, name: str) -> ListedSize | None:
    return listed_size(io.BytesIO(data), name)


def test_the_unpacked_size_is_known_from_the_index() -> None:
    assert listed(SMALL_TAR, "it.tar") == ListedSize(2, 1027)
    assert listed(SOUND["it.zip"], "it.zip") == ListedSize(2, 1027)
    assert listed(lzma.compress(b"x" * 5000) + bytes(8) + lzma.compress(b"y" * 70), "it.xz") == ListedSize(1, 5070)


def test_what_an_index_only_hints_at_is_marked_as_an_estimate() -> None:
    assert listed(gzip.compress(b"x" * 5000), "it.gz") == ListedSize(1, 5000, estimate=True)
    assert listed(SOUND["it.tar.gz"], "it.tar.gz") == ListedSize(None, len(SMALL_TAR), estimate=True)
    assert listed(SOUND["it.tar.xz"], "it.tar.xz") == ListedSize(None, len(SMALL_TAR), estimate=True)
    assert listed(SOUND["it.tar.zst"], "it.tar.zst") == ListedSize(None, len(SMALL_TAR), estimate=True)


def test_a_gzip_file_beyond_4_gib_is_estimated_to_be_no_smaller_than_it_is_packed(tmp_path: Path) -> None:
    with open(tmp_path / "it.gz", "w+b") as file:
        file.write(b"\x1f\x8b\x08")
        file.seek((5 << 30) - 4)
        file.write(struct.pack("<L", 7 << 20))
        assert listed_size(file, "it.gz") == ListedSize(1, (8 << 30) + (7 << 20), estimate=True)


def test_formats_without_an_index_are_not_guessed() -> None:
    assert listed(SOUND["it.tar.bz2"], "it.tar.bz2") is None
    assert listed(b"plain text", "it.txt") is None


def test_the_last_bytes_of_a_remote_zip_tell_its_size() -> None:
    data = zip_of(*((f"folder/file{number}", b"x" * number) for number in range(500)))
    assert zip_listed_size(data[-(40 << 10) :], len(data)) == ListedSize(500, sum(range(500)))


def test_too_few_last_bytes_say_how_many_are_needed() -> None:
    data = zip_of(*((f"folder/file{number}", b"x" * number) for number in range(500)))
    needed = zip_listed_size(data[-1000:], len(data))
    assert isinstance(needed, int)
    assert zip_listed_size(data[-needed:], len(data)) == ListedSize(500, sum(range(500)))
    assert zip_listed_size(data[-needed + 1 :], len(data)) == needed


def test_the_last_bytes_of_something_else_are_refused() -> None:
    with pytest.raises(Integrity, match=r"^far\.zip: the zip archive has no end record"):
        zip_listed_size(b"<html>" * 100, 600, "far.zip")


# Anything at all


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One archive of each kind, with every kind of member."""
    folder = tmp_path_factory.mktemp("archives")
    tree = make_tree(folder / "tree")
    (tree / "a" / "deep" / "large.bin").write_bytes(os.urandom(300) + bytes(3000))
    os.link(tree / "run.sh", tree / "hard")
    with open(tree / "sparse", "wb") as file:
        file.truncate(200_000)
        file.seek(70_000)
        file.write(b"data")
    for style, options in {
        "gnu.tar": ["--format=gnu", "-S"],
        "pax.tar": ["--format=posix", "-S"],
        "pax00.tar": ["--format=posix", "-S", "--sparse-version=0.0"],
        "pax01.tar": ["--format=posix", "-S", "--sparse-version=0.1"],
    }.items():
        run("tar", *options, "-cf", folder / style, "-C", tree, ".")
    for packing, pack in PACK.items():
        (folder / f"it.tar.{packing}").write_bytes(pack((folder / "gnu.tar").read_bytes()))
        (folder / f"it.{packing}").write_bytes(pack(b"content" * 100))
    run("zip", "-qry", folder / "it.zip", ".", cwd=tree)
    for number, method in enumerate((["-m0=lzma"], ["-m0=lzma2", "-mhc=off"], ["-m0=bzip2", "-ms=off", "-mhc=off"])):
        run("7z", "a", "-snl", *method, folder / f"{number}.7z", ".", cwd=tree)
        run("7z", "a", "-tzip", f"-mm={('lzma', 'xz', 'bzip2')[number]}", folder / f"{number}.zip", ".", cwd=tree)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "drop", "insert"]), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)
    ),
    min_size=1,
    max_size=6,
)


def changed(data: bytes, changes: list[tuple[str, int, bytes]], *, from_the_end: bool) -> bytes:
    out = bytearray(data)
    for kind, place, piece in changes:
        at = place % max(min(len(out), 1500), 1)
        at = len(out) - 1 - at if from_the_end and out else at
        if kind == "set":
            out[at : at + len(piece)] = piece
        elif kind == "cut":
            del out[at:]
        elif kind == "drop":
            del out[at : at + len(piece)]
        else:
            out[at:at] = piece
    return bytes(out)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choice=st.integers(0, 1000), changes=CHANGES, from_the_end=st.booleans(), mend=st.booleans())
def test_whatever_the_bytes_are_there_are_entries_or_a_clear_error(
    archives: dict[str, bytes], choice: int, changes: list[tuple[str, int, bytes]], from_the_end: bool, mend: bool
) -> None:
    name = sorted(archives)[choice % len(archives)]
    data = changed(archives[name], changes, from_the_end=from_the_end)
    if mend and name.endswith(".tar"):
        data = with_right_tar_checksums(data)
    if mend and name.endswith(".7z"):
        data = with_right_7z_checksums(data)
    for attempt in (
        lambda: unpacked(data, name, limits=Limits(total_bytes=16 << 20, files=10_000)),
        lambda: listed(data, name),
        lambda: zip_listed_size(data[-2000:], len(data)),
    ):
        try:
            attempt()
        except FairmileError as error:
            assert str(error)


@given(
    data=st.binary(max_size=2000), name=st.sampled_from(["it.tar", "it.zip", "it.7z", "it.gz", "it.tar.xz", "it.zst"])
)
@settings(max_examples=examples(100), deadline=None)
def test_random_bytes_are_no_archive(data: bytes, name: str) -> None:
    try:
        unpacked(data, name)
    except FairmileError as error:
        assert str(error).startswith(name)
