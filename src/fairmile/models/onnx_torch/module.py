"""A PyTorch module that interprets an ONNX graph: its weights are parameters, its operators are PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from fairmile.base.errors import Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.models.onnx_torch import (  # noqa: F401  each enters its operators into the table
    convolutions,
    elementwise,
    layers,
    losses,
    pooling,
    quantized,
    recurrent,
    reductions,
    resampling,
    sequences,
    shapes,
    signals,
)
from fairmile.models.onnx_torch.operators import DTYPES, ONNX_TYPES, OPERATORS, Node, Operator, Value, known_numbers
from fairmile.models.onnx_torch.sizes import follow, keep_numbers

_DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class _Step:
    """One node ready to be computed."""

    compute: Operator
    node: Node
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    done: tuple[str, ...] = ()  # the names that no later step reads
    is_scoped: bool = False  # it has subgraphs, which read names of the graphs outside


class OnnxModule(torch.nn.Module):
    """An ONNX model as a PyTorch module.

    Weights of floating point are parameters under their names in the file, all other tensors buffers. Call it with
    the inputs in the order of the graph or by name; it returns one output, or a tuple of them. With `precision` all of
    float32 is computed in another type, as float64 for a reference. A model with an operator that has no counterpart
    here is refused before anything is computed, with the names of all of them.
    """

    def __init__(self, model: ModelProto | str | Path, *, precision: torch.dtype | None = None) -> None:
        super().__init__()
        model = model if isinstance(model, ModelProto) else onnx.load(str(model))
        self.functions = {(each.domain, each.name): each for each in model.functions}
        refused = refused_operators(model)
        if refused:
            raise Unsupported(f"PyTorch cannot compute {', '.join(refused)}", hint="keep the model in ONNX")
        self._precision = precision
        self._compiler = _Compiler(_opsets(model.opset_import), self.functions, precision)
        self._names: dict[str, str] = {}
        self._constants: dict[str, torch.Tensor] = {}
        graph = model.graph
        resizing = [each for each in graph.node if each.op_type in ("Resize", "Upsample")]
        self._read_as_numbers = {name for each in resizing for name in each.input[1:]}
        for initializer in graph.initializer:
            self._keep(initializer.name, tensor_of(initializer, precision))
        nodes = [each for each in graph.node if not self._take_constant(each)]
        known = {each.name for each in graph.initializer}
        self.inputs = [each.name for each in graph.input if each.name not in known]
        self._optional = [each.name for each in graph.input if each.name in known]
        self.outputs = [each.name for each in graph.output]
        self._steps = self._compiler.steps(nodes, self.outputs)

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        """Register a tensor where its dotted name says, so that a state dict has the names of the file."""
        is_size = name in self._read_as_numbers or not tensor.is_floating_point()
        if is_size and known_numbers(keep_numbers(tensor)) is not None:
            self._constants[name] = tensor
            return
        owner: torch.nn.Module = self
        *path, leaf = [part or "_" for part in name.split(".")]
        for part in path:
            child = owner._modules.get(part)
            if child is None and hasattr(owner, part):
                return self._keep(name.replace(".", "_") + "_", tensor)
            if child is None:
                child = torch.nn.Module()
                owner.add_module(part, child)
            owner = child
        leaf = leaf if leaf and not hasattr(owner, leaf) else f"{leaf}_"
        if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
            owner.register_parameter(leaf, torch.nn.Parameter(tensor))
        else:
            owner.register_buffer(leaf, tensor)
        self._names[".".join([*path, leaf])] = name

    def _take_constant(self, node: NodeProto) -> bool:
        """Keep the tensor of a node that only holds one, so that it moves to another device with the weights."""
        values = [each.t for each in node.attribute if each.name == "value"]
        if node.op_type != "Constant" or not values:
            return False
        tensor = tensor_of(values[0], self._precision)
        if known_numbers(keep_numbers(tensor)) is None:
            place = f"constant_{len(self._names)}"
            self.register_buffer(place, tensor, persistent=False)
            self._names[place] = node.output[0]
        else:
            self._constants[node.output[0]] = tensor
        return True

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._constants = {name: keep_numbers(fn(each)) for name, each in self._constants.items()}
        return self

    def forward(self, *arrays: Value, **named: Value) -> Value:
        tensors = dict(self.named_parameters()) | dict(self.named_buffers())
        scope: dict[str, Value] = {original: tensors[name] for name, original in self._names.items()}
        scope.update(self._constants)
        scope.update(zip([*self.inputs, *self._optional], arrays, strict=False))
        scope.update(named)
        absent = [name for name in self.inputs if name not in scope]
        if absent:
            raise TypeError(f"no value for input {', '.join(absent)}")
        run_steps(self._steps, scope)
        outputs = tuple(scope[name] for name in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def run_steps(steps: Sequence[_Step], scope: dict[str, Value]) -> None:
    """Compute steps in order; what no later step reads is released."""
    for step in steps:
        inputs = [scope[name] if name else None for name in step.inputs]
        results = step.compute(step.node, *inputs, **({"scope": scope} if step.is_scoped else {}))
        results = results if isinstance(results, tuple) else (results,)
        follow(step.node, inputs, results[0])
        scope.update((name, value) for name, value in zip(step.outputs, results, strict=False) if name)
        for name in step.done:
            scope.pop(name, None)


def tensor_of(proto: TensorProto, precision: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of a file as PyTorch's."""
    dtype = Node("tensor", 0, {}, 1, precision).dtype(proto.data_type)
    array = numpy_helper.to_array(proto)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.from_numpy(np.array(array.view(np.uint8))).view(dtype)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(dtype)
    return torch.from_numpy(np.array(array)).to(dtype)


