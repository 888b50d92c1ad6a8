"""Flows as assets: steps that are programs of the catalog, flows that are saved, fetched and run elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pipeline_cards import FLOW, add_programs

from fairmile.base.errors import Conflict, InvalidDocument, NotFound, UsageError
from fairmile.flows.flows import Flows
from fairmile.workspace import Workspace

Write = Callable[[str], Path]


@pytest.fixture
def pipeline(workspace: Workspace, write: Write, tmp_path: Path) -> Path:
    """A flow whose three steps are programs of the catalog."""
    add_programs(workspace.catalog, tmp_path / "programs")
    Path("raw.txt").write_text("3\n1\n2\n")
    return write(FLOW)


def lr_of(file: str) -> float:
    value: float = json.loads(Path(file).read_text())["lr"]
    return value


def test_steps_are_programs_of_the_catalog_that_pass_files_on(flows: Flows, pipeline: Path) -> None:
    assert flows.run(pipeline).counts() == {"done": 3}
    assert lr_of("model.json") == 0.5 and Path("score.txt").exists()
    again = flows.run(pipeline, params={"lr": 0.25})
    assert lr_of("model.json") == 0.25
    assert again.step("prepare").run == flows.status(pipeline).step("prepare").run


def test_a_step_may_be_a_flow_of_the_catalog(flows: Flows, write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "count.py").write_text("import sys; open('n.txt', 'w').write(sys.argv[1])\n")
    text = "params: {n: 1}\nsteps:\n  count: {command: 'python count.py {n}', outputs: n.txt}\n"
    (folder / "count.yaml").write_text(text)
    flows.save(folder / "count.yaml", name="counter", set={"version": "1.0"})
    file = write(
        "steps:\n  first: {flow: counter, params: {n: 5}}\n"
        "  last: {shell: cat counter/n.txt > last.txt, inputs: counter/n.txt, outputs: last.txt}\n"
    )
    assert list(flows.plan(file).steps) == ["first/count", "last"]
    assert flows.run(file).counts() == {"done": 2}
    assert Path("last.txt").read_text() == "5"
    assert flows.plan(file).is_up_to_date
    with pytest.raises(InvalidDocument, match=r"there is no file .*, and no flow of the catalog"):
        flows.plan(write("steps:\n  a: {flow: nothing-such}\n"))


def test_a_saved_flow_is_found_fetched_and_run_elsewhere_with_other_parameters(
    flows: Flows, pipeline: Path, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = flows.save(pipeline, name="tide-pipeline", set={"version": "1.0", "license": "CC-BY-4.0"})
    assert saved.to_dict() == {
        "handle": "local/workflow/tide-pipeline@1.0",
        "files": ["flow.yaml", "raw.txt"],
        "params": {"lr": 0.5},
        "assets": [f"local/program/tide-{name}@1.0" for name in ("prepare", "train", "evaluate")],
        "dry_run": False,
    }
    assert [hit.row.name for hit in workspace.workflows.search("tide pipeline")] == ["tide-pipeline"]
    card = workspace.catalog.get("tide-pipeline")
    assert card["input"] == [
        {"@type": "FormalParameter", "name": "lr", "additionalType": "PropertyValue", "defaultValue": 0.5}
    ]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Path(pipeline).write_text("changed since")
    assert [step.reason for step in flows.plan("tide-pipeline").steps.values()] == ["never done"] * 3
    assert os.listdir() == []
    status = flows.run("tide-pipeline", params={"lr": 0.125})
    assert status.counts() == {"done": 3} and lr_of("tide-pipeline/model.json") == 0.125
    assert workspace.workflows.run("tide-pipeline", lr=0.75).counts() == {"done": 3}
    assert lr_of("tide-pipeline/model.json") == 0.75
    flows.run("tide-pipeline", to="third")
    assert lr_of("third/model.json") == 0.5


def test_what_a_person_changed_in_a_fetched_flow_is_not_overwritten(flows: Flows, write: Write) -> None:
    flows.save(write("steps: {a: {command: touch a.txt, outputs: a.txt}}\n"), name="small")
    flows.run("small")
    os.remove("small/flow.yaml")
    Path("small/flow.yaml").write_text("steps: {b: {command: touch b}}\n")
    with pytest.raises(Conflict, match=r"flow\.yaml"):
        flows.run("small")
    assert flows.run("small/flow.yaml").counts() == {"done": 1}


def test_files_that_steps_need_are_saved_and_those_that_steps_make_are_not(
    flows: Flows, write: Write, workspace: Workspace
) -> None:
    Path("fit.py").write_text("import helper\n")
    Path("helper.py").write_text("open('fit.json', 'w').write('{}')\n")
    Path("parts").mkdir()
    for name in ("names.txt", "parts/a.csv", "parts/b.csv", "unrelated.txt"):
        Path(name).write_text("a\n")
    file = write(
        "steps:\n"
        "  fit: {command: python fit.py, inputs: [parts/*.csv], outputs: fit.json}\n"
        "  each: {command: 'touch {n}.out', over: {n: {lines: names.txt}}, inputs: fit.json, outputs: '{n}.out'}\n"
    )
    flows.run(file)
    saved = flows.save(file, dry_run=True)
    assert saved.files == ["fit.py", "flow.yaml", "helper.py", "names.txt", "parts/a.csv", "parts/b.csv"]
    assert "flow" not in workspace.workflows.list_workflows()
    Path("../outside.csv").write_text("1\n")
    with pytest.raises(UsageError, match=r"outside\.csv lies outside of"):
        flows.save(write("steps: {a: {command: cat ../outside.csv, inputs: ../outside.csv}}\n"))


def test_files_with_an_address_are_fetched_from_there(flows: Flows, write: Write, workspace: Workspace) -> None:
    flows.save(write("steps: {a: {command: echo}}\n"), name="shared", address="https://data.example.org/shared")
    entry = workspace.catalog.get("shared")["distribution"][0]
    assert entry["contentUrl"] == "https://data.example.org/shared/flow.yaml"


def test_status_shows_a_flow_with_the_parameters_of_its_last_run(flows: Flows, write: Write) -> None:
    file = write("params: {n: 1}\nsteps: {a: {shell: 'echo {n} > a.txt', outputs: a.txt}}\n")
    flows.run(file, params={"n": 2})
    assert flows.status(file).counts() == {"done": 1}
    assert flows.plan(file).steps["a"].reason == "parameter n changed"
    flows.run(file)
    assert flows.status("last").counts() == {"done": 1}


def test_a_workflow_without_a_flow_says_how_it_is_run(flows: Flows, workspace: Workspace) -> None:
    context = "https://w3id.org/fairmile/card/1.0/context"
    body = {"@context": context, "@type": "ComputationalWorkflow", "name": "greet", "version": "1.0"}
    workspace.catalog.add({**body, "command": "echo high tide"})
    with pytest.raises(UsageError, match="has no flow file") as caught:
        flows.run("greet")
    assert "fairmile run local/workflow/greet@1.0" in (caught.value.hint or "")
    assert workspace.workflows.run("greet").counts() == {"done": 1}
    with pytest.raises(NotFound, match="'gret' is not a file here, a flow or a workflow of the catalog"):
        flows.run("gret")


@pytest.mark.parametrize("format", ["airflow", "snakemake"])
def test_other_tools_cannot_fetch_the_programs_of_assets(format: str, flows: Flows, pipeline: Path) -> None:
    with pytest.raises(UsageError, match=r"step 'prepare' runs the asset local/program/tide-prepare@1\.0"):
        flows.export(pipeline, to=format)
