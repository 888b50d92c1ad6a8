"""What libraries take while an operator runs: figures are those seen on one H200."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.costs.steps import Op, TensorSpec
from fairmile.predict.memory.reductions import Multiprocessors, reduction_bytes
from fairmile.predict.memory.workspaces import BlockGroup, Workspaces, library_rules

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
) -> tuple[BlockGroup, ...]:
    op = Op(f"aten.{name}", "forward", "", inputs, outputs, arguments)
    return Workspaces("hopper", 132).of(op)


@for_each(
    "shape, dims, seen",
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
    assert group == BlockGroup(1, (1_207_973_392,))


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


def test_strides_tell_where_the_channels_are_also_where_there_is_one() -> None:
    weight, out = tensor(64, 1, 3, 3, dtype="bfloat16"), tensor(64, 64, 224, 224, dtype="bfloat16")
    first = convolution(tensor(64, 1, 224, 224, dtype="bfloat16"), weight, out)
    last = convolution(tensor(64, 1, 224, 224, dtype="bfloat16", last=True), weight, out)
    assert (first, last) == (0, 51_389_456)


def test_winograd_takes_its_transforms_of_input_output_and_weight() -> None:
    x, w, g = tensor(96, 48, 7, 7), tensor(128, 48, 3, 3), tensor(96, 128, 7, 7)
    assert gradient_of_weight(x, w, g) == 36 * 4 * (96 * 4 * (48 + 128) + 48 * 128)


def test_channels_of_each_group_are_padded() -> None:
    x, w, y = tensor(96, 72, 56, 56, last=True), tensor(72, 24, 3, 3, last=True), tensor(96, 72, 56, 56, last=True)
    one = [1, 1]
    (group,) = taken("convolution.default", (x, w), (y,), {}, {}, None, one, one, one, False, [0, 0], 3)
    assert group.sizes_bytes[0] == pytest.approx((x.elements + y.elements) * 4 * 32 / 24, rel=0.001)


@for_each(
    "shape, dtype, forward, backward",
    [
        ((256, 64, 32, 32), "float32", 2_114_612, 1_399_332),
        ((96, 72, 112, 112), "float32", 19_419_192, 12_846_120),
        ((8, 64, 512, 512), "float16", 6_764_804, 11_186_212),
        ((64, 2048, 7, 7), "bfloat16", 425_984 + 256, 212_992 + 256),
        ((16, 64, 96, 96), "bfloat16", 131_072 + 8, 65_536 + 8),
    ],
)
def test_batch_norm_of_channels_that_lie_last_takes_a_workspace(
    shape: tuple[int, ...], dtype: str, forward: int, backward: int
) -> None:
    x = tensor(*shape, dtype=dtype, last=True)
    (group,) = taken("native_batch_norm.default", (x,), (x,), {}, {}, {}, {}, {}, True, 0.1, 1e-5)
    assert sum(group.sizes_bytes) == pytest.approx(forward, rel=0.001)
    (group,) = taken("native_batch_norm_backward.default", (x, x), (x,), {}, {}, {}, {}, {}, {}, {}, True, 1e-5, [])
    assert sum(group.sizes_bytes) == pytest.approx(backward, rel=0.001)
    first = tensor(*shape, dtype=dtype)
    assert taken("native_batch_norm.default", (first,), (first,), {}, {}, {}, {}, {}, True, 0.1, 1e-5) == ()
    assert taken("native_batch_norm.default", (x,), (x,), {}, {}, {}, {}, {}, False, 0.1, 1e-5) == ()


def test_the_backward_of_a_norm_holds_a_copy_of_a_gradient_that_does_not_lie_in_order() -> None:
    turned, x = TensorSpec((8, 32, 64), (2048, 1, 32), "float32", 0), tensor(8, 32, 64)
    groups = taken("native_layer_norm_backward.default", (turned, x), (x,), {}, {}, [64])
    assert groups == (BlockGroup(3, (8 * 32 * 64 * 4,), until="end"),)
    assert taken("native_layer_norm_backward.default", (x, x), (x,), {}, {}, [64]) == ()


def test_a_transform_copies_a_batch_that_is_no_single_run_of_memory() -> None:
    spectrum = TensorSpec((16, 32, 128, 65), (266240, 8320, 65, 1), "complex64", 0)
    turned = tensor(16, 32, 128, 128, last=True)
    assert taken("_fft_r2c.default", (tensor(16, 32, 128, 128),), (spectrum,), {}, [2, 3], 0, True) == ()
    assert taken("_fft_r2c.default", (turned,), (spectrum,), {}, [2, 3], 0, True) == (BlockGroup(1, (33_554_432,)),)


def test_a_transform_to_real_numbers_always_copies_and_twice_where_channels_are_last() -> None:
    first = TensorSpec((16, 32, 128, 65), (266240, 8320, 65, 1), "complex64", 0)
    assert taken("_fft_c2r.default", (first,), (), {}, [2, 3], 2, 128) == (BlockGroup(1, (34_078_720,)),)
    last = TensorSpec((8, 32, 33, 384), (405504, 12672, 384, 1), "complex64", 0)
    assert taken("_fft_c2r.default", (last,), (), {}, [1, 2], 1, 64) == (BlockGroup(1, (25_952_256, 25_952_256)),)


def test_the_backward_convolution_works_for_each_gradient_in_turn() -> None:
    g, x, w = tensor(32, 64, 56, 56), tensor(32, 64, 56, 56), tensor(64, 64, 3, 3)
    arguments: tuple[object, ...] = ({}, {}, {}, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    groups = taken("convolution_backward.default", (g, x, w), (x, w), *arguments)
    assert groups == (BlockGroup(1, (51_527_696,)), BlockGroup(2, (53_592_743,)))


def test_without_the_gradient_of_the_input_only_the_weight_is_worked_for() -> None:
    g, x, w = tensor(32, 64, 56, 56), tensor(32, 64, 56, 56), tensor(64, 64, 3, 3)
    arguments: tuple[object, ...] = ({}, {}, {}, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    assert taken("convolution_backward.default", (g, x, w), (w,), *arguments) == (BlockGroup(1, (53_592_743,)),)


def test_the_gradient_of_a_softmax_takes_a_product_of_its_size() -> None:
    x = tensor(32, 12, 256, 256)
    assert taken("_softmax_backward_data.default", (x, x), (x,), {}, {}, -1) == (BlockGroup(1, (100_663_296,)),)


def test_attention_backward_sums_query_gradients_in_float32() -> None:
    q = tensor(16, 12, 1024, 64, dtype="bfloat16")
    groups = taken("_scaled_dot_product_cudnn_attention_backward.default", (q, q, q, q), (q, q, q))
    assert groups == (BlockGroup(3, (51_118_336,)),)
    s = tensor(64, 12, 197, 64)
    efficient = taken("_scaled_dot_product_efficient_attention_backward.default", (s, s, s, s), (s, s, s))
    assert efficient == (BlockGroup(3, (38_731_776, 605_184, 605_184)), BlockGroup(3, (605_184, 50_380_800)))


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


def test_rules_of_unmeasured_architectures_say_so() -> None:
    assert library_rules("hopper").verified
    assert not library_rules("ampere").verified
    assert library_rules("ampere").blas_handle_bytes < library_rules("hopper").blas_handle_bytes
    assert not library_rules("something new").verified


def test_empty_tensors_need_no_workspace() -> None:
    x, w, y = tensor(0, 64, 56, 56), tensor(64, 64, 3, 3), tensor(0, 64, 56, 56)
    one = [1, 1]
    assert taken("convolution.default", (x, w), (y,), {}, {}, None, one, one, one, False, one, 1) == ()
    assert reduction_bytes((0, 10), (10, 1), [0], H200) == (0, 0)
