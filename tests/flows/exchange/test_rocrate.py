"""The RO-Crate of a flow: what it is, and once it has run what happened, with all files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocrate_validation import validate_crate

from fairmile.base.errors import Conflict
from fairmile.flows.flows import Flows

Write = Callable[[str], Path]
FLOW = """\
params: {word: tide}
steps:
  make it: {shell: 'sh make.sh "{word}" {n} > "{n} out.txt"', over: {n: 1..2}, inputs: raw, outputs: '{n} out.txt'}
  join: {shell: cat *.txt > all.csv, inputs: '*.txt', outputs: all.csv}
"""


@pytest.fixture
def file(write: Write) -> Path:
    Path("make.sh").write_text("cat raw/a.csv; echo $1 $2\n")
    Path("raw").mkdir()
    Path("raw/a.csv").write_text("1\n")
    return write(FLOW)


def entities(folder: str) -> dict[str, dict[str, Any]]:
    graph = json.loads(Path(folder, "ro-crate-metadata.json").read_text())["@graph"]
    return {each["@id"]: each for each in graph}


@pytest.mark.thorough
def test_a_flow_that_has_not_run_is_a_workflow_crate(flows: Flows, file: Path) -> None:
    flows.export(file, to="rocrate").write(Path("crate"))
    names = sorted(str(each.relative_to("crate")) for each in Path("crate").rglob("*") if each.is_file())
    assert names == ["flow.yaml", "make.sh", "raw/a.csv", "ro-crate-metadata.json"]
    nodes = entities("crate")
    assert nodes["./"]["mainEntity"] == {"@id": "flow.yaml"}
    assert [nodes[each["@id"]]["name"] for each in nodes["flow.yaml"]["step"]] == ["make it", "join"]
    assert not any("Action" in str(each["@type"]) for each in nodes.values())
    assert validate_crate(Path("crate"), "workflow-ro-crate-1.0") == []
    with pytest.raises(Conflict, match="crate is not empty"):
        flows.export(file, to="rocrate").write(Path("crate"))


def test_a_flow_that_has_run_is_a_run_crate_with_what_each_step_took_and_gave(flows: Flows, file: Path) -> None:
    status = flows.run(file, params={"word": "ebb"})
    flows.export(file, to="rocrate").write(Path("crate"))
    assert Path("crate/all.csv").read_text() == "1\nebb 1\n1\nebb 2\n"
    nodes = entities("crate")
    run = nodes[f"#run-{status.step('join').run}"]
    assert [each["@id"] for each in run["object"]] == ["1%20out.txt", "2%20out.txt"]
    assert run["result"] == {"@id": "all.csv"} and run["startTime"] < run["endTime"]
    assert nodes["#value-word"]["value"] == "ebb"
    assert [each["@id"] for each in nodes["#organize"]["object"]] == [
        *("#control-make%20it%5B1%5D", "#control-make%20it%5B2%5D", "#control-join")
    ]
    assert validate_crate(Path("crate"), "provenance-run-crate-0.5") == []  # which includes the other three profiles


def test_a_crate_is_a_zip_file_where_its_name_says_so(flows: Flows, file: Path) -> None:
    exported = flows.export(file, to="rocrate")
    exported.write(Path("flow.zip"))
    with zipfile.ZipFile("flow.zip") as archive:
        assert sorted(archive.namelist()) == ["flow.yaml", "make.sh", "raw/a.csv", "ro-crate-metadata.json"]
        assert archive.read("ro-crate-metadata.json").decode() == exported.text
