"""A card as Croissant 1.1; `croissant` tells what a card cannot say in it, and how that is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fairmile.base.digest import parse_checksum
from fairmile.catalog.card import Card, as_list, id_of, text_of
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.common.jsonld import (
    ADMINISTRATIVE,
    CHECKSUMS,
    CROISSANT,
    VERBATIM,
    is_text,
    json_text,
    vocabulary,
)
from fairmile.catalog.exchange.croissant_shape import (
    JSON_TERMS,
    PREFIXES,
    TERMS,
    croissant_version,
    each_source,
    names_of,
    nodes_of,
    retarget,
)
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri

KINDS = ("dataset",)
_NO_CHECKSUM = "One file, described as a file set because its checksum is not known."
_NO_ADDRESS = "One file, described as a file set because no address of it is known."
_UNKNOWN_FORMAT = "application/octet-stream"
# Properties that Croissant wants as texts: one of them, or as many as there are.
_ONE_TEXT = ("name", "description", "url", "version", "dateCreated", "dateModified", "datePublished")
_TEXTS = ("keywords", "inLanguage", "sameAs", "license")
# Without one of these no program can tell what values a field has.
_DATA_TYPES = (
    *(f"sc:{name}" for name in ("Boolean", "Date", "DateTime", "Float", "Integer", "Text", "Time", "URL")),
    *(f"sc:{name}Object" for name in ("Audio", "Image", "Video")),
    *(f"cr:{name}{bits}" for name in ("Int", "UInt") for bits in (8, 16, 32, 64)),
    *(f"cr:Float{bits}" for bits in (16, 32, 64)),
    "cr:BoundingBox",
)


def write(card: Card) -> dict[str, str]:
    """Return the card as Croissant 1.1."""
    return {"croissant.json": json.dumps(_Writing(card).document(), indent=2, ensure_ascii=False) + "\n"}


class _Writing:
    """Builds one document; `verbatim` collects what Croissant has no place for."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.files = [entry for entry in as_list(card.get("distribution")) if isinstance(entry, Mapping)]
        self.out: dict[str, Any] = {"@type": "sc:Dataset"}
        self.verbatim: dict[str, Any] = {}
        self.prefixes: set[str] = set()
        # The id in the document of each file, by its id in the card.
        self.ids: dict[str, str] = {}

    def document(self) -> dict[str, Any]:
        if is_iri(self.card.iri):
            self.out["@id"] = self.card.iri
        profiles = [text for text in self.card.texts("conformsTo") if not croissant_version(text)]
        self.out["conformsTo"] = [f"{CROISSANT}1.1", *profiles] if profiles else f"{CROISSANT}1.1"
        for key, value in self.card.items():
            if not key.startswith("@") and key not in VOLATILE_KEYS and key not in ("conformsTo", "recordSet"):
                self._property(key, value)
        if "recordSet" in self.card:
            self._record_sets(self.card["recordSet"])
        if self.verbatim:
            self.out[VERBATIM] = json_text(self.verbatim)
            self.prefixes.add("fx")
        last = {key: self.out.pop(key) for key in ("distribution", "recordSet", VERBATIM) if key in self.out}
        return {"@context": self._context(), **self.out, **last}

    def _context(self) -> dict[str, Any]:
        context: dict[str, Any] = {"@language": "en", "@vocab": PREFIXES["sc"], **PREFIXES}
        context |= {"conformsTo": "dct:conformsTo", "dataType": {"@id": "cr:dataType", "@type": "@vocab"}}
        context |= {term: {"@container": "@language"} for term in ("name", "description")}
        context |= {term: f"cr:{term}" for term in TERMS}
        context |= {term: {"@id": f"cr:{term}", "@type": "@json"} for term in JSON_TERMS}
        return context | {prefix: vocabulary().prefixes[prefix] for prefix in sorted(self.prefixes - set(context))}

    def _property(self, key: str, value: Any) -> None:
        name = self._name(key)
        if key in _ONE_TEXT or key in _TEXTS:
            self._text(key, value)
        elif key in ("creator", "publisher"):
            self._agents(key, value)
        elif key == "citation":
            self._citation(value)
        elif key == "distribution":
            self._distribution(value)
        elif key in ADMINISTRATIVE or name is None:
            self.verbatim[key] = value
        elif key in vocabulary().json_terms and isinstance(value, (dict, list)):
            self.out[name] = json_text(value)
        elif key.startswith("rai:") and not all(is_text(each) for each in as_list(value)):
            self.verbatim[key] = value
        elif self._is_sound(value):
            self.out[name] = self._node(value)
        else:
            self.verbatim[key] = value

    def _name(self, key: str) -> str | None:
        """Return the key as it stands in Croissant, or None where it is in no vocabulary."""
        iri = vocabulary().iris.get(key)
        if key in TERMS or key in JSON_TERMS or key in ("conformsTo", "dataType", "sha256"):
            return key
        parts = vocabulary().split(iri) if iri else None
        if parts is None:
            prefix = key.partition(":")[0] if ":" in key else ""
            if prefix not in vocabulary().prefixes:
                return None
            self.prefixes.add(prefix)
            return key
        return self._compact(*parts) if parts != ("schema", key) else key

    def _compact(self, prefix: str, local: str) -> str:
        if prefix == "schema":
            return f"sc:{local}"
        self.prefixes.add(prefix)
        return f"{prefix}:{local}"

    def _node(self, value: Any) -> Any:
        """Return the value with the names and types of Croissant all the way down."""
        if isinstance(value, list):
            return [self._node(each) for each in value]
        if not isinstance(value, Mapping):
            return value
        node: dict[str, Any] = {}
        for key, inner in value.items():
            if key == "@type":
                node[key] = self._type(inner)
            elif key.startswith("@"):
                node[key] = inner
            else:
                node[self._name(key) or key] = inner if key in vocabulary().json_terms else self._node(inner)
        return node

    def _type(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._type(each) for each in value]
        parts = vocabulary().split(vocabulary().iris.get(value, "")) if isinstance(value, str) else None
        return self._compact(*parts) if parts else value

    def _is_sound(self, value: Any) -> bool:
        """Tell whether the value is JSON-LD of its own: texts, numbers, and nodes with a type or an address."""
        if isinstance(value, list):
            return all(not isinstance(each, list) and self._is_sound(each) for each in value)
        if not isinstance(value, Mapping):
            return value is not None
        types = as_list(value.get("@type"))
        own = value.get("@id", "urn:none")
        return (
            bool(types or "@id" in value)
            and all(is_text(each) for each in types)
            and is_iri(own)
            and own != self.card.iri
            and all(is_text(value.get(key, "x")) for key in ("name", "description"))
            and all(self._is_sound(inner) for key, inner in value.items() if key not in ("@id", "@type"))
            and not any(key.startswith("@") and key not in ("@id", "@type") for key in value)
        )

    def _is_agent(self, value: Any) -> bool:
        return (
            isinstance(value, Mapping)
            and as_list(value.get("@type")) in (["Person"], ["Organization"])
            and all(is_text(value.get(key, "x")) for key in ("url", "email"))
            and is_text(value.get("name"))
            and self._is_sound(value)
        )

    def _text(self, key: str, value: Any) -> None:
        texts = [text for each in as_list(value) if (text := text_of(each))]
        if key.startswith("date"):
            texts = [text for text in texts if is_date(text)]
        if texts:
            self.out[key] = texts if isinstance(value, list) and key in _TEXTS else texts[0]
        if self.out.get(key) != value:
            self.verbatim[key] = value

    def _agents(self, key: str, value: Any) -> None:
        agents = [each for each in as_list(value) if self._is_agent(each)]
        if agents:
            self.out[key] = self._node(agents if isinstance(value, list) else agents[0])
        others = [each for each in as_list(value) if not self._is_agent(each)]
        if others or not agents:
            self.verbatim[key] = value
        credit = "; ".join(text for each in others if (text := text_of(each)))
        if key == "creator" and credit and "creditText" not in self.card:
            self.out["creditText"] = credit
            self.verbatim["creditText"] = None

    def _citation(self, value: Any) -> None:
        text = next((text for each in as_list(value) if (text := text_of(each))), None)
        if text:
            self.out["citeAs"] = text
        if value != text:
            if self._is_sound(value):
                self.out["citation"] = self._node(value)
            else:
                self.verbatim["citation"] = value

    def _distribution(self, value: Any) -> None:
        # All ids first, since a file may lie in one that comes later.
        taken = {self.card.iri}
        ids = [self._id(entry, number, taken) for number, entry in enumerate(self.files, 1)]
        written = [self._file(entry, identifier) for entry, identifier in zip(self.files, ids, strict=True)]
        if written:
            self.out["distribution"] = written
        if self.files != value:
            self.verbatim["distribution"] = value

    def _id(self, entry: Mapping[str, Any], number: int, taken: set[str]) -> str:
        """Return an id without white space that no other part has."""
        given = entry.get("@id")
        stem = given if is_text(given) else text_of(entry.get("name")) or f"file-{number}"
        wanted = re.sub(r"\s+", "-", str(stem).strip())
        if not wanted.strip("./#?"):
            wanted = f"file-{number}"
        chosen, count = wanted, 1
        while chosen in taken:
            count += 1
            chosen = f"{wanted}-{count}"
        taken.add(chosen)
        self.ids.setdefault(str(stem), chosen)
        return chosen

    def _file(self, entry: Mapping[str, Any], identifier: str) -> dict[str, Any]:
        """Return the file as Croissant has it, with the card's own value of every key that differs."""
        is_set = "FileSet" in as_list(entry.get("@type"))
        node: dict[str, Any] = {"@type": "FileSet" if is_set else "FileObject", "@id": identifier}
        bent = (
            "@type",
            "@id",
            "name",
            "contentUrl",
            "contentSize",
            "encodingFormat",
            "containedIn",
            "includes",
            *CHECKSUMS,
        )
        others = [(key, value) for key, value in entry.items() if key not in bent]
        node |= {key: value for key, value in others if self._name(key) and self._is_sound(value)}
        node["name"] = text_of(entry.get("name")) or identifier
        if is_text(entry.get("contentUrl")):
            node["contentUrl"] = entry["contentUrl"]
        for algorithm in CHECKSUMS:
            checksum = parse_checksum(str(entry.get(algorithm) or ""), algorithm)
            if checksum:
                node[algorithm] = checksum.hex
        size = entry.get("contentSize")
        if is_text(size) or (isinstance(size, int) and not isinstance(size, bool)):
            node["contentSize"] = str(size)
        formats = [each for each in as_list(entry.get("encodingFormat")) if is_text(each)] or [_UNKNOWN_FORMAT]
        node["encodingFormat"] = formats if isinstance(entry.get("encodingFormat"), list) else formats[0]
        container = self._reference(entry.get("containedIn"))
        if as_list(container) and all(id_of(each) in self.ids.values() for each in as_list(container)):
            node["containedIn"] = container
        elif not is_set:
            self._make_acceptable(node)
        if is_set:
            patterns = entry.get("includes")
            texts = bool(as_list(patterns)) and all(is_text(each) for each in as_list(patterns))
            node["includes"] = patterns if texts else "*"
        verbatim = {key: entry.get(key) for key in {**node, **entry} if node.get(key) != entry.get(key)}
        if "contentSize" in node and not re.fullmatch(r"\d+ B", node["contentSize"]):
            verbatim["contentSize"] = size
        made: dict[str, Any] = self._node(node)
        if verbatim:
            made[VERBATIM] = json_text(verbatim)
            self.prefixes.add("fx")
        return made

    def _make_acceptable(self, node: dict[str, Any]) -> None:
        """Turn the file into a set of one where Croissant would refuse it as a file."""
        summed = "sha256" in node or "md5" in node or self.card.get("isLiveDataset") is True
        if "contentUrl" in node and summed:
            return
        node["@type"] = "FileSet"
        last = str(node.get("contentUrl", "")).split("?")[0].rstrip("/").rsplit("/", 1)[-1]
        node["includes"] = last or node["name"]
        node.setdefault("description", _NO_ADDRESS if summed else _NO_CHECKSUM)

    def _reference(self, value: Any) -> Any:
        """Return references to files by the ids they have in this document."""
        if isinstance(value, list):
            return [self._reference(each) for each in value]
        if isinstance(value, str):
            return {"@id": self.ids.get(value, value)}
        if isinstance(value, Mapping) and isinstance(value.get("@id"), str):
            return {**value, "@id": self.ids.get(value["@id"], value["@id"])}
        return value

    def _record_sets(self, value: Any) -> None:
        types = {entry["@id"]: str(entry["@type"]).removeprefix("cr:") for entry in self.out.get("distribution", [])}
        sets = json.loads(json.dumps(as_list(value)))
        each_source(sets, lambda source: self._source(source, types))
        for record_set in sets:
            _key_data_by_id(record_set)
        chosen = _complete_sets(sets, set(types))
        ids = [*types, *(node["@id"] for node in nodes_of(chosen)), self.card.iri]
        if chosen and len(ids) == len(set(ids)):
            self.out["recordSet"] = self._node(chosen)
        back = names_of(None).rename(self.out.get("recordSet"))
        given_types = {entry.get("@id"): entry.get("@type") for entry in self.files if is_text(entry.get("@id"))}
        each_source(back, lambda source: retarget(source, given_types))
        if back != value:
            self.verbatim["recordSet"] = value

    def _source(self, source: dict[str, Any], types: Mapping[Any, Any]) -> None:
        for key in ("fileObject", "fileSet"):
            if key in source:
                source[key] = self._reference(source[key])
        retarget(source, types)


