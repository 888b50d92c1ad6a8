"""Values of a data set as inputs of a model: the first rows of its arrays that fit."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.models.convert.proof import Array
from fairmile.models.formats.description import TensorSpec

_ROWS = 32
_MOST_FILES = 100
_MOST_ZIP_BYTES = 256 << 20  # of an .npz, whose arrays are read as a whole


def read_inputs(place: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return inputs from a file or folder of .npz, .npy and HDF5 files; none where no file has an array for each.

    Arrays are taken by the names of the inputs; of a model with one input also the first array of a fitting shape.
    """
    files = sorted(each for each in place.rglob("*") if each.is_file()) if place.is_dir() else [place]
    for file in files[:_MOST_FILES]:
        with _arrays(file) as arrays:
            chosen = _chosen(arrays, specs)
            if chosen:
                return chosen
    return {}


@contextmanager
def _arrays(file: Path) -> Iterator[Mapping[str, Any]]:
    """Open the arrays of a file, which are read when they are sliced; of an unknown or damaged file there are none."""
    try:
        if file.suffix == ".npy":
            yield {"": np.load(file, mmap_mode="r", allow_pickle=False)}
            return
        if file.suffix == ".npz" and file.stat().st_size <= _MOST_ZIP_BYTES:
            with np.load(file, allow_pickle=False) as content:
                yield content
            return
        if file.suffix in (".h5", ".hdf5"):
            h5py: Any = importlib.import_module("h5py")
            with h5py.File(file, "r") as content:
                yield {name: each for name, each in content.items() if isinstance(each, h5py.Dataset)}
            return
    except (OSError, ValueError, ImportError):
        pass
    yield {}


def _chosen(arrays: Mapping[str, Any], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    names = {spec.name: spec.name for spec in specs}
    if len(specs) == 1 and specs[0].name not in arrays:
        names = {specs[0].name: next((name for name, each in arrays.items() if _fits(each, specs[0])), "-")}
    if not all(names[each.name] in arrays and _fits(arrays[names[each.name]], each) for each in specs):
        return {}
    return {each.name: np.asarray(arrays[names[each.name]][: _rows(each)]) for each in specs}


def _rows(spec: TensorSpec) -> int:
    first = spec.shape[0] if spec.shape else None
    return first if isinstance(first, int) else _ROWS


def _fits(array: Any, spec: TensorSpec) -> bool:
    """Tell whether an array has rows of the shape and the kind of values that an input takes."""
    shape = spec.shape or ()
    if spec.type == "string" or array.ndim != len(shape) or not shape or array.dtype.kind not in "fiub":
        return False
    if array.dtype.kind == "f" and np.dtype(spec.type).kind != "f":
        return False
    enough = len(array) >= (shape[0] if isinstance(shape[0], int) else 1)
    sizes = zip(shape[1:], array.shape[1:], strict=True)
    return enough and all(not isinstance(own, int) or own == size for own, size in sizes)
