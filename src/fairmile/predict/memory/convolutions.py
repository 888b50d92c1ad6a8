"""Workspaces of cuDNN's convolutions: copies in another layout, and partial sums, as near measured calls took them."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from math import log, prod

from fairmile.base.quick_dataclass import dataclass

_PER_SAMPLE = {"b": 1, "d": 8}  # gradients of the weight in float32
_MOST_PER_SAMPLE = 2  # times the size of input and output: beyond that, these are copied instead
_MOST_PARTIAL_BYTES = 32 << 20
_ELEMENT = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ConvolutionCall:
    """One kernel: `direction` is fwd, dgrad (gradient of the input) or wgrad (of the weight).

    Input and output are those of the plain convolution: a transposed one has them exchanged.
    """

    direction: str
    dtype: str
    channels_last: bool
    input: tuple[int, ...]
    output: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int
    groups: int

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.input[1] == self.output[1]


@dataclass(frozen=True)
class _Measurement:
    batch: int
    channels: int
    outputs: int
    groups: int
    in_positions: int
    out_positions: int
    taps: int
    stride: int
    rank: int
    moved: str
    slices: int
    rest: int

    @property
    def weights(self) -> int:
        return self.channels * self.outputs * self.taps // self.groups

    @property
    def values(self) -> int:
        inputs, outputs = self.channels * self.in_positions, self.outputs * self.out_positions
        return self.batch * (inputs + outputs) + self.weights


@dataclass(frozen=True)
class _Weights:
    """How much it tells calls apart that a length differs, by its logarithm, or what multiple it is (`even_`)."""

    channels: float
    outputs: float
    taps: float
    batch: float
    in_positions: float
    out_positions: float
    tiles: float
    values: float
    stride: float
    even_channels: float
    even_outputs: float
    even_in: float
    even_out: float


# Those that foretold whole families of models best from all others. In float32 no choice by direction did better.
_WEIGHTS = {
    "float": _Weights(0.5, 1.35, 3.4, 0.24, 0.3, 0, 0.57, 0, 1.25, 2.8, 0.5, 5.0, 2.5),
    "fwd": _Weights(1.0, 0.68, 6.8, 0.48, 0, 0.15, 0.28, 0.6, 5.0, 5.6, 0, 0.15, 1.25),
    "dgrad": _Weights(0.6, 0, 3.4, 0.24, 0.6, 0.6, 0.28, 0.15, 1.25, 2.8, 0, 0, 5.0),
    "wgrad": _Weights(1.0, 1.35, 3.4, 0.24, 0.15, 0, 0.15, 0.15, 0, 2.8, 0, 5.0, 0),
}


class ConvolutionTable:
    """Measured calls by kind; what was not measured is taken from the nearest that was."""

    def __init__(self, name: str) -> None:
        self._rows = _read(name)
        self._known: dict[ConvolutionCall, int] = {}

    def workspace_bytes(self, call: ConvolutionCall) -> int:
        """Return how large the workspace of a call is."""
        size = self._known.get(call)
        if size is None:
            size = self._known[call] = self._look(call)
        return size

    def _look(self, call: ConvolutionCall) -> int:
        kind = (call.direction, _half(call.dtype), call.channels_last)
        form = _form(call.groups, prod(call.weight[2:]), call.stride, call.is_depthwise)
        rows = self._rows.get((*kind, form), ())
        if not rows or 0 in call.input or 0 in call.output:
            return 0
        exact = call.dtype
        near = [each for each in rows if _is_plausible(call, each[1])] or rows
        nearest = min(near, key=lambda each: _distance(call, each[1]) + (0.05 if each[0] != exact else 0.0))
        return _bytes(call, nearest[1])


def _bytes(call: ConvolutionCall, row: _Measurement) -> int:
    """Return what a call takes if it is done as the measured one was."""
    size = _ELEMENT.get(call.dtype, 4)
    weights = prod(call.weight)
    if row.moved in _PER_SAMPLE:
        return _per_sample_bytes(call, row, size)
    if row.moved == "t":
        return _tiles_bytes(call)
    letters, multiple = set(row.moved.rstrip("0123456789")), int(row.moved.lstrip("xyw") or "1")
    channels, outputs = call.input[1] // call.groups, call.output[1] // call.groups
    if call.groups == 1:
        wide, wide_out = _padded(channels, row.channels, multiple, size), _padded(outputs, row.outputs, multiple, size)
        if size == 2 and call.channels_last:
            _move_unaligned(letters, "x", channels, row.channels)
            _move_unaligned(letters, "y", outputs, row.outputs)
    else:
        wide, wide_out = (-(-each // multiple) * multiple for each in (channels, outputs))
    total = row.rest * call.input[0] // row.batch if row.rest > _MOST_PARTIAL_BYTES else row.rest
    if "x" in letters:
        total += prod(call.input) // channels * wide * size
    if "y" in letters:
        total += prod(call.output) // outputs * wide_out * size
    if "w" in letters:
        total += weights // (channels * outputs) * wide * wide_out * size
    # So many blocks of threads run at once, whatever the weight: partial sums of a larger one are fewer, not larger.
    return total + row.slices * min(weights, row.weights) * 4


def _per_sample_bytes(call: ConvolutionCall, row: _Measurement, size: int) -> int:
    each = prod(call.weight) * 4
    copied = (prod(call.input[1:]) + prod(call.output[1:])) * size
    measured = row.weights * 4 / ((row.channels * row.in_positions + row.outputs * row.out_positions) * size)
    if row.moved == "b" and each / copied > max(_MOST_PER_SAMPLE, measured):
        return call.input[0] * copied
    return call.input[0] * each * _PER_SAMPLE[row.moved] + row.rest


def _tiles_bytes(call: ConvolutionCall) -> int:
    """Winograd's transforms of input, output and weight: 36 values for each tile of four by four."""
    count = call.input[0] * prod(-(-each // 4) for each in call.output[2:])
    channels, outputs = call.input[1], call.output[1]
    return 36 * 4 * (count * (channels + outputs) + channels * outputs)


def _padded(length: int, measured: int, multiple: int, size: int) -> int:
    """Half precision wants channels in eights; a measured call that had them so anyway does not tell."""
    if size == 2 and measured % 8 == 0:
        multiple = 8
    return -(-length // multiple) * multiple


def _move_unaligned(letters: set[str], letter: str, length: int, measured: int) -> None:
    """With channels last, half precision copies what has to be padded, and nothing else."""
    if length % 8 and measured % 8 == 0:
        letters |= {letter, "w"}
    elif length % 8 == 0 and measured % 8:
        letters.discard(letter)


def _is_plausible(call: ConvolutionCall, row: _Measurement) -> bool:
    """Tell whether a measured call says something of others.

    One that left the layout which suits it is alone in it, and so is one that took more than partial sums ever need.
    """
    moved = call.channels_last and _half(call.dtype) and {"x", "y"} <= set(row.moved) and _aligned(row)
    strange = moved or row.rest > _MOST_PARTIAL_BYTES
    same = (call.input[1], call.output[1]) == (row.channels, row.outputs)
    return not strange or (same and prod(call.input[2:]) == row.in_positions)


def _aligned(row: _Measurement) -> bool:
    return row.channels % 8 == 0 and row.outputs % 8 == 0


def _distance(call: ConvolutionCall, row: _Measurement) -> float:
    """How unlike a measured call is."""
    weights = _WEIGHTS[call.direction if _half(call.dtype) else "float"]
    in_positions, out_positions = prod(call.input[2:]), prod(call.output[2:])
    channels, outputs, taps = call.input[1], call.output[1], prod(call.weight[2:])
    apart = weights.channels * abs(log(channels / row.channels)) + weights.outputs * abs(log(outputs / row.outputs))
    apart += weights.taps * abs(log(taps / row.taps)) + weights.batch * abs(log(call.input[0] / row.batch))
    apart += weights.in_positions * abs(log(in_positions / row.in_positions))
    apart += weights.out_positions * abs(log(out_positions / row.out_positions))
    mine = _tiles(call.direction, call.input[0], channels, outputs, in_positions, out_positions, taps, call.groups)
    other = _tiles(
        call.direction, row.batch, row.channels, row.outputs, row.in_positions, row.out_positions, row.taps, row.groups
    )
    apart += weights.tiles * abs(log(mine / other)) + weights.stride * ((call.stride > 1) != (row.stride > 1))
    values = prod(call.input) + prod(call.output) + prod(call.weight)
    apart += weights.values * abs(log(values / row.values)) + 0.2 * (len(call.input) - 2 != row.rank)
    if call.direction == "wgrad" and taps > 1 and call.groups == 1:  # slices go by how many values are added up
        apart += 0.6 * abs(log(call.input[0] * out_positions / (row.batch * row.out_positions)))
    # Kernels read 16 bytes at once: whether lengths are multiples of that decides between them.
    most = 16 // _ELEMENT.get(call.dtype, 4)
    for weight, length, measured in (
        (weights.even_channels, channels, row.channels),
        (weights.even_outputs, outputs, row.outputs),
        (weights.even_in, in_positions, row.in_positions),
        (weights.even_out, out_positions, row.out_positions),
    ):
        apart += weight * (min(length & -length, most) != min(measured & -measured, most))
    return apart


def _tiles(
    direction: str,
    batch: int,
    channels: int,
    outputs: int,
    in_positions: int,
    out_positions: int,
    taps: int,
    groups: int,
) -> float:
    """How many tiles of 128 by 128 the result has: few of them are shared out in slices."""
    if direction == "fwd":
        return batch * out_positions * outputs / 16384
    if direction == "dgrad":
        return batch * in_positions * channels / 16384
    return max(outputs * channels * taps / groups / 16384, 0.01)


def _half(dtype: str) -> bool:
    return dtype in ("float16", "bfloat16")


def _form(groups: int, taps: int, stride: int, is_depthwise: bool) -> str:
    if is_depthwise:
        return "depthwise"
    if groups > 1:
        return "grouped"
    if taps > 1:
        return "dense"
    return "pointwise" if stride == 1 else "strided"


@cache
def _read(name: str) -> dict[tuple[str, bool, bool, str], list[tuple[str, _Measurement]]]:
    text = resources.files("fairmile.costs").joinpath("data", "workspaces", name).read_text(encoding="utf-8")
    rows: dict[tuple[str, bool, bool, str], list[tuple[str, _Measurement]]] = {}
    for fields in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        row = _Measurement(
            batch=int(fields["batch"]),
            channels=int(fields["in_channels"]),
            outputs=int(fields["out_channels"]),
            groups=int(fields["groups"]),
            in_positions=int(fields["in_positions"]),
            out_positions=int(fields["out_positions"]),
            taps=int(fields["taps"]),
            stride=int(fields["stride"]),
            rank=int(fields["rank"]),
            moved=fields["moved"],
            slices=int(fields["slices"]),
            rest=int(fields["rest_bytes"]),
        )
        depthwise = row.groups > 1 and row.groups == row.channels == row.outputs
        key = (
            fields["direction"],
            _half(fields["dtype"]),
            fields["layout"] == "nhwc",
            _form(row.groups, row.taps, row.stride, depthwise),
        )
        rows.setdefault(key, []).append((fields["dtype"], row))
    return rows
