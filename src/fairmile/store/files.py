"""Files of trees as collections that are read as they are asked for: nobody holds a million of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from fairmile.base.digest import ManifestEntry
from fairmile.store.listing import Listing


def total_bytes(entries: Collection[ManifestEntry]) -> int:
    """Return the sizes of all files together."""
    if isinstance(entries, Placed):
        return total_bytes(entries.entries)
    if isinstance(entries, Listing):
        return entries.total_bytes()
    return sum(entry.size_bytes for entry in entries)


class Stored(Collection[ManifestEntry]):
    """The files of a tree that lies in the store."""

    def __init__(self, root: str, files: int, read: Callable[[str], Iterable[ManifestEntry]]) -> None:
        self.root = root
        self._files = files
        self._read = read

    def __len__(self) -> int:
        return self._files

    def __iter__(self) -> Iterator[ManifestEntry]:
        return iter(self._read(self.root))

    def __contains__(self, entry: object) -> bool:
        return any(entry == each for each in self)


class Placed(Collection[ManifestEntry]):
    """Files below a folder."""

    def __init__(self, into: str, entries: Collection[ManifestEntry]) -> None:
        self.into = into
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[ManifestEntry]:
        return (replace(entry, path=f"{self.into}/{entry.path}") for entry in self.entries)

    def __contains__(self, entry: object) -> bool:
        return any(entry == each for each in self)


class Together(Collection[ManifestEntry]):
    """Several collections, one after the other."""

    def __init__(self, parts: Sequence[Collection[ManifestEntry]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[ManifestEntry]:
        return chain.from_iterable(self.parts)

    def __contains__(self, entry: object) -> bool:
        return any(entry in part for part in self.parts)
