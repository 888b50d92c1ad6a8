"""Calls of operators that are described only, and sizes that fill a range evenly: what lists of calls are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from fairmile.base.errors import MissingExtra
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.steps import Op, TensorSpec

T = TypeVar("T")
FLOATS = ("float32", "bfloat16", "float16")
# Lengths that networks are made of: kernels are chosen by what divides them.
WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 2048)
SIDES = (4, 7, 8, 10, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 144, 192, 256, 320, 384)
DEPTHS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 72, 96, 128)
PART = (1.0, math.e)  # spread evenly over a list


def call(name: str, *arguments: Any, **keywords: Any) -> Op:
    """Return the call of an operator on tensors that are described only, without what it returns."""
    inputs: list[TensorSpec] = []

    def described(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            inputs.append(value)
            return {"tensor": len(inputs) - 1}
        if isinstance(value, list) and any(isinstance(each, TensorSpec) for each in value):
            places: list[int | None] = []
            for each in value:
                if each is None:
                    places.append(None)
                else:
                    inputs.append(each)
                    places.append(len(inputs) - 1)
            return {"tensors": places}
        return value

    plain = tuple(described(each) for each in arguments)
    named = tuple((key, described(value)) for key, value in keywords.items())
    return Op(name, "", "", tuple(inputs), (), plain, named)


def returned(op: Op) -> tuple[TensorSpec, ...]:
    """Return what torch says that a call returns, which can take milliseconds."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("the list of operators needs torch", "predict") from error
    tensors = [
        torch.empty_strided(each.shape, each.strides, dtype=getattr(torch, each.dtype), device="meta")
        for each in op.inputs
    ]

    def real(value: Any) -> Any:
        if isinstance(value, dict):
            if "tensor" in value:
                return tensors[value["tensor"]]
            if "tensors" in value:
                return [None if each is None else tensors[each] for each in value["tensors"]]
            (kind, word), *_ = value.items()
            return torch.device("meta") if kind == "device" else getattr(torch, str(word))
        return value

    function: Any = torch.ops
    for part in op.name.split("."):
        function = getattr(function, part)
    given = function(*map(real, op.arguments), **{key: real(value) for key, value in op.keywords})
    flat = given if isinstance(given, (tuple, list)) else [given]
    return tuple(
        tensor(each.shape, str(each.dtype).removeprefix("torch."), each.stride())
        for each in flat
        if isinstance(each, torch.Tensor)
    )


def spread(count: int, *ranges: tuple[float, float]) -> Iterator[tuple[float, ...]]:
    """Yield points that fill a box evenly in logarithms (Halton's sequence)."""
    primes = (2, 3, 5, 7, 11, 13)
    for number in range(1, count + 1):
        yield tuple(
            math.exp(math.log(low) + _reverse(number, prime) * math.log(high / low))
            for (low, high), prime in zip(ranges, primes, strict=False)
        )


def _reverse(number: int, base: int) -> float:
    value, share = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        value += digit * share
        share /= base
    return value


def one_of(choices: Sequence[T], value: float) -> T:
    """Return the choice at a place that `spread` gave for PART."""
    return choices[min(int(math.log(value) * len(choices)), len(choices) - 1)]


def rounded(value: float, step: int) -> int:
    """Return the multiple of a step that is nearest to a value, one step at least."""
    return max(step, round(value / step) * step)


def turned(spec: TensorSpec) -> TensorSpec:
    """Return a tensor with its last two dimensions exchanged, as it lies in memory."""
    return tensor(
        (*spec.shape[:-2], spec.shape[-1], spec.shape[-2]), spec.dtype, (*spec.strides[:-2], *spec.strides[:-3:-1])
    )


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose channels lie side by side."""
    channels, places = shape[1], shape[2:]
    inner = [1] * len(places)
    step = channels
    for at in reversed(range(len(places))):
        inner[at] = step
        step *= places[at]
    return (step, 1, *inner)
