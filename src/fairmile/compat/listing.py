"""A card as HPCFAIR's listings show it: the same keys, the same shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmile.catalog.card import Card, as_list, id_of, text_of

# HPCFAIR key and the property of the profile it shows, for all kinds.
_PLAIN = {
    "@id": "@id",
    "@title": "name",
    "@description": "description",
    "@url": "url",
    "hpc:submitter": "submitter",
    "hpc:modelFormat": "modelFormat",
    "hpc:modelType": "modelCategory",
    "hpc:isTunable": "isTunable",
    "hpc:hyperParams": "hyperparameters",
    "hpc:machineLearningFramework": "machineLearningFramework",
    "hpc:acceleratorSupport": "supportsAccelerator",
    "hpc:metrics": "evaluationMetrics",
    "hpc:reqSoftwares": "softwareRequirements",
    "hpc:reqHardware": "processorRequirements",
    "hpc:sysConfig": "environmentVariables",
}
_LINKS = {
    "hpc:associatedFiles": ("hasPart",),
    "hpc:associatedExpt": ("isPartOf",),
    "hpc:associatedWorkflow": ("instrument",),
    "hpc:associatedDataset": ("trainedOn", "acceptsDataset", "object"),
    "hpc:associatedModel": ("evaluatedMLModel", "result"),
}


def hpcfair_listing(card: Card) -> dict[str, Any]:
    """Return the metadata of an asset with HPCFAIR's keys; a key without a value is left out."""
    listing: dict[str, Any] = {
        key: card[name] for key, name in _PLAIN.items() if card.get(name) not in (None, "", [], {})
    }
    for key, names in _LINKS.items():
        targets = [text for name in names for value in as_list(card.get(name)) if (text := id_of(value))]
        if targets:
            listing[key] = targets
    citations = [text for value in as_list(card.get("citation")) if (text := _citation(value))]
    if citations:
        listing["hpc:citation"] = citations[0] if len(citations) == 1 else citations
    tags: dict[str, Any] = {"Version": card.version, "License": card.licence or card.text("license")}
    tags |= {"tasks": card.tasks, "category": card.keywords}
    listing["hpc:tags"] = {key: value for key, value in tags.items() if value}
    return listing


def _citation(value: Any) -> str | None:
    return str(value["text"]) if isinstance(value, Mapping) and "text" in value else text_of(value)
