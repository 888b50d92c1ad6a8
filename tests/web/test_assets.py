"""The page of an asset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect
from run_making import make_run

from fairmile.workspace import Workspace

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


@pytest.fixture(scope="session", autouse=True)
def assets(workspace: Workspace) -> None:
    """A data set in two versions with forty files that a run used, and one whose every word is hostile."""
    card = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "@type": "Dataset",
        "name": "pond-profiles",
        "description": "Temperatures of forty ponds.",
        "license": "https://spdx.org/licenses/CC-BY-4.0",
        "creator": [{"@type": "Person", "name": "Ada Berg"}],
        "datePublished": "2026-03-01",
        "conditionsOfAccess": "Ask the pond keeper.",
        "wasDerivedFrom": [{"@id": "dataset/lake-temperatures"}],
        "distribution": [
            {
                "@type": "FileObject",
                "name": f"pond-{at}.nc",
                "contentUrl": f"https://example.org/pond-{at}.nc",
                "contentSize": "1000",
                "encodingFormat": "application/x-netcdf",
                "sha256": hashlib.sha256(b"%d" % at).hexdigest(),
            }
            for at in range(40)
        ],
    }
    workspace.catalog.add({**card, "version": "1.0"})
    workspace.catalog.add({**card, "version": "2.0"}, anyway=True)
    words = dict.fromkeys(("name", "description", "version", "conditionsOfAccess", "citation", "keywords"), HOSTILE)
    file = {"@type": "FileObject", "name": HOSTILE, "contentUrl": "javascript:alert(1)", "encodingFormat": HOSTILE}
    workspace.catalog.add(
        {**card, **words, "name": f"evil {HOSTILE}", "creator": [{"@type": "Person", "name": HOSTILE}],
         "distribution": [file], "wasDerivedFrom": [{"@id": f"dataset/{HOSTILE}"}]}
    )  # fmt: skip
    given = {"data": {"path": "/x", "asset": "local/dataset/pond-profiles@2.0", "sha256": "c" * 64}}
    make_run(workspace.runs.root, "pond-000001", name="pond", metrics={"loss": 0.25}, captured={"inputs": given})


def test_an_asset_says_what_it_is_and_how_to_use_it(page: Page, workspace: Workspace) -> None:
    page.goto("/assets/dataset/pond-profiles")
    expect(page.get_by_role("heading", name="pond-profiles dataset")).to_be_visible()
    expect(page.get_by_text("fairmile fetch dataset/pond-profiles@2.0")).to_be_visible()
    expect(page.get_by_text('fm.datasets.load("pond-profiles")')).to_be_visible()
    expect(page.get_by_text("Ask the pond keeper").first).to_be_visible()
    expect(page.get_by_role("heading", name="Files (40)")).to_be_visible()
    expect(page.get_by_text(hashlib.sha256(b"39").hexdigest())).to_be_visible()
    score = workspace.catalog.fair("dataset/pond-profiles").score
    expect(page.get_by_role("heading", name=f"FAIR score: {score:.0f} of 100")).to_be_visible()
    expect(page.get_by_text("Ada Berg (2026). pond-profiles, version 2.0", exact=False)).to_be_visible()


def test_from_an_asset_to_its_source_its_versions_and_its_runs(page: Page) -> None:
    page.goto("/assets/dataset/pond-profiles")
    page.get_by_role("link", name="pond-000001").click()
    expect(page).to_have_url("/runs/pond-000001")
    page.get_by_role("link", name="data: local/dataset/pond-profiles@2.0").click()
    page.get_by_role("link", name="1.0", exact=True).click()
    expect(page).to_have_url("/assets/local/dataset/pond-profiles%401.0")
    page.locator("svg.lineage a", has_text="lake-temperatures").first.click()
    expect(page.get_by_role("heading", name="lake-temperatures dataset")).to_be_visible()
    expect(page.locator("svg.lineage a", has_text="pond-profiles").first).to_be_visible()


def test_an_asset_that_is_not_there_is_not_found(client: httpx.Client) -> None:
    answer = client.get("/assets/dataset/xyzzyx")
    assert answer.status_code == 404
    assert "xyzzyx" in answer.text


@pytest.mark.parametrize("path", ["/?q=evil", "/assets/{}"])
def test_hostile_cards_stay_words(page: Page, workspace: Workspace, path: str) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    handle = workspace.catalog.search("evil")[0].handle
    page.goto(path.format(handle))
    expect(page.get_by_text("<script>").first).to_be_visible()
    assert page.locator("img[src=x], script:not([src]), a[href^=javascript]").count() == 0
    assert dialogs == []


def test_the_page_is_sound(page_is_sound: Callable[..., None]) -> None:
    page_is_sound("/assets/dataset/pond-profiles")
