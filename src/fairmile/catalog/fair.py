"""How FAIR an asset is: a score with evidence and advice, computed from its card and its catalog alone.

Three views of the same findings: HPCFAIR's Table I (F1–F4, A1–A4, I1–I3, R1–R3), the scheme of 47 indicators that the
HPCFAIR authors merged from RDA's 41 and F-UJI's 17 (8 F, 13 A, 14 I, 12 R; score = points/47), and how completely the
card says what its kind should say. Published of the 47 is only how many each letter has and that six of them come from
F-UJI alone; which six is our choice: the F-UJI metrics that have no equal among RDA's indicators (FsF-F2-01M,
FsF-A1-01M, FsF-I1-01M, FsF-I2-01M, FsF-R1-01MD, FsF-R1.3-02D).

Nothing is fetched: an address counts as declared, never as probed. A test that makes no sense for a kind leaves the
score's denominator; it does not leave the 47, which are fixed. The tests are in `principles`, their texts and weights
in `data/fair.json`.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, TypedDict

from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.results import Result
from fairmile.catalog.card import Card
from fairmile.catalog.principles import CHECKS, Facts, Part, Surroundings, Verdict, rules
from fairmile.catalog.row import CatalogRow

__all__ = ["Assessment", "FairRow", "Finding", "Indicator", "Part", "Richness", "Surroundings", "assess"]

Outcome = Literal["pass", "partial", "fail", "not applicable"]
LETTERS = {"F": "Findable", "A": "Accessible", "I": "Interoperable", "R": "Reusable"}
# Only a reader of the format can be sure of these; they follow from what the card declares, or stay open.
DATA_LEVEL = frozenset(
    {"RDA-I1-01D", "RDA-I1-02D", "RDA-I2-01D", "RDA-I3-01D", "RDA-I3-02D", "RDA-R1.3-01D"},
)
_CONTEXT = {
    "ftr": "https://w3id.org/ftr#",
    "dqv": "http://www.w3.org/ns/dqv#",
    "prov": "http://www.w3.org/ns/prov#",
    "dct": "http://purl.org/dc/terms/",
    "sio": "http://semanticscience.org/resource/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_FILE_FLAGS = ("--file", "--address")
_FLAGS = ("--set", "--add", "--unset", *_FILE_FLAGS)
_TESTS_IRI = "https://w3id.org/fairmile/fair/"
_PRINCIPLES_IRI = "https://w3id.org/fair/principles/terms/"
_CC0 = "https://creativecommons.org/publicdomain/zero/1.0/"


class PartDict(TypedDict):
    id: str
    points: float | None
    evidence: str


class FindingDict(TypedDict):
    id: str
    letter: str
    principle: str
    title: str
    severity: str
    weight: float
    outcome: Outcome
    points: float
    evidence: str
    fix: str
    maps_to: list[str]
    table_one: list[str]
    parts: list[PartDict]
    gain: float


class FairRowDict(TypedDict):
    title: str
    percent: float | None
    tests: list[str]


class IndicatorDict(TypedDict):
    id: str
    letter: str
    statement: str
    outcome: Literal["yes", "no", "not assessed"]
    evidence: str
    tests: list[str]


class RichnessDict(TypedDict):
    kind: str
    percent: float
    properties: dict[str, bool]


AssessmentDict = TypedDict(
    "AssessmentDict",
    {
        "handle": str,
        "asset": str,
        "@id": str,
        "kind": str,
        "score": float,
        "letters": dict[str, float],
        "findings": list[FindingDict],
        "table_one": dict[str, FairRowDict],
        "indicator_score": float,
        "indicators": list[IndicatorDict],
        "not_assessed": list[str],
        "richness": RichnessDict,
        "advice": list[str],
        "also": list[str],
    },
)


@dataclass(frozen=True)
class Finding:
    """What one test found: how far it got, the value it saw, and the command that would help."""

    id: str
    letter: str
    principle: str
    title: str
    severity: str
    weight: float
    outcome: Outcome
    points: float
    evidence: str
    fix: str
    maps_to: tuple[str, ...]
    table_one: tuple[str, ...]
    parts: tuple[Part, ...] = ()

    @property
    def counts(self) -> bool:
        return self.outcome != "not applicable"


@dataclass(frozen=True)
class Indicator:
    """One of the 47: a statement, whether it holds, and the tests it follows from."""

    id: str
    letter: str
    statement: str
    outcome: Literal["yes", "no", "not assessed"]
    evidence: str
    tests: tuple[str, ...]


class FairRow(NamedTuple):
    """One line of HPCFAIR's Table I; the percentage is None where no test applies."""

    title: str
    percent: float | None
    tests: tuple[str, ...]


