"""Hugging Face model and data-set cards: README.md with YAML front matter."""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.base.yaml import load as load_yaml
from fairmile.catalog.card import as_list
from fairmile.catalog.exchange.common.jsonld import settle_any
from fairmile.catalog.exchange.common.markdown import (
    Readme,
    bibtex_of,
    has_front_matter,
    labelled_address,
    split_readme,
    summary_of,
    title_of,
    unify_lines,
)
from fairmile.catalog.exchange.common.parts import (
    as_text,
    one_or_many,
    plain,
    take_each,
    take_one,
    take_text,
    take_texts,
    version_as_written,
    warn_of_empty_licences,
)
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.exchange.huggingface_data import read_configs, read_dataset_info
from fairmile.catalog.exchange.huggingface_writer import KINDS as KINDS
from fairmile.catalog.exchange.huggingface_writer import write as write
from fairmile.catalog.identity import is_iri
from fairmile.catalog.licences import licence_iri

HUB = "https://huggingface.co/"
_MODEL_KEYS_WORDS = """
pipeline_tag library_name base_model base_model_relation model-index model_name metrics datasets
co2_eq_emissions new_version inference widget quantized_by
"""
_MODEL_KEYS = frozenset(_MODEL_KEYS_WORDS.split())
_DATASET_KEYS_WORDS = """
task_categories task_ids size_categories configs dataset_info pretty_name annotations_creators
language_creators source_datasets multilinguality train-eval-index viewer
"""
_DATASET_KEYS = frozenset(_DATASET_KEYS_WORDS.split())
# Keys that other front matters have too: they tell a card only in a file called README.md.
_COMMON_KEYS_WORDS = """
license licenses license_name license_link tags language languages extra_gated_prompt extra_gated_fields
"""
_COMMON_KEYS = frozenset(_COMMON_KEYS_WORDS.split())
_KEY_LINE = re.compile(r"^([A-Za-z_-]+)\s*:", re.MULTILINE)
_HUB_ID = re.compile(r"^[\w-][\w.-]*(?:/[\w-][\w.-]*)?$")
_FRAMEWORK_TAGS = {
    "pytorch": "pytorch",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "tf-keras": "keras",
    "keras": "keras",
    "jax": "jax",
    "flax": "flax",
    "paddlepaddle": "paddlepaddle",
    "sklearn": "scikit-learn",
    "scikit-learn": "scikit-learn",
}
_FORMAT_TAGS = ("onnx", "safetensors", "gguf", "coreml", "openvino", "tflite")
_PROPERTIES = ("size_categories", "annotations_creators", "language_creators", "multilinguality")
_PLACEHOLDER = re.compile(
    r"model id|dataset name|needs more information|more information needed|[{}\[\]]", re.IGNORECASE
)


def recognises(document: Document) -> bool:
    """Tell whether the file is a README.md whose front matter has keys of a Hugging Face card."""
    name = document.file_name.lower()
    if not name.endswith((".md", ".markdown")):
        return False
    try:
        text = document.text
    except InvalidDocument:
        return False
    if not has_front_matter(text):
        return False
    keys = set(_KEY_LINE.findall(unify_lines(text).lstrip().partition("\n---")[0]))
    telling = _MODEL_KEYS | _DATASET_KEYS | (_COMMON_KEYS if name.startswith("readme") else frozenset())
    return bool(keys & telling)


def read(document: Document) -> list[Draft]:
    """Return the model or the data set the card describes."""
    readme = split_readme(document.text, file=document.name)
    node = plain(load_yaml(readme.front, file=document.name))
    if node is None:
        node = {}
    if not isinstance(node, dict):
        raise document.refuse("expected keys such as license and tags in the front matter")
    if "sdk" in node and not (_MODEL_KEYS | _DATASET_KEYS) & set(node):
        raise document.refuse("describes a Space, which is not a kind of asset", field="sdk")
    draft = Draft("model", {})
    draft.kind = _kind(node, readme, document, draft)
    _name(draft, node, readme, document)
    _text(draft, readme)
    _common(draft, node)
    if draft.kind == "model":
        _model(draft, node)
    else:
        _dataset(draft, node)
    draft.foreign.update(node)
    settle_any(draft)
    return [draft]


def _kind(node: dict[str, Any], readme: Readme, document: Document, draft: Draft) -> str:
    model, data = len(_MODEL_KEYS & set(node)), len(_DATASET_KEYS & set(node))
    if model != data:
        return "dataset" if data > model else "model"
    title = (title_of(readme.text) or "").lower()
    if "/datasets/" in document.name.replace("\\", "/") or "dataset" in title or "data set" in title:
        return "dataset"
    if not re.search(r"\bmodel\b", title):
        draft.warn("@type", "no key says whether this is a model or a data set; read as a model")
    return "model"


