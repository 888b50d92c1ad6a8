"""What one rank holds, checked against arithmetic done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.predict.memory.sharding import Layout, ModelFootprint, Tied, in_flight, rank_memory, split_stages

MIB = 2**20

# Four units of 100 parameters bytes, pure bf16 with a master copy: 1 : 1 : 6; activations of 80 each at batch 4.
FOUR = ModelFootprint(
    parameters_bytes={"a": 100.0, "b": 100.0, "c": 100.0, "d": 100.0},
    activations_bytes={"a": 80.0, "b": 80.0, "c": 80.0, "d": 80.0},
    gradients_bytes=400.0,
    optimizer_bytes=2400.0,
    temporary_bytes=40.0,
    workspace_bytes=7.0,
    context_bytes=11.0,
    batch=4,
    parameters=200,
    boundary_bytes=8.0,
    replicated_share=0.25,
)


def test_one_rank_holds_the_whole_footprint() -> None:
    memory = rank_memory(FOUR, Layout(micro_batch=4))
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (400, 400, 2400)
    assert (memory.activations_bytes, memory.temporary_bytes, memory.buffers_bytes) == (320, 40, 0)
    assert memory.device_bytes == 400 + 400 + 2400 + 320 + 40 + 7 + 11
    assert memory.allocated_bytes == memory.device_bytes - 11


def test_activations_and_temporaries_follow_the_micro_batch() -> None:
    memory = rank_memory(FOUR, Layout(micro_batch=1))
    assert (memory.activations_bytes, memory.temporary_bytes) == (80, 10)


@for_each(
    "zero, parameters, gradients, optimizer",
    [(0, 400, 400, 2400), (1, 400, 400, 300), (2, 400, 50, 300), (3, 50, 50, 300)],
)
def test_each_stage_of_zero_shards_one_more_part_over_eight_ranks(
    zero: int, parameters: float, gradients: float, optimizer: float
) -> None:
    memory = rank_memory(FOUR, Layout(data=8, zero=zero))
    assert (memory.parameters_bytes, memory.gradients_bytes) == (parameters, gradients)
    assert memory.optimizer_bytes == optimizer


def test_replicas_hold_their_buckets_as_another_copy_of_the_gradients() -> None:
    assert rank_memory(FOUR, Layout(data=2)).buffers_bytes == 400


def test_sharded_states_need_two_buckets_at_most() -> None:
    big = replace(FOUR, parameters_bytes={"a": 4e9}, activations_bytes={"a": 1.0}, gradients_bytes=4e9)
    assert rank_memory(big, Layout(data=2, zero=1)).buffers_bytes == 2 * 25 * MIB
    assert rank_memory(FOUR, Layout(data=2, zero=2)).buffers_bytes == 400


def test_fully_sharded_ranks_hold_two_gathered_units_and_one_gradient() -> None:
    uneven = replace(FOUR, parameters_bytes={"a": 100.0, "b": 180.0, "c": 60.0, "d": 60.0})
    memory = rank_memory(uneven, Layout(data=4, zero=3))
    assert memory.buffers_bytes == 180 + 100 + 180
    assert memory.parameters_bytes == 100


def test_the_usual_sixteen_bytes_per_parameter_of_bf16_adam_are_there() -> None:
    count = 10**9
    footprint = ModelFootprint(
        {"all": 2.0 * count}, {"all": 0.0}, gradients_bytes=2.0 * count, optimizer_bytes=12.0 * count
    )
    held = rank_memory(footprint, Layout(data=64, zero=1))
    assert held.parameters_bytes + held.gradients_bytes + held.optimizer_bytes == pytest.approx(count * (4 + 12 / 64))
    held = rank_memory(footprint, Layout(data=64, zero=2))
    assert held.parameters_bytes + held.gradients_bytes + held.optimizer_bytes == pytest.approx(count * (2 + 14 / 64))
    held = rank_memory(footprint, Layout(data=64, zero=3))
    assert held.parameters_bytes + held.gradients_bytes + held.optimizer_bytes == pytest.approx(count * 16 / 64)


def test_tensor_parallel_ranks_share_all_but_what_is_replicated() -> None:
    memory = rank_memory(FOUR, Layout(tensor=4, micro_batch=4))
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (100, 100, 600)
    assert memory.activations_bytes == 4 * (20 + 60 / 4)
    assert memory.temporary_bytes == 10


def test_sequence_parallel_ranks_share_all() -> None:
    assert rank_memory(FOUR, Layout(tensor=4, micro_batch=4, sequence_parallel=True)).activations_bytes == 80


def test_the_formulas_of_korthikanti_hold_for_one_layer() -> None:
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    core = 5.0 * a * s * s * b
    layer = ModelFootprint(
        {"layer": 1.0},
        {"layer": 34.0 * s * b * h + core},
        gradients_bytes=1.0,
        optimizer_bytes=1.0,
        batch=b,
        boundary_bytes=2.0 * s * b * h,
        selective_bytes={"layer": core},
    )
    cases = {
        (False, "none"): s * b * h * (10 + 24 / t + 5 * a * s / (h * t)),
        (True, "none"): s * b * h / t * (34 + 5 * a * s / h),
        (False, "selective"): s * b * h * (10 + 24 / t),
        (True, "selective"): s * b * h / t * 34,
        (False, "full"): 2 * s * b * h,
    }
    for (sequence, recompute), expected in cases.items():
        layout = Layout(tensor=t, micro_batch=b, sequence_parallel=sequence, recompute=recompute)  # type: ignore[arg-type]
        assert rank_memory(layer, layout).activations_bytes == pytest.approx(expected), (sequence, recompute)


def test_what_full_recomputation_brings_back_is_temporary() -> None:
    memory = rank_memory(FOUR, Layout(micro_batch=4, recompute="full"))
    assert memory.activations_bytes == 4 * 8
    assert memory.temporary_bytes == 80


def test_the_first_stage_of_a_pipeline_holds_one_micro_batch_per_stage() -> None:
    layout = Layout(pipeline=4, micro_batches=16, micro_batch=4)
    assert [in_flight(layout, stage) for stage in range(4)] == [4, 3, 2, 1]
    memory = rank_memory(FOUR, layout)
    assert (memory.parameters_bytes, memory.activations_bytes) == (100, 4 * 80)


def test_fewer_micro_batches_than_stages_are_all_that_is_held() -> None:
    assert in_flight(Layout(pipeline=4, micro_batches=2), 0) == 2


def test_interleaved_stages_hold_a_little_more() -> None:
    layout = Layout(pipeline=8, micro_batches=64, interleave=3)
    assert in_flight(layout, 0) == pytest.approx(8 * (1 + 7 / 24))


def test_stages_are_cut_where_bytes_are_even_and_none_stays_empty() -> None:
    uneven = ModelFootprint(
        {"a": 50.0, "b": 10.0, "c": 10.0, "d": 10.0, "e": 20.0},
        {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0},
        gradients_bytes=1.0,
        optimizer_bytes=1.0,
    )
    assert split_stages(uneven, 2) == [["a"], ["b", "c", "d", "e"]]
    assert [len(stage) for stage in split_stages(uneven, 5)] == [1, 1, 1, 1, 1]
    heavy_end = replace(uneven, parameters_bytes={"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 100.0})
    assert all(split_stages(heavy_end, 3))
    assert [name for stage in split_stages(heavy_end, 3) for name in stage] == ["a", "b", "c", "d", "e"]


def test_a_stage_with_the_large_temporary_is_not_charged_to_the_others() -> None:
    head = replace(FOUR, unit_temporary_bytes={"a": 4.0, "d": 4000.0})
    memory = rank_memory(head, Layout(pipeline=4, micro_batch=4, micro_batches=1))
    assert memory.temporary_bytes == 4000
    first_only = replace(FOUR, unit_temporary_bytes={"a": 4.0})
    assert rank_memory(first_only, Layout(pipeline=4, micro_batch=4, micro_batches=8)).temporary_bytes == 4


def test_temporaries_of_the_update_count_only_beyond_the_activations() -> None:
    update = replace(FOUR, update_bytes=1000.0)
    assert rank_memory(update, Layout(micro_batch=4)).temporary_bytes == 1000 - 320
    assert rank_memory(update, Layout(data=10, zero=1, micro_batch=4)).temporary_bytes == 40


def test_an_optimizer_on_the_host_leaves_its_states_there_and_costs_the_way() -> None:
    layout = Layout(data=4, zero=1, optimizer_on="host")
    memory = rank_memory(FOUR, layout, host_bytes_per_s=100.0)
    assert memory.optimizer_bytes == 0
    assert memory.host_bytes == 600 + 400
    assert memory.offload_s == (400 + 400) / 100


def test_an_optimizer_on_nvme_is_read_and_written_each_step() -> None:
    memory = rank_memory(FOUR, Layout(optimizer_on="nvme"), host_bytes_per_s=100.0, nvme_bytes_per_s=10.0)
    assert (memory.nvme_bytes, memory.host_bytes) == (2400, 400)
    assert memory.offload_s == pytest.approx(800 / 100 + 2 * 2400 / 10)


def test_parameters_outside_pass_for_forward_and_for_backward_of_each_micro_batch() -> None:
    layout = Layout(data=4, zero=3, micro_batches=3, parameters_on="host")
    memory = rank_memory(FOUR, layout, host_bytes_per_s=100.0)
    assert (memory.parameters_bytes, memory.host_bytes) == (0, 100)
    assert memory.offload_s == pytest.approx(2 * 3 * 100 / 100)
    slower = rank_memory(FOUR, replace(layout, parameters_on="nvme"), host_bytes_per_s=100.0, nvme_bytes_per_s=50.0)
    assert slower.offload_s == pytest.approx(2 * 3 * 100 * (1 / 100 + 1 / 50))


@for_each(
    "said, words",
    [
        ({"zero": 4}, "ZeRO stage is 4"),
        ({"data": 0}, "data of a layout is 0"),
        ({"parameters_on": "host"}, "only sharded parameters"),
        ({"interleave": 2}, "need a pipeline"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_in_a_sentence(said: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Layout(**said)  # type: ignore[arg-type]


def test_more_stages_than_units_are_refused() -> None:
    with pytest.raises(UsageError, match="5 stages needs 5 layers or more, but the model has 4"):
        rank_memory(FOUR, Layout(pipeline=5))


@for_each(
    "change",
    [{"gradients_bytes": -1.0}, {"temporary_bytes": math.nan}, {"parameters_bytes": {}}, {"batch": 0}],
)
def test_a_footprint_of_nonsense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="footprint"):
        replace(FOUR, **change)  # type: ignore[arg-type]


def test_degrees_and_batches_multiply() -> None:
    layout = Layout(data=4, tensor=2, pipeline=3, micro_batch=5, micro_batches=7)
    assert (layout.ranks, layout.global_batch) == (24, 140)


def test_what_a_unit_computes_again_stands_beside_its_own_temporaries() -> None:
    footprint = ModelFootprint(
        {"block": 1.0, "head": 1.0},
        {"block": 10.0, "head": 6.0},
        gradients_bytes=2.0,
        optimizer_bytes=0.0,
        unit_temporary_bytes={"block": 1.0, "head": 8.0},
        boundary_bytes=2.0,
        replicated_share=0.0,
    )
    memory = rank_memory(footprint, Layout(recompute="full"))
    assert memory.activations_bytes == 2 + 2
    assert memory.temporary_bytes == 6 + 8


def test_a_rank_keeps_the_share_of_slack_that_the_whole_step_has() -> None:
    slack = replace(FOUR, slack_share=0.5)
    whole, replica = (rank_memory(slack, Layout(data, micro_batch=4)) for data in (1, 2))
    assert whole.slack_bytes == whole.allocated_bytes / 2
    assert whole.reserved_bytes == 1.5 * whole.allocated_bytes
    assert whole.device_bytes == whole.reserved_bytes + 11
    assert (
        whole.least_device_bytes == whole.allocated_bytes + 11 == rank_memory(FOUR, Layout(micro_batch=4)).device_bytes
    )
    assert replica.device_bytes == whole.device_bytes + 1.5 * 400
    outside = rank_memory(slack, Layout(optimizer_on="host", micro_batch=4))
    assert outside.slack_bytes == whole.slack_bytes - 2400 / 2


def test_a_stage_without_the_owner_holds_a_copy_of_tied_parameters() -> None:
    tied = replace(
        FOUR, tied=[Tied("a", "c", 50.0), Tied("a", "d", 50.0)], activations_bytes=dict.fromkeys("abcd", 0.0)
    )
    together, apart = (rank_memory(tied, Layout(pipeline=each)) for each in (1, 2))
    assert together.parameters_bytes == 400
    assert (apart.parameters_bytes, apart.gradients_bytes, apart.optimizer_bytes) == (250, 250, 1500)
    assert rank_memory(tied, Layout(data=2, pipeline=2)).buffers_bytes == 250
