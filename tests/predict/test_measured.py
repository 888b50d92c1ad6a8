"""Operators that were measured here stand beside the table that comes along; runs correct that table alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cases import for_each
from step_making import step_trace

from fairmile.costs.devices import Device, device
from fairmile.costs.operators.op_times import OpTimes, shipped_op_times
from fairmile.costs.operators.refine import MeasuredStep
from fairmile.costs.operators.signatures import candidates_of, read_signature, signature, tensor, write_tensors
from fairmile.costs.operators.table import OperatorTiming, TableOrigin, write_table
from fairmile.costs.operators.work import kind_of_name
from fairmile.costs.steps import Op
from fairmile.predict.measured import MeasuredTimes
from fairmile.predict.step_time import StepTime, step_time

H200, A100 = device("h200"), device("a100-80gb")
TRACE = step_trace(64)
STEP = {signature(each.op): each.op for each in candidates_of(TRACE, "step")}
OWN_US = 40.0
Calibrated = Callable[..., MeasuredTimes]


def own_row(op: Op, *, problem: str = "", host_us: float = 10.0) -> OperatorTiming:
    return OperatorTiming(signature(op), write_tensors(op.outputs), ("mine",), OWN_US, OWN_US, host_us, problem=problem)


def plain(op: Op) -> bool:
    return op.name == "aten.relu.default" and op.phase == "forward"


RELUS = [op for op in STEP.values() if plain(op)]


@pytest.fixture
def calibrated(tmp_path: Path) -> Calibrated:
    """Keep rows as a calibration does, by default of the H200 and with the PyTorch of the table that comes along."""

    def keep(*rows: OperatorTiming, on: Device = H200, torch: str = "2.11.0+cu130") -> MeasuredTimes:
        found = MeasuredTimes(tmp_path / "perf")
        found.table_file(on).parent.mkdir(parents=True, exist_ok=True)
        write_table(found.table_file(on), rows, TableOrigin(on.name, "580", torch, "2026-11-16"))
        return found

    return keep


def shipped() -> OpTimes:
    found = shipped_op_times("h200")
    assert found is not None
    return found


def by_line(step: StepTime) -> dict[str, tuple[str, float]]:
    return {line.signature: (line.how, line.device_s / line.count) for line in step.top}


# The table


def test_without_measurements_the_table_that_comes_along_answers(tmp_path: Path) -> None:
    assert MeasuredTimes(tmp_path).step_time(TRACE, H200) == step_time(TRACE, H200)
    assert MeasuredTimes(tmp_path).digest(H200) == ""


@pytest.mark.thorough
def test_own_rows_answer_for_their_calls_and_the_others_stay_as_they_were(calibrated: Calibrated) -> None:
    before = by_line(step_time(TRACE, H200))
    mine, *others = RELUS
    after = by_line(calibrated(own_row(mine)).step_time(TRACE, H200))
    assert after[signature(mine)] == ("here", pytest.approx(OWN_US * 1e-6))
    assert before[signature(mine)][0] != "here"
    exact = [text for text, (how, _) in before.items() if how == "exact"]
    assert {text: after[text] for text in exact} == {text: before[text] for text in exact}
    assert others and all(after[signature(each)][0] == before[signature(each)][0] for each in others)


def test_a_call_of_both_tables_is_told_by_the_own_one() -> None:
    both = next(row for row in shipped().rows if row.signature.startswith("aten.mm.default|bf16") and row.device_us > 9)
    op = read_signature(both.signature, both.outputs)
    own = OpTimes([OperatorTiming(both.signature, both.outputs, (), OWN_US, OWN_US, 3.0)], H200, shipped().about)
    joined = shipped().joined(own)
    assert (shipped().time_of(op).how, joined.time_of(op).how) == ("exact", "here")
    assert joined.time_of(op).device_s == pytest.approx(OWN_US * 1e-6)
    assert len(joined.rows) == len(shipped().rows)


def test_few_own_rows_do_not_take_the_many_others_away() -> None:
    """A product that nobody measured is still told by its many relatives, not by one stranger."""
    op = Op(
        "aten.mm.default", "forward", "", (tensor((1000, 900), "bfloat16"), tensor((900, 1100), "bfloat16")),
        (tensor((1000, 1100), "bfloat16"),), ({"tensor": 0}, {"tensor": 1}),
    )  # fmt: skip
    own = OpTimes([own_row(RELUS[0])], H200, shipped().about)
    assert own.time_of(op).how == "roofline"
    assert shipped().joined(own).time_of(op) == shipped().time_of(op)
    assert shipped().time_of(op).how == "interpolated"


@pytest.mark.thorough
def test_what_could_not_be_measured_here_leaves_the_other_table_its_answer(calibrated: Calibrated) -> None:
    broken = [own_row(op, problem="out of memory") for op in STEP.values()]
    # A table of its own: calls of the made-up step are alike and return different things, of which the first is kept.
    table = OpTimes(shipped().rows, H200, shipped().about)
    found, before = calibrated(*broken).step_time(TRACE, H200), step_time(TRACE, H200, table)
    assert (found.step_time_s, found.by_how) == (before.step_time_s, before.by_how)


def test_the_host_that_measured_is_the_host_that_calls() -> None:
    own = OpTimes([own_row(RELUS[0], host_us=77.0)], H200, shipped().about)
    joined = shipped().joined(own)
    assert joined.time_of(RELUS[1]).host_s == pytest.approx(77e-6)
    product = read_signature(next(row.signature for row in shipped().rows if row.signature.startswith("aten.mm.")))
    assert joined.time_of(product).host_s == shipped().time_of(product).host_s


def on_another_host(factor: float, names: int) -> list[OperatorTiming]:
    """Return one row of each of some operators, measured on the same device beside another processor."""
    rows = {row.signature.partition("|")[0]: row for row in shipped().rows if row.device_us > 0}
    rows = {name: row for name, row in rows.items() if kind_of_name(name) not in ("optimizer", "rnn")}  # lists of calls
    hosts = shipped()._hosts
    return [row._replace(host_us=factor * hosts[name]) for name, row in list(rows.items())[:names]]


def test_a_few_measured_calls_tell_how_fast_the_host_is_for_all_others() -> None:
    """What single calls take differs by chance; from ten operators on, all of the host's times are scaled."""
    asked = [read_signature(row.signature, row.outputs) for row in shipped().rows[::2000]]
    own = OpTimes(on_another_host(1.6, 12), H200, shipped().about)
    joined = shipped().joined(own)
    assert joined.host_factor == pytest.approx(1.6)
    for op in asked:
        before, after = shipped().time_of(op), joined.time_of(op)
        assert after.host_s == pytest.approx(1.6 * before.host_s), op.name
        if after.how != "here":
            assert after.device_s == pytest.approx(before.device_s), "the device is the same"
    few = shipped().joined(OpTimes(on_another_host(1.6, 9), H200, shipped().about))
    assert few.host_factor == 1.0


