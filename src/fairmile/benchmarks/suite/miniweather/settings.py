"""What can be set when MiniWeather runs, and the steps it can be cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.benchmarks.harness.settings import OPTIMIZERS, Optimizer, Schedule, TrainSettings, option

CaseName = Literal["thermal", "collision", "density_current", "gravity_waves", "injection"]


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    """A storm on 100 x 50 cells, and the reference network: 5-10-4, Nadam, batches of 1024."""

    step: Literal["all", "simulate", "sample", "train", "hybrid", "compare"] = option(
        "all", "all, or one step that reads the files of earlier steps as inputs"
    )
    case: CaseName = option("thermal", "dry case to simulate besides the storm")
    duration_s: float = option(400.0, "simulated time of the dry case; 0: its usual length", least=0)
    nx: int = option(100, "cells along x", least=4)
    nz: int = option(50, "cells along z", least=4)
    courant: float = option(1.5, "size of a time step; 1.5 is usual, much larger values are unstable")
    kernel: Literal["auto", "c", "numpy"] = option("auto", "kernel: auto uses C if it can be compiled, otherwise NumPy")
    storm_s: float = option(900.0, "simulated time of a storm")
    physics_steps: int = option(6, "solver steps between two steps of microphysics", least=1)
    members: int = option(3, "number of training storms; the compared storm is another one", least=1)
    output_s: float = option(50.0, "simulated time between two outputs")
    samples: int = option(60_000, "maximum number of training and test cells, half of them active", least=20)
    test_share: float = option(0.2, "fraction of the samples used for testing")
    target: Literal["increments", "outputs"] = option(
        "increments", "what the network predicts: the change, or the state after it"
    )
    features: Literal["excess", "raw"] = option("excess", "input vapour: excess (above saturation) or raw")
    rules: bool = option(
        True, "conserve water and energy in the storm and skip dry cells; false: use the network's output unchanged"
    )
    model: Literal["mlp"] = option("mlp", "mlp: one hidden layer, LeakyReLU 0.1")
    hidden: int = option(10, "units of the hidden layer; 10 units give 104 parameters", least=1)
    epochs: int = option(40, "number of epochs")
    batch_size: int = option(1024, "batch size per rank")
    eval_batch_size: int = option(65_536, "batch size per rank in evaluation")
    optimizer: Optimizer = option("nadam", OPTIMIZERS)
    learning_rate: float = option(0.03, "peak learning rate")
    schedule: Schedule = option("cosine", "learning rate schedule: constant, steps, cosine, onecycle or plateau")


class Step(NamedTuple):
    """One step of many: the files that it hands on, and the parameters that matter to it."""

    gives: tuple[str, ...]
    params: tuple[str, ...] | None = None  # None: all


_SOLVER = ("nx", "nz", "courant", "kernel")
STORM = (*_SOLVER, "storm_s", "physics_steps", "output_s")
STEPS: Mapping[str, Step] = {
    "simulate": Step(("dry.h5", "storm.h5", "members.h5"), (*STORM, "case", "duration_s", "members")),
    "sample": Step(("samples.h5",), ("samples",)),
    "train": Step(("surrogate.npz",)),
    "hybrid": Step(("hybrid.h5",), (*STORM, "rules")),
    "compare": Step(()),
}
