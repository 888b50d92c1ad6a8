"""Accounts of small traces made by hand, in which every byte is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cases import for_each

from fairmile.base.errors import Integrity, RunFailed, UsageError
from fairmile.costs.devices import device
from fairmile.costs.steps import Op, StepEvent, StepTrace, Storage, TensorSpec
from fairmile.predict.memory.account import MemoryAccount, account
from fairmile.predict.memory.largest_batch import largest_batch
from fairmile.predict.memory.options import AllocatorOptions

MIB = 1 << 20
H200 = device("h200")


class Maker:
    """Writes a trace event by event."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.events: list[tuple[int, int, int]] = []

    def step(self, number: int) -> None:
        self.events.append((StepEvent.STEP, number, 0))

    def allocate(self, size: int, category: str, module: str = "") -> int:
        self.storages.append(Storage(size, category, module, len(self.ops) - 1))
        self.events.append((StepEvent.ALLOC, len(self.storages) - 1, 0))
        return len(self.storages) - 1

    def free(self, storage: int) -> None:
        self.events.append((StepEvent.FREE, storage, 0))

    def op(
        self, name: str, phase: str, size: int, category: str, module: str = "", inputs: tuple[TensorSpec, ...] = ()
    ) -> int:
        self.ops.append(Op(f"aten.{name}", phase, module, inputs, ()))
        number = len(self.ops) - 1
        self.events.append((StepEvent.BEGIN, number, 0))
        made = self.allocate(size, category, module)
        self.events.append((StepEvent.END, number, 0))
        return made

    def trace(self, steps: int = 2) -> StepTrace:
        return StepTrace(self.ops, self.storages, self.events, steps, "fp32", True, 0)


def training(activation: int = 100 * MIB, steps: int = 2) -> StepTrace:
    """A weight of 40 MiB, one activation, a gradient that lives until the next step, and Adam's two states."""
    make = Maker()
    make.allocate(40 * MIB, "parameter", "layer")
    gradient = None
    for number in range(steps):
        make.step(number)
        if gradient is not None:
            make.free(gradient)
        kept = make.op("relu.default", "forward", activation, "activation", "layer")
        gradient = make.op("threshold_backward.default", "backward", 40 * MIB, "gradient", "layer")
        make.free(kept)
        if number == 0:
            make.allocate(40 * MIB, "optimizer", "layer")
            make.allocate(40 * MIB, "optimizer", "layer")
    return make.trace(steps)


def test_the_peak_is_found_with_what_was_there() -> None:
    got = account(training(), H200)
    assert got.peak_allocated_bytes == (40 + 100 + 40 + 80) * MIB
    assert got.breakdown["parameters"] == 40 * MIB
    assert got.breakdown["gradients"] == 40 * MIB
    assert got.breakdown["optimizer"] == 80 * MIB
    assert got.breakdown["activations"] == 100 * MIB
    assert got.by_module == {"layer": 100 * MIB}
    assert (got.peak.step, got.peak.phase, got.peak.op) == (1, "backward", "aten.threshold_backward.default")


def test_the_breakdown_adds_up_to_the_device() -> None:
    got = account(training(), H200)
    assert sum(got.breakdown.values()) == got.device_used_bytes == got.peak_reserved_bytes + got.context_bytes
    assert got.breakdown["slack"] == got.peak_reserved_bytes - got.peak_allocated_bytes


def test_spans_hold_the_figures_and_widen_where_nothing_was_measured() -> None:
    known, unknown = account(training(), H200), account(training(), device("v100-32gb"))
    assert known.allocated_span.low < known.peak_allocated_bytes < known.allocated_span.high
    assert known.verified and not unknown.verified
    assert unknown.device_span.high / unknown.device_used_bytes > known.device_span.high / known.device_used_bytes
    assert any("not measured" in note for note in unknown.notes)


def ragged(seed: int, steps: int) -> StepTrace:
    """Steps that are all alike, with blocks of odd sizes and lives, some of which outlast their step."""
    make, left = Maker(), list[int]()
    make.allocate(2 * MIB, "parameter")
    for number in range(steps):
        make.step(number)
        chance = random.Random(seed)
        old, here = left, []
        for _ in range(40):
            here.append(make.op("relu.default", "forward", chance.randrange(1, 60 * MIB), "activation"))
            if chance.random() < 0.6:
                make.free(here.pop(chance.randrange(len(here))))
            if old and chance.random() < 0.3:
                make.free(old.pop(0))
        left, gone = here[:4], old + here[4:]
        for each in gone:
            make.free(each)
    return make.trace(steps)


