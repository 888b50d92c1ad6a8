"""A proof has two parts: source and result are one function in float64, and the result rounds no worse."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from fairmile.models.convert.in_double import graph_in_double, program_in_double, reference_in_double, torch_in_double
from fairmile.models.convert.program import convert
from fairmile.models.convert.proof import (
    Array,
    Arrays,
    Double,
    FunctionCheck,
    Proof,
    prove,
    rounding_error,
    sample_inputs,
)
from fairmile.models.convert.request import Request, function_words, rounding_words
from fairmile.models.convert.runtimes import adds_in_a_race, onnxruntime_of, torch_of
from fairmile.models.formats.description import TensorSpec
from fairmile.models.onnx_torch.operators import OPERATORS

X = TensorSpec("x", "float32", ("batch", 4))


class Network(nn.Module):
    """Square weights, which look the same transposed, a normalisation with an epsilon, and a step in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.norm.running_var.fill_(0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.relu(self.norm(self.first(x)).float()))
        return found


class Written:
    """A network, its ONNX file, and inputs to compare on."""

    def __init__(self, file: Path) -> None:
        self.module, self.file = Network().eval(), file
        self.cases: dict[str, Arrays] = sample_inputs([X], 0, {}, {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            keeping = torch.onnx.TrainingMode.PRESERVE  # the normalisation stays a node
            torch.onnx.export(
                self.module, (torch.zeros(2, 4),), str(file), dynamo=False, opset_version=17, input_names=["x"],
                dynamic_axes={"x": {0: "batch"}}, training=keeping,
            )  # fmt: skip
        self.exact = Double(torch_in_double(Network().eval()), torch_of(self.module))

    def proof(self) -> Proof:
        check = FunctionCheck(self.exact.compute, graph_in_double(self.file).compute, "PyTorch")
        result = onnxruntime_of(self.file)
        return prove(self.cases, torch_of(self.module), self.exact, result, "ONNX Runtime", functions=[check])

    def change(self, edit: Callable[[onnx.GraphProto], None]) -> None:
        model = onnx.load(self.file)
        edit(model.graph)
        onnx.save(model, self.file)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "network.onnx")


def test_a_correct_file_is_the_same_function_far_below_the_rounding_of_float32(written: Written) -> None:
    proof = written.proof()
    assert proof.holds
    assert proof.function is not None
    assert proof.function < 1e-9
    rounding = proof.to_dict()["rounding"]
    assert rounding is not None
    assert 1e-9 < rounding["source"] < 1e-6
    assert rounding["result"] is not None
    assert rounding["ratio"] == pytest.approx(rounding["result"] / rounding["source"])
    assert proof.metrics()["function_difference"] == proof.function
    words = proof.to_dict()
    assert "apart in float64 (tolerance 1e-06), by PyTorch" in function_words(words)
    assert "in ONNX Runtime" in rounding_words(words)


def _weight(graph: onnx.GraphProto, name: str) -> onnx.TensorProto:
    return next(each for each in graph.initializer if each.name == name)


def _wrong_weight(graph: onnx.GraphProto) -> None:
    values = numpy_helper.to_array(_weight(graph, "first.weight")).copy()
    values[1, 2] *= 1.0001
    _weight(graph, "first.weight").CopyFrom(numpy_helper.from_array(values, "first.weight"))


def _swapped_axis(graph: onnx.GraphProto) -> None:
    node = next(each for each in graph.node if "last.weight" in each.input)
    next(each for each in node.attribute if each.name == "transB").i = 0


def _wrong_epsilon(graph: onnx.GraphProto) -> None:
    node = next(each for each in graph.node if each.op_type == "BatchNormalization")
    next(each for each in node.attribute if each.name == "epsilon").f *= 1.01


def _operator_off_by_1e5(graph: onnx.GraphProto) -> None:
    last = graph.output[0].name
    graph.node[-1].output[0] = "before"
    graph.initializer.append(numpy_helper.from_array(np.float32(1.00001), "factor"))
    graph.node.append(onnx.helper.make_node("Mul", ["before", "factor"], [last]))


@pytest.mark.parametrize("wrong", [_wrong_weight, _swapped_axis, _wrong_epsilon, _operator_off_by_1e5])
def test_a_wrong_file_is_another_function(written: Written, wrong: Callable[[onnx.GraphProto], None]) -> None:
    written.change(wrong)
    proof = written.proof()
    assert not proof.holds
    assert proof.function is not None
    assert proof.function > 1e-6


def test_an_error_that_the_rounding_of_the_source_would_hide_is_found_in_float64(written: Written) -> None:
    """Sums that nearly cancel round by 1e-4 in float32: beside that nobody sees an error of 1e-5."""

    def source(arrays: Mapping[str, Array]) -> list[Array]:
        return [(arrays["x"] + np.float32(1000)) - np.float32(1000)]

    def exact(arrays: Mapping[str, Array]) -> list[Array]:
        return [arrays["x"].astype(np.float64)]

    def wrong(arrays: Mapping[str, Array]) -> list[Array]:
        return [arrays["x"] * np.float32(1.00001)]

    def wrong_in_double(arrays: Mapping[str, Array]) -> list[Array]:
        return [arrays["x"].astype(np.float64) * 1.00001]

    truth = Double(exact, source)
    cases = {"normal": written.cases["normal, size 5"]}
    assert prove(cases, source, truth, wrong, "ONNX Runtime").holds
    checked = prove(
        cases, source, truth, wrong, "ONNX Runtime", functions=[FunctionCheck(exact, wrong_in_double, "PyTorch")]
    )
    assert not checked.holds
    assert checked.function == pytest.approx(1e-5, rel=0.1)


def test_a_result_that_rounds_more_than_its_source_is_not_proved_though_its_function_is_the_same(
    written: Written,
) -> None:
    computed = torch_of(written.module)

    def half(arrays: Mapping[str, Array]) -> list[Array]:
        return [each.astype(np.float16).astype(np.float32) for each in computed(arrays)]

    same = FunctionCheck(written.exact.compute, written.exact.compute, "PyTorch")
    proof = prove(written.cases, computed, written.exact, half, "ONNX Runtime", functions=[same])
    assert proof.function == 0.0
    assert not proof.holds
    assert proof.metrics()["rounding_ratio"] > 100


def test_each_set_of_inputs_has_the_tolerance_of_its_own_rounding() -> None:
    """Large inputs on which the source rounds badly allow nothing on others."""

    def source(arrays: Mapping[str, Array]) -> list[Array]:
        off = 1e-3 if arrays["x"].max() > 10 else 0.0
        return [arrays["x"] * np.float32(1 + off)]

    def exact(arrays: Mapping[str, Array]) -> list[Array]:
        return [arrays["x"].astype(np.float64)]

    def wrong(arrays: Mapping[str, Array]) -> list[Array]:
        return [arrays["x"] * np.float32(1.0001)]

    cases = {"normal": {"x": np.ones(3, np.float32)}, "large values": {"x": np.full(3, 100, np.float32)}}
    same = FunctionCheck(exact, exact, "PyTorch")
    proof = prove(cases, source, Double(exact, source), wrong, "ONNX Runtime", functions=[same])
    assert {each.inputs: each.excess <= 1 for each in proof.cases} == {"normal": False, "large values": True}
    assert proof.worst is cases["normal"]


def test_labels_between_which_rounding_decides_are_right_either_way_and_others_wrong() -> None:
    exact, source = [np.array([1, 2, 3])], [np.array([1, 2, 4])]
    assert rounding_error(exact, [np.array([1, 2, 3])], source) == 0
    assert rounding_error(exact, [np.array([1, 2, 4])], source) == 0
    assert rounding_error(exact, [np.array([1, 5, 3])], source) == pytest.approx(1 / 3)
    assert rounding_error([np.ones(2)], [np.array([1, np.nan])], [np.ones(2)]) == float("inf")


def test_an_operator_of_ours_that_computes_something_else_is_found_by_the_reference_evaluator(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request("pytorch", str(written.file), "onnx")
    _, _, proof = convert(asked, tmp_path)
    assert proof.holds
    assert proof.function_by == "ONNX's reference evaluator"
    assert proof.function is not None
    assert proof.function < 1e-9
    monkeypatch.setitem(OPERATORS, ("", "Relu"), lambda node, x: torch.relu(x) * 1.00001)
    _, _, proof = convert(asked, tmp_path)
    assert not proof.holds


def test_what_computes_in_float32_alone_is_compared_as_it_is_and_the_proof_says_so(
    written: Written, tmp_path: Path
) -> None:
    _, _, proof = convert(Request("openvino", str(written.file), "onnx"), tmp_path)
    assert proof.holds
    told = proof.to_dict()
    assert told["function"] is None
    assert told["rounding"] is None
    assert function_words(told) == "not compared in float64: OpenVINO computes the file in float32"
    assert rounding_words(told) == ""


def test_a_program_of_pytorch_and_the_reference_evaluator_compute_in_float64(written: Written, tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)}
    right = written.exact.compute(x)[0]
    assert right.dtype == np.float64
    torch.export.save(torch.export.export(written.module, (torch.zeros(3, 4),)), tmp_path / "network.pt2")
    torch.jit.trace(written.module, torch.zeros(3, 4)).save(tmp_path / "network.pt")  # type: ignore[no-untyped-call]
    for computed in (
        program_in_double(tmp_path / "network.pt2", "pytorch-exported"),
        program_in_double(tmp_path / "network.pt", "torchscript"),
        reference_in_double(written.file),
    ):
        np.testing.assert_allclose(computed(x)[0], right, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("reduction", "races"), [("add", True), ("none", False)])
def test_sums_at_repeated_indices_are_computed_on_one_thread(reduction: str, races: bool, tmp_path: Path) -> None:
    """With more threads ONNX Runtime loses some of them, in another way at each call."""
    kinds = {"x": (1, [64, 32]), "at": (7, [5000, 1]), "values": (1, [5000, 32])}
    node = onnx.helper.make_node("ScatterND", [*kinds], ["y"], reduction=reduction)
    inputs = [onnx.helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    graph = onnx.helper.make_graph([node], "sums", inputs, [onnx.helper.make_tensor_value_info("y", 1, [64, 32])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "sums.onnx")
    assert adds_in_a_race(tmp_path / "sums.onnx") is races
    if races:
        generator = np.random.default_rng(0)
        values, at = generator.random((5000, 32), np.float32), generator.integers(0, 64, (5000, 1))
        computed = onnxruntime_of(tmp_path / "sums.onnx")
        expected = np.zeros((64, 32))
        np.add.at(expected, at[:, 0], values)
        for _ in range(5):
            found = computed({"x": np.zeros((64, 32), np.float32), "at": at, "values": values})
            np.testing.assert_allclose(found[0], expected, rtol=1e-4)
