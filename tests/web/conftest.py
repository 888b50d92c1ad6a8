"""A real server on a free port, a client, and a browser: shared by all tests of one worker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser
import descendants
import httpx
import pytest
import web_pages
from hub_answers import recorded_hubs, settings
from playwright.sync_api import Browser, Page, expect, sync_playwright
from replay import Replay

from fairmile.web.serve import ServeSettings, Serving, serve
from fairmile.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="session")
def hubs() -> Iterator[Replay]:
    """A server that replays answers of Hugging Face, Zenodo and OpenML; on a busy machine it may take its time."""
    with recorded_hubs() as replay, pytest.MonkeyPatch.context() as patch:
        for limit in ("_STALL_S", "_PATIENCE_S"):
            patch.setattr(f"fairmile.catalog.hubs.hubs.{limit}", 60.0)
        yield replay


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, hubs: Replay) -> Workspace:
    """A workspace with the lake's card and program. Tests share it: what they add has a name of its own."""
    home = tmp_path_factory.mktemp("served")
    (home / ".config" / "fairmile").mkdir(parents=True)
    (home / ".config" / "fairmile" / "config.yaml").write_text(
        json.dumps({"hubs": settings(hubs.url), "systems": {"jureca": {"host": "here"}}})
    )
    environ = {"FAIRMILE_HOME": str(home / "home"), "HOME": str(home), "PATH": "/usr/bin:/bin"}
    workspace = Workspace.open(environ=environ, cwd=home)
    workspace.catalog.add_files([EXAMPLES / "lake.jsonld", EXAMPLES / "codemeta.json"])
    return workspace


@pytest.fixture(scope="session")
def server(workspace: Workspace) -> Iterator[Serving]:
    """A server of that workspace, on loopback."""
    with serve(workspace, ServeSettings(port=0), wait=False) as serving:
        yield serving


@pytest.fixture(scope="session")
def client(server: Serving) -> Iterator[httpx.Client]:
    """A program that uses the API."""
    with httpx.Client(base_url=server.address, trust_env=False, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser, started once."""
    expect.set_options(timeout=web_pages.PATIENCE_MS)
    # What a test that failed started is ended: not the browser's own processes, for whose pages the next would wait.
    environ: dict[str, Any] = {name: value for name, value in os.environ.items() if name != descendants.MARK}
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=browser.program(), args=["--no-sandbox"], env=environ)
        yield program
        program.close()


@pytest.fixture
def page(chromium: Browser, server: Serving) -> Iterator[Page]:
    """An empty page of a fresh browser profile; addresses are those of the server."""
    context = web_pages.new_context(chromium, base_url=server.address)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def page_is_sound(chromium: Browser, server: Serving) -> Iterator[Callable[..., None]]:
    """Check a page of the server, by its path: see `web_pages.page_is_sound`.

    All are opened in one tab, whose browser has compiled the rules once.
    """
    context = web_pages.new_context(chromium, base_url=server.address)
    page = context.new_page()
    yield lambda path, **limits: web_pages.page_is_sound(page, path, **limits)
    context.close()
