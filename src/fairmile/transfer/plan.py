"""The plan of a transfer, as data: what must come, how large it is, and which pool takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.transfer.credentials import shown_address

# A fetch shows plans before the store is loaded.
if TYPE_CHECKING:
    from collections.abc import Collection

    from fairmile.base.digest import ManifestEntry
    from fairmile.store.pools import Pool
    from fairmile.transfer.items import Item


class ItemDict(TypedDict):
    path: str
    size_bytes: int | None
    sha256: str | None
    unpack: bool
    sources: list[str]


class PlanDict(TypedDict):
    name: str
    pool: str
    download_bytes: int
    unpacked_bytes: int
    estimate: bool
    present_files: int
    notes: list[str]
    items: list[ItemDict]


class PlansDict(TypedDict):
    plans: list[PlanDict]


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """What a transfer will do; nothing has happened yet."""

    what: str
    items: tuple[Item, ...]
    present: Collection[ManifestEntry]
    pool: Pool
    download_bytes: int
    unpacked_bytes: int
    is_estimate: bool
    notes: tuple[str, ...] = ()
    held_bytes: int = 0  # that an interrupted attempt left, on disk already

    @property
    def need_bytes(self) -> int:
        return max(0, self.download_bytes + self.unpacked_bytes - self.held_bytes)

    def to_dict(self) -> PlanDict:
        items: list[ItemDict] = [
            {
                "path": item.path,
                "size_bytes": item.size_bytes,
                "sha256": item.sha256,
                "unpack": item.unpack,
                "sources": [shown_address(remote.address) for remote in item.sources],
            }
            for item in self.items
        ]
        return {
            "name": self.what,
            "pool": self.pool.name,
            "download_bytes": self.download_bytes,
            "unpacked_bytes": self.unpacked_bytes,
            "estimate": self.is_estimate,
            "present_files": len(self.present),
            "notes": list(self.notes),
            "items": items,
        }

    def describe(self) -> str:
        """Return the plan in one sentence."""
        if not self.items:
            return f"{self.what}: all files are stored already"
        about = "about " if self.is_estimate else ""
        unpacked = f", {format_size(self.unpacked_bytes)} unpacked" if self.unpacked_bytes else ""
        files = f"{len(self.items):,} file" + ("" if len(self.items) == 1 else "s")
        return (
            f"{self.what}: {files} to fetch, {about}{format_size(self.download_bytes)}{unpacked}, "
            f"into pool {self.pool.name!r}"
        )

    def summary(self) -> str:
        return self.describe()


class Plans(Results[Plan]):
    """What a fetch of several assets would do."""

    def to_dict(self) -> PlansDict:
        return {"plans": [each.to_dict() for each in self]}

    def summary(self) -> str:
        size = format_size(sum(each.download_bytes for each in self))
        return f"{sum(len(each.items) for each in self):,} files to fetch, {size}"
