"""Runs and sweeps that are started over the API: assets of the catalog alone, by those who have the right to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pipeline_cards import card

from fairmile.workspace import Workspace

PROGRAM = """\
import sys, time
print("loss:", (float(sys.argv[1]) - 0.3) ** 2)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="module")
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
