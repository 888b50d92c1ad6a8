"""RO-Crate in and out: crates of every version and kind are read, and the validator accepts what we write."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import UNKNOWN, VALUES, add_unknown_key, anything, replace_a_value, values_under

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.exchange import rocrate
from fairmile.catalog.exchange.draft import Document, Draft, finish
from fairmile.catalog.kinds import KINDS
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples" / "rocrate"
PATHS = sorted(SAMPLES.iterdir())
SHA256 = "8bf2edfa0f7d4acf4ac17585f05ab8f9ab8ad05f6b0dde24f7e555d5a2704c68"


def document(body: Any, name: str = "ro-crate-metadata.json") -> Document:
    return Document(name, json.dumps(body).encode())


def sample(name: str) -> list[Draft]:
    return rocrate.read(Document.from_file(SAMPLES / name))


def cards_of(source: Document) -> list[Card]:
    return [finish(draft, source, "rocrate") for draft in rocrate.read(source)]


def named(drafts: list[Draft], name: str) -> Draft:
    [found] = [draft for draft in drafts if draft.body.get("name") == name]
    return found


def a_crate(*entities: Any, **root: Any) -> dict[str, Any]:
    descriptor = {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
    }
    head = {"@id": "./", "@type": "Dataset", "name": "crate"}
    return {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": [descriptor, {**head, **root}, *entities]}


def messages(draft: Draft, field: str) -> str:
    return "; ".join(entry["message"] for entry in draft.warnings if entry["field"] == field)


# Recognising


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_sample_is_recognised_and_gives_cards_that_pass_their_check(path: Path) -> None:
    source = Document.from_file(path)
    assert rocrate.recognises(source)
    for card in cards_of(source):
        assert [problem for problem in check_body(card.body) if problem.severity == "error"] == []
        assert json.loads(card.to_json()) == card.body


def test_a_metadata_file_is_recognised_by_its_name_even_when_broken() -> None:
    assert rocrate.recognises(Document("some/where/ro-crate-metadata.json", b"{"))
    assert rocrate.recognises(Document("ro-crate-metadata.jsonld", b"{"))


@pytest.mark.parametrize("body", [{"@graph": []}, {"@graph": [{"@id": "x"}]}, {"@type": "Dataset"}, [], None, 1])
def test_what_is_no_crate_is_not_recognised(body: Any) -> None:
    assert not rocrate.recognises(document(body, "other.json"))


@pytest.mark.parametrize("body", [{"@graph": []}, {"@graph": {}}, {"@graph": ["x"]}, {}, [], "x", None])
def test_a_crate_without_a_root_is_refused(body: Any) -> None:
    with pytest.raises(InvalidDocument, match=r"ro-crate-metadata\.json"):
        rocrate.read(document(body))


# Reading


def test_a_plain_crate_becomes_a_data_set_with_its_files() -> None:
    [draft] = sample("v1_0_plain.json")
    body = draft.body
    assert (draft.kind, body["name"], body["datePublished"]) == ("dataset", "Water levels", "2019")
    assert body["identifier"] == "https://doi.org/10.4225/59/59672c09f4a4b"
    assert "https://w3id.org/ro/crate/1.0" in body["conformsTo"]
    names = [entry["name"] for entry in body["distribution"]]
    assert names == ["levels/", "notes on levels.txt", "levels/north.csv"]
    folder, notes, table = body["distribution"]
    assert (folder["@type"], folder["includes"]) == ("FileSet", "levels/**")
    assert (table["contentSize"], table["contentUrl"]) == ("383766 B", "levels/north.csv")
    assert table["encodingFormat"] == ["text/csv", "https://www.nationalarchives.gov.uk/PRONOM/x-fmt/18"]
    assert table["alternateName"] == ["The northern harbour"]
    assert "contentSize" not in notes
    assert "'2 pages' is not a size" in messages(draft, "distribution[1].contentSize")


def test_people_are_laid_in_with_what_describes_them() -> None:
    [draft] = sample("v1_0_plain.json")
    assert draft.body["creator"] == {
        "@id": "https://orcid.org/0000-0002-1825-0097",
        "@type": "Person",
        "name": "Josiah Carberry",
        "affiliation": {"@id": "https://ror.org/05gq02987", "@type": "Organization", "name": "Brown University"},
    }


def test_contextual_entities_that_describe_no_card_are_kept_verbatim() -> None:
    [draft] = sample("v1_0_plain.json")
    assert {entity["@id"] for entity in draft.foreign["@graph"]} == {
        "https://creativecommons.org/licenses/by/4.0/",
        "#office",
    }
    assert draft.foreign["contactPoint"] == {"@id": "#office"}
    assert draft.foreign["descriptor"]["description"] == "Written by hand"


def test_a_licence_entity_is_read_by_whatever_names_it() -> None:
    assert cards_of(Document.from_file(SAMPLES / "v1_0_plain.json"))[0].licence == "CC-BY-4.0"
    local = a_crate({"@id": "#l", "@type": "CreativeWork", "name": "MIT"}, license={"@id": "#l"})
    assert cards_of(document(local))[0].licence == "MIT"
    [draft] = sample("v1_3_profiles.json")
    assert draft.body["license"] == "Ask the bay office"


def test_a_workflow_crate_becomes_one_workflow_card() -> None:
    [draft] = sample("v1_1_workflow.json")
    body = draft.body
    assert (draft.kind, body["name"], body["version"], body["description"]) == (
        "workflow",
        "Eddy finder",
        "0.3.1",
        "Finds eddies",
    )
    assert body["programmingLanguage"]["name"] == "CWL"
    assert [each["name"] for each in body["input"]] == ["frames"]
    assert body["step"][0]["position"] == "1"
    assert body["@id"].endswith("/eddies.cwl")
    assert draft.foreign["root"] == {"name": "Crate of the eddy workflow"}
    main, picture, _ = body["distribution"]
    assert (main["name"], main["sha256"], main["contentSize"]) == ("eddies.cwl", SHA256, "1200 B")
    assert "sha256" not in body and "step" not in main
    assert picture["about"] == body["@id"]


def test_entities_that_point_to_each_other_do_not_go_round_for_ever() -> None:
    [draft] = sample("v1_1_workflow.json")
    ann = draft.body["creator"][0]
    assert ann["knows"]["name"] == "Bob"
    assert ann["knows"]["knows"] == {"@id": ann["@id"]}


def test_each_action_becomes_a_run_with_all_it_says() -> None:
    drafts = sample("v1_1_process_run.json")
    assert [draft.kind for draft in drafts] == ["dataset", "program", "run", "run"]
    run = named(drafts, "Convert to sepia").body
    assert run["instrument"] == ["https://imagemagick.example/"]
    before, after = (entry["@id"] for entry in drafts[0].body["distribution"])
    assert run["object"][0] == before
    assert run["object"][1]["value"] == "80%"
    assert run["result"] == [after]
    assert run["agent"]["name"] == "Josiah Carberry"
    assert run["environment"][0]["name"] == "OMP_NUM_THREADS"
    assert run["resourceUsage"][0]["unitText"] == "s"
    assert run["containerImage"]["registry"] == "docker.io"
    assert run["startTime"] == "2023-01-01T10:00:00+00:00"
    assert run["actionStatus"] == "http://schema.org/CompletedActionStatus"


def test_links_between_the_cards_of_a_crate_resolve() -> None:
    for path in PATHS:
        cards = cards_of(Document.from_file(path))
        known = {card.iri for card in cards}
        known |= {entry["@id"] for card in cards for entry in card.get("distribution", [])}
        for card in cards:
            targets = [target for relation, target in card.links if relation in ("instrument", "result")]
            assert set(targets) <= known


def test_an_instrument_becomes_a_program_and_its_software_version_the_version() -> None:
    program = named(sample("v1_1_process_run.json"), "ImageMagick")
    assert (program.kind, program.body["version"]) == ("program", "6.9.7-4")


def test_a_run_without_a_name_is_called_after_its_tool() -> None:
    run = named(sample("v1_1_process_run.json"), "run of ImageMagick")
    assert run.body["error"] == "no such file"
    assert messages(run, "name")


def test_dangling_and_repeated_ids_become_warnings() -> None:
    drafts = sample("v1_1_process_run.json")
    root = drafts[0]
    assert "'#nowhere', which the crate does not describe" in messages(root, "mentions")
    assert "'pics/missing.jpg'" in messages(named(drafts, "run of ImageMagick"), "object")
    assert "a second time" in messages(root, "@graph[13]")
    assert "not an entity" in messages(root, "@graph[14]")
    assert {"@id": "pics/after.jpg", "@type": "File", "name": "described twice"} in root.foreign["@graph"]
    assert "not an entity" in root.foreign["@graph"]


def test_an_address_on_the_web_need_not_be_described() -> None:
    [draft] = rocrate.read(document(a_crate(isBasedOn={"@id": "https://data.example/"})))
    assert draft.body["isBasedOn"] == "https://data.example/"
    assert not messages(draft, "isBasedOn")


def test_checksums_are_read_under_each_of_their_addresses() -> None:
    for address in (
        "http://schema.org/sha256",
        "https://schema.org/sha256",
        "https://w3id.org/ro/terms/workflow-run#sha256",
    ):
        crate = a_crate({"@id": "a", "@type": "File", "sum": SHA256}, hasPart={"@id": "a"})
        crate["@context"] = ["https://w3id.org/ro/crate/1.1/context", {"sum": address}]
        [draft] = rocrate.read(document(crate))
        assert draft.body["distribution"][0]["sha256"] == SHA256


def test_traps_in_files_become_warnings() -> None:
    root = sample("v1_1_process_run.json")[0]
    assert "not a sha256" in messages(root, "distribution[0].sha256")
    assert "read as hex" in messages(root, "distribution[1].md5")
    [model] = sample("v1_2_detached_model.json")
    assert "read as 107455271382548 B" in messages(model, "distribution[0].contentSize")
    assert "not a sha256" in messages(model, "distribution[0].sha256")


def test_a_provenance_run_crate_gives_the_workflow_the_tools_and_every_run() -> None:
    drafts = sample("v1_1_provenance_run.json")
    assert [(draft.kind, draft.body["name"]) for draft in drafts] == [
        ("workflow", "count"),
        ("program", "sort"),
        ("run", "whole"),
        ("run", "one step"),
    ]
    workflow, tool, whole, one = drafts
    assert whole.body["instrument"] == [workflow.body["@id"]]
    assert one.body["instrument"] == [tool.body["@id"]]
    assert workflow.body["hasPart"] == [tool.body["@id"]]
    assert {"#control", "#organize", "#engine"} <= {entity["@id"] for entity in workflow.foreign["@graph"]}
    assert "'loose.txt' is described, but no part of the crate" in messages(workflow, "distribution")
    assert whole.body["mentions" if "mentions" in whole.body else "result"] == [
        entry["@id"] for entry in workflow.body["distribution"] if entry["name"] == "out.txt"
    ]


def test_a_crate_that_says_it_is_a_model_becomes_one() -> None:
    [draft] = sample("v1_2_detached_model.json")
    assert (draft.kind, draft.body["mlTask"], draft.body["version"]) == ("model", "segmentation", "3")
    assert draft.body["@id"] == "https://models.example/eddy/"
    assert draft.body["scienceDomain"] == "oceanography"
    assert draft.body["publisher"]["name"] == "Brown University"
    assert "usageCount" not in draft.body
    assert draft.foreign["fx:usageCount"] == 1000000


def test_ids_are_absolute_and_the_same_for_the_same_document() -> None:
    [first], [second] = sample("v1_0_plain.json"), sample("v1_0_plain.json")
    assert first.body == second.body
    assert first.body["@id"].startswith("arcp://ni,sha-256;")
    assert [entry["@id"].removeprefix(first.body["@id"]) for entry in first.body["distribution"]] == [
        "levels/",
        "notes%20on%20levels.txt",
        "levels/north.csv",
    ]


def test_a_web_of_references_does_not_explode() -> None:
    layers = [
        {"@id": f"#n{layer}", "@type": "Thing", "a": {"@id": f"#n{layer + 1}"}, "b": {"@id": f"#n{layer + 1}"}}
        for layer in range(60)
    ]
    crate = a_crate(*layers, {"@id": "#n60", "@type": "Thing"}, creator=[{"@id": "#n0"}] * 50)
    [draft] = rocrate.read(document(crate))
    assert len(json.dumps(draft.body)) + len(json.dumps(draft.foreign)) < 5_000_000


# Writing


def round_body(value: Any) -> Any:
    """Return the value without the difference between one and a list of one, which a crate does not have."""
    if isinstance(value, list):
        return round_body(value[0]) if len(value) == 1 else [round_body(each) for each in value]
    return {key: round_body(each) for key, each in value.items()} if isinstance(value, dict) else value


PERSON = {"@type": "Person", "@id": "https://orcid.org/0000-0002-1825-0097", "name": "Josiah Carberry"}
FILE = {
    "@type": "FileObject",
    "@id": "main.csv",
    "name": "main.csv",
    "contentUrl": "https://tides.example/main.csv",
    "contentSize": "120 B",
    "encodingFormat": "text/csv",
    "sha256": SHA256,
}
BODIES: dict[str, dict[str, Any]] = {
    "dataset": {
        "license": "https://spdx.org/licenses/CC-BY-4.0",
        "description": "Water levels.",
        "creator": [PERSON, "Ann", {"@type": "Organization", "name": "Harbour office", "telephone": "7"}],
        "publisher": {
            "@type": "Organization",
            "@id": "https://ror.org/05gq02987",
            "name": "Brown",
            "url": "https://b.example",
        },
        "datePublished": "2019-05-01",
        "keywords": ["water", "harbour"],
        "scienceDomain": "oceanography",
        "wasDerivedFrom": ["urn:fairmile:dataset:raw"],
        "variableMeasured": [{"@type": "PropertyValue", "name": "level", "unitText": "m"}],
        "rai:dataBiases": ["small", "wet"],
        "odd key": {"no": ["vocabulary", None]},
        "warnings": [{"field": "name", "message": "odd"}],
        "distribution": [
            FILE,
            {"@type": "FileObject", "@id": "b", "name": "b", "contentUrl": "data/b c.csv", "odd": [[1]]},
            {"@type": "FileObject", "@id": "c", "name": "the same address", "contentUrl": FILE["contentUrl"]},
            {"@type": "FileObject", "@id": "d", "contentUrl": "https://tides.example/nothing-more.csv"},
            {"@type": "FileObject", "@id": "e", "name": "e", "contentUrl": "s3://tides/e.csv", "contentSize": "6.3 GB"},
            {
                "@type": "FileSet",
                "@id": "set",
                "name": "set",
                "includes": ["*.csv"],
                "containedIn": {"@id": "main.csv"},
            },
        ],
        "recordSet": [{"@type": "RecordSet", "@id": "rows", "field": []}],
    },
    "model": {
        "license": "own terms",
        "mlTask": ["regression", "counting"],
        "trainedOn": ["urn:fairmile:dataset:tides"],
        "hyperparameters": {"batch": 4, "layers": [[1, 2], [3]]},
        "signature": {"inputs": [{"name": "x", "shape": [None, 3]}]},
        "isTunable": True,
        "distribution": [FILE],
    },
    "program": {
        "license": ["https://spdx.org/licenses/MIT", "https://spdx.org/licenses/Apache-2.0"],
        "codeRepository": "https://code.example/x",
        "programmingLanguage": "Python",
        "softwareRequirements": ["pkg:pypi/numpy@1", "urn:fairmile:environment:e"],
        "developmentStatus": "active",
    },
    "environment": {
        "softwareRequirements": ["pkg:pypi/tensorflow@2.10.0"],
        "containerImage": {"@type": "SIFImage", "sha256": SHA256, "registry": "oras://example", "tag": "1"},
        "environmentVariables": {"OMP_NUM_THREADS": "4"},
        "operatingSystem": "Rocky Linux 9.2",
    },
    "workflow": {
        "programmingLanguage": "https://w3id.org/cwl/v1.2/",
        "input": [{"@type": "FormalParameter", "@id": "in", "name": "data", "encodingFormat": "text/csv"}],
        "output": [{"@type": "FormalParameter", "name": "model"}],
        "step": [{"@type": "HowToStep", "position": 1, "name": "build", "itemListElement": [{"name": "untyped"}]}],
        "hasPart": ["urn:fairmile:program:x"],
    },
    "run": {
        "instrument": ["urn:fairmile:program:x"],
        "object": ["urn:fairmile:dataset:tides", {"@type": "PropertyValue", "name": "tone", "value": "80%"}],
        "result": ["urn:fairmile:model:m"],
        "agent": PERSON,
        "environment": [{"@type": "PropertyValue", "name": "OMP_NUM_THREADS", "value": "4"}],
        "startTime": "2026-11-01T00:00:00Z",
        "endTime": "2026-11-01T01:00:00Z",
        "actionStatus": "schema:CompletedActionStatus",
        "evaluatedMLModel": "urn:fairmile:model:m",
        "evaluationResults": [{"@type": "PropertyValue", "propertyID": "mae", "value": 0.12}],
        "runsOn": "urn:fairmile:system:dgx",
        "seed": 42,
    },
    "system": {"cpuCorePerNode": 64, "gpuModel": "A100", "modules": {"cuda": ["12.1"]}, "interconnect": "InfiniBand"},
    "binary": {
        "license": "https://spdx.org/licenses/MIT",
        "operatingSystem": "Linux",
        "distribution": [
            {
                "@type": "FileObject",
                "@id": "solver",
                "name": "solver",
                "contentUrl": "https://example.net/solver",
                "contentSize": "64 B",
                "encodingFormat": "application/x-executable",
                "sha256": "5" * 64,
            }
        ],
    },
    "benchmark": {"license": "MIT", "matchSpec": {"models": ["m"], "metric": "mae"}, "command": "run me"},
}


def a_card(kind: str, **more: Any) -> Card:
    types = KINDS[kind].types
    head = {
        "@context": "https://w3id.org/fairmile/card/1.0/context",
        "conformsTo": ["https://w3id.org/fairmile/card/1.0"],
        "@id": f"urn:fairmile:{kind}:own",
        "@type": list(types) if len(types) > 1 else types[0],
        "name": f"A {kind}",
        "version": "1.0",
    }
    return Card({**head, **BODIES[kind], **more})


def written(card: Card, folder: Path) -> Path:
    for name, text in rocrate.write(card).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_every_kind_can_be_written() -> None:
    assert set(rocrate.KINDS) == set(KINDS) == set(BODIES)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", BODIES)
def test_the_validator_accepts_a_crate_of_every_kind(
    kind: str, tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]
) -> None:
    assert offline_rocrate_validator(written(a_card(kind), tmp_path), "ro-crate-1.1") == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "instrument", ["urn:fairmile:program:x", "train.py", {"@type": "SoftwareApplication", "name": "x"}]
)
@pytest.mark.thorough
def test_the_validator_accepts_a_run_as_process_run_crate(
    instrument: Any, tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]
) -> None:
    folder = written(a_card("run", instrument=instrument), tmp_path)
    assert offline_rocrate_validator(folder, "process-run-crate-0.5") == []


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_the_validator_accepts_the_export_of_every_imported_sample(
    tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]
) -> None:
    for path in PATHS:
        for number, card in enumerate(cards_of(Document.from_file(path))):
            folder = tmp_path / path.stem / str(number)
            folder.mkdir(parents=True)
            profile = "process-run-crate-0.5" if card.kind == "run" else "ro-crate-1.1"
            assert offline_rocrate_validator(written(card, folder), profile) == [], (path.name, card)


@pytest.mark.filterwarnings("ignore")
def test_the_validator_refuses_what_is_wrong(
    tmp_path: Path, offline_rocrate_validator: Callable[..., list[str]]
) -> None:
    body = json.loads(rocrate.write(a_card("dataset"))["ro-crate-metadata.json"])
    # RO-Crate 1.1 does not define sha256; the context of the export must.
    body["@context"][1].pop("sha256")
    del body["@graph"][1]["license"]
    (tmp_path / "ro-crate-metadata.json").write_text(json.dumps(body))
    found = " ".join(offline_rocrate_validator(tmp_path, "ro-crate-1.1"))
    assert "sha256" in found and "license" in found


@pytest.mark.parametrize("kind", BODIES)
def test_reading_an_export_gives_the_card_again(kind: str) -> None:
    card = a_card(kind)
    [again] = cards_of(Document("ro-crate-metadata.json", rocrate.write(card)["ro-crate-metadata.json"].encode()))
    own = {"conformsTo", "sourceDocument", "contentDigest", "warnings", "licenseRaw", "license"}
    assert round_body({key: value for key, value in again.items() if key not in own}) == round_body(
        {key: value for key, value in card.items() if key not in own}
    )
    assert [text.removeprefix("https://spdx.org/licenses/") for text in again.texts("license")] == [
        text.removeprefix("https://spdx.org/licenses/") for text in card.texts("license")
    ]
    assert set(card.texts("conformsTo")) <= set(again.texts("conformsTo"))
    assert all(warning in again.warnings for warning in card.warnings)


def test_an_edit_of_the_wrapping_root_is_not_lost() -> None:
    body = json.loads(rocrate.write(a_card("dataset"))["ro-crate-metadata.json"])
    body["@graph"][1] |= {"funder": {"@id": "https://ror.org/05gq02987"}, "description": "Changed by hand."}
    [draft] = rocrate.read(document(body))
    assert draft.body["funder"]["name"] == "Brown"
    assert draft.body["description"] == "Water levels."
    assert draft.foreign["root"]["description"] == "Changed by hand."


def test_a_file_is_a_web_entity_and_one_without_address_is_local() -> None:
    graph = json.loads(rocrate.write(a_card("dataset"))["ro-crate-metadata.json"])["@graph"]
    files = [entity for entity in graph if "File" in as_list(entity["@type"])]
    assert [entity["@id"].startswith(("https://", "s3://", "#")) for entity in files] == [True] * 5
    assert files[0]["@id"] == FILE["contentUrl"]
    assert files[0]["contentSize"] == "120"
    assert files[0]["sha256"] == SHA256


def test_no_licence_is_invented() -> None:
    root = json.loads(rocrate.write(a_card("run"))["ro-crate-metadata.json"])["@graph"][1]
    assert root["license"] == "No licence is stated."


def test_a_run_without_an_instrument_does_not_claim_to_be_a_process_run_crate() -> None:
    card = a_card("run")
    del card.body["instrument"]
    root = json.loads(rocrate.write(card)["ro-crate-metadata.json"])["@graph"][1]
    assert "conformsTo" not in root


@pytest.mark.thorough
@pytest.mark.usefixtures("offline_rocrate_validator")
def test_the_demo_tells_a_valid_crate_from_a_broken_one(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "demo" / "validate_export.py"
    folder = written(a_card("run"), tmp_path)
    metadata = folder / "ro-crate-metadata.json"
    for code in (0, 1):
        done = subprocess.run([sys.executable, script, "rocrate", folder], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert done.stdout.startswith("roc-validator ") and done.stdout.count("\n") == 1
        metadata.write_text(metadata.read_text().replace('"instrument"', '"agent"', 1))


# Anything at all

IDS = st.sampled_from(["./", "#", "#ann", "", ".", "_:b", "ro-crate-metadata.json", "https://x.example/", "a b"])
OTHERS = (
    VALUES
    | st.builds(lambda each: {"@id": each}, IDS)
    | st.sampled_from(
        [[], {}, "", " ", 0, True, [[]], [{}], {"@id": 1}, {"@value": {}}, {"@type": "File"}, {"name": None}]
    )
)


@anything
@given(data=st.data())
def test_an_unknown_key_is_never_lost_wherever_it_stands(data: st.DataObject) -> None:
    body = json.loads(data.draw(st.sampled_from(PATHS)).read_text())
    place, value = add_unknown_key(data, body)
    cards = cards_of(document(body))
    assert any(found == value for card in cards for found in values_under(card.body, UNKNOWN)), place


@pytest.mark.thorough
@anything
@given(data=st.data())
def test_a_value_of_another_type_gives_cards_or_a_refusal(data: st.DataObject) -> None:
    body = json.loads(data.draw(st.sampled_from(PATHS)).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        replace_a_value(data, body, OTHERS)
    before = copy.deepcopy(body)
    source = document(body)
    rocrate.recognises(source)
    try:
        cards = cards_of(source)
    except InvalidDocument:
        return
    assert body == before
    for card in cards:
        assert [problem for problem in check_body(card.body) if problem.severity == "error"] == []
        assert card.digest and card.handle
        again = cards_of(Document("ro-crate-metadata.json", rocrate.write(card)["ro-crate-metadata.json"].encode()))
        assert again[0].title == card.title
        assert again[0].kind == card.kind


@pytest.mark.thorough
@anything
@given(data=st.data())
def test_whatever_a_card_holds_is_written_and_read_again(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(BODIES)))
    body = data.draw(st.dictionaries(st.sampled_from(sorted(set().union(*BODIES.values()))), OTHERS, max_size=5))
    source = Document("x.json", rocrate.write(a_card(kind, **body))["ro-crate-metadata.json"].encode())
    assert rocrate.recognises(source)
    assert cards_of(source)[0].kind == kind
