"""One training step of SGEMM, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.harness.settings import read_settings
from fairmile.benchmarks.suite.sgemm.benchmark import Prediction
from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS
from fairmile.benchmarks.suite.sgemm.models import TimeModel
from fairmile.benchmarks.suite.sgemm.settings import Settings

_ROWS = 24_160 + 79_728  # of generated data: a tenth to learn from, a third to test


def build(**params: Any) -> OneStep:
    """Return a step of kernels that are all alike."""
    settings = read_settings(Settings, params)
    no_parts: Any = None
    task = Prediction(settings, no_parts, is_real=False)

    def batch() -> dict[str, torch.Tensor]:
        return {"kernel": torch.ones(settings.batch_size, len(PARAMETERS)), "ln_ms": torch.ones(settings.batch_size)}

    return one_step(settings, TimeModel(settings), task.loss, batch, _ROWS)
