"""The entities of an RO-Crate: found by id, their ids made absolute, and laid into those that point to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fairmile.base.digest import ni
from fairmile.catalog.card import as_list, id_of
from fairmile.catalog.exchange.common.jsonld import Names, is_text, vocabulary
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.identity import is_iri

METADATA_FILES = ("ro-crate-metadata.json", "ro-crate-metadata.jsonld")
CRATE_PROFILE = "https://w3id.org/ro/crate/"
# Marks, in an export of ours, an entity that stands for an asset described elsewhere.
REFERENCE = "https://w3id.org/fairmile/terms#Reference"
# Ids of entities that an export of ours had to name, and the type of those that had none.
MINTED = "#fx-"
UNTYPED = "Node"
OWN_ID = "fx:id"
FILE_TYPES = frozenset({"File", "MediaObject", "FileObject", "FileSet", "DataDownload"})
# Properties that lead from one thing to another of its own; all others describe the thing they stand on.
_LINKS = frozenset(
    {"about", "conformsTo", "encodingFormat", "exampleOfWork", "hasPart", "isBasedOn", "isPartOf", "license"}
    | {"mainEntity", "mentions", "sameAs", "subjectOf", "workExample"}
)
_DEEPEST = 6


def normal_id(identifier: str) -> str:
    """Return the id as it is looked up: a file is the same with and without a leading `./`."""
    return "./" if identifier in (".", "./") else identifier.removeprefix("./")


def types_of(node: Mapping[str, Any]) -> list[str]:
    """Return the types of an entity, without those that are no texts."""
    return [each for each in as_list(node.get("@type")) if isinstance(each, str)]


def references(value: Any) -> list[str]:
    """Return the ids, as they are looked up, that a property points to."""
    return [normal_id(each["@id"]) for each in as_list(value) if _is_reference(each)]


def _is_reference(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("@id"), str)


def find_descriptor(entities: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the id of the entity that describes the metadata document itself."""
    for name in METADATA_FILES:
        if name in entities:
            return name
    for identifier, node in entities.items():
        profiles = [id_of(each) or "" for each in as_list(node.get("conformsTo"))]
        described = any(profile.startswith(CRATE_PROFILE) for profile in profiles) and "about" in node
        if described and (identifier.endswith(METADATA_FILES) or "Dataset" not in types_of(node)):
            return identifier
    return None


class Graph:
    """The entities of one crate; `nodes` has them in the names of a card, `raw` as they came.

    `assets` and `files` are filled in by the reader: what becomes a card, and what a file of one. `placed` collects
    what has been laid into something else, `stray` what is no entity at all.
    """

    def __init__(self, document: Document, source: Mapping[str, Any]) -> None:
        self.document = document
        self.names = Names(source.get("@context"), bare=("schema", "dct", "bio", "wfrun", "codemeta"))
        # RFC 6920 name of the document as the authority of an arcp address: relative ids become absolute offline.
        self.base = f"arcp://{ni(document.sha256).removeprefix('ni:///').replace('sha-256;', 'ni,sha-256;')}/"
        self.raw: dict[str, dict[str, Any]] = {}
        self.stray: list[Any] = []
        self.problems: list[tuple[str, str]] = []
        for number, entity in enumerate(as_list(source["@graph"])):
            self._add(number, entity)
        self.nodes: dict[str, dict[str, Any]] = {key: self.names.rename(node) for key, node in self.raw.items()}
        self.descriptor = find_descriptor(self.nodes)
        described = references(self.nodes[self.descriptor].get("about")) if self.descriptor else []
        self.root = next((each for each in [*described, "./"] if each in self.nodes), None)
        self.same: dict[str, str] = {}
        self.assets: dict[str, str] = {}
        self.files: set[str] = set()
        self.placed: set[str] = set()
        # Entities that many point to are laid into each; a hostile crate must not make that explode.
        self._budget = 10_000 + 20 * len(self.nodes)

    def _add(self, number: int, entity: Any) -> None:
        field = f"@graph[{number}]"
        if not isinstance(entity, dict) or not is_text(entity.get("@id")):
            self.problems.append((field, "is not an entity with an @id; kept among the foreign keys"))
            self.stray.append(entity)
        elif normal_id(entity["@id"]) in self.raw:
            self.problems.append((field, f"describes {entity['@id']!r} a second time; kept among the foreign keys"))
            self.stray.append(entity)
        else:
            self.raw[normal_id(entity["@id"])] = entity

    def absolute(self, identifier: str) -> str:
        """Return the id as an absolute address; the crate's digest takes the place of a host."""
        identifier = self.same.get(identifier, identifier)
        if is_iri(identifier) and not identifier.startswith("_:"):
            return identifier
        if identifier == "./":
            return self.base
        path = identifier.replace("_:", ".well-known/genid/", 1) if identifier.startswith("_:") else identifier
        return self.base + quote(path.lstrip("/"), safe="/#?=&%+,;:@!$'()*~")

    def value(self, key: str, value: Any, draft: Draft, path: tuple[str, ...] = ()) -> Any:
        """Return a property's value for a card: links as addresses, described entities laid in."""
        if isinstance(value, list):
            return [self.value(key, each, draft, path) for each in value]
        if not isinstance(value, Mapping) or "@value" in value:
            return value
        if set(value) == {"@id"} and isinstance(value["@id"], str):
            return self._reference(key, value["@id"], draft, path)
        return self.properties(value, draft, path)

    def properties(self, node: Mapping[str, Any], draft: Draft, path: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return a node with all its values as `value` gives them."""
        made = {}
        for key, inner in node.items():
            if key == "@id" and isinstance(inner, str):
                made[key] = self.absolute(normal_id(inner))
            elif key.startswith("@") or key in vocabulary().json_terms:
                made[key] = inner
            else:
                made[key] = self.value(key, inner, draft, path)
        return made

    def _reference(self, key: str, given: str, draft: Draft, path: tuple[str, ...]) -> Any:
        identifier = normal_id(given)
        address = self.absolute(identifier)
        if identifier in self.assets or identifier in self.files or identifier == self.root:
            return address
        node = self.nodes.get(identifier)
        if node is None:
            if not is_iri(given):
                draft.warn(key, f"points to {given!r}, which the crate does not describe")
            return address if key in _LINKS or key in vocabulary().link_terms else {"@id": address}
        if REFERENCE in [id_of(each) for each in as_list(node.get("additionalType"))]:
            self.placed.add(identifier)
            return node.get("name") if identifier.startswith(MINTED) else address
        if key in _LINKS:
            return address
        if identifier in path or len(path) >= _DEEPEST or self._budget <= 0:
            return {"@id": address}
        self._budget -= 1
        self.placed.add(identifier)
        made = self.properties(node, draft, (*path, identifier))
        return _as_it_was(made) if identifier.startswith(MINTED) else made

    def unplaced(self) -> list[Any]:
        """Return every entity that is in no card, as it came."""
        placed = {self.root, self.descriptor, *self.assets, *self.files, *self.placed}
        return [node for key, node in self.raw.items() if key not in placed] + self.stray


def _as_it_was(made: dict[str, Any]) -> dict[str, Any]:
    """Return an entity that an export of ours made of an inner value, as that value."""
    own = made.pop(OWN_ID, None)
    types = made.get("@type")
    made.pop("@id", None)
    if types == UNTYPED:
        del made["@type"]
    return {"@id": own, **made} if own is not None else made
