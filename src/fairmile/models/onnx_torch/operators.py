"""The table of ONNX operators that PyTorch computes, and what each is given: its attributes and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnx import TensorProto

from fairmile.base.errors import Unsupported
from fairmile.base.quick_dataclass import dataclass

Value = Any  # a tensor, a list of tensors for a sequence, or None for an optional value that is absent
Operator = Callable[..., Value]

ML = "ai.onnx.ml"
OPERATORS: dict[tuple[str, str], Operator] = {}

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.BOOL: torch.bool,
    TensorProto.COMPLEX64: torch.complex64,
    TensorProto.COMPLEX128: torch.complex128,
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
}
_NARROW = (torch.float32, torch.float16, torch.bfloat16)  # what float64 replaces
ONNX_TYPES = {dtype: number for number, dtype in DTYPES.items()}
# PyTorch stores these but computes next to nothing with them.
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


@dataclass(frozen=True)
class Node:
    """One node of a graph as its operator sees it."""

    type: str
    opset: int
    attributes: Mapping[str, Any]
    outputs: int
    precision: torch.dtype | None = None  # in which float32 is computed, where another is asked for

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute; subgraphs are callables."""
        return self.attributes.get(name, default)

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a number."""
        return float(self.attributes.get(name, default))

    def dtype(self, number: int) -> torch.dtype:
        """Return the type that a number of ONNX stands for."""
        if number not in DTYPES:
            raise Unsupported(f"{self.type}: PyTorch has no tensors of type {TensorProto.DataType.Name(number)}")
        dtype = DTYPES[number]
        replaced = _NARROW if self.precision is torch.float64 else (torch.float32,)
        return self.precision if self.precision is not None and dtype in replaced else dtype


def operator(*names: str, domain: str = "") -> Callable[[Operator], Operator]:
    """Enter a function into the table under the names of the operators that it computes."""

    def enter(function: Operator) -> Operator:
        OPERATORS.update({(domain, name): function for name in names})
        return function

    return enter


def simple(table: Mapping[str, Callable[..., Any]]) -> None:
    """Enter functions that need nothing of their node but its inputs."""
    for name, function in table.items():
        OPERATORS["", name] = _without_node(function)


def _without_node(function: Callable[..., Any]) -> Operator:
    return lambda node, *inputs: function(*inputs)


def known_numbers(value: Any) -> list[Any] | None:
    """Return the numbers that are known beside a tensor; see `sizes`."""
    return getattr(value, "numbers", None)


def ints(value: Any) -> list[int]:
    """Return the numbers in a tensor or an attribute."""
    known = known_numbers(value)
    if known is not None:
        return list(known)
    if isinstance(value, torch.Tensor):
        return [int(each) for each in value.reshape(-1).tolist()]
    return [int(each) for each in value] if value is not None else []
