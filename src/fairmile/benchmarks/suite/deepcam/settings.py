"""What can be set when DeepCAM runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: less than a minute of CPU, with climate fields made on the spot."""

    preset: Literal["auto", "small", "mlperf"] = option(
        "auto", "preset: small, mlperf (the published settings), or auto (mlperf for real data)"
    )
    model: Literal["deeplab"] = option("deeplab", "deeplab: DeepLabV3+ on Xception, narrowed by shrink")
    train_samples: int = option(64, "number of training snapshots; real data: 0 for all", least=0)
    validation_samples: int = option(24, "number of validation snapshots; real data: 0 for all", least=0)
    rows: int = option(
        96, "rows of the grid of made snapshots, a multiple of 32; columns are half as many again", least=32
    )
    data_seed: int = option(5, "seed of the snapshots, independent of the seed of the run", least=0)
    shrink: int = option(8, "divisor of all widths of the network; 1: the reference", least=1)
    middle: int = option(2, "number of blocks in the middle of the encoder; 16: the reference", least=1)
    weight_power: float = option(-0.4, "classes weigh in the loss as their frequency to this power", most=0)
    turn: bool = option(True, "turn training snapshots around the globe by a random longitude")
    baseline_pixels: int = option(60_000, "training pixels for the boosted trees", least=1000)
    epochs: int = option(10, "number of epochs")
    batch_size: int = option(2, "batch size per rank")
    eval_batch_size: int = option(8, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(6e-3, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    threads: int = option(1, "CPU threads of PyTorch, for which small grids are too small; 0: as PyTorch chooses")
    evaluate_every: int = option(1_000_000, "epochs between evaluations; by default only the last epoch is evaluated")


# MLPerf HPC v3.0: Adam at its default rate, two snapshots for each GPU, until the target is met.
MLPERF: dict[str, Any] = {
    "train_samples": 0, "validation_samples": 0, "rows": 768, "shrink": 1, "middle": 16, "weight_power": -0.125,
    "turn": False, "epochs": 200, "stop_at_target": True, "evaluate_every": 1, "batch_size": 2, "eval_batch_size": 0,
    "learning_rate": 1e-3, "epsilon": 1e-6, "weight_decay": 1e-6, "schedule": "constant", "threads": 0, "workers": 4,
}  # fmt: skip
ON_GPU: dict[str, Any] = {"precision": "bf16", "channels_last": True}
MADE_FOR_MLPERF = 32, 8  # snapshots where no real data is given


def choose(params: Mapping[str, Any], *, has_data: bool, has_gpu: bool) -> Settings:
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
    return read_settings(Settings, layers | {name: value for name, value in params.items() if name != "preset"})
