"""MLmodel files become models with framework, format, signature and what is needed to run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import mlmodel
from fairmile.catalog.exchange.draft import Document, finish

SAMPLES = Path(__file__).parent / "samples" / "mlmodel"


def card(document: Document) -> Card:
    drafts = mlmodel.read(document)
    assert len(drafts) == 1
    return finish(drafts[0], document, "mlmodel")


def sample(name: str) -> Card:
    return card(Document.from_file(SAMPLES / name / "MLmodel"))


def written(text: str) -> Document:
    return Document("model/MLmodel", text.encode())


def messages(found: Card) -> str:
    return "\n".join(f"{entry['field']}: {entry['message']}" for entry in found.warnings)


def test_a_flavour_gives_framework_format_and_version() -> None:
    found = sample("sklearn")
    assert found.kind == "model"
    assert found["machineLearningFramework"] == ["scikit-learn"]
    assert found["mlFrameworkVersion"] == ["1.2.2"]
    assert found["modelFormat"] == ["application/x-pickle"]
    assert sample("pytorch")["modelFormat"] == ["application/x-pytorch"]
    assert sample("onnx")["modelFormat"] == ["application/x-onnx"]


def test_columns_of_the_signature_have_the_types_of_tensors_as_well() -> None:
    inputs = sample("sklearn")["signature"]["inputs"]
    assert inputs[0] == {"type": "double", "name": "mean radius", "required": True, "dtype": "float64"}
    assert inputs[1]["dtype"] == "int64"


def test_tensors_of_the_signature_have_dtype_and_shape() -> None:
    signature = sample("pytorch")["signature"]
    assert signature["inputs"] == [{"name": "x", "type": "tensor", "dtype": "float32", "shape": [-1, 3, 32, 32]}]
    assert signature["outputs"] == [{"type": "tensor", "dtype": "float32", "shape": [-1, 10]}]


def test_a_signature_may_be_a_list_instead_of_a_text() -> None:
    text = "flavors: {onnx: {data: m.onnx}}\nsignature:\n  inputs:\n  - {type: string, name: x}\n"
    assert card(written(text))["signature"] == {"inputs": [{"type": "string", "name": "x", "dtype": "str"}]}


def test_ids_time_run_and_size_are_kept() -> None:
    found = sample("sklearn")
    assert found.iri == "urn:uuid:0badaf06-aa25-4da9-8111-88d6c060a176"
    assert ("wasGeneratedBy", "8f61417c580541cb84d88586a3a1a44a") in found.links
    assert found["dateCreated"] == "2024-07-17T20:29:00.995838Z"
    assert found["contentSize"] == "35836 B"
    assert found["examples"]["artifact_path"] == "input_example.json"
    assert found["tags"] == {"owner": "Ada Example", "stage": 2}


def test_versions_and_environment_files_say_what_the_model_needs() -> None:
    found = sample("sklearn")
    assert found["softwareRequirements"] == [
        "pkg:generic/python@3.10.4",
        "pkg:pypi/scikit-learn@1.2.2",
        "pkg:pypi/mlflow@2.14.2",
    ]
    assert found["buildInstructions"] == ["conda.yaml", "python_env.yaml"]
    assert "pkg:pypi/torch@2.1.0" in sample("pytorch")["softwareRequirements"]


def test_a_model_logged_as_model_is_named_by_framework_and_number() -> None:
    found = sample("sklearn")
    assert found.title == "scikit-learn model 0badaf06"
    assert "name: the source gives no name" in messages(found)
    assert sample("pytorch").title == "tiny-net"


@pytest.mark.parametrize(("name", "field"), [("sklearn", "flavors.sklearn"), ("pytorch", "flavors.pytorch")])
def test_a_flavour_stored_as_pickle_becomes_a_warning(name: str, field: str) -> None:
    assert [entry["field"] for entry in sample(name).warnings if "executes code" in entry["message"]] == [field]


def test_a_custom_python_model_becomes_a_warning() -> None:
    assert "flavors.python_function.python_model: the model is a pickled Python class" in messages(sample("custom"))


def test_a_flavour_without_pickle_gives_no_warning_of_it() -> None:
    assert "executes code" not in messages(sample("onnx"))


def test_a_path_out_of_the_folder_is_no_file_of_the_model() -> None:
    found = sample("custom")
    assert [file.name for file in found.files] == ["python_model.pkl"]
    assert "'../outside.bin' leads out of the folder" in messages(found)
    assert found["foreign"]["mlmodel"]["flavors"]["python_function"]["data"] == "../outside.bin"


def test_numbers_that_json_cannot_hold_and_keys_that_are_no_texts_are_kept_as_texts() -> None:
    kept = sample("custom")["foreign"]["mlmodel"]
    assert (kept["1"], kept["limits"]) == ("one", ["inf", "nan", 3])


def test_a_missing_signature_an_odd_uuid_and_an_odd_time_become_warnings() -> None:
    found = sample("onnx")
    assert {"signature", "model_uuid", "dateCreated"} <= {entry["field"] for entry in found.warnings}
    assert (found["identifier"], found["foreign"]["mlmodel"]["dateCreated"]) == ("not-a-uuid", "yesterday")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("just text", ""),
        ("run_id: x\n", "flavors"),
        ("flavors: {}\n", "flavors"),
        ("flavors: [sklearn]\n", "flavors"),
        ("flavors: {sklearn: yes please}\n", "flavors.sklearn"),
        ("flavors: {onnx: {}}\nsignature: x\n", "signature"),
        ("flavors: {onnx: {}}\nsignature: {inputs: '[{'}\n", "signature.inputs"),
        ("flavors: {onnx: {}}\nsignature: {inputs: '{}'}\n", "signature.inputs"),
        ("flavors: {onnx: {}}\nsignature: {outputs: '[3]'}\n", "signature.outputs[0]"),
        ("flavors: {onnx: {}}\nmodel_uuid: [1]\n", "model_uuid"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name_and_the_field(text: str, field: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        mlmodel.read(written(text))
    assert (caught.value.problems[0].file, caught.value.problems[0].field) == ("model/MLmodel", field)


def test_yaml_that_would_run_code_is_refused_with_the_line() -> None:
    with pytest.raises(InvalidDocument) as caught:
        mlmodel.read(written("flavors:\n  x: !!python/object/apply:os.system ['true']\n"))
    assert caught.value.problems[0].line == 2


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("MLmodel", "anything", True),
        ("renamed.yaml", "flavors:\n  python_function:\n    env: x\n", True),
        ("renamed.yaml", "mlflow_version: 1\nflavors:\n  x: {}\n", True),
        ("ice-cream.yaml", "flavors:\n- vanilla\n", False),
        ("x.yaml", "", False),
    ],
)
def test_a_file_is_recognised_by_its_name_or_its_keys(name: str, text: str, expected: bool) -> None:
    assert mlmodel.recognises(Document(name, text.encode())) is expected
