"""Flows proposed from what the catalog knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pipeline_cards import EVALUATE, PREPARE, TRAIN, card

from fairmile.base.errors import Conflict, NotFound
from fairmile.workspace import Workspace

PROGRAMS = (
    ("tide-prepare", PREPARE, "{python} tide-prepare.py {inputs.raw}", ["clean.txt"], "dataset/levels"),
    ("tide-train", TRAIN, "{python} tide-train.py {inputs.data} --lr {lr}", ["model.json"], "model/tide-mean"),
    ("tide-evaluate", EVALUATE, "{python} tide-evaluate.py {inputs.model} {inputs.data}", [], "model/tide-mean"),
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    made = Workspace.open(environ=environ, cwd=tmp_path)
    raw = tmp_path / "levels/raw.txt"
    raw.parent.mkdir()
    raw.write_text("3\n1\n2\n")
    made.catalog.add(card("Dataset", "levels", [raw]))
    made.catalog.add(card("MLModel", "tide-mean", [], trainedOn="dataset/levels"))
    for name, code, command, outputs, mentioned in PROGRAMS:
        file = tmp_path / "programs" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        # The data set is a folder.
        file.write_text(
            code.replace("open(sys.argv[1]))", "open(f'{sys.argv[1]}/raw.txt'))") if "raw" in command else code
        )
        more: dict[str, Any] = {"output": outputs} if outputs else {}
        more |= {"hyperparameters": {"lr": 0.9}} if name == "tide-train" else {}
        made.catalog.add(card("SoftwareSourceCode", name, [file], command=command, mentions=mentioned, **more))
    return made


def test_programs_that_name_model_and_data_become_steps_that_pass_files_on(workspace: Workspace) -> None:
    suggestion = workspace.flows.suggest("tide-mean")
    assert suggestion.dataset == "dataset/levels"
    assert [(each.step, each.program, each.inputs) for each in suggestion.steps] == [
        ("preprocess", "program/tide-prepare", {"raw": "dataset/levels"}),
        ("train", "program/tide-train", {"data": "clean.txt"}),
        ("evaluate", "program/tide-evaluate", {"model": "model.json", "data": "clean.txt"}),
    ]
    assert suggestion.steps[0].reasons == ("program/tide-prepare and the data set name each other",)
    assert suggestion.open == ()


def test_the_proposal_is_a_flow_that_runs(workspace: Workspace, tmp_path: Path) -> None:
    workspace.flows.suggest("tide-mean", output=tmp_path / "flow.yaml")
    status = workspace.flows.run(tmp_path / "flow.yaml")
    assert {step.state for step in status.steps} == {"done"}
    with pytest.raises(Conflict, match="exists"):
        workspace.flows.suggest("tide-mean", output=tmp_path / "flow.yaml")


def test_what_cards_leave_open_is_listed_and_marked(workspace: Workspace) -> None:
    workspace.catalog.update("program/tide-train", set={"output": None})
    suggestion = workspace.flows.suggest("tide-mean", dataset="levels")
    assert suggestion.open[0] == "train: name the files that it writes under `outputs`"
    assert "# to do: train: name the files" in suggestion.text


def test_a_saved_flow_that_pairs_both_stands_for_all_steps(workspace: Workspace, tmp_path: Path) -> None:
    suggestion = workspace.flows.suggest("mnist-dnn", output=tmp_path / "flow.yaml")
    assert [(step.step, step.program) for step in suggestion.steps] == [("pipeline", "workflow/mnist-pipeline")]
    plan = workspace.flows.plan(tmp_path / "flow.yaml")
    assert list(plan.steps) == ["pipeline/preprocess", "pipeline/train", "pipeline/evaluate"]


def test_so_does_a_benchmark_where_there_is_none(workspace: Workspace) -> None:
    (step,) = workspace.flows.suggest("qubo-svr").steps
    assert (step.step, step.program) == ("train", "benchmark/qsvr")


def test_a_model_for_which_nothing_is_known_is_told(workspace: Workspace) -> None:
    workspace.catalog.add(card("MLModel", "stranger", []))
    with pytest.raises(NotFound, match="no data set of the catalog fits stranger"):
        workspace.flows.suggest("stranger")
    with pytest.raises(NotFound, match="no program of the catalog prepares"):
        workspace.flows.suggest("stranger", dataset="mnist")
    assert workspace.flows.suggest("stranger", dataset="levels").open == (
        "no program of the catalog trains this model: add a step",
    )
