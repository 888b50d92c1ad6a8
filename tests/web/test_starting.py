"""Runs and sweeps that are started over the API: assets of the catalog alone, by those who have the right to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pipeline_cards import card
from slurm_cluster import SlurmCluster
from sweep_making import workspace_on

from fairmile.runs.execute.processes import find_processes
from fairmile.web.serve import ServeSettings, serve
from fairmile.web.starting import Started
from fairmile.workspace import Workspace

PROGRAM = """\
import sys, time
print("loss:", (float(sys.argv[1]) - 0.3) ** 2)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="session")
def program(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("program") / "level.py"
    file.write_text(PROGRAM)
    more: dict[str, Any] = {"hyperparameters": {"lr": 0.1, "wait": 0}}
    workspace.catalog.add(
        card("SoftwareSourceCode", "started-level", [file], command="{python} level.py {lr} {wait}", **more)
    )
    return "started-level"


def ended(client: httpx.Client, path: str) -> Any:
    while (answer := client.get(path).json())["state"] in ("queued", "running"):
        time.sleep(0.1)
    return answer


def test_a_run_is_started_followed_and_reused(client: httpx.Client, workspace: Workspace, program: str) -> None:
    started = client.post("/api/runs", json={"what": program, "params": {"lr": 0.2}})
    assert started.status_code == 202, started.text
    run = ended(client, f"/api/runs/{started.json()['id']}")
    assert run == workspace.runs.show(run["id"]).to_dict()
    assert run["state"] == "done" and workspace.ledger.get(run["id"]).spec.params["lr"] == 0.2
    again = client.post("/api/runs", json={"what": program, "params": {"lr": 0.2}})
    assert again.json()["id"] == run["id"]


def test_a_run_is_cancelled(client: httpx.Client, program: str) -> None:
    started = client.post("/api/runs", json={"what": program, "params": {"wait": 600}}).json()
    assert client.post(f"/api/runs/{started['id']}/cancel").status_code == 200
    assert ended(client, f"/api/runs/{started['id']}")["state"] not in ("done", "running")


def test_a_sweep_is_started_over_all_combinations(client: httpx.Client, workspace: Workspace, program: str) -> None:
    started = client.post("/api/sweeps", json={"what": program, "params": {"lr": [0.1, 0.2]}, "at_once": 2})
    assert started.status_code == 202, started.text
    name = started.json()["id"]
    while any(each["state"] != "done" for each in client.get(f"/api/sweeps/{name}").json()["points"]):
        time.sleep(0.1)
    finished = client.post("/api/sweeps", json={"what": name})
    assert finished.json() == workspace.sweeps.status(name).to_dict()
    assert [each["values"]["lr"] for each in finished.json()["points"]] == [0.1, 0.2]


def test_a_run_and_a_sweep_go_to_the_system_that_is_named(
    client: httpx.Client, workspace: Workspace, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that are started are those of the command line, which jobs are tested with."""
    commands: list[tuple[str, ...]] = []

    def note(_: Workspace, *words: str, **options: Any) -> Started:
        commands.append(words)
        return Started(words)

    for module in ("runs", "sweeps"):
        monkeypatch.setattr(f"fairmile.web.api.{module}.start", note)
    there = {"on": "jureca", "partition": "dc-gpu"}
    client.post("/api/runs", json={"what": program, "params": {"lr": 0.7}, **there})
    assert commands[0][-4:] == ("--on", "jureca", "--partition", "dc-gpu")
    sweep = client.post("/api/sweeps", json={"what": program, "params": {"lr": [0.8]}, **there})
    assert sweep.status_code == 202, sweep.text
    record = workspace.sweeps.get(sweep.json()["id"]).record
    assert (record.system, record.spec["resources"]["partition"]) == ("jureca", "dc-gpu")
    assert commands[1][:3] == ("sweep", "run", record.id)
    workspace.sweeps.remove(record.id)


@pytest.mark.thorough
def test_a_run_and_a_sweep_that_name_a_partition_are_jobs_there(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = workspace_on(slurm_cluster, tmp_path, monkeypatch)
    file = tmp_path / "level.py"
    file.write_text(PROGRAM)
    more: dict[str, Any] = {"hyperparameters": {"lr": 0.1, "wait": 0}}
    workspace.catalog.add(card("SoftwareSourceCode", "level", [file], command="{python} level.py {lr} {wait}", **more))
    there = {"what": "level", "on": "rig", "partition": "gpu"}
    with (
        serve(workspace, ServeSettings(port=0), wait=False) as serving,
        httpx.Client(base_url=serving.address, trust_env=False, timeout=300) as client,
    ):
        started = client.post("/api/runs", json={**there, "params": {"lr": 0.7}})
        assert started.status_code == 202, started.text
        assert ended(client, f"/api/runs/{started.json()['id']}")["state"] == "done"
        sweep = client.post("/api/sweeps", json={**there, "params": {"lr": [0.1, 0.2]}})
        assert sweep.status_code == 202, sweep.text
        name = sweep.json()["id"]
        while any(each["state"] != "done" for each in client.get(f"/api/sweeps/{name}").json()["points"]):
            time.sleep(0.5)
        jobs = client.get("/api/jobs").json()["jobs"]
    assert len(jobs) == 2 and {each["system"] for each in jobs} == {"rig"}
    for job in jobs:
        document = json.loads((workspace.jobs.root / job["id"] / "job.json").read_bytes())
        assert document["spec"]["resources"]["partition"] == "gpu" and job["scheduler_id"]


@pytest.mark.parametrize(
    ("where", "status", "words"),
    [
        ({"on": "labtop"}, 404, "laptop"),
        ({"on": "../x"}, 422, "on: "),
        ({"on": "frontier"}, 400, "this machine is not frontier"),
        ({"partition": "gpu"}, 400, "a partition needs a system"),
        ({"on": "laptop", "partition": "--wrap=sh"}, 422, "partition"),
    ],
)
@pytest.mark.parametrize("path", ["/api/runs", "/api/sweeps"])
def test_only_systems_that_are_known_are_used(
    client: httpx.Client, program: str, path: str, where: dict[str, str], status: int, words: str
) -> None:
    body = {"what": program, "params": {"lr": [1]} if path.endswith("sweeps") else {}, **where}
    refused = client.post(path, json=body)
    assert refused.status_code == status and words in refused.text


def test_a_sweep_that_runs_is_cancelled_and_its_processes_end(
    client: httpx.Client, workspace: Workspace, program: str
) -> None:
    body = {"what": program, "params": {"lr": [0.1, 0.2], "wait": [600]}, "at_once": 2}
    name = client.post("/api/sweeps", json=body).json()["id"]

    def processes() -> list[int]:
        runs = [run for id in workspace.ledger.members(name) if (run := workspace.ledger.find(id)) is not None]
        return [pid for run in runs for pid in find_processes(run.folder)]

    while not processes():
        time.sleep(0.1)
    assert client.post(f"/api/sweeps/{name}/cancel", params={"dry_run": True}).status_code == 200
    assert processes()
    assert client.post(f"/api/sweeps/{name}/cancel").status_code == 200
    while processes():
        time.sleep(0.1)
    states = {each["state"] for each in client.get(f"/api/sweeps/{name}").json()["points"]}
    assert not states & {"running", "done"}


@pytest.mark.parametrize("path", ["/api/runs", "/api/sweeps"])
@pytest.mark.parametrize("what", ["./level.py", "/bin/sh", "level.py", "https://evil.example/x.py", "-- true", "../x"])
def test_no_file_and_no_command_from_outside_is_run(
    client: httpx.Client, program: str, path: str, what: str, tmp_path: Path
) -> None:
    refused = client.post(path, json={"what": what, "params": {"lr": [1]} if path.endswith("sweeps") else {}})
    assert refused.status_code in (400, 404)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"what": "started-level", "params": {"a b": 1}},
        {"what": "started-level", "params": {"--on": "x"}},
        {"what": "started-level", "command": ["sh"]},
        {"what": "started-level", "params": {"lr": {"nested": 1}}},
    ],
)
def test_a_request_that_says_something_else_is_refused(client: httpx.Client, program: str, body: Any) -> None:
    assert client.post("/api/runs", json=body).status_code == 422


def test_pages_of_other_sites_start_nothing(client: httpx.Client, program: str) -> None:
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    assert client.post("/api/runs", json={"what": program}, headers=headers).status_code == 403
