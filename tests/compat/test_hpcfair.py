from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS
from fairmile.compat import hpcfair_dataset, hpcfair_model
from fairmile.workspace import Workspace

TIDES = Path(__file__).parents[2] / "docs" / "examples" / "tides.onnx"


def body(kind: str, name: str, **more: Any) -> dict[str, Any]:
    iri = f"https://example.net/{kind}/{name.replace(' ', '-')}"
    return {"@context": CONTEXT_IRI, "@id": iri, "@type": KINDS[kind].types[0], "name": name, "version": "1.0", **more}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The workspace that the published calls see, with a few assets beside the built-in ones."""
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    found = Workspace.open()
    found.catalog.add(body("dataset", "Kernel timings", hasPart=["clean.py", {"@id": "raw.csv"}]))
    found.catalog.add(body("dataset", "Removed timings"))
    found.catalog.remove("removed-timings")
    found.catalog.add(body("model", "Kernel predictor", keywords=["surrogate"], trainedOn="kernel-timings"))
    found.catalog.add(body("workflow", "Train the predictor", keywords=["surrogate"]))
    return found


def test_names_are_listed_sorted_without_what_was_removed(workspace: Workspace) -> None:
    models, datasets = hpcfair_model.list_models(), hpcfair_dataset.list_datasets()
    assert models == sorted(models)
    assert "kernel-predictor" in models
    assert datasets == sorted(datasets)
    assert "kernel-timings" in datasets
    assert "removed-timings" not in datasets
    assert "kernel-timings" not in models


def test_metadata_of_one_is_a_mapping_and_of_several_a_list(workspace: Workspace) -> None:
    one = hpcfair_model.get_metadata("kernel-predictor")
    assert isinstance(one, dict)
    assert one == {
        "@id": "https://example.net/model/Kernel-predictor",
        "@title": "Kernel predictor",
        "hpc:associatedDataset": ["kernel-timings"],
        "hpc:tags": {"Version": "1.0", "category": ["surrogate"]},
    }
    assert hpcfair_model.get_metadata(["kernel-predictor", "Kernel predictor"]) == [one, one]
    assert hpcfair_dataset.get_metadata([]) == []
    with pytest.raises(NotFound, match="no dataset named 'kernel-predictor'"):
        hpcfair_dataset.get_metadata("kernel-predictor")


def test_search_takes_a_regular_expression_and_gives_names(workspace: Workspace) -> None:
    assert hpcfair_model.search("^kernel.*or$") == ["kernel-predictor"]
    assert hpcfair_model.search("^Kernel pre") == ["kernel-predictor"]
    assert hpcfair_model.search("^surrogate$") == ["kernel-predictor"]
    assert hpcfair_dataset.search("kernel t|removed") == ["kernel-timings"]
    assert hpcfair_dataset.search("nothing like this") == []
    with pytest.raises(UsageError, match="is not a regular expression"):
        hpcfair_dataset.search("(")


def test_workflows_are_searched_by_keyword(workspace: Workspace) -> None:
    assert hpcfair_model.search_workflows("surrogate") == ["train-the-predictor", "miniweather-pipeline"]
    assert hpcfair_model.search_workflows("nonsense") == []


def test_supporting_files_are_names(workspace: Workspace) -> None:
    assert hpcfair_dataset.list_supporting_files("kernel-timings") == ["clean.py", "raw.csv"]


LISTING = {
    "@context": {"hpc": "https://github.com/HPC-FAIR/HPC-Ontology#"},
    "@id": "https://example.net/M1",
    "@title": "Listed model",
    "@description": "Predicts run times.",
    "@url": "https://example.net/listed",
    "hpc:submitter": ["Ada Example"],
    "hpc:tags": {"Version": "2.0", "License": "MIT", "tasks": ["regression"], "category": ["GPU"], "year": 2021},
    "hpc:modelType": ["Random forest"],
    "hpc:isTunable": False,
    "hpc:hyperParams": {"trees": 100},
    "hpc:machineLearningFramework": ["scikit-learn"],
    "hpc:acceleratorSupport": True,
    "hpc:metrics": ["throughput", "latency"],
    "hpc:associatedDataset": ["Kernel timings"],
    "hpc:associatedWorkflow": ["Train the predictor"],
    "hpc:reqSoftwares": ["python 3.8", "scikit-learn"],
    "hpc:reqHardware": ["1 GPU"],
    "hpc:sysConfig": {"OMP_NUM_THREADS": "8"},
    "hpc:citation": "Ada Example, Timing kernels, 2021.",
}


def test_an_imported_listing_is_shown_as_it_was_published(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "listing.jsonld"
    path.write_text(json.dumps(LISTING))
    workspace.catalog.add(path)
    shown = hpcfair_model.get_metadata("listed-model")
    assert shown == {key: value for key, value in LISTING.items() if key != "@context"}


def test_a_listing_tells_models_from_data_sets(workspace: Workspace) -> None:
    workspace.catalog.add(
        body("dataset", "Derived", object=["kernel-timings", "kernel-predictor"], result="kernel-predictor")
    )
    shown = hpcfair_dataset.get_metadata("derived")
    assert isinstance(shown, dict)
    assert shown["hpc:associatedDataset"] == ["kernel-timings"]
    assert shown["hpc:associatedModel"] == ["kernel-predictor"]


def test_a_data_set_is_loaded_into_a_folder_from_elsewhere(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/times.csv").write_text("1\n")
    folder = hpcfair_dataset.load_dataset("kernel-timings", src_path=tmp_path / "raw", dest_path=tmp_path / "out")
    assert (folder / "times.csv").read_text() == "1\n"


def test_a_model_of_another_format_than_stated_is_not_converted(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UsageError, match="is a model in the format safetensors, not onnx"):
        hpcfair_model.convert("onnx", "tensorflow", file, tmp_path / "model.keras")


def test_a_loaded_model_is_called_and_run_on_a_file(workspace: Workspace, tmp_path: Path) -> None:
    workspace.catalog.describe(TIDES, kind="model", add=True)
    rows = np.ones((4, 3), np.float32)
    expected = hpcfair_model.load("tides")(rows)
    np.save(tmp_path / "rows.npy", rows)
    done = hpcfair_model.run("inference", "tides", str(tmp_path / "rows.npy"), log_dir=str(tmp_path / "logs"))
    np.testing.assert_array_equal(np.load(done.work / "predictions.npz")["output"], expected)
    assert (tmp_path / "logs" / f"{done.id}.log").is_file()
