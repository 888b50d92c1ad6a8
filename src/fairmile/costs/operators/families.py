"""Operators that some fields use: recurrent networks, signals, maps, graphs; sizes are spread as in the grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fairmile.costs.operators.outputs import outputs_of
from fairmile.costs.operators.samples import (
    DEPTHS,
    FLOATS,
    PART,
    SIDES,
    WIDTHS,
    call,
    channels_last,
    one_of,
    rounded,
    spread,
    turned,
)
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.steps import Op, TensorSpec

_PAIR = ("float32", "bfloat16")
_LINES = (  # kernel, stride and dilation of convolutions in one dimension
    *((1, 1, 1), (3, 1, 1), (3, 2, 1), (2, 2, 1), (5, 1, 1), (7, 1, 1), (10, 5, 1), (9, 1, 1), (3, 1, 4), (2, 1, 16)),
)
_UPWARD = (
    (4, 2, 1, 0),
    (4, 2, 1, 0),
    (3, 2, 1, 1),
    (2, 2, 0, 0),
    (5, 2, 2, 1),
)  # kernel, stride, padding on both sides
_FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "abs", "neg", "reciprocal", "sgn", "softplus", "elu")
_MOST_ELEMENTS = 4e8
_MOST_RECURRENT_FLOPS = {"float32": 1.5e11, "bfloat16": 6e11, "float16": 6e11}


# ---- recurrent networks: mode 1 is a plain cell with tanh, 2 LSTM, 3 GRU


def recurrent() -> Iterator[Op]:
    """Cells of all kinds in one to three layers and both directions."""
    hidden = (64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
    stacks = ((1, False), (2, False), (1, True), (2, True), (3, False), (3, True), (1, False))
    for dtype in FLOATS:
        for t, b, h, i, m, stack in spread(132, (24, 1024), (4, 512), PART, PART, PART, PART):
            width, mode = one_of(hidden, h), one_of((2, 3, 2, 1, 3, 2), m)
            layers, is_both = one_of(stacks, stack)
            wide = one_of((16, 32, 64, 80, 128, 256, 300, 512, width), i)
            batch = rounded(b, 8 if b > 12 else 1)
            length = round(t)
            work = 8 * width * (width + wide) * layers * batch * length
            if work < _MOST_RECURRENT_FLOPS[dtype] and length * layers <= 1600:
                yield from _cells(mode, length, batch, wide, width, layers, is_both, dtype)


def _cells(
    mode: int, length: int, batch: int, wide: int, hidden: int, layers: int, is_both: bool, dtype: str
) -> Iterator[Op]:
    ways, gates = 2 if is_both else 1, {2: 4, 3: 3}.get(mode, 1)
    x, y = tensor((length, batch, wide), dtype), tensor((length, batch, ways * hidden), dtype)
    state = tensor((layers * ways, batch, hidden), dtype)
    cell = state if mode == 2 else None
    weights: list[TensorSpec] = []
    for layer in range(layers):
        into = ways * hidden if layer else wide
        for _ in range(ways):
            weights += [tensor((gates * hidden, into), dtype), tensor((gates * hidden, hidden), dtype)]
            weights += [tensor((gates * hidden,), dtype)] * 2
    flat = tensor((sum(each.elements for each in weights),), dtype)
    rest: tuple[Any, ...] = (mode, hidden, 0, layers, False, 0.0, True, is_both, [], None)
    yield call("aten._cudnn_rnn.default", x, weights, 4, flat, state, cell, *rest)
    given = (x, weights, 4, flat, state, cell, y, y, None, None)
    kept = tensor((1,), "uint8")  # its size is the library's matter: a calibration makes it by the forward call
    backward = call("aten._cudnn_rnn_backward.default", *given, *rest, kept, [True, False, False, True])
    yield replace(backward, outputs=(x, state, *weights))


# ---- convolutions that are not the usual ones


def convolutions() -> Iterator[Op]:
    """Grouped, dilated, transposed, one-dimensional ones and others than cubes in three dimensions."""
    for dtype in FLOATS:
        thin = 1 if dtype != "float16" else 3  # the two short types are alike in speed
        yield from _signals(dtype, thin)
        for is_last in (False, True):
            yield from _grouped(dtype, is_last, thin)
            yield from _dilated(dtype, is_last, thin)
            yield from _transposed(dtype, is_last, thin)
        yield from _volumes(dtype, thin)


def _signals(dtype: str, thin: int) -> Iterator[Op]:
    for n, ci, co, s, k in spread(72 // thin, (2, 256), PART, PART, (64, 60_000), PART):
        kernel, stride, dilation = one_of(_LINES, k)
        sizes = (rounded(n, 1), one_of((1, *WIDTHS[:14]), ci), one_of(WIDTHS[1:14], co), round(s))
        if sizes[0] * max(sizes[1:3]) * sizes[3] < _MOST_ELEMENTS:
            yield from _convolution(sizes[0], sizes[1], sizes[2], (sizes[3],), kernel, stride, dtype, dilation=dilation)
    for n, c, s, k in spread(18 // thin, (2, 64), PART, (64, 8000), PART):
        width = one_of(WIDTHS[4:14], c)
        kernel, groups = one_of(((3, width), (7, width), (31, width), (4, width), (128, 16), (5, width)), k)
        if width % groups == 0:
            yield from _convolution(rounded(n, 1), width, width, (round(s),), kernel, 1, dtype, groups=groups)


def _grouped(dtype: str, is_last: bool, thin: int) -> Iterator[Op]:
    for n, c, h, each, k in spread(56 // thin, (2, 160), PART, PART, PART, PART):
        width = one_of((32, 48, 72, 96, 128, 216, 256, 336, 512, 576, 768, 1024, 1512), c)
        deep = one_of((4, 8, 16, 24, 32, 48, 64), each)
        stride = 2 if k > 2.0 else 1
        if width % deep == 0 and width > deep:
            yield from _convolution(
                *(rounded(n, 2), width, width, (one_of(SIDES[:18], h),) * 2, 3, stride, dtype),
                is_last=is_last,
                groups=width // deep,
            )
    for n, c, h, k in spread(16 // thin, (2, 128), PART, PART, PART):
        width = one_of((16, 32, 64, 72, 96, 144, 240, 384, 480, 672, 960), c)
        kernel = one_of((3, 5, 3, 7), k)
        side = one_of(SIDES[3:17], h)
        yield from _convolution(
            *(rounded(n, 2), width, width, (side, side), kernel, 2, dtype), is_last=is_last, groups=width
        )


def _dilated(dtype: str, is_last: bool, thin: int) -> Iterator[Op]:
    for n, ci, co, h, d in spread(28 // thin, (1, 32), PART, PART, PART, PART):
        sizes = (rounded(n, 1), one_of(WIDTHS[3:15], ci), one_of(WIDTHS[3:13], co))
        side = one_of(SIDES[6:20], h)
        if sizes[0] * max(sizes[1:]) * side * side < _MOST_ELEMENTS:
            dilation = one_of((2, 4, 6, 12, 18, 2), d)
            yield from _convolution(*sizes, (side, side), 3, 1, dtype, is_last=is_last, dilation=dilation)


def _transposed(dtype: str, is_last: bool, thin: int) -> Iterator[Op]:
    for n, ci, co, h, k in spread(30 // thin, (1, 256), PART, PART, PART, PART):
        kernel, stride, padding, more = one_of(_UPWARD, k)
        side = one_of((1, 2, *SIDES[:16]), h)
        sizes = (rounded(n, 1), one_of((3, *WIDTHS[2:14]), ci), one_of((1, 3, *WIDTHS[2:13]), co))
        if sizes[0] * max(sizes[1:]) * (2 * side) ** 2 < _MOST_ELEMENTS:
            yield from _convolution(
                *(*sizes, (side, side), kernel, stride, dtype), is_last=is_last, upward=(padding, more)
            )
    if is_last:
        return
    for n, ci, co, d in spread(12 // thin, (1, 8), PART, PART, PART):
        side = one_of(DEPTHS[:10], d)
        sizes = (rounded(n, 1), one_of(WIDTHS[3:12], ci), one_of(WIDTHS[2:11], co))
        if sizes[0] * max(sizes[1:]) * (2 * side) ** 3 < _MOST_ELEMENTS:
            yield from _convolution(*sizes, (side, side, side), 2, 2, dtype, upward=(0, 0))
    for n, ci, co, s in spread(9 // thin, (2, 64), PART, PART, (32, 8000)):
        sizes = (rounded(n, 1), one_of(WIDTHS[3:12], ci), one_of(WIDTHS[2:11], co))
        yield from _convolution(*sizes, (round(s),), 4, 2, dtype, upward=(1, 0))


def _volumes(dtype: str, thin: int) -> Iterator[Op]:
    for n, ci, co, d, k in spread(40 // thin, (1, 16), PART, PART, PART, PART):
        kernel, stride = one_of(((3, 1), (3, 2), (1, 1), (5, 1), (3, 1), (2, 2)), k)
        a, b, c = one_of(((32, 48, 32), (64, 96, 64), (16, 64, 64), (24, 40, 40), (8, 56, 56), (12, 16, 12)), d)
        sizes = (rounded(n, 1), one_of((1, 3, *WIDTHS[:11]), ci), one_of((3, *WIDTHS[:12]), co))
        if sizes[0] * max(sizes[1:]) * a * b * c < _MOST_ELEMENTS:
            yield from _convolution(*sizes, (a, b, c), kernel, stride, dtype)


def _convolution(
    n: int,
    ci: int,
    co: int,
    sides: tuple[int, ...],
    kernel: int,
    stride: int,
    dtype: str,
    *,
    is_last: bool = False,
    groups: int = 1,
    dilation: int = 1,
    upward: tuple[int, int] | None = None,
) -> Iterator[Op]:
    """Yield a convolution and its gradients; `upward` holds the padding of a transposed one, on both sides and more."""
    dims = len(sides)
    if upward is None and any(side <= dilation * (kernel - 1) for side in sides):
        return
    shape = (n, ci, *sides)
    weight = (co, ci // groups, *[kernel] * dims) if upward is None else (ci, co, *[kernel] * dims)
    place = channels_last if is_last else None
    x = tensor(shape, dtype, place(shape) if place else None)
    w = tensor(weight, dtype, place(weight) if place else None)
    if upward is None:
        padding, more = (dilation * (kernel // 2) if stride < kernel or kernel == 1 else 0), 0
    else:
        padding, more = upward
    rest = ([stride] * dims, [padding] * dims, [dilation] * dims, upward is not None, [more] * dims, groups)
    bias = tensor((co,), dtype)
    forward = call("aten.convolution.default", x, w, bias, *rest)
    yield forward
    (y,) = outputs_of(forward)
    if place:
        y = tensor(y.shape, dtype, place(y.shape))
    yield call("aten.convolution_backward.default", y, x, w, [co], *rest, [ci > 4, True, True])


# ---- layers of networks on pictures: channels grow while sides shrink

_SHALLOW_TO_DEEP = (  # side, and the channels that networks have there
    (112, (16, 24, 32, 48, 64, 96)),
    (56, (24, 40, 64, 72, 96, 128, 144, 256)),
    (28, (40, 80, 128, 160, 192, 240, 288, 512)),
    (14, (112, 192, 240, 256, 320, 384, 480, 576, 1024)),
    (7, (256, 384, 512, 640, 768, 960, 1152, 2048)),
)
_DENSE = ((1, 1), (1, 1), (1, 1), (3, 1), (3, 1), (3, 2), (2, 2), (5, 1))  # kernel and stride
_DEPTHWISE = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (9, 1), (11, 1), (3, 1), (7, 1))
_PATCHES = (
    (224, 4),
    (224, 16),
    (224, 2),
    (256, 16),
    (224, 14),
    (384, 4),
    (224, 7),
    (224, 8),
)  # side of image, of patch


def pictures() -> Iterator[Op]:
    """Convolutions and batch norms of such layers, in both layouts and ordinary batches."""
    for dtype, count in (("float32", 150), ("bfloat16", 150), ("float16", 24)):
        for is_last in (False, True):
            for n, stage, ci, co, k in spread(count, PART, PART, PART, PART, PART):
                batch, (side, widths) = one_of((8, 16, 32, 48, 64, 96, 128), n), one_of(_SHALLOW_TO_DEEP, stage)
                sizes = (batch, one_of(widths, ci), one_of(widths, co), (side, side))
                yield from _convolution(*sizes, *one_of(_DENSE, k), dtype, is_last=is_last)
            for n, stage, ci, k in spread(count, PART, PART, PART, PART):
                batch, (side, widths) = one_of((8, 16, 32, 48, 64, 96, 128), n), one_of(_SHALLOW_TO_DEEP, stage)
                width = one_of(widths, ci)
                sizes = (batch, width, width, (side, side))
                yield from _convolution(*sizes, *one_of(_DEPTHWISE, k), dtype, is_last=is_last, groups=width)
                deep = one_of((8, 16, 24, 32, 48, 64), k)
                if width % deep == 0 and width > deep:
                    stride = one_of((1, 1, 2), n)
                    yield from _convolution(*sizes, 3, stride, dtype, is_last=is_last, groups=width // deep)
                x, line = _layer(sizes[0], width, side, dtype, is_last), tensor((width,))
                yield call("aten.native_batch_norm.default", x, line, line, line, line, True, 0.1, 1e-5)
                rest = (*([line] * 5), True, 1e-5, [True, True, True])
                yield call("aten.native_batch_norm_backward.default", x, x, *rest)
            for n, co, patch in spread(count // 6, PART, PART, PART):
                side, kernel = one_of(_PATCHES, patch)
                sizes = (one_of((8, 16, 32, 48, 64, 128), n), 3, one_of((32, 64, 96, 192, 384, 768), co), (side, side))
                yield from _convolution(*sizes, kernel, kernel, dtype, is_last=is_last)


def _layer(n: int, c: int, side: int, dtype: str, is_last: bool) -> TensorSpec:
    shape = (n, c, side, side)
    return tensor(shape, dtype, channels_last(shape) if is_last else None)


# ---- spectra


def spectra() -> Iterator[Op]:
    """Fourier transforms of lines, planes and volumes, and products of complex matrices."""
    sides = (32, 48, 64, 85, 96, 128, 160, 192, 256, 384, 512, 720, 1024)
    for n, c, h in spread(40, (1, 64), (1, 128), PART):
        side = one_of(sides, h)
        shape = (rounded(n, 1), rounded(c, 1 if c < 8 else 8), side, side)
        if math.prod(shape) < 2e8:
            yield from _transforms(shape, [2, 3])
    for n, s in spread(20, (16, 20_000), (64, 32_000)):
        shape1 = (rounded(n, 1), rounded(s, 2))
        if math.prod(shape1) < 2e8:
            yield from _transforms(shape1, [1])
    for n, c, d in spread(10, (1, 8), (1, 40), PART):
        side = one_of((16, 32, 48, 64, 96, 128), d)
        shape3 = (rounded(n, 1), rounded(c, 1), side, side, side)
        if math.prod(shape3) < 2e8:
            yield from _transforms(shape3, [2, 3, 4])
    for b, m, n, k in spread(40, (16, 3000), (1, 64), PART, PART):
        batch, rows, into, out = rounded(b, 8), rounded(m, 1), one_of(WIDTHS[:9], k), one_of(WIDTHS[:9], n)
        a, w = tensor((batch, rows, into), "complex64"), tensor((batch, into, out), "complex64")
        y = tensor((batch, rows, out), "complex64")
        yield call("aten.bmm.default", a, w)
        yield call("aten.bmm.default", y, turned(w))
        yield call("aten.bmm.default", turned(a), y)
    for n, c, m in spread(14, (2, 64), (8, 128), (4, 64)):
        modes = rounded(m, 2)
        shape = (rounded(n, 1), rounded(c, 8), modes, modes)
        x = tensor(shape, "complex64")
        moved = tensor((shape[2], shape[3], shape[0], shape[1]), "complex64", (modes, 1, *x.strides[:2]))
        yield call("aten.clone.default", moved, memory_format={"memory_format": "contiguous_format"})
        yield call("aten.mul.Tensor", x, x)
        yield call("aten.mul.Scalar", x, 0.5)
        yield call("aten.add.Tensor", x, x)
        yield call("aten._conj_physical.default", x)
        whole = (4 * modes * shape[1] * 2 * modes, 8 * modes * modes, 2 * modes, 1)
        part = tensor(shape, "complex64", whole)
        yield call("aten.copy_.default", part, x)
        yield call("aten.clone.default", part)
        yield call("aten.slice_backward.default", x, [shape[0], shape[1], 4 * modes, modes], 2, 0, modes, 1)
        yield call("aten.fill_.Scalar", tensor((*shape[:2], 4 * modes, 2 * modes), "complex64"), 0)


def _transforms(shape: Sequence[int], axes: list[int]) -> Iterator[Op]:
    x = tensor(shape)
    half = (*shape[:-1], shape[-1] // 2 + 1)
    yield call("aten._fft_r2c.default", x, axes, 0, True)
    yield call("aten._fft_c2r.default", tensor(half, "complex64"), axes, 2, shape[-1])
    yield call("aten._fft_c2c.default", tensor(half, "complex64"), axes, 2, False)


# ---- graphs, experts, sorting


def scattered() -> Iterator[Op]:
    """What graph networks, mixtures of experts and point clouds do with places."""
    for dtype in _PAIR:
        for r, t, w, h in spread(22, (64, 200_000), (512, 2_000_000), PART, PART):
            rows, taken, width = round(r), round(t), one_of((1, 3, 4, 8, 16, 32, 64, 128, 256), w)
            heads = one_of((1, 1, 2, 4, 8), h)
            if taken * width * heads > 2e8:
                continue
            shape = (rows, heads, width) if heads > 1 else (rows, width)
            table, places = tensor(shape, dtype), tensor((taken,), "int64")
            values = tensor((taken, *shape[1:]), dtype)
            yield call("aten.index.Tensor", table, [places])
            yield call("aten.index_select.default", table, 0, places)
            yield call("aten.index_add.default", table, 0, places, values)
            yield call("aten.index_add_.default", table, 0, places, values)
            yield call("aten._index_put_impl_.default", table, [places], values, True, True)
            yield call("aten.index_put.default", table, [places], values, True)
            flat, wide = tensor((rows, width * heads), dtype), (taken, width * heads)
            spots = tensor(wide, "int64", (1, 0))  # one place for a whole row
            rowed = tensor(wide, dtype)
            yield call("aten.scatter_add.default", flat, 0, spots, rowed)
            yield call("aten.scatter_add_.default", flat, 0, spots, rowed)
            yield call("aten.scatter_reduce.two", flat, 0, spots, rowed, "amax")
            yield call("aten.gather.default", flat, 0, spots)
            yield call("aten.index_select.default", tensor((taken,), dtype), 0, places)
    for n, w in spread(16, (64, 60_000), (8, 2000)):
        rows, width = rounded(n, 8), rounded(w, 4)
        x, few = tensor((rows, width)), tensor((rows, 2), "int64")
        yield call("aten.topk.default", x, min(2, width), 1)
        yield call("aten.topk.default", tensor((rows, width), "bfloat16"), min(8, width), 1)
        yield call("aten.sort.default", x, 1)
        yield call("aten.sort.stable", x, stable=True, dim=1)
        yield call("aten.gather.default", x, 1, few)
        yield call("aten.scatter.value", x, 1, few, 1.0)
        yield call("aten.scatter_add.default", x, 1, few, tensor((rows, 2)))
        for name in ("max.dim", "min.dim", "argmax.default", "amax.default", "logsumexp.default", "cumsum.default"):
            axis: Any = [1] if name in ("amax.default", "logsumexp.default") else 1
            yield call(f"aten.{name}", x, axis)
        yield call("aten.cumsum.default", x, 0)
        yield call("aten.var_mean.correction", x, [1], correction=1, keepdim=True)
        yield call("aten.linalg_vector_norm.default", x, 2, [1], True)
    for n in (256, 1024, 4096, 16_384, 65_536, 262_144, 1_000_000, 4_000_000):
        for dtype in ("float32", "int64"):
            yield call("aten.sort.default", tensor((n,), dtype), 0)
            yield call("aten.sort.stable", tensor((n,), dtype), stable=True, dim=0)
        yield call("aten.cumsum.default", tensor((n,), "int64"), 0)
        yield call("aten.sum.default", tensor((n,), "bool"))
        yield call("aten.floor_divide.default", tensor((n,), "int64"), 2)
        yield call("aten.add.Tensor", tensor((n,), "int64"), 1)
        yield call("aten._to_copy.default", tensor((n,), "int64"), dtype={"dtype": "float32"})
        yield call("aten.eq.Scalar", tensor((n,), "int64"), 0)


# ---- fields: resampling, padding, pooling, normalisation


def fields() -> Iterator[Op]:
    """What networks on pictures, maps and volumes do between their convolutions."""
    for dtype in _PAIR:
        for n, c, h in spread(22, (1, 64), PART, PART):
            side = one_of(SIDES[2:20], h)
            shape = (rounded(n, 1), one_of((1, 3, *WIDTHS[1:13]), c), side, side)
            if math.prod(shape) < 1e8:
                yield from _resampled(shape, dtype)
        for n, c, d in spread(12, (1, 8), PART, PART):
            side = one_of(DEPTHS[2:13], d)
            deep = (rounded(n, 1), one_of(WIDTHS[:10], c), side, side, side)
            if math.prod(deep) < 6e7:
                yield from _resampled_deep(deep, dtype)
        for n, c, h, g in spread(30, (1, 64), PART, PART, PART):
            side = one_of((1, *SIDES[1:19]), h)
            shape = (rounded(n, 1), one_of(WIDTHS[3:14], c), side, side)
            if math.prod(shape) < _MOST_ELEMENTS:
                yield from _group_norm(shape, one_of((1, 4, 8, 16, 32), g), dtype)
        for n, c, d, g in spread(14, (1, 8), PART, PART, PART):
            side = one_of(DEPTHS[:13], d)
            deep = (rounded(n, 1), one_of(WIDTHS[2:11], c), side, side, side)
            if math.prod(deep) < 2e8:
                yield from _group_norm(deep, one_of((4, 8, 16), g), dtype)
        yield from _batch_norms(dtype)
        for n, k, h in spread(10, (1, 32), (2, 30), PART):
            side = one_of(SIDES[12:], h)
            yield from _classified((rounded(n, 1), round(k), side, side))
        for r, w in spread(16, (256, 200_000), (32, 8000)):
            rows, width = rounded(r, 8), rounded(w, 16)
            if rows * width < _MOST_ELEMENTS:
                x = tensor((rows, width), dtype)
                yield call("aten._fused_rms_norm.default", x, [width], tensor((width,), dtype), 1e-6)
                kept = tensor((rows, 1))
                yield call(
                    "aten._fused_rms_norm_backward.default",
                    *(x, x, [width], kept, tensor((width,), dtype), [True, True]),
                )


def _resampled(shape: tuple[int, ...], dtype: str) -> Iterator[Op]:
    x, (height, width) = tensor(shape, dtype), shape[2:]
    wide = [2 * height, 2 * width]
    twice = tensor((*shape[:2], *wide), dtype)
    for name, more in (
        ("nearest2d", ()),
        ("bilinear2d", (False,)),
        ("bicubic2d", (False,)),
    ):
        yield call(f"aten.upsample_{name}.default", x, wide, *more, 2.0, 2.0)
        yield call(f"aten.upsample_{name}_backward.default", twice, wide, list(shape), *more, 2.0, 2.0)
    yield call("aten.upsample_bilinear2d.default", x, [4 * height, 4 * width], False, None, None)
    grid = tensor((shape[0], height, width, 2), dtype)
    yield call("aten.grid_sampler_2d.default", x, grid, 0, 0, False)
    yield call("aten.grid_sampler_2d_backward.default", x, x, grid, 0, 0, False, [True, True])
    if shape[1] % 4 == 0:
        yield call("aten.pixel_shuffle.default", x, 2)
        yield call("aten.pixel_unshuffle.default", twice, 2)
    yield call("aten.reflection_pad2d.default", x, [1, 1, 1, 1])
    padded = tensor((*shape[:2], height + 2, width + 2), dtype)
    yield call("aten.reflection_pad2d_backward.default", padded, x, [1, 1, 1, 1])
    yield call("aten.constant_pad_nd.default", x, [1, 1, 1, 1], 0.0)
    yield call("aten.constant_pad_nd.default", padded, [-1, -1, -1, -1], 0.0)
    pool = ([2, 2], [2, 2], [0, 0], False, True)
    yield call("aten.avg_pool2d.default", twice, *pool)
    yield call("aten.avg_pool2d_backward.default", x, twice, *pool, None)
    yield call("aten._adaptive_avg_pool2d_backward.default", tensor((*shape[:2], 1, 1), dtype), x)
    yield call("aten.roll.default", x, [1, 1], [2, 3])
    yield call("aten.flip.default", x, [2, 3])
    gate, line = tensor((*shape[:2], 1, 1), dtype), tensor((1, shape[1], 1, 1), dtype)
    yield call("aten.mul.Tensor", x, gate)
    yield call("aten.mul.Tensor", x, line)
    yield call("aten.add.Tensor", x, line)
    yield call("aten.sum.dim_IntList", x, [2, 3], True)
    yield call("aten.cat.default", [x, x], 1)
    yield call("aten.mean.dim", x, [2, 3])
    yield call("aten.sub.Tensor", x, gate)
    moved = tensor((shape[0], height, width, shape[1]), dtype, (x.strides[0], width, 1, height * width))
    yield call("aten.clone.default", moved, memory_format={"memory_format": "contiguous_format"})
    yield call("aten.add.Tensor", moved, tensor(moved.shape, dtype))
    first = tensor((shape[0], -(-shape[1] // 2), height, width), dtype, x.strides)
    yield call("aten.clone.default", first, memory_format={"memory_format": "contiguous_format"})
    yield call("aten.mul.Tensor", first, first)
    yield call("aten.sigmoid.default", first)
    yield call("aten.tanh.default", first)
    yield call("aten.slice_backward.default", tensor(first.shape, dtype), list(shape), 1, 0, first.shape[1], 1)
    yield call("aten.select_backward.default", tensor((*shape[:1], *shape[2:]), dtype), list(shape), 1, 0)


def _resampled_deep(shape: tuple[int, ...], dtype: str) -> Iterator[Op]:
    x, sides = tensor(shape, dtype), shape[2:]
    wide = [2 * each for each in sides]
    twice = tensor((*shape[:2], *wide), dtype)
    yield call("aten.upsample_nearest3d.default", x, wide, 2.0, 2.0, 2.0)
    yield call("aten.upsample_nearest3d_backward.default", twice, wide, list(shape), 2.0, 2.0, 2.0)
    yield call("aten.upsample_trilinear3d.default", x, wide, False, 2.0, 2.0, 2.0)
    yield call("aten.upsample_trilinear3d_backward.default", twice, wide, list(shape), False, 2.0, 2.0, 2.0)
    pool = ([2, 2, 2], [2, 2, 2], [0, 0, 0], False, True)
    yield call("aten.avg_pool3d.default", twice, *pool)
    yield call("aten.avg_pool3d_backward.default", x, twice, *pool, None)
    rest = ([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False)
    pooled = call("aten.max_pool3d_with_indices.default", twice, *rest)
    yield pooled
    yield call("aten.max_pool3d_with_indices_backward.default", x, twice, *rest, outputs_of(pooled)[1])
    yield call("aten.cat.default", [x, x], 1)
    yield call("aten.sum.dim_IntList", x, [0, 2, 3, 4])


def _group_norm(shape: tuple[int, ...], groups: int, dtype: str) -> Iterator[Op]:
    n, channels, places = shape[0], shape[1], math.prod(shape[2:])
    x, scale = tensor(shape, dtype), tensor((channels,), dtype)
    kept = tensor((n, groups), dtype)
    yield call("aten.native_group_norm.default", x, scale, scale, n, channels, places, groups, 1e-5)
    rest = (kept, kept, scale, n, channels, places, groups, [True, True, True])
    yield call("aten.native_group_norm_backward.default", x, x, *rest)


def _batch_norms(dtype: str) -> Iterator[Op]:
    """Of lines and volumes, and of one channel of one sample each, as an instance's norm is computed."""
    shapes: list[tuple[int, ...]] = []
    for n, c, s in spread(14, (4, 512), PART, (1, 8000)):
        shapes.append((rounded(n, 2), one_of(WIDTHS[3:15], c), *((round(s),) if s > 4 else ())))
    for n, c, d in spread(10, (1, 16), PART, PART):
        shapes.append((rounded(n, 1), one_of(WIDTHS[1:11], c), *[one_of(DEPTHS, d)] * 3))
    for n, h in spread(12, (16, 4000), PART):
        shapes.append((1, rounded(n, 8), *[one_of(SIDES[3:], h)] * 2))
    for n, d in spread(10, (16, 1000), PART):
        shapes.append((1, rounded(n, 8), *[one_of(DEPTHS, d)] * 3))
    mask = [True, True, True]
    for shape in shapes:
        if math.prod(shape) < 2e8:
            x, each = tensor(shape, dtype), tensor((shape[1],))
            yield call("aten.native_batch_norm.default", x, each, each, each, each, True, 0.1, 1e-5)
            yield call("aten.native_batch_norm_backward.default", x, x, each, each, each, each, each, True, 1e-5, mask)


