"""The shape of Croissant documents: their names, and the way through their record sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fairmile.catalog.card import as_list, id_of
from fairmile.catalog.exchange.common.jsonld import CROISSANT, Names, canonical_iri, vocabulary

FILE_TYPES = ("FileObject", "FileSet")
PREFIXES = {
    "cr": CROISSANT,
    "dct": "http://purl.org/dc/terms/",
    "rai": f"{CROISSANT}RAI/",
    "sc": "https://schema.org/",
}
# Terms that stand in the context of every 1.1 document.
TERMS = (
    "arrayShape",
    "citeAs",
    "column",
    "containedIn",
    "equivalentProperty",
    "excludes",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isArray",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
)
JSON_TERMS = ("data", "examples")
# Terms that stand in some published contexts, older ones among them.
_OTHER_TERMS = (
    "annotation",
    "dataBiases",
    "dataCollection",
    "isEnumeration",
    "personalSensitiveInformation",
    "readLines",
    "sdVersion",
    "unArchive",
    "value",
)
_CONFORMS = re.compile(r"https?://(?:www\.)?mlcommons\.org/croissant/(\d+\.\d+)/?")


def names_of(context: Any) -> Names:
    """Return the reader of names for a document with this context."""
    return Names(context, vocab=PREFIXES["sc"], bare=("cr", "dct"))


def croissant_version(profile: str) -> str | None:
    """Return the version of Croissant that a conformsTo names."""
    match = _CONFORMS.match(profile)
    return match[1] if match else None


def is_published(context: Any) -> bool:
    """Tell whether the context says nothing that the published ones do not."""
    if not isinstance(context, Mapping):
        return context is None or isinstance(context, str)
    names, spaces = names_of(context), {*vocabulary().prefixes.values(), *PREFIXES.values()}
    for key, value in context.items():
        iri = canonical_iri(names.expand(key) or "")
        if key == "@language":
            fits = value == "en"
        elif key == "@vocab":
            fits = names.term("name") == "name"
        elif ":" in key:
            fits = names.compact(key) == key
        else:
            known = key in TERMS or key in _OTHER_TERMS
            fits = names.term(key) == key or iri in spaces or (known and iri == CROISSANT + key)
        if not fits or (isinstance(value, Mapping) and not set(value) <= {"@id", "@type", "@container"}):
            return False
    return True


def nodes_of(sets: Any) -> list[dict[str, Any]]:
    """Return the record sets and all their fields."""
    nodes: list[dict[str, Any]] = []
    for node in as_list(sets):
        if isinstance(node, dict):
            nodes += [node, *nodes_of(node.get("field")), *nodes_of(node.get("subField"))]
    return nodes


def each_source(node: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Call `change` on every source and reference of the record sets and their fields."""
    if isinstance(node, list):
        for each in node:
            each_source(each, change)
    elif isinstance(node, dict):
        for key in ("source", "references"):
            if isinstance(node.get(key), dict):
                change(node[key])
        for key in ("field", "subField", "parentField", "annotation"):
            each_source(node.get(key), change)


def retarget(source: dict[str, Any], types: Mapping[Any, Any]) -> None:
    """Let a source say `fileObject` or `fileSet` as its target is one or the other."""
    for wrong, right, wanted in (("fileSet", "fileObject", "FileObject"), ("fileObject", "fileSet", "FileSet")):
        if right not in source and isinstance(source.get(wrong), dict) and types.get(id_of(source[wrong])) == wanted:
            source[right] = source.pop(wrong)
            return
