"""A step's time: the device and the host that feeds it, whichever is slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairmile.costs.devices import device
from fairmile.costs.operators.op_times import OpTimes
from fairmile.costs.operators.roofline import least_bytes, roofline
from fairmile.costs.operators.signatures import signature, tensor, write_tensors
from fairmile.costs.operators.table import OperatorTiming, TableOrigin
from fairmile.costs.steps import Op, StepEvent, StepTrace, Storage, TensorSpec
from fairmile.predict.step_time import HostCosts, step_time

H200 = device("h200")
HOST = HostCosts(
    factor={"forward": 1.0, "backward": 1.0, "optimizer": 1.0},
    view_us={},
    listed_us=0.0,
    optimizer_us=0.0,
    parameter_us=0.0,
    again_us=0.0,
    wait_us=0.0,
    step_us=0.0,
)


def on(storage: int, count: int = 1000) -> TensorSpec:
    return replace(tensor((count,)), storage=storage)


def relu(source: int, made: int, phase: str = "forward", module: str = "a") -> Op:
    return Op("aten.relu.default", phase, module, (on(source),), (on(made),), ({"tensor": 0},))


def trace(ops: list[Op], storages: int = 8, category: str = "activation") -> StepTrace:
    events: list[tuple[int, int, int]] = [(StepEvent.ALLOC, 0, 0), (StepEvent.STEP, 0, 0)]
    for number, op in enumerate(ops):
        events += [(StepEvent.BEGIN, number, 0)]
        events += [(StepEvent.ALLOC, each.storage, 0) for each in op.outputs if each.storage != 0]
        events += [(StepEvent.END, number, 0)]
    return StepTrace(ops, [Storage(4000, category, "", -1)] * storages, events, 1, "fp32", True, 0)


def table(device_us: float, host_us: float, op: Op | None = None) -> OpTimes:
    one = op or relu(0, 1)
    row = OperatorTiming(signature(one), write_tensors(one.outputs), ("grid",), device_us, device_us, host_us)
    return OpTimes([row], H200, TableOrigin("NVIDIA H200", "", "", ""))


def test_a_slow_device_hides_the_host_but_for_the_first_call() -> None:
    step = step_time(trace([relu(0, 1)] * 10), H200, table(100.0, 5.0), HOST)
    assert step.step_time_s == pytest.approx(10 * 100e-6 + 5e-6)
    assert step.bound == "launch" or step.bound == "memory"
    assert step.device_s == pytest.approx(1000e-6) and step.host_s == pytest.approx(50e-6)


def test_a_slow_host_hides_the_device_but_for_the_last_call() -> None:
    step = step_time(trace([relu(0, 1)] * 10), H200, table(2.0, 50.0), HOST)
    assert step.step_time_s == pytest.approx(10 * 50e-6 + 2e-6)
    assert step.bound == "launch"
    assert step.utilisation == pytest.approx(20 / 502, rel=1e-3)


def test_a_value_that_the_host_asks_for_makes_both_take_turns() -> None:
    item = Op("aten._local_scalar_dense.default", "forward", "", (on(1),), (), ({"tensor": 0},))
    calm = step_time(trace([relu(0, 1)] * 4), H200, table(100.0, 5.0), HOST).step_time_s
    asked = step_time(trace([relu(0, 1), relu(0, 1), item, relu(0, 1), relu(0, 1)]), H200, table(100.0, 5.0), HOST)
    assert asked.step_time_s == pytest.approx(calm + 5e-6, abs=2e-6)


def test_a_gradient_scaler_waits_for_its_answer() -> None:
    x = on(1)
    check = Op(
        "aten._amp_foreach_non_finite_check_and_unscale_.default",
        "optimizer",
        "",
        (x, x, x),
        (),
        ({"tensors": [0]}, {"tensor": 1}, {"tensor": 2}),
    )
    ops = [relu(0, 1)] * 3 + [check] + [relu(0, 1, "optimizer")]
    row = OperatorTiming(signature(check), "", ("grid",), 10.0, 10.0, 5.0)
    both = OpTimes([*table(100.0, 50.0).rows, row], H200, TableOrigin("NVIDIA H200", "", "", ""))
    # Three calls, the check, then the wait: the last call begins when the device is done, 50 µs too late to be hidden.
    assert step_time(trace(ops), H200, both, HOST).step_time_s == pytest.approx((50 + 300 + 10 + 100) * 1e-6)


def test_a_view_takes_the_host_time_although_it_starts_nothing() -> None:
    seen = replace(relu(1, 2), inputs=(replace(tensor((10, 100)), storage=1),))
    plain = [relu(0, 1), relu(1, 2)]
    host = replace(HOST, view_us={"forward": 7.0})
    assert step_time(trace(plain), H200, table(2.0, 50.0), host).host_s == pytest.approx(100e-6)
    assert step_time(trace([relu(0, 1), seen, seen]), H200, table(2.0, 50.0), host).host_s == pytest.approx(157e-6)


def test_an_optimizer_looks_at_each_tensor_of_each_list() -> None:
    x = on(0)
    add = Op("aten._foreach_add_.List", "optimizer", "", (x,) * 6, (), ({"tensors": [0, 1, 2]}, {"tensors": [3, 4, 5]}))
    host = replace(HOST, listed_us=4.0, optimizer_us=100.0, parameter_us=1.0)
    step = step_time(trace([relu(0, 1), add, add], category="parameter"), H200, table(2.0, 50.0, add), host)
    # Eight storages hold parameters whose gradients are dropped; a relu that was never measured takes 6 µs.
    assert step.host_s == pytest.approx((8 + 6 + 100 + 2 * (50 + 3 * 4)) * 1e-6)


def test_what_a_backward_pass_computes_again_costs_the_host_twice() -> None:
    again, gradient = relu(0, 1, "backward"), replace(relu(0, 1, "backward"), name="aten.threshold_backward.default")
    host = replace(HOST, again_us=300.0)
    ops = [relu(0, 1), again, again, gradient, again, gradient]
    kept = [op for op in ops if op is not again]
    one = table(2.0, 50.0)
    more_s = step_time(trace(ops), H200, one, host).host_s - step_time(trace(ops), H200, one, HOST).host_s
    assert more_s == pytest.approx(2 * 2 * 300e-6)
    assert step_time(trace(kept), H200, one, host).host_s == step_time(trace(kept), H200, one, HOST).host_s


def test_a_host_of_half_the_speed_takes_twice_as_long_for_its_part() -> None:
    host = replace(HOST, view_us={"forward": 3.0}, listed_us=2.0)
    slow = host.scaled(2.0)
    assert (slow.factor["backward"], slow.view_us["forward"], slow.listed_us, slow.step_us) == (2.0, 6.0, 4.0, 0.0)
    assert host.scaled(2.0, calls=False) == replace(slow, factor=HOST.factor)


def test_a_step_that_waits_for_its_host_may_be_as_slow_or_fast_as_hosts_are() -> None:
    waiting = step_time(trace([relu(0, 1)] * 10), H200, table(2.0, 50.0), HOST)
    busy = step_time(trace([relu(0, 1)] * 10), H200, table(100.0, 5.0), HOST)
    assert waiting.high_s > 1.5 * waiting.step_time_s - 2e-6 and waiting.low_s < waiting.step_time_s / 1.5 + 2e-6
    assert busy.high_s < 1.2 * busy.step_time_s and busy.low_s > busy.step_time_s / 1.2


def test_a_host_almost_as_slow_as_the_device_can_only_lengthen_a_step() -> None:
    even = step_time(trace([relu(0, 1)] * 100), H200, table(50.0, 45.0), HOST)
    assert even.high_s / even.step_time_s > 1.3 > 1.15 > even.step_time_s / even.low_s


def test_parts_add_up_to_the_whole() -> None:
    ops = [relu(0, 1), relu(1, 2, module="b"), relu(2, 3, "backward")]
    step = step_time(trace(ops), H200, table(100.0, 5.0), HOST)
    assert sum(step.by_phase.values()) == pytest.approx(step.device_s) == pytest.approx(300e-6)
    assert step.by_phase["forward"] == pytest.approx(200e-6) and step.by_module["b"] == pytest.approx(100e-6)
    assert step.by_kind == {"elementwise": pytest.approx(300e-6)} and step.by_how == {"exact": pytest.approx(300e-6)}
    assert step.low_s < step.step_time_s < step.high_s
    assert (step.top[0].count, step.top[0].name) == (3, "aten.relu.default")


def test_corrections_of_a_kind_scale_its_operators() -> None:
    ops = [relu(0, 1)] * 10
    plain = step_time(trace(ops), H200, table(100.0, 5.0), HOST)
    slower = step_time(trace(ops), H200, table(100.0, 5.0), HOST, correction={"elementwise": 1.5, "gemm": 9.0})
    assert slower.device_s == pytest.approx(1.5 * plain.device_s)
    assert slower.top[0].device_s == pytest.approx(1.5 * plain.top[0].device_s)


def test_a_device_without_a_table_borrows_shares_of_the_roof_and_says_so() -> None:
    step = step_time(trace([relu(0, 1)] * 10), "a100", table(100.0, 5.0), HOST)
    assert step.device == "NVIDIA A100-SXM4-80GB" and step.by_how.keys() == {"scaled"}
    assert step.notes[0].startswith("not checked: NVIDIA A100-SXM4-80GB was not measured")
    same = step_time(trace([relu(0, 1)] * 10), H200, table(100.0, 5.0), HOST)
    assert step.device_s > same.device_s and step.high_s / step.step_time_s > same.high_s / same.step_time_s


def test_what_moves_is_no_less_than_what_must() -> None:
    # 0 lives before the step and is read; 1 is made forward and needed backward; 2 is neither.
    ops = [relu(0, 1), relu(1, 2), relu(1, 3, "backward")]
    assert least_bytes(trace(ops)) == 4000 + 2 * 4000
    found = roofline(trace(ops), H200)
    assert (found.moved_bytes, found.least_bytes, found.layout_bytes) == (3 * 8000, 12_000, 0)
    (line,) = found.lines
    assert (line.count, line.bound, line.intensity) == (3, "launch", 1000 / 8000)


def test_a_gradient_that_stays_is_written_and_read() -> None:
    assert least_bytes(trace([relu(0, 1, "backward")], category="gradient")) == 4000 + 2 * 4000


def test_large_products_are_bound_by_arithmetic_and_large_sums_by_memory() -> None:
    square = tensor((8192, 8192), "bfloat16")
    mm = Op("aten.mm.default", "forward", "", (square, square), (square,), ({"tensor": 0}, {"tensor": 1}))
    add = replace(mm, name="aten.add.Tensor")
    lines = {each.name: each.bound for each in roofline(trace([mm, add]), H200).lines}
    assert lines == {"aten.mm.default": "compute", "aten.add.Tensor": "memory"}


def test_a_convolution_that_must_be_turned_round_moves_its_tensors_twice_more() -> None:
    shape, weight = (4, 16, 8, 8), (16, 16, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x, w = tensor(shape, "bfloat16"), tensor(weight, "bfloat16")
    conv = Op("aten.convolution.default", "forward", "", (x, w), (x,), ({"tensor": 0}, {"tensor": 1}, None, *rest))
    last = replace(conv, inputs=(tensor(shape, "bfloat16", (1024, 1, 128, 16)), w))
    own = 2 * (2 * 4096 + 2304)
    assert roofline(trace([conv]), H200).moved_bytes == 3 * own
    assert roofline(trace([last]), H200).moved_bytes == own


def test_an_empty_step_takes_no_time() -> None:
    step = step_time(trace([]), H200, table(1.0, 1.0), HOST)
    assert (step.step_time_s, step.utilisation, step.bound) == (0.0, 0.0, "launch")
