"""What each block of a traced step holds, from steps in which every byte is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import for_each
from step_making import step_trace

from fairmile.costs.steps import Op, StepTrace, TensorSpec
from fairmile.predict.memory.footprints import batch_of, footprint_of, unit_of
from fairmile.predict.memory.sharding import Layout, Tied, rank_memory


def test_parameters_and_what_is_kept_for_backward_stand_by_block_in_the_order_of_forward() -> None:
    found = footprint_of(step_trace(batch=4), batch=4, peak_bytes=100_000)
    assert list(found.parameters_bytes.items()) == [("blocks.0", 4000.0), ("blocks.1", 4000.0), ("head", 2000.0)]
    assert list(found.activations_bytes.items()) == [("blocks.0", 1600.0), ("blocks.1", 1600.0), ("head", 1600.0)]
    assert (found.gradients_bytes, found.optimizer_bytes) == (10_000, 20_000)
    assert (found.batch, found.parameters) == (4, 2500)


def test_what_the_peak_holds_beyond_that_is_temporary() -> None:
    known = 10_000 + 10_000 + 20_000 + 3 * 1600 + 700
    found = footprint_of(step_trace(), batch=4, peak_bytes=known + 123, workspace_bytes=700, context_bytes=999)
    assert (found.temporary_bytes, found.workspace_bytes, found.context_bytes) == (123, 700, 999)
    # The peak may be at another moment than the most of each part.
    assert footprint_of(step_trace(), batch=4, peak_bytes=known - 1, workspace_bytes=700).temporary_bytes == 0


def test_a_block_hands_over_what_most_blocks_take() -> None:
    # The first takes 100 bytes of a sample, the two others 400.
    assert footprint_of(step_trace(batch=8), batch=8, peak_bytes=0).boundary_bytes == 8 * 400


def test_without_an_input_that_has_all_samples_nothing_is_handed_over() -> None:
    assert footprint_of(step_trace(batch=8), batch=7, peak_bytes=0).boundary_bytes == 0


def test_of_inference_the_fullest_moment_counts() -> None:
    found = footprint_of(step_trace(batch=4, training=False), batch=4, peak_bytes=0)
    # Two neighbours are alive at once, the first of the fullest moments counts.
    assert list(found.activations_bytes.values()) == [1600, 1600, 0]
    assert (found.gradients_bytes, found.optimizer_bytes) == (0, 0)


def test_a_trace_without_anything_has_one_empty_block() -> None:
    nothing = StepTrace([], [], [], 0, "fp32", True, 0)
    found = footprint_of(nothing, batch=batch_of(nothing), peak_bytes=10)
    assert (dict(found.parameters_bytes), found.batch, found.temporary_bytes) == ({"": 0.0}, 1, 10)


def test_half_as_many_samples_keep_half_as_much() -> None:
    found = footprint_of(step_trace(batch=8), batch=8, peak_bytes=0)
    whole, half = (rank_memory(found, Layout(micro_batch=batch)) for batch in (8, 4))
    assert (whole.activations_bytes, half.activations_bytes) == (3 * 8 * 400, 3 * 4 * 400)
    assert whole.parameters_bytes == half.parameters_bytes == 10_000


def test_copies_that_autocast_makes_of_parameters_are_as_large_with_any_batch() -> None:
    trace = step_trace(batch=8)
    weight = next(at for at, each in enumerate(trace.storages) if each.category == "parameter")
    cast = Op("aten._to_copy.default", "forward", "blocks.0", (TensorSpec((1000,), (1,), "float32", weight),), ())
    storages = [
        replace(each, op=len(trace.ops))
        if (each.category, unit_of(each.module)) == ("activation", "blocks.0")
        else each
        for each in trace.storages
    ]
    found = footprint_of(replace(trace, ops=[*trace.ops, cast], storages=storages), batch=8, peak_bytes=0)
    assert found.copies_bytes is not None and found.copies_bytes["blocks.0"] == 8 * 400
    assert found.activations_bytes["blocks.0"] == 0
    whole, half = (rank_memory(found, Layout(micro_batch=batch)) for batch in (8, 4))
    assert (whole.activations_bytes, half.activations_bytes) == (3 * 8 * 400, 2 * 4 * 400 + 8 * 400)


@for_each("batch", [1, 4, 25])
def test_the_batch_is_the_first_length_of_inputs_as_they_are_made(batch: int) -> None:
    assert batch_of(step_trace(batch=batch, steps=3)) == batch


def test_a_program_can_tell_its_batch_itself() -> None:
    assert batch_of(replace(step_trace(batch=4), samples=3)) == 3


def test_views_of_an_input_do_not_count_however_many_there_are() -> None:
    trace = step_trace(batch=4, steps=1)
    view = next(op for op in trace.ops if op.name == "aten.view.default")
    assert batch_of(replace(trace, ops=[*trace.ops, *[view] * 9])) == 4


@for_each(
    "module, unit",
    [
        ("h.3.mlp.0", "h.3"),
        ("layer1.0.conv1", "layer1.0"),
        ("stem.conv", "stem"),
        ("6", "6"),
        ("encoder.layers.11.attention", "encoder.layers.11"),
        ("", ""),
    ],
)
def test_a_module_belongs_to_its_first_numbered_block(module: str, unit: str) -> None:
    assert unit_of(module) == unit


def test_the_share_of_slack_is_that_of_the_whole_step() -> None:
    found = footprint_of(step_trace(), batch=4, peak_bytes=100_000, reserved_bytes=178_000)
    assert found.slack_share == pytest.approx(0.78)
    assert footprint_of(step_trace(), batch=4, peak_bytes=0).slack_share == 0


def test_a_block_that_reads_parameters_of_another_is_tied_to_it() -> None:
    trace = step_trace(batch=8)
    assert footprint_of(trace, batch=8, peak_bytes=0).tied == []
    weight = next(at for at, each in enumerate(trace.storages) if each.category == "parameter")
    owner, size = trace.storages[weight].module, trace.storages[weight].size_bytes
    reads = Op("aten.mm.default", "forward", "head", (TensorSpec((1000,), (1,), "float32", weight),), ())
    found = footprint_of(replace(trace, ops=[*trace.ops, reads, reads]), batch=8, peak_bytes=0)
    assert found.tied == [Tied(unit_of(owner), "head", size)]
    updated = replace(reads, phase="optimizer")
    assert footprint_of(replace(trace, ops=[*trace.ops, updated]), batch=8, peak_bytes=0).tied == []
