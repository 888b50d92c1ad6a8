"""Runs in OpenML's form: OpenML reads them, and what OpenML wrote is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from run_documents import lay_run, training, trivial

from fairmile.base.errors import Conflict, InvalidDocument, NotFound
from fairmile.runs.exchange import EXCHANGES
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def openml(home: Path) -> Any:
    pytest.importorskip("openml", reason="openml is not installed")
    return EXCHANGES["openml"]


class Evil:
    """Does harm when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


# Out


def test_openml_reads_the_run_with_flow_parameters_and_evaluations(openml: Any, run: Run, tmp_path: Path) -> None:
    from openml.runs import OpenMLRun

    run.tags.append("openml-task-59")
    made = openml.export(run, tmp_path / "out")
    assert tmp_path / "out" / "train-k3x9qa" / "description.xml" in made
    seen = OpenMLRun.from_filesystem(tmp_path / "out" / "train-k3x9qa", expect_model=False)
    assert seen.task_id == 59
    assert seen.flow.name == "fairmile.train" and seen.flow.external_version == "c" * 40
    assert seen.flow.parameters["lr"] == "0.1" and seen.flow.parameters["note"] == "größer als 1"
    assert seen.flow.description == "python train.py --note 'two words'"
    assert "numpy==2.1.0" in seen.flow.dependencies
    measures = {name: repeats[0][0] for name, repeats in seen.fold_evaluations.items()}
    assert measures["loss"] == 0.5 and measures["val accuracy/größe"] == 0.9
    assert (measures["wall_clock_time_millis"], measures["usercpu_time_millis"]) == (250.0, 11800.0)
    assert measures["energy_j"] == 1234.5
    assert "nightly" in seen.tags and seen.run_details == "train-k3x9qa"


def test_predictions_that_the_run_made_go_with_it(openml: Any, tmp_path: Path) -> None:
    from openml.runs import OpenMLRun

    document = training()
    folder = lay_run(tmp_path, document)
    text = "@RELATION p\n@ATTRIBUTE repeat NUMERIC\n@ATTRIBUTE prediction {a,b}\n@DATA\n0,a\n0,b\n"
    (folder / "work" / "predictions.arff").write_text(text)
    openml.export(Run(RunRecord.from_dict(document), folder), tmp_path / "out")
    seen = OpenMLRun.from_filesystem(tmp_path / "out" / document["id"], expect_model=False)
    assert seen.data_content == [[0.0, "a"], [0.0, "b"]]


def test_a_run_goes_out_once(openml: Any, run: Run, tmp_path: Path) -> None:
    openml.export(run, tmp_path)
    with pytest.raises(Conflict):
        openml.export(run, tmp_path)


# In


def test_our_own_run_comes_back_as_it_was(openml: Any, run: Run, tmp_path: Path) -> None:
    openml.export(run, tmp_path / "out")
    [imported] = openml.read(tmp_path / "out" / run.id)
    assert imported.record == run.record
    again = imported.lay(tmp_path / "again")
    assert (again.folder / "work" / "model é.pt").read_bytes() == b"weights"


def _theirs(folder: Path, **more: Any) -> Path:
    """Write a run as OpenML itself does."""
    from openml.flows import OpenMLFlow
    from openml.runs import OpenMLRun

    meta = {name: {"description": "", "data_type": ""} for name in ("depth", "criterion")}
    flow = OpenMLFlow(
        name="their.Forest",
        description="a forest",
        model=None,
        components={},
        parameters={"depth": "3", "criterion": "gini"},
        parameters_meta_info=meta,
        external_version="forest==1.0",
        tags=[],
        language="English",
        dependencies="forest>=1.0",
    )
    run = OpenMLRun(
        task_id=7,
        flow_id=None,
        dataset_id=None,
        flow=flow,
        flow_name=flow.name,
        parameter_settings=[],
        tags=["theirs"],
        fold_evaluations={"predictive_accuracy": {0: {0: 0.5, 1: 0.75}}, "wall_clock_time_millis": {0: {0: 2000.0}}},
    )
    vars(run).update(more)
    folder.mkdir()
    flow.to_filesystem(folder)
    (folder / "description.xml").write_text(run._to_xml(), encoding="utf-8")
    (folder / "predictions.arff").write_text("@RELATION p\n@ATTRIBUTE repeat NUMERIC\n@DATA\n0\n")
    return folder


def test_a_run_that_openml_wrote_becomes_one_of_ours(openml: Any, tmp_path: Path) -> None:
    [imported] = openml.read(_theirs(tmp_path / "run-1"))
    run = imported.lay(tmp_path / "laid")
    assert run.params == {"depth": 3, "criterion": "gini"}
    accuracy = run.metrics["predictive_accuracy"]
    assert (accuracy.value, accuracy.mean, accuracy.count, accuracy.better) == (0.75, 0.625, 2, "higher")
    assert (run.state, run.elapsed_s, run.spec.tags) == (RunState.DONE, pytest.approx(2.0), ("theirs",))
    assert run.record.imported["task"] == 7
    assert (run.folder / "work" / "flow.xml").is_file()


def test_parameters_of_the_run_go_before_those_of_the_flow(openml: Any, tmp_path: Path) -> None:
    settings = [{"oml:name": "depth", "oml:value": "9", "oml:component": "their.Forest"}]
    [imported] = openml.read(_theirs(tmp_path / "run-1", parameter_settings=settings))
    assert imported.record.spec.params == {"depth": 9}


def test_an_error_of_a_run_is_its_reason(openml: Any, tmp_path: Path) -> None:
    [imported] = openml.read(_theirs(tmp_path / "run-1", error_message="out of memory"))
    assert imported.record.result.reason == "out of memory"
    assert imported.record.state == "failed"


def test_a_pickled_model_is_never_loaded(openml: Any, tmp_path: Path) -> None:
    folder = _theirs(tmp_path / "run-1")
    (folder / "model.pkl").write_bytes(pickle.dumps(Evil(tmp_path / "harm")))
    [imported] = openml.read(folder)
    imported.lay(tmp_path / "laid")
    assert not (tmp_path / "harm").exists()
    pickle.loads((folder / "model.pkl").read_bytes())
    assert (tmp_path / "harm").exists(), "loading it would have done harm"


@pytest.mark.parametrize(
    "text", ["", "<oml:run", "<other/>", "<oml:run xmlns:oml='x'><oml:task_id>x</oml:task_id></oml:run>"]
)
def test_what_is_no_run_is_refused_with_its_file(text: str, openml: Any, tmp_path: Path) -> None:
    folder = _theirs(tmp_path / "run-1")
    (folder / "description.xml").write_text(text)
    with pytest.raises(InvalidDocument, match=r"description.xml"):
        openml.read(folder)


def test_a_document_that_expands_without_end_is_refused(openml: Any, tmp_path: Path) -> None:
    folder = _theirs(tmp_path / "run-1")
    bomb = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]><oml:run>&b;</oml:run>"
    (folder / "description.xml").write_text(bomb)
    with pytest.raises(InvalidDocument):
        openml.read(folder)


def test_a_folder_without_a_run_is_not_found(openml: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no OpenML run"):
        openml.read(tmp_path)


def test_a_failed_run_goes_out_with_its_reason(openml: Any, tmp_path: Path) -> None:
    document = trivial("failed")
    openml.export(Run(RunRecord.from_dict(document), lay_run(tmp_path, document)), tmp_path / "out")
    assert "exit code 3" in (tmp_path / "out" / document["id"] / "description.xml").read_text()
