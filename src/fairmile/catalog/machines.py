"""The systems that are described by files of their own, as hits of a search for `kind:system`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from fairmile.catalog.patterns import compile_names
from fairmile.catalog.query import Query
from fairmile.catalog.results import Hit
from fairmile.catalog.row import CatalogRow

CATALOG = "systems"


class Described(Protocol):
    """What a list of systems says of one of them."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def centre(self) -> str: ...
    @property
    def country(self) -> str: ...
    @property
    def scheduler(self) -> str: ...
    @property
    def gpus(self) -> Sequence[str]: ...
    @property
    def software(self) -> Sequence[str]: ...
    @property
    def aliases(self) -> Sequence[str]: ...


def asks_for_systems(query: Query) -> bool:
    """Tell whether a search is one for systems alone."""
    return ("kind", "system") in query.facets


def system_hits(systems: Iterable[Described], query: Query) -> list[Hit]:
    """Return the systems that a search finds; `fm.systems[hit.row.name]` is one of them."""
    return [Hit(_row(each)) for each in systems if _fits(each, query)]


def _fits(system: Described, query: Query) -> bool:
    facets = {
        "kind": ["system"],
        "catalog": [CATALOG],
        "gpu": list(system.gpus),
        "machine": [system.name, system.title, *system.aliases],
        "framework": list(system.software),
    }
    names = [system.name, system.title, *system.aliases]
    text = [*names, system.centre, system.country, system.scheduler, *system.gpus, *system.software]
    wanted = [*query.words, *query.phrases]
    return (
        all(_has(facets.get(facet, []), value) for facet, value in query.facets)
        and not any(_has(facets.get(facet, []), value) for facet, value in query.not_facets)
        and all(_has(text, word) for word in wanted)
        and all(_has(text, prefix, beginning=True) for prefix in query.prefixes)
        and not any(_has(text, word) for word in query.not_words)
        and not any(_has(text, prefix, beginning=True) for prefix in query.not_prefixes)
        and all(compile_names(each).search("\n".join(names).encode()) for each in query.regexes)
    )


def _has(texts: Iterable[str], wanted: str, *, beginning: bool = False) -> bool:
    """Tell whether one of the texts holds the words that are wanted."""
    end = "" if beginning else " "
    return any(f" {_words(wanted)}{end}" in f" {_words(text)} " for text in texts)


def _words(text: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())


def _row(system: Described) -> CatalogRow:
    about = ", ".join(filter(None, [system.centre, system.country]))
    described = f"{system.title} ({about})" if about else system.title
    summary = {"description": described, "gpu": list(system.gpus)}
    return CatalogRow(
        id=0, catalog=CATALOG, path="", kind="system", name=system.name, version="1", iri=system.name,
        title=system.name, digest="", content=None, gone=False, latest=True, uses=0, summary_json=json.dumps(summary),
    )  # fmt: skip
