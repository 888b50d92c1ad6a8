"""The store and its pools, as `fairmile store` lists them."""

from __future__ import annotations

from fastapi import Request

from fairmile.base.results import Result
from fairmile.web.answers import Part, page_of
from fairmile.web.hiding import visible_names, visible_pins
from fairmile.web.parameters import Cursor, Limit
from fairmile.web.routes import Routes, workspace_of

routes = Routes("store")


@routes.get("/api/store", result="fairmile.store.upkeep:StoredNames")
def list_store(request: Request, limit: Limit = 50, cursor: Cursor = "") -> Part:
    """Return what the store holds, as `fairmile store ls`."""
    names = visible_names(workspace_of(request))
    names[:], following = page_of(names, cursor=cursor, limit=limit)
    return Part(names.to_dict(), following)


@routes.get("/api/store/usage", right="admin", result="fairmile.store.upkeep:PoolUsages")
def show_usage(request: Request) -> Result:
    """Return how much each pool holds, as `fairmile store du`: of all assets, also those that others do not see."""
    return workspace_of(request).store.du()


@routes.get("/api/store/pools", result="fairmile.store.pools:RankedPools")
def list_pools(request: Request) -> Result:
    """Return the pools with their free space, as `fairmile store pool ls`."""
    return workspace_of(request).store.pools.ranked()


@routes.get("/api/store/pins", result="fairmile.store.pins:Pins")
def list_pins(request: Request) -> Result:
    """Return what is kept whatever happens, as `fairmile store pins`."""
    return visible_pins(workspace_of(request))
