"""Traces in the window: the runs that have one, and where their time went."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect
from run_making import CREATED, make_run
from sweep_making import wait_until
from trace_files import write_kineto

from fairmile.runs.record.layout import RECORDING
from fairmile.workspace import Workspace

NAME = "train-webtrace"


@pytest.fixture(scope="session")
def traced(workspace: Workspace) -> str:
    """A run that recorded two ranks."""
    outputs = {f"trace/{RECORDING}": {"sha256": "", "size_bytes": 1}}
    run = make_run(workspace.home / "runs", NAME, result={"outputs": outputs})
    for rank in (0, 1):
        write_kineto(run.work / "trace", rank)
    (run.work / "trace" / RECORDING).write_text(json.dumps({"began_ns": int((CREATED + 1) * 1e9)}))
    return run.id


def test_the_api_answers_with_what_the_call_returns(client: httpx.Client, workspace: Workspace, traced: str) -> None:
    answer = client.get(f"/api/runs/{traced}/trace").json()
    assert answer == workspace.traces.analyze(workspace.ledger.get(traced)).to_dict()
    assert answer["ranks"] == ["rank 0", "rank 1"]


def test_the_list_leads_to_the_trace_and_the_trace_to_its_run(page: Page, client: httpx.Client, traced: str) -> None:
    wait_until(lambda: traced in client.get("/traces").text)  # a list may be a second old
    page.goto("/traces")
    page.get_by_role("link", name=traced).click()
    expect(page.get_by_role("heading", name=f"Trace {traced}")).to_be_visible()
    figure = page.locator("figure[data-figure]").first
    figure.scroll_into_view_if_needed()
    expect(figure.get_by_role("img")).to_be_visible()
    page.get_by_role("link", name="The run itself").click()
    page.get_by_role("link", name="Where the time went").click()
    expect(page).to_have_url(f"/traces/{traced}")


def test_a_run_without_a_trace_is_not_listed(client: httpx.Client, workspace: Workspace, traced: str) -> None:
    make_run(workspace.home / "runs", "train-untraced", result={"spans": {}})
    listed = client.get("/traces").text
    assert traced in listed
    assert "train-untraced" not in listed
    assert "No run with a trace matches" in client.get("/traces", params={"q": "name=nothing"}).text
    assert "run train-untraced has no trace" in client.get("/api/runs/train-untraced/trace").json()["error"]["message"]


@pytest.mark.parametrize("path", ["/traces", f"/traces/{NAME}"])
def test_the_pages_are_sound(page_is_sound: Callable[..., None], traced: str, path: str) -> None:
    page_is_sound(path)
