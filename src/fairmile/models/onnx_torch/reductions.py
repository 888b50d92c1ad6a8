"""Operators that reduce an axis, and those that walk along one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fairmile.models.onnx_torch.operators import WIDE_UNSIGNED, Node, ints, operator

_AXES_AS_INPUT = {"ReduceSum": 13}  # the others followed in opset 18


def _product(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
    for axis in sorted((each % x.ndim for each in axes), reverse=True):
        x = torch.prod(x, dim=axis, keepdim=keeps, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
    return torch.mean(x, axes, keepdim=keeps) if x.is_floating_point() else _integer_mean(x, axes, keeps)


def _integer_mean(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
    return torch.mean(x.to(torch.float64), axes, keepdim=keeps).to(x.dtype)


def _sum(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keeps, dtype=x.dtype)


def _extreme(pick: Callable[..., Tensor]) -> Callable[[Tensor, list[int], bool], Tensor]:
    def reduce(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
        if not x.numel():
            return _of_nothing(x, axes, keeps, is_largest=pick is torch.amax)
        return pick(x, axes, keepdim=keeps)

    return reduce


def _of_nothing(x: Tensor, axes: list[int], keeps: bool, *, is_largest: bool) -> Tensor:
    """Return what ONNX takes for the largest or smallest of no elements."""
    if x.is_floating_point():
        value: float | bool = -torch.inf if is_largest else torch.inf
    elif x.dtype is torch.bool:
        value = not is_largest
    else:
        value = torch.iinfo(x.dtype).min if is_largest else torch.iinfo(x.dtype).max
    shape = torch.sum(x.to(torch.int64), axes, keepdim=keeps).shape
    return torch.full(shape, value, dtype=x.dtype, device=x.device)


def _log_sum_exp(x: Tensor, axes: list[int], keeps: bool) -> Tensor:
    return torch.logsumexp(x, axes, keepdim=keeps)


_REDUCE: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme(torch.amax),
    "ReduceMin": _extreme(torch.amin),
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keeps: _sum(torch.abs(x), axes, keeps),
    "ReduceL2": lambda x, axes, keeps: torch.sqrt(_sum(x * x, axes, keeps).to(_float(x))).to(x.dtype),
    "ReduceSumSquare": lambda x, axes, keeps: _sum(x * x, axes, keeps),
    "ReduceLogSum": lambda x, axes, keeps: torch.log(_sum(x, axes, keeps)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _float(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float64


@operator(*_REDUCE)
def reduce(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    is_input = node.opset >= _AXES_AS_INPUT.get(node.type, 18)
    chosen = ints(axes if is_input else node.get("axes"))
    if not chosen:
        if node.get("noop_with_empty_axes", 0):
            return _elementwise(node.type, x)
        chosen = list(range(x.ndim))
    if x.dtype in WIDE_UNSIGNED:
        return _REDUCE[node.type](x.to(torch.int64), chosen, bool(node.get("keepdims", 1))).to(x.dtype)
    return _REDUCE[node.type](x, chosen, bool(node.get("keepdims", 1)))


def _elementwise(type: str, x: Tensor) -> Tensor:
    """Return what a reduction over no axes leaves: its function of each element alone."""
    alone = {
        "ReduceL1": torch.abs,
        "ReduceL2": torch.abs,
        "ReduceSumSquare": torch.square,
        "ReduceLogSum": torch.log,
    }
    return alone[type](x) if type in alone else x


@operator("ArgMax", "ArgMin")
def extreme_index(node: Node, x: Tensor) -> Tensor:
    axis, keeps = int(node.get("axis", 0)), bool(node.get("keepdims", 1))
    pick = torch.argmax if node.type == "ArgMax" else torch.argmin
    if not node.get("select_last_index", 0):
        return pick(x, dim=axis, keepdim=keeps)
    last = int(x.shape[axis]) - 1
    return last - pick(torch.flip(x, (axis,)), dim=axis, keepdim=keeps)


@operator("CumSum", "CumProd")
def cumulative(node: Node, x: Tensor, axis: Tensor) -> Tensor:
    along = ints(axis)[0] % x.ndim
    walk = torch.cumsum if node.type == "CumSum" else torch.cumprod
    values = torch.flip(x, (along,)) if node.get("reverse", 0) else x
    result = walk(values, along).to(x.dtype)
    if node.get("exclusive", 0):
        first = torch.full_like(x.narrow(along, 0, 1), 0 if node.type == "CumSum" else 1)
        result = torch.cat((first, result.narrow(along, 0, x.shape[along] - 1)), along)
    return torch.flip(result, (along,)) if node.get("reverse", 0) else result


@operator("TopK")
def top(node: Node, x: Tensor, count: Tensor | None = None) -> tuple[Tensor, Tensor]:
    axis = node.get("axis", -1)
    number = ints(count)[0] if count is not None else node.get("k")
    # Of equal values ONNX takes those that come first, which only a stable sort promises.
    values, positions = torch.sort(x, dim=axis, descending=bool(node.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, number), positions.narrow(axis, 0, number)


@operator("Unique")
def unique(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    axis = node.get("axis")
    values, inverse, counts = torch.unique(
        x.reshape(-1) if axis is None else x, sorted=True, return_inverse=True, return_counts=True, dim=axis or 0
    )
    places = torch.arange(inverse.numel(), device=x.device)
    first = torch.full((counts.numel(),), inverse.numel(), device=x.device).scatter_reduce(
        0, inverse.reshape(-1), places, "amin"
    )
    if not node.get("sorted", 1):
        order = torch.argsort(first)
        values, first, counts = values.index_select(axis or 0, order), first[order], counts[order]
        inverse = torch.argsort(order)[inverse]
    return values, first, inverse.reshape(-1), counts
