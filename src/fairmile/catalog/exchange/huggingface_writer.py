"""The README.md that describes a model or a data set on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from fairmile.base.yaml import dump
from fairmile.catalog.card import SPDX_PREFIX, Card, as_list, id_of, text_of
from fairmile.catalog.exchange.common.agents import agents_of
from fairmile.catalog.exchange.common.markdown import title_of
from fairmile.catalog.exchange.common.parts import given_version, one_or_many, with_rest
from fairmile.catalog.exchange.draft import filled
from fairmile.catalog.exchange.huggingface_data import configs_of, dataset_info_of
from fairmile.catalog.identity import is_iri

KINDS = ("model", "dataset")
_HUB = "https://huggingface.co/"
# The tasks the hub knows; any other task is a tag there.
_TASKS_WORDS = """
text-classification token-classification table-question-answering question-answering
zero-shot-classification translation summarization feature-extraction text-generation text2text-generation
fill-mask sentence-similarity text-ranking text-to-speech text-to-audio automatic-speech-recognition
audio-to-audio audio-classification audio-text-to-text voice-activity-detection depth-estimation
image-classification object-detection image-segmentation text-to-image image-to-text image-to-image
image-to-video unconditional-image-generation video-classification reinforcement-learning robotics
tabular-classification tabular-regression tabular-to-text table-to-text multiple-choice text-retrieval
time-series-forecasting text-to-video image-text-to-text image-text-to-image image-text-to-video
visual-question-answering document-question-answering zero-shot-image-classification graph-ml
mask-generation zero-shot-object-detection text-to-3d image-to-3d image-feature-extraction
video-text-to-text keypoint-detection visual-document-retrieval any-to-any video-to-video other
"""
TASKS = frozenset(_TASKS_WORDS.split())
# The licences the hub knows by their SPDX ids in lower case; any other licence is `other` with a name there.
_LICENCES_WORDS = """
apache-2.0 mit afl-3.0 artistic-2.0 bsl-1.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear cc0-1.0 cc-by-2.0
cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 isc
lppl-1.3c ms-pl mpl-2.0 osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib
"""
_LICENCES = frozenset(_LICENCES_WORDS.split())
_LICENCE_NAMES = {
    "AGPL-3.0-only": "agpl-3.0",
    "GPL-2.0-only": "gpl-2.0",
    "GPL-3.0-only": "gpl-3.0",
    "LGPL-2.1-only": "lgpl-2.1",
    "LGPL-3.0-only": "lgpl-3.0",
    "ODC-By-1.0": "odc-by",
    "ODbL-1.0": "odbl",
    "PDDL-1.0": "pddl",
    "C-UDA-1.0": "c-uda",
}
_HUB_ONLY_LICENCES_WORDS = """
openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m bsd cc
gfdl gpl lgpl odc-by openrail++ lgpl-lr deepfloyd-if-license llama2 llama3 llama3.1 llama3.2 llama3.3
llama4 gemma fair-noncommercial-research-license intel-research apple-ascl apple-amlr unknown other
"""
_HUB_ONLY_LICENCES = frozenset(_HUB_ONLY_LICENCES_WORDS.split())
_GRAMS = {"g": 1, "gram": 1, "grams": 1, "kg": 1000, "t": 1_000_000}


def write(card: Card) -> dict[str, str]:
    """Return README.md for the card: front matter with the keys the hub documents, then the text."""
    foreign = card.get("foreign")
    rest = foreign.get("huggingface") if isinstance(foreign, Mapping) else None
    rest = rest if isinstance(rest, Mapping) else {}
    made = {"language": one_or_many(card.texts("inLanguage")), **_licence(card)}
    made |= _model(card) if card.kind == "model" else _dataset(card, rest)
    made |= _access(card)
    made["version"] = given_version(card)
    if card.kind == "model" and not any(made.get(key) for key in ("library_name", "pipeline_tag", "tags", "license")):
        made["model_name"] = card.title
    front = with_rest(filled(made), rest)
    text = card.text("text") or _text(card)
    return {"README.md": f"---\n{dump(front) if front else ''}---\n\n{text}\n"}


def _licence(card: Card) -> dict[str, Any]:
    known = [text.removeprefix(SPDX_PREFIX) for text in card.texts("license") if text.startswith(SPDX_PREFIX)]
    names = [_LICENCE_NAMES.get(licence, licence.lower()) for licence in known]
    if names and all(name in _LICENCES or name in _LICENCE_NAMES.values() for name in names):
        return {"license": one_or_many(names)}
    if known:
        link = f"{SPDX_PREFIX}{known[0]}.html" if len(known) == 1 and " " not in known[0] else None
        return {"license": "other", "license_name": ", ".join(known), "license_link": link}
    texts = card.texts("licenseRaw") or card.texts("license")
    link = next((text for text in texts if is_iri(text)), None)
    named = next((text for text in texts if not is_iri(text)), None)
    if named in _HUB_ONLY_LICENCES:
        return {"license": named, "license_link": link}
    return {"license": "other", "license_name": named, "license_link": link} if texts else {}


def _tags(card: Card, *more: str) -> list[str]:
    unknown = [task for task in card.tasks if task not in TASKS]
    return list(dict.fromkeys([*card.keywords, *unknown, *card.domains, *more]))


def _hub_ids(card: Card, term: str, folder: str = "") -> list[str]:
    prefix = _HUB + folder
    targets = [target for value in as_list(card.get(term)) if (target := id_of(value)) and target.startswith(prefix)]
    ids = [target.removeprefix(prefix).strip("/") for target in targets]
    return [each for each in ids if each and (folder or not each.startswith(("datasets/", "spaces/")))]


def _model(card: Card) -> dict[str, Any]:
    tasks = [task for task in card.tasks if task in TASKS]
    frameworks = card.texts("machineLearningFramework") or card.texts("framework")
    formats = [
        name for name in card.formats if name in ("onnx", "safetensors", "gguf", "tflite") and name not in card.keywords
    ]
    tuned, based = _hub_ids(card, "fineTunedFrom"), _hub_ids(card, "isBasedOn")
    return {
        "library_name": frameworks[0] if frameworks else None,
        "pipeline_tag": tasks[0] if tasks else None,
        "tags": _tags(card, *tasks[1:], *formats),
        "base_model": one_or_many(tuned or based),
        "base_model_relation": "finetune" if tuned and "isBasedOn" in card else None,
        "new_version": next(iter(_hub_ids(card, "supersededBy")), None),
        "datasets": _hub_ids(card, "trainedOn", "datasets/"),
        "metrics": card.texts("evaluationMetrics"),
        "model-index": _model_index(card),
        "co2_eq_emissions": _emissions(card),
        "model_name": card.title if title_of(card.text("text") or _text(card)) != card.title else None,
    }


def _emissions(card: Card) -> Any:
    value = next(iter(as_list(card.get("hasCO2eEmissions"))), None)
    amount = value.get("value") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or isinstance(amount, bool) or not isinstance(amount, (int, float)):
        return None
    factor = _GRAMS.get(str(value.get("unitText", "")).split(" ")[0].lower())
    if factor is None:
        return None
    source = text_of(value.get("measurementTechnique"))
    return {"emissions": amount * factor, "source": source} if source else amount * factor


def _model_index(card: Card) -> list[dict[str, Any]]:
    made = [_result(each) for each in as_list(card.get("hasEvaluation")) if isinstance(each, Mapping)]
    results = [each for each in made if each]
    return [{"name": card.text("alternateName") or card.title, "results": results}] if results else []


def _result(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one entry of `results`, which the hub refuses without a task, a data set and metrics."""
    dataset = evaluation.get("evaluationDataset")
    dataset = dataset if isinstance(dataset, Mapping) else {"@id": id_of(dataset)} if id_of(dataset) else {}
    iri, name = str(dataset.get("@id") or ""), text_of(dataset.get("name"))
    task = text_of(evaluation.get("mlTask"))
    metrics = [
        {
            key: each[term]
            for key, term in (("type", "propertyID"), ("value", "value"), ("name", "name"))
            if term in each
        }
        for each in as_list(evaluation.get("evaluationResults"))
        if isinstance(each, Mapping) and "propertyID" in each and "value" in each
    ]
    if not (iri or name) or not task or not metrics:
        return None
    kind = iri.removeprefix(f"{_HUB}datasets/") or name
    described = {"type": kind, "name": name or kind, "revision": text_of(dataset.get("version"))}
    return {
        "task": {"type": task},
        "dataset": {key: text for key, text in described.items() if text},
        "metrics": metrics,
    }


