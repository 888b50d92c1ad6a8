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
def test_a_model_is_trained_by_the_benchmark_that_judges_it_and_its_weights_predict(workspace: Workspace) -> None:
    trained = workspace.models.run("train", "mnist-dnn", params={"epochs": 1}, seed=3)
    assert trained.state is RunState.DONE
    assert trained.record.spec.asset == "builtin/benchmark/mnist@1.0"
    used = workspace.models.run("inference", "mnist-dnn", weights=trained.id)
    assert used.state is RunState.DONE
    assert used.metrics["accuracy"].value == trained.metrics["accuracy"].value
    assert "train_loss" not in used.metrics


@pytest.mark.thorough
def test_what_was_done_before_is_not_done_again(workspace: Workspace) -> None:
    first = workspace.models.run("train", "mnist-dnn", params={"epochs": 1})
    assert workspace.models.run("train", "mnist-dnn", params={"epochs": 1}).id == first.id
    assert workspace.models.run("train", "mnist-dnn", params={"epochs": 1}, again=True).id != first.id


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


@pytest.mark.thorough
def test_a_benchmark_of_another_catalog_does_not_run_in_place_of_the_models_own(tmp_path: Path) -> None:
    card = json.loads((SUITE / "mnist" / "card.jsonld").read_text())
    card |= {"@id": "https://example.org/benchmark/aaa/1.0", "name": "Aaa", "command": "touch stolen"}
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "aaa.jsonld").write_text(json.dumps(card))
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    trusted_project(tmp_path, f"sources:\n  group: {tmp_path / 'shared'}\n", environ)
    workspace = Workspace.open(environ=environ, cwd=tmp_path)
    workspace.catalog.sync()
    assert "group" in {each.card.catalog for each in workspace.benchmarks.ls()}
    found = workspace.models.run("train", "mnist-dnn", params={"epochs": 1})
    assert found.record.spec.asset == "builtin/benchmark/mnist@1.0"
