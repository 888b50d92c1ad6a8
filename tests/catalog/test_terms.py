"""What the keys of a card mean, by the bundled context and the card's own."""

from __future__ import annotations

import pytest

from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.catalog.terms import bundled_terms, in_profile, read_terms


def test_every_term_of_the_bundled_context_has_an_absolute_address() -> None:
    terms = bundled_terms()
    assert len(terms) > 200
    assert all(term.iri.startswith("http") for term in terms.values())
    assert terms["name"].iri == "http://schema.org/name"
    assert terms["hyperparameters"].opaque
    assert not terms["creator"].opaque


def test_keys_and_types_are_read_at_every_depth() -> None:
    found = read_terms({"@type": "Dataset", "creator": [{"@type": "Person", "givenName": "Ada", "shoe": 1}], "odd": {}})
    assert set(found.terms) == {"Dataset", "creator", "Person", "givenName"}
    assert found.unknown == ("odd", "shoe")


def test_a_key_without_a_value_is_not_there() -> None:
    assert read_terms({"odd": None}).unknown == ()


@pytest.mark.parametrize("key", ["@title", "note: see below", "unknown:thing", "plain"])
def test_what_no_context_defines_means_nothing(key: str) -> None:
    assert read_terms({key: 1}).unknown == (key,)


@pytest.mark.parametrize("key", ["schema:award", "https://x.edu/terms#y", "urn:x:y", "fx:own"])
def test_prefixes_and_addresses_have_a_meaning(key: str) -> None:
    assert read_terms({key: 1}).unknown == ()


def test_contexts_written_into_the_card_count() -> None:
    inline = {"my": "https://x.edu/", "a": "my:a", "b": {"@id": "my:b", "@type": "@json"}, "c": "a:c", "loop": "loop:x"}
    found = read_terms({"@context": [CONTEXT_IRI, inline], "a": 1, "b": {"hidden": 1}, "loop": 1, "nothing": 1})
    assert found.terms["a"] == "https://x.edu/a"
    assert "hidden" not in found.unknown
    assert "nothing" in found.unknown
    assert in_profile(found)


def test_a_vocabulary_for_all_keys_gives_all_a_meaning() -> None:
    assert read_terms({"@context": {"@vocab": "https://x.edu/"}, "anything": 1}).terms == {
        "anything": "https://x.edu/anything"
    }


def test_contexts_of_others_are_listed_and_never_fetched() -> None:
    found = read_terms({"@context": "https://w3id.org/ro/crate/1.1/context", "name": "x"})
    assert found.contexts == ("https://w3id.org/ro/crate/1.1/context",)
    assert not in_profile(found)


def test_values_under_a_prefix_are_collected_but_not_licences() -> None:
    body = {
        "creator": {"@id": "https://orcid.org/1"},
        "license": "https://orcid.org/2",
        "foreign": "https://orcid.org/3",
    }
    assert read_terms(body, ("https://orcid.org/",)).values == {"https://orcid.org/1"}
