"""What can be set when CosmoFlow runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings

Preset = Literal["auto", "small", "mlperf"]
Model = Literal["cosmoflow"]
Layout = Literal["none", "hdf5", "tfrecord", "universe"]


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: minutes on two CPU cores, with universes made on the spot."""

    preset: Preset = option("auto", "preset: small, mlperf (the published settings), or auto (mlperf for real data)")
    model: Model = option("cosmoflow", "cosmoflow: the network of MLPerf HPC, scaled by width and depth")
    train_samples: int = option(4096, "number of training cubes; real data: 0 for all", least=0)
    validation_samples: int = option(512, "number of validation cubes; real data: 0 for all", least=0)
    size: int = option(16, "cells along the edge of a synthetic cube")
    cell: float = option(8.0, "edge of a synthetic cell in Mpc/h, at H_0 = 70")
    data_seed: int = option(2019, "seed of the universes, independent of the seed of the run", least=0)
    write_as: Layout = option(
        "none", "also write synthetic data in a published format: hdf5, tfrecord or universe (raw HDF5)"
    )
    width: int = option(8, "channels of the first convolution, doubled by each later one", least=1)
    depth: int = option(3, "number of convolutions, each of which halves the cube")
    dropout: float = option(0.0, "dropout rate of the dense layers", least=0, most=1)
    apply_log: bool = option(True, "use ln(counts + 1) as input; false: counts divided by their mean")
    augment: bool = option(True, "rotate and mirror the cubes at random in training")
    scale_learning_rate: bool = option(False, "scale learning_rate, given for a batch of 64, with the global batch")
    memory_map: bool = option(True, "prepare real data as one memory map per part if there is enough space")
    baseline_samples: int = option(4096, "cubes per part for the ridge regression; 0: all", least=0)
    epochs: int = option(30, "number of epochs")
    batch_size: int = option(32, "batch size per rank")
    eval_batch_size: int = option(64, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(3e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    channels_last: bool = option(True, "use channels-last memory format, which the data already have")


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