def _key_data_by_id(record_set: Any) -> None:
    """Key the rows of inline data by the ids of the fields, where they are keyed by the names."""
    if not isinstance(record_set, dict) or not isinstance(record_set.get("data"), list):
        return
    fields = [field for field in as_list(record_set.get("field")) if isinstance(field, dict)]
    ids = {str(field.get("name")): str(field.get("@id")) for field in fields}
    rows = record_set["data"]
    if len(ids) == len(fields) and all(isinstance(row, dict) and set(row) == set(ids) for row in rows):
        record_set["data"] = [{ids[key]: value for key, value in row.items()} for row in rows]


def _complete_sets(sets: list[Any], files: set[str]) -> list[Any]:
    """Return the record sets that Croissant accepts, without those that point to one it does not."""
    count = -1
    while count != len(sets):
        count = len(sets)
        fields = {str(node.get("@id")) for node in nodes_of(sets) if node.get("@type") == "Field"}
        known = {"fileObject": files, "fileSet": files, "field": fields}
        sets = [each for each in sets if _is_complete(each, known)]
    return sets


def _is_complete(record_set: Any, known: Mapping[str, set[str]]) -> bool:
    """Tell whether Croissant accepts the record set: every part has an id, and every value comes from somewhere."""
    if not isinstance(record_set, dict) or not _is_part(record_set, "RecordSet") or not _is_clean(record_set):
        return False
    fields = as_list(record_set.get("field", []))
    rows = record_set.get("data")
    if not fields and "field" in record_set:
        return False
    if rows is not None:
        ids = {str(field.get("@id")) for field in fields if isinstance(field, dict)}
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and set(row) == ids for row in rows):
            return False
    return all(_is_complete_field(field, known, rows is not None) for field in fields) and _is_joined(fields)


