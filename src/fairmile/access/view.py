"""A catalog as somebody sees it: what they must not hear of is in none of its folders, and so not in its index.

Nothing about a hidden asset can leak through a search, a count, a facet, a suggestion or an error, since none of them
has ever read its card; and no card that they may see is read with a link to it. Each set of hidden assets has an index
of its own, built when it is first needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.catalog.card import LINKS, Card, as_list, id_of
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.folder import CatalogFolder, Stamp
from fairmile.catalog.identity import Handle
from fairmile.catalog.row import target_names

_MOST_INDEXES = 16
_FORM = "2"  # of these indexes: another one stands for others


@dataclass(frozen=True)
class VisibleFolder(CatalogFolder):
    """A catalog on disk without the assets that are hidden, nor links to them."""

    whole: CatalogFolder = field(kw_only=True)
    hidden: frozenset[str] = frozenset()  # folders of assets: `kind/name`
    unnamed: frozenset[str] = frozenset()  # by which a link would name an asset that is hidden

    def generation(self) -> str:
        return self.whole.generation()

    def relative_path(self, handle: Handle) -> str:
        return self.whole.relative_path(handle)

    def scan(self) -> Iterator[tuple[str, Stamp]]:
        return ((path, stamp) for path, stamp in self.whole.scan() if not self._hides(path))

    def stamps(self, paths: Iterable[str]) -> Iterator[tuple[str, Stamp]]:
        return self.whole.stamps(path for path in paths if not self._hides(path))

    def read(self, relative: str) -> Card:
        if self._hides(relative):
            raise NotFound("no such card")
        return _without_links(self.whole.read(relative), self.unnamed)

    def _hides(self, relative: str) -> bool:
        return relative.rpartition("/")[0] in self.hidden


class VisibleCatalog(Catalog):
    """All cards but the hidden ones, which are given as `catalog/kind/name`. It is for reading."""

    def __init__(self, home: Path, *, hidden: frozenset[str], **options: Any) -> None:
        super().__init__(home, **options)
        self._hidden = hidden
        self._names: dict[str, tuple[str, frozenset[str]]] = {}  # of the hidden assets of a catalog, and its generation

    def folders(self) -> list[CatalogFolder]:
        whole = super().folders()
        hidden = {folder.name: self._of(folder) for folder in whole}
        unnamed = frozenset[str]().union(*(self._names_of(folder, hidden[folder.name]) for folder in whole))
        return [
            VisibleFolder(
                folder.name,
                folder.root,
                whole=folder,
                hidden=frozenset(_place(folder, asset) for asset in hidden[folder.name]),
                unnamed=unnamed,
            )
            for folder in whole
        ]

    def _of(self, folder: CatalogFolder) -> frozenset[str]:
        """Return the hidden assets of a catalog, each as `kind/name`."""
        prefix = f"{folder.name}/"
        return frozenset(asset.removeprefix(prefix) for asset in self._hidden if asset.startswith(prefix))

    def _names_of(self, folder: CatalogFolder, hidden: Collection[str]) -> frozenset[str]:
        """Return every text by which a link names one of the hidden assets of a catalog."""
        if not hidden:
            return frozenset()
        generation, names = self._names.get(folder.name, ("", frozenset[str]()))
        if not names or generation != folder.generation():
            generation = folder.generation()
            places = [_place(folder, asset) for asset in hidden]
            files = [file for place in places for file in (folder.cards_root / place).glob("*.json*")]
            cards = (folder.read(f"{file.parent.parent.name}/{file.parent.name}/{file.name}") for file in files)
            known = {name for asset in hidden for name in (asset, f"{folder.name}/{asset}", asset.partition("/")[2])}
            names = frozenset(known.union(*map(target_names, cards)))
            self._names[folder.name] = generation, names
        return names

    @property
    def index_path(self) -> Path:
        # An index that knew an asset before it was hidden would still suggest its words: another set, another file.
        digest = sha256("\n".join((_FORM, *sorted(self._hidden))).encode()).hexdigest()[:24]
        path = self.home / "access" / "indexes" / f"{digest}.sqlite"
        if not path.exists():
            _make_room(path.parent)
        return path


def _place(folder: CatalogFolder, asset: str) -> str:
    """Return the folder of the cards of an asset, which is given as `kind/name`, as paths of a catalog state it."""
    kind, _, name = asset.partition("/")
    return folder.relative_path(Handle(folder.name, kind, name, "0")).rpartition("/")[0]


def _without_links(card: Card, unnamed: Collection[str]) -> Card:
    if not unnamed:
        return card
    body = _pruned(card.body, unnamed)
    return Card(body, catalog=card.catalog) if body != card.body else card


def _pruned(value: Any, unnamed: Collection[str]) -> Any:
    """Return a JSON-LD value without the links that name something, however deep."""
    if isinstance(value, list):
        return [_pruned(each, unnamed) for each in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, each in value.items():
        targets = as_list(each) if key in LINKS else []
        rest = [target for target in targets if not _names(target, unnamed)]
        if not targets or rest:
            kept[key] = _pruned(each if len(rest) == len(targets) else rest, unnamed)
    return kept


def _names(target: Any, unnamed: Collection[str]) -> bool:
    text = id_of(target)
    return text is not None and (text in unnamed or text.rpartition("@")[0] in unnamed)


def _make_room(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = sorted(folder.glob("*.sqlite"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_MOST_INDEXES - 1 :]:
        path.unlink(missing_ok=True)
