"""CITATION.cff becomes a program or a data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import citation
from fairmile.catalog.exchange.draft import Document, Draft, finish

SAMPLES = Path(__file__).parent / "samples" / "citation"


def read(name: str) -> tuple[Draft, Card]:
    document = Document.from_file(SAMPLES / name, name=name)
    (draft,) = citation.read(document)
    return draft, finish(draft, document, "citation")


def read_text(text: str) -> Draft:
    (draft,) = citation.read(Document("CITATION.cff", text.encode()))
    return draft


def fields(draft: Draft) -> list[str]:
    return [entry["field"] for entry in draft.warnings]


def test_a_file_is_recognised_by_its_name_or_its_first_key() -> None:
    assert citation.recognises(Document("CITATION.cff", b"{"))
    assert citation.recognises(Document("cite.yaml", b"# c\ncff-version: 1.2.0\n"))
    assert not citation.recognises(Document("cite.yaml", b"about: cff-version\n"))
    assert not citation.recognises(Document("cite.yaml", b"cff-version: \xff"))


def test_software_is_read_whole() -> None:
    draft, card = read("software.cff")
    assert (card.kind, card.title, card.version) == ("program", "Tidemark", "2.1.0")
    assert card["datePublished"] == "2025-11-03"
    assert card["identifier"] == [
        "https://doi.org/10.5281/zenodo.9000003",
        "swh:1:rel:22ece559cc7cc2364edc5e5593d63ae8bd229f9f",
        "https://example.org/tidemark/2.1.0",
        "RRID:SCR_000001",
    ]
    assert card["license"] == ["https://spdx.org/licenses/Apache-2.0", "https://spdx.org/licenses/MIT"]
    assert card["codeRepository"] == "https://example.org/git/tidemark"
    assert card["url"] == "https://example.org/tidemark"
    assert card["sameAs"] == "https://example.org/archive/tidemark"
    assert card["downloadUrl"] == "https://example.org/wheels/tidemark"
    assert card.text("description") == "Reads the gauges of the North Sea."
    assert draft.foreign["message"] == "Please cite the paper."
    assert draft.foreign["identifiers"][0]["description"] == "The release in the archive."
    assert not draft.warnings


def test_authors_are_people_groups_and_aliases() -> None:
    draft, card = read("software.cff")
    anna, team, gull = card["creator"]
    assert anna["@type"] == "Person"
    assert anna["@id"] == "https://orcid.org/0000-0002-1825-0097"
    assert anna["name"] == "Anna van den Berg"
    assert anna["affiliation"] == {"@type": "Organization", "name": "Harbour Office"}
    assert team == {"@type": "Organization", "name": "The Tidemark team", "url": "https://example.org/team"}
    assert gull["name"] == "seagull"
    assert draft.foreign["authors"] == [{"name-particle": "van den", "city": "Delft"}, {"date-start": "2019-01-01"}, {}]


def test_the_preferred_citation_comes_first_and_the_references_after() -> None:
    draft, card = read("software.cff")
    paper, numpy, book = card["citation"]
    assert paper["@type"] == "ScholarlyArticle"
    assert paper["@id"] == card["referencePublication"] == "https://doi.org/10.1000/gauges"
    assert (numpy["@type"], numpy["version"]) == ("SoftwareSourceCode", "1.26.0")
    assert (book["@type"], book["datePublished"]) == ("CreativeWork", "1951")
    assert draft.foreign["preferred-citation"] == {"journal": "Journal of Tides", "volume": 3}
    assert draft.foreign["references"][1]["publisher"] == {"name": "Sea Press"}


def test_a_data_set_has_its_file() -> None:
    _, card = read("dataset.cff")
    assert card.kind == "dataset"
    assert card.licence == "CC-BY-4.0"
    assert card.files[0].url == "https://example.org/data/gauges.csv"
    assert "referencePublication" not in card


def test_the_first_version_of_the_format_is_read() -> None:
    draft, card = read("version-1.0.cff")
    assert (card.title, card.version) == ("drift", "0.1.0")
    assert draft.foreign["references"] == [{"scope": "The method"}]


def test_each_trap_becomes_a_warning_and_loses_nothing() -> None:
    draft, card = read("traps.cff")
    assert set(fields(draft)) >= {"type", "version", "date-released", "doi", "identifier", "codeRepository", "authors"}
    assert card.version == "1.10"
    assert card["identifier"] == "https://doi.org/10.5281/zenodo.1234567"
    assert card["keywords"] == ["waves"]
    assert card.licence is None
    assert draft.foreign["license"] == []
    assert draft.foreign["authors"] == [{}, {"orcid": "unknown"}]
    assert draft.foreign["custom-key"] == {"nested": [1, "two", None]}


def test_the_commit_names_the_version_when_nothing_else_does() -> None:
    assert read_text("cff-version: 1.2.0\ntitle: a\ncommit: abc123\n").body["version"] == "abc123"


def test_a_file_without_authors_is_read_with_a_warning() -> None:
    assert "authors" in fields(read_text("cff-version: 1.2.0\ntitle: a\n"))


@pytest.mark.parametrize("text", ["", "[]", "just text", "cff-version: 1.2.0", "title: []", "title: ''"])
def test_a_file_without_a_title_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument, match=r"CITATION\.cff"):
        read_text(text)


def test_broken_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidDocument, match=r"CITATION\.cff:2"):
        read_text("title: a\ntitle: b\n")
