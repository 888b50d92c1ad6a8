"""How long kernels that Inductor writes take on a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairmile.costs.devices import device
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import FUSED, Op
from fairmile.predict.compiled.fused import fused_s

H200 = device("h200")
MIB = 1 << 20


def kernel(count: int, **work: int) -> Op:
    """A kernel that reads `count` numbers and writes as many."""
    spec = replace(tensor((count,)), storage=1)
    known = {"kernel": "triton_x", "moved_bytes": 8 * count, **work}
    return Op(FUSED, "forward", "", (spec,), (spec,), (), tuple(known.items()))


def seconds(op: Op) -> float:
    return fused_s(op, work_of(op), H200)


def test_a_large_kernel_goes_at_the_speed_of_memory_and_one_that_the_cache_holds_faster() -> None:
    large, small = (seconds(kernel(count)) - seconds(kernel(0)) for count in (64 * MIB, 4 * MIB))
    assert large == pytest.approx(8 * 64 * MIB / H200.bandwidth_ceiling, rel=0.01)
    assert small < large / 16


def test_a_tiny_kernel_takes_less_than_the_call_of_a_library() -> None:
    assert 0 < seconds(kernel(16)) < H200.least_op_s


@pytest.mark.parametrize("name", ["gathered_bytes", "added", "random", "running", "looped"])
def test_what_a_kernel_does_beside_moving_takes_time_of_its_own(name: str) -> None:
    times = [seconds(kernel(MIB, **{name: count})) for count in (0, 100 * MIB, 200 * MIB)]
    assert times[0] < times[1] < times[2]


def test_additions_where_values_say_hide_the_bytes_that_they_need() -> None:
    many = 1000 * MIB
    assert seconds(kernel(MIB, added=many)) == pytest.approx(seconds(kernel(2 * MIB, added=many)))


def test_a_kernel_that_rules_foresee_is_slower_in_half_precision_than_its_bytes_say() -> None:
    plain = replace(kernel(64 * MIB), keywords=())
    short = tuple(replace(spec, dtype="bfloat16", shape=(2 * spec.elements,)) for spec in plain.inputs)
    assert seconds(replace(plain, inputs=short, outputs=short)) > seconds(plain)
