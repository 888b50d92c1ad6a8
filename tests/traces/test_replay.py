"""A replay without a change gives the measured time; with one, what the changed program really takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cases import for_each
from trace_making import Training, steady

from fairmile.base.errors import NotFound, UsageError
from fairmile.costs.collectives.links import Link
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind, EventTable
from fairmile.traces.replay import AlgorithmModel, Replay, WhatIf, replay

SLOW = 3


def made(*, device: bool, buckets: int = 1, **other: object) -> EventTable:
    told = {"ranks": 8, "kernels": 12, "transfer_ms": lambda step: 5.5, "compute_ms": _uneven(29)} | other
    return Training(device=device, buckets=buckets, **told).table()  # type: ignore[arg-type]


def _uneven(slow_ms: float) -> Callable[[int, int], float]:
    return lambda rank, step: slow_ms if rank == SLOW else 24


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("buckets", [1, 4])
@pytest.mark.parametrize("transfer", [0.5, 5.5, 22])
def test_without_a_change_the_measured_time_comes_out(device: bool, buckets: int, transfer: float) -> None:
    found = replay(made(device=device, buckets=buckets, transfer_ms=lambda step: transfer))
    assert found.error < 1e-6
    assert found.step_s == pytest.approx(found.measured_step_s)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("buckets", [1, 4])
@pytest.mark.parametrize("factor", [0.25, 0.5, 2, 4])
def test_another_bandwidth_gives_what_a_training_with_it_takes(device: bool, buckets: int, factor: float) -> None:
    truth = analyze(made(device=device, buckets=buckets, transfer_ms=lambda step: 5.5 / factor)).step_s
    found = replay(made(device=device, buckets=buckets), WhatIf(bandwidth=factor))
    assert found.step_s == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("buckets", [1, 4])
def test_without_its_straggler_a_training_takes_what_an_even_one_takes(device: bool, buckets: int) -> None:
    truth = analyze(made(device=device, buckets=buckets, compute_ms=steady(24))).step_s
    found = replay(made(device=device, buckets=buckets), WhatIf(without_straggler=SLOW))
    assert found.step_s == pytest.approx(truth, rel=1e-4)
    assert found.speedup == pytest.approx(found.measured_step_s / truth, rel=1e-4)


@pytest.mark.parametrize("device", [False, True])
def test_without_waiting_for_input_only_the_input_is_gone(device: bool) -> None:
    table = made(device=device, input_ms=lambda rank, step: 7 if rank == 1 else 2)
    truth = analyze(made(device=device, input_ms=steady(0))).step_s
    assert replay(table, WhatIf(without_input_wait=True)).step_s == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("device", [False, True])
def test_an_operator_twice_as_fast_shortens_what_waits_for_it(device: bool) -> None:
    found = replay(made(device=device, compute_ms=steady(24)), WhatIf(faster={"*addmm": 2.0}))
    # Half of the compute is addmm.
    assert found.measured_step_s - found.step_s == pytest.approx(0.006, rel=1e-4)


def test_an_operator_that_does_not_exist_is_said_to_be_missing() -> None:
    with pytest.raises(NotFound, match="no event matches 'aten::nothing'"):
        replay(made(device=False), WhatIf(faster={"aten::nothing": 2.0}))


def test_another_algorithm_takes_the_time_that_its_formula_says() -> None:
    network = Link(1e-5, 1 / 1e9)
    table = Training(size_bytes=4 << 20).table()
    ring = replay(table, WhatIf(model=AlgorithmModel(network, {"all_reduce": "ring"})))
    expected = 6e-5 + 1.5 * (4 << 20) * 1e-9
    assert ring.step_s == pytest.approx(0.001 + 0.010 + 0.001 + expected, rel=1e-6)


def test_two_models_change_a_call_as_they_differ() -> None:
    @dataclass(frozen=True)
    class Even:
        seconds: float

        def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
            return self.seconds

    found = replay(Training().table(), WhatIf(model=Even(3e-3), measured_by=Even(1e-3)))
    assert found.step_s == pytest.approx(0.012 + 3 * 0.002)


def test_a_call_of_unknown_size_keeps_its_time_and_says_so() -> None:
    table = Training().table()
    table.bytes[:] = -1
    model = AlgorithmModel(Link(1e-5, 1 / 1e9), {"all_reduce": "ring"})
    found = replay(table, WhatIf(model=model))
    assert found.step_s == pytest.approx(found.measured_step_s)
    assert found.notes == ("all_reduce keeps its measured time: its size or cost model is unknown",)


def test_one_kind_of_call_can_be_changed_alone() -> None:
    found = replay(Training().table(), WhatIf(transfers={("default", "all_reduce", 4 << 20): 0.0}))
    assert found.step_s == pytest.approx(0.012)
    other = replay(Training().table(), WhatIf(transfers={("default", "all_reduce", 1): 0.0}))
    assert other.step_s == pytest.approx(0.014)


def test_more_ranks_wait_for_more_stragglers_and_move_more() -> None:
    table = Training(ranks=2, steps=6, compute_ms=lambda rank, step: 16 if (rank + step) % 3 == 0 else 10).table()
    found = Replay(table)
    four, two = found.run(WhatIf(ranks=4)), found.run(WhatIf(ranks=2))
    assert two.step_s == pytest.approx(two.measured_step_s)
    assert four.ranks == 4 and four.step_s > two.step_s
    assert any("volume of a ring" in note for note in four.notes)
    network = AlgorithmModel(Link(0, 1 / 1e9), {"all_reduce": "ring"})
    told = found.run(WhatIf(ranks=4, measured_by=network))
    assert told.notes == () and told.step_s == pytest.approx(four.step_s)


def test_fewer_ranks_leave_the_others_out() -> None:
    found = replay(made(device=True), WhatIf(ranks=2))
    assert found.ranks == 2
    assert found.step_s == pytest.approx(0.026 + 0.0055 * (1 / 2) / (7 / 8), rel=1e-4)


@for_each(
    "change",
    [
        {"bandwidth": 0},
        {"bandwidth": float("inf")},
        {"latency": -1},
        {"latency": float("inf")},
        {"faster": {"aten::mm": 0}},
    ],
)
def test_impossible_factors_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="cannot change by a factor"):
        WhatIf(**change)  # type: ignore[arg-type]


def test_an_unknown_rank_is_no_straggler() -> None:
    with pytest.raises(NotFound, match="the trace has no rank 9"):
        replay(made(device=False), WhatIf(without_straggler=9))


def test_a_trace_of_one_rank_alone_can_be_replayed() -> None:
    table = Training(ranks=2).table()
    table = table.select((table.rank == 0) & (table.kind != EventKind.COLLECTIVE))
    found = replay(table, WhatIf(faster={"aten::*": 2.0}))
    assert found.error < 1e-9
    assert found.step_s < found.measured_step_s


def test_more_ranks_than_a_replay_can_hold_are_refused_with_how_many_it_can() -> None:
    with pytest.raises(UsageError, match="1,000,000,000 ranks are too many to replay this trace") as error:
        replay(made(device=False), WhatIf(ranks=10**9))
    assert "use at most" in (error.value.hint or "")
