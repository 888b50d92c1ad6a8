"""A workspace's own runs correct its device: towards them, but no farther than they prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import FairmileError
from fairmile.costs.operators.refine import Correction, MeasuredStep, read_correction, refined, write_correction

BEFORE = Correction("h200")


def run(true: dict[str, float], parts: dict[str, float], name: str = "r") -> MeasuredStep:
    measured = sum(true.get(kind, 1.0) * seconds for kind, seconds in parts.items())
    return MeasuredStep(measured, sum(parts.values()), parts, name)


def test_many_runs_find_the_kinds_that_are_slower_here() -> None:
    true = {"conv": 1.3, "gemm": 0.9}
    shares = [(0.9, 0.1), (0.1, 0.9), (0.5, 0.5), (0.7, 0.3), (0.2, 0.8), (0.95, 0.05), (0.05, 0.95), (0.6, 0.4)]
    runs = [run(true, {"conv": a, "gemm": b}, f"r{a}") for a, b in shares]
    found = refined(BEFORE, runs)
    assert found.factors["conv"] == pytest.approx(1.3, rel=0.03)
    assert found.factors["gemm"] == pytest.approx(0.9, rel=0.03)
    assert len(found.runs) == 8


def test_one_run_moves_the_factors_only_part_of_the_way() -> None:
    found = refined(BEFORE, [run({"conv": 1.5}, {"conv": 0.6, "gemm": 0.4})])
    assert 1.05 < found.factors["conv"] < 1.5
    assert found.factors["gemm"] < found.factors["conv"]


def test_a_kind_that_no_run_used_stays_as_it_is() -> None:
    assert "rnn" not in refined(BEFORE, [run({}, {"conv": 1.0})]).factors


def test_a_run_that_was_as_predicted_changes_nothing() -> None:
    assert refined(BEFORE, [run({}, {"conv": 0.5, "gemm": 0.5})]).factors == {"conv": 1.0, "gemm": 1.0}


def test_without_runs_what_was_known_stays() -> None:
    before = Correction("h200", {"conv": 1.2}, ("r1",))
    assert refined(before, []) == before
    assert refined(before, [MeasuredStep(0.0, 1.0, {"conv": 1.0})]) == before


def test_the_wait_for_the_host_is_not_blamed_on_operators() -> None:
    idle = MeasuredStep(1.0, 1.0, {"conv": 0.1}, "r")
    assert refined(BEFORE, [idle]).factors["conv"] == pytest.approx(1.0)


def test_corrections_are_kept_in_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    kept = Correction("h200", {"conv": 1.25}, ("r1", "r2"))
    write_correction(kept, path)
    assert read_correction(path) == kept


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2}', '{"format": 1, "device": "x", "runs": [], "factors": {"conv": -1}}']
)
def test_a_file_that_holds_none_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h200.json"
    path.write_text(text)
    with pytest.raises(FairmileError):
        read_correction(path)
