"""Three-way match: science domain × model × data set, each pair with the reasons that make it one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairmile.base.errors import UsageError
from fairmile.catalog.card import Card, as_list, id_of, text_of
from fairmile.catalog.index import Index, Row, target_names
from fairmile.catalog.query import normal, parse_query

# How much each kind of reason is worth; the first three are statements of somebody, the rest are likeness.
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
_STATED = ("run", "declared", "benchmark", "workflow")
_DATA_LINKS = ("trainedOn", "testedOn", "validatedOn", "evaluatedOn", "acceptsDataset", "evaluationDataset")
_MAX_CANDIDATES = 200


@dataclass(frozen=True)
class Reason:
    """Why a model and a data set belong together."""

    kind: str
    text: str


@dataclass(frozen=True)
class Match:
    """A model and a data set that fit, with a score of 0 to 1 and its reasons."""

    model: str
    dataset: str
    domains: tuple[str, ...]
    score: float
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the match as data."""
        reasons = [{"kind": reason.kind, "text": reason.text} for reason in self.reasons]
        return {
            "model": self.model,
            "dataset": self.dataset,
            "domains": list(self.domains),
            "score": self.score,
            "reasons": reasons,
        }


class Cards(Protocol):
    """What a match needs of a catalog."""

    def open_index(self) -> Index: ...

    def get(self, name: str, *, kind: str | None = None) -> Card: ...

    def read(self, row: Row) -> Card: ...


def match(catalog: Cards, *, model: str | None, dataset: str | None, domain: str | None, limit: int) -> list[Match]:
    """Return the pairs that fit, best first; any two of the three may be open, not all."""
    if not (model or dataset or domain):
        raise UsageError("say what to match", hint="--model NAME, --dataset NAME or --domain NAME")
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
        witnesses = _Witnesses(catalog, index)
        found = [_pair(one, other, witnesses) for one in models for other in datasets]
    wanted = normal(domain) if domain else ""
    pairs = [pair for pair in found if pair and (not wanted or any(wanted in normal(each) for each in pair.domains))]
    return sorted(pairs, key=lambda pair: (-pair.score, pair.model, pair.dataset))[:limit]


def _of_domain(catalog: Cards, index: Index, kind: str, domain: str) -> list[Card]:
    rows = index.search(parse_query(f'kind:{kind} domain:"{domain}"'), limit=_MAX_CANDIDATES)
    return _distinct(catalog.read(row) for row in rows)


def _candidates(catalog: Cards, index: Index, card: Card, kind: str) -> list[Card]:
    """Return the assets of a kind that could fit: linked either way, or alike in domain or task."""
    rows: list[Row] = []
    for _, target in card.links:
        rows += _named(index, target, kind)
    linking = [row for _, row in index.linking_to(target_names(card))]
    rows += [row for row in linking if row.kind == kind]
    for row in (each for each in linking if each.kind in ("benchmark", "run", "workflow")):
        rows += [found for name in _mentioned(catalog.read(row), kind) for found in _named(index, name, kind)]
    for row in index.search(parse_query("kind:benchmark"), limit=_MAX_CANDIDATES):
        spec = catalog.read(row)
        if _mentions(spec, card):
            rows += [found for name in _mentioned(spec, kind) for found in _named(index, name, kind)]
    for facet, values in (("domain", card.domains), ("task", card.tasks)):
        for value in values:
            rows += index.search(parse_query(f'kind:{kind} {facet}:"{value}"'), limit=_MAX_CANDIDATES)
    unique = list({row.id: row for row in rows if not row.gone}.values())[:_MAX_CANDIDATES]
    return _distinct(catalog.read(row) for row in unique)


def _distinct(cards: Iterable[Card]) -> list[Card]:
    """Return one card per asset version, whichever catalog came first."""
    return list({(card.name, card.version): card for card in reversed(list(cards))}.values())[::-1]


def _named(index: Index, name: str, kind: str) -> list[Row]:
    rows = index.aliased(name)
    if not rows and "://" not in name:
        words = name.split("@")[0].rsplit("/", 1)[-1]
        rows = [
            row for row in index.search(parse_query(f'kind:{kind} "{words}"'), limit=5) if name in target_names(row)
        ]
    return [row for row in rows if row.kind == kind]


def _mentioned(card: Card, kind: str) -> list[str]:
    spec = card.get("matchSpec")
    listed = as_list(spec.get(f"{kind}s")) if isinstance(spec, Mapping) else []
    keys = ("evaluatedMLModel", "instrument", "result") if kind == "model" else ("object", "evaluationDataset", "input")
    linked = [value for key in keys for value in as_list(card.get(key))]
    return [name for value in [*listed, *linked] if (name := id_of(value))]


