"""ONNX graphs computed by PyTorch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.backend.test.loader import load_model_tests
from onnx_cases import judge, read_case
from small_networks import small_networks

from fairmile.base.errors import Unsupported
from fairmile.models.onnx_torch.module import OnnxModule

FLOAT = TensorProto.FLOAT


def exported(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], *, dynamo: bool) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(model, inputs, dynamo=True, verbose=False)
            assert program is not None
            return program.model_proto
        file = io.BytesIO()
        torch.onnx.export(model, inputs, file, dynamo=False, opset_version=17)
    return onnx.ModelProto.FromString(file.getvalue())


def test_six_kinds_of_networks_come_back_from_onnx_with_the_same_outputs() -> None:
    for name, (model, inputs) in small_networks().items():
        again = OnnxModule(exported(model, inputs, dynamo=False))
        with torch.no_grad():
            assert_close(again(*inputs), model(*inputs), name)


class Together(torch.nn.Module):
    """Several networks as one, since each export by the compiler takes seconds; inputs come one behind the other."""

    def __init__(self, networks: Mapping[str, torch.nn.Module], inputs: Sequence[int]) -> None:
        super().__init__()
        self.networks = torch.nn.ModuleDict(networks)
        self.inputs = inputs

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(values)
        each = zip(self.networks.values(), self.inputs, strict=True)
        return tuple(network(*islice(rest, count)) for network, count in each)


@pytest.mark.thorough
def test_six_kinds_of_networks_come_back_from_what_the_compiler_exports_with_the_same_outputs() -> None:
    networks = small_networks()
    whole = Together(
        {name: model for name, (model, _) in networks.items()}, [len(each) for _, each in networks.values()]
    )
    inputs = tuple(value for _, each in networks.values() for value in each)
    again = OnnxModule(exported(whole.eval(), inputs, dynamo=True))
    with torch.no_grad():
        expected, actual = whole(*inputs), again(*inputs)
    for name, one, other in zip(networks, actual, expected, strict=True):
        assert_close(one, other, name)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    assert float((actual - expected).abs().max() / expected.abs().max()) <= 1e-6, name


def test_operators_give_what_the_cases_that_come_with_onnx_expect() -> None:
    kinds = ("simple", "pytorch-operator", "pytorch-converted")
    cases = [read_case(case) for kind in kinds for case in load_model_tests(kind=kind)]
    outcomes = [judge(case, OnnxModule) for case in cases]
    assert [each for each in outcomes if each.state == "wrong"] == []
    assert {each.reason for each in outcomes if each.state == "refused"} == {
        "PyTorch cannot compute StringNormalizer, tensors of type STRING",
        "PyTorch cannot compute ai.onnx.preview.training.Gradient",
    }
    assert sum(each.state == "passed" for each in outcomes) >= 130


def test_a_model_with_unknown_operators_is_refused_by_their_names_before_anything_is_computed() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Warp", ["a"], ["b"], domain="my.own"),
        helper.make_node("DeformConv", ["b", "b", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [tensor("x", 1)], [tensor("y", 1)])
    with pytest.raises(Unsupported, match=r"PyTorch cannot compute DeformConv, my\.own\.Warp"):
        OnnxModule(helper.make_model(graph))


def test_a_type_that_pytorch_lacks_is_refused_by_its_name() -> None:
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [text], [tensor("y", 1)])
    with pytest.raises(Unsupported, match="tensors of type STRING"):
        OnnxModule(helper.make_model(graph))


def test_weights_keep_their_names_and_learn() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).eval()
    again = OnnxModule(exported(model, (torch.randn(5, 3),), dynamo=False))
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= set(again.state_dict())
    again(torch.randn(5, 3)).square().mean().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in again.parameters())


def test_a_reference_in_double_precision_computes_all_of_float32_in_it() -> None:
    model, inputs = small_networks()["lstm"]
    reference = OnnxModule(exported(model, inputs, dynamo=False), precision=torch.float64)
    with torch.no_grad():
        exact, rounded = reference(inputs[0].double()), model.double()(inputs[0].double())
    assert exact.dtype is torch.float64
    assert torch.allclose(exact, rounded, rtol=0, atol=1e-14)


def test_branches_and_loops_are_followed_with_values_of_the_graph_outside() -> None:
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    flag = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["sum", "x"], ["more"])],
        "body",
        [number, flag[0], tensor("sum", 2)],
        [flag[1], tensor("more", 2)],
    )
    then = helper.make_graph([helper.make_node("Neg", ["total"], ["t"])], "then", [], [tensor("t", 2)])
    other = helper.make_graph([helper.make_node("Identity", ["total"], ["e"])], "else", [], [tensor("e", 2)])
    nodes = [
        helper.make_node("Loop", ["count", "", "x"], ["total"], body=body),
        helper.make_node("If", ["is_negative"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = [
        tensor("x", 2),
        helper.make_tensor_value_info("count", TensorProto.INT64, []),
        helper.make_tensor_value_info("is_negative", TensorProto.BOOL, []),
    ]
    module = OnnxModule(helper.make_model(helper.make_graph(nodes, "g", inputs, [tensor("y", 2)])))
    x = torch.tensor([1.0, 2.0])
    assert module(x, torch.tensor(3), torch.tensor(False)).tolist() == [4.0, 8.0]
    assert module(x, torch.tensor(1), is_negative=torch.tensor(True)).tolist() == [-2.0, -4.0]


def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)