@for_each("seed", range(5))
def test_repeating_the_last_step_is_like_tracing_it_again(seed: int) -> None:
    repeated, traced = account(ragged(seed, 3), H200, repeats=8), account(ragged(seed, 8), H200, repeats=8)
    assert repeated.peak_allocated_bytes == traced.peak_allocated_bytes
    assert repeated.peak_reserved_bytes == traced.peak_reserved_bytes


def test_blocks_that_outlast_their_step_cost_more_in_later_ones() -> None:
    first, later = ([account(ragged(seed, steps), H200).peak_reserved_bytes for seed in range(5)] for steps in (1, 2))
    assert sum(before < after for before, after in zip(first, later, strict=True)) >= 3


def test_the_first_product_of_each_thread_takes_a_handle() -> None:
    matrix = TensorSpec((256, 256), (256, 1), "float32", 0)
    make = Maker()
    make.allocate(4 * MIB, "parameter")
    make.step(0)
    a = make.op("mm.default", "forward", 4 * MIB, "activation", inputs=(matrix, matrix))
    b = make.op("mm.default", "forward", 4 * MIB, "activation", inputs=(matrix, matrix))
    make.free(b)
    forward = account(make.trace(1), H200)
    assert forward.breakdown["workspace"] == 32 * MIB
    make.op("mm.default", "backward", 4 * MIB, "gradient", inputs=(matrix, matrix))
    make.free(a)
    both = account(make.trace(1), H200)
    assert both.breakdown["workspace"] == 64 * MIB
    assert both.context_bytes > forward.context_bytes > account(training(), H200).context_bytes


def test_a_temporary_workspace_counts_while_its_operator_runs() -> None:
    wide = TensorSpec((8192, 4096), (4096, 1), "float32", 0)
    make = Maker()
    make.allocate(128 * MIB, "activation")
    make.step(0)
    make.op("sum.dim_IntList", "backward", 16384, "gradient", inputs=(wide,))
    make.ops[-1] = replace(make.ops[-1], arguments=({"tensor": 0}, [0], True))
    got = account(make.trace(1), H200)
    assert got.breakdown["workspace"] == 138_412_032 + 512
    assert got.peak.op == "aten.sum.dim_IntList"


def test_inputs_that_go_away_last_let_the_step_be_repeated() -> None:
    make = Maker()
    for number in range(2):
        make.step(number)
        given = make.allocate(8 * MIB, "input")
        out = make.op("relu.default", "forward", 4 * MIB, "temporary")
        make.free(given)
        make.free(out)
    assert account(make.trace(), H200).notes == []


def test_a_step_that_is_too_large_says_how_it_would_end() -> None:
    got = account(training(), H200, limit_bytes=account(training(), H200).context_bytes + 200 * MIB)
    assert not got.fits
    assert got.out_of_memory is not None and got.out_of_memory.startswith("out of memory: ")
    assert got.peak_allocated_bytes == 260 * MIB


def test_a_step_that_fits_only_without_its_unused_segments_fits_with_retries() -> None:
    make = Maker()
    make.step(0)
    for size in (100, 60, 120):
        make.free(make.op("relu.default", "forward", size * MIB, "activation"))
    roomy = account(make.trace(1), H200)
    assert roomy.fits and roomy.retries == 0
    tight = account(make.trace(1), H200, limit_bytes=roomy.context_bytes + 150 * MIB)
    assert tight.fits and tight.retries > 0
    assert roomy.squeeze == "" and "returning unused segments to the device" in tight.squeeze


