"""Accessible: the access level, card and content by their addresses, open protocols, what stays after removal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.principles.addresses import AUTHENTICATED, scheme_of, unusable
from fairmile.catalog.principles.facts import (
    CODE_KINDS,
    DATA_KINDS,
    Facts,
    Part,
    Verdict,
    counted,
    file_addresses,
    not_for,
    persistent_scheme,
    shown,
    usable,
)

_SIGN_IN = lazy_pattern(r"\b(?:https|sftp|ssh|s3|globus)://\S+", re.IGNORECASE)


_LEVELS = "public, registered, restricted, embargoed or closed"


def _a1a(facts: Facts) -> Verdict:
    access = facts.access
    conditions = f"conditions {access.conditions!r}" if access.conditions else "no conditions"
    # Who may have the content is the holder's to say: the advice leaves the level open.
    state = facts.put("accessRights")
    if not access.level:
        if access.conditions:
            return Verdict(0.5, f"{conditions}, but no access level ({_LEVELS})", state)
        missing = "neither accessRights nor isAccessibleForFree nor conditionsOfAccess"
        return Verdict(0, f"{missing}; levels: {_LEVELS}", state)
    if access.level == "public":
        return Verdict(1, access.stated)
    if not access.restricted:
        return Verdict(0.5, f"{access.stated} is not a known level ({_LEVELS})", state)
    points = 1.0 if access.conditions else 0.5
    return Verdict(points, f"{access.stated}, {conditions}", facts.fill("conditionsOfAccess"))


def _content_addresses(facts: Facts) -> tuple[float | None, str]:
    """Return the share of the content that has an address others can use, and how that was seen."""
    shares: list[tuple[float, str]] = []
    if facts.files:
        given = [usable(file_addresses(entry)) for entry, _ in facts.files]
        number = sum(map(bool, given))
        evidence = f"{number} of {counted(len(facts.files), 'file')} with an address that others can use"
        shares.append((number / len(facts.files), f"{evidence} (declared, not probed)"))
    for key in ("contentUrl", "downloadUrl", "installUrl", "codeRepository"):
        address = usable(facts.card.texts(key))
        if address:
            shares.append((1.0, f"{key} {shown(address)} (declared, not probed)"))
    best = max([*shares, (0.0, "no address of the content")], key=lambda each: each[0])
    odd = next((address for address in facts.addresses if unusable(address)), "")
    barred = f"; {shown(odd)}: {unusable(odd)}" if odd and best[0] < 1 else ""
    if facts.kind not in DATA_KINDS | CODE_KINDS and not best[0]:
        return None, f"a {facts.noun} has no content besides its card"
    page = usable(facts.card.texts("url"))
    if page and best[0] < 0.5:
        return 0.5, f"only a page: url {shown(page)} (declared, not probed){barred}"
    return best[0], f"{best[1]}{barred}"


def _give_address(facts: Facts) -> str:
    """Return the command that says where the content is."""
    if facts.kind in CODE_KINDS:
        return facts.fill("codeRepository") or facts.update("set downloadUrl=https://ADDRESS")
    return facts.put("distribution")


def _a1b(facts: Facts) -> Verdict:
    listed = next((text for text in (facts.name, facts.card.iri) if text and facts.resolves(text)), "")
    card = Part(
        "A1b.card",
        float(bool(listed)),
        f"{shown(listed)} resolves to the card" if listed else "no catalog lists the card",
    )
    share, evidence = _content_addresses(facts)
    address = Part("A1b.address", share, evidence)
    if share is not None and share < 1 and facts.granted:
        share, evidence = 1.0, f"{facts.access.level}, on the conditions {facts.access.conditions!r}"
    content = Part("A1b.content", share, evidence)
    points = (card.points or 0.0) if share is None else ((card.points or 0.0) + share) / 2
    wanted = facts.add_card() if not listed else ""
    if not wanted and share is not None and share < 1:
        wanted = _give_address(facts)
    return Verdict(points, f"{card.evidence}; {evidence}", wanted, (card, content, address))


def _a1c(facts: Facts) -> Verdict:
    if not facts.addresses:
        if facts.granted:
            return not_for(facts, f"{facts.access.level}: no public address needed")
        if facts.kind not in DATA_KINDS | CODE_KINDS:
            return not_for(facts, f"this {facts.noun} gives no address")
        return Verdict(0, "no address of the content", _give_address(facts))
    schemes = [scheme_of(address) or "relative path" for address in facts.addresses]
    # Globus needs a client of its own, which is fair where one must sign in anyway.
    client = "Globus needs its own client"
    reasons = [
        unusable(address) or (client if scheme == "globus" and not facts.granted else "")
        for address, scheme in zip(facts.addresses, schemes, strict=True)
    ]
    shares = [0.5 if reason == client else float(not reason) for reason in reasons]
    points = sum(shares) / len(shares)
    seen = f"{', '.join(dict.fromkeys(schemes))} in {counted(len(schemes), 'address', 'addresses')}"
    if points == 1:
        return Verdict(1, seen)
    odd, why = next((address, reason) for address, reason in zip(facts.addresses, reasons, strict=True) if reason)
    own = why != client and any(odd in file_addresses(entry) for entry, _ in facts.files)
    fix = facts.put("distribution") if own else facts.update("set downloadUrl=https://ADDRESS")
    return Verdict(points, f"{seen}; {shown(odd)}: {why}", fix)


def _a1d(facts: Facts) -> Verdict:
    schemes = {scheme_of(address) for address in facts.addresses if not unusable(address)}
    able = sorted(schemes & AUTHENTICATED)
    if able:
        return Verdict(1, f"{', '.join(able)} can authenticate ({facts.access.level or 'access level not stated'})")
    if not facts.access.restricted:
        return not_for(facts, "access is not restricted")
    contact = usable(_SIGN_IN.findall(facts.card.text("conditionsOfAccess")))
    if contact:
        return Verdict(1, f"the conditions name {shown(contact)}")
    fix = facts.update("set url=https://ADDRESS-THAT-ASKS-FOR-A-LOGIN")
    if schemes:
        return Verdict(
            0.5 if "http" in schemes else 0, f"{facts.access.level}, but over {', '.join(sorted(schemes))}", fix
        )
    points = 0.5 if facts.access.conditions else 0.0
    return Verdict(points, f"{facts.access.level}, and no address to sign in", fix)


def _a2(facts: Facts) -> Verdict:
    if facts.surroundings.tombstones:
        return Verdict(1, "the catalog leaves a tombstone when content is removed")
    scheme = next(
        (name for text in facts.card.identifiers if (name := persistent_scheme(text)) in ("DOI", "SWHID")), None
    )
    if scheme:
        return Verdict(
            0.5,
            f"the catalog keeps no tombstone, but the {scheme} registry keeps a record",
            facts.add_card(),
        )
    return Verdict(0, "the catalog keeps nothing of a removed asset", facts.add_card())


CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    "A1a": _a1a,
    "A1b": _a1b,
    "A1c": _a1c,
    "A1d": _a1d,
    "A2": _a2,
}
