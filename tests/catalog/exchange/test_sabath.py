"""SABATH models and data sets become cards whose links are the model × data set edges."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import sabath
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples" / "sabath"
SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
FILES = SHARED / "predecessors" / "sabath"


def cards(document: Document) -> list[Card]:
    return [finish(draft, document, "sabath") for draft in sabath.read(document)]


def written(data: Any, name: str = "thing.json") -> Document:
    return Document(name, json.dumps(data).encode())


def of_kind(found: list[Card], kind: str) -> list[Card]:
    return [card for card in found if card.kind == kind]


def messages(card: Card) -> str:
    return "\n".join(f"{entry['field']}: {entry['message']}" for entry in card.warnings)


@pytest.fixture
def model() -> list[Card]:
    return cards(Document.from_file(SAMPLES / "tinyFlow.json"))


@pytest.fixture
def dataset() -> Card:
    return cards(Document.from_file(SAMPLES / "tinyUniverse.json"))[0]


def dataset_with(**fragment: Any) -> Card:
    document = written({"name": "thing", "fragments": [{"id": "a", "url": "https://x.example.net/a.bin", **fragment}]})
    return cards(document)[0]


def model_with(**more: Any) -> list[Card]:
    return cards(written({"name": "thing", "git": {"origin": "https://x.example.net/g"}, "run": {}, **more}))


def test_a_data_set_has_one_file_for_each_fragment(dataset: Card) -> None:
    assert dataset.kind == "dataset"
    assert [file.name for file in dataset.files] == ["tinyUniverse.tar", "labels.csv", "scaler.pkl", "shots.txt"]
    assert [entry["@id"] for entry in dataset["distribution"]] == ["main", "labels", "scaler", "shots"]
    assert [entry["fetchMethod"] for entry in dataset["distribution"]] == ["archive", "file", "file", "file_list"]


def test_sizes_and_checksums_of_a_fragment_are_kept(dataset: Card) -> None:
    file = dataset.files[0]
    assert (file.size_bytes, file.sha256) == (20480, "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592")
    assert {"md5", "sha1", "sha256"} <= dataset["distribution"][0].keys()


def test_the_limit_of_a_file_list_is_kept(dataset: Card) -> None:
    assert dataset["distribution"][3]["additionalProperty"] == [
        {"@type": "PropertyValue", "name": "limit", "value": 100}
    ]


def test_a_github_page_as_data_address_becomes_a_warning_and_the_raw_address(dataset: Card) -> None:
    page = "https://github.com/example/sky/blob/main/data/labels.csv"
    raw = "https://raw.githubusercontent.com/example/sky/main/data/labels.csv"
    assert dataset["distribution"][1]["contentUrl"] == raw
    assert dataset["distribution"][1]["url"] == page
    assert f"fragments[1].url: {page!r} is a web page, not the file; raw address is {raw!r}" in messages(dataset)


def test_a_pickle_becomes_a_warning(dataset: Card) -> None:
    assert "fragments[2].url" in messages(dataset)
    assert "executes code" in messages(dataset)


def test_a_fragment_without_checksum_becomes_a_warning(dataset: Card) -> None:
    fields = [entry["field"] for entry in dataset.warnings if "no checksum" in entry["message"]]
    assert fields == ["fragments[1].checksum", "fragments[2].checksum", "fragments[3].checksum"]


def test_a_checksum_that_is_none_becomes_a_warning_and_is_kept() -> None:
    card = dataset_with(checksum={"sha256": "https://example.net/issues/80"})
    assert card.files[0].sha256 is None
    assert "is not a sha256 checksum" in messages(card)
    assert "https://example.net/issues/80" in json.dumps(card["foreign"])


def test_fragments_with_one_file_name_get_names_of_their_own() -> None:
    urls = [
        "https://x.example.net/one/in.yaml",
        "https://x.example.net/two/in.yaml",
        "https://x.example.net/three/in.yaml",
    ]
    sha256 = "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592"
    fragments = [
        {"url": url, "id": f"part {n}", "size": 3, "checksum": {"sha256": sha256}} for n, url in enumerate(urls)
    ]
    card = cards(written({"name": "thing", "fragments": fragments}))[0]
    assert [file.name for file in card.files] == ["in.yaml", "part-1/in.yaml", "part-2/in.yaml"]
    assert card.content is not None


def test_a_name_unlike_the_file_name_becomes_a_warning() -> None:
    body = {"name": "nanothing_4050", "fragments": [{"id": "a", "url": "https://x.example.net/a"}]}
    assert "does not match the file name" in messages(cards(written(body, "datasets/n/nanothing.json"))[0])
    assert "does not match" not in messages(cards(written(body, "datasets/n/NanoThing_4050.json"))[0])
    assert "does not match" not in messages(cards(written(body, "datasets-n-nanothing_4050.json"))[0])


def test_a_model_becomes_model_program_environment_and_a_workflow_for_each_run_key(model: list[Card]) -> None:
    assert [card.kind for card in model] == ["model", "program", "environment", *["workflow"] * 4]
    assert [card.title for card in of_kind(model, "workflow")] == [
        "TinyFlow on tinyUniverse",
        "TinyFlow on tinyflow",
        "TinyFlow on labels",
        "TinyFlow on otherModel",
    ]
    assert len({str(card.handle) for card in model}) == len(model)


def test_the_links_between_the_cards_of_a_model_resolve(model: list[Card]) -> None:
    ids = {card.iri for card in model}
    targets = [target for card in model for _, target in card.links if target.startswith("urn:uuid:")]
    assert targets
    assert set(targets) <= ids


def test_run_keys_become_edges_from_the_model_to_data_sets(model: list[Card]) -> None:
    links = model[0].links
    assert ("acceptsDataset", "tinyUniverse") in links
    assert [target for relation, target in links if relation == "trainedOn"] == ["tinyUniverse"]
    assert ("object", "tinyUniverse") in of_kind(model, "workflow")[0].links


def test_commands_are_kept_verbatim(model: list[Card]) -> None:
    assert of_kind(model, "workflow")[0]["command"] == [
        "python {source}/train.py --data {dataset.main.dir}",
        "python {source}/score.py",
    ]


def test_a_run_key_that_is_the_models_own_name_makes_no_edge_but_a_warning(model: list[Card]) -> None:
    assert "run.tinyflow: 'tinyflow' is the name of the model itself" in messages(model[0])
    assert ("acceptsDataset", "tinyflow") not in model[0].links


def test_a_run_key_that_is_a_fragment_is_said_to_be_one(model: list[Card]) -> None:
    assert "run.labels: 'labels' is a fragment, not a data set" in messages(model[0])


def test_a_run_key_unlike_the_models_name_becomes_a_warning(model: list[Card]) -> None:
    assert "run.otherModel: 'otherModel' is not similar to the model's name 'TinyFlow'" in messages(model[0])
    assert "run.tinyUniverse" not in messages(model[0])


def test_run_keys_that_differ_in_spelling_only_get_workflows_of_their_own() -> None:
    found = of_kind(model_with(run={"thing A": ["x"], "thing-a": ["y"]}), "workflow")
    assert len({card.iri for card in found}) == 2
    assert [card["command"] for card in found] == [["x"], ["y"]]


def test_a_dataset_template_without_fragment_becomes_a_warning(model: list[Card]) -> None:
    assert "{dataset} names no fragment" in messages(of_kind(model, "workflow")[1])


def test_a_program_is_versioned_by_its_commit(model: list[Card]) -> None:
    program = of_kind(model, "program")[0]
    assert program["codeRepository"] == "https://github.com/example/tinyflow"
    assert program.version == "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"
    assert program["identifier"] == f"swh:1:rev:{program.version}"
    facts = [(entry["name"], entry["value"]) for entry in program["additionalProperty"]]
    assert ("branch", "main") in facts
    assert ("fork", "https://github.com/other/tinyflow.git") in facts
    assert ("fork", "https://github.com/third/tinyflow.git") in facts


def test_a_program_without_tag_or_commit_says_that_it_may_change() -> None:
    assert "neither tag nor commit" in messages(of_kind(model_with(), "program")[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tensorflow==2.10.0", "pkg:pypi/tensorflow@2.10.0"),
        ("PyYAML == 6.0", "pkg:pypi/pyyaml@6.0"),
        ("scikit_learn", "pkg:pypi/scikit-learn"),
        ("horovod>=0.27,<0.29", "horovod>=0.27,<0.29"),
        ("torch[opt]~=2.1 ; python_version<'3.12'", "torch[opt]~=2.1 ; python_version<'3.12'"),
        ("lib @ https://example.net/lib.zip", "lib @ https://example.net/lib.zip"),
    ],
)
def test_pinned_requirements_become_purls_and_loose_ones_keep_their_text(given: str, expected: str) -> None:
    environment = of_kind(model_with(requirements={"pip": [given]}), "environment")[0]
    assert environment["softwareRequirements"] == [expected]
    assert "pip understands" not in messages(environment)


@pytest.mark.parametrize("given", ["netcdf4=1.5.3", "two words", "==1.0", "a>>1"])
def test_a_malformed_requirement_is_kept_with_a_warning(given: str) -> None:
    environment = of_kind(model_with(requirements={"pip": [given]}), "environment")[0]
    assert environment["softwareRequirements"] == [given]
    assert "requirements.pip[0]" in messages(environment)


def test_modules_and_variables_describe_the_environment(model: list[Card]) -> None:
    environment = of_kind(model, "environment")[0]
    assert environment["modules"] == ["cuda/11.8.0", "gcc/11.3.0"]
    assert environment["environmentVariables"] == {
        "HOROVOD_CUDA_HOME": "$CUDA_HOME",
        "OMP_NUM_THREADS": "4",
        "EMPTY": "",
    }
    assert environment["softwareRequirements"][0] == "python>=3.9"


def test_a_model_without_requirements_has_no_environment() -> None:
    assert not of_kind(model_with(), "environment")


def test_frameworks_are_those_among_the_requirements(model: list[Card]) -> None:
    assert model[0].frameworks == ["tensorflow", "pytorch"]


@for_each(
    "data, field",
    [
        ([], ""),
        ({"name": "x"}, ""),
        ({"fragments": [{"url": "u"}]}, "name"),
        ({"name": {}, "fragments": [{"url": "u"}]}, "name"),
        ({"name": "x", "fragments": []}, "fragments"),
        ({"name": "x", "fragments": {"url": "u"}}, "fragments"),
        ({"name": "x", "fragments": ["u"]}, "fragments[0]"),
        ({"name": "x", "fragments": [{"id": "a"}]}, "fragments[0].url"),
        ({"name": "x", "fragments": [{"url": "u", "checksum": "abc"}]}, "fragments[0].checksum"),
        ({"name": "x", "git": "https://example.net"}, "git"),
        ({"name": "x", "git": {"origin": 1}, "run": []}, None),
        ({"name": "x", "git": {"origin": []}, "run": ["a"]}, "run"),
        ({"name": "x", "run": {"d": {"a": 1}}}, "run.d"),
        ({"name": "x", "run": {"d": ["a", ["b"]]}}, "run.d[1]"),
        ({"name": "x", "run": {}, "env_vars": ["A=1"]}, "env_vars"),
        ({"name": "x", "run": {}, "env_vars": {"A": ["1"]}}, "env_vars.A"),
        ({"name": "x", "run": {}, "requirements": {"pip": [{"a": "b"}]}}, "requirements.pip[0]"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name_and_the_field(data: Any, field: str | None) -> None:
    document = written(data, "some/thing.json")
    if field is None:
        assert cards(document)
        return
    with pytest.raises(InvalidDocument) as caught:
        sabath.read(document)
    problem = caught.value.problems[0]
    assert (problem.file, problem.field) == ("some/thing.json", field)


def test_broken_json_is_recognised_by_its_keys_and_refused_with_the_line() -> None:
    document = Document("broken.json", b'{"name": "x",\n "fragments": [{"url": "u"},]}')
    assert sabath.recognises(document)
    with pytest.raises(InvalidDocument) as caught:
        sabath.read(document)
    assert caught.value.problems[0].line == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"name": "x"}',
        b'{"@context": "x", "fragments": []}',
        b'{"run": 1}',
        b'{"name": "pkg", "scripts": {"run": "x"}}',
        b'# a README with "run": in it',
    ],
)
def test_other_documents_are_not_recognised(data: bytes) -> None:
    assert not sabath.recognises(Document("x.json", data))


def shared(name: str) -> list[Card]:
    path = FILES / name
    if not path.exists():
        pytest.skip(f"the shared data has no {path}")
    document = Document.from_file(path)
    assert sabath.recognises(document)
    return cards(document)


@pytest.mark.parametrize(
    ("name", "kinds", "edges"),
    [
        ("datasets-a-autoPhaseNN_aicdi.json", {"dataset": 1}, []),
        ("datasets-a-autoPhaseNN_aicdi_sample.json", {"dataset": 1}, []),
        ("datasets-c-cosmoUniverse_2019_05_4parE_tf_v2.json", {"dataset": 1}, []),
        ("datasets-c-cosmoUniverse_2019_05_4parE_tf_v2_mini.json", {"dataset": 1}, []),
        ("datasets-m-miniWeatherML.json", {"dataset": 1}, []),
        ("datasets-n-nanoconfinement.json", {"dataset": 1}, []),
        ("datasets-p-ptychonn_20191008_39.json", {"dataset": 1}, []),
        ("models-a-autophasenn.json", {"model": 1, "program": 1, "workflow": 1}, []),
        (
            "models-c-cosmoflow.json",
            {"model": 1, "program": 1, "environment": 1, "workflow": 2},
            ["cosmoUniverse_2019_05_4parE_tf_v2_mini", "cosmoUniverse_2019_05_4parE_tf_v2"],
        ),
        ("models-m-miniWeatherML.json", {"model": 1, "program": 1, "environment": 1, "workflow": 4}, ["miniWeatherML"]),
        ("models-n-nanoconfinement.json", {"model": 1, "program": 1, "workflow": 1}, ["autophasenn"]),
        ("models-p-ptychonn.json", {"model": 1, "program": 1, "workflow": 1}, ["ptychonn_20191008_39"]),
    ],
)
def test_every_published_file_is_imported(name: str, kinds: dict[str, int], edges: list[str]) -> None:
    found = shared(name)
    assert [problem for card in found for problem in check_body(card.body) if problem.severity == "error"] == []
    assert {kind: len(of_kind(found, kind)) for kind in {card.kind for card in found}} == kinds
    assert [target for relation, target in found[0].links if relation == "acceptsDataset"] == edges


def test_every_published_file_is_named_above() -> None:
    if not FILES.exists():
        pytest.skip(f"the shared data has no {FILES}")
    assert len(list(FILES.iterdir())) == 12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("datasets-m-miniWeatherML.json", "is a web page, not the file"),
        ("datasets-n-nanoconfinement.json", "does not match the file name"),
        ("datasets-n-nanoconfinement.json", "executes code"),
        ("models-n-nanoconfinement.json", "'autophasenn' is not similar to the model's name 'Nanoconfinement'"),
        ("models-a-autophasenn.json", "is the name of the model itself"),
        ("models-m-miniWeatherML.json", "is a fragment, not a data set"),
    ],
)
def test_the_traps_of_the_published_files_are_warnings(name: str, expected: str) -> None:
    assert expected in messages(shared(name)[0])


def test_the_published_data_set_with_checksums_has_a_content_digest() -> None:
    found = shared("datasets-p-ptychonn_20191008_39.json")[0]
    assert found.content is not None
    assert [file.size_bytes for file in found.files] == [849379456, 588494609]
