"""DataCite metadata as JSON: kernel 4.x and answers of the REST interface."""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.base.units import parse_size
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.common.agents import (
    doi_iri,
    identifier_iri,
    orcid_iri,
    organisation,
    person,
    ror_iri,
    warn_of_unsound_orcid,
)
from fairmile.catalog.exchange.common.jsonld import settle_any
from fairmile.catalog.exchange.common.parts import (
    as_text,
    one_or_many,
    take_each,
    take_one,
    take_text,
    take_texts,
    version_as_written,
    warn_of_empty_licences,
)
from fairmile.catalog.exchange.datacite_writer import KINDS as KINDS
from fairmile.catalog.exchange.datacite_writer import RELATIONS
from fairmile.catalog.exchange.datacite_writer import write as write
from fairmile.catalog.exchange.draft import Document, Draft
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import KIND_SYNONYMS
from fairmile.catalog.licences import licence_iri

_KIND_OF_TYPE = {
    "dataset": "dataset",
    "collection": "dataset",
    "image": "dataset",
    "sound": "dataset",
    "audiovisual": "dataset",
    "software": "program",
    "computationalnotebook": "program",
    "interactiveresource": "program",
    "workflow": "workflow",
    "model": "model",
}
# Relations that say nearly the same as a word of the profile; the relation itself stays in the source.
_LOOSE_RELATIONS = {
    "References": "citation",
    "IsDescribedBy": "citation",
    "IsDocumentedBy": "citation",
    "IsSupplementTo": "citation",
    "IsPreviousVersionOf": "supersededBy",
}
_ACCESS = {
    "openaccess": "public",
    "embargoedaccess": "embargoed",
    "restrictedaccess": "restricted",
    "closedaccess": "closed",
    "c_abf2": "public",
    "c_f1cf": "embargoed",
    "c_16ec": "restricted",
    "c_14cb": "closed",
}
_DATE_TERMS = {"Issued": "datePublished", "Created": "dateCreated", "Updated": "dateModified"}
_CODE_HOST = re.compile(
    r"^https?://(?:www\.)?(?:github\.com|gitlab\.[\w.]+|bitbucket\.org|codeberg\.org)/[\w.-]+/[\w.-]+"
)


def recognises(document: Document) -> bool:
    """Tell whether the document is a DataCite record or an answer that holds some."""
    if b'"titles"' not in document.data and b'"dois"' not in document.data:
        return False
    try:
        return bool(_records(document.json()))
    except InvalidDocument:
        return False


def _records(value: Any) -> list[dict[str, Any]]:
    """Return the records of a document, each still inside its envelope if it has one."""
    if not isinstance(value, dict):
        return []
    data = value.get("data")
    entries = data if isinstance(data, list) else [data]
    enveloped = [
        entry
        for entry in entries
        if isinstance(entry, dict) and entry.get("type") == "dois" and isinstance(entry.get("attributes"), dict)
    ]
    if enveloped:
        return enveloped
    telling = {"types", "resourceType", "publicationYear", "schemaVersion", "creators"} & set(value)
    return [value] if "titles" in value and len(telling) >= 2 else []


def read(document: Document) -> list[Draft]:
    """Return a draft for every record of the document."""
    value = document.json()
    records = _records(value)
    if not records:
        raise document.refuse(
            "is not a DataCite record",
            field="titles",
            hint="expected titles, creators, publisher, publicationYear and types",
        )
    drafts = []
    for record in records:
        enveloped = record is not value
        draft = _record(record["attributes"] if enveloped else record, document)
        if enveloped:
            rest = record.pop("attributes")
            own = as_text(record.get("id"))
            if own and f"https://doi.org/{own}".lower() == str(draft.body.get("@id", "")).lower():
                record.pop("id")
            record.pop("type")
            draft.foreign.update({"attributes": rest} if rest else {})
            draft.foreign.update(record)
        else:
            draft.foreign.update(record)
        settle_any(draft)
        drafts.append(draft)
    outer = {key: each for key, each in value.items() if key != "data"} if records[0] is not value else {}
    if outer:
        drafts[0].foreign["envelope"] = outer
    return drafts