def _classified(shape: tuple[int, ...]) -> Iterator[Op]:
    x, y, one = tensor(shape), tensor((shape[0], *shape[2:]), "int64"), tensor(())
    yield call("aten._log_softmax.default", x, 1, False)
    yield call("aten._log_softmax_backward_data.default", x, x, 1, {"dtype": "float32"})
    yield call("aten.nll_loss2d_forward.default", x, y, None, 1, -100)
    yield call("aten.nll_loss2d_backward.default", one, x, y, None, 1, -100, one)


# ---- attention of other shapes than one length and two widths


def attention() -> Iterator[Op]:
    """Other widths of heads, queries and keys of two lengths, masks, windows, and attention without a fused kernel."""
    for b, h, s, r, w in spread(44, (1, 512), (1, 24), (16, 2500), PART, PART):
        width = one_of((32, 40, 64, 80, 96, 128, 160, 256), w)
        longer = one_of((1.0, 1.0, 0.25, 4.0, 1.0, 0.1), r)
        batch, heads, length = rounded(b, 1), rounded(h, 1), rounded(s, 1)
        keys = max(int(length * longer), 8)
        if batch * heads * length * keys > 3e9 or batch * heads * max(length, keys) * width > 2e8:
            continue
        for dtype in FLOATS:
            q, k = _heads(batch, heads, length, width, dtype), _heads(batch, heads, keys, width, dtype)
            if dtype == "float32":
                yield from efficient(q, k)
                if keys % 8 == 0:
                    yield from efficient(q, k, tensor((batch, heads, length, keys), dtype, (0, 0, keys, 1)))
            else:
                yield from flash(q, k)
                if width <= 128:
                    yield from by_library(q, k)
        if dtype != "float32" and keys % 8 == 0 and batch * heads * length * keys < 4e8:
            scores = tensor((batch, heads, length, keys), "bfloat16")
            yield call("aten._softmax.default", scores, -1, False)
            yield call("aten._softmax_backward_data.default", scores, scores, -1, {"dtype": "bfloat16"})
            yield call("aten.add.Tensor", scores, tensor((batch, 1, length, keys), "bfloat16", (0, 0, keys, 1)))
            yield call("aten._safe_softmax.default", scores, -1)


