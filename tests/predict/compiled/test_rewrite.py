"""A compiled step: kernels fused, tensors computed again, and every block given back as in the eager step."""

from __future__ import annotations

import pytest

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.costs.steps import FUSED, Op, StepEvent, StepTrace, Storage, TensorSpec
from fairmile.predict.compiled.doubts import of_compiled
from fairmile.predict.compiled.rewrite import compiled
from fairmile.predict.fake_device.request import MODES, check_mode
from fairmile.predict.memory.account import account
from fairmile.predict.step_time import step_time

ROWS, WIDTH = 4096, 1024
BYTES = ROWS * WIDTH * 4


class Maker:
    """Makes the trace of one step, operator by operator."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.events: list[tuple[int, int, int]] = []

    def storage(self, category: str = "activation", size: int = BYTES) -> TensorSpec:
        self.storages.append(Storage(size, category, "", len(self.ops)))
        self.events.append((StepEvent.ALLOC, len(self.storages) - 1, 0))
        return TensorSpec((size // 4 // WIDTH, WIDTH), (WIDTH, 1), "float32", len(self.storages) - 1)

    def call(
        self, name: str, phase: str, *inputs: TensorSpec, category: str = "activation", size: int = BYTES
    ) -> TensorSpec:
        self.events.append((StepEvent.BEGIN, len(self.ops), 0))
        made = self.storage(category, size)
        arguments = tuple({"tensor": at} for at in range(len(inputs)))
        self.ops.append(Op(f"aten.{name}.default", phase, "", inputs, (made,), arguments))
        self.events.append((StepEvent.END, len(self.ops) - 1, 0))
        return made

    def free(self, *specs: TensorSpec) -> None:
        self.events += [(StepEvent.FREE, spec.storage, 0) for spec in specs]

    def trace(self) -> StepTrace:
        return StepTrace(self.ops, self.storages, self.events, 1, "fp32", True, WIDTH * WIDTH)


def made(activation: str = "gelu") -> StepTrace:
    """Two products with an activation between them, forward and backward, and an optimizer that takes memory."""
    maker = Maker()
    weight = maker.storage("parameter", WIDTH * WIDTH * 4)
    x = maker.storage("input")
    maker.events.append((StepEvent.STEP, 0, 0))
    first = maker.call("mm", "forward", x, weight)
    scaled = maker.call("mul", "forward", first)
    active = maker.call(activation, "forward", scaled)
    out = maker.call("mm", "forward", active, weight)
    loss = maker.call("mul", "forward", out)
    grad = maker.call("mul", "backward", loss)
    maker.free(out, loss)
    second = maker.call("mm", "backward", grad, weight)
    saved = active if activation == "relu" else scaled
    name = "threshold_backward" if activation == "relu" else f"{activation}_backward"
    back = maker.call(name, "backward", second, saved)
    product = maker.call("mm", "backward", back, x, category="gradient", size=WIDTH * WIDTH * 4)
    maker.free(grad, second, first, scaled, active, back)
    temporary = maker.call("_foreach_sqrt", "optimizer", product, category="temporary", size=WIDTH * WIDTH * 4)
    maker.free(temporary, product)
    return maker.trace()


def live(trace: StepTrace) -> tuple[list[int], int]:
    """Return the sizes of what a trace leaves, and the most bytes that live at once; each block is freed once."""
    living: dict[int, int] = {}
    most = 0
    for kind, number, _ in trace.events:
        if kind == StepEvent.ALLOC:
            assert number not in living
            living[number] = trace.storages[number].size_bytes
        elif kind == StepEvent.FREE:
            del living[number]
        most = max(most, sum(living.values()))
    return sorted(living.values()), most


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_compiled_step_leaves_what_the_eager_one_leaves_and_takes_less(activation: str) -> None:
    eager = made(activation)
    fast = compiled(eager, "default")
    assert live(fast)[0] == live(eager)[0]
    assert live(fast)[1] < live(eager)[1]
    calls = [fast.ops[number].name for kind, number, _ in fast.events if kind == StepEvent.BEGIN]
    assert calls.count("aten.mm.default") == 4 and FUSED in calls
    assert not {"aten.gelu.default", "aten.relu.default", "aten.mul.default"} & set(calls)


def test_of_a_relu_one_byte_for_each_element_is_kept_where_its_result_is_not() -> None:
    fast = compiled(made("relu"), "default")
    allocated = [fast.storages[number].size_bytes for kind, number, _ in fast.events if kind == StepEvent.ALLOC]
    assert ROWS * WIDTH in allocated


def test_a_step_inside_a_fused_kernel_takes_no_memory() -> None:
    fast = compiled(made(), "default")
    allocated = {number for kind, number, _ in fast.events if kind == StepEvent.ALLOC}
    scaled = next(op.outputs[0].storage for op in made().ops if op.name == "aten.mul.default")
    assert scaled not in allocated


def test_cuda_graphs_take_no_time_of_the_host_and_a_pool_of_their_own() -> None:
    eager, on = made(), device("h200")
    steps = {mode: compiled(eager, mode) for mode in MODES}
    assert step_time(steps["reduce-overhead"], on).host_s < step_time(steps["default"], on).host_s
    taken = {mode: of_compiled(account(each, on), each) for mode, each in steps.items()}
    added = taken["reduce-overhead"].peak_reserved_bytes - taken["default"].peak_reserved_bytes
    assert added == WIDTH * WIDTH * 4
    for each in taken.values():
        assert each.allocated_span.low <= each.peak_allocated_bytes <= each.allocated_span.high
        assert sum(each.breakdown.values()) == each.device_used_bytes


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(UsageError, match="'fast' is not a mode"):
        check_mode("fast")
    partial = made()
    object.__setattr__(partial, "stopped", "values decide a shape")
    with pytest.raises(UsageError, match="followed only in part"):
        compiled(partial, "default")
