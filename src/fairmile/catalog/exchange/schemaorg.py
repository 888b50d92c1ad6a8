"""schema.org descriptions as JSON-LD, as web pages and repositories publish them: data sets, software and the like.

A document is one node, a list of them, or a `@graph`, in expanded form, too, or a web page with such scripts; a page or
a catalog may hold its data sets anywhere inside. What
describes another node by its id is laid into it. A property that a card has no term for stays among the foreign keys
under its own name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.catalog.card import as_list
from fairmile.catalog.exchange.common.jsonld import (
    ADMINISTRATIVE,
    SCHEMA,
    Names,
    add_described_file,
    canonical_iri,
    is_expanded,
    is_text,
    keep_value,
    licence_text,
    one_text,
    settle_any,
    unexpanded,
)
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.exchange.draft import EMPTY, Document, Draft
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri
from fairmile.catalog.kinds import kind_of_types

_ADDRESS = "schema.org"
_AGENTS = {"author": "creator", "creator": "creator"}
_TRUTHS = {"true": True, "false": False}
_DEEPEST = 8
_MOST_EMBEDDED = 200_000  # values that references bring into other nodes: a few that name each other could fill memory


def recognises(document: Document) -> bool:
    """Tell whether the document is schema.org JSON-LD that describes an asset."""
    if _ADDRESS.encode() not in document.data:
        return False
    try:
        value = document.json()
    except UsageError:
        return False
    return any(next(_assets(node, _names(node)), None) for node in _roots(value) if _speaks_schema(node))


def read(document: Document) -> list[Draft]:
    """Return every asset that the document describes."""
    drafts: list[Draft] = []
    for root in _roots(document.json()):
        names = _names(root)
        assets = list(_assets(root, names))
        if not assets:
            continue
        graph = _Graph({node["@id"]: node for node in _nodes(root) if is_text(node.get("@id")) and len(node) > 1})
        made = [_draft(copy.deepcopy(asset), names, graph) for asset in assets]
        _keep_the_rest(made[0], root, assets, graph.used)
        drafts += made
    if not drafts:
        raise document.refuse(
            "describes no asset", field="@type", hint="expected a schema.org Dataset, SoftwareSourceCode or the like"
        )
    for draft in drafts:
        if "version" not in draft.body and one_text(draft.body.get("softwareVersion")):
            draft.body["version"] = one_text(draft.body["softwareVersion"])
        settle_any(draft)
    return drafts


def _roots(value: Any) -> list[dict[str, Any]]:
    nodes = [node for node in (value if isinstance(value, list) else [value]) if isinstance(node, dict)]
    return [unexpanded(node) if is_expanded(node) else node for node in nodes]


def _speaks_schema(node: Mapping[str, Any]) -> bool:
    context = [part for part in as_list(node.get("@context")) if not isinstance(part, str) or _ADDRESS in part]
    spaces = [text for part in context for text in (part.values() if isinstance(part, Mapping) else [part])]
    types = [text for text in as_list(node.get("@type")) if isinstance(text, str)]
    return any(isinstance(text, str) and f"{_ADDRESS}" in text.split("//")[-1].split("/")[0] for text in spaces + types)


def _names(node: Mapping[str, Any]) -> Names:
    return Names(node.get("@context"), vocab=SCHEMA, bare=("schema",))


def _nodes(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield every node of a document, those of its `@graph` and those inside others included."""
    if isinstance(value, list):
        for each in value:
            yield from _nodes(each, depth)
    elif isinstance(value, dict) and depth < _DEEPEST:
        yield value
        for key, each in value.items():
            if key != "@context":
                yield from _nodes(each, depth + 1)


def _kind(node: Mapping[str, Any], names: Names) -> str | None:
    return kind_of_types(names.types(node.get("@type")))


