"""What a call returns as far as its arguments tell, where a trace or a signature leaves it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairmile.costs.operators.signatures import tensor
from fairmile.costs.operators.work import base_name, kind_of, tensor_at, tensors_at
from fairmile.costs.steps import Op, TensorSpec

_FIRST_FACTOR = {"addmm": 1, "_addmm_activation": 1, "addbmm": 1, "baddbmm": 1, "addmv": 1}


def outputs_of(op: Op) -> tuple[TensorSpec, ...]:
    """Return the tensors that a call returns; none where it works on lists or reduces, so that they hardly count."""
    kind, base = kind_of(op), base_name(op)
    largest = max(op.inputs, key=lambda each: each.elements, default=None)
    if largest is None or not largest.shape:
        return ()
    if base.startswith("_foreach"):
        return ()  # what it writes is as large as its first list, which the count of its work knows
    if base == "convolution_backward":
        return _gradients(op)
    if kind == "attention":
        return op.inputs[1:4] if "backward" in base else _attended(op)
    if base == "convolution":
        return _convolved(op)
    if base in ("max_pool2d_with_indices", "max_pool3d_with_indices"):
        return _pooled(op)
    if kind == "gemm":
        return _multiplied(op, base)
    if kind == "rnn":
        return _recurrent(op, base)
    if kind == "reduction" and "backward" not in base:
        return ()
    return (tensor(largest.shape, largest.dtype),)


def _multiplied(op: Op, base: str) -> tuple[TensorSpec, ...]:
    first = _FIRST_FACTOR.get(base, 0)
    a, b = tensor_at(op, first), tensor_at(op, first + 1)
    if a is None or b is None or not a.shape or not b.shape:
        return ()
    if base == "linear":
        return (tensor((*a.shape[:-1], *b.shape[:-1]), a.dtype),)
    rows = a.shape[1:-1] if base == "addbmm" else a.shape[:-1]
    return (tensor((*rows, *(b.shape[-1:] if len(b.shape) > 1 else ())), a.dtype),)


def _attended(op: Op) -> tuple[TensorSpec, ...]:
    q, v = tensor_at(op, 0), tensor_at(op, 2)
    return (tensor((*q.shape[:-1], v.shape[-1]), q.dtype),) if q and v and q.shape and v.shape else ()


def _gradients(op: Op) -> tuple[TensorSpec, ...]:
    mask = op.arguments[10] if len(op.arguments) > 10 else None
    wanted = list(mask) if isinstance(mask, (list, tuple)) else [True, True]
    return tuple(each for each, is_wanted in zip(op.inputs[1:3], wanted, strict=False) if is_wanted)


def _recurrent(op: Op, base: str) -> tuple[TensorSpec, ...]:
    """Return what comes out at all moments, or the gradients of input and weights."""
    x = tensor_at(op, 0)
    lists = [tensors_at(op, place) for place in range(len(op.arguments))]
    weights = max(lists, key=lambda each: sum(spec.elements for spec in each), default=[])
    matrices = [each for each in weights if len(each.shape) == 2]
    if x is None or not x.shape or not matrices:
        return ()
    if "backward" in base:
        return (x, *weights)
    place = 13 if base in ("_cudnn_rnn", "miopen_rnn") else 7
    is_bidirectional = place < len(op.arguments) and op.arguments[place] is True
    # Every layer has a matrix for what comes in and one for what it keeps, which is as wide as its state.
    width = matrices[1].shape[1] if len(matrices) > 1 else x.shape[-1]
    return (tensor((*x.shape[:-1], width * (2 if is_bidirectional else 1)), x.dtype),)


def _convolved(op: Op) -> tuple[TensorSpec, ...]:
    x, weight = tensor_at(op, 0), tensor_at(op, 1)
    if x is None or weight is None or len(op.arguments) < 7:
        return ()
    kernel, (strides, paddings, dilations, transposed) = weight.shape[2:], op.arguments[3:7]
    if not kernel or not all(isinstance(each, (list, tuple)) and each for each in (strides, paddings, dilations)):
        return ()
    more: Any = op.arguments[7] if len(op.arguments) > 7 else None
    lengths = zip(x.shape[-len(kernel) :], kernel, strict=True)
    after = []
    for place, (length, width) in enumerate(lengths):
        stride, padding = max(1, _at(strides, place)), _at(paddings, place)
        reach = _at(dilations, place) * (width - 1) + 1
        if transposed:
            after.append((length - 1) * stride - 2 * padding + reach + (_at(more, place) if more else 0))
        else:
            after.append((length + 2 * padding - reach) // stride + 1)
    groups = op.arguments[8] if len(op.arguments) > 8 and isinstance(op.arguments[8], int) else 1
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return (tensor((*x.shape[: -len(kernel) - 1], channels, *(max(0, each) for each in after)), x.dtype),)


def _pooled(op: Op) -> tuple[TensorSpec, ...]:
    """Return what is kept, and where each of it was."""
    x = tensor_at(op, 0)
    if x is None or len(op.arguments) < 4 or not all(isinstance(each, (list, tuple)) for each in op.arguments[1:4]):
        return ()
    kernel, strides, paddings = op.arguments[1:4]
    places = enumerate(zip(x.shape[-len(kernel) :], kernel, strict=True))
    after = [(n + 2 * _at(paddings, at) - width) // max(1, _at(strides, at)) + 1 for at, (n, width) in places]
    shape = (*x.shape[: -len(kernel)], *after)
    return tensor(shape, x.dtype), tensor(shape, "int64")


def _at(values: Sequence[int], place: int) -> int:
    return values[place] if place < len(values) else values[0]