def _record(node: dict[str, Any], document: Document) -> Draft:
    draft = Draft("dataset", {})
    _kind(draft, node)
    _titles(draft, node, document)
    _identifiers(draft, node)
    draft.put("creator", take_each(node, "creators", lambda value: _agent(value, draft, "creators")))
    contributors = take_each(node, "contributors", lambda value: _contributor(value, draft))
    draft.put("contributor", contributors)
    draft.put("publisher", take_one(node, "publisher", _publisher))
    _dates(draft, node)
    number = not isinstance(node.get("version"), str)
    version = take_text(node, "version")
    if version and number:
        version = version_as_written(draft, document.text, version)
    draft.put("version", version)
    draft.put("inLanguage", take_text(node, "language"))
    url = as_text(node.get("url"))
    if is_iri(url):
        draft.put("url", take_text(node, "url"))
    _subjects(draft, node)
    _relations(draft, node)
    _rights(draft, node)
    _descriptions(draft, node)
    _files(draft, node)
    draft.put("spatialCoverage", take_each(node, "geoLocations", _place))
    _funding(draft, node)
    schema = as_text(node.get("schemaVersion"))
    if schema and "datacite.org/schema/kernel" in schema:
        draft.put("conformsTo", [take_text(node, "schemaVersion")])
    return draft


def _kind(draft: Draft, node: dict[str, Any]) -> None:
    key = "types" if isinstance(node.get("types"), dict) else "resourceType"
    types = node.get(key)
    if not isinstance(types, dict):
        draft.warn("types", "the source does not say what kind of resource this is; read as a data set")
        return
    general, text = as_text(types.get("resourceTypeGeneral")), as_text(types.get("resourceType"))
    words = re.findall(r"[a-z]+", (text or "").lower())
    hinted = next((KIND_SYNONYMS.get(word, word) for word in words if KIND_SYNONYMS.get(word, word) in KINDS), None)
    known = _KIND_OF_TYPE.get((general or "").replace(" ", "").lower())
    draft.kind = known or hinted or "dataset"
    if known is None and hinted is None:
        draft.warn("types", f"{general or text!r} is not a kind of asset; read as a data set")
    exact = general in ("Dataset", "Software", "Workflow", "Model") or (
        draft.kind == "benchmark" and general == "Other"
    )
    if exact and general:
        del types["resourceTypeGeneral"]
    stated = take_text(types, "resourceType")
    draft.put("additionalType", stated if stated and stated.lower() != draft.kind else None)
    if not types:
        del node[key]


def _titles(draft: Draft, node: dict[str, Any], document: Document) -> None:
    main: list[str] = []

    def convert(value: Any) -> str | None:
        if not isinstance(value, dict):
            return as_text(value)
        kind = as_text(value.get("titleType"))
        title = take_text(value, "title")
        if title and kind == "AlternativeTitle":
            del value["titleType"]
        if title and not kind and not main:
            main.append(title)
        return title

    titles = take_each(node, "titles", convert)
    if not titles:
        raise document.refuse("names no title", field="titles", hint='expected [{"title": "…"}]')
    name = (main or titles)[0]
    draft.put("name", name)
    titles.remove(name)
    draft.put("alternateName", one_or_many(titles))


def _identifiers(draft: Draft, node: dict[str, Any]) -> None:
    own = doi_iri(as_text(node.get("doi"))) or doi_iri(as_text(node.get("id")))
    for key in ("doi", "id"):
        if own and doi_iri(as_text(node.get(key))) == own:
            node.pop(key)
    identifiers = take_each(node, "identifiers", _identifier)
    identifiers += take_each(node, "identifier", _identifier)
    identifiers += take_each(node, "alternateIdentifiers", _identifier)
    own = own or next(
        (each for each in identifiers if isinstance(each, str) and each.startswith("https://doi.org/")), None
    )
    draft.put("@id", own)
    draft.put("identifier", one_or_many([*([own] if own else []), *identifiers]))
    if as_text(node.get("doi")):
        draft.warn("doi", f"{str(node['doi'])[:80]!r} is not a DOI; left out")


