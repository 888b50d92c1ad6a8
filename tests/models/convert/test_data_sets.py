"""Arrays of a data set become inputs where their names or shapes fit."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from fairmile.models.convert.data_sets import read_inputs
from fairmile.models.formats.description import TensorSpec

ROWS = np.arange(120.0).reshape(40, 3)
ONE = [TensorSpec("x", "float32", ("batch", 3))]
TWO = [TensorSpec("a", "float32", ("batch", 3)), TensorSpec("b", "int64", (5,))]


def test_the_first_rows_of_the_first_file_that_fits_are_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 4)))  # another width
    (tmp_path / "b.npy").write_bytes(b"broken")
    np.save(tmp_path / "c.npy", np.array([{}], dtype=object))  # would have to be unpickled
    np.save(tmp_path / "d.npy", ROWS)
    assert read_inputs(tmp_path, ONE)["x"].tolist() == ROWS[:32].tolist()


def test_several_inputs_are_taken_by_name_and_of_a_fixed_size_as_many_as_it_says(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["a"], file["b"], file["c"] = ROWS, np.arange(40), ROWS
    taken = read_inputs(tmp_path / "data.h5", TWO)
    assert [each.shape for each in taken.values()] == [(32, 3), (5,)]
    np.savez(tmp_path / "data.npz", a=ROWS)
    assert read_inputs(tmp_path / "data.npz", TWO) == {}


def test_whole_numbers_become_floats_but_floats_no_whole_numbers_and_texts_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", np.ones((2, 3), dtype=np.int16))
    assert read_inputs(tmp_path, ONE)["x"].shape == (2, 3)
    np.save(tmp_path / "n.npy", np.ones((2, 3)))
    assert read_inputs(tmp_path, [TensorSpec("x", "int64", ("batch", 3))]) == {}
    assert read_inputs(tmp_path, [TensorSpec("x", "string", ("batch", 3))]) == {}
    (tmp_path / "note.txt").write_text("no array")
    assert read_inputs(tmp_path / "note.txt", ONE) == {}
