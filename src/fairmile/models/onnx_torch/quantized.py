"""Quantized tensors: to integers, back, and products of integers."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmile.models.onnx_torch.convolutions import conv
from fairmile.models.onnx_torch.elementwise import cast_to
from fairmile.models.onnx_torch.operators import Node, operator


def _spread(values: Tensor, x: Tensor, node: Node) -> Tensor:
    """Return scales or zero points in a shape that goes with a tensor: one for all, for an axis, or for a block."""
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    if block:
        repeated = values.repeat_interleave(block, axis)
        return repeated.narrow(axis, 0, x.shape[axis])
    if values.ndim == 0 or values.numel() == 1:
        return values.reshape(())
    axis = axis % x.ndim
    return values.reshape((-1,) + (1,) * (x.ndim - axis - 1))


def to_integer(x: Tensor, scale: Tensor, zero: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Return numbers divided by their scale, rounded to even and kept in the range of a type."""
    scaled = x / scale
    if dtype.is_floating_point:
        return cast_to(scaled + zero, dtype)
    rounded = torch.round(scaled) + zero
    limits = torch.iinfo(dtype)
    return torch.clamp(rounded, limits.min, limits.max).to(torch.int64).to(dtype)


@operator("QuantizeLinear")
def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    number = node.get("output_dtype")
    dtype = zero.dtype if zero is not None else node.dtype(number) if number else torch.uint8
    offset = _spread(zero.to(torch.float32), x, node) if zero is not None else 0.0
    precise = torch.float32 if x.dtype is not torch.float64 else x.dtype
    return to_integer(x.to(precise), _spread(scale.to(precise), x, node), offset, dtype)


@operator("DequantizeLinear")
def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    number = node.get("output_dtype")
    dtype = node.dtype(number) if number else scale.dtype
    wide = x.to(torch.float32) if x.is_floating_point() else x.to(torch.float64)
    if zero is not None:
        wide = wide - _spread(zero.to(wide.dtype), x, node)
    return (wide.to(scale.dtype) * _spread(scale, x, node)).to(dtype)


@operator("DynamicQuantizeLinear")
def quantize_dynamically(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    largest, smallest = x.max().clamp(min=0), x.min().clamp(max=0)
    scale = (largest - smallest) / 255
    zero = torch.clamp(torch.round(-smallest / scale), 0, 255)
    return to_integer(x, scale, zero, torch.uint8), scale, zero.to(torch.uint8)


def _centred(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    """Return integers less their zero point, exactly."""
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    point = zero.to(torch.float64)
    if axis is not None and point.ndim == 1 and point.numel() > 1:
        point = point.reshape([-1 if each == axis % x.ndim else 1 for each in range(x.ndim)])
    return wide - point


@operator("MatMulInteger")
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return (_centred(a, a_zero, -2) @ _centred(b, b_zero, -1)).to(torch.int32)


@operator("ConvInteger")
def conv_integer(
    node: Node, x: Tensor, weight: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    product: Tensor = conv(node, _centred(x, x_zero), _centred(weight, w_zero, 0))
    return product.to(torch.int32)


@operator("QLinearMatMul")
def qlinear_matmul(
    node: Node,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    product = _centred(a, a_zero, -2) @ _centred(b, b_zero, -1)
    factor = a_scale.to(torch.float64) * b_scale.to(torch.float64) / scale.to(torch.float64)
    return to_integer(product * factor, torch.tensor(1.0), zero.to(torch.float64), zero.dtype)


@operator("QLinearConv")
def qlinear_conv(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    product = conv(
        node, _centred(x, x_zero), _centred(weight, w_zero, 0), bias.to(torch.float64) if bias is not None else None
    )
    factor = (x_scale.to(torch.float64) * w_scale.to(torch.float64) / scale.to(torch.float64)).reshape(-1)
    factor = factor.reshape((1, -1) + (1,) * (product.ndim - 2))
    return to_integer(product * factor, torch.tensor(1.0), zero.to(torch.float64), zero.dtype)
