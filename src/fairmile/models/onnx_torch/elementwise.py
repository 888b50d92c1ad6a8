"""Operators that compute each element by itself: arithmetic, comparisons, activations and types."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.models.onnx_torch.operators import WIDE_UNSIGNED, Node, operator, simple


def _signed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int64) if tensor.dtype in WIDE_UNSIGNED else tensor


def _wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in int64 what PyTorch does not compute in wide unsigned types."""

    def compute(*inputs: Tensor) -> Tensor:
        dtype = inputs[0].dtype
        if dtype not in WIDE_UNSIGNED:
            return function(*inputs)
        result = function(*(_signed(each) for each in inputs))
        return result if result.dtype is torch.bool else result.to(dtype)

    return compute


simple(
    {
        "Abs": _wide(torch.abs),
        "Acos": torch.acos,
        "Acosh": torch.acosh,
        "Asin": torch.asin,
        "Asinh": torch.asinh,
        "Atan": torch.atan,
        "Atanh": torch.atanh,
        "Ceil": torch.ceil,
        "Cos": torch.cos,
        "Cosh": torch.cosh,
        "Erf": torch.erf,
        "Exp": torch.exp,
        "Floor": torch.floor,
        "Identity": lambda x: x,
        "IsNaN": torch.isnan,
        "Log": torch.log,
        "Neg": torch.neg,
        "Not": torch.logical_not,
        "Reciprocal": torch.reciprocal,
        "Relu": F.relu,
        "Round": torch.round,
        "Sigmoid": torch.sigmoid,
        "Sign": _wide(torch.sign),
        "Sin": torch.sin,
        "Sinh": torch.sinh,
        "Softsign": F.softsign,
        "Sqrt": torch.sqrt,
        "Tan": torch.tan,
        "Tanh": torch.tanh,
        "HardSwish": F.hardswish,
        "Mish": F.mish,
        "BitwiseNot": _wide(torch.bitwise_not),
        "Where": torch.where,
    }
)


# Two or more inputs


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() or a.is_complex() else torch.div(a, b, rounding_mode="trunc")


_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": _divide,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}


@operator(*_BINARY)
def binary(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if node.opset < 7 and node.get("broadcast") and node.get("axis") is not None:
        # Before opset 7 the second input was aligned at an axis, not at the end.
        axis = node.get("axis") % a.ndim
        b = b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))
    return _wide(_BINARY[node.type])(a, b)


_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
    "Mean": torch.add,
}


@operator(*_VARIADIC)
def variadic(node: Node, *inputs: Tensor) -> Tensor:
    result = reduce(_wide(_VARIADIC[node.type]), inputs)
    return result / len(inputs) if node.type == "Mean" else result


@operator("Pow")
def power(node: Node, base: Tensor, exponent: Tensor) -> Tensor:
    if not base.is_floating_point() and exponent.is_floating_point():
        return torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(base.dtype)
    if base.is_floating_point():
        return torch.pow(base, exponent.to(base.dtype))
    return torch.pow(base.to(torch.int64), _signed(exponent)).to(base.dtype)


