"""The start page: search with facets, results while one types."""

from __future__ import annotations

import shlex
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Request

from fairmile.base.errors import UsageError
from fairmile.catalog.results import SearchResult
from fairmile.web.api.search import MOST_HITS, Text
from fairmile.web.render import Page
from fairmile.web.routes import Routes, workspace_of

routes = Routes("catalog")
_FACETS = ("kind", "domain", "task", "licence")
_SHOWN_VALUES = 8
_HITS = 30


@routes.page("/", right="browse")
def search_page(
    request: Request, q: Text = "", from_: Annotated[int, Query(alias="from", ge=0, le=MOST_HITS)] = 0
) -> Page:
    """Search the catalog."""
    catalog = workspace_of(request).catalog
    problem = ""
    try:
        hits = catalog.search(q, limit=from_ + _HITS + 1)
        facets = [(name, _choices(name, dict(catalog.facets(name, q)), q)) for name in _FACETS]
    except UsageError as error:  # a search that is not finished yet, perhaps
        hits, facets, problem = SearchResult(), [], f"{error} {error.hint or ''}"
    values = {
        "q": q,
        "words": shlex.join(q.split()),
        "hits": [each.to_dict() for each in hits[from_ : from_ + _HITS]],
        "near": [(each, _link(each)) for each in (*hits.did_you_mean, *hits.broader)[:5]],
        "facets": [each for each in facets if each[1]],
        "problem": problem,
        "next": _link(q, from_ + _HITS) if len(hits) > from_ + _HITS else "",
    }
    return Page("search.html", f"Search: {q}" if q else "Search", values)


def _choices(facet: str, counts: dict[str, int], q: str) -> list[tuple[str, int, str, bool]]:
    """Return the values of a facet to choose from: text, count, where a click leads, whether it is chosen."""
    choices = []
    for value, count in list(counts.items())[:_SHOWN_VALUES]:
        term = f'{facet}:"{value}"' if len(value.split()) > 1 else f"{facet}:{value}"
        is_chosen = term in q
        text = q.replace(term, "") if is_chosen else f"{q} {term}"
        choices.append((value, count, _link(" ".join(text.split())), is_chosen))
    return choices


def _link(q: str, start: int = 0) -> str:
    return "/?" + urlencode({"q": q} | ({"from": start} if start else {}))
