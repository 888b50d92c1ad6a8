"""What can be set when CloudMask runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option, read_settings


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """The defaults are the small benchmark: less than half a minute of CPU, with scenes made on the spot."""

    preset: Literal["auto", "small", "published"] = option(
        "auto", "preset: small, published (the reference's settings), or auto (published for real data)"
    )
    model: Literal["unet", "unet-bn"] = option(
        "unet-bn", "unet: the reference; unet-bn: the same with batch normalisation"
    )
    inputs: Literal["differences", "published"] = option(
        "differences", "channels: published, or S7 and S9 as differences to S8, which show thin and low clouds better"
    )
    train_scenes: int = option(160, "number of training scenes; real data: 0 for all", least=0)
    validation_scenes: int = option(48, "number of validation scenes; real data: 0 for all", least=0)
    data_seed: int = option(3, "seed of the scenes and of the split, independent of the seed of the run", least=0)
    patch: int = option(64, "edge of a patch in pixels, and of a scene that is made", least=8)
    width: int = option(8, "channels of the first level, doubled by each further one", least=1)
    depth: int = option(3, "number of times that the U-Net halves the patch", least=1, most=6)
    margin: int = option(8, "pixels cut from each side of a patch when whole scenes are masked", least=0)
    cloud_weight: float = option(1.0, "weight of cloud in the loss; 1: plain cross entropy", least=0)
    baseline_pixels: int = option(60_000, "training pixels for the baselines, drawn at random", least=100)
    epochs: int = option(15, "number of epochs")
    batch_size: int = option(8, "batch size per rank, in patches")
    eval_batch_size: int = option(16, "batch size per rank in evaluation; 0: same as batch_size")
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(1e-2, "peak learning rate")
    schedule: Schedule = option("onecycle", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    channels_last: bool = option(True, "use channels-last memory format, which the data already have")
    threads: int = option(1, "CPU threads of PyTorch, for which small patches are too small; 0: as PyTorch chooses")
    evaluate_every: int = option(1_000_000, "epochs between evaluations; by default only the last epoch is evaluated")


# The reference, with the epochs and patience of Chennamsetti et al. 2024.
PUBLISHED: dict[str, Any] = {
    "model": "unet", "inputs": "published", "train_scenes": 0, "validation_scenes": 0, "patch": 256, "margin": 40,
    "width": 32, "depth": 3, "epochs": 200, "patience": 25, "evaluate_every": 1, "batch_size": 32,
    "eval_batch_size": 0, "learning_rate": 1e-3, "schedule": "constant", "threads": 0, "baseline_pixels": 400_000,
}  # fmt: skip
ON_GPU: dict[str, Any] = {"precision": "bf16", "workers": 4}
MADE_FOR_PUBLISHED = 256, 64  # scenes where no real data is given


def choose(params: Mapping[str, Any], *, has_data: bool, has_gpu: bool) -> Settings:
    """Return the settings of a run: what was given, over what suits a GPU, over the preset, over the defaults."""
    given = read_settings(Settings, params)
    preset = given.preset if given.preset != "auto" else ("published" if has_data else "small")
    layers: dict[str, Any] = {"preset": preset}
    if preset == "published":
        layers |= PUBLISHED | (ON_GPU if has_gpu and given.device != "cpu" else {})
        if not has_data:
            layers["train_scenes"], layers["validation_scenes"] = MADE_FOR_PUBLISHED
    elif has_data:
        layers |= {"train_scenes": 0, "validation_scenes": 0}
    return read_settings(Settings, layers | {name: value for name, value in params.items() if name != "preset"})
