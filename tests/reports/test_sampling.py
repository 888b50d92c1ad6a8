"""Sweeps of many runs, reported from some of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import web_data

from fairmile.reports.blocks import Note, Title
from fairmile.workspace import Workspace

RUNS, MOST = 120, 60
SWEEP = "tides-sample"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    home = tmp_path_factory.mktemp("sampled")
    workspace = Workspace.open(environ={"FAIRMILE_HOME": str(home), "HOME": str(home)}, cwd=Path(home))
    web_data.make_sweep(workspace, SWEEP, RUNS)
    return workspace


def test_a_sample_has_the_best_runs_and_is_the_same_each_time(workspace: Workspace) -> None:
    report = workspace.reports.page(SWEEP, most_runs=MOST)
    assert MOST - 20 <= len(report.data["runs"]) <= MOST
    best = workspace.reports.leaderboard("loss", n=20)
    assert {run for place in best.places for run in place.runs} <= set(report.data["runs"])
    assert report.data["runs"] == workspace.reports.page(SWEEP, most_runs=MOST).data["runs"]


def test_a_report_of_a_sample_says_so(workspace: Workspace) -> None:
    title, note = workspace.reports.page(SWEEP, most_runs=MOST).blocks[:2]
    assert isinstance(title, Title)
    assert isinstance(note, Note)
    assert title.badge == f"{RUNS} done"
    assert f"of {RUNS} runs: a random sample, with the 20 best by loss" in note.text


def test_few_runs_are_reported_in_full(workspace: Workspace) -> None:
    full = workspace.reports.page(SWEEP)
    assert workspace.reports.page(SWEEP, most_runs=RUNS).data["runs"] == full.data["runs"]


@pytest.mark.parametrize("metric", ["loss", "accuracy", "elapsed_s"])
def test_a_leaderboard_of_the_best_runs_has_the_same_places(workspace: Workspace, metric: str) -> None:
    whole = workspace.reports.leaderboard(metric, n=5)
    some = workspace.reports.leaderboard(metric, n=5, most_runs=MOST)
    assert [each.runs for each in some.places] == [each.runs for each in whole.places]
    assert f"the {MOST} best of {RUNS} runs" in some.notes[-1]
    assert workspace.reports.leaderboard(metric, n=5, most_runs=RUNS).to_dict() == whole.to_dict()
