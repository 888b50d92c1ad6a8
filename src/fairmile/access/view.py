"""A catalog as somebody sees it: what they must not hear of is in none of its folders, and so not in its index.

Nothing about a hidden asset can leak through a search, a count, a facet, a suggestion or an error, since none of them
has ever read its card. Each set of hidden assets has an index of its own, built when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder, Stamp

_MOST_INDEXES = 16


@dataclass(frozen=True)
class VisibleFolder(CatalogFolder):
    """A catalog on disk without the assets that are hidden, each given as `kind/name`."""

    hidden: frozenset[str] = frozenset()

    def scan(self) -> Iterator[tuple[str, Stamp]]:
        return ((path, stamp) for path, stamp in super().scan() if path.rpartition("/")[0] not in self.hidden)

    def stamps(self, paths: Iterable[str]) -> Iterator[tuple[str, Stamp]]:
        return super().stamps(path for path in paths if path.rpartition("/")[0] not in self.hidden)

    def read(self, relative: str) -> Card:
        if relative.rpartition("/")[0] in self.hidden:
            raise NotFound("no such card")
        return super().read(relative)


class VisibleCatalog(Catalog):
    """All cards but the hidden ones, which are given as `catalog/kind/name`. It is for reading."""

    def __init__(self, home: Path, *, hidden: frozenset[str], **options: Any) -> None:
        super().__init__(home, **options)
        self._hidden = hidden

    def folders(self) -> list[CatalogFolder]:
        return [self._visible(folder) for folder in super().folders()]

    def _visible(self, folder: CatalogFolder) -> CatalogFolder:
        prefix = f"{folder.name}/"
        hidden = frozenset(asset.removeprefix(prefix) for asset in self._hidden if asset.startswith(prefix))
        return VisibleFolder(folder.name, folder.root, writable=False, hidden=hidden) if hidden else folder

    @property
    def index_path(self) -> Path:
        # An index that knew an asset before it was hidden would still suggest its words: another set, another file.
        digest = sha256("\n".join(sorted(self._hidden)).encode()).hexdigest()[:24]
        path = self.home / "access" / "indexes" / f"{digest}.sqlite"
        if not path.exists():
            _make_room(path.parent)
        return path


def _make_room(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = sorted(folder.glob("*.sqlite"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_MOST_INDEXES - 1 :]:
        path.unlink(missing_ok=True)
