"""People, organisations and identifiers in the one form a card has."""

from __future__ import annotations

from typing import Any

import pytest

from fairmile.catalog.exchange.common.agents import (
    agent_from_text,
    agents_of,
    doi_iri,
    identifier_iri,
    orcid_iri,
    orcid_is_sound,
    organisation,
    person,
    ror_iri,
)

ORCID = "https://orcid.org/0000-0002-1825-0097"


@pytest.mark.parametrize(
    "text",
    [
        "0000-0002-1825-0097",
        "http://orcid.org/0000-0002-1825-0097",
        "orcid.org/0000-0002-1825-0097/",
        "ORCID:0000-0002-1825-0097",
    ],
)
def test_every_spelling_of_an_orcid_is_one_address(text: str) -> None:
    assert orcid_iri(text) == ORCID


@pytest.mark.parametrize("text", ["", "0000-0002-1825-009", "https://orcid.org/", "https://example.org/1", None, 5])
def test_other_values_hold_no_orcid(text: Any) -> None:
    assert orcid_iri(text) is None


def test_the_check_digit_tells_a_sound_orcid() -> None:
    assert orcid_is_sound(ORCID)
    assert orcid_is_sound("https://orcid.org/0000-0002-1694-233X")
    assert not orcid_is_sound("https://orcid.org/0000-0002-1825-0098")


def test_a_ror_id_is_one_address() -> None:
    assert ror_iri("05v3mvq14") == ror_iri("http://ror.org/05V3MVQ14/") == "https://ror.org/05v3mvq14"
    assert ror_iri("ror") is None


@pytest.mark.parametrize(
    ("scheme", "value", "expected"),
    [
        ("DOI", "10.1234/x", "https://doi.org/10.1234/x"),
        ("URL", "https://dx.doi.org/10.1234/x", "https://doi.org/10.1234/x"),
        ("URL", "https://example.org/a", "https://example.org/a"),
        ("arXiv", "arXiv:2401.00001", "https://arxiv.org/abs/2401.00001"),
        ("arXiv", "2401.00001", "https://arxiv.org/abs/2401.00001"),
        ("Handle", "11304/6eacaa76", "https://hdl.handle.net/11304/6eacaa76"),
        ("ARK", "12345/x", "ark:/12345/x"),
        ("ISBN", "978-3-16-148410-0", "urn:isbn:978-3-16-148410-0"),
        (
            "SWHID",
            "swh:1:dir:ea5920f948c9dce5c3dbd32875f0cac0f534f06f",
            "swh:1:dir:ea5920f948c9dce5c3dbd32875f0cac0f534f06f",
        ),
        ("URL", "see the paper", None),
        ("DOI", "pending", None),
        ("Local", "T-24", None),
    ],
)
def test_an_identifier_of_a_scheme_becomes_an_address_where_it_has_one(
    scheme: str, value: str, expected: str | None
) -> None:
    assert identifier_iri(scheme, value) == expected


def test_a_bare_doi_is_a_doi_only_where_one_is_expected() -> None:
    assert doi_iri("10.1234/x") == "https://doi.org/10.1234/x"
    assert doi_iri("10.1234") is None
    assert doi_iri(10.1234) is None


def test_people_and_organisations_hold_only_what_is_known() -> None:
    assert person(given="Ada", family="Example", orcid=ORCID) == {
        "@type": "Person",
        "@id": ORCID,
        "name": "Ada Example",
        "givenName": "Ada",
        "familyName": "Example",
    }
    assert organisation("NERSC") == {"@type": "Organization", "name": "NERSC"}


def test_a_text_names_someone_and_perhaps_a_mailbox() -> None:
    assert agent_from_text("Ada Example <ada@example.org>") == {"name": "Ada Example", "email": "ada@example.org"}
    assert agent_from_text(" NERSC ") == {"name": "NERSC"}


def test_agents_of_a_card_all_have_a_name() -> None:
    nodes = agents_of(["NERSC", {"givenName": "Ada", "familyName": "Example"}, {"@id": "urn:x"}, {}, None, {"x": 1}])
    assert [node["name"] for node in nodes] == ["NERSC", "Ada Example", "urn:x"]
    assert agents_of(None) == []
