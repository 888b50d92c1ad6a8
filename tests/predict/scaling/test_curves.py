"""Scaling curves: efficiency, cost and where it stops being worth it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.links import Link, Topology
from fairmile.costs.collectives.measure import model_of_partition
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout, ModelFootprint, Recompute, rank_memory
from fairmile.predict.scaling.curves import (
    Goal,
    ScalingPrediction,
    lost_words,
    parse_gpus,
    predict_scaling,
    predict_transformer_scaling,
    scaling_curve,
)
from fairmile.predict.scaling.data_parallel import OneGpuStep
from fairmile.predict.scaling.plans import BestPlans, LayoutPlan
from fairmile.predict.scaling.step import NodeModel, StepParts, TwoLevelLinks
from fairmile.systems.model import Gpu, Partition

GIB = 2**30
PARTITION = Partition(gpu=Gpu(count=4, model="A100", memory_gib=40), interconnect="4 × InfiniBand HDR")
TINY = ModelFootprint({"all": 1.0}, {"all": 1.0}, gradients_bytes=1.0, optimizer_bytes=1.0)
RESNET = closed_form(
    {"kind": "cnn", "side": [224, 224], "form": "resnet", "depths": [3, 4, 6, 3], "dense": [1000], "batch": 128}
)


class Told:
    """A planner whose plan, parts or time is told by the number of GPUs; 0 where nothing fits."""

    def __init__(self, times: Mapping[int, LayoutPlan | StepParts | float], tried: int = 3) -> None:
        self.times, self.tried = times, tried

    def search(self, gpus: int, global_batch: int, *, keep: int = 1) -> BestPlans:
        told = self.times[gpus]
        parts = StepParts(told) if isinstance(told, float) else told
        layout = Layout(data=gpus)
        plan = parts if isinstance(parts, LayoutPlan) else LayoutPlan(layout, parts, rank_memory(TINY, layout))
        return BestPlans([plan] if told else [], self.tried, 3.0 * GIB)


def _plan(gpus: int, recompute: Recompute, time_s: float) -> LayoutPlan:
    layout = Layout(data=gpus, recompute=recompute)
    return LayoutPlan(layout, StepParts(time_s), rank_memory(TINY, layout))


def _efficiencies(curve: ScalingPrediction) -> Sequence[float | None]:
    return [row.efficiency for row in curve.rows]


def test_strong_scaling_measures_against_the_fewest_gpus() -> None:
    curve = scaling_curve(Told({1: 8.0, 2: 5.0, 8: 2.0}), NodeModel(), [8, 1, 2], batch=64)
    assert [row.gpus for row in curve.rows] == [1, 2, 8]
    assert _efficiencies(curve) == pytest.approx([1.0, 0.8, 0.5])
    assert [row.samples_per_s for row in curve.rows] == pytest.approx([8.0, 12.8, 32.0])
    assert curve.worth_up_to == 2


def test_weak_scaling_grows_the_batch_with_the_gpus() -> None:
    curve = scaling_curve(Told({1: 1.0, 4: 1.25}), NodeModel(), [1, 4], mode="weak", batch=16)
    assert [row.global_batch for row in curve.rows] == [16, 64]
    assert _efficiencies(curve) == pytest.approx([1.0, 0.8])


def test_each_row_says_what_its_efficiency_is_lost_to() -> None:
    one = StepParts(compute_s=8.0, optimizer_s=1.0)
    eight = StepParts(compute_s=1.5, optimizer_s=1.0, data_s=0.4, bubble_s=0.25)
    curve = scaling_curve(Told({1: one, 8: eight}), NodeModel(), [1, 8], batch=64)
    assert curve.rows[0].lost == {}
    lost = curve.rows[1].lost
    whole_s = 8 * eight.step_time_s
    assert lost == pytest.approx(
        {
            "smaller kernels": 4.0 / whole_s,
            "optimizer updates": 7.0 / whole_s,
            "communication": 3.2 / whole_s,
            "pipeline bubbles": 2.0 / whole_s,
        }
    )
    assert sum(lost.values()) == pytest.approx(1 - (curve.rows[1].efficiency or 0))
    assert lost_words(lost) == "optimizer updates 28%, smaller kernels 16%"


def test_what_is_recomputed_is_not_called_smaller_kernels() -> None:
    plans = {1: _plan(1, "none", 8.0), 2: _plan(2, "full", 6.0)}
    curve = scaling_curve(Told(plans), NodeModel(), [1, 2], batch=64)
    assert curve.rows[1].lost == pytest.approx({"recomputation and smaller kernels": 1 / 3})


def test_losses_too_small_to_print_are_left_out() -> None:
    assert lost_words({"communication": 0.004, "input": -0.3}) == ""


def test_measured_collectives_replace_those_of_the_system_file(tmp_path: Path) -> None:
    rows = [
        {"collective": "all_reduce", "size_bytes": size, "ranks": ranks, "nodes": 1, "time_s": 1e-3 + size / 1e8}
        for ranks in (2, 4)
        for size in (1e3, 1e5, 1e7, 1e9)
    ]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"format": 1, "points": rows}))
    model = model_of_partition(file, PARTITION)
    assert model.time_s("all_reduce", 1e7, 4) == pytest.approx(0.101, rel=0.05)
    assert model.time_s("all_gather", 1e7, 4) == pytest.approx(0.05, rel=0.2), "about half of an all reduce"
    by_file = CollectiveModel.from_partition(PARTITION)
    assert model.time_s("all_reduce", 1e7, 8, nodes=2) == by_file.time_s("all_reduce", 1e7, 8, nodes=2)
    slow, usual = (
        predict_scaling(RESNET.footprint, OneGpuStep(0.35, 128), PARTITION, [1, 4], collectives=each)
        for each in (model, None)
    )
    assert slow.rows[1].lost["communication"] > 5 * usual.rows[1].lost["communication"]
    assert "measured inside a node: all reduce, up to 4 ranks (measured.json)" in slow.notes


@for_each("content, message", [("{}", "expected `format` 1"), ("\x00", "contains no measured times")])
def test_a_file_without_measured_collectives_is_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        model_of_partition(file, PARTITION)


def test_it_is_worth_it_only_up_to_the_first_fall_below_the_threshold() -> None:
    curve = scaling_curve(Told({1: 8.0, 2: 8.0, 4: 2.0}), NodeModel(), [1, 2, 4], batch=8)
    assert _efficiencies(curve) == pytest.approx([1.0, 0.5, 1.0])
    assert curve.worth_up_to == 1


def test_numbers_of_gpus_where_nothing_fits_say_why_and_are_no_base() -> None:
    curve = scaling_curve(Told({1: 0.0, 2: 4.0, 4: 2.0}), NodeModel(), [1, 2, 4], batch=8)
    assert curve.rows[0].plan is None
    assert "the smallest of 3 needs 3.0 GiB" in curve.rows[0].reason
    assert _efficiencies(curve)[1:] == pytest.approx([1.0, 1.0])
    assert curve.worth_up_to == 4
    uneven = scaling_curve(Told({3: 0.0}, tried=0), NodeModel(), [3], batch=8)
    assert "evenly among 3 GPUs" in uneven.rows[0].reason
    assert uneven.worth_up_to is None


def test_hours_energy_and_cost_follow_the_samples() -> None:
    goal = Goal(samples=6400, price_per_gpu_hour=3.0, power_w=500.0)
    row = scaling_curve(Told({4: 9.0}), NodeModel(), [4], batch=64, goal=goal).rows[0]
    assert row.wall_s == pytest.approx(900)
    assert row.gpu_hours == pytest.approx(1.0)
    assert row.cost == pytest.approx(3.0)
    assert row.energy_j == pytest.approx(900 * 4 * 500)
    assert row.energy_per_sample_j == pytest.approx(900 * 4 * 500 / 6400)


def test_power_of_the_machine_gives_energy_without_a_goal() -> None:
    row = scaling_curve(Told({4: 1.0}), NodeModel(power_w=250.0), [4], batch=4).rows[0]
    assert row.energy_per_sample_j == pytest.approx(250.0)
    assert row.gpu_hours is None


def test_the_power_of_the_machine_stands_in_where_a_goal_names_none() -> None:
    row = scaling_curve(Told({4: 1.0}), NodeModel(power_w=250.0), [4], batch=4, goal=Goal(samples=8)).rows[0]
    assert row.energy_j == pytest.approx(2000.0)


def test_each_step_has_an_interval_around_it() -> None:
    curve = scaling_curve(Told({1: 2.0, 2: 0.0}), NodeModel(), [1, 2], batch=4, spread=0.25)
    assert curve.rows[0].interval_s == pytest.approx((1.6, 2.5))
    assert curve.rows[1].interval_s is None


def test_the_prediction_is_plain_data() -> None:
    curve = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), PARTITION, [1, 4, 64], batch=1024)
    told = json.loads(json.dumps(curve.to_dict()))
    assert [row["gpus"] for row in told["rows"]] == [1, 4, 64]
    assert told["rows"][2]["nodes"] == 16
    assert set(told["rows"][0]["parts_s"]) >= {"compute_s", "data_s", "bubble_s", "wait_s"}
    assert told["rows"][2]["plan"]["data"] == 64
    assert told["notes"]


def test_strong_scaling_of_a_traced_model_loses_efficiency_and_stays_in_memory() -> None:
    gpus = [2**power for power in range(11)]
    curve = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), PARTITION, gpus, batch=4096)
    found = [row.efficiency or 0.0 for row in curve.rows]
    assert found == sorted(found, reverse=True) and found[-1] > 0
    assert all(row.plan is not None and row.plan.memory.device_bytes < 40 * GIB for row in curve.rows)
    assert curve.worth_up_to is not None and 4 <= curve.worth_up_to < 1024


def test_weak_scaling_of_a_traced_model_reaches_further_than_strong_scaling() -> None:
    gpus = [1, 16, 256, 1024]
    strong = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), PARTITION, gpus, batch=4096)
    weak = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), PARTITION, gpus, mode="weak")
    assert (weak.worth_up_to or 0) > (strong.worth_up_to or 0)
    assert weak.rows[-1].global_batch == 128 * 1024


def test_a_topology_or_a_machine_can_stand_for_a_partition() -> None:
    link = Link(1e-6, 1 / 100e9)
    by_topology = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), Topology(4, link, link, rails=4), [8])
    assert by_topology.rows[0].nodes == 2
    machine = NodeModel(gpus_per_node=2)
    links = TwoLevelLinks(1e11, 1e11)
    by_machine = predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), machine, [8], collectives=links)
    assert by_machine.rows[0].nodes == 4
    with pytest.raises(UsageError, match="model of its collectives"):
        predict_scaling(RESNET.footprint, OneGpuStep(0.1, 128), machine, [8])


def test_a_described_transformer_is_planned_at_every_number_of_gpus() -> None:
    said = Transformer(batch=4, layers=24, hidden=2048, heads=16, seq=1024, vocab=50257, precision="pure_bf16")
    curve = predict_transformer_scaling(said, PARTITION, [1, 8, 64, 4096], batch=4096)
    assert all(row.plan is not None for row in curve.rows)
    found = [row.efficiency for row in curve.rows]
    assert found[0] == 1.0 and found[-1] is not None and found[-1] < 1.0
    steps = [row.step_time_s or 0.0 for row in curve.rows]
    assert steps == sorted(steps, reverse=True)


def test_a_transformer_too_large_for_few_gpus_starts_where_it_fits() -> None:
    said = Transformer(batch=1, layers=48, hidden=8192, heads=64, seq=2048, vocab=51200, precision="pure_bf16")
    curve = predict_transformer_scaling(said, PARTITION, [1, 4, 128, 256], batch=512)
    assert [row.plan is None for row in curve.rows] == [True, True, False, False]
    assert "no layout fits" in curve.rows[0].reason
    assert curve.rows[2].efficiency == 1.0


@for_each("gpus, batch", [([], 1), ([0, 1], 1), ([1], 0)])
def test_no_gpus_or_no_batch_is_refused(gpus: list[int], batch: int) -> None:
    with pytest.raises(UsageError, match="expected"):
        scaling_curve(Told({1: 1.0}), NodeModel(), gpus, batch=batch)


@for_each(
    "text, counts",
    [
        ("8", [8]),
        ("1..4096", [2**power for power in range(13)]),
        ("4..20", [4, 8, 16, 20]),
        ("16, 1,4", [1, 4, 16]),
        ("1..4,96", [1, 2, 4, 96]),
    ],
)
def test_numbers_of_gpus_are_named_one_by_one_or_by_a_range_that_doubles(text: str, counts: list[int]) -> None:
    assert parse_gpus(text) == counts


@for_each("text", ["", "0", "8..4", "1..", "four", "1,,2", "-1", "1..99999999", "²"])
def test_what_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a (number|range) of GPUs"):
        parse_gpus(text)


def test_a_faster_device_trains_faster_and_an_unknown_one_is_told() -> None:
    said = Transformer(batch=4, layers=24, hidden=2048, heads=16, seq=1024, vocab=50257, precision="pure_bf16")
    steps = []
    for model in ("A100", "H200", "Unheard Of"):
        partition = Partition(gpu=Gpu(count=4, model=model, memory_gib=80), interconnect="4 × InfiniBand HDR")
        curve = predict_transformer_scaling(said, partition, [8], batch=256)
        steps.append(curve.rows[0].step_time_s or 0.0)
        assert any("not in the table" in note for note in curve.notes) == (model == "Unheard Of")
    assert steps[1] < 0.6 * steps[0]


def test_a_goal_that_cannot_be_is_told() -> None:
    for wrong in ({"samples": 0.0}, {"samples": float("nan")}, {"samples": 1.0, "price_per_gpu_hour": -1.0}):
        with pytest.raises(UsageError, match=r"expected (a number above 0|0 or more)"):
            Goal(**wrong)
    with pytest.raises(UsageError, match="needs the number of samples"):
        Goal(price_per_gpu_hour=2.0)


def test_more_gpus_than_the_machine_or_a_job_has_are_noted() -> None:
    small = PARTITION.model_copy(update={"nodes": 8, "max_nodes": 4})
    step = OneGpuStep(0.1, 128)
    notes = {count: predict_scaling(RESNET.footprint, step, small, [1, count]).notes for count in (16, 32, 64)}
    assert not any("more than" in note for note in notes[16])
    assert any("32 GPUs exceed the limit of 16 per job" in note for note in notes[32])
    assert any("the partition has 32 GPUs" in note for note in notes[64])


def test_efficiency_above_all_is_explained() -> None:
    assert any(
        "exceeds 100 %" in note for note in scaling_curve(Told({2: 4.0, 4: 1.0}), NodeModel(), [2, 4], batch=8).notes
    )
    assert not scaling_curve(Told({2: 4.0, 4: 2.0}), NodeModel(), [2, 4], batch=8).notes


def test_what_does_not_fit_is_told_beside_what_there_is() -> None:
    row = scaling_curve(Told({1: 0.0}), NodeModel(memory_bytes=2.0 * GIB), [1], batch=8).rows[0]
    assert row.reason.endswith("needs 3.0 GiB, a GPU has 2.0 GiB")


def test_a_transformer_in_32_bits_runs_at_the_rate_of_32_bits() -> None:
    said = Transformer(batch=4, layers=24, hidden=2048, heads=16, seq=1024, vocab=50257, precision="fp32")
    half = said.model_copy(update={"precision": "bf16"})
    whole_s, half_s = (
        predict_transformer_scaling(each, PARTITION, [8], batch=64).rows[0].step_time_s or 0.0 for each in (said, half)
    )
    assert whole_s > 5 * half_s  # an A100 has 19.5 and 312 Tflop/s


def test_a_description_keeps_its_recomputation_and_only_trains() -> None:
    said = Transformer(batch=4, layers=24, hidden=1024, heads=16, seq=512, vocab=50257, recompute="full")
    plan = predict_transformer_scaling(said, PARTITION, [8], batch=64).rows[0].plan
    assert plan is not None and plan.layout.recompute == "full"
    with pytest.raises(UsageError, match="for training only"):
        predict_transformer_scaling(said.model_copy(update={"training": False}), PARTITION, [8])


def test_a_device_without_units_for_bf16_is_told_of() -> None:
    said = Transformer(batch=1, layers=2, hidden=256, heads=4, seq=128, vocab=1000, precision="bf16")
    old = Partition(gpu=Gpu(count=4, model="Tesla V100", memory_gib=16), interconnect="InfiniBand EDR")
    assert any("no bf16 units" in note for note in predict_transformer_scaling(said, old, [4]).notes)
    assert not any("bf16" in note for note in predict_transformer_scaling(said, PARTITION, [4]).notes)
