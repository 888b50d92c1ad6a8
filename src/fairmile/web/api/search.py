"""Assets: find them, read their cards, fetch them; as `fairmile search`, `show`, `match` and `fetch` do."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from fairmile.base.results import Result
from fairmile.catalog.machines import asks_for_systems
from fairmile.catalog.query import parse_query
from fairmile.web.answers import Part, cursor_at, position_of
from fairmile.web.errors import Gone
from fairmile.web.parameters import AssetName, Cursor, Limit, Word
from fairmile.web.routes import Routes, workspace_of
from fairmile.web.starting import Started, start

routes = Routes("catalog")
MOST_HITS = 10_000  # that can be turned over; who wants more narrows the search

Text = Annotated[str, Query(max_length=1000, description="words, `field:value`, `prefix*`, `/regex/`, `-not`")]


@routes.get("/api/search", result="fairmile.catalog.results:SearchResult", right="browse")
def search_assets(
    request: Request,
    q: Text = "",
    kind: Annotated[str | None, Query(max_length=50)] = None,
    regex: Annotated[str | None, Query(min_length=1, max_length=200, description="RE2 pattern of names")] = None,
    all_versions: bool = False,
    limit: Limit = 20,
    cursor: Cursor = "",
) -> Part:
    """Return the assets that match, as `fairmile search`."""
    start = min(position_of(cursor), MOST_HITS)
    catalog = workspace_of(request).catalog
    hits = catalog.search(q, kind=kind, regex=regex, limit=start + limit + 1, all_versions=all_versions)
    more = len(hits) > start + limit
    hits[:] = hits[start : start + limit]
    return Part(hits.to_dict(), cursor_at(start + limit) if more else "")


def is_lasting(q: str = "", kind: str | None = None, **_: Any) -> bool:
    """Tell whether a search gives the same answer until a catalog changes: systems have files of their own."""
    if ":" not in q and kind is None:  # it names no kind
        return True
    query = parse_query(q)
    return not asks_for_systems(query.with_facets(kind=kind) if kind else query)


def is_quick(q: str = "", regex: str | None = None, cursor: str = "", **_: Any) -> bool:
    """Tell whether a search looks at few cards: a pattern looks at all names, and a later part at all before it."""
    return regex is None and "/" not in q and not cursor


@routes.get("/api/facets/{facet}", result="fairmile.catalog.results:FacetValues", right="browse")
def list_facet(request: Request, facet: str, q: Text = "") -> Result:
    """Return the values of a field of cards and how many assets, of all or of a search, have each."""
    return workspace_of(request).catalog.facets(facet, q)


@routes.get("/api/hubs", result="fairmile.catalog.hubs.results:HubHits")
def search_hubs(
    request: Request,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="words and `kind:value`")],
    hub: Annotated[list[Annotated[str, Query(max_length=50)]], Query(max_length=10)] = ["all"],  # noqa: B006
    limit: Limit = 20,
) -> Result:
    """Return what Hugging Face, Zenodo and OpenML find now, as `fairmile search --hub`."""
    return workspace_of(request).catalog.search_hubs(q, hubs=hub, limit=limit)


@routes.get("/api/catalogs", result="fairmile.catalog.results:Catalogs")
def list_catalogs(request: Request) -> Result:
    """Return the catalogs in order of precedence, as `fairmile catalog source ls`."""
    return workspace_of(request).catalog.catalogs()


@routes.get("/api/assets/{name:path}", result="fairmile.catalog.results:ResolvedCard")
def show_asset(request: Request, name: AssetName, kind: Word = "") -> Result:
    """Return the card of an asset, as `fairmile show`; 410 with its remains where it was removed."""
    card = workspace_of(request).catalog.get(name, kind=kind or None)
    if "tombstone" in card:
        raise Gone(str(card.handle), card.to_dict())
    return card


@routes.get("/api/versions/{name:path}", result="fairmile.catalog.results:Versions")
def list_versions(request: Request, name: AssetName) -> Result:
    """Return every version of an asset, as `fairmile catalog versions`."""
    return workspace_of(request).catalog.versions(name)


@routes.get("/api/fair/{name:path}", result="fairmile.catalog.fair:Assessment")
def assess_asset(request: Request, name: AssetName) -> Result:
    """Return how FAIR an asset is, with advice, as `fairmile show --fair`."""
    return workspace_of(request).catalog.fair(name)


@routes.get("/api/matches", result="fairmile.catalog.match:Matches")
def match_assets(
    request: Request, model: Word = "", dataset: Word = "", domain: Word = "", limit: Limit = 20
) -> Result:
    """Return which models and data sets fit each other, and why, as `fairmile match`."""
    return workspace_of(request).catalog.match(
        model=model or None, dataset=dataset or None, domain=domain or None, limit=limit
    )


@routes.post("/api/fetch/{name:path}", right="start", result="fairmile.web.starting:Started", status=202)
def fetch_asset(request: Request, name: AssetName) -> Started:
    """Begin to fetch an asset of a catalog into the store; `/api/status` shows the transfer."""
    workspace = workspace_of(request)
    row, _ = workspace.catalog.resolve(name)  # an asset of a catalog, never an address that somebody made up
    return start(workspace, "fetch", row.handle)
