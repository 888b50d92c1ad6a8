"""The step of a transformer: what each part of the layout does to it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.step import NodeModel, TwoLevelLinks
from fairmile.predict.scaling.transformer import Constants, TransformerModel

GPT = Transformer(
    batch=1, layers=48, hidden=8192, heads=64, seq=2048, vocab=51200, attention="math", precision="pure_bf16"
)
MODEL = TransformerModel()


def _time(layout: Layout, model: Transformer = GPT) -> float:
    return MODEL.step(model, layout).step_time_s


def test_the_parts_add_up_to_the_step() -> None:
    step = MODEL.step(GPT, Layout(data=8, tensor=4, pipeline=4, micro_batches=12, recompute="full"))
    assert sum(asdict(step).values()) == pytest.approx(step.step_time_s)
    assert min(asdict(step).values()) >= 0
    assert step.communication_s == pytest.approx(step.tensor_s + step.hops_s + step.data_s)


def test_large_matrices_run_near_the_efficiency_of_the_device() -> None:
    layout = Layout(micro_batch=8)
    flops = 6 * GPT.parameters * 8 * GPT.seq
    achieved = flops / _time(layout) / MODEL.machine.peak_flops
    assert 0.4 < achieved < Constants().matrix_efficiency


def test_full_recomputation_costs_about_one_more_forward() -> None:
    ratio = _time(Layout(micro_batch=4, recompute="full")) / _time(Layout(micro_batch=4))
    assert 1.25 < ratio < 1.38
    selective = _time(Layout(micro_batch=4, recompute="selective")) / _time(Layout(micro_batch=4))
    assert 1.0 < selective < ratio


def test_the_bubble_of_a_pipeline_shrinks_with_micro_batches_and_interleaving() -> None:
    few = MODEL.step(GPT, Layout(pipeline=8, micro_batches=8))
    many = MODEL.step(GPT, Layout(pipeline=8, micro_batches=64))
    assert few.bubble_s == pytest.approx(many.bubble_s)
    assert few.bubble_s / few.step_time_s > 4 * many.bubble_s / many.step_time_s
    thirds = MODEL.step(GPT, Layout(pipeline=8, micro_batches=8, interleave=3))
    assert thirds.bubble_s == pytest.approx(few.bubble_s / 3)
    assert thirds.hops_s > few.hops_s
    assert MODEL.step(GPT, Layout()).bubble_s == 0


def test_tensor_parallelism_over_two_nodes_is_held_back_by_the_network() -> None:
    slow = TransformerModel(Constants(node_bytes_per_s=20e9))
    inside, across = (slow.step(GPT, Layout(tensor=tensor)).tensor_s for tensor in (8, 16))
    assert across > 5 * inside
    assert slow.step(GPT, Layout(tensor=1)).tensor_s == 0


def test_a_host_that_launches_slowly_sets_a_floor_for_small_models() -> None:
    tiny = Transformer(batch=1, layers=12, hidden=256, heads=4, seq=64, vocab=1000)
    constants = Constants()
    floor = 12 * 3 * constants.layer_launch_s
    assert MODEL.step(tiny, Layout()).compute_s > floor
    quick = TransformerModel(replace(constants, layer_launch_s=1e-9))
    assert quick.step(tiny, Layout()).compute_s < 0.3 * floor


def test_gradients_hide_behind_backward_only_where_they_overlap_it() -> None:
    layout = Layout(data=64, tensor=8, micro_batch=16, micro_batches=2)
    after = TransformerModel().step(GPT, layout).data_s
    hidden = TransformerModel(overlap=0.9).step(GPT, layout).data_s
    assert hidden == pytest.approx(0.05 * after)


def test_the_data_parallel_groups_of_a_node_share_its_adapters() -> None:
    one, four = (MODEL.step(GPT, Layout(data=16, tensor=tensor)).data_s for tensor in (1, 4))
    parameters = GPT.parameters * 4.0
    constants = MODEL.constants
    nodes = 8
    expected = 2 * (nodes - 1) / nodes * parameters / 4 * 4 / constants.node_bytes_per_s + constants.collective_s
    assert four == pytest.approx(expected)
    assert one == pytest.approx(2 * 1 / 2 * parameters / constants.node_bytes_per_s + constants.collective_s)


def test_sharded_parameters_are_gathered_and_gradients_scattered_for_each_micro_batch() -> None:
    plain, updates, gradients, parameters = (
        MODEL.step(GPT, Layout(data=64, zero=zero, micro_batches=4)).data_s for zero in range(4)
    )
    assert updates == plain
    # A reduction is a scattering and a gathering of fp32, of parameters only half as many bytes are gathered.
    assert gradients == pytest.approx(plain * (0.5 * 4 + 0.5))
    assert parameters == pytest.approx(plain * (0.5 + 0.25 * 2) * 4)


def test_sixteen_bits_move_half_of_what_32_bits_do() -> None:
    layout = Layout(tensor=8, pipeline=2, micro_batches=4)
    half, whole = (
        MODEL.step(GPT.model_copy(update={"precision": precision}), layout) for precision in ("pure_bf16", "fp32")
    )
    assert half.hops_s < whole.hops_s < 2 * half.hops_s
    assert half.tensor_s < whole.tensor_s and half.compute_s < whole.compute_s


def test_sharded_optimizers_update_their_share() -> None:
    plain, sharded = (MODEL.step(GPT, Layout(data=64, zero=zero)).optimizer_s for zero in (0, 1))
    assert sharded == pytest.approx(plain / 64)


def test_given_collectives_are_asked_instead_of_the_constants() -> None:
    links = TwoLevelLinks(inside_bytes_per_s=100e9, node_bytes_per_s=100e9)
    model = TransformerModel(collectives=links, machine=NodeModel(gpus_per_node=4, rails=4))
    layout = Layout(data=8, tensor=4)
    step = model.step(GPT, layout)
    blocks = GPT.layers * GPT.layer_parameters + GPT.embedding_parameters + GPT.head_parameters
    # Four groups of one rank per node use an adapter each: nothing is shared.
    assert step.data_s == pytest.approx(links.time_s("all_reduce", blocks / 4 * 4.0, 8, nodes=8))


def test_waiting_grows_with_the_logarithm_of_the_ranks() -> None:
    model = TransformerModel(straggling=0.02)
    waits = [model.step(GPT, Layout(data=data)).wait_s for data in (1, 10, 100)]
    assert waits[0] == 0
    assert waits[2] == pytest.approx(2 * waits[1])


def test_a_device_of_more_bandwidth_has_constants_of_its_own() -> None:
    assert Constants.of_device(4.8e12).memory_bytes_per_s == pytest.approx(0.77 * 4.8e12)
