"""What is to be brought, and what came."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from functools import cached_property
from typing import Protocol

from fairmile.base.digest import Checksum, ManifestEntry, sha256_hex
from fairmile.base.errors import FairmileError, SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.store.files import Placed
from fairmile.transfer.remote import Remote


@dataclass(frozen=True)
class Item:
    """One file to bring, or all that an address leads to, and every place that offers it, the best first.

    `path` is where it stands in its asset. `unpack` replaces an archive by its members, which then stand below
    `into`; so do the files that a fetcher of whole folders brings. `about_bytes` is the size as somebody guessed it.
    """

    path: str
    sources: tuple[Remote, ...]
    size_bytes: int | None = None
    checksums: tuple[Checksum, ...] = ()
    unpack: bool = False
    into: str = ""
    about_bytes: int | None = None
    mode: int = 0o644

    @cached_property
    def sha256(self) -> str | None:
        return next((each.hex for each in self.checksums if each.algorithm == "sha256"), None)

    @cached_property
    def key(self) -> str:
        """Name of the place where the item is assembled: the same for everyone who wants the same bytes."""
        if self.sha256 is not None:
            return self.sha256
        return sha256_hex("\n".join(remote.address for remote in self.sources).encode("utf-8", "surrogateescape"))


@dataclass(frozen=True)
class Brought:
    """What an item turned out to be: the files it consists of, sorted or few, and how they came.

    The paths of `entries` are those below the item's folder `into`; `placed` has the whole ones.
    """

    item: Item
    sha256: str
    size_bytes: int
    entries: Collection[ManifestEntry]
    moved_bytes: int = 0
    notes: tuple[str, ...] = ()
    source: str = ""
    validator: str = ""

    @property
    def placed(self) -> Collection[ManifestEntry]:
        return Placed(self.item.into, self.entries) if self.item.into else self.entries


@dataclass(frozen=True)
class Failure:
    """An item that could not be brought, and why."""

    item: Item
    error: FairmileError


class Watcher(Protocol):
    """Sees how a transfer gets on; called from many threads."""

    def begin(self, what: str, total_bytes: int, is_estimate: bool) -> None:
        """A transfer of so many bytes begins."""
        ...

    def bytes(self, count: int) -> None:
        """So many bytes more have arrived."""
        ...

    def item(self, done: int, total: int) -> None:
        """So many items of all are complete."""
        ...

    def note(self, text: str) -> None:
        """Something a person should know: a source failed, another process is at it."""
        ...


@dataclass
class Silent:
    """A watcher that only counts."""

    moved_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def begin(self, what: str, total_bytes: int, is_estimate: bool) -> None:
        return None

    def bytes(self, count: int) -> None:
        self.moved_bytes += count

    def item(self, done: int, total: int) -> None:
        return None

    def note(self, text: str) -> None:
        self.notes.append(text)


def check_path(path: str, where: str) -> str:
    """Return a path that is safe below any folder, or raise UsageError that names where it stands."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise UsageError(f"{where}: {path!r} is not a plain path", hint="expected names separated by '/', without '..'")
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise SystemFailure(f"{where}: a name in {path[:60]!r}… is longer than 255 bytes", hint="choose a shorter one")
    return path
