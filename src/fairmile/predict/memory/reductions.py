"""Buffers that torch's CUDA reductions take where several blocks of threads share an output."""

from __future__ import annotations

from collections.abc import Sequence

from fairmile.base.quick_dataclass import dataclass

_MOST_THREADS = 512
_WARP = 32
_LEAST_VALUES = 16  # per thread, where the input is divided over blocks
_MOST_VALUES = 256
_VECTOR = 4


@dataclass(frozen=True)
class Multiprocessors:
    """How many blocks of threads a device runs at once."""

    count: int
    threads_each: int


@dataclass(frozen=True)
class _Dim:
    size: int
    stride: int
    reduced: bool


def reduction_bytes(
    shape: Sequence[int],
    strides: Sequence[int],
    dims: Sequence[int],
    processors: Multiprocessors,
    element_bytes: int = 4,
) -> tuple[int, int]:
    """Return the bytes of the partial results and of the counters of a reduction over `dims`; (0, 0) for none."""
    merged = _merge(shape, strides, {each % len(shape) if shape else 0 for each in dims})
    outputs, inputs = 1, 1
    for dim in merged:
        if dim.reduced:
            inputs *= dim.size
        else:
            outputs *= dim.size
    if not merged or inputs * outputs == 0:
        return 0, 0
    kept = next((number for number, dim in enumerate(merged) if not dim.reduced), len(merged))
    along = kept == len(merged) or (kept > 0 and merged[0].stride < merged[kept].stride)
    width, height = (inputs, outputs) if along else (outputs, inputs)
    vector = 1
    if merged[0 if along else kept].stride == 1:
        if along and width > 128 and len(merged) == 1:
            width //= _VECTOR
        elif not along:
            vector = _output_vector(merged, kept)
            width //= vector
    return _launch(inputs, outputs, width, height, vector, along, processors, element_bytes)


def _launch(
    inputs: int,
    outputs: int,
    width: int,
    height: int,
    vector: int,
    along: bool,
    processors: Multiprocessors,
    element_bytes: int,
) -> tuple[int, int]:
    most = _MOST_THREADS // vector
    x_most, y_most = _power_below(width, most), _power_below(height, most)
    x = min(x_most, _WARP)
    y = min(y_most, most // x)
    x = min(x_most, most // y)
    step_input = x if along else 1
    step_output = 1 if along else x
    if -(-inputs // step_input) < min(y * 16, _MOST_VALUES):
        return 0, 0  # threads of a block do not share an output, nor do blocks
    step_input *= y
    values = -(-inputs // step_input)
    blocks = -(-(outputs // vector) // step_output)
    target = processors.count * (processors.threads_each // (x * y))
    if values < _MOST_VALUES or blocks > target:
        return 0, 0
    shared = max(min(-(-target // blocks), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    if shared <= 1:
        return 0, 0
    size = element_bytes * outputs * shared
    return (size if along else size * x * vector), 4 * blocks


def _merge(shape: Sequence[int], strides: Sequence[int], reduced: set[int]) -> list[_Dim]:
    """Order dimensions as the iterator does, those reduced first, and join neighbours that are one run of memory."""
    dims = [
        (size, stride, number in reduced, -number)
        for number, (size, stride) in enumerate(zip(shape, strides, strict=True))
        if size != 1
    ]
    inner = sorted((each for each in dims if each[2]), key=lambda each: (each[1], each[3]))
    outer = sorted((each for each in dims if not each[2]), key=lambda each: each[3])
    merged: list[_Dim] = []
    for size, stride, is_reduced, _ in inner + outer:
        last = merged[-1] if merged else None
        if last is not None and last.reduced == is_reduced and last.size * last.stride == stride:
            merged[-1] = _Dim(last.size * size, last.stride, is_reduced)
        else:
            merged.append(_Dim(size, stride, is_reduced))
    return merged


def _output_vector(merged: Sequence[_Dim], kept: int) -> int:
    vector = _VECTOR
    for number, dim in enumerate(merged):
        count = dim.size if number == kept else dim.stride
        while count % vector:
            vector //= 2
    return vector


def _power_below(count: int, most: int) -> int:
    return most if count >= most else 1 << (max(count, 1).bit_length() - 1)