def _dataset(card: Card, rest: Mapping[str, Any]) -> dict[str, Any]:
    finer = [str(text) for text in as_list(rest.get("task_ids"))]
    properties: dict[str, list[Any]] = {}
    for each in as_list(card.get("additionalProperty")):
        if isinstance(each, Mapping) and "propertyID" in each:
            properties.setdefault(str(each["propertyID"]), []).append(each.get("value"))
    count = card.get("sampleCount")
    sizes = properties.get("size_categories") or ([_size_category(count)] if isinstance(count, int) else None)
    from_hub = (
        isinstance(card.get("sourceDocument"), Mapping)
        and card["sourceDocument"].get("encodingFormat") == "huggingface"
    )
    return {
        "pretty_name": card.title,
        "tags": [tag for tag in _tags(card) if tag not in finer],
        "task_categories": [task for task in card.tasks if task in TASKS and task not in finer],
        "size_categories": sizes,
        **{key: properties.get(key) for key in ("annotations_creators", "language_creators", "multilinguality")},
        "source_datasets": _hub_ids(card, "wasDerivedFrom", "datasets/"),
        "dataset_info": dataset_info_of(card, rest.get("dataset_info")),
        "configs": configs_of(card, rest.get("configs")) if from_hub else None,
    }


def _size_category(count: int) -> str:
    steps = [(10**power, f"{10 ** (power % 3)}{' KMBT'[power // 3]}".strip()) for power in range(3, 13)]
    if count < 1000:
        return "n<1K"
    for (_, lower), (limit, upper) in pairwise(steps):
        if count < limit:
            return f"{lower}<n<{upper}"
    return "n>1T"


