"""An exploration is a run: candidates measured in turns in processes of their own, ranked, and written as a page."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from far_systems import FAR, plain_system
from slurm_cluster import SlurmCluster
from sweep_making import workspace_here, workspace_on

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


def on_ssh(folder: Path, sshd: Any) -> Workspace:
    """Return a workspace with a machine behind ssh, `far`, whose software `onnx` is the Python of the tests."""
    settings, file = plain_system(sshd, folder), folder / f"{FAR}.yaml"
    path = f"export PATH={Path(sys.executable).parent}:$PATH"
    file.write_text(f"{file.read_text()}software: {{onnx: {{lines: ['{path}']}}}}\n")
    return workspace_here(folder, settings)


def test_a_machine_behind_ssh_measures_as_a_job_and_the_answer_comes_back(tmp_path: Path, sshd: Any) -> None:
    workspace = on_ssh(tmp_path, sshd)
    asked = {"system": FAR, "software": ["onnx"], "batch": [64], "time_s": 1.0}
    plan = explore(workspace, **asked, dry_run=True)
    assert plan.data["answer"] == "would measure 1 of 1 combinations on far, as far as its packages allow"
    assert "fairmile.models.explore.program" in plan.data["script"]
    assert list(workspace.runs.ls()) == []

    explored = explore(workspace, **asked)
    assert [each["state"] for each in explored.candidates] == ["measured"]
    run = workspace.runs.get(explored.run)
    assert run.job is not None
    assert run.job.system == FAR
    assert list(run.captured.inputs) == ["source"]
    there = run.captured.inputs["source"].there
    assert there and str(TIDES.parent) not in " ".join(run.argv)


@pytest.mark.thorough
def test_code_and_its_model_travel_to_a_machine_behind_ssh(tmp_path: Path, sshd: Any) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef build(width: int):\n    return torch.nn.Linear(3, width), (torch.zeros(2, 3),)\n"
    )
    asked = {"runtime": ["torch"], "batch": [4], "time_s": 0.5, "system": FAR, "software": ["onnx"]}
    workspace = on_ssh(tmp_path, sshd)
    weights = tmp_path / "net.pt"
    torch.save(torch.nn.Linear(3, 2).state_dict(), weights)
    code = {"code": f"{tmp_path / 'net.py'}:build", "params": {"width": 2}}
    explored = explore(workspace, **asked, **code, model=weights)
    assert [each["state"] for each in explored.candidates] == ["measured"]
    benchmark = explore(workspace, **{**asked, "model": "mnist", "batch": [8]})
    assert [each["state"] for each in benchmark.candidates] == ["measured"]
    with pytest.raises(Unsupported, match="no combination can be run: torch tf32"):
        explore(workspace, **asked, precision=["tf32"])


@pytest.mark.thorough
def test_a_partition_of_slurm_measures_as_a_job(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = workspace_on(slurm_cluster, tmp_path, monkeypatch)
    explored = explore(workspace, system="rig", batch=[64], time_s=1.0)
    assert [each["state"] for each in explored.candidates] == ["measured"]
    run = workspace.runs.get(explored.run)
    assert run.spec.resources.time_s == 1.0 + 600.0 + 60.0
    assert run.spec.resources.cpus_per_task == 1
