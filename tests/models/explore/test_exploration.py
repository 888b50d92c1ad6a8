"""An exploration is a run: candidates measured in turns in processes of their own, ranked, and written as a page."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Unsupported, UsageError
from fairmile.models.explore.results import Exploration, exploration_columns, exploration_row
from fairmile.workspace import Workspace

TIDES = Path(__file__).parents[3] / "docs" / "examples" / "tides.onnx"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


def explore(workspace: Workspace, **fields: object) -> Exploration:
    asked = {"model": TIDES, "runtime": ["onnxruntime"], "batch": [1, 64], "threads": [1], **fields}
    return workspace.models.explore(asked.pop("model"), **asked)  # type: ignore[arg-type]


def test_candidates_are_measured_judged_by_the_data_and_ranked_with_a_page(
    workspace: Workspace, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    targets = workspace.models.apply(TIDES, rows)
    np.savez(tmp_path / "data.npz", x=rows, targets=targets + 1.0)
    model = Path(shutil.copy(TIDES, tmp_path))
    asked = {
        **{"model": model, "precision": ["fp32", "int8", "bf16"]},
        **{"best": "throughput", "data": tmp_path / "data.npz"},
    }
    explored = explore(workspace, **asked)
    measured = [each for each in explored.candidates if each["state"] == "measured"]
    assert [each["batch"] for each in measured[:2]] == [64, 64]  # 64 rows at once are far cheaper each
    assert {(each["runtime"], each["precision"]) for each in measured} == {
        ("onnxruntime", "fp32"),
        ("onnxruntime", "int8"),
    }
    for each in measured:
        assert each["calls"] >= each["rounds"] >= 8
        assert each["quality"] == pytest.approx(1.0, abs=0.1)
        if each["precision"] == "fp32":
            assert each["error"] == 0.0
    refused = [each for each in explored.candidates if each["state"] == "refused"]
    assert {each["reason"] for each in refused} == {"ONNX Runtime has bf16 for few operators only"}
    assert explored.data["quality"]["metric"] == "rmse"
    run = workspace.runs.get(explored.run)
    assert list(run.record.spec.tags) == ["exploration"]

    page = workspace.reports.write_page(explored, tmp_path / "page.html").read_text()
    assert "Fastest way to run" in page
    assert "ONNX Runtime has bf16 for few operators only" in page
    assert explore(workspace, **asked).run == explored.run  # also with a new file, the page, beside the model
    columns = exploration_columns(explored)
    assert columns[-1] == "rmse"
    assert all(len(exploration_row(explored, each, columns)) == len(columns) for each in measured)


def test_a_plan_lists_what_would_be_measured_and_what_cannot_be_had(workspace: Workspace) -> None:
    plan = explore(workspace, precision=["fp32", "tf32"], dry_run=True)
    assert plan.data["answer"] == "would measure 2 of 4 combinations"
    assert plan.recommended is None
    assert list(workspace.runs.ls()) == []


def test_errors_of_the_processes_are_raised_with_their_hints(workspace: Workspace, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", y=np.zeros((4, 3)))
    with pytest.raises(UsageError, match="has no array 'x'"):
        explore(workspace, data=tmp_path / "other.npz")
    with pytest.raises(Unsupported, match="no combination can be run"):
        explore(workspace, precision=["tf32"])


def test_a_busy_machine_is_named_beside_the_numbers() -> None:
    machine = {"name": "x86_64", "cores": 2, "gpu": "", "load": [9.5, 9.0], "versions": {}, "energy_source": ""}
    busy = Exploration({"machine": machine})  # type: ignore[typeddict-item]
    assert "load 9.5 on 2 cores" in busy.warning
    machine["load"] = [0.5, 2.0]
    assert busy.warning == ""
