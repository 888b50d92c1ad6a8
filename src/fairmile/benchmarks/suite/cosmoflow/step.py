"""One training step of CosmoFlow, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.cosmoflow.benchmark import CosmoFlowTask, Data
from fairmile.benchmarks.suite.cosmoflow.settings import choose
from fairmile.benchmarks.suite.cosmoflow.universes import REDSHIFTS


def build(**params: Any) -> OneStep:
    """Return a step on a GPU, of made-up cubes; `preset=mlperf` is the published benchmark."""
    settings = choose(params, has_data=False, has_gpu=True)
    no_cubes: Any = None
    task = CosmoFlowTask(settings, Data(no_cubes, no_cubes, settings.size, len(REDSHIFTS), is_real=False, words=""))

    def batch() -> dict[str, torch.Tensor]:
        shape = settings.batch_size, *(settings.size,) * 3, len(REDSHIFTS)
        counts = torch.ones(shape, dtype=torch.int16).permute(0, 4, 1, 2, 3)
        return {"x": counts, "y": torch.ones(settings.batch_size, 4)}

    made = settings.train_samples + settings.validation_samples
    return one_step(settings, task.model(), task.loss, batch, made)
