"""`/api/search`: find assets, as `fairmile search` does."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from fairmile.base.results import Result
from fairmile.web.answers import Part, cursor_at, position_of
from fairmile.web.routes import Routes, workspace_of

routes = Routes("catalog")
MOST_HITS = 10_000  # that can be turned over; who wants more narrows the search

Text = Annotated[str, Query(max_length=1000, description="words, `field:value`, `prefix*`, `/regex/`, `-not`")]
Limit = Annotated[int, Query(ge=1, le=200, description="most results in one answer")]
Cursor = Annotated[str, Query(max_length=500, description="from the Link header of the answer before")]


@routes.get("/api/search", result="fairmile.catalog.results:SearchResult")
def search_assets(
    request: Request,
    q: Text = "",
    kind: Annotated[str | None, Query(max_length=50)] = None,
    regex: Annotated[str | None, Query(min_length=1, max_length=200, description="RE2 pattern of names")] = None,
    all_versions: bool = False,
    limit: Limit = 20,
    cursor: Cursor = "",
) -> Part:
    """Return the assets that match; `fairmile search --json` prints the same."""
    start = min(position_of(cursor), MOST_HITS)
    catalog = workspace_of(request).catalog
    hits = catalog.search(q, kind=kind, regex=regex, limit=start + limit + 1, all_versions=all_versions)
    more = len(hits) > start + limit
    hits[:] = hits[start : start + limit]
    return Part(hits.to_dict(), cursor_at(start + limit) if more else "")


@routes.get("/api/facets/{facet}", result="fairmile.catalog.results:FacetValues")
def list_facet(request: Request, facet: str, q: Text = "") -> Result:
    """Return the values of a field of cards with the number of assets that have each, of all or of a search."""
    return workspace_of(request).catalog.facets(facet, q)
