"""`fairmile compare`: verdicts on the command line, and an exit code for a regression."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_making import repeats

Fairmile = Callable[..., Any]


@pytest.fixture
def runs(place: Path, fairmile: Fairmile) -> Path:
    """A home with two groups of three repeats."""
    folder = place.parent / "home" / "runs"
    repeats(folder, "base", {"loss": [1.0, 1.1, 0.9], "elapsed_s": [10.0, 10.1, 9.9]}, params={"width": 1})
    repeats(folder, "wide", {"loss": [2.0, 2.1, 1.9], "elapsed_s": [10.1, 9.9, 10.0]}, params={"width": 4})
    return folder


def test_groups_are_compared_with_the_first(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base", "wide")
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[2][:3] == ["wide", "3", "2"]
    assert "worse" in lines[2]
    assert ["param", "width", "1", "4"] in lines


def test_what_went_into_many_groups_is_a_line_for_each(fairmile: Fairmile, runs: Path) -> None:
    for width in range(5):
        repeats(runs, f"w{width}", {"loss": [1.0, 1.1]}, params={"width": width})
    result = fairmile("compare", *(f"w{width}" for width in range(5)), "-m", "loss")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["group", "param", "width"] in lines
    assert ["w3", "3"] in lines


def test_one_run_each_gets_no_verdict(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base-000000", "wide-000000", "--metric", "loss", "--json")
    cell = result.json["comparison"]["rows"][0]["cells"][1]
    assert cell["verdict"] == "too few repeats"
    assert cell["why"] == "one run each: noise is unknown"


def test_that_single_runs_are_not_judged_is_said_once(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base-000000", "wide-000000")
    assert "too few" not in result.out
    assert "noise is unknown" not in result.out
    assert result.err.count("one run each: noise is unknown") == 1


def test_one_metric_can_be_asked_for(fairmile: Fairmile, runs: Path) -> None:
    rows = fairmile("compare", "base", "wide", "--metric", "loss", "--json").json["comparison"]["rows"]
    assert [row["metric"] for row in rows] == ["loss"]


def test_an_unknown_metric_is_answered_with_the_nearest(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base", "wide", "--metric", "los")
    assert result.code == 2
    assert "did you mean 'loss'?" in result.err


def test_of_one_group_alone_the_spread_is_shown(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base")
    assert result.code == 0
    assert result.out.splitlines()[1].split()[:6] == ["loss", "base", "3", "1", "(0.9", "to"]


def test_one_run_alone_cannot_be_compared(fairmile: Fairmile, runs: Path) -> None:
    result = fairmile("compare", "base-000000")
    assert result.code == 2
    assert "nothing to compare it with" in result.err


def test_an_unknown_name_is_refused(fairmile: Fairmile, runs: Path) -> None:
    assert fairmile("compare", "base", "nowhere").code == 2


@pytest.mark.parametrize(("value", "code"), [("1.0", 0), ("0.5", 1)])
def test_a_reference_decides_the_exit_code(fairmile: Fairmile, runs: Path, place: Path, value: str, code: int) -> None:
    (place / "references.yaml").write_text(f'"*":\n  loss: {{value: {value}, upper_tolerance: 10%}}\n')
    result = fairmile("compare", "base", "--reference", "references.yaml")
    assert result.code == code
    assert ("pass" if code == 0 else "fail") in result.out
    assert ("is outside its reference" in result.err) == (code == 1)


def test_a_regression_is_one_document_for_a_program(fairmile: Fairmile, runs: Path, place: Path) -> None:
    (place / "references.yaml").write_text('"*":\n  loss: {value: 0.5, upper_tolerance: 10%}\n')
    result = fairmile("compare", "base", "wide", "--reference", "references.yaml", "--json")
    assert result.code == 1
    assert result.json["check"]["passed"] is False
    assert result.json["comparison"]["groups"]["base"]


def test_an_error_in_the_reference_names_its_line(fairmile: Fairmile, runs: Path, place: Path) -> None:
    (place / "references.yaml").write_text("n1:\n  loss: {value: big, upper_tolerance: 1}\n")
    result = fairmile("compare", "base", "--reference", "references.yaml")
    assert result.code == 2
    assert "references.yaml:2 n1.loss.value: expected a finite number" in result.err
