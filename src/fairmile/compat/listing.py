"""A card as HPCFAIR's listings show it: the same keys, the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.catalog.card import Card, as_list, id_of, text_of
from fairmile.catalog.catalog import Catalog

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
}
# What an asset needs stands on its own card or on that of the environment it requires.
_NEEDS = {
    "hpc:reqSoftwares": "softwareRequirements",
    "hpc:reqHardware": "processorRequirements",
    "hpc:sysConfig": "environmentVariables",
}
_LINKS = {
    "hpc:associatedFiles": ("hasPart",),
    "hpc:associatedExpt": ("isPartOf",),
    "hpc:associatedWorkflow": ("instrument",),
    "hpc:associatedDataset": ("trainedOn", "acceptsDataset", "object"),
    "hpc:associatedModel": ("evaluatedMLModel", "object", "result"),
}
_NOTHING: tuple[Any, ...] = (None, "", [], {})


def get_listings(catalog: Catalog, name: str | Sequence[str], kind: str) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the listing of one asset, or of each in a list."""

    def find(target: str) -> Card | None:
        try:
            return catalog.get(target)
        except (NotFound, UsageError):
            return None

    if isinstance(name, str):
        return hpcfair_listing(catalog.get(name, kind=kind), find)
    return [hpcfair_listing(catalog.get(each, kind=kind), find) for each in name]


def hpcfair_listing(card: Card, find: Callable[[str], Card | None]) -> dict[str, Any]:
    """Return the metadata of an asset with HPCFAIR's keys; a key without a value is left out.

    `find` looks up what a link points to: a listing tells models from data sets, and holds its environment.
    """
    listing: dict[str, Any] = {key: card[name] for key, name in _PLAIN.items() if card.get(name) not in _NOTHING}
    listing |= _needs(card, find)
    for key, names in _LINKS.items():
        targets = [text for name in names for value in as_list(card.get(name)) if (text := id_of(value))]
        if key in ("hpc:associatedDataset", "hpc:associatedModel"):
            targets = [text for text in targets if _is_model(text, find) == (key == "hpc:associatedModel")]
        if targets:
            listing[key] = list(dict.fromkeys(targets))
    citations = [text for value in as_list(card.get("citation")) if (text := _citation(value))]
    if citations:
        listing["hpc:citation"] = citations[0] if len(citations) == 1 else citations
    tags: dict[str, Any] = {"Version": card.version, "License": card.licence or card.text("license")}
    tags |= {"tasks": card.tasks, "category": card.keywords}
    tags |= card["tags"] if isinstance(card.get("tags"), Mapping) else {}
    listing["hpc:tags"] = {key: value for key, value in tags.items() if value not in _NOTHING}
    return listing


def _needs(card: Card, find: Callable[[str], Card | None]) -> dict[str, Any]:
    required = [text for value in as_list(card.get("softwareRequirements")) if (text := id_of(value))]
    environments = {
        text: needed for text in required if (needed := find(text)) is not None and needed.kind == "environment"
    }
    needs: dict[str, Any] = {}
    for key, name in _NEEDS.items():
        own = [value for value in as_list(card.get(name)) if id_of(value) not in environments]
        values = own + [value for each in environments.values() for value in as_list(each.get(name))]
        if values:
            needs[key] = values[0] if len(values) == 1 and isinstance(values[0], Mapping) else values
    return needs


def _is_model(target: str, find: Callable[[str], Card | None]) -> bool:
    card = find(target)
    return card is not None and card.kind == "model"


def _citation(value: Any) -> str | None:
    return str(value["text"]) if isinstance(value, Mapping) and "text" in value else text_of(value)