@operator("Mod")
def modulo(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if node.get("fmod", 0):
        return _wide(torch.fmod)(a, b)
    rest = _wide(torch.remainder)(a, b)
    if not a.is_floating_point():
        return rest
    # Of a number and infinity: the number itself where both have one sign, otherwise infinity.
    is_other = (a != 0) & (torch.signbit(a) != torch.signbit(b))
    rest = torch.where(torch.isinf(b) & torch.isfinite(a), torch.where(is_other, b, a), rest)
    return torch.where(rest == 0, torch.copysign(rest, b), rest)


@operator("BitShift")
def bit_shift(node: Node, a: Tensor, b: Tensor) -> Tensor:
    x, by = a.to(torch.int64), b.to(torch.int64)
    if node.get("direction") == "LEFT":
        return (x << by).to(a.dtype)
    if a.dtype is torch.uint64:
        x = (x >> by) & ~(torch.tensor(-1) << (64 - by)).where(by > 0, torch.tensor(0))
        return x.to(a.dtype)
    return (x >> by).to(a.dtype)


# Activations with attributes


@operator("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.get("alpha", 1.0))


@operator("Celu")
def celu(node: Node, x: Tensor) -> Tensor:
    return F.celu(x, node.get("alpha", 1.0))


@operator("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    alpha = node.number("alpha", 1.6732632423543772)
    gamma = node.number("gamma", 1.0507009873554805)
    return gamma * (torch.clamp(x, min=0) + alpha * torch.expm1(torch.clamp(x, max=0)))


@operator("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.get("alpha", 0.01))


@operator("PRelu")
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    if node.opset < 7 and slope.numel() > 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return torch.where(x < 0, x * slope, x)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > node.get("alpha", 1.0), x, torch.zeros_like(x))


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(node.get("alpha", 0.2) * x + node.get("beta", 0.5), 0, 1)


@operator("Softplus")
def softplus(node: Node, x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


@operator("Shrink")
def shrink(node: Node, x: Tensor) -> Tensor:
    border, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    shrunk = torch.where(x < -border, x + bias, torch.where(x > border, x - bias, torch.zeros_like(x)))
    return shrunk.to(x.dtype)


@operator("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node.get("approximate", "none"))


@operator("Swish")
def swish(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.get("alpha", 1.0) * x)


@operator("Softmax", "LogSoftmax", "Hardmax")
def softmax(node: Node, x: Tensor) -> Tensor:
    if node.opset >= 13:
        return _softmax_along(node.type, x, node.get("axis", -1))
    axis = node.get("axis", 1) % max(x.ndim, 1)
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    return _softmax_along(node.type, flat, 1).reshape(x.shape)


def _softmax_along(type: str, x: Tensor, axis: int) -> Tensor:
    if type == "Softmax":
        return torch.softmax(x, axis)
    if type == "LogSoftmax":
        return torch.log_softmax(x, axis)
    largest = torch.argmax(x, dim=axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, largest, 1)


@operator("Clip")
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    smallest, largest = (node.get("min"), node.get("max")) if node.opset < 11 else (low, high)
    result = x
    if smallest is not None:
        result = torch.maximum(result, torch.as_tensor(smallest, dtype=x.dtype, device=x.device))
    if largest is not None:
        result = torch.minimum(result, torch.as_tensor(largest, dtype=x.dtype, device=x.device))
    return result


@operator("IsInf")
def is_infinite(node: Node, x: Tensor) -> Tensor:
    positive = torch.isposinf(x) if node.get("detect_positive", 1) else torch.zeros_like(x, dtype=torch.bool)
    return positive | torch.isneginf(x) if node.get("detect_negative", 1) else positive


@operator("Dropout")
def dropout(node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Any:
    share = float(ratio) if ratio is not None else node.get("ratio", 0.5)
    if training is None or not bool(training) or not share:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand_like(x) >= share
    return torch.where(mask, x / (1 - share), torch.zeros_like(x)), mask


# Types


def cast_to(x: Tensor, dtype: torch.dtype, *, saturates: bool = True) -> Tensor:
    """Return a tensor in another type; float8 takes its largest value for what is too large, as ONNX does."""
    if dtype.itemsize == 1 and dtype.is_floating_point and x.dtype is not dtype:
        wide = x.to(torch.float32)
        limit = torch.finfo(dtype).max
        if not saturates:
            # PyTorch clamps in the one type that has NaN and no infinity; 464 is where rounding leaves its range.
            lost = (wide.abs() > 464) & (dtype is torch.float8_e4m3fn)
            return torch.where(lost, torch.full_like(wide, torch.nan), wide).to(dtype)
        # Infinity has no place of its own in types that saturate: it becomes the largest value as well.
        return torch.where(torch.isnan(wide), wide, torch.clamp(wide, -limit, limit)).to(dtype)
    return x.to(dtype)


@operator("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    return cast_to(x, node.dtype(node.get("to")), saturates=bool(node.get("saturate", 1)))


@operator("CastLike")
def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    return cast_to(x, like.dtype, saturates=bool(node.get("saturate", 1)))


@operator("BitCast")
def bit_cast(node: Node, x: Tensor) -> Tensor:
    return x.view(node.dtype(node.get("to")))
