"""What a fetch and a repair return."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size


class FetchedDict(TypedDict):
    name: str
    root: str
    files: int
    size_bytes: int
    pool: str
    known: bool
    moved_bytes: int
    folder: str | None
    notes: list[str]


class FetchedAssetsDict(TypedDict):
    fetched: list[FetchedDict]


@dataclass(frozen=True, repr=False)
class Fetched(Result):
    """What was fetched, or was stored already (`known`): the tree of its files, and how many bytes moved for it."""

    name: str
    root: str
    files: int
    size_bytes: int
    pool: str
    known: bool
    moved_bytes: int = 0
    folder: Path | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> FetchedDict:
        return {
            "name": self.name,
            "root": self.root,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "pool": self.pool,
            "known": self.known,
            "moved_bytes": self.moved_bytes,
            "folder": str(self.folder) if self.folder else None,
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        files = f"{self.files:,} file" + ("" if self.files == 1 else "s")
        return f"{self.name}, {files}, {format_size(self.size_bytes)}, in {self.folder or f'pool {self.pool}'}"


class FetchedAssets(Results[Fetched]):
    """What a fetch of several assets brought."""

    columns = ("name", "files", "size_bytes", "pool", "folder", "notes")

    def to_dict(self) -> FetchedAssetsDict:
        return {"fetched": [each.to_dict() for each in self]}

    def summary(self) -> str:
        size = format_size(sum(each.size_bytes for each in self))
        return f"{', '.join(each.name for each in self)}, {size}"


class RepairDict(TypedDict):
    name: str
    outcome: str


class RepairsDict(TypedDict):
    names: list[RepairDict]
    dry_run: bool


class Repair(NamedTuple):
    """What became of one name of the store that was incomplete."""

    name: str
    outcome: str

    @property
    def failed(self) -> bool:
        return self.outcome.startswith("failed")


class Repairs(Results[Repair]):
    """What became of everything in the store that was damaged or missing."""

    def __init__(self, repairs: Iterable[Repair] = (), dry_run: bool = False) -> None:
        super().__init__(repairs)
        self.dry_run = dry_run

    def to_dict(self) -> RepairsDict:
        return {"names": [{"name": each.name, "outcome": each.outcome} for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{len(self):,} incomplete, {sum(each.failed for each in self):,} failed"
