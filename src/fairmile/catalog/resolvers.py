"""Words that name assets or bytes: cards in files and folders, assets of the catalog, paths, addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.base.yaml import Located
from fairmile.catalog import OWN_IDS
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.lookup import NoSuchAsset
from fairmile.catalog.row import CatalogRow
from fairmile.resolve import RESOLVERS, Nouns, Resolver, Target, Word, read_document

CARD_OF_FOLDER = "card.jsonld"
# Most words are of no card in a file, and what checks one takes longer to load than a run to start.
_CHECKS: Registry[Callable[[Any], list[Problem]]] = Registry(
    "check", {"card": Plugin("fairmile.catalog.profile:check_body")}
)


def read_card(file: Path) -> Card:
    """Return the card that a file holds, checked."""
    return _checked_card(file, read_document(file))


def _checked_card(file: Path, located: Located) -> Card:
    body = located.data
    problems = [replace(each, file=str(file), line=located.line([each.field])) for each in _CHECKS["card"](body)]
    if errors := [each for each in problems if each.severity == "error"]:
        raise InvalidDocument(errors)
    return Card(body)


class _CardFile(Resolver):
    """A file with a card in it: YAML, JSON or JSON-LD with `@type` and no `argv`."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        located = word.located
        body = located.data if located is not None else None
        if located is None or not isinstance(body, Mapping) or "@type" not in body or "argv" in body:
            return None
        return Target(word.text, "card-file", path=word.path, load=lambda: _checked_card(word.path, located))


class _Folder(Resolver):
    """A folder with a card in it."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        file = word.path / CARD_OF_FOLDER
        return Target(word.text, "folder", path=file, load=lambda: read_card(file)) if file.is_file() else None


class _Path(Resolver):
    """Any file or folder of this machine, as bytes.

    A bare word that names an asset stays its name: records name inputs so, and what was fetched may lie in a folder
    of the same name.
    """

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if not word.is_path and nouns.catalog is not None and _rows(word, nouns.catalog()):
            return None
        return Target(word.text, "path", path=word.path, address=_absolute(word.path).as_uri())


def _absolute(path: Path) -> Path:
    """Return a path from the root on, without `..` unless a link makes that another place."""
    plain = Path(os.path.abspath(path))
    return plain if plain.exists() and plain.samefile(path) else path.absolute()


class _Address(Resolver):
    """An address of bytes."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        is_address = word.is_address and not word.text.startswith(OWN_IDS)
        return Target(word.text, "address", address=word.text) if is_address else None


class _HubAsset(Resolver):
    """An asset of a hub by its handle or page; where a catalog has its card, it is an asset of that catalog."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if nouns.catalog is None or not word.is_address or _rows(word, nouns.catalog()):
            return None
        catalog: Catalog = nouns.catalog()
        reference = catalog.hub_reference(word.text)
        if not reference:
            return None
        return Target(word.text, "hub", address=reference, load=lambda: catalog.hub_card(reference))


class _Asset(Resolver):
    """An asset of any catalog by name, handle, id, DOI or digest; the first one of `kind` where that is given."""

    def __init__(self, name: str, kind: str = "") -> None:
        self._name = name
        self._kind = kind

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if nouns.catalog is None:
            return None
        rows = _rows(word, nouns.catalog())
        row = next((row for row in rows if self._kind in ("", row.kind)), None)
        if row is None:
            return None
        others = tuple(each for each in rows if each is not row)
        return Target(word.text, self._name, handle=row.handle, row=row, others=others, load=_reader(word, nouns, row))

    def near(self, word: Word, nouns: Nouns) -> Sequence[str]:
        try:
            if nouns.catalog is not None:
                nouns.catalog().resolve(word.text, kind=self._kind or word.options.get("kind"))
        except NoSuchAsset as error:
            return error.near
        except (NotFound, UsageError):  # it cannot be a name
            pass
        return ()


def _rows(word: Word, catalog: Catalog) -> Sequence[CatalogRow]:
    """Return all that a word may mean in the catalog, the best first; it is looked up once for all resolvers."""
    if "rows" not in word.known:
        try:
            row, others = catalog.resolve(word.text, kind=word.options.get("kind"))
            word.known["rows"] = [row, *others]
        except (NotFound, UsageError) as error:
            if not isinstance(error, NoSuchAsset) and not word.is_address and not word.exists:
                raise
            word.known["rows"] = []
    rows: Sequence[CatalogRow] = word.known["rows"]
    return rows


def _reader(word: Word, nouns: Nouns, row: CatalogRow) -> Callable[[], Card]:
    """Return what reads the card of a row, once for all resolvers."""

    def read() -> Card:
        if row.handle not in word.known:
            assert nouns.catalog is not None
            word.known[row.handle] = nouns.catalog().read(row)
        card: Card = word.known[row.handle]
        return card

    return read


class _Imported(_Asset):
    """An asset whose card came from another format that has a resolver of its own, which knows how it is run."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        target = super().find(word, nouns)
        source = target.content.get("sourceDocument") if target is not None else None
        format = source.get("encodingFormat") if isinstance(source, Mapping) else None
        if target is None or format is None or format not in RESOLVERS:
            return None
        made: Target | None = RESOLVERS[format].of_asset(target, word, nouns)  # type: ignore[attr-defined]
        return made


CARD_FILE = _CardFile()
FOLDER = _Folder()
PATH = _Path()
ADDRESS = _Address()
HUB = _HubAsset()
ASSET = _Asset("asset")
BENCHMARK = _Asset("benchmark", "benchmark")
WORKFLOW = _Asset("workflow", "workflow")
IMPORTED = _Imported("asset")