@for_each("factor", [0.5, 2.0])
def test_a_step_bound_by_its_host_takes_as_long_as_this_host_takes(calibrated: Calibrated, factor: float) -> None:
    here = calibrated(*on_another_host(factor, 40)).step_time(TRACE, H200)
    there = step_time(TRACE, H200)
    assert here.host_s == pytest.approx(factor * there.host_s, rel=0.05)
    assert any(f"takes {factor:.2f} times as long for a call" in note for note in here.notes)


def test_where_no_table_comes_along_the_own_one_stands_alone(calibrated: Calibrated) -> None:
    rows = [own_row(op) for op in STEP.values()]
    measured = calibrated(*rows, on=A100)
    found = measured.step_time(TRACE, A100)
    assert found == step_time(TRACE, A100, OpTimes(rows, A100, TableOrigin("", "", "", "")))
    assert found.by_how.keys() == {"exact"}
    assert step_time(TRACE, A100).by_how.keys() == {"scaled"}
    # Another device is as it was.
    assert measured.step_time(TRACE, H200) == step_time(TRACE, H200)


@pytest.mark.thorough
def test_a_note_says_which_table_answered_and_of_which_pytorch_it_is(calibrated: Calibrated) -> None:
    joined = "operators measured here: 1; the others come from the built-in table"
    assert calibrated(own_row(RELUS[0])).step_time(TRACE, H200).notes == (joined,)
    (note,) = calibrated(own_row(RELUS[0]), torch="2.12.1").step_time(TRACE, H200).notes
    assert note == f"{joined} (PyTorch {shipped().about.torch}, not 2.12.1)"


# Corrections


def slower(step: StepTime, times: float = 1.25) -> MeasuredStep:
    return MeasuredStep(times * step.step_time_s, step.step_time_s, step.by_kind, "train-1")


def test_runs_correct_the_table_that_comes_along(tmp_path: Path) -> None:
    measured, before = MeasuredTimes(tmp_path), step_time(TRACE, H200)
    factors = measured.learn(H200, [slower(before)]).factors
    found = measured.step_time(TRACE, H200)
    assert found == step_time(TRACE, H200, correction=factors)
    assert found.device_s > before.device_s


def test_an_operator_that_was_measured_here_needs_no_correction(calibrated: Calibrated) -> None:
    mine, other = RELUS[:2]
    measured = calibrated(own_row(mine))
    before = by_line(measured.step_time(TRACE, H200))
    factor = measured.learn(H200, [slower(step_time(TRACE, H200))]).factors["elementwise"]
    after = by_line(measured.step_time(TRACE, H200))
    assert factor > 1.001
    assert after[signature(mine)] == before[signature(mine)]
    assert after[signature(other)][1] == pytest.approx(factor * before[signature(other)][1])


def test_where_the_own_table_stands_alone_there_is_nothing_to_correct(calibrated: Calibrated) -> None:
    measured = calibrated(*(own_row(op) for op in STEP.values()), on=A100)
    before = measured.step_time(TRACE, A100)
    measured.learn(A100, [slower(step_time(TRACE, A100))])
    assert measured.step_time(TRACE, A100) == before


def test_every_new_measurement_changes_the_digest(calibrated: Calibrated) -> None:
    measured = calibrated(own_row(RELUS[0]))
    first = measured.digest(H200)
    measured.learn(H200, [slower(step_time(TRACE, H200))])
    second = measured.digest(H200)
    third = calibrated(own_row(RELUS[0]), own_row(RELUS[1])).digest(H200)
    assert len({"", first, second, third}) == 4
    assert measured.digest(A100) == ""
