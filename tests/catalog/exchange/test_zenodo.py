"""Zenodo: the records of its interface, and the .zenodo.json of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog import exchange
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.exchange.zenodo import plain_text

SAMPLES = Path(__file__).parent / "samples" / "zenodo"


def card(name: str) -> Card:
    document = Document.from_file(SAMPLES / name)
    assert exchange.recognise(document) == "zenodo"
    return exchange.read(document)[0]


def test_a_record_becomes_a_card_with_its_doi_people_licence_and_files() -> None:
    made = card("record.json")
    assert (made.kind, made.title, made.version) == ("dataset", "Lake temperatures", "1.2.0")
    assert made.iri == "https://doi.org/10.5281/zenodo.10734921"
    assert made.licence == "CC-BY-4.0"
    assert made["accessRights"] == "public"
    assert made["creator"][0]["@id"] == "https://orcid.org/0000-0002-1825-0097"
    assert made["creator"][0]["name"] == "Josiah Carberry"
    assert made["creator"][1] == {"name": "Lake Consortium"}
    assert made.text("description") == "Hourly temperatures of three lakes & one pond.\n\nSecond paragraph."
    assert made["citation"] == "https://doi.org/10.1000/182"
    assert made["wasDerivedFrom"] == "https://github.com/lake/data/tree/v1.2.0"
    (file,) = made.files
    assert (file.name, file.size_bytes) == ("lake.csv", 1200)
    assert file.url == "https://zenodo.org/api/records/10734921/files/lake.csv/content"
    assert made["distribution"][0]["md5"] == "2942bfabb3d05332b66eb128e0842cff"


def test_the_file_of_a_repository_becomes_a_card() -> None:
    made = card(".zenodo.json")
    assert (made.kind, made.title, made.licence) == ("program", "A solver for lakes", "Apache-2.0")
    assert (made["accessRights"], made["conditionsOfAccess"]) == ("restricted", "Ask the consortium.")


def test_a_record_without_a_title_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="is missing"):
        exchange.read(Document(".zenodo.json", b"{}"))


def test_markup_becomes_text_with_its_paragraphs() -> None:
    assert plain_text("<div>a<br/>b</div><ul><li>c</li></ul>") == "a\n\nb\n\nc"
    assert plain_text("1 < 2 &lt; 3") == "1 < 2 < 3"
