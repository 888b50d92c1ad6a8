"""Search, as a program and as a person use it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from replay import Replay

from fairmile.catalog.lookup import Lookup
from fairmile.web.api.search import is_lasting
from fairmile.web.repeats import Repeats
from fairmile.workspace import Workspace

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_api_answers_with_what_the_call_returns(client: httpx.Client, workspace: Workspace) -> None:
    answer = client.get("/api/search", params={"q": "lake temperature"})
    assert answer.status_code == 200
    assert answer.json() == workspace.catalog.search("lake temperature").to_dict()


def test_a_long_list_comes_in_parts(client: httpx.Client, workspace: Workspace) -> None:
    handles: list[str] = []
    answer = client.get("/api/search", params={"q": "kind:dataset", "limit": 7})
    while True:
        handles += [hit["handle"] for hit in answer.json()["results"]]
        if "next" not in answer.links:
            break
        answer = client.get(answer.links["next"]["url"])
    assert handles == [hit.handle for hit in workspace.catalog.search("kind:dataset", limit=10_000)]


def test_who_has_the_answer_already_is_told_so(client: httpx.Client) -> None:
    first = client.get("/api/search", params={"q": "lake"})
    again = client.get("/api/search", params={"q": "lake"}, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/api/search", params={"q": "mnist"}, headers={"If-None-Match": first.headers["etag"]})
    assert other.status_code == 200


def test_facets_count_what_a_search_matches(client: httpx.Client) -> None:
    every = client.get("/api/facets/kind").json()["values"]
    some = client.get("/api/facets/kind", params={"q": "cosmology"}).json()["values"]
    assert 0 < some["dataset"] < every["dataset"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/search?q=colour:red", 400, "no search field named 'colour'"),
        ("/api/search?regex=(", 400, "("),
        ("/api/search?limit=many", 422, "limit"),
        ("/api/search?cursor=%21", 422, "cursor"),
        ("/api/search?cursor=AAAA", 400, "cursor"),
        ("/api/facets/nope", 400, "no facet named 'nope'"),
        ("/api/nothing", 404, "nothing is served"),
    ],
)
def test_an_error_is_the_object_of_the_command_line(client: httpx.Client, path: str, status: int, words: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert {"type", "message", "hint", "exit_code"} <= set(error)


def test_results_follow_the_keys_and_the_address_keeps_the_search(page: Page) -> None:
    page.goto("/")
    page.get_by_role("searchbox").press_sequentially("lake temp")
    expect(page.get_by_role("link", name="lake-temperatures")).to_be_visible()
    expect(page).to_have_url("/?q=lake+temp")
    page.get_by_role("link", name="dataset", exact=True).click()
    expect(page.get_by_role("searchbox")).to_have_value("lake temp kind:dataset")
    expect(page.get_by_role("link", name="lake-temperatures")).to_be_visible()


def test_the_keyboard_leads_through_the_results(page: Page) -> None:
    page.goto("/?q=lake")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("ArrowDown")
    first = page.locator(".hits h2 a").first
    expect(first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/assets/"))


def test_hubs_are_a_source_of_their_own_and_asked_when_somebody_asks(
    page: Page, client: httpx.Client, workspace: Workspace, hubs: Replay
) -> None:
    hubs.asked.clear()
    page.goto("/")
    page.get_by_role("searchbox").press_sequentially("lake")
    expect(page.get_by_role("link", name="lake-temperatures")).to_be_visible()
    assert not hubs.asked
    button = page.get_by_role("link", name="Search Hugging Face, Zenodo and OpenML")
    expect(button).to_have_attribute("href", re.compile(r"\bq=lake\b"))  # and not yet those of a word half typed
    button.click()
    expect(page.get_by_role("heading", name="Zenodo")).to_be_visible()
    expect(page.get_by_role("link", name="Lake temperatures", exact=True)).to_be_visible()
    expect(page.get_by_text("fairmile fetch hf://institute/lake-net")).to_be_visible()
    asked = len(hubs.asked)
    page.get_by_role("searchbox").press_sequentially(" temp")
    expect(page.get_by_role("heading", name="Zenodo")).to_be_hidden()
    assert len(hubs.asked) == asked
    answer = client.get("/api/hubs", params={"q": "lake", "hub": "openml"})
    assert answer.json() == workspace.catalog.search_hubs("lake", hubs="openml").to_dict()


def test_a_link_of_another_site_sends_nothing_to_hubs(client: httpx.Client, hubs: Replay) -> None:
    hubs.asked.clear()
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", params={"q": "lake", "hubs": True}, headers=headers).status_code == 200
    assert not hubs.asked


def test_a_hub_that_fails_is_named_and_what_none_can_answer_is_said(client: httpx.Client) -> None:
    assert "zenodo did not answer" in client.get("/", params={"q": "pond", "hubs": True}).text
    assert "hubs cannot answer" in client.get("/", params={"q": "licence:mit", "hubs": True}).text


def test_a_search_that_is_not_finished_says_what_is_wrong_with_it(page: Page) -> None:
    page.goto("/?q=colour:red")
    expect(page.get_by_text("no search field named 'colour'")).to_be_visible()


@pytest.mark.parametrize("path", ["/", "/?q=cosmology", "/?q=xyzzyx", "/?q=lake&hubs=true", "/api"])
def test_the_pages_are_sound(page_is_sound: Callable[..., None], path: str) -> None:
    page_is_sound(path)


def test_an_answer_that_is_sent_again_follows_every_change_of_a_catalog(
    client: httpx.Client, workspace: Workspace
) -> None:
    def names() -> list[str]:
        hits = client.get("/api/search", params={"q": "glacier calving"}).json()["results"]
        return [hit["name"] for hit in hits]

    def counted() -> bool:
        return "calving+kind%3Adataset" in client.get("/", params={"q": "glacier calving"}).text

    assert (names(), names(), counted()) == ([], [], False)
    card = {**json.loads((EXAMPLES / "lake.jsonld").read_text()), "name": "glacier-calving", "@id": "urn:x:calving"}
    workspace.catalog.add(card, anyway=True)
    assert (names(), names(), counted()) == (["glacier-calving"], ["glacier-calving"], True)
    workspace.catalog.remove("glacier-calving", reason="a mistake")
    assert counted() is False


def test_systems_are_searched_anew_each_time() -> None:
    """They are described by files of their own, whose changes no catalog notes."""
    assert is_lasting(q="lake") and not is_lasting(q="lake kind:system") and not is_lasting(kind="system")


def test_answers_that_are_kept_take_so_much_memory_and_no_more() -> None:
    repeats = Repeats[bytes](len, most_bytes=10)
    for number in range(6):
        repeats.keep(number, "state", bytes(4))
    assert [repeats.get(number, "state") for number in range(6)] == [None, None, None, None, bytes(4), bytes(4)]
    repeats.keep(5, "later", bytes(11))
    assert [repeats.get(number, "later") for number in (4, 5)] == [None, None]
    assert Repeats[bytes](len).get(0, "state") is None


def test_a_quick_search_that_keeps_nobody_waiting_needs_no_thread(
    client: httpx.Client, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first one after a change may have to read every card, and a pattern looks at every name: they get one."""
    threads: list[str] = []
    search = Lookup.search

    def noted(self: Lookup, *args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return search(self, *args, **options)

    monkeypatch.setattr(Lookup, "search", noted)
    (tmp_path / "delta.bin").write_bytes(b"delta")
    workspace.catalog.describe(tmp_path / "delta.bin", kind="dataset", set={"name": "delta-of-a-river"}, add=True)
    for query in ({"q": "delta"}, {"q": "river"}, {"q": "delta river"}, {"q": "/delta/"}, {"regex": "delta"}):
        assert "delta-of-a-river" in client.get("/api/search", params=query).text
    assert threads == [
        "fairmile-shortcut",
        "fairmile-serve",
        "fairmile-serve",
        "fairmile-shortcut",
        "fairmile-shortcut",
    ]
    workspace.catalog.remove("delta-of-a-river")
