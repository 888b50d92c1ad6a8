"""Safetensors files: a JSON header with names, types, shapes and offsets, then the values."""

from __future__ import annotations

import math
from typing import Any

from fairmile.models.formats.description import ModelDescription, TensorSpec, count_values
from fairmile.models.formats.source import Source

_LONGEST_HEADER = 100_000_000  # as the library itself allows
_TYPES = {
    **{"F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)},
    **{"I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "BOOL": ("bool", 1)},
    **{"U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1), "C64": ("complex64", 8)},
    **{"F8_E5M2": ("float8_e5m2", 1), "F8_E4M3": ("float8_e4m3fn", 1)},
}


def recognises(source: Source) -> bool:
    """Tell whether a length and then a JSON object stand at the beginning."""
    if len(source.head) < 10 or source.head[8:9] != b"{":
        return False
    return 2 <= int.from_bytes(source.head[:8], "little") <= _LONGEST_HEADER


def read(source: Source) -> ModelDescription:
    """Return what the header declares; its offsets must fit the file."""
    length = int.from_bytes(source.head[:8], "little")
    if 8 + length > len(source.view):
        raise source.damaged("safetensors file", "it ends inside its header")
    header = source.parse_json(source.view[8 : 8 + length], "safetensors file")
    if not isinstance(header, dict):
        raise source.damaged("safetensors file", "its header is not an object")
    metadata = header.pop("__metadata__", None)
    weights = tuple(_weight(source, name, each, len(source.view) - 8 - length) for name, each in header.items())
    facts = {str(key): str(value)[:200] for key, value in metadata.items()} if isinstance(metadata, dict) else {}
    return ModelDescription(
        str(source.path),
        "safetensors",
        {"pt": "pytorch", "tf": "tensorflow", "flax": "jax", "np": "numpy"}.get(facts.get("format", ""), ""),
        len(source.view),
        parameters=count_values(weights),
        weights=weights,
        details=facts,
    )


def _weight(source: Source, name: str, entry: Any, size: int) -> TensorSpec:
    entry = entry if isinstance(entry, dict) else {}
    shape, offsets, kind = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    is_valid = _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and isinstance(kind, str)
    if not is_valid or not offsets[0] <= offsets[1]:
        raise source.damaged("safetensors file", f"{name!r} has no valid type, shape and offsets")
    if offsets[1] > size:
        raise source.damaged("safetensors file", f"it ends inside the values of {name!r}")
    label, width = _TYPES.get(kind, (kind.lower(), 0))
    if width and math.prod(shape) * width != offsets[1] - offsets[0]:
        raise source.damaged("safetensors file", f"the values of {name!r} do not have the size of its shape")
    return TensorSpec(name, label, tuple(shape))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
