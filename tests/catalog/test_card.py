"""What a card says of itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairmile.base.digest import from_ni, ni, sha256_hex
from fairmile.base.errors import UsageError
from fairmile.catalog.card import LINKS, Card, as_list, format_name, id_of, text_of
from fairmile.catalog.identity import content_digest
from fairmile.catalog.kinds import KINDS, kind_of_types

A, B = sha256_hex(b"a"), sha256_hex(b"b")


def card(**more: Any) -> Card:
    return Card({"@id": "https://example.org/x", "@type": "Dataset", "name": "Tiny Universe", "version": "1.0", **more})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("a", ["a"]),
        (0, [0]),
        (["a", "b"], ["a", "b"]),
        ({"@list": ["a", "b"]}, ["a", "b"]),
        ({"@set": "a"}, ["a"]),
        ({"name": "a"}, [{"name": "a"}]),
    ],
)
def test_a_value_is_nothing_one_or_many(value: Any, expected: list[Any]) -> None:
    assert as_list(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        (1.5, "1.5"),
        (None, None),
        (["a"], None),
        ({"@value": "a", "name": "b"}, "a"),
        ({"name": "a", "@id": "b"}, "a"),
        ({"@id": "b"}, "b"),
        ({"@type": "PropertyValue", "propertyID": "mae", "value": 0.5}, "0.5"),
        ({"name": ["a"], "@id": "b"}, "b"),
        ({}, None),
    ],
)
def test_one_text_stands_for_a_value(value: Any, expected: str | None) -> None:
    assert text_of(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        ({"@id": "a", "name": "b"}, "a"),
        ({"name": "b"}, "b"),
        ({"@id": None, "name": "b"}, "b"),
        (5, None),
        ({}, None),
    ],
)
def test_a_link_points_to_an_id_or_else_a_text(value: Any, expected: str | None) -> None:
    assert id_of(value) == expected


def test_a_card_is_a_mapping_that_keeps_unknown_keys_verbatim() -> None:
    body = {"@type": "Dataset", "name": "a", "zz:unknown": {"deep": [1, None]}}
    whole = Card(body)
    assert dict(whole) == body
    assert len(whole) == 3
    assert whole["zz:unknown"] == {"deep": [1, None]}
    assert json.loads(whole.to_json()) == body


def test_a_card_does_not_share_its_top_level_with_what_it_was_made_of() -> None:
    body = {"@type": "Dataset", "name": "a"}
    Card(body).body["name"] = "b"
    assert body["name"] == "a"


def test_the_file_of_a_card_keeps_order_and_letters_and_ends_with_a_line() -> None:
    text = Card({"name": "Größe", "@type": "Dataset"}).to_json()
    assert text.index("name") < text.index("@type")
    assert "Größe" in text and text.endswith("}\n")


def test_the_handle_names_catalog_kind_name_and_version() -> None:
    assert str(card().handle) == "local/dataset/tiny-universe@1.0"
    assert str(Card(card().body, catalog="builtin").handle) == "builtin/dataset/tiny-universe@1.0"
    assert repr(card()) == "<Card local/dataset/tiny-universe@1.0>"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_by_its_types_and_by_its_first_type_alone(kind: str) -> None:
    types = list(KINDS[kind].types)
    assert Card({"@type": types, "name": "a"}).kind == kind
    assert Card({"@type": types[0], "name": "a"}).kind == kind


@pytest.mark.parametrize(
    ("types", "kind"),
    [
        (["http://schema.org/Dataset"], "dataset"),
        (["https://w3id.org/fair4ml#MLModel"], "model"),
        (["sc:Dataset"], "dataset"),
        (["SoftwareSourceCode", "ComputationalWorkflow"], "workflow"),
        (["SoftwareApplication"], "program"),
        (["SoftwareApplication", "Environment"], "environment"),
        (["CreativeWork"], None),
        ([], None),
    ],
)
def test_types_are_known_with_prefix_or_address_and_the_most_particular_wins(
    types: list[str], kind: str | None
) -> None:
    assert kind_of_types(types) == kind


def test_a_card_of_no_kind_is_refused_with_the_types_that_are() -> None:
    with pytest.raises(UsageError, match="'Recipe' is not a kind of asset") as caught:
        _ = Card({"@type": "Recipe", "name": "a"}).kind
    assert "Dataset (dataset)" in (caught.value.hint or "")


def test_a_run_is_told_apart_by_its_start() -> None:
    run = Card({"@type": "CreateAction", "name": "r", "startTime": "2026-11-01T00:00:00Z"})
    assert run.version == "2026-11-01T00:00:00Z"
    assert Card({"@type": "Dataset", "name": "d"}).version == "0"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://spdx.org/licenses/MIT", "MIT"),
        ("https://spdx.org/licenses/MIT.html", "MIT"),
        (["https://example.org/terms", "https://spdx.org/licenses/CC-BY-4.0"], "CC-BY-4.0"),
        ({"@id": "https://spdx.org/licenses/MIT"}, "MIT"),
        ("MIT", None),
        (None, None),
    ],
)
def test_the_licence_is_an_spdx_id_or_not_recognised(value: Any, expected: str | None) -> None:
    assert card(license=value).licence == expected


def test_files_have_name_address_size_type_and_sha256() -> None:
    entry = {
        "@type": "FileObject",
        "@id": "main.tar",
        "contentUrl": "https://example.org/main.tar",
        "contentSize": "5 GB",
        "encodingFormat": "application/x-tar",
        "sha256": A.upper(),
    }
    (file,) = card(distribution=entry).files
    assert file == ("main.tar", "https://example.org/main.tar", 5 * 10**9, "application/x-tar", A)


@pytest.mark.parametrize("entry", [{}, {"contentSize": "many"}, {"contentSize": "", "sha256": "sha256"}, {"sha256": 5}])
def test_a_file_with_unusable_facts_has_none(entry: dict[str, Any]) -> None:
    (file,) = card(distribution=[{"name": "f", **entry}]).files
    assert file == ("f", None, None, None, None)


def test_what_is_no_mapping_is_no_file() -> None:
    assert card(distribution=["https://example.org/a", None]).files == []


def test_the_content_digest_of_one_file_needs_no_size() -> None:
    assert card(distribution=[{"name": "a", "sha256": A}]).content == ni(A)


def test_the_content_digest_of_many_files_needs_every_size_and_sha256() -> None:
    files = [
        {"name": "a", "contentSize": "1 B", "sha256": A},
        {"name": "b", "contentSize": "1 B", "sha256": B},
    ]
    assert card(distribution=files).content == content_digest([("a", 1, A), ("b", 1, B)])
    for key in ("contentSize", "sha256"):
        lacking = [files[0], {name: value for name, value in files[1].items() if name != key}]
        assert card(distribution=lacking).content is None
    assert card().content is None


def test_a_declared_content_digest_is_taken_as_it_is() -> None:
    assert card(contentDigest=ni(B), distribution=[{"name": "a", "sha256": A}]).content == ni(B)


def test_the_digest_is_stable_under_order_and_volatile_keys() -> None:
    body = card(creator=["a"]).body
    turned = Card(dict(reversed(body.items())))
    assert turned.digest == Card({**body, "usageCount": 7, "trustLevel": "high"}).digest == Card(body).digest
    assert Card({**body, "name": "other"}).digest != turned.digest
    assert len(from_ni(turned.digest)) == 64


def test_identifiers_are_listed_once_each() -> None:
    whole = card(
        identifier=["doi:10.1/x", {"@type": "PropertyValue", "value": "7"}], sameAs=["https://example.org/x", "b"]
    )
    assert whole.identifiers == ["https://example.org/x", "doi:10.1/x", "7", "b"]


def test_words_of_a_card() -> None:
    whole = card(
        keywords=["a, b", {"@type": "DefinedTerm", "name": "c"}],
        mlTask="regression",
        scienceDomain=["cosmology"],
        machineLearningFramework="PyTorch",
        framework=["pytorch", "JAX"],
        modelFormat="https://www.iana.org/assignments/media-types/application/x-hdf5",
        distribution=[
            {"name": "a", "encodingFormat": "application/onnx"},
            {"name": "b", "encodingFormat": "application/x-hdf5"},
        ],
    )
    assert whole.keywords == ["a", "b", "c"]
    assert whole.tasks == ["regression"]
    assert whole.domains == ["cosmology"]
    assert whole.frameworks == ["pytorch", "jax"]
    assert whole.formats == ["hdf5", "onnx"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("application/x-hdf5", "hdf5"),
        ("h5", "hdf5"),
        (".pth", "pytorch"),
        ("application/vnd.apache.parquet", "parquet"),
        ("text/csv; charset=utf-8", "csv"),
        ("ONNX", "onnx"),
    ],
)
def test_formats_have_short_names(text: str, expected: str) -> None:
    assert format_name(text) == expected


def test_links_name_relation_and_target() -> None:
    whole = card(
        wasDerivedFrom=["urn:x:1", {"@id": "urn:x:2", "name": "two"}], isPartOf={"name": "three"}, hasPart=[None, 5]
    )
    assert whole.links == [("wasDerivedFrom", "urn:x:1"), ("wasDerivedFrom", "urn:x:2"), ("isPartOf", "three")]
    assert all(LINKS.values())


def test_warnings_are_those_that_have_a_form() -> None:
    assert card(warnings=[{"field": "a", "message": "b"}, "text"]).warnings == [{"field": "a", "message": "b"}]
