"""What can be set when SGEMM runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """A tenth of all kernels to learn from, as an auto-tuner would measure; of real data two thirds, as published."""

    model: Literal["mlp"] = option("mlp", "mlp: dense layers on the logarithms of the kernel's parameters")
    hidden: int = option(128, "units of each hidden layer", least=1)
    layers: int = option(3, "number of hidden layers", least=1)
    train_share: float = option(
        0.0, "share of all kernels to learn from; 0: 0.1 of generated, 0.67 of real data", least=0, most=0.67
    )
    hold_out: str = option("", "test only on kernels with this value, never seen in training, such as KWG=32")
    rows: int = option(0, "use this many kernels only, drawn at random; 0: all 241,600", least=0)
    data_seed: int = option(440, "seed of the split and of the noise of generated times", least=0)
    save_trees: bool = option(False, "also write the fitted trees as skops files, and rows.npy to try them on")
    epochs: int = option(15, "number of epochs")
    batch_size: int = option(256, "batch size per rank")
    eval_batch_size: int = option(8192, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(5e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    evaluate_every: int = option(1_000_000, "epochs between evaluations; by default only the last epoch is evaluated")
    threads: int = option(1, "CPU threads of PyTorch, for which these layers are too small; 0: as PyTorch chooses")
    workers: int = option(0, "threads that prefetch batches; 0: no prefetching")
