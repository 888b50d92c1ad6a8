"""HPCFAIR listings become cards of the kind that their keys say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import hpcfair
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.exchange.hpc_ontology_graph import NAMESPACES

SAMPLES = Path(__file__).parent / "samples" / "hpcfair"


def cards(document: Document) -> list[Card]:
    return [finish(draft, document, "hpcfair") for draft in hpcfair.read(document)]


def sample(name: str) -> list[Card]:
    return cards(Document.from_file(SAMPLES / name))


def listing(**more: Any) -> Document:
    # `hpc__tags` stands for `hpc:tags`, for a colon is no part of a keyword.
    body = {"@title": "Thing", **{key.replace("__", ":"): value for key, value in more.items()}}
    return Document("thing.jsonld", json.dumps(body).encode())


def card(**more: Any) -> Card:
    return cards(listing(**more))[0]


def messages(found: Card) -> str:
    return "\n".join(f"{entry['field']}: {entry['message']}" for entry in found.warnings)


def test_a_data_set_keeps_title_description_address_and_submitter() -> None:
    found = sample("dataset.jsonld")[0]
    assert (found.kind, found.title, found["url"]) == ("dataset", "Kernel timings", "https://data.example.net/kernels")
    assert found["description"].startswith("Run times")
    assert found["submitter"] == found["sharedBy"] == ["Ada Example"]


def test_an_example_org_id_is_kept_as_same_as() -> None:
    found = sample("dataset.jsonld")[0]
    assert found.iri.startswith("urn:uuid:")
    assert found["sameAs"] == ["http://example.org/DA000901"]


def test_tags_give_version_licence_task_and_keywords_and_the_rest_is_kept() -> None:
    found = sample("dataset.jsonld")[0]
    assert (found.version, found.licence, found.tasks) == ("0.1", "MIT", ["regression"])
    assert found.keywords == ["Performance", "GPU"]
    assert found["tags"] == {"year": 2021}


@pytest.mark.parametrize(
    "tags",
    [
        {"Version": "2", "License": "MIT", "note": "x"},
        [{"Version": "2"}, {"License": "MIT"}, {"note": "x"}],
        [{"Version": 2, "License": "MIT"}, {"note": "x"}],
    ],
)
def test_tags_may_be_a_mapping_or_a_list_of_pairs(tags: Any) -> None:
    found = card(hpc__tags=tags)
    assert (found.version, found.licence, found["tags"]) == ("2", "MIT", {"note": "x"})


def test_tags_that_are_words_are_keywords() -> None:
    assert card(hpc__tags=["a", "b"]).keywords == ["a", "b"]
    assert card(hpc__tags="a, b").keywords == ["a", "b"]


def test_the_data_set_among_the_tags_of_a_model_is_what_it_was_trained_on() -> None:
    found = card(hpc__tags={"dataset": "MNIST"}, hpc__modelFormat="onnx")
    assert found.links == [("trainedOn", "MNIST")]
    assert card(hpc__tags={"dataset": "MNIST"})["tags"] == {"dataset": "MNIST"}


def test_supporting_files_are_parts_and_scripts_prepare_the_data() -> None:
    parts = sample("dataset.jsonld")[0]["hasPart"]
    assert [(part["@type"], part["name"], part.get("role")) for part in parts] == [
        ("SoftwareSourceCode", "clean.py", "preprocess"),
        ("MediaObject", "raw.csv", None),
    ]
    assert parts[1]["@id"] == "https://data.example.net/kernels/raw.csv"


def test_supporting_files_may_be_described_or_listed_by_name() -> None:
    described = card(hpc__associatedFiles=[{"name": "a.py", "url": "https://x.example.net/a.py", "lines": 7}])
    assert described["hasPart"][0]["@id"] == "https://x.example.net/a.py"
    assert described["foreign"]["hpcfair"]["associatedFiles"][0]["lines"] == 7
    listed = card(hpc__associatedFiles={"clean": "https://x.example.net/b.py"})
    assert listed["hasPart"][0] == {
        "@type": "SoftwareSourceCode",
        "@id": "https://x.example.net/b.py",
        "url": "https://x.example.net/b.py",
        "name": "clean",
        "role": "preprocess",
    }


def test_bibtex_becomes_an_article_and_is_kept() -> None:
    article = sample("dataset.jsonld")[0]["citation"][0]
    assert article["name"] == "Timing kernels"
    assert article["identifier"] == "https://doi.org/10.5555/kern.21"
    assert article["text"].startswith("@article{ada2021")
    assert card(hpc__citation="Example (2021)")["citation"] == ["Example (2021)"]


def test_a_model_keeps_format_category_framework_and_hyperparameters() -> None:
    found = sample("model.jsonld")[0]
    assert found.kind == "model"
    assert found["modelFormat"] == ["application/x-onnx", "application/x-pickle"]
    assert found["modelCategory"] == ["Random forest"]
    assert found["machineLearningFramework"] == ["scikit-learn", "ONNX Runtime"]
    assert found["hyperparameters"] == {"trees": 100, "depth": 8}
    assert found["supportsAccelerator"] is True
    assert "executes code" in messages(found)


def test_false_written_as_text_becomes_false_with_a_warning() -> None:
    found = sample("model.jsonld")[0]
    assert found["isTunable"] is False
    assert "h:isTunable: the text 'false' is read as false" in messages(found)


def test_a_truth_that_is_none_is_kept_with_a_warning() -> None:
    found = card(hpc__isTunable="perhaps")
    assert "isTunable" not in found
    assert found["foreign"]["hpcfair"]["hpc:isTunable"] == "perhaps"
    assert "neither true nor false" in messages(found)


def test_metrics_in_one_text_are_split_and_metrics_with_values_are_results() -> None:
    assert sample("model.jsonld")[0]["evaluationMetrics"] == ["throughput", "latency"]
    found = sample("workflow.jsonld")[0]
    assert found["evaluationMetrics"] == ["accuracy", "speedup"]
    assert found["evaluationResults"] == [{"@type": "PropertyValue", "name": "accuracy", "value": 0.93}]


def test_links_lead_to_data_sets_experiments_and_workflows() -> None:
    links = sample("model.jsonld")[0].links
    assert [target for relation, target in links if relation == "trainedOn"] == [
        "Kernel timings",
        "http://example.org/DA000901",
        "More kernels",
    ]
    assert ("instrument", "kernel-workflow") in links
    assert ("isPartOf", "kernel-experiment") in sample("dataset.jsonld")[0].links


def test_a_workflow_takes_data_set_and_model_as_its_objects() -> None:
    found = sample("workflow.jsonld")[0]
    assert found.kind == "workflow"
    assert [target for relation, target in found.links if relation == "object"] == [
        "Kernel timings",
        "Kernel predictor",
    ]


def test_required_software_becomes_an_environment_that_the_listing_links_to() -> None:
    workflow, environment = sample("workflow.jsonld")[:2]
    assert environment.kind == "environment"
    assert environment["softwareRequirements"] == ["python 3.8", "scikit-learn"]
    assert environment["environmentVariables"] == {"OMP_NUM_THREADS": "8", "pinning": "close"}
    assert ("softwareRequirements", environment.iri) in workflow.links


def test_a_listing_of_software_alone_is_an_environment_itself() -> None:
    found = [each for each in sample("workflow.jsonld") if each.title == "Node set-up"]
    assert [each.kind for each in found] == ["environment"]
    assert found[0]["softwareRequirements"] == ["CUDA 11"]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"hpc__submitter": "x"}, "dataset"),
        ({"hpc__modelType": "x"}, "model"),
        ({"hpc__hyperParams": {"a": 1}}, "model"),
        ({"hpc__machineLearningFramework": "x"}, "model"),
        ({"hpc__associatedModel": "x"}, "workflow"),
        ({"hpc__associatedModel": "x", "hpc__modelFormat": "h5"}, "model"),
        ({"hpc__reqHardware": "x"}, "environment"),
        ({"@url": "https://x.example.net/run.sh"}, "program"),
        ({"@type": "hpc:AIModel"}, "model"),
        ({"@type": NAMESPACES[1] + "Cluster"}, "system"),
    ],
)
def test_the_keys_decide_the_kind(more: dict[str, Any], kind: str) -> None:
    assert card(**more).kind == kind


@pytest.mark.parametrize("prefix", ["hpc:", "", *NAMESPACES])
def test_terms_are_understood_plain_prefixed_and_in_all_four_name_spaces(prefix: str) -> None:
    body = {"@title": "Thing", f"{prefix}modelFormat": "onnx", f"{prefix}submitter": "Ada"}
    document = Document("x.jsonld", json.dumps(body).encode())
    assert hpcfair.recognises(document)
    found = cards(document)[0]
    assert (found["modelFormat"], found["submitter"]) == (["application/x-onnx"], ["Ada"])


def test_of_two_spellings_of_a_term_the_first_counts_and_the_second_is_kept() -> None:
    found = card(description="first", **{"@description": "second"})
    assert found["description"] == "first"
    assert found["foreign"]["hpcfair"]["@description"] == "second"


def test_lists_with_keys_as_the_paper_prints_them_are_read_with_a_warning() -> None:
    found = sample("as_printed.json")[0]
    assert (found.version, found.licence) == ("0.1", "CC-BY-4.0")
    assert found["tags"] == {"words": ["a", "b: c"]}
    assert "were read as mappings" in messages(found)


def test_any_other_broken_json_is_refused_with_its_line() -> None:
    document = Document("x.json", b'{"@title": "x",\n "hpc:tags": ["a", "b" : 1],\n}')
    assert hpcfair.recognises(document)
    with pytest.raises(InvalidDocument) as caught:
        hpcfair.read(document)
    assert caught.value.problems[0].file == "x.json"
    assert caught.value.problems[0].line is not None


def test_listings_in_a_graph_are_one_card_each_and_the_context_is_kept() -> None:
    graph = {
        "@context": {"h": NAMESPACES[0]},
        "@graph": [{"h:title": "a", "h:tags": "x"}, {"h:title": "b", "h:tags": "y"}],
    }
    found = cards(Document("x.jsonld", json.dumps(graph).encode()))
    assert [each.title for each in found] == ["a", "b"]
    assert [each.keywords for each in found] == [["x"], ["y"]]
    assert found[0]["foreign"]["hpcfair"]["@context"] == {"h": NAMESPACES[0]}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"@title": ["a"]}, "title"),
        ({"hpc__tags": [[1]]}, "tags"),
        ({"hpc__metrics": [["a"]]}, "metrics"),
        ({"hpc__associatedFiles": [[1]]}, "associatedFiles[0]"),
        ({"hpc__associatedExpt": [{"x": {}}]}, "associatedExpt[0]"),
        ({"hpc__reqSoftwares": [["x"]]}, "reqSoftwares"),
        ({"hpc__modelFormat": {"a": 1}}, "modelFormat"),
    ],
)
def test_an_invalid_listing_is_refused_with_file_and_field(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        hpcfair.read(listing(**more))
    assert (caught.value.problems[0].file, caught.value.problems[0].field) == ("thing.jsonld", field)


@pytest.mark.parametrize(
    "data",
    [
        {"@context": "https://schema.org", "@type": "Dataset", "hpc:submitter": "x", "distribution": []},
        {"@context": "https://w3id.org/fairmile/card/1.0/context", "isTunable": True, "modelFormat": "x"},
        {"@graph": [{"@id": "ro-crate-metadata.json"}, {"@id": "./", "hpc:submitter": "x"}]},
        {"name": "x", "description": "hpc"},
        ["hpc:tags"],
        {"modelFormat": "x"},
    ],
)
def test_other_documents_are_not_recognised(data: Any) -> None:
    assert not hpcfair.recognises(Document("x.jsonld", json.dumps(data).encode()))