def _heads(batch: int, heads: int, length: int, width: int, dtype: str) -> TensorSpec:
    shape = (batch, heads, length, width)
    return tensor(shape, dtype, heads_inside(shape))


def heads_inside(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of (batch, heads, sequence, width) that is kept as (batch, sequence, heads, width)."""
    _, heads, length, width = shape
    return (heads * length * width, width, heads * width, 1)


def flash(q: TensorSpec, k: TensorSpec, causal: bool = False) -> Iterator[Op]:
    """Yield attention by the flash kernels and its gradient."""
    yield call("aten._scaled_dot_product_flash_attention.default", q, k, k, 0.0, causal, scale=None)
    sums, seed = tensor(q.shape[:3]), tensor((2,), "uint64")
    yield call(
        "aten._scaled_dot_product_flash_attention_backward.default",
        *(q, q, k, k, q, sums, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, tensor((), "uint64")),
        scale=None,
    )


def by_library(q: TensorSpec, k: TensorSpec, causal: bool = False, dropout: float = 0.0) -> Iterator[Op]:
    """Yield attention by cuDNN and its gradient."""
    name = "aten._scaled_dot_product_cudnn_attention"
    yield call(f"{name}.default", q, k, k, None, True, dropout, causal, scale=None)
    sums, seed = tensor((*q.shape[:3], 1)), tensor((), "int64")
    given = (q, q, k, k, q, sums, seed, seed, None, None, None, q.shape[2], k.shape[2], dropout, causal)
    yield replace(call(f"{name}_backward.default", *given, scale=None), outputs=(q, k, k))


def efficient(
    q: TensorSpec, k: TensorSpec, bias: TensorSpec | None = None, causal: bool = False, dropout: float = 0.0
) -> Iterator[Op]:
    """Yield attention by the memory-efficient kernels and its gradient."""
    name = "aten._scaled_dot_product_efficient_attention"
    yield call(f"{name}.default", q, k, k, bias, True, dropout, causal, scale=None)
    sums, seed = tensor((*q.shape[:2], -(-q.shape[2] // 32) * 32)), tensor((), "int64")
    mask = [True, True, True, False]
    yield call(f"{name}_backward.default", q, q, k, k, bias, q, sums, seed, seed, dropout, mask, causal, scale=None)


# ---- what is left: functions of each element, copies of parts, small products, optimizers


def functions() -> Iterator[Op]:
    """Functions of each element that the grid has not, dense and broadcast."""
    for dtype in _PAIR:
        for size in (4**power for power in range(5, 14)):
            x = tensor((size,), dtype)
            for name in _FUNCTIONS:
                yield call(f"aten.{name}.default", x)
            yield call("aten.clamp.default", x, 0.0, 1.0)
            yield call("aten.hardtanh.default", x, 0.0, 6.0)
            yield call("aten.hardtanh_backward.default", x, x, 0.0, 6.0)
            yield call("aten.elu_backward.default", x, 1.0, 1.0, 1.0, False, x)
            yield call("aten.softplus_backward.default", x, x, 1.0, 20.0)
            yield call("aten.sigmoid_backward.default", x, x)
            for name in ("mul_.Tensor", "div_.Tensor", "sub.Tensor", "maximum.default", "pow.Tensor_Tensor"):
                yield call(f"aten.{name}", x, x)
            yield call("aten.sub.Scalar", x, 1.0)
            yield call("aten.add.Scalar", x, 1.0)
            yield call("aten.rsub.Scalar", x, 1.0)
            yield call("aten.pow.Tensor_Scalar", x, 2.0)
            yield call("aten.masked_fill.Scalar", x, tensor((size,), "bool"), 0.0)
            yield call("aten.addcmul.default", x, x, x)
            yield call("aten.lt.Scalar", x, 0.5)
            if size % 2 == 0:
                yield call("aten.glu.default", x, 0)
                yield call("aten.glu_backward.default", tensor((size // 2,), dtype), x, 0)
        for r, h, w in spread(26, (64, 200_000), (1, 16), PART):
            rows, heads, width = rounded(r, 4), rounded(h, 1), one_of(WIDTHS[:13], w)
            shape = (rows, heads, width)
            if math.prod(shape) > 2e8:
                continue
            x, one, few = tensor(shape, dtype), tensor((1, heads, width), dtype), tensor((rows, heads, 1), dtype)
            yield call("aten.mul.Tensor", x, one)
            yield call("aten.mul.Tensor", x, few)
            yield call("aten.sub.Tensor", x, few)
            yield call("aten.div.Tensor", x, few)
            yield call("aten.sum.dim_IntList", x, [2])
            yield call("aten.sum.dim_IntList", x, [0])
            yield call("aten.sum.dim_IntList", x, [0, 1], True)
            yield call("aten.mean.dim", x, [1])
            moved = tensor((heads, rows, width), dtype, (width, heads * width, 1))
            yield call("aten.clone.default", moved, memory_format={"memory_format": "contiguous_format"})
            yield call("aten.cat.default", [x, x], -1)
            yield call("aten.stack.default", [x, x], 0)
            yield call("aten.clone.default", tensor(shape, dtype, (0, width, 1)))
            half = tensor((rows, heads, max(width // 2, 1)), dtype, x.strides)
            yield call("aten.neg.default", half)
            yield call("aten.clone.default", half, memory_format={"memory_format": "contiguous_format"})
            yield call("aten.slice_backward.default", tensor(half.shape, dtype), list(shape), 2, 0, half.shape[2], 1)
            yield call("aten.select_backward.default", tensor((rows, width), dtype), list(shape), 1, 0)
            yield call("aten.copy_.default", tensor(shape), x)


def products() -> Iterator[Op]:
    """Batches of small matrices in several layouts, and products with a vector."""
    for dtype in FLOATS:
        for b, m, n, k in spread(34, (2, 4000), (4, 2000), PART, PART):
            batch, rows = rounded(b, 1), rounded(m, 1 if m < 50 else 8)
            into, out = one_of(WIDTHS[:14], k), one_of(WIDTHS[:14], n)
            if batch * max(rows * into, rows * out, into * out) < _MOST_ELEMENTS:
                a, w, y = (tensor((batch, *each), dtype) for each in ((rows, into), (into, out), (rows, out)))
                yield call("aten.bmm.default", a, w)
                yield call("aten.bmm.default", y, turned(w))
                yield call("aten.bmm.default", turned(a), y)
                yield call("aten.baddbmm.default", y, a, w)


def updates() -> Iterator[Op]:
    """What other optimizers and the clipping of gradients do with lists of tensors."""
    for c, e in spread(10, (6, 400), (2e5, 3e8)):
        count = round(c)
        wide = rounded(e / max(count // 2, 1), 64)
        x = [tensor((wide if place % 2 else 256,)) for place in range(count)]
        one = tensor(())
        yield call("aten._foreach_norm.Scalar", x)
        yield call("aten._foreach_mul_.Tensor", x, one)
        yield call("aten._foreach_addcdiv_.Scalar", x, x, x, -0.001)
        yield call("aten._foreach_sqrt_.default", x)
        yield call("aten._foreach_neg.default", x)
        yield call("aten._foreach_add.List", x, x, alpha=0.1)
        yield call("aten._foreach_maximum_.List", x, x)
    for size in (4**power for power in range(4, 14)):
        one = tensor((size,))
        yield call("aten.addcdiv_.default", one, one, one)
        yield call("aten.addcmul_.default", one, one, one)
        yield call("aten.lerp_.Scalar", one, one, 0.1)
        yield call("aten.mul_.Scalar", one, 0.9)
        yield call("aten.sqrt.default", one)
        yield call("aten.normal_.default", one)
        yield call("aten.uniform_.default", one)
        yield call("aten.bernoulli_.float", one, 0.5)
        yield call("aten.smooth_l1_loss.default", one, one)
        yield call("aten.binary_cross_entropy_with_logits.default", one, one)


FAMILIES: tuple[Callable[[], Iterator[Op]], ...] = (
    recurrent,
    convolutions,
    attention,
    products,
    fields,
    scattered,
    functions,
    spectra,
    updates,
    pictures,
)