def refused_operators(model: ModelProto) -> list[str]:
    """Return the operators and types of tensors of a model that cannot be computed here, by name."""
    own = {(each.domain, each.name): each for each in model.functions}
    opsets = _opsets(model.opset_import)
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    types = {each.type.tensor_type.elem_type for each in values} | {each.data_type for each in model.graph.initializer}
    refused = {f"tensors of type {TensorProto.DataType.Name(each)}" for each in types if each and each not in DTYPES}
    _collect(model.graph.node, opsets, own, refused)
    for function in model.functions:
        _collect(function.node, _opsets(function.opset_import) or opsets, own, refused)
    return sorted(refused)


def _collect(
    nodes: Sequence[NodeProto],
    opsets: Mapping[str, int],
    own: Mapping[tuple[str, str], FunctionProto],
    refused: set[str],
) -> None:
    for node in nodes:
        domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
        if (domain, node.op_type) not in OPERATORS and (node.domain, node.op_type) not in own:
            function = _body(node, domain, opsets.get(domain, 1))
            if function is None and not _is_expanded_late(node, domain, opsets.get(domain, 1)):
                refused.add(f"{domain}.{node.op_type}" if domain else node.op_type)
            if function is not None:
                _collect(function.node, _opsets(function.opset_import), own, refused)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _collect(graph.node, opsets, own, refused)


def _opsets(imports: Sequence[Any]) -> dict[str, int]:
    return {("" if each.domain in _DEFAULT_DOMAINS else each.domain): each.version for each in imports}


