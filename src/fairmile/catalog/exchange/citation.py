"""CITATION.cff, the Citation File Format 1.x."""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.common.agents import (
    doi_iri,
    identifier_iri,
    orcid_iri,
    organisation,
    person,
    warn_of_unsound_orcid,
)
from fairmile.catalog.exchange.common.jsonld import settle_any
from fairmile.catalog.exchange.common.parts import (
    as_text,
    one_or_many,
    plain,
    take_date,
    take_each,
    take_one,
    take_text,
    take_texts,
    version_as_written,
    warn_of_empty_licences,
)
from fairmile.catalog.exchange.draft import Document, Draft, filled
from fairmile.catalog.identity import is_iri

_OWN_KEY = re.compile(r"^[ \t]*[\"']?cff-version[\"']?[ \t]*:", re.MULTILINE)
_KINDS = {"software": "program", "dataset": "dataset"}
_WORK_TYPES = {
    "software": "SoftwareSourceCode",
    "software-code": "SoftwareSourceCode",
    "dataset": "Dataset",
    "data": "Dataset",
    "article": "ScholarlyArticle",
    "conference-paper": "ScholarlyArticle",
    "report": "ScholarlyArticle",
    "thesis": "ScholarlyArticle",
    "proceedings": "ScholarlyArticle",
}
_PERSON_KEYS = ("family-names", "given-names", "name-particle", "name-suffix")


def recognises(document: Document) -> bool:
    """Tell whether the file is called *.cff or has the key every such file begins with."""
    if document.file_name.lower().endswith(".cff"):
        return True
    if b"cff-version" not in document.data:
        return False
    try:
        return bool(_OWN_KEY.search(document.text))
    except InvalidDocument:
        return False


def read(document: Document) -> list[Draft]:
    """Return the program or data set the file asks to cite."""
    node = plain(document.yaml())
    if not isinstance(node, dict):
        raise document.refuse("expected keys such as title and authors", hint="see CITATION.cff 1.2")
    title = take_text(node, "title")
    if title is None:
        raise document.refuse("is required and must be a string", field="title", hint="a CITATION.cff needs a title")
    kind = as_text(node.get("type"))
    draft = Draft(_KINDS.get(kind or "software", "program"), {"name": title})
    if kind in _KINDS:
        del node["type"]
    elif "type" in node:
        draft.warn("type", f"{node['type']!r} is neither software nor dataset; read as software")
    if "cff-version" not in node:
        draft.warn("cff-version", "the source does not say which version of the format it has")
    _version(draft, node, document)
    _identifiers(draft, node)
    _addresses(draft, node)
    draft.put("creator", take_each(node, "authors", lambda value: _agent(value, draft)))
    if "creator" not in draft.body:
        draft.warn("authors", "the source names no author")
    draft.put("description", take_text(node, "abstract"))
    draft.put("keywords", take_texts(node, "keywords"))
    _licence(draft, node)
    _citations(draft, node)
    draft.foreign.update(node)
    settle_any(draft)
    return [draft]


def _version(draft: Draft, node: dict[str, Any], document: Document) -> None:
    number = isinstance(node.get("version"), (int, float)) and not isinstance(node.get("version"), bool)
    version = take_text(node, "version")
    if version is not None and number:
        version = version_as_written(draft, document.text, version)
    draft.put("version", version or take_text(node, "commit"))
    take_date(draft, node, "date-released", "datePublished")


def _identifiers(draft: Draft, node: dict[str, Any]) -> None:
    identifiers: list[str] = []
    doi = as_text(node.get("doi"))
    iri = doi_iri(doi)
    if iri:
        if iri != f"https://doi.org/{doi}":
            draft.warn("doi", f"written as {doi!r} in the source; read as {iri}")
        node.pop("doi")
        identifiers.append(iri)
    elif doi:
        draft.warn("doi", f"{doi!r} is not a DOI; left out")
    identifiers += take_each(node, "identifiers", _identifier)
    draft.put("identifier", one_or_many(identifiers))
    if any(re.search(r"x{3,}|zenodo\.1234(567)?8?$", text, re.IGNORECASE) for text in identifiers):
        draft.warn("identifier", "looks like the placeholder of a template")


