"""Screens in CANDLE's pre-staged form: tables of pandas in HDF5, in which each pair repeats its features.

Only the features of each cell line and each drug are kept, not those of each pair: megabytes instead of gigabytes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fairmile.base.errors import Integrity, MissingExtra, NotFound, UsageError
from fairmile.benchmarks.suite.uno.screens import Screen

Array = np.ndarray[Any, Any]
PARTS = ("train", "val", "test")
_TARGET, _CELL, _DRUG = "AUC", "Sample", "Drug1"
_ROWS = 4096  # read at a time
_TEXT = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "STRING", "SHORT_BINSTRING", "BINSTRING")  # of pickles
_BLOSC = "32001"  # the number of this filter, which pandas' files mostly have and HDF5 itself does not


def read_screen(path: Path) -> Screen:
    """Read the published file, or the folder that holds it."""
    if path.is_dir():
        files = sorted(path.glob("*.h5")) or sorted(path.rglob("*.h5"))
        if not files:
            raise NotFound(f"{path} holds no .h5 file", hint="expected top_21_auc_1fold.uno.h5")
        path = files[0]
    try:
        with h5py.File(path) as file:
            parts = [(number, part) for number, part in enumerate(PARTS) if f"y_{part}" in file]
            if not parts or parts[0][0]:
                raise UsageError(f"{path}: no table 'y_train'; found {', '.join(file)[:120] or 'nothing'}")
            return _read_parts(path, file, parts)
    except OSError as error:
        raise Integrity(f"{path} cannot be read as HDF5: {error}", hint="fetch it again") from error


def _read_parts(path: Path, file: h5py.File, parts: list[tuple[int, str]]) -> Screen:
    auc, names, part = [], [], []
    for number, name in parts:
        columns = _responses(path, file, f"y_{name}")
        auc.append(columns[_TARGET].astype(np.float32))
        names.append(np.stack([columns[_CELL].astype("S"), columns[_DRUG].astype("S")]))
        part.append(np.full(len(auc[-1]), number, np.int8))
    joined, rows = np.concatenate(names, axis=1), np.concatenate(part)
    if not np.isfinite(values := np.concatenate(auc)).all():
        raise UsageError(f"{path}: {_TARGET} has values that are not numbers")
    features, numbers = [], []
    for axis in range(2):
        known, first, of_row = np.unique(joined[axis], return_index=True, return_inverse=True)
        tables = [f"x_{name}_{axis}" for _, name in parts]
        starts = np.cumsum([0, *(len(each) for each in auc)])
        features.append(np.concatenate(list(_rows(path, file, tables, starts, np.sort(first)))))
        order = np.empty(len(known), np.int64)
        order[np.argsort(first)] = np.arange(len(known))
        numbers.append(order[of_row])
    return Screen(features[0], features[1], numbers[0], numbers[1], values, rows)


def _rows(path: Path, file: h5py.File, tables: list[str], starts: Array, wanted: Array) -> Iterator[Array]:
    """Yield the features in these rows of all parts, which rise; each table is read once, from front to back."""
    for name, start, stop in zip(tables, starts, starts[1:], strict=False):
        table = _table(path, file, name)
        if len(table) != stop - start:
            raise Integrity(f"{path}: {name} has {len(table)} rows, expected {stop - start}", hint="fetch it again")
        here = wanted[(wanted >= start) & (wanted < stop)] - start
        for first in range(0, len(table), _ROWS):
            chosen = here[(here >= first) & (here < first + _ROWS)] - first
            if len(chosen):
                block = table[first : first + _ROWS]
                columns = [block[each] for each in block.dtype.names if block.dtype[each].base.kind == "f"]
                yield np.concatenate([each.reshape(len(block), -1)[chosen] for each in columns], 1).astype(np.float32)


def _responses(path: Path, file: h5py.File, name: str) -> dict[str, Array]:
    """Return the columns of a table of responses by their names."""
    table = _table(path, file, name)
    content = table[()]
    columns: dict[str, Array] = {}
    for field in (each for each in content.dtype.names if each != "index"):
        block = content[field].reshape(len(content), -1)
        titles = _strings(table.attrs.get(f"{field}_kind")) if field.startswith("values_block_") else [field]
        columns |= dict(zip(titles, block.T, strict=False))
    missing = [column for column in (_TARGET, _CELL, _DRUG) if column not in columns]
    if missing:
        raise UsageError(f"{path}: {name} has no column {missing[0]!r}; found {', '.join(columns)[:120] or 'nothing'}")
    return columns


def _table(path: Path, file: h5py.File, name: str) -> h5py.Dataset:
    table = file.get(f"{name}/table")
    if not isinstance(table, h5py.Dataset) or not table.dtype.names:
        raise UsageError(f"{path}: no table {name!r}; expected what pandas writes with format='table'")
    if _BLOSC in table._filters and not h5py.h5z.filter_avail(int(_BLOSC)):
        try:
            import hdf5plugin  # noqa: F401
        except ImportError as error:
            raise MissingExtra(f"{path} is compressed with Blosc, which needs hdf5plugin", "science") from error
    return table


def _strings(pickled: Any) -> list[str]:
    """Return the strings of a pickled list of names, which is looked at and never loaded."""
    if not isinstance(pickled, bytes):
        return []
    try:
        return [str(value) for code, value, _ in pickletools.genops(pickled) if code.name in _TEXT]
    except ValueError:
        return []
