"""ONNX graphs that are a chain of layers, as Keras models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported

_ACTIVATIONS = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus", "Elu": "elu"}
_LEFT_OUT = ("Identity", "Dropout")


def write_keras(onnx_file: Path, file: Path) -> str:
    """Write an ONNX model as Keras layers; a graph with another operator, or with branches, is refused by name."""
    import keras
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(onnx_file)).graph
    weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    inputs = [each for each in graph.input if each.name not in weights]
    shape = [each.dim_value or None for each in inputs[0].type.tensor_type.shape.dim][1:]
    layers: list[Any] = []
    at = inputs[0].name
    for node in graph.node:
        if len(inputs) != 1 or node.input[0] != at:
            raise Unsupported(f"Keras: {node.op_type} is not the next layer of a chain")
        layers.append(_layer(keras, node, weights))
        at = node.output[0]
    model = keras.Sequential([keras.Input(shape), *(each for each in layers if each is not None)])
    for layer in (each for each in model.layers if hasattr(each, "arrays")):
        layer.set_weights(layer.arrays)
    model.save(file)
    return "chain of Keras layers"


def _layer(keras: Any, node: Any, weights: dict[str, Any]) -> Any:
    values = {each.name: each for each in node.attribute}
    if node.op_type in _LEFT_OUT:
        return None
    if node.op_type in _ACTIVATIONS:
        return keras.layers.Activation(_ACTIVATIONS[node.op_type])
    if node.op_type == "Softmax":
        return keras.layers.Softmax(axis=values["axis"].i if "axis" in values else -1)
    if node.op_type == "Flatten":
        return keras.layers.Flatten()
    is_dense = node.op_type == "Gemm" and {"alpha", "beta"}.isdisjoint(
        name for name, each in values.items() if each.type == each.FLOAT and each.f != 1.0
    )
    is_product = node.op_type == "MatMul" and weights.get(node.input[1], np.zeros(0)).ndim == 2
    if is_product or (is_dense and not ("transA" in values and values["transA"].i)):
        kernel = weights[node.input[1]]
        kernel = kernel.T if "transB" in values and values["transB"].i else kernel
        layer = keras.layers.Dense(kernel.shape[1], use_bias=len(node.input) > 2)
        layer.arrays = [kernel, *(weights[name] for name in node.input[2:])]
        return layer
    raise Unsupported(
        f"Keras: no layer for {node.op_type}", hint="known: Gemm, MatMul, Flatten, Softmax and activations"
    )
