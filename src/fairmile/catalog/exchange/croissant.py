"""Croissant 0.8, 1.0 and 1.1 read, and 1.1 written: the JSON-LD in which data sets for machine learning are described.

What a card cannot say in Croissant:

- A file whose checksum is not known. Croissant demands md5 or sha256 of a FileObject, and we invent none. Such a file
  becomes a FileSet whose `includes` names that one file; its address and size stay with it, and a description says
  why. The same holds for a file without an address. A live data set (`isLiveDataset`) is exempt by Croissant itself.
- Creators that are not said to be a person or an organisation go to `creditText`, which asks for neither.
- Record sets with a field that has neither source nor value are not written, since Croissant calls them an error.
- A media type that is not known is written as application/octet-stream.

The card's own value of every key that had to be bent so, and of keys that are in no vocabulary, stands as JSON text in
`fx:verbatim`, from which the reader restores it; on reading it wins over the bent form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.catalog.card import as_list, id_of, text_of
from fairmile.catalog.exchange.common.jsonld import (
    ADMINISTRATIVE,
    VERBATIM,
    Names,
    add_described_file,
    is_text,
    keep_value,
    licence_text,
    one_text,
    parsed,
    restore,
    restored,
    settle_any,
    vocabulary,
)
from fairmile.catalog.exchange.croissant_shape import (
    FILE_TYPES,
    croissant_version,
    each_source,
    is_published,
    names_of,
    nodes_of,
    retarget,
)
from fairmile.catalog.exchange.croissant_writer import KINDS as KINDS
from fairmile.catalog.exchange.croissant_writer import write as write
from fairmile.catalog.exchange.draft import EMPTY, Document, Draft
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri


def recognises(document: Document) -> bool:
    """Tell whether the document is a Croissant description."""
    try:
        source = document.json()
    except UsageError:
        return False
    if not isinstance(source, dict) or "@graph" in source:
        return False
    names = names_of(source.get("@context"))
    if _versions(source, names):
        return True
    if "Dataset" not in names.types(source.get("@type")):
        return False
    if {names.term(key) for key in source} & {"recordSet", "citeAs", "isLiveDataset"}:
        return True
    entries = [entry for key in source if names.term(key) == "distribution" for entry in as_list(source[key])]
    return any(set(names.types(entry.get("@type"))) & set(FILE_TYPES) for entry in entries if isinstance(entry, dict))


def _versions(source: Mapping[str, Any], names: Names) -> list[str]:
    values = [value for key in source if names.term(key) == "conformsTo" for value in as_list(source[key])]
    return [version for value in values if (version := croissant_version(id_of(value) or ""))]


def read(document: Document) -> list[Draft]:
    """Return the data set that a Croissant document describes."""
    source = document.json()
    if not isinstance(source, dict):
        raise document.refuse("is not a JSON object", hint="a Croissant description has @type sc:Dataset")
    names = names_of(source.get("@context"))
    types = names.types(source.pop("@type", None))
    if "Dataset" not in types:
        raise document.refuse(f"is {', '.join(types) or 'nothing'}, expected sc:Dataset", field="@type")
    draft = Draft("dataset", {"@type": types} if len(types) > 1 else {})
    versions = _versions(source, names)
    context = source.pop("@context", None)
    if not is_published(context):
        draft.foreign["@context"] = context
    # Before 1.0 no version was written down, and names served as ids.
    _Reading(draft, names, old=not versions or versions[0] == "0.8").properties(source)
    return [draft]


class _Reading:
    """Fills one draft from the properties of the data set."""

    def __init__(self, draft: Draft, names: Names, *, old: bool) -> None:
        self.draft = draft
        self.names = names
        self.old = old

    def properties(self, source: dict[str, Any]) -> None:
        verbatim: Any = None
        # Files first: what a draft keeps of them must not meet a foreign key of the same name.
        terms = {key: self.names.term(key) for key in source}
        for key, value in sorted(source.items(), key=lambda item: terms[item[0]] != "distribution"):
            if key == "@id":
                self.draft.body[key] = value
                continue
            name = self.names.term(key) or self.names.compact(key)
            if name == VERBATIM:
                verbatim = parsed(value)
            elif name is None or name in VOLATILE_KEYS or name in ADMINISTRATIVE or name in self.draft.body:
                keep_value(self.draft, key, value)
            elif value in EMPTY:
                keep_value(self.draft, key, value)
                if name == "license":
                    self.draft.warn(name, "the source names no licence: the property is empty")
            else:
                self._property(key, name, value)
        if "distribution" in self.draft.body:
            self.draft.body["distribution"] = self.draft.body.pop("distribution")
        self._citation()
        if self.old:
            self._modernise()
        restore(self.draft, verbatim, "croissant")
        # An export had to write files without a checksum as file sets; fields point to files again.
        types = {id_of(entry): entry.get("@type") for entry in self._entries()}
        each_source(self.draft.body.get("recordSet"), lambda each: retarget(each, types))
        settle_any(self.draft)

    def _property(self, key: str, name: str, value: Any) -> None:
        if name == "distribution":
            self._distribution(key, value)
        elif name == "license":
            self._licence(key, value)
        elif name in vocabulary().json_terms:
            self.draft.body[name] = parsed(value)
        else:
            self.draft.body[name] = self.names.rename(value)
        if name == "recordSet":
            for node in nodes_of(self.draft.body[name]):
                if "dataType" in node:
                    node["dataType"] = self._data_type(node["dataType"])

    def _data_type(self, value: Any) -> Any:
        """Return the data type with the prefixes of the published contexts."""
        if isinstance(value, list):
            return [self._data_type(each) for each in value]
        compact = self.names.compact(value) if isinstance(value, str) else None
        if compact and compact.startswith(("schema:", "cr:")):
            return compact.replace("schema:", "sc:")
        return value

    def _licence(self, key: str, value: Any) -> None:
        """Take the text that names the licence; a node that says more than that stays among the foreign keys."""
        values = as_list(value)
        texts = [licence_text(self.names.rename(each)) for each in values]
        licences = [text for text in texts if text]
        if licences:
            self.draft.body["license"] = licences if isinstance(value, list) else licences[0]
        if any(not isinstance(each, str) and not (isinstance(each, dict) and set(each) == {"@id"}) for each in values):
            keep_value(self.draft, key, value)

    def _citation(self) -> None:
        """Read `citeAs` as the citation, and as its first one where the source has others."""
        body = self.draft.body
        cited = body.pop("citeAs", None)
        others = as_list(body.get("citation"))
        if cited is None or text_of(cited) in [text_of(each) for each in others]:
            return
        body["citation"] = [*as_list(cited), *others] if others else cited

    def _distribution(self, key: str, value: Any) -> None:
        self.draft.body["distribution"] = []
        for entry in as_list(value):
            if isinstance(entry, dict):
                self._file(self.names.rename(entry))
            elif is_iri(entry):
                self.draft.add_file(url=entry)
            else:
                self.draft.warn("distribution", f"{str(entry)[:80]!r} describes no file; kept among the foreign keys")
                keep_value(self.draft, key, entry)
        if not self.draft.body["distribution"]:
            del self.draft.body["distribution"]

    def _file(self, entry: dict[str, Any]) -> None:
        verbatim = parsed(entry.pop(VERBATIM, None))
        types = [text for text in as_list(entry.get("@type")) if isinstance(text, str)]
        identifier = entry.get("@id")
        if self.old and "containedIn" in entry:
            entry["containedIn"] = _as_reference(entry["containedIn"])
        label = identifier if is_text(identifier) else one_text(entry.get("name"))
        made = add_described_file(self.draft, entry, label=label, is_set="FileSet" in types, verbatim=verbatim)
        if types and types != [made["@type"]]:
            made["@type"] = types if len(types) > 1 else types[0]
        restored(made, verbatim)

    def _entries(self) -> list[dict[str, Any]]:
        return [entry for entry in as_list(self.draft.body.get("distribution")) if isinstance(entry, dict)]

    def _modernise(self) -> None:
        """Bring record sets of 0.8, whose parts name each other by name, to the ids of today."""
        types = {entry["@id"]: entry["@type"] for entry in self._entries()}
        sets = self.draft.body.get("recordSet")
        for record_set in as_list(sets):
            if not isinstance(record_set, dict):
                continue
            own = _give_id(record_set, "")
            keys = as_list(record_set.get("key"))
            if own and keys and all(isinstance(each, str) for each in keys):
                references = [{"@id": each if "/" in each else f"{own}/{each}"} for each in keys]
                record_set["key"] = references if isinstance(record_set["key"], list) else references[0]
        for node in nodes_of(sets):
            for key in ("source", "references"):
                if isinstance(node.get(key), str):
                    node[key] = {"field": node[key]}
        each_source(sets, lambda each: _modern_source(each, types))


def _as_reference(value: Any) -> Any:
    """Return names of parts as references: `x` and `#{x}` are {"@id": "x"}."""
    if isinstance(value, list):
        return [_as_reference(each) for each in value]
    if not isinstance(value, str):
        return value
    braced = re.fullmatch(r"#\{(.+)\}", value)
    return {"@id": braced[1] if braced else value}


def _give_id(node: dict[str, Any], parent: str) -> str:
    """Give a record set or field, and the fields below it, the id that its name stood for."""
    name = node.get("name")
    if "@id" not in node and is_text(name):
        node["@id"] = f"{parent}/{name}" if parent else name
    own = node.get("@id")
    if not isinstance(own, str):
        return ""
    for key in ("field", "subField"):
        for inner in as_list(node.get(key)):
            if isinstance(inner, dict):
                _give_id(inner, own)
    return own


def _modern_source(source: dict[str, Any], types: Mapping[Any, Any]) -> None:
    for key in ("distribution", "field"):
        if not isinstance(source.get(key), str):
            continue
        reference = _as_reference(source[key])
        known = types.get(reference["@id"]) or ("FileObject" if key == "distribution" else None)
        target = "fileSet" if known == "FileSet" else "fileObject" if known else "field"
        if target == key or target not in source:
            del source[key]
            source[target] = reference
