"""OpenML's descriptions become data sets, benchmarks, workflows and runs, the same from JSON and from XML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import openml
from fairmile.catalog.exchange.draft import Document, finish

SAMPLES = Path(__file__).parent / "samples" / "openml"


def cards(document: Document) -> list[Card]:
    return [finish(draft, document, "openml") for draft in openml.read(document)]


def sample(name: str) -> list[Card]:
    return cards(Document.from_file(SAMPLES / name))


def written(data: Any) -> Document:
    return Document("x.json", json.dumps(data).encode())


def data_set(**more: Any) -> Card:
    return cards(written({"data_set_description": {"name": "x", "url": "https://x.example.net/x.arff", **more}}))[0]


def messages(found: Card) -> str:
    return "\n".join(f"{entry['field']}: {entry['message']}" for entry in found.warnings)


def test_a_data_set_keeps_id_version_people_dates_and_address() -> None:
    found = sample("flowers.json")[0]
    assert (found.kind, found.title, found.version) == ("dataset", "flowers", "2")
    assert found.iri == "https://www.openml.org/d/910001"
    assert found.texts("creator") == ["R. A. Example", "B. Other"]
    assert found.texts("contributor") == ["C. Third"]
    assert found["datePublished"] == "2014-04-06T23:23:39"
    assert found["citation"] == ["https://example.net/cite", "https://example.net/paper"]
    assert ("isBasedOn", "https://example.net/flowers") in found.links
    assert found["accessRights"] == "public"


def test_the_file_of_a_data_set_has_checksum_media_type_and_number() -> None:
    entry = sample("flowers.json")[0]["distribution"][0]
    assert entry["md5"] == "9e107d9d372bb6826bd81d3542a419d6"
    assert (entry["encodingFormat"], entry["identifier"]) == ("text/x-arff", "910077")


def test_a_parquet_copy_that_is_named_twice_is_one_file() -> None:
    assert [file.name for file in sample("flowers.json")[0].files] == ["flowers.arff", "dataset_910001.pq"]


def test_target_row_id_and_ignored_columns_are_variables_with_a_role() -> None:
    roles = {entry["name"]: entry["role"] for entry in sample("flowers.json")[0]["variableMeasured"]}
    assert roles == {"kind": "target", "number": "row id", "seen_by": "ignored", "seen_on": "ignored"}


def test_public_is_no_licence_and_becomes_a_warning() -> None:
    found = sample("flowers.json")[0]
    assert found.licence is None
    assert found["licenseRaw"] == "Public"
    assert "'Public' is not an SPDX licence" in messages(found)
    assert sample("flowers.xml")[0].licence == "CC0-1.0"


def test_a_status_other_than_active_becomes_a_warning() -> None:
    assert "status: OpenML marks this data set as 'deactivated'" in messages(sample("flowers.json")[0])
    assert "status" not in messages(data_set(status="active"))


@pytest.mark.parametrize(("tags", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([], []), (None, [])])
def test_tags_and_creators_may_be_one_or_many(tags: Any, expected: list[str]) -> None:
    found = data_set(tag=tags, creator=tags)
    assert found.keywords == expected
    assert found.texts("creator") == expected


def test_ids_of_the_test_server_are_not_those_of_openml() -> None:
    assert sample("flowers.xml")[0].iri == "https://test.openml.org/d/130"


def test_xml_and_json_of_one_description_give_the_same_card() -> None:
    body = {
        "id": "7",
        "name": "x",
        "tag": ["a", "b"],
        "creator": "Ada",
        "url": "https://x.example.net/x.arff",
        "extra": "y",
    }
    elements = "".join(
        f"<oml:{key}>{each}</oml:{key}>"
        for key, value in body.items()
        for each in (value if isinstance(value, list) else [value])
    )
    xml = f'<oml:data_set_description xmlns:oml="http://openml.org/openml">{elements}</oml:data_set_description>'
    one, other = openml.read(written({"data_set_description": body})), openml.read(Document("x.xml", xml.encode()))
    assert [(draft.kind, draft.body, draft.foreign) for draft in one] == [
        (draft.kind, draft.body, draft.foreign) for draft in other
    ]


def test_features_are_variables_with_types_values_and_roles() -> None:
    found = sample("features.json")[0]
    assert found["variableMeasured"][1] == {
        "@type": "PropertyValue",
        "name": "kind",
        "position": "1",
        "dataType": "nominal",
        "valueReference": ["red", "blue"],
        "role": "target",
    }
    assert "does not name its data set" in messages(found)


def test_qualities_are_properties_and_count_the_samples() -> None:
    found = sample("qualities.json")[0]
    assert found["sampleCount"] == 150
    assert {"@type": "PropertyValue", "name": "AutoCorrelation", "value": "0.986"} in found["additionalProperty"]


def test_a_task_is_a_benchmark_of_its_data_set_with_metric_and_procedure() -> None:
    found = sample("task.xml")[0]
    assert (found.kind, found.iri) == ("benchmark", "https://www.openml.org/t/64")
    assert found["matchSpec"] == {
        "task": "Supervised Classification",
        "target": "kind",
        "metric": "predictive_accuracy",
        "datasets": ["https://www.openml.org/d/910001"],
        "estimationProcedure": {
            "id": "14",
            "type": "crossvalidation",
            "data_splits_url": "https://openml.org/api_splits/get/64/splits.arff",
            "parameters": {"number_repeats": "10"},
        },
    }
    assert found.links == [("about", "https://www.openml.org/d/910001")]


def test_a_flow_is_a_workflow_with_parameters_and_a_card_for_each_component() -> None:
    flow, component = sample("flow.json")
    assert (flow.kind, component.kind) == ("workflow", "workflow")
    assert flow["softwareRequirements"] == ["sklearn==0.24.1", "numpy>=1.6.1"]
    assert flow["input"][0] == {
        "@type": "FormalParameter",
        "name": "memory",
        "dataType": "None",
        "description": "cache",
        "defaultValue": "null",
    }
    assert ("hasPart", component.iri) in flow.links
    assert flow["programmingLanguage"] == "Python"
    assert flow["distribution"][0]["md5"] == "9e107d9d372bb6826bd81d3542a419d6"


def test_a_run_names_flow_task_data_parameters_and_results() -> None:
    found = sample("run.xml")[0]
    assert (found.kind, found.title) == ("run", "OpenML run 930001")
    assert ("instrument", "https://www.openml.org/f/920001") in found.links
    assert ("object", "https://www.openml.org/d/910001") in found.links
    assert ("object", "https://www.openml.org/t/64") in found.links
    assert found["hyperparameters"] == {"920002.n_estimators": "250"}
    assert found["evaluationResults"][1]["propertyID"] == "predictive_accuracy"
    assert found["evaluationResults"][1]["value"] == 0.953
    assert found["actionStatus"] == "CompletedActionStatus"


def test_a_run_with_an_error_message_failed() -> None:
    found = cards(written({"run": {"run_id": "1", "flow_id": "2", "error_message": "out of memory"}}))[0]
    assert (found["actionStatus"], found["error"]) == ("FailedActionStatus", ["out of memory"])


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"data_set_description": []}, "data_set_description"),
        ({"data_set_description": {"name": ""}}, "data_set_description.name"),
        ({"data_set_description": {"name": "x", "creator": [{}]}}, "data_set_description.creator[0]"),
        ({"data_features": {"feature": [{"index": "0"}]}}, "data_features.feature[0].name"),
        ({"data_qualities": {"quality": "x"}}, "data_qualities.quality"),
        ({"task": {"task_type": "x"}}, "task.task_id"),
        ({"flow": {"name": "x", "component": {"identifier": "a"}}}, "flow.component.flow"),
        ({"run": {"run_id": "1"}}, "run.flow_id"),
        ({"something": {}}, ""),
    ],
)
def test_an_invalid_description_is_refused_with_file_and_field(data: Any, field: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        openml.read(written(data))
    assert (caught.value.problems[0].file, caught.value.problems[0].field) == ("x.json", field)


def test_components_nested_without_end_are_refused() -> None:
    flow: dict[str, Any] = {"name": "x"}
    for _ in range(30):
        flow = {"name": "x", "component": {"flow": flow}}
    with pytest.raises(InvalidDocument, match="nested more than 20 deep"):
        openml.read(written({"flow": flow}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"run": {"a": 1}}',
        b'{"flow": []}',
        b'{"@context": "x", "task": {"task_id": 1}}',
        b"<html><body/></html>",
        b"[]",
        b'{"name": "x"}',
        b"\xff",
    ],
)
def test_other_documents_are_not_recognised(data: bytes) -> None:
    assert not openml.recognises(Document("x", data))
