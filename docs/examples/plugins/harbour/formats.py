"""Reads and writes datapackage.json of Frictionless Data: a module with `recognises`, `read`, `KINDS` and `write`."""

import json

from fairmile.catalog.card import Card
from fairmile.catalog.exchange.draft import Document, Draft

KINDS = ("dataset",)


def recognises(document: Document) -> bool:
    """Tell by name alone, so that other documents are not parsed."""
    return document.file_name == "datapackage.json"


def read(document: Document) -> list[Draft]:
    package = document.json()
    if not isinstance(package, dict) or not isinstance(package.get("name"), str):
        raise document.refuse("a data package has a name", field="name")
    draft = Draft("dataset", {"name": package.pop("name"), "version": str(package.pop("version", "1.0"))})
    draft.put("description", package.pop("description", package.pop("title", "")))
    draft.put("license", [each["name"] for each in package.pop("licenses", []) if "name" in each])
    for resource in package.pop("resources", []):
        draft.add_file(name=resource.get("name"), url=resource.get("path"), size=resource.get("bytes"))
    draft.foreign = package  # what has no place on a card is kept as it is
    return [draft]


def write(card: Card) -> dict[str, str]:
    resources = [{"name": file.name, "path": file.url} for file in card.files]
    package = {"name": card.handle.name, "version": card.handle.version, "resources": resources}
    package["description"] = str(card.get("description", ""))
    return {"datapackage.json": json.dumps(package, indent=2) + "\n"}
