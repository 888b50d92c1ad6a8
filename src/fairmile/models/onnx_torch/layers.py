"""Operators of dense layers and normalizations."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.models.onnx_torch.operators import DTYPES, Node, operator


@operator("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@operator("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if node.get("transA", 0) else a
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if node.get("transB", 0) and alpha == beta == 1.0 and c is not None and c.ndim == 1:
        return F.linear(a, b, c)
    b = b.T if node.get("transB", 0) else b
    product = a @ b
    product = product if alpha == 1.0 else _scaled(product, alpha)
    if c is None:
        return product
    return product + (c if beta == 1.0 else _scaled(c, beta))


def _scaled(x: Tensor, factor: float) -> Tensor:
    return (x * factor).to(x.dtype)


@operator("Einsum")
def einsum(node: Node, *inputs: Tensor) -> Tensor:
    return torch.einsum(node.get("equation").replace(" ", ""), *inputs)


@operator("Det")
def determinant(node: Node, x: Tensor) -> Tensor:
    result: Tensor = torch.linalg.det(x)
    return result


@operator("BatchNormalization")
def batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Any:
    epsilon = node.get("epsilon", 1e-5)
    if not node.get("training_mode", 0):
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
    momentum = node.get("momentum", 0.9)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    now_mean, now_variance = x.mean(axes), x.var(axes, correction=0)
    result = F.batch_norm(x, now_mean, now_variance, scale, bias, False, 0.0, epsilon)
    return (
        result,
        mean * momentum + now_mean * (1 - momentum),
        variance * momentum + now_variance * (1 - momentum),
    )


@operator("InstanceNormalization")
def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, x.shape[1], scale, bias, node.get("epsilon", 1e-5))


@operator("GroupNormalization")
def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = node.get("num_groups")
    if scale.numel() != x.shape[1]:  # before opset 21 there was one number for a group
        scale, bias = (each.repeat_interleave(x.shape[1] // groups) for each in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis, epsilon = node.get("axis", -1) % x.ndim, node.get("epsilon", 1e-5)
    shape = x.shape[axis:]
    if node.outputs == 1 and scale.shape == shape:
        return F.layer_norm(x, shape, scale, bias, epsilon)
    axes = list(range(axis, x.ndim))
    wide = x.to(torch.promote_types(x.dtype, _stash(node)))
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt((wide - mean).square().mean(axes, keepdim=True) + epsilon)
    normal = ((wide - mean) * inverse).to(x.dtype) * scale
    return normal if bias is None else normal + bias, mean, inverse


def _stash(node: Node) -> torch.dtype:
    return DTYPES[node.get("stash_type", 1)]


@operator("RMSNormalization")
def rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(node.get("axis", -1) % x.ndim, x.ndim))
    wide = x.to(torch.promote_types(x.dtype, _stash(node)))
    normal = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + node.get("epsilon", 1e-5))
    return normal.to(x.dtype) * scale


@operator("LRN")
def local_response_norm(node: Node, x: Tensor) -> Tensor:
    size = node.get("size")
    before = (size - 1) // 2
    squares = F.pad(x.square().unsqueeze(1), [0, 0] * (x.ndim - 2) + [before, size - 1 - before])
    sums = squares.unfold(2, size, 1).sum(-1).squeeze(1)
    scale = node.number("bias", 1.0) + node.number("alpha", 1e-4) / size * sums
    return x / torch.pow(scale, node.number("beta", 0.75))


@operator("LpNormalization")
def lp_norm(node: Node, x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, node.get("p", 2), dim=node.get("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


@operator("MeanVarianceNormalization")
def mean_variance_norm(node: Node, x: Tensor) -> Tensor:
    axes = node.get("axes", [0, 2, 3])
    mean = x.mean(axes, keepdim=True)
    deviation = torch.sqrt((x - mean).square().mean(axes, keepdim=True))
    return (x - mean) / (deviation + 1e-9)


@operator("Col2Im")
def col_to_im(node: Node, x: Tensor, image: Tensor, block: Tensor) -> Tensor:
    sizes, kernel = image.tolist(), block.tolist()
    rank = len(sizes)
    dilations, strides = node.get("dilations") or [1] * rank, node.get("strides") or [1] * rank
    pads = node.get("pads") or [0] * 2 * rank
    padded = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(sizes)]
    counts = [(padded[axis] - dilations[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1 for axis in range(rank)]
    n, c = x.shape[0], x.shape[1] // math.prod(kernel)
    columns = x.reshape(n, c, math.prod(kernel), *counts)
    result = x.new_zeros((n, c, *padded))
    for number, offsets in enumerate(torch.cartesian_prod(*(torch.arange(k) for k in kernel)).reshape(-1, rank)):
        index = tuple(
            slice(
                int(offsets[axis]) * dilations[axis],
                int(offsets[axis]) * dilations[axis] + strides[axis] * (counts[axis] - 1) + 1,
                strides[axis],
            )
            for axis in range(rank)
        )
        result[(slice(None), slice(None), *index)] += columns[:, :, number]
    inner = tuple(slice(pads[axis], pads[axis] + sizes[axis]) for axis in range(rank))
    return result[(slice(None), slice(None), *inner)]
