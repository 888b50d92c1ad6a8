"""DataCite JSON, read from the kernel and from the REST interface, and written so that the schema accepts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import datacite
from fairmile.catalog.exchange.draft import Document, Draft, finish
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples" / "datacite"
MINIMAL = {"titles": [{"title": "T"}], "creators": [{"name": "A"}], "publisher": "P", "publicationYear": 2024}


def read(name: str) -> list[tuple[Draft, Card]]:
    document = Document.from_file(SAMPLES / name, name=name)
    return [(draft, finish(draft, document, "datacite")) for draft in datacite.read(document)]


def read_body(**more: Any) -> Draft:
    (draft,) = datacite.read(Document("d.json", json.dumps({**MINIMAL, **more}).encode()))
    return draft


def fields(draft: Draft) -> set[str]:
    return {entry["field"] for entry in draft.warnings}


def problems(text: str) -> list[str]:
    """Return what the JSON schema of DataCite 4.5 finds wrong."""
    schema45 = pytest.importorskip("datacite.schema45")
    return [f"{list(error.path)}: {error.message}" for error in schema45.validator.iter_errors(json.loads(text))]


def test_the_kernel_is_read_whole() -> None:
    ((draft, card),) = read("kernel-4.5.json")
    assert (card.kind, card.title, card.version, card.licence) == ("dataset", "Tides of 2024", "1.0", "CC-BY-4.0")
    assert card.iri == "https://doi.org/10.1234/tides.2024"
    assert card["alternateName"] == ["Gezeiten 2024", "T24"]
    assert card["publisher"]["@id"] == "https://ror.org/05v3mvq14"
    assert card["datePublished"] == "2024-12-01"
    assert card["temporalCoverage"] == "2024-01-01/2024-11-30"
    assert card["scienceDomain"] == "Earth and related environmental sciences"
    assert card["keywords"][2]["@id"] == "https://example.org/terms/sea-level"
    assert card["accessRights"] == "public"
    assert card["contentSize"] == "1500000000 B"
    assert card["measurementTechnique"] == "Floats in wells."
    assert card["contributor"][0]["role"] == "DataCurator"
    assert card["funding"][0]["identifier"] == "SF-17"
    assert card["funder"]["name"] == "Harbour Fund"
    assert "http://datacite.org/schema/kernel-4" in card["conformsTo"]
    assert draft.foreign["descriptions"][2]["description"] == "Thanks to the harbour."
    assert draft.foreign["titles"][1] == {"titleType": "TranslatedTitle", "lang": "de"}


def test_people_have_orcid_affiliation_and_ror() -> None:
    ((_, card),) = read("kernel-4.5.json")
    person, team = card["creator"]
    assert person["@id"] == "https://orcid.org/0000-0002-1825-0097"
    assert person["name"] == "Josiah Carberry"
    assert person["affiliation"][0] == {
        "@type": "Organization",
        "@id": "https://ror.org/05v3mvq14",
        "name": "Harbour Office",
    }
    assert person["identifier"]["propertyID"] == "ISNI"
    assert team == {"@type": "Organization", "name": "The Tidemark team"}


def test_relations_become_links_and_the_loose_ones_keep_their_name() -> None:
    ((draft, card),) = read("kernel-4.5.json")
    assert card["wasDerivedFrom"] == "https://doi.org/10.1234/gauges"
    assert card["isPartOf"] == "https://example.org/collection"
    assert card["citation"] == "https://arxiv.org/abs/2401.00001"
    rest = draft.foreign["relatedIdentifiers"]
    assert rest[1] == {"relationType": "IsDescribedBy", "resourceTypeGeneral": "Preprint"}
    assert rest[3]["relationType"] == "IsReviewedBy"


def test_a_rest_answer_is_read_and_its_envelope_kept() -> None:
    ((draft, card),) = read("rest-software.json")
    assert card.kind == "program"
    assert card["codeRepository"] == "https://github.com/harbour/tidemark/tree/v2.1.0"
    assert card["exampleOfWork"] == "https://doi.org/10.5281/zenodo.9000000"
    assert card["creator"][0]["familyName"] == "Garcia"
    assert card["accessRights"] == "public"
    assert draft.foreign["attributes"]["state"] == "findable"
    assert draft.foreign["relationships"]["client"]["data"]["id"] == "cern.zenodo"


def test_a_rest_list_gives_a_draft_for_each_record() -> None:
    (first, model), (_, suite) = read("rest-list.json")
    assert (model.kind, suite.kind) == ("model", "benchmark")
    assert model.files[0].size_bytes == 107455271382548
    assert first.foreign["envelope"]["meta"]["total"] == 2


def test_the_oldest_kernel_is_read() -> None:
    ((draft, card),) = read("kernel-4.0.json")
    assert (card.kind, card.iri) == ("workflow", "https://doi.org/10.1234/old")
    assert card["creator"][0]["givenName"] == "Anna"
    assert card["contributor"] == [{"name": "Harbour Office", "role": "HostingInstitution"}]
    assert fields(draft) >= {"creators", "dates"}


def test_each_trap_becomes_a_warning_and_loses_nothing() -> None:
    ((draft, card),) = read("traps.json")
    assert fields(draft) >= {"types", "doi", "publicationYear", "version", "sizes"}
    assert card.version == "2.0"
    assert card["datePublished"] == "2019-05-05"
    assert draft.foreign["publicationYear"] == 2020
    assert draft.foreign["sizes"] == ["1 MB", "2 MB", "90 pages", ""]
    assert draft.foreign["doi"] == "not-a-doi"
    assert card["license"] == "Public"
    assert card.licence is None


@pytest.mark.parametrize(
    ("general", "text", "kind"),
    [
        ("Dataset", None, "dataset"),
        ("Collection", None, "dataset"),
        ("Software", None, "program"),
        ("ComputationalNotebook", None, "program"),
        ("InteractiveResource", None, "program"),
        ("Workflow", None, "workflow"),
        ("Model", None, "model"),
        ("Other", "Benchmark", "benchmark"),
        ("Other", "Trained model", "model"),
    ],
)
def test_the_type_of_resource_decides_the_kind(general: str, text: str | None, kind: str) -> None:
    draft = read_body(types={"resourceTypeGeneral": general, "resourceType": text})
    assert draft.kind == kind
    assert "types" not in fields(draft)


def test_a_resource_that_is_no_asset_is_read_with_a_warning() -> None:
    draft = read_body(types={"resourceTypeGeneral": "JournalArticle"})
    assert draft.kind == "dataset"
    assert "types" in fields(draft)
    assert draft.foreign["types"] == {"resourceTypeGeneral": "JournalArticle"}


@pytest.mark.parametrize(
    ("rights", "access", "licence"),
    [
        ({"rightsUri": "info:eu-repo/semantics/embargoedAccess"}, "embargoed", None),
        ({"rights": "info:eu-repo/semantics/restrictedAccess"}, "restricted", None),
        ({"rightsUri": "http://purl.org/coar/access_right/c_14cb"}, "closed", None),
        ({"rightsIdentifier": "MIT", "rightsIdentifierScheme": "SPDX"}, None, "MIT"),
        ({"rights": "Open", "rightsUri": "https://creativecommons.org/licenses/by/4.0/legalcode"}, None, None),
    ],
)
def test_rights_are_a_licence_or_a_kind_of_access(
    rights: dict[str, str], access: str | None, licence: str | None
) -> None:
    draft = read_body(rightsList=[rights])
    assert draft.body.get("accessRights") == access
    assert draft.body.get("license") == (licence or (None if access else rights["rightsUri"]))


def test_a_single_file_gets_size_and_format() -> None:
    draft = read_body(contentUrl="https://example.org/a.csv", sizes=["12 B"], formats=["text/csv"])
    assert draft.body["distribution"][0]["contentSize"] == "12 B"
    assert not {field for field in fields(draft) if "Size" in field}


@pytest.mark.parametrize("body", [{}, [], None, "x", {"data": []}, {"data": {"type": "dois"}}, {"titles": []}])
def test_what_is_no_record_is_refused(body: Any) -> None:
    with pytest.raises(InvalidDocument, match=r"d\.json titles"):
        datacite.read(Document("d.json", json.dumps(body).encode()))


def test_a_record_without_a_title_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="names no title"):
        read_body(titles=[{"lang": "en"}])


@pytest.mark.parametrize("data", [b"", b"{", b'{"titles": 1}', b'{"data": {"type": "dois"}}', b"\xff"])
def test_other_documents_are_not_recognised(data: bytes) -> None:
    assert not datacite.recognises(Document("d.json", data))


COMPARABLE = ("kernel-4.5.json", "rest-software.json", "kernel-4.0.json")


@pytest.mark.parametrize("name", COMPARABLE)
def test_what_is_written_reads_back_the_same_and_is_valid(name: str) -> None:
    ((_, card),) = read(name)
    text = datacite.write(card)["datacite.json"]
    assert problems(text) == []
    document = Document("datacite.json", text.encode())
    (draft,) = datacite.read(document)
    again = finish(draft, document, "datacite")
    apart = {"sourceDocument", "warnings", "foreign", "licenseRaw", "conformsTo"}
    apart |= {"version"} if card.version.startswith("sha256-") else set()
    assert {key: value for key, value in again.items() if key not in apart} == {
        key: value for key, value in card.items() if key not in apart
    }


def test_what_the_profile_has_no_word_for_is_handed_on() -> None:
    ((_, card),) = read("kernel-4.5.json")
    body = json.loads(datacite.write(card)["datacite.json"])
    assert body["relatedItems"][0]["relatedItemType"] == "Book"
    assert {"date": "2024-12-02", "dateType": "Available"} in body["dates"]
    assert body["relatedIdentifiers"][-1]["relationType"] == "IsReviewedBy"


def card_of(kind: str, **more: Any) -> Card:
    types = {
        "dataset": "Dataset",
        "model": "MLModel",
        "program": "SoftwareSourceCode",
        "workflow": "ComputationalWorkflow",
    }
    base = {
        "@id": "urn:uuid:1",
        "@type": types.get(kind, "Benchmark"),
        "name": "thing",
        "version": "1",
        "creator": [{"@type": "Organization", "@id": "https://ror.org/05v3mvq14", "name": "NERSC"}],
        "publisher": "NERSC",
        "datePublished": "2026-02-01",
        "license": "https://spdx.org/licenses/MIT",
    }
    return Card({**base, **more})


@pytest.mark.parametrize("kind", datacite.KINDS)
def test_each_kind_is_valid_without_a_doi_and_keeps_its_kind(kind: str) -> None:
    text = datacite.write(card_of(kind))["datacite.json"]
    assert problems(text) == []
    body = json.loads(text)
    assert "doi" not in body
    assert body["alternateIdentifiers"] == [{"alternateIdentifier": "urn:uuid:1", "alternateIdentifierType": "URN"}]
    assert body["publicationYear"] == "2026"
    assert datacite.read(Document("d.json", text.encode()))[0].kind == kind


@pytest.mark.parametrize(
    ("key", "fix"), [("creator", '"creator"'), ("publisher", '"publisher"'), ("datePublished", '"datePublished"')]
)
def test_a_card_that_lacks_a_mandatory_property_is_refused_with_the_fix(key: str, fix: str) -> None:
    card = card_of("dataset")
    del card.body[key]
    with pytest.raises(UsageError, match=f"lacks {key}") as caught:
        datacite.write(card)
    assert fix in (caught.value.hint or "")


def test_the_doi_is_taken_from_any_spelling() -> None:
    body = json.loads(datacite.write(card_of("dataset", identifier=["doi:10.1234/x", "local-1"]))["datacite.json"])
    assert body["doi"] == "10.1234/x"
    assert {"alternateIdentifier": "local-1", "alternateIdentifierType": "Local"} in body["alternateIdentifiers"]


def test_links_of_every_kind_are_valid_relations() -> None:
    card = card_of(
        "program",
        codeRepository="https://example.org/git/x",
        citation=[
            "https://doi.org/10.1/x",
            {"@type": "ScholarlyArticle", "@id": "https://doi.org/10.1234/y", "name": "Y"},
        ],
        softwareRequirements=["numpy>=2", "https://example.org/env"],
        wasDerivedFrom="urn:x:parent",
        accessRights="registered",
        sameAs=["swh:1:dir:ea5920f948c9dce5c3dbd32875f0cac0f534f06f"],
        distribution=[{"@type": "FileObject", "name": "a", "contentSize": "5 B", "encodingFormat": "text/csv"}],
    )
    text = datacite.write(card)["datacite.json"]
    assert problems(text) == []
    body = json.loads(text)
    related = {(each["relationType"], each["relatedIdentifier"]) for each in body["relatedIdentifiers"]}
    assert related == {
        ("IsSupplementTo", "https://example.org/git/x"),
        ("Cites", "https://doi.org/10.1/x"),
        ("Cites", "10.1234/y"),
        ("Requires", "https://example.org/env"),
        ("IsDerivedFrom", "urn:x:parent"),
    }
    assert body["rightsList"][1]["rightsUri"] == "info:eu-repo/semantics/restrictedAccess"
    assert body["sizes"] == ["5 B"]


def test_a_subject_of_a_vocabulary_is_a_keyword_that_a_card_may_have() -> None:
    subject = {"subject": "Physics", "valueUri": "https://vocab.institute.edu/physics", "subjectScheme": "ours"}
    source = {"titles": [{"title": "T"}], "creators": [], "types": {}, "subjects": [subject, "plain"], "version": "1"}
    document = Document("x.json", json.dumps(source).encode())
    (card,) = [finish(draft, document, "datacite") for draft in datacite.read(document)]
    assert card["keywords"][0]["@id"] == "https://vocab.institute.edu/physics"
    assert card.keywords == ["Physics", "plain"]
    assert [each for each in check_body(card.body) if each.severity == "error"] == []
