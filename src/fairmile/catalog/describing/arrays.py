"""The arrays of HDF5, NetCDF, NumPy, safetensors and image files, by their headers."""

from __future__ import annotations

import ast
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fairmile.base.errors import UsageError
from fairmile.base.strict_json import load_json
from fairmile.catalog.array_files import describe
from fairmile.catalog.describing.columns import Column, data_type

_MOST_ARRAYS = 1_000
_LONGEST_HEADER = 64 << 10
_LONGEST_TENSOR_LIST = 16 << 20
_JPEG_SIZES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_TENSOR_TYPES = {"BF16": "cr:BFloat16", "BOOL": "sc:Boolean", "F": "cr:Float", "I": "cr:Int", "U": "cr:UInt"}


def hdf5_columns(path: Path, name: str) -> list[Column]:
    """Return the data sets of an HDF5 file."""
    return _described(describe(path, name if name.endswith((".h5", ".hdf5")) else f"{name}.h5"))


def netcdf_columns(path: Path, name: str) -> list[Column]:
    """Return the variables of a NetCDF file."""
    return _described(describe(path, name if name.endswith(".nc") else f"{name}.nc"))


def _described(facts: Mapping[str, Any]) -> list[Column]:
    columns: list[Column] = []
    for path, item in facts["items"].items():
        if "dtype" in item and len(columns) < _MOST_ARRAYS:
            units = item["attributes"].get("units") or item["attributes"].get("unit") or ""
            columns.append(Column(path.strip("/"), data_type(item["dtype"]), str(units)[:60], tuple(item["shape"])))
    return columns


def npy_columns(path: Path, name: str) -> list[Column]:
    """Return the one array of a .npy file."""
    with path.open("rb") as stream:
        return _numpy_array(stream, name, "values")


def npz_columns(path: Path, name: str) -> list[Column]:
    """Return the arrays of a .npz file; of each only the header is unpacked."""
    columns: list[Column] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist()[:_MOST_ARRAYS]:
                with archive.open(member) as stream:
                    columns += _numpy_array(stream, name, member.filename.removesuffix(".npy"))  # type: ignore[arg-type]
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
    return columns


def _numpy_array(stream: BinaryIO, name: str, label: str) -> list[Column]:
    """Read the header of an array: a Python literal, which is parsed and not evaluated."""
    start = stream.read(8)
    wide = start[6:7] not in (b"", b"\x01")
    length = int.from_bytes(stream.read(4 if wide else 2), "little")
    if start[:6] != b"\x93NUMPY" or length > _LONGEST_HEADER:
        raise UsageError(f"{name}: {label} is not a NumPy array")
    try:
        header = ast.literal_eval(stream.read(length).decode("latin-1"))
        dtype, shape = header["descr"], tuple(int(each) for each in header["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise UsageError(f"{name}: the header of {label} cannot be read") from error
    if isinstance(dtype, list):
        fields = [(str(each[0]), str(each[1])) for each in dtype if isinstance(each, tuple) and len(each) > 1]
        return [Column(field, data_type(code), shape=shape) for field, code in fields[:_MOST_ARRAYS]]
    return [Column(label, data_type(str(dtype)), shape=shape)]


def safetensors_columns(path: Path, name: str) -> list[Column]:
    """Return the tensors of a safetensors file by its header."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _LONGEST_TENSOR_LIST:
            raise UsageError(f"{name}: its list of tensors exceeds {_LONGEST_TENSOR_LIST >> 20} MiB")
        header = load_json(stream.read(length).decode("utf-8", "replace"), file=name)
    columns: list[Column] = []
    for label, about in header.items() if isinstance(header, dict) else ():
        shape = about.get("shape") if isinstance(about, dict) else None
        if label != "__metadata__" and isinstance(shape, list) and len(columns) < _MOST_ARRAYS:
            sizes = tuple(each for each in shape if isinstance(each, int))
            columns.append(Column(str(label), _tensor_type(str(about.get("dtype", ""))), shape=sizes))
    return columns


def _tensor_type(text: str) -> str:
    return _TENSOR_TYPES.get(text) or (_TENSOR_TYPES[text[0]] + text[1:] if text[:1] in _TENSOR_TYPES else "")


def image_columns(path: Path, name: str) -> list[Column]:
    """Return the pixels of an image with height and width, by its header."""
    with path.open("rb") as stream:
        head = stream.read(32)
        if head[:4] == b"\x89PNG":
            width, height = struct.unpack(">II", head[16:24])
        elif head[:3] == b"GIF":
            width, height = struct.unpack("<HH", head[6:10])
        else:
            stream.seek(2)
            height, width = _jpeg_size(stream, name)
    return [Column("image", "sc:ImageObject", shape=(height, width))]


def _jpeg_size(stream: BinaryIO, name: str) -> tuple[int, int]:
    for _ in range(1_000):
        marker = stream.read(4)
        if len(marker) < 4 or marker[0] != 0xFF:
            break
        length = struct.unpack(">H", marker[2:])[0]
        if marker[1] in _JPEG_SIZES:
            _, height, width = struct.unpack(">BHH", stream.read(5))
            return height, width
        stream.seek(length - 2, 1)
    raise UsageError(f"{name} is not a JPEG image with a known size")
