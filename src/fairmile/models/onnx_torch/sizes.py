"""Integers that are known beside their tensors, such as shapes, so that a graph can be exported for any batch size.

A shape that is computed by tensors depends on data, in the eyes of PyTorch's exporters. The same numbers are therefore
kept as an attribute of small integer tensors, and computed along with them.
"""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fairmile.models.onnx_torch.operators import Node, Value, known_numbers

_LARGEST = 64  # elements of a tensor whose numbers are kept: a shape has fewer, an index may have millions

_SAME = ("Identity", "Cast", "CastLike", "Unsqueeze", "Squeeze", "Reshape", "Flatten")
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": python.add,
    "Sub": python.sub,
    "Mul": python.mul,
    "Div": python.floordiv,
    "Mod": python.mod,
    "Max": max,
    "Min": min,
    "Equal": python.eq,
}


def keep_numbers(tensor: torch.Tensor, numbers: Sequence[Any] | None = None) -> torch.Tensor:
    """Return a tensor that knows its numbers, where they are few."""
    if tensor.numel() <= _LARGEST and tensor.dtype.itemsize > 1 - (tensor.dtype is torch.bool):
        tensor.numbers = tensor.reshape(-1).tolist() if numbers is None else list(numbers)  # type: ignore[attr-defined]
    return tensor


def follow(node: Node, inputs: Sequence[Value], result: Value) -> None:
    """Keep the numbers of a result where those of its inputs tell them."""
    if not isinstance(result, torch.Tensor) or result.is_floating_point() or result.ndim > 1:
        return
    if node.type == "Shape":
        keep_numbers(result, inputs[0].shape[node.get("start", 0) : node.get("end")])
    elif node.type == "Size":
        keep_numbers(result, [math.prod(inputs[0].shape)])
    else:
        known = [known_numbers(each) for each in inputs if each is not None]
        numbers = None if any(each is None for each in known) or not known else _compute(node, known)
        if numbers is not None and len(numbers) == (result.shape[0] if result.ndim else 1):
            keep_numbers(result, numbers)


def _compute(node: Node, known: Sequence[Any]) -> list[Any] | None:
    first = known[0]
    if node.type in _SAME:
        return list(first)
    if node.type == "Concat":
        return [number for each in known for number in each]
    if node.type == "Gather":
        return [first[place] for place in known[1]]
    if node.type == "Slice" and node.opset >= 10 and len(known[1]) == 1:
        step = known[4][0] if len(known) > 4 else 1
        return list(first[known[1][0] : known[2][0] : step]) if step > 0 else None
    if node.type == "ReduceProd":
        return [math.prod(first)]
    if node.type == "ConstantOfShape":
        value = node.get("value")
        return [int(value)] * first[0] if value is not None and len(first) == 1 else None
    if node.type in _ARITHMETIC and len(known) == 2:
        pairs = _pairs(first, known[1])
        return [_ARITHMETIC[node.type](a, b) for a, b in pairs]
    if node.type == "Where":
        return [a if flag else b for flag, (a, b) in zip(first, _pairs(known[1], known[2]), strict=True)]
    return None


def _pairs(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[Any, Any]]:
    size = max(len(a), len(b))
    return list(zip(list(a) * size if len(a) == 1 else a, list(b) * size if len(b) == 1 else b, strict=True))
