"""Handles, references, ids and digests of assets."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.digest import ManifestEntry, from_ni, merkle_root, sha256_hex
from fairmile.base.errors import UsageError
from fairmile.catalog.identity import (
    VOLATILE_KEYS,
    Handle,
    Reference,
    card_digest,
    content_digest,
    doi_of,
    is_iri,
    mint_iri,
    parse_reference,
    valid_sha256,
    version_key,
    version_slug,
)
from fairmile.catalog.kinds import KINDS

A, B = sha256_hex(b"a"), sha256_hex(b"b")


def test_a_handle_reads_as_people_type_it() -> None:
    assert str(Handle("local", "model", "cosmoflow", "1.0")) == "local/model/cosmoflow@1.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cosmoflow", Reference(None, None, "cosmoflow", None)),
        ("cosmoflow@1.0", Reference(None, None, "cosmoflow", "1.0")),
        ("model/cosmoflow", Reference(None, "model", "cosmoflow", None)),
        ("model/cosmoflow@1.0", Reference(None, "model", "cosmoflow", "1.0")),
        ("mine/cosmoflow", Reference("mine", None, "cosmoflow", None)),
        ("mine/model/cosmoflow@2", Reference("mine", "model", "cosmoflow", "2")),
        (" CosmoFlow ", Reference(None, None, "cosmoflow", None)),
        ("cosmoflow@", Reference(None, None, "cosmoflow", None)),
        ("cosmoflow@1.0+cu118", Reference(None, None, "cosmoflow", "1.0-cu118")),
    ],
)
def test_any_part_of_a_reference_but_the_name_may_be_missing(text: str, expected: Reference) -> None:
    assert parse_reference(text, list(KINDS)) == expected


@pytest.mark.parametrize(
    "handle", [Handle("local", "dataset", "a.b-c", "1.0-rc1"), Handle("x", "run", "r", "2026-01-01")]
)
def test_a_handle_is_a_reference_to_itself(handle: Handle) -> None:
    assert tuple(parse_reference(str(handle), list(KINDS))) == tuple(handle)


@pytest.mark.parametrize("text", ["", "@1.0", "/", "a//b", "/model/x", "a/b/c/d", "model/"])
def test_what_is_no_reference_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="not a name of an asset") as caught:
        parse_reference(text, list(KINDS))
    assert "[catalog/][kind/]name[@version]" in (caught.value.hint or "")


def test_a_wrong_kind_is_refused_with_the_kinds() -> None:
    with pytest.raises(UsageError, match="'modle'") as caught:
        parse_reference("mine/modle/x", list(KINDS))
    assert "model" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("version", "expected"), [("1.0", "1.0"), ("V2", "V2"), ("1.0+cu118", "1.0-cu118"), ("a b", "a-b"), ("../x", "x")]
)
def test_a_version_is_safe_in_a_handle_and_a_path(version: str, expected: str) -> None:
    assert version_slug(version) == expected


@pytest.mark.parametrize(
    "versions",
    [
        ["0.9", "1.0", "1.0.1", "1.2", "1.9", "1.10", "2.0", "10.0"],
        ["1.0a1", "1.0b1", "1.0rc1", "1.0rc2", "1.0", "1.0.1"],
        ["v1.9", "1.10", "V1.11"],
        ["2024-01-31", "2024-02-01", "2025-01-01"],
        ["1.0-beta", "1.0"],
    ],
)
def test_versions_sort_as_people_count(versions: list[str]) -> None:
    shuffled = random.Random(0).sample(versions, len(versions))
    assert sorted(shuffled, key=version_key) == versions


@given(st.text(max_size=60))
def test_any_text_has_a_place_in_the_order(version: str) -> None:
    assert version_key(version)


def test_a_version_of_very_many_digits_has_a_place_too() -> None:
    assert version_key("9" * 5000) > version_key("1")


@pytest.mark.parametrize("text", ["https://example.org/a", "urn:uuid:1", "ark:/12345/x", "doi:10.1/x", "pkg:pypi/x@1"])
def test_absolute_addresses_are_iris(text: str) -> None:
    assert is_iri(text)


@pytest.mark.parametrize(
    "text", ["", "name", "a b:c", "#part", "/path", "https://a b", "https://a\n", "<https://a>", None, 5, "1x:y", "x:"]
)
def test_other_things_are_no_iris(text: object) -> None:
    assert not is_iri(text)


@pytest.mark.parametrize(
    "text",
    [
        "doi:10.5281/zenodo.1",
        "https://doi.org/10.5281/zenodo.1",
        "http://dx.doi.org/10.5281/zenodo.1",
        " DOI:10.5281/zenodo.1 ",
    ],
)
def test_every_spelling_of_a_doi_gives_the_bare_doi(text: str) -> None:
    assert doi_of(text) == "10.5281/zenodo.1"


@pytest.mark.parametrize("text", ["10.5281/zenodo.1", "doi:11.5/x", "https://example.org/10.5281/x", "", None, 10.5])
def test_other_texts_hold_no_doi(text: object) -> None:
    assert doi_of(text) is None


def test_an_id_is_minted_below_the_base_address() -> None:
    assert (
        mint_iri("model", "Cosmo Flow", "1.0", base="https://example.org/")
        == "https://example.org/a/model/cosmo-flow/1.0"
    )


def test_an_id_without_base_is_the_same_for_the_same_source_and_differs_otherwise() -> None:
    minted = mint_iri("model", "x", "1", origin="abc")
    assert minted.startswith("urn:uuid:")
    assert minted == mint_iri("model", "x", "1", origin="abc")
    others = [
        mint_iri("dataset", "x", "1", origin="abc"),
        mint_iri("model", "x", "2", origin="abc"),
        mint_iri("model", "x", "1"),
    ]
    assert len({minted, *others}) == 4


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(["name", "version", "@type", "creator", "x"]), JSON, min_size=1)


@given(BODIES, st.randoms())
def test_the_digest_of_a_card_does_not_depend_on_the_order_of_keys(
    body: dict[str, object], order: random.Random
) -> None:
    keys = list(body)
    order.shuffle(keys)
    assert card_digest({key: body[key] for key in keys}) == card_digest(body)
    assert card_digest(json.loads(json.dumps(body, sort_keys=True))) == card_digest(body)


@given(BODIES, st.dictionaries(st.sampled_from(sorted(VOLATILE_KEYS)), JSON))
def test_the_digest_of_a_card_leaves_volatile_keys_out(body: dict[str, object], volatile: dict[str, object]) -> None:
    assert card_digest({**body, **volatile}) == card_digest(body)


def test_the_digest_of_a_card_changes_with_any_other_key() -> None:
    digests = [card_digest(body) for body in ({"name": "a"}, {"name": "b"}, {"name": "a", "x": 1}, {"name": ["a"]})]
    assert len(set(digests)) == 4


def test_the_digest_of_a_card_is_the_sha256_of_its_canonical_bytes() -> None:
    assert from_ni(card_digest({"b": 1, "a": "ä"})) == sha256_hex('{"a":"ä","b":1}'.encode())


def test_no_file_has_no_content_digest() -> None:
    assert content_digest([]) is None


def test_the_content_digest_of_one_file_is_its_own() -> None:
    assert from_ni(content_digest([("a.bin", 1, A)]) or "") == A


def test_the_content_digest_of_many_files_is_their_merkle_root_in_any_order() -> None:
    files = [("b.bin", 1, B), ("sub/a.bin", 1, A), ("a.bin", 1, A)]
    expected = merkle_root([ManifestEntry(name, size, digest, 0o644) for name, size, digest in files])
    assert from_ni(content_digest(files) or "") == expected
    assert content_digest(files) == content_digest(files[::-1])


def test_the_content_digest_changes_with_name_size_and_bytes() -> None:
    variants = [
        [("a", 1, A), ("b", 1, B)],
        [("a", 1, A), ("c", 1, B)],
        [("a", 2, A), ("b", 1, B)],
        [("a", 1, B), ("b", 1, B)],
    ]
    assert len({content_digest(files) for files in variants}) == 4


@pytest.mark.parametrize(
    "files", [[("a", 1, A), ("a", 1, B)], [("../a", 1, A), ("b", 1, B)], [("/a", 1, A), ("b", 1, B)]]
)
def test_files_that_make_no_tree_have_no_content_digest(files: list[tuple[str, int, str]]) -> None:
    assert content_digest(files) is None


@pytest.mark.parametrize("text", [A, A.upper(), f"sha256:{A}", f" {A} "])
def test_a_sha256_is_read_in_any_notation(text: str) -> None:
    assert valid_sha256(text) == A


@pytest.mark.parametrize(
    "text", ["", "sha256", A[:-1], "https://github.com/mlcommons/croissant/issues/80", f"md5:{A[:32]}", None, 5]
)
def test_what_is_no_sha256_gives_none(text: object) -> None:
    assert valid_sha256(text) is None


def test_a_card_with_a_number_too_large_for_canonical_json_still_has_a_digest() -> None:
    large, other = 2**70, 2**70 + 1
    assert card_digest({"name": "x", "foreign": {"n": [large]}}) != card_digest(
        {"name": "x", "foreign": {"n": [other]}}
    )
