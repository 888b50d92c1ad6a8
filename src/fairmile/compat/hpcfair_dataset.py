"""`hpcfair.hpcfair_dataset` as published: list_datasets, get_metadata, search, list_supporting_files, load,
load_dataset, apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmile.catalog.access import LoadedAsset
from fairmile.compat.listing import get_listings
from fairmile.flows.pipelines import Applied
from fairmile.runs.record.values import Value
from fairmile.workspace import Workspace


def list_datasets() -> list[str]:
    """Return the names of all data sets."""
    return Workspace.open().datasets.list_datasets()


def get_metadata(name: str | Sequence[str]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the listing of one data set, or of each in a list."""
    return get_listings(Workspace.open().catalog, name, "dataset")


def search(pattern: str) -> list[str]:
    """Return the names of the data sets whose name or keywords match a regular expression."""
    return [hit.row.name for hit in Workspace.open().datasets.search(regex=pattern, limit=10_000) if not hit.row.gone]


def list_supporting_files(name: str) -> list[str]:
    """Return the scripts and files that belong to a data set."""
    return Workspace.open().datasets.list_supporting_files(name)


def load(name: str, *, fresh: bool = False) -> LoadedAsset:
    """Return a data set with its bytes: from the store where they are, else fetched; `fresh` fetches anew."""
    return Workspace.open().datasets.load(name, fresh=fresh)


def load_dataset(
    name: str, src_path: str | Path = "", dest_path: str | Path = "", *, fromPath: str | Path = "", fresh: bool = False
) -> Path:
    """Create the files of a data set in the folder `dest_path` and return it.

    They come from `src_path` (or `fromPath`), a folder, file or address, if it is given, else from where the catalog
    says. `fresh` fetches them anew.
    """
    folder = Path(dest_path or name.rpartition("/")[2])
    Workspace.open().assets.fetch([str(src_path or fromPath or name)], to=folder, fresh=fresh)
    return folder


def apply(name: str, path: str | Path, script: str, **arguments: Value) -> Applied:
    """Run a script on a data set in the folder `path`, with arguments that it declares, such as num_threads=4."""
    return Workspace.open().datasets.apply(name, script, to=path, **arguments)
