"""A card as an RO-Crate 1.1, a run as a Process Run Crate 0.5; `rocrate` tells how the two correspond."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fairmile.base.digest import parse_checksum
from fairmile.base.errors import UsageError
from fairmile.base.units import parse_size
from fairmile.catalog.card import LINKS, SPDX_PREFIX, Card, as_list, text_of
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.common.jsonld import (
    ADMINISTRATIVE,
    CHECKSUMS,
    SCHEMA,
    VERBATIM,
    is_text,
    json_text,
    one_text,
    vocabulary,
)
from fairmile.catalog.exchange.rocrate_graph import CRATE_PROFILE, METADATA_FILES, MINTED, OWN_ID, REFERENCE, UNTYPED
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri
from fairmile.catalog.kinds import KINDS as _KINDS

KINDS = tuple(_KINDS)
# Says of a root data entity that it only wraps the card that is its main entity.
CARD_CRATE = "https://w3id.org/fairmile/terms#CardCrate"
_PROCESS_RUN = "https://w3id.org/ro/wfrun/process/0.5"
_NO_LICENCE = "No licence is stated."
_ACTIONS = {"CreateAction", "UpdateAction", "ActivateAction"}
# Terms of ours that RO-Crate 1.1 does not define although schema.org does, or that it defines under its own address.
_NOT_IN_1_1 = {"OperatingSystem", "RuntimePlatform", "sha256"}
_BARE_IN_1_1 = {"conformsTo", "ComputationalWorkflow", "FormalParameter", "input", "output"}
# Links whose targets are packages or texts as often as assets.
_LITERAL = {"softwareRequirements", "about"}
_MUST_BE_ENTITIES = ("instrument", "object", "result")


class _NotFlatError(Exception):
    """The value has no place in a flat graph."""


def write(card: Card) -> dict[str, str]:
    """Return the metadata document of a crate that describes the card."""
    document = _Writing(card).document()
    return {METADATA_FILES[0]: json.dumps(document, indent=2, ensure_ascii=False) + "\n"}


def root_summary(asset: Mapping[str, Any], entities: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the root repeats of the asset it wraps; None where the value is the root's own."""
    name = one_text(asset.get("name")) or "asset"
    summary: dict[str, Any] = {
        "additionalType": CARD_CRATE,
        "name": name,
        "description": one_text(asset.get("description")) or f"Describes {name}.",
        "license": asset.get("license") or _NO_LICENCE,
        "datePublished": asset.get("datePublished"),
    }
    for key, source in (("author", "creator"), ("publisher", "publisher")):
        agents = [each for each in as_list(asset.get(source)) if _is_agent(each, entities)]
        if agents:
            summary[key] = agents[0] if len(agents) == 1 or key == "publisher" else agents
    if set(as_list(asset.get("@type"))) & _ACTIONS:
        summary["mentions"] = {"@id": asset["@id"]}
        if asset.get("instrument"):
            summary["conformsTo"] = {"@id": _PROCESS_RUN}
    return summary


def _is_agent(value: Any, entities: Mapping[str, Mapping[str, Any]]) -> bool:
    node = entities.get(str(value.get("@id")), {}) if isinstance(value, Mapping) else {}
    return bool({"Person", "Organization"} & set(as_list(node.get("@type"))))


def is_made_by_export(entity: Any) -> bool:
    """Tell whether the entity only names a profile or licence, as every export adds them."""
    return isinstance(entity, Mapping) and entity == _named_work(str(entity.get("@id")))


def _named_work(iri: str) -> dict[str, Any]:
    names = {_PROCESS_RUN: "Process Run Crate 0.5", f"{CRATE_PROFILE}1.1": "RO-Crate 1.1"}
    return {"@id": iri, "@type": "CreativeWork", "name": names.get(iri) or iri.removeprefix(SPDX_PREFIX)}


