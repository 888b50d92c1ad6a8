"""Three-way match: science domain × model × data set, each pair with the reasons that make it one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.words import did_you_mean, slug
from fairmile.catalog.card import Card, as_list, format_name, id_of, text_of
from fairmile.catalog.extract import accepted_formats, model_inputs
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.identity import Reference, is_iri, parse_reference
from fairmile.catalog.index import Index
from fairmile.catalog.kinds import KINDS
from fairmile.catalog.query import Query, normal
from fairmile.catalog.row import CatalogRow, target_names

# How much each kind of reason is worth; the first four are statements of somebody, the rest are likeness.
WEIGHTS = {
    "run": 1.0,
    "declared": 0.9,
    "benchmark": 0.9,
    "workflow": 0.8,
    "signature": 0.4,
    "task": 0.2,
    "domain": 0.15,
    "format": 0.1,
}
_LONGEST_REASONS = 500
_STATED = ("run", "declared", "benchmark", "workflow")
_DATA_LINKS = ("trainedOn", "testedOn", "validatedOn", "evaluatedOn", "acceptsDataset", "evaluationDataset")
# Which of its properties show that a benchmark, run or workflow used a model or a data set.
_WITNESS_LINKS = {
    ("benchmark", "model"): ("matchSpec",),
    ("benchmark", "dataset"): ("matchSpec",),
    ("run", "model"): ("evaluatedMLModel", "instrument", "object", "result"),
    ("run", "dataset"): ("object", "evaluationDataset"),
    ("workflow", "model"): ("evaluatedMLModel", "instrument", "input", "object", "output", "result"),
    ("workflow", "dataset"): ("object", "evaluationDataset", "input"),
}
_NAMING = {
    kind: frozenset(name for (_, what), names in _WITNESS_LINKS.items() if what == kind for name in names)
    for kind in ("model", "dataset")
}
_MAX_CANDIDATES = 200


class ReasonDict(TypedDict):
    kind: str
    text: str


class MatchDict(TypedDict):
    model: str
    dataset: str
    domains: list[str]
    score: float
    reasons: list[ReasonDict]


class MatchesDict(TypedDict):
    matches: list[MatchDict]


@dataclass(frozen=True)
class Reason:
    """Why a model and a data set belong together."""

    kind: str
    text: str


@dataclass(frozen=True, repr=False)
class Match(Result):
    """A model and a data set that fit, with a score of 0 to 1 and its reasons."""

    model: str
    dataset: str
    domains: tuple[str, ...]
    score: float
    reasons: tuple[Reason, ...]

    def to_dict(self) -> MatchDict:
        reasons: list[ReasonDict] = [{"kind": reason.kind, "text": reason.text} for reason in self.reasons]
        return {
            "model": self.model,
            "dataset": self.dataset,
            "domains": list(self.domains),
            "score": self.score,
            "reasons": reasons,
        }

    def summary(self) -> str:
        return f"{self.score:.2f} {self.model} × {self.dataset}"


class Matches(Results[Match]):
    """The pairs of models and data sets that fit, best first; `hint` says what to try when there are none."""

    def __init__(self, pairs: Iterable[Match] = (), hint: str = "") -> None:
        super().__init__(pairs)
        self.hint = hint

    def to_dict(self) -> MatchesDict:
        return {"matches": [each.to_dict() for each in self]}

    def summary(self) -> str:
        best = f", best {self[0].summary()}" if self else ""
        return f"{len(self):,} pairs{best}"

    def _repr_html_(self) -> str:
        rows = [[each.model, each.dataset, each.score, [reason.text for reason in each.reasons]] for each in self]
        return rows_table(["model", "dataset", "score", "why"], rows, longest=_LONGEST_REASONS)


class Cards(Protocol):
    """What a match needs of a catalog."""

    def folders(self) -> list[CatalogFolder]: ...

    def open_index(self) -> Index: ...

    def get(self, name: str, *, kind: str | None = None) -> Card: ...

    def read(self, row: CatalogRow) -> Card: ...


def match(catalog: Cards, *, model: str | None, dataset: str | None, domain: str | None, limit: int) -> Matches:
    """Return the pairs that fit, best first; any two of the three may be open, not all."""
    if not (model or dataset or domain):
        raise UsageError("nothing to match", hint="use --model NAME, --dataset NAME or --domain NAME")
    models = [catalog.get(model, kind="model")] if model else []
    datasets = [catalog.get(dataset, kind="dataset")] if dataset else []
    with catalog.open_index() as index:
        if domain and not models and not datasets:
            models = _of_domain(catalog, index, "model", domain)
            datasets = _of_domain(catalog, index, "dataset", domain)
        elif not datasets:
            datasets = _candidates(catalog, index, models[0], "dataset")
        elif not models:
            models = _candidates(catalog, index, datasets[0], "model")
        wanted = normal(domain) if domain else ""
        ones = [_Side(each, index) for each in models if _may_be_of(each, wanted)]
        others = [_Side(each, index) for each in datasets if _may_be_of(each, wanted)]
        candidates = [_pair(one, other) for one in ones for other in others]
        pairs = [pair for pair in candidates if pair and _is_of(pair, wanted)]
        hint = "" if pairs else _advice(index, domain)
    return Matches(sorted(pairs, key=lambda pair: (-pair.score, pair.model, pair.dataset))[:limit], hint)


def _is_of(pair: Match, domain: str) -> bool:
    return not domain or any(domain in normal(each) for each in pair.domains)


def _advice(index: Index, domain: str | None) -> str:
    """Return what to try when nothing matches."""
    domains = index.facet_counts(["domain"])["domain"] if domain is not None else {}
    if domain is not None and domain.casefold() not in domains:
        return did_you_mean(domain, domains) or "`fairmile search --facet domain` lists the domains"
    return "a card declares what it accepts with trainedOn, acceptsDataset, mlTask, scienceDomain and signature"


def _may_be_of(card: Card, domain: str) -> bool:
    """Tell whether the asset is of the domain, or does not say of which it is."""
    return not domain or not card.domains or any(domain in normal(each) for each in card.domains)


def _of_domain(catalog: Cards, index: Index, kind: str, domain: str) -> list[Card]:
    return _cards(catalog, index.search(Query().with_facets(kind=kind, domain=domain), limit=_MAX_CANDIDATES))


def _candidates(catalog: Cards, index: Index, card: Card, kind: str) -> list[Card]:
    """Return the assets of a kind that could fit: named together, or alike in task, domain or format."""
    links = index.linking_to(target_names(card))
    rows = [row for relation, row in links if row.kind == kind and relation in _DATA_LINKS]
    witnesses = [row.id for relation, row in links if relation in _WITNESS_LINKS.get((row.kind, card.kind), ())]
    named = [target for relation, target in card.links if relation in _DATA_LINKS]
    named += [target for _, relation, target in index.links(witnesses) if relation in _NAMING[kind]]
    for target in dict.fromkeys(named):
        rows += _named(index, target, kind)
    formats = [format_name(text) for text in accepted_formats(card)] if card.kind == "model" else card.formats
    likeness = {"task": card.tasks, "domain": card.domains, "format" if kind == "dataset" else "accepts": formats}
    for facet, value in [(facet, value) for facet, values in likeness.items() for value in values]:
        rows += index.search(Query(facets=(("kind", kind), (facet, value))), limit=_MAX_CANDIDATES)
    return _cards(catalog, list({row.id: row for row in rows}.values()))


def _cards(catalog: Cards, rows: Iterable[CatalogRow]) -> list[Card]:
    """Return one card per asset version, that of the catalog which takes precedence."""
    rank = {folder.name: place for place, folder in enumerate(catalog.folders())}
    distinct: dict[tuple[str, str], CatalogRow] = {}
    for row in rows:
        other = distinct.get((row.name, row.version), row)
        if not row.gone and row.catalog in rank and rank[row.catalog] <= rank[other.catalog]:
            distinct[row.name, row.version] = row
    return [catalog.read(row) for row in list(distinct.values())[:_MAX_CANDIDATES]]


def _named(index: Index, name: str, kind: str) -> list[CatalogRow]:
    rows = index.aliased(name)
    if not rows and not is_iri(name):
        try:
            rows = index.named(parse_reference(name, tuple(KINDS)))
        except UsageError:  # a title that no handle can look like
            rows = index.named(Reference(None, kind, slug(name), None))
    return [row for row in rows if row.kind == kind]


class _Side:
    """A model or a data set, and the benchmarks, runs and workflows that name it."""

    def __init__(self, card: Card, index: Index) -> None:
        self.card = card
        self.names = frozenset(target_names(card))
        links = index.linking_to(self.names)
        self.witnesses = {
            row.id: row
            for relation, row in links
            if not row.gone and relation in _WITNESS_LINKS.get((row.kind, card.kind), ())
        }


def _pair(model: _Side, dataset: _Side) -> Match | None:
    common = [row for number, row in model.witnesses.items() if number in dataset.witnesses]
    reasons = [_witness_reason(row) for row in sorted(common, key=lambda row: (row.kind, row.handle))]
    reasons += [reason] if (reason := _declared(model.card, dataset.names)) else []
    tests: Sequence[Callable[[Card, Card], Reason | None]] = (_signature, _task, _domain, _format)
    reasons += [reason for test in tests if (reason := test(model.card, dataset.card))]
    kinds = {reason.kind for reason in reasons}
    # Likeness alone needs two marks, one of them about what is computed; a domain in common is not a match.
    if not kinds & set(_STATED) and not ({"signature", "task"} & kinds and len(kinds) > 1):
        return None
    missing = math.prod(1.0 - WEIGHTS[kind] for kind in sorted(kinds))
    domains = tuple(dict.fromkeys([*model.card.domains, *dataset.card.domains]))
    handles = str(model.card.handle), str(dataset.card.handle)
    return Match(*handles, domains, round(1.0 - missing, 3), tuple(reasons))


def _witness_reason(row: CatalogRow) -> Reason:
    words = {
        "benchmark": "the benchmark {} pairs them",
        "run": "the run {} used both",
        "workflow": "the workflow {} takes both",
    }
    return Reason(row.kind, words[row.kind].format(row.handle))


def _declared(model: Card, names: AbstractSet[str]) -> Reason | None:
    for relation in _DATA_LINKS:
        if any(id_of(value) in names for value in as_list(model.get(relation))):
            return Reason("declared", f"the model's card says {relation}")
    return None


def _task(model: Card, dataset: Card) -> Reason | None:
    common = _common(model.tasks, dataset.tasks)
    return Reason("task", f"both are for {common[0]}") if common else None


def _domain(model: Card, dataset: Card) -> Reason | None:
    common = _common(model.domains, dataset.domains)
    return Reason("domain", f"both are in {common[0]}") if common else None


def _common(first: Sequence[str], second: Sequence[str]) -> list[str]:
    others = {normal(text) for text in second}
    return [text for text in first if normal(text) in others]


def _format(model: Card, dataset: Card) -> Reason | None:
    given = set(dataset.formats)
    common = [text for text in accepted_formats(model) if format_name(text) in given]
    return Reason("format", f"the model reads {common[0]}, the data set's format") if common else None


def _signature(model: Card, dataset: Card) -> Reason | None:
    fields = [shape for shape in _field_shapes(dataset) if len(shape) > 1]
    for spec in model_inputs(model):
        shape = spec.get("shape")
        if not isinstance(shape, list) or len(shape) < 2:
            continue
        inner = [size if isinstance(size, int) and size > 0 else None for size in shape[1:]]
        known = [size for size in inner if size is not None]
        for record in fields:
            if (
                known
                and len(record) == len(inner)
                and all(want in (None, have) for want, have in zip(inner, record, strict=True))
            ):
                return Reason(
                    "signature",
                    f"a record of shape {_shape(record)} fits the input {spec.get('name', '')} {_shape(shape)}",
                )
    return None


def _field_shapes(dataset: Card) -> list[list[int]]:
    records = [each for each in as_list(dataset.get("recordSet")) if isinstance(each, Mapping)]
    fields = [each for record in records for each in as_list(record.get("field")) if isinstance(each, Mapping)]
    shapes = []
    for each in fields:
        shape = each.get("arrayShape")
        text = ",".join(map(str, shape)) if isinstance(shape, list) else text_of(shape) or ""
        parts = [part.strip() for part in text.strip("()[] ").split(",") if part.strip()]
        if parts and all(part.lstrip("-").isdigit() for part in parts):
            shapes.append([int(part) for part in parts])
    return shapes


def _shape(shape: Sequence[Any]) -> str:
    return "×".join("?" if size is None or size == -1 else str(size) for size in shape)
