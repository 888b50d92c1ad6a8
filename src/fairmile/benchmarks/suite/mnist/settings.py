"""What can be set when MNIST runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness.settings import Optimizer, TrainSettings, option


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The settings of the reference network: one hidden layer of 128 units, Adam, batches of 32, five epochs."""

    model: Literal["mlp", "cnn"] = option("mlp", "mlp: 784-128-10 with dropout; cnn: two convolutions")
    hidden: int = option(128, "units of the hidden layer", least=1)
    dropout: float = option(0.2, "share of hidden units that are left out while it learns", least=0, most=1)
    epochs: int = option(0, "passes over the training data; 0: 5 with MNIST, 40 with the small digits", least=0)
    batch_size: int = option(32, "samples per step and rank")
    eval_batch_size: int = option(1000, "samples per step of evaluation and rank")
    optimizer: Optimizer = option("adam", "sgd, adam, adamw or nadam")
    learning_rate: float = option(1e-3, "peak learning rate")
    neighbours: int = option(3, "of the classical baseline, nearest neighbours", least=1, most=1000)