def _identifier(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    text, scheme = as_text(value.get("value")), as_text(value.get("type")) or "other"
    if text is None:
        return None
    value.pop("value")
    iri = identifier_iri(scheme, text)
    # `other` says nothing; any other type is told by the identifier's own form.
    if iri or scheme == "other":
        value.pop("type", None)
    return iri or text


def _addresses(draft: Draft, node: dict[str, Any]) -> None:
    draft.put("codeRepository", take_text(node, "repository-code"))
    draft.put("url", take_text(node, "url"))
    repository = take_text(node, "repository")
    draft.put("sameAs" if "url" in draft.body else "url", repository)
    artifact = take_text(node, "repository-artifact")
    if artifact and draft.kind == "dataset":
        draft.add_file(url=artifact)
    else:
        draft.put("downloadUrl", artifact)
    for key in ("codeRepository", "url", "downloadUrl", "sameAs"):
        if key in draft.body and not is_iri(draft.body[key]):
            draft.warn(key, f"{draft.body[key]!r} is not an address; kept as given")


def _licence(draft: Draft, node: dict[str, Any]) -> None:
    warn_of_empty_licences(draft, node, "license")
    draft.put("license", one_or_many(take_texts(node, "license")))
    if "license" not in draft.body:
        draft.put("license", take_text(node, "license-url"))


def _agent(value: Any, draft: Draft) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    parts = {key: text for key in _PERSON_KEYS if (text := as_text(value.get(key)))}
    alias, entity = as_text(value.get("alias")), as_text(value.get("name"))
    if not parts and not alias and not entity:
        return None
    orcid = orcid_iri(value.get("orcid"))
    if orcid:
        value.pop("orcid")
        warn_of_unsound_orcid(draft, "authors", orcid)
    elif value.get("orcid"):
        draft.warn("authors", f"{str(value['orcid'])[:80]!r} is not an ORCID; left out")
    if entity and not parts:
        value.pop("name")
        node = organisation(entity, orcid)
    else:
        node = _person(value, parts, orcid)
        node.setdefault("name", alias)
    more = {
        "email": take_text(value, "email"),
        "url": take_text(value, "website"),
        "alternateName": take_text(value, "alias"),
    }
    return {**node, **{key: text for key, text in more.items() if text}}


def _person(value: dict[str, Any], parts: dict[str, str], orcid: str | None) -> dict[str, Any]:
    order = ("given-names", "name-particle", "family-names", "name-suffix")
    affiliation = take_one(value, "affiliation", as_text)
    # Particle and suffix have no place of their own on a card: used in the name, they stay in the source too.
    for key in ("given-names", "family-names"):
        if key in parts:
            value.pop(key)
    return person(
        name=" ".join(parts[key] for key in order if key in parts) or None,
        given=parts.get("given-names"),
        family=parts.get("family-names"),
        orcid=orcid,
        affiliation=organisation(affiliation) if affiliation else None,
    )


def _citations(draft: Draft, node: dict[str, Any]) -> None:
    preferred = take_one(node, "preferred-citation", lambda value: _work(value, draft))
    works = [preferred] if preferred else []
    works += take_each(node, "references", lambda value: _work(value, draft))
    draft.put("citation", works)
    if preferred and draft.kind == "program":
        draft.put("referencePublication", preferred.get("@id"))


def _work(value: Any, draft: Draft) -> dict[str, Any] | None:
    title = as_text(value.get("title")) if isinstance(value, dict) else None
    if title is None:
        return None
    value.pop("title")
    kind = as_text(value.get("type")) or ""
    node: dict[str, Any] = {"@type": _WORK_TYPES.get(kind, "CreativeWork")}
    iri = doi_iri(as_text(value.get("doi")))
    if iri:
        value.pop("doi")
        node["@id"] = iri
    url = take_text(value, "url")
    year = as_text(value.get("year"))
    node |= {"name": title, "creator": take_each(value, "authors", lambda each: _agent(each, draft)), "url": url}
    released = next(
        (key for key in ("date-published", "date-released") if is_date(as_text(value.get(key)) or "")), None
    )
    if released:
        node["datePublished"] = as_text(value.pop(released))
    elif year and re.fullmatch(r"\d{4}", year):
        node["datePublished"] = year
        value.pop("year")
    if isinstance(value.get("version"), str):
        node["version"] = value.pop("version")
    if kind in ("article", "software", "dataset"):
        del value["type"]
    return filled(node)