def _schema(node: NodeProto, domain: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _body(node: NodeProto, domain: str, opset: int) -> FunctionProto | None:
    """Return the definition of an operator by other operators, where ONNX has one."""
    schema = _schema(node, domain, opset)
    if schema is None or not schema.has_function:
        return None
    versions = [each for each in schema.function_opset_versions if each <= opset]
    text = schema.get_function_with_opset_version(max(versions)) if versions else None
    return FunctionProto.FromString(text) if text else None


def _is_expanded_late(node: NodeProto, domain: str, opset: int) -> bool:
    """Tell whether ONNX defines an operator by others once the types of its inputs are known."""
    schema = _schema(node, domain, opset)
    return schema is not None and bool(schema.has_context_dependent_function)


class _Compiler:
    """From nodes of a file to steps."""

    def __init__(
        self, opsets: Mapping[str, int], own: Mapping[tuple[str, str], FunctionProto], precision: torch.dtype | None
    ) -> None:
        self._opsets = opsets
        self._own = own
        self._precision = precision

    def steps(
        self, nodes: Sequence[NodeProto], kept: Sequence[str], bound: Mapping[str, AttributeProto] | None = None
    ) -> list[_Step]:
        """Return the steps of nodes; `bound` are the attributes of the function to which they belong."""
        last: dict[str, int] = {}
        for position, node in enumerate(nodes):
            last.update(dict.fromkeys(_reads(node), position))
            last.update(dict.fromkeys((name for name in node.output if name not in last), position))
        made = {name for node in nodes for name in node.output}
        ends: dict[int, list[str]] = {}
        for name, position in last.items():
            if name and name in made and name not in kept:
                ends.setdefault(position, []).append(name)
        return [self._step(node, tuple(ends.get(position, ())), bound or {}) for position, node in enumerate(nodes)]

    def _step(self, node: NodeProto, done: tuple[str, ...], bound: Mapping[str, AttributeProto]) -> _Step:
        domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
        opset = self._opsets.get(domain, 1)
        attributes = [_bind(each, bound) for each in node.attribute]
        present = [each for each in attributes if each is not None]
        values = {each.name: self._attribute(each, bound) for each in present}
        is_scoped = any(each.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for each in present)
        own = self._own.get((node.domain, node.op_type))
        compute = OPERATORS.get((domain, node.op_type)) if own is None else None
        function = own or (None if compute else _body(node, domain, opset))
        if function is not None:
            compute = self._call(function, {each.name: each for each in present})
        if compute is None:
            closed = NodeProto()
            closed.CopyFrom(node)
            del closed.attribute[:]
            closed.attribute.extend(present)
            compute = _LateFunction(closed, domain, opset, self)
        return _Step(
            compute,
            Node(node.op_type, opset, values, len(node.output), self._precision),
            tuple(node.input),
            tuple(node.output),
            done,
            is_scoped,
        )

    def _attribute(self, attribute: AttributeProto, bound: Mapping[str, AttributeProto]) -> Any:
        if attribute.type == AttributeProto.GRAPH:
            return self._subgraph(attribute.g, bound)
        if attribute.type == AttributeProto.TENSOR:
            return keep_numbers(tensor_of(attribute.t, self._precision))
        if attribute.type == AttributeProto.SPARSE_TENSOR:
            raise Unsupported(f"attribute {attribute.name}: sparse tensors are not supported")
        value = onnx.helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def _subgraph(self, graph: GraphProto, bound: Mapping[str, AttributeProto]) -> Operator:
        outputs = [each.name for each in graph.output]
        steps = self.steps(graph.node, outputs, bound)
        constants = {each.name: tensor_of(each, self._precision) for each in graph.initializer}
        inputs = [each.name for each in graph.input]

        def run(outer: Mapping[str, Value], *values: Value) -> list[Value]:
            scope = {**outer, **constants, **dict(zip(inputs, values, strict=False))}
            run_steps(steps, scope)
            return [scope[name] for name in outputs]

        return run

    def call(self, function: FunctionProto, attributes: Mapping[str, AttributeProto]) -> Operator:
        """Return a function of ONNX as an operator."""
        return self._call(function, attributes)

    def _call(self, function: FunctionProto, attributes: Mapping[str, AttributeProto]) -> Operator:
        bound = {each.name: each for each in function.attribute_proto} | dict(attributes)
        opsets = _opsets(function.opset_import) or dict(self._opsets)
        inner = _Compiler(opsets, self._own, self._precision)
        steps = inner.steps(function.node, list(function.output), bound)

        def run(node: Node, *values: Value, scope: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
            # Absent inputs are names without a value: operators inside see them as absent in turn.
            absent = dict.fromkeys(function.input)
            inside = {**(scope or {}), **absent, **dict(zip(function.input, values, strict=False))}
            run_steps(steps, inside)
            return tuple(inside.get(name) for name in function.output)

        return run


class _LateFunction:
    """An operator that ONNX defines by others for the types of its inputs, which are known when it is computed."""

    def __init__(self, node: NodeProto, domain: str, opset: int, compiler: _Compiler) -> None:
        self._node = node
        self._compiler = compiler
        schema = _schema(node, domain, opset)
        versions = [each for each in schema.context_dependent_function_opset_versions if each <= opset]
        self._expand = schema.get_context_dependent_function_with_opset_version
        self._version = max(versions) if versions else opset
        self._known: dict[tuple[str, ...], Operator] = {}

    def __call__(self, node: Node, *inputs: Value, **scoped: Any) -> Value:
        types = [_type_of(each) for each in inputs]
        key = tuple(map(repr, types))
        if key not in self._known:
            text = self._expand(
                self._version, self._node.SerializeToString(), [each.SerializeToString() for each in types]
            )
            if not text:
                raise Unsupported(f"PyTorch cannot compute {node.type} with these inputs")
            function = FunctionProto.FromString(text)
            self._known[key] = self._compiler.call(function, {each.name: each for each in self._node.attribute})
        return self._known[key](node, *inputs, **scoped)


def _type_of(value: Value) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        element = _type_of(value[0]) if value else onnx.TypeProto()
        return onnx.helper.make_sequence_type_proto(element)
    return onnx.helper.make_tensor_type_proto(ONNX_TYPES[value.dtype], list(value.shape))


def _bind(attribute: AttributeProto, bound: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """Return an attribute, taken from the function's own where it refers to one; None if that one is not set."""
    if not attribute.ref_attr_name:
        return attribute
    if attribute.ref_attr_name not in bound:
        return None
    copy = AttributeProto()
    copy.CopyFrom(bound[attribute.ref_attr_name])
    copy.name = attribute.name
    return copy


def _reads(node: NodeProto) -> set[str]:
    """Return the names that a node reads, also those that its subgraphs take from outside."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _reads(inner)
            names |= {each.name for each in graph.output}
    return names