def _name(draft: Draft, node: dict[str, Any], readme: Readme, document: Document) -> None:
    given = take_text(node, "pretty_name") if draft.kind == "dataset" else take_text(node, "model_name")
    title = re.sub(
        r"^\W*(?:model|data\s?set)\s+card\s*(?:for|of|:|-)?\s*", "", title_of(readme.text) or "", flags=re.IGNORECASE
    )
    title = title.strip(" :-–")
    folder = document.name.replace("\\", "/").rstrip("/").rpartition("/")[0].rpartition("/")[2]
    if given:
        draft.put("name", given)
    elif title and not _PLACEHOLDER.search(title):
        draft.put("name", title)
    elif folder not in ("", ".", ".."):
        draft.put("name", folder)
        draft.warn("name", f"the card has no title; called {folder!r} after its folder")
    number = not isinstance(node.get("version"), str)
    version = take_text(node, "version")
    if version and number:
        version = version_as_written(draft, readme.front, version)
    draft.put("version", version)


def _text(draft: Draft, readme: Readme) -> None:
    draft.put("description", summary_of(readme.text))
    draft.put("text", readme.text)
    draft.put("citeAs", bibtex_of(readme.text))
    draft.put("url", labelled_address(readme.text, "Homepage"))
    draft.put("codeRepository", labelled_address(readme.text, "Repository"))
    draft.put("citation", labelled_address(readme.text, "Paper"))


def _common(draft: Draft, node: dict[str, Any]) -> None:
    _licence(draft, node)
    tags = take_texts(node, "tags")
    draft.put("keywords", tags)
    papers = [f"https://arxiv.org/abs/{tag[6:]}" for tag in tags if re.match(r"arxiv:\d{4}\.\d{4,5}", tag)]
    draft.put("citation", one_or_many([*as_list(draft.body.get("citation")), *papers]))
    draft.put("identifier", one_or_many([f"https://doi.org/{tag[4:]}" for tag in tags if tag.startswith("doi:10.")]))
    draft.put("inLanguage", one_or_many([*take_texts(node, "language"), *_listed(node, "languages")]))
    prompt = [text for key in ("extra_gated_prompt", "extra_gated_description") if (text := take_text(node, key))]
    gates = [key for key in node if key.startswith("extra_gated_")]
    if prompt or gates:
        draft.put("accessRights", "registered")
        fields = node.get("extra_gated_fields")
        asked = ", ".join(fields) if isinstance(fields, dict) else ""
        draft.put(
            "conditionsOfAccess", "\n\n".join(prompt) or (f"Asks for: {asked}" if asked else "Asks for an account")
        )


def _listed(node: dict[str, Any], key: str) -> list[str]:
    """Return the texts under a key; older cards gave them for each configuration."""
    value = node.get(key)
    if isinstance(value, dict):
        # Which configuration has which stays in the source.
        return [text for each in value.values() for item in as_list(each) if (text := as_text(item))]
    return take_texts(node, key)


def _licence(draft: Draft, node: dict[str, Any]) -> None:
    warn_of_empty_licences(draft, node, "license")
    texts = [*take_texts(node, "license"), *_listed(node, "licenses")]
    if "other" in texts or not any(licence_iri(text) for text in texts):
        named = [text for text in (take_text(node, "license_name"),) if text]
        if is_iri(node.get("license_link")):
            named += [node.pop("license_link")]
        # `other` only says that the name stands in license_name.
        texts = [text for text in texts if text != "other" or not named] + named
    draft.put("license", one_or_many(texts))


def hub_iri(text: str, folder: str = "") -> str | None:
    """Return the address of a repository on the hub; None when the text is neither its id nor an address."""
    if is_iri(text):
        return text
    return f"{HUB}{folder}{text}" if _HUB_ID.match(text) else None


def _links(draft: Draft, node: dict[str, Any], key: str, term: str, folder: str) -> None:
    """Move the ids under the key to the links of the card; what is no id stays in the source with a warning."""
    links = take_each(node, key, lambda value: hub_iri(text, folder) if (text := as_text(value)) else None)
    draft.put(term, [*as_list(draft.body.get(term)), *links])
    strange = [text for value in as_list(node.get(key)) if (text := as_text(value))]
    if strange:
        draft.warn(key, f"{strange[0][:80]!r} is not the id of a repository; left out")