class Richness(NamedTuple):
    """Which of the properties that a kind should have are there."""

    kind: str
    properties: Mapping[str, bool]

    @property
    def missing(self) -> list[str]:
        return [key for key, there in self.properties.items() if not there]

    @property
    def percent(self) -> float:
        return round(100 * sum(self.properties.values()) / len(self.properties), 1) if self.properties else 0.0


@dataclass(frozen=True, repr=False)
class Assessment(Result):
    """The findings about one asset, and the views of them; `others` are further cards that its name could mean."""

    name: str
    iri: str
    kind: str
    findings: tuple[Finding, ...]
    indicators: tuple[Indicator, ...]
    richness: Richness
    handle: str = ""
    digest: str = ""
    others: tuple[CatalogRow, ...] = ()

    @property
    def score(self) -> float:
        """The weighted share of points over the tests that apply, 0 to 100."""
        return _percent(self.findings) or 0.0

    @property
    def letters(self) -> dict[str, float]:
        """The score of each letter by itself."""
        return {letter: _percent(f for f in self.findings if f.letter == letter) or 0.0 for letter in LETTERS}

    @property
    def table_one(self) -> dict[str, FairRow]:
        """HPCFAIR's Table I: each requirement with its percentage and the tests behind it."""
        rows = {}
        for key, title in rules()["table_one"].items():
            behind = [finding for finding in self.findings if key in finding.table_one]
            rows[key] = FairRow(title, _percent(behind), tuple(finding.id for finding in behind))
        return rows

    @property
    def indicator_score(self) -> float:
        """The share of the 47 indicators that hold, 0 to 100."""
        return round(100 * sum(each.outcome == "yes" for each in self.indicators) / len(self.indicators), 1)

    def gain(self, finding: Finding) -> float:
        """Return how many points of the score the asset wins when the finding becomes a pass."""
        total = sum(each.weight for each in self.findings if each.counts)
        return 100 * finding.weight * (1 - finding.points) / total if finding.counts and total else 0.0

    @property
    def open_findings(self) -> list[Finding]:
        """The findings that a command would raise, most gain first."""
        return sorted((finding for finding in self.findings if finding.fix), key=lambda each: -self.gain(each))

    @property
    def advice(self) -> list[str]:
        """The commands that raise the score, most gain first; none asks for what another one asks for already.

        A card that is in no catalog must be added before it can be changed: that command comes first.
        Words in capitals stand for what only the user knows; the remark says which tests a command helps.
        """
        steps: list[_Step] = []
        asked: dict[str, _Step] = {}
        for finding in self.open_findings:
            command, changes = _changes(finding.fix)
            # What concerns one property stays in one command: a later one must not undo an earlier one.
            known = [asked[_key(change)] for change in changes if _key(change) in asked]
            new = [change for change in changes if _key(change) not in asked]
            step = _Step(command, new) if new else known[0]
            for change in changes:
                home = asked.setdefault(_key(change), step)
                if change[0] != "--set" and change not in home.changes:
                    home.changes.append(change)
            if new:
                steps.append(step)
            step.tests.append(finding.id)
            step.gain += self.gain(finding)
        steps.sort(key=lambda step: (not step.adds_the_card, -step.gain))
        return [f"{step.text()}  # up to +{step.gain:.1f} by {', '.join(step.tests)}" for step in steps]

    def _repr_html_(self) -> str:
        rows = [(key, row.title, row.percent) for key, row in self.table_one.items()]
        return rows_table(["", "principle", "%"], rows, note=self.summary())

    def to_dict(self) -> AssessmentDict:
        return {
            "handle": self.handle,
            "asset": self.name,
            "@id": self.iri,
            "kind": self.kind,
            "score": self.score,
            "letters": self.letters,
            "findings": [_finding_dict(finding, self.gain(finding)) for finding in self.findings],
            "table_one": {
                key: {"title": row.title, "percent": row.percent, "tests": list(row.tests)}
                for key, row in self.table_one.items()
            },
            "indicator_score": self.indicator_score,
            "indicators": [
                {
                    "id": each.id,
                    "letter": each.letter,
                    "statement": each.statement,
                    "outcome": each.outcome,
                    "evidence": each.evidence,
                    "tests": list(each.tests),
                }
                for each in self.indicators
            ],
            "not_assessed": [each.id for each in self.indicators if each.outcome == "not assessed"],
            "richness": {
                "kind": self.richness.kind,
                "percent": self.richness.percent,
                "properties": dict(self.richness.properties),
            },
            "advice": self.advice,
            "also": [row.handle for row in self.others],
        }

    def summary(self) -> str:
        letters = ", ".join(f"{letter} {score:.0f}" for letter, score in self.letters.items())
        return f"{self.handle or self.name} {self.score:.0f} of 100 ({letters})"

    def to_jsonld(self, *, generated_at: str = "") -> dict[str, Any]:
        """Return the findings as FAIR test results (FTR) with data quality measurements (DQV)."""
        return _jsonld(self, generated_at)


