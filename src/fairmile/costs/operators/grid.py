"""The operators that a calibration measures whatever the model: sizes spread evenly in logarithms, so that what no
model of the past used lies between measured neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fairmile.costs.operators.families import FAMILIES, by_library, efficient, flash, heads_inside
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
from fairmile.costs.operators.signatures import Candidate, contiguous, tensor
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import Op, TensorSpec

ORIGIN = "grid"
_MOST_FLOPS = {"float32": 3e12, "bfloat16": 1.2e13, "float16": 1.2e13}
_MOST_BYTES = 12e9


def generic_candidates() -> list[Candidate]:
    """Return the built-in list in order of value: one small call of each operator, which tell the speed of the host,
    then what most steps spend their time on.

    A call may come twice. What calls return is left out: torch tells it of those that are measured.
    """
    candidates: list[Candidate] = []
    for part in (_linear, _elementwise, _norms, _convolutions, _attention, _batched, _copies, _optimizers, _indexed):
        candidates += [Candidate(op, (ORIGIN,)) for op in part() if _fits(op)]
    for part in (_pools, _losses, _others, *FAMILIES):
        candidates += [Candidate(op, (ORIGIN,)) for op in part() if _fits(op)]
    smallest: dict[str, Candidate] = {}
    for each in candidates:
        if each.op.name not in smallest or _elements(each.op) < _elements(smallest[each.op.name].op):
            smallest[each.op.name] = each
    return [*smallest.values(), *candidates]


def _elements(op: Op) -> int:
    return sum(each.elements for each in op.inputs)


def _fits(op: Op) -> bool:
    work = work_of(replace(op, outputs=op.outputs or outputs_of(op)))
    widest = "float32" if any(each.dtype == "float32" for each in op.inputs) else "bfloat16"
    return work.flops <= _MOST_FLOPS[widest] and work.bytes <= _MOST_BYTES


# ---- matrix products


def _linear() -> Iterator[Op]:
    """A linear layer forward, as functions of both layouts of its weight, and its two gradients."""
    shapes = [
        (rounded(m, 16 if m > 64 else 4), rounded(n, 64 if n > 400 else 8), rounded(k, 64 if k > 400 else 8))
        for m, n, k in spread(90, (16, 140_000), (24, 18_000), (24, 18_000))
    ]
    shapes += [(m, n, k) for m in (1024, 8192, 16384) for n, k in ((30522, 768), (50257, 1024), (1000, 2048))]
    shapes += [  # lengths that no wide load divides
        (rounded(m, 64), round(n) | 1 if n > 300 else round(n) * 2, rounded(k, 64))
        for m, n, k in spread(18, (256, 40_000), (40, 60_000), (96, 4096))
    ]
    shapes += [(m, k * 4, k) for m in (4096, 16384, 65536) for k in (768, 1024, 1600, 4096)]
    shapes += [(m, k, k) for m in (2048, 8192, 32768) for k in (512, 768, 1280, 2048)]
    shapes += [
        (rounded(m, 64), one_of(WIDTHS, n), one_of(WIDTHS, k))
        for m, n, k in spread(24, (60_000, 1_500_000), PART, PART)
    ]
    shapes += [(rounded(m, 8), round(n), one_of(WIDTHS, k)) for m, n, k in spread(10, (16, 200_000), (1, 12), PART)]
    shapes += [(round(m), one_of(WIDTHS, n), rounded(k, 64)) for m, n, k in spread(10, (1, 12), PART, (256, 60_000))]
    for dtype in FLOATS:
        for m, n, k in shapes:
            x, y = tensor((m, k), dtype), tensor((m, n), dtype)
            bias = tensor((n,), dtype)
            out_in, in_out = tensor((n, k), dtype), tensor((k, n), dtype)
            yield call("aten.addmm.default", bias, x, turned(out_in))
            yield call("aten.mm.default", y, out_in)
            yield call("aten.mm.default", turned(y), x)
            yield call("aten.addmm.default", bias, x, in_out)
            if m <= 32768:
                yield call("aten.mm.default", x, turned(out_in))


def _batched() -> Iterator[Op]:
    for dtype in FLOATS:
        for b, s, d in spread(16, (8, 1024), (64, 2048), (32, 160)):
            batch, length, width = rounded(b, 4), rounded(s, 8), rounded(d, 16)
            q, scores = tensor((batch, length, width), dtype), tensor((batch, length, length), dtype)
            yield call("aten.bmm.default", q, turned(q))
            yield call("aten.bmm.default", scores, q)
            yield call("aten.bmm.default", turned(scores), q)


# ---- elementwise


def _elementwise() -> Iterator[Op]:
    sizes = [4**power for power in range(5, 15)] + [3 * 4**power for power in range(9, 14)]
    for dtype in ("float32", "bfloat16"):
        for size in sizes:
            yield from _one_size(tensor((size,), dtype))
    for size in sizes[::2]:
        yield from _one_size(tensor((size,), "float16"), short=True)
    for size in sizes:
        for wide, narrow in (("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")):
            yield call("aten._to_copy.default", tensor((size,), wide), dtype={"dtype": narrow})
        yield call("aten._to_copy.default", tensor((size,), "float16"), dtype={"dtype": "float32"})
        yield call("aten.ge.Scalar", tensor((size,)), 0)
        yield call("aten.add.Tensor", tensor((size,)), tensor((size,), "bfloat16"))


def _one_size(x: TensorSpec, short: bool = False) -> Iterator[Op]:
    yield call("aten.add.Tensor", x, x)
    yield call("aten.mul.Tensor", x, x)
    yield call("aten.mul.Scalar", x, 0.5)
    yield call("aten.relu.default", x)
    yield call("aten.threshold_backward.default", x, x, 0)
    yield call("aten.gelu.default", x)
    yield call("aten.gelu_backward.default", x, x)
    mask = tensor(x.shape, "bool")
    yield call("aten.native_dropout.default", x, 0.1, True)
    yield call("aten.native_dropout_backward.default", x, mask, 1.1)
    if short:
        return
    yield call("aten.add_.Tensor", x, x)
    yield call("aten.relu_.default", x)
    yield call("aten.div.Tensor", x, x)
    yield call("aten.silu.default", x)
    yield call("aten.silu_backward.default", x, x)
    yield call("aten.tanh.default", x)
    yield call("aten.tanh_backward.default", x, x)
    yield call("aten.sigmoid.default", x)
    yield call("aten.leaky_relu.default", x, 0.3)
    yield call("aten.leaky_relu_backward.default", x, x, 0.3, False)
    yield call("aten.pow.Tensor_Scalar", x, 3.0)
    yield call("aten.where.self", mask, x, x)
    yield call("aten.fill_.Scalar", x, 0)
    yield call("aten.sum.default", x)


# ---- normalisation and reductions


def _norms() -> Iterator[Op]:
    for dtype in ("float32", "bfloat16"):
        for r, w in spread(24, (128, 300_000), (48, 5000)):
            rows, width = rounded(r, 8), rounded(w, 16)
            x, one = tensor((rows, width), dtype), tensor((width,), dtype)
            kept = tensor((rows, 1), "float32")
            yield call("aten.native_layer_norm.default", x, [width], one, one, 1e-5)
            mask = [True, True, True]
            yield call("aten.native_layer_norm_backward.default", x, x, [width], kept, kept, one, one, mask)
            yield call("aten._softmax.default", x, -1, False)
            yield call("aten._softmax_backward_data.default", x, x, -1, {"dtype": dtype})
            yield call("aten.sum.dim_IntList", x, [0], True)
            yield call("aten.mean.dim", x, [-1], True)
            yield call("aten.add.Tensor", x, one)
            yield call("aten.mul.Tensor", x, tensor((rows, 1), dtype))
        for rows, width in ((2048, 1000), (4096, 30522), (8192, 50257), (16384, 50257)):
            x = tensor((rows, width), dtype)
            yield call("aten._log_softmax.default", x, 1, False)
            yield call("aten._log_softmax_backward_data.default", x, x, 1, {"dtype": dtype})
    for dtype in FLOATS:
        for n, c, h in spread(36, (1, 256), PART, PART):
            shape = (rounded(n, 1), one_of(WIDTHS[1:], c), one_of(SIDES, h), one_of(SIDES, h))
            for x in (tensor(shape, dtype), tensor(shape, dtype, channels_last(shape))):
                yield from _batch_norm(x)


def _batch_norm(x: TensorSpec) -> Iterator[Op]:
    c = tensor((x.shape[1],))
    mask = [True, True, True]
    yield call("aten.native_batch_norm.default", x, c, c, c, c, True, 0.1, 1e-5)
    yield call("aten.native_batch_norm.default", x, c, c, c, c, False, 0.1, 1e-5)
    yield call("aten.native_batch_norm_backward.default", x, x, c, c, c, c, c, True, 1e-5, mask)


# ---- convolutions


def _convolutions() -> Iterator[Op]:
    for dtype in FLOATS:
        for is_last in (False, True):
            for n, ci, co, h, k in spread(84, (1, 200), PART, PART, PART, PART):
                kernel = one_of((1, 1, 3, 3, 3, 5, 7), k)
                stride = 2 if k > 2.2 and kernel < 5 else 1
                sizes = (rounded(n, 1), one_of(WIDTHS, ci), one_of(WIDTHS, co), one_of(SIDES, h))
                yield from _convolution(2, *sizes, kernel, stride, dtype, is_last)
            for n, co, h, k in spread(10, (4, 200), (16, 128), PART, PART):
                kernel, stride = one_of(((7, 2), (3, 2), (3, 1), (4, 4), (16, 16)), k)
                sizes = (rounded(n, 2), 3, rounded(co, 16), one_of((64, 96, 128, 192, 224, 256, 384), h))
                yield from _convolution(2, *sizes, kernel, stride, dtype, is_last, is_first=True)
            for n, ci, co, d in spread(64, (1, 100), PART, PART, PART):
                sizes = (rounded(n, 1), one_of(WIDTHS[:12], ci), one_of(WIDTHS[:12], co), one_of(DEPTHS, d))
                if sizes[0] * max(sizes[1:3]) * sizes[3] ** 3 < 1.5e9:
                    yield from _convolution(3, *sizes, 3, 1, dtype, is_last)
            for n, ci, co, d in spread(12, (1, 80), (1, 8), (16, 64), PART):
                sizes = (rounded(n, 1), round(ci), rounded(co, 16), one_of(DEPTHS[5:], d))
                if sizes[0] * sizes[2] * sizes[3] ** 3 < 2e9:
                    yield from _convolution(3, *sizes, 3, 1, dtype, is_last, is_first=True)
            for n, c, h, k in spread(22, (4, 150), PART, PART, PART):
                width = one_of(WIDTHS[2:], c)
                sizes = (rounded(n, 2), width, width, one_of(SIDES[:16], h))
                yield from _convolution(2, *sizes, one_of((3, 5, 7), k), 1, dtype, is_last, groups=width)
            for n, c, h in spread(16, (2, 64), PART, PART):
                yield from _transposed(rounded(n, 1), one_of(WIDTHS[2:15], c), one_of(SIDES[:14], h), dtype, is_last)


def _convolution(
    dims: int,
    n: int,
    ci: int,
    co: int,
    side: int,
    kernel: int,
    stride: int,
    dtype: str,
    is_last: bool,
    groups: int = 1,
    is_first: bool = False,
) -> Iterator[Op]:
    shape, weight = (n, ci, *[side] * dims), (co, ci // groups, *[kernel] * dims)
    place = channels_last if is_last else None
    x = tensor(shape, dtype, place(shape) if place else None)
    w = tensor(weight, dtype, place(weight) if place else None)
    padding = kernel // 2 if stride < kernel or kernel == 1 else 0
    rest = ([stride] * dims, [padding] * dims, [1] * dims, False, [0] * dims, groups)
    forward = call("aten.convolution.default", x, w, None, *rest)
    yield forward
    (y,) = outputs_of(forward)
    if place:
        y = tensor(y.shape, dtype, place(y.shape))
    yield call("aten.convolution_backward.default", y, x, w, [0], *rest, [not is_first, True, False])


def _transposed(n: int, c: int, side: int, dtype: str, is_last: bool) -> Iterator[Op]:
    shape, weight = (n, c, side, side), (c, c // 2, 2, 2)
    place = channels_last if is_last else None
    x = tensor(shape, dtype, place(shape) if place else None)
    w = tensor(weight, dtype, place(weight) if place else None)
    rest = ([2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    forward = call("aten.convolution.default", x, w, tensor((c // 2,), dtype), *rest)
    yield forward
    (y,) = outputs_of(forward)
    if place:
        y = tensor(y.shape, dtype, place(y.shape))
    yield call("aten.convolution_backward.default", y, x, w, [c // 2], *rest, [True, True, True])


# ---- attention


def _attention() -> Iterator[Op]:
    for b, h, s, width in spread(24, (1, 64), (4, 32), (96, 4096), (40, 160)):
        shape = (rounded(b, 1), rounded(h, 1), rounded(s, 1 if s < 300 else 64), 64 if width < 90 else 128)
        for causal in (False, True):
            for dropout in (0.0, 0.1):
                for dtype in ("bfloat16", "float16"):
                    q = tensor(shape, dtype, heads_inside(shape))
                    yield from by_library(q, q, causal, dropout)
                q = tensor(shape, "float32", heads_inside(shape))
                yield from efficient(q, q, None, causal, dropout)
            for dtype in ("bfloat16", "float16"):
                q = tensor(shape, dtype, heads_inside(shape))
                yield from flash(q, q, causal)


# ---- movement


def _copies() -> Iterator[Op]:
    for dtype in ("float32", "bfloat16"):
        for b, h, s in spread(14, (2, 64), (8, 24), (64, 2048)):
            shape = (rounded(b, 1), rounded(h, 1), rounded(s, 16), 64)
            x = tensor(shape, dtype, heads_inside(shape))
            yield call("aten.clone.default", x, memory_format={"memory_format": "contiguous_format"})
            wide = tensor((shape[0], shape[2], shape[1] * 64), dtype)
            yield call("aten.cat.default", [wide, wide, wide], 2)
        for n, c, side in spread(12, (2, 128), (16, 512), (8, 192)):
            shape = (rounded(n, 1), rounded(c, 8), round(side), round(side))
            x = tensor(shape, dtype)
            last = tensor(shape, dtype, channels_last(shape))
            yield call("aten.clone.default", x, memory_format={"memory_format": "channels_last"})
            yield call("aten.clone.default", last, memory_format={"memory_format": "contiguous_format"})
            yield call("aten.add.Tensor", x, last)
            yield call("aten.cat.default", [x, x], 1)
            yield call("aten.mean.dim", x, [-1, -2], True)
            yield call("aten.sum.dim_IntList", x, [0, 2, 3])
        for size in (4**power for power in range(7, 15)):
            x = tensor((size,), dtype)
            yield call("aten.copy_.default", x, x)
            yield call("aten.clone.default", x)
            yield call("aten.cat.default", [x, x], 0)


# ---- optimizers


def _optimizers() -> Iterator[Op]:
    for c, e in spread(16, (6, 700), (2e5, 1.2e9)):
        count = round(c)
        # As in a network: half of the tensors are short, the others hold nearly all.
        wide = rounded(e / max(count // 2, 1), 64)
        x = [tensor((wide if place % 2 else 256,)) for place in range(count)]
        step = [tensor(()) for _ in range(count)]
        yield call("aten._foreach_add_.List", x, x, alpha=-0.001)
        yield call("aten._foreach_mul_.Scalar", x, 0.99)
        yield call("aten._foreach_lerp_.Scalar", x, x, 0.1)
        yield call("aten._foreach_addcmul_.Scalar", x, x, x, 0.001)
        yield call("aten._foreach_addcdiv_.ScalarList", x, x, x, [0.001] * count)
        yield call("aten._foreach_sqrt.default", x)
        yield call("aten._foreach_div_.ScalarList", x, [0.9] * count)
        yield call("aten._foreach_add_.Scalar", x, 1e-8)
        yield call("aten._foreach_add_.Scalar", step, 1)
        rest = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
        yield call("aten._fused_adamw_.default", x, x, x, x, [], step, **rest, amsgrad=False, maximize=False)


# ---- by index


def _indexed() -> Iterator[Op]:
    for dtype in ("float32", "bfloat16"):
        for r, t, w in spread(24, (100, 60_000), (128, 2_000_000), PART):
            rows, taken, width = round(r), round(t), one_of(WIDTHS[1:14], w)
            table, places = tensor((rows, width), dtype), tensor((taken,), "int64")
            values = tensor((taken, width), dtype)
            yield call("aten.embedding.default", table, places)
            yield call("aten.embedding_dense_backward.default", values, places, rows, -1, False)
            yield call("aten.index.Tensor", table, [places])
            yield call("aten.index_select.default", table, 0, places)
            yield call("aten.index_add_.default", table, 0, places, values)
            yield call("aten.index_put_.default", table, [places], values, True)
            yield call("aten._index_put_impl_.default", table, [places], values, True, True)


def _pools() -> Iterator[Op]:
    for dtype in ("float32", "bfloat16"):
        for n, c, side in spread(12, (2, 200), (16, 512), (14, 260)):
            shape = (rounded(n, 1), rounded(c, 8), rounded(side, 2), rounded(side, 2))
            for place in (contiguous, channels_last):
                x = tensor(shape, dtype, place(shape))
                for kernel, stride, padding in (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1])):
                    rest = (kernel, stride, padding, [1, 1], False)
                    forward = call("aten.max_pool2d_with_indices.default", x, *rest)
                    yield forward
                    y, at = (tensor(each.shape, each.dtype, place(each.shape)) for each in outputs_of(forward))
                    yield call("aten.max_pool2d_with_indices_backward.default", y, x, *rest, at)
        for n, c, side in spread(20, (1, 80), PART, PART):
            shape3 = (rounded(n, 1), one_of(WIDTHS[1:12], c), *[one_of(DEPTHS, side)] * 3)
            if math.prod(shape3) < 2e9:
                x = tensor(shape3, dtype)
                rest = ([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False)
                forward = call("aten.max_pool3d_with_indices.default", x, *rest)
                yield forward
                y, at = outputs_of(forward)
                yield call("aten.max_pool3d_with_indices_backward.default", y, x, *rest, at)


def _losses() -> Iterator[Op]:
    for rows, classes in ((64, 1000), (512, 1000), (4096, 30522), (16384, 50257), (100_000, 10)):
        x, y, one = tensor((rows, classes)), tensor((rows,), "int64"), tensor(())
        yield call("aten.nll_loss_forward.default", x, y, None, 1, -100)
        yield call("aten.nll_loss_backward.default", one, x, y, None, 1, -100, one)
    for size in (4**power for power in range(4, 14)):
        x, one = tensor((size,)), tensor(())
        yield call("aten.mse_loss.default", x, x)
        yield call("aten.mse_loss_backward.default", one, x, x, 1)


def _others() -> Iterator[Op]:
    """A few sizes of what some models use."""
    for dtype in ("float32", "bfloat16"):
        for n, c, h in spread(6, (2, 64), PART, PART):
            side = one_of(SIDES[2:18], h)
            shape = (rounded(n, 2), one_of(WIDTHS[1:12], c), side, side)
            x, twice = tensor(shape, dtype), tensor((*shape[:2], 2 * side, 2 * side), dtype)
            yield call("aten.roll.default", x, [-3, -3], [2, 3])
            yield call("aten.constant_pad_nd.default", x, [1, 1, 1, 1], 0.0)
            yield call("aten.avg_pool2d.default", x, [2, 2], [2, 2])
            yield call("aten._adaptive_avg_pool2d.default", x, [1, 1])
            yield call("aten.upsample_nearest2d.default", x, [2 * side, 2 * side], 2.0, 2.0)
            yield call("aten.upsample_bilinear2d.default", x, [2 * side, 2 * side], False, 2.0, 2.0)
            yield call("aten.upsample_bilinear2d_backward.default", twice, [2 * side] * 2, list(shape), False, 2.0, 2.0)
            groups, count, places = 8, shape[0], side * side
            scale, kept = tensor((shape[1],), dtype), tensor((count, groups), dtype)
            yield call("aten.native_group_norm.default", x, scale, scale, count, shape[1], places, groups, 1e-5)
            yield call(
                "aten.native_group_norm_backward.default",
                *(x, x, kept, kept, scale, count, shape[1], places, groups, [True, True, True]),
            )
        for size in (4**power for power in range(6, 14)):
            x = tensor((size,), dtype)
            yield call("aten.hardswish.default", x)
            yield call("aten.hardswish_backward.default", x, x)
            yield call("aten.sigmoid_backward.default", x, x)
            yield call("aten.rsqrt.default", x)
            yield call("aten.exp.default", x)
            yield call("aten.masked_fill.Scalar", x, tensor((size,), "bool"), 0.0)
            yield call("aten.cumsum.default", x, 0)
            yield call("aten.mean.default", x)
    for rows, length in ((64, 256), (256, 1024), (1024, 1024), (4096, 4096), (256, 65536)):
        x = tensor((rows, length))
        yield call("aten.topk.default", x, 8, 1)
        yield call("aten.sort.default", x, 1)
        yield call("aten._fft_r2c.default", x, [1], 0, True)
        yield call("aten._fft_c2c.default", tensor((rows, length), "complex64"), [0, 1], 0, True)
