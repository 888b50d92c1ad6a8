"""Convolutions of one to three dimensions, with the paddings of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.models.onnx_torch.operators import Node, operator

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def same_pads(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """Return the padding before each axis, then after each: stated, or such that the size stays the same."""
    rank, how = len(sizes), node.get("auto_pad", "NOTSET")
    if how == "VALID":
        return [0] * 2 * rank
    if how == "NOTSET":
        return list(node.get("pads") or [0] * 2 * rank)
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    totals = [
        max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        for size, stride, k, dilation in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    smaller, larger = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return smaller + larger if how == "SAME_UPPER" else larger + smaller


def pad_spatial(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """Return a tensor padded along its last axes; `pads` are those before each, then those after."""
    rank = len(pads) // 2
    flat = [amount for axis in reversed(range(rank)) for amount in (pads[axis], pads[axis + rank])]
    return F.pad(x, flat, value=value) if any(flat) else x


@operator("Conv")
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    pads = same_pads(node, x.shape[2:], weight.shape[2:])
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    if pads[:rank] != pads[rank:]:
        x, pads = pad_spatial(x, pads), [0] * 2 * rank
    return _CONVOLVE[rank](x, weight, bias, strides, pads[:rank], dilations, node.get("group", 1))


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = node.get("strides") or [1] * rank, node.get("dilations") or [1] * rank
    extra = node.get("output_padding") or [0] * rank
    full = _TRANSPOSED[rank](x, weight, bias, strides, 0, 0, node.get("group", 1), dilations)
    sizes = [
        stride * (size - 1) + more + (k - 1) * dilation + 1
        for stride, size, more, k, dilation in zip(
            strides, x.shape[2:], extra, weight.shape[2:], dilations, strict=True
        )
    ]
    wanted = (node.get("output_shape") or sizes)[-rank:]
    sizes = [max(size, want) for size, want in zip(sizes, wanted, strict=True)]
    full = _reach(full, sizes, bias)
    pads = _cropping(node, x, strides, sizes)
    for axis in range(rank):
        full = full.narrow(axis + 2, pads[axis], sizes[axis] - pads[axis] - pads[axis + rank])
    return full


def _reach(full: Tensor, sizes: Sequence[int], bias: Tensor | None) -> Tensor:
    """Return a result enlarged to the sizes that are asked for; the new part holds the bias alone."""
    short = [size - have for size, have in zip(sizes, full.shape[2:], strict=True)]
    if not any(short):
        return full
    padded = pad_spatial(full, [0] * len(short) + short)
    if bias is None:
        return padded
    inside = pad_spatial(torch.ones_like(full[:1, :1], dtype=torch.bool), [0] * len(short) + short)
    return torch.where(inside, padded, bias.reshape((1, -1) + (1,) * len(short)))


def _cropping(node: Node, x: Tensor, strides: Sequence[int], sizes: Sequence[int]) -> list[int]:
    rank, how = len(sizes), node.get("auto_pad", "NOTSET")
    wanted = node.get("output_shape")
    if wanted is None and how.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        return list(node.get("pads") or [0] * 2 * rank)
    totals = [max(0, size - want) for size, want in zip(sizes, wanted[-rank:], strict=True)]
    halves, rests = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return rests + halves if how == "SAME_LOWER" else halves + rests