def _identifier(value: Any) -> Any:
    if not isinstance(value, dict):
        text = as_text(value)
        return doi_iri(text) or text
    key = next((key for key in ("identifier", "alternateIdentifier") if as_text(value.get(key))), None)
    if key is None:
        return None
    text = take_text(value, key) or ""
    scheme = take_text(value, f"{key}Type") or ""
    return identifier_iri(scheme, text) or (
        {"@type": "PropertyValue", "propertyID": scheme, "value": text} if scheme else text
    )


def _agent(value: Any, draft: Draft, where: str) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        text = as_text(value)
        return {"name": text} if text else None
    name = next((text for key in ("name", "creatorName", "contributorName") if (text := as_text(value.get(key)))), None)
    given, family = as_text(value.get("givenName")), as_text(value.get("familyName"))
    if not name and not family:
        return None
    for key in ("name", "creatorName", "contributorName", "givenName", "familyName"):
        if as_text(value.get(key)):
            value.pop(key)
    kind = as_text(value.get("nameType"))
    if kind in ("Personal", "Organizational"):
        del value["nameType"]
    ids = take_each(value, "nameIdentifiers", _name_identifier)
    orcid = next((each for each in ids if isinstance(each, str) and orcid_iri(each)), None)
    ror = next((each for each in ids if isinstance(each, str) and ror_iri(each)), None)
    if orcid:
        warn_of_unsound_orcid(draft, where, orcid)
    if kind != "Organizational" and name and not family and kind == "Personal" and name.count(", ") == 1:
        family, given = name.split(", ")
    if family and name in (None, f"{family}, {given}", f"{family}, {given or ''}"):
        name = " ".join(part for part in (given, family) if part)
    affiliations = take_each(value, "affiliation", _affiliation) + take_each(value, "affiliations", _affiliation)
    if kind == "Personal" or orcid or family:
        made = person(name=name, given=given, family=family, orcid=orcid, affiliation=one_or_many(affiliations))
    else:
        made = organisation(name, ror)
        made |= {"affiliation": one_or_many(affiliations)} if affiliations else {}
        if kind is None and not ror:
            del made["@type"]
    others = [each for each in ids if each not in (orcid, ror)]
    return {**made, "identifier": one_or_many(others)} if others else made


def _name_identifier(value: Any) -> Any:
    text = as_text(value.get("nameIdentifier")) if isinstance(value, dict) else None
    if text is None:
        return None
    del value["nameIdentifier"]
    iri = orcid_iri(text) or ror_iri(text)
    scheme = take_text(value, "nameIdentifierScheme")
    if iri:
        _drop_scheme(value)
        return iri
    return {"@type": "PropertyValue", "propertyID": scheme, "value": text} if scheme else text


def _drop_scheme(value: dict[str, Any]) -> None:
    """Pop the address of a scheme that the identifier itself names."""
    for key in ("schemeUri", "schemeURI"):
        if re.fullmatch(r"https?://(?:www\.)?(?:orcid|ror|spdx)\.org/?(?:licenses/?)?", str(value.get(key, ""))):
            del value[key]


def _affiliation(value: Any) -> dict[str, Any] | None:
    return _organisation(value, "affiliation", any_address=False)


def _publisher(value: Any) -> dict[str, Any] | None:
    return _organisation(value, "publisher", any_address=True)


def _organisation(value: Any, word: str, *, any_address: bool) -> dict[str, Any] | None:
    """Return the node of an organisation by its ROR id or, with `any_address`, by any other address."""
    if not isinstance(value, dict):
        text = as_text(value)
        return organisation(text) if text else None
    name = as_text(value.get("name"))
    if name is None:
        return None
    del value["name"]
    given = as_text(value.get(f"{word}Identifier"))
    ror = ror_iri(given)
    iri = ror or (given if any_address and is_iri(given) else None)
    if iri:
        del value[f"{word}Identifier"]
    if ror:
        value.pop(f"{word}IdentifierScheme", None)
        _drop_scheme(value)
    return organisation(name, iri)


def _contributor(value: Any, draft: Draft) -> dict[str, Any] | None:
    made = _agent(value, draft, "contributors")
    role = take_text(value, "contributorType") if made is not None and isinstance(value, dict) else None
    return {**made, "role": role} if made is not None and role else made


