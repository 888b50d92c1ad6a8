"""Models in float64: ONNX graphs, exported programs, TorchScript and Keras models, with the weights of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.models.convert.proof import Array, Compute, Double
from fairmile.models.convert.runtimes import flat_outputs, in_order, torch_of

REFERENCE_BYTES = 8 << 20  # the reference evaluator loops in Python: larger models would take minutes
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")


def torch_in_double(module: Any) -> Compute:
    """Return a PyTorch module, whose weights become float64, as a function of arrays.

    Where its code asks for a narrower type, as `.float()` does, it gets float64 as well: no step of it rounds.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def widened(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Widening(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*tree_map(widened, args), **tree_map(widened, kwargs or {}))

    compute = torch_of(module.double())

    def compute_wide(arrays: Mapping[str, Array]) -> list[Array]:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # of tensors that its code makes
        try:
            with Widening():  # type: ignore[no-untyped-call]
                return compute({name: _wide(each) for name, each in arrays.items()})
        finally:
            torch.set_default_dtype(usual)

    return compute_wide


def program_in_double(file: Path | str, format: str) -> Compute:
    """Return an exported program or a TorchScript file of PyTorch in float64."""
    import torch

    module: Any = torch.jit.load(file) if format == "torchscript" else None  # type: ignore[no-untyped-call]
    return torch_in_double(module or torch.export.load(file).module(check_guards=False))


def graph_in_double(file: Path) -> Double:
    """Return an ONNX graph as our module computes it; Unsupported where it lacks an operator."""
    import torch

    from fairmile.models.onnx_torch.module import OnnxModule

    def by_name(make: Callable[[], Any], of: Callable[[Any], Compute]) -> Compute:
        @cache
        def made() -> tuple[Compute, list[str]]:
            module = make().eval()
            return of(module), module.inputs

        return lambda arrays: made()[0](in_order(arrays, made()[1]))

    wide = OnnxModule(file, precision=torch.float64)
    return Double(by_name(lambda: wide, torch_in_double), by_name(lambda: OnnxModule(file), torch_of))


def reference_in_double(file: Path) -> Compute:
    """Return an ONNX graph as ONNX's own reference evaluator computes it in float64."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(str(file))
    _widen_graph(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)
    evaluator = ReferenceEvaluator(model)

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        feed = {name: _wide(each) for name, each in in_order(arrays, evaluator.input_names).items()}
        return [np.asarray(each) for each in flat_outputs(evaluator.run(None, feed))]

    return compute


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _widen_graph(graph: Any) -> None:
    """Give a graph float64 in place of each narrower type of floating point."""
    import onnx

    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _narrow():
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    del graph.value_info[:]
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    import onnx

    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _narrow():
                attribute.i = onnx.TensorProto.DOUBLE
            if attribute.type == attribute.TENSOR:
                _widen_tensor(attribute.t)
            for graph in (attribute.g, *attribute.graphs):
                _widen_graph(graph)
        if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
            number = onnx.helper.get_attribute_value(node.attribute[0])
            node.attribute[0].CopyFrom(
                onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.array(number, np.float64)))
            )
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = onnx.numpy_helper.from_array(np.zeros(1, np.float64))
            node.attribute.append(onnx.helper.make_attribute("value", zero))


def _narrow() -> tuple[int, ...]:
    import onnx

    return onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


def _widen_tensor(tensor: Any) -> None:
    import onnx

    if tensor.data_type in _narrow():
        values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def keras_in_double(model: Any, names: list[str]) -> Compute:
    """Return a Keras model in float64; `names` are those of its inputs, in order."""
    import keras

    wide: Any = keras.models.model_from_json(model.to_json().replace('"float32"', '"float64"'))
    wide.set_weights(model.get_weights())
    return keras_of(wide, names, double=True)


def keras_of(model: Any, names: list[str], *, double: bool = False) -> Compute:
    """Return a Keras model as a function of arrays."""
    import keras

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        given = list(in_order(arrays, names).values())
        values = [_wide(each) for each in given] if double else given
        outputs = model(values[0] if len(values) == 1 else values, training=False)
        return [keras.ops.convert_to_numpy(each) for each in flat_outputs(outputs)]

    return compute
