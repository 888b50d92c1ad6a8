"""What the catalog answers: search results, what was added, verdicts on files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairmile.base.errors import Problem
from fairmile.catalog.row import CatalogRow


@dataclass(frozen=True)
class Hit:
    """One search result; `also` names other catalogs with the same asset, marked where their card differs."""

    row: CatalogRow
    also: tuple[str, ...] = ()
    clash: bool = False

    @property
    def handle(self) -> str:
        return self.row.handle

    @property
    def iri(self) -> str:
        return self.row.iri

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def title(self) -> str:
        return self.row.title

    def to_dict(self) -> dict[str, Any]:
        """Return the result as data."""
        row = self.row
        facts: dict[str, Any] = {
            "handle": row.handle,
            "id": row.iri,
            "kind": row.kind,
            "name": row.title,
            "version": row.version,
        }
        facts |= {"catalog": row.catalog, "uses": row.uses, **row.summary}
        return facts | ({"also_in": list(self.also), "clash": self.clash} if self.also else {})


@dataclass(frozen=True)
class SearchResult(Sequence[Hit]):
    """The hits of a search, and what to try when there are none.

    `outdated` says that newer cards may be missing: the index could not be brought up to date here.
    """

    hits: tuple[Hit, ...]
    did_you_mean: tuple[str, ...] = ()
    outdated: bool = False

    def __getitem__(self, place: Any) -> Any:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)


class Added(NamedTuple):
    """What became of one card: `added`, or `present` when it was there already.

    `stands_as` then says under which handle, and `because` what is the same: card, content or source.
    """

    handle: str
    status: str
    warnings: list[dict[str, str]]
    stands_as: str = ""
    because: str = ""


@dataclass(frozen=True)
class Checked:
    """The verdict on one file."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)
