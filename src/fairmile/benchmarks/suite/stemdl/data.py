"""Patterns and space groups: generated, or in the published files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.task import Samples
from fairmile.benchmarks.suite.stemdl.crystals import (
    GROUPS,
    axes_of,
    beams_along,
    log_scaled,
    make_crystal,
    pattern,
    potential,
)
from fairmile.benchmarks.suite.stemdl.settings import Settings

Array = np.ndarray[Any, Any]
CLASSES = 231  # of the published network: space groups 1 to 230
POTENTIAL_PIXELS = 16
_COUNTS = 1e5  # electrons in the brightest pixel
_SIDE = 128


@dataclass(frozen=True)
class Data:
    """Both parts, the space group of each sample to test, and what they are in words."""

    training: Samples
    validation: Samples
    groups: Array
    words: str


def make_data(settings: Settings) -> Data:
    """Return patterns of crystals; no crystal of the test occurs in training."""
    parts = [
        _make(settings, np.random.default_rng([settings.data_seed, part]), many)
        for part, many in enumerate((settings.crystals, settings.test_crystals))
    ]
    words = (
        f"generated kinematic patterns: {settings.crystals} crystals of {len(GROUPS)} space groups to learn from, "
        f"{settings.test_crystals} others to test, {settings.views} patterns each"
    )
    training, validation = (ArraySamples(fields) for fields in parts)
    return Data(training, validation, parts[1]["group"], words)


def _make(settings: Settings, rng: np.random.Generator, many: int) -> dict[str, Array]:
    images, groups, potentials = [], [], []
    for number in range(many):
        crystal = make_crystal(rng, GROUPS[number % len(GROUPS)])
        beams = [beams_along(crystal, axis) for axis in axes_of(crystal)]
        for _ in range(settings.views):
            thickness, angles = rng.uniform(40, 200), rng.uniform(0, 2 * np.pi, len(beams))
            views = [
                pattern(each, settings.pixels, thickness, rng.normal(0, 0.05, 2), angle)
                for each, angle in zip(beams, angles, strict=True)
            ]
            counted = rng.poisson(np.minimum(np.stack(views), 1) * _COUNTS) / _COUNTS
            images.append(log_scaled(counted).astype(np.float32))
            shown = [potential(each, POTENTIAL_PIXELS, angle) for each, angle in zip(beams, angles, strict=True)]
            potentials.append(np.stack(shown).astype(np.float32))
            groups.append(crystal.group)
    return {"patterns": np.stack(images), "group": np.array(groups, np.int64), "potential": np.stack(potentials)}


class NpzSamples:
    """Published files, one sample each, read when they are asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, numbers: Any) -> Mapping[str, Any]:
        """Return the patterns and space groups of these files."""
        read = [read_sample(self.files[int(number)]) for number in numbers]
        return {"patterns": np.stack([each for each, _ in read]), "group": np.array([g for _, g in read], np.int64)}


def read_sample(file: Path) -> tuple[Array, int]:
    """Return the patterns and the space group of a published file."""
    try:
        with open(file, "rb") as stream, np.load(stream) as content:
            data, group = content["data"], int(np.ravel(content["label"])[0])
    except KeyError as error:
        raise UsageError(f"{file}: no array {error}; expected data and label") from error
    except (ValueError, OSError, EOFError, IndexError, zipfile.BadZipFile) as error:
        raise Integrity(f"{file} cannot be read as a sample: {error}", hint="fetch it again") from error
    if data.ndim != 3 or data.shape[0] != 3 or data.shape[1] != data.shape[2]:
        raise UsageError(f"{file}: data is {data.shape}, expected (3, {_SIDE}, {_SIDE})")
    if not 1 <= group < CLASSES:
        raise UsageError(f"{file}: label is {group}, expected a space group from 1 to {CLASSES - 1}")
    return data.astype(np.float32), group


def read_data(folder: Path) -> Data:
    """Return the published files of a folder: those below train… to learn from, those below val… to validate."""
    files = sorted(folder.rglob("*.npz")) if folder.is_dir() else []
    parts: dict[str, list[Path]] = {"train": [], "val": []}
    for file in files:
        for part in file.relative_to(folder).parts[:-1]:
            named = next((name for name in parts if part.lower().startswith(name)), None)
            if named is not None:
                parts[named].append(file)
                break
    for name, found in parts.items():
        if not found:
            raise NotFound(f"{folder} holds no .npz files below a folder {name}…", hint="expected those of stemdl_ds1a")
    validation = NpzSamples(parts["val"])
    groups = np.array([read_sample(file)[1] for file in validation.files])
    words = f"{folder.name}: {len(parts['train']):,} samples to learn from, {len(groups):,} to validate"
    return Data(NpzSamples(parts["train"]), validation, groups, words)
