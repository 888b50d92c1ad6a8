"""What calls are compared by: how tensors lie to one another, what a reduction takes away, which way a network runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import for_each

from fairmile.costs.devices import device
from fairmile.costs.operators.features import (
    bias_s,
    channels_last,
    compute_dtype,
    features_of,
    idling,
    indexing_s,
    recurrence,
    strain,
)
from fairmile.costs.operators.samples import call
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import Op, TensorSpec


def marks(op: Op) -> tuple[str, ...]:
    return features_of(op, work_of(op)).marks


def pattern(*tensors: TensorSpec) -> str:
    return marks(call("aten.add.Tensor", *tensors))[1]


def test_tensors_without_gaps_in_one_order_are_dense() -> None:
    turned = tensor((8, 4, 6, 6), strides=(144, 1, 24, 4))
    assert pattern(tensor((8, 16)), tensor((8, 16))) == "dense"
    assert pattern(turned, turned) == "dense"


def test_a_product_of_integers_of_a_byte_computes_in_them() -> None:
    assert compute_dtype(call("aten._int_mm.default", tensor((64, 64), "int8"), tensor((64, 64), "int8"))) == "int8"
    assert compute_dtype(call("aten.add.Tensor", tensor((64, 64), "int8"), tensor((64, 64), "int8"))) == "float32"


def test_parts_of_rows_are_not_what_is_turned_round() -> None:
    whole = tensor((8, 4, 6, 6))
    assert pattern(whole, tensor((8, 4, 6, 6), strides=(288, 36, 6, 1))) == "rows"
    assert pattern(whole, tensor((8, 4, 6, 6), strides=(144, 1, 24, 4))) == "crossed"


def test_what_is_repeated_inside_is_told_from_what_is_repeated_outside() -> None:
    assert pattern(tensor((64, 32)), tensor((64, 1))) == "inner"
    assert pattern(tensor((64, 32)), tensor((32,))) == "outer"


def test_sums_over_rows_and_over_columns_are_two_things() -> None:
    x = tensor((64, 32))
    assert marks(call("aten.sum.dim_IntList", x, [1]))[3] == "inner"
    assert marks(call("aten.sum.dim_IntList", x, [0], True))[3] == "outer"


def test_pools_of_two_sizes_are_two_things() -> None:
    x, rest = tensor((1, 2, 8, 8)), ([2, 2], [0, 0], [1, 1], False)
    small, large = (call("aten.max_pool2d_with_indices.default", x, [k, k], *rest) for k in (2, 3))
    assert marks(small)[3] != marks(large)[3]


def test_a_transform_of_a_prime_length_is_another_thing() -> None:
    smooth, odd = (call("aten._fft_c2c.default", tensor((4, n), "complex64"), [1], 0, True) for n in (60, 61))
    assert marks(smooth) == ("1", "", "inner") and marks(odd) == ("1", "odd", "inner")
    assert features_of(smooth, work_of(smooth)).family == "_fft_c2c complex64"


def test_a_transform_along_an_outer_side_is_another_thing() -> None:
    inner, outer = (call("aten._fft_c2c.default", tensor((8, 8, 8), "complex64"), [axis], 0, True) for axis in (2, 1))
    assert marks(inner)[2] == "inner" and marks(outer)[2] == "outer"


def test_channels_of_one_group_are_what_is_aligned() -> None:
    def last_numbers(width: int, groups: int) -> tuple[float, ...]:
        x, w = tensor((2, width, 8, 8)), tensor((width, width // groups, 3, 3))
        op = call("aten.convolution.default", x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        op = replace(op, outputs=(x,))
        return features_of(op, work_of(op)).numbers[8:10]

    assert last_numbers(192, 8) == last_numbers(24, 1) != last_numbers(192, 1)


def norm(name: str, x: TensorSpec, *rest: Any) -> float:
    op = replace(call(f"aten.{name}.default", x, *rest), outputs=(x,))
    return idling(op, work_of(op), 132)


def test_a_batch_of_few_channels_that_lie_apart_leaves_multiprocessors_idle() -> None:
    each, shape = tensor((16,)), (8, 16, 32, 32)
    rest = (each, each, each, each, True, 0.1, 1e-5)
    assert norm("native_batch_norm", tensor(shape), *rest) == 132 / 16
    assert norm("native_batch_norm", tensor(shape, strides=(16384, 1, 512, 16)), *rest) == 1.0
    assert norm("native_batch_norm", tensor(shape), *rest[:4], False, 0.1, 1e-5) == 1.0
    assert norm("native_batch_norm", tensor((8, 256, 4, 4)), *[tensor((256,))] * 4, True, 0.1, 1e-5) == 1.0


def test_few_groups_and_few_rows_leave_multiprocessors_idle() -> None:
    x, each = tensor((3, 64, 1000)), tensor((64,))
    assert norm("native_group_norm", x, each, each, 3, 64, 1000, 2, 1e-5) == 132 / 6
    assert norm("native_layer_norm", tensor((11, 5000)), [5000], None, None, 1e-5) == 12.0
    assert norm("native_layer_norm", tensor((4096, 50)), [50], None, None, 1e-5) == 1.0


def network(mode: int, dtype: str, hidden: int, layers: int = 1, wide: int = 128, is_batch_first: bool = False) -> Op:
    gates = {2: 4, 3: 3}.get(mode, 1)
    weights = [tensor((gates * hidden, wide), dtype), tensor((gates * hidden, hidden), dtype)]
    state = tensor((layers, 64, hidden), dtype)
    x = tensor((64, 30, wide) if is_batch_first else (30, 64, wide), dtype)
    rest: tuple[Any, ...] = (mode, hidden, 0, layers, is_batch_first, 0.0, True, False, [], None)
    return call("aten._cudnn_rnn.default", x, weights, 4, None, state, state, *rest)


@for_each(
    "mode, dtype, hidden, layers, way",
    [
        (2, "float32", 192, 2, "small"),
        (2, "float32", 256, 1, "standard"),
        (1, "float32", 384, 1, "small"),
        (2, "bfloat16", 64, 1, "standard"),
        (2, "float16", 512, 1, "static"),
        (2, "float16", 512, 2, "standard"),
        (3, "float16", 512, 1, "standard"),
    ],
)
def test_the_way_a_recurrent_network_runs_follows_type_kind_and_width(
    mode: int, dtype: str, hidden: int, layers: int, way: str
) -> None:
    found = recurrence(network(mode, dtype, hidden, layers))
    assert found is not None and found.way == way


def test_batch_and_length_change_places_where_the_batch_comes_first() -> None:
    for is_batch_first in (False, True):
        found = recurrence(network(2, "float32", 256, is_batch_first=is_batch_first))
        assert found is not None and (found.length, found.batch, found.hidden) == (30, 64, 256)


def test_another_operator_is_no_recurrent_network() -> None:
    assert recurrence(call("aten.relu.default", tensor((3,)))) is None


def test_a_projection_of_a_recurrent_network_is_seen() -> None:
    plain = network(2, "float32", 256)
    projected = replace(plain, arguments=(*plain.arguments[:8], 64, *plain.arguments[9:]))
    told = [recurrence(op) for op in (plain, projected)]
    assert [each is not None and each.is_projected for each in told] == [False, True]


def convolved(bias: TensorSpec | None, batch: int = 2) -> Op:
    x, w, y = tensor((batch, 8, 6, 6)), tensor((16, 8, 3, 3)), tensor((batch, 16, 4, 4))
    rest: tuple[Any, ...] = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return replace(call("aten.convolution.default", x, w, bias, *rest), outputs=(y,))


def test_a_bias_takes_a_kernel_of_its_own_that_grows_with_the_output() -> None:
    one, many = (bias_s(convolved(tensor((16,)), batch), device("h200")) for batch in (2, 8))
    assert many == pytest.approx(4 * one)
    assert bias_s(convolved(None), device("h200")) == 0
    assert bias_s(call("aten.relu.default", tensor((3,))), device("h200")) == 0


def backward(y: TensorSpec, x: TensorSpec, w: TensorSpec, mask: list[bool]) -> Op:
    dims = len(y.shape) - 2
    rest: tuple[Any, ...] = ([1] * dims, [1] * dims, [1] * dims, False, [0] * dims, 1)
    return call("aten.convolution_backward.default", y, x, w, [y.shape[1]], *rest, mask)


def volumes(side: int) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return tensor((2, 32, side, side, side)), tensor((2, 4, side, side, side)), tensor((32, 4, 3, 3, 3))


def test_the_gradient_of_a_bias_is_summed_beside_the_others_only_where_it_is_asked_for() -> None:
    y, x, w = volumes(128)
    assert bias_s(backward(y, x, w, [True, True, False]), device("h200")) == 0
    apart = bias_s(backward(y, x, w, [True, True, True]), device("h200"))
    last = bias_s(backward(channels_last(y), x, w, [True, True, True]), device("h200"))
    assert y.elements * 4 / device("h200").bandwidth_ceiling < last < apart


def test_one_tensor_with_its_channels_innermost_decides_how_a_convolution_is_worked_out() -> None:
    y, x, w = volumes(8)
    marks = [
        features_of(op, work_of(op)).marks[0]
        for op in (backward(y, x, w, [True, True, False]), backward(channels_last(y), x, w, [True, True, False]))
    ]
    assert marks == ["first", "last"]


def test_gradients_of_volumes_are_compared_with_those_whose_sides_are_powers_of_two_too() -> None:
    odd, even = (features_of(op, work_of(op)) for op in (backward(*volumes(s), [False, True, False]) for s in (12, 16)))
    assert odd.marks[-1] != even.marks[-1] and even.weights[-1] > 0
    flat = convolved(None)
    assert features_of(flat, work_of(flat)).weights[-1] == 0


def strained(op: Op) -> float:
    return strain(op, work_of(op), 132)


def test_a_batch_of_few_tiles_leaves_most_of_a_device_idle_and_a_single_product_does_not() -> None:
    few, many = (call("aten.bmm.default", tensor((n, 48, 8448)), tensor((n, 8448, 48))) for n in (11, 400))
    assert (strained(few), strained(many)) == (12, 1)
    assert strained(call("aten.mm.default", tensor((48, 8448)), tensor((8448, 48)))) == 1


@for_each(
    "kernel, length, width, times",
    [("cudnn", 256, 64, 1), ("cudnn", 64, 64, 4), ("cudnn", 256, 8, 8), ("flash", 256, 8, 4), ("efficient", 64, 8, 1)],
)
def test_fused_attention_fills_up_its_blocks(kernel: str, length: int, width: int, times: float) -> None:
    q = tensor((2, 4, length, width), "bfloat16")
    assert strained(call(f"aten._scaled_dot_product_{kernel}_attention.default", q, q, q)) == times


def picked(places: TensorSpec, rows: int, width: int, name: str = "index_select") -> Op:
    """Return a call that picks rows of a table."""
    shape = (rows, width) if width else (rows,)
    op = call(f"aten.{name}.default", tensor((500, *shape[1:])), 0, places)
    return replace(op, outputs=(tensor(shape),))


def seconds(op: Op, moving_s: float = 1e-6, multiprocessors: int = 132) -> float:
    return indexing_s(op, work_of(op), moving_s, multiprocessors)


MILLION = tensor((1_000_000,), "int64")


def test_gathered_rows_take_their_number_however_short_they_are() -> None:
    short, longer = (picked(MILLION, 1_000_000, width) for width in (8, 64))
    assert seconds(short) == seconds(longer) > 5e-4
    assert seconds(longer, moving_s=1.0) == 1.0, "long rows take the time of their bytes"
    assert seconds(short, multiprocessors=66) == 2 * seconds(short)


def test_numbers_that_are_no_whole_rows_take_the_time_of_their_bytes() -> None:
    assert seconds(picked(MILLION, 1_000_000, 0)) == 1e-6


def test_an_index_that_is_expanded_along_rows_names_each_once() -> None:
    expanded = picked(tensor((1000, 64), "int64", strides=(1, 0)), 1000, 64, "gather")
    assert seconds(expanded, 0.0) == seconds(picked(tensor((1000,), "int64"), 1000, 64), 0.0)


def test_sums_into_rows_are_atomic_and_slower_in_short_types() -> None:
    def added(dtype: str) -> Op:
        rows = tensor((1_000_000, 64), dtype)
        return call("aten.index_add_.default", tensor((500, 64), dtype), 0, MILLION, rows)

    assert seconds(added("bfloat16")) > seconds(added("float32")) > 4e-4
