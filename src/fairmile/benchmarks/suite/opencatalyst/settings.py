"""What can be set when OpenCatalyst runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: less than a minute of CPU, with structures made on the spot."""

    preset: Literal["auto", "small", "mlperf"] = option(
        "auto", "preset: small, mlperf (the published settings), or auto (mlperf for real data)"
    )
    model: Literal["schnet", "dimenet"] = option("schnet", "schnet: distances only; dimenet: DimeNet++, with angles")
    train_samples: int = option(384, "number of training structures; real data: 0 for all", least=0)
    validation_samples: int = option(96, "number of validation structures; real data: 0 for all", least=0)
    data_seed: int = option(2020, "seed of the structures, independent of the seed of the run", least=0)
    width: int = option(32, "features of an atom (schnet) or an edge (dimenet)", least=2)
    filters: int = option(32, "width of the filters of schnet", least=1)
    interactions: int = option(2, "number of interaction blocks", least=1)
    gaussians: int = option(24, "functions of the distance in schnet", least=2)
    cutoff: float = option(4.5, "distance in Å up to which atoms are neighbours", least=1, most=20)
    neighbours: int = option(50, "nearest neighbours of an atom that are kept; 0: all", least=0)
    energy_weight: float = option(1.0, "weight of the energy in the loss", least=0)
    force_weight: float = option(10.0, "weight of the forces of free atoms in the loss", least=0)
    baseline_samples: int = option(1000, "training structures for the pair potential", least=1)
    epochs: int = option(12, "number of epochs")
    batch_size: int = option(16, "batch size per rank, in structures")
    eval_batch_size: int = option(32, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(8e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    clip_norm: float = option(10.0, "maximum norm of gradients; 0: no clipping", least=0)


# MLPerf HPC v3.0: forces alone, 30 epochs of two million structures at a global batch of 256.
MLPERF: dict[str, Any] = {
    "model": "dimenet", "train_samples": 0, "validation_samples": 0, "width": 192, "interactions": 3, "cutoff": 6.0,
    "energy_weight": 0.0, "force_weight": 50.0, "epochs": 30, "batch_size": 32, "eval_batch_size": 0,
    "optimizer": "adamw", "learning_rate": 4e-4, "schedule": "steps", "warmup_epochs": 4.0, "warmup_factor": 0.2,
    "decay_epochs": (16, 24), "decay_factors": (0.1, 0.01), "precision": "tf32", "workers": 4,
}  # fmt: skip
MADE_FOR_MLPERF = 512, 128  # structures where no real data is given


def choose(params: Mapping[str, Any], *, has_data: bool) -> Settings:
    """Return the settings of a run: what was given, over the preset, over the defaults."""
    given = read_settings(Settings, params)
    preset = given.preset if given.preset != "auto" else ("mlperf" if has_data else "small")
    layers: dict[str, Any] = {"preset": preset}
    if preset == "mlperf":
        layers |= MLPERF
        if not has_data:
            layers["train_samples"], layers["validation_samples"] = MADE_FOR_MLPERF
    elif has_data:
        layers |= {"train_samples": 0, "validation_samples": 0}
    return read_settings(Settings, layers | {name: value for name, value in params.items() if name != "preset"})