def _is_clean(value: Any) -> bool:
    """Tell whether a program that reads JSON-LD finds its way: ids are words, and there is nothing but nodes."""
    if isinstance(value, list):
        return all(_is_clean(each) for each in value)
    if not isinstance(value, dict):
        return True
    words = [text for key in ("@id", "@type") for text in as_list(value.get(key, "x"))]
    return (
        bool(value)
        and all(is_text(word) and not re.search(r"\s", word) for word in words)
        and all(key in ("@id", "@type") or not key.startswith("@") for key in value)
        and all(_is_clean(inner) for inner in value.values())
    )


def _is_part(node: Mapping[str, Any], type: str) -> bool:
    named = all(is_text(node.get(key, "x")) for key in ("name", "description"))
    return named and node.get("@type") == type and is_text(node.get("@id")) and not re.search(r"\s", node["@id"])


def _is_complete_field(field: Any, known: Mapping[str, set[str]], has_rows: bool) -> bool:
    if not isinstance(field, dict) or not _is_part(field, "Field"):
        return False
    inner = as_list(field.get("subField"))
    if inner:
        return all(_is_complete_field(each, known, has_rows) for each in inner)
    source, references = field.get("source"), field.get("references")
    given = [each is not None for each in (source, field.get("value"))]
    if sum(given) > 1 or not (any(given) or has_rows):
        return False
    shape = field.get("arrayShape", "-1")
    if not re.fullmatch(r"-?\d+(,\s*-?\d+)*", str(shape)) or (
        "arrayShape" in field and field.get("isArray") is not True
    ):
        return False
    if not set(_DATA_TYPES) & {each for each in as_list(field.get("dataType")) if isinstance(each, str)}:
        return False
    targets = [_target(each) for each in (source, references) if each is not None]
    return all(target is not None and target[1] in known[target[0]] for target in targets)


