"""Samples copied once to memory-mapped files, one for each field: to read a batch is then to copy memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.base.files import write_failure
from fairmile.base.version import __version__
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.settings import TrainSettings

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.harness.task import Samples, Task

Array = np.ndarray[Any, Any]

_AT_ONCE = 32  # samples that are read for a write
_OF_DATA = ("model",)  # settings of every benchmark on which its samples may depend


def sharded(task: Task, session: Session, part: str, samples: Samples) -> ArraySamples:
    """Return the samples of a part of a task from shards, which are written once for all runs on the same data."""

    def make(folder: Path) -> None:
        session.say(f"writing {len(samples):,} {part} samples to memory-mapped shards, once for all runs")
        write_shards(samples, folder)

    return read_shards(session.prepared({"shards": part, **_identity(task, session)}, make))


def _identity(task: Task, session: Session) -> dict[str, Any]:
    """Return what decides about the samples besides the real data: a setting too many only writes them again."""
    common = {field.name for field in dataclasses.fields(TrainSettings)} - set(_OF_DATA)
    settings = {name: value for name, value in dataclasses.asdict(task.settings).items() if name not in common}
    seed = session.seed if session.data is None else None  # generated data may depend on it
    return {"version": __version__, "settings": settings, "seed": seed}


def write_shards(samples: Samples, folder: Path, count: int | None = None) -> None:
    """Write the first `count` samples, or all, as one array for each field."""
    count = len(samples) if count is None else min(count, len(samples))
    arrays: dict[str, Array] = {}
    try:
        for at in range(0, count, _AT_ONCE):
            numbers = np.arange(at, min(at + _AT_ONCE, count), dtype=np.int64)
            for name, value in samples.batch(numbers).items():
                values = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
                if values.ndim == 0 or len(values) != len(numbers):
                    raise UsageError(
                        f"no shards: {len(numbers)} samples have {values.shape} values of {name}, not one for each",
                        hint="leave shards=true out",
                    )
                if name not in arrays:
                    shape = (count, *values.shape[1:])
                    arrays[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", values.dtype, shape)
                arrays[name][at : at + len(numbers)] = values
    except OSError as error:
        raise write_failure(str(folder), error) from error


def read_shards(folder: Path) -> ArraySamples:
    """Return the samples in a folder, mapped into memory."""
    return ArraySamples({file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.glob("*.npy"))})
