"""The pages of runs: the table, several compared, one live and after, and its files."""

from __future__ import annotations

import hashlib
import html
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from run_making import make_run, training_events

from fairmile.web.topics.runs import RunTopic
from fairmile.workspace import Workspace

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
LONG_MS = 60_000  # a stream on a busy machine
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


@pytest.fixture(scope="session", autouse=True)
def runs(workspace: Workspace) -> Path:
    """Sixty runs of a program, one with outputs, and one whose every word is hostile."""
    root = workspace.runs.root
    for at in range(60):
        metrics = {"loss": at / 100} if at else {"loss": "NaN"}
        params = {"lr": at / 1000, "kind": "adam" if at % 2 else "sgd", "epochs": 30}
        make_run(root, f"table-{at:06d}", name="table", params=params, metrics=metrics, created=1_794_000_000.0 + at,
                 state="failed" if at % 10 == 9 else "done", tags=["night"] if at == 7 else [])  # fmt: skip
    files = {"map.png": PNG, "page.html": HOSTILE.encode(), "drawing.svg": b"<svg/>", "notes.txt": b"hello"}
    outputs = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for name, data in files.items()
    }
    made = make_run(root, "files-000001", name="files", result={"outputs": outputs}, output="it printed this\n")
    (made.folder / "work").mkdir()
    for name, data in files.items():
        (made.folder / "work" / name).write_bytes(data)
    (made.folder / "work" / "secret.txt").write_text("not an output")
    make_run(root, "hostile-000001", name=HOSTILE, params={HOSTILE: HOSTILE}, metrics={HOSTILE: 1.0}, group=HOSTILE,
             tags=[HOSTILE], output=HOSTILE, state="failed", spec={"argv": [HOSTILE], "asset": HOSTILE},
             result={"reason": HOSTILE, "hint": HOSTILE, "outputs": {HOSTILE: {"sha256": "", "size_bytes": 1}}},
             events=[*training_events(epochs=2), {"log": {HOSTILE: 1.0}, "step": 3, "at": 5, "p": 4711}])  # fmt: skip
    return root


def ids_of(page: Page) -> list[str]:
    return page.locator("table.runs tbody td:nth-child(2)").all_inner_texts()


def test_conditions_filter_while_one_types_and_the_address_keeps_them(page: Page) -> None:
    page.goto("/runs")
    page.get_by_role("searchbox").press_sequentially("name=table lr<0.005")
    expect(page.locator("table.runs tbody tr")).to_have_count(5)
    assert ids_of(page) == [f"table-{at:06d}" for at in (4, 3, 2, 1, 0)]
    page.goto(page.url + "&sort=metric.loss")
    assert ids_of(page) == [f"table-{at:06d}" for at in (1, 2, 3, 4, 0)], "what is not finite comes last"
    expect(page.get_by_role("columnheader", name="loss")).to_have_attribute("aria-sort", "ascending")


def test_states_have_counts_and_a_click_chooses_one(page: Page) -> None:
    page.goto("/runs?q=name=table")
    page.get_by_role("link", name="failed 6").click()
    expect(page.locator("table.runs tbody tr")).to_have_count(6)
    expect(page.get_by_role("link", name="done 54")).to_be_visible()


def test_the_list_comes_in_parts_and_a_selection_outlives_them(page: Page) -> None:
    page.goto("/runs?q=name=table")
    page.get_by_role("checkbox", name="table-000058").check()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("table.runs tbody tr")).to_have_count(10)
    page.get_by_role("checkbox", name="table-000002").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page).to_have_url("/runs/compare?run=table-000058&run=table-000002")
    expect(page.get_by_role("heading", name="Different inputs")).to_be_visible()
    expect(page.get_by_role("cell", name="0.58", exact=True).first).to_be_visible()


def test_columns_are_chosen_and_kept_in_the_address(page: Page) -> None:
    page.goto("/runs?q=name=table")
    expect(page.get_by_text("Same in all rows: epochs 30.")).to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="kind").uncheck()
    page.get_by_role("checkbox", name="epochs").check()
    page.get_by_role("button", name="Show these columns").click()
    heads = page.get_by_role("columnheader").all_inner_texts()
    assert "epochs" in heads
    assert "kind" not in heads
    assert heads.index("loss") < heads.index("started (UTC)"), "a phone shows the first columns"


@pytest.mark.parametrize(
    ("q", "words"), [("lr>fast", "'fast' is not a number"), ("tag>x", "write tag=VALUE"), ("xyzzyx", "No run matches")]
)
def test_a_filter_that_matches_nothing_or_is_wrong_says_so(client: httpx.Client, q: str, words: str) -> None:
    answer = client.get("/runs", params={"q": q})
    assert answer.status_code == 200
    assert html.escape(words) in answer.text


def test_the_page_of_a_run_is_its_report(client: httpx.Client, workspace: Workspace) -> None:
    text = client.get("/runs/table-000007").text
    for block in ("Provenance", "fairmile rerun table-000007", "0.07"):
        assert block in text
    assert client.get("/runs/no-such-run").status_code == 404
    assert client.get("/runs/..%2Fhome").status_code == 404


