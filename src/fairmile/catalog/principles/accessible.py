"""Accessible: the access level, card and content by their addresses, open protocols, what stays after removal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fairmile.catalog.principles.facts import (
    AUTHENTICATED,
    CODE_KINDS,
    DATA_KINDS,
    OPEN_SCHEMES,
    Facts,
    Part,
    Verdict,
    counted,
    not_for,
    persistent_scheme,
    reachable,
    scheme_of,
    shown,
)

_SIGN_IN = re.compile(r"\b(?:https|sftp|ssh|s3|globus)://\S+", re.IGNORECASE)


def _a1a(facts: Facts) -> Verdict:
    access = facts.access
    conditions = f"conditions {access.conditions!r}" if access.conditions else "no conditions"
    ask = facts.fill("conditionsOfAccess")
    if not access.level:
        fix = facts.update("set accessRights=public")
        if access.conditions:
            return Verdict(0.5, f"{conditions}, but no access level", facts.update("set accessRights=restricted"))
        return Verdict(0, "neither accessRights nor isAccessibleForFree nor conditionsOfAccess", fix)
    if access.level == "public":
        return Verdict(1, access.stated)
    if not access.restricted:
        return Verdict(0.5, f"{access.stated} is no known level", facts.update("set accessRights=public"))
    points = 1.0 if access.conditions else 0.5
    return Verdict(points, f"{access.stated}, {conditions}", ask)


def _content_addresses(facts: Facts) -> tuple[float | None, str]:
    """Return the share of the content that has an address others can use, and how that was seen."""
    found = [(0.0, "no address of the content")]
    given = [file.url for _, file in facts.files if file.url and reachable(file.url)]
    if facts.files:
        said = f"{len(given)} of {counted(len(facts.files), 'file')} with an address (declared, not probed)"
        found.append((len(given) / len(facts.files), said))
    for key in ("contentUrl", "downloadUrl", "installUrl", "codeRepository"):
        if any(reachable(text) for text in facts.card.texts(key)):
            found.append((1.0, f"{key} {facts.quote(key)} (declared, not probed)"))
    best = max(found, key=lambda each: each[0])
    if facts.kind not in DATA_KINDS | CODE_KINDS and not best[0]:
        return None, f"a {facts.noun} has no content beside its card"
    if facts.has("url") and best[0] < 0.5:
        return 0.5, f"only a page: url {facts.quote('url')} (declared, not probed)"
    return best


def _give_address(facts: Facts) -> str:
    """Return the command that says where the content is."""
    if facts.kind in CODE_KINDS:
        return facts.fill("codeRepository") or facts.update("set downloadUrl=https://ADDRESS")
    return facts.update(facts.mended_files())


def _a1b(facts: Facts) -> Verdict:
    found = next((text for text in (facts.name, facts.card.iri) if text and facts.resolves(text)), "")
    card = Part(
        "A1b.card", float(bool(found)), f"{shown(found)} leads to the card" if found else "no catalog finds the card"
    )
    share, said = _content_addresses(facts)
    address = Part("A1b.address", share, said)
    if share is not None and share < 1 and facts.granted:
        share, said = 1.0, f"{facts.access.level}, on the conditions {facts.access.conditions!r}"
    content = Part("A1b.content", share, said)
    points = (card.points or 0.0) if share is None else ((card.points or 0.0) + share) / 2
    wanted = "fairmile catalog add CARD.json" if not found else ""
    if not wanted and share is not None and share < 1:
        wanted = _give_address(facts)
    return Verdict(points, f"{card.evidence}; {said}", wanted, (card, content, address))


def _a1c(facts: Facts) -> Verdict:
    if not facts.addresses:
        if facts.granted:
            return not_for(facts, f"{facts.access.level}: no public address is asked for")
        if facts.kind not in DATA_KINDS | CODE_KINDS:
            return not_for(facts, f"this {facts.noun} gives no address")
        return Verdict(0, "no address of the content", _give_address(facts))
    schemes = [scheme_of(address) or "relative path" for address in facts.addresses]
    # Globus needs a client of its own, which is fair where one must sign in anyway.
    worth = dict.fromkeys([*OPEN_SCHEMES, "relative path"], 1.0) | {"globus": 1.0 if facts.granted else 0.5}
    shares = [worth.get(scheme, 0.0) for scheme in schemes]
    points = sum(shares) / len(shares)
    seen = f"{', '.join(dict.fromkeys(schemes))} in {counted(len(schemes), 'address', 'addresses')}"
    if points == 1:
        return Verdict(1, seen)
    odd = next(address for address, share in zip(facts.addresses, shares, strict=True) if share < 1)
    why = "Globus needs its own client" if scheme_of(odd) == "globus" else "not an open protocol"
    own = not reachable(odd) and odd in [file.url for _, file in facts.files]
    fix = facts.update(facts.mended_files() if own else "set downloadUrl=https://ADDRESS")
    return Verdict(points, f"{seen}; {shown(odd)}: {why}", fix)


def _a1d(facts: Facts) -> Verdict:
    schemes = {scheme_of(address) for address in facts.addresses}
    able = sorted(schemes & AUTHENTICATED)
    if able:
        return Verdict(1, f"{', '.join(able)} can authenticate ({facts.access.level or 'access level not stated'})")
    if not facts.access.restricted:
        return not_for(facts, "access is not restricted")
    contact = _SIGN_IN.search(facts.card.text("conditionsOfAccess"))
    if contact:
        return Verdict(1, f"the conditions name {shown(contact.group())}")
    fix = facts.update("set url=https://ADDRESS-THAT-ASKS-FOR-A-LOGIN")
    if schemes:
        return Verdict(
            0.5 if "http" in schemes else 0, f"{facts.access.level}, but over {', '.join(sorted(schemes))}", fix
        )
    points = 0.5 if facts.access.conditions else 0.0
    return Verdict(points, f"{facts.access.level}, and no address where one would sign in", fix)


def _a2(facts: Facts) -> Verdict:
    if facts.around.tombstones:
        return Verdict(1, "the catalog leaves a tombstone when content is removed")
    scheme = next(
        (name for text in facts.card.identifiers if (name := persistent_scheme(text)) in ("DOI", "SWHID")), None
    )
    if scheme:
        return Verdict(
            0.5,
            f"the catalog keeps no tombstone, but the {scheme} registry keeps a record",
            "fairmile catalog add CARD.json",
        )
    return Verdict(0, "the catalog keeps nothing of a removed asset", "fairmile catalog add CARD.json")


CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    "A1a": _a1a,
    "A1b": _a1b,
    "A1c": _a1c,
    "A1d": _a1d,
    "A2": _a2,
}
