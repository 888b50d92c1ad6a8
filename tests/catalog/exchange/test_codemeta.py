"""codemeta.json, read in all its versions and written in the latest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import codemeta
from fairmile.catalog.exchange.draft import Document, Draft, finish

SAMPLES = Path(__file__).parent / "samples" / "codemeta"
# Every property of the CodeMeta 3.0 and 3.1 contexts for software.
TERMS = """
address affiliation applicationCategory applicationSubCategory author buildInstructions citation codeRepository
continuousIntegration contributor copyrightHolder copyrightYear creator dateCreated dateModified datePublished
description developmentStatus downloadUrl editor email embargoEndDate encoding familyName fileFormat fileSize funder
funding givenName hasPart hasSourceCode identifier installUrl isAccessibleForFree isPartOf isSourceCodeOf issueTracker
keywords license maintainer memoryRequirements name operatingSystem permissions position processorRequirements
producer programmingLanguage provider publisher readme referencePublication relatedLink releaseNotes review
runtimePlatform sameAs softwareHelp softwareRequirements softwareSuggestions softwareVersion sponsor
storageRequirements supportingData targetProduct url version
"""


def read(name: str) -> list[tuple[Draft, Card]]:
    document = Document.from_file(SAMPLES / name, name=name)
    return [(draft, finish(draft, document, "codemeta")) for draft in codemeta.read(document)]


def read_body(body: Any, name: str = "codemeta.json") -> Draft:
    return codemeta.read(Document(name, json.dumps(body).encode()))[0]


def fields(draft: Draft) -> set[str]:
    return {entry["field"] for entry in draft.warnings}


@pytest.mark.parametrize(
    "context",
    [
        "https://raw.githubusercontent.com/codemeta/codemeta/1.0/codemeta.jsonld",
        "https://doi.org/10.5063/schema/codemeta-2.0",
        "http://purl.org/codemeta/2.0",
        "https://w3id.org/codemeta/3.0",
        "https://w3id.org/codemeta/3.1",
        ["https://doi.org/10.5063/schema/codemeta-2.0", "http://schema.org"],
    ],
)
def test_a_document_is_recognised_by_any_address_of_the_context(context: Any) -> None:
    assert codemeta.recognises(Document("software.json", json.dumps({"@context": context}).encode()))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"@context": "https://schema.org", "about": "codemeta"}', b'"codemeta"']
)
def test_other_documents_are_not_recognised(data: bytes) -> None:
    assert not codemeta.recognises(Document("software.json", data))


def test_a_file_called_codemeta_json_is_recognised_even_when_it_is_broken() -> None:
    assert codemeta.recognises(Document("some/folder/codemeta.json", b"{"))


def test_version_1_words_become_todays() -> None:
    ((draft, card),) = read("version-1.json")
    assert card.kind == "program"
    assert card.title == "Tidemark: gauges of the North Sea"
    assert card["identifier"] == "https://doi.org/10.5281/zenodo.9000001"
    assert card["keywords"] == ["tides", "gauges", "sea level"]
    assert card["continuousIntegration"] == "https://ci.example.org/tidemark"
    assert card["downloadUrl"] == "https://example.org/tidemark-0.2.zip"
    assert [agent["name"] for agent in card["creator"]] == ["Josiah Carberry", "Harbour Office"]
    assert card["creator"][0]["@id"] == "https://orcid.org/0000-0002-1825-0097"
    assert draft.foreign["docsCoverage"] == 40
    assert draft.foreign["agents"] == [{"isRightsHolder": True}]


def test_version_2_is_read_whole() -> None:
    ((draft, card),) = read("version-2.json")
    assert card.iri == "https://doi.org/10.5281/zenodo.9000002"
    assert "swh:1:dir:ea5920f948c9dce5c3dbd32875f0cac0f534f06f" in card.identifiers
    assert card["license"] == ["https://spdx.org/licenses/Apache-2.0", "https://spdx.org/licenses/MIT"]
    assert card["continuousIntegration"] == "https://ci.example.org/wavesolver"
    assert card["buildInstructions"].endswith("INSTALL.md")
    assert card["developmentStatus"] == "https://www.repostatus.org/#active"
    assert card["softwareRequirements"][0] == "CUDA >= 12"
    assert card["softwareRequirements"][1]["name"] == "mpi4py"
    assert draft.foreign["softwareRequirements"][1]["provider"]["name"] == "PyPI"
    assert card["creator"][1] == {"name": "Ada Example", "email": "ada@example.org"}
    assert card["funding"] == "SF-2024-17"
    assert card["referencePublication"][0]["name"] == "Waves at scale"
    assert draft.foreign["embargoDate"] == "2023-01-01"
    assert "https://doi.org/10.5063/schema/codemeta-2.0" in card["conformsTo"]
    assert not draft.warnings


def test_version_3_keeps_roles_beside_the_people_who_have_them() -> None:
    ((draft, card),) = read("version-3.json")
    assert card.types == ["SoftwareApplication"]
    assert [agent["name"] for agent in card["creator"]] == ["Sofia Garcia"]
    assert draft.foreign["author"][1]["roleName"] == "Developer"
    assert card["softwareVersion"] == "3.0.0-rc1"
    assert card["isAccessibleForFree"] is True


def test_each_trap_becomes_a_warning_and_loses_nothing() -> None:
    ((draft, card),) = read("traps.json")
    assert fields(draft) == {
        *("version", "dateModified", "issueTracker", "creator", "codeRepository", "name", "softwareRequirements"),
        "license",
    }
    assert card.version == "1.10"
    assert card.title == "driftwood"
    assert card["codeRepository"] == "https://example.org/git/driftwood.git"
    assert [each["name"] for each in card["softwareRequirements"]] == ["R", "ncdf4"]
    assert draft.foreign["license"] == []
    assert draft.foreign["dateModified"] == "03/01/2025"
    assert draft.foreign["mine:grid"] == {"cells": [1, 2, 3], "periodic": False}


def test_names_with_prefixes_and_full_addresses_are_understood() -> None:
    ((draft, card),) = read("codemeta.json")
    assert (card.title, card.version, card.text("developmentStatus")) == ("prefixed", "0.9", "wip")
    assert card.licence == "MIT"
    assert card["creator"][0]["@type"] == "Person"
    assert card["creator"][0]["name"] == "Ada Example"
    assert draft.foreign["schema:audience"] == "oceanographers"


def test_a_graph_gives_a_draft_for_each_software_with_its_people() -> None:
    (first, first_card), (_, second_card) = read("graph.json")
    assert [first_card.title, second_card.title] == ["first", "second"]
    assert first_card["creator"][0]["name"] == second_card["creator"][0]["name"] == "Ada Example"
    assert first.foreign["generatedAt"] == "2026-01-01"


def test_a_doi_as_property_value_becomes_an_address() -> None:
    value = {"@type": "PropertyValue", "propertyID": "https://registry.identifiers.org/registry/doi", "value": "10.1/x"}
    assert read_body({"name": "a", "identifier": value}).body["identifier"] == value
    value["value"] = "10.1234/x"
    assert read_body({"name": "a", "identifier": value}).body["identifier"] == "https://doi.org/10.1234/x"


@pytest.mark.parametrize("address", ["git@example.org:group/tool.git", "git+https://example.org/group/tool.git"])
def test_a_repository_in_gits_own_spelling_becomes_an_address(address: str) -> None:
    draft = read_body({"name": "a", "codeRepository": address})
    assert draft.body["codeRepository"] == "https://example.org/group/tool.git"
    assert fields(draft) == {"codeRepository"}


@pytest.mark.parametrize("body", [[], "text", 5, None, {}, [1], {"@context": "https://w3id.org/codemeta/3.0"}])
def test_what_describes_no_software_is_refused(body: Any) -> None:
    with pytest.raises(InvalidDocument, match=r"codemeta\.json"):
        codemeta.read(Document("codemeta.json", json.dumps(body).encode()))


def test_broken_json_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidDocument, match=r"codemeta\.json:2"):
        codemeta.read(Document("codemeta.json", b'{\n "name": }'))


@pytest.mark.parametrize("name", [path.name for path in SAMPLES.iterdir()])
def test_what_is_written_reads_back_the_same(name: str) -> None:
    for _, card in read(name):
        (file, text), *more = codemeta.write(card).items()
        assert file == "codemeta.json" and not more
        document = Document(file, text.encode())
        (draft,) = codemeta.read(document)
        again = finish(draft, document, "codemeta")
        apart = {"@id", "sameAs", "conformsTo", "sourceDocument", "warnings", "foreign", "licenseRaw"}
        if not card.version.startswith("sha256-"):
            apart -= {"version"}
        assert {key: value for key, value in again.items() if key not in apart} == {
            key: value for key, value in card.items() if key not in apart
        }
        assert again.iri == card.iri


@pytest.mark.parametrize("kind", codemeta.KINDS)
def test_each_kind_is_written_with_words_of_codemeta_and_keeps_its_kind(kind: str) -> None:
    types = {
        "program": "SoftwareSourceCode",
        "workflow": ["ComputationalWorkflow", "SoftwareSourceCode", "HowTo"],
        "model": ["MLModel", "CreativeWork"],
        "environment": ["Environment", "SoftwareApplication"],
    }
    card = Card(
        {
            "@id": "urn:x:1",
            "@type": types[kind],
            "name": "thing",
            "version": "1",
            "creator": [{"@type": "Person", "name": "Ada Example"}],
            "license": "https://spdx.org/licenses/MIT",
            "mlTask": "regression",
            "scienceDomain": "cosmology",
            "machineLearningFramework": "tensorflow",
            "softwareRequirements": ["pkg:pypi/numpy@2.0"],
            "environmentVariables": {"OMP_NUM_THREADS": "4"},
            "distribution": [{"@type": "FileObject", "name": "a.h5", "contentUrl": "https://example.org/a.h5"}],
        }
    )
    body = json.loads(codemeta.write(card)["codemeta.json"])
    assert body["@context"] == "https://w3id.org/codemeta/3.0"
    assert {key for key in body if not key.startswith("@")} <= set(TERMS.split())
    assert body["author"] == [{"@type": "Person", "name": "Ada Example"}]
    assert body["downloadUrl"] == "https://example.org/a.h5"
    assert "regression" in body["keywords"]
    draft = read_body(body)
    assert draft.kind == kind


def test_fragments_of_known_words_are_not_written_on_their_own() -> None:
    ((_, card),) = read("version-1.json")
    body = json.loads(codemeta.write(card)["codemeta.json"])
    assert "agents" not in body
    assert body["docsCoverage"] == 40
    assert body["softwareRequirements"][0]["packageSystem"] == "https://pypi.org"
