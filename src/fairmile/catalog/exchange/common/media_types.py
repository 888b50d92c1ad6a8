"""Media types of the formats that models and scientific data come in, which the system's table does not know."""

from __future__ import annotations

import mimetypes

EXECUTABLE_TYPE = "application/x-executable"
EXECUTABLE = "executable"  # the additional property of a file that others may execute
# By file name extension; formats without a registered type get the `x-` name in common use.
_TYPES = {
    "arff": "text/x-arff",
    "bin": "application/octet-stream",
    "csv": "text/csv",
    "gz": "application/gzip",
    "bz2": "application/x-bzip2",
    "h5": "application/x-hdf5",
    "hdf5": "application/x-hdf5",
    "ipynb": "application/x-ipynb+json",
    "json": "application/json",
    "keras": "application/x-keras",
    "nc": "application/x-netcdf",
    "npy": "application/x-npy",
    "npz": "application/x-npz",
    "onnx": "application/x-onnx",
    "parquet": "application/vnd.apache.parquet",
    "pb": "application/x-protobuf",
    "pickle": "application/x-pickle",
    "pk": "application/x-pickle",
    "pkl": "application/x-pickle",
    "pq": "application/vnd.apache.parquet",
    "pt": "application/x-pytorch",
    "pth": "application/x-pytorch",
    "safetensors": "application/x-safetensors",
    "skops": "application/x-skops",
    "tar": "application/x-tar",
    "tflite": "application/x-tflite",
    "tfrecord": "application/x-tfrecord",
    "txt": "text/plain",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zarr": "application/x-zarr",
    "zip": "application/zip",
}
# What people write where a format is asked for.
_WORDS = {
    "hdf": "h5",
    "netcdf": "nc",
    "protobuf": "pb",
    "pytorch": "pth",
    "savedmodel": "pb",
    "saved_model": "pb",
    "sparse_arff": "arff",
    "torch": "pth",
}
_CODE = frozenset(
    {
        "c",
        "cc",
        "cpp",
        "cu",
        "cuh",
        "cxx",
        "f",
        "f03",
        "f90",
        "f95",
        "go",
        "h",
        "hpp",
        "ipynb",
        "java",
        "jl",
        "m",
        "pl",
        "py",
        "r",
        "rs",
        "scala",
        "sh",
    }
)
_PICKLES = frozenset({"pickle", "pk", "pkl"})


def extension(name: str) -> str:
    """Return the lower-case extension of a file name or address, without its dot."""
    last = name.split("#")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return last.rsplit(".", 1)[1].strip().lower() if "." in last else ""


def media_type(text: str) -> str | None:
    """Return the media type of a file name, an address or the word for a format; None when it is not known."""
    word = text.strip().lower()
    known = _TYPES.get(_WORDS.get(word.lstrip("."), word.lstrip("."))) or _TYPES.get(extension(text))
    return known or mimetypes.guess_type(text.split("?")[0])[0]


def is_code(name: str) -> bool:
    """Tell whether a file of this name holds source code or a script."""
    return extension(name) in _CODE


def is_pickle(name: str) -> bool:
    """Tell whether a file of this name, or a format so called, is a Python pickle."""
    return extension(name) in _PICKLES or name.strip().lower().lstrip(".") in (*_PICKLES, "cloudpickle")
