"""Digests of the installed files of an environment: written after a build, verified later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from fairmile.base.digest import ManifestEntry, merkle_root, parse_manifest, scan_tree
from fairmile.base.errors import Unsupported
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.envs.records import Environment

FILE = "files.tsv"
_BYTE_CODE = "__pycache__"


class VerifiedEnvironmentDict(TypedDict):
    name: str
    digest: str
    folder: str
    files: int
    tree: str
    ok: bool
    changed: list[str]
    missing: list[str]
    added: list[str]


class RepairedEnvironmentDict(VerifiedEnvironmentDict):
    rebuilt: bool
    dry_run: bool


@dataclass(frozen=True, repr=False)
class VerifiedEnvironment(Result):
    """How the installed files differ from those that were built; `tree` is the Merkle digest of the latter."""

    environment: Environment
    files: int
    tree: str
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.changed or self.missing or self.added)

    def to_dict(self) -> VerifiedEnvironmentDict:
        """Return the result as `fairmile env verify --json` prints it."""
        return {
            "name": self.environment.name,
            "digest": self.environment.digest,
            "folder": str(self.environment.folder),
            "files": self.files,
            "tree": self.tree,
            "ok": self.ok,
            "changed": list(self.changed),
            "missing": list(self.missing),
            "added": list(self.added),
        }

    def summary(self) -> str:
        """Return the name and how many files differ."""
        differing = len(self.changed) + len(self.missing) + len(self.added)
        return f"{self.environment.name}, {self.files} files, {differing} differ"


@dataclass(frozen=True, repr=False)
class RepairedEnvironment(Result):
    """What was wrong with an environment, and whether it was built again."""

    verified: VerifiedEnvironment
    rebuilt: bool = False
    dry_run: bool = False

    def to_dict(self) -> RepairedEnvironmentDict:
        """Return the result as `fairmile env repair --json` prints it."""
        return {**self.verified.to_dict(), "rebuilt": self.rebuilt, "dry_run": self.dry_run}

    def summary(self) -> str:
        """Return what was wrong and what was done."""
        return f"{self.verified.summary()}, {'rebuilt' if self.rebuilt else 'not rebuilt'}"


def installed_files(prefix: Path) -> list[ManifestEntry]:
    """Return the files below a prefix with their digests; byte code, which Python writes later, is left out."""
    return list(_without_byte_code(scan_tree(prefix, links_may_lead_out=True)))


def verify(environment: Environment) -> VerifiedEnvironment:
    """Compare the installed files with those that were built; each is read."""
    file = environment.folder / FILE
    if not file.is_file():
        raise Unsupported(
            f"the environment {environment.name} was built without digests of its files",
            hint=f"`fairmile env rm {environment.digest[:16]}`, then build it again",
        )
    entries = parse_manifest(file.read_text(encoding="utf-8"))
    built = {each.path: each for each in entries}
    here = {each.path: each for each in installed_files(environment.prefix)}
    return VerifiedEnvironment(
        environment,
        files=len(built),
        tree=merkle_root(entries),
        changed=tuple(path for path, entry in built.items() if path in here and here[path] != entry),
        missing=tuple(path for path in built if path not in here),
        added=tuple(path for path in here if path not in built),
    )


def _without_byte_code(entries: Iterator[ManifestEntry]) -> Iterator[ManifestEntry]:
    return (entry for entry in entries if _BYTE_CODE not in entry.path.split("/"))
