"""SavedModels are written and computed by a process of TensorFlow, which here is a few lines in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Unsupported
from fairmile.models.convert.savedmodel import TensorFlow

KERAS = """
class saving:
    def load_model(file, compile):
        return Model(open(file).read())

class Model:
    def __init__(self, text):
        self.text, self.inputs = text, [0]

    def export(self, folder, format, verbose):
        if self.text == "odd":
            raise ValueError("no layer for odd")
        print("written")  # which is no answer
        open(folder, "w").write(self.text)
"""
TENSORFLOW = """
__version__ = "2.0"
constant = lambda array: array

class nest:
    flatten = list

class Array:
    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array

class Loaded:
    def serve(self, array):
        if len(array) > 2:
            raise ValueError("at most two rows")
        return [Array(array * 2), Array(array + 1)]

class saved_model:
    def load(folder):
        return Loaded()
"""


@pytest.fixture
def python(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "keras.py").write_text(KERAS)
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    return ("env", f"PYTHONPATH={tmp_path}", sys.executable)


def test_a_written_model_is_computed_and_a_size_that_it_refuses_ends_nothing(
    python: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.keras").write_text("layers")
    model = TensorFlow(python, tmp_path / "a.keras", tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == "layers"
    assert model.version == "2.0"
    with pytest.raises(Unsupported, match="ValueError: at most two rows"):
        model({"x": np.ones((3, 1))})
    doubled, more = model({"x": np.ones((2, 1))})
    assert doubled.tolist() == [[2.0], [2.0]]
    assert more.tolist() == [[2.0], [2.0]]
    model.close()


def test_what_tensorflow_cannot_write_is_named(python: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.keras").write_text("odd")
    with pytest.raises(Unsupported, match="TensorFlow cannot write or compute the model: ValueError: no layer for odd"):
        TensorFlow(python, tmp_path / "a.keras", tmp_path / "saved")
