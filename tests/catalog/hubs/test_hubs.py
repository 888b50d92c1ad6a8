"""Hubs against a local server that replays answers in the shapes that their interfaces document.

The hubs themselves are out of reach of these tests.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_answers import COMMIT, README, recorded_hubs, settings
from replay import Replay, Reply, context

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.hubs import hubs as hub_search
from fairmile.catalog.hubs.hubs import reference_of


@pytest.fixture
def server() -> Iterator[Replay]:
    with recorded_hubs() as replay:
        yield replay


@pytest.fixture
def catalog(server: Replay, home: Path, builtin: CatalogFolder, tmp_path: Path) -> Catalog:
    return Catalog(home, builtin=builtin, context=context({"HOME": str(tmp_path)}, hubs=settings(server.url)))


def test_all_hubs_answer_with_handle_licence_size_and_description(catalog: Catalog) -> None:
    hits = catalog.search_hubs("lake")
    assert hits.failed == {}
    assert [(hit.hub, hit.kind, hit.handle, hit.licence) for hit in hits] == [
        ("huggingface", "model", "hf://institute/lake-net", "Apache-2.0"),
        ("huggingface", "dataset", "hf://datasets/institute/lakes", "CC-BY-4.0"),
        ("zenodo", "dataset", "zenodo:10734921", "CC-BY-4.0"),
        ("openml", "dataset", "openml:61", "CC0-1.0"),
    ]
    assert hits[1].description == "Levels of lakes."
    assert (hits[2].size_bytes, hits[2].name) == (1200, "Lake temperatures")
    assert hits[2].description.startswith("Hourly temperatures of three lakes & one pond.")
    assert json.loads(json.dumps(hits.to_dict()))["results"][2]["size_bytes"] == 1200


def test_one_hub_and_one_kind_may_be_asked_alone(catalog: Catalog, server: Replay) -> None:
    hits = catalog.search_hubs("lake", hubs="huggingface", kind="models")
    assert [hit.handle for hit in hits] == ["hf://institute/lake-net"]
    assert [asked.target for asked in server.asked] == ["/api/models?search=lake&limit=20&full=true"]
    assert [hit.handle for hit in catalog.search_hubs("lake kind:dataset", hubs=["openml"])] == ["openml:61"]


def test_the_limit_is_shared_by_the_hubs(catalog: Catalog, server: Replay) -> None:
    for target, reply in list(server.replies.items()):
        server.replies[target.replace("limit=20", "limit=2").replace("size=20", "size=2")] = reply
    assert len(catalog.search_hubs("lake", limit=2)) == 2


@pytest.mark.parametrize(
    "reply",
    [Reply(b"gone", 500), Reply(b"<html>", 200), Reply({"hits": 3}), Reply([1, {"id": 5}, None])],
    ids=["error", "page", "other shape", "odd entries"],
)
def test_a_hub_that_fails_does_not_stop_the_others(catalog: Catalog, server: Replay, reply: Reply) -> None:
    server.replies["/api/records?q=lake&type=dataset&size=20"] = reply
    server.replies["/api/models?search=lake&limit=20&full=true"] = reply
    hits = catalog.search_hubs("lake")
    assert "openml:61" in {hit.handle for hit in hits}
    assert set(hits.failed) <= {"zenodo", "huggingface"}
    assert hits.failed or reply.body == [1, {"id": 5}, None]


def test_a_hub_that_never_answers_is_given_up(
    home: Path, builtin: CatalogFolder, server: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_search, "_STALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hubs = settings(server.url) | {"zenodo": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        hits = Catalog(home, builtin=builtin, context=context({"HOME": "/nonexistent"}, hubs=hubs)).search_hubs("lake")
    assert set(hits.failed) == {"zenodo"}
    assert {hit.hub for hit in hits} == {"huggingface", "openml"}


@pytest.mark.parametrize("text", ["", "lake licence:MIT", "/lake/", "lake -pond"])
def test_what_hubs_cannot_answer_is_refused(catalog: Catalog, text: str) -> None:
    with pytest.raises(UsageError, match="hubs cannot answer"):
        catalog.search_hubs(text)


def test_an_unknown_hub_is_refused_with_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="did you mean 'zenodo'"):
        catalog.search_hubs("lake", hubs="zendo")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("zenodo:10734921", "zenodo:10734921"),
        ("https://zenodo.org/records/10734921", "zenodo:10734921"),
        ("https://doi.org/10.5281/zenodo.10734921", "zenodo:10734921"),
        ("doi:10.5281/zenodo.10734921", "zenodo:10734921"),
        ("hf://datasets/institute/lakes", "hf://datasets/institute/lakes"),
        ("hf:/datasets/institute/lakes", "hf://datasets/institute/lakes"),
        ("https://huggingface.co/datasets/institute/lakes", "hf://datasets/institute/lakes"),
        ("openml:61", "openml:61"),
        ("https://www.openml.org/d/61", "openml:61"),
        ("https://example.net/records/1", ""),
        ("doi:10.1000/182", ""),
        ("lake.jsonld", ""),
    ],
)
def test_handles_and_pages_lead_to_an_asset_of_a_hub(text: str, reference: str) -> None:
    assert reference_of(text) == reference


def test_the_card_of_a_record_is_full(catalog: Catalog) -> None:
    card = catalog.hub_card("zenodo:10734921")
    assert (card.title, card.licence, card.files[0].name) == ("Lake temperatures", "CC-BY-4.0", "lake.csv")


def test_the_card_of_a_repository_has_commit_files_and_licence(catalog: Catalog, server: Replay) -> None:
    card = catalog.hub_card("hf://datasets/institute/lakes")
    assert (card.kind, card.title, card.version, card.licence) == ("dataset", "Lakes", COMMIT[:12], "CC-BY-4.0")
    assert [(file.name, file.size_bytes, file.sha256) for file in card.files] == [
        ("README.md", len(README), None),
        ("a.csv", 900, "c" * 64),
    ]
    assert card.files[1].url == f"{server.url}/datasets/institute/lakes/resolve/{COMMIT}/a.csv"


def test_a_repository_without_a_card_is_described_by_its_files(catalog: Catalog, server: Replay) -> None:
    server.replies[f"/datasets/institute/lakes/resolve/{COMMIT}/README.md"] = Reply(b"# Lakes\n\nNo front matter.\n")
    card = catalog.hub_card("hf://datasets/institute/lakes")
    assert (card.kind, card.title, card.licence) == ("dataset", "Lakes", None)


@pytest.mark.parametrize(
    "reference",
    ["zenodo:10734921", "hf://datasets/institute/lakes", "openml:61", Path("hf://datasets/institute/lakes")],
)
def test_what_a_hub_has_is_added_with_the_document_it_comes_from(catalog: Catalog, reference: Any) -> None:
    (added,) = catalog.add_files([reference])
    assert added.status == "added"
    card = catalog.get(added.handle)
    assert card.iri
    assert catalog.source_document(card).data
    assert catalog.add_files([reference])[0].status == "present"


def test_a_record_that_is_not_there_is_said(catalog: Catalog) -> None:
    with pytest.raises(NotFound):
        catalog.hub_card("zenodo:1")


LAKE_NODE = {"@context": "https://schema.org/", "@type": "Dataset", "name": "Lakes", "version": "2"}


@pytest.mark.parametrize("form", ["page", "json"])
def test_a_web_address_is_added_as_its_description_says(catalog: Catalog, server: Replay, form: str) -> None:
    text = json.dumps(LAKE_NODE)
    page = f'<!doctype html><html><script type="application/ld+json">{text}</script></html>'
    server.replies["/lakes?lang=en"] = (
        Reply(page.encode()) if form == "page" else Reply(LAKE_NODE, headers={"Content-Type": "application/ld+json"})
    )
    address = f"{server.url}/lakes?lang=en"
    assert catalog.check(address)[0].handles == ["local/dataset/lakes@2"]
    (added,) = catalog.add_files([address])
    assert (added.handle, added.status, added.file) == ("local/dataset/lakes@2", "added", address)
    source = catalog.get("dataset/lakes")["sourceDocument"]
    assert source["url"] == f"{server.url}/lakes" + (".json" if form == "json" else "")


def test_a_web_address_that_serves_nothing_is_not_added(catalog: Catalog, server: Replay) -> None:
    with pytest.raises(NotFound, match="404"):
        catalog.add(f"{server.url}/nothing")
