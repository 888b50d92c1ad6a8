"""What can be set when StemDL runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: half a minute of CPU, with patterns made on the spot."""

    preset: Literal["auto", "small", "stfc"] = option(
        "auto", "preset: small, stfc (the published settings), or auto (stfc for real data)"
    )
    model: Literal["cnn", "resnet50"] = option("cnn", "cnn: three convolutions; resnet50: the published network")
    loss: Literal["cross_entropy", "mse"] = option(
        "cross_entropy", "loss of the space group: cross_entropy, or mse to a one-hot vector, as published by STFC"
    )
    potential_weight: float = option(
        0.3, "weight of the projected potential, the second task, in the loss; 0: only the space group", least=0
    )
    crystals: int = option(240, "generated crystals to learn from", least=8)
    test_crystals: int = option(120, "generated crystals to test, none of them seen in training", least=8)
    views: int = option(3, "patterns of each generated crystal: other thickness, tilt, rotation and noise", least=1)
    pixels: int = option(32, "side of a generated pattern", least=16)
    data_seed: int = option(1510313, "seed of the generated patterns", least=0)
    epochs: int = option(7, "number of epochs")
    batch_size: int = option(32, "batch size per rank")
    eval_batch_size: int = option(256, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(5e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    evaluate_every: int = option(1_000_000, "epochs between evaluations; by default only the last epoch is evaluated")
    threads: int = option(1, "CPU threads of PyTorch; 0: as PyTorch chooses")


# STFC's version on the preprocessed set. It states no number of epochs: 90 are those of Oak Ridge's version.
STFC: dict[str, Any] = {
    "model": "resnet50", "loss": "mse", "potential_weight": 0.0, "pixels": 128, "epochs": 90, "batch_size": 32,
    "optimizer": "adam", "learning_rate": 1e-3, "schedule": "constant", "precision": "fp16", "evaluate_every": 1,
    "threads": 0, "workers": 4,
}  # fmt: skip


def choose(params: Mapping[str, Any], *, has_data: bool) -> Settings:
    """Return the settings of a run: what was given, over the preset, over the defaults."""
    given = read_settings(Settings, params)
    preset = given.preset if given.preset != "auto" else ("stfc" if has_data else "small")
    layers: dict[str, Any] = {"preset": preset} | (STFC if preset == "stfc" else {})
    if has_data:
        layers["potential_weight"] = 0.0  # published files have no potential
    return read_settings(Settings, layers | {name: value for name, value in params.items() if name != "preset"})
