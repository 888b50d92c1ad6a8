"""What calls are compared by: how tensors lie to one another, what a reduction takes away, which way a network runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairmile.perf.compute.features import bias_bytes, features_of, recurrence, strain
from fairmile.perf.compute.samples import call
from fairmile.perf.compute.signatures import tensor
from fairmile.perf.compute.work import work_of
from fairmile.perf.steps import Op, TensorSpec


def marks(op: Op) -> tuple[str, ...]:
    return features_of(op, work_of(op)).marks


def pattern(*tensors: TensorSpec) -> str:
    return marks(call("aten.add.Tensor", *tensors))[1]


def test_tensors_without_gaps_in_one_order_are_dense() -> None:
    turned = tensor((8, 4, 6, 6), strides=(144, 1, 24, 4))
    assert pattern(tensor((8, 16)), tensor((8, 16))) == "dense"
    assert pattern(turned, turned) == "dense"


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
    assert marks(smooth) == ("1", "") and marks(odd) == ("1", "odd")
    assert features_of(smooth, work_of(smooth)).family == "_fft_c2c complex64"


def network(mode: int, dtype: str, hidden: int, layers: int = 1, wide: int = 128, is_batch_first: bool = False) -> Op:
    gates = {2: 4, 3: 3}.get(mode, 1)
    weights = [tensor((gates * hidden, wide), dtype), tensor((gates * hidden, hidden), dtype)]
    state = tensor((layers, 64, hidden), dtype)
    x = tensor((64, 30, wide) if is_batch_first else (30, 64, wide), dtype)
    rest: tuple[Any, ...] = (mode, hidden, 0, layers, is_batch_first, 0.0, True, False, [], None)
    return call("aten._cudnn_rnn.default", x, weights, 4, None, state, state, *rest)


@pytest.mark.parametrize(
    ("mode", "dtype", "hidden", "layers", "way"),
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


def convolved(bias: TensorSpec | None) -> Op:
    x, w, y = tensor((2, 8, 6, 6)), tensor((16, 8, 3, 3)), tensor((2, 16, 4, 4))
    rest: tuple[Any, ...] = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return replace(call("aten.convolution.default", x, w, bias, *rest), outputs=(y,))


def test_a_bias_is_added_by_reading_and_writing_the_whole_output() -> None:
    assert bias_bytes(convolved(tensor((16,)))) == 2 * (2 * 16 * 4 * 4) * 4
    assert bias_bytes(convolved(None)) == 0
    assert bias_bytes(call("aten.relu.default", tensor((3,)))) == 0


def strained(op: Op) -> float:
    return strain(op, work_of(op), 132)


def test_a_batch_of_few_tiles_leaves_most_of_a_device_idle_and_a_single_product_does_not() -> None:
    few, many = (call("aten.bmm.default", tensor((n, 48, 8448)), tensor((n, 8448, 48))) for n in (11, 400))
    assert (strained(few), strained(many)) == (12, 1)
    assert strained(call("aten.mm.default", tensor((48, 8448)), tensor((8448, 48)))) == 1


@pytest.mark.parametrize(
    ("kernel", "length", "width", "times"),
    [("cudnn", 256, 64, 1), ("cudnn", 64, 64, 4), ("cudnn", 256, 8, 8), ("flash", 256, 8, 4), ("efficient", 64, 8, 1)],
)
def test_fused_attention_fills_up_its_blocks(kernel: str, length: int, width: int, times: float) -> None:
    q = tensor((2, 4, length, width), "bfloat16")
    assert strained(call(f"aten._scaled_dot_product_{kernel}_attention.default", q, q, q)) == times
