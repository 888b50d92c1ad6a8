"""The store: pools with their room, what they hold, and every name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import Request

from fairmile.base.units import format_size
from fairmile.reports.blocks import Block, Cell, Heading, Note, Row, Text, Tile, Tiles, Title, Tone, table
from fairmile.store.rows import NAME_COLUMNS, POOL_COLUMNS, USAGE_COLUMNS, name_rows, pool_rows, usage_rows
from fairmile.store.upkeep import PoolUsage
from fairmile.web.hiding import visible_names
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("store")
_MOST_NAMES = 500


@routes.page("/store")
def store_page(request: Request) -> Page:
    """Show pools and stored names."""
    store = workspace_of(request).store
    names, pools = visible_names(workspace_of(request)), store.pools.ranked()
    # What pools hold, they hold of all assets, also of those that others than an administrator do not see.
    usages = store.du() if identity_of(request).may("admin") else None
    incomplete = sum(not each.complete for each in names)
    free = next((format_size(each.space.free_bytes) for each in pools if each.space and not each.trouble), "unknown")
    tiles = (
        Tile("names", f"{len(names):,}", f"{incomplete:,} incomplete" if incomplete else "all complete"),
        *_totals(usages or ()),
        Tile("free", free, "in the pool that is used next"),
    )
    blocks: list[Block] = [Title("Store"), Tiles(tiles)]
    blocks += [Note(f"Pool {each.pool}: {each.trouble}", "bad") for each in usages or () if each.trouble]
    blocks += [Heading("Pools"), table(POOL_COLUMNS, [[*row] for row in pool_rows(pools)])]
    if usages is not None:
        used: list[Row] = [[*row] for row in usage_rows(usages)]
        blocks += [Heading("Contents"), table(USAGE_COLUMNS, used, numbers=USAGE_COLUMNS[1:-1])]
    blocks.append(Heading("Names"))
    rows: list[Row] = []
    for row, each in zip(name_rows(names[:_MOST_NAMES]), names[:_MOST_NAMES], strict=True):
        tone: Tone = "" if each.complete else "warn"
        sizes = [Cell(row[2], each.files), Cell(row[3], each.size_bytes)]
        rows.append([row[0], row[1], *sizes, row[4], Cell(row[5], tone=tone), row[6]])
    if rows:
        blocks.append(table(NAME_COLUMNS, rows, numbers=["files", "size"]))
    else:
        blocks.append(Text("The store is empty: fairmile fetch NAME downloads an asset."))
    if len(names) > _MOST_NAMES:
        blocks.append(Text(f"The first {_MOST_NAMES:,} of {len(names):,}; /api/store has them all."))
    return Page("blocks.html", "Store", blocks=blocks)


def _totals(usages: Sequence[PoolUsage]) -> Iterator[Tile]:
    if usages:
        pools = f"in {len(usages):,} pool{'s' if len(usages) != 1 else ''}"
        yield Tile("objects", f"{sum(each.objects for each in usages):,}", pools)
        yield Tile("size", format_size(sum(each.objects_bytes for each in usages)))
