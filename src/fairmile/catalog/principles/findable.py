"""Findable: ids, versions, what is needed to cite and to discover, where the content is, who lists it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fairmile.base.digest import parse_checksum
from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.identity import DIGEST_VERSION_PREFIX, is_iri
from fairmile.catalog.principles.addresses import out_of_reach, scheme_of, unusable
from fairmile.catalog.principles.facts import (
    CODE_KINDS,
    DATA_KINDS,
    WHEN,
    WHO,
    Facts,
    Part,
    Verdict,
    counted,
    digest_strength,
    file_addresses,
    is_unregistered,
    not_for,
    persistent_scheme,
    shown,
    usable,
)

_ADDRESSES = ("contentUrl", "downloadUrl", "installUrl", "codeRepository")
_KNOWN_SCHEMES = frozenset({"https", "http", "urn", "ark", "doi", "hdl", "swh", "ni", "info", "ipfs", "did"})
_NOBODYS_HOST = lazy_pattern(r"^https?://(?:[^/]*\.)?example\.(?:org|com|net)(?:[:/]|$)", re.I)
_DESCRIPTION_WORDS = 50
_KEYWORDS = 3
_PUBLISHED_BY = ("publisher", "sharedBy", "submitter", "maintainer")
# Where each kind names its content when it has no files: the best answer first.
_CONTENT = {
    "dataset": ("contentUrl", "downloadUrl", "contentDigest"),
    "model": ("contentUrl", "downloadUrl", "contentDigest"),
    "program": ("codeRepository", "downloadUrl", "installUrl", "contentDigest"),
    "workflow": ("codeRepository", "downloadUrl", "mainEntity", "hasPart", "contentDigest"),
    "environment": ("containerImage", "softwareRequirements", "contentDigest"),
    "run": ("result", "object", "contentDigest"),
    "benchmark": ("matchSpec", "codeRepository", "hasPart", "contentDigest"),
}


def _f1a(facts: Facts) -> Verdict:
    iri = facts.card.iri
    if not iri:
        return Verdict(0, "the card has no @id", facts.put("@id"))
    seen = f"@id is {shown(iri)}"
    better = facts.put("@id")
    if not is_iri(iri):
        return Verdict(0, f"{seen}, which is not an absolute URI", better)
    if _NOBODYS_HOST.match(iri):
        return Verdict(0, f"{seen}, on a reserved host", better)
    if out_of_reach(iri):
        return Verdict(0, f"{seen}, which nobody else can resolve ({out_of_reach(iri)})", better)
    if scheme_of(iri) not in _KNOWN_SCHEMES:
        return Verdict(0.5, f"{seen}, with an uncommon scheme", better)
    return Verdict(1, seen)


def _f1b(facts: Facts) -> Verdict:
    for text in facts.card.identifiers:
        scheme = persistent_scheme(text)
        if scheme:
            return Verdict(1, f"{shown(text)} ({scheme})")
    wanted = "swh:1:dir:HASH" if facts.kind in CODE_KINDS else "https://doi.org/10.5281/zenodo.NUMBER"
    known = facts.card.identifiers
    seen = f"no DOI, ARK, Handle, SWHID or w3id among {shown(', '.join(known))}" if known else "the card has no id"
    if any(is_unregistered(text) for text in known):
        # Made to last, and kept by nobody so far.
        return Verdict(
            0.5, f"{seen}; w3id.org/fairmile is not registered yet", facts.update(f"add identifier={wanted}")
        )
    return Verdict(0, seen, facts.update(f"add identifier={wanted}"))


def _f1c(facts: Facts) -> Verdict:
    if not facts.files:
        if facts.kind not in DATA_KINDS:
            return not_for(facts, f"this {facts.noun} declares no file")
        return Verdict(0, "no file is declared", facts.put("distribution"))
    strengths = [digest_strength(entry) if file.name or entry.get("@id") else 0.0 for entry, file in facts.files]
    points = sum(strengths) / len(strengths)
    whole = parse_checksum(facts.card.text("contentDigest"))
    seen = f"{sum(each == 1 for each in strengths)} of {counted(len(strengths), 'file')} with a sha256"
    weak = sum(each == 0.5 for each in strengths)
    if weak:
        seen += f", {weak} with md5 or sha1 only"
    if whole and points < 0.5:
        points, seen = 0.5, f"{seen}; contentDigest covers the whole"
    if points == 1:
        return Verdict(1, seen)
    return Verdict(points, seen, facts.put("distribution"))


def _f1d(facts: Facts) -> Verdict:
    version = facts.card.text("version")
    if facts.kind == "run" and not version:
        start = facts.card.text("startTime")
        if start:
            return Verdict(1, f"a run is identified by its start, {shown(start)}")
        return Verdict(0, "neither version nor startTime", facts.put("startTime"))
    stated = bool(version) and not version.startswith(DIGEST_VERSION_PREFIX)
    if stated:
        seen = f"version {shown(version)!r}"
    else:
        seen = f"version {shown(version)!r} is a digest, because the source has no version" if version else "no version"
    wanted = [] if stated else ["set version=VERSION"]
    parts = [Part("F1d.version", float(stated), seen)]
    points = float(stated)
    if facts.surroundings.versions > 1:
        link = facts.any_of(("wasRevisionOf", "supersededBy"))
        linked = f"{link} {facts.quote(link)}" if link else f"{facts.surroundings.versions} versions, none linked"
        parts.append(Part("F1d.linked", float(bool(link)), linked))
        points = 0.6 * stated + 0.4 * bool(link)
        seen = f"{seen}; {linked}"
        if not link:
            wanted.append("set wasRevisionOf=EARLIER-VERSION")
    return Verdict(points, seen, facts.update(*wanted), tuple(parts))


def _f2a(facts: Facts) -> Verdict:
    slots = {"name": ("name",), "creator": WHO, "publisher": _PUBLISHED_BY, "datePublished": WHEN}
    given = {slot: facts.any_of(keys) for slot, keys in slots.items()}
    parts = [
        Part(f"F2a.{slot}", float(bool(key)), f"{key} {facts.quote(key)}" if key else "missing")
        for slot, key in given.items()
    ]
    ids = [
        text for text in facts.card.identifiers if persistent_scheme(text) or (is_iri(text) and not out_of_reach(text))
    ]
    parts.append(Part("F2a.id", float(bool(ids)), shown(ids[0]) if ids else "missing"))
    missing = [slot for slot, key in given.items() if not key] + ([] if ids else ["@id"])
    who = "agent" if facts.kind == "run" else "creator"
    wanted = [who if slot == "creator" else slot for slot in missing]
    seen = f"missing: {', '.join(wanted)}" if missing else "title, creator, publisher, date and id are given"
    return Verdict(1 - len(missing) / 5, seen, facts.put(*wanted), tuple(parts))


def _f2b(facts: Facts) -> Verdict:
    words = max((len(text.split()) for key in ("description", "abstract") for text in facts.card.texts(key)), default=0)
    keywords = len(facts.card.keywords)
    parts = [
        Part("F2b.description", min(1.0, words / _DESCRIPTION_WORDS), f"description of {counted(words, 'word')}"),
        Part("F2b.keywords", min(1.0, keywords / _KEYWORDS), counted(keywords, "keyword")),
    ]
    wanted = []
    if words < _DESCRIPTION_WORDS:
        wanted.append("set description=TEXT OF 50 WORDS")
    wanted += [f"add keywords=WORD-{at}" for at in range(keywords + 1, _KEYWORDS + 1)]
    slots = [("domain", "scienceDomain")] if facts.kind not in ("run", "environment", "system") else []
    slots += [("task", "mlTask")] if facts.kind in ("benchmark", "model", "dataset") else []
    for slot, key in slots:
        given = facts.has(key)
        parts.append(Part(f"F2b.{slot}", float(given), f"{slot} {facts.quote(key)}" if given else f"no {slot}"))
        if not given:
            wanted.append(f"set {key}={slot.upper()}")
    points = sum(part.points or 0.0 for part in parts) / len(parts)
    return Verdict(points, ", ".join(part.evidence for part in parts), facts.update(*wanted), tuple(parts))


def _f3(facts: Facts) -> Verdict:
    if facts.bad_checksums:
        name, algorithm, value = facts.bad_checksums[0]
        more = f"; {len(facts.bad_checksums) - 1} more" if len(facts.bad_checksums) > 1 else ""
        seen = f"{algorithm} of {shown(name)} is {value!r}, which is not a checksum{more}"
        return Verdict(0, seen, facts.put("distribution"))
    address = next((each for entry, _ in facts.files if (each := usable(file_addresses(entry)))), None)
    if address:
        return Verdict(1, f"contentUrl {shown(address)}")
    if facts.kind == "system":
        return not_for(facts)
    for key in _CONTENT.get(facts.kind, ("contentUrl", "codeRepository", "contentDigest")):
        if facts.has(key) and (key not in _ADDRESSES or usable(facts.card.texts(key))):
            return Verdict(1, f"{key} {facts.quote(key)}")
    if facts.granted:
        return Verdict(1, f"{facts.access.level}; {facts.access.conditions!r} says how to access the content")
    if facts.files:
        fix = facts.put("distribution")
    else:
        fix = facts.put("distribution" if facts.kind in DATA_KINDS else _CONTENT.get(facts.kind, ("distribution",))[0])
    page = usable(facts.card.texts("url"))
    if page:
        return Verdict(0.5, f"only a page: url {shown(page)}", fix)
    if facts.addresses:
        return Verdict(0.5, f"{shown(facts.addresses[0])}: {unusable(facts.addresses[0])}", fix)
    if facts.files:
        return Verdict(0.5, f"{counted(len(facts.files), 'file')} by name only, no address", fix)
    return Verdict(0, "no address or digest of the content", fix)


def _f4(facts: Facts) -> Verdict:
    listed = facts.surroundings.indexed_in
    seen = f"listed in {shown(', '.join(listed))}" if listed else "listed in no catalog"
    readable = sum(facts.has(key) for key in ("name", "description")) / 2
    missing = facts.missing(("name", "description"))
    described = (
        f"missing for search engines: {' and '.join(missing)}"
        if missing
        else "name and description can be embedded in a page"
    )
    fix = facts.add_card() if not listed else facts.fill(*missing)
    parts = (Part("F4.indexed", float(bool(listed)), seen), Part("F4.readable", readable, described))
    return Verdict(0.7 * bool(listed) + 0.3 * readable, f"{seen}; {described}", fix, parts)


CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    "F1a": _f1a,
    "F1b": _f1b,
    "F1c": _f1c,
    "F1d": _f1d,
    "F2a": _f2a,
    "F2b": _f2b,
    "F3": _f3,
    "F4": _f4,
}