def _mentions(card: Card, other: Card) -> bool:
    names = set(target_names(other))
    return any(name in names for name in _mentioned(card, other.kind))


class _Witnesses:
    """The benchmarks, runs and workflows that name both a model and a data set."""

    def __init__(self, catalog: Cards, index: Index) -> None:
        rows = [
            row
            for kind in ("benchmark", "run", "workflow")
            for row in index.search(parse_query(f"kind:{kind}"), limit=2000)
        ]
        self._cards = [catalog.read(row) for row in rows if not row.gone]

    def of(self, model: Card, dataset: Card) -> list[Card]:
        return [card for card in self._cards if _mentions(card, model) and _mentions(card, dataset)]


def _pair(model: Card, dataset: Card, witnesses: _Witnesses) -> Match | None:
    reasons = [_witness_reason(card) for card in witnesses.of(model, dataset)]
    tests: Sequence[Callable[[Card, Card], Reason | None]] = (_declared, _signature, _task, _domain, _format)
    reasons += [reason for test in tests if (reason := test(model, dataset))]
    kinds = {reason.kind for reason in reasons}
    # Likeness alone needs two marks, one of them about what is computed; a domain in common is not a match.
    if not kinds & set(_STATED) and not ({"signature", "task"} & kinds and len(kinds) > 1):
        return None
    missing = 1.0
    for kind in kinds:
        missing *= 1.0 - WEIGHTS[kind] if WEIGHTS[kind] < 1 else 0.0
    domains = tuple(dict.fromkeys([*model.domains, *dataset.domains]))
    return Match(str(model.handle), str(dataset.handle), domains, round(1.0 - missing, 3), tuple(reasons))


def _witness_reason(card: Card) -> Reason:
    words = {
        "benchmark": "the benchmark {} pairs them",
        "run": "the run {} used both",
        "workflow": "the workflow {} takes both",
    }
    return Reason(card.kind, words[card.kind].format(card.handle))


def _declared(model: Card, dataset: Card) -> Reason | None:
    names = set(target_names(dataset))
    for relation in _DATA_LINKS:
        if any(id_of(value) in names for value in as_list(model.get(relation))):
            return Reason("declared", f"the model's card says {relation}")
    return None


def _task(model: Card, dataset: Card) -> Reason | None:
    common = _common(model.tasks, dataset.tasks)
    return Reason("task", f"both are for {common[0]}") if common else None


def _domain(model: Card, dataset: Card) -> Reason | None:
    common = _common(model.domains, dataset.domains)
    return Reason("domain", f"both are of {common[0]}") if common else None


def _common(first: Sequence[str], second: Sequence[str]) -> list[str]:
    others = {normal(text) for text in second}
    return [text for text in first if normal(text) in others]


def _format(model: Card, dataset: Card) -> Reason | None:
    accepted = [
        text for spec in _inputs(model) for value in as_list(spec.get("encodingFormat")) if (text := text_of(value))
    ]
    given = {text for file in dataset.files for text in [file.media_type] if text}
    common = [text for text in accepted if text in given]
    return Reason("format", f"the model reads {common[0]}, which the data set is in") if common else None


def _signature(model: Card, dataset: Card) -> Reason | None:
    fields = [shape for shape in _field_shapes(dataset) if len(shape) > 1]
    for spec in _inputs(model):
        shape = spec.get("shape")
        if not isinstance(shape, list) or len(shape) < 2:
            continue
        inner = [size if isinstance(size, int) and size > 0 else None for size in shape[1:]]
        known = [size for size in inner if size is not None]
        for found in fields:
            if (
                known
                and len(found) == len(inner)
                and all(want in (None, have) for want, have in zip(inner, found, strict=True))
            ):
                return Reason(
                    "signature",
                    f"a record of shape {_shape(found)} fits the input {spec.get('name', '')} {_shape(shape)}",
                )
    return None


def _inputs(model: Card) -> list[Mapping[str, Any]]:
    signature = model.get("signature")
    inputs = as_list(signature.get("inputs")) if isinstance(signature, Mapping) else []
    return [spec for spec in inputs if isinstance(spec, Mapping)]


def _field_shapes(dataset: Card) -> list[list[int]]:
    records = [each for each in as_list(dataset.get("recordSet")) if isinstance(each, Mapping)]
    fields = [each for record in records for each in as_list(record.get("field")) if isinstance(each, Mapping)]
    shapes = []
    for each in fields:
        text = text_of(each.get("arrayShape"))
        parts = [part.strip() for part in (text or "").strip("()[]").split(",") if part.strip()]
        if parts and all(part.lstrip("-").isdigit() for part in parts):
            shapes.append([int(part) for part in parts])
    return shapes


def _shape(shape: Sequence[Any]) -> str:
    return "×".join("?" if size is None or size == -1 else str(size) for size in shape)
