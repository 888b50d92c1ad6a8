"""What the catalog returns: search results, resolved and changed cards, verdicts on files, exported documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fairmile.base.errors import ErrorDict, FairmileError, Problem
from fairmile.base.html_tables import fields_table, rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.catalog.card import Card
from fairmile.catalog.declared import SourceDict
from fairmile.catalog.row import CatalogRow, SummaryDict

# Searching


class OthersDict(TypedDict, total=False):
    also_in: list[str]
    clash: bool


class HitDict(SummaryDict, OthersDict):
    handle: str
    id: str
    kind: str
    name: str
    version: str
    catalog: str
    uses: int


@dataclass(frozen=True, repr=False)
class Hit(Result):
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

    def to_dict(self) -> HitDict:
        row = self.row
        others: OthersDict = {"also_in": list(self.also), "clash": self.clash} if self.also else {}
        return {
            "handle": row.handle,
            "id": row.iri,
            "kind": row.kind,
            "name": row.title,
            "version": row.version,
            "catalog": row.catalog,
            "uses": row.uses,
            **row.summary,
            **others,
        }

    def summary(self) -> str:
        return self.handle


class SearchDict(TypedDict):
    results: list[HitDict]
    did_you_mean: list[str]
    broader: list[str]
    outdated: bool


class SearchResult(Results[Hit]):
    """The hits of a search, and what to try when there are none.

    `did_you_mean` has the nearest words, and `broader` the searches with one condition less that have hits.
    `outdated` says that newer cards may be missing: the index could not be brought up to date here.
    """

    columns = ("handle", "name", "description", "licence", "domains", "tasks")

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        did_you_mean: Sequence[str] = (),
        broader: Sequence[str] = (),
        *,
        outdated: bool = False,
    ) -> None:
        super().__init__(hits)
        self.did_you_mean = tuple(did_you_mean)
        self.broader = tuple(broader)
        self.outdated = outdated

    def to_dict(self) -> SearchDict:
        return {
            "results": [hit.to_dict() for hit in self],
            "did_you_mean": list(self.did_you_mean),
            "broader": list(self.broader),
            "outdated": self.outdated,
        }

    def summary(self) -> str:
        if not self:
            near = f"; did you mean {', '.join(self.did_you_mean)}?" if self.did_you_mean else ""
            return f"no asset matches{near}"
        more = f" and {len(self) - 3:,} more" if len(self) > 3 else ""
        return ", ".join(f"{hit.kind}/{hit.row.name}" for hit in self[:3]) + more


class FacetDict(TypedDict):
    facet: str
    values: dict[str, int]


class FacetValues(dict[str, int], Result):
    """The values of a field, and how many cards have each."""

    def __init__(self, facet: str, values: Mapping[str, int]) -> None:
        super().__init__(values)
        self.facet = facet

    def to_dict(self) -> FacetDict:
        return {"facet": self.facet, "values": dict(self)}

    def summary(self) -> str:
        more = ", …" if len(self) > 3 else ""
        return f"{self.facet}: {', '.join(f'{value} ({cards})' for value, cards in list(self.items())[:3])}{more}"

    __repr__ = Result.__repr__


# Cards


class CardDict(TypedDict):
    handle: str
    digest: str
    card: dict[str, Any]
    also: list[str]


class ResolvedCard(Card, Result):
    """The card that a name resolved to; `others` are the cards that the name could mean as well."""

    def __init__(
        self,
        card: Card,
        others: Sequence[CatalogRow] = (),
        fair_score: Callable[[], float] | None = None,
        *,
        origin: str = "",
    ) -> None:
        super().__init__(card.body, catalog=card.catalog)
        self.origin = origin or str(self.handle)  # a handle, or the path of a file that no catalog has
        self.others = tuple(others)
        self._fair_score = fair_score

    def to_dict(self) -> CardDict:
        return {
            "handle": self.origin,
            "digest": self.digest,
            "card": self.body,
            "also": [row.handle for row in self.others],
        }

    def _repr_html_(self) -> str:
        score = {"FAIR score": f"{self._fair_score():.0f} of 100"} if self._fair_score is not None else {}
        return fields_table(self.overview() | score)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fair_score": None}  # which holds the catalog


class DocumentDict(TypedDict):
    handle: str
    document: str


@dataclass(frozen=True, repr=False)
class SourceDocument(Result):
    """The document that a card was imported from, byte for byte."""

    handle: str
    data: bytes

    def to_dict(self) -> DocumentDict:
        return {"handle": self.handle, "document": self.data.decode("utf-8", "replace")}

    def summary(self) -> str:
        return f"{len(self.data):,} bytes from which {self.handle} was imported"


class VersionDict(TypedDict):
    version: str
    handle: str
    id: str
    digest: str
    removed: bool


class VersionsDict(TypedDict):
    versions: list[VersionDict]


class Versions(Results[CatalogRow]):
    """Every version of an asset, newest first, removed ones last."""

    columns = ("version", "handle", "removed")

    def to_dict(self) -> VersionsDict:
        return {
            "versions": [
                {
                    "version": row.version,
                    "handle": row.handle,
                    "id": row.iri,
                    "digest": row.digest,
                    "removed": bool(row.gone),
                }
                for row in self
            ]
        }

    def summary(self) -> str:
        return ", ".join(row.version for row in self)


# Changing


class AddedDict(TypedDict):
    file: str
    handle: str
    status: str
    warnings: list[dict[str, str]]
    stands_as: str
    because: str


class FailedFileDict(ErrorDict):
    file: str


class AdditionsDict(TypedDict):
    cards: list[AddedDict]
    dry_run: bool
    failed: NotRequired[list[FailedFileDict]]
    error: NotRequired[ErrorDict]


@dataclass(frozen=True, repr=False)
class Added(Result):
    """What became of one card: `added`, or `present` when it was there already.

    `stands_as` then says under which handle, and `because` what is the same: card, content or source.
    """

    handle: str
    status: str
    warnings: list[dict[str, str]]
    stands_as: str = ""
    because: str = ""
    file: str = ""

    def to_dict(self) -> AddedDict:
        return {
            "file": self.file,
            "handle": self.handle,
            "status": self.status,
            "warnings": self.warnings,
            "stands_as": self.stands_as,
            "because": self.because,
        }

    def summary(self) -> str:
        return f"{self.status} {self.handle}"


@dataclass(frozen=True)
class FailedFile:
    """A file that could not be added, and why."""

    file: str
    error: FairmileError


class Additions(Results[Added]):
    """What became of each card that was to be added; `failed` lists the files that could not be."""

    def __init__(self, cards: Iterable[Added] = (), failed: Sequence[FailedFile] = (), dry_run: bool = False) -> None:
        super().__init__(cards)
        self.failed = tuple(failed)
        self.dry_run = dry_run

    @property
    def exit_code(self) -> int:
        return self.failed[-1].error.exit_code if self.failed else 0

    def to_dict(self) -> AdditionsDict:
        data: AdditionsDict = {"cards": [each.to_dict() for each in self], "dry_run": self.dry_run}
        if self.failed:
            data["failed"] = [{"file": each.file, **each.error.to_dict()} for each in self.failed]
            data["error"] = self.failed[-1].error.to_dict()
        return data

    def summary(self) -> str:
        added = sum(each.status == "added" for each in self)
        failed = f", {len(self.failed):,} failed" if self.failed else ""
        return f"{added:,} added, {len(self) - added:,} present{failed}"


class UpdateDict(TypedDict):
    handle: str
    card: dict[str, Any]
    dry_run: bool


class UpdatedCard(Card, Result):
    """A card as an update wrote it, or would."""

    def __init__(self, card: Card, *, dry_run: bool) -> None:
        super().__init__(card.body, catalog=card.catalog)
        self.dry_run = dry_run

    def to_dict(self) -> UpdateDict:
        return {"handle": str(self.handle), "card": self.body, "dry_run": self.dry_run}


class RemovalDict(TypedDict):
    handle: str
    tombstone: dict[str, Any]
    dry_run: bool


class RemovedCard(Card, Result):
    """A card that was removed, or would be, with its tombstone."""

    def __init__(self, card: Card, *, dry_run: bool) -> None:
        super().__init__(card.body, catalog=card.catalog)
        self.dry_run = dry_run

    def to_dict(self) -> RemovalDict:
        return {"handle": str(self.handle), "tombstone": self["tombstone"], "dry_run": self.dry_run}


# Checking and exchange


class CheckedProblemDict(TypedDict):
    severity: str
    field: str
    line: int | None
    message: str
    hint: str


class CheckedDict(TypedDict):
    file: str
    ok: bool
    handles: list[str]
    problems: list[CheckedProblemDict]


class CheckedFilesDict(TypedDict):
    files: list[CheckedDict]


@dataclass(frozen=True, repr=False)
class Checked(Result):
    """The verdict on one file."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)

    def to_dict(self) -> CheckedDict:
        problems: list[CheckedProblemDict] = [
            {
                "severity": each.severity,
                "field": each.field,
                "line": each.line,
                "message": each.message,
                "hint": each.hint,
            }
            for each in self.problems
        ]
        return {"file": self.file, "ok": self.ok, "handles": self.handles, "problems": problems}

    def summary(self) -> str:
        return f"{self.file} is {'valid' if self.ok else 'not valid'}, {len(self.problems):,} problems"


