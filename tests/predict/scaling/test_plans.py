"""The search for a plan: nothing is left out, nothing that does not fit is taken."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout, rank_memory
from fairmile.predict.scaling.data_parallel import DataParallelModel, OneGpuStep
from fairmile.predict.scaling.plans import (
    Choices,
    TracedPlanner,
    TransformerPlanner,
    choose,
    divisors,
    enumerate_layouts,
)
from fairmile.predict.scaling.step import NodeModel, StepParts, TwoLevelLinks
from fairmile.predict.scaling.transformer import TransformerModel

GIB = 2**30
SMALL = Transformer(batch=1, layers=24, hidden=1024, heads=16, seq=1024, vocab=50257, precision="pure_bf16")
LARGE = Transformer(batch=1, layers=96, hidden=12288, heads=96, seq=2048, vocab=51200, precision="pure_bf16")
LINKS = TwoLevelLinks(100e9, 100e9)


def _planner(model: Transformer, memory_bytes: float | None, **choices: object) -> TransformerPlanner:
    return TransformerPlanner(model, TransformerModel(), memory_bytes, Choices(**choices))  # type: ignore[arg-type]


def _traced(memory_bytes: float | None, **choices: object) -> TracedPlanner:
    said = {"kind": "cnn", "side": [224, 224], "form": "resnet", "depths": [3, 4, 6, 3], "dense": [1000], "batch": 64}
    model = DataParallelModel(closed_form(said).footprint, OneGpuStep(0.1, 64), LINKS, NodeModel(gpus_per_node=4))
    planner = TracedPlanner(model, memory_bytes)
    planner.choices = replace(planner.choices, **choices)  # type: ignore[arg-type]
    return planner


def test_every_way_to_multiply_to_the_gpus_is_tried() -> None:
    choices = Choices(zero=(0,), recompute=("none",))
    found = list(enumerate_layouts(8, 16, [1, 2, 4, 8], [1, 2, 4, 8], choices))
    seen = {(each.data, each.tensor, each.pipeline, each.micro_batch) for each in found}
    degrees = [
        (8 // (t * p), t, p) for t, p in itertools.product([1, 2, 4, 8], repeat=2) if t * p <= 8 and 8 % (t * p) == 0
    ]
    expected = {(d, t, p, b) for d, t, p in degrees for b in divisors(16 // d)}
    assert seen == expected and len(found) == len(expected)
    assert all(each.ranks == 8 and each.global_batch == 16 for each in found)


def test_gradients_and_parameters_are_not_sharded_under_a_pipeline_nor_over_one_rank() -> None:
    found = list(enumerate_layouts(4, 4, [1], [1, 2, 4], Choices(recompute=("none",))))
    assert {each.zero for each in found if each.pipeline == 2} == {0, 1}
    assert {each.zero for each in found if each.data == 1} == {0}
    assert {each.zero for each in found if each.pipeline == 1} == {0, 1, 2, 3}


def test_the_best_plan_is_the_fastest_of_all_that_fit() -> None:
    planner = _planner(SMALL, 8 * GIB)
    found = planner.search(16, 64, keep=1000)
    usable = 8 * GIB
    times = [plan.step_time_s for plan in found.plans]
    assert times[1:] == sorted(times[1:])
    assert times[0] <= 1.003 * min(times)
    assert all(plan.memory.device_bytes <= usable for plan in found.plans)
    fitting = {plan.layout for plan in found.plans}
    choices = replace(planner.choices, recompute=("none", "full"))
    layouts = list(enumerate_layouts(16, 64, [1, 2, 4, 8], [p for p in divisors(16) if 24 % p == 0], choices))
    by_hand = {each for each in layouts if rank_memory(planner.footprint, each).device_bytes <= usable}
    assert fitting == by_hand
    assert found.tried == len(layouts) > len(fitting) > 0


def test_a_large_model_is_split_until_it_fits() -> None:
    found = _planner(LARGE, 80 * GIB).search(1024, 1536)
    assert found.best is not None
    assert found.best.layout.tensor * found.best.layout.pipeline > 4
    assert found.best.memory.device_bytes < 80 * GIB


def test_a_small_model_stays_data_parallel() -> None:
    best = _planner(SMALL, 80 * GIB).search(64, 512).best
    assert best is not None
    assert best.layout == Layout(data=64, micro_batch=8), "nothing is sharded, and all samples go at once"


def test_less_memory_never_gives_a_faster_plan() -> None:
    times = []
    for memory in (None, 80 * GIB, 40 * GIB, 20 * GIB, 10 * GIB):
        best = _planner(SMALL, memory).search(16, 128).best
        assert best is not None
        times.append(best.step_time_s)
    assert times == sorted(times)


def test_where_nothing_fits_the_smallest_need_is_told() -> None:
    found = _planner(LARGE, 16 * GIB).search(8, 8)
    assert found.best is None and found.tried > 0
    assert 16 * GIB < found.least_bytes < 700 * GIB


def test_heads_and_layers_limit_how_a_transformer_is_split() -> None:
    odd = SMALL.model_copy(update={"heads": 2, "layers": 3})
    found = _planner(odd, None).search(64, 64, keep=10_000)
    assert {plan.layout.tensor for plan in found.plans} == {1, 2}
    assert {plan.layout.pipeline for plan in found.plans} == {1}
    assert all(plan.layout.recompute != "selective" for plan in found.plans)


def test_a_search_of_4096_gpus_is_not_cut_short() -> None:
    found = _planner(LARGE, 80 * GIB, recompute=("none", "full")).search(4096, 6144, keep=3)
    assert found.tried > 500 and len(found.plans) == 3


def test_a_traced_model_is_not_split_unless_it_is_asked_for() -> None:
    plans = _traced(None).search(8, 64, keep=10_000).plans
    assert {(plan.layout.tensor, plan.layout.pipeline) for plan in plans} == {(1, 1)}
    staged = _traced(None, most_pipeline=4).search(8, 64, keep=10_000).plans
    assert {plan.layout.pipeline for plan in staged} == {1, 2, 4}


def test_a_traced_model_takes_the_largest_micro_batch_that_fits() -> None:
    roomy, narrow = (_traced(memory).search(1, 64).best for memory in (None, 4 * GIB))
    assert roomy is not None and narrow is not None
    assert roomy.layout == Layout(micro_batch=64)
    assert narrow.layout.micro_batch < 64
    assert narrow.step_time_s > roomy.step_time_s


def test_offload_is_tried_where_it_is_allowed() -> None:
    tight = _planner(SMALL, 6 * GIB, offload=True).search(1, 1)
    without = _planner(SMALL, 6 * GIB).search(1, 1)
    assert without.best is None
    assert tight.best is not None and tight.best.layout.optimizer_on == "host"
    assert tight.best.memory.host_bytes > 0


def test_no_gpus_or_no_samples_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="expected at least one of each"):
        list(enumerate_layouts(0, 1, [1], [1], Choices()))


def test_divisors_are_complete() -> None:
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(1) == [1]


def test_a_plan_is_more_complex_only_where_that_is_worth_it() -> None:
    footprint = closed_form(SMALL).footprint
    plain, sharded, split = Layout(8), Layout(8, zero=1), Layout(4, tensor=2)
    timed = [(StepParts(1.0), split), (StepParts(1.02), sharded), (StepParts(1.04), plain)]
    assert [plan.layout for plan in choose(timed, footprint, None, 3).plans] == [plain, split, sharded]
    assert [plan.layout for plan in choose(timed, footprint, None, 1).plans] == [plain]
    slower = [*timed[:2], (StepParts(1.06), plain)]
    best = choose(slower, footprint, None, 1).best
    assert best is not None and best.layout == sharded
    # The simplest must fit, too.
    room = rank_memory(footprint, sharded).device_bytes
    tight = choose(timed, footprint, room, 1).best
    assert tight is not None and tight.layout == sharded


def test_a_plan_has_room_for_all_that_the_allocator_reserves() -> None:
    footprint = replace(closed_form(SMALL).footprint, slack_share=1.0)
    need = rank_memory(footprint, Layout())
    for room, fits in ((need.device_bytes, True), (need.device_bytes - 1, False)):
        assert bool(choose([(StepParts(1.0), Layout())], footprint, room, 1).plans) is fits
    assert need.device_bytes > 1.9 * need.allocated_bytes


def test_plans_of_a_transformer_count_the_libraries_of_their_device() -> None:
    usual = _planner(SMALL, None).footprint
    other = TransformerPlanner(SMALL, TransformerModel(), None, device=device("a100-40gb")).footprint
    assert other.workspace_bytes < usual.workspace_bytes and other.context_bytes < usual.context_bytes
    assert usual.tied