@pytest.mark.parametrize(
    ("name", "media_type", "given"),
    [
        ("map.png", "image/png", "inline"),
        ("notes.txt", "text/plain; charset=utf-8", "inline"),
        ("page.html", "application/octet-stream", "attachment"),
        ("drawing.svg", "application/octet-stream", "attachment"),
    ],
)
def test_a_file_of_a_run_can_do_nothing(client: httpx.Client, name: str, media_type: str, given: str) -> None:
    answer = client.get(f"/runs/files-000001/files/{name}")
    assert answer.headers["content-type"] == media_type
    assert answer.headers["content-disposition"].startswith(given)
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["secret.txt", "../run.json", "..%2Frun.json", "/etc/passwd", "model.pt"])
def test_only_outputs_of_a_run_are_served(client: httpx.Client, name: str) -> None:
    assert client.get(f"/runs/files-000001/files/{name}").status_code == 404


def test_a_run_is_followed_while_it_runs(workspace: Workspace, page: Page, page_is_sound: Callable[..., None]) -> None:
    events = training_events(epochs=4)
    made = make_run(workspace.runs.root, "live-000001", name="live", state="running", events=events, output="begin\n")
    record = made.record.to_dict()
    record["job"] = {"key": "k", "system": ""}  # then the scheduler decides whether it lives
    (made.folder / "run.json").write_text(json.dumps(record))
    page_is_sound("/runs/live-000001")
    # A script that comes late misses nothing.
    page.route("**/run.js*", lambda route: (time.sleep(2), route.continue_()))
    page.goto("/runs/live-000001")
    expect(page.get_by_role("img", name="loss over step")).to_be_visible(timeout=LONG_MS)
    expect(page.get_by_role("img", name="gpu0.power over seconds")).to_be_visible(timeout=LONG_MS)
    expect(page.get_by_role("log")).to_contain_text("begin", timeout=LONG_MS)
    with open(made.folder / "output.log", "a") as stream:
        stream.write(f"{HOSTILE}\n")
    expect(page.get_by_role("log")).to_contain_text(HOSTILE, timeout=LONG_MS)
    assert page.locator("img[src=x]").count() == 0
    make_run(workspace.runs.root / ".ended", "live-000001", name="live", metrics={"loss": 0.5})
    os.replace(workspace.runs.root / ".ended" / "live-000001" / "run.json", made.folder / "run.json")
    expect(page.get_by_role("heading", name="Run it again")).to_be_visible(timeout=LONG_MS)


def test_only_what_is_new_is_sent(workspace: Workspace) -> None:
    made = make_run(workspace.runs.root, "news-000001", name="news", events=training_events(epochs=3), output="one\ntw")
    topic = RunTopic()
    first, cursor = topic.changes(workspace, "news-000001", None)
    assert len(first["metrics"]["loss"]["points"]) == 3
    with open(made.folder / "events.jsonl", "a") as stream:
        stream.write(json.dumps({"log": {"loss": 0.125}, "step": 3, "at": 18 * 10**9, "p": 4711}) + "\n")
    second, after = topic.changes(workspace, "news-000001", cursor)
    assert second["metrics"] == {"loss": {"points": [(3, 0.125)], "last": "0.125", "values": 4}}
    assert "power" not in second
    assert RunTopic().changes(workspace, "news-000001", cursor) == (second, after), "also by another server"


def test_a_run_that_logs_nothing_shows_the_metrics_that_it_prints_and_how_far_it_is(workspace: Workspace) -> None:
    events = [each for each in training_events(epochs=1) if "log" not in each]
    output = "epoch 1/4 loss: 0.9\n"
    made = make_run(workspace.runs.root, "says-000001", name="says", state="running", events=events, output=output)
    topic = RunTopic()
    first, cursor = topic.changes(workspace, made.id, None)
    assert first["metrics"] == {"loss": {"points": [(1, 0.9)], "last": "0.9", "values": 1}}
    assert (first["progress"], first["done"]) == (0.25, "25% done")
    with open(made.folder / "output.log", "a") as stream:
        stream.write("epoch 2/4 loss: 0.7\nepoch 3/4 lo")
    second, cursor = topic.changes(workspace, made.id, cursor)
    assert second["metrics"] == {"loss": {"points": [(2, 0.7)], "last": "0.7", "values": 2}}
    assert "metrics" not in topic.changes(workspace, made.id, cursor)[0]
    with open(made.folder / "events.jsonl", "a") as stream:
        stream.write(json.dumps({"log": {"loss": 0.5}, "step": 2, "at": 18 * 10**9, "p": 4711}) + "\n")
    third, _ = topic.changes(workspace, made.id, cursor)  # what it logs counts now, and that alone
    assert third["metrics"] == {"loss": {"points": [(2, 0.5)], "last": "0.5", "values": 1}}


@pytest.mark.parametrize(
    "path",
    ["/runs/hostile-000001", "/runs?q=hostile", f"/runs?q={HOSTILE}&sort=param.{HOSTILE}&column=metric.{HOSTILE}",
     "/runs/compare?run=hostile-000001&run=table-000001"],
)  # fmt: skip
def test_hostile_words_stay_words(page: Page, path: str) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path)
    page.wait_for_load_state("networkidle" if "compare" in path else "load")
    assert page.locator("img[src=x], script:not([src])").count() == 0
    assert dialogs == []


@pytest.mark.parametrize(
    "path",
    ["/runs?q=name=table", "/runs?q=xyzzyx", "/runs/files-000001", "/runs/compare?run=table-000001&run=table-000002"],
)
def test_the_pages_are_sound(page_is_sound: Callable[..., None], path: str) -> None:
    page_is_sound(path)
