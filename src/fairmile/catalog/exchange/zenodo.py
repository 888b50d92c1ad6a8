"""Zenodo: the records of its interface (JSON), and the `.zenodo.json` that a repository keeps for its releases.

Fields as in https://developers.zenodo.org (deposit metadata, records).
"""

from __future__ import annotations

import html
import re
from typing import Any

from fairmile.base.errors import InvalidDocument
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
    take_date,
    take_each,
    take_one,
    take_text,
    take_texts,
    version_as_written,
)
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.identity import is_iri

_FILE_NAME = ".zenodo.json"
_KINDS = {"dataset": "dataset", "software": "program", "model": "model", "workflow": "workflow"}
_ACCESS = {"open": "public", "embargoed": "embargoed", "restricted": "restricted", "closed": "closed"}
_RELATIONS = {
    "isSupplementTo": "citation",
    "isSupplementedBy": "mentions",
    "isDerivedFrom": "wasDerivedFrom",
    "isNewVersionOf": "wasRevisionOf",
    "isPartOf": "isPartOf",
    "hasPart": "hasPart",
    "cites": "citation",
    "references": "citation",
    "isDocumentedBy": "citation",
    "isDescribedBy": "citation",
    "isCitedBy": "mentions",
    "isIdenticalTo": "sameAs",
}
_BLOCK = re.compile(r"<\s*(?:/p|/li|/div|/h\d|br)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,2000}>")


def recognises(document: Document) -> bool:
    """Tell whether the document is a record of Zenodo's interface, or called .zenodo.json."""
    if document.file_name == _FILE_NAME:
        return True
    if b'"conceptrecid"' not in document.data:
        return False
    try:
        value = document.json()
    except InvalidDocument:
        return False
    return isinstance(value, dict) and isinstance(value.get("metadata"), dict)


def read(document: Document) -> list[Draft]:
    """Return the asset that a record or a .zenodo.json describes."""
    record = document.json()
    if not isinstance(record, dict):
        raise document.refuse("expected an object with title and creators")
    inner = record.get("metadata")
    about: dict[str, Any] = inner if isinstance(inner, dict) else record
    title = take_text(about, "title")
    if title is None:
        raise document.refuse("is missing", field="title", hint="every record of Zenodo has a title")
    draft = Draft(_kind(about), {"name": title})
    _described(draft, about, document)
    _rights(draft, about)
    _relations(draft, about)
    if about is not record:
        if record.get("title") == title:
            del record["title"]
        _published(draft, record)
        if not about:
            del record["metadata"]
    draft.foreign.update(record)
    settle_any(draft)
    return [draft]


def _kind(about: dict[str, Any]) -> str:
    kind = about.get("resource_type")
    word = as_text(kind.get("type")) if isinstance(kind, dict) else None
    word = word or as_text(about.get("upload_type")) or ""
    if word in _KINDS:
        about.pop("upload_type", None)
    return _KINDS.get(word, "dataset")


def _described(draft: Draft, about: dict[str, Any], document: Document) -> None:
    draft.put("creator", take_each(about, "creators", lambda value: _person(value, draft)))
    draft.put("contributor", take_each(about, "contributors", lambda value: _person(value, draft)))
    text = take_text(about, "description")
    draft.put("description", plain_text(text) if text else None)
    draft.put("keywords", take_texts(about, "keywords"))
    is_number = not isinstance(about.get("version"), str)
    version = take_text(about, "version")
    draft.put("version", version_as_written(draft, document.text, version) if version and is_number else version)
    take_date(draft, about, "publication_date", "datePublished")
    draft.put("inLanguage", take_text(about, "language"))
    doi = doi_iri(as_text(about.get("doi")))
    if doi:
        about.pop("doi")
        draft.put("identifier", doi)


def _person(value: Any, draft: Draft) -> dict[str, Any] | None:
    name = as_text(value.get("name")) if isinstance(value, dict) else None
    if name is None:
        return None
    value.pop("name")
    orcid = orcid_iri(value.get("orcid"))
    if orcid:
        value.pop("orcid")
        warn_of_unsound_orcid(draft, "creators", orcid)
    affiliation = take_one(value, "affiliation", as_text)
    family, comma, given = (part.strip() for part in name.partition(","))
    if not comma and not orcid:  # "Doe, Jane" is a person; a name without a comma may be an institute
        return {"name": name} | ({"affiliation": organisation(affiliation)} if affiliation else {})
    return person(
        name=f"{given} {family}" if comma else name,
        given=given or None,
        family=family if comma else None,
        orcid=orcid,
        affiliation=organisation(affiliation) if affiliation else None,
    )


def _rights(draft: Draft, about: dict[str, Any]) -> None:
    licence = about.get("license")
    if isinstance(licence, dict):
        draft.put("license", take_text(licence, "id"))
        if not licence:
            del about["license"]
    else:
        draft.put("license", take_text(about, "license"))
    access = as_text(about.get("access_right")) or ""
    if access in _ACCESS:
        about.pop("access_right")
        draft.put("accessRights", _ACCESS[access])
    conditions = take_text(about, "access_conditions")
    draft.put("conditionsOfAccess", plain_text(conditions) if conditions else None)


def _relations(draft: Draft, about: dict[str, Any]) -> None:
    targets: dict[str, list[str]] = {}

    def convert(value: Any) -> bool | None:
        term = _RELATIONS.get(as_text(value.get("relation")) or "") if isinstance(value, dict) else None
        text = as_text(value.get("identifier")) if term else None
        iri = identifier_iri(as_text(value.get("scheme")) or "", text) if text else None
        if term is None or text is None:
            return None
        if term != "sameAs" or is_iri(iri or text):
            targets.setdefault(term, []).append(iri or text)
            value.pop("identifier")
            value.pop("relation")
            return True
        return None

    take_each(about, "related_identifiers", convert)
    for term, identifiers in targets.items():
        draft.put(term, one_or_many(identifiers))


def _published(draft: Draft, record: dict[str, Any]) -> None:
    """Take what only a published record has: its DOI, its page and its files."""
    doi = doi_iri(as_text(record.get("doi")))
    if doi:
        record.pop("doi")
        draft.put("@id", doi)
        draft.put("identifier", doi)
    links = record.get("links")
    page = next(
        (text for key in ("self_html", "html") if isinstance(links, dict) and (text := as_text(links.get(key)))), None
    )
    if is_iri(page):
        draft.put("url", page)
    draft.put("publisher", organisation("Zenodo"))
    take_each(record, "files", lambda value: _file(value, draft))


def _file(value: Any, draft: Draft) -> bool | None:
    name = (as_text(value.get("key")) or as_text(value.get("filename"))) if isinstance(value, dict) else None
    if name is None:
        return None
    links = value.get("links")
    url = as_text(links.get("self")) if isinstance(links, dict) else None
    algorithm, _, digest = (as_text(value.get("checksum")) or "").partition(":")
    checksums = {algorithm: digest} if algorithm in ("md5", "sha256", "sha512") and digest else {}
    draft.add_file(name=name, url=url, size=value.get("size"), checksums=checksums)
    if isinstance(links, dict) and url:
        del links["self"]
    for key in ("key", "filename", "size", *(("checksum",) if checksums else ()), *(() if links else ("links",))):
        value.pop(key, None)
    return True


def plain_text(markup: str) -> str:
    """Return a description in HTML as plain text with its paragraphs."""
    text = html.unescape(_TAG.sub("", _BLOCK.sub("\n\n", markup)))
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text)]
    return "\n\n".join(each for each in paragraphs if each)
