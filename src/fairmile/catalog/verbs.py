"""The verbs of each noun: list, look up, search, load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy
from fairmile.base.nouns import Noun
from fairmile.base.progress import TransferProgress, Watch, watching
from fairmile.catalog.access import LoadedAsset
from fairmile.catalog.assets import Assets
from fairmile.catalog.card import as_list, id_of
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.results import SearchResult

if TYPE_CHECKING:
    from fairmile.catalog.converting.convert import convert
    from fairmile.catalog.converting.results import ConvertedData
else:
    convert = lazy("fairmile.catalog.converting.convert:convert")

_ALL = 1_000_000


class _Kind(Noun):
    """What every kind of asset can be asked."""

    kind: str

    def __init__(self, catalog: Catalog, assets: Assets) -> None:
        self._catalog = catalog
        self._assets = assets

    def _list(self) -> list[str]:
        return sorted(hit.row.name for hit in self._catalog.find(self.kind, limit=_ALL) if not hit.row.gone)

    def get_metadata(self, name: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the JSON-LD description of one asset, or of each in a list."""
        if isinstance(name, str):
            return dict(self._catalog.get(name, kind=self.kind))
        return [dict(self._catalog.get(each, kind=self.kind)) for each in name]

    def load(
        self,
        name: str,
        *,
        fresh: bool = False,
        pool: str | None = None,
        access_granted: bool = False,
        progress: bool | Watch = True,
    ) -> LoadedAsset:
        """Return an asset with its files, and fetch them unless the store has them; `fresh` fetches again.

        With `access_granted` you confirm that you may have what its card declares restricted. See `fm.fetch` for
        `progress`.
        """
        options: dict[str, Any] = {"fresh": fresh, "pool": pool, "access_granted": access_granted}
        with watching(progress) as watch:
            watcher = TransferProgress(watch) if watch is not None else None
            return self._assets.load(name, kind=self.kind, watcher=watcher, **options)

    def search(
        self, text: str = "", *, tags: Sequence[str] = (), regex: str | None = None, limit: int = 20
    ) -> SearchResult:
        """Return the assets of this kind that match words, every tag and a regular expression on names."""
        return self._catalog.search(text, kind=self.kind, tags=tags, regex=regex, limit=limit)


class Models(_Kind):
    """Models of every catalog."""

    kind = "model"

    def list_models(self) -> list[str]:
        """Return the names of all models."""
        return self._list()


class Datasets(_Kind):
    """Data sets of every catalog."""

    kind = "dataset"

    def list_datasets(self) -> list[str]:
        """Return the names of all data sets."""
        return self._list()

    def convert(
        self,
        name: str | Path,
        to: str,
        *,
        out: str | Path | None = None,
        file: str = "",
        arrays: Sequence[str] = (),
        lossy: bool = False,
        replace: bool = False,
        dry_run: bool = False,
    ) -> ConvertedData:
        """Convert a data set to another format, read it back, and publish it with a card if every value is the same.

        `name` is a file, a Zarr folder, or a data set of the catalog, of whose files `file` chooses one. `to` is npy,
        hdf5, netcdf, zarr, tfrecord, parquet or csv. `arrays` chooses arrays or columns. Memory stays bounded: files
        are read and written in blocks. `lossy` rounds 64-bit floats where the format has only 32-bit ones.
        """
        how: dict[str, Any] = {"arrays": arrays, "lossy": lossy, "replace": replace, "dry_run": dry_run}
        target = Path(out) if out is not None else None
        if Path(name).exists():
            return convert(self._catalog, Path(name), to, target, origin=None, **how)
        loaded = self.load(str(name))
        names = [each.name for each in loaded.files]
        if file not in names and (file or len(names) != 1):
            shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
            said = f"has no file {file!r}" if file else f"has {len(names):,} files"
            raise UsageError(f"{loaded.card.handle} {said}", hint=f"choose with --file: {shown}")
        source = loaded.path / (file or names[0])
        return convert(self._catalog, source, to, target, origin=loaded.card, **how)

    def list_supporting_files(self, name: str) -> list[str]:
        """Return the programs and scripts that belong to a data set, and its files."""
        card = self._catalog.get(name, kind=self.kind)
        parts = [text for value in as_list(card.get("hasPart")) if (text := id_of(value))]
        return list(dict.fromkeys([*parts, *(file.name for file in card.files)]))


class Workflows(_Kind):
    """Workflows of every catalog."""

    kind = "workflow"

    def list_workflows(self) -> list[str]:
        """Return the names of all workflows."""
        return self._list()
