"""DataCite 4.5 JSON for a card, as a repository hands it in to get a DOI."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.catalog.card import SPDX_PREFIX, Card, as_list, id_of, text_of
from fairmile.catalog.dates import is_date
from fairmile.catalog.exchange.common.agents import agents_of, orcid_iri, ror_iri
from fairmile.catalog.exchange.common.parts import given_version, unique, with_rest
from fairmile.catalog.exchange.draft import filled
from fairmile.catalog.identity import doi_of, is_iri

KINDS = ("dataset", "model", "program", "workflow", "benchmark")
SCHEMA = "http://datacite.org/schema/kernel-4"
# Each relation with the one word of the profile that says the same.
RELATIONS = {
    "IsDerivedFrom": "wasDerivedFrom",
    "IsPartOf": "isPartOf",
    "HasPart": "hasPart",
    "Cites": "citation",
    "IsNewVersionOf": "wasRevisionOf",
    "IsObsoletedBy": "supersededBy",
    "IsVersionOf": "exampleOfWork",
    "HasVersion": "workExample",
    "IsIdenticalTo": "sameAs",
    "Requires": "softwareRequirements",
}
_TYPES = {"dataset": "Dataset", "model": "Model", "program": "Software", "workflow": "Workflow", "benchmark": "Other"}
_FIXES = {
    "name": "give the card a name",
    "creator": 'add "creator": [{"@type": "Person", "name": "…", "@id": "https://orcid.org/…"}]',
    "publisher": 'add "publisher": {"@type": "Organization", "name": "…"}, who keeps the asset available',
    "datePublished": 'add "datePublished": "2026-01-31", or the year alone',
}
_ROLES_WORDS = """
ContactPerson DataCollector DataCurator DataManager Distributor Editor HostingInstitution Producer
ProjectLeader ProjectManager ProjectMember RegistrationAgency RegistrationAuthority RelatedPerson
Researcher ResearchGroup RightsHolder Sponsor Supervisor WorkPackageLeader
"""
_ROLES = frozenset(_ROLES_WORDS.split())
# What may be handed on from a record the card was read from; the rest of such a record is the registry's own.
_KERNEL_KEYS = ("relatedItems", "relatedIdentifiers", "descriptions", "dates", "container", "subjects")


def write(card: Card) -> dict[str, str]:
    """Return datacite.json for the card; UsageError when it lacks what DataCite cannot do without."""
    creators = [_agent(node) for node in agents_of(card.get("creator"))]
    publisher = next(iter(agents_of(card.get("publisher"))), None)
    year = re.match(r"\d{4}", card.text("datePublished"))
    given = {"name": card.title, "creator": creators, "publisher": publisher, "datePublished": year}
    missing = [key for key, value in given.items() if not value]
    if missing or publisher is None or year is None:
        raise UsageError(
            f"DataCite cannot describe {card.handle}: the card lacks {', '.join(missing)}",
            hint="; ".join(_FIXES[key] for key in missing),
        )
    made: dict[str, Any] = _identifiers(card)
    made["types"] = _types(card)
    made["creators"] = creators
    made["titles"] = [{"title": card.title}]
    made["titles"] += [
        {"title": text, "titleType": "AlternativeTitle"} for text in card.texts("alternateName") if text != card.title
    ]
    made["publisher"] = _publisher(publisher)
    made["publicationYear"] = year[0]
    made |= _about(card)
    made["contributors"] = [
        {**_agent(node), "contributorType": _role(node)} for node in agents_of(card.get("contributor"))
    ]
    made["relatedIdentifiers"] = _related(card)
    made["fundingReferences"] = _funding(card)
    made["geoLocations"] = [place for each in as_list(card.get("spatialCoverage")) if (place := _place(each))]
    made["schemaVersion"] = SCHEMA
    body = filled(made)
    return {"datacite.json": json.dumps(with_rest(body, _rest(card, body)), indent=2, ensure_ascii=False) + "\n"}


def _rest(card: Card, made: dict[str, Any]) -> dict[str, Any]:
    """Return what remained of the record the card was read from and DataCite's rules let us repeat."""
    foreign = card.get("foreign")
    source = foreign.get("datacite") if isinstance(foreign, Mapping) else None
    source = source.get("attributes", source) if isinstance(source, Mapping) else {}
    if not isinstance(source, Mapping):
        return {}
    rest: dict[str, Any] = {}
    for key in _KERNEL_KEYS:
        value = source.get(key)
        if key in made and isinstance(value, list):
            whole = [each for each in value if isinstance(each, Mapping) and _is_whole(key, each)]
            made[key] = [*made[key], *(dict(each) for each in whole)]
        elif value and key not in made and isinstance(value, list):
            rest[key] = [each for each in value if isinstance(each, Mapping) and _is_whole(key, each)]
        elif value and key not in made:
            rest[key] = value
    return rest


