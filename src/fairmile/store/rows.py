"""The store in rows, the same on every window."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from fairmile.base.units import format_size
from fairmile.store.pools import Ranked
from fairmile.store.upkeep import PoolUsage, StoredName

NAME_COLUMNS = ["kind", "name", "files", "size", "pool", "state", "last use"]
USAGE_COLUMNS = ["pool", "objects", "size", "packed", "shared", "damaged", "incoming", "reserved", "free", "folder"]
POOL_COLUMNS = ["pool", "speed", "purpose", "free", "limited by", "folder", "why"]


def name_rows(names: Iterable[StoredName]) -> list[list[str]]:
    """Return a row for each name in the store."""
    return [_name_row(each) for each in names]


def usage_rows(usages: Iterable[PoolUsage]) -> list[list[str]]:
    """Return a row for what each pool holds."""
    return [_usage_row(each) for each in usages]


def pool_rows(pools: Iterable[Ranked]) -> list[list[str]]:
    """Return a row for each pool, the next one to use first."""
    return [_rank_row(each) for each in pools]


def _name_row(row: StoredName) -> list[str]:
    state = "complete" if row.complete else "incomplete"
    return [row.kind, row.name, f"{row.files:,}", format_size(row.size_bytes), row.pool, state, day(row.used)]


def day(time: float) -> str:
    """Return the date of a time, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


def _usage_row(row: PoolUsage) -> list[str]:
    sizes = (row.packed_bytes, row.shared_bytes, row.damaged_bytes, row.incoming_bytes, row.reserved_bytes)
    free = "unknown" if row.free_bytes is None else format_size(row.free_bytes)
    return [row.pool, f"{row.objects:,}", format_size(row.objects_bytes), *map(format_size, sizes), free, row.folder]


def _rank_row(each: Ranked) -> list[str]:
    free, limit = (format_size(each.space.free_bytes), each.space.limited_by) if each.space else ("unknown", "")
    why = each.trouble or each.why
    return [each.pool.name, each.speed_class, each.pool.purpose, free, limit, str(each.pool.folder), why]
