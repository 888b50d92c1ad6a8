"""One training step of DeepCAM, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.deepcam.benchmark import Data, DeepCamTask
from fairmile.benchmarks.suite.deepcam.climate import columns_of
from fairmile.benchmarks.suite.deepcam.models import CHANNELS
from fairmile.benchmarks.suite.deepcam.settings import choose


def build(**params: Any) -> OneStep:
    """Return a step on a GPU, of blank snapshots; `preset=mlperf` is the published benchmark."""
    settings = choose(params, has_data=False, has_gpu=True)
    none: Any = None
    task = DeepCamTask(settings, Data(none, none, is_real=False, words=""))

    def batch() -> dict[str, torch.Tensor]:
        shape = settings.batch_size, settings.rows, columns_of(settings.rows)
        return {
            "x": torch.zeros(*shape, CHANNELS, dtype=torch.float16),
            "labels": torch.zeros(shape, dtype=torch.uint8),
        }

    return one_step(settings, task.model(), task.loss, batch, settings.train_samples + settings.validation_samples)