def _target(source: Any) -> tuple[str, str] | None:
    """Return of which sort and where a source or reference is, if it says so in the one way Croissant accepts."""
    if not isinstance(source, dict):
        return None
    targets = [(key, str(id_of(source[key]))) for key in ("fileObject", "fileSet", "field") if key in source]
    ways = source.get("extract", {"column": "any"})
    changes = as_list(source.get("transform"))
    plain = isinstance(ways, dict) and all(isinstance(each, dict) and each for each in changes)
    if not plain or not all(is_text(each) for step in (ways, *changes) for each in step.values()):
        return None
    known = [key for key in ("column", "fileProperty", "jsonPath") if key in ways]
    return targets[0] if len(targets) == 1 and len(known) == 1 else None


def _is_joined(fields: list[Any]) -> bool:
    """Tell whether any two sources of the record set are joined by a field of the one that references the other."""
    sources: set[str] = set()
    joins: set[frozenset[str]] = set()
    for field in fields:
        if not isinstance(field.get("source"), dict):
            continue
        targets = [target for each in (field["source"], field.get("references")) if (target := _target(each))]
        parents = [name.rpartition("/")[0] or name if sort == "field" else name for sort, name in targets]
        sources.add(parents[0])
        joins.add(frozenset(parents))
    return all(frozenset((one, other)) in joins for one in sources for other in sources if one < other)
