"""What can be set when CosmoFlow runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import Optimizer, Schedule, TrainSettings, option, read_settings

Preset = Literal["auto", "small", "mlperf"]
Model = Literal["cosmoflow"]
Layout = Literal["none", "hdf5", "tfrecord", "universe"]


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: minutes on two CPU cores, with universes made on the spot."""

    preset: Preset = option("auto", "small, mlperf (the published settings), or auto: mlperf where real data is given")
    model: Model = option("cosmoflow", "cosmoflow: the network of MLPerf HPC, scaled by width and depth")
    train_samples: int = option(4096, "cubes to train with; of real data 0 or more than there are: all")
    validation_samples: int = option(512, "cubes to validate with; of real data 0 or more than there are: all")
    size: int = option(16, "cells along the edge of a cube that is made; real data say it themselves")
    cell: float = option(8.0, "Mpc/h along the edge of a cell that is made, at H_0 = 70")
    data_seed: int = option(2019, "seed of the universes, which stay the same when the seed of a run changes")
    write_as: Layout = option(
        "none", "write what is made as it is published, too: hdf5, tfrecord, or universe (raw HDF5)"
    )
    width: int = option(8, "channels of the first convolution, doubled by each further one")
    depth: int = option(3, "convolutions, each of which halves the cube")
    dropout: float = option(0.0, "share of the dense layers left out while training", least=0, most=1)
    apply_log: bool = option(True, "the network sees ln(counts + 1); false: counts over their mean")
    augment: bool = option(True, "turn and mirror the cubes while training, in a new way for each batch")
    scale_learning_rate: bool = option(
        False, "learning_rate is for 64 samples per step and grows with the global batch"
    )
    memory_map: bool = option(True, "prepare real data as one memory map per part where there is room for it")
    baseline_samples: int = option(4096, "cubes per part that the ridge regression looks at; 0: all")
    epochs: int = option(30, "passes over the training data")
    batch_size: int = option(32, "samples per step and rank")
    eval_batch_size: int = option(64, "samples per step of evaluation and rank; 0: as batch_size")
    optimizer: Optimizer = option("adam", "sgd, adam, adamw or nadam")
    learning_rate: float = option(3e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "constant, steps, cosine, onecycle or plateau")
    channels_last: bool = option(True, "memory layout of images and volumes; the data come in it already")


# MLPerf HPC v3.0, closed division. The warm-up begins at the rate of 64 samples per step, whatever the global batch.
MLPERF: dict[str, Any] = {
    "train_samples": 0, "validation_samples": 0, "size": 128, "cell": 1.0, "width": 32, "depth": 5,
    "dropout": 0.5, "augment": False, "scale_learning_rate": True, "baseline_samples": 1024,
    "epochs": 128, "batch_size": 4, "eval_batch_size": 0, "optimizer": "sgd", "momentum": 0.9, "learning_rate": 1e-3,
    "schedule": "steps", "warmup_epochs": 4.0, "decay_epochs": (32, 64), "decay_factors": (0.25, 0.125),
}  # fmt: skip
# What was fastest for cubes of 128^3 on an H200: README.md has the table. Small cubes do not repay it.
ON_GPU: dict[str, Any] = {"precision": "bf16", "channels_last": True, "compile": True, "workers": 2}
BASE_BATCH = 64  # samples per step for which learning_rate holds where it is scaled
MADE_FOR_MLPERF = 256, 64  # universes to train and to validate with where no real data is given


def choose(params: Mapping[str, Any], *, has_data: bool, has_gpu: bool, ranks: int = 1) -> Settings:
    """Return the settings of a run: what was given, over what suits a GPU, over the preset, over the defaults."""
    given = read_settings(Settings, params)
    preset = given.preset if given.preset != "auto" else ("mlperf" if has_data else "small")
    layers: dict[str, Any] = {"preset": preset}
    if preset == "mlperf":
        layers |= MLPERF | (ON_GPU if has_gpu and given.device != "cpu" else {})
        if not has_data:
            layers["train_samples"], layers["validation_samples"] = MADE_FOR_MLPERF
    elif has_data:
        layers |= {"train_samples": 0, "validation_samples": 0}
    if given.strategy == "fsdp":
        layers["channels_last"] = False  # it cuts weights in rows
    layers |= {name: value for name, value in params.items() if name != "preset"}
    settings = read_settings(Settings, layers)
    return _scaled(settings, layers, ranks) if settings.scale_learning_rate else settings


def _scaled(settings: Settings, layers: Mapping[str, Any], ranks: int) -> Settings:
    """Return settings with the learning rate of the global batch, and the warm-up that leads there."""
    times = settings.batch_size * settings.accumulate * ranks / BASE_BATCH
    rate = {"scale_learning_rate": False, "learning_rate": settings.learning_rate * times}
    return read_settings(Settings, {"warmup_factor": min(1 / times, 1.0), **layers, **rate})
