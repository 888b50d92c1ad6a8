"""What calls return, told by their arguments alone, beside what torch returns."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.costs.operators.outputs import outputs_of
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.steps import Op

PLAIN = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]


def call(name: str, *shapes: tuple[int, ...], more: list[object] | None = None) -> Op:
    places = [{"tensor": at} for at in range(len(shapes))]
    return Op(f"aten.{name}", "", "", tuple(map(tensor, shapes)), (), (*places, *(more or ())))


@for_each(
    "op, shape",
    [
        (call("mm", (3, 4), (4, 5)), (3, 5)),
        (call("addmm", (5,), (3, 4), (4, 5)), (3, 5)),
        (call("bmm", (2, 3, 4), (2, 4, 5)), (2, 3, 5)),
        (call("addbmm", (3, 5), (2, 3, 4), (2, 4, 5)), (3, 5)),
        (call("mv", (3, 4), (4,)), (3,)),
        (call("dot", (4,), (4,)), ()),
        (call("linear", (2, 3, 4), (5, 4), (5,)), (2, 3, 5)),
        (call("convolution", (2, 3, 16, 16), (8, 3, 3, 3), (8,), more=PLAIN), (2, 8, 14, 14)),
        (call("convolution", (3, 16, 16), (8, 3, 3, 3), (8,), more=PLAIN), (8, 14, 14)),
        (call("scaled_dot_product_attention", (2, 4, 8, 16), (2, 4, 9, 16), (2, 4, 9, 6)), (2, 4, 8, 6)),
        (call("relu", (3, 4)), (3, 4)),
    ],
)
def test_shapes_follow_from_the_arguments(op: Op, shape: tuple[int, ...]) -> None:
    [found] = outputs_of(op)
    assert found.shape == shape


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 1)])
def test_a_convolution_returns_what_torch_returns(
    transposed: bool, stride: int, padding: int, dilation: int, groups: int
) -> None:
    torch = pytest.importorskip("torch")
    weight = (4, 6 // groups, 3, 5) if transposed else (6, 4 // groups, 3, 5)
    x = (2, 4, 17, 15)
    extra = [1, 0] if transposed and stride > 1 else [0, 0]
    said = [[stride] * 2, [padding] * 2, [dilation] * 2, transposed, extra, groups]
    real = torch.convolution(torch.zeros(x), torch.zeros(weight), None, *said)
    op = Op("aten.convolution", "", "", (tensor(x), tensor(weight)), (), ({"tensor": 0}, {"tensor": 1}, None, *said))
    [found] = outputs_of(op)
    assert found.shape == tuple(real.shape)


def test_gradients_that_nobody_wants_are_not_returned() -> None:
    shapes = [(2, 8, 14, 14), (2, 3, 16, 16), (8, 3, 3, 3)]
    more: list[object] = [[8], *PLAIN, [False, True, True]]
    assert [each.shape for each in outputs_of(call("convolution_backward", *shapes, more=more))] == [(8, 3, 3, 3)]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_recurrent_network_returns_its_state_at_all_moments(bidirectional: bool) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.LSTM(6, 7, 2, bidirectional=bidirectional)
    real, _ = network(torch.zeros(5, 3, 6))
    weights = [tensor(tuple(each.shape)) for each in network.parameters()]
    inputs = (tensor((5, 3, 6)), *weights)
    places = {"tensors": list(range(1, len(inputs)))}
    arguments = ({"tensor": 0}, None, places, True, 2, 0.0, True, bidirectional, False)
    [found] = outputs_of(Op("aten.lstm", "", "", inputs, (), arguments))
    assert found.shape == tuple(real.shape)