def _is_whole(key: str, entry: Mapping[str, Any]) -> bool:
    needed = {
        "relatedItems": ("titles", "relatedItemType", "relationType"),
        "relatedIdentifiers": ("relatedIdentifier", "relatedIdentifierType", "relationType"),
        "descriptions": ("description", "descriptionType"),
        "dates": ("date", "dateType"),
        "subjects": ("subject",),
    }
    return all(entry.get(name) for name in needed.get(key, ()))


def _identifiers(card: Card) -> dict[str, Any]:
    dois = list(dict.fromkeys(doi for text in card.identifiers if (doi := doi_of(text))))
    own = doi_of(card.iri) or next(iter(dois), None)
    others = []
    for value in as_list(card.get("identifier")):
        text = text_of(value.get("value")) if isinstance(value, Mapping) and "value" in value else text_of(value)
        if not text or (own and doi_of(text) == own):
            continue
        scheme = text_of(value.get("propertyID")) if isinstance(value, Mapping) else None
        others.append({"alternateIdentifier": text, "alternateIdentifierType": scheme or _scheme(text)})
    if not doi_of(card.iri) and card.iri:
        others.append({"alternateIdentifier": card.iri, "alternateIdentifierType": _scheme(card.iri)})
    return {"doi": own, "url": card.text("url") if is_iri(card.text("url")) else None, "alternateIdentifiers": others}


def _scheme(text: str) -> str:
    if doi_of(text):
        return "DOI"
    starts = {"http": "URL", "urn:": "URN", "ark:": "ARK", "swh:": "SWHID"}
    return next((name for start, name in starts.items() if text.startswith(start)), "Local")


def _types(card: Card) -> dict[str, str]:
    stated = card.text("additionalType")
    named = {"resourceType": stated or "Benchmark"} if stated or card.kind == "benchmark" else {}
    return {"resourceTypeGeneral": _TYPES[card.kind], **named}


def _agent(node: Mapping[str, Any]) -> dict[str, Any]:
    given, family = text_of(node.get("givenName")), text_of(node.get("familyName"))
    iri = str(node.get("@id") or "")
    types = as_list(node.get("@type"))
    made: dict[str, Any] = {"name": f"{family}, {given}" if family and given else node["name"]}
    if "Person" in types or orcid_iri(iri) or family:
        made["nameType"] = "Personal"
    elif "Organization" in types or ror_iri(iri):
        made["nameType"] = "Organizational"
    made |= {key: text for key, text in (("givenName", given), ("familyName", family)) if text}
    made["nameIdentifiers"] = [
        each for each in (_name_identifier(value) for value in (iri, *as_list(node.get("identifier")))) if each
    ]
    made["affiliation"] = [_affiliation(each) for each in agents_of(node.get("affiliation"))]
    return {key: value for key, value in made.items() if value}


def _name_identifier(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping) and "value" in value and "propertyID" in value:
        return {"nameIdentifier": str(value["value"]), "nameIdentifierScheme": str(value["propertyID"])}
    for iri, scheme, home in (
        (orcid_iri(value), "ORCID", "https://orcid.org"),
        (ror_iri(value), "ROR", "https://ror.org"),
    ):
        if iri:
            return {"nameIdentifier": iri, "nameIdentifierScheme": scheme, "schemeUri": home}
    return None


def _affiliation(node: Mapping[str, Any]) -> dict[str, Any]:
    ror = ror_iri(str(node.get("@id") or ""))
    known = {"affiliationIdentifier": ror, "affiliationIdentifierScheme": "ROR", "schemeUri": "https://ror.org"}
    return {"name": node["name"], **(known if ror else {})}


def _publisher(node: Mapping[str, Any]) -> dict[str, Any]:
    ror = ror_iri(str(node.get("@id") or ""))
    known = {"publisherIdentifier": ror, "publisherIdentifierScheme": "ROR", "schemeUri": "https://ror.org"}
    return {"name": node["name"], **(known if ror else {})}


def _role(node: Mapping[str, Any]) -> str:
    role = text_of(node.get("role")) or ""
    return role if role in _ROLES else "Other"


