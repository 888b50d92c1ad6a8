"""What a file is by its first bytes, and what its header says: columns, types, units, shapes. No data is loaded."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fairmile.base.errors import FairmileError
from fairmile.base.quick_dataclass import dataclass
from fairmile.catalog.describing import arrays, tables
from fairmile.catalog.describing.columns import Column
from fairmile.catalog.exchange.common.media_types import EXECUTABLE_TYPE, extension, is_code, media_type

_HEAD_BYTES = 4096
_LIBRARY = "application/x-sharedlib"
_INTERPRETER = 3  # the program header of ELF that only executables have
_MOST_MEMBERS = 100_000  # of an archive that are looked at
# The first bytes of a format, where they stand, and its media type; the most particular first.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"CDF\x01", "application/x-netcdf"),
    (0, b"CDF\x02", "application/x-netcdf"),
    (0, b"CDF\x05", "application/x-netcdf"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1", "application/vnd.apache.arrow.file"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"GGUF", "application/x-gguf"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (8, b"WEBP", "image/webp"),
    (0, b"SIMPLE  =", "application/fits"),
    (0, b"GRIB", "application/x-grib"),
    (128, b"DICM", "application/dicom"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (0, b"PK\x03\x04", "application/zip"),
    (257, b"ustar", "application/x-tar"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"!<arch>\n", "application/x-archive"),
    (0, b"MZ\x90\x00", "application/vnd.microsoft.portable-executable"),
)
# Kinds of ELF and Mach-O files.
_ELF = {1: "application/x-object", 2: EXECUTABLE_TYPE, 3: _LIBRARY}
_MACH = {1: "application/x-object", 2: EXECUTABLE_TYPE, 6: _LIBRARY, 8: _LIBRARY}
_BINARIES = frozenset({"x-object", "x-executable", "x-sharedlib", "x-archive", "vnd.microsoft.portable-executable"})
_MODELS = frozenset({"x-onnx", "x-safetensors", "x-gguf", "x-pytorch", "x-keras", "x-tflite", "x-skops"})
_ARCHIVES = frozenset({"zip", "x-tar", "gzip", "x-bzip2", "x-xz", "zstd"})


@dataclass(frozen=True)
class FileFacts:
    """The media type of a file, what its header declares, and a note where something could not be read."""

    media_type: str
    columns: tuple[Column, ...] = ()
    note: str = ""

    @property
    def is_model(self) -> bool:
        return self._short in _MODELS

    @property
    def is_archive(self) -> bool:
        return self._short in _ARCHIVES

    @property
    def is_binary(self) -> bool:
        """Tell whether the file is machine code: an executable, a library or an object file."""
        return self._short in _BINARIES

    @property
    def _short(self) -> str:
        return self.media_type.rpartition("/")[2]


def inspect_file(path: Path, name: str) -> FileFacts:
    """Return what the file is and what its header declares; whatever is in it, nothing of it is executed."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            media = _by_content(head, stream, name)
    except OSError as error:
        return FileFacts(media_type(name) or "application/octet-stream", note=f"{name}: {error.strerror or error}")
    if media == "application/x-pickle":
        return FileFacts(media, note=f"{name} is a pickle, which runs code when loaded, so it was not opened")
    reader = _READERS.get(media)
    if reader is None:
        return FileFacts(media)
    try:
        return FileFacts(media, tuple(reader(path, name)))
    except FairmileError as error:
        return FileFacts(media, note=str(error))


def _by_content(head: bytes, stream: BinaryIO, name: str) -> str:
    ending = extension(name)
    media = next((kind for at, magic, kind in _MAGIC if head[at : at + len(magic)] == magic), "")
    if media == "application/zip":
        return _zip_kind(stream)
    if media == "application/x-hdf5" and ending in ("nc", "nc4", "cdf", "netcdf"):
        return "application/x-netcdf"
    if media == "application/gzip" and extension(name[: -len(ending) - 1]) in ("csv", "tsv"):
        return "text/csv"
    if not media:
        media = _machine_code(head)
    if media:
        return media
    if len(head) > 9 and head[8:9] == b"{" and 2 <= struct.unpack("<Q", head[:8])[0] <= 100 << 20:
        return "application/x-safetensors"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "application/x-pickle"
    return _text_kind(head, name) if _is_text(head) else media_type(name) or "application/octet-stream"