@dataclass
class _Step:
    """One line of advice while it is put together."""

    command: str
    changes: list[tuple[str, str]]
    tests: list[str] = field(default_factory=list)
    gain: float = 0.0

    @property
    def adds_the_card(self) -> bool:
        return self.command == "fairmile catalog add" and not self.changes[0][1].startswith("CARD-OF-")

    def text(self) -> str:
        return " ".join([self.command, *(f"{flag} {shlex.quote(what)}".strip() for flag, what in self.changes)])


def _changes(fix: str) -> tuple[str, list[tuple[str, str]]]:
    """Split a command into what it does and the changes it makes."""
    words = shlex.split(fix)
    at = next((at for at, word in enumerate(words) if word in _FLAGS), len(words) - 1)
    if words[at] not in _FLAGS:
        return shlex.join(words[:at]), [("", words[at])]
    return shlex.join(words[:at]), list(zip(words[at::2], words[at + 1 :: 2], strict=True))


def _key(change: tuple[str, str]) -> str:
    """Return the property that a change is about."""
    return "distribution" if change[0] in _FILE_FLAGS else change[1].partition("=")[0]


def assess(card: Card, surroundings: Surroundings) -> Assessment:
    """Return how FAIR the asset is that the card describes."""
    facts = Facts(card, surroundings)
    verdicts = {test["id"]: _tidy(_unfilled(CHECKS[test["id"]](facts), facts)) for test in rules()["tests"]}
    findings = tuple(_finding(test, verdicts[test["id"]]) for test in rules()["tests"])
    signals = _signals(verdicts)
    indicators = tuple(_indicator(each, signals) for each in rules()["indicators"])
    richness = Richness(facts.kind, {key: facts.has(key) for key in facts.rich})
    return Assessment(facts.name, card.iri, facts.kind, findings, indicators, richness)


