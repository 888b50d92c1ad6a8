"""One table of all benchmarks: seeds share a row, and what cannot be told is not claimed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import NotFound
from fairmile.benchmarks.comparison import COLUMNS, BenchmarkTable
from fairmile.runs.record.spec import RunSpec
from fairmile.workspace import Workspace

Record = Callable[..., Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


@pytest.fixture
def record(workspace: Workspace, tmp_path: Path) -> Record:
    """Record a run that leaves the results of a benchmark: scores of a trivial, two classical methods and a model."""

    def one(seed: int, model: float, *, settings: dict[str, Any] | None = None, boosting: float = 0.8) -> None:
        scores = [("trivial", "mean", 0.0), ("classical", "ridge", 0.6), ("classical", "boosting", boosting)]
        results = {
            "benchmark": "Tides",
            "data": "generated",
            "metric": {"name": "r2", "better": "higher", "target": None},
            "settings": settings or {},
            "seed": seed,
            "scores": [{"kind": k, "name": n, "values": {"r2": v}} for k, n, v in [*scores, ("model", "net", model)]],
        }
        (tmp_path / "given.json").write_text(json.dumps(results))
        argv = ("cp", str(tmp_path / "given.json"), "results.json")
        workspace.runs.run(RunSpec(name="tides", argv=argv, outputs=("results.json",), seed=seed))

    return one


def table(workspace: Workspace, *names: str) -> BenchmarkTable:
    return workspace.benchmarks.compare(*(names or ["tides"]))


def test_seeds_share_a_row_with_the_best_of_each_kind(workspace: Workspace, record: Record) -> None:
    for seed, model in enumerate([0.90, 0.91, 0.92]):
        record(seed, model)
    record(2, 0.92)  # a repeated seed says nothing new
    (row,) = table(workspace)
    assert row.seeds == (0, 1, 2)
    assert {kind: each.name for kind, each in row.methods.items()} == {
        **{"trivial": "mean", "classical": "boosting", "model": "net"}
    }
    assert row.methods["model"].text() == "0.910 ± 0.025"
    assert row.methods["model"].half_width == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-3)
    assert row.verdict == "better"
    assert row.energy_j is None
    assert row.energy_source == "no energy counter"
    document = table(workspace).to_dict()["benchmarks"][0]
    assert document["difference"]["mean"] == pytest.approx(0.11)
    assert (document["elapsed_s"] or {})["mean"] > 0
    assert len(table(workspace).to_markdown().splitlines()) == 3
    assert len(row.cells()) == len(COLUMNS)


def test_a_difference_within_the_spread_of_seeds_is_no_claim(workspace: Workspace, record: Record) -> None:
    def verdict(models: Sequence[float], boosting: float) -> str:
        for seed, model in enumerate(models):
            record(seed, model, boosting=boosting)
        return table(workspace)[0].verdict

    assert verdict([0.9, 0.7], 0.8) == "", "two seeds say too little"
    assert verdict([0.9, 0.7, 0.86], 0.8) == "cannot tell"
    assert verdict([0.7, 0.71, 0.72], 0.8) == "worse"


def test_other_settings_are_another_row(workspace: Workspace, record: Record) -> None:
    for split in ("pairs", "drugs"):
        record(0, 0.9, settings={"split": split, "epochs": 3})
    rows = table(workspace)
    assert sorted(each.label for each in rows) == ["Tides split=drugs", "Tides split=pairs"]


def test_results_that_changed_since_are_left_out(workspace: Workspace, record: Record, tmp_path: Path) -> None:
    record(0, 0.9)
    (file,) = (tmp_path / "home" / "runs").glob("*/work/results.json")
    file.chmod(0o644)
    file.write_text(file.read_text().replace("0.9", "0.99"))
    with pytest.raises(NotFound, match="none of tides has results of a benchmark"):
        table(workspace)


def test_runs_without_results_are_refused_by_name(workspace: Workspace) -> None:
    with pytest.raises(NotFound, match="no run has results of a benchmark"):
        workspace.benchmarks.compare()
    workspace.runs.run(["echo", "high"], name="tide")
    with pytest.raises(NotFound, match="none of tide has results of a benchmark"):
        workspace.benchmarks.compare("tide")