def _machine_code(head: bytes) -> str:
    """Return what an ELF or Mach-O file is; empty for any other."""
    if head[:4] == b"\xcf\xfa\xed\xfe" and len(head) >= 16:
        return _MACH.get(struct.unpack_from("<I", head, 12)[0], "")
    if head[:4] != b"\x7fELF" or len(head) < 64 or head[4] not in (1, 2):
        return ""
    order = ">" if head[5] == 2 else "<"
    (kind,) = struct.unpack_from(f"{order}H", head, 16)
    start, (size, count) = (
        (struct.unpack_from(f"{order}Q", head, 32)[0], struct.unpack_from(f"{order}HH", head, 54))
        if head[4] == 2
        else (struct.unpack_from(f"{order}I", head, 28)[0], struct.unpack_from(f"{order}HH", head, 42))
    )
    # An executable that may lie anywhere in memory has the type of a library, but names its interpreter.
    places = (start + number * size for number in range(count) if size)
    headers = [struct.unpack_from(f"{order}I", head, at)[0] for at in places if at + 4 <= len(head)]
    return EXECUTABLE_TYPE if kind == 3 and _INTERPRETER in headers else _ELF.get(kind, "")


def _is_text(head: bytes) -> bool:
    if b"\x00" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may be cut where the head ends.
        return error.start >= len(head) - 3 and error.start > 0
    return True


def _text_kind(head: bytes, name: str) -> str:
    ending = extension(name)
    known = media_type(name) or ""
    if ending in ("csv", "tsv", "tab", "dat", "txt") and tables.delimiter(head.decode("utf-8", "replace")):
        return "text/tab-separated-values" if ending in ("tsv", "tab") else "text/csv"
    if ending in ("jsonl", "ndjson"):
        return "application/x-ndjson"
    if known and not known.endswith("octet-stream"):
        return known
    if head.lstrip()[:5] == b"<?xml":
        return "application/xml"
    return "text/plain"


def _zip_kind(stream: BinaryIO) -> str:
    """Return what a ZIP file is by the names of its members; none is unpacked."""
    try:
        with zipfile.ZipFile(stream) as archive:
            names = [each.filename for each in archive.infolist()[:_MOST_MEMBERS]]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "application/zip"
    if names and all(name.endswith(".npy") for name in names):
        return "application/x-npz"
    if any(name.endswith("/data.pkl") for name in names):
        return "application/x-pytorch"
    if "model.weights.h5" in names and "config.json" in names:
        return "application/x-keras"
    if "[Content_Types].xml" in names and any(name.startswith("xl/") for name in names):
        return "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    return "application/zip"


def is_program(name: str) -> bool:
    """Tell whether a file of this name is code, or says how code is built."""
    return is_code(name) or name.rsplit("/", 1)[-1] in (
        *("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "environment.yml", "Makefile"),
        *("CMakeLists.txt", "Dockerfile", "package.json", "Cargo.toml"),
    )


_READERS: dict[str, Callable[[Path, str], list[Column]]] = {
    "text/csv": tables.csv_columns,
    "text/tab-separated-values": tables.csv_columns,
    "application/vnd.apache.parquet": tables.parquet_columns,
    "application/vnd.apache.arrow.file": tables.arrow_columns,
    "application/x-hdf5": arrays.hdf5_columns,
    "application/x-netcdf": arrays.netcdf_columns,
    "application/x-npy": arrays.npy_columns,
    "application/x-npz": arrays.npz_columns,
    "application/x-safetensors": arrays.safetensors_columns,
    "image/png": arrays.image_columns,
    "image/jpeg": arrays.image_columns,
    "image/gif": arrays.image_columns,
}
