"""The list of operators that some fields use: each family is of its kind, forward and backward, and can be called."""

from __future__ import annotations

from itertools import islice

import pytest
from cases import for_each

from fairmile.costs.operators import families
from fairmile.costs.operators.calls import bind
from fairmile.costs.operators.features import recurrence
from fairmile.costs.operators.samples import returned
from fairmile.costs.operators.signatures import signature
from fairmile.costs.operators.work import kind_of, work_of
from fairmile.costs.steps import Op

torch = pytest.importorskip("torch")


@pytest.mark.thorough
def test_no_family_holds_a_call_twice_and_all_know_what_they_return() -> None:
    for family in (families.recurrent, families.attention, families.products, families.spectra):
        ops = list(family())
        assert len({signature(op) for op in ops}) == len(ops)
        assert all(op.outputs or returned(op) for op in ops), family


def test_recurrent_networks_come_in_all_kinds_layers_and_directions() -> None:
    found = [recurrence(op) for op in families.recurrent()]
    assert {each.mode for each in found if each} == {1, 2, 3}
    assert {(each.layers, each.is_both) for each in found if each} >= {(1, False), (2, False), (2, True), (6, True)}
    assert {each.way for each in found if each} == {"standard", "small", "static"}


def test_convolutions_are_grouped_dilated_transposed_and_of_one_to_three_dimensions() -> None:
    ops = [op for op in families.convolutions() if op.name == "aten.convolution.default"]
    assert {len(op.inputs[0].shape) for op in ops} == {3, 4, 5}
    assert any(op.arguments[5][0] > 1 for op in ops)
    assert any(op.arguments[6] for op in ops)
    assert any(1 < op.arguments[8] < op.inputs[0].shape[1] for op in ops)
    gradients = sum(op.name == "aten.convolution_backward.default" for op in families.convolutions())
    assert gradients == len(ops)


@for_each("family", [families.scattered, families.functions, families.fields, families.updates])
def test_the_smallest_calls_of_each_name_run(family: object) -> None:
    assert callable(family)
    smallest: dict[str, Op] = {}
    for op in islice(family(), 0, None, 3):
        before = smallest.get(op.name)
        if op.inputs[0].dtype == "float32" and (before is None or work_of(op).bytes < work_of(before).bytes):
            smallest[op.name] = op
    runnable = [op for op in smallest.values() if work_of(op).bytes < 5e6 and "rms_norm" not in op.name]
    assert len(runnable) > 5
    for op in runnable:
        with torch.no_grad():
            bind(op, "cpu")()
        assert kind_of(op) not in ("view", "wait")
