"""What an operator has to do: operations by hand formulas, bytes as the least that can be moved."""

from __future__ import annotations

import math

import pytest
from cases import for_each

from fairmile.costs.operators.signatures import tensor
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import Op, TensorSpec

torch = pytest.importorskip("torch")


def op(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], *arguments: object, **keywords: object) -> Op:
    return Op(name, "forward", "", tuple(inputs), tuple(outputs), arguments, tuple(keywords.items()))


def at(place: int) -> dict[str, int]:
    return {"tensor": place}


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], groups: int = 1, transposed: bool = False
) -> Op:
    dims = len(w) - 2
    rest = ([1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups)
    return op("aten.convolution.default", [tensor(x), tensor(w)], [tensor(y)], at(0), at(1), None, *rest)


def backward(
    y: tuple[int, ...],
    x: tuple[int, ...],
    w: tuple[int, ...],
    mask: list[bool],
    groups: int = 1,
    transposed: bool = False,
) -> Op:
    dims = len(w) - 2
    rest = (None, [1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups, mask)
    outputs = [tensor(shape) for shape, wanted in ((x, mask[0]), (w, mask[1])) if wanted]
    return op(
        "aten.convolution_backward.default", [tensor(y), tensor(x), tensor(w)], outputs, at(0), at(1), at(2), *rest
    )


def test_a_convolution_takes_two_operations_for_each_weight_and_place_of_the_output() -> None:
    assert work_of(convolution((8, 16, 20, 20), (32, 16, 3, 3), (8, 32, 20, 20))).flops == 2 * 8 * 400 * 32 * 16 * 9


def test_groups_divide_the_work_of_a_convolution() -> None:
    dense = work_of(convolution((8, 32, 20, 20), (32, 32, 3, 3), (8, 32, 20, 20))).flops
    grouped = work_of(convolution((8, 32, 20, 20), (32, 8, 3, 3), (8, 32, 20, 20), groups=4)).flops
    depthwise = work_of(convolution((8, 32, 20, 20), (32, 1, 3, 3), (8, 32, 20, 20), groups=32)).flops
    assert (grouped, depthwise) == (dense / 4, dense / 32)


def test_a_transposed_convolution_is_counted_at_its_input() -> None:
    # Each of the 10×10 inputs meets each of the 64·32·2·2 weights.
    counted = work_of(convolution((4, 64, 10, 10), (64, 32, 2, 2), (4, 32, 20, 20), transposed=True)).flops
    assert counted == 2 * 4 * 100 * 64 * 32 * 4


@for_each("groups", [1, 4, 32])
def test_each_gradient_of_a_convolution_costs_what_the_convolution_costs(groups: int) -> None:
    x, w, y = (8, 32, 20, 20), (32, 32 // groups, 3, 3), (8, 32, 20, 20)
    once = work_of(convolution(x, w, y, groups)).flops
    assert work_of(backward(y, x, w, [True, True, False], groups)).flops == 2 * once
    assert work_of(backward(y, x, w, [False, True, False], groups)).flops == once


def test_the_gradients_of_a_transposed_convolution_too() -> None:
    x, w, y = (4, 64, 10, 10), (64, 32, 2, 2), (4, 32, 20, 20)
    once = work_of(convolution(x, w, y, transposed=True)).flops
    assert work_of(backward(y, x, w, [True, True, False], transposed=True)).flops == 2 * once


def counted_by_torch(function: object) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function()  # type: ignore[operator]
    return float(counter.get_total_flops())


def test_products_agree_with_torch() -> None:
    a, b = torch.empty(6, 30, 40, device="meta"), torch.empty(6, 40, 50, device="meta")
    ours = work_of(
        op("aten.bmm.default", [tensor((6, 30, 40)), tensor((6, 40, 50))], [tensor((6, 30, 50))], at(0), at(1))
    )
    assert ours.flops == counted_by_torch(lambda: torch.bmm(a, b)) == 2 * 6 * 30 * 40 * 50
    bias, x, w = tensor((50,)), tensor((30, 40)), tensor((40, 50))
    added = work_of(op("aten.addmm.default", [bias, x, w], [tensor((30, 50))], at(0), at(1), at(2)))
    real = (torch.empty(50, device="meta"), torch.empty(30, 40, device="meta"), torch.empty(40, 50, device="meta"))
    assert added.flops == counted_by_torch(lambda: torch.addmm(*real))


def test_a_dense_convolution_and_its_gradients_agree_with_torch() -> None:
    x = torch.empty(4, 8, 12, 12, device="meta", requires_grad=True)
    w = torch.empty(16, 8, 3, 3, device="meta", requires_grad=True)

    def both() -> None:
        torch.nn.functional.conv2d(x, w, padding=1).sum().backward()

    shapes = (4, 8, 12, 12), (16, 8, 3, 3), (4, 16, 12, 12)
    ours = work_of(convolution(*shapes)).flops
    ours += work_of(backward(shapes[2], shapes[0], shapes[1], [True, True, False])).flops
    assert ours == counted_by_torch(both)


def attention(name: str, causal: bool, backwards: bool = False) -> Op:
    q = tensor((2, 4, 64, 32))
    if backwards:
        rest = (None, None, 64, 64, 0.0, causal)
        places = [at(place) for place in range(6)]
        return op(f"{name}_backward.default", [q] * 5 + [tensor((2, 4, 64))], [q] * 3, *places, *rest)
    return op(f"{name}.default", [q] * 3, [q], at(0), at(1), at(2), 0.0, causal)


def test_attention_counts_both_products_and_half_of_them_where_it_is_causal() -> None:
    name = "aten._scaled_dot_product_flash_attention"
    assert work_of(attention(name, causal=False)).flops == 2 * 4 * 64 * 64 * 2 * (32 + 32)
    assert work_of(attention(name, causal=True)).flops == 2 * 4 * (64 * 65 / 2) * 2 * (32 + 32)


def test_the_gradient_of_attention_takes_five_products() -> None:
    name = "aten._scaled_dot_product_flash_attention"
    assert work_of(attention(name, False, True)).flops == 2.5 * work_of(attention(name, False)).flops


def test_a_recurrent_network_meets_every_weight_at_every_moment() -> None:
    x, state = tensor((50, 8, 16)), tensor((1, 8, 32))
    weights = [tensor((128, 16)), tensor((128, 32)), tensor((128,)), tensor((128,))]
    given = op("aten._cudnn_rnn.default", [x, *weights, state], [x], at(0), {"tensors": [1, 2, 3, 4]}, 4, None, at(5))
    assert work_of(given).flops == 2 * 50 * 8 * (128 * 16 + 128 * 32)


def test_a_transform_of_fourier_takes_five_n_log_n() -> None:
    x = tensor((3, 1024), "complex64")
    given = op("aten._fft_c2c.default", [x], [x], at(0), [1], 0, True)
    assert work_of(given).flops == 5 * 3 * 1024 * math.log2(1024)


def test_what_a_stride_of_zero_repeats_is_read_once() -> None:
    x, bias = tensor((100, 50)), tensor((100, 50), strides=(0, 1))
    assert work_of(op("aten.add.Tensor", [x, bias], [x], at(0), at(1))).bytes_read == 4 * (5000 + 50)


def test_a_copy_does_not_read_what_it_overwrites() -> None:
    x = tensor((1000,))
    moved = work_of(op("aten.copy_.default", [x, x], [x], at(0), at(1)))
    assert (moved.bytes_read, moved.bytes_written) == (4000, 4000)


def test_a_lookup_reads_the_rows_it_takes_and_not_the_table() -> None:
    table, places, rows = tensor((50_000, 64)), tensor((10,), "int64"), tensor((10, 64))
    moved = work_of(op("aten.embedding.default", [table, places], [rows], at(0), at(1)))
    assert (moved.bytes_read, moved.bytes_written) == (10 * 64 * 4 + 80, 10 * 64 * 4)


def test_a_fused_optimizer_writes_all_but_the_gradients() -> None:
    one = [tensor((100,))] * 8
    lists = [{"tensors": [2 * each, 2 * each + 1]} for each in range(4)]
    moved = work_of(op("aten._fused_adamw_.default", one, [], *lists, [], {"tensors": []}))
    assert (moved.kind, moved.bytes_read, moved.bytes_written) == ("optimizer", 3200, 2400)


def test_a_view_moves_nothing() -> None:
    x = tensor((10, 10))
    done = work_of(op("aten.view.default", [x], [x], at(0), [100]))
    assert (done.kind, done.flops, done.bytes) == ("view", 0.0, 0)


def test_an_unknown_operator_counts_as_elementwise() -> None:
    x = tensor((10, 10))
    done = work_of(op("aten.some_new_thing.default", [x], [x], at(0)))
    assert (done.kind, done.flops, done.bytes) == ("elementwise", 100.0, 800)