class _Writing:
    """Builds the graph of one crate; `verbatim` collects what has no place in it."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.id = card.iri if is_iri(card.iri) else f"{MINTED}asset"
        self.entities: dict[str, dict[str, Any]] = {}
        self.context: dict[str, str] = {}
        self.verbatim: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        descriptor = {
            "@id": METADATA_FILES[0],
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": f"{CRATE_PROFILE}1.1"},
        }
        asset: dict[str, Any] = {"@id": self.id, "@type": _compact([self._type(each) for each in self.card.types])}
        for key, value in self.card.items():
            if not key.startswith("@") and key not in VOLATILE_KEYS:
                self._property(asset, key, value)
        files = [self._file(entry) for entry in as_list(self.card.get("distribution")) if isinstance(entry, Mapping)]
        parts = [*as_list(asset.pop("hasPart", None)), *files]
        if parts:
            asset["hasPart"] = _compact(parts)
        if self.verbatim:
            asset[self._name(VERBATIM)] = json_text(self.verbatim)
        root = self._root(asset, files)
        graph = [descriptor, root, asset, *self.entities.values()]
        context: Any = f"{CRATE_PROFILE}1.1/context"
        return {"@context": [context, self.context] if self.context else context, "@graph": graph}

    def _root(self, asset: Mapping[str, Any], files: list[dict[str, str]]) -> dict[str, Any]:
        summary = root_summary(asset, self.entities)
        summary["datePublished"] = summary["datePublished"] or self._date()
        parts = [{"@id": self.id}] if {"Dataset", "File", "MediaObject"} & set(as_list(asset["@type"])) else []
        root: dict[str, Any] = {"@id": "./", "@type": "Dataset", **summary, "mainEntity": {"@id": self.id}}
        if parts + files:
            root["hasPart"] = _compact(parts + files)
        if "conformsTo" in root:
            self.entities[_PROCESS_RUN] = _named_work(_PROCESS_RUN)
        return root

    def _date(self) -> str:
        """Return the day the crate stands for: one that the card gives, else that of its making."""
        given = (self.card.text(key) for key in ("dateModified", "dateCreated", "endTime", "startTime"))
        return next((text for text in given if is_date(text)), datetime.now(UTC).date().isoformat())

    def _property(self, asset: dict[str, Any], key: str, value: Any) -> None:
        if key == "distribution":
            if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
                self.verbatim[key] = value
        elif key in ADMINISTRATIVE or key == "recordSet" or not self._is_known(key):
            self.verbatim[key] = value
        elif key in vocabulary().json_terms:
            asset[self._name(key)] = json_text(value)
        elif key in ("license", "conformsTo"):
            texts = self.card.texts(key)
            if texts:
                asset[key] = _compact([self._work(text) for text in texts])
            if texts != as_list(value):
                self.verbatim[key] = value
        elif key == "actionStatus" and is_text(value):
            local = re.split(r"[/#:]", value)[-1]
            asset[key] = SCHEMA + local if local.endswith("ActionStatus") else value
            if asset[key] != value:
                self.verbatim[key] = value
        else:
            self._flat_property(asset, key, value)

    def _flat_property(self, node: dict[str, Any], key: str, value: Any) -> bool:
        """Set the property as far as a flat graph can say it, and tell whether that is all of it."""
        before = dict(self.entities)
        try:
            node[self._name(key)] = self._flat(key, value)
        except _NotFlatError:
            self.entities = before
            texts = [text for each in as_list(value) if (text := one_text(each))]
            if texts:
                node[self._name(key)] = _compact(texts)
            if node.get("@id") == self.id:
                self.verbatim[key] = value
            return False
        return True

    def _work(self, text: str) -> Any:
        if not is_iri(text):
            return text
        self.entities.setdefault(text, _named_work(text))
        return {"@id": text}

    def _is_known(self, key: str) -> bool:
        return key in vocabulary().iris or (":" in key and key.partition(":")[0] in vocabulary().prefixes)

    def _name(self, key: str) -> str:
        """Return the key and see that the context defines it."""
        if not self._is_known(key):
            raise _NotFlatError(key)
        iri = vocabulary().iris.get(key)
        if iri is None:
            prefix = key.partition(":")[0]
            self.context[prefix] = vocabulary().prefixes[prefix]
        elif key not in _BARE_IN_1_1 and (iri != SCHEMA + key or key in _NOT_IN_1_1):
            self.context[key] = iri
        return key

    def _type(self, name: str) -> str:
        return self._name(name) if self._is_known(name) else name

    def _flat(self, key: str, value: Any) -> Any:
        if isinstance(value, list):
            if not value or any(isinstance(each, list) for each in value):
                raise _NotFlatError(key)
            return _compact([self._flat(key, each) for each in value])
        if isinstance(value, Mapping):
            return self._entity(value)
        if value is None:
            raise _NotFlatError(key)
        if isinstance(value, str) and key in LINKS and key not in _LITERAL:
            if is_iri(value):
                return self._reference(value, value, key)
            if key in _MUST_BE_ENTITIES:
                return self._reference(self._mint(), value, key)
        return value

    def _reference(self, identifier: str, name: str, key: str) -> dict[str, str]:
        """Return a link to an asset that is described elsewhere."""
        wanted = "SoftwareApplication" if key == "instrument" else "CreativeWork"
        known = self.entities.get(identifier)
        if known is None and identifier != self.id:
            self.entities[identifier] = {
                "@id": identifier,
                "@type": wanted,
                "name": name,
                "additionalType": REFERENCE,
            }
        elif known is not None and known.get("additionalType") == REFERENCE and wanted not in as_list(known["@type"]):
            self.entities[identifier] = {**known, "@type": sorted({*as_list(known["@type"]), wanted})}
        return {"@id": identifier}

    def _mint(self) -> str:
        number = len(self.entities) + 1
        while f"{MINTED}{number}" in self.entities:
            number += 1
        return f"{MINTED}{number}"

    def _entity(self, value: Mapping[str, Any]) -> dict[str, str]:
        """Add an inner value to the graph and return the link to it."""
        given = value.get("@id")
        named = isinstance(given, str) and is_iri(given)
        if named and set(value) == {"@id"}:
            return {"@id": str(given)}
        if not value or any(key.startswith("@") and key not in ("@id", "@type") for key in value):
            raise _NotFlatError
        if not is_text(value.get("@id", "x")):
            raise _NotFlatError
        identifier = str(given) if named else self._mint()
        if identifier == self.id:
            raise _NotFlatError
        known = self.entities.get(identifier)
        types = [self._type(each) for each in as_list(value.get("@type")) if is_text(each)]
        made: dict[str, Any] = {"@id": identifier, "@type": _compact(types) if types else self._untyped()}
        if known is None:
            # At once, so that the values inside take other ids.
            self.entities[identifier] = made
        if given is not None and not named:
            made[self._name(OWN_ID)] = given
        for key, inner in value.items():
            if key not in ("@id", "@type"):
                text = key in vocabulary().json_terms
                made[self._name(key)] = json_text(inner) if text else self._flat(key, inner)
        if known is not None and known != made:
            raise _NotFlatError
        return {"@id": identifier}

    def _untyped(self) -> str:
        self.context[UNTYPED] = f"{vocabulary().prefixes['fx']}{UNTYPED}"
        return UNTYPED

    def _file(self, entry: Mapping[str, Any]) -> dict[str, str]:
        """Add a file to the graph, by its address where it has one, and return the link to it."""
        url = entry.get("contentUrl")
        remote = is_text(url) and is_iri(url) and "://" in str(url) and url not in self.entities and url != self.id
        identifier = str(url) if remote else self._mint()
        is_set = "FileSet" in as_list(entry.get("@type"))
        node: dict[str, Any] = {"@id": identifier, "@type": self._type("FileSet") if is_set else "File"}
        self.entities[identifier] = node
        # Where the card is silent a reader would guess.
        verbatim: dict[str, Any] = {key: None for key in ("name", "encodingFormat") if key not in entry}
        if entry.get("@type") != ("FileSet" if is_set else "FileObject"):
            verbatim["@type"] = entry.get("@type")
        node[self._name(OWN_ID)] = str(entry.get("@id") or text_of(entry.get("name")) or identifier)
        if node[OWN_ID] != entry.get("@id"):
            verbatim["@id"] = entry.get("@id")
        for key, value in entry.items():
            if key.startswith("@") or (key == "contentUrl" and remote):
                continue
            flat = self._file_value(key, value)
            if flat is not None:
                node[self._name(key)] = flat
                if key == "contentSize" and value != f"{flat} B":
                    verbatim[key] = value
            elif not self._is_known(key) or not self._flat_property(node, key, value):
                verbatim[key] = value
        if verbatim:
            node[self._name(VERBATIM)] = json_text(verbatim)
        return {"@id": identifier}

    def _file_value(self, key: str, value: Any) -> str | None:
        """Return the size and the checksums as a crate has them; None for all other properties."""
        text = text_of(value) or ""
        if key == "contentSize":
            try:
                return str(parse_size(text))
            except UsageError:
                return None
        if key in CHECKSUMS:
            checksum = parse_checksum(text, key)
            return checksum.hex if checksum and checksum.hex == value else None
        return None


def _compact(values: list[Any]) -> Any:
    """Return the only value itself, as a compacted document has it."""
    return values[0] if len(values) == 1 else values
