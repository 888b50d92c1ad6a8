"""Images of digits: MNIST's own files in any of their wrappings, or the small set that comes with scikit-learn."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Integrity, MissingExtra, NotFound, UsageError

Array = np.ndarray[Any, Any]
_PARTS = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_KERAS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
_MAGIC = {3: 0x803, 1: 0x801}
_DIGITS_TESTED = 360  # of scikit-learn's 1,797 digits the last fifth is for the test


@dataclass(frozen=True)
class Digits:
    """Images as bytes, their digits, and where they are from."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    about: str


def read_digits(path: Path) -> Digits:
    """Read MNIST: Keras' mnist.npz, or the four IDX files in a folder or an archive, compressed or not."""
    if path.is_dir() and (archive := path / "mnist.npz").is_file():
        path = archive
    arrays = _keras(path) if path.suffix == ".npz" else _idx(path)
    side = arrays["train_images"].shape[-1]
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if labels.ndim != 1 or images.ndim != 3 or len(images) != len(labels):
            raise Integrity(f"{path}: {images.shape} images of the {part} part do not fit {labels.shape} labels")
        if images.dtype != np.uint8 or images.shape[1:] != (side, side):
            raise UsageError(
                f"{path}: images of the {part} part are {images.shape} of {images.dtype}, expected squares of bytes, "
                "all of one size"
            )
        if len(labels) == 0 or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 9:
            raise UsageError(f"{path}: the labels of the {part} part are not digits from 0 to 9")
        arrays[f"{part}_labels"] = labels.astype(np.uint8)
    return Digits(**arrays, about=f"MNIST from {path.name}")


def made_digits() -> Digits:
    """Return the 1,797 images of 8 x 8 pixels that come with scikit-learn, which needs no network.

    The file is read as it is: importing scikit-learn takes as long as some epochs.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "MNIST needs data (`--data data=mnist.npz`), or scikit-learn, which comes with small digits", "benchmarks"
        )
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) / 16 * 255).astype(np.uint8)
    labels = table[:, -1].astype(np.uint8)
    cut = len(images) - _DIGITS_TESTED  # the last part, as scikit-learn's own examples take it: other writers
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:], "digits of scikit-learn (8 x 8 pixels)")


def _keras(path: Path) -> dict[str, Array]:
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            missing = [name for name in _KERAS.values() if name not in archive]
            if missing:
                raise UsageError(
                    f"{path} has no array {missing[0]!r}", hint="expected x_train, y_train, x_test, y_test"
                )
            return {part: archive[name] for part, name in _KERAS.items()}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UsageError):
            raise
        raise Integrity(f"{path} cannot be read as a NumPy archive: {error}", hint="fetch it again") from error


def _idx(path: Path) -> dict[str, Array]:
    named = _files(path)
    arrays = {}
    for part, name in _PARTS.items():
        match = next(
            (each for each in named if Path(each).name.replace(".idx", "-idx").removesuffix(".gz") == name), None
        )
        if match is None:
            raise NotFound(f"{path} holds no {name}", hint="expected Keras' mnist.npz or the four IDX files of MNIST")
        arrays[part] = _array(named[match], f"{path}: {match}", dimensions=3 if "images" in part else 1)
    return arrays


def _files(path: Path) -> dict[str, bytes]:
    """Return the IDX files below a folder or in an archive, by name; nothing is unpacked to a disk."""
    if path.is_dir():
        return {str(each): each.read_bytes() for each in sorted(path.rglob("*ubyte*")) if each.is_file()}
    try:
        with tarfile.open(path) as archive:
            members = [each for each in archive if each.isfile() and "ubyte" in each.name]
            return {each.name: stream.read() for each in members if (stream := archive.extractfile(each)) is not None}
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UsageError(
            f"{path} is not an archive with MNIST's files: {error}", hint="expected mnist.npz, a folder or a .tgz"
        ) from error


def _array(data: bytes, where: str, *, dimensions: int) -> Array:
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        stream = io.BytesIO(data)
        magic, *shape = struct.unpack(f">{dimensions + 1}I", stream.read(4 * (dimensions + 1)))
    except (struct.error, OSError, EOFError, zlib.error) as error:
        raise Integrity(f"{where} is damaged: {error}", hint="fetch it again") from error
    if magic != _MAGIC[dimensions]:
        raise Integrity(f"{where} is not an IDX file: it begins with {magic:#x}, not {_MAGIC[dimensions]:#x}")
    values = np.frombuffer(bytearray(data), np.uint8, offset=stream.tell())  # writable, as torch wants it
    if values.size != int(np.prod(shape)):
        raise Integrity(f"{where} holds {values.size:,} of {int(np.prod(shape)):,} bytes", hint="fetch it again")
    return values.reshape(shape)