def _model(draft: Draft, node: dict[str, Any]) -> None:
    draft.put("mlTask", take_text(node, "pipeline_tag"))
    tags = [tag.lower() for tag in draft.body.get("keywords", [])]
    library = take_text(node, "library_name")
    frameworks = [library] if library else []
    frameworks += [_FRAMEWORK_TAGS[tag] for tag in tags if tag in _FRAMEWORK_TAGS]
    draft.put("machineLearningFramework", one_or_many(frameworks))
    draft.put("modelFormat", one_or_many([tag for tag in tags if tag in _FORMAT_TAGS]))
    relation = node.get("base_model_relation")
    if relation == "finetune":
        del node["base_model_relation"]
    _links(draft, node, "base_model", "fineTunedFrom" if relation in (None, "finetune") else "isBasedOn", "")
    _links(draft, node, "datasets", "trainedOn", "datasets/")
    newer = take_one(node, "new_version", lambda value: hub_iri(text) if (text := as_text(value)) else None)
    draft.put("supersededBy", newer)
    draft.put("evaluationMetrics", take_texts(node, "metrics"))
    _evaluations(draft, node)
    _emissions(draft, node)


def _emissions(draft: Draft, node: dict[str, Any]) -> None:
    def convert(value: Any) -> dict[str, Any] | None:
        grams = value.get("emissions") if isinstance(value, dict) else value
        if isinstance(grams, bool) or not isinstance(grams, (int, float)):
            return None
        made = {"@type": "PropertyValue", "value": grams, "unitText": "g"}
        if isinstance(value, dict):
            del value["emissions"]
            source = take_text(value, "source")
            made |= {"measurementTechnique": source} if source else {}
        return made

    draft.put("hasCO2eEmissions", take_one(node, "co2_eq_emissions", convert))
    if "hasCO2eEmissions" not in draft.body and "co2_eq_emissions" in node:
        draft.warn("co2_eq_emissions", "is not a number of grams; left out")


def _evaluations(draft: Draft, node: dict[str, Any]) -> None:
    names: list[str] = []

    def index(value: Any) -> list[dict[str, Any]] | None:
        made = take_each(value, "results", _evaluation) if isinstance(value, dict) else []
        if made and (name := take_text(value, "name")):
            names.append(name)
        return made or None

    evaluations = [each for made in take_each(node, "model-index", index) for each in made]
    draft.put("hasEvaluation", evaluations)
    if names and "name" not in draft.body:
        draft.put("name", names[0])
    draft.put("alternateName", one_or_many([name for name in names if name != draft.body.get("name")]))
    datasets = [each["evaluationDataset"]["@id"] for each in evaluations if "@id" in each.get("evaluationDataset", {})]
    draft.put("evaluatedOn", list(dict.fromkeys(datasets)))
    if "mlTask" not in draft.body:
        draft.put("mlTask", one_or_many([each["mlTask"] for each in evaluations if "mlTask" in each]))
    if "evaluationMetrics" not in draft.body:
        metrics = [result["propertyID"] for each in evaluations for result in each["evaluationResults"]]
        draft.put("evaluationMetrics", list(dict.fromkeys(metrics)))


def _evaluation(value: Any) -> dict[str, Any] | None:
    results = take_each(value, "metrics", _metric) if isinstance(value, dict) else []
    if not results:
        return None
    task = take_one(value, "task", lambda each: take_text(each, "type") if isinstance(each, dict) else None)
    made = {
        "@type": "MLModelEvaluation",
        "mlTask": task,
        "evaluationDataset": take_one(value, "dataset", _evaluation_dataset),
        "evaluationResults": results,
    }
    return {key: each for key, each in made.items() if each}


def _evaluation_dataset(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    iri = take_one(value, "type", lambda each: hub_iri(text, "datasets/") if (text := as_text(each)) else None)
    name, revision = take_text(value, "name"), take_text(value, "revision")
    made = {"@type": "Dataset", "@id": iri, "name": name, "version": revision}
    return {key: each for key, each in made.items() if each} if iri or name or revision else None


def _metric(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or as_text(value.get("type")) is None or as_text(value.get("value")) is None:
        return None
    made = {"@type": "PropertyValue", "propertyID": take_text(value, "type"), "name": take_text(value, "name")}
    return {key: each for key, each in made.items() if each} | {"value": value.pop("value")}


def _dataset(draft: Draft, node: dict[str, Any]) -> None:
    tasks = _listed(node, "task_categories")
    # The finer tasks count as tasks too, yet the source must keep telling them from the categories.
    finer = _listed({"task_ids": node.get("task_ids")}, "task_ids")
    draft.put("mlTask", one_or_many([*tasks, *finer]))
    properties = [
        {"@type": "PropertyValue", "propertyID": key, "value": text}
        for key in _PROPERTIES
        for text in _listed(node, key)
    ]
    draft.put("additionalProperty", properties)
    extended = take_each(node, "source_datasets", _source)
    draft.put("wasDerivedFrom", extended)
    draft.put("evaluationMetrics", take_texts(node, "metrics"))
    read_dataset_info(draft, node)
    read_configs(draft, node)


def _source(value: Any) -> str | None:
    text = as_text(value) or ""
    kind, _, name = text.partition("|")
    if kind == "extended":
        return hub_iri(name, "datasets/") if name and not name.startswith("other") else None
    return hub_iri(text, "datasets/") if text not in ("original", "") else None
