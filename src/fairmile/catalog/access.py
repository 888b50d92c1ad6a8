"""An asset with its bytes: its folder, its files, and their content as plain data or Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.base.words import did_you_mean
from fairmile.catalog import array_files as arrays
from fairmile.catalog import tables
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.common.media_types import extension, media_type
from fairmile.store.store import Store

if TYPE_CHECKING:
    import pyarrow

_LINK_MODE = 0o120000
_MOST_NAMES_SHOWN = 8
_PICKLES = frozenset({"ckpt", "joblib", "pickle", "pk", "pkl", "pt", "pth"})


@dataclass(frozen=True)
class AssetFile:
    """One file of an asset; asking for its path lays the asset's folder."""

    name: str
    size_bytes: int
    sha256: str
    media_type: str | None
    _asset: LoadedAsset = field(repr=False, compare=False)

    @property
    def path(self) -> Path:
        """The file in the asset's folder; it is read-only."""
        return self._asset.path / self.name


class LoadedAsset(Result):
    """An asset with its bytes; `folder` names the folder that its files go to when a path is first asked for."""

    rows_field = "files"

    def __init__(self, card: Card, root: str, store: Store, folder: Callable[[], Path]) -> None:
        self.card = card
        self.root = root
        self._store = store
        self._folder = folder

    def to_dict(self) -> dict[str, Any]:
        names = ("name", "size_bytes", "sha256", "media_type")
        files = [{name: getattr(file, name) for name in names} for file in self.files]
        return {"handle": str(self.card.handle), "root": self.root, "files": files}

    def summary(self) -> str:
        size = format_size(sum(file.size_bytes for file in self.files))
        return f"{self.card.handle}, {len(self.files):,} file{'s' * (len(self.files) != 1)}, {size}"

    def _repr_html_(self) -> str:
        return Results(self._rows())._repr_html_()

    def __fspath__(self) -> str:
        return str(self.path)

    @cached_property
    def path(self) -> Path:
        """The folder with the asset's files, which are read-only."""
        folder = self._folder()
        self._store.materialize(self.root, folder, is_cache=True)
        return folder

    @cached_property
    def files(self) -> list[AssetFile]:
        """Every file with its name within the asset, size, sha256 and media type; symbolic links are left out."""
        stated = {file.name: file.media_type for file in self.card.files}
        return [
            AssetFile(
                entry.path, entry.size_bytes, entry.sha256, stated.get(entry.path) or media_type(entry.path), self
            )
            for entry in self._store.tree(self.root)
            if entry.mode != _LINK_MODE
        ]

    def file(self, name: str) -> Path:
        """Return the path of one file; NotFound names the nearest."""
        return self._named(name).path

    def attributes(self, name: str | None = None) -> dict[str, Any]:
        """Return what an HDF5 or NetCDF file says of itself: attributes, and each data set's shape and type.

        The name may be left out where the asset has one such file. Long values are shortened, and `complete` is
        false when the file holds more data sets than are listed.
        """
        file = self._chosen(name, arrays.is_described, "HDF5 or NetCDF file")
        return arrays.describe(self._readable(file), file.name)

    def table(self, name: str | None = None, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return a file as an Arrow table, mapped into memory where its format allows.

        CSV, TSV, JSON lines, Parquet, Feather and Arrow files are tables. Of an .npz, HDF5 or NetCDF file each
        array of one or two dimensions is a column, named by its path, and so is an .npy file, called `values`;
        the rows of two-dimensional ones are lists. All columns must be equally long: choose such by `columns`.
        The name may be left out where the asset has one such file. Pickles are never loaded.
        """
        file = self._chosen(name, tables.is_table, "table")
        return tables.read(self._readable(file), file.name, columns)

    def batches(
        self, name: str | None = None, columns: Sequence[str] | None = None, *, rows: int = 65_536
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield a file as Arrow record batches of at most `rows` rows, in bounded memory; else as `table` does."""
        if rows < 1:
            raise UsageError(f"rows is {rows}, expected at least 1")
        file = self._chosen(name, tables.is_table, "table")
        return tables.batches(self._readable(file), file.name, columns, rows)

    def _named(self, name: str) -> AssetFile:
        for file in self.files:
            if file.name == name:
                return file
        names = [file.name for file in self.files]
        near = did_you_mean(name, names)
        raise NotFound(
            f"{self.card.handle} has no file {name!r}" + (f"; {near}" if near else ""), hint=f"it has {_some(names)}"
        )

    def _chosen(self, name: str | None, suits: Callable[[str], bool], what: str) -> AssetFile:
        """Return the file of that name, or the only one that suits."""
        if name is not None:
            file = self._named(name)
            if not suits(name):
                raise _no_such_content(file, what)
            return file
        fitting = [file for file in self.files if suits(file.name)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and len(self.files) == 1:
            raise _no_such_content(self.files[0], what)
        if not fitting:
            raise NotFound(
                f"{self.card.handle} has no {what}", hint=f"it has {_some([file.name for file in self.files])}"
            )
        raise UsageError(
            f"{self.card.handle} has {len(fitting):,} files of this kind ({what})",
            hint=f"name one of {_some([file.name for file in fitting])}",
        )

    def _readable(self, file: AssetFile) -> Path:
        """Return where the bytes of a file can be read: in the store, or in the folder when they are packed there."""
        return self._store.path(file.sha256) or file.path


def _no_such_content(file: AssetFile, what: str) -> Unsupported:
    if extension(file.name) in _PICKLES:
        return Unsupported(
            f"{file.name} is a pickle, which can run any code when loaded, so Fairmile does not load it",
            hint=f"if you trust it, load it yourself; .file({file.name!r}) returns its path",
        )
    return Unsupported(
        f"cannot read {file.name} as {what}: unsupported format", hint=f".file({file.name!r}) returns its path"
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES_SHOWN
    return ", ".join(names[:_MOST_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "") if names else "no file"
