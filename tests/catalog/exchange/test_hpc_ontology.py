"""Data in the HPC Ontology becomes linked cards; people and projects stand on the things that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import hpc_ontology
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.exchange.hpc_ontology_graph import NAMESPACES

SAMPLE = Path(__file__).parent / "samples" / "hpc-ontology" / "knowledge.ttl"
HEAD = f"@prefix hpc: <{NAMESPACES[0]}> . @prefix ex: <http://example.org/> .\n"


def cards(document: Document) -> list[Card]:
    return [finish(draft, document, "hpc-ontology") for draft in hpc_ontology.read(document)]


def turtle(text: str) -> list[Card]:
    return cards(Document("x.ttl", (HEAD + text).encode()))


@pytest.fixture(scope="module")
def found() -> list[Card]:
    return cards(Document.from_file(SAMPLE))


def one(found: list[Card], kind: str, name: str) -> Card:
    return next(card for card in found if (card.kind, card.title) == (kind, name))


def messages(card: Card) -> str:
    return "\n".join(f"{entry['field']}: {entry['message']}" for entry in card.warnings)


def test_each_kind_of_node_becomes_a_card_of_its_kind(found: list[Card]) -> None:
    assert [(card.kind, card.title) for card in found] == [
        ("model", "placement.onnx"),
        ("dataset", "timings"),
        ("workflow", "placement study"),
        ("workflow", "label.py"),
        ("program", "Python"),
        ("program", "Python"),
        ("system", "pearl"),
        ("system", "pearl1"),
    ]


def test_terms_of_all_four_name_spaces_describe_one_thing(found: list[Card]) -> None:
    model = one(found, "model", "placement.onnx")
    assert (model["description"], model.version) == ("Chooses where data lies.", "1.2")
    assert model.texts("creator") == ["Ada Example", "Bo"]


def test_a_model_has_category_format_truths_and_task(found: list[Card]) -> None:
    model = one(found, "model", "placement.onnx")
    assert model["modelCategory"] == ["Prediction", "Decision tree"]
    assert model["modelFormat"] == "application/x-onnx"
    assert (model["isTunable"], model["supportsAccelerator"]) == (False, True)
    assert model.tasks == ["prediction"]


def test_references_are_links_that_the_other_card_answers_to(found: list[Card]) -> None:
    known = {identifier for card in found for identifier in card.identifiers}
    model = one(found, "model", "placement.onnx")
    for relation, name in (("trainedOn", "timings"), ("wasGeneratedBy", "placement study"), ("targetMachine", "pearl")):
        targets = [target for each, target in model.links if each == relation]
        assert targets and set(targets) <= known
        assert any(name == card.title and set(targets) & set(card.identifiers) for card in found)


def test_what_is_used_by_an_experiment_stands_on_the_experiment(found: list[Card]) -> None:
    links = one(found, "workflow", "placement study").links
    assert ("object", "http://example.org/dataset/DA900001") in links
    assert ("hasPart", "http://example.org/workflow/WF900001") in links
    assert ("softwareRequirements", "http://example.org/software/SW900001") in links
    assert ("result", "http://example.org/model/MO900001") in links


def test_a_project_with_its_funding_stands_on_what_belongs_to_it(found: list[Card]) -> None:
    for card in (one(found, "dataset", "timings"), one(found, "workflow", "placement study")):
        assert [(project["name"], project["funder"], project["award"]) for project in card["project"]] == [
            ("Placer", ["NSF", "Example Agency"], "42-7")
        ]


def test_the_gpu_of_a_node_is_the_gpu_of_its_cluster(found: list[Card]) -> None:
    cluster = one(found, "system", "pearl")
    assert (cluster["gpuModel"], cluster["cpuCorePerNode"], cluster["computeNodeCount"]) == ("Nvidia V100", 44, 795)
    assert cluster["@type"] == "Cluster"
    assert ("hasPart", "http://example.org/computer/pearl1") in cluster.links


def test_a_quantity_keeps_number_and_unit(found: list[Card]) -> None:
    assert one(found, "system", "pearl")["hasRpeak"] == {
        "@type": "PropertyValue",
        "value": "8025.60",
        "unitText": "TeraFLOPS",
        "unitCode": "http://qudt.org/vocab/unit/TeraFLOPS",
    }


def test_a_quantity_without_number_is_kept_as_it_is(found: list[Card]) -> None:
    kept = one(found, "system", "pearl")["foreign"]["hpc-ontology"]
    assert kept["power"]["http://qudt.org/schema/qudt/unit"] == {"@id": "http://qudt.org/vocab/unit/KiloW"}
    assert kept["Top500Rank"] == 29


def test_a_file_becomes_the_distribution(found: list[Card]) -> None:
    file = one(found, "dataset", "timings").files[0]
    assert (file.name, file.url, file.media_type) == ("timings.csv", "https://example.net/timings.csv", "text/csv")


def test_a_file_under_another_folder_of_ids_is_found_by_its_number_with_a_warning(found: list[Card]) -> None:
    model = one(found, "model", "placement.onnx")
    assert model.files[0].url == "https://example.net/placement.onnx"
    assert "taken to be 'http://example.org/AIModel/FI900001'" in messages(model)


@pytest.mark.parametrize(
    ("kind", "name", "target"),
    [
        ("dataset", "timings", "http://example.org/experiment/EX999999"),
        ("workflow", "placement study", "http://example.org/person/ADMIN"),
        ("system", "pearl1", "http://example.org/processor/CPU999999"),
    ],
)
def test_a_dangling_reference_becomes_a_warning_and_is_kept(
    found: list[Card], kind: str, name: str, target: str
) -> None:
    card = one(found, kind, name)
    assert f"{target!r} is not described in this document" in messages(card)
    assert target in card.to_json()


@pytest.mark.parametrize(
    "term", ["input", "output", "file", "project", "contributor", "targetMachine", "hasNode", "usedBy"]
)
def test_a_dangling_reference_of_any_kind_is_kept(term: str) -> None:
    kind = "Cluster" if term == "hasNode" else "Dataset"
    card = turtle(f'ex:a a hpc:{kind} ; hpc:name "a" ; hpc:{term} ex:nowhere .')[0]
    assert "http://example.org/nowhere" in messages(card)
    assert "http://example.org/nowhere" in str({**card, "warnings": None})


def test_column_names_are_variables(found: list[Card]) -> None:
    names = [entry["name"] for entry in one(found, "dataset", "timings")["variableMeasured"]]
    assert names == ["memLocal", "wgSize"]


def test_two_things_of_one_name_and_version_are_told_apart_by_their_ids(found: list[Card]) -> None:
    handles = [str(card.handle) for card in found]
    assert len(set(handles)) == len(handles)
    assert len({card.iri for card in found}) == len(found)


def test_a_thing_without_name_is_called_by_its_id() -> None:
    card = turtle("ex:DA42 a hpc:Dataset .")[0]
    assert card.title == "DA42"
    assert "gives no name" in messages(card)


def test_facts_of_people_and_definitions_are_kept_with_the_first_card_that_leads_to_them(found: list[Card]) -> None:
    kept: dict[str, Any] = found[0]["foreign"]["hpc-ontology"]["nodes"]
    assert kept["http://example.org/person/PI900001"]["jobTitle"] == "Scientist"
    assert kept[NAMESPACES[1] + "wgSize"]["isDefinedBy"] == "work group"


def test_definitions_alone_are_refused() -> None:
    with pytest.raises(InvalidDocument, match="describes no AIModel") as caught:
        turtle("hpc:Thing a <http://www.w3.org/2002/07/owl#Class> .")
    assert caught.value.problems[0].file == "x.ttl"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.ttl", f"<http://a.example.net/b> a <{NAMESPACES[1]}Dataset> .", True),
        ("x", f"# comment\n@prefix h: <{NAMESPACES[2]}> . oops", True),
        ("x.ttl", "@prefix x: <http://elsewhere.example.net/> .", False),
        ("x.json", f'{{"@context": {{"hpc": "{NAMESPACES[0]}"}}}}', False),
        ("x.rdf", f'<?xml version="1.0"?><rdf:RDF xmlns:h="{NAMESPACES[0]}"/>', False),
    ],
)
def test_turtle_in_the_ontologys_terms_is_recognised(name: str, text: str, expected: bool) -> None:
    assert hpc_ontology.recognises(Document(name, text.encode())) is expected


def test_a_thing_without_id_gets_one_that_its_links_lead_to() -> None:
    found = turtle('ex:m a hpc:AIModel ; hpc:name "m" ; hpc:input [ a hpc:Dataset ; hpc:name "d" ] .')
    assert one(found, "model", "m").links == [("trainedOn", one(found, "dataset", "d").iri)]


def test_a_blank_node_where_words_are_expected_is_kept_as_it_is() -> None:
    card = turtle('ex:a a hpc:Dataset ; hpc:name "a" ; hpc:license [ hpc:text "ask first" ] .')[0]
    assert "license" not in card
    assert card["foreign"]["hpc-ontology"]["license"] == {"text": "ask first"}