def _access(card: Card) -> dict[str, Any]:
    conditions = card.text("conditionsOfAccess")
    gated = card.text("accessRights") in ("registered", "restricted")
    return {"extra_gated_prompt": conditions} if gated and conditions and not conditions.startswith("Asks for") else {}


def _text(card: Card) -> str:
    """Return the text of a card that brings none: what the card says, section by section."""
    parts = [f"# {card.title}", card.text("description") or card.text("abstract")]
    sections = {
        "Intended use": card.text("intendedUse"),
        "Risks, biases and limitations": card.text("modelRisksBiasLimitations"),
        "Trained on": "\n".join(f"- {text}" for value in as_list(card.get("trainedOn")) if (text := id_of(value))),
        "Evaluation": _results_table(card),
        "Creators": "\n".join(f"- {agent['name']}" for agent in agents_of(card.get("creator"))),
        "Citation": f"```bibtex\n{card.text('citeAs')}\n```"
        if card.text("citeAs")
        else "\n".join(card.texts("citation")),
    }
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(part for part in parts if part)


def _results_table(card: Card) -> str:
    rows = []
    for each in as_list(card.get("evaluationResults")):
        if isinstance(each, Mapping) and "value" in each:
            metric = text_of(each.get("name")) or text_of(each.get("propertyID")) or ""
            rows.append(f"| {metric} | {each['value']} | {text_of(each.get('unitText')) or ''} |".replace("\n", " "))
    return "\n".join(["| metric | value | unit |", "|---|---|---|", *rows]) if rows else ""
