"""Archives for tests: a tree to pack, every way to pack it, and a sink that remembers what it was given."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest


class MemorySink:
    """Keeps contents by digest, and which of them came as a stream."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.streamed: list[str] = []

    def add(self, data: bytes, sha256: str | None = None) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.contents[digest] = data
        return digest

    def add_stream(self, stream: Any) -> tuple[str, int]:
        data = b"".join(iter(lambda: stream.read(1 << 20), b""))
        digest = self.add(data)
        self.streamed.append(digest)
        return digest, len(data)


class OnlyReads:
    """A stream as a network gives it: no seeking, and rarely as much as was asked for."""

    def __init__(self, data: bytes, piece: int = 1000) -> None:
        self._stream, self._piece = io.BytesIO(data), piece

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._piece))


def make_tree(folder: Path) -> Path:
    """Make a folder with all that a manifest can hold."""
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "text.txt").write_text("hello\n" * 30)
    (folder / "a" / "deep" / "large.bin").write_bytes(os.urandom(40_000) + bytes(1_200_000))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").write_bytes(b"")
    (folder / "übung 名.txt").write_text("named")
    (folder / ("n" * 255)).write_text("long name")
    (folder / "link").symlink_to("a/text.txt")
    (folder / "a" / "up").symlink_to("../run.sh")
    return folder


def run(*argv: str | Path, cwd: Path | None = None) -> None:
    """Run a program, or skip the test where it is missing."""
    if shutil.which(str(argv[0])) is None:
        pytest.skip(f"needs the program {argv[0]}")
    subprocess.run(argv, check=True, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tar_member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Describe a member of a tar archive; the fields are those of TarInfo."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def tar_of(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    """Pack the members into a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, errors="surrogateescape") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(*members: tuple[zipfile.ZipInfo | str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Pack the members into a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for info, data in members:
            archive.writestr(info, data)
    return out.getvalue()


def zip_info(name: str, mode: int = 0o100644, system: int = 3) -> zipfile.ZipInfo:
    """Describe a member of a zip archive by its name, its mode and the system it was made on."""
    info = zipfile.ZipInfo("placeholder")
    info.filename = name
    info.external_attr, info.create_system = mode << 16, system
    return info


def with_right_tar_checksums(data: bytes) -> bytes:
    """Return a tar archive whose headers were changed, with checksums that fit."""
    out = bytearray(data)
    for start in range(0, len(out) - 511, 512):
        if out[start + 257 : start + 262] == b"ustar":
            out[start + 148 : start + 156] = b"        "
            out[start + 148 : start + 156] = b"%06o\0 " % sum(out[start : start + 512])
    return bytes(out)


def with_right_7z_checksums(data: bytes) -> bytes:
    """Return a 7z archive whose header was changed, with checksums that fit."""
    if len(data) < 32:
        return data
    out = bytearray(data)
    offset, size = struct.unpack_from("<QQ", out, 12)
    header = bytes(out[32 + offset : 32 + offset + size]) if max(offset, size) < len(out) else b""
    out[28:32] = struct.pack("<L", zlib.crc32(header))
    out[8:12] = struct.pack("<L", zlib.crc32(bytes(out[12:32])))
    return bytes(out)