def _about(card: Card) -> dict[str, Any]:
    terms = (("datePublished", "Issued"), ("dateCreated", "Created"), ("dateModified", "Updated"))
    dates = [{"date": card.text(key), "dateType": kind} for key, kind in terms if is_date(card.text(key))]
    if card.text("temporalCoverage"):
        dates.append({"date": card.text("temporalCoverage"), "dateType": "Collected"})
    subjects = [_subject(value) for value in as_list(card.get("keywords"))]
    known = {each["subject"].removeprefix("FOS: ") for each in subjects if each}
    subjects += [{"subject": text} for text in [*card.domains, *card.tasks] if text not in known]
    described = (
        ("Abstract", card.text("description") or card.text("abstract")),
        ("Methods", card.text("measurementTechnique")),
    )
    size = card.text("contentSize") or (
        f"{sum(file.size_bytes or 0 for file in card.files)} B" if _all_sized(card) else ""
    )
    formats = (
        [file.media_type for file in card.files if file.media_type]
        or card.texts("encodingFormat")
        or card.texts("modelFormat")
    )
    return {
        "dates": dates,
        "subjects": unique(each for each in subjects if each),
        "language": card.text("inLanguage"),
        "sizes": [size] if size else [],
        "formats": list(dict.fromkeys(formats)),
        "version": given_version(card),
        "rightsList": _rights(card),
        "descriptions": [{"description": text, "descriptionType": kind} for kind, text in described if text],
    }


def _all_sized(card: Card) -> bool:
    return bool(card.files) and all(file.size_bytes is not None for file in card.files)


def _subject(value: Any) -> dict[str, Any] | None:
    text = text_of(value)
    iri = str(value.get("@id", "")) if isinstance(value, Mapping) else ""
    return {"subject": text, **({"valueUri": iri} if is_iri(iri) else {})} if text else None


def _rights(card: Card) -> list[dict[str, Any]]:
    rights: list[dict[str, Any]] = []
    for licence in (text.removeprefix(SPDX_PREFIX) for text in card.texts("license") if text.startswith(SPDX_PREFIX)):
        known = {"rightsIdentifier": licence, "rightsIdentifierScheme": "SPDX", "schemeUri": SPDX_PREFIX}
        # An expression of several licences has no page of its own.
        address = {"rightsUri": f"{SPDX_PREFIX}{licence}.html"} if re.fullmatch(r"[\w.+-]+", licence) else {}
        rights.append({"rights": licence, **address, **known})
    if not rights:
        texts = card.texts("licenseRaw") or card.texts("license")
        rights += [{"rights": text, **({"rightsUri": text} if is_iri(text) else {})} for text in texts]
    word = {"public": "open", "registered": "restricted"}.get(card.text("accessRights"), card.text("accessRights"))
    if word in ("open", "embargoed", "restricted", "closed"):
        semantics = f"info:eu-repo/semantics/{word}Access"
        rights.append({"rights": f"{word.capitalize()} access", "rightsUri": semantics})
    return rights


def _related(card: Card) -> list[dict[str, Any]]:
    made = []
    links = [
        (relation, target)
        for relation, term in RELATIONS.items()
        for value in as_list(card.get(term))
        if (target := id_of(value))
    ]
    links += [("IsSupplementTo", text) for text in card.texts("codeRepository")]
    links += [("IsDescribedBy", text) for value in as_list(card.get("referencePublication")) if (text := id_of(value))]
    for relation, target in links:
        scheme = _scheme(target)
        if scheme in ("DOI", "URL", "URN", "ARK") and is_iri(target):
            address = doi_of(target) or target
            made.append({"relatedIdentifier": address, "relatedIdentifierType": scheme, "relationType": relation})
    return unique(made)


def _funding(card: Card) -> list[dict[str, Any]]:
    made = []
    for grant in [*as_list(card.get("funding")), *({"funder": each} for each in as_list(card.get("funder")))]:
        if not isinstance(grant, Mapping):
            continue
        for funder in agents_of(grant.get("funder")):
            ror = ror_iri(str(funder.get("@id") or ""))
            known = {"funderIdentifier": ror, "funderIdentifierType": "ROR"} if ror else {}
            award = {"awardNumber": text_of(grant.get("identifier")), "awardTitle": text_of(grant.get("name"))}
            iri = grant.get("@id")
            award["awardUri"] = str(iri) if is_iri(iri) else None
            made.append({"funderName": funder["name"], **known, **{key: text for key, text in award.items() if text}})
    return unique(made)


def _place(value: Any) -> dict[str, Any] | None:
    name = text_of(value)
    made: dict[str, Any] = {"geoLocationPlace": name} if name else {}
    corners = {
        "geoLocationPoint": ("pointLatitude", "pointLongitude"),
        "geoLocationBox": ("southBoundLatitude", "westBoundLongitude", "northBoundLatitude", "eastBoundLongitude"),
    }
    for each in as_list(value.get("additionalProperty")) if isinstance(value, Mapping) else []:
        names = corners.get(str(each.get("propertyID"))) if isinstance(each, Mapping) else None
        numbers = _numbers(each.get("value")) if names else []
        if names and len(numbers) == len(names):
            made[str(each["propertyID"])] = dict(zip(names, numbers, strict=True))
    return made or None


def _numbers(value: Any) -> list[int | float]:
    try:
        return [int(part) if part.lstrip("-").isdigit() else float(part) for part in str(value).split()]
    except ValueError:
        return []
