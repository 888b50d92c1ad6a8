"""Predictions in the window: the same answers as `fairmile predict`, from a description or a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from fairmile.base import yaml
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.curves import Goal
from fairmile.workspace import Workspace

GPT = {"kind": "transformer", "layers": 12, "hidden": 768, "heads": 12, "vocab": 50304, "seq": 1024, "batch": 8}


def test_a_description_is_answered_as_the_calls_do(client: httpx.Client, workspace: Workspace) -> None:
    body: dict[str, Any] = {"description": GPT, "gpu": "a100-40gb", "layout": {"data": 8, "zero": 3}}
    memory = client.post("/api/predict/memory", json=body)
    layout = Layout(data=8, zero=3)
    assert memory.json() == workspace.predict.memory(GPT, gpu="a100-40gb", layout=layout).to_dict()
    body = {"description": GPT, "on": "jupiter", "gpus": [1, 8], "samples": 1e6}
    scaling = client.post("/api/predict/scaling", json=body)
    assert scaling.json() == workspace.predict.scaling(GPT, "jupiter", [1, 8], goal=Goal(1e6)).to_dict()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "either target or description"),
        ({"target": "mnist", "description": GPT}, 422, "either target or description"),
        ({"description": {"kind": "oracle"}}, 400, "kind"),
        ({"description": {**GPT, "layers": 10**9}}, 400, "10000"),
        ({"description": {**GPT, "hidden": 10**12}, "layout": {"tensor": 7}}, 400, "heads"),
        ({"description": GPT, "gpu": "abacus"}, 404, "abacus"),
    ],
)
def test_what_cannot_be_predicted_is_refused(client: httpx.Client, body: Any, status: int, words: str) -> None:
    answer = client.post("/api/predict/memory", json=body)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text


def test_a_pasted_description_is_data(client: httpx.Client) -> None:
    for text in ("!!python/object/apply:os.system [id]", "{{ 7 * 7 }}", "&a [*a, *a]", "kind: [", "- 1", "\0"):
        page = client.get("/predict", params={"description": text})
        assert page.status_code == 200
        assert 'class="note warn"' in page.text


def test_no_link_has_the_code_of_a_benchmark_executed(client: httpx.Client) -> None:
    page = client.get("/predict", params={"target": "mnist"})
    assert "Press Predict" in page.text


def test_the_answer_follows_the_description(page: Page) -> None:
    page.goto("/predict")
    expect(page.get_by_role("heading", name="Memory of transformer fits")).to_be_visible()
    text = yaml.dump({**GPT, "batch": 4096})
    page.get_by_role("textbox", name="Description").fill(text)
    expect(page.locator("#result .badge")).to_have_text("does not fit")
    page.get_by_role("textbox", name="Description").fill("kind: transformer")
    expect(page.locator("#result .note.warn")).to_contain_text("batch: Field required")
    page.get_by_role("textbox", name="Description").fill(yaml.dump(GPT))
    page.get_by_label("How many GPUs are worth it?").check()
    page.get_by_label("Numbers of GPUs").fill("8..64")
    expect(page.get_by_role("heading", name="Time and throughput", exact=True)).to_be_visible()
    expect(page.locator("#result figure[data-figure] svg[role=img]").first).to_be_visible()
    page.reload()
    expect(
        page.get_by_role("heading", name="Time and throughput", exact=True)
    ).to_be_visible()  # the address keeps the question


@pytest.mark.thorough
def test_a_benchmark_is_traced_when_asked(page: Page) -> None:
    page.goto("/predict")
    page.get_by_label("Model").select_option("mnist")
    expect(page.locator("#result")).to_contain_text("Press Predict")
    page.get_by_label("Batch size").fill("64")
    page.get_by_role("button", name="Predict").click()
    expect(page.locator("#result .badge")).to_have_text("fits", timeout=120_000)
    expect(page.locator("#result")).to_contain_text("batch of 64")


@pytest.mark.parametrize("query", ["", "?question=scaling", "?question=time"])
def test_the_page_is_sound(page_is_sound: Callable[..., None], query: str) -> None:
    page_is_sound(f"/predict{query}")