def test_what_is_told_of_a_step_that_is_squeezed_in_is_what_the_device_then_shows() -> None:
    make = Maker()
    make.allocate(20 * MIB, "parameter")
    for number in range(2):
        make.step(number)
        for size in (1, 120):  # small blocks have segments of their own
            held = [make.op("relu.default", "forward", size * MIB, "activation") for _ in range(120 // size)]
            for each in held:
                make.free(each)
    roomy = account(make.trace(), H200)
    limit = roomy.context_bytes + 150 * MIB
    tight = account(make.trace(), H200, limit_bytes=limit)
    assert tight.device_used_bytes <= limit < tight.wanted_bytes == roomy.device_used_bytes
    assert sum(tight.breakdown.values()) == tight.device_used_bytes
    assert max(point.reserved_bytes for point in tight.timeline) <= 150 * MIB
    assert tight.retries_per_step > 0
    assert f"{tight.retries_per_step} times per step" in tight.squeeze or "once per step" in tight.squeeze
    failed = account(make.trace(), H200, limit_bytes=roomy.context_bytes + 100 * MIB)
    assert not failed.fits and failed.squeeze == ""


def test_options_of_the_allocator_change_what_is_reserved() -> None:
    make = Maker()
    make.step(0)
    for size in (100, 120, 140):
        make.free(make.op("relu.default", "forward", size * MIB, "activation"))
    fixed = account(make.trace(1), H200)
    growing = account(make.trace(1), H200, AllocatorOptions(expandable_segments=True))
    assert fixed.peak_reserved_bytes == 360 * MIB
    assert growing.peak_reserved_bytes == 140 * MIB
    assert fixed.peak_allocated_bytes == growing.peak_allocated_bytes


def test_a_trace_that_gives_back_what_is_not_there_is_refused() -> None:
    trace = training()
    broken = replace(trace, events=[*trace.events[:3], (StepEvent.FREE, 77, 0), *trace.events[3:]])
    with pytest.raises(Integrity, match="frees block 77"):
        account(broken, H200)


def test_the_timeline_is_thin_and_reaches_the_peak() -> None:
    got = account(training(), H200)
    assert max(point.allocated_bytes for point in got.timeline) == got.peak_allocated_bytes
    assert {point.step for point in got.timeline} == {0, 1}
    assert len(account(training(steps=300), H200).timeline) <= 900


def linear(batch: int, limit: int = 1000) -> MemoryAccount:
    got = account(training(activation=batch * MIB), H200)
    return replace(got, device_bytes=got.context_bytes + limit * MIB, fits=got.peak_reserved_bytes <= limit * MIB)


@for_each("limit, multiple", [(500, 1), (777, 1), (1000, 8), (1000, 32)])
def test_the_largest_batch_is_the_last_that_fits(limit: int, multiple: int) -> None:
    found = largest_batch(lambda batch: linear(batch, limit), multiple=multiple)
    assert found.batch % multiple == 0
    assert found.account.fits
    assert not linear(found.batch + multiple, limit).fits
    assert len(found.tried) <= 12


def test_a_start_that_is_too_large_is_no_hindrance() -> None:
    assert (
        largest_batch(lambda batch: linear(batch, 500), start=4096).batch
        == largest_batch(lambda b: linear(b, 500)).batch
    )


def test_where_every_batch_fits_the_most_is_returned() -> None:
    found = largest_batch(linear, most=64)
    assert (found.batch, found.too_large) == (64, None)


def test_where_not_even_the_smallest_fits_it_is_said() -> None:
    with pytest.raises(RunFailed, match="a batch of 1 does not fit"):
        largest_batch(lambda batch: linear(batch, 100))


def test_a_multiple_above_the_most_is_refused() -> None:
    with pytest.raises(UsageError, match="no batch size is a multiple of 8 and at most 4"):
        largest_batch(linear, multiple=8, most=4)


def test_a_convolutions_gradient_that_the_program_copied_into_another_shape_is_taken_as_it_is() -> None:
    make = Maker()
    make.step(0)
    weight, data, came = (make.allocate(MIB, "activation") for _ in range(3))
    across = TensorSpec((2, 3, 4, 8, 16), (1536, 512, 128, 1, 8), "float32", came)
    copied = make.op("clone.default", "backward", MIB, "temporary", inputs=(across,))
    make.ops[-1] = replace(
        make.ops[-1], outputs=(TensorSpec(across.shape, (1536, 512, 128, 16, 1), "float32", copied),)
    )
    gradient = TensorSpec((2, 96, 4, 4), (1536, 16, 4, 1), "float32", copied)
    inputs = gradient, TensorSpec((2, 32, 4, 4), (512, 16, 4, 1), "float32", data), TensorSpec(
        (96, 32, 1, 1), (32, 1, 1, 1), "float32", weight
    )  # fmt: skip
    make.op("convolution_backward.default", "backward", MIB, "gradient", inputs=inputs)
    arguments = *({"tensor": n} for n in range(3)), [96], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    make.ops[-1] = replace(make.ops[-1], arguments=arguments)
    assert account(make.trace(1), H200).peak_allocated_bytes >= 5 * MIB
