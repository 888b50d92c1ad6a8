"""Models that are trained and used by one call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trusted_projects import trusted_project

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.program import SUITE
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


@pytest.mark.thorough
def test_a_model_is_trained_once_by_its_own_benchmark_and_its_weights_predict(tmp_path: Path) -> None:
    workspace = with_a_benchmark_of_another_catalog(tmp_path)
    trained = workspace.models.run("train", "mnist-dnn", params={"epochs": 1}, seed=3, again=True)
    assert trained.state is RunState.DONE
    assert trained.record.spec.asset == "builtin/benchmark/mnist@1.0"
    assert workspace.models.run("train", "mnist-dnn", params={"epochs": 1}, seed=3).id == trained.id
    used = workspace.models.run("inference", "mnist-dnn", weights=trained.id)
    assert used.state is RunState.DONE
    assert used.metrics["accuracy"].value == trained.metrics["accuracy"].value
    assert "train_loss" not in used.metrics


def with_a_benchmark_of_another_catalog(folder: Path) -> Workspace:
    """Return a workspace where another catalog has a benchmark of the same model, which comes first by name."""
    card = json.loads((SUITE / "mnist" / "card.jsonld").read_text())
    card |= {"@id": "https://example.org/benchmark/aaa/1.0", "name": "Aaa", "command": "touch stolen"}
    (folder / "shared").mkdir()
    (folder / "shared" / "aaa.jsonld").write_text(json.dumps(card))
    environ = {"HOME": str(folder), "FAIRMILE_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"}
    trusted_project(folder, f"sources:\n  group: {folder / 'shared'}\n", environ)
    workspace = Workspace.open(environ=environ, cwd=folder)
    workspace.catalog.sync()
    assert "group" in {each.card.catalog for each in workspace.benchmarks.ls()}
    return workspace


def test_anything_but_train_and_inference_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="cannot run a model for 'trian'") as caught:
        workspace.models.run("trian", "mnist-dnn")
    assert caught.value.hint == "did you mean 'train'?"


def test_inference_needs_weights(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="inference needs weights"):
        workspace.models.run("inference", "mnist-dnn")


def test_a_run_without_weights_is_told(workspace: Workspace) -> None:
    other = workspace.runs.run(["true"])
    with pytest.raises(NotFound, match=f"run {other.id} has no weights"):
        workspace.models.run("inference", "mnist-dnn", weights=other.id)


def test_an_unknown_model_is_told(workspace: Workspace) -> None:
    with pytest.raises(NotFound, match="mnist-dmm"):
        workspace.models.run("train", "mnist-dmm")