def _unfilled(verdict: Verdict, facts: Facts) -> Verdict:
    """Return the verdict with a word on what it asks for and is only a placeholder so far."""
    if not facts.unfilled or not verdict.fix:
        return verdict
    keys = dict.fromkeys(_key(change) for change in _changes(verdict.fix)[1])
    notes = [f"{key} is still the placeholder {facts.unfilled[key]}" for key in keys if key in facts.unfilled]
    return verdict._replace(evidence="; ".join([verdict.evidence, *notes]))


def _tidy(verdict: Verdict) -> Verdict:
    """Return the verdict with evidence of one line each, whatever the card holds."""
    parts = tuple(part._replace(evidence=" ".join(part.evidence.split())) for part in verdict.parts)
    return verdict._replace(evidence=" ".join(verdict.evidence.split()), parts=parts)


def _percent(findings: Iterable[Finding]) -> float | None:
    counted = [finding for finding in findings if finding.counts]
    total = sum(finding.weight for finding in counted)
    return round(100 * sum(each.weight * each.points for each in counted) / total, 1) if total else None


def _finding(test: Mapping[str, Any], verdict: Verdict) -> Finding:
    points = 0.0 if verdict.points is None else round(min(1.0, max(0.0, verdict.points)), 4)
    outcome: Outcome = "partial"
    if verdict.points is None:
        outcome = "not applicable"
    elif points in (0, 1):
        outcome = "pass" if points else "fail"
    return Finding(
        id=test["id"],
        letter=test["letter"],
        principle=test["principle"],
        title=test["title"],
        severity=test["severity"],
        weight=test["weight"],
        outcome=outcome,
        points=points,
        evidence=verdict.evidence,
        fix=verdict.fix if outcome in ("partial", "fail") else "",
        maps_to=tuple(test["maps_to"]),
        table_one=tuple(test["table_one"]),
        parts=verdict.parts,
    )


def _signals(verdicts: Mapping[str, Verdict]) -> dict[str, Part]:
    """Return everything an indicator may refer to: each test and each part of one, by its id."""
    signals = {}
    for name, verdict in verdicts.items():
        signals[name] = Part(name, verdict.points, verdict.evidence)
        signals.update({part.id: part for part in verdict.parts})
    return signals


def _indicator(rule: Mapping[str, Any], signals: Mapping[str, Part]) -> Indicator:
    """Judge one indicator: each of its ways lists what must reach how many points; one way suffices."""
    ways: list[Mapping[str, float]] = rule["ways"]
    unjudged = 0
    outcome: Literal["yes", "no", "not assessed"] = "no"
    evidence = ""
    for way in ways:
        seen = [(signals.get(name) or Part(name, None, "nothing is declared"), least) for name, least in way.items()]
        unknown = next((part for part, _ in seen if part.points is None), None)
        short = next((part for part, least in seen if part.points is not None and part.points < least - 1e-9), None)
        if unknown is None and short is None:
            outcome, evidence = "yes", "; ".join(dict.fromkeys(part.evidence for part, _ in seen))
            break
        unjudged += short is None
        blocking = short or unknown
        evidence = blocking.evidence if blocking and (short or not evidence) else evidence
    else:
        outcome = "not assessed" if unjudged == len(ways) else "no"
    if outcome == "not assessed":
        why = "needs a reader of the format" if rule["id"] in DATA_LEVEL else "does not apply"
        evidence = f"{why}, counted as 0: {evidence}"
    tests = dict.fromkeys(name if name in CHECKS else _test_of(name) for way in ways for name in way)
    return Indicator(rule["id"], rule["id"].split("-")[1][0], rule["statement"], outcome, evidence, tuple(tests))


def _test_of(part: str) -> str:
    """Return the test that a part such as `F2b.keywords` or `R1.1a` belongs to."""
    return max((name for name in CHECKS if part.startswith(name)), key=len)


