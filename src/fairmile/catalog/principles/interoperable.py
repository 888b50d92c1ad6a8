"""Interoperable: a card that machines understand, open formats, described interfaces, vocabularies, links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairmile.base.lazy import lazy_pattern
from fairmile.catalog.card import as_list, text_of
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import CONTEXT_IRI
from fairmile.catalog.principles.addresses import out_of_reach
from fairmile.catalog.principles.facts import (
    DATA_KINDS,
    Facts,
    Part,
    Verdict,
    counted,
    format_class,
    is_format,
    not_for,
    rules,
    shown,
)
from fairmile.catalog.terms import in_profile

_DATA_LINKS = frozenset(
    {
        "trainedOn",
        "testedOn",
        "validatedOn",
        "evaluatedOn",
        "acceptsDataset",
        "evaluationDataset",
        "object",
        "wasDerivedFrom",
        "isBasedOn",
        "hasPart",
        "result",
    }
)
_NEXT_LINK = {
    "dataset": ("citation", "wasDerivedFrom", "isBasedOn"),
    "model": ("trainedOn", "citation", "testedOn", "isBasedOn"),
    "program": ("softwareRequirements", "citation", "isBasedOn"),
    "workflow": ("hasPart", "citation", "softwareRequirements"),
    "run": ("instrument", "object", "result", "runsOn"),
    "environment": ("softwareRequirements", "targetMachine", "citation"),
    "benchmark": ("citation", "hasPart", "about"),
    "system": ("citation", "hasPart"),
}
# Numbers and texts are no vocabulary of a domain.
_BASIC_TYPE = lazy_pattern(r"schema\.org/|XMLSchema#|mlcommons\.org/croissant")
_DESCRIBED = {
    "open": "open",
    "container": "an archive with undescribed content",
    "pickle": "runs code when read",
    "unknown": "not a known open format",
    "source": "source code, not the model",
}


def _i1a(facts: Facts) -> Verdict:
    reading = facts.terms
    total = len(reading.terms) + len(reading.unknown)
    share = len(reading.terms) / total if total else 0.0
    linked = bool(facts.card.body.get("@context")) and bool(facts.card.types)
    part = Part(
        "I1a.jsonld", float(linked), "@context and @type are given" if linked else "@context or @type is missing"
    )
    points = share if linked and (in_profile(reading) or not reading.contexts) else share / 2
    seen = f"{len(reading.terms)} of {counted(total, 'term')} defined"
    if reading.unknown:
        seen += f"; unknown: {shown(', '.join(reading.unknown))}"
        fix = facts.define(reading.unknown)
    else:
        fix = facts.update(f"set @context={CONTEXT_IRI}")
    if not linked:
        seen, fix = f"{part.evidence}; {seen}", facts.update(f"set @context={CONTEXT_IRI}")
    elif not in_profile(reading) and reading.contexts:
        seen += f"; @context {shown(reading.contexts[0])} is not the profile's"
    return Verdict(points, seen, fix if points < 1 else "", (part,))


def _i1b(facts: Facts) -> Verdict:
    if facts.kind not in DATA_KINDS:
        return not_for(facts)
    names = facts.formats
    if not names:
        parts = tuple(Part(f"I1b.{part}", None, "no format is declared") for part in ("open", "community", "described"))
        return Verdict(0, "no format is declared", facts.put("distribution"), parts)
    kinds = {name: _format_kind(facts, name) for name in names}
    content = [name for name in names if kinds[name] != "source"] or names
    inner = [name for name in content if kinds[name] != "container"]
    worth = {"open": 1.0, "container": 0.5, "pickle": 0.0, "unknown": 0.0, "source": 0.0}
    judged = inner or content
    points = sum(worth[kinds[name]] for name in judged) / len(judged)
    seen = ", ".join(f"{shown(name)} ({_DESCRIBED[kinds[name]]})" for name in judged[:4]) + (
        " …" if len(judged) > 4 else ""
    )
    parts = (
        Part("I1b.open", float(points == 1), seen),
        Part("I1b.community", float(any(is_format(name, "community") for name in content)), seen),
        Part("I1b.described", float(any(is_format(name, "described") for name in content)), seen),
    )
    if points == 1:
        return Verdict(1, seen, parts=parts)
    # The members of an archive are listed when it is measured; any other content must come in an open format as well.
    better = "THE-ARCHIVE" if not inner else "MODEL.onnx" if facts.kind == "model" else "FILE-IN-AN-OPEN-FORMAT"
    return Verdict(points, seen, facts.update(f"file {better}", *facts.mend_files()[1:]), parts)


def _format_kind(facts: Facts, name: str) -> str:
    """Return the class of the format; code beside a model is not the model."""
    return "source" if facts.kind == "model" and is_format(name, "source") else format_class(name)


def _i1c(facts: Facts) -> Verdict:
    judge = {
        "dataset": _records,
        "model": _signature,
        "workflow": _parameters,
        "program": _parameters,
        "benchmark": _match,
        "run": _results,
    }
    check = judge.get(facts.kind)
    return check(facts) if check else not_for(facts)


def _records(facts: Facts) -> Verdict:
    fields = facts.fields
    if not fields:
        return _no_fields(facts)
    keys = ("propertyID", "equivalentProperty", "dataType")
    terms = [text for each in fields for key in keys for text in _iris(each.get(key)) if not _BASIC_TYPE.search(text)]
    references = [each["references"] for each in fields if each.get("references")]
    named = [each for each in references if isinstance(each, Mapping) and (each.get("field") or each.get("@id"))]
    seen = f"recordSet with {counted(len(fields), 'field')}"
    vocabulary = shown(terms[0]) if terms else "no field refers to a vocabulary"
    parts = (
        Part("I1c.fields", 1.0, seen),
        Part("I1c.vocabulary", float(bool(terms)), vocabulary),
        Part("I1c.references", float(bool(references)), f"{counted(len(references), 'field')} with references"),
        Part("I1c.qualified", float(bool(named)), f"{counted(len(named), 'reference')} to a named field"),
    )
    return Verdict(1, seen, parts=parts)


def _no_fields(facts: Facts) -> Verdict:
    silent = "no record set is declared"
    links = (Part("I1c.references", None, silent), Part("I1c.qualified", None, silent))
    key = facts.any_of(("recordSet", "variableMeasured"))
    if not key:
        parts = (Part("I1c.fields", None, silent), Part("I1c.vocabulary", None, silent), *links)
        return Verdict(0, "neither recordSet nor variableMeasured", facts.put("recordSet"), parts)
    variables = [each for each in as_list(facts.card.body.get("variableMeasured")) if isinstance(each, Mapping)]
    terms = [text for each in variables for text in _iris(each.get("propertyID"))]
    evidence = shown(terms[0]) if terms else "no variable refers to a vocabulary"
    vocabulary = Part("I1c.vocabulary", float(bool(terms)) if variables else None, evidence)
    seen = f"{key} {facts.quote(key)}, but no fields"
    fix = facts.put("recordSet")
    return Verdict(0.5, seen, fix, (Part("I1c.fields", 0.0, seen), vocabulary, *links))


def _iris(value: Any) -> list[str]:
    texts = [text_of({"@id": each.get("@id")} if isinstance(each, Mapping) else each) for each in as_list(value)]
    return [text for text in texts if text and "://" in text]


def _signature(facts: Facts) -> Verdict:
    signature = next(iter(as_list(facts.card.body.get("signature"))), None)
    if not signature:
        return Verdict(0, "no signature", facts.put("signature"), (Part("I1c.fields", None, "no signature"),))
    sides = [side for side in ("inputs", "outputs") if isinstance(signature, Mapping) and signature.get(side)]
    points = 1.0 if len(sides) == 2 else 0.5
    seen = f"signature with {' and '.join(sides)}" if sides else f"signature {facts.quote('signature')} has no inputs"
    fix = facts.put("signature") if points < 1 else ""
    return Verdict(points, seen, fix, (Part("I1c.fields", float(points == 1), seen),))


def _parameters(facts: Facts) -> Verdict:
    sides = [side for side in ("input", "output") if facts.has(side)]
    if not sides and facts.kind == "program":
        return not_for(facts, "the program declares no parameters")
    seen = (
        ", ".join(f"{side}: {counted(len(as_list(facts.card.body.get(side))), 'parameter')}" for side in sides)
        or "neither input nor output"
    )
    parts = (Part("I1c.fields", len(sides) / 2, seen),)
    return Verdict(len(sides) / 2, seen, facts.fill("input", "output"), parts)


def _match(facts: Facts) -> Verdict:
    spec = next(iter(as_list(facts.card.body.get("matchSpec"))), None)
    if not isinstance(spec, Mapping) or not spec:
        problem = f"matchSpec {facts.quote('matchSpec')} is not an object" if spec else "no matchSpec"
        return Verdict(0, problem, facts.put("matchSpec"))
    seen = f"matchSpec with {shown(', '.join(map(str, spec)))}"
    return Verdict(1, seen, parts=(Part("I1c.fields", 1.0, seen),))


def _results(facts: Facts) -> Verdict:
    results = as_list(facts.card.body.get("evaluationResults"))
    if not results:
        return Verdict(0, "no evaluationResults", facts.put("evaluationResults"))
    typed = [
        each
        for each in results
        if isinstance(each, Mapping) and "value" in each and ("propertyID" in each or "name" in each)
    ]
    seen = f"{len(typed)} of {counted(len(results), 'result')} with name and value"
    points = max(0.5, len(typed) / len(results))
    fix = facts.update(f"add evaluationResults={rules()['placeholders']['evaluationResults']}") if points < 1 else ""
    return Verdict(points, seen, fix, (Part("I1c.fields", points, seen),))


def _i2(facts: Facts) -> Verdict:
    reading = facts.terms
    namespaces, own = tuple(rules()["registered"]["namespaces"]), tuple(rules()["registered"]["own"])
    registered = [word for word, iri in reading.terms.items() if iri.startswith(namespaces)]
    # The profile's own terms are documented but not registered: they count for nothing, either way.
    strange = [word for word, iri in reading.terms.items() if not iri.startswith(namespaces + own)] + list(
        reading.unknown
    )
    share = len(registered) / (len(registered) + len(strange)) if registered or strange else 0.0
    seen = f"{len(registered)} terms from registered vocabularies, {len(strange)} of none"
    values = sorted(reading.values)
    described = (
        f"value {shown(values[0])}"
        if values
        else "no person, organisation or subject has an ORCID, ROR or vocabulary id"
    )
    parts = (Part("I2.terms", share, seen), Part("I2.values", float(bool(values)), described))
    points = 0.7 * share + 0.3 * bool(values)
    fix = ""
    if not values:
        fix = facts.name_agent()
    elif reading.unknown:
        fix = facts.define(reading.unknown)
    return Verdict(points, f"{seen}; {described}", fix, parts)


def _leads(target: str) -> bool:
    return is_iri(target) and not out_of_reach(target)


def _i3(facts: Facts) -> Verdict:
    ways = [(relation, target, facts.reached(target)) for relation, target in facts.links]
    links = [(relation, target, way) for relation, target, way in ways if way or _leads(target)]
    reached = [link for link in links if link[2]]
    data = [link for link in links if link[0] in _DATA_LINKS]
    dangling = next((link for link in links if not link[2]), None)
    seen = "no link to another asset or paper"
    if links:
        relation, target, way = (dangling if dangling and len(reached) < 2 else None) or (reached or links)[0]
        seen = f"{len(reached)} of {counted(len(links), 'link')} with a known target"
        seen += f"; {relation} {shown(target)} {way or 'is in no catalog'}"
    parts = (
        Part("I3.linked", float(bool(links)), seen),
        Part("I3.reached", float(bool(reached)), seen),
        Part("I3.data", float(bool(data)), f"{counted(len(data), 'link')} to data"),
        Part(
            "I3.data_reached",
            float(any(link[2] for link in data)),
            f"{sum(bool(link[2]) for link in data)} of {counted(len(data), 'link')} to data with a known target",
        ),
    )
    points = (0.4 if links else 0.0) + 0.3 * min(2, len(reached))
    if points >= 1:
        return Verdict(1, seen, parts=parts)
    wanted = facts.missing(_NEXT_LINK.get(facts.kind, ("citation",)))[:1]
    fix = facts.fill(*wanted)
    if not fix:
        add = "fairmile catalog add CARD-OF-THE-TARGET.json"
        fix = add if dangling else facts.update("add citation=https://doi.org/DOI-OF-THE-PAPER")
    return Verdict(points, seen, fix, parts)


CHECKS: Mapping[str, Callable[[Facts], Verdict]] = {
    "I1a": _i1a,
    "I1b": _i1b,
    "I1c": _i1c,
    "I2": _i2,
    "I3": _i3,
}