def _dates(draft: Draft, node: dict[str, Any]) -> None:
    def convert(value: Any) -> bool | None:
        kind, text = (
            (as_text(value.get("dateType")), as_text(value.get("date"))) if isinstance(value, dict) else (None, None)
        )
        if not kind or not text:
            return None
        if kind == "Withdrawn":
            draft.warn("dates", f"the source was withdrawn on {text}")
        term = "temporalCoverage" if kind in ("Coverage", "Collected") else _DATE_TERMS.get(kind)
        if term is None or term in draft.body:
            return None
        if term != "temporalCoverage" and not is_date(text):
            draft.warn("dates", f"{text[:80]!r} is not a date; left out")
            return None
        draft.put(term, text)
        value.pop("date")
        # Coverage came with 4.6; before it the time that data cover was written as Collected.
        if kind != "Collected":
            value.pop("dateType")
        return True

    take_each(node, "dates", convert)
    year = as_text(node.get("publicationYear"))
    if year is None:
        return
    if not re.fullmatch(r"\d{4}", year):
        draft.warn("publicationYear", f"{year[:80]!r} is not a year; left out")
    elif str(draft.body.get("datePublished", year)).startswith(year):
        draft.body.setdefault("datePublished", year)
        node.pop("publicationYear")
    else:
        draft.warn("publicationYear", f"{year} is not the year of the date of issue, {draft.body['datePublished']}")


def _subjects(draft: Draft, node: dict[str, Any]) -> None:
    domains: list[str] = []

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return as_text(value)
        scheme = as_text(value.get("subjectScheme")) or ""
        text = take_text(value, "subject")
        if text and ("fields of science" in scheme.lower() or text.startswith("FOS: ")):
            domains.append(text.removeprefix("FOS: "))
        iri = as_text(value.get("valueUri"))
        if text and is_iri(iri):
            return {"@type": "DefinedTerm", "@id": value.pop("valueUri"), "name": text}
        return text

    draft.put("keywords", take_each(node, "subjects", convert))
    draft.put("scienceDomain", one_or_many(domains))


def _relations(draft: Draft, node: dict[str, Any]) -> None:
    links: dict[str, list[str]] = {}

    def convert(value: Any) -> bool | None:
        if not isinstance(value, dict):
            return None
        relation, text = as_text(value.get("relationType")) or "", as_text(value.get("relatedIdentifier"))
        iri = identifier_iri(as_text(value.get("relatedIdentifierType")) or "", text) if text else None
        term = RELATIONS.get(relation) or _LOOSE_RELATIONS.get(relation)
        if term is None or iri is None:
            return None
        if relation == "IsSupplementTo" and draft.kind in ("program", "workflow") and _CODE_HOST.match(iri):
            term = "codeRepository"
        links.setdefault(term, []).append(iri)
        value.pop("relatedIdentifier")
        value.pop("relatedIdentifierType", None)
        if relation in RELATIONS:
            value.pop("relationType")
        return True

    take_each(node, "relatedIdentifiers", convert)
    for term, targets in links.items():
        draft.put(term, one_or_many(targets))


def _rights(draft: Draft, node: dict[str, Any]) -> None:
    def convert(value: Any) -> str | None:
        if not isinstance(value, dict):
            return as_text(value)
        texts = {
            key: text
            for key in ("rightsIdentifier", "rightsUri", "rightsURI", "rights")
            if (text := as_text(value.get(key)))
        }
        if not texts:
            return None
        access = next(
            (word for text in texts.values() if (word := _ACCESS.get(re.split(r"[/#]", text.lower())[-1]))), None
        )
        if access:
            draft.put("accessRights", access)
            for key, text in texts.items():
                if re.split(r"[/#]", text.lower())[-1] in _ACCESS:
                    value.pop(key)
            return ""
        key = next((key for key, text in texts.items() if licence_iri(text)), next(iter(texts)))
        for other, text in texts.items():
            if other == key or (licence_iri(text) and licence_iri(text) == licence_iri(texts[key])):
                value.pop(other)
        if key == "rightsIdentifier" and str(value.get("rightsIdentifierScheme", "")).upper() == "SPDX":
            del value["rightsIdentifierScheme"]
            _drop_scheme(value)
        return texts[key]

    draft.put("license", one_or_many([text for text in take_each(node, "rightsList", convert) if text]))
    warn_of_empty_licences(draft, node, "rightsList")


