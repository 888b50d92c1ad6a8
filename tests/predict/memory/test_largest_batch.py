"""The largest batch of a traced step: exact, and with few traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cases import for_each
from step_making import step_trace

from fairmile.costs.devices import device
from fairmile.costs.steps import StepTrace
from fairmile.predict.memory.account import MemoryAccount, account
from fairmile.predict.memory.largest_batch import largest_traced_batch
from fairmile.predict.memory.other_batches import OtherBatches

ON = device("v100-32gb")
MIB = 1 << 20


def judged(trace: StepTrace) -> MemoryAccount:
    return account(trace, ON)


def test_a_step_at_another_batch_is_on_the_line_through_two() -> None:
    others = OtherBatches((4, 8), (step_trace(4), step_trace(8)))
    assert others.is_known
    assert others.at(37) == step_trace(37)
    assert others.at(2) == step_trace(2)


def test_steps_that_do_other_things_foretell_nothing() -> None:
    assert not OtherBatches((4, 8), (step_trace(4), step_trace(8, steps=3))).is_known
    assert not OtherBatches((4, 4), (step_trace(4), step_trace(4))).is_known


@for_each("start", [1, 7, 64, 5000])
def test_four_traces_find_the_last_batch_that_fits(start: int) -> None:
    calls: list[Sequence[int]] = []

    def traces(batches: Sequence[int]) -> list[StepTrace]:
        calls.append(batches)
        return [step_trace(each, sample=16 * MIB) for each in batches]

    found = largest_traced_batch(traces, judged, start=start)
    assert found.account.fits and found.too_large is not None and not found.too_large.fits
    assert len(calls) == 2
    assert list(calls[1]) == [found.batch, found.batch + 1]
    assert found.account == judged(step_trace(found.batch, sample=16 * MIB))


def test_where_two_traces_foretell_wrong_the_search_goes_on_with_real_ones() -> None:
    def bent(batch: int) -> StepTrace:
        return step_trace(batch + max(0, batch - 100), sample=16 * MIB)

    found = largest_traced_batch(lambda batches: [bent(each) for each in batches], judged, start=8)
    assert judged(bent(found.batch)).fits and not judged(bent(found.batch + 1)).fits
    assert len(found.tried) < 20


def test_traces_that_cannot_be_compared_still_lead_to_the_end() -> None:
    def uneven(batch: int) -> StepTrace:
        trace = step_trace(batch, sample=16 * MIB)
        ops = [replace(op, name=f"{op.name}.{batch}") for op in trace.ops]
        return replace(trace, ops=ops)

    found = largest_traced_batch(lambda batches: [uneven(each) for each in batches], judged, start=8)
    assert judged(uneven(found.batch)).fits and not judged(uneven(found.batch + 1)).fits
    assert len(found.tried) < 20
