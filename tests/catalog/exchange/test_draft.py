from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.draft import Document, Draft, finish, may_be_card

DOCUMENT = Document("folder/data set.json", b'{"a": 1}')
SHA256 = "2f0740e8aeb1d3866d6dfecd58e4d4aa5553e0ca53fe1ebbf6df1e82271d6395"


def finished(body: dict[str, Any], **more: Any) -> Card:
    return finish(Draft("dataset", body, **more), DOCUMENT, "test")


def fields(card: Card) -> list[str]:
    return [warning["field"] for warning in card.warnings]


def test_a_card_without_a_name_is_called_after_its_file() -> None:
    card = finished({"version": "1"})
    assert card.title == "data set"
    assert fields(card) == ["name"]


def test_a_card_without_a_version_is_named_by_the_digest_of_its_source() -> None:
    card = finished({"name": "x"})
    assert card.version == f"sha256-{DOCUMENT.sha256[:12]}"
    assert fields(card) == ["version"]


def test_the_source_document_is_named_by_its_digest() -> None:
    source = finished({"name": "x", "version": "1"})["sourceDocument"]
    assert (source["sha256"], source["encodingFormat"], source["contentSize"]) == (DOCUMENT.sha256, "test", "8 B")


@pytest.mark.parametrize(
    ("given", "licence", "raw"),
    [
        ("mit", "https://spdx.org/licenses/MIT", "mit"),
        ("https://spdx.org/licenses/MIT", "https://spdx.org/licenses/MIT", None),
        ("Public", "Public", "Public"),
        ([], None, None),
    ],
)
def test_a_licence_is_brought_to_spdx_and_kept_as_written(given: Any, licence: str | None, raw: str | None) -> None:
    card = finished({"name": "x", "version": "1", "license": given})
    assert (card.get("license"), card.get("licenseRaw")) == (licence, raw)
    assert fields(card) == (["license"] if licence == "Public" else [])


def test_an_id_of_its_own_is_kept_and_an_example_becomes_another_name() -> None:
    own = finished({"@id": "https://data.example.net/1", "name": "x", "version": "1"})
    example = finished({"@id": "http://example.org/DA000001", "name": "x", "version": "1"})
    local = finished({"@id": "row 7", "name": "x", "version": "1"})
    assert own.iri == "https://data.example.net/1"
    assert example.iri.startswith("urn:uuid:")
    assert example["sameAs"] == ["http://example.org/DA000001"]
    assert local["identifier"] == ["row 7"]


def test_the_same_document_gives_the_same_id_twice() -> None:
    assert finished({"name": "x"}).iri == finished({"name": "x"}).iri


@pytest.mark.parametrize(
    ("size", "bytes_", "warned"),
    [
        (5943306240, "5943306240 B", False),
        ("97.73 TiB", "107455271382548 B", True),
        ("36.809 KB", "36809 B", True),
        (" B", None, True),
        (["1 MB", "90 pages"], "1000000 B", True),
        (["90 pages"], None, True),
    ],
)
def test_a_size_is_read_or_becomes_a_warning(size: Any, bytes_: str | None, warned: bool) -> None:
    draft = Draft("dataset", {})
    entry = draft.add_file(name="a", size=size)
    assert entry.get("contentSize") == bytes_
    assert bool(draft.warnings) == warned


@pytest.mark.parametrize("value", ["https://github.com/mlcommons/croissant/issues/80", "sha256", 12, {"a": 1}])
def test_a_checksum_that_is_none_becomes_a_warning_and_is_not_lost(value: Any) -> None:
    draft = Draft("dataset", {})
    entry = draft.add_file(name="a", checksums={"sha256": value})
    assert "sha256" not in entry
    assert draft.warnings[0]["field"] == "distribution[0].sha256"
    assert draft.foreign == {"checksums": {"a": {"sha256": value}}}


def test_a_checksum_in_base64_is_read_as_hex_with_a_warning() -> None:
    draft = Draft("dataset", {})
    entry = draft.add_file(name="a", checksums={"md5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    assert entry["md5"] == "d41d8cd98f00b204e9800998ecf8427e"
    assert draft.warnings[0]["field"] == "distribution[0].md5"


def test_a_key_of_the_source_named_like_ours_is_not_overwritten() -> None:
    draft = Draft("dataset", {}, foreign={"checksums": "none here", "sizes": [1]})
    draft.add_file(name="a", size="x", checksums={"sha256": "y"})
    assert draft.foreign["checksums"] == "none here"
    assert draft.foreign["checksums*"] == {"a": {"sha256": "y"}}
    assert draft.foreign["sizes*"] == {"distribution[0]": "x"}


def test_a_whole_file_gives_the_card_a_content_digest() -> None:
    draft = Draft("dataset", {"name": "x", "version": "1"})
    draft.add_file(name="a", size=1, checksums={"sha256": SHA256})
    assert finish(draft, DOCUMENT, "test")["contentDigest"].startswith("ni:///sha-256;")


def test_a_document_that_is_no_text_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidDocument, match="bad:2"):
        _ = Document("bad", b"fine\n\xff").text


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.json cannot be read: No such file"):
        Document.from_file(tmp_path / "gone.json")


def test_a_folder_stands_for_the_one_description_in_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder without a description"):
        Document.from_file(tmp_path)
    (tmp_path / "CITATION.cff").write_text("title: x")
    assert Document.from_file(tmp_path).file_name == "CITATION.cff"
    (tmp_path / "codemeta.json").write_text("{}")
    with pytest.raises(UsageError, match=r"holds several descriptions: codemeta\.json, CITATION\.cff"):
        Document.from_file(tmp_path)
    (tmp_path / "ro-crate-metadata.json").write_text("{}")
    assert Document.from_file(tmp_path).file_name == "ro-crate-metadata.json"


def test_a_licence_that_spdx_does_not_know_stays_beside_one_that_it_knows() -> None:
    draft = Draft("dataset", {"name": "x", "version": "1", "license": ["MIT", "house rules"]})
    card = finish(draft, Document("x.json", b"{}"), "test")
    assert card["license"] == ["https://spdx.org/licenses/MIT", "house rules"]
    assert card["licenseRaw"] == ["MIT", "house rules"]


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a": 1}', False), ("[]", False), ('{"@type": "Dataset"}', True), ("{", True)]
)
def test_json_may_be_meant_as_a_card_when_it_is_of_a_kind_or_broken(text: str, expected: bool) -> None:
    assert may_be_card(Document("x.json", text.encode())) is expected
    assert not may_be_card(Document("x.yaml", text.encode()))
