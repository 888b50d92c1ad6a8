"""Times from a table: measured ones as they are, others from their neighbours, and how sure one can be."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import Any

import pytest
from cases import for_each

from fairmile.costs.devices import device
from fairmile.costs.operators.features import bias_s
from fairmile.costs.operators.op_times import OpTimes, expected_s, roof_s, scaled, shipped_op_times
from fairmile.costs.operators.samples import call
from fairmile.costs.operators.signatures import signature, tensor, write_tensors
from fairmile.costs.operators.table import OperatorTiming, TableOrigin
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import Op

H200 = device("h200")
ABOUT = TableOrigin("NVIDIA H200", "", "", "")


def product(m: int, n: int, k: int, dtype: str = "bfloat16") -> Op:
    inputs = tensor((m, k), dtype), tensor((k, n), dtype)
    return Op("aten.mm.default", "forward", "", inputs, (tensor((m, n), dtype),), ({"tensor": 0}, {"tensor": 1}))


def law(op: Op) -> float:
    """Return the seconds of a made-up device that reaches less of its peak the smaller a product is."""
    work = work_of(op)
    return 3e-6 + work.flops / (8e14 * work.flops / (work.flops + 5e9)) + work.bytes / 4e12


def row(op: Op, *origins: str, seconds: float | None = None) -> OperatorTiming:
    us = (law(op) if seconds is None else seconds) * 1e6
    return OperatorTiming(signature(op), write_tensors(op.outputs), origins, us, us, 10.0)


SIZES = (128, 512, 2048, 8192)
GRID = [row(product(m, n, k), "grid") for m in SIZES for n in SIZES for k in SIZES]


def test_what_was_measured_is_given_as_measured() -> None:
    table = OpTimes([row(product(64, 64, 64), "x", seconds=7e-6)], H200, ABOUT)
    found = table.time_of(product(64, 64, 64))
    assert (found.how, found.device_s, found.host_s) == ("exact", pytest.approx(7e-6), pytest.approx(1e-5))


def test_the_cold_time_counts_by_the_share_of_reads_that_miss() -> None:
    op = product(64, 64, 64)
    one = OperatorTiming(signature(op), write_tensors(op.outputs), (), 10.0, 20.0, 5.0)
    assert OpTimes([one], H200, ABOUT, cold_share=0.25).time_of(op).device_s == pytest.approx(12.5e-6)


@for_each("sizes", [(256, 1024, 4096), (1000, 3000, 768), (6000, 200, 1500)])
def test_between_measured_sizes_the_law_is_found_again(sizes: tuple[int, int, int]) -> None:
    found = OpTimes(GRID, H200, ABOUT).time_of(product(*sizes))
    assert found.how == "interpolated"
    assert abs(math.log(found.device_s / law(product(*sizes)))) < 0.12


def convolution(places: int, is_biased: bool) -> Op:
    x, w, bias = (
        tensor((8, 64, places, places), "bfloat16"),
        tensor((64, 64, 1, 1), "bfloat16"),
        tensor((64,), "bfloat16"),
    )
    given: tuple[Any, ...] = ({"tensor": 0}, {"tensor": 1}, {"tensor": 2} if is_biased else None)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    inputs = (x, w, bias) if is_biased else (x, w)
    return Op("aten.convolution.default", "forward", "", inputs, (x,), (*given, *rest))


def test_a_convolution_that_was_measured_without_a_bias_takes_longer_with_it_by_a_kernel_that_adds_it() -> None:
    slow_s = 2e-3  # far from the roof: adding a bias is none the slower for it
    table = OpTimes([row(convolution(256, is_biased=False), "grid", seconds=slow_s)], H200, ABOUT)
    biased = convolution(256, is_biased=True)
    assert table.time_of(biased).device_s == pytest.approx(slow_s + bias_s(biased, H200))


def test_the_bias_that_was_measured_with_a_convolution_is_taken_off_for_one_without() -> None:
    slow_s = 2e-3
    biased = convolution(256, is_biased=True)
    table = OpTimes([row(biased, "grid", seconds=slow_s)], H200, ABOUT)
    assert table.time_of(convolution(256, is_biased=False)).device_s == pytest.approx(slow_s - bias_s(biased, H200))


def test_doubt_grows_with_the_distance_to_what_was_measured() -> None:
    table = OpTimes(GRID, H200, ABOUT)
    near, far = table.time_of(product(512, 512, 600)), table.time_of(product(300_000, 16, 16))
    assert near.spread < 0.2 < far.spread


def test_a_model_can_be_left_out_but_not_what_others_share_with_it() -> None:
    mine, shared = product(100, 100, 100), product(200, 200, 200)
    table = OpTimes([*GRID, row(mine, "unet"), row(shared, "unet", "grid")], H200, ABOUT).without("unet")
    assert (table.time_of(mine).how, table.time_of(shared).how) == ("interpolated", "exact")


def test_of_other_types_nothing_is_borrowed() -> None:
    found = OpTimes(GRID, H200, ABOUT).time_of(product(1024, 1024, 1024, "float32"))
    op = product(1024, 1024, 1024, "float32")
    assert found.how == "roofline"
    assert found.device_s == expected_s(op, work_of(op), H200) > roof_s(op, work_of(op), H200)


def test_measured_32_bit_products_say_nothing_once_tf32_is_allowed() -> None:
    op = product(2048, 2048, 2048, "float32")
    table = OpTimes([row(op, "grid", seconds=1e-3)], H200, ABOUT)
    assert table.time_of(op).how == "exact"
    quick = table.time_of(op, tf32=True)
    assert quick.how == "roofline" and quick.device_s < 1e-4


def test_a_product_in_tf32_takes_twice_the_time_of_one_in_a_short_type() -> None:
    table = OpTimes([row(product(2048, 2048, 2048), "grid", seconds=2e-5)], H200, ABOUT)
    found = table.time_of(product(2048, 2048, 2048, "float32"), tf32=True)
    assert (found.how, found.device_s) == ("interpolated", pytest.approx(4e-5))
    assert found.spread > table.time_of(product(2048, 2048, 2048)).spread


def test_rows_with_a_problem_do_not_count() -> None:
    op = product(64, 64, 64)
    bad = OperatorTiming(signature(op), "", (), problem="out of memory")
    assert OpTimes([bad], H200, ABOUT).time_of(op).how == "roofline"


def test_another_device_reaches_the_same_share_of_its_own_roof() -> None:
    op = product(8192, 8192, 8192)
    work, a100 = work_of(op), device("a100")
    here = OpTimes(GRID, H200, ABOUT).time_of(op)
    there = scaled(here, op, work, H200, a100)
    assert there.how == "scaled" and there.spread > here.spread
    assert there.device_s / here.device_s == pytest.approx(roof_s(op, work, a100) / roof_s(op, work, H200))
    assert scaled(here, op, work, H200, H200) == here


@pytest.mark.thorough
def test_what_was_asked_before_changes_no_answer() -> None:
    found = shipped_op_times("h200")
    assert found is not None
    size = tensor((8, 512, 768))
    asked = [
        call("aten.clone.default", size),
        call("aten.fill_.Scalar", size, 0.0),
        call("aten.relu.default", size),
        call("aten.add.Tensor", size, tensor((768,))),
    ]
    one, other = (OpTimes(found.rows, found.measured_on, found.about) for _ in range(2))
    first = [one.time_of(op) for op in asked]
    second = [other.time_of(op) for op in reversed(asked)][::-1]
    for before, after in zip(first, second, strict=True):
        assert before.device_s == pytest.approx(after.device_s, rel=1e-9)
        assert (before.how, before.host_s) == ("interpolated", after.host_s)


def test_the_table_that_is_shipped_is_small_and_knows_the_device() -> None:
    entry = files("fairmile.costs") / "data" / "op_times" / "h200.csv.gz"
    assert len(entry.read_bytes()) < 1_500_000
    table = shipped_op_times("h200")
    assert table is not None and len(table.rows) > 10_000
    assert table.about.device == "NVIDIA H200" and table.about.torch and table.about.date
    assert shipped_op_times("a10") is None


def test_the_shipped_table_predicts_products_that_were_measured_elsewhere() -> None:
    # A table of another day (mean of 20 calls on an H200): rows by inner length by columns, microseconds.
    told = {
        (4096, 16384, 128): 44.04,
        (4096, 4096, 4096): 179.59,
        (16384, 4096, 1024): 180.58,
        (16384, 768, 768): 33.57,
    }
    table = shipped_op_times("h200")
    assert table is not None
    for (m, k, n), us in told.items():
        inputs = tensor((m, k), "bfloat16"), tensor((k, n), "bfloat16", (1, k))
        made = (tensor((m, n), "bfloat16"),)
        op = Op("aten.mm.default", "forward", "", inputs, made, ({"tensor": 0}, {"tensor": 1}))
        assert abs(math.log(table.time_of(op).device_s / (us * 1e-6))) < 0.15, (m, k, n)