def _finding_dict(finding: Finding, gain: float) -> FindingDict:
    return {
        "id": finding.id,
        "letter": finding.letter,
        "principle": finding.principle,
        "title": finding.title,
        "severity": finding.severity,
        "weight": finding.weight,
        "outcome": finding.outcome,
        "points": finding.points,
        "evidence": finding.evidence,
        "fix": finding.fix,
        "maps_to": list(finding.maps_to),
        "table_one": list(finding.table_one),
        "parts": [{"id": part.id, "points": part.points, "evidence": part.evidence} for part in finding.parts],
        "gain": round(gain, 1),
    }


def _jsonld(assessment: Assessment, generated_at: str) -> dict[str, Any]:
    target = assessment.iri or f"urn:fairmile:{assessment.name}"
    entity = {"@id": target, "@type": "prov:Entity", "dct:identifier": target}

    def name(part: str) -> str:
        return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{target}#{part}')}"

    when = {"prov:generatedAtTime": {"@value": generated_at, "@type": "xsd:dateTime"}} if generated_at else {}
    results = [_result(finding, name(finding.id), target, when) for finding in assessment.findings]
    measured = {"score": assessment.score, **assessment.letters, "indicators": assessment.indicator_score}
    measures = [
        {
            "@id": name(f"measure-{key}"),
            "@type": "dqv:QualityMeasurement",
            "dqv:isMeasurementOf": {"@id": f"{_TESTS_IRI}metric/{key}"},
            "dqv:computedOn": {"@id": target},
            "dqv:value": {"@value": str(value), "@type": "xsd:decimal"},
        }
        for key, value in measured.items()
    ]
    results_set = {
        "@id": name("set"),
        "@type": ["ftr:TestResultSet", "prov:Collection"],
        "dct:identifier": name("set"),
        "dct:title": f"FAIR assessment of {assessment.name}",
        "dct:description": f"{assessment.score} of 100 from the card and its catalog; addresses are not probed",
        "dct:license": {"@id": _CC0},
        "ftr:assessmentTarget": {"@id": target},
        "prov:hadMember": [{"@id": result["@id"]} for result in results],
        **when,
    }
    tests = [_test(finding) for finding in assessment.findings]
    return {"@context": dict(_CONTEXT), "@graph": [results_set, entity, *results, *tests, *measures]}


def _result(finding: Finding, identifier: str, target: str, when: Mapping[str, Any]) -> dict[str, Any]:
    value = {"pass": "pass", "not applicable": "indeterminate"}.get(finding.outcome, "fail")
    result: dict[str, Any] = {
        "@id": identifier,
        "@type": ["ftr:TestResult", "dqv:QualityMeasurement"],
        "dct:identifier": identifier,
        "dct:title": f"{finding.id}: {finding.title}",
        "dct:description": f"{finding.outcome}, {finding.points:g} of 1 point",
        "dct:license": {"@id": _CC0},
        "prov:value": value,
        "ftr:log": finding.evidence,
        "ftr:completion": {"@value": "100" if finding.counts else "0", "@type": "xsd:integer"},
        "ftr:outputFromTest": {"@id": f"{_TESTS_IRI}test/{finding.id}"},
        "ftr:assessmentTarget": {"@id": target},
        "dqv:isMeasurementOf": {"@id": f"{_TESTS_IRI}metric/{finding.id}"},
        "dqv:computedOn": {"@id": target},
        "dqv:value": {"@value": f"{finding.points:g}", "@type": "xsd:decimal"},
        **when,
    }
    if finding.fix:
        result["ftr:suggestion"] = {"@type": "ftr:GuidanceContext", "dct:description": finding.fix}
    return result


def _test(finding: Finding) -> dict[str, Any]:
    return {
        "@id": f"{_TESTS_IRI}test/{finding.id}",
        "@type": "ftr:Test",
        "dct:identifier": finding.id,
        "dct:title": finding.title,
        "sio:SIO_000233": {
            "@id": f"{_TESTS_IRI}metric/{finding.id}",
            "@type": "dqv:Metric",
            "dqv:inDimension": {"@id": _PRINCIPLES_IRI + finding.principle},
            "dct:references": list(finding.maps_to),
        },
    }
