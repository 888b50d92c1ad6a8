"""Reusable: what the content is, what its kind should say, licence, provenance, standards, repetition."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.card import LINKS, SPDX_PREFIX, as_list, text_of
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import KINDS, PROFILE_IRI
from fairmile.catalog.licences import grants_reuse, spdx_expression
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
    not_for,
    rules,
    shown,
    usable,
)

# A package without a version, or with a lower bound only, is another one tomorrow.
_PINNED = lazy_pattern(
    r"^pkg:[^@\s]+@\S+|^[^\s<>=!~@]+\s*={1,3}\s*[\w.]|(?:^|\s)/[0-9a-z]{7,32}$|@sha256:[0-9a-f]{64}|^[\w.+-]+@[\w.+-]+$"
)
# Only this command explains a card that is of no kind: none can be in a catalog.
_CHECK = "fairmile catalog check CARD.json"
_COMMIT = lazy_pattern(r"^(?:git-|g)?[0-9a-f]{7,40}$|\bswh:1:(?:rev|rel|dir|snp):[0-9a-f]{40}", re.IGNORECASE)
_PROV = ("wasGeneratedBy", "wasDerivedFrom", "wasRevisionOf")
_FROM = (
    *_PROV,
    "isBasedOn",
    "trainedOn",
    "fineTunedFrom",
    "hasPart",
    "instrument",
    "object",
    "measurementTechnique",
    "codeRepository",
)
_AGAIN = {
    "benchmark": {
        "command": ("command", "instrument", "step"),
        "environment": ("environment", "softwareRequirements", "containerImage"),
        "inputs": ("matchSpec", "object", "input", "hasPart"),
    },
    "run": {
        "command": ("command", "instrument"),
        "environment": ("environment", "softwareRequirements", "containerImage"),
        "inputs": ("object", "evaluationDataset"),
    },
    "workflow": {
        "command": ("step", "command", "mainEntity", "hasPart"),
        "environment": ("softwareRequirements", "environment", "containerImage"),
        "inputs": ("input", "object"),
    },
    "program": {
        "command": ("command", "usageInstructions", "readme", "buildInstructions", "softwareHelp"),
        "environment": ("softwareRequirements", "environment", "containerImage"),
    },
    "model": {
        "command": ("usageInstructions", "codeSampleSnippet", "command", "wasGeneratedBy", "isBasedOn"),
        "environment": ("softwareRequirements", "environment", "containerImage"),
        "inputs": ("trainedOn", "testedOn", "acceptsDataset", "evaluatedOn"),
    },
}


def _r1a(facts: Facts) -> Verdict:
    if not facts.files and facts.kind not in DATA_KINDS:
        return not_for(facts, f"this {facts.noun} declares no file")
    total = max(1, len(facts.files))
    files = counted(len(facts.files), "file")
    sized = sum(file.size_bytes is not None for _, file in facts.files)
    typed = sum(bool(as_list(entry.get("encodingFormat"))) for entry, _ in facts.files)
    parts = [
        Part("R1a.type", float(bool(facts.kind)), f"type {', '.join(facts.card.types)}"),
        Part("R1a.size", sized / total, f"size of {sized} of {files}" if facts.files else "no file"),
        Part("R1a.media", typed / total, f"media type of {typed} of {files}" if facts.files else "no media type"),
    ]
    if facts.kind in DATA_KINDS:
        key = facts.any_of(
            ("variableMeasured", "recordSet") if facts.kind == "dataset" else ("signature", "variableMeasured")
        )
        parts.append(Part("R1a.variables", float(bool(key)), f"{key} given" if key else "no variables"))
    points = sum(part.points or 0.0 for part in parts) / len(parts)
    wanted = facts.mend_files() if sized + typed < 2 * total else []
    if facts.kind in DATA_KINDS and not parts[-1].points:
        key = "variableMeasured" if facts.kind == "dataset" else "signature"
        wanted += facts.changes_for(key)
    fix = facts.update(*wanted) or _CHECK
    return Verdict(points, ", ".join(part.evidence for part in parts), fix, tuple(parts))


def _r1b(facts: Facts) -> Verdict:
    if not facts.kind:
        return Verdict(0, f"@type {facts.quote('@type') or 'is missing'} is not a kind of asset", _CHECK)
    missing = facts.missing(facts.rich)
    there = len(facts.rich) - len(missing)
    seen = f"{there} of {len(facts.rich)} properties that a {facts.kind} should have"
    if missing:
        seen += f"; missing: {', '.join(missing)}"
    points = there / len(facts.rich)
    parts: tuple[Part, ...] = ()
    if facts.kind == "environment":
        pinned = _pinned(facts)
        parts = (Part("R1b.pinned", pinned, f"{pinned:.0%} of the software is pinned"),)
        points = (there + pinned) / (len(facts.rich) + 1)
        seen = f"{seen}; {parts[0].evidence}"
        if not missing and pinned < 1:
            return Verdict(points, seen, facts.update(*_pins(facts)), parts)
    return Verdict(points, seen, facts.fill(*missing), parts)


def _pinned(facts: Facts) -> float:
    """Return the share of an environment that is fixed: an image by digest, or packages by version."""
    for image in as_list(facts.card.body.get("containerImage")):
        text = text_of(image) or ""
        if "@sha256:" in text or (isinstance(image, Mapping) and digest_strength(image) == 1):
            return 1.0
    needs = facts.card.texts("softwareRequirements")
    return sum(bool(_PINNED.search(text)) or facts.resolves(text) for text in needs) / len(needs) if needs else 0.0


def _pins(facts: Facts) -> list[str]:
    """Return the changes that fix the versions of the packages that have none."""
    loose = [each for each in as_list(facts.card.body.get("softwareRequirements")) if isinstance(each, str)]
    names = [re.split(r"[<>=!~;@[(]| ", each.strip())[0] for each in loose if not _PINNED.search(each)]
    return [f"add softwareRequirements={name}==VERSION" for name in names if name]


def _r11(facts: Facts) -> Verdict:
    if facts.kind == "system":
        return not_for(facts)
    texts = facts.card.texts("license")
    if not texts:
        raw = facts.card.text("licenseRaw")
        absent = f"no SPDX licence; the source says {shown(raw)!r}" if raw else "no licence"
        parts = tuple(Part(name, 0.0, absent) for name in ("R1.1a", "R1.1b", "R1.1c", "R1.1.address"))
        # Only the holder can grant a licence: the advice leaves open which one.
        return Verdict(0, f"{absent}; only the rights holder can grant one", facts.put("license"), parts)
    expressions = [spdx_expression(text.removeprefix(SPDX_PREFIX).removesuffix(".html")) for text in texts]
    expression = next((each for each in expressions if each), None)
    # Of several statements each may bind: one that bars or is not known keeps the whole from being free.
    grants = all(each is not None and grants_reuse(each) for each in expressions)
    seen = f"license {shown(texts[0])}"
    named = f"SPDX {expression}" if expression else f"{shown(texts[0])!r} is not an SPDX licence"
    allows = "anyone may reuse and change it" if grants else "it restricts reuse" if all(expressions) else "not known"
    parts = (
        Part("R1.1a", 1.0, seen),
        Part("R1.1b", float(expression is not None), named),
        Part("R1.1c", float(grants), allows),
        Part("R1.1.address", float(expression is not None and any(is_iri(text) for text in texts)), seen),
    )
    if expression is None:
        return Verdict(0.4, f"{seen}: {named}", facts.put("license"), parts)
    # Which rights to grant is the owner's decision: no advice, and little weight.
    return Verdict(1.0 if grants else 0.8, f"{seen}: {named}, {allows}", "", parts)


def _r12(facts: Facts) -> Verdict:
    slots = {"who": facts.any_of((*WHO, "publisher")), "when": facts.any_of(WHEN)}
    if facts.kind != "system":
        origin = _FROM + (("softwareRequirements", "containerImage") if facts.kind == "environment" else ())
        slots["from what"] = facts.any_of(origin)
    stated = ", ".join(f"{slot}: {f'{key} {facts.quote(key)}' if key else 'not stated'}" for slot, key in slots.items())
    basic = sum(bool(key) for key in slots.values()) / len(slots)
    formal, how = _formal(facts)
    parts = (Part("R1.2a", basic, stated), Part("R1.2b", formal, how))
    points = basic if formal is None else 0.6 * basic + 0.4 * formal
    wanted = []
    if not slots["who"]:
        wanted.append("agent" if facts.kind == "run" else "creator")
    if not slots["when"]:
        wanted.append("startTime" if facts.kind == "run" else "datePublished")
    if facts.kind == "run":
        wanted += ["instrument", "object", "result"]
    elif facts.kind in CODE_KINDS:
        wanted.append("codeRepository")
    elif formal is not None and formal < 1:
        wanted.append("wasGeneratedBy" if facts.kind == "model" else "wasDerivedFrom")
    elif not slots.get("from what", "n/a"):
        wanted.append("softwareRequirements" if facts.kind == "environment" else "isBasedOn")
    fix = facts.fill(*wanted)
    if not fix and facts.kind in CODE_KINDS:
        fix = facts.update("add identifier=swh:1:rev:HASH")
    return Verdict(points, f"{stated}; {how}", fix or "fairmile catalog add CARD-OF-THE-SOURCE.json", parts)


def _formal(facts: Facts) -> tuple[float | None, str]:
    """Return how far the provenance is stated in PROV or as a run; None for kinds that have no such history."""
    if facts.kind == "run":
        given = [key for key in ("instrument", "object", "result") if facts.has(key)]
        return len(given) / 3, f"run with {', '.join(given)}" if given else "no instrument, object or result"
    own = (facts.card.iri, facts.name)
    stated = [(key, text) for key in _PROV for text in facts.card.texts(key)[:20] if text not in own]
    for key, target in stated:
        if facts.resolves(target):
            return 1.0, f"PROV: {key} {shown(target)}, in a catalog"
    if facts.kind in ("system", "environment", "benchmark"):
        return None, f"a {facts.kind} has no derivation to state"
    if facts.kind in CODE_KINDS:
        # The history of code is kept by its repository; a commit says where in it this version stands.
        commit = next((text for text in [*facts.card.identifiers, facts.card.version] if _COMMIT.search(text)), "")
        repository = facts.card.text("codeRepository")
        known = bool(usable(facts.card.texts("codeRepository")))
        where = f"codeRepository {shown(repository)}" if repository else "no repository"
        where += f" ({unusable(repository)})" if repository and not known else ""
        return (known + bool(commit)) / 2, f"{where}, {f'commit {shown(commit)}' if commit else 'no commit'}"
    for key, target in stated:
        if is_iri(target) and not out_of_reach(target):
            return 0.5, f"PROV: {key} {shown(target)}, which is in no catalog"
    if stated:
        return 0.25, f"{stated[0][0]} {shown(stated[0][1])} is not an address that others can use"
    return 0.0, "no PROV statement"


def _r13(facts: Facts) -> Verdict:
    profiles = facts.card.texts("conformsTo")
    follows = PROFILE_IRI in profiles
    others = [text for text in profiles if text != PROFILE_IRI and is_iri(text)]
    standard = rules()["standards"].get(facts.kind)
    required = KINDS[facts.kind].required if facts.kind else ("@type",)
    missing = facts.missing(required) if facts.kind else ["@type"]
    filled = 1 - len(missing) / len(required)
    community = float(bool(others)) if standard else float(follows or bool(others))
    seen = f"conformsTo {shown(', '.join(profiles))}" if profiles else "no conformsTo"
    required_text = f"required but missing: {', '.join(missing)}" if missing else "all required properties are stated"
    parts = (
        Part("R1.3.profile", float(follows or bool(others)), seen),
        Part("R1.3.community", community, f"community standard {shown(others[0])}" if others else seen),
        Part("R1.3.required", filled, required_text),
    )
    points = 0.3 * (follows or bool(others)) + 0.3 * community + 0.4 * filled
    wanted = [] if follows or others else [f"add conformsTo={PROFILE_IRI}"]
    # That it follows a standard is the author's to say: the evidence names the usual one.
    if standard and not others:
        wanted.append("add conformsTo=https://ADDRESS-OF-THE-STANDARD")
        required_text += f"; the usual standard for a {facts.kind} is {standard}"
    wanted += [change for key in missing for change in facts.changes_for(key)]
    fix = facts.update(*wanted) if facts.kind else _CHECK
    return Verdict(min(1.0, points), f"{seen}; {required_text}", fix, parts)


def _r2a(facts: Facts) -> Verdict:
    slots = _AGAIN.get(facts.kind)
    if slots is None:
        return not_for(facts)
    parts, wanted = [], []
    for slot, keys in slots.items():
        key = max(keys, key=lambda each: _usable(facts, each))
        worth = _usable(facts, key)
        state = f"{slot}: {key} {facts.quote(key)}" if worth else f"no {slot}"
        parts.append(Part(f"R2a.{slot}", worth, state + (", which is in no catalog" if worth == 0.5 else "")))
        if not worth:
            wanted.append(keys[0])
    points = sum(part.points or 0.0 for part in parts) / len(parts)
    fix = facts.fill(*wanted)
    if points < 1 and not fix:
        fix = "fairmile catalog add CARD-OF-WHAT-IT-NEEDS.json"
    return Verdict(points, "; ".join(part.evidence for part in parts), fix, tuple(parts))


def _usable(facts: Facts, key: str) -> float:
    """Return 1 when what the key gives can be had, a half when it only has a name, 0 when it is missing."""
    if not facts.has(key):
        return 0.0
    values = as_list(facts.card.body.get(key))[:20]
    if key not in LINKS:
        texts = facts.card.texts(key)[:20]
        return 0.5 if texts and all(is_iri(text) and out_of_reach(text) for text in texts) else 1.0
    if key == "environment" and any(isinstance(value, Mapping) for value in values):
        return 1.0
    texts = [
        text
        for value in values
        if (text := text_of({"@id": value["@id"]} if isinstance(value, Mapping) and "@id" in value else value))
    ]
    known = any(
        facts.reached(text) or _PINNED.search(text) or (scheme_of(text) and not unusable(text)) for text in texts
    )
    return 1.0 if known else 0.5


def _r2b(facts: Facts) -> Verdict:
    if facts.kind not in _AGAIN:
        return not_for(facts)
    tolerance = facts.quote("tolerance") if facts.has("tolerance") else ""
    within = f" within {tolerance}" if tolerance else ""
    if facts.surroundings.runs > 0:
        return Verdict(1, f"{counted(facts.surroundings.runs, 'independent run')} on record{within}")
    fix = facts.update("add reproducedBy=RUN")
    if facts.has("reproducedBy"):
        return Verdict(0, f"reproducedBy {facts.quote('reproducedBy')}, which is not a recorded run", fix)
    return Verdict(0, "no independent run is recorded", fix)


CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    "R1a": _r1a,
    "R1b": _r1b,
    "R1.1": _r11,
    "R1.2": _r12,
    "R1.3": _r13,
    "R2a": _r2a,
    "R2b": _r2b,
}
