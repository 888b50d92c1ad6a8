"""Every format is recognised by content, without its framework and without executing anything."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cases import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmile.base.errors import FairmileError, NotFound, UsageError
from fairmile.models.formats import FORMATS, TensorSpec, recognise

DATA = Path(__file__).parent / "data"
SAMPLES = {
    "state.pt": "pytorch-state-dict",
    "state-old.pt": "pytorch-state-dict",
    "module.pt": "pickle",
    "tides.torchscript": "torchscript",
    "tides.pt2": "pytorch-exported",
    "pipeline.pkl": "sklearn-pickle",
    "ridge.pkl": "sklearn-pickle",
    "pipeline.joblib": "sklearn-pickle",
    "packed.joblib": "sklearn-pickle",
    "pipeline.skops": "skops",
    "tides.keras": "keras",
    "tides.h5": "keras-h5",
    "savedmodel": "savedmodel",
    "savedmodel/saved_model.pb": "savedmodel",
    "checkpoint": "tf-checkpoint",
    "checkpoint/tides.index": "tf-checkpoint",
}
LEVEL = TensorSpec("level", "float32", (None, 3))


@pytest.mark.parametrize(("name", "format"), SAMPLES.items())
def test_a_file_is_recognised_whatever_its_name(name: str, format: str, tmp_path: Path) -> None:
    copy = tmp_path / "model.bin"
    (shutil.copytree if (DATA / name).is_dir() else shutil.copy)(DATA / name, copy)
    described = recognise(copy)
    assert described.format == format
    assert described.title == FORMATS[format].title


def test_no_framework_is_imported_and_the_table_of_formats_is_complete() -> None:
    program = (
        "import sys\nfrom fairmile.models.formats import recognise\n"
        f"for name in {list(SAMPLES)!r}: recognise({str(DATA)!r} + '/' + name)\n"
        "heavy = {'torch', 'keras', 'sklearn', 'onnx', 'numpy', 'h5py', 'tensorflow', 'skops', 'google'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert {*SAMPLES.values(), "onnx", "safetensors", "mlflow", "huggingface"} == set(FORMATS)


def test_a_state_dictionary_lists_its_tensors() -> None:
    described = recognise(DATA / "state.pt")
    assert described.weights == (
        TensorSpec("layer.weight", "float32", (2, 3)),
        TensorSpec("layer.bias", "float32", (2,)),
    )
    assert (described.parameters, described.runs_code, described.imports) == (8, False, ())
    assert recognise(DATA / "state-old.pt").weights == described.weights


def test_a_pickled_module_runs_code() -> None:
    described = recognise(DATA / "module.pt")
    assert described.runs_code
    assert described.details == {"class": "torch.nn.modules.linear.Linear"}
    assert "torch.nn.modules.linear.Linear" in described.imports


def test_torchscript_says_its_arguments_and_operators() -> None:
    described = recognise(DATA / "tides.torchscript")
    assert described.inputs == (TensorSpec("level", "Tensor"),)
    assert described.operators == {"linear": 1, "relu": 1}
    assert described.parameters == 8


def test_an_exported_program_says_its_signature() -> None:
    described = recognise(DATA / "tides.pt2")
    assert [(each.name, each.type) for each in described.inputs] == [("level", "float32")]
    assert described.inputs[0].shape is not None and described.inputs[0].shape[1] == 3
    assert isinstance(described.inputs[0].shape[0], str)
    assert described.operators == {"aten.linear.default": 1, "aten.relu.default": 1}
    assert described.opset.keys() == {"aten"}


@pytest.mark.parametrize("name", ["tides.keras", "tides.h5"])
def test_a_keras_model_says_its_layers(name: str) -> None:
    described = recognise(DATA / name)
    assert described.inputs == (LEVEL,)
    assert [each.shape for each in described.outputs] == [(None, 2)]
    assert described.operators == {"Dense": 2, "InputLayer": 1}
    assert described.parameters == 3 * 4 + 4 + 4 * 2 + 2
    assert described.producer == "Keras 3.15.1"


def test_a_saved_model_says_its_signature() -> None:
    described = recognise(DATA / "savedmodel")
    assert described.inputs == (LEVEL,)
    assert described.outputs == (TensorSpec("flood", "float32", (None, 2)),)
    assert described.parameters == 8
    assert {"MatMul", "AddV2", "Relu"} <= described.operators.keys()
    assert described.producer == "TensorFlow 2.21.0"


def test_a_checkpoint_lists_its_variables() -> None:
    expected = (TensorSpec("model/b", "float32", (2,)), TensorSpec("model/w", "float32", (3, 2)))
    assert recognise(DATA / "checkpoint").weights == expected


@for_each("name", ["pipeline.pkl", "pipeline.joblib", "packed.joblib", "pipeline.skops"])
def test_a_pipeline_of_scikit_learn_says_its_steps_and_features(name: str) -> None:
    described = recognise(DATA / name)
    assert described.framework == "scikit-learn"
    assert described.inputs == (TensorSpec("X", "float64", (None, 4)),)
    assert described.operators.keys() == {"Pipeline", "Ridge", "StandardScaler"}
    assert described.warnings == ()
    assert described.runs_code is (name != "pipeline.skops")


def test_a_folder_of_hugging_face_is_described_by_its_configuration_and_weights(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors")
    config = {"model_type": "bert", "architectures": ["BertModel"], "transformers_version": "5.0.0"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    described = recognise(tmp_path)
    assert (described.format, described.framework) == ("huggingface", "transformers")
    assert described.details == {"class": "BertModel", "model type": "bert"}
    assert described.parameters == 6


def write_safetensors(path: Path, header: dict[str, object] | None = None, values: bytes = bytes(24)) -> Path:
    header = header if header is not None else {"w": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)
    return path


def test_a_folder_of_mlflow_is_described_with_the_model_in_it(tmp_path: Path) -> None:
    shutil.copy(DATA / "pipeline.pkl", tmp_path / "model.pkl")
    (tmp_path / "MLmodel").write_text(
        "flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n  sklearn:\n    pickled_model: model.pkl\n"
        "mlflow_version: 3.1.0\nsignature:\n"
        '  inputs: \'[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 4]}}]\'\n'
        '  outputs: \'[{"type": "double", "name": "flood"}]\'\n'
    )
    described = recognise(tmp_path)
    assert (described.format, described.framework, described.producer) == ("mlflow", "scikit-learn", "MLflow 3.1.0")
    assert described.inputs == (TensorSpec("0", "float64", (None, 4)),)
    assert described.outputs == (TensorSpec("flood", "float64", (None,)),)
    assert described.runs_code
    assert described.details["model format"] == "pickle of scikit-learn"


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_says_so_and_runs_nothing(protocol: int, tmp_path: Path) -> None:
    file, mark = tmp_path / "weights.onnx", tmp_path / "mark"
    file.write_bytes(pickle.dumps({"model": Attack(mark)}, protocol=protocol))
    described = recognise(file)
    assert (described.format, described.runs_code, described.imports) == ("pickle", True, ("posix.system",))
    assert described.warnings == ("loading it would run posix.system",)
    assert not mark.exists()


def test_a_pickle_that_would_grow_without_end_is_described_in_bounded_time(tmp_path: Path) -> None:
    nested: list[object] = []
    for _ in range(200):
        nested = [nested, nested]  # 2^200 lists when followed
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(nested))
    assert recognise(tmp_path / "bomb.pkl").format == "pickle"
    (tmp_path / "huge.pkl").write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b"x.")
    with pytest.raises(UsageError, match="damaged pickle: it ends early"):
        recognise(tmp_path / "huge.pkl")


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(65 << 20))
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", b"")
    with pytest.raises(UsageError, match=r"config.json unpacks to 68,157,440 bytes"):
        recognise(tmp_path / "bomb.keras")


def test_graphs_nested_too_deep_are_refused(tmp_path: Path) -> None:
    graph = b""
    for _ in range(2_000):  # a node with an attribute with a graph, and so on
        attribute = field(6, graph)
        graph = field(1, field(5, attribute))
    (tmp_path / "deep.onnx").write_bytes(b"\x08\x08" + field(2, b"tides") + field(7, graph))
    with pytest.raises(UsageError, match="damaged ONNX file: graphs are nested more than 32 deep"):
        recognise(tmp_path / "deep.onnx")


def field(number: int, data: bytes) -> bytes:
    length, size = b"", len(data)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"w": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 48]}}, "it ends inside the values of 'w'"),
        ({"w": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 24]}}, "do not have the size of its shape"),
        ({"w": {"dtype": "F32", "shape": [-3], "data_offsets": [0, 24]}}, "no valid type, shape and offsets"),
        ({"w": 3}, "no valid type, shape and offsets"),
    ],
)
def test_a_safetensors_header_that_does_not_fit_its_file_is_refused(
    header: dict[str, object], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        recognise(write_safetensors(tmp_path / "w.safetensors", header))


def test_what_is_no_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for name, data in {"text.onnx": b"high tide\n", "empty.pt": b"", "zip.keras": b"PK\x03\x04"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError) as caught:
            recognise(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(NotFound, match="no such file or folder"):
        recognise(tmp_path / "none.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would wait for ever
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        recognise(tmp_path / "pipe.onnx")


def test_a_folder_that_is_no_model_names_the_model_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# tides")
    shutil.copy(DATA / "state.pt", tmp_path)
    with pytest.raises(UsageError, match="not a model in a known format") as caught:
        recognise(tmp_path)
    assert caught.value.hint == f"name the file of the model: {tmp_path / 'state.pt'}"


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in SAMPLES if (DATA / name).is_file()])
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_a_damaged_file_is_described_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray((DATA / name).read_bytes())
    if data.draw(st.booleans(), "cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1), "length")]
    for _ in range(data.draw(st.integers(0, 8), "changes")):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / f"damaged-{name.replace('/', '-')}"
    file.write_bytes(whole)
    try:
        assert recognise(file).format in FORMATS
    except FairmileError as error:
        assert "\n" not in str(error)


@pytest.mark.thorough
def test_files_of_the_installed_frameworks_are_recognised_alike(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "ignore", DATA / "make.py", tmp_path], check=True, capture_output=True)
    for name, format in SAMPLES.items():
        if (tmp_path / name).exists():
            described, stored = recognise(tmp_path / name), recognise(DATA / name)
            assert described.format == format
            assert (described.inputs, described.parameters) == (stored.inputs, stored.parameters)
