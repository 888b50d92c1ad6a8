"""CodeMeta: codemeta.json of versions 1, 2 and 3 read, 3.1 written."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.exchange.common.agents import (
    agent_from_text,
    agents_of,
    doi_iri,
    orcid_iri,
    warn_of_unsound_orcid,
)
from fairmile.catalog.exchange.common.jsonld import settle_any, vocabulary
from fairmile.catalog.exchange.common.parts import (
    as_text,
    given_version,
    one_or_many,
    take_date,
    take_each,
    take_known,
    take_one,
    take_value,
    unique,
    version_as_written,
    warn_of_empty_licences,
    with_rest,
)
from fairmile.catalog.exchange.draft import Document, Draft, filled
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import KINDS as KIND_TABLE
from fairmile.catalog.kinds import kind_of_types
from fairmile.catalog.licences import licence_iri

KINDS = ("program", "workflow", "model", "environment")
CONTEXT = "https://w3id.org/codemeta/3.0"
# The context has no word for these kinds, so their second type stands as a full address.
_TYPES: dict[str, str | list[str]] = {
    "program": "SoftwareSourceCode",
    "workflow": ["SoftwareSourceCode", "https://bioschemas.org/terms/ComputationalWorkflow"],
    "model": ["SoftwareApplication", "https://w3id.org/fair4ml#MLModel"],
    "environment": ["SoftwareApplication", "https://w3id.org/fairmile/terms#Environment"],
}
_PREFIX = re.compile(
    r"^(?:schema(?:org)?:|codemeta:|https?://schema\.org/|https://codemeta\.github\.io/terms/|https://w3id\.org/codemeta/(?:terms/)?)"
)
_TEXTS = ("description", "softwareVersion", "alternateName", "inLanguage", "conditionsOfAccess")
_DATES = ("dateCreated", "dateModified", "datePublished")
_ADDRESSES = (
    "url",
    "issueTracker",
    "readme",
    "buildInstructions",
    "continuousIntegration",
    "downloadUrl",
    "installUrl",
)
# Words the profile and CodeMeta share; their values are schema.org already and pass as they are.
_SHARED = (
    "programmingLanguage",
    "runtimePlatform",
    "operatingSystem",
    "softwareSuggestions",
    "processorRequirements",
    "memoryRequirements",
    "storageRequirements",
    "developmentStatus",
    "referencePublication",
    "citation",
    "sameAs",
    "isPartOf",
    "hasPart",
    "releaseNotes",
    "softwareHelp",
    "applicationCategory",
    "applicationSubCategory",
    "isSourceCodeOf",
    "funding",
    "funder",
    "publisher",
)
_AGENTS = {
    "author": "creator",
    "creator": "creator",
    "agents": "creator",
    "contributor": "contributor",
    "maintainer": "maintainer",
}
# Words of older versions, and what they are called now.
_OLD_WORDS = {
    "contIntegration": "continuousIntegration",
    "tags": "keywords",
    "depends": "softwareRequirements",
    "dependency": "softwareRequirements",
    "suggests": "softwareSuggestions",
    "zippedCode": "downloadUrl",
    "relatedPublications": "referencePublication",
    "softwarePaperCitation": "referencePublication",
    "softwareCitation": "citation",
    "licenseId": "license",
    "id": "@id",
    "type": "@type",
}
_WORDS = {
    *_TEXTS,
    *_DATES,
    *_ADDRESSES,
    *_SHARED,
    *_AGENTS,
    *("name", "title", "version", "identifier", "license", "keywords", "codeRepository", "softwareRequirements"),
    *("isAccessibleForFree", "givenName", "familyName", "email", "affiliation"),
}


def recognises(document: Document) -> bool:
    """Tell whether the file is called codemeta.json or names a CodeMeta context."""
    if document.file_name.lower() == "codemeta.json":
        return True
    if b"codemeta" not in document.data:
        return False
    try:
        nodes = as_list(document.json())
    except InvalidDocument:
        return False
    return any(isinstance(node, dict) and any(_addresses(node.get("@context"))) for node in nodes)


def read(document: Document) -> list[Draft]:
    """Return a draft for every piece of software the document describes."""
    value = document.json()
    drafts: list[Draft] = []
    for node in value if isinstance(value, list) else [value]:
        if not isinstance(node, dict):
            raise document.refuse(f"expected a JSON object that describes software, found {type(node).__name__}")
        drafts += _graph(node, document) if isinstance(node.get("@graph"), list) else [_software(node, {}, document)]
    if not drafts:
        raise document.refuse("describes no software", hint="expected an object with name, codeRepository, author …")
    return drafts


def _graph(node: dict[str, Any], document: Document) -> list[Draft]:
    entries = node["@graph"]
    known = {str(entry["@id"]): entry for entry in entries if isinstance(entry, dict) and "@id" in entry}
    software = [
        entry for entry in entries if isinstance(entry, dict) and _kind(as_list(entry.get("@type")), "") == "program"
    ]
    node["@graph"] = [entry for entry in entries if not any(entry is each for each in software)]
    drafts = [_software(entry, known, document) for entry in software]
    if drafts:
        addresses = list(_addresses(node.get("@context")))
        drafts[0].put("conformsTo", addresses)
        if isinstance(node.get("@context"), str) and addresses:
            del node["@context"]
        if not node["@graph"]:
            del node["@graph"]
        drafts[0].foreign.update(node)
    return drafts


def _software(node: dict[str, Any], known: dict[str, Any], document: Document) -> Draft:
    node = _localised(node)
    types = [str(text) for text in as_list(node.get("@type")) if isinstance(text, str)]
    draft = Draft(_kind(types, "program"), {})
    if not any(node.get(key) for key in ("name", "title", "codeRepository", "description", "identifier")):
        raise document.refuse(
            "describes no software", field="name", hint="expected an object with name, codeRepository, author …"
        )
    if types and len(types) == len(as_list(node.get("@type"))):
        del node["@type"]
        draft.put("@type", _card_types(draft.kind, types))
    _identity(draft, node, document)
    for key in (*_TEXTS, *_SHARED):
        draft.put(key, take_value(node, key, _is_term))
    for key in _DATES:
        take_date(draft, node, key, key)
    for key in _ADDRESSES:
        draft.put(key, take_value(node, key, _is_term))
        if any(not is_iri(text_of(value)) for value in as_list(draft.body.get(key))):
            draft.warn(key, "is not an address; kept as given")
    for key, term in _AGENTS.items():
        agents = [*as_list(draft.body.get(term)), *take_each(node, key, lambda value: _agent(value, known, draft))]
        draft.put(term, agents)
    _repository(draft, node)
    _requirements(draft, node)
    draft.put("license", one_or_many(take_each(node, "license", _licence)))
    warn_of_empty_licences(draft, node, "license")
    draft.put("keywords", unique(word for words in take_each(node, "keywords", _keywords) for word in words))
    if isinstance(node.get("isAccessibleForFree"), bool):
        draft.body["isAccessibleForFree"] = node.pop("isAccessibleForFree")
    draft.foreign.update(node)
    settle_any(draft)
    return draft


def _localised(node: dict[str, Any]) -> dict[str, Any]:
    """Return the node with the words we know free of prefixes and of the names older versions gave them."""
    local: dict[str, Any] = {}
    for key, value in node.items():
        short = _PREFIX.sub("", key)
        short = _OLD_WORDS.get(short, short)
        known = short in _WORDS or short in ("@id", "@type")
        local[short if known and short not in node and short not in local else key] = value
    if isinstance(local.get("@type"), str):
        local["@type"] = _PREFIX.sub("", local["@type"])
    return local


def _kind(types: list[Any], otherwise: str) -> str:
    kind = kind_of_types(str(text) for text in types)
    if kind in KINDS:
        return kind
    return "program" if any(str(text).rsplit("/", 1)[-1].rsplit(":", 1)[-1] == "Code" for text in types) else otherwise


def _card_types(kind: str, types: list[str]) -> Any:
    local = {re.sub(r"^.*[/#:]", "", text): text for text in types}
    if kind == "program" and "SoftwareSourceCode" not in local and "SoftwareApplication" in local:
        own: tuple[str, ...] = ("SoftwareApplication",)
    else:
        own = KIND_TABLE[kind].types
    more = [text for name, text in local.items() if name not in own and name not in ("Code", "SoftwareApplication")]
    return one_or_many([*own, *more])


def _addresses(context: Any) -> Iterator[str]:
    return (text for text in as_list(context) if isinstance(text, str) and "codemeta" in text.lower())


def _identity(draft: Draft, node: dict[str, Any], document: Document) -> None:
    context = node.get("@context")
    draft.put("conformsTo", list(_addresses(context)))
    if isinstance(context, str) and draft.body.get("conformsTo"):
        del node["@context"]
    own = node.get("@id")
    if isinstance(own, str) and own and not own.startswith("_:"):
        draft.put("@id", node.pop("@id"))
    for key in ("name", "title"):
        if "name" not in draft.body:
            draft.put("name", take_one(node, key, _literal))
    version = node.get("version")
    text = take_one(node, "version", _literal)
    if text is not None and not isinstance(version, str):
        text = version_as_written(draft, document.text, text)
    draft.put("version", text)
    draft.put("identifier", one_or_many(take_each(node, "identifier", _identifier)))


def _literal(value: Any) -> str | None:
    """Return the text of a value that may be a JSON-LD literal, `{"@value": …}` and nothing more."""
    if isinstance(value, dict) and set(value) == {"@value"}:
        text = as_text(value["@value"])
        if text is not None:
            value.clear()
        return text
    return as_text(value)


def _identifier(value: Any) -> Any:
    if isinstance(value, dict):
        scheme, text = as_text(value.get("propertyID")) or "", as_text(value.get("value"))
        iri = doi_iri(text) if text and (not scheme or "doi" in scheme.lower()) else None
        if iri is None and text and text.startswith("swh:1:"):
            iri = text
        if iri:
            for key in ("@type", "propertyID", "value"):
                value.pop(key, None)
            return iri
        return take_known(value, _is_term)
    text = as_text(value)
    return doi_iri(text) or text


def _agent(value: Any, known: dict[str, Any], draft: Draft) -> dict[str, Any] | None:
    if isinstance(value, str):
        return agent_from_text(value) if value.strip() else None
    if not isinstance(value, dict) or not value:
        return None
    if "Role" in as_list(value.get("@type", value.get("type"))):
        return None
    node = _localised(value)
    if set(node) == {"@id"} and isinstance(known.get(str(node["@id"])), dict):
        node = _localised(copy.deepcopy(known[str(node["@id"])]))
    orcid = orcid_iri(node.get("@id"))
    if orcid:
        node["@id"] = orcid
        warn_of_unsound_orcid(draft, "creator", orcid)
    parts = [text for key in ("givenName", "familyName") if (text := text_of(node.get(key)))]
    if "name" not in node and parts:
        node["name"] = " ".join(parts)
    made = take_known(node, _is_term)
    if isinstance(made, dict):
        value.clear()
        value.update(node)
        return made
    return None


def _is_term(key: str) -> bool:
    """Tell whether a card may use the key inside a node."""
    return key.startswith("@") or key in vocabulary().iris or key.partition(":")[0] in vocabulary().prefixes


def _repository(draft: Draft, node: dict[str, Any]) -> None:
    value = take_value(node, "codeRepository", _is_term)
    text = text_of(value) if not isinstance(value, list) else None
    address = re.sub(r"^git@([\w.-]+):", r"https://\1/", (text or "").removeprefix("git+").removeprefix("scm:git:"))
    if text and address != text:
        draft.warn("codeRepository", f"written as {text!r} in the source; read as {address}")
        value = address
    elif text and not is_iri(text):
        draft.warn("codeRepository", f"{text!r} is not an address; kept as given")
    draft.put("codeRepository", value)
    if "name" not in draft.body and text:
        name = address.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        draft.put("name", name)
        draft.warn("name", f"the source gives no name; called {name!r} after its repository")


def _requirements(draft: Draft, node: dict[str, Any]) -> None:
    value = node.get("softwareRequirements")
    # Some generators number the requirements: {"1": {…}, "2": {…}, "SystemRequirements": "C++17"}.
    if isinstance(value, dict) and value and all(key.isdigit() or key == "SystemRequirements" for key in value):
        draft.warn("softwareRequirements", "the source numbers its requirements; read as a list")
        draft.put("softwareRequirements", [made for key in list(value) if (made := take_value(value, key, _is_term))])
        if not value:
            del node["softwareRequirements"]
        return
    draft.put("softwareRequirements", take_value(node, "softwareRequirements", _is_term))


def _keywords(value: Any) -> list[Any] | None:
    """Return the words of a text, and a term of a vocabulary as it is."""
    if isinstance(value, dict):
        term = take_known(value, _is_term) if as_text(value.get("name")) else None
        return [term] if term else None
    words = [word.strip() for word in re.split(r"[,;]", as_text(value) or "")]
    return [word for word in words if word] or None


def _licence(value: Any) -> str | None:
    if not isinstance(value, dict):
        return as_text(value)
    texts = {key: text for key in ("@id", "url", "identifier", "name") if (text := as_text(value.get(key)))}
    key = next((key for key, text in texts.items() if licence_iri(text)), next(iter(texts), None))
    if key is None:
        return None
    value.pop("@type", None)
    return as_text(value.pop(key))


def write(card: Card) -> dict[str, str]:
    """Return codemeta.json for the card."""
    body: dict[str, Any] = {"@context": CONTEXT, "@type": _TYPES[card.kind]}
    if card.kind == "program" and "SoftwareApplication" in card.types and "SoftwareSourceCode" not in card.types:
        body["@type"] = "SoftwareApplication"
    made: dict[str, Any] = {"@id": card.iri, "name": card.title, "version": given_version(card)}
    made |= {
        key: card.get(key)
        for key in (*_TEXTS[:2], *_DATES, *_ADDRESSES, *_SHARED, "codeRepository", "isAccessibleForFree")
    }
    made["author"] = agents_of(card.get("creator"))
    made |= {key: agents_of(card.get(key)) for key in ("contributor", "maintainer")}
    made["license"] = card.get("license") if card.licence else card.get("licenseRaw", card.get("license"))
    made["identifier"] = card.get("identifier")
    terms = [value for value in as_list(card.get("keywords")) if isinstance(value, dict)]
    named = [text_of(term) for term in terms]
    made["keywords"] = [*(word for word in dict.fromkeys([*card.keywords, *card.tasks]) if word not in named), *terms]
    made["applicationCategory"] = card.get("applicationCategory") or card.get("scienceDomain")
    made["softwareRequirements"] = card.get("softwareRequirements")
    if card.kind == "model":
        made["softwareRequirements"] = [
            *as_list(card.get("softwareRequirements")),
            *card.texts("machineLearningFramework"),
        ]
    urls = [file.url for file in card.files if is_iri(file.url)]
    made["downloadUrl"] = card.get("downloadUrl") or one_or_many(urls)
    body |= filled(made)
    foreign = card.get("foreign")
    rest = foreign.get("codemeta") if isinstance(foreign, dict) else None
    if isinstance(rest, dict):
        # What remained of a word we know is a fragment: it goes back into its place or nowhere.
        fragments = {"@context", "@graph", "@type", *_WORDS, *_OLD_WORDS} - set(body)
        body = with_rest(body, {key: value for key, value in rest.items() if key not in fragments})
    return {"codemeta.json": json.dumps(body, indent=2, ensure_ascii=False) + "\n"}
