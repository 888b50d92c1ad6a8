"""What can be set when MNIST runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, TrainSettings, option


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The settings of the reference network: one hidden layer of 128 units, Adam, batches of 32, five epochs."""

    model: Literal["mlp", "cnn", "lstm", "autoencoder"] = option(
        "mlp", "mlp: 784-128-10 with dropout; cnn: two convolutions; lstm: row by row; autoencoder: restores images"
    )
    hidden: int = option(128, "units of the hidden layer", least=1)
    code: int = option(8, "model=autoencoder: numbers that are kept of an image", least=1)
    dropout: float = option(0.2, "dropout rate of the hidden layer", least=0, most=1)
    epochs: int = option(0, "number of epochs; 0: 5 for MNIST, 40 for the small digits", least=0)
    batch_size: int = option(32, "batch size per rank")
    eval_batch_size: int = option(1000, "batch size per rank in evaluation")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(1e-3, "peak learning rate")
    neighbours: int = option(3, "number of nearest neighbours in the classical baseline", least=1, most=1000)
