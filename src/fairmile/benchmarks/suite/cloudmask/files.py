"""Scenes as published in HDF5, and the patches that are cut from them once for all runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import write_failure
from fairmile.benchmarks.harness.hdf5 import h5py, open_file, read_field
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.suite.cloudmask.models import CHANNELS
from fairmile.benchmarks.suite.cloudmask.scenes import Scene

Array = NDArray[Any]
NAMES = "S7", "S8", "S9", "S1", "S2", "S3", "S4", "S5", "S6"  # of the channels, in the order of a patch
THERMAL = 3  # number of channels that are brightness temperatures
_KELVIN, _KELVIN_SPREAD, _REFLECTANCE = 270.0, 22.0, 0.5  # what the reference scales channels with
_S7_S8, _S8_S9 = 4.0, 12.0  # brings the differences to the size of the other channels
_SUFFIXES = (".hdf", ".h5", ".hdf5")
_TEST, _DAY = "inference", "day"
_FIELDS = "x", "cloud", "day"
_HINT = "is it a scene of cloud_slstr_ds1? `fairmile benchmark show cloudmask` lists the fields"


@dataclass(frozen=True)
class Listing:
    """The files of a data set: to train, to validate, and those that the publisher keeps for the test."""

    train: list[Path]
    validation: list[Path]
    test: list[Path]


def list_scenes(folder: Path, share: float, seed: int) -> Listing:
    """Return the files below a folder; whole scenes validate, drawn at random."""
    files = sorted(each for each in folder.rglob("*") if each.suffix in _SUFFIXES)
    inner = [file.relative_to(folder).parts[:-1] for file in files]
    test = [file for file, parts in zip(files, inner, strict=True) if _TEST in parts]
    rest = [file for file in files if file not in set(test)]
    if len(rest) < 2:
        raise NotFound(
            f"{folder} holds {len(rest)} scenes to train and validate with, expected at least 2",
            hint="expected the .hdf files of cloud_slstr_ds1, in folders day and night",
        )
    order = np.random.default_rng(seed).permutation(len(rest))
    many = min(max(round(len(rest) * share), 1), len(rest) - 1)
    return Listing([rest[at] for at in order[:many]], [rest[at] for at in order[many:]], test)


def read_scene(file: Path) -> Scene:
    """Return the scene in a file."""
    with open_file(file) as content:
        refs, bts, bayes = (np.asarray(read_field(content, name, file, _HINT)) for name in ("refs", "bts", "bayes"))
    for name, array, channels in (("refs", refs, 6), ("bts", bts, 3), ("bayes", bayes, 1)):
        if array.ndim != 3 or array.shape[2] != channels or array.shape[:2] != refs.shape[:2]:
            expected = f"({refs.shape[0]}, {refs.shape[1] if refs.ndim > 1 else '?'}, {channels})"
            raise UsageError(f"{file}: field {name!r}: expected {expected}, found {array.shape}")
        if array.dtype.kind not in "fiu":
            raise UsageError(f"{file}: field {name!r}: expected numbers, found {array.dtype}")
    parts = [re.sub(r"\W", "", part).lower() for part in file.parts]
    is_day = _DAY in parts if _DAY in parts or "night" in parts else bool(np.nanmax(refs) > 0)
    return Scene(refs.astype(np.float32), bts.astype(np.float32), bayes.astype(np.float32), is_day)


def write_scene(file: Path, scene: Scene) -> None:
    """Write a scene as published."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with h5py().File(file, "w") as content:
            for name in ("refs", "bts", "bayes"):
                content.create_dataset(name, data=getattr(scene, name), compression="gzip", compression_opts=1)
    except OSError as error:
        raise write_failure(str(file), error) from error


def scaled(scene: Scene, *, differences: bool) -> NDArray[np.float16]:
    """Return the nine channels around 0 (rows, columns, 9); what is missing becomes 0.

    With `differences`, S7 and S9 become their difference to S8, in which thin and low clouds show. Half precision
    resolves 0.02 K, a quarter of the noise of the instrument.
    """
    bts = (scene.bts - _KELVIN) / _KELVIN_SPREAD
    if differences:
        bts = np.stack([(bts[..., 0] - bts[..., 1]) * _S7_S8, bts[..., 1], (bts[..., 1] - bts[..., 2]) * _S8_S9], -1)
    channels = np.concatenate([bts, scene.refs - _REFLECTANCE], -1)
    return np.asarray(np.nan_to_num(channels, nan=0.0, posinf=0.0, neginf=0.0), np.float16)


def cut(image: Array, edge: int) -> Array:
    """Return the patches of an image that do not overlap, row by row; what is left at the far edges is dropped."""
    rows, columns = image.shape[0] // edge, image.shape[1] // edge
    if not rows or not columns:
        raise UsageError(f"parameter patch: a scene of {image.shape[0]} x {image.shape[1]} pixels has none of {edge}")
    whole = image[: rows * edge, : columns * edge]
    return whole.reshape(rows, edge, columns, edge, -1).swapaxes(1, 2).reshape(rows * columns, edge, edge, -1)


def write_patches(folder: Path, part: str, images: Iterator[tuple[Scene, Array]], many: int, edge: int) -> None:
    """Write the patches of `many` scenes and their scaled channels as arrays that can be mapped into memory."""
    arrays: list[Array] = []
    place = 0
    try:
        for scene, channels in images:
            x, cloud = cut(channels, edge), cut(scene.bayes > 0, edge)[..., 0].astype(np.uint8)
            day = np.full(len(x), scene.is_day, np.uint8)
            if not arrays:
                arrays = [
                    np.lib.format.open_memmap(
                        folder / f"{part}_{name}.npy", "w+", value.dtype, (many * len(x), *value.shape[1:])
                    )
                    for name, value in zip(_FIELDS, (x, cloud, day), strict=True)
                ]
            if place + len(x) > len(arrays[0]):
                raise UsageError(f"scene {place // len(x)} of {part}: expected all scenes of one size")
            for array, value in zip(arrays, (x, cloud, day), strict=True):
                array[place : place + len(x)] = value
            place += len(x)
    except OSError as error:
        raise write_failure(str(folder), error) from error
    if place != len(arrays[0]):
        raise UsageError(f"{part}: expected {len(arrays[0])} patches from scenes of one size, found {place}")


def read_patches(folder: Path, part: str) -> ArraySamples:
    """Return the patches that `write_patches` left, mapped into memory."""
    return ArraySamples({name: np.load(folder / f"{part}_{name}.npy", mmap_mode="r") for name in _FIELDS})


def empty_patches(many: int, edge: int) -> dict[str, Array]:
    """Return what a batch of patches looks like."""
    x = np.zeros((many, edge, edge, CHANNELS), np.float16)
    return {"x": x, "cloud": np.zeros((many, edge, edge), np.uint8), "day": np.ones(many, np.uint8)}
