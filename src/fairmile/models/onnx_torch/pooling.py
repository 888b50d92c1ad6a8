"""Pooling over windows and over whole images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.models.onnx_torch.convolutions import pad_spatial, same_pads
from fairmile.models.onnx_torch.operators import Node, ints, operator

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class _Windows:
    """Where the windows of a pooling lie: sizes, strides and the padding that lets the last one end inside."""

    def __init__(self, node: Node, sizes: Sequence[int]) -> None:
        rank = len(sizes)
        self.kernel = ints(node.get("kernel_shape"))
        self.strides = ints(node.get("strides")) or [1] * rank
        self.dilations = ints(node.get("dilations")) or [1] * rank
        self.pads = same_pads(node, sizes, self.kernel)
        self.counts = [self._count(node, axis, size) for axis, size in enumerate(sizes)]
        self.ends = [
            (count - 1) * stride + (k - 1) * dilation + 1 - size - self.pads[axis]
            for axis, (count, stride, k, dilation, size) in enumerate(
                zip(self.counts, self.strides, self.kernel, self.dilations, sizes, strict=True)
            )
        ]
        self.rank = rank

    def _count(self, node: Node, axis: int, size: int) -> int:
        rank = len(self.kernel)
        reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
        room = size + self.pads[axis] + self.pads[axis + rank] - reach
        if not node.get("ceil_mode", 0):
            return room // self.strides[axis] + 1
        count = -(-room // self.strides[axis]) + 1
        # A window that would begin in the padding behind the last element is left out.
        is_outside = (count - 1) * self.strides[axis] >= size + self.pads[axis]
        return count - is_outside

    def of(self, x: Tensor, value: float) -> Tensor:
        """Return each window's elements along a last axis."""
        x = pad_spatial(x, self.pads[: self.rank] + [max(0, end) for end in self.ends], value)
        for axis in range(self.rank):
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            x = x.unfold(axis + 2, reach, self.strides[axis])[..., :: self.dilations[axis]]
            x = x.narrow(axis + 2, 0, self.counts[axis])
        return x.flatten(2 + self.rank)

    @property
    def is_plain(self) -> bool:
        """Whether PyTorch's own pooling does the same."""
        rank = self.rank
        fits = all(end <= self.pads[axis + rank] for axis, end in enumerate(self.ends))
        half = all(pad <= k // 2 for pad, k in zip(self.pads[:rank], self.kernel, strict=True))
        return self.pads[:rank] == self.pads[rank:] and fits and half


@operator("MaxPool")
def max_pool(node: Node, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    windows = _Windows(node, x.shape[2:])
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    if node.outputs == 1:
        if windows.is_plain and x.is_floating_point():
            rank = windows.rank
            return _MAX[rank](x, windows.kernel, windows.strides, windows.pads[:rank], windows.dilations)
        return windows.of(x, lowest).amax(-1)
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    if node.get("storage_order", 0):
        spatial = list(range(2, x.ndim))
        shape = [x.shape[0], x.shape[1], *reversed(x.shape[2:])]
        places = torch.arange(x.numel(), device=x.device).reshape(shape).permute(0, 1, *reversed(spatial))
    values, chosen = windows.of(x, lowest).max(-1)
    return values, windows.of(places, 0).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


@operator("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    windows = _Windows(node, x.shape[2:])
    rank, is_counted = windows.rank, bool(node.get("count_include_pad", 0))
    if windows.is_plain and not node.get("ceil_mode", 0) and set(windows.dilations) == {1}:
        pads = windows.pads[:rank]
        return _MEAN[rank](x, windows.kernel, windows.strides, pads, False, is_counted)
    ones = torch.ones_like(x[:1, :1])
    if is_counted:
        stated = windows.pads
        ones = pad_spatial(ones, stated, 1.0)
        ends = [max(0, end - stated[axis + rank]) for axis, end in enumerate(windows.ends)]
        counted = _Windows(node, x.shape[2:])
        counted.pads, counted.ends = [0] * 2 * rank, ends
        return windows.of(x, 0.0).sum(-1) / counted.of(ones, 0.0).sum(-1)
    return windows.of(x, 0.0).sum(-1) / windows.of(ones, 0.0).sum(-1)


@operator("LpPool")
def lp_pool(node: Node, x: Tensor) -> Tensor:
    p = node.get("p", 2)
    windows = _Windows(node, x.shape[2:])
    return windows.of(x, 0.0).abs().pow(p).sum(-1).pow(1.0 / p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node, x: Tensor) -> Tensor:
    axes = list(range(2, x.ndim))
    if node.type == "GlobalAveragePool":
        return x.mean(axes, keepdim=True)
    if node.type == "GlobalMaxPool":
        return x.amax(axes, keepdim=True)
    norm: Tensor = torch.linalg.vector_norm(x, node.get("p", 2), dim=axes, keepdim=True)
    return norm


@operator("MaxUnpool")
def max_unpool(node: Node, x: Tensor, places: Tensor, shape: Tensor | None = None) -> Tensor:
    rank = x.ndim - 2
    kernel, strides = node.get("kernel_shape"), node.get("strides") or [1] * rank
    pads = node.get("pads") or [0] * 2 * rank
    sizes = [
        (size - 1) * stride + k - pads[axis] - pads[axis + rank]
        for axis, (size, stride, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    own = [*x.shape[:2], *sizes]
    full = ints(shape) if shape is not None else own
    result = x.new_zeros(math.prod(own)).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(own)
    if full == own:
        return result
    # Indices count in the size that the pooling itself would give; a larger output has it in its first corner.
    return pad_spatial(result, [0] * rank + [want - have for want, have in zip(full[2:], sizes, strict=True)])
