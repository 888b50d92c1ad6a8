"""Workflows of cloudmesh-cc run unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.workspace import Workspace

NODE = "kind: local, user: grey, host: local, status: ready, exec: 'echo hello'"
WORKFLOW = f"""\
workflow:
  nodes:
    start: {{{NODE}, name: start, shape: invhouse, style: '',
      label: 'start\\nNow={{now.%Y/%m/%d, %H--%M--%S}}\\nElapsed={{dt0.%M--%S}}'}}
    fetch-data: {{{NODE}, label: '{{name}}\\nProgress={{progress}}\\nJob Time={{dt.}}'}}
    compute: {{{NODE.replace("echo hello", "echo ${HOME} {x} # cloudmesh status=running progress=50")}}}
    alone: {{{NODE}}}
    end: {{{NODE}, label: 'end\\nTotal Time={{dt1.%S}} seconds'}}
  dependencies:
    - start,fetch-data,compute,end
    - start,end
colors: {{status: {{ready: white, done: '#CCFFCC'}}}}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return Workspace.open(environ={**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")})


def test_chains_become_edges_and_nodes_without_one_run(workspace: Workspace) -> None:
    Path("workflow.yaml").write_text(WORKFLOW)
    status = workspace.flows.run("workflow.yaml")
    assert {step.name: sorted(step.needs) for step in status.steps} == {
        **{"start": [], "alone": [], "fetch-data": ["start"], "compute": ["fetch-data"]},
        "end": ["compute", "start"],
    }
    assert status.counts() == {"done": 5}
    assert workspace.flows.log("workflow.yaml", "compute").output == f"{workspace.environ['HOME']} {{x}}\n".encode()


def test_labels_tell_names_progress_and_times(workspace: Workspace) -> None:
    Path("workflow.yaml").write_text(WORKFLOW)
    before = workspace.flows.graph("workflow.yaml").text
    assert ">Progress=0<" in before and ">Job Time=<" in before
    workspace.flows.run("workflow.yaml")
    after = workspace.flows.graph("workflow.yaml").text
    assert ">fetch-data<" in after and ">Progress=100<" in after and ">Job Time=00:00:0" in after
    assert ">Total Time=" in after and "{" not in after.partition("</style>")[2]


def test_a_saved_workflow_has_its_edges_as_a_dictionary(workspace: Workspace) -> None:
    chains = WORKFLOW.partition("  dependencies:")[0]
    saved = f"{chains}  dependencies:\n    start-end: {{name: start-end, source: start, destination: end}}\n"
    Path("saved.yaml").write_text(saved)
    assert workspace.flows.plan("saved.yaml").steps["end"].node.needs == ["start"]


def test_scripts_of_every_kind_become_commands(workspace: Workspace) -> None:
    Path("a.sh").write_text("echo from sh\n")
    Path("b.py").write_text("print('from python')\n")
    Path("w.yaml").write_text(
        "workflow: {nodes: {a: {kind: local, script: a.sh}, b: {kind: local, script: b.py}}, dependencies: ['a,b']}\n"
    )
    assert workspace.flows.run("w.yaml").counts() == {"done": 2}
    assert workspace.flows.log("w.yaml", "b").output == b"from python\n"
    Path("b.py").write_text("print('other')\n")
    assert workspace.flows.plan("w.yaml").steps["b"].reason == "b.py changed"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("{kind: wsl, exec: x}", "w.yaml workflow.nodes.a: a node of kind wsl runs on Windows only"),
        ("{kind: pbs, exec: x}", "no kind of node is called 'pbs'"),
        ("{kind: slurm, exec: x}", "a node of kind slurm needs a host"),
        ("{kind: local}", "nothing to execute: expected exec or script"),
    ],
)
def test_a_node_that_cannot_run_is_refused_with_a_reason(workspace: Workspace, node: str, message: str) -> None:
    Path("w.yaml").write_text(f"workflow: {{nodes: {{a: {node}}}, dependencies: []}}\n")
    with pytest.raises(InvalidDocument) as caught:
        workspace.flows.plan("w.yaml")
    assert message in str(caught.value.problems[0])


def test_a_node_on_a_host_runs_on_the_system_of_that_name(workspace: Workspace) -> None:
    Path("w.yaml").write_text(
        "workflow:\n  nodes:\n    a: {kind: ssh, host: grey@nowhere, exec: hostname}\n  dependencies: ['b,a']\n"
    )
    with pytest.raises(InvalidDocument, match=r"w\.yaml:3 steps\.a\.after: there is no step 'b'"):
        workspace.flows.plan("w.yaml")
    Path("w.yaml").write_text("workflow: {nodes: {a: {kind: ssh, host: grey@nowhere, exec: hostname}}}\n")
    with pytest.raises(InvalidDocument, match="no system named 'nowhere'"):
        workspace.flows.plan("w.yaml")
