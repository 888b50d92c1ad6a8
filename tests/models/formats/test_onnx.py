"""ONNX files are described from their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fairmile.base.errors import UsageError
from fairmile.models.formats import TensorSpec, recognise


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tides.bin")


def write_model(path: Path, **options: object) -> Path:
    """Write relu(x @ w), which says what it is in spite of its name."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        "tides",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")],
    )
    model = helper.make_model(graph, producer_name="tides", producer_version="1.0", opset_imports=_opsets())
    onnx.save(model, path, **options)
    return path


def _opsets() -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", 18)]


def test_inputs_outputs_weights_operators_and_opset_are_read(model: Path) -> None:
    described = recognise(model)
    assert (described.format, described.framework, described.producer) == ("onnx", "onnx", "tides 1.0")
    assert described.inputs == (TensorSpec("x", "float32", ("batch", 3)),)
    assert described.outputs == (TensorSpec("z", "float32", None),)
    assert described.weights == (TensorSpec("w", "float32", (3, 2)),)
    assert described.parameters == 6
    assert described.operators == {"MatMul": 1, "Relu": 1}
    assert described.opset == {"ai.onnx": 18}
    assert described.size_bytes == model.stat().st_size


def test_weights_in_a_file_of_their_own_are_counted_and_missed(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tides.onnx", save_as_external_data=True, location="tides.data", size_threshold=0)
    described = recognise(model)
    assert described.size_bytes == model.stat().st_size + 24
    assert described.parameters == 6
    (tmp_path / "tides.data").unlink()
    assert recognise(model).warnings == ("weights are missing: tides.data",)


def test_a_file_that_ends_early_is_damaged(model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[:-20])
    with pytest.raises(UsageError, match=r"tides.bin: damaged ONNX file: it ends inside a field"):
        recognise(model)
