"""People, organisations and identifiers as foreign formats write them, in the one form a card has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairmile.catalog.card import as_list, text_of
from fairmile.catalog.exchange.draft import Draft, filled
from fairmile.catalog.identity import doi_of, is_iri

_ORCID = re.compile(
    r"(?:^|(?:https?://)?(?:www\.)?orcid\.org/|orcid:\s*)(\d{4}-\d{4}-\d{4}-\d{3}[\dX])/?$", re.IGNORECASE
)
_ROR = re.compile(r"(?:^|(?:https?://)?ror\.org/)(0[a-z0-9]{6}\d{2})/?$", re.IGNORECASE)
_BARE_DOI = re.compile(r"^10\.\d{4,9}/\S+$")
_MAILBOX = re.compile(r"^([^<>]*?)\s*<([^<>\s]+@[^<>\s]+)>$")
# How an identifier of each scheme becomes an address; the scheme's name is compared without case.
_ADDRESS_OF_SCHEME = {
    "arxiv": "https://arxiv.org/abs/",
    "handle": "https://hdl.handle.net/",
    "pmid": "https://pubmed.ncbi.nlm.nih.gov/",
    "isbn": "urn:isbn:",
    "issn": "urn:issn:",
    "eissn": "urn:issn:",
    "bibcode": "https://ui.adsabs.harvard.edu/abs/",
}


def orcid_iri(text: Any) -> str | None:
    """Return the address of the ORCID in the text, bare or in any of its addresses."""
    match = _ORCID.search(text.strip()) if isinstance(text, str) else None
    return f"https://orcid.org/{match[1].upper()}" if match else None


def orcid_is_sound(iri: str) -> bool:
    """Tell whether the last character of the ORCID is the check digit of the others (ISO 7064 11,2)."""
    digits = iri.rsplit("/", 1)[-1].replace("-", "")
    total = 0
    for digit in digits[:-1]:
        total = (total + int(digit)) * 2
    return digits[-1] == "0123456789X"[(12 - total % 11) % 11]


def warn_of_unsound_orcid(draft: Draft, field: str, iri: str) -> None:
    """Record that the check digit of the ORCID does not fit, where it does not."""
    if not orcid_is_sound(iri):
        draft.warn(field, f"{iri} is not an ORCID: its check digit is wrong")


def ror_iri(text: Any) -> str | None:
    """Return the address of the ROR id in the text, bare or as an address."""
    match = _ROR.search(text.strip()) if isinstance(text, str) else None
    return f"https://ror.org/{match[1].lower()}" if match else None


def doi_iri(text: Any) -> str | None:
    """Return the address of the DOI in the text, bare or in any of its spellings."""
    if not isinstance(text, str):
        return None
    doi = text.strip() if _BARE_DOI.match(text.strip()) else doi_of(text)
    return f"https://doi.org/{doi}" if doi else None


def identifier_iri(scheme: str, value: str) -> str | None:
    """Return the address an identifier of a named scheme has, or None when the scheme gives it none."""
    value, name = value.strip(), scheme.strip().lower()
    if name == "doi" or doi_of(value):
        return doi_iri(value)
    if name == "ark":
        return value if is_iri(value) else f"ark:/{value.lstrip('/')}"
    prefix = _ADDRESS_OF_SCHEME.get(name, "")
    # arXiv ids and ISBNs are often written with the name of their scheme in front.
    bare = value[len(name) + 1 :].strip() if value.lower().startswith(f"{name}:") else value
    iri = value if is_iri(bare) else prefix + bare
    return iri if is_iri(iri) else None


def organisation(name: str | None, iri: str | None = None) -> dict[str, Any]:
    """Return the node of an organisation."""
    return filled({"@type": "Organization", "@id": iri, "name": name or iri})


def person(
    *,
    name: str | None = None,
    given: str | None = None,
    family: str | None = None,
    orcid: str | None = None,
    affiliation: Any = None,
    email: str | None = None,
) -> dict[str, Any]:
    """Return the node of a person; the name is put together where it is not given."""
    whole = name or " ".join(part for part in (given, family) if part) or orcid
    node = {"@type": "Person", "@id": orcid, "name": whole, "givenName": given, "familyName": family}
    return filled({**node, "affiliation": affiliation, "email": email})


def agent_from_text(text: str) -> dict[str, Any]:
    """Return the node of whoever the text names: a name, or `Name <address>`; who that is stays open."""
    match = _MAILBOX.match(text.strip()) if len(text) < 1000 else None
    if match:
        return filled({"name": match[1].strip(" \"'") or match[2], "email": match[2]})
    return {"name": text.strip()}


def agents_of(value: Any) -> list[dict[str, Any]]:
    """Return every person and organisation of a card's property as a node that has a name."""
    nodes = [dict(each) if isinstance(each, Mapping) else {"name": text_of(each)} for each in as_list(value)]
    for node in nodes:
        given, family = text_of(node.get("givenName")), text_of(node.get("familyName"))
        joined = " ".join(part for part in (given, family) if part)
        node["name"] = text_of(node.get("name")) or joined or text_of(node)
    return [node for node in nodes if node["name"]]
