"""Snapshots as published in HDF5, one per file, and made ones as arrays that can be mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import write_failure
from fairmile.benchmarks.harness.hdf5 import h5py, open_file, read_field
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.suite.deepcam.climate import FIELDS, columns_of, make_snapshot
from fairmile.benchmarks.suite.deepcam.models import CHANNELS, CLASSES

Array = NDArray[Any]
STATS = "stats.h5"
_DATA, _LABELS = "climate/data", "climate/labels_0"
_LEAST, _MOST = "climate/minval", "climate/maxval"
_HINT = "is it a file of DeepCAM? `fairmile benchmark show deepcam` lists the fields"
_MEASURED = 8  # snapshots that give least and largest values of made fields


def scale(fields: Array, least: Array, most: Array) -> NDArray[np.float16]:
    """Return fields between 0 and 1, as the reference scales them."""
    return np.asarray((fields - least) / np.maximum(most - least, 1e-12), np.float16)


@dataclass(frozen=True)
class FileSamples:
    """Snapshots that are read from their files when they are needed: the whole set has 8.8 TB."""

    files: Sequence[Path]
    shape: tuple[int, int]
    least: Array
    most: Array

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, numbers: Any) -> dict[str, Any]:
        """Return scaled fields (samples, rows, columns, 16) and labels (samples, rows, columns)."""
        read = [read_snapshot(self.files[number]) for number in numbers.tolist()]
        for number, (fields, _) in zip(numbers.tolist(), read, strict=True):
            if fields.shape[:2] != self.shape:
                raise UsageError(f"{self.files[number]}: expected a grid of {self.shape}, found {fields.shape[:2]}")
        x = np.stack([scale(fields, self.least, self.most) for fields, _ in read])
        return {"x": x, "labels": np.stack([labels for _, labels in read])}


def list_part(folder: Path, part: str, most: int) -> FileSamples:
    """Return the snapshots of a part, at most `most` of them where that is not 0."""
    files = sorted(each for each in (folder / part).rglob("*.h5") if each.name != STATS)[: most or None]
    if not files:
        raise NotFound(
            f"{folder / part} holds no .h5 files", hint="expected train/ and validation/ of DeepCAM's All-Hist"
        )
    stats = next((each for each in (folder / part / STATS, folder / STATS) if each.is_file()), None)
    if stats is None:
        raise NotFound(f"{folder} has no {STATS}", hint="it has the least and largest values of the fields")
    with open_file(stats) as content:
        bounds = [np.asarray(read_field(content, name, stats, _HINT), np.float32) for name in (_LEAST, _MOST)]
    for name, values in zip((_LEAST, _MOST), bounds, strict=True):
        if values.shape != (CHANNELS,):
            raise UsageError(f"{stats}: field {name!r}: expected {CHANNELS} numbers, found {values.shape}")
    fields, _ = read_snapshot(files[0])
    return FileSamples(files, (fields.shape[0], fields.shape[1]), *bounds)


def read_snapshot(file: Path) -> tuple[Array, NDArray[np.uint8]]:
    """Return the fields and labels of a file."""
    with open_file(file) as content:
        fields, labels = (np.asarray(read_field(content, name, file, _HINT)) for name in (_DATA, _LABELS))
    if fields.ndim != 3 or fields.shape[2] != CHANNELS or fields.dtype.kind != "f":
        raise UsageError(f"{file}: field {_DATA!r}: expected floats (rows, columns, {CHANNELS}), found {fields.shape}")
    if labels.shape != fields.shape[:2] or labels.dtype.kind not in "fiu":
        raise UsageError(f"{file}: field {_LABELS!r}: expected numbers {fields.shape[:2]}, found {labels.shape}")
    if labels.size and (labels.min() < 0 or labels.max() >= CLASSES):
        raise UsageError(f"{file}: field {_LABELS!r}: expected 0, 1 or 2, found {labels.min()} … {labels.max()}")
    return fields, labels.astype(np.uint8)


def write_snapshots(folder: Path, snapshots: Mapping[str, Sequence[tuple[Array, Array]]]) -> None:
    """Write snapshots by part as published, and the least and largest values of the fields of the first part."""
    try:
        for part, each in snapshots.items():
            (folder / part).mkdir(parents=True, exist_ok=True)
            for number, (fields, labels) in enumerate(each):
                with h5py().File(folder / part / f"data-2000-01-01-{number:02d}-1.h5", "w") as content:
                    content[_DATA], content[_LABELS] = fields.astype(np.float32), labels.astype(np.int64)
        least, most = _bounds([fields for fields, _ in next(iter(snapshots.values()))])
        with h5py().File(folder / STATS, "w") as content:
            content[_LEAST], content[_MOST] = least.astype(np.float32), most.astype(np.float32)
    except OSError as error:
        raise write_failure(str(folder), error) from error


def make_maps(folder: Path, counts: Mapping[str, int], rows: int, seed: int) -> None:
    """Make snapshots and write those of each part as arrays."""
    first = next(iter(counts.values()))
    bounds = _bounds([make_snapshot(number, rows, seed)[0] for number in range(min(first, _MEASURED))])
    number = 0
    try:
        for part, many in counts.items():
            shape = many, rows, columns_of(rows)
            x = np.lib.format.open_memmap(folder / f"{part}_x.npy", "w+", np.float16, (*shape, len(FIELDS)))
            labels = np.lib.format.open_memmap(folder / f"{part}_labels.npy", "w+", np.uint8, shape)
            for place in range(many):
                fields, labels[place] = make_snapshot(number, rows, seed)
                x[place] = scale(fields, *bounds)
                number += 1
    except OSError as error:
        raise write_failure(str(folder), error) from error


def read_maps(folder: Path, part: str) -> ArraySamples:
    """Return the snapshots that `make_maps` left, mapped into memory."""
    return ArraySamples({name: np.load(folder / f"{part}_{name}.npy", mmap_mode="r") for name in ("x", "labels")})


def _bounds(snapshots: Sequence[Array]) -> tuple[Array, Array]:
    return np.min([each.min((0, 1)) for each in snapshots], 0), np.max([each.max((0, 1)) for each in snapshots], 0)
