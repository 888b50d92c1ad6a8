"""Operator calls made real: tensors that cannot be just anything are filled so that the call can be made."""

from __future__ import annotations

import pytest

from fairmile.costs.operators.samples import call
from fairmile.costs.operators.signatures import tensor

pytest.importorskip("torch")
from fairmile.costs.operators.calls import bind


@pytest.mark.parametrize("mode", [0, 1])
def test_bags_of_rows_are_cut_evenly_out_of_a_table(mode: int) -> None:
    rows, places, starts = tensor((50, 4)), tensor((24,), "int64"), tensor((8,), "int64")
    summed, bags, sizes, _ = bind(call("aten._embedding_bag.default", rows, places, starts, False, mode), "cpu")()
    assert summed.shape == (8, 4) and summed.abs().sum() > 0
    assert mode == 0 or sizes.tolist() == [3] * 8
    assert mode == 0 or bags.tolist() == [bag for bag in range(8) for _ in range(3)]


def test_gradients_of_bags_reach_the_rows_of_their_table() -> None:
    y, places, starts = tensor((8, 4)), tensor((24,), "int64"), tensor((8,), "int64")
    given = (y, places, starts, tensor((24,), "int64"), starts, tensor((0,), "int64"), 50, False, 0, False, None)
    gradient = bind(call("aten._embedding_bag_backward.default", *given), "cpu")()
    assert gradient.shape == (50, 4) and gradient.abs().sum() > 0
