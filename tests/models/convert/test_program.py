"""Models in another format, each with the proof that it computes the same."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import sklearn_estimators
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file
from small_networks import small_networks

from fairmile.base.errors import Unsupported, UsageError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.cosmoflow import benchmark as cosmoflow
from fairmile.models.convert import program
from fairmile.models.convert.program import convert, main
from fairmile.models.convert.proof import Array, prove, sample_inputs
from fairmile.models.convert.request import Request, parse_input
from fairmile.models.convert.sources import open_model
from fairmile.models.formats import recognise


@pytest.fixture(autouse=True)
def keras_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """Return an ONNX file of two dense layers for any batch size."""
    rng = np.random.default_rng(0)
    weights = {"w1": (4, 3), "b1": (4,), "w2": (2, 4), "b2": (2,)}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    file = tmp_path / "dense.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)
    return file


def request(file: Path, to: str, **fields: object) -> Request:
    return Request(to, str(file), "onnx", **fields)  # type: ignore[arg-type]


def test_onnx_becomes_a_program_that_pytorch_loads_without_fairmile(dense: Path, tmp_path: Path) -> None:
    file, way, proof = convert(request(dense, "pytorch"), tmp_path)
    assert way == "interpreted graph, torch.export"
    assert proof.holds
    assert proof.largest <= proof.tolerance
    assert [each.inputs for each in proof.cases][:3] == ["normal, size 1", "normal, size 2", "normal, size 5"]
    assert torch.export.load(file).module()(torch.zeros(7, 3)).shape == (7, 2)


def test_onnx_becomes_openvino_and_keras_and_keras_onnx_again(dense: Path, tmp_path: Path) -> None:
    for to, name in (("openvino", "model.xml"), ("keras", "model.keras")):
        file, _, proof = convert(request(dense, to), tmp_path)
        assert file.name == name
        assert proof.holds, to
        assert file.is_file()
    _, way, proof = convert(Request("onnx", str(tmp_path / "model.keras"), "keras"), tmp_path)
    assert (way, proof.holds) == ("Keras export", True)


def test_a_graph_with_an_operator_that_is_no_layer_is_refused_for_keras(dense: Path, tmp_path: Path) -> None:
    model = onnx.load(dense)
    model.graph.node[1].op_type = "Erf"
    onnx.save(model, dense)
    with pytest.raises(Unsupported, match="no layer for Erf"):
        convert(request(dense, "keras"), tmp_path)


def test_inputs_from_a_file_are_compared_as_well(dense: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((6, 3), 0.5))
    _, _, proof = convert(request(dense, "openvino", data=str(tmp_path / "x.npy")), tmp_path)
    assert proof.cases[-1].inputs == "data"


def test_a_result_that_differs_is_not_proved_and_the_worst_inputs_are_kept(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(file: Path) -> object:
        return lambda arrays: [np.full((len(arrays["x"]), 2), 3.0, np.float32)]

    monkeypatch.setattr(program, "openvino_of", wrong)
    monkeypatch.chdir(tmp_path)
    assert main([request(dense, "openvino").to_json()]) == 1
    written = json.loads((tmp_path / "proof.json").read_text())
    assert written["proof"]["holds"] is False
    worst = max(written["proof"]["cases"], key=lambda each: each["largest"])
    assert written["proof"]["largest"] == worst["largest"]
    assert np.load(tmp_path / "worst.npz")["x"].shape[1] == 3


def test_a_result_that_fails_on_another_batch_size_is_not_proved(dense: Path) -> None:
    source = open_model(request(dense, "onnx"))

    def fixed(arrays: Mapping[str, Array]) -> list[Array]:
        if len(arrays["x"]) != 2:
            raise ValueError("dimension mismatch")
        return source.compute(arrays)

    cases = sample_inputs(source.specs, 0, {}, {})
    proof = prove(cases, source.compute, None, fixed, "ONNX Runtime")
    assert not proof.holds
    assert proof.to_dict()["largest"] is None


def test_weights_alone_go_from_safetensors_to_a_state_dict_bit_by_bit(tmp_path: Path) -> None:
    weights = {"a.weight": torch.randn(3, 2), "n": torch.arange(4)}
    save_file(weights, str(tmp_path / "w.safetensors"))
    source = str(tmp_path / "w.safetensors")
    file, way, proof = convert(Request("pytorch", source, "safetensors"), tmp_path)
    assert (file.name, way, proof.largest) == ("model.pt", "weights by name", 0.0)
    state = torch.load(file, weights_only=True)
    assert all(torch.equal(state[name], each) for name, each in weights.items())
    again, _, _ = convert(Request("safetensors", str(file), "pytorch-state-dict"), tmp_path)
    assert load_file(again).keys() == weights.keys()


def test_weights_need_code_where_the_model_is_asked_for(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, str(tmp_path / "w.safetensors"))
    with pytest.raises(UsageError, match="holds weights alone") as caught:
        convert(Request("onnx", str(tmp_path / "w.safetensors"), "safetensors"), tmp_path)
    assert caught.value.hint is not None
    assert "--code" in caught.value.hint


def test_a_pickle_is_never_loaded_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.pkl"
    file.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "done").encode() + b"'\ntR.")
    monkeypatch.chdir(tmp_path)
    assert main([Request("onnx", str(file), "pickle").to_json()]) == 2
    assert json.loads((tmp_path / "proof.json").read_text())["error"]["hint"].endswith("--trust-pickle")
    assert not (tmp_path / "done").exists()


def test_estimators_of_scikit_learn_give_the_same_labels_and_shares_in_onnx(tmp_path: Path) -> None:
    import skops.io
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    features, labels = load_iris(return_X_y=True)
    skops.io.dump(LogisticRegression(max_iter=500).fit(features, labels), tmp_path / "iris.skops")
    np.save(tmp_path / "x.npy", features)
    asked = Request("onnx", str(tmp_path / "iris.skops"), "skops", data=str(tmp_path / "x.npy"))
    _, way, proof = convert(asked, tmp_path)
    assert way == "skl2onnx"
    assert proof.cases[-1].inputs == "data"
    assert proof.cases[-1].largest <= 1e-6


@pytest.mark.parametrize(
    "name",
    ["KMeans", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("NearestNeighbors", "TfidfVectorizer"))],
)
def test_estimators_of_every_kind_have_all_their_outputs_compared(name: str, tmp_path: Path) -> None:
    assert sklearn_estimators.judge(_listed(name), tmp_path).state == "passed"


def test_an_estimator_that_loses_too_much_in_float32_is_converted_in_float64(tmp_path: Path) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor

    task = sklearn_estimators.task_of(GaussianProcessRegressor)
    model = GaussianProcessRegressor(optimizer=None).fit(task.rows, task.targets)
    (tmp_path / "gpr.pkl").write_bytes(pickle.dumps(model))
    np.save(tmp_path / "rows.npy", task.other_rows)
    asked = Request(
        "onnx", str(tmp_path / "gpr.pkl"), "sklearn-pickle", data=str(tmp_path / "rows.npy"), trust_pickle=True
    )
    file, way, proof = convert(asked, tmp_path)
    assert way.startswith("skl2onnx in float64 (in float32, its result differs by")
    assert proof.holds
    assert [each.type for each in recognise(file).inputs] == ["float64"]


@pytest.mark.thorough
def test_text_to_compare_on_is_asked_for(tmp_path: Path) -> None:
    task = sklearn_estimators.task_of(_listed("TfidfVectorizer"))
    (tmp_path / "text.pkl").write_bytes(pickle.dumps(sklearn_estimators.fitted(_listed("TfidfVectorizer"), task)))
    asked = Request("onnx", str(tmp_path / "text.pkl"), "sklearn-pickle", trust_pickle=True)
    with pytest.raises(UsageError, match="inputs of TfidfVectorizer are unknown"):
        convert(asked, tmp_path)
    with pytest.raises(UsageError, match="texts to compare on are missing"):
        convert(dataclasses.replace(asked, inputs=("X=string[batch]",)), tmp_path)


def _listed(name: str) -> type:
    return next(each for each in sklearn_estimators.listed() if each.__name__ == name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cnn", "lstm", "gnn"])
def test_networks_of_pytorch_become_onnx_by_code_that_builds_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ModuleType("own_networks")
    code.build = lambda: small_networks()[name]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_networks", code)
    file, way, proof = convert(Request("onnx", code="own_networks:build"), tmp_path)
    assert way == "torch.export exporter"
    assert proof.largest <= 1e-6
    assert proof.second_opinion.startswith("ONNX's reference evaluator differs by")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


@pytest.mark.thorough
def test_cosmoflow_keeps_its_scores_in_onnx_and_in_pytorch_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    params = {"train_samples": 32, "validation_samples": 12, "size": 8, "depth": 2, "width": 4, "epochs": 1}
    (tmp_path / "trained").mkdir()
    cosmoflow.run(Session("cosmoflow", params, 0, None, tmp_path / "trained", tmp_path / ".cache", False, Ranks.of({})))
    folder = str(Path(str(cosmoflow.__file__)).parent)
    judge = {
        "call": "fairmile.benchmarks.harness.validation:open_validation",
        "with": {"folder": folder, "params": params, "data": "", "seed": 0},
    }
    trained = json.loads((tmp_path / "trained" / "results.json").read_text())
    asked = {"code": f"{folder}/step.py:build", "takes_settings": True, "judge": judge}
    file, _, proof = convert(Request("onnx", str(tmp_path / "trained" / "checkpoint.pt"), **asked), tmp_path)
    assert proof.cases[-1].inputs == "validation data"
    assert proof.cases[-1].largest <= 1e-6
    back = Request("pytorch", str(shutil.copy(file, tmp_path / "cosmoflow.onnx")), "onnx", judge=judge)
    _, _, again = convert(back, tmp_path)
    for of_proof in (proof, again):
        for name, (source, result) in of_proof.scores.items():
            assert source == pytest.approx(result, rel=1e-6), name
    assert proof.scores["mae"][0] == pytest.approx(_model_score(trained, "mae"), rel=1e-6)


def _model_score(results: dict[str, Any], metric: str) -> float:
    return next(float(each["values"][metric]) for each in results["scores"] if each["kind"] == "model")


def test_validation_data_of_another_model_is_refused(dense: Path, tmp_path: Path) -> None:
    class Other:
        inputs: ClassVar = {"image": np.zeros((4, 8, 8), np.float32)}

    with pytest.raises(UsageError, match=r"x float32\[batch, 3\] does not take validation data of shape \[4, 8, 8\]"):
        program._validated(Other(), open_model(request(dense, "onnx")))  # type: ignore[arg-type]


@pytest.mark.thorough
def test_an_exported_program_becomes_onnx_with_the_inputs_that_it_declares(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(2, 3),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "linear.pt2")
    _, _, proof = convert(Request("onnx", str(tmp_path / "linear.pt2"), "pytorch-exported"), tmp_path)
    assert proof.holds
    assert "normal, size 5" in [each.inputs for each in proof.cases]


def test_an_input_is_described_by_name_type_and_sizes() -> None:
    described = parse_input("x=float32[batch, 3, ?]", 0)
    assert (described.name, described.type, described.shape) == ("x", "float32", ("batch", 3, None))
    with pytest.raises(UsageError, match="does not describe an input"):
        parse_input("x:float32", 0)
