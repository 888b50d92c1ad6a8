"""Skops files: a ZIP file with a JSON schema of a scikit-learn object, and its arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from fairmile.models.formats.description import ModelDescription, TensorSpec, count_values
from fairmile.models.formats.pickles import estimators, sklearn_inputs
from fairmile.models.formats.source import Source

_SCHEMA = "schema.json"
_TRUSTED = ("sklearn.", "numpy.", "scipy.")
_PLAIN = (
    *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "function", "int", "list", "range"),
    *("NoneType", "set", "slice", "str", "tuple", "type"),
)
_TRUSTED_NAMES = {f"builtins.{each}" for each in _PLAIN} | {"collections.OrderedDict", "collections.defaultdict"}
_MOST_NODES = 200_000


def recognises(source: Source) -> bool:
    """Tell whether a ZIP file has a schema beside arrays."""
    return _SCHEMA in source.members and b'"__loader__"' in source.member(_SCHEMA)


def read(source: Source) -> ModelDescription:
    """Return what the schema declares."""
    schema = source.member_json(_SCHEMA, "skops file")
    if not isinstance(schema, Mapping):
        raise source.damaged("skops file", "its schema is not an object")
    walk = _Walk(source)
    walk.take(schema)
    others = untrusted(walk.classes)
    root = f"{schema.get('__module__')}.{schema.get('__class__')}"
    return ModelDescription(
        str(source.path),
        "skops",
        "scikit-learn" if root.startswith("sklearn.") else "",
        len(source.view),
        producer=f"skops {schema.get('_skops_version', '')}".strip(),
        inputs=sklearn_inputs(walk.features),
        parameters=count_values(walk.arrays),
        weights=tuple(walk.arrays),
        operators=estimators(sorted(walk.classes)),
        runs_code=bool(others),
        imports=tuple(others),
        details={"class": root},
        warnings=(f"loading it needs trust in {', '.join(others[:5])}",) if others else (),
    )


def untrusted(names: Iterable[str]) -> list[str]:
    """Return the types that neither Python's plain values nor scikit-learn and its arrays have."""
    return sorted(each for each in names if not each.startswith(_TRUSTED) and each not in _TRUSTED_NAMES)


class _Walk:
    """Goes through a schema and keeps its classes and arrays."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._nodes = 0
        self.classes: set[str] = set()
        self.arrays: list[TensorSpec] = []
        self.features: int | None = None

    def take(self, schema: Mapping[str, Any]) -> None:
        stack: list[tuple[str, Any]] = [("", schema)]
        while stack:
            name, node = stack.pop()
            self._nodes += 1
            if self._nodes > _MOST_NODES:
                raise self._source.damaged("skops file", "its schema is too large")
            if isinstance(node, list):
                stack += [(f"{name}.{index}", each) for index, each in reversed(list(enumerate(node)))]
            elif isinstance(node, Mapping):
                self._node(name, node)
                inner = [(name if key == "content" else f"{name}.{key}", each) for key, each in node.items()]
                stack += reversed(inner)

    def _node(self, name: str, node: Mapping[str, Any]) -> None:
        label, module, loader = node.get("__class__"), node.get("__module__"), node.get("__loader__")
        if isinstance(label, str) and isinstance(module, str):
            self.classes.add(f"{module}.{label}")
        if name.endswith("n_features_in_") and self.features is None and node.get("is_json"):
            content = node.get("content")
            self.features = int(content) if isinstance(content, str) and content.isdigit() else None
        file = node.get("file")
        if loader == "NdArrayNode" and isinstance(file, str) and file in self._source.members:
            self.arrays.append(self._array(name.strip("."), file))

    def _array(self, name: str, file: str) -> TensorSpec:
        kind, shape = _npy_header(self._source.stored(file) or self._source.member(file))
        return TensorSpec(name, kind, shape)


def _npy_header(data: memoryview | bytes) -> tuple[str, tuple[int, ...] | None]:
    """Return type and shape of an array file, read as text: nothing of the header is evaluated."""
    head = bytes(data[:4096])
    if head[:6] != b"\x93NUMPY" or len(head) < 12:
        return "", None
    start = 10 if head[6] == 1 else 12
    (length,) = struct.unpack("<H" if head[6] == 1 else "<I", head[8:start])
    text = head[start : start + length].decode("latin-1").strip()
    for old, new in (("'", '"'), ("(", "["), (",)", "]"), (")", "]"), ("False", "false"), ("True", "true")):
        text = text.replace(old, new)
    try:
        header = json.loads(text.replace(", }", "}").replace(",]", "]"))
        code, shape = header["descr"], tuple(header["shape"])
    except (ValueError, KeyError, TypeError):
        return "", None
    kinds = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
    kind = kinds.get(code[1:2]) if isinstance(code, str) else None
    name = f"{kind}{int(code[2:]) * 8}" if kind and code[2:].isdigit() else {"b": "bool"}.get(str(code)[1:2], "object")
    return name, shape if all(isinstance(each, int) for each in shape) else None
