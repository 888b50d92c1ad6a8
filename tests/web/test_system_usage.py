"""What all users' jobs on a system took, in the browser and the API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from slurm_cluster import SlurmCluster

from fairmile.jobs.accounting import COLUMNS
from fairmile.workspace import Workspace

PROJECTS = 30
STATES = ("COMPLETED", "COMPLETED", "FAILED", "OUT_OF_MEMORY")


def records() -> str:
    """Return the records of 3,000 jobs of thirty projects, as sacct prints them."""
    lines = []
    for number in range(3000):
        project, gpus, seconds = number % PROJECTS, number % 4, 60 * (1 + number % 97)
        given = f"billing=8,cpu=8,gres/gpu={gpus},mem=32G,node=1" if gpus else "billing=8,cpu=8,mem=32G,node=1"
        state, wait = STATES[number % len(STATES)], 1000 + 7 * (number % 50)
        lines.append(
            f"{number}|user{project % 11}|project-{project:02}|gpu|{state}|{seconds}|8|{given}|cpu=8,mem=32G|"
            f"{4 * seconds // 60}:00||{3600 * gpus or ''}|1000|{wait}"
        )
        lines.append(f"{number}.batch|||gpu|{state}|{seconds}|8|cpu=8,mem=32G||00:10|{(1 + number % 16) << 30}|0|1|1")
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a sacct first that prints the file it returns."""
    answer, program = tmp_path / "records", tmp_path / "sacct"
    answer.write_text(records())
    program.write_text(f"#!/bin/sh\ncat {answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return answer


def test_the_page_and_the_api_have_the_numbers_of_the_call(
    page: Page, client: httpx.Client, workspace: Workspace
) -> None:
    report = workspace.systems.usage("jureca")
    assert client.get("/api/systems/jureca/usage").json() == report.to_dict()
    page.goto("/systems/jureca")
    page.get_by_role("link", name="Show what all users' jobs took").click()
    rows = [row.inner_text().split("\t") for row in page.locator("tbody tr").all()]
    assert rows == [[each.name, *each.texts()] for each in report]
    assert len(rows) == PROJECTS
    tiles = dict(zip(COLUMNS, report.total.texts(), strict=True))
    expect(page.locator("main")).to_contain_text(f"Not completed: {tiles['not completed']}.")
    expect(page.locator("main")).to_contain_text(tiles["GPU hours"])


@pytest.mark.thorough
def test_the_page_and_the_api_have_the_numbers_of_a_real_accounting(
    slurm_with_accounting: SlurmCluster,
    accounting: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: Page,
    client: httpx.Client,
    workspace: Workspace,
) -> None:
    accounting.with_name("sacct").unlink()
    for name, value in slurm_with_accounting.environ.items():
        monkeypatch.setenv(name, value)
    for options in (("--array=1-3", "--wrap=exit 3"), ("-p", "gpu", "--gres=gpu:1", "--wrap=sleep 1")):
        slurm_with_accounting.run("sbatch", "--wait", "-o", "/dev/null", *options, check=False)
    deadline = time.monotonic() + 60
    while True:
        report = workspace.systems.usage("jureca", by="partition")
        if {"cpu", "gpu"} <= {each.name for each in report} and report.total.failures.get("FAILED", 0) >= 3:
            break
        assert time.monotonic() < deadline, slurm_with_accounting.run("sacct", "-a").stdout
        time.sleep(0.2)
    assert client.get("/api/systems/jureca/usage?by=partition").json() == report.to_dict()
    page.goto("/systems/jureca/usage?by=partition")
    rows = [row.inner_text().split("\t") for row in page.locator("tbody tr").all()]
    assert rows == [[each.name, *each.texts()] for each in report]


def test_another_time_and_grouping_are_asked_for(page: Page, workspace: Workspace) -> None:
    page.goto("/systems/jureca/usage")
    page.get_by_label("In the last").fill("7d")
    page.get_by_label("By").select_option("user")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="By user")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(11)
    expect(page.get_by_label("In the last")).to_have_value("7d")


def test_what_cannot_be_asked_is_said_on_the_page(page: Page, client: httpx.Client, accounting: Path) -> None:
    page.goto("/systems/jureca/usage?since=3+parsecs")
    expect(page.locator(".note")).to_contain_text("parsecs")
    accounting.write_text("")
    page.goto("/systems/jureca/usage")
    expect(page.locator("main")).to_contain_text("No job ended in the last 30d")
    assert client.get("/systems/nowhere/usage").status_code == 404
    assert client.get("/api/systems/jureca/usage?by=planet").status_code == 400


def test_the_page_is_sound(page_is_sound: Callable[..., None]) -> None:
    page_is_sound("/systems/jureca/usage")
