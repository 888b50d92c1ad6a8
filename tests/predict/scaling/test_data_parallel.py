"""The step of a traced model on many GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from fairmile.base.errors import UsageError
from fairmile.predict.memory.sharding import Layout, ModelFootprint
from fairmile.predict.scaling.data_parallel import DataParallelModel, Effects, InputRate, OneGpuStep
from fairmile.predict.scaling.step import NodeModel, TwoLevelLinks

MIB = 2**20
FREE = Effects(straggling=0.0, half_batch=0.0, overlap=1.0, contention=0.0)


@dataclass(frozen=True)
class Flat:
    """Collectives that take as long as they are told, whatever their size."""

    seconds: float = 0.01

    def time_s(self, collective: str, size_bytes: float, ranks: int, *, nodes: int = 1) -> float:
        return self.seconds


def _footprint(gradients: float = 100 * MIB, units: int = 4) -> ModelFootprint:
    names = [f"u{number}" for number in range(units)]
    return ModelFootprint(
        dict.fromkeys(names, gradients / units),
        dict.fromkeys(names, 1e9),
        gradients_bytes=gradients,
        optimizer_bytes=2 * gradients,
        batch=32,
        boundary_bytes=32e6,
    )


def _model(
    collectives: object = None, effects: Effects = FREE, gradients: float = 100 * MIB, step: OneGpuStep | None = None
) -> DataParallelModel:
    one = step or OneGpuStep(1.0, 32, backward_share=0.5, optimizer_share=0.0)
    asked = Flat() if collectives is None else collectives
    return DataParallelModel(_footprint(gradients), one, asked, NodeModel(gpus_per_node=4), effects)  # type: ignore[arg-type]


def test_one_gpu_takes_the_time_it_was_given() -> None:
    step = _model().step(Layout(micro_batch=32))
    assert step.step_time_s == pytest.approx(1.0)
    assert step.communication_s == step.wait_s == 0


def test_only_the_last_bucket_is_exposed_where_backward_is_long_enough() -> None:
    # 100 MiB are four buckets of 10 ms; backward takes 500 ms.
    assert _model().step(Layout(data=8, micro_batch=32)).data_s == pytest.approx(0.01)


def test_what_does_not_fit_behind_backward_is_exposed() -> None:
    step = _model(Flat(0.2)).step(Layout(data=8, micro_batch=32))
    assert step.data_s == pytest.approx(4 * 0.2 - 0.5)


def test_work_that_shares_the_device_with_communication_is_slower() -> None:
    effects = Effects(straggling=0.0, half_batch=0.0, overlap=1.0, contention=0.1)
    step = _model(Flat(0.1), effects).step(Layout(data=8, micro_batch=32))
    assert step.compute_s == pytest.approx(1.0 + 0.1 * (0.4 - 0.1))


def test_fully_sharded_parameters_are_gathered_twice_and_gradients_scattered_once_in_each_micro_batch() -> None:
    step = _model(Flat(0.3)).step(Layout(data=8, zero=3, micro_batch=32))
    # Four units: two gathers and one scatter each, half a second hidden.
    assert step.data_s == pytest.approx(3 * 4 * 0.3 - 0.5)
    twice = _model(Flat(0.3)).step(Layout(data=8, zero=3, micro_batch=16, micro_batches=2))
    assert twice.data_s == pytest.approx(2 * 3 * 4 * 0.3 - 0.5)


def test_sharded_gradients_are_scattered_in_each_micro_batch_and_whole_ones_reduced_once() -> None:
    plain, sharded = (
        _model(Flat(0.2)).step(Layout(data=8, zero=zero, micro_batch=8, micro_batches=4)) for zero in (1, 2)
    )
    # Four buckets of 200 ms; a quarter of the backward pass hides the one, all of it the other.
    assert plain.data_s == pytest.approx(4 * 0.2 - 0.5 / 4)
    assert sharded.data_s == pytest.approx(4 * 4 * 0.2 - 0.5)


def test_inference_has_no_gradients_to_reduce() -> None:
    model = _model(Flat(0.2), gradients=0.0)
    assert model.step(Layout(data=8, micro_batch=32)).communication_s == 0


def test_full_recomputation_adds_one_forward_pass() -> None:
    step = OneGpuStep(1.0, 32, backward_share=0.5, optimizer_share=0.2)
    plain, again = (
        _model(step=step).step(Layout(micro_batch=32, recompute=how)).step_time_s  # type: ignore[arg-type]
        for how in ("none", "full")
    )
    assert (plain, again) == (pytest.approx(1.0), pytest.approx(1.3))


def test_waiting_for_the_slowest_grows_with_the_logarithm_of_the_ranks() -> None:
    effects = Effects(straggling=0.05, half_batch=0.0)
    step = _model(effects=effects).step(Layout(data=64, micro_batch=32))
    assert step.wait_s == pytest.approx(0.05 * math.log(64) * step.compute_s)


def test_a_small_batch_is_less_efficient_by_the_fixed_part_of_a_step() -> None:
    model = _model(effects=Effects(half_batch=8.0))
    assert model.work_s(32) == pytest.approx(1.0)
    assert model.work_s(2) == pytest.approx(10 / 40)


def test_two_known_batches_give_a_straight_line() -> None:
    steps = [OneGpuStep(0.4, 8, optimizer_share=0.0), OneGpuStep(1.0, 32, optimizer_share=0.0)]
    model = DataParallelModel(_footprint(), steps, Flat(), NodeModel(), FREE)
    assert model.work_s(8) == pytest.approx(0.4)
    assert model.work_s(20) == pytest.approx(0.7)
    assert model.work_s(64) == pytest.approx(1.8)
    assert model.work_s(1) == pytest.approx(0.225)


def test_the_update_is_shared_where_the_optimizer_is_sharded() -> None:
    one = OneGpuStep(1.0, 32, backward_share=0.5, optimizer_share=0.2)
    plain, sharded = (_model(step=one).step(Layout(data=8, zero=zero, micro_batch=32)) for zero in (0, 1))
    assert (plain.optimizer_s, sharded.optimizer_s) == (pytest.approx(0.2), pytest.approx(0.025))
    assert plain.compute_s == pytest.approx(0.8)


def test_recomputation_costs_one_more_forward() -> None:
    step = _model().step(Layout(micro_batch=32, recompute="full"))
    assert step.compute_s == pytest.approx(1.5)


def test_a_pipeline_fills_before_it_works_and_hands_over() -> None:
    model = _model(TwoLevelLinks(1e9, 1e9, latency_s=0.0, call_s=0.0))
    step = model.step(Layout(pipeline=4, micro_batch=32, micro_batches=5))
    assert step.compute_s == pytest.approx(5 / 4)
    assert step.bubble_s == pytest.approx(3 / 4)
    assert step.hops_s == pytest.approx(2 * 0.032 * 8)


def test_offload_takes_its_way_over_the_bus() -> None:
    step = _model().step(Layout(data=8, zero=1, micro_batch=32, optimizer_on="host"))
    assert step.offload_s == pytest.approx(2 * 100 * MIB / 20e9)


def test_tensors_of_a_traced_model_are_not_split() -> None:
    with pytest.raises(UsageError, match="cannot be predicted"):
        _model().step(Layout(tensor=2))


@pytest.mark.parametrize("said", [{"step_time_s": 0.0, "batch": 1}, {"step_time_s": 1.0, "batch": 0}])
def test_a_step_of_no_time_or_no_samples_is_refused(said: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected positive numbers"):
        OneGpuStep(**said)  # type: ignore[arg-type]


def test_shares_beyond_the_whole_step_are_refused() -> None:
    with pytest.raises(UsageError, match="more than the whole step"):
        OneGpuStep(1.0, 1, backward_share=0.9, optimizer_share=0.2)


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one step on one GPU"):
        DataParallelModel(_footprint(), [], Flat(), NodeModel())


def test_samples_that_arrive_too_slowly_hold_up_the_step() -> None:
    model = _model()
    model.input = InputRate(node_samples_per_s=32.0)
    assert model.step(Layout(micro_batch=32)).input_s == pytest.approx(0.0)
    # Four ranks share the loaders of one node; eight have two nodes.
    assert model.step(Layout(data=4, micro_batch=32)).step_time_s == pytest.approx(4.0)
    assert model.step(Layout(data=8, micro_batch=32)).step_time_s == pytest.approx(4.0)
    model.input = InputRate(shared_samples_per_s=64.0)
    assert model.step(Layout(data=8, micro_batch=32)).step_time_s == pytest.approx(4.0)
    assert model.step(Layout(data=16, micro_batch=32)).step_time_s == pytest.approx(8.0)


def test_phases_of_a_predicted_step_give_its_shares() -> None:
    step = OneGpuStep.of_phases(2.0, 16, {"forward": 0.3, "backward": 0.6, "optimizer": 0.1})
    assert (step.backward_share, step.optimizer_share) == (pytest.approx(0.6), pytest.approx(0.1))
    assert OneGpuStep.of_phases(2.0, 16, {}) == OneGpuStep(2.0, 16)


def test_sharing_a_small_update_saves_no_more_than_its_bytes_take() -> None:
    one = OneGpuStep(1.0, 32, backward_share=0.5, optimizer_share=0.1)
    states, gradients = 3 * 100 * MIB, 100 * MIB
    bandwidth = (2 * states + gradients) / 0.02  # of the 100 ms of the update, 20 are bytes
    machine = NodeModel(gpus_per_node=4, bandwidth_bytes_per_s=bandwidth)
    model = DataParallelModel(_footprint(), one, Flat(), machine, FREE)
    updates = [model.step(Layout(data=4, zero=zero, micro_batch=32)).optimizer_s for zero in (0, 1)]
    assert updates == pytest.approx([0.1, 0.08 + 0.02 / 4])
