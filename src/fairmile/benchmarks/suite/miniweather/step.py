"""One training step of MiniWeather's network, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.harness.settings import read_settings
from fairmile.benchmarks.suite.miniweather.learning import Emulation
from fairmile.benchmarks.suite.miniweather.settings import Settings
from fairmile.benchmarks.suite.miniweather.surrogate import INPUTS, OUTPUTS


def build(**params: Any) -> OneStep:
    """Return a step of cells that are all alike."""
    settings = read_settings(Settings, params)
    none: Any = None
    task = Emulation(settings, none, none, none, is_real=False)

    def batch() -> dict[str, torch.Tensor]:
        size = settings.batch_size
        return {"cell": torch.zeros(size, len(INPUTS)), "target": torch.zeros(size, len(OUTPUTS))}

    return one_step(settings, task.model(), task.loss, batch, settings.samples)
