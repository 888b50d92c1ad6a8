"""Hugging Face cards: README.md with YAML front matter, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card
from fairmile.catalog.exchange import huggingface
from fairmile.catalog.exchange.common.markdown import split_readme
from fairmile.catalog.exchange.draft import Document, Draft, finish

SAMPLES = Path(__file__).parent / "samples" / "huggingface"
# The keys that the hub documents for the metadata of cards, and `version`, which it lets pass.
DOCUMENTED = """
language license license_name license_link license_details library_name tags datasets metrics base_model
base_model_relation new_version pipeline_tag model-index model_name co2_eq_emissions thumbnail widget inference
extra_gated_heading extra_gated_prompt extra_gated_description extra_gated_fields extra_gated_button_content
annotations_creators language_creators language_details pretty_name multilinguality size_categories source_datasets
task_categories task_ids paperswithcode_id configs dataset_info train-eval-index viewer version
"""


def read(name: str) -> tuple[Draft, Card]:
    document = Document.from_file(SAMPLES / name, name=name)
    (draft,) = huggingface.read(document)
    return draft, finish(draft, document, "huggingface")


def read_text(text: str, name: str = "README.md") -> Draft:
    (draft,) = huggingface.read(Document(name, text.encode()))
    return draft


def fields(draft: Draft) -> set[str]:
    return {entry["field"] for entry in draft.warnings}


def test_a_model_is_read_whole() -> None:
    draft, card = read("README-model.md")
    assert (card.kind, card.title, card.licence) == ("model", "Tide classifier", "Apache-2.0")
    assert card["mlTask"] == "text-classification"
    assert card.frameworks == ["transformers", "pytorch"]
    assert card["modelFormat"] == "safetensors"
    assert card["fineTunedFrom"] == ["https://huggingface.co/harbour/tide-base"]
    assert card["trainedOn"][0] == "https://huggingface.co/datasets/harbour/gauges"
    assert card["supersededBy"] == "https://huggingface.co/harbour/tide-classifier-v2"
    assert card["inLanguage"] == ["en", "no"]
    assert card["evaluationMetrics"] == ["accuracy", "f1"]
    assert card["hasCO2eEmissions"] == {
        "@type": "PropertyValue",
        "value": 149.2,
        "unitText": "g",
        "measurementTechnique": "CodeCarbon",
    }
    assert draft.foreign["co2_eq_emissions"] == {"training_type": "fine-tuning", "hardware_used": "1 x A100"}
    assert draft.foreign["inference"] is False


def test_the_text_gives_summary_whole_text_addresses_and_bibtex() -> None:
    _, card = read("README-model.md")
    assert card.text("description") == (
        "Tells high tide from low tide in one sentence.\n\nIt was trained on the gauges of one harbour."
    )
    assert card.text("text").startswith("# Tide classifier\n\n<!-- Provide")
    assert card["codeRepository"] == "https://example.org/git/tide"
    assert card["citation"] == ["https://example.org/paper", "https://arxiv.org/abs/1810.04805"]
    assert card.text("citeAs").startswith("@article{tide2024,")


def test_the_model_index_becomes_evaluations_with_data_set_and_metrics() -> None:
    draft, card = read("README-model.md")
    first, second = card["hasEvaluation"]
    assert first["evaluationDataset"]["@id"] == "https://huggingface.co/datasets/glue"
    assert first["evaluationDataset"]["version"] == "5503434ddd753f426f4b38109466949a1217c2bb"
    assert first["evaluationResults"][0] == {
        "@type": "PropertyValue",
        "propertyID": "accuracy",
        "name": "Accuracy",
        "value": 0.86,
    }
    assert first["evaluationResults"][1]["value"] == "0.90 ± 0.01"
    assert second["evaluationResults"][0]["value"] == 0.97
    assert card["evaluatedOn"][1] == "https://huggingface.co/datasets/harbour/gauges"
    rest = draft.foreign["model-index"][0]["results"]
    assert rest[0]["metrics"] == [{"verified": True}, {}]
    assert rest[1]["source"]["name"] == "Leaderboard"


def test_a_data_set_is_read_whole() -> None:
    draft, card = read("README-dataset.md")
    assert (card.kind, card.title, card.licence) == ("dataset", "Gauges of the North Sea", "CC-BY-4.0")
    assert card["mlTask"] == ["tabular-regression", "text-classification", "sentiment-classification"]
    assert card["wasDerivedFrom"] == [
        "https://huggingface.co/datasets/harbour/raw-gauges",
        "https://huggingface.co/datasets/harbour/buoys",
    ]
    assert card["url"] == "https://example.org/gauges"
    assert card["sampleCount"] == 1800
    assert card["contentSize"] == "1024 B"
    (records,) = card["recordSet"]
    assert [field["name"] for field in records["field"]] == ["level", "station", "label", "days", "nested"]
    assert records["field"][0]["dataType"] == "sc:Float"
    assert records["field"][3]["repeated"] is True
    assert records["field"][4]["subField"][0]["dataType"] == "sc:Boolean"
    assert [entry["name"] for entry in card["distribution"]] == ["default/train", "default/test", "raw"]
    assert card["distribution"][0]["includes"] == "data/train-*.parquet"
    assert draft.foreign["source_datasets"] == ["original"]
    assert draft.foreign["dataset_info"]["features"][2]["dtype"]["class_label"]["names"] == {"0": "low", "1": "high"}
    assert draft.foreign["configs"][1] == {"config_name": "raw", "sep": ";"}


def test_a_path_that_leads_out_of_the_repository_is_left_out() -> None:
    draft, card = read("README-dataset.md")
    assert "configs" in fields(draft)
    assert draft.foreign["configs"][2] == {"config_name": "outside", "data_files": "../secret.csv"}
    assert "secret" not in str(card["distribution"])


def test_a_gate_becomes_conditions_of_access() -> None:
    draft, card = read("README-gated-crlf.md")
    assert card.text("accessRights") == "registered"
    assert card.text("conditionsOfAccess") == "You agree to tell no one."
    assert draft.foreign["extra_gated_fields"] == {"Name": "text", "I agree": "checkbox"}
    fields_only = read_text("---\nlibrary_name: keras\nextra_gated_fields:\n  Name: text\n  Use: text\n---\n# a\n")
    assert fields_only.body["conditionsOfAccess"] == "Asks for: Name, Use"


def test_a_licence_of_its_own_keeps_name_and_link() -> None:
    _, card = read("README-gated-crlf.md")
    assert card.licence is None
    assert card["license"] == ["harbour-licence-1.0", "https://example.org/LICENCE"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("license: mit", "MIT"), ("license: [cc-by-4.0]", "CC-BY-4.0"), ("license: odc-by", "ODC-By-1.0")],
)
def test_licence_ids_of_the_hub_become_spdx(key: str, expected: str) -> None:
    document = Document("README.md", f"---\n{key}\n---\n# Model a\n".encode())
    assert finish(huggingface.read(document)[0], document, "huggingface").licence == expected


def test_byte_order_mark_and_crlf_make_no_difference() -> None:
    _, card = read("README-gated-crlf.md")
    assert card["keywords"] == ["single-tag"]
    assert card.text("description") == "Written on a machine that ends lines with CR LF."
    assert "\r" not in card.text("text")


def test_lines_that_end_twice_make_no_difference() -> None:
    _, card = read("README-double-spaced.md")
    assert (card.title, card["keywords"]) == ("Spaced model", ["vision", "onnx"])


def test_front_matter_with_blank_lines_between_all_lines_is_read() -> None:
    draft = read_text("---\n\nlicense: mit\n\ntags:\n\n- a\n\n- b\n\npipeline_tag: other\n\n---\n\n# T\n")
    assert draft.body["keywords"] == ["a", "b"]


def test_a_missing_closing_fence_is_refused_with_the_fix() -> None:
    document = Document("README.md", b"\n---\nlicense: mit\npipeline_tag: other\n# T\n")
    assert huggingface.recognises(document)
    with pytest.raises(InvalidDocument, match=r"README\.md:2: the front matter is not closed") as caught:
        huggingface.read(document)
    assert "---" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Only a title\n", "no front matter"),
        ("", "no front matter"),
        ("---\n- a\n---\n", "expected keys"),
        ("---\nsdk: gradio\napp_file: app.py\n---\n", "Space"),
        ("---\nlicense: mit\nlicense: mit\n---\n", "README.md:3"),
        ("---\nlicense: !!python/object:os.system x\n---\n", "README.md:2"),
    ],
)
def test_what_is_no_card_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_text(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("README.md", "---\nlicense: mit\n---\n", True),
        ("readme.md", "\ufeff---\r\ntags: [a]\r\n---\r\n", True),
        ("notes.md", "---\nlicense: mit\n---\n", False),
        ("notes.md", "---\npipeline_tag: other\n---\n", True),
        ("README.md", "# T\n\nlicense: mit\n", False),
        ("README.md", "---\ntitle: Blog post\nlayout: page\n---\n", False),
        ("README.txt", "---\nlicense: mit\n---\n", False),
    ],
)
def test_recognition_looks_at_name_fence_and_keys(name: str, text: str, expected: bool) -> None:
    assert huggingface.recognises(Document(name, text.encode())) is expected


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("README.md", "---\npretty_name: X\n---\n", "dataset"),
        ("README.md", "---\npipeline_tag: other\nmetrics: [a]\nviewer: false\n---\n", "model"),
        ("hub/datasets/x/README.md", "---\nlicense: mit\n---\n", "dataset"),
        ("README.md", "---\nlicense: mit\n---\n# Dataset Card for X\n", "dataset"),
        ("README.md", "---\nlicense: mit\n---\n# A model of tides\n", "model"),
    ],
)
def test_keys_then_place_then_title_tell_models_from_data_sets(name: str, text: str, kind: str) -> None:
    draft = read_text(text, name)
    assert draft.kind == kind
    assert "@type" not in fields(draft)


def test_a_card_that_does_not_say_what_it_describes_is_a_model_with_a_warning() -> None:
    draft = read_text("---\nlicense: mit\n---\n# Tides\n")
    assert draft.kind == "model"
    assert "@type" in fields(draft)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nmodel_name: N\npipeline_tag: other\n---\n# Other title\n", "N"),
        ("---\npretty_name: P\n---\n# Other title\n", "P"),
        ("---\npipeline_tag: other\n---\n# Model Card for Tides\n", "Tides"),
        ('---\npipeline_tag: other\n---\n<h1 align="center">Tides <img src="x"></h1>\n', "Tides"),
        ("---\npipeline_tag: other\n---\n# Model Card for Model ID\n", "hub-name"),
    ],
)
def test_the_name_comes_from_keys_then_title_then_folder(text: str, expected: str) -> None:
    assert read_text(text, "org/hub-name/README.md").body["name"] == expected


def test_each_trap_becomes_a_warning_and_loses_nothing() -> None:
    draft, card = read("README-traps.md")
    assert fields(draft) >= {"license", "datasets", "co2_eq_emissions", "version", "name"}
    assert card.version == "1.10"
    assert draft.foreign["datasets"] == ["my own data, ask me"]
    assert draft.foreign["co2_eq_emissions"] == "a lot"
    assert draft.foreign["metrics"] == [{"name": "accuracy", "value": 1}]
    assert draft.foreign["tags_extra"] == {"7": "one", "true": "yes", "2.5": ".inf"}


@pytest.mark.parametrize(("relation", "term"), [("quantized", "isBasedOn"), ("finetune", "fineTunedFrom")])
def test_the_relation_to_the_base_decides_the_link(relation: str, term: str) -> None:
    draft = read_text(f"---\nbase_model: [a/b, c]\nbase_model_relation: {relation}\n---\n# M\n")
    assert draft.body[term] == ["https://huggingface.co/a/b", "https://huggingface.co/c"]


def write(card: Card) -> tuple[dict[str, object], str]:
    """Return the front matter as another reader of YAML, of the older version 1.1, sees it, and the text."""
    ((file, text),) = huggingface.write(card).items()
    assert file == "README.md"
    readme = split_readme(text)
    old = YAML(typ="safe", pure=True)
    old.version = (1, 1)
    front = old.load(readme.front)
    assert set(front) <= set(DOCUMENTED.split())
    return front, readme.text


@pytest.mark.parametrize(
    "name", [path.name for path in SAMPLES.iterdir() if path.name not in ("README-traps.md", "README-gated-crlf.md")]
)
def test_what_is_written_reads_back_the_same(name: str) -> None:
    _, card = read(name)
    write(card)
    document = Document(name, huggingface.write(card)["README.md"].encode())
    (draft,) = huggingface.read(document)
    again = finish(draft, document, "huggingface")
    apart = {"@id", "version", "sourceDocument", "warnings", "foreign", "licenseRaw"}
    assert {key: value for key, value in again.items() if key not in apart} == {
        key: value for key, value in card.items() if key not in apart
    }
    kept = {key: value for key, value in card.get("foreign", {}).get("huggingface", {}).items() if value}
    assert {key: draft.foreign.get(key) for key in kept if key != "source_datasets"} == {
        key: value for key, value in kept.items() if key != "source_datasets"
    }


def test_a_model_of_another_origin_is_written_with_true_keys_only() -> None:
    card = Card(
        {
            "@id": "urn:x:1",
            "@type": ["MLModel", "CreativeWork"],
            "name": "CosmoFlow",
            "version": "1.0.0",
            "description": "Regresses parameters of the universe.",
            "license": "https://spdx.org/licenses/NASA-1.3",
            "mlTask": "regression",
            "scienceDomain": "cosmology",
            "inLanguage": "no",
            "machineLearningFramework": "tensorflow",
            "modelFormat": "application/x-hdf5",
            "trainedOn": ["urn:x:data", "https://huggingface.co/datasets/a/b"],
            "hasEvaluation": ["urn:x:run"],
            "evaluationResults": [{"@type": "PropertyValue", "propertyID": "mae", "value": 0.12}],
            "citation": "https://arxiv.org/abs/1808.04728",
            "creator": [{"@type": "Organization", "name": "NERSC"}],
            "hasCO2eEmissions": {"@type": "PropertyValue", "value": 2, "unitText": "kg"},
        }
    )
    front, text = write(card)
    assert front == {
        "language": "no",
        "license": "other",
        "license_name": "NASA-1.3",
        "license_link": "https://spdx.org/licenses/NASA-1.3.html",
        "library_name": "tensorflow",
        "tags": ["regression", "cosmology"],
        "datasets": ["a/b"],
        "co2_eq_emissions": 2000,
        "version": "1.0.0",
    }
    assert text.startswith("# CosmoFlow\n\nRegresses parameters")
    assert "- urn:x:data" in text
    assert "| mae | 0.12 |" in text
    assert "- NERSC" in text


@pytest.mark.parametrize(
    ("count", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**6, "1M<n<10M"), (5 * 10**8, "100M<n<1B"), (10**12, "n>1T")],
)
def test_the_size_category_follows_from_the_count(count: int, category: str) -> None:
    card = Card({"@id": "urn:x:1", "@type": "Dataset", "name": "d", "version": "1", "sampleCount": count})
    assert write(card)[0]["size_categories"] == [category]


def test_fields_whose_types_are_not_exact_are_not_written_as_features() -> None:
    records = {"@type": "RecordSet", "name": "r", "field": [{"@type": "Field", "name": "x", "dataType": "sc:Integer"}]}
    card = Card({"@id": "urn:x:1", "@type": "Dataset", "name": "d", "version": "1", "recordSet": [records]})
    assert "dataset_info" not in write(card)[0]


@pytest.mark.parametrize(
    ("front", "licence", "languages"),
    [
        ("licenses:\n- odc-by-1.0\nlanguages:\n- en", "https://spdx.org/licenses/ODC-By-1.0", "en"),
        ("licenses: {a: [mit]}\nlanguages: {a: [en], b: [de]}", "https://spdx.org/licenses/MIT", ["en", "de"]),
        ("license: other\nlicense_name: lake-1", "lake-1", None),
        ("license: [mit, other]\nlicense_name: lake-1", ["https://spdx.org/licenses/MIT", "lake-1"], None),
        ("license: other\nlicense_link: https://x.edu/l", "https://x.edu/l", None),
        ("license:\nlanguage:", None, None),
    ],
)
def test_every_way_to_state_licence_and_language_is_read(front: str, licence: Any, languages: Any) -> None:
    document = Document("README.md", f"---\n{front}\ntask_categories: [x]\n---\n# P\n".encode())
    (found,) = [finish(draft, document, "huggingface") for draft in huggingface.read(document)]
    assert found.get("license") == licence
    assert found.get("inLanguage") == languages