class CheckedFiles(Results[Checked]):
    """The verdicts on several files."""

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self)

    def to_dict(self) -> CheckedFilesDict:
        return {"files": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return f"{sum(each.ok for each in self):,} of {len(self):,} files valid"

    def _repr_html_(self) -> str:
        rows = [(each.file, problem.severity, str(problem)) for each in self for problem in each.problems]
        return rows_table(["file", "severity", "problem"], rows, note=self.summary())


class ExportDict(TypedDict):
    format: str
    written: list[str]
    documents: dict[str, str]
    dry_run: bool


class ExportedDocuments(dict[str, str], Result):
    """The documents that describe an asset in a foreign format, by file name; `paths` are those that were written."""

    def __init__(self, format: str, documents: Mapping[str, str], target: Path | None, *, dry_run: bool) -> None:
        super().__init__(documents)
        self.format = format
        self.paths = [target / file for file in documents] if target is not None else []
        self.dry_run = dry_run

    def to_dict(self) -> ExportDict:
        return {
            "format": self.format,
            "written": [str(path) for path in self.paths],
            "documents": dict(self),
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.format}: {', '.join(map(str, self.paths or self))}"

    __repr__ = Result.__repr__


class PublicationDict(TypedDict):
    cards: int
    folder: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class Publication(Result):
    """A catalog written as a folder for a web server."""

    cards: int
    folder: Path
    dry_run: bool

    def to_dict(self) -> PublicationDict:
        return {"cards": self.cards, "folder": str(self.folder), "dry_run": self.dry_run}

    def summary(self) -> str:
        return f"{self.cards:,} cards in {self.folder}"


# Sources


class SourceRemovalDict(TypedDict):
    removed: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class SourceRemoval(Result):
    """A source that was removed, or would be."""

    name: str
    dry_run: bool

    def to_dict(self) -> SourceRemovalDict:
        return {"removed": self.name, "dry_run": self.dry_run}


class CatalogDict(SourceDict):
    cards: int
    clashes: list[str]


class CatalogsDict(TypedDict):
    catalogs: list[CatalogDict]


class Catalogs(Results[CatalogDict]):
    """Every catalog in order of precedence, with its state and its clashes with those before it."""

    def to_dict(self) -> CatalogsDict:
        return {"catalogs": list(self)}

    def summary(self) -> str:
        return ", ".join(f"{each['name']} ({each['cards']:,} cards)" for each in self)
