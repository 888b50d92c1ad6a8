"""schema.org JSON-LD: read as such, mapped to the terms of a card, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import read, recognise
from fairmile.catalog.exchange.draft import Document

SAMPLES = Path(__file__).parent / "samples" / "schemaorg"
HEAD = {"@context": "https://schema.org/", "@type": "Dataset", "name": "Lakes", "version": "1"}


def document(value: Any, name: str = "x.json") -> Document:
    return Document(name, json.dumps(value).encode())


def card(**more: Any) -> Card:
    (found,) = read(document({**HEAD, **more}))
    return found


def test_a_data_set_is_mapped_to_the_terms_of_a_card() -> None:
    (found,) = read(Document.from_file(SAMPLES / "lake.jsonld"))
    assert found.iri == "https://doi.org/10.1000/lake.7"
    assert found.version == "2.1"
    assert found.licence == "CC-BY-4.0"
    assert [each["name"] for each in found["creator"]] == ["Ada Example", "Institute of Lakes"]
    assert found.keywords == ["hydrology", "Lakes, natural"]
    assert [(file.name, file.url) for file in found.files] == [
        ("lakes.zip", "https://data.institute.edu/lakes.zip"),
        ("plain", "https://data.institute.edu/lakes.csv"),
    ]
    assert found.files[0].media_type == "application/zip"
    assert found["foreign"]["schemaorg"]["reviewedBy"] == "a board"


def test_a_graph_gives_its_assets_with_what_they_refer_to() -> None:
    data, software = read(Document.from_file(SAMPLES / "page.json"))
    assert (data.title, data.kind) == ("Lakes", "dataset")
    assert data["creator"][0]["name"] == "Ada Example"
    assert data.files[0].name == "l.csv"
    assert data["foreign"]["schemaorg"]["@graph"][0]["about"] == {"@id": "#data"}
    assert (software.title, software.version, software.kind) == ("lakelib", "3.2", "program")
    assert software["license"] == ["https://spdx.org/licenses/MIT", "https://institute.edu/terms"]


@pytest.mark.parametrize(
    "context",
    [
        "https://schema.org",
        "http://schema.org/",
        "http://www.schema.org/",
        ["https://schema.org/", {"x": "https://x.org/"}],
        {"@vocab": "https://schema.org/"},
    ],
)
def test_every_spelling_of_the_context_is_known(context: Any) -> None:
    source = document({**HEAD, "@context": context})
    assert recognise(source) == "schemaorg"
    assert read(source)[0].title == "Lakes"


def test_names_with_a_prefix_are_read() -> None:
    source = {
        "@context": {"s": "http://schema.org/"},
        "@type": "s:Dataset",
        "s:name": "Lakes",
        "s:author": {"@type": "s:Person", "s:name": "Ada"},
    }
    (found,) = read(document(source))
    assert (found.title, found["creator"][0]["name"]) == ("Lakes", "Ada")


def test_a_page_that_holds_a_data_set_gives_it() -> None:
    page = {"@context": "https://schema.org", "@type": "WebPage", "name": "page", "mainEntity": {**HEAD}}
    (found,) = read(document(page))
    assert found.title == "Lakes"
    assert found["foreign"]["schemaorg"]["name"] == "page"


def test_truth_by_address_is_truth() -> None:
    assert card(isAccessibleForFree="https://schema.org/True")["isAccessibleForFree"] is True
    assert card(isAccessibleForFree="False")["isAccessibleForFree"] is False


def test_what_is_no_asset_is_not_recognised_and_refused_by_name() -> None:
    page = document({"@context": "https://schema.org/", "@type": "WebPage", "name": "x"})
    assert recognise(page) is None
    with pytest.raises(InvalidDocument, match=r"x\.json @type: describes no asset"):
        read(page, "schemaorg")


def test_json_of_no_known_format_is_answered_with_the_formats() -> None:
    with pytest.raises(InvalidDocument) as error:
        read(document({"a": 1}))
    assert error.value.message == "x.json: is not in a known format"
    for name in ("card", "croissant", "schemaorg", "datacite"):
        assert name in str(error.value.hint)


def test_nodes_that_name_each_other_many_times_stay_small() -> None:
    nodes = [
        {"@id": f"#{level}", "@type": "Person", "name": f"n{level}", "knows": [{"@id": f"#{level + 1}"}] * 30}
        for level in range(8)
    ]
    graph = [{**HEAD, "@id": "#lakes", "creator": {"@id": "#0"}}, *nodes]
    (found,) = read(document({"@context": HEAD["@context"], "@graph": graph}))
    assert found["creator"][0]["name"] == "n0"
    assert len(json.dumps(found.body)) < 30_000_000


def page(*scripts: str) -> Document:
    blocks = "".join(f'<script type="application/ld+json">{script}</script>\n' for script in scripts)
    return Document("lakes.html", f"<!DOCTYPE html>\n<html><head>{blocks}</head><body>Lakes</body></html>".encode())


def test_a_web_page_gives_the_data_set_that_it_describes() -> None:
    crumbs = {"@context": "https://schema.org", "@type": "BreadcrumbList", "itemListElement": []}
    (lakes,) = read(page(json.dumps(crumbs), json.dumps({**HEAD, "keywords": ["water"]}), "{broken"))
    assert (str(lakes.handle), lakes.keywords) == ("local/dataset/lakes@1", ["water"])
    assert lakes["sourceDocument"]["name"] == "lakes.html"


def test_a_web_page_with_croissant_is_read_as_such() -> None:
    text = next(path for path in (SAMPLES.parent / "croissant").glob("*.json")).read_text()
    assert recognise(page(text)) == "croissant"


@pytest.mark.parametrize("scripts", [(), ("{broken",), ('{"@context": "https://schema.org", "@type": "Person"}',)])
def test_a_web_page_that_describes_no_asset_is_refused(scripts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidDocument, match=r"lakes\.html: is a web page without a JSON-LD description"):
        read(page(*scripts))


def test_expanded_json_ld_reads_as_the_short_form_does() -> None:
    expanded = {
        "@id": "https://doi.org/10.1000/lake.8",
        "@type": ["http://schema.org/Dataset"],
        "http://schema.org/name": [{"@value": "Lakes"}],
        "http://schema.org/version": [{"@value": "1"}],
        "http://schema.org/dateModified": [{"@value": "2024-05-01", "@type": "http://schema.org/Date"}],
        "http://schema.org/keywords": [{"@value": "water"}, {"@value": "ice"}],
        "http://schema.org/license": [{"@id": "https://spdx.org/licenses/CC-BY-4.0"}],
        "http://schema.org/creator": [
            {
                "@list": [
                    {"@type": ["http://schema.org/Person"], "http://schema.org/name": [{"@value": "Ada Example"}]},
                    {"@type": ["http://schema.org/Person"], "http://schema.org/name": [{"@value": "Bo Example"}]},
                ]
            }
        ],
        "http://schema.org/distribution": [
            {
                "@type": ["http://schema.org/DataDownload"],
                "http://schema.org/contentUrl": [{"@id": "https://data.institute.edu/lakes.csv"}],
            }
        ],
    }
    (lakes,) = read(document([expanded]))
    assert (str(lakes.handle), lakes.licence, lakes.keywords) == (
        "local/dataset/lakes@1",
        "CC-BY-4.0",
        ["water", "ice"],
    )
    assert [each["name"] for each in lakes["creator"]] == ["Ada Example", "Bo Example"]
    assert lakes["dateModified"] == "2024-05-01"
    assert [file.url for file in lakes.files] == ["https://data.institute.edu/lakes.csv"]
    assert lakes.warnings == []
    assert "foreign" not in lakes
