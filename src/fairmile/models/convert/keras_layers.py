"""ONNX graphs of known layers as Keras models: chains, branches that meet again, several inputs and outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Unsupported
from fairmile.base.quick_dataclass import dataclass

_ACTIVATIONS = {
    "Relu": "relu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Selu": "selu",
    "Mish": "mish",
}
_MERGES = {"Add": "Add", "Sum": "Add", "Sub": "Subtract", "Mul": "Multiply", "Max": "Maximum", "Min": "Minimum"}
_LEFT_OUT = ("Identity", "Dropout")


def write_keras(onnx_file: Path, file: Path) -> str:
    """Write an ONNX model as Keras layers; a graph with another operator is refused by name."""
    import keras
    import onnx

    graph = _Graph(keras, onnx.load(str(onnx_file)).graph)
    for node in graph.nodes:
        graph.add(node)
    inputs = graph.inputs if len(graph.inputs) > 1 else graph.inputs[0]  # Keras warns of a list with one input
    keras.Model(inputs, graph.outputs()).save(file)
    return "graph of Keras layers"


@dataclass()
class _Tensor:
    """A tensor with its channels in the second place, as in ONNX, or in the last, where all of Keras computes."""

    first: Any = None
    last: Any = None


class _Node:
    """A node of ONNX with its attributes as plain values."""

    def __init__(self, node: Any) -> None:
        import onnx

        self.type: str = node.op_type
        self.inputs: list[str] = list(node.input)
        self.output: str = node.output[0]
        self.values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}

    def get(self, name: str, default: Any) -> Any:
        value = self.values.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def refuse(self, why: str) -> Unsupported:
        return Unsupported(f"Keras: no layer for {self.type} {why}", hint="keep the model in ONNX")


class _Graph:
    """A Keras model in the making: tensors and constants by their names in ONNX."""

    def __init__(self, keras: Any, graph: Any) -> None:
        from onnx import numpy_helper

        self.keras, self.layers = keras, keras.layers
        self.constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.tensors: dict[str, _Tensor] = {}
        self.inputs: list[Any] = []
        self._outputs = [each.name for each in graph.output]
        for each in graph.input:
            if each.name not in self.constants:
                self._add_input(each)
        self.nodes: list[_Node] = []
        for each in graph.node:
            if each.op_type == "Constant" and each.attribute[0].name == "value":
                self.constants[each.output[0]] = numpy_helper.to_array(each.attribute[0].t)
            else:
                self.nodes.append(_Node(each))
        self._readers: dict[str, list[_Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, []).append(node)

    def _add_input(self, described: Any) -> None:
        from onnx import helper

        kind = described.type.tensor_type
        sizes = [each.dim_value or None for each in kind.shape.dim]
        if not sizes:
            raise Unsupported(f"Keras: input {described.name} has no batch axis", hint="keep the model in ONNX")
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", described.name)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        tensor = self.keras.Input(sizes[1:], name=name, dtype=dtype)
        self.inputs.append(tensor)
        self.tensors[described.name] = _Tensor(first=tensor)

    def outputs(self) -> list[Any]:
        return [self.first(name) for name in self._outputs]

    def first(self, name: str) -> Any:
        """Return a tensor as ONNX has it."""
        held = self.tensors[name]
        if held.first is None:
            axes = len(held.last.shape) - 1
            held.first = self.layers.Permute((axes, *range(1, axes)))(held.last)
        return held.first

    def last(self, name: str) -> Any:
        """Return a tensor with its channels in the last place."""
        held = self.tensors[name]
        if held.last is None:
            axes = len(held.first.shape) - 1
            held.last = self.layers.Permute((*range(2, axes + 1), 1))(held.first) if axes > 1 else held.first
        return held.last

    def constant(self, node: _Node, place: int) -> np.ndarray[Any, Any]:
        name = node.inputs[place] if place < len(node.inputs) else ""
        if name not in self.constants:
            raise node.refuse(f"whose input {place + 1} is no constant")
        return self.constants[name]

    def add(self, node: _Node) -> None:
        """Add the layer of a node."""
        if node.output in self.tensors:
            return  # a bias that went into the layer before it
        if node.type in _LEFT_OUT:
            self.tensors[node.output] = self.tensors[node.inputs[0]]
        elif (layer := self._activation(node)) is not None:
            held = self.tensors[node.inputs[0]]
            is_last = held.last is not None
            made = layer(held.last if is_last else held.first)
            self.tensors[node.output] = _Tensor(last=made) if is_last else _Tensor(first=made)
        elif node.type in _MERGES:
            self._merge(node)
        elif node.type in _WRITERS:
            _WRITERS[node.type](self, node)
        else:
            known = sorted({*_WRITERS, *_MERGES, *_ACTIVATIONS, "Elu", "LeakyRelu"})
            raise Unsupported(f"Keras: no layer for {node.type}", hint=f"known: {', '.join(known)}")

    def put_first(self, node: _Node, tensor: Any) -> None:
        self.tensors[node.output] = _Tensor(first=tensor)

    def put_last(self, node: _Node, tensor: Any) -> None:
        is_flat = len(tensor.shape) == 2
        self.tensors[node.output] = _Tensor(first=tensor, last=tensor) if is_flat else _Tensor(last=tensor)

    def _activation(self, node: _Node) -> Any:
        if node.type == "LeakyRelu":
            return self.layers.LeakyReLU(negative_slope=node.get("alpha", 0.01))
        if node.type == "Elu":
            return self.layers.ELU(alpha=node.get("alpha", 1.0))
        return self.layers.Activation(_ACTIVATIONS[node.type]) if node.type in _ACTIVATIONS else None

    def _merge(self, node: _Node) -> None:
        fixed = [name for name in node.inputs if name in self.constants]
        if fixed:
            self._shift_or_scale(node, self.constants[fixed[0]])
            return
        layer = getattr(self.layers, _MERGES[node.type])()
        shapes = {len(self._any(name).shape) for name in node.inputs}
        if len(shapes) != 1:
            raise node.refuse("of tensors with different numbers of axes")
        if all(self.tensors[name].last is not None for name in node.inputs):
            self.put_last(node, layer([self.last(name) for name in node.inputs]))
        else:
            self.put_first(node, layer([self.first(name) for name in node.inputs]))

    def _any(self, name: str) -> Any:
        held = self.tensors[name]
        return held.first if held.first is not None else held.last

    def _shift_or_scale(self, node: _Node, value: np.ndarray[Any, Any]) -> None:
        """Add a layer for a sum or product with one number, or with one for each feature."""
        wide = [size for size in value.shape if size != 1]
        if len(node.inputs) != 2 or len(wide) > 1 or (wide and value.shape[-1] == 1):
            raise node.refuse(f"with a constant of shape {list(value.shape)}")
        numbers: Any = value.astype(np.float64).reshape(-1).tolist()
        numbers = numbers if wide else numbers[0]
        is_reversed = node.inputs[0] in self.constants
        if node.type in ("Add", "Sum"):
            scale, offset = 1.0, numbers
        elif node.type == "Mul":
            scale, offset = numbers, 0.0
        elif node.type == "Sub":
            minus = [-each for each in numbers] if wide else -numbers
            scale, offset = (-1.0, numbers) if is_reversed else (1.0, minus)
        else:
            raise node.refuse("with a constant")
        self.put_first(node, self.layers.Rescaling(scale, offset)(self.first(node.inputs[1 if is_reversed else 0])))

    def bias_after(self, node: _Node, size: int) -> tuple[np.ndarray[Any, Any] | None, _Node | None]:
        """Return the bias that the only reader of a product adds, and that reader."""
        readers = self._readers.get(node.output, [])
        if len(readers) != 1 or readers[0].type != "Add" or node.output in self._outputs:
            return None, None
        values = [self.constants[name] for name in readers[0].inputs if name in self.constants]
        if len(values) != 1 or values[0].shape != (size,):
            return None, None
        return values[0], readers[0]


def _dense(graph: _Graph, node: _Node) -> None:
    kernel = graph.constant(node, 1)
    bias: Any = None
    last = node
    if node.type == "Gemm":
        if node.get("transA", 0) or node.get("alpha", 1.0) != 1.0 or node.get("beta", 1.0) != 1.0:
            raise node.refuse("with transA, alpha or beta")
        kernel = kernel.T if node.get("transB", 0) else kernel
        if len(node.inputs) > 2:
            bias = np.broadcast_to(graph.constant(node, 2), (1, kernel.shape[1])).reshape(-1)
    elif kernel.ndim != 2:
        raise node.refuse(f"with a constant of shape {list(kernel.shape)}")
    else:
        bias, reader = graph.bias_after(node, kernel.shape[1])
        last = reader or node
    layer = graph.layers.Dense(kernel.shape[1], use_bias=bias is not None)
    graph.put_first(last, layer(graph.first(node.inputs[0])))
    layer.set_weights([kernel, bias] if bias is not None else [kernel])


def _spatial(graph: _Graph, node: _Node, name: str) -> tuple[Any, int]:
    axes = len(graph._any(node.inputs[0]).shape) - 2
    kind = getattr(graph.layers, f"{name}{axes}D", None)
    if kind is None:
        raise node.refuse(f"with {axes} axes of space")
    return kind, axes


def _pads(node: _Node, axes: int) -> list[tuple[int, int]]:
    pads = list(node.get("pads", [0] * 2 * axes))
    return list(zip(pads[:axes], pads[axes:], strict=True))


def _edges(kind: Any, pads: Sequence[tuple[int, int]]) -> Any:
    """Return a layer that pads or crops; in one dimension Keras takes a pair, not a pair for each."""
    return kind(tuple(pads[0]) if len(pads) == 1 else tuple(pads))


def _convolution(graph: _Graph, node: _Node) -> None:
    kernel, groups = graph.constant(node, 1), int(node.get("group", 1))
    auto = node.get("auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID", "SAME_UPPER"):
        raise node.refuse(f"with auto_pad {auto}")
    x = graph.last(node.inputs[0])
    is_depthwise = groups > 1 and groups == x.shape[-1]
    if groups > 1 and not is_depthwise:
        raise node.refuse(f"with {groups} groups of several channels")
    kind, axes = _spatial(graph, node, "DepthwiseConv" if is_depthwise else "Conv")
    strides, dilations = tuple(node.get("strides", [1] * axes)), tuple(node.get("dilations", [1] * axes))
    if is_depthwise and len(set(strides)) > 1:
        raise node.refuse("with groups and different strides")
    pads = _pads(node, axes) if auto == "NOTSET" else []
    if any(map(any, pads)):
        x = _edges(getattr(graph.layers, f"ZeroPadding{axes}D"), pads)(x)
    bias = [graph.constant(node, 2)] if len(node.inputs) > 2 else []
    how = {
        "strides": strides,
        "dilation_rate": dilations,
        "padding": "same" if auto == "SAME_UPPER" else "valid",
        "use_bias": bool(bias),
        "data_format": "channels_last",
    }
    space = tuple(range(2, axes + 2))
    if is_depthwise:
        layer = kind(kernel.shape[2:], depth_multiplier=len(kernel) // groups, **how)
        by_channel = kernel.reshape(groups, -1, *kernel.shape[2:])
        weights = by_channel.transpose(*space, 0, 1)
    else:
        layer = kind(len(kernel), kernel.shape[2:], **how)
        weights = kernel.transpose(*space, 1, 0)
    graph.put_last(node, layer(x))
    layer.set_weights([weights, *bias])


def _transposed_convolution(graph: _Graph, node: _Node) -> None:
    kernel = graph.constant(node, 1)
    kind, axes = _spatial(graph, node, "Conv")
    kind = getattr(graph.layers, f"Conv{axes}DTranspose")
    strides = tuple(node.get("strides", [1] * axes))
    is_plain = (
        node.get("group", 1) == 1
        and node.get("auto_pad", "NOTSET") == "NOTSET"
        and not any(node.get("output_padding", []))
        and not node.get("output_shape", [])
        and set(node.get("dilations", [1])) == {1}
        and all(size >= stride for size, stride in zip(kernel.shape[2:], strides, strict=True))
    )
    if not is_plain:
        raise node.refuse("with groups, dilations, output_padding, or strides beyond its kernel")
    bias = [graph.constant(node, 2)] if len(node.inputs) > 2 else []
    layer = kind(kernel.shape[1], kernel.shape[2:], strides=strides, use_bias=bool(bias), data_format="channels_last")
    x = layer(graph.last(node.inputs[0]))
    layer.set_weights([kernel.transpose(*range(2, axes + 2), 1, 0), *bias])
    pads = _pads(node, axes)
    graph.put_last(node, _edges(getattr(graph.layers, f"Cropping{axes}D"), pads)(x) if any(map(any, pads)) else x)


def _pool(graph: _Graph, node: _Node) -> None:
    kind, axes = _spatial(graph, node, "MaxPooling" if node.type == "MaxPool" else "AveragePooling")
    is_plain = not any(map(any, _pads(node, axes))) and set(node.get("dilations", [1])) == {1}
    if not is_plain or node.get("ceil_mode", 0) or node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise node.refuse("with padding, dilations or ceil_mode")
    strides = tuple(node.get("strides", [1] * axes))
    layer = kind(tuple(node.get("kernel_shape", [])), strides=strides, data_format="channels_last")
    graph.put_last(node, layer(graph.last(node.inputs[0])))


def _global_pool(graph: _Graph, node: _Node) -> None:
    name = "GlobalMaxPooling" if node.type == "GlobalMaxPool" else "GlobalAveragePooling"
    kind, _ = _spatial(graph, node, name)
    graph.put_last(node, kind(data_format="channels_last", keepdims=True)(graph.last(node.inputs[0])))


def _mean(graph: _Graph, node: _Node) -> None:
    """Add a mean over all axes of space, which is what exporters write for a global average."""
    kind, space = _spatial(graph, node, "GlobalAveragePooling")
    axes = node.get("axes", None)
    axes = list(graph.constant(node, 1)) if axes is None else axes
    if sorted(int(each) % (space + 2) for each in axes) != list(range(2, space + 2)):
        raise node.refuse(f"over axes {[int(each) for each in axes]}")
    layer = kind(data_format="channels_last", keepdims=bool(node.get("keepdims", 1)))
    graph.put_last(node, layer(graph.last(node.inputs[0])))


def _normalisation(graph: _Graph, node: _Node) -> None:
    scale, shift, mean, variance = (graph.constant(node, place) for place in range(1, 5))
    layer = graph.layers.BatchNormalization(epsilon=node.get("epsilon", 1e-5))
    graph.put_last(node, layer(graph.last(node.inputs[0])))
    layer.set_weights([scale, shift, mean, variance])


def _concat(graph: _Graph, node: _Node) -> None:
    constant = next((name for name in node.inputs if name in graph.constants), None)
    if constant is not None:
        raise node.refuse("with a constant")
    rank = len(graph._any(node.inputs[0]).shape)
    axis = node.get("axis", 1) % rank
    if axis == 0:
        raise node.refuse("along the batch")
    if all(graph.tensors[name].last is not None for name in node.inputs):
        moved = rank - 1 if axis == 1 else axis - 1
        graph.put_last(node, graph.layers.Concatenate(axis=moved)([graph.last(name) for name in node.inputs]))
    else:
        graph.put_first(node, graph.layers.Concatenate(axis=axis)([graph.first(name) for name in node.inputs]))


def _flatten(graph: _Graph, node: _Node) -> None:
    if node.get("axis", 1) != 1:
        raise node.refuse(f"from axis {node.get('axis', 1)} on")
    graph.put_first(node, graph.layers.Flatten(data_format="channels_last")(graph.first(node.inputs[0])))


def _reshape(graph: _Graph, node: _Node) -> None:
    sizes = [int(each) for each in graph.constant(node, 1)]
    x = graph.first(node.inputs[0])
    rest = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)][1:]
    known = list(x.shape[1:])
    keeps_batch = sizes[0] == 0 or (
        sizes[0] == -1 and None not in known and min(rest, default=1) > 0 and math.prod(rest) == math.prod(known)
    )
    if not keeps_batch or None in rest:
        raise node.refuse(f"to {sizes}")
    graph.put_first(node, graph.layers.Reshape(rest)(x))


def _transpose(graph: _Graph, node: _Node) -> None:
    x = graph.first(node.inputs[0])
    order = node.get("perm", list(reversed(range(len(x.shape)))))
    if order[0] != 0:
        raise node.refuse(f"that moves the batch, to {list(order)}")
    graph.put_first(node, graph.layers.Permute(tuple(order[1:]))(x))


def _softmax(graph: _Graph, node: _Node) -> None:
    graph.put_first(node, graph.layers.Softmax(axis=node.get("axis", -1))(graph.first(node.inputs[0])))


_WRITERS: Mapping[str, Callable[[_Graph, _Node], None]] = {
    "Gemm": _dense,
    "MatMul": _dense,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "ReduceMean": _mean,
    "BatchNormalization": _normalisation,
    "Concat": _concat,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Softmax": _softmax,
}
