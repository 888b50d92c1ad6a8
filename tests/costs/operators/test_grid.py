"""The built-in list of operators: wide enough that a model's operators lie between those of the list."""

from __future__ import annotations

import sys
from itertools import islice

import pytest

from fairmile.base.errors import Unsupported
from fairmile.costs.operators.families import FAMILIES
from fairmile.costs.operators.grid import (
    ORIGIN,
    _attention,
    _convolutions,
    _elementwise,
    _fits,
    _optimizers,
    _pools,
)
from fairmile.costs.operators.samples import call, returned
from fairmile.costs.operators.signatures import signature, tensor
from fairmile.costs.operators.work import kind_of

pytest.importorskip("torch")


def test_what_a_call_returns_is_worked_out() -> None:
    made = call("aten.addmm.default", tensor((8,)), tensor((4, 16)), tensor((16, 8)))
    assert returned(made) == (tensor((4, 8)),)
    assert ORIGIN == "grid"


def test_names_and_types_of_arguments_are_kept() -> None:
    made = call("aten._to_copy.default", tensor((4,)), dtype={"dtype": "bfloat16"})
    assert signature(made) == 'aten._to_copy.default|f32[4]|[["@0"],[["dtype",{"dtype":"bfloat16"}]]]'
    assert returned(made) == (tensor((4,), "bfloat16"),)


def test_the_list_is_made_without_torch_which_is_asked_only_of_what_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for part in (_convolutions, _pools, _optimizers, *FAMILIES):
        assert all(_fits(op) in (True, False) for op in islice(part(), 40))
    with pytest.raises(Unsupported, match="needs torch"):
        returned(next(_pools()))


def test_what_comes_back_from_a_pool_goes_into_its_gradient() -> None:
    ops = list(islice(_pools(), 8))
    for forward, backward in zip(ops[0::2], ops[1::2], strict=True):
        assert returned(forward) == (backward.inputs[0], backward.inputs[2])
        assert returned(backward) == (backward.inputs[1],)


def test_each_part_is_of_its_kind_and_never_the_same_call_for_two_types() -> None:
    for part, kinds in (
        (_attention, {"attention"}),
        (_elementwise, {"elementwise", "copy", "fill", "reduction"}),
    ):
        ops = list(part())
        assert {kind_of(op) for op in ops} == kinds
        assert len({signature(op) for op in ops}) == len(ops)


def test_convolutions_come_forward_and_backward_in_both_layouts() -> None:
    first = []
    for op in _convolutions():
        first.append(op)
        if len(first) == 40:
            break
    names = [op.name for op in first]
    assert names[0::2] == ["aten.convolution.default"] * 20
    assert names[1::2] == ["aten.convolution_backward.default"] * 20
