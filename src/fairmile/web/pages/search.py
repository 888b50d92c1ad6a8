"""The start page: search with facets, results while one types."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from fairmile.base.errors import UsageError
from fairmile.catalog.results import FacetValues, SearchResult
from fairmile.web.api.search import MOST_HITS, Text
from fairmile.web.render import Page
from fairmile.web.repeats import Repeats
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("catalog")
_FACETS = ("kind", "domain", "task", "licence")
_SHOWN_VALUES = 8
_HITS = 30
_HUB_HITS = 20


@routes.page("/", right="browse")
def search_page(
    request: Request,
    q: Text = "",
    from_: Annotated[int, Query(alias="from", ge=0, le=MOST_HITS)] = 0,
    hubs: bool = False,
) -> Page:
    """Search the catalog, and with `hubs` those as well; the words leave this server only then."""
    catalog = workspace_of(request).catalog
    hubs = hubs and request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")  # no link of another site
    problem = ""
    try:
        hits = catalog.search(q, limit=from_ + _HITS + 1)
        facets = [(each.facet, _choices(each, q)) for each in _facets(request, q)]
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
        "hubs": _of_hubs(request, q) if hubs else None,
        "hubs_link": "/?" + urlencode({"q": q, "hubs": "true"}) if q and identity_of(request).may("read") else "",
    }
    return Page("search.html", f"Search: {q}" if q else "Search", values)


def _of_hubs(request: Request, q: str) -> dict[str, Any]:
    """Return what hubs answer, each a group of its own, and why one of them did not."""
    identity_of(request).require("read")
    try:
        answer = workspace_of(request).catalog.search_hubs(q, limit=_HUB_HITS)
    except UsageError as error:
        return {"groups": [], "failed": {}, "problem": f"{error} {error.hint or ''}"}
    hits = [each.to_dict() for each in answer]
    groups = [(hub, list(group)) for hub, group in groupby(hits, lambda hit: hit["hub"])]
    return {"groups": groups, "failed": answer.failed, "problem": ""}


def _facets(request: Request, q: str) -> list[FacetValues]:
    """Return the values of facets, counted once for everybody who sees the same assets until a catalog changes."""
    workspace = workspace_of(request)
    repeats: Repeats[list[FacetValues]] = request.app.state.facets
    question, state = (q, workspace.hidden), workspace.catalog.state()
    facets = repeats.get(question, state)
    if facets is None:
        facets = workspace.catalog.facet_values(_FACETS, q)
        repeats.keep(question, state, facets)
    return facets


def _choices(facet: FacetValues, q: str) -> list[tuple[str, int, str, bool]]:
    """Return the values of a facet to choose from: text, count, where a click leads, whether it is chosen."""
    choices = []
    for value, count in list(facet.items())[:_SHOWN_VALUES]:
        term = f'{facet.facet}:"{value}"' if len(value.split()) > 1 else f"{facet.facet}:{value}"
        is_chosen = term in q
        text = q.replace(term, "") if is_chosen else f"{q} {term}"
        choices.append((value, count, _link(" ".join(text.split())), is_chosen))
    return choices


def _link(q: str, start: int = 0) -> str:
    return "/?" + urlencode({"q": q} | ({"from": start} if start else {}))