def _assets(value: Any, names: Names, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the assets that are no part of another one."""
    if isinstance(value, list):
        for each in value:
            yield from _assets(each, names, depth)
    elif isinstance(value, dict) and depth < _DEEPEST:
        if _kind(value, names) and len(set(value) - {"@id", "@type", "@context"}) > 0:
            yield value
            return
        for key, each in value.items():
            if key != "@context":
                yield from _assets(each, names, depth + 1)


def _draft(node: dict[str, Any], names: Names, graph: _Graph) -> Draft:
    types = names.types(node.pop("@type", None))
    draft = Draft(kind_of_types(types) or "dataset", {"@type": types} if len(types) > 1 else {})
    own = node.pop("@id", None)
    if is_text(own):
        draft.body["@id"] = own
        graph.used.add(own)
    elif own is not None:
        keep_value(draft, "@id", own)
    context = node.pop("@context", None)
    if not all(isinstance(part, str) for part in as_list(context)):
        keep_value(draft, "@context", context)
    terms = {key: names.term(key) for key in node}
    # Files first: what a draft keeps of them must not meet a foreign key of the same name.
    for key, value in sorted(node.items(), key=lambda item: terms[item[0]] != "distribution"):
        local = _local(names, key)
        term = _AGENTS.get(local) or terms[key] or names.compact(key)
        if term is None or value in EMPTY or term in VOLATILE_KEYS or term in ADMINISTRATIVE:
            keep_value(draft, key, value)
            if term == "license" and value in EMPTY:
                draft.warn(term, "the source names no licence: the property is empty")
        else:
            _put(draft, key, term, names.rename(graph.embed(value, (own,))))
    return draft


def _local(names: Names, key: str) -> str:
    iri = canonical_iri(names.expand(key) or key)
    return iri.removeprefix(SCHEMA) if iri.startswith(SCHEMA) else ""


class _Graph:
    """The nodes of a document that others name by their id; `used` are the ids of those that were laid into others."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.used: set[str] = set()
        self._known = known
        self._left = _MOST_EMBEDDED

    def embed(self, value: Any, path: tuple[Any, ...], *, is_embedded: bool = False) -> Any:
        """Return the value with references to described nodes replaced by these, up to a bound."""
        if not isinstance(value, (list, dict)):
            return value
        if isinstance(value, list):
            self._left -= len(value) if is_embedded else 0
            return [self.embed(each, path, is_embedded=is_embedded) for each in value]
        own = value.get("@id")
        node = self._known.get(own) if set(value) == {"@id"} and isinstance(own, str) and own not in path else None
        if node is not None and len(path) < _DEEPEST and self._left > 0:
            self.used.add(str(own))
            value, is_embedded = node, True
        self._left -= len(value) if is_embedded else 0
        return {key: self.embed(each, (*path, own), is_embedded=is_embedded) for key, each in value.items()}


def _put(draft: Draft, key: str, term: str, value: Any) -> None:
    if term == "distribution":
        for entry in as_list(value):
            _file(draft, key, entry)
    elif term == "license":
        texts = [text for each in as_list(value) if (text := licence_text(each))]
        if texts:
            draft.body[term] = texts if isinstance(value, list) else texts[0]
        if any(isinstance(each, dict) and set(each) != {"@id"} for each in as_list(value)) or not texts:
            keep_value(draft, key, value)
    elif term == "creator":
        agents = [_named(each) for each in as_list(value)]
        draft.body[term] = [*as_list(draft.body.get(term)), *(each for each in agents if each not in EMPTY)]
    elif term in draft.body:
        keep_value(draft, key, value)
    elif term in ("contributor", "publisher", "maintainer"):
        draft.body[term] = [_named(each) for each in value] if isinstance(value, list) else _named(value)
    elif term == "isAccessibleForFree" and isinstance(value, str):
        word = value.rsplit("/", 1)[-1].strip().lower()
        draft.body[term] = _TRUTHS.get(word, value)
    else:
        draft.body[term] = value


def _named(agent: Any) -> Any:
    """Return a person who is only given by parts of a name with the whole one."""
    if not isinstance(agent, dict) or is_text(agent.get("name")):
        return agent
    parts = [text for key in ("givenName", "additionalName", "familyName") if (text := one_text(agent.get(key)))]
    name = " ".join(parts) or one_text(agent.get("name")) or one_text(agent.get("alternateName"))
    return {**agent, "name": name} if name and "name" not in agent else agent


def _file(draft: Draft, key: str, entry: Any) -> None:
    if is_iri(entry):
        draft.add_file(url=entry)
        return
    if not isinstance(entry, dict):
        draft.warn("distribution", f"{str(entry)[:80]!r} describes no file; kept among the foreign keys")
        keep_value(draft, key, entry)
        return
    if "contentUrl" not in entry and is_iri(entry.get("url")):
        entry = {**entry, "contentUrl": entry["url"]}
    given = entry.get("encodingFormat")
    known = media_type(given) if isinstance(given, str) and "/" not in given else None
    if known:
        draft.warn("distribution", f"encodingFormat {given!r} read as {known}")
        entry = {**entry, "encodingFormat": known}
    label = entry.get("@id") if is_text(entry.get("@id")) else one_text(entry.get("name"))
    made = add_described_file(draft, entry, label=label, is_set="FileSet" in as_list(entry.get("@type")))
    if not one_text(entry.get("name")) and is_text(made.get("contentUrl")) and str(label).startswith(("#", "_:")):
        made["name"] = made["contentUrl"].rstrip("/").rsplit("/", 1)[-1]
    types = [text for text in as_list(entry.get("@type")) if isinstance(text, str)]
    if types and types not in ([made["@type"]], ["DataDownload"], ["MediaObject"]):
        made["@type"] = types if len(types) > 1 else types[0]


def _keep_the_rest(draft: Draft, root: dict[str, Any], assets: list[dict[str, Any]], used: set[str]) -> None:
    """Keep, with the first asset, what a document says around its assets."""
    if any(root is asset for asset in assets):
        return

    def rest(value: Any) -> Any:
        if isinstance(value, list):
            kept = [rest(each) for each in value]
            return [each for each in kept if each not in EMPTY]
        if not isinstance(value, dict):
            return value
        if any(value is asset for asset in assets) or (value.get("@id") in used and len(value) > 1):
            return None
        return {key: left for key, each in value.items() if (left := rest(each)) not in EMPTY or each in EMPTY}

    for key, value in root.items():
        left = value if key == "@context" else rest(value)
        plain_context = key == "@context" and all(isinstance(part, str) for part in as_list(value))
        if left not in EMPTY and not plain_context:
            keep_value(draft, key, left)
