"""The catalogs behind a view: what they are called, how the settings declare them, what their last sync left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.results import Result, Results
from fairmile.base.words import slug
from fairmile.catalog.folder import CatalogFolder

SourceType = Literal["folder", "git", "web"]
LOCAL = "local"
BUILTIN = "builtin"


class SourceSpec(NamedTuple):
    """A source as the settings declare it."""

    name: str
    location: str
    type: SourceType
    revision: str = ""


class SourceDict(TypedDict):
    name: str
    type: str
    location: str
    revision: NotRequired[str]
    synced_at: NotRequired[str]
    error: NotRequired[str]
    problems: NotRequired[list[str]]


class SyncDict(TypedDict):
    name: str
    location: str
    type: str
    revision: str
    cards: int
    changed: int
    removed: int
    skipped: int
    problems: list[str]
    error: str
    synced_at: str


class SyncReportsDict(TypedDict):
    sources: list[SyncDict]
    dry_run: bool


class AddedSourceDict(TypedDict):
    source: SyncDict
    dry_run: bool


@dataclass(repr=False)
class SyncReport:
    """What a sync of one source brought; `error` says why it failed, and then the last copy still serves."""

    name: str
    location: str
    type: str
    revision: str = ""
    cards: int = 0
    changed: int = 0
    removed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)
    error: str = ""
    synced_at: str = ""

    def facts(self) -> SyncDict:
        """Return the report as data."""
        return {
            "name": self.name,
            "location": self.location,
            "type": self.type,
            "revision": self.revision,
            "cards": self.cards,
            "changed": self.changed,
            "removed": self.removed,
            "skipped": self.skipped,
            "problems": self.problems,
            "error": self.error,
            "synced_at": self.synced_at,
        }

    def summary(self) -> str:
        if self.error:
            return f"{self.name} failed: {self.error}"
        return f"{self.name}, {self.cards:,} cards, {self.changed:,} changed, {self.removed:,} removed"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()[:150]}>"


class SyncReports(Results[SyncReport]):
    """What a sync of several sources brought."""

    def __init__(self, reports: Iterable[SyncReport] = (), dry_run: bool = False) -> None:
        super().__init__(reports)
        self.dry_run = dry_run

    def to_dict(self) -> SyncReportsDict:
        return {"sources": [each.facts() for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        failed = sum(bool(each.error) for each in self)
        return f"{len(self):,} sources, {failed:,} failed"


@dataclass(repr=False)
class AddedSource(SyncReport, Result):
    """A source that was added, or would be, and what its first sync brought."""

    dry_run: bool = False

    def to_dict(self) -> AddedSourceDict:
        return {"source": self.facts(), "dry_run": self.dry_run}


def index_path(home: Path) -> Path:
    """Return where the index of the catalog of a home lies, once somebody asked the catalog for a name."""
    return home / "index.sqlite"


def source_type(location: str) -> SourceType:
    """Guess what a location is: a git repository, a web address or a folder."""
    path = location.split("#")[0].rstrip("/")
    if path.endswith(".git") or path.startswith(("git@", "git+", "ssh://", "git://")) or (Path(path) / ".git").exists():
        return "git"
    return "web" if path.startswith(("http://", "https://")) else "folder"


def check_source_name(name: object) -> None:
    """Refuse what cannot name a source: the name becomes part of handles and the name of a folder."""
    if not isinstance(name, str) or slug(name) != name or name in (LOCAL, BUILTIN):
        raise UsageError(
            f"{name!r} cannot name a source", hint="lower-case letters, digits, dots and dashes; not local or builtin"
        )


def source_spec(name: str, settings: Any, *, origin: str = "") -> SourceSpec:
    """Read one source from the settings: a location, or a mapping with location, type and revision."""
    check_source_name(name)
    where = f"{origin} sources.{name}".strip()
    if isinstance(settings, str):
        settings = {"location": settings}
    location = settings.get("location") if isinstance(settings, Mapping) else None
    if not isinstance(location, str) or not location.strip():
        raise UsageError(
            f"{where}: expected a location or a mapping with `location`", hint="sources: {name: {location: https://…}}"
        )
    unknown = set(settings) - {"location", "type", "revision"}
    if unknown:
        raise UsageError(f"{where}: unknown key {sorted(unknown)[0]!r}", hint="known: location, type, revision")
    kind = settings.get("type") or source_type(location)
    if kind not in ("folder", "git", "web"):
        raise UsageError(f"{where}: no type named {kind!r}", hint="types: folder, git, web")
    location = location.removeprefix("git+") if kind == "git" else location
    revision = "" if settings.get("revision") is None else str(settings["revision"])
    if kind != "git" and settings.get("revision"):
        raise UsageError(f"{where}: a revision pins a git repository, not a {kind}", hint="leave the revision out")
    if location.startswith("-") or revision.startswith("-"):
        raise UsageError(f"{where}: a location or revision cannot start with a dash")
    return SourceSpec(name, location, kind, revision)


def state(folder: CatalogFolder) -> dict[str, Any]:
    """Return what the last sync left on record."""
    try:
        content: dict[str, Any] = json.loads((folder.root / "state.json").read_text(encoding="utf-8"))
        return content
    except (OSError, ValueError):
        return {}
