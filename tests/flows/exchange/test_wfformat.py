"""WfFormat: recorded workflows are played back in their order, and flows come out as recordings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.flows.flows import Flows
from fairmile.workspace import Workspace

Write = Callable[[str], Path]


def recording() -> dict[str, Any]:
    """A small workflow as wfcommons records one."""
    tasks = [
        {"name": "split", "id": "split_1", "parents": [], "children": ["map_1", "map_2"],
         "inputFiles": ["raw.dat"], "outputFiles": ["part/1", "part/2"]},
        {"name": "map", "id": "map_1", "parents": ["split_1"], "children": ["join_1"],
         "inputFiles": ["part/1"], "outputFiles": ["out 1"]},
        {"name": "map", "id": "map_2", "parents": ["split_1"], "children": ["join_1"],
         "inputFiles": ["part/2"], "outputFiles": ["out 2"]},
        {"name": "join", "id": "join_1", "parents": ["map_1", "map_2"], "children": [],
         "inputFiles": ["out 1", "out 2"], "outputFiles": ["all"]},
    ]  # fmt: skip
    files = [{"id": name, "sizeInBytes": 1000} for name in ("raw.dat", "part/1", "part/2", "out 1", "out 2", "all")]
    executed = [{"id": task["id"], "runtimeInSeconds": 1.5} for task in tasks]
    return {
        "name": "blast",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {"tasks": tasks, "files": files},
            "execution": {"makespanInSeconds": 4.5, "executedAt": "2024-01-01T00:00:00Z", "tasks": executed},
        },
    }


def test_a_recorded_workflow_is_played_back_in_its_order(flows: Flows, workspace: Workspace) -> None:
    Path("blast.json").write_text(json.dumps(recording()))
    plan = flows.plan("blast.json")
    parents = {task["id"]: task["parents"] for task in recording()["workflow"]["specification"]["tasks"]}
    assert {name: sorted(step.node.needs) for name, step in plan.steps.items()} == parents
    ended: list[str] = []
    status = flows.run(
        "blast.json",
        params={"speedup": 1000, "bytes": 10},
        on_event=lambda step, what, _: ended.append(step) if what == "done" else None,
    )
    assert status.counts() == {"done": 4}
    assert (ended[0], ended[-1]) == ("split_1", "join_1")
    runs = {step.name: workspace.runs.get(step.run).record for step in status.steps}
    for name, before in parents.items():
        for each in before:
            result = runs[each].result
            assert result is not None and (result.ended or 0.0) <= runs[name].attempts[0].started
    assert Path("files/out 1").stat().st_size == 10


def test_a_flow_goes_out_with_its_times_and_comes_back_with_the_same_graph(flows: Flows, write: Write) -> None:
    file = write(
        "steps:\n  a: {shell: 'echo {n} > \"o {n}.txt\"', over: {n: 1..2}, outputs: 'o {n}.txt'}\n"
        "  b: {command: [sh, -c, cat *.txt > all, ''], inputs: '*.txt', outputs: all}\n"
    )
    assert "execution" not in json.loads(flows.export(file, to="wfformat").text)["workflow"]
    flows.run(file)
    text = flows.export(file, to="wfformat").text
    workflow = json.loads(text)["workflow"]
    execution = workflow["execution"]
    assert [each["id"] for each in execution["tasks"]] == ["a_1", "a_2", "b"]
    assert [each["name"] for each in workflow["specification"]["tasks"]] == ["a[1]", "a[2]", "b"]
    for task in workflow["specification"]["tasks"]:
        for id in (*task["parents"], *task["children"], *task["inputFiles"], *task["outputFiles"]):
            assert re.fullmatch(r"[0-9a-zA-Z_.-]+", id)  # as the schema of the format has it
    assert all(word for task in execution["tasks"] for word in task["command"]["arguments"])
    assert execution["makespanInSeconds"] > 0
    Path("again.json").write_text(text)
    again = flows.plan("again.json")
    assert {name: sorted(step.node.needs) for name, step in again.steps.items()} == {
        **{"a_1": [], "a_2": []},
        "b": ["a_1", "a_2"],
    }


def test_tasks_without_an_id_are_refused(flows: Flows) -> None:
    Path("bad.json").write_text('{"workflow": {"specification": {"tasks": [{}]}}}')
    with pytest.raises(InvalidDocument, match="expected a list of tasks, each with an id"):
        flows.plan("bad.json")
