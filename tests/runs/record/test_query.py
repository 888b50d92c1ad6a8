"""Which runs a question matches, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_making import CREATED, make_run

from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.query import RunQuery

RUNS: dict[str, dict[str, Any]] = {
    "a": {"params": {"lr": 0.1, "n": 9_007_199_254_740_993}, "metrics": {"loss": 0.5}},
    "b": {"params": {"lr": 0.01, "n": 2}, "metrics": {"loss": "NaN"}, "tags": ["night"]},
    "c": {"params": {"lr": "auto", "n": 3, "deep": True}, "metrics": {"loss": "Infinity", "score": 1}},
    "d": {"params": {"n": -4}, "metrics": {"loss": -0.25}, "state": "failed", "tags": ["night"]},
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    for at, (id, made) in enumerate(RUNS.items()):
        make_run(tmp_path, id, created=CREATED + at, **made)
    return Ledger(tmp_path)


@pytest.mark.parametrize(
    "text, matches",
    [
        ("", "dcba"),
        ("lr>=0.01", "ba"),  # a text is in no order with numbers
        ("lr>0.01", "a"),
        ("lr<=0.1", "ba"),
        ("lr<0.1", "b"),
        ("loss<0.5", "d"),
        ("loss>-1", "da"),  # nor is what is not finite
        ("n>9007199254740992", "a"),
        ("n>=2 n<4", "cb"),
        ("deep=true", "c"),
        ("lr=auto", "c"),
        ("lr!=auto", "dba"),
        ("night", "db"),
        ("tag=night loss<0", "d"),
        ("metric.score>=1", "c"),
        ("param.score>=1", ""),
    ],
)
def test_conditions(ledger: Ledger, text: str, matches: str) -> None:
    page = ledger.page(RunQuery(text))
    assert ("".join(row.id for row in page.rows), page.total) == (matches, len(matches))
    assert sum(page.states.values()) == len(matches)


@pytest.mark.parametrize("text", ["", "n>-9"])
def test_a_part_counts_all_states_and_all_that_match(ledger: Ledger, text: str) -> None:
    page = ledger.page(RunQuery(text, states=("done", "done")), start=1, limit=1)
    assert ([row.id for row in page.rows], page.total) == (["b"], 3)
    assert page.states == {"done": 3, "failed": 1}


@pytest.mark.parametrize("text", ["", "n>-9"])
def test_values_that_are_missing_or_not_finite_come_last(ledger: Ledger, text: str) -> None:
    assert [row.id for row in ledger.page(RunQuery(text, sort="loss")).rows] == ["d", "a", "c", "b"]
    assert [row.id for row in ledger.page(RunQuery(text, sort="-loss")).rows] == ["a", "d", "b", "c"]
