"""ONNX files, by the fields of onnx.proto3; the numbers below are those of its messages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.models.formats.description import Dim, ModelDescription, TensorSpec
from fairmile.models.formats.protobuf import (
    Field,
    NotAMessage,
    fields,
    message,
    number,
    numbers,
    signed,
    text,
)
from fairmile.models.formats.source import Source

TYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool"},
    **{10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16"},
    **{17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4"},
    **{23: "float4_e2m1", 24: "float8_e8m0", 25: "uint2", 26: "int2"},
}
_IR_VERSION, _PRODUCER, _PRODUCER_VERSION, _DOMAIN, _GRAPH, _OPSET, _FUNCTION = 1, 2, 3, 4, 7, 8, 25
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT, _SPARSE = 1, 2, 5, 11, 12, 15
_MOST_DEPTH = 32  # of graphs in nodes
_FIRST = frozenset({_IR_VERSION, _PRODUCER, _PRODUCER_VERSION, _DOMAIN, 5, 6, _GRAPH, _OPSET, 14, 20, _FUNCTION, 26})


class _Weight(NamedTuple):
    name: str
    type: str
    dims: tuple[int, ...]
    external: str


def recognises(source: Source) -> bool:
    """Tell whether the first fields are those of an ONNX model: a version, then what a model may have."""
    if source.head[:1] != b"\x08" or not 1 <= source.head[1] <= 100:
        return False
    return any(number in (_GRAPH, _PRODUCER, _OPSET) for number in _first_fields(source))


def _first_fields(source: Source) -> list[int]:
    """Return the numbers of the first fields; of a file that ends too early, those that it has."""
    numbers: list[int] = []
    position, view = 2, source.view
    while position < len(view) and len(numbers) < 12:
        key = view[position]
        if key >> 3 not in _FIRST or key & 7 not in (0, 2):
            return [] if key & 7 not in (0, 2) or not key >> 3 else numbers
        numbers.append(key >> 3)
        length, position = _varint(view, position + 1)
        position += length if key & 7 == 2 else 0
    return numbers


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(position, min(position + 10, len(view))):  # noqa: B020  goes on where it stands
        value |= (view[position] & 0x7F) << shift
        shift += 7
        if view[position] < 0x80:
            return value, position + 1
    return 0, len(view)


def read(source: Source) -> ModelDescription:
    """Return what an ONNX file declares."""
    try:
        return _read_model(source)
    except NotAMessage as error:
        raise source.damaged("ONNX file", str(error)) from error


def _read_model(source: Source) -> ModelDescription:
    producer = version = ""
    opset: dict[str, int] = {}
    details: dict[str, str] = {}
    graph = memoryview(b"")
    functions: list[memoryview] = []
    for field, value in fields(source.view):
        if field == _PRODUCER:
            producer = text(value)
        elif field == _PRODUCER_VERSION:
            version = text(value)
        elif field == _GRAPH:
            graph = message(value)
        elif field == _OPSET:
            domain, at = _opset(message(value))
            opset[domain] = at
        elif field == _IR_VERSION:
            details["IR version"] = str(number(value))
        elif field == _FUNCTION:
            functions.append(message(value))
    if not graph:
        raise NotAMessage("it has no graph")
    read = _Graph(graph)
    for each in functions:
        _count_operators(each, 7, read.operators, 0)
    if read.name:
        details["graph"] = read.name
    return ModelDescription(
        str(source.path),
        "onnx",
        "onnx",
        len(source.view) + sum(_external_size(source, name) for name in read.external),
        producer=f"{producer} {version}".strip(),
        inputs=tuple(each for each in read.inputs if each.name not in {weight.name for weight in read.weights}),
        outputs=tuple(read.outputs),
        parameters=sum(math.prod(each.dims) for each in read.weights),
        weights=tuple(TensorSpec(each.name, each.type, each.dims) for each in read.weights),
        operators=dict(sorted(read.operators.items())),
        opset=opset,
        details=details,
        warnings=tuple(_missing(source, read.external)),
    )


class _Graph:
    """A GraphProto: what goes in and out, its weights, and how often each operator occurs."""

    def __init__(self, data: memoryview) -> None:
        self.name = ""
        self.inputs: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = []
        self.weights: list[_Weight] = []
        self.operators: Counter[str] = Counter()
        self.external: set[str] = set()
        for field, value in fields(data):
            self._take(field, value)

    def _take(self, field: int, value: int | memoryview) -> None:
        if field == _INITIALIZER:
            weight = _tensor(message(value))
            self.weights.append(weight)
            if weight.external:
                self.external.add(weight.external)
        elif field == _NODE:
            _count_node(message(value), self.operators, 0)
        elif field == _INPUT:
            self.inputs.append(_value(message(value)))
        elif field == _OUTPUT:
            self.outputs.append(_value(message(value)))
        elif field == _GRAPH_NAME:
            self.name = text(value)


def _count_operators(data: memoryview, node_field: int, operators: Counter[str], depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise NotAMessage(f"graphs are nested more than {_MOST_DEPTH} deep")
    for field, value in fields(data):
        if field == node_field:
            _count_node(message(value), operators, depth)


def _count_node(data: memoryview, operators: Counter[str], depth: int) -> None:
    name = domain = ""
    for field, value in fields(data):
        if field == 4:
            name = text(value)
        elif field == 7:
            domain = text(value)
        elif field == 5:
            for graph in _graphs_of(message(value)):
                _count_operators(graph, _NODE, operators, depth + 1)
    operators[f"{domain}.{name}" if domain not in ("", "ai.onnx") else name] += 1


def _graphs_of(attribute: memoryview) -> Iterator[memoryview]:
    """Yield the graphs that an attribute holds, such as the branches of an If."""
    for field, value in fields(attribute):
        if field in (6, 11):
            yield message(value)


def _opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 0
    for field, value in fields(data):
        if field == 1:
            domain = text(value)
        elif field == 2:
            version = signed(value)
    return domain or "ai.onnx", version


def _tensor(data: memoryview) -> _Weight:
    dims: list[int] = []
    kind, name, external = 0, "", ""
    for field, value in fields(data):
        if field == 1:
            dims += numbers(value)
        elif field == 2:
            kind = number(value)
        elif field == 8:
            name = text(value)
        elif field == 13:
            pair = dict(_text_fields(fields(message(value))))
            external = pair.get(2, "") if pair.get(1) == "location" else external
    if any(each < 0 for each in dims):
        raise NotAMessage(f"the weight {name!r} has a negative length")
    return _Weight(name, TYPES.get(kind, f"type {kind}"), tuple(dims), external)


def _text_fields(pairs: Iterator[Field]) -> Iterator[tuple[int, str]]:
    for field, value in pairs:
        yield field, text(value)


def _value(data: memoryview) -> TensorSpec:
    """Return a ValueInfoProto; of a sequence, a map or an optional, the kind stands as its type."""
    name, kind, shape = "", "", None
    for field, value in fields(data):
        if field == 1:
            name = text(value)
        elif field == 2:
            kind, shape = _type(message(value))
    return TensorSpec(name, kind, shape)


_OTHERS = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}


def _type(data: memoryview) -> tuple[str, tuple[Dim, ...] | None]:
    for field, value in fields(data):
        if field == 1:
            return _tensor_type(message(value))
        if field in _OTHERS:
            return _OTHERS[field], None
    return "", None


def _tensor_type(data: memoryview) -> tuple[str, tuple[Dim, ...] | None]:
    kind, shape = "", None
    for field, value in fields(data):
        if field == 1:
            kind = TYPES.get(number(value), f"type {number(value)}")
        elif field == 2:
            shape = tuple(_dim(message(dim)) for each, dim in fields(message(value)) if each == 1)
    return kind, shape


def _dim(data: memoryview) -> Dim:
    for field, value in fields(data):
        if field == 1:
            return signed(value)
        if field == 2:
            return text(value) or None
    return None


def _external_size(source: Source, name: str) -> int:
    """Return the size of a file with weights beside the model; one that lies elsewhere is not looked at."""
    if not _is_beside(name):
        return 0
    file = source.path.parent / name
    return file.stat().st_size if file.is_file() and not file.is_symlink() else 0


def _is_beside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _missing(source: Source, names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        if not _is_beside(name):
            yield f"weights are declared outside its folder, in {name}"
        elif not (source.path.parent / name).is_file():
            yield f"weights are missing: {name}"