def _descriptions(draft: Draft, node: dict[str, Any]) -> None:
    terms = {"Abstract": "description", "Methods": "measurementTechnique"}

    def convert(value: Any) -> bool | None:
        text = as_text(value.get("description")) if isinstance(value, dict) else None
        kind = as_text(value.get("descriptionType")) if isinstance(value, dict) else None
        term = terms.get(kind or "Abstract")
        if text is None or term is None or term in draft.body:
            return None
        draft.put(term, text)
        value.pop("description")
        value.pop("descriptionType", None)
        return True

    take_each(node, "descriptions", convert)


def _files(draft: Draft, node: dict[str, Any]) -> None:
    urls = take_each(node, "contentUrl", lambda value: value if is_iri(value) else None)
    sizes: list[str] = []

    def size(value: Any) -> str | None:
        text = as_text(value)
        try:
            parse_size(text or "")
        except UsageError:
            if text:
                draft.warn("sizes", f"{text[:80]!r} is not a size; left out")
            return None
        sizes.append(text or "")
        return text

    as_given = node.get("sizes")
    take_each(node, "sizes", size)
    formats = take_texts(node, "formats")
    alone = len(urls) == 1 and len(sizes) <= 1 and len(formats) <= 1
    for url in urls:
        draft.add_file(
            url=url, size=sizes[0] if sizes and alone else None, media_type=formats[0] if formats and alone else None
        )
    if alone:
        return
    if len(sizes) == 1:
        draft.put("contentSize", f"{parse_size(sizes[0])} B")
        if not re.fullmatch(r"\d+\s*B", sizes[0]):
            draft.warn("sizes", f"size {sizes[0]!r} read as {parse_size(sizes[0])} B")
    elif sizes:
        # Which file each size is of is not said, so no sum is made of them.
        node["sizes"] = as_given
    draft.put("modelFormat" if draft.kind == "model" else "encodingFormat", one_or_many(formats))


def _place(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    shapes = []
    for key, corners in (
        ("geoLocationPoint", ("pointLatitude", "pointLongitude")),
        ("geoLocationBox", ("southBoundLatitude", "westBoundLongitude", "northBoundLatitude", "eastBoundLongitude")),
    ):
        shape = value.get(key)
        if isinstance(shape, dict) and all(as_text(shape.get(corner)) for corner in corners):
            text = " ".join(as_text(shape.pop(corner)) or "" for corner in corners)
            shapes.append({"@type": "PropertyValue", "propertyID": key, "value": text})
            if not shape:
                del value[key]
    place = take_text(value, "geoLocationPlace")
    if not place and not shapes:
        return None
    return {key: each for key, each in (("name", place), ("additionalProperty", shapes)) if each}


def _funding(draft: Draft, node: dict[str, Any]) -> None:
    def convert(value: Any) -> dict[str, Any] | None:
        name = as_text(value.get("funderName")) if isinstance(value, dict) else None
        if name is None:
            return None
        del value["funderName"]
        iri = as_text(value.get("funderIdentifier"))
        iri = ror_iri(iri) or doi_iri(iri) or (iri if is_iri(iri) else None)
        if iri:
            del value["funderIdentifier"]
            if value.get("funderIdentifierType") == ("ROR" if ror_iri(iri) else "Crossref Funder ID"):
                del value["funderIdentifierType"]
        address = as_text(value.get("awardUri"))
        made = {"@type": "Grant", "@id": value.pop("awardUri") if is_iri(address) else None}
        made |= {"name": take_text(value, "awardTitle"), "identifier": take_text(value, "awardNumber")}
        made = {key: each for key, each in made.items() if each}
        return {**made, "funder": organisation(name, iri)}

    grants = take_each(node, "fundingReferences", convert)
    draft.put("funding", [grant for grant in grants if len(grant) > 2])
    draft.put("funder", one_or_many([grant["funder"] for grant in grants if len(grant) == 2]))
