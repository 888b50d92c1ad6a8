"""A conversion is a run: recorded, proved, published with a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fairmile.base.errors import Conflict, MissingExtra, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.models.convert.conversion import error_again, tensorflow_command
from fairmile.workspace import Workspace

TIDES = Path(__file__).parents[3] / "docs" / "examples" / "tides.onnx"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    save_file({"w": torch.arange(6.0)}, "tides.safetensors")
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    return Workspace.open(environ=environ, cwd=tmp_path)


def test_a_proved_file_is_published_with_its_run_and_a_card_that_names_its_source(workspace: Workspace) -> None:
    digest = workspace.models.describe("tides.safetensors").digest
    converted = workspace.models.convert("tides.safetensors", "pytorch")
    assert converted.holds
    assert converted.file == "tides.pt"
    assert torch.equal(torch.load("tides.pt", weights_only=True)["w"], torch.arange(6.0))
    run = workspace.runs.get(converted.run)
    assert run.metrics["largest_difference"].value == 0.0
    card = workspace.catalog.get(converted.card)
    assert card.texts("wasDerivedFrom") == [f"urn:sha256:{digest}"]
    with pytest.raises(Conflict, match="already exists"):
        workspace.models.convert("tides.safetensors", "pytorch")


def test_errors_of_the_program_are_raised_and_nothing_is_published(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="holds weights alone"):
        workspace.models.convert("tides.safetensors", "onnx")
    assert not Path("tides.onnx").exists()


def test_a_missing_file_and_a_format_without_a_converter_are_refused_before_a_run(workspace: Workspace) -> None:
    with pytest.raises(NotFound, match=r"none\.onnx: no such file or folder"):
        workspace.models.convert("none.onnx", "pytorch")
    with pytest.raises(UsageError, match="no conversion to 'tensorrt'"):
        workspace.models.convert("tides.safetensors", "tensorrt")
    with pytest.raises(NotFound, match="no environment named 'tf' was built"):
        workspace.models.convert(TIDES, "savedmodel", environment="tf")
    with pytest.raises(NotFound, match=r"none\.npy: no such file"):
        workspace.models.convert(TIDES, "pytorch", data="none.npy", dry_run=True)
    assert list(workspace.runs.ls()) == []


class Offline:
    """Environments of a machine that reaches no package index."""

    def build(self, spec: object) -> None:
        raise SystemFailure("`uv pip compile` ended with exit code 1:\nerror: No solution\n\nhint: No network.")


def test_a_tensorflow_that_cannot_be_installed_is_one_sentence_with_a_remedy() -> None:
    envs: Any = Offline()
    with pytest.raises(Unsupported) as caught:
        tensorflow_command(envs, "")
    assert caught.value.message == "SavedModel needs TensorFlow, which could not be installed: No network."
    assert "--environment ENV" in (caught.value.hint or "")


def test_only_runs_of_benchmarks_have_validation_data(workspace: Workspace) -> None:
    other = workspace.runs.run(["true"])
    with pytest.raises(UsageError, match=f"run {other.id} has no validation data"):
        workspace.models.convert("tides.safetensors", "onnx", validate_on=other.id)


def test_a_plan_names_the_file_and_an_unknown_format_the_nearest(workspace: Workspace) -> None:
    assert workspace.models.convert("tides.safetensors", "onnx", dry_run=True).file == "tides.onnx"
    with pytest.raises(UsageError, match="no conversion to 'onx'") as caught:
        workspace.models.convert("tides.safetensors", "onx")
    assert caught.value.hint == "did you mean 'onnx'?"


def test_the_data_set_that_a_card_names_is_part_of_the_proof_once_the_store_has_it(workspace: Workspace) -> None:
    Path("levels").mkdir()
    np.save("levels/other.npy", np.zeros((4, 7)))
    np.savez("levels/x.npz", x=np.full((50, 3), 30.0))
    levels = workspace.catalog.describe("levels", kind="dataset", set={"name": "levels", "version": "1"}, add=True)
    named = {"name": "tides", "version": "1", "validatedOn": workspace.catalog.get(levels.added).iri}
    workspace.catalog.describe(TIDES, kind="model", set=named, add=True)

    plan = workspace.models.convert("tides", "pytorch", dry_run=True)
    assert plan.notes == (
        f"not compared on {levels.added}, which its card names: `fairmile fetch {levels.added}` brings it",
    )
    workspace.assets.fetch(levels.added)
    converted = workspace.models.convert("tides", "pytorch")
    assert converted.notes == ()
    assert converted.proof is not None
    assert levels.added in [each["inputs"] for each in converted.proof["cases"]]
    assert workspace.runs.get(converted.run).captured.inputs["data_set"].sha256


def test_a_package_that_another_process_missed_is_named_with_its_installation() -> None:
    again = error_again(MissingExtra("exploring this model needs onnxruntime", "models").to_dict())
    assert (str(again), again.hint, again.exit_code) == (
        "exploring this model needs onnxruntime",
        "pip install 'fairmile[models]'",
        3,
    )
