"""What can be set when Uno runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: half a minute of CPU, with a screen made on the spot."""

    preset: Literal["auto", "small", "candle"] = option(
        "auto", "preset: small, candle (the published settings), or auto (candle for real data)"
    )
    model: Literal["uno"] = option("uno", "uno: a tower of dense layers for each input, joined by more dense layers")
    split: Literal["pairs", "cells", "drugs", "both"] = option(
        "pairs", "test on: pairs (random, as published), or on cells, drugs or both that training never saw"
    )
    width: int = option(100, "units of each dense layer", least=1)
    tower_layers: int = option(3, "dense layers of each tower", least=1)
    joint_layers: int = option(5, "dense layers after the towers are joined", least=1)
    dropout: float = option(0.1, "share of units that each layer drops in training", least=0, most=0.9)
    cells: int = option(240, "cell lines of a generated screen", least=10)
    drugs: int = option(120, "drugs of a generated screen", least=10)
    genes: int = option(128, "genes of a generated screen", least=1)
    descriptors: int = option(256, "descriptors of a generated screen", least=3)
    data_seed: int = option(2018, "seed of the split and of a generated screen", least=0)
    epochs: int = option(15, "number of epochs")
    batch_size: int = option(128, "batch size per rank")
    eval_batch_size: int = option(2048, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(3e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    evaluate_every: int = option(1_000_000, "epochs between evaluations; by default only the last epoch is evaluated")
    threads: int = option(1, "CPU threads of PyTorch, for which these layers are too small; 0: as PyTorch chooses")
    workers: int = option(0, "threads that prefetch batches; 0: no prefetching")


# Uno's AUC configuration. The rate falls from Adamax's usual 1e-3 to 1e-4 over five epochs, which CANDLE calls warm-up.
CANDLE: dict[str, Any] = {
    "width": 1000, "dropout": 0.1, "epochs": 50, "batch_size": 32, "optimizer": "adamax", "learning_rate": 1e-4,
    "schedule": "plateau", "warmup_epochs": 5.0, "warmup_factor": 10.0, "plateau_factor": 0.5, "plateau_patience": 5,
    "min_learning_rate": 1e-5, "patience": 10, "evaluate_every": 1, "threads": 0, "workers": 1,
}  # fmt: skip
_MADE = {"genes": 942, "descriptors": 5270}  # where no real data is given


def choose(params: Mapping[str, Any], *, has_data: bool) -> Settings:
    """Return the settings of a run: what was given, over the preset, over the defaults."""
    given = read_settings(Settings, params)
    preset = given.preset if given.preset != "auto" else ("candle" if has_data else "small")
    layers: dict[str, Any] = {"preset": preset}
    if preset == "candle":
        layers |= CANDLE | _MADE
    return read_settings(Settings, layers | {name: value for name, value in params.items() if name != "preset"})
