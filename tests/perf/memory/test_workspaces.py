"""What libraries take while an operator runs: figures are those seen on one H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairmile.perf.memory.recurrent import RecurrentCall, recurrent_workspace_bytes, reserve_bytes
from fairmile.perf.memory.reductions import Multiprocessors, reduction_bytes
from fairmile.perf.memory.workspaces import Group, Workspaces, library_rules
from fairmile.perf.steps import Op, TensorSpec

H200 = Multiprocessors(132, 2048)


def tensor(*shape: int, dtype: str = "float32", last: bool = False) -> TensorSpec:
    strides, step = [0] * len(shape), 1
    order = [1, *range(len(shape) - 1, 1, -1), 0] if last else range(len(shape) - 1, -1, -1)
    for number in order:
        strides[number] = step
        step *= shape[number]
    return TensorSpec(shape, tuple(strides), dtype, 0)


def taken(
    name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *arguments: object
) -> tuple[Group, ...]:
    op = Op(f"aten.{name}", "forward", "", inputs, outputs, arguments)
    return Workspaces("hopper", 132).of(op)


@pytest.mark.parametrize(
    ("shape", "dims", "seen"),
    [
        ((16384, 2304), [0], (139_198_464, 72)),
        ((65536, 4096), [0], (138_412_032, 128)),
        ((8192, 4096), [0], (138_412_032, 128)),
        ((4096, 6400), [0], (140_902_400, 200)),
        ((32768, 1024), [0, 1], (2112, 4)),
        ((65536, 1), [0], (0, 0)),
        ((100, 10), [0], (0, 0)),
    ],
)
def test_sums_over_many_rows_take_partial_sums(shape: tuple[int, ...], dims: list[int], seen: tuple[int, int]) -> None:
    assert reduction_bytes(shape, (shape[1], 1), dims, H200) == seen


def test_fewer_processors_share_an_output_among_fewer_blocks() -> None:
    assert reduction_bytes((16384, 2304), (2304, 1), [0], Multiprocessors(108, 2048))[0] < 139_198_464


def test_a_convolution_with_channels_first_copies_input_output_and_weight() -> None:
    x, w, y = tensor(4, 4, 128, 128, 128), tensor(32, 4, 3, 3, 3), tensor(4, 32, 128, 128, 128)
    one = [1, 1, 1]
    (group,) = taken(
        "convolution.default", (x, w), (y,), {"tensor": 0}, {"tensor": 1}, None, one, one, one, False, one, 1
    )
    assert group == Group(1, (1_207_973_392,))


def test_a_convolution_of_another_batch_copies_in_proportion() -> None:
    x, w, y = tensor(24, 4, 128, 128, 128), tensor(32, 4, 3, 3, 3), tensor(24, 32, 128, 128, 128)
    one = [1, 1, 1]
    (group,) = taken(
        "convolution.default", (x, w), (y,), {"tensor": 0}, {"tensor": 1}, None, one, one, one, False, one, 1
    )
    assert group.sizes_bytes[0] == pytest.approx(6 * 1_207_973_392, rel=0.001)


def test_a_convolution_with_channels_last_needs_next_to_nothing() -> None:
    x, w, y = (
        tensor(*shape, dtype="bfloat16", last=True) for shape in ((8, 64, 128, 128), (64, 64, 3, 3), (8, 64, 128, 128))
    )
    groups = taken(
        "convolution.default",
        (x, w),
        (y,),
        {"tensor": 0},
        {"tensor": 1},
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    )
    assert sum(sum(group.sizes_bytes) for group in groups) < 4096


def convolution(x: TensorSpec, w: TensorSpec, y: TensorSpec) -> int:
    one = [1, 1]
    groups = taken("convolution.default", (x, w), (y,), {}, {}, None, one, one, one, False, [0, 0], 1)
    return sum(sum(group.sizes_bytes) for group in groups)


def test_with_channels_last_half_precision_copies_only_channels_that_are_no_multiple_of_eight() -> None:
    shapes = (12, 64, 1024, 1024), (3, 64, 3, 3), (12, 3, 1024, 1024)
    padded = convolution(*(tensor(*shape, dtype="bfloat16", last=True) for shape in shapes))
    assert padded - 12 * 8 * 1024 * 1024 * 2 == pytest.approx(8 * 64 * 9 * 2, abs=1024)


def gradient_of_weight(x: TensorSpec, w: TensorSpec, g: TensorSpec, stride: int = 1) -> int:
    by, one = [stride, stride], [1, 1]
    arguments: tuple[object, ...] = ({}, {}, {}, [0], by, [0, 0], one, False, [0, 0], 1, [False, True, False])
    (group,) = taken("convolution_backward.default", (g, x, w), (w,), *arguments)
    return sum(group.sizes_bytes)


def test_partial_gradients_of_a_weight_do_not_grow_with_it() -> None:
    x, w, g = tensor(12, 256, 160, 240), tensor(512, 256, 2, 2), tensor(12, 512, 80, 120)
    copies = sum(each.elements * 4 for each in (x, w, g))
    assert copies < gradient_of_weight(x, w, g, stride=2) < copies + 20e6


def test_gradients_by_sample_give_way_to_copies_where_they_would_be_many_times_larger() -> None:
    x, w, g = tensor(64, 1280, 8, 8), tensor(320, 1280, 1, 1), tensor(64, 320, 8, 8)
    assert gradient_of_weight(x, w, g) == (x.elements + g.elements) * 4


def test_a_transform_copies_a_batch_that_is_no_single_run_of_memory() -> None:
    spectrum = TensorSpec((16, 32, 128, 65), (266240, 8320, 65, 1), "complex64", 0)
    turned = tensor(16, 32, 128, 128, last=True)
    assert taken("_fft_r2c.default", (tensor(16, 32, 128, 128),), (spectrum,), {}, [2, 3], 0, True) == ()
    assert taken("_fft_r2c.default", (turned,), (spectrum,), {}, [2, 3], 0, True) == (Group(1, (33_554_432,)),)


def test_a_transform_to_real_numbers_always_copies_and_twice_where_channels_are_last() -> None:
    first = TensorSpec((16, 32, 128, 65), (266240, 8320, 65, 1), "complex64", 0)
    assert taken("_fft_c2r.default", (first,), (), {}, [2, 3], 2, 128) == (Group(1, (34_078_720,)),)
    last = TensorSpec((8, 32, 33, 384), (405504, 12672, 384, 1), "complex64", 0)
    assert taken("_fft_c2r.default", (last,), (), {}, [1, 2], 1, 64) == (Group(1, (25_952_256, 25_952_256)),)


def test_the_backward_convolution_works_for_each_gradient_in_turn() -> None:
    g, x, w = tensor(32, 64, 56, 56), tensor(32, 64, 56, 56), tensor(64, 64, 3, 3)
    arguments: tuple[object, ...] = ({}, {}, {}, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    groups = taken("convolution_backward.default", (g, x, w), (x, w), *arguments)
    assert groups == (Group(1, (51_527_696,)), Group(2, (53_592_743,)))


def test_without_the_gradient_of_the_input_only_the_weight_is_worked_for() -> None:
    g, x, w = tensor(32, 64, 56, 56), tensor(32, 64, 56, 56), tensor(64, 64, 3, 3)
    arguments: tuple[object, ...] = ({}, {}, {}, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    assert taken("convolution_backward.default", (g, x, w), (w,), *arguments) == (Group(1, (53_592_743,)),)


def test_the_gradient_of_a_softmax_takes_a_product_of_its_size() -> None:
    x = tensor(32, 12, 256, 256)
    assert taken("_softmax_backward_data.default", (x, x), (x,), {}, {}, -1) == (Group(1, (100_663_296,)),)


def test_attention_backward_sums_query_gradients_in_float32() -> None:
    q = tensor(16, 12, 1024, 64, dtype="bfloat16")
    groups = taken("_scaled_dot_product_cudnn_attention_backward.default", (q, q, q, q), (q, q, q))
    assert groups == (Group(3, (51_118_336,)),)
    s = tensor(64, 12, 197, 64)
    efficient = taken("_scaled_dot_product_efficient_attention_backward.default", (s, s, s, s), (s, s, s))
    assert efficient == (Group(3, (38_731_776, 605_184, 605_184)), Group(3, (605_184, 50_380_800)))


def test_the_gradient_of_an_embedding_sorts_and_keeps_partial_sums() -> None:
    g, i = tensor(4, 1024, 1600), tensor(4, 1024, dtype="int64")
    groups = taken("embedding_dense_backward.default", (g, i), (tensor(50257, 1600),), {}, {}, 50257, -1, False)
    assert groups[-1].sizes_bytes[-1] == 28_832_000
    few = taken(
        "embedding_dense_backward.default", (tensor(1024, 1600), tensor(1024, dtype="int64")), (g,), {}, {}, 1024
    )
    assert few == ()


def test_operators_without_a_rule_take_nothing() -> None:
    assert taken("add.Tensor", (tensor(1000, 1000),), (tensor(1000, 1000),)) == ()


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (RecurrentCall("lstm", "float32", 2, 1, True, 70, 64, 650, 650), 128_492_256),
        (RecurrentCall("lstm", "float32", 2, 1, False, 104, 256, 1024, 64), 1_199_571_200),
        (RecurrentCall("lstm", "bfloat16", 3, 2, True, 128, 64, 512, 64), 289_407_232),
        (RecurrentCall("gru", "float32", 2, 1, False, 104, 256, 1024, 64), 1_417_675_008),
        (RecurrentCall("rnn", "float32", 3, 2, True, 128, 64, 512, 64), 171_966_720),
    ],
)
def test_a_recurrent_layer_keeps_its_gates(call: RecurrentCall, seen: int) -> None:
    assert reserve_bytes(call) == seen


def test_a_projected_layer_also_keeps_its_state_before_the_projection() -> None:
    plain = RecurrentCall("lstm", "float32", 2, 2, False, 200, 96, 768, 128)
    projected = replace(plain, projection=256)
    assert reserve_bytes(projected) - reserve_bytes(plain) == 2 * 2 * 200 * 96 * 768 * 4
    assert projected.weight_bytes == 7_888_896 * 4


def test_a_recurrent_workspace_that_was_measured_is_found_again() -> None:
    call = RecurrentCall("lstm", "float32", 2, 1, True, 70, 64, 650, 650)
    assert recurrent_workspace_bytes(call, "cudnn_rnn_hopper.csv") == 128_681_984
    twice = RecurrentCall("lstm", "float32", 2, 1, True, 140, 64, 650, 650)
    assert recurrent_workspace_bytes(twice, "cudnn_rnn_hopper.csv") == 128_681_984 + 5 * 11_648_000


@pytest.mark.parametrize("layers", [6, 8])
def test_each_recurrent_layer_takes_room_for_its_products(layers: int) -> None:
    call = RecurrentCall("lstm", "bfloat16", layers, 1, False, 64, 16, 128, 32)
    less = replace(call, layers=layers - 1)
    more = recurrent_workspace_bytes(call, "cudnn_rnn_hopper.csv")
    assert more - recurrent_workspace_bytes(less, "cudnn_rnn_hopper.csv") == pytest.approx(8 << 20, rel=0.1)


def test_rules_of_unmeasured_architectures_say_so() -> None:
    assert library_rules("hopper").verified
    assert not library_rules("ampere").verified
    assert library_rules("ampere").blas_handle_bytes < library_rules("hopper").blas_handle_bytes
    assert not library_rules("something new").verified


def test_empty_tensors_need_no_workspace() -> None:
    x, w, y = tensor(0, 64, 56, 56), tensor(64, 64, 3, 3), tensor(0, 64, 56, 56)
    one = [1, 1]
    assert taken("convolution.default", (x, w), (y,), {}, {}, None, one, one, one, False, one, 1) == ()
    assert (
        recurrent_workspace_bytes(RecurrentCall("lstm", "float32", 1, 1, False, 0, 8, 64, 64), "cudnn_rnn_hopper.csv")
        == 0
    )
    assert reduction_bytes((0, 10), (10, 1), [0], H200) == (0, 0)
