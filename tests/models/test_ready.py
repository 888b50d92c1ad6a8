"""Models of every format are ready to call: arrays in, arrays out."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Unsupported, UsageError
from fairmile.compat import hpcfair_model
from fairmile.models.ready import LoadedModel, ModelFile
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "formats" / "data"
TIDES = ROOT / "docs" / "examples" / "tides.onnx"
LEVELS = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, -1.0]])
FLOODS = [[6.0, 6.0], [0.0, 0.0]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


def test_an_onnx_file_is_called_with_arrays_in_order_or_by_name(workspace: Workspace) -> None:
    model = workspace.models.load(TIDES)
    assert isinstance(model, ModelFile)
    assert model(LEVELS).tolist() == FLOODS
    assert model(x=LEVELS.astype(np.float32)).tolist() == FLOODS
    assert model.native.get_providers() == ["CPUExecutionProvider"]
    assert workspace.models.apply(TIDES, LEVELS).tolist() == FLOODS


def test_arrays_that_do_not_fit_the_inputs_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match=r"no input 'level'; inputs: x float32\[batch, 3\]"):
        workspace.models.apply(TIDES, level=LEVELS)
    with pytest.raises(UsageError, match="no array for 'x'"):
        workspace.models.apply(TIDES)
    with pytest.raises(UsageError, match=r"'x' has the shape \[2, 2\], expected x float32\[batch, 3\]"):
        workspace.models.apply(TIDES, LEVELS[:, :2])
    with pytest.raises(UsageError, match=r"'x' has the shape \[3\], expected"):
        workspace.models.apply(TIDES, LEVELS[0])


def test_a_skops_file_predicts(workspace: Workspace) -> None:
    values = np.random.default_rng(0).random((20, 4))
    assert np.allclose(workspace.models.apply(DATA / "pipeline.skops", values), values.sum(axis=1), atol=0.2)


def test_a_pickle_is_loaded_only_by_those_who_trust_it(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="loading it can run any code that its author chose") as caught:
        workspace.models.apply(DATA / "pipeline.pkl", np.ones((2, 4)))
    assert "trust_pickle=True" in (caught.value.hint or "")
    assert workspace.models.apply(DATA / "pipeline.pkl", np.ones((2, 4)), trust_pickle=True).shape == (2,)


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch mark",)


def test_a_pickle_with_a_command_is_refused_and_named(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.pt").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(UsageError, match=r"loading it would run posix.system, so Fairmile does not load it"):
        _ = workspace.models.load(tmp_path / "weights.pt").native
    assert not (tmp_path / "mark").exists()


def test_weights_of_a_checkpoint_are_arrays_by_name(workspace: Workspace) -> None:
    model = workspace.models.load(DATA / "checkpoint")
    assert {name: each.tolist() for name, each in model.native.items() if name.startswith("model/")} == {
        "model/w": [[1.0, 1.0]] * 3,
        "model/b": [0.0, 0.0],
    }
    with pytest.raises(Unsupported, match="holds weights alone"):
        model(LEVELS)


def test_weights_of_pytorch_go_into_a_module(workspace: Workspace) -> None:
    import torch

    class Tides(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, level: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(level))

    expected = workspace.models.apply(DATA / "tides.torchscript", LEVELS)
    assert np.allclose(workspace.models.apply(DATA / "state.pt", LEVELS, into=Tides()), expected)
    assert np.allclose(workspace.models.apply(DATA / "tides.pt2", LEVELS), expected)
    assert set(workspace.models.load(DATA / "state.pt").native) == {"layer.weight", "layer.bias"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tides.keras", "tides.h5"])
def test_a_keras_model_is_called(name: str, workspace: Workspace) -> None:
    assert workspace.models.apply(DATA / name, LEVELS.astype(np.float32)).shape == (2, 2)


def test_a_model_file_becomes_a_card_and_is_called_by_name(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copy(TIDES, tmp_path / "tides.onnx")
    [added] = workspace.catalog.add(tmp_path / "tides.onnx")
    card = workspace.catalog.get("model/tides")
    assert added.handle == str(card.handle)
    assert card.texts("machineLearningFramework") == ["onnx"]
    assert card.get("modelFormat") == "application/x-onnx"
    assert card.get("parameterCount") == 6
    assert card.get("signature") == {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 3]}],
        "outputs": [{"name": "z", "dtype": "float32", "shape": [None, 2]}],
    }
    model = workspace.models.load("tides")
    assert isinstance(model, LoadedModel)
    assert model(LEVELS).tolist() == FLOODS
    described = workspace.models.describe("tides")
    assert (described.card, described.digest) == (added.handle, card.files[0].sha256)


def test_a_card_of_a_pickle_warns(workspace: Workspace) -> None:
    [added] = workspace.catalog.add(DATA / "pipeline.pkl")
    assert [each["message"] for each in added.warnings] == ["pipeline.pkl can execute code when it is loaded"]


def test_a_damaged_model_is_not_added(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "tides.pt").write_bytes((DATA / "state.pt").read_bytes()[:-300])
    with pytest.raises(UsageError, match="damaged ZIP file"):
        workspace.catalog.add(tmp_path / "tides.pt")


def test_inference_over_a_file_of_arrays_is_a_run(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "levels.npy", LEVELS)
    run = workspace.models.run("inference", TIDES, tmp_path / "levels.npy")
    assert run.state is RunState.DONE
    assert np.load(run.work / "predictions.npz")["output"].tolist() == FLOODS
    assert run.metrics["rows"].value == 2
    assert set(run.record.spec.inputs) == {"model", "data"}
    monkeypatch.setattr(Workspace, "open", staticmethod(lambda: workspace))
    again = hpcfair_model.run("inference", str(TIDES), str(tmp_path / "levels.npy"), log_dir=str(tmp_path / "logs"))
    assert again.state is RunState.DONE
    assert [each.name for each in (tmp_path / "logs").iterdir()] == [f"{again.id}.log"]


def test_inference_refuses_a_pickle_before_anything_runs(workspace: Workspace, tmp_path: Path) -> None:
    np.save(tmp_path / "levels.npy", np.ones((2, 4)))
    with pytest.raises(UsageError, match="so Fairmile does not load it"):
        workspace.models.run("inference", DATA / "pipeline.pkl", tmp_path / "levels.npy")
    run = workspace.models.run("inference", DATA / "pipeline.pkl", tmp_path / "levels.npy", trust_pickle=True)
    assert run.state is RunState.DONE
